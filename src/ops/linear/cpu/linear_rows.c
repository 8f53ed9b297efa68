/* linear_rows.c - which row takes a call. See linear_rows.h. */
#include "ops/linear/cpu/linear_rows.h"

#include "ops/gemm/cpu/gemm_kernels.h"
#include "ops/gemv/cpu/gemv.h"

/* Panels of this instruction set, if it has a micro-kernel of its own for the call. The products
 * of backward have other numbers of rows than x: parameters' gradients have as many as their
 * parameters. */
static const char *panels_can(nbl_isa isa, const nbl__linear_asks *asks)
{
    if (asks->codes) return "int8 codes multiply as integers";
    int64_t rows = asks->backward ? INT64_MAX : asks->tokens;
    if (nbl__kernel_for(isa, asks->dtype, rows)->needs == isa) return NULL;
    return nbl__kernel_for(isa, asks->dtype, INT64_MAX)->needs == isa
               ? "too few rows"
               : "no faster here for this dtype than the instruction set below";
}

const char *nbl__linear_row_can(nbl__linear_row_kind kind, nbl_isa isa, const nbl__linear_asks *asks)
{
    switch (kind) {
    case NBL_ROW_GEMV:
        if (asks->tokens > NBL_GEMV_MAX_ROWS) return "more than 8 rows";
        return asks->outputs ? NULL : "no product with rows of x";
    case NBL_ROW_INT8: return asks->codes ? NULL : "no int8 codes to multiply";
    default: return panels_can(isa, asks);
    }
}

nbl__gemm_way nbl__linear_row_way(const nbl_context *ctx, nbl__linear_row_kind kind, nbl_isa isa)
{
    return (nbl__gemm_way){.isa = kind == NBL_ROW_PANELS ? isa : nbl__isa(ctx), .gemv = kind == NBL_ROW_GEMV};
}
