/* gemv_ring.cuh - loads codes and scales for the products of gemv.cu and gemv_f32.cuh. Internal to
 * the CUDA kernels.
 *
 *     a block (persistent): for its tiles of 16 rows of W
 *         each of 8 warps: its eighth of the columns, in steps of 16 rows x 128 bytes of codes
 *             cp.async: codes and scales of step s + DEPTH - 1 → a ring of DEPTH slots in shared memory
 *             product of step s
 *
 * With two blocks per multiprocessor, 16 warps have two steps of 2 KB each in flight: 64 KB at any
 * time. No register waits for memory. Only the lanes of one warp share a slot, so __syncwarp is the
 * only barrier of the ring. */
#ifndef NBL_GEMV_RING_CUH
#define NBL_GEMV_RING_CUH

#include "ops/dequantize/dequantize_value.cuh"
#include "ops/gemv/cuda/gemv_cuda.h"

namespace nbl_cuda
{

/* GRANULE: columns of a row that certainly share a scale. MAX_M: rows of x. */
enum { THREADS = 256, WARPS = THREADS / 32, GRANULE = 64, MAX_M = NBL_MAX_CUDA_GEMV_ROWS };

/* Asynchronous copies to shared memory. cp_async_commit ends a group; cp_async_wait waits until at
 * most LEFT groups of this thread are under way. */
__device__ inline void cp_async_16(void *to_shared, const void *from)
{
    uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(to_shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void cp_async_4(void *to_shared, const void *from)
{
    uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(to_shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LEFT> __device__ inline void cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* sums[16, 8] += a · b by a warp: 16 rows of W, 16 columns, 8 rows of x. */
template <typename T>
__device__ inline void multiply(float *sums, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    if constexpr (__is_same(T, __half))
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The two values (of T) of byte `byte` of `word`. `mine` is the lane's offset in an entry of the table. */
__device__ inline uint32_t look_up(const uint8_t *table, uint32_t word, int byte, uint32_t mine)
{
    return *reinterpret_cast<const uint32_t *>(table + __byte_perm(word, mine, 0x5504u | byte << 4));
}

/* Layout of a block's shared memory, in lines of 128 bytes: 104 KiB for 4-bit weights, 56 KiB for
 * int8. For 4-bit weights:
 *
 *     even lines 0 … 510     the 256 entries of the table: an entry's address is its byte shifted left by 8
 *     even lines behind      scales of the steps
 *     odd lines              rows of codes */
enum { DEPTH = 3, TILE = 16, LINE = 128, SLOTS = WARPS * DEPTH, SUMS = WARPS * TILE * MAX_M };
template <scale_kind KIND> struct layout {
    static constexpr bool INT8 = KIND == SCALES_ROWS;
    enum {
        ROW = INT8 ? LINE : 2 * LINE, /* from one row of codes to the next */
        CODES = INT8 ? 0 : LINE,
        SCALES =
            256 * 2 *
            LINE, /* four lines per slot. Flat: 16 scales a line. Nested: two lines of codes, two of scales */
        MADE = KIND == SCALES_NESTED ? 2 * ROW : 0, /* from there to the scales that products use */
        TABLE = SLOTS * TILE * ROW,                 /* of nested scales */
        ALL_SUMS = TABLE + (KIND == SCALES_NESTED ? 1024 : 0),
        BYTES = ALL_SUMS + 2 * SUMS * 4,
        COLUMNS = INT8 ? LINE : 2 * LINE, /* per step */
        GRANULES = COLUMNS / GRANULE
    };
    static_assert(INT8 || 256 + SLOTS * 4 <= SLOTS * TILE, "the scales fit between the rows");
};

/* Index, in the whole matrix, of the first granule of row g of a tile. 2^32 granules are 2^38 elements. */
__device__ inline uint32_t granule_of(int tile, int g, int columns)
{
    return (static_cast<uint32_t>(tile) * TILE + g) * static_cast<uint32_t>(columns / GRANULE);
}

/* A warp's loads, DEPTH - 1 steps ahead of its products. Lane 8r + i copies 16-byte piece i of the codes of rows r, r + 4,
 * r + 8 and r + 12. Pieces are swizzled: lanes that read together use different banks. Lanes i and 16 + i copy the scales
 * of row i. Nothing outside the matrix is copied: those values are multiplied with zeros, or their sums are not stored.
 *
 * WHOLE: no tile and no step reaches outside the matrix, and the four scales of a row and step are one aligned word of
 * codes, or one aligned float4. True for all usual shapes with blocks of 64. */
template <scale_kind KIND, bool WHOLE> struct loader {
    typedef layout<KIND> in;
    const uint8_t *source;
    uint8_t *to, *scales_to;
    int64_t next_source; /* from the last step of a tile to the first of the next */
    uint32_t granule, next_granule, blocks;
    int rows_left, columns_left, first_columns_left, stride, slot, step, steps;
    uint32_t four_rows;
    int r;

    __device__ loader(const packed &p, uint8_t *shared, int rows, int first_tile, int tile_stride,
                      int first_step, int step_count, int warp, int lane)
    {
        int columns = static_cast<int>(p.columns), row_bytes = in::INT8 ? columns : columns / 2;
        int piece = lane % 8;
        r = lane / 8;
        step = slot = 0;
        steps = step_count;
        stride = tile_stride * TILE;
        rows_left = steps > 0 ? rows - first_tile * TILE : 0;
        /* counted in columns of the piece and of the granule: both end at the same column */
        columns_left = first_columns_left = columns - first_step * in::COLUMNS;
        source = p.codes + (static_cast<int64_t>(first_tile) * TILE + r) * row_bytes + first_step * LINE +
                 piece * 16;
        granule = granule_of(first_tile, lane % 16, columns) + first_step * in::GRANULES;
        next_source = static_cast<int64_t>(stride) * row_bytes - (steps - 1) * LINE;
        next_granule = static_cast<uint32_t>(stride) * (columns / GRANULE) - (steps - 1) * in::GRANULES;
        four_rows = 4u * static_cast<uint32_t>(row_bytes);
        to = shared + in::CODES + (warp * DEPTH * TILE + r) * in::ROW +
             (piece ^ (in::INT8 ? 4 * (r & 1) : 2 * r)) * 16;
        scales_to = shared + in::SCALES + warp * DEPTH * 4 * in::ROW;
        blocks = in::INT8 ? 0
                          : static_cast<uint32_t>(
                                (static_cast<int64_t>(rows) * columns + (1 << p.block_shift) - 1) >>
                                p.block_shift);
    }

    /* One or two lanes copy the scales of a row: lanes with the same address would be served one after another. */
    __device__ void copy_scales(const packed &p, int lane)
    {
        uint8_t *line = scales_to + slot * 4 * in::ROW;
        int shift = p.block_shift - 6, row = lane % 16;
        if constexpr (WHOLE) {
            if (lane >= 16) return;
            if (KIND == SCALES_NESTED) cp_async_4(line + row * 4, p.scale_codes + granule);
            else cp_async_16(line + row / 8 * in::ROW + row % 8 * 16, p.scales + granule);
        } else if (KIND == SCALES_NESTED) { /* the one or two words with the codes of the step */
            uint32_t first = granule >> shift, last = (granule + in::GRANULES - 1) >> shift;
            uint32_t word = (first & ~3u) + lane / 16 * 4;
            uint8_t *target = line + row * 8 + lane / 16 * 4;
            if (row >= rows_left || word > last || word >= blocks) return;
            if (blocks - word >= 4) cp_async_4(target, p.scale_codes + word);
            else
                for (uint32_t i = 0; i < blocks - word; i++) target[i] = p.scale_codes[word + i];
        } else { /* two of the row's four scales */
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int at = lane / 16 * 2 + i;
                uint8_t *target = line + row / 8 * in::ROW + (row % 8 * 4 + at) * 4;
                if (row < rows_left && at * GRANULE < columns_left)
                    cp_async_4(target, p.scales + ((granule + at) >> shift));
                else *reinterpret_cast<float *>(target) = 0;
            }
        }
    }

    __device__ void load(const packed &p, int lane)
    {
        if (rows_left > 0) {
            uint8_t *slot_to = to + slot * TILE * in::ROW;
            bool inside = lane % 8 * (in::COLUMNS / 8) < columns_left;
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (WHOLE || (inside && r + 4 * j < rows_left))
                    cp_async_16(slot_to + j * 4 * in::ROW, source + static_cast<size_t>(j) * four_rows);
            if constexpr (!in::INT8) copy_scales(p, lane);
            slot = slot + 1 == DEPTH ? 0 : slot + 1;
            if (++step == steps) {
                step = 0;
                rows_left -= stride;
                columns_left = first_columns_left;
                source += next_source;
                granule += next_granule;
            } else {
                columns_left -= in::COLUMNS;
                source += LINE;
                granule += in::GRANULES;
            }
        }
        cp_async_commit();
    }
};

/* Nested scales: lane 4g + t computes two scales of a step, those of granule t in rows g and g + 8. Does nothing for
 * other kinds. */
template <scale_kind KIND, bool WHOLE> struct scale_maker {
    typedef layout<KIND> in;
    uint32_t blocks[2];
    float factors[2];
    bool inside[2];

    /* Loads the factors, which are not in the ring, before the wait for the ring. `granule`: that of row g. */
    __device__ void begin(const packed &p, uint32_t granule, int rows_left, bool in_columns, int lane)
    {
#pragma unroll
        for (int half = 0; KIND == SCALES_NESTED && half < 2; half++) {
            blocks[half] = (granule + half * static_cast<uint32_t>(p.columns / 8)) >>
                           (WHOLE ? 0 : p.block_shift - 6);
            inside[half] = WHOLE || (in_columns && lane / 4 + half * 8 < rows_left);
            factors[half] = inside[half] ? __ldg(p.nested_scales + (blocks[half] >> p.nested_shift)) : 0;
        }
    }

    /* Computes scales from the codes in the slot and writes them where flat scales would be. All lanes of the warp.
     * `offset`: offset_of(p), which the kernel loads once. */
    __device__ void make(const packed &p, float offset, uint8_t *shared, uint8_t *lines, uint32_t granule, int lane)
    {
        const float *table = reinterpret_cast<const float *>(shared + in::TABLE);
#pragma unroll
        for (int half = 0; KIND == SCALES_NESTED && half < 2; half++) {
            int at = half * 32 + lane;
            if (!WHOLE) { /* relative to the word that has the row's first code */
                uint32_t first = granule - lane % 4 + half * static_cast<uint32_t>(p.columns / 8);
                at = (lane / 4 + half * 8) * 8 +
                     static_cast<int>(blocks[half] - (first >> (p.block_shift - 6) & ~3u));
            }
            float scale = 0;
            if (inside[half]) scale = __fadd_rn(__fmul_rn(table[lines[at]], factors[half]), offset);
            *reinterpret_cast<float *>(lines + in::MADE + half * in::ROW + lane * 4) = scale;
        }
        if (KIND == SCALES_NESTED) __syncwarp();
    }
};

} // namespace nbl_cuda
#endif
