/* plan_run.c - binds a plan to memory and runs it. See plan.h.
 *
 *     nbl__plan_run        copy inputs → steps → copy results → wait until done
 *     nbl__plan_enqueue  copy inputs → record event → steps; wait only for the event
 *
 * What the device's facts change (device/device.h):
 *
 *     separate_memory  inputs and results also have host memory (plan->mirror), which the caller
 *                      writes and reads. Otherwise there is nothing to copy.
 *     asynchronous     the progress callback is called once per run; otherwise before each step.
 *     captures         a run that comes again is replayed. A run is identified by a hash of all
 *                      arguments of its steps (plan->key): shapes and attributes are part of them.
 *                      A key seen for the first time runs uncaptured. The second time the run is
 *                      captured as a graph. After that it is replayed as one launch. A scalar
 *                      that changes at every step is therefore an input in the plan's memory, not
 *                      an attribute: dropout's seeds, the loss's denominator, the loss scale
 *                      (dloss). An attribute that changed at every step would prevent replay. */
#include <math.h>

#include "base/file/file.h"
#include "base/hash.h"
#include "graph/plan.h"
#include "ops/elementwise/offload_copy.h"
#include "device/device_memory.h"

/* ---- memory ---- */

static void *address(void *user, nbl__value value)
{
    return nbl__plan_address(user, value);
}

/* Bytes from the start of the memory of a value's storage to the value: not 0 for views of columns. */
static size_t bytes_into_storage(const nbl__plan *plan, nbl__value value)
{
    const nbl__value_info *info = &plan->graph->values[value];
    return info->offset ? (size_t)info->offset * nbl__size_of(info->tensor.dtype) : 0;
}

void *nbl__plan_address(const nbl__plan *plan, nbl__value value)
{
    /* A view has no offset of its own in the plan. */
    nbl__value storage = nbl__graph_storage(plan->graph, value);
    return plan->memory[nbl__plan_class(&plan->graph->values[storage])] + plan->offset[storage] +
           bytes_into_storage(plan, value);
}

void *nbl__plan_data(const nbl__plan *plan, nbl__value value)
{
    nbl__value storage = nbl__graph_storage(plan->graph, value);
    bool mirrored = plan->mirror && nbl__plan_class(&plan->graph->values[storage]) == NBL_MEMORY_INPUTS;
    return mirrored ? plan->mirror + plan->offset[storage] + bytes_into_storage(plan, value)
                    : nbl__plan_address(plan, value);
}

/* Allocates pinned host memory for offloaded values and writes its address into the offload
 * steps. */
static nbl_status bind_host(nbl__plan *plan, const nbl__device *device)
{
    if (plan->host_bytes == 0) return NBL_OK;
    NBL_TRY(device->offload_open(plan->ctx));
    plan->host = device->alloc_host(plan->ctx, plan->host_bytes);
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
    const nbl__device *device = nbl__device_of(plan->ctx);
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
    if (device->separate_memory && plan->borrowed[NBL_MEMORY_INPUTS]) {
        plan->mirror = host->mirror;
    } else if (device->separate_memory) {
        plan->mirror = nbl__memory_alloc_host(plan->ctx, plan->bytes[NBL_MEMORY_INPUTS]);
        if (plan->mirror == NULL) return NBL_ERROR_MEMORY;
    }
    /* All addresses are known now: write them into the arguments of all steps. */
    NBL_TRY(bind_host(plan, device));
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
    const nbl__device *device = nbl__device_of(plan->ctx);
    /* Captured graphs refer to the memory that is freed below. */
    for (int i = 0; i < NBL_PLAN_CAPTURED_GRAPHS; i++)
        if (plan->captured_graphs[i].graph) device->graph_free(plan->ctx, plan->captured_graphs[i].graph);
    if (plan->mirror && !plan->borrowed[NBL_MEMORY_INPUTS])
        device->free_host(plan->ctx, plan->mirror, plan->bytes[NBL_MEMORY_INPUTS]);
    device->free_host(plan->ctx, plan->host, plan->host_bytes);
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
                                           step->saved_bytes > 0 ? run + step->saved_offset : NULL);
    return status == NBL_OK ? NBL_OK : nbl__hint(plan->ctx, status, "in %s", nbl__show_node(step->node).text);
}

