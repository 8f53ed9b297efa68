/* mlp.c - the families mlp and mlp_backward: checks, outputs, slots, and the division into chunks.
 * mlp.h has the formulas and the rules of shared arguments. Each part is checked as a linear layer
 * of its own (linear.c). */
#include "ops/linear/mlp.h"

#include "ops/elementwise/elementwise.h"
#include "ops/families.h"
#include "ops/linear/cpu/linear_rows.h"

int64_t nbl__mlp_chunks(const nbl__mlp *a)
{
    return nbl__max_i64(1, nbl__ceil_div(nbl__tensor_rows(&a->gate.x), NBL_MLP_CHUNK));
}

/* The three layers with gate's shared arguments in each. */
static void spread(const nbl__mlp *a, nbl__linear parts[NBL_MLP_PARTS])
{
    parts[NBL_MLP_GATE] = a->gate;
    parts[NBL_MLP_UP] = a->up;
    parts[NBL_MLP_DOWN] = a->down;
    parts[NBL_MLP_UP].x = a->gate.x;
    for (int p = 1; p < NBL_MLP_PARTS; p++) {
        parts[p].dtype = a->gate.dtype;
        if (parts[p].scale == 0) parts[p].scale = a->gate.scale;
        parts[p].dropout = a->gate.dropout;
        parts[p].seed = nbl__dropout_seed(a->gate.seed, p);
        parts[p].seeds = a->gate.seeds;
        parts[p].seed_index = a->gate.seed_index;
        parts[p].first_row = a->gate.first_row;
        parts[p].threshold = a->gate.threshold;
        parts[p].dequantized = a->gate.dequantized;
        parts[p].train_w = a->gate.train_w;
        parts[p].accumulate = a->gate.accumulate;
    }
}

/* Rows [begin, begin + count) of a tensor seen as a matrix. The tensor may be f64 in a reference. */
static nbl_tensor rows_of(const nbl_tensor *t, int64_t begin, int64_t count)
{
    size_t size = t->dtype == NBL_DTYPE_F64 ? 8 : nbl__size_of(t->dtype);
    nbl_tensor rows = {.dtype = t->dtype, .rank = 2, .shape = {count, nbl__last(t)}};
    if (t->data) rows.data = (uint8_t *)t->data + (size_t)(begin * nbl__last(t)) * size;
    return rows;
}

void nbl__mlp_chunk(const nbl__mlp *a, int64_t chunk, nbl__linear parts[NBL_MLP_PARTS])
{
    int64_t begin = chunk * NBL_MLP_CHUNK, tokens = nbl__tensor_rows(&a->gate.x);
    int64_t count = nbl__min_i64(NBL_MLP_CHUNK, tokens - begin);
    spread(a, parts);
    for (int p = 0; p < NBL_MLP_PARTS; p++) {
        parts[p].first_row += begin;
        parts[p].accumulate |= chunk > 0;
    }
    parts[NBL_MLP_GATE].x = parts[NBL_MLP_UP].x = rows_of(&a->gate.x, begin, count);
    parts[NBL_MLP_GATE].dx = parts[NBL_MLP_UP].dx = rows_of(&a->gate.dx, begin, count);
    parts[NBL_MLP_DOWN].y = rows_of(&a->down.y, begin, count);
    parts[NBL_MLP_DOWN].dy = rows_of(&a->down.dy, begin, count);
}

/* ---- checks ---- */

static const char *const names[NBL_MLP_PARTS] = {"gate.", "up.", "down."};

/* The checks of both directions. `parts` receives the layers of the whole call, with the shapes of
 * y and of down's x. */
