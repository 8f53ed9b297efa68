/* pre_tokenizer.h - the part "pre_tokenizer" of tokenizer.json: steps that cut text into pieces.
 *
 * The model encodes each piece on its own: no token crosses the border of a piece. */
#ifndef NBL_PRE_TOKENIZER_H
#define NBL_PRE_TOKENIZER_H

#include "text/tokenizer/normalizer.h"

typedef enum nbl__pre_kind {
    NBL_PRE_SPLIT,       /* by a regular expression */
    NBL_PRE_CHARACTERS,  /* by a property of characters */
    NBL_PRE_WORDS,       /* Whitespace: runs of word characters, runs of other visible ones */
    NBL_PRE_METASPACE,   /* spaces become `character`, usually U+2581 */
    NBL_PRE_BYTE_LEVEL,  /* bytes become characters (nbl__byte_char) */
    NBL_PRE_FIXED_LENGTH /* by a number of characters */
} nbl__pre_kind;

/* What happens to the delimiters that a step finds. Example: "the-final--countdown", delimiter
 * '-'. */
typedef enum nbl__behavior {
    NBL_BEHAVIOR_REMOVED,              /* the | final | countdown */
    NBL_BEHAVIOR_ISOLATED,             /* the | - | final | - | - | countdown */
    NBL_BEHAVIOR_MERGED_WITH_PREVIOUS, /* the- | final- | - | countdown */
    NBL_BEHAVIOR_MERGED_WITH_NEXT,     /* the | -final | - | -countdown */
    NBL_BEHAVIOR_CONTIGUOUS            /* the | - | final | -- | countdown */
} nbl__behavior;

typedef enum nbl__char_property {
    NBL_CHARS_SPACE,
    NBL_CHARS_PUNCTUATION,
    NBL_CHARS_NUMERIC,
    NBL_CHARS_ONE /* the one character `character` */
} nbl__char_property;

/* One step. Each field names the kinds that use it. */
typedef struct nbl__pre_tokenizer {
    nbl__pre_kind kind;
    nbl__behavior behavior;      /* split, characters */
    bool invert;                 /* split: the text between matches is the delimiter */
    nbl__regex *regex;           /* split; byte level: GPT-2's pattern or NULL. The tokenizer owns it */
    nbl__char_property property; /* characters: which characters are delimiters */
    uint32_t character;          /* characters: the delimiter; metaspace: the replacement */
    enum { NBL_PREPEND_NEVER, NBL_PREPEND_FIRST, NBL_PREPEND_ALWAYS } prepend; /* metaspace */
    bool split;        /* metaspace: also cut in front of each replacement */
    bool prefix_space; /* byte level: put a space in front of a piece that has none */
    int64_t length;    /* fixed length: characters per piece */
} nbl__pre_tokenizer;

#define NBL_GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* A text in pieces: pieces[now] are spans of text[now]. A step reads [now], writes [!now], and
 * flips `now`. */
typedef struct nbl__pre_scratch {
    nbl_context *ctx;
    nbl__matcher *matcher; /* borrowed */
    nbl__bytes text[2];
    nbl__pieces pieces[2];
    nbl__pieces matches; /* one piece, cut into delimiters (id 1) and other text (id 0) */
    int now;
} nbl__pre_scratch;
void nbl__pre_scratch_free(nbl__pre_scratch *scratch);

/* Runs all steps on the pieces in [now]. Pieces of added tokens pass unchanged. The result is in
 * [now]. */
nbl_status nbl__pre_tokenize(const nbl__pre_tokenizer *steps, int count, nbl__pre_scratch *scratch);

#endif
