/* config.h - config.json: the values that format code needs, and edits of top-level keys that keep
 * every other byte of the text. What an architecture needs is read from `root` by arch/. */
#ifndef NBL_CONFIG_H
#define NBL_CONFIG_H

#include "base/json/json.h"

typedef struct nbl__config {
    const char *text; /* the file, terminated */
    size_t size;
    const nbl__json *root;
    /* First of architectures, and model_type; NULL when absent. */
    const char *architecture, *model_type;
    const nbl__json *quantization; /* the object quantization_config; NULL when absent */
    /* tie_word_embeddings and num_hidden_layers; of text_config where the root has none. */
    enum { NBL_TIED_UNSET, NBL_TIED_NO, NBL_TIED_YES } tied; /* UNSET: the key is absent */
    int64_t layers;                                          /* 0: the key is absent */
    bool is_multimodal;                                      /* it has a text_config */
} nbl__config;

/* Parses a text, which must be terminated and live as long as *config. All memory comes from the
 * arena. `where` names the text in messages. */
nbl_status nbl__config_parse(nbl__arena *arena, const char *where, const char *text, size_t size,
                             nbl__config *config);
/* Reads and parses a file of at most 16 MiB. Used for other small JSON files as well. */
nbl_status nbl__config_read(nbl__arena *arena, const char *path, nbl__config *config);

/* A key of the root, or of text_config if the root lacks it (multimodal models); NULL: neither has
 * it. */
const nbl__json *nbl__config_find(const nbl__json *root, const char *key);

/* The method of quantization_config: "bitsandbytes", "mxfp4", "gptq", …; NULL when not
 * quantized. */
const char *nbl__config_method(const nbl__config *config);

/* Sets one top-level key to `value`, which is JSON text; NULL removes the key. */
typedef struct nbl__config_edit {
    const char *key, *value;
} nbl__config_edit;
/* Applies edits to the config's text in order, and appends the result to `out`. A new key is
 * inserted at its place in sorted order, as transformers writes its keys. */
nbl_status nbl__config_apply(nbl_context *ctx, const nbl__config *config, const nbl__config_edit *edits,
                             int count, nbl__text *out);

/* Appends the quantization_config that transformers writes for bitsandbytes, as JSON text. skipped:
 * names of modules that are not quantized; NULL writes null, with which transformers chooses by its
 * own rule. */
void nbl__config_print_bitsandbytes(nbl__text *out, const nbl_quantize_options *options,
                                    const char *const *skipped, int64_t count);
/* The same for MXFP4, as OpenAI published it for GPT-OSS. */
void nbl__config_print_mxfp4(nbl__text *out);

#endif
