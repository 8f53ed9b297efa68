/* plan_list.c - the lists in a plan's report: operators, values, casts. See plan_list.h. */
#include "model/plan_list.h"

/* ---- lists that grow ---- */

/* Makes room for one more item of `size` bytes. */
static nbl_status grow(nbl_context *ctx, void **items, int64_t count, int64_t *room, size_t size)
{
    if (count < *room) return NBL_OK;
    int64_t wanted = *room ? 2 * *room : 64;
    void *more = nbl__alloc(ctx, (size_t)wanted * size);
    if (more == NULL) return NBL_ERROR_MEMORY;
    if (count) memcpy(more, *items, (size_t)count * size);
    nbl__free(ctx, *items, (size_t)*room * size);
    *items = more;
    *room = wanted;
    return NBL_OK;
}

#define GROW(report, list)                                                                                   \
    grow((report)->ctx, (void **)&(report)->list.items, (report)->list.count, &(report)->list.room,          \
         sizeof *(report)->list.items)
#define FREE(report, list)                                                                                   \
    nbl__free((report)->ctx, (report)->list.items, (size_t)(report)->list.room * sizeof *(report)->list.items)
#define ITEM(report, list, index)                                                                            \
    ((index) >= 0 && (index) < (report)->list.count ? &(report)->list.items[index] : NULL)

void nbl_model_plan_free(nbl_model_plan *plan)
{
    if (plan == NULL) return;
    nbl_context *ctx = plan->ctx;
    FREE(plan, ops);
    FREE(plan, values);
    FREE(plan, casts);
    nbl__arena_free(&plan->names);
    nbl__free(ctx, plan, sizeof *plan);
}

const nbl_model_plan_summary *nbl_model_plan_get_summary(const nbl_model_plan *plan)
{
    return &plan->summary;
}

const nbl_planned_op *nbl_model_plan_get_op(const nbl_model_plan *plan, int64_t index)
{
    return ITEM(plan, ops, index);
}

const nbl_planned_value *nbl_model_plan_get_value(const nbl_model_plan *plan, int64_t index)
{
    return ITEM(plan, values, index);
}

const nbl_planned_cast *nbl_model_plan_get_cast(const nbl_model_plan *plan, int64_t index)
{
    return ITEM(plan, casts, index);
}

/* ---- operators ---- */

/* Adds one step to the row of its operator, implementation and pass. */
static nbl_status add_step(nbl_model_plan *report, const nbl__planned_step *step, nbl_plan_pass pass)
{
    int64_t i = 0;
    for (; i < report->ops.count; i++) {
        const nbl_planned_op *op = &report->ops.items[i];
        if (op->pass == pass && strcmp(op->op, step->op->name) == 0 &&
            strcmp(op->impl, step->impl->name) == 0)
            break;
    }
    if (i == report->ops.count) { /* names of operators and implementations are constants */
        NBL_TRY(GROW(report, ops));
        report->ops.items[report->ops.count++] = (nbl_planned_op){
            .op = step->op->name, .impl = step->impl->name, .pass = pass};
    }
    report->ops.items[i].count++;
    report->ops.items[i].flops += nbl__step_flops(step);
    report->ops.items[i].bytes += nbl__step_bytes(step);
    if (step->rerun) report->summary.recompute_flops += nbl__step_flops(step);
    return NBL_OK;
}

nbl_status nbl__list_steps(nbl_model_plan *report, const nbl__plan *plan, bool decode)
{
    for (int i = 0; i < plan->prepare_count && !decode; i++)
        NBL_TRY(add_step(report, &plan->prepare[i], NBL_PLAN_PASS_PREPARE));
    for (int i = 0; i < plan->step_count; i++) {
        const nbl__planned_step *step = &plan->steps[i];
        nbl_plan_pass pass = decode           ? NBL_PLAN_PASS_DECODE
                             : step->rerun    ? NBL_PLAN_PASS_RECOMPUTE
                             : step->backward ? NBL_PLAN_PASS_BACKWARD
                                              : NBL_PLAN_PASS_FORWARD;
        NBL_TRY(add_step(report, step, pass));
    }
    return NBL_OK;
}

/* ---- values ---- */

/* True if two values can share a row: same bytes, shape, dtype and arena. Scratch has rank 0 and is
 * told apart by the operator's name. */
static bool alike(const nbl_planned_value *a, const nbl_planned_value *b)
{
    bool same = a->bytes == b->bytes && a->rank == b->rank && a->dtype == b->dtype &&
                memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) == 0;
    return same && a->arena == b->arena && (a->rank || strcmp(a->name, b->name) == 0);
}

/* Inserts a value into the list, which is sorted by descending size. Equal sizes keep the graph's
 * order. */
