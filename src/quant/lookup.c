/* lookup.c - 4-bit codes to values by a table in registers. See lookup.h.
 *
 *     codes   |c1 c0|c3 c2|c5 c4| …      two per byte
 *     block   table[0..15] * scale  ->  16 values of the target dtype, in registers
 *     group   32 codes  ->  32 lookups  ->  32 values
 *
 * Only whole groups of 32 elements, aligned in the weight and so within one block, use vectors.
 * The ragged ends of a range are looked up one by one. Per element 1/2 byte is read and 2 or 4
 * are written: bound by stores. */
#include "quant/lookup.h"
#include "quant/kernels.h"

#include <math.h>

enum { GROUP = 32 };

/* The code of element i. */
static inline unsigned code_at(const nbl__lookup *s, int64_t i)
{
    return s->codes[i >> 1] >> (((i & 1) != 0) == s->low_first ? 4 : 0) & 15;
}

/* The scale of element i's block. */
static inline float scale_of(const nbl__lookup *s, int64_t i)
{
    assert((i >> s->block_shift) >= s->first_block);
    return s->scales[(i >> s->block_shift) - s->first_block];
}

/* The end of element i's block, or `end` if that comes first. */
static inline int64_t block_end(const nbl__lookup *s, int64_t i, int64_t end)
{
    return nbl__min_i64(end, ((i >> s->block_shift) + 1) << s->block_shift);
}

/* Elements [i, end) of one block. */
static void look_up_scalar(const nbl__lookup *s, nbl_dtype dtype, int64_t i, int64_t end, void *out)
{
    float scale = scale_of(s, i);
    if (dtype == NBL_DTYPE_F32) {
        float values[16], *to = out;
        for (int c = 0; c < 16; c++) values[c] = s->table[c] * scale;
        for (; i < end; i++) *to++ = values[code_at(s, i)];
        return;
    }
    uint16_t values[16], *to = out;
    for (int c = 0; c < 16; c++) {
        float product = s->table[c] * scale;
        values[c] = dtype == NBL_DTYPE_F16 ? nbl__f32_to_f16(product) : nbl__f32_to_bf16(product);
    }
    for (; i < end; i++) *to++ = values[code_at(s, i)];
}

/* The range, block by block. */
static void dequantize_lookup_scalar(const nbl__lookup *s, nbl_dtype dtype, int64_t begin, int64_t end,
                                     uint8_t *out)
{
    for (int64_t i = begin, stop; i < end; i = stop) {
        stop = block_end(s, i, end);
        look_up_scalar(s, dtype, i, stop, out + (size_t)(i - begin) * nbl__size_of(dtype));
    }
}

#if defined(__x86_64__)

/* ---- one block or a part of it: n elements, whole groups; for 16-bit targets the scale is
 * finite ---- */

typedef struct table_avx2 {
    __m256 low, high; /* entries 0 … 7, 8 … 15 */
} table_avx2;

/* Eight lanes look up both halves of the table by bits 0 … 2 of the code; bit 3 chooses the
 * half. */
NBL_TARGET_AVX2 static inline void look_up_f32_avx2(table_avx2 table, __m256i shift, float block_scale,
                                                    const uint8_t *codes, int64_t n, float *to, bool stream)
{
    __m256 scale = _mm256_set1_ps(block_scale);
    __m256 low = _mm256_mul_ps(table.low, scale), high = _mm256_mul_ps(table.high, scale);
    for (; n > 0; n -= 16, codes += 8, to += 16) {
        for (int half = 0; half < 2; half++) {
            int32_t eight;
            memcpy(&eight, codes + 4 * half, 4);
            __m256i index = _mm256_srlv_epi32(_mm256_set1_epi32(eight), shift);
            __m256 a = _mm256_permutevar8x32_ps(low, index), b = _mm256_permutevar8x32_ps(high, index);
            __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
            put_avx2(to + 8 * half, _mm256_castps_si256(_mm256_blendv_ps(a, b, upper)), stream);
        }
    }
}

/* The 16 values are two tables of bytes, low and high. The 32 codes of a group, in the 32 bytes
 * of a register, look up both; unpacklo and unpackhi interleave the results to 16-bit values.
 * They work within 128-bit lanes, which is why the codes are permuted when loaded. */
