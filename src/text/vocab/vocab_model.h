/* vocab_model.h - what turns a piece of text into ids: BPE, Unigram, WordPiece, WordLevel, and the BPE by score of
 * GGUF vocabularies. A model is constant once made; every thread brings its own nbl__model_scratch. */
#ifndef NBL_MODEL_H
#define NBL_MODEL_H

#include "text/scratch.h"
#include "text/vocab/trie.h"

typedef enum nbl__model_kind {
    NBL_MODEL_BPE,
    NBL_MODEL_UNIGRAM,
    NBL_MODEL_WORDPIECE,
    NBL_MODEL_WORDLEVEL,
    NBL_MODEL_SCORED /* SentencePiece BPE of llama.cpp: merges by the score of what they make */
} nbl__model_kind;

typedef struct nbl__slice {
    const char *text;
    size_t size;
} nbl__slice;

/* Two neighbours that become one. */
typedef struct nbl__merge {
    uint32_t left, right; /* ids + 1; left 0: a free slot */
    uint32_t rank;
    int32_t id;
} nbl__merge;

typedef struct nbl__model {
    nbl_context *ctx;
    nbl__model_kind kind;
    nbl__vocab vocab;
    int64_t size; /* tokens, as upstream counts them: added tokens get the ids from there on */

    /* BPE */
    nbl__merge *merges;        /* hash table */
    size_t merge_slots;        /* a power of two */
    nbl__slice prefix, suffix; /* of continuing subwords, of the end of a word; size 0: none */
    bool fuse_unknown, ignore_merges;
    int32_t single[0x250]; /* id of each character below, with neither prefix nor suffix; -1: none */

    /* all */
    bool has_unknown; /* an unknown token is named... */
    int32_t unknown;  /* ...with this id; -1: it is not in the vocabulary */
    const char *unknown_text;
    bool byte_fallback;
    int32_t bytes[256];   /* ids of <0x00> ... <0xFF>; -1: none */
    int64_t longest_word; /* WordPiece: characters */

    /* Unigram and SCORED: by id */
    double *scores;
    size_t score_count;
    double lowest;
    nbl__trie trie; /* Unigram: the texts, with their ids */
} nbl__model;

typedef struct nbl__model_scratch {
    nbl_context *ctx;
    void *memory[3]; /* symbols, queue, nodes: whatever the model keeps there */
    size_t room[3];
    nbl__bytes text;
    nbl__ids ids;
} nbl__model_scratch;

void nbl__model_close(nbl__model *model);
void nbl__model_scratch_free(nbl__model_scratch *scratch);

/* Finishes a model whose vocabulary is filled: unknown token, bytes, single characters. */
void nbl__model_finish(nbl__model *model);

/* Room for the merges; then each merge. */
nbl_status nbl__bpe_open(nbl__model *model, size_t count);
void nbl__bpe_add(nbl__model *model, int32_t left, int32_t right, uint32_t rank, int32_t id);
nbl_status nbl__unigram_build(nbl__model *model,
                              const char *where); /* once vocabulary and scores are there */

/* Appends the ids of one piece, which is not empty. */
nbl_status nbl__model_run(const nbl__model *model, nbl__model_scratch *scratch, const char *text, size_t size,
                          nbl__ids *ids);

nbl_status nbl__bpe_run(const nbl__model *, nbl__model_scratch *, const char *, size_t, nbl__ids *);
nbl_status nbl__unigram_run(const nbl__model *, nbl__model_scratch *, const char *, size_t, nbl__ids *);
nbl_status nbl__wordpiece_run(const nbl__model *, nbl__model_scratch *, const char *, size_t, nbl__ids *);
nbl_status nbl__scored_run(const nbl__model *, nbl__model_scratch *, const char *, size_t, nbl__ids *);

#endif
