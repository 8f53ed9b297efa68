/* test_ops_loss.c - cross_entropy: the tiled implementation against the reference over shapes that its tiles
 * do not divide, dtypes, storage formats, instruction sets and numbers of threads; what is refused; what
 * ignored tokens and NaN may touch; gradients against differences. */
#include <math.h>

#include "support.h"

#include "base/philox.h"
#include "ops/loss/cross_entropy.h"
#include "ops/families.h"
#include "quant/quant.h"

static float random_value(uint32_t stream, int64_t i)
{
    uint32_t words[4];
    nbl__philox((uint32_t[4]){(uint32_t)i, stream, 0, 0}, (uint32_t[2]){11, 22}, words);
    return (nbl__uniform(words[0]) + nbl__uniform(words[1]) + nbl__uniform(words[2])) * 2 - 3;
}

/* ---- one problem and its results ---- */

typedef struct shape {
    int64_t tokens, hidden, vocabulary;
} shape;

typedef struct problem {
    nbl__cross_entropy args;
    shape z;
    nbl_quantized_parts parts;
    void *dense;
} problem;

static nbl_tensor room(nbl_dtype dtype, int rank, int64_t first, int64_t second)
{
    uint64_t bytes;
    nbl_tensor t = {.dtype = dtype, .rank = rank, .shape = {first, second}};
    nbl__dtype_bytes(dtype, (uint64_t)nbl__tensor_elements(&t), &bytes);
    t.data = malloc(bytes + 8);
    memset(t.data, 0xff, bytes + 8);
    return t;
}

static nbl_tensor random_tensor(nbl_dtype dtype, int64_t rows, int64_t columns, uint32_t stream, float scale)
{
    nbl_tensor t = room(dtype, 2, rows, columns);
    for (int64_t i = 0; i < rows * columns; i++) {
        float value = random_value(stream, i) * scale;
        nbl__from_f32(NBL_ISA_SCALAR, &value, dtype, (uint8_t *)t.data + (size_t)i * nbl__size_of(dtype), 1);
    }
    return t;
}

static void set_f32(nbl_tensor *t, int64_t i, float value)
{
    nbl__from_f32(NBL_ISA_SCALAR, &value, t->dtype, (uint8_t *)t->data + (size_t)i * nbl__size_of(t->dtype),
                  1);
}

static float get_f32(const nbl_tensor *t, int64_t i)
{
    float value;
    nbl__to_f32(NBL_ISA_SCALAR, t->dtype, (const uint8_t *)t->data + (size_t)i * nbl__size_of(t->dtype),
                &value, 1);
    return value;
}

static void make_problem(nbl_context *ctx, problem *p, shape z, nbl_dtype dtype, nbl_format format)
{
    *p = (problem){.z = z};
    nbl__cross_entropy *a = &p->args;
    nbl_tensor w = random_tensor(dtype, z.vocabulary, z.hidden, 1, 0.5f);
    a->dtype = dtype;
    a->x = random_tensor(dtype, z.tokens, z.hidden, 2, 1);
    p->dense = w.data;
    a->w = (nbl_weight){.format = NBL_FORMAT_DENSE,
                        .dtype = dtype,
                        .rank = 2,
                        .shape = {z.vocabulary, z.hidden},
                        .data = w.data};
    if (format != NBL_FORMAT_DENSE) {
        nbl_quantize_options options = {NBL_OPTIONS(nbl_quantize_options), .format = format};
        nbl_quantized_sizes sizes;
        assert_ok(ctx, nbl_quantize_sizes(ctx, &options, 2, a->w.shape, &sizes));
        p->parts = (nbl_quantized_parts){malloc(sizes.data + 1), malloc(sizes.scales + 1),
                                         malloc(sizes.scale_codes + 1), malloc(sizes.nested_scales + 1)};
        assert_ok(ctx, nbl_quantize(ctx, &options, dtype, 2, a->w.shape, w.data, &p->parts, &a->w));
    }
    a->labels = room(NBL_DTYPE_I32, 1, z.tokens, 0);
    for (int64_t t = 0; t < z.tokens; t++) {
        float u = random_value(3, t) / 6 + 0.5f;
        ((int32_t *)a->labels.data)[t] = t % 4 == 1 ? -100 : (int32_t)(u * (float)(z.vocabulary - 1));
    }
}

