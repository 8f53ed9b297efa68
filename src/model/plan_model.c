/* plan_model.c - plans a whole run before anything is allocated: bytes per arena, recompute level,
 * and the longest sequence that fits a budget.
 *
 * A run is one of two things. Training is one step over packed tokens. Generation is a prefill plus
 * decode steps in the same memory, with a KV cache for the same number of tokens.
 *
 *     total = weights + optimizer moments + beside + arenas of the plan
 *     beside: the device's context and kernels; in generation also sampling's host memory
 *
 * On a device a training plan is found in this order (plan_best):
 *     1. plan at the lowest recompute level that was asked for
 *     2. too large: recompute more; before whole layers are recomputed, move the embedding to host memory
 *     3. memory left: keep weights dequantized; if all are, recompute less
 * On the CPU only the recomputation of steps 1 and 2 applies. Steps 2 and 3 change the entries of
 * the model (on_host, dequantized), so each search begins with reset(). */
#include "model/plan_list.h"
#include "device/device_memory.h"

int nbl__moment_bits(const nbl__value_info *info, int bits)
{
    enum { MIN = 4096 };
    bool large = nbl__tensor_elements(&info->tensor) >= MIN;
    return large && info->role != NBL_WEIGHT_EMBEDDING ? bits : 32;
}

uint64_t nbl__moment_bytes(const nbl__graph *g, int bits)
{
    uint64_t sum = 0;
    for (nbl__value v = 1; v <= g->value_count && bits; v++) {
        if (!g->values[v].trained) continue;
        uint64_t n = (uint64_t)nbl__tensor_elements(&g->values[v].tensor);
        bool coded = nbl__moment_bits(&g->values[v], bits) == 8;
        uint64_t codes = coded ? n : 4 * n, scales = coded ? (n + 255) / 256 * 4 : 0;
        sum += 2 * ((codes + 63) / 64 * 64 + (scales + 63) / 64 * 64);
    }
    return sum;
}

uint64_t nbl__model_bytes(const nbl_model *m, bool train)
{
    uint64_t bytes = 0;
    for (int64_t i = 0; i < m->weight_count && !m->train_all; i++) {
        const struct nbl__weight_entry *entry = &m->weights[i];
        if (entry->on_host) continue;
        bytes += nbl__weight_bytes(train && entry->dequantized ? &entry->as_used : &entry->weight);
    }
    return bytes;
}

/* The planned sessions of a run, and the bytes outside their arenas. */
typedef struct planned {
    nbl__session *step,
        decode; /* step: training or prefill. decode: generation only; else its model is NULL */
    uint64_t weights, optimizer, beside; /* bytes; beside: see the head of this file */
} planned;

static void free_planned(planned *p)
{
    if (p->step->model) nbl__session_close(p->step);
    if (p->decode.model) nbl__session_close(&p->decode);
}

/* Bytes that recomputation does not change. */
static uint64_t fixed_of(const planned *p)
{
    return p->weights + p->optimizer + p->beside;
}

static uint64_t total_of(const planned *p)
{
    return fixed_of(p) + nbl__plan_total(&p->step->plan);
}

static bool trains_on_device(const nbl_model *m, const nbl__plan_request *r)
{
    return r->train && nbl__device_of(m->ctx)->separate_memory;
}

/* Plans the step; for generation first the decode session, whose size the prefill's memory must
 * cover. */
static nbl_status plan_sessions(nbl_model *m, const nbl__plan_request *r, nbl__plan_options how, planned *p)
{
    nbl__session_options o = {.mode = r->train ? NBL_MODE_TRAIN : NBL_MODE_PREFILL,
                              .tokens = r->tokens,
                              .sequences = r->sequences,
                              .cache_size = r->train ? 0 : nbl__ceil_div(r->tokens, r->sequences),
                              .kv_dtype = m->dtype,
                              .train = r->train,
                              .drops = r->train,
                              .plan = how};
    if (!r->train) {
        NBL_TRY(nbl__decode_plan(m, &o, &p->decode));
        o.plan.with = &p->decode.plan;
        p->beside += nbl__generation_bytes(m, r->sequences);
    }
    NBL_TRY(nbl__session_plan(m, &o, p->step));
    p->optimizer = r->train ? nbl__moment_bytes(&p->step->graph, r->optimizer_bits) : 0;
    return NBL_OK;
}

