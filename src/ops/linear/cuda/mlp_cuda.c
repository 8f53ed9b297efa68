/* mlp_cuda.c - mlp on the device, chunk by chunk as the CPU does it, through linear_cuda.h.
 *
 *     forward    g, u = gate(x), up(x)          f32 [chunk, inner]
 *                g = act(g)·u, y = down(g)
 *     backward   g, u again; d = the gradient of h, through down; then, in place,
 *                g, u, d = d·u·act'(g), d·act(g), act(g)·u      gradients of gate and up, and h
 *                gradients of down's parameters from d, then all of gate and up, and dx
 *
 * Chunks of this size are small for a device: where speed matters, a graph of linear_group, gated and linear does the
 * same. With `keep` g and u are the saved tensors, and forward writes act(g)·u beside them.
 *
 * A few rows of bf16, as decoding has them, have bf16 between their layers, which multiply packed weights as they are;
 * for one row without adapters gate, up and act are one launch, and act(g)·u is rounded once. */
#include "ops/linear/mlp.h"

#ifdef NIBBLE_CUDA_BUILT

#include "ops/linear/cuda/lora_decode.h"
#include "ops/gemv/cuda/gemv_cuda.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/linear/cuda/linear_helpers.h"
#include "ops/elementwise/elementwise.h"

typedef struct pieces {
    nbl_dtype between;           /* of g, u and d */
    float *g, *u, *d;            /* [rows, inner] */
    float *norms[NBL_MLP_PARTS]; /* [out of the part], or NULL */
    size_t used;
} pieces;

static bool is_small_batch(const nbl__mlp *a)
{
    return nbl__tensor_rows(&a->gate.x) <= NBL_LORA_DECODE_ROWS && a->gate.dtype == NBL_DTYPE_BF16 &&
           !a->keep;
}

static pieces layout(const nbl__mlp *a, bool backward, uint8_t *base)
{
    const nbl__linear *parts[NBL_MLP_PARTS] = {&a->gate, &a->up, &a->down};
    int64_t values = nbl__min_i64(NBL_MLP_CHUNK, nbl__tensor_rows(&a->gate.x)) * a->gate.w.shape[0];
    nbl__cut cut = {base, 0};
    pieces p = {.between = !backward && is_small_batch(a) ? NBL_DTYPE_BF16 : NBL_DTYPE_F32};
    NBL_CUT(&cut, p.g, values);
    NBL_CUT(&cut, p.u, backward || !a->keep ? values : 0);
    NBL_CUT(&cut, p.d, backward ? values : 0);
    for (int i = 0; i < NBL_MLP_PARTS; i++)
        if (nbl__given(&parts[i]->magnitude) && !nbl__given(&parts[i]->norm))
            NBL_CUT(&cut, p.norms[i], parts[i]->w.shape[0]);
    p.used = cut.used;
    return p;
}

static nbl_tensor between(nbl_dtype dtype, float *data, int64_t rows, int64_t columns)
{
    return (nbl_tensor){.dtype = dtype, .rank = 2, .shape = {rows, columns}, .data = data};
}

/* The parts of a chunk: outputs of gate and up in g and u, their gradients too; down's input in `h`. */
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

