/* test_torch_bitsandbytes.c - the operators of python/csrc/bnb.h over the libtorch of fake_torch.h: memory, errors,
 * threads, refusals, and a few values. python/tests compares values with bitsandbytes. */
#include "support.h"

#include <math.h>
#include <pthread.h>

#include "bnb.h"
#include "fake_torch.h"

/* ---- torch's threads: one or two ---- */

static int team = 1;

typedef struct half {
    int64_t begin, end;
    bnb_span span;
    void *argument;
} half;

static void *run_half(void *argument)
{
    const half *h = argument;
    h->span(h->begin, h->end, h->argument);
    return NULL;
}

torch_error torch_parallel_for(int64_t begin, int64_t end, int64_t grain, bnb_span span, void *argument);
torch_error torch_parallel_for(int64_t begin, int64_t end, int64_t grain, bnb_span span, void *argument)
{
    assert_true(grain >= 1 && end - begin > grain);
    if (team == 1) {
        span(begin, end, argument);
        return 0;
    }
    int64_t middle = begin + (end - begin) / 2;
    half first = {begin, middle, span, argument}, second = {middle, end, span, argument};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_half, &first), 0);
    run_half(&second);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return 0;
}

/* ---- calls ---- */

enum { MAX_TENSORS = 8 };

typedef struct call {
    const char *op;
    fake_arguments arguments;
    torch_tensor owned[MAX_TENSORS];
    int count;
} call;

static torch_tensor set(call *c, const char *name, torch_tensor t)
{
    fake_set_tensor(&c->arguments, name, t);
    return c->owned[c->count++] = t;
}

static void free_call(call *c)
{
    while (c->count > 0) fake_free(c->owned[--c->count]);
}

static torch_tensor floats(int rank, const int64_t *shape, int32_t dtype)
{
    torch_tensor t = fake_tensor(dtype, rank, shape);
    for (int64_t i = 0; i < fake_count(t); i++) {
        float value = (float)((i * 37 + 5) % 101 - 50) / 16;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (dtype == FAKE_F32) ((float *)fake_data(t))[i] = value;
        else /* of f16 the sign and a part of the exponent: any bits will do */
            ((uint16_t *)fake_data(t))[i] = (uint16_t)(dtype == FAKE_BF16 ? bits >> 16
                                                                          : (bits >> 17 & 0xbfff));
    }
    return t;
}

static call quantize_4bit(int64_t n, int64_t block, int32_t dtype)
{
    call c = {.op = "bnb_quantize_4bit"};
    set(&c, "values", floats(1, &n, dtype));
    torch_tensor bounds = set(&c, "bounds", fake_tensor(FAKE_F32, 1, (int64_t[]){15}));
    torch_tensor order = set(&c, "order", fake_tensor(FAKE_U8, 1, (int64_t[]){16}));
    for (int i = 0; i < 15; i++) ((float *)fake_data(bounds))[i] = ((float)i - 7) / 8;
    for (int i = 0; i < 16; i++) ((uint8_t *)fake_data(order))[i] = (uint8_t)i;
    fake_set_int(&c.arguments, "block", block);
    return c;
}

static call quantize_8bit(int64_t n, int64_t block, int32_t dtype)
{
    call c = {.op = "bnb_quantize_8bit"};
    set(&c, "values", floats(1, &n, dtype));
    torch_tensor table = set(&c, "table", fake_tensor(FAKE_F32, 1, (int64_t[]){256}));
    for (int i = 0; i < 256; i++) ((float *)fake_data(table))[i] = ((float)i - 127) / 128;
    fake_set_int(&c.arguments, "block", block);
    return c;
}

static call quantize_rows(int64_t rows, int64_t columns, int32_t dtype)
{
    call c = {.op = "bnb_quantize_rows"};
    set(&c, "values", floats(2, (int64_t[]){rows, columns}, dtype));
    fake_set_float(&c.arguments, "threshold", rows % 2 ? 3 : 0);
    return c;
}

