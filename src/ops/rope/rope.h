/* rope.h - rotary position embedding. It rotates pairs (a, b) of a head's elements:
 *
 *   angle[t, i] = positions[t]·frequency[i],  i < rotary/2
 *   a, b = a·cos - b·sin, b·cos + a·sin
 *
 *   a, b = x[t, h, i], x[t, h, i + rotary/2]     halves: "rotate_half" of Hugging Face's models
 *   a, b = x[t, h, 2·i], x[t, h, 2·i + 1]        interleaved (Llama 4, Cohere 2)
 *
 * The elements from `rotary` on stay as they are (a partial rotary factor).
 *
 * Accuracy: frequencies are f32, as transformers computes them. The angle is the
 * product of frequency and position in f64, exact up to position 2²⁹; cos and sin
 * are right to an f32 unit. (transformers multiplies in f32: at position 10⁶ its
 * angle is off by up to 0.03.) Both are multiplied by the scaling's attention
 * factor. Backward rotates by the negative angle.
 *
 * Two families: rope_table computes cos and sin once per step, f32 [tokens,
 * rotary/2]. rope reads them, or computes them from positions. y may overlap x
 * exactly, and dx may overlap dy.
 *
 * Lengths: the frequencies of `dynamic` and `longrope` depend on the length of the
 * token's sequence, that is 1 + the position of the sequence's last token. A table
 * finds it through cu_seqlens. Without cu_seqlens each token is the last of a
 * sequence, as in generation. */
#ifndef NBL_ROPE_H
#define NBL_ROPE_H

#include "base/json/json.h"
#include "ops/ops.h"

/* How a model's context was extended. */
typedef enum nbl__rope_kind {
    NBL_ROPE_DEFAULT,
    NBL_ROPE_LINEAR, /* frequencies divided by factor */
    NBL_ROPE_LLAMA3, /* low frequencies divided by factor, high ones kept, a ramp between */
    NBL_ROPE_YARN,   /* the ramp is over the dimensions; cos and sin are scaled as well */
    /* theta grows with the sequence's length beyond max_position_embeddings (NTK) */
    NBL_ROPE_DYNAMIC,
    /* each frequency has a divisor: of one list up to the original length, of another beyond */
    NBL_ROPE_LONGROPE,
    /* the first part of the pairs rotates, with the frequencies of a whole head */
    NBL_ROPE_PROPORTIONAL,
    NBL_ROPE_NONE /* all angles are 0; of a table that only scales queries. No configuration has it */
} nbl__rope_kind;

/* What determines the frequencies. A field that is 0 was not given, and has
 * transformers' default. theta is always required; nbl__rope_check() knows what
 * else a kind requires. */
typedef struct nbl__rope {
    float theta;
    float rope_theta;                /* from the scaling object; replaces theta if not 0 */
    int64_t rotary_dim;              /* 0: partial_rotary_factor of the head's dimension */
    int64_t max_position_embeddings; /* yarn without factor */
    nbl__rope_kind kind;
    double partial_rotary_factor; /* 0: 1 */
    double factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double original_max_position_embeddings;  /* llama3, yarn, longrope; 0: max_position_embeddings */
    double beta_fast, beta_slow;              /* yarn; 0: 32 and 1 */
    double attention_factor;                  /* yarn, longrope; valid if has_attention_factor */
    double mscale, mscale_all_dim;            /* yarn; used only if both are given */
    /* longrope: lists of rotary/2 numbers; borrowed from the configuration */
    const nbl__json *short_factor, *long_factor;
    /* Queries that are scaled by position: cos and sin are multiplied by
     * 1 + beta·ln(1 + ⌊(position + shift) / length⌋). beta 0: they are not. */
    double query_beta, query_length, query_shift;
    bool has_attention_factor;
    bool keep_fractions; /* yarn: "truncate" was false */
    bool interleaved;    /* pairs are neighbours instead of halves */
} nbl__rope;

/* Reads config.json's object rope_scaling or rope_parameters. NULL or JSON null:
 * the default. An unknown type or key is an error that names it. */
nbl_status nbl__rope_read_scaling(nbl_context *ctx, const nbl__json *object, nbl__rope *rope);
/* How many of a head's dimensions rotate. */
int64_t nbl__rope_dim(const nbl__rope *rope, int64_t head_dim);
/* Parameters without frequencies are an error: a factor that is missing or not
 * positive. */
nbl_status nbl__rope_check(nbl_context *ctx, const char *op, const nbl__rope *rope);
/* The same for what depends on the number of dimensions that rotate: longrope's lists. */
nbl_status nbl__rope_check_dim(nbl_context *ctx, const char *op, const nbl__rope *rope, int64_t dim);
/* True if the frequencies depend on the length of the sequence. */
bool nbl__rope_has_lengths(const nbl__rope *rope);
/* A length that stands for all that have the same frequencies as `length`. */
int64_t nbl__rope_length_class(const nbl__rope *rope, int64_t length);
/* Writes frequencies[dim / 2] of a sequence of this length, and the factor of cos and sin. */
void nbl__rope_frequencies(const nbl__rope *rope, int64_t dim, int64_t length, float *frequencies,
                           float *attention_scaling);
/* The factor of cos and sin that depends on the position; 1 if queries are not scaled. */
double nbl__rope_query_scale(const nbl__rope *rope, int64_t position);

typedef struct nbl__rope_table {
    nbl__rope rope;        /* with a rotary_dim */
    nbl_tensor positions;  /* int32 [tokens] */
    nbl_tensor cu_seqlens; /* int32 [sequences + 1]; optional; read if nbl__rope_has_lengths() */
    nbl_tensor cos, sin;   /* f32 [tokens, rotary/2] */
} nbl__rope_table;

/* A run of tokens [first, end) whose sequences have frequencies of one length class. */
typedef struct nbl__rope_run {
    int64_t first, end, length;
    int64_t sequence; /* the next one to look at */
} nbl__rope_run;
/* Sets *run to the next run of a table; all zero: to the first. False at the end. */
bool nbl__rope_next_run(const nbl__rope_table *a, nbl__rope_run *run);

typedef struct nbl__rope_apply {
    nbl_dtype dtype;
    nbl__rope rope;
    nbl_tensor x;         /* [tokens …, heads, head_dim] */
    nbl_tensor positions; /* int32 [tokens …]; optional when cos and sin are given */
    nbl_tensor cos, sin;  /* optional: f32 [tokens, rotary/2] */
    nbl_tensor y, dy, dx;
} nbl__rope_apply;

/* Elements from one token's heads to the next's, in x, y, dy or dx. */
static inline int64_t nbl__token_stride(const nbl_tensor *t)
{
    return t->row_stride ? t->row_stride : t->shape[t->rank - 2] * t->shape[t->rank - 1];
}

extern const nbl__impl nbl__rope_ref, nbl__rope_backward_ref;

#endif
