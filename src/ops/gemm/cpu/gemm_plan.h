/* gemm_plan.h - what a call of gemm.h will do: its operands, where rows and columns are cut, and the scratch. Between
 * gemm_plan.c, which makes plans, and gemm.c, which carries them out.
 *
 *     rows       windows of at most WINDOW rows, one after the other; a window is cut into slices
 *     columns    chunks of at most MAX_CHUNK strips of 16: large ones first, since the rows' panels pass through the
 *                caches once per chunk, small ones last, so that threads end together
 *     k          blocks of at most the kernel's k_block, in order
 *
 * A window's columns are decoded once per slice, so there are several slices only where the columns alone do
 * not give every thread enough items.
 *
 * scratch:  panels of A, per operand | per worker: tile, part, panel of B, scratch of packing, lines */
#ifndef NBL_GEMM_PLAN_H
#define NBL_GEMM_PLAN_H

#include "ops/gemm/cpu/pack.h"

enum {
    WINDOW = 512,  /* rows */
    PACK_ROWS = 64 /* of an item of packing */
};

typedef enum route { BY_PANELS, BY_GEMV, BY_INT8 } route;

/* A distinct left operand. */
typedef struct operand {
    nbl__source source;
    int64_t m, k, k_block, windows;
    int stage;
    uint8_t *panels; /* [block of k][panel] */
} operand;

typedef struct term_plan {
    route way;
    int operand;
} term_plan;

typedef struct product_plan {
    const nbl__product *product;
    term_plan *terms;
    int64_t windows, slices, strips;
} product_plan;

typedef struct worker_room {
    float *tile, *part;
    uint8_t *b;
    void *scratch;
    float *lines;
} worker_room;

enum { STAGES = 2 };

/* A call has few products and terms; more go in several batches. */
enum { MAX_PRODUCTS = 16, MAX_TERMS = 64 };

typedef struct arrays {
    product_plan products[MAX_PRODUCTS];
    term_plan terms[MAX_TERMS];
    operand operands[MAX_TERMS];
} arrays;

typedef struct gemm_plan {
    nbl_isa isa;
    int count, operands, workers;
    product_plan *products;
    operand *operand;
    int64_t windows;
    int64_t strips[STAGES], max_chunk;
    int64_t tile_rows, tile_columns;
    size_t b_bytes, scratch_bytes; /* what a worker needs beside its tile */
    bool part;
    uint8_t *rooms;
    size_t room_bytes;
    int64_t window; /* at work */
    int stage;
} gemm_plan;

/* ---- cutting ---- */

/* Piece `index` of `count` even pieces of n begins here. */
static inline int64_t piece(int64_t n, int64_t count, int64_t index)
{
    return index * n / count;
}

/* At most so many rows has a window. Grows with m, as the true number does not: scratch that was measured for more
 * rows must do for fewer. */
static inline int64_t window_rows(int64_t m)
{
    return nbl__min_i64(m, WINDOW);
}

/* Rows of a window as panels. */
typedef struct rows_of {
    int64_t begin, count; /* rows of the product */
    int64_t panels, padded;
} rows_of;

static inline rows_of rows_in(int64_t m, int64_t windows, int64_t window, const nbl__kernel *kernel)
{
    rows_of r = {.begin = piece(m, windows, window)};
    r.count = piece(m, windows, window + 1) - r.begin;
    r.panels = nbl__ceil_div(r.count, kernel->rows);
    r.padded = kernel->padded ? r.panels * kernel->rows : r.count;
    return r;
}

/* The first row, and the first panel, of a slice: slices are cut between panels, which are the same for all kernels that
 * meet in a product of so many rows that it has slices. */
static inline int64_t slice_panel(const rows_of *rows, int64_t slices, int64_t slice)
{
    return piece(rows->panels, slices, slice);
}

static inline int64_t slice_row(const rows_of *rows, int64_t slices, int64_t slice)
{
    int64_t row = nbl__panel_start(rows->padded, rows->panels, slice_panel(rows, slices, slice));
    return nbl__min_i64(row, rows->count);
}

static inline size_t panel_bytes(const nbl__kernel *kernel, int64_t elements)
{
    return (size_t)elements * nbl__panel_element(kernel);
}

/* A chunk of columns: strips [begin, end) of a product. */
typedef struct chunk_at {
    const product_plan *product;
    int64_t begin, end, left; /* left: strips of all products from `begin` on */
} chunk_at;

/* The first chunk of a window and stage, or the one after `at`; false: there is none. */
bool nbl__gemm_step(const gemm_plan *plan, int64_t window, int stage, chunk_at *at);

/* Products that fit into the arrays. With cut->base NULL it only measures. */
void nbl__gemm_make_plan(const nbl_context *ctx, const nbl__product *products, int count, nbl__cut *cut,
                         arrays *room, gemm_plan *plan);
worker_room nbl__gemm_room(const gemm_plan *plan, int worker);

#endif
