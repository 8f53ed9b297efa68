/* schedule.h - the learning rate of a step, as transformers' and axolotl's schedulers compute it.
 *
 * Factor of the learning rate, with s = step, w = warmup, T = total:
 *
 *     constant               1, without warm-up
 *     constant_with_warmup   s/w for s < w, then 1
 *     linear                 s/w for s < w, then (T - s)/(T - w)
 *     cosine                 s/w or (s/w)² for s < w,
 *                            then min + (1 - min)·(1 + cos(π·(s - w)/(T - w)))/2
 *
 * min is cosine_min_lr_ratio, else 0. With cosine_constant_lr_ratio r and min > 0, the cosine
 * ends at r·T and the factor stays at min. */
#ifndef NBL_SCHEDULE_H
#define NBL_SCHEDULE_H

#include "run/run_config.h"

/* The factor for step `step`, 0 .. total - 1. warmup: from nbl__schedule_warmup. */
double nbl__schedule_factor(const nbl__run_config *config, int64_t step, int64_t warmup, int64_t total);
/* The number of warm-up steps: warmup_steps, else warmup_ratio · total, rounded up. */
int64_t nbl__schedule_warmup(const nbl__run_config *config, int64_t total);

#endif
