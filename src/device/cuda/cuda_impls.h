/* cuda_impls.h - the CUDA implementations of operators: one list that declares them and fills the
 * table of cuda_impls.c.
 *
 * A line is a family, a direction and its rows, best first. The first row that accepts the
 * arguments runs. There is no reference on a device: an operator without a line, or arguments that
 * every row declines, is an error that names the operator. Rows NAME_rows copy tensors with a row
 * stride that the other rows decline (ops/common/dense_rows_cuda.c).
 *
 * WORK is a ROW that uses nbl__call_workspace: products by cuBLASLt, the counter of attention. */
#ifndef NBL_CUDA_IMPLS_H
#define NBL_CUDA_IMPLS_H

#include "ops/ops.h"

/* clang-format off */
#define NBL_CUDA_OPERATORS(OP, ROW, WORK)                                                                    \
    OP(linear, forward, ROW(linear_cuda_gemv_sm90) ROW(linear_cuda_gemv) WORK(linear_cuda_folded_sm90)       \
                        WORK(linear_cuda_cublaslt) WORK(linear_cuda_general) WORK(linear_rows))              \
    OP(linear, backward, WORK(linear_backward_cuda_folded_sm90) WORK(linear_backward_cuda_cublaslt)          \
                         WORK(linear_backward_cuda_general) WORK(linear_backward_rows))                      \
    OP(linear_group, forward, ROW(linear_group_cuda_gemv_sm90) WORK(linear_group_cuda_gemv)                  \
                              WORK(linear_group_cuda_folded_sm90) WORK(linear_group_cuda_cublaslt)           \
                              WORK(linear_group_cuda_general) WORK(linear_group_rows))                       \
    OP(linear_group, backward, WORK(linear_group_backward_cuda_folded_sm90)                                  \
                               WORK(linear_group_backward_cuda_cublaslt)                                     \
                               WORK(linear_group_backward_cuda_general) WORK(linear_group_backward_rows))    \
    OP(mlp, forward, WORK(mlp_cuda_gemv_sm90) WORK(mlp_cuda_gemv) WORK(mlp_cuda_general))                    \
    OP(mlp, backward, WORK(mlp_backward_cuda_gemv) WORK(mlp_backward_cuda_general))                          \
    OP(norm_linear_group, forward, ROW(norm_linear_group_cuda_gemv_sm90) WORK(norm_linear_group_cuda_apart)) \
    OP(norm_mlp, forward, WORK(norm_mlp_cuda_gemv_sm90) WORK(norm_mlp_cuda_apart))                           \
    OP(dora_norm, forward, ROW(dora_norm_cuda))                                                              \
    OP(add, forward, ROW(add_cuda))                                                                          \
    OP(add, backward, ROW(add_backward_cuda))                                                                \
    OP(cast, forward, ROW(cast_cuda))                                                                        \
    OP(cast, backward, ROW(cast_backward_cuda))                                                              \
    OP(scale, forward, ROW(scale_cuda))                                                                      \
    OP(scale, backward, ROW(scale_backward_cuda))                                                            \
    OP(check_finite, forward, ROW(check_finite_cuda))                                                        \
    OP(attention, forward, WORK(attention_sm90) ROW(attention_mma) ROW(attention_f32) ROW(attention_cuda) WORK(attention_rows))\
    OP(attention, backward, WORK(attention_backward_sm90) ROW(attention_backward_mma)                        \
                            ROW(attention_backward_f32) ROW(attention_backward_cuda) WORK(attention_backward_rows))\
    OP(attention_decode, forward, ROW(attention_decode_cuda))                                                \
    OP(attention_step, forward, ROW(attention_step_fast) ROW(attention_step_cuda))                           \
    OP(kv_write, forward, ROW(kv_write_cuda))                                                                \
    OP(take_rows, forward, ROW(take_rows_cuda))                                                              \
    OP(rmsnorm, forward, ROW(rmsnorm_cuda))                                                                  \
    OP(rmsnorm, backward, ROW(rmsnorm_backward_cuda))                                                        \
    OP(layernorm, forward, ROW(layernorm_cuda))                                                              \
    OP(layernorm, backward, ROW(layernorm_backward_cuda))                                                    \
    OP(rope_table, forward, ROW(rope_table_cuda))                                                            \
    OP(rope, forward, ROW(rope_cuda))                                                                        \
    OP(rope, backward, ROW(rope_backward_cuda))                                                              \
    OP(norm_rope, forward, ROW(norm_rope_cuda) ROW(norm_rope_rows))                                          \
    OP(norm_rope, backward, ROW(norm_rope_backward_cuda) ROW(norm_rope_backward_rows))                       \
    OP(gated, forward, ROW(gated_cuda))                                                                      \
    OP(gated, backward, ROW(gated_backward_cuda))                                                            \
    OP(embedding, forward, ROW(embedding_cuda))                                                              \
    OP(embedding, backward, ROW(embedding_backward_cuda))                                                    \
    OP(cross_entropy, forward, WORK(cross_entropy_cuda))                                                     \
    OP(cross_entropy, backward, WORK(cross_entropy_backward_cuda))                                           \
    OP(adamw, forward, ROW(adamw_cuda))                                                                      \
    OP(grad_norm, forward, ROW(grad_norm_cuda))                                                              \
    OP(offload_copy, forward, ROW(offload_copy_cuda))                                                        \
    OP(sigmoid_gate, forward, ROW(sigmoid_gate_cuda))                                                        \
    OP(sigmoid_gate, backward, ROW(sigmoid_gate_backward_cuda))                                              \
    OP(gated_norm, forward, ROW(gated_norm_cuda))                                                            \
    OP(gated_norm, backward, ROW(gated_norm_backward_cuda))                                                  \
    OP(split_heads, forward, ROW(split_heads_cuda))                                                          \
    OP(split_heads, backward, ROW(split_heads_backward_cuda))                                                \
    OP(short_conv, forward, ROW(short_conv_cuda))                                                            \
    OP(short_conv, backward, ROW(short_conv_backward_cuda))                                                  \
    OP(short_conv_step, forward, ROW(short_conv_step_cuda))                                                  \
    OP(gated_delta, forward, ROW(gated_delta_cuda))                                                          \
    OP(gated_delta, backward, ROW(gated_delta_backward_cuda))                                                \
    OP(gated_delta_step, forward, ROW(gated_delta_step_cuda))                                                \
    OP(argmax, forward, ROW(argmax_cuda))                                                                    \
    OP(router, forward, ROW(router_cuda))                                                                    \
    OP(router, backward, ROW(router_backward_cuda))                                                          \
    OP(expert_order, forward, ROW(expert_order_cuda))
/* clang-format on */

#define NBL_CUDA_DECLARE_ROWS(family, direction, rows) rows
#define NBL_CUDA_DECLARE_ROW(name) extern const nbl__impl nbl__##name;
NBL_CUDA_OPERATORS(NBL_CUDA_DECLARE_ROWS, NBL_CUDA_DECLARE_ROW, NBL_CUDA_DECLARE_ROW)
#undef NBL_CUDA_DECLARE_ROWS
#undef NBL_CUDA_DECLARE_ROW

/* The implementations of an operator, best first, NULL at the end. */
const nbl__impl *const *nbl__cuda_impls(const nbl__op *op);
/* Is it a row that uses nbl__call_workspace? */
bool nbl__cuda_uses_workspace(const nbl__impl *impl);

#endif
