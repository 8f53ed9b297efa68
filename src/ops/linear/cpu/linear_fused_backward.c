/* linear_fused_backward.c - linear layers backward. See linear_fused.h for the formulas and for t
 * (xa) and u (gb).
 *
 *   1. factors of DoRA; x in 8 bits, if the magnitude's gradient needs it
 *   2. one call of gemm: t, u, and dx without DoRA          first_products
 *   3. one call of gemm: dA, dB, and dW without DoRA        outer_products
 *   4. DoRA, per chunk of tokens: dy', dW, dx; then dB and the magnitude's gradient
 *   5. the bias' gradient
 *
 * Sums over tokens are in a fixed order: a product (dA, dB, dW) or a column sum (bias, magnitude)
 * gives each element of the result to one worker, which goes through the tokens in order. The bits
 * do not depend on the threads. */
#include "base/team.h"
#include "ops/linear/cpu/dropout.h"
#include "ops/linear/cpu/linear_fused.h"

/* The gradients of a layer's parameters that are to be computed. */
typedef struct wishes {
    bool a, b, bias, magnitude, w;
} wishes;

/* Is the gradient to be computed? Dry: may any call with these arguments want it? */
static bool wanted(const nbl__linear_fused *j, const nbl_tensor *gradient)
{
    return gradient->rank > 0 && (j->dry || nbl__has_data(gradient));
}

static wishes wishes_of(const nbl__linear_fused *j, const nbl__linear_part *l)
{
    const nbl__linear *a = l->a;
    return (wishes){l->rank > 0 && wanted(j, &a->dlora_a), l->rank > 0 && wanted(j, &a->dlora_b),
                    wanted(j, &a->dbias), l->factor && wanted(j, &a->dmagnitude), wanted(j, &a->dw)};
}

/* Pieces with a row per token of a chunk. dx and the magnitude's gradient use the same memory, one
 * after the other. */
typedef struct wide {
    int64_t rows;
    float *scaled[NBL_MAX_LINEAR_FUSED]; /* [rows, out]: dy' of layers with DoRA */
    float *part, *sum; /* [rows, in]: one masked part of dx, and their sum; DoRA with dropout */
    float *plain;      /* [rows, out]: outputs before factor and bias */
} wide;

static bool has_dora(const nbl__linear_fused *j)
{
    for (int i = 0; i < j->count; i++)
        if (j->layers[i].factor) return true;
    return false;
}

/* Does a mask stand between the layer's adapter and dx? */
static bool drops(const nbl__linear_part *l)
{
    return l->rank > 0 && l->a->dropout > 0;
}

/* Cuts backward's scratch. `plain` overlaps `scaled`, `part` and `sum`. */
static wide cut_pieces(nbl__linear_fused *j)
{
    wide w = {.rows = nbl__min_i64(NBL_LINEAR_FUSED_CHUNK, j->tokens)};
    bool dropout = false;
    int64_t widest = 0;
    for (nbl__linear_part *l = j->layers; l < j->layers + j->count; l++) {
        NBL_BUMP_ALLOC(&j->bump, l->u, j->tokens * l->rank);
        NBL_BUMP_ALLOC(&j->bump, l->sums, l->out);
        dropout |= drops(l);
        if (l->factor == NULL) continue;
        NBL_BUMP_ALLOC(&j->bump, l->scaled_b, l->out * l->rank);
        NBL_BUMP_ALLOC(&j->bump, l->db_part, l->out * l->rank);
        widest = nbl__max_i64(widest, l->out);
    }
    if (!has_dora(j)) return w;
    nbl__bump for_magnitude = j->bump;
    NBL_BUMP_ALLOC(&for_magnitude, w.plain, w.rows * widest);
    for (int i = 0; i < j->count; i++)
        if (j->layers[i].factor) NBL_BUMP_ALLOC(&j->bump, w.scaled[i], w.rows * j->layers[i].out);
    if (dropout) {
        NBL_BUMP_ALLOC(&j->bump, w.part, w.rows * j->in);
        NBL_BUMP_ALLOC(&j->bump, w.sum, w.rows * j->in);
    }
    if (for_magnitude.used > j->bump.used) j->bump = for_magnitude;
    return w;
}

