/* run.h - a training run as the public interface hands it around: its configuration and the memory it is in. */
#ifndef NBL_RUN_H
#define NBL_RUN_H

#include "run/run_config.h"

struct nbl_run {
    nbl_context *ctx;
    nbl__arena arena;
    nbl__run_config config;
    nbl_model *planned;       /* of the last nbl_run_make_plan; or NULL */
    struct nbl__data *data;   /* opened when first asked for */
    nbl__arena preview;       /* of the example shown last */
    nbl_tokenizer *tokenizer; /* of rows that are tokens already; NULL: not opened, or none */
};

/* vocab_size of the base, a folder or .gguf file, without opening its weights: mistakes in the data show before anything
 * large is read. Warns if sequence_len is beyond the model's positions. */
nbl_status nbl__run_vocabulary(nbl_context *ctx, const nbl__run_config *config, int64_t *vocabulary);
/* Opens the run's data if it is not open yet. */
nbl_status nbl__run_open_data(nbl_run *run);

#endif
