/* router_loss.c - the families router_load and router_loss: checks, slots, and the references, which are the CPU's only
 * implementations. Sums are f64. See router_loss.h. */
#include "ops/moe/router_loss.h"

#include <math.h>

#include "ops/families.h"
#include "ops/ref.h"

/* A vector of E, or absent. */
static nbl_status check_sum(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t,
                            nbl_dtype dtype, int64_t experts)
{
    NBL_TRY(nbl__check_dtype(ctx, op, name, t, dtype));
    return nbl__check_dims(ctx, op, name, t, 1, &experts);
}

/* ---- router_load ---- */

static nbl_status check_load(nbl_context *ctx, const char *op, const nbl__router_load *a)
{
    NBL_TRY(nbl__check_compute(ctx, op, a->dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "logits", &a->logits, a->dtype));
    NBL_CHECK(ctx, a->logits.rank >= 1 && nbl__last(&a->logits) >= 1, NBL_ERROR_SHAPE, "%s: logits is %s", op,
              nbl__show_shape(a->logits.rank, a->logits.shape).text);
    int64_t experts = nbl__last(&a->logits);
    NBL_TRY(nbl__check_dtype(ctx, op, "experts", &a->experts, NBL_DTYPE_I32));
    NBL_TRY(nbl__check_matrix(ctx, op, "experts", &a->experts, nbl__tensor_rows(&a->logits),
                              nbl__last(&a->experts)));
    NBL_CHECK(ctx, nbl__has_data(&a->counts_in) == nbl__has_data(&a->probs_in), NBL_ERROR_ARGUMENT,
              "%s: counts_in and probs_in belong together", op);
    if (!nbl__has_data(&a->counts_in)) return NBL_OK;
    NBL_TRY(check_sum(ctx, op, "counts_in", &a->counts_in, NBL_DTYPE_I32, experts));
    return check_sum(ctx, op, "probs_in", &a->probs_in, NBL_DTYPE_F32, experts);
}

static nbl_status infer_load(nbl_context *ctx, void *arguments)
{
    nbl__router_load *a = arguments;
    NBL_TRY(check_load(ctx, "router_load", a));
    nbl__output_vector(&a->counts, NBL_DTYPE_I32, 1, nbl__last(&a->logits), 0);
    nbl__output_vector(&a->probs, NBL_DTYPE_F32, 1, nbl__last(&a->logits), 0);
    return NBL_OK;
}

static nbl_status infer_load_backward(nbl_context *ctx, void *arguments)
{
    const char *op = "router_load_backward";
    nbl__router_load *a = arguments;
    NBL_TRY(check_load(ctx, op, a));
    NBL_TRY(check_sum(ctx, op, "dprobs", &a->dprobs, NBL_DTYPE_F32, nbl__last(&a->logits)));
    nbl__output_like(&a->dlogits, &a->logits, nbl__last(&a->logits), a->dtype);
    nbl__output_none(&a->dprobs_in);
    if (nbl__has_data(&a->probs_in))
        nbl__output_vector(&a->dprobs_in, NBL_DTYPE_F32, 1, nbl__last(&a->logits), 0);
    return NBL_OK;
}

/* f64 per expert: the sum of the probabilities, and those of one row. */
static size_t load_scratch(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return (size_t)(2 * nbl__last(&((const nbl__router_load *)arguments)->logits)) * sizeof(double);
}

/* p = softmax of row t. */
static void softmax(const nbl__router_load *a, int64_t t, double *p)
{
    int64_t experts = nbl__last(&a->logits);
    double max = -INFINITY, sum = 0;
    for (int64_t e = 0; e < experts; e++) {
        p[e] = nbl__ref_get(&a->logits, t * experts + e);
        if (!(p[e] <= max)) max = p[e];
    }
    for (int64_t e = 0; e < experts; e++) {
        p[e] = exp(p[e] - max);
        sum += p[e];
    }
    for (int64_t e = 0; e < experts; e++) p[e] /= sum;
}

