/* test_session.c - whole models of every architecture: steps that allocate nothing, norms that are prepared, plans of
 * two dtypes at once. */
#include "tiny_model.h"

#include <math.h>
#include <pthread.h>

#include "base/alloc.h"
#include "model/language_model.h"

enum { TOKENS = 24 };

static int32_t some_ids[TOKENS];

static nbl_ids sequence(int64_t count)
{
    for (int i = 0; i < TOKENS; i++) some_ids[i] = (i * 7 + 3) % TINY_VOCAB;
    return (nbl_ids){.ids = some_ids, .count = count};
}

static nbl_context *counting_context(nbl__counter *counter)
{
    nbl_context *ctx;
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 2,
                                   .allocator = nbl__counting_allocator(counter)};
    assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
    return ctx;
}

static nbl_model *open_tiny(nbl_context *ctx, const tiny_model *tiny, nbl_compute_dtype dtype,
                            nbl_format load, bool adapter)
{
    nbl_model *model;
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .dtype = dtype, .load = load,
                                 .adapter = adapter ? tiny->adapter : NULL};
    assert_ok(ctx, nbl_model_open(ctx, tiny->model, &options, &model));
    return model;
}

static const nbl__session_options training = {
    .mode = NBL_MODE_TRAIN, .tokens = TOKENS, .sequences = 1, .train = true};

static void a_training_step_allocates_nothing(void **state)
{
    (void)state;
    static const nbl_compute_dtype dtypes[] = {NBL_COMPUTE_F32, NBL_COMPUTE_BF16};
    for (int i = 0; i < 2 * TINY_ARCHITECTURES; i++) {
        nbl__counter counter = {0};
        nbl_context *ctx = counting_context(&counter);
        tiny_model tiny;
        tiny_write(ctx, i / 2, i % 2, &tiny);
        nbl_model *model = open_tiny(ctx, &tiny, dtypes[i % 2],
                                     i % 4 == 3 ? NBL_FORMAT_NF4 : NBL_FORMAT_DENSE, true);
        nbl__session s;
        assert_ok(ctx, nbl__session_open(model, &training, &s));
        *(float *)nbl__plan_data(&s.plan, s.build.dloss) = 1;
        int64_t before = counter.calls;
        for (int step = 0; step < 3; step++) {
            nbl_ids ids = sequence(TOKENS - step);
            assert_ok(ctx, nbl__session_load(&s, &ids, 1, &ids));
            assert_ok(ctx, nbl__plan_run(&s.plan));
            assert_ok(ctx, nbl__plan_prepare(&s.plan));
        }
        assert_int_equal(counter.calls, before);
        assert_true(isfinite(*(float *)nbl__plan_data(&s.plan, s.build.loss)));
        nbl__session_close(&s);
        nbl_model_close(model);
        remove_tree(tiny.folder);
        nbl_context_destroy(ctx);
        assert_int_equal(counter.live, 0);
    }
}

typedef struct watch {
    nbl__counter *counter;
    int64_t calls[16];
    int count;
} watch;

static bool count_calls(void *user, int64_t which, int32_t id)
{
    watch *w = user;
    (void)id;
    if (which == 0 && w->count < 16) w->calls[w->count++] = w->counter->calls;
    return 0;
}

static void a_generation_step_allocates_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < TINY_ARCHITECTURES; i++) {
        nbl__counter counter = {0};
        nbl_context *ctx = counting_context(&counter);
        tiny_model tiny;
        tiny_write(ctx, i, true, &tiny);
        nbl_model *model = open_tiny(ctx, &tiny, i % 2 ? NBL_COMPUTE_BF16 : NBL_COMPUTE_F32, NBL_FORMAT_DENSE,
                                     i >= 2);
        watch seen = {.counter = &counter};
        int32_t made[2][16];
        nbl_ids prompts[2] = {sequence(9), sequence(3)};
        nbl_generated results[2] = {{.ids = {.ids = made[0]}}, {.ids = {.ids = made[1]}}};
        nbl_generate_options how = {
            NBL_OPTIONS(nbl_generate_options), .max_tokens = 12,     .temperature = 0.8f, .top_p = 0.9f,
            .repetition_penalty = 1.1f,        .token = count_calls, .user = &seen};
        assert_ok(ctx, nbl_model_generate(model, prompts, 2, &how, results));
        assert_int_equal(seen.count, 12);
        for (int t = 2; t < seen.count; t++) assert_int_equal(seen.calls[t], seen.calls[1]);
        nbl_model_close(model);
        remove_tree(tiny.folder);
        nbl_context_destroy(ctx);
    }
}

