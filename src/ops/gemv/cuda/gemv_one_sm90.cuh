/* gemv_one_sm90.cuh - the operands of gemv_one_sm90.cu: the kernel's argument, the layout of shared memory, a warp's
 * copies of codes and scales, and its part of x. Internal to the CUDA kernels. */
#ifndef NBL_GEMV_ONE_SM90_CUH
#define NBL_GEMV_ONE_SM90_CUH

#include "ops/common/dependent_launch.cuh"
#include "ops/gemv/cuda/gemv_ring.cuh"
#include "ops/common/load.cuh"

namespace nbl_cuda
{

/* RING: slots of a warp's ring. SHARERS: blocks that may share a tile. SUM_SLOTS: tiles whose sums
 * may be pending. */
constexpr int RING = 3, MAX = NBL_MAX_GEMV_ONE, STEP_COLUMNS = 256, SHARERS = 2, SUM_SLOTS = 4;
constexpr int SHARED_STEPS = 4; /* steps of a warp: their x fits in shared memory */

/* One of the weights of a launch. Its tiles end before end_tile; they start where the previous ones
 * end. */
struct one_weight {
    const uint8_t *codes;
    const uint8_t *scales; /* floats, or codes of nested scales */
    const float *factors, *table;
    const void *bias;
    void *y;
    float offset;
    int shift, bias_dtype, end_tile; /* end_tile: first tile of the next weight */
};

/* The rmsnorm in front: h = x + residual (stored to `sum`), y = h / rms(h) · (w + offset). */
struct one_norm {
    const void *residual, *w; /* w NULL: no norm */
    void *sum, *y;
    int w_dtype;
    float eps, offset;
    bool round_first;
};

/* The argument of the kernel. gated: two weights, 8 rows of each in a tile. */
struct one_job {
    one_weight at[MAX];
    one_norm norm;
    const void *x;
    int count, columns, tiles, act; /* act: nbl__act, -1: none */
    bool gated, shared_tiles;
    float table[16];
    const float *offset_at[MAX]; /* where a weight's nested offset lies; NULL: one_weight.offset */
};

/* Layout of shared memory, in lines of 128 bytes:
 *
 *     even lines 0 … 510     the 256 entries of the table        odd lines   two slots of the ring
 *     even lines behind      x                                   odd lines   the third slot
 *     then                   scales of the slots; tables of nested scales; sums of the warps; barriers */
template <bool NESTED> struct one_layout {
    static constexpr int EIGHT = WARPS, ROWS = TILE;
    static constexpr int PITCH = 2 * LINE; /* from one row of codes to the next, and of the table */
    static constexpr int X = 256 * PITCH, SCALES = X + EIGHT * ROWS * PITCH;
    static constexpr int SCALE_BYTES = NESTED ? 2 * ROWS * 4
                                              : ROWS * 16; /* per slot: codes and factors, or floats */
    static constexpr int TABLES = SCALES + EIGHT * RING * SCALE_BYTES;
    static constexpr int ALL_SUMS = TABLES + (NESTED ? MAX * 1024 : 0);
    static constexpr int BARRIERS = ALL_SUMS + SUM_SLOTS * SHARERS * EIGHT * ROWS * 4;
    static constexpr int SQUARES = BARRIERS + (2 * SUM_SLOTS + 1) * 8; /* the norm's sums, by warp */
    static constexpr int BYTES = SQUARES + SHARERS * EIGHT * 4;
    static_assert(RING == 3 && SHARED_STEPS * 4 == ROWS, "the third slot and x share their lines");
    static __device__ uint32_t slot_at(int slot)
    {
        return LINE + slot * (X / 2);
    }
    /* Address of 8 columns of a granule of a warp's part of x. Swizzled: lanes that read together use different banks. */
    static __device__ uint8_t *x_at(uint8_t *shared, int warp, int granule, int piece)
    {
        return shared + X + (warp * SHARED_STEPS * 4 + granule) * PITCH + (piece ^ (granule & 1)) * 16;
    }
};

/* The nested offset of a weight. Call it after wait_for_previous_kernel(). */
__device__ inline float offset_of(const one_job &j, int member)
{
    float offset = j.at[member].offset;
    if (j.offset_at[member] != nullptr)
        asm volatile("ld.global.f32 %0, [%1];" : "=f"(offset) : "l"(j.offset_at[member]) : "memory");
    return offset;
}

/* The weight and first row of the 8 rows of half a tile. */
struct row_layout {
    int member, row;
};
__device__ inline row_layout layout_of(const one_job &j, int tile, int half)
{
    if (j.gated) return {half, tile * 8};
    int member = 0, first = 0;
#pragma unroll
    for (int i = 0; i + 1 < MAX; i++)
        if (i + 1 < j.count && tile >= j.at[i].end_tile) member = i + 1, first = j.at[i].end_tile;
    return {member, (tile - first) * TILE + half * 8};
}

/* A warp's copies. Lane 8r + i copies 16-byte piece i of rows r, r + 4, r + 8 and r + 12. Lane i < 16 copies the scales of
 * row i. Lane 16 + i copies the factor of row i's nested scales. */
template <bool NESTED> struct one_loader {
    typedef one_layout<NESTED> in;
    const uint8_t *source[2], *scales;
    const float *factors;
    uint8_t *to, *scales_to;
    uint32_t granule, four_rows;
    int tile, end_tile, step, first_step, end_step, shift;

    __device__ void begin(const one_job &j, uint8_t *shared, int first_tile, int first, int end, int warp,
                          int lane)
    {
        int r = lane / 8, piece = lane % 8;
        first_step = first, end_step = end;
        four_rows = 2u * static_cast<uint32_t>(j.columns);
        to = shared + (warp * TILE + r) * in::PITCH + (piece ^ 2 * r) * 16;
        scales_to = shared + in::SCALES + warp * RING * in::SCALE_BYTES +
                    (NESTED ? lane * 4 : lane % 16 * 16);
        go_to(j, first_tile, lane);
    }

    /* Sets the pointers to the first step of tile `at`, which may be in another weight. */
    __device__ void go_to(const one_job &j, int at, int lane)
    {
        tile = first_step < end_step ? at : j.tiles;
        step = first_step;
        end_tile = 0;
        if (tile >= j.tiles) return;
        int64_t row_bytes = j.columns / 2;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            row_layout p = layout_of(j, tile, half);
            end_tile = j.gated ? j.tiles : j.at[p.member].end_tile;
            source[half] = j.at[p.member].codes + (p.row + lane / 8) * row_bytes + step * LINE +
                           lane % 8 * 16;
            if (half != lane % 16 / 8) continue;
            const one_weight &w = j.at[p.member];
            granule = static_cast<uint32_t>(p.row + lane % 8) * (static_cast<uint32_t>(j.columns) / GRANULE) +
                      step * 4;
            scales = w.scales, factors = w.factors, shift = w.shift;
        }
    }

