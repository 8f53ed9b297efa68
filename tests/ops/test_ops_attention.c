/* test_ops_attention.c - attention and attention_decode: the tiles against the reference over odd shapes,
 * the reference's gradients against differences, bits that depend on neither threads nor neighbours, NaN
 * that stays where it belongs, and what is refused. */
#include <math.h>

#include "support.h"

#include "base/philox.h"
#include "ops/attention/attention.h"
#include "ops/families.h"

/* ---- problems ---- */

typedef struct shape {
    int64_t heads, key_heads, size;
    int lengths[6]; /* of sequences; -1 at the end */
    bool open;      /* not causal */
    int64_t window;
    float softcap;
    bool sinks;
} shape;

enum { Q, K, V, DOUT, SINKS, OUT, LSE, DQ, DK, DV, DSINKS, TENSORS };
static const char *const names[] = {"q", "k", "v", "dout", "sinks", "out", "lse", "dq", "dk", "dv", "dsinks"};

typedef struct problem {
    nbl__attention a;
    int32_t ends[8];
    void *memory[TENSORS];
} problem;

static nbl_tensor *tensor_of(problem *p, int which)
{
    nbl_tensor *all[] = {&p->a.q,   &p->a.k,  &p->a.v,  &p->a.dout, &p->a.sinks, &p->a.out,
                         &p->a.lse, &p->a.dq, &p->a.dk, &p->a.dv,   &p->a.dsinks};
    return all[which];
}

static float random_value(uint32_t stream, int64_t i)
{
    uint32_t words[4];
    nbl__philox((uint32_t[4]){(uint32_t)i, stream, 0, 0}, (uint32_t[2]){5, 6}, words);
    return (nbl__uniform(words[0]) + nbl__uniform(words[1]) + nbl__uniform(words[2]) - 1.5f) * 2;
}

static void set_value(const nbl_tensor *t, int64_t i, double value)
{
    float single = (float)value;
    if (t->dtype == NBL_DTYPE_F64) ((double *)t->data)[i] = value;
    else
        nbl__from_f32(NBL_ISA_SCALAR, &single, t->dtype, (char *)t->data + (size_t)i * nbl__size_of(t->dtype),
                      1);
}

static double value_of(const nbl_tensor *t, int64_t i)
{
    float single;
    if (t->dtype == NBL_DTYPE_F64) return ((const double *)t->data)[i];
    nbl__to_f32(NBL_ISA_SCALAR, t->dtype, (const char *)t->data + (size_t)i * nbl__size_of(t->dtype), &single,
                1);
    return (double)single;
}

/* Memory of exactly the size, so that a sanitizer sees a step too far. */
static void give(problem *p, int which)
{
    nbl_tensor *t = tensor_of(p, which);
    size_t bytes = (size_t)nbl__tensor_elements(t) * (t->dtype == NBL_DTYPE_F64 ? 8 : nbl__size_of(t->dtype));
    p->memory[which] = t->data = malloc(bytes ? bytes : 1);
    memset(t->data, 0xff, bytes);
}

static void fill(problem *p, int which, nbl_dtype dtype, int rank, const int64_t *dims)
{
    nbl_tensor *t = tensor_of(p, which);
    *t = (nbl_tensor){.dtype = dtype, .rank = rank};
    memcpy(t->shape, dims, (size_t)rank * sizeof *dims);
    give(p, which);
    for (int64_t i = 0; i < nbl__tensor_elements(t); i++)
        set_value(t, i, (double)random_value((uint32_t)which, i));
}

static void make_inputs(problem *p, const shape *z, nbl_dtype dtype)
{
    *p = (problem){0};
    int count = 0;
    for (; z->lengths[count] >= 0; count++) p->ends[count + 1] = p->ends[count] + z->lengths[count];
    int64_t tokens = p->ends[count], q[3] = {tokens, z->heads, z->size},
            k[3] = {tokens, z->key_heads, z->size};
    fill(p, Q, dtype, 3, q);
    fill(p, K, dtype, 3, k);
    fill(p, V, dtype, 3, k);
    fill(p, DOUT, dtype, 3, q);
    if (z->sinks) fill(p, SINKS, dtype, 1, &z->heads);
    p->a.dtype = dtype;
    p->a.cu_seqlens = (nbl_tensor){.dtype = NBL_DTYPE_I32, .rank = 1, .shape = {count + 1}, .data = p->ends};
    p->a.causal = !z->open;
    p->a.window = z->window;
    p->a.softcap = z->softcap;
}

