/* output_dir.h - the folder that a run writes into: claiming it, and handling earlier output there.
 *
 * Nothing outside the folder is ever changed: a symbolic link in it is removed as a link and never
 * followed. What a run writes there:
 *
 *     run.yml, metrics.jsonl, report.html, samples.json, runs/    records
 *     checkpoint-N/                                               resume.h
 *     adapter or model (.safetensors, .json), tokenizer files     the result
 *     earlier-N/                                                  output of earlier runs
 *     NAME.partial-ANY                                            half-written, renamed when whole */
#ifndef NBL_OUTPUT_DIR_H
#define NBL_OUTPUT_DIR_H

#include "run/run_config.h"

/* Fails if base model, datasets or start adapter lie where the run writes or moves files: they
 * would be overwritten or moved. A missing output_dir is no error. */
nbl_status nbl__output_dir_check(nbl_context *ctx, const nbl__run_config *config);
/* Locks the folder for one run (flock). *lock: a descriptor that the caller closes to unlock;
 * -1: the folder is missing, or its file system has no locks. NBL_ERROR_EXISTS: another run has
 * locked it. The lock ends with the process. */
nbl_status nbl__output_dir_lock(nbl_context *ctx, const char *output_dir, int *lock);
/* Makes the folder and its missing parents. */
nbl_status nbl__output_dir_make(nbl_context *ctx, const char *output_dir);

/* Moves the output of an earlier run from output_dir to a new folder output_dir/earlier-N. So
 * the new run does not resume from it by mistake, and nothing trained is lost. Weights without a
 * run.yml are not moved but an error: no run of nibble left them. `resumed`: the checkpoint to
 * resume from, or NULL. If it lies in output_dir, only checkpoints after it are moved, and only
 * if `changed`. */
nbl_status nbl__move_earlier_output(nbl_context *ctx, const nbl__run_config *config, const char *resumed,
                                    bool changed);
/* Removes half-written files and folders that a killed run left in output_dir. Warns of each
 * that cannot be removed. */
nbl_status nbl__remove_leftovers(nbl_context *ctx, const char *output_dir);

/* Removes a folder with its contents, at most two levels deep. A link is removed, not its
 * target. A missing folder is no error. */
nbl_status nbl__remove_folder(nbl_context *ctx, const char *path);
/* Moves from/name to to/name, on the same file system. An existing to/name is replaced. */
nbl_status nbl__move_into(nbl__arena *arena, const char *from, const char *to, const char *name);

#endif
