/* best.h - the best evaluated step of a run: which step it is, and where its parameters are.
 *
 * With load_best_model_at_end the result has the parameters of the best evaluated step. A new best
 * is saved as checkpoint-STEP at once, whatever save_strategy says. It is removed only after a
 * better one is on disk.
 *
 * Invariant: every later checkpoint records best_step and best_state, the checksum of that
 * checkpoint's nibble_state.json, which in turn holds the checksums of all its files. So the
 * newest whole checkpoint always leads to the best one, wherever the run is killed. */
#ifndef NBL_BEST_H
#define NBL_BEST_H

#include "train/resume.h"

/* True if the run saves a checkpoint with every new best. */
static inline bool nbl__best_is_kept(const nbl__run_config *config)
{
    return config->load_best || config->save_strategy == NBL_STRATEGY_BEST;
}

/* Counts the evaluation after state->step and updates best_* and evals_without_gain. Returns
 * true if the step is the best so far. An equal or a non-finite loss is not better, as in
 * transformers' Trainer and EarlyStoppingCallback. */
bool nbl__best_count(nbl__run_state *state, bool greater_is_better, double loss);

/* For a run that resumes from `resumed`: verifies the best checkpoint, which lies in the same
 * folder as `resumed`, and copies it if output_dir is another folder. If it is damaged or
 * missing, warns and resets best_eval, best_step and best_state. */
nbl_status nbl__best_resume(nbl_context *ctx, const nbl__run_config *config, const char *resumed,
                            nbl__run_state *state);
/* Overwrites the masters with those of the best step's checkpoint. Fails if that checkpoint is
 * not whole. */
nbl_status nbl__best_load(nbl__optimizer *trained, const nbl__peft *peft, const nbl__run_config *config,
                          const nbl__run_state *state);

#endif
