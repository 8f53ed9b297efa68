/* config.h - config.json: the few facts this library needs of it, and edits that keep every other
 * byte of the text. */
#ifndef NBL_CONFIG_H
#define NBL_CONFIG_H

#include "base/json/json.h"

typedef struct nbl__config {
    const char *text; /* as in the file, terminated */
    size_t size;
    const nbl__json *root;
    /* Of the root; NULL when absent. */
    const char *architecture, *model_type;
    const nbl__json *quantization; /* the object quantization_config */
    /* tie_word_embeddings and num_hidden_layers, of the text model where there are several. */
    enum { NBL_TIED_UNTOLD, NBL_TIED_NO, NBL_TIED_YES } tied;
    int64_t layers;     /* 0: not told */
    bool is_multimodal; /* it has a text_config */
} nbl__config;

/* All memory comes from the arena. `text` must be terminated and live as long. */
nbl_status nbl__config_parse(nbl__arena *arena, const char *where, const char *text, size_t size,
                             nbl__config *config);
nbl_status nbl__config_read(nbl__arena *arena, const char *path, nbl__config *config);

/* The method of quantization_config: "bitsandbytes", "mxfp4", "gptq", …; NULL when not quantised. */
const char *nbl__config_method(const nbl__config *config);

/* One edit of a top-level key: `value` is JSON text, NULL removes the key. */
typedef struct nbl__config_edit {
    const char *key, *value;
} nbl__config_edit;
/* Applies edits to the text, in order; appends the result to `out`. */
nbl_status nbl__config_apply(nbl_context *ctx, const nbl__config *config, const nbl__config_edit *edits,
                             int count, nbl__text *out);

/* The quantization_config that transformers writes for bitsandbytes, as JSON text. `skipped` are
 * module names; NULL leaves the choice to transformers, as it does itself. */
void nbl__config_print_bitsandbytes(nbl__text *out, const nbl_quantize_options *options,
                                    const char *const *skipped, int64_t count);
void nbl__config_print_mxfp4(nbl__text *out);

#endif
