/* encode.c - quantizes one weight to nf4, fp4, int8 or mxfp4. See encode.h.
 *
 * A team of threads encodes span by span: mapped values ─▶ codes in a worker's buffer ─▶ the file.
 * The scales of nf4, fp4 and int8 are collected for the whole weight and written at the end; mxfp4
 * writes them with the codes.
 *
 *     entries   nf4, fp4   see format/hf/bnb_state.h
 *               int8       M.weight (I8), M.SCB (F32 row scales), M.weight_format (U8, 0: row-major)
 *               mxfp4      W_blocks, W_scales */
#include "convert/encode.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#include "format/hf/bnb_state.h"

/* Shared by the workers of one weight. */
typedef struct job {
    nbl__conversion *v;
    const nbl_tensor_info *tensor;
    const nbl_quantize_options *options;
    const nbl__encoded *to; /* numbers of the entries */
    int64_t elements, span; /* span: elements per item */
    int64_t expert;         /* mxfp4: index of the current expert */
    float *scales;          /* for the whole weight */
    nbl__buffers buffers;
    nbl__non_finite non_finite;
} job;

/* The address of an element of the source, which is dense. */
static const uint8_t *values_at(const job *j, int64_t element)
{
    return (const uint8_t *)j->tensor->weight.data + (size_t)element * nbl__size_of(j->tensor->weight.dtype);
}

/* Runs a task over all spans of the weight, with a buffer of `bytes` per worker. */
static nbl_status run_team(job *j, int64_t items, size_t bytes, nbl__team_fn fn)
{
    return nbl__run_spans(j->v->ctx, items, bytes, fn, j, &j->buffers, j->tensor->name);
}

static const char no_f16[] = "are not finite in f16, through which int8 goes";

/* Counts the span's input bytes as progress and drops their pages. */
static void span_done(job *j, int64_t begin, int64_t end)
{
    uint64_t bytes = (uint64_t)(end - begin) * nbl__size_of(j->tensor->weight.dtype);
    nbl__checkpoint_drop(j->v->checkpoint, values_at(j, begin), bytes);
    nbl__progress_add(j->v->ctx, bytes);
}

/* ---- nf4, fp4 ---- */

enum { STATE_LIMIT = 512 }; /* bytes of a state's JSON, at most */

/* Declares a vector under the weight's name with an ending. */
static nbl_status declare_part(nbl__conversion *v, int64_t group, const char *name, const char *end,
                               nbl_dtype dtype, int64_t elements, int64_t *number)
{
    const char *full = nbl__arena_printf(&v->checkpoint->arena, "%s%s", name, end);
    if (full == NULL) return NBL_ERROR_MEMORY;
    return nbl__safetensors_writer_declare(v->writer, group, full, dtype, 1, &elements, number);
}

/* The quantization state of a 4-bit weight, as bitsandbytes stores it in JSON. */
static nbl__bnb_json state_of(const nbl_tensor_info *t, const nbl_quantize_options *o, float offset)
{
    nbl__bnb_json state = {.format = o->format,
                           .dtype = t->weight.dtype,
                           .block = o->block,
                           .rank = t->rank,
                           .elements = nbl__elements(t),
                           .nested = o->nested,
                           .nested_block = NBL_NESTED_BLOCK,
                           .nested_offset = offset};
    memcpy(state.shape, t->shape, sizeof state.shape);
    return state;
}

/* Declares the entries of a 4-bit weight. With nested scales the length of the state's JSON depends
 * on the offset, which is not known yet: a late entry. */
