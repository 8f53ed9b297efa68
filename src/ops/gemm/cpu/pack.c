/* pack.c - packs any operand into panels, through rows of f32, and chooses a faster algorithm where
 * there is one. See pack.h.
 *
 *   transposed   for each panel:    16 rows of k values -> f32 in scratch -> transpose -> panel
 *   straight     for each k:        one row of values for all panels of the call -> f32 in scratch
 *                                   -> its piece for each panel
 *
 * A row that is f32 in memory already is read in place.
 *
 * Bytes per value: the operand's, once; 4 written to and read from scratch in the L1 cache; the
 * panel's. Limit: dequantizing for weights, the L1 cache for dense operands. */
#include "ops/gemm/cpu/pack.h"

#include "ops/linear/cpu/dropout.h"
#include "quant/quant.h"

/* ---- rows as f32 ---- */

/* Applies the operand's dropout to `count` values of a row, from column `begin` on (or k_index[begin]
 * on). */
static void drop(const nbl__pack_source *s, int64_t row, int64_t begin, int64_t count, const int32_t *k_index,
                 float *values)
{
    const nbl__gemm_matrix *m = s->mat;
    int64_t first = m->drop_first + row * m->drop_columns;
    assert(m->dropout > 0 && m->dropout < 1 && first >= 0);
    if (k_index == NULL) nbl__drop_f32(s->isa, m->seed, m->dropout, first + begin, count, values);
    else
        for (int64_t i = 0; i < count; i++)
            nbl__drop_f32(s->isa, m->seed, m->dropout, first + k_index[begin + i], 1, values + i);
}

/* Elements [begin, end) of a weight's row, rounded to the compute dtype, as f32. */
static void read_weight(const nbl__pack_source *s, int64_t row, int64_t begin, int64_t end, float *to)
{
    const nbl_weight *w = s->mat->weight;
    int64_t first = row * w->shape[1];
    assert(w->rank == 2 && row >= 0 && row < w->shape[0] && begin >= 0 && end <= w->shape[1]);
    if (s->compute == NBL_DTYPE_F32) {
        nbl__dequantize(s->isa, w, first + begin, first + end, NBL_DTYPE_F32, to, false);
        return;
    }
    /* The 16-bit values are written to the back half of `to`, then widened front to back. A piece is copied out
     * first, because widening it would overwrite what follows. */
    uint16_t *half = (uint16_t *)to + (end - begin);
    nbl__dequantize(s->isa, w, first + begin, first + end, s->compute, half, false);
    uint16_t piece[256];
    for (int64_t i = 0; i < end - begin; i += 256) {
        int64_t count = nbl__min_i64(256, end - begin - i);
        memcpy(piece, half + i, (size_t)count * 2);
        nbl__to_f32(s->isa, s->compute, piece, to + i, count);
    }
}

/* Columns [begin, end) of a row, or k_index[begin … end), as f32. Returns their address: `to`, or the
 * operand itself. */
static const float *read_row(const nbl__pack_source *s, int64_t row, int64_t begin, int64_t end,
                             const int32_t *k_index, float *to)
{
    const nbl__gemm_matrix *m = s->mat;
    int64_t count = end - begin;
    if (m->weight) {
        if (k_index == NULL) read_weight(s, row, begin, end, to);
        else
            for (int64_t i = 0; i < count; i++)
                read_weight(s, row, k_index[begin + i], k_index[begin + i] + 1, to + i);
        return to;
    }
    if (m->dtype == NBL_DTYPE_I8) {
        const int8_t *codes = (const int8_t *)m->data + row * m->stride;
        for (int64_t i = 0; i < count; i++)
            to[i] = (float)codes[k_index ? k_index[begin + i] : begin + i] * m->scales[row] / 127;
    } else {
        size_t size = nbl__size_of(m->dtype);
        const uint8_t *values = (const uint8_t *)m->data + (size_t)(row * m->stride) * size;
        if (k_index) {
            for (int64_t i = 0; i < count; i++)
                nbl__to_f32(s->isa, m->dtype, values + (size_t)k_index[begin + i] * size, to + i, 1);
        } else if (m->dtype == NBL_DTYPE_F32 && m->dropout == 0) {
            return (const float *)(const void *)values + begin;
        } else {
            nbl__to_f32(s->isa, m->dtype, values + (size_t)begin * size, to, count);
        }
    }
    if (m->dropout > 0) drop(s, row, begin, count, k_index, to);
    return to;
}

