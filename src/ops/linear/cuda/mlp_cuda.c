/* mlp_cuda.c - mlp on the device, in chunks of tokens like the CPU, through linear_cuda.h.
 *
 *     forward    g, u = gate(x), up(x)          f32 [chunk, inner]
 *                g = act(g)·u, y = down(g)
 *     backward   g, u again; d = the gradient of h, through down; then, in place,
 *                g, u, d = d·u·act'(g), d·act(g), act(g)·u      gradients of gate and up, and h
 *                gradients of down's parameters from d, then all of gate and up, and dx
 *
 * These chunks are small for a device. Where speed matters, a graph of linear_group, gated and
 * linear does the same. With `keep` g and u are the saved tensors, and forward writes act(g)·u into
 * scratch.
 *
 * The rows:
 *
 *     gemv_sm90   one row without adapters: gate, up and act in one launch, and act(g)·u is rounded
 *                 once
 *     gemv        up to 8 rows: the layers multiply weights as they are stored; with bf16 the
 *                 values between the layers are bf16
 *     general     the layers take the general algorithm
 *
 * The last chunk may have few rows. Its layers take the best algorithm that linear has for them. */
#include "ops/linear/mlp.h"

#include "ops/linear/cuda/lora_decode.h"
#include "ops/gemv/cuda/gemv_cuda.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/linear/cuda/linear_helpers.h"
#include "ops/elementwise/elementwise.h"

/* Scratch of one chunk, before that of the layers. */
typedef struct pieces {
    nbl_dtype between;           /* of g, u and d */
    float *g, *u, *d;            /* [rows, inner] */
    float *norms[NBL_MLP_PARTS]; /* [out of the part], or NULL */
    size_t used;
} pieces;

/* True if values between the layers may be bf16: generation in bf16, nothing kept for backward. */
static bool is_small_batch(const nbl__mlp *a)
{
    return nbl__tensor_rows(&a->gate.x) <= NBL_MAX_LORA_DECODE_ROWS && a->gate.dtype == NBL_DTYPE_BF16 &&
           !a->keep;
}

/* True if this way has bf16 between the layers. */
static bool uses_small_batch(nbl__cuda_linear_algo algo, const nbl__mlp *a)
{
    return algo != NBL_CUDA_LINEAR_ALGO_GENERAL && is_small_batch(a);
}

/* Lays out the pieces of a call. norms: for DoRA layers whose norm is not an argument. */
static pieces layout(nbl__cuda_linear_algo algo, const nbl__mlp *a, bool backward, uint8_t *base)
{
    const nbl__linear *parts[NBL_MLP_PARTS] = {&a->gate, &a->up, &a->down};
    int64_t values = nbl__min_i64(NBL_MLP_CHUNK, nbl__tensor_rows(&a->gate.x)) * a->gate.w.shape[0];
    nbl__bump bump = {base, 0};
    pieces p = {.between = !backward && uses_small_batch(algo, a) ? NBL_DTYPE_BF16 : NBL_DTYPE_F32};
    NBL_BUMP_ALLOC(&bump, p.g, values);
    NBL_BUMP_ALLOC(&bump, p.u, backward || !a->keep ? values : 0);
    NBL_BUMP_ALLOC(&bump, p.d, backward ? values : 0);
    for (int i = 0; i < NBL_MLP_PARTS; i++)
        if (nbl__has_data(&parts[i]->magnitude) && !nbl__has_data(&parts[i]->norm))
            NBL_BUMP_ALLOC(&bump, p.norms[i], parts[i]->w.shape[0]);
    p.used = bump.used;
    return p;
}

/* A dense matrix between the layers. */
static nbl_tensor between(nbl_dtype dtype, float *data, int64_t rows, int64_t columns)
{
    return (nbl_tensor){.dtype = dtype, .rank = 2, .shape = {rows, columns}, .data = data};
}

/* The layers of a chunk: outputs of gate and up, and their gradients, are g and u; the input of
 * down is `h`. */
static void parts_of(const nbl__mlp *a, int64_t chunk, const pieces *p, float *h,
                     nbl__linear parts[NBL_MLP_PARTS])
{
    int64_t inner = a->gate.w.shape[0];
    nbl__mlp_chunk(a, chunk, parts);
    int64_t rows = parts[NBL_MLP_GATE].x.shape[0];
    parts[NBL_MLP_GATE].y = parts[NBL_MLP_GATE].dy = between(p->between, p->g, rows, inner);
    parts[NBL_MLP_UP].y = parts[NBL_MLP_UP].dy = between(p->between, p->u, rows, inner);
    parts[NBL_MLP_DOWN].x = between(p->between, h, rows, inner);
    parts[NBL_MLP_DOWN].dx = between(p->between, p->d, rows, inner);
    for (int i = 0; i < NBL_MLP_PARTS; i++)
        if (p->norms[i]) {
            parts[i].norm = between(NBL_DTYPE_F32, p->norms[i], 0, 0);
            parts[i].norm.rank = 1;
            parts[i].norm.shape[0] = parts[i].w.shape[0];
        }
}

