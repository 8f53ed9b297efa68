/* test_ops_optimizer.c - adamw and grad_norm over lists of tensors: against their references for all dtypes,
 * odd sizes, instruction sets and numbers of threads; 8-bit moments; what is not finite; what is refused. */
#include <math.h>

#include "support.h"

#include "base/philox.h"
#include "ops/optimizer/adamw.h"
#include "ops/families.h"
#include "ops/optimizer/grad_norm.h"
#include "quant/quant.h"

static float random_value(uint32_t stream, int64_t i)
{
    uint32_t words[4];
    nbl__philox((uint32_t[4]){(uint32_t)i, stream, 0, 0}, (uint32_t[2]){5, 6}, words);
    return (nbl__uniform(words[0]) + nbl__uniform(words[1]) + nbl__uniform(words[2])) * 2 - 3;
}

static nbl_tensor zeros(nbl_dtype dtype, int64_t n)
{
    uint64_t bytes;
    nbl_tensor t = {.dtype = dtype, .rank = 1, .shape = {n}};
    nbl__dtype_bytes(dtype, (uint64_t)n, &bytes);
    t.data = calloc(1, bytes + 1);
    return t;
}

static void set_f32(const nbl_tensor *t, int64_t i, float value)
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

static void fill(const nbl_tensor *t, uint32_t stream, float scale)
{
    for (int64_t i = 0; i < t->shape[0]; i++) set_f32(t, i, random_value(stream, i) * scale);
}

static void run_op(nbl_context *ctx, const nbl__op *op, const char *force, void *args)
{
    const nbl__impl *impl;
    assert_ok(ctx, op->infer(ctx, args));
    assert_ok(ctx, nbl__op_choose(ctx, op, args, force, &impl));
    size_t bytes = nbl__op_scratch(ctx, impl, args);
    void *scratch = aligned_alloc(64, bytes + 64 - bytes % 64);
    memset(scratch, 0xff, bytes);
    assert_ok(ctx, nbl__op_run(ctx, op, impl, args, scratch, bytes));
    free(scratch);
}

static const nbl_dtype dtypes[] = {NBL_DTYPE_F32, NBL_DTYPE_F16, NBL_DTYPE_BF16};
static const char *const isas[] = {"scalar", "avx2", "avx512"};

/* ---- adamw ---- */

/* An empty tensor, one longer than a span, and lengths that no vector divides. */
enum { TENSORS = 6 };
static const int64_t lengths[TENSORS] = {0, 1, 255, 16384 + 3 * 2048 + 77, 0, 4099};

typedef struct model {
    nbl__adamw_tensor tensors[TENSORS];
    nbl__adamw args;
} model;

static void make_model(model *m, int bits)
{
    nbl_dtype state = bits == 8 ? NBL_DTYPE_U8 : NBL_DTYPE_F32;
    for (int k = 0; k < TENSORS; k++) {
        int64_t n = lengths[k], blocks = (n + 255) / 256;
        m->tensors[k] = (nbl__adamw_tensor){
            zeros(dtypes[k % 3], n), zeros(dtypes[(k + k / 3) % 3], n), zeros(state, n),
            zeros(state, n),         zeros(NBL_DTYPE_F32, blocks),      zeros(NBL_DTYPE_F32, blocks)};
        fill(&m->tensors[k].p, (uint32_t)k, 1);
    }
    m->args = (nbl__adamw){.tensors = m->tensors,
                           .count = TENSORS,
                           .lr = 1e-2,
                           .beta1 = 0.9,
                           .beta2 = 0.999,
                           .eps = 1e-8,
                           .weight_decay = 0.1,
                           .grad_scale = 0.5,
                           .bits = bits};
}

static void free_model(model *m)
{
    for (int k = 0; k < TENSORS; k++) {
        nbl__adamw_tensor *t = &m->tensors[k];
        void *lists[] = {t->p.data, t->g.data, t->m.data, t->v.data, t->m_absmax.data, t->v_absmax.data};
        for (int i = 0; i < 6; i++) free(lists[i]);
    }
}

static void train(nbl_context *ctx, const char *force, model *m, int steps)
{
    for (int64_t step = 1; step <= steps; step++) {
        for (int k = 0; k < TENSORS; k++) fill(&m->tensors[k].g, (uint32_t)(100 * step + k), 0.01f);
        m->args.step = step;
        run_op(ctx, &nbl__adamw_family.forward, force, &m->args);
    }
}

