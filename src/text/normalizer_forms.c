/* normalizer_forms.c - the canonical forms NFC, NFD, NFKC, NFKD: decompose, put marks in order, compose.
 *
 * Own code around utf8proc's tables rather than its ready-made function, because upstream's tables are older
 * (unicode.h) and the origin of every character must be known. Linear: marks of one base are sorted by
 * counting. A character of the work list is code | class << 21 | origin << 29. */
#include "text/chars.h"
#include "text/normalizer.h"
#include "text/unicode.h"

#define CODE(c) ((c)&0x1fffff)
#define CLASS(c) ((int)((c) >> 21 & 0xff))
#define FIRST(c) ((c) >> 29 & 1)

/* Below U+0300 composed text is composed already, and all below U+00A0 stays in any form. */
static bool is_stable(nbl__normalizer_kind form, const nbl__normal *in)
{
    unsigned char limit = form == NBL_NORMALIZE_NFC ? 0xcc : 0x80;
    for (size_t i = 0; i < in->size; i++)
        if ((unsigned char)in->text[i] >= limit) return false;
    return true;
}

/* A stable sort by class; none of them is 0. */
static nbl_status sort_marks(nbl_context *ctx, uint32_t *marks, size_t count)
{
    if (count < 24) {
        for (size_t i = 1; i < count; i++) {
            uint32_t c = marks[i];
            size_t at = i;
            for (; at > 0 && CLASS(marks[at - 1]) > CLASS(c); at--) marks[at] = marks[at - 1];
            marks[at] = c;
        }
        return NBL_OK;
    }
    size_t starts[257] = {0};
    uint32_t *sorted = nbl__alloc_array(ctx, count, sizeof *sorted);
    if (sorted == NULL) return NBL_ERROR_MEMORY;
    for (size_t i = 0; i < count; i++) starts[CLASS(marks[i]) + 1]++;
    for (int i = 0; i < 256; i++) starts[i + 1] += starts[i];
    for (size_t i = 0; i < count; i++) sorted[starts[CLASS(marks[i])]++] = marks[i];
    memcpy(marks, sorted, count * sizeof *marks);
    nbl__free(ctx, sorted, count * sizeof *sorted);
    return NBL_OK;
}

static nbl_status decompose(nbl__normalizer_scratch *s, bool compatible, const nbl__normal *in, size_t *count)
{
    size_t n = 0;
    for (size_t at = 0; at < in->size;) {
        uint32_t c, parts[NBL_MOST_DECOMPOSED];
        size_t length = (size_t)nbl__char_get(in->text + at, &c);
        int number = nbl__char_decompose(c, compatible, parts);
        NBL_TRY(nbl__scratch_grow(s->ctx, (void **)&s->characters, &s->room, n, n + (size_t)number,
                                  sizeof *s->characters));
        uint32_t first = (uint32_t)(at < in->origin) << 29;
        for (int i = 0; i < number; i++)
            s->characters[n++] = parts[i] | (uint32_t)nbl__char_combining(parts[i]) << 21 | first;
        at += length;
    }
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && CLASS(s->characters[end])) end++;
        if (end - i > 1) NBL_TRY(sort_marks(s->ctx, s->characters + i, end - i));
        i = end + 1;
    }
    *count = n;
    return NBL_OK;
}

/* In place; returns the new count. */
static size_t compose(uint32_t *characters, size_t count)
{
    size_t out = 0, starter = SIZE_MAX;
    int last = 0; /* class of what stands last after the starter; 0: nothing */
    for (size_t i = 0; i < count; i++) {
        uint32_t c = characters[i], whole = 0;
        int class = CLASS(c);
        if (starter != SIZE_MAX && (last < class || last == 0))
            whole = nbl__char_compose(CODE(characters[starter]), CODE(c));
        if (whole) {
            characters[starter] = whole | FIRST(characters[starter]) << 29;
            continue;
        }
        if (class == 0) starter = out;
        last = class;
        characters[out++] = c;
    }
    return out;
}

nbl_status nbl__normalize_form(nbl__normalizer_scratch *s, nbl__normalizer_kind form, const nbl__normal *in,
                               nbl__sink *out)
{
    if (is_stable(form, in)) {
        out->origin = in->origin;
        return nbl__bytes_add(out->ctx, out->bytes, in->text, in->size);
    }
    size_t count;
    NBL_TRY(decompose(s, form == NBL_NORMALIZE_NFKC || form == NBL_NORMALIZE_NFKD, in, &count));
    if (form == NBL_NORMALIZE_NFC || form == NBL_NORMALIZE_NFKC) count = compose(s->characters, count);
    for (size_t i = 0; i < count; i++)
        NBL_TRY(nbl__sink_put(out, CODE(s->characters[i]), FIRST(s->characters[i])));
    return NBL_OK;
}
