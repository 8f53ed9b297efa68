/* schedule.c - see schedule.h. */
#include "train/schedule.h"

#include <math.h>

double nbl__schedule_factor(nbl__schedule_kind kind, int64_t step, int64_t warmup, int64_t total)
{
    if (kind == NBL_SCHEDULE_CONSTANT) return 1;
    if (step < warmup) return (double)step / (double)nbl__max_i64(1, warmup);
    double rest = (double)nbl__max_i64(1, total - warmup);
    switch (kind) {
    case NBL_SCHEDULE_LINEAR: return fmax(0, (double)(total - step) / rest);
    case NBL_SCHEDULE_COSINE: return fmax(0, 0.5 * (1 + cos(M_PI * (double)(step - warmup) / rest)));
    default: return 1;
    }
}

int64_t nbl__schedule_warmup(const nbl__run_config *config, int64_t total)
{
    if (config->warmup_steps >= 0) return config->warmup_steps;
    return (int64_t)ceil(config->warmup_ratio * (double)total);
}
