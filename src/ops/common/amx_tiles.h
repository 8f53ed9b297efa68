/* amx_tiles.h - the tile configuration that all AMX kernels use: eight registers of 16 rows of 64
 * bytes. */
#ifndef NBL_AMX_TILES_H
#define NBL_AMX_TILES_H

#include <stdint.h>

/* The operand of ldtilecfg, laid out by the instruction. It is a constant, because compilers assume
 * that _tile_loadconfig reads only the first bytes, and would drop stores to the others. */
static const struct nbl__amx_tiles {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} nbl__amx_tiles = {
    .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

#endif
