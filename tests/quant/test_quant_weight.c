/* test_quant_weight.c - the public entries: what they refuse and how they say it, rows and transposition,
 * threads, and that they need no memory and no history. */
#include "quant/test_quant.h"

#include <sys/mman.h>

#include "base/alloc.h"

static nbl_context *make_context(int threads)
{
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(
                         &(nbl_context_options){NBL_OPTIONS(nbl_context_options), .threads = threads}, &ctx),
                     NBL_OK);
    return ctx;
}

static void assert_refused(nbl_context *ctx, nbl_status got, nbl_status want, const char *part)
{
    if (got != want || strstr(nbl_error_message(ctx), part) == NULL)
        fail_msg("%s \"%s\", expected %s and \"%s\"", nbl_status_name(got), nbl_error_message(ctx),
                 nbl_status_name(want), part);
}

/* ---- refusals ---- */

static void dequantize_refuses_what_does_not_fit_and_names_it(void **state)
{
    (void)state;
    nbl_context *ctx = make_context(1);
    void *memory;
    float out[64 * 64];
    const nbl_weight good = random_weight(1, NBL_FORMAT_NF4, 6, 64, 64, false, 1, &memory);
    nbl_weight w;
#define REFUSED(status, part, ...)                                                                           \
    w = good;                                                                                                \
    __VA_ARGS__;                                                                                             \
    assert_refused(ctx, nbl_dequantize(ctx, &w, 0, 6, NBL_DTYPE_F32, 0, out), status, part)
    assert_int_equal(nbl_dequantize(ctx, &good, 0, 6, NBL_DTYPE_F32, 0, out), NBL_OK);
    REFUSED(NBL_ERROR_ARGUMENT, "format 9", w.format = (nbl_format)9);
    REFUSED(NBL_ERROR_SHAPE, "rank 0", w.rank = 0);
    REFUSED(NBL_ERROR_SHAPE, "rank 9", w.rank = 9);
    REFUSED(NBL_ERROR_SHAPE, "[6, -64]", w.shape[1] = -64);
    REFUSED(NBL_ERROR_SHAPE, "[4611686018427387904, 64]", w.shape[0] = INT64_C(1) << 62);
    REFUSED(NBL_ERROR_SHAPE, "too many",
            w.shape[0] = INT64_C(1) << 55); /* the elements fit, their bytes do not */
    REFUSED(NBL_ERROR_ARGUMENT, "data", w.data = NULL);
    REFUSED(NBL_ERROR_ARGUMENT, "scales", w.scales = NULL);
    REFUSED(NBL_ERROR_ARGUMENT, "aligned",
            w.scales = (const float *)(const void *)((const char *)good.scales + 2));
    REFUSED(NBL_ERROR_ARGUMENT, "block 63", w.block = 63);
    REFUSED(NBL_ERROR_ARGUMENT, "block 0", w.block = 0);
    REFUSED(NBL_ERROR_ARGUMENT, "block 8192", w.block = 8192);
    REFUSED(NBL_ERROR_ARGUMENT, "block -64", w.block = -64);
    REFUSED(NBL_ERROR_ARGUMENT, "nested_table", w.nested_scales = good.scales);
    REFUSED(NBL_ERROR_ARGUMENT, "scale_codes", w.nested_scales = w.nested_table = good.scales);
    REFUSED(NBL_ERROR_ARGUMENT, "nested block 0", w.nested_scales = w.nested_table = good.scales;
            w.scale_codes = good.data);
    REFUSED(NBL_ERROR_DTYPE, "i8", w.format = NBL_FORMAT_DENSE; w.dtype = NBL_DTYPE_I8);
    REFUSED(NBL_ERROR_SHAPE, "[6, 48]", w.format = NBL_FORMAT_MXFP4; w.shape[1] = 48);
    REFUSED(NBL_ERROR_ARGUMENT, "scale_codes", w.format = NBL_FORMAT_MXFP4);
#undef REFUSED
    w = good;
    assert_refused(ctx, nbl_dequantize(ctx, NULL, 0, 6, NBL_DTYPE_F32, 0, out), NBL_ERROR_ARGUMENT,
                   "weight is NULL");
    assert_refused(ctx, nbl_dequantize(ctx, &w, 0, 6, NBL_DTYPE_F32, 0, NULL), NBL_ERROR_ARGUMENT,
                   "out is NULL");
    assert_refused(ctx, nbl_dequantize(ctx, &w, 0, 6, NBL_DTYPE_F32, 0, (char *)out + 2), NBL_ERROR_ARGUMENT,
                   "aligned");
    assert_refused(ctx, nbl_dequantize(ctx, &w, 0, 6, NBL_DTYPE_I32, 0, out), NBL_ERROR_DTYPE,
                   "nf4 of shape [6, 64] to i32");
    assert_refused(ctx, nbl_dequantize(ctx, &w, 0, 6, (nbl_dtype)99, 0, out), NBL_ERROR_DTYPE, "unknown");
    assert_refused(ctx, nbl_dequantize(ctx, &w, -1, 6, NBL_DTYPE_F32, 0, out), NBL_ERROR_ARGUMENT,
                   "rows -1 to 6");
    assert_refused(ctx, nbl_dequantize(ctx, &w, 4, 3, NBL_DTYPE_F32, 0, out), NBL_ERROR_ARGUMENT,
                   "rows 4 to 3");
    assert_refused(ctx, nbl_dequantize(ctx, &w, 0, 7, NBL_DTYPE_F32, 0, out), NBL_ERROR_ARGUMENT, "6 rows");
    free(memory);
    nbl_context_destroy(ctx);
}

