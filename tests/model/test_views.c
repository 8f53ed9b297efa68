/* test_views.c - views of columns: a decoder with fused weights gives the bits of one whose weights are the
 * rows of the fused ones, however memory is planned; what has no gradient through columns is refused. */
#include "model/graph_by_name.h"

#include <math.h>

#include "base/philox.h"
#include "graph/plan.h"
#include "ops/attention/attention.h"
#include "ops/elementwise/elementwise.h"
#include "ops/linear/linear.h"
#include "ops/norm/rmsnorm.h"
#include "ops/rope/rope.h"

enum {
    HIDDEN = 24,
    INNER = 40,
    HEADS = 3,
    KV = 1,
    DIM = 8,
    Q = HEADS * DIM,
    QKV = Q + 2 * KV * DIM,
    LAYERS = 2,
    TOKENS = 20,
    WEIGHTS = 32
};

/* A trained weight: rows of the random matrix `matrix`, from row `first` on. */
typedef struct weight {
    nbl__value value;
    uint32_t matrix;
    int64_t first, rows, columns;
} weight;

typedef struct model {
    nbl__graph g;
    nbl__plan plan;
    bool fused, pinned; /* pinned: the fused products are kept, so that they can be offloaded */
    nbl_dtype dtype;
    nbl__value x, positions, cu_seqlens, seed, result;
    weight weights[WEIGHTS];
    int count;
} model;

static float random_value(uint32_t stream, uint32_t index)
{
    uint32_t counter[4] = {index, stream, 0, 0}, key[2] = {3, 5}, words[4];
    nbl__philox(counter, key, words);
    return nbl__uniform(words[0]) + nbl__uniform(words[1]) - 1;
}

static nbl__value linear(model *m, nbl__value x, uint32_t matrix, int64_t first, int64_t rows,
                         int64_t columns)
{
    nbl__value w = nbl__graph_value(&m->g, NBL_KIND_PARAMETER, "w", NBL_DTYPE_F32, 2,
                                    (int64_t[]){rows, columns});
    nbl__info(&m->g, w)->trained = true;
    m->weights[m->count++] = (weight){w, matrix, first, rows, columns};
    nbl__linear *a = graph_begin(&m->g, "linear", "linear");
    a->dtype = m->dtype;
    graph_bind(&m->g, "x", x);
    graph_bind(&m->g, "w", w);
    return nbl__graph_end(&m->g);
}

/* `count` layers over x whose weights are consecutive rows of one matrix: one product and its columns, or
 * a product for each. */
static void projections(model *m, nbl__value x, uint32_t matrix, int64_t in, int count, const int64_t *rows,
                        nbl__value *to)
{
    int64_t all = 0, first = 0;
    for (int i = 0; i < count; i++) all += rows[i];
    nbl__value y = m->fused ? linear(m, x, matrix, 0, all, in) : 0;
    if (m->pinned) nbl__graph_pin(&m->g, y);
    for (int i = 0; i < count; first += rows[i++])
        to[i] = m->fused ? nbl__graph_columns(&m->g, y, first, rows[i])
                         : linear(m, x, matrix, first, rows[i], in);
}

static nbl__value rotate(model *m, nbl__value x)
{
    nbl__rope_apply *a = graph_begin(&m->g, "rope", "rope");
    a->dtype = m->dtype;
    graph_bind(&m->g, "x", x);
    graph_bind(&m->g, "positions", m->positions);
    return nbl__graph_end(&m->g);
}

/* Attention over projections of x; also its q, k and v. */
static nbl__value attention_of(model *m, nbl__value x, uint32_t matrix, nbl__value qkv[3])
{
    nbl__graph *g = &m->g;
    projections(m, x, matrix, HIDDEN, 3, (int64_t[]){Q, KV * DIM, KV * DIM}, qkv);
    for (int i = 0; i < 3; i++) qkv[i] = nbl__graph_view(g, qkv[i], i ? KV : HEADS, DIM);
    qkv[0] = rotate(m, qkv[0]);
    qkv[1] = rotate(m, qkv[1]);
    nbl__attention *attention = graph_begin(g, "attention", "attention");
    attention->dtype = m->dtype;
    graph_bind(g, "q", qkv[0]);
    graph_bind(g, "k", qkv[1]);
    graph_bind(g, "v", qkv[2]);
    graph_bind(g, "cu_seqlens", m->cu_seqlens);
    return nbl__graph_view(g, nbl__graph_end(g), Q, 0);
}

