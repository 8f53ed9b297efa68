/* test_ops_linear.c - linear, linear_group and dora_norm: what is refused; gradients against differences of the forward
 * pass; the fast implementations against the references over formats, dtypes, adapters and sizes; threads, ranks, NaN. */
#include "ops/ops_linear_support.h"

#include "ops/linear/cpu/dropout.h"
#include "ops/linear/dora_norm.h"
#include "ops/linear/linear_group.h"

enum { TOKENS = 3, IN = 32, OUT = 5, RANK = 2 };

typedef struct layer {
    float x[TOKENS * IN], w[OUT * IN], bias[OUT], a[RANK * IN], b[OUT * RANK], m[OUT], dy[TOKENS * OUT];
    float y[TOKENS * OUT], dx[TOKENS * IN], dbias[OUT], da[RANK * IN], db[OUT * RANK], dm[OUT];
    nbl__linear args;
} layer;

static nbl_tensor tensor(float *data, int rank, int64_t first, int64_t second)
{
    return (nbl_tensor){.dtype = NBL_DTYPE_F32, .rank = rank, .shape = {first, second}, .data = data};
}

static void make_layer(layer *l, bool dora, float dropout)
{
    float *lists[] = {l->x, l->w, l->bias, l->a, l->b, l->m, l->dy};
    int counts[] = {TOKENS * IN, OUT * IN, OUT, RANK * IN, OUT * RANK, OUT, TOKENS * OUT};
    for (uint32_t k = 0; k < 7; k++)
        for (int i = 0; i < counts[k]; i++) lists[k][i] = random_value(k, (uint32_t)i) + (k == 5 ? 3 : 0);
    l->args = (nbl__linear){
        .dtype = NBL_DTYPE_F32,
        .x = tensor(l->x, 2, TOKENS, IN),
        .w =
            {.format = NBL_FORMAT_DENSE, .dtype = NBL_DTYPE_F32, .rank = 2, .shape = {OUT, IN}, .data = l->w},
        .bias = tensor(l->bias, 1, OUT, 0),
        .lora_a = tensor(l->a, 2, RANK, IN),
        .lora_b = tensor(l->b, 2, OUT, RANK),
        .magnitude = dora ? tensor(l->m, 1, OUT, 0) : (nbl_tensor){0},
        .scale = 0.5f,
        .dropout = dropout,
        .seed = 7,
        .dy = tensor(l->dy, 2, TOKENS, OUT),
        .y = {.data = l->y},
        .dx = {.data = l->dx},
        .dbias = {.data = l->dbias},
        .dlora_a = {.data = l->da},
        .dlora_b = {.data = l->db},
        .dmagnitude = {.data = dora ? l->dm : NULL},
    };
}

static void run_op(nbl_context *ctx, const nbl__op *op, nbl__linear *args)
{
    assert_ok(ctx, op->infer(ctx, args));
    run_given(ctx, op, args, NULL);
}

/* Sum of dy * y: its derivatives are the gradients. */
static double loss(nbl_context *ctx, layer *l)
{
    double sum = 0;
    run_op(ctx, &nbl__linear_family.forward, &l->args);
    for (int i = 0; i < TOKENS * OUT; i++) sum += (double)l->dy[i] * (double)l->y[i];
    return sum;
}

static void check_gradient(nbl_context *ctx, layer *l, float *values, const float *gradient, int count)
{
    const float step =
        1e-2f; /* everything but DoRA's norm, a constant in backward, is linear in each value */
    for (int i = 0; i < count; i++) {
        float kept = values[i];
        values[i] = kept + step;
        double above = loss(ctx, l);
        values[i] = kept - step;
        double below = loss(ctx, l);
        values[i] = kept;
        assert_true(fabs((above - below) / (2 * (double)step) - (double)gradient[i]) <
                    2e-3 * (1 + fabs((double)gradient[i])));
    }
}

