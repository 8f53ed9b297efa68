/* plan_run.c - binds a plan to memory and runs it. See plan.h.
 *
 * CPU: steps run one after the other; the progress callback is called before each of them.
 *
 * Device: inputs and results also have host memory (plan->mirror), which the caller writes and
 * reads.
 *
 *     nbl__plan_run        copy inputs → steps → copy results → wait until done
 *     nbl__plan_run_later  copy inputs → record event → steps; wait only for the event
 *
 * A run is identified by a hash of all arguments of its steps (plan->key): shapes and attributes
 * are part of them. A key seen for the first time runs uncaptured. The second time the run is
 * captured as a CUDA graph. After that it is replayed as one launch. An argument that changes at
 * every step (a dropout seed, for example) prevents replay. */
#include <math.h>

#include "base/file/file.h"
#include "base/hash.h"
#include "graph/plan.h"
#include "ops/elementwise/offload_copy.h"
#include "device/cuda/cuda.h"
#include "device/device_memory.h"

/* ---- memory ---- */

static void *address(void *user, nbl__value value)
{
    return nbl__plan_address(user, value);
}

void *nbl__plan_address(const nbl__plan *plan, nbl__value value)
{
    /* A view has no offset of its own. */
    nbl__value storage = nbl__graph_storage(plan->graph, value);
    return plan->memory[nbl__plan_class(&plan->graph->values[storage])] + plan->offset[storage];
}

void *nbl__plan_data(const nbl__plan *plan, nbl__value value)
{
    nbl__value storage = nbl__graph_storage(plan->graph, value);
    bool mirrored = plan->mirror && nbl__plan_class(&plan->graph->values[storage]) == NBL_MEMORY_INPUTS;
    return mirrored ? plan->mirror + plan->offset[storage] : nbl__plan_address(plan, value);
}

/* Allocates pinned host memory for offloaded values and writes its address into the offload
 * steps. */
static nbl_status bind_host(nbl__plan *plan, nbl__cuda *cuda)
{
    if (plan->host_bytes == 0) return NBL_OK;
    if (cuda) NBL_TRY(nbl__cuda_offload_open(cuda));
    plan->host = cuda ? nbl__cuda_alloc_host(cuda, plan->host_bytes)
                      : nbl__alloc(plan->ctx, plan->host_bytes);
    if (plan->host == NULL) return NBL_ERROR_MEMORY;
    for (int i = 0; i < plan->step_count; i++) {
        if (plan->steps[i].node->family != &nbl__offload_copy_family) continue;
        nbl__offload_copy *a = plan->steps[i].arguments;
        a->host = plan->host + a->offset;
    }
    return NBL_OK;
}

/* Allocates or borrows memory for each class. Parameters and states are borrowed from `host` if
 * it is given; `all`: inputs and run memory as well. A class that may not be shared must have
 * equal sizes; inputs and run memory must fit. */
static nbl_status bind_to(nbl__plan *plan, const nbl__plan *host, bool all)
{
    nbl__cuda *cuda = nbl__cuda_of(plan->ctx);
    for (int i = 0; i < NBL_MEMORY_COUNT; i++) {
        /* kept: of the model; turns: shared by plans that run in turns */
        bool kept = i == NBL_MEMORY_PARAMETERS || i == NBL_MEMORY_STATES;
        bool turns = i == NBL_MEMORY_INPUTS || i == NBL_MEMORY_RUN;
        plan->borrowed[i] = host && (kept || (all && turns));
        if (!plan->borrowed[i]) {
            plan->memory[i] = nbl__memory_alloc(plan->ctx, plan->bytes[i]);
            if (plan->memory[i] == NULL) return NBL_ERROR_MEMORY;
            continue;
        }
        NBL_CHECK(plan->ctx, kept ? plan->bytes[i] == host->bytes[i] : plan->bytes[i] <= host->bytes[i],
                  NBL_ERROR_INTERNAL, "two plans of one model differ in what they share");
        plan->memory[i] = host->memory[i];
    }
    /* The mirror has the layout of the inputs class, so it is shared exactly if that is. */
    if (cuda && plan->borrowed[NBL_MEMORY_INPUTS]) {
        plan->mirror = host->mirror;
    } else if (cuda) {
        plan->mirror = nbl__cuda_alloc_host(cuda, plan->bytes[NBL_MEMORY_INPUTS]);
        if (plan->mirror == NULL) return NBL_ERROR_MEMORY;
        memset(plan->mirror, 0, plan->bytes[NBL_MEMORY_INPUTS]);
    }
    /* All addresses are known now: write them into the arguments of all steps. */
    NBL_TRY(bind_host(plan, cuda));
    return nbl__plan_infer(plan, true, address);
}

