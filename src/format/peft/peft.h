/* peft.h - reads, checks, creates and writes adapters in the format of PEFT 0.21: a folder with
 * adapter_config.json and adapter_model.safetensors. LoRA, rsLoRA and DoRA, on linear layers and
 * embeddings; LoRA and rsLoRA on stacks of experts (target_parameters, peft_experts.c).
 *
 *     y = x·Wᵀ + scale · (x·Aᵀ)·Bᵀ      A: [r, in]   B: [out, r]   W: [out, in]
 *     scale = alpha / r, or alpha / sqrt(r) with rsLoRA
 *
 *   settings   contents of adapter_config.json             peft_settings.c
 *   rules      which modules are adapted, with which rank  peft_rules.c
 *   tensors    contents of the file, sorted into modules   peft.c
 *   experts    stacks of experts: names, ranks, old files  peft_experts.c
 *   checks     against a model                             peft_check.c, peft_model.c
 *   new        an adapter to be trained                    peft_new.c
 *   writing    both files                                  peft_write.c
 *
 * The tensors of the file decide what is adapted, and the settings must agree. Nothing is ignored:
 * an unsupported option, or a tensor of no known kind, is an error that names it. */
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

/* A choice of modules: a list of names, or a regular expression for the whole path. A name is a
 * whole path or its last components: "q_proj" chooses "model.layers.0.self_attn.q_proj". */
typedef struct nbl__peft_choice {
    const char *regex; /* NULL: the list */
    nbl__peft_list list;
} nbl__peft_choice;

/* A rank or alpha for modules whose path, or last components of it, match a regular expression. */
typedef struct nbl__peft_pattern {
    const char *key;
    double value;
} nbl__peft_pattern;

typedef struct nbl__peft_settings {
    const char *type;                  /* peft_type; NULL: missing, which is an error */
    const char *base_model, *revision; /* NULL: null in the file */
    const char *task_type;             /* "CAUSAL_LM", or NULL */
    int64_t r;
    double alpha, dropout;
    bool rslora;     /* scale = alpha / sqrt(r) instead of alpha / r */
    bool dora;       /* the adapter has magnitudes */
    bool lora_bias;  /* B has a bias, which is multiplied by the scale too */
    bool all_linear; /* "all-linear": every linear layer but the head; `target` is empty */
    nbl__peft_choice target, exclude;
    /* target_parameters: parameters by name, "mlp.experts.down_proj" or "mlp.gate.weight"; whole names
     * or the last components. */
    nbl__peft_list parameters;
    /* Adapt only the layers in `layers`. A path's layer is the number after a name of
     * layers_pattern; with an empty layers_pattern, after any name. */
    bool in_layers;
    const int64_t *layers;
    int64_t layer_count;
    nbl__peft_list layers_pattern;
    const nbl__peft_pattern *rank_pattern, *alpha_pattern; /* the first match counts */
    int64_t rank_pattern_count, alpha_pattern_count;
    nbl__peft_list modules_to_save; /* ends of paths: modules that are trained and saved whole */
} nbl__peft_settings;

/* Reads the text of adapter_config.json. All memory comes from the arena. Messages begin with
 * `where`. */
nbl_status nbl__peft_settings_read(nbl__arena *arena, const char *where, const char *text, size_t size,
                                   nbl__peft_settings *settings);
/* The same for inspection: problems are listed and reading goes on. problems NULL: the first is an
 * error. */
nbl_status nbl__peft_settings_inspect(nbl__arena *arena, const char *where, const char *text, size_t size,
                                      nbl__problems *problems, nbl__peft_settings *settings);
/* Appends adapter_config.json as PEFT writes it: all keys, sorted, ASCII. */
void nbl__peft_settings_print(nbl__text *out, const nbl__peft_settings *settings);

/* ---- rules: PEFT's own, for reading and for choosing the modules of a new adapter ---- */

