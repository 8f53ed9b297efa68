/* mlp_ref.c - mlp and mlp_backward: the oracle. The three layers are the reference linear. Values
 * between them are f64. Backward recomputes gate and up, whether they were saved or not. */
#include <math.h>

#include "ops/elementwise/act_rare.h"
#include "ops/linear/mlp.h"
#include "ops/ref.h"

/* Scratch: f64 for one chunk, then what linear needs. */
typedef struct scratch {
    double *gate, *up, *h;    /* [rows, inner] */
    double *dgate, *dup, *dh; /* [rows, inner]; backward */
    double *dx_gate, *dx_up;  /* [rows, in]; backward */
    size_t used;
} scratch;

/* Cuts the scratch for the largest chunk; base NULL: measures it. */
static scratch layout(const nbl__mlp *a, bool backward, uint8_t *base)
{
    int64_t rows = nbl__min_i64(NBL_MLP_CHUNK, nbl__tensor_rows(&a->gate.x));
    int64_t inner = rows * a->gate.w.shape[0], back = backward ? inner : 0;
    int64_t in = backward ? rows * a->gate.w.shape[1] : 0;
    nbl__bump bump = {base, 0};
    scratch s;
    NBL_BUMP_ALLOC(&bump, s.gate, inner);
    NBL_BUMP_ALLOC(&bump, s.up, inner);
    NBL_BUMP_ALLOC(&bump, s.h, inner);
    NBL_BUMP_ALLOC(&bump, s.dgate, back);
    NBL_BUMP_ALLOC(&bump, s.dup, back);
    NBL_BUMP_ALLOC(&bump, s.dh, back);
    NBL_BUMP_ALLOC(&bump, s.dx_gate, in);
    NBL_BUMP_ALLOC(&bump, s.dx_up, in);
    s.used = bump.used;
    return s;
}

/* A tensor of f64 between two of the layers. */
static nbl_tensor between(double *data, int64_t rows, int64_t columns)
{
    return (nbl_tensor){.dtype = NBL_DTYPE_F64, .rank = 2, .shape = {rows, columns}, .data = data};
}

/* The layers of a chunk with the tensors between them. */
static void parts_of(const nbl__mlp *a, int64_t chunk, const scratch *s, nbl__linear parts[NBL_MLP_PARTS])
{
    int64_t inner = a->gate.w.shape[0], in = a->gate.w.shape[1];
    nbl__mlp_chunk(a, chunk, parts);
    int64_t rows = parts[NBL_MLP_GATE].x.shape[0];
    parts[NBL_MLP_GATE].y = between(s->gate, rows, inner);
    parts[NBL_MLP_GATE].dy = between(s->dgate, rows, inner);
    parts[NBL_MLP_GATE].dx = between(s->dx_gate, rows, in);
    parts[NBL_MLP_UP].y = between(s->up, rows, inner);
    parts[NBL_MLP_UP].dy = between(s->dup, rows, inner);
    parts[NBL_MLP_UP].dx = between(s->dx_up, rows, in);
    parts[NBL_MLP_DOWN].x = between(s->h, rows, inner);
    parts[NBL_MLP_DOWN].dx = between(s->dh, rows, inner);
}

/* The f64 tensors, and behind them the scratch of the layer that needs most. */
static size_t scratch_of(const nbl_context *ctx, const nbl__mlp *a, bool backward)
{
    nbl__linear parts[NBL_MLP_PARTS];
    scratch s = layout(a, backward, NULL);
    size_t max = 0;
    parts_of(a, 0, &s, parts);
    for (int p = 0; p < NBL_MLP_PARTS; p++) {
        size_t forward = nbl__linear_ref.scratch(ctx, &parts[p]);
        size_t back = backward ? nbl__linear_backward_ref.scratch(ctx, &parts[p]) : 0;
        if (forward > max) max = forward;
        if (back > max) max = back;
    }
    return s.used + max;
}

static size_t forward_scratch(const nbl_context *ctx, const void *arguments)
{
    return scratch_of(ctx, arguments, false);
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    return scratch_of(ctx, arguments, true);
}

static const double sqrt_half = 0.70710678118654752440, two_over_sqrt_pi = 1.12837916709551257390;

/* act(x). */
static double act_value(int act, double x)
{
    double slope;
    if (nbl__act_is_rare(act)) return nbl__act_rare((nbl__act)act, x, &slope);
    if (act == NBL_ACT_SILU) return x / (1 + exp(-x));
    if (act == NBL_ACT_GELU) return 0.5 * x * erfc(-x * sqrt_half);
    return 0.5 * x * (1 + tanh(two_over_sqrt_pi * sqrt_half * (x + 0.044715 * x * x * x)));
}

