/* data_parts.h - the data of a run from inside; data.c fills it, epoch.c orders it. */
#ifndef NBL_DATA_PARTS_H
#define NBL_DATA_PARTS_H

#include "data/data.h"
#include "data/duplicates.h"
#include "data/read_rows.h"
#include "data/row_encoder.h"

/* What is known of an example without its row: 40 bytes. */
typedef struct nbl__example_entry {
    uint64_t offset; /* of its row in the file */
    int64_t line;
    int32_t *kept;  /* its tokens, the highest bit set where trained; NULL: made again from the row */
    uint32_t size;  /* bytes of the row */
    int32_t tokens; /* of the example */
    int32_t piece;  /* the row's tokens from piece * sequence_len on */
    int32_t source;
} nbl__example_entry;

struct nbl__data {
    nbl_context *ctx;
    const nbl__run_config *config;
    nbl__row_encoder encoder;
    nbl__rows *sources;          /* one per dataset */
    nbl__example_entry *entries; /* one per example, in the order of the files */
    int64_t count, room;
    bool *held; /* the example is for validation */
    int64_t held_count;
    int64_t max_tokens, max_sequences; /* of a micro-batch */
    nbl__data_counts counts;
    int64_t turns, ended; /* of chats: turns that are trained, and those whose end token is */
    uint64_t identity;
    nbl__duplicates seen; /* of dataset_exact_deduplication */
    nbl__arena kept;
    int64_t kept_tokens;
    nbl__labelled row; /* tokens of the row that was made last */
    int64_t row_source;
    uint64_t row_offset;
};

/* Decides which examples are held back; once, at the end of opening. */
nbl_status nbl__data_hold(nbl__data *data);
/* Then finds the bounds of micro-batches. */
nbl_status nbl__data_measure(nbl__data *data);

/* A permutation of order[0..count) that `seed`, `stream` and `number` alone decide. */
void nbl__shuffle(int64_t *order, int64_t count, uint64_t seed, uint32_t stream, uint64_t number);

/* Bins of at most `capacity` for sizes (each at most that): bin[i] is that of item i; returns how many in *count.
 * Items are put in the order they come, each where it leaves the least room. */
nbl_status nbl__pack_best_fit(nbl_context *ctx, const int32_t *sizes, int64_t items, int64_t capacity,
                              int64_t *bin, int64_t *count);

#endif