static void quantize_refuses_what_does_not_fit_and_names_it(void **state)
{
    (void)state;
    nbl_context *ctx = make_context(1);
    float values[128] = {1}, scales[4], nested[1];
    uint8_t data[128], scale_codes[4];
    nbl_quantized_parts parts = {data, scales, scale_codes, nested};
    nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = NBL_FORMAT_NF4};
    const int64_t shape[NBL_MAX_RANK + 1] = {2, 64};
    nbl_weight w = {.rank = 77};
    nbl_quantized_sizes sizes;
#define QUANTIZE() nbl_quantize(ctx, &how, NBL_DTYPE_F32, 2, shape, values, &parts, &w)
#define REFUSED(status, part, change, undo)                                                                  \
    change;                                                                                                  \
    assert_refused(ctx, QUANTIZE(), status, part);                                                           \
    assert_int_equal(w.rank, 77); /* untouched */                                                            \
    undo
    REFUSED(NBL_ERROR_ARGUMENT, "dense", how.format = NBL_FORMAT_DENSE, how.format = NBL_FORMAT_NF4);
    REFUSED(NBL_ERROR_ARGUMENT, "unknown", how.format = (nbl_format)12, how.format = NBL_FORMAT_NF4);
    REFUSED(NBL_ERROR_ARGUMENT, "block 48", how.block = 48, how.block = 0);
    REFUSED(NBL_ERROR_ARGUMENT, "data", parts.data = NULL, parts.data = data);
    REFUSED(NBL_ERROR_ARGUMENT, "scales", parts.scales = NULL, parts.scales = scales);
    how.nested = 1;
    REFUSED(NBL_ERROR_ARGUMENT, "scale_codes", parts.scale_codes = NULL, parts.scale_codes = scale_codes);
    REFUSED(NBL_ERROR_ARGUMENT, "nested_scales", parts.nested_scales = NULL, parts.nested_scales = nested);
    REFUSED(NBL_ERROR_UNSUPPORTED, "int8", how.format = NBL_FORMAT_INT8, how.format = NBL_FORMAT_NF4);
    REFUSED(NBL_ERROR_UNSUPPORTED, "mxfp4", how.format = NBL_FORMAT_MXFP4, how.format = NBL_FORMAT_NF4);
    REFUSED(NBL_ERROR_UNSUPPORTED, "block 1", values[100] = -INFINITY, values[100] = NAN);
    assert_true(strlen(nbl_error_hint(ctx)) > 0);