/* Logits over such a temperature are beyond f32: only the likeliest token is left. */
static void the_coldest_temperature_takes_the_likeliest_token(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    tiny_model tiny;
    tiny_write(ctx, 0, true, &tiny);
    nbl_model *model = open_tiny(ctx, &tiny, NBL_COMPUTE_F32, NBL_FORMAT_DENSE, false);
    int32_t made[2][12];
    nbl_ids prompt = sequence(9);
    for (int cold = 0; cold < 2; cold++) {
        nbl_generated result = {.ids = {.ids = made[cold]}};
        nbl_generate_options how = {NBL_OPTIONS(nbl_generate_options), .max_tokens = 12,
                                    .temperature = cold ? 0x1p-140f : 0};
        assert_ok(ctx, nbl_model_generate(model, &prompt, 1, &how, &result));
        assert_int_equal(result.ids.count, 12);
    }
    assert_memory_equal(made[0], made[1], sizeof made[0]);
    nbl_model_close(model);
    remove_tree(tiny.folder);
    nbl_context_destroy(ctx);
}

/* ---- what is prepared ---- */

static float *parameter(nbl__session *s, const char *module, const char *part)
{
    char name[256];
    snprintf(name, sizeof name, "%s.%s", module, part);
    for (nbl__value v = 1; v <= s->graph.value_count; v++)
        if (s->graph.values[v].kind == NBL_KIND_PARAMETER && strcmp(s->graph.values[v].name, name) == 0)
            return nbl__plan_data(&s->plan, v);
    fail_msg("there is no %s", name);
    return NULL;
}

/* How far a prepared norm is from that of W + s·B·A, relative, at most. */
static double norm_error(nbl__session *s, nbl__value value)
{
    char module[200], name[256];
    snprintf(module, sizeof module, "%s", s->graph.values[value].name);
    module[strlen(module) - strlen(".norm")] = '\0';
    snprintf(name, sizeof name, "%s.weight", module);
    const nbl_weight *w = &nbl__model_find(s->model, name)->weight;
    const float *values = w->data, *a = parameter(s, module, "lora_A.weight"),
                *b = parameter(s, module, "lora_B.weight"), *norm = nbl__plan_data(&s->plan, value);
    double worst = 0, scale = 8.0 / TINY_RANK;
    for (int64_t n = 0; n < w->shape[0]; n++) {
        double sum = 0;
        for (int64_t k = 0; k < w->shape[1]; k++) {
            double v = (double)values[n * w->shape[1] + k];
            for (int r = 0; r < TINY_RANK; r++)
                v += scale * (double)b[n * TINY_RANK + r] * (double)a[r * w->shape[1] + k];
            sum += v * v;
        }
        worst = fmax(worst, fabs((double)norm[n] / sqrt(sum) - 1));
    }
    return worst;
}

static double worst_norm(nbl__session *s, int *count)
{
    double worst = 0;
    *count = 0;
    for (nbl__value v = 1; v <= s->graph.value_count; v++)
        if (s->graph.values[v].kind == NBL_KIND_PREPARED) {
            worst = fmax(worst, norm_error(s, v));
            (*count)++;
        }
    return worst;
}

