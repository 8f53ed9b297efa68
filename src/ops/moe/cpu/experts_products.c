/* experts_products.c - the matrix products of a batch of rows. See experts_cpu.h. */
#include "base/team.h"
#include "ops/moe/cpu/experts_cpu.h"

/* Products of one call of gemm: t or u of each range, and each piece of a matrix. */
enum { MAX_PIECES = 2, MAX_CALL = (1 + MAX_PIECES) * NBL_EXPERT_RANGES };

typedef struct call {
    nbl__gemm_product products[MAX_CALL];
    nbl__gemm_term terms[2 * MAX_CALL];
    nbl_tensor biases[MAX_CALL];
    int count, terms_used;
} call;

static nbl_status multiply(nbl__experts *j, const call *c)
{
    if (c->count == 0) return NBL_OK;
    size_t bytes = nbl__gemm_scratch(j->sizes_of, j->algo, c->products, c->count);
    if (j->ctx == NULL) {
        j->tail = bytes > j->tail ? bytes : j->tail;
        return NBL_OK;
    }
    NBL_CHECK(j->ctx, j->bump.used + bytes <= j->room, NBL_ERROR_INTERNAL,
              "experts: a product needs %zu bytes of scratch, %zu of %zu are taken", bytes, j->bump.used,
              j->room);
    return nbl__gemm(j->ctx, j->algo, c->products, c->count, j->bump.base + j->bump.used);
}

/* ---- operands ---- */

static nbl__gemm_matrix dense(nbl_dtype dtype, const void *data, int64_t stride)
{
    return (nbl__gemm_matrix){.dtype = dtype, .data = data, .stride = stride};
}

static nbl__gemm_matrix transposed(nbl__gemm_matrix m)
{
    m.transposed = true;
    return m;
}

/* Rows from `row` on, columns from `column` on, of rows of the batch. */
static nbl__gemm_matrix rows_of(nbl__expert_matrix m, int64_t row, int64_t column)
{
    return dense(m.dtype,
                 (const uint8_t *)m.data + (size_t)(row * m.columns + column) * nbl__size_of(m.dtype),
                 m.columns);
}

/* A_e: [rank, in]. */
static nbl__gemm_matrix a_of(const nbl__expert_layer *layer, int64_t expert)
{
    const nbl_tensor *a = &layer->l->lora_a;
    size_t row = (size_t)(expert * layer->rank * layer->in);
    return dense(a->dtype, (const uint8_t *)a->data + row * nbl__size_of(a->dtype), layer->in);
}

/* The copy of B_e of a range: [out, rank], from output `first` on. */
static nbl__gemm_matrix b_of(const nbl__expert_layer *layer, int64_t range, int64_t first)
{
    return dense(NBL_DTYPE_F32, layer->b + (range * layer->out + first) * layer->rank, layer->rank);
}

/* A piece of W_e as the product sees it: [in, out] for z, [out, in] for dv. */
static nbl__gemm_matrix w_of(const nbl__experts *j, const nbl__expert_layer *layer, nbl__weight_rows rows,
                             bool for_z)
{
    return (nbl__gemm_matrix){.weight = rows.weight,
                              .first_row = rows.first_row,
                              .stride = layer->l->w.shape[2],
                              .transposed = for_z != j->a->transposed};
}

static nbl__gemm_product *add_product(call *c, nbl__gemm_product product)
{
    assert(c->count < MAX_CALL);
    product.terms = &c->terms[c->terms_used];
    c->products[c->count] = product;
    return &c->products[c->count++];
}

/* Adds a term to the product that was added last. */
static void add_term(call *c, nbl__gemm_term term)
{
    assert(c->count > 0 && c->terms_used < 2 * MAX_CALL);
    c->terms[c->terms_used++] = term;
    c->products[c->count - 1].term_count++;
}

/* ---- z ---- */

/* Some rows of a range. */
typedef struct part {
    int64_t range, row, rows;
} part;