#undef REFUSED
    assert_int_equal(QUANTIZE(), NBL_OK); /* a NaN does not reach the scales */
    assert_refused(ctx, nbl_quantize(ctx, NULL, NBL_DTYPE_F32, 2, shape, values, &parts, &w),
                   NBL_ERROR_ARGUMENT, "options");
    assert_refused(ctx, nbl_quantize(ctx, &how, NBL_DTYPE_U8, 2, shape, values, &parts, &w), NBL_ERROR_DTYPE,
                   "values of u8, shape [2, 64], to nf4"); /* HAZARDS E15 */
    assert_refused(ctx, nbl_quantize(ctx, &how, NBL_DTYPE_F32, 2, NULL, values, &parts, &w),
                   NBL_ERROR_ARGUMENT, "shape");
    assert_refused(ctx, nbl_quantize(ctx, &how, NBL_DTYPE_F32, 0, shape, values, &parts, &w), NBL_ERROR_SHAPE,
                   "rank 0");
    assert_refused(ctx, nbl_quantize(ctx, &how, NBL_DTYPE_F32, 9, shape, values, &parts, &w), NBL_ERROR_SHAPE,
                   "rank 9");
    assert_refused(ctx, nbl_quantize(ctx, &how, NBL_DTYPE_F32, 2, shape, NULL, &parts, &w),
                   NBL_ERROR_ARGUMENT, "[2, 64]");
    assert_refused(ctx, nbl_quantize(ctx, &how, NBL_DTYPE_F32, 2, shape, values, NULL, &w),
                   NBL_ERROR_ARGUMENT, "parts");
    assert_refused(ctx, nbl_quantize(ctx, &how, NBL_DTYPE_F32, 2, shape, values, &parts, NULL),
                   NBL_ERROR_ARGUMENT, "weight");
    assert_refused(ctx, nbl_quantize_sizes(ctx, &how, 2, shape, NULL), NBL_ERROR_ARGUMENT, "sizes");
    how = (nbl_quantize_options){NBL_OPTIONS(nbl_quantize_options), .format = NBL_FORMAT_MXFP4};
    assert_refused(ctx, nbl_quantize_sizes(ctx, &how, 2, (int64_t[]){32, 33}, &sizes), NBL_ERROR_SHAPE,
                   "[32, 33]");
    nbl_context_destroy(ctx);
}

static void dynamic8_refuses_what_does_not_fit(void **state)
{
    (void)state;
    nbl_context *ctx = make_context(1);
    float values[4] = {1}, scales[4];
    uint8_t codes[4];
    assert_refused(ctx, nbl_dynamic8_quantize(ctx, 1, 0, values, 4, codes, scales), NBL_ERROR_ARGUMENT,
                   "block 0");
    assert_refused(ctx, nbl_dynamic8_quantize(ctx, 1, 4, values, -4, codes, scales), NBL_ERROR_ARGUMENT,
                   "-4");
    assert_refused(ctx, nbl_dynamic8_quantize(ctx, 1, 4, NULL, 4, codes, scales), NBL_ERROR_ARGUMENT,
                   "values");
    assert_refused(ctx, nbl_dynamic8_dequantize(ctx, 1, 4, NULL, scales, 4, values), NBL_ERROR_ARGUMENT,
                   "codes");
    assert_refused(ctx, nbl_dynamic8_dequantize(ctx, 1, 4, codes, NULL, 4, values), NBL_ERROR_ARGUMENT,
                   "scales");
    assert_int_equal(nbl_dynamic8_quantize(ctx, 1, INT64_MAX, values, 4, codes, scales), NBL_OK);
    assert_int_equal(nbl_dynamic8_dequantize(ctx, 1, INT64_MAX, codes, scales, 4, values), NBL_OK);
    assert_int_equal(nbl_dynamic8_quantize(ctx, 1, 4, NULL, 0, NULL, NULL), NBL_OK);
    nbl_context_destroy(ctx);
}

/* ---- rows, transposition, threads ---- */

