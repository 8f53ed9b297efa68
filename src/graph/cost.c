/* cost.c - floating-point operations and bytes of a step, from the shapes in its arguments.
 *
 * The counts follow what the operators compute, not a formula of the model: a backward step that
 * recomputes logits, scores, or gate and up counts them, and a gradient that is not requested
 * counts nothing.
 *
 * Notation: T tokens, I = in, O = out, r = LoRA rank. A multiply-add is 2 operations. */
#include "graph/plan.h"
#include "ops/attention/attention.h"
#include "ops/loss/cross_entropy.h"
#include "ops/linear/dora_norm.h"
#include "ops/embedding/embedding.h"
#include "ops/linear/linear_group.h"
#include "ops/linear/mlp.h"
#include "ops/linear/norm_linear.h"

uint64_t nbl__weight_bytes(const nbl_weight *w)
{
    /* int8 and the block formats: bytes of codes, then of scales. */
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

static double elements(const nbl_tensor *t)
{
    return t->rank > 0 ? (double)nbl__tensor_elements(t) : 0;
}

/* ---- linear layers ---- */

/* Sizes of a linear layer as f64, and what is trained of it. */
typedef struct layer_size {
    double tokens, in, out, rank;
    bool dora, trains_adapter, trains_magnitude;
} layer_size;

static layer_size size_of(const nbl__linear *a, double tokens)
{
    return (layer_size){.tokens = tokens,
                        .in = (double)a->w.shape[1],
                        .out = (double)a->w.shape[0],
                        .rank = (double)nbl__linear_rank(a),
                        .dora = nbl__given(&a->magnitude),
                        .trains_adapter = a->dlora_a.data != NULL,
                        .trains_magnitude = a->dmagnitude.data != NULL};
}

/* Forward: y = x·Wᵀ + s·(x·Aᵀ)·Bᵀ; with DoRA one more factor per output. */
static double layer_forward(layer_size s)
{
    return 2 * s.tokens * (s.in * s.out + s.rank * (s.in + s.out)) + (s.dora ? s.tokens * s.out : 0);
}

/* Backward of a linear layer, without the terms that are linear in T·O:
 *
 *     dx = dy·W + u·A        2·T·(I·O + r·I), where u = s·dy·B costs 2·T·O·r
 *     dA = uᵀ·x              2·T·r·I
 *     dB = dyᵀ·t             2·T·r·O, where t = s·x·Aᵀ is recomputed: 2·T·r·I
 *     dmagnitude             needs y again: 2·T·O·(I + r + 1)
 */
static double layer_backward(layer_size s, bool dx)
{
    double flops = dx ? 2 * s.tokens * (s.in * s.out + s.rank * s.in) : 0;
    if (s.rank > 0 && (dx || s.trains_adapter)) flops += 2 * s.tokens * s.out * s.rank;
    if (s.trains_adapter) flops += 2 * s.tokens * s.rank * (2 * s.in + s.out);
    if (s.dora) flops += s.tokens * s.out;
    if (s.trains_magnitude) flops += 2 * s.tokens * s.out * (s.in + s.rank + 1);
    return flops;
}

static double linear_flops(const void *arguments, bool backward)
{
    const nbl__linear *a = arguments;
    layer_size size = size_of(a, (double)nbl__tensor_rows(&a->x));
    return backward ? layer_backward(size, a->dx.data != NULL) : layer_forward(size);
}

/* linear_group: the sum of its members, which share x. */
static double group_flops(const void *arguments, bool backward)
{
    const nbl__linear_group *g = arguments;
    double flops = 0, tokens = (double)nbl__tensor_rows(&g->members[0].x);
    for (int i = 0; i < g->count; i++) {
        layer_size size = size_of(&g->members[i], tokens);
        flops += backward ? layer_backward(size, g->members[0].dx.data != NULL) : layer_forward(size);
    }
    return flops;
}

/* MLP. If gate and up were not saved (m->keep is false), backward recomputes both. */
static double mlp_flops(const void *arguments, bool backward)
{
    const nbl__mlp *m = arguments;
    double tokens = (double)nbl__tensor_rows(&m->gate.x);
    layer_size gate = size_of(&m->gate, tokens), up = size_of(&m->up, tokens),
               down = size_of(&m->down, tokens);
    /* open: gate and up; between: activation and product, about 5 operations per element */
    double open = layer_forward(gate) + layer_forward(up), between = 5 * tokens * gate.out;
    if (!backward) return open + between + layer_forward(down);
    bool dx = m->gate.dx.data != NULL;
    return (m->keep ? 0 : open) + 3 * between + layer_backward(gate, dx) + layer_backward(up, dx) +
           layer_backward(down, true);
}

/* The DoRA weight norm of row i: ‖Wi‖² + 2s·(W·Aᵀ)i·Bi + s²·Bi·(A·Aᵀ)·Biᵀ. */
static double dora_norm_flops(const void *arguments, bool backward)
{
    const nbl__dora_norm *a = arguments;
    double out = (double)a->w.shape[0], in = (double)a->w.shape[1], rank = (double)a->lora_a.shape[0];
    (void)backward;
    return 2 * in * out * (rank + 1) + 2 * rank * rank * (in + out) + 4 * rank * out;
}

/* ---- attention ---- */

/* Number of pairs (query, key) that the mask admits, over all sequences of a pack. */
static double pairs(const nbl__attention *a)
{
    int64_t tokens = a->q.shape[0], sequences = nbl__max_i64(1, a->cu_seqlens.shape[0] - 1);
    /* Sequences are taken as equally long; the sum is over the positions of one of them. */
    int64_t length = nbl__ceil_div(tokens, sequences);
    double sum = 0;
    for (int64_t i = 0; i < length; i++) {
        nbl__span span = nbl__attention_span(a->causal, a->window, i, length);
        sum += (double)(span.end - span.first);
    }
    return sum * (double)tokens / (double)nbl__max_i64(1, length);
}

/* Forward: q·kᵀ and p·v, 4·dim per pair. Backward recomputes the scores and has four products:
 * 10·dim. */
static double attention_flops(const void *arguments, bool backward)
{
    const nbl__attention *a = arguments;
    double seen = pairs(a) * (double)a->q.shape[1], dim = (double)a->q.shape[2];
    return backward ? seen * (10 * dim + 6) : seen * (4 * dim + 4);
}

/* One query per sequence against all cached keys, or those in the window. */
static double decode_flops(const void *arguments, bool backward)
{
    const nbl__attention_decode *a = arguments;
    int64_t length = a->k.shape[1];
    (void)backward;
    if (a->window > 0) length = nbl__min_i64(length, a->window);
    return (double)(a->q.shape[0] * a->q.shape[1] * length) * (4 * (double)a->q.shape[2] + 4);
}

/* attention_step: attention_decode, and RoPE of q and k at 3 operations per element. */
static double step_flops(const void *arguments, bool backward)
{
    const nbl__attention_step *a = arguments;
    nbl__attention_decode decode = nbl__attention_of_step(a, &a->q);
    double transposed = 3 * (double)(nbl__tensor_elements(&a->q) + nbl__tensor_elements(&a->k));
    return decode_flops(&decode, backward) + transposed;
}

/* ---- fused families: forward of their parts ---- */

enum { NORM_FLOPS = 5 }; /* of rmsnorm, per element */

static double norm_group_flops(const void *arguments, bool backward)
{
    const nbl__norm_linear_group *a = arguments;
    return NORM_FLOPS * elements(&a->norm.y) + group_flops(&a->layers, backward);
}

static double norm_mlp_flops(const void *arguments, bool backward)
{
    const nbl__norm_mlp *a = arguments;
    return NORM_FLOPS * elements(&a->norm.y) + mlp_flops(&a->layers, backward);
}

/* ---- the rest ---- */

/* The product of the output head, 2·logits·hidden. Backward recomputes it unless forward
 * computed dx too. */
static double loss_flops(const void *arguments, bool backward)
{
    const nbl__cross_entropy *a = arguments;
    double logits = (double)nbl__tensor_rows(&a->x) * (double)a->w.shape[0], hidden = (double)a->w.shape[1];
    if (a->grad_in_forward && backward) return (double)nbl__tensor_elements(&a->x);
    double products = !backward ? 1 + a->grad_in_forward : 1 + (a->dx.data != NULL) + (a->dw.data != NULL);
    return logits * (2 * hidden * products + (a->softcap > 0 ? 8 : 4));
}

/* Cost by operator family. Elementwise families give operations per element. */
static const struct family_cost {
    const char *family;
    double (*flops)(const void *arguments, bool backward);
    /* if flops is NULL: operations per element of the step's largest tensor */
    double forward, backward;
} costs[] = {
    {"linear", linear_flops, 0, 0},
    {"linear_group", group_flops, 0, 0},
    {"mlp", mlp_flops, 0, 0},
    {"norm_linear_group", norm_group_flops, 0, 0},
    {"norm_mlp", norm_mlp_flops, 0, 0},
    {"dora_norm", dora_norm_flops, 0, 0},
    {"attention", attention_flops, 0, 0},
    {"attention_decode", decode_flops, 0, 0},
    {"attention_step", step_flops, 0, 0},
    {"cross_entropy", loss_flops, 0, 0},
    {"argmax", NULL, 1, 0},
    {"rmsnorm", NULL, NORM_FLOPS, 9},
    {"layernorm", NULL, 8, 14},
    {"rope_table", NULL, 2, 0},
    {"rope", NULL, 3, 3},
    {"norm_rope", NULL, 8, 12},
    {"gated", NULL, 5, 10},
    {"add", NULL, 1, 0},
    {"scale", NULL, 1, 1},
    {"embedding", NULL, 1, 1},
};

double nbl__step_flops(const nbl__planned_step *step)
{
    const nbl__family *family = step->node->family;
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++) {
        if (strcmp(costs[i].family, family->name) != 0) continue;
        if (costs[i].flops) return costs[i].flops(step->arguments, step->backward);
        double max = 0;
        for (const nbl__slot *slot = family->slots; slot->name; slot++) {
            if (nbl__slot_is_weight(slot) || step->bound[slot - family->slots] == 0) continue;
            double n = elements(nbl__slot_tensor(slot, step->arguments));
            if (nbl__step_touches(step, slot) && n > max) max = n;
        }
        return max * (step->backward ? costs[i].backward : costs[i].forward);
    }
    return 0; /* families that are not listed only move data */
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
        /* an embedding reads at most one row per token */
        if (strcmp(family->name, "embedding") == 0 && nbl__slot_is_weight(slot)) {
            const nbl__embedding *e = step->arguments;
            double rows = elements(&e->ids);
            size = (uint64_t)((double)size *
                              (rows < (double)e->w.shape[0] ? rows / (double)e->w.shape[0] : 1));
        }
        if (strcmp(family->name, "kv_write") == 0 && strcmp(slot->name, "cache") == 0) continue;
        bytes += (double)size;
    }
    /* kv_write reads x and writes as many bytes of the cache */
    if (strcmp(family->name, "kv_write") == 0) bytes *= 2;
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
