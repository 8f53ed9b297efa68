/* pre_tokenizer.c - runs the steps of a pre-tokenizer; see pre_tokenizer.h.
 *
 * A step visits all pieces that are not added tokens. There are three kinds of steps:
 * * Split, Characters, Words: find the matches in a piece, then cut by one of five behaviours.
 * * FixedLength: cuts by counting characters.
 * * Metaspace, ByteLevel: write new text into text[!now], and cut it.
 *
 * The five behaviours, for the text "a-b" with the delimiter "-":
 *
 *     Removed              a | b
 *     Isolated             a | - | b
 *     MergedWithPrevious   a- | b
 *     MergedWithNext       a | -b
 *     Contiguous           as Isolated, but "--" is one piece */
#include "text/tokenizer/pre_tokenizer.h"

#include "text/chars.h"
#include "text/unicode/unicode.h"

void nbl__pre_scratch_free(nbl__pre_scratch *s)
{
    for (int i = 0; i < 2; i++) {
        nbl__bytes_free(s->ctx, &s->text[i]);
        nbl__pieces_free(s->ctx, &s->pieces[i]);
    }
    nbl__pieces_free(s->ctx, &s->matches);
}

/* ---- matches ----
 *
 * The functions match_* fill s->matches. The matches cover the piece without gaps. Offsets are
 * relative to the piece. */

static nbl_status add_match(nbl__pre_scratch *s, size_t begin, size_t end, bool delimiter)
{
    return nbl__pieces_add(s->ctx, &s->matches, (nbl__piece){begin, end - begin, 0, delimiter});
}

/* The matches of a regex, and the text between them. `invert` exchanges delimiters and text, as
 * upstream's Split does. */
static nbl_status match_regex(nbl__pre_scratch *s, const nbl__regex *regex, bool invert, const char *text,
                              size_t size)
{
    nbl__search search;
    size_t begin, end, last = 0;
    bool found;
    NBL_TRY(nbl__search_begin(&search, s->matcher, regex, text, size));
    for (;;) {
        NBL_TRY(nbl__search_next(&search, &found, &begin, &end));
        if (!found) break;
        if (last != begin) NBL_TRY(add_match(s, last, begin, invert));
        NBL_TRY(add_match(s, begin, end, !invert));
        if (s->matches.count % 4096 < 2) NBL_TRY(nbl__progress_poll_here(s->ctx, "tokenizing"));
        last = end;
    }
    return last != size ? add_match(s, last, size, invert) : NBL_OK;
}

/* True if a character is a delimiter of the step. */
static bool has_property(const nbl__pre_tokenizer *step, uint32_t c)
{
    switch (step->property) {
    case NBL_CHARS_SPACE: return nbl__char_is_space(c);
    case NBL_CHARS_PUNCTUATION: return nbl__char_is_punctuation(c);
    case NBL_CHARS_NUMERIC: return nbl__char_is_numeric(c);
    case NBL_CHARS_ONE: break;
    }
    return c == step->character;
}

/* Each character with the property is a delimiter of its own. */
static nbl_status match_characters(nbl__pre_scratch *s, const nbl__pre_tokenizer *step, const char *text,
                                   size_t size)
{
    size_t last = 0;
    for (size_t at = 0; at < size;) {
        uint32_t c;
        size_t n = (size_t)nbl__char_get(text + at, &c);
        if (has_property(step, c)) {
            if (last < at) NBL_TRY(add_match(s, last, at, false));
            NBL_TRY(add_match(s, at, at + n, true));
            last = at + n;
        }
        at += n;
    }
    return last < size ? add_match(s, last, size, false) : NBL_OK;
}

/* The matches of \w+|[^\w\s]+ with the regex crate's properties. White space is the delimiter. */
static nbl_status match_words(nbl__pre_scratch *s, const char *text, size_t size)
{
    int kind = -1; /* of the current run: 0 white space, 1 word characters, 2 others */
    size_t begin = 0;
    for (size_t at = 0; at < size;) {
        uint32_t c;
        size_t n = (size_t)nbl__char_get(text + at, &c);
        int own = nbl__char_is_word(c) ? 1 : nbl__char_is_space(c) ? 0 : 2;
        if (own != kind) {
            if (at > begin) NBL_TRY(add_match(s, begin, at, kind == 0));
            begin = at;
            kind = own;
        }
        at += n;
    }
    return size > begin ? add_match(s, begin, size, kind == 0) : NBL_OK;
}

