/* linear_rows.c - which row takes a call. See linear_rows.h. */
#include "ops/linear/cpu/linear_rows.h"

#include "ops/gemm/cpu/gemm_kernels.h"
#include "ops/gemv/cpu/gemv.h"

/* Panels of this instruction set, if it has a micro-kernel of its own for the call. The products
 * of backward have other numbers of rows than x: parameters' gradients have as many as their
 * parameters. */
static const char *panels_can(nbl_isa isa, const nbl__linear_traits *traits)
{
    if (traits->codes) return "int8 codes multiply as integers";
    int64_t rows = traits->backward ? INT64_MAX : traits->tokens;
    if (nbl__gemm_kernel_for(isa, traits->dtype, rows)->needs == isa) return NULL;
    return nbl__gemm_kernel_for(isa, traits->dtype, INT64_MAX)->needs == isa
               ? "too few rows"
               : "no faster here for this dtype than the instruction set below";
}

const char *nbl__linear_row_can(nbl__linear_algo kind, nbl_isa isa, const nbl__linear_traits *traits)
{
    switch (kind) {
    case NBL_LINEAR_ALGO_GEMV:
        if (traits->tokens > NBL_MAX_GEMV_ROWS) return "more than 8 rows";
        return traits->outputs ? NULL : "no product with rows of x";
    case NBL_LINEAR_ALGO_INT8: return traits->codes ? NULL : "no int8 codes to multiply";
    default: return panels_can(isa, traits);
    }
}

nbl__gemm_algo nbl__linear_row_algo(const nbl_context *ctx, nbl__linear_algo kind, nbl_isa isa)
{
    return (nbl__gemm_algo){.isa = kind == NBL_LINEAR_ALGO_PANELS ? isa : nbl__isa(ctx),
                            .gemv = kind == NBL_LINEAR_ALGO_GEMV};
}