static nbl_status run_load(const nbl__call *call, const void *arguments)
{
    const nbl__router_load *a = arguments;
    int64_t experts = nbl__last(&a->logits);
    const int32_t *chosen = a->experts.data;
    int32_t *counts = a->counts.data;
    double *sums = (double *)(void *)call->scratch, *p = sums + experts;
    bool first = !nbl__has_data(&a->counts_in);
    for (int64_t i = 0; i < nbl__tensor_elements(&a->experts); i++)
        NBL_CHECK(call->ctx, chosen[i] >= 0 && chosen[i] < experts, NBL_ERROR_ARGUMENT,
                  "%s: experts[%" PRId64 "] is %" PRId32 ", there are %" PRId64, call->op, i, chosen[i],
                  experts);
    for (int64_t e = 0; e < experts; e++) {
        counts[e] = first ? 0 : ((const int32_t *)a->counts_in.data)[e];
        sums[e] = first ? 0 : nbl__ref_get(&a->probs_in, e);
    }
    for (int64_t i = 0; i < nbl__tensor_elements(&a->experts); i++)
        counts[chosen[i]] = (int32_t)((uint32_t)counts[chosen[i]] + 1);
    for (int64_t t = 0; t < nbl__tensor_rows(&a->logits); t++) {
        softmax(a, t, p);
        for (int64_t e = 0; e < experts; e++) sums[e] += p[e];
    }
    for (int64_t e = 0; e < experts; e++) nbl__ref_set(&a->probs, e, sums[e]);
    return NBL_OK;
}

static nbl_status run_load_backward(const nbl__call *call, const void *arguments)
{
    const nbl__router_load *a = arguments;
    int64_t experts = nbl__last(&a->logits);
    double *p = (double *)(void *)call->scratch;
    for (int64_t t = 0; t < nbl__tensor_rows(&a->logits); t++) {
        double sum = 0;
        softmax(a, t, p);
        for (int64_t e = 0; e < experts; e++) sum += p[e] * nbl__ref_get(&a->dprobs, e);
        for (int64_t e = 0; e < experts; e++)
            nbl__ref_set(&a->dlogits, t * experts + e, p[e] * (nbl__ref_get(&a->dprobs, e) - sum));
    }
    for (int64_t e = 0; a->dprobs_in.rank > 0 && e < experts; e++)
        nbl__ref_set(&a->dprobs_in, e, nbl__ref_get(&a->dprobs, e));
    return NBL_OK;
}

static const nbl__slot load_slots[] = {
    NBL_SLOT_SAVED(nbl__router_load, logits, "logits", INPUT),
    NBL_SLOT(nbl__router_load, experts, "experts", INPUT, NULL),
    NBL_SLOT(nbl__router_load, counts_in, "counts_in", OPTIONAL, NULL),
    NBL_SLOT(nbl__router_load, probs_in, "probs_in", OPTIONAL, NULL),
    NBL_SLOT(nbl__router_load, counts, "counts", OUTPUT, NULL),
    NBL_SLOT(nbl__router_load, probs, "probs", OUTPUT, NULL),
    NBL_SLOT(nbl__router_load, dprobs, "dprobs", COTANGENT, "probs"),
    NBL_SLOT(nbl__router_load, dlogits, "dlogits", GRADIENT, "logits"),
    NBL_SLOT(nbl__router_load, dprobs_in, "dprobs_in", GRADIENT, "probs_in"),
    {0},
};
static const nbl__attr load_attrs[] = {NBL_ATTR(nbl__router_load, dtype, "dtype", DTYPE, 0), {0}};
static const nbl__impl load_ref = {"router_load_ref", NBL_ISA_SCALAR, NULL, load_scratch, run_load};
static const nbl__impl load_backward_ref = {"router_load_backward_ref", NBL_ISA_SCALAR, NULL, load_scratch,
                                            run_load_backward};
static const nbl__impl *const load_impls[] = {&load_ref, NULL};
static const nbl__impl *const load_backward_impls[] = {&load_backward_ref, NULL};
const nbl__family nbl__router_load_family = {
    "router_load",
    sizeof(nbl__router_load),
    load_slots,
    load_attrs,
    {"router_load", infer_load, load_impls},
    {"router_load_backward", infer_load_backward, load_backward_impls},
    {.forward = 8, .backward = 12},
};

/* ---- router_loss ---- */

static nbl_status check_loss(nbl_context *ctx, const char *op, const nbl__router_loss *a)
{
    int64_t one = 1, experts = a->counts.rank == 1 ? a->counts.shape[0] : -1;
    NBL_CHECK(ctx, a->top_k >= 1 && isfinite(a->factor), NBL_ERROR_ARGUMENT,
              "%s: top_k %" PRId64 ", factor %g", op, a->top_k, (double)a->factor);
    NBL_TRY(check_sum(ctx, op, "counts", &a->counts, NBL_DTYPE_I32, experts));
    NBL_TRY(check_sum(ctx, op, "probs", &a->probs, NBL_DTYPE_F32, experts));
    NBL_TRY(nbl__check_dtype(ctx, op, "base", &a->base, NBL_DTYPE_F32));
    return nbl__check_dims(ctx, op, "base", &a->base, 1, &one);
}

