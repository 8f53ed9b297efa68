/* ggml.c - dequantizes the blocks of GGUF files. See ggml.h.
 *
 * Each packed format is first unpacked to one common form: signed codes, and a scale and an
 * offset for every 16 of them.
 *
 *     block ──unpack──▶ codes[256], scale[16], offset[16] ──▶ f32[256] ──▶ dtype
 *
 * All of it is in the L1 cache. value = scale * code + offset, product and sum each
 * rounded. Formats without an offset have -0.0 there, which changes no value, not even the sign
 * of a zero. The unpacking loops are plain C with fixed counts, compiled once for every machine
 * and once for AVX2.
 *
 * Names as in ggml: d and min are the block's f16 factors of scales and offsets, qs the codes'
 * low bits. */
#include "quant/ggml.h"

#include "quant/kernels.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { GROUP = 16, MAX = 256 };

typedef struct unpacked {
    int8_t codes[MAX];
    float scale[MAX / GROUP], offset[MAX / GROUP];
} unpacked;

/* ---- layouts ---- */

bool nbl__ggml_layout_of(uint32_t type, nbl__ggml_layout *layout)
{
    static const nbl__ggml_layout layouts[] = {
#define ROW(NAME, number, name, values, bytes) [number] = {name, values, bytes},
        NBL_GGML_TABLE(ROW)
#undef ROW
    };
    if (type >= sizeof layouts / sizeof layouts[0] || layouts[type].name == NULL) return false;
    *layout = layouts[type];
    return true;
}

/* All other types have a known size, so a file with them can be inspected, but are not dequantized. */
bool nbl__ggml_is_decodable(nbl__ggml_type type)
{
    switch (type) {
    case NBL_GGML_F32:
    case NBL_GGML_F16:
    case NBL_GGML_BF16:
    case NBL_GGML_Q4_0:
    case NBL_GGML_Q4_1:
    case NBL_GGML_Q5_0:
    case NBL_GGML_Q5_1:
    case NBL_GGML_Q8_0:
    case NBL_GGML_Q2_K:
    case NBL_GGML_Q3_K:
    case NBL_GGML_Q4_K:
    case NBL_GGML_Q5_K:
    case NBL_GGML_Q6_K: return true;
    default: return false;
    }
}

/* ---- unpacking: blocks of 32 ---- */

/* An f16 in a block, which need not be aligned. */
ALWAYS_INLINE float half_at(const uint8_t *bytes)
{
    uint16_t half;
    memcpy(&half, bytes, 2);
    return nbl__f16_to_f32(half);
}

/* Sets scale and offset of groups [first, first + count). */
ALWAYS_INLINE void set_groups(unpacked *u, int first, int count, float scale, float offset)
{
    for (int i = first; i < first + count; i++) u->scale[i] = scale, u->offset[i] = offset;
}

/* 16 bytes: the low nibbles are values 0 … 15, the high ones 16 … 31. */
ALWAYS_INLINE void unpack_nibbles(unpacked *u, const uint8_t *qs, int bias)
{
    for (int i = 0; i < 16; i++) u->codes[i] = (int8_t)((qs[i] & 15) - bias);
    for (int i = 0; i < 16; i++) u->codes[16 + i] = (int8_t)((qs[i] >> 4) - bias);
}

/* The same with a fifth bit: bit i of `high` belongs to value i. */
ALWAYS_INLINE void unpack_five(unpacked *u, const uint8_t *high, const uint8_t *qs, int bias)
{
    uint32_t bits;
    memcpy(&bits, high, 4);
    for (int i = 0; i < 16; i++) u->codes[i] = (int8_t)(((qs[i] & 15) | (bits >> i & 1) << 4) - bias);
    for (int i = 0; i < 16; i++)
        u->codes[16 + i] = (int8_t)(((qs[i] >> 4) | (bits >> (16 + i) & 1) << 4) - bias);
}

/* Blocks of 32: f16 scale | f16 offset (q4_1, q5_1) | 4 bytes of fifth bits (q5) | 16 bytes of
 * nibbles, or 32 int8 (q8_0). */
ALWAYS_INLINE void unpack_32(unpacked *u, nbl__ggml_type type, const uint8_t *block)
{
    bool has_offset = type == NBL_GGML_Q4_1 || type == NBL_GGML_Q5_1;
    set_groups(u, 0, 2, half_at(block), has_offset ? half_at(block + 2) : -0.0f);
    const uint8_t *rest = block + (has_offset ? 4 : 2);
    if (type == NBL_GGML_Q4_0) unpack_nibbles(u, rest, 8);
    else if (type == NBL_GGML_Q4_1) unpack_nibbles(u, rest, 0);
    else if (type == NBL_GGML_Q5_0) unpack_five(u, rest, rest + 4, 16);
    else if (type == NBL_GGML_Q5_1) unpack_five(u, rest, rest + 4, 0);
    else memcpy(u->codes, rest, 32);
}

