/* gemm_plan.c - makes the plan of a gemm call. See gemm_plan.h.
 *
 * Measuring and running share this code. A measured size must be enough for a later call with
 * fewer rows, smaller k or fewer terms; sizes therefore use bounds that grow with m and k. */
#include "ops/gemm/cpu/gemm_plan.h"

#include "ops/gemv/cpu/gemv.h"
#include "ops/gemm/cpu/int8/gemm_int8.h"

enum {
    MAX_COLUMN_BLOCK = 8, /* max strips of a column block */
    /* The same for split panels, which take longer to read from the L3 cache than to use. */
    MAX_SPLIT_COLUMN_BLOCK = 16,
    SLICES_PER_THREAD = 2 /* with fewer items per thread, rows are cut into slices */
};

/* Do two terms read the same A? A data pointer of NULL is never the same. */
static bool same_operand(const nbl__gemm_matrix *a, const nbl__gemm_matrix *b)
{
    return a->data != NULL && a->data == b->data && a->dtype == b->dtype && a->stride == b->stride &&
           a->scales == b->scales && a->transposed == b->transposed && a->k_index == b->k_index &&
           a->dropout == b->dropout &&
           (a->dropout == 0 ||
            (a->seed == b->seed && a->drop_first == b->drop_first && a->drop_columns == b->drop_columns));
}

/* The algorithm of a term. int8 codes times an int8 weight go to gemm_int8; with `gemv`, at most
 * NBL_MAX_GEMV_ROWS rows go to gemv; everything else to panels. */
static term_algo algo_of(const nbl__gemm_product *p, const nbl__gemm_term *t, bool gemv)
{
    const nbl__gemm_matrix *a = &t->a, *b = &t->b;
    if (a->k_index || b->k_index || a->transposed || a->dropout > 0 || b->dropout > 0) return ALGO_PANELS;
    if (a->dtype == NBL_DTYPE_I8) {
        bool codes = b->weight && b->weight->format == NBL_FORMAT_INT8 && b->transposed;
        return codes ? ALGO_INT8 : ALGO_PANELS;
    }
    /* If k runs down the columns of B (dy·W), packing is faster than gemv even for one row. */
    bool rows = b->transposed && (b->weight || b->dtype != NBL_DTYPE_I8);
    if (gemv && p->m <= NBL_MAX_GEMV_ROWS && rows) return ALGO_GEMV;
    return ALGO_PANELS;
}

/* The length of the blocks of k: equal blocks of at most `longest`, rounded up to 64. */
static int64_t block_of_k(int64_t k, int64_t longest)
{
    if (k == 0) return longest;
    return nbl__round_up(nbl__ceil_div(k, nbl__ceil_div(k, longest)), 64);
}

/* The number of row blocks; 1 for m = 0. */
static int64_t row_blocks_of(int64_t m)
{
    return nbl__max_i64(1, nbl__ceil_div(m, ROW_BLOCK));
}

/* The index of a term's operand: an existing one with the same A, kernel, m and k, or a new one.
 * The operand is packed in the first stage that uses it. */
static int operand_of(gemm_plan *plan, const nbl__gemm_product *p, const nbl__gemm_term *t)
{
    const nbl__gemm_kernel *kernel = nbl__gemm_kernel_for(plan->isa, t->compute,
                                                          nbl__gemm_rows(plan->algo, p->m));
    for (int i = 0; i < plan->operands; i++) {
        operand *o = &plan->operand[i];
        if (o->m != p->m || o->k != t->k || o->source.kernel != kernel || !same_operand(o->source.mat, &t->a))
            continue;
        if (p->stage < o->stage) o->stage = p->stage;
        return i;
    }
    assert(plan->operands < MAX_TERMS && kernel->rows <= NBL_MAX_PANEL_ROWS);
    assert(kernel->k_block <= NBL_MAX_K_BLOCK && kernel->k_block % 64 == 0 && 64 % kernel->k_step == 0);
    plan->operand[plan->operands] = (operand){
        .source = {plan->isa, kernel, &t->a, t->compute, !t->a.transposed},
        .m = p->m,
        .k = t->k,
        .k_block = block_of_k(t->k, kernel->k_block),
        .row_blocks = row_blocks_of(p->m),
        .stage = p->stage,
    };
    return plan->operands++;
}

