/* gemv.c - see gemv.h; the loops are drawn in gemv_kernels.h.
 *
 * This file cuts k into spans, prepares A, chooses a kernel, and has the two ways without a
 * kernel:
 *
 *   rows      k along B's memory rows; any format, any offset in a block, k_index, dropout. Pieces of B are
 *             dequantized to the stack and multiplied there.
 *   columns   k down B's columns (dy·W). Four rows of B at a time are dequantized and added to a piece of the tile.
 */
#include "ops/gemv/cpu/gemv_kernels.h"

#include <stdalign.h>

#include "base/philox.h"
#include "ops/linear/linear.h"

/* ---- matrices in memory, in pieces of f32 ---- */

static const void *at(const nbl__gemm_matrix *mat, int64_t row, int64_t column)
{
    return (const uint8_t *)mat->data + (size_t)(row * mat->stride + column) * nbl__size_of(mat->dtype);
}

/* Dropout as nbl__dropout_keeps. One call of the generator decides for four neighbours. */
static void drop(const nbl__gemm_matrix *mat, int64_t row, int64_t begin, int64_t count, float *values)
{
    uint32_t key[2] = {(uint32_t)mat->seed, (uint32_t)(mat->seed >> 32)}, words[4];
    for (int64_t c = 0, i = mat->drop_first + row * mat->drop_columns + begin; c < count; c++, i++) {
        if (c == 0 || (i & 3) == 0)
            nbl__philox((uint32_t[4]){(uint32_t)(i >> 2), (uint32_t)(i >> 34), 0, 0}, key, words);
        values[c] = nbl__uniform(words[i & 3]) >= mat->dropout ? values[c] / (1 - mat->dropout) : 0;
    }
}

/* Elements [begin, begin + count) of a row in memory. A weight is rounded to `compute`, anything
 * else is widened. */
static void read_row(nbl_isa isa, const nbl__gemm_matrix *mat, nbl_dtype compute, int64_t row, int64_t begin,
                     int64_t count, float *out)
{
    if (mat->weight) {
        int64_t flat = row * nbl__gemv_columns(mat->weight) + begin;
        if (compute == NBL_DTYPE_F32) {
            nbl__dequantize(isa, mat->weight, flat, flat + count, compute, out, false);
            return;
        }
        uint16_t half[NBL_GEMV_PIECE];
        for (int64_t i = 0; i < count; i += NBL_GEMV_PIECE) {
            int64_t n = nbl__min_i64(NBL_GEMV_PIECE, count - i);
            nbl__dequantize(isa, mat->weight, flat + i, flat + i + n, compute, half, false);
            nbl__to_f32(isa, compute, half, out + i, n);
        }
        return;
    }
    if (mat->dtype == NBL_DTYPE_F32) memcpy(out, at(mat, row, begin), (size_t)count * sizeof *out);
    else nbl__to_f32(isa, mat->dtype, at(mat, row, begin), out, count);
    if (mat->dropout > 0) drop(mat, row, begin, count, out);
}

static float rounded(float value, nbl_dtype dtype)
{
    return dtype == NBL_DTYPE_F16    ? nbl__f16_to_f32(nbl__f32_to_f16(value))
           : dtype == NBL_DTYPE_BF16 ? nbl__bf16_to_f32(nbl__f32_to_bf16(value))
                                     : value;
}

static float read_one(const nbl__gemm_matrix *mat, nbl_dtype compute, int64_t row, int64_t column)
{
    float value;
    read_row(NBL_ISA_SCALAR, mat, compute, row, column, 1, &value);
    return value;
}

/* `count` of k from `first` on. `along`: line `line` is a row of the matrix, and k runs along it;
 * else it is a column. */
static void read_line(nbl_isa isa, const nbl__gemm_matrix *mat, nbl_dtype compute, bool along, int64_t line,
                      int64_t first, int64_t count, float *out)
{
    if (along && mat->k_index == NULL) {
        read_row(isa, mat, compute, line, first, count, out);
        return;
    }
    const nbl_weight *w = mat->weight;
    if (along && w && w->format == NBL_FORMAT_INT8) { /* the outliers of LLM.int8 */
        const int8_t *codes = (const int8_t *)w->data + line * nbl__gemv_columns(w);
        for (int64_t i = 0; i < count; i++) out[i] = (float)codes[mat->k_index[first + i]] * w->scales[line];
        for (int64_t i = 0; i < count; i++) out[i] = rounded(out[i] * NBL_INVERSE_127, compute);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t k = mat->k_index ? mat->k_index[first + i] : first + i;
        out[i] = along ? read_one(mat, compute, line, k) : read_one(mat, compute, k, line);
    }
}

/* ---- A ---- */