static nbl_status infer_loss(nbl_context *ctx, void *arguments)
{
    nbl__router_loss *a = arguments;
    NBL_TRY(check_loss(ctx, "router_loss", a));
    nbl__output_vector(&a->loss, NBL_DTYPE_F32, 1, 1, 0);
    return NBL_OK;
}

static nbl_status infer_loss_backward(nbl_context *ctx, void *arguments)
{
    const char *op = "router_loss_backward";
    int64_t one = 1;
    nbl__router_loss *a = arguments;
    NBL_TRY(check_loss(ctx, op, a));
    NBL_TRY(nbl__check_dtype(ctx, op, "dloss", &a->dloss, NBL_DTYPE_F32));
    NBL_TRY(nbl__check_dims(ctx, op, "dloss", &a->dloss, 1, &one));
    nbl__output_vector(&a->dprobs, NBL_DTYPE_F32, 1, a->counts.shape[0], 0);
    nbl__output_vector(&a->dbase, NBL_DTYPE_F32, 1, 1, 0);
    return NBL_OK;
}

/* factor·E / R², or 0 without rows. */
static double scale_of(const nbl__router_loss *a)
{
    const int32_t *counts = a->counts.data;
    double rows = 0;
    for (int64_t e = 0; e < a->counts.shape[0]; e++) rows += (double)counts[e] / (double)a->top_k;
    return rows > 0 ? (double)a->factor * (double)a->counts.shape[0] / (rows * rows) : 0;
}

static nbl_status run_loss(const nbl__call *call, const void *arguments)
{
    const nbl__router_loss *a = arguments;
    const int32_t *counts = a->counts.data;
    double sum = 0;
    (void)call;
    for (int64_t e = 0; e < a->counts.shape[0]; e++) sum += (double)counts[e] * nbl__ref_get(&a->probs, e);
    nbl__ref_set(&a->loss, 0, nbl__ref_get(&a->base, 0) + scale_of(a) * sum);
    return NBL_OK;
}

static nbl_status run_loss_backward(const nbl__call *call, const void *arguments)
{
    const nbl__router_loss *a = arguments;
    const int32_t *counts = a->counts.data;
    double dloss = nbl__ref_get(&a->dloss, 0);
    (void)call;
    for (int64_t e = 0; e < a->counts.shape[0]; e++)
        nbl__ref_set(&a->dprobs, e, dloss * scale_of(a) * (double)counts[e]);
    nbl__ref_set(&a->dbase, 0, dloss);
    return NBL_OK;
}

static const nbl__slot loss_slots[] = {
    NBL_SLOT_SAVED(nbl__router_loss, counts, "counts", INPUT),
    NBL_SLOT(nbl__router_loss, probs, "probs", INPUT, NULL),
    NBL_SLOT(nbl__router_loss, base, "base", INPUT, NULL),
    NBL_SLOT(nbl__router_loss, loss, "loss", OUTPUT, NULL),
    NBL_SLOT(nbl__router_loss, dloss, "dloss", COTANGENT, "loss"),
    NBL_SLOT(nbl__router_loss, dprobs, "dprobs", GRADIENT, "probs"),
    NBL_SLOT(nbl__router_loss, dbase, "dbase", GRADIENT, "base"),
    {0},
};
static const nbl__attr loss_attrs[] = {NBL_ATTR(nbl__router_loss, factor, "factor", FLOAT, 0.001),
                                       NBL_ATTR(nbl__router_loss, top_k, "top_k", INT, 1),
                                       {0}};
static const nbl__impl loss_ref = {"router_loss_ref", NBL_ISA_SCALAR, NULL, NULL, run_loss};
static const nbl__impl loss_backward_ref = {"router_loss_backward_ref", NBL_ISA_SCALAR, NULL, NULL,
                                            run_loss_backward};
static const nbl__impl *const loss_impls[] = {&loss_ref, NULL};
static const nbl__impl *const loss_backward_impls[] = {&loss_backward_ref, NULL};
const nbl__family nbl__router_loss_family = {
    "router_loss",
    sizeof(nbl__router_loss),
    loss_slots,
    loss_attrs,
    {"router_loss", infer_loss, loss_impls},
    {"router_loss_backward", infer_loss_backward, loss_backward_impls},
    {.forward = 4, .backward = 4},
};
