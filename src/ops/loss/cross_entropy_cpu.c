/* cross_entropy_cpu.c - cross_entropy on the CPU, over tiles of logits.
 *
 *   for each group of up to ROWS trained tokens             their x consecutive in memory (copied if they are not)
 *       for each span of up to COLUMNS of the vocabulary
 *           tile = x·Wᵀ                                     [ROWS, COLUMNS] f32: the only logits in memory
 *           forward    tile -> running sums of each token
 *           backward   tile -> gradients of the logits;  dx += tile·W,  dw += tileᵀ·x
 *
 * ROWS and COLUMNS balance what a product packs against what it computes. W is dequantized once
 * per group, x is packed once per span, and dx (f32, [ROWS, hidden]) is read and written once per
 * span. A sum runs over the spans in order, and spans do not depend on the number of threads:
 * neither do the bits.
 *
 * Gradient in forward (cross_entropy.h): forward keeps the tiles of a smaller group, over the
 * whole vocabulary, until the group's sums are known. It then goes through them once more, as
 * backward would. Each element is the same sum as in backward: the same tiles in the same order.
 * Groups are cut evenly, so that none has so few rows that its products take another route
 * (gemm_plan.h).
 *
 * Scratch: 8 bytes per token, the panels of gemm, a tile of 4 MiB, x and (backward) dx of a group.
 * Gradient in forward: tiles of up to 64 MiB, or of 64 rows where that is more.
 *
 * Cost: 2·tokens·hidden·vocabulary operations per product. One product in forward, two in
 * backward, three with dw. Gradient in forward: two in forward, none in backward. Limit: the
 * products. */
#include <math.h>

#include "base/team.h"
#include "ops/loss/cross_entropy_rows.h"
#include "ops/gemm/cpu/gemm.h"
#include "ops/loss/cross_entropy.h"

enum {
    ROWS = 1024,                      /* max tokens of a group */
    COLUMNS = 1024,                   /* max columns of a span of the vocabulary */
    ROWS_PER_ITEM = 8,                /* of the work between the products */
    GRAD_IN_FORWARD_BYTES = 64 << 20, /* of the tiles that forward keeps; more only for */
    GRAD_IN_FORWARD_MIN_ROWS = 64     /* this many rows */
};

/* One call, and the tile that it works on. */
typedef struct pass {
    const nbl__cross_entropy *a;
    nbl_context *ctx;
    nbl_isa isa;
    int64_t tokens, hidden, vocabulary;
    int64_t max_rows, max_columns; /* the largest tile */
    int64_t stride; /* elements of a tile's row; not a power of two, which would use few cache sets */
    double share;
    bool grad_in_forward; /* forward computes dx */

    int64_t *trained;      /* [tokens]: indices of the trained tokens */
    int64_t count;         /* how many tokens are trained */
    uint8_t *gathered;     /* [max_rows, hidden], compute dtype */
    float *tiles;          /* [max_rows, stride]; gradient in forward: one per span */
    nbl__logit_sums *sums; /* [max_rows]; forward */
    float *label_logits;   /* [max_rows]; forward */
    float *dx;             /* [max_rows, hidden]; backward, or gradient in forward */
    void *gemm;

    /* the current tile */
    int64_t first_row, rows;       /* of `trained` */
    int64_t first_column, columns; /* of the vocabulary */
    const uint8_t *x;              /* [rows, hidden] */
    float *tile;
} pass;

/* ---- the products ---- */

typedef struct product {
    nbl__gemm_term term;
    nbl__gemm_product product;
} product;

static nbl__gemm_matrix weight_rows(const pass *p, bool transpose)
{
    return (nbl__gemm_matrix){.weight = &p->a->w, .first_row = p->first_column, .transposed = transpose};
}

static nbl__gemm_matrix tile_of(const pass *p, bool transpose)
{
    return (nbl__gemm_matrix){
        .dtype = NBL_DTYPE_F32, .data = p->tile, .stride = p->stride, .transposed = transpose};
}

static nbl__gemm_matrix x_of(const pass *p)
{
    return (nbl__gemm_matrix){.dtype = p->a->dtype, .data = p->x, .stride = p->hidden};
}

static void logits_product(const pass *p, product *it)
{
    it->term = (nbl__gemm_term){
        .a = x_of(p), .b = weight_rows(p, true), .k = p->hidden, .alpha = 1, .compute = p->a->dtype};
    it->product = (nbl__gemm_product){.m = p->rows,
                                      .n = p->columns,
                                      .terms = &it->term,
                                      .term_count = 1,
                                      .dtype = NBL_DTYPE_F32,
                                      .c = p->tile,
                                      .stride = p->stride};
}