/* ---- unpacking: blocks of 256 ---- */

/* q2_k: 16 bytes of 4-bit scale and offset | 64 bytes of 2-bit codes | f16 d | f16 min. */
ALWAYS_INLINE void unpack_q2_k(unpacked *u, const uint8_t *block)
{
    const uint8_t *qs = block + 16;
    float d = half_at(block + 80), min = half_at(block + 82);
    for (int i = 0; i < 16; i++) {
        u->scale[i] = d * (float)(block[i] & 15);
        u->offset[i] = -(min * (float)(block[i] >> 4));
    }
    for (int k = 0; k < 8; k++) /* 32 values each: two bits of 32 bytes */
        for (int i = 0; i < 32; i++) u->codes[32 * k + i] = (int8_t)(qs[32 * (k / 4) + i] >> 2 * (k % 4) & 3);
}

/* q3_k: 32 bytes of third bits | 64 bytes of 2-bit codes | 12 bytes with 16 signed 6-bit scales
 * | f16 d. code = low bits minus 4 if the third bit is clear. */
ALWAYS_INLINE void unpack_q3_k(unpacked *u, const uint8_t *block)
{
    const uint8_t *high = block, *qs = block + 32, *scales = block + 96;
    float d = half_at(block + 108);
    for (int i = 0; i < 16; i++) {
        int low = scales[i % 8] >> 4 * (i / 8) & 15, top = scales[8 + i % 4] >> 2 * (i / 4) & 3;
        u->scale[i] = d * (float)((low | top << 4) - 32);
        u->offset[i] = -0.0f;
    }
    for (int k = 0; k < 8; k++)
        for (int i = 0; i < 32; i++) {
            int low = qs[32 * (k / 4) + i] >> 2 * (k % 4) & 3;
            u->codes[32 * k + i] = (int8_t)(low + 4 * (high[i] >> k & 1) - 4);
        }
}

/* q4_k and q5_k begin with f16 d | f16 min | 12 bytes with 8 scales and 8 offsets of 6 bits. The
 * first four of each are whole bytes' low 6 bits; the last four have their low 4 bits in bytes 8
 * … 11 and their top 2 bits in the upper bits of the first eight bytes. */
ALWAYS_INLINE void unpack_scales(unpacked *u, const uint8_t *block)
{
    const uint8_t *s = block + 4;
    float d = half_at(block), min = half_at(block + 2);
    for (int i = 0; i < 8; i++) {
        int scale = i < 4 ? s[i] & 63 : (s[4 + i] & 15) | (s[i - 4] >> 6) << 4;
        int offset = i < 4 ? s[4 + i] & 63 : s[4 + i] >> 4 | (s[i] >> 6) << 4;
        set_groups(u, 2 * i, 2, d * (float)scale, -(min * (float)offset));
    }
}

/* q4_k: 16 bytes as above | 128 bytes of nibbles. */
ALWAYS_INLINE void unpack_q4_k(unpacked *u, const uint8_t *block)
{
    const uint8_t *qs = block + 16;
    unpack_scales(u, block);
    for (int k = 0; k < 8; k++)
        for (int i = 0; i < 32; i++)
            u->codes[32 * k + i] = (int8_t)(qs[32 * (k / 2) + i] >> 4 * (k % 2) & 15);
}

/* q5_k: 16 bytes as above | 32 bytes of fifth bits | 128 bytes of nibbles. */
ALWAYS_INLINE void unpack_q5_k(unpacked *u, const uint8_t *block)
{
    const uint8_t *high = block + 16, *qs = block + 48;
    unpack_scales(u, block);
    for (int k = 0; k < 8; k++)
        for (int i = 0; i < 32; i++) {
            int low = qs[32 * (k / 2) + i] >> 4 * (k % 2) & 15;
            u->codes[32 * k + i] = (int8_t)(low | (high[i] >> k & 1) << 4);
        }
}

