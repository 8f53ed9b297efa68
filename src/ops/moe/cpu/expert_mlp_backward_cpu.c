/* expert_mlp_backward_cpu.c - expert_mlp_backward on the CPU, batch by batch, through experts_cpu.h.
 *
 *   v, dz = rows of x (times their weights) and of dy
 *   gu = gate_up(v)                              or the rows of gate_up_out (keep)
 *   q = down's dx of dz                          f32 [rows, I], without weights
 *   gu, q, dw = dgu, w·h, Σ h∘q + Σ bias∘dz      act_row; w is 1 with scales_input
 *   gradients of down                            from w·h and dz: t = s·(w·h)·Aᵀ
 *   dv = gate_up's dx of dgu                     f32 [rows, H]
 *   gradients of gate_up                         from v and dgu
 *   sums[token] += dv                            with scales_input w·dv, and dw = Σ dv∘x
 *
 * Gradients of parameters are cleared first unless they accumulate, so experts without rows have 0. */
#include "base/team.h"
#include "ops/linear/cpu/linear_rows.h"
#include "ops/moe/cpu/expert_act.h"
#include "ops/moe/cpu/expert_mlp_cpu.h"
#include "ops/moe/cpu/experts_cpu.h"

typedef struct backward_job {
    nbl__experts *j;
    nbl__expert_matrix v, dz, dv;
    float *gu, *q;
} backward_job;

/* The expert of a row of the batch. */
static int64_t expert_of(const nbl__experts *j, int64_t row)
{
    int i = 0;
    while (row >= j->range[i].row + j->range[i].rows) i++;
    assert(i < j->count);
    return j->range[i].expert;
}

/* Σ x·y of n elements, each of its own dtype, in f64. */
static double dot(nbl_isa isa, nbl_dtype x_dtype, const void *x, nbl_dtype y_dtype, const void *y, int64_t n)
{
    enum { SPAN = 256 };
    float xs[SPAN], ys[SPAN];
    double sum = 0;
    for (int64_t i = 0; i < n; i += SPAN) {
        int64_t count = nbl__min_i64(SPAN, n - i);
        nbl__to_f32(isa, x_dtype, (const uint8_t *)x + (size_t)i * nbl__size_of(x_dtype), xs, count);
        nbl__to_f32(isa, y_dtype, (const uint8_t *)y + (size_t)i * nbl__size_of(y_dtype), ys, count);
        for (int64_t k = 0; k < count; k++) sum += (double)xs[k] * (double)ys[k];
    }
    return sum;
}

static void put_weight_gradient(const nbl__experts *j, int64_t row, double value)
{
    if (nbl__has_data(&j->a->dweights))
        ((float *)j->a->dweights.data)[nbl__experts_pair(j, row)] = (float)value;
}

/* A row of a matrix. */
static const void *row_of(nbl__expert_matrix m, int64_t row)
{
    return (const uint8_t *)m.data + (size_t)(row * m.columns) * nbl__size_of(m.dtype);
}

static nbl_status act_row(void *argument, int64_t item, int worker)
{
    const backward_job *job = argument;
    const nbl__experts *j = job->j;
    const nbl__expert_mlp *a = j->a;
    const nbl_tensor *bias = &a->down.bias;
    int64_t inner = j->z.inner, out = j->z.out;
    float weight = a->scales_input ? 1 : nbl__experts_weight(j, item), *gu = job->gu + item * 2 * inner;
    (void)worker;
    if (a->keep)
        memcpy(gu, (const float *)a->gate_up_out.data + (j->row + item) * 2 * inner,
               (size_t)(2 * inner) * sizeof *gu);
    double dw = nbl__expert_act_backward(j->algo.isa, a, inner, weight, gu, job->q + item * inner);
    if (a->scales_input) return NBL_OK;
    if (nbl__has_data(bias))
        dw += dot(j->algo.isa, bias->dtype,
                  (const uint8_t *)bias->data +
                      (size_t)(expert_of(j, item) * out) * nbl__size_of(bias->dtype),
                  job->dz.dtype, row_of(job->dz, item), out);
    put_weight_gradient(j, item, dw);
    return NBL_OK;
}

/* scales_input: the weight's gradient is that of the row's input. */
static nbl_status weight_row(void *argument, int64_t item, int worker)
{
    const backward_job *job = argument;
    const nbl__experts *j = job->j;
    const nbl_tensor *x = &j->a->x;
    int64_t token = nbl__experts_pair(j, item) / j->z.top_k;
    (void)worker;
    put_weight_gradient(j, item,
                        dot(j->algo.isa, x->dtype,
                            (const uint8_t *)x->data + (size_t)(token * j->z.in) * nbl__size_of(x->dtype),
                            NBL_DTYPE_F32, row_of(job->dv, item), j->z.in));
    return NBL_OK;
}

static nbl_status each_row(backward_job *job, nbl__team_fn fn)
{
    nbl__experts *j = job->j;
    return j->ctx ? nbl__team_run(j->ctx, j->end - j->row, fn, job, NULL) : NBL_OK;
}

