/* attention_decode.cu - one query per sequence against its cache (the decode phase of generation).
 *
 * Each sequence is cut into splits of a fixed number of keys, counted from its start, so that one
 * long sequence is work for the whole device:
 *
 *     block   sequence, key head, split. Its query heads share the key head, whose keys are read
 *             once
 *     warp    16 keys of the split, 32 with short heads; it issues all loads of a round before the
 *             first product
 *     join    a second kernel adds the splits of one head in their order, and the sink
 *
 * If q and the caches have the same 16-bit dtype, tensor cores multiply (attention_decode_mma.cu).
 * Otherwise decode_split runs: a key takes 8, 16 or 32 lanes of 16 bytes each, products are fma and
 * shuffles, for up to 4 query heads at a time.
 *
 * Lengths are known only on the device, and they grow while a captured graph is replayed. So the
 * grid covers the whole cache, and blocks that see no key return at once.
 *
 * Bytes: K and V of the keys that are seen, once per 4 query heads (tensor cores: 8) of a group,
 * and f32 partial results: (D + 2) · 4 bytes per head and split, written and read. Limit:
 * memory. */
#include "ops/attention/cuda/attention_decode.cuh"

using namespace nbl_cuda;

namespace
{

enum { JOIN_THREADS = 256, WIDEST = 512 }; /* WIDEST: elements of a head */

typedef decode_problem problem;

/* 16 bytes of a row from column `at` on; zeros past its end. `wide`: rows are aligned to 16
 * bytes. */
template <typename T> __device__ inline pack<T> load(const T *row, int at, int size, bool wide)
{
    pack<T> x;
    if (wide) {
        *reinterpret_cast<uint4 *>(&x) = at < size ? __ldg(reinterpret_cast<const uint4 *>(row + at))
                                                   : make_uint4(0, 0, 0, 0);
    } else {
#pragma unroll
        for (int e = 0; e < pack<T>::COUNT; e++) x.at[e] = at + e < size ? row[at + e] : from_f32<T>(0);
    }
    return x;
}

/* LANES lanes share a key; each loads VECTORS x 16 bytes of it. HEADS query heads per block. A warp
 * loads KEYS keys side by side, STEPS times per round, and does ROUNDS rounds. */
template <typename T, int LANES, int VECTORS, int HEADS> struct shape {
    static constexpr int COUNT = pack<T>::COUNT;
    static constexpr int KEYS = 32 / LANES;            /* of a warp at a time */
    static constexpr int STEPS = VECTORS == 2 ? 4 : 8; /* keys per round and lane group */
    static constexpr int ROUNDS = KEYS * STEPS < 16 ? 16 / (KEYS * STEPS) : 1;
    static constexpr int OF_WARP = KEYS * STEPS * ROUNDS; /* keys per warp: 16 or 32 */
    static constexpr int SPLIT = DECODE_WARPS * OF_WARP;
    static constexpr int PADDED = LANES * VECTORS * COUNT;
};

/* The partial results of one split for up to HEADS query heads of a key head. Grid: (key heads x
 * blocks per group, splits, sequences).
 *
 *     for each round:   load K and V of STEPS keys per lane group
 *                       s = q·k: fma over the lane's columns, shuffles over the LANES lanes
 *                       online softmax over the warp's keys of the round
 *                       sums += 2^(s - top) · v
 *     shuffles over the keys side by side; shared memory over the 4 warps (finish_split)
 *
 * q is multiplied by the factor once, so s is a logit in units of log 2 (or the argument of the
 * cap). Shared memory: 4 · HEADS · (PADDED + 2) f32, at most 32 KiB and 128 bytes. */
template <typename T, int LANES, int VECTORS, int HEADS>
__global__ void __launch_bounds__(DECODE_THREADS) decode_split(const __grid_constant__ problem p)
{
    typedef shape<T, LANES, VECTORS, HEADS> z;
    __shared__ float shared_sums[DECODE_WARPS][HEADS][z::PADDED], shared_top[DECODE_WARPS][HEADS],
        shared_total[DECODE_WARPS][HEADS];
    int split = blockIdx.y, b = blockIdx.z, key_head = blockIdx.x / p.blocks_per_group;
    int head = key_head * p.group + blockIdx.x % p.blocks_per_group * HEADS;
    int heads = min(HEADS, (key_head + 1) * p.group - head);
    int2 seen = span_of(p, b);
    if (split == 0 && blockIdx.x == 0 && threadIdx.x == 0 && seen.y == 0)
        report_fault(p.fault, NBL_CUDA_FAULT_LENGTH, b, p.lengths[b]);
    int start = split * z::SPLIT;
    if (start >= seen.y || start + z::SPLIT <= seen.x) return;

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, mine = lane % LANES, own_key = lane / LANES;
    int64_t step = static_cast<int64_t>(p.key_heads) * p.size;
    int64_t base = (static_cast<int64_t>(b) * p.cached * p.key_heads + key_head) * p.size;
    const T *k = static_cast<const T *>(p.k) + base, *v = static_cast<const T *>(p.v) + base;
    int64_t row_of_q = b * p.q_step + head * int64_t{p.size};
    float q[HEADS][VECTORS][z::COUNT], sums[HEADS][VECTORS][z::COUNT] = {}, top[HEADS], total[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        top[h] = -INFINITY, total[h] = 0;
#pragma unroll
        for (int n = 0; n < VECTORS; n++)
#pragma unroll
            for (int e = 0; e < z::COUNT; e++) {
                int d = (n * LANES + mine) * z::COUNT + e;
                int64_t at = row_of_q + h * p.size + d;
                q[h][n][e] = h < heads && d < p.size ? read(p.q, p.dtype, at) * p.factor : 0;
            }
    }

    for (int round = 0; round < z::ROUNDS; round++) {
        int first = start + warp * z::OF_WARP + round * z::KEYS * z::STEPS + own_key;
        pack<T> keys[z::STEPS][VECTORS], values[z::STEPS][VECTORS];
#pragma unroll
        for (int u = 0; u < z::STEPS; u++) {
            int j = first + u * z::KEYS, size = j >= seen.x && j < seen.y ? p.size : 0;
#pragma unroll
            for (int n = 0; n < VECTORS; n++) {
                int at = (n * LANES + mine) * z::COUNT;
                keys[u][n] = load(k + j * step, at, size, p.wide);
                values[u][n] = load(v + j * step, at, size, p.wide);
            }
        }
        float s[HEADS][z::STEPS];
#pragma unroll
        for (int u = 0; u < z::STEPS; u++) {
            int j = first + u * z::KEYS;
            float row[VECTORS][z::COUNT];
#pragma unroll
            for (int n = 0; n < VECTORS; n++)
#pragma unroll
                for (int e = 0; e < z::COUNT; e++) row[n][e] = to_f32(keys[u][n].at[e]);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float sum = 0;
#pragma unroll
                for (int n = 0; n < VECTORS; n++)
#pragma unroll
                    for (int e = 0; e < z::COUNT; e++) sum = fmaf(q[h][n][e], row[n][e], sum);
#pragma unroll
                for (int i = LANES / 2; i > 0; i /= 2) sum += __shfl_xor_sync(WARP, sum, i);
                if (p.cap != 0) sum = p.cap * tanhf(sum);
                s[h][u] = j >= seen.x && j < seen.y ? sum : -INFINITY;
            }
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float largest = top[h];
#pragma unroll
            for (int u = 0; u < z::STEPS; u++) largest = fmaxf(largest, s[h][u]);
#pragma unroll
            for (int i = LANES; i < 32; i *= 2) largest = fmaxf(largest, __shfl_xor_sync(WARP, largest, i));
            float from = largest == -INFINITY ? 0 : largest, before = exp2f(top[h] - from);
            total[h] *= before;
#pragma unroll
            for (int n = 0; n < VECTORS; n++)
#pragma unroll
                for (int e = 0; e < z::COUNT; e++) sums[h][n][e] *= before;
#pragma unroll
            for (int u = 0; u < z::STEPS; u++) {
                s[h][u] = exp2f(s[h][u] - from);
                total[h] += s[h][u];
            }
            top[h] = largest;
        }
#pragma unroll
        for (int u = 0; u < z::STEPS; u++)
#pragma unroll
            for (int n = 0; n < VECTORS; n++)
#pragma unroll
                for (int e = 0; e < z::COUNT; e++) {
                    float value = to_f32(values[u][n].at[e]);
#pragma unroll
                    for (int h = 0; h < HEADS; h++) sums[h][n][e] = fmaf(s[h][u], value, sums[h][n][e]);
                }
    }