typedef enum nbl__peft_kind {
    NBL_PEFT_LINEAR,
    NBL_PEFT_HEAD, /* the linear layer that makes logits: "all-linear" leaves it out */
    NBL_PEFT_EMBEDDING,
    /* A router: its weight is a parameter of transformers, not of a linear layer. Only
     * target_parameters chooses it. */
    NBL_PEFT_ROUTER,
    NBL_PEFT_EXPERTS, /* a stack of experts; its path is the parameter's name */
    NBL_PEFT_OTHER    /* a norm: cannot have LoRA, but can be in modules_to_save */
} nbl__peft_kind;

typedef struct nbl__peft_rules nbl__peft_rules;

/* Compiles the settings, which must outlive the rules. NBL_ERROR_FORMAT names the option of a bad
 * regular expression. */
nbl_status nbl__peft_rules_make(nbl_context *ctx, const char *where, const nbl__peft_settings *settings,
                                nbl__peft_rules **rules);
void nbl__peft_rules_free(nbl__peft_rules *rules); /* NULL is allowed */
/* *targeted: the module is adapted. Fails if an expression is too complex to match or memory runs
 * out. */
nbl_status nbl__peft_targets(const nbl__peft_rules *rules, const char *path, nbl__peft_kind kind,
                             bool *targeted);
/* True if target_parameters names this parameter: "model.layers.0.mlp.experts.gate_up_proj". */
bool nbl__peft_targets_parameter(const nbl__peft_rules *rules, const char *name);
/* Rank, alpha and scale of a module, with rank_pattern and alpha_pattern applied. The patterns of a
 * module that target_parameters chooses match the parameter's name: "model.layers.0.mlp.gate.weight". */
nbl_status nbl__peft_rank(const nbl__peft_rules *rules, const char *path, int64_t *r, double *alpha,
                          double *scale);
/* True if the module, or a module that contains it, is in modules_to_save. */
bool nbl__peft_saves(const nbl__peft_rules *rules, const char *path);
/* Paths are always those of a text model: "model.layers.0.…". With a prefix (text_part.h) the settings
 * name modules as a vision-language model does, and paths are spelled so before they are compared. */
void nbl__peft_rules_spell(nbl__peft_rules *rules, const char *prefix);

/* ---- an adapter ---- */

typedef struct nbl__peft_module {
    /* "model.layers.0.self_attn.q_proj"; of experts "model.layers.0.mlp.experts.gate_up_proj" */
    const char *path;
    /* What its tensors are called, before ".lora_A.weight". It is the path, but for experts, whose
     * adapters nest: "….mlp.experts.base_layer", "….mlp.experts". */
    const char *stem;
    bool is_embedding;
    int64_t experts;    /* 0: no stack of experts */
    bool swapped;       /* of experts: the file has A and B the other way round (nbl__peft_swap_experts) */
    bool halves;        /* of experts: the file has gate_proj and up_proj apart (nbl__peft_join_experts) */
    int64_t r, in, out; /* in: of an embedding, the vocabulary */
    double alpha, scale;
    const nbl__stored *a;         /* [r, in]; of experts [experts · r, in], expert by expert */
    const nbl__stored *b;         /* [out, r]; of experts [out, r · experts], rank by rank */
    const nbl__stored *b_bias;    /* [out]; NULL unless lora_bias */
    const nbl__stored *magnitude; /* [out]; NULL unless dora */
} nbl__peft_module;

/* A whole weight in the adapter's file that replaces the base model's: of modules_to_save, or an
 * embedding or head that PEFT saves because it is adapted or has new rows. */
typedef struct nbl__peft_replacement {
    const char *name; /* "lm_head.weight" */
    const nbl__stored *stored;
} nbl__peft_replacement;

typedef struct nbl__peft {
    nbl_context *ctx;
    nbl__arena arena;
    const char *folder;
    nbl__problems *problems; /* &found after nbl__peft_inspect; NULL: the first problem is an error */
    nbl__problems found;
    nbl__peft_settings settings;
    nbl__peft_rules *rules; /* NULL only after nbl__peft_inspect of a bad adapter_config.json */
    /* The adapter names modules of the text model with this prefix (text_part.h); NULL: as a text
     * model does. Paths and names below are those of a text model. */
    const char *prefix;
    nbl__file file;       /* adapter_model.safetensors, mapped; data NULL: a new adapter */
    nbl__stored *tensors; /* of the file, sorted by name */
    int64_t tensor_count;
    nbl__peft_module *modules; /* sorted by path */
    int64_t module_count;
    nbl__peft_replacement *replacements; /* sorted by name */
    int64_t replacement_count;
} nbl__peft;

