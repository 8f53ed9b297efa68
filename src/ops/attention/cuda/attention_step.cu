/* attention_step.cu - one token per sequence: rope of q and k, the new key and value into the
 * cache, attention over the cache.
 *
 * Generation makes one such call per layer, so latency counts more than memory. attention_step_fast
 * is one launch with clusters of RANKS blocks, a cluster per sequence and (8 query heads of) key
 * head:
 *
 *     warp      16 keys at a time, 32 with short heads, as in attention_decode_mma.cu. It rotates
 *               q in registers: a lane holds both halves of a pair. The warp that meets the new
 *               key rotates it and writes it to the cache
 *     block     rank r takes splits r, r + RANKS, …; its warps are added in their order
 *     cluster   rank h gets head h's sums from all ranks, adds them in rank order, stores out
 *
 * It is a dependent launch (dependent_launch.cuh). Before its predecessor has ended it prefetches
 * the cache into L2, which changes no value.
 *
 *     prologue: barrier, arrive at cluster, prefetch → wait for predecessor → walk over the keys
 *     → warps to shared → all blocks have started → send heads to ranks → wait for all parts → out
 *
 * attention_step_cuda serves other dtypes, head sizes and devices: one kernel rotates and writes
 * the cache, then attention_decode runs.
 *
 * Bytes: K and V of the keys that are seen, once per 8 query heads. Limit: the latency of the chain
 * for short sequences, memory for long ones. */
#include "ops/attention/cuda/attention_decode.cuh"
#include "ops/common/dependent_launch.cuh"

using namespace nbl_cuda;

namespace
{

constexpr int RANKS = 8, HEADS = 8;

struct step_problem {
    decode_problem d; /* its k and v are the caches */
    const void *new_k, *new_v;
    int64_t new_k_step, new_v_step; /* elements from a sequence's to the next one's */
    const float *cosines, *sines;
    int half; /* pairs of dimensions that rope rotates */
};

/* 16 bytes that an earlier kernel may have written, or zeros. */
__device__ inline uint4 read_if(const void *from, bool real)
{
    return real ? read_written(from) : make_uint4(0, 0, 0, 0);
}

/* Rotates eight elements of both halves of a head, and rounds them. Same operations as rope.cu. */
template <typename T>
__device__ inline void rotate_eight(const step_problem &p, int b, int at, uint4 *left, uint4 *right)
{
    float l[8], r[8];
    const float *cosines = p.cosines + static_cast<int64_t>(b) * p.half + at;
    const float *sines = p.sines + static_cast<int64_t>(b) * p.half + at;
    T of_left[8], of_right[8];
    memcpy(of_left, left, 16), memcpy(of_right, right, 16);
#pragma unroll
    for (int e = 0; e < 8; e++) l[e] = to_f32(of_left[e]), r[e] = to_f32(of_right[e]);
#pragma unroll
    for (int e = 0; e < 8; e += 4) {
        uint4 c = read_written(cosines + e), s = read_written(sines + e);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float cosine = __uint_as_float(word_of(c, i)), sine = __uint_as_float(word_of(s, i));
            float rotated = l[e + i] * cosine - r[e + i] * sine;
            of_right[e + i] = from_f32<T>(r[e + i] * cosine + l[e + i] * sine);
            of_left[e + i] = from_f32<T>(rotated);
        }
    }
    memcpy(left, of_left, 16), memcpy(right, of_right, 16);
}

/* Rotates a row of q or the new key, in the layout of the products: lane t has 8 columns of each
 * 32. */
template <typename T, int WIDE>
__device__ inline void rotate_row(const step_problem &p, int b, int t, uint4 (&row)[WIDE / 32])
{
#pragma unroll
    for (int i = 0; i < WIDE / 64; i++) rotate_eight<T>(p, b, i * 32 + t * 8, &row[i], &row[i + WIDE / 64]);
}

/* Prefetches the keys and values of this rank's first split into L2. Lengths are not known yet, so
 * it takes all positions up to the cache's size. */
