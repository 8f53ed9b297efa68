/* schedule.h - the learning rate of a step, as transformers' and axolotl's schedulers have it. */
#ifndef NBL_SCHEDULE_H
#define NBL_SCHEDULE_H

#include "run/run_config.h"

/* What the learning rate of step `step` (from 0) of `total` is multiplied with. */
double nbl__schedule_factor(const nbl__run_config *config, int64_t step, int64_t warmup, int64_t total);
/* The steps of warming up: those given, or their share of the total, rounded up. */
int64_t nbl__schedule_warmup(const nbl__run_config *config, int64_t total);

#endif
