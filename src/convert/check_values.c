/* check_values.c - reads every value of a checkpoint and lists the tensors that hold NaN or
 * infinities.
 *
 * Packed weights are dequantized to f32 in spans, so a scale that is NaN or infinite shows in the
 * values it scales. Dense weights are looked through as they are stored. Integers, FP8 and other
 * dtypes without arithmetic here are skipped. Cost: bound by reading the files. */
#include <stdio.h>

#include "convert/convert.h"

/* The work on one tensor. `found` is shared by all workers (atomic). */
typedef struct job {
    nbl_checkpoint *checkpoint;
    const nbl_tensor_info *tensor;
    int64_t span, elements;
    nbl__buffers buffers;
    nbl__non_finite found;
} job;

/* Thread task: dequantizes one span and scans it. */
static nbl_status check_span(void *argument, int64_t item, int worker)
{
    job *j = argument;
    nbl_context *ctx = j->checkpoint->ctx;
    int64_t begin = item * j->span, end = nbl__min_i64(begin + j->span, j->elements);
    void *values = nbl__buffer_of(&j->buffers, worker);
    nbl__span_fetch(j->tensor, begin, end);
    nbl__span_dequantize(nbl__isa(ctx), j->tensor, begin, end, NBL_DTYPE_F32, values);
    nbl__span_release(j->checkpoint, j->tensor, begin, end);
    nbl__non_finite_scan(&j->found, nbl__isa(ctx), NBL_DTYPE_F32, values, end - begin, begin);
    nbl__progress_add(ctx,
                      (uint64_t)((double)(end - begin) / (double)j->elements * (double)j->tensor->bytes));
    return NBL_OK;
}

/* Scans one tensor. Its non-finite values are one problem, with the index of the first. */
static nbl_status check_tensor(nbl_checkpoint *c, const nbl_tensor_info *t)
{
    if (!nbl__is_decodable(t)) return NBL_OK;
    job j = {.checkpoint = c, .tensor = t, .elements = nbl__elements(t)};
    if (j.elements == 0) return NBL_OK;
    j.span = nbl__span_size(nbl__span_unit(t), sizeof(float));
    size_t bytes = (size_t)nbl__min_i64(j.span, j.elements) * sizeof(float);
    NBL_TRY(nbl__run_spans(c->ctx, nbl__ceil_div(j.elements, j.span), bytes, check_span, &j, &j.buffers,
                           t->name));
    nbl__tensor_release(c, t);
    int64_t count = atomic_load(&j.found.count), first = atomic_load(&j.found.first) - 1;
    if (count == 0) return NBL_OK;
    nbl_status status = nbl__fail(c->ctx, NBL_ERROR_FORMAT,
                                  "%s: tensor \"%s\": %" PRId64
                                  " values are not finite; the first has index %" PRId64,
                                  t->file, t->name, count, first);
    return nbl__checkpoint_problem(c, status);
}

nbl_status nbl_checkpoint_check_values(nbl_checkpoint *checkpoint)
{
    if (checkpoint == NULL) return NBL_ERROR_ARGUMENT;
    nbl_status status = NBL_OK;
    nbl__progress_begin(checkpoint->ctx, checkpoint->summary.bytes);
    for (int64_t i = 0; i < checkpoint->tensor_count && status == NBL_OK; i++)
        status = check_tensor(checkpoint, &checkpoint->tensors[i]);
    checkpoint->summary.problems = checkpoint->problems.count;
    return status;
}
