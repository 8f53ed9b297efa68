/* echo.c - see echo.h. What a correct caller never does ends the test with a message. */
#include "device/echo.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "ops/elementwise/offload_copy.h"
#include "ops/families.h"
#include "ops/optimizer/adamw.h"
#include "ops/optimizer/grad_norm.h"

enum { BLOCKS = 256, IMPLS = 8, PARKED = 2 * NBL_OFFLOAD_SLOTS };

/* Something to be done. Arguments and tensors are copies. */
typedef struct item {
    enum { OPERATOR, COPY, FILL, DEQUANTIZE, TIMER } kind;
    bool owned; /* `arguments` and `tensors` are freed with it */
    const nbl__impl *impl;
    const nbl__family *family;
    nbl__call call;
    void *arguments, *tensors;
    nbl_weight weight;
    int64_t row_begin, row_end;
    nbl_dtype dtype;
    bool transpose;
    void *to;
    const void *from;
    size_t bytes;
    int number; /* the byte of a fill, a timer */
} item;

typedef struct queue {
    item *items;
    int64_t count, room;
} queue;

typedef struct echo {
    nbl__device device;
    nbl_context *ctx;
    struct {
        void *memory;
        size_t mapped;
    } blocks[BLOCKS];
    queue queued;
    queue *capturing; /* NULL: no capture */
    int64_t done;     /* items that have left the queue */
    int64_t events[NBL_DEVICE_EVENTS], event_count;
    item parked[PARKED]; /* offload copies that have begun, oldest first */
    int parked_count;
    nbl_status failed; /* of an item, until the next wait */
    void *staging, *scratch;
    size_t scratch_bytes;
    double *times;
    int64_t fail_after;
    char mailbox[NBL_DEVICE_MAILBOX];
    echo_counts counts;
} echo;

static void refuse(const char *what)
{
    fprintf(stderr, "echo: %s\n", what);
    abort();
}

static echo *of(const nbl_context *ctx)
{
    return (echo *)(void *)nbl__context_device(ctx);
}

echo_counts *echo_counts_of(nbl_context *ctx)
{
    return &of(ctx)->counts;
}

nbl__device *echo_device(nbl_context *ctx)
{
    return &of(ctx)->device;
}

void echo_fail_after(nbl_context *ctx, int64_t more)
{
    of(ctx)->fail_after = more;
}

static void *memory_of(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (memory == NULL) refuse("out of memory");
    return memory;
}

/* ---- the queue ---- */

