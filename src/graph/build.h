/* build.h - one typed function per operator family that a builder of models uses.
 *
 *     nbl__value y = nbl__build_gated(g, "mlp.act", gate, up, act, dtype);
 *
 * Each function adds one node: it begins it, sets its attributes, binds its slots by the fields of
 * the family's struct, and ends it (graph.h). The compiler checks fields and arguments, so no
 * caller spells the name of a family or of a slot. `name` is the node's name. A value of 0 leaves
 * an optional slot absent. Errors are sticky, as everywhere in a graph: after a failure each
 * function returns 0.
 *
 * These functions know operators, and no architecture. */
#ifndef NBL_BUILD_H
#define NBL_BUILD_H

#include "graph/graph.h"
#include "ops/linear/linear_group.h"
#include "ops/linear/mlp.h"
#include "ops/rope/rope.h"

/* ---- linear layers ---- */

/* The values of one linear layer; 0: absent. */
typedef struct nbl__linear_values {
    nbl__value w, bias;
    nbl__value lora_a, lora_b; /* the adapter: both or none */
    float scale, dropout;      /* of the adapter */
    nbl__value magnitude;      /* DoRA */
    /* DoRA: an NBL_KIND_PREPARED value, f32 [out]. The functions below add the node that prepares
     * it (dora_norm.h). */
    nbl__value norm;
} nbl__linear_values;

/* What the layers of one node share. Dropout is that of the last layer with an adapter. */
typedef struct nbl__linear_options {
    nbl_dtype dtype;  /* compute dtype */
    bool dequantized; /* int8 weights: multiply with dequantized weights */
    uint64_t seed;    /* of the first layer's dropout mask (nbl__dropout_seed) */
} nbl__linear_options;

nbl__value nbl__build_linear(nbl__graph *g, const char *name, nbl__value x, const nbl__linear_values *layer,
                             const nbl__linear_options *how);
/* Up to NBL_MAX_GROUP layers of one x; y gets one output per layer. */
void nbl__build_linear_group(nbl__graph *g, const char *name, nbl__value x, const nbl__linear_values *layers,
                             int count, const nbl__linear_options *how, nbl__value *y);
/* down(act(gate(x))·up(x)). `layers` has the order of NBL_MLP_GATE, _UP, _DOWN. `keep`: save the
 * outputs of gate and up for backward. */
nbl__value nbl__build_mlp(nbl__graph *g, const char *name, nbl__value x,
                          const nbl__linear_values layers[NBL_MLP_PARTS], nbl__act act, bool keep,
                          const nbl__linear_options *how);
/* act(gate)·up */
nbl__value nbl__build_gated(nbl__graph *g, const char *name, nbl__value gate, nbl__value up, nbl__act act,
                            nbl_dtype dtype);

/* x·σ(gate); `gate` has the columns of x, or one for a whole row. */
nbl__value nbl__build_sigmoid_gate(nbl__graph *g, const char *name, nbl__value x, nbl__value gate,
                                   nbl_dtype dtype);
/* Takes heads apart whose rows lie together (split_heads.h). *rest gets what the widths leave. */
nbl__value nbl__build_split_heads(nbl__graph *g, const char *name, nbl__value x, int64_t heads,
                                  const int64_t widths[3], nbl_dtype dtype, nbl__value *rest);

/* ---- norms and RoPE ---- */

typedef struct nbl__norm_options {
    nbl_dtype dtype;
    float eps, offset;    /* the weight is w + offset */
    float scale;          /* of the result; 0: 1 */
    nbl_norm_round round; /* when the quotient is rounded */
} nbl__norm_options;

/* cos and sin of the positions of a run. */
typedef struct nbl__rope_values {
    nbl__value cos, sin;
} nbl__rope_values;

/* RMSNorm of x, or of x + residual; *sum gets that sum, 0 without a residual. */
nbl__value nbl__build_rmsnorm(nbl__graph *g, const char *name, nbl__value x, nbl__value w,
                              nbl__value residual, const nbl__norm_options *how, nbl__value *sum);
/* LayerNorm without a bias; offset and round of *how are not used. */
nbl__value nbl__build_layernorm(nbl__graph *g, const char *name, nbl__value x, nbl__value w,
                                const nbl__norm_options *how);
/* `rope` has a rotary_dim. cu_seqlens is bound only if the frequencies depend on it. */
nbl__rope_values nbl__build_rope_table(nbl__graph *g, const char *name, nbl__value positions,
                                       nbl__value cu_seqlens, const nbl__rope *rope);
nbl__value nbl__build_rope(nbl__graph *g, const char *name, nbl__value x, nbl__rope_values table,
                           const nbl__rope *rope, nbl_dtype dtype);
/* RMSNorm of each head, then RoPE. */
nbl__value nbl__build_norm_rope(nbl__graph *g, const char *name, nbl__value x, nbl__value w,
                                nbl__rope_values table, const nbl__norm_options *how);

