/* normalizer.h - steps that rewrite text before it is split; see normalizer.c. */
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

typedef struct nbl__normalizer {
    nbl__normalizer_kind kind;
    bool left, right;   /* strip */
    nbl__regex *regex;  /* replace */
    nbl__slice content; /* replace, prepend */
    /* precompiled: a double-array trie, then texts that end with a zero byte */
    const uint32_t *units;
    size_t unit_count;
    nbl__slice texts;
} nbl__normalizer;

/* Memory of one thread. */
typedef struct nbl__normalizer_scratch {
    nbl_context *ctx;
    nbl__matcher *matcher; /* borrowed */
    nbl__bytes buffers[2];
    uint32_t *characters; /* of the canonical forms: each with its class and origin */
    size_t room;
} nbl__normalizer_scratch;
void nbl__normalizer_scratch_free(nbl__normalizer_scratch *scratch);

/* A text and how many of its leading bytes stem from the input's first character. */
typedef struct nbl__normal {
    const char *text;
    size_t size, origin;
} nbl__normal;

/* Runs all steps. The result is the input itself or lies in the scratch until the next call. */
nbl_status nbl__normalize(const nbl__normalizer *steps, int count, nbl__normalizer_scratch *scratch,
                          nbl__normal *text);

/* Where the output of a step goes. */
typedef struct nbl__sink {
    nbl_context *ctx;
    nbl__bytes *bytes;
    size_t origin;
} nbl__sink;
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

/* The character that stands for a byte in byte-level vocabularies. */
uint32_t nbl__byte_char(unsigned char byte);
/* Its inverse; -1: none. */
int nbl__char_byte(uint32_t c);

/* normalizer_forms.c */
nbl_status nbl__normalize_form(nbl__normalizer_scratch *scratch, nbl__normalizer_kind form,
                               const nbl__normal *in, nbl__sink *out);
/* normalizer_precompiled.c */
nbl_status nbl__normalize_precompiled(const nbl__normalizer *step, const nbl__normal *in, nbl__sink *out);
/* Reads a charsmap, base64 as in the file; its memory comes from the arena. */
nbl_status nbl__precompiled_read(nbl__arena *arena, const char *where, const char *text, size_t size,
                                 nbl__normalizer *step);

#endif
