/* attention_amx_backward.c - backward attention of bf16 on AMX: all five products in the tile
 * unit, f32 sums.
 *
 * The order of the work and of the waiting is that of attention_tile.inc. Here all matrices are
 * transposed: rows are keys, columns are queries.
 *
 *   Sᵀ = K·Qᵀ     dPᵀ = V·dOᵀ     Pᵀ = 2^(Sᵀ - lse)     dSᵀ = Pᵀ∘(dPᵀ - delta)
 *   dV += Pᵀ·dO     dK += dSᵀ·Q     dQᵀ += Kᵀ·dSᵀ
 *
 * lse and delta then lie along vectors, and sums over keys need no sum across a vector. Pᵀ and
 * dSᵀ, rounded to bf16, need no packing: by rows they are left operands, in pairs of rows right
 * operands.
 *
 * dQᵀ of a block, [D, rows], uses the memory of the block's rows of dq until the last block of
 * keys has added its part; then it is transposed to the output. */
#if defined(__x86_64__)

#include "ops/attention/cpu/attention_amx.h"

enum { S_LD = BLOCK + 16, P_LD = BLOCK + 32 };

/* ---- before: a block of queries of one head ---- */

static TARGET_AMX float dot_bf16(const uint16_t *x, const uint16_t *y, int64_t size)
{
    __m512 sum = _mm512_setzero_ps();
    for (int64_t d = 0; d < size; d += W) {
        __mmask16 mask = size - d >= W ? 0xffff : (__mmask16)((1u << (size - d)) - 1);
        __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x + d));
        __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, y + d));
        sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)),
                              _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), sum);
    }
    return _mm512_reduce_add_ps(sum);
}

TARGET_AMX void nbl__attention_pack_queries_amx(const nbl__attention_job *job, int64_t block, int64_t head,
                                                float *own)
{
    const nbl__attention_block *b = &job->blocks[block];
    const nbl__attention *a = job->a;
    int64_t rows = nbl__min_i64(BLOCK, b->n - b->at), wide = padded(job->size);
    uint16_t *rest = (uint16_t *)(void *)own;
    bool fine = true;
    for (int64_t p = 0; p < rows; p += PANEL) {
        int64_t token = b->first + b->at + p, at = (head * job->tokens + token) * wide;
        int64_t count = nbl__min_i64(PANEL, rows - p);
        bool whole = count == PANEL;
        if (whole) pack_transposed(&a->q, token, head, count, job->q_transposed + at);
        if (whole) pack_transposed(&a->dout, token, head, count, job->dout_transposed + at);
        fine &= pack_paired(&a->q, token, head, count, whole ? job->q_paired + at : rest);
        fine &= pack_paired(&a->dout, token, head, count, whole ? job->dout_paired + at : rest);
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t token = b->first + b->at + r, at = head * job->tokens + token;
        float lse = ((const float *)a->lse.data)[token * job->heads + head];
        job->lse[at] = lse * 1.44269504f;
        job->delta[at] = dot_bf16(row_at(&a->out, token, head), row_at(&a->dout, token, head), job->size);
        fine &= isfinite(job->delta[at]) && isfinite(lse);
    }
    job->q_non_finite[block * job->heads + head] = !fine;
    atomic_init(&job->done[block * job->heads + head], 0);
}

/* ---- a block of keys ---- */

typedef struct key_block {
    const nbl__attention_job *job;
    const nbl__attention_block *b;
    int64_t rows, key_head, wide;
    uint16_t *k, *v;     /* [64, wide + 32] */
    uint16_t *kt;        /* [wide, P_LD]: d by keys */
    uint16_t *p, *ds;    /* [64, P_LD]: keys by queries */
    uint16_t *ds_paired; /* two panels of keys, of 64 queries */
    uint16_t *rest[4];   /* the last panel of queries, if it is not whole */
    float *s, *dp;       /* [64, S_LD] */
    float *dk, *dv;      /* [64, wide + 16] */
    float *dqt;          /* [wide, 64] */
    float *sums;         /* [64], by query */
    bool non_finite;
} key_block;

