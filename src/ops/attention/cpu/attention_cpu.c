/* attention_cpu.c - attention with SIMD: memory, items and threads around the tiles of
 * attention_tile.inc.
 *
 *   forward    1. keys (transposed, in panels) and values to f32        items: (block, key head)
 *              2. tiles, the last block of queries first                items: (block of queries, head)
 *   backward   1. q, dout to f32; delta = Σ_d dout · out                items: (block, head)
 *              2. tiles, in the order of the keys                       items: (block of keys, key head)
 *              3. dsinks                                                items: heads
 *   decode     1. each chunk's part of the output                       items: (sequence, chunk of 64 positions)
 *              2. the chunks of a head joined, in order                 items: (sequence, head)
 *
 * Each line is one run of the thread team.
 *
 * Memory: no [T, T] matrix exists. Scratch: forward T·Hkv·2D floats, backward T·Hq·3D, and up to
 * about 1 MB per worker. Cost: 4·D flops per visible pair and head forward, 10·D backward. Limit:
 * the products; decode: reading the cache. */
#include <math.h>

#include "base/team.h"
#include "ops/attention/cpu/attention_tile.h"

#if defined(__x86_64__)
/* The tiles of the context's instruction set. */
static const nbl__attention_tiles *tiles_of(const nbl_context *ctx)
{
    return nbl__isa(ctx) >= NBL_ISA_AVX512 ? &nbl__attention_tiles_avx512 : &nbl__attention_tiles_avx2;
}

/* The tiles of attention and its backward: AMX for bf16 where the machine has it. Decode has no
 * AMX tiles. */
static const nbl__attention_tiles *training_tiles_of(const nbl_context *ctx, nbl_dtype dtype)
{
    bool in_tiles = nbl__isa(ctx) >= NBL_ISA_AMX && dtype == NBL_DTYPE_BF16;
    return in_tiles ? &nbl__attention_tiles_amx : tiles_of(ctx);
}
#else
/* Never called: the rows of these implementations need AVX2. */
static const nbl__attention_tiles *tiles_of(const nbl_context *ctx)
{
    (void)ctx;
    return NULL;
}

static const nbl__attention_tiles *training_tiles_of(const nbl_context *ctx, nbl_dtype dtype)
{
    (void)dtype;
    return tiles_of(ctx);
}
#endif

static const float log2_e = 1.44269504f;

/* ---- memory ---- */

/* One call of attention or its backward. */
typedef struct run_state {
    nbl__attention_job job;
    const nbl__attention_tiles *tiles;
    int64_t items_across; /* not used */
} run_state;

/* The head size padded to whole vectors. */
static int64_t padded_size(const nbl__attention_tiles *tiles, int64_t size)
{
    return nbl__ceil_div(size, tiles->vector) * tiles->vector;
}

