/* cpu.h - which instruction sets this machine has. Read once per context; there is no global. */
#ifndef NBL_CPU_H
#define NBL_CPU_H

#include <stddef.h>
#include <stdint.h>

/* Ordered: each level includes those before it. */
typedef enum nbl_isa {
    NBL_ISA_SCALAR,
    NBL_ISA_AVX2,       /* AVX2, FMA, F16C */
    NBL_ISA_AVX512,     /* F, BW, DQ, VL, VBMI, VNNI */
    NBL_ISA_AVX512BF16, /* the above and AVX512-BF16 */
    NBL_ISA_AMX,        /* the above and AMX tiles of bf16 and int8 */
    NBL_ISA_COUNT
} nbl_isa;

/* Function attributes for kernels of a level. */
#define NBL_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define NBL_TARGET_AVX512                                                                                    \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c")))
#define NBL_TARGET_AVX512BF16                                                                                \
    __attribute__((                                                                                          \
        target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16,avx2,fma,f16c")))
#define NBL_TARGET_AMX                                                                                       \
    __attribute__((target("amx-tile,amx-bf16,amx-int8,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,"        \
                          "avx512vnni,avx512bf16,avx2,fma,f16c")))

const char *nbl__isa_name(nbl_isa isa);
/* The best level that both the CPU and the operating system support. */
nbl_isa nbl__isa_detect(void);
/* The level to use: what `wanted` (the value of NIBBLE_ISA) names, at most what the machine has.
 * NULL or "" mean the best. Returns 0 when the name is unknown. */
int nbl__isa_choose(const char *wanted, nbl_isa machine, nbl_isa *chosen);
/* Bytes of the last-level cache, or 0 when unknown. */
size_t nbl__cache_bytes(void);
/* Cores this process may use. */
int nbl__core_count(void);
/* (machine.c) Bytes that the system, and the control groups of this process, would let it take now without swapping:
 * memory that is free or holds clean pages of files. 0: unknown. */
uint64_t nbl__memory_available(void);

/* For kernels whose dtype or number of rows is a constant argument. Release: they are inlined and unrolled, so
 * that sums stay in registers and branches on constants go away. Debug: they are functions with loops; the
 * arithmetic is the same. Unrolled code with sanitizer checks in it takes clang over ten minutes per file. */
#if !defined(NDEBUG)
#define NBL_UNROLL
#define NBL_INLINE static inline
#elif defined(__clang__)
#define NBL_UNROLL _Pragma("unroll")
#define NBL_INLINE __attribute__((always_inline)) static inline
#else
#define NBL_UNROLL _Pragma("GCC unroll 16")
#define NBL_INLINE __attribute__((always_inline)) static inline
#endif

#endif
