/* case_special.c - what slots and attributes do not describe, in a form that they do.
 *
 * adamw and grad_norm take lists of tensors and change them in place. Here each has a family of one
 * tensor. The wrapper cuts the tensor into `pieces`, passes the list on, and copies the results to
 * outputs of its own. 8-bit moments are dequantized for the comparison: a code that is off by one
 * is then an error of its size. */
#include "case.h"
#include "ops/attention/attention.h"
#include "ops/loss/cross_entropy.h"
#include "ops/embedding/embedding.h"
#include "ops/families.h"
#include "ops/gate/gated_norm.h"
#include "ops/norm/layernorm.h"
#include "ops/linear/linear_group.h"
#include "ops/linear/mlp.h"
#include "ops/moe/expert_mlp.h"
#include "ops/norm/rmsnorm.h"
#include "ops/rope/rope.h"
#include "ops/recurrent/gated_delta.h"
#include "ops/recurrent/short_conv.h"
#include "quant/quant.h"

enum { PIECES = CASE_PIECES };

/* Piece `index` of `pieces` of n elements; pieces begin at multiples of `unit`. */
static int64_t piece_begin(int64_t n, int64_t pieces, int64_t index, int64_t unit)
{
    return index == pieces ? n : nbl__min_i64(n * index / pieces / unit * unit, n);
}

/* Elements [begin, end) of a tensor, as a vector in the same memory. */
static nbl_tensor piece_of(const nbl_tensor *t, int64_t begin, int64_t end)
{
    size_t element = (size_t)nbl__dtype_bits(t->dtype) / 8;
    return (nbl_tensor){
        t->dtype, 1, {end - begin}, t->data ? (uint8_t *)t->data + (size_t)begin * element : NULL, 0};
}

/* Copies a whole tensor. */
static void copy_of(const nbl_tensor *to, const nbl_tensor *from)
{
    if (case_bytes(from) > 0) memcpy(to->data, from->data, case_bytes(from));
}

/* ---- adamw ---- */

typedef struct one_adamw {
    float lr, beta1, beta2, eps, weight_decay, grad_scale;
    int64_t step, bits, pieces;
    nbl_tensor p, g, m, v, m_absmax, v_absmax;
    nbl_tensor p_out, m_out, v_out; /* the moments in f32 */
} one_adamw;

static int64_t elements(const nbl_tensor *t)
{
    return nbl__tensor_elements(t);
}

/* The list, over copies of what changes: those of 8-bit moments are in scratch. */
static nbl__adamw spread_adamw(const one_adamw *a, const nbl__adamw_tensor *whole,
                               nbl__adamw_tensor list[PIECES])
{
    int64_t unit = a->bits == 8 ? NBL_ADAMW_BLOCK : 1;
    for (int64_t i = 0; i < a->pieces; i++) {
        int64_t begin = piece_begin(elements(&a->p), a->pieces, i, unit),
                end = piece_begin(elements(&a->p), a->pieces, i + 1, unit);
        list[i] = (nbl__adamw_tensor){.p = piece_of(&whole->p, begin, end),
                                      .g = piece_of(&whole->g, begin, end),
                                      .m = piece_of(&whole->m, begin, end),
                                      .v = piece_of(&whole->v, begin, end)};
        if (a->bits != 8) continue;
        int64_t first = begin / unit, last = nbl__ceil_div(end, unit);
        list[i].m_absmax = piece_of(&whole->m_absmax, first, nbl__max_i64(first, last));
        list[i].v_absmax = piece_of(&whole->v_absmax, first, nbl__max_i64(first, last));
    }
    return (nbl__adamw){list,
                        a->pieces,
                        (double)a->lr,
                        (double)a->beta1,
                        (double)a->beta2,
                        (double)a->eps,
                        (double)a->weight_decay,
                        (double)a->grad_scale,
                        a->step,
                        (int)a->bits,
                        NULL};
}

/* The operator's tensor without the wrapper's outputs. */
static nbl__adamw_tensor whole_adamw(const one_adamw *a)
{
    return (nbl__adamw_tensor){a->p, a->g, a->m, a->v, a->m_absmax, a->v_absmax};
}