static nbl_status declare_fourbit(nbl__conversion *v, int64_t group, const nbl_tensor_info *t,
                                  const nbl_quantize_options *o, nbl__encoded *e)
{
    int64_t n = nbl__elements(t), blocks = nbl__ceil_div(n, o->block), packed[2] = {nbl__ceil_div(n, 2), 1};
    NBL_TRY(nbl__safetensors_writer_declare(v->writer, group, t->name, NBL_DTYPE_U8, 2, packed, &e->data));
    nbl_dtype scale = o->nested ? NBL_DTYPE_U8 : NBL_DTYPE_F32;
    NBL_TRY(declare_part(v, group, t->name, ".absmax", scale, blocks, &e->scales));
    NBL_TRY(declare_part(v, group, t->name, ".quant_map", NBL_DTYPE_F32, 16, &e->map));
    if (o->nested) {
        int64_t groups = nbl__ceil_div(blocks, NBL_NESTED_BLOCK);
        NBL_TRY(declare_part(v, group, t->name, ".nested_absmax", NBL_DTYPE_F32, groups, &e->nested_scales));
        NBL_TRY(declare_part(v, group, t->name, ".nested_quant_map", NBL_DTYPE_F32, 256, &e->nested_map));
    }
    const char *name = nbl__arena_printf(&v->checkpoint->arena, "%s.quant_state.bitsandbytes__%s", t->name,
                                         nbl_format_name(o->format));
    if (name == NULL) return NBL_ERROR_MEMORY;
    if (o->nested)
        return nbl__safetensors_writer_declare_late(v->writer, group, name, STATE_LIMIT, &e->state);
    nbl__bnb_json state = state_of(t, o, 0);
    nbl__text text = {.ctx = v->ctx};
    nbl__bnb_json_print(&text, &state);
    int64_t size = (int64_t)text.size;
    nbl_status status = text.status;
    nbl__text_free(&text);
    NBL_TRY(status);
    return nbl__safetensors_writer_declare(v->writer, group, name, NBL_DTYPE_U8, 1, &size, &e->state);
}

/* Thread task: encodes one span of whole blocks; scales go to j->scales. */
static nbl_status encode_fourbit(void *argument, int64_t item, int worker)
{
    job *j = argument;
    int64_t begin = item * j->span, end = nbl__min_i64(begin + j->span, j->elements), n = end - begin;
    uint8_t *codes = nbl__buffer_of(&j->buffers, worker);
    nbl_dtype dtype = j->tensor->weight.dtype;
    nbl__file_need(values_at(j, begin), (uint64_t)n * nbl__size_of(dtype));
    int64_t bad = nbl__fourbit_encode(nbl__isa(j->v->ctx), j->options->format, j->options->block, dtype,
                                      values_at(j, begin), n, codes, j->scales + begin / j->options->block);
    if (bad) nbl__non_finite_list(&j->non_finite, dtype, values_at(j, begin), n, begin, 1, FLT_MAX);
    NBL_TRY(nbl__safetensors_writer_write(j->v->writer, j->to->data, codes, (size_t)nbl__ceil_div(n, 2),
                                          (uint64_t)begin / 2));
    span_done(j, begin, end);
    return NBL_OK;
}

/* Quantizes the scales to 8-bit codes (double quantization) and writes codes, nested scales and
 * table. *offset: the mean that was subtracted from the scales. */
static nbl_status write_nested(job *j, int64_t blocks, float *offset)
{
    nbl_context *ctx = j->v->ctx;
    nbl__safetensors_writer *w = j->v->writer;
    int64_t groups = nbl__ceil_div(blocks, NBL_NESTED_BLOCK);
    /* the mean of all scales would be NaN: report the value itself */
    if (!j->v->allow_non_finite)
        NBL_TRY(nbl__non_finite_report(j->v, j->tensor->name, &j->non_finite, "are not finite"));
    *offset = nbl__nested_offset(j->scales, blocks);
    NBL_CHECK(ctx, isfinite(*offset), NBL_ERROR_UNSUPPORTED,
              "tensor \"%s\": it holds an infinity, which would spoil all its double-quantized scales",
              j->tensor->name);
    uint8_t *codes;
    float *nested;
    NBL_TRY(NBL_ALLOC(ctx, codes, blocks));
    nbl_status status = NBL_OK;
    NBL_GO(NBL_ALLOC(ctx, nested, groups));
    nbl__nested_encode(nbl__isa(ctx), false, j->scales, blocks, *offset, codes, nested);
    status = nbl__safetensors_writer_write(w, j->to->scales, codes, (size_t)blocks, 0);
    if (status == NBL_OK)
        status = nbl__safetensors_writer_write(w, j->to->nested_scales, nested, (size_t)groups * 4, 0);
    if (status == NBL_OK)
        status = nbl__safetensors_writer_write(w, j->to->nested_map, nbl__dynamic_map_signed, 256 * 4, 0);
    nbl__free(ctx, nested, (size_t)groups * sizeof *nested);
done:
    nbl__free(ctx, codes, (size_t)blocks);
    return status;
}

