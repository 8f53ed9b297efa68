/* lookup.c - see lookup.h.
 *
 *   codes   |c1 c0|c3 c2|c5 c4| …      two per byte
 *   block   table[0..15] * scale  ->  16 values of the target: registers
 *   groups  32 codes  ->  32 lookups  ->  32 values
 *
 * Only whole groups of 32 (aligned in the weight, so never across a block) go through vectors; the
 * ragged ends of a range are looked up one by one. Per element half a byte is read and 2 or 4 are
 * written: bound by the speed of stores. */
#include "quant/lookup.h"
#include "quant/kernels.h"

enum { GROUP = 32 };

static inline unsigned code_at(const nbl__lookup *s, int64_t i)
{
    unsigned high_shift = ((i & 1) != 0) == s->low_first ? 4 : 0;
    return s->codes[i >> 1] >> high_shift & 15;
}

static inline float scale_of(const nbl__lookup *s, int64_t i)
{
    return s->scales[(i >> s->block_shift) - s->first_block];
}

static inline int64_t block_end(const nbl__lookup *s, int64_t i, int64_t end)
{
    return nbl__min_i64(end, ((i >> s->block_shift) + 1) << s->block_shift);
}

static inline void look_up_f32(const nbl__lookup *s, const float values[16], int64_t i, int64_t end,
                               float *out)
{
    for (; i < end; i++) *out++ = values[code_at(s, i)];
}

static inline void look_up_16(const nbl__lookup *s, const uint16_t values[16], int64_t i, int64_t end,
                              uint16_t *out)
{
    for (; i < end; i++) *out++ = values[code_at(s, i)];
}

static void decode_lookup_f32_scalar(const nbl__lookup *s, int64_t begin, int64_t end, float *out)
{
    for (int64_t i = begin, stop; i < end; i = stop) {
        float values[16], scale = scale_of(s, i);
        for (int c = 0; c < 16; c++) values[c] = s->table[c] * scale;
        stop = block_end(s, i, end);
        look_up_f32(s, values, i, stop, out + (i - begin));
    }
}

static void decode_lookup_16_scalar(const nbl__lookup *s, nbl_dtype dtype, int64_t begin, int64_t end,
                                    uint16_t *out)
{
    for (int64_t i = begin, stop; i < end; i = stop) {
        uint16_t values[16];
        float scale = scale_of(s, i);
        for (int c = 0; c < 16; c++) {
            float product = s->table[c] * scale;
            values[c] = dtype == NBL_DTYPE_F16 ? nbl__f32_to_f16(product) : nbl__f32_to_bf16(product);
        }
        stop = block_end(s, i, end);
        look_up_16(s, values, i, stop, out + (i - begin));
    }
}

#if defined(__x86_64__)

/* Where a block's part of the range divides: [i, head) and [tail, stop) are looked up one by one, whole
 * groups lie between. */
typedef struct segment {
    int64_t head, tail, stop;
} segment;

static inline segment cut(const nbl__lookup *s, int64_t i, int64_t end)
{
    segment cut;
    cut.stop = block_end(s, i, end);
    cut.head = nbl__min_i64((i + GROUP - 1) & -(int64_t)GROUP, cut.stop);
    cut.tail = nbl__max_i64(cut.head, cut.stop & -(int64_t)GROUP);
    return cut;
}

/* Non-temporal stores need whole groups to start on a cache line. */
static inline bool lines_up(const void *out, size_t size, int64_t begin)
{
    int64_t first_group = (begin + GROUP - 1) & -(int64_t)GROUP;
    return ((uintptr_t)out + (size_t)(first_group - begin) * size) % 64 == 0;
}

