/* optimizer.h - the tensors that a run trains, their gradients, and AdamW's memory of them.
 *
 * Masters and gradients lie in the session's plan; the moments are the optimiser's own, one piece of memory
 * whose size is known before anything is allocated. Grouping follows transformers' Trainer and bitsandbytes:
 * no decay on norms and biases; 8-bit moments only for tensors of 4,096 elements or more, and never for an
 * embedding. */
#ifndef NBL_OPTIMIZER_H
#define NBL_OPTIMIZER_H

#include "model/language_model.h"
#include "ops/optimizer/grad_norm.h"
#include "run/run_config.h"

typedef struct nbl__trained {
    const char *name; /* as in PEFT's file without "base_model.model.", or as in the checkpoint */
    bool decays;
    int bits;              /* of its moments: 32 or 8 */
    nbl_adamw_tensor adam; /* p and g of the plan; m, v (and their scales) of the optimiser */
} nbl__trained;

typedef struct nbl__optimizer {
    nbl_context *ctx;
    nbl__arena arena;
    nbl__trained *tensors; /* in the graph's order */
    int64_t count;
    nbl_tensor *gradients;   /* [count], for the norm */
    nbl_adamw_tensor *group; /* [count], of one call */
    void *moments;
    size_t moment_bytes;
    nbl__clipping *clipping; /* where the context computes */
} nbl__optimizer;

nbl_status nbl__optimizer_open(nbl__session *session, bool adam8bit, nbl__optimizer *optimizer);
void nbl__optimizer_close(nbl__optimizer *optimizer);
/* Enqueues the norm of all gradients, and what clips them to max_norm > 0: `clipping` of nbl__memory_alloc_host has it
 * when they are done. */
nbl_status nbl__optimizer_norm(nbl__optimizer *optimizer, double max_norm, nbl__clipping *clipping);
/* Enqueues one step, from 1, behind that norm. Gradients are clipped and multiplied with grad_scale first; when one is not
 * finite nothing changes. */
nbl_status nbl__optimizer_step(nbl__optimizer *optimizer, const nbl__run_config *config, double lr,
                               double grad_scale, int64_t step);

/* optimizer.safetensors of a training checkpoint: the moments as NAME.m, NAME.v and, with 8 bits, their scales. */
nbl_status nbl__optimizer_put(nbl__optimizer *optimizer, nbl__output *output);
nbl_status nbl__optimizer_load(nbl__optimizer *optimizer, const char *folder);

#endif
