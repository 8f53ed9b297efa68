/* linear_cuda.h - linear layers that share their input, on the device. linear, linear_group and mlp
 * run them.
 *
 *     forward    y_i = factor_i·(x·W_iᵀ + t_i·B_iᵀ) + bias_i             t_i = s·drop_i(x)·A_iᵀ
 *     backward   dx = Σ dy'_i·W_i + drop_i(u_i·A_i)                     u_i = s·dy'_i·B_i, dy' = factor∘dy
 *                dA_i = u_iᵀ·drop_i(x), dB_i = dy'_iᵀ·t_i, dW_i = dy'_iᵀ·x, and sums over tokens
 *
 * The algorithms are rows of the dispatch tables (nbl__cuda_linear_algo). The two for a large
 * batch (linear_cuda_large.c) need bf16, more than NBL_CUDA_SMALL_BATCH tokens, a weight that multiplies
 * as it is dequantized, and no DoRA. The general algorithm (linear_cuda_general.c,
 * linear_cuda_general_backward.c) takes everything, NBL_CUDA_CHUNK tokens at a time, with f32 sums
 * between the products. The general and the folded algorithm round y and dx once; cuBLASLt's rounds
 * them once per product.
 *
 * `members[0]` has x and dx; each member has its own weight, adapter and y. The arguments have
 * passed infer, except that x, y, dy and dx may be f32 with any compute dtype. Gradients without
 * memory are not computed. Scratch is measured as if every gradient were wanted, and suffices for
 * fewer tokens, too. With NBL_CUDA_SMALL_BATCH tokens or fewer these two are not taken, and
 * adapters multiply in f32. */
#ifndef NBL_LINEAR_CUDA_H
#define NBL_LINEAR_CUDA_H

#include "device/cuda/cuda.h"
#include "ops/linear/linear.h"

enum { NBL_MAX_CUDA_LINEARS = 4, NBL_CUDA_CHUNK = 4096, NBL_CUDA_SMALL_BATCH = 16 };

/* The algorithms, best first. */
typedef enum nbl__cuda_linear_algo {
    /* one row of x, 4-bit weights: all layers in one launch (gemv_one_sm90.cu) */
    NBL_CUDA_LINEAR_ALGO_GEMV_SM90,
    /* Up to 8 rows: weights multiply as they are stored; other layers take the general algorithm. */
    NBL_CUDA_LINEAR_ALGO_GEMV,
    NBL_CUDA_LINEAR_ALGO_FOLDED_SM90, /* large batch: all terms of a result in one K loop (gemm_sm90.h) */
    NBL_CUDA_LINEAR_ALGO_CUBLASLT,    /* large batch: a product per term */
    NBL_CUDA_LINEAR_ALGO_GENERAL,
    NBL_CUDA_LINEAR_ALGOS
} nbl__cuda_linear_algo;

/* NULL if the algorithm takes these layers, else the reason. linear_backward and
 * linear_group_backward have no gemv; mlp_backward has a row of its own. */
const char *nbl__cuda_linear_can(const nbl__cuda *cuda, nbl__cuda_linear_algo algo,
                                 const nbl__linear *members, int count);
const char *nbl__cuda_linear_backward_can(const nbl__cuda *cuda, nbl__cuda_linear_algo algo,
                                          const nbl__linear *members, int count);
/* The first algorithm that takes the layers. For operators that contain linear layers. */
nbl__cuda_linear_algo nbl__cuda_linear_best(const nbl__cuda *cuda, const nbl__linear *members, int count);
size_t nbl__cuda_linear_scratch(const nbl__cuda *cuda, nbl__cuda_linear_algo algo, const nbl__linear *members,
                                int count);
nbl_status nbl__cuda_linear_run(const nbl__call *call, nbl__cuda_linear_algo algo, const nbl__linear *members,
                                int count);
size_t nbl__cuda_linear_backward_scratch(const nbl__cuda *cuda, nbl__cuda_linear_algo algo,
                                         const nbl__linear *members, int count);
