/* gemv_f32.cuh - the product of gemv.cu in f32, with fma. gemv_ring.cuh loads the weights. Internal
 * to the CUDA kernels.
 *
 * Blocks, tiles and warps are those of gemv_ring in gemv.cu. A lane has 8 consecutive columns
 * (int8: 4) of all 16 rows of a tile, and one sum per row of W and row of x. Limit: table lookups
 * for one row of x, arithmetic for four. The device's memory is not the limit. */
#ifndef NBL_GEMV_F32_CUH
#define NBL_GEMV_F32_CUH

#include "ops/gemv/cuda/gemv_ring.cuh"

namespace nbl_cuda
{

/* Both values of a byte of codes. An entry of the table has 16 copies of 8 bytes: the lanes of a
 * half warp use different banks. */
__device__ inline float2 look_up_f32(const uint8_t *table, uint32_t word, int byte, uint32_t mine)
{
    return *reinterpret_cast<const float2 *>(table + __byte_perm(word, mine, 0x5504u | byte << 4));
}

/* Sums 2 · HALF values over the lanes. In each step a lane gives away half of its values and keeps
 * the other half, so 16 sums take 16 shuffles instead of 80. Lanes 2r and 2r + 1 end with the sum
 * of row r. */
template <int HALF> __device__ inline float sum_of_rows(float (&values)[TILE], int lane)
{
    bool upper = lane & 2 * HALF;
#pragma unroll
    for (int k = 0; k < HALF; k++) {
        float keep = upper ? values[k + HALF] : values[k], give = upper ? values[k] : values[k + HALF];
        values[k] = __fadd_rn(keep, __shfl_xor_sync(ALL, give, 2 * HALF));
    }
    if constexpr (HALF > 1) return sum_of_rows<HALF / 2>(values, lane);
    else return __fadd_rn(values[0], __shfl_xor_sync(ALL, values[0], 1));
}

/* y for M rows of x from blockIdx.y · M on. W is read once per M rows of x.
 *
 *     for each tile, for each step of the warp:
 *         start the copies of step s + DEPTH - 1; load x of step s; wait for step s
 *         for each of 16 rows: 8 values by table, M dot products of 8, one fma with the scale each
 *     sums over lanes → shared memory → __syncthreads → added in the order of the warps → y */
template <scale_kind KIND, int M>
__global__ void __launch_bounds__(THREADS,
                                  /* M = 4: 64 sums and 32 values of x per thread. */
                                  M > 2 ? 1 : 2)
    gemv_ring_f32(const __grid_constant__ packed p, int rows, int m, const float *__restrict__ x,
                  float *__restrict__ y)
{
    typedef layout<KIND> in;
    constexpr int EACH = in::COLUMNS / 32;
    extern __shared__ __align__(256) uint8_t shared[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first_x = blockIdx.y * M;
    int columns = static_cast<int>(p.columns), all_steps = (columns + in::COLUMNS - 1) / in::COLUMNS;
    int first_step = warp * all_steps / WARPS, end_step = (warp + 1) * all_steps / WARPS;
    int tiles = (rows + TILE - 1) / TILE;
    loader<KIND, false> ahead(p, shared, rows, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                              first_step, end_step - first_step, warp, lane);
#pragma unroll
    for (int d = 0; d < DEPTH - 1; d++) ahead.load(p, lane);
    if constexpr (!in::INT8) {
        float first = p.table[threadIdx.x >> 4], second = table_entry(p, lane);
#pragma unroll
        for (int i = 0; i < 8; i++)
            *reinterpret_cast<float4 *>(shared + threadIdx.x * in::ROW +
                                        (i + lane) % 8 * 16) = make_float4(first, second, first, second);
        if (KIND == SCALES_NESTED)
            reinterpret_cast<float *>(shared + in::TABLE)[threadIdx.x] = __ldg(p.nested_table + threadIdx.x);
        __syncthreads();
    }
    uint8_t *my_codes = shared + in::CODES + warp * DEPTH * TILE * in::ROW + lane % 4 * 4;
    uint8_t *my_scales = shared + in::SCALES + warp * DEPTH * 4 * in::ROW;
    float offset = KIND == SCALES_NESTED ? offset_of(p) : 0;
    int slot = 0;
    for (int tile = blockIdx.x, parity = 0; tile < tiles; tile += gridDim.x, parity ^= 1) {
        float sums[M][TILE] = {};
        uint32_t granule = granule_of(tile, lane / 4, columns) + lane % 4;
        for (int s = first_step; s < end_step; s++) {
            __syncwarp(); /* all lanes have read the slot that is filled next */
            ahead.load(p, lane);
            int column = s * in::COLUMNS + lane * EACH;
            scale_maker<KIND, false> maker;
            maker.begin(p, granule + s * in::GRANULES, rows - tile * TILE,
                        s * in::COLUMNS + lane % 4 * GRANULE < columns, lane);
            float4 values[M][EACH / 4];
#pragma unroll
            for (int i = 0; i < M; i++) {
                const float *from = x +
                                    static_cast<int64_t>(first_x + i < m ? first_x + i : m - 1) * columns +
                                    column;
#pragma unroll
                for (int e = 0; e < EACH / 4; e++)
                    values[i][e] = column < columns ? __ldg(reinterpret_cast<const float4 *>(from) + e)
                                                    : make_float4(0, 0, 0, 0);
            }
            cp_async_wait<DEPTH - 1>();
            __syncwarp();
            uint8_t *lines = my_scales + slot * 4 * in::ROW;
            maker.make(p, offset, shared, lines, granule + s * in::GRANULES, lane);
#pragma unroll
            for (int row = 0; row < TILE; row++) {
                int piece = (lane / 4) ^ (in::INT8 ? 4 * (row & 1) : 2 * (row & 3));
                uint32_t codes = *reinterpret_cast<const uint32_t *>(
                    my_codes + (slot * TILE + row) * in::ROW + piece * 16);
                float w[EACH], scale = 1;
                if constexpr (in::INT8) {
                    four_of_int8(codes, w);
                } else {
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        float2 both = look_up_f32(shared, codes, k, lane % 16 * 8u);
                        w[2 * k] = both.x, w[2 * k + 1] = both.y;
                    }
                    scale = *reinterpret_cast<const float *>(lines + in::MADE + row / 8 * in::ROW +
                                                             (row % 8 * 4 + lane / 8) * 4);
                }
#pragma unroll
                for (int i = 0; i < M; i++) {
                    float product = 0;
#pragma unroll
                    for (int e = 0; e < EACH / 4; e++) {
                        product = fmaf(w[4 * e], values[i][e].x, product);
                        product = fmaf(w[4 * e + 1], values[i][e].y, product);
                        product = fmaf(w[4 * e + 2], values[i][e].z, product);
                        product = fmaf(w[4 * e + 3], values[i][e].w, product);
                    }
                    sums[i][row] = in::INT8 ? __fadd_rn(sums[i][row], product)
                                            : fmaf(scale, product, sums[i][row]);
                }
            }
            slot = slot + 1 == DEPTH ? 0 : slot + 1;
        }
        float *all = reinterpret_cast<float *>(shared + in::ALL_SUMS) + parity * SUMS;
#pragma unroll
        for (int i = 0; i < M; i++) {
            float sum = sum_of_rows<TILE / 2>(sums[i], lane); /* of row lane / 2 */
            if (lane % 2 == 0) all[(warp * TILE + lane / 2) * MAX_M + i] = sum;
        }
        __syncthreads();
        int row = threadIdx.x % TILE, i = threadIdx.x / TILE;
        if (i < M && first_x + i < m && tile * TILE + row < rows) {
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum = __fadd_rn(sum, all[(w * TILE + row) * MAX_M + i]);
            if (in::INT8) sum = __fmul_rn(__fmul_rn(sum, __ldg(p.scales + tile * TILE + row)), INVERSE_127);
            y[static_cast<int64_t>(first_x + i) * rows + tile * TILE + row] = sum;
        }
    }
}

} // namespace nbl_cuda
#endif