static void dx_product(const pass *p, product *it)
{
    it->term = (nbl__gemm_term){.a = tile_of(p, false),
                                .b = weight_rows(p, false),
                                .k = p->columns,
                                .alpha = 1,
                                .compute = p->a->dtype};
    it->product = (nbl__gemm_product){.m = p->rows,
                                      .n = p->hidden,
                                      .terms = &it->term,
                                      .term_count = 1,
                                      .dtype = NBL_DTYPE_F32,
                                      .c = p->dx,
                                      .stride = p->hidden,
                                      .accumulate = p->first_column > 0};
}

static void dw_product(const pass *p, product *it)
{
    float *dw = p->a->dw.data;
    it->term = (nbl__gemm_term){
        .a = tile_of(p, true), .b = x_of(p), .k = p->rows, .alpha = 1, .compute = p->a->dtype};
    it->product = (nbl__gemm_product){.m = p->columns,
                                      .n = p->hidden,
                                      .terms = &it->term,
                                      .term_count = 1,
                                      .dtype = NBL_DTYPE_F32,
                                      .c = dw ? dw + p->first_column * p->hidden : NULL,
                                      .stride = p->hidden,
                                      .accumulate = p->a->accumulate || p->first_row > 0};
}

static nbl_status multiply(const pass *p, void (*make)(const pass *, product *))
{
    product it;
    make(p, &it);
    return nbl__gemm(p->ctx, nbl__gemm_best(p->ctx), &it.product, 1, p->gemm);
}

static size_t product_scratch(const nbl_context *ctx, const pass *p, void (*make)(const pass *, product *))
{
    product it;
    make(p, &it);
    return nbl__gemm_scratch(ctx, nbl__gemm_best(ctx), &it.product, 1);
}

/* ---- scratch ---- */