/* ---- scratch:  rows [16][k_block] | panel [k_block][16] | a row across all panels | two strips ---- */

typedef struct pieces {
    float *rows, *panel, *across, *wide;
} pieces;

static pieces cut(void *scratch, int64_t k_block, int64_t outer, size_t *bytes)
{
    nbl__bump room = {scratch, 0};
    pieces p;
    NBL_BUMP_ALLOC(&room, p.rows, k_block * NBL_MAX_PANEL_ROWS);
    NBL_BUMP_ALLOC(&room, p.panel, nbl__max_i64(k_block, 32) * NBL_MAX_PANEL_ROWS);
    NBL_BUMP_ALLOC(&room, p.across, 32 * nbl__round_up(outer, NBL_STRIP));
    NBL_BUMP_ALLOC(&room, p.wide, 2 * NBL_STRIP * k_block);
    if (bytes) *bytes = room.used;
    return p;
}

size_t nbl__pack_scratch(int64_t k_block, int64_t outer)
{
    size_t bytes;
    cut(NULL, k_block, outer, &bytes);
    return bytes;
}

/* Dense rows that a packer can read in place: no rounding, picking or dropout. */
typedef struct plain_rows {
    nbl_dtype dtype;
    const uint8_t *data;
    int64_t stride;
} plain_rows;

static bool plain_rows_of(const nbl__pack_source *s, plain_rows *rows)
{
    const nbl__gemm_matrix *m = s->mat;
    if (m->k_index || m->dropout > 0) return false;
    if (m->weight == NULL) {
        *rows = (plain_rows){m->dtype, m->data, m->stride};
        return m->dtype != NBL_DTYPE_I8;
    }
    *rows = (plain_rows){m->weight->dtype, m->weight->data, m->weight->shape[1]};
    return m->weight->format == NBL_FORMAT_DENSE &&
           (s->compute == NBL_DTYPE_F32 || s->compute == rows->dtype) &&
           (uintptr_t)rows->data % nbl__size_of(rows->dtype) == 0;
}

/* The address of an element. */
static const void *plain_at(const plain_rows *rows, int64_t row, int64_t column)
{
    return rows->data + (size_t)(row * rows->stride + column) * nbl__size_of(rows->dtype);
}

/* ---- one panel from rows along k: `count` rows from `outer`, as [k][count] f32 ---- */

/* One panel: `count` rows from `outer`, zeros up to `width` rows, transposed to [k][width] of f32. */
static void transposed_panel(const nbl__pack_source *s, int64_t outer, int count, int width, int64_t k_begin,
                             int64_t k, const pieces *p, float *to)
{
    plain_rows dense;
    bool plain = plain_rows_of(s, &dense);
    const void *rows[NBL_MAX_PANEL_ROWS];
    assert(count <= width && width <= NBL_MAX_PANEL_ROWS);
    for (int r = 0; r < width; r++) {
        float *room = p->rows + r * k;
        rows[r] = room;
        if (r >= count) memset(room, 0, (size_t)k * sizeof *room);
        else if (plain) rows[r] = plain_at(&dense, outer + r, k_begin);
        else rows[r] = read_row(s, outer + r, k_begin, k_begin + k, s->mat->k_index, room);
    }
    nbl__transpose_f32(s->isa, plain ? dense.dtype : NBL_DTYPE_F32, rows, width, k, to);
}

/* ---- A ---- */

