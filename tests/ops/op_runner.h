/* op_runner.h - runs any operator family in tests: random inputs, outputs and scratch full of NaN, an
 * implementation by name, and comparisons of all outputs. */
#ifndef NBL_TEST_OP_RUNNER_H
#define NBL_TEST_OP_RUNNER_H

#include <math.h>

#include "support.h"

#include "base/philox.h"
#include "ops/families.h"

static const nbl_dtype compute_dtypes[] = {NBL_DTYPE_F32, NBL_DTYPE_F16, NBL_DTYPE_BF16};
static const double dtype_bounds[] = {1e-6, 6e-4, 5e-3}; /* one or two roundings */

static inline void fill_random(nbl_tensor *t, uint32_t stream, float scale)
{
    int64_t n = nbl__tensor_elements(t);
    for (int64_t i = 0; i < n; i++) {
        uint32_t words[4];
        nbl__philox((uint32_t[4]){(uint32_t)i, stream, 0, 0}, (uint32_t[2]){5, 6}, words);
        float value = (nbl__uniform(words[0]) + nbl__uniform(words[1]) + nbl__uniform(words[2]) - 1.5f) * 2 *
                      scale;
        nbl__from_f32(NBL_ISA_SCALAR, &value, t->dtype,
                      (uint8_t *)t->data + (size_t)i * nbl__size_of(t->dtype), 1);
    }
}

static inline nbl_tensor tensor_of(nbl_dtype dtype, int rank, const int64_t *shape)
{
    nbl_tensor t = {.dtype = dtype, .rank = rank};
    uint64_t bytes;
    for (int i = 0; i < rank; i++) t.shape[i] = shape[i];
    assert_true(nbl__dtype_bytes(dtype, (uint64_t)nbl__tensor_elements(&t), &bytes));
    t.data = calloc(bytes + 64, 1);
    return t;
}

#define SHAPE(...)                                                                                           \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (int64_t[])                                                 \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }

static inline nbl_tensor random_tensor(nbl_dtype dtype, uint32_t stream, float scale, int rank,
                                       const int64_t *shape)
{
    nbl_tensor t = tensor_of(dtype, rank, shape);
    fill_random(&t, stream, scale);
    return t;
}

static inline double value_at(const nbl_tensor *t, int64_t i)
{
    float value;
    nbl__to_f32(NBL_ISA_SCALAR, t->dtype, (const uint8_t *)t->data + (size_t)i * nbl__size_of(t->dtype),
                &value, 1);
    return (double)value;
}

static inline void set_value(nbl_tensor *t, int64_t i, float value)
{
    nbl__from_f32(NBL_ISA_SCALAR, &value, t->dtype, (uint8_t *)t->data + (size_t)i * nbl__size_of(t->dtype),
                  1);
}

static inline bool is_output(const nbl__slot *slot)
{
    return slot->role == NBL_ROLE_OUTPUT || slot->role == NBL_ROLE_SAVED || slot->role == NBL_ROLE_GRADIENT;
}

/* Fresh memory for all outputs of these roles: NaN, or zero. */
static inline void make_outputs(const nbl__family *family, void *arguments, bool gradients, int byte)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        nbl_tensor *t = nbl__slot_tensor(slot, arguments);
        if (!is_output(slot) || (slot->role == NBL_ROLE_GRADIENT) != gradients) continue;
        t->data = NULL;
        if (t->rank == 0) continue;
        *t = tensor_of(t->dtype, t->rank, t->shape);
        uint64_t bytes;
        nbl__dtype_bytes(t->dtype, (uint64_t)nbl__tensor_elements(t), &bytes);
        memset(t->data, byte, bytes);
    }
}

static inline void free_outputs(const nbl__family *family, void *arguments)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        if (!is_output(slot)) continue;
        free(nbl__slot_tensor(slot, arguments)->data);
        nbl__slot_tensor(slot, arguments)->data = NULL;
    }
}

static inline nbl_status run_one(nbl_context *ctx, const nbl__op *op, void *arguments, const char *force)
{
    const nbl__impl *impl;
    assert_ok(ctx, nbl__op_choose(ctx, op, arguments, force, &impl));
    size_t bytes = nbl__op_scratch(ctx, impl, arguments);
    void *scratch = aligned_alloc(64, bytes + 64 - bytes % 64);
    memset(scratch, 0xff, bytes); /* NaN: nothing may be read before it is written */
    nbl_status status = nbl__op_run(ctx, op, impl, arguments, scratch, bytes);
    free(scratch);
    return status;
}