static call dequantize_product(int64_t rows, int64_t columns, int32_t dtype)
{
    call c = {.op = "bnb_dequantize_product"};
    torch_tensor sums = set(&c, "sums", fake_tensor(FAKE_I32, 2, (int64_t[]){rows, columns}));
    for (int64_t i = 0; i < rows * columns; i++) ((int32_t *)fake_data(sums))[i] = (int32_t)(i * 1237 - 5000);
    set(&c, "row_absmax", floats(1, &rows, FAKE_F32));
    set(&c, "column_absmax", floats(1, &columns, FAKE_F32));
    if (rows % 2) set(&c, "bias", floats(1, &columns, dtype));
    fake_set_int(&c.arguments, "dtype", dtype);
    return c;
}

static torch_tensor bytes(int64_t n)
{
    torch_tensor t = fake_tensor(FAKE_U8, 1, &n);
    for (int64_t i = 0; i < n; i++) ((uint8_t *)fake_data(t))[i] = (uint8_t)(i * 37);
    return t;
}

static call dequantize_4bit(int64_t rows, int64_t columns, int32_t dtype)
{
    call c = {.op = "bnb_dequantize_4bit"};
    int64_t n = rows * columns, blocks = (n + 63) / 64;
    set(&c, "data", bytes((n + 1) / 2));
    set(&c, "absmax", floats(1, &blocks, FAKE_F32));
    set(&c, "out", fake_tensor(dtype, 2, (int64_t[]){rows, columns}));
    fake_set_int(&c.arguments, "format", rows % 2 ? NBL_FORMAT_NF4 : NBL_FORMAT_FP4);
    fake_set_int(&c.arguments, "block", 64);
    fake_set_int(&c.arguments, "fresh", 1);
    return c;
}

static call gemm_4bit(int64_t rows, int64_t columns, int32_t dtype)
{
    call c = {.op = "bnb_gemm_4bit"};
    int64_t n = rows * columns, blocks = (n + 63) / 64, nested = (blocks + 255) / 256;
    set(&c, "x", floats(2, (int64_t[]){3, columns}, dtype));
    set(&c, "data", bytes((n + 1) / 2));
    set(&c, "absmax", floats(1, rows % 2 ? &nested : &blocks, FAKE_F32));
    if (rows % 2) {
        set(&c, "codes", bytes(blocks));
        set(&c, "table", floats(1, (int64_t[]){256}, FAKE_F32));
        set(&c, "offset", floats(0, NULL, FAKE_F32));
    } else set(&c, "bias", floats(1, &rows, dtype));
    fake_set_int(&c.arguments, "rows", rows);
    fake_set_int(&c.arguments, "format", NBL_FORMAT_NF4);
    fake_set_int(&c.arguments, "block", 64);
    return c;
}

typedef call (*maker)(int64_t a, int64_t b, int32_t dtype);
static const maker makers[] = {quantize_4bit,      quantize_8bit,   quantize_rows,
                               dequantize_product, dequantize_4bit, gemm_4bit};
enum { MAKERS = sizeof makers / sizeof makers[0] };
static const int32_t dtypes[] = {FAKE_F32, FAKE_F16, FAKE_BF16};

/* ---- tests ---- */

/* No read and no write beside the tensors: their memory ends where their elements end. */
static void every_operator_runs_and_leaves_nothing(void **state)
{
    static const int64_t sizes[] = {1, 2, 7, 31, 33, 64, 127, 4099};
    (void)state;
    for (int m = 0; m < MAKERS; m++)
        for (int d = 0; d < 3; d++)
            for (int a = 0; a < 8; a++)
                for (int b = 0; b < 8; b++) {
                    bool is_flat = m < 2; /* b is the block: 4 bits take powers of two */
                    int64_t second = m == 0 ? 32 << b : sizes[b];
                    if (!is_flat && sizes[a] * second > 40000) continue;
                    int64_t before = fake_live();
                    call c = makers[m](sizes[a], second, dtypes[d]);
                    fake_results r;
                    if (!fake_call(c.op, &c.arguments, &r)) fail_msg("%s: %s", c.op, r.error);
                    fake_free_results(&r);
                    free_call(&c);
                    assert_int_equal(fake_live(), before);
                }
}