/* The operands of a block of queries: two panels in each layout. */
typedef struct query_block {
    const nbl__attention_block *b;
    int64_t index, head, rows, at; /* at: index into job->lse */
    const uint16_t *q_transposed[2], *dout_transposed[2], *q_paired[2], *dout_paired[2];
} query_block;

static size_t layout(int64_t size, uint8_t *base, key_block *kb)
{
    nbl__bump bump = {base, 0};
    int64_t wide = kb->wide = padded(size);
    NBL_BUMP_ALLOC(&bump, kb->k, BLOCK * (wide + 32));
    NBL_BUMP_ALLOC(&bump, kb->v, BLOCK * (wide + 32));
    NBL_BUMP_ALLOC(&bump, kb->kt, wide * P_LD);
    NBL_BUMP_ALLOC(&bump, kb->p, BLOCK * P_LD);
    NBL_BUMP_ALLOC(&bump, kb->ds, BLOCK * P_LD);
    NBL_BUMP_ALLOC(&bump, kb->ds_paired, 2 * (BLOCK / 16) * TILE);
    for (int i = 0; i < 4; i++) NBL_BUMP_ALLOC(&bump, kb->rest[i], PANEL * wide);
    NBL_BUMP_ALLOC(&bump, kb->s, BLOCK * S_LD);
    NBL_BUMP_ALLOC(&bump, kb->dp, BLOCK * S_LD);
    NBL_BUMP_ALLOC(&bump, kb->dk, BLOCK * (wide + 16));
    NBL_BUMP_ALLOC(&bump, kb->dv, BLOCK * (wide + 16));
    NBL_BUMP_ALLOC(&bump, kb->dqt, wide * BLOCK);
    NBL_BUMP_ALLOC(&bump, kb->sums, BLOCK);
    return bump.used;
}

int64_t nbl__attention_backward_floats_amx(int64_t size, int64_t ld)
{
    key_block kb;
    (void)ld;
    return (int64_t)(layout(size, NULL, &kb) / sizeof(float));
}

static TARGET_AMX query_block query_block_of(const key_block *kb, int64_t index, int64_t head)
{
    const nbl__attention_job *job = kb->job;
    const nbl__attention *a = job->a;
    const nbl__attention_block *b = &job->blocks[index];
    query_block qb = {.b = b,
                      .index = index,
                      .head = head,
                      .rows = nbl__min_i64(BLOCK, b->n - b->at),
                      .at = head * job->tokens + b->first + b->at};
    for (int64_t p = 0; p < 2 && p * PANEL < qb.rows; p++) {
        int64_t count = qb.rows - p * PANEL, token = b->first + b->at + p * PANEL;
        int64_t at = (qb.at + p * PANEL) * kb->wide;
        if (count >= PANEL) {
            qb.q_transposed[p] = job->q_transposed + at;
            qb.dout_transposed[p] = job->dout_transposed + at;
            qb.q_paired[p] = job->q_paired + at;
            qb.dout_paired[p] = job->dout_paired + at;
            continue;
        }
        pack_transposed(&a->q, token, head, count, kb->rest[0]);
        pack_transposed(&a->dout, token, head, count, kb->rest[1]);
        pack_paired(&a->q, token, head, count, kb->rest[2]);
        pack_paired(&a->dout, token, head, count, kb->rest[3]);
        qb.q_transposed[p] = kb->rest[0];
        qb.dout_transposed[p] = kb->rest[1];
        qb.q_paired[p] = kb->rest[2];
        qb.dout_paired[p] = kb->rest[3];
    }
    return qb;
}

/* Does any of the 32 queries from c on see any of the 32 keys from r on? */
static bool is_visible(const nbl__mask_view *of_keys, int64_t r, int64_t rows, int64_t c)
{
    if (r >= rows) return false;
    nbl__span seen = nbl__visible_range(of_keys, r, nbl__min_i64(PANEL, rows - r));
    return seen.first < c + PANEL && seen.end > c && seen.first < seen.end;
}