static double error_of(const nbl_tensor *got, const nbl_tensor *want)
{
    double difference = 0, size = 1e-30;
    for (int64_t i = 0; i < want->shape[0]; i++) {
        double d = (double)get_f32(got, i) - (double)get_f32(want, i);
        assert_true(isfinite(d));
        difference += d * d;
        size += (double)get_f32(want, i) * (double)get_f32(want, i);
    }
    return sqrt(difference / size);
}

static void adamw_gives_what_the_reference_gives(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        setenv("NIBBLE_ISA", isas[i], 1);
        nbl_context *ctx = new_context();
        model fast, slow;
        make_model(&fast, 32);
        make_model(&slow, 32);
        train(ctx, "cpu", &fast, 4);
        train(ctx, "ref", &slow, 4);
        for (int k = 0; k < TENSORS; k++) {
            double bound = fast.tensors[k].p.dtype == NBL_DTYPE_F32   ? 1e-6
                           : fast.tensors[k].p.dtype == NBL_DTYPE_F16 ? 1e-3
                                                                      : 8e-3;
            assert_true(error_of(&fast.tensors[k].p, &slow.tensors[k].p) < bound);
            assert_true(error_of(&fast.tensors[k].m, &slow.tensors[k].m) < 1e-6);
            assert_true(error_of(&fast.tensors[k].v, &slow.tensors[k].v) < 1e-6);
        }
        free_model(&fast);
        free_model(&slow);
        nbl_context_destroy(ctx);
    }
    unsetenv("NIBBLE_ISA");
}

/* The bounds of bitsandbytes' own tests: few states differ, parameters hardly. */
static void moments_in_8_bits_give_what_the_reference_gives(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        setenv("NIBBLE_ISA", isas[i], 1);
        nbl_context *ctx = new_context();
        model fast, slow;
        make_model(&fast, 8);
        make_model(&slow, 8);
        train(ctx, "cpu", &fast, 3);
        train(ctx, "ref", &slow, 3);
        for (int k = 0; k < TENSORS; k++) {
            const nbl__adamw_tensor *f = &fast.tensors[k], *s = &slow.tensors[k];
            int64_t others = 0;
            for (int64_t e = 0; e < lengths[k]; e++) {
                int m = abs(((uint8_t *)f->m.data)[e] - ((uint8_t *)s->m.data)[e]);
                int v = abs(((uint8_t *)f->v.data)[e] - ((uint8_t *)s->v.data)[e]);
                assert_true(m <= 1 && v <= 1);
                others += m + v;
            }
            assert_true(others <= 20);
            assert_true(error_of(&f->m_absmax, &s->m_absmax) < 1e-3);
            assert_true(error_of(&f->v_absmax, &s->v_absmax) < 1e-3);
            assert_true(error_of(&f->p, &s->p) < (f->p.dtype == NBL_DTYPE_BF16 ? 1.6e-3 : 6e-4));
        }
        free_model(&fast);
        free_model(&slow);
        nbl_context_destroy(ctx);
    }
    unsetenv("NIBBLE_ISA");
}

static void any_number_of_threads_takes_the_same_step(void **state)
{
    (void)state;
    for (int bits = 8; bits <= 32; bits += 24) {
        model one, many;
        nbl_context *ctx = new_context_with(1);
        make_model(&one, bits);
        train(ctx, NULL, &one, 2);
        nbl_context_destroy(ctx);
        ctx = new_context_with(5);
        make_model(&many, bits);
        train(ctx, NULL, &many, 2);
        nbl_context_destroy(ctx);
        for (int k = 0; k < TENSORS; k++) {
            const nbl__adamw_tensor *a = &one.tensors[k], *b = &many.tensors[k];
            size_t n = (size_t)lengths[k], state_bytes = bits == 8 ? n : 4 * n;
            assert_memory_equal(a->p.data, b->p.data, n * nbl__size_of(a->p.dtype));
            assert_memory_equal(a->m.data, b->m.data, state_bytes);
            assert_memory_equal(a->v.data, b->v.data, state_bytes);
            assert_memory_equal(a->m_absmax.data, b->m_absmax.data, (n + 255) / 256 * 4);
        }
        free_model(&one);
        free_model(&many);
    }
}

