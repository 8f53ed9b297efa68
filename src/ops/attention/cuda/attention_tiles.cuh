/* attention_tiles.cuh - what the kernels of attention on tensor cores share, of whichever instruction set:
 * tiles in shared memory, and the softmax of scores in registers. Internal to the CUDA kernels.
 *
 * A tile has rows of 64, 128 or 256 elements of 2 bytes, in panels of 64 columns: row r of a panel takes
 * 128 bytes, and its 16-byte chunk c lies at c ^ (r % 8), so that the 8 rows which a matrix load takes lie
 * in different banks. It is also the "128-byte swizzle" of Hopper's matrix unit, for which a tile must
 * start at a multiple of 1024 bytes. Rows and columns that do not exist are zeros.
 *
 * Scores [16 rows, N x 8 columns] of a warp are float s[N][4], as every mma.m16n8 leaves them: lane 4g + t
 * has the columns 2t and 2t + 1 of each 8, of row g in s[n][0 … 1] and of row g + 8 in s[n][2 … 3]. Rounded
 * to 16 bits they are the left operand of the next product, 16 columns at a time. */
#ifndef NBL_CUDA_ATTENTION_TILES_CUH
#define NBL_CUDA_ATTENTION_TILES_CUH

#include "ops/attention/cuda/attention.cuh"

namespace nbl_cuda
{

/* ---- instructions ---- */

__device__ inline uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ inline void copy_16(uint32_t to, const void *from, bool real)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0)
                 : "memory");
}
__device__ inline void copy_4(uint32_t to, const void *from, bool real)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(real ? 4 : 0)
                 : "memory");
}
__device__ inline void copies_sent()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ inline void await_copies()
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}
template <typename T> __device__ uint32_t pair_of(float low, float high);
template <> __device__ inline uint32_t pair_of<__half>(float low, float high)
{
    __half2 x = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&x);
}
template <> __device__ inline uint32_t pair_of<__nv_bfloat16>(float low, float high)
{
    __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&x);
}
__device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync(WARP, x, 1);
    return x + __shfl_xor_sync(WARP, x, 2);
}
__device__ inline float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(WARP, x, 2));
}

/* ---- tiles in shared memory ---- */

template <int ROWS> __device__ inline uint32_t address_of(int row, int chunk)
{
    return static_cast<uint32_t>(chunk / 8 * (ROWS * 128) + row * 128 + ((chunk & 7) ^ (row & 7)) * 16);
}

/* ROWS rows from `from`, `step` elements apart, of which `valid` exist. The caller sends the copies. */
template <typename T, int THREADS, int ROWS, int WIDE>
__device__ inline void load_tile(char *to, const T *from, int64_t step, int valid, const attention_problem &p)
{
    constexpr int CHUNKS = WIDE / 8, AT_ONCE = THREADS / CHUNKS;
    static_assert(ROWS % AT_ONCE == 0 && THREADS % CHUNKS == 0);
    int chunk = threadIdx.x % CHUNKS, row = threadIdx.x / CHUNKS;
    if (p.wide) {
        uint32_t base = shared_address(to) + address_of<ROWS>(row, chunk);
        int left = (chunk * 8 < p.size ? valid : 0) - row;
        const T *at = from + row * step + chunk * 8;
#pragma unroll
        for (int r = 0; r < ROWS; r += AT_ONCE, at += AT_ONCE * step) {
            if constexpr (AT_ONCE % 8 == 0) copy_16(base + r * 128, at, r < left);
            else copy_16(shared_address(to) + address_of<ROWS>(row + r, chunk), at, r < left);
        }
        return;
    }
    for (int r = row; r < ROWS; r += AT_ONCE) {
        pack<T> x;
#pragma unroll
        for (int e = 0; e < 8; e++)
            x.at[e] = r < valid && chunk * 8 + e < p.size ? from[r * step + chunk * 8 + e] : from_f32<T>(0);
        *reinterpret_cast<pack<T> *>(to + address_of<ROWS>(r, chunk)) = x;
    }
}

/* 16 rows of accumulators from row `row`, times a factor for rows g and g + 8, to rows `step` apart. */
template <typename T, int N>
__device__ inline void store_rows(T *to, int64_t step, int row, int valid, const float (&sums)[N][4],
                                  const float (&factor)[2], int column, const attention_problem &p)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int r = row + lane / 4 + half * 8;
        if (r >= valid) continue;
        T *at = to + r * step;
#pragma unroll
        for (int n = 0; n < N; n++) {
            int d = column + n * 8 + lane % 4 * 2;
            float low = sums[n][half * 2] * factor[half], high = sums[n][half * 2 + 1] * factor[half];
            if (p.paired) {
                if (d < p.size) *reinterpret_cast<uint32_t *>(at + d) = pair_of<T>(low, high);
            } else {
                if (d < p.size) at[d] = from_f32<T>(low);
                if (d + 1 < p.size) at[d + 1] = from_f32<T>(high);
            }
        }
    }
}

/* Scores as left operands, 16 columns each. */
template <typename T, int N>
__device__ inline void round_scores(uint32_t (&left)[N / 2][4], const float (&s)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            left[n / 2][n % 2 * 2 + half] = pair_of<T>(s[n][half * 2], s[n][half * 2 + 1]);
}

/* ---- scores ---- */

