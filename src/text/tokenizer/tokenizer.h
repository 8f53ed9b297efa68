/* tokenizer.h - the parts of a tokenizer and how text goes through them:
 *
 *   text ─▶ added tokens ─▶ normalizer ─▶ added tokens ─▶ pre-tokenizer ─▶ model ─▶ truncation ─▶ post-processor
 *   ids  ─▶ tokens ─▶ decoder ─▶ text
 *
 * A tokenizer is constant once it is open. Each thread that encodes or decodes has its own nbl__worker, which
 * keeps memory from text to text. */
#ifndef NBL_TOKENIZER_H
#define NBL_TOKENIZER_H

#include "base/json/json.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/pre_tokenizer.h"

typedef enum nbl__side { NBL_SIDE_RIGHT, NBL_SIDE_LEFT } nbl__side;

typedef struct nbl__truncation {
    bool on;
    nbl__side side;
    uint64_t max, stride; /* tokens */
    enum { NBL_TRUNCATE_FIRST, NBL_TRUNCATE_SECOND } of;
} nbl__truncation;

typedef struct nbl__padding {
    bool on;
    nbl__side side;
    uint64_t fixed; /* pad to this length; 0: to the longest of a batch */
    bool is_fixed;
    uint64_t multiple; /* 0: any length */
    int32_t id;
} nbl__padding;

/* What the post-processor makes of a sequence: ids, and -1 where the sequence goes. */
typedef struct nbl__frame {
    int32_t *items;
    int64_t count;
} nbl__frame;

struct nbl_tokenizer {
    nbl_context *ctx;
    nbl__arena arena; /* texts of tokens, steps */
    nbl__model model;
    nbl__added_tokens added;
    nbl__normalizer *normalizers;
    int normalizer_count;
    nbl__pre_tokenizer *pre_tokenizers;
    int pre_tokenizer_count;
    nbl__decoder *detokenizers;
    int detokenizer_count;
    bool has_detokenizer;
    nbl__regex **regexes; /* of the steps; owned */
    int regex_count, regex_room;
    nbl__frame plain, framed; /* without and with special tokens */
    uint64_t frame_tokens;    /* that upstream counts the post-processor to add */
    nbl__truncation truncation;
    nbl__padding padding;
    bool limits;                 /* truncation and padding are applied (nbl_tokenizer_set_limits) */
    int32_t bos, eos;            /* of a GGUF file; -1: none */
    struct nbl__worker *workers; /* one per thread of the context, made when first needed */
    int worker_count;
};

typedef struct nbl__worker {
    nbl__matcher matcher;
    nbl__normalizer_scratch normalizer;
    nbl__pre_scratch pre;
    nbl__detokenize_scratch decode;
    nbl__model_scratch model;
    nbl__pieces found;
    nbl__ids ids;
} nbl__worker;

/* Keeps a regex until the tokenizer closes; it takes it over also when it fails. */
nbl_status nbl__tokenizer_keep(nbl_tokenizer *tokenizer, nbl__regex *regex);

/* The ids of a text, in worker->ids: before truncation and padding, without frame. */
nbl_status nbl__tokenizer_pieces(const nbl_tokenizer *tokenizer, nbl__worker *worker, const char *text,
                                 size_t size);

/* ---- reading tokenizer.json; tokenizer_json.c and json_*.c ---- */

typedef struct nbl__reader {
    nbl_tokenizer *tokenizer;
    nbl_context *ctx;
    nbl__arena *arena; /* of the tokenizer */
    const char *where; /* the file's path */
} nbl__reader;

nbl_status nbl__tokenizer_read_json(nbl_tokenizer *tokenizer, const char *where, const char *text,
                                    size_t size);
/* vocab_gguf.c */
nbl_status nbl__tokenizer_read_gguf(nbl_tokenizer *tokenizer, const char *path);

nbl_status nbl__read_model(nbl__reader *reader, const nbl__json *value);
nbl_status nbl__read_normalizer(nbl__reader *reader, const nbl__json *value);
nbl_status nbl__read_pre_tokenizer(nbl__reader *reader, const nbl__json *value);
nbl_status nbl__read_detokenizer(nbl__reader *reader, const nbl__json *value);
nbl_status nbl__read_post_processor(nbl__reader *reader, const nbl__json *value);
nbl_status nbl__read_added_tokens(nbl__reader *reader, const nbl__json *value);
nbl_status nbl__read_truncation(nbl__reader *reader, const nbl__json *value);
nbl_status nbl__read_padding(nbl__reader *reader, const nbl__json *value);

/* Members of an object, with an error that names `part`, the key and what it must be. */
typedef enum nbl__need {
    NBL_NEEDED,
    NBL_DEFAULTED, /* absent: the value stays as it is */
    NBL_OPTIONAL   /* the same, and also null */
} nbl__need;
nbl_status nbl__want_bool(nbl__reader *, const char *part, const nbl__json *, const char *key, nbl__need,
                          bool *);
nbl_status nbl__want_text(nbl__reader *, const char *part, const nbl__json *, const char *key, nbl__need,
                          nbl__slice *);
nbl_status nbl__want_natural(nbl__reader *, const char *part, const nbl__json *, const char *key, nbl__need,
                             uint64_t *);
nbl_status nbl__want_char(nbl__reader *, const char *part, const nbl__json *, const char *key, nbl__need,
                          uint32_t *);
/* The text of the member "type". */
nbl_status nbl__want_type(nbl__reader *, const char *part, const nbl__json *, const char **type);
/* {"String": s} or {"Regex": r} of the member "pattern". */
nbl_status nbl__want_pattern(nbl__reader *, const char *part, const nbl__json *, nbl__regex **regex);
/* An id: a natural number below 2^31 - 1. */
bool nbl__json_id(const nbl__json *value, int32_t *id);

/* Calls `step` for each part of a list of parts: the value itself, or the members of sequences of them ("type":
 * "Sequence", the list under `list`), nested at most 16 deep. */
typedef nbl_status (*nbl__step_fn)(nbl__reader *reader, const nbl__json *value);
nbl_status nbl__each_step(nbl__reader *reader, const char *part, const nbl__json *value, const char *list,
                          nbl__step_fn step, int depth);
/* How many steps that are at most. */
int64_t nbl__count_steps(const nbl__json *value, const char *list, int depth);

#endif
