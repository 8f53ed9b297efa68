/* gemm.c - runs the plan of a gemm call (gemm.h, gemm_plan.h).
 *
 *   for each row block:
 *     for each stage:
 *       1. pack each distinct A that the stage is the first to use
 *              items: (operand, block of k, 64 rows)
 *       2. multiply
 *              items: (product, column block, slice of rows)
 *              for each term, for each block of k:
 *                  pack the column block's B                          worker's memory
 *                  tile (+)= panels of the slice · B           the kernel
 *              finish the tile: factor, bias, rounding, C      gemm_epilogue.h
 *
 * Each step is one run of the thread team. Tiling decides which thread computes an element, never
 * how: its sum runs over terms and k in one order.
 *
 * Memory: A is packed once per row block and read once per column block, in blocks that stay in the
 * L2 cache while the column block's strips pass. B is packed
 * once per slice, and stays in the caches while a slice's panels pass. Limit: the kernel's
 * arithmetic for large m, the packing of B (pack.h) for small m. */
#include "ops/gemm/cpu/gemm.h"

#include "base/team.h"
#include "ops/gemm/cpu/gemm_epilogue.h"
#include "ops/gemm/cpu/gemm_plan.h"
#include "ops/gemv/cpu/gemv.h"
#include "ops/gemm/cpu/int8/gemm_int8.h"

enum {
    BLOCK_ROWS = 256,     /* max rows of A that stay in the L2 cache while the column block's strips pass */
    BLOCK_BYTES = 1 << 19 /* max bytes of these rows' panels */
};

/* ---- 1. packing A ---- */

/* Groups of PACK_ROWS rows in a row block. */
static int64_t row_groups(const operand *o)
{
    return nbl__ceil_div(row_block_rows(o->m), PACK_ROWS);
}

/* Items of packing of an operand in this row block and stage: blocks of k times groups of rows. */
static int64_t pack_items(const gemm_plan *plan, const operand *o)
{
    if (plan->row_block >= o->row_blocks || o->m == 0 || o->stage != plan->stage) return 0;
    return nbl__ceil_div(o->k, o->k_block) * row_groups(o);
}

/* The panels of an operand for the block of k that begins at k_begin. */
static uint8_t *panels_of(const operand *o, const rows_of *rows, int64_t k_begin)
{
    return o->panels + panel_bytes(o->source.kernel, rows->padded * k_begin);
}

/* Packs one block of k of one group of rows. `item` counts over all operands. */
static nbl_status pack_item(void *argument, int64_t item, int worker)
{
    const gemm_plan *plan = argument;
    const operand *o = plan->operand;
    for (int64_t own; item >= (own = pack_items(plan, o)); o++) item -= own;
    assert(o < plan->operand + plan->operands);
    int64_t groups = row_groups(o), group = item % groups, k_begin = item / groups * o->k_block;
    rows_of rows = rows_in(o->m, o->row_blocks, plan->row_block, o->source.kernel);
    nbl__pack_rows part = {
        .row = rows.begin,
        .rows = rows.count,
        .panels = rows.panels,
        .panel_begin = piece(rows.panels, groups, group),
        .panel_end = piece(rows.panels, groups, group + 1),
        .k_begin = k_begin,
        .k_count = nbl__min_i64(o->k_block, o->k - k_begin),
    };
    if (part.panel_begin < part.panel_end)
        nbl__pack_a(&o->source, &part, panels_of(o, &rows, k_begin),
                    nbl__gemm_worker_memory(plan, worker).scratch);
    return NBL_OK;
}

/* ---- 2. multiplying ---- */

/* The part of C that an item computes: `rows` rows from `row`, columns [n_begin, n_end). */
typedef struct tile_position {
    int64_t slices, slice, row, rows, n_begin, n_end;
} tile_position;

static void clear_tile(const gemm_plan *plan, int64_t rows, float *tile)
{
    memset(tile, 0, (size_t)(rows * plan->tile_columns) * sizeof *tile);
}

