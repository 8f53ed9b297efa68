/* test_ops_cache.c - kv_write and take_rows: rows go where they are told, the others stay, one rounding where
 * dtypes differ, and rows that are out of range are refused by name. attention_step leaves the same caches. */
#include "ops/op_runner.h"

#include "ops/attention/attention.h"
#include "ops/attention/cache.h"
#include "ops/rope/rope.h"

enum { SEQUENCES = 3, SIZE = 5, HEADS = 2, DIM = 4, WIDTH = HEADS * DIM, TOKENS = 4 };

static nbl_status run(nbl_context *ctx, const nbl__family *family, void *arguments)
{
    const nbl__impl *impl;
    nbl_status status = family->forward.infer(ctx, arguments);
    if (status == NBL_OK) status = nbl__op_choose(ctx, &family->forward, arguments, NULL, &impl);
    if (status == NBL_OK) status = nbl__op_run(ctx, &family->forward, impl, arguments, NULL, 0);
    return status;
}

static nbl_tensor rows_of(int64_t n, const int32_t *rows)
{
    nbl_tensor t = tensor_of(NBL_DTYPE_I32, 1, &n);
    memcpy(t.data, rows, (size_t)n * sizeof *rows);
    return t;
}

static void rows_land_where_they_are_told_and_all_others_stay(void **state)
{
    (void)state;
    static const int32_t rows[TOKENS] = {0 * SIZE + 3, 2 * SIZE + 4, 1 * SIZE + 0, 0 * SIZE + 0};
    nbl_context *ctx = new_context();
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++) {
            nbl__kv_write a = {
                .x = random_tensor(compute_dtypes[from], 1, 1, SHAPE(TOKENS, HEADS, DIM)),
                .rows = rows_of(TOKENS, rows),
                .cache = random_tensor(compute_dtypes[to], 2, 1, SHAPE(SEQUENCES, SIZE, HEADS, DIM))};
            nbl_tensor want = random_tensor(compute_dtypes[to], 2, 1, SHAPE(SEQUENCES, SIZE, HEADS, DIM));
            for (int64_t t = 0; t < TOKENS; t++)
                for (int64_t i = 0; i < WIDTH; i++)
                    set_value(&want, rows[t] * WIDTH + i, (float)value_at(&a.x, t * WIDTH + i));
            assert_ok(ctx, run(ctx, &nbl__kv_write_family, &a));
            assert_memory_equal(a.cache.data, want.data,
                                (size_t)(SEQUENCES * SIZE * WIDTH) * nbl__size_of(compute_dtypes[to]));
            free(a.x.data);
            free(a.rows.data);
            free(a.cache.data);
            free(want.data);
        }
    nbl_context_destroy(ctx);
}

/* x as columns of wider rows, of which the others are never read. */
static void rows_may_lie_in_wider_rows(void **state)
{
    (void)state;
    enum { WIDER = 3 * WIDTH };
    static const int32_t rows[TOKENS] = {3, 14, 5, 0};
    nbl_context *ctx = new_context();
    nbl_tensor wide = random_tensor(NBL_DTYPE_F32, 1, 1, SHAPE(TOKENS, WIDER));
    for (int64_t i = 0; i < TOKENS * WIDER; i++)
        if (i % WIDER < WIDTH || i % WIDER >= 2 * WIDTH) set_value(&wide, i, NAN);
    nbl__kv_write a = {.x = {.dtype = NBL_DTYPE_F32,
                             .rank = 3,
                             .shape = {TOKENS, HEADS, DIM},
                             .data = (float *)wide.data + WIDTH,
                             .row_stride = WIDER},
                       .rows = rows_of(TOKENS, rows),
                       .cache = random_tensor(NBL_DTYPE_F32, 2, 1, SHAPE(SEQUENCES, SIZE, HEADS, DIM))};
    nbl_tensor want = random_tensor(NBL_DTYPE_F32, 2, 1, SHAPE(SEQUENCES, SIZE, HEADS, DIM));
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t i = 0; i < WIDTH; i++)
            set_value(&want, rows[t] * WIDTH + i, (float)value_at(&wide, t * WIDER + WIDTH + i));
    assert_ok(ctx, nbl__infer(ctx, &nbl__kv_write_family, false, &a));
    assert_ok(ctx, run(ctx, &nbl__kv_write_family, &a));
    assert_memory_equal(a.cache.data, want.data, (size_t)(SEQUENCES * SIZE * WIDTH) * sizeof(float));
    a.x.row_stride = WIDTH - 1; /* rows that overlap */
    assert_int_equal(nbl__infer(ctx, &nbl__kv_write_family, false, &a), NBL_ERROR_SHAPE);
    a.x.row_stride = 0;
    a.cache.row_stride = 2 * SIZE * WIDTH;
    assert_int_equal(nbl__infer(ctx, &nbl__kv_write_family, false, &a), NBL_ERROR_SHAPE);
    assert_non_null(
        strstr(nbl_error_message(ctx), "kv_write: the rows of cache [3, 5, 2, 4] are 80 elements"));
    free(wide.data);
    free(a.rows.data);
    free(a.cache.data);
    free(want.data);
    nbl_context_destroy(ctx);
}