static const struct {
    nbl_format format;
    int64_t rows, columns, block;
    bool nested;
} weights[] = {
    {NBL_FORMAT_NF4, 130, 200, 64, false}, {NBL_FORMAT_NF4, 67, 4096, 4096, true},
    {NBL_FORMAT_FP4, 301, 97, 128, true},  {NBL_FORMAT_INT8, 129, 133, 0, false},
    {NBL_FORMAT_INT8, 1, 70001, 0, false}, {NBL_FORMAT_MXFP4, 70, 96, 32, false},
    {NBL_FORMAT_NF4, 2000, 128, 32, true}, {NBL_FORMAT_FP4, 70001, 1, 64, false},
    {NBL_FORMAT_NF4, 5, 63, 64, false},
};

static void
any_rows_plain_or_transposed_have_the_same_bits_for_1_2_3_and_7_threads(void **state) /* HAZARDS E6 */
{
    (void)state;
    for (int k = 0; k < COUNT(weights); k++) {
        void *memory;
        int64_t rows = weights[k].rows, columns = weights[k].columns;
        nbl_weight w = random_weight((uint32_t)k, weights[k].format, rows, columns, weights[k].block,
                                     weights[k].nested, 2, &memory);
        for (int d = 0; d < 3; d++) {
            int64_t size = (int64_t)nbl__size_of(dtypes[d]);
            uint8_t *want = malloc((size_t)(rows * columns * size));
            nbl__dequantize(NBL_ISA_SCALAR, &w, 0, rows * columns, dtypes[d], want, false);
            static const int threads[] = {1, 2, 3, 7};
            for (int t = 0; t < COUNT(threads); t++) {
                nbl_context *ctx = make_context(threads[t]);
                for (int part = 0; part < 3; part++) {
                    int64_t from = part == 0 ? 0 : rows / 3,
                            to = part == 1 ? nbl__min_i64(rows, from + 65) : rows;
                    int64_t count = to - from, bytes = count * columns * size;
                    uint8_t *out = guarded_alloc(bytes, 0);
                    assert_int_equal(nbl_dequantize(ctx, &w, from, to, dtypes[d], 0, out), NBL_OK);
                    assert_same_bytes(out, want + from * columns * size, bytes, "weight %d rows %d to %d", k,
                                      (int)from, (int)to);
                    guarded_free(out, bytes, 0);
                    out = guarded_alloc(bytes, size); /* aligned to its elements only */
                    assert_int_equal(nbl_dequantize(ctx, &w, from, to, dtypes[d], 1, out), NBL_OK);
                    for (int64_t r = 0; r < count; r++)
                        for (int64_t c = 0; c < columns; c++)
                            if (memcmp(out + (c * count + r) * size, want + ((from + r) * columns + c) * size,
                                       (size_t)size))
                                fail_msg("weight %d transposed to %s: row %d column %d", k,
                                         nbl_dtype_name(dtypes[d]), (int)(from + r), (int)c);
                    guarded_free(out, bytes, size);
                }
                nbl_context_destroy(ctx);
            }
            free(want);
        }
        free(memory);
    }
}