NBL_TARGET_AVX2 static inline void look_up_16_avx2(table_avx2 table, nbl_dtype dtype, bool low_first,
                                                   float block_scale, const uint8_t *codes, int64_t n,
                                                   uint16_t *to, bool stream)
{
    __m256 scale = _mm256_set1_ps(block_scale);
    __m256 products_low = _mm256_mul_ps(table.low, scale), products_high = _mm256_mul_ps(table.high, scale);
    __m256i words = narrow_avx2(dtype, products_low, products_high);
    __m256i bytes = _mm256_packus_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0xff)),
                                        _mm256_srli_epi16(words, 8));
    __m256i low = _mm256_permute4x64_epi64(bytes, 0x88), high = _mm256_permute4x64_epi64(bytes, 0xdd);
    for (; n > 0; n -= GROUP, codes += GROUP / 2, to += GROUP) {
        __m128i pairs = _mm_loadu_si128((const __m128i *)(const void *)codes);
        __m256i v = _mm256_cvtepu8_epi16(_mm_shuffle_epi32(pairs, _MM_SHUFFLE(3, 1, 2, 0)));
        v = low_first ? _mm256_or_si256(v, _mm256_slli_epi16(v, 4))
                      : _mm256_or_si256(_mm256_srli_epi16(v, 4), _mm256_slli_epi16(v, 8));
        __m256i index = _mm256_and_si256(v, _mm256_set1_epi8(15));
        __m256i a = _mm256_shuffle_epi8(low, index), b = _mm256_shuffle_epi8(high, index);
        put_avx2(to, _mm256_unpacklo_epi8(a, b), stream);
        put_avx2(to + 16, _mm256_unpackhi_epi8(a, b), stream);
    }
}

/* The whole table is one register. vpmultishiftqb (`shift`) puts both nibbles of a widened byte
 * into the low bits of neighbouring lanes; vpermps ignores the bits above. */
NBL_TARGET_AVX512 static inline void look_up_f32_avx512(__m512 table, __m512i shift, float block_scale,
                                                        const uint8_t *codes, int64_t n, float *to,
                                                        bool stream)
{
    __m512 products = _mm512_mul_ps(table, _mm512_set1_ps(block_scale));
    for (; n > 0; n -= GROUP, codes += GROUP / 2, to += GROUP) {
        for (int half = 0; half < 2; half++) {
            __m128i pairs = _mm_loadl_epi64((const __m128i *)(const void *)(codes + 8 * half));
            __m512i index = _mm512_multishift_epi64_epi8(shift, _mm512_cvtepu8_epi64(pairs));
            put_avx512(to + 16 * half, _mm512_castps_si512(_mm512_permutexvar_ps(index, products)), stream);
        }
    }
}

/* The register of 32 words holds the table twice: bit 4 of an index comes from the neighbouring
 * nibble and only chooses between the two copies. */
NBL_TARGET_AVX512 static inline void look_up_16_avx512(__m512 table, nbl_dtype dtype, __m512i shift,
                                                       float block_scale, const uint8_t *codes, int64_t n,
                                                       uint16_t *to, bool stream)
{
    __m512 products = _mm512_mul_ps(table, _mm512_set1_ps(block_scale));
    __m512i twice = _mm512_broadcast_i64x4(narrow_avx512(dtype, products));
    for (; n > 0; n -= GROUP, codes += GROUP / 2, to += GROUP) {
        __m128i pairs = _mm_loadu_si128((const __m128i *)(const void *)codes);
        __m512i index = _mm512_multishift_epi64_epi8(shift, _mm512_cvtepu8_epi32(pairs));
        put_avx512(to, _mm512_permutexvar_epi16(index, twice), stream);
    }
}

/* ---- ranges of whole groups, block by block ---- */

NBL_TARGET_AVX2 static void dequantize_lookup_f32_avx2(const nbl__lookup *s, int64_t begin, int64_t end,
                                                       float *out, bool stream)
{
    const table_avx2 table = {_mm256_loadu_ps(s->table), _mm256_loadu_ps(s->table + 8)};
    const __m256i shift = s->low_first ? _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)
                                       : _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24);
    for (int64_t i = begin, stop; i < end; out += stop - i, i = stop) {
        stop = block_end(s, i, end);
        look_up_f32_avx2(table, shift, scale_of(s, i), s->codes + (i >> 1), stop - i, out, stream);
    }
}

/* One function for both 16-bit dtypes and both orders of nibbles, inlined with constants below. */
NBL_TARGET_AVX2 __attribute__((always_inline)) static inline void
dequantize_lookup_16_avx2(const nbl__lookup *s, nbl_dtype dtype, bool low_first, int64_t begin, int64_t end,
                          uint16_t *out, bool stream)
{
    const table_avx2 table = {_mm256_loadu_ps(s->table), _mm256_loadu_ps(s->table + 8)};
    for (int64_t i = begin, stop; i < end; out += stop - i, i = stop) {
        stop = block_end(s, i, end);
        float scale = scale_of(s, i);
        if (isfinite(scale))
            look_up_16_avx2(table, dtype, low_first, scale, s->codes + (i >> 1), stop - i, out, stream);
        else look_up_scalar(s, dtype, i, stop, out); /* NaN */
    }
}

NBL_TARGET_AVX2 static void dequantize_lookup_f16_avx2(const nbl__lookup *s, int64_t begin, int64_t end,
                                                       uint16_t *out, bool stream)
{
    if (s->low_first) dequantize_lookup_16_avx2(s, NBL_DTYPE_F16, true, begin, end, out, stream);
    else dequantize_lookup_16_avx2(s, NBL_DTYPE_F16, false, begin, end, out, stream);
}

