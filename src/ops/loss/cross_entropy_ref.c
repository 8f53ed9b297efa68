/* cross_entropy_ref.c - cross_entropy, forward and backward: the oracle. Scalar, f64 sums, one
 * rounding at the end, never optimized. One token at a time, with all its logits. Backward
 * recomputes the logits, and does not read what forward saved. */
#include <math.h>

#include "ops/loss/cross_entropy.h"
#include "ops/ref.h"
#include "quant/quant.h"

typedef struct scratch {
    int64_t *rows;  /* [tokens]: indices of the trained tokens */
    uint8_t *coded; /* [hidden]: a row of W in the compute dtype */
    float *row;     /* [hidden]: the same as f32 */
    double *logits; /* [vocabulary] */
    double *dx;     /* [hidden]; backward, or gradient in forward */
    double *dw;     /* [vocabulary, hidden]; backward, when it is wanted */
} scratch;

static size_t layout(const nbl__cross_entropy *a, bool backward, uint8_t *base, scratch *s)
{
    int64_t vocabulary = a->w.shape[0], hidden = a->w.shape[1];
    nbl__bump bump = {base, 0};
    NBL_BUMP_ALLOC(&bump, s->rows, nbl__tensor_rows(&a->x));
    NBL_BUMP_ALLOC(&bump, s->coded, hidden * 4);
    NBL_BUMP_ALLOC(&bump, s->row, hidden);
    NBL_BUMP_ALLOC(&bump, s->logits, vocabulary);
    NBL_BUMP_ALLOC(&bump, s->dx, backward || a->grad_in_forward ? hidden : 0);
    NBL_BUMP_ALLOC(&bump, s->dw, backward && a->train_w ? vocabulary * hidden : 0);
    return bump.used;
}

static size_t forward_scratch(const nbl_context *ctx, const void *arguments)
{
    scratch s;
    (void)ctx;
    return layout(arguments, false, NULL, &s);
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    scratch s;
    (void)ctx;
    return layout(arguments, true, NULL, &s);
}

/* Row n of W, rounded to the compute dtype, as f32. */
static void weight_row(const nbl__cross_entropy *a, int64_t n, const scratch *s)
{
    int64_t hidden = a->w.shape[1];
    nbl__dequantize(NBL_ISA_SCALAR, &a->w, n * hidden, (n + 1) * hidden, a->dtype, s->coded, false);
    nbl__to_f32(NBL_ISA_SCALAR, a->dtype, s->coded, s->row, hidden);
}

/* The logits of token t. Returns log Σ exp(z - largest). */
static double make_logits(const nbl__cross_entropy *a, int64_t t, const scratch *s, double *largest)
{
    int64_t vocabulary = a->w.shape[0], hidden = a->w.shape[1];
    double cap = (double)a->softcap, sum = 0;
    *largest = -INFINITY;
    for (int64_t v = 0; v < vocabulary; v++) {
        double u = 0;
        weight_row(a, v, s);
        for (int64_t k = 0; k < hidden; k++) u += nbl__ref_get(&a->x, t * hidden + k) * (double)s->row[k];
        s->logits[v] = cap > 0 ? cap * tanh(u / cap) : u;
        *largest = fmax(*largest, s->logits[v]);
    }
    for (int64_t v = 0; v < vocabulary; v++) sum += exp(s->logits[v] - *largest);
    return log(sum);
}

static void forward_token(const nbl__cross_entropy *a, int64_t t, const scratch *s, double *total)
{
    int64_t vocabulary = a->w.shape[0], tokens = nbl__tensor_rows(&a->x);
    double largest, rest = make_logits(a, t, s, &largest), smoothing = (double)a->smoothing, mean = 0;
    double logprob = s->logits[((const int32_t *)a->labels.data)[t]] - largest - rest;
    for (int64_t v = 0; v < vocabulary; v++) mean += (s->logits[v] - largest - rest) / (double)vocabulary;
    double loss = -(1 - smoothing) * logprob - (smoothing > 0 ? smoothing * mean : 0);
    nbl__ref_set(&a->logprobs, t, logprob);
    nbl__ref_set(&a->lse, t, largest + rest);
    nbl__ref_set(&a->lse, tokens + t, largest + rest - nbl__ref_get(&a->lse, t));
    if (a->reduction == NBL_REDUCTION_NONE) nbl__ref_set(&a->loss, t, loss);
    *total += loss;
}

