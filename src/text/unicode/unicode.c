/* unicode.c - look-ups of character properties; see unicode.h.
 *
 * Sets are sorted ranges. A binary search takes about ten steps. ASCII is answered without one by
 * the inline functions of the header, since most text is ASCII.
 *
 * Decomposition and composition are utf8proc's, with two exceptions: Hangul syllables are computed,
 * and characters that are newer than upstream's tables (nbl__chars_undecomposed) decompose into
 * themselves. */
#include "text/unicode/unicode.h"

#include <utf8proc.h>

/* Finds the first range that ends at or after c; the set contains c if this range begins at or
 * before it. */
bool nbl__char_in(const nbl__char_set *set, uint32_t c)
{
    int low = 0, high = set->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (c > set->ranges[middle].last) low = middle + 1;
        else high = middle;
    }
    return low < set->count && c >= set->ranges[low].first;
}

/* ASCII first, then the exceptions, then utf8proc. */
int nbl__char_lowercase(uint32_t c, uint32_t lower[2])
{
    if (c < 0x80) {
        lower[0] = c >= 'A' && c <= 'Z' ? c + 32 : c;
        return 1;
    }
    if (c == 0x130) { /* U+0130 is the only character whose lower case has two characters */
        lower[0] = 'i';
        lower[1] = 0x307;
        return 2;
    }
    for (int i = 0; i < nbl__char_lower_count; i++)
        if (c >= nbl__char_lowers[i].first && c <= nbl__char_lowers[i].last) {
            lower[0] = nbl__char_lowers[i].lower + (c - nbl__char_lowers[i].first);
            return 1;
        }
    lower[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    return 1;
}

/* True for Hangul syllables. They are composed by formula: (leading * 21 + vowel) * 28 +
 * trailing. */
static bool is_hangul(uint32_t c)
{
    return c >= 0xac00 && c < 0xac00 + 11172;
}

/* A syllable is (leading, vowel) or (leading, vowel, trailing): 588 = 21 * 28 syllables per leading
 * consonant. */
int nbl__char_decompose(uint32_t c, bool compatible, uint32_t parts[NBL_MAX_DECOMPOSED])
{
    parts[0] = c;
    if (c < 0xa0) return 1;
    if (is_hangul(c)) {
        uint32_t index = c - 0xac00;
        parts[0] = 0x1100 + index / 588;
        parts[1] = 0x1161 + index % 588 / 28;
        parts[2] = 0x11a7 + index % 28;
        return index % 28 ? 3 : 2;
    }
    if (nbl__char_in(&nbl__chars_undecomposed, c)) return 1;
    int class = 0;
    utf8proc_option_t how = UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, (utf8proc_int32_t *)parts,
                                                 NBL_MAX_DECOMPOSED, how, &class);
    if (n >= 1 && n <= NBL_MAX_DECOMPOSED) return (int)n;
    parts[0] = c;
    return 1;
}

/* No character below U+0300 combines. */
int nbl__char_combining(uint32_t c)
{
    if (c < 0x300 || nbl__char_in(&nbl__chars_undecomposed, c)) return 0;
    return utf8proc_get_property((utf8proc_int32_t)c)->combining_class;
}

/* Composes Hangul by its formula: leading + vowel, then + trailing. The other pairs are looked up
 * in utf8proc. */
uint32_t nbl__char_compose(uint32_t first, uint32_t second)
{
    if (first >= 0x1100 && first < 0x1113 && second >= 0x1161 && second < 0x1176)
        return 0xac00 + ((first - 0x1100) * 21 + (second - 0x1161)) * 28;
    if (is_hangul(first) && (first - 0xac00) % 28 == 0 && second > 0x11a7 && second < 0x11c3)
        return first + (second - 0x11a7);
    if (second < 0x300 || nbl__char_in(&nbl__chars_undecomposed, second)) return 0;
    /* utf8proc can compose only whole texts: pass a text of two characters. */
    utf8proc_int32_t pair[2] = {(utf8proc_int32_t)first, (utf8proc_int32_t)second};
    utf8proc_ssize_t n = utf8proc_normalize_utf32(pair, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    return n == 1 && pair[0] != (utf8proc_int32_t)first ? (uint32_t)pair[0] : 0;
}

/* A binary search, as in nbl__char_in. */
uint32_t nbl__char_standin_of(uint32_t c)
{
    int low = 0, high = nbl__char_standin_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (c > nbl__char_standins[middle].last) low = middle + 1;
        else high = middle;
    }
    bool found = low < nbl__char_standin_count && c >= nbl__char_standins[low].first;
    return found ? nbl__char_standins[low].standin : c;
}

/* A new character breaks clusters as its stand-in does. */
bool nbl__char_grapheme_break(uint32_t before, uint32_t after, int32_t *state)
{
    return utf8proc_grapheme_break_stateful((utf8proc_int32_t)nbl__char_standin_of(before),
                                            (utf8proc_int32_t)nbl__char_standin_of(after), state);
}
