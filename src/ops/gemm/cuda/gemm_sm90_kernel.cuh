/* gemm_sm90_kernel.cuh - the kernel of gemm_sm90.h. Internal to gemm_sm90.cu.
 *
 * A persistent kernel: one block per multiprocessor, in clusters of CLUSTER blocks. A unit is CLUSTER tiles of 128 rows
 * below each other, BN columns wide (gated: BN / 2 columns of both sums).
 *
 *     each cluster: for its units
 *         for the terms of the part, for k in steps of BK = 64        a ring of STAGES stages in shared memory
 *             producer    a[128, 64] and b[BN, 64] → stage            TMA
 *             consumers   2 × sums[64, BN] += a · b of the stage      wgmma, f32 in registers
 *         consumers       round the sums → box → c                    TMA
 *
 * A block has three warpgroups:
 *
 *     producer      one thread issues all TMA loads. Each block loads its own rows of a. Each block of a cluster loads
 *                   1 / CLUSTER of the tile of b and multicasts it: a tile of b is read from L2 once per cluster.
 *     2 consumers   (CONSUMERS) 64 rows by BN columns each, BN / 2 sums per thread. The products of one stage run while
 *                   the next are issued. A stage is free when the consumers of all blocks of the cluster have read it.
 *
 * At the end of a tile the consumers round their sums into one of BUFFERS boxes of 64 lines of 128 bytes. TMA stores the
 * box while the producer already loads the next tile's first stages and the consumers multiply them.
 *
 * With masked terms (gemm_sm90_mask.cuh) the last stages of a tile are theirs: the consumers add them to the sums
 * before rounding.
 *
 * Sizes that are no multiple of a tile need no special case: TMA reads zeros outside a matrix and writes nothing there.
 * Units go down 2048 rows before they go right: blocks that run at the same time share rows and columns in L2.
 *
 * Bytes: per unit and value of k, (128 · CLUSTER + BN) · 2 from L2. Expected limit for long k: the tensor cores. */
#ifndef NBL_GEMM_SM90_KERNEL_CUH
#define NBL_GEMM_SM90_KERNEL_CUH

#include "ops/common/dependent_launch.cuh"
#include "ops/gemm/cuda/gemm_sm90_exp.cuh"
#include "ops/gemm/cuda/gemm_sm90_mask.cuh"
#include "ops/gemm/cuda/gemm_sm90_mma.cuh"
#include "ops/common/kernel.cuh"

extern "C" {
#include "ops/gemm/cuda/gemm_sm90.h"
}