/* Eight lanes look up two halves of the table by their low three bits; bit 3 chooses the half. */
NBL_TARGET_AVX2 static void decode_lookup_f32_avx2(const nbl__lookup *s, int64_t begin, int64_t end,
                                                   float *out, bool stream)
{
    __m256 table_low = _mm256_loadu_ps(s->table), table_high = _mm256_loadu_ps(s->table + 8);
    __m256i shift = s->low_first ? _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)
                                 : _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24);
    stream = stream && lines_up(out, sizeof *out, begin);
    for (int64_t i = begin, stop; i < end; i = stop) {
        segment part = cut(s, i, end);
        stop = part.stop;
        __m256 scale = _mm256_set1_ps(scale_of(s, i));
        __m256 low = _mm256_mul_ps(table_low, scale), high = _mm256_mul_ps(table_high, scale);
        if (i < part.head || part.tail < stop) {
            float values[16];
            _mm256_storeu_ps(values, low);
            _mm256_storeu_ps(values + 8, high);
            look_up_f32(s, values, i, part.head, out + (i - begin));
            look_up_f32(s, values, part.tail, stop, out + (part.tail - begin));
        }
        const uint8_t *codes = s->codes + (part.head >> 1);
        float *to = out + (part.head - begin);
        for (int64_t k = part.tail - part.head; k > 0; k -= 16, codes += 8, to += 16) {
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
    if (stream) _mm_sfence();
}

/* The 16 values are kept as two tables of bytes; 32 codes in the 32 bytes of a register look up both, and
 * the bytes are woven together again. Weaving works within 128-bit lanes, hence the order of the load. */
NBL_TARGET_AVX2 __attribute__((always_inline)) static inline void
decode_lookup_16_avx2(const nbl__lookup *s, nbl_dtype dtype, bool low_first, int64_t begin, int64_t end,
                      uint16_t *out, bool stream)
{
    __m256 table_low = _mm256_loadu_ps(s->table), table_high = _mm256_loadu_ps(s->table + 8);
    const __m256i nibbles = _mm256_set1_epi8(15), bytes = _mm256_set1_epi16(0xff);
    stream = stream && lines_up(out, sizeof *out, begin);
    for (int64_t i = begin, stop; i < end; i = stop) {
        segment part = cut(s, i, end);
        stop = part.stop;
        __m256 scale = _mm256_set1_ps(scale_of(s, i));
        __m256i words = narrow_avx2(dtype, _mm256_mul_ps(table_low, scale), _mm256_mul_ps(table_high, scale));
        if (i < part.head || part.tail < stop) {
            uint16_t values[16];
            _mm256_storeu_si256((__m256i *)(void *)values, words);
            look_up_16(s, values, i, part.head, out + (i - begin));
            look_up_16(s, values, part.tail, stop, out + (part.tail - begin));
        }
        __m256i planes = _mm256_packus_epi16(_mm256_and_si256(words, bytes), _mm256_srli_epi16(words, 8));
        __m256i low = _mm256_permute4x64_epi64(planes, 0x88), high = _mm256_permute4x64_epi64(planes, 0xdd);
        const uint8_t *codes = s->codes + (part.head >> 1);
        uint16_t *to = out + (part.head - begin);
        for (int64_t k = part.tail - part.head; k > 0; k -= GROUP, codes += GROUP / 2, to += GROUP) {
            __m128i pairs = _mm_loadu_si128((const __m128i *)(const void *)codes);
            __m256i v = _mm256_cvtepu8_epi16(_mm_shuffle_epi32(pairs, _MM_SHUFFLE(3, 1, 2, 0)));
            v = low_first ? _mm256_or_si256(v, _mm256_slli_epi16(v, 4))
                          : _mm256_or_si256(_mm256_srli_epi16(v, 4), _mm256_slli_epi16(v, 8));
            __m256i index = _mm256_and_si256(v, nibbles);
            __m256i a = _mm256_shuffle_epi8(low, index), b = _mm256_shuffle_epi8(high, index);
            put_avx2(to, _mm256_unpacklo_epi8(a, b), stream);
            put_avx2(to + 16, _mm256_unpackhi_epi8(a, b), stream);
        }
    }
    if (stream) _mm_sfence();
}

NBL_TARGET_AVX2 static void decode_lookup_high_first_16_avx2(const nbl__lookup *s, nbl_dtype dtype,
                                                             int64_t begin, int64_t end, uint16_t *out,
                                                             bool stream)
{
    decode_lookup_16_avx2(s, dtype, false, begin, end, out, stream);
}

NBL_TARGET_AVX2 static void decode_lookup_low_first_16_avx2(const nbl__lookup *s, nbl_dtype dtype,
                                                            int64_t begin, int64_t end, uint16_t *out,
                                                            bool stream)
{
    decode_lookup_16_avx2(s, dtype, true, begin, end, out, stream);
}

/* The whole table fits one register. vpmultishiftqb puts both nibbles of a widened byte into the low bits
 * of neighbouring lanes; a lookup ignores the bits above. */
NBL_TARGET_AVX512 static void decode_lookup_f32_avx512(const nbl__lookup *s, int64_t begin, int64_t end,
                                                       float *out, bool stream)
{
    __m512 table = _mm512_loadu_ps(s->table);
    __m512i shift = _mm512_set1_epi64(s->low_first ? 0x0000000400000000 : 0x0000000000000004);
    stream = stream && lines_up(out, sizeof *out, begin);
    for (int64_t i = begin, stop; i < end; i = stop) {
        segment part = cut(s, i, end);
        stop = part.stop;
        __m512 products = _mm512_mul_ps(table, _mm512_set1_ps(scale_of(s, i)));
        if (i < part.head || part.tail < stop) {
            float values[16];
            _mm512_storeu_ps(values, products);
            look_up_f32(s, values, i, part.head, out + (i - begin));
            look_up_f32(s, values, part.tail, stop, out + (part.tail - begin));
        }
        const uint8_t *codes = s->codes + (part.head >> 1);
        float *to = out + (part.head - begin);
        for (int64_t k = part.tail - part.head; k > 0; k -= GROUP, codes += GROUP / 2, to += GROUP) {
            for (int half = 0; half < 2; half++) {
                __m128i pairs = _mm_loadl_epi64((const __m128i *)(const void *)(codes + 8 * half));
                __m512i index = _mm512_multishift_epi64_epi8(shift, _mm512_cvtepu8_epi64(pairs));
                __m512 values = _mm512_permutexvar_ps(index, products);
                put_avx512(to + 16 * half, _mm512_castps_si512(values), stream);
            }
        }
    }
    if (stream) _mm_sfence();
}

/* The table twice in one register of 32 words: the fifth index bit, left over from the neighbouring
 * nibble, chooses between two copies. */
NBL_TARGET_AVX512 static void decode_lookup_16_avx512(const nbl__lookup *s, nbl_dtype dtype, int64_t begin,
                                                      int64_t end, uint16_t *out, bool stream)
{
    __m512 table = _mm512_loadu_ps(s->table);
    __m512i shift = _mm512_set1_epi64(s->low_first ? 0x0024002000040000 : 0x0020002400000004);
    stream = stream && lines_up(out, sizeof *out, begin);
    for (int64_t i = begin, stop; i < end; i = stop) {
        segment part = cut(s, i, end);
        stop = part.stop;
        __m256i words = narrow_avx512(dtype, _mm512_mul_ps(table, _mm512_set1_ps(scale_of(s, i))));
        if (i < part.head || part.tail < stop) {
            uint16_t values[16];
            _mm256_storeu_si256((__m256i *)(void *)values, words);
            look_up_16(s, values, i, part.head, out + (i - begin));
            look_up_16(s, values, part.tail, stop, out + (part.tail - begin));
        }
        __m512i twice = _mm512_broadcast_i64x4(words);
        const uint8_t *codes = s->codes + (part.head >> 1);
        uint16_t *to = out + (part.head - begin);
        for (int64_t k = part.tail - part.head; k > 0; k -= GROUP, codes += GROUP / 2, to += GROUP) {
            __m128i pairs = _mm_loadu_si128((const __m128i *)(const void *)codes);
            __m512i index = _mm512_multishift_epi64_epi8(shift, _mm512_cvtepu8_epi32(pairs));
            put_avx512(to, _mm512_permutexvar_epi16(index, twice), stream);
        }
    }
    if (stream) _mm_sfence();
}

#endif

void nbl__lookup_decode(nbl_isa isa, const nbl__lookup *source, int64_t begin, int64_t end, nbl_dtype dtype,
                        void *out, bool stream)
{
    assert(nbl__is_compute(dtype) && source->block_shift >= 5);
    if (begin >= end) return;
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) {
        if (dtype == NBL_DTYPE_F32) decode_lookup_f32_avx512(source, begin, end, out, stream);
        else decode_lookup_16_avx512(source, dtype, begin, end, out, stream);
        return;
    }
    if (isa >= NBL_ISA_AVX2) {
        if (dtype == NBL_DTYPE_F32) decode_lookup_f32_avx2(source, begin, end, out, stream);
        else if (source->low_first) decode_lookup_low_first_16_avx2(source, dtype, begin, end, out, stream);
        else decode_lookup_high_first_16_avx2(source, dtype, begin, end, out, stream);
        return;
    }
#endif
    (void)isa, (void)stream;
    if (dtype == NBL_DTYPE_F32) decode_lookup_f32_scalar(source, begin, end, out);
    else decode_lookup_16_scalar(source, dtype, begin, end, out);
}
