/* cross_entropy_whole.cuh - sums and gradient of a token's logits in one read. Internal to the CUDA kernels; see
 * cross_entropy.cu. Needs compute capability 9.0 and at most MAX_WHOLE words.
 *
 *     a cluster of WHOLE_BLOCKS blocks: one row, kept in their shared memory
 *         each block    copies its part of the row, sums it
 *         cluster       exchanges the sums
 *         each block    gradient of its part
 *
 * All blocks have read before the first one writes, so the gradient may overwrite the logits. Bytes per logit: 4 read and
 * 2 written. Limit: memory bandwidth. Blocks of other rows on the same multiprocessor load while these compute. */
#ifndef NBL_CROSS_ENTROPY_WHOLE_CUH
#define NBL_CROSS_ENTROPY_WHOLE_CUH

#include <cooperative_groups.h>

#include "ops/loss/cross_entropy_rows.cuh"

namespace nbl_cuda
{

/* WHOLE_PART: f32 logits per block, 224 KiB of shared memory. WHOLE_COPY: bytes per bulk copy. */
enum { WHOLE_BLOCKS = 8, WHOLE_THREADS = 256, WHOLE_PART = 224 << 8, MAX_WHOLE = WHOLE_BLOCKS * WHOLE_PART };
enum { WHOLE_VECTORS = 4, WHOLE_TILE = WHOLE_THREADS * WHOLE_VECTORS * 4, WHOLE_COPY = 16 << 10 };

/* Sums of a block's part of the row. */
struct whole_part {
    float largest;
    double sum, total; /* sum: of exponentials relative to the largest; total: of the logits */
};

/* Of the whole row: lse as lse + rest, and the gradient of the label's logit. */
struct whole_row {
    float lse, rest, at_label;
};

#if __CUDA_ARCH__ >= 900

/* Copies `bytes` (a multiple of 16) to shared memory. Every thread waits until they are there. */
__device__ inline void copy_part(float *to, const float *from, unsigned bytes)
{
    __shared__ alignas(8) uint64_t arrived;
    uint32_t barrier = static_cast<uint32_t>(__cvta_generic_to_shared(&arrived)),
             slot = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    if (threadIdx.x == 0) {
        nbl_sm90::mbarrier_init(barrier, 1);
        nbl_sm90::mbarrier_init_fence();
        nbl_sm90::mbarrier_expect_tx(barrier, bytes);
        for (unsigned at = 0; at < bytes; at += WHOLE_COPY)
            nbl_sm90::bulk_load(slot + at, reinterpret_cast<const char *>(from) + at,
                                bytes - at < WHOLE_COPY ? bytes - at : static_cast<unsigned>(WHOLE_COPY), barrier);
    }
    __syncthreads();
    nbl_sm90::mbarrier_wait(barrier, 0);
}

#endif

/* The maximum over the block; every thread gets it. One call per kernel: `parts` is not reused. */
__device__ inline float block_largest(float x)
{
    __shared__ float parts[WHOLE_THREADS / 32];
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WHOLE_THREADS / 32; i++) x = fmaxf(x, parts[i]);
    return x;
}

/* Logits i … i + 3 of a part of n. Behind its end they are -inf. */
template <bool CAP>
__device__ inline void load_four(const logit_rows &a, const float *part, int i, int n, float (&z)[4])
{
    if (i + 4 <= n) {
        load_run<float, 4>(part + i, z);
#pragma unroll
        for (int j = 0; CAP && j < 4; j++) z[j] = capped(z[j], a.softcap);
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        z[j] = i + j >= n ? -INFINITY : CAP ? capped(part[i + j], a.softcap) : part[i + j];
}

/* Sums the n logits of a block's part. A NaN makes the sum NaN. PLAIN: the total is not needed. */
template <bool CAP, bool PLAIN>
__device__ inline whole_part sum_part(const logit_rows &a, const float *part, int n)
{
    logit_sums s = {-INFINITY, 0, 0};
    for (int base = static_cast<int>(threadIdx.x) * 4; base < n; base += WHOLE_TILE) {
        float z[WHOLE_VECTORS][4], max = s.largest;
#pragma unroll
        for (int k = 0; k < WHOLE_VECTORS; k++) {
            load_four<CAP>(a, part, base + k * WHOLE_THREADS * 4, n, z[k]);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                max = fmaxf(max, z[k][j]);
                if (!PLAIN && base + k * WHOLE_THREADS * 4 + j < n) s.total += z[k][j];
            }
        }
        float zero = max == -INFINITY ? 0 : max;
        s.sum *= __expf(s.largest - zero);
        s.largest = max;
#pragma unroll
        for (int k = 0; k < WHOLE_VECTORS; k++)
#pragma unroll
            for (int j = 0; j < 4; j++) s.sum += __expf(z[k][j] - zero);
    }
    float max = block_largest(s.largest), share = s.largest == -INFINITY ? 0 : expf(s.largest - max);
    double sums[2] = {static_cast<double>(s.sum) * static_cast<double>(share), static_cast<double>(s.total)};
    if (isnan(s.sum)) sums[0] = static_cast<double>(s.sum);
    block_sums(sums);
    return {max, sums[0], sums[1]};
}

