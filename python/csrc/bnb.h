/* bnb.h - operators for the backend of bitsandbytes: those by whose rules bitsandbytes quantizes on a CPU,
 * the ends of its int8 product, and two of nibble's own with fewer arguments, because a call costs time for
 * each.
 *
 *     bnb_fourbit.c   nibble::bnb_quantize_4bit
 *     bnb_eightbit.c  nibble::bnb_quantize_8bit
 *     bnb_rows.c      nibble::bnb_quantize_rows, bnb_dequantize_product
 *     bnb_weight.c    nibble::bnb_dequantize_4bit, bnb_gemm_4bit
 *     bnb_library.c   what they share, and their registration
 *
 * The bytes of the first three files are those of bitsandbytes 0.50. Their operators are for host memory
 * alone. Each has a scalar path and an AVX2 path with the same bits. They run on torch's threads, from torch
 * 2.10 on. */
#ifndef NIBBLE_TORCH_BNB_H
#define NIBBLE_TORCH_BNB_H

#include "torch_call.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define BNB_AVX2 __attribute__((target("avx2,fma,f16c")))
#endif

enum { BNB_PIECE = 4096 }; /* values that are widened at a time: they stay in the L1 cache */

/* A part of the work, on one of torch's threads. */
typedef void (*bnb_span)(int64_t begin, int64_t end, void *argument);
/* Runs `span` for parts of [0, n), of `grain` items or more. */
void bnb_parallel(int64_t n, int64_t grain, bnb_span span, void *argument);

/* True if the context of the call computes with AVX2 or more. */
bool bnb_has_avx2(torch_call *c);

/* Values [first, first + n) as f32, n <= BNB_PIECE: in `room`, or the values themselves. */
const float *bnb_widen(bool avx2, nbl_dtype dtype, const void *values, int64_t first, int64_t n, float *room);
/* Rounds n <= BNB_PIECE f32 to nearest even and stores them from element `first` of `to` on. */
void bnb_narrow(bool avx2, nbl_dtype dtype, const float *from, int64_t n, void *to, int64_t first);

/* Magnitudes of some values. */
typedef struct bnb_magnitude {
    float max; /* of those that are not NaN */
    bool has_nan;
} bnb_magnitude;
void bnb_measure(bool avx2, const float *values, int64_t n, bnb_magnitude *m);

#if defined(__x86_64__)
BNB_AVX2 static inline __m256 bnb_abs_avx2(__m256 x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

/* 32 lanes of 32 bits, each in -128 ... 255, to 32 bytes in order. `is_signed`: they are in -128 ... 127. */
BNB_AVX2 static inline __m256i bnb_bytes_avx2(const __m256i lanes[4], bool is_signed)
{
    __m256i low = _mm256_packs_epi32(lanes[0], lanes[1]), high = _mm256_packs_epi32(lanes[2], lanes[3]);
    __m256i bytes = is_signed ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high);
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
#endif

/* The last two are for devices as well. */
#define BNB_OPERATORS(X)                                                                                     \
    X(quantize_4bit)                                                                                         \
    X(quantize_8bit)                                                                                         \
    X(quantize_rows)                                                                                         \
    X(dequantize_product)                                                                                    \
    X(dequantize_4bit)                                                                                       \
    X(gemm_4bit)

#define BNB_KERNEL(name) void op_bnb_##name(torch_value *stack, uint64_t inputs, uint64_t outputs);
BNB_OPERATORS(BNB_KERNEL)
#undef BNB_KERNEL

#endif
