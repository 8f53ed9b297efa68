/* lookup.h - dequantizes 4-bit codes by a table of 16 values and one scale per block: NF4, FP4
 * and MXFP4. Internal to quant/.
 *
 * The 16 products table[code] · scale of a block are computed and rounded to the target dtype
 * once. Each element is then a lookup. */
#ifndef NBL_LOOKUP_H
#define NBL_LOOKUP_H

#include "quant/quant.h"

typedef struct nbl__lookup {
    const uint8_t *codes; /* two codes per byte, element 0 in byte 0 */
    const float *table;   /* [16] */
    const float *scales;  /* scales[0] is the scale of block `first_block` */
    int64_t first_block;
    int block_shift; /* block size = 1 << block_shift, at least 32 */
    bool low_first;  /* true: the first code of a byte is in the low nibble (MXFP4) */
} nbl__lookup;

/* Dequantizes elements [begin, end) of the weight; element `begin` is written to out[0]. dtype:
 * f32, f16 or bf16. */
void nbl__lookup_dequantize(nbl_isa isa, const nbl__lookup *source, int64_t begin, int64_t end,
                            nbl_dtype dtype, void *out, bool stream);

#endif
