/* expert_mlp_cpu.h - the CPU's rows of expert_mlp: those of linear_rows.h, except that int8 codes never multiply. */
#ifndef NBL_EXPERT_MLP_CPU_H
#define NBL_EXPERT_MLP_CPU_H

#include "ops/linear/cpu/linear_rows.h"
#include "ops/moe/expert_mlp.h"

#define NBL_EXPERT_ROWS_OF(X, op, direction)                                                                 \
    X(op, direction, gemv, NBL_LINEAR_ALGO_GEMV, NBL_ISA_SCALAR)                                             \
    NBL_X86(X(op, direction, amx, NBL_LINEAR_ALGO_PANELS, NBL_ISA_AMX))                                      \
    NBL_X86(X(op, direction, avx512bf16, NBL_LINEAR_ALGO_PANELS, NBL_ISA_AVX512BF16))                        \
    NBL_X86(X(op, direction, avx512, NBL_LINEAR_ALGO_PANELS, NBL_ISA_AVX512))                                \
    NBL_X86(X(op, direction, avx2, NBL_LINEAR_ALGO_PANELS, NBL_ISA_AVX2))                                    \
    X(op, direction, scalar, NBL_LINEAR_ALGO_PANELS, NBL_ISA_SCALAR)

/* What chooses the row. */
nbl__linear_traits nbl__expert_mlp_traits(const nbl__expert_mlp *a, bool backward);
/* Checks what infer cannot see: indices, and pointers of members. */
nbl_status nbl__expert_mlp_check(nbl_context *ctx, const char *op, const nbl__expert_mlp *a);

#endif
