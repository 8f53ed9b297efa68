/* test_hazards.c - the hazard matrix, and one test per known hazard that concerns operators.
 *
 * The matrix: storage format × the dtype that a state remembers × activation × adapter × gradient × tokens ×
 * rank, for linear (with few tokens its products that read packed weights directly), linear_group, mlp. All
 * cells share their contexts, scratch and outputs hold NaN before each call, tensors are aligned to their
 * element only. docs/TESTING.md lists hazards and tests. */
#include "ops/hazards.h"

#include <math.h>
#include <pthread.h>
#include <sys/mman.h>

#include "ops/embedding/embedding.h"

static const char *const floats[] = {"f32", "f16", "bf16"};
#define PACKED                                                                                               \
    "nf4@f32,nf4@f16,nf4@bf16,nf4-nested@f32,nf4-nested@f16,nf4-nested@bf16,fp4@f32,fp4@f16,fp4@bf16,"       \
    "int8@f32,int8@f16,int8@bf16,mxfp4@f32,mxfp4@f16,mxfp4@bf16"
#define STORES "f32,f16,bf16," PACKED

static int open_contexts(void **state)
{
    hazards *h = calloc(1, sizeof *h);
    case_options options = {0};
    if (h == NULL || !case_contexts_open(&options, &h->contexts)) return 1;
    *state = h;
    return 0;
}

static int close_contexts(void **state)
{
    hazards *h = *state;
    print_message("%lld cells matched, %lld were refused\n", (long long)h->matched, (long long)h->refused);
    case_contexts_close(&h->contexts);
    free(h);
    return 0;
}

/* ---- the matrix ---- */

/* Lines with $x for the dtype of the activation, $c of the computation, $g of the gradient, $a of adapters. */
typedef struct shape {
    const char *family, *plain, *adapted;
    const char *gradient; /* its name in messages */
} shape;
static const shape shapes[] = {
    {"linear", "T=0|1|2|5|34 K=64 N=40 x=TxK:$x w=NxK:" STORES " dtype=$c dy=TxN:$g ranks=yes",
     "T=0|1|2|5|34 K=64 N=40 R=4 x=TxK:$x w=NxK:" STORES
     " dtype=$c dy=TxN:$g lora_a=RxK:$a lora_b=NxR:$a scale=0.5 ranks=yes",
     "dy"},
    {"linear_group",
     "T=1|5 K=64 N=40 M=24 x=TxK:$x w0=NxK:" STORES " w1=MxK:nf4 dtype=$c dy0=TxN:$g dy1=TxM ranks=yes",
     "T=1|6 K=64 N=40 M=24 R=4 x=TxK:$x w0=NxK:" STORES
     " w1=MxK:nf4 dtype=$c dy0=TxN:$g dy1=TxM lora_a0=RxK:$a lora_b0=NxR:$a scale=0.5 ranks=yes",
     "dy0"},
    {"mlp",
     "T=2|5 K=32 N=64 x=TxK:$x gate=NxK:" STORES " up=NxK:nf4 down=KxN:nf4 dtype=$c dy=TxK:$g ranks=yes",
     "T=1|6 K=32 N=64 R=4 x=TxK:$x gate=NxK:bf16 up=NxK:nf4 down=KxN:" STORES
     " dtype=$c dy=TxK:$g down.lora_a=RxN:$a down.lora_b=KxR:$a scale=0.5 ranks=yes",
     "dy"},
    {"expert_mlp",
     "T=2|9 E=4 J=2 H=32 I=32 M=64 x=TxH:$x weights=TxJ:f32 offsets=E+1:routed pairs=T*J:routed "
     "rows=T*J:routed "
     "gate_up=ExMxH:" STORES " down=ExHxI:nf4 dtype=$c dy=TxH:$g ranks=yes",
     "T=1|12 E=4 J=2 H=32 I=32 M=64 R=2 Z=8 x=TxH:$x weights=TxJ:f32 offsets=E+1:routed pairs=T*J:routed "
     "rows=T*J:routed gate_up=ExMxH:bf16 gate_up.lora_a=ZxH:$a gate_up.lora_b=MxZ:$a down=ExHxI:" STORES
     " dtype=$c dy=TxH:$g scale=0.5 ranks=yes",
     "dy"},
};

typedef struct cell_dtypes {
    const char *x, *compute, *gradient, *adapter; /* adapter NULL: none */
} cell_dtypes;