/* Strips of the next column block, when `left` strips are left: an even share per thread, so that
 * column blocks shrink towards the end. Even, from 2 to max_column_block. */
static int64_t column_block_strips(const gemm_plan *plan, int64_t left)
{
    int64_t share = plan->workers == 1 ? left : left / plan->workers;
    return nbl__max_i64(2, nbl__min_i64(share / 2 * 2, plan->max_column_block));
}

bool nbl__gemm_next_column_block(const gemm_plan *plan, int64_t row_block, int stage, column_block *at)
{
    if (at->product == NULL) *at = (column_block){plan->products, 0, 0, plan->strips[stage]};
    at->left -= at->end - at->begin;
    at->begin = at->end;
    for (const product_plan *end = plan->products + plan->count; at->product < end; at->product++) {
        if (at->product->product->stage != stage) continue;
        int64_t own = row_block < at->product->row_blocks ? at->product->strips : 0;
        assert(at->begin <= at->product->strips && at->left >= own - at->begin);
        if (at->begin < own) {
            at->end = nbl__min_i64(own, at->begin + column_block_strips(plan, at->left));
            return true;
        }
        at->left -= at->product->strips - at->begin;
        at->begin = at->end = 0;
    }
    return false;
}

/* How many slices a row block needs for SLICES_PER_THREAD items per thread. A slice has at least
 * PACK_ROWS rows. */
static int64_t slice_count(const gemm_plan *plan, int64_t rows, int64_t column_blocks)
{
    int64_t wanted = plan->workers == 1 || column_blocks == 0
                         ? 1
                         : nbl__ceil_div((int64_t)plan->workers * SLICES_PER_THREAD, column_blocks);
    return nbl__max_i64(1, nbl__min_i64(wanted, rows / PACK_ROWS));
}

/* Windows, strips, slices, and the size of a worker's tile. */
static void plan_sizes(gemm_plan *plan)
{
    int64_t column_blocks[STAGES] = {0};
    plan->max_column_block = MAX_COLUMN_BLOCK;
    for (int i = 0; i < plan->operands; i++)
        if (plan->operand[i].source.kernel->panel == NBL_PANEL_SPLIT)
            plan->max_column_block = MAX_SPLIT_COLUMN_BLOCK;
    for (int i = 0; i < plan->count; i++) {
        product_plan *q = &plan->products[i];
        assert(q->product->stage >= 0 && q->product->stage < STAGES);
        q->strips = q->product->m > 0 ? nbl__ceil_div(q->product->n, NBL_STRIP) : 0;
        q->row_blocks = row_blocks_of(q->product->m);
        plan->strips[q->product->stage] += q->strips;
        plan->row_blocks = nbl__max_i64(plan->row_blocks, q->row_blocks);
    }
    for (int stage = 0; stage < STAGES; stage++)
        for (column_block at = {0}; nbl__gemm_next_column_block(plan, 0, stage, &at); column_blocks[stage]++)
            plan->tile_columns = nbl__max_i64(plan->tile_columns, (at.end - at.begin) * NBL_STRIP);
    for (int i = 0; i < plan->count; i++) {
        product_plan *q = &plan->products[i];
        int64_t rows = row_block_rows(q->product->m);
        q->slices = slice_count(plan, rows, column_blocks[q->product->stage]);
        plan->tile_rows = nbl__max_i64(plan->tile_rows, nbl__round_up(rows, NBL_MAX_PANEL_ROWS));
    }
}

/* A worker's panel of B and scratch for a term. */
static void plan_term(gemm_plan *plan, const term_plan *how, const nbl__gemm_term *t)
{
    size_t bytes = 0;
    if (t->dropout > 0) plan->part = true;
    if (how->algo == ALGO_INT8)
        bytes = nbl__int8_product_scratch(plan->isa, t, plan->tile_rows, plan->tile_columns);
    if (how->algo == ALGO_PANELS) {
        const operand *o = &plan->operand[how->operand];
        const nbl__gemm_kernel *kernel = o->source.kernel;
        /* Grows with k, as o->k_block need not: a call may have less k than was measured. */
        int64_t longest = nbl__min_i64(kernel->k_block, nbl__round_up(t->k, 64));
        size_t b = panel_bytes(kernel, longest * plan->tile_columns);
        if (b > plan->b_bytes) plan->b_bytes = b;
        bytes = nbl__pack_scratch(longest, nbl__max_i64(row_block_rows(o->m), plan->tile_columns));
    }
    if (bytes > plan->scratch_bytes) plan->scratch_bytes = bytes;
}

