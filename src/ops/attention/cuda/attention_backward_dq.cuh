/* attention_backward_dq.cuh - backward over keys for dQ, for compute capability 9.0. It also writes
 * what the walk over queries needs of every row: lse by head in units of log 2, and delta = Σ dO·O.
 * Internal to attention_backward_sm90.cu.
 *
 * A block as in attention_sm90.cu: a feeder and two product warpgroups of 64 queries, which take
 * turns.
 *
 *     in its turn       issue S = Q·Kᵀ and dP = dO·Vᵀ
 *     out of its turn   P while dP runs, then dS, then dQ += dS·K
 *
 * The dQ product does not wait for a turn: it is issued as soon as dS is in registers. dQ stays in
 * registers over the whole walk.
 *
 * Shared memory, heads of up to 128 (up to 64): Q 32 KiB (16) | dO 32 (16) | K 2 x 32 (4 x 16) |
 * V 2 x 32 (4 x 16) | O, later dQ, 32 (16) | barriers, item: 225 KiB (177), one block per
 * multiprocessor. Cost: 6·D FLOP per (query, key) pair. Limit: the tensor cores. */
#ifndef NBL_ATTENTION_BACKWARD_DQ_CUH
#define NBL_ATTENTION_BACKWARD_DQ_CUH

#include "ops/attention/cuda/attention_backward_scores.cuh"

namespace nbl_cuda
{

/* Sizes and offsets in shared memory, in bytes. */
template <int WIDE> struct queries_shape {
    static constexpr int GROUPS = 2, THREADS = (1 + GROUPS) * 128, ROWS = GROUPS * 64;
    static constexpr int FEEDER = 40; /* registers per thread of the feeder */
    static constexpr int KEYS = 128, N = KEYS / 8, STAGES = 256 / WIDE;
    static constexpr int Q = 0, OWN = ROWS * WIDE * 2, DOUT = OWN, TILE = KEYS * WIDE * 2, K = DOUT + OWN,
                         V = K + STAGES * TILE, OUT = V + STAGES * TILE, BARRIERS = OUT + OWN;
    static constexpr int ITEM = BARRIERS + 2 * ring<1>::BYTES + 2 * ring<STAGES>::BYTES + 8;
    static constexpr int BYTES = TILE_ALIGNMENT + ITEM + static_cast<int>(sizeof(attention_item));
};

template <int WIDE> struct queries_block {
    typedef queries_shape<WIDE> z;
    char *shared;
    ring<1> own; /* Q, dO and the item */
    ring<1> out; /* O; later the warps store dQ through the same tile */
    ring<z::STAGES> keys, values;
    uint32_t spare;
    attention_item *item;

    __device__ explicit queries_block(char *at) : shared(at)
    {
        own.barriers = shared_address(shared + z::BARRIERS);
        out.barriers = own.barriers + ring<1>::BYTES;
        keys.barriers = out.barriers + ring<1>::BYTES;
        values.barriers = keys.barriers + ring<z::STAGES>::BYTES;
        spare = values.barriers + ring<z::STAGES>::BYTES;
        item = reinterpret_cast<attention_item *>(shared + z::ITEM);
    }
    __device__ void make_barriers() const
    {
        /* own: two tiles, Q and dO. Readers release once per warp. */
        own.make(2, 4 * z::GROUPS);
        out.make(1, 4 * z::GROUPS);
        keys.make(1, 4 * z::GROUPS);
        values.make(1, 4 * z::GROUPS);
        mbarrier_init(spare, 1);
        mbarrier_init_fence();
    }
};

/* The feeder: per item Q and dO, then K and V of the walk. O follows the first K and V, because the
 * products of the first tile do not need it. */
template <typename T, int WIDE>
__device__ inline void feed_queries(const attention_problem &p, const attention_data &data,
                                    const attention_maps &maps, const attention_items &items,
                                    const queries_block<WIDE> &block)
{
    typedef queries_shape<WIDE> z;
    feeder feeder = {p, block.spare};
    int tiles = 0, step = 0;
    feeder.for_items(items, [&](int number) {
        attention_tile tile;
        int head = number % p.heads, key_head = head / p.group;
        if (!find_ranked<z::ROWS>(p, number / p.heads, false, &tile)) return;
        int first = first_key_of<z::KEYS>(p, tile), end = end_key_of<z::ROWS>(p, tile);
        int token = tile.first + tile.start, valid = tile.n - tile.start;
        block.own.await_empty(tiles);
        if (feeder.leads()) *block.item = {tile, head};
        feeder.send<T, z::ROWS, WIDE>(block.shared + z::Q, block.own.full(tiles), &maps.q, data.q, data.q_step,
                                      head, token, valid);
        feeder.send<T, z::ROWS, WIDE>(block.shared + z::DOUT, block.own.full(tiles), &maps.dout, data.dout,
                                      out_step(p), head, token, valid);
        for (int j = first; j < end; j += z::KEYS, step++) {
            int at = step % z::STAGES * z::TILE;
            block.keys.await_empty(step);
            feeder.send<T, z::KEYS, WIDE>(block.shared + z::K + at, block.keys.full(step), &maps.k, data.k,
                                          data.k_step, key_head, tile.first + j, tile.n - j);
            block.values.await_empty(step);
            feeder.send<T, z::KEYS, WIDE>(block.shared + z::V + at, block.values.full(step), &maps.v, data.v,
                                          data.v_step, key_head, tile.first + j, tile.n - j);
            if (j != first) continue;
            block.out.await_empty(tiles);
            feeder.send<T, z::ROWS, WIDE>(block.shared + z::OUT, block.out.full(tiles), &maps.out, data.out,
                                          out_step(p), head, token, valid);
        }
        tiles++;
    });
    block.own.await_empty(tiles);
    feeder.finish(block.item, block.own.full(tiles), 2);
}

/* Σ a · b over the columns of two tiles, for row lane / 2 of the 16 from `row`. Two lanes share a
 * row: each sums one half of the columns. */
template <typename T, int ROWS, int WIDE>
__device__ inline float multiply_rows(const char *a, const char *b, int row)
{
    constexpr int COUNT = WIDE / 16;
    int half = threadIdx.x % 2, r = row + threadIdx.x % 32 / 2;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        /* The two halves never meet in a bank. */
        int chunk = half * COUNT + (WIDE == 128 ? i ^ half * 4 : i);
        pack<T> x = *reinterpret_cast<const pack<T> *>(a + address_of<ROWS>(r, chunk)),
                y = *reinterpret_cast<const pack<T> *>(b + address_of<ROWS>(r, chunk));
#pragma unroll
        for (int e = 0; e < 8; e++) sum = fmaf(to_f32(x.at[e]), to_f32(y.at[e]), sum);
    }
    return sum + __shfl_xor_sync(WARP, sum, 1);
}