static nbl__value gated_of(model *m, nbl__value gate, nbl__value up)
{
    nbl__gated *a = graph_begin(&m->g, "gated", "gated");
    a->dtype = m->dtype;
    graph_bind(&m->g, "gate", gate);
    graph_bind(&m->g, "up", up);
    return nbl__graph_end(&m->g);
}

static nbl__value layer(model *m, nbl__value x, uint32_t matrix)
{
    nbl__value qkv[3], gate_up[2];
    nbl__graph_pin(&m->g, x);
    nbl__value out = attention_of(m, x, matrix, qkv);
    nbl__value y = linear(m, out, matrix + 1, 0, HIDDEN, Q);
    nbl__graph_pin(&m->g, y);
    projections(m, y, matrix + 2, HIDDEN, 2, (int64_t[]){INNER, INNER}, gate_up);
    return linear(m, gated_of(m, gate_up[0], gate_up[1]), matrix + 3, 0, HIDDEN, INNER);
}

static void open_graph(nbl_context *ctx, model *m, bool fused, nbl_dtype dtype, int64_t tokens)
{
    *m = (model){.fused = fused, .dtype = dtype};
    nbl__graph *g = &m->g;
    const int64_t two = 3, x[] = {tokens, HIDDEN};
    nbl__graph_open(ctx, g);
    m->x = nbl__graph_value(g, NBL_KIND_INPUT, "x", dtype, 2, x);
    m->positions = nbl__graph_value(g, NBL_KIND_INPUT, "positions", NBL_DTYPE_I32, 1, &tokens);
    m->cu_seqlens = nbl__graph_value(g, NBL_KIND_INPUT, "cu_seqlens", NBL_DTYPE_I32, 1, &two);
    m->seed = nbl__graph_value(g, NBL_KIND_INPUT, "dresult", dtype, 2, x);
}

static void fill(model *m, nbl__value value, uint32_t stream)
{
    const nbl_tensor *t = &nbl__info(&m->g, value)->tensor;
    uint8_t *to = nbl__plan_data(&m->plan, value);
    for (int64_t i = 0; i < nbl__tensor_elements(t); i++) {
        float one = random_value(stream, (uint32_t)i);
        nbl__from_f32(NBL_ISA_SCALAR, &one, t->dtype, to + (size_t)i * nbl__size_of(t->dtype), 1);
    }
}

static void fill_inputs(model *m, int64_t tokens)
{
    int32_t *positions = nbl__plan_data(&m->plan, m->positions);
    for (int i = 0; i < tokens; i++) positions[i] = i % 7;
    memcpy(nbl__plan_data(&m->plan, m->cu_seqlens), (int32_t[]){0, 7, (int32_t)tokens}, 12);
    fill(m, m->x, 900);
    fill(m, m->seed, 901);
}

/* Differentiates and plans a graph, and fills its weights and inputs. */
static void make(nbl_context *ctx, model *m, nbl__value result, const nbl__plan_options *options)
{
    m->result = result;
    assert_ok(ctx, nbl__graph_differentiate(&m->g, result, m->seed));
    assert_ok(ctx, nbl__plan_make(&m->g, options, &m->plan));
    assert_ok(ctx, nbl__plan_bind(&m->plan, NULL));
    for (int i = 0; i < m->count; i++) {
        const weight *w = &m->weights[i];
        float *to = nbl__plan_data(&m->plan, w->value);
        for (int64_t k = 0; k < w->rows * w->columns; k++)
            to[k] = random_value(w->matrix, (uint32_t)(w->first * w->columns + k)) / 2;
    }
    fill_inputs(m, TOKENS);
}

