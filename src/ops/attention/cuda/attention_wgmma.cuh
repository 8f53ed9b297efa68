/* attention_wgmma.cuh - wgmma of 64 rows by 64 or 128 columns by k = 16. The right operand is in shared memory, the
 * left one there or in registers. Internal to attention's kernels for compute capability 9.0.
 *
 * attention_tiles.cuh has the layout of a tile in shared memory. Accumulators are float d[N / 8][4] in each lane: warp w
 * of the warpgroup has rows 16w … 16w + 15, in the layout of mma.m16n8. No code may touch the registers of a wgmma
 * before the wait for it. `wgmma_settle` after the wait keeps the compiler from reading them earlier. */
#ifndef NBL_ATTENTION_WGMMA_CUH
#define NBL_ATTENTION_WGMMA_CUH

#include "ops/attention/cuda/attention_tiles.cuh"
#include "ops/common/ptx_sm90.cuh"

namespace nbl_cuda
{

using nbl_sm90::wgmma_descriptor;

/* Index of this thread's warpgroup in its block. The shuffle tells the compiler that it is uniform in a warp. */
__device__ inline int group_of_warps()
{
    return __shfl_sync(WARP, static_cast<int>(threadIdx.x / 128), 0);
}

/* clang-format off */
#define NBL_D4(how, d, n) how((d)[n][0]), how((d)[n][1]), how((d)[n][2]), how((d)[n][3])
#define NBL_D32(how, d, n) NBL_D4(how, d, n), NBL_D4(how, d, n + 1), NBL_D4(how, d, n + 2), NBL_D4(how, d, n + 3), \
                           NBL_D4(how, d, n + 4), NBL_D4(how, d, n + 5), NBL_D4(how, d, n + 6), NBL_D4(how, d, n + 7)
#define NBL_D64(how, d, n) NBL_D32(how, d, n), NBL_D32(how, d, n + 8)
#define NBL_REGISTERS_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NBL_REGISTERS_64 NBL_REGISTERS_32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
    "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* d = A · Bᵀ, or with ADD d += A · Bᵀ, both from shared memory. Without ADD d is an output only ("=f"), so its registers
 * are free before. */
#define NBL_SHARED(columns, kind, operands, how, d32, add)                                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." kind "." kind " {"    \
                 operands ", " add ", 1, 1, 0, 0;" : d32(how, d, 0) : "l"(a), "l"(b))
/* d += A · B, A from registers, B by rows. */
#define NBL_FROM_REGISTERS(columns, kind, operands, d32)                                      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." kind "." kind " {"    \
                 operands ", 1, 1, 1, 1;" : d32("+f", d, 0)                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define NBL_PRODUCTS(n, columns, registers, d32, first, from_registers)                       \
    template <typename T, bool ADD>                                                           \
    __device__ inline void multiply_shared(float (&d)[n][4], uint64_t a, uint64_t b)          \
    {                                                                                         \
        if constexpr (std::is_same_v<T, __half>) {                                            \
            if constexpr (ADD) NBL_SHARED(columns, "f16", registers first, "+f", d32, "1");   \
            else NBL_SHARED(columns, "f16", registers first, "=f", d32, "0");                 \
        } else {                                                                              \
            if constexpr (ADD) NBL_SHARED(columns, "bf16", registers first, "+f", d32, "1");  \
            else NBL_SHARED(columns, "bf16", registers first, "=f", d32, "0");                \
        }                                                                                     \
    }                                                                                         \
    template <typename T>                                                                     \
    __device__ inline void multiply_registers(float (&d)[n][4], const uint32_t (&a)[4], uint64_t b) \
    {                                                                                         \
        if constexpr (std::is_same_v<T, __half>)                                              \
            NBL_FROM_REGISTERS(columns, "f16", registers from_registers, d32);                \
        else NBL_FROM_REGISTERS(columns, "bf16", registers from_registers, d32);              \
    }
NBL_PRODUCTS(8, "64", NBL_REGISTERS_32, NBL_D32, "}, %32, %33", "}, {%32, %33, %34, %35}, %36")
NBL_PRODUCTS(16, "128", NBL_REGISTERS_64, NBL_D64, "}, %64, %65", "}, {%64, %65, %66, %67}, %68")
/* clang-format on */

#undef NBL_PRODUCTS
#undef NBL_FROM_REGISTERS
#undef NBL_SHARED
#undef NBL_REGISTERS_64
#undef NBL_REGISTERS_32
#undef NBL_D64
#undef NBL_D32
#undef NBL_D4

/* d[64 rows, N x 8 columns] = A · Bᵀ over WIDE columns: A 64 rows of a tile of A_ROWS, B a tile of N x 8
 * rows. */
template <typename T, int A_ROWS, int WIDE, int N>
__device__ inline void multiply_tiles(float (&d)[N][4], uint32_t a, uint32_t b)
{
    uint64_t left = wgmma_descriptor(a, 16),
             right = wgmma_descriptor(b, 16); /* steps add to the address field, which never overflows */
    multiply_shared<T, false>(d, left, right);
#pragma unroll
    for (int k = 1; k < WIDE / 16; k++)
        multiply_shared<T, true>(d, left + (k / 4 * (A_ROWS * 128) + k % 4 * 32) / 16,
                                 right + (k / 4 * (N * 8 * 128) + k % 4 * 32) / 16);
}

/* d[64 rows, N x 8 columns] += P · B: P of K x 16 columns in registers, B a tile of K x 16 rows. */
template <typename T, int K, int N>
__device__ inline void multiply_scores(float (&d)[N][4], const uint32_t (&scores)[K][4], uint32_t b)
{
    uint64_t right = wgmma_descriptor(b, K * 16 * 128);
#pragma unroll
    for (int k = 0; k < K; k++) multiply_registers<T>(d, scores[k], right + k * 2048 / 16);
}

/* The first address of dynamic shared memory at which a tile may start. The launch asks for TILE_ALIGNMENT more bytes. */
constexpr int TILE_ALIGNMENT = 1024;
__device__ inline char *aligned(char *shared)
{
    uint32_t at = shared_address(shared);
    return shared + ((at + TILE_ALIGNMENT - 1) / TILE_ALIGNMENT * TILE_ALIGNMENT - at);
}

} // namespace nbl_cuda
#endif
