/* gated_delta_ref.c - gated_delta, its backward and gated_delta_step by the recurrence, token by
 * token: the oracle. Scalar, f64, one rounding per result.
 *
 * Backward of a token, given dS, the gradient of the state after it, with S' = e^g·S before it and
 * x = v - S'ᵀk:
 *
 *   dS  += q doᵀ                dq = S do
 *   du   = dSᵀ k                dβ = du·x,   dv = β·du
 *   dk   = dS u - β·S' du       dS' = dS - k (β·du)ᵀ
 *   dg   = Σ dS' ∘ S'           dS = e^g·dS', of the token before
 *
 * The states of BLOCK tokens are kept at a time; those before each block are kept for all. */
#include "ops/recurrent/gated_delta.h"

#include <math.h>

#include "ops/common/sequences.h"
#include "ops/ref.h"

enum { BLOCK = 64 };

/* The operands of a head, and where it stands. */
typedef struct head {
    const nbl_tensor *q, *k, *v, *a, *b, *a_log, *dt_bias;
    int64_t keys, values, dk, dv; /* heads, and sizes of a head */
    int64_t h;                    /* the value head */
} head;

/* What a token of a head adds, of normalized vectors. */
typedef struct token {
    double *q, *k, *v; /* [dk], [dk], [dv]; q with its factor */
    double r_q, r_k;   /* the factors of the normalization; r_q without 1 / √dk */
    double g, beta;
    double decay_rate; /* -exp(a_log) */
    double pre;        /* a + dt_bias */
} token;

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

/* Copies a head's row, scaled to length 1. Returns the scale. */
static double normalized(const nbl_tensor *t, int64_t at, int64_t n, double *to)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        to[i] = nbl__ref_get(t, at + i);
        sum += to[i] * to[i];
    }
    double r = 1 / sqrt(sum + NBL_GATED_DELTA_EPS);
    for (int64_t i = 0; i < n; i++) to[i] *= r;
    return r;
}

static void read_token(const head *it, int64_t t, token *x)
{
    int64_t key = it->h / (it->values / it->keys), at = (t * it->keys + key) * it->dk;
    x->r_q = normalized(it->q, at, it->dk, x->q);
    x->r_k = normalized(it->k, at, it->dk, x->k);
    for (int64_t i = 0; i < it->dk; i++) x->q[i] /= sqrt((double)it->dk);
    for (int64_t i = 0; i < it->dv; i++) x->v[i] = nbl__ref_get(it->v, (t * it->values + it->h) * it->dv + i);
    x->pre = nbl__ref_get(it->a, t * it->values + it->h) + nbl__ref_get(it->dt_bias, it->h);
    x->decay_rate = -exp(nbl__ref_get(it->a_log, it->h));
    x->g = x->decay_rate * softplus(x->pre);
    x->beta = sigmoid(nbl__ref_get(it->b, t * it->values + it->h));
}

/* S becomes the state after the token. With o: what the token reads. u gets β·(v - S'ᵀk). */
static void advance(const head *it, const token *x, double *state, double *u, double *o)
{
    double decay = exp(x->g);
    for (int64_t i = 0; i < it->dk * it->dv; i++) state[i] *= decay;
    for (int64_t j = 0; j < it->dv; j++) {
        double read = 0;
        for (int64_t i = 0; i < it->dk; i++) read += state[i * it->dv + j] * x->k[i];
        u[j] = x->beta * (x->v[j] - read);
    }
    for (int64_t i = 0; i < it->dk; i++)
        for (int64_t j = 0; j < it->dv; j++) state[i * it->dv + j] += x->k[i] * u[j];
    for (int64_t j = 0; j < it->dv && o; j++) {
        o[j] = 0;
        for (int64_t i = 0; i < it->dk; i++) o[j] += state[i * it->dv + j] * x->q[i];
    }
}

