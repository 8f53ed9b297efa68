/* lookup.h - decoding 4-bit codes through a table of 16 entries and one scale per block; what NF4, FP4
 * and MXFP4 share. Internal to quant/.
 *
 * The 16 products table[code] * scale of a block are rounded to the target once, then its elements are
 * only looked up. */
#ifndef NBL_LOOKUP_H
#define NBL_LOOKUP_H

#include "quant/quant.h"

typedef struct nbl__lookup {
    const uint8_t *codes; /* two per byte, element 0 in byte 0 */
    const float *table;   /* [16] */
    const float *scales;  /* scales[0] belongs to block `first_block` */
    int64_t first_block;
    int block_shift; /* block = 1 << block_shift, at least 32 */
    bool low_first;  /* the first of a pair is in the low nibble (MXFP4) */
} nbl__lookup;

/* Elements [begin, end); element `begin` lands at out[0]. */
void nbl__lookup_dequantize(nbl_isa isa, const nbl__lookup *source, int64_t begin, int64_t end,
                            nbl_dtype dtype, void *out, bool stream);

#endif
