/* arch.h - from config.json to the forward graph of a decoder-only transformer.
 *
 *     config.json ─ nbl__decoder_read ─▶ nbl__decoder ─ nbl__decoder_build ─▶ graph
 *
 * An architecture is one file (llama.c, gemma2.c, …) with two functions. `read` turns the keys of
 * its config.json into an nbl__decoder; shared/keys.c holds what readers share. `layer` builds one
 * layer; shared/parts.c holds what layers are made of. archs.h lists the architectures.
 * shared/decoder.c builds what stands around the layers. A key that no reader understands is an error
 * that names it.
 *
 * One layer, with h the residual stream:
 *
 *     ids ─ embed ─▶ h ─┬─ norm ─ q k v ─ rope ─ attend ─ o ─▶ (+) ─ …
 *                       └──────────────────────────────────────▲
 *
 *                … h ─┬─ norm ─ gate up ─ act ─ down ─▶ (+) ─▶ next layer, or norm ─ head
 *                     └──────────────────────────────────▲
 */
#ifndef NBL_ARCH_H
#define NBL_ARCH_H

#include "base/json/json.h"
#include "arch/archs.h"
#include "format/hf/module_names.h"
#include "graph/build.h"
#include "graph/build_moe.h"

enum { NBL_MAX_LAYERS = 1024, NBL_MAX_EXPERTS = 4096 };

/* A decoder-only transformer, as its config describes it. */
typedef struct nbl__decoder {
    const struct nbl__arch *arch;
    nbl_dtype dtype; /* dtype of the checkpoint */
    /* inner: width of the feed-forward block; positions: max_position_embeddings */
    int64_t vocabulary, hidden, inner, layers, heads, kv_heads, head_dim, positions;
    float norm_eps;
    float norm_offset; /* norms multiply by offset + w; 0, or 1 for Gemma */
    nbl_norm_round norm_round;
    bool layer_norm;       /* norms are LayerNorms without a bias instead of RMSNorms */
    float embedding_scale; /* of the embedding's rows */
    float residual_scale;  /* of what a block adds to the residual stream */
    float logit_scale;     /* of logits */
    nbl__act act;
    bool tied; /* the head's weight is the embedding */
    /* token id whose embedding row gets no gradient from look-ups; -1: none */
    int64_t padding;
    bool qkv_bias, o_bias, mlp_bias; /* linear layers with a bias */
    float attention_scale;           /* scores are multiplied by it; 0: 1 / sqrt(head_dim) */
    float attention_cap, final_cap;  /* soft caps, c·tanh(x / c), of scores and of logits; 0: none */
    /* tokens that a query sees in a sliding layer, itself included; 0: all */
    int64_t window;
    int64_t window_layers; /* the layers that slide are among the first so many; of some architectures */
    /* layers with a sliding window */
    bool sliding[NBL_MAX_LAYERS];
    /* layers whose q and k are not rotated */
    bool no_rope[NBL_MAX_LAYERS];
    /* chunked attention: a query sees keys of its own block of this many positions; 0: none */
    int64_t chunk;
    /* layers with chunked attention */
    bool chunked[NBL_MAX_LAYERS];
    /* q and k have an RMSNorm without weight on each head, in layers that rotate them */
    bool unit_norm;
    /* layers with the gated delta rule instead of softmax attention, and its sizes */
    bool recurrent[NBL_MAX_LAYERS];
    struct {
        int64_t key_heads, value_heads, key_dim, value_dim; /* of a head */
        int64_t taps;                                       /* weights of a channel of the convolution */
    } delta;
    bool partial_rotary;  /* the architecture may rotate a part of a head */
    nbl__rope rope;       /* of full layers; also of sliding ones if local_rope.theta is 0 */
    nbl__rope local_rope; /* of sliding layers; theta 0: use `rope` */
    nbl__rope query_rope; /* of queries that are scaled by position; theta 0: they rotate as keys */
    bool sinks;           /* attention has a logit per head that takes part of the softmax, self_attn.sinks */

    /* A mixture of experts; `experts` 0: none. */
    int64_t experts, top_k;      /* experts of a layer, and how many each token goes to */
    int64_t expert_inner;        /* width of one expert */
    int64_t shared_inner;        /* width of the expert that every token goes to; 0: there is none */
    bool sparse[NBL_MAX_LAYERS]; /* layers that have experts; the others have a dense block of `inner` */
    nbl__router_kind router;
    bool router_bias, router_round; /* router_round: weights are rounded to the compute dtype */
    bool experts_bias;
    bool experts_transposed;    /* dense stacks in one piece are stored [experts, in, out] */
    bool experts_interleaved;   /* gate and up alternate in the rows of gate_up_proj */
    float act_limit, act_alpha; /* of GPT-OSS's clamped activation; limit 0: `act` as it is */
} nbl__decoder;

