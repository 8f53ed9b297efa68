/* weight.c - dequantizing in host memory: checks, threads, any range of rows, optionally transposed; and the
 * dispatch on format. weight_encode.c is the opposite direction.
 *
 * A transposed result goes through tiles on the stack, so that both sides are accessed in whole
 * cache lines:
 *
 *     weight  64 rows (f32) or 128 rows (16-bit) x 128 columns   dequantized row by row
 *     tile    32 KiB, transposed in registers                    to 128 rows of 256 bytes
 *     out     128 runs of 256 bytes
 *
 * The codes of one tile row (128 columns) are one cache line of 64 bytes in the 4-bit formats. */
#include "quant/weight.h"
#include "base/team.h"

#include <stdio.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum { TILE_COLUMNS = 128, TILE_BYTES = 32768 };

/* Outputs above this size are written past the caches. They would not stay in one core's cache;
 * and even if the shared cache is larger, not reading the lines that are overwritten is faster
 * (measured: from 8 MiB). */
enum { STREAM_BYTES = 16 << 20 };

/* ---- dispatch on format ---- */

/* A dense weight: a copy, or a conversion through f32. */
static void dequantize_dense(nbl_isa isa, const nbl_weight *weight, int64_t begin, int64_t end,
                             nbl_dtype dtype, void *out)
{
    assert(nbl__is_compute(weight->dtype) && nbl__is_compute(dtype) && begin >= 0);
    size_t from_size = nbl__size_of(weight->dtype), to_size = nbl__size_of(dtype);
    const uint8_t *from = (const uint8_t *)weight->data + (size_t)begin * from_size;
    if (weight->dtype == dtype) {
        memcpy(out, from, (size_t)(end - begin) * to_size);
        return;
    }
    enum { PIECE = 1024 };
    /* Through f32 in pieces that fit the L1 cache. */
    float piece[PIECE];
    for (int64_t i = 0; i < end - begin; i += PIECE) {
        int64_t count = nbl__min_i64(PIECE, end - begin - i);
        nbl__to_f32(isa, weight->dtype, from + (size_t)i * from_size, piece, count);
        nbl__from_f32(isa, piece, dtype, (uint8_t *)out + (size_t)i * to_size, count);
    }
}

/* The one function that knows all formats. Scratch is on the stack, and nothing can fail. */
void nbl__dequantize(nbl_isa isa, const nbl_weight *weight, int64_t begin, int64_t end, nbl_dtype dtype,
                     void *out, bool stream)
{
    if (begin >= end) return;
    switch (weight->format) {
    case NBL_FORMAT_DENSE: dequantize_dense(isa, weight, begin, end, dtype, out); break;
    case NBL_FORMAT_NF4:
        nbl__fourbit_dequantize(isa, weight, nbl__nf4_table, begin, end, dtype, out, stream);
        break;
    case NBL_FORMAT_FP4:
        nbl__fourbit_dequantize(isa, weight, nbl__fp4_table, begin, end, dtype, out, stream);
        break;
    case NBL_FORMAT_INT8: nbl__int8_dequantize(isa, weight, begin, end, dtype, out, stream); break;
    case NBL_FORMAT_MXFP4: nbl__mxfp4_dequantize(isa, weight, begin, end, dtype, out, stream); break;
    }
}

/* ---- checks ---- */

