/* ops_linear_support.h - what the tests of the linear layers share: random tensors and weights in every format, calls
 * of any family by its slots, and comparisons of two implementations. */
#ifndef OPS_LINEAR_SUPPORT_H
#define OPS_LINEAR_SUPPORT_H

#include <math.h>

#include "support.h"

#include "base/philox.h"
#include "ops/families.h"
#include "ops/linear/linear.h"
#include "quant/quant.h"

#define UNUSED __attribute__((unused))
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static const nbl_dtype dtypes[] = {NBL_DTYPE_F32, NBL_DTYPE_F16, NBL_DTYPE_BF16};

/* ---- memory of a test case: freed together ---- */

typedef struct pool {
    void *pieces[256];
    int count;
    uint32_t stream; /* of the next random tensor */
} pool;

UNUSED static void *pool_bytes(pool *p, int64_t bytes)
{
    void *piece = aligned_alloc(64, (size_t)(bytes + 127) / 64 * 64); /* never NULL, also when it is empty */
    assert_true(p->count < COUNT(p->pieces));
    return p->pieces[p->count++] = piece;
}

UNUSED static void pool_free(pool *p)
{
    while (p->count) free(p->pieces[--p->count]);
}

/* ---- random tensors and weights ---- */

UNUSED static uint32_t random_word(uint32_t stream, uint32_t i)
{
    uint32_t words[4];
    nbl__philox((uint32_t[4]){i, stream, 0, 0}, (uint32_t[2]){11, 22}, words);
    return words[0];
}

UNUSED static float random_value(uint32_t stream, uint32_t i)
{
    return nbl__uniform(random_word(stream, i)) * 2 - 1;
}

/* Values in offset ± scale. */
UNUSED static nbl_tensor random_tensor(pool *p, nbl_dtype dtype, int rank, const int64_t *shape, float scale,
                                       float offset)
{
    nbl_tensor t = {.dtype = dtype, .rank = rank};
    memcpy(t.shape, shape, (size_t)rank * sizeof *shape);
    int64_t n = nbl__tensor_elements(&t);
    t.data = pool_bytes(p, n * 4);
    uint32_t stream = p->stream++;
    for (int64_t i = 0; i < n; i++) {
        float value = random_value(stream, (uint32_t)i) * scale + offset;
        nbl__from_f32(NBL_ISA_SCALAR, &value, dtype, (uint8_t *)t.data + (size_t)i * nbl__size_of(dtype), 1);
    }
    return t;
}

UNUSED static nbl_tensor random_matrix(pool *p, nbl_dtype dtype, int64_t rows, int64_t columns, float scale)
{
    return random_tensor(p, dtype, 2, (int64_t[]){rows, columns}, scale, 0);
}

UNUSED static nbl_tensor random_vector(pool *p, nbl_dtype dtype, int64_t n, float scale, float offset)
{
    return random_tensor(p, dtype, 1, &n, scale, offset);
}

typedef enum store { DENSE_F32, DENSE_F16, DENSE_BF16, NF4, NF4_NESTED, FP4, INT8, MXFP4, STORES } store;

/* [out, in]; in is a multiple of 32 for MXFP4. */
UNUSED static nbl_weight random_weight(pool *p, store kind, int64_t out, int64_t in)
{
    static const nbl_format formats[] = {NBL_FORMAT_DENSE, NBL_FORMAT_DENSE, NBL_FORMAT_DENSE,
                                         NBL_FORMAT_NF4,   NBL_FORMAT_NF4,   NBL_FORMAT_FP4,
                                         NBL_FORMAT_INT8,  NBL_FORMAT_MXFP4};
    int64_t n = out * in, blocks = (n + 63) / 64;
    nbl_weight w = {.format = formats[kind], .dtype = NBL_DTYPE_F16, .rank = 2, .shape = {out, in}};
    nbl_tensor dense = random_matrix(p, kind <= DENSE_BF16 ? dtypes[kind] : NBL_DTYPE_F32, out, in, 0.1f);
    if (kind <= DENSE_BF16) {
        w.dtype = dense.dtype;
        w.data = dense.data;
        return w;
    }
    uint8_t *codes = pool_bytes(p, n), *scale_codes = pool_bytes(p, n);
    float *scales = pool_bytes(p, 4 * (n + out)), *nested = pool_bytes(p, 4 * blocks);
    w.data = codes;
    w.scales = scales;
    if (kind == INT8) {
        nbl__int8_encode(NBL_ISA_SCALAR, NBL_DTYPE_F32, dense.data, out, in, (int8_t *)codes, scales);
    } else if (kind == MXFP4) {
        nbl__mxfp4_encode(NBL_ISA_SCALAR, NBL_DTYPE_F32, dense.data, 1, n, codes, scale_codes);
        w.block = 32;
        w.scale_codes = scale_codes;
        w.scales = NULL;
    } else {
        w.block = 64;
        nbl__fourbit_encode(NBL_ISA_SCALAR, w.format, 64, NBL_DTYPE_F32, dense.data, n, codes, scales);
    }
    if (kind == NF4_NESTED) {
        w.nested_offset = nbl__nested_offset(scales, blocks);
        nbl__nested_encode(NBL_ISA_SCALAR, false, scales, blocks, w.nested_offset, scale_codes, nested);
        w.scale_codes = scale_codes;
        w.nested_scales = nested;
        w.nested_table = nbl__dynamic_map_signed;
        w.nested_block = NBL_NESTED_BLOCK;
        w.scales = NULL;
    }
    return w;
}

