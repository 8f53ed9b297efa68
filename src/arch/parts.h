/* parts.h - what the layers of architectures are made of.
 *
 * Each part is a plain function: it takes values and numbers, and adds nodes to b->g. What a run is
 * for (nbl__build.mode) and what its device prefers (fuses_rope_attention, fuses_norm_rope,
 * split_mlp, pins) is known here and in no architecture. Names of modules are those of the
 * checkpoint, without the layer's prefix: "self_attn.o_proj".
 *
 * The residual stream. Its sums are computed by the norms that follow them: a norm reads stream and
 * addend, and writes the new stream and its norm in one node. A layer therefore reads
 *
 *     x = nbl__part_residual_norm(b, h, "input_layernorm");      h's sum, normalized
 *     x = … attention …
 *     nbl__part_residual_add(h, x);                              added by the next residual_norm
 */
#ifndef NBL_PARTS_H
#define NBL_PARTS_H

#include "arch/arch.h"

/* ---- the residual stream and norms ---- */

typedef struct nbl__residual {
    nbl__value sum;    /* 0: nothing has been added */
    nbl__value addend; /* to be added; 0: none */
    int norms;         /* norms of the stream in the current layer so far */
} nbl__residual;

/* Adds what waits, and returns the RMSNorm of the stream. In a layer the stream is pinned here: at
 * the layer's first norm, and at later ones if b->pins >= 2. */
nbl__value nbl__part_residual_norm(nbl__build *b, nbl__residual *h, const char *name);
/* Adds what waits, and returns the stream itself, for layers that norm only behind their blocks. Pins
 * it as nbl__part_residual_norm does. */
nbl__value nbl__part_residual_stream(nbl__build *b, nbl__residual *h);
/* h + x */
void nbl__part_residual_add(nbl__residual *h, nbl__value x);
/* The norm behind the last layer, with the scale of the logits (nbl__decoder.logit_scale). */
nbl__value nbl__part_last_norm(nbl__build *b, nbl__residual *h, const char *name);
/* RMSNorm of a value outside of the stream. */
nbl__value nbl__part_norm(nbl__build *b, nbl__value x, const char *name);
/* The same over rows of another width than the stream's. */
nbl__value nbl__part_norm_of(nbl__build *b, nbl__value x, const char *name, int64_t width);
/* x·factor; x itself if the factor is 1. */
nbl__value nbl__part_scaled(nbl__build *b, nbl__value x, const char *name, float factor);

/* ---- linear layers ---- */

/* Index of the dropout mask of a linear layer's adapter within its layer, the same however linear
 * layers share nodes. An input adds the layer's seed (nbl__graph_seed_dropout). */
typedef enum nbl__dropout_mask {
    NBL_DROPOUT_MASK_QKV = 0,
    NBL_DROPOUT_MASK_O = 3,
    NBL_DROPOUT_MASK_GATE_UP = 4,
    NBL_DROPOUT_MASK_DOWN = NBL_DROPOUT_MASK_GATE_UP + NBL_MLP_DOWN,
    /* out_proj behind the gated delta rule, whose group of four has the numbers of QKV and O */
    NBL_DROPOUT_MASK_DELTA_OUT = 16,
    /* The router's adapter has no dropout in PEFT; a number of its own keeps it apart anyway. */
    NBL_DROPOUT_MASK_ROUTER,
    NBL_DROPOUT_MASK_SHARED_GATE
} nbl__dropout_mask;

/* y = x·Wᵀ (+ bias), with the module's adapter. This is what makes storage formats, LoRA and DoRA
 * work on a linear layer. `role`: LINEAR, or EMBEDDING or HEAD for the head. */
nbl__value nbl__part_linear(nbl__build *b, nbl__value x, const char *path, nbl__weight_role role, int64_t out,
                            int64_t in, bool bias, nbl__dropout_mask mask);

/* One linear layer of a group: its module, its outputs. */
typedef struct nbl__linear_module {
    const char *path;
    int64_t out;
    bool bias;
} nbl__linear_module;

/* Up to four linear layers of the hidden state x in one node, called `name`. Their dropout masks have
 * the numbers from NBL_DROPOUT_MASK_QKV on. */
void nbl__part_linear_group(nbl__build *b, nbl__value x, const char *name, const nbl__linear_module *modules,
                            int count, nbl__value *y);

/* ---- attention ---- */

/* The three values of attention, [tokens, heads · head_dim] or [tokens, heads, head_dim]. */
typedef struct nbl__qkv {
    nbl__value q, k, v;
} nbl__qkv;

