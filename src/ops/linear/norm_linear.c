/* norm_linear.c - the families norm_linear_group and norm_mlp: checks, slots, attributes, and the
 * reference, which computes one part after the other. See norm_linear.h.
 *
 * The norm and the layers are checked by their own families. There is no CPU kernel: graph/fuse.c
 * makes these nodes only for a device that has one. */
#include "ops/linear/norm_linear.h"

#include "ops/families.h"

nbl__linear_group nbl__norm_linear_group_layers(const nbl__norm_linear_group *a)
{
    nbl__linear_group layers = a->layers;
    layers.members[0].x = a->norm.y;
    return layers;
}

nbl__mlp nbl__norm_mlp_layers(const nbl__norm_mlp *a)
{
    nbl__mlp layers = a->layers;
    layers.gate.x = a->norm.y;
    return layers;
}

/* ---- infer ---- */

static nbl_status infer_group(nbl_context *ctx, void *arguments)
{
    nbl__norm_linear_group *a = arguments;
    NBL_TRY(nbl__rmsnorm_family.forward.infer(ctx, &a->norm));
    a->layers.members[0].dtype = a->norm.dtype;
    a->layers.members[0].x = a->norm.y;
    return nbl__linear_group_family.forward.infer(ctx, &a->layers);
}

static nbl_status infer_mlp(nbl_context *ctx, void *arguments)
{
    nbl__norm_mlp *a = arguments;
    NBL_TRY(nbl__rmsnorm_family.forward.infer(ctx, &a->norm));
    a->layers.gate.dtype = a->norm.dtype;
    a->layers.gate.x = a->norm.y;
    return nbl__mlp_family.forward.infer(ctx, &a->layers);
}

/* ---- references ---- */

static size_t group_scratch(const nbl_context *ctx, const void *arguments)
{
    nbl__linear_group layers = nbl__norm_linear_group_layers(arguments);
    return nbl__op_scratch(ctx, &nbl__linear_group_ref, &layers);
}

static nbl_status run_group(const nbl__call *call, const void *arguments)
{
    const nbl__norm_linear_group *a = arguments;
    nbl__linear_group layers = nbl__norm_linear_group_layers(a);
    NBL_TRY(nbl__rmsnorm_ref.run(call, &a->norm));
    return nbl__linear_group_ref.run(call, &layers);
}

static size_t mlp_scratch(const nbl_context *ctx, const void *arguments)
{
    nbl__mlp layers = nbl__norm_mlp_layers(arguments);
    return nbl__op_scratch(ctx, &nbl__mlp_ref, &layers);
}

static nbl_status run_mlp(const nbl__call *call, const void *arguments)
{
    const nbl__norm_mlp *a = arguments;
    nbl__mlp layers = nbl__norm_mlp_layers(a);
    NBL_TRY(nbl__rmsnorm_ref.run(call, &a->norm));
    return nbl__mlp_ref.run(call, &layers);
}

static const nbl__impl group_ref = {"norm_linear_group_ref", NBL_ISA_SCALAR, NULL, group_scratch, run_group};
static const nbl__impl mlp_ref = {"norm_mlp_ref", NBL_ISA_SCALAR, NULL, mlp_scratch, run_mlp};
static const nbl__impl *const group_impls[] = {&group_ref, NULL};
static const nbl__impl *const mlp_impls[] = {&mlp_ref, NULL};

/* ---- slots and attributes ---- */

/* Slots of the norm. "normed" is y of the norm and x of the layers. */
#define NORM_SLOTS(type)                                                                                     \
    NBL_SLOT(type, norm.x, "x", INPUT, NULL), NBL_SLOT(type, norm.w, "norm.w", INPUT, NULL),                 \
        NBL_SLOT(type, norm.residual, "residual", OPTIONAL, NULL),                                           \
        NBL_SLOT(type, norm.y, "normed", OUTPUT, NULL),                                                      \
        NBL_SLOT(type, norm.residual_out, "residual_out", OUTPUT, NULL)
#define MEMBER(i, weight_role)                                                                               \
    NBL_SLOT(nbl__norm_linear_group, layers.members[i].w, "w" #i, weight_role, NULL),                        \
        NBL_SLOT(nbl__norm_linear_group, layers.members[i].bias, "b" #i, OPTIONAL, NULL),                    \
        NBL_SLOT(nbl__norm_linear_group, layers.members[i].y, "y" #i, OUTPUT, NULL)
#define PART(part)                                                                                           \
    NBL_SLOT(nbl__norm_mlp, layers.part.w, #part, WEIGHT, NULL),                                             \
        NBL_SLOT(nbl__norm_mlp, layers.part.bias, #part ".b", OPTIONAL, NULL)

static const nbl__slot group_slots[] = {
    NORM_SLOTS(nbl__norm_linear_group), MEMBER(0, WEIGHT),          MEMBER(1, OPTIONAL_WEIGHT),
    MEMBER(2, OPTIONAL_WEIGHT),         MEMBER(3, OPTIONAL_WEIGHT), {0},
};
static const nbl__slot mlp_slots[] = {
    NORM_SLOTS(nbl__norm_mlp),
    PART(gate),
    PART(up),
    PART(down),
    NBL_SLOT(nbl__norm_mlp, layers.down.y, "y", OUTPUT, NULL),
    {0},
};

static const char *const rounds[] = {"before_weight", "after_weight", NULL};
static const char *const acts[] = {"silu", "gelu", "gelu_tanh", NULL};
#define NORM_ATTRS(type)                                                                                     \
    NBL_ATTR(type, norm.dtype, "dtype", DTYPE, 0), NBL_ATTR(type, norm.eps, "eps", FLOAT, 1e-6),             \
        NBL_ATTR(type, norm.offset, "offset", FLOAT, 0),                                                     \
        NBL_ATTR_OF_WORDS(type, norm.round, "round", rounds)
static const nbl__attr group_attrs[] = {
    NORM_ATTRS(nbl__norm_linear_group),
    NBL_ATTR(nbl__norm_linear_group, layers.members[0].threshold, "threshold", FLOAT, 6),
    NBL_ATTR(nbl__norm_linear_group, layers.members[0].dequantized, "decoded", FLAG, 0),
    {0},
};
static const nbl__attr mlp_attrs[] = {
    NORM_ATTRS(nbl__norm_mlp),
    NBL_ATTR_OF_WORDS(nbl__norm_mlp, layers.act, "act", acts),
    NBL_ATTR(nbl__norm_mlp, layers.gate.threshold, "threshold", FLOAT, 6),
    NBL_ATTR(nbl__norm_mlp, layers.gate.dequantized, "decoded", FLAG, 0),
    {0},
};

const nbl__family nbl__norm_linear_group_family = {
    "norm_linear_group",
    sizeof(nbl__norm_linear_group),
    group_slots,
    group_attrs,
    {"norm_linear_group", infer_group, group_impls},
    {0},
};
const nbl__family nbl__norm_mlp_family = {
    "norm_mlp", sizeof(nbl__norm_mlp), mlp_slots, mlp_attrs, {"norm_mlp", infer_mlp, mlp_impls}, {0},
};
