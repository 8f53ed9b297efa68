/* result.h - what a run has trained, as others load it: a PEFT adapter, or a whole model's folder. */
#ifndef NBL_RESULT_H
#define NBL_RESULT_H

#include "train/optimizer.h"

/* Adds files of its own to the folder before it appears. */
typedef nbl_status (*nbl__more_fn)(void *user, nbl__output *output);

/* Writes folder `target`, which must not exist, whole or not at all. A whole model's weights get
 * `dtype`; an adapter is always f32. `more` may be NULL. */
nbl_status nbl__result_write(nbl__session *session, const nbl__optimizer *trained,
                             const nbl__run_config *config, nbl_dtype dtype, const char *target,
                             nbl__more_fn more, void *user);
/* Puts the same files straight into output_dir, each of them whole, the weights last. */
nbl_status nbl__result_publish(nbl__session *session, const nbl__optimizer *trained,
                               const nbl__run_config *config, nbl_dtype dtype);
/* Reads the masters from a folder that nbl__result_write wrote in f32: of an adapter, or of a
 * whole model. */
nbl_status nbl__result_load(nbl__optimizer *trained, const char *folder, bool adapter);

#endif
