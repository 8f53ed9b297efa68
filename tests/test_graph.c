/* test_graph.c - a small decoder as a graph: gradients against differences, the same bits however memory is
 * planned, other sizes at the same addresses, and no allocation while it runs. */
#include "support.h"

#include <math.h>

#include "base/philox.h"
#include "graph/plan.h"
#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/embedding.h"
#include "ops/linear_group.h"
#include "ops/mlp.h"
#include "ops/rmsnorm.h"

enum {
    VOCAB = 50,
    HIDDEN = 32,
    INNER = 48,
    HEADS = 4,
    KV = 2,
    DIM = 8,
    LAYERS = 3,
    RANK = 3,
    TOKENS = 24,
    TRAINED = 64
};

static float random_value(uint32_t stream, uint32_t index)
{
    uint32_t counter[4] = {index, stream, 0, 0}, key[2] = {7, 11}, words[4];
    nbl__philox(counter, key, words);
    return nbl__uniform(words[0]) + nbl__uniform(words[1]) - 1;
}

typedef struct model {
    nbl__graph g;
    nbl__plan plan;
    nbl__value ids, labels, cu_seqlens, loss, seed;
    nbl__value trained[TRAINED];
    int trained_count;
    nbl__value frozen[TRAINED];
    int frozen_count;
    float *weights[64];
    int weight_count;
} model;

static nbl__value dense_weight(model *m, const char *name, int64_t rows, int64_t columns)
{
    float *data = malloc((size_t)(rows * columns) * sizeof *data);
    for (int64_t i = 0; i < rows * columns; i++)
        data[i] = random_value((uint32_t)m->weight_count, (uint32_t)i) / sqrtf((float)columns) * 1.5f;
    m->weights[m->weight_count++] = data;
    nbl_weight w = {.format = NBL_FORMAT_DENSE,
                    .dtype = NBL_DTYPE_F32,
                    .rank = 2,
                    .shape = {rows, columns},
                    .data = data};
    return nbl__graph_weight(&m->g, name, &w);
}

static nbl__value parameter(model *m, const char *name, int64_t rows, int64_t columns, bool trained)
{
    int64_t shape[] = {rows, columns};
    nbl__value v = nbl__graph_value(&m->g, NBL_KIND_PARAMETER, name, NBL_DTYPE_F32, columns ? 2 : 1, shape);
    nbl__info(&m->g, v)->trained = trained;
    if (trained) m->trained[m->trained_count++] = v;
    else m->frozen[m->frozen_count++] = v;
    return v;
}

static nbl__value norm(model *m, const char *name, nbl__value x, nbl__value *residual)
{
    nbl__rmsnorm *a = nbl__graph_begin(&m->g, "rmsnorm", name);
    a->dtype = NBL_DTYPE_F32;
    a->eps = 1e-5f;
    nbl__graph_bind(&m->g, "x", x);
    nbl__graph_bind(&m->g, "w", parameter(m, name, HIDDEN, 0, false));
    nbl__graph_bind(&m->g, "residual", *residual);
    nbl__value y = nbl__graph_end(&m->g), sum = nbl__graph_output(&m->g, "residual_out");
    *residual = sum ? sum : x;
    nbl__graph_pin(&m->g, *residual);
    return y;
}

static void bind_layer(model *m, const char *w, const char *a, const char *b, int64_t out, int64_t in)
{
    nbl__graph_bind(&m->g, w, dense_weight(m, w, out, in));
    nbl__graph_bind(&m->g, a, parameter(m, a, RANK, in, true));
    nbl__graph_bind(&m->g, b, parameter(m, b, out, RANK, true));
}

