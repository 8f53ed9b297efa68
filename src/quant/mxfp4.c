/* mxfp4.c - OCP microscaling: 32 values of e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and sign) share a
 * scale 2^(e-127). e is one byte (e8m0). The first code of a pair is in the low nibble.
 *
 *     dequantize  RN_T(RN_32(lut[code] * 2^(e-127))) for every e. e = 0 is the subnormal 2^-127.
 *                 e = 255, which OCP reserves for NaN, is 2^128, as transformers' ldexp computes it
 *     encode      e - 127 = floor(log2(absmax)) - 2, so the largest scaled value is in [4, 8).
 *                 Each value takes the nearest e2m1, ties to the even code, saturated to 6
 *
 * Scaling by a power of two is exact, so values that came from MXFP4 encode to the same values. */
#include "quant/kernels.h"
#include "quant/lookup.h"

enum { BLOCK = 32 };

/* Twice the e2m1 values: their factor is then 2^(e-128), an f32 for every e. */
const float nbl__mxfp4_table[16] = {0.0f,  1.0f,  2.0f,  3.0f,  4.0f,  6.0f,  8.0f,  12.0f,
                                    -0.0f, -1.0f, -2.0f, -3.0f, -4.0f, -6.0f, -8.0f, -12.0f};

/* The mid-points 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5 as f32 bits. A value strictly above one
 * takes the next code. Where a tie must go up to the even code, the f32 just below the mid-point
 * is listed instead. */
static const uint32_t thresholds[8] = {0x3e800000, 0x3f3fffff, 0x3fa00000, 0x3fdfffff,
                                       0x40200000, 0x405fffff, 0x40a00000};

/* Scales are restored for up to BLOCKS blocks at a time, then the codes are looked up. */
void nbl__mxfp4_dequantize(nbl_isa isa, const nbl_weight *weight, int64_t begin, int64_t end, nbl_dtype dtype,
                           void *out, bool stream)
{
    enum { BLOCKS = 128, SHIFT = 5 };
    float scales[BLOCKS];
    nbl__lookup source = {weight->data, nbl__mxfp4_table, scales, 0, SHIFT, true};
    uint8_t *target = out;
    for (int64_t i = begin, stop; i < end; i = stop) {
        source.first_block = i >> SHIFT;
        stop = nbl__min_i64(end, (source.first_block + BLOCKS) << SHIFT);
        int64_t blocks = ((stop - 1) >> SHIFT) - source.first_block + 1;
        assert(blocks <= BLOCKS);
        for (int64_t b = 0; b < blocks; b++)
            scales[b] = nbl__mxfp4_scale(weight->scale_codes[source.first_block + b]);
        nbl__lookup_dequantize(isa, &source, i, stop, dtype,
                               target + (size_t)(i - begin) * nbl__size_of(dtype), stream);
    }
}

/* One block of 32 values. A NaN compares false with everything, and gets code 0. */
static void encode_mxfp4_scalar(const float *values, float factor, uint8_t *packed)
{
    uint8_t codes[BLOCK];
    float t[7];
    memcpy(t, thresholds, sizeof t);
    for (int i = 0; i < BLOCK; i++) {
        uint32_t bits = nbl__bits_of(values[i]);
        float scaled = nbl__from_bits(bits & 0x7fffffff) * factor;
        unsigned code = scaled > t[3] ? 4 : 0;
        code += scaled > t[code + 1] ? 2 : 0;
        code += scaled > t[code] ? 1 : 0;
        codes[i] = (uint8_t)(scaled == scaled ? code | (bits >> 31) << 3 : 0);
    }
    for (int i = 0; i < BLOCK / 2; i++) packed[i] = (uint8_t)(codes[2 * i + 1] << 4 | codes[2 * i]);
}

#if defined(__x86_64__)

/* AVX2 and AVX-512 encoders need values without NaN. */
NBL_TARGET_AVX2 static inline __m256i mxfp4_codes_avx2(const float *values, __m256 factor)
{
    __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)values);
    __m256 magnitude = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
    __m256i code = rank8_avx2(_mm256_mul_ps(magnitude, factor), thresholds);
    return _mm256_or_si256(code, _mm256_and_si256(_mm256_srli_epi32(bits, 28), _mm256_set1_epi32(8)));
}

