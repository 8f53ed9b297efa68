/* result_text.h - tokenizer, chat template and special tokens of a run's result: the base
 * model's files, with the template (`chat_template`) and the tokens (`special_tokens`) that the
 * run trained with. */
#ifndef NBL_RESULT_TEXT_H
#define NBL_RESULT_TEXT_H

#include "format/hf/text_files.h"
#include "run/run_config.h"

/* Texts in it are the configuration's. */
nbl_status nbl__result_text(nbl_context *ctx, const nbl__run_config *config, nbl__text_source *source);

#endif
