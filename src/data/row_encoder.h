/* row_encoder.h - opening what rows are written with: tokenizer, chat template, special tokens. */
#ifndef NBL_SCRIBE_H
#define NBL_SCRIBE_H

#include "data/example.h"

/* `config` is borrowed. Close also after a failure. */
nbl_status nbl__scribe_open(nbl_context *ctx, const nbl__run_config *config, int64_t vocabulary,
                            nbl__scribe *scribe);
/* The template that `chat_template` chooses; text NULL: the model's own. It lives as long as the configuration. With
 * tokenizer_default_fallback_NAME the model's files are asked. */
nbl_status nbl__run_template(nbl_context *ctx, const nbl__run_config *config, nbl_string *text);
/* The same of a model that is open, with its adapter: for rows of the type chat_template. Close it with
 * nbl__scribe_return, which leaves `tokenizer` and `template` to the caller. */
nbl_status nbl__scribe_borrow(nbl_model *model, const nbl__run_config *config, nbl_tokenizer *tokenizer,
                              nbl_chat_template *template, nbl__scribe *scribe);
void nbl__scribe_return(nbl__scribe *scribe);
void nbl__scribe_close(nbl__scribe *scribe);

#endif