/* A product warpgroup: 64 queries of every item; a warp has 16 of them. SUMS: also Σ P · dP of
 * every query, for the gradient of the sinks.
 *
 * Releases: V after dP; Q and dO after the last dP; K after dQ, which reads it a second time. */
template <typename T, int WIDE, bool CAP, bool SUMS>
__device__ inline void multiply_queries(const attention_problem &p, const attention_data &data,
                                        const queries_block<WIDE> &block, int group)
{
    typedef queries_shape<WIDE> z;
    constexpr int N = z::N, KEYS = z::KEYS, ROWS = z::ROWS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
    const uint32_t q = shared_address(block.shared + z::Q) + group * 64 * 128,
                   dout = shared_address(block.shared + z::DOUT) + group * 64 * 128,
                   keys = shared_address(block.shared + z::K), values = shared_address(block.shared + z::V);
    const float unseen = unseen_product(p);
    int step = 0;
    begin_turns<z::GROUPS>(group);
    for (int tiles = 0;; tiles++) {
        block.own.await_full(tiles);
        const attention_item item = *block.item;
        const attention_tile &tile = item.tile;
        if (item.head < 0) break;
        const int first = first_key_of<KEYS>(p, tile), end = end_key_of<ROWS>(p, tile);
        const int row0 = tile.start + warp * 16;
        int j = first;
        float dq[WIDE / 8][4] = {}, s[N][4], d[N][4], lse[2], delta[2], sums[2] = {};
        uint32_t slopes[N / 2][4];
        /* lse and delta: a lane computes those of row lane / 2 of the warp's 16. Its scores are in
         * rows lane / 4 and lane / 4 + 8, so it gets their values by shuffles. */
        const int own_row = row0 + lane / 2, half_row = lane / 4 * 2;
        const bool keeps = lane % 2 == 0 && own_row < tile.n;
        const int64_t row_at = static_cast<int64_t>(item.head) * p.tokens + tile.first + own_row;
        float own_lse = 0;
        if (own_row < tile.n)
            own_lse = data.lse[static_cast<int64_t>(tile.first + own_row) * p.heads + item.head] * LOG2_E;
        if (keeps) data.lse2[row_at] = own_lse;
        for (int half = 0; half < 2; half++) lse[half] = __shfl_sync(WARP, own_lse, half_row + half * 16);
        /* delta = Σ dO·O of the rows, while the first products run. */
        auto make_delta = [&]() {
            block.out.await_full(tiles);
            float sum = multiply_rows<T, ROWS, WIDE>(block.shared + z::DOUT, block.shared + z::OUT,
                                                     warp * 16);
            if (keeps) data.delta[row_at] = sum;
            for (int half = 0; half < 2; half++) delta[half] = __shfl_sync(WARP, sum, half_row + half * 16);
        };
        auto lse_of = [&](int, int e) { return lse[e / 2]; };
        auto send_s = [&]() {
            multiply_tiles<T, ROWS, WIDE>(s, q, keys + step % z::STAGES * z::TILE);
            wgmma_commit();
        };
        auto send_dp = [&]() {
            multiply_tiles<T, ROWS, WIDE>(d, dout, values + step % z::STAGES * z::TILE);
            wgmma_commit();
        };
        auto send_dq = [&]() {
            multiply_scores<T>(dq, slopes, keys + step % z::STAGES * z::TILE);
            wgmma_commit();
        };
        for (;; step++) {
            block.keys.await_full(step);
            block.values.await_full(step);
            begin_turn<z::GROUPS>(group);
            send_s();
            send_dp();
            end_turn<z::GROUPS>(group);
            if (j == first) make_delta();
            wgmma_wait<1>();
            wgmma_settle(s);
            if (!all_seen(p, row0, 16, j, KEYS, tile.n)) hide_keys(p, s, row0, j, tile.n, unseen);
            make_weights<CAP>(p, s, lse_of);
            wgmma_settle(s);
            block.values.await_full(step); /* complete already; keeps P before the wait below */
            wgmma_wait<0>();
            wgmma_settle(d);
            block.values.release(step);
            if (j + KEYS >= end) block.own.release(tiles);
            if constexpr (SUMS) add_sums<CAP>(p, s, d, lse, sums);
            make_slopes<T, CAP>(p, s, d, slopes, lse_of, [&](int, int e) { return delta[e / 2]; });
            wgmma_fence();
            send_dq();
            wgmma_wait<0>();
            wgmma_settle(dq);
            block.keys.release(step);
            j += KEYS;
            if (j >= end) break;
        }
        step++;

        const float scale[2] = {p.scale, p.scale};
        int64_t at = (tile.first + tile.start) * data.dq_step + item.head * int64_t{p.size};
        if constexpr (SUMS)
            if (data.sums) end_sums(p, data, tile, item.head, row0, sums);
        if (data.dq)
            store_lines<ROWS>(block.shared + z::OUT, static_cast<T *>(data.dq) + at, data.dq_step, warp * 16,
                              tile.n - tile.start, dq, scale, p);
        fence_proxy_async(); /* the tile was written by stores; TMA writes it next */
        block.out.release(tiles);
    }
}

/* One block per multiprocessor, roles as in forward_sm90. Block 0 checks cu_seqlens. */
template <typename T, int WIDE, bool CAP, bool SUMS>
__global__ void __launch_bounds__(queries_shape<WIDE>::THREADS, 1)
    backward_queries_sm90(const __grid_constant__ attention_problem p,
                          const __grid_constant__ attention_data data,
                          const __grid_constant__ attention_maps maps, const attention_items items)
{
    typedef queries_shape<WIDE> z;
    extern __shared__ char raw[];
    queries_block<WIDE> block(aligned(raw));
    if (blockIdx.x == 0) check_sequences(p);
    if (threadIdx.x == 0) block.make_barriers();
    __syncthreads();
    int group = group_of_warps();
    if (group == 0) {
        setmaxnreg_dec<z::FEEDER>();
        if (threadIdx.x < 32 || !p.wide) feed_queries<T, WIDE>(p, data, maps, items, block);
    } else {
        setmaxnreg_inc<REGISTERS_LEFT<z::GROUPS, z::FEEDER>>();
        multiply_queries<T, WIDE, CAP, SUMS>(p, data, block, group - 1);
    }
}

} // namespace nbl_cuda
#endif