/* One panel of AMX tiles of bf16, from 16 rows. Rows past `count` are zero. */
static void tiles_from_rows(const nbl__pack_source *s, int64_t row, int count, int64_t k_begin, int64_t k,
                            const pieces *p, uint16_t *to)
{
    enum { WIDE = 32 };
    int64_t padded = nbl__round_up(k, WIDE);
    const nbl__gemm_matrix *m = s->mat;
    bool as_is = m->dtype == NBL_DTYPE_BF16 && m->k_index == NULL && m->dropout == 0;
    for (int r = 0; r < NBL_MAX_PANEL_ROWS; r++) {
        const uint16_t *values = (const uint16_t *)p->rows;
        if (r >= count) {
            memset(p->rows, 0, (size_t)k * 2);
        } else if (as_is) {
            values = (const uint16_t *)m->data + (row + r) * m->stride + k_begin;
        } else {
            const float *wide = read_row(s, row + r, k_begin, k_begin + k, m->k_index, p->panel);
            nbl__from_f32(s->isa, wide, NBL_DTYPE_BF16, p->rows, k);
        }
        for (int64_t i = 0; i < padded; i += WIDE) {
            uint16_t *tile = to + i * NBL_MAX_PANEL_ROWS + r * WIDE;
            int64_t n = nbl__min_i64(WIDE, k - i);
            memcpy(tile, values + i, (size_t)n * 2);
            if (n < WIDE) memset(tile + n, 0, (size_t)(WIDE - n) * 2);
        }
    }
}

#if defined(__x86_64__)
/* One panel of AMX tiles of three bf16 parts, from 16 rows. */
static void split_from_rows(const nbl__pack_source *s, int64_t row, int count, int64_t k_begin, int64_t k,
                            const pieces *p, uint16_t *to)
{
    enum { WIDE = 32 };
    for (int r = 0; r < NBL_MAX_PANEL_ROWS; r++) {
        const float *values = p->rows;
        if (r < count) values = read_row(s, row + r, k_begin, k_begin + k, s->mat->k_index, p->rows);
        else memset(p->rows, 0, (size_t)k * sizeof(float));
        nbl__split_row_amx(values, k, to + r * WIDE);
    }
}
#endif

/* Prefetches the rows of the next panel. Each is a short piece on a page of its own, for which the
 * hardware's prefetch would start too late. */
static void fetch_rows(const nbl__pack_source *s, int64_t row, int64_t count, int64_t k_begin, int64_t k)
{
    size_t size = s->mat->dtype == NBL_DTYPE_I8 ? 1 : nbl__size_of(s->mat->dtype);
    for (int64_t r = row; r < row + count; r++) {
        const uint8_t *from = (const uint8_t *)s->mat->data + (size_t)(r * s->mat->stride + k_begin) * size;
        for (size_t i = 0; i < (size_t)k * size; i += 64) __builtin_prefetch(from + i);
    }
}

/* A as stored: a panel at a time. */
static void pack_a_transposed(const nbl__pack_source *s, const nbl__pack_rows *part, uint8_t *to,
                              const pieces *p)
{
    int64_t k = part->k_count, padded = nbl__round_up(k, s->kernel->k_step);
    int64_t real = part->rows;
    int64_t rows = s->kernel->padded ? part->panels * s->kernel->rows : part->rows;
    for (int64_t i = part->panel_begin; i < part->panel_end; i++) {
        int64_t start = nbl__panel_start(rows, part->panels, i);
        int64_t end = nbl__panel_start(rows, part->panels, i + 1);
        int count = (int)(nbl__min_i64(end, real) - start);
        if (i + 1 < part->panel_end && s->mat->k_index == NULL)
            fetch_rows(s, part->row + end,
                       nbl__min_i64(nbl__panel_start(rows, part->panels, i + 2), real) - end, part->k_begin,
                       k);
        if (s->kernel->panel == NBL_PANEL_TILES) {
            tiles_from_rows(s, part->row + start, count, part->k_begin, k, p,
                            (uint16_t *)to + start * padded);
#if defined(__x86_64__)
        } else if (s->kernel->panel == NBL_PANEL_SPLIT) {
            split_from_rows(s, part->row + start, count, part->k_begin, k, p,
                            (uint16_t *)to + start * padded * NBL_SPLIT_PARTS);
#endif
        } else if (s->kernel->panel == NBL_PANEL_PAIRS) {
            transposed_panel(s, part->row + start, count, count, part->k_begin, k, p, p->panel);
            nbl__pair_bf16(s->isa, p->panel, count, k, (uint16_t *)to + start * padded);
        } else {
            transposed_panel(s, part->row + start, count, count, part->k_begin, k, p,
                             (float *)to + start * k);
        }
    }
}

