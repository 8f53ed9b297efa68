/* attention_amx.c - forward attention of bf16 on AMX: both products in the tile unit, f32 sums.
 *
 * The steps are those of attention_tile.inc, the layouts of operands those of attention_amx.h:
 *
 *   for each block of queries, for each 256 keys:
 *       S = Q·Kᵀ          Q by rows, unscaled; K transposed
 *       P = 2^(S·factor - max), as bf16; the row sum is taken before that rounding
 *       O = O·2^(old max - max) + P·V          P by rows; V paired
 *
 * Bytes: K and V are read once per block of queries, in bf16. Limit: with heads of 64 the softmax
 * costs more than the products. */
#if defined(__x86_64__)

#include "ops/attention/cpu/attention_amx.h"

enum { KEYS = NBL_ATTENTION_KEYS, KEYS_LD = KEYS + 16, P_LD = KEYS + 32 };

static TARGET_AMX void pack_keys(const nbl__attention_job *job, int64_t block, int64_t head, float *own)
{
    const nbl__attention_block *b = &job->blocks[block];
    int64_t rows = nbl__min_i64(BLOCK, b->n - b->at), wide = padded(job->size);
    uint16_t *rest = (uint16_t *)(void *)own;
    bool fine = true;
    for (int64_t p = 0; p < rows; p += PANEL) {
        int64_t token = b->first + b->at + p, at = (head * job->tokens + token) * wide;
        int64_t keys = nbl__min_i64(PANEL, rows - p);
        if (keys == PANEL) pack_transposed(&job->a->k, token, head, keys, job->kt16 + at);
        fine &= pack_paired(&job->a->v, token, head, keys, keys == PANEL ? job->v16 + at : rest);
    }
    job->v_non_finite[block * job->key_heads + head] = !fine;
}

/* ---- the tiles of a block of queries ---- */

typedef struct item {
    const nbl__attention_job *job;
    const nbl__attention_block *b;
    int64_t head, key_head, rows, wide;
    uint16_t *q;               /* [64, wide + 32] */
    uint16_t *p;               /* [64, P_LD] */
    uint16_t *rest_k, *rest_v; /* the last panel of the sequence, if it is not whole */
    float *s;                  /* [64, KEYS_LD] */
    float *o;                  /* [64, ld] */
    float *sum;                /* [64, W] */
    float *top;                /* [64] */
} item;

static size_t layout(int64_t size, uint8_t *base, item *it)
{
    nbl__bump bump = {base, 0};
    it->wide = padded(size);
    NBL_BUMP_ALLOC(&bump, it->q, BLOCK * (it->wide + 32));
    NBL_BUMP_ALLOC(&bump, it->p, BLOCK * P_LD);
    NBL_BUMP_ALLOC(&bump, it->rest_k, PANEL * it->wide);
    NBL_BUMP_ALLOC(&bump, it->rest_v, PANEL * it->wide);
    NBL_BUMP_ALLOC(&bump, it->s, BLOCK * KEYS_LD);
    NBL_BUMP_ALLOC(&bump, it->o, BLOCK * (it->wide + 16));
    NBL_BUMP_ALLOC(&bump, it->sum, BLOCK * W);
    NBL_BUMP_ALLOC(&bump, it->top, BLOCK);
    return bump.used;
}

static int64_t forward_floats(int64_t size, int64_t ld)
{
    item it;
    (void)ld;
    return (int64_t)(layout(size, NULL, &it) / sizeof(float));
}

/* S of a row becomes P in bf16, over [first, end): whole panels. Returns the factor for the sums
 * so far. */
