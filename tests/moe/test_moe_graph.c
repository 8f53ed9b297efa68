/* test_moe_graph.c - a small mixture of experts as a graph: gradients of experts' adapters, of the router and of what lies
 * below it against differences; the same bits however memory is planned and for any number of threads. */
#include "support.h"

#include <math.h>

#include "base/philox.h"
#include "graph/build.h"
#include "graph/build_moe.h"
#include "graph/plan.h"

enum {
    VOCAB = 40,
    HIDDEN = 24,
    INNER = 16,
    EXPERTS = 5,
    TOP = 2,
    RANK = 2,
    LAYERS = 2,
    TOKENS = 30,
    MAX = 32
};

typedef struct model {
    nbl__graph g;
    nbl__plan plan;
    nbl__value ids, labels, loss, seed;
    nbl__value trained[MAX], frozen[MAX];
    int trained_count, frozen_count;
    nbl__router_kind kind;
    bool keep, scales_input, balanced; /* balanced: with the auxiliary loss */
    nbl__router_sums sums;
} model;

static nbl__value parameter(model *m, const char *name, bool trained, int rank, int64_t a, int64_t b,
                            int64_t c)
{
    int64_t shape[] = {a, b, c};
    nbl__value v = nbl__graph_value(&m->g, NBL_KIND_PARAMETER, name, NBL_DTYPE_F32, rank, shape);
    nbl__info(&m->g, v)->trained = trained;
    if (trained) m->trained[m->trained_count++] = v;
    else m->frozen[m->frozen_count++] = v;
    return v;
}

static nbl__expert_values experts_of(model *m, const char *name, int64_t out, int64_t in)
{
    return (nbl__expert_values){.w = parameter(m, name, false, 3, EXPERTS, out, in),
                                .bias = parameter(m, name, false, 2, EXPERTS, out, 0),
                                .lora_a = parameter(m, name, true, 2, EXPERTS * RANK, in, 0),
                                .lora_b = parameter(m, name, true, 2, out, EXPERTS * RANK, 0),
                                .scale = 0.5f};
}

static nbl__value layer(model *m, nbl__value x)
{
    nbl__graph *g = &m->g;
    nbl__linear_values router = {.w = parameter(m, "router", true, 2, EXPERTS, HIDDEN, 0)};
    nbl__linear_options how = {.dtype = NBL_DTYPE_F32};
    nbl__value logits = nbl__build_linear(g, "mlp.gate", x, &router, &how);
    nbl__routing to = nbl__build_router(
        g, "mlp.gate", logits, &(nbl__router_options){.dtype = NBL_DTYPE_F32, .kind = m->kind, .top_k = TOP});
    if (m->balanced) nbl__build_router_load(g, "mlp.gate", logits, &to, NBL_DTYPE_F32, &m->sums);
    nbl__expert_values gate_up = experts_of(m, "gate_up", 2 * INNER, HIDDEN);
    nbl__expert_values down = experts_of(m, "down", HIDDEN, INNER);
    nbl__value y = nbl__build_expert_mlp(g, "mlp.experts", x, &to, &gate_up, &down,
                                         &(nbl__expert_options){.dtype = NBL_DTYPE_F32,
                                                                .limit = 2,
                                                                .alpha = 1.702f,
                                                                .interleaved = true,
                                                                .scales_input = m->scales_input,
                                                                .keep = m->keep});
    nbl__value sum = nbl__build_add(g, "add", x, y, NBL_DTYPE_F32);
    nbl__graph_pin(g, sum);
    return sum;
}

static void fill(model *m, const nbl__value *values, int count, uint32_t stream)
{
    for (int i = 0; i < count; i++) {
        float *p = nbl__plan_data(&m->plan, values[i]);
        int64_t n = nbl__tensor_elements(&nbl__info(&m->g, values[i])->tensor);
        for (int64_t k = 0; k < n; k++) {
            uint32_t words[4];
            nbl__philox((uint32_t[4]){(uint32_t)k, stream + (uint32_t)i, 0, 0}, (uint32_t[2]){3, 5}, words);
            p[k] = 0.5f * (nbl__uniform(words[0]) + nbl__uniform(words[1]) - 1);
        }
    }
}