/* True if this stack of experts is stored [experts, in, out], else [experts, out, in]. Packed weights
 * and those in a tensor per expert have their outputs first. */
static inline bool nbl__experts_transposed(const nbl__decoder *d, const nbl_weight *stack)
{
    return d->experts_transposed && stack->format == NBL_FORMAT_DENSE && stack->members == NULL;
}

struct nbl__config_keys;
struct nbl__build;
struct nbl__residual;

typedef struct nbl__arch {
    const char *model_type; /* the one of config.json that selects the architecture */
    nbl_status (*read)(struct nbl__config_keys *keys, nbl__decoder *d);
    /* Adds one layer to the residual stream h (parts.h). */
    void (*layer)(struct nbl__build *b, struct nbl__residual *h, int64_t layer);
} nbl__arch;

#define ARCH_DECLARATION(name) extern const nbl__arch nbl__##name;
NBL_ARCHS(ARCH_DECLARATION)
#undef ARCH_DECLARATION

/* Reads a parsed config.json into *d. model_type selects the architecture. `where` is the file's
 * path, for messages. Fails with NBL_ERROR_UNSUPPORTED for an unknown model_type, key or value,
 * and with NBL_ERROR_FORMAT for a value of the wrong type or range. */
nbl_status nbl__decoder_read(nbl_context *ctx, const char *where, const nbl__json *config, nbl__decoder *d);

/* True if the keys of a sequence rotate otherwise when it grows from `length` tokens to one more: cached
 * keys are then of no use. */
bool nbl__decoder_restarts(const nbl__decoder *d, int64_t length);

/* ---- keys.c: one call per key; a key that was never asked for is an error in the end ---- */

typedef struct nbl__config_keys {
    nbl_context *ctx;
    const char *where, *model_type;
    const nbl__json *config;
    bool *used; /* [config->count] true: a reader has asked for this key */
} nbl__config_keys;

/* The value of a key, which counts as read; NULL if it is absent or null. */
const nbl__json *nbl__key(nbl__config_keys *k, const char *name);
/* required; 1 … 2^31 - 1 */
nbl_status nbl__key_size(nbl__config_keys *k, const char *name, int64_t *value);
/* The `_or` functions store `missing` if the key is absent or null. */
nbl_status nbl__key_size_or(nbl__config_keys *k, const char *name, int64_t missing, int64_t *value);
nbl_status nbl__key_float_or(nbl__config_keys *k, const char *name, double missing, float *value);
/* A size that null switches off: null gives 0, an absent key gives `missing`. */
nbl_status nbl__key_size_off(nbl__config_keys *k, const char *name, int64_t missing, int64_t *value);
/* A soft cap: null gives 0 (none), an absent key gives `missing`. */
nbl_status nbl__key_cap_or(nbl__config_keys *k, const char *name, double missing, float *value);
nbl_status nbl__key_flag_or(nbl__config_keys *k, const char *name, bool missing, bool *value);
/* Keys of all decoders: sizes, heads, norm_eps, tied head, activation (key `act_key`), padding,
 * RoPE. Call it after setting the defaults of the architecture's configuration class in *d: kv_heads,
 * head_dim, inner, act, padding, norm_eps, positions, the thetas of rope and local_rope. A field that is 0
 * gets Llama's default; padding -1: none. partial_rotary and query_rope.theta > 0 permit a rope of a
 * part of a head, and llama_4_scaling_beta. */
