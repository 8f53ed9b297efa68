/* team.h - a team of threads over a range of independent items.
 *
 * Items are handed out in order, one at a time; an item's result must not depend on the worker or
 * on other items, so that any number of threads gives the same bits. The first failure stops the
 * team and is returned. Worker 0 is the caller and reports progress between items. */
#ifndef NBL_TEAM_H
#define NBL_TEAM_H

#include "base/base.h"

typedef nbl_status (*nbl__team_fn)(void *argument, int64_t item, int worker);

/* Threads that a range of `items` would use: at most the context's. */
int nbl__team_size(const nbl_context *ctx, int64_t items);
/* `what` names the work in progress reports; NULL: no reports. */
nbl_status nbl__team_run(nbl_context *ctx, int64_t items, nbl__team_fn fn, void *argument,
                         const char *what);

#endif
