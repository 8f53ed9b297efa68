/* generate.c - generates tokens: a prefill of all prompts, then steps of one token per sequence.
 *
 *     prompts, packed ─▶ prefill ─▶ logits ─▶ sample ─▶ ids ─▶ decode ─▶ logits ─▶ sample ─▶ ...
 *                           └──────────── KV cache ────────────┘
 *
 * Two sessions share one memory and run alternately. The KV cache of sequence b has the rows [b ·
 * cache_size, (b + 1) · cache_size). A sequence that has ended keeps its row in the batch: it is
 * computed along, and its result is ignored. No step allocates.
 *
 * Where the rope depends on a sequence's length (longrope, dynamic), growing by a token can rotate all
 * keys anew (nbl__decoder_restarts). Such a step of a sequence is a prefill of its prompt and its new
 * tokens, which overwrites its rows of the cache. So text is as if each token were computed from
 * scratch.
 *
 * Sampling applies, in Hugging Face's order: repetition penalty, temperature, top-k, top-p, min-p.
 * The random number of a token is a function of seed, index of the sequence and number of new
 * tokens, so it does not depend on the other sequences of the batch. */
#include <math.h>

#include "base/philox.h"
#include "model/language_model.h"
#include "device/device_memory.h"

/* A token and its logit, for sorting. */
typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

/* The state of one call of nbl_model_generate. */
typedef struct writer {
    nbl_model *model;
    const nbl_generate_options *how;
    const nbl_ids *prompts;
    int64_t count;
    nbl_generated *results;
    int64_t *length; /* tokens in the cache, per sequence */
    int64_t *active; /* indices of the sequences that have not ended, ascending */
    int64_t active_count;
    bool *decodes;     /* [count]: the sequence takes part in the step of the batch */
    float *logits;     /* [vocabulary], of one sequence at a time */
    candidate *sorted; /* [vocabulary] */
} writer;

/* The order of candidates: higher logit first, then lower id. */
static bool comes_after(const candidate *x, const candidate *y)
{
    return x->logit != y->logit ? x->logit < y->logit : x->id > y->id;
}

/* Heapsort's sift-down from `at`. The heap's top is the candidate that comes last. */
static void sift(candidate *heap, int64_t at, int64_t n)
{
    candidate moved = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && comes_after(&heap[child + 1], &heap[child])) child++;
        if (!comes_after(&heap[child], &moved)) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

/* True if the candidates are in order. For assertions. */
static bool are_sorted(const candidate *list, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        if (comes_after(&list[i - 1], &list[i])) return false;
    return true;
}

/* Heapsort, highest logit first, O(n log n). qsort may allocate, which a step must not. */
static void sort_candidates(candidate *list, int64_t n)
{
    for (int64_t i = n / 2; i-- > 0;) sift(list, i, n);
    for (int64_t end = n - 1; end > 0; end--) {
        candidate last = list[0];
        list[0] = list[end];
        list[end] = last;
        sift(list, 0, end);
    }
    nbl__assert_slow(are_sorted(list, n));
}

/* Repetition penalty of sequence s: each id of the prompt or the result is penalized once. */
static void penalize(const writer *w, int64_t s, float *logits)
{
    float penalty = w->how->repetition_penalty;
    if (!(penalty > 0) || penalty == 1) return;
    const nbl_ids *lists[2] = {&w->prompts[s], &w->results[s].ids};
    /* sorted[v].id counts how often id v was seen; only the first time changes the logit. */
    for (int64_t v = 0; v < w->model->decoder.vocabulary; v++) w->sorted[v].id = 0;
    for (int l = 0; l < 2; l++)
        for (int64_t t = 0; t < lists[l]->count; t++) {
            int32_t id = lists[l]->ids[t];
            assert(id >= 0 && id < w->model->decoder.vocabulary);
            if (w->sorted[id].id++) continue;
            logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
        }
}

/* Argmax; of equal logits the lowest id. Two passes (maximum, then search) so that compilers
 * vectorize. */
static int32_t best(const float *logits, int64_t n)
{
    float highest[16];
    int64_t v = 0;
    for (int i = 0; i < 16; i++) highest[i] = -INFINITY;
    for (; v + 16 <= n; v += 16)
        for (int i = 0; i < 16; i++) highest[i] = logits[v + i] > highest[i] ? logits[v + i] : highest[i];
    for (; v < n; v++) highest[0] = logits[v] > highest[0] ? logits[v] : highest[0];
    for (int i = 1; i < 16; i++) highest[0] = highest[i] > highest[0] ? highest[i] : highest[0];
    for (v = 0; v < n && logits[v] != highest[0];) v++;
    return v < n ? (int32_t)v : 0;
}

