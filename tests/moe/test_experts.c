/* test_experts.c - mixtures of experts as operators: stacks in one piece and in members, tokens that keep their bits
 * whichever tokens share their experts, ranges of any length, arguments that do not fit. */
#include "ops/op_runner.h"

#include "ops/moe/expert_mlp.h"
#include "ops/moe/expert_order.h"
#include "ops/moe/router.h"

enum { EXPERTS = 5, TOP = 2, IN = 64, INNER = 64, RANK = 2 };

/* One call and the memory behind it. */
typedef struct block {
    nbl__expert_mlp a;
    nbl__expert_order order;
    nbl_tensor values[2]; /* of the stacks, before they were quantized */
    nbl_quantized_parts parts[2 * 2 * EXPERTS + 2];
    nbl_weight members[2][2 * EXPERTS];
    int part_count;
} block;

/* A matrix in a storage format, from dense f32 values. */
static nbl_weight quantized(nbl_context *ctx, block *b, nbl_format format, bool nested, int rank,
                            const int64_t *shape, const float *values)
{
    nbl_weight w = {.format = NBL_FORMAT_DENSE, .dtype = NBL_DTYPE_F32, .rank = rank, .data = values};
    memcpy(w.shape, shape, (size_t)rank * sizeof *shape);
    if (format == NBL_FORMAT_DENSE) return w;
    nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = format, .nested = nested};
    nbl_quantized_sizes sizes;
    nbl_quantized_parts *parts = &b->parts[b->part_count++];
    assert_ok(ctx, nbl_quantize_sizes(ctx, &how, rank, shape, &sizes));
    *parts = (nbl_quantized_parts){malloc(sizes.data + 1), malloc(sizes.scales + 4),
                                   malloc(sizes.scale_codes + 1), malloc(sizes.nested_scales + 4)};
    assert_ok(ctx, nbl_quantize(ctx, &how, NBL_DTYPE_F32, rank, shape, values, parts, &w));
    return w;
}

/* The stack as `pieces` matrices per expert; 0: in one piece. */
static nbl_weight stack_of(nbl_context *ctx, block *b, int which, nbl_format format, bool nested, int64_t out,
                           int64_t in, int pieces)
{
    int64_t shape[] = {EXPERTS, out, in};
    const float *values = b->values[which].data;
    if (pieces == 0) return quantized(ctx, b, format, nested, 3, shape, values);
    int64_t rows = out / pieces, own[] = {rows, in};
    for (int i = 0; i < EXPERTS * pieces; i++)
        b->members[which][i] = quantized(ctx, b, format, nested, 2, own, values + i * rows * in);
    nbl_weight w = {.format = format,
                    .dtype = b->members[which][0].dtype,
                    .block = b->members[which][0].block,
                    .rank = 3,
                    .members = b->members[which],
                    .member_count = EXPERTS * pieces};
    memcpy(w.shape, shape, sizeof shape);
    return w;
}

static void route(nbl_context *ctx, block *b, const int32_t *experts, int64_t tokens)
{
    b->order.count = EXPERTS;
    b->order.experts = tensor_of(NBL_DTYPE_I32, SHAPE(tokens, TOP));
    memcpy(b->order.experts.data, experts, (size_t)(tokens * TOP) * sizeof *experts);
    run_both(ctx, &nbl__expert_order_family, &b->order, NULL);
    b->a.offsets = b->order.offsets;
    b->a.pairs = b->order.pairs;
    b->a.rows = b->order.rows;
}

