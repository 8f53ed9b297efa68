/* pack.h - copies operands of a product into panels, and dequantizes weights on
 * the way.
 *
 * The layout of panels is in gemm_kernels.h. Values are those of nbl__dequantize,
 * bit for bit: a weight is rounded to the compute dtype once. A dense operand is
 * not rounded, except where the panel is bf16.
 *
 * Terms: an operand is *transposed* when the inner index k runs along its rows in
 * memory, so that rows must become columns of the panel (A as stored, B
 * transposed: x·Wᵀ). It is *straight* when k runs down its columns (dy·W).
 *
 *   pack.c                  any operand, both ways: rows as f32 in scratch, then into the panel
 *   pack_transpose.c        rows into panels, f32 into pairs of bf16
 *   pack_bf16x3.c           f32 into three bf16
 *   pack_fourbit_avx2.c     NF4, FP4, MXFP4 directly into f32 panels, both ways
 *   pack_fourbit_avx512.c   the same, and into pairs
 *
 * Speed per thread: 5 to 30 G values/s for four bits, 1 to 4 for the rest. */
#ifndef NBL_PACK_H
#define NBL_PACK_H

#include "ops/gemm/cpu/gemm.h"
#include "ops/gemm/cpu/gemm_kernels.h"
#include "quant/quant.h"

/* An operand to pack. `turn`: it is transposed, in the sense above. */
typedef struct nbl__pack_source {
    nbl_isa isa;
    const nbl__gemm_kernel *kernel;
    const nbl__gemm_matrix *mat;
    nbl_dtype compute;
    bool transposed;
} nbl__pack_source;

/* Bytes of scratch for one call of a packer, with at most `outer` rows of A or
 * columns of B. */
size_t nbl__pack_scratch(int64_t k_block, int64_t outer);

/* A part of A: panels [panel_begin, panel_end) of a row block, and `k_count` of k
 * from k_begin. The row block has `rows` rows from `row` on, in `panels` panels. */
typedef struct nbl__pack_rows {
    int64_t row, rows, panels, panel_begin, panel_end, k_begin, k_count;
} nbl__pack_rows;
/* Packs a part of A. `to` is the row block's memory for this block of k. */
void nbl__pack_a(const nbl__pack_source *source, const nbl__pack_rows *part, void *to, void *scratch);
/* Packs columns [n_begin, n_end) of B into strips. n_begin is a multiple of 16.
 * The last strip is filled with zeros. */
void nbl__pack_b(const nbl__pack_source *source, int64_t n_begin, int64_t n_end, int64_t k_begin,
                 int64_t k_count, void *to, void *scratch);

/* Parts of a split B: 1 if B is bf16 exactly, else 3. */
int nbl__b_parts(const nbl__pack_source *source);

/* ---- steps of packing ---- */

/* to[i * count + r] = rows[r][i] for i < k, r < count <= 16; rows of f32, f16 or bf16. */
void nbl__transpose_f32(nbl_isa isa, nbl_dtype dtype, const void *const *rows, int count, int64_t k,
                        float *to);
/* to[(i * width + r) * 2 + h] = bf16(from[(2 * i + h) * width + r]); with k odd, the last h = 1 is zero. */
void nbl__pair_bf16(nbl_isa isa, const float *from, int64_t width, int64_t k, uint16_t *to);

/* 16 rows of bf16 into a strip: to[i * 16 + r] = the pair rows[r][2i], rows[r][2i
 * + 1]. Past the end the second is 0. */
void nbl__transpose_pairs(nbl_isa isa, const void *const *rows, int64_t k, uint32_t *to);
/* Two rows of n bf16, for k and k + 1, into strips that are `strip` pairs apart.
 * The last strip is filled with zeros. */
void nbl__join_pairs(nbl_isa isa, const uint16_t *even, const uint16_t *odd, int64_t n, uint32_t *to,
                     int64_t strip);

#if defined(__x86_64__)
/* A row of n f32 as three parts, into the row `to` of a panel's tiles. k from n up
 * to a multiple of 32 is zero. */
