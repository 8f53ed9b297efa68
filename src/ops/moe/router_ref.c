/* router_ref.c - router and router_backward: the oracle, and the CPU's only implementation. A layer's experts take
 * thousands of times longer. Sums are f64. */
#include <math.h>

#include "ops/moe/router.h"
#include "ops/ref.h"

/* Does logit a go before logit b? A NaN is the largest. */
static bool is_larger(double a, double b)
{
    return a > b || (isnan(a) && !isnan(b));
}

/* Scratch: a row of logits, and of their probabilities. */
typedef struct scratch {
    double *logits, *p;
    size_t used;
} scratch;

static scratch layout(const nbl__router *a, uint8_t *base)
{
    nbl__bump bump = {base, 0};
    scratch s;
    NBL_BUMP_ALLOC(&bump, s.logits, nbl__last(&a->logits));
    NBL_BUMP_ALLOC(&bump, s.p, nbl__last(&a->logits));
    s.used = bump.used;
    return s;
}

static size_t scratch_of(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return layout(arguments, NULL).used;
}

/* The k largest of `count` logits, in order: the lower index first among equal ones. */
static void choose(const double *logits, int64_t count, int64_t k, int32_t *chosen)
{
    for (int64_t i = 0; i < k; i++) {
        int64_t best = -1;
        for (int64_t e = 0; e < count; e++) {
            bool taken = false;
            for (int64_t j = 0; j < i && !taken; j++) taken = chosen[j] == e;
            if (!taken && (best < 0 || is_larger(logits[e], logits[best]))) best = e;
        }
        chosen[i] = (int32_t)best;
    }
}

/* p_e = softmax over the experts of `among`, or over all (NULL); 0 elsewhere. */
static void softmax(const double *logits, int64_t count, const int32_t *among, int64_t k, double *p)
{
    int64_t n = among ? k : count;
    double max = -INFINITY, sum = 0;
    for (int64_t e = 0; e < count; e++) p[e] = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = logits[among ? among[i] : i];
        if (!(x <= max)) max = x; /* a NaN becomes the maximum, and all of p */
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t e = among ? among[i] : i;
        p[e] = exp(logits[e] - max);
        sum += p[e];
    }
    for (int64_t i = 0; i < n; i++) p[among ? among[i] : i] /= sum;
}

/* Sets p to what its weights are made of: p_e is the weight of expert e if it is chosen. */
static void weigh(const nbl__router *a, const int32_t *chosen, const scratch *s)
{
    int64_t count = nbl__last(&a->logits);
    if (a->kind == NBL_ROUTER_TOPK_SIGMOID)
        for (int64_t e = 0; e < count; e++) s->p[e] = 1 / (1 + exp(-s->logits[e]));
    else softmax(s->logits, count, a->kind == NBL_ROUTER_SOFTMAX_TOPK ? NULL : chosen, a->top_k, s->p);
}

static void read_logits(const nbl__router *a, int64_t t, const scratch *s)
{
    int64_t count = nbl__last(&a->logits);
    for (int64_t e = 0; e < count; e++) s->logits[e] = nbl__ref_get(&a->logits, t * count + e);
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__router *a = arguments;
    scratch s = layout(a, call->scratch);
    for (int64_t t = 0; t < nbl__tensor_rows(&a->logits); t++) {
        int32_t *chosen = (int32_t *)a->experts.data + t * a->top_k;
        read_logits(a, t, &s);
        choose(s.logits, nbl__last(&a->logits), a->top_k, chosen);
        weigh(a, chosen, &s);
        for (int64_t i = 0; i < a->top_k; i++) {
            double w = s.p[chosen[i]];
            nbl__ref_set(&a->weights, t * a->top_k + i, a->round ? nbl__ref_round(a->logits.dtype, w) : w);
        }
    }
    return NBL_OK;
}

/* The experts come from memory, so they are checked before they are indices. */
static nbl_status check_experts(const nbl__call *call, const nbl__router *a)
{
    const int32_t *experts = a->experts.data;
    int64_t count = nbl__last(&a->logits);
    for (int64_t i = 0; i < nbl__tensor_elements(&a->experts); i++)
        NBL_CHECK(call->ctx, experts[i] >= 0 && experts[i] < count, NBL_ERROR_ARGUMENT,
                  "%s: experts[%" PRId64 "] is %" PRId32 ", there are %" PRId64, call->op, i, experts[i],
                  count);
    return NBL_OK;
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__router *a = arguments;
    scratch s = layout(a, call->scratch);
    int64_t count = nbl__last(&a->logits), k = a->top_k;
    NBL_TRY(check_experts(call, a));
    for (int64_t t = 0; t < nbl__tensor_rows(&a->logits); t++) {
        const int32_t *chosen = (const int32_t *)a->experts.data + t * k;
        double *dw = s.logits, sum = 0;
        read_logits(a, t, &s);
        weigh(a, chosen, &s);
        for (int64_t e = 0; e < count; e++) dw[e] = 0;
        for (int64_t i = 0; i < k; i++) {
            dw[chosen[i]] = nbl__ref_get(&a->dweights, t * k + i);
            sum += s.p[chosen[i]] * dw[chosen[i]];
        }
        for (int64_t e = 0; e < count; e++) {
            double slope = a->kind == NBL_ROUTER_TOPK_SIGMOID ? (1 - s.p[e]) * dw[e] : dw[e] - sum;
            nbl__ref_set(&a->dlogits, t * count + e, s.p[e] * slope);
        }
    }
    return NBL_OK;
}

const nbl__impl nbl__router_ref = {"router_ref", NBL_ISA_SCALAR, NULL, scratch_of, run_forward};
const nbl__impl nbl__router_backward_ref = {"router_backward_ref", NBL_ISA_SCALAR, NULL, scratch_of,
                                            run_backward};
