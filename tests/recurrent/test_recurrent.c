/* test_recurrent.c - short_conv and gated_delta: a state that is left and taken up again gives the same
 * numbers as one long run, at the edges of chunks and of the convolution; neighbours in a pack and threads change
 * no bit; what does not fit is refused by name. */
#include "ops/op_runner.h"

#include "ops/recurrent/gated_delta.h"
#include "ops/recurrent/short_conv.h"

enum { KEYS = 2, VALUES = 4, DK = 24, DV = 20, CHANNELS = 37, TAPS = 4, MAX_TOKENS = 330 };

static const int64_t edges[] = {1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 200};
enum { EDGES = sizeof edges / sizeof *edges };

/* Rows [begin, end) of a tensor, in the same memory. */
static nbl_tensor rows_of(const nbl_tensor *t, int64_t begin, int64_t end)
{
    nbl_tensor part = *t;
    part.shape[0] = end - begin;
    part.data = (uint8_t *)t->data + (size_t)(begin * nbl__row_elements(t)) * nbl__size_of(t->dtype);
    return part;
}

static nbl_tensor ends_of(int64_t count, const int32_t *ends)
{
    nbl_tensor t = tensor_of(NBL_DTYPE_I32, 1, &count);
    memcpy(t.data, ends, (size_t)count * sizeof *ends);
    return t;
}

static bool same_rows(const nbl_tensor *a, int64_t at, const nbl_tensor *b, int64_t count)
{
    nbl_tensor x = rows_of(a, at, at + count), y = rows_of(b, 0, count);
    return memcmp(x.data, y.data, (size_t)(count * nbl__row_elements(a)) * nbl__size_of(a->dtype)) == 0;
}

/* ---- the operands of both families, for MAX_TOKENS rows ---- */

typedef struct operands {
    nbl_tensor q, k, v, a, b, a_log, dt_bias, d_o; /* gated_delta */
    nbl_tensor x, w, dy;                           /* short_conv */
} operands;

static operands make_operands(nbl_dtype dtype)
{
    return (operands){.q = random_tensor(dtype, 1, 1, SHAPE(MAX_TOKENS, KEYS, DK)),
                      .k = random_tensor(dtype, 2, 1, SHAPE(MAX_TOKENS, KEYS, DK)),
                      .v = random_tensor(dtype, 3, 1, SHAPE(MAX_TOKENS, VALUES, DV)),
                      .a = random_tensor(dtype, 4, 1, SHAPE(MAX_TOKENS, VALUES)),
                      .b = random_tensor(dtype, 5, 1, SHAPE(MAX_TOKENS, VALUES)),
                      .a_log = random_tensor(NBL_DTYPE_F32, 6, 1, SHAPE(VALUES)),
                      .dt_bias = random_tensor(NBL_DTYPE_F32, 7, 1, SHAPE(VALUES)),
                      .d_o = random_tensor(dtype, 8, 1, SHAPE(MAX_TOKENS, VALUES, DV)),
                      .x = random_tensor(dtype, 9, 1, SHAPE(MAX_TOKENS, CHANNELS)),
                      .w = random_tensor(NBL_DTYPE_F32, 10, 1, SHAPE(CHANNELS, 1, TAPS)),
                      .dy = random_tensor(dtype, 11, 1, SHAPE(MAX_TOKENS, CHANNELS))};
}

static void free_operands(operands *o)
{
    nbl_tensor *all[] = {&o->q,       &o->k,   &o->v, &o->a, &o->b, &o->a_log,
                         &o->dt_bias, &o->d_o, &o->x, &o->w, &o->dy};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->data);
}

static nbl__gated_delta delta_of(const operands *o, int64_t begin, int64_t end, nbl_tensor ends)
{
    return (nbl__gated_delta){.dtype = o->q.dtype,
                              .q = rows_of(&o->q, begin, end),
                              .k = rows_of(&o->k, begin, end),
                              .v = rows_of(&o->v, begin, end),
                              .a = rows_of(&o->a, begin, end),
                              .b = rows_of(&o->b, begin, end),
                              .a_log = o->a_log,
                              .dt_bias = o->dt_bias,
                              .cu_seqlens = ends,
                              .d_o = rows_of(&o->d_o, begin, end)};
}

static nbl__short_conv conv_of(const operands *o, int64_t begin, int64_t end, nbl_tensor ends)
{
    return (nbl__short_conv){.dtype = o->x.dtype,
                             .x = rows_of(&o->x, begin, end),
                             .w = o->w,
                             .cu_seqlens = ends,
                             .dy = rows_of(&o->dy, begin, end)};
}

/* ---- states ---- */

