/* gated_delta_cpu.c - gated_delta, its backward and gated_delta_step with AVX2 and AVX-512: memory,
 * items and threads around the kernels of gated_delta.inc. gated_delta_tile.h has the formulas.
 *
 *   forward    items: (sequence, key head); or (sequence, value head) where that feeds all threads
 *              for each chunk: q, k and their products once; then each value head
 *   backward   items: (sequence, key head), whose value heads share dq and dk
 *              the states before all chunks, then the chunks from the last to the first
 *   step       items: (sequence, value head)
 *
 * An item works through its sequence alone, so that the bits of a sequence's results are its own.
 *
 * Scratch per worker: some rows and squares of a chunk, in backward also a state per chunk and value
 * head of the group. Cost per token and value head at dk = dv = d: forward 2.5·64·d + 3·d²
 * multiply-adds, backward about four times as many. Limit: the fma units; a step: reading and writing
 * the state. */
#include "ops/recurrent/gated_delta_tile.h"

#include <math.h>

#include "base/team.h"
#include "ops/common/sequences.h"

double nbl__delta_decay(double rate, double pre)
{
    return -rate * (pre > 0 ? pre + log1p(exp(-pre)) : log1p(exp(pre)));
}

float nbl__delta_number(const nbl_tensor *t, int64_t at)
{
    float value;
    nbl__to_f32(NBL_ISA_SCALAR, t->dtype, (const uint8_t *)t->data + (size_t)at * nbl__size_of(t->dtype),
                &value, 1);
    return value;
}

#if defined(__x86_64__)

#include "ops/common/vmath.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { STEP_MAX = 1024 }; /* the largest dk of a step */

/* The left operand of a product: elements from row to row, and from k to k. */
typedef struct operand {
    const float *at;
    int64_t row, step;
} operand;

/* ---- what needs no vectors ---- */

static uint8_t *head_at(const nbl_tensor *t, int64_t token, int64_t head)
{
    return (uint8_t *)t->data +
           (size_t)(token * nbl__row_stride(t) + head * t->shape[2]) * nbl__size_of(t->dtype);
}

