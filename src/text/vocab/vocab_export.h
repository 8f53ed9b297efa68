/* vocab_export.h - the tokenizer of a model's folder as the entries of a GGUF file, the inverse of vocab_gguf.c. */
#ifndef NBL_VOCAB_EXPORT_H
#define NBL_VOCAB_EXPORT_H

#include "format/hf/text_files.h"
#include "format/gguf/gguf_write.h"

/* What else than the entries is needed of it: in the arena. */
typedef struct nbl__exported_vocab {
    nbl_string chat_template; /* text NULL: none */
    const char *bos, *eos;    /* NULL: none */
    bool adds_bos;            /* readers put BOS in front of a text */
} nbl__exported_vocab;

/* Puts tokenizer.ggml.… and tokenizer.chat_template for a vocabulary of `size` tokens. Byte-level BPE becomes "gpt2",
 * BPE that falls back to bytes "llama"; other kinds are refused by name, as is a pre-tokenizer that GGUF has no name
 * for. `config` is config.json, for ids that the tokenizer does not tell. */
nbl_status nbl__vocab_export(nbl__arena *arena, const nbl__text_source *source, const nbl__json *config,
                             int64_t size, nbl__gguf_writer *w, nbl__exported_vocab *exported);

/* The same from the text of a tokenizer.json alone; `where` opens messages. */
nbl_status nbl__vocab_export_text(nbl__arena *arena, const char *where, nbl_string text, int64_t size,
                                  nbl__gguf_writer *w, nbl__exported_vocab *exported);

/* Of vocab_gguf.c: the name of a pre-tokenizer that splits by these patterns in turn; false: there is none. */
enum { NBL_PRE_NAME = 32 };
bool nbl__gguf_pre_name(const char *const *patterns, int count, char name[NBL_PRE_NAME]);

#endif