static inline TARGET_AMX float softmax_row(const item *it, int64_t r, nbl__span seen, int64_t first,
                                           int64_t end)
{
    const nbl__attention_job *job = it->job;
    float *s = it->s + r * KEYS_LD, *top = &it->top[r], *sum = it->sum + r * W, factor = job->q_factor;
    if (job->cap_factor != 0) {
        for (int64_t c = first; c < end; c += W) {
            __m512 t = nbl__tanh_avx512(_mm512_mul_ps(_mm512_loadu_ps(s + c), _mm512_set1_ps(factor)));
            _mm512_storeu_ps(s + c, _mm512_mul_ps(t, _mm512_set1_ps(job->cap_factor)));
        }
        factor = 1;
    }
    float hidden = factor < 0 ? INFINITY : -INFINITY;
    for (int64_t c = first; c < nbl__min_i64(seen.first, end); c++) s[c] = hidden;
    for (int64_t c = nbl__max_i64(seen.end, first); c < end; c++) s[c] = hidden;
    const __m512 times = _mm512_set1_ps(factor);
    __m512 max = _mm512_set1_ps(*top), total = _mm512_setzero_ps();
    for (int64_t c = first; c < end; c += W)
        max = _mm512_max_ps(_mm512_mul_ps(_mm512_loadu_ps(s + c), times), max);
    float largest = _mm512_reduce_max_ps(max), base = largest == -INFINITY ? 0 : largest;
    const __m512 shift = _mm512_set1_ps(base);
    for (int64_t c = first; c < end; c += 2 * W) {
        __m512 low = nbl__exp2_avx512(_mm512_fmsub_ps(_mm512_loadu_ps(s + c), times, shift));
        __m512 high = nbl__exp2_avx512(_mm512_fmsub_ps(_mm512_loadu_ps(s + c + W), times, shift));
        total = _mm512_add_ps(total, _mm512_add_ps(low, high));
        _mm512_storeu_si512(it->p + r * P_LD + c, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
    float before = _mm512_cvtss_f32(nbl__exp2_avx512(_mm512_set1_ps(*top - base)));
    _mm512_storeu_ps(sum, _mm512_fmadd_ps(_mm512_loadu_ps(sum), _mm512_set1_ps(before), total));
    *top = largest;
    return before;
}

/* O of one row over exactly what it sees. For non-finite values: 0 · NaN must not leak. */
static TARGET_AMX void add_row(const item *it, int64_t r, nbl__span seen, int64_t from)
{
    for (int64_t j = seen.first; j < seen.end; j++) {
        const uint16_t *v = row_at(&it->job->a->v, it->b->first + from + j, it->key_head);
        float p = nbl__bf16_to_f32(it->p[r * P_LD + j]);
        for (int64_t d = 0; d < it->job->size; d++)
            it->o[r * (it->wide + 16) + d] += p * nbl__bf16_to_f32(v[d]);
    }
}

/* The packed panel of the 32 keys from `at` of the sequence on. */
static const uint16_t *panel_at(const item *it, const uint16_t *packed, const uint16_t *rest, int64_t at)
{
    if (it->b->n - at < PANEL) return rest;
    return packed + (it->key_head * it->job->tokens + it->b->first + at) * it->wide;
}

/* Two tiles of rows against the keys from `from` on. */
static TARGET_AMX void forward_rows(const item *it, int64_t r, int64_t from, bool non_finite)
{
    const nbl__attention_job *job = it->job;
    int64_t count = nbl__min_i64(PANEL, it->rows - r), wide = it->wide, o_ld = wide + 16;
    nbl__mask_view view = {job->a, false, it->b->n, it->b->at, from, nbl__min_i64(KEYS, it->b->n - from)};
    nbl__span tile = nbl__visible_range(&view, r, count);
    if (tile.first == tile.end) return;
    int64_t first = tile.first / PANEL * PANEL, end = nbl__ceil_div(tile.end, PANEL) * PANEL;
    for (int64_t p = first; p < end; p += PANEL)
        multiply_32x32(false, it->s + r * KEYS_LD + p, KEYS_LD, it->q + r * (wide + 32), wide + 32,
                       panel_at(it, job->kt16, it->rest_k, from + p), TILE, wide / 32 * TILE, wide / 32);
    for (int64_t i = r; i < r + count; i++) {
        nbl__span seen = nbl__visible_range(&view, i, 1);
        float factor = softmax_row(it, i, seen, first, end), *o = it->o + i * o_ld;
        if (factor != 1)
            for (int64_t d = 0; d < wide; d += W)
                _mm512_storeu_ps(o + d, _mm512_mul_ps(_mm512_loadu_ps(o + d), _mm512_set1_ps(factor)));
        if (non_finite) add_row(it, i, seen, from);
    }
    if (non_finite) return;
    int64_t whole = nbl__min_i64(end, (it->b->n - from) / PANEL * PANEL); /* whole panels are consecutive */
    for (int64_t d = 0; d < wide; d += 32) {
        float *o = it->o + r * o_ld + d;
        const uint16_t *p = it->p + r * P_LD;
        if (first < whole)
            multiply_32x32(true, o, o_ld, p + first, P_LD,
                           panel_at(it, job->v16, NULL, from + first) + d / 16 * TILE, PANEL * wide, TILE,
                           (whole - first) / PANEL);
        if (whole < end)
            multiply_32x32(true, o, o_ld, p + whole, P_LD, it->rest_v + d / 16 * TILE, 0, TILE, 1);
    }
}

static TARGET_AMX void finish_row(const item *it, int64_t r)
{
    const nbl__attention_job *job = it->job;
    const nbl__attention *a = job->a;
    int64_t token = it->b->first + it->b->at + r;
    float total = _mm512_reduce_add_ps(_mm512_loadu_ps(it->sum + r * W)), top = it->top[r], factor = 1;
    if (nbl__has_data(&a->sinks)) {
        float sink = nbl__attention_sink(&a->sinks, it->head) * 1.44269504f,
              largest = sink > top ? sink : top;
        factor = exp2f(top - largest);
        total = total * factor + exp2f(sink - largest);
        top = largest;
    }
    if (nbl__has_data(&a->lse))
        ((float *)a->lse.data)[token * job->heads + it->head] = (float)(((double)top + log2((double)total)) *
                                                                        0.69314718055994531);
    float *o = it->o + r * (it->wide + 16);
    for (int64_t d = 0; d < it->wide; d += W)
        _mm512_storeu_ps(o + d, _mm512_mul_ps(_mm512_loadu_ps(o + d), _mm512_set1_ps(factor / total)));
    nbl__from_f32(job->isa, o, NBL_DTYPE_BF16,
                  (uint16_t *)a->out.data + (token * job->heads + it->head) * job->size, job->size);
}

static TARGET_AMX void forward_block(const nbl__attention_job *job, int64_t block, int64_t head, float *own)
{
    const nbl__attention_block *b = &job->blocks[block];
    const nbl__attention *a = job->a;
    item it = {.job = job,
               .b = b,
               .head = head,
               .key_head = head / job->group,
               .rows = nbl__min_i64(BLOCK, b->n - b->at)};
    layout(job->size, (uint8_t *)own, &it);
    int64_t q_ld = it.wide + 32, rows = nbl__ceil_div(it.rows, PANEL) * PANEL;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < it.wide; d += 32)
            _mm512_storeu_si512(it.q + r * q_ld + d,
                                r < it.rows
                                    ? part_of_row(row_at(&a->q, b->first + b->at + r, head), d, job->size)
                                    : _mm512_setzero_si512());
    memset(it.p, 0, BLOCK * P_LD * sizeof *it.p);
    memset(it.o, 0, (size_t)(rows * (it.wide + 16)) * sizeof *it.o);
    memset(it.sum, 0, BLOCK * W * sizeof *it.sum);
    for (int64_t r = 0; r < it.rows; r++) it.top[r] = -INFINITY;

    nbl__mask_view all = {a, false, b->n, b->at, 0, b->n};
    nbl__span seen = nbl__visible_range(&all, 0, it.rows);
    int64_t rest = b->n % PANEL;
    if (rest != 0 && seen.end > b->n - rest) {
        pack_transposed(&a->k, b->first + b->n - rest, it.key_head, rest, it.rest_k);
        pack_paired(&a->v, b->first + b->n - rest, it.key_head, rest, it.rest_v);
    }
    _tile_loadconfig(&nbl__amx_tiles);
    for (int64_t from = seen.first / KEYS * KEYS; from < seen.end; from += KEYS) {
        bool non_finite = false;
        for (int64_t part = from; part < nbl__min_i64(from + KEYS, b->n); part += BLOCK)
            non_finite |= job->v_non_finite[(b->base + part / BLOCK) * job->key_heads + it.key_head];
        for (int64_t r = 0; r < it.rows; r += PANEL) forward_rows(&it, r, from, non_finite);
    }
    _tile_release();
    for (int64_t r = 0; r < it.rows; r++) finish_row(&it, r);
}

const nbl__attention_tiles nbl__attention_tiles_amx = {.vector = W,
                                                       .bf16 = true,
                                                       .forward_floats = forward_floats,
                                                       .pack_keys = pack_keys,
                                                       .forward = forward_block,
                                                       .backward_floats = nbl__attention_backward_floats_amx,
                                                       .pack_queries = nbl__attention_pack_queries_amx,
                                                       .backward = nbl__attention_backward_amx};

#endif