/* ---- column sums ---- */

enum { SUM_COLUMNS = 64, SUM_ROWS = 32 };

typedef struct column_job {
    nbl_isa isa;
    const nbl_tensor *dy;
    const float *plain; /* [rows, out] or NULL: a factor of each summand */
    int64_t row, rows, out;
    bool first;   /* write sums; else add to them */
    double *sums; /* [out] */
} column_job;

/* Sums of SUM_COLUMNS columns over rows: f32 within SUM_ROWS rows, f64 above, so that the error
 * does not grow with the number of tokens. */
static nbl_status sum_columns(void *argument, int64_t item, int worker)
{
    const column_job *j = argument;
    float values[SUM_COLUMNS], part[SUM_COLUMNS];
    int64_t first = item * SUM_COLUMNS, n = nbl__min_i64(SUM_COLUMNS, j->out - first);
    double *sums = j->sums + first;
    (void)worker;
    if (j->first) memset(sums, 0, (size_t)n * sizeof *sums);
    for (int64_t block = 0; block < j->rows; block += SUM_ROWS) {
        memset(part, 0, sizeof part);
        for (int64_t t = block; t < nbl__min_i64(j->rows, block + SUM_ROWS); t++) {
            const uint8_t *dy = nbl__row_of(j->dy, j->row + t);
            nbl__to_f32(j->isa, j->dy->dtype, dy + (size_t)first * nbl__size_of(j->dy->dtype), values, n);
            const float *plain = j->plain ? j->plain + t * j->out + first : NULL;
            for (int64_t c = 0; c < n; c++) part[c] += plain ? values[c] * plain[c] : values[c];
        }
        for (int64_t c = 0; c < n; c++) sums[c] += (double)part[c];
    }
    return NBL_OK;
}

/* l->sums (+)= Σ_t dy[t, n], or Σ_t dy[t, n]·plain[t, n]. */
static nbl_status column_sums(const nbl__linear_fused *j, const nbl__linear_part *l, const float *plain,
                              int64_t row, int64_t rows)
{
    if (j->dry) return NBL_OK;
    column_job job = {j->algo.isa, &l->dy, plain, row, rows, l->out, row == 0, l->sums};
    return nbl__team_run(j->ctx, nbl__ceil_div(l->out, SUM_COLUMNS), sum_columns, &job, NULL);
}

/* Writes the sums, times `factor` if it is given, to a gradient, or adds them. */
static void put_sums(const nbl__linear_fused *j, const nbl__linear_part *l, const float *factor,
                     const nbl_tensor *gradient)
{
    float *to = gradient->data;
    for (int64_t n = 0; !j->dry && n < l->out; n++) {
        double value = factor ? l->sums[n] * (double)factor[n] : l->sums[n];
        to[n] = (float)(l->a->accumulate ? (double)to[n] + value : value);
    }
}

/* ---- the small products ---- */

/* scaled_b = factor∘B: u takes the factor from B, and needs no dy'. */
static void scale_b(const nbl__linear_fused *j, const nbl__linear_part *l)
{
    if (j->dry || l->factor == NULL) return;
    nbl__to_f32(j->algo.isa, l->a->lora_b.dtype, l->a->lora_b.data, l->scaled_b, l->out * l->rank);
    for (int64_t n = 0; n < l->out; n++)
        for (int64_t r = 0; r < l->rank; r++) l->scaled_b[n * l->rank + r] *= l->factor[n];
}

/* The product u = s·dy·(factor∘B). */
static nbl__gemm_product gradient_of_inner(const nbl__linear_fused *j, const nbl__linear_part *l,
                                           nbl__gemm_term *term)
{
    const nbl_tensor *b = &l->a->lora_b;
    *term = (nbl__gemm_term){.a = nbl__rows_of(&l->dy, 0),
                             .b = l->factor ? nbl__dense(NBL_DTYPE_F32, l->scaled_b, l->rank)
                                            : nbl__dense(b->dtype, b->data, l->rank),
                             .k = l->out,
                             .alpha = l->a->scale,
                             .compute = l->adapter};
    return (nbl__gemm_product){.m = j->tokens,
                               .n = l->rank,
                               .terms = term,
                               .term_count = 1,
                               .dtype = NBL_DTYPE_F32,
                               .c = l->u,
                               .stride = l->rank};
}

