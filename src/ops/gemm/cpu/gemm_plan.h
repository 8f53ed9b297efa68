/* gemm_plan.h - the plan of a gemm call: its operands, where rows and columns are
 * cut, and the scratch. gemm_plan.c makes plans, gemm.c runs them.
 *
 *   rows      row blocks of at most ROW_BLOCK rows, one after the other; each row block is cut into slices
 *   columns   column blocks of at most max_column_block strips of 16
 *   k         blocks of at most the kernel's k_block, in order
 *
 * Column blocks become smaller towards the end. Large ones come first, since the panels
 * of A pass through the caches once per column block; small ones come last, so that the
 * threads end together.
 *
 * Slices: each slice packs (and dequantizes) its column block of B again. A row block
 * therefore has several slices only if its column blocks alone are fewer than
 * SLICES_PER_THREAD per thread.
 *
 * Scratch:  panels of A, per operand | per worker: tile, part, panel of B, scratch
 * of packing, lines */
#ifndef NBL_GEMM_PLAN_H
#define NBL_GEMM_PLAN_H

#include "ops/gemm/cpu/pack.h"

enum {
    ROW_BLOCK = 512, /* max rows of a row block */
    PACK_ROWS = 64   /* rows of one item of packing */
};

/* How a term is computed: packed panels, gemv.h, or gemm_int8.h. */
typedef enum term_algo { ALGO_PANELS, ALGO_GEMV, ALGO_INT8 } term_algo;

/* A distinct left operand: packed once for all terms that use it. */
typedef struct operand {
    nbl__pack_source source;
    int64_t m, k, k_block, row_blocks;
    int stage;
    uint8_t *panels; /* [block of k][panel] */
} operand;

/* A term's algorithm; `operand` is an index into gemm_plan.operand, for ALGO_PANELS. */
typedef struct term_plan {
    term_algo algo;
    int operand;
} term_plan;

typedef struct product_plan {
    const nbl__gemm_product *product;
    term_plan *terms;
    int64_t row_blocks, slices, strips;
    /* of the row block and stage that are running: the first item of this product, and the strips from there on */
    int64_t first_item, left;
} product_plan;

/* A worker's scratch: the tile of sums, the part of a masked term, a column block of B,
 * scratch of packing or of int8, two lines for the epilogue. */
typedef struct worker_memory {
    float *tile, *part;
    uint8_t *b;
    void *scratch;
    float *lines;
} worker_memory;

/* A call runs its products in two stages (nbl__gemm_product.stage). */
enum { STAGES = 2 };

/* Capacity of one plan. A call with more products runs as several batches. */
enum { MAX_PRODUCTS = 48, MAX_TERMS = 96 };

/* Memory of a plan, on the caller's stack. */
typedef struct arrays {
    product_plan products[MAX_PRODUCTS];
    term_plan terms[MAX_TERMS];
    operand operands[MAX_TERMS];
} arrays;

/* Sizes are maxima over the call. `strips` are totals per stage. */
typedef struct gemm_plan {
    nbl_isa isa;
    nbl__gemm_algo algo;
    int count, operands, workers;
    product_plan *products;
    operand *operand;
    int64_t row_blocks;
    int64_t strips[STAGES], max_column_block;
    int64_t tile_rows, tile_columns;
    /* per worker */
    size_t b_bytes, scratch_bytes;
    bool part; /* a term is masked, so that workers need `part` */
    uint8_t *worker_memories;
    size_t worker_bytes;
    int64_t row_block; /* the row block and the stage that are running */
    int stage;
} gemm_plan;

/* ---- cutting ---- */

/* The first index of piece `index`, when n things are cut into `count` even
 * pieces. */
static inline int64_t piece(int64_t n, int64_t count, int64_t index)
{
    return index * n / count;
}

/* An upper bound of a row block's rows. It grows with m, which the exact number does
 * not: scratch that was measured for more rows must be enough for fewer. */
static inline int64_t row_block_rows(int64_t m)
{
    return nbl__min_i64(m, ROW_BLOCK);
}

/* The rows of a row block as panels. */
typedef struct rows_of {
    int64_t begin, count; /* rows of the product */
    int64_t panels, padded;
} rows_of;

static inline rows_of rows_in(int64_t m, int64_t row_blocks, int64_t row_block,
                              const nbl__gemm_kernel *kernel)
{
    assert(row_block >= 0 && row_block < row_blocks);
    rows_of r = {.begin = piece(m, row_blocks, row_block)};
    r.count = piece(m, row_blocks, row_block + 1) - r.begin;
    r.panels = nbl__ceil_div(r.count, kernel->rows);
    r.padded = kernel->padded ? r.panels * kernel->rows : r.count;
    assert(r.count <= ROW_BLOCK && r.padded <= r.panels * kernel->rows);
    return r;
}

/* The first panel of a slice. Slices are cut between panels. All kernels of a
 * product that has slices cut its rows into the same panels. */
static inline int64_t slice_panel(const rows_of *rows, int64_t slices, int64_t slice)
{
    return piece(rows->panels, slices, slice);
}

/* The first row of a slice, within its row block. */
static inline int64_t slice_row(const rows_of *rows, int64_t slices, int64_t slice)
{
    int64_t row = nbl__panel_start(rows->padded, rows->panels, slice_panel(rows, slices, slice));
    return nbl__min_i64(row, rows->count);
}

static inline size_t panel_bytes(const nbl__gemm_kernel *kernel, int64_t elements)
{
    return (size_t)elements * nbl__panel_element(kernel);
}

/* A column block: strips [begin, end) of a product. `left` counts the strips
 * of all products from `begin` on. */
typedef struct column_block {
    const product_plan *product;
    int64_t begin, end, left; /* left: strips of all products from `begin` on */
} column_block;

/* Moves `at` to the next column block of a row block and stage; all zero: to the first.
 * False: there is none. */
bool nbl__gemm_next_column_block(const gemm_plan *plan, int64_t row_block, int stage, column_block *at);

/* Makes the plan of `count` products, which must fit into the arrays. With
 * bump->base NULL it only measures scratch. */
void nbl__gemm_make_plan(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__gemm_product *products,
                         int count, nbl__bump *bump, arrays *memory, gemm_plan *plan);
/* The scratch of a worker. */
worker_memory nbl__gemm_worker_memory(const gemm_plan *plan, int worker);

#endif
