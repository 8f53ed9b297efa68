/* run.h - nbl_run, the public handle of a training run: its configuration and what is opened for
 * it.
 *
 * Data and tokenizer are opened when first needed and freed by nbl_run_close. Training opens
 * its own (train/trainer.h). */
#ifndef NBL_RUN_H
#define NBL_RUN_H

#include "run/run_config.h"

struct nbl_run {
    nbl_context *ctx;
    nbl__arena arena;
    nbl__run_config config;
    nbl_run_info info;        /* for nbl_run_get_info */
    struct nbl__data *data;   /* NULL: not opened yet */
    nbl__arena preview;       /* memory of the preview shown last */
    nbl_tokenizer *tokenizer; /* for previews of rows of token ids; NULL: not opened, or none */
};

/* *vocabulary: vocab_size of the base model, a folder or .gguf file, from 1 to INT32_MAX. Does not
 * open the weights, so mistakes in the data are found before anything large is read. Warns if
 * sequence_len exceeds the model's positions. */
nbl_status nbl__run_vocabulary(nbl_context *ctx, const nbl__run_config *config, int64_t *vocabulary);
/* Opens the run's data if it is not open yet. */
nbl_status nbl__run_open_data(nbl_run *run);

#endif
