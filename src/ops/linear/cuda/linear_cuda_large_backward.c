/* linear_cuda_large_backward.c - linear layers backward in training. See linear_cuda_large.c.
 *
 *     u = s·dy·B and dB = dyᵀ·t       one pass over dy, if t is there      lowrank_dy
 *     dA = uᵀ·x (and t = s·x·Aᵀ)      one pass over x, if u is there       lowrank_x
 *     dx = Σ dy_i·W_i + u·A, dW = dyᵀ·x, dbias = Σ dy
 *
 * Without t from forward one of x and dy is read twice. A single layer reads the larger one once:
 * if x is larger, u comes first, then t, dA and dB (over_x). Otherwise t comes first. If forward
 * kept t, both are read once. */
#include "ops/linear/cuda/linear_cuda_large.h"

#include "ops/linear/cuda/dropout_cuda.h"
#include "ops/linear/cuda/linear_helpers.h"
#include "ops/gemm/cuda/gemm_lowrank_sm90.h"
#include "ops/gemm/cuda/gemm_masked.h"
#include "ops/gemm/cuda/gemm_tall_skinny.h"

/* True if the gradient has memory. */
static bool wanted(const nbl_tensor *gradient)
{
    return gradient->rank > 0 && nbl__has_data(gradient);
}

/* The gradients that some layer wants: dA, dB, dx. */
typedef struct wishes {
    bool a, b, dx;
} wishes;

/* c (+)= aᵀ·b over the tokens, in f32. */
static nbl_status over_tokens(const nbl__linear_large *j, const void *a, int64_t m, int64_t lda,
                              const void *b, int64_t n, int64_t ldb, float *c, bool accumulate)
{
    return nbl__linear_large_multiply(j, 1,
                                      (nbl__cublaslt_gemm){.c_dtype = NBL_DTYPE_F32,
                                                           .m = m,
                                                           .n = n,
                                                           .k = j->tokens,
                                                           .a = a,
                                                           .lda = lda,
                                                           .a_transposed = true,
                                                           .b = b,
                                                           .ldb = ldb,
                                                           .c = c,
                                                           .beta = accumulate ? 1 : 0});
}

/* u of one layer, by cuBLASLt. */
static nbl_status make_u(const nbl__linear_large *j, const nbl__linear_large_layer *l)
{
    const nbl__linear *a = l->a;
    if (l->rank_padded == 0) return NBL_OK;
    return nbl__linear_large_multiply(j, a->scale,
                                      (nbl__cublaslt_gemm){.c_dtype = NBL_DTYPE_BF16,
                                                           .m = j->tokens,
                                                           .n = l->rank_padded,
                                                           .k = l->out,
                                                           .a = a->dy.data,
                                                           .b = l->lora_b,
                                                           .b_transposed = true,
                                                           .c = nbl__linear_large_at(j->u, l->first),
                                                           .ldc = j->rank_padded});
}

/* dB of one layer, by cuBLASLt; t must have been computed. */
static nbl_status make_db(const nbl__linear_large *j, const nbl__linear_large_layer *l)
{
    const nbl__linear *a = l->a;
    return over_tokens(j, a->dy.data, l->out, l->out, nbl__linear_large_at(j->t, l->t_first), l->rank,
                       j->t_ld, a->dlora_b.data, a->accumulate);
}

/* u and dB of all layers in one pass over each dy; t must have been computed. *done is false
 * if the layers do not have one width, a gradient is not wanted, or the kernel does not take them. */
static nbl_status lowrank_dy(const nbl__linear_large *j, const wishes *want, bool *done)
{
    nbl__gemm_lowrank s = {
        .rows = j->tokens, .to = j->u, .to_ld = j->rank_padded, .v = j->t, .v_ld = j->t_ld};
    *done = false;
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_large_layer *l = &j->layers[i];
        const nbl__linear *a = l->a;
        if (l->rank_padded == 0) continue;
        if (s.rank_padded == 0) s.rank_padded = l->rank_padded;
        /* One kernel computes both results, so both must be wanted. */
        if (l->rank_padded != s.rank_padded || !wanted(&a->dlora_b) || (!want->dx && !wanted(&a->dlora_a)))
            return NBL_OK;
        s.gradients[s.gradient_count++] = (nbl__gemm_lowrank_gradient){
            .part = s.count, .rank = l->rank, .to = a->dlora_b.data, .accumulate = a->accumulate};
        s.parts[s.count++] = (nbl__gemm_lowrank_part){.z = a->dy.data,
                                                      .columns = l->out,
                                                      .a = l->lora_b,
                                                      .scale = a->scale,
                                                      .first = l->first,
                                                      .v_first = l->t_first};
    }
    *done = nbl__gemm_lowrank_can(nbl__call_cuda(j->call), &s);
    return *done ? nbl__gemm_lowrank_run(j->call, &s, j->shares) : NBL_OK;
}