static size_t layout(const nbl_context *ctx, const nbl__attention *a, bool backward, uint8_t *base,
                     run_state *s)
{
    s->tiles = training_tiles_of(ctx, a->dtype);
    nbl__attention_job *job = &s->job;
    *job = (nbl__attention_job){.a = a,
                                .isa = nbl__isa(ctx),
                                .tokens = a->q.shape[0],
                                .heads = a->q.shape[1],
                                .key_heads = a->k.shape[1],
                                .group = a->q.shape[1] / a->k.shape[1],
                                .size = a->q.shape[2],
                                .ld = padded_size(s->tiles, a->q.shape[2]) + 16};
    float scale = (float)nbl__attention_scale(a->scale, job->size);
    bool capped = a->softcap != 0;
    job->q_factor = capped ? scale / a->softcap : scale * log2_e;
    job->cap_factor = capped ? a->softcap * log2_e : 0;
    job->dq_factor = scale;
    job->dk_factor = capped ? a->softcap : 0.693147181f;

    nbl__bump bump = {base, 0};
    int64_t sequences = nbl__min_i64(a->cu_seqlens.shape[0] - 1, job->tokens);
    int64_t blocks = job->tokens / NBL_ATTENTION_BLOCK + sequences; /* an upper bound */
    NBL_BUMP_ALLOC(&bump, job->blocks, blocks);
    int64_t wide = s->tiles->bf16 ? nbl__ceil_div(job->size, 32) * 32 : job->ld;
    if (backward) {
        int64_t rows = job->heads * job->tokens, singles = s->tiles->bf16 ? 0 : rows * job->ld;
        int64_t halves = s->tiles->bf16 ? rows * wide : 0;
        NBL_BUMP_ALLOC(&bump, job->q, singles);
        NBL_BUMP_ALLOC(&bump, job->dout, singles);
        NBL_BUMP_ALLOC(&bump, job->q_transposed, halves);
        NBL_BUMP_ALLOC(&bump, job->q_paired, halves);
        NBL_BUMP_ALLOC(&bump, job->dout_transposed, halves);
        NBL_BUMP_ALLOC(&bump, job->dout_paired, halves);
        NBL_BUMP_ALLOC(&bump, job->dq, nbl__has_data(&a->dq) || base == NULL ? rows * wide : 0);
        NBL_BUMP_ALLOC(&bump, job->lse, rows);
        NBL_BUMP_ALLOC(&bump, job->delta, rows);
        NBL_BUMP_ALLOC(&bump, job->sums, rows);
        NBL_BUMP_ALLOC(&bump, job->q_non_finite, blocks * job->heads);
        NBL_BUMP_ALLOC(&bump, job->done, blocks * job->heads);
    } else if (s->tiles->bf16) {
        NBL_BUMP_ALLOC(&bump, job->kt16, job->key_heads * job->tokens * wide);
        NBL_BUMP_ALLOC(&bump, job->v16, job->key_heads * job->tokens * wide);
        NBL_BUMP_ALLOC(&bump, job->v_non_finite, blocks * job->key_heads);
    } else {
        NBL_BUMP_ALLOC(&bump, job->kt, job->key_heads * job->tokens * job->size + 2 * s->tiles->vector);
        NBL_BUMP_ALLOC(&bump, job->v, job->key_heads * job->tokens * job->ld);
        NBL_BUMP_ALLOC(&bump, job->v_non_finite, blocks * job->key_heads);
    }
    job->worker_floats = backward ? s->tiles->backward_floats(job->size, job->ld)
                                  : s->tiles->forward_floats(job->size, job->ld);
    job->worker_floats = nbl__ceil_div(job->worker_floats, 1024) * 1024 + 64 * 17;
    assert(job->worker_floats % 16 == 0); /* each worker's memory is aligned to 64 bytes, too */
    NBL_BUMP_ALLOC(&bump, job->worker, job->worker_floats * nbl__team_size(ctx, INT64_MAX));
    return bump.used;
}

static size_t forward_scratch(const nbl_context *ctx, const void *arguments)
{
    run_state s;
    return layout(ctx, arguments, false, NULL, &s);
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    run_state s;
    return layout(ctx, arguments, true, NULL, &s);
}

static void find_blocks(run_state *s)
{
    nbl__attention_job *job = &s->job;
    const int32_t *at = job->a->cu_seqlens.data;
    for (int64_t b = 0; b + 1 < job->a->cu_seqlens.shape[0]; b++) {
        int64_t n = at[b + 1] - at[b], base = job->block_count;
        assert(n >= 0 && at[b + 1] <= job->tokens); /* nbl__attention_check_sequences */
        for (int64_t i = 0; i < n; i += NBL_ATTENTION_BLOCK)
            job->blocks[job->block_count++] = (nbl__attention_block){at[b], n, i, base};
    }
    /* the bound that layout has cut memory for */
    assert(job->block_count <=
           job->tokens / NBL_ATTENTION_BLOCK + nbl__min_i64(job->a->cu_seqlens.shape[0] - 1, job->tokens));
}

