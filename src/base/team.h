/* team.h - a team of threads that works on a range of independent items.
 *
 * Items are handed out in ascending order, one at a time. The result of an item must not depend
 * on its worker or on other items: then any number of threads gives the same bits. The first
 * failure stops the team and is returned. Worker 0 is the caller; it reports progress between
 * its items.
 *
 * The threads belong to the context. They are started when first needed, parked between calls,
 * and joined when the context is destroyed. If the system gives fewer threads than requested,
 * the team is smaller. (OpenMP runtimes print and exit in that case, which a library may not
 * do.)
 *
 * Teams do not nest: an item's function must not run a team. */
#ifndef NBL_TEAM_H
#define NBL_TEAM_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"

enum { NBL_MAX_THREADS = 1024 };

/* Works on one item; worker is 0 … nbl__team_size - 1. */
typedef nbl_status (*nbl__team_fn)(void *argument, int64_t item, int worker);

/* Upper bound of the workers for `items` items, for sizing scratch per worker. */
int nbl__team_size(const nbl_context *ctx, int64_t items);
/* Runs fn(argument, item, worker) for items 0 … items - 1 and waits for all. `what` names the
 * work in progress reports; NULL: no reports. */
nbl_status nbl__team_run(nbl_context *ctx, int64_t items, nbl__team_fn fn, void *argument, const char *what);

/* ---- the threads of a context; embedded in nbl_context ---- */

typedef struct nbl__work nbl__work;

typedef struct nbl__pool {
    /* round = count · NBL_MAX_THREADS + wanted. It changes when a round opens (wanted: workers
     * besides the caller) and when it closes (wanted = 0). One word, so that a late worker
     * cannot mix two rounds. */
    atomic_uint_fast64_t round;
    /* work of the current round; only workers counted in `inside` may read it */
    nbl__work *work;
    atomic_int inside;   /* workers inside the round; the caller waits until it is 0 */
    atomic_int parked;   /* workers that sleep on `wake`, or are about to */
    atomic_bool waiting; /* the caller sleeps on `done`, or is about to */
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    bool quit;
    int started;
    struct nbl__thread_slot {
        struct nbl__pool *pool;
        int worker;
        pthread_t thread;
    } slots[NBL_MAX_THREADS - 1];
} nbl__pool;

void nbl__pool_open(nbl__pool *pool);
void nbl__pool_close(nbl__pool *pool);
nbl__pool *nbl__context_pool(nbl_context *ctx);

#endif
