/* attention_tile.h - between attention's driver (attention_cpu.c) and its tiles
 * per instruction set.
 *
 * A block is up to 64 consecutive tokens of one sequence. Blocks are counted from
 * the start of their sequence. Neither a sequence's position in the pack nor the
 * number of threads therefore moves a cut between two sums: the bits of its
 * results are its own.
 *
 * Logits are in units of log 2: q is multiplied by scale · log2(e) when it is
 * read, so that the softmax is 2^x. With a soft cap, q is multiplied by scale /
 * cap, and the capped value by cap · log2(e). */
#ifndef NBL_ATTENTION_TILE_H
#define NBL_ATTENTION_TILE_H

#include <sched.h>
#include <stdatomic.h>

#include "ops/attention/attention.h"

enum {
    NBL_ATTENTION_BLOCK = 64, /* max rows of a block */
    NBL_ATTENTION_KEYS = 256, /* keys per step of forward: whole blocks */
    NBL_ATTENTION_CHUNK = 64, /* keys per item of decode; small, so that a short cache feeds all threads */
    NBL_ATTENTION_WIDEN = 16  /* keys that decode converts to f32 at a time */
};

/* One block in the driver's table. */
typedef struct nbl__attention_block {
    int64_t first; /* token at which the sequence starts */
    int64_t n;     /* its length */
    int64_t at;    /* the block's offset in the sequence */
    int64_t base;  /* index of the sequence's first block in the table */
} nbl__attention_block;

/* One call, with its operands in f32, head by head.
 *
 * `ld` is the stride of a row: the head size, padded with zeros to whole vectors,
 * plus an offset that keeps rows off the same cache sets. Keys are also stored
 * transposed, in panels as wide as the micro-kernel. The panels of a sequence
 * follow each other; the last is as wide as the rest of the sequence. */
typedef struct nbl__attention_job {
    const nbl__attention *a;
    nbl_isa isa;
    int64_t tokens, heads, key_heads, group, size, ld;
    float q_factor;             /* factor of q when it is read */
    float cap_factor;           /* cap · log2(e); 0: no cap */
    float dq_factor, dk_factor; /* factors of the sums when they are written */
    nbl__attention_block *blocks;
    int64_t block_count;
    /* forward */
    float *kt;            /* [Hkv, T, D] transposed in panels */
    float *v;             /* [Hkv, T, ld] */
    uint16_t *kt16, *v16; /* for bf16 tiles, instead of kt and v; see attention_amx.h */
    bool *v_non_finite;   /* [blocks, Hkv]: the block's v holds a non-finite value */
    /* backward */
    float *q, *dout, *dq; /* [Hq, T, ld]; q is multiplied by q_factor */
    uint16_t *q_transposed, *q_paired, *dout_transposed,
        *dout_paired;   /* instead of q and dout, see attention_amx.h */
    float *lse, *delta; /* [Hq, T]: lse in units of log 2; delta = Σ_d dout · out */
    bool *q_non_finite; /* [blocks, Hq]: q, dout or delta holds a non-finite value */
    float *sums;        /* [Hq, T]: row sums of P∘dP, i.e. delta before `out` was rounded */
    atomic_int *done;   /* [blocks, Hq]: how many blocks of keys have added to dq */
    /* workers */
    float *worker; /* [workers, worker_floats] */
    int64_t worker_floats;
} nbl__attention_job;

/* One item of decode: all heads against one chunk of the cache. */
typedef struct nbl__decode_part {
    nbl_isa isa;
    const void *k, *v;  /* the first key and value of the chunk */
    int64_t step, keys; /* elements from a key to the next (key_heads · size); keys of the chunk */
    int64_t size, padded, key_heads, group;
    nbl_dtype dtype;
    float cap_factor;
    const float *q;   /* [heads, padded], multiplied by its factor */
    float *room;      /* [NBL_ATTENTION_WIDEN, key_heads, padded]: keys or values as f32 */
    float *scores;    /* [heads, NBL_ATTENTION_CHUNK] */
    float *out;       /* [heads, padded]: Σ 2^(s - top) · v */
    float *top, *sum; /* [heads] */
} nbl__decode_part;

/* The functions of an instruction set. `own` is the worker's memory. */
typedef struct nbl__attention_tiles {
    int vector; /* floats of a vector; a panel is two vectors wide */
    bool bf16;  /* operands are bf16, as in attention_amx.h */
    /* Floats of a worker's memory. */
    int64_t (*forward_floats)(int64_t size, int64_t ld);
    int64_t (*backward_floats)(int64_t size, int64_t ld);
    /* Before forward: a block of keys and values of one key head. */
    void (*pack_keys)(const nbl__attention_job *job, int64_t block, int64_t key_head, float *own);
    /* A block of query rows of one head. */
    void (*forward)(const nbl__attention_job *job, int64_t block, int64_t head, float *own);
    /* Before backward: a block of query rows of one head. */
    void (*pack_queries)(const nbl__attention_job *job, int64_t block, int64_t head, float *own);
    /* A block of keys of one key head, against all queries that see it. */
    void (*backward)(const nbl__attention_job *job, int64_t block, int64_t key_head, float *own);
    void (*decode)(const nbl__decode_part *part);
} nbl__attention_tiles;

