/* bnb_rows.c - LLM.int8() as bitsandbytes computes it on a CPU: the rows of activations to codes of 8 bits,
 * and the product of codes to numbers.
 *
 *     quantize    absmax = max |x| of the row's values below the threshold
 *                 code = RN(x * (RN(1 / absmax) * 127)); 0 in columns that have a value from the threshold on
 *     dequantize  y = RN_T(sum * (row absmax * column absmax) * 6.200124e-05 + bias), each step rounded to f32
 *
 * The constant is that of bitsandbytes' Python code; 1 / 127^2 is 6.200012e-05. A row with NaN, and one of
 * zeros, has codes 0. */
#include "bnb.h"

#include <math.h>
#include <string.h>

/* ---- rows to codes ---- */

typedef struct rows_call {
    nbl_dtype dtype;
    const void *values;
    int64_t rows, columns;
    float threshold; /* infinite: none */
    int8_t *codes;
    float *absmax;
    uint8_t *outlier;  /* of each column: has it outliers? Only with a threshold */
    int64_t *outliers; /* those columns */
    int64_t outlier_count;
    bool avx2;
} rows_call;

/* A column is marked by several threads, with one value. */
static void mark(uint8_t *outlier)
{
    __atomic_store_n(outlier, 1, __ATOMIC_RELAXED);
}

/* Copies n values with outliers as 0, and marks their columns. Returns whether there were some. */
static bool drop_outliers(const rows_call *r, const float *x, int64_t column, int64_t n, float *kept)
{
    bool found = false;
    for (int64_t i = 0; i < n; i++) {
        bool is_outlier = fabsf(x[i]) >= r->threshold;
        kept[i] = is_outlier ? 0 : x[i];
        if (is_outlier) mark(&r->outlier[column + i]);
        found |= is_outlier;
    }
    return found;
}

static int8_t code_of(float y)
{
    return isnan(y) ? 0 : (int8_t)lrintf(y);
}

#if defined(__x86_64__)
/* A conversion of NaN gives -2^31. Its low byte is 0. */
BNB_AVX2 static int64_t encode_avx2(const float *x, int64_t n, float factor, int8_t *codes)
{
    const __m256i byte = _mm256_set1_epi32(255);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i lanes[4];
        for (int k = 0; k < 4; k++) {
            __m256 y = _mm256_mul_ps(_mm256_loadu_ps(x + i + 8 * k), _mm256_set1_ps(factor));
            lanes[k] = _mm256_and_si256(_mm256_cvtps_epi32(y), byte);
        }
        _mm256_storeu_si256((__m256i *)(void *)(codes + i), bnb_bytes_avx2(lanes, false));
    }
    return i;
}
#endif

/* Values [column, column + n) of a row without its outliers. */
static const float *kept_values(const rows_call *r, int64_t row, int64_t column, int64_t n, float *room,
                                float *without)
{
    const float *x = bnb_widen(r->avx2, r->dtype, r->values, row * r->columns + column, n, room);
    if (r->outlier == NULL) return x;
    bnb_magnitude m = {0};
    bnb_measure(r->avx2, x, n, &m);
    if (m.max < r->threshold) return x;
    return drop_outliers(r, x, column, n, without) ? without : x;
}

static void encode_rows(int64_t begin, int64_t end, void *argument)
{
    const rows_call *r = argument;
    float room[BNB_PIECE], without[BNB_PIECE];
    for (int64_t row = begin; row < end; row++) {
        bnb_magnitude m = {0};
        int64_t n;
        const float *x = NULL;
        for (int64_t i = 0; i < r->columns; i += n) {
            n = r->columns - i < BNB_PIECE ? r->columns - i : BNB_PIECE;
            x = kept_values(r, row, i, n, room, without);
            bnb_measure(r->avx2, x, n, &m);
        }
        r->absmax[row] = m.has_nan ? NAN : m.max;
        float factor = 1 / r->absmax[row] * 127;
        for (int64_t i = 0; i < r->columns; i += n) {
            n = r->columns - i < BNB_PIECE ? r->columns - i : BNB_PIECE;
            if (n < r->columns) x = kept_values(r, row, i, n, room, without); /* else they are there still */
            int8_t *codes = r->codes + row * r->columns + i;
            int64_t done = 0;
#if defined(__x86_64__)
            if (r->avx2) done = encode_avx2(x, n, factor, codes);
#endif
            for (; done < n; done++) codes[done] = code_of(x[done] * factor);
        }
    }
}

static void clear_columns(int64_t begin, int64_t end, void *argument)
{
    const rows_call *r = argument;
    for (int64_t row = begin; row < end; row++)
        for (int64_t i = 0; i < r->outlier_count; i++) r->codes[row * r->columns + r->outliers[i]] = 0;
}

