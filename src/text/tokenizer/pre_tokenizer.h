/* pre_tokenizer.h - steps that cut text into pieces before the model sees them; see pre_tokenizer.c. */
#ifndef NBL_PRE_TOKENIZER_H
#define NBL_PRE_TOKENIZER_H

#include "text/tokenizer/normalizer.h"

typedef enum nbl__pre_kind {
    NBL_PRE_SPLIT,      /* by a regular expression */
    NBL_PRE_CHARACTERS, /* by a property of characters */
    NBL_PRE_WORDS,      /* Whitespace: runs of word characters, runs of other visible ones */
    NBL_PRE_METASPACE,
    NBL_PRE_BYTE_LEVEL,
    NBL_PRE_FIXED_LENGTH
} nbl__pre_kind;

typedef enum nbl__behavior {
    NBL_BEHAVIOR_REMOVED,
    NBL_BEHAVIOR_ISOLATED,
    NBL_BEHAVIOR_MERGED_WITH_PREVIOUS,
    NBL_BEHAVIOR_MERGED_WITH_NEXT,
    NBL_BEHAVIOR_CONTIGUOUS
} nbl__behavior;

typedef enum nbl__char_property {
    NBL_CHARS_SPACE,
    NBL_CHARS_PUNCTUATION,
    NBL_CHARS_NUMERIC,
    NBL_CHARS_ONE /* the one character `character` */
} nbl__char_property;

typedef struct nbl__pre_tokenizer {
    nbl__pre_kind kind;
    nbl__behavior behavior;
    bool invert;       /* split: what does not match is the delimiter */
    nbl__regex *regex; /* split; byte level: NULL or GPT-2's */
    nbl__char_property property;
    uint32_t character; /* metaspace: the replacement */
    enum { NBL_PREPEND_NEVER, NBL_PREPEND_FIRST, NBL_PREPEND_ALWAYS } prepend;
    bool split;        /* metaspace */
    bool prefix_space; /* byte level */
    int64_t length;    /* fixed length: characters */
} nbl__pre_tokenizer;

#define NBL_GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* A text in pieces. A step reads one and writes the other; texts and pieces of the result are in [now]. */
typedef struct nbl__pre_scratch {
    nbl_context *ctx;
    nbl__matcher *matcher; /* borrowed */
    nbl__bytes text[2];
    nbl__pieces pieces[2];
    nbl__pieces matches; /* of one piece, in turn delimiters and not: id 1 and 0 */
    int now;
} nbl__pre_scratch;
void nbl__pre_scratch_free(nbl__pre_scratch *scratch);

nbl_status nbl__pre_tokenize(const nbl__pre_tokenizer *steps, int count, nbl__pre_scratch *scratch);

#endif
