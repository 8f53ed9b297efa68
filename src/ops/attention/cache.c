/* cache.c - the families kv_write and take_rows: checks, and the CPU's one implementation of each.
 * See cache.h.
 *
 * Bytes: each row is read once and written once. Limit: memory. */
#include "ops/attention/cache.h"

#include "ops/families.h"

/* Row indices are data, so they are checked when the operator runs, before anything is written. */
static nbl_status check_rows(nbl_context *ctx, const char *op, const nbl_tensor *rows, int64_t limit)
{
    const int32_t *row = rows->data;
    for (int64_t i = 0; i < rows->shape[0]; i++)
        NBL_CHECK(ctx, row[i] >= 0 && row[i] < limit, NBL_ERROR_ARGUMENT,
                  "%s: rows[%" PRId64 "] is %" PRId32 ", there are %" PRId64, op, i, row[i], limit);
    return NBL_OK;
}

/* ---- kv_write ---- */

/* x and the cache agree in heads and dim; dtypes may differ. */
static nbl_status infer_write(nbl_context *ctx, void *arguments)
{
    nbl__kv_write *a = arguments;
    const char *op = "kv_write";
    NBL_TRY(nbl__check_float(ctx, op, "x", &a->x));
    NBL_TRY(nbl__check_float(ctx, op, "cache", &a->cache));
    NBL_TRY(nbl__check_dtype(ctx, op, "rows", &a->rows, NBL_DTYPE_I32));
    NBL_CHECK(ctx, a->x.rank == 3 && a->cache.rank == 4, NBL_ERROR_SHAPE,
              "%s: x is %s and cache %s, [T, heads, dim] and "
              "[sequences, size, heads, dim] were expected",
              op, nbl__show_shape(a->x.rank, a->x.shape).text,
              nbl__show_shape(a->cache.rank, a->cache.shape).text);
    NBL_CHECK(ctx, a->x.shape[1] == a->cache.shape[2] && a->x.shape[2] == a->cache.shape[3], NBL_ERROR_SHAPE,
              "%s: x is %s and cache %s: heads and dim must be equal", op,
              nbl__show_shape(a->x.rank, a->x.shape).text,
              nbl__show_shape(a->cache.rank, a->cache.shape).text);
    return nbl__check_dims(ctx, op, "rows", &a->rows, 1, &a->x.shape[0]);
}

/* One conversion per token: a copy where the dtypes are equal. */
static nbl_status run_write(const nbl__call *call, const void *arguments)
{
    const nbl__kv_write *a = arguments;
    int64_t width = a->x.shape[1] * a->x.shape[2];
    size_t from = (size_t)nbl__row_stride(&a->x) * nbl__size_of(a->x.dtype);
    size_t to = (size_t)width * nbl__size_of(a->cache.dtype);
    NBL_TRY(check_rows(call->ctx, call->op, &a->rows, a->cache.shape[0] * a->cache.shape[1]));
    for (int64_t t = 0; t < a->x.shape[0]; t++) {
        size_t row = (size_t)((const int32_t *)a->rows.data)[t];
        NBL_TRY(nbl_convert(call->ctx, a->x.dtype, (const uint8_t *)a->x.data + (size_t)t * from,
                            a->cache.dtype, (uint8_t *)a->cache.data + row * to, width));
    }
    return NBL_OK;
}

static const nbl__slot write_slots[] = {
    NBL_SLOT_ROWS(nbl__kv_write, x, "x", INPUT, NULL, 3),
    NBL_SLOT(nbl__kv_write, rows, "rows", INPUT, NULL),
    NBL_SLOT(nbl__kv_write, cache, "cache", INPUT, NULL),
    {0},
};
static const nbl__attr no_attrs[] = {{0}};
static const nbl__impl write_ref = {"kv_write_ref", NBL_ISA_SCALAR, NULL, NULL, run_write};
static const nbl__impl *const write_impls[] = {&write_ref, NULL};
const nbl__family nbl__kv_write_family = {
    "kv_write", sizeof(nbl__kv_write), write_slots, no_attrs, {"kv_write", infer_write, write_impls}, {0},
};

/* ---- take_rows ---- */

static nbl_status infer_take(nbl_context *ctx, void *arguments)
{
    nbl__take_rows *a = arguments;
    const char *op = "take_rows";
    NBL_TRY(nbl__check_float(ctx, op, "x", &a->x));
    NBL_TRY(nbl__check_dtype(ctx, op, "rows", &a->rows, NBL_DTYPE_I32));
    NBL_CHECK(ctx, a->x.rank >= 1 && a->rows.rank == 1, NBL_ERROR_SHAPE, "%s: x is %s and rows %s", op,
              nbl__show_shape(a->x.rank, a->x.shape).text, nbl__show_shape(a->rows.rank, a->rows.shape).text);
    nbl__output_vector(&a->y, a->x.dtype, 2, a->rows.shape[0], nbl__last(&a->x));
    return NBL_OK;
}

static nbl_status run_take(const nbl__call *call, const void *arguments)
{
    const nbl__take_rows *a = arguments;
    size_t bytes = (size_t)nbl__last(&a->x) * nbl__size_of(a->x.dtype);
    NBL_TRY(check_rows(call->ctx, call->op, &a->rows, nbl__tensor_rows(&a->x)));
    for (int64_t i = 0; i < a->rows.shape[0]; i++)
        memcpy((uint8_t *)a->y.data + (size_t)i * bytes,
               (const uint8_t *)a->x.data + (size_t)((const int32_t *)a->rows.data)[i] * bytes, bytes);
    return NBL_OK;
}

static const nbl__slot take_slots[] = {
    NBL_SLOT(nbl__take_rows, x, "x", INPUT, NULL),
    NBL_SLOT(nbl__take_rows, rows, "rows", INPUT, NULL),
    NBL_SLOT(nbl__take_rows, y, "y", OUTPUT, NULL),
    {0},
};
static const nbl__impl take_ref = {"take_rows_ref", NBL_ISA_SCALAR, NULL, NULL, run_take};
static const nbl__impl *const take_impls[] = {&take_ref, NULL};
const nbl__family nbl__take_rows_family = {
    "take_rows", sizeof(nbl__take_rows), take_slots, no_attrs, {"take_rows", infer_take, take_impls}, {0},
};