static nbl__value layer(model *m, nbl__value x, nbl__value *residual)
{
    nbl__graph *g = &m->g;
    nbl__value h = norm(m, "input_norm", x, residual);
    nbl__linear_group *group = nbl__graph_begin(g, "linear_group", "qkv");
    group->members[0].dtype = NBL_DTYPE_F32;
    nbl__graph_bind(g, "x", h);
    bind_layer(m, "w0", "lora_a0", "lora_b0", HEADS * DIM, HIDDEN);
    bind_layer(m, "w1", "lora_a1", "lora_b1", KV * DIM, HIDDEN);
    bind_layer(m, "w2", "lora_a2", "lora_b2", KV * DIM, HIDDEN);
    nbl__value q = nbl__graph_end(g), k = nbl__graph_output(g, "y1"), v = nbl__graph_output(g, "y2");
    q = nbl__graph_view(g, q, HEADS, DIM), k = nbl__graph_view(g, k, KV, DIM),
    v = nbl__graph_view(g, v, KV, DIM);
    nbl__attention *attention = nbl__graph_begin(g, "attention", "attention");
    attention->dtype = NBL_DTYPE_F32;
    attention->scale = 0.35f;
    nbl__graph_bind(g, "q", q);
    nbl__graph_bind(g, "k", k);
    nbl__graph_bind(g, "v", v);
    nbl__graph_bind(g, "cu_seqlens", m->cu_seqlens);
    nbl__value out = nbl__graph_view(g, nbl__graph_end(g), HEADS * DIM, 0);
    nbl__linear *o = nbl__graph_begin(g, "linear", "o");
    o->dtype = NBL_DTYPE_F32;
    nbl__graph_bind(g, "x", out);
    bind_layer(m, "w", "lora_a", "lora_b", HIDDEN, HEADS * DIM);
    x = norm(m, "post_norm", nbl__graph_end(g), residual);
    nbl__mlp *mlp = nbl__graph_begin(g, "mlp", "mlp");
    mlp->gate.dtype = NBL_DTYPE_F32;
    nbl__graph_bind(g, "x", x);
    bind_layer(m, "gate", "gate.lora_a", "gate.lora_b", INNER, HIDDEN);
    bind_layer(m, "up", "up.lora_a", "up.lora_b", INNER, HIDDEN);
    bind_layer(m, "down", "down.lora_a", "down.lora_b", HIDDEN, INNER);
    return nbl__graph_end(g);
}

static void build(nbl_context *ctx, model *m, const nbl__plan_options *options)
{
    memset(m, 0, sizeof *m);
    nbl__graph *g = &m->g;
    nbl__graph_open(ctx, g);
    int64_t tokens = TOKENS, two = 3, one = 1;
    m->ids = nbl__graph_value(g, NBL_KIND_INPUT, "ids", NBL_DTYPE_I32, 1, &tokens);
    m->labels = nbl__graph_value(g, NBL_KIND_INPUT, "labels", NBL_DTYPE_I32, 1, &tokens);
    m->cu_seqlens = nbl__graph_value(g, NBL_KIND_INPUT, "cu_seqlens", NBL_DTYPE_I32, 1, &two);
    m->seed = nbl__graph_value(g, NBL_KIND_INPUT, "dloss", NBL_DTYPE_F32, 1, &one);
    nbl__embedding *e = nbl__graph_begin(g, "embedding", "embed");
    e->dtype = NBL_DTYPE_F32;
    nbl__graph_bind(g, "ids", m->ids);
    nbl__graph_bind(g, "w", dense_weight(m, "embed", VOCAB, HIDDEN));
    nbl__value x = nbl__graph_end(g), residual = 0;
    for (int i = 0; i < LAYERS; i++) {
        nbl__graph_enter(g, "layers.%d", i);
        nbl__graph_set_layer(g, i);
        x = layer(m, x, &residual);
    }
    nbl__graph_enter(g, "%s", "");
    nbl__graph_set_layer(g, -1);
    x = norm(m, "norm", x, &residual);
    nbl__cross_entropy *c = nbl__graph_begin(g, "cross_entropy", "loss");
    c->dtype = NBL_DTYPE_F32;
    nbl__graph_bind(g, "x", x);
    nbl__graph_bind(g, "w", dense_weight(m, "head", VOCAB, HIDDEN));
    nbl__graph_bind(g, "labels", m->labels);
    m->loss = nbl__graph_end(g);
    nbl__info(g, m->loss)->kind = NBL_KIND_RESULT;
    assert_ok(ctx, nbl__graph_differentiate(g, m->loss, m->seed));
    assert_ok(ctx, nbl__plan_make(g, options, &m->plan));
    assert_ok(ctx, nbl__plan_bind(&m->plan, NULL));
    int32_t *ids = nbl__plan_data(&m->plan, m->ids), *labels = nbl__plan_data(&m->plan, m->labels);
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (i * 7 + 3) % VOCAB, labels[i] = i % 5 == 4 ? -100 : (i * 11) % VOCAB;
    memcpy(nbl__plan_data(&m->plan, m->cu_seqlens), (int32_t[]){0, 10, TOKENS}, 12);
    *(float *)nbl__plan_data(&m->plan, m->seed) = 1;
    for (int i = 0; i < m->trained_count; i++) {
        float *p = nbl__plan_data(&m->plan, m->trained[i]);
        int64_t n = nbl__tensor_elements(&nbl__info(g, m->trained[i])->tensor);
        for (int64_t k = 0; k < n; k++) p[k] = random_value(100 + (uint32_t)i, (uint32_t)k) * 0.3f;
    }
    for (int i = 0; i < m->frozen_count; i++) {
        float *p = nbl__plan_data(&m->plan, m->frozen[i]);
        for (int k = 0; k < HIDDEN; k++) p[k] = 1 + 0.2f * random_value(200 + (uint32_t)i, (uint32_t)k);
    }
}

