/* linear_cuda_train_backward.c - the two ways for training, backward. See linear_cuda_train.c.
 *
 *   u = s·dy·B   and dB = dyᵀ·t     one pass over dy, once t is known
 *   t = s·x·Aᵀ   and dA = uᵀ·x      one pass over x, once u is known
 *   dx                              linear_cuda_folded.c, or a product per term
 *   dW = dyᵀ·x, db = Σ dy           where they are wanted
 *
 * One of x and dy must be read twice: for t or for u first, and again for both gradients. The
 * larger one is read once (over_x); of a group it is always dy. If forward left its t, both are
 * read once. */
#include "ops/linear/cuda/linear_cuda_train.h"

#include "ops/linear/cuda/dropout_cuda.h"
#include "ops/linear/cuda/linear_helpers.h"
#include "ops/gemm/cuda/gemm_tall_skinny.h"
#include "ops/gemm/cuda/gemm_lowrank_sm90.h"

/* True if the caller gave memory for this gradient. */
static bool wanted(const nbl_tensor *gradient)
{
    return gradient->rank > 0 && nbl__given(gradient);
}

/* What the caller wants, of any layer. */
typedef struct wishes {
    bool a, b, dx;
} wishes;

/* c (+)= aᵀ·b over all tokens, in f32. */
static nbl_status over_tokens(const nbl__fast *j, const void *a, int64_t m, int64_t lda, const void *b,
                              int64_t n, int64_t ldb, float *c, bool accumulate)
{
    return nbl__fast_multiply(j, 1,
                              (nbl__gemm){.c_dtype = NBL_DTYPE_F32,
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

/* u of one layer, by a product of its own. */
static nbl_status make_u(const nbl__fast *j, const nbl__linear_train *l)
{
    const nbl__linear *a = l->a;
    if (l->wide == 0) return NBL_OK;
    return nbl__fast_multiply(j, a->scale,
                              (nbl__gemm){.c_dtype = NBL_DTYPE_BF16,
                                          .m = j->tokens,
                                          .n = l->wide,
                                          .k = l->out,
                                          .a = a->dy.data,
                                          .b = l->lora_b,
                                          .b_transposed = true,
                                          .c = nbl__fast_at(j->u, l->first),
                                          .ldc = j->wide});
}

/* dB of one layer, by a product of its own. t is known. */
static nbl_status make_db(const nbl__fast *j, const nbl__linear_train *l)
{
    const nbl__linear *a = l->a;
    return over_tokens(j, a->dy.data, l->out, l->out, nbl__fast_at(j->t, l->t_first), l->rank, j->t_ld,
                       a->dlora_b.data, a->accumulate);
}

/* u and dB of layers [first, end), in one pass over each dy. t is known. *done: the low-rank kernel
 * took it; it needs one width for all layers and both results wanted. */
static nbl_status lowrank_dy(const nbl__fast *j, int first, int end, const wishes *want, bool *done)
{
    nbl__gemm_lowrank s = {.rows = j->tokens, .to = j->u, .to_ld = j->wide, .v = j->t, .v_ld = j->t_ld};
    *done = false;
    for (int i = first; i < end; i++) {
        const nbl__linear_train *l = &j->layers[i];
        const nbl__linear *a = l->a;
        if (l->wide == 0) continue;
        if (s.wide == 0) s.wide = l->wide;
        if (l->wide != s.wide || !wanted(&a->dlora_b) || (!want->dx && !wanted(&a->dlora_a))) return NBL_OK;
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

/* u and dB of layers [first, end): in one pass, or by two products per layer. */
static nbl_status over_dy(const nbl__fast *j, int first, int end, const wishes *want)
{
    bool done;
    NBL_TRY(lowrank_dy(j, first, end, want, &done));
    for (int i = first; i < end && !done; i++) {
        const nbl__linear_train *l = &j->layers[i];
        if (want->dx || wanted(&l->a->dlora_a)) NBL_TRY(make_u(j, l));
        if (l->wide > 0 && wanted(&l->a->dlora_b)) NBL_TRY(make_db(j, l));
    }
    return NBL_OK;
}

/* dA of one layer, by a product of its own. u is known, and x is what its adapter sees. */
static nbl_status make_da(const nbl__fast *j, const nbl__linear_train *l, const void *x)
{
    const nbl__linear *a = l->a;
    return over_tokens(j, nbl__fast_at(j->u, l->first), l->rank, j->wide, x, j->in, j->in, a->dlora_a.data,
                       a->accumulate);
}

/* dA of layers [first, end), whose adapters see the same `x`, in one pass over it. u is known.
 * with_t: also t, of a single layer. */
static nbl_status lowrank_x(const nbl__fast *j, int first, int end, const void *x, bool with_t, bool *done)
{
    const nbl__linear_train *f = &j->layers[first];
    nbl__gemm_lowrank s = {.rows = j->tokens,
                           .count = 1,
                           .parts = {{.z = x,
                                      .columns = j->in,
                                      .a = nbl__fast_at(j->lora_a, f->first * j->in),
                                      .scale = f->a->scale,
                                      .first = f->first,
                                      .v_first = f->first}},
                           .to = with_t ? j->t : NULL,
                           .to_ld = j->t_ld,
                           .v = j->u,
                           .v_ld = j->wide};
    for (int i = first; i < end; i++) {
        const nbl__linear_train *l = &j->layers[i];
        s.wide += l->wide;
        if (l->wide > 0 && wanted(&l->a->dlora_a))
            s.gradients[s.gradient_count++] = (nbl__gemm_lowrank_gradient){.first = l->first - f->first,
                                                                           .rank = l->rank,
                                                                           .to = l->a->dlora_a.data,
                                                                           .transposed = true,
                                                                           .accumulate = l->a->accumulate};
    }
    *done = nbl__gemm_lowrank_can(nbl__call_cuda(j->call), &s);
    return *done ? nbl__gemm_lowrank_run(j->call, &s, j->shares) : NBL_OK;
}

/* t, dA and dB of a single layer. u is known. */
static nbl_status over_x(const nbl__fast *j, const wishes *want, const void *x)
{
    const nbl__linear_train *l = &j->layers[0];
    bool done = false;
    if (l->wide == 0) return NBL_OK;
    if (want->a) NBL_TRY(lowrank_x(j, 0, 1, x, want->b, &done));
    if (want->a && !done) NBL_TRY(make_da(j, l, x));
    if (!want->b) return NBL_OK;
    if (!done) NBL_TRY(nbl__linear_train_t(j, l, false, x));
    return make_db(j, l);
}

/* dA of all layers from the same x: one low-rank product, or one product for all and a scatter to
 * each layer's gradient. */
static nbl_status gradients_of_a(const nbl__fast *j)
{
    nbl__scatter_part parts[NBL_CUDA_LINEAR_MAX];
    int count = 0;
    bool done;
    NBL_TRY(lowrank_x(j, 0, j->count, j->x.data, false, &done));
    if (done) return NBL_OK;
    if (j->count == 1) return make_da(j, &j->layers[0], j->x.data);
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_train *l = &j->layers[i];
        if (l->wide == 0 || !wanted(&l->a->dlora_a)) continue;
        parts[count++] = (nbl__scatter_part){l->a->dlora_a.data, l->first, l->rank, l->a->accumulate};
    }
    NBL_TRY(over_tokens(j, j->u, j->wide, j->wide, j->x.data, j->in, j->in, j->da, false));
    return nbl__cuda_scatter(j->call, j->da, j->in, parts, count);
}

/* With dropout each layer sees its own x. It is computed once, and used for t and for dA. */
static nbl_status gradients_of_dropped(const nbl__fast *j, const wishes *want)
{
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_train *l = &j->layers[i];
        const nbl__linear *a = l->a;
        const void *x;
        NBL_TRY(nbl__fast_see(j, l, &x));
        if (j->over_x) {
            if (want->dx || want->a) NBL_TRY(make_u(j, l));
            return over_x(j, want, x);
        }
        if (wanted(&a->dlora_b) && !j->has_t) NBL_TRY(nbl__linear_train_t(j, l, false, x));
        NBL_TRY(over_dy(j, i, i + 1, want));
        if (l->rank == 0 || !wanted(&a->dlora_a)) continue;
        bool done;
        NBL_TRY(lowrank_x(j, i, i + 1, x, false, &done));
        if (!done) NBL_TRY(make_da(j, l, x));
    }
    return NBL_OK;
}

/* Gradients of A and B, and u for dx. The order is that of the head of this file. */
static nbl_status adapter_gradients(const nbl__fast *j, const wishes *want)
{
    if (j->wide > 0) NBL_TRY(nbl__fast_pack(j, true));
    if (j->drops) return gradients_of_dropped(j, want);
    if (want->b && !j->over_x && !j->has_t) NBL_TRY(nbl__fast_make_t(j, false));
    if (!j->over_x) NBL_TRY(over_dy(j, 0, j->count, want));
    else if (want->dx || want->a) NBL_TRY(make_u(j, &j->layers[0]));
    if (j->over_x) return over_x(j, want, j->x.data);
    return want->a ? gradients_of_a(j) : NBL_OK;
}

/* dx = Σ drop_i(u_i·A_i), the adapters' term with dropout. */
static nbl_status dx_dropped(const nbl__fast *j)
{
    nbl__expand e = {.rows = j->tokens,
                     .columns = j->in,
                     .u_ld = j->wide,
                     .u = j->u,
                     .a = j->lora_a,
                     .to = j->dx.data,
                     .wide = (int)j->wide,
                     .first_row = j->layers[0].a->first_row};
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_train *l = &j->layers[i];
        if (l->wide > 0)
            e.parts[e.part_count++] = (nbl__expand_part){nbl__linear_seed(l->a), l->a->dropout, (int)l->first,
                                                         (int)l->wide};
    }
    return nbl__cuda_expand(j->call, &e);
}

/* dx: the adapters' term first, then the base products added to it; folded: one K loop. */
static nbl_status make_dx(const nbl__fast *j, bool folded)
{
    nbl__gemm g = {.c_dtype = NBL_DTYPE_BF16, .m = j->tokens, .n = j->in, .c = j->dx.data};
    if (j->drops) NBL_TRY(dx_dropped(j));
    if (folded) return nbl__fold_dx(j);
    if (j->wide > 0 && !j->drops) {
        g.k = j->wide, g.a = j->u, g.lda = j->wide, g.b = j->lora_a;
        NBL_TRY(nbl__fast_multiply(j, 1, g));
    }
    g.beta = j->wide > 0 ? 1 : 0;
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_train *l = &j->layers[i];
        if (nbl__fast_packed(&l->a->w)) NBL_TRY(nbl__fast_dequantize(j, l, l->w));
        g.k = l->out, g.a = l->a->dy.data, g.lda = 0, g.b = l->w;
        NBL_TRY(nbl__fast_multiply(j, 1, g));
        g.beta = 1;
    }
    return NBL_OK;
}

nbl_status nbl__cuda_fast_backward_run(const nbl__call *call, const nbl__linear *members, int count,
                                       bool folded)
{
    nbl__fast j;
    NBL_TRY(nbl__fast_open(&j, call, members, count, true));
    wishes want = {.dx = wanted(&j.dx)};
    for (int i = 0; i < count; i++)
        want.a |= wanted(&members[i].dlora_a), want.b |= wanted(&members[i].dlora_b);
    NBL_TRY(adapter_gradients(&j, &want));
    if (want.dx) NBL_TRY(make_dx(&j, folded));
    for (int i = 0; i < count; i++) {
        const nbl__linear_train *l = &j.layers[i];
        const nbl__linear *a = l->a;
        if (wanted(&a->dw))
            NBL_TRY(
                over_tokens(&j, a->dy.data, l->out, l->out, j.x.data, j.in, j.in, a->dw.data, a->accumulate));
        if (!wanted(&a->dbias)) continue;
        NBL_TRY(
            nbl__cuda_sums(call, j.tokens, l->out, a->dy.data, a->dy.dtype, NULL, true, j.parts, l->sums));
        NBL_TRY(nbl__cuda_put_sums(call, l->out, l->sums, NULL, a->accumulate, a->dbias.data));
    }
    return NBL_OK;
}
