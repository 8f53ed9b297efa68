/* expert_tensors.h - tensors of experts in a checkpoint's files: which stack they belong to, and the list of
 * tensors, stacks among them, that an adapter is checked against. */
#ifndef NBL_EXPERT_TENSORS_H
#define NBL_EXPERT_TENSORS_H

#include "format/hf/checkpoint.h"
#include "format/hf/expert_names.h"
#include "format/peft/peft.h"

typedef struct nbl__expert_tensor {
    const char *name;  /* in the model (expert_names.h) */
    const char *stack; /* "model.layers.0.mlp.experts.gate_up_proj"; NULL: the tensor is none of experts */
    int64_t expert;    /* -1: the tensor is the whole stack */
    nbl__expert_part part;
    bool transposed; /* a stack [expert, in, out] */
} nbl__expert_tensor;

/* Reads what a tensor is. text: its name in the text model. */
nbl_status nbl__expert_tensor_read(nbl__arena *arena, const nbl_checkpoint *checkpoint,
                                   const nbl_tensor_info *info, const char *text, nbl__expert_tensor *out);
/* Adds the tensor to a list that has room. One of experts adds its stack, [experts, out, in], once. */
nbl_status nbl__expert_tensor_list(nbl__arena *arena, const nbl__expert_tensor *tensor,
                                   const nbl_tensor_info *info, nbl__peft_tensor *list, int64_t *count);

#endif
