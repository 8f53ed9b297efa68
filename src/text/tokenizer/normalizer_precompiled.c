/* normalizer_precompiled.c - the step Precompiled: SentencePiece's charsmap, which maps short texts
 * to their replacements.
 *
 * Layout of the charsmap after base64:
 *
 *     u32             size of the trie in bytes
 *     u32[size / 4]   the trie: a double array of the library darts-clone
 *     rest            the replacements, each ended by a zero byte; values of the trie are offsets here
 *
 * Look-up: a grapheme cluster shorter than 6 bytes is looked up whole. If it is longer, or has no
 * entry, its characters are looked up one by one. As upstream, the shortest entry that is a prefix
 * of the key counts, not the longest.
 *
 * A unit of the trie (32 bits):
 *
 *     bits 0-7    label: the byte that leads to this node; bit 31 is set in a unit that holds a value
 *     bit 8       the node has a value, in the unit that its offset leads to (label 0)
 *     bit 9       the offset is shifted left by 8 more bits
 *     bits 10-31  offset: the index of the child for byte b is  node ^ offset ^ b
 *
 * The file is not trusted: every index is checked. A broken trie finds nothing. */
#include "text/base64.h"
#include "text/chars.h"
#include "text/tokenizer/normalizer.h"
#include "text/unicode/unicode.h"

nbl_status nbl__precompiled_read(nbl__arena *arena, const char *where, const char *text, size_t size,
                                 nbl__normalizer *step)
{
    unsigned char *bytes = nbl__arena_alloc(arena, size / 4 * 3 + 4);
    if (bytes == NULL) return NBL_ERROR_MEMORY;
    int64_t count = nbl__base64_read(text, size, bytes);
    NBL_CHECK(arena->ctx, count >= 4, NBL_ERROR_FORMAT, "%s: precompiled_charsmap is not valid base64",
              where);
    uint32_t trie;
    memcpy(&trie, bytes, 4);
    NBL_CHECK(arena->ctx, trie % 4 == 0 && trie <= count - 4, NBL_ERROR_FORMAT,
              "%s: precompiled_charsmap is cut short", where);
    step->units = (const uint32_t *)(const void *)(bytes + 4);
    step->unit_count = trie / 4;
    step->texts = (nbl__slice){(const char *)bytes + 4 + trie, (size_t)count - 4 - trie};
    NBL_CHECK(arena->ctx, nbl__utf8_check(step->texts.text, step->texts.size) == step->texts.size,
              NBL_ERROR_FORMAT, "%s: precompiled_charsmap holds text that is not UTF-8", where);
    return NBL_OK;
}

/* Finds the shortest entry that `key` begins with and sets *text to its replacement. */
static bool find(const nbl__normalizer *step, const char *key, size_t size, nbl__slice *text)
{
    if (step->unit_count == 0) return false;
    size_t at = 0;
    uint32_t unit = step->units[0];
    at ^= (size_t)(unit >> 10) << ((unit & 512) >> 6); /* bit 9 set: 512 >> 6 = 8 more bits */
    for (size_t i = 0; i < size && key[i]; i++) {
        uint32_t c = (unsigned char)key[i];
        at ^= c;
        if (at >= step->unit_count) return false;
        unit = step->units[at];
        if ((unit & 0x800000ff) != c) return false;
        at ^= (size_t)(unit >> 10) << ((unit & 512) >> 6);
        if (at >= step->unit_count) return false;
        if (unit & 256) { /* an entry ends here: its value is in the unit at `at` */
            size_t begin = step->units[at] & 0x7fffffff;
            if (begin > step->texts.size) return false;
            if (begin < step->texts.size && !nbl__is_char_start(step->texts.text[begin])) return false;
            const char *end = memchr(step->texts.text + begin, 0, step->texts.size - begin);
            *text = (nbl__slice){step->texts.text + begin,
                                 end ? (size_t)(end - step->texts.text) - begin : step->texts.size - begin};
            return true;
        }
    }
    return false;
}

/* ---- the origin of characters ----
 *
 * Upstream aligns new characters with old ones by counting. Each new character has a `change`:
 *
 *     change 0    it takes the next old character
 *     change 1    it is an additional character and takes none
 *     change -n   it takes the next old character, and n more that were dropped after it
 *
 * Old characters that are dropped when no new character is before them are not counted. So the new
 * characters after them take them. The last new character is held back (`waiting`) because its
 * change is final only when the next one comes. */
typedef struct aligned {
    const nbl__normal *in;
    nbl__sink *out;
    size_t cursor;      /* offset of the next old character */
    uint32_t character; /* the character held back, and its change */
    int64_t change;
    bool waiting; /* a character is held back */
} aligned;

/* Writes the character that is held back. */
static nbl_status flush(aligned *a)
{
    if (!a->waiting) return NBL_OK;
    a->waiting = false;
    size_t at = a->change > 0 && a->cursor > 0 ? a->cursor - 1 : a->cursor;
    NBL_TRY(nbl__sink_put(a->out, a->character, at < a->in->origin));
    for (int64_t i = a->change; i <= 0 && a->cursor < a->in->size; i++)
        a->cursor += (size_t)nbl__char_length(a->in->text + a->cursor);
    return NBL_OK;
}

static nbl_status add(aligned *a, uint32_t c, int64_t change)
{
    NBL_TRY(flush(a));
    a->character = c;
    a->change = change;
    a->waiting = true;
    return NBL_OK;
}

/* Adds `text` as the replacement of the old characters in bytes [begin, end). */
static nbl_status put_text(const nbl__slice *text, size_t begin, size_t end, aligned *a)
{
    int64_t old = 0, new = 0;
    for (size_t at = begin; at < end; at++) old += nbl__is_char_start(a->in->text[at]);
    for (size_t at = 0; at < text->size; new ++) {
        uint32_t c;
        at += (size_t)nbl__char_get(text->text + at, &c);
        NBL_TRY(add(a, c, new >= old));
    }
    if (new < old && a->waiting) a->change -= old - new;
    return NBL_OK;
}

/* Maps the grapheme cluster in[begin, end). */
static nbl_status put_grapheme(const nbl__normalizer *step, size_t begin, size_t end, aligned *a)
{
    nbl__slice text;
    const char *base = a->in->text;
    if (end - begin < 6 && find(step, base + begin, end - begin, &text))
        return put_text(&text, begin, end, a);
    for (size_t at = begin; at < end;) {
        uint32_t c;
        size_t n = (size_t)nbl__char_get(base + at, &c);
        if (find(step, base + at, n, &text)) NBL_TRY(put_text(&text, at, at + n, a));
        else NBL_TRY(add(a, c, 0));
        at += n;
    }
    return NBL_OK;
}

nbl_status nbl__normalize_precompiled(const nbl__normalizer *step, const nbl__normal *in, nbl__sink *out)
{
    int32_t state = 0;
    aligned a = {.in = in, .out = out};
    for (size_t begin = 0; begin < in->size;) {
        uint32_t before, after;
        size_t end = begin + (size_t)nbl__char_get(in->text + begin, &before);
        while (end < in->size) {
            size_t n = (size_t)nbl__char_get(in->text + end, &after);
            if (nbl__char_grapheme_break(before, after, &state)) break;
            before = after;
            end += n;
        }
        NBL_TRY(put_grapheme(step, begin, end, &a));
        begin = end;
    }
    return flush(&a);
}