/* The products t and u of all layers, where a wanted gradient needs them. Returns their number. */
static int inner_products(nbl__linear_fused *j, nbl__gemm_term *terms, nbl__gemm_product *products)
{
    int count = 0;
    for (const nbl__linear_part *l = j->layers; l < j->layers + j->count; l++) {
        wishes want = wishes_of(j, l);
        if (l->rank == 0) continue;
        if (want.b || want.magnitude) {
            products[count] = nbl__linear_fused_inner(j, l, &terms[count]);
            count++;
        }
        if (!want.a && !wanted(j, &j->dx)) continue;
        scale_b(j, l);
        products[count] = gradient_of_inner(j, l, &terms[count]);
        count++;
    }
    return count;
}

/* ---- dx ---- */

/* The rows [row, row + rows) of dx as a sum of terms. */
static nbl__gemm_product dx_product(const nbl__linear_fused *j, int64_t row, int64_t rows,
                                    const nbl__gemm_term *terms, int count)
{
    return (nbl__gemm_product){.m = rows,
                               .n = j->in,
                               .terms = terms,
                               .term_count = count,
                               .dtype = j->dx.dtype,
                               .c = nbl__row_of(&j->dx, row),
                               .stride = nbl__matrix_stride(&j->dx)};
}

/* dy'·W of a layer, for the rows from `row` on. `scaled` is dy' of the chunk; NULL: dy itself. */
static nbl__gemm_term base_term(const nbl__linear_fused *j, const nbl__linear_part *l, int64_t row,
                                const float *scaled)
{
    return (nbl__gemm_term){.a = scaled ? nbl__dense(NBL_DTYPE_F32, scaled, l->out)
                                        : nbl__rows_of(&l->dy, row),
                            .b = {.weight = &l->a->w, .stride = j->in},
                            .k = l->out,
                            .alpha = 1,
                            .compute = l->a->dtype};
}

/* u·A of a layer, for the rows from `row` on. The caller applies the mask. */
static nbl__gemm_term adapter_term(const nbl__linear_fused *j, const nbl__linear_part *l, int64_t row)
{
    return (nbl__gemm_term){.a = nbl__dense(NBL_DTYPE_F32, l->u + row * l->rank, l->rank),
                            .b = nbl__dense(l->a->lora_a.dtype, l->a->lora_a.data, j->in),
                            .k = l->rank,
                            .alpha = 1,
                            .compute = l->adapter};
}

/* dW (+)= dy'ᵀ·x over the rows [row, row + rows). The compute dtype is the adapters': with bf16
 * the operands are bf16 already, and with f16 f32 keeps their range. */
static nbl__gemm_product dw_product(const nbl__linear_fused *j, const nbl__linear_part *l, int64_t row,
                                    int64_t rows, const float *scaled, nbl__gemm_term *term)
{
    nbl__gemm_matrix dy = scaled ? nbl__dense(NBL_DTYPE_F32, scaled, l->out) : nbl__rows_of(&l->dy, row);
    *term = (nbl__gemm_term){.a = nbl__transposed(dy),
                             .b = nbl__rows_of(&j->x, row),
                             .k = rows,
                             .alpha = 1,
                             .compute = l->adapter};
    return (nbl__gemm_product){.m = l->out,
                               .n = j->in,
                               .terms = term,
                               .term_count = 1,
                               .dtype = NBL_DTYPE_F32,
                               .c = l->a->dw.data,
                               .stride = j->in,
                               .accumulate = l->a->accumulate || row > 0};
}