/* The first warp combines the parts. Each lane has the part of block `lane`. */
__device__ inline whole_row finish_row(const logit_rows &a, whole_part part, int64_t token, float at_label,
                                       bool writes)
{
    double largest = static_cast<double>(part.largest), smoothing = static_cast<double>(a.smoothing),
           n = static_cast<double>(a.vocabulary);
    for (int i = WHOLE_BLOCKS / 2; i > 0; i /= 2) largest = fmax(largest, __shfl_xor_sync(WARP, largest, i));
    if (!isnan(part.sum))
        part.sum *= part.largest == -INFINITY ? 0 : exp(static_cast<double>(part.largest) - largest);
    for (int i = WHOLE_BLOCKS / 2; i > 0; i /= 2) {
        part.sum += __shfl_xor_sync(WARP, part.sum, i);
        part.total += __shfl_xor_sync(WARP, part.total, i);
    }
    double more = log(part.sum), log_sum = largest + more,
           logprob = static_cast<double>(capped(at_label, a.softcap)) - largest - more, loss = -logprob;
    float lse = static_cast<float>(log_sum), rest = static_cast<float>(log_sum - static_cast<double>(lse));
    if (smoothing > 0) loss = -(1 - smoothing) * logprob - smoothing * (part.total / n - log_sum);
    if (writes) {
        if (a.logprobs) a.logprobs[token] = static_cast<float>(logprob);
        if (a.lse) {
            a.lse[token] = lse;
            a.lse[a.tokens + token] = rest;
        }
        if (a.loss) a.loss[token] = static_cast<float>(loss);
        else a.losses[token] = loss;
    }
    double full = static_cast<double>(lse) + static_cast<double>(rest);
    return {lse, rest, label_gradient(a, static_cast<double>(at_label), full, smoothing / n)};
}

/* Stores the gradient of the n logits of a part in d, and in `row` if a.wide. Both point to the part. `label` is relative
 * to the part and may be outside. PLAIN: no cap, no smoothing, and only d. */
template <typename T, bool CAP, bool PLAIN>
__device__ inline void store_part(const logit_rows &a, const float *part, int n, float *row, T *d, int label,
                                  const whole_row &r, float scale)
{
    float even = static_cast<float>(static_cast<double>(a.smoothing) / static_cast<double>(a.vocabulary)),
          d_scale = a.unscaled ? 1 : scale;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x) * 4; i < n; i += WHOLE_THREADS * 4) {
        float z[4], narrow[4];
        load_run<float, 4>(part + i, z);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            z[j] = PLAIN ? probability(z[j], r.lse, r.rest)
                         : logit_gradient<CAP>(a, z[j], r.lse, r.rest, even);
            narrow[j] = z[j] * d_scale;
            z[j] *= scale;
        }
        store_run<T, 4>(d + i, narrow);
        if (!PLAIN && a.wide) store_run<float, 4>(row + i, z);
    }
    bool mine = label >= 0 && label < n && label / 4 % WHOLE_THREADS == static_cast<int>(threadIdx.x);
    if (mine) d[label] = from_f32<T>(r.at_label * d_scale); /* overwrites this thread's own store */
    if (mine && !PLAIN && a.wide) row[label] = r.at_label * scale;
}

/* Max words of a block's part: a multiple of 4. */
__host__ __device__ inline int whole_width(int64_t vocabulary)
{
    return static_cast<int>((vocabulary + 4 * WHOLE_BLOCKS - 1) / (4 * WHOLE_BLOCKS)) * 4;
}