void op_bnb_quantize_rows(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    (void)inputs, (void)outputs;
    call_begin(&c, "bnb_quantize_rows", stack);
    nbl_tensor values = call_tensor(&c, "values");
    double threshold = call_float(&c);
    if (values.data == NULL || values.rank != 2) call_fail(&c, "values are not a matrix with elements");
    else if (values.dtype != NBL_DTYPE_F32 && values.dtype != NBL_DTYPE_F16 && values.dtype != NBL_DTYPE_BF16)
        call_fail(&c, "values are %s, not f32, f16 or bf16", nbl_dtype_name(values.dtype));
    bool split = threshold > 0;
    rows_call r = {.dtype = values.dtype,
                   .values = values.data,
                   .rows = values.shape[0],
                   .columns = values.shape[1],
                   .threshold = split ? (float)threshold : INFINITY,
                   .avx2 = bnb_has_avx2(&c)};
    nbl_tensor codes = call_shape_of(&values, NBL_DTYPE_I8), absmax = nbl_vector(NBL_DTYPE_F32, r.rows, NULL);
    call_output(&c, &codes);
    call_output(&c, &absmax);
    r.codes = codes.data;
    r.absmax = absmax.data;
    r.outlier = split && !c.failed ? call_scratch(&c, (size_t)r.columns) : NULL;
    int64_t count = 0;
    if (!c.failed) {
        if (split) memset(r.outlier, 0, (size_t)r.columns);
        bnb_parallel(r.rows, r.columns < 65536 ? 65536 / r.columns : 1, encode_rows, &r);
        for (int64_t k = 0; split && k < r.columns; k++) count += r.outlier[k];
    }
    nbl_tensor outliers = nbl_vector(NBL_DTYPE_I64, count, NULL);
    call_output(&c, &outliers);
    if (!c.failed && count > 0) {
        r.outliers = outliers.data;
        for (int64_t k = 0; k < r.columns; k++)
            if (r.outlier[k]) r.outliers[r.outlier_count++] = k;
        bnb_parallel(r.rows, count < 65536 ? 65536 / count : 1, clear_columns, &r);
    }
    call_end(&c);
}

/* ---- products to numbers ---- */

typedef struct product_call {
    nbl_dtype dtype;
    const int32_t *sums;
    int64_t columns;
    const float *row_absmax, *column_absmax;
    nbl_tensor bias;
    void *to;
    bool avx2;
} product_call;

static const float CONSTANT = 6.200124e-05f;

#if defined(__x86_64__)
BNB_AVX2 static int64_t scale_avx2(const int32_t *sums, int64_t n, float row, const float *column,
                                   const float *bias, float *to)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 sum = _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(const void *)(sums + i)));
        __m256 y = _mm256_mul_ps(sum, _mm256_mul_ps(_mm256_set1_ps(row), _mm256_loadu_ps(column + i)));
        y = _mm256_mul_ps(y, _mm256_set1_ps(CONSTANT));
        if (bias) y = _mm256_add_ps(y, _mm256_loadu_ps(bias + i));
        _mm256_storeu_ps(to + i, y);
    }
    return i;
}
#endif

static void scale_rows(int64_t begin, int64_t end, void *argument)
{
    const product_call *p = argument;
    float room[BNB_PIECE], bias_room[BNB_PIECE];
    for (int64_t first = 0, n; first < p->columns; first += n) {
        n = p->columns - first < BNB_PIECE ? p->columns - first : BNB_PIECE;
        const float *bias = p->bias.data == NULL
                                ? NULL
                                : bnb_widen(p->avx2, p->bias.dtype, p->bias.data, first, n, bias_room);
        const float *column = p->column_absmax + first;
        for (int64_t row = begin; row < end; row++) {
            const int32_t *sums = p->sums + row * p->columns + first;
            float *to = p->dtype == NBL_DTYPE_F32 ? (float *)p->to + row * p->columns + first : room;
            int64_t i = 0;
#if defined(__x86_64__)
            if (p->avx2) i = scale_avx2(sums, n, p->row_absmax[row], column, bias, to);
#endif
            for (; i < n; i++) {
                to[i] = (float)sums[i] * (p->row_absmax[row] * column[i]) * CONSTANT;
                if (bias) to[i] += bias[i];
            }
            if (to == room) bnb_narrow(p->avx2, p->dtype, room, n, p->to, row * p->columns + first);
        }
    }
}

static bool is_f32(const nbl_tensor *tensor, int64_t elements)
{
    return tensor->data && tensor->dtype == NBL_DTYPE_F32 && call_elements(tensor) == elements;
}

void op_bnb_dequantize_product(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    (void)inputs, (void)outputs;
    call_begin(&c, "bnb_dequantize_product", stack);
    nbl_tensor sums = call_tensor(&c, "sums"), row = call_tensor(&c, "row_absmax");
    nbl_tensor column = call_tensor(&c, "column_absmax"), bias = call_tensor(&c, "bias");
    nbl_dtype dtype = call_dtype(&c);
    if (sums.data == NULL || sums.rank != 2 || sums.dtype != NBL_DTYPE_I32)
        call_fail(&c, "sums are not a matrix of i32 with elements");
    else if (!is_f32(&row, sums.shape[0]) || !is_f32(&column, sums.shape[1]))
        call_fail(&c, "row_absmax and column_absmax are not f32 of the rows and columns of sums");
    else if (dtype != NBL_DTYPE_F32 && dtype != NBL_DTYPE_F16 && dtype != NBL_DTYPE_BF16)
        call_fail(&c, "dtype is %s, not f32, f16 or bf16", nbl_dtype_name(dtype));
    else if (bias.data &&
             ((bias.dtype != NBL_DTYPE_F32 && bias.dtype != NBL_DTYPE_F16 && bias.dtype != NBL_DTYPE_BF16) ||
              call_elements(&bias) != sums.shape[1]))
        call_fail(&c, "bias is not f32, f16 or bf16 of the columns of sums");
    nbl_tensor y = call_shape_of(&sums, dtype);
    call_output(&c, &y);
    product_call p = {dtype, sums.data, sums.shape[1], row.data, column.data, bias, y.data, bnb_has_avx2(&c)};
    if (!c.failed) bnb_parallel(sums.shape[0], p.columns < 65536 ? 65536 / p.columns : 1, scale_rows, &p);
    call_end(&c);
}
