/* embedding.h - rows of a table: y[…] = w[ids[…]]·scale.
 *
 * w [vocabulary, columns] in any storage format is decoded to the compute dtype, one rounding; with a scale
 * other than 1 the product with the scale, itself rounded to the dtype, is rounded once more, as Gemma's
 * embedding does in transformers. dw is f32 [vocabulary, columns]: rows whose id occurs get the sum of their
 * dy·scale, in the order of the ids; the others are zero, or untouched when accumulating, and so is that of the
 * id `padding`, as torch.nn.Embedding's padding_idx.
 *
 * An id outside the vocabulary is an error of the run, which names it. */
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

/* The failure names the first id that is not in the vocabulary, and its place. */
nbl_status nbl__embedding_check_ids(nbl_context *ctx, const char *op, const nbl_tensor *ids,
                                    int64_t vocabulary);

extern const nbl__impl nbl__embedding_ref, nbl__embedding_backward_ref;
extern const nbl__impl nbl__embedding_cpu, nbl__embedding_backward_cpu;
extern const nbl__impl nbl__embedding_cuda, nbl__embedding_backward_cuda;

#endif