template <typename T, int WIDE, int SPLIT>
__device__ inline void fetch_ahead(const step_problem &p, int64_t base, int rank)
{
    constexpr int LINES = WIDE * 2 / 128; /* lines of 128 bytes per key */
    int64_t step = static_cast<int64_t>(p.d.key_heads) * p.d.size;
    for (int i = threadIdx.x; i < SPLIT * LINES; i += DECODE_THREADS) {
        int key = rank * SPLIT + i / LINES;
        if (key >= p.d.cached) return;
        int64_t at = base + key * step + i % LINES * 64;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const T *>(p.d.k) + at));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const T *>(p.d.v) + at));
    }
}

/* One step for one sequence (blockIdx.y) and up to HEADS query heads of a key head, by a cluster.
 *
 * all_here: mbarrier of the parts of this rank's head, RANKS · (WIDE + 2) floats by st.async. It is
 * initialised before arrive_at_cluster; await_cluster makes sure that all ranks have done so before
 * anybody sends. The new value goes through registers to the product, the new key too. Neither is
 * read back from the cache, so no fence is needed. If several blocks share the key head, only the
 * first (among == 0) writes the cache. */
template <typename T, int WIDE>
__global__ void __launch_bounds__(DECODE_THREADS) step_kernel(dependent, const __grid_constant__ step_problem p)
{
    constexpr int ROUNDS = WIDE <= 64 ? 2 : 1, KEYS = 16 * ROUNDS, SPLIT = DECODE_WARPS * KEYS;
    __shared__ float sums[DECODE_WARPS][HEADS][WIDE], tops[DECODE_WARPS][HEADS], totals[DECODE_WARPS][HEADS];
    /* For this rank's head. */
    __shared__ float parts[RANKS][WIDE], part_tops[RANKS], part_totals[RANKS];
    __shared__ uint64_t all_here;
    int rank = static_cast<int>(cluster_rank()), unit = blockIdx.x / RANKS, b = blockIdx.y;
    int key_head = unit / p.d.blocks_per_group, among = unit % p.d.blocks_per_group;
    int head = key_head * p.d.group + among * HEADS;
    int heads = min(HEADS, (key_head + 1) * p.d.group - head);
    int64_t step = static_cast<int64_t>(p.d.key_heads) * p.d.size;
    int64_t base = (static_cast<int64_t>(b) * p.d.cached * p.d.key_heads + key_head) * p.d.size;
    if (threadIdx.x == 0) {
        make_barrier(&all_here, 1);
        arrive_at(&all_here, RANKS * (WIDE + 2) * 4);
    }
    __syncwarp();
    arrive_at_cluster();
    allow_dependent_launch();
    fetch_ahead<T, WIDE, SPLIT>(p, base, rank);
    wait_for_previous_kernel();
    int2 seen = span_of(p.d, b);
    if (rank == 0 && unit == 0 && threadIdx.x == 0 && seen.y == 0)
        report_fault(p.d.fault, NBL_CUDA_FAULT_LENGTH, b, p.d.lengths[b]);

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, last = seen.y - 1;
    T *k = static_cast<T *>(const_cast<void *>(p.d.k)) + base;
    T *v = static_cast<T *>(const_cast<void *>(p.d.v)) + base;
    int64_t column = key_head * int64_t{p.d.size};
    const T *new_k = static_cast<const T *>(p.new_k) + b * p.new_k_step + column,
            *new_v = static_cast<const T *>(p.new_v) + b * p.new_v_step + column;
    const T *q = static_cast<const T *>(p.d.q) + b * p.d.q_step + head * int64_t{p.d.size};
    auto is_seen = [&](int key) { return key >= seen.x && key < seen.y; };

    uint4 x[WIDE / 32];
    float top = -INFINITY, total = 0, out[WIDE / 64][8][4] = {};
    bool first_pass = true;
    for (int start = rank * SPLIT; start < seen.y; start += RANKS * SPLIT) {
        int first = start + warp * KEYS;
        if (start + SPLIT <= seen.x) continue;
        uint4 keys[2 * ROUNDS][WIDE / 32], values[ROUNDS][WIDE / 64][4];
#pragma unroll
        for (int n = 0; n < 2 * ROUNDS; n++)
#pragma unroll
            for (int i = 0; i < WIDE / 32; i++) {
                int key = first + n * 8 + g;
                keys[n][i] = read_if(k + key * step + i * 32 + t * 8, is_seen(key) && key != last);
            }
#pragma unroll
        for (int r = 0; r < ROUNDS; r++)
#pragma unroll
            for (int c = 0; c < WIDE / 64; c++)
#pragma unroll
                for (int u = 0; u < 4; u++) {
                    int key = first + r * 16 + u / 2 * 8 + t * 2 + u % 2, d = c * 64 + g * 8;
                    values[r][c][u] = read_if(key == last ? new_v + d : v + key * step + d, is_seen(key));
                }
        if (first_pass) {
#pragma unroll
            for (int i = 0; i < WIDE / 32; i++) x[i] = read_if(q + g * p.d.size + i * 32 + t * 8, g < heads);
            rotate_row<T, WIDE>(p, b, t, x);
            first_pass = false;
        }
        if (first <= last && last < first + KEYS) {
            uint4 row[WIDE / 32];
#pragma unroll
            for (int i = 0; i < WIDE / 32; i++) row[i] = read_written(new_k + i * 32 + t * 8);
            rotate_row<T, WIDE>(p, b, t, row);
#pragma unroll
            for (int n = 0; n < 2 * ROUNDS; n++) {
                if (first + n * 8 + g != last) continue;
#pragma unroll
                for (int i = 0; i < WIDE / 32; i++) {
                    keys[n][i] = row[i];
                    if (among == 0) *reinterpret_cast<uint4 *>(k + last * step + i * 32 + t * 8) = row[i];
                }
            }
#pragma unroll
            for (int r = 0; r < ROUNDS; r++)
#pragma unroll
                for (int u = 0; u < 4; u++) {
                    if (among != 0 || first + r * 16 + u / 2 * 8 + t * 2 + u % 2 != last) continue;
#pragma unroll
                    for (int c = 0; c < WIDE / 64; c++)
                        *reinterpret_cast<uint4 *>(v + last * step + c * 64 + g * 8) = values[r][c][u];
                }
        }
        float s[2 * ROUNDS][4] = {}, largest = top;
#pragma unroll
        for (int i = 0; i < WIDE / 32; i++)
#pragma unroll
            for (int n = 0; n < 2 * ROUNDS; n++) {
                multiply<T>(s[n], x[i].x, x[i].y, keys[n][i].x, keys[n][i].y);
                multiply<T>(s[n], x[i].z, x[i].w, keys[n][i].z, keys[n][i].w);
            }
#pragma unroll
        for (int n = 0; n < 2 * ROUNDS; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float score = s[n][e] * p.d.factor;
                if (p.d.cap != 0) score = p.d.cap * fast_tanh(score);
                s[n][e] = is_seen(first + n * 8 + t * 2 + e) ? score : -INFINITY;
                largest = fmaxf(largest, s[n][e]);
            }
        largest = fmaxf(largest, __shfl_xor_sync(WARP, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(WARP, largest, 2));
        float from = largest == -INFINITY ? 0 : largest, before = power_of_2(top - from);
        total *= before;
#pragma unroll
        for (int n = 0; n < 2 * ROUNDS; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) total += s[n][e] = power_of_2(s[n][e] - from);
        top = largest;
#pragma unroll
        for (int c = 0; c < WIDE / 64; c++) {
#pragma unroll
            for (int j = 0; j < 8; j++) out[c][j][0] *= before, out[c][j][1] *= before;
            add_values<T>(out[c], s, values, c);
        }
    }
    total += __shfl_xor_sync(WARP, total, 1);
    total += __shfl_xor_sync(WARP, total, 2);

    /* Adds the warps of the block in their order, and sends head h to rank h. */
#pragma unroll
    for (int c = 0; c < WIDE / 64; c++)
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int j = 0; j < 8; j++) sums[warp][g][c * 64 + (t * 2 + e) * 8 + j] = out[c][j][e];
    if (t == 0) tops[warp][g] = top, totals[warp][g] = total;
    __syncthreads();
    await_cluster(); /* all blocks of the cluster have initialised all_here */
    for (int h = 0; h < heads; h++) {
        float max = tops[0][h], all = 0, factor[DECODE_WARPS];
#pragma unroll
        for (int w = 1; w < DECODE_WARPS; w++) max = fmaxf(max, tops[w][h]);
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; w++) {
            factor[w] = power_of_2(tops[w][h] - (max == -INFINITY ? 0 : max));
            all = fmaf(factor[w], totals[w][h], all);
        }
        for (int d = threadIdx.x; d < WIDE; d += DECODE_THREADS) {
            float sum = 0;
#pragma unroll
            for (int w = 0; w < DECODE_WARPS; w++) sum = fmaf(factor[w], sums[w][h][d], sum);
            send_to_rank(&parts[rank][d], &all_here, static_cast<uint32_t>(h), sum);
        }
        if (threadIdx.x == 0) {
            send_to_rank(&part_tops[rank], &all_here, static_cast<uint32_t>(h), max);
            send_to_rank(&part_totals[rank], &all_here, static_cast<uint32_t>(h), all);
        }
    }
    /* Ranks past the last head receive nothing, so nobody writes to their memory any more. */
    if (rank >= heads) return;
    wait_at(&all_here, 0);
    if (seen.y == 0) return;
    int mine = head + rank;
    float sink = p.d.sinks ? read(p.d.sinks, p.d.sinks_dtype, mine) * LOG2_E : -INFINITY, max = sink;