static void build(nbl_context *ctx, model *m, bool fused, bool pinned, nbl_dtype dtype,
                  const nbl__plan_options *options)
{
    open_graph(ctx, m, fused, dtype, TOKENS);
    m->pinned = pinned;
    nbl__value x = m->x;
    for (int i = 0; i < LAYERS; i++) {
        nbl__graph_set_layer(&m->g, i);
        x = layer(m, x, (uint32_t)(10 * i));
    }
    nbl__info(&m->g, x)->kind = NBL_KIND_RESULT;
    make(ctx, m, x, options);
}

static void drop(model *m)
{
    nbl__plan_free(&m->plan);
    nbl__graph_close(&m->g);
}

static void run(nbl_context *ctx, model *m)
{
    memset(m->plan.memory[NBL_MEMORY_GRADIENTS], 0, m->plan.bytes[NBL_MEMORY_GRADIENTS]);
    memset(m->plan.memory[NBL_MEMORY_RUN], 0xff, m->plan.bytes[NBL_MEMORY_RUN]);
    assert_ok(ctx, nbl__plan_run(&m->plan));
}

static size_t bytes_of(model *m, nbl__value value)
{
    const nbl_tensor *t = &nbl__info(&m->g, value)->tensor;
    return (size_t)nbl__tensor_elements(t) * nbl__size_of(t->dtype);
}

static const float *gradient_of(model *m, const weight *w)
{
    return nbl__plan_data(&m->plan, nbl__info(&m->g, w->value)->gradient);
}

/* Rows [first, first + rows) of the gradient of a matrix, in whichever weight they are. */
static const float *gradient_rows(model *m, uint32_t matrix, int64_t first)
{
    for (int i = 0; i < m->count; i++) {
        const weight *w = &m->weights[i];
        if (w->matrix == matrix && first >= w->first && first < w->first + w->rows)
            return gradient_of(m, w) + (first - w->first) * w->columns;
    }
    return NULL;
}

static void assert_same_results(model *a, model *b)
{
    assert_memory_equal(nbl__plan_data(&a->plan, a->result), nbl__plan_data(&b->plan, b->result),
                        bytes_of(a, a->result));
}

/* The last layer's gradients have the same bits: dy of each product is the same. Its dx is one sum here and
 * three rounded ones there, so that the layer before it only agrees within rounding. */
static void fused_weights_give_the_bits_of_their_rows(void **state)
{
    (void)state;
    static const nbl_dtype dtypes[] = {NBL_DTYPE_F32, NBL_DTYPE_BF16, NBL_DTYPE_F16};
    for (int d = 0; d < 3; d++)
        for (int threads = 1; threads <= 2; threads++) {
            nbl_context *ctx = new_context_with(threads);
            model split, fused;
            build(ctx, &split, false, false, dtypes[d], &(nbl__plan_options){0});
            build(ctx, &fused, true, false, dtypes[d], &(nbl__plan_options){0});
            assert_int_equal(fused.count, LAYERS * 4);
            assert_int_equal(split.count, LAYERS * 7);
            run(ctx, &split);
            run(ctx, &fused);
            assert_same_results(&split, &fused);
            for (int i = 0; i < split.count; i++) {
                const weight *w = &split.weights[i];
                const float *want = gradient_of(&split, w), *got = gradient_rows(&fused, w->matrix, w->first);
                size_t n = (size_t)(w->rows * w->columns);
                double off = 0, norm = 0;
                bool exact = w->matrix >= 10 * (LAYERS - 1) + 2; /* the last gate, up and down */
                if (exact) assert_memory_equal(got, want, n * sizeof *got);
                for (size_t k = 0; k < n; k++) {
                    off += pow((double)got[k] - (double)want[k], 2);
                    norm += pow((double)want[k], 2);
                }
                assert_true(norm > 0 && off <= norm * (dtypes[d] == NBL_DTYPE_F32 ? 1e-10 : 1e-3));
            }
            drop(&split);
            drop(&fused);
            nbl_context_destroy(ctx);
        }
}

