/* result_text.h - tokenizer, chat template and special tokens of a run's result.
 *
 * The files are the base model's. The template (chat_template) and the tokens (special_tokens,
 * eot_tokens) that the run trained with replace those in the files. */
#ifndef NBL_RESULT_TEXT_H
#define NBL_RESULT_TEXT_H

#include "format/hf/text_files.h"
#include "run/run_config.h"

/* Fills *source. Its texts belong to the configuration and must not be freed. */
nbl_status nbl__result_text(nbl_context *ctx, const nbl__run_config *config, nbl__text_source *source);

#endif
