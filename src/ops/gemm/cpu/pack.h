/* pack.h - operands of a product into panels: where storage formats are decoded.
 *
 * A panel's layout is in gemm_kernels.h. Values are those of nbl__dequantize, bit for bit: weights are rounded to
 * the compute dtype once; dense operands are taken as they are, and rounded where the panel is bf16.
 *
 *   pack.c                  any operand, either way: rows are read as f32 into scratch, then turned
 *   pack_transpose.c             turning rows into panels, f32 into pairs
 *   pack_bf16x3.c            f32 into three bf16
 *   pack_fourbit_avx2.c     NF4, FP4, MXFP4 straight into f32 panels, both ways
 *   pack_fourbit_avx512.c   the same, and into pairs
 *
 * Cost: 5 to 30 G values/s for four bits, 1 to 4 for the rest. */
#ifndef NBL_PACK_H
#define NBL_PACK_H

#include "ops/gemm/cpu/gemm.h"
#include "ops/gemm/cpu/gemm_kernels.h"
#include "quant/quant.h"

/* Which way an operand lies in memory: `turn` when the inner index k runs along its rows' columns, so that
 * rows must be turned into columns of the panel (A as stored, B transposed). */
typedef struct nbl__source {
    nbl_isa isa;
    const nbl__kernel *kernel;
    const nbl__mat *mat;
    nbl_dtype compute;
    bool turn;
} nbl__source;

/* Bytes of scratch that one call of either packer needs, for at most `outer` rows of A or columns of B. */
size_t nbl__pack_scratch(int64_t k_block, int64_t outer);

/* Panels [panel_begin, panel_end) of a superblock of A that begins at `row` and has `rows` rows in `panels`
 * panels, `k_count` of k from k_begin. `to` is the superblock's room for this block of k. */
typedef struct nbl__pack_rows {
    int64_t row, rows, panels, panel_begin, panel_end, k_begin, k_count;
} nbl__pack_rows;
void nbl__pack_a(const nbl__source *source, const nbl__pack_rows *part, void *to, void *scratch);
/* Columns [n_begin, n_end) of B into strips; n_begin is a multiple of 16. The last strip is filled up with
 * zeros. */
void nbl__pack_b(const nbl__source *source, int64_t n_begin, int64_t n_end, int64_t k_begin, int64_t k_count,
                 void *to, void *scratch);

/* Parts of a split B: 1 where it is bf16, to the last bit; else 3. */
int nbl__b_parts(const nbl__source *source);

/* ---- pieces ---- */

/* to[i * count + r] = rows[r][i] for i < k, r < count <= 16; rows of f32, f16 or bf16. */
void nbl__transpose_f32(nbl_isa isa, nbl_dtype dtype, const void *const *rows, int count, int64_t k,
                        float *to);
/* to[(i * width + r) * 2 + h] = bf16(from[(2 * i + h) * width + r]); with k odd, the last h = 1 is zero. */
void nbl__pair_bf16(nbl_isa isa, const float *from, int64_t width, int64_t k, uint16_t *to);

/* Rows of bf16 into a strip: to[i * 16 + r] = the pair rows[r][2i], rows[r][2i + 1], the latter 0 past the end. */
void nbl__transpose_pairs(nbl_isa isa, const void *const *rows, int64_t k, uint32_t *to);
/* Two rows of n bf16 into strips that are `strip` pairs apart; the last one is filled up with zeros. */
void nbl__join_pairs(nbl_isa isa, const uint16_t *even, const uint16_t *odd, int64_t n, uint32_t *to,
                     int64_t strip);

#if defined(__x86_64__)
/* A row of n f32, split, into the rows `to` of a panel's tiles; k past n up to a multiple of 32 is zero. */
void nbl__split_row_amx(const float *row, int64_t n, uint16_t *to);
/* A strip [k][16] of f32, split; k past the end as above. */
void nbl__split_strip_amx(const float *strip, int64_t k, uint16_t *to);
#endif

/* ---- four bits ---- */

/* Strips of a four-bit weight. Rows of the weight are a multiple of 32 long, and so are all ranges, so that 32
 * neighbours always share a block. */
typedef struct nbl__fourbit_source {
    const uint8_t *codes;
    const float *table;       /* [16] */
    const nbl_weight *weight; /* its scales */
    int64_t columns;
    int block_shift;
    bool low_first;
    nbl_dtype compute;
} nbl__fourbit_source;

/* The scale of a block. */
static inline float nbl__block_scale(const nbl_weight *w, int64_t block)
{
    if (w->format == NBL_FORMAT_MXFP4) return nbl__mxfp4_scale(w->scale_codes[block]);
    if (w->nested_scales == NULL) return w->scales[block];
    int64_t group = w->nested_block == 256 ? block >> 8 : block / w->nested_block;
    float product = w->nested_table[w->scale_codes[block]] * w->nested_scales[group];
    return product + w->nested_offset;
}

/* The scales of 16 rows from `row` over columns k_begin + [0, k), those at or past row_end being zero: column c has its
 * sixteen at scales[16 * ((c >> result) - (k_begin >> result))]. */
int nbl__strip_scales(const nbl__fourbit_source *s, int64_t row, int64_t row_end, int64_t k_begin, int64_t k,
                      float scales[NBL_MAX_K_BLOCK / 32 * NBL_STRIP]);

/* Where the codes of 16 rows begin at column k; rows past the end repeat the last. */
static inline void nbl__strip_rows(const nbl__fourbit_source *s, int64_t row, int64_t row_end, int64_t k,
                                   const uint8_t *rows[NBL_STRIP])
{
    for (int64_t r = 0; r < NBL_STRIP; r++)
        rows[r] = s->codes + (nbl__min_i64(row + r, row_end - 1) * s->columns + k) / 2;
}

#if defined(__x86_64__)
/* Turned: 16 rows of the weight from `row` (those at or past row_end count as zero), columns k_begin + [0, k), as
 * a strip. False, and nothing usable written, when a scale is not finite and the target is 16 bits wide: then
 * the general path must be taken. */
bool nbl__pack_fourbit_t16_f32_avx2(const nbl__fourbit_source *s, int64_t row, int64_t row_end,
                                    int64_t k_begin, int64_t k, float *to);
bool nbl__pack_fourbit_t16_f32_avx512(const nbl__fourbit_source *s, int64_t row, int64_t row_end,
                                      int64_t k_begin, int64_t k, float *to);
bool nbl__pack_fourbit_t16_pairs_avx512(const nbl__fourbit_source *s, int64_t row, int64_t row_end,
                                        int64_t k_begin, int64_t k, uint32_t *to);
/* As stored: `strips` strips (even) from column n_begin, weight rows k_begin + [0, k). */
bool nbl__pack_fourbit_n16_f32_avx2(const nbl__fourbit_source *s, int64_t n_begin, int64_t strips,
                                    int64_t k_begin, int64_t k, float *to);
bool nbl__pack_fourbit_n16_f32_avx512(const nbl__fourbit_source *s, int64_t n_begin, int64_t strips,
                                      int64_t k_begin, int64_t k, float *to);
/* k even. `padded`: pairs of k of a strip in the panel. */
bool nbl__pack_fourbit_n16_pairs_avx512(const nbl__fourbit_source *s, int64_t n_begin, int64_t strips,
                                        int64_t k_begin, int64_t k, int64_t padded, uint32_t *to);
#endif

#endif
