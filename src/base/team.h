/* team.h - a team of threads over a range of independent items.
 *
 * Items are handed out in order, one at a time; an item's result must not depend on the worker or
 * on other items, so that any number of threads gives the same bits. The first failure stops the
 * team and is returned. Worker 0 is the caller and reports progress between items.
 *
 * The threads belong to the context: started when first needed, parked between calls, joined when the
 * context is destroyed. Where the system gives fewer than asked, the team is smaller. (An OpenMP
 * runtime would print and exit the process there, which a library may not.) */
#ifndef NBL_TEAM_H
#define NBL_TEAM_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"

enum { NBL_MAX_THREADS = 1024 };

typedef nbl_status (*nbl__team_fn)(void *argument, int64_t item, int worker);

/* Workers that a range of `items` may have: at most the context's threads. */
int nbl__team_size(const nbl_context *ctx, int64_t items);
/* `what` names the work in progress reports; NULL: no reports. */
nbl_status nbl__team_run(nbl_context *ctx, int64_t items, nbl__team_fn fn, void *argument, const char *what);

/* ---- the threads of a context; part of it ---- */

typedef struct nbl__work nbl__work;

typedef struct nbl__pool {
    /* Changes when there is work, and when there is none any more: a count, times NBL_MAX_THREADS, plus how many
     * workers beside the caller are wanted now. One word, so that a worker that comes late cannot mix two rounds. */
    atomic_uint_fast64_t round;
    nbl__work *work;     /* of the round; for those inside */
    atomic_int inside;   /* workers that have entered; the caller waits for these alone */
    atomic_int parked;   /* workers that sleep, or are about to */
    atomic_bool waiting; /* so does the caller */
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    bool quit;
    int started;
    struct nbl__seat {
        struct nbl__pool *pool;
        int worker;
        pthread_t thread;
    } seats[NBL_MAX_THREADS - 1];
} nbl__pool;

void nbl__pool_open(nbl__pool *pool);
void nbl__pool_close(nbl__pool *pool);
nbl__pool *nbl__context_pool(nbl_context *ctx);

#endif