/* w ∘ rms(x) ∘ silu(gate) by head; x and gate are [tokens, heads, columns]. */
nbl__value nbl__build_gated_norm(nbl__graph *g, const char *name, nbl__value x, nbl__value gate, nbl__value w,
                                 float eps, nbl_dtype dtype);

/* ---- attention ---- */

typedef struct nbl__attention_options {
    nbl_dtype dtype;
    float scale;      /* of scores; 0: 1 / sqrt(head_dim) */
    float softcap;    /* of scores; 0: none */
    int64_t window;   /* tokens that a query sees, itself included; 0: all */
    int64_t chunk;    /* a query sees keys of its own block of this many positions; 0: all */
    nbl__value sinks; /* [heads]: a logit of each head that joins the softmax; 0: none */
} nbl__attention_options;

/* The state of one layer for generation: keys, values [sequences, rows, heads, head_dim], and the
 * tokens of each sequence. */
typedef struct nbl__cache_values {
    nbl__value keys, values, lengths;
} nbl__cache_values;

/* Over packed sequences; q, k, v are [tokens, heads, head_dim]. *lse gets the log-sum-exp. */
nbl__value nbl__build_attention(nbl__graph *g, const char *name, nbl__value q, nbl__value k, nbl__value v,
                                nbl__value cu_seqlens, const nbl__attention_options *how, nbl__value *lse);
/* One query per sequence, over the cache. */
nbl__value nbl__build_attention_decode(nbl__graph *g, const char *name, nbl__value q, nbl__cache_values cache,
                                       const nbl__attention_options *how);
/* RoPE of q and k, the cache's new row, and attention over the cache. */
nbl__value nbl__build_attention_step(nbl__graph *g, const char *name, nbl__value q, nbl__value k,
                                     nbl__value v, nbl__rope_values table, nbl__cache_values cache,
                                     const nbl__attention_options *how);
/* cache row rows[t] = x[t] */
void nbl__build_kv_write(nbl__graph *g, const char *name, nbl__value x, nbl__value rows, nbl__value cache);

/* ---- recurrences ---- */

/* Convolution of each channel within its sequence, and silu; w is [channels, 1, taps]. `state`: gets the
 * last rows of each sequence; 0: none. */
nbl__value nbl__build_short_conv(nbl__graph *g, const char *name, nbl__value x, nbl__value w,
                                 nbl__value cu_seqlens, nbl__value state, nbl_dtype dtype);
/* The same for one token per sequence, after the rows of the state, which moves on. */
nbl__value nbl__build_short_conv_step(nbl__graph *g, const char *name, nbl__value x, nbl__value w,
                                      nbl__value state, nbl_dtype dtype);

/* The states of one layer for generation; 0: none. */
typedef struct nbl__delta_states {
    nbl__value conv, rule;
} nbl__delta_states;

/* The operands of the gated delta rule (gated_delta.h). */
typedef struct nbl__delta_values {
    nbl__value q, k, v, a, b, a_log, dt_bias;
    nbl__value cu_seqlens; /* not of a step */
    nbl__value state;      /* 0: none is left */
} nbl__delta_values;

/* Over packed sequences; the state gets the last state of each. */
nbl__value nbl__build_gated_delta(nbl__graph *g, const char *name, const nbl__delta_values *x,
                                  nbl_dtype dtype);
/* One token per sequence; the state moves on. */
nbl__value nbl__build_gated_delta_step(nbl__graph *g, const char *name, const nbl__delta_values *x,
                                       nbl_dtype dtype);

/* ---- embedding, head, sums ---- */

/* Rows of w, times `scale`. `padding`: an id that is looked up but not trained; -1: none. */
nbl__value nbl__build_embedding(nbl__graph *g, const char *name, nbl__value ids, nbl__value w, float scale,
                                int64_t padding, nbl_dtype dtype);
/* The mean loss of the head w: the sum over trained tokens divided by `denominator` (0: by their
 * number). `grad_in_forward`: forward computes the gradient of x as well. */
nbl__value nbl__build_cross_entropy(nbl__graph *g, const char *name, nbl__value x, nbl__value w,
                                    nbl__value labels, nbl__value denominator, float softcap,
                                    bool grad_in_forward, nbl_dtype dtype);
nbl__value nbl__build_take_rows(nbl__graph *g, const char *name, nbl__value x, nbl__value rows);
/* Index of the largest value of each row. *non_finite gets the index of a NaN or infinity, or -1. */
nbl__value nbl__build_argmax(nbl__graph *g, const char *name, nbl__value x, nbl__value *non_finite);
/* x·factor */
nbl__value nbl__build_scale(nbl__graph *g, const char *name, nbl__value x, float factor, nbl_dtype dtype);
nbl__value nbl__build_add(nbl__graph *g, const char *name, nbl__value x, nbl__value y, nbl_dtype dtype);

#endif
