/* data_parts.h - the inside of nbl__data. data.c reads the rows, epoch.c divides them into
 * validation and training and orders them, pack_examples.c packs them, run_data.c counts and
 * previews them. */
#ifndef NBL_DATA_PARTS_H
#define NBL_DATA_PARTS_H

#include "data/data.h"
#include "data/duplicates.h"
#include "data/read_rows.h"
#include "data/row_encoder.h"

/* What is kept of every example: 40 bytes, so that 10^8 examples take 4 GB. */
typedef struct nbl__example_entry {
    uint64_t offset; /* of its row in the file, in bytes */
    int64_t line;    /* of the row, from 1 */
    /* [tokens] ids, bit 31 set where trained; NULL: tokenized from the row when needed */
    int32_t *kept;
    uint32_t size; /* of the row, in bytes */
    int32_t tokens;
    /* completion: the example begins at token piece * sequence_len of its row; else 0 */
    int32_t piece;
    int32_t source; /* index of the dataset */
} nbl__example_entry;

struct nbl__data {
    nbl_context *ctx;
    const nbl__run_config *config;
    nbl__row_encoder encoder;
    nbl__rows *sources;          /* one per dataset */
    nbl__example_entry *entries; /* one per example, in the order of the files */
    int64_t count, room;
    bool *is_validation; /* [count] the example is for validation */
    int64_t validation_count;
    int64_t max_tokens, max_sequences; /* upper bounds for a micro-batch of any epoch */
    nbl__data_counts counts;
    /* conversations: trained turns, and those whose end token is trained too */
    int64_t turns, ended;
    uint64_t identity;    /* see nbl__data_identity */
    nbl__duplicates seen; /* for dataset_exact_deduplication, while opening */
    nbl__arena kept;      /* memory of all entries' kept tokens */
    int64_t kept_tokens;
    nbl__labelled row;   /* tokens and labels of the row that was encoded last */
    int64_t row_source;  /* dataset of that row; -1: none */
    uint64_t row_offset; /* offset of that row in its file */
};

/* Chooses the validation examples. Called once, after all rows are read. */
nbl_status nbl__data_split_validation(nbl__data *data);
/* Computes max_tokens and max_sequences. Called once, after nbl__data_split_validation. */
nbl_status nbl__data_measure(nbl__data *data);

/* Permutes order[0..count). The permutation depends only on count, seed, stream and number. */
void nbl__shuffle(int64_t *order, int64_t count, uint64_t seed, uint32_t stream, uint64_t number);

/* Best-fit bin packing. sizes[0..items): each 0 .. capacity. bin[i]: the bin of item i; *count:
 * the number of bins. Items are placed in their order, each into the bin where it leaves the
 * smallest remainder. */
nbl_status nbl__pack_best_fit(nbl_context *ctx, const int32_t *sizes, int64_t items, int64_t capacity,
                              int64_t *bin, int64_t *count);

#endif
