/* run.h - a training run as the public interface hands it around: its configuration and the memory it is in. */
#ifndef NBL_RUN_H
#define NBL_RUN_H

#include "train/run_config.h"

struct nbl_run {
    nbl_context *ctx;
    nbl__arena arena;
    nbl__run_config config;
    nbl_model *planned; /* of the last nbl_run_make_plan; or NULL */
};

#endif
