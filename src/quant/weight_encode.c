/* weight_encode.c - nbl_quantize: sizes, checks, threads; parts are the caller's memory. Also the
 * entries for 8-bit block-wise values (nbl_dynamic8_…).
 *
 *     values → codes and f32 scales → (nested) 8-bit scale codes, nested scales, offset
 *
 *     plan_quantize   options and shape ─▶ sizes; fails for combinations that do not exist
 *     encode_chunk    thread task: codes and f32 scales
 *     nest_scales     after all chunks: the offset is the mean of all scales
 *
 * The work is cut at multiples of NBL_WEIGHT_CHUNK elements, so the result does not depend on the
 * number of threads. */
#include "quant/weight.h"
#include "base/team.h"

#include <math.h>

/* ---- nbl_quantize ---- */

/* The sizes of a quantized weight, in elements; nested_blocks 0: scales stay f32. */
typedef struct plan {
    int64_t n, rows, columns, block, blocks, nested_blocks;
} plan;

/* Checks options and shape and computes the sizes. */
static nbl_status plan_quantize(nbl_context *ctx, const nbl_quantize_options *options, int rank,
                                const int64_t *shape, plan *p)
{
    const char *call = "quantize";
    nbl_format format = options->format;
    NBL_CHECK(ctx, format > NBL_FORMAT_DENSE && (unsigned)format <= NBL_FORMAT_MXFP4, NBL_ERROR_ARGUMENT,
              "%s: format %s; allowed are nf4, fp4, int8, mxfp4", call,
              format == NBL_FORMAT_DENSE ? "dense" : "unknown");
    /* Blocks: rows for int8, 32 elements for mxfp4, options->block (default 64) for nf4 and fp4. */
    *p = (plan){0};
    NBL_TRY(nbl__check_shape(ctx, call, rank, shape, &p->n, &p->rows));
    p->columns = shape[rank - 1];
    if (format == NBL_FORMAT_INT8) {
        p->blocks = p->rows;
    } else if (format == NBL_FORMAT_MXFP4) {
        NBL_TRY(nbl__check_mxfp4_columns(ctx, call, rank, shape));
        p->block = 32;
        p->blocks = p->n / 32;
    } else {
        p->block = options->block == 0 ? 64 : options->block;
        NBL_TRY(nbl__check_block(ctx, call, format, p->block));
        p->blocks = nbl__ceil_div(p->n, p->block);
        if (options->nested) p->nested_blocks = nbl__ceil_div(p->blocks, NBL_NESTED_BLOCK);
        return NBL_OK;
    }
    NBL_CHECK(ctx, !options->nested, NBL_ERROR_UNSUPPORTED,
              "%s: nested scales exist for nf4 and fp4, not for %s", call, nbl_format_name(format));
    return NBL_OK;
}

/* The bytes of the parts of a weight. */
static nbl_quantized_sizes sizes_of(nbl_format format, const plan *p)
{
    /* MXFP4's scales are codes; with nesting the f32 scales are scratch beside their codes. */
    bool mxfp4 = format == NBL_FORMAT_MXFP4, int8 = format == NBL_FORMAT_INT8;
    return (nbl_quantized_sizes){
        .data = (size_t)(int8 ? p->n : nbl__ceil_div(p->n, 2)),
        .scales = mxfp4 ? 0 : (size_t)p->blocks * sizeof(float),
        .scale_codes = mxfp4 || p->nested_blocks > 0 ? (size_t)p->blocks : 0,
        .nested_scales = (size_t)p->nested_blocks * sizeof(float),
    };
}

/* Reads the options of a caller, which may not be NULL. */
static nbl_status read_options(nbl_context *ctx, const nbl_quantize_options *given,
                               nbl_quantize_options *options)
{
    NBL_CHECK(ctx, given != NULL, NBL_ERROR_ARGUMENT, "quantize: options is NULL");
    return NBL_OPTIONS_READ(ctx, nbl_quantize_options, given, options);
}

