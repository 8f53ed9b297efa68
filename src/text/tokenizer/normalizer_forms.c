/* normalizer_forms.c - the canonical forms NFC, NFD, NFKC, NFKD: decompose, put marks in order, compose.
 *
 * Own code around utf8proc's tables rather than its ready-made function, because upstream's tables are older
 * (unicode.h) and the origin of every character must be known. Linear: marks of one base are sorted by
 * counting. A character of the work list is code | class << 21 | taken << 29: how many characters of the input
 * it stands for, 0 for what decomposition added. As upstream counts, characters take those of the input in
 * order, also after marks have changed places, and what was added belongs to what stands before it. */
#include "text/chars.h"
#include "text/tokenizer/normalizer.h"
#include "text/unicode/unicode.h"

#define CODE(c) ((c)&0x1fffff)
#define CLASS(c) ((int)((c) >> 21 & 0xff))
#define TAKEN(c) ((c) >> 29)

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
        uint32_t c, parts[NBL_MAX_DECOMPOSED];
        size_t length = (size_t)nbl__char_get(in->text + at, &c);
        int number = nbl__char_decompose(c, compatible, parts);
        NBL_TRY(nbl__scratch_grow(s->ctx, (void **)&s->characters, &s->room, n, n + (size_t)number,
                                  sizeof *s->characters));
        for (int i = 0; i < number; i++)
            s->characters[n++] = parts[i] | (uint32_t)nbl__char_combining(parts[i]) << 21 |
                                 (uint32_t)(i == 0) << 29;
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
            uint32_t taken = TAKEN(characters[starter]) + TAKEN(c);
            characters[starter] = whole | (taken < 7 ? taken : 7) << 29;
            continue;
        }
        if (class == 0) starter = out;
        last = class;
        characters[out++] = c;
    }
    return out;
}

/* Characters of the input that start before byte `end`. */
static size_t characters_before(const nbl__normal *in, size_t end)
{
    size_t count = 0;
    for (size_t at = 0; at < in->size && at < end; count++) {
        uint32_t c;
        at += (size_t)nbl__char_get(in->text + at, &c);
    }
    return count;
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
    size_t first = characters_before(in, in->origin), taken = 0;
    bool is_first = false;
    for (size_t i = 0; i < count; i++) {
        uint32_t c = s->characters[i];
        if (TAKEN(c)) is_first = taken < first;
        taken += TAKEN(c);
        NBL_TRY(nbl__sink_put(out, CODE(c), is_first));
    }
    return NBL_OK;
}
