/* dora_norm_cpu.c - the DoRA weight norm through three products, without forming B·A.
 *
 *   aw  = A·Wᵀ      [r, out]     reads W in panels
 *   aa  = A·Aᵀ      [r, r]
 *   baa = B·aa      [out, r]
 *   norm[n]² = ‖w_n‖² + 2s·Σ_r b[n, r]·aw[r, n] + s²·Σ_r b[n, r]·baa[n, r]
 *
 * Cost: W is read once for aw (out·in·r multiply-adds), and once more for ‖w_n‖² (out·in) unless
 * w_norm2 is given.
 *
 * Cancellation: an adapter that nearly undoes its weight makes the three terms cancel, and their
 * f32 errors would dominate. If the sum is below a quarter of its positive terms, the row is
 * formed and summed directly (r·in multiply-adds for that row). */
#include "ops/linear/cpu/dora_norm_cpu.h"

#include <math.h>

#include "base/team.h"
#include "ops/gemm/cpu/gemm.h"

enum { ROWS = 16, PIECE = 1024 };

typedef struct job {
    const nbl__dora_norm *a;
    nbl_isa isa;
    int64_t out, in, rank;
    float *aw, *aa, *baa; /* A·Wᵀ [r, out], A·Aᵀ [r, r], B·A·Aᵀ [out, r] */
    float *w_norm2;       /* [out]: ‖w_n‖² */
    size_t used;
} job;

static job layout(const nbl_context *ctx, const nbl__dora_norm *a, uint8_t *base)
{
    job j = {
        .a = a, .isa = nbl__isa(ctx), .out = a->w.shape[0], .in = a->w.shape[1], .rank = a->lora_a.shape[0]};
    nbl__bump bump = {base, 0};
    NBL_BUMP_ALLOC(&bump, j.aw, j.rank * j.out);
    NBL_BUMP_ALLOC(&bump, j.aa, j.rank * j.rank);
    NBL_BUMP_ALLOC(&bump, j.baa, j.out * j.rank);
    NBL_BUMP_ALLOC(&bump, j.w_norm2, j.out);
    j.used = bump.used;
    return j;
}

static nbl__gemm_matrix matrix(nbl_dtype dtype, const void *data, int64_t stride, bool transpose)
{
    return (nbl__gemm_matrix){.dtype = dtype, .data = data, .stride = stride, .transposed = transpose};
}

/* The three products, in f32 for every compute dtype. aw and aa are independent and go in one
 * call. baa reads aa and follows them. */
static void products_of(const job *j, nbl__gemm_term terms[3], nbl__gemm_product products[3])
{
    const nbl__dora_norm *a = j->a;
    const nbl_tensor *la = &a->lora_a, *lb = &a->lora_b;
    for (int i = 0; i < 3; i++) terms[i] = (nbl__gemm_term){.alpha = 1, .compute = NBL_DTYPE_F32};
    terms[0].a = terms[1].a = matrix(la->dtype, la->data, j->in, false);
    terms[0].b = (nbl__gemm_matrix){.weight = &a->w, .transposed = true};
    terms[1].b = matrix(la->dtype, la->data, j->in, true);
    terms[2].a = matrix(lb->dtype, lb->data, j->rank, false);
    terms[2].b = matrix(NBL_DTYPE_F32, j->aa, j->rank, false);
    terms[0].k = terms[1].k = j->in;
    terms[2].k = j->rank;
    float *results[3] = {j->aw, j->aa, j->baa};
    int64_t m[3] = {j->rank, j->rank, j->out}, n[3] = {j->out, j->rank, j->rank};
    for (int i = 0; i < 3; i++)
        products[i] = (nbl__gemm_product){.m = m[i],
                                          .n = n[i],
                                          .terms = &terms[i],
                                          .term_count = 1,
                                          .dtype = NBL_DTYPE_F32,
                                          .c = results[i],
                                          .stride = n[i]};
}

/* Elements [begin, begin + count) of W, rounded to the compute dtype, as f32. count <= PIECE. */
static void dequantize_piece(const job *j, int64_t begin, int64_t count, float *values)
{
    uint16_t halves[PIECE];
    assert(count <= PIECE);
    if (j->a->dtype == NBL_DTYPE_F32) {
        nbl__dequantize(j->isa, &j->a->w, begin, begin + count, NBL_DTYPE_F32, values, false);
        return;
    }
    nbl__dequantize(j->isa, &j->a->w, begin, begin + count, j->a->dtype, halves, false);
    nbl__to_f32(j->isa, j->a->dtype, halves, values, count);
}

/* Σ v²: 16 independent sums in f32 that the compiler vectorizes, joined in f64. A caller adds
 * pieces of PIECE values in f64. */
static double squares_of(const float *values, int64_t count)
{
    float lanes[16] = {0};
    double sum = 0;
    int64_t i = 0;
    for (; i + 16 <= count; i += 16)
        for (int lane = 0; lane < 16; lane++) lanes[lane] += values[i + lane] * values[i + lane];
    for (int lane = 0; lane < 16; lane++) sum += (double)lanes[lane];
    for (; i < count; i++) sum += (double)values[i] * (double)values[i];
    return sum;
}

