/* best.h - the best evaluated step of a run: which one it is, and where its parameters are.
 *
 * With load_best_model_at_end the result is the best evaluated step's. A new best is saved as
 * checkpoint-STEP at once, at any cadence of checkpoints, and stays until a better one is on
 * disk. The state of every later checkpoint names its step and the checksum of its
 * nibble_state.json, which has the checksums of all its files. So the newest whole checkpoint
 * always leads to the best one, wherever a run is killed. */
#ifndef NBL_BEST_H
#define NBL_BEST_H

#include "train/resume.h"

/* Does this run save a checkpoint with every new best? */
static inline bool nbl__best_is_kept(const nbl__run_config *config)
{
    return config->load_best || config->save_strategy == NBL_STRATEGY_BEST;
}

/* Counts an evaluation after state->step; true: it is the best so far. As transformers' Trainer
 * and its EarlyStoppingCallback: equal is not better, and neither is what is not finite. */
bool nbl__best_count(nbl__run_state *state, bool greater_is_better, double loss);

/* A run goes on from checkpoint `resumed`: checks the best checkpoint that the state tells of,
 * beside `resumed`, and copies it when output_dir is another folder. One that is damaged or
 * missing is forgotten, with a warning. */
nbl_status nbl__best_resume(nbl_context *ctx, const nbl__run_config *config, const char *resumed,
                            nbl__run_state *state);
/* Reads the best step's parameters into the masters, from its checkpoint. */
nbl_status nbl__best_load(nbl__optimizer *trained, const nbl__run_config *config,
                          const nbl__run_state *state);

#endif
