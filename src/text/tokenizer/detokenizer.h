/* detokenizer.h - the part "decoder" of tokenizer.json: steps that turn the texts of tokens into
 * text.
 *
 * Each step maps a list of token texts to a new list. The result is the texts of the last list, one
 * after the other. */
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

/* One step. Each field names the kinds that use it. */
typedef struct nbl__detokenizer_step {
    nbl__detokenizer_kind kind;
    uint32_t character;   /* metaspace: becomes a space. strip: is removed */
    bool never_prepended; /* metaspace: prepend_scheme "never", a leading space is kept */
    int64_t start, stop;  /* strip: max characters removed at the start and at the end of a token */
    nbl__regex *regex;    /* replace; the tokenizer owns it */
    nbl__slice content;   /* replace: the new text */
    nbl__slice prefix;    /* wordpiece: prefix; ctc: pad token; bpe: end-of-word suffix */
    nbl__slice delimiter; /* ctc: becomes a space */
    bool cleanup;         /* wordpiece, ctc: remove spaces before punctuation */
} nbl__detokenizer_step;

/* The current list of tokens and the next one. The texts are one after the other in text[now];
 * tokens[now] has their offsets and sizes. A step reads [now] and writes [!now]. */
typedef struct nbl__detokenize_scratch {
    nbl_context *ctx;
    nbl__matcher *matcher; /* borrowed */
    nbl__bytes text[2];
    nbl__pieces tokens[2];
    int now;
} nbl__detokenize_scratch;
void nbl__detokenize_scratch_free(nbl__detokenize_scratch *scratch);

/* Runs all steps on the list in text[now] and tokens[now]. The result is in [now] afterwards. */
nbl_status nbl__detokenize_steps(const nbl__detokenizer_step *steps, int count,
                                 nbl__detokenize_scratch *scratch);

#endif
