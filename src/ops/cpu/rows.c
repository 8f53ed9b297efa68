/* rows.c - see rows.h. */
#include "ops/cpu/rows.h"

typedef struct rows_job {
    int64_t rows, per_item;
    nbl__rows_fn fn;
    const void *job;
} rows_job;

static nbl_status run_item(void *argument, int64_t item, int worker)
{
    const rows_job *j = argument;
    int64_t begin = item * j->per_item;
    (void)worker;
    j->fn(j->job, begin, nbl__min_i64(begin + j->per_item, j->rows), item);
    return NBL_OK;
}

nbl_status nbl__rows_run(nbl_context *ctx, int64_t rows, int64_t rows_per_item, nbl__rows_fn fn,
                         const void *job)
{
    rows_job j = {rows, rows_per_item, fn, job};
    return nbl__team_run(ctx, nbl__ceil_div(rows, rows_per_item), run_item, &j, NULL);
}

typedef struct sum_job {
    const float *partial;
    int64_t blocks, stride;
    float *out;
    bool accumulate;
} sum_job;

static void sum_columns(const void *job, int64_t begin, int64_t end, int64_t item)
{
    const sum_job *j = job;
    (void)item;
    if (!j->accumulate) memset(j->out + begin, 0, (size_t)(end - begin) * sizeof *j->out);
    for (int64_t b = 0; b < j->blocks; b++)
        for (int64_t k = begin; k < end; k++) j->out[k] += j->partial[b * j->stride + k];
}

nbl_status nbl__blocks_add(nbl_context *ctx, const float *partial, int64_t blocks, int64_t stride,
                           int64_t columns, float *out, bool accumulate)
{
    sum_job j = {partial, blocks, stride, out, accumulate};
    return nbl__rows_run(ctx, columns, 2048, sum_columns, &j);
}
