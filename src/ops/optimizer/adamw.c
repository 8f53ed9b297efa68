/* adamw.c - the family adamw: checks. Its tensors are a list, so that it has no slots. */
#include "ops/optimizer/adamw.h"

#include <math.h>
#include <stdio.h>

#include "ops/families.h"

nbl__adamw_factors nbl__adamw_factors_of(const nbl__adamw *a)
{
    double shrink = a->lr * a->weight_decay, step = (double)a->step;
    return (nbl__adamw_factors){.shrink_before = a->bits == 32 ? shrink : 0,
                                .shrink_after = a->bits == 32 ? 0 : shrink,
                                .step_size = a->lr / (1 - pow(a->beta1, step)),
                                .root_scale = 1 / sqrt(1 - pow(a->beta2, step))};
}

double nbl__adamw_scale(const nbl__adamw *a)
{
    return a->grad_factor ? a->grad_scale * (double)*a->grad_factor : a->grad_scale;
}

static nbl_status check_one(nbl_context *ctx, const char *part, int64_t i, int64_t count, const nbl_tensor *t,
                            nbl_dtype dtype, int rank, const int64_t *shape)
{
    char name[48];
    if (count == 1) snprintf(name, sizeof name, "%s", part);
    else snprintf(name, sizeof name, "%s of tensor %" PRId64, part, i);
    NBL_CHECK(ctx, nbl__has_data(t), NBL_ERROR_ARGUMENT, "adamw: no %s", name);
    if (dtype == NBL_DTYPE_COUNT) NBL_TRY(nbl__check_float(ctx, "adamw", name, t));
    else NBL_TRY(nbl__check_dtype(ctx, "adamw", name, t, dtype));
    return nbl__check_dims(ctx, "adamw", name, t, rank, shape);
}

static nbl_status check_tensor(nbl_context *ctx, const nbl__adamw *a, int64_t i)
{
    const nbl__adamw_tensor *t = &a->tensors[i];
    nbl_dtype any = NBL_DTYPE_COUNT, state = a->bits == 8 ? NBL_DTYPE_U8 : NBL_DTYPE_F32;
    int rank = t->p.rank;
    const int64_t *shape = t->p.shape;
    NBL_TRY(check_one(ctx, "p", i, a->count, &t->p, any, rank, shape));
    NBL_TRY(check_one(ctx, "g", i, a->count, &t->g, any, rank, shape));
    NBL_TRY(check_one(ctx, "m", i, a->count, &t->m, state, rank, shape));
    NBL_TRY(check_one(ctx, "v", i, a->count, &t->v, state, rank, shape));
    if (a->bits != 8) return NBL_OK;
    int64_t blocks = nbl__ceil_div(nbl__tensor_elements(&t->p), NBL_ADAMW_BLOCK);
    NBL_TRY(check_one(ctx, "m.absmax", i, a->count, &t->m_absmax, NBL_DTYPE_F32, 1, &blocks));
    return check_one(ctx, "v.absmax", i, a->count, &t->v_absmax, NBL_DTYPE_F32, 1, &blocks);
}

static nbl_status infer(nbl_context *ctx, void *arguments)
{
    const nbl__adamw *a = arguments;
    const struct {
        const char *name;
        double value, min, below;
    } numbers[] = {{"lr", a->lr, 0, INFINITY},
                   {"beta1", a->beta1, 0, 1},
                   {"beta2", a->beta2, 0, 1},
                   {"eps", a->eps, 0, INFINITY},
                   {"weight_decay", a->weight_decay, 0, INFINITY},
                   {"grad_scale", a->grad_scale, -INFINITY, INFINITY}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        NBL_CHECK(ctx, numbers[i].value >= numbers[i].min && numbers[i].value < numbers[i].below,
                  NBL_ERROR_ARGUMENT, "adamw: %s is %g, not in [%g, %g)", numbers[i].name, numbers[i].value,
                  numbers[i].min, numbers[i].below);
    NBL_CHECK(ctx, a->step >= 1, NBL_ERROR_ARGUMENT, "adamw: step is %" PRId64 "; the first is 1", a->step);
    NBL_CHECK(ctx, a->bits == 32 || a->bits == 8, NBL_ERROR_ARGUMENT, "adamw: bits is %d, not 32 or 8",
              a->bits);
    for (int64_t i = 0; i < a->count; i++) NBL_TRY(check_tensor(ctx, a, i));
    return NBL_OK;
}

static const nbl__slot no_slots[] = {{0}};
static const nbl__attr no_attrs[] = {{0}};
#define ROWS(X) X(adamw_cpu) X(adamw_ref)
NBL_IMPLS(impls, ROWS);
const nbl__family nbl__adamw_family = {
    "adamw", sizeof(nbl__adamw), no_slots, no_attrs, {"adamw", infer, impls}, {0}, {.forward = 12},
};
