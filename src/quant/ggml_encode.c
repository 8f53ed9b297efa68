/* ggml_encode.c - encodes values into the blocks of GGUF files. See ggml.h.
 *
 * The bits are those of upstream's reference (Python's gguf.quants, ggml-quants.c): each product
 * and sum is rounded to f32; the scale is rounded to f16 after the codes were computed with the
 * unrounded one.
 *
 *     q8_0   d = max |x| / 127       code = x / d, halves away from zero      f16 d | 32 codes
 *     q4_0   d = x of max |x| / -8   code = floor(x / d + 8.5), max 15        f16 d | 16 bytes
 */
#include <math.h>

#include "quant/ggml.h"

enum { BLOCK = 32 };

/* 1 / d; 0 if d is 0 or so small that 1 / d is infinite: all codes become those of zero. */
static float inverse(float d)
{
    float id = d != 0 ? 1 / d : 0;
    return isfinite(id) ? id : 0;
}

/* Appends an f16, which need not be aligned. */
static void put_half(float value, uint8_t *to)
{
    uint16_t half = nbl__f32_to_f16(value);
    memcpy(to, &half, 2);
}

/* Rounding to f16 comes last: upstream computes the codes with the unrounded d. */
static void encode_q8_0(const float *x, uint8_t *to)
{
    float max = 0;
    for (int i = 0; i < BLOCK; i++) max = fmaxf(max, fabsf(x[i]));
    float d = max / 127, id = inverse(d);
    put_half(d, to);
    for (int i = 0; i < BLOCK; i++) {
        int8_t code = (int8_t)roundf(x[i] * id);
        memcpy(to + 2 + i, &code, 1);
    }
}

static unsigned code_q4_0(float x, float id)
{
    float scaled = x * id;
    float code = scaled + 8.5f;
    return code < 15 ? (unsigned)code : 15;
}

/* The value of largest magnitude gets code 0, which stands for -8 · d: so d has the opposite sign,
 * and that value is exact. */
static void encode_q4_0(const float *x, uint8_t *to)
{
    float max = 0, value = 0;
    for (int i = 0; i < BLOCK; i++)
        if (fabsf(x[i]) > max) max = fabsf(x[i]), value = x[i];
    float d = value / -8, id = inverse(d);
    put_half(d, to);
    for (int i = 0; i < BLOCK / 2; i++)
        to[2 + i] = (uint8_t)(code_q4_0(x[i], id) | code_q4_0(x[BLOCK / 2 + i], id) << 4);
}

/* A row is whole blocks: the callers have checked it (nbl__gguf_declare). */
void nbl__ggml_encode(nbl_isa isa, nbl__ggml_type type, const float *values, int64_t n, uint8_t *out)
{
    switch (type) {
    case NBL_GGML_F16: nbl__from_f32(isa, values, NBL_DTYPE_F16, out, n); return;
    case NBL_GGML_BF16: nbl__from_f32(isa, values, NBL_DTYPE_BF16, out, n); return;
    case NBL_GGML_Q8_0:
        for (int64_t i = 0; i < n; i += BLOCK, out += 34) encode_q8_0(values + i, out);
        return;
    case NBL_GGML_Q4_0:
        for (int64_t i = 0; i < n; i += BLOCK, out += 18) encode_q4_0(values + i, out);
        return;
    default: memcpy(out, values, (size_t)n * sizeof(float)); return;
    }
}
