/* layers_fast.c - layers as they are trained: bf16, more than a few tokens, any storage, LoRA or none. See layers.h.
 *
 * t = s·x·Aᵀ of all layers that share x is one pass over x, u = s·dy·B one over dy, and their products with what they
 * came from, dA and dB, one each (skinny.h). The rank-r terms join the base products in one of two ways, whichever moves
 * fewer bytes:
 *
 *     beside    the pass that makes t copies x, too: [x | t]·[Wᵀ; Bᵀ] is one product, the weight being decoded into
 *               that place. Likewise [dy_0 | dy_1 | u]·[W_0; W_1; A]. Results are rounded once.
 *     before    y = t·Bᵀ, then y += x·Wᵀ; dx = u·A, then dx += dy_i·W_i. The copy is saved, at the price of
 *               a result that is written more than once and rounded each time: 1.1e-3 of its norm, so 1.6e-3 for y and
 *               up to 2.5e-3 for the dx of four layers.
 *
 * A bias goes along as two columns of the adapter, its bf16 value and what that lost, times 1. A dense weight in bf16 is
 * used where it lies, always `before`. */
#include "ops/cuda/layers.h"

#ifdef NIBBLE_CUDA_BUILT

#include <cuda_runtime_api.h>

#include "ops/cuda/blas.h"
#include "ops/cuda/dequantize.h"
#include "ops/cuda/pieces.h"
#include "ops/cuda/skinny.h"

enum { FEW = 16, LINE = 64 }; /* rows of copies begin at multiples of LINE elements, 128 bytes */

typedef struct layer {
    const nbl__linear *a;
    int64_t out, rank;
    int64_t wide,
        first; /* its columns of t and u: rank, and bias forward, in multiples of 16; and where they begin */
    void *lora_b; /* forward: [out, wide]; backward: [wide, out] */
    double *sums; /* [out]; backward with a bias */
} layer;

typedef struct job {
    const nbl__call *call;
    nbl_tensor x, dx;
    int64_t tokens, in, wide, outs; /* wide, outs: of all layers */
    int count;
    bool beside, skinny; /* skinny: t and u are few enough for it */
    layer layers[NBL_CUDA_LAYERS_MOST];
    void *lora_a; /* [wide, in] */
    void *w;      /* decoded: one weight, or, backward beside, all of them with A below */
    void *copy;   /* beside: [tokens, copy_ld] */
    int64_t copy_ld;
    void *t, *u; /* [tokens, wide] with t_ld, u_ld; inside the copy where that is made */
    int64_t t_ld, u_ld;
    void *shares;  /* of outer products */
    double *parts; /* of sums over tokens */
    size_t used;
} job;

static bool is_packed(const nbl_weight *w)
{
    return w->format != NBL_FORMAT_DENSE;
}

/* Forward: does the layer's B follow its weight? */
static bool is_beside(const job *j, const layer *l)
{
    return j->beside && is_packed(&l->a->w);
}

static int64_t columns_of(const nbl__linear *a, bool backward)
{
    int64_t columns = nbl__linear_rank(a) + (!backward && nbl__given(&a->bias) ? 2 : 0);
    return (columns + 15) / 16 * 16;
}

bool nbl__cuda_fast_takes(const nbl__linear *members, int count, bool backward)
{
    int64_t in = members->w.shape[1], wide = 0;
    bool bias = false;
    if (members->dtype != NBL_DTYPE_BF16 || members->x.dtype != NBL_DTYPE_BF16) return false;
    if (nbl__tensor_rows(&members->x) <= FEW || in == 0 || in % 8 != 0) return false;
    for (int i = 0; i < count; i++) {
        const nbl__linear *a = &members[i];
        bool dropped = nbl__given(&a->lora_a) && a->dropout > 0;
        if (a->w.shape[0] == 0 || a->w.shape[0] % 8 != 0 || nbl__given(&a->magnitude) || dropped)
            return false;
        if (!backward && nbl__linear_by_codes(a)) return false;
        if (!is_packed(&a->w) && a->w.dtype != NBL_DTYPE_BF16) return false;
        if ((backward ? a->dy.dtype : a->y.dtype) != NBL_DTYPE_BF16) return false;
        bias |= !backward && nbl__given(&a->bias);
        wide += columns_of(a, backward);
    }
    if (backward && members->dx.dtype != NBL_DTYPE_BF16) return false;
    return !bias || wide <= NBL_SKINNY_MOST;
}

