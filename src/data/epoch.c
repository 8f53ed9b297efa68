/* epoch.c - chooses the validation examples, and makes epochs: order, bins, micro-batches.
 *
 * An epoch is a function of seed, epoch number and the sizes of the examples. It does not depend on
 * earlier epochs or on the machine. Permutations are Fisher-Yates shuffles with words of Philox.
 *
 *   training examples ──▶ shuffle ──▶ bins ──▶ micro-batches of micro_batch_size bins
 *
 * With sample_packing a bin is a list of examples with at most sequence_len tokens together;
 * otherwise a bin is one example. Bins are filled with the longest example first, each into the bin
 * where it fits best, and then shuffled. With curriculum_sampling nothing is shuffled or sorted:
 * examples are placed in the order of the files. Validation examples are always treated so.
 *
 * Cost per epoch: O(examples) time. */
#include <math.h>

#include "base/philox.h"
#include "data/data_parts.h"

/* Each use of random numbers has a Philox stream of its own, so none depends on another. */
enum { STREAM_HOLD = 1, STREAM_ORDER = 2, STREAM_BINS = 3 };

/* ---- permutations ---- */

void nbl__shuffle(int64_t *order, int64_t count, uint64_t seed, uint32_t stream, uint64_t number)
{
    const uint32_t key[2] = {(uint32_t)seed ^ stream * 0x9e3779b9u, (uint32_t)(seed >> 32)};
    for (int64_t i = count - 1; i > 0; i--) {
        const uint32_t counter[4] = {(uint32_t)i, (uint32_t)((uint64_t)i >> 32), (uint32_t)number,
                                     (uint32_t)(number >> 32)};
        uint32_t words[4];
        nbl__philox(counter, key, words);
        /* other = floor(word * (i + 1) / 2^64): uniform in 0 .. i, with a bias below i / 2^64 */
        uint64_t word = (uint64_t)words[0] << 32 | words[1];
        int64_t other = (int64_t)(((unsigned __int128)word * (uint64_t)(i + 1)) >> 64);
        int64_t swap = order[i];
        order[i] = order[other];
        order[other] = swap;
    }
}

/* ---- validation ---- */

nbl_status nbl__data_split_validation(nbl__data *d)
{
    double size = d->config->val_set_size;
    int64_t *order;
    NBL_TRY(NBL_ALLOC(d->ctx, d->is_validation, d->count));
    if (!(size > 0)) return NBL_OK;
    /* rounded as scikit-learn does */
    double held = size < 1 ? ceil(size * (double)d->count) : floor(size);
    NBL_CHECK(d->ctx, held < (double)d->count, NBL_ERROR_ARGUMENT,
              "%s: val_set_size: %g of %" PRId64 " examples leaves none to train on", d->config->file, size,
              d->count);
    d->validation_count = (int64_t)held;
    NBL_TRY(NBL_ALLOC(d->ctx, order, d->count));
    for (int64_t i = 0; i < d->count; i++) order[i] = i;
    nbl__shuffle(order, d->count, d->config->seed, STREAM_HOLD, 0);
    for (int64_t i = 0; i < d->validation_count; i++) d->is_validation[order[i]] = true;
    nbl__free(d->ctx, order, (size_t)d->count * sizeof *order);
    return NBL_OK;
}

/* ---- packing ---- */

typedef struct packing {
    int32_t *sizes;  /* [count] tokens of each item, in the order of placing */
    int64_t *items;  /* [count] examples, in the order of placing */
    int64_t *bin;    /* [count] bin of each item */
    int64_t *fill;   /* [count + 1] where each bin's next example goes in the result */
    int64_t *result; /* [count] scratch: sorted examples, then the rank of each bin */
    int64_t *bins;   /* [count] bins in their final order; bin_count are used */
    int64_t count, bin_count;
} packing;

static void close_packing(nbl_context *ctx, packing *p)
{
    size_t n = (size_t)p->count;
    nbl__free(ctx, p->sizes, n * sizeof *p->sizes);
    nbl__free(ctx, p->items, n * sizeof *p->items);
    nbl__free(ctx, p->bin, n * sizeof *p->bin);
    nbl__free(ctx, p->fill, (n + 1) * sizeof *p->fill);
    nbl__free(ctx, p->result, n * sizeof *p->result);
    nbl__free(ctx, p->bins, n * sizeof *p->bins);
}