static void norms_of_dora_follow_the_adapter_when_they_are_prepared(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    tiny_model tiny;
    tiny_write(ctx, 0, true, &tiny);
    nbl_model *model = open_tiny(ctx, &tiny, NBL_COMPUTE_F32, NBL_FORMAT_DENSE, true);
    nbl__session s;
    int count;
    assert_ok(ctx, nbl__session_open(model, &training, &s));
    assert_true(worst_norm(&s, &count) < 1e-6);
    assert_int_equal(count, 14); /* every linear layer of two blocks */
    float *b = parameter(&s, "model.layers.1.mlp.down_proj", "lora_B.weight");
    for (int i = 0; i < TINY_HIDDEN * TINY_RANK; i++) b[i] *= 3;
    assert_true(worst_norm(&s, &count) > 1e-3);
    nbl_ids ids = sequence(TOKENS);
    assert_ok(ctx, nbl__session_load(&s, &ids, 1, &ids));
    assert_ok(ctx, nbl__plan_run(&s.plan));
    float stale = *(float *)nbl__plan_data(&s.plan, s.build.loss);
    assert_ok(ctx, nbl__plan_prepare(&s.plan));
    assert_true(worst_norm(&s, &count) < 1e-6);
    assert_ok(ctx, nbl__plan_run(&s.plan));
    assert_true(*(float *)nbl__plan_data(&s.plan, s.build.loss) != stale);
    nbl__session_close(&s);
    nbl_model_close(model);
    remove_tree(tiny.folder);
    nbl_context_destroy(ctx);
}

static void recomputation_changes_no_bit_of_any_architecture(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int i = 0; i < TINY_ARCHITECTURES; i++) {
        tiny_model tiny;
        tiny_write(ctx, i, true, &tiny);
        nbl_model *model = open_tiny(ctx, &tiny, i % 2 ? NBL_COMPUTE_F32 : NBL_COMPUTE_BF16, NBL_FORMAT_DENSE,
                                     true);
        enum { RECOMPUTE_LEVELS = NBL_RECOMPUTE_ALL + 1 };
        nbl__session s[RECOMPUTE_LEVELS];
        nbl_ids ids = sequence(TOKENS);
        for (int mode = 0; mode < RECOMPUTE_LEVELS; mode++) {
            nbl__session_options o = training;
            o.plan.min = (nbl__recompute)mode;
            assert_ok(ctx, nbl__session_open(model, &o, &s[mode]));
            *(float *)nbl__plan_data(&s[mode].plan, s[mode].build.dloss) = 1;
            assert_ok(ctx, nbl__session_load(&s[mode], &ids, 1, &ids));
            assert_ok(ctx, nbl__plan_run(&s[mode].plan));
            /* An mlp of one operator has no product to give up at CHEAP; three have no gate and up at FLAGGED. */
            bool less = mode != (tiny_architectures[i].fused ? NBL_RECOMPUTE_FLAGGED : NBL_RECOMPUTE_CHEAP);
            assert_true(mode == 0 || s[mode].plan.saved_bytes + less <= s[mode - 1].plan.saved_bytes);
            assert_memory_equal(s[mode].plan.memory[NBL_MEMORY_GRADIENTS],
                                s[0].plan.memory[NBL_MEMORY_GRADIENTS],
                                s[0].plan.bytes[NBL_MEMORY_GRADIENTS]);
        }
        for (int mode = 0; mode < RECOMPUTE_LEVELS; mode++) nbl__session_close(&s[mode]);
        nbl_model_close(model);
        remove_tree(tiny.folder);
    }
    nbl_context_destroy(ctx);
}

static int again_count(const nbl__plan *plan, const char *family)
{
    int count = 0;
    for (int i = 0; i < plan->step_count; i++)
        count += plan->steps[i].rerun && strcmp(plan->steps[i].node->family->name, family) == 0;
    return count;
}

