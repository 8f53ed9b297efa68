/* gemm_tall_skinny.cu - see gemm_tall_skinny.h. Tensor cores by mma.m16n8k16, f32 sums.
 *
 * project:
 *     a block: 16 · M rows (M = 1, 2 or 4, by the number of rows) and all columns
 *         each warp: every 8th chunk of 32 columns     x and a from memory to fragments, 16 bytes per thread
 *             sums[16 · M, rank_padded] += x · aᵀ
 *     the sums of the 8 warps are added through shared memory, in the order of the warps
 *
 * A thread's 8 columns stand for any 8 values of k of the instruction: both operands use the same order. They are one byte
 * of a mask's bits. Reads x once and a once per block (from L2). Limit: memory bandwidth of x. */
#include "ops/common/kernel.cuh"
#include "ops/common/mma.cuh"

extern "C" {
#include "ops/gemm/cuda/gemm_tall_skinny.h"
}

using namespace nbl_cuda;

namespace
{

constexpr int THREADS = 256, WARPS = THREADS / 32;

/* ---- project ---- */

/* A thread's 8 columns of 2 · M rows, and the masks of G groups of 16 results there. */
template <int M, int G> struct rows_part {
    uint4 upper[M], lower[M]; /* rows g and g + 8 of each 16 */
    uint32_t upper_bits[G > 0 ? G : 1][M], lower_bits[G > 0 ? G : 1][M]; /* a byte each */
};

/* Loads 8 columns from `column` on; zeros outside of x. */
template <bool ALIGNED, int M, int G>
__device__ inline void load_rows(const nbl__project &p, int64_t row, int64_t column, rows_part<M, G> &part)
{
    const __nv_bfloat16 *x = static_cast<const __nv_bfloat16 *>(p.x);
    const uint4 none = make_uint4(0, 0, 0, 0);
    bool inside = column < p.columns;
#pragma unroll
    for (int m = 0; m < M; m++) {
        int64_t r = row + 16 * m, below = r + 8;
        part.upper[m] = inside && r < p.rows ? load_eight(x + r * p.columns + column, ALIGNED) : none;
        part.lower[m] = inside && below < p.rows ? load_eight(x + below * p.columns + column, ALIGNED) : none;
#pragma unroll
        for (int n = 0; n < G; n++) {
            const uint8_t *bytes = reinterpret_cast<const uint8_t *>(p.masks[n]) + column / 8;
            bool masked = p.masks[n] != NULL && inside;
            part.upper_bits[n][m] = masked && r < p.rows ? bytes[r * p.bits_ld * 4] : 0xff;
            part.lower_bits[n][m] = masked && below < p.rows ? bytes[below * p.bits_ld * 4] : 0xff;
        }
    }
}

/* The eight values that a mask keeps, of the byte of its bits. */
__device__ inline uint4 masked(uint4 x, uint32_t byte)
{
    uint32_t spread = byte | byte << 7; /* bits 2i and 2i + 1 stand 8 bits apart */
    return make_uint4(x.x & halves_mask(spread << 7), x.y & halves_mask(spread << 5),
                      x.z & halves_mask(spread << 3), x.w & halves_mask(spread << 1));
}

/* to = round(scale · x·aᵀ), with columns of ones where p.ones says so. M x 16 rows per block, N x 8
 * results per row. The next chunk of x is loaded while the products of this one run; a comes
 * through the read-only path. Shared memory serves 16 rows at a time: the first barrier of a round
 * protects the sums of the last one. */
template <bool ALIGNED, int M, int N, bool MASKED>
__global__ void __launch_bounds__(THREADS, MASKED && N <= 4 ? 2 : 1)
    project_kernel(const __grid_constant__ nbl__project p)
{
    __shared__ float shared[WARPS][16][8 * N + 2];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    int64_t first = static_cast<int64_t>(blockIdx.x) * 16 * M;
    const __nv_bfloat16 *a = static_cast<const __nv_bfloat16 *>(p.a);
    float sums[M][N][4] = {};
    constexpr int G = MASKED ? N / 2 : 0;
    rows_part<M, G> now, next;
    int64_t column = warp * 32 + q * 8;
    load_rows<ALIGNED>(p, first + g, column, now);
    for (; column - q * 8 < p.columns; column += 32 * WARPS) {
        load_rows<ALIGNED>(p, first + g, column + 32 * WARPS, next);
        uint4 b[N];
#pragma unroll
        for (int n = 0; n < N; n++)
            b[n] = column < p.columns
                       ? __ldg(reinterpret_cast<const uint4 *>(a + (8 * n + g) * p.columns + column))
                       : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                uint4 upper = now.upper[m], lower = now.lower[m];
                if (MASKED) {
                    upper = masked(upper, now.upper_bits[n / 2][m]);
                    lower = masked(lower, now.lower_bits[n / 2][m]);
                }
                mma_m16n8k16_bf16(sums[m][n], upper.x, lower.x, upper.y, lower.y, b[n].x, b[n].y);
                mma_m16n8k16_bf16(sums[m][n], upper.z, lower.z, upper.w, lower.w, b[n].z, b[n].w);
            }
        now = next;
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        __syncthreads();
#pragma unroll
        for (int n = 0; n < N; n++) {
            shared[warp][g][8 * n + 2 * q] = sums[m][n][0];
            shared[warp][g][8 * n + 2 * q + 1] = sums[m][n][1];
            shared[warp][g + 8][8 * n + 2 * q] = sums[m][n][2];
            shared[warp][g + 8][8 * n + 2 * q + 1] = sums[m][n][3];
        }
        __syncthreads();
        for (int i = threadIdx.x; i < 16 * 8 * N; i += THREADS) {
            int r = i / (8 * N), c = i % (8 * N);
            int64_t row = first + 16 * m + r;
            if (row >= p.rows) continue;
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += shared[w][r][c];
            sum = p.ones >> c & 1 ? 1 : sum * p.scales[c / 8];
            static_cast<__nv_bfloat16 *>(p.to)[row * p.to_ld + c] = __float2bfloat16_rn(sum);
        }
    }
}