/* One block: 32 codes, packed to 16 bytes; the first code of a pair is the low nibble. */
NBL_TARGET_AVX2 static void encode_mxfp4_avx2(const float *values, float factor, uint8_t *packed)
{
    const __m256 f = _mm256_set1_ps(factor);
    __m256i codes = bytes_of_avx2(mxfp4_codes_avx2(values, f), mxfp4_codes_avx2(values + 8, f),
                                  mxfp4_codes_avx2(values + 16, f), mxfp4_codes_avx2(values + 24, f));
    __m256i pairs = _mm256_maddubs_epi16(codes,
                                         /* 1 for the first, 16 for the second */
                                         _mm256_set1_epi16(0x1001));
    __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    _mm_storeu_si128((__m128i *)(void *)packed, bytes);
}

NBL_TARGET_AVX512 static void encode_mxfp4_avx512(const float *values, float factor, uint8_t *packed)
{
    __m128i halves[2];
    for (int k = 0; k < 2; k++) {
        __m512i bits = _mm512_loadu_si512(values + 16 * k);
        __m512 magnitude = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
        __m512i code = rank8_avx512(_mm512_mul_ps(magnitude, _mm512_set1_ps(factor)), thresholds);
        __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 28), _mm512_set1_epi32(8));
        halves[k] = _mm_maddubs_epi16(_mm512_cvtepi32_epi8(_mm512_or_si512(code, sign)),
                                      _mm_set1_epi16(0x1001));
    }
    _mm_storeu_si128((__m128i *)(void *)packed, _mm_packus_epi16(halves[0], halves[1]));
}

#endif

/* Encodes one block: the scale from the largest magnitude, then the codes. Blocks with NaN or
 * infinities go to the scalar code. */
static void encode_block(nbl_isa isa, const float *values, uint8_t *packed, uint8_t *scale,
                         int64_t *non_finite)
{
    int64_t bad = 0;
    uint32_t exponent = nbl__bits_of(nbl__absmax(isa, NBL_DTYPE_F32, values, BLOCK, &bad)) >>
                        23; /* biased exponent; 0: zero or subnormal */
    unsigned e = exponent == 255 ? 254 : exponent > 2 ? exponent - 2 : 0;
    float factor = nbl__mxfp4_scale(255 - e); /* 2^(127-e) */
    *scale = (uint8_t)e;
    *non_finite += bad;
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512 && bad == 0) {
        encode_mxfp4_avx512(values, factor, packed);
        return;
    }
    if (isa >= NBL_ISA_AVX2 && bad == 0) {
        encode_mxfp4_avx2(values, factor, packed);
        return;
    }
#endif
    encode_mxfp4_scalar(values, factor, packed);
}

int64_t nbl__mxfp4_encode(nbl_isa isa, nbl_dtype dtype, const void *values, int64_t stride, int64_t n,
                          uint8_t *codes, uint8_t *scales)
{
    assert(n % BLOCK == 0);
    enum { PIECE = 1024 };
    float piece[PIECE];
    size_t size = nbl__size_of(dtype);
    const uint8_t *bytes = values;
    int64_t non_finite = 0;
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t count = nbl__min_i64(PIECE, n - i);
        if (stride == 1) {
            nbl__to_f32(isa, dtype, bytes + (size_t)i * size, piece, count);
        } else { /* gather the values of a column, which are `stride` apart */
            uint8_t gathered[PIECE * 4];
            for (int64_t k = 0; k < count; k++)
                memcpy(gathered + (size_t)k * size, bytes + (size_t)((i + k) * stride) * size, size);
            nbl__to_f32(isa, dtype, gathered, piece, count);
        }
        for (int64_t k = 0; k < count; k += BLOCK)
            encode_block(isa, piece + k, codes + (i + k) / 2, scales + (i + k) / BLOCK, &non_finite);
    }
    return non_finite;
}