    /* Within a weight, the distance from tile to tile is constant. */
    __device__ void next_tile(const one_job &j, int groups, int lane)
    {
        if (tile + groups >= end_tile) {
            go_to(j, tile + groups, lane);
            return;
        }
        uint32_t rows = static_cast<uint32_t>(groups) * (j.gated ? 8u : 16u);
        int64_t back = static_cast<int64_t>(end_step - first_step) * LINE;
        int64_t far = static_cast<int64_t>(rows) * (j.columns / 2) - back;
        source[0] += far, source[1] += far;
        granule += rows * (static_cast<uint32_t>(j.columns) / GRANULE) - (end_step - first_step) * 4;
        tile += groups, step = first_step;
    }

    /* Starts the copies of the next step into `slot`, and moves on. Without work it closes an empty
     * group, so that the count of groups stays right. */
    __device__ void load(const one_job &j, int groups, int lane, int slot)
    {
        if (tile < j.tiles) {
            uint8_t *target = to + in::slot_at(slot), *scales_slot = scales_to + slot * in::SCALE_BYTES;
#pragma unroll
            for (int i = 0; i < 4; i++)
                cp_async_16(target + i * 4 * in::PITCH,
                            source[i / 2] + static_cast<size_t>(i % 2) * four_rows);
            if constexpr (NESTED) {
                const void *from = lane < 16 ? static_cast<const void *>(scales + granule)
                                             : factors + (granule >> shift);
                cp_async_4(scales_slot, from);
            } else if (lane < 16) {
                cp_async_16(scales_slot, scales + static_cast<size_t>(granule) * 4);
            }
            source[0] += LINE, source[1] += LINE, granule += 4;
            if (++step == end_step) next_tile(j, groups, lane);
        }
        cp_async_commit();
    }
};