static nbl_status check(nbl_context *ctx, const char *op, const nbl__mlp *a, nbl__linear parts[NBL_MLP_PARTS])
{
    spread(a, parts);
    NBL_TRY(nbl__linear_infer(ctx, op, names[0], &parts[NBL_MLP_GATE]));
    NBL_TRY(nbl__linear_infer(ctx, op, names[1], &parts[NBL_MLP_UP]));
    const nbl_weight *gate = &a->gate.w, *up = &a->up.w, *down = &a->down.w;
    NBL_CHECK(ctx, up->shape[0] == gate->shape[0], NBL_ERROR_SHAPE,
              "%s: up is %s and gate %s: their first dimensions differ", op,
              nbl__show_shape(2, up->shape).text, nbl__show_shape(2, gate->shape).text);
    NBL_CHECK(ctx, down->rank == 2 && down->shape[1] == gate->shape[0], NBL_ERROR_SHAPE,
              "%s: down is %s, a matrix [out, %" PRId64 "] was expected after gate %s", op,
              nbl__show_shape(down->rank, down->shape).text, gate->shape[0],
              nbl__show_shape(2, gate->shape).text);
    nbl__output_like(&parts[NBL_MLP_DOWN].x, &a->gate.x, gate->shape[0], a->gate.dtype);
    return nbl__linear_infer(ctx, op, names[2], &parts[NBL_MLP_DOWN]);
}

/* With keep, gate_out and up_out are outputs; else they have rank 0. */
static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    nbl__mlp *a = arguments;
    nbl__linear parts[NBL_MLP_PARTS];
    NBL_TRY(check(ctx, "mlp", a, parts));
    a->down.y = parts[NBL_MLP_DOWN].y;
    nbl_tensor *saved[] = {&a->gate_out, &a->up_out};
    for (int i = 0; i < 2; i++)
        if (a->keep) nbl__output_like(saved[i], &a->gate.x, a->gate.w.shape[0], NBL_DTYPE_F32);
        else nbl__output_none(saved[i]);
    return NBL_OK;
}

/* dy of gate and up exists only inside the operator, so the checks get a stand-in: y. */
static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    static const char op[] = "mlp_backward";
    nbl__mlp *a = arguments;
    nbl__linear parts[NBL_MLP_PARTS], *own[NBL_MLP_PARTS] = {&a->gate, &a->up, &a->down};
    NBL_TRY(check(ctx, op, a, parts));
    NBL_TRY(nbl__check_dtype(ctx, op, "dy", &a->down.dy, a->gate.dtype));
    NBL_TRY(nbl__check_matrix(ctx, op, "dy", &a->down.dy, nbl__tensor_rows(&a->gate.x), a->down.w.shape[0]));
    const nbl_tensor *saved[] = {&a->gate_out, &a->up_out};
    static const char *const saved_names[] = {"gate_out", "up_out"};
    for (int i = 0; a->keep && i < 2; i++) {
        NBL_TRY(nbl__check_dtype(ctx, op, saved_names[i], saved[i], NBL_DTYPE_F32));
        NBL_TRY(nbl__check_matrix(ctx, op, saved_names[i], saved[i], nbl__tensor_rows(&a->gate.x),
                                  a->gate.w.shape[0]));
    }
    for (int p = 0; p < NBL_MLP_PARTS; p++) {
        if (p != NBL_MLP_DOWN) parts[p].dy = parts[p].y;
        NBL_TRY(nbl__linear_infer_backward(ctx, op, names[p], &parts[p]));
        own[p]->dbias = parts[p].dbias;
        own[p]->dlora_a = parts[p].dlora_a;
        own[p]->dlora_b = parts[p].dlora_b;
        own[p]->dmagnitude = parts[p].dmagnitude;
        own[p]->dw = parts[p].dw;
    }
    a->gate.dx = parts[NBL_MLP_GATE].dx;
    return NBL_OK;
}

/* If gate and up were not saved (`keep` is false), backward recomputes both. */
static double flops(const void *arguments, bool backward)
{
    const nbl__mlp *m = arguments;
    double tokens = (double)nbl__tensor_rows(&m->gate.x);
    /* open: gate and up; between: activation and product, about 5 operations per element */
    double open = nbl__linear_forward_flops(&m->gate, tokens) + nbl__linear_forward_flops(&m->up, tokens);
    double between = 5 * tokens * (double)m->gate.w.shape[0];
    if (!backward) return open + between + nbl__linear_forward_flops(&m->down, tokens);
    bool dx = m->gate.dx.data != NULL;
    return (m->keep ? 0 : open) + 3 * between + nbl__linear_backward_flops(&m->gate, tokens, dx) +
           nbl__linear_backward_flops(&m->up, tokens, dx) +
           nbl__linear_backward_flops(&m->down, tokens, true);
}

/* Slots of a part: its name before the names of linear ("gate.lora_a"). Shared tensors are
 * gate's. */
