/* records.h - the history of a run: one record per logged step and per evaluation.
 *
 * The history is in memory and in trainer_state.json of every checkpoint. Three files are
 * derived from it: metrics.jsonl, the events for TensorBoard, and the report. A resumed run
 * restores the history of its checkpoint and writes these files anew, so records after the
 * checkpoint disappear. */
#ifndef NBL_RECORDS_H
#define NBL_RECORDS_H

#include "base/json/json.h"

typedef struct nbl__record {
    int64_t step;
    double epoch;
    bool evaluation; /* an evaluation: only step, epoch, loss, best and time are used */
    bool best;       /* the evaluation is the best so far, in a run that keeps the best */
    /* mean over the steps since the last record; or the evaluation loss */
    double loss;
    double grad_norm;         /* of the step, before clipping */
    double learning_rate;     /* of the step */
    double tokens_per_second; /* since the last record; all tokens, there is no padding */
    int64_t trained_tokens;   /* of the step */
    uint64_t memory_bytes;    /* as planned */
    /* highest peak of the step (expert_load.h); 0: the model has no experts, and no key is written */
    double expert_load;
    double time; /* when it was added, in seconds since 1970 */
} nbl__record;

typedef struct nbl__records {
    nbl_context *ctx;
    const char *folder; /* output_dir */
    nbl__record *items;
    int64_t count, room;
    nbl__arena arena;
    const char *metrics, *events; /* paths of the files; set by nbl__records_begin */
} nbl__records;

void nbl__records_close(nbl__records *records);
/* Appends log_history of a trainer_state.json to the history, which should be empty. where: the
 * file's name in messages. NBL_ERROR_FORMAT: an entry that nibble did not write. */
nbl_status nbl__records_restore(nbl__records *records, const char *where, const nbl__json *log_history);
/* Writes metrics.jsonl and the file of events anew, with the history so far. */
nbl_status nbl__records_begin(nbl__records *records);
/* Adds a record to the history and to the files; sets its time. */
nbl_status nbl__records_add(nbl__records *records, nbl__record *record);
/* The record as one JSON object. */
void nbl__record_print(nbl__text *out, const nbl__record *record);

#endif