nbl_status nbl__plan_bind(nbl__plan *plan, const nbl__plan *shared)
{
    return bind_to(plan, shared, false);
}

nbl_status nbl__plan_join(nbl__plan *plan, const nbl__plan *host)
{
    return bind_to(plan, host, true);
}

void nbl__plan_unbind(nbl__plan *plan)
{
    nbl__cuda *cuda = nbl__cuda_of(plan->ctx);
    /* Captured graphs refer to the memory that is freed below. */
    for (int i = 0; i < NBL_PLAN_CAPTURED_GRAPHS; i++)
        if (plan->captured_graphs[i].graph) nbl__cuda_graph_free(cuda, plan->captured_graphs[i].graph);
    if (plan->mirror && !plan->borrowed[NBL_MEMORY_INPUTS]) nbl__cuda_free_host(cuda, plan->mirror);
    if (cuda) nbl__cuda_free_host(cuda, plan->host);
    else nbl__free(plan->ctx, plan->host, plan->host_bytes);
    for (int i = 0; i < NBL_MEMORY_COUNT; i++)
        if (!plan->borrowed[i]) nbl__memory_free(plan->ctx, plan->memory[i], plan->bytes[i]);
}

nbl_status nbl__plan_resize(nbl__plan *plan)
{
    return nbl__plan_infer(plan, false, address);
}

nbl_status nbl__plan_clear_gradients(nbl__plan *plan)
{
    return nbl__memory_clear(plan->ctx, plan->memory[NBL_MEMORY_GRADIENTS],
                             plan->bytes[NBL_MEMORY_GRADIENTS]);
}

/* ---- running ---- */

nbl_status nbl__plan_run_step(nbl__plan *plan, const nbl__planned_step *step)
{
    uint8_t *run = plan->memory[NBL_MEMORY_RUN];
    nbl_status status = nbl__op_run_within(plan->ctx, step->op, step->impl, step->arguments,
                                           run + step->scratch_offset, step->scratch,
                                           step->kept > 0 ? run + step->kept_offset : NULL);
    return status == NBL_OK ? NBL_OK : nbl__hint(plan->ctx, status, "in %s", step->node->name);
}

static nbl_status run_steps(nbl__plan *plan, int count)
{
    for (int i = 0; i < count; i++) NBL_TRY(nbl__plan_run_step(plan, &plan->steps[i]));
    return NBL_OK;
}

/* Copies bytes [begin, end) of the inputs class: to the device for inputs, to the host for
 * results. */
static nbl_status move_span(const nbl__plan *plan, nbl__cuda *cuda, nbl__kind kind, size_t begin, size_t end)
{
    uint8_t *device = plan->memory[NBL_MEMORY_INPUTS] + begin, *host = plan->mirror + begin;
    if (begin == end) return NBL_OK;
    return kind == NBL_KIND_INPUT ? nbl__cuda_write_later(cuda, device, host, end - begin)
                                  : nbl__cuda_read_later(cuda, host, device, end - begin);
}

/* Copies all inputs to the device, or all results to the host, at their current sizes. Values
 * separated by nothing but padding (offsets are multiples of 64) go in one copy: a copy of a few
 * bytes takes as long as one of a page. */
static nbl_status move_ends(nbl__plan *plan, nbl__cuda *cuda, nbl__kind kind)
{
    enum { PADDING = 63 };
    size_t begin = 0, end = 0;
    for (nbl__value v = 1; v <= plan->value_count; v++) {
        const nbl__value_info *info = &plan->graph->values[v];
        uint64_t bytes;
        if (info->kind != kind || info->alias) continue;
        if (!nbl__dtype_bytes(info->tensor.dtype, (uint64_t)nbl__tensor_elements(&info->tensor), &bytes) ||
            bytes == 0)
            continue;
        /* Copy the collected span if this value does not follow it directly. */
        size_t at = plan->offset[v];
        if (begin == end || at < end || at - end > PADDING) {
            NBL_TRY(move_span(plan, cuda, kind, begin, end));
            begin = at;
        }
        end = at + (size_t)bytes;
    }
    return move_span(plan, cuda, kind, begin, end);
}