/* Opens a folder. Checks that every tensor is f32, f16 or bf16, has the shape that its rank
 * requires, and belongs to a module that the settings name. */
nbl_status nbl__peft_open(nbl_context *ctx, const char *folder, nbl__peft **out);
/* Opens for inspection: problems are listed in `found`, everything readable is there. Modules may
 * lack a or b. */
nbl_status nbl__peft_inspect(nbl_context *ctx, const char *folder, nbl__peft **out);
void nbl__peft_close(nbl__peft *peft);                                           /* NULL is allowed */
const nbl__peft_module *nbl__peft_find(const nbl__peft *peft, const char *path); /* NULL: not adapted */
const nbl__peft_replacement *nbl__peft_replacement_find(const nbl__peft *peft, const char *name);

/* A module of the model.
 *
 *   LINEAR, HEAD   weight [out, in]
 *   EMBEDDING      weight [in, out]; in is the vocabulary
 *   ROUTER         weight [out, in]
 *   EXPERTS        `experts` weights [out, in]
 *   OTHER          weight [out]; in is 0 */
typedef struct nbl__peft_target {
    const char *path;
    nbl__peft_kind kind;
    int64_t out, in;
    int64_t experts; /* 0: no stack of experts */
} nbl__peft_target;

/* Checks the adapter against all modules of a model that have weights:
 *   - every adapted or replaced module exists and has the right shape
 *   - every module that the settings name has its tensors in the file
 *   - every name in modules_to_save matches a module. One of target_modules that matches none is a
 *     warning: PEFT accepts it, and the file's tensors say what is adapted
 * The error names the first misfit; in inspection mode all are listed. */
nbl_status nbl__peft_check(const nbl__peft *peft, const nbl__peft_target *targets, int64_t count);

/* A tensor of the model: its Hugging Face name and logical shape, and what its module is. A stack of
 * experts is [experts, out, in]. */
typedef struct nbl__peft_tensor {
    const char *name;
    int rank;
    const int64_t *shape;
    nbl__peft_kind kind;
} nbl__peft_tensor;
/* The last part of a module's path: "q_proj". */
const char *nbl__peft_last_name(const char *path);
/* The kind of a tensor's module by the name that Hugging Face's decoders have for it. For files whose
 * architecture nibble need not know; a model in memory knows the roles of its weights. */
nbl__peft_kind nbl__peft_kind_of(const char *name, int rank);

/* Lists the modules of a decoder: one per tensor called ".weight". The list lives in the arena. */
nbl_status nbl__peft_list_targets(nbl__arena *arena, const nbl__peft_tensor *tensors, int64_t count,
                                  nbl__peft_target **targets, int64_t *target_count);
/* nbl__peft_check against the modules of these tensors. */
nbl_status nbl__peft_check_tensors(const nbl__peft *peft, const nbl__peft_tensor *tensors, int64_t count);
/* True if a tied head must become a matrix of its own: the adapter changes the head or the
 * embedding. PEFT applies such a change to one of the two only. */
bool nbl__peft_unties(const nbl__peft *peft);

/* Makes a new adapter for the modules that the settings choose among `targets`. It has no tensors.
 * The strings and lists of *settings must outlive it. `prefix`: of its names (text_part.h), unless the
 * settings name modules otherwise. Messages begin with `where`.
 * NBL_ERROR_NOT_FOUND: a name of the settings matches no module, or none is chosen. */
nbl_status nbl__peft_new(nbl_context *ctx, const char *where, const char *model_type,
                         const nbl__peft_settings *settings, const char *prefix,
                         const nbl__peft_target *targets, int64_t count, nbl__peft **out);

/* True for an adapter of nbl__peft_new, which has no file. */
static inline bool nbl__peft_is_new(const nbl__peft *peft)
{
    return peft->file.data == NULL;
}