static void a_gradient_that_is_not_finite_stays_in_its_element(void **state)
{
    (void)state;
    static const char *const names[] = {"cpu", "ref"};
    for (int k = 0; k < 2 * 2 * 3; k++) {
        int bits = k % 2 ? 8 : 32;
        setenv("NIBBLE_ISA", isas[k / 4], 1);
        nbl_context *ctx = new_context();
        model m;
        make_model(&m, bits);
        for (int i = 0; i < TENSORS; i++) fill(&m.tensors[i].g, (uint32_t)i, 1);
        const nbl__adamw_tensor *t = &m.tensors[3];
        set_f32(&t->g, 20000, NAN);
        set_f32(&t->g, 20001, INFINITY);
        float before[] = {get_f32(&t->p, 20000), get_f32(&t->p, 20001)};
        m.args.step = 1;
        run_op(ctx, &nbl__adamw_family.forward, names[k / 2 % 2], &m.args);
        for (int64_t i = 0; i < lengths[3]; i++) {
            bool bad = i == 20000 || i == 20001;
            if (bits == 32) assert_true(isfinite(get_f32(&t->p, i)) == !bad);
            else assert_true(bad ? get_f32(&t->p, i) == before[i - 20000] : isfinite(get_f32(&t->p, i)));
        }
        if (bits == 8) { /* 0 in both maps */
            assert_int_equal(((uint8_t *)t->m.data)[20000], 127);
            assert_int_equal(((uint8_t *)t->v.data)[20001], 0);
        }
        free_model(&m);
        nbl_context_destroy(ctx);
    }
    unsetenv("NIBBLE_ISA");
}

static void a_tiny_negative_moment_keeps_its_sign(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int k = 0; k < 2; k++) {
        model m;
        make_model(&m, 8);
        const nbl__adamw_tensor *t = &m.tensors[2];
        set_f32(&t->g, 0, 1);
        set_f32(&t->g, 1, -1e-9f);
        set_f32(&t->g, 2, 1e-9f);
        m.args.step = 1;
        run_op(ctx, &nbl__adamw_family.forward, k ? "ref" : "cpu", &m.args);
        const uint8_t *codes = t->m.data;
        assert_true(codes[0] == 255 && codes[1] == 126 && codes[2] == 127);
        free_model(&m);
    }
    nbl_context_destroy(ctx);
}

static void wrong_arguments_of_adamw_are_refused_by_name(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    model m;
#define REFUSED(own_bits, change, status, ...)                                                               \
    do {                                                                                                     \
        static const char *const words[] = {__VA_ARGS__};                                                    \
        make_model(&m, own_bits);                                                                            \
        model kept = m;                                                                                      \
        m.args.step = 1;                                                                                     \
        change;                                                                                              \
        assert_int_equal(nbl__adamw_family.forward.infer(ctx, &m.args), status);                             \
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)                                            \
            if (!strstr(nbl_error_message(ctx), words[i]))                                                   \
                fail_msg("no %s in: %s", words[i], nbl_error_message(ctx));                                  \
        free_model(&kept);                                                                                   \
    } while (0)
    REFUSED(32, m.tensors[2].p.dtype = NBL_DTYPE_I32, NBL_ERROR_DTYPE, "adamw", "p of tensor 2", "i32");
    REFUSED(32, m.tensors[2].g.shape[0] = 7, NBL_ERROR_SHAPE, "g of tensor 2", "[7]", "[255]");
    REFUSED(32, m.tensors[1].m.dtype = NBL_DTYPE_BF16, NBL_ERROR_DTYPE, "m of tensor 1", "bf16", "f32");
    REFUSED(32, m.args.bits = 8, NBL_ERROR_DTYPE, "m of tensor 0", "f32", "u8");
    REFUSED(8, m.tensors[3].v_absmax.shape[0] = 1, NBL_ERROR_SHAPE, "v.absmax of tensor 3", "[1]", "[89]");
    REFUSED(8, m.tensors[3].m_absmax.data = NULL, NBL_ERROR_ARGUMENT, "m.absmax of tensor 3");
    REFUSED(32, m.args.step = 0, NBL_ERROR_ARGUMENT, "step");
    REFUSED(32, m.args.bits = 16, NBL_ERROR_ARGUMENT, "bits");
    REFUSED(32, m.args.beta2 = 1, NBL_ERROR_ARGUMENT, "beta2");
    REFUSED(32, m.args.lr = NAN, NBL_ERROR_ARGUMENT, "lr");
    REFUSED(32, m.args.eps = -1, NBL_ERROR_ARGUMENT, "eps");
    REFUSED(32, m.args.grad_scale = INFINITY, NBL_ERROR_ARGUMENT, "grad_scale");
