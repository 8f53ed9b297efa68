/* layers_fold.c - the results of linear layers in one K loop each, by our own product for Hopper. See layers_fast.c.
 *
 * c is written once and rounded once, and no operand is copied. A group's dx needs its weights decoded side by side. */
#include "ops/cuda/layers_fast.h"

#ifdef NIBBLE_CUDA_BUILT

#include "ops/cuda/hopper.h"

static nbl_status run(const nbl__fast *j, const nbl__hopper *product, bool *done)
{
    *done = nbl__hopper_can(j->call->cuda, product) == NULL;
    return *done ? nbl__hopper_run(j->call, product) : NBL_OK;
}

nbl_status nbl__fold_forward(const nbl__fast *j, const nbl__fast_layer *l, bool *done)
{
    nbl__hopper y = {
        .dtype = NBL_DTYPE_BF16,
        .c_dtype = NBL_DTYPE_BF16,
        .m = j->tokens,
        .n = l->out,
        .count = 2,
        .b_turned = true,
        .c = l->a->y.data,
        .sources = {{.a = j->x.data, .b = l->w, .k = j->in},
                    {.a = nbl__fast_at(j->t, l->first), .lda = j->wide, .b = l->lora_b, .k = l->wide}}};
    return run(j, &y, done);
}

nbl_status nbl__fold_dx(const nbl__fast *j, bool *done)
{
    nbl__hopper dx = {
        .dtype = NBL_DTYPE_BF16, .c_dtype = NBL_DTYPE_BF16, .m = j->tokens, .n = j->in, .c = j->dx.data};
    for (int i = 0; i < j->count; i++) {
        const nbl__fast_layer *l = &j->layers[i];
        dx.sources[dx.count++] = (nbl__hopper_source){.a = l->a->dy.data, .b = l->w, .k = l->out};
    }
    if (j->wide > 0)
        dx.sources[dx.count++] = (nbl__hopper_source){
            .a = j->u, .lda = j->wide, .b = j->lora_a, .k = j->wide};
    *done = nbl__hopper_can(j->call->cuda, &dx) == NULL;
    if (!*done) return NBL_OK;
    for (int i = 0; i < j->count; i++)
        if (nbl__fast_packed(&j->layers[i].a->w)) NBL_TRY(nbl__fast_decode(j, &j->layers[i], j->layers[i].w));
    return nbl__hopper_run(j->call, &dx);
}

#endif