static void release(problem *p)
{
    for (int i = 0; i < TENSORS; i++) free(p->memory[i]);
}

static void run_op(nbl_context *ctx, const nbl__op *op, const void *args, const char *force)
{
    const nbl__impl *impl;
    assert_ok(ctx, nbl__op_choose(ctx, op, args, force, &impl));
    size_t bytes = nbl__op_scratch(ctx, impl, args);
    void *scratch = aligned_alloc(64, bytes + 64 - bytes % 64);
    memset(scratch, 0xff, bytes); /* NaN: nothing may be read before it is written */
    assert_ok(ctx, nbl__op_run(ctx, op, impl, args, scratch, bytes));
    free(scratch);
}

/* Forward and backward with fresh outputs; `force` "ref" or NULL. */
static void run_both(nbl_context *ctx, problem *p, const char *force)
{
    for (int i = OUT; i < TENSORS; i++) {
        free(p->memory[i]);
        p->memory[i] = tensor_of(p, i)->data = NULL;
    }
    assert_ok(ctx, nbl__attention_family.forward.infer(ctx, &p->a));
    assert_ok(ctx, nbl__attention_family.backward.infer(ctx, &p->a));
    for (int i = OUT; i < TENSORS; i++)
        if (tensor_of(p, i)->rank > 0) give(p, i);
    run_op(ctx, &nbl__attention_family.forward, &p->a, force);
    run_op(ctx, &nbl__attention_family.backward, &p->a, force);
}

static const char *const levels[] = {"avx2", "avx512", "amx"};

/* ---- the tiles against the reference ---- */

static double distance(const nbl_tensor *got, const nbl_tensor *expected)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < nbl__tensor_elements(got); i++) {
        double x = value_of(got, i), y = value_of(expected, i);
        difference += (x - y) * (x - y);
        size += y * y;
    }
    return size > 0 ? sqrt(difference / size) : sqrt(difference);
}

static void the_tiles_agree_with_the_reference(void **state)
{
    (void)state;
    static const shape shapes[] = {
        {4, 2, 64, {130, 1, 0, 65, -1}, false, 0, 0, false},
        {3, 1, 64, {200, -1}, false, 0, 0, false},
        {2, 1, 128, {100, 3, -1}, false, 37, 0, true},
        {3, 3, 8, {70, 64, -1}, false, 0, 20, true},
        {2, 2, 80, {129, -1}, true, 0, 0, false},
        {2, 1, 40, {140, 9, -1}, true, 21, 5, false},
        {2, 2, 1, {33, 2, -1}, false, 0, 0, false},
        {1, 1, 33, {67, -1}, false, 1, 0, true},
        {2, 1, 256, {66, -1}, false, 64, 30, false},
        {2, 1, 7, {300, -1}, false, 100, 0, false},
        {2, 2, 16, {0, 0, -1}, false, 0, 0, true},
    };
    static const struct {
        nbl_dtype dtype;
        double bound;
    } kinds[] = {{NBL_DTYPE_F32, 1e-5}, {NBL_DTYPE_F16, 1e-3}, {NBL_DTYPE_BF16, 8e-3}};
    for (size_t z = 0; z < sizeof shapes / sizeof *shapes; z++)
        for (int kind = 0; kind < 3; kind++) {
            problem p, expected;
            make_inputs(&expected, &shapes[z], kinds[kind].dtype);
            nbl_context *ctx = context_of("scalar", 1);
            run_both(ctx, &expected, "ref");
            nbl_context_destroy(ctx);
            make_inputs(&p, &shapes[z], kinds[kind].dtype);
            for (int level = 0; level < 3; level++) {
                ctx = context_of(levels[level], 3);
                run_both(ctx, &p, NULL);
                for (int i = OUT; i < TENSORS; i++) {
                    if (tensor_of(&p, i)->rank == 0) continue;
                    double error = distance(tensor_of(&p, i), tensor_of(&expected, i));
                    if (!(error <= kinds[kind].bound))
                        fail_msg("shape %zu, %s, %s: %s is off by %g", z, nbl_dtype_name(kinds[kind].dtype),
                                 levels[level], names[i], error);
                }
                nbl_context_destroy(ctx);
            }
            release(&p);
            release(&expected);
        }
}

