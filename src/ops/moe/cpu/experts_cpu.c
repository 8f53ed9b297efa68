/* experts_cpu.c - batches, rows and copies of adapters. See experts_cpu.h; experts_products.c has the products. */
#include "ops/moe/cpu/experts_cpu.h"

#include "base/team.h"

/* A dry run's addresses: not memory, and different where memory would be. */
enum { STAND_IN_SCRATCH = 65536 };

/* Up to so many rows per expert A and B multiply in f32 also with bf16, as in linear_fused.c. */
enum { SMALL_RANGE = 16 };

static nbl__expert_layer layer_of(const nbl__expert_mlp *a, const nbl__expert_linear *l, int64_t rank)
{
    return (nbl__expert_layer){.l = l,
                               .flat = nbl__stack_flat(&l->w),
                               .in = nbl__expert_in(a, l),
                               .out = nbl__expert_out(a, l),
                               .rank = rank,
                               .scale = nbl__expert_scale(a, l)};
}

void nbl__experts_open(nbl__experts *j, const nbl__expert_mlp *a, const nbl_context *sizes_of,
                       nbl_context *ctx, nbl__gemm_algo algo, bool backward, uint8_t *scratch,
                       size_t scratch_bytes)
{
    nbl__expert_sizes z = nbl__expert_sizes_of(a);
    int64_t mean = nbl__expert_mean_rows(&z);
    *j = (nbl__experts){
        .a = a, .z = z, .ctx = ctx, .sizes_of = sizes_of, .algo = algo, .room = scratch_bytes};
    j->algo.rows = algo.gemv ? 1 : nbl__max_i64(mean, 1);
    j->by_row = algo.gemv;
    j->adapter = a->dtype == NBL_DTYPE_BF16 && mean > SMALL_RANGE ? NBL_DTYPE_BF16 : NBL_DTYPE_F32;
    j->bump.base = ctx ? scratch : (uint8_t *)(uintptr_t)STAND_IN_SCRATCH;
    j->max_rows = nbl__min_i64(NBL_EXPERT_ROWS, z.pairs);
    j->layer[0] = layer_of(a, &a->gate_up, z.rank);
    j->layer[1] = layer_of(a, &a->down, z.down_rank);
    for (nbl__expert_layer *l = j->layer; l < j->layer + NBL_EXPERT_LAYERS; l++) {
        if (l->rank == 0) continue;
        int64_t copies = nbl__min_i64(NBL_EXPERT_RANGES, z.experts) * l->out * l->rank;
        NBL_BUMP_ALLOC(&j->bump, l->b, copies);
        NBL_BUMP_ALLOC(&j->bump, l->t, j->max_rows * l->rank);
        if (backward) NBL_BUMP_ALLOC(&j->bump, l->u, j->max_rows * l->rank);
        if (backward) NBL_BUMP_ALLOC(&j->bump, l->db, copies);
    }
}

size_t nbl__experts_measure(const nbl_context *ctx, const nbl__expert_mlp *a, nbl__gemm_algo algo,
                            bool backward, nbl_status (*run)(nbl__experts *j))
{
    size_t max = 0;
    for (int pass = 0; pass < 4; pass++) {
        nbl__experts j;
        nbl__experts_open(&j, a, ctx, NULL, algo, backward, NULL, 0);
        if (pass % 2) j.adapter = NBL_DTYPE_F32; /* as with fewer tokens */
        j.longest = pass < 2 ? 512 : 1024;       /* blocks of a sum: of most kernels, of AMX */
        run(&j);
        if (j.bump.used + j.tail > max) max = j.bump.used + j.tail;
    }
    return max;
}

/* ---- batches ---- */

/* The batch of a dry run: as many ranges as possible, one of `longest` rows, each with the padding that it may need. */
static bool dry_batch(nbl__experts *j)
{
    enum { PADDING = 32 }; /* the longest step along a sum of any kernel */
    int64_t first = nbl__min_i64(j->longest, j->max_rows), rest = j->max_rows - first;
    if (j->end > 0 || j->max_rows == 0) return false;
    j->count = (int)nbl__min_i64(NBL_EXPERT_RANGES, j->z.experts);
    for (int i = 0; i < j->count; i++) {
        int64_t rows = j->count == 1 ? j->max_rows
                       : i == 0      ? first
                                     : nbl__ceil_div(rest, j->count - 1) + PADDING;
        j->range[i] = (nbl__expert_range){i, j->end, rows};
        j->end += rows;
    }
    return true;
}

bool nbl__experts_next(nbl__experts *j)
{
    const int32_t *offsets = j->a->offsets.data;
    if (j->ctx == NULL) return dry_batch(j);
    j->row = j->end;
    for (j->count = 0; j->count < NBL_EXPERT_RANGES && j->end - j->row < j->max_rows;) {
        while (j->expert < j->z.experts && offsets[j->expert + 1] <= j->end) j->expert++;
        if (j->expert == j->z.experts) break;
        int64_t end = nbl__min_i64(offsets[j->expert + 1], j->row + j->max_rows);
        j->range[j->count++] = (nbl__expert_range){j->expert, j->end - j->row, end - j->end};
        j->end = end;
    }
    return j->count > 0;
}

/* ---- rows ---- */

typedef struct row_job {
    const nbl__experts *j;
    const nbl_tensor *tensor;
    nbl__expert_matrix rows;
    bool weigh;
    float *sums;
} row_job;