/* ---- items ---- */

/* Item of forward 1: one block of keys and values of one key head. */
static nbl_status pack_keys(void *argument, int64_t item, int worker)
{
    const run_state *s = argument;
    s->tiles->pack_keys(&s->job, item / s->job.key_heads, item % s->job.key_heads,
                        s->job.worker + worker * s->job.worker_floats);
    return NBL_OK;
}

/* Item of forward 2: one block of queries of one head. */
static nbl_status forward_item(void *argument, int64_t item, int worker)
{
    const run_state *s = argument;
    /* Causal: the last block sees the most keys. Starting with it balances the threads. */
    int64_t block = s->job.block_count - 1 - item / s->job.heads;
    assert(block >= 0);
    s->tiles->forward(&s->job, block, item % s->job.heads, s->job.worker + worker * s->job.worker_floats);
    return NBL_OK;
}

/* Item of backward 1: one block of queries of one head. */
static nbl_status pack_queries(void *argument, int64_t item, int worker)
{
    const run_state *s = argument;
    s->tiles->pack_queries(&s->job, item / s->job.heads, item % s->job.heads,
                           s->job.worker + worker * s->job.worker_floats);
    return NBL_OK;
}

/* Item of backward 2: one block of keys of one key head. Items of a sequence must be handed out in
 * the order of the keys (nbl__attention_await). */
static nbl_status backward_item(void *argument, int64_t item, int worker)
{
    const run_state *s = argument;
    s->tiles->backward(&s->job, item / s->job.key_heads, item % s->job.key_heads,
                       s->job.worker + worker * s->job.worker_floats);
    return NBL_OK;
}

/* The gradient of a head's sink: -Σ_t p_sink[t] · delta[t], over all rows in order, so that one
 * thread gives the bits of many. */
static nbl_status sink_item(void *argument, int64_t head, int worker)
{
    const run_state *s = argument;
    const nbl__attention_job *job = &s->job;
    float *to = (float *)job->a->dsinks.data + head;
    float sink = nbl__attention_sink(&job->a->sinks, head);
    double sum = job->a->accumulate ? (double)*to : 0;
    (void)worker;
    for (int64_t t = 0; t < job->tokens; t++) {
        float lse = ((const float *)job->a->lse.data)[t * job->heads + head];
        sum -= (double)expf(sink - lse) * (double)job->sums[head * job->tokens + t];
    }
    *to = (float)sum;
    return NBL_OK;
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__attention *a = arguments;
    run_state s;
    NBL_TRY(nbl__attention_check_sequences(call, a));
    layout(call->ctx, arguments, false, call->scratch, &s);
    find_blocks(&s);
    NBL_TRY(nbl__team_run(call->ctx, s.job.block_count * s.job.key_heads, pack_keys, &s, NULL));
    return nbl__team_run(call->ctx, s.job.block_count * s.job.heads, forward_item, &s, NULL);
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__attention *a = arguments;
    run_state s;
    NBL_TRY(nbl__attention_check_sequences(call, a));
    layout(call->ctx, arguments, true, call->scratch, &s);
    find_blocks(&s);
    NBL_TRY(nbl__team_run(call->ctx, s.job.block_count * s.job.heads, pack_queries, &s, NULL));
    NBL_TRY(nbl__team_run(call->ctx, s.job.block_count * s.job.key_heads, backward_item, &s, NULL));
    if (!nbl__has_data(&a->dsinks)) return NBL_OK;
    return nbl__team_run(call->ctx, s.job.heads, sink_item, &s, NULL);
}

/* ---- decode ---- */

/* One call of attention_decode. */
typedef struct decode_state {
    const nbl__attention_decode *a;
    const nbl__attention_tiles *tiles;
    nbl_isa isa;
    int64_t heads, key_heads, group, size, padded, cached, chunks;
    float *out, *top, *sum; /* [B, chunks, Hq, padded], [B, chunks, Hq] twice */
    float *worker;          /* [workers, floats]: queries, rows as f32, scores */
    int64_t worker_floats;
} decode_state;

