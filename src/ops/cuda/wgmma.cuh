/* wgmma.cuh - Hopper's matrix instructions: products of 64 rows by 64 or 128 columns by 16, made by the 4
 * warps of a warpgroup together, asynchronously, from shared memory. Internal to ops/cuda; for files
 * compiled for sm_90a.
 *
 * A tile in shared memory is as attention_tiles.cuh says. Accumulators are float d[N / 8][4] in each lane:
 * warp w of the warpgroup has the rows 16w … 16w + 15, laid out as mma.m16n8 does. Between an instruction
 * and the wait for it nothing may touch its registers: `settled` after the wait keeps the compiler from
 * reading them early. */
#ifndef NBL_CUDA_WGMMA_CUH
#define NBL_CUDA_WGMMA_CUH

#include "ops/cuda/attention_tiles.cuh"

namespace nbl_cuda
{

/* Before the first product, and after registers that one uses were written. */
__device__ inline void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void products_sent()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Until at most LEFT groups of products are under way. */
template <int LEFT> __device__ inline void await_products()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
template <int N> __device__ inline void settled(float (&d)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(d[n][e])::"memory");
}
/* What this thread wrote to shared memory becomes visible to the products; a barrier must follow. */
__device__ inline void show_to_products()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The descriptor of an operand with the 128-byte swizzle: `leading` bytes from a panel of 64 columns to the
 * next, where the operand is turned; 1024 bytes from 8 rows to the next 8. */
__device__ inline uint64_t operand(uint32_t address, uint32_t leading)
{
    return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
           static_cast<uint64_t>(1024 >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}

/* The warpgroup of this thread in its block; the compiler knows that it is the same for the whole warp. */
__device__ inline int group_of_warps()
{
    return __shfl_sync(WARP, static_cast<int>(threadIdx.x / 128), 0);
}

/* clang-format off */
#define NBL_D4(d, n) "+f"((d)[n][0]), "+f"((d)[n][1]), "+f"((d)[n][2]), "+f"((d)[n][3])
#define NBL_D32(d, n) NBL_D4(d, n), NBL_D4(d, n + 1), NBL_D4(d, n + 2), NBL_D4(d, n + 3), NBL_D4(d, n + 4), \
                      NBL_D4(d, n + 5), NBL_D4(d, n + 6), NBL_D4(d, n + 7)
#define NBL_REGISTERS_64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NBL_REGISTERS_128 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
    "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
    "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
/* clang-format on */

/* d = A · Bᵀ, both from shared memory; with `add`, d += */
template <typename T>
__device__ inline void multiply_shared(float (&d)[8][4], uint64_t a, uint64_t b, int add)
{
    if constexpr (std::is_same_v<T, __half>)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" NBL_REGISTERS_64
                     "}, %32, %33, p, 1, 1, 0, 0;\n}"
                     : NBL_D32(d, 0)
                     : "l"(a), "l"(b), "r"(add));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NBL_REGISTERS_64
                     "}, %32, %33, p, 1, 1, 0, 0;\n}"
                     : NBL_D32(d, 0)
                     : "l"(a), "l"(b), "r"(add));
}
/* d += A · B, A from registers, B by rows */
template <typename T>
__device__ inline void multiply_registers(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b)
{
    if constexpr (std::is_same_v<T, __half>)
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" NBL_REGISTERS_64 "}, "
                     "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                     : NBL_D32(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NBL_REGISTERS_64 "}, "
                     "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                     : NBL_D32(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* d = A · Bᵀ, both from shared memory; with `add`, d += */
template <typename T>
__device__ inline void multiply_shared(float (&d)[16][4], uint64_t a, uint64_t b, int add)
{
    if constexpr (std::is_same_v<T, __half>)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" NBL_REGISTERS_128
                     "}, %64, %65, p, 1, 1, 0, 0;\n}"
                     : NBL_D32(d, 0), NBL_D32(d, 8)
                     : "l"(a), "l"(b), "r"(add));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NBL_REGISTERS_128
                     "}, %64, %65, p, 1, 1, 0, 0;\n}"
                     : NBL_D32(d, 0), NBL_D32(d, 8)
                     : "l"(a), "l"(b), "r"(add));
}
/* d += A · B, A from registers, B by rows */
template <typename T>
__device__ inline void multiply_registers(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b)
{
    if constexpr (std::is_same_v<T, __half>)
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" NBL_REGISTERS_128 "}, "
                     "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                     : NBL_D32(d, 0), NBL_D32(d, 8)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NBL_REGISTERS_128 "}, "
                     "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                     : NBL_D32(d, 0), NBL_D32(d, 8)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef NBL_D4
#undef NBL_D32
#undef NBL_REGISTERS_64
#undef NBL_REGISTERS_128

/* d[64 rows, N x 8 columns] = A · Bᵀ over WIDE columns: A 64 rows of a tile of A_ROWS, B a tile of N x 8
 * rows. */
template <typename T, int A_ROWS, int WIDE, int N>
__device__ inline void multiply_tiles(float (&d)[N][4], uint32_t a, uint32_t b)
{
    uint64_t left = operand(a, 16),
             right = operand(b, 16); /* a step adds to the address alone: it never carries */
#pragma unroll
    for (int k = 0; k < WIDE / 16; k++)
        multiply_shared<T>(d, left + (k / 4 * (A_ROWS * 128) + k % 4 * 32) / 16,
                           right + (k / 4 * (N * 8 * 128) + k % 4 * 32) / 16, k > 0);
}

/* d[64 rows, N x 8 columns] += P · B: P of K x 16 columns in registers, B a tile of K x 16 rows. */
template <typename T, int K, int N>
__device__ inline void multiply_scores(float (&d)[N][4], const uint32_t (&scores)[K][4], uint32_t b)
{
    uint64_t right = operand(b, K * 16 * 128);
#pragma unroll
    for (int k = 0; k < K; k++) multiply_registers<T>(d, scores[k], right + k * 2048 / 16);
}

/* The first place of dynamic shared memory at which a tile may start; TILE_ALIGNMENT more bytes than needed
 * must be there. */
constexpr int TILE_ALIGNMENT = 1024;
__device__ inline char *aligned(char *shared)
{
    uint32_t at = shared_address(shared);
    return shared + ((at + TILE_ALIGNMENT - 1) / TILE_ALIGNMENT * TILE_ALIGNMENT - at);
}

/* Values that must be there before what follows: else the assembler moves the next wait up before this
 * arithmetic. */
__device__ inline void now(uint32_t x)
{
    __shared__ uint32_t seen[256];
    asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(shared_address(&seen[threadIdx.x % 256])), "r"(x)
                 : "memory");
}
template <int N> __device__ inline void now(const float (&s)[N][4])
{
    uint32_t all = 0;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) all ^= __float_as_uint(s[n][e]) ^ __float_as_uint(s[n][e + 1]);
    now(all);
}

} // namespace nbl_cuda
#endif