static void write_line(const shape *s, const cell_dtypes *d, char line[CASE_TEXT])
{
    size_t n = 0;
    for (const char *from = d->adapter ? s->adapted : s->plain; *from; from++) {
        if (*from != '$') {
            line[n++] = *from;
            continue;
        }
        from++;
        const char *name = *from == 'x'   ? d->x
                           : *from == 'c' ? d->compute
                           : *from == 'g' ? d->gradient
                                          : d->adapter;
        memcpy(line + n, name, strlen(name));
        n += strlen(name);
    }
    line[n] = 0;
}

static void match_or_refuse(hazards *h, const shape *s, const cell_dtypes *d)
{
    char line[CASE_TEXT];
    bool x_fits = strcmp(d->x, d->compute) == 0, gradient_fits = strcmp(d->gradient, d->compute) == 0;
    char tensor[32], is[32], expected[32];
    snprintf(tensor, sizeof tensor, ": %s [", x_fits ? s->gradient : "x");
    snprintf(is, sizeof is, " is %s,", x_fits ? d->gradient : d->x);
    snprintf(expected, sizeof expected, " %s was expected", d->compute);
    const char *words[] = {s->family, tensor, is, expected, NULL};
    write_line(s, d, line);
    if (x_fits && gradient_fits) assert_matches(h, s->family, line);
    else assert_refused(h, s->family, line, words);
}

/* All cells of one shape and compute dtype. */
static void matrix_of(hazards *h, const shape *s, const char *compute)
{
    static const char *const adapters[] = {NULL, "f32", "f16", "bf16"};
    for (int a = 0; a < 4; a++)
        for (int x = 0; x < 3; x++)
            for (int g = 0; g < 3; g++)
                match_or_refuse(h, s, &(cell_dtypes){floats[x], compute, floats[g], adapters[a]});
}

static void matrix(void **state, const char *family)
{
    static const char *const order[] = {"bf16", "f16", "f32", "bf16"};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int k = 0; strcmp(shapes[i].family, family) == 0 && k < 4; k++)
            matrix_of(*state, &shapes[i], order[k]);
}

static void every_cell_of_linear_matches_or_is_refused(void **state)
{
    matrix(state, "linear");
}

static void every_cell_of_linear_group_matches_or_is_refused(void **state)
{
    matrix(state, "linear_group");
}

static void every_cell_of_mlp_matches_or_is_refused(void **state)
{
    matrix(state, "mlp");
}

static void every_cell_of_expert_mlp_matches_or_is_refused(void **state)
{
    matrix(state, "expert_mlp");
}

/* ---- order of calls ---- */

/* Scratch that nothing clears: each call finds what the one before left, of another dtype and size. */
typedef struct stale {
    void *memory;
    size_t bytes;
} stale;

static void run_on_stale(nbl_context *ctx, const nbl__op *op, const case_run *r, stale *s)
{
    const nbl__impl *impl;
    assert_ok(ctx, nbl__op_choose(ctx, op, r->arguments, NULL, &impl));
    size_t bytes = nbl__op_scratch(ctx, impl, r->arguments);
    if (bytes > s->bytes) {
        free(s->memory);
        s->bytes = (bytes + 63) / 64 * 64;
        s->memory = aligned_alloc(64, s->bytes);
        memset(s->memory, 0x77, s->bytes);
    }
    assert_ok(ctx, nbl__op_run(ctx, op, impl, r->arguments, s->memory, s->bytes));
}

/* Runs each text in order on one context and one scratch, then each alone on a new one: the same bits. */
static void assert_no_history(const char *family, const char *const *texts)
{
    nbl_context *used = new_context();
    stale scratch = {0};
    for (const char *const *text = texts; *text; text++) {
        nbl_context *fresh = new_context();
        op_case c;
        case_run alone, later;
        build_case(fresh, family, *text, SPLIT_NONE, &c);
        run_case(fresh, &c, false, &alone);
        run_case(used, &c, false, &later); /* gives outputs their memory, */
        run_on_stale(used, &c.family->forward, &later, &scratch);
        if (c.backward) run_on_stale(used, &c.family->backward, &later, &scratch);
        assert_same(&c, &alone, &later, "after other calls");
        case_end(&alone);
        case_end(&later);
        case_destroy(&c);
        nbl_context_destroy(fresh);
    }
    free(scratch.memory);
    nbl_context_destroy(used);
}

#define LORA(tokens, store, dtype)                                                                           \
    "T=" tokens " K=64 N=40 R=4 x=TxK w=NxK:" store " dtype=" dtype " lora_a=RxK:f32 lora_b=NxR:f32"