static void drop(model *m)
{
    nbl__plan_free(&m->plan);
    nbl__graph_close(&m->g);
    for (int i = 0; i < m->weight_count; i++) free(m->weights[i]);
}

static double run(nbl_context *ctx, model *m)
{
    memset(m->plan.memory[NBL_MEMORY_GRADIENTS], 0, m->plan.bytes[NBL_MEMORY_GRADIENTS]);
    memset(m->plan.memory[NBL_MEMORY_RUN], 0xff, m->plan.bytes[NBL_MEMORY_RUN]);
    assert_ok(ctx, nbl__plan_run(&m->plan));
    return (double)*(float *)nbl__plan_data(&m->plan, m->loss);
}

static void gradients_of_a_whole_model_are_those_of_differences(void **state)
{
    (void)state;
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
    model m;
    build(ctx, &m, &(nbl__plan_options){0});
    run(ctx, &m);
    assert_int_equal(m.trained_count, LAYERS * 14);
    for (int i = 0; i < m.trained_count; i++) {
        nbl__value gradient = nbl__info(&m.g, m.trained[i])->gradient;
        assert_true(gradient > 0);
        int64_t n = nbl__tensor_elements(&nbl__info(&m.g, m.trained[i])->tensor);
        float *p = nbl__plan_data(&m.plan, m.trained[i]), *dp = nbl__plan_data(&m.plan, gradient);
        float kept[512], direction[512];
        double slope = 0, length = 0;
        for (int64_t k = 0; k < n; k++) {
            kept[k] = p[k];
            direction[k] = dp[k];
            length += (double)dp[k] * (double)dp[k];
        }
        length = sqrt(length);
        assert_true(length > 1e-6);
        double step = 3e-3;
        for (int64_t k = 0; k < n; k++) p[k] = kept[k] + (float)(step * (double)direction[k] / length);
        double above = run(ctx, &m);
        for (int64_t k = 0; k < n; k++) p[k] = kept[k] - (float)(step * (double)direction[k] / length);
        slope = (above - run(ctx, &m)) / (2 * step);
        memcpy(p, kept, (size_t)n * sizeof *p);
        if (!(fabs(slope - length) < 2e-2 * length + 2e-4))
            fail_msg("%s: slope %g, gradient %g", nbl__info(&m.g, m.trained[i])->name, slope, length);
    }
    drop(&m);
    nbl_context_destroy(ctx);
}

static void recomputation_saves_memory_and_changes_no_bit(void **state)
{
    (void)state;
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
    model plain, other;
    build(ctx, &plain, &(nbl__plan_options){0});
    run(ctx, &plain);
    size_t saved = plain.plan.saved_bytes, total = nbl__plan_total(&plain.plan);
    for (int mode = NBL_RECOMPUTE_CHEAP; mode <= NBL_RECOMPUTE_LAYERS; mode++) {
        build(ctx, &other, &(nbl__plan_options){.least = (nbl__recompute)mode});
        assert_int_equal(other.plan.recompute, mode);
        assert_true(other.plan.saved_bytes < saved);
        saved = other.plan.saved_bytes;
        run(ctx, &other);
        assert_memory_equal(other.plan.memory[NBL_MEMORY_GRADIENTS], plain.plan.memory[NBL_MEMORY_GRADIENTS],
                            plain.plan.bytes[NBL_MEMORY_GRADIENTS]);
        size_t reached = nbl__plan_total(&other.plan);
        drop(&other);
        build(ctx, &other, &(nbl__plan_options){.budget = reached});
        assert_true(nbl__plan_total(&other.plan) <= reached);
        drop(&other);
    }
    nbl__graph_close(&(nbl__graph){.ctx = ctx, .arena = nbl__arena_make(ctx)});
    nbl__plan refused;
    assert_int_equal(nbl__plan_make(&plain.g, &(nbl__plan_options){.budget = 1000}, &refused),
                     NBL_ERROR_MEMORY);
    assert_non_null(strstr(nbl_error_message(ctx), "budget"));
    assert_true(total > 1000);
    drop(&plain);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_a_whole_model_are_those_of_differences),
        cmocka_unit_test(recomputation_saves_memory_and_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