    /* Adds the key groups of the warp by shuffles, then finish_split adds the warps. */
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
#pragma unroll
        for (int i = LANES; i < 32; i *= 2) {
            total[h] += __shfl_xor_sync(WARP, total[h], i);
#pragma unroll
            for (int n = 0; n < VECTORS; n++)
#pragma unroll
                for (int e = 0; e < z::COUNT; e++) sums[h][n][e] += __shfl_xor_sync(WARP, sums[h][n][e], i);
        }
        if (lane < LANES) {
#pragma unroll
            for (int n = 0; n < VECTORS; n++)
#pragma unroll
                for (int e = 0; e < z::COUNT; e++)
                    shared_sums[warp][h][(n * LANES + mine) * z::COUNT + e] = sums[h][n][e];
        }
        if (lane == 0) shared_top[warp][h] = top[h], shared_total[warp][h] = total[h];
    }
    __syncthreads();
    finish_split<HEADS, z::PADDED>(p, b, split, head, heads, shared_top, shared_total, shared_sums);
}

/* ---- the splits of a sequence ---- */

/* out = Σ_splits 2^(top_s - top) · sums_s / Σ_splits 2^(top_s - top) · total_s, with the sink in
 * the denominator. Grid: (heads, sequences). Warp w takes splits w, w + 8, …; a lane has every 32nd
 * column. First the maximum over all splits, then one pass over the sums; the warps are added in
 * their order. Only splits that saw a key are read: first … end - 1. */