static void a_bf16_model_after_an_f16_model_gives_the_same_bits(void **state)
{
    static const char *const texts[] = {
        LORA("7", "nf4-nested@bf16", "bf16"), LORA("7", "nf4-nested@f16", "f16"),
        LORA("7", "nf4-nested@f32", "f32"), LORA("7", "nf4-nested@bf16", "bf16"), NULL};
    (void)state;
    assert_no_history("linear", texts);
}

static void a_small_call_between_two_large_ones_changes_no_bit(void **state)
{
    static const char *const texts[] = {LORA("200", "nf4", "bf16"), LORA("1", "nf4", "f16"),
                                        LORA("200", "nf4", "bf16"), LORA("3", "int8", "f32"),
                                        LORA("200", "int8", "f32"), NULL};
    (void)state;
    assert_no_history("linear", texts);
}

static void one_adapter_serves_f32_decoding_and_bf16_training_in_any_order(void **state)
{
    static const char *const texts[] = {LORA("1", "nf4", "f32"), LORA("9", "nf4", "bf16"),
                                        LORA("1", "nf4", "f32"), LORA("1", "nf4", "bf16"),
                                        LORA("9", "nf4", "f32"), NULL};
    (void)state;
    assert_no_history("linear", texts);
}

static void the_first_input_decides_no_later_compute_dtype(void **state)
{
    static const char *const texts[] = {LORA("4", "nf4@bf16", "f32"), LORA("4", "nf4@bf16", "bf16"),
                                        LORA("4", "nf4@bf16", "f16"), NULL};
    (void)state;
    assert_no_history("linear", texts);
}

/* ---- two models at once ---- */

typedef struct model {
    const char *texts[4];
    bool same;
} model;

static void *train(void *argument)
{
    model *m = argument;
    nbl_context *ctx = NULL;
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 2};
    m->same = nbl_context_create(&options, &ctx) == NBL_OK;
    for (int i = 0; m->same && i < 12; i++) {
        op_case c;
        case_run a, b;
        char why[CASE_TEXT];
        m->same = case_build(ctx, family_named("linear"), m->texts[i % 4], 1, SPLIT_NONE, &c, why) ==
                  CASE_READY;
        case_begin(&c, NULL, &a);
        case_begin(&c, NULL, &b);
        m->same = m->same && case_forward(ctx, &c, NULL, false, &a) == NBL_OK &&
                  case_backward(ctx, &c, NULL, false, &a) == NBL_OK &&
                  case_forward(ctx, &c, NULL, true, &b) == NBL_OK &&
                  case_backward(ctx, &c, NULL, true, &b) == NBL_OK && different_bits(&c, &a, &b) == NULL;
        case_end(&a);
        case_end(&b);
        case_destroy(&c);
    }
    nbl_context_destroy(ctx);
    return NULL;
}

