/* embedding.h - looks up rows of a table: y[…] = w[ids[…]]·scale.
 *
 * w [vocabulary, columns] may have any storage format. It is dequantized to the
 * compute dtype with one rounding. A scale other than 1 is rounded to the dtype,
 * and the product is rounded once more, as in transformers' Gemma.
 *
 * Backward: dw is f32 [vocabulary, columns]. A row whose id occurs receives the
 * sum of its dy·scale, in the order of the ids. Other rows are 0, or unchanged
 * with `accumulate`. So is the row of the id `padding`, as torch.nn.Embedding's
 * padding_idx.
 *
 * An id outside the vocabulary is an error of the run that names it. */
#ifndef NBL_EMBEDDING_H
#define NBL_EMBEDDING_H

#include "ops/ops.h"

typedef struct nbl__embedding {
    nbl_dtype dtype;
    float scale;
    int64_t padding; /* an id that is looked up but not trained; negative: none */
    nbl_tensor ids;  /* int32, any rank >= 1 */
    nbl_weight w;
    nbl_tensor y; /* [… of ids, columns] */
    nbl_tensor dy, dw;
    bool accumulate;
} nbl__embedding;

/* The error names the first id that is outside the vocabulary, and its index. */
nbl_status nbl__embedding_check_ids(nbl_context *ctx, const char *op, const nbl_tensor *ids,
                                    int64_t vocabulary);

#endif
