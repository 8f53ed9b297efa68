/* trainer.h - the state of one training run, from its opening to its result.
 *
 *   train_open.c   opens data, model, adapter, plan and optimizer; resumes from a checkpoint
 *   train_report.c samples before and after training; the report's description of the run
 *   train_step.c   one optimizer step: micro-batches, forward, backward, clipping, AdamW
 *   train.c        the loop: steps, records, evaluations, checkpoints, the result
 *
 * Terms. A micro-batch is one forward and backward pass. A step batch is the micro-batches of one
 * optimizer step: gradient_accumulation_steps of them, fewer at the end of an epoch.
 *
 * Memory: weights, activations, gradients and moments are planned and allocated before the first
 * step. A step allocates only what reading the next rows and ordering the next epoch need.
 * Threads: one thread uses a trainer. Kernels run on the context's threads or on its device. */
#ifndef NBL_TRAINER_H
#define NBL_TRAINER_H

#include "train/best.h"
#include "data/data.h"
#include "report/report.h"

/* The examples of one optimizer step, and what the device reports of the step. ids and labels hold
 * the sequences of all micro-batches one after the other; micro-batch b is
 * sequences[starts[b]] .. sequences[starts[b + 1] - 1]. All arrays belong to the trainer's arena,
 * except clipping, losses and loads, which are one piece of host memory that a device can write. */
typedef struct nbl__step_batch {
    int32_t *ids, *labels;        /* [room] tokens */
    nbl_ids *sequences, *targets; /* [max_sequences], pointing into ids and labels */
    int64_t room, max_sequences;
    int64_t *starts;      /* [accumulation + 1] index of each micro-batch's first sequence */
    int64_t epoch, batch; /* of the first micro-batch: its epoch, and its index in that epoch */
    /* micro-batches in this step batch, all its tokens, and those whose label counts in the loss */
    int64_t batches, tokens, trained;
    int64_t enqueued;        /* micro-batches handed to the device so far, 0 .. batches */
    float *losses;           /* [accumulation] loss of each micro-batch, already divided */
    nbl__clipping *clipping; /* norm of the gradients, before losses in the same memory */
    int32_t *loads;          /* [accumulation, rows, experts + 1] of expert_load; behind losses */
    size_t result_bytes;     /* of clipping, losses and loads together */
    int64_t done;            /* event: the device has written clipping, losses and loads */
} nbl__step_batch;

typedef struct nbl__trainer {
    nbl_context *ctx;
    nbl__arena arena;
    const nbl__run_config *config;
    const nbl_train_options *options; /* the caller's callback; NULL: no callback */
    nbl__data *data;
    nbl_model *model;
    nbl_dtype stored; /* dtype of the base model's weights on disk */
    nbl__session session;
    nbl__optimizer optimizer;
    nbl__records records;
    /* next_epoch is filled when a step batch begins in the epoch after `epoch`. */
    nbl__epoch epoch, next_epoch, validation;
    nbl__run_state state;
    nbl__step_batch step_batches[2], *step_batch; /* step batch: the one of the two that this step uses */
    bool next_enqueued; /* the other step batch is the next step's; its first micro-batch is enqueued */
    int64_t max_steps, steps_per_epoch, warmup; /* in optimizer steps */
    uint64_t memory_bytes;                      /* planned: weights, arenas, moments */
    const char *resumed;                        /* folder of the checkpoint resumed from; or NULL */
    nbl__run_values values;                     /* the keys of config that checkpoints record */
    nbl__name_list history;                     /* changes of keys at earlier resumes and now */
    bool changed;                               /* this resume has added to history */
    nbl__stale_checkpoints stale_checkpoints;
    int lock; /* descriptor that locks output_dir; -1: none */
    nbl__samples samples;
    nbl__expert_load expert_load;
    nbl__report report;
} nbl__trainer;

typedef struct nbl__step_result {
    /* loss: mean over the trained tokens of the step batch; grad_norm: before clipping */
    double loss, grad_norm, learning_rate;
    int64_t tokens, trained; /* all tokens; tokens whose label counts in the loss */
    double expert_load;      /* the highest peak of a layer; 0: no experts */
} nbl__step_result;

/* ---- train_open.c ---- */

/* Opens everything a run needs and stands before its next step. config and options must outlive the
 * trainer. After an error the trainer is closed. */
nbl_status nbl__trainer_open(nbl_context *ctx, const nbl__run_config *config,
                             const nbl_train_options *options, nbl__trainer *trainer);
/* Sends NBL_TRAIN_PHASE with the text `what`. part of parts: batches done; 0 of 0: not counted. */
void nbl__trainer_phase(nbl__trainer *trainer, int64_t part, int64_t parts, const char *what);
/* The parts of the trainer that a checkpoint saves and restores. Everything in it is borrowed. */
nbl__run_parts nbl__trainer_parts(nbl__trainer *trainer);
/* Frees session, optimizer and model, then opens the result in output_dir as trainer->model. That
 * model can generate; it cannot be trained further. */
nbl_status nbl__trainer_reopen(nbl__trainer *trainer);
/* Frees everything and unlocks output_dir. Does nothing on a closed trainer. */
void nbl__trainer_close(nbl__trainer *trainer);

/* ---- train_report.c ---- */

/* Generates samples before the first step. `samples` as in nbl_train_options. To be called between
 * planning and binding: the session has no memory yet, so generation can use it. */
nbl_status nbl__trainer_sample_before(nbl__trainer *trainer, int samples);
/* Generates samples of the published result. Ends training: see nbl__trainer_reopen. An error in
 * sampling is recorded in the samples; only lack of memory and of disk is returned. */
nbl_status nbl__trainer_sample_after(nbl__trainer *trainer);
/* Fills trainer->report from the plan. To be called while the session is open. */
void nbl__trainer_describe(nbl__trainer *trainer);

/* ---- train_step.c ---- */

/* Runs one optimizer step. `ahead`: another step follows without evaluation or checkpoint between.
 * Then a device may start forward and backward of the next step's first micro-batch before this
 * step's results are read. Parameters do not change by that, so the run can still end here.
 * A non-finite loss is NBL_ERROR_FORMAT and names the layer; a non-finite gradient is an error too,
 * except in f16, where the loss scale is halved and the step repeated. */
nbl_status nbl__trainer_step(nbl__trainer *trainer, bool ahead, nbl__step_result *result);
/* The mean loss per trained token over the validation examples; 0 if no token is trained.
 * Overwrites the examples in trainer->step_batch. Must not follow a step with `ahead`. */
nbl_status nbl__trainer_evaluate(nbl__trainer *trainer, double *loss);

#endif
