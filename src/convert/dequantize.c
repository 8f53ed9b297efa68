/* dequantize.c - converts a packed checkpoint to a dense one.
 *
 *     packed weight  ─▶ f32, f16 or bf16, span by span
 *     other tensors  ─▶ their bytes
 *     config.json    ─▶ without quantization_config, with the new dtype
 *
 * Each tensor is one group of the writer, so a tensor's index is also its group and number. */
#include "convert/convert.h"

/* The work on one weight; shared by its workers. */
typedef struct job {
    nbl__conversion *v;
    const nbl_tensor_info *tensor;
    nbl_dtype dtype;
    int64_t number, span, elements;
    nbl__buffers buffers;
    nbl__non_finite non_finite;
} job;

/* Thread task: dequantizes one span and writes it. */
static nbl_status dequantize_span(void *argument, int64_t item, int worker)
{
    job *j = argument;
    int64_t begin = item * j->span, end = nbl__min_i64(begin + j->span, j->elements);
    size_t size = nbl__size_of(j->dtype);
    void *buffer = nbl__buffer_of(&j->buffers, worker);
    nbl__span_fetch(j->tensor, begin, end);
    nbl__span_dequantize(nbl__isa(j->v->ctx), j->tensor, begin, end, j->dtype, buffer);
    nbl__span_release(j->v->checkpoint, j->tensor, begin, end);
    nbl__non_finite_scan(&j->non_finite, nbl__isa(j->v->ctx), j->dtype, buffer, end - begin, begin);
    NBL_TRY(nbl__safetensors_writer_write(j->v->writer, j->number, buffer, (size_t)(end - begin) * size,
                                          (uint64_t)begin * size));
    double share = (double)(end - begin) / (double)j->elements;
    nbl__progress_add(j->v->ctx, (uint64_t)(share * (double)j->tensor->bytes));
    return NBL_OK;
}

/* Dequantizes one weight with a team of threads. Its non-finite values are counted and reported
 * once. */
static nbl_status write_dequantized(nbl__conversion *v, const nbl_tensor_info *t, nbl_dtype dtype,
                                    int64_t number)
{
    job j = {.v = v, .tensor = t, .dtype = dtype, .number = number, .elements = nbl__elements(t)};
    int64_t bytes = (int64_t)nbl__size_of(dtype);
    j.span = nbl__span_size(nbl__span_unit(t), bytes);
    size_t longest = (size_t)(nbl__min_i64(j.span, j.elements) * bytes);
    NBL_TRY(nbl__run_spans(v->ctx, nbl__ceil_div(j.elements, j.span), longest, dequantize_span, &j,
                           &j.buffers, t->name));
    nbl__tensor_release(v->checkpoint, t);
    return nbl__non_finite_report(v, t->name, &j.non_finite, "are not finite");
}

/* Counts the packed weights. A folder without any is an error: the result would be a copy. */
static nbl_status check_source(nbl__conversion *v, const char *in)
{
    const nbl_checkpoint_summary *s = &v->checkpoint->summary;
    for (int64_t i = 0; i < v->checkpoint->tensor_count; i++)
        v->report.converted += v->checkpoint->tensors[i].weight.format != NBL_FORMAT_DENSE;
    if (v->report.converted > 0) return NBL_OK;
    NBL_CHECK(v->ctx, s->quantization == NULL, NBL_ERROR_UNSUPPORTED,
              "%s: config.json says \"%s\", but no weight is packed as nf4, fp4, int8 or mxfp4", in,
              s->quantization);
    return nbl__fail(v->ctx, NBL_ERROR_UNSUPPORTED, "%s: no weight is packed, there is nothing to dequantize",
                     in);
}

/* The steps of a conversion (convert.h): declare everything, begin, write tensor by tensor,
 * commit. */
static nbl_status run(nbl__conversion *v, const char *in, const char *out,
                      const nbl_dequantize_options *options)
{
    nbl_checkpoint *c = v->checkpoint;
    NBL_TRY(check_source(v, in));
    for (int64_t i = 0, number; i < c->tensor_count; i++) {
        const nbl_tensor_info *t = &c->tensors[i];
        if (t->weight.format == NBL_FORMAT_DENSE) NBL_TRY(nbl__declare_copy(v, i, t, &number));
        else
            NBL_TRY(nbl__safetensors_writer_declare(v->writer, i, t->name,
                                                    nbl__dtype_chosen(options->dtype, NBL_DTYPE_F32), t->rank,
                                                    t->shape, &number));
    }
    NBL_TRY(nbl__conversion_begin(v, out, options->shard_size));
    for (int64_t i = 0; i < c->tensor_count; i++) {
        const nbl_tensor_info *t = &c->tensors[i];
        NBL_TRY(nbl__safetensors_writer_begin_group(v->writer, v->output, i));
        if (t->weight.format == NBL_FORMAT_DENSE) NBL_TRY(nbl__write_copy(v, t, i));
        else NBL_TRY(write_dequantized(v, t, nbl__dtype_chosen(options->dtype, NBL_DTYPE_F32), i));
    }
    char dtype[32];
    nbl__config_edit edits[3] = {{"quantization_config", NULL}};
    int count = 1 +
                nbl__conversion_dtype(v, nbl__dtype_chosen(options->dtype, NBL_DTYPE_F32), dtype, edits + 1);
    return nbl__conversion_commit(v, edits, count, NULL, NULL);
}

nbl_status nbl_checkpoint_dequantize(nbl_context *ctx, const char *in, const char *out,
                                     const nbl_dequantize_options *given, nbl_convert_report *report)
{
    NBL_CHECK(ctx, in && out && given, NBL_ERROR_ARGUMENT,
              "checkpoint_dequantize: in, out or options is NULL");
    nbl_dequantize_options options;
    NBL_TRY(NBL_OPTIONS_READ(ctx, nbl_dequantize_options, given, &options));
    NBL_CHECK(ctx, nbl__compute_dtype_valid(options.dtype), NBL_ERROR_ARGUMENT,
              "dequantize: dtype %d is no nbl_compute_dtype", (int)options.dtype);
    NBL_TRY(NBL_RESULT_BEGIN(ctx, nbl_convert_report, report));
    nbl__conversion v;
    nbl_status status = nbl__conversion_open(ctx, in, &v);
    v.allow_non_finite = true; /* the packed file has these values already, so they are only a warning */
    if (status == NBL_OK) status = run(&v, in, out, &options);
    NBL_RESULT_PUT(nbl_convert_report, report, &v.report);
    nbl__conversion_close(&v);
    return status;
}
