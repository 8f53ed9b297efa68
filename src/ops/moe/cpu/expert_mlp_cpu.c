/* expert_mlp_cpu.c - expert_mlp on the CPU, batch by batch, through experts_cpu.h.
 *
 *   v = rows of x (times their weights)
 *   gu = gate_up(v)             f32 [rows, 2I]; with `keep` the rows of gate_up_out
 *   h = act(gu)                 f32 [rows, I]
 *   y = down(h)                 f32 [rows, H']
 *   sums[token] += w·y          f32 [tokens, H']; rounded to y at the end
 *
 * Scratch: v, gu, h and y of a batch, the sums unless y is f32, and what experts_cpu.h needs. */
#include "base/team.h"
#include "ops/linear/cpu/linear_rows.h"
#include "ops/moe/cpu/expert_act.h"
#include "ops/moe/cpu/expert_mlp_cpu.h"
#include "ops/moe/cpu/experts_cpu.h"
#include "ops/moe/expert_order.h"

/* ---- the activation ---- */

typedef struct act_job {
    const nbl__experts *j;
    const float *gu;
    float *h;
} act_job;

static nbl_status act_row(void *argument, int64_t item, int worker)
{
    const act_job *job = argument;
    int64_t inner = job->j->z.inner;
    (void)worker;
    nbl__expert_act(job->j->algo.isa, job->j->a, inner, job->gu + item * 2 * inner, job->h + item * inner);
    return NBL_OK;
}

/* ---- forward ---- */

static nbl_status forward(nbl__experts *j)
{
    const nbl__expert_mlp *a = j->a;
    nbl__expert_layer *first = &j->layer[0], *second = &j->layer[1];
    nbl__expert_matrix v = {a->scales_input ? NBL_DTYPE_F32 : a->dtype, NULL, first->in};
    nbl__expert_matrix h = {NBL_DTYPE_F32, NULL, second->in}, y = {NBL_DTYPE_F32, NULL, second->out};
    bool in_place = a->dtype == NBL_DTYPE_F32;
    float *gu = NULL, *sums;
    v.data = nbl__bump_alloc(&j->bump, (size_t)(j->max_rows * v.columns) * nbl__size_of(v.dtype));
    if (!a->keep) NBL_BUMP_ALLOC(&j->bump, gu, j->max_rows * first->out);
    h.data = nbl__bump_alloc(&j->bump, (size_t)(j->max_rows * h.columns) * sizeof(float));
    y.data = nbl__bump_alloc(&j->bump, (size_t)(j->max_rows * y.columns) * sizeof(float));
    NBL_BUMP_ALLOC(&j->bump, sums, in_place ? 0 : j->z.tokens * second->out);
    if (in_place && j->ctx) sums = a->y.data;
    if (j->ctx) memset(sums, 0, (size_t)(j->z.tokens * second->out) * sizeof *sums);
    while (nbl__experts_next(j)) {
        float *out = gu;
        if (a->keep && j->ctx) out = (float *)a->gate_up_out.data + j->row * first->out;
        if (a->keep && !j->ctx) out = y.data;
        NBL_TRY(nbl__experts_gather(j, &a->x, a->scales_input, v));
        NBL_TRY(nbl__experts_load_b(j, first));
        NBL_TRY(nbl__experts_load_b(j, second));
        NBL_TRY(nbl__experts_apply(j, first, v, out));
        act_job job = {j, out, h.data};
        if (j->ctx) NBL_TRY(nbl__team_run(j->ctx, j->end - j->row, act_row, &job, NULL));
        NBL_TRY(nbl__experts_apply(j, second, h, y.data));
        NBL_TRY(nbl__experts_add(j, y, !a->scales_input, sums));
    }
    return nbl__experts_round(j, sums, &a->y);
}

nbl_status nbl__expert_mlp_check(nbl_context *ctx, const char *op, const nbl__expert_mlp *a)
{
    NBL_TRY(nbl__expert_order_check(ctx, op, &a->offsets, &a->pairs));
    NBL_TRY(nbl__check_stack_members(ctx, op, &a->gate_up.w));
    return nbl__check_stack_members(ctx, op, &a->down.w);
}

static size_t forward_scratch(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__expert_mlp *a)
{
    return nbl__experts_measure(ctx, a, algo, false, forward);
}

static nbl_status forward_run(const nbl__call *call, nbl__gemm_algo algo, const nbl__expert_mlp *a)
{
    nbl__experts j;
    NBL_TRY(nbl__expert_mlp_check(call->ctx, call->op, a));
    nbl__experts_open(&j, a, call->ctx, call->ctx, algo, false, call->scratch, call->scratch_bytes);
    return forward(&j);
}

/* ---- rows ---- */

/* `tokens` decides between gemv and panels: here, the mean number of rows per expert does. */
nbl__linear_traits nbl__expert_mlp_traits(const nbl__expert_mlp *a, bool backward)
{
    enum { BY_ROW = 2, MANY = 9 };
    nbl__expert_sizes z = nbl__expert_sizes_of(a);
    int64_t mean = nbl__expert_mean_rows(&z);
    return (nbl__linear_traits){.dtype = a->dtype,
                                .tokens = mean <= BY_ROW ? 1 : nbl__max_i64(mean, MANY),
                                .backward = backward,
                                .outputs = true};
}

static nbl__linear_traits forward_traits(const nbl__expert_mlp *a)
{
    return nbl__expert_mlp_traits(a, false);
}

NBL_EXPERT_ROWS_OF(NBL_LINEAR_ROW, expert_mlp, forward)