/* A prompt of n tokens leaves its state in row 1 of three; five steps go on from there. */
static void go_on(nbl_context *ctx, const operands *o, int64_t n, double bound)
{
    enum { STEPS = 5 };
    nbl_tensor all_ends = ends_of(2, (int32_t[]){0, (int32_t)n + STEPS});
    nbl_tensor ends = ends_of(3, (int32_t[]){0, 0, (int32_t)n});
    nbl__gated_delta whole = delta_of(o, 0, n + STEPS, all_ends), prompt = delta_of(o, 0, n, ends);
    nbl__short_conv all = conv_of(o, 0, n + STEPS, all_ends), first = conv_of(o, 0, n, ends);
    prompt.state = random_tensor(NBL_DTYPE_F32, 12, 1, SHAPE(3, VALUES, DK, DV));
    first.state = random_tensor(o->x.dtype, 13, 1, SHAPE(3, TAPS - 1, CHANNELS));
    nbl_tensor kept = random_tensor(NBL_DTYPE_F32, 12, 1, SHAPE(3, VALUES, DK, DV));
    run_both(ctx, &nbl__gated_delta_family, &whole, NULL);
    run_both(ctx, &nbl__gated_delta_family, &prompt, NULL);
    run_both(ctx, &nbl__short_conv_family, &all, NULL);
    run_both(ctx, &nbl__short_conv_family, &first, NULL);
    nbl_tensor third = rows_of(&kept, 2, 3);
    assert_true(same_rows(&prompt.state, 2, &third, 1)); /* there is no third sequence */
    for (int64_t i = 0; i < VALUES * DK * DV; i++)
        assert_true(value_at(&prompt.state, i) == 0); /* an empty one */
    for (int64_t t = n; t < n + STEPS; t++) {
        nbl__gated_delta_step step = {.dtype = o->q.dtype,
                                      .q = rows_of(&o->q, t, t + 1),
                                      .k = rows_of(&o->k, t, t + 1),
                                      .v = rows_of(&o->v, t, t + 1),
                                      .a = rows_of(&o->a, t, t + 1),
                                      .b = rows_of(&o->b, t, t + 1),
                                      .a_log = o->a_log,
                                      .dt_bias = o->dt_bias,
                                      .state = rows_of(&prompt.state, 1, 2)};
        nbl__short_conv_step conv = {.dtype = o->x.dtype,
                                     .x = rows_of(&o->x, t, t + 1),
                                     .w = o->w,
                                     .state = rows_of(&first.state, 1, 2)};
        nbl__gated_delta_step apart = step;
        nbl__short_conv_step conv_apart = conv;
        step.in_place = conv.in_place = true;
        run_both(ctx, &nbl__gated_delta_step_family, &apart, NULL);
        run_both(ctx, &nbl__short_conv_step_family, &conv_apart, NULL);
        run_both(ctx, &nbl__gated_delta_step_family, &step, NULL);
        run_both(ctx, &nbl__short_conv_step_family, &conv, NULL);
        assert_true(same_rows(&step.state, 0, &apart.next, 1)); /* in place or not: the same bits */
        assert_true(same_rows(&conv.state, 0, &conv_apart.next, 1));
        nbl_tensor o_want = rows_of(&whole.o, t, t + 1), y_want = rows_of(&all.y, t, t + 1);
        assert_true(distance(&step.o, &o_want) <= bound);
        assert_true(distance(&conv.y, &y_want) <= bound);
        free_outputs(&nbl__gated_delta_step_family, &step);
        free_outputs(&nbl__gated_delta_step_family, &apart);
        free_outputs(&nbl__short_conv_step_family, &conv);
        free_outputs(&nbl__short_conv_step_family, &conv_apart);
    }
    free_outputs(&nbl__gated_delta_family, &whole);
    free_outputs(&nbl__gated_delta_family, &prompt);
    free_outputs(&nbl__short_conv_family, &all);
    free_outputs(&nbl__short_conv_family, &first);
    free(prompt.state.data);
    free(first.state.data);
    free(kept.data);
    free(all_ends.data);
    free(ends.data);
}

static void steps_go_on_where_a_prompt_of_any_length_ended(void **state)
{
    (void)state;
    static const double bounds[] = {3e-6, 2e-3, 2e-2};
    nbl_context *ctx = new_context();
    for (int d = 0; d < 3; d++) {
        operands o = make_operands(compute_dtypes[d]);
        for (int i = 0; i < EDGES; i++) go_on(ctx, &o, edges[i], bounds[d]);
        free_operands(&o);
    }
    nbl_context_destroy(ctx);
}

/* ---- packs ---- */

