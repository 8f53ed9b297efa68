/* gemm_f32_amx.c - f32 products on AMX as products of bf16: 32 rows by 32 columns, f32 sums.
 *
 *   a = a0 + a1 + a2, b = b0 + b1 + b2           bf16 each, 8 bits of 24; exact (gemm_kernels.h)
 *   a·b = a0·b0 + a0·b1 + a1·b0 + a1·b1 + a0·b2 + a2·b0          omitted: below 2⁻²³ |a·b|
 *
 * Accuracy: products of bf16 are exact in f32. The tile unit sums 32 of k before it adds them to
 * C. The error is that of f32 arithmetic, or less. The unit takes subnormals as zero, which the
 * parts of values below 2⁻¹¹⁰ may be. An infinity gives NaN, because its later parts are NaN.
 *
 * Cost: six products (three if B is bf16) at 16 times the rate of f32 fma: 2.4 times as fast in
 * all. The order of the six changes one side at a time: 14 tile loads for 24 products of a 32 x 32
 * tile. */
#include "ops/gemm/cpu/gemm_amx.h"

#if defined(__x86_64__)

/* Part `part` of A or B into the registers, and the product of what is loaded. */
#define LOAD_A(part)                                                                                         \
    do {                                                                                                     \
        _tile_loadd(4, a + (part)*TILE_BYTES, ROW_BYTES);                                                    \
        if (panels == 2) _tile_loadd(5, a1 + (part)*TILE_BYTES, ROW_BYTES);                                  \
    } while (0)
#define LOAD_B(part)                                                                                         \
    do {                                                                                                     \
        _tile_loadd(6, b + (part)*TILE_BYTES, ROW_BYTES);                                                    \
        if (strips == 2) _tile_loadd(7, b1 + (part)*TILE_BYTES, ROW_BYTES);                                  \
    } while (0)
#define MULTIPLY                                                                                             \
    do {                                                                                                     \
        _tile_dpbf16ps(0, 4, 6);                                                                             \
        if (strips == 2) _tile_dpbf16ps(1, 4, 7);                                                            \
        if (panels == 2) _tile_dpbf16ps(2, 5, 6);                                                            \
        if (panels == 2 && strips == 2) _tile_dpbf16ps(3, 5, 7);                                             \
    } while (0)

/* `panels` row panels (1 or 2) by `strips` strips (1 or 2) of `parts` parts. */
NBL_TARGET_AMX __attribute__((always_inline)) static inline void micro(int panels, int strips, int parts,
                                                                       const uint8_t *a, const uint8_t *b,
                                                                       const nbl__gemm_block *block,
                                                                       float *tile)
{
    _Alignas(64) float part[ROWS * NBL_STRIP];
    enum { A_STEP = NBL_SPLIT_PARTS * TILE_BYTES };
    int64_t steps = block->k / K_STEP, b_step = parts * TILE_BYTES;
    size_t stride = (size_t)block->stride * sizeof(float);
    const uint8_t *a1 = a + steps * A_STEP, *b1 = b + steps * b_step;
    float *low = tile + ROWS * block->stride;
    bool direct = block->alpha == 1;
    for (int r = 0; r < panels * ROWS; r++) {
        __builtin_prefetch(tile + r * block->stride, 1);
        if (strips == 2) __builtin_prefetch(tile + r * block->stride + NBL_STRIP, 1);
    }
    START(0, tile);
    if (strips == 2) START(1, tile + NBL_STRIP);
    if (panels == 2) START(2, low);
    if (panels == 2 && strips == 2) START(3, low + NBL_STRIP);
    for (int64_t i = 0; i < steps; i++, a += A_STEP, a1 += A_STEP, b += b_step, b1 += b_step) {
        LOAD_A(2);
        LOAD_B(0);
        MULTIPLY;
        LOAD_A(1);
        MULTIPLY;
        if (parts == 1) {
            LOAD_A(0);
            MULTIPLY;
            continue;
        }
        LOAD_B(1);
        MULTIPLY;
        LOAD_A(0);
        MULTIPLY;
        LOAD_B(2);
        MULTIPLY;
        LOAD_B(0);
        MULTIPLY;
    }
    FINISH(0, tile);
    if (strips == 2) FINISH(1, tile + NBL_STRIP);
    if (panels == 2) FINISH(2, low);
    if (panels == 2 && strips == 2) FINISH(3, low + NBL_STRIP);
}

NBL_TARGET_AMX __attribute__((always_inline)) static inline void
run_strips(const nbl__gemm_block *block, int64_t strip, int strips, int parts)
{
    size_t bytes = (size_t)block->k * ROWS * 2, panel_bytes = NBL_SPLIT_PARTS * bytes;
    const uint8_t *a = block->a, *b = (const uint8_t *)block->b + (size_t)(strip * parts) * bytes;
    int64_t p = block->panel_begin;
    float *tile = block->tile + strip * NBL_STRIP;
    for (; p + 2 <= block->panel_end; p += 2, tile += 2 * ROWS * block->stride)
        micro(2, strips, parts, a + (size_t)p * panel_bytes, b, block, tile);
    if (p < block->panel_end) micro(1, strips, parts, a + (size_t)p * panel_bytes, b, block, tile);
}

NBL_TARGET_AMX static void run(const nbl__gemm_block *block)
{
    int64_t s = 0;
    _tile_loadconfig(&nbl__amx_tiles);
    for (; s + 2 <= block->strips; s += 2)
        if (block->b_parts == 1) run_strips(block, s, 2, 1);
        else run_strips(block, s, 2, NBL_SPLIT_PARTS);
    if (s < block->strips) {
        if (block->b_parts == 1) run_strips(block, s, 1, 1);
        else run_strips(block, s, 1, NBL_SPLIT_PARTS);
    }
    _tile_release();
}

/* Up to 32 rows, splitting B into three parts costs more than AMX saves. */
static bool suits(nbl_dtype compute, int64_t m)
{
    return compute != NBL_DTYPE_BF16 && m > 32;
}

const nbl__gemm_kernel nbl__gemm_f32_32x32_amx = {
    "gemm_f32_32x32_amx", NBL_PANEL_SPLIT, ROWS, K_STEP, 640, true, run, NBL_ISA_AMX, suits};

#endif