/* Columns that are written or read in addition: a copy of x (or dy), against the result in parts. */
static bool pays_beside(const job *j, bool backward)
{
    if (j->wide == 0) return backward && j->count > 1 && 2 * j->outs <= (j->count - 1) * j->in * 3;
    return backward ? 2 * j->outs <= j->in * (2 + 2 * j->count) : 2 * j->in <= 3 * j->outs;
}

static void *cut(nbl__cut *c, bool needed, int64_t elements)
{
    return needed ? nbl__cut_bytes(c, (size_t)elements * 2) : NULL;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static int64_t lines(int64_t n)
{
    return (n + LINE - 1) / LINE * LINE;
}

/* Backward: t, and u or the copy that ends in it; then what outer products and sums over tokens need. */
static void cut_backward(job *j, nbl__cut *c, int64_t most)
{
    size_t shares = 0;
    bool bias = false;
    j->t = cut(c, j->wide > 0, j->tokens * j->wide);
    j->t_ld = j->wide;
    if (j->skinny && j->wide > 0) shares = nbl__cuda_outer_scratch(j->tokens, j->in, (int)j->wide);
    for (int i = 0; i < j->count; i++) {
        layer *l = &j->layers[i];
        if (j->skinny && l->wide > 0)
            shares = larger(shares, nbl__cuda_outer_scratch(j->tokens, l->out, (int)l->wide));
        l->sums = nbl__given(&l->a->bias) ? nbl__cut_bytes(c, (size_t)l->out * sizeof *l->sums) : NULL;
        bias |= l->sums != NULL;
    }
    j->shares = nbl__cut_bytes(c, shares);
    if (bias) NBL_CUT(c, j->parts, nbl__cuda_sums_parts(j->tokens, most));
}

static void open_job(job *j, const nbl__call *call, const nbl__linear *members, int count, bool backward,
                     uint8_t *scratch)
{
    enum { STAND_IN = 64 };
    nbl__cut c = {scratch ? scratch : (uint8_t *)(uintptr_t)STAND_IN, 0};
    *j = (job){.call = call, .x = members->x, .dx = members->dx, .count = count};
    j->tokens = nbl__tensor_rows(&j->x);
    j->in = members->w.shape[1];
    bool all_packed = true, any_packed = false;
    int64_t most = 0, decoded = 0;
    for (int i = 0; i < count; i++) {
        layer *l = &j->layers[i];
        *l = (layer){.a = &members[i], .out = members[i].w.shape[0], .rank = nbl__linear_rank(&members[i])};
        l->wide = columns_of(l->a, backward);
        l->first = j->wide;
        j->wide += l->wide;
        j->outs += l->out;
        most = nbl__max_i64(most, l->out);
        if (is_packed(&l->a->w)) decoded = nbl__max_i64(decoded, l->out), any_packed = true;
        else all_packed = false;
    }
    j->skinny = j->wide <= NBL_SKINNY_MOST;
    j->beside = pays_beside(j, backward) && (backward ? all_packed : any_packed);
    for (int i = 0; i < count; i++) {
        layer *l = &j->layers[i];
        l->lora_b = cut(&c, l->wide > 0 && (backward || !is_beside(j, l)), l->wide * l->out);
    }
    bool stacked = backward && j->beside;
    if (!stacked) j->lora_a = cut(&c, j->wide > 0, j->wide * j->in);
    j->w = cut(&c, any_packed,
               backward ? (stacked ? j->outs + j->wide : decoded) * j->in
                        : decoded * (j->in + (j->beside ? j->wide : 0)));
    if (stacked) j->lora_a = (uint8_t *)j->w + (size_t)(j->outs * j->in) * 2;
    int64_t copied = backward ? j->outs : j->in;
    if (j->beside) {
        j->copy_ld = lines(copied + j->wide);
        j->copy = cut(&c, true, j->tokens * j->copy_ld);
    }
    void **joined = backward ? &j->u : &j->t; /* what the copy ends in */
    int64_t *ld = backward ? &j->u_ld : &j->t_ld;
    *joined = j->beside ? (uint8_t *)j->copy + (size_t)copied * 2 : cut(&c, j->wide > 0, j->tokens * j->wide);
    *ld = j->beside ? j->copy_ld : j->wide;
    if (backward) cut_backward(j, &c, most);
    j->used = c.used;
}

size_t nbl__cuda_fast_scratch(const nbl__linear *members, int count, bool backward)
{
    job j;
    open_job(&j, NULL, members, count, backward, NULL);
    return j.used;
}

static nbl_status begin(job *j, const nbl__call *call, const nbl__linear *members, int count, bool backward)
{
    open_job(j, call, members, count, backward, call->scratch);
    NBL_CHECK(call->ctx, j->used <= call->scratch_bytes, NBL_ERROR_INTERNAL,
              "%s: scratch of %zu bytes; %zu are needed", call->op, call->scratch_bytes, j->used);
    return NBL_OK;
}

/* ---- steps ---- */

static void *columns_at(void *matrix, int64_t column)
{
    return (uint8_t *)matrix + (size_t)column * 2;
}

/* B and, forward, the bias behind it, in bf16: [out, wide], or turned. Returns how many moves that takes. */
static int moves_of_b(const layer *l, bool turned, bool with_bias, void *to, nbl__move moves[2])
{
    const nbl__linear *a = l->a;
    int64_t columns = with_bias ? l->rank : l->wide;
    nbl__move b = {.from = a->lora_b.data,
                   .from_dtype = a->lora_b.dtype,
                   .to_dtype = NBL_DTYPE_BF16,
                   .rows = l->out,
                   .columns = l->rank,
                   .from_ld = l->rank,
                   .turned = turned,
                   .to = to,
                   .to_rows = turned ? columns : l->out,
                   .to_columns = turned ? l->out : columns,
                   .to_ld = turned ? l->out : l->wide};
    moves[0] = moves[1] = b;
    if (!with_bias) return 1;
    nbl__move *bias = &moves[1];
    bias->from = a->bias.data;
    bias->from_dtype = a->bias.dtype;
    bias->columns = bias->from_ld = 1;
    bias->split = true;
    bias->to = columns_at(to, turned ? l->rank * l->out : l->rank);
    *(turned ? &bias->to_rows : &bias->to_columns) = l->wide - l->rank;
    return 2;
}

/* Adapters in bf16, their ranks filled up with zeros; not the B that follow a weight. */
static nbl_status pack_adapters(const job *j, bool backward)
{
    nbl__move moves[3 * NBL_CUDA_LAYERS_MOST];
    int count = 0;
    for (int i = 0; i < j->count; i++) {
        const layer *l = &j->layers[i];
        const nbl__linear *a = l->a;
        if (l->wide == 0) continue;
        moves[count++] = (nbl__move){.from = a->lora_a.data,
                                     .from_dtype = a->lora_a.dtype,
                                     .to_dtype = NBL_DTYPE_BF16,
                                     .rows = l->rank,
                                     .columns = j->in,
                                     .from_ld = j->in,
                                     .to = columns_at(j->lora_a, l->first * j->in),
                                     .to_rows = l->wide,
                                     .to_columns = j->in,
                                     .to_ld = j->in};
        if (backward) count += moves_of_b(l, true, false, l->lora_b, &moves[count]);
        else if (!is_beside(j, l))
            count += moves_of_b(l, false, nbl__given(&a->bias), l->lora_b, &moves[count]);
    }
    return nbl__cuda_move(j->call, moves, count);
}

static nbl_status copy_columns(const job *j, const void *from, int64_t columns, void *to)
{
    cudaError_t error = cudaMemcpy2DAsync(to, (size_t)j->copy_ld * 2, from, (size_t)columns * 2,
                                          (size_t)columns * 2, (size_t)j->tokens, cudaMemcpyDeviceToDevice,
                                          j->call->cuda->stream);
    NBL_CHECK(j->call->ctx, error == cudaSuccess, NBL_ERROR_INTERNAL, "%s: copy: %s", j->call->op,
              cudaGetErrorString(error));
    return NBL_OK;
}

/* c = a·b + beta·c of bf16. */
static nbl_status multiply(const job *j, nbl__gemm g)
{
    g.dtype = NBL_DTYPE_BF16;
    g.alpha = g.alpha == 0 ? 1 : g.alpha;
    return nbl__cuda_gemm(j->call, &g);
}

/* t of all layers; with `copy` x goes there, too. */
static nbl_status make_t(const job *j, bool with_bias, void *copy)
{
    if (!j->skinny) {
        if (copy) NBL_TRY(copy_columns(j, j->x.data, j->in, copy));
        for (int i = 0; i < j->count; i++) {
            const layer *l = &j->layers[i];
            NBL_TRY(multiply(j, (nbl__gemm){.c_dtype = NBL_DTYPE_BF16,
                                            .m = j->tokens,
                                            .n = l->wide,
                                            .k = j->in,
                                            .a = j->x.data,
                                            .b = columns_at(j->lora_a, l->first * j->in),
                                            .b_turned = true,
                                            .c = columns_at(j->t, l->first),
                                            .ldc = j->t_ld,
                                            .alpha = l->a->scale}));
        }
        return NBL_OK;
    }
    nbl__project p = {.rows = j->tokens,
                      .columns = j->in,
                      .x = j->x.data,
                      .a = j->lora_a,
                      .wide = (int)j->wide,
                      .to = j->t,
                      .to_ld = j->t_ld,
                      .copy = copy,
                      .copy_ld = j->copy_ld};
    for (int i = 0; i < j->count; i++) {
        const layer *l = &j->layers[i];
        for (int64_t r = l->first / 8; r < (l->first + l->wide) / 8; r++) p.scales[r] = l->a->scale;
        if (with_bias && nbl__given(&l->a->bias)) p.ones |= (uint64_t)3 << (l->first + l->rank);
    }
    return nbl__cuda_project(j->call, &p);
}

static nbl_status decode(const job *j, const layer *l, bool turned, void *to)
{
    return nbl__cuda_dequantize(j->call->ctx, &l->a->w, 0, l->out, NBL_DTYPE_BF16, turned, to,
                                j->call->cuda->stream);
}

/* ---- forward ---- */

/* [x | t]·[Wᵀ; Bᵀ]: the rows of layers before this one are 0. */
static nbl_status forward_beside(const job *j, const layer *l)
{
    NBL_TRY(decode(j, l, true, j->w));
    if (l->wide > 0) {
        nbl__move moves[3] = {{.to_dtype = NBL_DTYPE_BF16,
                               .to = columns_at(j->w, j->in * l->out),
                               .to_rows = l->first,
                               .to_columns = l->out,
                               .to_ld = l->out}};
        void *to = columns_at(j->w, (j->in + l->first) * l->out);
        int count = 1 + moves_of_b(l, true, nbl__given(&l->a->bias), to, &moves[1]);
        NBL_TRY(nbl__cuda_move(j->call, moves, count));
    }
    return multiply(j, (nbl__gemm){.c_dtype = NBL_DTYPE_BF16,
                                   .m = j->tokens,
                                   .n = l->out,
                                   .k = j->in + (l->wide > 0 ? l->first + l->wide : 0),
                                   .a = j->copy,
                                   .lda = j->copy_ld,
                                   .b = j->w,
                                   .c = l->a->y.data});
}

static nbl_status forward_before(const job *j, const layer *l)
{
    const void *w = l->a->w.data;
    if (is_packed(&l->a->w)) {
        NBL_TRY(decode(j, l, false, j->w));
        w = j->w;
    }
    if (l->wide > 0)
        NBL_TRY(multiply(j, (nbl__gemm){.c_dtype = NBL_DTYPE_BF16,
                                        .m = j->tokens,
                                        .n = l->out,
                                        .k = l->wide,
                                        .a = columns_at(j->t, l->first),
                                        .lda = j->t_ld,
                                        .b = l->lora_b,
                                        .b_turned = true,
                                        .c = l->a->y.data}));
    return multiply(j, (nbl__gemm){.c_dtype = NBL_DTYPE_BF16,
                                   .m = j->tokens,
                                   .n = l->out,
                                   .k = j->in,
                                   .a = j->x.data,
                                   .b = w,
                                   .b_turned = true,
                                   .c = l->a->y.data,
                                   .beta = l->wide > 0 ? 1 : 0});
}

nbl_status nbl__cuda_fast_run(const nbl__call *call, const nbl__linear *members, int count)
{
    job j;
    NBL_TRY(begin(&j, call, members, count, false));
    if (j.wide > 0) {
        NBL_TRY(pack_adapters(&j, false));
        NBL_TRY(make_t(&j, true, j.copy));
    }
    for (int i = 0; i < count; i++) {
        const layer *l = &j.layers[i];
        NBL_TRY(is_beside(&j, l) ? forward_beside(&j, l) : forward_before(&j, l));
    }
    return NBL_OK;
}

/* ---- backward ---- */

static bool wanted(const nbl_tensor *gradient)
{
    return gradient->rank > 0 && nbl__given(gradient);
}

/* u of a layer; beside, dy goes into the copy, too, from column `column` on. */
static nbl_status make_u(const job *j, const layer *l, int64_t column)
{
    void *copy = j->beside ? columns_at(j->copy, column) : NULL;
    if (!j->skinny || l->wide == 0) {
        if (copy) NBL_TRY(copy_columns(j, l->a->dy.data, l->out, copy));
        if (l->wide == 0) return NBL_OK;
        return multiply(j, (nbl__gemm){.c_dtype = NBL_DTYPE_BF16,
                                       .m = j->tokens,
                                       .n = l->wide,
                                       .k = l->out,
                                       .a = l->a->dy.data,
                                       .b = l->lora_b,
                                       .b_turned = true,
                                       .c = columns_at(j->u, l->first),
                                       .ldc = j->u_ld,
                                       .alpha = l->a->scale});
    }
    nbl__project p = {.rows = j->tokens,
                      .columns = l->out,
                      .x = l->a->dy.data,
                      .a = l->lora_b,
                      .wide = (int)l->wide,
                      .to = columns_at(j->u, l->first),
                      .to_ld = j->u_ld,
                      .copy = copy,
                      .copy_ld = j->copy_ld};
    for (int64_t r = 0; r < l->wide / 8; r++) p.scales[r] = l->a->scale;
    return nbl__cuda_project(j->call, &p);
}

/* aᵀ·b over the tokens, f32. */
static nbl_status over_tokens(const job *j, const layer *l, const void *a, int64_t m, int64_t lda,
                              const void *b, int64_t n, int64_t ldb, float *c)
{
    return multiply(j, (nbl__gemm){.c_dtype = NBL_DTYPE_F32,
                                   .m = m,
                                   .n = n,
                                   .k = j->tokens,
                                   .a = a,
                                   .lda = lda,
                                   .a_turned = true,
                                   .b = b,
                                   .ldb = ldb,
                                   .c = c,
                                   .beta = l->a->accumulate ? 1 : 0});
}

static nbl_status gradients_of_b(const job *j)
{
    for (int i = 0; i < j->count; i++) {
        const layer *l = &j->layers[i];
        const nbl__linear *a = l->a;
        if (l->wide == 0 || !wanted(&a->dlora_b)) continue;
        const void *t = columns_at(j->t, l->first);
        if (!j->skinny) {
            NBL_TRY(over_tokens(j, l, a->dy.data, l->out, l->out, t, l->rank, j->t_ld, a->dlora_b.data));
            continue;
        }
        nbl__outer o = {.rows = j->tokens,
                        .columns = l->out,
                        .z = a->dy.data,
                        .v = t,
                        .v_ld = j->t_ld,
                        .wide = (int)l->wide,
                        .parts = {{a->dlora_b.data, 0, (int)l->rank, false, a->accumulate}},
                        .part_count = 1};
        NBL_TRY(nbl__cuda_outer(j->call, &o, j->shares));
    }
    return NBL_OK;
}

static nbl_status gradients_of_a(const job *j)
{
    nbl__outer o = {.rows = j->tokens,
                    .columns = j->in,
                    .z = j->x.data,
                    .v = j->u,
                    .v_ld = j->u_ld,
                    .wide = (int)j->wide};
    for (int i = 0; i < j->count; i++) {
        const layer *l = &j->layers[i];
        if (l->wide == 0 || !wanted(&l->a->dlora_a)) continue;
        o.parts[o.part_count++] = (nbl__outer_part){l->a->dlora_a.data, (int)l->first, (int)l->rank, true,
                                                    l->a->accumulate};
        if (!j->skinny)
            NBL_TRY(over_tokens(j, l, columns_at(j->u, l->first), l->rank, j->u_ld, j->x.data, j->in, j->in,
                                l->a->dlora_a.data));
    }
    return j->skinny && o.part_count > 0 ? nbl__cuda_outer(j->call, &o, j->shares) : NBL_OK;
}

/* [dy_0 | dy_1 | … | u]·[W_0; W_1; …; A]. */
static nbl_status dx_beside(const job *j)
{
    int64_t row = 0;
    for (int i = 0; i < j->count; i++) {
        NBL_TRY(decode(j, &j->layers[i], false, columns_at(j->w, row * j->in)));
        row += j->layers[i].out;
    }
    return multiply(j, (nbl__gemm){.c_dtype = NBL_DTYPE_BF16,
                                   .m = j->tokens,
                                   .n = j->in,
                                   .k = j->outs + j->wide,
                                   .a = j->copy,
                                   .lda = j->copy_ld,
                                   .b = j->w,
                                   .c = j->dx.data});
}

static nbl_status dx_before(const job *j)
{
    nbl__gemm g = {.c_dtype = NBL_DTYPE_BF16, .m = j->tokens, .n = j->in, .c = j->dx.data};
    if (j->wide > 0) {
        g.k = j->wide, g.a = j->u, g.lda = j->u_ld, g.b = j->lora_a;
        NBL_TRY(multiply(j, g));
        g.beta = 1;
    }
    for (int i = 0; i < j->count; i++) {
        const layer *l = &j->layers[i];
        const void *w = l->a->w.data;
        if (is_packed(&l->a->w)) {
            NBL_TRY(decode(j, l, false, j->w));
            w = j->w;
        }
        g.k = l->out, g.a = l->a->dy.data, g.lda = 0, g.b = w;
        NBL_TRY(multiply(j, g));
        g.beta = 1;
    }
    return NBL_OK;
}

nbl_status nbl__cuda_fast_backward_run(const nbl__call *call, const nbl__linear *members, int count)
{
    job j;
    NBL_TRY(begin(&j, call, members, count, true));
    bool wants_a = false, wants_b = false, wants_dx = wanted(&j.dx);
    for (int i = 0; i < count; i++)
        wants_a |= wanted(&members[i].dlora_a), wants_b |= wanted(&members[i].dlora_b);
    if (j.wide > 0) {
        NBL_TRY(pack_adapters(&j, true));
        if (wants_b) NBL_TRY(make_t(&j, false, NULL));
    }
    int64_t column = 0;
    for (int i = 0; i < count && (wants_dx || wants_a); i++) {
        NBL_TRY(make_u(&j, &j.layers[i], column));
        column += j.layers[i].out;
    }
    NBL_TRY(gradients_of_b(&j));
    if (wants_a) NBL_TRY(gradients_of_a(&j));
    if (wants_dx) NBL_TRY(j.beside ? dx_beside(&j) : dx_before(&j));
    for (int i = 0; i < count; i++) {
        const layer *l = &j.layers[i];
        const nbl__linear *a = l->a;
        if (wanted(&a->dw))
            NBL_TRY(over_tokens(&j, l, a->dy.data, l->out, l->out, j.x.data, j.in, j.in, a->dw.data));
        if (!wanted(&a->dbias)) continue;
        NBL_TRY(
            nbl__cuda_sums(call, j.tokens, l->out, a->dy.data, a->dy.dtype, NULL, true, j.parts, l->sums));
        NBL_TRY(nbl__cuda_put_sums(call, l->out, l->sums, NULL, a->accumulate, a->dbias.data));
    }
    return NBL_OK;
}

#endif