static void give_outputs(nbl_context *ctx, nbl__cross_entropy *a)
{
    assert_ok(ctx, nbl__cross_entropy_family.forward.infer(ctx, a));
    a->loss = room(NBL_DTYPE_F32, 1, nbl__tensor_elements(&a->loss), 0);
    a->logprobs = room(NBL_DTYPE_F32, 1, nbl__tensor_rows(&a->x), 0);
    a->lse = room(NBL_DTYPE_F32, 2, 2, nbl__tensor_rows(&a->x));
    if (a->grad_in_forward) a->dx_in_forward = room(NBL_DTYPE_F32, 2, nbl__tensor_rows(&a->x), a->w.shape[1]);
    a->dloss = random_tensor(NBL_DTYPE_F32, 1, nbl__tensor_elements(&a->loss), 4, 1);
    a->dloss = (nbl_tensor){NBL_DTYPE_F32, 1, {nbl__tensor_elements(&a->loss)}, a->dloss.data, 0};
    a->dx = room(a->dtype, 2, nbl__tensor_rows(&a->x), a->w.shape[1]);
    a->dw = room(NBL_DTYPE_F32, 2, a->w.shape[0], a->w.shape[1]);
    assert_ok(ctx, nbl__cross_entropy_family.backward.infer(ctx, a));
}

static void free_outputs(nbl__cross_entropy *a)
{
    void *lists[] = {a->loss.data, a->logprobs.data, a->lse.data,          a->dloss.data,
                     a->dx.data,   a->dw.data,       a->dx_in_forward.data};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) free(lists[i]);
}

static void free_problem(problem *p)
{
    void *lists[] = {p->dense,        p->args.x.data,       p->args.labels.data,   p->parts.data,
                     p->parts.scales, p->parts.scale_codes, p->parts.nested_scales};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) free(lists[i]);
}

static nbl_status try_op(nbl_context *ctx, const nbl__op *op, const char *force, nbl__cross_entropy *a)
{
    const nbl__impl *impl;
    assert_ok(ctx, nbl__op_choose(ctx, op, a, force, &impl));
    size_t bytes = nbl__op_scratch(ctx, impl, a);
    void *scratch = aligned_alloc(64, bytes + 64 - bytes % 64);
    memset(scratch, 0xff, bytes); /* NaN: nothing may be read before it is written */
    nbl_status status = nbl__op_run(ctx, op, impl, a, scratch, bytes);
    free(scratch);
    return status;
}

static void run_both(nbl_context *ctx, const char *force, nbl__cross_entropy *a)
{
    assert_ok(ctx, try_op(ctx, &nbl__cross_entropy_family.forward, force, a));
    assert_ok(ctx, try_op(ctx, &nbl__cross_entropy_family.backward, force, a));
}

static double error_of(const nbl_tensor *got, const nbl_tensor *want)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < nbl__tensor_elements(want); i++) {
        double d = (double)get_f32(got, i) - (double)get_f32(want, i);
        assert_true(isfinite(d));
        difference += d * d;
        size += (double)get_f32(want, i) * (double)get_f32(want, i);
    }
    return size > 0 ? sqrt(difference / size) : sqrt(difference);
}

static void check_near(const char *name, const nbl__cross_entropy *a, const nbl_tensor *got,
                       const nbl_tensor *want)
{
    double bound = a->dtype == NBL_DTYPE_F32 ? 1e-5 : a->dtype == NBL_DTYPE_F16 ? 1e-3 : 8e-3;
    double error = error_of(got, want);
    if (!(error <= bound))
        fail_msg("%s: error %g, %s, x %s, w %s, softcap %g, smoothing %g, reduction %d", name, error,
                 nbl_dtype_name(a->dtype), nbl__show_shape(2, a->x.shape).text,
                 nbl__show_shape(2, a->w.shape).text, (double)a->softcap, (double)a->smoothing, a->reduction);
}