/* q, k and v of one layer over an input that needs no gradient: all gradients have the bits of the rows. */
static void gradients_of_columns_are_those_of_the_rows(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    model m[2];
    for (int i = 0; i < 2; i++) {
        nbl__value qkv[3];
        open_graph(ctx, &m[i], i == 1, NBL_DTYPE_BF16, TOKENS);
        nbl__value out = attention_of(&m[i], m[i].x, 1, qkv);
        nbl__info(&m[i].g, out)->kind = NBL_KIND_RESULT;
        make(ctx, &m[i], out, &(nbl__plan_options){0});
        run(ctx, &m[i]);
    }
    assert_int_equal(m[0].count, 3);
    assert_int_equal(m[1].count, 1);
    assert_same_results(&m[0], &m[1]);
    for (int i = 0; i < 3; i++) {
        const weight *w = &m[0].weights[i];
        assert_memory_equal(gradient_of(&m[0], w), gradient_rows(&m[1], 1, w->first),
                            (size_t)(w->rows * w->columns) * sizeof(float));
    }
    drop(&m[0]);
    drop(&m[1]);
    nbl_context_destroy(ctx);
}

static void resize(nbl_context *ctx, model *m, int64_t tokens)
{
    nbl__value inputs[] = {m->x, m->positions, m->seed};
    for (int i = 0; i < 3; i++) nbl__info(&m->g, inputs[i])->tensor.shape[0] = tokens;
    assert_ok(ctx, nbl__plan_resize(&m->plan));
    fill_inputs(m, tokens);
}

/* Every recompute level, offload, and then fewer tokens than were planned: the bits of three products. */
static void plans_change_no_bit_of_fused_weights(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    int offloaded = 0;
    for (int level = NBL_RECOMPUTE_NONE; level <= NBL_RECOMPUTE_ALL; level++)
        for (int how = 0; how < 4; how++) {
            model plain, m, split;
            nbl__plan_options options = {.min = (nbl__recompute)level, .offload = how % 2};
            build(ctx, &split, false, false, NBL_DTYPE_F32, &(nbl__plan_options){0});
            build(ctx, &plain, true, false, NBL_DTYPE_F32, &(nbl__plan_options){0});
            build(ctx, &m, true, how / 2, NBL_DTYPE_F32, &options);
            offloaded += m.plan.host_bytes > 0;
            for (int fewer = 0; fewer < 2; fewer++) {
                model *all[] = {&plain, &m, &split};
                for (int i = 0; i < 3; i++) {
                    if (fewer) resize(ctx, all[i], TOKENS - 7);
                    run(ctx, all[i]);
                }
                assert_same_results(&plain, &m);
                assert_same_results(&split, &m);
                for (int i = 0; i < m.count; i++)
                    assert_memory_equal(gradient_of(&m, &m.weights[i]),
                                        gradient_of(&plain, &plain.weights[i]),
                                        bytes_of(&m, m.weights[i].value));
            }
            drop(&plain);
            drop(&split);
            drop(&m);
        }
    assert_true(offloaded >= 4);
    nbl_context_destroy(ctx);
}

/* ---- refusals ---- */

typedef struct refusal {
    nbl_status status;
    const char *words[4]; /* in the message; NULL at the end */
} refusal;

static void expect(nbl_context *ctx, model *m, const refusal *want)
{
    assert_int_equal(m->g.status, want->status);
    for (int i = 0; i < 4 && want->words[i]; i++)
        if (strstr(nbl_error_message(ctx), want->words[i]) == NULL)
            fail_msg("no \"%s\" in \"%s\"", want->words[i], nbl_error_message(ctx));
    nbl__graph_close(&m->g);
}