/* t of a part: stage 0. */
static void add_t(const nbl__experts *j, const nbl__expert_layer *layer, part p, nbl__expert_matrix v,
                  call *c)
{
    add_product(c, (nbl__gemm_product){.m = p.rows,
                                       .n = layer->rank,
                                       .dtype = NBL_DTYPE_F32,
                                       .c = layer->t + p.row * layer->rank,
                                       .stride = layer->rank});
    add_term(c, (nbl__gemm_term){.a = rows_of(v, p.row, 0),
                                 .b = transposed(a_of(layer, j->range[p.range].expert)),
                                 .k = layer->in,
                                 .alpha = layer->scale,
                                 .compute = j->adapter});
}

/* z of a part: a product for each piece of the matrix, stage 1. */
static void add_z(const nbl__experts *j, const nbl__expert_layer *layer, part p, nbl__expert_matrix v,
                  float *z, call *c)
{
    const nbl__expert_linear *l = layer->l;
    int64_t expert = j->range[p.range].expert, first = 0, pieces = nbl__stack_pieces(&l->w);
    for (int64_t piece = 0; piece < pieces; piece++) {
        nbl__weight_rows rows = nbl__stack_rows(&l->w, &layer->flat, expert, piece);
        int64_t n = pieces == 1 ? layer->out : rows.rows;
        nbl_tensor *bias = NULL;
        if (nbl__has_data(&l->bias)) {
            bias = &c->biases[c->count];
            *bias = (nbl_tensor){.dtype = l->bias.dtype, .rank = 1, .shape = {n}};
            bias->data = (uint8_t *)l->bias.data +
                         (size_t)(expert * layer->out + first) * nbl__size_of(l->bias.dtype);
        }
        add_product(c, (nbl__gemm_product){.m = p.rows,
                                           .n = n,
                                           .bias = bias,
                                           .dtype = NBL_DTYPE_F32,
                                           .c = z + p.row * layer->out + first,
                                           .stride = layer->out,
                                           .stage = 1});
        add_term(c, (nbl__gemm_term){.a = rows_of(v, p.row, 0),
                                     .b = w_of(j, layer, rows, true),
                                     .k = layer->in,
                                     .alpha = 1,
                                     .compute = j->a->dtype});
        if (layer->rank > 0)
            add_term(c,
                     (nbl__gemm_term){.a = dense(NBL_DTYPE_F32, layer->t + p.row * layer->rank, layer->rank),
                                      .b = transposed(b_of(layer, p.range, first)),
                                      .k = layer->rank,
                                      .alpha = 1,
                                      .compute = j->adapter});
        first += n;
    }
}

/* The next parts of a batch, up to NBL_EXPERT_RANGES: ranges, or single rows. `at` is where the last ones ended. */
static int next_parts(const nbl__experts *j, part *at, part parts[NBL_EXPERT_RANGES])
{
    int count = 0;
    for (; at->range < j->count && count < NBL_EXPERT_RANGES; count++) {
        const nbl__expert_range *range = &j->range[at->range];
        int64_t rows = j->by_row ? 1 : range->rows;
        parts[count] = (part){at->range, range->row + at->row, rows};
        at->row += rows;
        if (at->row >= range->rows) *at = (part){.range = at->range + 1};
    }
    return count;
}

nbl_status nbl__experts_apply(nbl__experts *j, nbl__expert_layer *layer, nbl__expert_matrix v, float *z)
{
    part at = {0}, parts[NBL_EXPERT_RANGES];
    for (int count; (count = next_parts(j, &at, parts)) > 0;) {
        call c = {.count = 0};
        for (int i = 0; i < count && layer->rank > 0; i++) add_t(j, layer, parts[i], v, &c);
        for (int i = 0; i < count && z; i++) add_z(j, layer, parts[i], v, z, &c);
        NBL_TRY(multiply(j, &c));
    }
    return NBL_OK;
}

/* ---- dv ---- */

/* multiply() in panels alone: gemv would choose by the rows of a range. */
static nbl_status multiply_panels(nbl__experts *j, const call *c, int64_t rows)
{
    nbl__gemm_algo algo = j->algo;
    j->algo.gemv = false;
    j->algo.rows = rows;
    nbl_status status = multiply(j, c);
    j->algo = algo;
    return status;
}

