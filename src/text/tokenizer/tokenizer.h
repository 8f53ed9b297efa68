/* tokenizer.h - the tokenizer: its parts, and the order in which text and ids pass through them.
 *
 *   text ─▶ added tokens ─▶ normalizer ─▶ added tokens ─▶ pre-tokenizer ─▶ model ─▶ truncation ─▶ post-processor
 *   ids  ─▶ tokens ─▶ detokenizer ─▶ text
 *
 * The parts are those of Hugging Face's tokenizers library ("upstream" in this folder), and the ids
 * are the same as upstream's. One part in the file may be a sequence of steps. Reading flattens
 * such sequences, so every part is an array of steps in memory.
 *
 * Threads: everything that the files define is constant after opening. All memory that changes
 * while text is encoded or detokenized is in an nbl__tokenizer_worker, and each thread of the context has its
 * own. */
#ifndef NBL_TOKENIZER_H
#define NBL_TOKENIZER_H

#include "base/json/json.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/pre_tokenizer.h"

typedef enum nbl__side { NBL_SIDE_RIGHT, NBL_SIDE_LEFT } nbl__side;

/* The part "truncation" of tokenizer.json. */
typedef struct nbl__truncation {
    bool on;
    nbl__side side;       /* the side that is cut off */
    uint64_t max, stride; /* tokens; the stride is checked but unused: overflow is not returned */
    enum { NBL_TRUNCATE_FIRST, NBL_TRUNCATE_SECOND } of;
} nbl__truncation;

/* The part "padding" of tokenizer.json. Target length: `fixed` or the longest list of the batch,
 * rounded up to a multiple of `multiple`. */
typedef struct nbl__padding {
    bool on;
    nbl__side side;    /* the side where padding is added */
    uint64_t fixed;    /* length in tokens, used if is_fixed */
    bool is_fixed;     /* false: pad to the longest list of the batch */
    uint64_t multiple; /* tokens; 0: no rounding */
    int32_t id;        /* id of the padding token */
} nbl__padding;

/* What the post-processor puts around a sequence: token ids, and -1 at the position of the
 * sequence. Example: [CLS] A [SEP] is {101, -1, 102}. */
typedef struct nbl__frame {
    int32_t *items;
    int64_t count;
} nbl__frame;

struct nbl_tokenizer {
    nbl_context *ctx;
    nbl__arena arena; /* owns the texts of tokens and the arrays of steps */
    nbl__vocab_model model;
    nbl__added_tokens added;
    nbl__normalizer *normalizers;
    int normalizer_count;
    nbl__pre_tokenizer *pre_tokenizers;
    int pre_tokenizer_count;
    nbl__detokenizer_step *detokenizers;
    int detokenizer_count;
    bool has_detokenizer; /* false: token texts are joined with one space, as upstream does */
    nbl__regex **regexes; /* owns the patterns that steps point to */
    int regex_count, regex_room;
    nbl__frame plain, framed; /* frame without and with special tokens */
    uint64_t frame_tokens;    /* tokens that the post-processor adds, as upstream counts them */
    nbl__truncation truncation;
    nbl__padding padding;
    /* truncation and padding are applied (nbl_tokenizer_set_truncation_and_padding) */
    bool limits;
    int32_t bos, eos;                      /* ids from a GGUF file; -1: none */
    struct nbl__tokenizer_worker *workers; /* one per thread of the context, indexed by thread number */
    int worker_count;
};

/* Memory of one thread. It is kept from text to text, and freed when the tokenizer closes. */
typedef struct nbl__tokenizer_worker {
    nbl__matcher matcher;
    nbl__normalizer_scratch normalizer;
    nbl__pre_scratch pre;
    nbl__detokenize_scratch decode;
    nbl__vocab_scratch model;
    nbl__pieces found; /* the raw text, cut along added tokens that are not normalized */
    nbl__ids ids;      /* result of nbl__tokenizer_pieces */
} nbl__tokenizer_worker;

/* Makes the tokenizer the owner of `regex`, which is freed when the tokenizer closes. On an error
 * `regex` is freed at once. */
nbl_status nbl__tokenizer_keep(nbl_tokenizer *tokenizer, nbl__regex *regex);

/* Encodes `text`, which must be valid UTF-8, into worker->ids. Previous ids are discarded.
 * Truncation, frame and padding are not applied. */
nbl_status nbl__tokenizer_pieces(const nbl_tokenizer *tokenizer, nbl__tokenizer_worker *worker,
                                 const char *text, size_t size);

