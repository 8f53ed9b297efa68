/* linear_group.c - the family linear_group: checks, outputs, slots, attributes. linear_group.h has
 * the rules of members. Each member is checked as a linear layer of its own (linear.c). */
#include "ops/linear/linear_group.h"

#include "ops/families.h"
#include "ops/linear/cpu/linear_rows.h"

void nbl__linear_group_spread(const nbl__linear_group *group, nbl__linear members[NBL_MAX_GROUP])
{
    const nbl__linear *first = &group->members[0];
    for (int i = 0; i < group->count; i++) {
        members[i] = group->members[i];
        members[i].x = first->x;
        members[i].dx = first->dx;
        members[i].dtype = first->dtype;
        if (members[i].scale == 0) members[i].scale = first->scale;
        members[i].dropout = first->dropout;
        members[i].seed = nbl__dropout_seed(first->seed, i);
        members[i].seeds = first->seeds;
        members[i].seed_index = first->seed_index;
        members[i].first_row = first->first_row;
        members[i].threshold = first->threshold;
        members[i].dequantized = first->dequantized;
        members[i].train_w = first->train_w;
        members[i].accumulate = first->accumulate;
    }
}

/* The first tensor that is given for a member without a weight; NULL: there is none. */
static const char *unexpected_field(const nbl__linear *a)
{
    const nbl_tensor *tensors[] = {&a->bias, &a->lora_a, &a->lora_b, &a->magnitude, &a->norm, &a->dy};
    static const char *const names[] = {"b", "lora_a", "lora_b", "magnitude", "norm", "dy"};
    for (int i = 0; i < 6; i++)
        if (nbl__has_data(tensors[i])) return names[i];
    return NULL;
}

/* Sets group->count. A gap between members, or a tensor without its weight, is an error. */
static nbl_status count_members(nbl_context *ctx, const char *op, nbl__linear_group *group)
{
    group->count = 0;
    for (int i = 0; i < NBL_MAX_GROUP; i++) {
        const nbl__linear *a = &group->members[i];
        const char *stray = a->w.rank == 0 ? unexpected_field(a) : NULL;
        NBL_CHECK(ctx, stray == NULL, NBL_ERROR_ARGUMENT, "%s: %s%d without w%d", op, stray, i, i);
        if (a->w.rank == 0) continue;
        NBL_CHECK(ctx, group->count == i, NBL_ERROR_ARGUMENT, "%s: w%d without w%d", op, i, i - 1);
        group->count++;
    }
    NBL_CHECK(ctx, group->count > 0, NBL_ERROR_ARGUMENT, "%s: no weight w0", op);
    return NBL_OK;
}

/* The members' names in messages: "lora_a" + "1". */
static const char *const parts[NBL_MAX_GROUP] = {"0", "1", "2", "3"};

/* Absent members have outputs of rank 0. */
static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    nbl__linear_group *group = arguments;
    nbl__linear members[NBL_MAX_GROUP];
    NBL_TRY(count_members(ctx, "linear_group", group));
    nbl__linear_group_spread(group, members);
    for (int i = 0; i < NBL_MAX_GROUP; i++) {
        nbl__output_none(&group->members[i].y);
        if (i >= group->count) continue;
        NBL_TRY(nbl__linear_infer(ctx, "linear_group", parts[i], &members[i]));
        group->members[i].y = members[i].y;
    }
    return NBL_OK;
}

static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    static const char op[] = "linear_group_backward";
    nbl__linear_group *group = arguments;
    nbl__linear members[NBL_MAX_GROUP];
    NBL_TRY(count_members(ctx, op, group));
    nbl__linear_group_spread(group, members);
    for (int i = 0; i < NBL_MAX_GROUP; i++) {
        nbl__linear *a = &group->members[i];
        nbl__output_none(&a->dbias);
        nbl__output_none(&a->dlora_a);
        nbl__output_none(&a->dlora_b);
        nbl__output_none(&a->dmagnitude);
        nbl__output_none(&a->dw);
        if (i >= group->count) continue;
        NBL_TRY(nbl__linear_infer_backward(ctx, op, parts[i], &members[i]));
        a->dbias = members[i].dbias;
        a->dlora_a = members[i].dlora_a;
        a->dlora_b = members[i].dlora_b;
        a->dmagnitude = members[i].dmagnitude;
        a->dw = members[i].dw;
    }
    group->members[0].dx = members[0].dx;
    return NBL_OK;
}

/* The sum of the members, which share x. */
static double flops(const void *arguments, bool backward)
{
    const nbl__linear_group *g = arguments;
    double sum = 0, tokens = (double)nbl__tensor_rows(&g->members[0].x);
    bool dx = g->members[0].dx.data != NULL;
    for (int i = 0; i < g->count; i++)
        sum += backward ? nbl__linear_backward_flops(&g->members[i], tokens, dx)
                        : nbl__linear_forward_flops(&g->members[i], tokens);
    return sum;
}