static nbl_status add_value(nbl_model_plan *report, const nbl_planned_value *value)
{
    int64_t at = report->values.count;
    for (int64_t i = 0; i < at; i++)
        if (alike(&report->values.items[i], value)) {
            report->values.items[i].count++;
            return NBL_OK;
        }
    NBL_TRY(GROW(report, values));
    nbl_planned_value *items = report->values.items;
    while (at > 0 && items[at - 1].bytes < value->bytes) at--;
    memmove(items + at + 1, items + at, (size_t)(report->values.count++ - at) * sizeof *items);
    items[at] = *value;
    items[at].name = nbl__arena_strdup(&report->names, value->name); /* the graph's names end with it */
    return items[at].name ? NBL_OK : NBL_ERROR_MEMORY;
}

static nbl_plan_arena arena_of(const nbl__plan *plan, nbl__value v)
{
    switch (nbl__plan_class(&plan->graph->values[v])) {
    case NBL_MEMORY_PARAMETERS:
    case NBL_MEMORY_GRADIENTS: return NBL_PLAN_ARENA_ADAPTERS;
    case NBL_MEMORY_STATES: return NBL_PLAN_ARENA_KV;
    default: return nbl__plan_is_saved(plan, v) ? NBL_PLAN_ARENA_SAVED : NBL_PLAN_ARENA_SCRATCH;
    }
}

nbl_status nbl__list_values(nbl_model_plan *report, const nbl__plan *plan)
{
    const nbl__graph *g = plan->graph;
    for (nbl__value v = 1; v <= g->value_count; v++) {
        const nbl__value_info *info = &g->values[v];
        bool unused = nbl__plan_class(info) == NBL_MEMORY_RUN && plan->lives[v].bytes == 0;
        if (info->kind == NBL_KIND_WEIGHT || info->alias || unused) continue;
        nbl_planned_value value = {.name = info->name,
                                   .count = 1,
                                   .arena = arena_of(plan, v),
                                   .dtype = info->tensor.dtype,
                                   .rank = info->tensor.rank};
        size_t bytes;
        NBL_TRY(nbl__plan_value_bytes(plan, v, &bytes));
        value.bytes = bytes;
        memcpy(value.shape, info->tensor.shape, sizeof value.shape);
        NBL_TRY(add_value(report, &value));
    }
    for (int i = 0; i < plan->step_count; i++) {
        nbl_planned_value value = {.name = plan->steps[i].op->name,
                                   .count = 1,
                                   .arena = NBL_PLAN_ARENA_SCRATCH,
                                   .bytes = plan->steps[i].scratch};
        if (value.bytes) NBL_TRY(add_value(report, &value));
    }
    return NBL_OK;
}

/* ---- casts ---- */

static nbl_status add_cast(nbl_model_plan *report, const char *at, nbl_dtype from, nbl_dtype to,
                           const char *why)
{
    if (from == to) return NBL_OK;
    at = nbl__arena_strdup(&report->names, at); /* the model's and the graph's names end with them */
    if (at == NULL) return NBL_ERROR_MEMORY;
    NBL_TRY(GROW(report, casts));
    report->casts.items[report->casts.count++] = (nbl_planned_cast){at, from, to, why};
    return NBL_OK;
}

/* Dense matrices and biases of another dtype are rounded once, to the compute dtype. Norms keep
 * their dtype. */
static nbl_status cast_weights(nbl_model_plan *report, const nbl_model *m)
{
    for (int64_t i = 0; i < m->weight_count; i++) {
        const nbl_weight *w = &m->weights[i].weight;
        const char *name = m->weights[i].name;
        if (!m->weights[i].used || w->format != NBL_FORMAT_DENSE) continue;
        if (w->rank == 2)
            NBL_TRY(add_cast(report, name, w->dtype, m->dtype,
                             "a weight is read in the compute dtype, one rounding"));
        else if (m->weights[i].role == NBL_WEIGHT_BIAS)
            NBL_TRY(add_cast(report, name, w->dtype, m->dtype, "a bias is added in the compute dtype"));
    }
    return NBL_OK;
}

static nbl_status cast_adapter(nbl_model_plan *report, const nbl_model *m)
{
    static const char why[] = "adapters are kept in f32";
    for (int64_t i = 0; m->peft && i < m->peft->module_count; i++) {
        const nbl__peft_module *it = &m->peft->modules[i];
        const nbl__stored *tensors[] = {it->a, it->b, it->magnitude};
        for (int k = 0; k < 3; k++)
            if (tensors[k])
                NBL_TRY(add_cast(report, tensors[k]->name, tensors[k]->dtype, NBL_DTYPE_F32, why));
    }
    return NBL_OK;
}

nbl_status nbl__list_casts(nbl_model_plan *report, const nbl_model *m, const nbl__plan *plan)
{
    NBL_TRY(cast_weights(report, m));
    NBL_TRY(cast_adapter(report, m));
    for (int i = 0; i < plan->step_count; i++) {
        const nbl__planned_step *step = &plan->steps[i];
        const nbl__family *family = step->node->family;
        if (step->backward || strcmp(family->name, "cast") != 0) continue;
        NBL_TRY(add_cast(
            report, step->node->name, nbl__slot_tensor(nbl__slot_find(family, "x"), step->arguments)->dtype,
            nbl__slot_tensor(nbl__slot_find(family, "y"), step->arguments)->dtype, "the graph asks for it"));
    }
    return NBL_OK;
}
