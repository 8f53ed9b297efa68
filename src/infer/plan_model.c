/* plan_model.c - what a model's plan says, without running it: bytes per arena, operators, casts, what fits.
 *
 * Planned is a training step over packed tokens when there is an adapter, else generation's prefill with a cache for
 * the same tokens. The only casts of a graph are of parameters on arrival: a bias to the compute dtype. */
#include <stdlib.h>

#include "infer/language_model.h"
#include "ops/linear_group.h"
#include "ops/mlp.h"

static uint64_t weight_bytes(const nbl_weight *w)
{
    uint64_t n = 1, bytes = 0;
    for (int i = 0; i < w->rank; i++) n *= (uint64_t)w->shape[i];
    switch (w->format) {
    case NBL_FORMAT_DENSE: nbl__dtype_bytes(w->dtype, n, &bytes); break;
    case NBL_FORMAT_INT8: bytes = n + 4 * (uint64_t)w->shape[0]; break;
    case NBL_FORMAT_MXFP4: bytes = n / 2 + n / 32; break;
    default: {
        uint64_t blocks = (n + (uint64_t)w->block - 1) / (uint64_t)w->block;
        bytes = (n + 1) / 2 + (w->nested_scales ? blocks + blocks / 64 + 4 : 4 * blocks);
    }
    }
    return bytes;
}

uint64_t nbl__model_bytes(const nbl_model *m)
{
    uint64_t bytes = 0;
    for (int64_t i = 0; i < m->weight_count; i++) bytes += weight_bytes(&m->weights[i].weight);
    return bytes;
}

static double product_flops(const nbl_tensor *x, const nbl_weight *w, const nbl_tensor *lora_a)
{
    double tokens = (double)nbl__tensor_rows(x), in = (double)w->shape[1], out = (double)w->shape[0];
    double rank = lora_a->data ? (double)lora_a->shape[0] : 0;
    return w->rank == 2 ? 2 * tokens * (in * out + rank * (in + out)) : 0;
}

/* Of one run of a step's forward; backward of products costs the same again, and once more where adapters train. */
static double step_flops(const nbl__planned_step *step)
{
    const void *a = step->arguments;
    double flops = 0;
    if (strcmp(step->node->family->name, "linear") == 0) {
        const nbl__linear *l = a;
        flops = product_flops(&l->x, &l->w, &l->lora_a);
    } else if (strcmp(step->node->family->name, "linear_group") == 0) {
        const nbl__linear_group *g = a;
        for (int i = 0; i < g->count; i++)
            flops += product_flops(&g->members[0].x, &g->members[i].w, &g->members[i].lora_a);
    } else if (strcmp(step->node->family->name, "mlp") == 0) {
        const nbl__mlp *m = a;
        nbl_tensor inner = m->gate.x;
        inner.shape[inner.rank - 1] = m->down.w.shape[1];
        flops = product_flops(&m->gate.x, &m->gate.w, &m->gate.lora_a) +
                product_flops(&m->gate.x, &m->up.w, &m->up.lora_a) +
                product_flops(&inner, &m->down.w, &m->down.lora_a);
    } else {
        for (const nbl__slot *slot = step->node->family->slots; slot->name; slot++)
            if (!nbl__slot_is_weight(slot) && step->bound[slot - step->node->family->slots])
                flops += (double)nbl__tensor_elements(nbl__slot_tensor(slot, (void *)(uintptr_t)a));
    }
    return flops;
}

static double step_bytes(const nbl__planned_step *step)
{
    double bytes = 0;
    for (const nbl__slot *slot = step->node->family->slots; slot->name; slot++) {
        if (step->bound[slot - step->node->family->slots] == 0) continue;
        const void *field = (const char *)step->arguments + slot->offset;
        uint64_t size = 0;
        if (nbl__slot_is_weight(slot)) size = weight_bytes(field);
        else {
            const nbl_tensor *t = field;
            nbl__dtype_bytes(t->dtype, (uint64_t)nbl__tensor_elements(t), &size);
        }
        bytes += (double)size;
    }
    return bytes;
}