static void two_models_of_other_precision_run_side_by_side(void **state)
{
    model models[2] = {{{LORA("9", "nf4", "bf16"), LORA("1", "nf4", "bf16"), LORA("40", "bf16", "bf16"),
                         LORA("5", "int8", "bf16")},
                        false},
                       {{LORA("40", "nf4", "f16"), LORA("9", "int8", "f32"), LORA("1", "nf4-nested", "f16"),
                         LORA("8", "mxfp4", "f32")},
                        false}};
    pthread_t threads[2];
    (void)state;
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, train, &models[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    assert_true(models[0].same);
    assert_true(models[1].same);
}

/* ---- hazards that need more than a line ---- */

static void the_dtype_that_a_state_remembers_changes_no_bit(void **state)
{
    hazards *h = *state;
    nbl_context *ctx = h->contexts.many[h->contexts.best];
    static const char *const formats[] = {"nf4", "nf4-nested", "fp4", "int8", "mxfp4"};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (int dtype = 0; dtype < 3; dtype++)
            for (int tokens = 1; tokens < 12; tokens += 10) {
                op_case c[3];
                case_run r[3];
                char text[3][CASE_TEXT];
                for (int i = 0; i < 3; i++) {
                    snprintf(text[i], CASE_TEXT, "T=%d K=64 N=12 x=TxK w=NxK:%s@%s dtype=%s", tokens,
                             formats[f], floats[i], floats[dtype]);
                    build_case(ctx, "linear", text[i], SPLIT_NONE, &c[i]);
                    run_case(ctx, &c[i], false, &r[i]);
                }
                assert_same(&c[0], &r[0], &r[1], "when its state says f16");
                assert_same(&c[0], &r[0], &r[2], "when its state says bf16");
                for (int i = 0; i < 3; i++) {
                    case_end(&r[i]);
                    case_destroy(&c[i]);
                }
            }
}

/* |act(gate)·up| passes 65504 while the block's output does not. */
static void a_gated_product_beyond_f16_stays_finite(void **state)
{
    hazards *h = *state;
    nbl_context *ctx = h->contexts.many[h->contexts.best];
    static const char text[] =
        "T=8 K=64 N=512 x=TxK::times-120 gate=NxK:nf4 up=NxK:nf4 down=KxN:nf4 dtype=f16 backward=no";
    op_case c;
    case_run r;
    build_case(ctx, "mlp", text, SPLIT_NONE, &c);
    run_case(ctx, &c, false, &r);
    const nbl_tensor *y = result_of(&c, &r, "y");
    for (int64_t i = 0; i < nbl__tensor_elements(y); i++)
        assert_true(isfinite(nbl__f16_to_f32(((const uint16_t *)y->data)[i])));
    case_end(&r);
    case_destroy(&c);
    assert_matches(h, "mlp", text);
}

/* The table is a mapping of which only the touched pages cost memory. */
static void a_table_beyond_two_to_the_31_elements_is_read_at_its_end(void **state)
{
    enum { COLUMNS = 1024 };
    const int64_t rows = (INT64_C(1) << 31) / COLUMNS + 3, bytes = rows * COLUMNS * 2;
    hazards *h = *state;
    nbl_context *ctx = h->contexts.many[h->contexts.best];
    uint16_t *table = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED) skip();
    int32_t ids[2] = {(int32_t)rows - 1, 5};
    for (int64_t i = 0; i < COLUMNS; i++) {
        table[(rows - 1) * COLUMNS + i] = (uint16_t)(0x3f80 + i % 64);
        table[5 * COLUMNS + i] = (uint16_t)(0xbf80 + i % 32);
    }
    uint16_t y[2][COLUMNS];
    nbl__embedding a = {
        .dtype = NBL_DTYPE_BF16,
        .scale = 1,
        .ids = {NBL_DTYPE_I32, 1, {2}, ids},
        .w = {.format = NBL_FORMAT_DENSE,
              .dtype = NBL_DTYPE_BF16,
              .rank = 2,
              .shape = {rows, COLUMNS},
              .data = table},
        .y = {.data = y},
    };
    const nbl__op *op = &family_named("embedding")->forward;
    assert_ok(ctx, op->infer(ctx, &a));
    for (const nbl__impl *const *impl = op->impls; *impl; impl++) {
        uint8_t scratch[4096] __attribute__((aligned(64)));
        assert_true(nbl__op_scratch(ctx, *impl, &a) <= sizeof scratch);
        memset(y, 0xff, sizeof y);
        assert_ok(ctx, nbl__op_run(ctx, op, *impl, &a, scratch, sizeof scratch));
        assert_memory_equal(y[0], table + (rows - 1) * COLUMNS, sizeof y[0]);
        assert_memory_equal(y[1], table + 5 * COLUMNS, sizeof y[1]);
    }
    munmap(table, (size_t)bytes);
}

/* ---- the table of hazards ---- */

#define MATCHES(family, line) assert_matches(*state, family, line);
#define REFUSED(family, line, ...)                                                                           \
    assert_refused(*state, family, line, (const char *const[]){__VA_ARGS__, NULL});
#define HAZARD(sentence, ids, ...)                                                                           \
    static void sentence(void **state)                                                                       \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }
#define HAZARD_IS(sentence, ids)
#include "ops/hazards_table.inc"
#undef HAZARD
#undef HAZARD_IS

static const struct {
    const char *name;
    CMUnitTestFunction test;
} hazard_rows[] = {
#define HAZARD(sentence, ids, ...) {#sentence " (HAZARDS " ids ")", sentence},
#define HAZARD_IS(sentence, ids) {#sentence " (HAZARDS " ids ")", sentence},
#include "ops/hazards_table.inc"
#undef HAZARD
#undef HAZARD_IS
};

int main(void)
{
    enum { MAX = 128 };
    struct CMUnitTest tests[MAX] = {
        cmocka_unit_test(every_cell_of_linear_matches_or_is_refused),
        cmocka_unit_test(every_cell_of_linear_group_matches_or_is_refused),
        cmocka_unit_test(every_cell_of_mlp_matches_or_is_refused),
        cmocka_unit_test(every_cell_of_expert_mlp_matches_or_is_refused),
    };
    size_t count = 3, rows = sizeof hazard_rows / sizeof *hazard_rows;
    if (count + rows > MAX) return 1;
    for (size_t i = 0; i < rows; i++)
        tests[count++] = (struct CMUnitTest){.name = hazard_rows[i].name, .test_func = hazard_rows[i].test};
    return _cmocka_run_group_tests("hazards", tests, count, open_contexts, close_contexts);
}