/* Plans a run with the model's entries as they are now. Free `p` with free_planned, also after an
 * error. Training on a device offloads values to the host, unless they would take over half of its
 * free memory. */
static nbl_status plan_step(nbl_model *m, const nbl__plan_request *r, nbl__plan_options how,
                            nbl__session *session, planned *p)
{
    memset(session, 0, sizeof *session);
    *p = (planned){.step = session,
                   .weights = nbl__model_bytes(m, r->train),
                   .beside = nbl__memory_overhead_bytes(m->ctx)};
    how.offload = trains_on_device(m, r);
    NBL_TRY(plan_sessions(m, r, how, p));
    uint64_t host = nbl__memory_available();
    if (host == 0 || p->step->plan.host_bytes <= host / 2) return NBL_OK;
    nbl__session_close(session); /* too little host memory to offload: plan without it */
    how.offload = false;
    return plan_sessions(m, r, how, p);
}

/* The smallest possible total: embedding in host memory, as much recomputation as exists. */
static nbl_status smallest_total(nbl_model *m, const nbl__plan_request *r, uint64_t *total)
{
    nbl__session session;
    planned p;
    bool moved = r->train && nbl__embedding_on_host(m, true);
    nbl_status status = plan_step(m, r, (nbl__plan_options){.budget = 1, .or_smallest = true}, &session, &p);
    if (status == NBL_OK) *total = total_of(&p);
    free_planned(&p);
    if (moved) nbl__embedding_on_host(m, false);
    return status;
}

/* *yes: some plan stays within r->memory. The plan that recomputes every layer is tried first, as
 * it is nearly always small enough if any is. Only if it is not, all plans are tried for the
 * smallest. */
static nbl_status fits(nbl_model *m, const nbl__plan_request *r, bool *yes)
{
    nbl__session session;
    planned p;
    bool moved = r->train && nbl__embedding_on_host(m, true);
    nbl_status status = plan_step(m, r, (nbl__plan_options){.min = NBL_RECOMPUTE_LAYERS}, &session, &p);
    uint64_t total = status == NBL_OK ? total_of(&p) : 0;
    free_planned(&p);
    if (moved) nbl__embedding_on_host(m, false);
    if (status == NBL_OK && total > r->memory && r->train) status = smallest_total(m, r, &total);
    *yes = total <= r->memory;
    return status;
}

/* Bisects for the longest length of r.sequences equal sequences whose plan stays within r.memory;
 * 0: not even one token does. The first probe is 64 tokens, as planning huge sequences is slow. */
static nbl_status longest_within(nbl_model *m, nbl__plan_request r, int64_t *longest)
{
    int64_t max = nbl__min_i64(m->decoder.positions, INT32_MAX / 2 / r.sequences), fails = max + 1;
    *longest = 0;
    while (fails - *longest > 1) {
        int64_t middle = *longest == 0 && fails > 64 ? 64 : *longest + (fails - *longest) / 2;
        bool yes;
        r.tokens = middle * r.sequences;
        NBL_TRY(fits(m, &r, &yes));
        if (yes) *longest = middle;
        else fails = middle;
    }
    return NBL_OK;
}