/* The worst relative error of a gradient of `a` beside that of the same name in `b`. */
static double worst_gradient(nbl__session *a, nbl__session *b, int linear)
{
    double worst = 0;
    int found = 0;
    for (nbl__value v = 1; v <= a->graph.value_count; v++)
        for (nbl__value u = 1; u <= b->graph.value_count; u++) {
            const nbl__value_info *x = nbl__info(&a->graph, v), *y = nbl__info(&b->graph, u);
            if (!x->trained || !y->trained || strcmp(x->name, y->name) != 0) continue;
            const float *p = nbl__plan_data(&a->plan, x->gradient),
                        *q = nbl__plan_data(&b->plan, y->gradient);
            double off = 0, norm = 0;
            for (int64_t i = 0; i < nbl__tensor_elements(&x->tensor); i++) {
                off += pow((double)p[i] - (double)q[i], 2);
                norm += pow((double)q[i], 2);
            }
            worst = fmax(worst, sqrt(off / norm));
            found++;
        }
    assert_int_equal(found, 3 * linear); /* A, B and magnitude */
    return worst;
}

/* The way of devices, on the CPU: the same numbers, masks included, and the plan decides what is kept between the
 * operators. */
static void a_feed_forward_block_of_three_operators_computes_the_same(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int i = 0; i < TINY_ARCHITECTURES; i++) {
        const struct tiny_architecture *it = &tiny_architectures[i];
        if (it->router) continue; /* a mixture of experts is no such block */
        /* The most memory is the scratch of the gated delta rule in the first layer, which no recomputation
         * lowers. */
        int ways = it->hybrid ? 3 : 4;
        tiny_model tiny;
        tiny_write(ctx, i, true, &tiny);
        nbl_model *model = open_tiny(ctx, &tiny, NBL_COMPUTE_F32, NBL_FORMAT_DENSE, true);
        nbl__session s[4];
        nbl_ids ids = sequence(TOKENS);
        model->peft->settings.dropout = 0.25;
        for (int way = 0; way < ways;
             way++) { /* one operator; three; three and cheap; three and some of that */
            nbl__session_options o = training;
            o.split_mlp = way > 0;
            o.plan.min = way == 2 ? NBL_RECOMPUTE_CHEAP : NBL_RECOMPUTE_NONE;
            if (way == 3) o.plan.budget = nbl__plan_total(&s[1].plan) - 1;
            assert_ok(ctx, nbl__session_open(model, &o, &s[way]));
            *(float *)nbl__plan_data(&s[way].plan, s[way].build.dloss) = 1;
            assert_ok(ctx, nbl__session_load(&s[way], &ids, 1, &ids));
            assert_ok(ctx, nbl__plan_run(&s[way].plan));
            assert_true(worst_gradient(&s[way], &s[0], tiny_linear_layers(i)) < 1e-5);
        }
        for (int way = 2; way < ways; way++)
            assert_memory_equal(s[way].plan.memory[NBL_MEMORY_GRADIENTS],
                                s[1].plan.memory[NBL_MEMORY_GRADIENTS],
                                s[1].plan.bytes[NBL_MEMORY_GRADIENTS]);
        assert_int_equal(again_count(&s[2].plan, "gated"), 2); /* of two layers */
        /* What was rotated is as large as what would have to be kept instead, unless that is kept for its norm,
         * or for v beside it. */
        int attends = it->hybrid ? 1 : 2, normed = it->qk_norm || it->post_norms ? 2 * attends : 0;
        if (it->feed_forward) normed = 2; /* Llama 4: those of the layer with rope */
        assert_int_equal(again_count(&s[2].plan, "rope"), it->fused ? 2 * attends : normed);
        /* Both norms of both layers; behind the blocks only the one that the next block's input needs. */
        int norms = again_count(&s[2].plan, "rmsnorm") + again_count(&s[2].plan, "layernorm");
        assert_int_equal(norms - normed, it->post_norms || it->parallel ? 2 : 4);
        bool norms_suffice = ways == 4 && !it->parallel; /* to save a byte */
        if (norms_suffice) assert_int_equal(s[3].plan.recompute, NBL_RECOMPUTE_NORMS);
        if (norms_suffice) assert_int_equal(s[3].plan.recomputed_layers, 1);
        for (int way = 0; way < ways; way++) nbl__session_close(&s[way]);
        nbl_model_close(model);
        remove_tree(tiny.folder);
    }
    nbl_context_destroy(ctx);
}

