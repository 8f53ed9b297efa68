/* test_ops_mlp.c - mlp: the fast implementation against the reference, the reference's gradients against differences of
 * its forward pass, chunks, threads, ranks, values beyond f16, and what is refused. */
#include "ops/ops_linear_support.h"

#include "ops/linear/mlp.h"

typedef struct block_kind {
    store store;
    nbl_dtype dtype, adapter;
    int act;
    int64_t tokens, in, inner, out, rank;
    bool dora, bias;
    float dropout;
} block_kind;

static nbl__mlp random_block(pool *p, const block_kind *k)
{
    layer_kind gate = {k->store, k->dtype, k->adapter, k->tokens, k->in,
                       k->inner, k->rank,  k->dora,    k->bias,   k->dropout};
    layer_kind down = gate;
    down.in = k->inner;
    down.out = k->out;
    nbl__mlp a = {.act = k->act,
                  .gate = random_layer(p, &gate),
                  .up = random_layer(p, &gate),
                  .down = random_layer(p, &down)};
    a.gate.dy = a.up.x = a.up.dy = a.down.x = (nbl_tensor){0}; /* theirs is between the layers */
    return a;
}

static void check_block(nbl_context *ctx, const block_kind *k)
{
    pool p = {0};
    char what[200];
    nbl__mlp a = random_block(&p, k);
    snprintf(what, sizeof what, "act %d store %d dtype %s tokens %d rank %d dora %d bias %d dropout %g",
             k->act, (int)k->store, nbl_dtype_name(k->dtype), (int)k->tokens, (int)k->rank, k->dora, k->bias,
             (double)k->dropout);
    /* int8: a value between two codes may go either way, in all three layers. */
    double bound = bound_of(k->dtype), rounding = k->store == INT8 ? 1e-2 : 0;
    check_against_reference(ctx, &p, &nbl__mlp_family, &a, fmax(2 * bound, rounding),
                            fmax(3 * bound, rounding), what);
    pool_free(&p);
}

static void every_activation_format_and_dtype_agrees_with_the_reference(void **state)
{
    static const int64_t sizes[] = {0, 1, 2, 7, 64};
    (void)state;
    nbl_context *ctx = new_context();
    uint32_t n = 0;
    for (store kind = 0; kind < STORES; kind++)
        for (int d = 0; d < COUNT(dtypes); d++)
            for (int act = 0; act < 3; act++)
                for (int variant = 0; variant < 4; variant++, n++) {
                    block_kind k = {kind, dtypes[d], dtypes[n % 3], act, .in = 32, .inner = 64, .out = 24};
                    uint32_t random = random_word(5, n);
                    k.tokens = sizes[random % 5];
                    k.rank = variant == 0 ? -1 : sizes[random / 8 % 4];
                    /* bf16 machines round what flows between the layers. One or two inner products that cancel
                     * tell nothing about a relative error: let there be a few. */
                    if (k.dtype == NBL_DTYPE_BF16 && k.rank > 0 && k.rank * k.tokens < 8) k.rank = 8;
                    k.dora = (variant & 1) != 0;
                    k.bias = (random & 0x100) != 0;
                    k.dropout = variant & 2 ? 0.25f : 0;
                    check_block(ctx, &k);
                }
    nbl_context_destroy(ctx);
}

static void more_tokens_than_a_chunk_agree_with_the_reference(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int i = 0; i < 4; i++) {
        block_kind k = {i == 3 ? INT8 : NF4,
                        dtypes[i % 3],
                        NBL_DTYPE_F32,
                        i % 3,
                        NBL_MLP_CHUNK + (i ? 9 : 0),
                        16,
                        24,
                        8,
                        3,
                        i % 2 == 1,
                        true,
                        i > 1 ? 0.3f : 0};
        check_block(ctx, &k);
    }
    nbl_context_destroy(ctx);
}

static void the_gradients_are_those_of_the_forward_pass(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int act = 0; act < 3; act++) {
        block_kind k = {NF4, NBL_DTYPE_F32, NBL_DTYPE_F32, act, 3, 12, 20, 10, 2, true, true, 0.25f};
        pool p = {0};
        nbl__mlp a = random_block(&p, &k);
        a.gate.norm = random_vector(&p, NBL_DTYPE_F32, 20, 0.3f, 1); /* constants in backward */
        a.up.norm = random_vector(&p, NBL_DTYPE_F32, 20, 0.3f, 1);
        a.down.norm = random_vector(&p, NBL_DTYPE_F32, 10, 0.3f, 1);
        check_differences(ctx, &p, &nbl__mlp_family, &a);
        pool_free(&p);
    }
    nbl_context_destroy(ctx);
}