/* The lanes of the 16 columns from c on that are in the span. */
static inline __mmask16 mask_of(nbl__span span, int64_t c)
{
    int64_t first = nbl__max_i64(span.first - c, 0), end = nbl__min_i64(span.end - c, W);
    return first < end ? (__mmask16)((0xffffu >> (W - (end - first))) << first) : 0;
}

/* P and dS of one key and 16 queries, in the lanes of the mask. */
static inline TARGET_AMX void differentiate(const nbl__attention_job *job, const float *s, const float *dp,
                                            __mmask16 mask, __m512 lse, __m512 delta, __m512 *p, __m512 *ds,
                                            __m512 *sum)
{
    __m512 d = _mm512_maskz_loadu_ps(mask, dp);
    if (job->cap_factor == 0) {
        *p = nbl__exp2_avx512(_mm512_fmsub_ps(_mm512_loadu_ps(s), _mm512_set1_ps(job->q_factor), lse));
        *ds = _mm512_maskz_mul_ps(mask, *p, _mm512_sub_ps(d, delta));
    } else {
        __m512 t = nbl__tanh_avx512(_mm512_mul_ps(_mm512_loadu_ps(s), _mm512_set1_ps(job->q_factor)));
        *p = nbl__exp2_avx512(_mm512_fmsub_ps(t, _mm512_set1_ps(job->cap_factor), lse));
        __m512 slope = _mm512_fnmadd_ps(t, t, _mm512_set1_ps(1));
        *ds = _mm512_maskz_mul_ps(mask, _mm512_mul_ps(*p, _mm512_sub_ps(d, delta)), slope);
    }
    *p = _mm512_maskz_mov_ps(mask, *p);
    *sum = _mm512_mask3_fmadd_ps(*p, d, *sum, mask);
}

/* Sᵀ and dPᵀ become Pᵀ, dSᵀ, and dSᵀ in pairs; two keys at a time. */
static TARGET_AMX void differentiate_block(const key_block *kb, const query_block *qb,
                                           const nbl__mask_view *of_keys)
{
    const nbl__attention_job *job = kb->job;
    int64_t keys = nbl__ceil_div(kb->rows, PANEL) * PANEL;
    nbl__span seen[BLOCK] = {{0, 0}};
    for (int64_t j = 0; j < kb->rows; j++) seen[j] = nbl__visible_range(of_keys, j, 1);
    for (int64_t c = 0; c < BLOCK; c += W) {
        __mmask16 there = mask_of((nbl__span){0, qb->rows}, c);
        __m512 lse = _mm512_maskz_loadu_ps(there, job->lse + qb->at + c);
        __m512 delta = _mm512_maskz_loadu_ps(there, job->delta + qb->at + c), sum = _mm512_setzero_ps();
        for (int64_t j = 0; j < keys; j += 2) {
            __m512 p[2], ds[2];
            __m256i half[2];
            for (int i = 0; i < 2; i++) {
                __mmask16 mask = mask_of(seen[j + i], c);
                int64_t at = (j + i) * S_LD + c;
                p[i] = ds[i] = _mm512_setzero_ps();
                if (mask) differentiate(job, kb->s + at, kb->dp + at, mask, lse, delta, &p[i], &ds[i], &sum);
                half[i] = (__m256i)_mm512_cvtneps_pbh(ds[i]);
                _mm256_storeu_si256((__m256i *)(void *)(kb->p + (j + i) * P_LD + c),
                                    (__m256i)_mm512_cvtneps_pbh(p[i]));
                _mm256_storeu_si256((__m256i *)(void *)(kb->ds + (j + i) * P_LD + c), half[i]);
            }
            __m512i pairs = _mm512_or_si512(_mm512_cvtepu16_epi32(half[0]),
                                            _mm512_slli_epi32(_mm512_cvtepu16_epi32(half[1]), 16));
            _mm512_storeu_si512(kb->ds_paired + (j / PANEL * (BLOCK / 16) + c / 16) * TILE + j % PANEL * 16,
                                pairs);
        }
        _mm512_storeu_ps(kb->sums + c, sum);
    }
}

