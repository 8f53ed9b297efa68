/* samples.c - chooses prompts, continues them, and saves both in samples.json. See samples.h.
 *
 * All texts and ids lie in the samples' arena and live until nbl__samples_close.
 * Samples are extra information: a model that cannot generate and a damaged samples.json are no
 * errors. `missing` then says why there are no samples. */
#include "report/samples.h"

#include "base/file/file.h"
#include "base/file/output.h"
#include "device/device_memory.h"

enum { LARGEST_FILE = 4 << 20, EXAMPLES_TRIED = 256, PLAIN_PROMPT = 16 };
static const uint64_t slack =
    1
    /* tolerance in bytes: for tiny models the process's own memory varies by more than the
     * difference */
    << 20;

/* ---- texts ---- */

/* *text: the ids as text in the arena. Zero bytes become spaces, because the texts of samples are C
 * strings. */
static nbl_status decode(nbl__samples *s, const int32_t *ids, int64_t count, const char **text)
{
    char *decoded;
    size_t size;
    NBL_TRY(nbl_tokenizer_decode(s->tokenizer, ids, count, 0, &decoded, &size));
    char *copy = nbl__arena_alloc(&s->arena, size + 1);
    if (copy) memcpy(copy, decoded, size);
    nbl_text_free(s->arena.ctx, decoded, size);
    if (copy == NULL) return NBL_ERROR_MEMORY;
    for (size_t i = 0; i < size; i++)
        if (copy[i] == '\0') copy[i] = ' ';
    *text = copy;
    return NBL_OK;
}

/* ---- choosing ---- */

static bool is_trained(const nbl__example *e, int64_t i)
{
    return e->labels[i] >= 0;
}

/* Returns the number of tokens of an example's prompt: those before the first trained token.
 * Returns 0 if there is no trained token, or if the prompt is longer than NBL_SAMPLE_PROMPT. */
static int64_t prompt_size(const nbl__example *e)
{
    int64_t first = 0;
    while (first < e->count && !is_trained(e, first)) first++;
    if (first == e->count) return 0;
    /* plain text: all of it is trained */
    if (first <= 1) first = nbl__min_i64(PLAIN_PROMPT, e->count / 2);
    return first <= NBL_SAMPLE_PROMPT ? first : 0;
}

/* Adds a sample: the prompt, and the trained tokens after it as the expected continuation. */
static nbl_status add_sample(nbl__samples *s, int64_t index, const nbl__example *e, int64_t prompt)
{
    nbl__sample *it = &s->items[s->count];
    int64_t end = prompt;
    while (end < e->count && end - prompt < NBL_SAMPLE_TOKENS && is_trained(e, end)) end++;
    *it = (nbl__sample){.example = index};
    it->prompt.ids = nbl__arena_alloc(&s->arena, (size_t)prompt * sizeof *it->prompt.ids);
    if (it->prompt.ids == NULL) return NBL_ERROR_MEMORY;
    it->prompt.count = prompt;
    memcpy(it->prompt.ids, e->ids, (size_t)prompt * sizeof *e->ids);
    NBL_TRY(decode(s, e->ids, prompt, &it->text));
    NBL_TRY(decode(s, e->ids + prompt, end - prompt, &it->wanted));
    s->count++;
    return NBL_OK;
}

nbl_status nbl__samples_choose(nbl_context *ctx, nbl__data *data, int64_t max, nbl__samples *s)
{
    *s = (nbl__samples){.arena = nbl__arena_make(ctx)};
    s->tokenizer = nbl__data_tokenizer(data, &s->ends, &s->end_count);
    /* Validation examples if the run holds some back, else training examples. At most
     * EXAMPLES_TRIED examples are encoded in search of prompts. */
    max = nbl__min_i64(max, NBL_MAX_SAMPLES);
    int64_t tried = 0, count = s->tokenizer ? nbl__data_count(data).examples : 0;
    bool any_entry = nbl__data_held_count(data) > 0;
    for (int64_t i = 0; i < count && s->count < max && tried < EXAMPLES_TRIED; i++) {
        nbl__example_kind kind = nbl__data_kind(data, i);
        if (kind.is_validation != any_entry || !kind.text) continue;
        nbl__example example;
        tried++;
        NBL_TRY(nbl__data_example(data, i, &example));
        int64_t prompt = prompt_size(&example);
        if (prompt > 0) NBL_TRY(add_sample(s, i, &example, prompt));
    }
    if (s->count == 0) s->missing = "the data has no prompts as text that could be continued";
    return NBL_OK;
}

void nbl__samples_close(nbl__samples *s)
{
    if (s->arena.ctx) nbl__arena_free(&s->arena);
    *s = (nbl__samples){0};
}

/* ---- memory ---- */

/* *bytes: planned memory of generating after a prompt of that many tokens: weights, both plans
 * (prefill, then steps in the prefill's memory), and what generation and the device need beside
 * them. */
static nbl_status generation_bytes(nbl_model *m, int64_t prompt, uint64_t *bytes)
{
    nbl__session first = {0}, next = {0};
    nbl__session_options o = {.mode = NBL_MODE_PREFILL,
                              .tokens = nbl__prefill_tokens(m, prompt, NBL_SAMPLE_TOKENS),
                              .sequences = 1,
                              .cache_size = prompt + NBL_SAMPLE_TOKENS,
                              .kv_dtype = m->dtype};
    nbl_status status = nbl__decode_plan(m, &o, &next);
    o.plan.with = &next.plan;
    if (status == NBL_OK) status = nbl__session_plan(m, &o, &first);
    if (status == NBL_OK)
        *bytes = nbl__model_bytes(m, false) + nbl__plan_total(&first.plan) + nbl__generation_bytes(m, 1) +
                 nbl__memory_overhead_bytes(m->ctx);
    if (first.model) nbl__session_close(&first);
    if (next.model) nbl__session_close(&next);
    return status;
}

