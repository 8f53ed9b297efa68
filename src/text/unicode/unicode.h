/* unicode.h - properties of characters, as the tokenizers library sees them.
 *
 * That library takes its properties from several crates of different ages, so a table of one Unicode
 * version would not do: unicode_tables.c holds what it really answers, made by
 * tests/oracle/make_unicode_tables.py. Decompositions come from utf8proc, less what is newer than
 * upstream's own tables. */
#ifndef NBL_UNICODE_H
#define NBL_UNICODE_H

#include <stdbool.h>
#include <stdint.h>

/* First and last character of a range; tables are sorted. */
typedef struct nbl__char_range {
    uint32_t first, last;
} nbl__char_range;

typedef struct nbl__char_set {
    const nbl__char_range *ranges;
    int count;
} nbl__char_set;

extern const nbl__char_set nbl__chars_punctuation;  /* of Punctuation and BertPreTokenizer, beyond ASCII */
extern const nbl__char_set nbl__chars_numeric;      /* of Digits */
extern const nbl__char_set nbl__chars_word;         /* \w of the regex crate */
extern const nbl__char_set nbl__chars_control;      /* what BertNormalizer's cleaning drops */
extern const nbl__char_set nbl__chars_accent;       /* what StripAccents drops */
extern const nbl__char_set nbl__chars_nonspacing;   /* what BertNormalizer's accent stripping drops */
extern const nbl__char_set nbl__chars_undecomposed; /* too new for upstream's normalisation tables */

/* Characters of Unicode 15 and 16: a stand-in of the same length in UTF-8 and the same category and script
 * class, but old enough for any regex library. */
typedef struct nbl__char_standin {
    uint32_t first, last, standin;
} nbl__char_standin;
extern const nbl__char_standin nbl__char_standins[];
extern const int nbl__char_standin_count;

/* Lower case where utf8proc may be too old: `first` ... `last` map to `lower` and on. */
typedef struct nbl__char_lower {
    uint32_t first, last, lower;
} nbl__char_lower;
extern const nbl__char_lower nbl__char_lowers[];
extern const int nbl__char_lower_count;

bool nbl__char_in(const nbl__char_set *set, uint32_t c);

/* The property White_Space. */
static inline bool nbl__char_is_space(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}
static inline bool nbl__char_is_word(uint32_t c)
{
    if (c < 0x80)
        return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    return nbl__char_in(&nbl__chars_word, c);
}
static inline bool nbl__char_is_punctuation(uint32_t c)
{
    if (c < 0x80)
        return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
               (c >= '{' && c <= '~');
    return nbl__char_in(&nbl__chars_punctuation, c);
}
static inline bool nbl__char_is_numeric(uint32_t c)
{
    return c < 0x80 ? c >= '0' && c <= '9' : nbl__char_in(&nbl__chars_numeric, c);
}

/* Lower case of c: one or two characters; returns how many. */
int nbl__char_lowercase(uint32_t c, uint32_t lower[2]);

enum { NBL_MAX_DECOMPOSED = 24 };
/* The full canonical or (`compatible`) compatibility decomposition; returns the number of characters. */
int nbl__char_decompose(uint32_t c, bool compatible, uint32_t parts[NBL_MAX_DECOMPOSED]);
/* The canonical combining class; 0 for starters. */
int nbl__char_combining(uint32_t c);
/* The primary composite of two characters, or 0. */
uint32_t nbl__char_compose(uint32_t first, uint32_t second);
/* Whether a grapheme cluster may end between two characters; *state is 0 at the start of a text. */
bool nbl__char_grapheme_break(uint32_t before, uint32_t after, int32_t *state);
/* The stand-in of c, or c. */
uint32_t nbl__char_standin_of(uint32_t c);

#endif
