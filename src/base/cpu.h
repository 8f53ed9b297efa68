/* cpu.h - instruction sets, caches, cores and memory of this machine.
 *
 * x86-64 has levels (nbl_isa), each of which includes the ones before it; other processors have
 * the scalar level only. The level is detected when a context is created. */
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

/* Function attributes: compile one function for a level, whatever the compiler's flags are. */
#define NBL_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define NBL_TARGET_AVX512                                                                                    \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c")))
#define NBL_TARGET_AVX512BF16                                                                                \
    __attribute__((                                                                                          \
        target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16,avx2,fma,f16c")))
#define NBL_TARGET_AMX                                                                                       \
    __attribute__((target("amx-tile,amx-bf16,amx-int8,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,"        \
                          "avx512vnni,avx512bf16,avx2,fma,f16c")))

/* Expands to its arguments on x86-64, to nothing elsewhere: for lists of kernels. */
#if defined(__x86_64__)
#define NBL_X86(...) __VA_ARGS__
#else
#define NBL_X86(...)
#endif

const char *nbl__isa_name(nbl_isa isa);
/* The highest level that the CPU and the operating system both support. */
nbl_isa nbl__isa_detect(void);
/* *chosen = the level named `wanted` (the value of NIBBLE_ISA), limited to `machine`. NULL or
 * "": `machine`. Returns 0 for an unknown name, else 1. */
int nbl__isa_choose(const char *wanted, nbl_isa machine, nbl_isa *chosen);
/* Bytes of the last-level cache; 0: unknown. */
size_t nbl__cache_bytes(void);
/* Cores that this process may use (its affinity mask). */
int nbl__core_count(void);
/* machine.c: bytes that this process can still allocate without swapping, limited by the system
 * and by its control groups. Memory that holds clean file pages counts as available. 0: unknown. */
uint64_t nbl__memory_available(void);

/* Marks for kernel templates: inline functions with constant arguments (dtype, number of rows)
 * that the compiler specialises. Release: inlined and unrolled, so that sums stay in registers
 * and constant branches disappear. Debug: ordinary functions with loops and the same arithmetic,
 * because unrolled code with sanitizer checks takes clang over ten minutes per file. */
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