static void compare(nbl_context *ctx, const nbl__cross_entropy *given)
{
    nbl__cross_entropy fast = *given, slow = *given;
    give_outputs(ctx, &fast);
    give_outputs(ctx, &slow);
    run_both(ctx, "cpu", &fast);
    run_both(ctx, "ref", &slow);
    check_near("loss", given, &fast.loss, &slow.loss);
    check_near("logprobs", given, &fast.logprobs, &slow.logprobs);
    check_near("lse", given, &fast.lse, &slow.lse);
    check_near("dx", given, &fast.dx, &slow.dx);
    if (given->train_w) check_near("dw", given, &fast.dw, &slow.dw);
    free_outputs(&fast);
    free_outputs(&slow);
}

static const nbl_dtype dtypes[] = {NBL_DTYPE_F32, NBL_DTYPE_F16, NBL_DTYPE_BF16};

/* ---- tests ---- */

static void tiles_give_what_the_reference_gives(void **state)
{
    (void)state;
    static const char *const isas[] = {"scalar", "avx2", "avx512", ""};
    static const shape shapes[] = {{0, 8, 5}, {1, 1, 1}, {3, 33, 7}, {6, 16, 2049}, {9, 5, 4111}};
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        setenv("NIBBLE_ISA", isas[i], 1);
        nbl_context *ctx = new_context();
        for (int k = 0; k < 5 * 3 * 4; k++) {
            problem p;
            make_problem(ctx, &p, shapes[k % 5], dtypes[k / 5 % 3], NBL_FORMAT_DENSE);
            p.args.softcap = k / 15 == 1 ? 2.0f : 0;
            p.args.smoothing = k / 15 == 2 ? 0.1f : 0;
            p.args.reduction = k / 15 == 3;
            p.args.train_w = k % 2;
            compare(ctx, &p.args);
            free_problem(&p);
        }
        nbl_context_destroy(ctx);
    }
    unsetenv("NIBBLE_ISA");
}

static void more_tokens_than_one_group_and_packed_weights(void **state)
{
    (void)state;
    static const nbl_format formats[] = {NBL_FORMAT_DENSE, NBL_FORMAT_NF4, NBL_FORMAT_FP4, NBL_FORMAT_INT8,
                                         NBL_FORMAT_MXFP4};
    nbl_context *ctx = new_context();
    for (int k = 0; k < 5; k++) {
        problem p;
        bool many = formats[k] == NBL_FORMAT_DENSE; /* 1500 of 2000 are trained: two groups, the last short */
        shape z = many ? (shape){2000, 8, 13} : (shape){5, 32, 2080};
        make_problem(ctx, &p, z, many ? NBL_DTYPE_F32 : dtypes[k % 3], formats[k]);
        p.args.train_w = true;
        p.args.smoothing = 0.2f;
        p.args.softcap = 5;
        compare(ctx, &p.args);
        free_problem(&p);
    }
    nbl_context_destroy(ctx);
}

static void any_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    nbl__cross_entropy first = {0};
    problem p;
    nbl_context *ctx = new_context_with(1);
    make_problem(ctx, &p, (shape){75, 20, 2500}, NBL_DTYPE_BF16, NBL_FORMAT_DENSE);
    p.args.train_w = true;
    p.args.smoothing = 0.1f;
    for (int threads = 1; threads <= 5; threads += 2) {
        nbl_context *own = new_context_with(threads);
        nbl__cross_entropy a = p.args;
        give_outputs(own, &a);
        run_both(own, "cpu", &a);
        if (threads == 1) {
            first = a;
        } else {
            assert_memory_equal(a.loss.data, first.loss.data, 4);
            assert_memory_equal(a.logprobs.data, first.logprobs.data, 75 * 4);
            assert_memory_equal(a.lse.data, first.lse.data, 75 * 8);
            assert_memory_equal(a.dx.data, first.dx.data, 75 * 20 * 2);
            assert_memory_equal(a.dw.data, first.dw.data, 2500 * 20 * 4);
            free_outputs(&a);
        }
        nbl_context_destroy(own);
    }
    free_outputs(&first);
    free_problem(&p);
    nbl_context_destroy(ctx);
}

