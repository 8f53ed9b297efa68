/* normalizer.h - the part "normalizer" of tokenizer.json: steps that rewrite text before it is
 * split.
 *
 * normalizer.c has the steps, except for two: normalizer_forms.c has NFC, NFD, NFKC and NFKD,
 * normalizer_precompiled.c has SentencePiece's charsmap. BertNormalizer is read as several
 * steps. */
#ifndef NBL_NORMALIZER_H
#define NBL_NORMALIZER_H

#include "text/vocab/vocab_model.h"
#include "text/unicode/regex.h"

typedef enum nbl__normalizer_kind {
    NBL_NORMALIZE_NFC,
    NBL_NORMALIZE_NFD,
    NBL_NORMALIZE_NFKC,
    NBL_NORMALIZE_NFKD,
    NBL_NORMALIZE_LOWERCASE,
    NBL_NORMALIZE_STRIP,
    NBL_NORMALIZE_STRIP_ACCENTS,
    NBL_NORMALIZE_STRIP_NONSPACING, /* half of BertNormalizer's strip_accents */
    NBL_NORMALIZE_CLEAN,            /* BertNormalizer's clean_text */
    NBL_NORMALIZE_CHINESE,          /* BertNormalizer's handle_chinese_chars */
    NBL_NORMALIZE_NMT,
    NBL_NORMALIZE_REPLACE,
    NBL_NORMALIZE_PREPEND,
    NBL_NORMALIZE_PRECOMPILED,
    NBL_NORMALIZE_BYTE_LEVEL
} nbl__normalizer_kind;

/* One step. Each field names the kinds that use it. */
typedef struct nbl__normalizer {
    nbl__normalizer_kind kind;
    bool left, right;      /* strip: the sides that lose their white space */
    nbl__regex *regex;     /* replace; the tokenizer owns it */
    nbl__slice content;    /* replace: the new text; prepend: the text put in front */
    const uint32_t *units; /* precompiled: double-array trie; values are offsets into `texts` */
    size_t unit_count;
    nbl__slice texts; /* precompiled: the replacements, each ended by a zero byte */
} nbl__normalizer;

/* Memory of one thread. Step i writes buffers[i % 2]. */
typedef struct nbl__normalizer_scratch {
    nbl_context *ctx;
    nbl__matcher *matcher; /* borrowed */
    nbl__bytes buffers[2];
    uint32_t *characters; /* work list of normalizer_forms.c, which describes its layout */
    size_t room;          /* capacity of `characters` */
} nbl__normalizer_scratch;
void nbl__normalizer_scratch_free(nbl__normalizer_scratch *scratch);

/* A text. `origin` is the number of leading bytes that stem from the input's first character. */
typedef struct nbl__normal {
    const char *text;
    size_t size, origin;
} nbl__normal;

/* Runs all steps on *text, which must be valid UTF-8, and replaces *text by the result. The result
 * is the input itself (no steps) or lies in the scratch, where it is valid until the next call. */
nbl_status nbl__normalize(const nbl__normalizer *steps, int count, nbl__normalizer_scratch *scratch,
                          nbl__normal *text);

/* The output of a step: text and its origin, as in nbl__normal. */
typedef struct nbl__sink {
    nbl_context *ctx;
    nbl__bytes *bytes;
    size_t origin;
} nbl__sink;
/* Appends character c. `first`: c stems from the input's first character. */
static inline nbl_status nbl__sink_put(nbl__sink *sink, uint32_t c, bool first)
{
    NBL_TRY(nbl__bytes_reserve(sink->ctx, sink->bytes, 4));
    char *at = sink->bytes->data + sink->bytes->size;
    if (c < 0x80) *at = (char)c, sink->bytes->size++;
    else {
        uint32_t wide = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
        for (uint32_t i = wide - 1; i > 0; i--, c >>= 6) at[i] = (char)(0x80 | (c & 63));
        at[0] = (char)(lead[wide] | c);
        sink->bytes->size += wide;
    }
    if (first) sink->origin = sink->bytes->size;
    return NBL_OK;
}

/* Byte-level vocabularies, GPT-2's invention, write each byte as one printable character, so that a
 * token is always text. Returns the character of a byte, below U+0144. */
uint32_t nbl__byte_char(unsigned char byte);
/* Returns the byte of a character, or -1 if c stands for no byte. */
int nbl__char_byte(uint32_t c);

/* Runs the step NFC, NFD, NFKC or NFKD. In normalizer_forms.c. */
nbl_status nbl__normalize_form(nbl__normalizer_scratch *scratch, nbl__normalizer_kind form,
                               const nbl__normal *in, nbl__sink *out);
/* Runs the step Precompiled. In normalizer_precompiled.c. */
nbl_status nbl__normalize_precompiled(const nbl__normalizer *step, const nbl__normal *in, nbl__sink *out);
/* Decodes a charsmap from base64 into `step`. The arena owns the memory. Messages begin with
 * `where`. */
nbl_status nbl__precompiled_read(nbl__arena *arena, const char *where, const char *text, size_t size,
                                 nbl__normalizer *step);

#endif