/* Scratch. */
typedef struct pieces {
    token x;
    double *state, *u, *o;
    /* backward */
    double *starts;         /* [blocks, dk, dv]: the state before each block */
    double *before;         /* [BLOCK, dk, dv]: the state before each token of a block */
    double *ds, *du;        /* [dk, dv], [dv] */
    double *dq, *dk;        /* [T, dk]: sums over the value heads of a key head */
    double *da_log, *dbias; /* [Hv] */
    size_t used;
} pieces;

static pieces lay_out(const head *it, int64_t tokens, uint8_t *base, bool backward)
{
    nbl__bump bump = {base, 0};
    pieces p = {0};
    int64_t state = it->dk * it->dv;
    NBL_BUMP_ALLOC(&bump, p.x.q, it->dk);
    NBL_BUMP_ALLOC(&bump, p.x.k, it->dk);
    NBL_BUMP_ALLOC(&bump, p.x.v, it->dv);
    NBL_BUMP_ALLOC(&bump, p.state, state);
    NBL_BUMP_ALLOC(&bump, p.u, it->dv);
    NBL_BUMP_ALLOC(&bump, p.o, it->dv);
    if (backward) {
        NBL_BUMP_ALLOC(&bump, p.starts, (tokens / BLOCK + 1) * state);
        NBL_BUMP_ALLOC(&bump, p.before, (int64_t)BLOCK * state);
        NBL_BUMP_ALLOC(&bump, p.ds, state);
        NBL_BUMP_ALLOC(&bump, p.du, it->dv);
        NBL_BUMP_ALLOC(&bump, p.dq, tokens * it->dk);
        NBL_BUMP_ALLOC(&bump, p.dk, tokens * it->dk);
        NBL_BUMP_ALLOC(&bump, p.da_log, it->values);
        NBL_BUMP_ALLOC(&bump, p.dbias, it->values);
    }
    p.used = bump.used;
    return p;
}

static head head_of(const nbl__gated_delta *a)
{
    return (head){&a->q,       &a->k,         &a->v,         &a->a,         &a->b,         &a->a_log,
                  &a->dt_bias, a->q.shape[1], a->v.shape[1], a->q.shape[2], a->v.shape[2], 0};
}

static size_t forward_scratch(const nbl_context *ctx, const void *arguments)
{
    head it = head_of(arguments);
    (void)ctx;
    return lay_out(&it, 0, NULL, false).used;
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    head it = head_of(arguments);
    (void)ctx;
    return lay_out(&it, it.q->shape[0], NULL, true).used;
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__gated_delta *a = arguments;
    NBL_TRY(nbl__check_packing(call, &a->cu_seqlens, "q", a->q.shape[0]));
    const int32_t *at = a->cu_seqlens.data;
    const nbl_tensor *last = nbl__has_data(&a->state) ? &a->state : &a->last;
    head it = head_of(a);
    pieces p = lay_out(&it, 0, call->scratch, false);
    int64_t state = it.dk * it.dv;
    for (int64_t s = 0; s < nbl__sequence_count(&a->cu_seqlens); s++)
        for (it.h = 0; it.h < it.values; it.h++) {
            memset(p.state, 0, (size_t)state * sizeof *p.state);
            for (int64_t t = at[s]; t < at[s + 1]; t++) {
                read_token(&it, t, &p.x);
                advance(&it, &p.x, p.state, p.u, p.o);
                for (int64_t j = 0; j < it.dv; j++)
                    nbl__ref_set(&a->o, (t * it.values + it.h) * it.dv + j, p.o[j]);
            }
            for (int64_t i = 0; i < state; i++)
                nbl__ref_set(last, (s * it.values + it.h) * state + i, p.state[i]);
        }
    return NBL_OK;
}

/* ---- backward ---- */

/* The products of dS, S' and the token's vectors: dq, dk (added), dv (written to p->du), dg, dβ.
 * p->state: the state after the token; before: the one before it. */