static void an_output_larger_than_the_caches_has_the_same_bits(void **state)
{
    (void)state;
    const int64_t rows = 3008, columns = 3008,
                  n = rows * columns; /* 17 and 35 MiB: written past the caches */
    static const nbl_format formats[] = {NBL_FORMAT_NF4, NBL_FORMAT_INT8, NBL_FORMAT_MXFP4};
    nbl_context *ctx = make_context(2);
    uint8_t *want = malloc((size_t)(4 * n)), *out = NULL;
    assert_int_equal(posix_memalign((void **)&out, 64, (size_t)(4 * n + 64)), 0);
    for (int f = 0; f < COUNT(formats); f++) {
        void *memory;
        int64_t block = formats[f] == NBL_FORMAT_NF4 ? 64 : 32;
        nbl_weight w = random_weight(20, formats[f], rows, columns, block, false, 2, &memory);
        for (int d = 0; d < 3; d++) {
            int64_t size = (int64_t)nbl__size_of(dtypes[d]);
            nbl__dequantize(NBL_ISA_SCALAR, &w, 0, n, dtypes[d], want, false);
            for (int shift = 0; shift < 2; shift++) { /* on a cache line, and beside one */
                uint8_t *to = out + shift * size;
                memset(out, 0xff, (size_t)(4 * n + 64));
                assert_int_equal(nbl_dequantize(ctx, &w, 0, rows, dtypes[d], 0, to), NBL_OK);
                assert_same_bytes(to, want, n * size, "format %d", f);
                memset(out, 0xff, (size_t)(4 * n + 64));
                assert_int_equal(nbl_dequantize(ctx, &w, 0, rows, dtypes[d], 1, to), NBL_OK);
                for (int64_t c = 0; c < columns; c++)
                    for (int64_t r = 0; r < rows; r += 7) /* each tile and each place in it */
                        if (memcmp(to + (c * rows + r) * size, want + (r * columns + c) * size,
                                   (size_t)size) != 0)
                            fail_msg("format %d transposed: row %d column %d", f, (int)r, (int)c);
                for (int64_t i = n * size; i < n * size + 16; i++) assert_int_equal(to[i], 0xff);
            }
        }
        free(memory);
    }
    free(want), free(out);
    nbl_context_destroy(ctx);
}

static void quantize_gives_the_same_bytes_for_1_2_3_and_7_threads(void **state)
{
    (void)state;
#define SIZE NBL_OPTIONS(nbl_quantize_options)
    static const nbl_quantize_options ways[] = {{SIZE, .format = NBL_FORMAT_NF4},
                                                {SIZE, .format = NBL_FORMAT_NF4, .block = 4096, .nested = 1},
                                                {SIZE, .format = NBL_FORMAT_FP4, .block = 32},
                                                {SIZE, .format = NBL_FORMAT_INT8},
                                                {SIZE, .format = NBL_FORMAT_MXFP4}};
#undef SIZE
    const int64_t shape[] = {3, 70, 992}; /* 208320 elements: several chunks and a ragged one */
    uint8_t *values = malloc(2 * 3 * 70 * 992);
    for (int64_t i = 0; i < 3 * 70 * 992; i++)
        set_value(NBL_DTYPE_BF16, values, i, random_normal(3, i) * 0.02f);
    for (int k = 0; k < COUNT(ways); k++) {
        uint8_t *first = NULL;
        static const int threads[] = {1, 2, 3, 7};
        for (int t = 0; t < COUNT(threads); t++) {
            nbl_context *ctx = make_context(threads[t]);
            nbl_quantized_sizes s;
            assert_int_equal(nbl_quantize_sizes(ctx, &ways[k], 3, shape, &s), NBL_OK);
            int64_t total = (int64_t)(s.data + s.scales + s.scale_codes + s.nested_scales);
            uint8_t *parts = guarded_alloc(total, 0);
            nbl_quantized_parts to = {.scales = (float *)(void *)parts,
                                      .nested_scales = (float *)(void *)(parts + s.scales),
                                      .scale_codes = parts + s.scales + s.nested_scales,
                                      .data = parts + s.scales + s.nested_scales + s.scale_codes};
            nbl_weight w;
            assert_int_equal(nbl_quantize(ctx, &ways[k], NBL_DTYPE_BF16, 3, shape, values, &to, &w), NBL_OK);
            assert_int_equal(w.format, ways[k].format);
            assert_int_equal(w.rank, 3);
            assert_int_equal(w.shape[2], 992);
            assert_int_equal(w.dtype, NBL_DTYPE_BF16);
            assert_int_equal(w.nested_scales != NULL, ways[k].nested);
            float *out = malloc(4 * 3 * 70 * 992);
            assert_int_equal(nbl_dequantize(ctx, &w, 0, 210, NBL_DTYPE_F32, 0, out), NBL_OK);
            double error = 0, norm = 0;
            for (int64_t i = 0; i < 3 * 70 * 992; i++) {
                double x = value_at(NBL_DTYPE_BF16, values, i);
                error += (out[i] - x) * (out[i] - x), norm += x * x;
            }
            assert_true(sqrt(error / norm) < (ways[k].format == NBL_FORMAT_INT8 ? 0.02 : 0.2));
            free(out);
            if (!first) memcpy(first = malloc((size_t)total), parts, (size_t)total);
            assert_same_bytes(parts, first, total, "way %d with %d threads", k, threads[t]);
            guarded_free(parts, total, 0);
            nbl_context_destroy(ctx);
        }
        free(first);
    }
    free(values);
}