/* How many panels one call of the kernel gets; even, since kernels may take two at a time. */
static int64_t block_panels(const nbl__gemm_kernel *kernel, int64_t k)
{
    assert(k > 0);
    int64_t fit = BLOCK_BYTES / (int64_t)panel_bytes(kernel, k * kernel->rows);
    return nbl__max_i64(2, nbl__min_i64(fit, BLOCK_ROWS / kernel->rows) / 2 * 2);
}

/* Where B's element [0, 0] lies, if it is dense f32 in memory and not transposed; else NULL. */
static const float *plain_b(const nbl__gemm_term *t, int64_t *stride)
{
    const nbl__gemm_matrix *b = &t->b;
    const nbl_weight *w = b->weight;
    if (b->transposed || b->k_index || b->dropout > 0) return NULL;
    *stride = w ? w->shape[1] : b->stride;
    if (w == NULL) return b->dtype == NBL_DTYPE_F32 ? b->data : NULL;
    bool plain = w->format == NBL_FORMAT_DENSE && w->dtype == NBL_DTYPE_F32 && t->compute == NBL_DTYPE_F32 &&
                 (uintptr_t)w->data % sizeof(float) == 0;
    return plain ? (const float *)w->data + b->first_row * *stride : NULL;
}

/* Should the kernel read B where it lies? Packing a dense f32 B does not pay if only a few panels
 * of A use it. */
static bool reads_in_place(const nbl__gemm_kernel *kernel, const float *plain, const tile_position *at,
                           int64_t panels)
{
    enum { SMALL = 8 };
    return plain && kernel->panel == NBL_PANEL_F32 && panels <= SMALL &&
           (at->n_end - at->n_begin) % NBL_STRIP == 0;
}

/* tile (+)= one term. Returns whether the tile has been written: not if k is 0 and `add` is not
 * set. */
static bool multiply(const gemm_plan *plan, const nbl__gemm_term *t, const term_plan *how,
                     const tile_position *at, bool add, const worker_memory *memory, float *tile,
                     int64_t stride)
{
    if (t->k == 0) return add;
    if (how->algo != ALGO_PANELS) {
        int64_t first = t->b.transposed ? t->b.first_row : 0; /* n counts rows of the weight */
        int64_t n_begin = at->n_begin + first, n_end = at->n_end + first;
        if (!add) clear_tile(plan, at->rows, tile);
        assert(at->n_end - at->n_begin <= plan->tile_columns && at->rows <= plan->tile_rows);
        if (how->algo == ALGO_GEMV) nbl__gemv(plan->isa, t, at->rows, n_begin, n_end, tile, stride);
        else
            nbl__int8_product(plan->isa, t, at->row, at->row + at->rows, n_begin, n_end, tile, stride,
                              memory->scratch);
        return true;
    }
    /* Panels [first, last) of the row block are this slice's; `top` is its first row. */
    const operand *o = &plan->operand[how->operand];
    const nbl__gemm_kernel *kernel = o->source.kernel;
    assert(how->operand < plan->operands && o->stage <= plan->stage); /* its A is packed */
    rows_of rows = rows_in(o->m, o->row_blocks, plan->row_block, kernel);
    int64_t first = slice_panel(&rows, at->slices, at->slice),
            last = slice_panel(&rows, at->slices, at->slice + 1);
    int64_t top = nbl__panel_start(rows.padded, rows.panels, first);
    nbl__pack_source b = {plan->isa, kernel, &t->b, t->compute, t->b.transposed};
    int64_t line;
    const float *plain = plain_b(t, &line);
    bool in_place = reads_in_place(kernel, plain, at, rows.panels);
    for (int64_t k = 0; k < t->k; k += o->k_block) {
        int64_t count = nbl__min_i64(o->k_block, t->k - k);
        if (!in_place) nbl__pack_b(&b, at->n_begin, at->n_end, k, count, memory->b, memory->scratch);
        nbl__gemm_block block = {
            .a = panels_of(o, &rows, k),
            .rows = rows.padded,
            .panels = rows.panels,
            .b = memory->b,
            .b_parts = nbl__b_parts(&b),
            .strips = nbl__ceil_div(at->n_end - at->n_begin, NBL_STRIP),
            .k = nbl__round_up(count, kernel->k_step),
            .alpha = t->alpha,
            .add = add || k > 0,
            .stride = stride,
        };
        block.b_line = NBL_STRIP;
        block.b_strip = block.k * NBL_STRIP;
        if (in_place) {
            block.b = plain + k * line + at->n_begin;
            block.b_line = line;
            block.b_strip = NBL_STRIP;
        }
        assert(block.k % kernel->k_step == 0 && block.k <= NBL_MAX_K_BLOCK && first < last);
        assert(in_place ||
               (size_t)(block.k * block.strips * NBL_STRIP) * nbl__panel_element(kernel) <= plan->b_bytes);
        int64_t panels = block_panels(kernel, block.k);
        for (int64_t p = first; p < last; p = block.panel_end) {
            block.panel_begin = p;
            block.panel_end = nbl__min_i64(last, p + panels);
            block.tile = tile + (nbl__panel_start(rows.padded, rows.panels, p) - top) * stride;
            kernel->run(&block);
        }
    }
    return true;
}

