/* gemm_lowrank_sm90_kernel.cuh - the kernel of gemm_lowrank_sm90.h. Internal to
 * gemm_lowrank_sm90.cu.
 *
 *     a block: a share of the rows and some columns of one part; a's columns stay in shared memory
 *         for lines of 64 rows                                     v of the line: ring of V_STAGES
 *             for pairs of boxes of 64 columns                     z: ring of STAGES, filled by TMA
 *                 each of 2 warpgroups, on its box of the pair
 *                     projected[64, rank_padded] += box · aᵀ              wgmma
 *                     outer[64 columns, rank_padded] += boxᵀ · v          wgmma, the same bytes read transposed
 *             projected → global                                   partial: of this block's columns
 *     outer → global                                               partial: of this block's rows
 *
 * A second kernel (gather in gemm_lowrank_sm90.cu) adds the partial sums of the blocks, in a fixed
 * order. They are a few per cent of the bytes of z. Shared memory: up to 209 KiB, one block per
 * multiprocessor. Limit: memory bandwidth of z. */
#ifndef NBL_GEMM_LOWRANK_SM90_KERNEL_CUH
#define NBL_GEMM_LOWRANK_SM90_KERNEL_CUH

#include "ops/common/dependent_launch.cuh"
#include "ops/gemm/cuda/gemm_sm90_mma.cuh"
#include "ops/common/kernel.cuh"

extern "C" {
#include "ops/gemm/cuda/gemm_lowrank_sm90.h"
}

namespace nbl_lowrank
{

using namespace nbl_sm90;

constexpr int LINE = 128, SIDE = 64, BOX = SIDE * LINE, STAGE = 2 * BOX, STAGES = 8, V_STAGES = 4;
constexpr int WORKERS = 256,
              THREADS = WORKERS + 32; /* two warpgroups that multiply, and a warp that copies */

/* Of one part: its first block and first column among those of all parts, its boxes, its first
 * column of v. */
struct part_layout {
    int32_t first_block, first_column;
    int32_t boxes; /* of 64 columns */
    int32_t v_first;
};

struct lowrank_job {
    CUtensorMap z[NBL_MAX_GEMM_LOWRANK_PARTS], a[NBL_MAX_GEMM_LOWRANK_PARTS], v;
    part_layout layouts[NBL_MAX_GEMM_LOWRANK_PARTS];
    int32_t count, pairs;     /* pairs: stages of a line of boxes, at most */
    int32_t lines, share;     /* of boxes: all, and of a block */
    int64_t rows, columns;    /* columns: of all parts */
    float *projected, *outer; /* [column blocks, rows, rank_padded] and [shares, columns, rank_padded] */
};

/* PAIRS: stages of a line that a warpgroup's registers have room for. */
template <int WIDE, int PAIRS, bool PROJECTS> struct room {
    static constexpr int A = STAGES * STAGE, A_BOX = WIDE * LINE;    /* a's columns of every box */
    static constexpr int V = A + (PROJECTS ? 2 * PAIRS * A_BOX : 0); /* v's rows of lines */
    static constexpr int SUMS = V + V_STAGES * BOX; /* the second warpgroup's projections, two */
    static constexpr int BARRIERS = SUMS + (PROJECTS ? 2 * SIDE * WIDE * 4 : 0);
    static constexpr int BYTES = BARRIERS + (2 * STAGES + 1 + 2 * V_STAGES) * 8 + 1024;
};

#define D8(i)                                                                                                \
    "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), "+f"(d[(i) + 5]),    \
        "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
/* d[64, WIDE] (+)= a·b over 16 values. TRANSPOSED: the rows of both operands are summed over. */
template <bool TRANSPOSED> __device__ inline void multiply_add(float (&d)[8], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, "
                 "%8, %9, p, 1, 1, %11, %11;\n}"
                 : D8(0)
                 : "l"(a), "l"(b), "r"(add), "n"(TRANSPOSED ? 1 : 0));
}
template <bool TRANSPOSED> __device__ inline void multiply_add(float (&d)[16], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, "
                 "%8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, %19, %19;\n}"
                 : D8(0), D8(8)
                 : "l"(a), "l"(b), "r"(add), "n"(TRANSPOSED ? 1 : 0));
}
template <bool TRANSPOSED> __device__ inline void multiply_add(float (&d)[24], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %26, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, "
                 "%8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, "
                 "%24, %25, p, 1, 1, %27, %27;\n}"
                 : D8(0), D8(8), D8(16)
                 : "l"(a), "l"(b), "r"(add), "n"(TRANSPOSED ? 1 : 0));
}
#undef D8