/* A run of the first `count` steps; `ends`: including the copies of inputs and results. */
typedef struct part {
    int count;
    bool ends;
} part;

/* Hash of everything that decides which kernels a run launches, and with which arguments; never
 * 0. */
static uint64_t key_of(const nbl__plan *plan, part p)
{
    int count = p.count;
    uint64_t key = nbl__hash(p.ends, &count, sizeof count);
    for (int i = 0; i < count; i++)
        key = nbl__hash(key, plan->steps[i].arguments, plan->steps[i].node->family->size);
    return key ? key : 1;
}

/* Enqueues the run on the device's stream. `profiled`: with timers between the steps. */
static nbl_status enqueue(nbl__plan *plan, nbl__cuda *cuda, part p, bool profiled)
{
    if (p.ends) NBL_TRY(move_ends(plan, cuda, NBL_KIND_INPUT));
    NBL_TRY(profiled ? nbl__plan_profile(plan, p.count) : run_steps(plan, p.count));
    return p.ends ? move_ends(plan, cuda, NBL_KIND_RESULT) : NBL_OK;
}

/* Captures the run as a CUDA graph. Capturing enqueues nothing. */
static nbl_status record(nbl__plan *plan, nbl__cuda *cuda, part p, void **graph)
{
    NBL_TRY(nbl__cuda_capture_begin(cuda));
    nbl_status status = enqueue(plan, cuda, p, false);
    nbl_status ended = nbl__cuda_capture_end(cuda, status == NBL_OK, graph);
    return status != NBL_OK ? status : ended;
}

void nbl__plan_touch(nbl__plan *plan)
{
    plan->key = 0;
}

/* Enqueues a run: replays its captured graph if there is one, else captures or enqueues it. */
static nbl_status launch(nbl__plan *plan, nbl__cuda *cuda, part p)
{
    /* debugging waits after each kernel, which a captured graph cannot do */
    if (cuda->debugs) return enqueue(plan, cuda, p, false);
    /* Hashing takes a while in large plans, so the key is cached until something changes. */
    if (plan->key == 0 || plan->key_count != p.count || plan->key_ends != p.ends) plan->key = key_of(plan, p);
    plan->key_count = p.count;
    plan->key_ends = p.ends;
    uint64_t key = plan->key;
    nbl__captured_graph *oldest = &plan->captured_graphs[0];
    /* profile the second run: the first one is slower */
    if (++plan->runs == 2 && cuda->profiles) return enqueue(plan, cuda, p, true);
    for (int i = 0; i < NBL_PLAN_CAPTURED_GRAPHS; i++) {
        nbl__captured_graph *it = &plan->captured_graphs[i];
        if (it->key != key) {
            if (it->used < oldest->used) oldest = it;
            continue;
        }
        it->used = plan->runs;
        if (it->graph == NULL) NBL_TRY(record(plan, cuda, p, &it->graph));
        return nbl__cuda_replay(cuda, it->graph);
    }
    /* An unknown key replaces the entry that was used longest ago, and runs uncaptured this
     * time. */
    nbl__cuda_graph_free(cuda, oldest->graph);
    *oldest = (nbl__captured_graph){.key = key, .used = plan->runs};
    return enqueue(plan, cuda, p, false);
}

/* Runs steps one after the other. The progress callback may cancel between two of them. */
static nbl_status run_on_cpu(nbl__plan *plan, int count)
{
    for (int i = 0; i < count; i++) {
        NBL_TRY(nbl__progress_poll(plan->ctx, "computing"));
        NBL_TRY(nbl__plan_run_step(plan, &plan->steps[i]));
    }
    return NBL_OK;
}

static nbl_status run_some(nbl__plan *plan, int count)
{
    nbl__cuda *cuda = nbl__cuda_of(plan->ctx);
    if (cuda == NULL) return run_on_cpu(plan, count);
    NBL_TRY(nbl__progress_poll(plan->ctx, "computing"));
    NBL_TRY(launch(plan, cuda, (part){count, true}));
    return nbl__cuda_wait(cuda, "the step");
}

nbl_status nbl__plan_prepare(nbl__plan *plan)
{
    for (int i = 0; i < plan->prepare_count; i++) {
        NBL_TRY(nbl__progress_poll(plan->ctx, "computing"));
        NBL_TRY(nbl__plan_run_step(plan, &plan->prepare[i]));
    }
    return NBL_OK;
}

/* Weights are mapped files. If one has changed during the run, the result is wrong, and this
 * error replaces every other one. */
