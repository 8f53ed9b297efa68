/* fourbit.c - NF4 and FP4: blocks of the flattened weight with one f32 scale each. Two codes per
 * byte; the first is in the high nibble.
 *
 *     dequantize  w = RN_T(RN_32(table[code] * scale)); nested scales are restored 128 blocks at a
 *                 time
 *     encode      scale = max |x| of the block; code = rule(x * (1 / scale)), see nf4.c and fp4.c
 *
 * Encoding works on 4096 values at a time: widen to f32, absmax, codes, pack. They are read from
 * memory once and then from the L1 cache. */
#include "quant/kernels.h"
#include "quant/lookup.h"

#include <float.h>

/* The range may begin and end within a block. Nested scales are restored for up to BLOCKS blocks at
 * a time, so that they stay in the L1 cache. */
void nbl__fourbit_dequantize(nbl_isa isa, const nbl_weight *weight, const float *table, int64_t begin,
                             int64_t end, nbl_dtype dtype, void *out, bool stream)
{
    assert(nbl__block_valid(weight->block));
    int shift = __builtin_ctzll((unsigned long long)weight->block);
    nbl__lookup source = {weight->data, table, weight->scales, 0, shift, false};
    if (weight->nested_scales == NULL) {
        nbl__lookup_dequantize(isa, &source, begin, end, dtype, out, stream);
        return;
    }
    enum { BLOCKS = 128 };
    float scales[BLOCKS];
    source.scales = scales;
    uint8_t *target = out;
    for (int64_t i = begin, stop; i < end; i = stop) {
        source.first_block = i >> shift;
        stop = nbl__min_i64(end, (source.first_block + BLOCKS) << shift);
        nbl__nested_dequantize(weight, source.first_block, ((stop - 1) >> shift) - source.first_block + 1,
                               scales);
        nbl__lookup_dequantize(isa, &source, i, stop, dtype,
                               target + (size_t)(i - begin) * nbl__size_of(dtype), stream);
    }
}

/* Packs codes, one per byte, to two per byte; the first goes to the high nibble. n is even. */
static void pack_scalar(const uint8_t *codes, int64_t begin, int64_t n, uint8_t *packed)
{
    for (int64_t i = begin; i < n; i += 2) packed[i / 2] = (uint8_t)(codes[i] << 4 | codes[i + 1]);
}

#if defined(__x86_64__)

/* Two codes become 16 * first + second in one multiply-add of bytes. */
NBL_TARGET_AVX2 static int64_t pack_avx2(const uint8_t *codes, int64_t n, uint8_t *packed)
{
    const __m256i weights = _mm256_set1_epi16(0x0110); /* 16 for the first, 1 for the second */
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(codes + i));
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(codes + i + 32));
        a = _mm256_packus_epi16(_mm256_maddubs_epi16(a, weights), _mm256_maddubs_epi16(b, weights));
        _mm256_storeu_si256((__m256i *)(void *)(packed + i / 2), _mm256_permute4x64_epi64(a, 0xd8));
    }
    return i;
}

#endif

/* Packs n codes; n is even. */
static void pack(nbl_isa isa, const uint8_t *codes, int64_t n, uint8_t *packed)
{
    int64_t done = 0;
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX2) done = pack_avx2(codes, n, packed);
#else
    (void)isa;
#endif
    pack_scalar(codes, done, n, packed);
}

/* Prefetches the values of the next 4096 while these are encoded. */
static inline void fetch(const uint8_t *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}

/* The loop works on PIECE values. A block never straddles two pieces: its size divides PIECE. */
int64_t nbl__fourbit_encode(nbl_isa isa, nbl_format format, int64_t block, nbl_dtype dtype,
                            const void *values, int64_t n, uint8_t *codes, float *scales)
{
    assert(nbl__block_valid(block));
    enum { PIECE = 4096 }; /* the largest block */
    float piece[PIECE];
    uint8_t loose[PIECE + 1];
    int64_t non_finite = 0;
    size_t size = nbl__size_of(dtype);
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t count = nbl__min_i64(PIECE, n - i);
        const uint8_t *from = (const uint8_t *)values + (size_t)i * size;
        nbl__to_f32(isa, dtype, from, piece, count);
        /* the code of 0.0, for the nibble behind an odd end: 7 in NF4, 0 in FP4 and in a block of
         * zeros */
        uint8_t spare = 0;
        for (int64_t b = 0; b < count; b += block) {
            int64_t length = nbl__min_i64(block, count - b);
            if (i + PIECE + b + length <= n) fetch(from + (size_t)(PIECE + b) * size, (size_t)length * size);
            float absmax = nbl__absmax(isa, dtype, from + (size_t)b * size, length, &non_finite);
            /* only zeros, NaN, and subnormals, which CUDA flushes to zero */
            if (absmax < FLT_MIN) {
                *scales++ = 0;
                memset(loose + b, 0, (size_t)length);
                spare = 0;
                continue;
            }
            *scales++ = absmax;
            if (format == NBL_FORMAT_NF4)
                nbl__nf4_encode_block(isa, piece + b, length, 1 / absmax, loose + b);
            else nbl__fp4_encode_block(isa, piece + b, length, 1 / absmax, loose + b);
            spare = format == NBL_FORMAT_NF4 ? 7 : 0;
        }
        loose[count] = spare;
        pack(isa, loose, count + (count & 1), codes + i / 2);
    }
    return non_finite;
}