static void the_gradients_are_those_of_the_forward_pass(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int dropout = 0; dropout < 2; dropout++) {
        layer *l = calloc(1, sizeof *l);
        make_layer(l, false, dropout ? 0.3f : 0);
        run_op(ctx, &nbl__linear_family.backward, &l->args);
        check_gradient(ctx, l, l->x, l->dx, TOKENS * IN);
        check_gradient(ctx, l, l->bias, l->dbias, OUT);
        check_gradient(ctx, l, l->a, l->da, RANK * IN);
        check_gradient(ctx, l, l->b, l->db, OUT * RANK);
        free(l);
    }
    layer *l = calloc(1, sizeof *l);
    make_layer(l, true, 0);
    run_op(ctx, &nbl__linear_family.backward, &l->args);
    check_gradient(ctx, l, l->x, l->dx, TOKENS * IN);
    check_gradient(ctx, l, l->m, l->dm, OUT);
    free(l);
    nbl_context_destroy(ctx);
}

static void mismatches_name_operator_tensor_dtypes_and_shapes(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    layer *l = calloc(1, sizeof *l);
#define REFUSED(change, status, ...)                                                                         \
    do {                                                                                                     \
        static const char *const words[] = {__VA_ARGS__};                                                    \
        make_layer(l, true, 0);                                                                              \
        change;                                                                                              \
        assert_int_equal(nbl__linear_family.backward.infer(ctx, &l->args), status);                          \
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)                                            \
            if (!strstr(nbl_error_message(ctx), words[i]))                                                   \
                fail_msg("no %s in: %s", words[i], nbl_error_message(ctx));                                  \
    } while (0)
    REFUSED(l->args.x.dtype = NBL_DTYPE_BF16, NBL_ERROR_DTYPE, "linear", "x", "bf16", "f32", "[3, 32]");
    REFUSED(l->args.dtype = NBL_DTYPE_F16, NBL_ERROR_DTYPE, "x", "f32", "f16");
    REFUSED(l->args.dtype = NBL_DTYPE_I8, NBL_ERROR_DTYPE, "i8");
    REFUSED(l->args.x.shape[1] = 31, NBL_ERROR_SHAPE, "x", "[3, 31]", "32");
    REFUSED(l->args.dy.shape[1] = 4, NBL_ERROR_SHAPE, "dy", "[3, 4]", "5");
    REFUSED(l->args.lora_b.data = NULL, NBL_ERROR_ARGUMENT, "lora_b");
    REFUSED(l->args.lora_b.shape[1] = 3, NBL_ERROR_SHAPE, "lora_b", "[5, 3]", "[5, 2]");
    REFUSED(l->args.magnitude.shape[0] = 6, NBL_ERROR_SHAPE, "magnitude", "[6]", "[5]");
    REFUSED(l->args.dropout = 1, NBL_ERROR_ARGUMENT, "dropout");
    int64_t seeds[2] = {0};
    REFUSED(l->args.seeds = ((nbl_tensor){NBL_DTYPE_I32, 1, {2}, seeds, 0}), NBL_ERROR_DTYPE, "seeds", "i64");
    REFUSED((l->args.seeds = ((nbl_tensor){NBL_DTYPE_I64, 1, {2}, seeds, 0}), l->args.seed_index = 2),
            NBL_ERROR_SHAPE, "seeds", "[2]", "seed_index 2");
    REFUSED((l->args.seeds = ((nbl_tensor){NBL_DTYPE_I64, 1, {2}, seeds, 0}), l->args.seed_index = -1),
            NBL_ERROR_SHAPE, "seeds", "-1");
    REFUSED(l->args.bias.dtype = NBL_DTYPE_F16, NBL_ERROR_DTYPE, "b ", "f16", "f32");