nbl_status nbl__cuda_linear_backward_run(const nbl__call *call, nbl__cuda_linear_algo algo,
                                         const nbl__linear *members, int count);

/* Defines the row nbl__OP_cuda_VARIANT. The file has, for each direction, the functions
 *
 *     const char *DIRECTION_can(cuda, algo, arguments)
 *     size_t DIRECTION_scratch(cuda, algo, arguments)
 *     nbl_status DIRECTION_run(call, algo, arguments) */
#define NBL_CUDA_LINEAR_ROW(op, direction, variant, algo)                                                    \
    static const char *direction##_can_##variant(const nbl_context *ctx, const void *arguments)              \
    {                                                                                                        \
        return direction##_can(nbl__cuda_of(ctx), algo, arguments);                                          \
    }                                                                                                        \
    static size_t direction##_scratch_##variant(const nbl_context *ctx, const void *arguments)               \
    {                                                                                                        \
        return direction##_scratch(nbl__cuda_of(ctx), algo, arguments);                                      \
    }                                                                                                        \
    static nbl_status direction##_run_##variant(const nbl__call *call, const void *arguments)                \
    {                                                                                                        \
        return direction##_run(call, algo, arguments);                                                       \
    }                                                                                                        \
    extern const nbl__impl nbl__##op##_cuda_##variant;                                                       \
    const nbl__impl nbl__##op##_cuda_##variant = {#op "_cuda_" #variant, NBL_ISA_SCALAR,                     \
                                                  direction##_can_##variant, direction##_scratch_##variant,  \
                                                  direction##_run_##variant};

/* Computes ‖W + s·B·A‖ by rows, for a DoRA layer without the tensor `norm`. */
nbl_status nbl__cuda_dora_weight_norm(const nbl__call *call, const nbl__linear *a, float *norm);

/* mlp_cuda.c, for norm_linear_cuda.c. */
struct nbl_mlp;
struct nbl__gemv_one;
/* True if gate, up and act of one row can be one launch. *one describes it, without the address of
 * the result. */
bool nbl__cuda_mlp_at_once(const struct nbl_mlp *a, struct nbl__gemv_one *one);
const char *nbl__cuda_mlp_can(const nbl__cuda *cuda, nbl__cuda_linear_algo algo, const struct nbl_mlp *a);
size_t nbl__cuda_mlp_scratch(const nbl__cuda *cuda, nbl__cuda_linear_algo algo, const struct nbl_mlp *a);
/* `norm`: NULL, or the rmsnorm that computes x; it runs in the same launch. NBL_CUDA_LINEAR_ALGO_GEMV_SM90
 * only. */
nbl_status nbl__cuda_mlp_run(const nbl__call *call, nbl__cuda_linear_algo algo, const struct nbl_mlp *a,
                             const nbl_rmsnorm *norm);

/* ---- a large batch: linear_cuda_large.c ---- */

/* NULL if the two algorithms for a large batch take the layers' dtypes and sizes, else the reason. */
const char *nbl__cuda_large_can(const nbl__linear *members, int count, bool backward);
const char *nbl__cuda_cublaslt_can(const nbl__linear *members, int count, bool backward);
/* linear_cuda_folded.c: all terms of a result in one K loop. */
const char *nbl__cuda_folded_can(const nbl__cuda *cuda, const nbl__linear *members, int count, bool backward);
size_t nbl__cuda_large_scratch(const nbl__cuda *cuda, const nbl__linear *members, int count, bool backward);
/* Bytes of t and masks, which forward keeps for backward (nbl__cuda_saved_bytes). */
size_t nbl__cuda_large_saved_bytes(const nbl__linear *members, int count);
nbl_status nbl__cuda_large_run(const nbl__call *call, const nbl__linear *members, int count, bool folded);
nbl_status nbl__cuda_large_backward_run(const nbl__call *call, const nbl__linear *members, int count,
                                        bool folded);

/* ---- the general algorithm, between its two files ---- */

