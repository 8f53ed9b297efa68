/* stop_matcher.c - finds the first of several stop strings in a text that arrives in chunks. Holds
 * back text that could be the beginning of a stop string.
 *
 *     chunks    "Hello, wo" "rld <" "|e" "nd|> more"        stop string "<|end|>"
 *     shown     "Hello, wo" "rld "  ""   ""                 stopped
 *
 * The algorithm is Knuth-Morris-Pratt, once per stop string. `matched` is the length of the longest
 * prefix of the string that the text so far ends with. back[k] is the length of the longest proper
 * prefix of the string's first k + 1 bytes that is also their suffix. Text that cannot be part of a
 * match is shown at once; the longest `matched` over all strings is held back. Stop strings must be
 * UTF-8, so a cut never falls within a character. If several strings end at the same byte, the
 * longest is removed from the text. Cost: amortised two comparisons per byte and string. */
#include <string.h>

#include "base/base.h"
#include "base/utf8.h"
#include "base/json/json.h"

/* One stop string and the state of its search. */
typedef struct stop {
    const char *text; /* not terminated */
    size_t size, matched;
    size_t *back; /* [size] */
} stop;

struct nbl_stop_matcher {
    nbl_context *ctx;
    nbl__arena arena;
    stop *stops;
    int64_t count;
    nbl__text pending; /* the first `shown` bytes were handed out by the last call, the rest is held back */
    size_t shown;
    bool stopped;
};

/* Copies a stop string and computes its table `back`. */
static nbl_status add_stop(nbl_stop_matcher *m, const nbl_string *string)
{
    stop *s = &m->stops[m->count];
    NBL_CHECK(m->ctx, string->text && string->size > 0, NBL_ERROR_ARGUMENT,
              "stop string %" PRId64 " is empty", m->count);
    for (const char *c = string->text, *end = c + string->size; c < end;) {
        int length = nbl__utf8_length(c, end);
        NBL_CHECK(m->ctx, length > 0, NBL_ERROR_ARGUMENT, "stop string %" PRId64 " is not UTF-8", m->count);
        c += length;
    }
    char *text = nbl__arena_alloc(&m->arena, string->size);
    s->back = nbl__arena_alloc(&m->arena, string->size * sizeof *s->back);
    if (text == NULL || s->back == NULL) return NBL_ERROR_MEMORY;
    memcpy(text, string->text, string->size);
    s->text = text;
    s->size = string->size;
    s->back[0] = 0;
    for (size_t i = 1, k = 0; i < s->size; i++) {
        assert(k < i); /* a proper prefix */
        while (k > 0 && text[k] != text[i]) k = s->back[k - 1];
        k += text[k] == text[i];
        s->back[i] = k;
    }
    m->count++;
    return NBL_OK;
}

nbl_status nbl_stop_matcher_open(nbl_context *ctx, const nbl_string *strings, int64_t count,
                                 nbl_stop_matcher **matcher)
{
    NBL_CHECK(ctx, matcher && count >= 0 && count <= 1 << 16 && (strings || count == 0), NBL_ERROR_ARGUMENT,
              "nbl_stop_matcher_open: bad arguments");
    nbl_stop_matcher *m;
    *matcher = NULL;
    NBL_TRY(NBL_ALLOC(ctx, m, 1));
    m->ctx = ctx;
    m->arena = nbl__arena_make(ctx);
    m->pending.ctx = ctx;
    m->stops = nbl__arena_alloc(&m->arena, (size_t)(count + 1) * sizeof *m->stops);
    nbl_status status = m->stops ? NBL_OK : NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < count && status == NBL_OK; i++) status = add_stop(m, &strings[i]);
    if (status == NBL_OK) *matcher = m;
    else nbl_stop_matcher_close(m);
    return status;
}

void nbl_stop_matcher_close(nbl_stop_matcher *m)
{
    if (m == NULL) return;
    nbl__text_free(&m->pending);
    nbl__arena_free(&m->arena);
    nbl__free(m->ctx, m, sizeof *m);
}

/* Feeds one byte to all searches. Returns the size of the longest string that this byte completes,
 * or 0. */
static size_t follow(nbl_stop_matcher *m, char c)
{
    size_t longest = 0;
    for (stop *s = m->stops; s < m->stops + m->count; s++) {
        assert(s->matched < s->size);
        while (s->matched > 0 && s->text[s->matched] != c) s->matched = s->back[s->matched - 1];
        s->matched += s->text[s->matched] == c;
        if (s->matched < s->size) continue;
        if (s->size > longest) longest = s->size;
        s->matched = s->back[s->size - 1]; /* never read beyond the string */
    }
    return longest;
}

/* Removes the bytes that the last call handed out; the caller's view of them ends here. */
static void drop_shown(nbl_stop_matcher *m)
{
    assert(m->shown <= m->pending.size);
    m->pending.size -= m->shown;
    if (m->pending.size) memmove(m->pending.text, m->pending.text + m->shown, m->pending.size);
    m->shown = 0;
}

nbl_status nbl_stop_matcher_push(nbl_stop_matcher *m, nbl_string text, nbl_string *shown, bool *stopped)
{
    NBL_CHECK(m->ctx, shown && stopped && (text.text || text.size == 0), NBL_ERROR_ARGUMENT,
              "nbl_stop_matcher_push: bad arguments");
    *shown = (nbl_string){"", 0};
    *stopped = m->stopped;
    if (m->stopped || text.size == 0) return NBL_OK;
    drop_shown(m);
    size_t at = m->pending.size, entry = 0;
    nbl__text_add(&m->pending, text.text, text.size);
    if (m->pending.status != NBL_OK) return m->pending.status;
    /* Search the new bytes. On a match cut the pending text before the stop string. */
    for (; at < m->pending.size; at++) {
        size_t found = follow(m, m->pending.text[at]);
        if (found == 0) continue;
        m->stopped = true;
        *stopped = true;
        assert(found <= at + 1); /* held back since its first byte */
        m->pending.size = at + 1 - found;
        break;
    }
    /* Hold back the longest prefix of a stop string that the text ends with. */
    for (int64_t i = 0; !m->stopped && i < m->count; i++)
        if (m->stops[i].matched > entry) entry = m->stops[i].matched;
    assert(entry <= m->pending.size);
    m->shown = m->pending.size - entry;
    *shown = (nbl_string){m->pending.text, m->shown};
    return NBL_OK;
}

nbl_string nbl_stop_matcher_finish(nbl_stop_matcher *m)
{
    drop_shown(m);
    nbl_string rest = {m->pending.size ? m->pending.text : "", m->pending.size};
    m->shown = m->pending.size;
    m->stopped = false;
    for (int64_t i = 0; i < m->count; i++) m->stops[i].matched = 0;
    return rest;
}
