/* hf_linear.h - which tensors of a Hugging Face checkpoint transformers would quantise.
 *
 * transformers replaces modules, not tensors: every torch.nn.Linear except the output head becomes a
 * bitsandbytes layer. A checkpoint has only names and shapes, so the answer is a rule over those. */
#ifndef NBL_HF_LINEAR_H
#define NBL_HF_LINEAR_H

#include "base/base.h"

typedef enum nbl__linear_verdict {
    NBL_LINEAR_YES,
    NBL_LINEAR_NO,
    NBL_LINEAR_REFUSE, /* the model stores its matrices as [in, out]: quantising them is not supported */
} nbl__linear_verdict;

/* Would transformers make a bitsandbytes layer of this tensor? `model_type` is that of config.json and may be
 * NULL; `tied`: the output head shares the embedding's matrix. */
nbl__linear_verdict nbl__hf_is_linear(const char *model_type, bool tied, const char *name, int rank,
                                      const int64_t *shape);

#endif
