/* embedding_cpu.c - embedding and its backward, on any CPU.
 *
 *   forward    for each id (items of rows):       dequantize its row with the storage format's kernel
 *   backward   for each span of columns (items):  for each id in order:  dw[id] += dy·scale
 *
 * Backward divides the work by columns, so that each sum is in the order of the ids whatever the
 * number of threads.
 *
 * Bytes: forward reads and writes a row per id. Backward also clears [vocabulary, columns] of f32,
 * unless it accumulates. Limit: memory. */
#include "ops/embedding/embedding.h"

#include "ops/common/rows.h"

enum {
    PIECE = 256,  /* f32 values on the stack */
    COLUMNS = 512 /* columns of an item of dw; long enough for the hardware's prefetch */
};

typedef struct embedding_job {
    const nbl__embedding *a;
    nbl_isa isa;
    float scale; /* rounded to the dtype */
} embedding_job;

/* The call, with the scale rounded to the dtype. */
static embedding_job job_of(const nbl__call *call, const nbl__embedding *a)
{
    uint32_t word;
    embedding_job j = {a, nbl__isa(call->ctx), a->scale};
    nbl__from_f32(NBL_ISA_SCALAR, &a->scale, a->dtype, &word, 1);
    nbl__to_f32(NBL_ISA_SCALAR, a->dtype, &word, &j.scale, 1);
    return j;
}

/* Multiplies a row by the scale, and rounds it again. */
static void scale_row(const embedding_job *j, uint8_t *row, int64_t columns)
{
    float piece[PIECE];
    for (int64_t k = 0; k < columns; k += PIECE) {
        int64_t n = nbl__min_i64(columns - k, PIECE);
        uint8_t *at = row + (size_t)k * nbl__size_of(j->a->dtype);
        nbl__to_f32(j->isa, j->a->dtype, at, piece, n);
        for (int64_t i = 0; i < n; i++) piece[i] *= j->scale;
        nbl__from_f32(j->isa, piece, j->a->dtype, at, n);
    }
}

/* Forward: the rows of ids [begin, end). */
static void take_rows(const void *job, int64_t begin, int64_t end, int64_t item)
{
    const embedding_job *j = job;
    const int32_t *ids = j->a->ids.data;
    int64_t columns = j->a->w.shape[1];
    (void)item;
    for (int64_t t = begin; t < end; t++) {
        uint8_t *row = (uint8_t *)j->a->y.data + (size_t)(t * columns) * nbl__size_of(j->a->dtype);
        nbl__dequantize(j->isa, &j->a->w, ids[t] * columns, (ids[t] + 1) * columns, j->a->dtype, row, false);
        if (j->scale != 1) scale_row(j, row, columns);
    }
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__embedding *a = arguments;
    embedding_job j = job_of(call, a);
    NBL_TRY(nbl__embedding_check_ids(call->ctx, call->op, &a->ids, a->w.shape[0]));
    return nbl__rows_run(call->ctx, nbl__tensor_elements(&a->ids), nbl__rows_per_span(a->w.shape[1]),
                         take_rows, &j);
}

/* Backward: columns [begin, end) of dw, for all ids in order. */
static void add_columns(const void *job, int64_t begin, int64_t end, int64_t item)
{
    const embedding_job *j = job;
    const int32_t *ids = j->a->ids.data;
    int64_t columns = j->a->w.shape[1], tokens = nbl__tensor_elements(&j->a->ids), n = end - begin;
    const uint8_t *dy = j->a->dy.data;
    size_t size = nbl__size_of(j->a->dtype);
    (void)item;
    for (int64_t t = 0; t < tokens; t++)
        if (ids[t] != j->a->padding)
            nbl__add_scaled(j->isa, j->a->dtype, dy + (size_t)(t * columns + begin) * size, j->scale,
                            (float *)j->a->dw.data + ids[t] * columns + begin, n);
}

/* Backward: zeros rows [begin, end) of dw. */
static void clear_rows(const void *job, int64_t begin, int64_t end, int64_t item)
{
    const embedding_job *j = job;
    int64_t columns = j->a->w.shape[1];
    (void)item;
    memset((float *)j->a->dw.data + begin * columns, 0, (size_t)((end - begin) * columns) * sizeof(float));
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__embedding *a = arguments;
    embedding_job j = job_of(call, a);
    NBL_TRY(nbl__embedding_check_ids(call->ctx, call->op, &a->ids, a->w.shape[0]));
    if (!nbl__has_data(&a->dw)) return NBL_OK;
    if (!a->accumulate)
        NBL_TRY(nbl__rows_run(call->ctx, a->w.shape[0], nbl__rows_per_span(a->w.shape[1]), clear_rows, &j));
    return nbl__rows_run(call->ctx, a->w.shape[1], COLUMNS, add_columns, &j);
}

const nbl__impl nbl__embedding_cpu = {"embedding_cpu", NBL_ISA_SCALAR, NULL, NULL, run_forward};
const nbl__impl nbl__embedding_backward_cpu = {"embedding_backward_cpu", NBL_ISA_SCALAR, NULL, NULL,
                                               run_backward};
