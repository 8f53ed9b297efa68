/* optimizer.h - the tensors that a run trains, their gradients, and AdamW's moments.
 *
 * Masters (the f32 parameters that are trained) and gradients belong to the session's plan. The
 * moments belong to the optimizer: one allocation, whose size the plan has counted
 * (nbl__moment_bytes). On a device all three are device memory. Bytes per parameter: 8 with 32-bit
 * moments, 2 + 8/256 with 8-bit moments.
 *
 * Grouping follows transformers' Trainer and bitsandbytes. Norms and biases have no weight
 * decay. 8-bit moments are used for tensors of 4,096 elements or more, except embed_tokens. */
#ifndef NBL_OPTIMIZER_H
#define NBL_OPTIMIZER_H

#include "model/language_model.h"
#include "ops/optimizer/grad_norm.h"
#include "run/run_config.h"

typedef struct nbl__trained {
    /* as in the checkpoint; of an adapter: PEFT's without "base_model.model." */
    const char *name;
    bool decays;           /* weight decay applies */
    int bits;              /* per moment: 32 or 8 */
    nbl_adamw_tensor adam; /* p, g: the plan's; m, v and their scales: the optimizer's */
} nbl__trained;

typedef struct nbl__optimizer {
    nbl_context *ctx;
    nbl__arena arena;
    nbl__trained *tensors; /* in the graph's order */
    int64_t count;
    nbl_tensor *gradients;   /* [count], the operand of the norm */
    nbl_adamw_tensor *group; /* [count], scratch: the tensors of one AdamW call */
    void *moments;
    size_t moment_bytes;
    nbl__clipping *clipping; /* in the memory of the device, if there is one */
} nbl__optimizer;

/* Collects the trained tensors of a bound session and allocates zeroed moments. The session must
 * outlive the optimizer. NBL_ERROR_ARGUMENT: nothing is trained. */
nbl_status nbl__optimizer_open(nbl__session *session, bool adam8bit, nbl__optimizer *optimizer);
void nbl__optimizer_close(nbl__optimizer *optimizer);
/* Enqueues the norm over all gradients together and the clipping factor for max_norm; 0: no
 * clipping. Also enqueues the copy of both to *clipping, which must come from
 * nbl__memory_alloc_host. */
nbl_status nbl__optimizer_norm(nbl__optimizer *optimizer, double max_norm, nbl__clipping *clipping);
/* Enqueues AdamW's step number `step`, from 1. Must follow nbl__optimizer_norm, whose factor it
 * uses: each gradient is multiplied with grad_scale and the clipping factor. If any gradient is
 * non-finite, no parameter and no moment changes. */
nbl_status nbl__optimizer_step(nbl__optimizer *optimizer, const nbl__run_config *config, double lr,
                               double grad_scale, int64_t step);

/* Write and read optimizer.safetensors of a checkpoint:
 *     NAME.m, NAME.v                        f32, or u8 codes with 8-bit moments
 *     NAME.m.absmax, NAME.v.absmax          f32, one scale per 256 elements, 8-bit moments only
 * Loading fails if a tensor is missing, has another dtype or size, or belongs to no trained
 * tensor. */
nbl_status nbl__optimizer_put(nbl__optimizer *optimizer, nbl__output *output);
nbl_status nbl__optimizer_load(nbl__optimizer *optimizer, const char *folder);

#endif