/* ---- x ---- */

constexpr int REGISTER_STEPS = 2; /* steps of a warp: a norm keeps their x in registers */

/* A lane's columns of each step, as the norm computes them. All threads of the cluster take part. */
template <typename T> struct one_row {
    uint4 at[REGISTER_STEPS][2];

    __device__ void load(const void *x, int first, int count)
    {
#pragma unroll
        for (int i = 0; i < REGISTER_STEPS; i++)
#pragma unroll
            for (int p = 0; p < 2; p++)
                at[i][p] = i < count
                               ? read_written(static_cast<const T *>(x) + first + i * STEP_COLUMNS + p * 8)
                               : make_uint4(0, 0, 0, 0);
    }

    /* RMSNorm of the row in registers. Every warp computes Σ h² of its columns and sends it to both
     * blocks of the cluster; `barrier` completes when all sums are there. The sums are added in the
     * order of the workers, so every block gets the same bits. `counts`: this lane's columns are
     * not a copy of another lane's. `writes`: this lane stores the results. */
    __device__ void normalize(const one_job &j, float *squares, uint64_t *barrier, int first, int count,
                              int worker, int workers, bool counts, bool writes)
    {
        const one_norm &norm = j.norm;
        float mine = 0;
        uint4 residual[REGISTER_STEPS][2];
#pragma unroll
        for (int i = 0; i < REGISTER_STEPS; i++)
#pragma unroll
            for (int p = 0; p < 2; p++)
                if (norm.residual && i < count)
                    residual[i][p] = read_written(static_cast<const T *>(norm.residual) + first +
                                                  i * STEP_COLUMNS + p * 8);
#pragma unroll
        for (int i = 0; i < REGISTER_STEPS; i++)
#pragma unroll
            for (int p = 0; p < 2; p++) {
                float h[8], more[8];
                if (i >= count) continue;
                unpack<T>(at[i][p], h);
                if (norm.residual) {
                    unpack<T>(residual[i][p], more);
#pragma unroll
                    for (int e = 0; e < 8; e++) h[e] += more[e];
                    at[i][p] = packed_up<T>(h);
                    unpack<T>(at[i][p], h);
                }
#pragma unroll
                for (int e = 0; e < 8; e++) mine = fmaf(h[e], h[e], mine);
            }
        mine = warp_sum(counts ? mine : 0);
        if (threadIdx.x % 32 == 0) {
            squares[worker] = mine;
            if (j.shared_tiles) send_to_rank(squares + worker, barrier, worker < WARPS ? 1 : 0, mine);
            arrive_at(barrier,
                      j.shared_tiles ? 4 : 0); /* bytes that a warp of the other block sends */
        }
        wait_at(barrier, 0);
        float sum = 0;
#pragma unroll
        for (int w = 0; w < SHARERS * WARPS; w++) sum += w < workers ? squares[w] : 0;
        float scale = 1 / sqrtf(sum / static_cast<float>(j.columns) + norm.eps);
#pragma unroll
        for (int i = 0; i < REGISTER_STEPS; i++)
#pragma unroll
            for (int p = 0; p < 2; p++) {
                int64_t column = first + i * STEP_COLUMNS + p * 8;
                float y[8], w[8];
                if (i >= count) continue;
                if (writes && norm.sum)
                    *reinterpret_cast<uint4 *>(static_cast<T *>(norm.sum) + column) = at[i][p];
                load_any<8>(norm.w, norm.w_dtype, column, w);
                unpack<T>(at[i][p], y);
#pragma unroll
                for (int e = 0; e < 8; e++) y[e] *= scale;
                if (norm.round_first) unpack<T>(packed_up<T>(y), y);
#pragma unroll
                for (int e = 0; e < 8; e++) y[e] *= w[e] + norm.offset;
                at[i][p] = packed_up<T>(y);
                if (writes) *reinterpret_cast<uint4 *>(static_cast<T *>(norm.y) + column) = at[i][p];
            }
    }
};

} // namespace nbl_cuda
#endif