static void dynamic8_gives_the_same_bytes_for_1_2_3_and_7_threads(void **state)
{
    (void)state;
    enum { N = 200001 };
    float *values = malloc(4 * N), *back = malloc(4 * N), *scales = malloc(4 * N);
    uint8_t *codes = malloc(N), *first = malloc(N);
    for (int64_t i = 0; i < N; i++) values[i] = random_normal(9, i);
    for (int t = 1; t <= 7; t += t == 1 ? 1 : t == 2 ? 1 : 4) {
        nbl_context *ctx = make_context(t);
        assert_int_equal(nbl_dynamic8_quantize(ctx, 1, 100, values, N, codes, scales), NBL_OK);
        assert_int_equal(nbl_dynamic8_dequantize(ctx, 1, 100, codes, scales, N, back), NBL_OK);
        if (t == 1) memcpy(first, codes, N);
        assert_same_bytes(codes, first, N, "%d threads", t);
        for (int64_t i = 0; i < N; i++) assert_true(fabsf(back[i] - values[i]) <= scales[i / 100] / 100);
        nbl_context_destroy(ctx);
    }
    free(values), free(back), free(scales), free(codes), free(first);
}

/* ---- no memory, no history ---- */

static void nothing_is_allocated_after_the_context(void **state)
{
    (void)state;
    nbl__counter counter = {0};
    nbl_context *ctx;
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 2,
                                   .allocator = nbl__counting_allocator(&counter)};
    assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
    int64_t before = counter.calls;
    enum { N = 256 * 512 };
    float *values = malloc(4 * N), *scales = malloc(4 * N);
    uint8_t *data = malloc(N), *scale_codes = malloc(N), *nested = malloc(4 * N);
    for (int64_t i = 0; i < N; i++) values[i] = random_normal(10, i);
    for (int f = NBL_FORMAT_NF4; f <= NBL_FORMAT_MXFP4; f++) {
        nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = (nbl_format)f,
                                    .nested = f <= NBL_FORMAT_FP4};
        nbl_quantized_parts parts = {data, scales, scale_codes, (float *)(void *)nested};
        nbl_weight w;
        assert_int_equal(nbl_quantize(ctx, &how, NBL_DTYPE_F32, 2, (int64_t[]){256, 512}, values, &parts, &w),
                         NBL_OK);
        assert_int_equal(nbl_dequantize(ctx, &w, 0, 256, NBL_DTYPE_F32, f % 2, values), NBL_OK);
    }
    assert_int_equal(counter.calls, before);
    free(values), free(scales), free(data), free(scale_codes), free(nested);
    nbl_context_destroy(ctx);
}

static void
a_bf16_result_after_an_f16_result_in_the_same_memory_has_the_same_bits(void **state) /* HAZARDS A1, A13 */
{
    (void)state;
    nbl_context *ctx = make_context(2);
    void *memory;
    nbl_weight w = random_weight(5, NBL_FORMAT_NF4, 100, 96, 64, true, 2, &memory);
    enum { N = 100 * 96 };
    uint8_t *shared = malloc(4 * N), *fresh = malloc(4 * N);
    static const nbl_dtype order[] = {NBL_DTYPE_BF16, NBL_DTYPE_F16, NBL_DTYPE_F32, NBL_DTYPE_BF16,
                                      NBL_DTYPE_F32};
    for (int k = 0; k < COUNT(order); k++) {
        w.dtype = order[(k + 1) % 3]; /* the dtype of the original weight must not matter */
        memset(fresh, 0xff, 4 * N);   /* NaN in every dtype */
        assert_int_equal(nbl_dequantize(ctx, &w, 0, 100, order[k], 0, shared), NBL_OK);
        assert_int_equal(nbl_dequantize(ctx, &w, 0, 100, order[k], 0, fresh), NBL_OK);
        assert_same_bytes(shared, fresh, N * (int64_t)nbl__size_of(order[k]), "step %d", k);
    }
    free(memory), free(shared), free(fresh);
    nbl_context_destroy(ctx);
}