/* A's rows over the span, as f32 in kernel order. Rows past m and elements past the span are zero. */
static void prepare(const nbl__gemv_job *job, const nbl__gemv_plan *plan, float *a)
{
    const nbl__gemm_matrix *mat = &job->term->a;
    float line[NBL_GEMV_LONG];
    for (int64_t i = 0; i < job->rows; i++) {
        int64_t count = i < job->m ? job->count : 0,
                stop = nbl__ceil_div(job->count, NBL_GEMV_GROUP) * NBL_GEMV_GROUP;
        read_line(job->isa, mat, NBL_DTYPE_F32, !mat->transposed, i, job->first, count, line);
        memset(line + count, 0, (size_t)(stop - count) * sizeof *line);
        for (int64_t g = 0; g < stop; g += NBL_GEMV_GROUP) {
            float *to = a + g * job->rows + i * NBL_GEMV_GROUP;
            if (plan->permute) plan->permute(line + g, to);
            else memcpy(to, line + g, NBL_GEMV_GROUP * sizeof *to);
        }
    }
}

/* ---- scales of 4-bit weights ---- */

/* Nested scales [first, first + n), a group at a time, with the two roundings of
 * nbl__nested_dequantize. */
static void nested_scales(const nbl_weight *w, int64_t first, int64_t n, float *scales)
{
    const float *table = w->nested_table;
    for (int64_t i = 0, stop; i < n; i = stop) {
        int64_t group = (first + i) / w->nested_block;
        const float scale = w->nested_scales[group], offset = w->nested_offset;
        const uint8_t *codes = w->scale_codes + first;
        stop = nbl__min_i64(n, (group + 1) * w->nested_block - first);
        for (int64_t j = i; j < stop; j++) {
            float product = table[codes[j]] * scale;
            scales[j] = product + offset;
        }
    }
}

const float *nbl__gemv_scales(const nbl_weight *w, int64_t flat, int64_t count, float *room)
{
    int64_t unit = nbl__gemv_unit(w), units = nbl__ceil_div(count, unit), first = flat / w->block;
    if (w->format == NBL_FORMAT_MXFP4) {
        for (int64_t u = 0; u < units; u++) room[u] = nbl__mxfp4_scale(w->scale_codes[first + u]);
        return room;
    }
    if (w->nested_scales == NULL && w->block == unit) return w->scales + first;
    if (w->block == unit) {
        nested_scales(w, first, units, room);
        return room;
    }
    float blocks[NBL_GEMV_LONG / 128 + 2];
    const float *from = blocks;
    if (w->nested_scales) nested_scales(w, first, (flat + count - 1) / w->block - first + 1, blocks);
    else from = w->scales + first;
    int shift = __builtin_ctzll((unsigned long long)w->block);
    for (int64_t u = 0; u < units; u++) room[u] = from[((flat + u * unit) >> shift) - first];
    return room;
}

/* ---- without a kernel: k along the rows of B ---- */

/* nbl__gemv_dot with four independent sums. */
static void dot_scalar(int rows, const float *a, const float *w, int64_t count, float *sums)
{
    for (int i = 0; i < rows; i++) {
        float part[4] = {0};
        for (int64_t g = 0; g < count; g += NBL_GEMV_GROUP)
            for (int64_t k = 0; k < NBL_GEMV_GROUP; k++)
                part[k % 4] += a[g * rows + i * NBL_GEMV_GROUP + k] * w[g + k];
        sums[i] += (part[0] + part[1]) + (part[2] + part[3]);
    }
}

static nbl__gemv_dot dot_of(nbl_isa isa)
{
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) return nbl__gemv_dot_avx512;
    if (isa >= NBL_ISA_AVX2) return nbl__gemv_dot_avx2;
#endif
    (void)isa;
    return dot_scalar;
}

/* The way without a kernel, k along B's rows. */
static void run_rows(const nbl__gemv_job *job)
{
    const nbl__gemm_term *t = job->term;
    nbl__gemv_dot dot = dot_of(job->isa);
    alignas(64) float piece[NBL_GEMV_PIECE];
    for (int64_t n = job->n_begin; n < job->n_end; n++) {
        float sums[NBL_MAX_GEMV_ROWS] = {0};
        for (int64_t k = 0; k < job->count; k += NBL_GEMV_PIECE) {
            int64_t count = nbl__min_i64(NBL_GEMV_PIECE, job->count - k);
            int64_t padded = nbl__ceil_div(count, NBL_GEMV_GROUP) * NBL_GEMV_GROUP;
            read_line(job->isa, &t->b, t->compute, true, n, job->first + k, count, piece);
            memset(piece + count, 0, (size_t)(padded - count) * sizeof *piece);
            dot(job->rows, job->a + k * job->rows, piece, padded, sums);
        }
        for (int64_t i = 0; i < job->m; i++)
            job->tile[i * job->tile_stride + n - job->n_begin] += t->alpha * sums[i];
    }
}