static void backward_products(const head *it, const nbl__gated_delta *a, int64_t t, const double *before,
                              const pieces *p, double *dq, double *dk, double *dg, double *dbeta)
{
    const token *x = &p->x;
    double decay = exp(x->g);
    for (int64_t j = 0; j < it->dv; j++)
        p->o[j] = nbl__ref_get(&a->d_o, (t * it->values + it->h) * it->dv + j);
    for (int64_t i = 0; i < it->dk; i++)
        for (int64_t j = 0; j < it->dv; j++) {
            dq[i] += p->state[i * it->dv + j] * p->o[j];
            p->ds[i * it->dv + j] += x->q[i] * p->o[j];
            dk[i] += p->ds[i * it->dv + j] * p->u[j];
        }
    *dbeta = *dg = 0;
    for (int64_t j = 0; j < it->dv; j++) {
        double du = 0, read = 0;
        for (int64_t i = 0; i < it->dk; i++) {
            du += p->ds[i * it->dv + j] * x->k[i];
            read += decay * before[i * it->dv + j] * x->k[i];
        }
        *dbeta += du * (x->v[j] - read);
        p->du[j] = x->beta * du;
    }
    for (int64_t i = 0; i < it->dk; i++)
        for (int64_t j = 0; j < it->dv; j++) {
            double decayed = decay * before[i * it->dv + j];
            dk[i] -= decayed * p->du[j];
            p->ds[i * it->dv + j] -= x->k[i] * p->du[j];
            *dg += p->ds[i * it->dv + j] * decayed;
            p->ds[i * it->dv + j] *= decay;
        }
}

/* Tokens of one block of a head, the last one first. */
static void backward_block(const head *it, const nbl__gated_delta *a, int64_t first, int64_t begin,
                           int64_t end, pieces *p)
{
    int64_t state = it->dk * it->dv;
    memcpy(p->state, p->starts + (begin - first) / BLOCK * state, (size_t)state * sizeof *p->state);
    for (int64_t t = begin; t < end; t++) {
        memcpy(p->before + (t - begin) * state, p->state, (size_t)state * sizeof *p->state);
        read_token(it, t, &p->x);
        advance(it, &p->x, p->state, p->u, NULL);
    }
    for (int64_t t = end; t-- > begin;) {
        const double *before = p->before + (t - begin) * state;
        double dg, dbeta;
        memcpy(p->state, before, (size_t)state * sizeof *p->state);
        read_token(it, t, &p->x);
        advance(it, &p->x, p->state, p->u, NULL);
        backward_products(it, a, t, before, p, p->dq + (t - first) * it->dk, p->dk + (t - first) * it->dk,
                          &dg, &dbeta);
        int64_t gate = t * it->values + it->h;
        double da = dg * p->x.decay_rate * sigmoid(p->x.pre);
        for (int64_t j = 0; j < it->dv; j++) nbl__ref_set(&a->dv, gate * it->dv + j, p->du[j]);
        nbl__ref_set(&a->da, gate, da);
        nbl__ref_set(&a->db, gate, dbeta * p->x.beta * (1 - p->x.beta));
        p->dbias[it->h] += da;
        p->da_log[it->h] += dg * p->x.g;
    }
}

/* Through the normalization of a row x: d = r·(d̂ - x̂·(x̂·d̂)). */
static void put_row(const nbl_tensor *to, const nbl_tensor *x, int64_t at, const double *d, double factor,
                    int64_t n, double *hat)
{
    double r = normalized(x, at, n, hat), dot = 0;
    for (int64_t i = 0; i < n; i++) dot += hat[i] * d[i] * factor;
    for (int64_t i = 0; i < n; i++) nbl__ref_set(to, at + i, r * (d[i] * factor - hat[i] * dot));
}

