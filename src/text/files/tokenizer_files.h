/* tokenizer_files.h - the files that hold a model's tokenizer, and their text as a tokenizer.json.
 *
 *     tokenizer.json                 as it is
 *     tekken.json                    Mistral: byte ranks, a pattern, special tokens      byte_ranks.c
 *     tokenizer.model                SentencePiece's protobuf, BPE or Unigram            sentencepiece_model.c
 *     tokenizer.model, tiktoken.model   lines "base64 rank"                              byte_ranks.c
 *     vocab.json with merges.txt     byte-level BPE                                      vocab_merges.c
 *
 * A file of another form is converted in memory, as transformers 5 does: its own parts, the parts
 * that belong to the tokenizer class, and the tokens of tokenizer_config.json,
 * special_tokens_map.json and added_tokens.json (tokenizer_settings.h). The result is the text of a
 * tokenizer.json. So there is one reader and one engine for all of them, and what writes a
 * vocabulary into a GGUF file sees one form. */
#ifndef NBL_TOKENIZER_FILES_H
#define NBL_TOKENIZER_FILES_H

#include "base/json/json.h"

/* *path: the file of the folder that has its tokenizer, in the arena; NULL: there is none. The
 * order is transformers': the list above from top to bottom. */
nbl_status nbl__tokenizer_find(nbl__arena *arena, const char *folder, const char **path);

/* Appends the tokenizer.json for a tokenizer's file. The file's name decides what it is; a name
 * that says nothing is a tokenizer.json. The caller frees *json also after an error. */
nbl_status nbl__tokenizer_text(nbl_context *ctx, const char *path, nbl__text *json);

#endif
