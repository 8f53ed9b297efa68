/* trainer.h - a run while it trains.
 *
 *   train_open.c   data, model, adapter, plan, optimiser; going on from a checkpoint
 *   train_report.c samples before and after; the report
 *   train_step.c   one optimiser step: a window of micro-batches, forward and backward, clipping, AdamW
 *   train.c        the loop: steps, records, evaluations, checkpoints, the result
 *
 * Everything is planned before the first step; a step allocates nothing but what reading the next rows needs. */
#ifndef NBL_TRAINER_H
#define NBL_TRAINER_H

#include "train/best.h"
#include "data/data.h"
#include "report/report.h"

/* A place where dropout is drawn: its attributes in the arguments of a planned step. */
typedef struct nbl__dropout_site {
    float *rate, trained_rate;
    uint64_t *seed;
    uint64_t mask; /* of its layer, which is added to the layer's seed: */
    int64_t layer; /* every device and every plan, recomputing or not, draws the same */
} nbl__dropout_site;

/* The examples of one optimiser step. */
typedef struct nbl__window {
    int32_t *ids, *labels;        /* [room] */
    nbl_ids *sequences, *targets; /* [most sequences], into ids and labels */
    int64_t room, max_sequences;
    int64_t *starts;      /* [accumulation + 1] sequences of each micro-batch */
    int64_t epoch, batch; /* its first micro-batch's: of the run, and in the epoch */
    int64_t batches, tokens, trained;
    int64_t enqueued; /* micro-batches: the others are still to be run */
    float *losses;    /* [accumulation], and */
    nbl__clipping *clipping;
    size_t result_bytes; /* of both: the host's memory, which the device writes */
    int64_t done;        /* when it has (nbl__memory_event_record) */
} nbl__window;

typedef struct nbl__trainer {
    nbl_context *ctx;
    nbl__arena arena;
    const nbl__run_config *config;
    const nbl_train_options *options; /* who is told; NULL: nobody */
    nbl__data *data;
    nbl_model *model;
    nbl_dtype stored; /* of the base model's weights */
    nbl__session session;
    nbl__optimizer optimizer;
    nbl__records records;
    nbl__epoch epoch, next_epoch, validation; /* next_epoch: when the window that has begun is in it */
    nbl__run_state state;
    nbl__window windows[2], *window; /* of this step, one of the two */
    bool begun; /* the other one is the next step's, and its first micro-batch is enqueued */
    nbl__dropout_site *sites;
    int64_t site_count;
    int64_t max_steps, steps_per_epoch, warmup;
    uint64_t memory_bytes;  /* planned: weights, arenas, moments */
    const char *resumed;    /* the checkpoint gone on from; or NULL */
    nbl__run_values values; /* of config, for checkpoints */
    nbl__name_list history; /* changes of keys in the middle of the run */
    bool changed;           /* the last of them is made now */
    nbl__unremoved unremoved;
    int lock; /* on output_dir; -1: none */
    nbl__samples samples;
    nbl__report report;
} nbl__trainer;

typedef struct nbl__step_result {
    double loss, grad_norm, learning_rate;
    int64_t tokens, trained;
} nbl__step_result;

/* ---- train_open.c ---- */

nbl_status nbl__trainer_open(nbl_context *ctx, const nbl__run_config *config,
                             const nbl_train_options *options, nbl__trainer *trainer);
/* Tells the caller what begins now; `part` of `parts`: batches done, or 0 and 0. */
void nbl__trainer_phase(nbl__trainer *trainer, int64_t part, int64_t parts, const char *what);
/* What a checkpoint is made of, and goes back into. */
nbl__run_parts nbl__trainer_parts(nbl__trainer *trainer);
/* Gives back all memory of training, then opens what the run has written: the model can only generate now. */
nbl_status nbl__trainer_reopen(nbl__trainer *trainer);
void nbl__trainer_close(nbl__trainer *trainer);

/* ---- train_report.c ---- */

/* Samples before the first step; the session is planned, but has no memory yet. */
nbl_status nbl__trainer_sample_before(nbl__trainer *trainer, int samples);
/* Samples of what the run has published; ends training. */
nbl_status nbl__trainer_sample_after(nbl__trainer *trainer);
/* What the report tells of the plan, while there is one. */
void nbl__trainer_describe(nbl__trainer *trainer);

/* ---- train_step.c ---- */

/* `ahead`: another step follows at once. On a device it is begun while this one is still worked on, as far as that
 * changes no parameter: the run can still end after this one. */
nbl_status nbl__trainer_step(nbl__trainer *trainer, bool ahead, nbl__step_result *result);
/* The loss of the examples held back. */
nbl_status nbl__trainer_evaluate(nbl__trainer *trainer, double *loss);

#endif
