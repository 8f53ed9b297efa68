/* team.c - see team.h. */
#include "base/team.h"

#include <signal.h>

struct nbl__work {
    nbl_context *ctx;
    int64_t items;
    nbl__team_fn fn;
    void *argument;
    const char *what;
    atomic_int_fast64_t next;
    atomic_bool stop;
};

static void take_items(nbl__work *w, int worker)
{
    while (!atomic_load(&w->stop)) {
        int64_t item = atomic_fetch_add(&w->next, 1);
        if (item >= w->items) return;
        nbl_status status = w->fn(w->argument, item, worker);
        if (status == NBL_OK && worker == 0 && w->what) status = nbl__progress_poll(w->ctx, w->what);
        if (status != NBL_OK) atomic_store(&w->stop, true);
    }
}

/* ---- the pool ---- */

/* Waits for another round: a short while awake, because the next one often follows at once. */
static void await_round(nbl__pool *pool, uint_fast64_t seen)
{
    enum { PATIENCE = 2000 };
    for (int i = 0; i < PATIENCE && atomic_load(&pool->round) == seen; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->round) == seen && !pool->quit) pthread_cond_wait(&pool->wake, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

static void *sit(void *argument)
{
    struct nbl__seat *seat = argument;
    nbl__pool *pool = seat->pool;
    for (uint_fast64_t seen = 0;;) {
        await_round(pool, seen);
        pthread_mutex_lock(&pool->lock);
        seen = atomic_load(&pool->round);
        bool quit = pool->quit, mine = seat->worker <= pool->wanted && pool->work;
        nbl__work *work = pool->work;
        pthread_mutex_unlock(&pool->lock);
        if (quit) return NULL;
        if (!mine) continue;
        take_items(work, seat->worker);
        pthread_mutex_lock(&pool->lock);
        if (--pool->running == 0) pthread_cond_signal(&pool->done);
        pthread_mutex_unlock(&pool->lock);
    }
}

void nbl__pool_open(nbl__pool *pool)
{
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
}

void nbl__pool_close(nbl__pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->quit = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->started; i++) pthread_join(pool->seats[i].thread, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
}

/* Signals are the caller's: the pool's threads block them all. */
static void start(nbl__pool *pool, int wanted)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool->started < wanted) {
        struct nbl__seat *seat = &pool->seats[pool->started];
        seat->pool = pool;
        seat->worker = pool->started + 1;
        if (pthread_create(&seat->thread, NULL, sit, seat) != 0) break;
        pool->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---- teams ---- */

int nbl__team_size(const nbl_context *ctx, int64_t items)
{
    int threads = nbl_threads(ctx);
    return items < threads ? (int)nbl__max_i64(items, 1) : threads;
}

nbl_status nbl__team_run(nbl_context *ctx, int64_t items, nbl__team_fn fn, void *argument, const char *what)
{
    if (items <= 0) return NBL_OK;
    nbl__work work = {.ctx = ctx, .items = items, .fn = fn, .argument = argument, .what = what};
    nbl__pool *pool = nbl__context_pool(ctx);
    int helpers = nbl__team_size(ctx, items) - 1;
    if (pool->started < helpers) start(pool, helpers);
    if (helpers > pool->started) helpers = pool->started;

    nbl__team_enter(ctx);
    if (helpers > 0) {
        pthread_mutex_lock(&pool->lock);
        pool->work = &work;
        pool->wanted = pool->running = helpers;
        atomic_fetch_add(&pool->round, 1);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
    }
    take_items(&work, 0);
    if (helpers > 0) {
        pthread_mutex_lock(&pool->lock);
        while (pool->running > 0) pthread_cond_wait(&pool->done, &pool->lock);
        pool->work = NULL;
        pthread_mutex_unlock(&pool->lock);
    }
    nbl_status status = nbl__team_leave(ctx);
    if (status == NBL_OK && atomic_load(&work.stop))
        status = nbl__fail(ctx, NBL_ERROR_INTERNAL, "a worker failed without a message");
    return status;
}