__global__ void __launch_bounds__(JOIN_THREADS) join_splits(const __grid_constant__ problem p)
{
    constexpr int JOINERS = JOIN_THREADS / 32, COLUMNS = WIDEST / 32;
    __shared__ float shared[JOINERS][WIDEST], tops[JOINERS], totals[JOINERS];
    int head = blockIdx.x, b = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int2 seen = span_of(p, b);
    if (seen.y == 0) return;
    int first = seen.x / p.split, end = (seen.y + p.split - 1) / p.split;
    int64_t part = static_cast<int64_t>(b) * p.splits * p.heads + head;
    float sink = p.sinks ? read(p.sinks, p.sinks_dtype, head) * LOG2_E : -INFINITY, top = sink, total = 0;
    for (int s = first + threadIdx.x; s < end; s += JOIN_THREADS)
        top = fmaxf(top, p.tops[part + static_cast<int64_t>(s) * p.heads]);
    top = warp_max(top);
    if (lane == 0) tops[warp] = top;
    __syncthreads();
    for (int w = 0; w < JOINERS; w++) top = fmaxf(top, tops[w]);
    if (top == -INFINITY) top = 0;

    float sums[COLUMNS] = {};
#pragma unroll 2
    for (int s = first + warp; s < end; s += JOINERS) {
        int64_t at = part + static_cast<int64_t>(s) * p.heads;
        float factor = exp2f(p.tops[at] - top);
        total = fmaf(factor, p.total[at], total);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            if (c * 32 + lane < p.size) sums[c] = fmaf(factor, p.sums[at * p.size + c * 32 + lane], sums[c]);
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) shared[warp][c * 32 + lane] = sums[c];
    if (lane == 0) totals[warp] = total;
    __syncthreads();
    total = p.sinks ? exp2f(sink - top) : 0;
    for (int w = 0; w < JOINERS; w++) total += totals[w];
    for (int d = threadIdx.x; d < p.size; d += JOIN_THREADS) {
        float sum = 0;
        for (int w = 0; w < JOINERS; w++) sum += shared[w][d];
        int64_t at = (static_cast<int64_t>(b) * p.heads + head) * p.size + d;
        if (p.dtype == NBL_DTYPE_F32) static_cast<float *>(p.out)[at] = sum / total;
        else if (p.dtype == NBL_DTYPE_F16) static_cast<__half *>(p.out)[at] = __float2half_rn(sum / total);
        else static_cast<__nv_bfloat16 *>(p.out)[at] = __float2bfloat16_rn(sum / total);
    }
}

/* ---- the operator ---- */

/* vectors_of: 16-byte vectors of a key. split_of: keys of a split, the same for both kernels. */
int vectors_of(const nbl__attention_decode *a)
{
    int64_t count = 16 / static_cast<int64_t>(nbl__size_of(a->k.dtype));
    return static_cast<int>((a->q.shape[2] + count - 1) / count);
}
int split_of(const nbl__attention_decode *a)
{
    return vectors_of(a) <= 8 ? shape<float, 8, 1, 1>::SPLIT : shape<float, 16, 1, 1>::SPLIT;
}
static_assert(shape<float, 16, 1, 1>::SPLIT == shape<float, 32, 1, 1>::SPLIT &&
              shape<float, 16, 1, 1>::SPLIT == shape<float, 32, 2, 1>::SPLIT);

const char *can_run(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    const nbl__attention_decode *a = static_cast<const nbl__attention_decode *>(arguments);
    if (vectors_of(a) > 64) return "heads of more than 1024 bytes";
    if (a->k.shape[1] / 64 > 65535 || a->q.shape[0] > 65535)
        return "a cache of more than 4M keys or 65535 sequences";
    return NULL;
}

