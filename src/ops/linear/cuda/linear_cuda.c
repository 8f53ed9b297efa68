/* linear_cuda.c - the rows of linear and linear_group on the device, through linear_cuda.h.
 *
 * linear is a group of one. A group's members are spread first (nbl__linear_group_spread), so that
 * each has its own copy of the shared arguments. Rows that need dense tensors decline strided ones;
 * dense_rows_cuda.c then copies. */
#include "ops/families.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/linear/linear_group.h"

#define FORWARD_ROWS(op, direction)                                                                          \
    NBL_CUDA_LINEAR_ROW(op, direction, gemv_sm90, NBL_CUDA_GEMV_SM90)                                        \
    NBL_CUDA_LINEAR_ROW(op, direction, gemv, NBL_CUDA_GEMV)                                                  \
    BACKWARD_ROWS(op, direction)
#define BACKWARD_ROWS(op, direction)                                                                         \
    NBL_CUDA_LINEAR_ROW(op, direction, folded_sm90, NBL_CUDA_FOLDED_SM90)                                    \
    NBL_CUDA_LINEAR_ROW(op, direction, cublaslt, NBL_CUDA_CUBLASLT)                                          \
    NBL_CUDA_LINEAR_ROW(op, direction, general, NBL_CUDA_GENERAL)

/* ---- linear: a group of one ---- */

static const char *linear_can(const nbl__cuda *cuda, nbl__cuda_way way, const nbl__linear *a)
{
    const char *why = nbl__dense_only(&nbl__linear_family, false, a);
    if (why) return why;
    return nbl__cuda_linear_can(cuda, way, a, 1);
}

static size_t linear_scratch(const nbl__cuda *cuda, nbl__cuda_way way, const nbl__linear *a)
{
    return nbl__cuda_linear_scratch(cuda, way, a, 1);
}

static nbl_status linear_run(const nbl__call *call, nbl__cuda_way way, const nbl__linear *a)
{
    return nbl__cuda_linear_run(call, way, a, 1);
}

static const char *linear_backward_can(const nbl__cuda *cuda, nbl__cuda_way way, const nbl__linear *a)
{
    const char *why = nbl__dense_only(&nbl__linear_family, true, a);
    if (why) return why;
    return nbl__cuda_linear_backward_can(cuda, way, a, 1);
}

static size_t linear_backward_scratch(const nbl__cuda *cuda, nbl__cuda_way way, const nbl__linear *a)
{
    return nbl__cuda_linear_backward_scratch(cuda, way, a, 1);
}

static nbl_status linear_backward_run(const nbl__call *call, nbl__cuda_way way, const nbl__linear *a)
{
    return nbl__cuda_linear_backward_run(call, way, a, 1);
}

FORWARD_ROWS(linear, linear)
BACKWARD_ROWS(linear_backward, linear_backward)

/* ---- linear_group ---- */

static const char *group_can(const nbl__cuda *cuda, nbl__cuda_way way, const nbl__linear_group *group)
{
    const char *why = nbl__dense_only(&nbl__linear_group_family, false, group);
    if (why) return why;
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__cuda_linear_can(cuda, way, members, group->count);
}

static size_t group_scratch(const nbl__cuda *cuda, nbl__cuda_way way, const nbl__linear_group *group)
{
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__cuda_linear_scratch(cuda, way, members, group->count);
}

static nbl_status group_run(const nbl__call *call, nbl__cuda_way way, const nbl__linear_group *group)
{
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__cuda_linear_run(call, way, members, group->count);
}

static const char *group_backward_can(const nbl__cuda *cuda, nbl__cuda_way way,
                                      const nbl__linear_group *group)
{
    const char *why = nbl__dense_only(&nbl__linear_group_family, true, group);
    if (why) return why;
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__cuda_linear_backward_can(cuda, way, members, group->count);
}

static size_t group_backward_scratch(const nbl__cuda *cuda, nbl__cuda_way way, const nbl__linear_group *group)
{
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__cuda_linear_backward_scratch(cuda, way, members, group->count);
}

static nbl_status group_backward_run(const nbl__call *call, nbl__cuda_way way, const nbl__linear_group *group)
{
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__cuda_linear_backward_run(call, way, members, group->count);
}

FORWARD_ROWS(linear_group, group)
BACKWARD_ROWS(linear_group_backward, group_backward)

/* ---- what forward leaves for backward ---- */
/* ---- what forward leaves for backward ---- */

/* Bytes that forward leaves for backward: t, in the two rows for training; else 0. */
size_t nbl__cuda_kept(const nbl__impl *impl, const void *arguments)
{
    nbl__linear members[NBL_MAX_GROUP];
    if (impl == &nbl__linear_cuda_folded_sm90 || impl == &nbl__linear_cuda_cublaslt)
        return nbl__cuda_fast_kept(arguments, 1);
    if (impl != &nbl__linear_group_cuda_folded_sm90 && impl != &nbl__linear_group_cuda_cublaslt) return 0;
    const nbl__linear_group *group = arguments;
    nbl__linear_group_spread(group, members);
    return nbl__cuda_fast_kept(members, group->count);
}
