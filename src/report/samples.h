/* samples.h - samples: a few prompts of the run's data, continued greedily by the model before the
 * first step and after the last one.
 *
 * Prompts depend on the data alone: the first validation examples, else the first examples. A
 * prompt is the tokens before the first trained one; of plain text it is the beginning.
 *
 * Sampling uses memory that training does not need at that time. "before" runs before the training
 * session gets its memory. "after" runs when that memory is freed, with the model opened from the
 * run's result. So samples add nothing to the plan, do not change the run, and show what others
 * will load.
 *
 * "before" is saved in output_dir/samples.json, for a run that is resumed later. */
#ifndef NBL_SAMPLES_H
#define NBL_SAMPLES_H

#include "model/language_model.h"
#include "data/data.h"

enum { NBL_MAX_SAMPLES = 8, NBL_SAMPLE_TOKENS = 48, NBL_SAMPLE_PROMPT = 512 };

typedef struct nbl__sample {
    int64_t example; /* index in the data */
    nbl_ids prompt;  /* at most NBL_SAMPLE_PROMPT tokens */
    /* the prompt; the data's continuation, at most NBL_SAMPLE_TOKENS tokens */
    const char *text, *wanted;
    const char *before, *after; /* the model's continuations; NULL: not generated */
} nbl__sample;

typedef struct nbl__samples {
    nbl__arena arena;
    nbl__sample items[NBL_MAX_SAMPLES];
    int64_t count;
    const char *missing;      /* why there are none, or not all; NULL: all are there */
    nbl_tokenizer *tokenizer; /* the data's */
    const int32_t *ends;
    int64_t end_count;
} nbl__samples;

/* Chooses at most `max` prompts. The data must outlive the samples. Call nbl__samples_close also
 * after an error. */
nbl_status nbl__samples_choose(nbl_context *ctx, nbl__data *data, int64_t max, nbl__samples *samples);
void nbl__samples_close(nbl__samples *samples);
/* Drops all samples and sets `missing` if generating would take more than `bytes`, weights
 * included. */
nbl_status nbl__samples_limit(nbl__samples *samples, nbl_model *model, uint64_t bytes);
/* Continues all prompts. A model that cannot generate is no error: `missing` says why. */
nbl_status nbl__samples_write(nbl__samples *samples, nbl_model *model, bool after);
/* Sets `missing`: why `after` could not be generated. */
void nbl__samples_fail(nbl__samples *samples, const char *why);

/* Writes samples.json. It appears whole or not at all. */
nbl_status nbl__samples_put(const nbl__samples *samples, const char *path);
/* Read `before` from samples.json, for samples with the same example and prompt.
 * nbl__samples_recall ignores a file that is missing or damaged. */
nbl_status nbl__samples_parse(nbl__samples *samples, const char *where, const char *text, size_t size);
nbl_status nbl__samples_recall(nbl__samples *samples, const char *path);

#endif