/* The value heads of one key head, over one sequence. */
static void backward_sequence(head *it, const nbl__gated_delta *a, int64_t key, int64_t first, int64_t end,
                              pieces *p)
{
    int64_t group = it->values / it->keys, state = it->dk * it->dv, n = end - first;
    memset(p->dq, 0, (size_t)(n * it->dk) * sizeof *p->dq);
    memset(p->dk, 0, (size_t)(n * it->dk) * sizeof *p->dk);
    for (it->h = key * group; it->h < (key + 1) * group; it->h++) {
        memset(p->state, 0, (size_t)state * sizeof *p->state);
        memset(p->ds, 0, (size_t)state * sizeof *p->ds);
        for (int64_t t = first; t < end; t++) {
            if ((t - first) % BLOCK == 0)
                memcpy(p->starts + (t - first) / BLOCK * state, p->state, (size_t)state * sizeof *p->state);
            read_token(it, t, &p->x);
            advance(it, &p->x, p->state, p->u, NULL);
        }
        for (int64_t block = nbl__ceil_div(n, BLOCK); block-- > 0;) {
            int64_t begin = first + block * BLOCK;
            backward_block(it, a, first, begin, nbl__min_i64(begin + BLOCK, end), p);
        }
    }
    for (int64_t t = first; t < end; t++) {
        int64_t at = (t * it->keys + key) * it->dk;
        put_row(&a->dq, &a->q, at, p->dq + (t - first) * it->dk, 1 / sqrt((double)it->dk), it->dk, p->x.q);
        put_row(&a->dk, &a->k, at, p->dk + (t - first) * it->dk, 1, it->dk, p->x.k);
    }
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__gated_delta *a = arguments;
    NBL_TRY(nbl__check_packing(call, &a->cu_seqlens, "q", a->q.shape[0]));
    const int32_t *at = a->cu_seqlens.data;
    head it = head_of(a);
    pieces p = lay_out(&it, a->q.shape[0], call->scratch, true);
    memset(p.da_log, 0, (size_t)it.values * sizeof *p.da_log);
    memset(p.dbias, 0, (size_t)it.values * sizeof *p.dbias);
    for (int64_t s = 0; s < nbl__sequence_count(&a->cu_seqlens); s++)
        for (int64_t key = 0; key < it.keys; key++) backward_sequence(&it, a, key, at[s], at[s + 1], &p);
    for (int64_t h = 0; h < it.values; h++) {
        nbl__ref_put(&a->da_log, h, p.da_log[h], a->accumulate);
        nbl__ref_put(&a->ddt_bias, h, p.dbias[h], a->accumulate);
    }
    return NBL_OK;
}

/* ---- gated_delta_step ---- */

static head head_of_step(const nbl__gated_delta_step *a)
{
    return (head){&a->q,       &a->k,         &a->v,         &a->a,         &a->b,         &a->a_log,
                  &a->dt_bias, a->q.shape[1], a->v.shape[1], a->q.shape[2], a->v.shape[2], 0};
}

static size_t step_scratch(const nbl_context *ctx, const void *arguments)
{
    head it = head_of_step(arguments);
    (void)ctx;
    return lay_out(&it, 0, NULL, false).used;
}

static nbl_status run_step(const nbl__call *call, const void *arguments)
{
    const nbl__gated_delta_step *a = arguments;
    head it = head_of_step(a);
    pieces p = lay_out(&it, 0, call->scratch, false);
    int64_t state = it.dk * it.dv;
    for (int64_t s = 0; s < a->q.shape[0]; s++)
        for (it.h = 0; it.h < it.values; it.h++) {
            int64_t row = s * it.values + it.h;
            for (int64_t i = 0; i < state; i++) p.state[i] = nbl__ref_get(&a->state, row * state + i);
            read_token(&it, s, &p.x);
            advance(&it, &p.x, p.state, p.u, p.o);
            for (int64_t j = 0; j < it.dv; j++) nbl__ref_set(&a->o, row * it.dv + j, p.o[j]);
            for (int64_t i = 0; i < state; i++)
                nbl__ref_set(a->in_place ? &a->state : &a->next, row * state + i, p.state[i]);
        }
    return NBL_OK;
}

const nbl__impl nbl__gated_delta_ref = {"gated_delta_ref", NBL_ISA_SCALAR, NULL, forward_scratch,
                                        run_forward};
const nbl__impl nbl__gated_delta_backward_ref = {"gated_delta_backward_ref", NBL_ISA_SCALAR, NULL,
                                                 backward_scratch, run_backward};
const nbl__impl nbl__gated_delta_step_ref = {"gated_delta_step_ref", NBL_ISA_SCALAR, NULL, step_scratch,
                                             run_step};