#pragma unroll
    for (int r = 0; r < RANKS; r++) max = fmaxf(max, part_tops[r]);
    if (max == -INFINITY) max = 0;
    float all = p.d.sinks ? power_of_2(sink - max) : 0, factor[RANKS];
#pragma unroll
    for (int r = 0; r < RANKS; r++) {
        factor[r] = power_of_2(part_tops[r] - max);
        all = fmaf(factor[r], part_totals[r], all);
    }
    for (int d = threadIdx.x; d < WIDE; d += DECODE_THREADS) {
        float sum = 0;
#pragma unroll
        for (int r = 0; r < RANKS; r++) sum = fmaf(factor[r], parts[r][d], sum);
        static_cast<T *>(p.d.out)[(static_cast<int64_t>(b) * p.d.heads + mine) * p.d.size + d] = from_f32<T>(
            sum / all);
    }
}

/* ---- any dtype and head size ---- */

/* Steps 1 and 2 of attention_step for one head of one sequence: blocks 0 … Hq - 1 rotate q into
 * `to`, the next Hkv rotate k into the cache, the last Hkv copy v there. Values are rounded to the
 * dtype of the computation first, then to that of the cache. */
__global__ void rotate_and_keep(const __grid_constant__ step_problem p, nbl_dtype kept, void *to)
{
    int b = blockIdx.y, which = blockIdx.x, size = p.d.size, length = p.d.lengths[b];
    const void *from;
    nbl_dtype to_dtype = p.d.dtype;
    int64_t at, slot;
    if (which < p.d.heads) {
        from = p.d.q;
        at = b * p.d.q_step + which * int64_t{size};
        slot = (static_cast<int64_t>(b) * p.d.heads + which) * size;
    } else {
        int head = (which - p.d.heads) % p.d.key_heads;
        bool value = which >= p.d.heads + p.d.key_heads;
        if (length < 1 || length > p.d.cached) return; /* attention_decode reports the fault */
        from = value ? p.new_v : p.new_k;
        to = const_cast<void *>(value ? p.d.v : p.d.k);
        to_dtype = kept;
        at = b * (value ? p.new_v_step : p.new_k_step) + head * int64_t{size};
        slot = ((static_cast<int64_t>(b) * p.d.cached + length - 1) * p.d.key_heads + head) * size;
    }
    bool rotates = which < p.d.heads + p.d.key_heads;
    for (int i = threadIdx.x; i < size; i += blockDim.x) {
        float x = load_one(from, p.d.dtype, at + i);
        if (rotates && i < 2 * p.half) {
            int j = i % p.half;
            float c = p.cosines[static_cast<int64_t>(b) * p.half + j],
                  s = p.sines[static_cast<int64_t>(b) * p.half + j];
            float other = load_one(from, p.d.dtype, at + (i < p.half ? i + p.half : j));
            x = i < p.half ? x * c - other * s : x * c + other * s;
        }
        if (p.d.dtype == NBL_DTYPE_F16) x = to_f32(from_f32<__half>(x));
        else if (p.d.dtype == NBL_DTYPE_BF16) x = to_f32(from_f32<__nv_bfloat16>(x));
        store_one(to, to_dtype, slot + i, x);
    }
}