/* Cuts a worker's scratch; base NULL: measures it. */
static worker_memory layout_worker(uint8_t *base, const gemm_plan *plan, size_t *bytes)
{
    nbl__bump bump = {base, 0};
    worker_memory memory = {0};
    NBL_BUMP_ALLOC(&bump, memory.tile, plan->tile_rows * plan->tile_columns);
    if (plan->part) NBL_BUMP_ALLOC(&bump, memory.part, plan->tile_rows * plan->tile_columns);
    memory.b = nbl__bump_alloc(&bump, plan->b_bytes);
    memory.scratch = nbl__bump_alloc(&bump, plan->scratch_bytes);
    NBL_BUMP_ALLOC(&bump, memory.lines, 2 * plan->tile_columns);
    *bytes = bump.used;
    return memory;
}

/* Cuts the memory of an operand's panels for one row block. */
static void plan_operand(operand *o, nbl__bump *bump)
{
    const nbl__gemm_kernel *kernel = o->source.kernel;
    int64_t rows = nbl__round_up(row_block_rows(o->m), kernel->padded ? kernel->rows : 1);
    o->panels = nbl__bump_alloc(bump, panel_bytes(kernel, rows * nbl__round_up(o->k, kernel->k_step)));
}

void nbl__gemm_make_plan(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__gemm_product *products,
                         int count, nbl__bump *bump, arrays *memory, gemm_plan *plan)
{
    assert(count <= MAX_PRODUCTS && algo.isa <= nbl__isa(ctx));
    *plan = (gemm_plan){.isa = algo.isa,
                        .algo = algo,
                        .count = count,
                        .workers = nbl_threads(ctx),
                        .products = memory->products,
                        .operand = memory->operands};
    term_plan *next = memory->terms;
    for (int i = 0; i < count; i++) {
        const nbl__gemm_product *p = &products[i];
        product_plan *q = &plan->products[i];
        *q = (product_plan){.product = p, .terms = next};
        assert(p->m >= 0 && p->n >= 0 && next + p->term_count <= memory->terms + MAX_TERMS);
        assert(!p->c_transposed || (p->dtype == NBL_DTYPE_F32 && !p->factor && !p->bias));
        for (int t = 0; t < p->term_count; t++, next++) {
            assert(!p->terms[t].a.weight && !(p->terms[t].b.weight && p->terms[t].b.data));
            next->algo = algo_of(p, &p->terms[t], algo.gemv);
            /* Measuring: assume panels. `k_index` is set only when the call runs (LLM.int8), and
             * rules gemv out. */
            if (next->algo == ALGO_GEMV && bump->base == NULL) next->algo = ALGO_PANELS;
            if (next->algo == ALGO_PANELS) next->operand = operand_of(plan, p, &p->terms[t]);
        }
    }
    plan_sizes(plan);
    for (int i = 0; i < count; i++)
        for (int t = 0; t < products[i].term_count; t++) {
            const product_plan *q = &plan->products[i];
            plan_term(plan, &q->terms[t], &products[i].terms[t]);
        }
    for (int i = 0; i < plan->operands; i++) plan_operand(&plan->operand[i], bump);
    layout_worker(NULL, plan, &plan->worker_bytes);
    plan->worker_memories = nbl__bump_alloc(bump, plan->worker_bytes * (size_t)plan->workers);
}

worker_memory nbl__gemm_worker_memory(const gemm_plan *plan, int worker)
{
    size_t bytes;
    assert(worker >= 0 && worker < plan->workers && plan->worker_bytes % 64 == 0);
    return layout_worker(plan->worker_memories + plan->worker_bytes * (size_t)worker, plan, &bytes);
}
