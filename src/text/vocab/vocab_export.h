/* vocab_export.h - writes the tokenizer of a model's folder as entries of a GGUF file. The inverse
 * of vocab_gguf.c. */
#ifndef NBL_VOCAB_EXPORT_H
#define NBL_VOCAB_EXPORT_H

#include "format/hf/text_files.h"
#include "format/gguf/gguf_write.h"

/* What the caller needs to know about the exported tokenizer. The texts are in the arena. */
typedef struct nbl__exported_vocab {
    nbl_string chat_template; /* text NULL: none */
    const char *bos, *eos;    /* NULL: none */
    bool adds_bos;            /* add_bos_token: readers put BOS in front of a text */
} nbl__exported_vocab;

/* Writes tokenizer.ggml.* and tokenizer.chat_template for a vocabulary of `size` tokens. Byte-level
 * BPE becomes "gpt2", BPE with byte fallback becomes "llama". Other models, and pre-tokenizers that
 * GGUF has no name for, are NBL_ERROR_UNSUPPORTED; the message names them. `config` is config.json:
 * it supplies ids of special tokens that tokenizer_config.json lacks. Without a tokenizer.json the
 * model is written as "no_vocab", with a warning. */
nbl_status nbl__vocab_export(nbl__arena *arena, const nbl__text_source *source, const nbl__json *config,
                             int64_t size, nbl__gguf_writer *w, nbl__exported_vocab *exported);

/* The same from the text of a tokenizer.json alone, without a chat template. Messages begin with
 * `where`. */
nbl_status nbl__vocab_export_text(nbl__arena *arena, const char *where, nbl_string text, int64_t size,
                                  nbl__gguf_writer *w, nbl__exported_vocab *exported);

/* Finds the name of the pre-tokenizer that splits by exactly these patterns, in this order. Returns
 * false if GGUF has no such name. In vocab_gguf.c. */
enum { NBL_PRE_NAME = 32 };
bool nbl__gguf_pre_name(const char *const *patterns, int count, char name[NBL_PRE_NAME]);

#endif
