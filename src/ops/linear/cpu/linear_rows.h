/* linear_rows.h - the CPU's rows of linear, linear_group and mlp: the algorithms of their
 * products.
 *
 *   gemv     at most 8 rows of x: weights are read where they lie, packed or not (gemv.h)
 *   int8     codes of LLM.int8 multiply as integers (gemm_int8.h), everything else in panels
 *   others   panels, multiplied by the micro-kernels of one instruction set (gemm_kernels.h)
 *
 * gemv and int8 use the instruction set of the context. All rows share the code of
 * linear_fused.h, which gets the row's algorithm and chooses nothing itself. */
#ifndef NBL_LINEAR_ROWS_H
#define NBL_LINEAR_ROWS_H

#include "ops/gemm/cpu/gemm.h"

typedef enum nbl__linear_algo {
    NBL_LINEAR_ALGO_GEMV,
    NBL_LINEAR_ALGO_INT8,
    NBL_LINEAR_ALGO_PANELS
} nbl__linear_algo;

/* The rows, best first: X(operator, direction, variant, kind, instruction set). */
#define NBL_LINEAR_ROWS(X, op, direction)                                                                    \
    X(op, direction, gemv, NBL_LINEAR_ALGO_GEMV, NBL_ISA_SCALAR)                                             \
    X(op, direction, int8, NBL_LINEAR_ALGO_INT8, NBL_ISA_SCALAR)                                             \
    NBL_X86(X(op, direction, amx, NBL_LINEAR_ALGO_PANELS, NBL_ISA_AMX))                                      \
    NBL_X86(X(op, direction, avx512bf16, NBL_LINEAR_ALGO_PANELS, NBL_ISA_AVX512BF16))                        \
    NBL_X86(X(op, direction, avx512, NBL_LINEAR_ALGO_PANELS, NBL_ISA_AVX512))                                \
    NBL_X86(X(op, direction, avx2, NBL_LINEAR_ALGO_PANELS, NBL_ISA_AVX2))                                    \
    X(op, direction, scalar, NBL_LINEAR_ALGO_PANELS, NBL_ISA_SCALAR)

/* What decides between the rows. */
typedef struct nbl__linear_traits {
    nbl_dtype dtype;
    int64_t tokens;
    bool backward;
    bool codes;   /* a layer multiplies int8 codes */
    bool outputs; /* a product has rows of x on its left: an output, or t of an adapter */
} nbl__linear_traits;

/* Why the row declines; NULL: it takes the call. */
const char *nbl__linear_row_can(nbl__linear_algo kind, nbl_isa isa, const nbl__linear_traits *traits);
nbl__gemm_algo nbl__linear_row_algo(const nbl_context *ctx, nbl__linear_algo kind, nbl_isa isa);

/* Defines the row nbl__OP_VARIANT. The file has, for each direction, the functions
 *
 *   nbl__linear_traits DIRECTION_traits(arguments)
 *   size_t DIRECTION_scratch(ctx, algo, arguments)
 *   nbl_status DIRECTION_run(call, algo, arguments) */
#define NBL_LINEAR_ROW(op, direction, variant, kind, isa)                                                    \
    static const char *direction##_can_##variant(const nbl_context *ctx, const void *arguments)              \
    {                                                                                                        \
        nbl__linear_traits traits = direction##_traits(arguments);                                           \
        (void)ctx;                                                                                           \
        return nbl__linear_row_can(kind, isa, &traits);                                                      \
    }                                                                                                        \
    static size_t direction##_scratch_##variant(const nbl_context *ctx, const void *arguments)               \
    {                                                                                                        \
        return direction##_scratch(ctx, nbl__linear_row_algo(ctx, kind, isa), arguments);                    \
    }                                                                                                        \
    static nbl_status direction##_run_##variant(const nbl__call *call, const void *arguments)                \
    {                                                                                                        \
        return direction##_run(call, nbl__linear_row_algo(call->ctx, kind, isa), arguments);                 \
    }                                                                                                        \
    const nbl__impl nbl__##op##_##variant = {#op "_" #variant, isa, direction##_can_##variant,               \
                                             direction##_scratch_##variant, direction##_run_##variant};

/* For the list of an operator's rows. */
#define NBL_LINEAR_ROW_DECLARATION(op, direction, variant, kind, isa) NBL_IMPL_DECLARATION(op##_##variant)
#define NBL_LINEAR_ROW_ADDRESS(op, direction, variant, kind, isa) NBL_IMPL_ADDRESS(op##_##variant)

#endif