static size_t scratch_of(const nbl__cuda *cuda, const nbl__mlp *a, bool backward)
{
    enum { STAND_IN = 64 }; /* an address that is not NULL; nothing is read */
    nbl__linear parts[NBL_MLP_PARTS];
    pieces p = layout(a, backward, (uint8_t *)(uintptr_t)STAND_IN);
    parts_of(a, 0, &p, p.g, parts);
    size_t max = largest(nbl__cuda_linear_scratch(cuda, parts, 2),
                         nbl__cuda_linear_scratch(cuda, &parts[NBL_MLP_DOWN], 1));
    if (backward) {
        max = largest(max, nbl__cuda_linear_backward_scratch(cuda, parts, 2));
        max = largest(max, nbl__cuda_linear_backward_scratch(cuda, &parts[NBL_MLP_DOWN], 1));
    }
    /* the last chunk is shorter and may go another way */
    int64_t chunks = nbl__mlp_chunks(a);
    if (chunks > 1) {
        parts_of(a, chunks - 1, &p, p.g, parts);
        max = largest(max, nbl__cuda_linear_scratch(cuda, parts, 2));
        max = largest(max, nbl__cuda_linear_scratch(cuda, &parts[NBL_MLP_DOWN], 1));
        if (backward) max = largest(max, nbl__cuda_linear_backward_scratch(cuda, parts, 2));
        if (backward) max = largest(max, nbl__cuda_linear_backward_scratch(cuda, &parts[NBL_MLP_DOWN], 1));
    }
    return p.used + max;
}

/* Planned for many rows, it may run with a few, which go another way. */
static size_t forward_scratch(const nbl_context *ctx, const void *arguments)
{
    const nbl__mlp *a = arguments;
    nbl__mlp small = *a;
    size_t max = scratch_of(nbl__cuda_of(ctx), a, false);
    if (nbl__tensor_rows(&a->gate.x) <= NBL_LORA_DECODE_ROWS) return max;
    small.gate.x.rank = small.down.y.rank = 2;
    small.gate.x.shape[0] = small.down.y.shape[0] = NBL_LORA_DECODE_ROWS;
    small.gate.x.shape[1] = a->gate.w.shape[1];
    small.down.y.shape[1] = a->down.w.shape[0];
    return largest(max, scratch_of(nbl__cuda_of(ctx), &small, false));
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    return scratch_of(nbl__cuda_of(ctx), arguments, true);
}

static nbl_status make_norms(const nbl__call *call, const nbl__mlp *a, const pieces *p)
{
    nbl__linear parts[NBL_MLP_PARTS];
    nbl__mlp_chunk(a, 0, parts);
    for (int i = 0; i < NBL_MLP_PARTS; i++)
        if (p->norms[i]) NBL_TRY(nbl__cuda_dora_weight_norm(call, &parts[i], p->norms[i]));
    return NBL_OK;
}

/* The chunk's rows of a saved tensor. */
static float *kept_rows(const nbl_tensor *saved, int64_t chunk)
{
    return (float *)saved->data + chunk * NBL_MLP_CHUNK * nbl__last(saved);
}

static nbl_status gate(const nbl__call *call, const nbl__mlp *a, int64_t chunk, const pieces *p,
                       const nbl_tensor *y, bool backward)
{
    const float *kept_g = a->keep ? kept_rows(&a->gate_out, chunk) : NULL;
    const float *kept_u = a->keep ? kept_rows(&a->up_out, chunk) : NULL;
    return nbl__cuda_gate(call, a->act, nbl__tensor_elements(y), kept_g, kept_u, p->g, p->u,
                          backward ? p->d : NULL);
}

bool nbl__cuda_mlp_at_once(const nbl__mlp *a, nbl__gemv_one *one)
{
    const nbl__linear *parts[2] = {&a->gate, &a->up};
    *one = (nbl__gemv_one){.dtype = a->gate.dtype, .x = a->gate.x.data, .count = 2, .act = a->act};
    if (a->gate.dequantized || nbl__tensor_rows(&a->gate.x) != 1 || !is_small_batch(a)) return false;
    for (int i = 0; i < 2; i++) {
        if (nbl__linear_rank(parts[i]) > 0 || nbl__given(&parts[i]->magnitude)) return false;
        one->parts[i] = (nbl__gemv_part){.weight = &parts[i]->w, .bias = parts[i]->bias};
    }
    return nbl__cuda_gemv_one_takes(one);
}