/* Slots of member i: the names of linear with the number behind them ("lora_a1"). */
#define SLOT(i, field, name, role, of) NBL_SLOT(nbl__linear_group, members[i].field, name #i, role, of)
#define ROWS(i, field, name, role, of)                                                                       \
    NBL_SLOT_ROWS(nbl__linear_group, members[i].field, name #i, role, of, 2)
#define KEPT(i, field, name, role) NBL_SLOT_SAVED(nbl__linear_group, members[i].field, name #i, role)
#define MEMBER(i, weight_role)                                                                               \
    KEPT(i, w, "w", weight_role), SLOT(i, bias, "b", OPTIONAL, NULL), KEPT(i, lora_a, "lora_a", OPTIONAL),   \
        KEPT(i, lora_b, "lora_b", OPTIONAL), KEPT(i, magnitude, "magnitude", OPTIONAL),                      \
        KEPT(i, norm, "norm", OPTIONAL), ROWS(i, y, "y", OUTPUT, NULL),                                      \
        ROWS(i, dy, "dy", COTANGENT, "y" #i), SLOT(i, dbias, "db", GRADIENT, "b" #i),                        \
        SLOT(i, dlora_a, "dlora_a", GRADIENT, "lora_a" #i),                                                  \
        SLOT(i, dlora_b, "dlora_b", GRADIENT, "lora_b" #i),                                                  \
        SLOT(i, dmagnitude, "dmagnitude", GRADIENT, "magnitude" #i), SLOT(i, dw, "dw", GRADIENT, "w" #i)

static const nbl__slot slots[] = {
    NBL_SLOT_SAVED_ROWS(nbl__linear_group, members[0].x, "x", INPUT, 2),
    MEMBER(0, WEIGHT),
    MEMBER(1, OPTIONAL_WEIGHT),
    MEMBER(2, OPTIONAL_WEIGHT),
    MEMBER(3, OPTIONAL_WEIGHT),
    NBL_SLOT_SAVED(nbl__linear_group, members[0].seeds, "seeds", OPTIONAL),
    NBL_SLOT_ROWS(nbl__linear_group, members[0].dx, "dx", GRADIENT, "x", 2),
    {0},
};
static const nbl__attr attrs[] = {
    NBL_ATTR(nbl__linear_group, members[0].dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__linear_group, members[0].scale, "scale", FLOAT, 1),
    NBL_ATTR(nbl__linear_group, members[1].scale, "scale1", FLOAT, 0),
    NBL_ATTR(nbl__linear_group, members[2].scale, "scale2", FLOAT, 0),
    NBL_ATTR(nbl__linear_group, members[3].scale, "scale3", FLOAT, 0),
    NBL_ATTR(nbl__linear_group, members[0].dropout, "dropout", FLOAT, 0),
    NBL_ATTR(nbl__linear_group, members[0].seed, "seed", SEED, 0),
    NBL_ATTR(nbl__linear_group, members[0].seed_index, "seed_index", INT, 0),
    NBL_ATTR(nbl__linear_group, members[0].first_row, "first_row", INT, 0),
    NBL_ATTR(nbl__linear_group, members[0].threshold, "threshold", FLOAT, 6),
    NBL_ATTR(nbl__linear_group, members[0].dequantized, "decoded", FLAG, 0),
    NBL_ATTR(nbl__linear_group, members[0].train_w, "train_w", FLAG, 0),
    NBL_ATTR(nbl__linear_group, members[0].accumulate, "accumulate", FLAG, 0),
    {0},
};
NBL_LINEAR_ROWS(NBL_LINEAR_ROW_DECLARATION, linear_group, forward)
NBL_LINEAR_ROWS(NBL_LINEAR_ROW_DECLARATION, linear_group_backward, backward)
static const nbl__impl *const forward_impls[] = {
    NBL_LINEAR_ROWS(NBL_LINEAR_ROW_ADDRESS, linear_group, forward) & nbl__linear_group_ref, NULL};
static const nbl__impl *const backward_impls[] = {
    NBL_LINEAR_ROWS(NBL_LINEAR_ROW_ADDRESS, linear_group_backward, backward) & nbl__linear_group_backward_ref,
    NULL};
const nbl__family nbl__linear_group_family = {
    "linear_group",
    sizeof(nbl__linear_group),
    slots,
    attrs,
    {"linear_group", infer_forward, forward_impls},
    {"linear_group_backward", infer_backward, backward_impls},
    {.flops = flops},
};
