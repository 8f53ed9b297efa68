/* attention_ref.c - attention, its backward and attention_decode: the oracle. Scalar, f64, one
 * query row at a time, never optimized. Backward computes its own softmax. It reads neither `out`
 * nor `lse`. */
#include <math.h>

#include "ops/attention/attention.h"
#include "ops/ref.h"

/* One query row and the keys it sees. */
typedef struct row {
    const nbl_tensor *q, *k, *v;
    int64_t q_at;       /* index of q's first element */
    int64_t k_at;       /* index of the first element of the sequence's first key */
    int64_t k_step;     /* elements from a key to the next */
    nbl__span span;     /* the keys that the row sees */
    int64_t size;       /* D */
    double scale, cap;  /* cap 0: none */
    const double *sink; /* NULL: none */
} row;

/* Σ_d x[d]·y[d] */
static double dot(const nbl_tensor *x, int64_t x_at, const nbl_tensor *y, int64_t y_at, int64_t n)
{
    double sum = 0;
    for (int64_t d = 0; d < n; d++) sum += nbl__ref_get(x, x_at + d) * nbl__ref_get(y, y_at + d);
    return sum;
}

/* s of key j, after the soft cap. */
static double logit(const row *r, int64_t j)
{
    double s = r->scale * dot(r->q, r->q_at, r->k, r->k_at + j * r->k_step, r->size);
    return r->cap != 0 ? r->cap * tanh(s / r->cap) : s;
}

/* Fills p[j - span.first], and the logits s beside it. Returns lse. Subtracting the largest logit
 * keeps exp from overflowing; a sink counts as a logit without a value. */
static double softmax(const row *r, double *p, double *s)
{
    int64_t n = r->span.end - r->span.first;
    double largest = r->sink ? *r->sink : -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) {
        s[j] = logit(r, r->span.first + j);
        if (s[j] > largest) largest = s[j]; /* a NaN shows in the sum */
    }
    for (int64_t j = 0; j < n; j++) sum += p[j] = exp(s[j] - largest);
    if (r->sink) sum += exp(*r->sink - largest);
    for (int64_t j = 0; j < n; j++) p[j] /= sum;
    return largest + log(sum);
}

/* out[d] = Σ_j p[j]·v[j, d] */
static void set_output(const row *r, const double *p, const nbl_tensor *out, int64_t out_at)
{
    for (int64_t d = 0; d < r->size; d++) {
        double sum = 0;
        for (int64_t j = r->span.first; j < r->span.end; j++)
            sum += p[j - r->span.first] * nbl__ref_get(r->v, r->k_at + j * r->k_step + d);
        nbl__ref_set(out, out_at + d, sum);
    }
}

/* ---- attention ---- */

/* Query row i, head h, of the sequence of n tokens that begins at token `first`. */
static row row_of(const nbl__attention *a, int64_t first, int64_t n, int64_t i, int64_t h)
{
    int64_t heads = a->q.shape[1], key_heads = a->k.shape[1], size = a->q.shape[2];
    return (row){.q = &a->q,
                 .k = &a->k,
                 .v = &a->v,
                 .q_at = ((first + i) * heads + h) * size,
                 .k_at = (first * key_heads + h / (heads / key_heads)) * size,
                 .k_step = key_heads * size,
                 .span = nbl__attention_span(NBL_MASK_OF(a), i, n),
                 .size = size,
                 .scale = nbl__attention_scale(a->scale, size),
                 .cap = (double)a->softcap};
}

static size_t forward_scratch(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return (size_t)((const nbl__attention *)arguments)->q.shape[0] * 2 * sizeof(double);
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__attention *a = arguments;
    NBL_TRY(nbl__attention_check_sequences(call, a));
    const int32_t *at = a->cu_seqlens.data;
    double *p = (double *)(void *)call->scratch, *s = p + a->q.shape[0];
    for (int64_t b = 0; b + 1 < a->cu_seqlens.shape[0]; b++)
        for (int64_t i = 0; i < at[b + 1] - at[b]; i++)
            for (int64_t h = 0; h < a->q.shape[1]; h++) {
                row r = row_of(a, at[b], at[b + 1] - at[b], i, h);
                double sink = nbl__has_data(&a->sinks) ? nbl__ref_get(&a->sinks, h) : 0;
                r.sink = nbl__has_data(&a->sinks) ? &sink : NULL;
                double lse = softmax(&r, p, s);
                if (nbl__has_data(&a->lse)) nbl__ref_set(&a->lse, (at[b] + i) * a->q.shape[1] + h, lse);
                set_output(&r, p, &a->out, r.q_at);
            }
    return NBL_OK;
}

/* Scratch of backward: one row's p and s, and f64 sums of all gradients. */
typedef struct sums {
    double *p, *s;       /* [T] */
    double *dk, *dv;     /* [T, Hkv, D] */
    double *dq, *dsinks; /* [D], [Hq] */
} sums;

static size_t layout(const nbl__attention *a, uint8_t *base, sums *z)
{
    nbl__bump bump = {base, 0};
    NBL_BUMP_ALLOC(&bump, z->p, a->q.shape[0]);
    NBL_BUMP_ALLOC(&bump, z->s, a->q.shape[0]);
    NBL_BUMP_ALLOC(&bump, z->dk, nbl__tensor_elements(&a->k));
    NBL_BUMP_ALLOC(&bump, z->dv, nbl__tensor_elements(&a->k));
    NBL_BUMP_ALLOC(&bump, z->dq, a->q.shape[2]);
    NBL_BUMP_ALLOC(&bump, z->dsinks, a->q.shape[1]);
    return bump.used;
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    sums z;
    (void)ctx;
    return layout(arguments, NULL, &z);
}