static void unlock(const echo *e, bool yes)
{
    for (int i = 0; i < BLOCKS; i++)
        if (e->blocks[i].memory &&
            mprotect(e->blocks[i].memory, e->blocks[i].mapped, yes ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
            refuse("mprotect");
}

static void push(echo *e, item it)
{
    queue *q = e->capturing ? e->capturing : &e->queued;
    if (q->count == q->room) {
        q->room = 2 * q->room + 64;
        q->items = realloc(q->items, (size_t)q->room * sizeof *q->items);
        if (q->items == NULL) refuse("out of memory");
    }
    q->items[q->count++] = it;
}

static void drop(item *it)
{
    if (!it->owned) return;
    free(it->arguments);
    free(it->tensors);
}

/* Offload copies run one after the other: those before the copy of `slot` come first. */
static nbl_status finish_copy(echo *e, int slot)
{
    for (bool found = false; e->parked_count > 0 && !found;) {
        item it = e->parked[0];
        found = ((const nbl__offload_copy *)it.arguments)->slot == slot;
        memmove(e->parked, e->parked + 1, (size_t)--e->parked_count * sizeof *e->parked);
        NBL_TRY(it.impl->run(&it.call, it.arguments));
        free(it.arguments);
        e->counts.offloads++;
    }
    return NBL_OK;
}

static nbl_status start_copy(echo *e, const item *it)
{
    const nbl__offload_copy *a = it->arguments;
    if (a->what == NBL_OFFLOAD_WAIT) return finish_copy(e, a->slot);
    for (int i = 0; i < e->parked_count; i++)
        if (((const nbl__offload_copy *)e->parked[i].arguments)->slot == a->slot)
            refuse("a copy began in a slot whose last copy was not waited for");
    item copy = *it; /* it outlives the item */
    copy.arguments = memory_of(sizeof *a);
    memcpy(copy.arguments, a, sizeof *a);
    e->parked[e->parked_count++] = copy;
    return NBL_OK;
}

static nbl_status do_item(echo *e, const item *it)
{
    struct timespec now;
    switch (it->kind) {
    case OPERATOR:
        if (it->family == &nbl__offload_copy_family) return start_copy(e, it);
        e->counts.operators++;
        return it->impl->run(&it->call, it->arguments);
    case COPY: memcpy(it->to, it->from, it->bytes); return NBL_OK;
    case FILL: memset(it->to, it->number, it->bytes); return NBL_OK;
    case DEQUANTIZE:
        return nbl__dequantize_host(e->ctx, &it->weight, it->row_begin, it->row_end, it->dtype, it->transpose,
                                    it->to);
    case TIMER:
        clock_gettime(CLOCK_MONOTONIC, &now);
        e->times[it->number] = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
        return NBL_OK;
    }
    return NBL_ERROR_INTERNAL;
}

/* Does what was queued first, until `position` items have been done since the beginning. */
static void work(echo *e, int64_t position)
{
    int64_t n = position - e->done;
    if (e->capturing) refuse("waited during a capture");
    if (n <= 0) return;
    unlock(e, true);
    for (int64_t i = 0; i < n; i++) {
        nbl_status status = do_item(e, &e->queued.items[i]);
        if (e->failed == NBL_OK) e->failed = status;
        drop(&e->queued.items[i]);
    }
    unlock(e, false);
    e->queued.count -= n;
    e->done += n;
    memmove(e->queued.items, e->queued.items + n, (size_t)e->queued.count * sizeof *e->queued.items);
}

static nbl_status take_failure(echo *e)
{
    nbl_status status = e->failed;
    e->failed = NBL_OK;
    return status;
}

static void work_all(echo *e)
{
    work(e, e->done + e->queued.count);
}

static nbl_status wait_all(nbl_context *ctx, const char *what)
{
    (void)what;
    work_all(of(ctx));
    return take_failure(of(ctx));
}

static nbl_status event_record(nbl_context *ctx, int64_t *event)
{
    echo *e = of(ctx);
    if (e->capturing) refuse("an event was recorded during a capture");
    *event = ++e->event_count;
    e->events[*event % NBL_DEVICE_EVENTS] = e->done + e->queued.count;
    return NBL_OK;
}

static nbl_status event_wait(nbl_context *ctx, int64_t event, const char *what)
{
    echo *e = of(ctx);
    (void)what;
    if (event == 0) return NBL_OK;
    work(e, e->events[event % NBL_DEVICE_EVENTS]);
    e->counts.ahead += e->queued.count > 0;
    return take_failure(e);
}

/* ---- memory ---- */

static nbl_status fill(nbl_context *ctx, void *to, int byte, size_t bytes)
{
    push(of(ctx), (item){.kind = FILL, .to = to, .number = byte, .bytes = bytes});
    return NBL_OK;
}

static void *alloc(nbl_context *ctx, size_t bytes, bool cleared)
{
    echo *e = of(ctx);
    size_t page = (size_t)sysconf(_SC_PAGESIZE), mapped = (bytes + page) / page * page;
    int i = 0;
    if (e->capturing) refuse("memory was allocated during a capture");
    while (i < BLOCKS && e->blocks[i].memory) i++;
    if (i == BLOCKS) refuse("too many blocks");
    e->counts.allocations++;
    if (e->fail_after-- == 0) {
        nbl__fail(ctx, NBL_ERROR_MEMORY, "echo: no memory for %zu bytes", bytes);
        return NULL;
    }
    void *memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) refuse("mmap");
    memset(memory, 0xa5, mapped); /* nobody may rely on zeros */
    mprotect(memory, mapped, PROT_NONE);
    e->blocks[i].memory = memory;
    e->blocks[i].mapped = mapped;
    e->counts.live++;
    if (cleared) fill(ctx, memory, 0, bytes);
    return memory;
}

static void release(nbl_context *ctx, void *memory, size_t bytes)
{
    echo *e = of(ctx);
    (void)bytes;
    if (memory == NULL) return;
    work_all(e);
    for (int i = 0; i < BLOCKS; i++) {
        if (e->blocks[i].memory != memory) continue;
        munmap(memory, e->blocks[i].mapped);
        e->blocks[i].memory = NULL;
        e->counts.live--;
        return;
    }
    refuse("memory was freed that is not the device's");
}

static uint64_t bytes_free(nbl_context *ctx)
{
    (void)ctx;
    return nbl__memory_available();
}

/* Not cleared: nobody may rely on zeros. */
static void *alloc_host(nbl_context *ctx, size_t bytes)
{
    void *host = nbl__alloc(ctx, bytes);
    return host ? memset(host, 0xa5, bytes) : NULL;
}

/* What is queued may still use it. */
static void free_host(nbl_context *ctx, void *host, size_t bytes)
{
    if (host) work_all(of(ctx));
    nbl__free(ctx, host, bytes);
}

static nbl_status borrow_scratch(nbl_context *ctx, const char *op, size_t bytes, void **scratch)
{
    echo *e = of(ctx);
    (void)op;
    if (bytes > e->scratch_bytes) {
        release(ctx, e->scratch, e->scratch_bytes);
        e->scratch_bytes = 0;
        e->scratch = alloc(ctx, bytes, false);
        if (e->scratch == NULL) return NBL_ERROR_MEMORY;
        e->scratch_bytes = bytes;
    }
    *scratch = e->scratch;
    return NBL_OK;
}

static void return_scratch(nbl_context *ctx, void *scratch, size_t bytes)
{
    (void)ctx, (void)scratch, (void)bytes;
}

/* ---- copies ---- */

static nbl_status copy_async(nbl_context *ctx, void *to, const void *from, size_t bytes)
{
    push(of(ctx), (item){.kind = COPY, .to = to, .from = from, .bytes = bytes});
    return NBL_OK;
}

static nbl_status copy_now(nbl_context *ctx, void *to, const void *from, size_t bytes)
{
    copy_async(ctx, to, from, bytes);
    return wait_all(ctx, "copy");
}

static nbl_status map_host(nbl_context *ctx, void *memory, size_t bytes, bool read, void **host)
{
    echo *e = of(ctx);
    free(e->staging);
    *host = e->staging = memory_of(bytes);
    memset(e->staging, 0xa5, bytes);
    return read ? copy_now(ctx, e->staging, memory, bytes) : NBL_OK;
}

static nbl_status offload_open(nbl_context *ctx)
{
    (void)ctx;
    return NBL_OK;
}

static nbl_status dequantize(nbl_context *ctx, const nbl_weight *weight, int64_t row_begin, int64_t row_end,
                             nbl_dtype dtype, bool transpose, void *to)
{
    push(of(ctx), (item){.kind = DEQUANTIZE,
                         .weight = *weight,
                         .row_begin = row_begin,
                         .row_end = row_end,
                         .dtype = dtype,
                         .transpose = transpose,
                         .to = to});
    return NBL_OK;
}

/* ---- operators ---- */

static const nbl__family *family_of(const char *op, const nbl__op **direction)
{
    const nbl__family *family = &nbl__offload_copy_family;
    for (int i = 0; family; family = nbl__family_at(i++)) {
        *direction = &family->forward;
        if (strcmp(op, family->forward.name) == 0) return family;
        *direction = &family->backward;
        if (family->backward.name && strcmp(op, family->backward.name) == 0) return family;
    }
    refuse("an operator of no family");
    return NULL;
}

static void *copy_of(const void *from, size_t bytes)
{
    void *copy = memory_of(bytes);
    if (bytes) memcpy(copy, from, bytes);
    return copy;
}

/* Arguments, and lists of tensors in them, may change as soon as the call has returned. */
static nbl_status enqueue(const nbl__call *call, const void *arguments, int row)
{
    const nbl__op *op;
    item it = {.kind = OPERATOR, .owned = true, .call = *call, .family = family_of(call->op, &op)};
    it.impl = op->impls[row];
    it.arguments = copy_of(arguments, it.family->size);
    if (it.family == &nbl__adamw_family) {
        nbl__adamw *a = it.arguments;
        a->tensors = it.tensors = copy_of(a->tensors, (size_t)a->count * sizeof *a->tensors);
    } else if (it.family == &nbl__grad_norm_family) {
        nbl__grad_norm *a = it.arguments;
        a->gradients = it.tensors = copy_of(a->gradients, (size_t)a->count * sizeof *a->gradients);
    }
    push(of(call->ctx), it);
    return NBL_OK;
}

#define RUN(row)                                                                                             \
    static nbl_status run_##row(const nbl__call *call, const void *arguments)                                \
    {                                                                                                        \
        return enqueue(call, arguments, row);                                                                \
    }
RUN(0)
RUN(1)
RUN(2)
RUN(3)
RUN(4)
RUN(5)
RUN(6)
RUN(7)

typedef nbl_status (*run_fn)(const nbl__call *call, const void *arguments);
static const run_fn runs[IMPLS] = {run_0, run_1, run_2, run_3, run_4, run_5, run_6, run_7};

/* The CPU's rows of each operator, with `run` replaced. Filled at the first use. */
static struct rows {
    const nbl__op *op;
    nbl__impl rows[IMPLS];
    const nbl__impl *list[IMPLS + 1];
} table[128];

static const nbl__impl *const *impls(const nbl__op *op)
{
    struct rows *it = table;
    while (it->op && it->op != op) it++;
    if (it == table + 127) refuse("too many operators");
    it->op = op;
    for (int i = 0; op->impls[i]; i++) {
        if (i == IMPLS) refuse("too many implementations");
        it->rows[i] = *op->impls[i];
        it->rows[i].run = runs[i];
        it->list[i] = &it->rows[i];
    }
    return it->list;
}

static size_t saved_bytes(const nbl__impl *impl, const void *arguments)
{
    (void)impl, (void)arguments;
    return 0;
}

static nbl_status machine(nbl_context *ctx, nbl__arena *arena, const char **name)
{
    (void)ctx;
    *name = nbl__arena_strdup(arena, "echo");
    return *name ? NBL_OK : NBL_ERROR_MEMORY;
}

/* ---- captured graphs ---- */

static nbl_status capture_begin(nbl_context *ctx)
{
    of(ctx)->capturing = memory_of(sizeof(queue));
    return NBL_OK;
}

static void graph_free(nbl_context *ctx, void *graph)
{
    queue *q = graph;
    if (q == NULL) return;
    work_all(of(ctx)); /* replays refer to its arguments */
    for (int64_t i = 0; i < q->count; i++) {
        q->items[i].owned = q->items[i].kind == OPERATOR;
        drop(&q->items[i]);
    }
    free(q->items);
    free(q);
}

static nbl_status capture_end(nbl_context *ctx, bool good, void **graph)
{
    echo *e = of(ctx);
    *graph = e->capturing;
    e->capturing = NULL;
    e->counts.graphs++;
    if (good) return NBL_OK;
    graph_free(ctx, *graph);
    *graph = NULL;
    return NBL_OK;
}

static nbl_status replay(nbl_context *ctx, void *graph)
{
    const queue *q = graph;
    for (int64_t i = 0; i < q->count; i++) {
        item it = q->items[i];
        it.owned = false;
        push(of(ctx), it);
    }
    of(ctx)->counts.replays++;
    return NBL_OK;
}

/* ---- timers ---- */

static nbl_status timers_open(nbl_context *ctx, int count)
{
    of(ctx)->times = memory_of((size_t)count * sizeof(double));
    return NBL_OK;
}

static void timers_close(nbl_context *ctx)
{
    work_all(of(ctx));
    free(of(ctx)->times);
    of(ctx)->times = NULL;
}

static nbl_status timer_record(nbl_context *ctx, int timer)
{
    push(of(ctx), (item){.kind = TIMER, .number = timer});
    return NBL_OK;
}

static nbl_status timer_elapsed(nbl_context *ctx, int from, int to, double *milliseconds)
{
    *milliseconds = of(ctx)->times[to] - of(ctx)->times[from];
    return NBL_OK;
}

/* ---- installing ---- */

static void close_echo(nbl__device *device)
{
    echo *e = (echo *)(void *)device;
    nbl_context *ctx = e->ctx;
    work_all(e);
    release(ctx, e->scratch, e->scratch_bytes);
    if (e->parked_count > 0) refuse("an offload copy was never waited for");
    if (e->counts.live > 0) refuse("memory of the device was not freed");
    free(e->staging);
    free(e->queued.items);
    free(e);
}

void echo_install(nbl_context *ctx)
{
    echo *e = memory_of(sizeof *e);
    e->ctx = ctx;
    e->fail_after = -1;
    e->device = (nbl__device){
        .name = "echo",
        .asynchronous = true,
        .separate_memory = true,
        .reads_host = true,
        .captures = true,
        .operations_per_host_byte = nbl__cpu.operations_per_host_byte,
        .mailbox = e->mailbox,
        .impls = impls,
        .saved_bytes = saved_bytes,
        .dequantize = dequantize,
        .machine = machine,
        .alloc = alloc,
        .free = release,
        .bytes_free = bytes_free,
        .alloc_host = alloc_host,
        .free_host = free_host,
        .borrow_scratch = borrow_scratch,
        .return_scratch = return_scratch,
        .fill = fill,
        .write = copy_now,
        .read = copy_now,
        .write_async = copy_async,
        .read_async = copy_async,
        .map_host = map_host,
        .unmap_host = copy_now,
        .offload_open = offload_open,
        .wait = wait_all,
        .event_record = event_record,
        .event_wait = event_wait,
        .capture_begin = capture_begin,
        .capture_end = capture_end,
        .replay = replay,
        .graph_free = graph_free,
        .timers_open = timers_open,
        .timers_close = timers_close,
        .timer_record = timer_record,
        .timer_elapsed = timer_elapsed,
    };
    nbl__context_set_device(ctx, &e->device, close_echo);
}
