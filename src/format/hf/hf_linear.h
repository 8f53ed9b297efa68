/* hf_linear.h - decides from the name of a checkpoint's tensor whether transformers would quantize
 * it.
 *
 * transformers replaces modules, not tensors: every torch.nn.Linear of the model, except the output
 * head and a few that need full precision, becomes a bitsandbytes layer. A checkpoint has only
 * names and shapes. A router, an embedding, or one of many experts that are fused while loading,
 * looks just like a linear layer there. So the rule is a table of names, valid for transformers 5.
 * tests/oracle/survey_linear.py asks transformers about every architecture;
 * tests/oracle/test_linear_rule.py compares the answers with this rule. */
#ifndef NBL_HF_LINEAR_H
#define NBL_HF_LINEAR_H

#include "base/base.h"

typedef enum nbl__linear_verdict {
    NBL_LINEAR_YES,
    NBL_LINEAR_NO,
    NBL_LINEAR_REFUSE, /* yes, but in another layout than it is stored in: nbl__hf_refusal says why */
} nbl__linear_verdict;

/* The verdict for a tensor.
 *
 * model_type  of config.json; NULL or an unknown type: only the generic rule applies
 * tied        the output head shares the embedding's matrix (tie_word_embeddings)
 * name, rank  of the tensor */
nbl__linear_verdict nbl__hf_is_linear(const char *model_type, bool tied, const char *name, int rank);

/* The reason for REFUSE, to follow "models of type …". */
const char *nbl__hf_refusal(const char *model_type);

/* True if transformers renames modules of these models while loading: a name in the checkpoint is
 * then not the module's name. */
bool nbl__hf_renames(const char *model_type);

/* True if the tensor belongs to a decoder layer with an index >= layers (num_hidden_layers; 0:
 * unknown, then false). Checkpoints keep the layers for multi-token prediction there. transformers
 * does not load them, so they are not quantized, whatever nbl__hf_is_linear says. */
bool nbl__hf_is_extra_layer(int64_t layers, const char *name);

#endif
