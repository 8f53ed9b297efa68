/* records.h - what a run tells about itself: one record per logged step and per evaluation.
 *
 * The history lives in memory and, with every checkpoint, in its trainer_state.json; metrics.jsonl, the events
 * for TensorBoard and the report are made of it. So a run that is resumed writes them anew up to its checkpoint
 * and goes on as if nothing had happened. */
#ifndef NBL_RECORDS_H
#define NBL_RECORDS_H

#include "base/json/json.h"

typedef struct nbl__record {
    int64_t step;
    double epoch;
    bool evaluation;          /* only step, epoch, loss and best count */
    bool best;                /* an evaluation: the best so far, in a run that keeps the best */
    double loss;              /* the mean since the last record; of an evaluation: eval_loss */
    double grad_norm;         /* of the step, before clipping */
    double learning_rate;     /* of the step */
    double tokens_per_second; /* since the last record, padding none */
    int64_t trained_tokens;   /* of the step */
    uint64_t memory_bytes;    /* as planned */
    double time;              /* seconds since 1970, when it was written */
} nbl__record;

typedef struct nbl__records {
    nbl_context *ctx;
    const char *folder; /* output_dir */
    nbl__record *items;
    int64_t count, room;
    nbl__arena arena;
    const char *metrics, *events; /* paths; after nbl__records_begin */
} nbl__records;

void nbl__records_close(nbl__records *records);
/* Reads the history from log_history of a trainer_state.json. */
nbl_status nbl__records_restore(nbl__records *records, const char *where, const nbl__json *log_history);
/* Writes metrics.jsonl and the events with the history so far. */
nbl_status nbl__records_begin(nbl__records *records);
/* Adds a record to the history and to the files; sets its time. */
nbl_status nbl__records_add(nbl__records *records, nbl__record *record);
/* The record as one JSON object. */
void nbl__record_print(nbl__text *out, const nbl__record *record);

#endif
