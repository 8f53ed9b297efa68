/* weight.c - the checked, threaded entries of nibble.h's section 4, and the dispatch on format.
 *
 * Work is cut at multiples of 64 Ki elements of the flattened weight: every block size divides that, so
 * a block is never shared and any number of threads gives the same bits.
 *
 * A transposed result goes through tiles on the stack: 128 columns of 64 (f32) or 128 rows are decoded row
 * by row, turned, and written as 128 runs of 256 bytes. The codes of a tile's row are about one cache line. */
#include "base/team.h"
#include "quant/quant.h"

#include <math.h>
#include <stdio.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum { CHUNK = 65536, TILE_COLUMNS = 128, TILE_BYTES = 32768 };

/* From this size on an output is written past the caches: it would not stay in those of one core, and
 * even where the shared one is larger, not fetching what is overwritten wins (measured: from 8 MiB). */
enum { STREAM_BYTES = 16 << 20 };

/* ---- decoding any format ---- */

static void decode_dense(nbl_isa isa, const nbl_weight *weight, int64_t begin, int64_t end, nbl_dtype dtype,
                         void *out)
{
    size_t from_size = nbl__size_of(weight->dtype), to_size = nbl__size_of(dtype);
    const uint8_t *from = (const uint8_t *)weight->data + (size_t)begin * from_size;
    if (weight->dtype == dtype) {
        memcpy(out, from, (size_t)(end - begin) * to_size);
        return;
    }
    enum { PIECE = 1024 };
    float piece[PIECE];
    for (int64_t i = 0; i < end - begin; i += PIECE) {
        int64_t count = nbl__min_i64(PIECE, end - begin - i);
        nbl__to_f32(isa, weight->dtype, from + (size_t)i * from_size, piece, count);
        nbl__from_f32(isa, piece, dtype, (uint8_t *)out + (size_t)i * to_size, count);
    }
}

void nbl__decode(nbl_isa isa, const nbl_weight *weight, int64_t begin, int64_t end, nbl_dtype dtype,
                 void *out, bool stream)
{
    if (begin >= end) return;
    switch (weight->format) {
    case NBL_FORMAT_DENSE: decode_dense(isa, weight, begin, end, dtype, out); break;
    case NBL_FORMAT_NF4:
        nbl__fourbit_decode(isa, weight, nbl__nf4_table, begin, end, dtype, out, stream);
        break;
    case NBL_FORMAT_FP4:
        nbl__fourbit_decode(isa, weight, nbl__fp4_table, begin, end, dtype, out, stream);
        break;
    case NBL_FORMAT_INT8: nbl__int8_decode(isa, weight, begin, end, dtype, out, stream); break;
    case NBL_FORMAT_MXFP4: nbl__mxfp4_decode(isa, weight, begin, end, dtype, out, stream); break;
    }
}

/* ---- checks ---- */

typedef struct shape_text {
    char text[256];
} shape_text;

