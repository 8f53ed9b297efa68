/* torch_context.c - a context of nibble for each thread and device.
 *
 * A context serves one thread at a time. Each thread of the process makes its own when it first calls an
 * operator, and frees it when it ends. The number of threads that a context computes with is torch's, which
 * torch sets to 1 in the workers of a DataLoader.
 *
 * Threads do not survive fork. So a child forgets the contexts of its parent, and makes its own.
 *
 * A CUDA context borrows torch's current stream, which is asked for before every call. The functions for it
 * are in libtorch_cuda.so. It is loaded already when a CUDA tensor exists, and absent in a torch for the CPU. */
#define _GNU_SOURCE /* RTLD_NOLOAD */
#include "torch_call.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { MAX_DEVICES = 64 };

/* The contexts of one thread. */
typedef struct thread_contexts {
    unsigned generation; /* of forks: contexts of another one belong to the parent */
    int threads;         /* what `cpu` was last told */
    nbl_context *cpu, *cuda[MAX_DEVICES];
} thread_contexts;

static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static bool key_made;
static atomic_uint generation;

/* A function of libtorch_cuda.so. */
static pthread_once_t cuda_once = PTHREAD_ONCE_INIT;
static torch_error (*get_current_stream)(int32_t device_index, void **stream);

/* For each device a context that no thread computes with. All others share its cuBLASLt handle. */
static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;
static nbl_context *shared[MAX_DEVICES];

static void free_contexts(void *value)
{
    thread_contexts *all = value;
    if (all->generation == atomic_load(&generation)) {
        nbl_context_destroy(all->cpu);
        for (int i = 0; i < MAX_DEVICES; i++) nbl_context_destroy(all->cuda[i]);
    }
    free(all);
}

static void forked(void)
{
    atomic_fetch_add(&generation, 1);
}

static void make_key(void)
{
    key_made = pthread_key_create(&key, free_contexts) == 0 && pthread_atfork(NULL, NULL, forked) == 0;
}

/* The contexts of this thread; NULL without memory. */
static thread_contexts *contexts_of_thread(void)
{
    pthread_once(&key_once, make_key);
    if (!key_made) return NULL;
    thread_contexts *all = pthread_getspecific(key);
    unsigned now = atomic_load_explicit(&generation, memory_order_relaxed);
    if (all && all->generation == now) return all;
    /* In a forked child the parent's contexts are lost: ending their threads would wait for ever. */
    thread_contexts *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL) return NULL;
    fresh->generation = now;
    if (pthread_setspecific(key, fresh) != 0) {
        free(fresh);
        return NULL;
    }
    return fresh;
}

static int torch_threads(void)
{
    uint32_t count = 1;
    if (torch_get_num_threads) {
        if (torch_get_num_threads(&count)) count = 1;
    } else if (_ZN2at15get_num_threadsEv) count = (uint32_t)_ZN2at15get_num_threadsEv();
    return count < 1 ? 1 : count > 1024 ? 1024 : (int)count;
}

static nbl_context *new_context(torch_call *c, int threads)
{
    nbl_context *ctx = NULL;
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = threads};
    nbl_status status = nbl_context_create(&options, &ctx);
    if (status != NBL_OK) call_fail(c, "no context: %s", nbl_status_text(status));
    return ctx;
}

static nbl_context *cpu_context(torch_call *c, thread_contexts *all)
{
    int threads = torch_threads();
    if (all->cpu == NULL) {
        all->cpu = new_context(c, threads);
        all->threads = threads;
    } else if (all->threads != threads) {
        c->ctx = all->cpu;
        call_status(c, nbl_context_set_threads(all->cpu, threads));
        all->threads = threads;
    }
    return all->cpu;
}

static void find_cuda(void)
{
    void *library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL) return;
    get_current_stream = (torch_error(*)(int32_t, void **))dlsym(library,
                                                                 "aoti_torch_get_current_cuda_stream");
}

static nbl_context *cuda_context(torch_call *c, thread_contexts *all)
{
    int32_t index = c->device_index;
    void *stream = NULL;
    pthread_once(&cuda_once, find_cuda);
    if (get_current_stream == NULL)
        call_fail(c, "libtorch_cuda.so does not tell its current stream. torch 2.9 or later is needed");
    else if (index < 0 || index >= MAX_DEVICES)
        call_fail(c, "cuda:%d is beyond device %d", index, MAX_DEVICES - 1);
    else if (get_current_stream(index, &stream)) call_fail(c, "torch does not tell its current stream");
    if (c->failed) return NULL;
    nbl_context **mine = &all->cuda[index];
    if (*mine) {
        c->ctx = *mine;
        call_status(c, nbl_context_set_stream(*mine, stream));
        return *mine;
    }
    pthread_mutex_lock(&shared_lock);
    for (int i = 0; i < 2 && !c->failed; i++) {
        nbl_context **made = i == 0 ? &shared[index] : mine;
        if (*made || (*made = c->ctx = new_context(c, 1)) == NULL) continue;
        call_status(c, nbl_context_use_cuda_stream(*made, index, stream, i == 0 ? NULL : shared[index]));
        if (!c->failed) continue;
        nbl_context_destroy(*made);
        *made = c->ctx = NULL;
    }
    pthread_mutex_unlock(&shared_lock);
    return *mine;
}

nbl_context *call_context(torch_call *c)
{
    if (c->failed) return NULL;
    if (c->ctx) return c->ctx;
    thread_contexts *all = contexts_of_thread();
    if (all == NULL) {
        call_fail(c, "no memory for a context");
        return NULL;
    }
    nbl_context *ctx = call_on_cuda(c) ? cuda_context(c, all) : cpu_context(c, all);
    return c->ctx = c->failed ? NULL : ctx;
}