/* Clears the gradients of a layer's parameters, unless they are added to. */
static void clear(const nbl__experts *j, const nbl__expert_linear *l)
{
    const nbl_tensor *gradients[] = {&l->dbias, &l->dlora_a, &l->dlora_b, &l->dw};
    for (size_t i = 0; i < sizeof gradients / sizeof *gradients && j->ctx && !j->a->accumulate; i++)
        if (nbl__experts_wants(j, gradients[i]))
            memset(gradients[i]->data, 0, (size_t)nbl__tensor_elements(gradients[i]) * sizeof(float));
}

/* Does a layer's parameter get a gradient? */
static bool trains(const nbl__experts *j, const nbl__expert_linear *l)
{
    return nbl__experts_wants(j, &l->dbias) || nbl__experts_wants(j, &l->dlora_a) ||
           nbl__experts_wants(j, &l->dlora_b) || nbl__experts_wants(j, &l->dw);
}

/* One batch. `open`: gate_up's gradients or dx are wanted. */
static nbl_status batch(backward_job *job, bool open, float *sums)
{
    nbl__experts *j = job->j;
    const nbl__expert_mlp *a = j->a;
    nbl__expert_layer *first = &j->layer[0], *second = &j->layer[1];
    nbl__expert_matrix gu = {NBL_DTYPE_F32, job->gu, first->out}, h = {NBL_DTYPE_F32, job->q, second->in};
    NBL_TRY(nbl__experts_gather(j, &a->x, a->scales_input, job->v));
    NBL_TRY(nbl__experts_gather(j, &a->dy, false, job->dz));
    NBL_TRY(nbl__experts_load_b(j, first));
    NBL_TRY(nbl__experts_load_b(j, second));
    bool need_t = nbl__experts_wants(j, &a->gate_up.dlora_b);
    if (!a->keep || need_t) NBL_TRY(nbl__experts_apply(j, first, job->v, a->keep ? NULL : job->gu));
    NBL_TRY(nbl__experts_differentiate(j, second, job->dz, job->q));
    NBL_TRY(each_row(job, act_row));
    if (trains(j, &a->down)) {
        if (nbl__experts_wants(j, &a->down.dlora_b)) NBL_TRY(nbl__experts_apply(j, second, h, NULL));
        NBL_TRY(nbl__experts_gradients(j, second, h, job->dz));
    }
    if (!open) return NBL_OK;
    NBL_TRY(nbl__experts_differentiate(j, first, gu, sums ? job->dv.data : NULL));
    NBL_TRY(nbl__experts_gradients(j, first, job->v, gu));
    if (sums == NULL) return NBL_OK;
    if (a->scales_input && nbl__experts_wants(j, &a->dweights)) NBL_TRY(each_row(job, weight_row));
    return nbl__experts_add(j, job->dv, a->scales_input, sums);
}

static nbl_status backward(nbl__experts *j)
{
    const nbl__expert_mlp *a = j->a;
    nbl__expert_layer *first = &j->layer[0], *second = &j->layer[1];
    backward_job job = {.j = j,
                        .v = {a->scales_input ? NBL_DTYPE_F32 : a->dtype, NULL, first->in},
                        .dz = {a->dtype, NULL, second->out},
                        .dv = {NBL_DTYPE_F32, NULL, first->in}};
    bool weights = a->scales_input && nbl__experts_wants(j, &a->dweights);
    bool dx = nbl__experts_wants(j, &a->dx), in_place = dx && j->ctx && a->dtype == NBL_DTYPE_F32;
    float *sums;
    job.v.data = nbl__bump_alloc(&j->bump, (size_t)(j->max_rows * job.v.columns) * nbl__size_of(job.v.dtype));
    job.dz.data = nbl__bump_alloc(&j->bump,
                                  (size_t)(j->max_rows * job.dz.columns) * nbl__size_of(job.dz.dtype));
    job.dv.data = nbl__bump_alloc(&j->bump, (size_t)(j->max_rows * job.dv.columns) * sizeof(float));
    NBL_BUMP_ALLOC(&j->bump, job.gu, j->max_rows * first->out);
    NBL_BUMP_ALLOC(&j->bump, job.q, j->max_rows * second->in);
    NBL_BUMP_ALLOC(&j->bump, sums, j->z.tokens * first->in);
    if (in_place) sums = a->dx.data;
    if (!dx && !weights) sums = NULL;
    if (j->ctx && sums) memset(sums, 0, (size_t)(j->z.tokens * first->in) * sizeof *sums);
    clear(j, &a->gate_up);
    clear(j, &a->down);
    bool open = sums != NULL || trains(j, &a->gate_up);
    while (nbl__experts_next(j)) NBL_TRY(batch(&job, open, sums));
    return dx ? nbl__experts_round(j, sums, &a->dx) : NBL_OK;
}

static size_t backward_scratch(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__expert_mlp *a)
{
    return nbl__experts_measure(ctx, a, algo, true, backward);
}

static nbl_status backward_run(const nbl__call *call, nbl__gemm_algo algo, const nbl__expert_mlp *a)
{
    nbl__experts j;
    NBL_TRY(nbl__expert_mlp_check(call->ctx, call->op, a));
    nbl__experts_open(&j, a, call->ctx, call->ctx, algo, true, call->scratch, call->scratch_bytes);
    return backward(&j);
}

static nbl__linear_traits backward_traits(const nbl__expert_mlp *a)
{
    return nbl__expert_mlp_traits(a, true);
}

NBL_EXPERT_ROWS_OF(NBL_LINEAR_ROW, expert_mlp_backward, backward)