/* Fills the public report from a plan. */
static nbl_status fill_report(const nbl_model *m, const planned *p, nbl_model_plan *report)
{
    static const nbl_plan_recompute kinds[] = {[NBL_RECOMPUTE_NONE] = NBL_PLAN_RECOMPUTE_NONE,
                                               NBL_PLAN_RECOMPUTE_CHEAP,
                                               NBL_PLAN_RECOMPUTE_CHEAP,
                                               NBL_PLAN_RECOMPUTE_CHEAP,
                                               NBL_PLAN_RECOMPUTE_LAYERS,
                                               NBL_PLAN_RECOMPUTE_LAYERS};
    const nbl__plan *step = &p->step->plan;
    const size_t *bytes = step->bytes;
    nbl_model_plan_summary *s = &report->summary;
    s->arenas = (nbl_plan_arenas){
        .weights = p->weights,
        .adapters = bytes[NBL_MEMORY_PARAMETERS] + bytes[NBL_MEMORY_GRADIENTS],
        .optimizer = p->optimizer,
        .saved = step->saved_bytes,
        .scratch = bytes[NBL_MEMORY_RUN] - step->saved_bytes + bytes[NBL_MEMORY_INPUTS] + p->beside,
        .kv = bytes[NBL_MEMORY_STATES],
        .device = nbl__memory_overhead_bytes(m->ctx),
    };
    s->arenas.scratch -= s->arenas.device;
    s->host_bytes = step->host_bytes;
    for (int64_t i = 0; i < m->weight_count; i++) {
        const struct nbl__weight_entry *entry = &m->weights[i];
        if (entry->on_host) s->host_bytes += nbl__weight_bytes(&entry->weight);
        if (!entry->dequantized) continue;
        s->dequantized_weights++;
        s->dequantized_bytes += nbl__weight_bytes(&entry->as_used);
    }
    s->total_bytes = total_of(p);
    s->recompute = kinds[step->recompute];
    s->recomputed_layers = step->recomputed_layers;
    s->layers = m->decoder.layers;
    NBL_TRY(nbl__list_steps(report, step, false));
    if (p->decode.model) NBL_TRY(nbl__list_steps(report, &p->decode.plan, true));
    NBL_TRY(nbl__list_values(report, step));
    NBL_TRY(nbl__list_casts(report, m, step));
    s->op_count = report->ops.count;
    s->value_count = report->values.count;
    s->cast_count = report->casts.count;
    return NBL_OK;
}

static nbl_status too_little(nbl_model *m, const nbl__plan_request *r, uint64_t min)
{
    nbl_status status = nbl__fail(m->ctx, NBL_ERROR_MEMORY,
                                  "%s: %" PRIu64 " bytes are too little for %" PRId64 " tokens in %" PRId64
                                  " sequences: the smallest budget is %" PRIu64 " bytes",
                                  m->path, r->memory, r->tokens, r->sequences, min);
    return nbl__hint(m->ctx, status, "allow that much memory, or compute fewer tokens at once%s",
                     r->train ? ": a smaller sequence_len or micro_batch_size" : "");
}

/* Step 2: replans with more recomputation if the total exceeds the budget. The embedding moves to
 * the host before whole layers are recomputed. *how: the options of the last plan. NBL_ERROR_MEMORY
 * if even the smallest plan exceeds r->memory; exceeding r->available is allowed. */
static nbl_status shrink(nbl_model *m, const nbl__plan_request *r, nbl__plan_options *how, planned *p)
{
    uint64_t budget = r->memory ? r->memory : r->available;
    if (budget == 0 || total_of(p) <= budget) return NBL_OK;
    *how = (nbl__plan_options){.min = r->min > NBL_RECOMPUTE_NORMS ? r->min : NBL_RECOMPUTE_NORMS,
                               .or_smallest = true};
    do {
        uint64_t fixed = nbl__model_bytes(m, r->train) + p->optimizer + p->beside;
        how->budget = budget > fixed ? (size_t)(budget - fixed) : 1;
        free_planned(p);
        NBL_TRY(plan_step(m, r, *how, p->step, p));
    } while ((total_of(p) > budget || p->step->plan.recompute >= NBL_RECOMPUTE_LAYERS) && r->train &&
             nbl__embedding_on_host(m, true));
    return r->memory && total_of(p) > r->memory ? too_little(m, r, total_of(p)) : NBL_OK;
}

/* Step 3: uses memory that the budget leaves on a device. Weights are kept dequantized as far as it
 * lasts; if it lasts for all of them, less is recomputed. (Per byte, a dequantized weight saves
 * more time than a saved gated activation.) A dequantized weight changes scratch and addresses, so
 * the new total is known only after planning again: up to 4 tries, with less room each time and
 * none at the end. */
static nbl_status use_rest(nbl_model *m, const nbl__plan_request *r, nbl__plan_options how, planned *p)
{
    uint64_t room = r->memory - total_of(p);
    bool more = true;
    for (int tries = 0; tries < 4; tries++) {
        if (nbl__dequantized_choose(m, room, &more) == 0 && tries == 0) break;
        free_planned(p);
        NBL_TRY(plan_step(m, r, how, p->step, p));
        if (total_of(p) <= r->memory) break;
        uint64_t excess = total_of(p) - r->memory;
        room = tries < 2 && excess < room ? room - excess : 0;
    }
    if (more || p->step->plan.recompute <= r->min) return NBL_OK;
    how = (nbl__plan_options){.min = r->min, .budget = (size_t)(r->memory - fixed_of(p))};
    free_planned(p);
    return plan_step(m, r, how, p->step, p);
}