extern const nbl__attention_tiles nbl__attention_tiles_avx2, nbl__attention_tiles_avx512;
/* For bf16. It has no decode. */
extern const nbl__attention_tiles nbl__attention_tiles_amx;

/* The sink of a head, as f32. */
static inline float nbl__attention_sink(const nbl_tensor *sinks, int64_t head)
{
    float sink;
    nbl__to_f32(NBL_ISA_SCALAR, sinks->dtype,
                (const uint8_t *)sinks->data + (size_t)head * nbl__size_of(sinks->dtype), &sink, 1);
    return sink;
}

/* The queries [first, end) of a sequence of n that see key j. */
static inline nbl__span nbl__attention_visible_queries(nbl__attention_mask mask, int64_t j, int64_t n)
{
    if (!mask.causal) return nbl__attention_span(mask, j, n); /* symmetric */
    /* the end of j's chunk, and of the window that begins at j */
    int64_t left = mask.chunk > 0 ? mask.chunk - j % mask.chunk : n - j;
    if (mask.window > 0) left = nbl__min_i64(left, mask.window);
    return (nbl__span){j, n - j > left ? j + left : n};
}

/* What a run of rows sees: keys if the rows are queries, queries if the rows are
 * keys. Positions are relative to `from` and clamped to 0 … n. */
typedef struct nbl__mask_view {
    const nbl__attention *a;
    bool of_keys; /* the rows are keys */
    int64_t length, row_at, from, n;
} nbl__mask_view;

/* The union of what `rows` rows from row r see. */
static inline nbl__span nbl__visible_range(const nbl__mask_view *view, int64_t r, int64_t rows)
{
    int64_t i = view->row_at + r, last = i + rows - 1;
    const nbl__attention *a = view->a;
    nbl__span top, bottom;
    if (view->of_keys) {
        top = nbl__attention_visible_queries(NBL_MASK_OF(a), i, view->length);
        bottom = nbl__attention_visible_queries(NBL_MASK_OF(a), last, view->length);
    } else {
        top = nbl__attention_span(NBL_MASK_OF(a), i, view->length);
        bottom = nbl__attention_span(NBL_MASK_OF(a), last, view->length);
    }
    assert(i >= 0 && rows >= 1 && last < view->length && top.first <= bottom.first && top.end <= bottom.end);
    int64_t first = nbl__max_i64(top.first - view->from, 0);
    int64_t end = nbl__min_i64(bottom.end - view->from, view->n);
    return (nbl__span){first, nbl__max_i64(first, end)};
}

/* Waits until all earlier blocks of keys have added to dq of a query block.
 * Returns how many those are, and in *turns how many there will be in all. The
 * fixed order makes the bits of dq independent of the threads. It cannot deadlock:
 * the team starts items in order, and a block waits only for items before it. */
static inline int nbl__attention_await(const nbl__attention_job *job, const nbl__attention_block *keys,
                                       int64_t query_block, int64_t head, int *turns)
{
    const nbl__attention_block *b = &job->blocks[query_block];
    nbl__mask_view all = {job->a, false, b->n, b->at, 0, b->n};
    nbl__span seen = nbl__visible_range(&all, 0, nbl__min_i64(NBL_ATTENTION_BLOCK, b->n - b->at));
    int first = (int)(seen.first / NBL_ATTENTION_BLOCK), turn = (int)(keys->at / NBL_ATTENTION_BLOCK) - first;
    const atomic_int *done = &job->done[query_block * job->heads + head];
    *turns = (int)nbl__ceil_div(seen.end, NBL_ATTENTION_BLOCK) - first;
    assert(b->first == keys->first && turn >= 0 && turn < *turns); /* else it waits forever */
    for (int spins = 0; atomic_load_explicit(done, memory_order_acquire) != turn; spins++) {
#if defined(__x86_64__)
        if (spins < 1000) __builtin_ia32_pause();
        else
#endif
            sched_yield();
    }
    return turn;
}

/* Publishes that this block of keys has added to dq. */
static inline void nbl__attention_done(const nbl__attention_job *job, int64_t query_block, int64_t head,
                                       int turn)
{
    assert(atomic_load(&job->done[query_block * job->heads + head]) == turn);
    atomic_store_explicit(&job->done[query_block * job->heads + head], turn + 1, memory_order_release);
}

#endif
