/* module_names.h - names of modules outside of a transformer's layers, as transformers names them in
 * checkpoints and PEFT in adapters.
 *
 * A model that nibble runs knows the role of each weight (nbl__weight_role), because its builder
 * registers it. Conversions also take checkpoints that nibble cannot run. There the role follows
 * from these names, and only from them. */
#ifndef NBL_MODULE_NAMES_H
#define NBL_MODULE_NAMES_H

#define NBL_MODULE_EMBEDDING "model.embed_tokens"
#define NBL_MODULE_NORM "model.norm"
#define NBL_MODULE_HEAD "lm_head"
#define NBL_MODULE_LAYERS "model.layers." /* before the index of a layer */

#define NBL_WEIGHT_OF(module) module ".weight"

#endif
