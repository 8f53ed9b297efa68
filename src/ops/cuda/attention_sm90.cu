/* attention_sm90.cu - attention of f16 and bf16 on Hopper's matrix unit, heads of up to 128: forward. For
 * sm_90a.
 *
 * The kernel of attention_mma.cu with products of a warpgroup: 64 rows each, two warpgroups to a block, one
 * block to a multiprocessor. Products are asynchronous: O += P·V is under way while S of the next keys
 * becomes P. Limit: the matrix unit; with heads of 64 the exponentials. */
#include "ops/cuda/wgmma.cuh"

extern "C" {
extern const nbl__impl nbl__attention_mma;
extern const nbl__impl nbl__attention_sm90;
}

using namespace nbl_cuda;

namespace
{

constexpr int GROUPS = 2, THREADS = GROUPS * 128, ROWS = GROUPS * 64;

template <int WIDE> struct forward_shape {
    static constexpr int KEYS = 128, N = KEYS / 8, TILE = KEYS * WIDE * 2;
    static constexpr int BYTES = TILE_ALIGNMENT + ROWS * WIDE * 2 + 4 * TILE;
};

/* A tile of queries of one head. */
struct forward_item {
    attention_tile tile;
    int head, first, end; /* the keys that it sees, from a tile's start */
};

/* The first item from `at` on that has something to do, long walks first; `at` becomes its number. */
template <int KEYS>
__device__ inline bool find_item(const attention_problem &p, int items, int *at, forward_item *item)
{
    for (; *at < items; *at += gridDim.x) {
        if (!find_tile<ROWS>(p, (items - 1 - *at) / p.heads, &item->tile)) continue;
        const attention_tile &tile = item->tile;
        item->head = *at % p.heads;
        item->first = first_key(p, tile.start) / KEYS * KEYS;
        item->end = end_key(p, min(tile.start + ROWS, tile.n) - 1, tile.n);
        return true;
    }
    return false;
}

/* As many blocks as multiprocessors: each takes every so many items, and the next one's first tiles are on
 * their way while this one ends. */
template <typename T, int WIDE>
__global__ void __launch_bounds__(THREADS, 1)
    forward_sm90(const __grid_constant__ attention_problem p, const __grid_constant__ attention_data data,
                 int items)
{
    typedef forward_shape<WIDE> z;
    constexpr int N = z::N, KEYS = z::KEYS;
    extern __shared__ char raw[];
    char *shared_q = aligned(raw), *tiles_k = shared_q + ROWS * WIDE * 2, *tiles_v = tiles_k + 2 * z::TILE;
    if (blockIdx.x == 0) check_sequences(p);
    forward_item item;
    int at = blockIdx.x;
    if (!find_item<KEYS>(p, items, &at, &item)) return;

    int warp = threadIdx.x / 32, group = group_of_warps();
    int64_t q_step = static_cast<int64_t>(p.heads) * p.size,
            k_step = static_cast<int64_t>(p.key_heads) * p.size;
    uint32_t q = shared_address(shared_q) + group * 64 * 128, keys = shared_address(tiles_k),
             values = shared_address(tiles_v);
    float factor = logit_factor(p);
    auto fetch = [&](char *to, const void *from, const forward_item &it, int j) {
        int64_t row = static_cast<int64_t>(it.tile.first + j) * p.key_heads + it.head / p.group;
        load_tile<T, THREADS, KEYS, WIDE>(to, static_cast<const T *>(from) + row * p.size, k_step,
                                          it.tile.n - j, p);
    };
    auto queries_of = [&](const forward_item &it) {
        return (static_cast<int64_t>(it.tile.first + it.tile.start) * p.heads + it.head) * p.size;
    };
    auto begin = [&](const forward_item &it) { /* its queries and first keys */
                                               load_tile<T, THREADS, ROWS, WIDE>(
                                                   shared_q, static_cast<const T *>(data.q) + queries_of(it),
                                                   q_step, it.tile.n - it.tile.start, p);
                                               fetch(tiles_k, data.k, it, it.first);
                                               copies_sent();
    };

    begin(item);
    for (bool more = true; more;) {
        float out[WIDE / 8][4] = {}, s[N][4], top[2], total[2], before[2], inverse[2];
        uint32_t weights[N / 2][4];
        int j = item.first, end = item.end, stage = 0, n = item.tile.n, row0 = item.tile.start + warp * 16;
        auto soften_keys = [&](int from) {
            make_logits(p, s);
            if (!all_seen(p, row0, 16, from, KEYS, n)) hide_keys(p, s, row0, from, n, -INFINITY);
            soften(s, factor, top, total, before);
        };
        await_copies();
        show_to_products();
        __syncthreads();
        products_begin();
        multiply_tiles<T, ROWS, WIDE>(s, q, keys);
        products_sent();
        fetch(tiles_v, data.v, item, j);
        if (j + KEYS < end) fetch(tiles_k + z::TILE, data.k, item, j + KEYS);
        copies_sent();
        begin_rows(p, item.head, top, total);
        await_products<0>();
        settled(s);
        soften_keys(j);
        round_scores<T>(weights, s);

        for (; j + KEYS < end; j += KEYS, stage ^= 1) {
            await_copies();
            show_to_products();
            __syncthreads(); /* V of these keys and K of the next are there; those before are done with */
            products_begin();
            multiply_tiles<T, ROWS, WIDE>(s, q, keys + (stage ^ 1) * z::TILE);
            products_sent();
            multiply_scores<T>(out, weights, values + stage * z::TILE);
            products_sent();
            fetch(tiles_v + (stage ^ 1) * z::TILE, data.v, item, j + KEYS);
            if (j + 2 * KEYS < end) fetch(tiles_k + stage * z::TILE, data.k, item, j + 2 * KEYS);
            copies_sent();
            await_products<1>();
            settled(s);
            soften_keys(j + KEYS);
            now(__float_as_uint(total[0]) ^ __float_as_uint(total[1]));
            await_products<0>();
            settled(out);
            rescale(out, before);
            round_scores<T>(weights, s);
        }
        await_copies();
        show_to_products();
        __syncthreads(); /* the last V is there; Q and all K are done with */
        products_begin();
        multiply_scores<T>(out, weights, values + stage * z::TILE);
        products_sent();
        forward_item next;
        at += gridDim.x;
        more = find_item<KEYS>(p, items, &at, &next);
        if (more) begin(next);
        await_products<0>();
        settled(out);
        end_rows(p, data, item.tile, item.head, row0, top, total, inverse);
        store_rows(static_cast<T *>(data.out) + queries_of(item), q_step, warp * 16, n - item.tile.start, out,
                   inverse, 0, p);
        if (more) item = next;
    }
}

/* ---- the operator ---- */

const char *can_run(const void *arguments)
{
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    return a->q.shape[2] > 128 ? "heads of more than 128" : nbl__attention_mma.can(arguments);
}

unsigned items_of(const attention_problem &p)
{
    int64_t items = (static_cast<int64_t>(p.tokens) / ROWS + p.sequences) * p.heads;
    return static_cast<unsigned>(items > 0 ? items : p.heads);
}

template <typename T, int WIDE>
void launch_forward(const attention_problem &p, const attention_data &data, const nbl__call *call)
{
    constexpr int BYTES = forward_shape<WIDE>::BYTES;
    unsigned items = items_of(p), blocks = static_cast<unsigned>(call->cuda->multiprocessors);
    if (items < blocks) blocks = items;
    cudaFuncSetAttribute(forward_sm90<T, WIDE>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    forward_sm90<T, WIDE><<<blocks, THREADS, BYTES, stream_of(call)>>>(p, data, static_cast<int>(items));
}

nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    if (call->cuda->major != 9) return nbl__attention_mma.run(call, arguments);
    attention_problem p = attention_problem_of(call, a);
    attention_data data = attention_data_of(a);
    if (a->dtype == NBL_DTYPE_F16)
        (p.size <= 64 ? launch_forward<__half, 64> : launch_forward<__half, 128>)(p, data, call);
    else
        (p.size <= 64 ? launch_forward<__nv_bfloat16, 64> : launch_forward<__nv_bfloat16, 128>)(p, data,
                                                                                                call);
    return launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__attention_sm90 = {"attention_sm90", NBL_ISA_SCALAR, can_run, NULL, run_forward};
}