static void what_does_not_fit_is_refused_where_it_is_built(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    model m;
    static const struct {
        int64_t first, count;
    } bad[] = {{0, 0}, {-1, 4}, {0, HIDDEN + 1}, {HIDDEN - 3, 4}, {HIDDEN, 1}, {1, INT64_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        open_graph(ctx, &m, true, NBL_DTYPE_F32, TOKENS);
        assert_int_equal(nbl__graph_columns(&m.g, m.x, bad[i].first, bad[i].count), 0);
        expect(ctx, &m, &(refusal){NBL_ERROR_SHAPE, {"x", "[20, 24]", "columns"}});
    }
    /* all columns are the value itself */
    open_graph(ctx, &m, true, NBL_DTYPE_F32, TOKENS);
    assert_int_equal(nbl__graph_columns(&m.g, m.x, 0, HIDDEN), m.x);
    /* rows of columns stay rows */
    nbl__graph_view(&m.g, nbl__graph_columns(&m.g, m.x, 8, 8), 2, 0);
    expect(ctx, &m, &(refusal){NBL_ERROR_SHAPE, {"cannot be seen as rows"}});
    /* an operator that takes no stride */
    open_graph(ctx, &m, true, NBL_DTYPE_F32, TOKENS);
    int64_t eight = 8;
    nbl__value w = nbl__graph_value(&m.g, NBL_KIND_PARAMETER, "w", NBL_DTYPE_F32, 1, &eight);
    nbl__value columns = nbl__graph_columns(&m.g, m.x, 8, 8);
    nbl__rmsnorm *norm = graph_begin(&m.g, "rmsnorm", "norm");
    norm->dtype = NBL_DTYPE_F32;
    graph_bind(&m.g, "x", columns);
    graph_bind(&m.g, "w", w);
    nbl__graph_end(&m.g);
    expect(ctx, &m, &(refusal){NBL_ERROR_SHAPE, {"rmsnorm", "x", "[20, 8]", "24"}});
    /* a weight */
    open_graph(ctx, &m, true, NBL_DTYPE_F32, TOKENS);
    columns = nbl__graph_columns(&m.g, m.x, 8, 8);
    graph_begin(&m.g, "linear", "linear");
    graph_bind(&m.g, "w", columns);
    expect(ctx, &m, &(refusal){NBL_ERROR_INTERNAL, {"linear", "columns"}});
    nbl_context_destroy(ctx);
}

enum { OVERLAP, TWICE, WHOLE_AFTER, WHOLE_BEFORE, UNUSED, RESULT, NESTED, USES };

/* A product of 2 INNER columns that is used in one of these ways. */
static nbl__value use(model *m, int how)
{
    nbl__graph *g = &m->g;
    nbl__value y = linear(m, m->x, 1, 0, 2 * INNER, HIDDEN);
    nbl__value gate = nbl__graph_columns(g, y, 0, INNER), up = nbl__graph_columns(g, y, INNER, INNER), h;
    nbl__value more;
    switch (how) {
    case OVERLAP: return gated_of(m, gate, nbl__graph_columns(g, y, INNER - 1, INNER));
    case TWICE: return gated_of(m, gate, gate);
    case UNUSED: return linear(m, gate, 2, 0, HIDDEN, INNER);
    case RESULT: return gate;
    case WHOLE_AFTER:
        more = linear(m, y, 2, 0, INNER, 2 * INNER);
        return gated_of(m, gated_of(m, gate, up), more);
    case WHOLE_BEFORE:
        h = gated_of(m, gate, up);
        more = linear(m, y, 2, 0, INNER, 2 * INNER);
        return gated_of(m, h, more);
    default: /* columns of columns, in any order: allowed */
        up = nbl__graph_columns(g, nbl__graph_columns(g, y, 8, 2 * INNER - 8), INNER - 8, INNER);
        return gated_of(m, up, gate);
    }
}

static void gradients_that_columns_cannot_have_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const words[] = {"more than once", "more than once", "as a whole",
                                        "as a whole",     "not used",       "result itself"};
    nbl_context *ctx = new_context();
    for (int how = 0; how < USES; how++) {
        model m;
        open_graph(ctx, &m, true, NBL_DTYPE_F32, TOKENS);
        nbl__value result = use(&m, how);
        nbl__value seed = nbl__graph_value(&m.g, NBL_KIND_INPUT, "seed", NBL_DTYPE_F32, 2,
                                           nbl__info(&m.g, result)->tensor.shape);
        assert_ok(ctx, m.g.status);
        nbl_status status = nbl__graph_differentiate(&m.g, result, seed);
        if (how == NESTED) {
            assert_ok(ctx, status);
            nbl__graph_close(&m.g);
            continue;
        }
        assert_int_equal(status, NBL_ERROR_UNSUPPORTED);
        m.g.status = status;
        expect(ctx, &m, &(refusal){NBL_ERROR_UNSUPPORTED, {"linear [20, ", words[how]}});
    }
    nbl_context_destroy(ctx);
}