namespace nbl_sm90
{

constexpr int BM = 128, BK = 64, LINE = 128, BOX_LINES = 64, BOX = LINE * BOX_LINES;
constexpr int CONSUMERS = 2, THREADS = 128 * (1 + CONSUMERS);
constexpr int NOWHERE = 1 << 30; /* a column that no matrix has */

/* What becomes of the sums of a tile. */
enum epilogue { EPILOGUE_PLAIN, EPILOGUE_GATED, EPILOGUE_EXPONENTIAL, ENDS_MASKED };

/* The kernel's argument, passed by value. */
struct job {
    CUtensorMap a[NBL_MAX_GEMM_SM90_TERMS],
        b[NBL_MAX_GEMM_SM90_TERMS][2]; /* b: of the left and the right half of a tile */
    CUtensorMap c[NBL_MAX_GEMM_SM90_PARTS], gate, up;
    int32_t steps[NBL_MAX_GEMM_SM90_TERMS + 1]; /* of BK values of k */
    int32_t tail[NBL_MAX_GEMM_SM90_TERMS];      /* values of k in the last step, divided by 16 */
    bool has_b[NBL_MAX_GEMM_SM90_TERMS][2], stores_gate, stores_up, c_is_f32; /* c_is_f32: gated: of gate and up */
    int32_t parts, first_term[NBL_MAX_GEMM_SM90_PARTS + 1], all_steps[NBL_MAX_GEMM_SM90_PARTS]; /* of each part */
    int32_t
        first_right[NBL_MAX_GEMM_SM90_PARTS + 1]; /* the part's first column of units; the last entry is their number */
    int32_t units_down, group;
    int32_t act;
    float beta;
    const void *c_in;
    int64_t ldc_in, m, n;
    exponentials exp;
    int32_t first_masked; /* terms from here on are masked; all_steps leaves them out */
    const uint32_t *mask[NBL_MAX_GEMM_SM90_TERMS];
    float mask_factor[NBL_MAX_GEMM_SM90_TERMS];
    int64_t mask_ld;
};

template <int BN, int STAGES, int BUFFERS> struct layout {
    static constexpr int A = BM * LINE, B = BN * LINE, STAGE = A + B;
    static constexpr int BOXES = STAGES * STAGE, BARRIERS = BOXES + CONSUMERS * BUFFERS * BOX;
    static constexpr int BYTES = BARRIERS + 2 * STAGES * 8 + 1024; /* 1024: the start is rounded up to that */
};

struct unit_position {
    int row, column, part; /* row: of the cluster's first tile */
};

__device__ inline int unit_count(const job &p)
{
    return p.units_down * p.first_right[p.parts];
}

template <int BN, int CLUSTER, bool GATED> __device__ inline unit_position position_of(const job &p, int unit)
{
    int per_group = p.group * p.first_right[p.parts], first = unit / per_group * p.group,
        at = unit % per_group;
    int rows = min(p.group, p.units_down - first), right = at / rows, part = 0;
    while (!GATED && right >= p.first_right[part + 1]) part++;
    return {(first + at % rows) * CLUSTER * BM, (right - p.first_right[part]) * (GATED ? BN / 2 : BN), part};
}

/* ---- the producer ---- */

template <int BN, int STAGES, int BUFFERS, int CLUSTER, bool MN_MAJOR, bool GATED>
__device__ inline void produce_tiles(const job &p, uint32_t ring, uint32_t barriers, int rank)
{
    using at = layout<BN, STAGES, BUFFERS>;
    constexpr int HALF = BN / 2;
    int stage = 0, units = unit_count(p);
    uint32_t parity = 1; /* the first round finds all stages free */
    for (int unit = blockIdx.x / CLUSTER; unit < units; unit += gridDim.x / CLUSTER) {
        unit_position slot = position_of<BN, CLUSTER, GATED>(p, unit);
        int row = slot.row + rank * BM, column = slot.column;
        for (int s = p.first_term[slot.part]; s < p.first_term[slot.part + 1]; s++) {
            for (int step = 0; step < p.steps[s]; step++) {
                uint32_t a = ring + stage * at::STAGE, full = barriers + stage * 8, empty = full + STAGES * 8;
                mbarrier_wait(empty, parity);
                mbarrier_expect_tx(full, at::STAGE);
                tma_load(a, &p.a[s], step * BK, row, full);
                for (int i = 0; i < 2 / CLUSTER; i++) {
                    int half = CLUSTER == 2 ? rank : i;
                    int x = !p.has_b[s][half] ? NOWHERE : GATED ? column : column + half * HALF;
                    uint32_t to = a + at::A + half * HALF * LINE;
                    const CUtensorMap *map = &p.b[s][half];
                    for (int j = 0; j < (MN_MAJOR ? HALF / 64 : 1); j++) {
                        int first = MN_MAJOR ? x + 64 * j : step * BK, second = MN_MAJOR ? step * BK : x;
                        if (CLUSTER == 1) tma_load(to + j * BOX, map, first, second, full);
                        else tma_load_multicast(to + j * BOX, map, first, second, full, (1 << CLUSTER) - 1);
                    }
                }
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        }
    }
}

/* ---- results of the consumers ---- */

__device__ inline uint32_t pack2(float a, float b, __half)
{
    __half2 both = __floats2half2_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&both);
}
__device__ inline uint32_t pack2(float a, float b, __nv_bfloat16)
{
    __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&both);
}

/* Layout of a warpgroup's 64 rows: a thread has rows lane / 4 and lane / 4 + 8 of its warp's 16, and of every 8 columns
 * the two from lane % 4 · 2 on. The element is v[4·j + 2·below + right], with j the group of 8 columns. */

