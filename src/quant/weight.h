/* weight.h - checks of weights and shapes, and how they read in messages. */
#ifndef NBL_WEIGHT_H
#define NBL_WEIGHT_H

#include "quant/quant.h"

/* Work is cut at multiples of this many elements of the flattened weight: every block size divides it, so
 * a block is never shared and any number of threads gives the same bits. */
enum { NBL_WEIGHT_CHUNK = 65536 };

/* "[4096, 11008]", for messages. */
typedef struct nbl__shape_text {
    char text[256];
} nbl__shape_text;
nbl__shape_text nbl__show_shape(int rank, const int64_t *shape);

/* Each names `call`, the public function, in its message. */

/* n = product of the shape, rows = product of all dimensions but the last. */
nbl_status nbl__check_shape(nbl_context *ctx, const char *call, int rank, const int64_t *shape, int64_t *n,
                            int64_t *rows);
nbl_status nbl__check_block(nbl_context *ctx, const char *call, nbl_format format, int64_t block);
nbl_status nbl__check_mxfp4_columns(nbl_context *ctx, const char *call, int rank, const int64_t *shape);
/* nbl_quantize without its warning; *non_finite counts NaN and infinities, for int8 in f16, also on failure. */
nbl_status nbl__quantize(nbl_context *ctx, const nbl_quantize_options *options, nbl_dtype dtype, int rank,
                         const int64_t *shape, const void *values, const nbl_quantized_parts *parts,
                         nbl_weight *weight, int64_t *non_finite);
/* A part that must be there and, when it holds floats, be aligned to them. */
nbl_status nbl__check_part(nbl_context *ctx, const char *call, nbl_format format, const char *part,
                           const void *pointer, size_t align);
/* Format, dtype, shape, and that every part that will be read is there. */
nbl_status nbl__check_weight(nbl_context *ctx, const char *call, const nbl_weight *weight, int64_t *n,
                             int64_t *rows);
/* Bytes of each part of a weight that was accepted; 0: it has no such part. */
typedef struct nbl__weight_sizes {
    size_t data, scales, scale_codes, nested_scales, nested_table;
} nbl__weight_sizes;
nbl__weight_sizes nbl__weight_sizes_of(const nbl_weight *weight);
/* The name of a dtype that may be no valid one. */
const char *nbl__any_dtype_name(nbl_dtype dtype);

#endif