/* Writes the state's JSON. Its size was reserved, or declared, before. */
static nbl_status write_state(job *j, float offset)
{
    nbl__bnb_json state = state_of(j->tensor, j->options, offset);
    nbl__text text = {.ctx = j->v->ctx};
    nbl__bnb_json_print(&text, &state);
    nbl_status status = text.status;
    if (status == NBL_OK) {
        assert(text.size <= STATE_LIMIT);
        status = j->options->nested
                     ? nbl__safetensors_writer_write_late(j->v->writer, j->to->state, text.text, text.size)
                     : nbl__safetensors_writer_write(j->v->writer, j->to->state, text.text, text.size, 0);
    }
    nbl__text_free(&text);
    return status;
}

/* Writes all entries of an nf4 or fp4 weight. */
static nbl_status write_fourbit(job *j)
{
    nbl_context *ctx = j->v->ctx;
    int64_t blocks = nbl__ceil_div(j->elements, j->options->block);
    NBL_TRY(NBL_ALLOC(ctx, j->scales, blocks));
    nbl_status status = NBL_OK;
    float offset = 0, map[16];
    j->span = nbl__span_size(j->options->block, (int64_t)nbl__size_of(j->tensor->weight.dtype));
    int64_t longest = nbl__min_i64(j->span, j->elements);
    NBL_GO(
        run_team(j, nbl__ceil_div(j->elements, j->span), (size_t)nbl__ceil_div(longest, 2), encode_fourbit));
    if (j->options->nested) NBL_GO(write_nested(j, blocks, &offset));
    else NBL_GO(nbl__safetensors_writer_write(j->v->writer, j->to->scales, j->scales, (size_t)blocks * 4, 0));
    /* Adding +0 turns the -0 of nbl__fp4_table into +0, as in the table that upstream stores. */
    for (int i = 0; i < 16; i++)
        map[i] = (j->options->format == NBL_FORMAT_NF4 ? nbl__nf4_table : nbl__fp4_table)[i] + 0.0f;
    NBL_GO(nbl__safetensors_writer_write(j->v->writer, j->to->map, map, sizeof map, 0));
    NBL_GO(write_state(j, offset));
done:
    nbl__free(ctx, j->scales, (size_t)blocks * sizeof *j->scales);
    return status;
}

/* ---- int8 ---- */

/* Declares the entries of an int8 weight. 7 is the length of ".weight": the scales are named after
 * the module. */
static nbl_status declare_int8(nbl__conversion *v, int64_t group, const nbl_tensor_info *t, nbl__encoded *e)
{
    const char *module = nbl__arena_printf(&v->checkpoint->arena, "%.*s", (int)strlen(t->name) - 7, t->name);
    if (module == NULL) return NBL_ERROR_MEMORY;
    NBL_TRY(nbl__safetensors_writer_declare(v->writer, group, t->name, NBL_DTYPE_I8, 2, t->shape, &e->data));
    NBL_TRY(declare_part(v, group, module, ".SCB", NBL_DTYPE_F32, t->shape[0], &e->scales));
    const char *format = nbl__arena_printf(&v->checkpoint->arena, "%s_format", t->name);
    if (format == NULL) return NBL_ERROR_MEMORY;
    return nbl__safetensors_writer_declare(v->writer, group, format, NBL_DTYPE_U8, 0, NULL, &e->state);
}