/* How a layer attends. */
typedef struct nbl__layer_attention {
    /* q and k have an RMSNorm on each head, "self_attn.q_norm" and "self_attn.k_norm" */
    bool qk_norm;
    bool unit_norm;  /* the same norms without a weight */
    bool local_rope; /* rotates by b->local_rope instead of b->rope */
    bool no_rope;    /* q and k are not rotated */
    bool query_rope; /* q rotates by b->query_rope, which also scales it, whatever k does */
    int64_t window;  /* tokens that a query sees, itself included; 0: all */
    int64_t chunk;   /* q sees keys of its own block of this many positions; 0: all */
    float scale;     /* of scores; 0: 1 / sqrt(head_dim) */
    float softcap;   /* of scores; 0: none */
} nbl__layer_attention;

/* Window, chunk and ropes of a layer as the config has them for its type (sliding or full). */
nbl__layer_attention nbl__part_layer_attention(const nbl__build *b, int64_t layer);
/* q, k, v of x: the linear layers self_attn.q_proj, k_proj and v_proj in one node. */
nbl__qkv nbl__part_qkv(nbl__build *b, nbl__value x, bool bias);
/* Attention of q, k, v, however these were made: norms of heads, RoPE, the cache of a layer, and
 * softmax attention. Returns [tokens, heads · head_dim]. */
nbl__value nbl__part_attention(nbl__build *b, nbl__qkv qkv, int64_t layer, const nbl__layer_attention *how);
/* The linear layer self_attn.o_proj. */
nbl__value nbl__part_attention_output(nbl__build *b, nbl__value x, bool bias);

/* ---- hybrid decoders (parts_recurrent.c) ---- */

/* The first half of a layer: input_layernorm, then by d->recurrent
 *
 *   linear_attn    convolution, gated delta rule, gated norm, out_proj. `fused`: q, k, v, z and b, a come
 *                  from two matrices, with the rows of a key head together (Qwen3-Next)
 *   self_attn      with norms of heads and a gate: q_proj's heads have the rows of a query and of its
 *                  gate, whose sigmoid multiplies the output of attention */
void nbl__part_hybrid_mixer(nbl__build *b, nbl__residual *h, int64_t layer, bool fused);

/* ---- feed-forward ---- */

/* down(act(gate(x))·up(x)): the linear layers mlp.gate_proj, up_proj and down_proj, with d->act. */
nbl__value nbl__part_gated_mlp(nbl__build *b, nbl__value x, bool bias);
/* The same for a block of this name and inner width: "mlp.shared_expert". */
nbl__value nbl__part_gated_mlp_at(nbl__build *b, nbl__value x, const char *module, int64_t inner, bool bias);
/* down(act(gate)·up) of values, however these were made. */
nbl__value nbl__part_gated_down(nbl__build *b, nbl__value gate, nbl__value up, bool bias);

/* ---- experts (parts_experts.c) ---- */

/* Names of a layer's modules of experts, without the layer's prefix. */
typedef struct nbl__expert_modules {
    const char *router;  /* "mlp.gate" */
    const char *experts; /* "mlp.experts": what has gate_up_proj and down_proj */
    /* The expert of all tokens: a block with gate_proj, up_proj and down_proj; NULL: none. */
    const char *shared;
    const char *shared_gate; /* a linear layer to one number, whose sigmoid scales `shared`; NULL: none */
} nbl__expert_modules;

/* The mixture of experts of this layer, by the numbers of *b->d: router, the chosen experts' sum, and
 * the shared expert. */
nbl__value nbl__part_experts(nbl__build *b, nbl__value x, const nbl__expert_modules *names);

/* ---- whole layers that several architectures have ---- */

/* llama.c */
void nbl__llama_layer(nbl__build *b, nbl__residual *h, int64_t layer);
/* olmo2.c */
nbl_status nbl__olmo_keys(nbl__config_keys *k, nbl__decoder *d);
void nbl__olmo_layer(nbl__build *b, nbl__residual *h, int64_t layer);

/* ---- weights ---- */

/* A matrix of the model, by its full name. The embedding is one value for all its users, so that a
 * tied head and the look-up add to the same gradient. */
nbl__value nbl__part_weight(nbl__build *b, const char *name, nbl__weight_role role, int64_t rows,
                            int64_t columns);
/* A vector of n values, by its full name. Biases have the compute dtype, all others the checkpoint's. */
nbl__value nbl__part_vector(nbl__build *b, const char *name, nbl__weight_role role, int64_t n);
/* A trained parameter: the f32 master copy. In 16 bits small updates would be rounded away. */
nbl__value nbl__part_master(nbl__build *b, const char *name, nbl__weight_role role, int rank, int64_t first,
                            int64_t second);
/* Checks that the model has a tensor of this shape. Otherwise b->problems gets a line. Returns the
 * tensor, or an empty stand-in; NULL only if memory has run out. */
const nbl_weight *nbl__part_tensor(nbl__build *b, const char *name, nbl__weight_role role, int rank,
                                   int64_t rows, int64_t columns);

#endif