/* Undoes what planning changed in the model: no weight dequantized, the embedding on the device. */
static void reset(nbl_model *m)
{
    bool more;
    nbl__dequantized_choose(m, 0, &more);
    nbl__embedding_on_host(m, false);
}

/* Steps 1 to 3: the plan to run with. Free `p` also after an error. */
static nbl_status plan_best(nbl_model *m, const nbl__plan_request *r, nbl__session *session, planned *p)
{
    nbl__plan_options how = {.min = r->min, .thrifty = trains_on_device(m, r)};
    reset(m);
    if (r->train && r->min >= NBL_RECOMPUTE_LAYERS) nbl__embedding_on_host(m, true);
    nbl_status status = plan_step(m, r, how, session, p);
    if (status == NBL_OK) status = shrink(m, r, &how, p);
    if (status == NBL_OK && trains_on_device(m, r) && r->memory) status = use_rest(m, r, how, p);
    return status;
}

nbl_status nbl__plan_training(nbl_model *m, const nbl__plan_request *r, nbl__session *session,
                              uint64_t *total)
{
    planned p;
    nbl_status status = plan_best(m, r, session, &p);
    if (status == NBL_OK) *total = total_of(&p);
    else free_planned(&p);
    return status;
}

/* Reports the best plan and its smallest possible total. NBL_ERROR_MEMORY names that total if the
 * budget is below it. The model's entries are as before afterwards. */
static nbl_status plan_within(nbl_model *m, const nbl__plan_request *r, nbl_model_plan *report)
{
    uint64_t *smallest = &report->summary.smallest_memory;
    reset(m);
    NBL_TRY(smallest_total(m, r, smallest));
    if (r->memory && r->memory < *smallest) return too_little(m, r, *smallest);
    nbl__session session;
    planned p;
    nbl_status status = plan_best(m, r, &session, &p);
    if (status == NBL_OK) status = fill_report(m, &p, report);
    free_planned(&p);
    reset(m);
    if (status != NBL_OK) return status;
    report->summary.longest_sequence = m->decoder.positions;
    return r->memory ? longest_within(m, *r, &report->summary.longest_sequence) : NBL_OK;
}

nbl_status nbl__model_plan(nbl_model *m, const nbl__plan_request *r, nbl_model_plan **plan)
{
    *plan = NULL;
    NBL_CHECK(m->ctx, r->sequences >= 1 && r->tokens >= r->sequences && r->tokens <= INT32_MAX / 2,
              NBL_ERROR_ARGUMENT, "plan: %" PRId64 " tokens in %" PRId64 " sequences", r->tokens,
              r->sequences);
    nbl_model_plan *report;
    NBL_TRY(NBL_ALLOC(m->ctx, report, 1));
    report->ctx = m->ctx;
    report->names = nbl__arena_make(m->ctx);
    nbl_status status = plan_within(m, r, report);
    if (status == NBL_OK) *plan = report;
    else nbl_model_plan_free(report);
    return status;
}

nbl_status nbl_model_make_plan(nbl_model *m, int64_t tokens, int64_t batch, uint64_t memory,
                               nbl_model_plan **plan)
{
    NBL_CHECK(m->ctx, plan != NULL, NBL_ERROR_ARGUMENT, "plan: plan is NULL");
    *plan = NULL;
    NBL_CHECK(m->ctx, tokens >= 1 && batch >= 1 && tokens <= INT32_MAX / 2 / batch, NBL_ERROR_ARGUMENT,
              "plan: %" PRId64 " tokens in %" PRId64 " sequences", tokens, batch);
    bool train = m->peft != NULL;
    return nbl__model_plan(m,
                           &(nbl__plan_request){.train = train,
                                                .tokens = tokens * batch,
                                                .sequences = batch,
                                                .optimizer_bits = train ? 32 : 0,
                                                .memory = memory},
                           plan);
}