nbl_status nbl__experts_differentiate(nbl__experts *j, nbl__expert_layer *layer, nbl__expert_matrix dz,
                                      float *dv)
{
    const nbl__expert_linear *l = layer->l;
    call c = {.count = 0};
    for (int i = 0; i < j->count && layer->rank > 0; i++) {
        const nbl__expert_range *r = &j->range[i];
        add_product(&c, (nbl__gemm_product){.m = r->rows,
                                            .n = layer->rank,
                                            .dtype = NBL_DTYPE_F32,
                                            .c = layer->u + r->row * layer->rank,
                                            .stride = layer->rank});
        add_term(&c, (nbl__gemm_term){.a = rows_of(dz, r->row, 0),
                                      .b = b_of(layer, i, 0),
                                      .k = layer->out,
                                      .alpha = layer->scale,
                                      .compute = j->adapter});
    }
    for (int i = 0; i < j->count && dv; i++) {
        const nbl__expert_range *r = &j->range[i];
        int64_t first = 0, pieces = nbl__stack_pieces(&l->w);
        add_product(&c, (nbl__gemm_product){.m = r->rows,
                                            .n = layer->in,
                                            .dtype = NBL_DTYPE_F32,
                                            .c = dv + r->row * layer->in,
                                            .stride = layer->in,
                                            .stage = 1});
        for (int64_t piece = 0; piece < pieces; piece++) {
            nbl__weight_rows rows = nbl__stack_rows(&l->w, &layer->flat, r->expert, piece);
            int64_t k = pieces == 1 ? layer->out : rows.rows;
            add_term(&c, (nbl__gemm_term){.a = rows_of(dz, r->row, first),
                                          .b = w_of(j, layer, rows, false),
                                          .k = k,
                                          .alpha = 1,
                                          .compute = j->a->dtype});
            first += k;
        }
        if (layer->rank > 0)
            add_term(&c,
                     (nbl__gemm_term){.a = dense(NBL_DTYPE_F32, layer->u + r->row * layer->rank, layer->rank),
                                      .b = a_of(layer, r->expert),
                                      .k = layer->rank,
                                      .alpha = 1,
                                      .compute = j->adapter});
    }
    return multiply_panels(j, &c, j->algo.rows);
}

/* ---- gradients of parameters ---- */

/* The address of a gradient's elements from `first` on. A dry run has no memory for gradients. */
static float *gradient_at(const nbl__experts *j, const nbl_tensor *gradient, int64_t first)
{
    return j->ctx ? (float *)gradient->data + first : NULL;
}

/* Adds a product of transposed rows of the batch: C (+)= leftᵀ·right, [m, n]. */
static void add_outer(const nbl__experts *j, call *c, const nbl__expert_range *r, nbl__expert_matrix left,
                      nbl__expert_matrix right, float *to, bool accumulate, bool to_transposed)
{
    add_product(c, (nbl__gemm_product){.m = left.columns,
                                       .n = right.columns,
                                       .dtype = NBL_DTYPE_F32,
                                       .c = to,
                                       .stride = to_transposed ? left.columns : right.columns,
                                       .c_transposed = to_transposed,
                                       .accumulate = accumulate});
    add_term(c, (nbl__gemm_term){.a = transposed(rows_of(left, r->row, 0)),
                                 .b = rows_of(right, r->row, 0),
                                 .k = r->rows,
                                 .alpha = 1,
                                 .compute = j->adapter});
}

typedef struct b_job {
    const nbl__experts *j;
    const nbl__expert_layer *layer;
} b_job;

enum { B_ROWS = 64, BIAS_COLUMNS = 64 };

