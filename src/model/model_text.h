/* model_text.h - tokenizer, template and special tokens of a model with an adapter: whose are used. */
#ifndef NBL_MODEL_TEXT_H
#define NBL_MODEL_TEXT_H

#include "format/hf/text_files.h"
#include "model/language_model.h"

/* What a model that is made of base and adapter (NULL: none) gets: files of the adapter's folder where it has them. A
 * tokenizer.json in there that has more tokens than `vocabulary` (0: config.json's vocab_size) and the base's own
 * tokenizer stays behind; then only the adapter's template is taken. What is taken is told to the log. Texts are the
 * arena's. */
nbl_status nbl__adapter_text(nbl__arena *arena, const char *base, const char *adapter, int64_t vocabulary,
                             nbl__text_source *source);

#endif
