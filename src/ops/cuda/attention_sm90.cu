/* attention_sm90.cu - attention of f16 and bf16 on Hopper's matrix unit, heads of up to 128: forward.
 * Compiled for sm_90a.
 *
 * The kernel of attention_mma.cu with products of a warpgroup: 64 rows each, two warpgroups to a block, one
 * block to a multiprocessor. Products are asynchronous: S of the next keys and O += P·V of these are sent
 * together, and the next tiles are fetched behind them. Limit: the matrix unit, and the exponentials. */
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

template <typename T, int WIDE>
__global__ void __launch_bounds__(THREADS, 1)
    forward_sm90(const __grid_constant__ attention_problem p, const __grid_constant__ attention_data data)
{
    typedef forward_shape<WIDE> z;
    constexpr int N = z::N, KEYS = z::KEYS;
    extern __shared__ char raw[];
    char *shared_q = aligned(raw), *tiles_k = shared_q + ROWS * WIDE * 2, *tiles_v = tiles_k + 2 * z::TILE;
    attention_tile tile;
    if (blockIdx.x == 0) check_sequences(p);
    int head = blockIdx.x % p.heads, slot = (gridDim.x - 1 - blockIdx.x) / p.heads; /* long walks first */
    if (!find_tile<ROWS>(p, slot, &tile)) return;

    int warp = threadIdx.x / 32, group = group_of_warps();
    int64_t q_step = static_cast<int64_t>(p.heads) * p.size,
            k_step = static_cast<int64_t>(p.key_heads) * p.size;
    int64_t q_at = (static_cast<int64_t>(tile.first + tile.start) * p.heads + head) * p.size;
    int64_t k_at = (static_cast<int64_t>(tile.first) * p.key_heads + head / p.group) * p.size;
    const T *k = static_cast<const T *>(data.k) + k_at, *v = static_cast<const T *>(data.v) + k_at;
    int last = min(tile.start + ROWS, tile.n) - 1, row0 = tile.start + warp * 16;
    int first = first_key(p, tile.start) / KEYS * KEYS, end = end_key(p, last, tile.n);
    auto fetch = [&](char *to, const T *from, int j) {
        load_tile<T, THREADS, KEYS, WIDE>(to, from + j * k_step, k_step, tile.n - j, p);
    };

    load_tile<T, THREADS, ROWS, WIDE>(shared_q, static_cast<const T *>(data.q) + q_at, q_step,
                                      tile.n - tile.start, p);
    fetch(tiles_k, k, first);
    copies_sent();
    await_copies();
    show_to_products();
    __syncthreads();
    fetch(tiles_v, v, first);
    if (first + KEYS < end) fetch(tiles_k + z::TILE, k, first + KEYS);
    copies_sent();

    float out[WIDE / 8][4] = {}, s[N][4], top[2], total[2], before[2], factor = logit_factor(p);
    uint32_t weights[N / 2][4];
    uint32_t q = shared_address(shared_q) + group * 64 * 128, keys = shared_address(tiles_k),
             values = shared_address(tiles_v);
    auto soften_keys = [&](int j) {
        make_logits(p, s);
        if (!all_seen(p, row0, 16, j, KEYS, tile.n)) hide_keys(p, s, row0, j, tile.n, -INFINITY);
        soften(s, factor, top, total, before);
    };
    begin_rows(p, head, top, total);
    products_begin();
    multiply_tiles<T, ROWS, WIDE>(s, q, keys);
    products_sent();
    await_products<0>();
    settled(s);
    soften_keys(first);
    round_scores<T>(weights, s);

    int j = first, stage = 0;
    for (; j + KEYS < end; j += KEYS, stage ^= 1) {
        await_copies();
        show_to_products();
        __syncthreads(); /* V of these keys and K of the next are there; those before are done with */
        products_begin();
        multiply_tiles<T, ROWS, WIDE>(s, q, keys + (stage ^ 1) * z::TILE);
        products_sent();
        multiply_scores<T>(out, weights, values + stage * z::TILE);
        products_sent();
        fetch(tiles_v + (stage ^ 1) * z::TILE, v, j + KEYS);
        if (j + 2 * KEYS < end) fetch(tiles_k + stage * z::TILE, k, j + 2 * KEYS);
        copies_sent();
        await_products<1>();
        settled(s);
        soften_keys(j + KEYS);
        await_products<0>();
        settled(out);
        rescale(out, before);
        round_scores<T>(weights, s);
    }
    await_copies();
    show_to_products();
    __syncthreads();
    products_begin();
    multiply_scores<T>(out, weights, values + stage * z::TILE);
    products_sent();
    await_products<0>();
    settled(out);

    float inverse[2];
    end_rows(p, data, tile, head, row0, top, total, inverse);
    store_rows(static_cast<T *>(data.out) + q_at, q_step, warp * 16, tile.n - tile.start, out, inverse, 0, p);
}

/* ---- the operator ---- */

const char *can_run(const void *arguments)
{
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    return a->q.shape[2] > 128 ? "heads of more than 128" : nbl__attention_mma.can(arguments);
}

template <typename T, int WIDE>
void launch_forward(const attention_problem &p, const attention_data &data, const nbl__call *call)
{
    constexpr int BYTES = forward_shape<WIDE>::BYTES;
    int64_t blocks = (static_cast<int64_t>(p.tokens) / ROWS + p.sequences) * p.heads;
    cudaFuncSetAttribute(forward_sm90<T, WIDE>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    forward_sm90<T, WIDE>
        <<<static_cast<unsigned>(blocks > 0 ? blocks : p.heads), THREADS, BYTES, stream_of(call)>>>(p, data);
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
