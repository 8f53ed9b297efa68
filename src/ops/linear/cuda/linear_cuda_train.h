/* linear_cuda_train.h - the ways of training of linear layers: shared by linear_cuda_train.c,
 * linear_cuda_train_backward.c and linear_cuda_folded.c. See the first. */
#ifndef NBL_LINEAR_CUDA_TRAIN_H
#define NBL_LINEAR_CUDA_TRAIN_H

#include "ops/gemm/cuda/cublaslt.h"
#include "ops/linear/cuda/linear_cuda.h"

typedef struct nbl__linear_train {
    const nbl__linear *a;
    int64_t out, rank;
    /* Its columns of t and u: the rank and (forward) the bias in multiples of 16; the first one. */
    int64_t wide, first;
    int64_t t_first; /* its first column of t: a t that forward kept may be wider than u */
    void *lora_b;    /* forward: [out, wide]; backward: [wide, out] */
    void *w;         /* dequantized, or the stored dense weight */
    double *sums;    /* [out]; backward with a bias */
    uint32_t *mask;  /* dropout: bits of [tokens, in], rows mask_ld words apart; NULL: no dropout */
} nbl__linear_train;

typedef struct nbl__fast {
    const nbl__call *call;
    nbl_tensor x, dx;
    int64_t tokens, in, wide, outs; /* wide, outs: of all layers */
    int count;
    bool side_by_side;  /* all dequantized weights are in scratch at once: compute capability 9.0 */
    bool drops, over_x; /* over_x: backward's first low-rank GEMM reads x, not dy */
    nbl__linear_train layers[NBL_CUDA_LINEAR_MAX];
    void *lora_a; /* [wide, in] */
    void *w;      /* dequantized: one weight, or, side by side, all of them */
    void *t, *u;  /* [tokens, t_ld] and [tokens, wide] */
    int64_t t_ld;
    bool has_t; /* backward: forward kept t and the masks */
    int64_t mask_ld;
    void *shares;  /* scratch of low-rank GEMMs */
    float *da;     /* [wide, in]: dA of several layers, before it is scattered */
    double *parts; /* of sums over tokens */
    size_t used;
} nbl__fast;

/* Lays out pieces without memory. Their addresses are aligned like those of scratch, so that
 * conditions can be checked. */
void nbl__fast_sketch(nbl__fast *j, const nbl__cuda *cuda, const nbl__linear *members, int count,
                      bool backward);
/* Lays out scratch, which must be large enough. */
nbl_status nbl__fast_open(nbl__fast *j, const nbl__call *call, const nbl__linear *members, int count,
                          bool backward);
/* Converts the adapters to bf16, with ranks filled up with zeros. */
nbl_status nbl__fast_pack(const nbl__fast *j, bool backward);
/* The masks of all layers, as bits. */
nbl_status nbl__fast_make_masks(const nbl__fast *j);
/* t of all layers. With dropout the masks must have been made. */
nbl_status nbl__fast_make_t(const nbl__fast *j, bool with_bias);
/* t of one layer without dropout. */
nbl_status nbl__linear_train_t(const nbl__fast *j, const nbl__linear_train *l);
/* What a mask leaves is multiplied by this: 1 / (1 - dropout). */
static inline float nbl__dropout_factor(const nbl__linear *a)
{
    return 1 / (1 - a->dropout);
}
/* Dequantizes the weight to bf16, [out, in]. */
nbl_status nbl__fast_dequantize(const nbl__fast *j, const nbl__linear_train *l, void *to);
/* c = alpha·a·b + beta·c of bf16. */
nbl_status nbl__fast_multiply(const nbl__fast *j, float alpha, nbl__gemm g);

/* linear_cuda_folded.c, where nbl__cuda_folded_can says so. */
nbl_status nbl__fold_forward(const nbl__fast *j);
nbl_status nbl__fold_dx(const nbl__fast *j);

static inline bool nbl__fast_packed(const nbl_weight *w)
{
    return w->format != NBL_FORMAT_DENSE;
}
/* The address of a bf16 element. */
static inline void *nbl__fast_at(void *matrix, int64_t element)
{
    return (uint8_t *)matrix + (size_t)element * 2;
}

#endif
