/* team.c - see team.h. OpenMP keeps the threads; the schedule is ours, an atomic counter. */
#include "base/team.h"

#include <omp.h>
#include <stdatomic.h>

int nbl__team_size(const nbl_context *ctx, int64_t items)
{
    int threads = nbl_threads(ctx);
    return items < threads ? (int)nbl__max_i64(items, 1) : threads;
}

static void work(nbl_context *ctx, int64_t items, nbl__team_fn fn, void *argument, const char *what,
                 atomic_int_fast64_t *next, atomic_bool *stop, int worker)
{
    while (!atomic_load(stop)) {
        int64_t item = atomic_fetch_add(next, 1);
        if (item >= items) return;
        nbl_status status = fn(argument, item, worker);
        if (status == NBL_OK && worker == 0 && what) status = nbl__progress_poll(ctx, what);
        if (status != NBL_OK) atomic_store(stop, true);
    }
}

nbl_status nbl__team_run(nbl_context *ctx, int64_t items, nbl__team_fn fn, void *argument,
                         const char *what)
{
    if (items <= 0) return NBL_OK;
    atomic_int_fast64_t next = 0;
    atomic_bool stop = false;
    int threads = nbl__team_size(ctx, items);
    nbl__team_enter(ctx);
    if (threads == 1) {
        work(ctx, items, fn, argument, what, &next, &stop, 0);
    } else {
#pragma omp parallel num_threads(threads)
        work(ctx, items, fn, argument, what, &next, &stop, omp_get_thread_num());
    }
    nbl_status status = nbl__team_leave(ctx);
    if (status == NBL_OK && atomic_load(&stop))
        status = nbl__fail(ctx, NBL_ERROR_INTERNAL, "a worker failed without a message");
    return status;
}
