/* attention_backward_sm90.cu - the backward of attention_sm90.cu: the two walks of attention_mma.cu. For
 * sm_90a.
 *
 *     backward_keys      dPᵀ is under way while Sᵀ becomes Pᵀ, dV += Pᵀ·dO while dPᵀ becomes dSᵀ
 *     backward_queries   dP is under way while S becomes P
 *
 * Limit: the matrix unit. */
#include "ops/cuda/wgmma.cuh"

extern "C" {
extern const nbl__impl nbl__attention_mma, nbl__attention_backward_mma;
extern const nbl__impl nbl__attention_backward_sm90;
}

using namespace nbl_cuda;

namespace
{

constexpr int GROUPS = 2, THREADS = GROUPS * 128, ROWS = GROUPS * 64;

/* P as a left operand; s becomes P too, unless a cap needs it once more. `lse_of(n, e)` is that of s[n][e].
 * */
template <typename T, bool CAP, int N, typename Lse>
__device__ inline void make_weights(const attention_problem &p, float (&s)[N][4],
                                    uint32_t (&weights)[N / 2][4], Lse lse_of)
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        float w[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            w[e] = weight_of<CAP>(p, s[n][e], lse_of(n, e));
            if constexpr (!CAP) s[n][e] = w[e];
        }
        weights[n / 2][n % 2 * 2] = pair_of<T>(w[0], w[1]);
        weights[n / 2][n % 2 * 2 + 1] = pair_of<T>(w[2], w[3]);
    }
}

/* dS / scale as a left operand, from what make_weights left and dP. */
template <typename T, bool CAP, int N, typename Lse, typename Delta>
__device__ inline void make_slopes(const attention_problem &p, float (&s)[N][4], float (&d)[N][4],
                                   uint32_t (&slopes)[N / 2][4], Lse lse_of, Delta delta_of)
{
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float weight = s[n][e];
            if constexpr (CAP) weight = weight_of<CAP>(p, s[n][e], lse_of(n, e));
            d[n][e] = slope_of<CAP>(p, s[n][e], weight, d[n][e] - delta_of(n, e));
        }
        slopes[n / 2][n % 2 * 2] = pair_of<T>(d[n][0], d[n][1]);
        slopes[n / 2][n % 2 * 2 + 1] = pair_of<T>(d[n][2], d[n][3]);
    }
}

/* GROUPS warpgroups of 64 keys each: 2 where there is work for all multiprocessors, else 1, and two blocks
 * to a multiprocessor. Which one does not show in the results. */
template <int WIDE, int GROUPS> struct keys_shape {
    static constexpr int THREADS = GROUPS * 128, ROWS = GROUPS * 64;
    static constexpr int QUERIES = 64, N = QUERIES / 8;
    static constexpr int TILE = QUERIES * WIDE * 2, NUMBERS = 2 * QUERIES * 4; /* lse and delta */
    static constexpr int BYTES = TILE_ALIGNMENT + 2 * ROWS * WIDE * 2 + 4 * TILE + 2 * NUMBERS;
};

