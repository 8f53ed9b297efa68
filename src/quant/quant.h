/* quant.h - the storage formats: one file each, with a scalar reference, an AVX2 and an AVX-512 path
 * that give the same bits. Nothing here allocates, fails or starts threads: arguments were checked by
 * the callers (weight.c for memory, format/ for files), and ranges are split by them.
 *
 *   fourbit.c   what NF4 and FP4 share: decoding through a table of 16, block by block
 *   lookup.c    the kernels of that table; MXFP4 uses them, too
 *   nf4.c fp4.c tables, decision rules, encoding
 *   absmax.c    the largest magnitude of a block
 *   nested.c    double quantisation of the scales
 *   dynamic8.c  8-bit block-wise with the dynamic maps
 *   int8.c      LLM.int8 row-wise
 *   mxfp4.c     e2m1 with a power-of-two scale per 32
 *   ggml.c ggml_encode.c   the blocks of GGUF files (ggml.h)
 *   weight.c weight_encode.c   the checked, threaded entries of nibble.h
 *
 * Numerics are bitsandbytes' on CUDA; docs/NUMERICS.md has the rules. */
#ifndef NBL_QUANT_H
#define NBL_QUANT_H

#include "tensor/dtype.h"

/* ---- decoding ----
 *
 * Decodes elements [begin, end) of the flattened weight (any format, also dense f32, f16, bf16) to
 * a compute dtype; element `begin` lands at out[0]. `stream`: the output is larger than the caches
 * and not read soon, use non-temporal stores where they help. Cost: bound by memory. */
void nbl__dequantize(nbl_isa isa, const nbl_weight *weight, int64_t begin, int64_t end, nbl_dtype dtype,
                     void *out, bool stream);

/* The formats' parts of it. `table` has 16 entries. */
void nbl__fourbit_dequantize(nbl_isa isa, const nbl_weight *weight, const float *table, int64_t begin,
                             int64_t end, nbl_dtype dtype, void *out, bool stream);
void nbl__int8_dequantize(nbl_isa isa, const nbl_weight *weight, int64_t begin, int64_t end, nbl_dtype dtype,
                          void *out, bool stream);
void nbl__mxfp4_dequantize(nbl_isa isa, const nbl_weight *weight, int64_t begin, int64_t end, nbl_dtype dtype,
                           void *out, bool stream);

/* Of MXFP4 twice the values of e2m1, so that the scale to go with them is an f32 for every code. */
extern const float nbl__nf4_table[16], nbl__fp4_table[16], nbl__mxfp4_table[16];
/* 2^(code-128); the first two are subnormal. */
static inline float nbl__mxfp4_scale(unsigned code)
{
    return nbl__from_bits(code >= 2 ? (uint32_t)(code - 1) << 23 : 0x00200000u << code);
}

/* ---- encoding: dense f32, f16 or bf16 values, which need no alignment ---- */

/* n values, which start at a block's first element; the last block may be short. `codes` gets
 * ceil(n/2) bytes, `scales` ceil(n/block) floats. A spare nibble at the end is the code of 0.0, or 0
 * when its block is all zero. Returns how many values were not finite. */
int64_t nbl__fourbit_encode(nbl_isa isa, nbl_format format, int64_t block, nbl_dtype dtype,
                            const void *values, int64_t n, uint8_t *codes, float *scales);
/* One block of at most 4096 f32 values times `reciprocal` (1 / absmax) to `codes`, one per byte. */
void nbl__nf4_encode_block(nbl_isa isa, const float *values, int64_t n, float reciprocal, uint8_t *codes);
void nbl__fp4_encode_block(nbl_isa isa, const float *values, int64_t n, float reciprocal, uint8_t *codes);

/* `rows` rows; every value goes through f16 first, as in bitsandbytes. Returns non-finite values,
 * counted after that step: a value beyond 65504 counts. */
int64_t nbl__int8_encode(nbl_isa isa, nbl_dtype dtype, const void *values, int64_t rows, int64_t columns,
                         int8_t *codes, float *scales);
/* n values, a multiple of 32; `stride` elements from one value to the next (1: contiguous), so that a
 * [in, out] matrix can be encoded along its columns. Returns non-finite values. */
int64_t nbl__mxfp4_encode(nbl_isa isa, nbl_dtype dtype, const void *values, int64_t stride, int64_t n,
                          uint8_t *codes, uint8_t *scales);

/* Whether no value is NaN or infinite; f32, f16 or bf16 values, which need no alignment. */
bool nbl__all_finite(nbl_isa isa, nbl_dtype dtype, const void *values, int64_t n);

/* ---- double quantisation of n scales, blocks of 256 ---- */

enum { NBL_NESTED_BLOCK = 256 };
/* The mean of the scales, in f64, rounded once. */
float nbl__nested_offset(const float *scales, int64_t n);
void nbl__nested_encode(nbl_isa isa, bool by_grid, const float *scales, int64_t n, float offset,
                        uint8_t *codes, float *nested_scales);
/* Scales [first, first + n) of a weight with nested scales: two roundings, as bitsandbytes' API. */
void nbl__nested_dequantize(const nbl_weight *weight, int64_t first, int64_t n, float *scales);

/* ---- 8-bit dynamic maps ---- */

extern const float nbl__dynamic_map_signed[256], nbl__dynamic_map_unsigned[256];
/* Nearest entry of a map; an exact tie goes to the even index, NaN to 0. */
uint8_t nbl__dynamic8_code(const float *map, float value);
void nbl__dynamic8_encode(nbl_isa isa, const float *map, int64_t block, const float *values, int64_t n,
                          uint8_t *codes, float *scales);
void nbl__dynamic8_dequantize(nbl_isa isa, const float *map, int64_t block, const uint8_t *codes,
                              const float *scales, int64_t n, float *values);

/* ---- checks that files and memory share ---- */

static inline bool nbl__block_valid(int64_t block)
{
    return block >= 32 && block <= 4096 && (block & (block - 1)) == 0;
}

#endif