/* May the kernel write C itself, without a tile? Yes for f32 without epilogue, in whole strips and
 * whole panels. */
static bool is_direct(const gemm_plan *plan, const product_plan *q, int64_t rows, int64_t columns)
{
    const nbl__gemm_product *p = q->product;
    if (p->dtype != NBL_DTYPE_F32 || p->factor || p->bias || p->accumulate || p->c_transposed ||
        columns % NBL_STRIP)
        return false;
    bool any = false;
    for (int t = 0; t < p->term_count; t++) {
        if (q->terms[t].algo != ALGO_PANELS || p->terms[t].dropout > 0) return false;
        const nbl__gemm_kernel *kernel = plan->operand[q->terms[t].operand].source.kernel;
        if (kernel->padded && rows % kernel->rows) return false;
        any = any || p->terms[t].k > 0;
    }
    return any;
}

/* Items of step 2: all slices of all column blocks of this row block and stage. Sets where each product's begin. */
static int64_t multiply_items(gemm_plan *plan)
{
    int64_t items = 0;
    for (int i = 0; i < plan->count; i++) plan->products[i].first_item = -1;
    for (column_block at = {0}; nbl__gemm_next_column_block(plan, plan->row_block, plan->stage, &at);) {
        product_plan *q = &plan->products[at.product - plan->products];
        if (at.begin == 0) q->first_item = items, q->left = at.left;
        items += q->slices;
    }
    return items;
}

/* The column block of an item; *item becomes its slice. */
static column_block column_block_of(const gemm_plan *plan, int64_t *item)
{
    const product_plan *q = plan->products;
    for (int i = 0; i < plan->count; i++) {
        const product_plan *other = &plan->products[i];
        if (other->first_item >= 0 && other->first_item <= *item) q = other;
    }
    column_block block = {q, 0, 0, q->left};
    *item -= q->first_item;
    nbl__gemm_next_column_block(plan, plan->row_block, plan->stage, &block);
    for (; *item >= q->slices; *item -= q->slices)
        nbl__gemm_next_column_block(plan, plan->row_block, plan->stage, &block);
    return block;
}

