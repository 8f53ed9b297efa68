/* mlp_cpu.c - mlp on the CPU, chunk by chunk, through linear_fused.h.
 *
 *   forward    g, u = gate(x), up(x)               f32 [chunk, inner]; x is packed once
 *              g = act(g)·u                        in place: h
 *              y = down(g)
 *   backward   g, u recomputed, or copied from gate_out and up_out (keep)
 *              d = dh                              down, dx only
 *              g, u, d = d·u·act'(g), d·act(g), act(g)·u      in place: dg, du, h
 *              gradients of down's parameters      down with x = d = h
 *              all of gate and up, and dx          a group of two
 *
 * With `keep` forward writes the outputs of gate and up to the saved tensors, and act(g)·u to
 * scratch.
 *
 * Scratch: pieces [chunk, inner] of f32 (forward 2, with keep 1; backward 3), the DoRA weight
 * norms that were not given, and what linear_fused needs. */
#include "base/team.h"
#include "ops/linear/cpu/gate_f32.h"
#include "ops/linear/cpu/linear_fused.h"
#include "ops/linear/cpu/linear_rows.h"
#include "ops/linear/mlp.h"

/* Scratch of a call. g and u hold the outputs of gate and up, then their gradients. */
typedef struct pieces {
    float *g, *u, *d;            /* [rows, inner] */
    float *norms[NBL_MLP_PARTS]; /* [out of the part], or NULL */
    size_t used;
} pieces;

/* DoRA without a given norm: the norm is computed once per call. */
static bool lacks_norm(const nbl__linear *a)
{
    return nbl__has_data(&a->magnitude) && !nbl__has_data(&a->norm);
}

static pieces layout(const nbl__mlp *a, bool backward, uint8_t *base)
{
    const nbl__linear *parts[NBL_MLP_PARTS] = {&a->gate, &a->up, &a->down};
    int64_t values = nbl__min_i64(NBL_MLP_CHUNK, nbl__tensor_rows(&a->gate.x)) * a->gate.w.shape[0];
    nbl__bump bump = {base, 0};
    pieces p = {0};
    NBL_BUMP_ALLOC(&bump, p.g, values);
    NBL_BUMP_ALLOC(&bump, p.u, backward || !a->keep ? values : 0);
    NBL_BUMP_ALLOC(&bump, p.d, backward ? values : 0);
    for (int i = 0; i < NBL_MLP_PARTS; i++)
        if (lacks_norm(parts[i])) NBL_BUMP_ALLOC(&bump, p.norms[i], parts[i]->w.shape[0]);
    p.used = bump.used;
    return p;
}

/* A tensor between two of the layers. */
static nbl_tensor between(float *data, int64_t rows, int64_t columns)
{
    return (nbl_tensor){.dtype = NBL_DTYPE_F32, .rank = 2, .shape = {rows, columns}, .data = data};
}

/* The layers of a chunk with their tensors: g is y and dy of gate, u is y and dy of up, `h` is
 * down's input, d its dx. */
static void parts_of(const nbl__mlp *a, int64_t chunk, const pieces *p, float *h,
                     nbl__linear parts[NBL_MLP_PARTS])
{
    int64_t inner = a->gate.w.shape[0];
    nbl__mlp_chunk(a, chunk, parts);
    int64_t rows = parts[NBL_MLP_GATE].x.shape[0];
    parts[NBL_MLP_GATE].y = parts[NBL_MLP_GATE].dy = between(p->g, rows, inner);
    parts[NBL_MLP_UP].y = parts[NBL_MLP_UP].dy = between(p->u, rows, inner);
    parts[NBL_MLP_DOWN].x = between(h, rows, inner);
    parts[NBL_MLP_DOWN].dx = between(p->d, rows, inner);
    for (int i = 0; i < NBL_MLP_PARTS; i++)
        if (p->norms[i])
            parts[i].norm = (nbl_tensor){
                .dtype = NBL_DTYPE_F32, .rank = 1, .shape = {parts[i].w.shape[0]}, .data = p->norms[i]};
}