static nbl_status infer_adamw(nbl_context *ctx, void *arguments)
{
    one_adamw *a = arguments;
    nbl__adamw_tensor whole = whole_adamw(a), list[PIECES];
    NBL_CHECK(ctx, a->pieces >= 1 && a->pieces <= PIECES, NBL_ERROR_ARGUMENT, "adamw: pieces");
    nbl__adamw inner = spread_adamw(a, &whole, list);
    NBL_TRY(nbl__adamw_family.forward.infer(ctx, &inner));
    nbl__output_like(&a->p_out, &a->p, nbl__last(&a->p), a->p.dtype);
    nbl__output_like(&a->m_out, &a->p, nbl__last(&a->p), NBL_DTYPE_F32);
    nbl__output_like(&a->v_out, &a->p, nbl__last(&a->p), NBL_DTYPE_F32);
    return NBL_OK;
}

/* Scratch: the operator's own, then copies of codes and scales. */
static size_t scratch_adamw(const nbl__impl *inner, const nbl_context *ctx, const one_adamw *a, uint8_t *base,
                            nbl__adamw_tensor *whole)
{
    nbl__adamw_tensor list[PIECES];
    *whole = whole_adamw(a);
    nbl__adamw step = spread_adamw(a, whole, list);
    nbl__bump bump = {base, 0};
    nbl__bump_alloc(&bump, nbl__op_scratch(ctx, inner, &step));
    whole->p.data = a->p_out.data;
    whole->m.data = a->m_out.data;
    whole->v.data = a->v_out.data;
    if (a->bits != 8) return bump.used;
    whole->m.data = nbl__bump_alloc(&bump, case_bytes(&a->m));
    whole->v.data = nbl__bump_alloc(&bump, case_bytes(&a->v));
    whole->m_absmax.data = nbl__bump_alloc(&bump, case_bytes(&a->m_absmax));
    whole->v_absmax.data = nbl__bump_alloc(&bump, case_bytes(&a->v_absmax));
    return bump.used;
}

/* Copies what changes to the outputs, runs the step on them, and dequantizes 8-bit moments. */
static nbl_status run_adamw(const nbl__impl *inner, const nbl__call *call, const one_adamw *a)
{
    nbl__adamw_tensor whole, list[PIECES];
    scratch_adamw(inner, call->ctx, a, call->scratch, &whole);
    copy_of(&whole.p, &a->p);
    copy_of(&whole.m, &a->m);
    copy_of(&whole.v, &a->v);
    if (a->bits == 8) {
        copy_of(&whole.m_absmax, &a->m_absmax);
        copy_of(&whole.v_absmax, &a->v_absmax);
    }
    nbl__adamw step = spread_adamw(a, &whole, list);
    NBL_TRY(inner->run(call, &step));
    if (a->bits != 8) return NBL_OK;
    nbl__dynamic8_dequantize(NBL_ISA_SCALAR, nbl__dynamic_map_signed, NBL_ADAMW_BLOCK, whole.m.data,
                             whole.m_absmax.data, elements(&a->m), a->m_out.data);
    nbl__dynamic8_dequantize(NBL_ISA_SCALAR, nbl__dynamic_map_unsigned, NBL_ADAMW_BLOCK, whole.v.data,
                             whole.v_absmax.data, elements(&a->v), a->v_out.data);
    return NBL_OK;
}

static const nbl__slot adamw_slots[] = {
    NBL_SLOT(one_adamw, p, "p", INPUT, NULL),
    NBL_SLOT(one_adamw, g, "g", INPUT, NULL),
    NBL_SLOT(one_adamw, m, "m", INPUT, NULL),
    NBL_SLOT(one_adamw, v, "v", INPUT, NULL),
    NBL_SLOT(one_adamw, m_absmax, "m_absmax", OPTIONAL, NULL),
    NBL_SLOT(one_adamw, v_absmax, "v_absmax", OPTIONAL, NULL),
    NBL_SLOT(one_adamw, p_out, "p_out", OUTPUT, NULL),
    NBL_SLOT(one_adamw, m_out, "m_out", OUTPUT, NULL),
    NBL_SLOT(one_adamw, v_out, "v_out", OUTPUT, NULL),
    {0},
};
static const nbl__attr adamw_attrs[] = {
    NBL_ATTR(one_adamw, lr, "lr", FLOAT, 1e-3),
    NBL_ATTR(one_adamw, beta1, "beta1", FLOAT, 0.9),
    NBL_ATTR(one_adamw, beta2, "beta2", FLOAT, 0.999),
    NBL_ATTR(one_adamw, eps, "eps", FLOAT, 1e-8),
    NBL_ATTR(one_adamw, weight_decay, "weight_decay", FLOAT, 0),
    NBL_ATTR(one_adamw, grad_scale, "grad_scale", FLOAT, 1),
    NBL_ATTR(one_adamw, step, "step", INT, 1),
    NBL_ATTR(one_adamw, bits, "bits", INT, 32),
    NBL_ATTR(one_adamw, pieces, "pieces", INT, 1),
    {0},
};