/* B_ROWS rows of dB from the copies of all ranges. */
static nbl_status add_b_rows(void *argument, int64_t item, int worker)
{
    const b_job *job = argument;
    const nbl__experts *j = job->j;
    const nbl__expert_layer *layer = job->layer;
    int64_t rank = layer->rank, end = nbl__min_i64(layer->out, (item + 1) * B_ROWS);
    (void)worker;
    for (int64_t o = item * B_ROWS; o < end; o++)
        for (int i = 0; i < j->count; i++) {
            float *to = (float *)layer->l->dlora_b.data + o * rank * j->z.experts + j->range[i].expert;
            const float *from = layer->db + (i * layer->out + o) * rank;
            for (int64_t k = 0; k < rank; k++) to[k * j->z.experts] += from[k];
        }
    return NBL_OK;
}

typedef struct bias_job {
    const nbl__experts *j;
    const nbl__expert_layer *layer;
    nbl__expert_matrix dz;
    bool weigh;
} bias_job;

/* BIAS_COLUMNS columns of one range's bias, summed in f64. */
static nbl_status add_bias_columns(void *argument, int64_t item, int worker)
{
    const bias_job *job = argument;
    const nbl__experts *j = job->j;
    int64_t blocks = nbl__ceil_div(job->layer->out, BIAS_COLUMNS), first = item % blocks * BIAS_COLUMNS;
    const nbl__expert_range *r = &j->range[item / blocks];
    int64_t n = nbl__min_i64(BIAS_COLUMNS, job->layer->out - first);
    double sums[BIAS_COLUMNS] = {0};
    float values[BIAS_COLUMNS],
        *to = (float *)job->layer->l->dbias.data + r->expert * job->layer->out + first;
    (void)worker;
    for (int64_t row = r->row; row < r->row + r->rows; row++) {
        double weight = job->weigh ? (double)nbl__experts_weight(j, row) : 1;
        nbl__to_f32(j->algo.isa, job->dz.dtype, rows_of(job->dz, row, first).data, values, n);
        for (int64_t i = 0; i < n; i++) sums[i] += weight * (double)values[i];
    }
    for (int64_t i = 0; i < n; i++) to[i] = (float)((double)to[i] + sums[i]);
    return NBL_OK;
}

nbl_status nbl__experts_gradients(nbl__experts *j, nbl__expert_layer *layer, nbl__expert_matrix v,
                                  nbl__expert_matrix dz)
{
    const nbl__expert_linear *l = layer->l;
    bool of_a = layer->rank > 0 && nbl__experts_wants(j, &l->dlora_a);
    bool of_b = layer->rank > 0 && nbl__experts_wants(j, &l->dlora_b);
    nbl__expert_matrix t = {NBL_DTYPE_F32, layer->t, layer->rank}, u = {NBL_DTYPE_F32, layer->u, layer->rank};
    call c = {.count = 0};
    for (int i = 0; i < j->count; i++) {
        const nbl__expert_range *r = &j->range[i];
        if (of_a)
            add_outer(j, &c, r, u, v, gradient_at(j, &l->dlora_a, r->expert * layer->rank * layer->in), true,
                      false);
        /* dBᵀ = tᵀ·dz: t has only r columns, and is the cheaper left operand to pack. */
        if (of_b) add_outer(j, &c, r, t, dz, layer->db + i * layer->out * layer->rank, false, true);
        if (nbl__experts_wants(j, &l->dw)) {
            float *to = gradient_at(j, &l->dw, r->expert * layer->in * layer->out);
            if (j->a->transposed) add_outer(j, &c, r, v, dz, to, true, false);
            else add_outer(j, &c, r, dz, v, to, true, false);
        }
    }
    NBL_TRY(multiply_panels(j, &c, 0)); /* these products have rows of parameters */
    if (j->ctx == NULL) return NBL_OK;
    b_job job = {j, layer};
    if (of_b) NBL_TRY(nbl__team_run(j->ctx, nbl__ceil_div(layer->out, B_ROWS), add_b_rows, &job, NULL));
    if (!nbl__experts_wants(j, &l->dbias)) return NBL_OK;
    bias_job bias = {j, layer, dz, layer == &j->layer[1] && !j->a->scales_input};
    return nbl__team_run(j->ctx, j->count * nbl__ceil_div(layer->out, BIAS_COLUMNS), add_bias_columns, &bias,
                         NULL);
}