static float gate_at(const nbl_tensor *t, int64_t token, int64_t head)
{
    return nbl__delta_number(t, token * nbl__row_stride(t) + head);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* The gates of a chunk, in f64 until they are used. */
static void read_gates(const nbl__delta_job *job, nbl__delta_chunk *c, int64_t head)
{
    const nbl__gated_delta *a = job->a;
    double sums[NBL_DELTA_CHUNK], sum = 0;
    for (int64_t i = 0; i < c->n; i++) {
        double pre = (double)gate_at(&a->a, c->first + i, head) + (double)job->biases[head];
        /* NaN stays; -inf would make NaN of differences of sums. */
        double decay = nbl__delta_decay((double)job->rates[head], pre);
        sum += decay < NBL_DELTA_MIN_DECAY ? NBL_DELTA_MIN_DECAY : decay;
        sums[i] = sum;
        c->g_high[i] = (float)sum;
        c->g_low[i] = isfinite(c->g_high[i]) ? (float)(sum - (double)c->g_high[i]) : 0;
        c->from_start[i] = (float)exp(sum);
        c->beta[i] = (float)sigmoid((double)gate_at(&a->b, c->first + i, head));
    }
    for (int64_t i = c->n; i < NBL_DELTA_CHUNK; i++) c->g_high[i] = c->g_low[i] = 0;
    for (int64_t i = 0; i < c->n; i++) c->to_end[i] = (float)exp(sum - sums[i]);
    c->decay = (float)exp(sum);
}

/* dg from dG, then da, db, and the sums of da_log and ddt_bias. */
static void write_gates(const nbl__delta_job *job, nbl__delta_chunk *c, int64_t sequence, int64_t head)
{
    const nbl__gated_delta *a = job->a;
    double dg = 0;
    for (int64_t i = c->n - 1; i >= 0; i--) {
        double pre = (double)gate_at(&a->a, c->first + i, head) + (double)job->biases[head];
        double rate = (double)job->rates[head], b = (double)gate_at(&a->b, c->first + i, head);
        dg += c->dg[i];
        double da = -dg * rate * sigmoid(pre), db = (double)c->dbeta[i] * sigmoid(b) * sigmoid(-b);
        float values[2] = {(float)da, (float)db};
        size_t size = nbl__size_of(a->dtype);
        for (int k = 0; k < 2; k++) {
            const nbl_tensor *to = k ? &a->db : &a->da;
            if (!nbl__has_data(to)) continue;
            nbl__from_f32(NBL_ISA_SCALAR, &values[k], a->dtype,
                          (uint8_t *)to->data + (size_t)((c->first + i) * nbl__row_stride(to) + head) * size,
                          1);
        }
        job->ddt_bias[sequence * job->values + head] += da;
        job->da_log[sequence * job->values + head] += dg * nbl__delta_decay(rate, pre);
    }
}

static void step_gates(const nbl__gated_delta_step *a, int64_t sequence, int64_t head, double *decay,
                       double *beta)
{
    double pre = (double)gate_at(&a->a, sequence, head) + (double)nbl__delta_number(&a->dt_bias, head);
    *decay = exp(nbl__delta_decay(exp((double)nbl__delta_number(&a->a_log, head)), pre));
    *beta = sigmoid((double)gate_at(&a->b, sequence, head));
}

#define KERNELS "ops/recurrent/gated_delta.inc"
#include "ops/common/x86_widths.inc"

static const nbl__delta_kernels kernels_avx2 = {forward_avx2, backward_avx2, step_avx2};
static const nbl__delta_kernels kernels_avx512 = {forward_avx512, backward_avx512, step_avx512};

/* ---- memory ---- */

/* Cuts a worker's memory. Returns its floats. */
static int64_t cut_chunk(const nbl__delta_job *job, bool backward, int64_t chunks, uint8_t *base,
                         nbl__delta_chunk *c)
{
    enum { N = NBL_DELTA_CHUNK, SQUARE = NBL_DELTA_CHUNK * NBL_DELTA_LD };
    nbl__bump bump = {base, 0};
    int64_t keys = N * job->ldk, values = N * job->ldv, state = job->dk * job->ldv;
    int64_t wider = nbl__max_i64(job->ldk, job->ldv);
    *c = (nbl__delta_chunk){0};
    float **const rows_of_keys[] = {&c->q, &c->k}, **const rows_of_values[] = {&c->v, &c->x, &c->u, &c->room};
    float **const squares[] = {&c->kk, &c->qk, &c->d, &c->a, &c->p};
    float **const vectors[] = {&c->r_q, &c->r_k, &c->g_high, &c->g_low, &c->beta, &c->from_start, &c->to_end};
    for (int i = 0; i < 2; i++) NBL_BUMP_ALLOC(&bump, *rows_of_keys[i], keys);
    for (int i = 0; i < 4; i++) NBL_BUMP_ALLOC(&bump, *rows_of_values[i], values);
    for (int i = 0; i < 5; i++) NBL_BUMP_ALLOC(&bump, *squares[i], SQUARE);
    for (int i = 0; i < 7; i++) NBL_BUMP_ALLOC(&bump, *vectors[i], N);
    NBL_BUMP_ALLOC(&bump, c->kt, job->ldk * NBL_DELTA_LD);
    if (backward) {
        float **const more_values[] = {&c->d_o, &c->du};
        float **const more_keys[] = {&c->dq, &c->dk, &c->rows_q, &c->rows_k};
        for (int i = 0; i < 2; i++) NBL_BUMP_ALLOC(&bump, *more_values[i], values);
        for (int i = 0; i < 4; i++) NBL_BUMP_ALLOC(&bump, *more_keys[i], keys);
        NBL_BUMP_ALLOC(&bump, c->m, SQUARE);
        NBL_BUMP_ALLOC(&bump, c->n_part, SQUARE);
        NBL_BUMP_ALLOC(&bump, c->dbeta, N);
        NBL_BUMP_ALLOC(&bump, c->dg, N);
        NBL_BUMP_ALLOC(&bump, c->transposed, job->ldv * nbl__max_i64(wider, NBL_DELTA_LD));
        NBL_BUMP_ALLOC(&bump, c->starts, chunks * job->group * state);
        NBL_BUMP_ALLOC(&bump, c->ds, job->group * state);
    } else NBL_BUMP_ALLOC(&bump, c->states, job->group * state);
    return (int64_t)(bump.used / sizeof(float));
}

/* The most items that a call has. */
static int64_t items_of(const nbl__gated_delta *a, bool backward)
{
    return nbl__sequence_count(&a->cu_seqlens) * (backward ? a->q.shape[1] : a->v.shape[1]);
}

/* The whole scratch; base NULL measures it. The room for states is that of one sequence of all
 * tokens. */
static size_t layout(const nbl_context *ctx, const nbl__gated_delta *a, bool backward, uint8_t *base,
                     nbl__delta_job *job)
{
    nbl__bump bump = {base, 0};
    nbl__delta_chunk c;
    float *rates, *biases;
    *job = (nbl__delta_job){.a = a,
                            .keys = a->q.shape[1],
                            .values = a->v.shape[1],
                            .group = a->v.shape[1] / a->q.shape[1],
                            .dk = a->q.shape[2],
                            .dv = a->v.shape[2]};
    job->ldk = nbl__ceil_div(job->dk, NBL_DELTA_VECTOR) * NBL_DELTA_VECTOR + 16;
    job->ldv = nbl__ceil_div(job->dv, NBL_DELTA_VECTOR) * NBL_DELTA_VECTOR + 16;
    job->worker_floats = cut_chunk(job, backward, nbl__ceil_div(a->q.shape[0], NBL_DELTA_CHUNK) + 1, NULL,
                                   &c);
    NBL_BUMP_ALLOC(&bump, rates, job->values);
    NBL_BUMP_ALLOC(&bump, biases, job->values);
    job->rates = rates;
    job->biases = biases;
    if (backward) {
        int64_t sums = nbl__sequence_count(&a->cu_seqlens) * job->values;
        NBL_BUMP_ALLOC(&bump, job->da_log, sums);
        NBL_BUMP_ALLOC(&bump, job->ddt_bias, sums);
    }
    NBL_BUMP_ALLOC(&bump, job->worker, job->worker_floats * nbl__team_size(ctx, items_of(a, backward)));
    if (base == NULL) return bump.used;
    for (int64_t h = 0; h < job->values; h++) {
        rates[h] = expf(nbl__delta_number(&a->a_log, h));
        biases[h] = nbl__delta_number(&a->dt_bias, h);
    }
    return bump.used;
}

static size_t forward_scratch(const nbl_context *ctx, const void *arguments)
{
    nbl__delta_job job;
    return layout(ctx, arguments, false, NULL, &job);
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    nbl__delta_job job;
    return layout(ctx, arguments, true, NULL, &job);
}

/* ---- items ---- */

typedef struct delta_run {
    nbl__delta_job job;
    const nbl__delta_kernels *kernels;
    bool backward;
    int64_t chunks;
} delta_run;

static nbl_status run_item(void *argument, int64_t item, int worker)
{
    const delta_run *r = argument;
    const nbl__delta_job *job = &r->job;
    const nbl__gated_delta *a = job->a;
    nbl__delta_chunk c;
    int64_t across = job->values / job->heads_per_item, sequence = item / across;
    int64_t head = item % across * job->heads_per_item;
    cut_chunk(job, r->backward, r->chunks, (uint8_t *)(job->worker + worker * job->worker_floats), &c);
    if (r->backward) {
        r->kernels->backward(job, &c, sequence, head);
        return NBL_OK;
    }
    r->kernels->forward(job, &c, sequence, head);
    const nbl_tensor *last = nbl__has_data(&a->state) ? &a->state : &a->last;
    if (!nbl__has_data(last)) return NBL_OK;
    float *to = (float *)last->data + (sequence * job->values + head) * job->dk * job->dv;
    for (int64_t i = 0; i < job->heads_per_item * job->dk; i++)
        memcpy(to + i * job->dv, c.states + i * job->ldv, (size_t)job->dv * sizeof *to);
    return NBL_OK;
}

static nbl_status run_forward(const nbl__call *call, const nbl__gated_delta *a,
                              const nbl__delta_kernels *kernels)
{
    delta_run r = {.kernels = kernels, .chunks = nbl__ceil_div(a->q.shape[0], NBL_DELTA_CHUNK) + 1};
    layout(call->ctx, a, false, call->scratch, &r.job);
    NBL_TRY(nbl__check_packing(call, &a->cu_seqlens, "q", a->q.shape[0]));
    int64_t sequences = nbl__sequence_count(&a->cu_seqlens);
    bool enough = sequences * r.job.keys >= 2 * nbl__team_size(call->ctx, INT64_MAX);
    r.job.heads_per_item = enough ? r.job.group : 1;
    return nbl__team_run(call->ctx, sequences * r.job.values / r.job.heads_per_item, run_item, &r, NULL);
}

/* Writes the sums of a parameter's gradient, in the order of the sequences. */
static void put_sums(const nbl_tensor *to, const double *sums, int64_t sequences, int64_t values,
                     bool accumulate)
{
    float *out = to->data;
    for (int64_t h = 0; h < values && out; h++) {
        double sum = accumulate ? (double)out[h] : 0;
        for (int64_t s = 0; s < sequences; s++) sum += sums[s * values + h];
        out[h] = (float)sum;
    }
}

static nbl_status run_backward(const nbl__call *call, const nbl__gated_delta *a,
                               const nbl__delta_kernels *kernels)
{
    delta_run r = {
        .kernels = kernels, .backward = true, .chunks = nbl__ceil_div(a->q.shape[0], NBL_DELTA_CHUNK) + 1};
    layout(call->ctx, a, true, call->scratch, &r.job);
    NBL_TRY(nbl__check_packing(call, &a->cu_seqlens, "q", a->q.shape[0]));
    int64_t sequences = nbl__sequence_count(&a->cu_seqlens);
    r.job.heads_per_item = r.job.group;
    NBL_TRY(nbl__team_run(call->ctx, sequences * r.job.keys, run_item, &r, NULL));
    put_sums(&a->da_log, r.job.da_log, sequences, r.job.values, a->accumulate);
    put_sums(&a->ddt_bias, r.job.ddt_bias, sequences, r.job.values, a->accumulate);
    return NBL_OK;
}

typedef struct step_run {
    const nbl__gated_delta_step *a;
    const nbl__delta_kernels *kernels;
} step_run;

static nbl_status step_item(void *argument, int64_t item, int worker)
{
    const step_run *r = argument;
    (void)worker;
    r->kernels->step(r->a, item / r->a->v.shape[1], item % r->a->v.shape[1]);
    return NBL_OK;
}

static nbl_status run_step(const nbl__call *call, const nbl__gated_delta_step *a,
                           const nbl__delta_kernels *kernels)
{
    step_run r = {a, kernels};
    return nbl__team_run(call->ctx, a->v.shape[0] * a->v.shape[1], step_item, &r, NULL);
}

static const char *can_step(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return ((const nbl__gated_delta_step *)arguments)->q.shape[2] <= STEP_MAX ? NULL : "dk is above 1024";
}

/* Defines a row of dispatch for one operator and instruction set. */
#define IMPL(op, level, LEVEL, run_op, can, scratch)                                                         \
    static nbl_status run_##op##_##level(const nbl__call *call, const void *arguments)                       \
    {                                                                                                        \
        return run_op(call, arguments, &kernels_##level);                                                    \
    }                                                                                                        \
    const nbl__impl nbl__##op##_##level = {#op "_" #level, NBL_ISA_##LEVEL, can, scratch, run_##op##_##level};
IMPL(gated_delta, avx2, AVX2, run_forward, NULL, forward_scratch)
IMPL(gated_delta, avx512, AVX512, run_forward, NULL, forward_scratch)
IMPL(gated_delta_backward, avx2, AVX2, run_backward, NULL, backward_scratch)
IMPL(gated_delta_backward, avx512, AVX512, run_backward, NULL, backward_scratch)
IMPL(gated_delta_step, avx2, AVX2, run_step, can_step, NULL)
IMPL(gated_delta_step, avx512, AVX512, run_step, can_step, NULL)
#undef IMPL

#endif