#undef REFUSED
    const nbl__impl *impl;
    make_layer(l, false, 0);
    assert_int_equal(nbl__op_choose(ctx, &nbl__linear_family.forward, &l->args, "no_such_impl", &impl),
                     NBL_ERROR_ARGUMENT);
    assert_ok(ctx, nbl__op_choose(ctx, &nbl__linear_family.forward, &l->args, "linear_ref", &impl));
    assert_int_equal(nbl__op_run(ctx, &nbl__linear_family.forward, impl, &l->args, NULL, 0),
                     NBL_ERROR_ARGUMENT); /* no scratch */
    free(l);
    nbl_context_destroy(ctx);
}

/* ---- the fast implementation against the reference ---- */

static void check_layer(nbl_context *ctx, const layer_kind *k)
{
    pool p = {0};
    char what[200];
    nbl__linear a = random_layer(&p, k);
    snprintf(what, sizeof what, "store %d dtype %s adapter %s rank %d tokens %d dora %d bias %d dropout %g",
             (int)k->store, nbl_dtype_name(k->dtype), nbl_dtype_name(k->adapter), (int)k->rank,
             (int)k->tokens, k->dora, k->bias, (double)k->dropout);
    /* int8: a value between two codes may go either way, 1/127 of one term. */
    double bound = bound_of(k->dtype), rounding = k->store == INT8 ? 2e-3 : 0;
    check_against_reference(ctx, &p, &nbl__linear_family, &a, fmax(bound, rounding),
                            k->dora ? fmax(bound, rounding) : bound, what);
    pool_free(&p);
}

static void every_format_dtype_and_adapter_agrees_with_the_reference(void **state)
{
    static const int64_t sizes[] = {0, 1, 2, 7, 64, 130};
    (void)state;
    nbl_context *ctx = new_context();
    uint32_t n = 0;
    for (store kind = 0; kind < STORES; kind++)
        for (int d = 0; d < COUNT(dtypes); d++)
            for (int variant = 0; variant < 4 * 8; variant++, n++) { /* adapter, then three flags */
                layer_kind k = {kind, dtypes[d], dtypes[(variant >> 3) % 3], .in = 64, .out = 24};
                k.tokens = sizes[random_word(1, n) % 5];
                k.rank = variant >> 3 == 3 ? -1 : sizes[1 + random_word(2, n) % 4];
                k.dora = (variant & 1) != 0;
                k.bias = (variant & 2) != 0;
                k.dropout = variant & 4 ? 0.25f : 0;
                check_layer(ctx, &k);
            }
    nbl_context_destroy(ctx);
}

static void every_number_of_tokens_and_rank_agrees_with_the_reference(void **state)
{
    static const int64_t sizes[] = {0, 1, 2, 7, 64, 130};
    (void)state;
    nbl_context *ctx = new_context();
    for (int t = 0; t < COUNT(sizes); t++)
        for (int r = 0; r < COUNT(sizes); r++) {
            layer_kind k = {t % 2 ? NF4_NESTED : INT8,
                            dtypes[(t + r) % 3],
                            NBL_DTYPE_F32,
                            sizes[t],
                            70,
                            33,
                            sizes[r],
                            r % 2 == 0,
                            true,
                            t % 3 ? 0.1f : 0};
            check_layer(ctx, &k);
        }
    nbl_context_destroy(ctx);
}

static void more_tokens_than_a_chunk_agree_with_the_reference(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int i = 0; i < 4; i++) {
        layer_kind k = {i == 1 ? INT8 : NF4, dtypes[i % 3], NBL_DTYPE_F32, 1030, 33, 9, 3, true, true,
                        i % 2 ? 0.3f : 0};
        check_layer(ctx, &k);
    }
    nbl_context_destroy(ctx);
}

/* ---- dropout ---- */

