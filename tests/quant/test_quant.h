/* test_quant.h - what the tests of src/quant share: random numbers, golden records, comparisons that say
 * where, and slow references written from the definitions. */
#ifndef TEST_QUANT_H
#define TEST_QUANT_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/philox.h"
#include "quant/quant.h"

#define UNUSED __attribute__((unused))
#define COUNT(array) ((int64_t)(sizeof(array) / sizeof *(array)))

static const int64_t blocks[] = {32, 64, 128, 256, 512, 1024, 2048, 4096};
static const nbl_dtype dtypes[] = {NBL_DTYPE_F32, NBL_DTYPE_F16, NBL_DTYPE_BF16};

/* ---- random numbers: the n-th word of a stream is a function of (seed, n) ---- */

UNUSED static uint32_t random_word(uint32_t seed, int64_t n)
{
    uint32_t words[4];
    nbl__philox((uint32_t[4]){(uint32_t)(n >> 2), (uint32_t)(n >> 34), 0, 0}, (uint32_t[2]){seed, 77}, words);
    return words[n & 3];
}
UNUSED static float random_normal(uint32_t seed, int64_t n) /* roughly */
{
    float sum = -6;
    for (int i = 0; i < 12; i++) sum += nbl__uniform(random_word(seed, 12 * n + i));
    return sum;
}
UNUSED static void fill_random(uint32_t seed, void *memory, int64_t bytes)
{
    uint8_t *to = memory;
    for (int64_t i = 0; i < bytes; i++) to[i] = (uint8_t)(random_word(seed, i / 4) >> 8 * (i % 4));
}

/* ---- levels: every instruction set that the machine has ---- */

UNUSED static nbl_isa levels(void)
{
    return nbl__isa_detect();
}
#define FOR_EACH_ISA(isa) for (nbl_isa isa = NBL_ISA_SCALAR; isa <= levels(); isa++)

/* ---- memory whose end is guarded: a write past it is found when it is freed ---- */

enum { GUARD = 192 };

UNUSED static void *guarded_alloc(int64_t bytes, int64_t misalign)
{
    uint8_t *memory = NULL;
    assert_int_equal(posix_memalign((void **)&memory, 64, (size_t)(bytes + 2 * GUARD + 64)), 0);
    memset(memory, 0xa5, (size_t)(bytes + 2 * GUARD + 64));
    return memory + GUARD + misalign;
}
UNUSED static void guarded_free(void *pointer, int64_t bytes, int64_t misalign)
{
    uint8_t *memory = (uint8_t *)pointer - GUARD - misalign;
    for (int64_t i = 0; i < GUARD + misalign; i++)
        if (memory[i] != 0xa5) fail_msg("a write %d bytes before the array", (int)(GUARD + misalign - i));
    for (int64_t i = GUARD + misalign + bytes; i < bytes + 2 * GUARD + 64; i++)
        if (memory[i] != 0xa5)
            fail_msg("a write %d bytes past the array", (int)(i - GUARD - misalign - bytes));
    free(memory);
}

/* ---- comparisons ---- */

UNUSED static void assert_same_bytes(const void *got, const void *want, int64_t bytes, const char *format,
                                     ...) __attribute__((format(printf, 4, 5)));
UNUSED static void assert_same_bytes(const void *got, const void *want, int64_t bytes, const char *format,
                                     ...)
{
    if (memcmp(got, want, (size_t)bytes) == 0) return;
    int64_t i = 0;
    while (((const uint8_t *)got)[i] == ((const uint8_t *)want)[i]) i++;
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    fail_msg("%s: byte %lld of %lld is %02x, expected %02x", what, (long long)i, (long long)bytes,
             ((const uint8_t *)got)[i], ((const uint8_t *)want)[i]);
}