/* ---- calls ---- */

UNUSED static bool is_result(const nbl__slot *slot, bool backward)
{
    if (backward) return slot->role == NBL_ROLE_GRADIENT;
    return slot->role == NBL_ROLE_OUTPUT || slot->role == NBL_ROLE_SAVED;
}

/* Infers and gives every result memory: NaN, or `start` in each f32 gradient. */
UNUSED static void give_results(nbl_context *ctx, pool *p, const nbl__family *family, void *arguments,
                                bool backward, const float *start)
{
    assert_ok(ctx, (backward ? family->backward : family->forward).infer(ctx, arguments));
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        nbl_tensor *t = nbl__slot_tensor(slot, arguments);
        if (!is_result(slot, backward)) continue;
        t->data = NULL;
        if (t->rank == 0) continue;
        int64_t n = nbl__tensor_elements(t);
        t->data = pool_bytes(p, n * 4);
        memset(t->data, 0xff, (size_t)n * 4);
        for (int64_t i = 0; start && t->dtype == NBL_DTYPE_F32 && i < n; i++) ((float *)t->data)[i] = *start;
    }
}

UNUSED static void run_given(nbl_context *ctx, const nbl__op *op, const void *arguments, const char *force)
{
    const nbl__impl *impl;
    assert_ok(ctx, nbl__op_choose(ctx, op, arguments, force, &impl));
    size_t bytes = nbl__op_scratch(ctx, impl, arguments);
    void *scratch = aligned_alloc(64, bytes + 64 - bytes % 64);
    memset(scratch, 0xff, bytes); /* NaN: nothing may be read before it is written */
    assert_ok(ctx, nbl__op_run(ctx, op, impl, arguments, scratch, bytes));
    free(scratch);
}

UNUSED static void run_new(nbl_context *ctx, pool *p, const nbl__family *family, void *arguments,
                           bool backward, const char *force)
{
    give_results(ctx, p, family, arguments, backward, NULL);
    run_given(ctx, backward ? &family->backward : &family->forward, arguments, force);
}

/* ---- comparisons ---- */

UNUSED static double value_at(const nbl_tensor *t, int64_t i)
{
    float value;
    nbl__to_f32(NBL_ISA_SCALAR, t->dtype, (const uint8_t *)t->data + (size_t)i * nbl__size_of(t->dtype),
                &value, 1);
    return (double)value;
}

/* Norm of the difference over that of `want`; values that are not finite must be so in both. */
UNUSED static double distance(const nbl_tensor *got, const nbl_tensor *want, const char *what)
{
    double error = 0, size = 0;
    assert_int_equal(got->dtype, want->dtype);
    assert_int_equal(nbl__tensor_elements(got), nbl__tensor_elements(want));
    for (int64_t i = 0; i < nbl__tensor_elements(got); i++) {
        double g = value_at(got, i), w = value_at(want, i);
        if (isfinite(g) != isfinite(w)) fail_msg("%s[%d]: %g, not %g", what, (int)i, g, w);
        if (!isfinite(w)) continue;
        error += (g - w) * (g - w);
        size += w * w;
    }
    return error == 0 ? 0 : sqrt(error / size);
}

UNUSED static double bound_of(nbl_dtype dtype)
{
    return dtype == NBL_DTYPE_F32 ? 1e-5 : dtype == NBL_DTYPE_F16 ? 1e-3 : 8e-3;
}

/* Results of two runs of the same arguments, slot by slot. */
UNUSED static void assert_close(const nbl__family *family, void *got, void *want, bool backward, double bound,
                                const char *what)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        nbl_tensor *g = nbl__slot_tensor(slot, got), *w = nbl__slot_tensor(slot, want);
        if (!is_result(slot, backward) || w->rank == 0 || !nbl__has_data(w)) continue;
        double error = distance(g, w, slot->name);
        if (!(error <= bound)) fail_msg("%s: %s is off by %g, over %g", what, slot->name, error, bound);
    }
}

UNUSED static void assert_same_bits(const nbl__family *family, void *got, void *want, bool backward)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        nbl_tensor *g = nbl__slot_tensor(slot, got), *w = nbl__slot_tensor(slot, want);
        if (!is_result(slot, backward) || w->rank == 0 || !nbl__has_data(w) || !nbl__has_data(g)) continue;
        assert_int_equal(nbl__tensor_elements(g), nbl__tensor_elements(w));
        if (memcmp(g->data, w->data, (size_t)nbl__tensor_elements(w) * nbl__size_of(w->dtype)) != 0)
            fail_msg("%s has other bits", slot->name);
    }
}

