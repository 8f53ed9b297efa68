/* attention.h - softmax attention: over packed sequences (forward and backward),
 * and over a KV cache.
 *
 *   s[i, j] = scale · q[i]·k[j]                 with a soft cap: cap · tanh(s / cap)
 *   p[i, j] = exp(s[i, j] - lse[i])             lse[i] = log(Σ_j exp(s[i, j]) + exp(sink))
 *   out[i]  = Σ_j p[i, j] · v[j]
 *
 * j runs over the keys of i's own sequence that i may see:
 *
 *   causal      j <= i, and with a window i - j < window
 *   causal      with chunks also ⌊i / chunk⌋ = ⌊j / chunk⌋; positions count from the sequence's start
 *   otherwise   every j, and with a window |i - j| <= window (Hugging Face's bidirectional mask)
 *
 * Heads: query head h uses key head h / (Hq / Hkv). A sink is one more logit per
 * query head, without a value: it enters the denominator only.
 *
 * Packing: sequence s owns the rows cu_seqlens[s] … cu_seqlens[s + 1] - 1,
 * possibly none. The bits of a sequence's results do not depend on the sequences
 * packed beside it. */
#ifndef NBL_ATTENTION_H
#define NBL_ATTENTION_H

#include "ops/ops.h"

/* T tokens of all sequences, S sequences, D the head dimension. */
typedef struct nbl__attention {
    nbl_dtype dtype;       /* of the computation: q, k, v, out and their gradients */
    nbl_tensor q, k, v;    /* [T, Hq, D], [T, Hkv, D] twice */
    nbl_tensor cu_seqlens; /* i32 [S + 1]: offsets of the sequences, from 0, non-decreasing, to T */
    nbl_tensor sinks;      /* [Hq], any float dtype; optional */
    float scale;           /* 0: 1 / sqrt(D) */
    bool causal;
    int64_t window; /* 0: none */
    int64_t chunk;  /* 0: none; else causal */
    float softcap;  /* 0: none */
    nbl_tensor out; /* [T, Hq, D] */
    nbl_tensor lse; /* f32 [T, Hq]; read by backward, as is `out`; not written without memory */
    nbl_tensor dout;
    nbl_tensor dq, dk, dv, dsinks; /* dsinks is f32 */
    bool accumulate;               /* backward adds to dsinks instead of writing it */
} nbl__attention;

/* attention_decode: one query per sequence, at position lengths[b] - 1, over a KV
 * cache. The first lengths[b] entries of the cache are valid. The others are never
 * read. */
typedef struct nbl__attention_decode {
    nbl_dtype dtype;    /* of q and out */
    nbl_tensor q;       /* [B, Hq, D] */
    nbl_tensor k, v;    /* [B, S, Hkv, D]; f32, f16 or bf16, both the same; any dtype of q */
    nbl_tensor lengths; /* i32 [B], 1 … S */
    nbl_tensor sinks;
    float scale;
    bool causal; /* must be true */
    int64_t window, chunk;
    float softcap;
    nbl_tensor out;
} nbl__attention_decode;

/* attention_step: one token per sequence, in three steps:
 *
 *   1. rope rotates q and the new key (rope.h), and rounds both
 *   2. kv_write stores the new key and value as entry lengths[b] - 1 of the caches, with one
 *      more rounding if these have another dtype
 *   3. attention_decode over all entries, the new one included */
typedef struct nbl__attention_step {
    nbl_dtype dtype;     /* of q, k, v and out */
    nbl_tensor q, k, v;  /* [B, Hq, D], [B, Hkv, D] twice; q and k before rope */
    nbl_tensor cos, sin; /* f32 [B, rotary/2] */
    /* the caches [B, S, Hkv, D]: f32, f16 or bf16, both the same; written in place */
    nbl_tensor keys, values;
    nbl_tensor lengths; /* i32 [B], 1 … S: including the new token */
    nbl_tensor sinks;
    float scale;
    int64_t window, chunk;
    float softcap;
    nbl_tensor out;
} nbl__attention_step;
/* The attention_decode of step 3. `q` is the rotated query. */
nbl__attention_decode nbl__attention_of_step(const nbl__attention_step *a, const nbl_tensor *q);

extern const nbl__impl nbl__attention_decode_ref;

/* Checks that need the data, which infer does not read: cu_seqlens and lengths.
 * Every CPU implementation calls them first. */
nbl_status nbl__attention_check_sequences(const nbl__call *call, const nbl__attention *a);
nbl_status nbl__attention_check_lengths(const nbl__call *call, const nbl__attention_decode *a);

/* `scale`, or 1 / √D if it is 0. */
double nbl__attention_scale(float scale, int64_t head_size);

/* Elements from the start of a tensor [tokens, heads, size] to a head of a token. */
static inline int64_t nbl__head_offset(const nbl_tensor *t, int64_t token, int64_t head)
{
    int64_t stride = t->row_stride ? t->row_stride : t->shape[1] * t->shape[2];
    assert(t->rank == 3 && token >= 0 && token < t->shape[0] && head >= 0 && head < t->shape[1]);
    return token * stride + head * t->shape[2];
}

/* Which keys a query sees, beside those of other sequences. */
typedef struct nbl__attention_mask {
    bool causal;
    int64_t window, chunk; /* 0: none */
} nbl__attention_mask;

/* The keys [first, end) that query i of a sequence of n sees. */
typedef struct nbl__span {
    int64_t first, end;
} nbl__span;
static inline nbl__span nbl__attention_span(nbl__attention_mask mask, int64_t i, int64_t n)
{
    int64_t window = mask.window, first = mask.chunk > 0 ? i - i % mask.chunk : 0;
    if (mask.causal)
        return (nbl__span){window > 0 && i >= window ? nbl__max_i64(first, i - window + 1) : first, i + 1};
    if (window <= 0) return (nbl__span){0, n};
    return (nbl__span){i > window ? i - window : 0, n - i - 1 > window ? i + window + 1 : n};
}
#define NBL_MASK_OF(a) ((nbl__attention_mask){(a)->causal, (a)->window, (a)->chunk})

#endif