nbl_status nbl_quantize_sizes(nbl_context *ctx, const nbl_quantize_options *given, int rank,
                              const int64_t *shape, nbl_quantized_sizes *sizes)
{
    plan p;
    nbl_quantize_options options;
    NBL_CHECK(ctx, sizes != NULL, NBL_ERROR_ARGUMENT, "quantize: sizes is NULL");
    NBL_TRY(read_options(ctx, given, &options));
    NBL_TRY(plan_quantize(ctx, &options, rank, shape, &p));
    *sizes = sizes_of(options.format, &p);
    return NBL_OK;
}

/* One quantization; shared by its workers. */
typedef struct encode_job {
    nbl_isa isa;
    nbl_format format;
    plan plan;
    nbl_dtype dtype;
    const uint8_t *values;
    const nbl_quantized_parts *parts;
    int64_t rows_per_item;
    int64_t non_finite; /* updated atomically */
} encode_job;

/* One chunk: whole rows for int8, NBL_WEIGHT_CHUNK elements for the other formats. */
static nbl_status encode_chunk(void *argument, int64_t item, int worker)
{
    (void)worker;
    encode_job *job = argument;
    const plan *p = &job->plan;
    const nbl_quantized_parts *to = job->parts;
    size_t size = nbl__size_of(job->dtype);
    /* A chunk begins at a block's first element, so codes and scales of chunks do not overlap. */
    int64_t bad;
    if (job->format == NBL_FORMAT_INT8) {
        int64_t row = item * job->rows_per_item, rows = nbl__min_i64(job->rows_per_item, p->rows - row);
        bad = nbl__int8_encode(job->isa, job->dtype, job->values + (size_t)(row * p->columns) * size, rows,
                               p->columns, (int8_t *)to->data + row * p->columns, to->scales + row);
    } else {
        int64_t begin = item * NBL_WEIGHT_CHUNK, n = nbl__min_i64(NBL_WEIGHT_CHUNK, p->n - begin),
                block = begin / p->block;
        const uint8_t *from = job->values + (size_t)begin * size;
        if (job->format == NBL_FORMAT_MXFP4)
            bad = nbl__mxfp4_encode(job->isa, job->dtype, from, 1, n, to->data + begin / 2,
                                    to->scale_codes + block);
        else
            bad = nbl__fourbit_encode(job->isa, job->format, p->block, job->dtype, from, n,
                                      to->data + begin / 2, to->scales + block);
    }
    if (bad) __atomic_fetch_add(&job->non_finite, bad, __ATOMIC_RELAXED);
    return NBL_OK;
}

/* Checks the parts that the format has. A part of size 0 may be NULL. */
static nbl_status check_parts(nbl_context *ctx, const nbl_quantized_parts *parts, nbl_format format,
                              const nbl_quantized_sizes *sizes)
{
    NBL_CHECK(ctx, parts != NULL, NBL_ERROR_ARGUMENT, "quantize: parts is NULL");
    if (sizes->data) NBL_TRY(nbl__check_part(ctx, "quantize", format, "data", parts->data, 1));
    if (sizes->scales) NBL_TRY(nbl__check_part(ctx, "quantize", format, "scales", parts->scales, 4));
    if (sizes->scale_codes)
        NBL_TRY(nbl__check_part(ctx, "quantize", format, "scale_codes", parts->scale_codes, 1));
    if (sizes->nested_scales)
        NBL_TRY(nbl__check_part(ctx, "quantize", format, "nested_scales", parts->nested_scales, 4));
    return NBL_OK;
}

/* The second step of double quantization; shared by its workers. */
typedef struct nest_job {
    nbl_isa isa;
    int64_t blocks;
    float offset;
    const nbl_quantized_parts *parts;
    bool by_grid;
} nest_job;

