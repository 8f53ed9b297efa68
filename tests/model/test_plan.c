/* test_plan.c - what a plan says of a model: budgets, recomputation, weights as they are kept, costs. */
#include "tiny_model.h"

#include <inttypes.h>

#include "base/cpu.h"
#include "model/language_model.h"

static nbl_model *open_for_plan(nbl_context *ctx, const tiny_model *tiny, nbl_format load, bool adapter)
{
    nbl_model *model;
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .load = load,
                                 .adapter = adapter ? tiny->adapter : NULL, .plan_only = true};
    assert_ok(ctx, nbl_model_open(ctx, tiny->model, &options, &model));
    return model;
}

static nbl_model_plan *planned; /* the last plan, or NULL */
static nbl_model_plan_summary plan;

static void drop_plan(void)
{
    nbl_model_plan_free(planned);
    planned = NULL;
}

static nbl_status make_plan(nbl_model *model, int64_t tokens, int64_t batch, uint64_t memory)
{
    drop_plan();
    nbl_status status = nbl_model_make_plan(model, tokens, batch, memory, &planned);
    assert_true((status == NBL_OK) == (planned != NULL));
    if (planned) plan = *nbl_model_plan_get_summary(planned);
    return status;
}

static nbl_status plan_request(nbl_model *model, const nbl__plan_request *request)
{
    drop_plan();
    nbl_status status = nbl__model_plan(model, request, &planned);
    if (planned) plan = *nbl_model_plan_get_summary(planned);
    return status;
}

static double flops_of(const char *op, nbl_plan_pass pass)
{
    double sum = 0;
    const nbl_planned_op *it;
    for (int64_t i = 0; (it = nbl_model_plan_get_op(planned, i)); i++)
        if ((op == NULL || strcmp(it->op, op) == 0) && it->pass == pass) sum += it->flops;
    return sum;
}

static void a_budget_chooses_recomputation_and_the_smallest_one_is_named(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    tiny_model tiny;
    tiny_write(ctx, 0, true, &tiny);
    nbl_model *model = open_for_plan(ctx, &tiny, NBL_FORMAT_DENSE, true);
    assert_ok(ctx, make_plan(model, 64, 1, 0));
    uint64_t whole = plan.total_bytes, min = plan.smallest_memory;
    assert_int_equal(plan.recompute, NBL_PLAN_RECOMPUTE_NONE);
    assert_true(plan.recompute_flops == 0 && flops_of(NULL, NBL_PLAN_PASS_RECOMPUTE) == 0);
    assert_int_equal(plan.longest_sequence, 128);
    assert_true(min < whole);

    assert_ok(ctx, make_plan(model, 64, 1, whole));
    assert_int_equal(plan.recompute, NBL_PLAN_RECOMPUTE_NONE);
    for (uint64_t budget = min; budget < whole; budget += (whole - min + 4) / 5) {
        assert_ok(ctx, make_plan(model, 64, 1, budget));
        assert_true(plan.total_bytes <= budget);
        assert_int_not_equal(plan.recompute, NBL_PLAN_RECOMPUTE_NONE);
        assert_true(plan.recompute_flops > 0 &&
                    plan.recompute_flops == flops_of(NULL, NBL_PLAN_PASS_RECOMPUTE));
        assert_true(plan.longest_sequence >= 64);
        if (plan.longest_sequence == 128) continue;
        int64_t longest = plan.longest_sequence;
        assert_ok(ctx, make_plan(model, longest, 1, budget));
        assert_int_equal(make_plan(model, longest + 1, 1, budget), NBL_ERROR_MEMORY);
    }
    char number[32];
    snprintf(number, sizeof number, "%" PRIu64, min);
    assert_int_equal(make_plan(model, 64, 1, min - 1), NBL_ERROR_MEMORY);
    assert_non_null(strstr(nbl_error_message(ctx), number));
    assert_int_equal(make_plan(model, 64, 1, 1), NBL_ERROR_MEMORY);
    assert_non_null(strstr(nbl_error_message(ctx), number));
    nbl_model_close(model);
    remove_tree(tiny.folder);
    drop_plan();
    nbl_context_destroy(ctx);
}