/* One tile, 16 rows by 32 of k (three tiles if split), from `steps` lines along the rows of A:
 * `count` values of each line from `at` on. */
static void tile_from_lines(const nbl__pack_source *s, const float *const *lines, int64_t steps, int64_t at,
                            int64_t count, uint8_t *to)
{
    enum { WIDE = 32, HALF = 16 };
    static const float nothing[NBL_MAX_PANEL_ROWS];
    float halves[2][NBL_MAX_PANEL_ROWS * HALF], row[WIDE];
    for (int64_t half = 0; half < 2; half++) {
        const void *from[HALF];
        for (int64_t h = 0; h < HALF; h++)
            from[h] = half * HALF + h < steps ? lines[half * HALF + h] + at : nothing;
        nbl__transpose_f32(s->isa, NBL_DTYPE_F32, from, HALF, count, halves[half]);
    }
    for (int64_t r = 0; r < NBL_MAX_PANEL_ROWS; r++) {
        uint16_t *line = (uint16_t *)(void *)to + r * WIDE;
        memset(row, 0, sizeof row);
        for (int64_t half = 0; half < 2 && r < count; half++)
            memcpy(row + half * HALF, halves[half] + r * HALF, HALF * sizeof(float));
#if defined(__x86_64__)
        if (s->kernel->panel == NBL_PANEL_SPLIT) {
            nbl__split_row_amx(row, WIDE, line);
            continue;
        }
#endif
        nbl__from_f32(s->isa, row, NBL_DTYPE_BF16, line, WIDE);
    }
}

/* A seen transposed (dW = dyᵀ·x): 32 of k at a time are read across all panels. */
static void pack_a_straight(const nbl__pack_source *s, const nbl__pack_rows *part, uint8_t *to,
                            const pieces *p)
{
    enum { STEP = 32 };
    int64_t k = part->k_count, padded = nbl__round_up(k, s->kernel->k_step), real = part->rows;
    int64_t rows = s->kernel->padded ? part->panels * s->kernel->rows : part->rows;
    int64_t begin = nbl__panel_start(rows, part->panels, part->panel_begin);
    int64_t end = nbl__min_i64(nbl__panel_start(rows, part->panels, part->panel_end), real);
    int64_t width = end - begin;
    for (int64_t i = 0; i < k; i += STEP) {
        int64_t steps = nbl__min_i64(STEP, k - i);
        const float *lines[STEP];
        for (int64_t h = 0; h < steps; h++) {
            int64_t line = part->k_begin + i + h;
            if (s->mat->k_index) line = s->mat->k_index[line];
            lines[h] = read_row(s, line, part->row + begin, part->row + end, NULL, p->across + h * width);
        }
        for (int64_t panel = part->panel_begin; panel < part->panel_end; panel++) {
            int64_t start = nbl__panel_start(rows, part->panels, panel);
            int64_t stop = nbl__panel_start(rows, part->panels, panel + 1);
            int64_t count = nbl__min_i64(stop, real) - start, at = start - begin;
            if (s->kernel->padded) {
                tile_from_lines(s, lines, steps, at, count,
                                to + (size_t)(start * padded + i * NBL_MAX_PANEL_ROWS) *
                                         nbl__panel_element(s->kernel));
                continue;
            }
            float *target = p->panel;
            if (s->kernel->panel == NBL_PANEL_F32) target = (float *)to + start * k + i * count;
            for (int64_t h = 0; h < steps; h++)
                memcpy(target + h * count, lines[h] + at, (size_t)count * sizeof(float));
            if (s->kernel->panel == NBL_PANEL_PAIRS)
                nbl__pair_bf16(s->isa, p->panel, count, steps, (uint16_t *)to + start * padded + i * count);
        }
    }
}