static void empty_weights_are_fine(void **state)
{
    (void)state;
    nbl_context *ctx = make_context(2);
    static const int64_t shapes[][2] = {{0, 64}, {5, 0}, {0, 0}};
    for (int f = NBL_FORMAT_NF4; f <= NBL_FORMAT_MXFP4; f++)
        for (int s = 0; s < 3; s++) {
            nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = (nbl_format)f,
                                        .nested = f <= NBL_FORMAT_FP4};
            nbl_quantized_sizes sizes;
            float scales[5] = {9, 9, 9, 9, 9};
            nbl_quantized_parts parts = {.scales = scales};
            nbl_weight w;
            assert_int_equal(nbl_quantize_sizes(ctx, &how, 2, shapes[s], &sizes), NBL_OK);
            assert_int_equal(sizes.data, 0);
            assert_int_equal(nbl_quantize(ctx, &how, NBL_DTYPE_F16, 2, shapes[s], NULL, &parts, &w), NBL_OK);
            assert_int_equal(nbl_dequantize(ctx, &w, 0, shapes[s][0], NBL_DTYPE_F32, 0, NULL), NBL_OK);
            assert_int_equal(nbl_dequantize(ctx, &w, 0, shapes[s][0], NBL_DTYPE_F32, 1, NULL), NBL_OK);
        }
    void *memory;
    nbl_weight w = random_weight(5, NBL_FORMAT_NF4, 4, 64, 64, false, 2, &memory);
    assert_int_equal(nbl_dequantize(ctx, &w, 2, 2, NBL_DTYPE_F32, 0, NULL), NBL_OK);
    free(memory);
    nbl_context_destroy(ctx);
}

static void rank_1_3_and_8_are_flattened_to_rows(void **state) /* HAZARDS D1, D2, D3 */
{
    (void)state;
    nbl_context *ctx = make_context(1);
    static const int64_t shapes[][8] = {{384}, {2, 3, 64}, {1, 2, 1, 3, 1, 1, 2, 32}};
    static const int ranks[] = {1, 3, 8};
    float values[384], want[384], got[384];
    for (int i = 0; i < 384; i++) values[i] = random_normal(6, i);
    for (int k = 0; k < 3; k++)
        for (int f = NBL_FORMAT_NF4; f <= NBL_FORMAT_MXFP4; f++) {
            uint8_t data[384], scale_codes[384];
            float scales[384];
            nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = (nbl_format)f};
            nbl_quantized_parts parts = {data, scales, scale_codes, NULL};
            nbl_weight w;
            int64_t rows = 384 / shapes[k][ranks[k] - 1];
            assert_int_equal(nbl_quantize(ctx, &how, NBL_DTYPE_F32, ranks[k], shapes[k], values, &parts, &w),
                             NBL_OK);
            assert_int_equal(nbl_dequantize(ctx, &w, 0, rows, NBL_DTYPE_F32, 0, got), NBL_OK);
            for (int i = 0; i < 384; i++) want[i] = dequantize_one(&w, i);
            assert_same_bytes(got, want, sizeof got, "rank %d format %d", ranks[k], f);
            assert_int_equal(nbl_dequantize(ctx, &w, 0, rows + 1, NBL_DTYPE_F32, 0, got), NBL_ERROR_ARGUMENT);
        }
    nbl_context_destroy(ctx);
}

static void count_warnings(void *user, nbl_log_level level, const char *line)
{
    if (level == NBL_LOG_WARNING && strstr(line, "3 of 128 values")) ++*(int *)user;
}