static void a_run_of_a_mask_is_that_of_its_elements(void **state)
{
    static const int64_t starts[] = {0, 1, 3, 4, 1000, ((int64_t)1 << 34) - 40, ((int64_t)1 << 40) + 2};
    enum { N = 300 };
    (void)state;
    for (nbl_isa isa = NBL_ISA_SCALAR; isa <= nbl__isa_detect(); isa++)
        for (int s = 0; s < COUNT(starts); s++)
            for (int n = 0; n <= N; n += 1 + n / 3) {
                float values[N + 1];
                for (int i = 0; i <= N; i++) values[i] = 3;
                nbl__drop_f32(isa, 0x123456789abcdef0u, 0.25f, starts[s], n, values);
                for (int i = 0; i < n; i++)
                    assert_true(values[i] ==
                                (nbl__dropout_keeps(0x123456789abcdef0u, 0.25f, starts[s] + i) ? 4 : 0));
                assert_true(values[n] == 3);
            }
}

/* A seed in memory and the attribute add up, also beyond 2^64. */
static void a_seed_in_memory_draws_the_masks_of_the_attribute(void **state)
{
    static int64_t values[] = {1, -5, INT64_MAX};
    static const char *const impls[] = {NULL, "ref"};
    (void)state;
    nbl_context *ctx = new_context();
    for (int i = 0; i < 24; i++) {
        int64_t at = i / 2 % 3, tokens = i % 4 < 2 ? 5 : 20;
        layer_kind k = {NF4, dtypes[i / 6 % 3], NBL_DTYPE_F32, tokens, 64, 24, 4, i % 5 == 0, true, 0.5f};
        pool p = {0};
        nbl__linear a = random_layer(&p, &k), b = a;
        a.seed = 77 + (uint64_t)values[at];
        b.seed = 77;
        b.seeds = (nbl_tensor){NBL_DTYPE_I64, 1, {3}, values, 0};
        b.seed_index = at;
        nbl__linear_group one = {.members = {a, a}}, other = {.members = {b, a}};
        for (int backward = 0; backward < 2; backward++) {
            run_new(ctx, &p, &nbl__linear_family, &a, backward, impls[i % 2]);
            run_new(ctx, &p, &nbl__linear_family, &b, backward, impls[i % 2]);
            assert_same_bits(&nbl__linear_family, &b, &a, backward);
            run_new(ctx, &p, &nbl__linear_group_family, &one, backward, impls[i % 2]);
            run_new(ctx, &p, &nbl__linear_group_family, &other, backward, impls[i % 2]);
            assert_same_bits(&nbl__linear_group_family, &other, &one, backward);
        }
        b.seed_index = (at + 1) % 3;
        run_new(ctx, &p, &nbl__linear_family, &b, false, impls[i % 2]);
        assert_memory_not_equal(b.y.data, a.y.data, (size_t)(tokens * 24) * nbl__size_of(k.dtype));
        pool_free(&p);
    }
    nbl_context_destroy(ctx);
}

/* ---- the same bits ---- */

static void the_bits_depend_neither_on_threads_nor_on_the_rank_of_x(void **state)
{
    (void)state;
    nbl_context *one = new_context_with(1), *three = new_context_with(3);
    for (int i = 0; i < 12; i++) {
        layer_kind k = {(store)(i % STORES), dtypes[i % 3], NBL_DTYPE_F32,   i == 11 ? 600 : 66, 64, 24, 8,
                        i % 2 == 1,          true,          i % 3 ? 0.2f : 0};
        pool p = {0};
        nbl__linear a = random_layer(&p, &k), b = a, c = a;
        for (int backward = 0; backward < 2; backward++) {
            run_new(one, &p, &nbl__linear_family, &a, backward, NULL);
            run_new(three, &p, &nbl__linear_family, &b, backward, NULL);
            assert_same_bits(&nbl__linear_family, &b, &a, backward);
            c.x = (nbl_tensor){a.dtype, 3, {2, k.tokens / 2, k.in}, a.x.data, 0};
            c.dy = (nbl_tensor){a.dtype, 3, {2, k.tokens / 2, k.out}, a.dy.data, 0};
            run_new(three, &p, &nbl__linear_family, &c, backward, NULL);
            assert_same_bits(&nbl__linear_family, &c, &a, backward);
        }
        pool_free(&p);
    }
    nbl_context_destroy(one);
    nbl_context_destroy(three);
}