static void run_with_scratch(nbl_context *ctx, const nbl__family *family, void *arguments)
{
    const nbl__impl *impl;
    assert_ok(ctx, family->forward.infer(ctx, arguments));
    assert_ok(ctx, nbl__op_choose(ctx, &family->forward, arguments, "ref", &impl));
    size_t bytes = (nbl__op_scratch(ctx, impl, arguments) + 63) / 64 * 64;
    void *scratch = aligned_alloc(64, bytes + 64);
    assert_non_null(scratch);
    assert_ok(ctx, nbl__op_run(ctx, &family->forward, impl, arguments, scratch, bytes));
    free(scratch);
}

/* One operator instead of rope, kv_write and attention_decode: the same caches and results, bit by bit. */
static void a_step_is_its_parts(void **state)
{
    (void)state;
    static const int32_t lengths[SEQUENCES] = {5, 1, 3},
                         rows[SEQUENCES] = {0 * SIZE + 4, 1 * SIZE + 0, 2 * SIZE + 2};
    nbl_context *ctx = new_context();
    for (int d = 0; d < 3; d++) {
        nbl_dtype dtype = compute_dtypes[d], kept = compute_dtypes[(d + 1) % 3];
        size_t bytes = (size_t)(SEQUENCES * SIZE * WIDTH) * nbl__size_of(kept);
        nbl__attention_step a = {.dtype = dtype,
                                 .q = random_tensor(dtype, 1, 1, SHAPE(SEQUENCES, 2 * HEADS, DIM)),
                                 .k = random_tensor(dtype, 2, 1, SHAPE(SEQUENCES, HEADS, DIM)),
                                 .v = random_tensor(dtype, 3, 1, SHAPE(SEQUENCES, HEADS, DIM)),
                                 .cos = random_tensor(NBL_DTYPE_F32, 4, 1, SHAPE(SEQUENCES, DIM / 2)),
                                 .sin = random_tensor(NBL_DTYPE_F32, 5, 1, SHAPE(SEQUENCES, DIM / 2)),
                                 .keys = random_tensor(kept, 6, 1, SHAPE(SEQUENCES, SIZE, HEADS, DIM)),
                                 .values = random_tensor(kept, 7, 1, SHAPE(SEQUENCES, SIZE, HEADS, DIM)),
                                 .lengths = rows_of(SEQUENCES, lengths),
                                 .out = tensor_of(dtype, SHAPE(SEQUENCES, 2 * HEADS, DIM))};
        nbl__rope_apply turn[2];
        nbl__kv_write write[2];
        for (int i = 0; i < 2; i++) {
            turn[i] = (nbl__rope_apply){.dtype = dtype, .x = i ? a.k : a.q, .cos = a.cos, .sin = a.sin};
            turn[i].rope = (nbl__rope){.theta = 10000, .rotary_dim = DIM};
            turn[i].y = tensor_of(dtype, turn[i].x.rank, turn[i].x.shape);
            run_with_scratch(ctx, &nbl__rope_family, &turn[i]);
            write[i] = (nbl__kv_write){
                .rows = rows_of(SEQUENCES, rows),
                .cache = random_tensor(kept, i ? 7 : 6, 1, SHAPE(SEQUENCES, SIZE, HEADS, DIM))};
        }
        write[0].x = turn[1].y, write[1].x = a.v;
        for (int i = 0; i < 2; i++) assert_ok(ctx, run(ctx, &nbl__kv_write_family, &write[i]));
        nbl__attention_decode decode = nbl__attention_of_step(&a, &turn[0].y);
        decode.k = write[0].cache, decode.v = write[1].cache;
        decode.out = tensor_of(dtype, SHAPE(SEQUENCES, 2 * HEADS, DIM));
        run_with_scratch(ctx, &nbl__attention_decode_family, &decode);
        run_with_scratch(ctx, &nbl__attention_step_family, &a);
        assert_memory_equal(a.keys.data, write[0].cache.data, bytes);
        assert_memory_equal(a.values.data, write[1].cache.data, bytes);
        assert_memory_equal(a.out.data, decode.out.data,
                            (size_t)(SEQUENCES * 2 * WIDTH) * nbl__size_of(dtype));
        nbl_tensor *all[] = {&a.q,           &a.k,       &a.v,      &a.cos,     &a.sin,     &a.keys,
                             &a.values,      &a.lengths, &a.out,    &turn[0].y, &turn[1].y, &write[0].rows,
                             &write[1].rows, &decode.k,  &decode.v, &decode.out};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->data);
    }
    nbl_context_destroy(ctx);
}