/* Thread task: encodes NBL_WEIGHT_CHUNK scales, which are whole blocks of NBL_NESTED_BLOCK. */
static nbl_status nest_chunk(void *argument, int64_t item, int worker)
{
    (void)worker;
    const nest_job *job = argument;
    int64_t begin = item * NBL_WEIGHT_CHUNK, n = nbl__min_i64(NBL_WEIGHT_CHUNK, job->blocks - begin);
    nbl__nested_encode(job->isa, job->by_grid, job->parts->scales + begin, n, job->offset,
                       job->parts->scale_codes + begin, job->parts->nested_scales + begin / NBL_NESTED_BLOCK);
    return NBL_OK;
}

/* Double-quantizes parts->scales into scale_codes and nested_scales, and makes *weight use them.
 * An infinite or NaN scale would make the mean, and so every scale, non-finite: it is an error. */
static nbl_status nest_scales(nbl_context *ctx, const plan *p, bool by_grid, const nbl_quantized_parts *parts,
                              nbl_weight *weight)
{
    for (int64_t b = 0; b < p->blocks; b++)
        if (!isfinite(parts->scales[b])) {
            nbl__fail(ctx, NBL_ERROR_UNSUPPORTED,
                      "quantize: %s of shape %s: the scale of block %" PRId64
                      " is not finite, and nested scales would spread that to the whole weight",
                      nbl_format_name(weight->format), nbl__show_shape(weight->rank, weight->shape).text, b);
            return nbl__hint(ctx, NBL_ERROR_UNSUPPORTED,
                             "quantize without nested scales, or repair the infinite value");
        }
    weight->nested_offset = nbl__nested_offset(parts->scales, p->blocks);
    nest_job job = {nbl__isa(ctx), p->blocks, weight->nested_offset, parts, by_grid};
    NBL_TRY(nbl__team_run(ctx, nbl__ceil_div(p->blocks, NBL_WEIGHT_CHUNK), nest_chunk, &job, NULL));
    weight->scales = NULL;
    weight->scale_codes = parts->scale_codes;
    weight->nested_scales = parts->nested_scales;
    weight->nested_table = nbl__dynamic_map_signed;
    weight->nested_block = NBL_NESTED_BLOCK;
    return NBL_OK;
}

/* Used by nbl_quantize, and by callers that report non-finite values themselves. */
nbl_status nbl__quantize(nbl_context *ctx, const nbl_quantize_options *options, nbl_dtype dtype, int rank,
                         const int64_t *shape, const void *values, const nbl_quantized_parts *parts,
                         nbl_weight *weight, int64_t *non_finite)
{
    *non_finite = 0;
    /* Check all arguments before anything is written. */
    nbl_quantized_sizes sizes;
    encode_job job = {.isa = nbl__isa(ctx), .dtype = dtype, .values = values, .parts = parts};
    plan *p = &job.plan;
    NBL_TRY(plan_quantize(ctx, options, rank, shape, p));
    sizes = sizes_of(options->format, p);
    job.format = options->format;
    NBL_CHECK(ctx, nbl__is_compute(dtype), NBL_ERROR_DTYPE,
              "quantize: values of %s, shape %s, to %s; allowed are f32, f16, bf16",
              nbl__any_dtype_name(dtype), nbl__show_shape(rank, shape).text, nbl_format_name(job.format));
    NBL_CHECK(ctx, weight != NULL, NBL_ERROR_ARGUMENT, "quantize: weight is NULL");
    NBL_CHECK(ctx, values != NULL || p->n == 0, NBL_ERROR_ARGUMENT, "quantize: values is NULL, shape is %s",
              nbl__show_shape(rank, shape).text);
    NBL_TRY(check_parts(ctx, parts, job.format, &sizes));

    /* Split the work: chunks of elements, or for int8 as many rows as make about one chunk. */
    int64_t items = nbl__ceil_div(p->n, NBL_WEIGHT_CHUNK);
    if (job.format == NBL_FORMAT_INT8) {
        job.rows_per_item = nbl__max_i64(1, NBL_WEIGHT_CHUNK / nbl__max_i64(1, p->columns));
        items = nbl__ceil_div(p->rows, job.rows_per_item);
    }
    if (p->n == 0) { /* rows of 0 columns still have scales */
        items = 0;
        if (sizes.scales) memset(parts->scales, 0, sizes.scales);
    }
    NBL_TRY(nbl__team_run(ctx, items, encode_chunk, &job, NULL));
    *non_finite = job.non_finite;

    /* *weight is written only when everything has succeeded. */
    nbl_weight made = {
        .format = job.format, .dtype = dtype, .rank = rank, .data = parts->data, .block = p->block};
    memcpy(made.shape, shape, (size_t)rank * sizeof *shape);
    if (job.format == NBL_FORMAT_MXFP4) made.scale_codes = parts->scale_codes;
    else made.scales = parts->scales;
    if (p->nested_blocks > 0) NBL_TRY(nest_scales(ctx, p, options->nested == NBL_NESTED_GRID, parts, &made));
    *weight = made;
    return NBL_OK;
}