/* Index of the first logit that is NaN or infinite; n: none. 0 · x is 0 for finite x and NaN
 * otherwise, so the sums stay 0 exactly if all logits are finite. */
static int64_t first_non_finite(const float *logits, int64_t n)
{
    float zeros[16] = {0};
    int64_t v = 0;
    for (; v + 16 <= n; v += 16)
        for (int i = 0; i < 16; i++) zeros[i] += 0 * logits[v + i];
    bool finite = true;
    for (int i = 0; i < 16; i++) finite &= zeros[i] == 0;
    for (v = finite ? v : 0; v < n; v++)
        if (!isfinite(logits[v])) return v;
    return n;
}

/* How many of the n sorted candidates remain after top-k, top-p and min-p; at least 1. */
static int64_t keep(const writer *w, int64_t n)
{
    const nbl_generate_options *how = w->how;
    assert(n >= 1 && isfinite(w->sorted[0].logit));
    /* Probabilities are relative to the highest logit, which is the first. */
    if (how->top_k > 0 && how->top_k < n) n = how->top_k;
    double total = 0, sum = 0, first = (double)w->sorted[0].logit;
    for (int64_t i = 0; i < n; i++) total += exp((double)w->sorted[i].logit - first);
    if (how->top_p > 0 && how->top_p < 1)
        for (int64_t i = 0; i < n; i++) {
            sum += exp((double)w->sorted[i].logit - first) / total;
            if (sum >= (double)how->top_p) n = i + 1;
        }
    if (how->min_p > 0)
        while (n > 1 && exp((double)w->sorted[n - 1].logit - first) < (double)how->min_p) n--;
    return n;
}

/* The next token of sequence s: argmax at temperature 0, else a draw from the softmax of the
 * remaining candidates by inverting its cumulative sum. Changes `logits`. */
static int32_t sample(const writer *w, int64_t s, float *logits)
{
    int64_t n = w->model->decoder.vocabulary;
    penalize(w, s, logits);
    if (!(w->how->temperature > 0)) return best(logits, n);
    for (int64_t v = 0; v < n; v++) w->sorted[v] = (candidate){logits[v] / w->how->temperature, (int32_t)v};
    sort_candidates(w->sorted, n);
    if (!isfinite(w->sorted[0].logit)) return best(logits, n); /* logit / temperature overflowed */
    n = keep(w, n);
    assert(n >= 1 && n <= w->model->decoder.vocabulary);
    double total = 0, first = (double)w->sorted[0].logit;
    for (int64_t i = 0; i < n; i++) total += exp((double)w->sorted[i].logit - first);
    /* Draw u in [0, total) and find the candidate at which the running sum exceeds it. */
    uint32_t counter[4] = {(uint32_t)w->results[s].ids.count, (uint32_t)s, 0, 0}, words[4];
    uint32_t key[2] = {(uint32_t)w->how->seed, (uint32_t)(w->how->seed >> 32)};
    nbl__philox(counter, key, words);
    double left = (double)nbl__uniform(words[0]) * total;
    for (int64_t i = 0; i < n; i++) {
        left -= exp((double)w->sorted[i].logit - first);
        if (left < 0) return w->sorted[i].id;
    }
    return w->sorted[n - 1].id;
}

/* ---- the end of a sequence ---- */

/* True if the token ends generation; see ends.c for the usual list. */
static bool is_end(const writer *w, int32_t id)
{
    for (int64_t i = 0; i < w->how->end_count; i++)
        if (w->how->ends[i] == id) return true;
    return false;
}

/* Fails with the position of a logit that is not finite. It would make every later token
 * meaningless. */
static nbl_status refuse_non_finite(const writer *w, int64_t sequence, int64_t non_finite, float logit)
{
    return nbl__fail(w->model->ctx, NBL_ERROR_FORMAT,
                     "%s: sequence %" PRId64 ", new token %" PRId64 ": the logit of token %" PRId64
                     " is %g; a weight is not finite, "
                     "or %s is too narrow",
                     w->model->path, sequence, w->results[sequence].ids.count, non_finite, (double)logit,
                     nbl_dtype_name(w->model->dtype));
}

/* True if the device computes the argmax and the logits stay there: greedy, without repetition
 * penalty. A cap of the logits (Gemma) may round different logits to equal ones, which changes the
 * argmax: the host does that case. */
static bool lets_device_pick(const writer *w)
{
    bool penalized = w->how->repetition_penalty > 0 && w->how->repetition_penalty != 1;
    return nbl__device_of(w->model->ctx)->separate_memory && !(w->how->temperature > 0) && !penalized &&
           !(w->model->decoder.final_cap > 0);
}