/* Calls the progress callback, which may cancel. */
static nbl_status poll(const nbl__plan *plan)
{
    return nbl__progress_poll(plan->ctx, "computing");
}

static nbl_status run_steps(nbl__plan *plan, int count)
{
    bool polls = !nbl__device_of(plan->ctx)->asynchronous;
    for (int i = 0; i < count; i++) {
        if (polls) NBL_TRY(poll(plan));
        NBL_TRY(nbl__plan_run_step(plan, &plan->steps[i]));
    }
    return NBL_OK;
}

/* Copies bytes [begin, end) of the inputs class: to the device for inputs, to the host for
 * results. */
static nbl_status move_span(const nbl__plan *plan, nbl__kind kind, size_t begin, size_t end)
{
    const nbl__device *device = nbl__device_of(plan->ctx);
    uint8_t *memory = plan->memory[NBL_MEMORY_INPUTS] + begin, *host = plan->mirror + begin;
    if (begin == end) return NBL_OK;
    return kind == NBL_KIND_INPUT ? device->write_async(plan->ctx, memory, host, end - begin)
                                  : device->read_async(plan->ctx, host, memory, end - begin);
}

/* Copies all inputs to the device, or all results to the host, at their current sizes. Values
 * separated by nothing but padding (offsets are multiples of 64) go in one copy: a copy of a few
 * bytes takes as long as one of a page. */
static nbl_status move_ends(const nbl__plan *plan, nbl__kind kind)
{
    enum { PADDING = 63 };
    size_t begin = 0, end = 0;
    if (plan->mirror == NULL) return NBL_OK;
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
            NBL_TRY(move_span(plan, kind, begin, end));
            begin = at;
        }
        end = at + (size_t)bytes;
    }
    return move_span(plan, kind, begin, end);
}

/* A run of the first `count` steps; `ends`: including the copies of inputs and results. */
typedef struct part {
    int count;
    bool ends;
} part;

uint64_t nbl__plan_key(const nbl__plan *plan, int count, bool ends)
{
    uint64_t key = nbl__hash(ends, &count, sizeof count);
    for (int i = 0; i < count; i++)
        key = nbl__hash(key, plan->steps[i].arguments, plan->steps[i].node->family->size);
    return key ? key : 1;
}

/* Calls, in order, all that a run consists of. `profiled`: with timers between the steps. */
static nbl_status enqueue(nbl__plan *plan, part p, bool profiled)
{
    if (p.ends) NBL_TRY(move_ends(plan, NBL_KIND_INPUT));
    NBL_TRY(profiled ? nbl__plan_profile(plan, p.count) : run_steps(plan, p.count));
    return p.ends ? move_ends(plan, NBL_KIND_RESULT) : NBL_OK;
}

/* Captures the run as a graph. Capturing enqueues nothing. */
static nbl_status record(nbl__plan *plan, const nbl__device *device, part p, void **graph)
{
    NBL_TRY(device->capture_begin(plan->ctx));
    nbl_status status = enqueue(plan, p, false);
    nbl_status ended = device->capture_end(plan->ctx, status == NBL_OK, graph);
    return status != NBL_OK ? status : ended;
}

void nbl__plan_touch(nbl__plan *plan)
{
    plan->key = 0;
}

/* Enqueues a run: replays its captured graph if there is one, else captures or enqueues it. */
static nbl_status launch(nbl__plan *plan, part p)
{
    const nbl__device *device = nbl__device_of(plan->ctx);
    if (!device->captures) return enqueue(plan, p, false);
    /* Hashing takes a while in large plans, so the key is cached until something changes. */
    if (plan->key == 0 || plan->key_count != p.count || plan->key_ends != p.ends)
        plan->key = nbl__plan_key(plan, p.count, p.ends);
    plan->key_count = p.count;
    plan->key_ends = p.ends;
    uint64_t key = plan->key;
    nbl__captured_graph *oldest = &plan->captured_graphs[0];
    /* profile the second run: the first one is slower */
    if (++plan->runs == 2 && device->profiles) return enqueue(plan, p, true);
    for (int i = 0; i < NBL_PLAN_CAPTURED_GRAPHS; i++) {
        nbl__captured_graph *it = &plan->captured_graphs[i];
        if (it->key != key) {
            if (it->used < oldest->used) oldest = it;
            continue;
        }
        it->used = plan->runs;
        if (it->graph == NULL) NBL_TRY(record(plan, device, p, &it->graph));
        return device->replay(plan->ctx, it->graph);
    }
    /* An unknown key replaces the entry that was used longest ago, and runs uncaptured this
     * time. */
    device->graph_free(plan->ctx, oldest->graph);
    *oldest = (nbl__captured_graph){.key = key, .used = plan->runs};
    return enqueue(plan, p, false);
}