/* C[keys, wide] += left[keys, queries] · (the paired panels): dV and dK. */
static TARGET_AMX void add_keys(const key_block *kb, const query_block *qb, const nbl__mask_view *of_keys,
                                const uint16_t *left, const uint16_t *const panels[2], float *c)
{
    int64_t ld = kb->wide + 16;
    bool together = qb->rows == BLOCK; /* the second panel follows the first */
    for (int64_t r = 0; r < kb->rows; r += PANEL) {
        bool first = is_visible(of_keys, r, kb->rows, 0);
        bool second = qb->rows > PANEL && is_visible(of_keys, r, kb->rows, PANEL);
        for (int64_t d = 0; d < kb->wide; d += 32) {
            float *to = c + r * ld + d;
            const uint16_t *a = left + r * P_LD;
            int64_t tile = d / 16 * TILE;
            if (first && second && together) {
                multiply_32x32(true, to, ld, a, P_LD, panels[0] + tile, PANEL * kb->wide, TILE, 2);
                continue;
            }
            if (first) multiply_32x32(true, to, ld, a, P_LD, panels[0] + tile, 0, TILE, 1);
            if (second) multiply_32x32(true, to, ld, a + PANEL, P_LD, panels[1] + tile, 0, TILE, 1);
        }
    }
}

/* dQᵀ[wide, 64] = (add ? dQᵀ : 0) + Kᵀ·dSᵀ. */
static TARGET_AMX void add_queries(const key_block *kb, const nbl__mask_view *of_keys, bool add, float *dqt)
{
    int64_t panels = nbl__ceil_div(kb->rows, PANEL);
    for (int64_t c = 0; c < BLOCK; c += PANEL) {
        if (add && !is_visible(of_keys, 0, kb->rows, c) && !is_visible(of_keys, PANEL, kb->rows, c)) continue;
        for (int64_t d = 0; d < kb->wide; d += 32)
            multiply_32x32(add, dqt + d * BLOCK + c, BLOCK, kb->kt + d * P_LD, P_LD,
                           kb->ds_paired + c / 16 * TILE, BLOCK / 16 * TILE, TILE, panels);
    }
}

/* The same three products, over exactly what is seen. For non-finite operands: 0 · NaN must not
 * leak. */
static TARGET_AMX void add_non_finite(const key_block *kb, const query_block *qb,
                                      const nbl__mask_view *of_keys, float *dqt)
{
    const nbl__attention *a = kb->job->a;
    int64_t ld = kb->wide + 16;
    for (int64_t j = 0; j < kb->rows; j++) {
        nbl__span seen = nbl__visible_range(of_keys, j, 1);
        for (int64_t i = seen.first; i < seen.end; i++) {
            int64_t token = qb->b->first + qb->b->at + i;
            const uint16_t *q = row_at(&a->q, token, qb->head), *dout = row_at(&a->dout, token, qb->head);
            float p = nbl__bf16_to_f32(kb->p[j * P_LD + i]), ds = nbl__bf16_to_f32(kb->ds[j * P_LD + i]);
            for (int64_t d = 0; d < kb->job->size; d++) {
                kb->dv[j * ld + d] += p * nbl__bf16_to_f32(dout[d]);
                kb->dk[j * ld + d] += ds * nbl__bf16_to_f32(q[d]);
                dqt[d * BLOCK + i] += ds * nbl__bf16_to_f32(kb->k[j * (kb->wide + 32) + d]);
            }
        }
    }
}