/* Does every query of [i, i + rows) see every key of [j, j + keys)? */
__device__ inline bool all_seen(const attention_problem &p, int i, int rows, int j, int keys, int n)
{
    return i + rows <= n && j >= first_key(p, i + rows - 1) && j + keys <= end_key(p, i, n);
}

/* Rows are queries, from `i`; columns are keys, from `j`. What is not seen becomes `unseen`. */
template <int N>
__device__ inline void hide_keys(const attention_problem &p, float (&s)[N][4], int i, int j, int n_tokens,
                                 float unseen)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int query = i + lane / 4 + half * 8;
        int from = first_key(p, query) - j, to = min(end_key(p, query, n_tokens), n_tokens) - j;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int c = n * 8 + lane % 4 * 2 + e;
                if (c < from || c >= to) s[n][half * 2 + e] = unseen;
            }
    }
}

/* Rows are keys, from `j`; columns are queries, from `i`. */
template <int N>
__device__ inline void hide_queries(const attention_problem &p, float (&s)[N][4], int j, int i, int n_tokens,
                                    float unseen)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int key = j + lane / 4 + half * 8;
        int from = first_query(p, key) - i, to = key < n_tokens ? end_query(p, key, n_tokens) - i : 0;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int c = n * 8 + lane % 4 * 2 + e;
                if (c < from || c >= to) s[n][half * 2 + e] = unseen;
            }
    }
}

/* Products become logits, up to `logit_factor`, which is positive. */
__device__ inline float logit_factor(const attention_problem &p)
{
    return p.cap != 0 ? 1 : fabsf(p.factor);
}
template <int N> __device__ inline void make_logits(const attention_problem &p, float (&s)[N][4])
{
    if (p.cap != 0) {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[n][e] = p.cap * fast_tanh(s[n][e] * p.factor);
    } else if (p.factor < 0) {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[n][e] = -s[n][e];
    }
}

/* Logits become weights; `before` is the factor of what was summed before. A row's sum is spread over four
 * lanes. */
template <int N>
__device__ inline void soften(float (&s)[N][4], float factor, float (&top)[2], float (&total)[2],
                              float (&before)[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float max = s[0][half * 2], sum = 0;
#pragma unroll
        for (int n = 0; n < N; n++) max = fmaxf(max, fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
        max = fmaxf(top[half], quad_max(max) * factor);
        float base = max == -INFINITY ? 0 : max;
        before[half] = power_of_2(top[half] - base);
        top[half] = max;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &x = s[n][half * 2 + e];
                x = power_of_2(fmaf(x, factor, -base));
                sum += x;
            }
        total[half] = fmaf(total[half], before[half], sum);
    }
}
template <int N> __device__ inline void rescale(float (&sums)[N][4], const float (&before)[2])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sums[n][e] *= before[e / 2];
}

/* Before the first key: the sink, or nothing. */
__device__ inline void begin_rows(const attention_problem &p, int head, float (&top)[2], float (&total)[2])
{
    top[0] = top[1] = sink_of(p, head);
    total[0] = total[1] = p.sinks && threadIdx.x % 4 == 0 ? 1 : 0;
}

/* After the last: writes lse of the 16 rows from `i` of the sequence, gives 1 / sum. */
__device__ inline void end_rows(const attention_problem &p, const attention_data &data,
                                const attention_tile &tile, int head, int i, const float (&top)[2],
                                const float (&total)[2], float (&inverse)[2])
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = quad_sum(total[half]);
        int row = i + lane / 4 + half * 8;
        inverse[half] = 1 / sum;
        if (data.lse && lane % 4 == 0 && row < tile.n)
            data.lse[static_cast<int64_t>(tile.first + row) * p.heads + head] = fmaf(top[half], LN_2,
                                                                                     logf(sum));
    }
}

/* ---- backward ---- */

/* After the last key: Σ P · dP of the 16 rows from `i` of the sequence. */
__device__ inline void end_sums(const attention_problem &p, const attention_data &data,
                                const attention_tile &tile, int head, int i, const float (&sums)[2])
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = quad_sum(sums[half]);
        int row = i + lane / 4 + half * 8;
        if (lane % 4 == 0 && row < tile.n)
            data.sums[static_cast<int64_t>(head) * p.tokens + tile.first + row] = sum;
    }
}

/* What a product that is not seen becomes, so that its weight is 0. */
__device__ inline float unseen_product(const attention_problem &p)
{
    return p.cap == 0 && p.factor < 0 ? INFINITY : -INFINITY;
}

/* P of a product, in a row with this lse; 0 where it is not seen. */
template <bool CAP> __device__ inline float weight_of(const attention_problem &p, float product, float lse)
{
    if constexpr (CAP)
        return product == -INFINITY ? 0 : power_of_2(fmaf(p.cap, fast_tanh(product * p.factor), -lse));
    return power_of_2(fmaf(product, p.factor, -lse));
}
/* dS / scale of a product, given its P and dP less delta. */
template <bool CAP>
__device__ inline float slope_of(const attention_problem &p, float product, float weight, float d)
{
    if constexpr (CAP) {
        float t = fast_tanh(product * p.factor);
        return weight * d * fmaf(-t, t, 1.0f);
    }
    return weight * d;
}

} // namespace nbl_cuda
#endif