/* ‖w_n‖² of ROWS rows. */
static nbl_status weight_rows(void *argument, int64_t item, int worker)
{
    const job *j = argument;
    float values[PIECE];
    (void)worker;
    for (int64_t n = item * ROWS; n < nbl__min_i64(j->out, (item + 1) * ROWS); n++) {
        double sum = 0;
        for (int64_t k = 0; k < j->in; k += PIECE) {
            int64_t count = nbl__min_i64(PIECE, j->in - k);
            dequantize_piece(j, n * j->in + k, count, values);
            sum += squares_of(values, count);
        }
        j->w_norm2[n] = (float)sum;
    }
    return NBL_OK;
}

/* Element i of A or B. */
static float value_at(const nbl_tensor *t, int64_t i)
{
    float value;
    nbl__to_f32(NBL_ISA_SCALAR, t->dtype, (const uint8_t *)t->data + (size_t)i * nbl__size_of(t->dtype),
                &value, 1);
    return value;
}

/* The squared norm of row n, formed value by value in f64. For rows where the terms cancel. */
static double direct_square(const job *j, int64_t n)
{
    enum { SHORT = 256 };
    float values[PIECE];
    double delta[SHORT], sum = 0;
    for (int64_t k = 0; k < j->in; k += SHORT) {
        int64_t count = nbl__min_i64(SHORT, j->in - k);
        dequantize_piece(j, n * j->in + k, count, values);
        memset(delta, 0, sizeof delta);
        for (int64_t r = 0; r < j->rank; r++) {
            double b = (double)value_at(&j->a->lora_b, n * j->rank + r);
            for (int64_t i = 0; i < count; i++)
                delta[i] += b * (double)value_at(&j->a->lora_a, r * j->in + k + i);
        }
        for (int64_t i = 0; i < count; i++) {
            double value = (double)values[i] + (double)j->a->scale * delta[i];
            sum += value * value;
        }
    }
    return sum;
}

/* The norms of ROWS rows from the products. */
static nbl_status norm_rows(void *argument, int64_t item, int worker)
{
    const job *j = argument;
    double scale = (double)j->a->scale;
    float *norm = j->a->norm.data;
    (void)worker;
    for (int64_t n = item * ROWS; n < nbl__min_i64(j->out, (item + 1) * ROWS); n++) {
        double own = (double)j->w_norm2[n], cross = 0, square = 0;
        for (int64_t r = 0; r < j->rank; r++) {
            double b = (double)value_at(&j->a->lora_b, n * j->rank + r);
            cross += b * (double)j->aw[r * j->out + n];
            square += b * (double)j->baa[n * j->rank + r];
        }
        square *= scale * scale;
        double sum = own + 2 * scale * cross + square;
        if (!(sum >= 0.25 * (own + square))) sum = direct_square(j, n);
        norm[n] = (float)sqrt(sum);
    }
    return NBL_OK;
}

size_t nbl__dora_norm_scratch(const nbl_context *ctx, const nbl__dora_norm *a)
{
    nbl__gemm_term terms[3];
    nbl__gemm_product products[3];
    job j = layout(ctx, a, NULL);
    products_of(&j, terms, products);
    size_t first = nbl__gemm_scratch(ctx, nbl__gemm_best(ctx), products, 2),
           second = nbl__gemm_scratch(ctx, nbl__gemm_best(ctx), products + 2, 1);
    return j.used + (first > second ? first : second);
}

nbl_status nbl__dora_norm_into(nbl_context *ctx, const nbl__dora_norm *a, uint8_t *scratch)
{
    nbl__gemm_term terms[3];
    nbl__gemm_product products[3];
    job j = layout(ctx, a, scratch);
    int64_t items = nbl__ceil_div(j.out, ROWS);
    if (j.out == 0) return NBL_OK;
    if (nbl__has_data(&a->w_norm2)) memcpy(j.w_norm2, a->w_norm2.data, (size_t)j.out * sizeof *j.w_norm2);
    else NBL_TRY(nbl__team_run(ctx, items, weight_rows, &j, NULL));
    if (!nbl__has_data(&a->w_norm2) && nbl__has_data(&a->w_norm2_out))
        memcpy(a->w_norm2_out.data, j.w_norm2, (size_t)j.out * sizeof *j.w_norm2);
    products_of(&j, terms, products);
    if (j.rank > 0) {
        NBL_TRY(nbl__gemm(ctx, nbl__gemm_best(ctx), products, 2, scratch + j.used));
        NBL_TRY(nbl__gemm(ctx, nbl__gemm_best(ctx), products + 2, 1, scratch + j.used));
    }
    return nbl__team_run(ctx, items, norm_rows, &j, NULL);
}

static size_t scratch_of(const nbl_context *ctx, const void *arguments)
{
    return nbl__dora_norm_scratch(ctx, arguments);
}

static nbl_status run(const nbl__call *call, const void *arguments)
{
    return nbl__dora_norm_into(call->ctx, arguments, call->scratch);
}

const nbl__impl nbl__dora_norm_cpu = {"dora_norm_cpu", NBL_ISA_SCALAR, NULL, scratch_of, run};
