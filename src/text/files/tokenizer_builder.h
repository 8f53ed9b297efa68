/* tokenizer_builder.h - writes the text of a tokenizer.json for a tokenizer that was read from
 * another form.
 *
 *     open       settings of the folder, memory for the vocabulary
 *     add        the tokens of the model
 *     write      "model", "normalizer", "pre_tokenizer", "decoder": each a member of the document
 *     tokens     added tokens of the form itself, such as those of tekken.json
 *     finish     added tokens of the settings, "added_tokens", "post_processor"
 *
 * Threads: one. Cost: linear in the bytes of the vocabulary, but for the merges, which look up both
 * parts of every split of every token. */
#ifndef NBL_TOKENIZER_BUILDER_H
#define NBL_TOKENIZER_BUILDER_H

#include "base/json/json_write.h"
#include "text/files/tokenizer_settings.h"

/* Bytes of a token of which merges are made. Real tokens have up to 512. */
enum { NBL_LONGEST_TOKEN = 1024 };

typedef struct nbl__tokenizer_builder {
    nbl_context *ctx;
    nbl__arena *arena; /* of the call */
    const char *where; /* path of the tokenizer's file; messages begin with it */
    nbl__text *out;
    nbl__tokenizer_settings settings;
    nbl__tokenizer_class class; /* the class of the settings that counts for this form */
    nbl__vocab vocab;           /* the model's tokens; texts are in the arena or in the file */
    int64_t size;               /* tokens of the model, as the tokenizers library counts them */
    nbl__entry_list extra;      /* special tokens of the form that count where the settings have no list */
    /* A post_processor of the form or class; NULL: none. Settings may replace it. */
    const char *post_processor;

    /* Added tokens, by content: token i of `added` is entries[i]. */
    nbl__vocab added;
    nbl__added_entry *entries; /* `id` is the id that the token gets */
    int64_t max_added;         /* the largest of these ids; -1: none */
} nbl__tokenizer_builder;

/* Opens a builder for up to `count` tokens of the model. The settings must have been read. Close it
 * also after an error. */
nbl_status nbl__builder_open(nbl__tokenizer_builder *builder, int64_t count);
void nbl__builder_close(nbl__tokenizer_builder *builder);

/* The order of the merges that make one token. */
typedef enum nbl__merge_order {
    NBL_MERGES_BY_LEFT, /* by the length of the left part: SentencePiece */
    NBL_MERGES_BY_RANK  /* by the ranks of both parts: byte ranks */
} nbl__merge_order;

/* Writes the texts and ids of the vocabulary as an object. */
void nbl__builder_put_vocab(nbl__tokenizer_builder *builder);
/* Writes "merges": every way to make a token of two tokens, tokens by id. A token whose id is set in
 * `gone` ([size], or NULL) is in no merge. Fails for a token longer than NBL_LONGEST_TOKEN. */
nbl_status nbl__builder_put_merges(nbl__tokenizer_builder *builder, const nbl__vocab *vocab,
                                   nbl__merge_order order, const bool *gone);
/* Writes a string with quotes. */
void nbl__builder_put_string(nbl__tokenizer_builder *builder, nbl__slice text);

/* Makes room for `count` added tokens besides those of the settings. Call it once, before the
 * first. */
nbl_status nbl__builder_reserve(nbl__tokenizer_builder *builder, int64_t count);
/* Adds a token, as tokenizers' add_tokens does: a token of the same content gets the new flags, but
 * stays special if it was; else the id is that of the model, or the next free one. */
void nbl__builder_add(nbl__tokenizer_builder *builder, const nbl__added_entry *entry);

/* Adds the tokens of the settings, and writes "added_tokens" and "post_processor". */
nbl_status nbl__builder_finish(nbl__tokenizer_builder *builder);

/* ---- the forms; each writes all members of the document ---- */

/* tekken.json; in byte_ranks.c. */
nbl_status nbl__build_tekken(nbl__tokenizer_builder *builder, const char *text, size_t size);
/* Lines "base64 rank"; in byte_ranks.c. */
nbl_status nbl__build_tiktoken(nbl__tokenizer_builder *builder, const char *text, size_t size);
/* True if a file begins with such a line. */
bool nbl__looks_like_tiktoken(const char *text, size_t size);
/* SentencePiece's protobuf; in sentencepiece_model.c. */
nbl_status nbl__build_sentencepiece(nbl__tokenizer_builder *builder, const char *text, size_t size);
/* vocab.json, whose text this is, and merges.txt; in vocab_merges.c. */
nbl_status nbl__build_vocab_merges(nbl__tokenizer_builder *builder, const char *text, size_t size,
                                   const char *merges, size_t merges_size);

/* JSON of parts that several forms have. */
#define NBL_JSON_BYTE_DECODER                                                                                \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true}"
#define NBL_JSON_BYTE_POST                                                                                   \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":false,\"use_regex\":true}"
/* Writes "pre_tokenizer": pieces of a pattern, then bytes as characters. */
void nbl__builder_put_split(nbl__tokenizer_builder *builder, const char *pattern, bool prefix_space);

#endif