nbl_status nbl__keys_common(nbl__config_keys *k, nbl__decoder *d, const char *act_key, bool tied_by_default);
/* Checks a rope again, after an architecture has changed it. */
nbl_status nbl__keys_check_rope(nbl__config_keys *k, const nbl__decoder *d, const nbl__rope *rope);
/* Fills d->sliding from layer_types. Without that key, by_default decides for each layer; NULL:
 * none slides. Call it after setting d->window. */
nbl_status nbl__keys_layer_types(nbl__config_keys *k, nbl__decoder *d,
                                 bool (*by_default)(const nbl__decoder *d, int64_t layer));

/* Fills d->no_rope from no_rope_layers, a list of 0 (no rope) and 1. Without that key every n-th
 * layer has none, n being no_rope_layer_interval (4). */
nbl_status nbl__keys_no_rope(nbl__config_keys *k, nbl__decoder *d);

/* Keys of a mixture of experts: d->experts by the key `count`, d->top_k, d->expert_inner by the key
 * `inner`. Refuses output_router_logits, which adds a loss. Call it after nbl__keys_common. */
nbl_status nbl__keys_experts(nbl__config_keys *k, nbl__decoder *d, const char *count, const char *inner);
/* Fills d->sparse: layers not in mlp_only_layers, and only every decoder_sparse_step-th. */
nbl_status nbl__keys_sparse_layers(nbl__config_keys *k, nbl__decoder *d);

/* Qwen's mixtures of experts: both of the above, and norm_topk_prob (default false), which says whether
 * the weights of the chosen experts are divided by their sum. */
nbl_status nbl__keys_qwen_experts(nbl__config_keys *k, nbl__decoder *d, const char *count);

/* Qwen: sliding_window (4096) counts only if use_sliding_window is true. Without layer_types, layers
 * slide from max_window_layers (28) on. */
nbl_status nbl__keys_sliding_window(nbl__config_keys *k, nbl__decoder *d);

/* Keys of hybrid decoders (keys_recurrent.c), those of nbl__keys_common included: also fills d->recurrent
 * from layer_types or full_attention_interval, and d->delta. Call it after setting the default of
 * kv_heads. */
nbl_status nbl__keys_hybrid(nbl__config_keys *k, nbl__decoder *d);

/* ---- building ---- */

typedef enum nbl__mode {
    NBL_MODE_LOGITS,  /* logits of every token; packed sequences */
    NBL_MODE_TRAIN,   /* loss and log-probabilities; packed sequences */
    NBL_MODE_PREFILL, /* logits of each sequence's last token; writes k and v to the cache */
    NBL_MODE_DECODE,  /* one token per sequence, attention over the cache */
    NBL_MODE_HIDDEN,  /* hidden states of every token, before the head; packed sequences */
    NBL_MODE_HEAD     /* the head alone: hidden states in, logits out */
} nbl__mode;

/* LoRA or DoRA of a linear layer: y += scale·dropout(x)·Aᵀ·Bᵀ. A [rank, in] and B [out, rank]
 * become parameters of the graph; with DoRA also magnitude [out]. */
typedef struct nbl__adapter {
    int64_t rank;
    float scale, dropout;
    bool dora;
} nbl__adapter;