static void count_step(nbl_model_plan *plan, const nbl__planned_step *step)
{
    int64_t i = 0;
    while (i < plan->op_count &&
           (strcmp(plan->ops[i].op, step->op->name) != 0 || strcmp(plan->ops[i].impl, step->impl->name) != 0))
        i++;
    if (i == NBL_PLAN_MOST_OPS) return;
    if (i == plan->op_count)
        plan->ops[plan->op_count++] = (nbl_planned_op){step->op->name, step->impl->name, 0, 0, 0};
    plan->ops[i].count++;
    plan->ops[i].flops += step_flops(step);
    plan->ops[i].bytes += step_bytes(step);
}

/* Plans the largest batch; `plan` may be NULL when only the total is asked for. */
static nbl_status plan_for(nbl_model *m, int64_t tokens, int64_t batch, nbl_model_plan *plan, uint64_t *total)
{
    bool train = m->peft != NULL;
    nbl__session s;
    NBL_TRY(nbl__session_plan(m,
                              &(nbl__session_options){.mode = train ? NBL_MODE_TRAIN : NBL_MODE_PREFILL,
                                                      .tokens = tokens * batch,
                                                      .sequences = batch,
                                                      .cache_size = train ? 0 : tokens,
                                                      .kv_dtype = m->dtype,
                                                      .train = train},
                              &s));
    const size_t *bytes = s.plan.bytes;
    nbl_plan_arenas arenas = {.kv = bytes[NBL_MEMORY_STATES]};
    arenas.weights = nbl__model_bytes(m);
    arenas.adapters = bytes[NBL_MEMORY_PARAMETERS] + bytes[NBL_MEMORY_GRADIENTS];
    arenas.optimizer = train ? 2 * (uint64_t)bytes[NBL_MEMORY_GRADIENTS] : 0;
    arenas.saved = s.plan.saved_bytes;
    arenas.scratch = bytes[NBL_MEMORY_RUN] - s.plan.saved_bytes + bytes[NBL_MEMORY_INPUTS];
    *total = arenas.weights + arenas.adapters + arenas.optimizer + arenas.saved + arenas.scratch + arenas.kv;
    if (plan) {
        plan->arenas = arenas;
        plan->total_bytes = *total;
        for (int i = 0; i < s.plan.step_count; i++) count_step(plan, &s.plan.steps[i]);
    }
    nbl__session_close(&s);
    return NBL_OK;
}

/* Biases come in the compute dtype; whatever else is stored in another dtype is used as it is. */
static void list_casts(const nbl_model *m, nbl_model_plan *plan)
{
    for (int64_t i = 0; i < m->weight_count && plan->cast_count < NBL_PLAN_MOST_CASTS; i++) {
        const struct nbl__held *held = &m->weights[i];
        if (held->weight.rank != 1 || !nbl__ends_with(held->name, ".bias") || held->weight.dtype == m->dtype)
            continue;
        plan->casts[plan->cast_count++] = (nbl_planned_cast){held->name, held->weight.dtype, m->dtype,
                                                             "a bias is added in the compute dtype"};
    }
}

/* The longest sequence whose plan keeps within the memory; 0: not even one token does. */
static nbl_status longest_within(nbl_model *m, int64_t batch, uint64_t memory, int64_t *longest)
{
    int64_t fits = 0, most = m->decoder.positions, fails = most + 1;
    while (fails - fits > 1) {
        int64_t middle = fits == 0 && fails > 64 ? 64 : fits + (fails - fits) / 2;
        uint64_t total;
        NBL_TRY(plan_for(m, middle, batch, NULL, &total));
        if (total <= memory) fits = middle;
        else fails = middle;
    }
    *longest = fits;
    return NBL_OK;
}

nbl_status nbl_model_make_plan(nbl_model *m, int64_t tokens, int64_t batch, uint64_t memory,
                               nbl_model_plan *plan)
{
    NBL_CHECK(m->ctx, plan && tokens >= 1 && batch >= 1 && tokens <= INT32_MAX / batch, NBL_ERROR_ARGUMENT,
              "plan: %" PRId64 " tokens in %" PRId64 " sequences", tokens, batch);
    memset(plan, 0, sizeof *plan);
    uint64_t total;
    NBL_TRY(plan_for(m, tokens, batch, plan, &total));
    list_casts(m, plan);
    plan->longest_sequence = m->decoder.positions;
    return memory ? longest_within(m, batch, memory, &plan->longest_sequence) : NBL_OK;
}