static void values_that_are_not_finite_are_quantized_with_a_warning(void **state)
{
    (void)state;
    int warnings = 0;
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(&(nbl_context_options){NBL_OPTIONS(nbl_context_options),
                                                               .log = count_warnings, .log_user = &warnings},
                                        &ctx),
                     NBL_OK);
    float values[128] = {1, NAN, INFINITY, -INFINITY}, scales[4];
    uint8_t data[128], scale_codes[4];
    nbl_quantized_parts parts = {data, scales, scale_codes, NULL};
    for (int f = NBL_FORMAT_NF4; f <= NBL_FORMAT_MXFP4; f++) {
        nbl_weight w;
        nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = (nbl_format)f};
        assert_int_equal(nbl_quantize(ctx, &how, NBL_DTYPE_F32, 2, (int64_t[]){2, 64}, values, &parts, &w),
                         NBL_OK);
    }
    assert_int_equal(warnings, 4);
    nbl_context_destroy(ctx);
}

static void rows_beyond_two_to_the_31_elements_dequantize(void **state) /* HAZARDS E20 */
{
    (void)state;
    const int64_t columns = 4096, rows = INT64_C(1) << 20, n = rows * columns; /* 2^32 */
    uint8_t *codes = mmap(NULL, (size_t)(n / 2), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    float *scales = mmap(NULL, (size_t)(n / 16), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (codes == MAP_FAILED || scales == MAP_FAILED) skip();
    nbl_weight w = {.format = NBL_FORMAT_NF4,
                    .rank = 2,
                    .shape = {rows, columns},
                    .data = codes,
                    .block = 64,
                    .scales = scales};
    nbl_context *ctx = make_context(2);
    float out[3 * 4096], want[3 * 4096];
    for (int64_t row = (INT64_C(1) << 19) - 1; row < rows; row += 349524) {
        int64_t begin = row * columns;
        fill_random(8, codes + begin / 2, 3 * columns / 2);
        for (int64_t i = 0; i < 3 * columns / 64; i++) scales[begin / 64 + i] = (float)i;
        for (int64_t i = 0; i < 3 * columns; i++) want[i] = dequantize_one(&w, begin + i);
        assert_int_equal(nbl_dequantize(ctx, &w, row, row + 3, NBL_DTYPE_F32, 0, out), NBL_OK);
        assert_same_bytes(out, want, sizeof out, "row %lld", (long long)row);
        assert_int_equal(nbl_dequantize(ctx, &w, row, row + 3, NBL_DTYPE_F32, 1, out), NBL_OK);
        for (int64_t i = 0; i < 3 * columns; i++) assert_true(out[i % columns * 3 + i / columns] == want[i]);
    }
    munmap(codes, (size_t)(n / 2)), munmap(scales, (size_t)(n / 16));
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dequantize_refuses_what_does_not_fit_and_names_it),
        cmocka_unit_test(quantize_refuses_what_does_not_fit_and_names_it),
        cmocka_unit_test(dynamic8_refuses_what_does_not_fit),
        cmocka_unit_test(any_rows_plain_or_transposed_have_the_same_bits_for_1_2_3_and_7_threads),
        cmocka_unit_test(an_output_larger_than_the_caches_has_the_same_bits),
        cmocka_unit_test(quantize_gives_the_same_bytes_for_1_2_3_and_7_threads),
        cmocka_unit_test(dynamic8_gives_the_same_bytes_for_1_2_3_and_7_threads),
        cmocka_unit_test(nothing_is_allocated_after_the_context),
        cmocka_unit_test(a_bf16_result_after_an_f16_result_in_the_same_memory_has_the_same_bits),
        cmocka_unit_test(empty_weights_are_fine),
        cmocka_unit_test(rank_1_3_and_8_are_flattened_to_rows),
        cmocka_unit_test(values_that_are_not_finite_are_quantized_with_a_warning),
        cmocka_unit_test(rows_beyond_two_to_the_31_elements_dequantize),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