void nbl__pack_a(const nbl__pack_source *source, const nbl__pack_rows *part, void *to, void *scratch)
{
    assert(part->panel_begin < part->panel_end && part->panel_end <= part->panels && part->k_count > 0);
    assert((uintptr_t)to % 64 == 0 && source->mat->weight == NULL);
    pieces p = cut(scratch, part->k_count, part->rows, NULL);
    if (source->transposed) pack_a_transposed(source, part, to, &p);
    else pack_a_straight(source, part, to, &p);
}

/* ---- B ---- */

/* Bytes of a strip with this many k. */
static size_t strip_bytes(const nbl__gemm_kernel *kernel, int64_t padded)
{
    return (size_t)(padded * NBL_STRIP) * nbl__panel_element(kernel);
}

/* Zeros the pairs of a strip from k up to k_step. */
static void clear_tail(uint8_t *strip, int64_t k, int64_t padded)
{
    int64_t even = nbl__round_up(k, 2);
    assert(even <= padded);
    memset(strip + (size_t)(even * NBL_STRIP * 2), 0, (size_t)((padded - even) * NBL_STRIP * 2));
}

/* Prefetches a piece of a dense row. Packing reads short pieces, each on a page of its own, for which the hardware's
 * prefetch would start too late. */
static void fetch_piece(const plain_rows *rows, int64_t row, int64_t column, int64_t count)
{
    const uint8_t *from = plain_at(rows, row, column);
    for (size_t i = 0; i < (size_t)count * nbl__size_of(rows->dtype); i += 64)
        __builtin_prefetch(from + i, 0, 2);
}

/* One strip of pairs from 16 rows of bf16, without a detour through f32. */
static void transposed_pairs(const nbl__pack_source *s, const plain_rows *dense, int64_t n, int count,
                             int64_t k_begin, int64_t k, const pieces *p, uint32_t *to)
{
    const void *rows[NBL_STRIP];
    memset(p->rows, 0, (size_t)k * 2);
    for (int r = 0; r < NBL_STRIP; r++) rows[r] = r < count ? plain_at(dense, n + r, k_begin) : p->rows;
    nbl__transpose_pairs(s->isa, rows, k, to);
}

/* B transposed (x·Wᵀ): a strip at a time. */
static void pack_b_transposed(const nbl__pack_source *s, int64_t n_begin, int64_t n_end, int64_t k_begin,
                              int64_t k, uint8_t *to, const pieces *p)
{
    int64_t padded = nbl__round_up(k, s->kernel->k_step);
    bool f32 = s->kernel->panel == NBL_PANEL_F32;
    plain_rows dense;
    bool plain = plain_rows_of(s, &dense), pairs = !f32 && plain && dense.dtype == NBL_DTYPE_BF16;
    for (int64_t n = n_begin; n < n_end; n += NBL_STRIP, to += strip_bytes(s->kernel, padded)) {
        int count = (int)nbl__min_i64(NBL_STRIP, n_end - n);
        for (int64_t r = n + NBL_STRIP; plain && r < nbl__min_i64(n_end, n + 2 * NBL_STRIP); r++)
            fetch_piece(&dense, r, k_begin, k);
        if (pairs) {
            transposed_pairs(s, &dense, n, count, k_begin, k, p, (uint32_t *)(void *)to);
            clear_tail(to, k, padded);
            continue;
        }
        transposed_panel(s, n, count, NBL_STRIP, k_begin, k, p, f32 ? (float *)(void *)to : p->panel);
        if (f32) continue;
        nbl__pair_bf16(s->isa, p->panel, NBL_STRIP, k, (uint16_t *)(void *)to);
        clear_tail(to, k, padded);
    }
}