/* One call: t and u, and without DoRA dx, so that dy is packed once. */
static nbl_status first_products(nbl__linear_fused *j)
{
    nbl__gemm_term inner[2 * NBL_MAX_LINEAR_FUSED], terms[2 * NBL_MAX_LINEAR_FUSED];
    nbl__gemm_product products[2 * NBL_MAX_LINEAR_FUSED + 1];
    int count = inner_products(j, inner, products), term_count = 0;
    if (!wanted(j, &j->dx) || has_dora(j)) return nbl__linear_fused_multiply(j, products, count);
    for (const nbl__linear_part *l = j->layers; l < j->layers + j->count; l++) {
        terms[term_count++] = base_term(j, l, 0, NULL);
        if (l->rank == 0) continue;
        terms[term_count] = adapter_term(j, l, 0);
        terms[term_count].dropout = l->a->dropout;
        terms[term_count].seed = l->seed;
        terms[term_count++].drop_first = l->a->first_row * j->in;
    }
    products[count] = dx_product(j, 0, j->tokens, terms, term_count);
    products[count++].stage = 1;
    return nbl__linear_fused_multiply(j, products, count);
}

/* One call: dA, dB, and dW of layers without DoRA. */
static nbl_status outer_products(nbl__linear_fused *j)
{
    nbl__gemm_term small[3 * NBL_MAX_LINEAR_FUSED];
    nbl__gemm_product products[3 * NBL_MAX_LINEAR_FUSED];
    int small_count = 0, count = 0;
    for (const nbl__linear_part *l = j->layers; l < j->layers + j->count; l++) {
        wishes want = wishes_of(j, l);
        nbl__gemm_term term = {.k = j->tokens, .alpha = 1, .compute = l->adapter};
        nbl__gemm_product product = {.term_count = 1, .dtype = NBL_DTYPE_F32, .accumulate = l->a->accumulate};
        if (want.a) {
            term.a = nbl__transposed(nbl__dense(NBL_DTYPE_F32, l->u, l->rank));
            term.b = nbl__linear_fused_dropped(j, l);
            small[small_count] = term;
            product.m = l->rank;
            product.n = product.stride = j->in;
            product.c = l->a->dlora_a.data;
            product.terms = &small[small_count++];
            products[count++] = product;
        }
        if (want.b) {
            /* dBᵀ = tᵀ·dy instead of dB = dyᵀ·t: t has only r columns, and is the cheaper left operand to pack. */
            term.a = nbl__transposed(nbl__dense(NBL_DTYPE_F32, l->t, l->rank));
            term.b = nbl__rows_of(&l->dy, 0);
            small[small_count] = term;
            product.m = product.stride = l->rank;
            product.n = l->out;
            product.c_transposed = true;
            product.c = l->factor ? (void *)l->db_part : l->a->dlora_b.data;
            product.accumulate = l->factor ? false : l->a->accumulate;
            product.terms = &small[small_count++];
            products[count++] = product;
        }
        if (want.w && l->factor == NULL) {
            products[count++] = dw_product(j, l, 0, j->tokens, NULL, &small[small_count]);
            small_count++;
        }
    }
    return nbl__linear_fused_multiply(j, products, count);
}

/* ---- DoRA ---- */

/* dB = factor∘(dyᵀ·t). */
static void finish_b(const nbl__linear_fused *j, const nbl__linear_part *l)
{
    float *to = l->a->dlora_b.data;
    for (int64_t n = 0; !j->dry && n < l->out; n++)
        for (int64_t i = n * l->rank; i < (n + 1) * l->rank; i++)
            to[i] = l->factor[n] * l->db_part[i] + (l->a->accumulate ? to[i] : 0);
}

/* A loop over the rows of a chunk. */
typedef struct row_job {
    nbl_isa isa;
    const nbl__linear_fused *j;
    const nbl__linear_part *l;
    int64_t row; /* of the first row of the chunk */
    float *from, *to;
    bool add;
} row_job;

/* One row of dy' = factor∘dy. */
static nbl_status scale_row(void *argument, int64_t item, int worker)
{
    const row_job *r = argument;
    float *to = r->to + item * r->l->out;
    (void)worker;
    nbl__to_f32(r->isa, r->l->dy.dtype, nbl__row_of(&r->l->dy, r->row + item), to, r->l->out);
    for (int64_t n = 0; n < r->l->out; n++) to[n] *= r->l->factor[n];
    return NBL_OK;
}

