/* attention_feed.cuh - how the kernels of attention on Hopper get their work and their tiles. Internal to
 * the CUDA kernels; for files compiled for sm_90a.
 *
 * Blocks stay, one to a multiprocessor: warpgroup 0 is the feeder, the others make products. The feeder
 * draws item after item (longest walks first: whoever is free takes the next, so that all end together; who
 * it was does not show in the results) and keeps the copy engine ahead of the products, over the border
 * between two items too. Where rows do not start at multiples of 16 bytes the copy engine cannot read them:
 * all threads of the feeder then copy, slowly, to the same places.
 *
 * A tile is as attention_tiles.cuh says. Rows past the end of their sequence must be zeros, since a weight
 * of 0 times the neighbour's NaN is NaN: the copy engine knows only the end of the last one, so the feeder
 * clears the others' itself. */
#ifndef NBL_CUDA_ATTENTION_FEED_CUH
#define NBL_CUDA_ATTENTION_FEED_CUH

#include "ops/gemm/cuda/gemm_sm90_mma.cuh"
#include "ops/gemm/cuda/tensor_map.cuh"
#include "ops/gemm/cuda/wgmma.cuh"

namespace nbl_cuda
{

using nbl_sm90::fence_proxy_async;
using nbl_sm90::mbarrier_arrive_after_copies;
using nbl_sm90::mbarrier_arrive_cluster;
using nbl_sm90::mbarrier_expect_tx;
using nbl_sm90::mbarrier_init;
using nbl_sm90::mbarrier_init_fence;
using nbl_sm90::mbarrier_wait;
using nbl_sm90::setmaxnreg_dec;
using nbl_sm90::setmaxnreg_inc;
using nbl_sm90::tma_load;
using nbl_sm90::wgmma_commit;
using nbl_sm90::wgmma_fence;
using nbl_sm90::wgmma_settle;
using nbl_sm90::wgmma_wait;

constexpr int BOX_ROWS = 64; /* of 64 columns: what one copy brings */

/* [T, heads, D] each, as the copy engine knows them; nothing in them where it cannot. */
struct attention_maps {
    CUtensorMap q, k, v, out, dout;
};

/* Tiles of heads: numbers from 0, in the order in which blocks should take them. */
struct attention_items {
    unsigned *drawn; /* zero at the start */
    int count;
};
/* What a feeder tells the other warpgroups about the tile that it sends them. */
struct attention_item {
    attention_tile tile;
    int head; /* -1: there are no more */
};

/* Registers of a thread of the others, where those of the feeder have FEEDER: all together what a block has at
 * its start, with one block to a multiprocessor, or two where GROUPS is 1. Who asks for more waits for ever. */
template <int GROUPS, int FEEDER>
constexpr int REGISTERS_LEFT = ((GROUPS == 1 ? 256 : 504) - FEEDER) / GROUPS;

/* The tile with the rank-th longest walk in a causal pack without a window (others are right too, in some order):
 * of queries that is the last of its sequence, of keys the first. A walk of w tiles belongs to every sequence
 * of at least w tiles, so that Σ max(tiles - w + 1, 0) walks are not shorter. All lanes of a warp call it;
 * false: there are not so many. Packs of more sequences than lanes have enough tiles for any order. */
template <int TILE>
__device__ inline bool find_ranked(const attention_problem &p, int rank, bool of_keys, attention_tile *tile)
{
    if (p.sequences >= 32) {
        int slots = p.tokens / TILE + p.sequences;
        return find_tile<TILE>(p, of_keys ? rank : slots - 1 - rank, tile);
    }
    int lane = threadIdx.x % 32;
    int first = min(max(lane <= p.sequences ? p.at[lane] : 0, 0), p.tokens);
    int n = max(__shfl_down_sync(WARP, first, 1) - first, 0);
    int tiles = lane < p.sequences ? (n + TILE - 1) / TILE : 0;
    int walk = 0, too_long = p.tokens / TILE + 2;
    while (too_long - walk > 1) {
        int middle = (walk + too_long) / 2;
        if (static_cast<int>(__reduce_add_sync(WARP, max(tiles - middle + 1, 0))) > rank) walk = middle;
        else too_long = middle;
    }
    if (walk == 0) return false;
    int before = __reduce_add_sync(WARP, max(tiles - walk, 0));
    unsigned owners = __ballot_sync(WARP, tiles >= walk);
    bool chosen = tiles >= walk && __popc(owners & ((1u << lane) - 1)) == rank - before;
    int owner = __ffs(static_cast<int>(__ballot_sync(WARP, chosen))) - 1;
    *tile = {__shfl_sync(WARP, first, owner), __shfl_sync(WARP, n, owner),
             (of_keys ? __shfl_sync(WARP, tiles, owner) - walk : walk - 1) * TILE};
    return true;
}

/* The keys that a tile of queries walks over, in whole tiles from the first. */
template <int KEYS> __device__ inline int first_key_of(const attention_problem &p, const attention_tile &tile)
{
    return first_key(p, tile.start) / KEYS * KEYS;
}
template <int ROWS> __device__ inline int end_key_of(const attention_problem &p, const attention_tile &tile)
{
    return end_key(p, min(tile.start + ROWS, tile.n) - 1, tile.n);
}

/* ---- named barriers: 0 is that of __syncthreads, 1 the feeder's, then one for each turn ---- */

constexpr int FEEDERS = 1, TURNS = 2;

/* Warpgroups take turns at sending products: while one's are made, the others do their arithmetic. A
 * warpgroup alone has no one to wait for. */
template <int GROUPS> __device__ inline void end_turn(int group)
{
    if constexpr (GROUPS > 1)
        asm volatile("bar.arrive %0, 256;" ::"r"(TURNS + (group + 1 == GROUPS ? 0 : group + 1)) : "memory");
}
template <int GROUPS> __device__ inline void begin_turn(int group)
{
    if constexpr (GROUPS > 1) asm volatile("bar.sync %0, 256;" ::"r"(TURNS + group) : "memory");
    wgmma_fence();
}
template <int GROUPS> __device__ inline void begin_turns(int group)
{
    if (group == GROUPS - 1) end_turn<GROUPS>(group); /* the first turn is the first one's */
}

/* ---- rings ---- */

/* STAGES places that are full and empty in turn; `step` counts from 0. Barriers are 8 bytes each. */
template <int STAGES> struct ring {
    uint32_t barriers;
    static constexpr int BYTES = STAGES * 16;

    /* A place is full after `sends`, and empty when every warp of the readers has released it. */
    __device__ void make(int sends, int readers) const
    {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(barriers + i * 16, static_cast<uint32_t>(sends));
            mbarrier_init(barriers + i * 16 + 8, static_cast<uint32_t>(readers));
        }
    }
    __device__ static int slot(int step)
    {
        return step % STAGES;
    }
    __device__ uint32_t full(int step) const
    {
        return barriers + slot(step) * 16;
    }
    __device__ void await_full(int step) const
    {
        mbarrier_wait(full(step), step / STAGES & 1);
    }
    __device__ void await_empty(int step) const
    {
        mbarrier_wait(full(step) + 8, (step / STAGES & 1) ^ 1);
    }
    __device__ void release(int step) const
    {
        if (threadIdx.x % 32 == 0) mbarrier_arrive_cluster(full(step) + 8);
    }
};