/* 1028 trained tokens: two groups early, and a rest that takes the way of few rows; a dloss as in training. */
static void dx_made_in_forward_has_the_same_bits(void **state)
{
    (void)state;
    static const nbl_format formats[] = {NBL_FORMAT_DENSE, NBL_FORMAT_NF4};
    static const float scales[] = {1, 0x1p16f, -0.25f};
    for (int k = 0; k < 6; k++) {
        nbl_context *ctx = new_context_with(1 + k % 2);
        problem p;
        shape z = k < 2 ? (shape){1371, 64, 20000} : (shape){90, 64, 2500};
        make_problem(ctx, &p, z, k < 2 ? NBL_DTYPE_F32 : dtypes[k % 3], formats[k % 2]);
        if (k % 2) p.args.softcap = 3, p.args.smoothing = 0.1f;
        nbl__cross_entropy plain = p.args, grad_in_forward = p.args;
        grad_in_forward.grad_in_forward = true;
        give_outputs(ctx, &plain);
        give_outputs(ctx, &grad_in_forward);
        *(float *)plain.dloss.data = *(float *)grad_in_forward.dloss.data = scales[k % 3];
        run_both(ctx, "cpu", &plain);
        run_both(ctx, "cpu", &grad_in_forward);
        assert_memory_equal(grad_in_forward.loss.data, plain.loss.data, 4);
        assert_memory_equal(grad_in_forward.logprobs.data, plain.logprobs.data, (size_t)z.tokens * 4);
        assert_memory_equal(grad_in_forward.lse.data, plain.lse.data, (size_t)z.tokens * 8);
        assert_memory_equal(grad_in_forward.dx.data, plain.dx.data,
                            (size_t)(z.tokens * z.hidden) * nbl__size_of(p.args.dtype));
        free_outputs(&plain);
        free_outputs(&grad_in_forward);
        free_problem(&p);
        nbl_context_destroy(ctx);
    }
}

static void ignored_tokens_are_not_read_and_nan_stays_in_its_token(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int k = 0; k < 2; k++) {
        problem p;
        make_problem(ctx, &p, (shape){9, 12, 2051}, NBL_DTYPE_F32, NBL_FORMAT_DENSE);
        nbl__cross_entropy *a = &p.args;
        a->reduction = NBL_REDUCTION_NONE;
        for (int64_t i = 0; i < 12; i++)
            set_f32(&a->x, 1 * 12 + i, NAN), set_f32(&a->x, 5 * 12 + i, INFINITY);
        set_f32(&a->x, 6 * 12 + 3, k ? NAN : INFINITY);
        give_outputs(ctx, a);
        run_both(ctx, "cpu", a);
        for (int64_t t = 0; t < 9; t++) {
            bool ignored = t == 1 || t == 5, bad = t == 6;
            for (int64_t i = 0; i < 12; i++) {
                float dx = get_f32(&a->dx, t * 12 + i);
                assert_true(ignored ? dx == 0 : bad ? isnan(dx) : isfinite(dx));
            }
            assert_true(isnan(get_f32(&a->loss, t)) == bad && isnan(get_f32(&a->logprobs, t)) == bad);
            if (ignored) assert_true(get_f32(&a->loss, t) == 0 && get_f32(&a->logprobs, t) == 0);
        }
        free_outputs(a);
        free_problem(&p);
    }
    nbl_context_destroy(ctx);
}

static void a_batch_without_trained_tokens_has_no_loss_and_no_gradients(void **state)
{
    (void)state;
    static const char *const names[] = {"cpu", "ref"};
    nbl_context *ctx = new_context();
    for (int k = 0; k < 4; k++) {
        problem p;
        make_problem(ctx, &p, (shape){3, 4, 5}, NBL_DTYPE_F16, NBL_FORMAT_DENSE);
        nbl__cross_entropy *a = &p.args;
        a->train_w = true;
        a->accumulate = k / 2;
        for (int t = 0; t < 3; t++) ((int32_t *)a->labels.data)[t] = -100;
        give_outputs(ctx, a);
        for (int i = 0; i < 20; i++) set_f32(&a->dw, i, 7);
        run_both(ctx, names[k % 2], a);
        assert_true(get_f32(&a->loss, 0) == 0);
        for (int i = 0; i < 12; i++) assert_true(get_f32(&a->dx, i) == 0);
        for (int i = 0; i < 20; i++) assert_true(get_f32(&a->dw, i) == (a->accumulate ? 7 : 0));
        free_outputs(a);
        free_problem(&p);
    }
    nbl_context_destroy(ctx);
}

