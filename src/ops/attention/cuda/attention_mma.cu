/* attention_mma.cu - attention of f16 and bf16 with mma.m16n8k16, heads of up to 256.
 *
 * Three kernels of one shape. A block of 4 warps keeps a tile of rows for its whole life and walks
 * over the tiles of the other side. There are two stages in shared memory: cp.async fills one while
 * the warps multiply the other. Sums and softmax are f32 in registers. A score never leaves the
 * registers: the layout of an accumulator is also the layout of a left operand.
 *
 *     forward            rows: 128 queries of a head    tiles: 64 keys
 *                        S = Q·Kᵀ, O += P·V
 *     backward_keys      rows: 64 keys of a key head    tiles: 64 queries, each head of the group
 *                        Sᵀ = K·Qᵀ, dPᵀ = V·dOᵀ, dV += Pᵀ·dO, dK += dSᵀ·Q
 *     backward_queries   rows: 128 queries of a head    tiles: 32 keys
 *                        S, dP, dQ += dS·K
 *
 * Heads of more than 128 take 64 queries as rows. Heads of up to 64 take tiles of 64 keys in
 * backward_queries.
 *
 * The loop of all three:
 *
 *     start the copies of the rows and of tile 0
 *     for each tile:   wait for its copies, __syncthreads   all see it; the other stage is free
 *                      start the copies of the next tile
 *                      products, softmax or its gradient, products
 *
 * Backward computes S and dP twice: 7 products instead of 5. In return no sum crosses blocks. Every
 * gradient is written once, and its terms are added in a fixed order.
 *
 * Cost: 4·D FLOP per (query, key) pair that is seen in forward, 14·D in backward. Limit: the tensor
 * cores at the rate of mma.sync. */
#include "ops/attention/cuda/attention_tiles.cuh"

using namespace nbl_cuda;

