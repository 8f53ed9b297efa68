/* cuda_impls.c - which operators the device has. See cuda.h. */
#include "device/cuda/cuda.h"

#ifdef NIBBLE_CUDA_BUILT

extern const nbl__impl nbl__linear_cuda_gemv_sm90, nbl__linear_cuda_gemv, nbl__linear_cuda_folded_sm90,
    nbl__linear_cuda_cublaslt, nbl__linear_cuda_general, nbl__linear_backward_cuda_folded_sm90,
    nbl__linear_backward_cuda_cublaslt, nbl__linear_backward_cuda_general;
extern const nbl__impl nbl__linear_group_cuda_gemv_sm90, nbl__linear_group_cuda_gemv,
    nbl__linear_group_cuda_folded_sm90, nbl__linear_group_cuda_cublaslt, nbl__linear_group_cuda_general,
    nbl__linear_group_backward_cuda_folded_sm90, nbl__linear_group_backward_cuda_cublaslt,
    nbl__linear_group_backward_cuda_general;
extern const nbl__impl nbl__mlp_cuda_gemv_sm90, nbl__mlp_cuda_gemv, nbl__mlp_cuda_general,
    nbl__mlp_backward_cuda_gemv, nbl__mlp_backward_cuda_general;
extern const nbl__impl nbl__norm_linear_group_cuda_gemv_sm90, nbl__norm_linear_group_cuda_apart,
    nbl__norm_mlp_cuda_gemv_sm90, nbl__norm_mlp_cuda_apart;
extern const nbl__impl nbl__dora_norm_cuda;
extern const nbl__impl nbl__add_cuda, nbl__cast_cuda, nbl__scale_cuda, nbl__check_finite_cuda;
extern const nbl__impl nbl__add_backward_cuda, nbl__cast_backward_cuda, nbl__scale_backward_cuda;
extern const nbl__impl nbl__attention_sm90, nbl__attention_backward_sm90, nbl__attention_mma,
    nbl__attention_backward_mma, nbl__attention_f32, nbl__attention_backward_f32, nbl__attention_cuda,
    nbl__attention_backward_cuda, nbl__attention_decode_cuda, nbl__attention_step_fast,
    nbl__attention_step_cuda, nbl__kv_write_cuda, nbl__take_rows_cuda;
extern const nbl__impl nbl__rmsnorm_cuda, nbl__rmsnorm_backward_cuda;
extern const nbl__impl nbl__layernorm_cuda, nbl__layernorm_backward_cuda;
extern const nbl__impl nbl__rope_table_cuda, nbl__rope_cuda, nbl__rope_backward_cuda;
extern const nbl__impl nbl__norm_rope_cuda, nbl__norm_rope_backward_cuda;
extern const nbl__impl nbl__gated_cuda, nbl__gated_backward_cuda;
extern const nbl__impl nbl__embedding_cuda, nbl__embedding_backward_cuda;
extern const nbl__impl nbl__cross_entropy_cuda, nbl__cross_entropy_backward_cuda;
extern const nbl__impl nbl__adamw_cuda, nbl__grad_norm_cuda;
extern const nbl__impl nbl__offload_copy_cuda;
extern const nbl__impl nbl__adamw_cuda, nbl__grad_norm_cuda, nbl__argmax_cuda;

/* clang-format off */
#define LIST(...) (const nbl__impl *const[]) {__VA_ARGS__, NULL}