/* ---- peft_experts.c: stacks of experts ----
 *
 * PEFT wraps the module that has the parameters once per parameter. gate_up_proj is wrapped first, so
 * its tensors have ".base_layer" in their names if down_proj is adapted too:
 *
 *     ….mlp.experts.base_layer.lora_A.weight    gate_up_proj, beside down_proj
 *     ….mlp.experts.lora_A.weight               down_proj; or gate_up_proj alone
 *
 *     ΔW_e[o, i] = scale · Σ_j B[o, j·experts + e] · A[e·r + j, i]            W_e [out, in] */

/* Says which parameter the tensors called module->stem belong to, and sets module->path. Leaves
 * modules alone that are none of experts. */
nbl_status nbl__peft_name_experts(nbl__peft *peft, nbl__peft_module *module);
/* Joins the modules of single experts, which adapters made with transformers 4 have, to stacks, as
 * PEFT does while it loads them: A of gate and up below each other with rank 2r, B block-diagonal.
 * Call it with the modules sorted and checked. */
nbl_status nbl__peft_join_experts(nbl__peft *peft);
/* PEFT takes the stacks of some models for [experts, out, in] although they are [experts, in, out]
 * (Llama 4). A of the file is then [experts · r, out] and B [in, r · experts]. This gives the modules of
 * an opened adapter A and B as everywhere else, or marks those of a new one. Other models: nothing
 * changes. Refuses joined halves for GPT-OSS, whose gates and ups alternate. model_type may be NULL. */
nbl_status nbl__peft_swap_experts(nbl__peft *peft, const char *model_type);
/* The matrix [rows of experts · r, n] as [n, r · experts], or the other way round: A of the one as B of the
 * other. f32; `to` has as many elements. */
void nbl__peft_swap_matrix(const float *from, bool rows_first, int64_t experts, int64_t r, int64_t n,
                           float *to);
/* The module that a parameter of the graph belongs to by its name; NULL: none. */
const nbl__peft_module *nbl__peft_find_parameter(const nbl__peft *peft, const char *name);
/* The tensor of the file that holds a swapped parameter: its name, which has lora_B for lora_A, and shape,
 * with values in the arena. Any other parameter is *tensor and `name` themselves. */
nbl_status nbl__peft_file_tensor(nbl__arena *arena, const nbl__peft *peft, const char **name,
                                 nbl_tensor *tensor);
/* Sets the stem of the stacks of a new adapter. */
nbl_status nbl__peft_stem_experts(nbl__peft *peft);
/* Changes settings for a new adapter of a model whose experts were linear layers in transformers 4,
 * as PEFT does: gate_proj with up_proj become the parameter gate_up_proj with twice the rank and
 * alpha, down_proj and gate become parameters. `targets` are the model's; lists come from the arena.
 * Messages begin with `where`. */
nbl_status nbl__peft_rewrite_experts(nbl__arena *arena, const char *where, const char *model_type,
                                     const nbl__peft_target *targets, int64_t count,
                                     nbl__peft_settings *settings);

/* ---- writing ---- */

typedef struct nbl__peft_new_module {
    const char *path, *stem; /* as in nbl__peft_module; stem NULL: the path */
    bool is_embedding, is_experts;
    nbl_tensor a, b;
    nbl_tensor b_bias, magnitude; /* data NULL: none */
} nbl__peft_new_module;

typedef struct nbl__peft_new_tensor {
    const char *name; /* "lm_head.weight" */
    nbl_tensor tensor;
} nbl__peft_new_tensor;

/* The contents of an adapter to be written. Nothing is copied. */
typedef struct nbl__peft_description {
    nbl__peft_settings settings;
    const char *prefix; /* of the names that are written (text_part.h); NULL: those of a text model */
    const nbl__peft_new_module *modules;
    int64_t module_count;
    const nbl__peft_new_tensor *replacements;
    int64_t replacement_count;
} nbl__peft_description;

/* Writes a new folder. It appears complete or not at all. */
nbl_status nbl__peft_write(nbl_context *ctx, const char *folder, const nbl__peft_description *description);
/* Writes the same two files into an open output. */
nbl_status nbl__peft_put(nbl__output *output, const nbl__peft_description *description);

#endif