static nbl_status run_some(nbl__plan *plan, int count)
{
    const nbl__device *device = nbl__device_of(plan->ctx);
    if (device->asynchronous) NBL_TRY(poll(plan));
    NBL_TRY(launch(plan, (part){count, true}));
    return device->wait(plan->ctx, "the step");
}

nbl_status nbl__plan_prepare(nbl__plan *plan)
{
    for (int i = 0; i < plan->prepare_count; i++) {
        NBL_TRY(poll(plan));
        NBL_TRY(nbl__plan_run_step(plan, &plan->prepare[i]));
    }
    return NBL_OK;
}

/* Weights are mapped files. If one has changed during the run, the result is wrong, and this
 * error replaces every other one. */
static nbl_status check_files(nbl__plan *plan, nbl_status status)
{
    NBL_TRY(nbl__files_check(plan->ctx));
    return status;
}

nbl_status nbl__plan_run(nbl__plan *plan)
{
    return check_files(plan, run_some(plan, plan->step_count));
}

static nbl_status enqueue_run(nbl__plan *plan)
{
    const nbl__device *device = nbl__device_of(plan->ctx);
    int64_t copied;
    if (device->asynchronous) NBL_TRY(poll(plan));
    /* The inputs are copied outside of the captured graph, so that an event can follow the
     * copies. */
    NBL_TRY(move_ends(plan, NBL_KIND_INPUT));
    NBL_TRY(device->event_record(plan->ctx, &copied));
    NBL_TRY(launch(plan, (part){plan->step_count, false}));
    return device->event_wait(plan->ctx, copied, "the inputs");
}

nbl_status nbl__plan_enqueue(nbl__plan *plan)
{
    return check_files(plan, enqueue_run(plan));
}

/* Exchanges the attributes of the first `count` steps for those of a run without backward, or back. */
static void exchange_attrs(nbl__plan *plan, int count)
{
    for (int i = 0; i < count; i++) {
        nbl__planned_step *step = &plan->steps[i];
        float *dropout = nbl__step_attr(step, "dropout");
        bool *grad_in_forward = nbl__step_attr(step, "early");
        nbl__forward_attrs other = step->other;
        if (dropout) step->other.dropout = *dropout, *dropout = other.dropout;
        if (grad_in_forward)
            step->other.grad_in_forward = *grad_in_forward, *grad_in_forward = other.grad_in_forward;
    }
    nbl__plan_touch(plan);
}

nbl_status nbl__plan_run_forward(nbl__plan *plan)
{
    int count = 0;
    /* Forward steps come first. */
    while (count < plan->step_count && !plan->steps[count].backward) count++;
    exchange_attrs(plan, count);
    nbl_status status = run_some(plan, count);
    exchange_attrs(plan, count);
    return check_files(plan, status);
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
        NBL_TRY(nbl__memory_map_host(plan->ctx, t.data, bytes, true, &t.data));
        *finite = all_finite(nbl__isa(plan->ctx), &t);
    }
    return NBL_OK;
}

nbl_status nbl__plan_find_non_finite(nbl__plan *plan, const nbl__node **node)
{
    bool finite = true;
    *node = NULL;
    NBL_TRY(move_ends(plan, NBL_KIND_INPUT));
    for (int i = 0; i < plan->step_count && !plan->steps[i].backward; i++) {
        NBL_TRY(nbl__plan_run_step(plan, &plan->steps[i]));
        NBL_TRY(check_step(plan, &plan->steps[i], &finite));
        if (finite) continue;
        *node = plan->steps[i].node;
        return NBL_OK;
    }
    return NBL_OK;
}