/* Without a budget, what the machine has decides how much is recomputed, and never refuses. */
static void available_memory_chooses_recomputation_and_refuses_nothing(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    tiny_model tiny;
    tiny_write(ctx, 0, true, &tiny);
    nbl_model *model = open_for_plan(ctx, &tiny, NBL_FORMAT_DENSE, true);
    nbl__plan_request request = {.train = true, .tokens = 64, .sequences = 1, .optimizer_bits = 32};
    assert_ok(ctx, plan_request(model, &request));
    uint64_t whole = plan.total_bytes, min = plan.smallest_memory;
    double kept = flops_of("mlp_backward", NBL_PLAN_PASS_BACKWARD),
           forward = flops_of("mlp", NBL_PLAN_PASS_FORWARD);
    assert_true(kept > 0 && forward > 0);
    request.available = whole;
    assert_ok(ctx, plan_request(model, &request));
    assert_int_equal(plan.recompute, NBL_PLAN_RECOMPUTE_NONE);
    request.available = whole - 1;
    assert_ok(ctx, plan_request(model, &request));
    assert_int_equal(plan.recompute, NBL_PLAN_RECOMPUTE_CHEAP);
    assert_true(plan.total_bytes < whole);
    assert_true(flops_of("mlp_backward", NBL_PLAN_PASS_BACKWARD) ==
                kept); /* norms are enough: no product is made twice */
    request.min = NBL_RECOMPUTE_FLAGGED;
    assert_ok(ctx, plan_request(model, &request));
    /* gate and up again: two thirds of the forward products, and a little */
    assert_true(flops_of("mlp_backward", NBL_PLAN_PASS_BACKWARD) - kept > 0.6 * forward);
    double head = flops_of("cross_entropy_backward", NBL_PLAN_PASS_BACKWARD);
    request.min =
        NBL_RECOMPUTE_LAYERS; /* a layer is made again without its MLP: backward of that makes gate and up */
    assert_ok(ctx, plan_request(model, &request));
    assert_true(flops_of(NULL, NBL_PLAN_PASS_RECOMPUTE) > 0 && flops_of("mlp", NBL_PLAN_PASS_RECOMPUTE) == 0);
    assert_true(flops_of("cross_entropy_backward", NBL_PLAN_PASS_BACKWARD) ==
                head); /* the logits are made once even so */
    request.min = NBL_RECOMPUTE_ALL;
    assert_ok(ctx, plan_request(model, &request));
    assert_true(flops_of("cross_entropy_backward", NBL_PLAN_PASS_BACKWARD) > 2 * head);
    request.min = NBL_RECOMPUTE_NONE;
    for (int i = 0; i < 2; i++) {
        request.available = i ? 1 : min;
        assert_ok(ctx, plan_request(model, &request));
        assert_true(plan.total_bytes <= min);
        assert_int_equal(plan.longest_sequence, 128); /* no limit was asked about */
    }
    assert_true(nbl__memory_available() > 1 << 20);
    nbl_model_close(model);
    remove_tree(tiny.folder);
    drop_plan();
    nbl_context_destroy(ctx);
}

static void a_plan_with_load_counts_what_loading_keeps(void **state)
{
    (void)state;
    static const nbl_format formats[] = {NBL_FORMAT_NF4, NBL_FORMAT_FP4, NBL_FORMAT_INT8};
    nbl_context *ctx = new_context();
    tiny_model tiny;
    tiny_write(ctx, 2, false, &tiny);
    nbl_model *model = open_for_plan(ctx, &tiny, NBL_FORMAT_DENSE, false);
    assert_ok(ctx, make_plan(model, 16, 2, 0));
    uint64_t dense = plan.arenas.weights;
    nbl_model_close(model);
    for (int i = 0; i < 3; i++) {
        model = open_for_plan(ctx, &tiny, formats[i], false);
        assert_ok(ctx, make_plan(model, 16, 2, 0));
        nbl_plan_arenas arenas = plan.arenas;
        nbl_ids ids = {.ids = (int32_t[]){1, 2, 3}, .count = 3};
        float logits[3 * TINY_VOCAB], *rows = logits;
        assert_int_equal(nbl_model_logits(model, &ids, 1, &rows), NBL_ERROR_ARGUMENT);
        nbl_model_close(model);
        assert_true(arenas.weights < dense);
        assert_ok(ctx, nbl_model_open(
                           ctx, tiny.model,
                           &(nbl_model_options){NBL_OPTIONS(nbl_model_options), .load = formats[i]}, &model));
        assert_ok(ctx, make_plan(model, 16, 2, 0));
        assert_memory_equal(&plan.arenas, &arenas, sizeof arenas);
        uint64_t kept = 0;
        for (int64_t k = 0; k < model->weight_count; k++) {
            const struct nbl__weight_entry *entry = &model->weights[k];
            kept += entry->memory ? entry->bytes : nbl__weight_bytes(&entry->weight);
        }
        assert_true(kept >= arenas.weights && kept < arenas.weights + arenas.weights / 50);
        assert_ok(ctx, nbl_model_logits(model, &ids, 1, &rows));
        nbl_model_close(model);
    }
    remove_tree(tiny.folder);
    drop_plan();
    nbl_context_destroy(ctx);
}