static void an_unwanted_gradient_is_not_computed_and_the_others_stay(void **state)
{
    static const char *const names[] = {"dx", "db", "dlora_a", "dlora_b", "dmagnitude"};
    (void)state;
    nbl_context *ctx = new_context();
    for (int dora = 0; dora < 2; dora++)
        for (int mask = 0; mask < 32; mask++)
            for (int impl = 0; impl < 2; impl++) {
                layer_kind k = {NF4, NBL_DTYPE_BF16, NBL_DTYPE_F32, 5, 64, 20, 4, dora, true, 0.1f};
                pool p = {0};
                nbl__linear all = random_layer(&p, &k), some;
                run_new(ctx, &p, &nbl__linear_family, &all, true, impl ? "ref" : NULL);
                some = all;
                give_results(ctx, &p, &nbl__linear_family, &some, true, NULL);
                for (int i = 0; i < 5; i++)
                    if (!(mask & 1 << i))
                        nbl__slot_tensor(nbl__slot_find(&nbl__linear_family, names[i]), &some)->data = NULL;
                run_given(ctx, &nbl__linear_family.backward, &some, impl ? "ref" : NULL);
                assert_same_bits(&nbl__linear_family, &some, &all, true);
                pool_free(&p);
            }
    nbl_context_destroy(ctx);
}

static void gradients_of_parameters_accumulate(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int i = 0; i < 8; i++) {
        layer_kind k = {NF4, NBL_DTYPE_F32, NBL_DTYPE_F32, i < 4 ? 9 : 0, 64, 20, 4, i % 2 == 1, true, 0.1f};
        const char *force = i & 2 ? "ref" : NULL;
        const float start = 2;
        pool p = {0};
        nbl__linear fresh = random_layer(&p, &k), added;
        run_new(ctx, &p, &nbl__linear_family, &fresh, true, force);
        added = fresh;
        added.accumulate = true;
        give_results(ctx, &p, &nbl__linear_family, &added, true, &start);
        run_given(ctx, &nbl__linear_family.backward, &added, force);
        nbl_tensor *tensors[][2] = {{&fresh.dbias, &added.dbias},
                                    {&fresh.dlora_a, &added.dlora_a},
                                    {&fresh.dlora_b, &added.dlora_b},
                                    {&fresh.dmagnitude, &added.dmagnitude}};
        for (int t = 0; t < COUNT(tensors); t++)
            for (int64_t e = 0; tensors[t][0]->rank && e < nbl__tensor_elements(tensors[t][0]); e++)
                assert_true(fabs(value_at(tensors[t][1], e) - value_at(tensors[t][0], e) - 2) < 1e-5);
        assert_same_bits(&nbl__linear_family, &(nbl__linear){.dx = added.dx}, &(nbl__linear){.dx = fresh.dx},
                         true);
        pool_free(&p);
    }
    nbl_context_destroy(ctx);
}

/* ---- values that are not finite ---- */

static void a_value_that_is_not_finite_reaches_its_row_and_no_other(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (store kind = 0; kind < STORES; kind++)
        for (int i = 0; i < 12; i++) {
            layer_kind k = {kind, dtypes[i % 3], NBL_DTYPE_F32, 6, 64, 40, i & 1 ? 4 : -1, false, true, 0};
            float bad = i < 6 ? NAN : INFINITY;
            pool p = {0};
            nbl__linear a = random_layer(&p, &k);
            nbl__from_f32(NBL_ISA_SCALAR, &bad, k.dtype, (uint8_t *)a.x.data + 130 * nbl__size_of(k.dtype),
                          1);
            nbl__from_f32(NBL_ISA_SCALAR, &bad, k.dtype, (uint8_t *)a.dy.data + 130 * nbl__size_of(k.dtype),
                          1);
            run_new(ctx, &p, &nbl__linear_family, &a, false, NULL);
            run_new(ctx, &p, &nbl__linear_family, &a, true, NULL);
            for (int64_t e = 0; e < 6 * 40; e++)
                assert_true(e / 40 == 2 ? bad != bad ? isnan(value_at(&a.y, e)) : true
                                        : isfinite(value_at(&a.y, e)));
            for (int64_t e = 0; e < 6 * 64; e++)
                assert_true(e / 64 == 3 ? bad != bad ? isnan(value_at(&a.dx, e)) : true
                                        : isfinite(value_at(&a.dx, e)));
            bool reached = false;
            for (int64_t e = 80; e < 120; e++) reached |= !isfinite(value_at(&a.y, e));
            assert_true(reached);
            pool_free(&p);
        }
    nbl_context_destroy(ctx);
}

