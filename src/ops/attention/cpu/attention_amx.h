/* attention_amx.h - operands of bf16 in the layouts of the AMX tile unit, and the
 * product; for attention_amx.c and attention_amx_backward.c.
 *
 * Up to 32 tokens of a head, zeros past them, form a panel. D is padded to 32. Two
 * layouts:
 *
 *   transposed   the right operand of x·Yᵀ: [2 halves][D / 32][16 pairs of d][16 tokens][2]
 *   paired       the right operand of x·Y:  [D / 16][16 pairs of tokens][16 d][2]
 *
 * A tile is 1 KiB of consecutive memory. Whole panels of a sequence are packed
 * once, at the offset of their tokens. The rest of a sequence is packed by each
 * item that needs it, in its own memory, so that the packed operands take no more
 * memory than the tokens. The tile unit takes subnormals as zero.
 *
 * Registers: C 0 1 / 2 3 (32 rows by 32 columns), A 4 5, B 6 7. */
#ifndef NBL_ATTENTION_AMX_H
#define NBL_ATTENTION_AMX_H

#include <immintrin.h>
#include <math.h>

#include "ops/attention/cpu/attention_tile.h"
#include "ops/attention/cpu/attention_vmath.h"
#include "ops/common/amx_tiles.h"

#define TARGET_AMX NBL_TARGET_AMX

enum {
    W = 16,
    TILE = 512, /* values of bf16 */
    PANEL = 32,
    BLOCK = NBL_ATTENTION_BLOCK
};

/* D padded to whole panels. */
static inline int64_t padded(int64_t size)
{
    return nbl__ceil_div(size, PANEL) * PANEL;
}

/* ---- packing ---- */

/* The bf16 row of a token and head. */
static inline const uint16_t *row_at(const nbl_tensor *t, int64_t token, int64_t head)
{
    return (const uint16_t *)t->data + nbl__head_offset(t, token, head);
}

/* Transposes 16 rows of 16 words of 32 bits. */
static inline TARGET_AMX void transpose_16x16(__m512i *r)
{
    __m512i s[16];
    for (int i = 0; i < 16; i += 2) {
        s[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        s[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(s[i], s[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(s[i], s[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(s[i + 1], s[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(s[i + 1], s[i + 3]);
    }
    for (int i = 0; i < 4; i++) { /* columns i, i + 4, i + 8, i + 12 of rows 0-3, 4-7, 8-11, 12-15 */
        __m512i low = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        __m512i high = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        __m512i low_odd = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        __m512i high_odd = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
        s[i] = _mm512_shuffle_i32x4(low, high, 0x88);
        s[i + 8] = _mm512_shuffle_i32x4(low, high, 0xdd);
        s[i + 4] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
        s[i + 12] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
    }
    for (int i = 0; i < 16; i++) r[i] = s[i];
}

/* Values d … d + 31 of a row, zeros past its end. */
static inline TARGET_AMX __m512i part_of_row(const uint16_t *row, int64_t d, int64_t size)
{
    int64_t left = size - d;
    __mmask32 mask = left >= 32 ? 0xffffffffu : (1u << left) - 1;
    return _mm512_maskz_loadu_epi16(mask, row + d);
}

/* Packs up to 32 tokens from `token` on, transposed. */
static inline TARGET_AMX void pack_transposed(const nbl_tensor *t, int64_t token, int64_t head,
                                              int64_t tokens, uint16_t *to)
{
    int64_t size = t->shape[2];
    for (int64_t half = 0; half < PANEL; half += 16)
        for (int64_t d = 0; d < size; d += 32, to += TILE) {
            __m512i rows[16];
            for (int64_t j = 0; j < 16; j++)
                rows[j] = half + j < tokens ? part_of_row(row_at(t, token + half + j, head), d, size)
                                            : _mm512_setzero_si512();
            transpose_16x16(rows);
            for (int64_t j = 0; j < 16; j++) _mm512_storeu_si512(to + j * 32, rows[j]);
        }
}

/* Packs up to 32 tokens from `token` on, paired. Returns whether all values are
 * finite. */
static inline TARGET_AMX bool pack_paired(const nbl_tensor *t, int64_t token, int64_t head, int64_t tokens,
                                          uint16_t *to)
{
    int64_t size = t->shape[2];
    __mmask32 non_finite = 0;
    for (int64_t d = 0; d < size; d += 32)
        for (int64_t pair = 0; pair < 16; pair++) {
            __m512i even = _mm512_setzero_si512(), odd = even;
            if (2 * pair < tokens) even = part_of_row(row_at(t, token + 2 * pair, head), d, size);
            if (2 * pair + 1 < tokens) odd = part_of_row(row_at(t, token + 2 * pair + 1, head), d, size);
            const __m512i exponent = _mm512_set1_epi16(0x7f80);
            non_finite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(even, exponent), exponent) |
                          _mm512_cmpeq_epi16_mask(_mm512_and_si512(odd, exponent), exponent);
            /* words of (even, odd), 16 for each of the two tiles of columns */
            __m512i left = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(even));
            __m512i right = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(even, 1));
            __m512i left_odd = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(odd));
            __m512i right_odd = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(odd, 1));
            uint16_t *at = to + d / 16 * TILE + pair * 32;
            _mm512_storeu_si512(at, _mm512_or_si512(left, _mm512_slli_epi32(left_odd, 16)));
            _mm512_storeu_si512(at + TILE, _mm512_or_si512(right, _mm512_slli_epi32(right_odd, 16)));
        }
    return non_finite == 0;
}

/* ---- products ---- */

/* C[32, 32] = (add ? C : 0) + A[32, 32·steps] · B. A is stored by rows. In B,
 * `b_next` separates steps of k, and `b_half` the tiles of the two halves of
 * columns. */
static inline TARGET_AMX void multiply_32x32(bool add, float *c, int64_t c_row, const uint16_t *a,
                                             int64_t a_row, const uint16_t *b, int64_t b_next, int64_t b_half,
                                             int64_t steps)
{
    size_t stride = (size_t)c_row * sizeof *c, a_stride = (size_t)a_row * sizeof *a;
    float *low = c + 16 * c_row;
    if (add) {
        _tile_loadd(0, c, stride);
        _tile_loadd(1, c + 16, stride);
        _tile_loadd(2, low, stride);
        _tile_loadd(3, low + 16, stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t i = 0; i < steps; i++, a += 32, b += b_next) {
        _tile_loadd(4, a, a_stride);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + b_half, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + 16 * a_row, a_stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, stride);
    _tile_stored(1, c + 16, stride);
    _tile_stored(2, low, stride);
    _tile_stored(3, low + 16, stride);
}

/* attention_amx_backward.c, for the table in attention_amx.c */
int64_t nbl__attention_backward_floats_amx(int64_t size, int64_t ld);
void nbl__attention_pack_queries_amx(const nbl__attention_job *job, int64_t block, int64_t head, float *own);
void nbl__attention_backward_amx(const nbl__attention_job *job, int64_t block, int64_t key_head, float *own);

#endif
