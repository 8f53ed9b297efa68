/* attention_backward_dkv.cuh - backward over queries for dK and dV, for compute capability 9.0.
 * Internal to attention_backward_sm90.cu.
 *
 * A block has a feeder and GROUPS product warpgroups of 64 keys each. GROUPS is 2, with turns,
 * where there are enough items for all multiprocessors, else 1, with two blocks per multiprocessor.
 * The results are the same bits.
 *
 *     in its turn       issue Sᵀ = K·Qᵀ and dPᵀ = V·dOᵀ
 *     out of its turn   Pᵀ while dPᵀ runs, then dSᵀ, then dV += Pᵀ·dO and dK += dSᵀ·Q
 *
 * The last two products do not wait for a turn. The walk goes over all query heads of the key
 * head's group, so no sum leaves the registers of its warpgroup.
 *
 * Shared memory, heads of up to 128, GROUPS = 2 (1): K 32 KiB (16) | V 32 (16) | Q 3 x 16 (2 x 16)
 * | dO 3 x 16 (2 x 16) | dK, dV on their way out 32 (in the tile of K) | lse, delta | barriers,
 * item: 195 KiB (98). Cost: 8·D FLOP per (query, key) pair. Limit: the tensor cores. */
#ifndef NBL_ATTENTION_BACKWARD_DKV_CUH
#define NBL_ATTENTION_BACKWARD_DKV_CUH

#include "ops/attention/cuda/attention_backward_scores.cuh"