/* ---- the reference against differences ---- */

static double weighted_output(nbl_context *ctx, problem *p)
{
    double sum = 0;
    run_op(ctx, &nbl__attention_family.forward, &p->a, "ref");
    for (int64_t i = 0; i < nbl__tensor_elements(&p->a.out); i++)
        sum += value_of(&p->a.out, i) * value_of(&p->a.dout, i);
    return sum;
}

static void the_gradients_are_those_of_the_forward_pass(void **state)
{
    (void)state;
    static const shape shapes[] = {
        {4, 2, 3, {5, 1, 4, -1}, false, 0, 0, true},
        {2, 1, 4, {7, -1}, false, 3, 2, true},
        {2, 2, 3, {6, 2, -1}, true, 2, 0, false},
    };
    nbl_context *ctx = new_context_with(1);
    for (size_t z = 0; z < sizeof shapes / sizeof *shapes; z++) {
        problem p;
        make_inputs(&p, &shapes[z], NBL_DTYPE_F32);
        run_both(ctx, &p, "ref");
        for (int i = 0; i < TENSORS; i++) { /* the same in f64 */
            nbl_tensor *t = tensor_of(&p, i);
            if (t->rank == 0) continue;
            void *before = p.memory[i];
            nbl_tensor single = *t;
            t->dtype = NBL_DTYPE_F64;
            give(&p, i);
            for (int64_t k = 0; k < nbl__tensor_elements(t); k++) set_value(t, k, value_of(&single, k));
            free(before);
        }
        run_op(ctx, &nbl__attention_family.backward, &p.a, "ref");
        static const int pairs[][2] = {{Q, DQ}, {K, DK}, {V, DV}, {SINKS, DSINKS}};
        for (int pair = 0; pair < 4; pair++) {
            nbl_tensor *x = tensor_of(&p, pairs[pair][0]), *dx = tensor_of(&p, pairs[pair][1]);
            for (int64_t i = 0; x->rank > 0 && i < nbl__tensor_elements(x); i++) {
                double kept = value_of(x, i), step = 1e-5;
                set_value(x, i, kept + step);
                double above = weighted_output(ctx, &p);
                set_value(x, i, kept - step);
                double slope = (above - weighted_output(ctx, &p)) / (2 * step);
                set_value(x, i, kept);
                if (!(fabs(slope - value_of(dx, i)) < 1e-7 * (1 + fabs(slope))))
                    fail_msg("shape %zu: %s[%d] is %g, not %g", z, names[pairs[pair][1]], (int)i,
                             value_of(dx, i), slope);
            }
        }
        release(&p);
    }
    nbl_context_destroy(ctx);
}

/* ---- bits ---- */

static void assert_same_bits(problem *a, problem *b, int which)
{
    nbl_tensor *x = tensor_of(a, which), *y = tensor_of(b, which);
    if (x->rank == 0) return;
    size_t bytes = (size_t)nbl__tensor_elements(x) * nbl__size_of(x->dtype);
    if (memcmp(x->data, y->data, bytes) != 0) fail_msg("%s differs", names[which]);
}

static void any_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    static const shape shapes[] = {{6, 2, 64, {300, 1, 140, -1}, false, 0, 0, true},
                                   {4, 2, 32, {260, 40, -1}, false, 90, 10, false},
                                   {2, 2, 24, {200, -1}, true, 0, 0, false}};
    static const nbl_dtype dtypes[] = {NBL_DTYPE_F32, NBL_DTYPE_BF16};
    for (int level = 0; level < 3; level++)
        for (int z = 0; z < 3; z++)
            for (int d = 0; d < 2; d++) {
                problem one, more;
                make_inputs(&one, &shapes[z], dtypes[d]);
                make_inputs(&more, &shapes[z], dtypes[d]);
                nbl_context *ctx = context_of(levels[level], 1);
                run_both(ctx, &one, NULL);
                nbl_context_destroy(ctx);
                for (int threads = 2; threads <= 16; threads = threads * 2 + 1) {
                    ctx = context_of(levels[level], threads);
                    run_both(ctx, &more, NULL);
                    for (int i = OUT; i < TENSORS; i++) assert_same_bits(&one, &more, i);
                    nbl_context_destroy(ctx);
                }
                release(&one);
                release(&more);
            }
}