/* ---- the operator ---- */

step_problem problem_of(const nbl__attention_step *a)
{
    double scale = nbl__attention_scale(a->scale, a->q.shape[2]);
    step_problem p = {};
    p.d.q = a->q.data, p.d.k = a->keys.data, p.d.v = a->values.data, p.d.sinks = a->sinks.data;
    p.d.out = a->out.data;
    p.d.lengths = static_cast<const int32_t *>(a->lengths.data);
    p.d.dtype = a->dtype;
    p.d.sinks_dtype = a->sinks.dtype;
    p.d.heads = static_cast<int>(a->q.shape[1]);
    p.d.key_heads = static_cast<int>(a->keys.shape[2]);
    p.d.group = p.d.heads / p.d.key_heads;
    p.d.blocks_per_group = (p.d.group + HEADS - 1) / HEADS;
    p.d.size = static_cast<int>(a->q.shape[2]);
    p.d.cached = static_cast<int>(a->keys.shape[1]);
    p.d.window = static_cast<int>(a->window < a->keys.shape[1] ? a->window : a->keys.shape[1]);
    p.d.chunk = static_cast<int>(a->chunk < a->keys.shape[1] ? a->chunk : a->keys.shape[1]);
    p.d.factor = static_cast<float>(a->softcap != 0 ? scale / a->softcap : scale * 1.4426950408889634);
    p.d.cap = a->softcap * LOG2_E;
    p.new_k = a->k.data, p.new_v = a->v.data;
    p.d.q_step = step_of(&a->q), p.new_k_step = step_of(&a->k), p.new_v_step = step_of(&a->v);
    p.cosines = static_cast<const float *>(a->cos.data), p.sines = static_cast<const float *>(a->sin.data);
    p.half = static_cast<int>(a->cos.shape[1]);
    return p;
}