/* Writes 64 columns of 16 bits into a box. */
template <typename T> __device__ inline void fill_box(uint32_t box, const float (&v)[32])
{
    int lane = threadIdx.x % 32, line = threadIdx.x / 32 % 4 * 16 + lane % 16;
    for (int j = 0; j < 8; j += 2) {
        uint32_t to = box + line * LINE + ((j + lane / 16) ^ (line % 8)) * 16;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                     "r"(pack2(v[4 * j], v[4 * j + 1], T())), "r"(pack2(v[4 * j + 2], v[4 * j + 3], T())),
                     "r"(pack2(v[4 * j + 4], v[4 * j + 5], T())),
                     "r"(pack2(v[4 * j + 6], v[4 * j + 7], T()))
                     : "memory");
    }
}
/* Writes 32 of the 64 columns as f32 into a box. */
template <int FIRST> __device__ inline void fill_box_f32(uint32_t box, const float (&v)[32])
{
    int lane = threadIdx.x % 32, line = threadIdx.x / 32 % 4 * 16 + lane / 4, pair = lane % 4;
    for (int j = 0; j < 4; j++)
        for (int below = 0; below < 2; below++) {
            int slot = line + 8 * below, i = FIRST / 2 + 4 * j + 2 * below;
            uint32_t to = box + slot * LINE + ((2 * j + pair / 2) ^ (slot % 8)) * 16 + pair % 2 * 8;
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(v[i]), "f"(v[i + 1]) : "memory");
        }
}

/* The boxes through which a warpgroup stores its results, used in turn. */
template <int BUFFERS> struct epilogue_store {
    uint32_t boxes;
    int next, number; /* number: the warpgroup's named barrier */
    bool leads;

    template <typename F> __device__ inline void store(const CUtensorMap *map, int column, int row, F fill)
    {
        if (leads) tma_store_wait_read<BUFFERS - 1>();
        warpgroup_sync(number);
        uint32_t box = boxes + next * BOX;
        fill(box);
        fence_proxy_async();
        warpgroup_sync(number);
        if (leads) tma_store(map, column, row, box);
        next = next + 1 == BUFFERS ? 0 : next + 1;
    }
    template <typename T>
    __device__ inline void store_64(const CUtensorMap *map, bool c_is_f32, int column, int row,
                                    const float (&v)[32])
    {
        if (!c_is_f32) {
            store(map, column, row, [&](uint32_t box) { fill_box<T>(box, v); });
        } else {
            store(map, column, row, [&](uint32_t box) { fill_box_f32<0>(box, v); });
            store(map, column + 32, row, [&](uint32_t box) { fill_box_f32<32>(box, v); });
        }
    }
};

/* Loads `c_in` for this thread's elements of 64 columns, two to a word. n is a multiple of 8. */
__device__ inline void load_c_in(const job &p, int column, int row, uint32_t (&c_in)[16])
{
    int lane = threadIdx.x % 32;
    int64_t y = row + threadIdx.x / 32 % 4 * 16 + lane / 4, x = column + lane % 4 * 2;
    const uint32_t *from = static_cast<const uint32_t *>(p.c_in) + (y * p.ldc_in + x) / 2;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int right = i / 2 * 8, below = i % 2 * 8;
        c_in[i] = x + right < p.n && y + below < p.m ? from[(below * p.ldc_in + right) / 2] : 0;
    }
}
template <typename T> __device__ inline void add_c_in(float beta, const uint32_t (&c_in)[16], float (&v)[32])
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        T two[2];
        memcpy(two, &c_in[i], 4);
        v[2 * i] = fmaf(beta, nbl_cuda::to_f32(two[0]), v[2 * i]);
        v[2 * i + 1] = fmaf(beta, nbl_cuda::to_f32(two[1]), v[2 * i + 1]);
    }
}
__device__ inline void add_c_in_f32(const job &p, int column, int row, float (&v)[32])
{
    int lane = threadIdx.x % 32;
    int64_t y = row + threadIdx.x / 32 % 4 * 16 + lane / 4, x = column + lane % 4 * 2;
    const float *from = static_cast<const float *>(p.c_in) + y * p.ldc_in + x;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int right = i / 2 * 8, below = i % 2 * 8;
        if (x + right >= p.n || y + below >= p.m) continue;
        float2 c_in = *reinterpret_cast<const float2 *>(from + below * p.ldc_in + right);
        v[2 * i] = fmaf(p.beta, c_in.x, v[2 * i]);
        v[2 * i + 1] = fmaf(p.beta, c_in.y, v[2 * i + 1]);
    }
}