/* ---- grad_norm ---- */

typedef struct one_norm {
    float max_norm;
    int64_t pieces;
    nbl_tensor g;
    nbl_tensor norm, g_out, non_finite;
} one_norm;

/* The list of pieces of one gradient. */
static nbl__grad_norm spread_norm(const one_norm *a, const nbl_tensor *g, nbl_tensor list[PIECES])
{
    for (int64_t i = 0; i < a->pieces; i++)
        list[i] = piece_of(g, piece_begin(elements(g), a->pieces, i, 1),
                           piece_begin(elements(g), a->pieces, i + 1, 1));
    return (nbl__grad_norm){list, a->pieces, (double)a->max_norm, a->norm, a->non_finite.data, NULL};
}

static nbl_status infer_norm(nbl_context *ctx, void *arguments)
{
    one_norm *a = arguments;
    nbl_tensor list[PIECES];
    NBL_CHECK(ctx, a->pieces >= 1 && a->pieces <= PIECES, NBL_ERROR_ARGUMENT, "grad_norm: pieces");
    nbl__grad_norm inner = spread_norm(a, &a->g, list);
    NBL_TRY(nbl__grad_norm_family.forward.infer(ctx, &inner));
    a->norm = inner.norm;
    nbl__output_like(&a->g_out, &a->g, nbl__last(&a->g), a->g.dtype);
    nbl__output_vector(&a->non_finite, NBL_DTYPE_I64, 1, 1, 0);
    return NBL_OK;
}

static size_t scratch_norm(const nbl__impl *inner, const nbl_context *ctx, const one_norm *a)
{
    nbl_tensor list[PIECES];
    nbl__grad_norm all = spread_norm(a, &a->g, list);
    return nbl__op_scratch(ctx, inner, &all);
}

/* The gradient is copied first: the operator scales it in place. */
static nbl_status run_norm(const nbl__impl *inner, const nbl__call *call, const one_norm *a)
{
    nbl_tensor list[PIECES];
    int64_t first;
    copy_of(&a->g_out, &a->g);
    nbl__grad_norm all = spread_norm(a, &a->g_out, list);
    all.non_finite = &first; /* of its own: an output may lie beside the alignment of int64 */
    NBL_TRY(inner->run(call, &all));
    memcpy(a->non_finite.data, &first, sizeof first);
    return NBL_OK;
}

static const nbl__slot norm_slots[] = {
    NBL_SLOT(one_norm, g, "g", INPUT, NULL),
    NBL_SLOT(one_norm, norm, "norm", OUTPUT, NULL),
    NBL_SLOT(one_norm, g_out, "g_out", OUTPUT, NULL),
    NBL_SLOT(one_norm, non_finite, "non_finite", OUTPUT, NULL),
    {0},
};
static const nbl__attr norm_attrs[] = {
    NBL_ATTR(one_norm, max_norm, "max_norm", FLOAT, 0),
    NBL_ATTR(one_norm, pieces, "pieces", INT, 1),
    {0},
};

/* ---- the families of both ---- */

