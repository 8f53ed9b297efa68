/* peft.h - adapters as PEFT 0.21 saves them: a folder with adapter_config.json and
 * adapter_model.safetensors. LoRA, rsLoRA and DoRA, on linear layers and embeddings.
 *
 *   settings   what adapter_config.json says           peft_settings.c
 *   rules      which modules that means, which rank    peft_rules.c
 *   tensors    what the file has; it decides           peft.c
 *   writing    both files                              peft_write.c
 *
 * Nothing is ignored: an option that changes what an adapter means is understood or refused by its name,
 * and so is every tensor. */
#ifndef NBL_PEFT_H
#define NBL_PEFT_H

#include "base/problems.h"
#include "base/json/json.h"
#include "format/hf/safetensors.h"

/* ---- settings ---- */

typedef struct nbl__peft_list {
    const char *const *names;
    int64_t count;
} nbl__peft_list;

/* A list of names, each of a module or of the end of its path behind a point; or a regular expression for
 * the whole path. */
typedef struct nbl__peft_choice {
    const char *regex; /* NULL: the list */
    nbl__peft_list list;
} nbl__peft_choice;

/* A rank or alpha of its own for paths whose end matches, from some point on, a regular expression. */
typedef struct nbl__peft_pattern {
    const char *key;
    double value;
} nbl__peft_pattern;

typedef struct nbl__peft_settings {
    const char *type;                  /* peft_type; NULL: not told, which is refused */
    const char *base_model, *revision; /* NULL: null in the file */
    const char *task_type;             /* "CAUSAL_LM", or NULL */
    int64_t r;
    double alpha, dropout;
    bool rslora;     /* scale = alpha / sqrt(r) instead of alpha / r */
    bool dora;       /* there are magnitudes */
    bool lora_bias;  /* B has a bias, which is scaled with the rest */
    bool all_linear; /* "all-linear": every linear layer but the head; `target` is empty */
    nbl__peft_choice target, exclude;
    bool in_layers; /* only in these layers, found behind a name of `layers_pattern` (none: any name) */
    const int64_t *layers;
    int64_t layer_count;
    nbl__peft_list layers_pattern;
    const nbl__peft_pattern *rank_pattern, *alpha_pattern; /* the first that matches counts */
    int64_t rank_pattern_count, alpha_pattern_count;
    nbl__peft_list modules_to_save; /* modules, by the end of their paths, that are replaced as a whole */
} nbl__peft_settings;

/* Reads the text of adapter_config.json; everything lives in the arena. `where` opens the messages. */
nbl_status nbl__peft_settings_read(nbl__arena *arena, const char *where, const char *text, size_t size,
                                   nbl__peft_settings *settings);
/* The same to look at it: what is wrong goes into `problems` unless it is NULL, and the rest is read. */
nbl_status nbl__peft_settings_look(nbl__arena *arena, const char *where, const char *text, size_t size,
                                   nbl__problems *problems, nbl__peft_settings *settings);
/* Prints it as PEFT does: sorted keys, all of them, ASCII. */
void nbl__peft_settings_print(nbl__text *out, const nbl__peft_settings *settings);

/* ---- rules: PEFT's own, for reading and for choosing the modules of a new adapter ---- */

typedef enum nbl__peft_kind {
    NBL_PEFT_LINEAR,
    NBL_PEFT_HEAD, /* the linear layer that makes logits: "all-linear" leaves it out */
    NBL_PEFT_EMBEDDING,
    NBL_PEFT_OTHER /* a norm: cannot be adapted, but can be replaced */
} nbl__peft_kind;

typedef struct nbl__peft_rules nbl__peft_rules;

/* Compiles the settings, which must live as long; a bad regular expression is named with its option. */
nbl_status nbl__peft_rules_make(nbl_context *ctx, const char *where, const nbl__peft_settings *settings,
                                nbl__peft_rules **rules);
void nbl__peft_rules_free(nbl__peft_rules *rules); /* NULL is allowed */
/* Whether a module is adapted. Fails only when an expression is too complex to match. */
nbl_status nbl__peft_targets(const nbl__peft_rules *rules, const char *path, nbl__peft_kind kind,
                             bool *targeted);
/* Rank, alpha and scale of an adapted module. */
nbl_status nbl__peft_rank(const nbl__peft_rules *rules, const char *path, int64_t *r, double *alpha,
                          double *scale);
/* Whether the module, or one that it is part of, is among modules_to_save. */
bool nbl__peft_saves(const nbl__peft_rules *rules, const char *path);

/* ---- an adapter ---- */

typedef struct nbl__peft_module {
    const char *path; /* "model.layers.0.self_attn.q_proj" */
    bool is_embedding;
    int64_t r, in, out; /* of an embedding: in is the vocabulary */
    double alpha, scale;
    const nbl__stored *a;         /* [r, in] */
    const nbl__stored *b;         /* [out, r] */
    const nbl__stored *b_bias;    /* [out]; NULL unless lora_bias */
    const nbl__stored *magnitude; /* [out]; NULL unless dora */
} nbl__peft_module;