static void the_bits_depend_neither_on_threads_nor_on_the_rank_of_x(void **state)
{
    (void)state;
    nbl_context *one = new_context_with(1), *three = new_context_with(3);
    for (int i = 0; i < 8; i++) {
        block_kind k = {
            (store)i, dtypes[i % 3], NBL_DTYPE_F32, i % 3, i == 7 ? NBL_MLP_CHUNK + 20 : 34, 32, 64, 24,
            4,        i % 2 == 1,    true,          0.2f};
        pool p = {0};
        nbl__mlp a = random_block(&p, &k), b = a;
        b.gate.x = (nbl_tensor){k.dtype, 3, {2, k.tokens / 2, k.in}, a.gate.x.data, 0};
        b.down.dy = (nbl_tensor){k.dtype, 3, {2, k.tokens / 2, k.out}, a.down.dy.data, 0};
        for (int backward = 0; backward < 2; backward++) {
            run_new(one, &p, &nbl__mlp_family, &a, backward, NULL);
            run_new(three, &p, &nbl__mlp_family, &b, backward, NULL);
            assert_same_bits(&nbl__mlp_family, &b, &a, backward);
        }
        pool_free(&p);
    }
    nbl_context_destroy(one);
    nbl_context_destroy(three);
}

static void a_seed_in_memory_draws_the_masks_of_the_attribute(void **state)
{
    static int64_t values[] = {3, 1000};
    static const char *const impls[] = {NULL, "ref"};
    (void)state;
    nbl_context *ctx = new_context();
    for (int i = 0; i < 4; i++) {
        block_kind k = {NF4, NBL_DTYPE_F32, NBL_DTYPE_F32, 0,   i < 2 ? 7 : 20, 32, 64, 24,
                        4,   false,         true,          0.4f};
        pool p = {0};
        nbl__mlp a = random_block(&p, &k), b = a;
        a.gate.seed = 1077;
        b.gate.seed = 77;
        b.gate.seeds = (nbl_tensor){NBL_DTYPE_I64, 1, {2}, values, 0};
        b.gate.seed_index = 1;
        for (int backward = 0; backward < 2; backward++) {
            run_new(ctx, &p, &nbl__mlp_family, &a, backward, impls[i % 2]);
            run_new(ctx, &p, &nbl__mlp_family, &b, backward, impls[i % 2]);
            assert_same_bits(&nbl__mlp_family, &b, &a, backward);
        }
        pool_free(&p);
    }
    nbl_context_destroy(ctx);
}

/* With dropout: a call for the tokens from `first` on, which are told to be those, and one for all; chunks are such parts. */
static void parts_of_a_batch_draw_the_masks_of_the_whole(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int i = 0; i < 2; i++) {
        int64_t tokens = NBL_MLP_CHUNK + 9, first = i ? NBL_MLP_CHUNK : NBL_MLP_CHUNK - 3;
        block_kind k = {NF4, NBL_DTYPE_F32, NBL_DTYPE_F32, 0, tokens, 32, 64, 24, 4, false, true, 0.4f};
        pool p = {0};
        nbl__mlp whole = random_block(&p, &k), part = whole;
        part.gate.first_row = first;
        part.gate.x = (nbl_tensor){
            k.dtype, 2, {tokens - first, k.in}, (float *)whole.gate.x.data + first * k.in, 0};
        part.down.dy = (nbl_tensor){
            k.dtype, 2, {tokens - first, k.out}, (float *)whole.down.dy.data + first * k.out, 0};
        for (int backward = 0; backward < 2; backward++) {
            run_new(ctx, &p, &nbl__mlp_family, &whole, backward, NULL);
            run_new(ctx, &p, &nbl__mlp_family, &part, backward, NULL);
        }
        for (int64_t e = 0; e < (tokens - first) * k.out; e++)
            assert_float_equal(((float *)part.down.y.data)[e],
                               ((float *)whole.down.y.data)[first * k.out + e], 1e-4);
        for (int64_t e = 0; e < (tokens - first) * k.in; e++)
            assert_float_equal(((float *)part.gate.dx.data)[e],
                               ((float *)whole.gate.dx.data)[first * k.in + e], 1e-4);
        pool_free(&p);
    }
    nbl_context_destroy(ctx);
}

