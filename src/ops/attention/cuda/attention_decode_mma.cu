/* attention_decode_mma.cu - one query per sequence against its cache, with mma.m16n8k16; see
 * attention_decode.cu.
 *
 * Grid: (key heads x blocks per group, splits, sequences). A block of 4 warps has one split and up
 * to 8 query heads that share a key head: they are rows 0 … 7 of a product. A warp has 16 keys (32
 * with heads of up to 64).
 *
 *     load q, K (and V) of the warp's keys → S → 2^(S - top) → O = P·V → shared → finish_split
 *
 * Operands come straight from memory in 16 bytes per lane, and nothing is read twice. With heads of
 * up to 128 all loads are issued before the first product. Bytes: K and V of the keys that are
 * seen, once. Limit: memory. */
#include "ops/attention/cuda/attention_decode.cuh"

using namespace nbl_cuda;

namespace
{

/* 16 bytes through the read-only path, or zeros. */
__device__ inline uint4 read_16(const void *from, bool real)
{
    return real ? __ldg(static_cast<const uint4 *>(from)) : make_uint4(0, 0, 0, 0);
}

/* The partial results of one split. Lane 4g + t holds
 *
 *     for S = Q·Kᵀ   columns 8t … 8t + 7 of each 32, of query head g and of key g of each 8. The
 *                    order of columns in a product is free, as long as q and k have the same
 *     for O = P·V    keys 2t and 2t + 1 of each 8, columns 8g … 8g + 7 of each 64 (add_values)
 *
 * Shared memory: 4 warps x 8 heads x WIDE f32: 8, 16 or 32 KiB. */
template <typename T, int WIDE>
__global__ void __launch_bounds__(DECODE_THREADS) decode_mma(const __grid_constant__ decode_problem p)
{
    constexpr int HEADS = 8, ROUNDS = WIDE <= 64 ? 2 : 1, KEYS = 16 * ROUNDS, SPLIT = DECODE_WARPS * KEYS;
    __shared__ float sums[DECODE_WARPS][HEADS][WIDE], tops[DECODE_WARPS][HEADS], totals[DECODE_WARPS][HEADS];
    int split = blockIdx.y, b = blockIdx.z, key_head = blockIdx.x / p.blocks_per_group;
    int head = key_head * p.group + blockIdx.x % p.blocks_per_group * HEADS;
    int heads = min(HEADS, (key_head + 1) * p.group - head);
    int2 seen = span_of(p, b);
    if (split == 0 && blockIdx.x == 0 && threadIdx.x == 0 && seen.y == 0)
        report_fault(p.fault, NBL_CUDA_FAULT_LENGTH, b, p.lengths[b]);
    int start = split * SPLIT;
    if (start >= seen.y || start + SPLIT <= seen.x) return;

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4,
        first = start + warp * KEYS;
    int64_t key_stride = static_cast<int64_t>(p.key_heads) * p.size;
    int64_t base = (static_cast<int64_t>(b) * p.cached * p.key_heads + key_head) * p.size;
    const T *k = static_cast<const T *>(p.k) + base, *v = static_cast<const T *>(p.v) + base;
    const T *q = static_cast<const T *>(p.q) + b * p.q_step + head * int64_t{p.size};
    auto is_seen = [&](int key) { return key >= seen.x && key < seen.y; };

    uint4 keys[2 * ROUNDS][WIDE / 32], values[ROUNDS][WIDE / 64][4];
#pragma unroll
    for (int n = 0; n < 2 * ROUNDS; n++)
#pragma unroll
        for (int i = 0; i < WIDE / 32; i++) {
            int key = first + n * 8 + g, d = i * 32 + t * 8;
            keys[n][i] = read_16(k + key * key_stride + d, is_seen(key) && d < p.size);
        }
    auto read_values = [&] {
#pragma unroll
        for (int r = 0; r < ROUNDS; r++)
#pragma unroll
            for (int c = 0; c < WIDE / 64; c++)
#pragma unroll
                for (int u = 0; u < 4; u++) {
                    int key = first + r * 16 + u / 2 * 8 + t * 2 + u % 2, d = c * 64 + g * 8;
                    values[r][c][u] = read_16(v + key * key_stride + d, is_seen(key) && d < p.size);
                }
    };
    if constexpr (WIDE <= 128) read_values(); /* 256 columns: no registers for K and V */
    float s[2 * ROUNDS][4] = {}, top = -INFINITY, total = 0;
#pragma unroll
    for (int i = 0; i < WIDE / 32; i++) {
        uint4 x = read_16(q + g * p.size + i * 32 + t * 8, g < heads && i * 32 + t * 8 < p.size);
#pragma unroll
        for (int n = 0; n < 2 * ROUNDS; n++) {
            multiply<T>(s[n], x.x, x.y, keys[n][i].x, keys[n][i].y);
            multiply<T>(s[n], x.z, x.w, keys[n][i].z, keys[n][i].w);
        }
    }
    if constexpr (WIDE > 128) read_values();
#pragma unroll
    for (int n = 0; n < 2 * ROUNDS; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float x = s[n][e] * p.factor;
            if (p.cap != 0) x = p.cap * fast_tanh(x);
            s[n][e] = is_seen(first + n * 8 + t * 2 + e) ? x : -INFINITY;
            top = fmaxf(top, s[n][e]);
        }
    top = fmaxf(top, __shfl_xor_sync(WARP, top, 1));
    top = fmaxf(top, __shfl_xor_sync(WARP, top, 2));
    float from = top == -INFINITY ? 0 : top;
#pragma unroll
    for (int n = 0; n < 2 * ROUNDS; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) total += s[n][e] = power_of_2(s[n][e] - from);
    total += __shfl_xor_sync(WARP, total, 1);
    total += __shfl_xor_sync(WARP, total, 2);

#pragma unroll
    for (int c = 0; c < WIDE / 64; c++) {
        float out[8][4] = {};
        add_values<T>(out, s, values, c);
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int j = 0; j < 8; j++) sums[warp][g][c * 64 + (t * 2 + e) * 8 + j] = out[j][e];
    }
    if (t == 0) tops[warp][g] = top, totals[warp][g] = total;
    __syncthreads();
    finish_split<HEADS, WIDE>(p, b, split, head, heads, tops, totals, sums);
}

template <typename T> void launch(decode_problem p, int64_t sequences, cudaStream_t stream)
{
    p.blocks_per_group = (p.group + 7) / 8;
    dim3 grid(static_cast<unsigned>(p.key_heads * p.blocks_per_group), static_cast<unsigned>(p.splits),
              static_cast<unsigned>(sequences));
    if (p.size <= 64) decode_mma<T, 64><<<grid, DECODE_THREADS, 0, stream>>>(p);
    else if (p.size <= 128) decode_mma<T, 128><<<grid, DECODE_THREADS, 0, stream>>>(p);
    else decode_mma<T, 256><<<grid, DECODE_THREADS, 0, stream>>>(p);
}

} // namespace

namespace nbl_cuda
{

void decode_mma_launch(decode_problem p, int64_t sequences, cudaStream_t stream)
{
    if (p.dtype == NBL_DTYPE_F16) launch<__half>(p, sequences, stream);
    else launch<__nv_bfloat16>(p, sequences, stream);
}

} // namespace nbl_cuda
