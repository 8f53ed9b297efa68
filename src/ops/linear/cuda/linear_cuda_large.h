/* linear_cuda_large.h - the algorithms of training of linear layers: shared by linear_cuda_large.c,
 * linear_cuda_large_backward.c and linear_cuda_folded.c. See the first. */
#ifndef NBL_LINEAR_CUDA_LARGE_H
#define NBL_LINEAR_CUDA_LARGE_H

#include "ops/gemm/cuda/cublaslt.h"
#include "ops/linear/cuda/linear_cuda.h"

typedef struct nbl__linear_large_layer {
    const nbl__linear *a;
    int64_t out, rank;
    /* Its columns of t and u: the rank and (forward) the bias in multiples of 16; the first one. */
    int64_t rank_padded, first;
    int64_t t_first; /* its first column of t: a t that forward kept may be wider than u */
    void *lora_b;    /* forward: [out, rank_padded]; backward: [rank_padded, out] */
    void *w;         /* dequantized, or the stored dense weight */
    double *sums;    /* [out]; backward with a bias */
    uint32_t *mask;  /* dropout: bits of [tokens, in], rows mask_ld words apart; NULL: no dropout */
} nbl__linear_large_layer;

typedef struct nbl__linear_large {
    const nbl__call *call;
    nbl_tensor x, dx;
    int64_t tokens, in, rank_padded, outs; /* rank_padded, outs: of all layers */
    int count;
    bool side_by_side;  /* all dequantized weights are in scratch at once: compute capability 9.0 */
    bool drops, over_x; /* over_x: backward's first low-rank GEMM reads x, not dy */
    nbl__linear_large_layer layers[NBL_MAX_CUDA_LINEARS];
    void *lora_a; /* [rank_padded, in] */
    void *w;      /* dequantized: one weight, or, side by side, all of them */
    void *t, *u;  /* [tokens, t_ld] and [tokens, rank_padded] */
    int64_t t_ld;
    bool has_t; /* backward: forward kept t and the masks */
    int64_t mask_ld;
    void *shares;  /* scratch of low-rank GEMMs */
    float *da;     /* [rank_padded, in]: dA of several layers, before it is scattered */
    double *parts; /* of sums over tokens */
    size_t used;
} nbl__linear_large;

/* Lays out pieces without memory. Their addresses are aligned like those of scratch, so that
 * conditions can be checked. */
void nbl__linear_large_measure(nbl__linear_large *j, const nbl__cuda *cuda, const nbl__linear *members,
                               int count, bool backward);
/* Lays out scratch, which must be large enough. */
nbl_status nbl__linear_large_open(nbl__linear_large *j, const nbl__call *call, const nbl__linear *members,
                                  int count, bool backward);
/* Converts the adapters to bf16, with ranks filled up with zeros. */
nbl_status nbl__linear_large_pack(const nbl__linear_large *j, bool backward);
/* The masks of all layers, as bits. */
nbl_status nbl__linear_large_make_masks(const nbl__linear_large *j);
/* t of all layers. With dropout the masks must have been made. */
nbl_status nbl__linear_large_make_t(const nbl__linear_large *j, bool with_bias);
/* t of one layer without dropout. */
nbl_status nbl__linear_large_layer_t(const nbl__linear_large *j, const nbl__linear_large_layer *l);
/* What a mask leaves is multiplied by this: 1 / (1 - dropout). */
static inline float nbl__dropout_factor(const nbl__linear *a)
{
    return 1 / (1 - a->dropout);
}
/* Dequantizes the weight to bf16, [out, in]. */
nbl_status nbl__linear_large_dequantize(const nbl__linear_large *j, const nbl__linear_large_layer *l,
                                        void *to);
/* c = alpha·a·b + beta·c of bf16. */
nbl_status nbl__linear_large_multiply(const nbl__linear_large *j, float alpha, nbl__cublaslt_gemm g);

/* linear_cuda_folded.c, where nbl__cuda_folded_can says so. */
nbl_status nbl__linear_folded_forward(const nbl__linear_large *j);
nbl_status nbl__linear_folded_dx(const nbl__linear_large *j);

static inline bool nbl__linear_large_is_packed(const nbl_weight *w)
{
    return w->format != NBL_FORMAT_DENSE;
}
/* The address of a bf16 element. */
static inline void *nbl__linear_large_at(void *matrix, int64_t element)
{
    return (uint8_t *)matrix + (size_t)element * 2;
}

#endif
