/* cost.c - floating-point operations and bytes of a step, from the shapes in its arguments.
 *
 * The counts follow what the operators compute, not a formula of the model: a backward step that
 * recomputes logits, scores, or gate and up counts them, and a gradient that is not requested
 * counts nothing. Each family states its own cost (nbl__family.cost). */
#include "graph/plan.h"

uint64_t nbl__weight_bytes(const nbl_weight *w)
{
    /* int8 and the block formats: bytes of codes, then of scales. */
    uint64_t n = 1, rows = 1, bytes = 0;
    if (w->members) { /* a stack of matrices that lie apart */
        for (int64_t i = 0; i < w->member_count; i++) bytes += nbl__weight_bytes(&w->members[i]);
        return bytes;
    }
    for (int i = 0; i < w->rank; i++) n *= (uint64_t)w->shape[i];
    for (int i = 0; i + 1 < w->rank; i++) rows *= (uint64_t)w->shape[i];
    switch (w->format) {
    case NBL_FORMAT_DENSE: nbl__dtype_bytes(w->dtype, n, &bytes); break;
    case NBL_FORMAT_INT8: bytes = n + 4 * rows; break;
    case NBL_FORMAT_MXFP4: bytes = n / 2 + n / 32; break;
    default: {
        uint64_t blocks = (n + (uint64_t)w->block - 1) / (uint64_t)w->block;
        bytes = (n + 1) / 2 + (w->nested_scales ? blocks + blocks / 64 + 4 : 4 * blocks);
    }
    }
    return bytes;
}

/* Elements of the largest tensor that the step reads or writes. */
static double largest_tensor(const nbl__planned_step *step)
{
    const nbl__family *family = step->node->family;
    double max = 0;
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        if (nbl__slot_is_weight(slot) || step->bound[slot - family->slots] == 0) continue;
        const nbl_tensor *t = nbl__slot_tensor(slot, step->arguments);
        double n = t->rank > 0 ? (double)nbl__tensor_elements(t) : 0;
        if (nbl__step_touches(step, slot) && n > max) max = n;
    }
    return max;
}

double nbl__step_flops(const nbl__planned_step *step)
{
    const nbl__cost *cost = &step->node->family->cost;
    if (cost->flops) return cost->flops(step->arguments, step->backward);
    double per_element = step->backward ? cost->backward : cost->forward;
    return per_element > 0 ? per_element * largest_tensor(step) : 0;
}

double nbl__step_bytes(const nbl__planned_step *step)
{
    const nbl__family *family = step->node->family;
    double bytes = 0;
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        if (step->bound[slot - family->slots] == 0 || !nbl__step_touches(step, slot)) continue;
        const void *field = (const char *)step->arguments + slot->offset;
        uint64_t size = 0;
        if (nbl__slot_is_weight(slot)) size = nbl__weight_bytes(field);
        else {
            const nbl_tensor *t = field;
            if (t->rank > 0) nbl__dtype_bytes(t->dtype, (uint64_t)nbl__tensor_elements(t), &size);
        }
        double all = (double)size;
        bytes += family->cost.slot_bytes ? family->cost.slot_bytes(step->arguments, slot, all) : all;
    }
    return bytes;
}

double nbl__plan_time(const nbl__plan *plan)
{
    enum { BALANCE = 150 }; /* bf16 operations per byte moved; recent devices: 130 to 300 */
    double sum = 0;
    for (int i = 0; i < plan->step_count; i++) {
        double bytes = nbl__step_bytes(&plan->steps[i]), flops = nbl__step_flops(&plan->steps[i]) / BALANCE;
        sum += bytes > flops ? bytes : flops;
    }
    return sum;
}
