/* sequences.h - packed sequences: sequence s owns the rows cu_seqlens[s] … cu_seqlens[s + 1] - 1,
 * possibly none. */
#ifndef NBL_SEQUENCES_H
#define NBL_SEQUENCES_H

#include "ops/ops.h"

/* infer: cu_seqlens is a vector of i32 with at least one element. */
nbl_status nbl__check_cu_seqlens(nbl_context *ctx, const char *op, const nbl_tensor *cu_seqlens);
/* run: what only the data shows. cu_seqlens begins at 0, does not decrease, and ends at the rows of
 * the tensor `name`. */
nbl_status nbl__check_packing(const nbl__call *call, const nbl_tensor *cu_seqlens, const char *name,
                                int64_t rows);
/* The sequence that owns a row. cu_seqlens has been checked. */
int64_t nbl__sequence_of(const nbl_tensor *cu_seqlens, int64_t row);

static inline int64_t nbl__sequence_count(const nbl_tensor *cu_seqlens)
{
    return cu_seqlens->shape[0] - 1;
}

#endif