/* Rows `from` … of tensor `which` in `all` are those of `alone`. */
static void assert_same_rows(problem *all, problem *alone, int which, int64_t from)
{
    nbl_tensor *x = tensor_of(all, which), *y = tensor_of(alone, which);
    size_t row = (size_t)(nbl__tensor_elements(y) / y->shape[0]) * nbl__size_of(y->dtype);
    if (memcmp((char *)x->data + (size_t)from * row, y->data, (size_t)y->shape[0] * row) != 0)
        fail_msg("%s of the sequence at %d differs", names[which], (int)from);
}

static void a_sequence_has_the_same_bits_alone_and_in_a_pack(void **state)
{
    (void)state;
    const shape packed = {4, 2, 48, {77, 0, 150, 1, 5, -1}, false, 70, 0, true};
    static const nbl_dtype dtypes[] = {NBL_DTYPE_F32, NBL_DTYPE_BF16};
    for (int level = 0; level < 3; level++)
        for (int d = 0; d < 2; d++) {
            nbl_context *ctx = context_of(levels[level], 2);
            problem all;
            make_inputs(&all, &packed, dtypes[d]);
            run_both(ctx, &all, NULL);
            for (int s = 0; packed.lengths[s] >= 0; s++) {
                if (packed.lengths[s] == 0) continue;
                shape single = packed;
                single.lengths[0] = packed.lengths[s];
                single.lengths[1] = -1;
                problem alone;
                make_inputs(&alone, &single, dtypes[d]);
                for (int i = Q; i <= DOUT; i++) {
                    nbl_tensor *to = tensor_of(&alone, i), *from = tensor_of(&all, i);
                    int64_t n = nbl__tensor_elements(to), row = n / to->shape[0];
                    for (int64_t k = 0; k < n; k++) set_value(to, k, value_of(from, all.ends[s] * row + k));
                }
                run_both(ctx, &alone, NULL);
                for (int i = OUT; i < DSINKS; i++) assert_same_rows(&all, &alone, i, all.ends[s]);
                release(&alone);
            }
            release(&all);
            nbl_context_destroy(ctx);
        }
}

/* ---- NaN ---- */

static void a_nan_reaches_what_it_concerns_and_nothing_else(void **state)
{
    (void)state;
    static const shape shapes[] = {{2, 1, 16, {90, 70, -1}, false, 0, 0, false},
                                   {2, 2, 24, {100, 30, -1}, false, 20, 9, true},
                                   {2, 1, 16, {80, 20, -1}, true, 30, 0, false}};
    static const nbl_dtype dtypes[] = {NBL_DTYPE_F32, NBL_DTYPE_BF16};
    for (int z = 0; z < 3; z++)
        for (int which = Q; which <= DOUT; which++)
            for (int d = 0; d < 2; d++) {
                problem p, expected;
                make_inputs(&p, &shapes[z], dtypes[d]);
                make_inputs(&expected, &shapes[z], dtypes[d]);
                int64_t row = nbl__tensor_elements(tensor_of(&p, which)) / p.a.q.shape[0];
                set_value(tensor_of(&p, which), 41 * row + 5, (double)NAN);
                set_value(tensor_of(&expected, which), 41 * row + 5, (double)NAN);
                nbl_context *ctx = context_of("scalar", 1);
                run_both(ctx, &expected, "ref");
                nbl_context_destroy(ctx);
                for (int level = 0; level < 3; level++) {
                    ctx = context_of(levels[level], 2);
                    run_both(ctx, &p, NULL);
                    nbl_context_destroy(ctx);
                    for (int i = OUT; i < DSINKS; i++)
                        for (int64_t k = 0; k < nbl__tensor_elements(tensor_of(&p, i)); k++) {
                            double got = value_of(tensor_of(&p, i), k);
                            if (isnan(got) != isnan(value_of(tensor_of(&expected, i), k)))
                                fail_msg("%s, shape %d, NaN in %s: %s[%d] is %g", levels[level], z,
                                         names[which], names[i], (int)k, got);
                        }
                }
                release(&p);
                release(&expected);
            }
}