/* Every gradient and y; two chunks in the last round. */
static void saving_gate_and_up_changes_no_bit(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        nbl_context *ctx = new_context_with(threads);
        for (int i = 0; i < 8; i++) {
            block_kind k = {
                (store)i, dtypes[i % 3], NBL_DTYPE_F32, i % 3, i == 7 ? NBL_MLP_CHUNK + 20 : 34, 32, 320, 24,
                4,        i % 2 == 1,    true,          0.2f};
            pool p = {0};
            nbl__mlp again = random_block(&p, &k), kept = again;
            kept.keep = true;
            for (int backward = 0; backward < 2; backward++) {
                run_new(ctx, &p, &nbl__mlp_family, &again, backward, NULL);
                run_new(ctx, &p, &nbl__mlp_family, &kept, backward, NULL);
                for (const nbl__slot *slot = nbl__mlp_family.slots; slot->name; slot++) {
                    if (slot->role != (backward ? NBL_ROLE_GRADIENT : NBL_ROLE_OUTPUT)) continue;
                    const nbl_tensor *a = nbl__slot_tensor(slot, &again), *b = nbl__slot_tensor(slot, &kept);
                    if (a->rank == 0) continue;
                    uint64_t bytes;
                    assert_true(nbl__dtype_bytes(a->dtype, (uint64_t)nbl__tensor_elements(a), &bytes));
                    assert_memory_equal(a->data, b->data, bytes);
                }
            }
            assert_int_equal(again.gate_out.rank, 0);
            assert_int_equal(nbl__tensor_elements(&kept.gate_out), k.tokens * k.inner);
            pool_free(&p);
        }
        nbl_context_destroy(ctx);
    }
}

/* gate · up is about 3e5, beyond f16; y is not. */
static void a_product_beyond_f16_does_no_harm(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int act = 0; act < 3; act++) {
        block_kind k = {DENSE_F32, NBL_DTYPE_F16, NBL_DTYPE_F32, act, 5, 32, 16, 8, -1, false, true, 0};
        pool p = {0};
        nbl__mlp a = random_block(&p, &k);
        a.gate.bias = random_vector(&p, NBL_DTYPE_F16, 16, 1, 600);
        a.up.bias = random_vector(&p, NBL_DTYPE_F16, 16, 1, 500);
        for (int i = 0; i < 8 * 16; i++) ((float *)(uintptr_t)a.down.w.data)[i] *= 0.01f;
        check_against_reference(ctx, &p, &nbl__mlp_family, &a, 1e-3, 1e-3, "beyond f16");
        for (int64_t i = 0; i < 5 * 8; i++) assert_true(isfinite(value_at(&a.down.y, i)));
        pool_free(&p);
    }
    nbl_context_destroy(ctx);
}

static void a_nan_reaches_its_row_and_no_other(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (store kind = 0; kind < STORES; kind++) {
        block_kind k = {kind, dtypes[kind % 3], NBL_DTYPE_F32, kind % 3, 5, 32, 64, 8, 2, false, true, 0};
        float bad = NAN;
        pool p = {0};
        nbl__mlp a = random_block(&p, &k);
        nbl__from_f32(NBL_ISA_SCALAR, &bad, k.dtype, (uint8_t *)a.gate.x.data + 70 * nbl__size_of(k.dtype),
                      1);
        run_new(ctx, &p, &nbl__mlp_family, &a, false, NULL);
        run_new(ctx, &p, &nbl__mlp_family, &a, true, NULL);
        for (int64_t i = 0; i < 5 * 8; i++) assert_true((i / 8 == 2) == (bool)isnan(value_at(&a.down.y, i)));
        for (int64_t i = 0; i < 5 * 32; i++)
            assert_true((i / 32 == 2) == (bool)isnan(value_at(&a.gate.dx, i)));
        pool_free(&p);
    }
    nbl_context_destroy(ctx);
}