/* ---- the calls of nibble.h ---- */

static void a_public_call_takes_rows_in_wider_rows_and_refuses_them_elsewhere(void **state)
{
    (void)state;
    enum { T = 5, IN = 8, OUT = 6, WIDE_IN = 12, WIDE_OUT = 9 };
    nbl_context *ctx = new_context();
    float w[OUT * IN], x[T * IN], wide_x[T * WIDE_IN], y[T * OUT], wide_y[T * WIDE_OUT];
    uint8_t *scratch = NULL;
    size_t bytes;
    for (int i = 0; i < OUT * IN; i++) w[i] = random_value(1, (uint32_t)i);
    for (int i = 0; i < T * WIDE_IN; i++) wide_x[i] = NAN;
    for (int i = 0; i < T * WIDE_OUT; i++) wide_y[i] = 77;
    for (int i = 0; i < T * IN; i++) wide_x[i / IN * WIDE_IN + i % IN] = x[i] = random_value(2, (uint32_t)i);
    nbl_weight packed = {
        .format = NBL_FORMAT_DENSE, .dtype = NBL_DTYPE_F32, .rank = 2, .shape = {OUT, IN}, .data = w};
    for (int i = 0; i < 2; i++) {
        nbl_linear call = {.dtype = NBL_DTYPE_F32,
                           .x = nbl_matrix(NBL_DTYPE_F32, T, IN, i ? wide_x : x),
                           .w = packed,
                           .y = nbl_matrix(NBL_DTYPE_F32, T, OUT, i ? wide_y : y)};
        if (i) call.x.row_stride = WIDE_IN, call.y.row_stride = WIDE_OUT;
        assert_ok(ctx, nbl_linear_scratch(ctx, &call, 0, &bytes));
        scratch = aligned_alloc(64, bytes + 64);
        assert_non_null(scratch);
        assert_ok(ctx, nbl_linear_forward(ctx, &call, scratch, bytes));
        free(scratch);
        call.bias = nbl_vector(NBL_DTYPE_F32, OUT, w);
        call.bias.row_stride = 2;
        assert_int_equal(nbl_linear_scratch(ctx, &call, 0, &bytes), NBL_ERROR_SHAPE);
        assert_non_null(strstr(nbl_error_message(ctx), "linear: the rows of b [6] are 2 elements apart"));
    }
    for (int i = 0; i < T * WIDE_OUT; i++) {
        float want = i % WIDE_OUT < OUT ? y[i / WIDE_OUT * OUT + i % WIDE_OUT] : 77;
        assert_memory_equal(&wide_y[i], &want, sizeof want);
    }
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_weights_give_the_bits_of_their_rows),
        cmocka_unit_test(gradients_of_columns_are_those_of_the_rows),
        cmocka_unit_test(plans_change_no_bit_of_fused_weights),
        cmocka_unit_test(what_does_not_fit_is_refused_where_it_is_built),
        cmocka_unit_test(gradients_that_columns_cannot_have_are_refused_by_name),
        cmocka_unit_test(a_public_call_takes_rows_in_wider_rows_and_refuses_them_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
