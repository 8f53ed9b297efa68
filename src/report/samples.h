/* samples.h - what the model writes before the first step and after the last one: a few prompts of the run's data,
 * continued greedily.
 *
 * Prompts are chosen by the data alone: the first examples held back, else the first ones; of an example the tokens
 * before the first trained one, of plain text its beginning. They are continued one after the other, in memory that
 * training does not need at that time: "before" runs ahead of the training session's memory, "after" when that has
 * been given back, with the model opened anew from what the run has written. So samples add nothing to the plan,
 * change no bit of the run, and show what others will load.
 *
 * "before" is kept in output_dir/samples.json for a run that goes on later. */
#ifndef NBL_SAMPLES_H
#define NBL_SAMPLES_H

#include "model/language_model.h"
#include "data/data.h"

enum { NBL_MAX_SAMPLES = 8, NBL_SAMPLE_TOKENS = 48, NBL_SAMPLE_PROMPT = 512 };

typedef struct nbl__sample {
    int64_t example;
    nbl_ids prompt;
    const char *text, *wanted;  /* the prompt; what the data has behind it, at most so many tokens */
    const char *before, *after; /* NULL: not made */
} nbl__sample;

typedef struct nbl__samples {
    nbl__arena arena;
    nbl__sample items[NBL_MAX_SAMPLES];
    int64_t count;
    const char *missing;      /* why there are none, or not all; NULL: nothing is missing */
    nbl_tokenizer *tokenizer; /* the data's */
    const int32_t *ends;
    int64_t end_count;
} nbl__samples;

/* Chooses at most `most` prompts; the data outlives the samples. Close also after a failure. */
nbl_status nbl__samples_choose(nbl_context *ctx, nbl__data *data, int64_t max, nbl__samples *samples);
void nbl__samples_close(nbl__samples *samples);
/* Drops all samples and says why when generating took more bytes than this, weights included. */
nbl_status nbl__samples_limit(nbl__samples *samples, nbl_model *model, uint64_t bytes);
/* Continues all prompts. A model that cannot is no error: `missing` tells why. */
nbl_status nbl__samples_write(nbl__samples *samples, nbl_model *model, bool after);
/* Why `after` could not be written. */
void nbl__samples_fail(nbl__samples *samples, const char *why);

/* samples.json, written whole. */
nbl_status nbl__samples_put(const nbl__samples *samples, const char *path);
/* Takes `before` from there, where it is the same example and prompt; recall passes over a file that is not there or
 * is damaged. */
nbl_status nbl__samples_parse(nbl__samples *samples, const char *where, const char *text, size_t size);
nbl_status nbl__samples_recall(nbl__samples *samples, const char *path);

#endif