/* Ragged parts of a batch, each a mean of its own, would weigh their tokens differently. */
static void parts_with_the_denominator_of_the_whole_add_up_to_it(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    problem p;
    make_problem(ctx, &p, (shape){10, 6, 40}, NBL_DTYPE_F32, NBL_FORMAT_DENSE);
    nbl__cross_entropy whole = p.args, part = p.args;
    whole.train_w = part.train_w = true;
    give_outputs(ctx, &whole);
    run_both(ctx, "cpu", &whole);
    float total = 0;
    int trained = 0;
    for (int t = 0; t < 10; t++) trained += ((int32_t *)p.args.labels.data)[t] >= 0;
    give_outputs(ctx, &part);
    float denominator = (float)trained;
    part.denominator = (nbl_tensor){NBL_DTYPE_F32, 1, {1}, &denominator, 0};
    for (int k = 0; k < 2; k++) { /* 3 tokens, then 7 */
        part.x.shape[0] = part.labels.shape[0] = k ? 7 : 3;
        part.x.data = (float *)p.args.x.data + (k ? 3 * 6 : 0);
        part.labels.data = (int32_t *)p.args.labels.data + (k ? 3 : 0);
        part.accumulate = k;
        assert_ok(ctx, nbl__cross_entropy_family.forward.infer(ctx, &part));
        assert_ok(ctx, nbl__cross_entropy_family.backward.infer(ctx, &part));
        run_both(ctx, "cpu", &part);
        total += get_f32(&part.loss, 0);
        part.dx.shape[0] = k ? 7 : 3;
        nbl_tensor same = part.dx;
        same.data = (float *)whole.dx.data + (k ? 3 * 6 : 0);
        assert_true(error_of(&part.dx, &same) < 1e-6);
    }
    assert_true(fabsf(total - get_f32(&whole.loss, 0)) < 1e-5f);
    assert_true(error_of(&part.dw, &whole.dw) < 1e-6);
    free_outputs(&whole);
    free_outputs(&part);
    free_problem(&p);
    nbl_context_destroy(ctx);
}

static void large_logits_and_a_sure_label_keep_their_digits(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    float x[2] = {1, 0}, w[6] = {1000, 0, 990, 0, 100, 0};
    int32_t label = 0;
    nbl__cross_entropy a = {.dtype = NBL_DTYPE_F32,
                            .x = {NBL_DTYPE_F32, 1, {2}, x},
                            .w = {.dtype = NBL_DTYPE_F32, .rank = 2, .shape = {3, 2}, .data = w},
                            .labels = {NBL_DTYPE_I32, 1, {1}, &label}};
    give_outputs(ctx, &a);
    ((float *)a.dloss.data)[0] = 1;
    run_both(ctx, "cpu", &a);
    double exact = log1p(exp(-10)), p = exp(-10) / (1 + exp(-10));    /* of the second */
    assert_true(fabs((double)get_f32(&a.loss, 0) - exact) < 0x1p-23); /* of a sum of 1 and a little */
    assert_true(fabs((double)get_f32(&a.logprobs, 0) + exact) < 0x1p-23);
    assert_true(fabs((double)get_f32(&a.dx, 0) + 10 * p) < 1000 * 0x1p-23);
    free_outputs(&a);
    nbl_context_destroy(ctx);
}