/* Uses the hardware's exponential. Its error is a few f32 ulp; the result is rounded to 16 bits. */
__device__ inline float activation(int act, float x)
{
    if (act == NBL_ACT_GELU) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    float y = act == NBL_ACT_SILU ? x
                                  : 1.5957691216057308f * fmaf(0.044715f * x * x, x, x); /* tanh's, doubled */
    return __fdividef(x, 1.0f + __expf(-y));
}

template <typename T, int BN, bool GATED, int BUFFERS>
__device__ inline void store_tile(const job &p, epilogue_store<BUFFERS> &out, int part, int column, int row,
                                  uint32_t (&c_in)[16], float (&sums)[BN / 2])
{
    constexpr int COLUMNS = GATED ? BN / 2 : BN;
#pragma unroll
    for (int x = 0; x < COLUMNS; x += 64) {
        float v[32];
#pragma unroll
        for (int i = 0; i < 32; i++) v[i] = sums[x / 2 + i];
        if constexpr (GATED) {
            float w[32];
#pragma unroll
            for (int i = 0; i < 32; i++) w[i] = sums[BN / 4 + x / 2 + i];
            if (p.stores_gate) out.template store_64<T>(&p.gate, p.c_is_f32, column + x, row, v);
            if (p.stores_up) out.template store_64<T>(&p.up, p.c_is_f32, column + x, row, w);
#pragma unroll
            for (int i = 0; i < 32; i++) v[i] = activation(p.act, v[i]) * w[i];
            out.template store_64<T>(&p.c[0], false, column + x, row, v);
        } else {
            if (p.beta != 0 && p.c_is_f32) add_c_in_f32(p, column + x, row, v);
            if (p.beta != 0 && !p.c_is_f32) {
                add_c_in<T>(p.beta, c_in, v);
                if (x + 64 < COLUMNS)
                    load_c_in(p, column + x + 64, row, c_in); /* in flight while these are stored */
            }
            out.template store_64<T>(&p.c[part], p.c_is_f32, column + x, row, v);
        }
    }
}

/* ---- the consumers ---- */

