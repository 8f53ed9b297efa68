/* op_quantize.c - nibble::dequantize and nibble::quantize. */
#include "torch_call.h"

#include <string.h>

void op_dequantize(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    (void)inputs, (void)outputs;
    call_begin(&c, "dequantize", stack);
    nbl_weight w = call_weight(&c, "");
    nbl_dtype dtype = call_dtype(&c);
    bool transpose = call_bool(&c);
    nbl_tensor y = nbl_matrix(dtype, w.shape[transpose], w.shape[!transpose], NULL);
    if (w.shape[0] < 0 || w.shape[1] < 0) call_fail(&c, "rows and columns must not be negative");
    nbl_context *ctx = call_context(&c);
    call_output(&c, &y);
    if (!c.failed) call_status(&c, nbl_dequantize(ctx, &w, 0, w.shape[0], dtype, transpose, y.data));
    call_end(&c);
}

/* An output for `bytes` bytes of a part; absent if there are none. */
static void *part_output(torch_call *c, size_t bytes, nbl_dtype dtype)
{
    nbl_tensor part = nbl_vector(dtype, (int64_t)(dtype == NBL_DTYPE_F32 ? bytes / 4 : bytes), NULL);
    call_output(c, &part);
    return bytes > 0 ? part.data : NULL;
}

void op_quantize(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    nbl_quantized_sizes sizes = {0};
    nbl_weight w;
    (void)inputs, (void)outputs;
    call_begin(&c, "quantize", stack);
    nbl_tensor values = call_activation(&c, "values");
    nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options)};
    how.format = (nbl_format)call_int(&c);
    how.block = call_int(&c);
    how.nested = (nbl_nested)call_int(&c);
    nbl_context *ctx = call_context(&c);
    if (!c.failed) call_status(&c, nbl_quantize_sizes(ctx, &how, values.rank, values.shape, &sizes));
    bool nested = how.nested != NBL_NESTED_NONE;
    nbl_quantized_parts parts = {0};
    parts.data = part_output(&c, sizes.data, how.format == NBL_FORMAT_INT8 ? NBL_DTYPE_I8 : NBL_DTYPE_U8);
    /* with nested scales the f32 scales are scratch */
    float *scales = part_output(&c, nested ? 0 : sizes.scales, NBL_DTYPE_F32);
    parts.scales = nested ? call_scratch(&c, sizes.scales) : scales;
    parts.scale_codes = part_output(&c, sizes.scale_codes, NBL_DTYPE_U8);
    parts.nested_scales = part_output(&c, sizes.nested_scales, NBL_DTYPE_F32);
    float *table = part_output(&c, nested ? 256 * sizeof(float) : 0, NBL_DTYPE_F32);
    float *offset = part_output(&c, nested ? sizeof(float) : 0, NBL_DTYPE_F32);
    if (!c.failed)
        call_status(
            &c, nbl_quantize(ctx, &how, values.dtype, values.rank, values.shape, values.data, &parts, &w));
    if (!c.failed && nested) {
        memcpy(table, w.nested_table, 256 * sizeof(float));
        *offset = w.nested_offset;
    }
    call_end(&c);
}