/* ---- reading tokenizer.json; tokenizer_json.c and tokenizer_json_*.c ---- */

/* What every reading function needs. */
typedef struct nbl__tokenizer_reader {
    nbl_tokenizer *tokenizer; /* filled part by part */
    nbl_context *ctx;
    nbl__arena *arena; /* the tokenizer's arena */
    const char *where; /* path of the file; messages begin with it */
} nbl__tokenizer_reader;

/* Fills an empty tokenizer from the text of a tokenizer.json. Errors: NBL_ERROR_FORMAT for a
 * malformed file, NBL_ERROR_UNSUPPORTED for a valid file with a step that nibble lacks. The
 * tokenizer keeps no pointer into `text`. */
nbl_status nbl__tokenizer_read_json(nbl_tokenizer *tokenizer, const char *where, const char *text,
                                    size_t size);
/* Fills an empty tokenizer from the vocabulary of a GGUF file. In vocab_gguf.c. */
nbl_status nbl__tokenizer_read_gguf(nbl_tokenizer *tokenizer, const char *path);

/* One function per part of tokenizer.json. `value` is the part, or NULL if the file has none. */
nbl_status nbl__read_model(nbl__tokenizer_reader *reader, const nbl__json *value);
nbl_status nbl__read_normalizer(nbl__tokenizer_reader *reader, const nbl__json *value);
nbl_status nbl__read_pre_tokenizer(nbl__tokenizer_reader *reader, const nbl__json *value);
nbl_status nbl__read_detokenizer(nbl__tokenizer_reader *reader, const nbl__json *value);
nbl_status nbl__read_post_processor(nbl__tokenizer_reader *reader, const nbl__json *value);
nbl_status nbl__read_added_tokens(nbl__tokenizer_reader *reader, const nbl__json *value);
nbl_status nbl__read_truncation(nbl__tokenizer_reader *reader, const nbl__json *value);
nbl_status nbl__read_padding(nbl__tokenizer_reader *reader, const nbl__json *value);

/* The functions nbl__want_* read one member of an object. An error message names `part`, the key
 * and the type that the member must have. nbl__presence says whether the member may be missing. */
typedef enum nbl__presence {
    NBL_PRESENCE_REQUIRED, /* a missing member is an error */
    NBL_PRESENCE_DEFAULT,  /* a missing member leaves the result unchanged; null is an error */
    NBL_PRESENCE_OPTIONAL  /* a missing member and null leave the result unchanged */
} nbl__presence;
nbl_status nbl__get_bool(nbl__tokenizer_reader *, const char *part, const nbl__json *, const char *key,
                         nbl__presence, bool *);
nbl_status nbl__get_text(nbl__tokenizer_reader *, const char *part, const nbl__json *, const char *key,
                         nbl__presence, nbl__slice *);
nbl_status nbl__get_natural(nbl__tokenizer_reader *, const char *part, const nbl__json *, const char *key,
                            nbl__presence, uint64_t *);
nbl_status nbl__get_char(nbl__tokenizer_reader *, const char *part, const nbl__json *, const char *key,
                         nbl__presence, uint32_t *);
/* Reads the member "type", which must be a text. */
nbl_status nbl__get_type(nbl__tokenizer_reader *, const char *part, const nbl__json *, const char **type);
/* Reads the member "pattern": {"String": s} is a literal text, {"Regex": r} a regular expression.
 * The tokenizer owns *regex. */
nbl_status nbl__get_pattern(nbl__tokenizer_reader *, const char *part, const nbl__json *, nbl__regex **regex);
/* Reads an id: a natural number below 2^31 - 1. Returns false for anything else. */
bool nbl__json_id(const nbl__json *value, int32_t *id);

/* Calls `step` for each step of a part, in order. A value of "type": "Sequence" is flattened: its
 * members are in the array under the key `list`, and may be sequences themselves. Nesting is
 * limited to 16 levels. The caller passes depth 0. */
typedef nbl_status (*nbl__step_fn)(nbl__tokenizer_reader *reader, const nbl__json *value);
nbl_status nbl__each_step(nbl__tokenizer_reader *reader, const char *part, const nbl__json *value,
                          const char *list, nbl__step_fn step, int depth);
/* Returns an upper bound for the number of steps in memory, for allocating the array. */
int64_t nbl__count_steps(const nbl__json *value, const char *list, int depth);

#endif