/* Scratch: sums | tops | total. With base NULL it only returns the size. */
size_t lay_out(const nbl__attention_decode *a, uint8_t *base, problem *p)
{
    nbl__bump bump = {base, 0};
    int64_t split = split_of(a), splits = (a->k.shape[1] + split - 1) / split;
    size_t parts = static_cast<size_t>(a->q.shape[0] * splits * a->q.shape[1]);
    p->split = static_cast<int>(split);
    p->splits = static_cast<int>(splits);
    p->sums = static_cast<float *>(
        nbl__bump_alloc(&bump, parts * static_cast<size_t>(a->q.shape[2]) * sizeof(float)));
    p->tops = static_cast<float *>(nbl__bump_alloc(&bump, parts * sizeof(float)));
    p->total = static_cast<float *>(nbl__bump_alloc(&bump, parts * sizeof(float)));
    return bump.used;
}

size_t scratch_of(const nbl_context *ctx, const void *arguments)
{
    problem p;
    (void)ctx;
    return lay_out(static_cast<const nbl__attention_decode *>(arguments), NULL, &p);
}

template <typename T, int LANES, int VECTORS, int HEADS>
void launch_split(problem p, int64_t sequences, cudaStream_t stream)
{
    p.blocks_per_group = (p.group + HEADS - 1) / HEADS;
    dim3 grid(static_cast<unsigned>(p.key_heads * p.blocks_per_group), static_cast<unsigned>(p.splits),
              static_cast<unsigned>(sequences));
    decode_split<T, LANES, VECTORS, HEADS><<<grid, DECODE_THREADS, 0, stream>>>(p);
}

template <typename T, int HEADS>
void launch(const problem &p, int vectors, int64_t sequences, cudaStream_t stream)
{
    if (vectors <= 8) launch_split<T, 8, 1, HEADS>(p, sequences, stream);
    else if (vectors <= 16) launch_split<T, 16, 1, HEADS>(p, sequences, stream);
    else if (vectors <= 32) launch_split<T, 32, 1, HEADS>(p, sequences, stream);
    else launch_split<T, 32, 2, HEADS>(p, sequences, stream);
}

nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__attention_decode *a = static_cast<const nbl__attention_decode *>(arguments);
    double scale = nbl__attention_scale(a->scale, a->q.shape[2]);
    problem p = {};
    lay_out(a, call->scratch, &p);
    if (a->q.shape[0] == 0 || p.splits == 0) return NBL_OK;
    p.q_step = step_of(&a->q);
    p.q = a->q.data, p.k = a->k.data, p.v = a->v.data, p.sinks = a->sinks.data, p.out = a->out.data;
    p.lengths = static_cast<const int32_t *>(a->lengths.data);
    p.dtype = a->dtype;
    p.sinks_dtype = a->sinks.dtype;
    p.heads = static_cast<int>(a->q.shape[1]);
    p.key_heads = static_cast<int>(a->k.shape[2]);
    p.group = p.heads / p.key_heads;
    p.size = static_cast<int>(a->q.shape[2]);
    p.cached = static_cast<int>(a->k.shape[1]);
    p.window = static_cast<int>(a->window < a->k.shape[1] ? a->window : a->k.shape[1]);
    p.chunk = static_cast<int>(a->chunk < a->k.shape[1] ? a->chunk : a->k.shape[1]);
    p.wide = static_cast<size_t>(p.size) * nbl__size_of(a->k.dtype) % 16 == 0 && is_aligned(p.k, 16) &&
             is_aligned(p.v, 16);
    p.factor = static_cast<float>(a->softcap != 0 ? scale / a->softcap : scale * 1.4426950408889634);
    p.cap = a->softcap * LOG2_E;
    p.fault = nbl__call_cuda(call)->fault;
    bool mma = a->dtype == a->k.dtype && a->dtype != NBL_DTYPE_F32 && p.size <= 256 && p.wide &&
               is_aligned(p.q, 16) && p.q_step % 8 == 0;
    if (mma) decode_mma_launch(p, a->q.shape[0], stream_of(call));
    else if (p.group == 1)
        NBL_BY_DTYPE(a->k.dtype, T, (launch<T, 1>(p, vectors_of(a), a->q.shape[0], stream_of(call))));
    else NBL_BY_DTYPE(a->k.dtype, T, (launch<T, 4>(p, vectors_of(a), a->q.shape[0], stream_of(call))));
    dim3 grid(static_cast<unsigned>(p.heads), static_cast<unsigned>(a->q.shape[0]));
    join_splits<<<grid, JOIN_THREADS, 0, stream_of(call)>>>(p);
    return launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__attention_decode_cuda = {"attention_decode_cuda", NBL_ISA_SCALAR, can_run, scratch_of,
                                              run};
}