static size_t largest(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t scratch_of(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__mlp *a, bool backward)
{
    enum { STAND_IN = 64 }; /* an address that is not NULL; nothing is read */
    nbl__linear parts[NBL_MLP_PARTS];
    pieces p = layout(a, backward, (uint8_t *)(uintptr_t)STAND_IN);
    parts_of(a, 0, &p, p.g, parts);
    size_t max = largest(nbl__linear_fused_scratch(ctx, algo, parts, 2),
                         nbl__linear_fused_scratch(ctx, algo, &parts[NBL_MLP_DOWN], 1));
    for (int i = 0; i < NBL_MLP_PARTS; i++)
        if (p.norms[i]) max = largest(max, nbl__dora_weight_norm_scratch(ctx, &parts[i]));
    if (!backward) return p.used + max;
    max = largest(max, nbl__linear_fused_backward_scratch(ctx, algo, parts, 2));
    return p.used + largest(max, nbl__linear_fused_backward_scratch(ctx, algo, &parts[NBL_MLP_DOWN], 1));
}

static size_t forward_scratch(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__mlp *a)
{
    return scratch_of(ctx, algo, a, false);
}

static size_t backward_scratch(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__mlp *a)
{
    return scratch_of(ctx, algo, a, true);
}

/* Computes the DoRA weight norms that were not given. */
static nbl_status make_norms(const nbl__call *call, const nbl__mlp *a, const pieces *p)
{
    nbl__linear parts[NBL_MLP_PARTS];
    nbl__mlp_chunk(a, 0, parts);
    for (int i = 0; i < NBL_MLP_PARTS; i++)
        if (p->norms[i])
            NBL_TRY(nbl__dora_weight_norm(call->ctx, &parts[i], p->norms[i], call->scratch + p->used));
    return NBL_OK;
}

/* ---- the activation ---- */

enum { PIECE = 8192 };

typedef struct gate_job {
    nbl_isa isa;
    nbl__act act;
    float *g, *u, *d; /* d NULL: forward */
    /* Saved outputs, or NULL. kept_gate is copied to g first. Forward reads kept_up in place of u;
     * backward copies it to u. */
    const float *saved_gate, *saved_up;
    int64_t n; /* elements */
} gate_job;

/* The activation over PIECE elements. */
static nbl_status gate_piece(void *argument, int64_t item, int worker)
{
    const gate_job *j = argument;
    int64_t at = item * PIECE, n = nbl__min_i64(PIECE, j->n - at);
    (void)worker;
    size_t bytes = (size_t)n * sizeof(float);
    if (j->saved_gate) memcpy(j->g + at, j->saved_gate + at, bytes);
    if (j->saved_gate && j->d) memcpy(j->u + at, j->saved_up + at, bytes);
    if (j->d) nbl__gate_backward(j->isa, j->act, j->g + at, j->u + at, j->d + at, n);
    else nbl__gate_forward(j->isa, j->act, j->g + at, (j->saved_up ? j->saved_up : j->u) + at, n);
    return NBL_OK;
}

/* The chunk's rows of a saved tensor. */
static float *saved_rows(const nbl_tensor *saved, int64_t chunk)
{
    return (float *)saved->data + chunk * NBL_MLP_CHUNK * nbl__last(saved);
}

/* The activation over a chunk. */
static nbl_status gate_all(const nbl__call *call, const nbl__mlp *a, int64_t chunk, const pieces *p,
                           const nbl_tensor *gate, bool backward)
{
    int64_t n = nbl__tensor_elements(gate);
    gate_job job = {.isa = nbl__isa(call->ctx),
                    .act = (nbl__act)a->act,
                    .g = p->g,
                    .u = p->u,
                    .d = backward ? p->d : NULL,
                    .saved_gate = a->keep ? saved_rows(&a->gate_out, chunk) : NULL,
                    .saved_up = a->keep ? saved_rows(&a->up_out, chunk) : NULL,
                    .n = n};
    return nbl__team_run(call->ctx, nbl__ceil_div(n, PIECE), gate_piece, &job, NULL);
}

/* ---- */

static nbl_status forward_run(const nbl__call *call, nbl__gemm_algo algo, const nbl__mlp *a)
{
    pieces p = layout(a, false, call->scratch);
    uint8_t *rest = call->scratch + p.used;
    size_t rest_bytes = call->scratch_bytes - p.used;
    NBL_TRY(make_norms(call, a, &p));
    for (int64_t chunk = 0; chunk < nbl__mlp_chunks(a); chunk++) {
        nbl__linear parts[NBL_MLP_PARTS];
        nbl__gemm_algo now = nbl__gemm_algo_of_chunk(algo, chunk == 0);
        parts_of(a, chunk, &p, p.g, parts);
        if (a->keep) parts[NBL_MLP_GATE].y.data = saved_rows(&a->gate_out, chunk);
        if (a->keep) parts[NBL_MLP_UP].y.data = saved_rows(&a->up_out, chunk);
        NBL_TRY(nbl__linear_fused_run(call->ctx, now, parts, 2, rest, rest_bytes));
        NBL_TRY(gate_all(call, a, chunk, &p, &parts[NBL_MLP_GATE].y, false));
        NBL_TRY(nbl__linear_fused_run(call->ctx, now, &parts[NBL_MLP_DOWN], 1, rest, rest_bytes));
    }
    return NBL_OK;
}

/* The layer without gradients of parameters: only dx is computed. */
static nbl__linear only_dx(nbl__linear a)
{
    a.dbias.data = a.dlora_a.data = a.dlora_b.data = a.dmagnitude.data = a.dw.data = NULL;
    return a;
}

static nbl_status backward_run(const nbl__call *call, nbl__gemm_algo algo, const nbl__mlp *a)
{
    pieces p = layout(a, true, call->scratch);
    uint8_t *rest = call->scratch + p.used;
    size_t rest_bytes = call->scratch_bytes - p.used;
    NBL_TRY(make_norms(call, a, &p));
    for (int64_t chunk = 0; chunk < nbl__mlp_chunks(a); chunk++) {
        nbl__linear parts[NBL_MLP_PARTS];
        nbl__gemm_algo now = nbl__gemm_algo_of_chunk(algo, chunk == 0);
        parts_of(a, chunk, &p, p.d, parts);
        if (!a->keep) NBL_TRY(nbl__linear_fused_run(call->ctx, now, parts, 2, rest, rest_bytes));
        /* down runs twice: its dx is needed before h can be formed in the same memory, and the gradients of its
         * parameters need h. */
        nbl__linear down = only_dx(parts[NBL_MLP_DOWN]);
        NBL_TRY(nbl__linear_fused_backward_run(call->ctx, now, &down, 1, rest, rest_bytes));
        NBL_TRY(gate_all(call, a, chunk, &p, &parts[NBL_MLP_GATE].y, true));
        parts[NBL_MLP_DOWN].dx.data = NULL;
        NBL_TRY(nbl__linear_fused_backward_run(call->ctx, now, &parts[NBL_MLP_DOWN], 1, rest, rest_bytes));
        NBL_TRY(nbl__linear_fused_backward_run(call->ctx, now, parts, 2, rest, rest_bytes));
    }
    return NBL_OK;
}

/* ---- rows ---- */

/* Backward recomputes the outputs of gate and up unless they were kept, and an output whose
 * magnitude gets a gradient. */
static nbl__linear_traits traits_of(const nbl__mlp *a, bool backward)
{
    const nbl__linear *parts[NBL_MLP_PARTS] = {&a->gate, &a->up, &a->down};
    nbl__linear_traits traits = {.dtype = a->gate.dtype,
                                 .tokens = nbl__tensor_rows(&a->gate.x),
                                 .backward = backward,
                                 .outputs = !backward || !a->keep};
    for (int p = 0; p < NBL_MLP_PARTS; p++) {
        bool outputs = !backward || (p != NBL_MLP_DOWN && !a->keep) || nbl__has_data(&parts[p]->magnitude);
        traits.codes |= parts[p]->w.format == NBL_FORMAT_INT8 && !a->gate.dequantized && outputs;
        traits.outputs |= nbl__linear_rank(parts[p]) > 0;
    }
    return traits;
}

static nbl__linear_traits forward_traits(const nbl__mlp *a)
{
    return traits_of(a, false);
}

static nbl__linear_traits backward_traits(const nbl__mlp *a)
{
    return traits_of(a, true);
}

NBL_LINEAR_ROWS(NBL_LINEAR_ROW, mlp, forward)
NBL_LINEAR_ROWS(NBL_LINEAR_ROW, mlp_backward, backward)