/* The block's part, columns and rows. */
struct block_layout {
    int part, box, pairs; /* its first box of the part, and stages of a line */
    int line, end;
};
__device__ inline block_layout layout_of(const lowrank_job &p)
{
    block_layout b = {};
    int block = static_cast<int>(blockIdx.x);
    while (b.part + 1 < p.count && block >= p.layouts[b.part + 1].first_block) b.part++;
    b.box = (block - p.layouts[b.part].first_block) * 2 * p.pairs;
    b.pairs = min(p.pairs, (p.layouts[b.part].boxes - b.box + 1) / 2);
    b.line = static_cast<int>(blockIdx.y) * p.share;
    b.end = min(b.line + p.share, p.lines);
    return b;
}

/* The copying thread. a once; then for each line v of 64 rows, and z pair by pair. It runs up to
 * STAGES pairs and V_STAGES lines ahead of the products. */
template <int WIDE, int PAIRS, bool PROJECTS>
__device__ inline void copy_boxes(const lowrank_job &p, const block_layout &b, uint32_t ring, uint32_t barriers)
{
    using at = room<WIDE, PAIRS, PROJECTS>;
    uint32_t all_a = barriers + 2 * STAGES * 8, parity = 1; /* the first round finds all stages free */
    if (PROJECTS) {
        mbarrier_expect_tx(all_a, static_cast<uint32_t>(2 * b.pairs * at::A_BOX));
        for (int i = 0; i < 2 * b.pairs; i++)
            tma_load(ring + at::A + i * at::A_BOX, &p.a[b.part], (b.box + i) * SIDE, 0, all_a);
    }
    int stage = 0;
    for (int line = b.line; line < b.end; line++) {
        uint32_t turn = (line - b.line) % V_STAGES, v_full = all_a + 8 + turn * 8;
        mbarrier_wait(v_full + V_STAGES * 8, (line - b.line) / V_STAGES % 2 ^ 1);
        mbarrier_expect_tx(v_full, BOX);
        tma_load(ring + at::V + turn * BOX, &p.v, p.layouts[b.part].v_first, line * SIDE, v_full);
        for (int j = 0; j < b.pairs; j++) {
            uint32_t full = barriers + stage * 8;
            mbarrier_wait(full + STAGES * 8, parity);
            mbarrier_expect_tx(full, STAGE);
            for (int i = 0; i < 2; i++)
                tma_load(ring + stage * STAGE + i * BOX, &p.z[b.part], (b.box + 2 * j + i) * SIDE,
                         line * SIDE, full);
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
    }
}

/* A barrier of the two warpgroups that multiply; the copying warp does not take part. */
__device__ inline void workers_sync()
{
    asm volatile("bar.sync 3, 256;" ::: "memory");
}

/* Stores the projections of a line of boxes. The second warpgroup's sums are added to the first's through shared memory.
 * Two buffers alternate from line to line, so one barrier per line is enough.
 * The layout of the accumulators is that of gemm_sm90_kernel.cuh. */
template <int WIDE>
__device__ inline void put_projections(const lowrank_job &p, int line, int group, uint32_t shared,
                                       const float (&d)[WIDE / 2])
{
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4, column = lane % 4 * 2;
    if (group == 1)
#pragma unroll
        for (int i = 0; i < WIDE / 4; i++) {
            uint32_t to = shared + ((row + i % 2 * 8) * WIDE + i / 2 * 8 + column) * 4;
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(d[2 * i]), "f"(d[2 * i + 1])
                         : "memory");
        }
    workers_sync();
    if (group == 1) return;
    int64_t first = static_cast<int64_t>(line) * SIDE;
    float *to = p.projected + (blockIdx.x * p.rows + first) * WIDE;
#pragma unroll
    for (int i = 0; i < WIDE / 4; i++) {
        int r = row + i % 2 * 8, c = i / 2 * 8 + column;
        float x, y;
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(x), "=f"(y)
                     : "r"(shared + (r * WIDE + c) * 4)
                     : "memory");
        if (first + r < p.rows)
            *reinterpret_cast<float2 *>(to + r * WIDE + c) = make_float2(d[2 * i] + x, d[2 * i + 1] + y);
    }
}

/* A product warpgroup: the left or right box of every pair. outer stays in registers over all
 * lines, projected over one line. A stage of z is released after both products have read it, v
 * after the line. */
