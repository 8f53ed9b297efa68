/* sequences.c - checks of packed sequences. See sequences.h. */
#include "ops/common/sequences.h"

nbl_status nbl__check_cu_seqlens(nbl_context *ctx, const char *op, const nbl_tensor *cu_seqlens)
{
    NBL_TRY(nbl__check_dtype(ctx, op, "cu_seqlens", cu_seqlens, NBL_DTYPE_I32));
    NBL_CHECK(ctx, cu_seqlens->rank == 1, NBL_ERROR_SHAPE, "%s: cu_seqlens is %s, not a vector", op,
              nbl__show_shape(cu_seqlens->rank, cu_seqlens->shape).text);
    NBL_CHECK(ctx, cu_seqlens->shape[0] >= 1, NBL_ERROR_SHAPE, "%s: cu_seqlens is empty", op);
    return NBL_OK;
}

nbl_status nbl__check_packing(const nbl__call *call, const nbl_tensor *cu_seqlens, const char *name,
                                int64_t rows)
{
    const int32_t *at = cu_seqlens->data;
    int64_t last = cu_seqlens->shape[0] - 1;
    NBL_CHECK(call->ctx, at[0] == 0, NBL_ERROR_ARGUMENT, "%s: cu_seqlens[0] is %" PRId32 ", not 0", call->op,
              at[0]);
    for (int64_t i = 1; i <= last; i++)
        NBL_CHECK(call->ctx, at[i] >= at[i - 1], NBL_ERROR_ARGUMENT,
                  "%s: cu_seqlens[%" PRId64 "] is %" PRId32 ", less than the %" PRId32 " before it", call->op,
                  i, at[i], at[i - 1]);
    NBL_CHECK(call->ctx, at[last] == rows, NBL_ERROR_ARGUMENT,
              "%s: cu_seqlens[%" PRId64 "] is %" PRId32 ", not the %" PRId64 " rows of %s", call->op, last,
              at[last], rows, name);
    return NBL_OK;
}

int64_t nbl__sequence_of(const nbl_tensor *cu_seqlens, int64_t row)
{
    const int32_t *at = cu_seqlens->data;
    int64_t low = 0, high = cu_seqlens->shape[0] - 1; /* at[low] <= row < at[high] */
    assert(row >= 0 && row < at[high]);
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (at[middle] <= row) low = middle;
        else high = middle;
    }
    return low;
}
