/* model_text.h - chooses between the tokenizer, chat template and special tokens of the base model
 * and those of its adapter. */
#ifndef NBL_MODEL_TEXT_H
#define NBL_MODEL_TEXT_H

#include "format/hf/text_files.h"
#include "model/language_model.h"

/* Chooses the text files of a merged or exported model. The adapter's files win over the base's.
 * Exception: an adapter's tokenizer.json with more tokens than both `vocabulary` and the base's
 * tokenizer is not used, and only the adapter's chat template is taken.
 *
 * base, adapter  folders; adapter NULL, or a path that is no folder: the base's files alone
 * vocabulary     rows of the embedding; 0: read vocab_size from the base's config.json
 * source         the result; its strings live in the arena
 *
 * The log says what was taken from the adapter. */
nbl_status nbl__adapter_text(nbl__arena *arena, const char *base, const char *adapter, int64_t vocabulary,
                             nbl__text_source *source);

#endif