/* ---- cutting ---- */

/* Appends [begin, end) of piece `of` to the result, unless it is empty. */
static nbl_status emit(nbl__pre_scratch *s, const nbl__piece *of, size_t begin, size_t end)
{
    if (begin == end) return NBL_OK;
    size_t origin = of->origin > begin ? of->origin - begin : 0;
    if (origin > end - begin) origin = end - begin;
    return nbl__pieces_add(s->ctx, &s->pieces[!s->now],
                           (nbl__piece){of->begin + begin, end - begin, origin, -1});
}

/* Cuts a piece along s->matches. */
static nbl_status cut(nbl__pre_scratch *s, const nbl__piece *piece, nbl__behavior behavior)
{
    const nbl__piece *m = s->matches.items;
    size_t count = s->matches.count;
    for (size_t i = 0; i < count;) {
        size_t end = i + 1; /* matches [i, end) become one piece */
        switch (behavior) {
        case NBL_BEHAVIOR_REMOVED:
            if (m[i].id) {
                i++;
                continue;
            }
            break;
        case NBL_BEHAVIOR_ISOLATED: break;
        case NBL_BEHAVIOR_CONTIGUOUS:
            while (end < count && m[end].id == m[i].id) end++;
            break;
        case NBL_BEHAVIOR_MERGED_WITH_PREVIOUS:
            /* A delimiter joins the text before it. After another delimiter it stays alone. */
            if (!m[i].id && end < count && m[end].id) end++;
            break;
        case NBL_BEHAVIOR_MERGED_WITH_NEXT:
            if (m[i].id && end < count && !m[end].id) end++;
            break;
        }
        NBL_TRY(emit(s, piece, m[i].begin, m[end - 1].begin + m[end - 1].size));
        i = end;
    }
    return NBL_OK;
}

/* ---- steps ---- */

/* Cuts one piece: finds the matches, then applies the behaviour. */
static nbl_status split_piece(const nbl__pre_tokenizer *step, nbl__pre_scratch *s, const nbl__piece *piece)
{
    const char *text = s->text[s->now].data + piece->begin;
    nbl__behavior behavior = step->behavior;
    s->matches.count = 0;
    if (step->kind == NBL_PRE_SPLIT) {
        NBL_TRY(match_regex(s, step->regex, step->invert, text, piece->size));
    } else if (step->kind == NBL_PRE_CHARACTERS) {
        NBL_TRY(match_characters(s, step, text, piece->size));
    } else {
        NBL_TRY(match_words(s, text, piece->size));
        behavior = NBL_BEHAVIOR_REMOVED;
    }
    return cut(s, piece, behavior);
}

/* FixedLength: pieces of `length` characters; the last one may be shorter. */
static nbl_status split_fixed(nbl__pre_scratch *s, const nbl__piece *piece, int64_t length)
{
    const char *text = s->text[s->now].data + piece->begin;
    size_t begin = 0;
    int64_t characters = 0;
    for (size_t at = 0; at < piece->size;) {
        at += (size_t)nbl__char_length(text + at);
        if (++characters < length && at < piece->size) continue;
        NBL_TRY(emit(s, piece, begin, at));
        begin = at;
        characters = 0;
    }
    return NBL_OK;
}

/* Metaspace: appends the rewritten piece to s->text[!now]. *piece is then a span of that text. The
 * replacement is not put in front of a piece that begins with a space or the replacement. */
static nbl_status rewrite_metaspace(const nbl__pre_tokenizer *step, nbl__pre_scratch *s, nbl__piece *piece)
{
    const char *text = s->text[s->now].data + piece->begin;
    nbl__bytes *to = &s->text[!s->now];
    size_t begin = to->size;
    nbl__sink out = {s->ctx, to, begin};
    uint32_t first = 0;
    nbl__char_get(text, &first);
    if (first == ' ') first = step->character;
    bool wanted = step->prepend == NBL_PREPEND_ALWAYS ||
                  (step->prepend == NBL_PREPEND_FIRST && piece->origin > 0);
    if (wanted && first != step->character) NBL_TRY(nbl__sink_put(&out, step->character, piece->origin > 0));
    for (size_t at = 0; at < piece->size;) {
        uint32_t c;
        size_t n = (size_t)nbl__char_get(text + at, &c);
        NBL_TRY(nbl__sink_put(&out, c == ' ' ? step->character : c, at < piece->origin));
        at += n;
    }
    *piece = (nbl__piece){begin, to->size - begin, out.origin - begin, -1};
    return NBL_OK;
}