const char *can_fast(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    const nbl__attention_step *a = static_cast<const nbl__attention_step *>(arguments);
    const char *why = nbl__wide_strides_only(&nbl__attention_step_family, false, arguments);
    int64_t size = a->q.shape[2];
    if (why) return why;
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (major < 9) return "it needs compute capability 9.0";
    if (a->dtype == NBL_DTYPE_F32 || a->keys.dtype != a->dtype)
        return "16-bit values in a cache of their dtype only";
    if (size != 64 && size != 128) return "heads of 64 or 128 only";
    if (2 * a->cos.shape[1] != size) return "heads that turn as a whole only";
    if (a->q.shape[0] > 65535 || a->keys.shape[1] > 1 << 24) return "too many sequences or keys";
    return nullptr;
}

/* Checked at the run: implementations are chosen before addresses exist. A plan's are always
 * aligned. */
bool is_all_aligned(const nbl__attention_step *a)
{
    const void *all[] = {a->q.data,   a->k.data,    a->v.data,     a->cos.data,
                         a->sin.data, a->keys.data, a->values.data};
    for (const void *p : all)
        if (!is_aligned(p, 16)) return false;
    return true;
}

size_t scratch_of(const nbl_context *ctx, const void *arguments)
{
    const nbl__attention_step *a = static_cast<const nbl__attention_step *>(arguments);
    nbl__attention_decode decode = nbl__attention_of_step(a, &a->q);
    size_t q = static_cast<size_t>(nbl__tensor_elements(&a->q)) * nbl__size_of(a->dtype);
    return (q + 63) / 64 * 64 + nbl__attention_decode_cuda.scratch(ctx, &decode);
}

