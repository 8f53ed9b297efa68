/* added_tokens.h - tokens that are found in the text before anything else happens to it; see added_tokens.c. */
#ifndef NBL_ADDED_TOKENS_H
#define NBL_ADDED_TOKENS_H

#include "text/tokenizer/normalizer.h"

typedef struct nbl__added_token {
    nbl__slice content;
    nbl__slice normal; /* its content after normalisation where that differs; text NULL: none */
    int32_t id;
    bool single_word, left_strip, right_strip, normalized;
    bool special; /* it, or an earlier one of the same content */
} nbl__added_token;

typedef struct nbl__added_tokens {
    nbl_context *ctx;
    nbl__vocab vocab;         /* contents and ids, in step with `tokens` */
    nbl__added_token *tokens; /* [vocab.room] */
    nbl__trie tries[2];       /* of those found before and after normalisation; values are indices */
    bool has[2];              /* the trie is not empty */
    bool starts[2][256];      /* bytes that one of its tokens begins with */
} nbl__added_tokens;

nbl_status nbl__added_open(nbl_context *ctx, nbl__added_tokens *added, size_t count);
void nbl__added_close(nbl__added_tokens *added);
/* Adds a token, or changes the flags of one of the same content. `next_id` is used, and moved on, when neither
 * the model nor these tokens know the content. Slices are borrowed. */
void nbl__added_add(nbl__added_tokens *added, const nbl__model *model, const nbl__added_token *token,
                    int32_t *next_id);
/* Once all are there. `where` opens messages. */
nbl_status nbl__added_finish(nbl__added_tokens *added, const char *where);

/* Cuts a text along the tokens in it: appends pieces, those of tokens with their id, others with -1. Offsets
 * are those of the text; `origin` as in nbl__piece. */
nbl_status nbl__added_split(const nbl__added_tokens *added, bool normalized, const char *text, size_t size,
                            size_t origin, nbl__pieces *pieces);
/* NULL: none of that id. */
const nbl__added_token *nbl__added_get(const nbl__added_tokens *added, int32_t id);
/* Whether a text is that of a special token. */
bool nbl__added_is_special(const nbl__added_tokens *added, const char *text, size_t size);

#endif
