/* test_graph.c - a small decoder as a graph, with adapters or with all its weights trained: gradients against
 * differences, the same bits however memory is planned and for any number of threads. */
#include "model/graph_by_name.h"

#include <math.h>

#include "base/philox.h"
#include "graph/plan.h"
#include "ops/attention/attention.h"
#include "ops/attention/cache.h"
#include "ops/loss/cross_entropy.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"
#include "ops/linear/linear_group.h"
#include "ops/linear/mlp.h"
#include "ops/norm/rmsnorm.h"

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
    TRAINED = 64,
    LARGEST = VOCAB * HIDDEN
};

/* What is trained, and in which dtype the model computes. */
typedef struct kind {
    bool whole; /* every weight, norm and bias; else adapters */
    bool tied;  /* the head is the embedding */
    nbl_dtype dtype;
    bool pinned; /* attention's result is, too */
} kind;
static const kind adapters = {false, false, NBL_DTYPE_F32, false};
static const kind untied = {true, false, NBL_DTYPE_F32, false}, tied = {true, true, NBL_DTYPE_F32, false};

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
    kind kind;
    struct filled {
        nbl__value value;
        float centre, spread; /* of its random values */
    } trained[TRAINED], frozen[TRAINED];
    int trained_count, frozen_count;
    float *weights[64];
    int weight_count;
} model;

static nbl__value parameter(model *m, const char *name, int64_t rows, int64_t columns, bool trained,
                            float centre, float spread)
{
    int64_t shape[] = {rows, columns};
    nbl__value v = nbl__graph_value(&m->g, NBL_KIND_PARAMETER, name, NBL_DTYPE_F32, columns ? 2 : 1, shape);
    nbl__info(&m->g, v)->trained = trained;
    struct filled *to = trained ? &m->trained[m->trained_count++] : &m->frozen[m->frozen_count++];
    *to = (struct filled){v, centre, spread};
    return v;
}