/* ByteLevel: cuts the piece by the pattern, and appends the characters of its bytes to
 * s->text[!now]. */
static nbl_status rewrite_byte_level(const nbl__pre_tokenizer *step, nbl__pre_scratch *s,
                                     const nbl__piece *piece)
{
    nbl__bytes *to = &s->text[!s->now];
    const char *text = s->text[s->now].data + piece->begin;
    /* With prefix_space the pattern needs " piece" as one text. It is built in the spare memory
     * behind the end of text[now]; the size of text[now] stays as it is. */
    size_t size = piece->size, origin = piece->origin;
    nbl__bytes *from = &s->text[s->now];
    if (step->prefix_space && *text != ' ') {
        NBL_TRY(nbl__bytes_reserve(s->ctx, from, size + 1));
        text = from->data + from->size;
        from->data[from->size] = ' ';
        memcpy(from->data + from->size + 1, from->data + piece->begin, size);
        size++;
        origin += origin > 0;
    }
    s->matches.count = 0;
    if (step->regex) NBL_TRY(match_regex(s, step->regex, false, text, size));
    else NBL_TRY(add_match(s, 0, size, false));
    NBL_TRY(nbl__bytes_reserve(s->ctx, to, 2 * size)); /* the character of a byte has 1 or 2 bytes */
    for (size_t i = 0; i < s->matches.count; i++) {
        const nbl__piece *m = &s->matches.items[i];
        if (m->size == 0) continue;
        size_t begin = to->size, kept = 0;
        for (size_t k = m->begin; k < m->begin + m->size; k++) {
            to->size += (size_t)nbl__char_put(to->data + to->size, nbl__byte_char((unsigned char)text[k]));
            if (k < origin) kept = to->size - begin;
        }
        NBL_TRY(
            nbl__pieces_add(s->ctx, &s->pieces[!s->now], (nbl__piece){begin, to->size - begin, kept, -1}));
    }
    return NBL_OK;
}

/* Runs a step that writes new text on one piece. */
static nbl_status run_rewriting(const nbl__pre_tokenizer *step, nbl__pre_scratch *s, nbl__piece piece)
{
    if (step->kind == NBL_PRE_BYTE_LEVEL) return rewrite_byte_level(step, s, &piece);
    NBL_TRY(rewrite_metaspace(step, s, &piece));
    if (!step->split) return nbl__pieces_add(s->ctx, &s->pieces[!s->now], piece);
    nbl__pre_tokenizer split = {.property = NBL_CHARS_ONE, .character = step->character};
    s->matches.count = 0;
    NBL_TRY(match_characters(s, &split, s->text[!s->now].data + piece.begin, piece.size));
    return cut(s, &piece, NBL_BEHAVIOR_MERGED_WITH_NEXT);
}

/* Runs one step on all pieces. Then `now` is the side with the result. */
static nbl_status run_step(const nbl__pre_tokenizer *step, nbl__pre_scratch *s)
{
    bool rewrites = step->kind == NBL_PRE_METASPACE || step->kind == NBL_PRE_BYTE_LEVEL;
    s->pieces[!s->now].count = 0;
    if (rewrites) s->text[!s->now].size = 0;
    for (size_t i = 0; i < s->pieces[s->now].count; i++) {
        nbl__piece piece = s->pieces[s->now].items[i];
        if (piece.id >= 0) NBL_TRY(nbl__pieces_add(s->ctx, &s->pieces[!s->now], piece));
        else if (rewrites) NBL_TRY(run_rewriting(step, s, piece));
        else if (step->kind == NBL_PRE_FIXED_LENGTH) NBL_TRY(split_fixed(s, &piece, step->length));
        else NBL_TRY(split_piece(step, s, &piece));
    }
    if (rewrites) {
        s->now = !s->now;
    } else { /* the text is unchanged: swap the lists of pieces only */
        nbl__pieces swap = s->pieces[0];
        s->pieces[0] = s->pieces[1];
        s->pieces[1] = swap;
    }
    return NBL_OK;
}

nbl_status nbl__pre_tokenize(const nbl__pre_tokenizer *steps, int count, nbl__pre_scratch *s)
{
    for (int i = 0; i < count; i++) NBL_TRY(run_step(&steps[i], s));
    return NBL_OK;
}
