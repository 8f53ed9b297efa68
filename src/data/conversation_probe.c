/* conversation_probe.c - finds which tokens are a turn's, as axolotl does.
 *
 * A turn's tokens are those that change when its content is replaced by a dummy. So each wanted
 * turn gets a probe: the text with the dummy in place of the content. It is tokenized beside the
 * text; mask.c compares the ids. The position of the content in the text is found in one of three
 * ways, cheapest first:
 *
 *     1. All contents are plain texts that the template copies or trims. One rendering with a placeholder
 *        for every content gives all positions (locate_all).
 *     2. The conversation up to the turn is a prefix of the whole text. Rendering that prefix with and
 *        without the dummy gives the position (probe_start). This is axolotl's way.
 *     3. Neither: a turn looks different when it is the last one, so axolotl's positions are wrong. The
 *        whole conversation is rendered with the dummy (probe_turn).
 *
 * A probe is not the whole text. Added tokens cut a text into pieces that are tokenized
 * independently, so a probe reaches from the added token before the change to the one after it.
 * The cost of a turn is that of its own text. */
#include "data/conversation.h"

static const char default_dummy[] = "[[dummy_message]]", /* as axolotl */
    other_dummy[] = "zqmessageqz";

/* True if the bytes from `at` on begin with `text`. */
static bool same(const char *at, const char *end, const char *text, size_t size)
{
    return (size_t)(end - at) >= size && memcmp(at, text, size) == 0;
}

/* The first occurrence of `text` in [at, end), or NULL. */
static const char *find(const char *at, const char *end, const char *text, size_t size)
{
    for (; (size_t)(end - at) >= size; at++) {
        at = memchr(at, text[0], (size_t)(end - at));
        if (at == NULL || (size_t)(end - at) < size) return NULL;
        if (memcmp(at, text, size) == 0) return at;
    }
    return NULL;
}

/* Without white space at both ends, as Jinja's trim. */
static nbl_string trimmed(nbl_string s)
{
    while (s.size && strchr(" \t\n\r\f\v", s.text[0]) && s.text[0]) s.text++, s.size--;
    while (s.size && strchr(" \t\n\r\f\v", s.text[s.size - 1]) && s.text[s.size - 1]) s.size--;
    return s;
}

/* The dummy for a content. A content that begins or ends like the usual dummy would share tokens
 * with it, and lose them: it gets the other one. */
static const char *dummy_for(nbl_string content)
{
    nbl_string s = trimmed(content);
    return s.size && (s.text[0] == '[' || s.text[s.size - 1] == ']') ? other_dummy : default_dummy;
}

/* ---- contents that the template copies ---- */

/* True if `text` is `frame` with each placeholder replaced by its turn's content, as it is or
 * trimmed. Then begin and end of every turn are set. */
static bool locate_all(nbl__conversation *k, nbl_string text, nbl_string frame)
{
    const char *at = text.text, *end = at + text.size, *f = frame.text, *f_end = f + frame.size;
    for (int64_t i = 0; i < k->count; i++) {
        nbl__turn *now = &k->turns[i];
        char mark[NBL_PLACEHOLDER];
        size_t size = (size_t)nbl__placeholder(mark, i);
        const char *found = find(f, f_end, mark, size);
        if (found == NULL || !same(at, end, f, (size_t)(found - f))) return false;
        at += found - f;
        f = found + size;
        nbl_string content = now->content;
        /* Pass 0: the content was copied. Pass 1: it was trimmed. The frame up to the next
         * placeholder must follow in either case. */
        if (i + 1 < k->count) size = (size_t)nbl__placeholder(mark, i + 1);
        const char *next = i + 1 < k->count ? find(f, f_end, mark, size) : f_end;
        if (next == NULL) return false;
        for (int pass = 0;; pass++) {
            if (pass == 2) return false;
            if (pass == 1) content = trimmed(content);
            if (same(at, end, content.text, content.size) &&
                same(at + content.size, end, f, (size_t)(next - f)))
                break;
        }
        now->begin = (size_t)(at - text.text);
        now->end = now->begin + content.size;
        at += content.size;
    }
    return (size_t)(end - at) == (size_t)(f_end - f) && same(at, end, f, (size_t)(f_end - f));
}

/* Tries way 1. *placed: every turn has its position. */
static nbl_status locate_copies(nbl__conversation *k, nbl_string text, bool *placed)
{
    nbl_rendering *frame;
    *placed = false;
    for (int64_t i = 0; i < k->count; i++)
        if (!k->turns[i].plain) return NBL_OK;
    nbl__view view = {.count = k->count, .hide = NBL_HIDE_ALL, .without_calls = -1};
    nbl_status status = nbl__conversation_render(k, view, &frame);
    if (status == NBL_ERROR_MEMORY || status == NBL_ERROR_CANCELLED) return status;
    /* the template checks contents: not an error, try the other ways */
    if (status != NBL_OK) return NBL_OK;
    *placed = locate_all(k, text, nbl_rendering_text(frame));
    nbl_rendering_free(frame);
    return NBL_OK;
}

/* ---- probes ---- */

/* True if a piece of the text is an added token that cuts it: see nbl__token_cuts. */
static bool cuts_here(const nbl_tokenizer *tokenizer, const nbl__piece *piece)
{
    return piece->id >= 0 && nbl__token_cuts(tokenizer, piece->id);
}

/* Appends the probe that replaces text[begin, end) by `dummy`. Its range is extended to the
 * nearest cutting tokens on both sides, else to the ends of the text. */
