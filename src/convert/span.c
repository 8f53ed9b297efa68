/* span.c - spans of logical tensors: their sizes, values and pages. See convert.h.
 *
 * A span is a range of elements in logical order. For most tensors this is the order of the file,
 * so a span is one range of bytes. MXFP4 experts are stored transposed: a span of theirs is
 * scattered over its whole expert, and begins at whole logical rows.
 *
 *     stored   [expert, out, in]     4 bits, blocks of 32 along `in`
 *     logical  [expert, in, out]     span_unit: 32 rows of `out` values */
#include "convert/convert.h"

int64_t nbl__elements(const nbl_tensor_info *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

/* 32 rows: a block of 32 codes along `in` is one column of them. */
int64_t nbl__span_unit(const nbl_tensor_info *t)
{
    return t->transposed && nbl__elements(t) > 0 ? 32 * t->shape[t->rank - 1] : 1;
}

int64_t nbl__span_size(int64_t unit, int64_t bytes)
{
    return nbl__max_i64(NBL_SPAN_BYTES / bytes / unit, 1) * unit;
}

bool nbl__is_decodable(const nbl_tensor_info *t)
{
    return t->weight.format != NBL_FORMAT_DENSE || nbl__is_compute(t->weight.dtype);
}

/* MXFP4 experts are stored [expert, out, in], the logical order is [expert, in, out]. Dequantizes a
 * tile of OUTS by INS stored values, then writes it transposed. */
static void dequantize_transposed(nbl_isa isa, const nbl_weight *w, int64_t begin, int64_t end,
                                  nbl_dtype dtype, uint8_t *out)
{
    enum { OUTS = 32, INS = 128 };
    _Alignas(64) uint8_t tile[OUTS * INS * 4];
    int64_t outs = w->shape[w->rank - 2], ins = w->shape[w->rank - 1];
    size_t size = nbl__size_of(dtype);
    for (int64_t row = begin / outs, last = end / outs; row < last;) { /* logical rows: expert * ins + in */
        int64_t expert = row / ins, in = row % ins;
        int64_t count = nbl__min_i64(nbl__min_i64(ins - in, last - row), INS);
        for (int64_t o = 0; o < outs; o += OUTS) {
            int64_t wide = nbl__min_i64(OUTS, outs - o);
            for (int64_t j = 0; j < wide; j++) {
                int64_t at = (expert * outs + o + j) * ins + in;
                nbl__dequantize(isa, w, at, at + count, dtype, tile + (size_t)(j * INS) * size, false);
            }
            for (int64_t i = 0; i < count; i++) {
                uint8_t *line = out + (size_t)((row - begin / outs + i) * outs + o) * size;
                for (int64_t j = 0; j < wide; j++) {
                    const uint8_t *value = tile + (size_t)(j * INS + i) * size;
                    if (size == 4) memcpy(line + 4 * j, value, 4);
                    else memcpy(line + 2 * j, value, 2);
                }
            }
        }
        row += count;
    }
}

/* The bytes of elements [begin, end) in the file. Elements of 4 bits begin at an even index. */
static void stored_range(const nbl_tensor_info *t, int64_t begin, int64_t end, const uint8_t **data,
                         uint64_t *size)
{
    const nbl_weight *w = &t->weight;
    int64_t bits = w->format == NBL_FORMAT_DENSE  ? nbl__dtype_bits(w->dtype)
                   : w->format == NBL_FORMAT_INT8 ? 8
                                                  : 4;
    *data = (const uint8_t *)w->data + begin * bits / 8;
    *size = (uint64_t)nbl__ceil_div((end - begin) * bits, 8);
}

void nbl__span_dequantize(nbl_isa isa, const nbl_tensor_info *t, int64_t begin, int64_t end, nbl_dtype dtype,
                          void *out)
{
    if (begin >= end) return;
    if (t->transposed) dequantize_transposed(isa, &t->weight, begin, end, dtype, out);
    else nbl__dequantize(isa, &t->weight, begin, end, dtype, out, false);
}

void nbl__span_fetch(const nbl_tensor_info *t, int64_t begin, int64_t end)
{
    const uint8_t *data;
    uint64_t size;
    if (t->transposed || begin >= end) return; /* transposed reads are scattered: leave it to page faults */
    stored_range(t, begin, end, &data, &size);
    nbl__file_need(data, size);
}

void nbl__span_release(const nbl_checkpoint *c, const nbl_tensor_info *t, int64_t begin, int64_t end)
{
    const uint8_t *data;
    uint64_t size;
    /* Of transposed experts, drop only those that end within the span: other workers may still read
     * the rest. */
    if (t->transposed) {
        int64_t matrix = t->shape[t->rank - 1] * t->shape[t->rank - 2];
        begin = begin / matrix * matrix;
        end = end / matrix * matrix;
    }
    if (begin >= end) return;
    stored_range(t, begin, end, &data, &size);
    nbl__checkpoint_drop(c, data, size);
}

void nbl__tensor_release(const nbl_checkpoint *c, const nbl_tensor_info *t)
{
    const nbl_weight *w = &t->weight;
    int64_t n = nbl__elements(t);
    if (n == 0) return;
    /* one scale per row for int8, one per block for the others */
    int64_t scales = w->format == NBL_FORMAT_INT8 ? n / t->shape[t->rank - 1]
                     : w->block                   ? nbl__ceil_div(n, w->block)
                                                  : 0;
    const uint8_t *data;
    uint64_t size;
    stored_range(t, 0, n, &data, &size);
    nbl__checkpoint_drop(c, data, size);
    if (w->scales) nbl__checkpoint_drop(c, w->scales, (uint64_t)scales * sizeof(float));
    if (w->scale_codes) nbl__checkpoint_drop(c, w->scale_codes, (uint64_t)scales);
}

nbl_status nbl__run_spans(nbl_context *ctx, int64_t items, size_t bytes, nbl__team_fn fn, void *job,
                          nbl__buffers *buffers, const char *what)
{
    buffers->bytes = (bytes + 63) / 64 * 64;
    size_t all = (size_t)nbl__team_size(ctx, items) * buffers->bytes;
    NBL_TRY(NBL_ALLOC(ctx, buffers->memory, all));
    nbl_status status = nbl__team_run(ctx, items, fn, job, what);
    nbl__free(ctx, buffers->memory, all);
    buffers->memory = NULL;
    if (status != NBL_OK)
        NBL_TRY(nbl__files_check(ctx)); /* what is wrong with values of a changed file is that */
    return status;
}