static void build(nbl_context *ctx, model *m, const nbl__plan_options *options)
{
    nbl__graph *g = &m->g;
    int64_t tokens = TOKENS, one = 1;
    m->trained_count = m->frozen_count = 0;
    m->sums = (nbl__router_sums){0};
    nbl__graph_open(ctx, g);
    m->ids = nbl__graph_value(g, NBL_KIND_INPUT, "ids", NBL_DTYPE_I32, 1, &tokens);
    m->labels = nbl__graph_value(g, NBL_KIND_INPUT, "labels", NBL_DTYPE_I32, 1, &tokens);
    m->seed = nbl__graph_value(g, NBL_KIND_INPUT, "dloss", NBL_DTYPE_F32, 1, &one);
    nbl__value x = nbl__build_embedding(g, "embed", m->ids, parameter(m, "embed", true, 2, VOCAB, HIDDEN, 0),
                                        4, -1, NBL_DTYPE_F32);
    for (int i = 0; i < LAYERS; i++) {
        nbl__graph_set_layer(g, i);
        x = layer(m, x);
    }
    nbl__graph_set_layer(g, -1);
    m->loss = nbl__build_cross_entropy(g, "loss", x, parameter(m, "head", false, 2, VOCAB, HIDDEN, 0),
                                       m->labels, 0, 0, false, NBL_DTYPE_F32);
    if (m->balanced) m->loss = nbl__build_router_loss(g, "aux", &m->sums, m->loss, 0.3f, TOP);
    assert_ok(ctx, nbl__graph_status(g));
    nbl__info(g, m->loss)->kind = NBL_KIND_RESULT;
    assert_ok(ctx, nbl__graph_differentiate(g, m->loss, m->seed));
    assert_ok(ctx, nbl__plan_make(g, options, &m->plan));
    assert_ok(ctx, nbl__plan_bind(&m->plan, NULL));
    int32_t *ids = nbl__plan_data(&m->plan, m->ids), *labels = nbl__plan_data(&m->plan, m->labels);
    for (int i = 0; i < TOKENS; i++) ids[i] = (i * 7 + 3) % VOCAB, labels[i] = (i * 11) % VOCAB;
    *(float *)nbl__plan_data(&m->plan, m->seed) = 1;
    fill(m, m->trained, m->trained_count, 100);
    fill(m, m->frozen, m->frozen_count, 200);
}

static void drop(model *m)
{
    nbl__plan_free(&m->plan);
    nbl__graph_close(&m->g);
}

static double run(nbl_context *ctx, model *m)
{
    memset(m->plan.memory[NBL_MEMORY_GRADIENTS], 0, m->plan.bytes[NBL_MEMORY_GRADIENTS]);
    memset(m->plan.memory[NBL_MEMORY_RUN], 0xff, m->plan.bytes[NBL_MEMORY_RUN]);
    assert_ok(ctx, nbl__plan_run(&m->plan));
    return (double)*(float *)nbl__plan_data(&m->plan, m->loss);
}

/* Along its own gradient the loss must change as fast as the gradient is long. */
static void check_slope(nbl_context *ctx, model *m, nbl__value value)
{
    float kept[VOCAB * HIDDEN], direction[VOCAB * HIDDEN];
    nbl__value gradient = nbl__info(&m->g, value)->gradient;
    int64_t n = nbl__tensor_elements(&nbl__info(&m->g, value)->tensor);
    float *p = nbl__plan_data(&m->plan, value), *dp = nbl__plan_data(&m->plan, gradient);
    double length = 0, step = 1e-3;
    assert_true(gradient > 0 && n <= VOCAB * HIDDEN);
    for (int64_t k = 0; k < n; k++) {
        kept[k] = p[k];
        direction[k] = dp[k];
        length += (double)dp[k] * (double)dp[k];
    }
    length = sqrt(length);
    assert_true(length > 1e-6);
    for (int64_t k = 0; k < n; k++) p[k] = kept[k] + (float)(step * (double)direction[k] / length);
    double above = run(ctx, m);
    for (int64_t k = 0; k < n; k++) p[k] = kept[k] - (float)(step * (double)direction[k] / length);
    double slope = (above - run(ctx, m)) / (2 * step);
    memcpy(p, kept, (size_t)n * sizeof *p);
    run(ctx, m);
    if (!(fabs(slope - length) < 2e-2 * length + 5e-4))
        fail_msg("%s: slope %g, gradient %g", nbl__info(&m->g, value)->name, slope, length);
}

static void gradients_are_those_of_differences(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int kind = 0; kind <= (int)NBL_ROUTER_TOPK_SIGMOID; kind++) {
        model m = {.kind = (nbl__router_kind)kind,
                   .scales_input = kind == NBL_ROUTER_TOPK_SIGMOID,
                   .balanced = kind % 2 == 1};
        build(ctx, &m, &(nbl__plan_options){0});
        run(ctx, &m);
        for (int i = 0; i < m.trained_count; i++) check_slope(ctx, &m, m.trained[i]);
        drop(&m);
    }
    nbl_context_destroy(ctx);
}

static void memory_and_threads_change_no_bit(void **state)
{
    (void)state;
    nbl_context *ctx = new_context(), *two = context_of(NULL, 2);
    model plain = {.kind = NBL_ROUTER_SOFTMAX_TOPK, .balanced = true};
    build(ctx, &plain, &(nbl__plan_options){0});
    run(ctx, &plain);
    for (int mode = NBL_RECOMPUTE_NONE; mode <= NBL_RECOMPUTE_ALL; mode++)
        for (int keep = 0; keep < 2; keep++) {
            model other = {.kind = plain.kind, .keep = keep, .balanced = true};
            build(two, &other, &(nbl__plan_options){.min = (nbl__recompute)mode});
            run(two, &other);
            assert_int_equal(other.plan.bytes[NBL_MEMORY_GRADIENTS], plain.plan.bytes[NBL_MEMORY_GRADIENTS]);
            assert_memory_equal(other.plan.memory[NBL_MEMORY_GRADIENTS],
                                plain.plan.memory[NBL_MEMORY_GRADIENTS],
                                plain.plan.bytes[NBL_MEMORY_GRADIENTS]);
            drop(&other);
        }
    drop(&plain);
    nbl_context_destroy(ctx);
    nbl_context_destroy(two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_those_of_differences),
        cmocka_unit_test(memory_and_threads_change_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