template <int WIDE, int PAIRS, bool PROJECTS>
__device__ inline void multiply_boxes(const lowrank_job &p, const block_layout &b, uint32_t ring,
                                      uint32_t barriers, int group)
{
    using at = room<WIDE, PAIRS, PROJECTS>;
    constexpr int STEP_TRANSPOSED = 16 * LINE / 16; /* added to a descriptor for 16 more rows */
    float outer[PAIRS][WIDE / 2];
    uint32_t parity = 0, turn = 0, of_v = barriers + (2 * STAGES + 1) * 8;
    int stage = 0, lane = threadIdx.x % 32;
    const part_layout &here = p.layouts[b.part];
    if (PROJECTS) mbarrier_wait(barriers + 2 * STAGES * 8, 0);
    for (int line = b.line; line < b.end; line++, turn ^= 1) {
        uint32_t v_turn = (line - b.line) % V_STAGES, v = ring + at::V + v_turn * BOX;
        float projected[WIDE / 2];
        mbarrier_wait(of_v + v_turn * 8, (line - b.line) / V_STAGES % 2);
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            if (j >= b.pairs) break;
            uint32_t z = ring + stage * STAGE + group * BOX, a = ring + at::A + (2 * j + group) * at::A_BOX;
            mbarrier_wait(barriers + stage * 8, parity);
            wgmma_fence();
            if constexpr (PROJECTS) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    multiply_add<false>(projected, descriptor_of<false>(z) + 2 * i,
                                        descriptor_of<false>(a) + 2 * i, j + i);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                multiply_add<true>(outer[j], descriptor_of<true>(z) + STEP_TRANSPOSED * i,
                                   descriptor_of<true>(v) + STEP_TRANSPOSED * i, line - b.line + i);
            wgmma_commit();
            wgmma_wait<0>();
            if constexpr (PROJECTS) wgmma_settle(projected);
            wgmma_settle(outer[j]);
            if (lane == 0) mbarrier_arrive_cluster(barriers + (STAGES + stage) * 8);
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        if (lane == 0) mbarrier_arrive_cluster(of_v + (V_STAGES + v_turn) * 8);
        if constexpr (PROJECTS)
            put_projections<WIDE>(p, line, group, ring + at::SUMS + turn * SIDE * WIDE * 4, projected);
    }
    int64_t first = here.first_column,
            end = b.part + 1 < p.count ? p.layouts[b.part + 1].first_column : p.columns;
    float *to = p.outer + blockIdx.y * p.columns * WIDE;
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        if (j >= b.pairs) break;
        int64_t column = first + (b.box + 2 * j + group) * SIDE + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
        for (int i = 0; i < WIDE / 4; i++) {
            int64_t c = column + i % 2 * 8;
            if (c < end)
                *reinterpret_cast<float2 *>(to + c * WIDE + i / 2 * 8 +
                                            lane % 4 * 2) = make_float2(outer[j][2 * i], outer[j][2 * i + 1]);
        }
    }
}

/* Grid: (column blocks, shares). Two warpgroups multiply; thread WORKERS copies. A `full` barrier
 * completes with the copies' bytes, an `empty` barrier with one arrival per product warp. */
template <int WIDE, int PAIRS, bool PROJECTS>
__global__ void __launch_bounds__(THREADS, 1)
    lowrank_boxes(nbl_cuda::dependent, const __grid_constant__ lowrank_job p)
{
    using at = room<WIDE, PAIRS, PROJECTS>;
    extern __shared__ uint8_t memory[];
    uint32_t ring = (static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + 1023) & ~1023u;
    uint32_t barriers = ring + at::BARRIERS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(barriers + i * 8, 1);
            mbarrier_init(barriers + (STAGES + i) * 8, WORKERS / 32);
        }
        mbarrier_init(barriers + 2 * STAGES * 8, 1);
        for (int i = 0; i < V_STAGES; i++) {
            mbarrier_init(barriers + (2 * STAGES + 1 + i) * 8, 1);
            mbarrier_init(barriers + (2 * STAGES + 1 + V_STAGES + i) * 8, WORKERS / 32);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    nbl_cuda::wait_for_previous_kernel();
    nbl_cuda::allow_dependent_launch();
    block_layout b = layout_of(p);
    int group = __shfl_sync(nbl_cuda::WARP, static_cast<int>(threadIdx.x) / 128, 0);
    if (group < 2) multiply_boxes<WIDE, PAIRS, PROJECTS>(p, b, ring, barriers, group);
    else if (threadIdx.x == WORKERS) copy_boxes<WIDE, PAIRS, PROJECTS>(p, b, ring, barriers);
}

} // namespace nbl_lowrank
#endif
