/* dtype.h - element types, and conversions between f32, f16 and bf16.
 *
 *             sign  exponent  mantissa   largest     smallest normal
 *     f32      1       8         23      3.4e38      1.2e-38
 *     f16      1       5         10      65504       6.1e-5
 *     bf16     1       8          7      3.4e38      1.2e-38
 *
 * Conversions round to nearest, ties to even. A NaN stays a NaN with the same sign and the top bits
 * of its payload and becomes quiet, as F16C does. All instruction sets give the same bits.
 *
 * Compute dtypes are f32, f16 and bf16: the first three of nbl_dtype. */
#ifndef NBL_DTYPE_H
#define NBL_DTYPE_H

#include "base/base.h"

/* Bits of one element; below 8 for packed types. */
int nbl__dtype_bits(nbl_dtype dtype);
const char *nbl__dtype_file_name(nbl_dtype dtype); /* "BF16" */
bool nbl__dtype_from_file_name(const char *name, nbl_dtype *dtype);
/* "bfloat16"; "unknown" unless a compute dtype */
const char *nbl__dtype_torch_name(nbl_dtype dtype);
bool nbl__dtype_from_torch_name(const char *name, nbl_dtype *dtype); /* with or without "torch." */

static inline bool nbl__is_compute(nbl_dtype dtype)
{
    return dtype == NBL_DTYPE_F32 || dtype == NBL_DTYPE_F16 || dtype == NBL_DTYPE_BF16;
}
/* Bytes of one element of a compute dtype. */
static inline size_t nbl__size_of(nbl_dtype dtype)
{
    return dtype == NBL_DTYPE_F32 ? 4 : 2;
}

/* The dtype of an option, already checked; `fallback` for NBL_COMPUTE_DEFAULT. */
nbl_dtype nbl__dtype_chosen(nbl_compute_dtype chosen, nbl_dtype fallback);
/* The option for a compute dtype. */
nbl_compute_dtype nbl__dtype_choice(nbl_dtype dtype);
bool nbl__compute_dtype_valid(nbl_compute_dtype dtype);

/* Bytes of n elements. False if that is not a whole number of bytes or overflows. */
bool nbl__dtype_bytes(nbl_dtype dtype, uint64_t n, uint64_t *bytes);

/* ---- scalar conversions: the reference ---- */

/* The bits of an f32, and back. memcpy is C's way to do this; it costs nothing. */
static inline uint32_t nbl__bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
static inline float nbl__from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
/* bf16 is the upper half of an f32. A signalling NaN becomes quiet. */
static inline float nbl__bf16_to_f32(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    if ((bits & 0x7fffffff) > 0x7f800000) bits |= 0x00400000;
    return nbl__from_bits(bits);
}
/* Adds half of the last bit that is kept, and one less if that bit is 0 (ties to even). A NaN is
 * cut instead, because the addition could carry it into a number. */
static inline uint16_t nbl__f32_to_bf16(float value)
{
    uint32_t bits = nbl__bits_of(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x0040);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float nbl__f16_to_f32(uint16_t h);
uint16_t nbl__f32_to_f16(float value);

/* ---- arrays of n elements; `from` and `to` need no alignment; a compute dtype on the other
 * side ---- */

void nbl__to_f32(nbl_isa isa, nbl_dtype from_dtype, const void *from, float *to, int64_t n);
void nbl__from_f32(nbl_isa isa, const float *from, nbl_dtype to_dtype, void *to, int64_t n);

#endif