static void rows_are_taken_in_any_order_and_more_than_once(void **state)
{
    (void)state;
    static const int32_t rows[] = {5, 0, 5, 2};
    nbl_context *ctx = new_context();
    for (int d = 0; d < 3; d++) {
        nbl__take_rows a = {.x = random_tensor(compute_dtypes[d], 3, 1, SHAPE(2, 3, 7)),
                            .rows = rows_of(4, rows)};
        assert_ok(ctx, nbl__take_rows_family.forward.infer(ctx, &a));
        assert_int_equal(a.y.rank, 2);
        assert_int_equal(a.y.shape[0], 4);
        assert_int_equal(a.y.shape[1], 7);
        assert_int_equal(a.y.dtype, compute_dtypes[d]);
        a.y.data = malloc(4 * 7 * 4);
        assert_ok(ctx, run(ctx, &nbl__take_rows_family, &a));
        for (int64_t i = 0; i < 4 * 7; i++)
            assert_true(value_at(&a.y, i) == value_at(&a.x, rows[i / 7] * 7 + i % 7));
        free(a.x.data);
        free(a.rows.data);
        free(a.y.data);
    }
    nbl_context_destroy(ctx);
}

static void no_rows_are_no_work(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__kv_write write = {.x = tensor_of(NBL_DTYPE_F32, SHAPE(0, HEADS, DIM)),
                           .rows = rows_of(0, (int32_t[1]){0}),
                           .cache = tensor_of(NBL_DTYPE_F16, SHAPE(1, 1, HEADS, DIM))};
    nbl__take_rows take = {.x = tensor_of(NBL_DTYPE_F32, SHAPE(3, 2)), .rows = write.rows};
    take.y.data = malloc(1);
    assert_ok(ctx, run(ctx, &nbl__kv_write_family, &write));
    assert_ok(ctx, run(ctx, &nbl__take_rows_family, &take));
    assert_int_equal(take.y.shape[0], 0);
    free(write.x.data);
    free(write.rows.data);
    free(write.cache.data);
    free(take.x.data);
    free(take.y.data);
    nbl_context_destroy(ctx);
}

/* The call fails with this status and a message that has these words. */
static void refused(nbl_context *ctx, const nbl__family *family, void *arguments, nbl_status status,
                    const char *words)
{
    assert_int_equal(run(ctx, family, arguments), status);
    if (strstr(nbl_error_message(ctx), words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", nbl_error_message(ctx), words);
}

static void rows_out_of_range_and_misfits_are_refused_by_name(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__kv_write good = {.x = tensor_of(NBL_DTYPE_F32, SHAPE(2, HEADS, DIM)),
                          .rows = rows_of(2, (int32_t[]){0, SEQUENCES * SIZE}),
                          .cache = tensor_of(NBL_DTYPE_F32, SHAPE(SEQUENCES, SIZE, HEADS, DIM))},
                  bad = good;
    refused(ctx, &nbl__kv_write_family, &bad, NBL_ERROR_ARGUMENT, "kv_write: rows[1] is 15, there are 15");
    ((int32_t *)good.rows.data)[1] = -1;
    refused(ctx, &nbl__kv_write_family, &bad, NBL_ERROR_ARGUMENT, "rows[1] is -1");
    bad.cache.shape[2] = HEADS + 1;
    refused(ctx, &nbl__kv_write_family, &bad, NBL_ERROR_SHAPE, "heads and dim must be equal");
    bad = good;
    bad.x.rank = 2;
    refused(ctx, &nbl__kv_write_family, &bad, NBL_ERROR_SHAPE, "[T, heads, dim]");
    bad = good;
    bad.rows.shape[0] = 1;
    refused(ctx, &nbl__kv_write_family, &bad, NBL_ERROR_SHAPE, "rows");
    bad = good;
    bad.rows.dtype = NBL_DTYPE_F32;
    refused(ctx, &nbl__kv_write_family, &bad, NBL_ERROR_DTYPE, "rows");
    bad = good;
    bad.cache.dtype = NBL_DTYPE_U8;
    refused(ctx, &nbl__kv_write_family, &bad, NBL_ERROR_DTYPE, "cache");

    float y[8];
    nbl__take_rows take = {.x = good.x, .rows = good.rows};
    take.y.data = y;
    refused(ctx, &nbl__take_rows_family, &take, NBL_ERROR_ARGUMENT, "take_rows: rows[1] is -1, there are 4");
    take.rows.rank = 2;
    refused(ctx, &nbl__take_rows_family, &take, NBL_ERROR_SHAPE, "take_rows: x is");
    free(good.x.data);
    free(good.rows.data);
    free(good.cache.data);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_land_where_they_are_told_and_all_others_stay),
        cmocka_unit_test(rows_may_lie_in_wider_rows),
        cmocka_unit_test(a_step_is_its_parts),
        cmocka_unit_test(rows_are_taken_in_any_order_and_more_than_once),
        cmocka_unit_test(no_rows_are_no_work),
        cmocka_unit_test(rows_out_of_range_and_misfits_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