static void a_failure_anywhere_leaks_nothing(void **state)
{
    (void)state;
    for (int m = 0; m < 2 * MAKERS; m++) {
        call c = makers[m / 2](32 + m % 2, 64, FAKE_F32);
        int64_t before = fake_live();
        for (int64_t n = 0;; n++) {
            fake_results r;
            fake_fail_at(n);
            bool ran = fake_call(c.op, &c.arguments, &r);
            bool failed = fake_has_failed();
            fake_fail_at(-1);
            fake_free_results(&r);
            assert_int_equal(fake_live(), before);
            assert_int_equal(ran, !failed);
            if (!failed) break;
            assert_non_null(strstr(r.error, "nibble: bnb_"));
        }
        free_call(&c);
    }
}

/* Threads write to their own parts of the results, except for the marks of columns, which all of them may set. */
static void threads_give_the_results_of_one(void **state)
{
    (void)state;
    const int64_t rows = 301, columns = 1024;
    call calls[] = {quantize_4bit(rows * columns, 64, FAKE_F32),
                    quantize_8bit(rows * columns, 256, FAKE_BF16), quantize_rows(rows, columns, FAKE_F32),
                    dequantize_product(rows, columns, FAKE_BF16)};
    for (int i = 0; i < 4; i++) {
        fake_results alone, shared;
        team = 2;
        assert_true(fake_call(calls[i].op, &calls[i].arguments, &shared));
        team = 1;
        assert_true(fake_call(calls[i].op, &calls[i].arguments, &alone));
        for (int t = 0; t < alone.count; t++) {
            assert_int_equal(fake_count(alone.tensors[t]), fake_count(shared.tensors[t]));
            assert_memory_equal(fake_data(alone.tensors[t]), fake_data(shared.tensors[t]),
                                (size_t)fake_count(alone.tensors[t]));
        }
        fake_free_results(&alone);
        fake_free_results(&shared);
        free_call(&calls[i]);
    }
}

static void outlier_columns_are_listed_and_have_codes_of_zero(void **state)
{
    (void)state;
    call c = {.op = "bnb_quantize_rows"};
    torch_tensor values = set(&c, "values", fake_tensor(FAKE_F32, 2, (int64_t[]){2, 4}));
    memcpy(fake_data(values), (float[]){1, -6, 0.5f, 2, 0, 1, NAN, 6.5f}, 8 * sizeof(float));
    fake_set_float(&c.arguments, "threshold", 6);
    fake_results r;
    assert_true(fake_call(c.op, &c.arguments, &r));
    assert_int_equal(fake_count(r.tensors[2]), 2);
    assert_memory_equal(fake_data(r.tensors[2]), ((int64_t[]){1, 3}), 2 * sizeof(int64_t));
    assert_memory_equal(fake_data(r.tensors[0]), ((int8_t[]){64, 0, 32, 0, 0, 0, 0, 0}), 8);
    const float *absmax = fake_data(r.tensors[1]);
    assert_true(absmax[0] == 2 && isnan(absmax[1]));
    fake_free_results(&r);
    free_call(&c);
}

static void refused(call *c, const char *text)
{
    fake_results r;
    int64_t before = fake_live();
    if (fake_call(c->op, &c->arguments, &r)) fail_msg("%s took what it must refuse: %s", c->op, text);
    if (!strstr(r.error, text)) fail_msg("%s: \"%s\" is not in \"%s\"", c->op, text, r.error);
    assert_int_equal(fake_live(), before);
    free_call(c);
}