/* Adds one query row's part to all gradients. With D = Σ_j p[j]·(dout·v[j]):
 *
 *   dv[j] += p[j]·dout
 *   ds[j]  = p[j]·(dout·v[j] - D)·scale            with a soft cap: · (1 - (s / cap)²)
 *   dq    += ds[j]·k[j],   dk[j] += ds[j]·q,   dsink -= exp(sink - lse)·D */
static void backward_row(const nbl__attention *a, const row *r, int64_t h, const sums *z)
{
    double lse = softmax(r, z->p, z->s), delta = 0;
    for (int64_t j = r->span.first; j < r->span.end; j++)
        delta += z->p[j - r->span.first] * dot(&a->dout, r->q_at, r->v, r->k_at + j * r->k_step, r->size);
    if (r->sink) z->dsinks[h] -= exp(*r->sink - lse) * delta;
    memset(z->dq, 0, (size_t)r->size * sizeof *z->dq);
    for (int64_t j = r->span.first; j < r->span.end; j++) {
        int64_t key = r->k_at + j * r->k_step;
        double p = z->p[j - r->span.first], s = z->s[j - r->span.first];
        double ds = p * (dot(&a->dout, r->q_at, r->v, key, r->size) - delta) * r->scale;
        if (r->cap != 0) ds *= 1 - (s / r->cap) * (s / r->cap);
        for (int64_t d = 0; d < r->size; d++) {
            z->dv[key + d] += p * nbl__ref_get(&a->dout, r->q_at + d);
            z->dk[key + d] += ds * nbl__ref_get(r->q, r->q_at + d);
            z->dq[d] += ds * nbl__ref_get(r->k, key + d);
        }
    }
    for (int64_t d = 0; d < r->size && nbl__has_data(&a->dq); d++)
        nbl__ref_set(&a->dq, r->q_at + d, z->dq[d]);
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__attention *a = arguments;
    NBL_TRY(nbl__attention_check_sequences(call, a));
    const int32_t *at = a->cu_seqlens.data;
    int64_t keys = nbl__tensor_elements(&a->k);
    sums z;
    layout(a, call->scratch, &z);
    memset(z.dk, 0, (size_t)keys * sizeof *z.dk);
    memset(z.dv, 0, (size_t)keys * sizeof *z.dv);
    memset(z.dsinks, 0, (size_t)a->q.shape[1] * sizeof *z.dsinks);
    for (int64_t b = 0; b + 1 < a->cu_seqlens.shape[0]; b++)
        for (int64_t i = 0; i < at[b + 1] - at[b]; i++)
            for (int64_t h = 0; h < a->q.shape[1]; h++) {
                row r = row_of(a, at[b], at[b + 1] - at[b], i, h);
                double sink = nbl__has_data(&a->sinks) ? nbl__ref_get(&a->sinks, h) : 0;
                r.sink = nbl__has_data(&a->sinks) ? &sink : NULL;
                backward_row(a, &r, h, &z);
            }
    for (int64_t i = 0; i < keys && nbl__has_data(&a->dk); i++) nbl__ref_set(&a->dk, i, z.dk[i]);
    for (int64_t i = 0; i < keys && nbl__has_data(&a->dv); i++) nbl__ref_set(&a->dv, i, z.dv[i]);
    for (int64_t h = 0; h < a->q.shape[1] && nbl__has_data(&a->dsinks); h++)
        nbl__ref_put(&a->dsinks, h, z.dsinks[h], a->accumulate);
    return NBL_OK;
}

/* ---- attention_decode ---- */

static size_t decode_scratch(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return (size_t)((const nbl__attention_decode *)arguments)->k.shape[1] * 2 * sizeof(double);
}

/* A query is the last row of its sequence: span of index length - 1. */
static nbl_status run_decode(const nbl__call *call, const void *arguments)
{
    const nbl__attention_decode *a = arguments;
    NBL_TRY(nbl__attention_check_lengths(call, a));
    int64_t heads = a->q.shape[1], key_heads = a->k.shape[2], size = a->q.shape[2], cached = a->k.shape[1];
    double *p = (double *)(void *)call->scratch, *s = p + cached;
    for (int64_t b = 0; b < a->q.shape[0]; b++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t length = ((const int32_t *)a->lengths.data)[b];
            double sink = nbl__has_data(&a->sinks) ? nbl__ref_get(&a->sinks, h) : 0;
            row r = {.q = &a->q,
                     .k = &a->k,
                     .v = &a->v,
                     .q_at = (b * heads + h) * size,
                     .k_at = (b * cached * key_heads + h / (heads / key_heads)) * size,
                     .k_step = key_heads * size,
                     .span = nbl__attention_span(NBL_MASK_OF(a), length - 1, length),
                     .size = size,
                     .scale = nbl__attention_scale(a->scale, size),
                     .cap = (double)a->softcap,
                     .sink = nbl__has_data(&a->sinks) ? &sink : NULL};
            softmax(&r, p, s);
            set_output(&r, p, &a->out, r.q_at);
        }
    return NBL_OK;
}

const nbl__impl nbl__attention_ref = {"attention_ref", NBL_ISA_SCALAR, NULL, forward_scratch, run_forward};
const nbl__impl nbl__attention_backward_ref = {"attention_backward_ref", NBL_ISA_SCALAR, NULL,
                                               backward_scratch, run_backward};
const nbl__impl nbl__attention_decode_ref = {"attention_decode_ref", NBL_ISA_SCALAR, NULL, decode_scratch,
                                             run_decode};