/* u and dB of all layers: the low-rank GEMM, or two products per layer. */
static nbl_status over_dy(const nbl__linear_large *j, const wishes *want)
{
    bool done;
    NBL_TRY(lowrank_dy(j, want, &done));
    for (int i = 0; i < j->count && !done; i++) {
        const nbl__linear_large_layer *l = &j->layers[i];
        if (want->dx || wanted(&l->a->dlora_a)) NBL_TRY(make_u(j, l));
        if (l->rank_padded > 0 && wanted(&l->a->dlora_b)) NBL_TRY(make_db(j, l));
    }
    return NBL_OK;
}

/* dA of one layer, by cuBLASLt; u must have been computed. */
static nbl_status make_da(const nbl__linear_large *j, const nbl__linear_large_layer *l)
{
    const nbl__linear *a = l->a;
    return over_tokens(j, nbl__linear_large_at(j->u, l->first), l->rank, j->rank_padded, j->x.data, j->in,
                       j->in, a->dlora_a.data, a->accumulate);
}

/* dA of all layers in one pass over x, and, with_t, t of a single layer. u must have been computed. */
static nbl_status lowrank_x(const nbl__linear_large *j, bool with_t, bool *done)
{
    nbl__gemm_lowrank s = {
        .rows = j->tokens,
        .count = 1,
        .parts = {{.z = j->x.data, .columns = j->in, .a = j->lora_a, .scale = j->layers[0].a->scale}},
        .to = with_t ? j->t : NULL,
        .to_ld = j->t_ld,
        .v = j->u,
        .v_ld = j->rank_padded};
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_large_layer *l = &j->layers[i];
        s.rank_padded += l->rank_padded;
        if (l->rank_padded > 0 && wanted(&l->a->dlora_a))
            s.gradients[s.gradient_count++] = (nbl__gemm_lowrank_gradient){.first = l->first,
                                                                           .rank = l->rank,
                                                                           .to = l->a->dlora_a.data,
                                                                           .transposed = true,
                                                                           .accumulate = l->a->accumulate};
    }
    *done = nbl__gemm_lowrank_can(nbl__call_cuda(j->call), &s);
    return *done ? nbl__gemm_lowrank_run(j->call, &s, j->shares) : NBL_OK;
}

/* t, dA and dB of a single layer; u must have been computed. */
static nbl_status over_x(const nbl__linear_large *j, const wishes *want)
{
    const nbl__linear_large_layer *l = &j->layers[0];
    bool done = false;
    if (l->rank_padded == 0) return NBL_OK;
    if (want->a) NBL_TRY(lowrank_x(j, want->b, &done));
    if (want->a && !done) NBL_TRY(make_da(j, l));
    if (!want->b) return NBL_OK;
    if (!done) NBL_TRY(nbl__linear_large_layer_t(j, l));
    return make_db(j, l);
}

/* dA of all layers from x, without dropout: the low-rank GEMM, or one product for all, whose rows are
 * then copied to each dA. */
static nbl_status gradients_of_a(const nbl__linear_large *j)
{
    nbl__scatter_part parts[NBL_MAX_CUDA_LINEARS];
    int count = 0;
    bool done;
    NBL_TRY(lowrank_x(j, false, &done));
    if (done) return NBL_OK;
    if (j->count == 1) return make_da(j, &j->layers[0]);
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_large_layer *l = &j->layers[i];
        if (l->rank_padded == 0 || !wanted(&l->a->dlora_a)) continue;
        parts[count++] = (nbl__scatter_part){l->a->dlora_a.data, l->first, l->rank, l->a->accumulate};
    }
    NBL_TRY(over_tokens(j, j->u, j->rank_padded, j->rank_padded, j->x.data, j->in, j->in, j->da, false));
    return nbl__cuda_scatter(j->call, j->da, j->in, parts, count);
}

/* dA of all layers from x and their masks. */
static nbl_status masked_gradients_of_a(const nbl__linear_large *j)
{
    nbl__gemm_masked g = {.rows = j->tokens,
                          .columns = j->in,
                          .u_ld = j->rank_padded,
                          .bits_ld = j->mask_ld,
                          .x = j->x.data,
                          .u = j->u};
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_large_layer *l = &j->layers[i];
        if (l->rank_padded == 0 || !wanted(&l->a->dlora_a)) continue;
        g.parts[g.count++] = (nbl__gemm_masked_part){.bits = l->mask,
                                                     .factor = l->mask ? nbl__dropout_factor(l->a) : 1,
                                                     .first = l->first,
                                                     .rank = l->rank,
                                                     .to = l->a->dlora_a.data,
                                                     .accumulate = l->a->accumulate};
    }
    return nbl__gemm_masked_run(j->call, &g, j->shares);
}