/* Sorts items by size, longest first. Stable, so equal sizes keep their shuffled order. A
 * counting sort: sizes are at most sequence_len. */
static nbl_status sort_by_size(nbl__data *d, packing *p)
{
    int64_t *starts, max = 0;
    for (int64_t i = 0; i < p->count; i++) max = nbl__max_i64(max, d->entries[p->items[i]].tokens);
    NBL_TRY(NBL_ALLOC(d->ctx, starts, max + 2));
    for (int64_t i = 0; i < p->count; i++) starts[max - d->entries[p->items[i]].tokens + 1]++;
    for (int64_t i = 0; i <= max; i++) starts[i + 1] += starts[i];
    for (int64_t i = 0; i < p->count; i++)
        p->result[starts[max - d->entries[p->items[i]].tokens]++] = p->items[i];
    memcpy(p->items, p->result, (size_t)p->count * sizeof *p->items);
    nbl__free(d->ctx, starts, (size_t)(max + 2) * sizeof *starts);
    return NBL_OK;
}

/* Packs order[0..count) into bins and rewrites it bin by bin. bounds[b]: where bin b begins;
 * bounds[bin_count] is count. in_order: neither sort items nor shuffle bins. */
static nbl_status pack(nbl__data *d, packing *p, int64_t *order, bool in_order, int64_t number,
                       int64_t *bounds)
{
    NBL_TRY(NBL_ALLOC(d->ctx, p->sizes, p->count));
    NBL_TRY(NBL_ALLOC(d->ctx, p->items, p->count));
    NBL_TRY(NBL_ALLOC(d->ctx, p->bin, p->count));
    NBL_TRY(NBL_ALLOC(d->ctx, p->fill, p->count + 1));
    NBL_TRY(NBL_ALLOC(d->ctx, p->result, p->count));
    NBL_TRY(NBL_ALLOC(d->ctx, p->bins, p->count));
    memcpy(p->items, order, (size_t)p->count * sizeof *order);
    if (!in_order) NBL_TRY(sort_by_size(d, p));
    int64_t total = 0;
    for (int64_t i = 0; i < p->count; i++) total += p->sizes[i] = d->entries[p->items[i]].tokens;
    NBL_TRY(nbl__pack_best_fit(d->ctx, p->sizes, p->count, nbl__min_i64(d->config->sequence_len, total),
                               p->bin, &p->bin_count));
    /* the final order of the bins */
    for (int64_t i = 0; i < p->bin_count; i++) p->bins[i] = i;
    if (!in_order) nbl__shuffle(p->bins, p->bin_count, d->config->seed, STREAM_BINS, (uint64_t)number);
    /* position of each bin in the final order; sorting no longer needs result */
    int64_t *rank = p->result;
    for (int64_t i = 0; i < p->bin_count; i++) rank[p->bins[i]] = i;
    for (int64_t i = 0; i < p->count; i++) p->bin[i] = rank[p->bin[i]];
    /* sizes of bins → begins of bins (prefix sum) → examples to their bins */
    for (int64_t i = 0; i < p->count; i++) p->fill[p->bin[i] + 1]++;
    for (int64_t i = 0; i < p->bin_count; i++) p->fill[i + 1] += p->fill[i];
    memcpy(bounds, p->fill, (size_t)(p->bin_count + 1) * sizeof *bounds);
    for (int64_t i = 0; i < p->count; i++) order[p->fill[p->bin[i]]++] = p->items[i];
    return NBL_OK;
}

/* ---- epochs ---- */

/* Joins every micro_batch_size bins to a micro-batch. e->starts holds the bounds of bins on
 * entry, those of micro-batches on return. */
static void gather(const nbl__data *d, nbl__epoch *e, int64_t bins)
{
    int64_t size = d->config->micro_batch_size;
    e->batch_count = nbl__ceil_div(bins, size);
    for (int64_t b = 0; b <= e->batch_count; b++) e->starts[b] = e->starts[nbl__min_i64(b * size, bins)];
    for (int64_t b = 0; b < e->batch_count; b++) {
        int64_t tokens = 0;
        for (int64_t i = e->starts[b]; i < e->starts[b + 1]; i++) tokens += d->entries[e->order[i]].tokens;
        e->max_tokens = nbl__max_i64(e->max_tokens, tokens);
        e->max_sequences = nbl__max_i64(e->max_sequences, e->starts[b + 1] - e->starts[b]);
    }
}

