/* attention_decode.cuh - what the kernels of attention_decode share. Internal to ops/cuda. */
#ifndef NBL_CUDA_ATTENTION_DECODE_CUH
#define NBL_CUDA_ATTENTION_DECODE_CUH

#include "ops/cuda/attention_tiles.cuh"

namespace nbl_cuda
{

enum { DECODE_THREADS = 128, DECODE_WARPS = DECODE_THREADS / 32 };

struct decode_problem {
    const void *q, *k, *v, *sinks;
    const int32_t *lengths;
    void *out;
    nbl_dtype dtype, sinks_dtype;
    int heads, key_heads, group, size, cached, window, splits, split, blocks_per_group;
    bool wide;
    float factor, cap;   /* as in attention.cuh */
    float *sums;         /* [B, splits, Hq, D] */
    float *tops, *total; /* [B, splits, Hq] */
    nbl__cuda_fault *fault;
};

__device__ inline float read(const void *from, nbl_dtype dtype, int64_t at)
{
    if (dtype == NBL_DTYPE_F32) return static_cast<const float *>(from)[at];
    if (dtype == NBL_DTYPE_F16) return to_f32(static_cast<const __half *>(from)[at]);
    return to_f32(static_cast<const __nv_bfloat16 *>(from)[at]);
}

/* The keys [first, end) that the query of sequence b sees; none where its length is out of range. */
__device__ inline int2 span_of(const decode_problem &p, int b)
{
    int length = p.lengths[b];
    if (length < 1 || length > p.cached) return make_int2(0, 0);
    return make_int2(p.window > 0 && length > p.window ? length - p.window : 0, length);
}

/* The warps of a block, in their order, become the partial results of its split. */
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

/* attention_decode_mma.cu: q and the cache have the same 16-bit dtype, heads of up to 256, all aligned to
 * 16 bytes. */
void decode_mma_launch(decode_problem p, int64_t sequences, cudaStream_t stream);

} // namespace nbl_cuda
#endif
