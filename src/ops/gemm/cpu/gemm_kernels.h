/* gemm_kernels.h - what lies between packing and multiplying: panels, and the kernels that read them.
 *
 *     A  row panels, up to `rows` rows each          B  strips of 16 columns
 *
 *     f32    A [k][rows of the panel]                 B [k][16]
 *     pairs  A [k/2][rows of the panel][2]            B [k/2][16][2]           bf16, k and k + 1 side by side
 *     tiles  A [k/32][16 rows][32]                    B as pairs: 16 pairs are a tile
 *     split  A [k/32][3 parts][16 rows][32]           B [k/32][parts][16 pairs][16][2]
 *
 * A split f32 is the sum of three bf16, each the rest of the one before, rounded: 8 bits each of 24. Where B is bf16
 * already, one part is all of it.
 *
 * The rows of a superblock are spread evenly over its panels (a kernel exists for each number of rows), so
 * that no row is computed for nothing; tiles pad to 16 rows with zeros. k is padded with zeros to `k_step`
 * on both sides. Whatever the tiling, an element of the result is the same sum in the same order. */
#ifndef NBL_GEMM_KERNELS_H
#define NBL_GEMM_KERNELS_H

#include "tensor/dtype.h"

enum {
    NBL_STRIP = 16,          /* columns */
    NBL_PANEL_MAX_ROWS = 16, /* of any kernel */
    NBL_MAX_K_BLOCK = 1024,
    NBL_SPLIT_PARTS = 3
};

typedef enum nbl__panel { NBL_PANEL_F32, NBL_PANEL_PAIRS, NBL_PANEL_TILES, NBL_PANEL_SPLIT } nbl__panel;

/* tile (+)= alpha · A · B over one block of k. */
typedef struct nbl__block {
    const void *a;                  /* the superblock's panels for this block of k */
    int64_t rows, panels;           /* of the superblock, rows as padded */
    int64_t panel_begin, panel_end; /* the panels to multiply */
    const void *b;                  /* strips, each [k as padded][16] */
    int64_t b_line, b_strip;        /* f32: elements from one k to the next, and from one strip to the next */
    int b_parts;                    /* of a split B: 1 or 3 */
    int64_t strips;
    int64_t k; /* as padded */
    float alpha;
    bool add;       /* to the tile; or write it */
    float *tile;    /* row 0 is the first row of panel_begin; aligned to 64 bytes for padded kernels */
    int64_t stride; /* elements */
} nbl__block;

typedef struct nbl__kernel {
    const char *name;
    nbl__panel panel;
    int rows;    /* of a panel, at most */
    int k_step;  /* k is padded to a multiple of it */
    int k_block; /* the longest block of k; a multiple of 64 */
    bool padded; /* panels always have `rows` rows */
    void (*run)(const nbl__block *block);
} nbl__kernel;

/* The kernel of an instruction set for m rows of A and B in a compute dtype. */
const nbl__kernel *nbl__kernel_for(nbl_isa isa, nbl_dtype compute, int64_t m);

/* Bytes that an element takes in panels, at most. */
static inline size_t nbl__panel_element(const nbl__kernel *kernel)
{
    return kernel->panel == NBL_PANEL_F32     ? sizeof(float)
           : kernel->panel == NBL_PANEL_SPLIT ? NBL_SPLIT_PARTS * sizeof(uint16_t)
                                              : sizeof(uint16_t);
}

/* The first row of a panel; of panel `panels`: the number of rows. */
static inline int64_t nbl__panel_start(int64_t rows, int64_t panels, int64_t panel)
{
    return panel * rows / panels;
}

static inline int64_t nbl__round_up(int64_t value, int64_t step)
{
    return (value + step - 1) / step * step;
}

extern const nbl__kernel nbl__gemm_f32_4x16_scalar;
#if defined(__x86_64__)
extern const nbl__kernel nbl__gemm_f32_6x16_avx2, nbl__gemm_f32_14x32_avx512, nbl__gemm_bf16_14x32_avx512bf16,
    nbl__gemm_bf16_32x32_amx, nbl__gemm_f32_32x32_amx;
#endif

#endif