static void the_references_gradients_are_differences_of_its_loss(void **state)
{
    (void)state;
    enum { TOKENS = 4, HIDDEN = 3, VOCABULARY = 6 };
    nbl_context *ctx = new_context();
    for (int k = 0; k < 4; k++) {
        problem p;
        double x[TOKENS * HIDDEN], dx[TOKENS * HIDDEN], loss[TOKENS];
        make_problem(ctx, &p, (shape){TOKENS, HIDDEN, VOCABULARY}, NBL_DTYPE_F32, NBL_FORMAT_DENSE);
        nbl__cross_entropy *a = &p.args;
        a->softcap = k & 1 ? 3 : 0;
        a->smoothing = k & 1 ? 0.3f : 0;
        a->reduction = k / 2;
        give_outputs(ctx, a);
        for (int i = 0; i < TOKENS * HIDDEN; i++) x[i] = (double)get_f32(&a->x, i);
        nbl_tensor f32_x = a->x, f32_dx = a->dx, f32_loss = a->loss;
        a->x.dtype = a->dx.dtype = a->loss.dtype = NBL_DTYPE_F64;
        a->x.data = x, a->dx.data = dx, a->loss.data = loss;
        run_both(ctx, "ref", a);
        for (int i = 0; i < TOKENS * HIDDEN; i++) {
            double sides[2], kept = x[i], step = 1e-5;
            for (int side = 0; side < 2; side++) {
                x[i] = kept + (side ? step : -step);
                assert_ok(ctx, try_op(ctx, &nbl__cross_entropy_family.forward, "ref", a));
                sides[side] = 0;
                for (int64_t t = 0; t < nbl__tensor_elements(&a->dloss); t++)
                    sides[side] += loss[t] * (double)get_f32(&a->dloss, t);
            }
            x[i] = kept;
            assert_true(fabs((sides[1] - sides[0]) / (2 * step) - dx[i]) < 1e-8);
        }
        a->x = f32_x, a->dx = f32_dx, a->loss = f32_loss;
        free_outputs(a);
        free_problem(&p);
    }
    nbl_context_destroy(ctx);
}

static void labels_out_of_range_are_refused_by_value_and_index(void **state)
{
    (void)state;
    static const int32_t wrong[] = {50, -1, -99, -101, 2147483647};
    nbl_context *ctx = new_context();
    for (size_t k = 0; k < 2 * sizeof wrong / sizeof *wrong; k++) {
        problem p;
        char value[32];
        make_problem(ctx, &p, (shape){9, 4, 50}, NBL_DTYPE_F32, NBL_FORMAT_DENSE);
        ((int32_t *)p.args.labels.data)[7] = wrong[k / 2];
        give_outputs(ctx, &p.args);
        snprintf(value, sizeof value, "is %d,", wrong[k / 2]);
        assert_int_equal(try_op(ctx, &nbl__cross_entropy_family.forward, k % 2 ? "ref" : "cpu", &p.args),
                         NBL_ERROR_ARGUMENT);
        assert_non_null(strstr(nbl_error_message(ctx), "cross_entropy: labels[7]"));
        assert_non_null(strstr(nbl_error_message(ctx), value));
        assert_int_equal(try_op(ctx, &nbl__cross_entropy_family.backward, k % 2 ? "ref" : "cpu", &p.args),
                         NBL_ERROR_ARGUMENT);
        free_outputs(&p.args);
        free_problem(&p);
    }
    nbl_context_destroy(ctx);
}

/* Its value is known when the operator runs. */
static void a_denominator_that_divides_nothing_is_refused(void **state)
{
    (void)state;
    static const float wrong[] = {-3, NAN, INFINITY};
    nbl_context *ctx = new_context();
    problem p;
    make_problem(ctx, &p, (shape){9, 4, 50}, NBL_DTYPE_F32, NBL_FORMAT_DENSE);
    give_outputs(ctx, &p.args);
    for (size_t k = 0; k < 2 * sizeof wrong / sizeof *wrong; k++) {
        float value = wrong[k / 2];
        p.args.denominator = (nbl_tensor){NBL_DTYPE_F32, 1, {1}, &value, 0};
        assert_int_equal(try_op(ctx, &nbl__cross_entropy_family.forward, k % 2 ? "ref" : "cpu", &p.args),
                         NBL_ERROR_ARGUMENT);
        assert_non_null(strstr(nbl_error_message(ctx), "denominator"));
    }
    free_outputs(&p.args);
    free_problem(&p);
    nbl_context_destroy(ctx);
}

