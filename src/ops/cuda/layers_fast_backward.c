/* layers_fast_backward.c - layers backward as they are trained. See layers_fast.c. */
#include "ops/cuda/layers_fast.h"

#ifdef NIBBLE_CUDA_BUILT

#include "ops/cuda/pieces.h"
#include "ops/cuda/skinny.h"

static bool wanted(const nbl_tensor *gradient)
{
    return gradient->rank > 0 && nbl__given(gradient);
}

/* u of a layer; beside, dy goes into the copy, too, from column `column` on. */
static nbl_status make_u(const nbl__fast *j, const nbl__fast_layer *l, int64_t column)
{
    void *copy = j->beside ? nbl__fast_at(j->copy, column) : NULL;
    if (!j->skinny || l->wide == 0) {
        if (copy) NBL_TRY(nbl__fast_copy(j, l->a->dy.data, l->out, copy));
        if (l->wide == 0) return NBL_OK;
        return nbl__fast_multiply(j, (nbl__gemm){.c_dtype = NBL_DTYPE_BF16,
                                                 .m = j->tokens,
                                                 .n = l->wide,
                                                 .k = l->out,
                                                 .a = l->a->dy.data,
                                                 .b = l->lora_b,
                                                 .b_turned = true,
                                                 .c = nbl__fast_at(j->u, l->first),
                                                 .ldc = j->u_ld,
                                                 .alpha = l->a->scale});
    }
    nbl__project p = {.rows = j->tokens,
                      .columns = l->out,
                      .x = l->a->dy.data,
                      .a = l->lora_b,
                      .wide = (int)l->wide,
                      .to = nbl__fast_at(j->u, l->first),
                      .to_ld = j->u_ld,
                      .copy = copy,
                      .copy_ld = j->copy_ld};
    for (int64_t r = 0; r < l->wide / 8; r++) p.scales[r] = l->a->scale;
    return nbl__cuda_project(j->call, &p);
}

/* aᵀ·b over the tokens, f32. */
static nbl_status over_tokens(const nbl__fast *j, const nbl__fast_layer *l, const void *a, int64_t m,
                              int64_t lda, const void *b, int64_t n, int64_t ldb, float *c)
{
    return nbl__fast_multiply(j, (nbl__gemm){.c_dtype = NBL_DTYPE_F32,
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

static nbl_status gradients_of_b(const nbl__fast *j)
{
    for (int i = 0; i < j->count; i++) {
        const nbl__fast_layer *l = &j->layers[i];
        const nbl__linear *a = l->a;
        if (l->wide == 0 || !wanted(&a->dlora_b)) continue;
        const void *t = nbl__fast_at(j->t, l->first);
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

static nbl_status gradients_of_a(const nbl__fast *j)
{
    nbl__outer o = {.rows = j->tokens,
                    .columns = j->in,
                    .z = j->x.data,
                    .v = j->u,
                    .v_ld = j->u_ld,
                    .wide = (int)j->wide};
    for (int i = 0; i < j->count; i++) {
        const nbl__fast_layer *l = &j->layers[i];
        if (l->wide == 0 || !wanted(&l->a->dlora_a)) continue;
        o.parts[o.part_count++] = (nbl__outer_part){l->a->dlora_a.data, (int)l->first, (int)l->rank, true,
                                                    l->a->accumulate};
        if (!j->skinny)
            NBL_TRY(over_tokens(j, l, nbl__fast_at(j->u, l->first), l->rank, j->u_ld, j->x.data, j->in, j->in,
                                l->a->dlora_a.data));
    }
    return j->skinny && o.part_count > 0 ? nbl__cuda_outer(j->call, &o, j->shares) : NBL_OK;
}

/* [dy_0 | dy_1 | … | u]·[W_0; W_1; …; A]. */
static nbl_status dx_beside(const nbl__fast *j)
{
    int64_t row = 0;
    for (int i = 0; i < j->count; i++) {
        NBL_TRY(nbl__fast_decode(j, &j->layers[i], false, nbl__fast_at(j->w, row * j->in)));
        row += j->layers[i].out;
    }
    return nbl__fast_multiply(j, (nbl__gemm){.c_dtype = NBL_DTYPE_BF16,
                                             .m = j->tokens,
                                             .n = j->in,
                                             .k = j->outs + j->wide,
                                             .a = j->copy,
                                             .lda = j->copy_ld,
                                             .b = j->w,
                                             .c = j->dx.data});
}

static nbl_status dx_before(const nbl__fast *j)
{
    nbl__gemm g = {.c_dtype = NBL_DTYPE_BF16, .m = j->tokens, .n = j->in, .c = j->dx.data};
    if (j->wide > 0) {
        g.k = j->wide, g.a = j->u, g.lda = j->u_ld, g.b = j->lora_a;
        NBL_TRY(nbl__fast_multiply(j, g));
        g.beta = 1;
    }
    for (int i = 0; i < j->count; i++) {
        const nbl__fast_layer *l = &j->layers[i];
        const void *w = l->a->w.data;
        if (nbl__fast_packed(&l->a->w)) {
            NBL_TRY(nbl__fast_decode(j, l, false, j->w));
            w = j->w;
        }
        g.k = l->out, g.a = l->a->dy.data, g.lda = 0, g.b = w;
        NBL_TRY(nbl__fast_multiply(j, g));
        g.beta = 1;
    }
    return NBL_OK;
}

nbl_status nbl__cuda_fast_backward_run(const nbl__call *call, const nbl__linear *members, int count)
{
    nbl__fast j;
    NBL_TRY(nbl__fast_open(&j, call, members, count, true));
    bool wants_a = false, wants_b = false, wants_dx = wanted(&j.dx);
    for (int i = 0; i < count; i++)
        wants_a |= wanted(&members[i].dlora_a), wants_b |= wanted(&members[i].dlora_b);
    if (j.wide > 0) {
        NBL_TRY(nbl__fast_pack(&j, true));
        if (wants_b) NBL_TRY(nbl__fast_make_t(&j, false, NULL));
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
        const nbl__fast_layer *l = &j.layers[i];
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