/* ---- k down the columns of B ---- */

/* nbl__gemv_axpy. */
static void axpy_scalar(int rows, const float *a, const float *w, float *acc)
{
    for (int i = 0; i < rows; i++)
        for (int64_t c = 0; c < NBL_GEMV_PIECE; c++)
            for (int j = 0; j < 4; j++)
                acc[i * NBL_GEMV_PIECE + c] += a[i * NBL_GEMV_GROUP + j] * w[j * NBL_GEMV_PIECE + c];
}

static nbl__gemv_axpy axpy_of(nbl_isa isa)
{
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) return nbl__gemv_axpy_avx512;
    if (isa >= NBL_ISA_AVX2) return nbl__gemv_axpy_avx2;
#endif
    (void)isa;
    return axpy_scalar;
}

/* The way with k down B's columns. acc holds a piece of the tile for all rows. */
static void run_columns(const nbl__gemv_job *job)
{
    const nbl__gemm_term *t = job->term;
    nbl__gemv_axpy axpy = axpy_of(job->isa);
    alignas(64) float acc[NBL_MAX_GEMV_ROWS * NBL_GEMV_PIECE], lines[4 * NBL_GEMV_PIECE];
    memset(lines, 0, sizeof lines);
    for (int64_t n = job->n_begin; n < job->n_end; n += NBL_GEMV_PIECE) {
        int64_t count = nbl__min_i64(NBL_GEMV_PIECE, job->n_end - n);
        memset(acc, 0, (size_t)job->rows * NBL_GEMV_PIECE * sizeof *acc);
        for (int64_t k = 0; k < job->count; k += 4) {
            for (int64_t j = 0; j < 4; j++) {
                float *line = lines + j * NBL_GEMV_PIECE;
                int64_t row = job->first + k + j;
                if (k + j >= job->count) { /* not the row behind B: a NaN there times A's zero is NaN */
                    memset(line, 0, NBL_GEMV_PIECE * sizeof *line);
                    continue;
                }
                read_row(job->isa, &t->b, t->compute,
                         t->b.first_row + (t->b.k_index ? t->b.k_index[row] : row), n, count, line);
            }
            axpy(job->rows, job->a + k / NBL_GEMV_GROUP * NBL_GEMV_GROUP * job->rows + k % NBL_GEMV_GROUP,
                 lines, acc);
        }
        for (int64_t i = 0; i < job->m; i++)
            for (int64_t c = 0; c < count; c++)
                job->tile[i * job->tile_stride + n - job->n_begin + c] += t->alpha *
                                                                          acc[i * NBL_GEMV_PIECE + c];
    }
}

/* ---- the whole ---- */

/* Sets `plan` to a kernel, if there is one for this B. */
static bool kernel_for(nbl_isa isa, const nbl__gemm_term *t, nbl__gemv_plan *plan)
{
    if (!t->b.transposed || t->b.k_index || t->b.dropout > 0) return false;
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) return nbl__gemv_plan_avx512(t, plan);
    if (isa >= NBL_ISA_AVX2) return nbl__gemv_plan_avx2(t, plan);
#endif
    (void)isa, (void)plan;
    return false;
}

void nbl__gemv(nbl_isa isa, const nbl__gemm_term *term, int64_t m, int64_t n_begin, int64_t n_end,
               float *tile, int64_t tile_stride)
{
    assert(m <= NBL_MAX_GEMV_ROWS);
    if (m <= 0 || n_begin >= n_end) return;
    alignas(64) float a[NBL_GEMV_A];
    nbl__gemv_plan plan = {.run = term->b.transposed ? run_rows : run_columns};
    kernel_for(isa, term, &plan);
    int rows = m > 4 ? 8 : m > 2 ? 4 : (int)m;
    int64_t longest = nbl__min_i64(NBL_GEMV_LONG, NBL_GEMV_A / rows);
    int64_t spans = nbl__ceil_div(term->k, longest);
    if (spans == 0) return;
    int64_t length = nbl__ceil_div(nbl__ceil_div(term->k, spans), NBL_GEMV_GROUP) * NBL_GEMV_GROUP;
    for (int64_t first = 0; first < term->k; first += length) {
        int64_t count = nbl__min_i64(length, term->k - first);
        nbl__gemv_job job = {isa, term, m, rows, first, count, a, n_begin, n_end, tile, tile_stride};
        prepare(&job, &plan, a);
        plan.run(&job);
    }
}