/* ---- the feeder ---- */

struct feeder {
    const attention_problem &p;
    uint32_t spare;      /* a barrier of its own */
    uint32_t parity = 0; /* of the next wait for it */

    __device__ bool leads() const
    {
        return threadIdx.x == 0;
    }

    /* ROWS rows of a head from `token`, of which `valid` exist, to a tile. */
    template <typename T, int ROWS, int WIDE>
    __device__ void send(char *to, uint32_t full, const CUtensorMap *map, const void *tensor, int heads,
                         int head, int token, int valid)
    {
        if (!p.wide) {
            int64_t step = static_cast<int64_t>(heads) * p.size;
            const T *from = static_cast<const T *>(tensor) + (token * int64_t{heads} + head) * p.size;
            load_tile<T, 128, ROWS, WIDE>(to, from, step, valid, p);
            fence_proxy_async();
            asm volatile("bar.sync %0, 128;" ::"n"(FEEDERS) : "memory");
            if (leads()) mbarrier_arrive_cluster(full);
            return;
        }
        bool whole = valid >= ROWS || token + valid >= p.tokens;
        uint32_t at = shared_address(to), barrier = whole ? full : spare;
        if (leads()) {
            mbarrier_expect_tx(barrier, ROWS * WIDE * 2);
#pragma unroll
            for (int column = 0; column < WIDE; column += 64)
#pragma unroll
                for (int row = 0; row < ROWS; row += BOX_ROWS)
                    tma_load(at + (column / 64 * ROWS + row) * 128, map, column, head, token + row, barrier);
        }
        if (whole) return;
        __syncwarp();
        mbarrier_wait(spare, parity);
        parity ^= 1;
        for (int i = valid * 8 + threadIdx.x; i < ROWS * 8; i += 32)
#pragma unroll
            for (int panel = 0; panel < WIDE / 64; panel++)
                *reinterpret_cast<int4 *>(to + panel * ROWS * 128 + i * 16) = make_int4(0, 0, 0, 0);
        fence_proxy_async();
        __syncwarp();
        if (leads()) mbarrier_arrive_cluster(full);
    }

