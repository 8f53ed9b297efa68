/* layers_fold.c - the results of linear layers in one K loop each, by our own product for Hopper. See layers_fast.c.
 *
 * c is written once and rounded once, and no operand is copied. The weights of a group are decoded side by side: their dx is
 * one sum, and their outputs are the parts of one product, which fill the multiprocessors better than one after another. */
#include "ops/cuda/layers_fast.h"

#ifdef NIBBLE_CUDA_BUILT

#include "ops/cuda/dequantize.h"
#include "ops/cuda/hopper.h"

/* With fewer tokens a product is over before its weights could be decoded behind it. */
enum { TOKENS_TO_UNPACK = 1024 };

/* Layer i's weight as a source: decoded while the product runs, or before it. */
static nbl__hopper_source weight(const nbl__fast *j, const nbl__hopper *product, int i, const void *a,
                                 int64_t k)
{
    const nbl_weight *w = &j->layers[i].a->w;
    bool unpacks = j->flags && j->tokens >= TOKENS_TO_UNPACK && nbl__fast_packed(w) &&
                   nbl__hopper_unpacks(product, w);
    return (nbl__hopper_source){.a = a, .b = j->layers[i].w, .k = k, .packed = unpacks ? w : NULL};
}

/* All weights that the product does not decode itself. */
static nbl_status decode(const nbl__fast *j, const nbl__hopper *product)
{
    const nbl_weight *weights[NBL_CUDA_LAYERS_MOST];
    void *to[NBL_CUDA_LAYERS_MOST];
    int count = 0;
    for (int i = 0; i < j->count; i++) {
        const nbl__fast_layer *l = &j->layers[i];
        bool done = !nbl__fast_packed(&l->a->w);
        for (int s = 0; s < NBL_HOPPER_SOURCES; s++) done |= product->sources[s].packed == &l->a->w;
        if (!done) weights[count] = &l->a->w, to[count++] = l->w;
    }
    return nbl__cuda_dequantize_all(j->call->ctx, weights, to, count, NBL_DTYPE_BF16, j->call->cuda->stream);
}

nbl_status nbl__fold_forward(const nbl__fast *j, bool *done)
{
    nbl__hopper y = {.dtype = NBL_DTYPE_BF16,
                     .c_dtype = NBL_DTYPE_BF16,
                     .m = j->tokens,
                     .b_turned = true,
                     .flags = j->flags,
                     .part_count = j->count};
    for (int i = 0, next = 0; i < j->count; i++) {
        const nbl__fast_layer *l = &j->layers[i];
        y.parts[i] = (nbl__hopper_part){.c = l->a->y.data, .n = l->out, .count = l->wide > 0 ? 2 : 1};
        y.sources[next++] = weight(j, &y, i, j->x.data, j->in);
        if (l->wide > 0)
            y.sources[next++] = (nbl__hopper_source){
                .a = nbl__fast_at(j->t, l->t_first), .lda = j->t_ld, .b = l->lora_b, .k = l->wide};
    }
    *done = nbl__hopper_can(j->call->cuda, &y) == NULL;
    if (!*done) return NBL_OK;
    NBL_TRY(decode(j, &y));
    return nbl__hopper_run(j->call, &y);
}

nbl_status nbl__fold_dx(const nbl__fast *j, bool *done)
{
    nbl__hopper dx = {.dtype = NBL_DTYPE_BF16,
                      .c_dtype = NBL_DTYPE_BF16,
                      .m = j->tokens,
                      .n = j->in,
                      .c = j->dx.data,
                      .flags = j->flags};
    for (int i = 0; i < j->count; i++) {
        const nbl__fast_layer *l = &j->layers[i];
        dx.sources[dx.count++] = weight(j, &dx, i, l->a->dy.data, l->out);
    }
    if (j->wide > 0)
        dx.sources[dx.count++] = (nbl__hopper_source){
            .a = j->u, .lda = j->wide, .b = j->lora_a, .k = j->wide};
    *done = nbl__hopper_can(j->call->cuda, &dx) == NULL;
    if (!*done) return NBL_OK;
    NBL_TRY(decode(j, &dx));
    return nbl__hopper_run(j->call, &dx);
}

#endif
