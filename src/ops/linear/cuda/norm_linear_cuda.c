/* norm_linear_cuda.c - the rows of norm_linear_group and norm_mlp on the device.
 *
 *     gemv_sm90   one row: the norm runs in the launch of the layers (gemv_one_sm90.cu)
 *     apart       the norm, then the layers by the best algorithm that they have
 *
 * Both measure the scratch of `apart`. */
#include "ops/linear/norm_linear.h"

#include "ops/gemv/cuda/gemv_cuda.h"
#include "ops/linear/cuda/linear_cuda.h"

extern const nbl__impl nbl__norm_linear_group_cuda_gemv_sm90, nbl__norm_linear_group_cuda_apart;
extern const nbl__impl nbl__norm_mlp_cuda_gemv_sm90, nbl__norm_mlp_cuda_apart;

/* NULL if the norm can run in the launch `one`, which is then complete. */
static const char *joins(nbl__gemv_one *one, const nbl_rmsnorm *norm)
{
    one->norm = norm;
    return nbl__cuda_gemv_one_takes(one) ? NULL : "the norm's row is too long, or its memory overlaps";
}

/* ---- norm_linear_group ---- */

/* True if all layers can be one launch of one row; *one describes it. */
static bool layers_at_once(const nbl__linear *members, int count, nbl__gemv_one *one)
{
    *one = (nbl__gemv_one){.dtype = members->dtype, .x = members->x.data, .count = count, .act = -1};
    if (members->dequantized || count > NBL_MAX_GEMV_ONE || nbl__tensor_rows(&members->x) != 1 ||
        members->x.dtype != members->dtype)
        return false;
    for (int i = 0; i < count; i++) {
        const nbl__linear *a = &members[i];
        if (nbl__linear_rank(a) > 0 || nbl__has_data(&a->magnitude) || a->y.dtype != a->dtype ||
            !nbl__has_data(&a->y))
            return false;
        one->parts[i] = (nbl__gemv_part){.weight = &a->w, .bias = a->bias, .y = a->y.data};
    }
    return nbl__cuda_gemv_one_takes(one);
}

/* NULL if the norm and all layers can be one launch, else the reason. */
static const char *group_at_once(const nbl__norm_linear_group *a, nbl__gemv_one *one)
{
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group layers = nbl__norm_linear_group_layers(a);
    nbl__linear_group_spread(&layers, members);
    if (!layers_at_once(members, layers.count, one))
        return "not one row of 4-bit weights of one kind, aligned";
    for (int i = 0; i < layers.count; i++) one->parts[i].weight = &a->layers.members[i].w;
    return joins(one, &a->norm);
}

static const char *group_can(const nbl_context *ctx, const void *arguments)
{
    nbl__gemv_one one;
    if (nbl__cuda_of(ctx)->major != 9) return "needs compute capability 9.0";
    return group_at_once(arguments, &one);
}

/* Scratch of the layers by their best algorithm; the norm needs none. */
static size_t group_scratch(const nbl_context *ctx, const void *arguments)
{
    const nbl__cuda *cuda = nbl__cuda_of(ctx);
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group layers = nbl__norm_linear_group_layers(arguments);
    nbl__linear_group_spread(&layers, members);
    return nbl__cuda_linear_scratch(cuda, nbl__cuda_linear_best(cuda, members, layers.count), members,
                                    layers.count);
}

static nbl_status run_group_at_once(const nbl__call *call, const void *arguments)
{
    nbl__gemv_one one;
    const char *why = group_at_once(arguments, &one);
    NBL_CHECK(call->ctx, why == NULL, NBL_ERROR_INTERNAL, "%s: %s", call->op, why);
    return nbl__cuda_gemv_one(call->ctx, &one, nbl__call_cuda(call)->stream);
}

/* Two or more launches: the norm writes y, which the layers read as x. */
static nbl_status run_group_apart(const nbl__call *call, const void *arguments)
{
    const nbl__norm_linear_group *a = arguments;
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group layers = nbl__norm_linear_group_layers(a);
    nbl__linear_group_spread(&layers, members);
    NBL_TRY(nbl__rmsnorm_cuda.run(call, &a->norm));
    return nbl__cuda_linear_run(call, nbl__cuda_linear_best(nbl__call_cuda(call), members, layers.count),
                                members, layers.count);
}

const nbl__impl nbl__norm_linear_group_cuda_gemv_sm90 = {"norm_linear_group_cuda_gemv_sm90", NBL_ISA_SCALAR,
                                                         group_can, group_scratch, run_group_at_once};
const nbl__impl nbl__norm_linear_group_cuda_apart = {"norm_linear_group_cuda_apart", NBL_ISA_SCALAR, NULL,
                                                     group_scratch, run_group_apart};

/* ---- norm_mlp ---- */

/* gate and up of one row with the norm in one launch; down follows by its best algorithm. */
static const char *mlp_can(const nbl_context *ctx, const void *arguments)
{
    const nbl__norm_mlp *a = arguments;
    nbl__mlp layers = nbl__norm_mlp_layers(a);
    nbl__gemv_one one;
    const char *why = nbl__cuda_mlp_can(nbl__cuda_of(ctx), NBL_CUDA_LINEAR_ALGO_GEMV_SM90, &layers);
    if (why) return why;
    nbl__cuda_mlp_at_once(&layers, &one);
    return joins(&one, &a->norm);
}

/* The first algorithm of mlp that takes the layers. The last one takes everything. */
static nbl__cuda_linear_algo best(const nbl__cuda *cuda, const nbl__mlp *layers)
{
    static const nbl__cuda_linear_algo algos[] = {NBL_CUDA_LINEAR_ALGO_GEMV_SM90, NBL_CUDA_LINEAR_ALGO_GEMV,
                                                  NBL_CUDA_LINEAR_ALGO_GENERAL};
    int i = 0;
    while (nbl__cuda_mlp_can(cuda, algos[i], layers)) i++;
    return algos[i];
}

static size_t mlp_scratch(const nbl_context *ctx, const void *arguments)
{
    const nbl__cuda *cuda = nbl__cuda_of(ctx);
    nbl__mlp layers = nbl__norm_mlp_layers(arguments);
    return nbl__cuda_mlp_scratch(cuda, best(cuda, &layers), &layers);
}

static nbl_status run_mlp_at_once(const nbl__call *call, const void *arguments)
{
    const nbl__norm_mlp *a = arguments;
    nbl__mlp layers = nbl__norm_mlp_layers(a);
    return nbl__cuda_mlp_run(call, NBL_CUDA_LINEAR_ALGO_GEMV_SM90, &layers, &a->norm);
}

static nbl_status run_mlp_apart(const nbl__call *call, const void *arguments)
{
    const nbl__norm_mlp *a = arguments;
    nbl__mlp layers = nbl__norm_mlp_layers(a);
    NBL_TRY(nbl__rmsnorm_cuda.run(call, &a->norm));
    return nbl__cuda_mlp_run(call, best(nbl__call_cuda(call), &layers), &layers, NULL);
}

const nbl__impl nbl__norm_mlp_cuda_gemv_sm90 = {"norm_mlp_cuda_gemv_sm90", NBL_ISA_SCALAR, mlp_can,
                                                mlp_scratch, run_mlp_at_once};
const nbl__impl nbl__norm_mlp_cuda_apart = {"norm_mlp_cuda_apart", NBL_ISA_SCALAR, NULL, mlp_scratch,
                                            run_mlp_apart};
