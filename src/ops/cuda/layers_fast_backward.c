/* layers_fast_backward.c - layers backward as they are trained. See layers_fast.c.
 *
 * u = s·dy·B and dB = dyᵀ·t are one pass over dy once t is there, or t = s·x·Aᵀ and dA = uᵀ·x are one over x once
 * u is: whichever of x and dy is larger is read once for both, the other twice. */
#include "ops/cuda/layers_fast.h"

#ifdef NIBBLE_CUDA_BUILT

#include "ops/cuda/dropout.h"
#include "ops/cuda/pieces.h"
#include "ops/cuda/skinny.h"

static bool wanted(const nbl_tensor *gradient)
{
    return gradient->rank > 0 && nbl__given(gradient);
}

/* What is asked for. */
typedef struct wishes {
    bool a, b, dx;
} wishes;

/* aᵀ·b over the tokens, f32. */
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
                                          .a_turned = true,
                                          .b = b,
                                          .ldb = ldb,
                                          .c = c,
                                          .beta = accumulate ? 1 : 0});
}

/* u of a layer by itself. */
static nbl_status make_u(const nbl__fast *j, const nbl__fast_layer *l)
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
                                          .b_turned = true,
                                          .c = nbl__fast_at(j->u, l->first),
                                          .ldc = j->wide});
}

static nbl_status make_db(const nbl__fast *j, const nbl__fast_layer *l)
{
    const nbl__linear *a = l->a;
    return over_tokens(j, a->dy.data, l->out, l->out, nbl__fast_at(j->t, l->first), l->rank, j->wide,
                       a->dlora_b.data, a->accumulate);
}

/* u and dB of a layer; t is there. */
static nbl_status over_dy(const nbl__fast *j, const nbl__fast_layer *l, const wishes *want)
{
    const nbl__linear *a = l->a;
    bool wants_u = want->dx || wanted(&a->dlora_a), wants_b = l->wide > 0 && wanted(&a->dlora_b);
    if (!l->swept || !wants_u || !wants_b) {
        if (wants_u) NBL_TRY(make_u(j, l));
        return wants_b ? make_db(j, l) : NBL_OK;
    }
    nbl__sweep s = {.rows = j->tokens,
                    .columns = l->out,
                    .z = a->dy.data,
                    .wide = (int)l->wide,
                    .a = l->lora_b,
                    .to = nbl__fast_at(j->u, l->first),
                    .to_ld = j->wide,
                    .scale = a->scale,
                    .v = nbl__fast_at(j->t, l->first),
                    .v_ld = j->wide,
                    .gradient = a->dlora_b.data,
                    .rank = (int)l->rank,
                    .accumulate = a->accumulate};
    return nbl__cuda_sweep(j->call, &s, j->shares);
}

static nbl_status make_da(const nbl__fast *j, const nbl__fast_layer *l, const void *x)
{
    const nbl__linear *a = l->a;
    return over_tokens(j, nbl__fast_at(j->u, l->first), l->rank, j->wide, x, j->in, j->in, a->dlora_a.data,
                       a->accumulate);
}

/* t and dA of the only layer; u is there. Then dB. */
static nbl_status over_x(const nbl__fast *j, const wishes *want, const void *x)
{
    const nbl__fast_layer *l = &j->layers[0];
    const nbl__linear *a = l->a;
    if (!want->a || !want->b) {
        if (want->a) return make_da(j, l, x);
        if (!want->b) return NBL_OK;
        NBL_TRY(nbl__fast_layer_t(j, l, false, x));
        return make_db(j, l);
    }
    nbl__sweep s = {.rows = j->tokens,
                    .columns = j->in,
                    .z = x,
                    .wide = (int)l->wide,
                    .a = j->lora_a,
                    .to = j->t,
                    .to_ld = j->wide,
                    .scale = a->scale,
                    .v = j->u,
                    .v_ld = j->wide,
                    .gradient = a->dlora_a.data,
                    .rank = (int)l->rank,
                    .turned = true,
                    .accumulate = a->accumulate};
    NBL_TRY(nbl__cuda_sweep(j->call, &s, j->shares));
    return make_db(j, l);
}

