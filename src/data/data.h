/* data.h - what a run trains on: rows of files, converted to tokens with labels.
 *
 * Row: one record of a data file. Example: the tokens and labels of one row; a row of the type
 * completion gives one example per sequence_len tokens.
 *
 * Opening reads every row once, checks it, and keeps its offset and size: 40 bytes per example.
 * Tokens are kept too while all of them together are at most 16 Mi (data.c); beyond that a row is
 * tokenized again when its example is asked for. So files may be larger than memory. The examples
 * and their order depend only on the files, the configuration and the seed.
 *
 * An epoch is the order of the examples and their division into micro-batches. The examples of a
 * micro-batch run as one sequence pack without padding. So sample_packing only changes which
 * examples run together.
 *
 * Threads: one thread uses an nbl__data. */
#ifndef NBL_DATA_H
#define NBL_DATA_H

#include "run/run_config.h"

typedef struct nbl__data nbl__data;

typedef struct nbl__example {
    const int32_t *ids, *labels; /* labels[i]: ids[i] or what the row says; -100: not trained */
    int64_t count;
} nbl__example;

typedef struct nbl__data_counts {
    int64_t examples, tokens,
        trained_tokens; /* labels other than -100, except at position 0: nothing predicts it */
    /* rows cut to sequence_len; the sum of the five counts below */
    int64_t truncated, dropped;
    /* rows; malformed rows (skip_bad_rows); examples without a label */
    int64_t too_long, bad, untrained;
    /* examples below min_sample_len; examples equal to an earlier one */
    int64_t too_short, duplicates;
} nbl__data_counts;

/* Reads all datasets of the configuration. vocabulary: every id must be below it. `config` and
 * its texts must outlive the data. A malformed row is an error with file and line, unless
 * skip_bad_rows. */
nbl_status nbl__data_open(nbl_context *ctx, const nbl__run_config *config, int64_t vocabulary,
                          nbl__data **data);
void nbl__data_close(nbl__data *data); /* NULL is allowed */
nbl__data_counts nbl__data_count(const nbl__data *data);
/* The reasons for dropped rows as text: "2 too long, 1 bad". Returns `text`. */
enum { NBL_DROPPED_TEXT = 200 };
const char *nbl__data_dropped(const nbl__data_counts *counts, char text[NBL_DROPPED_TEXT]);
/* A hash over all tokens and labels in the order of the files. A resumed run compares it with its
 * checkpoint's. */
uint64_t nbl__data_identity(const nbl__data *data);
/* Example `index`, in the order of the files, training and validation together. *example is
 * valid until the next call. NBL_ERROR_IO: the file has changed since opening. */
nbl_status nbl__data_example(nbl__data *data, int64_t index, nbl__example *example);

/* The number of validation examples (val_set_size). */
int64_t nbl__data_held_count(const nbl__data *data);
/* is_validation: not trained on. text: its row was text, not token ids. */
typedef struct nbl__example_kind {
    bool is_validation, text;
} nbl__example_kind;
nbl__example_kind nbl__data_kind(const nbl__data *data, int64_t index);
/* The tokenizer for rows of text; NULL: all rows are token ids. *ends: the tokens that end a
 * turn. Both belong to the data. */
nbl_tokenizer *nbl__data_tokenizer(const nbl__data *data, const int32_t **ends, int64_t *end_count);

typedef struct nbl__epoch {
    int64_t *order; /* indices of examples, micro-batch by micro-batch */
    /* [batch_count + 1] micro-batch b is order[starts[b]] .. order[starts[b + 1] - 1] */
    int64_t *starts;
    int64_t batch_count;
    int64_t max_tokens, max_sequences; /* of the largest micro-batch */
    int64_t room;                      /* elements allocated for order */
} nbl__epoch;

/* The micro-batches of training epoch `number`, from 0, or of the validation examples. Each
 * epoch is computed without the ones before it. Free with nbl__epoch_free. Cost: O(examples). */
nbl_status nbl__epoch_make(nbl__data *data, int64_t number, bool validation, nbl__epoch *epoch);
void nbl__epoch_free(nbl_context *ctx, nbl__epoch *epoch);
/* Upper bounds of the tokens and sequences of a micro-batch in any epoch. The plan is made for
 * them. */
void nbl__data_largest(const nbl__data *data, int64_t *tokens, int64_t *sequences);

#endif