static size_t max(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Max scratch of the products. The number of trained tokens is known only at run time, and a
 * smaller product may need more scratch than a larger one. The loop therefore asks for every
 * number of rows, in a full span and in the last one. */
static size_t gemm_scratch(const nbl_context *ctx, const pass *sizes, bool backward)
{
    pass p = *sizes;
    int64_t last = p.max_columns > 0 ? p.vocabulary % p.max_columns : 0;
    size_t bytes = 0;
    for (p.rows = 1; p.rows <= p.max_rows; p.rows++)
        for (int k = 0; k < (last ? 2 : 1); k++) {
            p.columns = k ? last : p.max_columns;
            bytes = max(bytes, product_scratch(ctx, &p, logits_product));
            if (backward || p.grad_in_forward) bytes = max(bytes, product_scratch(ctx, &p, dx_product));
            if (backward && p.a->train_w) bytes = max(bytes, product_scratch(ctx, &p, dw_product));
        }
    return bytes;
}

/* Cuts the scratch, and sets the sizes of groups and spans; base NULL: measures it. */
static size_t layout(const nbl_context *ctx, const nbl__cross_entropy *a, bool backward, bool grad_in_forward,
                     uint8_t *base, pass *p)
{
    *p = (pass){.a = a,
                .isa = nbl__isa(ctx),
                .tokens = nbl__tensor_rows(&a->x),
                .hidden = a->w.shape[1],
                .vocabulary = a->w.shape[0],
                .grad_in_forward = grad_in_forward};
    p->max_columns = nbl__min_i64(p->vocabulary, COLUMNS);
    p->stride = p->max_columns + 16;
    int64_t spans = grad_in_forward && p->vocabulary > 0 ? nbl__ceil_div(p->vocabulary, p->max_columns) : 1;
    int64_t rows = grad_in_forward ? GRAD_IN_FORWARD_BYTES / 4 / (spans * p->stride) : ROWS;
    p->max_rows = nbl__min_i64(p->tokens, nbl__max_i64(GRAD_IN_FORWARD_MIN_ROWS, nbl__min_i64(rows, ROWS)));
    nbl__bump bump = {base, 0};
    NBL_BUMP_ALLOC(&bump, p->trained, p->tokens);
    NBL_BUMP_ALLOC(&bump, p->gathered, p->max_rows * p->hidden * (int64_t)nbl__size_of(a->dtype));
    NBL_BUMP_ALLOC(&bump, p->tiles, spans * p->max_rows * p->stride);
    NBL_BUMP_ALLOC(&bump, p->sums, backward ? 0 : p->max_rows);
    NBL_BUMP_ALLOC(&bump, p->label_logits, backward ? 0 : p->max_rows);
    NBL_BUMP_ALLOC(&bump, p->dx, backward || grad_in_forward ? p->max_rows * p->hidden : 0);
    /* The last piece: its size matters only for measuring. */
    p->gemm = nbl__bump_alloc(&bump, base ? 0 : gemm_scratch(ctx, p, backward));
    return bump.used;
}

static size_t forward_scratch(const nbl_context *ctx, const void *arguments)
{
    const nbl__cross_entropy *a = arguments;
    pass p;
    size_t plain = layout(ctx, a, false, false, NULL, &p);
    return a->grad_in_forward ? max(plain, layout(ctx, a, false, true, NULL, &p))
                              : plain; /* the flag may be cleared for a run */
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    const nbl__cross_entropy *a = arguments;
    pass p;
    return a->grad_in_forward ? 0 : layout(ctx, a, true, false, NULL, &p);
}

/* ---- tiles ---- */

/* Lays out scratch and finds the trained tokens. */
static nbl_status begin(const nbl__call *call, const void *arguments, bool backward, pass *p)
{
    const nbl__cross_entropy *a = arguments;
    layout(call->ctx, a, backward, a->grad_in_forward && !backward, call->scratch, p);
    p->ctx = call->ctx;
    NBL_TRY(nbl__cross_entropy_trained(call, p->a, p->trained, &p->count));
    p->share = nbl__cross_entropy_share(p->a, p->count);
    return NBL_OK;
}

/* Makes the tokens of the group that starts at trained token p->first_row consecutive in p->x. */
static void take_group(pass *p)
{
    const uint8_t *x = p->a->x.data;
    const int64_t *t = p->trained + p->first_row;
    size_t bytes = (size_t)p->hidden * nbl__size_of(p->a->dtype);
    int64_t done = p->first_row % ROWS, block = nbl__min_i64(ROWS, p->count - p->first_row + done);
    /* Gradient in forward: even parts of backward's groups. */
    p->rows = nbl__ceil_div(block, nbl__ceil_div(block, p->max_rows));
    p->rows = nbl__min_i64(p->rows, block - done);
    p->x = x + (size_t)t[0] * bytes;
    if (t[p->rows - 1] - t[0] == p->rows - 1) return; /* consecutive already */
    for (int64_t r = 0; r < p->rows; r++)
        memcpy(p->gathered + (size_t)r * bytes, x + (size_t)t[r] * bytes, bytes);
    p->x = p->gathered;
}

/* The span of the vocabulary that starts at p->first_column. */
static void take_span(pass *p)
{
    p->columns = nbl__min_i64(p->max_columns, p->vocabulary - p->first_column);
    p->tile = p->tiles;
    if (p->grad_in_forward) p->tile += p->first_column / p->max_columns * p->max_rows * p->stride;
}

/* Runs fn over the group's rows, ROWS_PER_ITEM per item. */
static nbl_status each_row(pass *p, nbl__team_fn fn)
{
    return nbl__team_run(p->ctx, nbl__ceil_div(p->rows, ROWS_PER_ITEM), fn, p, NULL);
}

/* The label's index in the span, or -1. */
static int64_t label_offset(const pass *p, int64_t row)
{
    int64_t offset = ((const int32_t *)p->a->labels.data)[p->trained[p->first_row + row]] - p->first_column;
    return offset >= 0 && offset < p->columns ? offset : -1;
}

/* ---- forward ---- */

static nbl_status fold_rows(void *argument, int64_t item, int worker)
{
    pass *p = argument;
    (void)worker;
    int64_t end = nbl__min_i64(p->rows, (item + 1) * ROWS_PER_ITEM);
    for (int64_t r = item * ROWS_PER_ITEM; r < end; r++) {
        float *z = p->tile + r * p->stride, capped[COLUMNS];
        int64_t label = label_offset(p, r);
        if (p->grad_in_forward && p->a->softcap > 0) /* the gradient needs the logits before the cap */
            z = memcpy(capped, z, (size_t)p->columns * sizeof *z);
        if (p->first_column == 0) p->sums[r] = (nbl__logit_sums){.largest = -INFINITY};
        nbl__logits_fold(p->isa, z, p->columns, p->a->softcap, p->a->smoothing > 0, &p->sums[r]);
        if (label >= 0) p->label_logits[r] = z[label];
    }
    return NBL_OK;
}

static void finish_group(const pass *p, double *total)
{
    const nbl__cross_entropy *a = p->a;
    float *logprobs = a->logprobs.data, *lse = a->lse.data, *losses = a->loss.data;
    double smoothing = (double)a->smoothing;
    for (int64_t r = 0; r < p->rows; r++) {
        int64_t t = p->trained[p->first_row + r];
        double largest = (double)p->sums[r].largest, rest = log(p->sums[r].sum);
        double logprob = (double)p->label_logits[r] - largest - rest, loss = -logprob;
        if (smoothing > 0) {
            double mean = p->sums[r].total / (double)p->vocabulary - largest - rest;
            loss = -(1 - smoothing) * logprob - smoothing * mean;
        }
        logprobs[t] = (float)logprob;
        lse[t] = (float)(largest + rest);
        lse[p->tokens + t] = (float)(largest + rest - (double)lse[t]);
        if (a->reduction == NBL_REDUCTION_NONE) losses[t] = (float)loss;
        *total += loss;
    }
}

/* ---- gradients ---- */

/* Replaces the logits of the tile by their gradients. */
static nbl_status gradient_rows(void *argument, int64_t item, int worker)
{
    pass *p = argument;
    const nbl__cross_entropy *a = p->a;
    const float *lse = a->lse.data, *dloss = a->dloss.data;
    (void)worker;
    int64_t end = nbl__min_i64(p->rows, (item + 1) * ROWS_PER_ITEM);
    for (int64_t r = item * ROWS_PER_ITEM; r < end; r++) {
        int64_t t = p->trained[p->first_row + r], label = label_offset(p, r);
        double upstream = p->grad_in_forward ? 1 : (double)dloss[a->reduction == NBL_REDUCTION_MEAN ? 0 : t];
        nbl__logit_gradient g = {.softcap = a->softcap,
                                 .lse = lse[t],
                                 .lse_rest = lse[p->tokens + t],
                                 .uniform = (float)((double)a->smoothing / (double)p->vocabulary),
                                 .scale = (float)(upstream * p->share)};
        float *z = p->tile + r * p->stride, at_label = label >= 0 ? z[label] : 0;
        nbl__logits_gradient(p->isa, z, p->columns, &g);
        if (label >= 0) z[label] = nbl__label_gradient(at_label, a->smoothing, &g);
    }
    return NBL_OK;
}

/* The tensor that receives dx. */
static const nbl_tensor *dx_of(const pass *p)
{
    return p->grad_in_forward ? &p->a->dx_in_forward : &p->a->dx;
}

/* Rounds the group's rows of dx, and writes them to their tokens' rows. */
static nbl_status scatter_rows(void *argument, int64_t item, int worker)
{
    pass *p = argument;
    const nbl_tensor *dx = dx_of(p);
    (void)worker;
    int64_t end = nbl__min_i64(p->rows, (item + 1) * ROWS_PER_ITEM);
    for (int64_t r = item * ROWS_PER_ITEM; r < end; r++) {
        size_t at = (size_t)(p->trained[p->first_row + r] * p->hidden) * nbl__size_of(dx->dtype);
        nbl__from_f32(p->isa, p->dx + r * p->hidden, dx->dtype, (uint8_t *)dx->data + at, p->hidden);
    }
    return NBL_OK;
}

/* dx of tokens that are not trained is 0. */
static void clear_untrained(const pass *p)
{
    const nbl_tensor *dx = dx_of(p);
    size_t bytes = (size_t)p->hidden * nbl__size_of(dx->dtype);
    const int32_t *labels = p->a->labels.data;
    for (int64_t t = 0; t < p->tokens; t++)
        if (labels[t] == NBL_LABEL_IGNORED) memset((uint8_t *)dx->data + (size_t)t * bytes, 0, bytes);
}

/* dx of the group, from the tiles that forward kept. */
static nbl_status group_with_gradient(pass *p)
{
    for (p->first_column = 0; p->first_column < p->vocabulary; p->first_column += p->columns) {
        take_span(p);
        NBL_TRY(each_row(p, gradient_rows));
        NBL_TRY(multiply(p, dx_product));
    }
    return each_row(p, scatter_rows);
}

/* ---- the forward call ---- */

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    pass p;
    double total = 0;
    NBL_TRY(begin(call, arguments, false, &p));
    const nbl__cross_entropy *a = p.a;
    size_t bytes = (size_t)p.tokens * sizeof(float);
    if (p.count < p.tokens) { /* the results of tokens that are not trained are 0 */
        memset(a->logprobs.data, 0, bytes);
        memset(a->lse.data, 0, 2 * bytes);
        if (a->reduction == NBL_REDUCTION_NONE) memset(a->loss.data, 0, bytes);
    }
    if (p.grad_in_forward) clear_untrained(&p);
    for (; p.first_row < p.count; p.first_row += p.rows) {
        take_group(&p);
        for (p.first_column = 0; p.first_column < p.vocabulary; p.first_column += p.columns) {
            take_span(&p);
            NBL_TRY(multiply(&p, logits_product));
            NBL_TRY(each_row(&p, fold_rows));
        }
        finish_group(&p, &total);
        if (p.grad_in_forward) NBL_TRY(group_with_gradient(&p));
    }
    if (a->reduction == NBL_REDUCTION_MEAN) *(float *)a->loss.data = (float)(total * p.share);
    return NBL_OK;
}