static nbl_status judge(nbl__plan *plan, nbl_status status)
{
    NBL_TRY(nbl__files_check(plan->ctx));
    return status;
}

nbl_status nbl__plan_run(nbl__plan *plan)
{
    return judge(plan, run_some(plan, plan->step_count));
}

static nbl_status run_later(nbl__plan *plan)
{
    nbl__cuda *cuda = nbl__cuda_of(plan->ctx);
    int64_t copied;
    if (cuda == NULL) return run_on_cpu(plan, plan->step_count);
    NBL_TRY(nbl__progress_poll(plan->ctx, "computing"));
    /* The inputs are copied outside of the captured graph, so that an event can follow the
     * copies. */
    NBL_TRY(move_ends(plan, cuda, NBL_KIND_INPUT));
    NBL_TRY(nbl__cuda_event_record(cuda, &copied));
    NBL_TRY(launch(plan, cuda, (part){plan->step_count, false}));
    return nbl__cuda_wait_for(cuda, copied, "the inputs");
}

nbl_status nbl__plan_run_later(nbl__plan *plan)
{
    return judge(plan, run_later(plan));
}

/* Exchanges the loss's flag "gradient in forward" with *was: a run without backward needs no dx. */
static void set_grad_in_forward(nbl__plan *plan, int count, bool *was)
{
    for (int i = 0; i < count; i++) {
        bool *grad_in_forward = nbl__step_attr(&plan->steps[i], "early");
        if (grad_in_forward == NULL) continue;
        bool now = *grad_in_forward;
        *grad_in_forward = *was;
        *was = now;
        nbl__plan_touch(plan);
    }
}

nbl_status nbl__plan_run_forward(nbl__plan *plan)
{
    int count = 0;
    bool grad_in_forward = false; /* at most one operator, the loss, has this flag */
    /* Forward steps come first. */
    while (count < plan->step_count && !plan->steps[count].backward) count++;
    set_grad_in_forward(plan, count, &grad_in_forward);
    /* The flag is exchanged back after the run: backward relies on it in training. */
    nbl_status status = run_some(plan, count);
    set_grad_in_forward(plan, count, &grad_in_forward);
    return judge(plan, status);
}

/* ---- finding NaN and infinities ---- */

/* Reads a tensor in host memory, 256 values at a time. */
static bool all_finite(nbl_isa isa, const nbl_tensor *t)
{
    float values[256];
    int64_t n = nbl__tensor_elements(t);
    for (int64_t at = 0; at < n; at += 256) {
        int64_t count = nbl__min_i64(256, n - at);
        nbl__to_f32(isa, t->dtype, (const uint8_t *)t->data + (size_t)at * nbl__size_of(t->dtype), values,
                    count);
        for (int64_t i = 0; i < count; i++)
            if (!isfinite(values[i])) return false;
    }
    return true;
}

/* Copies each output of a step to the host and checks that its values are finite. Integer
 * outputs pass. */
static nbl_status check_step(nbl__plan *plan, const nbl__planned_step *step, bool *finite)
{
    const nbl__slot *slots = step->node->family->slots;
    *finite = true;
    for (const nbl__slot *slot = slots; slot->name && *finite; slot++) {
        if (step->bound[slot - slots] == 0 || slot->role != NBL_ROLE_OUTPUT) continue;
        nbl_tensor t = *nbl__slot_tensor(slot, step->arguments);
        if (!nbl__is_compute(t.dtype)) continue;
        size_t bytes = (size_t)nbl__tensor_elements(&t) * nbl__size_of(t.dtype);
        NBL_TRY(nbl__memory_lend(plan->ctx, t.data, bytes, true, &t.data));
        *finite = all_finite(nbl__isa(plan->ctx), &t);
    }
    return NBL_OK;
}

nbl_status nbl__plan_find_non_finite(nbl__plan *plan, const nbl__node **node)
{
    bool finite = true;
    nbl__cuda *cuda = nbl__cuda_of(plan->ctx);
    *node = NULL;
    if (cuda) NBL_TRY(move_ends(plan, cuda, NBL_KIND_INPUT));
    for (int i = 0; i < plan->step_count && !plan->steps[i].backward; i++) {
        NBL_TRY(nbl__plan_run_step(plan, &plan->steps[i]));
        NBL_TRY(check_step(plan, &plan->steps[i], &finite));
        if (finite) continue;
        *node = plan->steps[i].node;
        return NBL_OK;
    }
    return NBL_OK;
}
