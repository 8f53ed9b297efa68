/* Tests of the operators that nibble.h offers: shapes without data, empty tensors, counts of parts, what a
 * call must have, and that groups and norms agree with single calls. The kernels have the case table. */
#include <math.h>

#include "support.h"

enum { IN = 64, OUT = 48, R = 4, T = 5, BLOCK = 64, VOCABULARY = 96 };

static float values_of(uint32_t seed, int64_t i)
{
    uint32_t h = ((uint32_t)i + 1) * 2654435761u ^ seed * 40503u;
    h = (h ^ h >> 15) * 2246822519u;
    return (float)(int32_t)(h ^ h >> 13) / 2147483648.0f;
}

static void fill(float *to, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) to[i] = values_of(seed, i);
}

/* A packed weight [OUT, IN] with the memory of its parts. */
typedef struct packed {
    float dense[VOCABULARY * IN];
    uint8_t data[VOCABULARY * IN], codes[VOCABULARY * IN / 32];
    float scales[VOCABULARY * IN / 32], nested[VOCABULARY];
    nbl_weight w;
} packed;

static void pack(nbl_context *ctx, packed *p, nbl_format format, nbl_nested nested, int64_t rows,
                 uint32_t seed)
{
    nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = format, .nested = nested};
    nbl_quantized_parts parts = {p->data, p->scales, p->codes, p->nested};
    int64_t shape[2] = {rows, IN};
    fill(p->dense, rows * IN, seed);
    assert_ok(ctx, nbl_quantize(ctx, &how, NBL_DTYPE_F32, 2, shape, p->dense, &parts, &p->w));
}