static void a_gradient_without_memory_is_not_made_and_the_others_do_not_change(void **state)
{
    (void)state;
    const shape z = {4, 2, 32, {100, 30, -1}, false, 0, 0, true};
    nbl_context *ctx = new_context();
    problem all, some;
    make_inputs(&all, &z, NBL_DTYPE_F32);
    run_both(ctx, &all, NULL);
    for (int wanted = DQ; wanted <= DSINKS; wanted++) {
        make_inputs(&some, &z, NBL_DTYPE_F32);
        run_both(ctx, &some, NULL);
        for (int i = DQ; i <= DSINKS; i++)
            if (i != wanted) tensor_of(&some, i)->data = NULL;
        nbl_tensor *t = tensor_of(&some, wanted);
        memset(t->data, 0xff, (size_t)nbl__tensor_elements(t) * 4);
        run_op(ctx, &nbl__attention_family.backward, &some.a, NULL);
        assert_same_bits(&all, &some, wanted);
        release(&some);
    }
    double before = value_of(&all.a.dsinks, 1);
    all.a.accumulate = true;
    run_op(ctx, &nbl__attention_family.backward, &all.a, NULL);
    assert_true(fabs(value_of(&all.a.dsinks, 1) - 2 * before) <= 1e-6 * fabs(before));
    release(&all);
    nbl_context_destroy(ctx);
}

/* ---- decode ---- */

typedef struct cache {
    nbl__attention_decode d;
    int32_t lengths[4];
    void *memory[5];
} cache;

static nbl_tensor random_tensor(cache *c, int at, nbl_dtype dtype, int rank, const int64_t *dims)
{
    nbl_tensor t = {.dtype = dtype, .rank = rank};
    memcpy(t.shape, dims, (size_t)rank * sizeof *dims);
    c->memory[at] = t.data = malloc((size_t)nbl__tensor_elements(&t) * nbl__size_of(dtype));
    for (int64_t i = 0; i < nbl__tensor_elements(&t); i++)
        set_value(&t, i, (double)random_value(20 + (uint32_t)at, i));
    return t;
}

static void make_cache(cache *c, nbl_dtype dtype, nbl_dtype stored, int64_t size, int64_t window)
{
    const int64_t kv[4] = {4, 1300, 2, size}, q[3] = {4, 6, size}, heads = 6;
    *c = (cache){.lengths = {1, 1300, 513, 37}};
    c->d = (nbl__attention_decode){
        .dtype = dtype, .causal = true, .window = window, .softcap = window ? 9 : 0};
    c->d.q = random_tensor(c, 0, dtype, 3, q);
    c->d.k = random_tensor(c, 1, stored, 4, kv);
    c->d.v = random_tensor(c, 2, stored, 4, kv);
    if (window) c->d.sinks = random_tensor(c, 3, NBL_DTYPE_F16, 1, &heads);
    c->d.out = random_tensor(c, 4, dtype, 3, q);
    c->d.lengths = (nbl_tensor){.dtype = NBL_DTYPE_I32, .rank = 1, .shape = {4}, .data = c->lengths};
    for (int64_t b = 0; b < 4; b++)
        for (int64_t j = 0; j < 1300; j++) {
            bool seen = j < c->lengths[b] && (window == 0 || j >= c->lengths[b] - window);
            for (int64_t i = 0; i < 2 * size && !seen; i++) {
                set_value(&c->d.k, (b * 1300 + j) * 2 * size + i, (double)NAN);
                set_value(&c->d.v, (b * 1300 + j) * 2 * size + i, (double)NAN);
            }
        }
}

static void free_cache(cache *c)
{
    for (int i = 0; i < 5; i++) free(c->memory[i]);
}

static void decode_reads_the_valid_cache_only_by_its_own_dtype(void **state)
{
    (void)state;
    static const nbl_dtype dtypes[] = {NBL_DTYPE_F32, NBL_DTYPE_F16, NBL_DTYPE_BF16};
    static const double bounds[] = {2e-6, 1e-3, 8e-3};
    static const int64_t windows[] = {0, 5, 700};
    const nbl__op *op = &nbl__attention_decode_family.forward;
    for (int round = 0; round < 27; round++) {
        nbl_dtype dtype = dtypes[round % 3], stored = dtypes[round / 3 % 3];
        int64_t window = windows[round / 9], size = round % 2 ? 64 : 20;
        cache c;
        make_cache(&c, dtype, stored, size, window);
        nbl_context *ctx = context_of("scalar", 1);
        assert_ok(ctx, op->infer(ctx, &c.d));
        run_op(ctx, op, &c.d, "ref");
        nbl_context_destroy(ctx);
        nbl_tensor expected = c.d.out;
        size_t bytes = (size_t)nbl__tensor_elements(&expected) * nbl__size_of(dtype);
        c.d.out.data = malloc(bytes);
        for (int run = 0; run < 4; run++) {
            ctx = context_of(run < 2 ? "avx2" : "avx512", run % 2 ? 5 : 1);
            memset(c.d.out.data, 0xff, bytes);
            run_op(ctx, op, &c.d, NULL);
            double error = distance(&c.d.out, &expected);
            if (!(error <= bounds[round % 3])) fail_msg("round %d, run %d: off by %g", round, run, error);
            nbl_context_destroy(ctx);
        }
        free(c.d.out.data);
        free_cache(&c);
    }
}

