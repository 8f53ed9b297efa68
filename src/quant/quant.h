/* quant.h - the storage formats of quantized weights: dequantize and encode, without checks or
 * threads.
 *
 *     fourbit.c   NF4 and FP4: blocks of the flattened weight, one scale each, a table of 16 values
 *     nf4.c fp4.c   their tables and the rules that choose a code
 *     lookup.c    kernels that look codes up in such a table; used by MXFP4 as well
 *     absmax.c    the largest magnitude of a block
 *     nested.c    double quantization: 8-bit codes for the scales
 *     dynamic8.c  8-bit block-wise quantization with the dynamic maps
 *     int8.c      LLM.int8(): one scale per row
 *     mxfp4.c     e2m1 values with a power-of-two scale per 32
 *     ggml.c ggml_encode.c   the blocks of GGUF files (ggml.h)
 *     weight.c weight_encode.c   the entries of nibble.h: checks and threads around these functions
 *
 * Each format has a scalar reference, an AVX2 path and an AVX-512 path with the same bits.
 * Nothing here allocates, fails or starts threads. The callers (weight.c for memory, format/ for
 * files) check arguments and split ranges among threads.
 *
 * The numerics are those of bitsandbytes on CUDA; docs/NUMERICS.md has the rules. In formulas
 * RN_32 and RN_T round to f32 and to the target dtype, to nearest even. */
#ifndef NBL_QUANT_H
#define NBL_QUANT_H

#include "tensor/dtype.h"

/* ---- dequantize ----
 *
 * Elements [begin, end) of the flattened weight (any format, also dense f32, f16, bf16) to a
 * compute dtype; element `begin` is written to out[0]. `stream`: the output is larger than the
 * caches and not read soon, so non-temporal stores are used where they help. Cost: memory-bound. */
void nbl__dequantize(nbl_isa isa, const nbl_weight *weight, int64_t begin, int64_t end, nbl_dtype dtype,
                     void *out, bool stream);

/* The same for one format. `table` has 16 entries. */
void nbl__fourbit_dequantize(nbl_isa isa, const nbl_weight *weight, const float *table, int64_t begin,
                             int64_t end, nbl_dtype dtype, void *out, bool stream);
void nbl__int8_dequantize(nbl_isa isa, const nbl_weight *weight, int64_t begin, int64_t end, nbl_dtype dtype,
                          void *out, bool stream);
void nbl__mxfp4_dequantize(nbl_isa isa, const nbl_weight *weight, int64_t begin, int64_t end, nbl_dtype dtype,
                           void *out, bool stream);

/* nbl__mxfp4_table holds twice the e2m1 values: then the scale is an f32 for every scale code. */
extern const float nbl__nf4_table[16], nbl__fp4_table[16], nbl__mxfp4_table[16];
/* The MXFP4 scale 2^(code-128) to multiply the table by; it is subnormal for code 0 and 1. */
static inline float nbl__mxfp4_scale(unsigned code)
{
    return nbl__from_bits(code >= 2 ? (uint32_t)(code - 1) << 23 : 0x00200000u << code);
}

/* ---- encode: from dense f32, f16 or bf16 values, which need no alignment ---- */

/* NF4 or FP4. The n values begin at the first element of a block; the last block may be short.
 * Writes ceil(n / 2) bytes of `codes` and ceil(n / block) `scales`. If n is odd, the last nibble
 * is the code of 0.0, or 0 if its block is all zero. Returns the number of non-finite values. */
int64_t nbl__fourbit_encode(nbl_isa isa, nbl_format format, int64_t block, nbl_dtype dtype,
                            const void *values, int64_t n, uint8_t *codes, float *scales);
/* One block of n <= 4096 values: codes of value · reciprocal (1 / absmax), one code per byte. */
void nbl__nf4_encode_block(nbl_isa isa, const float *values, int64_t n, float reciprocal, uint8_t *codes);
void nbl__fp4_encode_block(nbl_isa isa, const float *values, int64_t n, float reciprocal, uint8_t *codes);

/* LLM.int8() of `rows` rows. Values are first rounded to f16, as in bitsandbytes. Returns the
 * number of values that are non-finite in f16: 65520 and more in magnitude count. */
int64_t nbl__int8_encode(nbl_isa isa, nbl_dtype dtype, const void *values, int64_t rows, int64_t columns,
                         int8_t *codes, float *scales);
/* MXFP4 of n values, a multiple of 32. `stride`: elements from one value to the next (1:
 * contiguous), so that an [in, out] matrix can be encoded along its columns. Returns the number
 * of non-finite values. */
int64_t nbl__mxfp4_encode(nbl_isa isa, nbl_dtype dtype, const void *values, int64_t stride, int64_t n,
                          uint8_t *codes, uint8_t *scales);

/* True if no value is NaN or infinite. The values may be f32, f16 or bf16 and need no alignment. */
bool nbl__all_finite(nbl_isa isa, nbl_dtype dtype, const void *values, int64_t n);

/* ---- double quantization: n scales in blocks of 256 ---- */

enum { NBL_NESTED_BLOCK = 256 };
/* The mean of the scales, summed in f64 and rounded once to f32. */
float nbl__nested_offset(const float *scales, int64_t n);
/* Encodes scale - offset with the signed dynamic map. `by_grid`: the code selection of
 * bitsandbytes' CPU code instead of the nearest entry (nested.c). Writes n codes and ceil(n /
 * 256) nested scales. */
void nbl__nested_encode(nbl_isa isa, bool by_grid, const float *scales, int64_t n, float offset,
                        uint8_t *codes, float *nested_scales);
/* Restores scales [first, first + n) of a weight with nested scales: table[code] · nested_scale
 * + offset, the product and the sum each rounded to f32. */
void nbl__nested_dequantize(const nbl_weight *weight, int64_t first, int64_t n, float *scales);

/* ---- 8-bit dynamic maps ---- */

extern const float nbl__dynamic_map_signed[256], nbl__dynamic_map_unsigned[256];
/* Index of the nearest entry of a map. An exact tie takes the even index, NaN takes 0. */
uint8_t nbl__dynamic8_code(const float *map, float value);
/* n values in blocks of `block`; the last may be short. The map is the signed or the unsigned
 * one. */
void nbl__dynamic8_encode(nbl_isa isa, const float *map, int64_t block, const float *values, int64_t n,
                          uint8_t *codes, float *scales);
void nbl__dynamic8_dequantize(nbl_isa isa, const float *map, int64_t block, const uint8_t *codes,
                              const float *scales, int64_t n, float *values);

/* ---- a check shared by weights in files and in memory ---- */

static inline bool nbl__block_valid(int64_t block)
{
    return block >= 32 && block <= 4096 && (block & (block - 1)) == 0;
}

#endif