template <typename T, int WIDE, int GROUPS, bool CAP>
__global__ void __launch_bounds__(GROUPS * 128, 2 / GROUPS)
    backward_keys_sm90(const __grid_constant__ attention_problem p,
                       const __grid_constant__ attention_data data)
{
    typedef keys_shape<WIDE, GROUPS> z;
    constexpr int N = z::N, QUERIES = z::QUERIES, THREADS = z::THREADS, ROWS = z::ROWS;
    extern __shared__ char raw[];
    char *shared_k = aligned(raw), *shared_v = shared_k + ROWS * WIDE * 2;
    char *tiles = shared_v + ROWS * WIDE * 2, *numbers = tiles + 4 * z::TILE; /* Q, dO, Q, dO */
    attention_tile tile;
    int head = blockIdx.x % p.key_heads, slot = blockIdx.x / p.key_heads, slots = gridDim.x / p.key_heads;
    if (GROUPS == 1 && slot >= slots / 2)
        slot = slots - 1 - (slot - slots / 2); /* a long walk beside a short one */
    if (!find_tile<ROWS>(p, slot, &tile)) return;

    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = group_of_warps();
    int64_t q_step = static_cast<int64_t>(p.heads) * p.size,
            k_step = static_cast<int64_t>(p.key_heads) * p.size;
    int64_t k_at = (static_cast<int64_t>(tile.first + tile.start) * p.key_heads + head) * p.size;
    int last = min(tile.start + ROWS, tile.n) - 1, valid = tile.n - tile.start;
    int first = first_query(p, tile.start) / QUERIES * QUERIES;
    int walk = (end_query(p, last, tile.n) - first + QUERIES - 1) / QUERIES; /* tiles, for each head */

    auto fetch = [&](int step, int stage) {
        int h = head * p.group + step / walk, i = first + step % walk * QUERIES;
        int64_t token = tile.first + i, at = (token * p.heads + h) * p.size;
        char *to = tiles + stage * 2 * z::TILE;
        load_tile<T, THREADS, QUERIES, WIDE>(to, static_cast<const T *>(data.q) + at, q_step, tile.n - i, p);
        load_tile<T, THREADS, QUERIES, WIDE>(to + z::TILE, static_cast<const T *>(data.dout) + at, q_step,
                                             tile.n - i, p);
        if (threadIdx.x < 2 * QUERIES) {
            const float *row = threadIdx.x < QUERIES ? data.lse2 : data.delta;
            int r = threadIdx.x % QUERIES;
            copy_4(shared_address(numbers + stage * z::NUMBERS) + threadIdx.x * 4,
                   row + static_cast<int64_t>(h) * p.tokens + token + (i + r < tile.n ? r : 0),
                   i + r < tile.n);
        }
    };
    load_tile<T, THREADS, ROWS, WIDE>(shared_k, static_cast<const T *>(data.k) + k_at, k_step, valid, p);
    load_tile<T, THREADS, ROWS, WIDE>(shared_v, static_cast<const T *>(data.v) + k_at, k_step, valid, p);
    fetch(0, 0);
    copies_sent();

    float dk[WIDE / 8][4] = {}, dv[WIDE / 8][4] = {}, unseen = unseen_product(p);
    uint32_t k = shared_address(shared_k) + group * 64 * 128, v = shared_address(shared_v) + group * 64 * 128;
    int steps = walk * p.group, j0 = tile.start + warp * 16;
    for (int step = 0; step < steps; step++) {
        int stage = step & 1, i0 = first + step % walk * QUERIES;
        uint32_t q = shared_address(tiles) + stage * 2 * z::TILE, dout = q + z::TILE;
        const float *lse = reinterpret_cast<const float *>(numbers + stage * z::NUMBERS),
                    *delta = lse + QUERIES;
        float s[N][4], d[N][4];
        uint32_t weights[N / 2][4], slopes[N / 2][4];
        await_copies();
        show_to_products();
        __syncthreads();
        products_begin();
        multiply_tiles<T, ROWS, WIDE>(s, k, q);
        products_sent();
        multiply_tiles<T, ROWS, WIDE>(d, v, dout);
        products_sent();
        if (step + 1 < steps) fetch(step + 1, stage ^ 1);
        copies_sent();

        await_products<1>();
        settled(s);
        if (!all_seen(p, i0, QUERIES, j0, 16, tile.n)) hide_queries(p, s, j0, i0, tile.n, unseen);
        make_weights<T, CAP>(p, s, weights, [&](int n, int e) { return lse[n * 8 + lane % 4 * 2 + e % 2]; });
        products_begin();
        multiply_scores<T>(dv, weights, dout);
        products_sent();
        await_products<1>();
        settled(d);
        make_slopes<T, CAP>(
            p, s, d, slopes, [&](int n, int e) { return lse[n * 8 + lane % 4 * 2 + e % 2]; },
            [&](int n, int e) { return delta[n * 8 + lane % 4 * 2 + e % 2]; });
        products_begin();
        multiply_scores<T>(dk, slopes, q);
        products_sent();
        await_products<0>();
        settled(dk);
        settled(dv);
    }
    const float one[2] = {1, 1}, scale[2] = {p.scale, p.scale};
    if (data.dk) store_rows(static_cast<T *>(data.dk) + k_at, k_step, warp * 16, valid, dk, scale, 0, p);
    if (data.dv) store_rows(static_cast<T *>(data.dv) + k_at, k_step, warp * 16, valid, dv, one, 0, p);
}