void nbl__split_row_amx(const float *row, int64_t n, uint16_t *to);
/* A strip [k][16] of f32 as three parts. k past the end as above. */
void nbl__split_strip_amx(const float *strip, int64_t k, uint16_t *to);
#endif

/* ---- four bits ---- */

/* A four-bit weight. Its rows, and all ranges of a call, are multiples of 32 long,
 * so that 32 neighbours always share a block. */
typedef struct nbl__fourbit_source {
    const uint8_t *codes;
    const float *table;       /* [16] */
    const nbl_weight *weight; /* for the scales */
    int64_t columns;
    int block_shift; /* log2 of the elements per block */
    bool low_first;  /* the first code of a byte is in its low bits */
    nbl_dtype compute;
} nbl__fourbit_source;

/* The scale of a block, in f32: direct, MXFP4's power of two, or nested (double
 * quantization: code table times group scale, plus offset). */
static inline float nbl__block_scale(const nbl_weight *w, int64_t block)
{
    if (w->format == NBL_FORMAT_MXFP4) return nbl__mxfp4_scale(w->scale_codes[block]);
    if (w->nested_scales == NULL) return w->scales[block];
    int64_t group = w->nested_block == 256 ? block >> 8 : block / w->nested_block;
    float product = w->nested_table[w->scale_codes[block]] * w->nested_scales[group];
    return product + w->nested_offset;
}

/* The scales of 16 rows from `row` over columns k_begin + [0, k); rows from
 * row_end on get 0. The 16 scales of column c are at scales[16 * ((c >> result) -
 * (k_begin >> result))]. */
int nbl__strip_scales(const nbl__fourbit_source *s, int64_t row, int64_t row_end, int64_t k_begin, int64_t k,
                      float scales[NBL_MAX_K_BLOCK / 32 * NBL_STRIP]);

/* The address of column k's code in each of 16 rows. Rows from row_end on repeat
 * the last one. */
static inline void nbl__strip_rows(const nbl__fourbit_source *s, int64_t row, int64_t row_end, int64_t k,
                                   const uint8_t *rows[NBL_STRIP])
{
    for (int64_t r = 0; r < NBL_STRIP; r++)
        rows[r] = s->codes + (nbl__min_i64(row + r, row_end - 1) * s->columns + k) / 2;
}

#if defined(__x86_64__)
/* Transposed: 16 rows of the weight from `row` on (those from row_end on count as
 * zero), columns k_begin + [0, k), as one strip. Returns false if a scale is
 * non-finite and the target has 16 bits; nothing usable is written, and the
 * general algorithm (pack.c) must be taken. */
bool nbl__pack_fourbit_t16_f32_avx2(const nbl__fourbit_source *s, int64_t row, int64_t row_end,
                                    int64_t k_begin, int64_t k, float *to);
bool nbl__pack_fourbit_t16_f32_avx512(const nbl__fourbit_source *s, int64_t row, int64_t row_end,
                                      int64_t k_begin, int64_t k, float *to);
bool nbl__pack_fourbit_t16_pairs_avx512(const nbl__fourbit_source *s, int64_t row, int64_t row_end,
                                        int64_t k_begin, int64_t k, uint32_t *to);
/* Straight: `strips` strips (an even number) from column n_begin on, rows k_begin
 * + [0, k) of the weight. */
bool nbl__pack_fourbit_n16_f32_avx2(const nbl__fourbit_source *s, int64_t n_begin, int64_t strips,
                                    int64_t k_begin, int64_t k, float *to);
bool nbl__pack_fourbit_n16_f32_avx512(const nbl__fourbit_source *s, int64_t n_begin, int64_t strips,
                                      int64_t k_begin, int64_t k, float *to);
/* k is even. `padded`: pairs of k per strip in the panel. */
bool nbl__pack_fourbit_n16_pairs_avx512(const nbl__fourbit_source *s, int64_t n_begin, int64_t strips,
                                        int64_t k_begin, int64_t k, int64_t padded, uint32_t *to);
#endif

#endif