typedef struct nbl__cuda_linear_part {
    const nbl__linear *a;
    int64_t out, rank, rank_padded; /* rank_padded: the rank rounded up to a multiple of 8 */
    bool by_codes;
    bool small;              /* NBL_CUDA_LINEAR_ALGO_GEMV: the weight multiplies as it is stored */
    float *factor, *inverse; /* [out]: magnitude / norm, 1 / norm; DoRA, else NULL */
    /* [rank_padded, in], [out, rank_padded] in the adapters' dtype, zero beyond the rank */
    void *lora_a, *lora_b;
    double *bias_sums, *magnitude_sums; /* [out] */
} nbl__cuda_linear_part;

/* One call: its arguments, and all pieces of scratch (NULL if not needed). */
typedef struct nbl__cuda_linears {
    const nbl__call *call;
    /* dtype: of the computation. product, adapter: of the operands of base and adapter products. */
    nbl_dtype dtype, product, adapter;
    nbl_tensor x, dx;
    int64_t tokens, in, rows; /* rows: of the largest chunk */
    int count;
    nbl__cuda_linear_part layers[NBL_MAX_CUDA_LINEARS];
    void *w, *w_half;    /* [out, in]: one weight in `product`; w_half: its f16 values before f32 */
    const void *w_layer; /* the layer whose weight is in w */
    void *x_product, *x_adapter, *x_dropped; /* [rows, in] */
    void *t, *u;                             /* [rows, rank_padded] */
    float *sums;                             /* [rows, out]: outputs before factor and bias */
    uint8_t *outlier;                        /* [in], int8 */
    int8_t *codes;                           /* [rows, in] */
    float *scales;                           /* [rows] */
    void *outliers;                          /* [rows, in] */
    int32_t *code_sums;                      /* [rows, out] */
    void *dy_product, *dy_adapter;           /* [rows, out]: factor∘dy */
    float *dx_sums, *dx_part;                /* [rows, in] */
    double *parts;                           /* of sums over tokens */
    size_t used;
} nbl__cuda_linears;

/* Lays out all pieces in `scratch`. With NULL it only measures (j->used). */
void nbl__cuda_linear_open(nbl__cuda_linears *j, const nbl__call *call, const nbl__linear *members, int count,
                           bool backward, uint8_t *scratch);
/* Max bytes of scratch of the general algorithm for these arguments, and for NBL_CUDA_SMALL_BATCH tokens.
 * `small_only`: for the latter only. */
size_t nbl__cuda_general_scratch(const nbl__linear *members, int count, bool backward, bool small_only);
/* Before the products: factors of DoRA, adapters converted to j->adapter, and with `codes` the
 * outlier columns of int8. */
nbl_status nbl__cuda_linear_prepare(nbl__cuda_linears *j, bool codes);
nbl_status nbl__cuda_linear_weight(nbl__cuda_linears *j, const nbl__cuda_linear_part *l, const void **w);
/* Rows of x (or dy) in `dtype`: the rows themselves, or converted into `room`, multiplied by factor
 * if it is not NULL. */
nbl_status nbl__cuda_linear_rows(const nbl__cuda_linears *j, const nbl_tensor *from, int64_t row,
                                 int64_t rows, nbl_dtype dtype, const float *factor, void *room,
                                 const void **result);
/* x after the layer's dropout, in the adapters' dtype. */
nbl_status nbl__cuda_linear_dropped(const nbl__cuda_linears *j, const nbl__cuda_linear_part *l, int64_t row,
                                    int64_t rows, const void **result);
/* t of a chunk, from x after dropout. */
nbl_status nbl__cuda_linear_inner(const nbl__cuda_linears *j, const nbl__cuda_linear_part *l, int64_t rows,
                                  const void *x);
/* The outputs of a chunk before factor and bias, in f32. With int8 codes their integer part is in
 * code_sums. t must have been computed. */
nbl_status nbl__cuda_linear_plain(nbl__cuda_linears *j, const nbl__cuda_linear_part *l, int64_t row,
                                  int64_t rows, float *to);

static inline void *nbl__cuda_row(const nbl_tensor *t, int64_t row)
{
    return (uint8_t *)t->data + (size_t)(row * nbl__last(t)) * nbl__size_of(t->dtype);
}

#endif