/* What a builder asks about the files of a model. */
typedef struct nbl__model_source {
    void *user;
    /* A tensor of the checkpoint by name, with format and shape; NULL if there is none.
     * Borrowed. The role says what the builder needs it for. */
    const nbl_weight *(*weight)(void *user, const char *name, nbl__weight_role role);
    /* The adapter of a module ("model.layers.3.mlp.up_proj"); false if it has none. */
    bool (*adapter)(void *user, const char *module, nbl__adapter *adapter);
    /* True if this tensor is trained as a whole. It then becomes an f32 parameter, also in
     * graphs that do not train, so that all graphs of a model can share its memory. NULL: none
     * is trained. */
    bool (*trained)(void *user, const char *name);
} nbl__model_source;

/* Input and output of nbl__decoder_build. The caller sets the fields up to cache_size and
 * `argmax`; the builder sets the rest. */
typedef struct nbl__build {
    nbl__graph *g;
    const nbl__decoder *d;
    const nbl__model_source *source;
    nbl__mode mode;
    /* compute dtype of activations; dtype of the KV cache */
    nbl_dtype dtype, kv_dtype;
    bool train;       /* adapters and trained weights get gradients */
    bool dequantized; /* int8 weights: multiply with dequantized weights, as training does */
    /* feed-forward block as three operators (gate_up, act, down) instead of one mlp operator */
    bool split_mlp;
    /* Values per layer that are never recomputed. 1: the residual stream at its start. 2: also
     * the stream between its two halves. 3: also the attention output and its log-sum-exp. */
    int pins;
    /* generation: RoPE, cache write and attention in one operator (attention_step) */
    bool fuses_rope_attention;
    bool fuses_norm_rope; /* training: q/k norm and RoPE in one operator (norm_rope), where possible */
    /* the largest of a run; cache_size: tokens per sequence in the cache */
    int64_t tokens, sequences, cache_size;

    /* Inputs, by mode; 0 in other modes:
     *
     *     ids, positions  [tokens]         all modes but HEAD
     *     cu_seqlens      [sequences + 1]  all but DECODE and HEAD: first token of each sequence
     *     labels, dloss   [tokens], [1]    TRAIN; dloss is the gradient of the loss
     *     denominator     [1]              TRAIN: of the loss; 0: the number of trained tokens
     *     rows            [tokens]         PREFILL, DECODE: rows of the cache to write
     *     last            [sequences]      PREFILL: index of each sequence's last token
     *     lengths         [sequences]      DECODE: tokens in the cache
     */
    nbl__value ids, positions, cu_seqlens, labels, rows, last, lengths, dloss, denominator;
    /* [layers] KV caches [sequences, cache_size, kv_heads, head_dim]; states. 0: a recurrent layer */
    nbl__value *k_cache, *v_cache;
    /* [layers] of recurrent layers: [sequences, taps - 1, channels] and f32 [sequences, value_heads,
     * key_dim, value_dim]; states. NULL: there are no such layers */
    nbl__value *conv_state, *delta_state;
    bool argmax;             /* the result is the index of the largest logit, not the logits */
    nbl__value loss, logits; /* results */
    /* [layers] TRAIN: the offsets of each layer's experts (expert_order.h), results; 0: the layer has
     * none. NULL: the model has none. */
    nbl__value *expert_offsets;
    /* results with `argmax`: index of the largest logit, non-finite flag (argmax.h) */
    nbl__value best, non_finite;
    nbl__value hidden; /* [tokens, hidden]: the result of HIDDEN, the input of HEAD */
    /* RoPE tables; those of sliding layers and of scaled queries if they differ */
    nbl__rope_values rope, local_rope, query_rope;
    nbl__value embedding; /* its weight; also the head's if they are tied */
    char at[64];          /* prefix of tensor names: "model.layers.3." */
    nbl__text problems;   /* every tensor that is missing or has a wrong shape, for one message */
} nbl__build;

/* Builds the forward graph into b->g. Returns the graph's status. Missing tensors do not fail
 * the build: they are listed in b->problems, which the caller checks and frees. */
nbl_status nbl__decoder_build(nbl__build *b);

#endif