/* Transposes dQᵀ to the rows of dq. */
static TARGET_AMX void write_queries(const key_block *kb, const query_block *qb, const float *dqt)
{
    const nbl__attention_job *job = kb->job;
    int64_t token = qb->b->first + qb->b->at;
    for (int64_t r = 0; r < qb->rows; r += 16)
        for (int64_t d = 0; d < job->size; d += 16) {
            __m512i rows[16];
            for (int64_t i = 0; i < 16; i++) rows[i] = _mm512_loadu_si512(dqt + (d + i) * BLOCK + r);
            transpose_16x16(rows);
            __mmask16 mask = mask_of((nbl__span){0, job->size}, d);
            for (int64_t i = 0; i < nbl__min_i64(16, qb->rows - r); i++) {
                __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(rows[i]), _mm512_set1_ps(job->dq_factor));
                uint16_t *to = (uint16_t *)job->a->dq.data +
                               nbl__head_offset(&job->a->dq, token + r + i, qb->head) + d;
                _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(value));
            }
        }
}

static TARGET_AMX void backward_tile(const key_block *kb, int64_t index, int64_t head)
{
    const nbl__attention_job *job = kb->job;
    const nbl__attention *a = job->a;
    query_block qb = query_block_of(kb, index, head);
    int64_t a_ld = kb->wide + 32, steps = kb->wide / 32;
    nbl__mask_view of_keys = {a, true, qb.b->n, kb->b->at, qb.b->at, qb.rows};
    for (int64_t r = 0; r < kb->rows; r += PANEL)
        for (int64_t c = 0; c < qb.rows; c += PANEL) {
            if (!is_visible(&of_keys, r, kb->rows, c)) continue;
            multiply_32x32(false, kb->s + r * S_LD + c, S_LD, kb->k + r * a_ld, a_ld,
                           qb.q_transposed[c / PANEL], TILE, steps * TILE, steps);
            multiply_32x32(false, kb->dp + r * S_LD + c, S_LD, kb->v + r * a_ld, a_ld,
                           qb.dout_transposed[c / PANEL], TILE, steps * TILE, steps);
        }
    differentiate_block(kb, &qb, &of_keys);
    bool non_finite = kb->non_finite || job->q_non_finite[index * job->heads + head];
    if (!non_finite && nbl__has_data(&a->dv)) add_keys(kb, &qb, &of_keys, kb->p, qb.dout_paired, kb->dv);
    if (!non_finite && nbl__has_data(&a->dk)) add_keys(kb, &qb, &of_keys, kb->ds, qb.q_paired, kb->dk);

    int turns, turn = nbl__attention_await(job, kb->b, index, head, &turns);
    bool wanted = nbl__has_data(&a->dq);
    float *kept = job->dq + qb.at * kb->wide, *dqt = wanted && qb.rows == BLOCK ? kept : kb->dqt;
    for (int64_t i = 0; i < qb.rows; i++)
        job->sums[qb.at + i] = kb->sums[i] + (turn == 0 ? 0 : job->sums[qb.at + i]);
    if (wanted && dqt != kept && turn > 0)
        for (int64_t d = 0; d < kb->wide; d++)
            memcpy(dqt + d * BLOCK, kept + d * qb.rows, (size_t)qb.rows * sizeof *dqt);
    if (non_finite) {
        if (turn == 0 || !wanted) memset(dqt, 0, (size_t)(kb->wide * BLOCK) * sizeof *dqt);
        add_non_finite(kb, &qb, &of_keys, dqt);
    } else if (wanted) {
        add_queries(kb, &of_keys, turn > 0, dqt);
    }
    if (wanted && turn + 1 == turns) write_queries(kb, &qb, dqt);
    else if (wanted && dqt != kept)
        for (int64_t d = 0; d < kb->wide; d++)
            memcpy(kept + d * qb.rows, dqt + d * BLOCK, (size_t)qb.rows * sizeof *dqt);
    nbl__attention_done(job, index, head, turn);
}

/* Rows of a head, unchanged; zeros past them and past their ends. */
static TARGET_AMX void copy_rows(const nbl_tensor *t, int64_t token, int64_t head, int64_t rows, int64_t wide,
                                 uint16_t *to)
{
    for (int64_t r = 0; r < BLOCK; r++)
        for (int64_t d = 0; d < wide; d += 32)
            _mm512_storeu_si512(to + r * (wide + 32) + d,
                                r < rows ? part_of_row(row_at(t, token + r, head), d, t->shape[2])
                                         : _mm512_setzero_si512());
}