/* u, dB and dA of all layers, in the order that reads the least. */
static nbl_status adapter_gradients(const nbl__linear_large *j, const wishes *want)
{
    if (j->rank_padded > 0) NBL_TRY(nbl__linear_large_pack(j, true));
    if (j->drops && !j->has_t) NBL_TRY(nbl__linear_large_make_masks(j));
    if (want->b && !j->over_x && !j->has_t) NBL_TRY(nbl__linear_large_make_t(j, false));
    if (!j->over_x) NBL_TRY(over_dy(j, want));
    else if (want->dx || want->a) NBL_TRY(make_u(j, &j->layers[0]));
    if (j->over_x) return over_x(j, want);
    if (!want->a) return NBL_OK;
    return j->drops ? masked_gradients_of_a(j) : gradients_of_a(j);
}

/* dx = Σ drop_i(u_i·A_i), rounded once. */
static nbl_status dx_dropped(const nbl__linear_large *j)
{
    nbl__lora_dx e = {.rows = j->tokens,
                      .columns = j->in,
                      .u_ld = j->rank_padded,
                      .u = j->u,
                      .a = j->lora_a,
                      .to = j->dx.data,
                      .rank_padded = (int)j->rank_padded,
                      .bits_ld = j->mask_ld};
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_large_layer *l = &j->layers[i];
        if (l->rank_padded > 0)
            e.parts[e.part_count++] = (nbl__lora_dx_part){l->mask, l->mask ? nbl__dropout_factor(l->a) : 1,
                                                          (int)l->first, (int)l->rank_padded};
    }
    return nbl__cuda_lora_dx(j->call, &e);
}

/* dx: folded in one product; otherwise the adapters' term, then the layers one after another. */
static nbl_status make_dx(const nbl__linear_large *j, bool folded)
{
    nbl__cublaslt_gemm g = {.c_dtype = NBL_DTYPE_BF16, .m = j->tokens, .n = j->in, .c = j->dx.data};
    if (folded) return nbl__linear_folded_dx(j);
    if (j->drops) NBL_TRY(dx_dropped(j));
    if (j->rank_padded > 0 && !j->drops) {
        g.k = j->rank_padded, g.a = j->u, g.lda = j->rank_padded, g.b = j->lora_a;
        NBL_TRY(nbl__linear_large_multiply(j, 1, g));
    }
    /* dx holds the adapters' terms, if there are any; each layer adds to it. */
    g.beta = j->rank_padded > 0 ? 1 : 0;
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_large_layer *l = &j->layers[i];
        if (nbl__linear_large_is_packed(&l->a->w)) NBL_TRY(nbl__linear_large_dequantize(j, l, l->w));
        g.k = l->out, g.a = l->a->dy.data, g.lda = 0, g.b = l->w;
        NBL_TRY(nbl__linear_large_multiply(j, 1, g));
        g.beta = 1;
    }
    return NBL_OK;
}

/* Backward: the gradients of adapters, dx, then dW and dbias of each layer. */
nbl_status nbl__cuda_large_backward_run(const nbl__call *call, const nbl__linear *members, int count,
                                        bool folded)
{
    nbl__linear_large j;
    NBL_TRY(nbl__linear_large_open(&j, call, members, count, true));
    wishes want = {.dx = wanted(&j.dx)};
    for (int i = 0; i < count; i++)
        want.a |= wanted(&members[i].dlora_a), want.b |= wanted(&members[i].dlora_b);
    NBL_TRY(adapter_gradients(&j, &want));
    if (want.dx) NBL_TRY(make_dx(&j, folded));
    for (int i = 0; i < count; i++) {
        const nbl__linear_large_layer *l = &j.layers[i];
        const nbl__linear *a = l->a;
        if (wanted(&a->dw))
            NBL_TRY(
                over_tokens(&j, a->dy.data, l->out, l->out, j.x.data, j.in, j.in, a->dw.data, a->accumulate));
        if (!wanted(&a->dbias)) continue;
        NBL_TRY(
            nbl__cuda_sums(call, j.tokens, l->out, a->dy.data, a->dy.dtype, NULL, true, j.parts, l->sums));
        NBL_TRY(nbl__cuda_store_sums(call, l->out, l->sums, NULL, a->accumulate, a->dbias.data));
    }
    return NBL_OK;
}
