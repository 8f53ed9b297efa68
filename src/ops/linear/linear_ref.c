/* linear_ref.c - linear and linear_backward: the oracle. Scalar, f64 sums, one rounding at the
 * end, never optimized. One row of W is dequantized at a time.
 *
 * LLM.int8 forward (a weight in int8): each row of x is quantized to 8 bits by its largest value
 * below the threshold. A column in which any row reaches the threshold is left out, and multiplied
 * as it is. Backward uses the dequantized weight, as bitsandbytes does.
 *
 * Here xa = drop(x)·Aᵀ and gb = dy'·B, without the scale s: t = s·xa and u = s·gb in the notation
 * of linear_fused.h. s is applied where they are used. */
#include <math.h>

#include "ops/linear/linear.h"
#include "ops/ref.h"
#include "quant/quant.h"

typedef struct sizes {
    int64_t tokens, in, out, rank;
} sizes;

static sizes sizes_of(const nbl__linear *a)
{
    return (sizes){nbl__tensor_rows(&a->x), a->w.shape[1], a->w.shape[0], nbl__linear_rank(a)};
}

/* Scratch: a dequantized row of W, then f64 tables. */
typedef struct scratch {
    float *row;       /* [in] */
    double *xa, *gb;  /* [tokens, rank]: drop(x)·Aᵀ and dy'·B */
    double *dx;       /* [tokens, in]; backward */
    double *factor;   /* [out]: magnitude / norm, or 1 */
    uint8_t *outlier; /* [in]; int8 */
} scratch;

/* Cuts the scratch; base NULL: measures it. */
static size_t layout(const nbl__linear *a, bool backward, uint8_t *base, scratch *s)
{
    sizes z = sizes_of(a);
    nbl__bump bump = {base, 0};
    NBL_BUMP_ALLOC(&bump, s->row, z.in);
    NBL_BUMP_ALLOC(&bump, s->xa, z.tokens * z.rank);
    NBL_BUMP_ALLOC(&bump, s->gb, z.tokens * z.rank);
    NBL_BUMP_ALLOC(&bump, s->factor, z.out);
    NBL_BUMP_ALLOC(&bump, s->dx, backward ? z.tokens * z.in : 0);
    NBL_BUMP_ALLOC(&bump, s->outlier, z.in);
    return bump.used;
}

static size_t forward_scratch(const nbl_context *ctx, const void *arguments)
{
    scratch s;
    (void)ctx;
    return layout(arguments, false, NULL, &s);
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    scratch s;
    (void)ctx;
    return layout(arguments, true, NULL, &s);
}

/* Row n of W, rounded to the compute dtype, as f32. */
static void weight_row(const nbl__linear *a, int64_t n, float *row)
{
    int64_t in = a->w.shape[1];
    for (int64_t k = 0; k < in; k++) {
        uint32_t word;
        nbl__dequantize(NBL_ISA_SCALAR, &a->w, n * in + k, n * in + k + 1, a->dtype, &word, false);
        nbl__to_f32(NBL_ISA_SCALAR, a->dtype, &word, &row[k], 1);
    }
}

/* Element i of drop(x), the adapter's input. */
static double dropped(const nbl__linear *a, int64_t i)
{
    if (a->dropout == 0) return nbl__ref_get(&a->x, i);
    bool kept = nbl__dropout_keeps(nbl__seed_value(nbl__linear_seed(a)), a->dropout,
                                   a->first_row * a->w.shape[1] + i);
    return kept ? nbl__ref_get(&a->x, i) / (1 - (double)a->dropout) : 0;
}

/* xa = drop(x)·Aᵀ */
static void adapter_inner(const nbl__linear *a, double *xa)
{
    sizes z = sizes_of(a);
    for (int64_t t = 0; t < z.tokens; t++)
        for (int64_t r = 0; r < z.rank; r++) {
            double sum = 0;
            for (int64_t k = 0; k < z.in; k++)
                sum += dropped(a, t * z.in + k) * nbl__ref_get(&a->lora_a, r * z.in + k);
            xa[t * z.rank + r] = sum;
        }
}

/* DoRA: 1 / ‖W + s·B·A‖ of row n. `row` is W's row n. */
static double inverse_norm(const nbl__linear *a, int64_t n, const float *row)
{
    if (nbl__has_data(&a->norm)) return 1 / nbl__ref_get(&a->norm, n);
    sizes z = sizes_of(a);
    double squares = 0;
    for (int64_t k = 0; k < z.in; k++) {
        double delta = 0;
        for (int64_t r = 0; r < z.rank; r++)
            delta += nbl__ref_get(&a->lora_b, n * z.rank + r) * nbl__ref_get(&a->lora_a, r * z.in + k);
        double sum = (double)row[k] + (double)a->scale * delta;
        squares += sum * sum;
    }
    return 1 / sqrt(squares);
}