/* Runs `fn` on the team. A dry run does nothing. */
static nbl_status run_items(nbl__experts *j, int64_t items, nbl__team_fn fn, row_job job)
{
    job.j = j;
    return j->ctx ? nbl__team_run(j->ctx, items, fn, &job, NULL) : NBL_OK;
}

static nbl_status gather_row(void *argument, int64_t item, int worker)
{
    const row_job *r = argument;
    int64_t columns = r->rows.columns, token = nbl__experts_pair(r->j, item) / r->j->z.top_k;
    size_t size = nbl__size_of(r->tensor->dtype);
    const uint8_t *from = (const uint8_t *)r->tensor->data + (size_t)(token * columns) * size;
    uint8_t *to = (uint8_t *)r->rows.data + (size_t)(item * columns) * nbl__size_of(r->rows.dtype);
    (void)worker;
    if (!r->weigh) {
        memcpy(to, from, (size_t)columns * size);
        return NBL_OK;
    }
    float *values = (float *)(void *)to, weight = nbl__experts_weight(r->j, item);
    nbl__to_f32(r->j->algo.isa, r->tensor->dtype, from, values, columns);
    for (int64_t i = 0; i < columns; i++) values[i] *= weight;
    return NBL_OK;
}

nbl_status nbl__experts_gather(nbl__experts *j, const nbl_tensor *from, bool weigh, nbl__expert_matrix to)
{
    assert(weigh ? to.dtype == NBL_DTYPE_F32 : to.dtype == from->dtype);
    return run_items(j, j->end - j->row, gather_row, (row_job){.tensor = from, .rows = to, .weigh = weigh});
}

enum { SUM_COLUMNS = 256 };

/* Adds SUM_COLUMNS columns of all rows: an element of the sums has one worker. */
static nbl_status add_columns(void *argument, int64_t item, int worker)
{
    const row_job *r = argument;
    int64_t columns = r->rows.columns, first = item * SUM_COLUMNS;
    int64_t n = nbl__min_i64(SUM_COLUMNS, columns - first);
    (void)worker;
    for (int64_t row = 0; row < r->j->end - r->j->row; row++) {
        const float *from = (const float *)r->rows.data + row * columns + first;
        float *to = r->sums + nbl__experts_pair(r->j, row) / r->j->z.top_k * columns + first;
        float weight = r->weigh ? nbl__experts_weight(r->j, row) : 1;
        for (int64_t i = 0; i < n; i++) to[i] += weight * from[i];
    }
    return NBL_OK;
}

nbl_status nbl__experts_add(nbl__experts *j, nbl__expert_matrix rows, bool weigh, float *sums)
{
    assert(rows.dtype == NBL_DTYPE_F32);
    return run_items(j, nbl__ceil_div(rows.columns, SUM_COLUMNS), add_columns,
                     (row_job){.rows = rows, .weigh = weigh, .sums = sums});
}

static nbl_status round_row(void *argument, int64_t item, int worker)
{
    const row_job *r = argument;
    int64_t columns = nbl__last(r->tensor);
    (void)worker;
    nbl__from_f32(r->j->algo.isa, r->sums + item * columns, r->tensor->dtype,
                  (uint8_t *)r->tensor->data + (size_t)(item * columns) * nbl__size_of(r->tensor->dtype),
                  columns);
    return NBL_OK;
}

nbl_status nbl__experts_round(nbl__experts *j, const float *sums, const nbl_tensor *to)
{
    if (sums == to->data) return NBL_OK;
    return run_items(j, nbl__tensor_rows(to), round_row,
                     (row_job){.tensor = to, .sums = (float *)(uintptr_t)sums});
}

/* ---- B ---- */

typedef struct b_job {
    const nbl__experts *j;
    const nbl__expert_layer *layer;
} b_job;

enum { B_ROWS = 64 };

/* B_ROWS rows of B to the copies of all ranges. A row of B is read once. */
static nbl_status load_b_rows(void *argument, int64_t item, int worker)
{
    const b_job *job = argument;
    const nbl__experts *j = job->j;
    const nbl__expert_layer *layer = job->layer;
    const nbl_tensor *b = &layer->l->lora_b;
    int64_t rank = layer->rank, experts = j->z.experts, end = nbl__min_i64(layer->out, (item + 1) * B_ROWS);
    size_t size = nbl__size_of(b->dtype);
    (void)worker;
    for (int64_t o = item * B_ROWS; o < end; o++) {
        const uint8_t *row = (const uint8_t *)b->data + (size_t)(o * rank * experts) * size;
        for (int i = 0; i < j->count; i++) {
            float *to = layer->b + (i * layer->out + o) * rank;
            const uint8_t *from = row + (size_t)j->range[i].expert * size;
            if (b->dtype == NBL_DTYPE_F32)
                for (int64_t k = 0; k < rank; k++) memcpy(&to[k], from + k * experts * 4, sizeof *to);
            else
                for (int64_t k = 0; k < rank; k++)
                    nbl__to_f32(NBL_ISA_SCALAR, b->dtype, from + (size_t)(k * experts) * size, &to[k], 1);
        }
    }
    return NBL_OK;
}

nbl_status nbl__experts_load_b(nbl__experts *j, nbl__expert_layer *layer)
{
    b_job job = {j, layer};
    if (j->ctx == NULL || layer->rank == 0) return NBL_OK;
    return nbl__team_run(j->ctx, nbl__ceil_div(layer->out, B_ROWS), load_b_rows, &job, NULL);
}