static size_t decode_layout(const nbl_context *ctx, const nbl__attention_decode *a, uint8_t *base,
                            decode_state *s)
{
    *s = (decode_state){.a = a,
                        .tiles = tiles_of(ctx),
                        .isa = nbl__isa(ctx),
                        .heads = a->q.shape[1],
                        .key_heads = a->k.shape[2],
                        .group = a->q.shape[1] / a->k.shape[2],
                        .size = a->q.shape[2],
                        .cached = a->k.shape[1]};
    s->padded = padded_size(s->tiles, s->size);
    int64_t seen = a->window > 0 ? nbl__min_i64(a->window, s->cached) : s->cached;
    if (a->chunk > 0) seen = nbl__min_i64(a->chunk, seen);
    s->chunks = nbl__ceil_div(seen, NBL_ATTENTION_CHUNK);
    s->worker_floats = (s->heads + NBL_ATTENTION_WIDEN * s->key_heads) * s->padded +
                       s->heads * NBL_ATTENTION_CHUNK + 16;
    int64_t parts = a->q.shape[0] * s->chunks * s->heads;
    nbl__bump bump = {base, 0};
    NBL_BUMP_ALLOC(&bump, s->out, parts * s->padded);
    NBL_BUMP_ALLOC(&bump, s->top, parts);
    NBL_BUMP_ALLOC(&bump, s->sum, parts);
    NBL_BUMP_ALLOC(&bump, s->worker, s->worker_floats * nbl__team_size(ctx, INT64_MAX));
    return bump.used;
}

static size_t decode_scratch(const nbl_context *ctx, const void *arguments)
{
    decode_state s;
    return decode_layout(ctx, arguments, NULL, &s);
}

/* The positions of chunk c that sequence b sees; relative to the cache. */
static nbl__span chunk_of(const decode_state *s, int64_t b, int64_t c)
{
    int64_t length = ((const int32_t *)s->a->lengths.data)[b];
    nbl__span seen = nbl__attention_span(NBL_MASK_OF(s->a), length - 1, length);
    assert(length >= 1 && length <= s->cached); /* nbl__attention_check_lengths has seen it */
    int64_t first = nbl__min_i64(seen.first + c * NBL_ATTENTION_CHUNK, seen.end);
    return (nbl__span){first, nbl__min_i64(first + NBL_ATTENTION_CHUNK, seen.end)};
}

static nbl_status decode_item(void *argument, int64_t item, int worker)
{
    const decode_state *s = argument;
    const nbl__attention_decode *a = s->a;
    int64_t c = item % s->chunks, b = item / s->chunks;
    nbl__span seen = chunk_of(s, b, c);
    if (seen.first == seen.end) return NBL_OK;
    float *q = s->worker + worker * s->worker_floats, *room = q + s->heads * s->padded;
    float scale = (float)nbl__attention_scale(a->scale, s->size);
    float factor = a->softcap != 0 ? scale / a->softcap : scale * log2_e;
    for (int64_t head = 0; head < s->heads; head++) {
        int64_t at = nbl__head_offset(&a->q, b, head);
        float *to = q + head * s->padded;
        nbl__to_f32(s->isa, a->dtype, (const uint8_t *)a->q.data + (size_t)at * nbl__size_of(a->dtype), to,
                    s->size);
        for (int64_t d = 0; d < s->size; d++) to[d] *= factor;
        for (int64_t d = s->size; d < s->padded; d++) to[d] = 0;
    }
    assert(seen.end - seen.first <= NBL_ATTENTION_CHUNK && s->padded % s->tiles->vector == 0);
    int64_t step = s->key_heads * s->size, part = item * s->heads;
    size_t at = (size_t)((b * s->cached + seen.first) * step) * nbl__size_of(a->k.dtype);
    s->tiles->decode(&(nbl__decode_part){.isa = s->isa,
                                         .k = (const uint8_t *)a->k.data + at,
                                         .v = (const uint8_t *)a->v.data + at,
                                         .step = step,
                                         .keys = seen.end - seen.first,
                                         .size = s->size,
                                         .padded = s->padded,
                                         .key_heads = s->key_heads,
                                         .group = s->group,
                                         .dtype = a->k.dtype,
                                         .cap_factor = a->softcap * log2_e,
                                         .q = q,
                                         .room = room,
                                         .scores = room + NBL_ATTENTION_WIDEN * s->key_heads * s->padded,
                                         .out = s->out + part * s->padded,
                                         .top = s->top + part,
                                         .sum = s->sum + part});
    return NBL_OK;
}