/* A wrong count or dtype would be a read behind the memory. */
static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    static const char *const of_bool[MAKERS] = {"values are bool",          "values are bool",
                                                "values are bool",          "sums are not",
                                                "data is not packed codes", "bool"};
    const int64_t three = 3;
    for (int m = 0; m < MAKERS; m++) {
        call c = makers[m](32, 64, FAKE_F32);
        fake_set_dtype(c.owned[0], FAKE_BOOL);
        refused(&c, of_bool[m]);
    }
    call c = quantize_4bit(64, 48, FAKE_F32);
    refused(&c, "block is 48, allowed are the powers of two from 32 to 4096");
    c = quantize_4bit(64, 64, FAKE_F32);
    set(&c, "order", bytes(15));
    refused(&c, "order is not 16 elements of u8");
    c = quantize_8bit(64, 0, FAKE_F32);
    refused(&c, "block is 0, not positive");
    c = quantize_8bit(64, 64, FAKE_F32);
    set(&c, "table", floats(1, &three, FAKE_F32));
    refused(&c, "table is not 256 elements of f32");
    c = dequantize_product(4, 8, FAKE_F32);
    set(&c, "row_absmax", floats(1, &three, FAKE_F32));
    refused(&c, "are not f32 of the rows and columns of sums");
    c = dequantize_product(4, 8, FAKE_F32);
    set(&c, "bias", floats(1, &three, FAKE_F32));
    refused(&c, "bias is not f32, f16 or bf16 of the columns of sums");
    c = dequantize_4bit(32, 64, FAKE_F32);
    set(&c, "absmax", floats(1, &three, FAKE_F32));
    refused(&c, "3");
    c = dequantize_4bit(32, 64, FAKE_F32);
    set(&c, "data", bytes(1023));
    refused(&c, "1023");
    c = dequantize_4bit(32, 64, FAKE_F32);
    fake_set_int(&c.arguments, "format", NBL_FORMAT_INT8);
    refused(&c, "format is 3, allowed are 1 (nf4) and 2 (fp4)");
    c = dequantize_4bit(32, 64, FAKE_F32);
    set(&c, "out", fake_view(c.owned[2], 2, (int64_t[]){64, 32}, (int64_t[]){1, 64}, 0));
    refused(&c, "out is not contiguous");
    c = gemm_4bit(33, 64, FAKE_F32);
    set(&c, "table", floats(1, &three, FAKE_F32));
    refused(&c, "3");
    c = gemm_4bit(33, 64, FAKE_F32);
    set(&c, "table", fake_tensor(FAKE_F32, 1, (int64_t[]){0}));
    refused(&c, "table");
    c = gemm_4bit(33, 64, FAKE_F32);
    set(&c, "offset", floats(1, &three, FAKE_F32));
    refused(&c, "offset is not one element of f32");
    c = gemm_4bit(32, 64, FAKE_F32);
    set(&c, "bias", floats(1, &three, FAKE_F32));
    refused(&c, "is [3], [32] was expected");
    c = gemm_4bit(32, 64, FAKE_F32);
    set(&c, "absmax", fake_tensor(FAKE_F32, 1, (int64_t[]){0}));
    refused(&c, "scales");
    c = gemm_4bit(32, 64, FAKE_F32);
    fake_set_int(&c.arguments, "rows", INT64_MAX / 2);
    refused(&c, "data has 1024 bytes, too few for codes of shape [4611686018427387903, 64]");
    c = gemm_4bit(64, 32, FAKE_F32); /* no elements, yet strides above 63 bits */
    set(&c, "x", fake_tensor(FAKE_F32, 3, (int64_t[]){0, INT64_MAX / 32, 32}));
    refused(&c, "a result has strides above 9223372036854775807");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_runs_and_leaves_nothing),
        cmocka_unit_test(a_failure_anywhere_leaks_nothing),
        cmocka_unit_test(threads_give_the_results_of_one),
        cmocka_unit_test(outlier_columns_are_listed_and_have_codes_of_zero),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