#undef REFUSED
    nbl_context_destroy(ctx);
}

/* ---- grad_norm ---- */

static void make_gradients(nbl_tensor g[TENSORS])
{
    for (int k = 0; k < TENSORS; k++) {
        g[k] = zeros(dtypes[k % 3], lengths[k]);
        fill(&g[k], (uint32_t)k, 3);
    }
}

static void free_gradients(nbl_tensor g[TENSORS])
{
    for (int k = 0; k < TENSORS; k++) free(g[k].data);
}

static void the_norm_and_the_clipping_are_the_references(void **state)
{
    (void)state;
    static const double limits[] = {0, 1, 1e9};
    for (int k = 0; k < 3 * 3; k++) {
        setenv("NIBBLE_ISA", isas[k / 3], 1);
        nbl_tensor fast[TENSORS], slow[TENSORS];
        float norms[2];
        int64_t blamed[2] = {7, 7};
        nbl_context *ctx = new_context_with(3);
        make_gradients(fast);
        make_gradients(slow);
        for (int i = 0; i < 2; i++) {
            nbl__grad_norm a = {i ? slow : fast,     TENSORS,    limits[k % 3],
                                {.data = &norms[i]}, &blamed[i], NULL};
            run_op(ctx, &nbl__grad_norm_family.forward, i ? "ref" : "cpu", &a);
        }
        assert_true(fabsf(norms[0] - norms[1]) <= 1e-6f * norms[1] && norms[1] > 100);
        assert_true(blamed[0] == -1 && blamed[1] == -1);
        for (int i = 0; i < TENSORS; i++) assert_true(error_of(&fast[i], &slow[i]) < 1e-6);
        assert_true((get_f32(&fast[3], 5) == random_value(3, 5) * 3) == (limits[k % 3] != 1));
        free_gradients(fast);
        free_gradients(slow);
        nbl_context_destroy(ctx);
    }
    unsetenv("NIBBLE_ISA");
}

static void any_number_of_threads_gives_the_same_norm(void **state)
{
    (void)state;
    float norms[3];
    for (int k = 0; k < 3; k++) {
        nbl_tensor g[TENSORS];
        nbl_context *ctx = new_context_with(1 + 2 * k);
        make_gradients(g);
        nbl__grad_norm a = {g, TENSORS, 0, {.data = &norms[k]}, NULL, NULL};
        run_op(ctx, &nbl__grad_norm_family.forward, NULL, &a);
        free_gradients(g);
        nbl_context_destroy(ctx);
    }
    assert_memory_equal(&norms[0], &norms[1], 4);
    assert_memory_equal(&norms[0], &norms[2], 4);
}

static void a_norm_that_is_not_finite_names_the_first_gradient_and_changes_none(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int k = 0; k < 4; k++) {
        nbl_tensor g[TENSORS];
        float norm;
        int64_t blamed;
        make_gradients(g);
        set_f32(&g[3], 22000, k / 2 ? INFINITY : NAN);
        set_f32(&g[5], 1, NAN);
        nbl__grad_norm a = {g, TENSORS, 1, {.data = &norm}, &blamed, NULL};
        run_op(ctx, &nbl__grad_norm_family.forward, k % 2 ? "ref" : "cpu", &a);
        assert_false(isfinite(norm));
        assert_int_equal(blamed, 3);
        for (int64_t i = 0; i < lengths[3]; i++)
            if (i != 22000) assert_true(get_f32(&g[3], i) == random_value(3, i) * 3);
        free_gradients(g);
    }
    nbl_tensor empty = zeros(NBL_DTYPE_F32, 0), wrong = zeros(NBL_DTYPE_I32, 1);
    float norm = NAN;
    nbl__grad_norm a = {&empty, 1, 1, {.data = &norm}, NULL, NULL};
    run_op(ctx, &nbl__grad_norm_family.forward, NULL, &a);
    assert_true(norm == 0);
    a.max_norm = -1;
    assert_int_equal(nbl__grad_norm_family.forward.infer(ctx, &a), NBL_ERROR_ARGUMENT);
    a = (nbl__grad_norm){&wrong, 1, 1, {.data = &norm}, NULL, NULL};
    assert_int_equal(nbl__grad_norm_family.forward.infer(ctx, &a), NBL_ERROR_DTYPE);
    assert_non_null(strstr(nbl_error_message(ctx), "g0"));
    free(empty.data);
    free(wrong.data);
    nbl_context_destroy(ctx);
}