/* DoRA's factor of output n, magnitude / norm; 1 without DoRA. */
static double factor_of(const nbl__linear *a, int64_t n, const float *row)
{
    return nbl__has_data(&a->magnitude) ? nbl__ref_get(&a->magnitude, n) * inverse_norm(a, n, row) : 1;
}

/* ---- the base product ---- */

/* The outlier threshold; infinity where none is set. */
static double limit_of(const nbl__linear *a)
{
    return a->threshold > 0 ? (double)a->threshold : INFINITY;
}

/* Marks the columns in which any value reaches the threshold or is non-finite. */
static void find_outliers(const nbl__linear *a, uint8_t *outlier)
{
    sizes z = sizes_of(a);
    memset(outlier, 0, (size_t)z.in);
    if (!nbl__linear_by_codes(a)) return;
    for (int64_t i = 0; i < z.tokens * z.in; i++)
        if (!(fabs(nbl__ref_get(&a->x, i)) < limit_of(a))) outlier[i % z.in] = 1;
}

/* Row t of x times row n of an int8 weight: outlier columns in f64, the others as codes. */
static double int8_product(const nbl__linear *a, int64_t t, int64_t n, const float *row,
                           const uint8_t *outlier)
{
    sizes z = sizes_of(a);
    const int8_t *codes = (const int8_t *)a->w.data + n * z.in;
    double largest = 0, exact = 0, sum = 0;
    for (int64_t k = 0; k < z.in; k++) {
        double magnitude = fabs(nbl__ref_get(&a->x, t * z.in + k));
        if (magnitude < limit_of(a)) largest = fmax(largest, magnitude);
    }
    for (int64_t k = 0; k < z.in; k++) {
        double x = nbl__ref_get(&a->x, t * z.in + k);
        if (outlier[k]) exact += x * (double)row[k];
        else if (largest > 0) sum += nearbyint(x * 127 / largest) * codes[k];
    }
    return exact + sum * largest * (double)a->w.scales[n] / (127.0 * 127.0);
}

/* Row t of x times row n of W. */
static double base_product(const nbl__linear *a, int64_t t, int64_t n, const float *row,
                           const uint8_t *outlier)
{
    if (nbl__linear_by_codes(a)) return int8_product(a, t, n, row, outlier);
    sizes z = sizes_of(a);
    double sum = 0;
    for (int64_t k = 0; k < z.in; k++) sum += nbl__ref_get(&a->x, t * z.in + k) * (double)row[k];
    return sum;
}

/* Output [t, n] before DoRA's factor and the bias. */
static double plain_output(const nbl__linear *a, int64_t t, int64_t n, const scratch *s)
{
    sizes z = sizes_of(a);
    double sum = 0;
    for (int64_t r = 0; r < z.rank; r++)
        sum += s->xa[t * z.rank + r] * nbl__ref_get(&a->lora_b, n * z.rank + r);
    return base_product(a, t, n, s->row, s->outlier) + (double)a->scale * sum;
}

/* W row by row outside, tokens inside: a row of W is dequantized once. */
static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__linear *a = arguments;
    sizes z = sizes_of(a);
    scratch s;
    layout(a, false, call->scratch, &s);
    find_outliers(a, s.outlier);
    adapter_inner(a, s.xa);
    for (int64_t n = 0; n < z.out; n++) {
        weight_row(a, n, s.row);
        double factor = factor_of(a, n, s.row),
               bias = nbl__has_data(&a->bias) ? nbl__ref_get(&a->bias, n) : 0;
        for (int64_t t = 0; t < z.tokens; t++)
            nbl__ref_set(&a->y, t * z.out + n, plain_output(a, t, n, &s) * factor + bias);
    }
    return NBL_OK;
}

/* ---- backward ---- */

