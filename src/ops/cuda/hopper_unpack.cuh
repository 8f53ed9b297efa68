/* hopper_unpack.cuh - weights of 4 bits that the product of hopper_kernel.cuh decodes as it goes. Internal to hopper_sm90.cu.
 *
 * The warps of the copiers that have nothing to copy decode squares of 64 by 64 into the memory that b stands for, in the
 * order in which tiles will want them, and raise a flag for each; a copier asks for the flags of what it fetches. Every
 * square is decoded once; its time is hidden behind the products of other tiles, but for the first few microseconds.
 * Squares are taken from a counter, so that nobody waits for a block that has not begun. */
#ifndef NBL_CUDA_HOPPER_UNPACK_CUH
#define NBL_CUDA_HOPPER_UNPACK_CUH

#include "ops/cuda/decode.cuh"
#include "ops/cuda/kernel.cuh"

extern "C" {
#include "ops/cuda/hopper.h"
}

namespace nbl_hopper
{

constexpr int SQUARE = 64, FLAGS_FIRST = 2; /* flags[0]: the next square; [1]: how many are done */

struct unpacking {
    nbl_cuda::packed weights[NBL_HOPPER_PARTS];
    __nv_bfloat16 *to[NBL_HOPPER_PARTS];
    int32_t rows[NBL_HOPPER_PARTS], first_flag[NBL_HOPPER_PARTS];
    int8_t of_source[NBL_HOPPER_SOURCES]; /* which of them a source is; -1: none */
    int32_t first_weight[NBL_HOPPER_PARTS + 1], first_task[NBL_HOPPER_PARTS + 1]; /* of each part */
    int32_t set; /* squares beside each other that tiles want at the same time */
    int32_t parts;
    uint32_t *flags; /* NULL: there are none */
};

__device__ inline uint32_t look_at(const uint32_t *flag)
{
    uint32_t value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}
/* What was written before a flag that was seen may be fetched by the copy engine. */
__device__ inline void flags_seen()
{
    asm volatile("fence.acq_rel.gpu;\nfence.proxy.async;" ::: "memory");
}

/* Squares of weight i down and to the right. */
__device__ inline int squares_down(const unpacking &u, int i)
{
    return (u.rows[i] + SQUARE - 1) / SQUARE;
}
__device__ inline int squares_right(const unpacking &u, int i)
{
    return static_cast<int>(u.weights[i].columns) / SQUARE;
}

struct square {
    int weight, down, right; /* weight -1: there is no such square */
};

/* Parts one after another; of each, sets of columns of the result, and of each set all of k. */
template <bool STRAIGHT> __device__ inline square square_of(const unpacking &u, int task)
{
    int part = 0;
    while (task >= u.first_task[part + 1]) part++;
    int first = u.first_weight[part], end = u.first_weight[part + 1], deep = 0;
    for (int i = first; i < end; i++) deep += STRAIGHT ? squares_down(u, i) : squares_right(u, i);
    int across = STRAIGHT ? squares_right(u, first) : squares_down(u, first);
    int at = task - u.first_task[part], in_set = at % (u.set * deep);
    int n = at / (u.set * deep) * u.set + in_set % u.set, k = in_set / u.set, i = first;
    if (n >= across) return {-1, 0, 0};
    for (;; i++) {
        int here = STRAIGHT ? squares_down(u, i) : squares_right(u, i);
        if (k < here) break;
        k -= here;
    }
    return STRAIGHT ? square{i, k, n} : square{i, n, k};
}

/* Of 16 rows a lane has 8 columns of every fourth one; two lanes make the scales of a row, for blocks of 32 and more. */
__device__ inline void unpack_square(const unpacking &u, square at, int lane)
{
    const nbl_cuda::packed &w = u.weights[at.weight];
    uint32_t columns = static_cast<uint32_t>(w.columns), rows = static_cast<uint32_t>(u.rows[at.weight]);
    uint32_t row = at.down * SQUARE, column = at.right * SQUARE;
    float mine = nbl_cuda::table_entry(w, lane);
#pragma unroll 1
    for (uint32_t end = row + SQUARE; row < end; row += 16) {
        nbl_cuda::chunk<__nv_bfloat16, false> codes[4];
        uint32_t first = (row + lane / 8) * columns + column + lane % 8 * 8;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            codes[i].word = make_uint2(0, 0);
            if (row + 4 * i + lane / 8 < rows) codes[i].load(w.codes + ((first + 4 * i * columns) >> 1));
        }
        float scale = 0;
        if (row + lane / 2 < rows)
            scale = nbl_cuda::scale_of<true>(w, ((row + lane / 2) * columns + column + lane % 2 * 32) >>
                                                    w.block_shift);
        bool finite = __all_sync(nbl_cuda::ALL, nbl_cuda::is_finite(scale));
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            float values[8], its = __shfl_sync(nbl_cuda::ALL, scale,
                                               static_cast<int>(8 * i) + lane / 8 * 2 + lane % 8 / 4);
            codes[i].look_up(mine, w.low_first, values);
            uint4 result = nbl_cuda::finish<__nv_bfloat16, false>(values, its, finite);
            if (row + 4 * i + lane / 8 < rows)
                *reinterpret_cast<uint4 *>(u.to[at.weight] + first + 4 * i * columns) = result;
        }
    }
}