static nbl_status add_probe(nbl__conversation *k, const nbl__pieces *pieces, size_t begin, size_t end,
                            nbl_string dummy, bool trained, nbl__example_text *example_text)
{
    const nbl_tokenizer *tokenizer = k->encoder->tokenizer;
    nbl__part *text = &example_text->parts[0], *probe = &example_text->parts[example_text->part_count];
    nbl__probe range = {.first = -1, .last = -1, .begin = 0, .end = text->size, .trained = trained};
    int64_t cut = 0;
    for (size_t i = 0; i < pieces->count; i++) {
        const nbl__piece *piece = &pieces->items[i];
        if (!cuts_here(tokenizer, piece)) continue;
        if (piece->begin + piece->size <= begin) {
            range.first = cut;
            range.begin = piece->begin;
        }
        if (piece->begin >= end) {
            range.last = cut;
            range.end = piece->begin + piece->size;
            break;
        }
        cut++;
    }
    size_t before = begin - range.begin, behind = range.end - end;
    char *copy = nbl__arena_alloc(k->arena, before + dummy.size + behind + 1);
    if (copy == NULL) return NBL_ERROR_MEMORY;
    memcpy(copy, text->text + range.begin, before);
    memcpy(copy + before, dummy.text, dummy.size);
    memcpy(copy + before + dummy.size, text->text + end, behind);
    *probe = (nbl__part){.text = copy, .size = before + dummy.size + behind, .mask = NBL_LOSS_MASK_PROBE};
    probe->probe = range;
    example_text->part_count++;
    return NBL_OK;
}

/* Appends a probe for a rendering with the dummy: the text `start` takes the place of text[0,
 * from). The change is what remains of both between their common prefix and common suffix. */
static nbl_status add_difference(nbl__conversation *k, const nbl__pieces *pieces, nbl_string start,
                                 size_t from, bool trained, nbl__example_text *example_text)
{
    const nbl__part *text = &example_text->parts[0];
    size_t before = 0, behind = 0;
    while (before < start.size && before < from && start.text[before] == text->text[before]) before++;
    while (behind < start.size - before && behind < from - before &&
           start.text[start.size - behind - 1] == text->text[from - behind - 1])
        behind++;
    nbl_string dummy = {start.text + before, start.size - before - behind};
    return add_probe(k, pieces, before, from - behind, dummy, trained, example_text);
}

/* Tries way 2 for turn i. *done is false if the conversation up to the turn is not a prefix of
 * the text, or cannot be rendered. */
static nbl_status probe_start(nbl__conversation *k, const nbl__pieces *pieces, int64_t i,
                              nbl__example_text *example_text, bool *done)
{
    nbl_rendering *plain = NULL, *dummy = NULL;
    nbl__view view = {.count = i + 1, .hide = NBL_HIDE_NONE, .without_calls = -1};
    *done = false;
    nbl_status status = nbl__conversation_render(k, view, &plain);
    view.hide = i;
    view.dummy = dummy_for(k->turns[i].content);
    if (status == NBL_OK) status = nbl__conversation_render(k, view, &dummy);
    if (status == NBL_OK) {
        nbl_string start = nbl_rendering_text(plain);
        const nbl__part *text = &example_text->parts[0];
        *done = start.size <= text->size &&
                (start.size == 0 || memcmp(start.text, text->text, start.size) == 0);
        if (*done)
            status = add_difference(k, pieces, nbl_rendering_text(dummy), start.size, k->turns[i].trained,
                                    example_text);
    }
    nbl_rendering_free(plain);
    nbl_rendering_free(dummy);
    return status == NBL_ERROR_MEMORY || status == NBL_ERROR_CANCELLED ? status : NBL_OK;
}

/* Appends the probe of turn i by way 2, else by way 3. */
static nbl_status probe_turn(nbl__conversation *k, const nbl__pieces *pieces, int64_t i,
                             nbl__example_text *example_text)
{
    nbl_rendering *dummy;
    bool done;
    NBL_TRY(probe_start(k, pieces, i, example_text, &done));
    if (done) return NBL_OK;
    nbl__view view = {
        .count = k->count, .hide = i, .dummy = dummy_for(k->turns[i].content), .without_calls = -1};
    NBL_TRY(nbl__conversation_render(k, view, &dummy));
    nbl_status status = add_difference(k, pieces, nbl_rendering_text(dummy), example_text->parts[0].size,
                                       k->turns[i].trained, example_text);
    nbl_rendering_free(dummy);
    return status;
}

/* Appends the probes of all wanted turns. */
static nbl_status probe_all(nbl__conversation *k, const nbl__pieces *pieces, nbl__example_text *example_text)
{
    bool placed;
    NBL_TRY(
        locate_copies(k, (nbl_string){example_text->parts[0].text, example_text->parts[0].size}, &placed));
    for (int64_t i = 0; i < k->count; i++) {
        const nbl__turn *turn = &k->turns[i];
        if (!turn->wanted) continue;
        const char *dummy = dummy_for(turn->content);
        if (placed)
            NBL_TRY(add_probe(k, pieces, turn->begin, turn->end, (nbl_string){dummy, strlen(dummy)},
                              turn->trained, example_text));
        else NBL_TRY(probe_turn(k, pieces, i, example_text));
    }
    return NBL_OK;
}

nbl_status nbl__conversation_probe(nbl__conversation *k, nbl__example_text *example_text)
{
    nbl_context *ctx = k->encoder->ctx;
    nbl__pieces pieces = {0};
    nbl_status status = nbl__added_split(&k->encoder->tokenizer->added, false, example_text->parts[0].text,
                                         example_text->parts[0].size, 0, &pieces);
    for (size_t i = 0; status == NBL_OK && i < pieces.count; i++)
        example_text->parts[0].cut_count += cuts_here(k->encoder->tokenizer, &pieces.items[i]);
    if (status == NBL_OK) status = probe_all(k, &pieces, example_text);
    nbl__pieces_free(ctx, &pieces);
    return status;
}
