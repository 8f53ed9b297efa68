/* data.h - what a run trains on: rows of files, made into tokens with labels.
 *
 * Opening reads every row once, checks it and keeps its place and size (a few bytes per example, whatever the
 * size of the file); an example is tokenised again when it is asked for. So files may be larger than memory,
 * and what a run trains on depends on nothing but the files, the configuration and the seed.
 *
 * An epoch is the order of the examples and their division into micro-batches. A micro-batch is a list of
 * examples that are run as one pack without padding, so packing only changes which examples come together. */
#ifndef NBL_DATA_H
#define NBL_DATA_H

#include "run/run_config.h"

typedef struct nbl__data nbl__data;

typedef struct nbl__example {
    const int32_t *ids, *labels; /* a label stands at its own token; -100: not trained */
    int64_t count;
} nbl__example;

typedef struct nbl__data_counts {
    int64_t examples, tokens,
        trained_tokens;               /* labels that are set, except a first one: nothing predicts it */
    int64_t truncated, dropped;       /* dropped: the sum of the five below */
    int64_t too_long, bad, untrained; /* rows; rows that were skipped; examples in which nothing is trained */
    int64_t too_short, duplicates;    /* examples */
} nbl__data_counts;

/* `vocabulary`: all ids lie below it. `config` and its texts must live as long as the data. */
nbl_status nbl__data_open(nbl_context *ctx, const nbl__run_config *config, int64_t vocabulary,
                          nbl__data **data);
void nbl__data_close(nbl__data *data); /* NULL is allowed */
nbl__data_counts nbl__data_count(const nbl__data *data);
/* Why rows were dropped, for people: "2 too long, 1 bad". */
enum { NBL_DROPPED_TEXT = 200 };
const char *nbl__data_dropped(const nbl__data_counts *counts, char text[NBL_DROPPED_TEXT]);
/* A number that tells other data apart (a hash over all tokens and labels): a resumed run checks it. */
uint64_t nbl__data_identity(const nbl__data *data);
/* Index over all examples, in the order of the files. Valid until the next call. */
nbl_status nbl__data_example(nbl__data *data, int64_t index, nbl__example *example);

/* Examples held back for evaluation. */
int64_t nbl__data_held_count(const nbl__data *data);
/* Is this example held back; was its row text, and not tokens? */
typedef struct nbl__example_kind {
    bool held, text;
} nbl__example_kind;
nbl__example_kind nbl__data_kind(const nbl__data *data, int64_t index);
/* The tokenizer of rows that are text (NULL: there are none), and the tokens that end a turn. */
nbl_tokenizer *nbl__data_tokenizer(const nbl__data *data, const int32_t **ends, int64_t *end_count);

typedef struct nbl__epoch {
    int64_t *order;  /* examples, micro-batch by micro-batch */
    int64_t *starts; /* [batch_count + 1] places in order */
    int64_t batch_count;
    int64_t max_tokens, max_sequences; /* of one micro-batch */
    int64_t room;                      /* of order */
} nbl__epoch;

/* The micro-batches of epoch `number` (from 0), or of the examples held back when `validation`. Any epoch is
 * made without the ones before it. */
nbl_status nbl__epoch_make(nbl__data *data, int64_t number, bool validation, nbl__epoch *epoch);
void nbl__epoch_free(nbl_context *ctx, nbl__epoch *epoch);
/* The most tokens and sequences of a micro-batch in any epoch: what a plan is made for. */
void nbl__data_largest(const nbl__data *data, int64_t *tokens, int64_t *sequences);

#endif