static void every_failed_allocation_of_a_session_is_an_error_without_a_leak(void **state)
{
    (void)state;
    nbl__counter counter = {0};
    nbl_context *ctx = counting_context(&counter);
    tiny_model tiny;
    tiny_write(ctx, 3, true, &tiny);
    nbl_model *model = open_tiny(ctx, &tiny, NBL_COMPUTE_F32, NBL_FORMAT_DENSE, true);
    for (int offload = 0; offload < 2; offload++) {
        int64_t live = counter.live, failures = 0;
        nbl__session_options o = training;
        if (offload) o.plan = (nbl__plan_options){.min = NBL_RECOMPUTE_LAYERS, .offload = true};
        for (nbl_status status = NBL_ERROR_MEMORY; status != NBL_OK; failures++) {
            nbl__session s;
            counter.fail_at = counter.calls + 1 + failures;
            status = nbl__session_open(model, &o, &s);
            counter.fail_at = 0;
            assert_true(status != NBL_OK || (s.plan.host_bytes > 0) == offload);
            if (status == NBL_OK) nbl__session_close(&s);
            else if (status != NBL_ERROR_MEMORY) fail_msg("%s", nbl_error_message(ctx));
            assert_int_equal(counter.live, live);
        }
        assert_true(failures > 10);
    }
    nbl_model_close(model);
    remove_tree(tiny.folder);
    nbl_context_destroy(ctx);
}

/* ---- two at once ---- */

typedef struct worker {
    const tiny_model *tiny;
    nbl_compute_dtype dtype;
    nbl_format load;
    float logits[TOKENS * TINY_VOCAB];
    double loss;
    nbl_status status;
} worker;

static nbl_status no_gradient(void *user, const char *name, const nbl_tensor *gradient)
{
    (void)user, (void)name, (void)gradient;
    return NBL_OK;
}

/* Asserts nothing: it runs in a thread of its own. */
static void *compute(void *argument)
{
    worker *w = argument;
    nbl_context *ctx;
    nbl_model *model = NULL;
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .dtype = w->dtype, .load = w->load,
                                 .adapter = w->tiny->adapter};
    int32_t own[TOKENS];
    for (int i = 0; i < TOKENS; i++) own[i] = (i * 7 + 3) % TINY_VOCAB;
    nbl_ids ids = {.ids = own, .count = TOKENS};
    float *logits = w->logits;
    int64_t trained;
    w->status = nbl_context_create(&(nbl_context_options){NBL_OPTIONS(nbl_context_options), .threads = 2},
                                   &ctx);
    if (w->status == NBL_OK) w->status = nbl_model_open(ctx, w->tiny->model, &options, &model);
    for (int i = 0; i < 4 && w->status == NBL_OK; i++) {
        w->status = nbl_model_logits(model, &ids, 1, &logits);
        if (w->status == NBL_OK)
            w->status = nbl_model_gradients(model, &ids, &ids, 1, 0, 0, no_gradient, NULL, &w->loss,
                                            &trained);
    }
    nbl_model_close(model);
    nbl_context_destroy(ctx);
    return NULL;
}

static void plans_of_two_dtypes_at_once_give_the_bits_they_give_alone(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    tiny_model tiny;
    tiny_write(ctx, 4, true, &tiny);
    static worker alone[2], together[2];
    static const nbl_compute_dtype dtypes[] = {NBL_COMPUTE_F32, NBL_COMPUTE_BF16};
    static const nbl_format loads[] = {NBL_FORMAT_DENSE, NBL_FORMAT_NF4};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        alone[i] = together[i] = (worker){.tiny = &tiny, .dtype = dtypes[i], .load = loads[i]};
        compute(&alone[i]);
        assert_int_equal(alone[i].status, NBL_OK);
    }
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, compute, &together[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(together[i].status, NBL_OK);
        assert_memory_equal(together[i].logits, alone[i].logits, sizeof alone[i].logits);
        assert_true(together[i].loss == alone[i].loss && alone[i].loss > 0);
    }
    assert_true(alone[0].loss != alone[1].loss);
    remove_tree(tiny.folder);
    nbl_context_destroy(ctx);
}

