/* bindings_quantize.c - quantize: a dense weight to the tensors that a checkpoint would hold for
 * it, under the names that run_weight reads. So the output of one file can be the input of
 * another. */
#include "format/hf/bnb_state.h"
#include "run.h"

#include <stdio.h>

/* One part of the state of y, filled from memory. */
static nbl_status put_part(run *r, const char *end, nbl_dtype dtype, int rank, const int64_t *shape,
                           const void *from)
{
    char name[64];
    nbl_tensor out = {.dtype = dtype, .rank = rank};
    uint64_t bytes;
    snprintf(name, sizeof name, "y%s", end);
    memcpy(out.shape, shape, (size_t)rank * sizeof *shape);
    NBL_TRY(run_output(r, name, &out));
    nbl__dtype_bytes(dtype, (uint64_t)nbl__tensor_elements(&out), &bytes);
    if (bytes) memcpy(out.data, from, bytes);
    return NBL_OK;
}

/* A part that is a vector. */
static nbl_status put_vector(run *r, const char *end, nbl_dtype dtype, int64_t n, const void *from)
{
    return put_part(r, end, dtype, 1, &n, from);
}

/* The quantization state of nf4 and fp4, as JSON in a tensor of bytes. */
static nbl_status put_state(run *r, const nbl_weight *w, int64_t elements)
{
    char end[64];
    nbl__bnb_json state = {.format = w->format,
                           .dtype = w->dtype,
                           .block = w->block,
                           .rank = w->rank,
                           .elements = elements,
                           .nested = w->nested_scales != NULL,
                           .nested_block = w->nested_block,
                           .nested_offset = w->nested_offset};
    memcpy(state.shape, w->shape, sizeof state.shape);
    snprintf(end, sizeof end, ".quant_state.bitsandbytes__%s", nbl_format_name(w->format));
    nbl__text text = {.ctx = r->ctx};
    nbl__bnb_json_print(&text, &state);
    nbl_status status = text.status;
    if (status == NBL_OK) status = put_vector(r, end, NBL_DTYPE_U8, (int64_t)text.size, text.text);
    nbl__text_free(&text);
    return status;
}

/* Codes, table, scales and state of an nf4 or fp4 weight. */
static nbl_status put_fourbit(run *r, const nbl_weight *w, int64_t elements)
{
    int64_t blocks = nbl__ceil_div(elements, w->block), packed[2] = {nbl__ceil_div(elements, 2), 1};
    float map[16]; /* the stored FP4 table has +0 where the decoder has -0: so does upstream's */
    for (int i = 0; i < 16; i++)
        map[i] = (w->format == NBL_FORMAT_NF4 ? nbl__nf4_table : nbl__fp4_table)[i] + 0.0f;
    NBL_TRY(put_part(r, "", NBL_DTYPE_U8, 2, packed, w->data));
    NBL_TRY(put_vector(r, ".quant_map", NBL_DTYPE_F32, 16, map));
    if (w->nested_scales) {
        int64_t groups = nbl__ceil_div(blocks, w->nested_block);
        NBL_TRY(put_vector(r, ".absmax", NBL_DTYPE_U8, blocks, w->scale_codes));
        NBL_TRY(put_vector(r, ".nested_absmax", NBL_DTYPE_F32, groups, w->nested_scales));
        NBL_TRY(put_vector(r, ".nested_quant_map", NBL_DTYPE_F32, 256, w->nested_table));
    } else {
        NBL_TRY(put_vector(r, ".absmax", NBL_DTYPE_F32, blocks, w->scales));
    }
    return put_state(r, w, elements);
}

/* All parts of a weight, by its format. */
static nbl_status put_weight(run *r, const nbl_weight *w, int64_t elements)
{
    if (w->format == NBL_FORMAT_INT8) {
        NBL_TRY(put_part(r, "", NBL_DTYPE_I8, w->rank, w->shape, w->data));
        return put_vector(r, ".SCB", NBL_DTYPE_F32, w->shape[0], w->scales);
    }
    if (w->format == NBL_FORMAT_MXFP4) {
        const int64_t shape[3] = {w->shape[0], w->shape[1] / 32, 16};
        NBL_TRY(put_part(r, "_blocks", NBL_DTYPE_U8, 3, shape, w->data));
        return put_part(r, "_scales", NBL_DTYPE_U8, 2, shape, w->scale_codes);
    }
    return put_fourbit(r, w, elements);
}

/* Memory for a part while it is quantized; the outputs are copies in their final shape. */
static nbl_status part_memory(run *r, size_t bytes, nbl_tensor *memory)
{
    *memory = (nbl_tensor){.dtype = NBL_DTYPE_U8, .rank = 1, .shape = {(int64_t)bytes}};
    return run_memory(r, "a part of y", memory);
}

nbl_status bind_quantize(run *r)
{
    const char *format;
    double block;
    bool nested;
    nbl_tensor w, data, scales, codes, nested_scales;
    NBL_TRY(run_word(r, "format", "nf4", &format));
    NBL_TRY(run_integer(r, "block", 0, 0, &block));
    NBL_TRY(run_flag(r, "nested", false, &nested));
    NBL_TRY(run_tensor(r, "w", &w));
    nbl_quantize_options options = {NBL_OPTIONS(nbl_quantize_options), .block = (int64_t)block,
                                    .nested = nested};
    NBL_CHECK(r->ctx, nbl_format_parse(format, &options.format), NBL_ERROR_ARGUMENT,
              "quantize: attribute format is \"%s\", not nf4, fp4, int8 or mxfp4", format);
    bool rows = options.format == NBL_FORMAT_INT8 || options.format == NBL_FORMAT_MXFP4;
    NBL_CHECK(r->ctx, w.rank == 2 || !rows, NBL_ERROR_SHAPE, "quantize: w is %s, %s needs a matrix [out, in]",
              nbl__show_shape(w.rank, w.shape).text, format);
    nbl_quantized_sizes sizes;
    NBL_TRY(nbl_quantize_sizes(r->ctx, &options, w.rank, w.shape, &sizes));
    NBL_TRY(part_memory(r, sizes.data, &data));
    NBL_TRY(part_memory(r, sizes.scales, &scales));
    NBL_TRY(part_memory(r, sizes.scale_codes, &codes));
    NBL_TRY(part_memory(r, sizes.nested_scales, &nested_scales));
    nbl_quantized_parts parts = {data.data, scales.data, codes.data, nested_scales.data};
    nbl_weight made;
    r->impl = "quantize";
    NBL_TRY(nbl_quantize(r->ctx, &options, w.dtype, w.rank, w.shape, w.data, &parts, &made));
    return put_weight(r, &made, nbl__tensor_elements(&w));
}
