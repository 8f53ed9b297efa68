/* gemm_sm90_exp.cuh - the end of a tile whose sums are logits: the exponentials variant of gemm_sm90.h. Internal to
 * gemm_sm90_kernel.cuh.
 *
 *     v = 2^(log2 e · sum - power[row])     rounded into c
 *     spans[row, tile] = Σ v, power         f32, before rounding
 *
 * If a row's total is LARGEST or more, its power becomes that of the row's largest sum, and the warpgroup computes and
 * stores its half of the tile again. This should be rare. Readers of c apply the power of each span. Cost: an
 * exponential and three more instructions per sum, while the tensor cores of the multiprocessor wait: 2 to 4 % of a
 * product with k = 2048 on an H200. */
#ifndef NBL_GEMM_SM90_EXP_CUH
#define NBL_GEMM_SM90_EXP_CUH

#include "ops/gemm/cuda/gemm_sm90_mma.cuh"
#include "ops/common/kernel.cuh"

namespace nbl_sm90
{

constexpr float LOG2_E = 1.4426950408889634f;
/* The limit of a span's sum. Products of c with weights must stay finite. */
constexpr float LARGEST = 0x1p60f;

struct exponentials {
    const float *powers;
    const int32_t *labels;
    float *label_sums;
    float2 *spans; /* sum, power */
    int32_t span_count;
    bool stores_c; /* c is not NULL */
};

/* Power and label of a thread's two rows. */
struct row_params {
    float power[2];
    int label[2];
};

__device__ inline int first_row_of_thread(int row)
{
    return row + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
}

__device__ inline row_params load_row_params(const exponentials &e, int row, int64_t m, int64_t n)
{
    row_params f = {{0, 0}, {-1, -1}};
    int y = first_row_of_thread(row);
#pragma unroll
    for (int below = 0; below < 2; below++)
        if (y + 8 * below < m) {
            f.power[below] = e.powers[y + 8 * below];
            int label = e.labels[y + 8 * below];
            f.label[below] = label < n ? label : -1;
        }
    return f;
}

__device__ inline float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Over the four lanes that share a row. */
__device__ inline float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(nbl_cuda::WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(nbl_cuda::WARP, x, 2));
}
__device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync(nbl_cuda::WARP, x, 1);
    return x + __shfl_xor_sync(nbl_cuda::WARP, x, 2);
}

/* Stores the sum of the label's column, if this thread has it. */
template <int BN>
__device__ inline void store_label(const exponentials &e, int column, int y, int label, int below,
                                   const float (&sums)[BN / 2])
{
    int at = label - column, lane = static_cast<int>(threadIdx.x) % 32;
    if (at < 0 || at >= BN || at % 8 / 2 != lane % 4) return;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < BN / 2; i++)
        if (i / 2 % 2 == below && at / 8 == i / 4 && at % 2 == i % 2) sum = sums[i];
    e.label_sums[y] = sum;
}

/* Sets the power of rows whose total is too large: that of their largest sum. */
template <int BN>
__device__ inline void own_powers(const float (&sums)[BN / 2], const float (&total)[2], float (&power)[2])
{
#pragma unroll
    for (int below = 0; below < 2; below++) {
        float max = sums[2 * below];
#pragma unroll
        for (int i = 1; i < BN / 4; i++) max = fmaxf(max, sums[i / 2 * 4 + 2 * below + i % 2]);
        max = quad_max(max);
        if (!(total[below] < LARGEST)) power[below] = ceilf(max * LOG2_E);
    }
}

/* Stores the tile at (column, row) of a result [m, n]. `out` is the warpgroup's epilogue_store. */
template <typename T, int BN, typename OUT>
__device__ inline void store_exponentials(const exponentials &e, const CUtensorMap *c, OUT &out, int column,
                                          int row, int64_t m, int64_t n, const row_params &f,
                                          float (&sums)[BN / 2])
{
    int lane = static_cast<int>(threadIdx.x) % 32, y = first_row_of_thread(row);
    if (column + BN > n) { /* columns outside the matrix add nothing to the totals */
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
            if (column + i / 4 * 8 + lane % 4 * 2 + i % 2 >= n) sums[i] = -INFINITY;
    }
#pragma unroll
    for (int below = 0; below < 2; below++)
        store_label<BN>(e, column, y + 8 * below, f.label[below], below, sums);
    float power[2] = {f.power[0], f.power[1]}, total[2];
    bool again = false;
#pragma unroll 1
    do {
        total[0] = total[1] = 0;
#pragma unroll
        for (int x = 0; x < BN; x += 64) {
            float v[32];
#pragma unroll
            for (int i = 0; i < 32; i++) {
                v[i] = power_of_two(fmaf(sums[x / 2 + i], LOG2_E, -power[i / 2 % 2]));
                total[i / 2 % 2] += v[i];
            }
            if (e.stores_c) out.template store_64<T>(c, false, column + x, row, v);
        }
        total[0] = quad_sum(total[0]);
        total[1] = quad_sum(total[1]);
        again = !again && warpgroup_any(out.number, !(total[0] < LARGEST && total[1] < LARGEST));
        if (again) {
            if (out.leads) tma_store_wait();
            own_powers<BN>(sums, total, power);
        }
    } while (again);
#pragma unroll
    for (int below = 0; below < 2; below++) {
        if (lane % 4 == 0 && y + 8 * below < m)
            e.spans[static_cast<int64_t>(y + 8 * below) * e.span_count + column / BN] = make_float2(
                total[below], power[below]);
    }
}

} // namespace nbl_sm90
#endif