/* The gradients of token t. `scale` is the gradient of its loss. dx goes to the token's row of
 * `out`. */
static void backward_token(const nbl__cross_entropy *a, int64_t t, double scale, const scratch *s,
                           const nbl_tensor *out)
{
    int64_t vocabulary = a->w.shape[0], hidden = a->w.shape[1];
    int32_t label = ((const int32_t *)a->labels.data)[t];
    double largest, rest = make_logits(a, t, s, &largest);
    double cap = (double)a->softcap, smoothing = (double)a->smoothing;
    for (int64_t k = 0; k < hidden; k++) s->dx[k] = 0;
    for (int64_t v = 0; v < vocabulary; v++) {
        double z = s->logits[v], wanted = smoothing / (double)vocabulary + (v == label ? 1 - smoothing : 0);
        double d = (exp(z - largest - rest) - wanted) * scale * (cap > 0 ? 1 - z / cap * (z / cap) : 1);
        weight_row(a, v, s);
        for (int64_t k = 0; k < hidden; k++) s->dx[k] += d * (double)s->row[k];
        if (!nbl__cross_entropy_wants_dw(a)) continue;
        for (int64_t k = 0; k < hidden; k++) s->dw[v * hidden + k] += d * nbl__ref_get(&a->x, t * hidden + k);
    }
    for (int64_t k = 0; k < hidden; k++) nbl__ref_set(out, t * hidden + k, s->dx[k]);
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__cross_entropy *a = arguments;
    int64_t tokens = nbl__tensor_rows(&a->x), count;
    double total = 0;
    scratch s;
    layout(a, false, call->scratch, &s);
    NBL_TRY(nbl__cross_entropy_trained(call, a, s.rows, &count));
    for (int64_t t = 0; t < tokens; t++) {
        nbl__ref_set(&a->logprobs, t, 0);
        nbl__ref_set(&a->lse, t, 0);
        nbl__ref_set(&a->lse, tokens + t, 0);
        if (a->reduction == NBL_REDUCTION_NONE) nbl__ref_set(&a->loss, t, 0);
    }
    for (int64_t i = 0; i < count; i++) forward_token(a, s.rows[i], &s, &total);
    for (int64_t i = 0; a->grad_in_forward && i < nbl__tensor_elements(&a->x); i++)
        nbl__ref_set(&a->dx_in_forward, i, 0);
    for (int64_t i = 0; a->grad_in_forward && i < count; i++)
        backward_token(a, s.rows[i], nbl__cross_entropy_share(a, count), &s, &a->dx_in_forward);
    if (a->reduction == NBL_REDUCTION_MEAN)
        nbl__ref_set(&a->loss, 0, total * nbl__cross_entropy_share(a, count));
    return NBL_OK;
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__cross_entropy *a = arguments;
    int64_t weights = a->w.shape[0] * a->w.shape[1], count;
    scratch s;
    layout(a, true, call->scratch, &s);
    NBL_TRY(nbl__cross_entropy_trained(call, a, s.rows, &count));
    if (nbl__has_data(&a->dx))
        for (int64_t i = 0; i < nbl__tensor_elements(&a->x); i++) nbl__ref_set(&a->dx, i, 0);
    if (nbl__cross_entropy_wants_dw(a))
        for (int64_t i = 0; i < weights; i++) s.dw[i] = 0;
    double share = nbl__cross_entropy_share(a, count);
    for (int64_t i = 0; i < count; i++) {
        double upstream = nbl__ref_get(&a->dloss, a->reduction == NBL_REDUCTION_MEAN ? 0 : s.rows[i]);
        backward_token(a, s.rows[i], upstream * share, &s, &a->dx);
    }
    if (nbl__cross_entropy_wants_dw(a))
        for (int64_t i = 0; i < weights; i++) nbl__ref_put(&a->dw, i, s.dw[i], a->accumulate);
    return NBL_OK;
}

const nbl__impl nbl__cross_entropy_ref = {"cross_entropy_ref", NBL_ISA_SCALAR, NULL, forward_scratch,
                                          run_forward};
const nbl__impl nbl__cross_entropy_backward_ref = {"cross_entropy_backward_ref", NBL_ISA_SCALAR, NULL,
                                                   backward_scratch, run_backward};
