/* hf_linear.h - which tensors of a Hugging Face checkpoint transformers would quantise.
 *
 * transformers replaces modules, not tensors: every torch.nn.Linear of the model, except the output head
 * and a few that want full precision, becomes a bitsandbytes layer. A checkpoint has only names and
 * shapes; a router, an embedding, or one of many experts that are fused while loading, looks just like a
 * linear layer there. The rule here is over names, for transformers 5. tests/oracle/survey_linear.py asks
 * transformers itself about every architecture, and tests/oracle/test_linear_rule.py compares. */
#ifndef NBL_HF_LINEAR_H
#define NBL_HF_LINEAR_H

#include "base/base.h"

typedef enum nbl__linear_verdict {
    NBL_LINEAR_YES,
    NBL_LINEAR_NO,
    NBL_LINEAR_REFUSE, /* it would, but not of the tensor as it is stored: nbl__hf_refusal says why */
} nbl__linear_verdict;

/* Would transformers make a bitsandbytes layer of this tensor? `model_type` is that of config.json and
 * may be NULL; unknown types get the generic rule. `tied`: the output head shares the embedding's matrix
 * (tie_word_embeddings). */
nbl__linear_verdict nbl__hf_is_linear(const char *model_type, bool tied, const char *name, int rank);

/* For a verdict of REFUSE: the rest of a sentence that begins "models of type …". */
const char *nbl__hf_refusal(const char *model_type);

/* Is this a tensor of a decoder layer behind the last of `layers` (num_hidden_layers; 0: unknown)?
 * Checkpoints keep layers for multi-token prediction there; transformers does not load them, so that none
 * of their tensors is a linear layer, whatever nbl__hf_is_linear says. */
bool nbl__hf_is_extra_layer(int64_t layers, const char *name);

#endif