template <typename T, int BN, int STAGES, int BUFFERS, int CLUSTER, bool MN_MAJOR, epilogue EPILOGUE>
__device__ inline void consume_tiles(const job &p, uint32_t ring, uint32_t barriers, int rank, int consumer)
{
    using at = layout<BN, STAGES, BUFFERS>;
    constexpr bool GATED = EPILOGUE == EPILOGUE_GATED;
    constexpr int STEP_B = (MN_MAJOR ? 16 * LINE : 32) / 16; /* added to a descriptor for 16 more values of k */
    uint32_t lane = threadIdx.x % 32, parity = 0;
    /* Lane i tells block i of the cluster that this warp has read a stage. */
    uint32_t empty = cluster_map_address(barriers + STAGES * 8, lane < CLUSTER ? lane : 0);
    int stage = 0, units = unit_count(p);
    epilogue_store<BUFFERS> out = {ring + at::BOXES + consumer * BUFFERS * BOX, 0, 1 + consumer,
                            threadIdx.x % 128 == 0};
    float sums[BN / 2];
    for (int unit = blockIdx.x / CLUSTER; unit < units; unit += gridDim.x / CLUSTER) {
        unit_position slot = position_of<BN, CLUSTER, GATED>(p, unit);
        int column = slot.column, row = slot.row + rank * BM + consumer * 64;
        int before = 0, term = p.first_term[slot.part], left = p.steps[term];
        int all_steps = p.all_steps[slot.part];
        for (int step = 0; step < all_steps; step++) {
            int pieces = BK / 16;
            if (--left == 0) pieces = p.tail[term], left = p.steps[++term];
            uint32_t a = ring + stage * at::STAGE;
            uint64_t da = descriptor_of<false>(a + consumer * 64 * LINE),
                     db = descriptor_of<MN_MAJOR>(a + at::A);
            mbarrier_wait(barriers + stage * 8, parity);
            if (pieces == BK / 16) {
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < BK / 16; i++)
                    multiply_add<T, BN, MN_MAJOR>(sums, da + 2 * i, db + STEP_B * i, step + i);
                wgmma_commit();
            } else { /* one commit group each: the compiler wants a commit in every path */
#pragma unroll 1
                for (int i = 0; i < pieces; i++) {
                    wgmma_fence();
                    multiply_add<T, BN, MN_MAJOR>(sums, da + 2 * i, db + STEP_B * i, step + i);
                    wgmma_commit();
                }
            }
            wgmma_wait<1>();
            if (step > 0 && lane < CLUSTER) mbarrier_arrive_cluster(empty + before * 8);
            before = stage;
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        uint32_t c_in[16];
        row_params params;
        mask_words<EPILOGUE == ENDS_MASKED ? BN : 64> words;
        int line = consumer * 64 + threadIdx.x / 32 % 4 * 16, source_end = p.first_term[slot.part + 1];
        if constexpr (EPILOGUE == ENDS_MASKED)
            load_mask<BN>(p.mask[p.first_masked], p.mask_ld, row - consumer * 64 + line, column, p.m, p.n, words);
        if constexpr (EPILOGUE == EPILOGUE_EXPONENTIAL) params = load_row_params(p.exp, row, p.m, p.n);
        else if (!GATED && p.beta != 0 && !p.c_is_f32) load_c_in(p, column, row, c_in);
        wgmma_wait<0>();
        wgmma_settle(sums);
        if (lane < CLUSTER) mbarrier_arrive_cluster(empty + before * 8);
        if constexpr (EPILOGUE == ENDS_MASKED)
            for (int s = p.first_masked; s < source_end; s++) {
                mask_words<BN> next = words;
                if (s + 1 < source_end)
                    load_mask<BN>(p.mask[s + 1], p.mask_ld, row - consumer * 64 + line, column, p.m, p.n, next);
                for (int step = 0; step < p.steps[s]; step++) {
                    uint32_t a = ring + stage * at::STAGE;
                    mbarrier_wait(barriers + stage * 8, parity);
                    add_masked<BN>(a, a + at::A, line, step + 1 < p.steps[s] ? BK / 16 : p.tail[s], p.mask_factor[s],
                                   words, sums);
                    __syncwarp();
                    if (lane < CLUSTER) mbarrier_arrive_cluster(empty + stage * 8);
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
                words = next;
            }
        if constexpr (EPILOGUE == EPILOGUE_EXPONENTIAL)
            store_exponentials<T, BN>(p.exp, &p.c[0], out, column, row, p.m, p.n, params, sums);
        else store_tile<T, BN, GATED>(p, out, slot.part, column, row, c_in, sums);
    }
    if (out.leads) tma_store_wait_read<0>();
}

template <typename T, int BN, int STAGES, int BUFFERS, int CLUSTER, bool MN_MAJOR, epilogue EPILOGUE>
__global__ void __launch_bounds__(THREADS, 1) multiply(const __grid_constant__ job p)
{
    using at = layout<BN, STAGES, BUFFERS>;
    extern __shared__ uint8_t memory[];
    uint32_t ring = (static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + 1023) & ~1023u;
    uint32_t barriers = ring + at::BARRIERS;
    int rank = CLUSTER == 1 ? 0 : static_cast<int>(cluster_rank());
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(barriers + i * 8, 1); /* full: the producer's arrival, and the bytes */
            mbarrier_init(barriers + (STAGES + i) * 8,
                         CONSUMERS * 4 * CLUSTER); /* empty: all warps of all consumers */
        }
        mbarrier_init_fence();
    }
    if (CLUSTER == 1) __syncthreads();
    else cluster_sync();
    nbl_cuda::wait_for_previous_kernel();
    nbl_cuda::allow_dependent_launch();
    if (threadIdx.x < 128) {
        setmaxnreg_dec<40>();
        if (threadIdx.x == 0)
            produce_tiles<BN, STAGES, BUFFERS, CLUSTER, MN_MAJOR, EPILOGUE == EPILOGUE_GATED>(p, ring, barriers, rank);
        __syncwarp();
    } else {
        setmaxnreg_inc<232>();
        int consumer = __shfl_sync(nbl_cuda::WARP, static_cast<int>(threadIdx.x) / 128 - 1,
                                   0); /* so that the compiler knows it to be uniform in a warp */
        consume_tiles<T, BN, STAGES, BUFFERS, CLUSTER, MN_MAJOR, EPILOGUE>(p, ring, barriers, rank, consumer);
    }
    if (CLUSTER > 1) cluster_sync(); /* no block ends while another may write to its memory */
}

} // namespace nbl_sm90
#endif
