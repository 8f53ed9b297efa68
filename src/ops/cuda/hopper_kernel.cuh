/* hopper_kernel.cuh - the kernel of hopper.h. Internal to hopper_sm90.cu.
 *
 * Blocks stay: one per multiprocessor, in clusters of CLUSTER, each cluster takes unit after unit of the result, a unit
 * being CLUSTER tiles of 128 rows below each other and BN columns wide (gated: BN / 2 columns of both sums). A block is
 * three warpgroups:
 *
 *     copier       one thread has the copy engine fill a ring of STAGES stages, 64 values of k each. The rows of a are
 *                  the block's own; of b each block of a cluster fetches its part and sends it to all of them: a tile of
 *                  b crosses the L2 once per cluster
 *     2 counters   64 rows by BN columns each, sums in registers (BN / 2 per thread); the products of one stage run while
 *                  the next are issued. A stage is free when the counters of all blocks of the cluster are done with it
 *
 * At the end of a tile the counters round their sums into one of BUFFERS boxes of 64 lines of 128 bytes, which the copy
 * engine takes to c while the copier fetches the next tile's first stages and the counters go on to them.
 *
 * Sizes that are no multiple of a tile need no care: the copy engine reads zeros outside of a matrix, and writes nothing
 * there. Units go down 2048 rows before they go to the right, so that those that run at the same time share their rows
 * and columns in the L2. */
#ifndef NBL_CUDA_HOPPER_KERNEL_CUH
#define NBL_CUDA_HOPPER_KERNEL_CUH

#include "ops/cuda/hopper_results.cuh"