nbl__shape_text nbl__show_shape(int rank, const int64_t *shape)
{
    nbl__shape_text s = {"["};
    size_t used = 1;
    for (int i = 0; i < rank && used < sizeof s.text; i++)
        used += (size_t)snprintf(s.text + used, sizeof s.text - used, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (used < sizeof s.text) snprintf(s.text + used, sizeof s.text - used, "]");
    return s;
}

/* Checks rank and shape; *n: elements; *rows: the product of all dimensions but the last. */
nbl_status nbl__check_shape(nbl_context *ctx, const char *call, int rank, const int64_t *shape, int64_t *n,
                            int64_t *rows)
{
    NBL_CHECK(ctx, rank >= 1 && rank <= NBL_MAX_RANK, NBL_ERROR_SHAPE, "%s: rank %d, allowed are 1 to %d",
              call, rank, NBL_MAX_RANK);
    NBL_CHECK(ctx, shape != NULL, NBL_ERROR_ARGUMENT, "%s: shape is NULL", call);
    *n = 1;
    for (int i = 0; i < rank; i++) {
        NBL_CHECK(ctx, shape[i] >= 0, NBL_ERROR_SHAPE, "%s: shape %s has a negative dimension", call,
                  nbl__show_shape(rank, shape).text);
        *rows = *n;
        /* up to 2^59 elements: their bytes fit 64 bits in every dtype */
        NBL_CHECK(ctx, !__builtin_mul_overflow(*n, shape[i], n) && *n <= INT64_C(1) << 59, NBL_ERROR_SHAPE,
                  "%s: shape %s has too many elements", call, nbl__show_shape(rank, shape).text);
    }
    return NBL_OK;
}

nbl_status nbl__check_block(nbl_context *ctx, const char *call, nbl_format format, int64_t block)
{
    NBL_CHECK(ctx, nbl__block_valid(block), NBL_ERROR_ARGUMENT,
              "%s: block %" PRId64 " of %s; allowed are the powers of two from 32 to 4096", call, block,
              nbl_format_name(format));
    return NBL_OK;
}

nbl_status nbl__check_mxfp4_columns(nbl_context *ctx, const char *call, int rank, const int64_t *shape)
{
    NBL_CHECK(ctx, shape[rank - 1] % 32 == 0, NBL_ERROR_SHAPE,
              "%s: mxfp4 needs a last dimension that is a multiple of 32, shape is %s", call,
              nbl__show_shape(rank, shape).text);
    return NBL_OK;
}

const char *nbl__any_dtype_name(nbl_dtype dtype)
{
    return (unsigned)dtype < NBL_DTYPE_COUNT ? nbl_dtype_name(dtype) : "an unknown dtype";
}

nbl_status nbl__check_part(nbl_context *ctx, const char *call, nbl_format format, const char *part,
                           const void *pointer, size_t align)
{
    NBL_CHECK(ctx, pointer != NULL, NBL_ERROR_ARGUMENT, "%s: %s needs %s, which is NULL", call,
              nbl_format_name(format), part);
    NBL_CHECK(ctx, (uintptr_t)pointer % align == 0, NBL_ERROR_ARGUMENT, "%s: %s is not aligned to %zu bytes",
              call, part, align);
    return NBL_OK;
}

/* One part of a weight: what the caller has, 0: not told, and what the shape needs. */
static nbl_status check_count(nbl_context *ctx, const char *call, const nbl_weight *w, const char *part,
                              uint64_t given, uint64_t needed)
{
    if (given == 0 || given == needed) return NBL_OK;
    bool bytes = strcmp(part, "data") == 0; /* packed storage may be padded */
    if (bytes && given > needed) return NBL_OK;
    return nbl__fail(ctx, NBL_ERROR_SHAPE, "%s: %s has %" PRIu64 " %s; %s of shape %s%s needs %" PRIu64, call,
                     part, given, bytes ? "bytes" : "elements", nbl_format_name(w->format),
                     nbl__show_shape(w->rank, w->shape).text, w->nested_scales ? " with nested scales" : "",
                     needed);
}

static nbl_status check_f32(nbl_context *ctx, const char *call, const char *part, nbl_dtype dtype)
{
    if (dtype == NBL_DTYPE_F32) return NBL_OK;
    nbl_status status = nbl__fail(ctx, NBL_ERROR_DTYPE, "%s: %s is %s; it must be f32", call, part,
                                  nbl__any_dtype_name(dtype));
    return nbl__hint(ctx, status, "a cast of the whole model also cast the scales; keep them in f32");
}

/* Compares what the caller tells of the parts with what the shape needs. */
static nbl_status check_parts(nbl_context *ctx, const char *call, const nbl_weight *w)
{
    const nbl_weight_parts *given = &w->given;
    NBL_TRY(check_f32(ctx, call, "scales", given->scales_dtype));
    NBL_TRY(check_f32(ctx, call, "nested_scales", given->nested_scales_dtype));
    NBL_TRY(check_f32(ctx, call, "nested_table", given->nested_table_dtype));
    nbl__weight_sizes needed = nbl__weight_sizes_of(w);
    NBL_TRY(check_count(ctx, call, w, "data", given->data_bytes, needed.data));
    NBL_TRY(check_count(ctx, call, w, "scales", (uint64_t)given->scales, needed.scales / 4));
    NBL_TRY(check_count(ctx, call, w, "scale_codes", (uint64_t)given->scale_codes, needed.scale_codes));
    NBL_TRY(
        check_count(ctx, call, w, "nested_scales", (uint64_t)given->nested_scales, needed.nested_scales / 4));
    return check_count(ctx, call, w, "nested_table", (uint64_t)given->nested_table, needed.nested_table / 4);
}

void nbl__weight_read_offset(nbl_weight *weight)
{
    if (weight->nested_offset_at == NULL) return;
    weight->nested_offset = *weight->nested_offset_at;
    weight->nested_offset_at = NULL;
}

/* Checks everything that the kernels rely on. The parts must be aligned to their elements,
 * since kernels load them so. */
nbl_status nbl__check_weight(nbl_context *ctx, const char *call, const nbl_weight *w, int64_t *n,
                             int64_t *rows)
{
    NBL_CHECK(ctx, w != NULL, NBL_ERROR_ARGUMENT, "%s: weight is NULL", call);
    NBL_CHECK(ctx, (unsigned)w->format <= NBL_FORMAT_MXFP4, NBL_ERROR_ARGUMENT, "%s: unknown format %d", call,
              (int)w->format);
    NBL_CHECK(ctx, w->members == NULL, NBL_ERROR_ARGUMENT,
              "%s: a stack of %" PRId64 " members; one weight was expected", call, w->member_count);
    NBL_TRY(nbl__check_shape(ctx, call, w->rank, w->shape, n, rows));
    if (w->format == NBL_FORMAT_DENSE)
        NBL_CHECK(ctx, nbl__is_compute(w->dtype), NBL_ERROR_DTYPE,
                  "%s: a dense weight of dtype %s and shape %s; only f32, f16 and bf16 are allowed", call,
                  nbl__any_dtype_name(w->dtype), nbl__show_shape(w->rank, w->shape).text);
    if (w->format == NBL_FORMAT_MXFP4) NBL_TRY(nbl__check_mxfp4_columns(ctx, call, w->rank, w->shape));
    bool fourbit = w->format == NBL_FORMAT_NF4 || w->format == NBL_FORMAT_FP4;
    if (fourbit) NBL_TRY(nbl__check_block(ctx, call, w->format, w->block));
    if (*n == 0) return NBL_OK; /* no elements: no part is read */

    NBL_TRY(nbl__check_part(ctx, call, w->format, "data", w->data, 1));
    if (w->format == NBL_FORMAT_MXFP4)
        NBL_TRY(nbl__check_part(ctx, call, w->format, "scale_codes", w->scale_codes, 1));
    if (w->format == NBL_FORMAT_INT8 || (fourbit && w->nested_scales == NULL))
        NBL_TRY(nbl__check_part(ctx, call, w->format, "scales", w->scales, 4));
    if (fourbit && w->nested_scales != NULL) {
        NBL_TRY(nbl__check_part(ctx, call, w->format, "nested_scales", w->nested_scales, 4));
        NBL_TRY(nbl__check_part(ctx, call, w->format, "nested_table", w->nested_table, 4));
        NBL_TRY(nbl__check_part(ctx, call, w->format, "scale_codes", w->scale_codes, 1));
        NBL_CHECK(ctx, w->nested_block >= 1, NBL_ERROR_ARGUMENT, "%s: nested block %" PRId64, call,
                  w->nested_block);
        NBL_CHECK(ctx, w->nested_offset_at == NULL || (uintptr_t)w->nested_offset_at % 4 == 0,
                  NBL_ERROR_ARGUMENT, "%s: nested_offset_at is not aligned to 4 bytes", call);
    }
    return check_parts(ctx, call, w);
}

/* ---- rows of a weight ---- */

typedef struct dequantize_job {
    nbl_isa isa;
    const nbl_weight *weight;
    int64_t begin, end, first_chunk; /* elements; the chunk that holds `begin` */
    nbl_dtype dtype;
    uint8_t *out;
    bool stream;
    /* for a transposed result */
    int64_t row_begin, rows, columns, column_tiles; /* transposed */
} dequantize_job;

/* One chunk of a result that is not transposed. */
static nbl_status dequantize_chunk(void *argument, int64_t item, int worker)
{
    (void)worker;
    const dequantize_job *job = argument;
    int64_t chunk = job->first_chunk + item;
    int64_t begin = nbl__max_i64(job->begin, chunk * NBL_WEIGHT_CHUNK),
            end = nbl__min_i64(job->end, (chunk + 1) * NBL_WEIGHT_CHUNK);
    assert(begin < end);
    nbl__dequantize(job->isa, job->weight, begin, end, job->dtype,
                    job->out + (size_t)(begin - job->begin) * nbl__size_of(job->dtype), job->stream);
    return NBL_OK;
}

/* to[c][r] = from[r][c] for a tile of 32-bit elements. Rows of `from` are TILE_COLUMNS elements
 * apart, rows of `to` are `stride`. Squares of 4 x 4 go through registers (SSE2, part of every
 * x86-64). Rows and columns are rounded up to whole squares; both tiles are scratch large enough
 * for that. */
static void transpose_32(const uint32_t *from, int64_t rows, int64_t columns, uint32_t *to, int64_t stride)
{
    for (int64_t c = 0; c < columns; c += 4) {
        for (int64_t r = 0; r < rows; r += 4) {
            const uint32_t *x = from + r * TILE_COLUMNS + c;
            uint32_t *y = to + c * stride + r;
#if defined(__x86_64__)
            __m128i x0 = _mm_load_si128((const void *)x),
                    x1 = _mm_load_si128((const void *)(x + TILE_COLUMNS));
            __m128i x2 = _mm_load_si128((const void *)(x + 2 * TILE_COLUMNS));
            __m128i x3 = _mm_load_si128((const void *)(x + 3 * TILE_COLUMNS));
            __m128i a = _mm_unpacklo_epi32(x0, x1), b = _mm_unpacklo_epi32(x2, x3);
            __m128i d = _mm_unpackhi_epi32(x0, x1), e = _mm_unpackhi_epi32(x2, x3);
            _mm_store_si128((void *)y, _mm_unpacklo_epi64(a, b));
            _mm_store_si128((void *)(y + stride), _mm_unpackhi_epi64(a, b));
            _mm_store_si128((void *)(y + 2 * stride), _mm_unpacklo_epi64(d, e));
            _mm_store_si128((void *)(y + 3 * stride), _mm_unpackhi_epi64(d, e));
#else
            for (int i = 0; i < 16; i++) y[i % 4 * stride + i / 4] = x[i / 4 * TILE_COLUMNS + i % 4];
#endif
        }
    }
}

/* The same for 16-bit elements, in squares of 8 x 8. */
static void transpose_16(const uint16_t *from, int64_t rows, int64_t columns, uint16_t *to, int64_t stride)
{
    for (int64_t c = 0; c < columns; c += 8) {
        for (int64_t r = 0; r < rows; r += 8) {
            const uint16_t *x = from + r * TILE_COLUMNS + c;
            uint16_t *y = to + c * stride + r;
#if defined(__x86_64__)
            __m128i a[8], b[8];
            for (int k = 0; k < 8; k++) a[k] = _mm_load_si128((const void *)(x + k * TILE_COLUMNS));
            for (int k = 0; k < 4; k++) { /* interleave rows k and k + 4, three times in all */
                b[2 * k] = _mm_unpacklo_epi16(a[k], a[k + 4]);
                b[2 * k + 1] = _mm_unpackhi_epi16(a[k], a[k + 4]);
            }
            for (int k = 0; k < 4; k++) {
                a[2 * k] = _mm_unpacklo_epi16(b[k], b[k + 4]);
                a[2 * k + 1] = _mm_unpackhi_epi16(b[k], b[k + 4]);
            }
            for (int k = 0; k < 4; k++) {
                _mm_store_si128((void *)(y + 2 * k * stride), _mm_unpacklo_epi16(a[k], a[k + 4]));
                _mm_store_si128((void *)(y + (2 * k + 1) * stride), _mm_unpackhi_epi16(a[k], a[k + 4]));
            }
#else
            for (int i = 0; i < 64; i++) y[i % 8 * stride + i / 8] = x[i / 8 * TILE_COLUMNS + i % 8];
#endif
        }
    }
}

/* Copies a row; `stream`: past the caches, which needs whole cache lines on both sides. */
static void put_row(uint8_t *to, const uint8_t *from, size_t bytes, bool stream)
{
#if defined(__x86_64__)
    if (stream) {
        assert((uintptr_t)to % 64 == 0 && (uintptr_t)from % 16 == 0 && bytes % 64 == 0);
        for (size_t i = 0; i < bytes; i += 16)
            _mm_stream_si128((void *)(to + i), _mm_load_si128((const void *)(from + i)));
        return;
    }
#endif
    (void)stream;
    memcpy(to, from, bytes);
}

/* One tile of a transposed result. */
static nbl_status dequantize_tile(void *argument, int64_t item, int worker)
{
    (void)worker;
    const dequantize_job *job = argument;
    size_t size = nbl__size_of(job->dtype);
    /* 64 rows of f32 or 128 of 16 bits: 256 bytes per column of the result */
    int64_t tile_rows = TILE_BYTES / TILE_COLUMNS / (int64_t)size;
    int64_t r0 = item / job->column_tiles * tile_rows, c0 = item % job->column_tiles * TILE_COLUMNS;
    int64_t rows = nbl__min_i64(tile_rows, job->rows - r0);
    int64_t columns = nbl__min_i64(TILE_COLUMNS, job->columns - c0);
    assert(rows > 0 && columns > 0 && tile_rows * TILE_COLUMNS * (int64_t)size == TILE_BYTES);
    _Alignas(64) uint8_t tile[TILE_BYTES], transposed[TILE_BYTES];
    for (int64_t r = 0; r < rows; r++) {
        int64_t begin = (job->row_begin + r0 + r) * job->columns + c0;
        nbl__dequantize(job->isa, job->weight, begin, begin + columns, job->dtype,
                        tile + (size_t)(r * TILE_COLUMNS) * size, false);
    }
    if (size == 4) transpose_32((const void *)tile, rows, columns, (void *)transposed, tile_rows);
    else transpose_16((const void *)tile, rows, columns, (void *)transposed, tile_rows);
    /* Past the caches only if every run is whole cache lines. */
    bool stream = job->stream && (size_t)rows * size % 64 == 0;
    for (int64_t c = 0; c < columns; c++)
        put_row(job->out + (size_t)((c0 + c) * job->rows + r0) * size,
                transposed + (size_t)(c * tile_rows) * size, (size_t)rows * size, stream);
#if defined(__x86_64__)
    if (stream) _mm_sfence();
#endif
    return NBL_OK;
}

nbl_status nbl__check_dequantize(nbl_context *ctx, const nbl_weight *weight, int64_t row_begin,
                                 int64_t row_end, nbl_dtype dtype, const void *out)
{
    int64_t n, rows;
    NBL_TRY(nbl__check_weight(ctx, "dequantize", weight, &n, &rows));
    NBL_CHECK(ctx, nbl__is_compute(dtype), NBL_ERROR_DTYPE,
              "dequantize: %s of shape %s to %s; allowed are f32, f16, bf16", nbl_format_name(weight->format),
              nbl__show_shape(weight->rank, weight->shape).text, nbl__any_dtype_name(dtype));
    NBL_CHECK(ctx, row_begin >= 0 && row_begin <= row_end && row_end <= rows, NBL_ERROR_ARGUMENT,
              "dequantize: rows %" PRId64 " to %" PRId64 " of a weight with %" PRId64 " rows, shape %s",
              row_begin, row_end, rows, nbl__show_shape(weight->rank, weight->shape).text);
    if (row_begin == row_end || n == 0) return NBL_OK;
    size_t size = nbl__size_of(dtype);
    NBL_CHECK(ctx, out != NULL, NBL_ERROR_ARGUMENT, "dequantize: out is NULL");
    NBL_CHECK(ctx, (uintptr_t)out % size == 0, NBL_ERROR_ARGUMENT,
              "dequantize: out is not aligned to its %zu-byte elements", size);
    return NBL_OK;
}

nbl_status nbl__dequantize_rows(nbl_context *ctx, const nbl_weight *weight, int64_t row_begin,
                                int64_t row_end, nbl_dtype dtype, bool transpose, void *out)
{
    nbl_weight here = *weight;
    nbl__weight_read_offset(&here);
    /* The rows are one range of the flattened weight. */
    int64_t columns = weight->shape[weight->rank - 1];
    dequantize_job job = {.isa = nbl__isa(ctx),
                          .weight = &here,
                          .begin = row_begin * columns,
                          .end = row_end * columns,
                          .dtype = dtype,
                          .out = out,
                          .row_begin = row_begin,
                          .rows = row_end - row_begin,
                          .columns = columns};
    if (job.begin == job.end) return NBL_OK;
    size_t size = nbl__size_of(dtype);
    job.stream = (size_t)(job.end - job.begin) * size > STREAM_BYTES;
    if (transpose) {
        int64_t tile_rows = TILE_BYTES / TILE_COLUMNS / (int64_t)size;
        job.column_tiles = nbl__ceil_div(columns, TILE_COLUMNS);
        job.stream = job.stream && ((uintptr_t)out | (uint64_t)job.rows * size) % 64 == 0;
        return nbl__team_run(ctx, nbl__ceil_div(job.rows, tile_rows) * job.column_tiles, dequantize_tile,
                             &job, NULL);
    }
    job.first_chunk = job.begin / NBL_WEIGHT_CHUNK;
    return nbl__team_run(ctx, nbl__ceil_div(job.end, NBL_WEIGHT_CHUNK) - job.first_chunk, dequantize_chunk,
                         &job, NULL);
}

nbl_status nbl__dequantize_host(nbl_context *ctx, const nbl_weight *weight, int64_t row_begin,
                                int64_t row_end, nbl_dtype dtype, bool transpose, void *out)
{
    NBL_TRY(nbl__check_dequantize(ctx, weight, row_begin, row_end, dtype, out));
    return nbl__dequantize_rows(ctx, weight, row_begin, row_end, dtype, transpose, out);
}

nbl__weight_sizes nbl__weight_sizes_of(const nbl_weight *w)
{
    int64_t n = 1, rows = 1, blocks;
    for (int i = 0; i < w->rank; i++) n *= w->shape[i];
    for (int i = 0; i + 1 < w->rank; i++) rows *= w->shape[i];
    switch (w->format) {
    case NBL_FORMAT_DENSE: return (nbl__weight_sizes){.data = (size_t)n * nbl__size_of(w->dtype)};
    case NBL_FORMAT_INT8:
        return (nbl__weight_sizes){.data = (size_t)n, .scales = (size_t)rows * sizeof(float)};
    case NBL_FORMAT_MXFP4: return (nbl__weight_sizes){.data = (size_t)n / 2, .scale_codes = (size_t)n / 32};
    default: break;
    }
    /* NF4 and FP4. */
    assert(nbl__block_valid(w->block));
    blocks = nbl__ceil_div(n, w->block);
    nbl__weight_sizes sizes = {.data = (size_t)nbl__ceil_div(n, 2)};
    if (w->nested_scales == NULL) {
        sizes.scales = (size_t)blocks * sizeof(float);
        return sizes;
    }
    sizes.scale_codes = (size_t)blocks;
    sizes.nested_scales = (size_t)nbl__ceil_div(blocks, w->nested_block) * sizeof(float);
    sizes.nested_table = 256 * sizeof(float);
    return sizes;
}