static void a_magnitude_of_zero_has_a_finite_gradient(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int impl = 0; impl < 2; impl++) {
        layer_kind k = {NF4, NBL_DTYPE_F32, NBL_DTYPE_F32, 6, 64, 8, 4, true, false, 0};
        pool p = {0};
        nbl__linear a = random_layer(&p, &k);
        memset(a.magnitude.data, 0, 8 * sizeof(float));
        run_new(ctx, &p, &nbl__linear_family, &a, true, impl ? "ref" : NULL);
        for (int64_t n = 0; n < 8; n++) {
            assert_true(isfinite(value_at(&a.dmagnitude, n)) && value_at(&a.dmagnitude, n) != 0);
            for (int64_t t = 0; t < 6; t++) assert_true(isfinite(value_at(&a.dx, t * 64 + n)));
        }
        pool_free(&p);
    }
    nbl_context_destroy(ctx);
}

/* ---- dora_norm ---- */

static nbl__dora_norm norm_of(const nbl__linear *a)
{
    return (nbl__dora_norm){
        .dtype = a->dtype, .w = a->w, .lora_a = a->lora_a, .lora_b = a->lora_b, .scale = a->scale};
}

static void the_norm_agrees_with_the_reference_and_serves_linear(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int i = 0; i < STORES * 9; i++) {
        layer_kind k = {
            (store)(i % STORES), dtypes[i % 3], dtypes[i / 3 % 3], 4, 64, 37, i % 5 * 3, true, false, 0};
        pool p = {0};
        nbl__linear a = random_layer(&p, &k), given = a;
        nbl__dora_norm own = norm_of(&a), again = own;
        check_against_reference(ctx, &p, &nbl__dora_norm_family, &own, bound_of(k.dtype), 0, "dora_norm");
        run_new(ctx, &p, &nbl__dora_norm_family, &own, false, "cpu");
        again.w_norm2 = own.w_norm2_out;
        run_new(ctx, &p, &nbl__dora_norm_family, &again, false, "cpu");
        assert_int_equal(again.w_norm2_out.rank, 0);
        assert_memory_equal(again.norm.data, own.norm.data, 37 * sizeof(float));
        given.norm = own.norm;
        for (int backward = 0; backward < 2; backward++) {
            run_new(ctx, &p, &nbl__linear_family, &a, backward, NULL);
            run_new(ctx, &p, &nbl__linear_family, &given, backward, NULL);
            assert_same_bits(&nbl__linear_family, &given, &a, backward);
        }
        pool_free(&p);
    }
    nbl_context_destroy(ctx);
}

/* B·A = -W but for a thousandth: the terms of the norm cancel. */
static void the_norm_of_an_adapter_that_undoes_its_weight_is_accurate(void **state)
{
    enum { N = 16 };
    (void)state;
    nbl_context *ctx = new_context();
    pool p = {0};
    layer_kind k = {DENSE_F32, NBL_DTYPE_F32, NBL_DTYPE_F32, 1, N, N, N, true, false, 0};
    nbl__linear a = random_layer(&p, &k);
    a.scale = 1;
    for (int i = 0; i < N * N; i++) {
        ((float *)a.lora_a.data)[i] = ((const float *)a.w.data)[i];
        ((float *)a.lora_b.data)[i] = i % (N + 1) == 0 ? -0.999f : 0;
    }
    nbl__dora_norm norm = norm_of(&a);
    check_against_reference(ctx, &p, &nbl__dora_norm_family, &norm, 1e-6, 0, "dora_norm");
    pool_free(&p);
    nbl_context_destroy(ctx);
}