/* Forward and, when there is a cotangent, backward, with fresh outputs. */
static inline void run_both(nbl_context *ctx, const nbl__family *family, void *arguments, const char *force)
{
    bool backward = false;
    for (const nbl__slot *slot = family->slots; slot->name; slot++)
        if (slot->role == NBL_ROLE_COTANGENT) backward |= nbl__has_data(nbl__slot_tensor(slot, arguments));
    assert_ok(ctx, family->forward.infer(ctx, arguments));
    make_outputs(family, arguments, false, 0xff);
    assert_ok(ctx, run_one(ctx, &family->forward, arguments, force));
    if (!backward) return;
    assert_ok(ctx, family->backward.infer(ctx, arguments));
    make_outputs(family, arguments, true, 0xff);
    assert_ok(ctx, run_one(ctx, &family->backward, arguments, force));
}

/* ‖a - b‖ / ‖b‖; a NaN in only one of them counts as infinite. */
static inline double distance(const nbl_tensor *a, const nbl_tensor *b)
{
    double difference = 0, size = 0;
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->rank, b->rank);
    assert_memory_equal(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape);
    for (int64_t i = 0; i < nbl__tensor_elements(a); i++) {
        double x = value_at(a, i), y = value_at(b, i);
        if (x == y || (isnan(x) && isnan(y))) x = y = isfinite(x) ? x : 0;
        if (!isfinite(x) || !isfinite(y)) return INFINITY;
        difference += (x - y) * (x - y);
        size += y * y;
    }
    return difference == 0 ? 0 : sqrt(difference / (size > 0 ? size : 1));
}

static inline void assert_outputs_close(const nbl__family *family, void *a, void *b, double bound)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        const nbl_tensor *x = nbl__slot_tensor(slot, a), *y = nbl__slot_tensor(slot, b);
        if (!is_output(slot) || x->data == NULL) continue;
        double error = distance(x, y);
        if (!(error <= bound)) fail_msg("%s of %s: %g over %g", slot->name, family->name, error, bound);
    }
}

static inline void assert_outputs_equal(const nbl__family *family, void *a, void *b)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        const nbl_tensor *x = nbl__slot_tensor(slot, a), *y = nbl__slot_tensor(slot, b);
        uint64_t bytes;
        if (!is_output(slot) || x->data == NULL) continue;
        assert_true(nbl__dtype_bytes(x->dtype, (uint64_t)nbl__tensor_elements(x), &bytes));
        if (memcmp(x->data, y->data, bytes) != 0) fail_msg("%s of %s: other bits", slot->name, family->name);
    }
}

/* On every instruction set: what is chosen agrees with the reference, and gives the same bits on 1, 2 and 3
 * threads. `a` and `b` are two copies of the arguments without outputs. */
static inline void compare_with_reference(const nbl__family *family, void *a, void *b, double bound)
{
    static const char *const isas[] = {"avx2", "avx512"};
    nbl_context *ref = context_of(NULL, 1);
    run_both(ref, family, a, "ref");
    for (int i = 0; i < 2; i++) {
        void *first = malloc(family->size);
        for (int threads = 1; threads <= 3; threads++) {
            nbl_context *ctx = context_of(isas[i], threads);
            run_both(ctx, family, b, NULL);
            assert_outputs_close(family, b, a, bound);
            if (threads == 1) memcpy(first, b, family->size);
            else assert_outputs_equal(family, b, first);
            if (threads > 1) free_outputs(family, b);
            nbl_context_destroy(ctx);
        }
        free_outputs(family, first);
        free(first);
    }
    free_outputs(family, a);
    nbl_context_destroy(ref);
}

/* `change` makes the arguments wrong: infer must refuse them with this status and these words. */
#define ASSERT_REFUSED(ctx, op, arguments, status, ...)                                                      \
    do {                                                                                                     \
        static const char *const words_[] = {__VA_ARGS__};                                                   \
        assert_int_equal((op).infer((ctx), (arguments)), (status));                                          \
        for (size_t i_ = 0; i_ < sizeof words_ / sizeof *words_; i_++)                                       \
            if (!strstr(nbl_error_message(ctx), words_[i_]))                                                 \
                fail_msg("no %s in: %s", words_[i_], nbl_error_message(ctx));                                \
    } while (0)

#endif
