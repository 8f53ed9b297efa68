/* weight.h - checks of weights and shapes, and their texts in messages. */
#ifndef NBL_WEIGHT_H
#define NBL_WEIGHT_H

#include "quant/quant.h"

/* Threads work on chunks of this many elements of the flattened weight. Every block size divides
 * it, so no block is shared, and any number of threads gives the same bits. */
enum { NBL_WEIGHT_CHUNK = 65536 };

/* "[4096, 11008]", for messages. */
typedef struct nbl__shape_text {
    char text[256];
} nbl__shape_text;
nbl__shape_text nbl__show_shape(int rank, const int64_t *shape);

/* The checks below begin their messages with `call`, the name of the public function. */

/* *n = product of the shape; *rows = product of all dimensions but the last. Fails with
 * NBL_ERROR_SHAPE for a bad rank, a negative dimension, or more than 2^59 elements. */
nbl_status nbl__check_shape(nbl_context *ctx, const char *call, int rank, const int64_t *shape, int64_t *n,
                            int64_t *rows);
/* Fails with NBL_ERROR_ARGUMENT unless `block` is a power of two from 32 to 4096. */
nbl_status nbl__check_block(nbl_context *ctx, const char *call, nbl_format format, int64_t block);
/* Fails with NBL_ERROR_SHAPE unless the last dimension is a multiple of 32. */
nbl_status nbl__check_mxfp4_columns(nbl_context *ctx, const char *call, int rank, const int64_t *shape);
/* nbl_quantize without its warning. *non_finite is the number of NaN and infinities (for int8
 * after rounding to f16); it is valid after a failure too. */
nbl_status nbl__quantize(nbl_context *ctx, const nbl_quantize_options *options, nbl_dtype dtype, int rank,
                         const int64_t *shape, const void *values, const nbl_quantized_parts *parts,
                         nbl_weight *weight, int64_t *non_finite);
/* Fails unless `pointer` is given and aligned to `align` bytes. */
nbl_status nbl__check_part(nbl_context *ctx, const char *call, nbl_format format, const char *part,
                           const void *pointer, size_t align);
/* Checks format, dtype and shape, and that every part that dequantization reads is given. */
nbl_status nbl__check_weight(nbl_context *ctx, const char *call, const nbl_weight *weight, int64_t *n,
                             int64_t *rows);
/* Bytes of each part of a checked weight; 0: it has no such part. */
typedef struct nbl__weight_sizes {
    size_t data, scales, scale_codes, nested_scales, nested_table;
} nbl__weight_sizes;
nbl__weight_sizes nbl__weight_sizes_of(const nbl_weight *weight);
/* Replaces nested_offset by the value at nested_offset_at, in host memory, if that is given. */
void nbl__weight_read_offset(nbl_weight *weight);
/* nbl_dequantize in three: its checks; rows of a checked weight in host memory; and both, for weights in
 * host memory whatever the context computes with. */
nbl_status nbl__check_dequantize(nbl_context *ctx, const nbl_weight *weight, int64_t row_begin,
                                 int64_t row_end, nbl_dtype dtype, const void *out);
nbl_status nbl__dequantize_rows(nbl_context *ctx, const nbl_weight *weight, int64_t row_begin,
                                int64_t row_end, nbl_dtype dtype, bool transpose, void *out);
nbl_status nbl__dequantize_host(nbl_context *ctx, const nbl_weight *weight, int64_t row_begin,
                                int64_t row_end, nbl_dtype dtype, bool transpose, void *out);
/* nbl__quantize for a stack [matrices, rows, columns] whose values come in pieces: matrices, or equal parts
 * of them. `read` gives the values of piece i, which are used until the next call. A piece is whole
 * blocks; else NBL_ERROR_SHAPE. Nested scales are those of the stack. */
typedef nbl_status (*nbl__read_piece_fn)(void *user, int64_t i, const void **values);
nbl_status nbl__quantize_stack(nbl_context *ctx, const nbl_quantize_options *options, nbl_dtype dtype,
                               const int64_t shape[3], int64_t pieces, nbl__read_piece_fn read, void *user,
                               const nbl_quantized_parts *parts, nbl_weight *weight, int64_t *non_finite);

/* ---- stacks of matrices: [matrices, rows, columns] (nbl_weight.members) ---- */

/* Checks a stack: rank 3, and members that are alike and fit its shape. Pointers are checked of a stack in one piece
 * alone, so that a graph can be planned before its weights are loaded. */
nbl_status nbl__check_stack(nbl_context *ctx, const char *call, const char *name, const nbl_weight *stack);
/* Checks every member as nbl__check_weight does, pointers included. Does nothing for a stack in one piece. */
nbl_status nbl__check_stack_members(nbl_context *ctx, const char *call, const nbl_weight *stack);
/* Pieces of one matrix: 1, or members per matrix. */
static inline int64_t nbl__stack_pieces(const nbl_weight *stack)
{
    return stack->members && stack->shape[0] > 0 ? stack->member_count / stack->shape[0] : 1;
}
/* A stack in one piece, seen as one matrix [matrices · rows, columns]. */
nbl_weight nbl__stack_flat(const nbl_weight *stack);
/* Consecutive rows of a matrix. */
typedef struct nbl__weight_rows {
    const nbl_weight *weight;
    int64_t first_row, rows;
} nbl__weight_rows;
/* A piece of a matrix of a checked stack: a member, or rows of `flat`, which is nbl__stack_flat(stack). */
nbl__weight_rows nbl__stack_rows(const nbl_weight *stack, const nbl_weight *flat, int64_t matrix,
                                 int64_t piece);

/* The name of a dtype, which may be invalid: from a caller, for messages. */
const char *nbl__any_dtype_name(nbl_dtype dtype);

#endif