nbl_status nbl__quantize_stack(nbl_context *ctx, const nbl_quantize_options *options, nbl_dtype dtype,
                               const int64_t shape[3], int64_t pieces, nbl__read_piece_fn read, void *user,
                               const nbl_quantized_parts *parts, nbl_weight *weight, int64_t *non_finite)
{
    plan p;
    *non_finite = 0;
    NBL_TRY(plan_quantize(ctx, options, 3, shape, &p));
    NBL_CHECK(ctx, pieces > 0 && p.rows % pieces == 0, NBL_ERROR_SHAPE, "quantize: %" PRId64 " pieces of %s",
              pieces, nbl__show_shape(3, shape).text);
    int64_t rows = p.rows / pieces, n = rows * p.columns, piece_shape[2] = {rows, p.columns};
    NBL_CHECK(ctx, p.block == 0 || n % p.block == 0, NBL_ERROR_SHAPE,
              "quantize: matrices of %s in a stack are no multiple of a block of %" PRId64 " values",
              nbl__show_shape(2, piece_shape).text, p.block);
    /* Blocks do not straddle pieces, so each piece fills its own part of the stack's. */
    nbl_quantize_options single = *options;
    single.nested = NBL_NESTED_NONE;
    for (int64_t i = 0; i < pieces; i++) {
        const void *values;
        nbl_weight unused;
        int64_t found, scale = i * (p.block ? n / p.block : rows);
        nbl_quantized_parts at = {.data = parts->data +
                                          (options->format == NBL_FORMAT_INT8 ? i * n : i * n / 2),
                                  .scales = parts->scales ? parts->scales + scale : NULL,
                                  .scale_codes = parts->scale_codes ? parts->scale_codes + scale : NULL};
        NBL_TRY(read(user, i, &values));
        NBL_TRY(nbl__quantize(ctx, &single, dtype, 2, piece_shape, values, &at, &unused, &found));
        *non_finite += found;
    }
    nbl_weight made = {
        .format = options->format, .dtype = dtype, .rank = 3, .data = parts->data, .block = p.block};
    memcpy(made.shape, shape, 3 * sizeof *shape);
    if (options->format == NBL_FORMAT_MXFP4) made.scale_codes = parts->scale_codes;
    else made.scales = parts->scales;
    if (p.nested_blocks > 0) NBL_TRY(nest_scales(ctx, &p, options->nested == NBL_NESTED_GRID, parts, &made));
    *weight = made;
    return NBL_OK;
}