static nbl_status run_small_batch(const nbl__call *call, const nbl__mlp *a, const pieces *p, nbl__call *inner)
{
    nbl__linear parts[NBL_MLP_PARTS];
    nbl__gemv_one one;
    parts_of(a, 0, p, p->g, parts);
    bool joined = call->around.before.op &&
                  nbl__cuda_norm_joins(call->around.before.op->name, call->around.before.arguments, call->op,
                                       a, &one);
    if (joined || nbl__cuda_mlp_at_once(a, &one)) {
        one.parts[0].y = p->g;
        NBL_TRY(nbl__cuda_gemv_one(call->ctx, &one, nbl__call_cuda(call)->stream));
    } else {
        nbl__gated gated = {.dtype = p->between,
                            .act = a->act,
                            .gate = parts[NBL_MLP_GATE].y,
                            .up = parts[NBL_MLP_UP].y,
                            .h = parts[NBL_MLP_DOWN].x};
        NBL_TRY(nbl__cuda_linear_run(inner, parts, 2));
        NBL_TRY(nbl__gated_cuda.run(call, &gated));
    }
    return nbl__cuda_linear_run(inner, &parts[NBL_MLP_DOWN], 1);
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__mlp *a = arguments;
    pieces p = layout(a, false, call->scratch);
    nbl__call inner = *call;
    inner.scratch += p.used;
    inner.scratch_bytes -= p.used;
    NBL_TRY(make_norms(call, a, &p));
    if (is_small_batch(a)) return run_small_batch(call, a, &p, &inner);
    for (int64_t chunk = 0; chunk < nbl__mlp_chunks(a); chunk++) {
        nbl__linear parts[NBL_MLP_PARTS];
        parts_of(a, chunk, &p, p.g, parts);
        if (a->keep) parts[NBL_MLP_GATE].y.data = kept_rows(&a->gate_out, chunk);
        if (a->keep) parts[NBL_MLP_UP].y.data = kept_rows(&a->up_out, chunk);
        NBL_TRY(nbl__cuda_linear_run(&inner, parts, 2));
        NBL_TRY(gate(call, a, chunk, &p, &parts[NBL_MLP_GATE].y, false));
        NBL_TRY(nbl__cuda_linear_run(&inner, &parts[NBL_MLP_DOWN], 1));
    }
    return NBL_OK;
}

/* A layer of which only dx is wanted. */
static nbl__linear only_dx(nbl__linear a)
{
    a.dbias.data = a.dlora_a.data = a.dlora_b.data = a.dmagnitude.data = a.dw.data = NULL;
    return a;
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__mlp *a = arguments;
    pieces p = layout(a, true, call->scratch);
    nbl__call inner = *call;
    inner.scratch += p.used;
    inner.scratch_bytes -= p.used;
    NBL_TRY(make_norms(call, a, &p));
    for (int64_t chunk = 0; chunk < nbl__mlp_chunks(a); chunk++) {
        nbl__linear parts[NBL_MLP_PARTS];
        parts_of(a, chunk, &p, p.d, parts);
        if (!a->keep) NBL_TRY(nbl__cuda_linear_run(&inner, parts, 2));
        nbl__linear down = only_dx(parts[NBL_MLP_DOWN]);
        NBL_TRY(nbl__cuda_linear_backward_run(&inner, &down, 1));
        NBL_TRY(gate(call, a, chunk, &p, &parts[NBL_MLP_GATE].y, true));
        parts[NBL_MLP_DOWN].dx.data = NULL;
        NBL_TRY(nbl__cuda_linear_backward_run(&inner, &parts[NBL_MLP_DOWN], 1));
        NBL_TRY(nbl__cuda_linear_backward_run(&inner, parts, 2));
    }
    return NBL_OK;
}

const nbl__impl nbl__mlp_cuda = {"mlp_cuda", NBL_ISA_SCALAR, NULL, forward_scratch, run_forward};
const nbl__impl nbl__mlp_backward_cuda = {"mlp_backward_cuda", NBL_ISA_SCALAR, NULL, backward_scratch,
                                          run_backward};

#endif
