/* expert_names.h - which part of which stack of experts a tensor of a checkpoint is.
 *
 * Transformers 5 keeps the experts of a layer in two parameters, whatever the file has. nibble calls
 * them by the same names:
 *
 *     in files, after "model.layers.3."            in the model, after "model.layers.3."
 *
 *     mlp.experts.7.gate_proj.weight [I, H]        mlp.experts.gate_up_proj, expert 7, gate
 *     mlp.experts.7.up_proj.weight [I, H]          mlp.experts.gate_up_proj, expert 7, up
 *     mlp.experts.7.down_proj.weight [H, I]        mlp.experts.down_proj, expert 7
 *     block_sparse_moe.experts.7.w1, w3, w2        the same three (Mixtral)
 *     mlp.experts.gate_up_projs.7.weight [2I, H]   mlp.experts.gate_up_proj, expert 7 (unsloth)
 *     mlp.experts.gate_up_projs.7.bias [2I]        mlp.experts.gate_up_proj_bias, expert 7
 *     mlp.experts.gate_up_proj [E, 2I, H]          the whole stack, as any tensor of its own name
 *     block_sparse_moe.gate.weight                 mlp.gate.weight
 *     mlp.router.linear.weight                     mlp.router.weight (unsloth)
 *
 * Names alone decide; no architecture is needed. */
#ifndef NBL_EXPERT_NAMES_H
#define NBL_EXPERT_NAMES_H

#include "base/arena.h"

/* What a tensor is of an expert's matrix. */
typedef enum nbl__expert_part {
    NBL_EXPERT_WHOLE, /* all rows */
    NBL_EXPERT_GATE,  /* the first half of the rows of gate_up_proj */
    NBL_EXPERT_UP     /* the second half */
} nbl__expert_part;

typedef struct nbl__expert_name {
    const char *name; /* in the model; of most tensors that of the file */
    int64_t expert;   /* -1: the tensor is not a single expert's */
    nbl__expert_part part;
} nbl__expert_name;

/* Reads the name of a stored tensor. A new name lives in the arena. */
nbl_status nbl__expert_name_read(nbl__arena *arena, const char *stored, nbl__expert_name *out);
/* The file's name of another expert's part, given the name of a tensor of the same stack. NULL if memory
 * has run out. */
const char *nbl__expert_name_of(nbl__arena *arena, const char *stored, int64_t expert, nbl__expert_part part);

#endif