/* Losses, and with GRADIENT d, of one token per cluster. CAP: there is a soft cap. PLAIN: as
 * store_part.
 *
 *     part of the row → shared memory (bulk copies, one mbarrier)
 *     sums of the part → `shared`
 *     cluster.sync    all have read their logits: d may overwrite them. All sums are visible
 *     warp 0          reads the sums of 8 blocks, finishes the row → `told`
 *     cluster.sync    nobody reads `shared` of another block any more; also the barrier for `told`
 *     gradient of the part */
template <typename T, bool GRADIENT, bool CAP, bool PLAIN>
__global__ void __launch_bounds__(WHOLE_THREADS) whole_kernel(logit_rows a)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) float logits[];
    __shared__ whole_part shared;
    __shared__ whole_row told;
    namespace groups = cooperative_groups;
    groups::cluster_group cluster = groups::this_cluster();
    int64_t index = blockIdx.x / WHOLE_BLOCKS, token = a.first + index;
    int rank = static_cast<int>(blockIdx.x) % WHOLE_BLOCKS, width = whole_width(a.vocabulary);
    int begin = rank * width, label = a.labels[token], left = static_cast<int>(a.vocabulary) - begin;
    int n = left < 0 ? 0 : left < width ? left : width;
    float *row = a.logits + index * a.stride;
    T *d = static_cast<T *>(a.d) + index * a.d_stride;
    if (label < 0 || label >= a.vocabulary) { /* ignored, or invalid (share_kernel reports it) */
        if (rank == 0) leave_out<T, true, false>(a, row, d, token);
        for (int i = begin + static_cast<int>(threadIdx.x) * 4; GRADIENT && i < begin + n;
             i += WHOLE_THREADS * 4) {
            const float none[4] = {};
            store_run<T, 4>(d + i, none);
            if (a.wide) store_run<float, 4>(row + i, none);
        }
        return;
    }
    copy_part(logits, row + begin, static_cast<unsigned>((n + 3) / 4) * 16);
    float at_label = row[label];
    whole_part part = sum_part<CAP, PLAIN>(a, logits, n);
    if (threadIdx.x == 0) shared = part;
    cluster.sync(); /* all blocks have read their parts */
    if (threadIdx.x < 32) {
        part = *cluster.map_shared_rank(&shared, threadIdx.x % WHOLE_BLOCKS);
        whole_row r = finish_row(a, part, token, at_label, rank == 0 && threadIdx.x == 0);
        if (threadIdx.x == 0) told = r;
    }
    cluster.sync(); /* all blocks have read all sums: a block may end */
    if (!GRADIENT) return;
    double upstream = a.dloss ? static_cast<double>(a.dloss[a.dloss_each ? token : 0]) : 1;
    store_part<T, CAP, PLAIN>(a, logits, n, row + begin, d + begin, label - begin, told,
                              static_cast<float>(upstream * *a.share));
#endif
}

/* True if the device has clusters and a row fits in their shared memory. */
static inline bool can_be_whole(const nbl__call *call, int64_t vocabulary)
{
    return nbl__call_cuda(call)->major >= 9 && vocabulary <= MAX_WHOLE;
}

template <typename T, bool GRADIENT, bool CAP, bool PLAIN>
static inline void launch_whole_as(const nbl__call *call, const logit_rows &a, unsigned rows)
{
    auto kernel = whole_kernel<T, GRADIENT, CAP, PLAIN>;
    size_t shared = static_cast<size_t>(whole_width(a.vocabulary)) * sizeof(float);
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {WHOLE_BLOCKS, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = rows * WHOLE_BLOCKS;
    config.blockDim = WHOLE_THREADS;
    config.dynamicSmemBytes = shared;
    config.stream = stream_of(call);
    config.attrs = &cluster;
    config.numAttrs = 1;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    cudaLaunchKernelEx(&config, kernel, a);
}

template <typename T, bool GRADIENT, bool CAP>
static inline void launch_whole(const nbl__call *call, const logit_rows &a, unsigned rows)
{
    if (!CAP && a.smoothing == 0 && !a.wide) launch_whole_as<T, GRADIENT, false, true>(call, a, rows);
    else launch_whole_as<T, GRADIENT, CAP, false>(call, a, rows);
}

} // namespace nbl_cuda
#endif
