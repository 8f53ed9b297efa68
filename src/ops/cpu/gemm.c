/* gemm.c - the driver of gemm.h: who packs and multiplies what.
 *
 *     rows       windows of at most WINDOW rows, one after the other; a window is cut into slices
 *     columns    chunks of at most MAX_CHUNK strips of 16: large ones first, since the rows' panels pass through the
 *                caches once per chunk, small ones last, so that threads end together
 *     k          blocks of at most the kernel's k_block, in order
 *
 *     per window   for each stage:
 *                  1. pack every distinct A that the stage is the first to use: items (operand, block of k, 64 rows)
 *                  2. items (product, chunk, slice): for every term, for every block of k, pack the chunk's
 *                     B and multiply it with the slice's panels into the worker's tile; then finish the tile
 *
 * A window's columns are decoded once per slice, so there are several slices only where the columns alone do
 * not give every thread enough items. Tiling decides who computes an element, never how: its sum runs over
 * terms and k in one order.
 *
 * scratch:  plan | panels of A, per operand | per worker: tile, part, panel of B, scratch of packing, lines */
#include "ops/cpu/gemm.h"

#include "base/team.h"
#include "ops/cpu/gemm_finish.h"
#include "ops/cpu/gemv.h"
#include "ops/cpu/int8_product.h"
#include "ops/cpu/pack.h"