static void gradients_accumulate_and_unwanted_ones_are_not_computed(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int i = 0; i < 8; i++) {
        block_kind k = {NF4, NBL_DTYPE_F32, NBL_DTYPE_F32, 0,   i < 4 ? 6 : 0, 32, 64, 8,
                        2,   i % 2 == 1,    true,          0.1f};
        const char *force = i & 2 ? "ref" : NULL;
        const float start = 2;
        pool p = {0};
        nbl__mlp fresh = random_block(&p, &k), added, small;
        run_new(ctx, &p, &nbl__mlp_family, &fresh, true, force);
        added = small = fresh;
        added.gate.accumulate = true;
        give_results(ctx, &p, &nbl__mlp_family, &added, true, &start);
        run_given(ctx, &nbl__mlp_family.backward, &added, force);
        give_results(ctx, &p, &nbl__mlp_family, &small, true, NULL);
        small.gate.dx.data = small.down.dlora_a.data = small.up.dbias.data = small.gate.dmagnitude
                                                                                 .data = NULL;
        run_given(ctx, &nbl__mlp_family.backward, &small, force);
        assert_same_bits(&nbl__mlp_family, &small, &fresh, true);
        for (const nbl__slot *slot = nbl__mlp_family.slots; slot->name; slot++) {
            if (slot->role != NBL_ROLE_GRADIENT) continue;
            const nbl_tensor *f = nbl__slot_tensor(slot, &fresh), *g = nbl__slot_tensor(slot, &added);
            if (f == &fresh.gate.dx || f->rank == 0) continue;
            for (int64_t e = 0; e < nbl__tensor_elements(f); e++)
                assert_true(fabs(value_at(g, e) - value_at(f, e) - 2) < 1e-5);
        }
        pool_free(&p);
    }
    nbl_context_destroy(ctx);
}

static void mismatches_name_the_part_and_the_tensor(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
#define REFUSED(change, status, ...)                                                                         \
    do {                                                                                                     \
        static const char *const words[] = {"mlp", __VA_ARGS__};                                             \
        pool p = {0};                                                                                        \
        block_kind k = {NF4, NBL_DTYPE_F32, NBL_DTYPE_F32, 0, 3, 32, 64, 24, 4, true, true, 0};              \
        nbl__mlp a = random_block(&p, &k);                                                                   \
        change;                                                                                              \
        assert_refused(ctx, nbl__mlp_family.backward.infer(ctx, &a), status, words, COUNT(words));           \
        pool_free(&p);                                                                                       \
    } while (0)
    REFUSED(a.gate.x.dtype = NBL_DTYPE_F16, NBL_ERROR_DTYPE, "x", "f16", "f32");
    REFUSED(a.gate.x.shape[1] = 31, NBL_ERROR_SHAPE, "x", "31", "32", "gate");
    REFUSED(a.up.w.shape[0] = 63, NBL_ERROR_SHAPE, "up.b", "[64]", "[63]");
    REFUSED((a.up.w.shape[0] = 63,
             a.up.bias.data = a.up.lora_a.data = a.up.lora_b.data = a.up.magnitude.data = NULL),
            NBL_ERROR_SHAPE, "up", "[63, 32]", "gate", "[64, 32]");
    REFUSED(a.down.w.shape[1] = 65, NBL_ERROR_SHAPE, "down", "[24, 65]", "64", "gate");
    REFUSED(a.down.lora_a.shape[0] = 3, NBL_ERROR_SHAPE, "down.lora_b", "[24, 4]", "[24, 3]");
    REFUSED(a.up.lora_a.data = NULL, NBL_ERROR_ARGUMENT, "up.lora_a", "up.lora_b");
    REFUSED(a.gate.magnitude.dtype = NBL_DTYPE_I8, NBL_ERROR_DTYPE, "gate.magnitude", "i8");
    REFUSED(a.down.dy.shape[1] = 23, NBL_ERROR_SHAPE, "dy", "[3, 23]", "24");
    REFUSED(a.down.dy.dtype = NBL_DTYPE_BF16, NBL_ERROR_DTYPE, "dy", "bf16", "f32");
    REFUSED(a.gate.dropout = -1, NBL_ERROR_ARGUMENT, "dropout");
#undef REFUSED
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_activation_format_and_dtype_agrees_with_the_reference),
        cmocka_unit_test(more_tokens_than_a_chunk_agree_with_the_reference),
        cmocka_unit_test(the_gradients_are_those_of_the_forward_pass),
        cmocka_unit_test(the_bits_depend_neither_on_threads_nor_on_the_rank_of_x),
        cmocka_unit_test(a_seed_in_memory_draws_the_masks_of_the_attribute),
        cmocka_unit_test(parts_of_a_batch_draw_the_masks_of_the_whole),
        cmocka_unit_test(saving_gate_and_up_changes_no_bit),
        cmocka_unit_test(a_product_beyond_f16_does_no_harm),
        cmocka_unit_test(a_nan_reaches_its_row_and_no_other),
        cmocka_unit_test(gradients_accumulate_and_unwanted_ones_are_not_computed),
        cmocka_unit_test(mismatches_name_the_part_and_the_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