/* dA of all layers in one product over x; each has its own place. */
static nbl_status gradients_of_a(const nbl__fast *j)
{
    nbl__scatter_part parts[NBL_CUDA_LAYERS_MOST];
    int count = 0;
    if (j->count == 1) return make_da(j, &j->layers[0], j->x.data);
    for (int i = 0; i < j->count; i++) {
        const nbl__fast_layer *l = &j->layers[i];
        if (l->wide == 0 || !wanted(&l->a->dlora_a)) continue;
        parts[count++] = (nbl__scatter_part){l->a->dlora_a.data, l->first, l->rank, l->a->accumulate};
    }
    NBL_TRY(over_tokens(j, j->u, j->wide, j->wide, j->x.data, j->in, j->in, j->da, false));
    return nbl__cuda_scatter(j->call, j->da, j->in, parts, count);
}

/* With dropout each layer sees its own x, which is there once for t and dA. */
static nbl_status gradients_of_dropped(const nbl__fast *j, const wishes *want)
{
    for (int i = 0; i < j->count; i++) {
        const nbl__fast_layer *l = &j->layers[i];
        const nbl__linear *a = l->a;
        const void *x;
        NBL_TRY(nbl__fast_see(j, l, &x));
        if (j->over_x) {
            if (want->dx || want->a) NBL_TRY(make_u(j, l));
            return over_x(j, want, x);
        }
        if (wanted(&a->dlora_b)) NBL_TRY(nbl__fast_layer_t(j, l, false, x));
        NBL_TRY(over_dy(j, l, want));
        if (l->rank > 0 && wanted(&a->dlora_a)) NBL_TRY(make_da(j, l, x));
    }
    return NBL_OK;
}

static nbl_status adapter_gradients(const nbl__fast *j, const wishes *want)
{
    if (j->wide > 0) NBL_TRY(nbl__fast_pack(j, true));
    if (j->drops) return gradients_of_dropped(j, want);
    if (want->b && !j->over_x) NBL_TRY(nbl__fast_make_t(j, false));
    for (int i = 0; i < j->count; i++) {
        const nbl__fast_layer *l = &j->layers[i];
        if (!j->over_x) NBL_TRY(over_dy(j, l, want));
        else if (want->dx || want->a) NBL_TRY(make_u(j, l));
    }
    if (j->over_x) return over_x(j, want, j->x.data);
    return want->a ? gradients_of_a(j) : NBL_OK;
}

/* What the masks leave of u·A. */
static nbl_status dx_dropped(const nbl__fast *j)
{
    nbl__expand e = {.rows = j->tokens,
                     .columns = j->in,
                     .u_ld = j->wide,
                     .u = j->u,
                     .a = j->lora_a,
                     .to = j->dx.data,
                     .wide = (int)j->wide};
    for (int i = 0; i < j->count; i++) {
        const nbl__fast_layer *l = &j->layers[i];
        if (l->wide > 0)
            e.parts[e.part_count++] = (nbl__expand_part){l->a->seed, l->a->dropout, (int)l->first,
                                                         (int)l->wide};
    }
    return nbl__cuda_expand(j->call, &e);
}

static nbl_status dx_before(const nbl__fast *j)
{
    nbl__gemm g = {.c_dtype = NBL_DTYPE_BF16, .m = j->tokens, .n = j->in, .c = j->dx.data};
    bool done = false;
    if (j->folds) NBL_TRY(nbl__fold_dx(j, &done));
    if (done) return NBL_OK;
    if (j->wide > 0) {
        g.k = j->wide, g.a = j->u, g.lda = j->wide, g.b = j->lora_a;
        NBL_TRY(j->drops ? dx_dropped(j) : nbl__fast_multiply(j, 1, g));
        g.beta = 1;
    }
    for (int i = 0; i < j->count; i++) {
        const nbl__fast_layer *l = &j->layers[i];
        void *w = j->folds || !nbl__fast_packed(&l->a->w) ? l->w : j->w;
        if (nbl__fast_packed(&l->a->w)) NBL_TRY(nbl__fast_decode(j, l, w));
        g.k = l->out, g.a = l->a->dy.data, g.lda = 0, g.b = w;
        NBL_TRY(nbl__fast_multiply(j, 1, g));
        g.beta = 1;
    }
    return NBL_OK;
}

nbl_status nbl__cuda_fast_backward_run(const nbl__call *call, const nbl__linear *members, int count)
{
    nbl__fast j;
    NBL_TRY(nbl__fast_open(&j, call, members, count, true));
    wishes want = {.dx = wanted(&j.dx)};
    for (int i = 0; i < count; i++)
        want.a |= wanted(&members[i].dlora_a), want.b |= wanted(&members[i].dlora_b);
    NBL_TRY(adapter_gradients(&j, &want));
    if (want.dx) NBL_TRY(dx_before(&j));
    for (int i = 0; i < count; i++) {
        const nbl__fast_layer *l = &j.layers[i];
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

#endif
