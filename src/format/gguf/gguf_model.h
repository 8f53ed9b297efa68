/* gguf_model.h - reads a GGUF file as a Hugging Face model: a config.json, and tensors under
 * Hugging Face names. Changes that llama.cpp's converter made to tensors are undone.
 *
 *   architecture    in GGUF                                   as given out
 *   llama           q, k: rows i, i + d/2 of a head adjacent  rows in transformers' order
 *   qwen2, qwen3    unchanged                                 unchanged
 *   gemma2, gemma3  norm weights as 1 + w                     norm weights as w
 *   phi3            unchanged                                 unchanged
 *
 * (d: rows per head. Rotary embedding rotates rows i and i + d/2 of a head as one pair.)
 *
 * gguf_config.c reads the metadata, gguf_model.c the tensors. An unknown architecture, an
 * unknown key of the architecture, and an unknown, missing or misshapen tensor is an error that
 * names it. */
#ifndef NBL_GGUF_MODEL_H
#define NBL_GGUF_MODEL_H

#include "format/hf/config.h"
#include "format/gguf/gguf.h"

typedef enum nbl__gguf_arch {
    NBL_GGUF_LLAMA,
    NBL_GGUF_QWEN2,
    NBL_GGUF_QWEN3,
    NBL_GGUF_GEMMA2,
    NBL_GGUF_GEMMA3,
    NBL_GGUF_PHI3
} nbl__gguf_arch;

typedef struct nbl__gguf_weight {
    const char *name; /* "model.layers.0.self_attn.q_proj.weight" */
    const nbl__gguf_tensor *tensor;
    int64_t rows, columns; /* a vector is one row */
    int64_t heads;  /* > 0: rows (of a vector: values) are stored as rotary pairs, in this many heads */
    bool minus_one; /* subtract 1 from the stored values */
} nbl__gguf_weight;

typedef struct nbl__gguf_model {
    nbl_context *ctx;
    nbl__arena arena;
    nbl__gguf *gguf; /* for the vocabulary */
    nbl__gguf_arch arch;
    int64_t layers, hidden, intermediate, heads, kv_heads, head_dim, rotary, vocabulary; /* rotary: of head_dim */
    bool is_tied;        /* there is no output.weight */
    bool attention_bias; /* q, k, v and o have biases */
    bool mlp_bias;
    nbl__config config; /* parsed from a config.json text that is made from the metadata */
    nbl__gguf_weight *weights;
    int64_t weight_count;
} nbl__gguf_model;

/* Opens a file and maps its tensors to Hugging Face names. */
nbl_status nbl__gguf_model_open(nbl_context *ctx, const char *path, nbl__gguf_model **out);
/* The same for an open file. The model takes ownership of `gguf` and closes it also on an error. */
nbl_status nbl__gguf_model_of(nbl_context *ctx, nbl__gguf *gguf, nbl__gguf_model **out);
/* Adds the problems of the model to the list of a file from nbl__gguf_inspect. */
nbl_status nbl__gguf_model_check(nbl__gguf *gguf);
void nbl__gguf_model_close(nbl__gguf_model *model); /* NULL is allowed */

/* The weight of this Hugging Face name; NULL: none. */
const nbl__gguf_weight *nbl__gguf_weight_find(const nbl__gguf_model *model, const char *name);
/* 1 for biases and norms, else 2. */
static inline int nbl__gguf_weight_rank(const nbl__gguf_weight *weight)
{
    return weight->tensor->rank;
}

/* Dequantizes rows [begin, end) to f32, f16 or bf16 at `out`, which needs no alignment. A vector
 * has one row. Values are rounded once; Gemma's norms twice, as w = stored - 1 is rounded to f32
 * first, as in transformers. May be called from any thread. Cost: bound by memory. */
nbl_status nbl__gguf_weight_rows(nbl_context *ctx, const nbl__gguf_weight *weight, int64_t begin, int64_t end,
                                 nbl_dtype dtype, void *out);

/* ---- export: from Hugging Face names to GGUF ---- */

/* How a Hugging Face tensor is stored in a GGUF file. */
typedef struct nbl__gguf_mapping {
    char name[64]; /* "blk.0.attn_q.weight" */
    enum { NBL_GGUF_ROWS_AS_THEY_ARE, NBL_GGUF_ROTARY_Q, NBL_GGUF_ROTARY_K } rows;
    bool plus_one; /* add 1 to the values */
} nbl__gguf_mapping;

/* The GGUF architecture for config.json's model_type; "mistral" is NBL_GGUF_LLAMA. *name: the value
 * of general.architecture. False: GGUF has none that is supported here. */
bool nbl__gguf_arch_of(const char *model_type, nbl__gguf_arch *arch, const char **name);
/* The mapping of one tensor; false: the architecture has no such tensor. */
bool nbl__gguf_mapping_of(nbl__gguf_arch arch, const char *hf_name, nbl__gguf_mapping *mapping);

/* ---- gguf_config.c, for gguf_model.c ---- */

/* Reads the architecture and all sizes, and checks the keys. Call it first. */
nbl_status nbl__gguf_read_sizes(nbl__gguf_model *model);
/* Makes and parses the text of config.json. Needs the sizes, is_tied, attention_bias and
 * mlp_bias. */
nbl_status nbl__gguf_make_config(nbl__gguf_model *model);

#endif
