/* ptx_math.h - arithmetic of single lanes. Internal to tests/ptx.
 *
 * Written without branches where many lanes are computed at once, so that the compiler makes vectors of them. */
#ifndef NIBBLE_PTX_MATH_H
#define NIBBLE_PTX_MATH_H

#include <fenv.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t ptx_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float ptx_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- 16-bit floats ---- */

static inline float ptx_from_half(uint32_t half)
{
    uint32_t bits = (half & 0x7fff) << 13, exponent = bits & 0x0f800000, sign = (half & 0x8000) << 16;
    float small = ptx_float(bits + (113u << 23)) - ptx_float(113u << 23);
    bits = exponent == 0x0f800000 ? (bits & 0x007fffff ? 0x7fffffff : 0x7f800000) : bits + (112u << 23);
    return ptx_float((exponent ? bits : ptx_bits(small)) | (bits == 0x7fffffff ? 0 : sign));
}

/* To the nearest, ties to even. A NaN is 0x7fff, as on a device. */
static inline uint32_t ptx_to_half(float value)
{
    uint32_t bits = ptx_bits(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    uint32_t small = ptx_bits(ptx_float(size) + 0.5f) - (126u << 23);
    uint32_t result = size < 0x38800000 ? small : (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
    if (size >= 0x47800000) result = 0x7c00;
    return size > 0x7f800000 ? 0x7fff : sign | result;
}

static inline uint32_t ptx_to_bfloat(float value)
{
    uint32_t bits = ptx_bits(value);
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* ---- floats ---- */

static inline float ptx_flush(float value)
{
    uint32_t bits = ptx_bits(value);
    return ptx_float((bits & 0x7f800000) == 0 ? bits & 0x80000000u : bits);
}

/* The operand that is a number; of two zeros the one with the right sign. For float and double. */
#define ptx_min(a, b)                                                                                        \
    ((a) < (b) ? (a) : (a) > (b) ? (b) : (a) != (a) ? (b) : (b) != (b) ? (a) : signbit(a) ? (a) : (b))
#define ptx_max(a, b)                                                                                        \
    ((a) > (b) ? (a) : (a) < (b) ? (b) : (a) != (a) ? (b) : (b) != (b) ? (a) : signbit(a) ? (b) : (a))

/* 2^a: a whole power, and a series for the rest in f64, whose error is far below half a unit of f32. */
static inline float ptx_exp2(float a)
{
    static const double factors[] = {1.0,
                                     0.6931471805599453,
                                     0.2402265069591007,
                                     0.05550410866482158,
                                     0.009618129107628477,
                                     0.0013333558146428443,
                                     0.0001540353039338161,
                                     1.5252733804059841e-05,
                                     1.3215486790144307e-06,
                                     1.0178086009239699e-07,
                                     7.054911620801121e-09,
                                     4.4455382718708114e-10};
    float clamped = a > 200 ? 200 : a < -200 ? -200 : a == a ? a : 0;
    float whole = rintf(clamped);
    double rest = (double)clamped - (double)whole, sum = factors[11], power;
    for (int i = 10; i >= 0; i--) sum = sum * rest + factors[i];
    uint64_t bits = (uint64_t)(1023 + (int64_t)(int32_t)whole) << 52;
    memcpy(&power, &bits, sizeof power);
    return a == a ? (float)(sum * power) : a;
}

/* PTX: beyond 2^126 the divisor's reciprocal is zero. */
static inline float ptx_divide(float a, float b)
{
    float size = fabsf(b);
    return size > 0x1p126f && size <= 3.402823466e38f ? a * ptx_float(ptx_bits(b) & 0x80000000u) : a / b;
}

static inline float ptx_fma_down(float a, float b, float c)
{
    volatile float x = a, y = b, z = c, result;
    int before = fegetround();
    fesetround(FE_DOWNWARD);
    result = fmaf(x, y, z);
    fesetround(before);
    return result;
}

static inline double ptx_upper_half(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits &= 0xffffffff00000000u;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

/* Out of range: the nearest that there is. NaN: 0, but INT64_MIN. */
static inline int32_t ptx_to_s32(double value)
{
    return value != value ? 0 : value >= 0x1p31 ? INT32_MAX : value < -0x1p31 ? INT32_MIN : (int32_t)value;
}

static inline uint32_t ptx_to_u32(double value)
{
    return !(value > 0) ? 0 : value >= 0x1p32 ? UINT32_MAX : (uint32_t)value;
}

static inline int64_t ptx_to_s64(double value)
{
    return value != value || value < -0x1p63 ? INT64_MIN : value >= 0x1p63 ? INT64_MAX : (int64_t)value;
}

/* ---- bits ---- */

static inline uint64_t ptx_funnel(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

static inline uint32_t ptx_reverse(uint32_t value)
{
    uint32_t result = 0;
    for (int i = 0; i < 32; i++) result |= (value >> i & 1) << (31 - i);
    return result;
}

static inline uint32_t ptx_permute(uint32_t a, uint32_t b, uint32_t selector)
{
    uint64_t all = ptx_funnel(a, b);
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t choice = selector >> 4 * i & 15, byte = (uint32_t)(all >> 8 * (choice & 7)) & 255;
        if (choice & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << 8 * i;
    }
    return result;
}

static inline uint64_t ptx_extract64(uint64_t a, uint32_t at, uint32_t bits)
{
    at &= 255, bits &= 255;
    uint64_t value = at > 63 ? 0 : a >> at;
    return bits > 63 ? value : value & (((uint64_t)1 << bits) - 1);
}

static inline uint32_t ptx_extract(uint32_t a, uint32_t at, uint32_t bits)
{
    return (uint32_t)ptx_extract64(a, at, bits);
}

static inline uint32_t ptx_extract_signed(uint32_t a, uint32_t at, uint32_t bits)
{
    at &= 255, bits &= 255;
    if (bits == 0) return 0;
    int64_t wide = (int64_t)(int32_t)a;
    wide >>= at > 63 ? 63 : at;
    return (uint32_t)(bits > 31 ? wide : (int64_t)((uint64_t)wide << (64 - bits)) >> (64 - bits));
}

/* Bits [at, at + bits) of b become the low ones of a. */
static inline uint64_t ptx_insert(uint64_t a, uint64_t b, uint32_t at, uint32_t bits, uint32_t width)
{
    at &= 255, bits &= 255;
    if (at >= width) return b;
    if (bits > width - at) bits = width - at;
    uint64_t mask = (bits > 63 ? ~(uint64_t)0 : ((uint64_t)1 << bits) - 1) << at;
    return (b & ~mask) | (a << at & mask);
}

static inline uint32_t ptx_logic3(uint32_t a, uint32_t b, uint32_t c, uint32_t table)
{
    uint32_t result = 0;
    for (uint32_t i = 0; i < 8; i++)
        if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return result;
}

static inline uint32_t ptx_dot4(uint32_t a, uint32_t b, uint32_t c, bool a_signed, bool b_signed)
{
    for (int i = 0; i < 4; i++) {
        int32_t x = (int32_t)(a >> 8 * i & 255), y = (int32_t)(b >> 8 * i & 255);
        if (a_signed) x = (int8_t)x;
        if (b_signed) y = (int8_t)y;
        c += (uint32_t)(x * y);
    }
    return c;
}

#endif