/* Forward and backward by the fast implementation and by the reference, from the same inputs. */
UNUSED static void check_against_reference(nbl_context *ctx, pool *p, const nbl__family *family,
                                           void *arguments, double forward_bound, double bound,
                                           const char *what)
{
    void *want = pool_bytes(p, (int64_t)family->size);
    for (int backward = 0; backward < (family->backward.name ? 2 : 1); backward++) {
        memcpy(want, arguments, family->size);
        run_new(ctx, p, family, arguments, backward, NULL);
        run_new(ctx, p, family, want, backward, "ref");
        assert_close(family, arguments, want, backward, backward ? bound : forward_bound, what);
    }
}

/* ---- gradients of a reference against differences of its forward pass, in f64 ---- */

UNUSED static void widen(pool *p, nbl_tensor *t)
{
    if (t->rank == 0) return;
    int64_t n = nbl__tensor_elements(t);
    double *values = pool_bytes(p, 8 * n);
    for (int64_t i = 0; i < n; i++) values[i] = nbl__has_data(t) ? value_at(t, i) : 0;
    t->dtype = NBL_DTYPE_F64;
    t->data = values;
}

/* Σ dy·y over all outputs: its derivatives are the gradients. */
UNUSED static double loss_of(nbl_context *ctx, const nbl__family *family, void *arguments)
{
    double sum = 0;
    run_given(ctx, &family->forward, arguments, "ref");
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        if (slot->role != NBL_ROLE_COTANGENT) continue;
        const nbl_tensor *dy = nbl__slot_tensor(slot, arguments);
        const nbl_tensor *y = nbl__slot_tensor(nbl__slot_find(family, slot->of), arguments);
        for (int64_t i = 0; nbl__has_data(dy) && i < nbl__tensor_elements(dy); i++)
            sum += ((const double *)dy->data)[i] * ((const double *)y->data)[i];
    }
    return sum;
}

/* The inputs are f32 and pass infer. At most 64 elements of each gradient are looked at. */
UNUSED static void check_differences(nbl_context *ctx, pool *p, const nbl__family *family, void *arguments)
{
    const double step = 1e-5;
    assert_ok(ctx, family->forward.infer(ctx, arguments));
    assert_ok(ctx, family->backward.infer(ctx, arguments));
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        nbl_tensor *t = nbl__slot_tensor(slot, arguments);
        bool weight = slot->role == NBL_ROLE_WEIGHT || slot->role == NBL_ROLE_OPTIONAL_WEIGHT;
        if (!weight && (nbl__has_data(t) || is_result(slot, false) || is_result(slot, true))) widen(p, t);
    }
    run_given(ctx, &family->backward, arguments, "ref");
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        const nbl_tensor *gradient = nbl__slot_tensor(slot, arguments);
        if (slot->role != NBL_ROLE_GRADIENT || gradient->rank == 0) continue;
        double *values = nbl__slot_tensor(nbl__slot_find(family, slot->of), arguments)->data;
        int64_t n = nbl__tensor_elements(gradient);
        for (int64_t i = 0; i < n; i += 1 + n / 64) {
            double kept = values[i], want = ((const double *)gradient->data)[i];
            values[i] = kept + step;
            double above = loss_of(ctx, family, arguments);
            values[i] = kept - step;
            double slope = (above - loss_of(ctx, family, arguments)) / (2 * step);
            values[i] = kept;
            if (!(fabs(slope - want) < 1e-6 * (1 + fabs(want))))
                fail_msg("%s[%d] is %g, the difference quotient %g", slot->name, (int)i, want, slope);
        }
    }
}

/* The error of a call that must be refused names all of these words. */
UNUSED static void assert_refused(nbl_context *ctx, nbl_status got, nbl_status want, const char *const *words,
                                  int count)
{
    assert_int_equal(got, want);
    for (int i = 0; i < count; i++)
        if (!strstr(nbl_error_message(ctx), words[i]))
            fail_msg("no %s in: %s", words[i], nbl_error_message(ctx));
}

/* A whole layer; rank < 0: without an adapter. */
typedef struct layer_kind {
    store store;
    nbl_dtype dtype, adapter;
    int64_t tokens, in, out, rank;
    bool dora, bias;
    float dropout;
} layer_kind;

UNUSED static nbl__linear random_layer(pool *p, const layer_kind *k)
{
    nbl__linear a = {.dtype = k->dtype,
                     .x = random_matrix(p, k->dtype, k->tokens, k->in, 1),
                     .w = random_weight(p, k->store, k->out, k->in),
                     .scale = 0.5f,
                     .dropout = k->dropout,
                     .seed = 7,
                     .threshold = 0.99f,
                     .dy = random_matrix(p, k->dtype, k->tokens, k->out, 1)};
    if (k->bias) a.bias = random_vector(p, k->dtype, k->out, 1, 0);
    if (k->rank < 0) return a;
    a.lora_a = random_matrix(p, k->adapter, k->rank, k->in, 0.3f);
    a.lora_b = random_matrix(p, k->adapter, k->out, k->rank, 0.3f);
    if (k->dora) a.magnitude = random_vector(p, k->adapter, k->out, 0.5f, 1);
    return a;
}

#endif
