/* linear_cuda_train.h - what the files of the two ways for training share: linear_cuda_train.c,
 * linear_cuda_train_backward.c and linear_cuda_folded.c. See linear_cuda_train.c. */
#ifndef NBL_LINEAR_CUDA_TRAIN_H
#define NBL_LINEAR_CUDA_TRAIN_H

#include "ops/gemm/cuda/cublaslt.h"
#include "ops/linear/cuda/linear_cuda.h"

/* One layer of a call. */
typedef struct nbl__linear_train {
    const nbl__linear *a;
    int64_t out, rank;
    int64_t wide,
        first; /* its columns of t and u: rank, and bias forward, in multiples of 16; and where they begin */
    int64_t t_first; /* its columns of t: forward may have left a wider one */
    void *lora_b;    /* forward: [out, wide]; backward: [wide, out] */
    void *w;         /* dequantized, or where it lies */
    double *sums;    /* [out]; backward with a bias */
} nbl__linear_train;

/* One call: its sizes, and the pieces of its scratch. */
typedef struct nbl__fast {
    const nbl__call *call;
    nbl_tensor x, dx;
    int64_t tokens, in, wide, outs; /* wide, outs: of all layers */
    int count;
    bool side_by_side;  /* dequantized weights lie side by side: on compute capability 9.0 */
    bool drops, over_x; /* over_x: backward makes u first, then one pass over x */
    nbl__linear_train layers[NBL_CUDA_LINEAR_MAX];
    void *lora_a; /* [wide, in] */
    void *w;      /* dequantized: one weight, or, side by side, all of them */
    void *t, *u;  /* [tokens, t_ld] and [tokens, wide] */
    int64_t t_ld;
    bool has_t;    /* backward: forward left it */
    void *dropped; /* [tokens, in]: x as one layer's adapter sees it; dropout */
    void *shares;  /* scratch of low-rank products */
    float *da;     /* [wide, in], of several layers */
    double *parts; /* of sums over tokens */
    size_t used;
} nbl__fast;

/* Sets up a job without memory, to measure it: addresses are as aligned as those of scratch. */
void nbl__fast_sketch(nbl__fast *j, const nbl__cuda *cuda, const nbl__linear *members, int count,
                      bool backward);
/* Sets up a job in the call's scratch. Fails if that is too small. */
nbl_status nbl__fast_open(nbl__fast *j, const nbl__call *call, const nbl__linear *members, int count,
                          bool backward);
/* Copies A and B to bf16, with ranks padded to `wide` by zeros. */
nbl_status nbl__fast_pack(const nbl__fast *j, bool backward);
/* Computes t of all layers. */
nbl_status nbl__fast_make_t(const nbl__fast *j, bool with_bias);
/* Computes t of one layer from `x`, the input that its adapter sees. */
nbl_status nbl__linear_train_t(const nbl__fast *j, const nbl__linear_train *l, bool with_bias, const void *x);
/* Sets *x to the input that a layer's adapter sees: x, or drop(x) in j->dropped. */
nbl_status nbl__fast_see(const nbl__fast *j, const nbl__linear_train *l, const void **x);
/* Dequantizes a weight to bf16 [out, in]. */
nbl_status nbl__fast_dequantize(const nbl__fast *j, const nbl__linear_train *l, void *to);
/* c = alpha·a·b + beta·c, of bf16 operands. */
nbl_status nbl__fast_multiply(const nbl__fast *j, float alpha, nbl__gemm g);

/* The products of linear_cuda_folded.c, if nbl__cuda_folded_can takes the call. */
nbl_status nbl__fold_forward(const nbl__fast *j);
/* With dropout dx must hold the adapters' term already; the loop adds to it. */
nbl_status nbl__fold_dx(const nbl__fast *j);

static inline bool nbl__fast_packed(const nbl_weight *w)
{
    return w->format != NBL_FORMAT_DENSE;
}
/* The address of an element of a bf16 matrix. */
static inline void *nbl__fast_at(void *matrix, int64_t element)
{
    return (uint8_t *)matrix + (size_t)element * 2;
}

#endif