    /* Tells the others that there is nothing more; `sends` as many as a ring waits for. */
    __device__ void finish(attention_item *item, uint32_t full, int sends) const
    {
        if (!leads()) return;
        *item = {{}, -1};
        for (int i = 0; i < sends; i++) mbarrier_arrive_cluster(full);
    }

    /* Calls body(item) for every item of this block. The draw is under way while the item is fed. */
    template <typename Body> __device__ void for_items(const attention_items &items, Body body) const
    {
        int item = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
        while (item < items.count) {
            unsigned drawn = 0;
            if (p.wide && leads()) drawn = atomicAdd(items.drawn, 1u);
            body(item);
            item = p.wide ? static_cast<int>(__shfl_sync(WARP, drawn, 0)) + step : item + step;
        }
    }
};

/* ---- results ---- */

/* 16 rows of a warp's accumulators, as store_rows, by way of the same rows of a tile of ROWS that no one else
 * uses: whole lines instead of 4 bytes at a time. */
template <int ROWS, typename T, int N>
__device__ inline void store_lines(char *tile, T *to, int64_t step, int row, int valid,
                                   const float (&sums)[N][4], const float (&factor)[2],
                                   const attention_problem &p)
{
    if (!p.wide) return store_rows(to, step, row, valid, sums, factor, 0, p);
    int lane = threadIdx.x % 32, chunk = lane % N;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < N; n += 2)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         shared_address(tile) + address_of<ROWS>(row + lane % 16, n + lane / 16)),
                     "r"(pair_of<T>(sums[n][0] * factor[0], sums[n][1] * factor[0])),
                     "r"(pair_of<T>(sums[n][2] * factor[1], sums[n][3] * factor[1])),
                     "r"(pair_of<T>(sums[n + 1][0] * factor[0], sums[n + 1][1] * factor[0])),
                     "r"(pair_of<T>(sums[n + 1][2] * factor[1], sums[n + 1][3] * factor[1]))
                     : "memory");
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; i += 32 / N) {
        int r = row + i + lane / N;
        int4 line = *reinterpret_cast<const int4 *>(tile + address_of<ROWS>(r, chunk));
        if (r < valid && chunk * 8 < p.size) *reinterpret_cast<int4 *>(to + r * step + chunk * 8) = line;
    }
}

/* ---- the host's side ---- */

/* False: the driver has no copy engine to offer, or it refuses. */
static inline bool attention_maps_of(const nbl__call *call, const nbl__attention *a,
                                     const attention_problem &p, attention_maps *maps)
{
    const nbl_tensor *from[5] = {&a->q, &a->k, &a->v, &a->out, &a->dout};
    CUtensorMap *to[5] = {&maps->q, &maps->k, &maps->v, &maps->out, &maps->dout};
    nbl_sm90::map_encoder encode = nbl_sm90::find_encoder(nbl__call_cuda(call));
    memset(maps, 0, sizeof *maps);
    if (!p.wide || p.tokens == 0) return true;
    for (int i = 0; encode != NULL && i < 5; i++) {
        cuuint64_t size = static_cast<cuuint64_t>(p.size), heads = static_cast<cuuint64_t>(from[i]->shape[1]);
        cuuint64_t sizes[3] = {size, heads, static_cast<cuuint64_t>(p.tokens)};
        cuuint64_t strides[2] = {size * 2, heads * size * 2};
        cuuint32_t box[3] = {64, 1, BOX_ROWS}, ones[3] = {1, 1, 1};
        if (from[i]->data == NULL) continue;
        if (encode(to[i],
                   a->dtype == NBL_DTYPE_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                             : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                   3, from[i]->data, sizes, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
            return false;
    }
    return encode != NULL;
}

/* Tiles of `rows` rows of each head; the counter lies where libraries work, which are not at work now. */
static inline attention_items items_of(const nbl__call *call, const attention_problem &p, int rows, int heads)
{
    cudaMemsetAsync(nbl__call_cuda(call)->workspace, 0, sizeof(unsigned), stream_of(call));
    return {static_cast<unsigned *>(nbl__call_cuda(call)->workspace),
            (p.tokens / rows + p.sequences) * heads};
}

} // namespace nbl_cuda
#endif