/* Sums dy'·W into dx, and computes the gradients of bias and magnitude. One row of W at a time. */
static void backward_rows(const nbl__linear *a, const scratch *s)
{
    sizes z = sizes_of(a);
    for (int64_t n = 0; n < z.out; n++) {
        weight_row(a, n, s->row);
        s->factor[n] = factor_of(a, n, s->row);
        double bias = 0, magnitude = 0;
        for (int64_t t = 0; t < z.tokens; t++) {
            double dy = nbl__ref_get(&a->dy, t * z.out + n);
            bias += dy;
            if (nbl__has_data(&a->dmagnitude)) magnitude += dy * plain_output(a, t, n, s);
            for (int64_t k = 0; k < z.in; k++) s->dx[t * z.in + k] += dy * s->factor[n] * (double)s->row[k];
        }
        if (nbl__has_data(&a->dbias)) nbl__ref_put(&a->dbias, n, bias, a->accumulate);
        if (nbl__has_data(&a->dmagnitude))
            nbl__ref_put(&a->dmagnitude, n, magnitude * inverse_norm(a, n, s->row), a->accumulate);
    }
}

/* dW = dy'ᵀ·x. */
static void backward_weight(const nbl__linear *a, const scratch *s)
{
    sizes z = sizes_of(a);
    for (int64_t n = 0; nbl__has_data(&a->dw) && n < z.out; n++)
        for (int64_t k = 0; k < z.in; k++) {
            double sum = 0;
            for (int64_t t = 0; t < z.tokens; t++)
                sum += nbl__ref_get(&a->dy, t * z.out + n) * nbl__ref_get(&a->x, t * z.in + k);
            nbl__ref_put(&a->dw, n * z.in + k, s->factor[n] * sum, a->accumulate);
        }
}

/* Adds the adapter's part to dx, then computes dA = s·gbᵀ·drop(x) and dB = s·dy'ᵀ·xa. */
static void backward_adapter(const nbl__linear *a, const scratch *s)
{
    sizes z = sizes_of(a);
    double scale = (double)a->scale;
    uint64_t seed = nbl__seed_value(nbl__linear_seed(a));
    for (int64_t t = 0; t < z.tokens; t++)
        for (int64_t r = 0; r < z.rank; r++) {
            double sum = 0;
            for (int64_t n = 0; n < z.out; n++)
                sum += nbl__ref_get(&a->dy, t * z.out + n) * s->factor[n] *
                       nbl__ref_get(&a->lora_b, n * z.rank + r);
            s->gb[t * z.rank + r] = sum;
            for (int64_t k = 0; k < z.in; k++) {
                double mask = a->dropout == 0 ? 1
                              : nbl__dropout_keeps(seed, a->dropout, (a->first_row + t) * z.in + k)
                                  ? 1 / (1 - (double)a->dropout)
                                  : 0;
                s->dx[t * z.in + k] += scale * sum * nbl__ref_get(&a->lora_a, r * z.in + k) * mask;
            }
        }
    for (int64_t r = 0; nbl__has_data(&a->dlora_a) && r < z.rank; r++)
        for (int64_t k = 0; k < z.in; k++) {
            double sum = 0;
            for (int64_t t = 0; t < z.tokens; t++) sum += s->gb[t * z.rank + r] * dropped(a, t * z.in + k);
            nbl__ref_put(&a->dlora_a, r * z.in + k, scale * sum, a->accumulate);
        }
    for (int64_t n = 0; nbl__has_data(&a->dlora_b) && n < z.out; n++)
        for (int64_t r = 0; r < z.rank; r++) {
            double sum = 0;
            for (int64_t t = 0; t < z.tokens; t++)
                sum += nbl__ref_get(&a->dy, t * z.out + n) * s->factor[n] * s->xa[t * z.rank + r];
            nbl__ref_put(&a->dlora_b, n * z.rank + r, scale * sum, a->accumulate);
        }
}

/* Order: the rows of W give factor, db, dmagnitude and the base part of dx; then dW and the
 * adapter. */
static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__linear *a = arguments;
    sizes z = sizes_of(a);
    scratch s;
    layout(a, true, call->scratch, &s);
    find_outliers(a, s.outlier);
    adapter_inner(a, s.xa);
    memset(s.dx, 0, (size_t)(z.tokens * z.in) * sizeof *s.dx);
    backward_rows(a, &s);
    backward_weight(a, &s);
    if (z.rank > 0) backward_adapter(a, &s);
    for (int64_t i = 0; nbl__has_data(&a->dx) && i < z.tokens * z.in; i++) nbl__ref_set(&a->dx, i, s.dx[i]);
    return NBL_OK;
}

const nbl__impl nbl__linear_ref = {"linear_ref", NBL_ISA_SCALAR, NULL, forward_scratch, run_forward};
const nbl__impl nbl__linear_backward_ref = {"linear_backward_ref", NBL_ISA_SCALAR, NULL, backward_scratch,
                                            run_backward};
