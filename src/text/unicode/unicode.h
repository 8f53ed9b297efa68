/* unicode.h - properties of characters, as Hugging Face's tokenizers library ("upstream") sees
 * them.
 *
 * Upstream takes its properties from several Rust crates, and each has another version of Unicode.
 * So the properties of one version would give other ids. unicode_tables.c has what upstream answers
 * for each character; tests/oracle/make_unicode_tables.py generates it. Decompositions come from
 * utf8proc, except for characters that are newer than upstream's tables.
 *
 * A character is a code point, 0 to 0x10FFFF. No function allocates, and none depends on the
 * locale. */
#ifndef NBL_UNICODE_H
#define NBL_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A range of characters, both ends included. Tables are sorted, so that look-ups are binary
 * searches. */
typedef struct nbl__char_range {
    uint32_t first, last;
} nbl__char_range;

typedef struct nbl__char_set {
    const nbl__char_range *ranges;
    int count;
} nbl__char_set;

extern const nbl__char_set nbl__chars_punctuation;  /* Punctuation, BertPreTokenizer; above ASCII */
extern const nbl__char_set nbl__chars_numeric;      /* the pre-tokenizer Digits */
extern const nbl__char_set nbl__chars_word;         /* \w of the regex crate */
extern const nbl__char_set nbl__chars_control;      /* what BertNormalizer's cleaning drops */
extern const nbl__char_set nbl__chars_accent;       /* what StripAccents drops */
extern const nbl__char_set nbl__chars_nonspacing;   /* what BertNormalizer's accent stripping drops */
extern const nbl__char_set nbl__chars_undecomposed; /* too new for upstream's normalization tables */

/* Stand-ins for characters of Unicode 15 and 16: an older character that any regex library knows.
 * It has the same length in UTF-8, the same category and the same script class. */
typedef struct nbl__char_standin {
    uint32_t first, last, standin;
} nbl__char_standin;
extern const nbl__char_standin nbl__char_standins[];
extern const int nbl__char_standin_count;

/* Lower case of characters that utf8proc may be too old for: first + i maps to lower + i. */
typedef struct nbl__char_lower {
    uint32_t first, last, lower;
} nbl__char_lower;
extern const nbl__char_lower nbl__char_lowers[];
extern const int nbl__char_lower_count;

/* True if c is in the set. O(log ranges). */
bool nbl__char_in(const nbl__char_set *set, uint32_t c);

/* The property White_Space. */
static inline bool nbl__char_is_space(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}
/* The offset where the white space that ends at `at` begins. */
size_t nbl__spaces_before(const char *text, size_t at);
/* The offset where the white space that begins at `at` ends; `size` bytes of text. */
size_t nbl__spaces_after(const char *text, size_t size, size_t at);
/* \w of the regex crate. */
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

/* Stores the lower case of c in lower[] and returns its length in characters, 1 or 2. */
int nbl__char_lowercase(uint32_t c, uint32_t lower[2]);

enum { NBL_MAX_DECOMPOSED = 24 }; /* characters; the longest decomposition has 18, that of U+FDFA */
/* Stores the full decomposition of c in parts[] and returns its length in characters. `compatible`
 * selects the compatibility decomposition (NFKD), otherwise it is the canonical one (NFD). */
int nbl__char_decompose(uint32_t c, bool compatible, uint32_t parts[NBL_MAX_DECOMPOSED]);
/* Returns the canonical combining class, 0 to 254; 0 for starters. */
int nbl__char_combining(uint32_t c);
/* Returns the primary composite of two characters, or 0 if they have none. */
uint32_t nbl__char_compose(uint32_t first, uint32_t second);
/* Returns true if a grapheme cluster ends between two neighbouring characters. The caller sets
 * *state to 0 at the start of a text and passes it on from pair to pair. */
bool nbl__char_grapheme_break(uint32_t before, uint32_t after, int32_t *state);
/* Returns the stand-in of c, or c if it has none. */
uint32_t nbl__char_standin_of(uint32_t c);

#endif
