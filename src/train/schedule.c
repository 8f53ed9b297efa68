/* schedule.c - the formulas of schedule.h. */
#include "train/schedule.h"

#include <math.h>

/* The cosine after warm-up, from 1 down to min_lr_ratio. constant_lr_ratio shortens the
 * schedule; later steps use its last value. */
static double cosine(const nbl__run_config *c, int64_t step, int64_t warmup, int64_t total)
{
    double min = c->min_lr_ratio;
    if (min > 0 && c->constant_lr_ratio > 0) {
        total = (int64_t)((double)total * c->constant_lr_ratio);
        step = nbl__min_i64(step, total);
    }
    double passed = (double)(step - warmup) / (double)nbl__max_i64(1, total - warmup);
    return fmax(0, (1 - min) * 0.5 * (1 + cos(M_PI * passed))) + min;
}

double nbl__schedule_factor(const nbl__run_config *c, int64_t step, int64_t warmup, int64_t total)
{
    if (c->schedule == NBL_SCHEDULE_CONSTANT) return 1;
    if (step < warmup) {
        double share = (double)step / (double)nbl__max_i64(1, warmup);
        return c->quadratic_warmup && c->schedule == NBL_SCHEDULE_COSINE ? share * share : share;
    }
    switch (c->schedule) {
    case NBL_SCHEDULE_LINEAR:
        return fmax(0, (double)(total - step) / (double)nbl__max_i64(1, total - warmup));
    case NBL_SCHEDULE_COSINE: return cosine(c, step, warmup, total);
    default: return 1;
    }
}

int64_t nbl__schedule_warmup(const nbl__run_config *config, int64_t total)
{
    if (config->warmup_steps >= 0) return config->warmup_steps;
    return (int64_t)ceil(config->warmup_ratio * (double)total);
}