/* B straight (dy·W): two rows at a time, since two k make a pair. */
static void pack_b_straight(const nbl__pack_source *s, int64_t n_begin, int64_t n_end, int64_t k_begin,
                            int64_t k, uint8_t *to, const pieces *p)
{
    enum { AHEAD = 8 }; /* rows */
    int64_t padded = nbl__round_up(k, s->kernel->k_step), strips = nbl__ceil_div(n_end - n_begin, NBL_STRIP);
    bool f32 = s->kernel->panel == NBL_PANEL_F32;
    size_t bytes = strip_bytes(s->kernel, padded);
    plain_rows dense;
    bool plain = plain_rows_of(s, &dense), pairs = !f32 && plain && dense.dtype == NBL_DTYPE_BF16;
    bool in_place = plain && dense.dtype == NBL_DTYPE_F32;
    for (int64_t i = 0; pairs && i + 2 <= k; i += 2) {
        for (int64_t h = i + AHEAD; h < nbl__min_i64(i + AHEAD + 2, k); h++)
            fetch_piece(&dense, k_begin + h, n_begin, n_end - n_begin);
        nbl__join_pairs(s->isa, plain_at(&dense, k_begin + i, n_begin),
                        plain_at(&dense, k_begin + i + 1, n_begin), n_end - n_begin,
                        (uint32_t *)(void *)to + i / 2 * NBL_STRIP, (int64_t)(bytes / 4));
    }
    for (int64_t i = pairs ? k / 2 * 2 : 0; i < k; i += 2) {
        const float *lines[2];
        int64_t steps = nbl__min_i64(2, k - i);
        for (int64_t h = 0; h < steps; h++) {
            int64_t line = k_begin + i + h;
            if (s->mat->k_index) line = s->mat->k_index[line];
            if (in_place && i + h + AHEAD < k) fetch_piece(&dense, line + AHEAD, n_begin, n_end - n_begin);
            lines[h] = in_place ? plain_at(&dense, line, n_begin)
                                : read_row(s, line, n_begin, n_end, NULL, p->across + h * (n_end - n_begin));
        }
        for (int64_t t = 0; t < strips; t++) {
            int64_t at = t * NBL_STRIP, count = nbl__min_i64(NBL_STRIP, n_end - n_begin - at);
            float *target = f32 ? (float *)(void *)(to + (size_t)t * bytes) + i * NBL_STRIP : p->panel;
            for (int64_t h = 0; h < steps; h++, target += NBL_STRIP) {
                memcpy(target, lines[h] + at, (size_t)count * sizeof(float));
                if (count < NBL_STRIP) memset(target + count, 0, (size_t)(NBL_STRIP - count) * sizeof(float));
            }
            if (!f32)
                nbl__pair_bf16(s->isa, p->panel, NBL_STRIP, steps,
                               (uint16_t *)(void *)(to + (size_t)t * bytes) + i * NBL_STRIP);
        }
    }
    if (!f32)
        for (int64_t t = 0; t < strips; t++) clear_tail(to + (size_t)t * bytes, k, padded);
}

static void pack_b_any(const nbl__pack_source *s, int64_t n_begin, int64_t n_end, int64_t k_begin, int64_t k,
                       uint8_t *to, void *scratch)
{
    pieces p = cut(scratch, k, n_end - n_begin, NULL);
    if (s->transposed) pack_b_transposed(s, n_begin, n_end, k_begin, k, to, &p);
    else pack_b_straight(s, n_begin, n_end, k_begin, k, to, &p);
}

/* ---- four bits ---- */

