/* arch.h - how a config becomes a forward graph.
 *
 * An architecture is one file: the keys of config.json that it understands, and a function that builds its
 * layers. What the files share is here: the numbers of a decoder (nbl__decoder), reading keys (keys.c), and
 * the pieces that every block is made of (block.c). A config with a key that is not understood is refused
 * with the key's name.
 *
 *   ids ─ embed ─▶ h ─┬─ norm ─ q k v ─ rope ─ attend ─ o ─▶ (+) ─┬─ norm ─ gate up ─ act ─ down ─▶ (+) ─▶ … ─ norm ─ head
 *                     └──────────────────────────────────────▲    └──────────────────────────────────▲
 */
#ifndef NBL_ARCH_H
#define NBL_ARCH_H

#include "base/json/json.h"
#include "graph/graph.h"
#include "ops/rope/rope.h"

enum { NBL_MAX_LAYERS = 1024 };

/* A decoder-only transformer, as its config describes it. */
typedef struct nbl__decoder {
    const struct nbl__arch *arch;
    nbl_dtype dtype; /* the checkpoint's own */
    int64_t vocabulary, hidden, inner, layers, heads, kv_heads, head_dim, positions;
    float norm_eps;
    int act;                         /* nbl__act */
    bool tied;                       /* the head is the embedding */
    int64_t padding;                 /* an id whose row of the embedding no lookup trains; -1: none */
    bool qkv_bias, o_bias, mlp_bias; /* which linear layers have one */
    bool qk_norm;                    /* q and k are normalised by heads */
    bool gemma;            /* 1 + w norms, one rounding; norms after the blocks, too; scaled embedding */
    float attention_scale; /* 0: 1 / sqrt(head_dim) */
    float attention_cap, final_cap; /* soft caps; 0: none */
    int64_t window;                 /* of sliding layers */
    bool sliding[NBL_MAX_LAYERS];
    nbl__rope rope;       /* of full layers, and of sliding ones unless: */
    nbl__rope local_rope; /* theta 0: the same */
} nbl__decoder;

struct nbl__keys;

typedef struct nbl__arch {
    const char *model_type;
    nbl_status (*read)(struct nbl__keys *keys, nbl__decoder *d);
} nbl__arch;

extern const nbl__arch nbl__llama, nbl__mistral, nbl__qwen2, nbl__qwen3, nbl__gemma2, nbl__gemma3;

/* Reads config.json (`where` opens messages); the architecture is told by model_type. */
nbl_status nbl__decoder_read(nbl_context *ctx, const char *where, const nbl__json *config, nbl__decoder *d);

/* ---- keys.c: one key after the other; what nobody asked for is refused in the end ---- */

typedef struct nbl__keys {
    nbl_context *ctx;
    const char *where;
    const nbl__json *config;
    bool *used; /* [config->count] */
} nbl__keys;

/* NULL when it is absent or null. */
const nbl__json *nbl__key(nbl__keys *k, const char *name);
nbl_status nbl__key_size(nbl__keys *k, const char *name, int64_t *value); /* required, 1 … 2^31 */
nbl_status nbl__key_size_or(nbl__keys *k, const char *name, int64_t missing, int64_t *value);
nbl_status nbl__key_float_or(nbl__keys *k, const char *name, double missing, float *value);
/* A soft cap: null means none, absence the default. */
nbl_status nbl__key_cap_or(nbl__keys *k, const char *name, double missing, float *value);
nbl_status nbl__key_flag_or(nbl__keys *k, const char *name, bool missing, bool *value);
/* What all decoders have: sizes, heads, norm_eps, tied, activation (under `act_key`), rope. */
nbl_status nbl__keys_common(nbl__keys *k, nbl__decoder *d, const char *act_key, bool tied_by_default);
/* layer_types, or the rule of the architecture; NULL: no layer slides. */
nbl_status nbl__keys_layer_types(nbl__keys *k, nbl__decoder *d,
                                 bool (*by_default)(const nbl__decoder *d, int64_t layer));

/* Qwen's: a sliding_window counts when use_sliding_window says so. */
nbl_status nbl__keys_chosen_window(nbl__keys *k, nbl__decoder *d);

/* ---- building ---- */

typedef enum nbl__mode {
    NBL_MODE_LOGITS,   /* every position's logits; packed sequences */
    NBL_MODE_TRAIN,    /* loss and log-probabilities; packed sequences */
    NBL_MODE_PREFILL,  /* the last position's logits of each sequence; keys and values go to the cache */
    NBL_MODE_GENERATE, /* one token per sequence against the cache */
    NBL_MODE_HIDDEN,   /* every position up to the head; packed sequences */
    NBL_MODE_HEAD      /* the head alone: logits of hidden states */
} nbl__mode;

/* An adapter of a linear layer; tensors are parameters of the graph with these shapes. */
typedef struct nbl__adapter {
    int64_t rank;
    float scale, dropout;
    bool dora;
} nbl__adapter;

/* Where a builder asks for what the files hold. */
typedef struct nbl__model_source {
    void *user;
    /* A tensor of the checkpoint by its name, with format and shape; NULL: not there. */
    const nbl_weight *(*weight)(void *user, const char *name);
    /* The adapter of a module; false: none. */
    bool (*adapter)(void *user, const char *module, nbl__adapter *adapter);
    /* Is this tensor of the checkpoint trained as a whole? Then it is a parameter of the graph, in f32; also in graphs
     * that do not train, so that they may share its memory. NULL: none is. */
    bool (*trained)(void *user, const char *name);
} nbl__model_source;

typedef struct nbl__build {
    nbl__graph *g;
    const nbl__decoder *d;
    const nbl__model_source *source;
    nbl__mode mode;
    nbl_dtype dtype, kv_dtype;
    bool train;       /* adapters and what the source calls trained have gradients */
    bool dequantized; /* int8: multiply with decoded weights, as training does */
    bool
        split_mlp; /* the feed-forward block as three operators with values in the compute dtype between them */
    int pins; /* what recomputation of a layer starts from: its input, 2: its middle as well, 3: what attention gives, too */
    bool joined;      /* decode: rotation, writing to the cache and attention are one operator */
    bool joins_norms; /* training: the norms of q and k are one operator with their rotation */
    int64_t tokens, sequences, cache_size; /* the largest; cache_size: tokens per sequence */

    /* Inputs, by mode: ids and positions always; cu_seqlens but in decode; labels in training; rows (places in the
     * cache) in prefill and decode; last (rows of the last tokens) in prefill; lengths in decode. */
    nbl__value ids, positions, cu_seqlens, labels, rows, last, lengths, dloss;
    nbl__value *keys, *values;   /* the caches, per layer; states */
    bool picks;                  /* of logits only where the highest are is a result */
    nbl__value loss, logits;     /* results */
    nbl__value best, non_finite; /* results with `picks`: of argmax.h */
    nbl__value hidden;           /* [tokens, hidden]: the result of HIDDEN, the one input of HEAD */
    nbl__value cos, sin, local_cos, local_sin;
    nbl__value embedding; /* the weight: of the head as well where they are tied */
    char at[64];          /* what names start with: "model.layers.3." */
    struct nbl__dora_layer {
        nbl__value w, lora_a, lora_b, norm;
        float scale;
    } dora[4]; /* layers of the node being built whose norms are to be prepared */
    int dora_count;
    nbl__text problems; /* tensors that are missing or have another shape, all of them */
} nbl__build;

/* Builds the forward graph; errors are in the graph. */
nbl_status nbl__decoder_build(nbl__build *b);

#endif
