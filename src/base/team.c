/* team.c - the thread pool behind nbl__team_run. See team.h.
 *
 * A round: the caller opens it, works as worker 0, closes it, and waits until no worker is
 * inside.
 *
 *     caller   set work, round ─ wake parked ─ take items ─ round: wanted = 0 ─ wait for inside = 0
 *     worker   wait for a new round ─ inside++ ─ if round is unchanged: take items ─ inside--
 */
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

/* Takes the next item until there are none left or a worker has failed. */
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

/* Rounds are short and frequent, while waking a sleeping thread takes tens of microseconds. So
 * both sides spin for about 10 us before they sleep. A worker that wakes too late finds the
 * round closed.
 *
 * No wake-up is lost: a side that is about to sleep (or to enter) first announces it in an
 * atomic counter and then checks the condition again; the other side first changes the condition
 * and then reads the counter. With sequentially consistent atomics one of them sees the other.
 *
 * The condition is changed by an exchange, not by a store. Both are sequentially consistent in C.
 * But qemu's user mode on x86 lets a later load pass such a store, and then a wake-up is lost. An
 * exchange costs the same: x86 compiles both to xchg. */
enum { PATIENCE = 1000 };

static inline void rest(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    /* isb takes about as long as pause on x86; yield takes no time on most cores */
    __asm__ volatile("isb");
#endif
}

/* Returns when `round` differs from `seen`, or when the pool closes. */
static void await_round(nbl__pool *pool, uint_fast64_t seen)
{
    for (int i = 0; i < PATIENCE; i++, rest())
        if (atomic_load(&pool->round) != seen) return;
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->parked, 1);
    while (atomic_load(&pool->round) == seen && !pool->quit) pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->parked, 1);
    pthread_mutex_unlock(&pool->lock);
}

/* Stores a new round number with `wanted` workers. */
static void set_round(nbl__pool *pool, int wanted)
{
    uint_fast64_t count = atomic_load(&pool->round) / NBL_MAX_THREADS + 1;
    (void)atomic_exchange(&pool->round, count * NBL_MAX_THREADS + (uint_fast64_t)wanted);
}

static void open_round(nbl__pool *pool, nbl__work *work, int wanted)
{
    pool->work = work;
    set_round(pool, wanted);
    if (atomic_load(&pool->parked) == 0) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

/* Closes the round and waits until all workers have left it. */
static void close_round(nbl__pool *pool)
{
    set_round(pool, 0);
    for (int i = 0; i < PATIENCE; i++, rest())
        if (atomic_load(&pool->inside) == 0) return;
    pthread_mutex_lock(&pool->lock);
    (void)atomic_exchange(&pool->waiting, true);
    while (atomic_load(&pool->inside) > 0) pthread_cond_wait(&pool->done, &pool->lock);
    atomic_store(&pool->waiting, false);
    pthread_mutex_unlock(&pool->lock);
}

/* Works in the round if it is still open. The last worker to leave wakes a sleeping caller. */
static void join_round(nbl__pool *pool, uint_fast64_t round, int worker)
{
    atomic_fetch_add(&pool->inside, 1);
    if (atomic_load(&pool->round) == round) take_items(pool->work, worker);
    if (atomic_fetch_sub(&pool->inside, 1) > 1 || !atomic_load(&pool->waiting)) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_signal(&pool->done);
    pthread_mutex_unlock(&pool->lock);
}

/* A worker's thread. */
static void *worker_main(void *argument)
{
    struct nbl__thread_slot *slot = argument;
    nbl__pool *pool = slot->pool;
    for (uint_fast64_t seen = 0;;) {
        await_round(pool, seen);
        uint_fast64_t now = atomic_load(&pool->round);
        if (now == seen) return NULL; /* woken without a new round: the pool closes */
        seen = now;
        if ((uint_fast64_t)slot->worker <= now % NBL_MAX_THREADS) join_round(pool, now, slot->worker);
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
    for (int i = 0; i < pool->started; i++) pthread_join(pool->slots[i].thread, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
}

/* Starts threads up to `wanted`; fewer if the system refuses. They block all signals, which are
 * the caller's business, except SIGBUS. */
static void start(nbl__pool *pool, int wanted)
{
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* raised by the thread that reads a missing page; see file_guard.h */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool->started < wanted) {
        struct nbl__thread_slot *slot = &pool->slots[pool->started];
        slot->pool = pool;
        slot->worker = pool->started + 1;
        if (pthread_create(&slot->thread, NULL, worker_main, slot) != 0) break;
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
    if (helpers > 0) open_round(pool, &work, helpers);
    take_items(&work, 0);
    if (helpers > 0) close_round(pool);
    nbl_status status = nbl__team_leave(ctx);
    if (status == NBL_OK && atomic_load(&work.stop))
        status = nbl__fail(ctx, NBL_ERROR_INTERNAL, "a worker failed without a message");
    return status;
}
