/* bnb_fourbit.c - NF4 and FP4 as bitsandbytes quantizes them on a CPU, in blocks of the flattened tensor.
 *
 *     full block    y = x * RN(1 / max(absmax, 1e-38)), absmax as it is
 *     short block   y = x / absmax, absmax at least 1e-38: the last one
 *     code          order[number of bounds below y]; NaN is above all bounds
 *
 * A NaN makes absmax NaN. If the number of values is odd, the last nibble is the code of 0. Two codes are in
 * a byte, the first in the high nibble. Cost: the values are read once. */
#include "bnb.h"

#include <math.h>
#include <string.h>

enum { BOUNDS = 15 };

typedef struct fourbit {
    nbl_dtype dtype;
    const void *values;
    int64_t n, block;
    float bounds[BOUNDS];
    uint8_t order[16];
    uint8_t *data;
    float *absmax;
    bool avx2;
} fourbit;

static uint8_t code_of(const fourbit *f, float y)
{
    int rank = 0;
    for (int i = 0; i < BOUNDS; i++) rank += !(y <= f->bounds[i]);
    return f->order[rank];
}

#if defined(__x86_64__)

/* The bounds as two tables of 7, and the one between them. */
typedef struct tables {
    __m256 low, high, middle;
} tables;

/* Eight ranks by a binary search: the half of the bounds, then 4, 2 and 1 of its 7. */
BNB_AVX2 static inline __m256i rank_avx2(const tables *t, __m256 y)
{
    __m256 upper = _mm256_cmp_ps(y, t->middle, _CMP_NLE_UQ);
    __m256i rank = _mm256_setzero_si256();
    for (int size = 4; size > 0; size /= 2) {
        __m256i index = _mm256_add_epi32(rank, _mm256_set1_epi32(size - 1));
        __m256 low = _mm256_permutevar8x32_ps(t->low, index), high = _mm256_permutevar8x32_ps(t->high, index);
        __m256 above = _mm256_cmp_ps(y, _mm256_blendv_ps(low, high, upper), _CMP_NLE_UQ);
        __m256i more = _mm256_and_si256(_mm256_castps_si256(above), _mm256_set1_epi32(size));
        rank = _mm256_add_epi32(rank, more);
    }
    return _mm256_add_epi32(rank, _mm256_and_si256(_mm256_castps_si256(upper), _mm256_set1_epi32(8)));
}

/* Encodes a multiple of 32 values. `factor` multiplies, or divides if `divide`. */
BNB_AVX2 static int64_t encode_avx2(const fourbit *f, const float *x, int64_t n, float factor, bool divide,
                                    uint8_t *data)
{
    float low[8] = {0}, high[8] = {0};
    memcpy(low, f->bounds, 7 * sizeof *low);
    memcpy(high, f->bounds + 8, 7 * sizeof *high);
    const tables t = {_mm256_loadu_ps(low), _mm256_loadu_ps(high), _mm256_set1_ps(f->bounds[7])};
    const __m256 by = _mm256_set1_ps(factor);
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_loadu_si128((const __m128i *)(const void *)f->order));
    const __m256i weights = _mm256_set1_epi16(0x0110); /* 16 for the first of two, 1 for the second */
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i lanes[4];
        for (int k = 0; k < 4; k++) {
            __m256 y = _mm256_loadu_ps(x + i + 8 * k);
            y = divide ? _mm256_div_ps(y, by) : _mm256_mul_ps(y, by);
            lanes[k] = rank_avx2(&t, y);
        }
        __m256i codes = _mm256_shuffle_epi8(order, bnb_bytes_avx2(lanes, true));
        __m256i pairs = _mm256_maddubs_epi16(codes, weights);
        pairs = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0xd8);
        _mm_storeu_si128((__m128i *)(void *)(data + i / 2), _mm256_castsi256_si128(pairs));
    }
    return i;
}

#endif

static void encode(const fourbit *f, const float *x, int64_t n, float factor, bool divide, uint8_t *data)
{
    int64_t i = 0;
#if defined(__x86_64__)
    if (f->avx2) i = encode_avx2(f, x, n, factor, divide, data);
#endif
    for (; i < n; i += 2) {
        float second = i + 1 < n ? x[i + 1] : 0;
        uint8_t high = code_of(f, divide ? x[i] / factor : x[i] * factor);
        uint8_t low = code_of(f, divide ? second / factor : second * factor);
        if (i + 1 == n) low = code_of(f, 0);
        data[i / 2] = (uint8_t)(high << 4 | low);
    }
}

static void encode_blocks(int64_t begin, int64_t end, void *argument)
{
    const fourbit *f = argument;
    float room[BNB_PIECE];
    for (int64_t b = begin; b < end; b++) {
        int64_t first = b * f->block, n = f->n - first < f->block ? f->n - first : f->block;
        const float *x = bnb_widen(f->avx2, f->dtype, f->values, first, n, room);
        bnb_magnitude m = {0};
        bnb_measure(f->avx2, x, n, &m);
        float absmax = m.has_nan ? NAN : m.max, raised = absmax < 1e-38f ? 1e-38f : absmax;
        bool divide = n < f->block;
        f->absmax[b] = divide ? raised : absmax;
        encode(f, x, n, divide ? raised : 1 / raised, divide, f->data + first / 2);
    }
}

void op_bnb_quantize_4bit(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    (void)inputs, (void)outputs;
    call_begin(&c, "bnb_quantize_4bit", stack);
    nbl_tensor values = call_tensor(&c, "values");
    nbl_tensor bounds = call_tensor(&c, "bounds");
    nbl_tensor order = call_tensor(&c, "order");
    int64_t block = call_int(&c);
    if (block < 32 || block > BNB_PIECE || (block & (block - 1)) != 0)
        call_fail(&c, "block is %lld, allowed are the powers of two from 32 to %d", (long long)block,
                  BNB_PIECE);
    if (values.data == NULL) call_fail(&c, "values have no elements");
    else if (values.dtype != NBL_DTYPE_F32 && values.dtype != NBL_DTYPE_F16 && values.dtype != NBL_DTYPE_BF16)
        call_fail(&c, "values are %s, not f32, f16 or bf16", nbl_dtype_name(values.dtype));
    if (bounds.data == NULL || bounds.dtype != NBL_DTYPE_F32 || call_elements(&bounds) != BOUNDS)
        call_fail(&c, "bounds are not 15 elements of f32");
    if (order.data == NULL || order.dtype != NBL_DTYPE_U8 || call_elements(&order) != 16)
        call_fail(&c, "order is not 16 elements of u8");
    fourbit f = {.dtype = values.dtype, .values = values.data, .block = block, .avx2 = bnb_has_avx2(&c)};
    if (!c.failed) {
        f.n = call_elements(&values);
        memcpy(f.bounds, bounds.data, sizeof f.bounds);
        memcpy(f.order, order.data, sizeof f.order);
    }
    int64_t blocks = c.failed ? 0 : (f.n - 1) / block + 1;
    nbl_tensor data = nbl_matrix(NBL_DTYPE_U8, (f.n + 1) / 2, 1, NULL);
    nbl_tensor absmax = nbl_vector(NBL_DTYPE_F32, blocks, NULL);
    call_output(&c, &data);
    call_output(&c, &absmax);
    f.data = data.data;
    f.absmax = absmax.data;
    if (!c.failed) bnb_parallel(blocks, 65536 / block, encode_blocks, &f);
    call_end(&c);
}