/* ---- backward ---- */

/* dx = dloss · dx_in_forward, rounded once. */
static nbl_status scale_rows(void *argument, int64_t item, int worker)
{
    enum { PIECE = 256 };
    const pass *p = argument;
    const nbl__cross_entropy *a = p->a;
    const float *grad_in_forward = a->dx_in_forward.data, dloss = *(const float *)a->dloss.data;
    int64_t end = nbl__min_i64(p->rows, (item + 1) * ROWS_PER_ITEM) * p->hidden;
    (void)worker;
    for (int64_t at = item * ROWS_PER_ITEM * p->hidden; at < end; at += PIECE) {
        float values[PIECE];
        int64_t n = nbl__min_i64(PIECE, end - at);
        for (int64_t i = 0; i < n; i++) values[i] = grad_in_forward[at + i] * dloss;
        nbl__from_f32(p->isa, values, a->dtype, (uint8_t *)a->dx.data + (size_t)at * nbl__size_of(a->dtype),
                      n);
    }
    return NBL_OK;
}

static nbl_status finish_with_gradient(nbl_context *ctx, const nbl__cross_entropy *a)
{
    pass p = {
        .a = a, .ctx = ctx, .isa = nbl__isa(ctx), .rows = nbl__tensor_rows(&a->x), .hidden = a->w.shape[1]};
    p.tokens = p.rows;
    if (!nbl__has_data(&a->dx)) return NBL_OK;
    NBL_TRY(each_row(&p, scale_rows));
    clear_untrained(&p); /* 0 times a negative number is -0, and dx must be 0 */
    return NBL_OK;
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    pass p;
    if (((const nbl__cross_entropy *)arguments)->grad_in_forward)
        return finish_with_gradient(call->ctx, arguments);
    NBL_TRY(begin(call, arguments, true, &p));
    const nbl__cross_entropy *a = p.a;
    bool want_dx = nbl__has_data(&a->dx), want_dw = nbl__cross_entropy_wants_dw(a);
    if (want_dx) clear_untrained(&p);
    if (want_dw && p.count == 0 && !a->accumulate)
        memset(a->dw.data, 0, (size_t)(p.vocabulary * p.hidden) * sizeof(float));
    if (!want_dx && !want_dw) return NBL_OK;
    for (; p.first_row < p.count; p.first_row += p.rows) {
        take_group(&p);
        for (p.first_column = 0; p.first_column < p.vocabulary; p.first_column += p.columns) {
            take_span(&p);
            NBL_TRY(multiply(&p, logits_product));
            NBL_TRY(each_row(&p, gradient_rows));
            if (want_dx) NBL_TRY(multiply(&p, dx_product));
            if (want_dw) NBL_TRY(multiply(&p, dw_product));
        }
        if (want_dx) NBL_TRY(each_row(&p, scatter_rows));
    }
    return NBL_OK;
}

const nbl__impl nbl__cross_entropy_cpu = {"cross_entropy_cpu", NBL_ISA_SCALAR, NULL, forward_scratch,
                                          run_forward};
const nbl__impl nbl__cross_entropy_backward_cpu = {"cross_entropy_backward_cpu", NBL_ISA_SCALAR, NULL,
                                                   backward_scratch, run_backward};