/* ---- refusals ---- */

static void assert_message(nbl_context *ctx, const char *const *words)
{
    for (; *words; words++)
        if (!strstr(nbl_error_message(ctx), *words))
            fail_msg("no \"%s\" in: %s", *words, nbl_error_message(ctx));
}

static void mismatches_name_operator_tensor_dtypes_and_shapes(void **state)
{
    (void)state;
    const shape z = {4, 2, 8, {5, 4, -1}, false, 0, 0, true};
    nbl_context *ctx = new_context();
#define REFUSED(change, status, ...)                                                                         \
    do {                                                                                                     \
        problem p;                                                                                           \
        make_inputs(&p, &z, NBL_DTYPE_F32);                                                                  \
        assert_ok(ctx, nbl__attention_family.forward.infer(ctx, &p.a));                                      \
        change;                                                                                              \
        assert_int_equal(nbl__attention_family.backward.infer(ctx, &p.a), status);                           \
        assert_message(ctx, (const char *const[]){"attention_backward", __VA_ARGS__, NULL});                 \
        release(&p);                                                                                         \
    } while (0)
    REFUSED(p.a.q.dtype = NBL_DTYPE_BF16, NBL_ERROR_DTYPE, "q", "bf16", "f32", "[9, 4, 8]");
    REFUSED(p.a.v.dtype = NBL_DTYPE_F16, NBL_ERROR_DTYPE, "v", "f16", "f32");
    REFUSED(p.a.dout.dtype = NBL_DTYPE_F16, NBL_ERROR_DTYPE, "dout", "f16", "f32");
    REFUSED(p.a.dtype = NBL_DTYPE_I8, NBL_ERROR_DTYPE, "i8");
    REFUSED(p.a.q.rank = 2, NBL_ERROR_SHAPE, "q", "[9, 4]");
    REFUSED(p.a.k.shape[1] = p.a.v.shape[1] = 3, NBL_ERROR_SHAPE, "4 heads", "3", "k");
    REFUSED(p.a.k.shape[1] = p.a.v.shape[1] = 0, NBL_ERROR_SHAPE, "0");
    REFUSED(p.a.v.shape[2] = 4, NBL_ERROR_SHAPE, "v", "[9, 2, 4]", "[9, 2, 8]");
    REFUSED(p.a.k.shape[0] = 8, NBL_ERROR_SHAPE, "k", "[8, 2, 8]", "[9, 2, 8]");
    REFUSED(p.a.dout.shape[0] = 8, NBL_ERROR_SHAPE, "dout", "[8, 4, 8]");
    REFUSED(p.a.sinks.shape[0] = 3, NBL_ERROR_SHAPE, "sinks", "[3]", "[4]");
    REFUSED(p.a.sinks.dtype = NBL_DTYPE_I32, NBL_ERROR_DTYPE, "sinks", "i32");
    REFUSED(p.a.cu_seqlens.dtype = NBL_DTYPE_F32, NBL_ERROR_DTYPE, "cu_seqlens", "f32", "i32");
    REFUSED(p.a.cu_seqlens.shape[0] = 0, NBL_ERROR_SHAPE, "cu_seqlens");
    REFUSED(p.a.scale = INFINITY, NBL_ERROR_ARGUMENT, "scale");
    REFUSED(p.a.softcap = -1, NBL_ERROR_ARGUMENT, "softcap", "-1");
    REFUSED(p.a.window = -2, NBL_ERROR_ARGUMENT, "window", "-2");
#undef REFUSED
    nbl_context_destroy(ctx);
}