static void a_step_clips_by_the_factor_that_the_norm_leaves(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int k = 0; k < 8; k++) {
        model apart, at_once;
        nbl_tensor g[TENSORS];
        nbl__clipping clipping;
        float norm;
        int64_t blamed;
        make_model(&apart, k / 4 ? 8 : 32);
        make_model(&at_once, k / 4 ? 8 : 32);
        for (int i = 0; i < 2 * TENSORS; i++) {
            model *m = i < TENSORS ? &apart : &at_once;
            nbl_tensor *gradient = &m->tensors[i % TENSORS].g;
            free(gradient->data);
            *gradient = zeros(NBL_DTYPE_F32, lengths[i % TENSORS]);
            fill(gradient, (uint32_t)i % TENSORS, 1);
        }
        apart.args.step = at_once.args.step = 1;
        double limit = k % 2 ? 0.5 : 1e9; /* clips, does not */
        for (int i = 0; i < TENSORS; i++) g[i] = apart.tensors[i].g;
        assert_ok(ctx, nbl_grad_norm(ctx, g, TENSORS, limit, &norm, &blamed));
        for (int i = 0; i < TENSORS; i++) g[i] = at_once.tensors[i].g;
        assert_ok(ctx, nbl__grad_norm_enqueue(ctx, g, TENSORS, limit, &clipping));
        assert_true(clipping.norm == norm && clipping.non_finite == -1);
        assert_true((clipping.factor < 1) == (k % 2));
        at_once.args.grad_factor = &clipping.factor;
        run_op(ctx, &nbl__adamw_family.forward, k / 2 % 2 ? "ref" : "cpu", &at_once.args);
        run_op(ctx, &nbl__adamw_family.forward, k / 2 % 2 ? "ref" : "cpu", &apart.args);
        for (int i = 0; i < TENSORS; i++)
            assert_true(error_of(&at_once.tensors[i].p, &apart.tensors[i].p) < 1e-7);
        free_model(&apart);
        free_model(&at_once);
    }
    nbl_context_destroy(ctx);
}

static void a_gradient_that_is_not_finite_leaves_everything_as_it_was(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int k = 0; k < 4; k++) {
        model m, before;
        nbl_tensor g[TENSORS];
        nbl__clipping clipping;
        make_model(&m, k / 2 ? 8 : 32);
        make_model(&before, k / 2 ? 8 : 32);
        train(ctx, NULL, &m, 2);
        train(ctx, NULL, &before, 2);
        set_f32(&m.tensors[3].g, 7, NAN);
        for (int i = 0; i < TENSORS; i++) g[i] = m.tensors[i].g;
        assert_ok(ctx, nbl__grad_norm_enqueue(ctx, g, TENSORS, 1, &clipping));
        assert_true(isnan(clipping.factor) && clipping.non_finite == 3);
        m.args.grad_factor = &clipping.factor;
        m.args.step = 3;
        run_op(ctx, &nbl__adamw_family.forward, k % 2 ? "ref" : "cpu", &m.args);
        for (int i = 0; i < TENSORS; i++) {
            const nbl__adamw_tensor *t = &m.tensors[i], *was = &before.tensors[i];
            size_t n = (size_t)lengths[i];
            assert_memory_equal(t->p.data, was->p.data, n * nbl__size_of(t->p.dtype));
            assert_memory_equal(t->m.data, was->m.data, n * (k / 2 ? 1 : 4));
            assert_memory_equal(t->v.data, was->v.data, n * (k / 2 ? 1 : 4));
        }
        free_model(&m);
        free_model(&before);
    }
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_gives_what_the_reference_gives),
        cmocka_unit_test(moments_in_8_bits_give_what_the_reference_gives),
        cmocka_unit_test(any_number_of_threads_takes_the_same_step),
        cmocka_unit_test(a_gradient_that_is_not_finite_stays_in_its_element),
        cmocka_unit_test(a_tiny_negative_moment_keeps_its_sign),
        cmocka_unit_test(wrong_arguments_of_adamw_are_refused_by_name),
        cmocka_unit_test(the_norm_and_the_clipping_are_the_references),
        cmocka_unit_test(any_number_of_threads_gives_the_same_norm),
        cmocka_unit_test(a_norm_that_is_not_finite_names_the_first_gradient_and_changes_none),
        cmocka_unit_test(a_step_clips_by_the_factor_that_the_norm_leaves),
        cmocka_unit_test(a_gradient_that_is_not_finite_leaves_everything_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