NBL_TARGET_AVX2 static void dequantize_lookup_bf16_avx2(const nbl__lookup *s, int64_t begin, int64_t end,
                                                        uint16_t *out, bool stream)
{
    if (s->low_first) dequantize_lookup_16_avx2(s, NBL_DTYPE_BF16, true, begin, end, out, stream);
    else dequantize_lookup_16_avx2(s, NBL_DTYPE_BF16, false, begin, end, out, stream);
}

NBL_TARGET_AVX512 static void dequantize_lookup_f32_avx512(const nbl__lookup *s, int64_t begin, int64_t end,
                                                           float *out, bool stream)
{
    const __m512 table = _mm512_loadu_ps(s->table);
    const __m512i shift = _mm512_set1_epi64(s->low_first ? 0x0000000400000000 : 0x0000000000000004);
    for (int64_t i = begin, stop; i < end; out += stop - i, i = stop) {
        stop = block_end(s, i, end);
        look_up_f32_avx512(table, shift, scale_of(s, i), s->codes + (i >> 1), stop - i, out, stream);
    }
}

/* The same for AVX-512. `shift` has the bit offsets of the four nibbles of two widened bytes. */
NBL_TARGET_AVX512 __attribute__((always_inline)) static inline void
dequantize_lookup_16_avx512(const nbl__lookup *s, nbl_dtype dtype, int64_t begin, int64_t end, uint16_t *out,
                            bool stream)
{
    const __m512 table = _mm512_loadu_ps(s->table);
    const __m512i shift = _mm512_set1_epi64(s->low_first ? 0x0024002000040000 : 0x0020002400000004);
    for (int64_t i = begin, stop; i < end; out += stop - i, i = stop) {
        stop = block_end(s, i, end);
        float scale = scale_of(s, i);
        if (isfinite(scale))
            look_up_16_avx512(table, dtype, shift, scale, s->codes + (i >> 1), stop - i, out, stream);
        else look_up_scalar(s, dtype, i, stop, out); /* NaN */
    }
}

NBL_TARGET_AVX512 static void dequantize_lookup_f16_avx512(const nbl__lookup *s, int64_t begin, int64_t end,
                                                           uint16_t *out, bool stream)
{
    dequantize_lookup_16_avx512(s, NBL_DTYPE_F16, begin, end, out, stream);
}

NBL_TARGET_AVX512 static void dequantize_lookup_bf16_avx512(const nbl__lookup *s, int64_t begin, int64_t end,
                                                            uint16_t *out, bool stream)
{
    dequantize_lookup_16_avx512(s, NBL_DTYPE_BF16, begin, end, out, stream);
}

/* Whole groups of 32 elements: chooses the kernel by instruction set and dtype. */
static void dequantize_groups(nbl_isa isa, const nbl__lookup *s, int64_t begin, int64_t end, nbl_dtype dtype,
                              void *out, bool stream)
{
    assert(begin % GROUP == 0 && end % GROUP == 0 && begin < end);
    stream = stream && (uintptr_t)out % 64 == 0; /* then every group starts on a cache line */
    if (isa >= NBL_ISA_AVX512) {
        if (dtype == NBL_DTYPE_F32) dequantize_lookup_f32_avx512(s, begin, end, out, stream);
        else if (dtype == NBL_DTYPE_F16) dequantize_lookup_f16_avx512(s, begin, end, out, stream);
        else dequantize_lookup_bf16_avx512(s, begin, end, out, stream);
    } else {
        if (dtype == NBL_DTYPE_F32) dequantize_lookup_f32_avx2(s, begin, end, out, stream);
        else if (dtype == NBL_DTYPE_F16) dequantize_lookup_f16_avx2(s, begin, end, out, stream);
        else dequantize_lookup_bf16_avx2(s, begin, end, out, stream);
    }
    if (stream) _mm_sfence();
}

#endif

void nbl__lookup_dequantize(nbl_isa isa, const nbl__lookup *source, int64_t begin, int64_t end,
                            nbl_dtype dtype, void *out, bool stream)
{
    assert(nbl__is_compute(dtype) && source->block_shift >= 5);
    uint8_t *target = out;
    size_t size = nbl__size_of(dtype);
#if defined(__x86_64__)
    /* [begin, head) ragged, [head, tail) whole groups, [tail, end) ragged. */
    int64_t head = nbl__min_i64(end, (begin + GROUP - 1) & -(int64_t)GROUP), tail = end & -(int64_t)GROUP;
    if (isa >= NBL_ISA_AVX2 && head < tail) {
        dequantize_lookup_scalar(source, dtype, begin, head, target);
        dequantize_groups(isa, source, head, tail, dtype, target + (size_t)(head - begin) * size, stream);
        dequantize_lookup_scalar(source, dtype, tail, end, target + (size_t)(tail - begin) * size);
        return;
    }
#endif
    (void)isa, (void)stream, (void)size;
    dequantize_lookup_scalar(source, dtype, begin, end, target);
}
