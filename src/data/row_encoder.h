/* row_encoder.h - opening what rows are written with: tokenizer, chat template, special tokens. */
#ifndef NBL_ROW_ENCODER_H
#define NBL_ROW_ENCODER_H

#include "data/example.h"

/* `config` is borrowed. Close also after a failure. */
nbl_status nbl__row_encoder_open(nbl_context *ctx, const nbl__run_config *config, int64_t vocabulary,
                                 nbl__row_encoder *encoder);
/* The template that `chat_template` chooses; text NULL: the model's own. It lives as long as the configuration. With
 * tokenizer_default_fallback_NAME the model's files are asked. */
nbl_status nbl__run_template(nbl_context *ctx, const nbl__run_config *config, nbl_string *text);
/* The same of a model that is open, with its adapter: for rows of the type chat_template. Close it with
 * nbl__row_encoder_return, which leaves `tokenizer` and `template` to the caller. */
nbl_status nbl__row_encoder_borrow(nbl_model *model, const nbl__run_config *config, nbl_tokenizer *tokenizer,
                                   nbl_chat_template *template, nbl__row_encoder *encoder);
void nbl__row_encoder_return(nbl__row_encoder *encoder);
void nbl__row_encoder_close(nbl__row_encoder *encoder);

#endif
