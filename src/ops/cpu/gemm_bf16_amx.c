/* gemm_bf16_amx.c - 32 rows by 32 columns in four of the eight tile registers, bf16 products, f32 sums.
 *
 *     registers   C 0 1     A 4     B 6 7        per 32 of k: 4 tile loads, 4 products of 16 x 16 x 32
 *                   2 3       5
 *
 * A tile of A is 16 rows of 32 consecutive k, one of B 16 pairs of k for 16 columns: 1 KiB each, and
 * consecutive in the panels. Two strips of B (k_block x 64 bytes) stay in the first cache, A streams from
 * the second. The tile unit takes subnormals as zero. */
#include "ops/cpu/gemm_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { ROWS = 16, TILE_BYTES = 1024, ROW_BYTES = 64, K_STEP = 32 };

/* Layout fixed by the instruction: palette 1, all tiles 16 rows of 64 bytes. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;
static const tile_config config = {
    .palette = 1,
    .row_bytes = {ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES},
    .rows = {ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS},
};

/* tile[16 rows][16] (+)= alpha · from */
NBL_TARGET_AMX static void join(const float *from, const nbl__block *block, float *tile)
{
    __m512 alpha = _mm512_set1_ps(block->alpha);
    for (int r = 0; r < ROWS; r++, tile += block->stride, from += NBL_STRIP) {
        __m512 value = _mm512_mul_ps(alpha, _mm512_load_ps(from));
        _mm512_store_ps(tile, block->add ? _mm512_add_ps(_mm512_load_ps(tile), value) : value);
    }
}

/* The registers' numbers are part of the instructions, hence macros. */
#define START(c, corner)                                                                                     \
    do {                                                                                                     \
        if (direct && block->add) _tile_loadd(c, corner, stride);                                            \
        else _tile_zero(c);                                                                                  \
    } while (0)
#define FINISH(c, corner)                                                                                    \
    do {                                                                                                     \
        if (direct) {                                                                                        \
            _tile_stored(c, corner, stride);                                                                 \
        } else {                                                                                             \
            _tile_stored(c, part, ROW_BYTES);                                                                \
            join(part, block, corner);                                                                       \
        }                                                                                                    \
    } while (0)

/* `panels` row panels (1 or 2) by `strips` strips (1 or 2). */
NBL_TARGET_AMX __attribute__((always_inline)) static inline void
micro(int panels, int strips, const uint8_t *a, const uint8_t *b, const nbl__block *block, float *tile)
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

NBL_TARGET_AMX __attribute__((always_inline)) static inline void run_strips(const nbl__block *block,
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

NBL_TARGET_AMX static void run(const nbl__block *block)
{
    int64_t s = 0;
    _tile_loadconfig(&config);
    for (; s + 2 <= block->strips; s += 2) run_strips(block, s, 2);
    if (s < block->strips) run_strips(block, s, 1);
    _tile_release();
}

const nbl__kernel nbl__gemm_bf16_32x32_amx = {
    "gemm_bf16_32x32_amx", NBL_PANEL_TILES, ROWS, K_STEP, 512, true, run};

#endif
