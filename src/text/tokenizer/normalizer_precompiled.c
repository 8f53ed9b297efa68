/* normalizer_precompiled.c - SentencePiece's charsmap: a table from short texts to what replaces them.
 *
 * The file's layout after base64: the trie's size in bytes (u32), the trie (darts-clone's double array, u32
 * each), then the replacements, each ended by a zero byte. A grapheme of less than six bytes is looked up
 * whole, else its characters one by one; as upstream, the shortest entry that it begins with counts. Every
 * index is checked: a broken trie finds nothing, or is refused where it leads outside the texts. */
#include "text/chars.h"
#include "text/tokenizer/normalizer.h"
#include "text/unicode/unicode.h"

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Bytes, or -1. */
static int64_t read_base64(const char *text, size_t size, unsigned char *out)
{
    size_t n = 0;
    if (size % 4) return -1;
    for (size_t i = 0; i < size; i += 4) {
        int pad = i + 4 == size ? (text[i + 3] == '=') + (text[i + 3] == '=' && text[i + 2] == '=') : 0;
        uint32_t group = 0;
        for (int k = 0; k < 4; k++) {
            int value = k >= 4 - pad ? 0 : base64_value(text[i + (size_t)k]);
            if (value < 0) return -1;
            group = group << 6 | (uint32_t)value;
        }
        for (int k = 0; k < 3 - pad; k++) out[n++] = (unsigned char)(group >> (16 - 8 * k));
    }
    return (int64_t)n;
}

nbl_status nbl__precompiled_read(nbl__arena *arena, const char *where, const char *text, size_t size,
                                 nbl__normalizer *step)
{
    unsigned char *bytes = nbl__arena_alloc(arena, size / 4 * 3 + 4);
    if (bytes == NULL) return NBL_ERROR_MEMORY;
    int64_t count = read_base64(text, size, bytes);
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

/* The text of the shortest entry that `key` begins with. */
static bool find(const nbl__normalizer *step, const char *key, size_t size, nbl__slice *text)
{
    if (step->unit_count == 0) return false;
    size_t at = 0;
    uint32_t unit = step->units[0];
    at ^= (size_t)(unit >> 10) << ((unit & 512) >> 6);
    for (size_t i = 0; i < size && key[i]; i++) {
        uint32_t c = (unsigned char)key[i];
        at ^= c;
        if (at >= step->unit_count) return false;
        unit = step->units[at];
        if ((unit & 0x800000ff) != c) return false;
        at ^= (size_t)(unit >> 10) << ((unit & 512) >> 6);
        if (at >= step->unit_count) return false;
        if (unit & 256) {
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

/* ---- where characters stem from ----
 *
 * Upstream aligns old and new text by counting: a new character takes the place of the next old one, or is one
 * more (change 1), or stands for some that are gone after it (change < 0). What is dropped with nothing before it
 * is not counted, and so what follows stems from it. The last character waits, because its change may grow. */
typedef struct aligned {
    const nbl__normal *in;
    nbl__sink *out;
    size_t cursor; /* the next old character */
    uint32_t character;
    int64_t change;
    bool waiting;
} aligned;

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

/* `text` for the old characters [begin, end). */
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
