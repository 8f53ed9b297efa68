/* linear_cuda.c - the rows of linear and linear_group on the device, through linear_cuda.h.
 *
 * Each operator has a can, a scratch and a run function per direction. NBL_CUDA_LINEAR_ROW turns
 * them into one row per algorithm. All rows here decline tensors with a row stride
 * (nbl__dense_only). */
#include "ops/families.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/linear/linear_group.h"

/* Forward has all algorithms; backward only the algorithms of training and the general one. */
#define FORWARD_ROWS(op, direction)                                                                          \
    NBL_CUDA_LINEAR_ROW(op, direction, gemv_sm90, NBL_CUDA_LINEAR_ALGO_GEMV_SM90)                            \
    NBL_CUDA_LINEAR_ROW(op, direction, gemv, NBL_CUDA_LINEAR_ALGO_GEMV)                                      \
    BACKWARD_ROWS(op, direction)
#define BACKWARD_ROWS(op, direction)                                                                         \
    NBL_CUDA_LINEAR_ROW(op, direction, folded_sm90, NBL_CUDA_LINEAR_ALGO_FOLDED_SM90)                        \
    NBL_CUDA_LINEAR_ROW(op, direction, cublaslt, NBL_CUDA_LINEAR_ALGO_CUBLASLT)                              \
    NBL_CUDA_LINEAR_ROW(op, direction, general, NBL_CUDA_LINEAR_ALGO_GENERAL)

/* ---- linear: a group of one ---- */

/* forward_can and so on: a linear layer is a group of one member. */
static const char *linear_can(const nbl__cuda *cuda, nbl__cuda_linear_algo algo, const nbl__linear *a)
{
    const char *why = nbl__dense_only(&nbl__linear_family, false, a);
    if (why) return why;
    return nbl__cuda_linear_can(cuda, algo, a, 1);
}

static size_t linear_scratch(const nbl__cuda *cuda, nbl__cuda_linear_algo algo, const nbl__linear *a)
{
    return nbl__cuda_linear_scratch(cuda, algo, a, 1);
}

static nbl_status linear_run(const nbl__call *call, nbl__cuda_linear_algo algo, const nbl__linear *a)
{
    return nbl__cuda_linear_run(call, algo, a, 1);
}

static const char *linear_backward_can(const nbl__cuda *cuda, nbl__cuda_linear_algo algo,
                                       const nbl__linear *a)
{
    const char *why = nbl__dense_only(&nbl__linear_family, true, a);
    if (why) return why;
    return nbl__cuda_linear_backward_can(cuda, algo, a, 1);
}

static size_t linear_backward_scratch(const nbl__cuda *cuda, nbl__cuda_linear_algo algo, const nbl__linear *a)
{
    return nbl__cuda_linear_backward_scratch(cuda, algo, a, 1);
}

static nbl_status linear_backward_run(const nbl__call *call, nbl__cuda_linear_algo algo, const nbl__linear *a)
{
    return nbl__cuda_linear_backward_run(call, algo, a, 1);
}

/* The rows: nbl__linear_cuda_gemv_sm90, … nbl__linear_backward_cuda_general. */
FORWARD_ROWS(linear, linear)
BACKWARD_ROWS(linear_backward, linear_backward)

/* ---- linear_group: layers that share x ---- */

/* nbl__linear_group_spread makes one nbl__linear per layer of the group. */
static const char *group_can(const nbl__cuda *cuda, nbl__cuda_linear_algo algo,
                             const nbl__linear_group *group)
{
    const char *why = nbl__dense_only(&nbl__linear_group_family, false, group);
    if (why) return why;
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__cuda_linear_can(cuda, algo, members, group->count);
}

static size_t group_scratch(const nbl__cuda *cuda, nbl__cuda_linear_algo algo, const nbl__linear_group *group)
{
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__cuda_linear_scratch(cuda, algo, members, group->count);
}

static nbl_status group_run(const nbl__call *call, nbl__cuda_linear_algo algo, const nbl__linear_group *group)
{
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__cuda_linear_run(call, algo, members, group->count);
}

static const char *group_backward_can(const nbl__cuda *cuda, nbl__cuda_linear_algo algo,
                                      const nbl__linear_group *group)
{
    const char *why = nbl__dense_only(&nbl__linear_group_family, true, group);
    if (why) return why;
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__cuda_linear_backward_can(cuda, algo, members, group->count);
}

static size_t group_backward_scratch(const nbl__cuda *cuda, nbl__cuda_linear_algo algo,
                                     const nbl__linear_group *group)
{
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__cuda_linear_backward_scratch(cuda, algo, members, group->count);
}

static nbl_status group_backward_run(const nbl__call *call, nbl__cuda_linear_algo algo,
                                     const nbl__linear_group *group)
{
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__cuda_linear_backward_run(call, algo, members, group->count);
}

/* The rows: nbl__linear_group_cuda_gemv_sm90, … nbl__linear_group_backward_cuda_general. */
FORWARD_ROWS(linear_group, group)
BACKWARD_ROWS(linear_group_backward, group_backward)

/* ---- what forward keeps for backward ---- */

/* The algorithms of training keep t. All others keep nothing. */
size_t nbl__cuda_saved_bytes(const nbl__impl *impl, const void *arguments)
{
    nbl__linear members[NBL_MAX_GROUP];
    if (impl == &nbl__linear_cuda_folded_sm90 || impl == &nbl__linear_cuda_cublaslt)
        return nbl__cuda_large_saved_bytes(arguments, 1);
    if (impl != &nbl__linear_group_cuda_folded_sm90 && impl != &nbl__linear_group_cuda_cublaslt) return 0;
    const nbl__linear_group *group = arguments;
    nbl__linear_group_spread(group, members);
    return nbl__cuda_large_saved_bytes(members, group->count);
}