/* The argmax of a row of results that the device has computed. A non-finite logit is an error; its
 * value is fetched for the message. */
static nbl_status greedy_id(const writer *w, const nbl__session *s, int64_t row, int64_t sequence,
                            int32_t *id)
{
    const int32_t *best = nbl__plan_data(&s->plan, s->build.best),
                  *non_finite = nbl__plan_data(&s->plan, s->build.non_finite);
    *id = best[row];
    if (non_finite[row] < 0) return NBL_OK;
    int64_t index = row * w->model->decoder.vocabulary + non_finite[row];
    size_t size = nbl__size_of(w->model->dtype);
    void *logit;
    float value;
    NBL_TRY(nbl__memory_map_host(
        w->model->ctx, (uint8_t *)nbl__plan_address(&s->plan, s->build.logits) + (size_t)index * size, size,
        true, &logit));
    nbl__to_f32(nbl__isa(w->model->ctx), w->model->dtype, logit, &value, 1);
    return refuse_non_finite(w, sequence, non_finite[row], value);
}

/* Samples a token on the host, from a row of logits. */
static nbl_status sampled_id(const writer *w, const nbl__session *s, int64_t row, int64_t sequence,
                             int32_t *id)
{
    int64_t vocabulary = w->model->decoder.vocabulary;
    size_t bytes = (size_t)vocabulary * nbl__size_of(w->model->dtype);
    const uint8_t *from = (const uint8_t *)nbl__plan_data(&s->plan, s->build.logits) + (size_t)row * bytes;
    float cap = w->model->decoder.final_cap, *logits = w->logits;
    nbl__to_f32(nbl__isa(w->model->ctx), w->model->dtype, from, logits, vocabulary);
    int64_t non_finite = first_non_finite(logits, vocabulary);
    if (non_finite < vocabulary) return refuse_non_finite(w, sequence, non_finite, logits[non_finite]);
    for (int64_t v = 0; cap > 0 && v < vocabulary; v++) logits[v] = cap * tanhf(logits[v] / cap);
    *id = sample(w, sequence, logits);
    return NBL_OK;
}

static bool has_ended(const writer *w, int64_t sequence)
{
    const nbl_generated *r = &w->results[sequence];
    return r->stopped || r->ids.count == w->how->max_tokens;
}

/* Appends the next token to a sequence, from a row of the session's results. An end token and the
 * caller's callback stop the sequence; an end token is not appended. */
static nbl_status append(writer *w, nbl__session *s, int64_t row, int64_t sequence)
{
    nbl_generated *r = &w->results[sequence];
    int32_t id = 0;
    assert(!has_ended(w, sequence));
    NBL_TRY(s->build.argmax ? greedy_id(w, s, row, sequence, &id) : sampled_id(w, s, row, sequence, &id));
    r->stopped = is_end(w, id);
    if (r->stopped) return NBL_OK;
    r->ids.ids[r->ids.count++] = id;
    if (w->how->token) r->stopped = w->how->token(w->how->user, sequence, id);
    return NBL_OK;
}

static void drop_ended(writer *w)
{
    int64_t staying = 0;
    for (int64_t a = 0; a < w->active_count; a++)
        if (!has_ended(w, w->active[a])) w->active[staying++] = w->active[a];
    w->active_count = staying;
}

/* ---- steps ---- */

/* Runs the packed prompts, which fills the cache, and takes the first new token of each
 * sequence. */
static nbl_status prefill(writer *w, nbl__session *s)
{
    int64_t tokens = 0, at = 0;
    for (int64_t i = 0; i < w->count; i++) tokens += w->prompts[i].count;
    /* rows: the cache row of each token. last: the index of each prompt's last token, whose logits
     * count. Their sizes are set before nbl__session_load infers all shapes. */
    int32_t *rows = nbl__session_input(s, s->build.rows, tokens),
            *last = nbl__session_input(s, s->build.last, w->count);
    for (int64_t i = 0; i < w->count; i++) {
        assert(w->prompts[i].count <= s->build.cache_size);
        for (int64_t t = 0; t < w->prompts[i].count; t++) rows[at++] = (int32_t)(i * s->build.cache_size + t);
        last[i] = (int32_t)at - 1;
        w->length[i] = w->prompts[i].count;
        w->active[i] = i;
    }
    NBL_TRY(nbl__session_load(s, w->prompts, w->count, NULL));
    w->active_count = w->count;
    NBL_TRY(nbl__plan_run(&s->plan));
    for (int64_t i = 0; i < w->count; i++) NBL_TRY(append(w, s, i, i));
    drop_ended(w);
    return NBL_OK;
}

