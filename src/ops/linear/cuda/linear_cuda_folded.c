/* linear_cuda_folded.c - each result of linear layers in one K loop of gemm_sm90. See
 * linear_cuda_large.c.
 *
 *     y_i = x·W_iᵀ + t_i·B_iᵀ          the parts of one launch, two sources each
 *     dx  = Σ dy_i·W_i + u·A           one sum: a source per layer, and one for all adapters
 *
 * A result is written once and rounded once, and no operand is copied. The weights of a group are
 * dequantized side by side. The outputs of a group as parts of one launch fill the multiprocessors
 * better than one launch after another. */
#include "ops/linear/cuda/linear_cuda_large.h"

#include "ops/gemm/cuda/gemm_sm90.h"

/* Dequantizes all packed weights, side by side. */
static nbl_status dequantize(const nbl__linear_large *j)
{
    for (int i = 0; i < j->count; i++)
        if (nbl__linear_large_is_packed(&j->layers[i].a->w))
            NBL_TRY(nbl__linear_large_dequantize(j, &j->layers[i], j->layers[i].w));
    return NBL_OK;
}

/* The product of forward. t may be wider than what this layer needs, so it has its own leading
 * dimension. */
static nbl__gemm_sm90 forward_product(const nbl__linear_large *j)
{
    nbl__gemm_sm90 y = {.dtype = NBL_DTYPE_BF16,
                        .c_dtype = NBL_DTYPE_BF16,
                        .m = j->tokens,
                        .b_transposed = true,
                        .part_count = j->count};
    for (int i = 0, next = 0; i < j->count; i++) {
        const nbl__linear_large_layer *l = &j->layers[i];
        y.parts[i] = (nbl__gemm_sm90_part){
            .c = l->a->y.data, .n = l->out, .count = l->rank_padded > 0 ? 2 : 1};
        y.terms[next++] = (nbl__gemm_sm90_term){.a = j->x.data, .b = l->w, .k = j->in};
        if (l->rank_padded > 0)
            y.terms[next++] = (nbl__gemm_sm90_term){.a = nbl__linear_large_at(j->t, l->t_first),
                                                    .lda = j->t_ld,
                                                    .b = l->lora_b,
                                                    .k = l->rank_padded};
    }
    return y;
}

nbl_status nbl__linear_folded_forward(const nbl__linear_large *j)
{
    nbl__gemm_sm90 y = forward_product(j);
    NBL_TRY(dequantize(j));
    return nbl__gemm_sm90_run(j->call, &y);
}

/* The product of dx. With dropout each adapter is a source of its own, whose product is masked. */
static nbl__gemm_sm90 dx_product(const nbl__linear_large *j)
{
    nbl__gemm_sm90 dx = {
        .dtype = NBL_DTYPE_BF16, .c_dtype = NBL_DTYPE_BF16, .m = j->tokens, .n = j->in, .c = j->dx.data};
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_large_layer *l = &j->layers[i];
        dx.terms[dx.count++] = (nbl__gemm_sm90_term){.a = l->a->dy.data, .b = l->w, .k = l->out};
    }
    dx.mask_ld = j->mask_ld;
    if (j->rank_padded > 0 && !j->drops)
        dx.terms[dx.count++] = (nbl__gemm_sm90_term){
            .a = j->u, .lda = j->rank_padded, .b = j->lora_a, .k = j->rank_padded};
    /* Masked sources are the last ones. */
    for (int masked = 0; j->drops && masked < 2; masked++)
        for (int i = 0; i < j->count; i++) {
            const nbl__linear_large_layer *l = &j->layers[i];
            if (l->rank_padded > 0 && (l->mask != NULL) == masked)
                dx.terms[dx.count++] = (nbl__gemm_sm90_term){
                    .a = nbl__linear_large_at(j->u, l->first),
                    .lda = j->rank_padded,
                    .b = nbl__linear_large_at(j->lora_a, l->first * j->in),
                    .k = l->rank_padded,
                    .mask = l->mask,
                    .mask_factor = nbl__dropout_factor(l->a)};
        }
    return dx;
}

nbl_status nbl__linear_folded_dx(const nbl__linear_large *j)
{
    nbl__gemm_sm90 dx = dx_product(j);
    NBL_TRY(dequantize(j));
    return nbl__gemm_sm90_run(j->call, &dx);
}

const char *nbl__cuda_folded_can(const nbl__cuda *cuda, const nbl__linear *members, int count, bool backward)
{
    nbl__linear_large j;
    if (cuda->major != 9) return "needs compute capability 9.0";
    const char *why = nbl__cuda_large_can(members, count, backward);
    if (why) return why;
    nbl__linear_large_measure(&j, cuda, members, count, backward);
    if (j.rank_padded == 0 && (!backward || count == 1)) return "one term only";
    nbl__gemm_sm90 product = backward ? dx_product(&j) : forward_product(&j);
    return nbl__gemm_sm90_can(cuda, &product);
}
