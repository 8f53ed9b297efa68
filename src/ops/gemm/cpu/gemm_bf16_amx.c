/* gemm_bf16_amx.c - bf16 products on AMX: 32 rows by 32 columns in four of the eight tile
 * registers, f32 sums.
 *
 *   registers   C 0 1     A 4     B 6 7
 *                 2 3       5
 *
 *   for each pair of strips, for each pair of row panels:       C += A · B
 *       per 32 of k: 4 tile loads, 4 products of 16 x 16 x 32
 *
 * A tile of A is 16 rows of 32 consecutive k. A tile of B is 16 pairs of k for 16 columns. Both
 * are 1 KiB of consecutive memory in the panels.
 *
 * Bytes: two strips of B (k_block x 64 bytes) stay in the L1 cache, A streams from the second:
 * 2 KiB per 32 of k. Limit: the tile unit. The unit takes
 * subnormals as zero. */
#include "ops/gemm/cpu/gemm_amx.h"

#if defined(__x86_64__)

NBL_TARGET_AMX __attribute__((always_inline)) static inline void
micro(int panels, int strips, const uint8_t *a, const uint8_t *b, const nbl__gemm_block *block, float *tile)
{
    _Alignas(64) float part[ROWS * NBL_STRIP];
    int64_t steps = block->k / K_STEP;
    size_t stride = (size_t)block->stride * sizeof(float);
    const uint8_t *a1 = a + steps * TILE_BYTES, *b1 = b + steps * TILE_BYTES;
    float *low = tile + ROWS * block->stride;
    bool direct = block->alpha == 1;
    START(0, tile);
    if (strips == 2) START(1, tile + NBL_STRIP);
    if (panels == 2) START(2, low);
    if (panels == 2 && strips == 2) START(3, low + NBL_STRIP);
    for (int64_t i = 0; i < steps; i++) {
        int64_t at = i * TILE_BYTES;
        _tile_loadd(4, a + at, ROW_BYTES);
        _tile_loadd(6, b + at, ROW_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        if (strips == 2) {
            _tile_loadd(7, b1 + at, ROW_BYTES);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (panels == 2) {
            _tile_loadd(5, a1 + at, ROW_BYTES);
            _tile_dpbf16ps(2, 5, 6);
            if (strips == 2) _tile_dpbf16ps(3, 5, 7);
        }
    }
    FINISH(0, tile);
    if (strips == 2) FINISH(1, tile + NBL_STRIP);
    if (panels == 2) FINISH(2, low);
    if (panels == 2 && strips == 2) FINISH(3, low + NBL_STRIP);
}

NBL_TARGET_AMX __attribute__((always_inline)) static inline void run_strips(const nbl__gemm_block *block,
                                                                            int64_t strip, int strips)
{
    size_t panel_bytes = (size_t)block->k * ROWS * 2;
    const uint8_t *a = block->a, *b = (const uint8_t *)block->b + (size_t)strip * panel_bytes;
    int64_t p = block->panel_begin;
    float *tile = block->tile + strip * NBL_STRIP;
    for (; p + 2 <= block->panel_end; p += 2, tile += 2 * ROWS * block->stride)
        micro(2, strips, a + (size_t)p * panel_bytes, b, block, tile);
    if (p < block->panel_end) micro(1, strips, a + (size_t)p * panel_bytes, b, block, tile);
}

NBL_TARGET_AMX static void run(const nbl__gemm_block *block)
{
    int64_t s = 0;
    _tile_loadconfig(&nbl__amx_tiles);
    for (; s + 2 <= block->strips; s += 2) run_strips(block, s, 2);
    if (s < block->strips) run_strips(block, s, 1);
    _tile_release();
}

static bool suits(nbl_dtype compute, int64_t m)
{
    (void)m;
    return compute == NBL_DTYPE_BF16;
}

const nbl__gemm_kernel nbl__gemm_bf16_32x32_amx = {
    "gemm_bf16_32x32_amx", NBL_PANEL_TILES, ROWS, K_STEP, 1024, true, run, NBL_ISA_AMX, suits};

#endif
