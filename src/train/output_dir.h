/* output_dir.h - the folder that a run writes into: whose it is, and what an earlier run left
 * there.
 *
 * Nothing that lies outside is ever touched: a link in there is removed as a link, and never
 * gone through. */
#ifndef NBL_OUTPUT_DIR_H
#define NBL_OUTPUT_DIR_H

#include "run/run_config.h"

/* Refuses what would be lost or overwritten: a model or adapter to start from that lies where
 * the run writes. A folder that is not there yet is fine. */
nbl_status nbl__output_dir_check(nbl_context *ctx, const nbl__run_config *config);
/* Claims the folder for one run: *lock is a descriptor to close in the end; -1: the folder is
 * not there, or lies where nothing can be locked. A folder that another run claims is refused.
 * Ends with the process at the latest. */
nbl_status nbl__output_dir_lock(nbl_context *ctx, const char *output_dir, int *lock);
/* Makes the folder and those above it. */
nbl_status nbl__output_dir_make(nbl_context *ctx, const char *output_dir);

/* Moves what an earlier run left in output_dir into a folder earlier-N in there: another run
 * must not go on from it, and what was trained must not be lost. Weights that no run left there
 * are refused. A run that goes on from one of the folder's checkpoints (`resumed`; NULL: none)
 * moves nothing or, when it is `changed`, the later checkpoints. */
nbl_status nbl__move_earlier_output(nbl_context *ctx, const nbl__run_config *config, const char *resumed,
                                    bool changed);
/* Removes what a killed run left half-written in output_dir. What cannot be removed is told of
 * in a warning. */
nbl_status nbl__remove_leftovers(nbl_context *ctx, const char *output_dir);

/* Removes a folder and what is in it, two levels deep, or a link to one; what is not there is no
 * error. */
nbl_status nbl__remove_folder(nbl_context *ctx, const char *path);
/* Moves a file or folder into another folder of the same disk, in place of one of its name. */
nbl_status nbl__move_into(nbl__arena *arena, const char *from, const char *to, const char *name);

#endif
