/* attention_decode.cuh - shared by the kernels for one query per sequence: the problem, partial
 * results of a block, and products of 8 query heads by mma. Internal to the CUDA kernels. */
#ifndef NBL_ATTENTION_DECODE_CUH
#define NBL_ATTENTION_DECODE_CUH

#include "ops/attention/cuda/attention_tiles.cuh"

namespace nbl_cuda
{

enum { DECODE_THREADS = 128, DECODE_WARPS = DECODE_THREADS / 32 };

/* B sequences, caches of `cached` entries. A split is `split` keys that one block works on; a
 * sequence has `splits` of them. blocks_per_group: blocks for the query heads of one key head. */
struct decode_problem {
    const void *q, *k, *v, *sinks;
    const int32_t *lengths;
    void *out;
    nbl_dtype dtype, sinks_dtype;
    int64_t q_step; /* elements from a sequence's q to the next one's */
    int heads, key_heads, group, size, cached, window, chunk, splits, split, blocks_per_group;
    bool wide;
    float factor, cap;   /* as in attention.cuh */
    float *sums;         /* [B, splits, Hq, D]: Σ 2^(logit - top) · v of a split */
    float *tops, *total; /* [B, splits, Hq]: largest logit, Σ 2^(logit - top) */
    nbl__cuda_fault *fault;
};

/* Element `at` of an array of this dtype, as f32. */
__device__ inline float read(const void *from, nbl_dtype dtype, int64_t at)
{
    if (dtype == NBL_DTYPE_F32) return static_cast<const float *>(from)[at];
    if (dtype == NBL_DTYPE_F16) return to_f32(static_cast<const __half *>(from)[at]);
    return to_f32(static_cast<const __nv_bfloat16 *>(from)[at]);
}

/* The keys [x, y) that the query of sequence b sees; (0, 0) if its length is out of range. */
__device__ inline int2 span_of(const decode_problem &p, int b)
{
    int length = p.lengths[b];
    if (length < 1 || length > p.cached) return make_int2(0, 0);
    int first = p.chunk > 0 ? (length - 1) / p.chunk * p.chunk : 0;
    return make_int2(p.window > 0 && length > p.window ? max(first, length - p.window) : first, length);
}

/* Adds the warps of a block in their order, and stores the partial results of the split. `heads`
 * query heads from `head` on. All threads call it after a barrier. */
template <int HEADS, int WIDE>
__device__ inline void finish_split(const decode_problem &p, int b, int split, int head, int heads,
                                    const float (&tops)[DECODE_WARPS][HEADS],
                                    const float (&totals)[DECODE_WARPS][HEADS],
                                    const float (&sums)[DECODE_WARPS][HEADS][WIDE])
{
    int64_t part = (static_cast<int64_t>(b) * p.splits + split) * p.heads + head;
    for (int h = 0; h < heads; h++) {
        float top = tops[0][h], total = 0, factor[DECODE_WARPS];
#pragma unroll
        for (int w = 1; w < DECODE_WARPS; w++) top = fmaxf(top, tops[w][h]);
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; w++) {
            factor[w] = power_of_2(tops[w][h] - (top == -INFINITY ? 0 : top));
            total = fmaf(factor[w], totals[w][h], total);
        }
        for (int d = threadIdx.x; d < p.size; d += DECODE_THREADS) {
            float sum = 0;
#pragma unroll
            for (int w = 0; w < DECODE_WARPS; w++) sum = fmaf(factor[w], sums[w][h][d], sum);
            p.sums[(part + h) * p.size + d] = sum;
        }
        if (threadIdx.x == 0) p.tops[part + h] = top, p.total[part + h] = total;
    }
}

/* ---- products by mma.m16n8k16: rows 0 … 7 of a are query heads, rows 8 … 15 are zeros ---- */

/* sums[8, 8] += a · b. Registers a1 and a3 of the instruction are the rows of zeros. */
template <typename T>
__device__ inline void multiply(float *sums, uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1)
{
    if constexpr (__is_same(T, __half))
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%8,%5,%8}, {%6,%7}, "
            "{%0,%1,%2,%3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a0), "r"(a2), "r"(b0), "r"(b1), "r"(0));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%8,%5,%8}, {%6,%7}, "
            "{%0,%1,%2,%3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a0), "r"(a2), "r"(b0), "r"(b1), "r"(0));
}

/* Word i of 16 bytes; a constant i keeps x in registers. */
__device__ inline uint32_t word_of(const uint4 &x, int i)
{
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

/* out += P · V for columns 64c … 64c + 63 of the heads. Lane 4g + t holds, of each 16 keys, the
 * weights s and the values of keys 2t, 2t + 1, 2t + 8, 2t + 9; of each value it holds columns 8g …
 * 8g + 7. Product j multiplies column 8g + j of every lane's values, so its column g is column 8g +
 * j of the output. __byte_perm pairs the same column of two keys. No lane exchanges data. */
template <typename T, int ROUNDS, int PARTS>
__device__ inline void add_values(float (&out)[8][4], const float (&s)[2 * ROUNDS][4],
                                  const uint4 (&values)[ROUNDS][PARTS][4], int c)
{
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        uint32_t a0 = pair_of<T>(s[2 * r][0], s[2 * r][1]), a2 = pair_of<T>(s[2 * r + 1][0], s[2 * r + 1][1]);
        const uint4(&y)[4] = values[r][c];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint32_t pick = j % 2 ? 0x7632 : 0x5410;
            multiply<T>(out[j], a0, a2, __byte_perm(word_of(y[0], j / 2), word_of(y[1], j / 2), pick),
                        __byte_perm(word_of(y[2], j / 2), word_of(y[3], j / 2), pick));
        }
    }
}

/* Launches attention_decode_mma.cu. Needs q and caches of the same 16-bit dtype, heads of up to
 * 256, every row of a head aligned to 16 bytes. */
void decode_mma_launch(decode_problem p, int64_t sequences, cudaStream_t stream);

} // namespace nbl_cuda
#endif
