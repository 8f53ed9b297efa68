/* bnb_library.c - what the kernels of bnb.h share, and their registration. */
#include "bnb.h"

#include <math.h>
#include <string.h>

/* 2.10 and later */
__attribute__((weak)) torch_error torch_parallel_for(int64_t begin, int64_t end, int64_t grain, bnb_span span,
                                                     void *argument);
torch_error aoti_torch_library_init_fragment(const char *name_space, const char *file, uint32_t line,
                                             torch_library *library);

void bnb_parallel(int64_t n, int64_t grain, bnb_span span, void *argument)
{
    if (grain < 1) grain = 1;
    if (n <= grain || torch_parallel_for == NULL || torch_parallel_for(0, n, grain, span, argument))
        span(0, n, argument);
}

bool bnb_has_avx2(torch_call *c)
{
#if defined(__x86_64__)
    nbl_context *ctx = call_context(c);
    return ctx && strcmp(nbl_isa_name(ctx), "scalar") != 0;
#else
    (void)c;
    return false;
#endif
}

/* ---- dtypes ---- */

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    if (exponent == 31) return from_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent > 0) return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float value = (float)mantissa * 0x1p-24f;
    return sign ? -value : value;
}

static uint16_t to_f16(float value)
{
    uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and more */
    if (magnitude < 0x38800000)                                    /* a subnormal: the unit is 2^-24 */
        return (uint16_t)(sign | (uint32_t)lrintf(from_bits(magnitude) * 0x1p24f));
    uint32_t rounded = magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | rounded >> 13);
}

static uint16_t to_bf16(float value)
{
    uint32_t bits = to_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#if defined(__x86_64__)

BNB_AVX2 static int64_t widen_avx2(bool is_f16, const uint16_t *from, int64_t n, float *to)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i eight = _mm_loadu_si128((const __m128i *)(const void *)(from + i));
        __m256 wide = is_f16 ? _mm256_cvtph_ps(eight)
                             : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
        _mm256_storeu_ps(to + i, wide);
    }
    return i;
}

BNB_AVX2 static int64_t narrow_avx2(bool is_f16, const float *from, int64_t n, uint16_t *to)
{
    const __m256i half = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_loadu_ps(from + i);
        __m128i eight;
        if (is_f16) eight = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
        else {
            __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
            __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, half), odd);
            __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
            __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
            bits = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan));
            bits = _mm256_srli_epi32(bits, 16);
            bits = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0xd8);
            eight = _mm256_castsi256_si128(bits);
        }
        _mm_storeu_si128((__m128i *)(void *)(to + i), eight);
    }
    return i;
}

/* max_ps returns its second operand if one is NaN. */
BNB_AVX2 static int64_t measure_avx2(const float *x, int64_t n, bnb_magnitude *m)
{
    __m256 max[4], nan = _mm256_setzero_ps();
    for (int k = 0; k < 4; k++) max[k] = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int k = 0; k < 4; k++) {
            __m256 v = _mm256_loadu_ps(x + i + 8 * k);
            nan = _mm256_or_ps(nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
            max[k] = _mm256_max_ps(bnb_abs_avx2(v), max[k]);
        }
    float lanes[8];
    _mm256_storeu_ps(lanes, _mm256_max_ps(_mm256_max_ps(max[0], max[1]), _mm256_max_ps(max[2], max[3])));
    for (int k = 0; k < 8; k++)
        if (lanes[k] > m->max) m->max = lanes[k];
    m->has_nan |= _mm256_movemask_ps(nan) != 0;
    return i;
}

#endif

const float *bnb_widen(bool avx2, nbl_dtype dtype, const void *values, int64_t first, int64_t n, float *room)
{
    if (dtype == NBL_DTYPE_F32) return (const float *)values + first;
    const uint16_t *from = (const uint16_t *)values + first;
    bool is_f16 = dtype == NBL_DTYPE_F16;
    int64_t i = 0;
#if defined(__x86_64__)
    if (avx2) i = widen_avx2(is_f16, from, n, room);
#endif
    (void)avx2;
    for (; i < n; i++) room[i] = is_f16 ? from_f16(from[i]) : from_bits((uint32_t)from[i] << 16);
    return room;
}

void bnb_narrow(bool avx2, nbl_dtype dtype, const float *from, int64_t n, void *to, int64_t first)
{
    if (dtype == NBL_DTYPE_F32) {
        memmove((float *)to + first, from, (size_t)n * sizeof *from);
        return;
    }
    uint16_t *out = (uint16_t *)to + first;
    bool is_f16 = dtype == NBL_DTYPE_F16;
    int64_t i = 0;
#if defined(__x86_64__)
    if (avx2) i = narrow_avx2(is_f16, from, n, out);
#endif
    (void)avx2;
    for (; i < n; i++) out[i] = is_f16 ? to_f16(from[i]) : to_bf16(from[i]);
}

void bnb_measure(bool avx2, const float *values, int64_t n, bnb_magnitude *m)
{
    int64_t i = 0;
#if defined(__x86_64__)
    if (avx2) i = measure_avx2(values, n, m);
#endif
    (void)avx2;
    for (; i < n; i++) {
        float magnitude = fabsf(values[i]);
        if (magnitude > m->max) m->max = magnitude;
        m->has_nan |= magnitude != magnitude;
    }
}

/* ---- registration ---- */

static const char *const schemas[] = {
    "bnb_quantize_4bit(Tensor values, Tensor bounds, Tensor order, int block) -> (Tensor data, Tensor "
    "absmax)",
    "bnb_quantize_8bit(Tensor values, Tensor table, int block) -> (Tensor codes, Tensor absmax)",
    "bnb_quantize_rows(Tensor values, float threshold) -> (Tensor codes, Tensor absmax, Tensor outliers)",
    "bnb_dequantize_product(Tensor sums, Tensor row_absmax, Tensor column_absmax, Tensor bias, "
    "ScalarType dtype) -> Tensor",
    "bnb_dequantize_4bit(Tensor data, Tensor absmax, Tensor(a!) out, int format, int block, bool fresh) -> "
    "()",
    "bnb_gemm_4bit(Tensor x, Tensor data, Tensor absmax, Tensor codes, Tensor table, Tensor offset, Tensor "
    "bias, "
    "int rows, int format, int block) -> Tensor",
};

static const struct {
    const char *name;
    torch_kernel kernel;
} kernels[] = {
#define KERNEL_ROW(name) {"bnb_" #name, op_bnb_##name},
    BNB_OPERATORS(KERNEL_ROW)
#undef KERNEL_ROW
};

/* A second copy of this file in the process finds the operators defined. It leaves everything to the first. */
__attribute__((constructor)) static void register_operators(void)
{
    enum { COUNT = sizeof kernels / sizeof kernels[0], DEVICE_COUNT = 2 };
    torch_library def, cpu, cuda;
    if (aoti_torch_library_init_fragment("nibble", __FILE__, __LINE__, &def)) return;
    for (int i = 0; i < COUNT; i++)
        if (aoti_torch_library_def(def, schemas[i])) return;
    if (aoti_torch_library_init_impl("nibble", "CPU", __FILE__, __LINE__, &cpu)) return;
    for (int i = 0; i < COUNT; i++)
        if (aoti_torch_library_impl(cpu, kernels[i].name, kernels[i].kernel)) return;
    if (aoti_torch_library_init_impl("nibble", "CUDA", __FILE__, __LINE__, &cuda)) return;
    for (int i = COUNT - DEVICE_COUNT; i < COUNT; i++)
        if (aoti_torch_library_impl(cuda, kernels[i].name, kernels[i].kernel)) return;
}