/* A sequence of n tokens alone, and between two others, on other numbers of threads. */
static void beside_others(const operands *o, int64_t n, const char *force)
{
    enum { BEFORE = 70, AFTER = 33 };
    nbl_context *one = context_of(NULL, 1), *many = context_of(NULL, 3);
    nbl_tensor alone = ends_of(2, (int32_t[]){0, (int32_t)n});
    nbl_tensor ends = ends_of(4, (int32_t[]){0, BEFORE, BEFORE + (int32_t)n, BEFORE + (int32_t)n + AFTER});
    nbl__gated_delta a = delta_of(o, BEFORE, BEFORE + n, alone), b = delta_of(o, 0, BEFORE + n + AFTER, ends);
    nbl__short_conv c = conv_of(o, BEFORE, BEFORE + n, alone), d = conv_of(o, 0, BEFORE + n + AFTER, ends);
    a.keep = b.keep = c.keep = d.keep = true;
    run_both(one, &nbl__gated_delta_family, &a, force);
    run_both(many, &nbl__gated_delta_family, &b, force);
    run_both(one, &nbl__short_conv_family, &c, force);
    run_both(many, &nbl__short_conv_family, &d, force);
    const nbl_tensor *const small[] = {&a.o, &a.dq, &a.dk, &a.dv, &a.da, &a.db, &c.y, &c.dx};
    const nbl_tensor *const large[] = {&b.o, &b.dq, &b.dk, &b.dv, &b.da, &b.db, &d.y, &d.dx};
    for (int i = 0; i < 8; i++) assert_true(same_rows(large[i], BEFORE, small[i], n));
    assert_true(same_rows(&b.last, 1, &a.last, 1));
    assert_true(same_rows(&d.last, 1, &c.last, 1));
    free_outputs(&nbl__gated_delta_family, &a);
    free_outputs(&nbl__gated_delta_family, &b);
    free_outputs(&nbl__short_conv_family, &c);
    free_outputs(&nbl__short_conv_family, &d);
    free(alone.data);
    free(ends.data);
    nbl_context_destroy(one);
    nbl_context_destroy(many);
}

static void neighbours_and_threads_change_no_bit(void **state)
{
    (void)state;
    operands o = make_operands(NBL_DTYPE_F32);
    for (int i = 0; i < EDGES; i++) {
        beside_others(&o, edges[i], NULL);
        if (edges[i] < 70) beside_others(&o, edges[i], "ref");
    }
    free_operands(&o);
}

/* ---- refusals ---- */

static void what_does_not_fit_is_refused_by_name(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    operands o = make_operands(NBL_DTYPE_F32);
    nbl_tensor ends = ends_of(3, (int32_t[]){0, 5, 9});
    nbl__gated_delta a = delta_of(&o, 0, 9, ends);
    nbl__short_conv c = conv_of(&o, 0, 9, ends);

    a.state = random_tensor(NBL_DTYPE_F32, 1, 1, SHAPE(1, VALUES, DK, DV)); /* two sequences need two */
    assert_int_equal(nbl__infer(ctx, &nbl__gated_delta_family, false, &a), NBL_ERROR_SHAPE);
    assert_non_null(strstr(nbl_error_message(ctx), "gated_delta: state"));
    free(a.state.data);
    a.state = (nbl_tensor){0};
    a.k.shape[1] = 1;
    assert_int_equal(nbl__infer(ctx, &nbl__gated_delta_family, false, &a), NBL_ERROR_SHAPE);
    assert_non_null(strstr(nbl_error_message(ctx), "gated_delta: k"));
    a.k.shape[1] = KEYS;
    a.v.shape[1] = 3;
    assert_int_equal(nbl__infer(ctx, &nbl__gated_delta_family, false, &a), NBL_ERROR_SHAPE);
    a.v.shape[1] = VALUES;

    c.w.shape[2] = 1;
    assert_int_equal(nbl__infer(ctx, &nbl__short_conv_family, false, &c), NBL_ERROR_SHAPE);
    assert_non_null(strstr(nbl_error_message(ctx), "short_conv: w"));
    c.w.shape[2] = TAPS;

    ((int32_t *)ends.data)[2] = 8; /* not all rows */
    assert_ok(ctx, nbl__infer(ctx, &nbl__gated_delta_family, false, &a));
    make_outputs(&nbl__gated_delta_family, &a, false, 0);
    assert_int_equal(run_one(ctx, &nbl__gated_delta_family.forward, &a, NULL), NBL_ERROR_ARGUMENT);
    assert_non_null(strstr(nbl_error_message(ctx), "cu_seqlens[2] is 8, not the 9 rows of q"));
    assert_ok(ctx, nbl__infer(ctx, &nbl__short_conv_family, false, &c));
    make_outputs(&nbl__short_conv_family, &c, false, 0);
    assert_int_equal(run_one(ctx, &nbl__short_conv_family.forward, &c, NULL), NBL_ERROR_ARGUMENT);
    assert_non_null(strstr(nbl_error_message(ctx), "rows of x"));
    free_outputs(&nbl__gated_delta_family, &a);
    free_outputs(&nbl__short_conv_family, &c);
    free(ends.data);
    free_operands(&o);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_go_on_where_a_prompt_of_any_length_ended),
        cmocka_unit_test(neighbours_and_threads_change_no_bit),
        cmocka_unit_test(what_does_not_fit_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