/* act'(x). */
static double act_slope(int act, double x)
{
    double slope;
    if (nbl__act_is_rare(act)) return (void)nbl__act_rare((nbl__act)act, x, &slope), slope;
    if (act == NBL_ACT_SILU) {
        double s = 1 / (1 + exp(-x));
        return s * (1 + x * (1 - s));
    }
    if (act == NBL_ACT_GELU)
        return 0.5 * erfc(-x * sqrt_half) + x * 0.5 * two_over_sqrt_pi * sqrt_half * exp(-0.5 * x * x);
    double c = two_over_sqrt_pi * sqrt_half, t = tanh(c * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

/* gate, up and h = act(gate)·up of a chunk. */
static nbl_status run_first(const nbl__call *inner, int act, const scratch *s, const nbl__linear *parts)
{
    int64_t n = nbl__tensor_elements(&parts[NBL_MLP_GATE].y);
    NBL_TRY(nbl__linear_ref.run(inner, &parts[NBL_MLP_GATE]));
    NBL_TRY(nbl__linear_ref.run(inner, &parts[NBL_MLP_UP]));
    for (int64_t i = 0; i < n; i++) s->h[i] = act_value(act, s->gate[i]) * s->up[i];
    return NBL_OK;
}

/* The call with the scratch behind the first `used` bytes. */
static nbl__call behind(const nbl__call *call, size_t used)
{
    return (nbl__call){.ctx = call->ctx,
                       .op = call->op,
                       .scratch = call->scratch + used,
                       .scratch_bytes = call->scratch_bytes - used};
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__mlp *a = arguments;
    scratch s = layout(a, false, call->scratch);
    nbl__call inner = behind(call, s.used);
    for (int64_t chunk = 0; chunk < nbl__mlp_chunks(a); chunk++) {
        nbl__linear parts[NBL_MLP_PARTS];
        parts_of(a, chunk, &s, parts);
        NBL_TRY(run_first(&inner, a->act, &s, parts));
        int64_t n = nbl__tensor_elements(&parts[NBL_MLP_GATE].y);
        for (int64_t i = 0; a->keep && i < n; i++) {
            int64_t at = chunk * NBL_MLP_CHUNK * a->gate.w.shape[0] + i;
            nbl__ref_set(&a->gate_out, at, s.gate[i]);
            nbl__ref_set(&a->up_out, at, s.up[i]);
        }
        NBL_TRY(nbl__linear_ref.run(&inner, &parts[NBL_MLP_DOWN]));
    }
    return NBL_OK;
}

/* Per chunk: recompute gate, up and h; down's backward gives dh; the product rule gives dgate and
 * dup; then the backward of both, whose dx are summed in f64. */
static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__mlp *a = arguments;
    scratch s = layout(a, true, call->scratch);
    nbl__call inner = behind(call, s.used);
    for (int64_t chunk = 0; chunk < nbl__mlp_chunks(a); chunk++) {
        nbl__linear parts[NBL_MLP_PARTS];
        parts_of(a, chunk, &s, parts);
        NBL_TRY(run_first(&inner, a->act, &s, parts));
        NBL_TRY(nbl__linear_backward_ref.run(&inner, &parts[NBL_MLP_DOWN]));
        int64_t n = nbl__tensor_elements(&parts[NBL_MLP_GATE].y);
        for (int64_t i = 0; i < n; i++) {
            s.dgate[i] = s.dh[i] * s.up[i] * act_slope(a->act, s.gate[i]);
            s.dup[i] = s.dh[i] * act_value(a->act, s.gate[i]);
        }
        NBL_TRY(nbl__linear_backward_ref.run(&inner, &parts[NBL_MLP_GATE]));
        NBL_TRY(nbl__linear_backward_ref.run(&inner, &parts[NBL_MLP_UP]));
        int64_t elements = nbl__tensor_elements(&parts[NBL_MLP_GATE].dx);
        for (int64_t i = 0; nbl__has_data(&a->gate.dx) && i < elements; i++)
            nbl__ref_set(&a->gate.dx, chunk * NBL_MLP_CHUNK * a->gate.w.shape[1] + i,
                         s.dx_gate[i] + s.dx_up[i]);
    }
    return NBL_OK;
}

const nbl__impl nbl__mlp_ref = {"mlp_ref", NBL_ISA_SCALAR, NULL, forward_scratch, run_forward};
const nbl__impl nbl__mlp_backward_ref = {"mlp_backward_ref", NBL_ISA_SCALAR, NULL, backward_scratch,
                                         run_backward};