namespace
{

constexpr int THREADS = 128, WARPS = THREADS / 32;

/* ---- instructions ---- */

/* Loads four 8 x 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix
 * l / 8. The transposed form gives each lane a column instead of a row. */
__device__ inline void load_matrices(uint32_t *r, uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t *r, uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
/* sums[16, 8] += a[16, 16] · b[16, 8] by a warp: 4 sums per lane. */
template <typename T> __device__ void multiply(float *sums, const uint32_t *a, uint32_t b0, uint32_t b1);
template <> __device__ inline void multiply<__half>(float *sums, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void multiply<__nv_bfloat16>(float *sums, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- products ---- */

/* sums[M x 16 rows, N x 8 columns] += A · Bᵀ over WIDE columns. A starts at row `row` of a tile of
 * ROWS rows. B is a whole tile of N x 8 rows. A warp reads each fragment of B once and uses it M
 * times. */
template <typename T, int ROWS, int WIDE, int M, int N>
__device__ inline void multiply_tiles(float (&sums)[M][N][4], const char *a, int row, const char *b)
{
    int lane = threadIdx.x % 32;
    uint32_t a_at = shared_address(a), b_at = shared_address(b);
    int a_row = row + (lane & 15), b_row = (lane & 7) + (lane >> 4) * 8;
#pragma unroll
    for (int k = 0; k < WIDE / 16; k++) {
        uint32_t left[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            load_matrices(left[m], a_at + address_of<ROWS>(a_row + m * 16, k * 2 + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t right[4];
            load_matrices(right, b_at + address_of<N * 8>(b_row + n * 8, k * 2 + ((lane >> 3) & 1)));
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply<T>(sums[m][n], left[m], right[0], right[1]);
                multiply<T>(sums[m][n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* sums[M x 16 rows, N x 8 columns] += P · B. P[M x 16, K x 8] are accumulators of an earlier
 * product. B is a tile of K x 8 rows; its columns start at 8 · chunk. */
template <typename T, int M, int K, int N>
__device__ inline void multiply_scores(float (&sums)[M][N][4], const float (&scores)[M][K][4], const char *b,
                                       int chunk)
{
    int lane = threadIdx.x % 32;
    uint32_t b_at = shared_address(b), left[M][K / 2][4];
#pragma unroll
    for (int m = 0; m < M; m++) round_scores<T>(left[m], scores[m]);
#pragma unroll
    for (int k = 0; k < K; k += 2) {
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t right[4];
            load_matrices_transposed(right,
                                     b_at + address_of<K * 8>(k * 8 + (lane & 15), chunk + n + (lane >> 4)));
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply<T>(sums[m][n], left[m][k / 2], right[0], right[1]);
                multiply<T>(sums[m][n + 1], left[m][k / 2], right[2], right[3]);
            }
        }
    }
}

/* ---- forward ---- */

/* Shared memory: Q | K, V of stage 0 | K, V of stage 1. BYTES is 48 KiB for heads of up to 64,
 * 96 KiB for 128 and 160 KiB for 256. */
template <int WIDE> struct forward_shape {
    static constexpr int M = WIDE <= 128 ? 2 : 1, ROWS = WARPS * 16 * M, KEYS = 64, N = KEYS / 8;
    static constexpr int TILE = KEYS * WIDE * 2, BYTES = ROWS * WIDE * 2 + 4 * TILE;
    static constexpr int BLOCKS = WIDE <= 128 ? 2 : 1; /* per multiprocessor */
};

/* out = softmax(scale · Q·Kᵀ) · V, and lse. A block: ROWS queries of one head. A warp: 16·M of
 * these queries against all keys of the walk, so the softmax needs no other warp. The grid has a
 * block for every slot of find_tile and every head. */
template <typename T, int WIDE>
__global__ void __launch_bounds__(THREADS, forward_shape<WIDE>::BLOCKS)
    forward_mma(const __grid_constant__ attention_problem p, const __grid_constant__ attention_data data)
{
    typedef forward_shape<WIDE> z;
    constexpr int M = z::M, N = z::N;
    extern __shared__ __align__(128) char shared[];
    char *shared_q = shared, *tiles = shared + z::ROWS * WIDE * 2; /* K, V, K, V */
    attention_tile tile;
    if (blockIdx.x == 0) check_sequences(p);
    int head = blockIdx.x % p.heads, slot = (gridDim.x - 1 - blockIdx.x) / p.heads; /* long walks first */
    if (!find_tile<z::ROWS>(p, slot, &tile)) return;

    int warp = threadIdx.x / 32;
    int64_t token = tile.first + tile.start, q_column = head * int64_t{p.size},
            k_column = head / p.group * int64_t{p.size}, k_step = data.k_step, v_step = data.v_step;
    const T *k = static_cast<const T *>(data.k) + tile.first * k_step + k_column;
    const T *v = static_cast<const T *>(data.v) + tile.first * v_step + k_column;
    int last = min(tile.start + z::ROWS, tile.n) - 1;
    int first = first_key(p, tile.start) / z::KEYS * z::KEYS, end = end_key(p, last, tile.n);

    load_tile<T, THREADS, z::ROWS, WIDE>(shared_q,
                                         static_cast<const T *>(data.q) + token * data.q_step + q_column,
                                         data.q_step, tile.n - tile.start, p);
    load_tile<T, THREADS, z::KEYS, WIDE>(tiles, k + first * k_step, k_step, tile.n - first, p);
    load_tile<T, THREADS, z::KEYS, WIDE>(tiles + z::TILE, v + first * v_step, v_step, tile.n - first, p);
    copies_sent();

    /* top: the largest logit so far. total: Σ 2^(logit - top), this lane's columns only. */
    float out[M][WIDE / 8][4] = {}, top[M][2], total[M][2], factor = logit_factor(p);
#pragma unroll
    for (int m = 0; m < M; m++) begin_rows(p, head, top[m], total[m]);

    int row0 = tile.start + warp * 16 * M; /* first query of this warp, in the sequence */
    for (int j = first, stage = 0; j < end; j += z::KEYS, stage ^= 1) {
        char *tile_k = tiles + stage * 2 * z::TILE, *next = tiles + (stage ^ 1) * 2 * z::TILE;
        await_copies();
        __syncthreads();
        /* All warps have passed the barrier, so nobody reads `next` any more. */
        if (j + z::KEYS < end) {
            int then = j + z::KEYS;
            load_tile<T, THREADS, z::KEYS, WIDE>(next, k + then * k_step, k_step, tile.n - then, p);
            load_tile<T, THREADS, z::KEYS, WIDE>(next + z::TILE, v + then * v_step, v_step, tile.n - then, p);
        }
        copies_sent();

        float s[M][N][4] = {};
        multiply_tiles<T, z::ROWS, WIDE>(s, shared_q, warp * 16 * M, tile_k);
        /* Only tiles on the diagonal, at a window's edge or at the end need masks. */
        bool hide = !all_seen(p, row0, 16 * M, j, z::KEYS, tile.n);
#pragma unroll
        for (int m = 0; m < M; m++) {
            float before[2];
            make_logits(p, s[m]);
            if (hide) hide_keys(p, s[m], row0 + m * 16, j, tile.n, -INFINITY);
            soften(s[m], factor, top[m], total[m], before);
            rescale(out[m], before);
        }
        multiply_scores<T>(out, s, tile_k + z::TILE, 0);
    }

#pragma unroll
    for (int m = 0; m < M; m++) {
        float inverse[2];
        end_rows(p, data, tile, head, row0 + m * 16, top[m], total[m], inverse);
        store_rows(static_cast<T *>(data.out) + token * out_step(p) + q_column, out_step(p),
                   warp * 16 * M + m * 16, tile.n - tile.start, out[m], inverse, 0, p);
    }
}

/* ---- backward ---- */

/* In: s = q·k, d = dP. Out: s = P = 2^(logit - lse), d = dS / scale = P · (dP - delta) · slope of
 * the cap. lse and delta are those of the query. */
template <bool CAP>
__device__ inline void weigh(const attention_problem &p, float &s, float &d, float lse, float delta)
{
    float weight = weight_of<CAP>(p, s, lse);
    d = slope_of<CAP>(p, s, weight, d - delta);
    s = weight;
}

/* Shared memory: K | V | stage 0 | stage 1. BYTES is 49 KiB for heads of up to 64, 97 KiB for 128
 * and 193 KiB for 256. */
template <int WIDE> struct keys_shape {
    static constexpr int ROWS = WARPS * 16, QUERIES = 64, N = QUERIES / 8;
    /* Columns of dK and dV per block: 256 do not fit in registers. */
    static constexpr int COLUMNS = WIDE <= 128 ? WIDE : 128;
    static constexpr int TILE = QUERIES * WIDE * 2,
                         STAGE = 2 * TILE + 2 * QUERIES * 4; /* Q, dO, lse, delta */
    static constexpr int BYTES = 2 * ROWS * WIDE * 2 + 2 * STAGE;
    static constexpr int BLOCKS = WIDE <= 128 ? 2 : 1;
};

/* dK and dV. A block: ROWS keys of one key head and COLUMNS columns of their gradients
 * (blockIdx.y). A warp: 16 keys. The walk goes over all queries that see the keys, for each query
 * head of the group in turn. With heads of more than 128, two blocks compute the same S and dP. */
template <typename T, int WIDE, bool CAP>
__global__ void __launch_bounds__(THREADS, keys_shape<WIDE>::BLOCKS)
    backward_keys_mma(const __grid_constant__ attention_problem p,
                      const __grid_constant__ attention_data data)
{
    typedef keys_shape<WIDE> z;
    constexpr int N = z::N, COLUMNS = z::COLUMNS;
    extern __shared__ __align__(128) char shared[];
    char *shared_k = shared, *shared_v = shared_k + z::ROWS * WIDE * 2,
         *stages = shared_v + z::ROWS * WIDE * 2;
    attention_tile tile;
    int head = blockIdx.x % p.key_heads, column = blockIdx.y * COLUMNS;
    if (!find_tile<z::ROWS>(p, blockIdx.x / p.key_heads, &tile)) return;

    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t token = tile.first + tile.start, k_column = head * int64_t{p.size};
    int last = min(tile.start + z::ROWS, tile.n) - 1;
    int first = first_query(p, tile.start) / z::QUERIES * z::QUERIES;
    int walk = (end_query(p, last, tile.n) - first + z::QUERIES - 1) / z::QUERIES; /* tiles, for each head */

    /* Starts the copies of step `step`: Q and dO, and 64 lse2 by threads 0 … 63, 64 delta by the
     * others. Rows past the sequence are zeros, so their products are zeros. */
    auto fetch = [&](int step, int stage) {
        int h = head * p.group + step / walk, i = first + step % walk * z::QUERIES;
        int64_t token = tile.first + i, q_column = h * int64_t{p.size};
        char *to = stages + stage * z::STAGE;
        load_tile<T, THREADS, z::QUERIES, WIDE>(
            to, static_cast<const T *>(data.q) + token * data.q_step + q_column, data.q_step, tile.n - i, p);
        load_tile<T, THREADS, z::QUERIES, WIDE>(
            to + z::TILE, static_cast<const T *>(data.dout) + token * out_step(p) + q_column, out_step(p),
            tile.n - i, p);
        const float *row = threadIdx.x < z::QUERIES ? data.lse2 : data.delta;
        int r = threadIdx.x % z::QUERIES;
        copy_4(shared_address(to + 2 * z::TILE) + threadIdx.x * 4,
               row + static_cast<int64_t>(h) * p.tokens + token + (i + r < tile.n ? r : 0), i + r < tile.n);
    };
    load_tile<T, THREADS, z::ROWS, WIDE>(shared_k,
                                         static_cast<const T *>(data.k) + token * data.k_step + k_column,
                                         data.k_step, tile.n - tile.start, p);
    load_tile<T, THREADS, z::ROWS, WIDE>(shared_v,
                                         static_cast<const T *>(data.v) + token * data.v_step + k_column,
                                         data.v_step, tile.n - tile.start, p);
    fetch(0, 0);
    copies_sent();

    float dk[1][COLUMNS / 8][4] = {}, dv[1][COLUMNS / 8][4] = {};
    int steps = walk * p.group, j0 = tile.start + warp * 16;
    for (int step = 0; step < steps; step++) {
        int stage = step & 1, i0 = first + step % walk * z::QUERIES;
        const char *q = stages + stage * z::STAGE, *dout = q + z::TILE;
        const float *lse = reinterpret_cast<const float *>(q + 2 * z::TILE), *delta = lse + z::QUERIES;
        await_copies();
        __syncthreads();
        if (step + 1 < steps) fetch(step + 1, stage ^ 1);
        copies_sent();

        /* Transposed scores: rows are keys, columns are queries. */
        float s[1][N][4] = {}, d[1][N][4] = {};
        multiply_tiles<T, z::ROWS, WIDE>(s, shared_k, warp * 16, q);
        multiply_tiles<T, z::ROWS, WIDE>(d, shared_v, warp * 16, dout);
        if (!all_seen(p, i0, z::QUERIES, j0, 16, tile.n))
            hide_queries(p, s[0], j0, i0, tile.n, unseen_product(p));
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int c = n * 8 + lane % 4 * 2 + e;
                float l = lse[c], x = delta[c];
                weigh<CAP>(p, s[0][n][e], d[0][n][e], l, x);
                weigh<CAP>(p, s[0][n][e + 2], d[0][n][e + 2], l, x);
            }
        multiply_scores<T>(dv, s, dout, column / 8);
        multiply_scores<T>(dk, d, q, column / 8);
    }
    const float one[2] = {1, 1}, scale[2] = {p.scale, p.scale};
    int valid = tile.n - tile.start;
    if (data.dk)
        store_rows(static_cast<T *>(data.dk) + token * data.dk_step + k_column, data.dk_step, warp * 16,
                   valid, dk[0], scale, column, p);
    if (data.dv)
        store_rows(static_cast<T *>(data.dv) + token * data.dv_step + k_column, data.dv_step, warp * 16,
                   valid, dv[0], one, column, p);
}

/* Shared memory: Q | dO | K, V of stage 0 | K, V of stage 1. BYTES is 64 KiB for heads of up to 64,
 * 96 KiB for 128 and 128 KiB for 256. */
template <int WIDE> struct queries_shape {
    static constexpr int M = WIDE <= 128 ? 2 : 1, ROWS = WARPS * 16 * M, KEYS = WIDE <= 64 ? 64 : 32,
                         N = KEYS / 8;
    static constexpr int TILE = KEYS * WIDE * 2, BYTES = 2 * ROWS * WIDE * 2 + 4 * TILE;
    static constexpr int BLOCKS = WIDE <= 128 ? 2 : 1;
};

/* dQ, and Σ P · dP of every query if the gradient of the sinks needs it. Blocks and warps as in
 * forward. The tile of K serves two products: S by its rows, dQ by its columns. */
template <typename T, int WIDE, bool CAP>
__global__ void __launch_bounds__(THREADS, queries_shape<WIDE>::BLOCKS)
    backward_queries_mma(const __grid_constant__ attention_problem p,
                         const __grid_constant__ attention_data data)
{
    typedef queries_shape<WIDE> z;
    constexpr int M = z::M, N = z::N;
    extern __shared__ __align__(128) char shared[];
    char *shared_q = shared, *shared_dout = shared_q + z::ROWS * WIDE * 2;
    char *tiles = shared_dout + z::ROWS * WIDE * 2; /* K, V, K, V */
    attention_tile tile;
    int head = blockIdx.x % p.heads, slot = (gridDim.x - 1 - blockIdx.x) / p.heads;
    if (!find_tile<z::ROWS>(p, slot, &tile)) return;

    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t token = tile.first + tile.start, q_column = head * int64_t{p.size},
            k_column = head / p.group * int64_t{p.size}, k_step = data.k_step, v_step = data.v_step;
    int last = min(tile.start + z::ROWS, tile.n) - 1, valid = tile.n - tile.start;
    int first = first_key(p, tile.start) / z::KEYS * z::KEYS, end = end_key(p, last, tile.n);
    /* The next tile to load. */
    const T *k = static_cast<const T *>(data.k) + (tile.first + first) * k_step + k_column;
    const T *v = static_cast<const T *>(data.v) + (tile.first + first) * v_step + k_column;

    load_tile<T, THREADS, z::ROWS, WIDE>(
        shared_q, static_cast<const T *>(data.q) + token * data.q_step + q_column, data.q_step, valid, p);
    load_tile<T, THREADS, z::ROWS, WIDE>(shared_dout,
                                         static_cast<const T *>(data.dout) + token * out_step(p) + q_column,
                                         out_step(p), valid, p);
    load_tile<T, THREADS, z::KEYS, WIDE>(tiles, k, k_step, tile.n - first, p);
    load_tile<T, THREADS, z::KEYS, WIDE>(tiles + z::TILE, v, v_step, tile.n - first, p);
    copies_sent();

    float dq[M][WIDE / 8][4] = {}, lse[M][2], delta[M][2], sums[M][2] = {};
    int row0 = tile.start + warp * 16 * M;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int i = row0 + m * 16 + lane / 4 + half * 8;
            int64_t at = static_cast<int64_t>(head) * p.tokens + tile.first + min(i, tile.n - 1);
            lse[m][half] = data.lse2[at];
            delta[m][half] = data.delta[at];
        }
    /* lse and delta belong to the rows here, so they stay in registers for the whole walk. */
    for (int j = first, stage = 0; j < end; j += z::KEYS, stage ^= 1) {
        char *tile_k = tiles + stage * 2 * z::TILE, *next = tiles + (stage ^ 1) * 2 * z::TILE;
        await_copies();
        __syncthreads();
        if (j + z::KEYS < end) {
            int then = j + z::KEYS;
            k += z::KEYS * k_step, v += z::KEYS * v_step;
            load_tile<T, THREADS, z::KEYS, WIDE>(next, k, k_step, tile.n - then, p);
            load_tile<T, THREADS, z::KEYS, WIDE>(next + z::TILE, v, v_step, tile.n - then, p);
        }
        copies_sent();

        float s[M][N][4] = {}, d[M][N][4] = {};
        multiply_tiles<T, z::ROWS, WIDE>(s, shared_q, warp * 16 * M, tile_k);
        multiply_tiles<T, z::ROWS, WIDE>(d, shared_dout, warp * 16 * M, tile_k + z::TILE);
        if (!all_seen(p, row0, 16 * M, j, z::KEYS, tile.n)) {
#pragma unroll
            for (int m = 0; m < M; m++) hide_keys(p, s[m], row0 + m * 16, j, tile.n, unseen_product(p));
        }
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float change = d[m][n][e];
                    weigh<CAP>(p, s[m][n][e], d[m][n][e], lse[m][e / 2], delta[m][e / 2]);
                    if (data.sums) sums[m][e / 2] = fmaf(s[m][n][e], change, sums[m][e / 2]);
                }
        multiply_scores<T>(dq, d, tile_k, 0);
    }
    const float scale[2] = {p.scale, p.scale};
#pragma unroll
    for (int m = 0; m < M; m++) {
        if (data.sums) end_sums(p, data, tile, head, row0 + m * 16, sums[m]);
        if (data.dq)
            store_rows(static_cast<T *>(data.dq) + token * data.dq_step + q_column, data.dq_step,
                       warp * 16 * M + m * 16, valid, dq[m], scale, 0, p);
    }
}

/* ---- the two operators ---- */

/* Shared memory that a block of the device may have; without a device, that of the newest. */
int shared_limit(const nbl_context *ctx)
{
    const nbl__cuda *cuda = nbl__cuda_of(ctx);
    if (cuda == NULL || (cuda->major != 8 && cuda->major != 12)) return 227 << 10;
    bool large = cuda->major == 8 && (cuda->minor == 0 || cuda->minor == 7);
    return large ? 163 << 10 : 99 << 10;
}

/* Of a direction's largest kernel. */
template <bool BACKWARD, int WIDE> constexpr int shared_bytes()
{
    constexpr int keys = keys_shape<WIDE>::BYTES, queries = queries_shape<WIDE>::BYTES;
    return BACKWARD ? (keys > queries ? keys : queries) : forward_shape<WIDE>::BYTES;
}

template <bool BACKWARD> const char *can_run(const nbl_context *ctx, const void *arguments)
{
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    const char *why = nbl__wide_strides_only(&nbl__attention_family, BACKWARD, arguments);
    if (why) return why;
    if (a->dtype == NBL_DTYPE_F32) return "f32";
    int64_t size = a->q.shape[2];
    if (size > 256) return "heads of more than 256";
    int bytes = size <= 64    ? shared_bytes<BACKWARD, 64>()
                : size <= 128 ? shared_bytes<BACKWARD, 128>()
                              : shared_bytes<BACKWARD, 256>();
    if (bytes > shared_limit(ctx)) return "heads that need more shared memory than the device has";
    int64_t slots = a->q.shape[0] / 64 + a->cu_seqlens.shape[0];
    if (a->q.shape[0] > INT32_MAX / 2 || slots * a->q.shape[1] > INT32_MAX) return "too many rows";
    return NULL;
}

/* Blocks of a launch whose tiles have `rows` rows: an upper bound, since the host does not know the
 * sequences. At least one block runs, to check cu_seqlens. */
unsigned blocks_for(const attention_problem &p, int rows, int heads)
{
    int64_t blocks = (static_cast<int64_t>(p.tokens) / rows + p.sequences) * heads;
    return static_cast<unsigned>(blocks > 0 ? blocks : heads);
}

template <typename Kernel> void allow(Kernel kernel, int bytes)
{
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <typename T, int WIDE>
void launch_forward(const attention_problem &p, const attention_data &data, cudaStream_t stream)
{
    typedef forward_shape<WIDE> z;
    allow(forward_mma<T, WIDE>, z::BYTES);
    forward_mma<T, WIDE><<<blocks_for(p, z::ROWS, p.heads), THREADS, z::BYTES, stream>>>(p, data);
}

template <typename T, int WIDE>
void launch_backward(const attention_problem &p, const attention_data &data, cudaStream_t stream)
{
    auto over_keys = p.cap != 0 ? backward_keys_mma<T, WIDE, true> : backward_keys_mma<T, WIDE, false>;
    auto over_queries = p.cap != 0 ? backward_queries_mma<T, WIDE, true>
                                   : backward_queries_mma<T, WIDE, false>;
    typedef keys_shape<WIDE> keys;
    typedef queries_shape<WIDE> queries;
    if (data.dk || data.dv) {
        dim3 grid(blocks_for(p, keys::ROWS, p.key_heads), WIDE / keys::COLUMNS);
        allow(over_keys, keys::BYTES);
        over_keys<<<grid, THREADS, keys::BYTES, stream>>>(p, data);
    }
    if (data.dq || data.sums) {
        allow(over_queries, queries::BYTES);
        over_queries<<<blocks_for(p, queries::ROWS, p.heads), THREADS, queries::BYTES, stream>>>(p, data);
    }
}

#define BY_SHAPE(a, launch, ...)                                                                             \
    do {                                                                                                     \
        bool half = (a)->dtype == NBL_DTYPE_F16;                                                             \
        if ((a)->q.shape[2] <= 64)                                                                           \
            half ? launch<__half, 64>(__VA_ARGS__) : launch<__nv_bfloat16, 64>(__VA_ARGS__);                 \
        else if ((a)->q.shape[2] <= 128)                                                                     \
            half ? launch<__half, 128>(__VA_ARGS__) : launch<__nv_bfloat16, 128>(__VA_ARGS__);               \
        else half ? launch<__half, 256>(__VA_ARGS__) : launch<__nv_bfloat16, 256>(__VA_ARGS__);              \
    } while (0)

nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    attention_problem p = attention_problem_of(call, a);
    attention_data data = attention_data_of(a);
    BY_SHAPE(a, launch_forward, p, data, stream_of(call));
    return launched(call);
}

nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    attention_problem p = attention_problem_of(call, a);
    attention_data data = attention_data_of(a);
    attention_rows rows = attention_rows_make(call, a, p, &data);
    BY_SHAPE(a, launch_backward, p, data, stream_of(call));
    attention_sinks_add(call, a, p, rows);
    return launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__attention_mma = {"attention_mma", NBL_ISA_SCALAR, can_run<false>, NULL, run_forward};
const nbl__impl nbl__attention_backward_mma = {"attention_backward_mma", NBL_ISA_SCALAR, can_run<true>,
                                               attention_backward_scratch, run_backward};
}