static nbl__value dense_weight(model *m, const char *name, int64_t rows, int64_t columns)
{
    if (m->kind.whole) return parameter(m, name, rows, columns, true, 0, 1.5f / sqrtf((float)columns));
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

static nbl__value norm(model *m, const char *name, nbl__value x, nbl__value *residual)
{
    nbl__rmsnorm *a = graph_begin(&m->g, "rmsnorm", name);
    a->dtype = m->kind.dtype;
    a->eps = 1e-5f;
    graph_bind(&m->g, "x", x);
    graph_bind(&m->g, "w", parameter(m, name, HIDDEN, 0, m->kind.whole, 1, 0.2f));
    graph_bind(&m->g, "residual", *residual);
    nbl__value y = nbl__graph_end(&m->g), sum = graph_output(&m->g, "residual_out");
    *residual = sum ? sum : x;
    nbl__graph_pin(&m->g, *residual);
    return y;
}

static void bind_layer(model *m, const char *w, const char *a, const char *b, int64_t out, int64_t in)
{
    graph_bind(&m->g, w, dense_weight(m, w, out, in));
    if (m->kind.whole) return;
    graph_bind(&m->g, a, parameter(m, a, RANK, in, true, 0, 0.3f));
    graph_bind(&m->g, b, parameter(m, b, out, RANK, true, 0, 0.3f));
}

static void bind_bias(model *m, const char *name, int64_t out)
{
    if (m->kind.whole) graph_bind(&m->g, name, parameter(m, name, out, 0, true, 0, 0.3f));
}

static nbl__value layer(model *m, nbl__value x, nbl__value *residual)
{
    nbl__graph *g = &m->g;
    nbl__value h = norm(m, "input_norm", x, residual);
    nbl__linear_group *group = graph_begin(g, "linear_group", "qkv");
    group->members[0].dtype = m->kind.dtype;
    graph_bind(g, "x", h);
    bind_layer(m, "w0", "lora_a0", "lora_b0", HEADS * DIM, HIDDEN);
    bind_layer(m, "w1", "lora_a1", "lora_b1", KV * DIM, HIDDEN);
    bind_layer(m, "w2", "lora_a2", "lora_b2", KV * DIM, HIDDEN);
    bind_bias(m, "b0", HEADS * DIM);
    bind_bias(m, "b2", KV * DIM);
    nbl__value q = nbl__graph_end(g), k = graph_output(g, "y1"), v = graph_output(g, "y2");
    q = nbl__graph_view(g, q, HEADS, DIM), k = nbl__graph_view(g, k, KV, DIM),
    v = nbl__graph_view(g, v, KV, DIM);
    nbl__attention *attention = graph_begin(g, "attention", "attention");
    attention->dtype = m->kind.dtype;
    attention->scale = 0.35f;
    graph_bind(g, "q", q);
    graph_bind(g, "k", k);
    graph_bind(g, "v", v);
    graph_bind(g, "cu_seqlens", m->cu_seqlens);
    nbl__value result = nbl__graph_end(g), lse = graph_output(g, "lse");
    if (m->kind.pinned) nbl__graph_pin(g, result), nbl__graph_pin(g, lse);
    nbl__value out = nbl__graph_view(g, result, HEADS * DIM, 0);
    nbl__linear *o = graph_begin(g, "linear", "o");
    o->dtype = m->kind.dtype;
    graph_bind(g, "x", out);
    bind_layer(m, "w", "lora_a", "lora_b", HIDDEN, HEADS * DIM);
    bind_bias(m, "b", HIDDEN);
    x = norm(m, "post_norm", nbl__graph_end(g), residual);
    nbl__mlp *mlp = graph_begin(g, "mlp", "mlp");
    mlp->gate.dtype = m->kind.dtype;
    graph_bind(g, "x", x);
    bind_layer(m, "gate", "gate.lora_a", "gate.lora_b", INNER, HIDDEN);
    bind_layer(m, "up", "up.lora_a", "up.lora_b", INNER, HIDDEN);
    bind_layer(m, "down", "down.lora_a", "down.lora_b", HIDDEN, INNER);
    bind_bias(m, "up.b", INNER);
    bind_bias(m, "down.b", HIDDEN);
    return nbl__graph_end(g);
}

static void fill(model *m, const struct filled *it, int count, uint32_t stream)
{
    for (int i = 0; i < count; i++) {
        float *p = nbl__plan_data(&m->plan, it[i].value);
        int64_t n = nbl__tensor_elements(&nbl__info(&m->g, it[i].value)->tensor);
        for (int64_t k = 0; k < n; k++)
            p[k] = it[i].centre + it[i].spread * random_value(stream + (uint32_t)i, (uint32_t)k);
    }
}

static void build(nbl_context *ctx, model *m, const kind *how, const nbl__plan_options *options)
{
    memset(m, 0, sizeof *m);
    m->kind = *how;
    nbl__graph *g = &m->g;
    nbl__graph_open(ctx, g);
    int64_t tokens = TOKENS, two = 3, one = 1;
    m->ids = nbl__graph_value(g, NBL_KIND_INPUT, "ids", NBL_DTYPE_I32, 1, &tokens);
    m->labels = nbl__graph_value(g, NBL_KIND_INPUT, "labels", NBL_DTYPE_I32, 1, &tokens);
    m->cu_seqlens = nbl__graph_value(g, NBL_KIND_INPUT, "cu_seqlens", NBL_DTYPE_I32, 1, &two);
    m->seed = nbl__graph_value(g, NBL_KIND_INPUT, "dloss", NBL_DTYPE_F32, 1, &one);
    nbl__embedding *e = graph_begin(g, "embedding", "embed");
    e->dtype = m->kind.dtype;
    graph_bind(g, "ids", m->ids);
    nbl__value embedding = dense_weight(m, "embed", VOCAB, HIDDEN);
    graph_bind(g, "w", embedding);
    nbl__value x = nbl__graph_end(g), residual = 0;
    for (int i = 0; i < LAYERS; i++) {
        char scope[16];
        snprintf(scope, sizeof scope, "layers.%d.", i);
        nbl__graph_set_scope(g, scope);
        nbl__graph_set_layer(g, i);
        x = layer(m, x, &residual);
    }
    nbl__graph_set_scope(g, NULL);
    nbl__graph_set_layer(g, -1);
    x = norm(m, "norm", x, &residual);
    nbl__cross_entropy *c = graph_begin(g, "cross_entropy", "loss");
    c->dtype = m->kind.dtype;
    graph_bind(g, "x", x);
    graph_bind(g, "w", how->tied ? embedding : dense_weight(m, "head", VOCAB, HIDDEN));
    graph_bind(g, "labels", m->labels);
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
    fill(m, m->trained, m->trained_count, 100);
    fill(m, m->frozen, m->frozen_count, 200);
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

static int64_t trained_size(model *m, int i)
{
    return nbl__tensor_elements(&nbl__info(&m->g, m->trained[i].value)->tensor);
}

static float *gradient_of(model *m, int i)
{
    nbl__value gradient = nbl__info(&m->g, m->trained[i].value)->gradient;
    assert_true(gradient > 0);
    return nbl__plan_data(&m->plan, gradient);
}

/* Along its own gradient the loss must change as fast as the gradient is long. */
static void check_slope(nbl_context *ctx, model *m, int i)
{
    float kept[LARGEST], direction[LARGEST];
    int64_t n = trained_size(m, i);
    float *p = nbl__plan_data(&m->plan, m->trained[i].value), *dp = gradient_of(m, i);
    double length = 0, step = 3e-3;
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
    if (!(fabs(slope - length) < 2e-2 * length + 2e-4))
        fail_msg("%s: slope %g, gradient %g", nbl__info(&m->g, m->trained[i].value)->name, slope, length);
}

static void check_slopes(const kind *how, int trained_count)
{
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
    model m;
    build(ctx, &m, how, &(nbl__plan_options){0});
    run(ctx, &m);
    assert_int_equal(m.trained_count, trained_count);
    for (int i = 0; i < m.trained_count; i++) check_slope(ctx, &m, i);
    drop(&m);
    nbl_context_destroy(ctx);
}

static void gradients_of_a_whole_model_are_those_of_differences(void **state)
{
    (void)state;
    check_slopes(&adapters, LAYERS * 14);
}

static void gradients_of_whole_weights_are_those_of_differences(void **state)
{
    (void)state;
    check_slopes(&untied, LAYERS * 14 + 3);
}

static void a_head_that_is_the_embedding_gets_the_gradients_of_both(void **state)
{
    (void)state;
    check_slopes(&tied, LAYERS * 14 + 2);
}

/* Runs add to what is there until it is cleared. */
static void gradients_of_whole_weights_add_up_over_runs(void **state)
{
    (void)state;
    nbl_context *ctx;
    float once[LARGEST];
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
    model m;
    build(ctx, &m, &tied, &(nbl__plan_options){0});
    for (int i = 0; i < m.trained_count; i++) {
        int64_t n = trained_size(&m, i);
        run(ctx, &m);
        memcpy(once, gradient_of(&m, i), (size_t)n * sizeof *once);
        assert_ok(ctx, nbl__plan_run(&m.plan));
        for (int64_t k = 0; k < n; k++)
            assert_true(fabsf(gradient_of(&m, i)[k] - 2 * once[k]) <= 1e-5f * fabsf(once[k]) + 1e-6f);
    }
    drop(&m);
    nbl_context_destroy(ctx);
}

static void threads_and_repetition_change_no_bit_of_whole_weights_gradients(void **state)
{
    (void)state;
    static const nbl_dtype dtypes[] = {NBL_DTYPE_F32, NBL_DTYPE_BF16};
    for (int d = 0; d < 2; d++) {
        nbl_context *ctx[2];
        model m[2];
        kind how = tied;
        how.dtype = dtypes[d];
        for (int i = 0; i < 2; i++) {
            assert_int_equal(
                nbl_context_create(&(nbl_context_options){NBL_OPTIONS(nbl_context_options), .threads = i + 1},
                                   &ctx[i]),
                NBL_OK);
            build(ctx[i], &m[i], &how, &(nbl__plan_options){0});
            for (int repeat = 0; repeat <= i; repeat++) run(ctx[i], &m[i]);
        }
        assert_memory_equal(m[0].plan.memory[NBL_MEMORY_GRADIENTS], m[1].plan.memory[NBL_MEMORY_GRADIENTS],
                            m[0].plan.bytes[NBL_MEMORY_GRADIENTS]);
        for (int i = 0; i < 2; i++) {
            drop(&m[i]);
            nbl_context_destroy(ctx[i]);
        }
    }
}

/* Rounding to 8 bits of mantissa about ten times on the way: a few hundredths of a gradient's norm. */
static void whole_weights_in_bf16_have_the_gradients_of_f32(void **state)
{
    (void)state;
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
    model exact, rounded;
    kind how = tied;
    how.dtype = NBL_DTYPE_BF16;
    build(ctx, &exact, &tied, &(nbl__plan_options){0});
    build(ctx, &rounded, &how, &(nbl__plan_options){0});
    run(ctx, &exact);
    run(ctx, &rounded);
    for (int i = 0; i < exact.trained_count; i++) {
        const float *a = gradient_of(&exact, i), *b = gradient_of(&rounded, i);
        double off = 0, norm = 0;
        for (int64_t k = 0; k < trained_size(&exact, i); k++) {
            off += pow((double)a[k] - (double)b[k], 2);
            norm += pow((double)a[k], 2);
        }
        if (!(sqrt(off) <= 0.05 * sqrt(norm)))
            fail_msg("%s is off by %g of its norm", nbl__info(&exact.g, exact.trained[i].value)->name,
                     sqrt(off / norm));
    }
    drop(&exact);
    drop(&rounded);
    nbl_context_destroy(ctx);
}

static void check_recomputation(const kind *how)
{
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
    model plain, other;
    build(ctx, &plain, how, &(nbl__plan_options){0});
    run(ctx, &plain);
    size_t saved = plain.plan.saved_bytes, total = nbl__plan_total(&plain.plan);
    for (int mode = NBL_RECOMPUTE_NORMS; mode <= NBL_RECOMPUTE_ALL; mode++) {
        build(ctx, &other, how, &(nbl__plan_options){.min = (nbl__recompute)mode});
        assert_int_equal(other.plan.recompute, mode);
        bool more = mode == NBL_RECOMPUTE_NORMS ||
                    mode == NBL_RECOMPUTE_LAYERS; /* others: where there is it */
        assert_true(more ? other.plan.saved_bytes < saved : other.plan.saved_bytes <= saved);
        saved = other.plan.saved_bytes;
        run(ctx, &other);
        assert_memory_equal(other.plan.memory[NBL_MEMORY_GRADIENTS], plain.plan.memory[NBL_MEMORY_GRADIENTS],
                            plain.plan.bytes[NBL_MEMORY_GRADIENTS]);
        size_t reached = nbl__plan_total(&other.plan);
        drop(&other);
        build(ctx, &other, how, &(nbl__plan_options){.budget = reached});
        assert_true(nbl__plan_total(&other.plan) <= reached);
        drop(&other);
    }
    build(ctx, &other, how, &(nbl__plan_options){.min = NBL_RECOMPUTE_LAYERS, .offload = true});
    assert_true(other.plan.host_bytes > 0 && nbl__plan_total(&other.plan) <= total);
    for (int i = 0; i < 2; i++) { /* again: what waited in the first run does not matter */
        memset(other.plan.host, 0xFF, other.plan.host_bytes);
        assert_int_equal(nbl__plan_clear_gradients(&other.plan), NBL_OK);
        run(ctx, &other);
        assert_memory_equal(other.plan.memory[NBL_MEMORY_GRADIENTS], plain.plan.memory[NBL_MEMORY_GRADIENTS],
                            plain.plan.bytes[NBL_MEMORY_GRADIENTS]);
    }
    drop(&other);
    nbl__graph_close(&(nbl__graph){.ctx = ctx, .arena = nbl__arena_make(ctx)});
    nbl__plan refused;
    assert_int_equal(nbl__plan_make(&plain.g, &(nbl__plan_options){.budget = 1000}, &refused),
                     NBL_ERROR_MEMORY);
    assert_non_null(strstr(nbl_error_message(ctx), "budget"));
    assert_true(total > 1000);
    drop(&plain);
    nbl_context_destroy(ctx);
}

static void recomputation_saves_memory_and_changes_no_bit(void **state)
{
    (void)state;
    kind how = adapters;
    check_recomputation(&adapters);
    how.pinned = true; /* attention's result waits on the host, and is seen through a view */
    check_recomputation(&how);
}

static void recomputation_changes_no_bit_of_whole_weights_gradients(void **state)
{
    (void)state;
    check_recomputation(&tied);
    check_recomputation(&untied);
}

/* ---- gradients that would stop ---- */

/* loss(between(linear(x))) with a trained adapter. `between` is a family's name; NULL: nothing. */
static nbl_status differentiate_through(nbl_context *ctx, model *m, const char *between, bool unused)
{
    memset(m, 0, sizeof *m);
    m->kind = adapters;
    nbl__graph *g = &m->g;
    nbl__graph_open(ctx, g);
    int64_t rows = TOKENS, one = 1, shape[] = {TOKENS, HIDDEN};
    nbl__value x = nbl__graph_value(g, NBL_KIND_INPUT, "x", NBL_DTYPE_F32, 2, shape);
    nbl__value taken = nbl__graph_value(g, NBL_KIND_INPUT, "rows", NBL_DTYPE_I32, 1, &rows);
    m->labels = nbl__graph_value(g, NBL_KIND_INPUT, "labels", NBL_DTYPE_I32, 1, &rows);
    m->seed = nbl__graph_value(g, NBL_KIND_INPUT, "dloss", NBL_DTYPE_F32, 1, &one);
    if (unused) parameter(m, "unused", HIDDEN, 0, true, 0, 1);
    nbl__linear *linear = graph_begin(g, "linear", "project");
    linear->dtype = NBL_DTYPE_F32;
    graph_bind(g, "x", x);
    bind_layer(m, "w", "lora_a", "lora_b", HIDDEN, HIDDEN);
    nbl__value y = nbl__graph_end(g);
    if (between) {
        void *a = graph_begin(g, between, "between");
        if (strcmp(between, "take_rows") == 0) graph_bind(g, "rows", taken);
        else *(nbl_dtype *)a = NBL_DTYPE_F32; /* the first field of add, cast and scale */
        if (strcmp(between, "scale") == 0) ((nbl__scale *)a)->factor = 3;
        graph_bind(g, strcmp(between, "add") == 0 ? "a" : "x", y);
        if (strcmp(between, "add") == 0) graph_bind(g, "b", y);
        y = nbl__graph_end(g);
    }
    nbl__cross_entropy *c = graph_begin(g, "cross_entropy", "loss");
    c->dtype = NBL_DTYPE_F32;
    graph_bind(g, "x", y);
    graph_bind(g, "w", dense_weight(m, "head", VOCAB, HIDDEN));
    graph_bind(g, "labels", m->labels);
    m->loss = nbl__graph_end(g);
    nbl__info(g, m->loss)->kind = NBL_KIND_RESULT;
    m->ids = x;
    return nbl__graph_differentiate(g, m->loss, m->seed);
}

static void drop_graph(model *m)
{
    nbl__graph_close(&m->g);
    for (int i = 0; i < m->weight_count; i++) free(m->weights[i]);
}

static void add_cast_and_scale_pass_gradients_on(void **state)
{
    (void)state;
    static const char *const between[] = {"add", "cast", "scale"};
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
    for (int k = 0; k < 3; k++) {
        model m;
        assert_ok(ctx, differentiate_through(ctx, &m, between[k], false));
        assert_ok(ctx, nbl__plan_make(&m.g, &(nbl__plan_options){0}, &m.plan));
        assert_ok(ctx, nbl__plan_bind(&m.plan, NULL));
        float *x = nbl__plan_data(&m.plan, m.ids);
        int32_t *labels = nbl__plan_data(&m.plan, m.labels);
        for (int i = 0; i < TOKENS * HIDDEN; i++) x[i] = random_value(300, (uint32_t)i);
        for (int i = 0; i < TOKENS; i++) labels[i] = (i * 11) % VOCAB;
        *(float *)nbl__plan_data(&m.plan, m.seed) = 1;
        fill(&m, m.trained, m.trained_count, 100);
        run(ctx, &m);
        assert_int_equal(m.trained_count, 2);
        for (int i = 0; i < m.trained_count; i++) check_slope(ctx, &m, i);
        drop(&m);
    }
    nbl_context_destroy(ctx);
}

static void check_refusal(const char *between, bool unused, nbl_status status, const char *first,
                          const char *second, const char *third)
{
    nbl_context *ctx;
    model m;
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
    assert_int_equal(differentiate_through(ctx, &m, between, unused), status);
    assert_non_null(strstr(nbl_error_message(ctx), first));
    assert_non_null(strstr(nbl_error_message(ctx), second));
    assert_non_null(strstr(nbl_error_message(ctx), third));
    drop_graph(&m);
    nbl_context_destroy(ctx);
}

static void a_gradient_that_meets_an_operator_without_backward_is_refused_by_node_and_parameter(void **state)
{
    (void)state;
    check_refusal("take_rows", false, NBL_ERROR_UNSUPPORTED, "between", "take_rows", "lora_");
}

static void a_trained_parameter_without_a_gradient_is_refused_by_name(void **state)
{
    (void)state;
    check_refusal(NULL, true, NBL_ERROR_ARGUMENT, "loss", "does not depend", "unused");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_a_whole_model_are_those_of_differences),
        cmocka_unit_test(gradients_of_whole_weights_are_those_of_differences),
        cmocka_unit_test(a_head_that_is_the_embedding_gets_the_gradients_of_both),
        cmocka_unit_test(gradients_of_whole_weights_add_up_over_runs),
        cmocka_unit_test(threads_and_repetition_change_no_bit_of_whole_weights_gradients),
        cmocka_unit_test(whole_weights_in_bf16_have_the_gradients_of_f32),
        cmocka_unit_test(add_cast_and_scale_pass_gradients_on),
        cmocka_unit_test(a_gradient_that_meets_an_operator_without_backward_is_refused_by_node_and_parameter),
        cmocka_unit_test(a_trained_parameter_without_a_gradient_is_refused_by_name),
        cmocka_unit_test(recomputation_saves_memory_and_changes_no_bit),
        cmocka_unit_test(recomputation_changes_no_bit_of_whole_weights_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