/* Thread task: encodes whole rows; row scales go to j->scales. */
static nbl_status encode_int8(void *argument, int64_t item, int worker)
{
    job *j = argument;
    int64_t columns = j->tensor->shape[1], begin = item * j->span,
            end = nbl__min_i64(begin + j->span, j->elements);
    int8_t *codes = nbl__buffer_of(&j->buffers, worker);
    nbl__file_need(values_at(j, begin), (uint64_t)(end - begin) * nbl__size_of(j->tensor->weight.dtype));
    int64_t bad = nbl__int8_encode(nbl__isa(j->v->ctx), j->tensor->weight.dtype, values_at(j, begin),
                                   (end - begin) / columns, columns, codes, j->scales + begin / columns);
    if (bad)
        nbl__non_finite_list(&j->non_finite, j->tensor->weight.dtype, values_at(j, begin), end - begin, begin,
                             1, NBL_LARGEST_F16);
    NBL_TRY(nbl__safetensors_writer_write(j->v->writer, j->to->data, codes, (size_t)(end - begin),
                                          (uint64_t)begin));
    span_done(j, begin, end);
    return NBL_OK;
}

/* Writes all entries of an int8 weight. A span is whole rows, because a row has one scale. */
static nbl_status write_int8(job *j)
{
    nbl_context *ctx = j->v->ctx;
    int64_t rows = j->tensor->shape[0], columns = j->tensor->shape[1];
    static const uint8_t row_major = 0;
    NBL_TRY(NBL_ALLOC(ctx, j->scales, rows));
    nbl_status status = NBL_OK;
    j->span = nbl__span_size(columns, (int64_t)nbl__size_of(j->tensor->weight.dtype));
    NBL_GO(run_team(j, nbl__ceil_div(j->elements, j->span), (size_t)nbl__min_i64(j->span, j->elements),
                    encode_int8));
    NBL_GO(nbl__safetensors_writer_write(j->v->writer, j->to->scales, j->scales, (size_t)rows * 4, 0));
    NBL_GO(nbl__safetensors_writer_write(j->v->writer, j->to->state, &row_major, 1, 0));
done:
    nbl__free(ctx, j->scales, (size_t)rows * sizeof *j->scales);
    return status;
}

/* ---- mxfp4: [expert, in, out] becomes blocks [expert, out, in/32, 16] and scales ---- */

enum { MX_OUTS = 32 }; /* output rows per item */

/* Declares blocks and scales of fused experts. A block has 32 values along the input: 16 bytes and
 * one scale. */
static nbl_status declare_mxfp4(nbl__conversion *v, int64_t group, const nbl_tensor_info *t, nbl__encoded *e)
{
    int64_t experts = t->shape[0], ins = t->shape[1], outs = t->shape[2];
    NBL_CHECK(v->ctx, ins % 32 == 0, NBL_ERROR_SHAPE,
              "tensor \"%s\": %" PRId64 " inputs are not a multiple of 32, as mxfp4 needs", t->name, ins);
    int64_t shape[4] = {experts, outs, ins / 32, 16};
    const char *blocks = nbl__arena_printf(&v->checkpoint->arena, "%s_blocks", t->name);
    const char *scales = nbl__arena_printf(&v->checkpoint->arena, "%s_scales", t->name);
    if (blocks == NULL || scales == NULL) return NBL_ERROR_MEMORY;
    NBL_TRY(nbl__safetensors_writer_declare(v->writer, group, blocks, NBL_DTYPE_U8, 4, shape, &e->data));
    return nbl__safetensors_writer_declare(v->writer, group, scales, NBL_DTYPE_U8, 3, shape, &e->scales);
}

/* Thread task: encodes up to MX_OUTS output rows of one expert. A worker's buffer is
 *     | values [MX_OUTS, ins] | codes, 2 per byte | scales, 1 per 32 values | */