static void costs_of_a_step_are_those_of_its_products(void **state)
{
    (void)state;
    enum { T = 64, LAYERS = 2, Q = TINY_HEADS * TINY_DIM, K = TINY_KV * TINY_DIM };
    nbl_context *ctx = new_context();
    tiny_model tiny;
    tiny_write(ctx, 0, false, &tiny);
    nbl_model *model = open_for_plan(ctx, &tiny, NBL_FORMAT_DENSE, true);
    assert_ok(ctx, make_plan(model, T, 1, 0));
    double r = TINY_RANK, h = TINY_HIDDEN, inner = TINY_INNER, t = T;
    double o = 2 * t * (Q * h + r * (Q + h)), pairs = t * (t + 1) / 2 * TINY_HEADS;
    assert_true(flops_of("linear", NBL_PLAN_PASS_FORWARD) == LAYERS * o);
    assert_true(flops_of("linear_group", NBL_PLAN_PASS_FORWARD) ==
                LAYERS * 2 * t * (h * (Q + 2 * K) + r * (3 * h + Q + 2 * K)));
    assert_true(flops_of("attention", NBL_PLAN_PASS_FORWARD) == LAYERS * pairs * (4 * TINY_DIM + 4));
    assert_true(flops_of("attention_backward", NBL_PLAN_PASS_BACKWARD) ==
                LAYERS * pairs * (10 * TINY_DIM + 6));
    /* The head is frozen: forward has made dx, and backward multiplies it with the gradient of the loss. */
    assert_true(flops_of("cross_entropy", NBL_PLAN_PASS_FORWARD) == t * TINY_VOCAB * (4 * h + 4));
    assert_true(flops_of("cross_entropy_backward", NBL_PLAN_PASS_BACKWARD) == t * h);
    double mlp = 3 * 2 * t * (h * inner + r * (h + inner)) + 5 * t * inner;
    assert_true(flops_of("mlp", NBL_PLAN_PASS_FORWARD) == LAYERS * mlp);
    /* dx through W and A, dy·B, x·A again, and the gradients of A and B. */
    double back = 2 * t * (Q * h + r * Q) + 2 * t * h * r + 2 * t * r * (2 * Q + h);
    assert_true(flops_of("linear_backward", NBL_PLAN_PASS_BACKWARD) == LAYERS * back);
    nbl_model_close(model);
    remove_tree(tiny.folder);
    drop_plan();
    nbl_context_destroy(ctx);
}

static void the_largest_values_are_listed_largest_first(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    tiny_model tiny;
    tiny_write(ctx, 5, true, &tiny);
    for (int train = 0; train < 2; train++) {
        nbl_model *model = open_for_plan(ctx, &tiny, NBL_FORMAT_DENSE, train);
        assert_ok(ctx, make_plan(model, 32, 2, 0));
        assert_true(plan.value_count >= 16);
        bool saved = false, kept = false;
        const nbl_planned_value *value;
        uint64_t before = UINT64_MAX;
        int64_t count = 0;
        for (; (value = nbl_model_plan_get_value(planned, count)); count++) {
            assert_true(value->count >= 1 && value->bytes > 0 && value->name[0] && value->bytes <= before);
            before = value->bytes;
            saved |= value->arena == NBL_PLAN_ARENA_SAVED;
            kept |= value->arena == NBL_PLAN_ARENA_KV;
        }
        assert_int_equal(count, plan.value_count);
        assert_null(nbl_model_plan_get_value(planned, -1));
        assert_true(train ? saved : kept);
        assert_true(plan.total_bytes == plan.arenas.weights + plan.arenas.adapters + plan.arenas.optimizer +
                                            plan.arenas.saved + plan.arenas.scratch + plan.arenas.kv);
        nbl_model_close(model);
    }
    remove_tree(tiny.folder);
    drop_plan();
    nbl_context_destroy(ctx);
}

static void moments_in_8_bits_have_scales_and_small_tensors_keep_theirs(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__graph g;
    nbl__graph_open(ctx, &g);
    int64_t shapes[] = {4096, 4095, 8192};
    for (int i = 0; i < 3; i++) {
        nbl__value v = nbl__graph_value(&g, NBL_KIND_PARAMETER, "p", NBL_DTYPE_F32, 1, &shapes[i]);
        nbl__info(&g, v)->trained = i < 2;
    }
    assert_int_equal(nbl__moment_bytes(&g, 0), 0);
    assert_int_equal(nbl__moment_bytes(&g, 32), 2 * (4096 * 4 + 4096 * 4));
    assert_int_equal(nbl__moment_bytes(&g, 8), 2 * (4096 + 64 + 4096 * 4));
    nbl__graph_close(&g);
    drop_plan();
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_budget_chooses_recomputation_and_the_smallest_one_is_named),
        cmocka_unit_test(available_memory_chooses_recomputation_and_refuses_nothing),
        cmocka_unit_test(a_plan_with_load_counts_what_loading_keeps),
        cmocka_unit_test(costs_of_a_step_are_those_of_its_products),
        cmocka_unit_test(the_largest_values_are_listed_largest_first),
        cmocka_unit_test(moments_in_8_bits_have_scales_and_small_tensors_keep_theirs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