#define WRAPPED(inner)                                                                                       \
    static size_t inner##_scratch(const nbl_context *ctx, const void *arguments)                             \
    {                                                                                                        \
        return SCRATCH(&nbl__##inner, ctx, arguments);                                                       \
    }                                                                                                        \
    static nbl_status inner##_run(const nbl__call *call, const void *arguments)                              \
    {                                                                                                        \
        return RUN(&nbl__##inner, call, arguments);                                                          \
    }                                                                                                        \
    static const nbl__impl wrapped_##inner = {#inner, NBL_ISA_SCALAR, NULL, inner##_scratch, inner##_run};

#define SCRATCH(inner, ctx, arguments) scratch_adamw(inner, ctx, arguments, NULL, &(nbl__adamw_tensor){0})
#define RUN run_adamw
WRAPPED(adamw_cpu)
WRAPPED(adamw_ref)
#undef SCRATCH
#undef RUN
#define SCRATCH scratch_norm
#define RUN run_norm
WRAPPED(grad_norm_cpu)
WRAPPED(grad_norm_ref)

/* ---- the same on a device: the list is mirrored there, aligned as the output that it was made from ---- */

static nbl_status run_on_device(const nbl__call *call, const nbl__family *family, const void *arguments,
                                const void *output)
{
    return device_run(call->ctx, family, &family->forward, NULL, NULL, arguments,
                      (uintptr_t)output % 64 != 0 ? DEVICE_SKEWED : DEVICE_PLAIN, NULL);
}

static nbl_status adamw_list(const nbl__call *call, const void *arguments)
{
    return run_on_device(call, &nbl__adamw_family, arguments,
                         ((const nbl__adamw *)arguments)->tensors[0].p.data);
}

static nbl_status norm_list(const nbl__call *call, const void *arguments)
{
    return run_on_device(call, &nbl__grad_norm_family, arguments,
                         ((const nbl__grad_norm *)arguments)->gradients[0].data);
}

static const nbl__impl mirrored_adamw = {"adamw_cuda", NBL_ISA_SCALAR, NULL, NULL, adamw_list};
static const nbl__impl mirrored_norm = {"grad_norm_cuda", NBL_ISA_SCALAR, NULL, NULL, norm_list};

static size_t adamw_cuda_scratch(const nbl_context *ctx, const void *arguments)
{
    return scratch_adamw(&mirrored_adamw, ctx, arguments, NULL, &(nbl__adamw_tensor){0});
}

static nbl_status adamw_cuda_run(const nbl__call *call, const void *arguments)
{
    return run_adamw(&mirrored_adamw, call, arguments);
}

static nbl_status norm_cuda_run(const nbl__call *call, const void *arguments)
{
    return run_norm(&mirrored_norm, call, arguments);
}

static const nbl__impl wrapped_adamw_cuda = {"adamw_cuda", NBL_ISA_SCALAR, NULL, adamw_cuda_scratch,
                                             adamw_cuda_run};
static const nbl__impl wrapped_norm_cuda = {"grad_norm_cuda", NBL_ISA_SCALAR, NULL, NULL, norm_cuda_run};
static const nbl__impl *const adamw_cuda_impls[] = {&wrapped_adamw_cuda, NULL};
static const nbl__impl *const norm_cuda_impls[] = {&wrapped_norm_cuda, NULL};

static const nbl__impl *const adamw_impls[] = {&wrapped_adamw_cpu, &wrapped_adamw_ref, NULL};
static const nbl__impl *const norm_impls[] = {&wrapped_grad_norm_cpu, &wrapped_grad_norm_ref, NULL};
static const nbl__family one_adamw_family = {
    "adamw", sizeof(one_adamw), adamw_slots, adamw_attrs, {"adamw", infer_adamw, adamw_impls}, {0}, {0},
};
static const nbl__family one_norm_family = {
    "grad_norm", sizeof(one_norm), norm_slots, norm_attrs, {"grad_norm", infer_norm, norm_impls}, {0}, {0},
};

const nbl__family *case_family_at(int index)
{
    const nbl__family *family = nbl__family_at(index);
    if (family == &nbl__adamw_family) return &one_adamw_family;
    if (family == &nbl__grad_norm_family) return &one_norm_family;
    return family;
}

/* True for the two families of this file. */
bool case_is_list(const nbl__family *family)
{
    return family == &one_adamw_family || family == &one_norm_family;
}

bool case_unwrap(const nbl__family *family, const void *arguments, case_list *list)
{
    if (family == &one_adamw_family) {
        nbl__adamw_tensor whole = whole_adamw(arguments);
        list->adamw = spread_adamw(arguments, &whole, list->steps);
        list->family = &nbl__adamw_family;
        list->arguments = &list->adamw;
    } else if (family == &one_norm_family) {
        list->norm = spread_norm(arguments, &((const one_norm *)arguments)->g, list->gradients);
        list->family = &nbl__grad_norm_family;
        list->arguments = &list->norm;
    } else return false;
    return true;
}

const nbl__impl *const *case_impls(const nbl_context *ctx, const nbl__family *family, const nbl__op *op)
{
    if (!nbl__device_of(ctx)->separate_memory) return op->impls;
    if (!case_is_list(family)) return nbl__device_of(ctx)->impls(op);
    return family == &one_adamw_family ? adamw_cuda_impls : norm_cuda_impls;
}

/* ---- fields that are no attributes ---- */

static const struct {
    const nbl__family *family;
    size_t offset;
} accumulates[] = {
    {&nbl__linear_family, offsetof(nbl__linear, accumulate)},
    {&nbl__linear_group_family, offsetof(nbl__linear_group, members[0].accumulate)},
    {&nbl__mlp_family, offsetof(nbl__mlp, gate.accumulate)},
    {&nbl__rmsnorm_family, offsetof(nbl__rmsnorm, accumulate)},
    {&nbl__layernorm_family, offsetof(nbl__layernorm, accumulate)},
    {&nbl__embedding_family, offsetof(nbl__embedding, accumulate)},
    {&nbl__attention_family, offsetof(nbl__attention, accumulate)},
    {&nbl__gated_norm_family, offsetof(nbl__gated_norm, accumulate)},
    {&nbl__gated_delta_family, offsetof(nbl__gated_delta, accumulate)},
    {&nbl__short_conv_family, offsetof(nbl__short_conv, accumulate)},
    {&nbl__cross_entropy_family, offsetof(nbl__cross_entropy, accumulate)},
    {&nbl__expert_mlp_family, offsetof(nbl__expert_mlp, accumulate)},
};

bool *case_accumulate(const nbl__family *family, void *arguments)
{
    for (size_t i = 0; i < sizeof accumulates / sizeof *accumulates; i++)
        if (accumulates[i].family == family) return (bool *)((char *)arguments + accumulates[i].offset);
    return NULL;
}

/* longrope's factors for 32 pairs, those of `longer` or shorter sequences. */
static const nbl__json *factors_of(bool longer)
{
    static nbl__json items[2][32], lists[2];
    nbl__json *list = &lists[longer];
    *list = (nbl__json){.type = NBL_JSON_ARRAY, .count = 32, .items = items[longer]};
    for (int i = 0; i < 32; i++)
        items[longer][i] = (nbl__json){.type = NBL_JSON_REAL, .real = longer ? 1.5 + 2.5 * i : 1 + 0.1 * i};
    return list;
}

/* Sets the scaling of a rope case. The numbers are those of published models, but for the length 64
 * up to which sequences of dynamic and longrope are short. */
bool case_set_rope(const nbl__family *family, const char *kind, void *arguments)
{
    nbl__rope *rope = family == &nbl__rope_family         ? &((nbl__rope_apply *)arguments)->rope
                      : family == &nbl__rope_table_family ? &((nbl__rope_table *)arguments)->rope
                                                          : NULL;
    if (rope == NULL) return false;
    if (strcmp(kind, "linear") == 0) {
        rope->kind = NBL_ROPE_LINEAR;
        rope->factor = 4;
    } else if (strcmp(kind, "llama3") == 0) {
        rope->kind = NBL_ROPE_LLAMA3;
        rope->factor = 32;
        rope->low_freq_factor = 1;
        rope->high_freq_factor = 4;
        rope->original_max_position_embeddings = 8192;
    } else if (strcmp(kind, "yarn") == 0) {
        rope->kind = NBL_ROPE_YARN;
        rope->factor = 4;
        rope->original_max_position_embeddings = 4096;
    } else if (strcmp(kind, "dynamic") == 0) {
        rope->kind = NBL_ROPE_DYNAMIC;
        rope->factor = 4;
        rope->max_position_embeddings = 64;
    } else if (strcmp(kind, "longrope") == 0) { /* of 64 dimensions */
        rope->kind = NBL_ROPE_LONGROPE;
        rope->original_max_position_embeddings = 64;
        rope->factor = 32;
        rope->short_factor = factors_of(false);
        rope->long_factor = factors_of(true);
    } else if (strcmp(kind, "proportional") == 0) {
        rope->kind = NBL_ROPE_PROPORTIONAL;
        rope->partial_rotary_factor = 0.25;
    } else if (strcmp(kind, "query") == 0) { /* Llama 4's layers without rope */
        rope->kind = NBL_ROPE_NONE;
        rope->query_beta = 0.1;
        rope->query_length = 16;
        rope->query_shift = 1;
    } else return strcmp(kind, "default") == 0;
    return true;
}