/* Kᵀ by rows, from the transposed layout, whose pairs of d are taken apart. */
static TARGET_AMX void transpose_keys(const key_block *kb)
{
    for (int64_t j = 0; j < BLOCK; j += PANEL) {
        const uint16_t *words = kb->rest[0];
        int64_t token = kb->b->first + kb->b->at + j;
        pack_transposed(&kb->job->a->k, token, kb->key_head, kb->rows - j, kb->rest[0]);
        for (int64_t half = 0; half < PANEL; half += 16)
            for (int64_t d = 0; d < kb->wide; d += 2, words += 32) {
                __m512i pair = _mm512_loadu_si512(words);
                uint16_t *to = kb->kt + d * P_LD + j + half;
                _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtepi32_epi16(pair));
                _mm256_storeu_si256((__m256i *)(void *)(to + P_LD),
                                    _mm512_cvtepi32_epi16(_mm512_srli_epi32(pair, 16)));
            }
    }
}

static TARGET_AMX void write_keys(const key_block *kb, const nbl_tensor *t, float factor, float *from)
{
    int64_t size = kb->job->size, token = kb->b->first + kb->b->at;
    for (int64_t r = 0; r < kb->rows; r++, from += kb->wide + 16) {
        for (int64_t d = 0; d < kb->wide; d += W)
            _mm512_storeu_ps(from + d, _mm512_mul_ps(_mm512_loadu_ps(from + d), _mm512_set1_ps(factor)));
        nbl__from_f32(kb->job->isa, from, NBL_DTYPE_BF16,
                      (uint16_t *)t->data + nbl__head_offset(t, token + r, kb->key_head), size);
    }
}

TARGET_AMX void nbl__attention_backward_amx(const nbl__attention_job *job, int64_t block, int64_t key_head,
                                            float *own)
{
    const nbl__attention_block *b = &job->blocks[block];
    const nbl__attention *a = job->a;
    int64_t token = b->first + b->at;
    key_block kb = {.job = job, .b = b, .rows = nbl__min_i64(BLOCK, b->n - b->at), .key_head = key_head};
    layout(job->size, (uint8_t *)own, &kb);
    copy_rows(&a->k, token, key_head, kb.rows, kb.wide, kb.k);
    copy_rows(&a->v, token, key_head, kb.rows, kb.wide, kb.v);
    transpose_keys(&kb);
    __mmask32 non_finite = 0;
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    for (int64_t r = 0; r < BLOCK; r++)
        for (int64_t d = 0; d < kb.wide; d += 32) {
            __m512i k = _mm512_loadu_si512(kb.k + r * (kb.wide + 32) + d);
            __m512i v = _mm512_loadu_si512(kb.v + r * (kb.wide + 32) + d);
            non_finite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(k, exponent), exponent) |
                          _mm512_cmpeq_epi16_mask(_mm512_and_si512(v, exponent), exponent);
        }
    kb.non_finite = non_finite != 0;
    memset(kb.dk, 0, (size_t)(BLOCK * (kb.wide + 16)) * sizeof *kb.dk);
    memset(kb.dv, 0, (size_t)(BLOCK * (kb.wide + 16)) * sizeof *kb.dv);

    _tile_loadconfig(&nbl__amx_tiles);
    nbl__mask_view all = {a, true, b->n, b->at, 0, b->n};
    nbl__span queries = nbl__visible_range(&all, 0, kb.rows);
    for (int64_t h = key_head * job->group; h < (key_head + 1) * job->group; h++)
        for (int64_t i = nbl__ceil_div(queries.end, BLOCK) - 1; i >= queries.first / BLOCK; i--)
            backward_tile(&kb, b->base + i, h);
    _tile_release();
    if (nbl__has_data(&a->dk)) write_keys(&kb, &a->dk, job->dq_factor, kb.dk);
    if (nbl__has_data(&a->dv)) write_keys(&kb, &a->dv, 1, kb.dv);
}

#endif