static void mismatches_name_operator_tensor_dtypes_and_shapes(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    problem p;
    make_problem(ctx, &p, (shape){3, 4, 5}, NBL_DTYPE_F32, NBL_FORMAT_DENSE);
    give_outputs(ctx, &p.args);
    const nbl__cross_entropy good = p.args;
#define REFUSED(change, status, ...)                                                                         \
    do {                                                                                                     \
        static const char *const words[] = {__VA_ARGS__};                                                    \
        nbl__cross_entropy a = good;                                                                         \
        change;                                                                                              \
        assert_int_equal(nbl__cross_entropy_family.backward.infer(ctx, &a), status);                         \
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)                                            \
            if (!strstr(nbl_error_message(ctx), words[i]))                                                   \
                fail_msg("no %s in: %s", words[i], nbl_error_message(ctx));                                  \
    } while (0)
    REFUSED(a.x.dtype = NBL_DTYPE_BF16, NBL_ERROR_DTYPE, "cross_entropy", "x", "bf16", "f32");
    REFUSED(a.dtype = NBL_DTYPE_I8, NBL_ERROR_DTYPE, "i8");
    REFUSED(a.w.dtype = NBL_DTYPE_I32, NBL_ERROR_DTYPE, "w", "[5, 4]", "i32");
    REFUSED(a.w.rank = 1, NBL_ERROR_SHAPE, "w", "[5]");
    REFUSED(a.w.shape[1] = 3, NBL_ERROR_SHAPE, "x", "[3, 4]", "[5, 3]");
    REFUSED(a.labels.dtype = NBL_DTYPE_I64, NBL_ERROR_DTYPE, "labels", "i64", "i32");
    REFUSED(a.labels.shape[0] = 2, NBL_ERROR_SHAPE, "labels", "[2]", "3 tokens");
    REFUSED(a.softcap = -1, NBL_ERROR_ARGUMENT, "softcap");
    REFUSED(a.smoothing = 1.5f, NBL_ERROR_ARGUMENT, "smoothing");
    REFUSED(a.smoothing = NAN, NBL_ERROR_ARGUMENT, "smoothing");
    float three = 3;
    const nbl_tensor denominator = {NBL_DTYPE_F32, 1, {1}, &three, 0};
    REFUSED((a.denominator = denominator, a.denominator.dtype = NBL_DTYPE_F16), NBL_ERROR_DTYPE,
            "denominator", "f16", "f32");
    REFUSED((a.denominator = denominator, a.denominator.shape[0] = 2), NBL_ERROR_SHAPE, "denominator", "[2]",
            "[1]");
    REFUSED((a.denominator = denominator, a.reduction = NBL_REDUCTION_NONE), NBL_ERROR_ARGUMENT,
            "denominator", "mean");
    REFUSED(a.dloss.dtype = NBL_DTYPE_F16, NBL_ERROR_DTYPE, "dloss", "f16", "f32");
    REFUSED(a.dloss.shape[0] = 3, NBL_ERROR_SHAPE, "dloss", "[3]", "[1]");
    REFUSED(a.reduction = NBL_REDUCTION_NONE, NBL_ERROR_SHAPE, "dloss", "[1]", "[3]");
#undef REFUSED
    free_outputs(&p.args);
    free_problem(&p);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_give_what_the_reference_gives),
        cmocka_unit_test(more_tokens_than_one_group_and_packed_weights),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(dx_made_in_forward_has_the_same_bits),
        cmocka_unit_test(ignored_tokens_are_not_read_and_nan_stays_in_its_token),
        cmocka_unit_test(a_batch_without_trained_tokens_has_no_loss_and_no_gradients),
        cmocka_unit_test(parts_with_the_denominator_of_the_whole_add_up_to_it),
        cmocka_unit_test(large_logits_and_a_sure_label_keep_their_digits),
        cmocka_unit_test(the_references_gradients_are_differences_of_its_loss),
        cmocka_unit_test(labels_out_of_range_are_refused_by_value_and_index),
        cmocka_unit_test(a_denominator_that_divides_nothing_is_refused),
        cmocka_unit_test(mismatches_name_operator_tensor_dtypes_and_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
