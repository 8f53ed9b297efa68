/* added_tokens.h - the part "added_tokens": tokens that are searched as whole texts, such as
 * <|im_end|>.
 *
 * Added tokens cut the text before the model sees it. The model never splits or joins them.
 * added_tokens.c describes the search. */
#ifndef NBL_ADDED_TOKENS_H
#define NBL_ADDED_TOKENS_H

#include "text/tokenizer/normalizer.h"

typedef struct nbl__added_token {
    nbl__slice content; /* the token's text; borrowed */
    nbl__slice normal;  /* the normalized content if it differs from content; text NULL: it does not */
    int32_t id;
    /* single_word: counts only where no word character touches it. left_strip, right_strip: takes
     * the white space on that side. normalized: searched in the normalized text; false: in the raw
     * text. */
    bool single_word, left_strip, right_strip, normalized;
    bool special; /* this entry, or an earlier entry of the same content, is special */
} nbl__added_token;

typedef struct nbl__added_tokens {
    nbl_context *ctx;
    nbl__vocab vocab;         /* contents and ids; token i of vocab is tokens[i] */
    nbl__added_token *tokens; /* [vocab.room] */
    nbl__trie tries[2];       /* indexed by `normalized`; values are indices into tokens */
    bool has[2];              /* the trie is not empty */
    bool starts[2][256];      /* a token of the trie begins with this byte: skips most positions */
} nbl__added_tokens;

/* Allocates memory for up to `count` tokens. *added must be zeroed. */
nbl_status nbl__added_open(nbl_context *ctx, nbl__added_tokens *added, size_t count);
void nbl__added_close(nbl__added_tokens *added);
/* Adds a token. If a token of the same content exists, it keeps its id and gets the new flags.
 * Otherwise the id is the one that the model's vocabulary has for the content. If the vocabulary
 * lacks the content, the id is *next_id, which is then incremented. token->id is ignored. Slices
 * are borrowed. */
void nbl__added_add(nbl__added_tokens *added, const nbl__vocab_model *model, const nbl__added_token *token,
                    int32_t *next_id);
/* Builds the tries. Call it once, after the last nbl__added_add. Messages begin with `where`. Fails
 * for a token longer than NBL_TRIE_LONGEST. */
nbl_status nbl__added_finish(nbl__added_tokens *added, const char *where);

/* Cuts a text along the added tokens in it and appends the pieces. A token's piece has its id, the
 * text between tokens has id -1. `normalized` selects the set of tokens. `begin` of a piece is an
 * offset into `text`. `origin` is the number of leading bytes of `text` that stem from the input's
 * first character. */
nbl_status nbl__added_split(const nbl__added_tokens *added, bool normalized, const char *text, size_t size,
                            size_t origin, nbl__pieces *pieces);
/* Returns the added token of an id, or NULL. */
const nbl__added_token *nbl__added_get(const nbl__added_tokens *added, int32_t id);
/* Returns true if `text` is the content of a special token. */
bool nbl__added_is_special(const nbl__added_tokens *added, const char *text, size_t size);

#endif
