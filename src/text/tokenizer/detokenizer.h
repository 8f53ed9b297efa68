/* detokenizer.h - steps from tokens back to text; see decoder.c. */
#ifndef NBL_DECODER_H
#define NBL_DECODER_H

#include "text/tokenizer/normalizer.h"

typedef enum nbl__decoder_kind {
    NBL_DECODE_BYTE_LEVEL,
    NBL_DECODE_BYTE_FALLBACK,
    NBL_DECODE_METASPACE,
    NBL_DECODE_REPLACE,
    NBL_DECODE_FUSE,
    NBL_DECODE_STRIP,
    NBL_DECODE_WORDPIECE,
    NBL_DECODE_CTC,
    NBL_DECODE_BPE
} nbl__decoder_kind;

typedef struct nbl__decoder {
    nbl__decoder_kind kind;
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
typedef struct nbl__decode_scratch {
    nbl_context *ctx;
    nbl__matcher *matcher; /* borrowed */
    nbl__bytes text[2];
    nbl__pieces tokens[2];
    int now;
} nbl__decode_scratch;
void nbl__decode_scratch_free(nbl__decode_scratch *scratch);

nbl_status nbl__decode_steps(const nbl__decoder *steps, int count, nbl__decode_scratch *scratch);

#endif