#define SLOT(part, field, name, role, of) NBL_SLOT(nbl__mlp, part.field, name, role, of)
#define KEPT(part, field, name, role) NBL_SLOT_SAVED(nbl__mlp, part.field, name, role)
#define PART(part)                                                                                           \
    KEPT(part, w, #part, WEIGHT), KEPT(part, bias, #part ".b", OPTIONAL),                                    \
        KEPT(part, lora_a, #part ".lora_a", OPTIONAL), KEPT(part, lora_b, #part ".lora_b", OPTIONAL),        \
        KEPT(part, magnitude, #part ".magnitude", OPTIONAL), KEPT(part, norm, #part ".norm", OPTIONAL),      \
        SLOT(part, dbias, "d" #part ".b", GRADIENT, #part ".b"),                                             \
        SLOT(part, dlora_a, "d" #part ".lora_a", GRADIENT, #part ".lora_a"),                                 \
        SLOT(part, dlora_b, "d" #part ".lora_b", GRADIENT, #part ".lora_b"),                                 \
        SLOT(part, dmagnitude, "d" #part ".magnitude", GRADIENT, #part ".magnitude"),                        \
        SLOT(part, dw, "d" #part, GRADIENT, #part)

static const nbl__slot slots[] = {
    KEPT(gate, x, "x", INPUT),
    PART(gate),
    PART(up),
    PART(down),
    KEPT(gate, seeds, "seeds", OPTIONAL),
    SLOT(down, y, "y", OUTPUT, NULL),
    NBL_SAVED_WHEN(nbl__mlp, gate_out, "gate_out", "keep"),
    NBL_SAVED_WHEN(nbl__mlp, up_out, "up_out", "keep"),
    SLOT(down, dy, "dy", COTANGENT, "y"),
    SLOT(gate, dx, "dx", GRADIENT, "x"),
    {0},
};
static const nbl__attr attrs[] = {
    NBL_ATTR(nbl__mlp, gate.dtype, "dtype", DTYPE, 0),
    NBL_ATTR_OF_WORDS(nbl__mlp, act, "act", nbl__act_words),
    NBL_ATTR(nbl__mlp, gate.scale, "scale", FLOAT, 1),
    NBL_ATTR(nbl__mlp, up.scale, "up.scale", FLOAT, 0),
    NBL_ATTR(nbl__mlp, down.scale, "down.scale", FLOAT, 0),
    NBL_ATTR(nbl__mlp, gate.dropout, "dropout", FLOAT, 0),
    NBL_ATTR(nbl__mlp, gate.seed, "seed", SEED, 0),
    NBL_ATTR(nbl__mlp, gate.seed_index, "seed_index", INT, 0),
    NBL_ATTR(nbl__mlp, gate.first_row, "first_row", INT, 0),
    NBL_ATTR(nbl__mlp, gate.threshold, "threshold", FLOAT, 6),
    NBL_ATTR(nbl__mlp, gate.dequantized, "decoded", FLAG, 0),
    NBL_ATTR(nbl__mlp, gate.train_w, "train_w", FLAG, 0),
    NBL_ATTR(nbl__mlp, gate.accumulate, "accumulate", FLAG, 0),
    NBL_ATTR(nbl__mlp, keep, "keep", FLAG, 0),
    {0},
};
NBL_LINEAR_ROWS(NBL_LINEAR_ROW_DECLARATION, mlp, forward)
NBL_LINEAR_ROWS(NBL_LINEAR_ROW_DECLARATION, mlp_backward, backward)
static const nbl__impl *const forward_impls[] = {
    NBL_LINEAR_ROWS(NBL_LINEAR_ROW_ADDRESS, mlp, forward) & nbl__mlp_ref, NULL};
static const nbl__impl *const backward_impls[] = {
    NBL_LINEAR_ROWS(NBL_LINEAR_ROW_ADDRESS, mlp_backward, backward) & nbl__mlp_backward_ref, NULL};
const nbl__family nbl__mlp_family = {
    "mlp",
    sizeof(nbl__mlp),
    slots,
    attrs,
    {"mlp", infer_forward, forward_impls},
    {"mlp_backward", infer_backward, backward_impls},
    {.flops = flops},
};