static void sequences_that_do_not_add_up_are_refused_by_value(void **state)
{
    (void)state;
    static const struct {
        int32_t ends[4];
        const char *where, *value;
    } wrong[] = {{{1, 4, 6, 9}, "cu_seqlens[0]", "1"},
                 {{0, 6, 4, 9}, "cu_seqlens[2]", "4"},
                 {{0, 4, 6, 8}, "cu_seqlens[3]", "8"},
                 {{0, 4, 6, 10}, "cu_seqlens[3]", "10"},
                 {{0, -4, 6, 9}, "cu_seqlens[1]", "-4"}};
    const shape z = {2, 1, 8, {4, 2, 3, -1}, false, 0, 0, false};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        for (int reference = 0; reference < 2; reference++) {
            nbl_context *ctx = new_context();
            problem p;
            make_inputs(&p, &z, NBL_DTYPE_F32);
            run_both(ctx, &p, NULL);
            memcpy(p.ends, wrong[i].ends, sizeof wrong[i].ends);
            const nbl__op *ops[] = {&nbl__attention_family.forward, &nbl__attention_family.backward};
            for (int o = 0; o < 2; o++) {
                const nbl__impl *impl;
                assert_ok(ctx, nbl__op_choose(ctx, ops[o], &p.a, reference ? "ref" : NULL, &impl));
                size_t bytes = nbl__op_scratch(ctx, impl, &p.a);
                void *scratch = aligned_alloc(64, bytes + 64 - bytes % 64);
                assert_int_equal(nbl__op_run(ctx, ops[o], impl, &p.a, scratch, bytes), NBL_ERROR_ARGUMENT);
                assert_message(ctx,
                               (const char *const[]){ops[o]->name, wrong[i].where, wrong[i].value, NULL});
                free(scratch);
            }
            release(&p);
            nbl_context_destroy(ctx);
        }
}

static void decode_refuses_lengths_and_dtypes_by_name(void **state)
{
    (void)state;
    const nbl__op *op = &nbl__attention_decode_family.forward;
    nbl_context *ctx = new_context();
    cache c;
    make_cache(&c, NBL_DTYPE_F32, NBL_DTYPE_BF16, 16, 0);
    assert_ok(ctx, op->infer(ctx, &c.d));
    static const int32_t bad[] = {0, -3, 1301};
    static const char *const shown[] = {"0", "-3", "1301"};
    for (int i = 0; i < 3; i++) {
        const nbl__impl *impl;
        c.lengths[2] = bad[i];
        assert_ok(ctx, nbl__op_choose(ctx, op, &c.d, NULL, &impl));
        size_t bytes = nbl__op_scratch(ctx, impl, &c.d);
        void *scratch = aligned_alloc(64, bytes + 64 - bytes % 64);
        assert_int_equal(nbl__op_run(ctx, op, impl, &c.d, scratch, bytes), NBL_ERROR_ARGUMENT);
        assert_message(ctx, (const char *const[]){"attention_decode", "lengths[2]", shown[i], "1300", NULL});
        free(scratch);
    }
    c.d.v.dtype = NBL_DTYPE_F16;
    assert_int_equal(op->infer(ctx, &c.d), NBL_ERROR_DTYPE);
    assert_message(ctx, (const char *const[]){"v", "f16", "k", "bf16", "[4, 1300, 2, 16]", NULL});
    c.d.v.dtype = NBL_DTYPE_BF16;
    c.d.v.shape[1] = 1299;
    assert_int_equal(op->infer(ctx, &c.d), NBL_ERROR_SHAPE);
    c.d.v.shape[1] = 1300;
    c.d.causal = false;
    assert_int_equal(op->infer(ctx, &c.d), NBL_ERROR_ARGUMENT);
    assert_message(ctx, (const char *const[]){"causal", NULL});
    free_cache(&c);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tiles_agree_with_the_reference),
        cmocka_unit_test(the_gradients_are_those_of_the_forward_pass),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(a_sequence_has_the_same_bits_alone_and_in_a_pack),
        cmocka_unit_test(a_nan_reaches_what_it_concerns_and_nothing_else),
        cmocka_unit_test(a_gradient_without_memory_is_not_made_and_the_others_do_not_change),
        cmocka_unit_test(decode_reads_the_valid_cache_only_by_its_own_dtype),
        cmocka_unit_test(mismatches_name_operator_tensor_dtypes_and_shapes),
        cmocka_unit_test(sequences_that_do_not_add_up_are_refused_by_value),
        cmocka_unit_test(decode_refuses_lengths_and_dtypes_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