template <int WIDE> struct queries_shape {
    static constexpr int KEYS = 128, N = KEYS / 8, TILE = KEYS * WIDE * 2;
    static constexpr int BYTES = TILE_ALIGNMENT + 2 * ROWS * WIDE * 2 + 4 * TILE;
};

template <typename T, int WIDE, bool CAP>
__global__ void __launch_bounds__(THREADS, 1)
    backward_queries_sm90(const __grid_constant__ attention_problem p,
                          const __grid_constant__ attention_data data)
{
    typedef queries_shape<WIDE> z;
    constexpr int N = z::N, KEYS = z::KEYS;
    extern __shared__ char raw[];
    char *shared_q = aligned(raw), *shared_dout = shared_q + ROWS * WIDE * 2;
    char *tiles = shared_dout + ROWS * WIDE * 2; /* K, V, K, V */
    attention_tile tile;
    int head = blockIdx.x % p.heads, slot = (gridDim.x - 1 - blockIdx.x) / p.heads;
    if (!find_tile<ROWS>(p, slot, &tile)) return;

    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = group_of_warps();
    int64_t q_step = static_cast<int64_t>(p.heads) * p.size,
            k_step = static_cast<int64_t>(p.key_heads) * p.size;
    int64_t q_at = (static_cast<int64_t>(tile.first + tile.start) * p.heads + head) * p.size;
    int64_t k_at = (static_cast<int64_t>(tile.first) * p.key_heads + head / p.group) * p.size;
    int last = min(tile.start + ROWS, tile.n) - 1, valid = tile.n - tile.start, row0 = tile.start + warp * 16;
    int first = first_key(p, tile.start) / KEYS * KEYS, end = end_key(p, last, tile.n);
    auto fetch = [&](int j, int stage) {
        int64_t at = k_at + j * k_step;
        char *to = tiles + stage * 2 * z::TILE;
        load_tile<T, THREADS, KEYS, WIDE>(to, static_cast<const T *>(data.k) + at, k_step, tile.n - j, p);
        load_tile<T, THREADS, KEYS, WIDE>(to + z::TILE, static_cast<const T *>(data.v) + at, k_step,
                                          tile.n - j, p);
    };
    load_tile<T, THREADS, ROWS, WIDE>(shared_q, static_cast<const T *>(data.q) + q_at, q_step, valid, p);
    load_tile<T, THREADS, ROWS, WIDE>(shared_dout, static_cast<const T *>(data.dout) + q_at, q_step, valid,
                                      p);
    fetch(first, 0);
    copies_sent();

    float dq[WIDE / 8][4] = {}, lse[2], delta[2], sums[2] = {}, unseen = unseen_product(p);
    uint32_t q = shared_address(shared_q) + group * 64 * 128,
             dout = shared_address(shared_dout) + group * 64 * 128;
    for (int half = 0; half < 2; half++) {
        int64_t at = static_cast<int64_t>(head) * p.tokens + tile.first +
                     min(row0 + lane / 4 + half * 8, tile.n - 1);
        lse[half] = data.lse2[at];
        delta[half] = data.delta[at];
    }
    for (int j = first, stage = 0; j < end; j += KEYS, stage ^= 1) {
        uint32_t k = shared_address(tiles) + stage * 2 * z::TILE, v = k + z::TILE;
        float s[N][4], d[N][4];
        uint32_t slopes[N / 2][4];
        await_copies();
        show_to_products();
        __syncthreads();
        products_begin();
        multiply_tiles<T, ROWS, WIDE>(s, q, k);
        products_sent();
        multiply_tiles<T, ROWS, WIDE>(d, dout, v);
        products_sent();
        if (j + KEYS < end) fetch(j + KEYS, stage ^ 1);
        copies_sent();

        await_products<1>();
        settled(s);
        if (!all_seen(p, row0, 16, j, KEYS, tile.n)) hide_keys(p, s, row0, j, tile.n, unseen);
        if constexpr (!CAP) {
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[n][e] = weight_of<CAP>(p, s[n][e], lse[e / 2]);
            now(s);
        }
        await_products<0>();
        settled(d);
        if (data.sums) {
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float weight = s[n][e];
                    if constexpr (CAP) weight = weight_of<CAP>(p, s[n][e], lse[e / 2]);
                    sums[e / 2] = fmaf(weight, d[n][e], sums[e / 2]);
                }
        }
        make_slopes<T, CAP>(
            p, s, d, slopes, [&](int, int e) { return lse[e / 2]; },
            [&](int, int e) { return delta[e / 2]; });
        products_begin();
        multiply_scores<T>(dq, slopes, k);
        products_sent();
        await_products<0>();
        settled(dq);
    }
    const float scale[2] = {p.scale, p.scale};
    if (data.sums) end_sums(p, data, tile, head, row0, sums);
    if (data.dq) store_rows(static_cast<T *>(data.dq) + q_at, q_step, warp * 16, valid, dq, scale, 0, p);
}