/* A prefill of one sequence and its new tokens, instead of a step: its keys rotate anew. */
static nbl_status restart(writer *w, nbl__session *s, int64_t sequence)
{
    const nbl_ids *prompt = &w->prompts[sequence], *made = &w->results[sequence].ids;
    int64_t n = prompt->count + made->count;
    int32_t *ids = nbl__session_input(s, s->build.ids, n),
            *positions = nbl__session_input(s, s->build.positions, n);
    int32_t *starts = nbl__session_input(s, s->build.cu_seqlens, 2),
            *rows = nbl__session_input(s, s->build.rows, n);
    assert(n == w->length[sequence] + 1 && n <= s->build.tokens && n <= s->build.cache_size);
    for (int64_t t = 0; t < n; t++) {
        ids[t] = t < prompt->count ? prompt->ids[t] : made->ids[t - prompt->count];
        positions[t] = (int32_t)t;
        rows[t] = (int32_t)(sequence * s->build.cache_size + t);
    }
    starts[0] = 0;
    starts[1] = (int32_t)n;
    *nbl__session_input(s, s->build.last, 1) = (int32_t)n - 1;
    w->length[sequence] = n;
    NBL_TRY(nbl__session_resize(s));
    NBL_TRY(nbl__plan_run(&s->plan));
    return append(w, s, 0, sequence);
}

/* Runs one step of the sequences that decode. Attention reads the cache of sequence b for row b of the
 * batch, so the batch keeps all rows. Any other sequence computes its last token again. */
static nbl_status decode(writer *w, nbl__session *s)
{
    int64_t n = w->count;
    int32_t *ids = nbl__session_input(s, s->build.ids, n),
            *positions = nbl__session_input(s, s->build.positions, n);
    int32_t *rows = nbl__session_input(s, s->build.rows, n),
            *lengths = nbl__session_input(s, s->build.lengths, n);
    for (int64_t i = 0; i < n; i++) {
        const nbl_ids *made = &w->results[i].ids;
        int64_t position = w->decodes[i] ? w->length[i]++ : w->length[i] - 1;
        assert(position >= 0 && position < s->build.cache_size);
        ids[i] = made->count ? made->ids[made->count - 1] : w->prompts[i].ids[w->prompts[i].count - 1];
        positions[i] = (int32_t)position;
        rows[i] = (int32_t)(i * s->build.cache_size + position);
        lengths[i] = (int32_t)position + 1;
    }
    /* All steps have the planned sizes, so shapes need not be inferred again. */
    NBL_TRY(nbl__plan_run(&s->plan));
    for (int64_t i = 0; i < n; i++)
        if (w->decodes[i]) NBL_TRY(append(w, s, i, i));
    return NBL_OK;
}

/* The next token of every active sequence. The results of a session do not outlive a run of the
 * other. */
static nbl_status step(writer *w, nbl__session *first, nbl__session *next)
{
    const nbl__decoder *d = &w->model->decoder;
    bool any = false;
    memset(w->decodes, 0, (size_t)w->count * sizeof *w->decodes);
    for (int64_t a = 0; a < w->active_count; a++) {
        int64_t sequence = w->active[a];
        w->decodes[sequence] = !nbl__decoder_restarts(d, w->length[sequence]);
        any |= w->decodes[sequence];
    }
    if (any) NBL_TRY(decode(w, next));
    for (int64_t a = 0; a < w->active_count; a++)
        if (!w->decodes[w->active[a]]) NBL_TRY(restart(w, first, w->active[a]));
    drop_ended(w);
    return NBL_OK;
}

int64_t nbl__prefill_tokens(const nbl_model *m, int64_t prompt, int64_t max_tokens)
{
    const nbl__decoder *d = &m->decoder;
    if (!nbl__rope_has_lengths(&d->rope) && !nbl__rope_has_lengths(&d->local_rope)) return prompt;
    /* The last new token is not computed with. */
    for (int64_t length = prompt + max_tokens - 1; length > prompt; length--)
        if (nbl__decoder_restarts(d, length - 1)) return length;
    return prompt;
}

/* Runs prefill and all steps. The sessions of prefill and step share one memory: the step is
 * planned first, so that prefill can be opened with memory that is large enough for both. */
