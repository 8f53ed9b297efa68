/* attention_tiles.cuh - shared by the attention kernels on tensor cores (mma and wgmma): tiles in
 * shared memory, and the softmax of scores in registers. Internal to the CUDA kernels.
 *
 * A tile has rows of 64, 128 or 256 elements of 2 bytes, in panels of 64 columns. Row r of a panel
 * takes 128 bytes, and its 16-byte chunk c is stored at c ^ (r % 8). So the 8 rows of a matrix load
 * are in different banks. This is also the 128-byte swizzle of wgmma and TMA, which require that a
 * tile starts at a multiple of 1024 bytes. Rows and columns that do not exist are zeros.
 *
 *     panel 0: ROWS x 128 bytes (columns 0 … 63) | panel 1 (columns 64 … 127) | …
 *
 * Scores [16 rows, N x 8 columns] of a warp are float s[N][4], as every mma.m16n8 leaves them. Lane
 * 4g + t has the columns 2t and 2t + 1 of each 8: of row g in s[n][0 … 1], of row g + 8 in
 * s[n][2 … 3]. Rounded to 16 bits, 16 columns of them are the left operand of the next product. */
#ifndef NBL_ATTENTION_TILES_CUH
#define NBL_ATTENTION_TILES_CUH

#include "ops/attention/cuda/attention.cuh"

namespace nbl_cuda
{

/* ---- instructions ---- */

__device__ inline uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
/* Asynchronous copies into shared memory. If `real` is false nothing is read and zeros are
 * written. */
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
/* copies_sent closes a group of copies; await_copies waits for all groups of this thread. Other
 * threads' copies are visible after a barrier that follows. */
__device__ inline void copies_sent()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ inline void await_copies()
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}
/* Two values as 16 bits each; `low` in the lower half. */
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
/* Over the four lanes that share a row of scores. */
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

/* Offset of a 16-byte chunk in a tile of ROWS rows. */
template <int ROWS> __device__ inline uint32_t address_of(int row, int chunk)
{
    return static_cast<uint32_t>(chunk / 8 * (ROWS * 128) + row * 128 + ((chunk & 7) ^ (row & 7)) * 16);
}

/* Loads ROWS rows from `from`, `step` elements apart, of which `valid` exist. All THREADS threads
 * call it. With p.wide it only starts cp.async copies, and the caller commits them (copies_sent).
 * Otherwise it loads single elements and writes them before it returns. */
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
            /* A step of 8 rows keeps r % 8, so the swizzle stays the same. */
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

/* Stores 16 rows of accumulators, multiplied by factor[0] for row g and factor[1] for row g + 8, to
 * rows from `row` on, `step` elements apart. 4 bytes per access with p.paired, else 2. */
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

/* Rounds scores to the left operands of the next product, 16 columns each. No lane exchanges
 * data. */
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

/* Rows are queries from position `i`, columns are keys from position `j`. Scores of keys that a
 * query does not see become `unseen`. */
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

/* The same for transposed scores: rows are keys from position `j`, columns are queries from `i`. */
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

/* The logit of a score, in units of log 2, is make_logits(score) · logit_factor. The factor is
 * positive, so the maximum of a row can be taken before it is applied. */
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

/* One step of the online softmax. In: s are scores after make_logits. Out: s = 2^(s · factor -
 * top). `top` is the new maximum, `total` the sum of this lane's weights. Earlier sums must be
 * multiplied by `before` = 2^(old top - new top) (rescale). */
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
        float base = max == -INFINITY ? 0 : max; /* a row that saw no key yet: no -inf - -inf */
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

/* Before the first key: top is the sink, or -inf. The sink counts once, in one of four lanes. */
__device__ inline void begin_rows(const attention_problem &p, int head, float (&top)[2], float (&total)[2])
{
    top[0] = top[1] = sink_of(p, head);
    total[0] = total[1] = p.sinks && threadIdx.x % 4 == 0 ? 1 : 0;
}

/* After the last key: writes lse of the 16 rows from row `i` of the sequence. `inverse`: 1 / Σ. */
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

/* After the last key: writes Σ P · dP of the 16 rows from row `i` of the sequence. */
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

/* The value of q·k that has weight 0: the sign of the factor decides. */
__device__ inline float unseen_product(const attention_problem &p)
{
    return p.cap == 0 && p.factor < 0 ? INFINITY : -INFINITY;
}

/* P = 2^(logit - lse) of a product q·k. It is 0 for unseen_product. */
template <bool CAP> __device__ inline float weight_of(const attention_problem &p, float product, float lse)
{
    if constexpr (CAP)
        return product == -INFINITY ? 0 : power_of_2(fmaf(p.cap, fast_tanh(product * p.factor), -lse));
    return power_of_2(fmaf(product, p.factor, -lse));
}
/* dS / scale = P · (dP - delta) · (1 - tanh²), the last factor only with a cap. d is dP - delta. */
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
