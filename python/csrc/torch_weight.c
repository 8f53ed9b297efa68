/* torch_weight.c - the groups of arguments that make a packed weight and an adapter.
 *
 * The memory of every part is compared with what the shape needs, and its dtype with what it must be.
 * model.to(dtype) casts floating-point tensors, and with them scales and packed weights that are stored as
 * bf16, f16 or f32. Such a weight would compute nonsense. */
#include "torch_call.h"

#include <float.h>
#include <inttypes.h>
#include <string.h>

static int64_t bytes_of_element(nbl_dtype dtype)
{
    switch (dtype) {
    case NBL_DTYPE_F64:
    case NBL_DTYPE_I64: return 8;
    case NBL_DTYPE_F32:
    case NBL_DTYPE_I32: return 4;
    case NBL_DTYPE_F16:
    case NBL_DTYPE_BF16:
    case NBL_DTYPE_I16: return 2;
    default: return 1;
    }
}

/* Packed codes are bytes, in whatever dtype bitsandbytes stores them. More bytes than the shape needs come
 * from a cast. */
static void check_data(torch_call *c, const char *part, const nbl_weight *w, const nbl_tensor *data)
{
    int64_t n, size = bytes_of_element(data->dtype), bytes = call_elements(data) * size;
    if (c->failed || data->data == NULL || w->shape[0] < 0 || w->shape[1] < 0 ||
        __builtin_mul_overflow(w->shape[0], w->shape[1], &n) || n > INT64_MAX / 16)
        return; /* nibble refuses the shape itself */
    bool bytewise = data->dtype == NBL_DTYPE_U8 || data->dtype == NBL_DTYPE_I8, fits = true;
    int64_t needed = 0;
    switch (w->format) {
    case NBL_FORMAT_DENSE: needed = n * size; break;
    case NBL_FORMAT_NF4:
    case NBL_FORMAT_FP4:
        fits = bytewise || data->dtype == NBL_DTYPE_BF16 || data->dtype == NBL_DTYPE_F16 ||
               data->dtype == NBL_DTYPE_F32;
        needed = (n + 1) / 2;
        break;
    case NBL_FORMAT_INT8:
        fits = bytewise;
        needed = n;
        break;
    case NBL_FORMAT_MXFP4:
        fits = bytewise;
        needed = n / 2;
        break;
    default: return;
    }
    if (!fits)
        call_fail(c, "data%s is %s, which does not store %s", part, nbl_dtype_name(data->dtype),
                  nbl_format_name(w->format));
    else if (bytes < needed || bytes - needed >= size)
        call_fail(c,
                  "data%s has %" PRId64 " bytes of %s, %s of shape [%" PRId64 ", %" PRId64 "] takes %" PRId64
                  "%s",
                  part, bytes, nbl_dtype_name(data->dtype), nbl_format_name(w->format), w->shape[0],
                  w->shape[1], needed, bytes > needed ? ". Was the packed weight cast with .to(dtype)?" : "");
}

static const uint8_t *scale_codes_of(torch_call *c, const char *part, const nbl_tensor *codes)
{
    if (codes->data && codes->dtype != NBL_DTYPE_U8)
        call_fail(c, "codes%s is %s, not u8", part, nbl_dtype_name(codes->dtype));
    return codes->data;
}

nbl_weight call_weight(torch_call *c, const char *part)
{
    nbl_weight w = {.dtype = NBL_DTYPE_BF16, .rank = 2};
    nbl_tensor data = call_part(c, "data", part);
    nbl_tensor scales = call_part(c, "scales", part);
    nbl_tensor codes = call_part(c, "codes", part);
    nbl_tensor nested = call_part(c, "nested", part);
    nbl_tensor table = call_part(c, "table", part);
    nbl_tensor offset = call_part(c, "offset", part);
    int64_t format = call_int(c);
    w.block = call_int(c);
    w.nested_block = call_int(c);
    w.shape[0] = call_int(c);
    w.shape[1] = call_int(c);
    if (format < 0 || format > NBL_FORMAT_MXFP4)
        call_fail(c, "format%s is %" PRId64 ", allowed are 0 to %d", part, format, (int)NBL_FORMAT_MXFP4);
    if (c->failed) return w;
    w.format = (nbl_format)format;
    if (w.format == NBL_FORMAT_DENSE) w.dtype = data.data ? data.dtype : NBL_DTYPE_F32;
    check_data(c, part, &w, &data);
    if (scales.data && nested.data) call_fail(c, "scales%s and nested%s exclude each other", part, part);
    w.data = data.data;
    w.scales = scales.data;
    w.scale_codes = scale_codes_of(c, part, &codes);
    w.nested_scales = nested.data;
    w.nested_table = table.data;
    w.given = (nbl_weight_parts){
        .data_bytes = (uint64_t)(call_elements(&data) * bytes_of_element(data.dtype)),
        .scales = call_elements(&scales),
        .scale_codes = call_elements(&codes),
        .nested_scales = call_elements(&nested),
        .nested_table = call_elements(&table),
        .scales_dtype = scales.dtype,
        .nested_scales_dtype = nested.dtype,
        .nested_table_dtype = table.dtype};
    if (offset.data == NULL) return w;
    if (offset.dtype != NBL_DTYPE_F32 || call_elements(&offset) != 1)
        call_fail(c, "offset%s has %" PRId64 " elements of %s, one of f32 was expected", part,
                  call_elements(&offset), nbl_dtype_name(offset.dtype));
    else if (call_on_cuda(c)) w.nested_offset_at = offset.data; /* read when the kernel runs */
    else memcpy(&w.nested_offset, offset.data, sizeof w.nested_offset);
    return w;
}

void call_adapter(torch_call *c, const char *part, nbl_linear *layer)
{
    layer->bias = call_part(c, "bias", part);
    layer->lora_a = call_part(c, "lora_a", part);
    layer->lora_b = call_part(c, "lora_b", part);
    layer->magnitude = call_part(c, "magnitude", part);
    layer->norm = call_part(c, "norm", part);
    layer->scale = (float)call_float(c);
}

void call_own_scale(nbl_linear *member)
{
    /* The smallest f32 changes no result. */
    if (member->scale == 0) member->scale = FLT_TRUE_MIN;
}

void call_options(torch_call *c, nbl_linear *layer, bool adapted)
{
    layer->dropout = (float)call_float(c);
    layer->seeds = call_tensor(c, "seed");
    layer->threshold = (float)call_float(c);
    layer->dequantized = layer->threshold < 0;
    if (layer->dropout != 0 && adapted && layer->seeds.data == NULL)
        call_fail(c, "dropout %g without a seed: hand in a tensor of one i64", (double)layer->dropout);
    if (layer->dropout == 0) layer->seeds = (nbl_tensor){0};
}

void call_adapter_gradients(torch_call *c, nbl_linear *layer, int64_t wanted)
{
    const nbl_tensor *of[] = {&layer->bias, &layer->lora_a, &layer->lora_b, &layer->magnitude};
    nbl_tensor *gradients[] = {&layer->dbias, &layer->dlora_a, &layer->dlora_b, &layer->dmagnitude};
    for (int i = 0; i < 4; i++) {
        *gradients[i] = call_shape_of(of[i], NBL_DTYPE_F32);
        call_output_if(c, gradients[i], of[i]->data && wanted >> i & 1);
    }
}