static nbl_status write_all(writer *w, nbl__session *first, nbl__session *next)
{
    int64_t tokens = 0, longest = 0, restarted = 0;
    for (int64_t i = 0; i < w->count; i++) {
        tokens += w->prompts[i].count;
        longest = nbl__max_i64(longest, w->prompts[i].count);
        restarted = nbl__max_i64(restarted,
                                 nbl__prefill_tokens(w->model, w->prompts[i].count, w->how->max_tokens));
    }
    NBL_CHECK(w->model->ctx, w->count <= INT32_MAX / (longest + w->how->max_tokens), NBL_ERROR_ARGUMENT,
              "generate: %" PRId64 " sequences of up to %" PRId64 " tokens are too many at once", w->count,
              longest + w->how->max_tokens);
    nbl__session_options o = {.mode = NBL_MODE_PREFILL,
                              .tokens = nbl__max_i64(tokens, restarted),
                              .sequences = w->count,
                              .cache_size = longest + w->how->max_tokens,
                              .kv_dtype = w->model->dtype,
                              .argmax = lets_device_pick(w)};
    NBL_TRY(nbl__decode_plan(w->model, &o, next));
    o.plan.with = &next->plan;
    NBL_TRY(nbl__session_open(w->model, &o, first));
    NBL_TRY(prefill(w, first));
    if (w->active_count == 0) return NBL_OK;
    NBL_TRY(nbl__session_join(next, first));
    while (w->active_count > 0) NBL_TRY(step(w, first, next));
    return NBL_OK;
}

/* The step's session: one token per sequence, otherwise as the prefill's. */
nbl_status nbl__decode_plan(nbl_model *m, const nbl__session_options *prefill_options,
                            nbl__session *decode_session)
{
    nbl__session_options o = *prefill_options;
    o.mode = NBL_MODE_DECODE;
    o.tokens = o.sequences;
    return nbl__session_plan(m, &o, decode_session);
}

/* Bytes that nbl_model_generate allocates beside its sessions, for plans of memory. */
uint64_t nbl__generation_bytes(const nbl_model *m, int64_t count)
{
    uint64_t vocabulary = (uint64_t)m->decoder.vocabulary, sequences = (uint64_t)count;
    return vocabulary * (sizeof(float) + sizeof(candidate)) +
           sequences * (2 * sizeof(int64_t) + sizeof(bool));
}

nbl_status nbl_model_generate(nbl_model *m, const nbl_ids *prompts, int64_t count,
                              const nbl_generate_options *given, nbl_generated *results)
{
    NBL_CHECK(m->ctx, given && results, NBL_ERROR_ARGUMENT, "generate: NULL argument");
    nbl_generate_options options;
    NBL_TRY(NBL_OPTIONS_READ(m->ctx, nbl_generate_options, given, &options));
    NBL_CHECK(m->ctx, prompts && count >= 1, NBL_ERROR_FORMAT, "generate: no prompts");
    NBL_CHECK(m->ctx, options.max_tokens >= 1 && options.max_tokens <= 1 << 24, NBL_ERROR_ARGUMENT,
              "generate: max_tokens is %" PRId64, options.max_tokens);
    for (int64_t i = 0; i < count; i++) {
        NBL_CHECK(m->ctx, prompts[i].count >= 1, NBL_ERROR_FORMAT, "generate: prompt %" PRId64 " is empty",
                  i);
        for (int64_t t = 0; t < prompts[i].count; t++)
            NBL_CHECK(m->ctx, prompts[i].ids[t] >= 0 && prompts[i].ids[t] < m->decoder.vocabulary,
                      NBL_ERROR_FORMAT,
                      "prompt %" PRId64 ": the id %" PRId32 " is not in the vocabulary of %" PRId64, i,
                      prompts[i].ids[t], m->decoder.vocabulary);
        results[i].ids.count = 0;
        results[i].stopped = 0;
    }
    nbl__arena arena = nbl__arena_make(m->ctx);
    writer w = {.model = m, .how = &options, .prompts = prompts, .count = count, .results = results};
    w.length = nbl__arena_alloc(&arena, (size_t)count * sizeof *w.length);
    w.active = nbl__arena_alloc(&arena, (size_t)count * sizeof *w.active);
    w.decodes = nbl__arena_alloc(&arena, (size_t)count * sizeof *w.decodes);
    w.logits = nbl__arena_alloc(&arena, (size_t)m->decoder.vocabulary * sizeof *w.logits);
    w.sorted = nbl__arena_alloc(&arena, (size_t)m->decoder.vocabulary * sizeof *w.sorted);
    nbl__session first = {0}, next = {0};
    nbl_status status = w.length && w.active && w.decodes && w.logits && w.sorted
                            ? write_all(&w, &first, &next)
                            : NBL_ERROR_MEMORY;
    if (next.model) nbl__session_close(&next);
    if (first.model) nbl__session_close(&first);
    nbl__arena_free(&arena);
    return status;
}