static nbl_status encode_mxfp4(void *argument, int64_t item, int worker)
{
    job *j = argument;
    int64_t ins = j->tensor->shape[1], outs = j->tensor->shape[2], first = item * MX_OUTS;
    int64_t wide = nbl__min_i64(MX_OUTS, outs - first);
    nbl_dtype dtype = j->tensor->weight.dtype;
    size_t size = nbl__size_of(dtype);
    uint8_t *rows = nbl__buffer_of(&j->buffers, worker); /* [MX_OUTS, ins] values */
    uint8_t *codes = rows + (size_t)(MX_OUTS * ins) * size, *scales = codes + MX_OUTS * ins / 2;
    for (int64_t i = 0; i < ins; i++) { /* transpose [ins, wide] to [wide, ins] */
        const uint8_t *line = values_at(j, (j->expert * ins + i) * outs + first);
        for (int64_t o = 0; o < wide; o++)
            memcpy(rows + (size_t)(o * ins + i) * size, line + (size_t)o * size, size);
    }
    int64_t bad = nbl__mxfp4_encode(nbl__isa(j->v->ctx), dtype, rows, 1, wide * ins, codes, scales);
    for (int64_t o = 0; bad && o < wide; o++)
        nbl__non_finite_list(&j->non_finite, dtype, rows + (size_t)(o * ins) * size, ins,
                             j->expert * ins * outs + first + o, outs, FLT_MAX);
    uint64_t at = (uint64_t)((j->expert * outs + first) * ins);
    NBL_TRY(
        nbl__safetensors_writer_write(j->v->writer, j->to->data, codes, (size_t)(wide * ins / 2), at / 2));
    nbl__progress_add(j->v->ctx, (uint64_t)(wide * ins) * size);
    return nbl__safetensors_writer_write(j->v->writer, j->to->scales, scales, (size_t)(wide * ins / 32),
                                         at / 32);
}

/* Writes an mxfp4 weight expert by expert, so that the pages of finished experts can be dropped. */
static nbl_status write_mxfp4(job *j)
{
    int64_t experts = j->tensor->shape[0], ins = j->tensor->shape[1], outs = j->tensor->shape[2];
    size_t size = nbl__size_of(j->tensor->weight.dtype);
    for (j->expert = 0; j->expert < experts; j->expert++) {
        size_t buffer = (size_t)(MX_OUTS * ins) * size + (size_t)(MX_OUTS * ins / 2 + MX_OUTS * ins / 32);
        NBL_TRY(run_team(j, nbl__ceil_div(outs, MX_OUTS), buffer, encode_mxfp4));
        nbl__checkpoint_drop(j->v->checkpoint, values_at(j, j->expert * ins * outs),
                             (uint64_t)(ins * outs) * size);
    }
    return NBL_OK;
}

/* ---- by format ---- */

nbl_status nbl__encoded_declare(nbl__conversion *v, int64_t group, const nbl_tensor_info *t,
                                const nbl_quantize_options *options, nbl__encoded *e)
{
    *e = (nbl__encoded){.format = options->format};
    if (options->format == NBL_FORMAT_INT8) return declare_int8(v, group, t, e);
    if (options->format == NBL_FORMAT_MXFP4) return declare_mxfp4(v, group, t, e);
    return declare_fourbit(v, group, t, options, e);
}

nbl_status nbl__encoded_write(nbl__conversion *v, const nbl_tensor_info *t,
                              const nbl_quantize_options *options, const nbl__encoded *e)
{
    job j = {.v = v, .tensor = t, .options = options, .to = e, .elements = nbl__elements(t)};
    nbl_status status = e->format == NBL_FORMAT_INT8    ? write_int8(&j)
                        : e->format == NBL_FORMAT_MXFP4 ? write_mxfp4(&j)
                                                        : write_fourbit(&j);
    if (status != NBL_OK) return status;
    return nbl__non_finite_report(v, t->name, &j.non_finite,
                                  e->format == NBL_FORMAT_INT8 ? no_f16 : "are not finite");
}