namespace nbl_cuda
{

/* Sizes and offsets in shared memory, in bytes. */
template <int WIDE, int COUNT> struct keys_shape {
    static constexpr int GROUPS = COUNT, THREADS = (1 + GROUPS) * 128, ROWS = GROUPS * 64;
    static constexpr int FEEDER = WIDE == 64 ? 40 : 24; /* registers per thread of the feeder */
    static constexpr int QUERIES = 64, N = QUERIES / 8, STAGES = (GROUPS == 1 ? 2 : 3) * (128 / WIDE);
    static constexpr int K = 0, OWN = ROWS * WIDE * 2, V = OWN, TILE = QUERIES * WIDE * 2, Q = V + OWN,
                         DOUT = Q + STAGES * TILE, OUT = GROUPS == 1 ? K : DOUT + STAGES * TILE,
                         NUMBERS = GROUPS == 1 ? DOUT + STAGES * TILE : OUT + OWN,
                         LINE = 2 * QUERIES * 4; /* lse and delta */
    static constexpr int BARRIERS = NUMBERS + STAGES * LINE;
    static constexpr int ITEM = BARRIERS + ring<1>::BYTES + ring<STAGES>::BYTES + 8;
    static constexpr int BYTES = TILE_ALIGNMENT + ITEM + static_cast<int>(sizeof(attention_item));
};

template <int WIDE, int GROUPS> struct keys_block {
    typedef keys_shape<WIDE, GROUPS> z;
    char *shared;
    ring<1> own;             /* K, V and the item */
    ring<z::STAGES> queries; /* Q, dO, lse and delta */
    uint32_t spare;
    attention_item *item;

    __device__ explicit keys_block(char *at) : shared(at)
    {
        own.barriers = shared_address(shared + z::BARRIERS);
        queries.barriers = own.barriers + ring<1>::BYTES;
        spare = queries.barriers + ring<z::STAGES>::BYTES;
        item = reinterpret_cast<attention_item *>(shared + z::ITEM);
    }
    __device__ void make_barriers() const
    {
        own.make(2, 4 * GROUPS);
        /* Two tiles, and the copies of lse and delta by each lane. */
        queries.make(2 + 32, 4 * GROUPS);
        mbarrier_init(spare, 1);
        mbarrier_init_fence();
    }
    /* The first query that sees a tile of keys, rounded down to whole tiles, and how many tiles
     * follow. */
    __device__ static int first_query_of(const attention_problem &p, const attention_tile &tile)
    {
        return first_query(p, tile.start) / z::QUERIES * z::QUERIES;
    }
    __device__ static int walk_of(const attention_problem &p, const attention_tile &tile)
    {
        int last = min(tile.start + z::ROWS, tile.n) - 1;
        return (end_query(p, last, tile.n) - first_query_of(p, tile) + z::QUERIES - 1) / z::QUERIES;
    }
};

/* The feeder: per item K and V, then for each query head of the group Q, dO, lse and delta of the
 * walk. A slot of the ring holds all four. */
template <typename T, int WIDE, int GROUPS>
__device__ inline void feed_keys(const attention_problem &p, const attention_data &data,
                                 const attention_maps &maps, const attention_items &items,
                                 const keys_block<WIDE, GROUPS> &block)
{
    typedef keys_shape<WIDE, GROUPS> z;
    feeder feeder = {p, block.spare};
    int tiles = 0, step = 0;
    /* lse2 and delta of 64 queries, by cp.async of warp 0; zeros past the end. */
    auto send_numbers = [&](int h, int token, int valid) {
        uint32_t to = shared_address(block.shared + z::NUMBERS) + step % z::STAGES * z::LINE;
        int64_t at = static_cast<int64_t>(h) * p.tokens + token;
        if (threadIdx.x >= 32) return;
#pragma unroll
        for (int r = threadIdx.x; r < z::QUERIES; r += 32) {
            int64_t from = at + (r < valid ? r : 0);
            copy_4(to + r * 4, data.lse2 + from, r < valid);
            copy_4(to + (z::QUERIES + r) * 4, data.delta + from, r < valid);
        }
        mbarrier_arrive_after_copies(block.queries.full(step));
    };
    feeder.for_items(items, [&](int number) {
        attention_tile tile;
        int head = number % p.key_heads, rank = number / p.key_heads, ranks = items.count / p.key_heads;
        if (GROUPS == 1 && rank >= ranks / 2)
            /* Two blocks share a multiprocessor: a long walk beside a short one. */
            rank = ranks - 1 - (rank - ranks / 2);
        if (!find_ranked<z::ROWS>(p, rank, true, &tile)) return;
        int first = block.first_query_of(p, tile), walk = block.walk_of(p, tile);
        int token = tile.first + tile.start, valid = tile.n - tile.start;
        block.own.await_empty(tiles);
        if (feeder.leads()) *block.item = {tile, head};
        feeder.send<T, z::ROWS, WIDE>(block.shared + z::K, block.own.full(tiles), &maps.k, data.k,
                                      data.k_step, head, token, valid);
        feeder.send<T, z::ROWS, WIDE>(block.shared + z::V, block.own.full(tiles), &maps.v, data.v,
                                      data.v_step, head, token, valid);
        tiles++;
        for (int h = head * p.group; h < (head + 1) * p.group; h++)
            for (int i = first; i < first + walk * z::QUERIES; i += z::QUERIES, step++) {
                int slot = step % z::STAGES * z::TILE;
                uint32_t full = block.queries.full(step);
                block.queries.await_empty(step);
                feeder.send<T, z::QUERIES, WIDE>(block.shared + z::Q + slot, full, &maps.q, data.q,
                                                 data.q_step, h, tile.first + i, tile.n - i);
                send_numbers(h, tile.first + i, tile.n - i);
                feeder.send<T, z::QUERIES, WIDE>(block.shared + z::DOUT + slot, full, &maps.dout, data.dout,
                                                 out_step(p), h, tile.first + i, tile.n - i);
            }
    });
    block.own.await_empty(tiles);
    feeder.finish(block.item, block.own.full(tiles), 2);
}

/* A product warpgroup: 64 keys of every item; a warp has 16 of them. Scores are transposed, so lse
 * and delta belong to columns: they come from shared memory with the tile. */
template <typename T, int WIDE, int GROUPS, bool CAP>
__device__ inline void multiply_keys(const attention_problem &p, const attention_data &data,
                                     const keys_block<WIDE, GROUPS> &block, int group)
{
    typedef keys_shape<WIDE, GROUPS> z;
    constexpr int N = z::N, QUERIES = z::QUERIES, ROWS = z::ROWS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
    const uint32_t k = shared_address(block.shared + z::K) + group * 64 * 128,
                   v = shared_address(block.shared + z::V) + group * 64 * 128,
                   queries = shared_address(block.shared + z::Q),
                   douts = shared_address(block.shared + z::DOUT);
    const float unseen = unseen_product(p);
    int step = 0;
    begin_turns<GROUPS>(group);
    for (int tiles = 0;; tiles++) {
        block.own.await_full(tiles);
        const attention_item item = *block.item;
        const attention_tile &tile = item.tile;
        if (item.head < 0) break;
        const int first = block.first_query_of(p, tile), walk = block.walk_of(p, tile);
        const int j0 = tile.start + warp * 16, end = first + walk * QUERIES;
        int left = walk * p.group, i0 = first;
        float dk[WIDE / 8][4] = {}, dv[WIDE / 8][4] = {}, s[N][4], d[N][4];
        uint32_t weights[N / 2][4], slopes[N / 2][4];
        for (;; step++) {
            const int slot = step % z::STAGES * z::TILE;
            const float2 *lse = reinterpret_cast<const float2 *>(block.shared + z::NUMBERS +
                                                                 step % z::STAGES * z::LINE) +
                                lane % 4;
            const float2 *delta = lse + QUERIES / 2;
            auto lse_of = [&](int n, int e) { return e % 2 ? lse[n * 4].y : lse[n * 4].x; };
            auto delta_of = [&](int n, int e) { return e % 2 ? delta[n * 4].y : delta[n * 4].x; };
            block.queries.await_full(step);
            begin_turn<GROUPS>(group);
            multiply_tiles<T, ROWS, WIDE>(s, k, queries + slot);
            wgmma_commit();
            multiply_tiles<T, ROWS, WIDE>(d, v, douts + slot);
            wgmma_commit();
            end_turn<GROUPS>(group);
            wgmma_wait<1>();
            wgmma_settle(s);
            if (!all_seen(p, i0, QUERIES, j0, 16, tile.n)) hide_queries(p, s, j0, i0, tile.n, unseen);
            make_weights<CAP>(p, s, lse_of);
            round_weights<T, CAP>(p, s, weights, lse_of);
            wgmma_settle(s);
            block.queries.await_full(step); /* complete already; keeps P before the wait below */
            wgmma_wait<0>();
            wgmma_settle(d);
            make_slopes<T, CAP>(p, s, d, slopes, lse_of, delta_of);
            wgmma_fence();
            multiply_scores<T>(dv, weights, douts + slot);
            multiply_scores<T>(dk, slopes, queries + slot);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_settle(dk);
            wgmma_settle(dv);
            block.queries.release(step);
            if (--left == 0) break;
            i0 = i0 + QUERIES < end ? i0 + QUERIES : first;
        }
        step++;

        const float one[2] = {1, 1}, scale[2] = {p.scale, p.scale};
        int64_t token = tile.first + tile.start, column = item.head * int64_t{p.size};
        char *out = block.shared + z::OUT;
        /* `out` is K's tile: all warps must have read K. */
        if constexpr (GROUPS == 1) nbl_sm90::warpgroup_sync(TURNS);
        if (data.dk)
            store_lines<ROWS>(out, static_cast<T *>(data.dk) + token * data.dk_step + column, data.dk_step,
                              warp * 16, tile.n - tile.start, dk, scale, p);
        if (data.dv)
            store_lines<ROWS>(out, static_cast<T *>(data.dv) + token * data.dv_step + column, data.dv_step,
                              warp * 16, tile.n - tile.start, dv, one, p);
        /* The tile was written by stores; TMA writes it next. */
        if constexpr (GROUPS == 1) fence_proxy_async();
        block.own.release(tiles);
    }
}

/* One block per multiprocessor with GROUPS = 2, two with GROUPS = 1. Roles as in forward_sm90. */
template <typename T, int WIDE, int GROUPS, bool CAP>
__global__ void __launch_bounds__(keys_shape<WIDE, GROUPS>::THREADS, 3 - GROUPS)
    backward_keys_sm90(const __grid_constant__ attention_problem p,
                       const __grid_constant__ attention_data data,
                       const __grid_constant__ attention_maps maps, const attention_items items)
{
    typedef keys_shape<WIDE, GROUPS> z;
    extern __shared__ char raw[];
    keys_block<WIDE, GROUPS> block(aligned(raw));
    if (threadIdx.x == 0) block.make_barriers();
    __syncthreads();
    int group = group_of_warps();
    if (group == 0) {
        setmaxnreg_dec<z::FEEDER>();
        if (threadIdx.x < 32 || !p.wide) feed_keys<T, WIDE, GROUPS>(p, data, maps, items, block);
    } else {
        setmaxnreg_inc<REGISTERS_LEFT<GROUPS, z::FEEDER>>();
        multiply_keys<T, WIDE, GROUPS, CAP>(p, data, block, group - 1);
    }
}

} // namespace nbl_cuda
#endif
