/* vocab_model.h - tokenizer models, which turn one piece of text into ids.
 *
 *     BPE        merges pairs of symbols in the order of their rank        vocab_bpe.c
 *     Unigram    the split into tokens with the highest sum of scores      vocab_unigram.c
 *     SCORED     SentencePiece BPE: merges the pair with the best score    vocab_scored.c
 *     WordPiece  the longest token from each position                      vocab_model.c
 *     WordLevel  a piece is one token                                      vocab_model.c
 *
 * Threads: a model is constant after nbl__vocab_model_finish. Each thread has its own
 * nbl__vocab_scratch. */
#ifndef NBL_VOCAB_MODEL_H
#define NBL_VOCAB_MODEL_H

#include "text/scratch.h"
#include "text/vocab/trie.h"

typedef enum nbl__vocab_model_kind {
    NBL_VOCAB_MODEL_BPE,
    NBL_VOCAB_MODEL_UNIGRAM,
    NBL_VOCAB_MODEL_WORDPIECE,
    NBL_VOCAB_MODEL_WORDLEVEL,
    NBL_VOCAB_MODEL_SCORED /* SentencePiece BPE of GGUF files, as llama.cpp runs it */
} nbl__vocab_model_kind;

/* A borrowed text. It need not be terminated. */
typedef struct nbl__slice {
    const char *text;
    size_t size;
} nbl__slice;

/* A merge: two neighbours that become one token. An entry of the hash table `merges`. */
typedef struct nbl__bpe_merge {
    uint32_t left, right; /* ids + 1; left 0: a free slot */
    uint32_t rank;        /* merges of low rank come first */
    int32_t id;           /* the merged token */
} nbl__bpe_merge;

typedef struct nbl__vocab_model {
    nbl_context *ctx;
    nbl__vocab_model_kind kind;
    nbl__vocab vocab;
    int64_t size; /* tokens, as upstream counts them: the first free id for an added token */

    /* BPE */
    nbl__bpe_merge *merges;    /* hash table, open addressing */
    size_t merge_slots;        /* a power of two, at least twice the merges */
    nbl__slice prefix, suffix; /* put before continuing subwords and after a word; size 0: none */
    /* fuse_unknown: a run of unknown characters is one unknown token. ignore_merges: a piece that
     * is a token becomes that token without any merges. */
    bool fuse_unknown, ignore_merges;
    int32_t single[0x250]; /* by code point: id of the character's token; -1: none. Saves a look-up */

    /* all models */
    bool has_unknown; /* the file names an unknown token */
    int32_t unknown;  /* id of the unknown token; -1: it is not in the vocabulary */
    const char *unknown_text;
    bool byte_fallback;   /* unknown characters become the tokens of their bytes */
    int32_t bytes[256];   /* ids of <0x00> ... <0xFF>; -1: none */
    int64_t longest_word; /* WordPiece: longer words, in characters, become the unknown token */

    /* Unigram and SCORED */
    double *scores; /* by id */
    size_t score_count;
    double lowest;  /* Unigram: the lowest score */
    nbl__trie trie; /* Unigram: the texts, with their ids */
} nbl__vocab_model;

/* Memory of one thread. */
typedef struct nbl__vocab_scratch {
    nbl_context *ctx;
    void *memory[3]; /* arrays of the model that runs: symbols and queue, or nodes and ends */
    size_t room[3];  /* bytes */
    nbl__bytes text;
    nbl__ids ids;
} nbl__vocab_scratch;

void nbl__vocab_model_close(nbl__vocab_model *model);
void nbl__vocab_scratch_free(nbl__vocab_scratch *scratch);

/* Fills the tables `bytes` and `single`. Call it once, when the vocabulary is complete. */
void nbl__vocab_model_finish(nbl__vocab_model *model);

/* Allocates the table for up to `count` merges. */
nbl_status nbl__bpe_open(nbl__vocab_model *model, size_t count);
/* Adds a merge of two ids; `id` is the merged token. A pair that is known gets the new rank and
 * id. */
void nbl__bpe_add(nbl__vocab_model *model, int32_t left, int32_t right, uint32_t rank, int32_t id);
/* Builds the trie and `lowest`. Call it when the vocabulary and the scores are complete. */
nbl_status nbl__unigram_build(nbl__vocab_model *model, const char *where);

/* Appends the ids of one piece to `ids`. The piece must be valid UTF-8 and not empty. Fails if an
 * unknown character needs an unknown token and the vocabulary has none. */
nbl_status nbl__vocab_model_run(const nbl__vocab_model *model, nbl__vocab_scratch *scratch, const char *text,
                                size_t size, nbl__ids *ids);

/* The models behind nbl__vocab_model_run. */
nbl_status nbl__bpe_run(const nbl__vocab_model *, nbl__vocab_scratch *, const char *, size_t, nbl__ids *);
nbl_status nbl__unigram_run(const nbl__vocab_model *, nbl__vocab_scratch *, const char *, size_t, nbl__ids *);
nbl_status nbl__wordpiece_run(const nbl__vocab_model *, nbl__vocab_scratch *, const char *, size_t,
                              nbl__ids *);
nbl_status nbl__scored_run(const nbl__vocab_model *, nbl__vocab_scratch *, const char *, size_t, nbl__ids *);

#endif
