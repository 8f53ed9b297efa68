/* gemm_amx.h - what the AMX kernels share: the tile configuration, and how a tile
 * of C is begun and finished.
 *
 * A tile register holds 16 rows of 64 bytes. C: 0 1 / 2 3 (32 rows by 32 columns
 * of f32), A: 4 5, B: 6 7. */
#ifndef NBL_GEMM_AMX_H
#define NBL_GEMM_AMX_H

#include "ops/common/amx_tiles.h"
#include "ops/gemm/cpu/gemm_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { ROWS = 16, TILE_BYTES = 1024, ROW_BYTES = 64, K_STEP = 32 };

/* tile[16][16] = or += alpha · from, where from is a stored tile register. */
NBL_TARGET_AMX static inline void amx_join(const float *from, const nbl__gemm_block *block, float *tile)
{
    __m512 alpha = _mm512_set1_ps(block->alpha);
    for (int r = 0; r < ROWS; r++, tile += block->stride, from += NBL_STRIP) {
        __m512 value = _mm512_mul_ps(alpha, _mm512_load_ps(from));
        _mm512_storeu_ps(tile, block->add ? _mm512_add_ps(_mm512_loadu_ps(tile), value) : value);
    }
}

/* START begins register c with C or zero, FINISH stores it to C, through `part`
 * unless alpha is 1. Macros, because the number of a register is part of the
 * instruction. */
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
            amx_join(part, block, corner);                                                                   \
        }                                                                                                    \
    } while (0)

#endif

#endif
