/* detokenizer.h - steps from tokens back to text; see detokenizer.c. */
#ifndef NBL_DETOKENIZER_H
#define NBL_DETOKENIZER_H

#include "text/tokenizer/normalizer.h"

typedef enum nbl__detokenizer_kind {
    NBL_DETOKENIZE_BYTE_LEVEL,
    NBL_DETOKENIZE_BYTE_FALLBACK,
    NBL_DETOKENIZE_METASPACE,
    NBL_DETOKENIZE_REPLACE,
    NBL_DETOKENIZE_FUSE,
    NBL_DETOKENIZE_STRIP,
    NBL_DETOKENIZE_WORDPIECE,
    NBL_DETOKENIZE_CTC,
    NBL_DETOKENIZE_BPE
} nbl__detokenizer_kind;

typedef struct nbl__decoder {
    nbl__detokenizer_kind kind;
    uint32_t character;   /* metaspace, strip */
    bool never_prepended; /* metaspace */
    int64_t start, stop;  /* strip: at most so many characters on either side */
    nbl__regex *regex;    /* replace */
    nbl__slice content;   /* replace */
    nbl__slice prefix;    /* wordpiece; ctc: the pad token; bpe: the suffix */
    nbl__slice delimiter; /* ctc */
    bool cleanup;         /* wordpiece, ctc */
} nbl__decoder;

/* Tokens as texts: one after the other in `text`, their places in `tokens`. */
typedef struct nbl__detokenize_scratch {
    nbl_context *ctx;
    nbl__matcher *matcher; /* borrowed */
    nbl__bytes text[2];
    nbl__pieces tokens[2];
    int now;
} nbl__detokenize_scratch;
void nbl__detokenize_scratch_free(nbl__detokenize_scratch *scratch);

nbl_status nbl__detokenize_steps(const nbl__decoder *steps, int count, nbl__detokenize_scratch *scratch);

#endif