namespace nbl_hopper
{

template <int BN, int STAGES, int BUFFERS> struct layout {
    static constexpr int A = BM * LINE, B = BN * LINE, STAGE = A + B;
    static constexpr int BOXES = STAGES * STAGE, BARRIERS = BOXES + COUNTERS * BUFFERS * BOX;
    static constexpr int BYTES = BARRIERS + 2 * STAGES * 8 + 1024; /* and to begin at a multiple of 1024 */
};

struct unit_place {
    int row, column, part; /* row: of the cluster's first tile */
};

__device__ inline int unit_count(const job &p)
{
    return p.units_down * p.first_right[p.parts];
}

template <int BN, int CLUSTER, int KIND> __device__ inline unit_place place_of(const job &p, int unit)
{
    int units_right = p.first_right[p.parts], per_group = p.group * units_right;
    int first = unit / per_group * p.group, at = unit % per_group;
    int rows = min(p.group, p.units_down - first), right = at / rows, part = 0;
    if (KIND == NBL_HOPPER_PLAIN)
        while (right >= p.first_right[part + 1]) part++;
    return {(first + at % rows) * CLUSTER * BM, (right - p.first_right[part]) * COLUMNS<BN, KIND>, part};
}

/* ---- the copier ---- */

template <int BN, int STAGES, int BUFFERS, int CLUSTER, bool STRAIGHT, int KIND>
__device__ inline void copy_tiles(const job &p, uint32_t ring, uint32_t barriers, int rank)
{
    using at = layout<BN, STAGES, BUFFERS>;
    constexpr int HALF = BN / 2;
    int stage = 0, units = unit_count(p);
    uint32_t parity = 1; /* the first round finds all stages free */
    for (int unit = blockIdx.x / CLUSTER; unit < units; unit += gridDim.x / CLUSTER) {
        unit_place place = place_of<BN, CLUSTER, KIND>(p, unit);
        int row = place.row + rank * BM, column = place.column;
        for (int i = 0; i < p.inputs && KIND != NBL_HOPPER_GATED; i++)
            for (int x = 0; x < BN; x += p.wide ? 32 : 64) fetch_to_l2(&p.input[i], column + x, row);
        for (int s = p.first_source[place.part]; s < p.first_source[place.part + 1]; s++) {
            for (int step = 0; step < p.steps[s]; step++) {
                uint32_t a = ring + stage * at::STAGE, full = barriers + stage * 8, empty = full + STAGES * 8;
                barrier_wait(empty, parity);
                barrier_expect(full, at::STAGE);
                load_box(a, &p.a[s], step * BK, row, full);
                for (int i = 0; i < 2 / CLUSTER; i++) {
                    int half = CLUSTER == 2 ? rank : i;
                    int x = !p.has_b[s][half]          ? NOWHERE
                            : KIND == NBL_HOPPER_GATED ? column
                                                       : column + half * HALF;
                    uint32_t to = a + at::A + half * HALF * LINE;
                    const CUtensorMap *map = &p.b[s][half];
                    for (int j = 0; j < (STRAIGHT ? HALF / 64 : 1); j++) {
                        int first = STRAIGHT ? x + 64 * j : step * BK, second = STRAIGHT ? step * BK : x;
                        if (CLUSTER == 1) load_box(to + j * BOX, map, first, second, full);
                        else load_box_to(to + j * BOX, map, first, second, full, (1 << CLUSTER) - 1);
                    }
                }
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        }
    }
}

/* ---- the counters ---- */

template <typename T, int BN, int STAGES, int BUFFERS, int CLUSTER, bool STRAIGHT, int KIND>
__device__ inline void count_tiles(const job &p, uint32_t ring, uint32_t barriers, int rank, int counter)
{
    using at = layout<BN, STAGES, BUFFERS>;
    constexpr int STEP_B = (STRAIGHT ? 16 * LINE : 32) / 16; /* in a descriptor, 16 values of k further */
    uint32_t lane = threadIdx.x % 32, parity = 0;
    /* Lane i tells block i of the cluster that this warp is done with a stage. */
    uint32_t empty = of_block(barriers + STAGES * 8, lane < CLUSTER ? lane : 0);
    int stage = 0, units = unit_count(p);
    way_out<BUFFERS> out = {ring + at::BOXES + counter * BUFFERS * BOX, 0, 1 + counter,
                            threadIdx.x % 128 == 0};
    float sums[BN / 2];
    int lag = counter == 0 ? p.lag : 0; /* the second counter starts when the first is so many steps ahead */
    if (counter == 1 && p.lag > 0) warpgroups_wait();
    for (int unit = blockIdx.x / CLUSTER; unit < units; unit += gridDim.x / CLUSTER) {
        unit_place place = place_of<BN, CLUSTER, KIND>(p, unit);
        int column = place.column, row = place.row + rank * BM + counter * 64;
        int before = 0, source = p.first_source[place.part], left = p.steps[source];
        int all_steps = p.all_steps[place.part];
        for (int step = 0; step < all_steps; step++) {
            int pieces = BK / 16;
            if (--left == 0) pieces = p.tail[source], left = p.steps[++source];
            uint32_t a = ring + stage * at::STAGE;
            uint64_t da = descriptor_of<false>(a + counter * 64 * LINE),
                     db = descriptor_of<STRAIGHT>(a + at::A);
            barrier_wait(barriers + stage * 8, parity);
            if (lag > 0 && step == lag) warpgroups_go_on(), lag = 0;
            if (pieces == BK / 16) {
                products_begin();
#pragma unroll
                for (int i = 0; i < BK / 16; i++)
                    multiply_add<T, BN, STRAIGHT>(sums, da + 2 * i, db + STEP_B * i, step + i);
                products_commit();
            } else { /* each its own group: the compiler wants one in every path */
#pragma unroll 1
                for (int i = 0; i < pieces; i++) {
                    products_begin();
                    multiply_add<T, BN, STRAIGHT>(sums, da + 2 * i, db + STEP_B * i, step + i);
                    products_commit();
                }
            }
            products_wait<1>();
            if (step > 0 && lane < CLUSTER) barrier_arrive(empty + before * 8);
            before = stage;
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        ahead next;
        if (KIND != NBL_HOPPER_GATED && !p.wide) next.load(p, column, row);
        products_wait<0>();
        sums_are_there(sums);
        if (lane < CLUSTER) barrier_arrive(empty + before * 8);
        send_tile<T, BN, KIND>(p, out, place.part, column, row, next, sums);
    }
    if (out.leads) stores_read<0>();
}

template <typename T, int BN, int STAGES, int BUFFERS, int CLUSTER, bool STRAIGHT, int KIND>
__global__ void __launch_bounds__(THREADS, 1) multiply(const __grid_constant__ job p)
{
    using at = layout<BN, STAGES, BUFFERS>;
    extern __shared__ uint8_t memory[];
    uint32_t ring = (static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + 1023) & ~1023u;
    uint32_t barriers = ring + at::BARRIERS;
    int rank = CLUSTER == 1 ? 0 : static_cast<int>(rank_in_cluster());
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_make(barriers + i * 8, 1); /* full: the copier's, and the bytes */
            barrier_make(barriers + (STAGES + i) * 8,
                         COUNTERS * 4 * CLUSTER); /* empty: every counter's warps */
        }
        barriers_made();
    }
    if (CLUSTER == 1) __syncthreads();
    else cluster_wait();
    if (threadIdx.x < 128) {
        registers_give<40>();
        if (threadIdx.x == 0)
            copy_tiles<BN, STAGES, BUFFERS, CLUSTER, STRAIGHT, KIND>(p, ring, barriers, rank);
        __syncwarp();
    } else {
        registers_take<232>();
        int counter = __shfl_sync(nbl_cuda::WARP, static_cast<int>(threadIdx.x) / 128 - 1,
                                  0); /* the same in a warp, and known to be */
        count_tiles<T, BN, STAGES, BUFFERS, CLUSTER, STRAIGHT, KIND>(p, ring, barriers, rank, counter);
    }
    if (CLUSTER > 1) cluster_wait(); /* no block goes while another may write to it */
}

} // namespace nbl_hopper
#endif