/* ---- linear_group ---- */

static nbl__linear_group random_group(pool *p, const layer_kind *k, int count)
{
    static const store kinds[] = {NF4_NESTED, NF4, DENSE_BF16, INT8};
    nbl__linear_group group = {0};
    for (int i = 0; i < count; i++) {
        layer_kind own = *k;
        own.out = 20 + 12 * i;
        own.store = kinds[i];
        own.rank = i == 2 ? -1 : k->rank;
        own.dora = k->dora && i != 1;
        group.members[i] = random_layer(p, &own);
    }
    return group;
}

static void a_group_agrees_with_the_reference_on_any_number_of_threads(void **state)
{
    static const int64_t sizes[] = {0, 1, 7, 66};
    (void)state;
    nbl_context *one = new_context_with(1), *three = new_context_with(3);
    for (int i = 0; i < 60; i++) {
        layer_kind k = {0,     dtypes[i % 3], dtypes[i / 3 % 3], i < 58 ? sizes[i / 4 % 4] : 530, 64, 0, 5,
                        i & 1, (i & 2) != 0,  i & 4 ? 0.3f : 0};
        pool p = {0};
        nbl__linear_group a = random_group(&p, &k, 1 + i % 4), b = a;
        check_against_reference(three, &p, &nbl__linear_group_family, &a, fmax(2e-3, bound_of(k.dtype)),
                                fmax(k.dora ? 2e-3 : 0, bound_of(k.dtype)), "group");
        for (int backward = 0; backward < 2; backward++) {
            run_new(three, &p, &nbl__linear_group_family, &a, backward, NULL);
            run_new(one, &p, &nbl__linear_group_family, &b, backward, NULL);
            assert_same_bits(&nbl__linear_group_family, &b, &a, backward);
        }
        pool_free(&p);
    }
    nbl_context_destroy(one);
    nbl_context_destroy(three);
}

static void the_gradients_of_a_group_are_those_of_its_forward_pass(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    pool p = {0};
    layer_kind k = {0, NBL_DTYPE_F32, NBL_DTYPE_F32, 3, 32, 0, 3, true, true, 0.3f};
    nbl__linear_group group = random_group(&p, &k, 3);
    group.members[0].norm = random_vector(&p, NBL_DTYPE_F32, 20, 0.5f, 1); /* a constant in backward */
    check_differences(ctx, &p, &nbl__linear_group_family, &group);
    pool_free(&p);
    nbl_context_destroy(ctx);
}

static void a_group_of_one_is_a_linear_and_masks_differ_by_member(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    pool p = {0};
    layer_kind k = {NF4, NBL_DTYPE_BF16, NBL_DTYPE_F32, 7, 64, 24, 4, true, true, 0.5f};
    nbl__linear a = random_layer(&p, &k);
    nbl__linear_group group = {.members = {a}}, twins = {.members = {a, a}};
    for (int backward = 0; backward < 2; backward++) {
        run_new(ctx, &p, &nbl__linear_family, &a, backward, NULL);
        run_new(ctx, &p, &nbl__linear_group_family, &group, backward, NULL);
        assert_same_bits(&nbl__linear_family, &group.members[0], &a, backward);
    }
    run_new(ctx, &p, &nbl__linear_group_family, &twins, false, NULL);
    assert_memory_equal(twins.members[0].y.data, a.y.data, 7 * 24 * 2);
    assert_memory_not_equal(twins.members[1].y.data, a.y.data, 7 * 24 * 2);
    nbl__linear members[NBL_MAX_GROUP];
    twins.members[0].first_row = 5; /* that of all */
    nbl__linear_group_spread(&twins, members);
    assert_true(members[0].first_row == 5 && members[1].first_row == 5);
    pool_free(&p);
    nbl_context_destroy(ctx);
}