static double loss_of(nbl__session *s)
{
    assert_int_equal(nbl__plan_run(&s->plan), NBL_OK);
    return (double)*(float *)nbl__plan_data(&s->plan, s->build.loss);
}

/* The slope of the loss along a gradient is the gradient's norm. */
static void whole_weights_of_hybrid_decoders_get_the_gradients_of_the_loss(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int i = 0; i < TINY_ARCHITECTURES; i++) {
        tiny_model tiny;
        nbl__session s;
        nbl_ids ids = sequence(TOKENS);
        int found = 0;
        if (!tiny_architectures[i].hybrid) continue;
        tiny_write(ctx, i, false, &tiny);
        nbl_model *model = open_tiny(ctx, &tiny, NBL_COMPUTE_F32, NBL_FORMAT_DENSE, false);
        model->train_all = true;
        assert_ok(ctx, nbl__session_open(model, &training, &s));
        *(float *)nbl__plan_data(&s.plan, s.build.dloss) = 1;
        assert_ok(ctx, nbl__session_load(&s, &ids, 1, &ids));
        loss_of(&s);
        size_t bytes = s.plan.bytes[NBL_MEMORY_GRADIENTS];
        float *kept = malloc(bytes);
        memcpy(kept, s.plan.memory[NBL_MEMORY_GRADIENTS], bytes); /* every run adds to them */
        for (nbl__value v = 1; v <= s.graph.value_count; v++) {
            const nbl__value_info *info = nbl__info(&s.graph, v);
            found += info->trained;
            /* along a tied embedding the loss is far from a line */
            if (!info->trained || info->role == NBL_WEIGHT_EMBEDDING) continue;
            float *p = nbl__plan_data(&s.plan, v), *now = nbl__plan_data(&s.plan, info->gradient);
            const float *g = kept + (now - (float *)(void *)s.plan.memory[NBL_MEMORY_GRADIENTS]);
            int64_t n = nbl__tensor_elements(&info->tensor);
            double norm = 0, at[2];
            for (int64_t k = 0; k < n; k++) norm += (double)g[k] * (double)g[k];
            norm = sqrt(norm);
            assert_true(norm > 0);
            for (int side = 0; side < 2; side++) {
                float step = (side ? -4e-4f : 4e-4f) / (float)norm;
                for (int64_t k = 0; k < n; k++) p[k] += step * g[k];
                at[side] = loss_of(&s);
                for (int64_t k = 0; k < n; k++) p[k] -= step * g[k];
            }
            double slope = (at[0] - at[1]) / 8e-4;
            if (fabs(slope - norm) > 0.02 * norm + 5e-3)
                fail_msg("%s: slope %g, gradient %g", info->name, slope, norm);
        }
        assert_int_equal(found, model->weight_count);
        free(kept);
        nbl__session_close(&s);
        nbl_model_close(model);
        remove_tree(tiny.folder);
    }
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_training_step_allocates_nothing),
        cmocka_unit_test(a_generation_step_allocates_nothing),
        cmocka_unit_test(the_coldest_temperature_takes_the_likeliest_token),
        cmocka_unit_test(norms_of_dora_follow_the_adapter_when_they_are_prepared),
        cmocka_unit_test(recomputation_changes_no_bit_of_any_architecture),
        cmocka_unit_test(a_feed_forward_block_of_three_operators_computes_the_same),
        cmocka_unit_test(whole_weights_of_hybrid_decoders_get_the_gradients_of_the_loss),
        cmocka_unit_test(every_failed_allocation_of_a_session_is_an_error_without_a_leak),
        cmocka_unit_test(plans_of_two_dtypes_at_once_give_the_bits_they_give_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
