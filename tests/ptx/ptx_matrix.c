/* ptx_matrix.c - matrices that lie across the lanes of a warp. See ptx_code.h.
 *
 * Products are summed in f64, from the first column on, c first, and rounded once. A device rounds more often. */
#include "ptx_code.h"
#include "ptx_math.h"

#include <string.h>

/* Matrix i of 8 x 8 elements of 16 bits: its row r begins where lane 8 i + r points. Lane l gets elements 2 (l % 4) and
 * the next of row l / 4; transposed, of column l / 4. */
void ptx_load_matrix(ptx_block *b, ptx_warp *w, ptx_instruction *in, uint32_t lanes)
{
    const uint32_t *more = b->code->more + in->more;
    if (lanes != UINT32_MAX) {
        ptx_fail(b, w, __builtin_ctz(lanes), in, "all lanes have to take part, here %08x", lanes);
        return;
    }
    uint32_t results[4][PTX_LANES];
    for (uint32_t i = 0; i < in->count; i++) {
        uint16_t matrix[8][8];
        for (int row = 0; row < 8; row++) {
            int lane = (int)i * 8 + row;
            uint64_t address = (in->wide_address ? ptx_longs(w, in->a)[lane] : ptx_words(w, in->a)[lane]) +
                               (uint64_t)in->imm;
            const void *from = ptx_where(b, w, in, lane, PTX_SHARED, address, 16, 16);
            if (from == NULL) return;
            memcpy(matrix[row], from, 16);
        }
        for (int lane = 0; lane < PTX_LANES; lane++) {
            int row = lane / 4, column = lane % 4 * 2;
            results[i][lane] = in->high ? matrix[column][row] | (uint32_t)matrix[column + 1][row] << 16
                                        : matrix[row][column] | (uint32_t)matrix[row][column + 1] << 16;
        }
    }
    for (uint32_t i = 0; i < in->count; i++) memcpy(ptx_words(w, more[2 * i]), results[i], sizeof results[i]);
}

static double half_of(const ptx_instruction *in, uint32_t pair, int second)
{
    uint32_t bits = second ? pair >> 16 : pair & 0xffff;
    return (double)(in->kind == PTX_BFLOAT ? ptx_float(bits << 16) : ptx_from_half(bits));
}

/* d (16 x 8) = a (16 x k) b (k x 8) + c. Lane l has of a: rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next, then
 * the same 8 columns on; of b: rows 2 (l % 4) and the next, then 8 on, column l / 4; of c and d: rows as of a, columns
 * 2 (l % 4) and the next. */
void ptx_mma(ptx_block *b, ptx_warp *w, const ptx_instruction *in)
{
    const uint32_t *d = b->code->more + in->more, *a = d + 4, *bs = a + in->count / 4,
                   *c = bs + in->count / 8;
    double left[16][16], right[16][8];
    for (int lane = 0; lane < PTX_LANES; lane++) {
        int row = lane / 4, column = lane % 4 * 2;
        for (int i = 0; i < in->count / 4; i++) { /* rows, rows + 8, then the same in the next columns */
            uint32_t pair = ptx_words(w, a[i])[lane];
            for (int k = 0; k < 2; k++) left[row + i % 2 * 8][column + i / 2 * 8 + k] = half_of(in, pair, k);
        }
        for (int i = 0; i < in->count / 8; i++) {
            uint32_t pair = ptx_words(w, bs[i])[lane];
            for (int k = 0; k < 2; k++) right[column + i * 8 + k][row] = half_of(in, pair, k);
        }
    }
    double sums[16][8];
    for (int lane = 0; lane < PTX_LANES; lane++)
        for (int i = 0; i < 4; i++)
            sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = (double)ptx_float(ptx_words(w, c[i])[lane]);
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < in->count; k++)
            for (int column = 0; column < 8; column++) sums[row][column] += left[row][k] * right[k][column];
    for (int lane = 0; lane < PTX_LANES; lane++)
        for (int i = 0; i < 4; i++) {
            float sum = (float)sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
            ptx_words(w, d[i])[lane] = sum == sum ? ptx_bits(sum) : 0x7fffffff;
        }
}