/* q6_k: 128 bytes of low nibbles | 64 bytes of 2 high bits | 16 int8 scales | f16 d. code - 32. */
ALWAYS_INLINE void unpack_q6_k(unpacked *u, const uint8_t *block)
{
    const uint8_t *low = block, *high = block + 128, *scales = block + 192;
    float d = half_at(block + 208);
    for (int i = 0; i < 16; i++) {
        u->scale[i] = d * (float)(int8_t)scales[i];
        u->offset[i] = -0.0f;
    }
    for (int half = 0; half < 2; half++)
        for (int k = 0; k < 4; k++) /* 32 values each */
            for (int i = 0; i < 32; i++) {
                int four = low[64 * half + 32 * (k % 2) + i] >> 4 * (k / 2) & 15;
                int two = high[32 * half + i] >> 2 * k & 3;
                u->codes[128 * half + 32 * k + i] = (int8_t)((four | two << 4) - 32);
            }
}

/* ---- dequantizing ---- */

/* Inlined per type: the compiler sees constants and fixed counts. */
ALWAYS_INLINE void unpack(unpacked *u, nbl__ggml_type type, const uint8_t *block)
{
    switch (type) {
    case NBL_GGML_Q2_K: unpack_q2_k(u, block); break;
    case NBL_GGML_Q3_K: unpack_q3_k(u, block); break;
    case NBL_GGML_Q4_K: unpack_q4_k(u, block); break;
    case NBL_GGML_Q5_K: unpack_q5_k(u, block); break;
    case NBL_GGML_Q6_K: unpack_q6_k(u, block); break;
    default: unpack_32(u, type, block); break;
    }
}

/* value = scale * code + offset, in two roundings. */
static void dequantize_block_scalar(nbl__ggml_type type, const uint8_t *block, int values, float *out)
{
    unpacked u;
    unpack(&u, type, block);
    for (int i = 0; i < values; i++) {
        float product = u.scale[i / GROUP] * (float)u.codes[i];
        out[i] = product + u.offset[i / GROUP];
    }
}

#if defined(__x86_64__)
/* The same in 8 lanes. */
NBL_TARGET_AVX2 static void dequantize_block_avx2(nbl__ggml_type type, const uint8_t *block, int values,
                                                  float *out)
{
    unpacked u;
    unpack(&u, type, block);
    for (int i = 0; i < values; i += 8) {
        __m128i eight = _mm_loadl_epi64((const __m128i *)(const void *)(u.codes + i));
        __m256 codes = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
        __m256 product = _mm256_mul_ps(_mm256_set1_ps(u.scale[i / GROUP]), codes);
        _mm256_storeu_ps(out + i, _mm256_add_ps(product, _mm256_set1_ps(u.offset[i / GROUP])));
    }
}
#endif

static void dequantize_block(nbl_isa isa, nbl__ggml_type type, const uint8_t *block, int values, float *out)
{
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX2) {
        dequantize_block_avx2(type, block, values, out);
        return;
    }
#endif
    (void)isa;
    dequantize_block_scalar(type, block, values, out);
}

/* f32, f16 and bf16 data: the library's own conversions. */
static void dequantize_dense(nbl_isa isa, nbl_dtype from, const uint8_t *data, int64_t n, nbl_dtype dtype,
                             void *out)
{
    float values[MAX];
    size_t in_size = nbl__size_of(from), out_size = nbl__size_of(dtype);
    if (from == dtype) {
        memcpy(out, data, (size_t)n * in_size);
        return;
    }
    for (int64_t at = 0; at < n; at += MAX) {
        int64_t count = nbl__min_i64(MAX, n - at);
        nbl__to_f32(isa, from, data + (size_t)at * in_size, values, count);
        nbl__from_f32(isa, values, dtype, (uint8_t *)out + (size_t)at * out_size, count);
    }
}

void nbl__ggml_dequantize(nbl_isa isa, nbl__ggml_type type, const uint8_t *data, int64_t n, nbl_dtype dtype,
                          void *out)
{
    if (n == 0) return;
    if (type == NBL_GGML_F32 || type == NBL_GGML_F16 || type == NBL_GGML_BF16) {
        nbl_dtype from = type == NBL_GGML_F32   ? NBL_DTYPE_F32
                         : type == NBL_GGML_F16 ? NBL_DTYPE_F16
                                                : NBL_DTYPE_BF16;
        dequantize_dense(isa, from, data, n, dtype, out);
        return;
    }
    nbl__ggml_layout layout = {NULL, 1, 1};
    (void)nbl__ggml_layout_of(type, &layout);
    float values[MAX];
    uint8_t *to = out;
    for (int64_t at = 0; at < n; at += MAX) { /* 256 values: one block of 256 or eight of 32 */
        int64_t count = nbl__min_i64(MAX, n - at);
        for (int64_t i = 0; i < count; i += layout.values, data += layout.bytes)
            dequantize_block(isa, type, data, layout.values, values + i);
        nbl__from_f32(isa, values, dtype, to, count);
        to += (size_t)count * nbl__size_of(dtype);
    }
}