/* The scales of `count` consecutive blocks, to every NBL_STRIP-th float. */
static void row_scales(const nbl_weight *w, int64_t first, int64_t count, float *to)
{
    if (w->format == NBL_FORMAT_MXFP4 || w->nested_scales == NULL) {
        for (int64_t i = 0; i < count; i++) to[i * NBL_STRIP] = nbl__block_scale(w, first + i);
        return;
    }
    const uint8_t *codes = w->scale_codes;
    const float *table = w->nested_table;
    for (int64_t i = first, end = first + count; i < end;) {
        int64_t group = w->nested_block == NBL_NESTED_BLOCK ? i / NBL_NESTED_BLOCK : i / w->nested_block;
        int64_t stop = nbl__min_i64(end, (group + 1) * w->nested_block);
        float scale = w->nested_scales[group], offset = w->nested_offset;
        for (; i < stop; i++, to += NBL_STRIP) {
            float product = table[codes[i]] * scale;
            *to = product + offset;
        }
    }
}

int nbl__strip_scales(const nbl__fourbit_source *s, int64_t row, int64_t row_end, int64_t k_begin, int64_t k,
                      float scales[NBL_MAX_K_BLOCK / 32 * NBL_STRIP])
{
    /* If rows consist of whole blocks, all 16 change their scales at the same column. Otherwise a scale is stored
     * for every 32 columns. */
    bool aligned = (s->columns & ((INT64_C(1) << s->block_shift) - 1)) == 0;
    int shift = aligned ? s->block_shift : 5;
    int64_t base = k_begin >> shift, count = ((k_begin + k - 1) >> shift) - base + 1;
    assert(k_begin % 32 == 0 && k % 32 == 0 && s->columns % 32 == 0 && count <= NBL_MAX_K_BLOCK / 32);
    for (int64_t r = 0; r < NBL_STRIP; r++) {
        int64_t start = (row + r) * s->columns;
        if (row + r >= row_end) {
            for (int64_t i = 0; i < count; i++) scales[i * NBL_STRIP + r] = 0;
        } else if (aligned) {
            row_scales(s->weight, (start >> shift) + base, count, scales + r);
        } else {
            for (int64_t i = 0; i < count; i++)
                scales[i * NBL_STRIP + r] = nbl__block_scale(s->weight, (start + ((base + i) << shift)) >>
                                                                            s->block_shift);
        }
    }
    return shift;
}

#if defined(__x86_64__)

/* Can the fast algorithm take this operand? Fills in `f`. */
static bool fourbit_of(const nbl__pack_source *s, nbl__fourbit_source *f)
{
    const nbl_weight *w = s->mat->weight;
    if (s->isa < NBL_ISA_AVX2 || w == NULL || s->mat->k_index || s->mat->dropout > 0) return false;
    bool mx = w->format == NBL_FORMAT_MXFP4;
    if (!mx && w->format != NBL_FORMAT_NF4 && w->format != NBL_FORMAT_FP4) return false;
    if (w->shape[1] % 32) return false;
    *f = (nbl__fourbit_source){
        .codes = w->data,
        .table = mx                            ? nbl__mxfp4_table
                 : w->format == NBL_FORMAT_NF4 ? nbl__nf4_table
                                               : nbl__fp4_table,
        .weight = w,
        .columns = w->shape[1],
        .block_shift = mx ? 5 : __builtin_ctzll((unsigned long long)w->block),
        .low_first = mx,
        .compute = s->compute,
    };
    return true;
}

/* Packs a four-bit weight with the fast algorithm. What that declines (non-finite scales) goes to the general
 * algorithm. */