/* One slice of one column block: all terms, then the epilogue. */
static nbl_status multiply_item(void *argument, int64_t item, int worker)
{
    const gemm_plan *plan = argument;
    column_block block = column_block_of(plan, &item);
    const product_plan *q = block.product;
    const nbl__gemm_product *p = q->product;
    assert(q < plan->products + plan->count && block.begin < block.end && block.end <= q->strips);
    worker_memory memory = nbl__gemm_worker_memory(plan, worker);
    rows_of rows = rows_in(p->m, q->row_blocks, plan->row_block,
                           nbl__gemm_kernel_for(plan->isa, NBL_DTYPE_F32, nbl__gemm_rows(plan->algo, p->m)));
    int64_t top = slice_row(&rows, q->slices, item);
    tile_position at = {
        .slices = q->slices,
        .slice = item,
        .row = rows.begin + top,
        .rows = slice_row(&rows, q->slices, item + 1) - top,
        .n_begin = block.begin * NBL_STRIP,
        .n_end = nbl__min_i64(p->n, block.end * NBL_STRIP),
    };
    assert(at.rows > 0 && at.rows <= plan->tile_rows && at.row + at.rows <= p->m);
    assert(at.n_begin < at.n_end && at.n_end - at.n_begin <= plan->tile_columns);
    if (is_direct(plan, q, at.rows, at.n_end - at.n_begin)) {
        float *c = (float *)p->c + at.row * p->stride + at.n_begin;
        bool add = false;
        for (int t = 0; t < p->term_count; t++)
            add = multiply(plan, &p->terms[t], &q->terms[t], &at, add, &memory, c, p->stride);
        return NBL_OK;
    }
    /* A masked term is computed in `part`, and joins the tile through its mask. */
    int64_t stride = plan->tile_columns;
    bool written = false;
    for (int t = 0; t < p->term_count; t++) {
        const nbl__gemm_term *term = &p->terms[t];
        if (term->dropout == 0) {
            written = multiply(plan, term, &q->terms[t], &at, written, &memory, memory.tile, stride);
            continue;
        }
        if (!written) clear_tile(plan, at.rows, memory.tile);
        written = true;
        if (multiply(plan, term, &q->terms[t], &at, false, &memory, memory.part, stride))
            nbl__gemm_join(plan->isa, p, term, at.row, at.rows, at.n_begin, at.n_end, memory.part,
                           memory.tile, stride);
    }
    if (!written) clear_tile(plan, at.rows, memory.tile);
    nbl__gemm_epilogue(plan->isa, p, at.row, at.rows, at.n_begin, at.n_end, memory.tile, stride,
                       memory.lines);
    return NBL_OK;
}

/* ---- calls: products in batches that the arrays can hold ---- */

/* How many of the products fit into one plan; 0 if the first alone does not. */
static int batch_of(const nbl__gemm_product *products, int count)
{
    int taken = 0, terms = 0;
    while (taken < count && taken < MAX_PRODUCTS && terms + products[taken].term_count <= MAX_TERMS)
        terms += products[taken++].term_count;
    return taken;
}

size_t nbl__gemm_scratch(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__gemm_product *products,
                         int count)
{
    size_t max = 0;
    for (int taken; count > 0 && (taken = batch_of(products, count)) > 0; products += taken, count -= taken) {
        nbl__bump bump = {0};
        arrays memory;
        gemm_plan plan;
        nbl__gemm_make_plan(ctx, algo, products, taken, &bump, &memory, &plan);
        if (bump.used > max) max = bump.used;
    }
    return max;
}

static nbl_status run_batch(nbl_context *ctx, nbl__gemm_algo algo, const nbl__gemm_product *products,
                            int count, void *scratch)
{
    nbl__bump bump = {scratch, 0};
    arrays memory;
    gemm_plan plan;
    assert((uintptr_t)scratch % 64 == 0);
    nbl__gemm_make_plan(ctx, algo, products, count, &bump, &memory, &plan);
    for (plan.row_block = 0; plan.row_block < plan.row_blocks; plan.row_block++) {
        for (plan.stage = 0; plan.stage < STAGES; plan.stage++) {
            int64_t packs = 0;
            for (int i = 0; i < plan.operands; i++) packs += pack_items(&plan, &plan.operand[i]);
            NBL_TRY(nbl__team_run(ctx, packs, pack_item, &plan, NULL));
            NBL_TRY(nbl__team_run(ctx, multiply_items(&plan), multiply_item, &plan, NULL));
        }
    }
    return NBL_OK;
}

nbl_status nbl__gemm(nbl_context *ctx, nbl__gemm_algo algo, const nbl__gemm_product *products, int count,
                     void *scratch)
{
    while (count > 0) {
        int taken = batch_of(products, count);
        NBL_CHECK(ctx, taken > 0, NBL_ERROR_INTERNAL, "gemm: a product of %d terms, at most %d are possible",
                  products->term_count, MAX_TERMS);
        NBL_TRY(run_batch(ctx, algo, products, taken, scratch));
        products += taken;
        count -= taken;
    }
    return NBL_OK;
}