/* One row of u·A through its layer's mask, written to the sum or added. */
static nbl_status mask_row(void *argument, int64_t item, int worker)
{
    const row_job *r = argument;
    const nbl__linear *a = r->l->a;
    int64_t in = r->j->in;
    float *from = r->from + item * in, *to = r->to + item * in;
    (void)worker;
    nbl__drop_f32(r->isa, r->l->seed, a->dropout, (a->first_row + r->row + item) * in, in, from);
    for (int64_t k = 0; k < in; k++) to[k] = r->add ? to[k] + from[k] : from[k];
    return NBL_OK;
}

/* One row of the f32 sum to dx. */
static nbl_status round_row(void *argument, int64_t item, int worker)
{
    const row_job *r = argument;
    (void)worker;
    nbl__from_f32(r->isa, r->from + item * r->j->in, r->j->dx.dtype, nbl__row_of(&r->j->dx, r->row + item),
                  r->j->in);
    return NBL_OK;
}

/* Runs `fn` for each of `rows` rows on the team. */
static nbl_status each_row(nbl__linear_fused *j, int64_t rows, nbl__team_fn fn, row_job job)
{
    if (j->dry) return NBL_OK;
    job.isa = j->algo.isa;
    return nbl__team_run(j->ctx, rows, fn, &job, NULL);
}

/* dy' of a chunk, and the chunk's part of dW. */
static nbl_status scale_chunk(nbl__linear_fused *j, const wide *w, int64_t row, int64_t rows)
{
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_part *l = &j->layers[i];
        bool train_w = wishes_of(j, l).w;
        if (l->factor == NULL || (!wanted(j, &j->dx) && !train_w)) continue;
        NBL_TRY(each_row(j, rows, scale_row, (row_job){.j = j, .l = l, .row = row, .to = w->scaled[i]}));
        if (!train_w) continue;
        nbl__gemm_term term;
        nbl__gemm_product product = dw_product(j, l, row, rows, w->scaled[i], &term);
        NBL_TRY(nbl__linear_fused_multiply(j, &product, 1));
    }
    return NBL_OK;
}

/* dx of a chunk, from its dy'. gemm counts the rows of a mask from the product's first row, which
 * is not x's first row in a chunk. The masked parts u·A are therefore separate products, masked
 * and summed here in f32. The other terms are added to that sum. */
static nbl_status dx_chunk(nbl__linear_fused *j, const wide *w, int64_t row, int64_t rows)
{
    nbl__gemm_term terms[2 * NBL_MAX_LINEAR_FUSED] = {0};
    int count = 0;
    bool masked = false;
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_part *l = &j->layers[i];
        terms[count++] = base_term(j, l, row, l->factor ? w->scaled[i] : NULL);
        if (l->rank == 0) continue;
        nbl__gemm_term term = adapter_term(j, l, row);
        if (!drops(l)) {
            terms[count++] = term;
            continue;
        }
        nbl__gemm_product product = dx_product(j, row, rows, &term, 1);
        product.dtype = NBL_DTYPE_F32;
        product.c = w->part;
        product.stride = j->in;
        NBL_TRY(nbl__linear_fused_multiply(j, &product, 1));
        NBL_TRY(
            each_row(j, rows, mask_row,
                     (row_job){.j = j, .l = l, .row = row, .from = w->part, .to = w->sum, .add = masked}));
        masked = true;
    }
    nbl__gemm_product product = dx_product(j, row, rows, terms, count);
    if (!masked) return nbl__linear_fused_multiply(j, &product, 1);
    product.dtype = NBL_DTYPE_F32;
    product.c = w->sum;
    product.stride = j->in;
    product.accumulate = true;
    NBL_TRY(nbl__linear_fused_multiply(j, &product, 1));
    return each_row(j, rows, round_row, (row_job){.j = j, .row = row, .from = w->sum});
}

/* Adds a chunk to Σ_t dy[t, n]·plain[t, n], the magnitude's gradient before 1 / norm. The outputs
 * are recomputed. */