/* A weight of the base model that the adapter brings with it: of modules_to_save, or the embedding or head
 * that PEFT saves along with an adapter on it. */
typedef struct nbl__peft_replacement {
    const char *name; /* "lm_head.weight" */
    const nbl__stored *stored;
} nbl__peft_replacement;

typedef struct nbl__peft {
    nbl_context *ctx;
    nbl__arena arena;
    const char *folder;
    nbl__problems *problems; /* NULL: the first one is an error */
    nbl__problems found;
    nbl__peft_settings settings;
    nbl__peft_rules *rules; /* NULL only of one that is looked at */
    nbl__file file;
    nbl__stored *tensors; /* of the file, by name */
    int64_t tensor_count;
    nbl__peft_module *modules; /* by path */
    int64_t module_count;
    nbl__peft_replacement *replacements; /* by name */
    int64_t replacement_count;
} nbl__peft;

/* Opens a folder. All tensors are f32, f16 or bf16, have the shapes that their ranks ask for, and belong to
 * a module that the settings name. */
nbl_status nbl__peft_open(nbl_context *ctx, const char *folder, nbl__peft **out);
/* Opens to look at it: problems go into `found`, and what can still be read is there. A module may lack a or b. */
nbl_status nbl__peft_look(nbl_context *ctx, const char *folder, nbl__peft **out);
void nbl__peft_close(nbl__peft *peft);                                           /* NULL is allowed */
const nbl__peft_module *nbl__peft_find(const nbl__peft *peft, const char *path); /* NULL: not adapted */
const nbl__peft_replacement *nbl__peft_replacement_find(const nbl__peft *peft, const char *name);

/* A module of the model: `out` and `in` as of its adapter; of NBL_PEFT_OTHER `in` is 0 and its weight a
 * vector. An embedding's weight is [in, out], a linear layer's [out, in]. */
typedef struct nbl__peft_target {
    const char *path;
    nbl__peft_kind kind;
    int64_t out, in;
} nbl__peft_target;

/* Checks the adapter against all modules that have weights: what is adapted or replaced exists and has
 * these shapes; what the settings name has its tensors; each name of target_modules and modules_to_save is
 * one of the model's. The first that does not fit, in the order of `places`, is named. */
nbl_status nbl__peft_check(const nbl__peft *peft, const nbl__peft_target *targets, int64_t count);

/* A tensor of the model under the name and with the logical shape that it is stored with. */
typedef struct nbl__peft_tensor {
    const char *name;
    int rank;
    const int64_t *shape;
} nbl__peft_tensor;

/* The modules of a decoder in Hugging Face's names, from its tensors. */
nbl_status nbl__peft_list_targets(nbl__arena *arena, const nbl__peft_tensor *tensors, int64_t count,
                                  nbl__peft_target **targets, int64_t *target_count);
/* nbl__peft_check of those. */
nbl_status nbl__peft_check_tensors(const nbl__peft *peft, const nbl__peft_tensor *tensors, int64_t count);
/* Whether a model that ties its head to the embedding has two matrices with this adapter: PEFT changes the one or the
 * other, never both at once. */
bool nbl__peft_unties(const nbl__peft *peft);

/* An adapter to be trained: the modules that the settings, which must live as long, choose of `places`. It has
 * no tensors yet. `where` opens the messages. */
nbl_status nbl__peft_new(nbl_context *ctx, const char *where, const nbl__peft_settings *settings,
                         const nbl__peft_target *targets, int64_t count, nbl__peft **out);

static inline bool nbl__peft_is_new(const nbl__peft *peft)
{
    return peft->file.data == NULL;
}

/* ---- writing ---- */

typedef struct nbl__peft_new_module {
    const char *path;
    bool is_embedding;
    nbl_tensor a, b;
    nbl_tensor b_bias, magnitude; /* without data: none */
} nbl__peft_new_module;

typedef struct nbl__peft_new_tensor {
    const char *name; /* "lm_head.weight" */
    nbl_tensor tensor;
} nbl__peft_new_tensor;

typedef struct nbl__peft_description {
    nbl__peft_settings settings;
    const nbl__peft_new_module *modules;
    int64_t module_count;
    const nbl__peft_new_tensor *replacements;
    int64_t replacement_count;
} nbl__peft_description;

/* Writes a folder that did not exist, whole or not at all. */
nbl_status nbl__peft_write(nbl_context *ctx, const char *folder, const nbl__peft_description *description);
/* The same two files into an output that is being written. */
nbl_status nbl__peft_put(nbl__output *output, const nbl__peft_description *description);

#endif
