/* gemm_kernels.h - between packing and multiplying: the layout of panels, and the
 * kernels that read them.
 *
 *   A: row panels of up to `rows` rows             B: strips of 16 columns
 *
 *   f32    A [k][rows of the panel]                B [k][16]
 *   pairs  A [k/2][rows of the panel][2]           B [k/2][16][2]       bf16, k and k + 1 side by side
 *   tiles  A [k/32][16 rows][32]                   B as pairs: 16 pairs are one tile of 1 KiB
 *   split  A [k/32][3 parts][16 rows][32]          B [k/32][parts][16 pairs][16][2]
 *
 * split: an f32 is the sum of three bf16, v0 = bf16(v), v1 = bf16(v - v0), v2 = v
 * - v0 - v1, of 8 bits each of 24. A B that is bf16 already has one part.
 *
 * Rows: the rows of a row block are spread evenly over its
 * panels. A kernel exists for every number of rows, so that no row of zeros is
 * computed. Tiles are padded to 16 rows with zeros. k is padded with zeros to
 * `k_step` on both sides.
 *
 * Whatever the tiling, an element of the result is the same sum in the same order. */
#ifndef NBL_GEMM_KERNELS_H
#define NBL_GEMM_KERNELS_H

#include "tensor/dtype.h"

enum {
    NBL_STRIP = 16,          /* columns of a strip */
    NBL_MAX_PANEL_ROWS = 16, /* max rows of a panel, over all kernels */
    NBL_MAX_K_BLOCK = 1024,  /* max k_block, over all kernels */
    NBL_SPLIT_PARTS = 3
};

/* The layouts above, in that order. */
typedef enum nbl__gemm_panel {
    NBL_PANEL_F32,
    NBL_PANEL_PAIRS,
    NBL_PANEL_TILES,
    NBL_PANEL_SPLIT
} nbl__gemm_panel;

/* tile = or += alpha · A · B, over one block of k. */
typedef struct nbl__gemm_block {
    const void *a;                  /* the row block's panels for this block of k */
    int64_t rows, panels;           /* of the row block; rows as padded */
    int64_t panel_begin, panel_end; /* the panels to multiply */
    const void *b;                  /* strips, each [k as padded][16] */
    int64_t b_line, b_strip; /* f32 only: elements from one k to the next, and from one strip to the next */
    int b_parts;             /* of a split B: 1 or 3 */
    int64_t strips;
    int64_t k; /* as padded */
    float alpha;
    bool add;       /* add to the tile; else write it */
    float *tile;    /* its first row is that of panel_begin; 64-byte aligned for padded kernels */
    int64_t stride; /* elements from one row of the tile to the next */
} nbl__gemm_block;

typedef struct nbl__gemm_kernel {
    const char *name;
    nbl__gemm_panel panel;
    int rows;    /* max rows of a panel */
    int k_step;  /* k is padded to a multiple of it */
    int k_block; /* max length of a block of k; a multiple of 64 */
    bool padded; /* panels always have `rows` rows */
    void (*run)(const nbl__gemm_block *block);
    nbl_isa needs;
    bool (*suits)(nbl_dtype compute, int64_t m); /* is it worth it? NULL: for every dtype and m */
} nbl__gemm_kernel;

/* All kernels, best first. A new one needs its file and a line here. */
#define NBL_GEMM_KERNELS(X)                                                                                  \
    NBL_X86(X(gemm_bf16_32x32_amx))                                                                          \
    NBL_X86(X(gemm_bf16_14x32_avx512bf16))                                                                   \
    NBL_X86(X(gemm_f32_32x32_amx))                                                                           \
    NBL_X86(X(gemm_f32_14x32_avx512))                                                                        \
    NBL_X86(X(gemm_f32_6x16_avx2))                                                                           \
    X(gemm_f32_4x16_scalar)

#define KERNEL_DECLARATION(name) extern const nbl__gemm_kernel nbl__##name;
NBL_GEMM_KERNELS(KERNEL_DECLARATION)
#undef KERNEL_DECLARATION

/* The first kernel of the list that the instruction set has and that suits the compute dtype
 * and m rows of A. Never NULL. */
const nbl__gemm_kernel *nbl__gemm_kernel_for(nbl_isa isa, nbl_dtype compute, int64_t m);

/* Max bytes per element of a panel. */
static inline size_t nbl__panel_element(const nbl__gemm_kernel *kernel)
{
    return kernel->panel == NBL_PANEL_F32     ? sizeof(float)
           : kernel->panel == NBL_PANEL_SPLIT ? NBL_SPLIT_PARTS * sizeof(uint16_t)
                                              : sizeof(uint16_t);
}

/* The first row of panel `panel` of `panels`; for panel == panels, the number of
 * rows. */
static inline int64_t nbl__panel_start(int64_t rows, int64_t panels, int64_t panel)
{
    return panel * rows / panels;
}

static inline int64_t nbl__round_up(int64_t value, int64_t step)
{
    return (value + step - 1) / step * step;
}

#endif