/* A warp's work. */
template <bool STRAIGHT> __device__ inline void unpack_squares(const unpacking &u)
{
    int lane = threadIdx.x % 32, tasks = u.first_task[u.parts];
    int task = lane == 0 ? static_cast<int>(atomicAdd(u.flags, 1u)) : 0;
    for (;;) {
        task = __shfl_sync(nbl_cuda::ALL, task, 0);
        if (task >= tasks) return;
        square at = square_of<STRAIGHT>(u, task);
        if (lane == 0) task = static_cast<int>(atomicAdd(u.flags, 1u)); /* the next, while this one is made */
        if (at.weight >= 0) unpack_square(u, at, lane);
        asm volatile("fence.proxy.async;" ::: "memory");
        __syncwarp();
        if (lane != 0) continue;
        __threadfence();
        if (at.weight >= 0)
            asm volatile(
                "st.relaxed.gpu.global.u32 [%0], 1;" ::"l"(u.flags + FLAGS_FIRST + u.first_flag[at.weight] +
                                                           at.down * squares_right(u, at.weight) + at.right)
                : "memory");
        atomicAdd(u.flags + 1, 1u);
    }
}

/* What a copier knows of the flags. */
struct flag_reader {
    bool all; /* everything is decoded */
    int seen; /* of the source at hand: steps of k that are */

    __device__ inline void begin_unit(const unpacking &u)
    {
        if (all) return;
        all = look_at(u.flags + 1) == static_cast<uint32_t>(u.first_task[u.parts]);
        if (all) flags_seen();
    }
    /* Until COUNT squares beside each other, from column n on, are there at step k; looks up to four steps ahead. */
    template <bool STRAIGHT, int COUNT>
    __device__ inline void await(const unpacking &u, int weight, int n, int k, int steps)
    {
        if (all || weight < 0 || k < seen) return;
        int right = squares_right(u, weight), across = STRAIGHT ? right : squares_down(u, weight);
        int to_n = STRAIGHT ? 1 : right, to_k = STRAIGHT ? right : 1;
        const uint32_t *flag = u.flags + FLAGS_FIRST + u.first_flag[weight] + (n / SQUARE) * to_n + k * to_k;
        for (;;) {
            uint32_t there[4][COUNT];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < COUNT; j++)
                    there[i][j] = k + i < steps && n / SQUARE + j < across
                                      ? look_at(flag + i * to_k + j * to_n)
                                      : 1;
            seen = k;
            bool good = true;
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < COUNT; j++) good = good && there[i][j] != 0;
                if (good) seen = k + i + 1;
            }
            if (seen > k) break;
            __nanosleep(64);
        }
        flags_seen();
    }
};

} // namespace nbl_hopper
#endif
