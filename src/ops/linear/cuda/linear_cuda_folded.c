/* linear_cuda_folded.c - all terms of a result in one K loop, by our own product for compute
 * capability 9.0 (gemm_sm90.h). See linear_cuda_train.c.
 *
 *   y_i = x·W_iᵀ + t_i·B_iᵀ          one part per layer, of one or two sources
 *   dx  = Σ dy_i·W_i + u·A           one part, of a source per layer and one for the adapters
 *
 * A result is written once and rounded once. No operand is copied. The weights of a group are
 * dequantized side by side: their dx is one sum, and their outputs are parts of one product, which
 * fill the multiprocessors better than products one after another. */
#include "ops/linear/cuda/linear_cuda_train.h"

#include "ops/gemm/cuda/gemm_sm90.h"

/* Dequantizes all packed weights of the call, each to its own memory. */
static nbl_status dequantize(const nbl__fast *j)
{
    for (int i = 0; i < j->count; i++)
        if (nbl__fast_packed(&j->layers[i].a->w))
            NBL_TRY(nbl__fast_dequantize(j, &j->layers[i], j->layers[i].w));
    return NBL_OK;
}

/* The product of forward. A dense weight is used where it is. */
static nbl__gemm_sm90 forward_product(const nbl__fast *j)
{
    nbl__gemm_sm90 y = {.dtype = NBL_DTYPE_BF16,
                        .c_dtype = NBL_DTYPE_BF16,
                        .m = j->tokens,
                        .b_transposed = true,
                        .part_count = j->count};
    for (int i = 0, next = 0; i < j->count; i++) {
        const nbl__linear_train *l = &j->layers[i];
        y.parts[i] = (nbl__gemm_sm90_part){.c = l->a->y.data, .n = l->out, .count = l->wide > 0 ? 2 : 1};
        y.sources[next++] = (nbl__gemm_sm90_source){.a = j->x.data, .b = l->w, .k = j->in};
        if (l->wide > 0)
            y.sources[next++] = (nbl__gemm_sm90_source){
                .a = nbl__fast_at(j->t, l->t_first), .lda = j->t_ld, .b = l->lora_b, .k = l->wide};
    }
    return y;
}

nbl_status nbl__fold_forward(const nbl__fast *j)
{
    nbl__gemm_sm90 y = forward_product(j);
    NBL_TRY(dequantize(j));
    return nbl__gemm_sm90_run(j->call, &y);
}

/* The product of dx. With dropout the adapters' term is not a product with one A: dx holds it
 * already (beta 1), and the loop adds to it. */
static nbl__gemm_sm90 dx_product(const nbl__fast *j)
{
    nbl__gemm_sm90 dx = {
        .dtype = NBL_DTYPE_BF16, .c_dtype = NBL_DTYPE_BF16, .m = j->tokens, .n = j->in, .c = j->dx.data};
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_train *l = &j->layers[i];
        dx.sources[dx.count++] = (nbl__gemm_sm90_source){.a = l->a->dy.data, .b = l->w, .k = l->out};
    }
    if (j->drops) dx.beta = 1;
    else if (j->wide > 0)
        dx.sources[dx.count++] = (nbl__gemm_sm90_source){
            .a = j->u, .lda = j->wide, .b = j->lora_a, .k = j->wide};
    return dx;
}

nbl_status nbl__fold_dx(const nbl__fast *j)
{
    nbl__gemm_sm90 dx = dx_product(j);
    NBL_TRY(dequantize(j));
    return nbl__gemm_sm90_run(j->call, &dx);
}

/* Why the row declines; NULL: it takes the call. A call with one term only gains nothing from one
 * loop. */
const char *nbl__cuda_folded_can(const nbl__cuda *cuda, const nbl__linear *members, int count, bool backward)
{
    nbl__fast j;
    if (cuda->major != 9) return "needs compute capability 9.0";
    const char *why = nbl__cuda_train_can(members, count, backward);
    if (why) return why;
    nbl__fast_sketch(&j, cuda, members, count, backward);
    if (j.wide == 0 && (!backward || count == 1)) return "one term only";
    nbl__gemm_sm90 product = backward ? dx_product(&j) : forward_product(&j);
    return nbl__gemm_sm90_can(cuda, &product);
}