nbl_status nbl__samples_limit(nbl__samples *s, nbl_model *m, uint64_t limit)
{
    int64_t longest = 0;
    uint64_t bytes;
    /* the longest prompt decides: samples are generated one after the other */
    for (int64_t i = 0; i < s->count; i++) longest = nbl__max_i64(longest, s->items[i].prompt.count);
    if (longest == 0) return NBL_OK;
    NBL_TRY(generation_bytes(m, longest, &bytes));
    if (bytes <= limit + slack) return NBL_OK;
    s->count = 0;
    s->missing = nbl__arena_printf(&s->arena,
                                   "generating takes %" PRIu64 " bytes, which is more than the %" PRIu64
                                   " that the run is planned with",
                                   bytes, limit);
    return s->missing ? NBL_OK : NBL_ERROR_MEMORY;
}

/* ---- writing ---- */

/* Continues one prompt greedily, up to NBL_SAMPLE_TOKENS tokens or a token that ends a turn. */
static nbl_status continue_prompt(nbl__samples *s, nbl_model *m, nbl__sample *it, bool after)
{
    int32_t ids[NBL_SAMPLE_TOKENS];
    nbl_generated made = {.ids = {.ids = ids}};
    nbl_generate_options how = {NBL_OPTIONS(nbl_generate_options), .max_tokens = NBL_SAMPLE_TOKENS,
                                .ends = s->ends, .end_count = s->end_count};
    NBL_TRY(nbl_model_generate(m, &it->prompt, 1, &how, &made));
    return decode(s, ids, made.ids.count, after ? &it->after : &it->before);
}

/* Copies the message: the error text of the context changes with the next error. */
void nbl__samples_fail(nbl__samples *s, const char *why)
{
    s->missing = nbl__arena_strdup(&s->arena, why);
    if (s->missing == NULL) s->missing = "memory ran out";
}

/* A failure of one prompt ends the samples. Those generated before it stay. */
nbl_status nbl__samples_write(nbl__samples *s, nbl_model *m, bool after)
{
    for (int64_t i = 0; i < s->count; i++) {
        nbl_status status = continue_prompt(s, m, &s->items[i], after);
        if (status == NBL_ERROR_MEMORY || status == NBL_ERROR_CANCELLED) return status;
        if (status != NBL_OK) {
            nbl__samples_fail(s, nbl_error_message(s->arena.ctx));
            return NBL_OK;
        }
    }
    return NBL_OK;
}

/* ---- samples.json ---- */

/* Appends `, "key": "text"`, or null for NULL. */
static void put_member(nbl__text *out, const char *key, const char *text)
{
    nbl__text_printf(out, ", \"%s\": ", key);
    if (text) nbl__text_json(out, text);
    else nbl__text_printf(out, "null");
}

nbl_status nbl__samples_put(const nbl__samples *s, const char *path)
{
    nbl__text out = {.ctx = s->arena.ctx};
    nbl__text_printf(&out, "{\"samples\": [");
    for (int64_t i = 0; i < s->count; i++) {
        /* `prompt` and `example` are the identity of a sample when it is read again */
        const nbl__sample *it = &s->items[i];
        nbl__text_printf(&out, "%s\n  {\"example\": %" PRId64, i ? "," : "", it->example);
        put_member(&out, "prompt", it->text);
        put_member(&out, "expected", it->wanted);
        put_member(&out, "before", it->before);
        put_member(&out, "after", it->after);
        nbl__text_printf(&out, "}");
    }
    nbl__text_printf(&out, "\n]}\n");
    nbl_status status = out.status;
    if (status == NBL_OK) status = nbl__file_put(s->arena.ctx, path, out.text, out.size);
    nbl__text_free(&out);
    return status;
}

/* Copies `before` to each sample with the same example and prompt. */
static void take_before(nbl__samples *s, const nbl__json *list)
{
    for (int64_t i = 0; nbl__json_is(list, NBL_JSON_ARRAY) && i < list->count; i++) {
        const nbl__json *from = &list->items[i];
        const char *prompt = nbl__json_text(from, "prompt");
        int64_t example = -1;
        if (!nbl__json_natural(nbl__json_get(from, "example"), &example) || prompt == NULL) continue;
        for (int64_t k = 0; k < s->count; k++)
            if (s->items[k].example == example && strcmp(s->items[k].text, prompt) == 0)
                s->items[k].before = nbl__json_text(from, "before");
    }
}

nbl_status nbl__samples_parse(nbl__samples *s, const char *where, const char *text, size_t size)
{
    const nbl__json *root;
    NBL_TRY(nbl__json_parse(&s->arena, where, text, size, NBL_JSON_STRICT, &root));
    take_before(s, nbl__json_get(root, "samples"));
    return NBL_OK;
}

/* A resumed run reads what the model wrote before its first step. Samples without such a text stay,
 * and `missing` says why. */
nbl_status nbl__samples_recall(nbl__samples *s, const char *path)
{
    char *text;
    size_t size;
    nbl_status status = nbl__exists(path) ? nbl__file_read(s->arena.ctx, path, LARGEST_FILE, &text, &size)
                                          : NBL_ERROR_NOT_FOUND;
    if (status == NBL_OK) {
        status = nbl__samples_parse(s, path, text, size);
        nbl__free(s->arena.ctx, text, size + 1);
    }
    if (status == NBL_ERROR_MEMORY) return status;
    for (int64_t i = 0; i < s->count; i++)
        if (s->items[i].before == NULL)
            s->missing = "the run goes on from elsewhere: what the model wrote before is not known";
    return NBL_OK;
}
