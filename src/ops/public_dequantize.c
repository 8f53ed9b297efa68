/* public_dequantize.c - nbl_dequantize: checks, then the device of the context. */
#include "device/device.h"

nbl_status nbl_dequantize(nbl_context *ctx, const nbl_weight *weight, int64_t row_begin, int64_t row_end,
                          nbl_dtype dtype, bool transpose, void *out)
{
    const nbl__device *device = nbl__device_of(ctx);
    NBL_TRY(nbl__check_dequantize(ctx, weight, row_begin, row_end, dtype, out));
    if (row_begin == row_end || weight->shape[weight->rank - 1] == 0) return NBL_OK;
    NBL_TRY(nbl__device_begin(ctx, device));
    nbl_status status = device->dequantize(ctx, weight, row_begin, row_end, dtype, transpose, out);
    return nbl__device_end(ctx, device, "dequantize", status);
}
