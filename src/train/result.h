/* result.h - what a run has trained, in the form that other tools load: a PEFT adapter, or a folder
 * with a whole model. Checkpoints use the same files, with masters in f32. */
#ifndef NBL_RESULT_H
#define NBL_RESULT_H

#include "train/optimizer.h"

/* Adds files to the folder before it is renamed to its final name. */
typedef nbl_status (*nbl__add_files_fn)(void *user, nbl__output *output);

/* Writes the folder `target`, which must not exist. It appears whole or not at all. dtype: of
 * the trained tensors of a whole model; an adapter is always f32. add_files: may be NULL; user: its
 * first argument. */
nbl_status nbl__result_write(nbl__session *session, const nbl__optimizer *trained,
                             const nbl__run_config *config, nbl_dtype dtype, const char *target,
                             nbl__add_files_fn add_files, void *user);
/* Writes the same files into output_dir. Each file appears whole, the weights last. */
nbl_status nbl__result_publish(nbl__session *session, const nbl__optimizer *trained,
                               const nbl__run_config *config, nbl_dtype dtype);
/* Reads the masters from a folder that nbl__result_write wrote in f32. peft: the folder holds
 * this adapter; NULL: a whole model. NBL_ERROR_FORMAT: a trained tensor is missing, or is not f32
 * of the same size. */
nbl_status nbl__result_load(nbl__optimizer *trained, const char *folder, const nbl__peft *peft);

#endif