/* Runs one direction of a call. */
#define RUN(ctx, name, direction, backward, call)                                                            \
    do {                                                                                                     \
        size_t bytes_;                                                                                       \
        assert_ok(ctx, nbl_##name##_scratch(ctx, (call), (backward), &bytes_));                              \
        void *scratch_ = aligned_alloc(64, bytes_ + 64);                                                     \
        assert_non_null(scratch_);                                                                           \
        assert_ok(ctx, nbl_##name##_##direction(ctx, (call), scratch_, bytes_));                             \
        free(scratch_);                                                                                      \
    } while (0)

#define assert_refused(ctx, call, status, part)                                                              \
    do {                                                                                                     \
        nbl_status got_ = (call);                                                                            \
        if (got_ != (status) || strstr(nbl_error_message(ctx), (part)) == NULL)                              \
            fail_msg("%s \"%s\", expected %s and \"%s\"", nbl_status_name(got_), nbl_error_message(ctx),     \
                     nbl_status_name(status), (part));                                                       \
    } while (0)

#define assert_shape2(t, type, a, b)                                                                         \
    do {                                                                                                     \
        assert_int_equal((t).dtype, (type));                                                                 \
        assert_int_equal((t).rank, 2);                                                                       \
        assert_int_equal((t).shape[0], (a));                                                                 \
        assert_int_equal((t).shape[1], (b));                                                                 \
    } while (0)

/* ---- shapes without data ---- */

static void infer_fills_in_outputs_without_any_data(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_linear l = {.dtype = NBL_DTYPE_BF16,
                    .x = {.dtype = NBL_DTYPE_BF16, .rank = 3, .shape = {2, 7, IN}},
                    .w = {.format = NBL_FORMAT_NF4, .rank = 2, .shape = {OUT, IN}, .block = BLOCK},
                    .lora_a = nbl_matrix(NBL_DTYPE_F32, R, IN, NULL),
                    .lora_b = nbl_matrix(NBL_DTYPE_F32, OUT, R, NULL),
                    .scale = 1};
    assert_ok(ctx, nbl_linear_infer(ctx, &l, false));
    assert_int_equal(l.y.rank, 3);
    assert_int_equal(l.y.shape[0] * 100 + l.y.shape[1], 207);
    assert_int_equal(l.y.shape[2], OUT);
    assert_int_equal(l.y.dtype, NBL_DTYPE_BF16);
    assert_null(l.y.data);
    assert_null(l.x.data);
    assert_null(l.w.data);
    l.dy = l.y;
    assert_ok(ctx, nbl_linear_infer(ctx, &l, true));
    assert_shape2(l.dlora_a, NBL_DTYPE_F32, R, IN);
    assert_shape2(l.dlora_b, NBL_DTYPE_F32, OUT, R);
    assert_int_equal(l.dx.shape[2], IN);
    assert_int_equal(l.dbias.rank, 0);
    l.dy.shape[2] = OUT + 1;
    assert_refused(ctx, nbl_linear_infer(ctx, &l, true), NBL_ERROR_SHAPE, "dy is [2, 7, 49]");
    l.x.dtype = NBL_DTYPE_F32;
    assert_refused(ctx, nbl_linear_infer(ctx, &l, false), NBL_ERROR_DTYPE, "x [2, 7, 64] is f32, bf16");

    nbl_linear_group g = {.members = {{.dtype = NBL_DTYPE_F32, .x = nbl_matrix(NBL_DTYPE_F32, T, IN, NULL)}}};
    for (int i = 0; i < 3; i++)
        g.members[i].w = (nbl_weight){.format = NBL_FORMAT_INT8, .rank = 2, .shape = {8 * (i + 1), IN}};
    assert_ok(ctx, nbl_linear_group_infer(ctx, &g, false));
    assert_int_equal(g.count, 3);
    for (int i = 0; i < 3; i++) assert_shape2(g.members[i].y, NBL_DTYPE_F32, T, 8 * (i + 1));
    assert_int_equal(g.members[3].y.rank, 0);

    nbl_cross_entropy c = {.dtype = NBL_DTYPE_F32,
                           .x = nbl_matrix(NBL_DTYPE_F32, T, IN, NULL),
                           .w = {.dtype = NBL_DTYPE_F32, .rank = 2, .shape = {VOCABULARY, IN}},
                           .labels = nbl_vector(NBL_DTYPE_I32, T, NULL)};
    assert_ok(ctx, nbl_cross_entropy_infer(ctx, &c, false));
    assert_shape2(c.lse, NBL_DTYPE_F32, 2, T);
    assert_int_equal(c.loss.shape[0], 1);
    assert_int_equal(c.dx_in_forward.rank, 0);

    nbl_mlp m = {.gate = {.dtype = NBL_DTYPE_F16, .x = nbl_matrix(NBL_DTYPE_F16, T, IN, NULL)}, .keep = true};
    m.gate.w = m.up.w = (nbl_weight){.format = NBL_FORMAT_MXFP4, .rank = 2, .shape = {OUT * 2, IN}};
    m.down.w = (nbl_weight){.format = NBL_FORMAT_MXFP4, .rank = 2, .shape = {IN, OUT * 2}};
    assert_ok(ctx, nbl_mlp_infer(ctx, &m, false));
    assert_shape2(m.gate_out, NBL_DTYPE_F32, T, OUT * 2);
    assert_shape2(m.down.y, NBL_DTYPE_F16, T, IN);

    nbl_dora_norm d = {.dtype = NBL_DTYPE_F32, .w = l.w, .lora_a = l.lora_a, .lora_b = l.lora_b, .scale = 1};
    assert_ok(ctx, nbl_dora_norm_infer(ctx, &d, false));
    assert_int_equal(d.norm.shape[0], OUT);
    assert_refused(ctx, nbl_dora_norm_infer(ctx, &d, true), NBL_ERROR_UNSUPPORTED, "no backward");
    nbl_context_destroy(ctx);
}

/* ---- what the caller tells of a weight's parts ---- */

static void counts_and_dtypes_of_parts_are_checked(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    packed flat, nested, rows, mx;
    pack(ctx, &flat, NBL_FORMAT_NF4, NBL_NESTED_NONE, OUT, 1);
    pack(ctx, &nested, NBL_FORMAT_FP4, NBL_NESTED_GRID, OUT, 2);
    pack(ctx, &rows, NBL_FORMAT_INT8, NBL_NESTED_NONE, OUT, 3);
    pack(ctx, &mx, NBL_FORMAT_MXFP4, NBL_NESTED_NONE, OUT, 4);
    enum { BLOCKS = OUT * IN / BLOCK };
    flat.w.given = (nbl_weight_parts){.data_bytes = OUT * IN / 2, .scales = BLOCKS};
    nested.w.given = (nbl_weight_parts){
        .data_bytes = OUT * IN / 2 + 1, .scale_codes = BLOCKS, .nested_scales = 1, .nested_table = 256};
    rows.w.given = (nbl_weight_parts){.data_bytes = OUT * IN, .scales = OUT};
    mx.w.given = (nbl_weight_parts){.data_bytes = OUT * IN / 2, .scale_codes = OUT * IN / 32};
    const nbl_weight *good[] = {&flat.w, &nested.w, &rows.w, &mx.w};
    float out[OUT * IN];
    for (int i = 0; i < 4; i++)
        assert_ok(ctx, nbl_dequantize(ctx, good[i], 0, OUT, NBL_DTYPE_F32, false, out));
    const struct {
        const nbl_weight *w;
        nbl_weight_parts change;
        nbl_status status;
        const char *part;
    } bad[] = {
        {&flat.w, {.data_bytes = OUT * IN / 2 - 1}, NBL_ERROR_SHAPE, "data has 1535 bytes"},
        {&flat.w,
         {.scales = BLOCKS + 1},
         NBL_ERROR_SHAPE,
         "scales has 49 elements; nf4 of shape [48, 64] needs 48"},
        {&flat.w, {.scale_codes = 7}, NBL_ERROR_SHAPE, "scale_codes has 7"},
        {&flat.w, {.scales = -1}, NBL_ERROR_SHAPE, "scales has"},
        {&flat.w, {.scales_dtype = NBL_DTYPE_BF16}, NBL_ERROR_DTYPE, "scales is bf16; it must be f32"},
        {&nested.w, {.scale_codes = BLOCKS - 1}, NBL_ERROR_SHAPE, "scale_codes has 47"},
        {&nested.w, {.nested_scales = 2}, NBL_ERROR_SHAPE, "nested_scales has 2"},
        {&nested.w, {.nested_table = 255}, NBL_ERROR_SHAPE, "nested_table has 255"},
        {&nested.w, {.nested_scales_dtype = NBL_DTYPE_F16}, NBL_ERROR_DTYPE, "nested_scales is f16"},
        {&nested.w, {.nested_table_dtype = NBL_DTYPE_F64}, NBL_ERROR_DTYPE, "nested_table is f64"},
        {&nested.w, {.scales_dtype = (nbl_dtype)99}, NBL_ERROR_DTYPE, "an unknown dtype"},
        {&rows.w, {.scales = OUT - 1}, NBL_ERROR_SHAPE, "scales has 47"},
        {&rows.w, {.data_bytes = 1}, NBL_ERROR_SHAPE, "data has 1 bytes"},
        {&mx.w, {.scale_codes = OUT}, NBL_ERROR_SHAPE, "scale_codes has 48"},
        {&mx.w, {.scales = OUT}, NBL_ERROR_SHAPE, "scales has 48 elements; mxfp4 of shape [48, 64] needs 0"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        nbl_weight w = *bad[i].w;
        w.given = bad[i].change;
        assert_refused(ctx, nbl_dequantize(ctx, &w, 0, OUT, NBL_DTYPE_F32, false, out), bad[i].status,
                       bad[i].part);
        float x[IN], y[OUT];
        size_t bytes;
        nbl_linear l = {.dtype = NBL_DTYPE_F32,
                        .x = nbl_matrix(NBL_DTYPE_F32, 1, IN, x),
                        .w = w,
                        .y = nbl_matrix(NBL_DTYPE_F32, 1, OUT, y)};
        assert_refused(ctx, nbl_linear_scratch(ctx, &l, false, &bytes), bad[i].status, bad[i].part);
        assert_refused(ctx, nbl_linear_infer(ctx, &l, false), bad[i].status, bad[i].part);
    }
    nbl_context_destroy(ctx);
}

static void the_nested_offset_may_be_read_when_the_call_runs(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    packed p;
    pack(ctx, &p, NBL_FORMAT_NF4, NBL_NESTED_NEAREST, OUT, 5);
    float want[OUT * IN], got[OUT * IN], x[T * IN], y[2][T * OUT], offset = p.w.nested_offset;
    fill(x, T * IN, 6);
    nbl_weight w = p.w;
    w.nested_offset = NAN;
    w.nested_offset_at = &offset;
    assert_ok(ctx, nbl_dequantize(ctx, &p.w, 0, OUT, NBL_DTYPE_F32, false, want));
    assert_ok(ctx, nbl_dequantize(ctx, &w, 0, OUT, NBL_DTYPE_F32, false, got));
    assert_memory_equal(got, want, sizeof want);
    for (int i = 0; i < 2; i++) {
        nbl_linear l = {.dtype = NBL_DTYPE_F32,
                        .x = nbl_matrix(NBL_DTYPE_F32, T, IN, x),
                        .w = i ? w : p.w,
                        .y = nbl_matrix(NBL_DTYPE_F32, T, OUT, y[i])};
        RUN(ctx, linear, forward, false, &l);
    }
    assert_memory_equal(y[1], y[0], sizeof y[0]);
    nbl_context_destroy(ctx);
}

/* ---- empty tensors and missing ones ---- */

static void no_tokens_need_no_data(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    packed p;
    pack(ctx, &p, NBL_FORMAT_NF4, NBL_NESTED_NONE, OUT, 7);
    float a[R * IN], b[OUT * R], da[R * IN], db[OUT * R];
    fill(a, R * IN, 8);
    fill(b, OUT * R, 9);
    for (int i = 0; i < R * IN; i++) da[i] = 1;
    nbl_linear l = {.dtype = NBL_DTYPE_F32,
                    .x = nbl_matrix(NBL_DTYPE_F32, 0, IN, NULL),
                    .w = p.w,
                    .lora_a = nbl_matrix(NBL_DTYPE_F32, R, IN, a),
                    .lora_b = nbl_matrix(NBL_DTYPE_F32, OUT, R, b),
                    .scale = 1,
                    .y = nbl_matrix(NBL_DTYPE_F32, 0, OUT, NULL)};
    RUN(ctx, linear, forward, false, &l);
    l.dy = l.y;
    l.dx = l.x;
    l.dlora_a = nbl_matrix(NBL_DTYPE_F32, R, IN, da);
    l.dlora_b = nbl_matrix(NBL_DTYPE_F32, OUT, R, db);
    RUN(ctx, linear, backward, true, &l);
    for (int i = 0; i < R * IN; i++) assert_true(da[i] == 0);
    nbl_context_destroy(ctx);
}

static void what_a_call_needs_must_be_there(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    packed p;
    pack(ctx, &p, NBL_FORMAT_NF4, NBL_NESTED_NONE, VOCABULARY, 10);
    float x[T * IN], dx[T * IN], y[T * VOCABULARY], lse[2 * T], loss[1], logprobs[T], one = 1;
    int32_t labels[T] = {1, 2, -100, 4, 95};
    size_t bytes;
    fill(x, T * IN, 11);
    nbl_linear l = {.dtype = NBL_DTYPE_F32,
                    .x = nbl_matrix(NBL_DTYPE_F32, T, IN, x),
                    .w = p.w,
                    .dx = nbl_matrix(NBL_DTYPE_F32, T, IN, dx)};
    l.dy = nbl_matrix(NBL_DTYPE_F32, T, VOCABULARY, NULL);
    assert_refused(ctx, nbl_linear_scratch(ctx, &l, true, &bytes), NBL_ERROR_ARGUMENT, "dy has no data");
    assert_refused(ctx, nbl_linear_scratch(ctx, &l, false, &bytes), NBL_ERROR_ARGUMENT, "y has no memory");
    l.y = nbl_matrix(NBL_DTYPE_F32, T, VOCABULARY, y);
    l.saved = y;
    l.saved_bytes = 0; /* a CPU saves nothing: enough */
    RUN(ctx, linear, forward, false, &l);
    assert_ok(ctx, nbl_linear_saved(ctx, &l, &bytes));
    assert_int_equal(bytes, 0);

    nbl_cross_entropy c = {.dtype = NBL_DTYPE_F32,
                           .x = nbl_matrix(NBL_DTYPE_F32, T, IN, x),
                           .w = p.w,
                           .labels = nbl_vector(NBL_DTYPE_I32, T, labels),
                           .loss = nbl_vector(NBL_DTYPE_F32, 1, loss),
                           .logprobs = nbl_vector(NBL_DTYPE_F32, T, logprobs)};
    assert_refused(ctx, nbl_cross_entropy_scratch(ctx, &c, false, &bytes), NBL_ERROR_ARGUMENT,
                   "lse has no memory");
    c.lse = nbl_matrix(NBL_DTYPE_F32, 2, T, lse);
    RUN(ctx, cross_entropy, forward, false, &c);
    c.dloss = nbl_vector(NBL_DTYPE_F32, 1, &one);
    c.dx = nbl_matrix(NBL_DTYPE_F32, T, IN, dx);
    RUN(ctx, cross_entropy, backward, true, &c);
    /* The mean loss by hand, from the dequantized head. */
    float w[VOCABULARY * IN];
    double sum = 0;
    assert_ok(ctx, nbl_dequantize(ctx, &p.w, 0, VOCABULARY, NBL_DTYPE_F32, false, w));
    for (int t = 0; t < T; t++) {
        double logits[VOCABULARY], total = 0;
        for (int v = 0; v < VOCABULARY; v++) {
            logits[v] = 0;
            for (int k = 0; k < IN; k++) logits[v] += (double)x[t * IN + k] * (double)w[v * IN + k];
            total += exp(logits[v]);
        }
        if (labels[t] >= 0) sum += log(total) - logits[labels[t]];
    }
    assert_true(fabs(sum / 4 - (double)loss[0]) < 1e-5);
    for (int k = 0; k < IN; k++) assert_true(dx[2 * IN + k] == 0); /* not trained */
    c.lse.shape[1] = T - 1;
    assert_refused(ctx, nbl_cross_entropy_scratch(ctx, &c, true, &bytes), NBL_ERROR_SHAPE, "lse is [2, 4]");
    c.lse = (nbl_tensor){0};
    assert_refused(ctx, nbl_cross_entropy_scratch(ctx, &c, true, &bytes), NBL_ERROR_ARGUMENT,
                   "lse has no data");
    labels[3] = VOCABULARY;
    c.lse = nbl_matrix(NBL_DTYPE_F32, 2, T, lse);
    assert_ok(ctx, nbl_cross_entropy_scratch(ctx, &c, false, &bytes));
    void *scratch = aligned_alloc(64, bytes + 64);
    assert_refused(ctx, nbl_cross_entropy_forward(ctx, &c, scratch, bytes), NBL_ERROR_ARGUMENT,
                   "labels[3] is 96");
    free(scratch);
    nbl_context_destroy(ctx);
}

/* ---- operators of several layers agree with single ones ---- */

static void a_group_gives_the_outputs_of_its_members(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    packed p[3];
    float x[T * IN], dy[3][T * OUT], y[3][T * OUT], alone[T * OUT], dx[T * IN], part[T * IN];
    double sum[T * IN] = {0};
    fill(x, T * IN, 12);
    nbl_linear_group g = {0};
    for (int i = 0; i < 3; i++) {
        pack(ctx, &p[i], i == 1 ? NBL_FORMAT_INT8 : NBL_FORMAT_NF4, NBL_NESTED_NONE, OUT, 13 + (uint32_t)i);
        fill(dy[i], T * OUT, 20 + (uint32_t)i);
        g.members[i].w = p[i].w;
        g.members[i].y = nbl_matrix(NBL_DTYPE_F32, T, OUT, y[i]);
        g.members[i].dy = nbl_matrix(NBL_DTYPE_F32, T, OUT, dy[i]);
    }
    g.members[0].dtype = NBL_DTYPE_F32;
    g.members[0].dequantized = true;
    g.members[0].x = nbl_matrix(NBL_DTYPE_F32, T, IN, x);
    g.members[0].dx = nbl_matrix(NBL_DTYPE_F32, T, IN, dx);
    RUN(ctx, linear_group, forward, false, &g);
    RUN(ctx, linear_group, backward, true, &g);
    for (int i = 0; i < 3; i++) {
        nbl_linear l = g.members[i];
        l.dtype = NBL_DTYPE_F32;
        l.dequantized = true;
        l.x = g.members[0].x;
        l.y.data = alone;
        l.dx = nbl_matrix(NBL_DTYPE_F32, T, IN, part);
        RUN(ctx, linear, forward, false, &l);
        RUN(ctx, linear, backward, true, &l);
        assert_memory_equal(alone, y[i], sizeof alone);
        for (int k = 0; k < T * IN; k++) sum[k] += (double)part[k];
    }
    for (int k = 0; k < T * IN; k++) assert_true(fabs(sum[k] - (double)dx[k]) < 1e-4);
    size_t bytes;
    g.members[1].dy.data = NULL;
    assert_refused(ctx, nbl_linear_group_scratch(ctx, &g, true, &bytes), NBL_ERROR_ARGUMENT,
                   "dy1 has no data");
    g.members[1].w.block = 48;
    g.members[1].w.format = NBL_FORMAT_NF4;
    assert_refused(ctx, nbl_linear_group_scratch(ctx, &g, false, &bytes), NBL_ERROR_ARGUMENT,
                   "w1: linear_group: block 48");
    nbl_context_destroy(ctx);
}

static void dora_takes_a_norm_that_was_computed_before(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    packed p;
    pack(ctx, &p, NBL_FORMAT_FP4, NBL_NESTED_NONE, OUT, 30);
    float a[R * IN], b[OUT * R], m[OUT], norm[OUT], squares[OUT], again[OUT], x[T * IN], y[2][T * OUT];
    fill(a, R * IN, 31);
    fill(b, OUT * R, 32);
    fill(m, OUT, 33);
    fill(x, T * IN, 34);
    nbl_dora_norm d = {.dtype = NBL_DTYPE_F32,
                       .w = p.w,
                       .lora_a = nbl_matrix(NBL_DTYPE_F32, R, IN, a),
                       .lora_b = nbl_matrix(NBL_DTYPE_F32, OUT, R, b),
                       .scale = 2,
                       .norm = nbl_vector(NBL_DTYPE_F32, OUT, norm),
                       .w_norm2_out = nbl_vector(NBL_DTYPE_F32, OUT, squares)};
    RUN(ctx, dora_norm, forward, false, &d);
    d.w_norm2 = d.w_norm2_out;
    d.w_norm2_out = (nbl_tensor){0};
    d.norm.data = again;
    RUN(ctx, dora_norm, forward, false, &d);
    assert_memory_equal(again, norm, sizeof norm);
    for (int i = 0; i < 2; i++) {
        nbl_linear l = {.dtype = NBL_DTYPE_F32,
                        .x = nbl_matrix(NBL_DTYPE_F32, T, IN, x),
                        .w = p.w,
                        .lora_a = d.lora_a,
                        .lora_b = d.lora_b,
                        .magnitude = nbl_vector(NBL_DTYPE_F32, OUT, m),
                        .scale = 2,
                        .y = nbl_matrix(NBL_DTYPE_F32, T, OUT, y[i])};
        if (i) l.norm = nbl_vector(NBL_DTYPE_F32, OUT, norm);
        RUN(ctx, linear, forward, false, &l);
    }
    assert_memory_equal(y[1], y[0], sizeof y[0]);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(infer_fills_in_outputs_without_any_data),
        cmocka_unit_test(counts_and_dtypes_of_parts_are_checked),
        cmocka_unit_test(the_nested_offset_may_be_read_when_the_call_runs),
        cmocka_unit_test(no_tokens_need_no_data),
        cmocka_unit_test(what_a_call_needs_must_be_there),
        cmocka_unit_test(a_group_gives_the_outputs_of_its_members),
        cmocka_unit_test(dora_takes_a_norm_that_was_computed_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