enum {
    WINDOW = 512,          /* rows */
    BLOCK_ROWS = 256,      /* of panels that stay in the second cache while all strips of a chunk pass, */
    BLOCK_BYTES = 1 << 19, /* or fewer, that are this long */
    MAX_CHUNK = 8,         /* strips; */
    MAX_SPLIT_CHUNK = 16,  /* where panels are faster to multiply than to read from the third cache */
    PACK_ROWS = 64,        /* of an item of packing */
    SLICES_PER_THREAD = 2  /* below this many items per thread, rows are cut as well */
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
static int64_t piece(int64_t n, int64_t count, int64_t index)
{
    return index * n / count;
}

/* At most so many rows has a window. Grows with m, as the true number does not: scratch that was measured for more
 * rows must do for fewer. */
static int64_t window_rows(int64_t m)
{
    return nbl__min_i64(m, WINDOW);
}

/* Rows of a window as panels. */
typedef struct rows_of {
    int64_t begin, count; /* rows of the product */
    int64_t panels, padded;
} rows_of;

static rows_of rows_in(int64_t m, int64_t windows, int64_t window, const nbl__kernel *kernel)
{
    rows_of r = {.begin = piece(m, windows, window)};
    r.count = piece(m, windows, window + 1) - r.begin;
    r.panels = nbl__ceil_div(r.count, kernel->rows);
    r.padded = kernel->padded ? r.panels * kernel->rows : r.count;
    return r;
}

/* The first row, and the first panel, of a slice: slices are cut between panels, which are the same for all kernels that
 * meet in a product of so many rows that it has slices. */
static int64_t slice_panel(const rows_of *rows, int64_t slices, int64_t slice)
{
    return piece(rows->panels, slices, slice);
}

static int64_t slice_row(const rows_of *rows, int64_t slices, int64_t slice)
{
    int64_t row = nbl__panel_start(rows->padded, rows->panels, slice_panel(rows, slices, slice));
    return nbl__min_i64(row, rows->count);
}

/* ---- planning: with cut->base NULL it only measures ---- */

static bool same_operand(const nbl__mat *a, const nbl__mat *b)
{
    return a->data != NULL && a->data == b->data && a->dtype == b->dtype && a->stride == b->stride &&
           a->scales == b->scales && a->transpose == b->transpose && a->pick == b->pick &&
           a->dropout == b->dropout &&
           (a->dropout == 0 || (a->seed == b->seed && a->drop_columns == b->drop_columns));
}

static route way_of(const nbl__product *p, const nbl__term *t)
{
    const nbl__mat *a = &t->a, *b = &t->b;
    if (a->pick || b->pick || a->transpose || a->dropout > 0 || b->dropout > 0) return BY_PANELS;
    if (a->dtype == NBL_DTYPE_I8) {
        bool codes = b->weight && b->weight->format == NBL_FORMAT_INT8 && b->transpose;
        return codes ? BY_INT8 : BY_PANELS;
    }
    /* Down the columns of B, packing is faster than reading in place even for one row. */
    bool rows = b->transpose && (b->weight || b->dtype != NBL_DTYPE_I8);
    if (p->m <= NBL_GEMV_MAX_ROWS && rows) return BY_GEMV;
    return BY_PANELS;
}

static int64_t block_of_k(int64_t k, int64_t longest)
{
    if (k == 0) return longest;
    return nbl__round_up(nbl__ceil_div(k, nbl__ceil_div(k, longest)), 64);
}

static int64_t windows_of(int64_t m)
{
    return nbl__max_i64(1, nbl__ceil_div(m, WINDOW));
}

/* The operand of a term: one that is there already, or a new one. */
static int operand_of(gemm_plan *plan, const nbl__product *p, const nbl__term *t)
{
    const nbl__kernel *kernel = nbl__kernel_for(plan->isa, t->compute, p->m);
    for (int i = 0; i < plan->operands; i++) {
        operand *o = &plan->operand[i];
        if (o->m != p->m || o->k != t->k || o->source.kernel != kernel || !same_operand(o->source.mat, &t->a))
            continue;
        if (p->stage < o->stage) o->stage = p->stage;
        return i;
    }
    plan->operand[plan->operands] = (operand){
        .source = {plan->isa, kernel, &t->a, t->compute, !t->a.transpose},
        .m = p->m,
        .k = t->k,
        .k_block = block_of_k(t->k, kernel->k_block),
        .windows = windows_of(p->m),
        .stage = p->stage,
    };
    return plan->operands++;
}

/* Strips of the next chunk, when so many are left. */
static int64_t next_chunk(const gemm_plan *plan, int64_t left)
{
    int64_t share = plan->workers == 1 ? left : left / plan->workers;
    return nbl__max_i64(2, nbl__min_i64(share / 2 * 2, plan->max_chunk));
}

/* A chunk of columns: strips [begin, end) of a product. */
typedef struct chunk_at {
    const product_plan *product;
    int64_t begin, end, left; /* left: strips of all products from `begin` on */
} chunk_at;

/* The first chunk of a window and stage, or the one after `at`; false: there is none. */
static bool step_chunk(const gemm_plan *plan, int64_t window, int stage, chunk_at *at)
{
    if (at->product == NULL) *at = (chunk_at){plan->products, 0, 0, plan->strips[stage]};
    at->left -= at->end - at->begin;
    at->begin = at->end;
    for (const product_plan *end = plan->products + plan->count; at->product < end; at->product++) {
        if (at->product->product->stage != stage) continue;
        int64_t own = window < at->product->windows ? at->product->strips : 0;
        if (at->begin < own) {
            at->end = nbl__min_i64(own, at->begin + next_chunk(plan, at->left));
            return true;
        }
        at->left -= at->product->strips - at->begin;
        at->begin = at->end = 0;
    }
    return false;
}

/* Into how many slices rows are cut, for there to be work for all threads. */
static int64_t slice_count(const gemm_plan *plan, int64_t rows, int64_t chunks)
{
    int64_t wanted = plan->workers == 1 || chunks == 0
                         ? 1
                         : nbl__ceil_div((int64_t)plan->workers * SLICES_PER_THREAD, chunks);
    return nbl__max_i64(1, nbl__min_i64(wanted, rows / PACK_ROWS));
}

static void plan_sizes(gemm_plan *plan)
{
    int64_t chunks[STAGES] = {0};
    plan->max_chunk = MAX_CHUNK;
    for (int i = 0; i < plan->operands; i++)
        if (plan->operand[i].source.kernel->panel == NBL_PANEL_SPLIT) plan->max_chunk = MAX_SPLIT_CHUNK;
    for (int i = 0; i < plan->count; i++) {
        product_plan *q = &plan->products[i];
        q->strips = q->product->m > 0 ? nbl__ceil_div(q->product->n, NBL_STRIP) : 0;
        q->windows = windows_of(q->product->m);
        plan->strips[q->product->stage] += q->strips;
        plan->windows = nbl__max_i64(plan->windows, q->windows);
    }
    for (int stage = 0; stage < STAGES; stage++)
        for (chunk_at at = {0}; step_chunk(plan, 0, stage, &at); chunks[stage]++)
            plan->tile_columns = nbl__max_i64(plan->tile_columns, (at.end - at.begin) * NBL_STRIP);
    for (int i = 0; i < plan->count; i++) {
        product_plan *q = &plan->products[i];
        int64_t rows = window_rows(q->product->m);
        q->slices = slice_count(plan, rows, chunks[q->product->stage]);
        plan->tile_rows = nbl__max_i64(plan->tile_rows, nbl__round_up(rows, NBL_PANEL_MAX_ROWS));
    }
}

static size_t panel_bytes(const nbl__kernel *kernel, int64_t elements)
{
    return (size_t)elements * nbl__panel_element(kernel);
}

/* What a worker needs for a term. */
static void plan_term(gemm_plan *plan, const term_plan *way, const nbl__term *t)
{
    size_t bytes = 0;
    if (t->dropout > 0) plan->part = true;
    if (way->way == BY_INT8)
        bytes = nbl__int8_product_scratch(plan->isa, t, plan->tile_rows, plan->tile_columns);
    if (way->way == BY_PANELS) {
        const operand *o = &plan->operand[way->operand];
        const nbl__kernel *kernel = o->source.kernel;
        /* Grows with k, as o->k_block need not: a call may have less k than was measured. */
        int64_t longest = nbl__min_i64(kernel->k_block, nbl__round_up(t->k, 64));
        size_t b = panel_bytes(kernel, longest * plan->tile_columns);
        if (b > plan->b_bytes) plan->b_bytes = b;
        bytes = nbl__pack_scratch(longest, nbl__max_i64(window_rows(o->m), plan->tile_columns));
    }
    if (bytes > plan->scratch_bytes) plan->scratch_bytes = bytes;
}

static worker_room cut_room(uint8_t *base, const gemm_plan *plan, size_t *bytes)
{
    nbl__cut cut = {base, 0};
    worker_room room = {0};
    NBL_CUT(&cut, room.tile, plan->tile_rows * plan->tile_columns);
    if (plan->part) NBL_CUT(&cut, room.part, plan->tile_rows * plan->tile_columns);
    room.b = nbl__cut_bytes(&cut, plan->b_bytes);
    room.scratch = nbl__cut_bytes(&cut, plan->scratch_bytes);
    NBL_CUT(&cut, room.lines, 2 * plan->tile_columns);
    *bytes = cut.used;
    return room;
}

static void plan_operand(operand *o, nbl__cut *cut)
{
    const nbl__kernel *kernel = o->source.kernel;
    int64_t rows = nbl__round_up(window_rows(o->m), kernel->padded ? kernel->rows : 1);
    o->panels = nbl__cut_bytes(cut, panel_bytes(kernel, rows * nbl__round_up(o->k, kernel->k_step)));
}

static void make_plan(const nbl_context *ctx, const nbl__product *products, int count, nbl__cut *cut,
                      arrays *room, gemm_plan *plan)
{
    *plan = (gemm_plan){.isa = nbl__isa(ctx),
                        .count = count,
                        .workers = nbl_threads(ctx),
                        .products = room->products,
                        .operand = room->operands};
    term_plan *next = room->terms;
    for (int i = 0; i < count; i++) {
        const nbl__product *p = &products[i];
        product_plan *q = &plan->products[i];
        *q = (product_plan){.product = p, .terms = next};
        for (int t = 0; t < p->term_count; t++, next++) {
            next->way = way_of(p, &p->terms[t]);
            /* Measured as if packed: a list of picks that is not there yet would have it so. */
            if (next->way == BY_GEMV && cut->base == NULL) next->way = BY_PANELS;
            if (next->way == BY_PANELS) next->operand = operand_of(plan, p, &p->terms[t]);
        }
    }
    plan_sizes(plan);
    for (int i = 0; i < count; i++)
        for (int t = 0; t < products[i].term_count; t++) {
            const product_plan *q = &plan->products[i];
            plan_term(plan, &q->terms[t], &products[i].terms[t]);
        }
    for (int i = 0; i < plan->operands; i++) plan_operand(&plan->operand[i], cut);
    cut_room(NULL, plan, &plan->room_bytes);
    plan->rooms = nbl__cut_bytes(cut, plan->room_bytes * (size_t)plan->workers);
}

/* ---- 1. packing A ---- */

static worker_room room_of(const gemm_plan *plan, int worker)
{
    size_t bytes;
    return cut_room(plan->rooms + plan->room_bytes * (size_t)worker, plan, &bytes);
}

/* Items of packing of an operand: blocks of k times groups of rows. */
static int64_t row_groups(const operand *o)
{
    return nbl__ceil_div(window_rows(o->m), PACK_ROWS);
}

static int64_t pack_items(const gemm_plan *plan, const operand *o)
{
    if (plan->window >= o->windows || o->m == 0 || o->stage != plan->stage) return 0;
    return nbl__ceil_div(o->k, o->k_block) * row_groups(o);
}

static uint8_t *panels_of(const operand *o, const rows_of *rows, int64_t k_begin)
{
    return o->panels + panel_bytes(o->source.kernel, rows->padded * k_begin);
}

static nbl_status pack_item(void *argument, int64_t item, int worker)
{
    const gemm_plan *plan = argument;
    const operand *o = plan->operand;
    for (int64_t own; item >= (own = pack_items(plan, o)); o++) item -= own;
    int64_t groups = row_groups(o), group = item % groups, k_begin = item / groups * o->k_block;
    rows_of rows = rows_in(o->m, o->windows, plan->window, o->source.kernel);
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
        nbl__pack_a(&o->source, &part, panels_of(o, &rows, k_begin), room_of(plan, worker).scratch);
    return NBL_OK;
}

/* ---- 2. multiplying ---- */

typedef struct place {
    int64_t slices, slice, row, rows, n_begin, n_end;
} place;

static void clear_tile(const gemm_plan *plan, int64_t rows, float *tile)
{
    memset(tile, 0, (size_t)(rows * plan->tile_columns) * sizeof *tile);
}

/* How many panels go together; even, since kernels may take two at a time. */
static int64_t block_panels(const nbl__kernel *kernel, int64_t k)
{
    int64_t fit = BLOCK_BYTES / (int64_t)panel_bytes(kernel, k * kernel->rows);
    return nbl__max_i64(2, nbl__min_i64(fit, BLOCK_ROWS / kernel->rows) / 2 * 2);
}

/* Few panels of A do not pay for copying a B that lies as it is multiplied. */
static bool reads_in_place(const nbl__kernel *kernel, const nbl__term *t, const place *at, int64_t panels)
{
    enum { FEW = 4 };
    const nbl__mat *b = &t->b;
    return kernel->panel == NBL_PANEL_F32 && panels <= FEW && b->weight == NULL &&
           b->dtype == NBL_DTYPE_F32 && !b->transpose && b->pick == NULL && b->dropout == 0 &&
           (at->n_end - at->n_begin) % NBL_STRIP == 0;
}

/* tile (+)= the term; returns whether the tile has been written. */
static bool multiply(const gemm_plan *plan, const nbl__term *t, const term_plan *way, const place *at,
                     bool add, const worker_room *room, float *tile, int64_t stride)
{
    if (t->k == 0) return add;
    if (way->way != BY_PANELS) {
        int64_t first = t->b.transpose ? t->b.first_row : 0; /* n counts rows of the weight */
        int64_t n_begin = at->n_begin + first, n_end = at->n_end + first;
        if (!add) clear_tile(plan, at->rows, tile);
        if (way->way == BY_GEMV) nbl__gemv(plan->isa, t, at->rows, n_begin, n_end, tile, stride);
        else
            nbl__int8_product(plan->isa, t, at->row, at->row + at->rows, n_begin, n_end, tile, stride,
                              room->scratch);
        return true;
    }
    const operand *o = &plan->operand[way->operand];
    const nbl__kernel *kernel = o->source.kernel;
    rows_of rows = rows_in(o->m, o->windows, plan->window, kernel);
    int64_t first = slice_panel(&rows, at->slices, at->slice),
            last = slice_panel(&rows, at->slices, at->slice + 1);
    int64_t top = nbl__panel_start(rows.padded, rows.panels, first);
    nbl__source b = {plan->isa, kernel, &t->b, t->compute, t->b.transpose};
    bool in_place = reads_in_place(kernel, t, at, rows.panels);
    for (int64_t k = 0; k < t->k; k += o->k_block) {
        int64_t count = nbl__min_i64(o->k_block, t->k - k);
        if (!in_place) nbl__pack_b(&b, at->n_begin, at->n_end, k, count, room->b, room->scratch);
        nbl__block block = {
            .a = panels_of(o, &rows, k),
            .rows = rows.padded,
            .panels = rows.panels,
            .b = room->b,
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
            block.b = (const float *)t->b.data + k * t->b.stride + at->n_begin;
            block.b_line = t->b.stride;
            block.b_strip = NBL_STRIP;
        }
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

/* Whole strips of f32 sums without an epilogue need no tile: they grow in C itself. */
static bool is_direct(const gemm_plan *plan, const product_plan *q, int64_t rows, int64_t columns)
{
    const nbl__product *p = q->product;
    if (p->dtype != NBL_DTYPE_F32 || p->factor || p->bias || p->accumulate || p->flipped ||
        columns % NBL_STRIP)
        return false;
    bool any = false;
    for (int t = 0; t < p->term_count; t++) {
        if (q->terms[t].way != BY_PANELS || p->terms[t].dropout > 0) return false;
        const nbl__kernel *kernel = plan->operand[q->terms[t].operand].source.kernel;
        if (kernel->padded && rows % kernel->rows) return false;
        any = any || p->terms[t].k > 0;
    }
    return any;
}

static int64_t multiply_items(const gemm_plan *plan)
{
    int64_t items = 0;
    for (chunk_at at = {0}; step_chunk(plan, plan->window, plan->stage, &at);) items += at.product->slices;
    return items;
}

static nbl_status multiply_item(void *argument, int64_t item, int worker)
{
    const gemm_plan *plan = argument;
    chunk_at chunk = {0};
    for (step_chunk(plan, plan->window, plan->stage, &chunk); item >= chunk.product->slices;) {
        item -= chunk.product->slices;
        step_chunk(plan, plan->window, plan->stage, &chunk);
    }
    const product_plan *q = chunk.product;
    const nbl__product *p = q->product;
    worker_room room = room_of(plan, worker);
    rows_of rows = rows_in(p->m, q->windows, plan->window, nbl__kernel_for(plan->isa, NBL_DTYPE_F32, p->m));
    int64_t top = slice_row(&rows, q->slices, item);
    place at = {
        .slices = q->slices,
        .slice = item,
        .row = rows.begin + top,
        .rows = slice_row(&rows, q->slices, item + 1) - top,
        .n_begin = chunk.begin * NBL_STRIP,
        .n_end = nbl__min_i64(p->n, chunk.end * NBL_STRIP),
    };
    if (is_direct(plan, q, at.rows, at.n_end - at.n_begin)) {
        float *c = (float *)p->c + at.row * p->stride + at.n_begin;
        bool add = false;
        for (int t = 0; t < p->term_count; t++)
            add = multiply(plan, &p->terms[t], &q->terms[t], &at, add, &room, c, p->stride);
        return NBL_OK;
    }
    int64_t stride = plan->tile_columns;
    bool written = false;
    for (int t = 0; t < p->term_count; t++) {
        const nbl__term *term = &p->terms[t];
        if (term->dropout == 0) {
            written = multiply(plan, term, &q->terms[t], &at, written, &room, room.tile, stride);
            continue;
        }
        if (!written) clear_tile(plan, at.rows, room.tile);
        written = true;
        if (multiply(plan, term, &q->terms[t], &at, false, &room, room.part, stride))
            nbl__gemm_join(plan->isa, p, term, at.row, at.rows, at.n_begin, at.n_end, room.part, room.tile,
                           stride);
    }
    if (!written) clear_tile(plan, at.rows, room.tile);
    nbl__gemm_finish(plan->isa, p, at.row, at.rows, at.n_begin, at.n_end, room.tile, stride, room.lines);
    return NBL_OK;
}

/* ---- calls: products in batches that the arrays can hold ---- */

static int batch_of(const nbl__product *products, int count)
{
    int taken = 0, terms = 0;
    while (taken < count && taken < MAX_PRODUCTS && terms + products[taken].term_count <= MAX_TERMS)
        terms += products[taken++].term_count;
    return taken;
}

size_t nbl__gemm_scratch(const nbl_context *ctx, const nbl__product *products, int count)
{
    size_t most = 0;
    for (int taken; count > 0 && (taken = batch_of(products, count)) > 0; products += taken, count -= taken) {
        nbl__cut cut = {0};
        arrays room;
        gemm_plan plan;
        make_plan(ctx, products, taken, &cut, &room, &plan);
        if (cut.used > most) most = cut.used;
    }
    return most;
}

static nbl_status run_batch(nbl_context *ctx, const nbl__product *products, int count, void *scratch)
{
    nbl__cut cut = {scratch, 0};
    arrays room;
    gemm_plan plan;
    make_plan(ctx, products, count, &cut, &room, &plan);
    for (plan.window = 0; plan.window < plan.windows; plan.window++) {
        for (plan.stage = 0; plan.stage < STAGES; plan.stage++) {
            int64_t packs = 0;
            for (int i = 0; i < plan.operands; i++) packs += pack_items(&plan, &plan.operand[i]);
            NBL_TRY(nbl__team_run(ctx, packs, pack_item, &plan, NULL));
            NBL_TRY(nbl__team_run(ctx, multiply_items(&plan), multiply_item, &plan, NULL));
        }
    }
    return NBL_OK;
}

nbl_status nbl__gemm(nbl_context *ctx, const nbl__product *products, int count, void *scratch)
{
    while (count > 0) {
        int taken = batch_of(products, count);
        NBL_CHECK(ctx, taken > 0, NBL_ERROR_INTERNAL, "gemm: a product of %d terms, at most %d are possible",
                  products->term_count, MAX_TERMS);
        NBL_TRY(run_batch(ctx, products, taken, scratch));
        products += taken;
        count -= taken;
    }
    return NBL_OK;
}
