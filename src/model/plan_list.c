/* plan_list.c - the lists in a plan's report: operators, values, casts. See plan_list.h.
 *
 * The report has fixed arrays (NBL_PLAN_MAX_OPS, _VALUES, _CASTS). Rows beyond them are dropped
 * silently. */
#include "model/plan_list.h"

#include <stdio.h>

/* ---- operators ---- */

/* Adds one step to the row of its operator, implementation and pass. */
static void add_step(nbl_model_plan *report, const nbl__planned_step *step, const char *pass)
{
    nbl_planned_op *ops = report->ops;
    int64_t i = 0;
    while (i < report->op_count &&
           (strcmp(ops[i].op, step->op->name) != 0 || strcmp(ops[i].impl, step->impl->name) != 0 ||
            strcmp(ops[i].pass, pass) != 0))
        i++;
    if (i == NBL_PLAN_MAX_OPS) return;
    if (i == report->op_count)
        ops[report->op_count++] = (nbl_planned_op){
            .op = step->op->name, .impl = step->impl->name, .pass = pass};
    ops[i].count++;
    ops[i].flops += nbl__step_flops(step);
    ops[i].bytes += nbl__step_bytes(step);
    if (step->again) report->recompute_flops += nbl__step_flops(step);
}

void nbl__list_steps(nbl_model_plan *report, const nbl__plan *plan, const char *pass)
{
    /* Prepare steps are listed once, with the first plan; the plan with a given pass name comes
     * second. */
    for (int i = 0; i < plan->prepare_count && pass == NULL; i++)
        add_step(report, &plan->prepare[i], "prepare");
    for (int i = 0; i < plan->step_count; i++) {
        const nbl__planned_step *step = &plan->steps[i];
        const char *kind = step->again ? "again" : step->backward ? "backward" : "forward";
        add_step(report, step, pass ? pass : kind);
    }
}

/* ---- values ---- */

/* True if two values can share a row: same bytes, shape, dtype and arena. Scratch has rank 0 and is
 * told apart by the operator's name. */
static bool alike(const nbl_planned_value *a, const nbl_planned_value *b)
{
    bool same = a->bytes == b->bytes && a->rank == b->rank && a->dtype == b->dtype &&
                memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) == 0;
    return same && strcmp(a->arena, b->arena) == 0 && (a->rank || strcmp(a->name, b->name) == 0);
}

/* Inserts a value into the list, which is sorted by descending size. Equal sizes keep the graph's
 * order. */
static void add_value(nbl_model_plan *report, const nbl_planned_value *value)
{
    int64_t at = report->value_count;
    for (int64_t i = 0; i < at; i++)
        if (alike(&report->values[i], value)) {
            report->values[i].count++;
            return;
        }
    while (at > 0 && report->values[at - 1].bytes < value->bytes) at--;
    if (at == NBL_PLAN_MAX_VALUES) return;
    if (report->value_count < NBL_PLAN_MAX_VALUES) report->value_count++;
    for (int64_t i = report->value_count - 1; i > at; i--) report->values[i] = report->values[i - 1];
    report->values[at] = *value;
}

/* The arena's name in the report. */
static const char *arena_of(const nbl__plan *plan, nbl__value v)
{
    switch (nbl__plan_class(&plan->graph->values[v])) {
    case NBL_MEMORY_PARAMETERS:
    case NBL_MEMORY_GRADIENTS: return "adapters";
    case NBL_MEMORY_STATES: return "kv";
    default: return nbl__plan_is_saved(plan, v) ? "saved" : "scratch";
    }
}

void nbl__list_values(nbl_model_plan *report, const nbl__plan *plan)
{
    const nbl__graph *g = plan->graph;
    for (nbl__value v = 1; v <= g->value_count; v++) {
        const nbl__value_info *info = &g->values[v];
        bool unused = nbl__plan_class(info) == NBL_MEMORY_RUN && plan->lives[v].bytes == 0;
        if (info->kind == NBL_KIND_WEIGHT || info->alias || unused) continue;
        nbl_planned_value value = {
            .count = 1, .arena = arena_of(plan, v), .dtype = info->tensor.dtype, .rank = info->tensor.rank};
        size_t bytes;
        if (nbl__plan_value_bytes(plan, v, &bytes) != NBL_OK)
            continue; /* never: planned values have a size */
        value.bytes = bytes;
        memcpy(value.shape, info->tensor.shape, sizeof value.shape);
        snprintf(value.name, sizeof value.name, "%s", info->name);
        add_value(report, &value);
    }
    for (int i = 0; i < plan->step_count; i++) {
        nbl_planned_value value = {.count = 1, .arena = "scratch", .bytes = plan->steps[i].scratch};
        snprintf(value.name, sizeof value.name, "%s", plan->steps[i].op->name);
        if (value.bytes) add_value(report, &value);
    }
}

/* ---- casts ---- */

static void add_cast(nbl_model_plan *report, const char *at, nbl_dtype from, nbl_dtype to, const char *why)
{
    if (from == to || report->cast_count == NBL_PLAN_MAX_CASTS) return;
    report->casts[report->cast_count++] = (nbl_planned_cast){at, from, to, why};
}

/* Dense matrices and biases of another dtype are rounded once, to the compute dtype. Norms keep
 * their dtype. */
static void cast_weights(nbl_model_plan *report, const nbl_model *m)
{
    for (int64_t i = 0; i < m->weight_count; i++) {
        const nbl_weight *w = &m->weights[i].weight;
        const char *name = m->weights[i].name;
        if (!m->weights[i].used || w->format != NBL_FORMAT_DENSE) continue;
        if (w->rank == 2)
            add_cast(report, name, w->dtype, m->dtype, "a weight is read in the compute dtype, one rounding");
        else if (m->weights[i].role == NBL_WEIGHT_BIAS)
            add_cast(report, name, w->dtype, m->dtype, "a bias is added in the compute dtype");
    }
}

static void cast_adapter(nbl_model_plan *report, const nbl_model *m)
{
    static const char why[] = "adapters are kept in f32";
    for (int64_t i = 0; m->peft && i < m->peft->module_count; i++) {
        const nbl__peft_module *it = &m->peft->modules[i];
        const nbl__stored *tensors[] = {it->a, it->b, it->magnitude};
        for (int k = 0; k < 3; k++)
            if (tensors[k]) add_cast(report, tensors[k]->name, tensors[k]->dtype, NBL_DTYPE_F32, why);
    }
}

void nbl__list_casts(nbl_model_plan *report, nbl_model *m, const nbl__plan *plan)
{
    cast_weights(report, m);
    cast_adapter(report, m);
    for (int i = 0; i < plan->step_count; i++) {
        const nbl__planned_step *step = &plan->steps[i];
        const nbl__family *family = step->node->family;
        if (step->backward || strcmp(family->name, "cast") != 0) continue;
        const char *name = nbl__arena_strdup(&m->arena, step->node->name); /* outlives the graph */
        add_cast(report, name ? name : family->name,
                 nbl__slot_tensor(nbl__slot_find(family, "x"), step->arguments)->dtype,
                 nbl__slot_tensor(nbl__slot_find(family, "y"), step->arguments)->dtype,
                 "the graph asks for it");
    }
}