static const struct entry {
    const char *op;
    const nbl__impl *const *impls; /* best first */
} table[] = {
    {"linear",
     LIST(&nbl__linear_cuda_gemv_sm90, &nbl__linear_cuda_gemv, &nbl__linear_cuda_folded_sm90,
          &nbl__linear_cuda_cublaslt, &nbl__linear_cuda_general)},
    {"linear_backward",
     LIST(&nbl__linear_backward_cuda_folded_sm90, &nbl__linear_backward_cuda_cublaslt,
          &nbl__linear_backward_cuda_general)},
    {"linear_group",
     LIST(&nbl__linear_group_cuda_gemv_sm90, &nbl__linear_group_cuda_gemv, &nbl__linear_group_cuda_folded_sm90,
          &nbl__linear_group_cuda_cublaslt, &nbl__linear_group_cuda_general)},
    {"linear_group_backward",
     LIST(&nbl__linear_group_backward_cuda_folded_sm90, &nbl__linear_group_backward_cuda_cublaslt,
          &nbl__linear_group_backward_cuda_general)},
    {"mlp", LIST(&nbl__mlp_cuda_gemv_sm90, &nbl__mlp_cuda_gemv, &nbl__mlp_cuda_general)},
    {"mlp_backward", LIST(&nbl__mlp_backward_cuda_gemv, &nbl__mlp_backward_cuda_general)},
    {"norm_linear_group", LIST(&nbl__norm_linear_group_cuda_gemv_sm90, &nbl__norm_linear_group_cuda_apart)},
    {"norm_mlp", LIST(&nbl__norm_mlp_cuda_gemv_sm90, &nbl__norm_mlp_cuda_apart)},
    {"dora_norm", LIST(&nbl__dora_norm_cuda)},
    {"add", LIST(&nbl__add_cuda)},
    {"add_backward", LIST(&nbl__add_backward_cuda)},
    {"cast", LIST(&nbl__cast_cuda)},
    {"cast_backward", LIST(&nbl__cast_backward_cuda)},
    {"scale", LIST(&nbl__scale_cuda)},
    {"scale_backward", LIST(&nbl__scale_backward_cuda)},
    {"check_finite", LIST(&nbl__check_finite_cuda)},
    {"attention", LIST(&nbl__attention_sm90, &nbl__attention_mma, &nbl__attention_f32, &nbl__attention_cuda)},
    {"attention_backward",
     LIST(&nbl__attention_backward_sm90, &nbl__attention_backward_mma, &nbl__attention_backward_f32,
          &nbl__attention_backward_cuda)},
    {"attention_decode", LIST(&nbl__attention_decode_cuda)},
    {"attention_step", LIST(&nbl__attention_step_fast, &nbl__attention_step_cuda)},
    {"kv_write", LIST(&nbl__kv_write_cuda)},
    {"take_rows", LIST(&nbl__take_rows_cuda)},
    {"rmsnorm", LIST(&nbl__rmsnorm_cuda)},
    {"rmsnorm_backward", LIST(&nbl__rmsnorm_backward_cuda)},
    {"layernorm", LIST(&nbl__layernorm_cuda)},
    {"layernorm_backward", LIST(&nbl__layernorm_backward_cuda)},
    {"rope_table", LIST(&nbl__rope_table_cuda)},
    {"rope", LIST(&nbl__rope_cuda)},
    {"rope_backward", LIST(&nbl__rope_backward_cuda)},
    {"norm_rope", LIST(&nbl__norm_rope_cuda)},
    {"norm_rope_backward", LIST(&nbl__norm_rope_backward_cuda)},
    {"gated", LIST(&nbl__gated_cuda)},
    {"gated_backward", LIST(&nbl__gated_backward_cuda)},
    {"embedding", LIST(&nbl__embedding_cuda)},
    {"embedding_backward", LIST(&nbl__embedding_backward_cuda)},
    {"cross_entropy", LIST(&nbl__cross_entropy_cuda)},
    {"cross_entropy_backward", LIST(&nbl__cross_entropy_backward_cuda)},
    {"adamw", LIST(&nbl__adamw_cuda)},
    {"grad_norm", LIST(&nbl__grad_norm_cuda)},
    {"offload_copy", LIST(&nbl__offload_copy_cuda)},
    {"argmax", LIST(&nbl__argmax_cuda)},
    {NULL, NULL}};
/* clang-format on */

const nbl__impl *const *nbl__cuda_impls(const char *op)
{
    for (const struct entry *it = table; it->op; it++)
        if (strcmp(it->op, op) == 0) return it->impls;
    return NULL;
}

#else

const nbl__impl *const *nbl__cuda_impls(const char *op)
{
    (void)op;
    return NULL;
}

#endif
