/* elementwise.h - operators that treat each element alone: sums, casts, products,
 * gated activations, and the search for non-finite values.
 *
 *   add     y = a + b                       same shape and dtype
 *   cast    y = x in the dtype `to`
 *   scale   y = x·factor
 *   gated   h = act(gate)·up                act: silu, gelu (erf), gelu_tanh
 *
 * Arithmetic is f32, with one rounding of each result. Backward:
 *
 *   add     dx = dy, the gradient of a and of b
 *   cast    dx = dy in the dtype of x
 *   scale   dx = dy·factor
 *   gated   dgate = dh·up·act'(gate), dup = dh·act(gate)
 *
 * Outputs may overlap inputs of the same dtype exactly. */
#ifndef NBL_ELEMENTWISE_H
#define NBL_ELEMENTWISE_H

#include "ops/elementwise/act.h"
#include "ops/ops.h"

typedef struct nbl__add {
    nbl_dtype dtype;
    nbl_tensor a, b, y;
    nbl_tensor dy, dx;
} nbl__add;

typedef struct nbl__cast {
    nbl_dtype to;
    nbl_tensor x, y;
    nbl_tensor dy, dx;
} nbl__cast;

typedef struct nbl__scale {
    nbl_dtype dtype;
    float factor;
    nbl_tensor x, y;
    nbl_tensor dy, dx;
} nbl__scale;

/* The values of an attribute that names an activation, in the order of nbl__act;
 * NULL at the end. */
extern const char *const nbl__act_words[];

typedef struct nbl__gated {
    nbl_dtype dtype;
    int act; /* nbl__act */
    nbl_tensor gate, up, h;
    nbl_tensor dh, dgate, dup;
} nbl__gated;
extern const nbl__impl nbl__gated_ref, nbl__gated_backward_ref; /* for references that contain gated */

#if defined(__x86_64__)
/* The kernels of gated, for operators that contain it: n elements of one dtype.
 * `isa` is at least AVX2. An output of backward may be NULL, or overlap an input
 * exactly. */
void nbl__gated_span(nbl_isa isa, nbl__act act, nbl_dtype dtype, const void *gate, const void *up, void *h,
                     int64_t n);
void nbl__gated_backward_span(nbl_isa isa, nbl__act act, nbl_dtype dtype, const void *gate, const void *up,
                              const void *dh, void *dgate, void *dup, int64_t n);
#endif

/* The arguments of check_finite. first: the index of the first non-finite element,
 * or -1. count: how many there are. */
typedef struct nbl__finite {
    nbl_tensor x;            /* f32, f16 or bf16 */
    nbl_tensor first, count; /* int64 [1] */
} nbl__finite;

/* Fails if the tensor (f32, f16 or bf16) has a non-finite value. The message names
 * `what` was computed, the tensor with dtype and shape, the index and value of the
 * first one, and how many there are. Reads the tensor once, at the speed of
 * memory. */
nbl_status nbl__check_finite(nbl_context *ctx, const char *what, const char *name, const nbl_tensor *t);
/* The same search without the failure. */
nbl_status nbl__find_non_finite(nbl_context *ctx, const nbl_tensor *t, int64_t *first, int64_t *count);

#endif
