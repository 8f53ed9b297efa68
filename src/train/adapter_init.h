/* adapter_init.h - a new adapter: its modules, and the initial values of its tensors. */
#ifndef NBL_ADAPTER_INIT_H
#define NBL_ADAPTER_INIT_H

#include "model/language_model.h"
#include "run/run_config.h"

/* Attaches the adapter that the configuration describes to the model. Its tensors have no memory
 * yet. */
nbl_status nbl__new_adapter(nbl_model *model, const nbl__run_config *config);
/* Sets the initial values of a bound session's adapter, as PEFT does:
 *
 *     A           uniform in ±1/√in, in = columns of A
 *     B           0 (the plan's memory is zeroed; nothing is written)
 *     magnitude   ‖row‖ of the base weight (DoRA)
 *
 * The values of A depend only on the seed and the tensor's name, so adding a module changes no
 * other. */
nbl_status nbl__init_adapter(nbl__session *session, uint64_t seed);

#endif
