/* gguf_model.h - a GGUF file seen as a Hugging Face model: its config.json, and its tensors under their
 * names there, with what llama.cpp's converter did to them undone.
 *
 *   architecture   in GGUF                              given out
 *   llama          rows of q and k in rotary pairs      rows in halves, as transformers has them
 *   qwen2, qwen3   as they are                          as they are
 *   gemma2, gemma3 norms as 1 + w                       norms as w
 *
 * gguf_config.c reads the metadata, gguf_model.c the tensors. What is not understood - an architecture, a
 * key of its own, a tensor - is refused by name, as is a tensor that is missing or has another shape. */
#ifndef NBL_GGUF_MODEL_H
#define NBL_GGUF_MODEL_H

#include "format/hf/config.h"
#include "format/gguf/gguf.h"

typedef enum nbl__gguf_arch {
    NBL_GGUF_LLAMA,
    NBL_GGUF_QWEN2,
    NBL_GGUF_QWEN3,
    NBL_GGUF_GEMMA2,
    NBL_GGUF_GEMMA3
} nbl__gguf_arch;

typedef struct nbl__gguf_weight {
    const char *name; /* "model.layers.0.self_attn.q_proj.weight" */
    const nbl__gguf_tensor *tensor;
    int64_t rows, columns; /* a vector is one row */
    int64_t heads;  /* rows (of a vector: values) are in rotary pairs within so many heads; 0: they are not */
    bool minus_one; /* 1 is to be subtracted */
} nbl__gguf_weight;

typedef struct nbl__gguf_model {
    nbl_context *ctx;
    nbl__arena arena;
    nbl__gguf *gguf; /* for the vocabulary */
    nbl__gguf_arch arch;
    int64_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary;
    bool is_tied;        /* there is no output.weight */
    bool attention_bias; /* q, k, v and o have biases */
    bool mlp_bias;
    nbl__config config; /* of the text that config.json would have */
    nbl__gguf_weight *weights;
    int64_t weight_count;
} nbl__gguf_model;

nbl_status nbl__gguf_model_open(nbl_context *ctx, const char *path, nbl__gguf_model **out);
/* The same of an open file, which the model then owns; it is closed also when this fails. */
nbl_status nbl__gguf_model_of(nbl_context *ctx, nbl__gguf *gguf, nbl__gguf_model **out);
/* Lists what is wrong with the model in a file that is looked at (nbl__gguf_look). */
nbl_status nbl__gguf_model_check(nbl__gguf *gguf);
void nbl__gguf_model_close(nbl__gguf_model *model); /* NULL is allowed */

/* By its Hugging Face name; NULL: none. */
const nbl__gguf_weight *nbl__gguf_weight_find(const nbl__gguf_model *model, const char *name);
/* The shape there: rank 1 for biases and norms, else 2. */
static inline int nbl__gguf_weight_rank(const nbl__gguf_weight *weight)
{
    return weight->tensor->rank;
}

/* Decodes rows [begin, end) to f32, f16 or bf16 at `out`, which needs no alignment; a vector has one row.
 * One rounding, but for norms with an offset, where the difference is rounded to f32 first, as
 * transformers does. From any thread. Cost: bound by reading the blocks; rows of q and k of Llama
 * jump in steps of two within a head. */
nbl_status nbl__gguf_weight_rows(nbl_context *ctx, const nbl__gguf_weight *weight, int64_t begin, int64_t end,
                                 nbl_dtype dtype, void *out);

/* ---- the other way: what a converter does ---- */

/* A tensor of a Hugging Face folder in a GGUF file. */
typedef struct nbl__gguf_mapping {
    char name[64]; /* "blk.0.attn_q.weight" */
    enum { NBL_GGUF_ROWS_AS_THEY_ARE, NBL_GGUF_ROTARY_Q, NBL_GGUF_ROTARY_K } rows;
    bool plus_one; /* 1 is added */
} nbl__gguf_mapping;

/* By model_type: "mistral" is NBL_GGUF_LLAMA. False: none. `name`: as general.architecture has it. */
bool nbl__gguf_arch_of(const char *model_type, nbl__gguf_arch *arch, const char **name);
/* False where the architecture has no such tensor. */
bool nbl__gguf_mapping_of(nbl__gguf_arch arch, const char *hf_name, nbl__gguf_mapping *mapping);

/* Of gguf_config.c: fills the sizes (all but is_tied and the biases, which come first), then the text. */
nbl_status nbl__gguf_read_sizes(nbl__gguf_model *model);
nbl_status nbl__gguf_make_config(nbl__gguf_model *model);

#endif