static nbl_status magnitude_chunk(nbl__linear_fused *j, const nbl__linear_part *l, const wide *w, int64_t row,
                                  int64_t rows)
{
    nbl__gemm_term terms[3];
    int count = nbl__linear_fused_terms(j, l, row, terms);
    nbl__gemm_product product = {.m = rows,
                                 .n = l->out,
                                 .terms = terms,
                                 .term_count = count,
                                 .dtype = NBL_DTYPE_F32,
                                 .c = w->plain,
                                 .stride = l->out};
    nbl__gemm_algo algo = j->algo;
    j->algo = nbl__gemm_algo_of_chunk(algo, row == 0);
    nbl_status status = nbl__linear_fused_multiply(j, &product, 1);
    j->algo = algo;
    return status == NBL_OK ? column_sums(j, l, w->plain, row, rows) : status;
}

/* Step 4 for all layers with DoRA. */
static nbl_status dora_chunks(nbl__linear_fused *j, const wide *w)
{
    for (int64_t row = 0; row < j->tokens; row += w->rows) {
        int64_t rows = nbl__min_i64(w->rows, j->tokens - row);
        NBL_TRY(scale_chunk(j, w, row, rows));
        if (wanted(j, &j->dx)) NBL_TRY(dx_chunk(j, w, row, rows));
    }
    for (const nbl__linear_part *l = j->layers; l < j->layers + j->count; l++) {
        if (l->factor == NULL) continue;
        wishes want = wishes_of(j, l);
        if (want.b) finish_b(j, l);
        if (!want.magnitude) continue;
        for (int64_t row = 0; row < j->tokens; row += w->rows)
            NBL_TRY(magnitude_chunk(j, l, w, row, nbl__min_i64(w->rows, j->tokens - row)));
        put_sums(j, l, l->inverse, &l->a->dmagnitude);
    }
    return NBL_OK;
}

/* ---- all of it ---- */

/* Without tokens the gradients of parameters are zero. */
static void clear(const nbl__linear_fused *j, const nbl__linear *a)
{
    const nbl_tensor *gradients[] = {&a->dlora_a, &a->dlora_b, &a->dbias, &a->dmagnitude, &a->dw};
    for (size_t i = 0; i < sizeof gradients / sizeof *gradients; i++)
        if (wanted(j, gradients[i]) && !a->accumulate)
            memset(gradients[i]->data, 0, (size_t)nbl__tensor_elements(gradients[i]) * sizeof(float));
}

static nbl_status backward(nbl__linear_fused *j)
{
    bool quantized = false;
    wide w = cut_pieces(j);
    if (j->tokens == 0) {
        for (int i = 0; !j->dry && i < j->count; i++) clear(j, j->layers[i].a);
        return NBL_OK;
    }
    NBL_TRY(nbl__linear_fused_factors(j));
    for (int i = 0; i < j->count; i++) quantized |= wishes_of(j, &j->layers[i]).magnitude;
    if (quantized) NBL_TRY(nbl__linear_fused_quantize(j));
    NBL_TRY(first_products(j));
    NBL_TRY(outer_products(j));
    if (has_dora(j)) NBL_TRY(dora_chunks(j, &w));
    for (const nbl__linear_part *l = j->layers; l < j->layers + j->count; l++) {
        if (!wishes_of(j, l).bias) continue;
        NBL_TRY(column_sums(j, l, NULL, 0, j->tokens));
        put_sums(j, l, NULL, &l->a->dbias);
    }
    return NBL_OK;
}

size_t nbl__linear_fused_backward_scratch(const nbl_context *ctx, nbl__gemm_algo algo,
                                          const nbl__linear *members, int count)
{
    return nbl__linear_fused_measure(ctx, algo, members, count, true, backward);
}

nbl_status nbl__linear_fused_backward_run(nbl_context *ctx, nbl__gemm_algo algo, const nbl__linear *members,
                                          int count, uint8_t *scratch, size_t scratch_bytes)
{
    nbl__linear_fused j;
    nbl__linear_fused_open(&j, ctx, ctx, algo, members, count, true, scratch, scratch_bytes);
    return backward(&j);
}
