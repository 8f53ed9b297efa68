/* normalizer_forms.c - the Unicode normalization forms NFC, NFD, NFKC and NFKD.
 *
 * Algorithm (Unicode, UAX #15): decompose each character, sort runs of combining marks by their
 * class, and for NFC and NFKC compose again. The code uses utf8proc's tables but not utf8proc's
 * function, for two reasons: upstream's tables are older (unicode.h), and the origin of each
 * character is needed.
 *
 * A character of the work list is one u32:
 *
 *     bits 0-20  code point
 *     bits 21-28 canonical combining class, 0 for starters
 *     bits 29-31 `taken`: number of input characters it stands for, at most 7; 0 if decomposition added it
 *
 * Origin is found by counting, as upstream does. The output characters take the input characters in
 * order, even if sorting has moved marks. A character with taken 0 belongs to the character before
 * it.
 *
 * Cost: linear, because long runs of marks are sorted by counting. */
#include "text/chars.h"
#include "text/tokenizer/normalizer.h"
#include "text/unicode/unicode.h"

#define CODE(c) ((c)&0x1fffff)
#define CLASS(c) ((int)((c) >> 21 & 0xff))
#define TAKEN(c) ((c) >> 29)

/* True if the text is in the form already, by a look at its bytes. NFC changes no text whose
 * characters are all below U+0300 (first byte 0xcc). The other forms change no ASCII text. */
static bool is_stable(nbl__normalizer_kind form, const nbl__normal *in)
{
    unsigned char limit = form == NBL_NORMALIZE_NFC ? 0xcc : 0x80;
    for (size_t i = 0; i < in->size; i++)
        if ((unsigned char)in->text[i] >= limit) return false;
    return true;
}

/* Sorts a run of marks by class. The sort is stable. No class is 0. Short runs use insertion sort;
 * runs from 24 marks on use counting sort, so that a hostile text cannot make it quadratic. */
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

/* Fills s->characters with the decomposed text, marks in canonical order. */
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
    for (size_t i = 0; i < n;) { /* [i, end): a run of marks between two starters */
        size_t end = i;
        while (end < n && CLASS(s->characters[end])) end++;
        if (end - i > 1) NBL_TRY(sort_marks(s->ctx, s->characters + i, end - i));
        i = end + 1;
    }
    *count = n;
    return NBL_OK;
}

/* Composes in place and returns the new count. A character joins the last starter if the pair has a
 * primary composite and no mark between the two blocks it (has the same or a higher class). */
static size_t compose(uint32_t *characters, size_t count)
{
    size_t out = 0, starter = SIZE_MAX;
    int last = 0; /* class of the last character kept after the starter; 0: none */
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

/* Returns the number of input characters that start before byte `end`. */
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
        if (TAKEN(c)) is_first = taken < first; /* taken 0: as the character before */
        taken += TAKEN(c);
        NBL_TRY(nbl__sink_put(out, CODE(c), is_first));
    }
    return NBL_OK;
}
