/* attention_sm90.cu - forward attention of f16 and bf16 with wgmma, heads of up to 128. Compiled
 * for sm_90a.
 *
 * A block has a feeder warpgroup (attention_scheduler.cuh) and GROUPS = 2 product warpgroups of 64
 * queries each. The two take turns: while the products of one run, the other does its softmax.
 * Within a warpgroup S of the next keys and O += P·V of these keys are issued together, and the
 * softmax of the next keys runs beside the second product.
 *
 *     group 0   S1 issue, O0 issue | softmax 1 ........ | S2, O1 | softmax 2 ...
 *     group 1   .. softmax 0 ..... | S1, O0             | softmax 1 ........ | S2, O1
 *
 * Shared memory, heads of up to 128 (up to 64), in KiB: Q 32 (16), K 2 x 32 (4 x 16), V 2 x 32
 * (4 x 16), O 32 (16), then barriers and the item: 193 (161), so one block per multiprocessor.
 *
 * Cost: 4·D FLOP per (query, key) pair that is seen. Limit: the tensor cores at the rate of wgmma,
 * and the unit that computes 2^x (16 per cycle and multiprocessor). */
#include "ops/attention/cuda/attention_scheduler.cuh"

using namespace nbl_cuda;

namespace
{

template <int WIDE> struct forward_shape {
    static constexpr int GROUPS = 2, THREADS = (1 + GROUPS) * 128, ROWS = GROUPS * 64;
    static constexpr int FEEDER = 40; /* registers per thread of the feeder */
    static constexpr int KEYS = 128, N = KEYS / 8, STAGES = 256 / WIDE;
    /* Offsets in shared memory, in bytes. */
    static constexpr int Q = 0, K = ROWS * WIDE * 2, TILE = KEYS * WIDE * 2, V = K + STAGES * TILE,
                         OUT = V + STAGES * TILE, BARRIERS = OUT + ROWS * WIDE * 2;
    static constexpr int ITEM = BARRIERS + ring<1>::BYTES + 2 * ring<STAGES>::BYTES + 8;
    static constexpr int BYTES = TILE_ALIGNMENT + ITEM + static_cast<int>(sizeof(attention_item));
};

/* Shared memory of a block: addresses of tiles and barriers. */
template <int WIDE> struct forward_block {
    typedef forward_shape<WIDE> z;
    char *shared;
    ring<1> queries; /* Q; `item` is written with it */
    ring<z::STAGES> keys, values;
    uint32_t spare;
    attention_item *item;

    __device__ explicit forward_block(char *at) : shared(at)
    {
        uint32_t barriers = shared_address(shared + z::BARRIERS);
        queries.barriers = barriers;
        keys.barriers = queries.barriers + ring<1>::BYTES;
        values.barriers = keys.barriers + ring<z::STAGES>::BYTES;
        spare = values.barriers + ring<z::STAGES>::BYTES;
        item = reinterpret_cast<attention_item *>(shared + z::ITEM);
    }
    __device__ void make_barriers() const
    {
        /* One arrival of the feeder; one release per warp of the product warpgroups. */
        queries.make(1, 4 * z::GROUPS);
        keys.make(1, 4 * z::GROUPS);
        values.make(1, 4 * z::GROUPS);
        mbarrier_init(spare, 1);
        mbarrier_init_fence();
    }
};

/* The feeder: per item Q once, then K and V of its walk. K runs one tile ahead of V, in the order
 * in which the products need them: K0, K1, V0, K2, V1, … */
template <typename T, int WIDE>
__device__ inline void feed(const attention_problem &p, const attention_data &data,
                            const attention_maps &maps, const attention_items &items,
                            const forward_block<WIDE> &block)
{
    typedef forward_shape<WIDE> z;
    feeder feeder = {p, block.spare};
    int tiles = 0, step = 0; /* step: tiles of keys, over all items */
    feeder.for_items(items, [&](int number) {
        attention_tile tile;
        int head = number % p.heads, key_head = head / p.group;
        if (!find_ranked<z::ROWS>(p, number / p.heads, false, &tile)) return;
        int first = first_key_of<z::KEYS>(p, tile), end = end_key_of<z::ROWS>(p, tile);
        auto send_keys = [&](const ring<z::STAGES> &ring, int slot, const CUtensorMap *map, const void *from,
                             int64_t row, int at, int j) {
            ring.await_empty(at);
            feeder.send<T, z::KEYS, WIDE>(block.shared + slot + ring.slot(at) * z::TILE, ring.full(at), map,
                                          from, row, key_head, tile.first + j, tile.n - j);
        };
        block.queries.await_empty(tiles);
        if (feeder.leads()) *block.item = {tile, head};
        feeder.send<T, z::ROWS, WIDE>(block.shared + z::Q, block.queries.full(tiles++), &maps.q, data.q,
                                      data.q_step, head, tile.first + tile.start, tile.n - tile.start);
        send_keys(block.keys, z::K, &maps.k, data.k, data.k_step, step, first);
        for (int j = first; j < end; j += z::KEYS, step++) {
            if (j + z::KEYS < end)
                send_keys(block.keys, z::K, &maps.k, data.k, data.k_step, step + 1, j + z::KEYS);
            send_keys(block.values, z::V, &maps.v, data.v, data.v_step, step, j);
        }
    });
    block.queries.await_empty(tiles);
    feeder.finish(block.item, block.queries.full(tiles), 1);
}

/* A product warpgroup: 64 queries of every item; a warp has 16 of them. BENT: there is a cap or a
 * negative scale, so scores need make_logits. Otherwise a logit is the score times a positive
 * factor.
 *
 * The second values.await_full of a step returns at once, since that phase has completed. It is a
 * volatile access, so the compiler cannot move the softmax past it and behind wgmma_wait. */
template <typename T, int WIDE, bool BENT>
__device__ inline void multiply(const attention_problem &p, const attention_data &data,
                                const forward_block<WIDE> &block, int group)
{
    typedef forward_shape<WIDE> z;
    constexpr int N = z::N, KEYS = z::KEYS, ROWS = z::ROWS;
    const int warp = threadIdx.x / 32 - 4;
    const float factor = logit_factor(p);
    const uint32_t q = shared_address(block.shared + z::Q) + group * 64 * 128,
                   keys = shared_address(block.shared + z::K), values = shared_address(block.shared + z::V);
    int step = 0;
    begin_turns<z::GROUPS>(group);
    for (int tiles = 0;; tiles++) {
        block.queries.await_full(tiles);
        const attention_tile tile = block.item->tile;
        const int head = block.item->head;
        if (head < 0) break;
        const int end = end_key_of<ROWS>(p, tile), row0 = tile.start + warp * 16;
        int j = first_key_of<KEYS>(p, tile);
        float out[WIDE / 8][4] = {}, s[N][4], top[2], total[2], before[2];
        uint32_t weights[N / 2][4];
        /* Mask and softmax of the scores s of keys j … j + KEYS - 1. After the last scores Q is
         * free. */
        auto soften_keys = [&]() {
            if (j + KEYS >= end) block.queries.release(tiles);
            if constexpr (BENT) make_logits(p, s);
            if (!all_seen(p, row0, 16, j, KEYS, tile.n)) hide_keys(p, s, row0, j, tile.n, -INFINITY);
            soften(s, factor, top, total, before);
        };
        /* The first scores: no O yet to run beside them. */
        begin_rows(p, head, top, total);
        block.keys.await_full(step);
        wgmma_fence();
        multiply_tiles<T, ROWS, WIDE>(s, q, keys + block.keys.slot(step) * z::TILE);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_settle(s);
        block.keys.release(step);
        soften_keys();
        round_scores<T>(weights, s);
        while (j + KEYS < end) {
            block.keys.await_full(step + 1);
            begin_turn<z::GROUPS>(group);
            multiply_tiles<T, ROWS, WIDE>(s, q, keys + block.keys.slot(step + 1) * z::TILE);
            wgmma_commit();
            block.values.await_full(step);
            wgmma_fence();
            multiply_scores<T>(out, weights, values + block.values.slot(step) * z::TILE);
            wgmma_commit();
            end_turn<z::GROUPS>(group);
            wgmma_wait<1>(); /* S is complete; O may still run */
            wgmma_settle(s);
            block.keys.release(step + 1);
            j += KEYS;
            soften_keys();
            wgmma_settle(s);
            block.values.await_full(step);
            wgmma_wait<0>();
            wgmma_settle(out);
            block.values.release(step++);
            rescale(out, before);
            round_scores<T>(weights, s);
        }
        /* O of the last keys. */
        block.values.await_full(step);
        wgmma_fence();
        multiply_scores<T>(out, weights, values + block.values.slot(step) * z::TILE);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_settle(out);
        block.values.release(step++);

        float inverse[2];
        int64_t at = (static_cast<int64_t>(tile.first + tile.start) * p.heads + head) * p.size;
        end_rows(p, data, tile, head, row0, top, total, inverse);
        store_lines<ROWS>(block.shared + z::OUT, static_cast<T *>(data.out) + at, out_step(p), warp * 16,
                          tile.n - tile.start, out, inverse, p);
    }
}

/* One block per multiprocessor. Thread 0 initialises the barriers; then every warpgroup has its
 * role and the block has no common barrier any more. With p.wide one warp feeds, else all four. */
template <typename T, int WIDE, bool BENT>
__global__ void __launch_bounds__(forward_shape<WIDE>::THREADS, 1)
    forward_sm90(const __grid_constant__ attention_problem p, const __grid_constant__ attention_data data,
                 const __grid_constant__ attention_maps maps, const attention_items items)
{
    typedef forward_shape<WIDE> z;
    extern __shared__ char raw[];
    forward_block<WIDE> block(aligned(raw));
    if (blockIdx.x == 0) check_sequences(p);
    if (threadIdx.x == 0) block.make_barriers();
    __syncthreads();
    int group = group_of_warps();
    if (group == 0) {
        setmaxnreg_dec<z::FEEDER>();
        if (threadIdx.x < 32 || !p.wide) feed<T, WIDE>(p, data, maps, items, block);
    } else {
        setmaxnreg_inc<REGISTERS_LEFT<z::GROUPS, z::FEEDER>>();
        multiply<T, WIDE, BENT>(p, data, block, group - 1);
    }
}

/* ---- the operator ---- */

const char *can_run(const nbl_context *ctx, const void *arguments)
{
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    return a->q.shape[2] > 128 ? "heads of more than 128" : nbl__attention_mma.can(ctx, arguments);
}

template <typename T, int WIDE, bool BENT>
void launch_forward_of(const attention_problem &p, const attention_data &data, const attention_maps &maps,
                       const nbl__call *call)
{
    typedef forward_shape<WIDE> z;
    attention_items items = items_of(call, p, z::ROWS, p.heads);
    unsigned blocks = static_cast<unsigned>(nbl__call_cuda(call)->multiprocessors);
    cudaFuncSetAttribute(forward_sm90<T, WIDE, BENT>, cudaFuncAttributeMaxDynamicSharedMemorySize, z::BYTES);
    forward_sm90<T, WIDE, BENT><<<blocks, z::THREADS, z::BYTES, stream_of(call)>>>(p, data, maps, items);
}

template <typename T, int WIDE>
void launch_forward(const attention_problem &p, const attention_data &data, const attention_maps &maps,
                    const nbl__call *call)
{
    bool bent = p.cap != 0 || p.factor < 0;
    (bent ? launch_forward_of<T, WIDE, true> : launch_forward_of<T, WIDE, false>)(p, data, maps, call);
}

nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    attention_problem p = attention_problem_of(call, a);
    attention_data data = attention_data_of(a);
    attention_maps maps;
    if (nbl__call_cuda(call)->major != 9 || !attention_maps_of(call, a, p, &maps))
        return nbl__attention_mma.run(call, arguments);
    if (a->dtype == NBL_DTYPE_F16)
        (p.size <= 64 ? launch_forward<__half, 64> : launch_forward<__half, 128>)(p, data, maps, call);
    else
        (p.size <= 64 ? launch_forward<__nv_bfloat16, 64> : launch_forward<__nv_bfloat16, 128>)(p, data, maps,
                                                                                                call);
    return launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__attention_sm90 = {"attention_sm90", NBL_ISA_SCALAR, can_run, NULL, run_forward};
}