/* Joins the chunks of one head, and its sink. */
static nbl_status join_item(void *argument, int64_t item, int worker)
{
    const decode_state *s = argument;
    const nbl__attention_decode *a = s->a;
    int64_t b = item / s->heads, head = item % s->heads;
    float sink = -INFINITY, top = -INFINITY, total = 0;
    (void)worker;
    if (nbl__has_data(&a->sinks)) sink = nbl__attention_sink(&a->sinks, head) * log2_e;
    top = sink;
    float *out = NULL;
    for (int64_t c = 0; c < s->chunks; c++) {
        nbl__span seen = chunk_of(s, b, c);
        int64_t part = (b * s->chunks + c) * s->heads + head;
        if (seen.first < seen.end && s->top[part] > top) top = s->top[part];
    }
    if (top == -INFINITY) top = 0; /* only NaN or -inf: the result shows it */
    if (nbl__has_data(&a->sinks)) total = exp2f(sink - top);
    for (int64_t c = 0; c < s->chunks; c++) {
        nbl__span seen = chunk_of(s, b, c);
        int64_t part = (b * s->chunks + c) * s->heads + head;
        if (seen.first == seen.end) continue;
        float factor = exp2f((s->top[part] == -INFINITY ? 0 : s->top[part]) - top);
        float *from = s->out + part * s->padded;
        total += factor * s->sum[part];
        for (int64_t d = 0; d < s->size; d++) from[d] = out ? out[d] + factor * from[d] : factor * from[d];
        out = from;
    }
    assert(out); /* a query sees its own key: some chunk is not empty */
    for (int64_t d = 0; d < s->size; d++) out[d] /= total;
    int64_t at = item * s->size;
    nbl__from_f32(s->isa, out, a->dtype, (uint8_t *)a->out.data + (size_t)at * nbl__size_of(a->dtype),
                  s->size);
    return NBL_OK;
}

static nbl_status run_decode(const nbl__call *call, const void *arguments)
{
    const nbl__attention_decode *a = arguments;
    decode_state s;
    NBL_TRY(nbl__attention_check_lengths(call, a));
    decode_layout(call->ctx, a, call->scratch, &s);
    NBL_TRY(nbl__team_run(call->ctx, a->q.shape[0] * s.chunks, decode_item, &s, NULL));
    /* With few sequences, joining takes less time than starting the team. */
    int64_t joins = a->q.shape[0] * s.heads;
    if (joins * s.chunks > 256) return nbl__team_run(call->ctx, joins, join_item, &s, NULL);
    for (int64_t i = 0; i < joins; i++) join_item(&s, i, 0);
    return NBL_OK;
}

const nbl__impl nbl__attention_cpu = {"attention_cpu", NBL_ISA_AVX2, NULL, forward_scratch, run_forward};
const nbl__impl nbl__attention_backward_cpu = {"attention_backward_cpu", NBL_ISA_AVX2, NULL, backward_scratch,
                                               run_backward};
const nbl__impl nbl__attention_decode_cpu = {"attention_decode_cpu", NBL_ISA_AVX2, NULL, decode_scratch,
                                             run_decode};