UNUSED static uint32_t crc32_of(const void *data, int64_t bytes)
{
    const uint8_t *from = data;
    uint32_t crc = 0xffffffff;
    for (int64_t i = 0; i < bytes; i++) {
        crc ^= from[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
}

/* NaN, and on demand -0, become one pattern: as the maker of the golden file does. */
UNUSED static void make_canonical(nbl_dtype dtype, void *values, int64_t n, bool signed_zero)
{
    for (int64_t i = 0; i < n; i++) {
        if (dtype == NBL_DTYPE_F32) {
            uint32_t *v = (uint32_t *)values + i;
            if ((*v & 0x7fffffff) > 0x7f800000) *v = 0x7fc00000;
            if (!signed_zero && *v == 0x80000000) *v = 0;
        } else {
            uint16_t *v = (uint16_t *)values + i, infinity = dtype == NBL_DTYPE_F16 ? 0x7c00 : 0x7f80;
            if ((*v & 0x7fff) > infinity) *v = dtype == NBL_DTYPE_F16 ? 0x7e00 : 0x7fc0;
            if (!signed_zero && *v == 0x8000) *v = 0;
        }
    }
}

/* ---- golden records (tests/oracle/make_quant_golden.py) ---- */

typedef struct golden_file {
    uint8_t *data;
    int64_t size;
} golden_file;

UNUSED static golden_file golden_open(void)
{
    golden_file golden = {NULL, 0};
    FILE *file = fopen(TEST_DATA_DIR "/quant/golden.bin", "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    golden.size = ftell(file);
    rewind(file);
    golden.data = malloc((size_t)golden.size);
    assert_int_equal(fread(golden.data, 1, (size_t)golden.size, file), golden.size);
    fclose(file);
    return golden;
}

/* A copy that the caller frees; NULL when there is no such record and `size` is NULL. */
__attribute__((format(printf, 3, 4))) UNUSED static void *golden_get(const golden_file *golden, int64_t *size,
                                                                     const char *format, ...)
{
    char name[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    for (int64_t at = 0; at < golden->size;) {
        uint32_t name_length, length;
        memcpy(&name_length, golden->data + at, 4);
        const char *record = (const char *)golden->data + at + 4;
        memcpy(&length, record + name_length, 4);
        if (name_length == strlen(name) && memcmp(record, name, name_length) == 0) {
            void *copy = malloc(length ? length : 1);
            memcpy(copy, record + name_length + 4, length);
            if (size) *size = length;
            return copy;
        }
        at += 8 + (int64_t)name_length + length;
    }
    if (size) fail_msg("no golden record %s", name);
    return NULL;
}

/* Compares values, after make_canonical, with a CRC of the golden file. `values` changes. */
UNUSED static void assert_golden_crc(const golden_file *golden, nbl_dtype dtype, void *values, int64_t n,
                                     bool signed_zero, const char *name)
{
    int64_t size;
    uint32_t *want = golden_get(golden, &size, "%s", name);
    make_canonical(dtype, values, n, signed_zero);
    uint32_t got = crc32_of(values, n * (int64_t)nbl__size_of(dtype));
    if (got != *want) fail_msg("%s: CRC of the values is %08x, expected %08x", name, got, *want);
    free(want);
}

/* ---- references from the definitions ---- */

/* RN_T(value) in f64 arithmetic, rounding to a multiple of the target's unit in the last place. */
UNUSED static double round_to(nbl_dtype dtype, double value)
{
    int bits = dtype == NBL_DTYPE_F16 ? 11 : 8, lowest = dtype == NBL_DTYPE_F16 ? -14 : -126, exponent;
    if (value == 0 || !isfinite(value)) return value;
    frexp(value, &exponent);
    exponent = exponent - 1 < lowest ? lowest : exponent - 1;
    double unit = ldexp(1, exponent - bits + 1), rounded = nearbyint(value / unit) * unit;
    double largest = dtype == NBL_DTYPE_F16 ? 65504 : 0x1.fep127;
    return fabs(rounded) > largest ? copysign(INFINITY, value) : copysign(rounded, value);
}

/* A value of a compute dtype. */
UNUSED static float value_at(nbl_dtype dtype, const void *values, int64_t i)
{
    uint16_t half;
    float single;
    if (dtype == NBL_DTYPE_F32) {
        memcpy(&single, (const uint8_t *)values + 4 * i, 4);
        return single;
    }
    memcpy(&half, (const uint8_t *)values + 2 * i, 2);
    return dtype == NBL_DTYPE_F16 ? nbl__f16_to_f32(half) : nbl__bf16_to_f32(half);
}
UNUSED static void set_value(nbl_dtype dtype, void *values, int64_t i, float value)
{
    uint16_t half = dtype == NBL_DTYPE_F16 ? nbl__f32_to_f16(value) : nbl__f32_to_bf16(value);
    if (dtype == NBL_DTYPE_F32) memcpy((uint8_t *)values + 4 * i, &value, 4);
    else memcpy((uint8_t *)values + 2 * i, &half, 2);
}

/* Element i of a weight in f32, one element at a time. */
UNUSED static float dequantize_one(const nbl_weight *w, int64_t i)
{
    static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const uint8_t *data = w->data;
    int64_t b = w->block ? i / w->block : 0;
    switch (w->format) {
    case NBL_FORMAT_DENSE: return value_at(w->dtype, data, i);
    case NBL_FORMAT_INT8: {
        volatile float product = (float)(int8_t)data[i] * w->scales[i / w->shape[w->rank - 1]];
        return product * nbl__from_bits(0x3c010204);
    }
    case NBL_FORMAT_MXFP4: {
        unsigned code = data[i / 2] >> (i % 2 ? 4 : 0) & 15;
        float magnitude = ldexpf(e2m1[code & 7], w->scale_codes[b] - 127);
        return code & 8 ? -magnitude : magnitude;
    }
    default: break;
    }
    const float *table = w->format == NBL_FORMAT_NF4 ? nbl__nf4_table : nbl__fp4_table;
    float scale;
    if (w->nested_scales) {
        volatile float product = w->nested_table[w->scale_codes[b]] * w->nested_scales[b / w->nested_block];
        scale = product + w->nested_offset;
    } else {
        scale = w->scales[b];
    }
    return table[data[i / 2] >> (i % 2 ? 0 : 4) & 15] * scale;
}

/* A random weight of a format; all parts are one allocation that `memory` gets. Scales cover `spread`
 * powers of ten. */
UNUSED static nbl_weight random_weight(uint32_t seed, nbl_format format, int64_t rows, int64_t columns,
                                       int64_t block, bool nested, float spread, void **memory)
{
    int64_t n = rows * columns, count = format == NBL_FORMAT_INT8 ? rows : nbl__ceil_div(n, block);
    int64_t nested_count = nbl__ceil_div(count, 256);
    uint8_t *part = *memory = calloc(1, (size_t)(n + 8 + 4 * count + count + 8 + 4 * nested_count));
    nbl_weight w = {
        .format = format, .dtype = NBL_DTYPE_BF16, .rank = 2, .shape = {rows, columns}, .block = block};
    float *scales = (float *)(void *)part, *nested_scales = scales + count;
    uint8_t *scale_codes = (uint8_t *)(nested_scales + nested_count), *data = scale_codes + count + 1;
    for (int64_t i = 0; i < count; i++)
        scales[i] = powf(10, spread * (nbl__uniform(random_word(seed + 1, i)) - 0.5f)) * 0.02f;
    for (int64_t i = 0; i < nested_count; i++)
        nested_scales[i] = 0.01f * nbl__uniform(random_word(seed + 2, i));
    fill_random(seed + 3, scale_codes, count);
    fill_random(seed + 4, data, format == NBL_FORMAT_INT8 ? n : nbl__ceil_div(n, 2));
    if (format == NBL_FORMAT_MXFP4)
        for (int64_t i = 0; i < count; i++) scale_codes[i] = (uint8_t)(scale_codes[i] % 20 + 110);
    w.data = data; /* at an odd address more often than not */
    if (format == NBL_FORMAT_MXFP4) {
        w.scale_codes = scale_codes;
    } else if (nested) {
        w.scale_codes = scale_codes;
        w.nested_scales = nested_scales;
        w.nested_table = nbl__dynamic_map_signed;
        w.nested_block = 256;
        w.nested_offset = 0.02f;
    } else {
        w.scales = scales;
    }
    return w;
}

#endif