template <bool ALIGNED, int M, bool MASKED> void launch_project(const nbl__project &p, cudaStream_t stream)
{
    unsigned blocks = static_cast<unsigned>((p.rows + 16 * M - 1) / (16 * M));
    if (p.rank_padded == 16) project_kernel<ALIGNED, M, 2, MASKED><<<blocks, THREADS, 0, stream>>>(p);
    else if (p.rank_padded == 32) project_kernel<ALIGNED, M, 4, MASKED><<<blocks, THREADS, 0, stream>>>(p);
    else if (p.rank_padded == 48) project_kernel<ALIGNED, M, 6, MASKED><<<blocks, THREADS, 0, stream>>>(p);
    else if constexpr (M <= 2) project_kernel<ALIGNED, M, 8, MASKED><<<blocks, THREADS, 0, stream>>>(p);
}

/* Fewer rows in blocks of fewer rows, so that all multiprocessors have some. */
template <bool MASKED> void choose_project(const nbl__project &p, cudaStream_t stream)
{
    constexpr int64_t SMALL = 132 * 64; /* rows: beyond, blocks of 64 fill the device */
    if (!is_aligned(p.x, 16)) launch_project<false, 1, MASKED>(p, stream);
    else if (!MASKED && p.rows > SMALL / 2 && p.rank_padded <= 48) launch_project<true, 4, false>(p, stream);
    else if (p.rows > SMALL / 4) launch_project<true, 2, MASKED>(p, stream);
    else launch_project<true, 1, MASKED>(p, stream);
}

} // namespace

extern "C" nbl_status nbl__cuda_project(const nbl__call *call, const nbl__project *p)
{
    bool masked = false;
    if (p->rows == 0 || p->rank_padded == 0) return NBL_OK;
    for (int i = 0; i < p->rank_padded / 16; i++) masked |= p->masks[i] != NULL;
    if (masked) choose_project<true>(*p, stream_of(call));
    else choose_project<false>(*p, stream_of(call));
    return launched(call);
}

/* ---- scattering ---- */

namespace
{
struct scatter_job {
    nbl__scatter_part parts[4];
};

/* to (+)= rows first … first + count - 1 of `from`; blockIdx.y is the part. An element per thread
 * and step. */
__global__ void scatter_kernel(const float *from, int64_t columns, const __grid_constant__ scatter_job j)
{
    const nbl__scatter_part &p = j.parts[blockIdx.y];
    int64_t n = p.count * columns, step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += step) {
        float value = from[p.first * columns + i];
        p.to[i] = p.accumulate ? p.to[i] + value : value;
    }
}
} // namespace

extern "C" nbl_status nbl__cuda_scatter(const nbl__call *call, const float *from, int64_t columns,
                                        const nbl__scatter_part *parts, int count)
{
    scatter_job j = {};
    for (int i = 0; i < count; i++) j.parts[i] = parts[i];
    if (count == 0 || columns == 0) return NBL_OK;
    scatter_kernel<<<dim3(128, static_cast<unsigned>(count)), THREADS, 0, stream_of(call)>>>(from, columns,
                                                                                             j);
    return launched(call);
}