static size_t largest(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Max scratch of the layers of a chunk, by the general algorithm or gemv. */
static size_t of_layers(const nbl__cuda *cuda, const nbl__linear *parts, bool backward)
{
    const nbl__linear *down = &parts[NBL_MLP_DOWN];
    size_t max = largest(nbl__cuda_linear_scratch(cuda, NBL_CUDA_LINEAR_ALGO_GENERAL, parts, 2),
                         nbl__cuda_linear_scratch(cuda, NBL_CUDA_LINEAR_ALGO_GENERAL, down, 1));
    if (!backward) return max;
    max = largest(max, nbl__cuda_linear_backward_scratch(cuda, NBL_CUDA_LINEAR_ALGO_GENERAL, parts, 2));
    return largest(max, nbl__cuda_linear_backward_scratch(cuda, NBL_CUDA_LINEAR_ALGO_GENERAL, down, 1));
}

static size_t scratch_of(const nbl__cuda *cuda, nbl__cuda_linear_algo algo, const nbl__mlp *a, bool backward)
{
    enum { STAND_IN = 64 }; /* an address that is not NULL; nothing is read */
    nbl__linear parts[NBL_MLP_PARTS];
    pieces p = layout(algo, a, backward, (uint8_t *)(uintptr_t)STAND_IN);
    parts_of(a, 0, &p, p.g, parts);
    size_t max = of_layers(cuda, parts, backward);
    /* the last chunk is shorter and may go another way */
    int64_t chunks = nbl__mlp_chunks(a);
    if (chunks > 1) {
        parts_of(a, chunks - 1, &p, p.g, parts);
        max = largest(max, of_layers(cuda, parts, backward));
    }
    return p.used + max;
}

/* A plan for many rows may run with few, which take another way. */
size_t nbl__cuda_mlp_scratch(const nbl__cuda *cuda, nbl__cuda_linear_algo algo, const nbl__mlp *a)
{
    nbl__mlp small = *a;
    size_t max = scratch_of(cuda, algo, a, false);
    if (nbl__tensor_rows(&a->gate.x) <= NBL_MAX_LORA_DECODE_ROWS) return max;
    small.gate.x.rank = small.down.y.rank = 2;
    small.gate.x.shape[0] = small.down.y.shape[0] = NBL_MAX_LORA_DECODE_ROWS;
    small.gate.x.shape[1] = a->gate.w.shape[1];
    small.down.y.shape[1] = a->down.w.shape[0];
    return largest(max, scratch_of(cuda, NBL_CUDA_LINEAR_ALGO_GEMV, &small, false));
}

/* Computes the DoRA norms that are not arguments, once per call. */
static nbl_status make_norms(const nbl__call *call, const nbl__mlp *a, const pieces *p)
{
    nbl__linear parts[NBL_MLP_PARTS];
    nbl__mlp_chunk(a, 0, parts);
    for (int i = 0; i < NBL_MLP_PARTS; i++)
        if (p->norms[i]) NBL_TRY(nbl__cuda_dora_weight_norm(call, &parts[i], p->norms[i]));
    return NBL_OK;
}

/* The rows of a saved tensor that belong to the chunk. */
static float *saved_rows(const nbl_tensor *saved, int64_t chunk)
{
    return (float *)saved->data + chunk * NBL_MLP_CHUNK * nbl__last(saved);
}

/* act(g)·u, or in backward the three gradients, in place (nbl__cuda_gate). */
static nbl_status gate(const nbl__call *call, const nbl__mlp *a, int64_t chunk, const pieces *p,
                       const nbl_tensor *y, bool backward)
{
    const float *saved_g = a->keep ? saved_rows(&a->gate_out, chunk) : NULL;
    const float *saved_u = a->keep ? saved_rows(&a->up_out, chunk) : NULL;
    return nbl__cuda_gate(call, a->act, nbl__tensor_elements(y), saved_g, saved_u, p->g, p->u,
                          backward ? p->d : NULL);
}

bool nbl__cuda_mlp_at_once(const nbl__mlp *a, nbl__gemv_one *one)
{
    const nbl__linear *parts[2] = {&a->gate, &a->up};
    *one = (nbl__gemv_one){.dtype = a->gate.dtype, .x = a->gate.x.data, .count = 2, .act = a->act};
    if (a->gate.dequantized || nbl__tensor_rows(&a->gate.x) != 1 || !is_small_batch(a)) return false;
    for (int i = 0; i < 2; i++) {
        if (nbl__linear_rank(parts[i]) > 0 || nbl__has_data(&parts[i]->magnitude)) return false;
        one->parts[i] = (nbl__gemv_part){.weight = &parts[i]->w, .bias = parts[i]->bias};
    }
    return nbl__cuda_gemv_one_takes(one);
}

/* Runs layers by the way of the call. A later chunk may have fewer rows, so it asks for its own
 * best algorithm. */
static nbl_status run_layers(const nbl__call *call, nbl__cuda_linear_algo algo, int64_t chunk,
                             const nbl__linear *members, int count)
{
    if (algo != NBL_CUDA_LINEAR_ALGO_GENERAL || chunk > 0)
        algo = nbl__cuda_linear_best(nbl__call_cuda(call), members, count);
    return nbl__cuda_linear_run(call, algo, members, count);
}

/* Up to 8 rows: one chunk, with bf16 between the layers. */
static nbl_status run_small_batch(const nbl__call *call, nbl__cuda_linear_algo algo, const nbl__mlp *a,
                                  const nbl_rmsnorm *norm, const pieces *p, nbl__call *inner)
{
    nbl__linear parts[NBL_MLP_PARTS];
    nbl__gemv_one one;
    parts_of(a, 0, p, p->g, parts);
    if (algo == NBL_CUDA_LINEAR_ALGO_GEMV_SM90) {
        nbl__cuda_mlp_at_once(a, &one);
        one.norm = norm;
        one.parts[0].y = p->g;
        NBL_TRY(nbl__cuda_gemv_one(call->ctx, &one, nbl__call_cuda(call)->stream));
    } else {
        nbl__gated gated = {.dtype = p->between,
                            .act = a->act,
                            .gate = parts[NBL_MLP_GATE].y,
                            .up = parts[NBL_MLP_UP].y,
                            .h = parts[NBL_MLP_DOWN].x};
        NBL_TRY(run_layers(inner, algo, 0, parts, 2));
        NBL_TRY(nbl__gated_cuda.run(call, &gated));
    }
    return run_layers(inner, algo, 0, &parts[NBL_MLP_DOWN], 1);
}

nbl_status nbl__cuda_mlp_run(const nbl__call *call, nbl__cuda_linear_algo algo, const nbl__mlp *a,
                             const nbl_rmsnorm *norm)
{
    pieces p = layout(algo, a, false, call->scratch);
    nbl__call inner = *call;
    inner.scratch += p.used;
    inner.scratch_bytes -= p.used;
    NBL_TRY(make_norms(call, a, &p));
    if (uses_small_batch(algo, a)) return run_small_batch(call, algo, a, norm, &p, &inner);
    for (int64_t chunk = 0; chunk < nbl__mlp_chunks(a); chunk++) {
        nbl__linear parts[NBL_MLP_PARTS];
        parts_of(a, chunk, &p, p.g, parts);
        if (a->keep) parts[NBL_MLP_GATE].y.data = saved_rows(&a->gate_out, chunk);
        if (a->keep) parts[NBL_MLP_UP].y.data = saved_rows(&a->up_out, chunk);
        NBL_TRY(run_layers(&inner, algo, chunk, parts, 2));
        NBL_TRY(gate(call, a, chunk, &p, &parts[NBL_MLP_GATE].y, false));
        NBL_TRY(run_layers(&inner, algo, chunk, &parts[NBL_MLP_DOWN], 1));
    }
    return NBL_OK;
}

/* The layer, with dx as its only wanted gradient. */
static nbl__linear only_dx(nbl__linear a)
{
    a.dbias.data = a.dlora_a.data = a.dlora_b.data = a.dmagnitude.data = a.dw.data = NULL;
    return a;
}

/* down runs twice: first for dx = d, then, with h in d, for the gradients of its parameters. */
static nbl_status backward_run(const nbl__call *call, nbl__cuda_linear_algo algo, const nbl__mlp *a)
{
    pieces p = layout(algo, a, true, call->scratch);
    nbl__call inner = *call;
    inner.scratch += p.used;
    inner.scratch_bytes -= p.used;
    NBL_TRY(make_norms(call, a, &p));
    for (int64_t chunk = 0; chunk < nbl__mlp_chunks(a); chunk++) {
        nbl__linear parts[NBL_MLP_PARTS];
        parts_of(a, chunk, &p, p.d, parts);
        if (!a->keep) NBL_TRY(run_layers(&inner, algo, chunk, parts, 2));
        nbl__linear down = only_dx(parts[NBL_MLP_DOWN]);
        NBL_TRY(nbl__cuda_linear_backward_run(&inner, NBL_CUDA_LINEAR_ALGO_GENERAL, &down, 1));
        NBL_TRY(gate(call, a, chunk, &p, &parts[NBL_MLP_GATE].y, true));
        parts[NBL_MLP_DOWN].dx.data = NULL;
        NBL_TRY(nbl__cuda_linear_backward_run(&inner, NBL_CUDA_LINEAR_ALGO_GENERAL, &parts[NBL_MLP_DOWN], 1));
        NBL_TRY(nbl__cuda_linear_backward_run(&inner, NBL_CUDA_LINEAR_ALGO_GENERAL, parts, 2));
    }
    return NBL_OK;
}

/* ---- rows ---- */

/* True if a gemv algorithm takes one of the layers. */
static bool has_gemv(const nbl__cuda *cuda, const nbl__linear *members, int count)
{
    return nbl__cuda_linear_can(cuda, NBL_CUDA_LINEAR_ALGO_GEMV_SM90, members, count) == NULL ||
           nbl__cuda_linear_can(cuda, NBL_CUDA_LINEAR_ALGO_GEMV, members, count) == NULL;
}

static const char *gemv_can(const nbl__cuda *cuda, nbl__cuda_linear_algo algo, const nbl__mlp *a,
                            bool backward)
{
    enum { STAND_IN = 64 };
    nbl__linear parts[NBL_MLP_PARTS];
    if (nbl__tensor_rows(&a->gate.x) > NBL_MAX_LORA_DECODE_ROWS) return "more than 8 rows";
    if (backward && a->keep) return "no output of a layer is needed again";
    pieces p = layout(algo, a, backward, (uint8_t *)(uintptr_t)STAND_IN);
    parts_of(a, 0, &p, backward ? p.d : p.g, parts);
    bool gemv = has_gemv(cuda, parts, 2) || (!backward && has_gemv(cuda, &parts[NBL_MLP_DOWN], 1));
    return gemv || (!backward && is_small_batch(a)) ? NULL : "no layer multiplies its weight as it is stored";
}

const char *nbl__cuda_mlp_can(const nbl__cuda *cuda, nbl__cuda_linear_algo algo, const nbl__mlp *a)
{
    nbl__gemv_one one;
    if (algo == NBL_CUDA_LINEAR_ALGO_GENERAL) return NULL;
    if (algo == NBL_CUDA_LINEAR_ALGO_GEMV) return gemv_can(cuda, algo, a, false);
    if (cuda->major != 9) return "needs compute capability 9.0";
    return nbl__cuda_mlp_at_once(a, &one) ? NULL : "not one row of 4-bit weights of one kind, aligned";
}

static size_t forward_scratch(const nbl__cuda *cuda, nbl__cuda_linear_algo algo, const nbl__mlp *a)
{
    return nbl__cuda_mlp_scratch(cuda, algo, a);
}

static nbl_status forward_run(const nbl__call *call, nbl__cuda_linear_algo algo, const nbl__mlp *a)
{
    return nbl__cuda_mlp_run(call, algo, a, NULL);
}

static const char *backward_can(const nbl__cuda *cuda, nbl__cuda_linear_algo algo, const nbl__mlp *a)
{
    return algo == NBL_CUDA_LINEAR_ALGO_GEMV ? gemv_can(cuda, algo, a, true) : NULL;
}

static size_t backward_scratch(const nbl__cuda *cuda, nbl__cuda_linear_algo algo, const nbl__mlp *a)
{
    return scratch_of(cuda, algo, a, true);
}

#define forward_can nbl__cuda_mlp_can
NBL_CUDA_LINEAR_ROW(mlp, forward, gemv_sm90, NBL_CUDA_LINEAR_ALGO_GEMV_SM90)
NBL_CUDA_LINEAR_ROW(mlp, forward, gemv, NBL_CUDA_LINEAR_ALGO_GEMV)
NBL_CUDA_LINEAR_ROW(mlp, forward, general, NBL_CUDA_LINEAR_ALGO_GENERAL)
NBL_CUDA_LINEAR_ROW(mlp_backward, backward, gemv, NBL_CUDA_LINEAR_ALGO_GEMV)
NBL_CUDA_LINEAR_ROW(mlp_backward, backward, general, NBL_CUDA_LINEAR_ALGO_GENERAL)
