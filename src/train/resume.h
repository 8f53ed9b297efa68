/* resume.h - checkpoint-N folders: everything a run needs to continue as if it had not stopped.
 *
 *     adapter_config.json, adapter_model.safetensors    or the whole model; the masters, in f32
 *     tokenizer files, chat template                    as in the result
 *     optimizer.safetensors                             the moments (optimizer.h)
 *     trainer_state.json                                transformers' TrainerState, with log_history
 *     nibble_state.json                                 nbl__run_state, the run's keys, size and
 *                                                       checksum of every other file, and its own
 *                                                       checksum at the end
 *
 * A folder appears whole or not at all: it is written under another name and renamed. Later
 * damage and edits are detected: a checkpoint is whole only if nibble_state.json matches its own
 * checksum and every file matches the size and checksum recorded there. No state of a random
 * generator is saved. Dropout and the order of examples are functions of the seed, the epoch and
 * the micro-batch. */
#ifndef NBL_RESUME_H
#define NBL_RESUME_H

#include "report/records.h"
#include "train/result.h"
#include "run/run_changes.h"

/* Limits of nbl__run_state.loss_scale. */
#define NBL_MIN_LOSS_SCALE 0x1p-14
#define NBL_MAX_LOSS_SCALE 0x1p24

/* Where a run stands after a step. Saved in nibble_state.json: see resume_state.c for the
 * format. */
typedef struct nbl__run_state {
    int64_t step;         /* optimizer steps done */
    int64_t epoch, batch; /* the next micro-batch: its epoch, and its index in that epoch */
    int64_t batches;      /* micro-batches of that epoch */
    double loss_sum;      /* sum of the losses since the last record, over loss_steps steps */
    int64_t loss_steps;
    double loss_scale;  /* f16 only; else 1 */
    int64_t good_steps; /* steps since loss_scale last changed */
    double best_eval;   /* loss of the best evaluated step; infinite: none yet */
    int64_t best_step;  /* 0: none yet */
    /* nbl__checkpoint_identity of best_step's checkpoint; 0: not saved, or this one */
    uint64_t best_state;
    int64_t evals_without_gain;
    int64_t high_losses; /* consecutive steps above loss_watchdog_threshold */
    uint64_t data;       /* nbl__data_identity */
    uint64_t base;       /* nbl__fingerprint_model of base_model */
    uint64_t start;      /* nbl__fingerprint_adapter of lora_model_dir; 0: none */
} nbl__run_state;

/* Epochs done as a fraction, as transformers logs them: 1.5 is half of the second epoch. */
static inline double nbl__run_epoch(const nbl__run_state *state)
{
    return (double)state->epoch + (state->batches ? (double)state->batch / (double)state->batches : 0);
}

/* Counts old checkpoints that could not be removed. */
typedef struct nbl__stale_checkpoints {
    int64_t count, last; /* the last one's step */
} nbl__stale_checkpoints;

/* What a checkpoint saves and restores: pointers into the trainer. */
typedef struct nbl__run_parts {
    const nbl__run_config *config;
    nbl__session *session;
    nbl__optimizer *optimizer;
    nbl__records *records;
    nbl__run_state *state;
    int64_t max_steps;
    const nbl__run_values *values; /* the keys of config that are recorded */
    const nbl__name_list *history; /* allowed changes of keys, one line each */
    nbl__stale_checkpoints *stale_checkpoints;
} nbl__run_parts;

/* The path output_dir/checkpoint-STEP, in the arena; NULL: no memory. */
const char *nbl__checkpoint_folder(nbl__arena *arena, const char *output_dir, int64_t step);
/* Writes output_dir/checkpoint-STEP; an existing one is replaced. Then removes the oldest
 * checkpoints beyond save_total_limit, but never the newest or the best. A checkpoint that
 * cannot be removed causes a warning and is counted in `stale_checkpoints`; it is no error. Sets
 * state->best_state if this step is the best. */
nbl_status nbl__checkpoint_save(const nbl__run_parts *parts);
/* The checksum of nibble_state.json. That file holds the checksums of all others, so the number
 * identifies the whole checkpoint. */
nbl_status nbl__checkpoint_identity(nbl_context *ctx, const char *folder, uint64_t *hash);

/* *folder: the newest whole checkpoint of output_dir, in the arena; NULL: none. Damaged ones are
 * skipped, each with a warning that names it. A checkpoint of another version is an error: see
 * NBL_ERROR_UNSUPPORTED in resume.c. */
nbl_status nbl__checkpoint_latest(nbl__arena *arena, const char *output_dir, const char **folder);
/* Reads every file of the folder and fails with the reason if it is no whole checkpoint. */
nbl_status nbl__checkpoint_verify(nbl_context *ctx, const char *folder);
/* Compares the checkpoint's keys, base model and start adapter with `values` and `state`.
 * Differences are errors, except those that `allow` permits: see nbl__run_values_compare.
 * *changed: a permitted key differs. *history: the checkpoint's history and, if *changed, one
 * more line for this change. */
nbl_status nbl__checkpoint_check(nbl__arena *arena, const char *folder, const nbl__run_state *state,
                                 const nbl__run_values *values, bool allow, nbl__name_list *history,
                                 bool *changed);
/* Restores state, records and moments; in full training also the masters. An adapter's masters
 * are not restored here: the model was opened with the adapter in `folder`. NBL_ERROR_FORMAT:
 * the run had other data. */
nbl_status nbl__checkpoint_load(const nbl__run_parts *parts, const char *folder);

#endif
