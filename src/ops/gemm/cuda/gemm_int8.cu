/* gemm_int8.cu - see gemm_int8_cuda.h. Slow: it serves only sizes and alignments that cuBLASLt
 * refuses. */
#include "ops/common/kernel.cuh"

extern "C" {
#include "ops/gemm/cuda/gemm_int8_cuda.h"
}

namespace
{

constexpr int TILE = 16, DEPTH = 64;

/* c[m, n] = a[m, k] · b[n, k]ᵀ. A block computes 16 by 16 results, one per thread, from tiles of
 * DEPTH values of k in shared memory. Integer sums are exact in any order. The first barrier: the
 * tiles are complete. The second: they have been read. Rows of the tiles are 4 bytes longer than
 * DEPTH against bank conflicts. */
__global__ void multiply(int64_t m, int64_t n, int64_t k, const int8_t *a, const int8_t *b, int32_t *c)
{
    __shared__ int8_t rows[TILE][DEPTH + 4], columns[TILE][DEPTH + 4];
    int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    int64_t row = static_cast<int64_t>(blockIdx.y) * TILE, column = static_cast<int64_t>(blockIdx.x) * TILE;
    int32_t sum = 0;
    for (int64_t at = 0; at < k; at += DEPTH) {
        for (int i = threadIdx.x; i < TILE * DEPTH; i += TILE * TILE) {
            int line = i / DEPTH, index = i % DEPTH;
            bool inside = at + index < k;
            rows[line][index] = inside && row + line < m ? a[(row + line) * k + at + index] : 0;
            columns[line][index] = inside && column + line < n ? b[(column + line) * k + at + index] : 0;
        }
        __syncthreads();
        for (int i = 0; i < DEPTH; i++) sum += rows[y][i] * columns[x][i];
        __syncthreads();
    }
    if (row + y < m && column + x < n) c[(row + y) * n + column + x] = sum;
}

} // namespace

extern "C" nbl_status nbl__cuda_gemm_int8_plain(const nbl__call *call, int64_t m, int64_t n, int64_t k,
                                                const int8_t *a, const int8_t *b, int32_t *c)
{
    constexpr int64_t MAX = 65535 * TILE; /* rows of a grid */
    for (int64_t row = 0; row < m; row += MAX) {
        int64_t rows = m - row < MAX ? m - row : MAX;
        dim3 grid(static_cast<unsigned>((n + TILE - 1) / TILE),
                  static_cast<unsigned>((rows + TILE - 1) / TILE));
        multiply<<<grid, TILE * TILE, 0, nbl_cuda::stream_of(call)>>>(rows, n, k, a + row * k, b,
                                                                      c + row * n);
    }
    return nbl_cuda::launched(call);
}