static void a_group_names_the_member_that_does_not_fit(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
#define REFUSED(change, status, ...)                                                                         \
    do {                                                                                                     \
        static const char *const words[] = {"linear_group", __VA_ARGS__};                                    \
        pool p = {0};                                                                                        \
        layer_kind k = {NF4, NBL_DTYPE_F32, NBL_DTYPE_F32, 3, 64, 24, 4, true, true, 0};                     \
        nbl__linear_group g = random_group(&p, &k, 3);                                                       \
        change;                                                                                              \
        assert_refused(ctx, nbl__linear_group_family.backward.infer(ctx, &g), status, words, COUNT(words));  \
        pool_free(&p);                                                                                       \
    } while (0)
    REFUSED(g.members[1] = (nbl__linear){0}, NBL_ERROR_ARGUMENT, "w2", "w1");
    REFUSED(g.members[2].w.rank = 0, NBL_ERROR_ARGUMENT, "w2", "2 without");
    REFUSED(g.members[1].lora_b.data = NULL, NBL_ERROR_ARGUMENT, "lora_a1", "lora_b1");
    REFUSED(g.members[1].lora_a.shape[1] = 63, NBL_ERROR_SHAPE, "lora_a1", "63", "64");
    REFUSED(g.members[1].w.shape[1] = 63, NBL_ERROR_SHAPE, "x", "63", "w1");
    REFUSED(g.members[2].dy.shape[1] = 5, NBL_ERROR_SHAPE, "dy2", "[3, 5]", "44");
    REFUSED(g.members[0].magnitude.shape[0] = 5, NBL_ERROR_SHAPE, "magnitude0", "[5]", "[20]");
    REFUSED(g.members[1].norm = random_vector(&p, NBL_DTYPE_F32, 32, 1, 2), NBL_ERROR_ARGUMENT, "norm1");
    REFUSED(g.members[0].norm = random_vector(&p, NBL_DTYPE_F16, 20, 1, 2), NBL_ERROR_DTYPE, "norm0", "f16");
#undef REFUSED
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gradients_are_those_of_the_forward_pass),
        cmocka_unit_test(mismatches_name_operator_tensor_dtypes_and_shapes),
        cmocka_unit_test(every_format_dtype_and_adapter_agrees_with_the_reference),
        cmocka_unit_test(every_number_of_tokens_and_rank_agrees_with_the_reference),
        cmocka_unit_test(more_tokens_than_a_chunk_agree_with_the_reference),
        cmocka_unit_test(a_run_of_a_mask_is_that_of_its_elements),
        cmocka_unit_test(a_seed_in_memory_draws_the_masks_of_the_attribute),
        cmocka_unit_test(the_bits_depend_neither_on_threads_nor_on_the_rank_of_x),
        cmocka_unit_test(an_unwanted_gradient_is_not_computed_and_the_others_stay),
        cmocka_unit_test(gradients_of_parameters_accumulate),
        cmocka_unit_test(a_value_that_is_not_finite_reaches_its_row_and_no_other),
        cmocka_unit_test(a_magnitude_of_zero_has_a_finite_gradient),
        cmocka_unit_test(the_norm_agrees_with_the_reference_and_serves_linear),
        cmocka_unit_test(the_norm_of_an_adapter_that_undoes_its_weight_is_accurate),
        cmocka_unit_test(a_group_agrees_with_the_reference_on_any_number_of_threads),
        cmocka_unit_test(the_gradients_of_a_group_are_those_of_its_forward_pass),
        cmocka_unit_test(a_group_of_one_is_a_linear_and_masks_differ_by_member),
        cmocka_unit_test(a_group_names_the_member_that_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