/* ---- the operator ---- */

const char *can_run(const void *arguments)
{
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    return a->q.shape[2] > 128 ? "heads of more than 128" : nbl__attention_mma.can(arguments);
}

unsigned blocks_for(const attention_problem &p, int rows, int heads)
{
    int64_t blocks = (static_cast<int64_t>(p.tokens) / rows + p.sequences) * heads;
    return static_cast<unsigned>(blocks > 0 ? blocks : heads);
}

template <typename Kernel>
void launch(Kernel kernel, unsigned blocks, int threads, int bytes, const attention_problem &p,
            const attention_data &data, const nbl__call *call)
{
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    kernel<<<blocks, static_cast<unsigned>(threads), static_cast<size_t>(bytes), stream_of(call)>>>(p, data);
}

template <typename T, int WIDE, bool CAP>
void launch_backward_of(const attention_problem &p, const attention_data &data, const nbl__call *call)
{
    typedef keys_shape<WIDE, 2> large;
    typedef keys_shape<WIDE, 1> small;
    bool many = static_cast<int64_t>(p.tokens) / 128 * p.key_heads > 2 * call->cuda->multiprocessors;
    if ((data.dk || data.dv) && many)
        launch(backward_keys_sm90<T, WIDE, 2, CAP>, blocks_for(p, large::ROWS, p.key_heads), large::THREADS,
               large::BYTES, p, data, call);
    else if (data.dk || data.dv)
        launch(backward_keys_sm90<T, WIDE, 1, CAP>, blocks_for(p, small::ROWS, p.key_heads), small::THREADS,
               small::BYTES, p, data, call);
    if (data.dq || data.sums)
        launch(backward_queries_sm90<T, WIDE, CAP>, blocks_for(p, ROWS, p.heads), THREADS,
               queries_shape<WIDE>::BYTES, p, data, call);
}

template <typename T, int WIDE>
void launch_backward(const attention_problem &p, const attention_data &data, const nbl__call *call)
{
    (p.cap != 0 ? launch_backward_of<T, WIDE, true> : launch_backward_of<T, WIDE, false>)(p, data, call);
}

nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    if (call->cuda->major != 9) return nbl__attention_backward_mma.run(call, arguments);
    attention_problem p = attention_problem_of(call, a);
    attention_data data = attention_data_of(a);
    attention_rows rows = attention_rows_make(call, a, p, &data);
    if (a->dtype == NBL_DTYPE_F16)
        (p.size <= 64 ? launch_backward<__half, 64> : launch_backward<__half, 128>)(p, data, call);
    else
        (p.size <= 64 ? launch_backward<__nv_bfloat16, 64> : launch_backward<__nv_bfloat16, 128>)(p, data,
                                                                                                  call);
    attention_sinks_add(call, a, p, rows);
    return launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__attention_backward_sm90 = {"attention_backward_sm90", NBL_ISA_SCALAR, can_run,
                                                attention_backward_scratch, run_backward};
}