static void pack_b_fourbit(const nbl__pack_source *s, const nbl__fourbit_source *f, int64_t n_begin,
                           int64_t n_end, int64_t k_begin, int64_t k, uint8_t *to, void *scratch)
{
    int64_t padded = nbl__round_up(k, s->kernel->k_step);
    bool f32 = s->kernel->panel == NBL_PANEL_F32, wide = s->isa >= NBL_ISA_AVX512;
    size_t bytes = strip_bytes(s->kernel, padded);
    if (s->transposed) {
        for (int64_t n = n_begin; n < n_end; n += NBL_STRIP, to += bytes) {
            bool done = !f32   ? nbl__pack_fourbit_t16_pairs_avx512(f, n, n_end, k_begin, k, (void *)to)
                        : wide ? nbl__pack_fourbit_t16_f32_avx512(f, n, n_end, k_begin, k, (void *)to)
                               : nbl__pack_fourbit_t16_f32_avx2(f, n, n_end, k_begin, k, (void *)to);
            if (!done) pack_b_any(s, n, nbl__min_i64(n + NBL_STRIP, n_end), k_begin, k, to, scratch);
        }
        return;
    }
    int64_t strips = (n_end - n_begin) / NBL_STRIP;
    bool done = !f32   ? nbl__pack_fourbit_n16_pairs_avx512(f, n_begin, strips, k_begin, k, padded / 2,
                                                            (void *)to)
                : wide ? nbl__pack_fourbit_n16_f32_avx512(f, n_begin, strips, k_begin, k, (void *)to)
                       : nbl__pack_fourbit_n16_f32_avx2(f, n_begin, strips, k_begin, k, (void *)to);
    if (!done) pack_b_any(s, n_begin, n_end, k_begin, k, to, scratch);
    else if (!f32)
        for (int64_t t = 0; t < strips; t++) clear_tail(to + (size_t)t * bytes, k, padded);
}

#endif

int nbl__b_parts(const nbl__pack_source *source)
{
    plain_rows dense;
    return plain_rows_of(source, &dense) && dense.dtype == NBL_DTYPE_BF16 ? 1 : NBL_SPLIT_PARTS;
}

#if defined(__x86_64__)
/* B as split f32: two strips at a time as f32, then split. A B that is bf16 is packed as pairs. */
static void pack_b_split(const nbl__pack_source *source, int64_t n_begin, int64_t n_end, int64_t k_begin,
                         int64_t k, uint8_t *to, void *scratch)
{
    enum { PAIR = 2 * NBL_STRIP };
    nbl__pack_source inner = *source;
    inner.kernel = &nbl__gemm_bf16_32x32_amx;
    if (nbl__b_parts(source) == 1) {
        nbl__pack_b(&inner, n_begin, n_end, k_begin, k, to, scratch);
        return;
    }
    inner.kernel = &nbl__gemm_f32_14x32_avx512;
    pieces p = cut(scratch, k, n_end - n_begin, NULL);
    size_t bytes = strip_bytes(source->kernel, nbl__round_up(k, source->kernel->k_step));
    for (int64_t n = n_begin; n < n_end; n += PAIR) {
        nbl__pack_b(&inner, n, nbl__min_i64(n + PAIR, n_end), k_begin, k, p.wide, scratch);
        for (int64_t strip = n; strip < nbl__min_i64(n + PAIR, n_end); strip += NBL_STRIP, to += bytes)
            nbl__split_strip_amx(p.wide + (strip - n) * k, k, (uint16_t *)(void *)to);
    }
}
#endif

void nbl__pack_b(const nbl__pack_source *source, int64_t n_begin, int64_t n_end, int64_t k_begin,
                 int64_t k_count, void *to, void *scratch)
{
#if defined(__x86_64__)
    if (source->kernel->panel == NBL_PANEL_SPLIT) {
        pack_b_split(source, n_begin, n_end, k_begin, k_count, to, scratch);
        return;
    }
#endif
    int64_t first = source->mat->weight ? source->mat->first_row : 0;
    if (source->transposed) n_begin += first, n_end += first;
    else k_begin += first;
#if defined(__x86_64__)
    nbl__fourbit_source fourbit;
    bool whole = source->transposed ? k_begin % 32 == 0 && k_count % 32 == 0
                                    : n_begin % 32 == 0 && n_end % 32 == 0 && k_count % 2 == 0;
    if (whole && fourbit_of(source, &fourbit)) {
        pack_b_fourbit(source, &fourbit, n_begin, n_end, k_begin, k_count, to, scratch);
        return;
    }
#endif
    pack_b_any(source, n_begin, n_end, k_begin, k_count, to, scratch);
}
