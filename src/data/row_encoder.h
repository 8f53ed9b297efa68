/* row_encoder.h - opens what rows are encoded with: tokenizer, chat template, special tokens.
 * The struct is in example.h. */
#ifndef NBL_ROW_ENCODER_H
#define NBL_ROW_ENCODER_H

#include "data/example.h"

/* Opens what the datasets of the configuration need; nothing if all rows are token ids. `config`
 * must outlive the encoder. Call nbl__row_encoder_close also after an error. */
nbl_status nbl__row_encoder_open(nbl_context *ctx, const nbl__run_config *config, int64_t vocabulary,
                                 nbl__row_encoder *encoder);
/* *text: the template that the key chat_template selects; text NULL: the model's own. It belongs
 * to the configuration or is static. With tokenizer_default_fallback_NAME the model's files are
 * read, to see whether they have a template. */
nbl_status nbl__run_template(nbl_context *ctx, const nbl__run_config *config, nbl_string *text);
/* An encoder for rows of the type chat_template, with the tokenizer, template and end tokens of
 * an open model and its adapter. Close it with nbl__row_encoder_return, which leaves `tokenizer`
 * and `template` to the caller. */
nbl_status nbl__row_encoder_borrow(nbl_model *model, const nbl__run_config *config, nbl_tokenizer *tokenizer,
                                   nbl_chat_template *template, nbl__row_encoder *encoder);
void nbl__row_encoder_return(nbl__row_encoder *encoder);
void nbl__row_encoder_close(nbl__row_encoder *encoder);

#endif