nbl_status nbl_quantize(nbl_context *ctx, const nbl_quantize_options *given, nbl_dtype dtype, int rank,
                        const int64_t *shape, const void *values, const nbl_quantized_parts *parts,
                        nbl_weight *weight)
{
    int64_t non_finite, n = 1;
    nbl_quantize_options options;
    NBL_TRY(read_options(ctx, given, &options));
    nbl_status status = nbl__quantize(ctx, &options, dtype, rank, shape, values, parts, weight, &non_finite);
    if (non_finite == 0) return status;
    for (int i = 0; i < rank; i++) n *= shape[i];
    nbl__log(ctx, NBL_LOG_WARNING, "quantize: %" PRId64 " of %" PRId64 " values are not finite", non_finite,
             n);
    return status;
}

/* ---- 8-bit block-wise ---- */

const float *nbl_dynamic_map(bool is_signed)
{
    return is_signed ? nbl__dynamic_map_signed : nbl__dynamic_map_unsigned;
}

/* A run of nbl_dynamic8_quantize or nbl_dynamic8_dequantize. */
typedef struct dynamic_job {
    nbl_isa isa;
    const float *map;
    int64_t block, blocks_per_item, n;
    const float *values; /* values to quantize; NULL: dequantize */
    uint8_t *codes;
    float *scales;
    const uint8_t *from_codes;
    const float *from_scales;
    float *to_values;
} dynamic_job;

/* Thread task: whole blocks, in one direction. */
static nbl_status dynamic_chunk(void *argument, int64_t item, int worker)
{
    (void)worker;
    const dynamic_job *job = argument;
    /* One item is whole blocks, about NBL_WEIGHT_CHUNK elements. */
    int64_t b = item * job->blocks_per_item, begin = b * job->block;
    int64_t n = nbl__min_i64(job->blocks_per_item * job->block, job->n - begin);
    if (job->values)
        nbl__dynamic8_encode(job->isa, job->map, job->block, job->values + begin, n, job->codes + begin,
                             job->scales + b);
    else
        nbl__dynamic8_dequantize(job->isa, job->map, job->block, job->from_codes + begin,
                                 job->from_scales + b, n, job->to_values + begin);
    return NBL_OK;
}

/* Checks the arguments of both directions and runs the tasks. */
static nbl_status run_dynamic(nbl_context *ctx, const char *call, int64_t block, const void *values,
                              int64_t n, const void *codes, const void *scales, dynamic_job *job)
{
    NBL_CHECK(ctx, block >= 1, NBL_ERROR_ARGUMENT, "%s: block %" PRId64 "; it must be at least 1", call,
              block);
    NBL_CHECK(ctx, n >= 0, NBL_ERROR_ARGUMENT, "%s: %" PRId64 " elements", call, n);
    if (n == 0) return NBL_OK;
    NBL_CHECK(ctx, values && codes && scales, NBL_ERROR_ARGUMENT, "%s: %s is NULL", call,
              !values  ? "values"
              : !codes ? "codes"
                       : "scales");
    job->isa = nbl__isa(ctx);
    job->block = nbl__min_i64(block, n);
    job->n = n;
    job->blocks_per_item = nbl__max_i64(1, NBL_WEIGHT_CHUNK / job->block);
    return nbl__team_run(ctx, nbl__ceil_div(nbl__ceil_div(n, job->block), job->blocks_per_item),
                         dynamic_chunk, job, NULL);
}

nbl_status nbl_dynamic8_quantize(nbl_context *ctx, bool is_signed, int64_t block, const float *values,
                                 int64_t n, uint8_t *codes, float *scales)
{
    dynamic_job job = {.map = nbl_dynamic_map(is_signed), .values = values, .codes = codes, .scales = scales};
    return run_dynamic(ctx, "dynamic8_quantize", block, values, n, codes, scales, &job);
}

nbl_status nbl_dynamic8_dequantize(nbl_context *ctx, bool is_signed, int64_t block, const uint8_t *codes,
                                   const float *scales, int64_t n, float *values)
{
    dynamic_job job = {
        .map = nbl_dynamic_map(is_signed), .from_codes = codes, .from_scales = scales, .to_values = values};
    return run_dynamic(ctx, "dynamic8_dequantize", block, values, n, codes, scales, &job);
}
