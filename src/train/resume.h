/* resume.h - checkpoint-N folders: everything a run needs to go on as if it had not stopped.
 *
 *     adapter_config.json, adapter_model.safetensors    or the whole model, its masters in f32
 *     optimizer.safetensors                             the moments
 *     trainer_state.json                                transformers' TrainerState with the history
 *     nibble_state.json                                 where the run stands; the keys it was made with; size and
 *                                                       checksum of every file; its own checksum
 *
 * A folder appears whole or not at all, and what was damaged or edited later shows: a checkpoint
 * counts only if nibble_state.json has its own checksum and every file has the size and checksum
 * that it tells. There is no state of a random generator: dropout and order are functions of the
 * seed and the place in the run. */
#ifndef NBL_RESUME_H
#define NBL_RESUME_H

#include "report/records.h"
#include "train/result.h"
#include "run/run_changes.h"

/* Between these the scale of f16's gradients moves. */
#define NBL_MIN_LOSS_SCALE 0x1p-14
#define NBL_MAX_LOSS_SCALE 0x1p24

/* Where a run stands after a step. */
typedef struct nbl__run_state {
    int64_t step;         /* optimiser steps done */
    int64_t epoch, batch; /* the next micro-batch: its epoch, and its place in there */
    int64_t batches;      /* micro-batches of that epoch */
    double loss_sum;      /* since the last record, and of how many steps */
    int64_t loss_steps;
    double loss_scale;   /* f16 */
    int64_t good_steps;  /* since the scale last changed */
    double best_eval;    /* of the best evaluated step; infinite: none yet */
    int64_t best_step;   /* 0: none yet */
    uint64_t best_state; /* nbl__checkpoint_identity of its checkpoint; 0: it has none, or is this one */
    int64_t evals_without_gain;
    int64_t high_losses; /* in a row */
    uint64_t data;       /* nbl__data_identity */
    uint64_t base;       /* nbl__fingerprint_model of base_model */
    uint64_t start;      /* nbl__fingerprint_adapter of lora_model_dir; 0: none */
} nbl__run_state;

/* Epochs done, as transformers counts them. */
static inline double nbl__run_epoch(const nbl__run_state *state)
{
    return (double)state->epoch + (state->batches ? (double)state->batch / (double)state->batches : 0);
}

/* Old checkpoints that could not be removed. */
typedef struct nbl__unremoved {
    int64_t count, last; /* the last one's step */
} nbl__unremoved;

typedef struct nbl__run_parts {
    const nbl__run_config *config;
    nbl__session *session;
    nbl__optimizer *optimizer;
    nbl__records *records;
    nbl__run_state *state;
    int64_t max_steps;
    const nbl__run_values *values; /* of config */
    const nbl__name_list *history; /* changes that were allowed */
    nbl__unremoved *unremoved;
} nbl__run_parts;

/* output_dir/checkpoint-STEP; NULL: no memory. */
const char *nbl__checkpoint_folder(nbl__arena *arena, const char *output_dir, int64_t step);
/* Writes output_dir/checkpoint-STEP, in place of one that was there, and removes the oldest
 * beyond the limit; the newest and the best one stay in any case. One that cannot be removed is
 * told of in a warning, and counted. Sets best_state if the step is the best. */
nbl_status nbl__checkpoint_save(const nbl__run_parts *parts);
/* The checksum of nibble_state.json, which has those of all other files. */
nbl_status nbl__checkpoint_identity(nbl_context *ctx, const char *folder, uint64_t *hash);

/* The newest whole checkpoint of output_dir into the arena; NULL: there is none. Damaged ones
 * are passed over with a warning that names them. */
nbl_status nbl__checkpoint_latest(nbl__arena *arena, const char *output_dir, const char **folder);
/* Fails with the reason when the folder is no whole checkpoint. */
nbl_status nbl__checkpoint_verify(nbl_context *ctx, const char *folder);
/* Refuses a checkpoint that was made with other keys, another base model or another start
 * adapter than `state` and `values` tell; see nbl__run_values_compare. *history: what the
 * checkpoint tells and, if *changed, what changes now. */
nbl_status nbl__checkpoint_check(nbl__arena *arena, const char *folder, const nbl__run_state *state,
                                 const nbl__run_values *values, bool allow, nbl__name_list *history,
                                 bool *changed);
/* Restores state, history and moments (and the masters of a whole model; an adapter is opened
 * from the folder). */
nbl_status nbl__checkpoint_load(const nbl__run_parts *parts, const char *folder);

#endif