/* Scratch: the rotated q, then the scratch of attention_decode. */
nbl_status run_general(const nbl__call *call, const void *arguments)
{
    const nbl__attention_step *a = static_cast<const nbl__attention_step *>(arguments);
    step_problem p = problem_of(a);
    nbl__bump bump = {call->scratch, 0};
    nbl_tensor q = a->q;
    q.row_stride = 0;
    q.data = nbl__bump_alloc(&bump, static_cast<size_t>(nbl__tensor_elements(&a->q)) * nbl__size_of(a->dtype));
    if (a->q.shape[0] == 0 || p.d.cached == 0) return NBL_OK;
    dim3 grid(static_cast<unsigned>(p.d.heads + 2 * p.d.key_heads), static_cast<unsigned>(a->q.shape[0]));
    rotate_and_keep<<<grid, DECODE_THREADS, 0, stream_of(call)>>>(p, a->keys.dtype, q.data);
    NBL_TRY(launched(call));
    nbl__attention_decode decode = nbl__attention_of_step(a, &q);
    nbl__call rest = *call;
    rest.scratch += bump.used;
    rest.scratch_bytes -= bump.used;
    return nbl__attention_decode_cuda.run(&rest, &decode);
}

template <typename T> void launch(const step_problem &p, int64_t sequences, cudaStream_t stream)
{
    dim3 grid(static_cast<unsigned>(RANKS * p.d.key_heads * p.d.blocks_per_group),
              static_cast<unsigned>(sequences));
    if (p.d.size == 64) launch_dependent(step_kernel<T, 64>, grid, DECODE_THREADS, 0, RANKS, stream, p);
    else launch_dependent(step_kernel<T, 128>, grid, DECODE_THREADS, 0, RANKS, stream, p);
}

nbl_status run_fast(const nbl__call *call, const void *arguments)
{
    const nbl__attention_step *a = static_cast<const nbl__attention_step *>(arguments);
    step_problem p = problem_of(a);
    if (a->q.shape[0] == 0 || p.d.cached == 0) return NBL_OK;
    if (!is_all_aligned(a)) return run_general(call, arguments);
    p.d.fault = nbl__call_cuda(call)->fault;
    if (a->dtype == NBL_DTYPE_F16) launch<__half>(p, a->q.shape[0], stream_of(call));
    else launch<__nv_bfloat16>(p, a->q.shape[0], stream_of(call));
    return launched(call);
}

const char *can_general(const nbl_context *ctx, const void *arguments)
{
    const nbl__attention_step *a = static_cast<const nbl__attention_step *>(arguments);
    nbl__attention_decode decode = nbl__attention_of_step(a, &a->q);
    return nbl__attention_decode_cuda.can(ctx, &decode);
}

} // namespace

extern "C" {
const nbl__impl nbl__attention_step_fast = {"attention_step_fast", NBL_ISA_SCALAR, can_fast, scratch_of,
                                            run_fast};
const nbl__impl nbl__attention_step_cuda = {"attention_step_cuda", NBL_ISA_SCALAR, can_general, scratch_of,
                                            run_general};
}