static void open_block(nbl_context *ctx, block *b, nbl_dtype dtype, nbl_format format, bool nested,
                       int pieces, const int32_t *experts, int64_t tokens)
{
    *b = (block){
        .a = {.dtype = dtype, .alpha = 1.702f, .interleaved = pieces == 0 && format == NBL_FORMAT_MXFP4}};
    b->values[0] = random_tensor(NBL_DTYPE_F32, 1, 0.2f, SHAPE(EXPERTS, 2 * INNER, IN));
    b->values[1] = random_tensor(NBL_DTYPE_F32, 2, 0.2f, SHAPE(EXPERTS, IN, INNER));
    b->a.gate_up.w = stack_of(ctx, b, 0, format, nested, 2 * INNER, IN, pieces);
    b->a.down.w = stack_of(ctx, b, 1, format, nested, IN, INNER, pieces ? 1 : 0);
    b->a.gate_up.bias = random_tensor(NBL_DTYPE_F32, 3, 1, SHAPE(EXPERTS, 2 * INNER));
    b->a.gate_up.lora_a = random_tensor(NBL_DTYPE_F32, 4, 0.3f, SHAPE(EXPERTS * RANK, IN));
    b->a.gate_up.lora_b = random_tensor(NBL_DTYPE_F32, 5, 0.3f, SHAPE(2 * INNER, EXPERTS * RANK));
    b->a.down.lora_a = random_tensor(NBL_DTYPE_F32, 6, 0.3f, SHAPE(EXPERTS * RANK, INNER));
    b->a.down.lora_b = random_tensor(NBL_DTYPE_F32, 7, 0.3f, SHAPE(IN, EXPERTS * RANK));
    b->a.gate_up.scale = 0.5f;
    b->a.x = random_tensor(dtype, 8, 1, SHAPE(tokens, IN));
    b->a.dy = random_tensor(dtype, 9, 1, SHAPE(tokens, IN));
    b->a.weights = random_tensor(NBL_DTYPE_F32, 10, 1, SHAPE(tokens, TOP));
    route(ctx, b, experts, tokens);
}

