/* linear_group_ref.c - linear_group: the oracle. Each member runs as a reference linear. Their dx
 * are summed in f64 and rounded once. */
#include "ops/linear/linear_group.h"
#include "ops/ref.h"

/* Scratch: one member's dx and the sum, both f64 [tokens, in], then the scratch of linear. */
typedef struct scratch {
    double *dx, *sum;
    size_t used;
} scratch;

static scratch layout(const nbl__linear_group *group, bool backward, uint8_t *base)
{
    nbl__bump bump = {base, 0};
    int64_t n = backward ? nbl__tensor_elements(&group->members[0].x) : 0;
    scratch s;
    NBL_BUMP_ALLOC(&bump, s.dx, n);
    NBL_BUMP_ALLOC(&bump, s.sum, n);
    s.used = bump.used;
    return s;
}

/* The sums, and the scratch of the member that needs most. */
static size_t scratch_of(const nbl_context *ctx, const nbl__linear_group *group, const nbl__impl *impl,
                         bool backward)
{
    nbl__linear members[NBL_MAX_GROUP];
    size_t max = 0;
    nbl__linear_group_spread(group, members);
    for (int i = 0; i < group->count; i++) {
        size_t bytes = impl->scratch(ctx, &members[i]);
        if (bytes > max) max = bytes;
    }
    return layout(group, backward, NULL).used + max;
}

static size_t forward_scratch(const nbl_context *ctx, const void *arguments)
{
    return scratch_of(ctx, arguments, &nbl__linear_ref, false);
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    return scratch_of(ctx, arguments, &nbl__linear_backward_ref, true);
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__linear_group *group = arguments;
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    for (int i = 0; i < group->count; i++) NBL_TRY(nbl__linear_ref.run(call, &members[i]));
    return NBL_OK;
}

/* Runs each member's backward with its dx in f64, and adds up. Scratch is used even if dx is not
 * wanted, because a reference always computes it. */
static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__linear_group *group = arguments;
    nbl__linear members[NBL_MAX_GROUP];
    scratch s = layout(group, true, call->scratch);
    nbl__call inner = *call;
    const nbl_tensor *dx = &group->members[0].dx;
    int64_t n = nbl__tensor_elements(dx);
    inner.scratch += s.used;
    inner.scratch_bytes -= s.used;
    nbl__linear_group_spread(group, members);
    for (int i = 0; i < group->count; i++) {
        members[i].dx.dtype = NBL_DTYPE_F64;
        members[i].dx.data = s.dx;
        members[i].dx.row_stride = 0;
        NBL_TRY(nbl__linear_backward_ref.run(&inner, &members[i]));
        for (int64_t e = 0; e < n; e++) s.sum[e] = s.dx[e] + (i ? s.sum[e] : 0);
    }
    for (int64_t e = 0; nbl__has_data(dx) && e < n; e++) nbl__ref_set(dx, e, s.sum[e]);
    return NBL_OK;
}

const nbl__impl nbl__linear_group_ref = {"linear_group_ref", NBL_ISA_SCALAR, NULL, forward_scratch,
                                         run_forward};
const nbl__impl nbl__linear_group_backward_ref = {"linear_group_backward_ref", NBL_ISA_SCALAR, NULL,
                                                  backward_scratch, run_backward};