/* "[4096, 11008]", for messages. */
static shape_text show_shape(int rank, const int64_t *shape)
{
    shape_text s = {"["};
    size_t used = 1;
    for (int i = 0; i < rank && used < sizeof s.text; i++)
        used += (size_t)snprintf(s.text + used, sizeof s.text - used, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (used < sizeof s.text) snprintf(s.text + used, sizeof s.text - used, "]");
    return s;
}

/* n = product of the shape, rows = product of all dimensions but the last. */
static nbl_status check_shape(nbl_context *ctx, const char *call, int rank, const int64_t *shape, int64_t *n,
                              int64_t *rows)
{
    NBL_CHECK(ctx, rank >= 1 && rank <= NBL_MAX_RANK, NBL_ERROR_SHAPE, "%s: rank %d, allowed are 1 to %d",
              call, rank, NBL_MAX_RANK);
    NBL_CHECK(ctx, shape != NULL, NBL_ERROR_ARGUMENT, "%s: shape is NULL", call);
    *n = 1;
    for (int i = 0; i < rank; i++) {
        NBL_CHECK(ctx, shape[i] >= 0, NBL_ERROR_SHAPE, "%s: shape %s has a negative dimension", call,
                  show_shape(rank, shape).text);
        *rows = *n;
        /* 2^59 elements: their bytes still fit 64 bits in every dtype */
        NBL_CHECK(ctx, !__builtin_mul_overflow(*n, shape[i], n) && *n <= INT64_C(1) << 59, NBL_ERROR_SHAPE,
                  "%s: shape %s has too many elements", call, show_shape(rank, shape).text);
    }
    return NBL_OK;
}

static nbl_status check_block(nbl_context *ctx, const char *call, nbl_format format, int64_t block)
{
    NBL_CHECK(ctx, nbl__block_valid(block), NBL_ERROR_ARGUMENT,
              "%s: block %" PRId64 " of %s; allowed are the powers of two from 32 to 4096", call, block,
              nbl_format_name(format));
    return NBL_OK;
}

static nbl_status check_mxfp4_columns(nbl_context *ctx, const char *call, int rank, const int64_t *shape)
{
    NBL_CHECK(ctx, shape[rank - 1] % 32 == 0, NBL_ERROR_SHAPE,
              "%s: mxfp4 needs a last dimension that is a multiple of 32, shape is %s", call,
              show_shape(rank, shape).text);
    return NBL_OK;
}

/* A part that must be there and, when it holds floats, be aligned to them. */
static nbl_status check_part(nbl_context *ctx, const char *call, nbl_format format, const char *part,
                             const void *pointer, size_t align)
{
    NBL_CHECK(ctx, pointer != NULL, NBL_ERROR_ARGUMENT, "%s: %s needs %s, which is NULL", call,
              nbl_format_name(format), part);
    NBL_CHECK(ctx, (uintptr_t)pointer % align == 0, NBL_ERROR_ARGUMENT, "%s: %s is not aligned to %zu bytes",
              call, part, align);
    return NBL_OK;
}

static nbl_status check_weight(nbl_context *ctx, const nbl_weight *w, int64_t *n, int64_t *rows)
{
    const char *call = "dequantize";
    NBL_CHECK(ctx, w != NULL, NBL_ERROR_ARGUMENT, "%s: weight is NULL", call);
    NBL_CHECK(ctx, (unsigned)w->format <= NBL_FORMAT_MXFP4, NBL_ERROR_ARGUMENT, "%s: unknown format %d", call,
              (int)w->format);
    NBL_TRY(check_shape(ctx, call, w->rank, w->shape, n, rows));
    if (w->format == NBL_FORMAT_DENSE)
        NBL_CHECK(ctx, nbl__is_compute(w->dtype), NBL_ERROR_DTYPE,
                  "%s: a dense weight of dtype %s and shape %s; only f32, f16 and bf16 can be decoded", call,
                  (unsigned)w->dtype < NBL_DTYPE_COUNT ? nbl_dtype_name(w->dtype) : "?",
                  show_shape(w->rank, w->shape).text);
    if (w->format == NBL_FORMAT_MXFP4) NBL_TRY(check_mxfp4_columns(ctx, call, w->rank, w->shape));
    bool fourbit = w->format == NBL_FORMAT_NF4 || w->format == NBL_FORMAT_FP4;
    if (fourbit) NBL_TRY(check_block(ctx, call, w->format, w->block));
    if (*n == 0) return NBL_OK; /* no part is read */

    NBL_TRY(check_part(ctx, call, w->format, "data", w->data, 1));
    if (w->format == NBL_FORMAT_MXFP4)
        NBL_TRY(check_part(ctx, call, w->format, "scale_codes", w->scale_codes, 1));
    if (w->format == NBL_FORMAT_INT8 || (fourbit && w->nested_scales == NULL))
        NBL_TRY(check_part(ctx, call, w->format, "scales", w->scales, 4));
    if (fourbit && w->nested_scales != NULL) {
        NBL_TRY(check_part(ctx, call, w->format, "nested_scales", w->nested_scales, 4));
        NBL_TRY(check_part(ctx, call, w->format, "nested_table", w->nested_table, 4));
        NBL_TRY(check_part(ctx, call, w->format, "scale_codes", w->scale_codes, 1));
        NBL_CHECK(ctx, w->nested_block >= 1, NBL_ERROR_ARGUMENT, "%s: nested block %" PRId64, call,
                  w->nested_block);
    }
    return NBL_OK;
}

/* ---- dequantise ---- */

typedef struct decode_job {
    nbl_isa isa;
    const nbl_weight *weight;
    int64_t begin, end, first_chunk; /* of elements */
    nbl_dtype dtype;
    uint8_t *out;
    bool stream;
    int64_t row_begin, rows, columns, column_tiles; /* transposed */
} decode_job;

static nbl_status decode_chunk(void *argument, int64_t item, int worker)
{
    (void)worker;
    const decode_job *job = argument;
    int64_t chunk = job->first_chunk + item;
    int64_t begin = nbl__max_i64(job->begin, chunk * CHUNK),
            end = nbl__min_i64(job->end, (chunk + 1) * CHUNK);
    nbl__decode(job->isa, job->weight, begin, end, job->dtype,
                job->out + (size_t)(begin - job->begin) * nbl__size_of(job->dtype), job->stream);
    return NBL_OK;
}

/* to[c][r] = from[r][c] for a tile; rows of `to` are `stride` elements apart. Squares of 4 x 4 or 8 x 8 go
 * through registers (SSE2, which every x86-64 has). Both sides are scratch of whole squares. */
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

static void transpose_16(const uint16_t *from, int64_t rows, int64_t columns, uint16_t *to, int64_t stride)
{
    for (int64_t c = 0; c < columns; c += 8) {
        for (int64_t r = 0; r < rows; r += 8) {
            const uint16_t *x = from + r * TILE_COLUMNS + c;
            uint16_t *y = to + c * stride + r;
#if defined(__x86_64__)
            __m128i a[8], b[8];
            for (int k = 0; k < 8; k++) a[k] = _mm_load_si128((const void *)(x + k * TILE_COLUMNS));
            for (int k = 0; k < 4; k++) { /* rows k and k + 4 interleaved, three times over */
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

/* Copies `bytes`; past the caches when `stream`, which needs whole cache lines on both sides. */
static void put_row(uint8_t *to, const uint8_t *from, size_t bytes, bool stream)
{
#if defined(__x86_64__)
    if (stream) {
        for (size_t i = 0; i < bytes; i += 16)
            _mm_stream_si128((void *)(to + i), _mm_load_si128((const void *)(from + i)));
        return;
    }
#endif
    (void)stream;
    memcpy(to, from, bytes);
}

static nbl_status decode_tile(void *argument, int64_t item, int worker)
{
    (void)worker;
    const decode_job *job = argument;
    size_t size = nbl__size_of(job->dtype);
    int64_t tile_rows = TILE_BYTES / TILE_COLUMNS / (int64_t)size;
    int64_t r0 = item / job->column_tiles * tile_rows, c0 = item % job->column_tiles * TILE_COLUMNS;
    int64_t rows = nbl__min_i64(tile_rows, job->rows - r0);
    int64_t columns = nbl__min_i64(TILE_COLUMNS, job->columns - c0);
    _Alignas(64) uint8_t tile[TILE_BYTES], turned[TILE_BYTES];
    for (int64_t r = 0; r < rows; r++) {
        int64_t begin = (job->row_begin + r0 + r) * job->columns + c0;
        nbl__decode(job->isa, job->weight, begin, begin + columns, job->dtype,
                    tile + (size_t)(r * TILE_COLUMNS) * size, false);
    }
    if (size == 4) transpose_32((const void *)tile, rows, columns, (void *)turned, tile_rows);
    else transpose_16((const void *)tile, rows, columns, (void *)turned, tile_rows);
    bool stream = job->stream && (size_t)rows * size % 64 == 0;
    for (int64_t c = 0; c < columns; c++)
        put_row(job->out + (size_t)((c0 + c) * job->rows + r0) * size,
                turned + (size_t)(c * tile_rows) * size, (size_t)rows * size, stream);
#if defined(__x86_64__)
    if (stream) _mm_sfence();
#endif
    return NBL_OK;
}

nbl_status nbl_dequantize(nbl_context *ctx, const nbl_weight *weight, int64_t row_begin, int64_t row_end,
                          nbl_dtype dtype, int transpose, void *out)
{
    int64_t n, rows;
    NBL_TRY(check_weight(ctx, weight, &n, &rows));
    NBL_CHECK(ctx, nbl__is_compute(dtype), NBL_ERROR_DTYPE,
              "dequantize: %s of shape %s to %s; allowed are f32, f16, bf16", nbl_format_name(weight->format),
              show_shape(weight->rank, weight->shape).text,
              (unsigned)dtype < NBL_DTYPE_COUNT ? nbl_dtype_name(dtype) : "an unknown dtype");
    NBL_CHECK(ctx, row_begin >= 0 && row_begin <= row_end && row_end <= rows, NBL_ERROR_ARGUMENT,
              "dequantize: rows %" PRId64 " to %" PRId64 " of a weight with %" PRId64 " rows, shape %s",
              row_begin, row_end, rows, show_shape(weight->rank, weight->shape).text);
    int64_t columns = weight->shape[weight->rank - 1];
    decode_job job = {.isa = nbl__isa(ctx),
                      .weight = weight,
                      .begin = row_begin * columns,
                      .end = row_end * columns,
                      .dtype = dtype,
                      .out = out,
                      .row_begin = row_begin,
                      .rows = row_end - row_begin,
                      .columns = columns};
    if (job.begin == job.end) return NBL_OK;
    size_t size = nbl__size_of(dtype);
    NBL_CHECK(ctx, out != NULL, NBL_ERROR_ARGUMENT, "dequantize: out is NULL");
    NBL_CHECK(ctx, (uintptr_t)out % size == 0, NBL_ERROR_ARGUMENT,
              "dequantize: out is not aligned to its %zu-byte elements", size);
    job.stream = (size_t)(job.end - job.begin) * size > STREAM_BYTES;
    if (transpose) {
        int64_t tile_rows = TILE_BYTES / TILE_COLUMNS / (int64_t)size;
        job.column_tiles = nbl__ceil_div(columns, TILE_COLUMNS);
        job.stream = job.stream && ((uintptr_t)out | (uint64_t)job.rows * size) % 64 == 0;
        return nbl__team_run(ctx, nbl__ceil_div(job.rows, tile_rows) * job.column_tiles, decode_tile, &job,
                             NULL);
    }
    job.first_chunk = job.begin / CHUNK;
    return nbl__team_run(ctx, nbl__ceil_div(job.end, CHUNK) - job.first_chunk, decode_chunk, &job, NULL);
}

/* ---- quantise ---- */

typedef struct plan {
    int64_t n, rows, columns, block, blocks, nested_blocks;
} plan;

static nbl_status plan_quantize(nbl_context *ctx, const nbl_quantize_options *options, int rank,
                                const int64_t *shape, plan *p)
{
    const char *call = "quantize";
    NBL_CHECK(ctx, options != NULL, NBL_ERROR_ARGUMENT, "%s: options is NULL", call);
    nbl_format format = options->format;
    NBL_CHECK(ctx, format > NBL_FORMAT_DENSE && (unsigned)format <= NBL_FORMAT_MXFP4, NBL_ERROR_ARGUMENT,
              "%s: format %s; allowed are nf4, fp4, int8, mxfp4", call,
              format == NBL_FORMAT_DENSE ? "dense" : "unknown");
    *p = (plan){0};
    NBL_TRY(check_shape(ctx, call, rank, shape, &p->n, &p->rows));
    p->columns = shape[rank - 1];
    if (format == NBL_FORMAT_INT8) {
        p->blocks = p->rows;
    } else if (format == NBL_FORMAT_MXFP4) {
        NBL_TRY(check_mxfp4_columns(ctx, call, rank, shape));
        p->block = 32;
        p->blocks = p->n / 32;
    } else {
        p->block = options->block == 0 ? 64 : options->block;
        NBL_TRY(check_block(ctx, call, format, p->block));
        p->blocks = nbl__ceil_div(p->n, p->block);
        if (options->nested) p->nested_blocks = nbl__ceil_div(p->blocks, NBL_NESTED_BLOCK);
        return NBL_OK;
    }
    NBL_CHECK(ctx, !options->nested, NBL_ERROR_UNSUPPORTED,
              "%s: nested scales exist for nf4 and fp4, not for %s", call, nbl_format_name(format));
    return NBL_OK;
}

nbl_status nbl_quantize_sizes(nbl_context *ctx, const nbl_quantize_options *options, int rank,
                              const int64_t *shape, nbl_quantized_sizes *sizes)
{
    plan p;
    NBL_CHECK(ctx, sizes != NULL, NBL_ERROR_ARGUMENT, "quantize: sizes is NULL");
    NBL_TRY(plan_quantize(ctx, options, rank, shape, &p));
    bool mxfp4 = options->format == NBL_FORMAT_MXFP4, int8 = options->format == NBL_FORMAT_INT8;
    *sizes = (nbl_quantized_sizes){
        .data = (size_t)(int8 ? p.n : nbl__ceil_div(p.n, 2)),
        .scales = mxfp4 ? 0 : (size_t)p.blocks * sizeof(float),
        .scale_codes = mxfp4 || p.nested_blocks > 0 ? (size_t)p.blocks : 0,
        .nested_scales = (size_t)p.nested_blocks * sizeof(float),
    };
    return NBL_OK;
}

typedef struct encode_job {
    nbl_isa isa;
    nbl_format format;
    plan plan;
    nbl_dtype dtype;
    const uint8_t *values;
    const nbl_quantized_parts *parts;
    int64_t rows_per_item;
    int64_t non_finite; /* added to atomically */
} encode_job;

static nbl_status encode_chunk(void *argument, int64_t item, int worker)
{
    (void)worker;
    encode_job *job = argument;
    const plan *p = &job->plan;
    const nbl_quantized_parts *to = job->parts;
    size_t size = nbl__size_of(job->dtype);
    int64_t bad;
    if (job->format == NBL_FORMAT_INT8) {
        int64_t row = item * job->rows_per_item, rows = nbl__min_i64(job->rows_per_item, p->rows - row);
        bad = nbl__int8_encode(job->isa, job->dtype, job->values + (size_t)(row * p->columns) * size, rows,
                               p->columns, (int8_t *)to->data + row * p->columns, to->scales + row);
    } else {
        int64_t begin = item * CHUNK, n = nbl__min_i64(CHUNK, p->n - begin), block = begin / p->block;
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

static nbl_status check_parts(nbl_context *ctx, const nbl_quantized_parts *parts, nbl_format format,
                              const nbl_quantized_sizes *sizes)
{
    NBL_CHECK(ctx, parts != NULL, NBL_ERROR_ARGUMENT, "quantize: parts is NULL");
    if (sizes->data) NBL_TRY(check_part(ctx, "quantize", format, "data", parts->data, 1));
    if (sizes->scales) NBL_TRY(check_part(ctx, "quantize", format, "scales", parts->scales, 4));
    if (sizes->scale_codes)
        NBL_TRY(check_part(ctx, "quantize", format, "scale_codes", parts->scale_codes, 1));
    if (sizes->nested_scales)
        NBL_TRY(check_part(ctx, "quantize", format, "nested_scales", parts->nested_scales, 4));
    return NBL_OK;
}

/* Double-quantises parts->scales into scale_codes and nested_scales. */
static nbl_status nest_scales(nbl_context *ctx, const plan *p, const nbl_quantized_parts *parts,
                              nbl_weight *weight)
{
    for (int64_t b = 0; b < p->blocks; b++)
        if (!isfinite(parts->scales[b])) {
            nbl__fail(ctx, NBL_ERROR_UNSUPPORTED,
                      "quantize: %s of shape %s: the scale of block %" PRId64
                      " is not finite, and nested scales would spread that to the whole weight",
                      nbl_format_name(weight->format), show_shape(weight->rank, weight->shape).text, b);
            return nbl__hint(ctx, NBL_ERROR_UNSUPPORTED,
                             "quantise without nested scales, or repair the infinite value");
        }
    weight->nested_offset = nbl__nested_offset(parts->scales, p->blocks);
    nbl__nested_encode(nbl__isa(ctx), parts->scales, p->blocks, weight->nested_offset, parts->scale_codes,
                       parts->nested_scales);
    weight->scales = NULL;
    weight->scale_codes = parts->scale_codes;
    weight->nested_scales = parts->nested_scales;
    weight->nested_table = nbl__dynamic_map_signed;
    weight->nested_block = NBL_NESTED_BLOCK;
    return NBL_OK;
}

nbl_status nbl_quantize(nbl_context *ctx, const nbl_quantize_options *options, nbl_dtype dtype, int rank,
                        const int64_t *shape, const void *values, const nbl_quantized_parts *parts,
                        nbl_weight *weight)
{
    nbl_quantized_sizes sizes;
    encode_job job = {.isa = nbl__isa(ctx), .dtype = dtype, .values = values, .parts = parts};
    plan *p = &job.plan;
    NBL_TRY(plan_quantize(ctx, options, rank, shape, p));
    NBL_TRY(nbl_quantize_sizes(ctx, options, rank, shape, &sizes));
    job.format = options->format;
    NBL_CHECK(ctx, nbl__is_compute(dtype), NBL_ERROR_DTYPE,
              "quantize: values of %s, shape %s, to %s; allowed are f32, f16, bf16",
              (unsigned)dtype < NBL_DTYPE_COUNT ? nbl_dtype_name(dtype) : "an unknown dtype",
              show_shape(rank, shape).text, nbl_format_name(job.format));
    NBL_CHECK(ctx, weight != NULL, NBL_ERROR_ARGUMENT, "quantize: weight is NULL");
    NBL_CHECK(ctx, values != NULL || p->n == 0, NBL_ERROR_ARGUMENT, "quantize: values is NULL, shape is %s",
              show_shape(rank, shape).text);
    NBL_TRY(check_parts(ctx, parts, job.format, &sizes));

    int64_t items = nbl__ceil_div(p->n, CHUNK);
    if (job.format == NBL_FORMAT_INT8) {
        job.rows_per_item = nbl__max_i64(1, CHUNK / nbl__max_i64(1, p->columns));
        items = nbl__ceil_div(p->rows, job.rows_per_item);
    }
    if (p->n == 0) { /* rows without columns still have scales */
        items = 0;
        if (sizes.scales) memset(parts->scales, 0, sizes.scales);
    }
    NBL_TRY(nbl__team_run(ctx, items, encode_chunk, &job, NULL));
    if (job.non_finite > 0)
        nbl__log(ctx, NBL_LOG_WARNING, "quantize: %" PRId64 " of %" PRId64 " values are not finite",
                 job.non_finite, p->n);

    nbl_weight made = {
        .format = job.format, .dtype = dtype, .rank = rank, .data = parts->data, .block = p->block};
    memcpy(made.shape, shape, (size_t)rank * sizeof *shape);
    if (job.format == NBL_FORMAT_MXFP4) made.scale_codes = parts->scale_codes;
    else made.scales = parts->scales;
    if (p->nested_blocks > 0) NBL_TRY(nest_scales(ctx, p, parts, &made));
    *weight = made;
    return NBL_OK;
}

/* ---- 8-bit block-wise ---- */

const float *nbl_dynamic_map(int is_signed)
{
    return is_signed ? nbl__dynamic_map_signed : nbl__dynamic_map_unsigned;
}

typedef struct dynamic_job {
    nbl_isa isa;
    const float *map;
    int64_t block, blocks_per_item, n;
    const float *values; /* to quantise; NULL: dequantise */
    uint8_t *codes;
    float *scales;
    const uint8_t *from_codes;
    const float *from_scales;
    float *to_values;
} dynamic_job;

static nbl_status dynamic_chunk(void *argument, int64_t item, int worker)
{
    (void)worker;
    const dynamic_job *job = argument;
    int64_t b = item * job->blocks_per_item, begin = b * job->block;
    int64_t n = nbl__min_i64(job->blocks_per_item * job->block, job->n - begin);
    if (job->values)
        nbl__dynamic8_encode(job->isa, job->map, job->block, job->values + begin, n, job->codes + begin,
                             job->scales + b);
    else
        nbl__dynamic8_decode(job->isa, job->map, job->block, job->from_codes + begin, job->from_scales + b, n,
                             job->to_values + begin);
    return NBL_OK;
}

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
    job->blocks_per_item = nbl__max_i64(1, CHUNK / job->block);
    return nbl__team_run(ctx, nbl__ceil_div(nbl__ceil_div(n, job->block), job->blocks_per_item),
                         dynamic_chunk, job, NULL);
}

nbl_status nbl_dynamic8_quantize(nbl_context *ctx, int is_signed, int64_t block, const float *values,
                                 int64_t n, uint8_t *codes, float *scales)
{
    dynamic_job job = {.map = nbl_dynamic_map(is_signed), .values = values, .codes = codes, .scales = scales};
    return run_dynamic(ctx, "dynamic8_quantize", block, values, n, codes, scales, &job);
}

nbl_status nbl_dynamic8_dequantize(nbl_context *ctx, int is_signed, int64_t block, const uint8_t *codes,
                                   const float *scales, int64_t n, float *values)
{
    dynamic_job job = {
        .map = nbl_dynamic_map(is_signed), .from_codes = codes, .from_scales = scales, .to_values = values};
    return run_dynamic(ctx, "dynamic8_dequantize", block, values, n, codes, scales, &job);
}
