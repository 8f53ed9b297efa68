/* attention_scheduler.cuh - how the attention kernels for compute capability 9.0 get work and
 * tiles. Internal to the CUDA kernels; for files compiled for sm_90a.
 *
 * Blocks are persistent: as many as fit, until no item is left. Warpgroup 0 is the feeder, the
 * others compute products.
 *
 *     feeder        for each item: wait until a slot is empty → TMA → the slot's `full` barrier
 *     warpgroups    wait for `full` → wgmma → release the slot (`empty`)
 *
 * The feeder takes items from a counter in global memory, longest walks first, so that all blocks
 * end at about the same time. Which block computes an item does not change a result. The feeder
 * runs ahead of the products, also across the border between two items.
 *
 * TMA needs rows that start at multiples of 16 bytes (p.wide). Otherwise all 128 threads of the
 * feeder copy element by element to the same slots, which is slow, and items are dealt out in a
 * fixed order.
 *
 * Tiles are those of attention_tiles.cuh. Rows past the end of their sequence must be zeros,
 * because a weight of 0 times a NaN of the next sequence is NaN. TMA writes zeros only past the end
 * of the tensor, so the feeder clears the rows past every other sequence itself. */
#ifndef NBL_ATTENTION_SCHEDULER_CUH
#define NBL_ATTENTION_SCHEDULER_CUH

#include "ops/gemm/cuda/gemm_sm90_mma.cuh"
#include "ops/gemm/cuda/tensor_map.cuh"
#include "ops/attention/cuda/attention_wgmma.cuh"

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

constexpr int BOX_ROWS = 64; /* one TMA copy brings BOX_ROWS rows of 64 columns */

/* Tensor maps of [T, heads, D]. All zeros for tensors that are absent, and without p.wide. */
struct attention_maps {
    CUtensorMap q, k, v, out, dout;
};

/* Item i is a tile of a head. Items are numbered from 0 in the order in which blocks take them. */
struct attention_items {
    unsigned *drawn; /* counter in global memory; 0 when the kernel starts */
    int count;
};
/* The item that the feeder has sent, in shared memory for the other warpgroups. */
struct attention_item {
    attention_tile tile;
    int head; /* -1: no more items */
};

/* Registers per thread of the product warpgroups when the feeder keeps FEEDER. The sum over the
 * warpgroups is what the block got at launch: 3 · 168 with one block per multiprocessor, 2 · 128
 * with two blocks (GROUPS = 1). setmaxnreg.inc with a larger number would never return. */
template <int GROUPS, int FEEDER>
constexpr int REGISTERS_LEFT = ((GROUPS == 1 ? 256 : 504) - FEEDER) / GROUPS;

/* Finds the tile with the rank-th longest walk. False: fewer tiles than that. All lanes of a warp
 * call it; lane s looks at sequence s.
 *
 * In a causal pack the last tile of queries of a sequence has the longest walk, and the first tile
 * of keys. A sequence of n tiles has walks of 1, 2, … n tiles, so Σ max(n - w + 1, 0) walks have w
 * tiles or more. A binary search finds the w of this rank. Without `causal`, or with a window,
 * every tile is still found once, in some order. Packs of 32 and more sequences take the order of
 * slots: they have enough tiles for any order. */
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

/* The keys [first, end) that a tile of queries walks over; first is a multiple of KEYS. */
template <int KEYS> __device__ inline int first_key_of(const attention_problem &p, const attention_tile &tile)
{
    return first_key(p, tile.start) / KEYS * KEYS;
}
template <int ROWS> __device__ inline int end_key_of(const attention_problem &p, const attention_tile &tile)
{
    return end_key(p, min(tile.start + ROWS, tile.n) - 1, tile.n);
}

/* ---- named barriers: 0 is __syncthreads, 1 the feeder's, then one per product warpgroup ---- */

constexpr int FEEDERS = 1, TURNS = 2;

/* Warpgroups issue products in turns: while the tensor cores multiply for one, the others do their
 * softmax. begin_turn waits for the barrier of this group (128 threads of its own and 128 arrivals
 * of the group before it); end_turn arrives at the next group's. One group alone takes no turns.
 * The wgmma_fence orders earlier writes of the operands' registers before the products. */
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
    if (group == GROUPS - 1) end_turn<GROUPS>(group); /* group 0 has the first turn */
}

/* ---- rings ---- */

/* A ring of STAGES slots, each with two mbarriers of 8 bytes: full, then empty. `step` counts the
 * uses from 0: use `step` is in slot step % STAGES, in phase step / STAGES.
 *
 *     feeder   await_empty(step) → writes → `full`        the first STAGES waits return at once
 *     readers  await_full(step) → reads → release(step) */
template <int STAGES> struct ring {
    uint32_t barriers;
    static constexpr int BYTES = STAGES * 16;

    /* A slot is full after `sends` arrivals and their bytes, empty after `readers` warps have
     * released it. */
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
    uint32_t spare;      /* a barrier that only the feeder uses */
    uint32_t parity = 0; /* of the next wait for `spare` */

    __device__ bool leads() const
    {
        return threadIdx.x == 0;
    }

    /* Sends ROWS rows of a head from `token` on to the tile `to`; `valid` of them exist. Arrives
     * once at `full`. `step`: elements from a token to the next. Three ways: rows that TMA cannot read; rows up to the end of the sequence or
     * of the tensor, by TMA alone; else TMA to `spare`, then zeros over the rows of the next
     * sequence. */
    template <typename T, int ROWS, int WIDE>
    __device__ void send(char *to, uint32_t full, const CUtensorMap *map, const void *tensor,
                         int64_t step, int head, int token, int valid)
    {
        if (!p.wide) {
            const T *from = static_cast<const T *>(tensor) + token * step + head * int64_t{p.size};
            load_tile<T, 128, ROWS, WIDE>(to, from, step, valid, p);
            /* Ordinary writes must be visible to wgmma, and all of them done before the arrival. */
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
        /* The rows are there; now the warp clears those past the end and makes that visible to
         * wgmma. */
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

    /* Sends the item that ends the kernel. `sends`: arrivals that the ring expects. */
    __device__ void finish(attention_item *item, uint32_t full, int sends) const
    {
        if (!leads()) return;
        *item = {{}, -1};
        for (int i = 0; i < sends; i++) mbarrier_arrive_cluster(full);
    }

    /* Calls body(item) for every item of this block. The first is blockIdx.x. The next is requested
     * before body(item) and read after it, so the atomic's latency is hidden. */
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

/* Like store_rows, for 16 rows of a warp, but in whole lines of 16 bytes per lane. The rows go
 * through the same rows of `tile` in shared memory, which no other warp uses. */
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

/* ---- host ---- */

/* Encodes the tensor maps. False: the driver has no cuTensorMapEncodeTiled, or it refuses. */
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
        cuuint64_t strides[2] = {size * 2, static_cast<cuuint64_t>(step_of(from[i])) * 2};
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

/* Items for tiles of `rows` rows of each head. The counter is in the workspace of the libraries
 * (cuBLASLt), which no library call uses while this stream runs the kernel. */
static inline attention_items items_of(const nbl__call *call, const attention_problem &p, int rows, int heads)
{
    void *counter = nbl__call_workspace(call);
    cudaMemsetAsync(counter, 0, sizeof(unsigned), stream_of(call));
    return {static_cast<unsigned *>(counter), (p.tokens / rows + p.sequences) * heads};
}

} // namespace nbl_cuda
#endif
