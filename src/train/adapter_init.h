/* adapter_init.h - a new adapter: which modules, and what its tensors start as. */
#ifndef NBL_ADAPTER_INIT_H
#define NBL_ADAPTER_INIT_H

#include "model/language_model.h"
#include "run/run_config.h"

/* Gives the model the adapter that the configuration describes. */
nbl_status nbl__new_adapter(nbl_model *model, const nbl__run_config *config);
/* As PEFT: A uniform within 1/sqrt(in), B zero, magnitudes the norms of the base's rows. Which
 * values A gets depends on the seed and the module's name alone. */
nbl_status nbl__init_adapter(nbl__session *session, uint64_t seed);

#endif