/* Fills an epoch whose arrays are allocated. */
static nbl_status make(nbl__data *d, int64_t number, bool validation, nbl__epoch *e)
{
    bool in_order = validation || d->config->curriculum;
    bool packed = validation ? d->config->eval_sample_packing : d->config->sample_packing;
    int64_t count = 0, bins;
    for (int64_t i = 0; i < d->count; i++)
        if (d->is_validation[i] == validation) e->order[count++] = i;
    if (!in_order) nbl__shuffle(e->order, count, d->config->seed, STREAM_ORDER, (uint64_t)number);
    if (packed && count) {
        packing p = {.count = count};
        nbl_status status = pack(d, &p, e->order, in_order, number, e->starts);
        bins = p.bin_count;
        close_packing(d->ctx, &p);
        NBL_TRY(status);
    } else {
        bins = count;
        for (int64_t i = 0; i <= count; i++) e->starts[i] = i;
    }
    gather(d, e, bins);
    return NBL_OK;
}

nbl_status nbl__epoch_make(nbl__data *d, int64_t number, bool validation, nbl__epoch *e)
{
    *e = (nbl__epoch){.room = d->count};
    nbl_status status = NBL_ALLOC(d->ctx, e->order, d->count);
    if (status == NBL_OK) status = NBL_ALLOC(d->ctx, e->starts, d->count + 1);
    if (status == NBL_OK) status = make(d, number, validation, e);
    if (status != NBL_OK) nbl__epoch_free(d->ctx, e);
    return status;
}

void nbl__epoch_free(nbl_context *ctx, nbl__epoch *e)
{
    nbl__free(ctx, e->order, (size_t)e->room * sizeof *e->order);
    nbl__free(ctx, e->starts, (size_t)(e->room + 1) * sizeof *e->starts);
    *e = (nbl__epoch){0};
}

/* ---- the largest micro-batch of any epoch ---- */

/* Raises max_tokens and max_sequences to the bounds for training or validation examples. They hold
 * for every combination of examples:
 *
 *     packed       tokens = bins · sequence_len; sequences = as many of the shortest examples as fit into them
 *     not packed   sequences = micro_batch_size; tokens = those of the longest micro_batch_size examples
 *
 * with[s] counts the examples of s tokens and serves as the sorted list. */
static nbl_status measure(nbl__data *d, bool validation)
{
    bool packed = validation ? d->config->eval_sample_packing : d->config->sample_packing;
    int64_t count = 0, total = 0, longest = 0, tokens = 0, sequences = 0, *with;
    for (int64_t i = 0; i < d->count; i++) {
        if (d->is_validation[i] != validation) continue;
        count++;
        total += d->entries[i].tokens;
        longest = nbl__max_i64(longest, d->entries[i].tokens);
    }
    NBL_TRY(NBL_ALLOC(d->ctx, with, longest + 1));
    for (int64_t i = 0; i < d->count; i++)
        if (d->is_validation[i] == validation) with[d->entries[i].tokens]++;
    int64_t batch = nbl__min_i64(d->config->micro_batch_size, count);
    if (packed) {
        if (__builtin_mul_overflow(batch, d->config->sequence_len, &tokens) || tokens > total) tokens = total;
        for (int64_t size = 1, left = tokens; size <= longest; size++) { /* shortest first */
            int64_t n = nbl__min_i64(with[size], left / size);
            sequences += n;
            left -= n * size;
        }
    } else {
        sequences = batch;
        for (int64_t size = longest, left = batch; size > 0 && left > 0; size--) {
            int64_t n = nbl__min_i64(with[size], left);
            tokens += n * size;
            left -= n;
        }
    }
    nbl__free(d->ctx, with, (size_t)(longest + 1) * sizeof *with);
    d->max_tokens = nbl__max_i64(d->max_tokens, tokens);
    d->max_sequences = nbl__max_i64(d->max_sequences, sequences);
    return NBL_OK;
}

nbl_status nbl__data_measure(nbl__data *d)
{
    NBL_TRY(measure(d, false));
    return d->validation_count ? measure(d, true) : NBL_OK;
}

void nbl__data_largest(const nbl__data *d, int64_t *tokens, int64_t *sequences)
{
    *tokens = d->max_tokens;
    *sequences = d->max_sequences;
}