static void free_block(block *b)
{
    nbl_tensor *all[] = {&b->a.gate_up.bias, &b->a.gate_up.lora_a, &b->a.gate_up.lora_b,
                         &b->a.down.lora_a,  &b->a.down.lora_b,    &b->a.x,
                         &b->a.dy,           &b->a.weights,        &b->order.experts,
                         &b->values[0],      &b->values[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->data);
    for (int i = 0; i < b->part_count; i++) {
        free(b->parts[i].data);
        free(b->parts[i].scales);
        free(b->parts[i].scale_codes);
        free(b->parts[i].nested_scales);
    }
    free_outputs(&nbl__expert_order_family, &b->order);
    free_outputs(&nbl__expert_mlp_family, &b->a);
}

/* Each token's two experts; expert 3 has no rows. */
static void some_routing(int32_t *experts, int64_t tokens)
{
    for (int64_t t = 0; t < tokens; t++) {
        experts[TOP * t] = (int32_t)(t * t % 3);
        experts[TOP * t + 1] = t % 4 == 1
                                   ? (int32_t)((t + 1) * (t + 1) % 3 == t * t % 3 ? 4 : (t + 1) * (t + 1) % 3)
                                   : 4;
    }
}

static void members_give_the_results_of_one_piece(void **state)
{
    (void)state;
    enum { TOKENS = 40 };
    static const nbl_format formats[] = {NBL_FORMAT_DENSE, NBL_FORMAT_NF4, NBL_FORMAT_NF4, NBL_FORMAT_FP4,
                                         NBL_FORMAT_INT8};
    int32_t experts[TOKENS * TOP];
    nbl_context *ctx = new_context();
    some_routing(experts, TOKENS);
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (int d = 0; d < 3; d += 2)
            for (int pieces = 1; pieces <= 2; pieces++) {
                /* Nested scales of members have offsets of their own, so they are compared with the reference. Gate and up
                 * apart are two terms of dx: their sum is rounded once more. */
                bool nested = f == 2;
                block whole;
                open_block(ctx, &whole, compute_dtypes[d], formats[f], false, 0, experts, TOKENS);
                block apart;
                open_block(ctx, &apart, compute_dtypes[d], formats[f], nested, pieces, experts, TOKENS);
                block same;
                open_block(ctx, &same, compute_dtypes[d], formats[f], nested, pieces, experts, TOKENS);
                run_both(ctx, &nbl__expert_mlp_family, &apart.a, NULL);
                run_both(ctx, &nbl__expert_mlp_family, nested ? &same.a : &whole.a, nested ? "ref" : NULL);
                if (nested || pieces == 2)
                    assert_outputs_close(&nbl__expert_mlp_family, &apart.a, nested ? &same.a : &whole.a,
                                         d == 0 ? 1e-5 : 8e-3);
                else assert_outputs_equal(&nbl__expert_mlp_family, &apart.a, &whole.a);
                free_block(&whole);
                free_block(&apart);
                free_block(&same);
            }
    nbl_context_destroy(ctx);
}

static void stacks_and_members_that_do_not_fit_are_refused_by_name(void **state)
{
    (void)state;
    const nbl__op *op = &nbl__expert_mlp_family.forward;
    int32_t experts[] = {0, 1, 2, 3};
    nbl_context *ctx = new_context();
    block b;
    open_block(ctx, &b, NBL_DTYPE_F32, NBL_FORMAT_NF4, false, 2, experts, 2);
    nbl__expert_mlp bad = b.a;
    bad.gate_up.w.member_count--;
    ASSERT_REFUSED(ctx, *op, &bad, NBL_ERROR_SHAPE, "gate_up", "9 members");
    b.members[0][3].block = 128;
    ASSERT_REFUSED(ctx, *op, &b.a, NBL_ERROR_DTYPE, "member 3 of gate_up", "128", "stored alike");
    b.members[0][3].block = 64;
    b.members[0][7].shape[0]++;
    ASSERT_REFUSED(ctx, *op, &b.a, NBL_ERROR_SHAPE, "member 7 of gate_up", "[65, 64]", "[64, 64]");
    b.members[0][7].shape[0]--;
    bad = b.a;
    bad.train_w = true;
    ASSERT_REFUSED(ctx, *op, &bad, NBL_ERROR_UNSUPPORTED, "gate_up", "members");
    bad = b.a;
    bad.transposed = true;
    ASSERT_REFUSED(ctx, *op, &bad, NBL_ERROR_UNSUPPORTED, "transposed", "members");
    bad = b.a;
    bad.gate_up.lora_a.shape[0]++;
    ASSERT_REFUSED(ctx, *op, &bad, NBL_ERROR_SHAPE, "gate_up.lora_a", "multiple of the 5 experts");
    bad = b.a;
    bad.down.w.shape[0]--;
    bad.down.w.member_count--;
    bad.down.lora_a.data = bad.down.lora_b.data = NULL;
    ASSERT_REFUSED(ctx, *op, &bad, NBL_ERROR_SHAPE, "gate_up", "down", "do not fit");
    bad = b.a;
    bad.limit = 7;
    bad.act = NBL_ACT_GELU;
    ASSERT_REFUSED(ctx, *op, &bad, NBL_ERROR_ARGUMENT, "limit", "gelu");
    /* one weight was expected */
    int64_t n, rows;
    assert_int_equal(nbl__check_weight(ctx, "linear", &b.a.down.w, &n, &rows), NBL_ERROR_ARGUMENT);
    /* pointers of members are read when the call runs */
    b.members[1][2].data = NULL;
    assert_ok(ctx, op->infer(ctx, &b.a));
    make_outputs(&nbl__expert_mlp_family, &b.a, false, 0xff);
    assert_int_equal(run_one(ctx, op, &b.a, NULL), NBL_ERROR_ARGUMENT);
    free_block(&b);
    nbl_context_destroy(ctx);
}

static void indices_from_memory_are_checked(void **state)
{
    (void)state;
    int32_t experts[] = {0, 1, 2, 3};
    nbl_context *ctx = new_context();
    block b;
    open_block(ctx, &b, NBL_DTYPE_F32, NBL_FORMAT_DENSE, false, 0, experts, 2);
    assert_ok(ctx, nbl__expert_mlp_family.forward.infer(ctx, &b.a));
    make_outputs(&nbl__expert_mlp_family, &b.a, false, 0xff);
    int32_t *pairs = b.a.pairs.data, *offsets = b.a.offsets.data;
    static const struct {
        int offset, value;
    } bad[] = {{0, 1}, {1, 3}, {2, -1}, {EXPERTS, 5}, {3, INT32_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int32_t kept = offsets[bad[i].offset];
        offsets[bad[i].offset] = bad[i].value;
        assert_int_equal(run_one(ctx, &nbl__expert_mlp_family.forward, &b.a, NULL), NBL_ERROR_ARGUMENT);
        offsets[bad[i].offset] = kept;
    }
    pairs[1] = 4;
    assert_int_equal(run_one(ctx, &nbl__expert_mlp_family.forward, &b.a, NULL), NBL_ERROR_ARGUMENT);
    pairs[1] = -1;
    assert_int_equal(run_one(ctx, &nbl__expert_mlp_family.forward, &b.a, NULL), NBL_ERROR_ARGUMENT);
    ((int32_t *)b.order.experts.data)[1] = EXPERTS;
    assert_int_equal(run_one(ctx, &nbl__expert_order_family.forward, &b.order, NULL), NBL_ERROR_ARGUMENT);
    free_block(&b);
    nbl_context_destroy(ctx);
}

/* A token's row of a result of [tokens, columns]. */
static const uint8_t *row_of(const nbl_tensor *t, int64_t token)
{
    return (const uint8_t *)t->data + (size_t)(token * nbl__last(t)) * nbl__size_of(t->dtype);
}

/* The same tokens, once with a varied routing of the others and once with the others at token 0's experts. */
static void a_token_keeps_its_bits_whoever_shares_its_experts(void **state)
{
    (void)state;
    static const int64_t counts[] = {2, 6, 24, 70};
    nbl_context *ctx = new_context();
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int f = 0; f < 2; f++)
            for (int d = 0; d < 3; d++) {
                int64_t tokens = counts[c];
                int32_t varied[70 * TOP], crowded[70 * TOP];
                nbl_format format = f ? NBL_FORMAT_NF4 : NBL_FORMAT_DENSE;
                some_routing(varied, tokens);
                some_routing(crowded, tokens);
                for (int64_t t = 1; t < tokens; t++)
                    for (int i = 0; i < TOP; i++) {
                        crowded[TOP * t + i] = crowded[i];
                        varied[TOP * t + i] = t == 1 ? 1 + 2 * i : varied[TOP * t + i];
                    }
                block a;
                open_block(ctx, &a, compute_dtypes[d], format, false, 0, varied, tokens);
                block b;
                open_block(ctx, &b, compute_dtypes[d], format, false, 0, crowded, tokens);
                run_both(ctx, &nbl__expert_mlp_family, &a.a, NULL);
                run_both(ctx, &nbl__expert_mlp_family, &b.a, NULL);
                const nbl_tensor *of_a[] = {&a.a.y, &a.a.dx, &a.a.dweights},
                                 *of_b[] = {&b.a.y, &b.a.dx, &b.a.dweights};
                for (int i = 0; i < 3; i++)
                    assert_memory_equal(row_of(of_a[i], 0), row_of(of_b[i], 0),
                                        (size_t)nbl__last(of_a[i]) * nbl__size_of(of_a[i]->dtype));
                free_block(&a);
                free_block(&b);
            }
    nbl_context_destroy(ctx);
}

static void the_router_prefers_lower_indices_and_keeps_nan_in_sight(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__router a = {.dtype = NBL_DTYPE_F32, .top_k = 3, .logits = tensor_of(NBL_DTYPE_F32, SHAPE(3, 4))};
    static const float logits[] = {1, 2, 2, 1, 0, 0, 0, 0, 1, NAN, 5, 2};
    static const int32_t expected[] = {1, 2, 0, 0, 1, 2, 1, 2, 3};
    memcpy(a.logits.data, logits, sizeof logits);
    for (a.kind = 0; a.kind <= (int)NBL_ROUTER_TOPK_SIGMOID; a.kind++) {
        run_both(ctx, &nbl__router_family, &a, NULL);
        assert_memory_equal(a.experts.data, expected, sizeof expected);
        assert_true(isnan(value_at(&a.weights, 6)));
        free_outputs(&nbl__router_family, &a);
    }
    a.top_k = 5;
    a.kind = 0;
    ASSERT_REFUSED(ctx, nbl__router_family.forward, &a, NBL_ERROR_ARGUMENT, "top_k 5", "4 experts");
    free(a.logits.data);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_give_the_results_of_one_piece),
        cmocka_unit_test(stacks_and_members_that_do_not_fit_are_refused_by_name),
        cmocka_unit_test(indices_from_memory_are_checked),
        cmocka_unit_test(a_token_keeps_its_bits_whoever_shares_its_experts),
        cmocka_unit_test(the_router_prefers_lower_indices_and_keeps_nan_in_sight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
