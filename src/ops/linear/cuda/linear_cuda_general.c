/* linear_cuda_general.c - layers forward by the general algorithm, and the functions it shares with
 * backward. See linear_cuda.h.
 *
 *     prepare   factors of DoRA, adapters, outlier columns                      once per call
 *     for each layer, for each chunk of tokens:
 *         t = s·drop(x)·Aᵀ
 *         sums = x·Wᵀ (int8: codes and outlier columns), then += t·Bᵀ           f32
 *         y = factor·sums + bias, rounded once
 *
 * A packed weight is dequantized once per layer, into a piece of scratch that all layers share. The
 * gemv algorithms skip that: weights multiply as they are stored (forward_small_batch). */
#include "ops/linear/cuda/linear_cuda.h"

#include "ops/gemm/cuda/cublaslt.h"
#include "ops/dequantize/dequantize_cuda.h"
#include "ops/linear/cuda/dropout_cuda.h"
#include "ops/linear/cuda/lora_decode.h"
#include "ops/gemv/cuda/gemv_cuda.h"
#include "ops/linear/cuda/linear_helpers.h"
#include "ops/linear/dora_norm.h"

/* The dtype of the adapters' operands. f32 with f16, whose range is too small for adapters and
 * their gradients. f32 also with few tokens, where rounding errors do not average out. */
static nbl_dtype adapter_dtype(nbl_dtype dtype, int64_t tokens)
{
    return dtype == NBL_DTYPE_BF16 && tokens > NBL_CUDA_SMALL_BATCH ? NBL_DTYPE_BF16 : NBL_DTYPE_F32;
}

/* The dtype of the operands of base products. Between the layers of mlp values are f32. They may be
 * out of range in f16, so these products use f32 operands. */
static nbl_dtype product_dtype(const nbl__linear *a, bool backward)
{
    bool wider = a->x.dtype != a->dtype || (backward && a->dy.dtype != a->dtype);
    return a->dtype == NBL_DTYPE_F16 && wider ? NBL_DTYPE_F32 : a->dtype;
}

/* True if products can read the stored weight: dense, in the dtype of the products. */
static bool is_dense_in(const nbl_weight *w, nbl_dtype dtype, nbl_dtype product)
{
    return w->format == NBL_FORMAT_DENSE && w->dtype == dtype && product == dtype;
}

/* A piece of scratch; NULL if it is not needed. */
static void *alloc_if(nbl__bump *c, bool needed, int64_t elements, nbl_dtype dtype)
{
    return needed ? nbl__bump_alloc(c, (size_t)elements * nbl__size_of(dtype)) : NULL;
}

/* Fills a layer's part, and cuts its own pieces. Sums are f64: two f32 each. */
static void open_layer(nbl__cuda_linears *j, nbl__bump *c, nbl__cuda_linear_part *l, const nbl__linear *a,
                       bool backward)
{
    *l = (nbl__cuda_linear_part){
        .a = a, .out = a->w.shape[0], .rank = nbl__linear_rank(a), .by_codes = nbl__linear_by_codes(a)};
    l->rank_padded = (l->rank + 7) / 8 * 8;
    l->factor = alloc_if(c, nbl__has_data(&a->magnitude), l->out, NBL_DTYPE_F32);
    l->inverse = alloc_if(c, nbl__has_data(&a->magnitude), l->out, NBL_DTYPE_F32);
    l->lora_a = alloc_if(c, l->rank > 0, l->rank_padded * j->in, j->adapter);
    l->lora_b = alloc_if(c, l->rank > 0, l->rank_padded * l->out, j->adapter);
    l->bias_sums = alloc_if(c, backward && nbl__has_data(&a->bias), 2 * l->out, NBL_DTYPE_F32);
    l->magnitude_sums = alloc_if(c, backward && nbl__has_data(&a->magnitude), 2 * l->out, NBL_DTYPE_F32);
}

/* Scratch, in this order; pieces that a call does not need take no bytes:
 *
 *     per layer    factor | inverse | A | B | sums of bias and magnitude
 *     all layers   w | w_half | x_product | x_adapter | x_dropped | t | u | sums | int8: outlier,
 *                  codes, scales, kept, code_sums | backward: dy_product, dy_adapter, dx_sums,
 *                  dx_part, parts */
void nbl__cuda_linear_open(nbl__cuda_linears *j, const nbl__call *call, const nbl__linear *members, int count,
                           bool backward, uint8_t *scratch)
{
    enum { STAND_IN = 64 }; /* measuring: pieces that exist have an address */
    nbl__bump c = {scratch ? scratch : (uint8_t *)(uintptr_t)STAND_IN, 0};
    *j = (nbl__cuda_linears){
        .call = call, .dtype = members->dtype, .x = members->x, .dx = members->dx, .count = count};
    assert(count >= 1 && count <= NBL_MAX_CUDA_LINEARS);
    j->tokens = nbl__tensor_rows(&j->x);
    j->in = members->w.shape[1];
    j->rows = nbl__min_i64(j->tokens, NBL_CUDA_CHUNK);
    j->product = product_dtype(members, backward);
    j->adapter = adapter_dtype(j->dtype, j->tokens);
    int64_t widest = 0, rank = 0, dequantized = 0;
    bool codes = false, dora = false, drops = false, trained = false, adapted = false;
    for (int i = 0; i < count; i++) {
        nbl__cuda_linear_part *l = &j->layers[i];
        const nbl__linear *a = &members[i];
        open_layer(j, &c, l, a, backward);
        widest = nbl__max_i64(widest, l->out);
        rank = nbl__max_i64(rank, l->rank_padded);
        if (!is_dense_in(&a->w, j->dtype, j->product))
            dequantized = nbl__max_i64(dequantized, l->out * j->in);
        codes |= l->by_codes && (!backward || l->factor);
        dora |= l->factor != NULL;
        adapted |= l->rank > 0;
        drops |= l->rank > 0 && a->dropout > 0;
        trained |= backward && a->train_w;
    }
    /* Pieces that all layers share have the size of the largest. */
    int64_t x = j->rows * j->in, y = j->rows * widest;
    bool outputs = !backward || dora, wide_y = backward || members->y.dtype != NBL_DTYPE_F32;
    j->w = alloc_if(&c, dequantized > 0, dequantized, j->product);
    j->w_half = alloc_if(&c, dequantized > 0 && j->product != j->dtype, dequantized, j->dtype);
    j->x_product = alloc_if(&c, outputs && j->x.dtype != j->product, x, j->product);
    j->x_adapter = alloc_if(&c, ((adapted && !drops) || trained) && j->x.dtype != j->adapter, x, j->adapter);
    j->x_dropped = alloc_if(&c, drops, x, j->adapter);
    j->t = alloc_if(&c, rank > 0, j->rows * rank, j->adapter);
    j->u = alloc_if(&c, backward && rank > 0, j->rows * rank, j->adapter);
    j->sums = alloc_if(&c, outputs && wide_y, y, NBL_DTYPE_F32);
    j->outlier = alloc_if(&c, codes, j->in, NBL_DTYPE_I8);
    j->codes = alloc_if(&c, codes, x, NBL_DTYPE_I8);
    j->scales = alloc_if(&c, codes, j->rows, NBL_DTYPE_F32);
    j->outliers = alloc_if(&c, codes, x, j->product);
    j->code_sums = alloc_if(&c, codes, y, NBL_DTYPE_F32);
    if (backward) {
        bool as_it_is = members->dy.dtype == j->product && !dora;
        j->dy_product = alloc_if(&c, !as_it_is, y, j->product);
        j->dy_adapter = alloc_if(&c, (adapted || trained) && j->adapter != j->product, y, j->adapter);
        j->dx_sums = alloc_if(&c, j->dx.dtype != NBL_DTYPE_F32, x, NBL_DTYPE_F32);
        j->dx_part = alloc_if(&c, drops, x, NBL_DTYPE_F32);
        j->parts = alloc_if(&c, true, 2 * nbl__cuda_sums_parts(j->rows, widest), NBL_DTYPE_F32);
    }
    j->used = c.used;
}

/* ---- before the products ---- */

nbl_status nbl__cuda_dora_weight_norm(const nbl__call *call, const nbl__linear *a, float *norm)
{
    nbl__dora_norm arguments = {.dtype = a->dtype,
                                .w = a->w,
                                .lora_a = a->lora_a,
                                .lora_b = a->lora_b,
                                .scale = a->scale,
                                .norm = {.data = norm}};
    return nbl__dora_norm_cuda.run(call, &arguments);
}

/* A norm that is computed goes through `inverse` first: nbl__cuda_factors reads it before it writes
 * 1 / norm there. */
nbl_status nbl__cuda_linear_prepare(nbl__cuda_linears *j, bool codes)
{
    nbl__cast_copy copies[2 * NBL_MAX_CUDA_LINEARS];
    int count = 0;
    for (nbl__cuda_linear_part *l = j->layers; l < j->layers + j->count; l++) {
        const nbl__linear *a = l->a;
        if (l->factor) {
            const float *norm = nbl__has_data(&a->norm) ? a->norm.data : l->inverse;
            if (!nbl__has_data(&a->norm)) NBL_TRY(nbl__cuda_dora_weight_norm(j->call, a, l->inverse));
            NBL_TRY(nbl__cuda_factors(j->call, l->out, &a->magnitude, norm, l->factor, l->inverse));
        }
        if (l->rank == 0 || l->small) continue;
        copies[count++] = (nbl__cast_copy){.from = a->lora_a.data,
                                           .from_dtype = a->lora_a.dtype,
                                           .to_dtype = j->adapter,
                                           .rows = l->rank,
                                           .columns = j->in,
                                           .from_ld = j->in,
                                           .to = l->lora_a,
                                           .to_rows = l->rank_padded,
                                           .to_columns = j->in,
                                           .to_ld = j->in};
        copies[count++] = (nbl__cast_copy){.from = a->lora_b.data,
                                           .from_dtype = a->lora_b.dtype,
                                           .to_dtype = j->adapter,
                                           .rows = l->out,
                                           .columns = l->rank,
                                           .from_ld = l->rank,
                                           .to = l->lora_b,
                                           .to_rows = l->out,
                                           .to_columns = l->rank_padded,
                                           .to_ld = l->rank_padded};
    }
    NBL_TRY(nbl__cuda_cast_copy(j->call, copies, count));
    if (!codes || j->outlier == NULL) return NBL_OK;
    return nbl__cuda_outliers(j->call, j->tokens, j->in, j->x.data, j->x.dtype, j->layers[0].a->threshold,
                              j->outlier);
}

/* ---- operands ---- */

/* Converts a dense matrix, with a rounding to `via` in between, and multiplies its columns by
 * factor if that is not NULL. */
static nbl_status convert(const nbl__call *call, int64_t rows, int64_t columns, const void *from,
                          nbl_dtype from_dtype, nbl_dtype via, const float *factor, void *to,
                          nbl_dtype to_dtype)
{
    nbl__cast_copy move = {.from = from,
                           .from_dtype = from_dtype,
                           .via = via,
                           .to_dtype = to_dtype,
                           .rows = rows,
                           .columns = columns,
                           .from_ld = columns,
                           .to = to,
                           .to_rows = rows,
                           .to_columns = columns,
                           .to_ld = columns,
                           .factor = factor};
    return nbl__cuda_cast_copy(call, &move, 1);
}

/* The weight in j->product. j->held avoids dequantizing again for the next chunk of the same
 * layer. */
nbl_status nbl__cuda_linear_weight(nbl__cuda_linears *j, const nbl__cuda_linear_part *l, const void **w)
{
    const nbl_weight *from = &l->a->w;
    *w = from->data;
    if (is_dense_in(from, j->dtype, j->product)) return NBL_OK;
    assert(j->w); /* nbl__cuda_linear_open has cut memory for this weight */
    *w = j->w;
    if (j->w_layer == l) return NBL_OK;
    j->w_layer = l;
    if (from->format == NBL_FORMAT_DENSE)
        return convert(j->call, l->out, j->in, from->data, from->dtype, j->dtype, NULL, j->w, j->product);
    void *first = j->product == j->dtype ? j->w : j->w_half;
    NBL_TRY(nbl__cuda_dequantize(j->call->ctx, from, 0, l->out, j->dtype, 0, first,
                                 nbl__call_cuda(j->call)->stream));
    if (first == j->w) return NBL_OK;
    return convert(j->call, l->out, j->in, first, j->dtype, j->dtype, NULL, j->w, j->product);
}

nbl_status nbl__cuda_linear_rows(const nbl__cuda_linears *j, const nbl_tensor *from, int64_t row,
                                 int64_t rows, nbl_dtype dtype, const float *factor, void *room,
                                 const void **result)
{
    *result = nbl__cuda_row(from, row);
    if (from->dtype == dtype && factor == NULL) return NBL_OK;
    const void *data = *result;
    assert(room);
    *result = room;
    return convert(j->call, rows, nbl__last(from), data, from->dtype, from->dtype, factor, room, dtype);
}

/* Without dropout this is x, converted if its dtype differs. The mask depends on the token's index
 * in the whole batch. */
nbl_status nbl__cuda_linear_dropped(const nbl__cuda_linears *j, const nbl__cuda_linear_part *l, int64_t row,
                                    int64_t rows, const void **result)
{
    if (l->a->dropout == 0)
        return nbl__cuda_linear_rows(j, &j->x, row, rows, j->adapter, NULL, j->x_adapter, result);
    *result = j->x_dropped;
    return nbl__cuda_drop(j->call, nbl__linear_seed(l->a), l->a->dropout, l->a->first_row + row, rows, j->in,
                          nbl__cuda_row(&j->x, row), j->x.dtype, j->x_dropped, j->adapter);
}

nbl_status nbl__cuda_linear_inner(const nbl__cuda_linears *j, const nbl__cuda_linear_part *l, int64_t rows,
                                  const void *x)
{
    return nbl__cuda_gemm(j->call, &(nbl__cublaslt_gemm){.dtype = j->adapter,
                                                         .c_dtype = j->adapter,
                                                         .m = rows,
                                                         .n = l->rank_padded,
                                                         .k = j->in,
                                                         .a = x,
                                                         .b = l->lora_a,
                                                         .b_transposed = true,
                                                         .c = j->t,
                                                         .alpha = l->a->scale});
}

/* True if gemv_dense takes the layer: one token, a dense weight in the compute dtype. */
static bool is_for_dense_gemv(const nbl__cuda_linears *j, const nbl__cuda_linear_part *l)
{
    return j->tokens == 1 && nbl__cuda_gemv_dense_takes(&l->a->w, j->dtype, j->x.data);
}

/* True if the weight can multiply as it is stored: up to 8 rows with a packed weight, or one with a
 * dense weight. Layers with dropout take the general algorithm. So does training (`dequantized`):
 * its bits must not depend on whether a weight is kept packed. */
static bool is_for_gemv(const nbl__cuda_linears *j, const nbl__cuda_linear_part *l)
{
    nbl_format format = l->a->w.format;
    return !l->a->dequantized && j->tokens <= NBL_MAX_CUDA_GEMV_ROWS && j->product == j->dtype &&
           j->x.dtype == j->dtype && !l->by_codes && (l->rank == 0 || l->a->dropout == 0) &&
           l->a->y.dtype == j->dtype && nbl__has_data(&l->a->y) &&
           (format == NBL_FORMAT_NF4 || format == NBL_FORMAT_FP4 || format == NBL_FORMAT_INT8 ||
            is_for_dense_gemv(j, l));
}

/* to += t·Bᵀ */
static nbl_status add_adapter(const nbl__cuda_linears *j, const nbl__cuda_linear_part *l, int64_t rows,
                              float *to)
{
    if (l->rank == 0) return NBL_OK;
    return nbl__cuda_gemm(j->call, &(nbl__cublaslt_gemm){.dtype = j->adapter,
                                                         .c_dtype = NBL_DTYPE_F32,
                                                         .m = rows,
                                                         .n = l->out,
                                                         .k = l->rank_padded,
                                                         .a = j->t,
                                                         .b = l->lora_b,
                                                         .b_transposed = true,
                                                         .c = to,
                                                         .alpha = 1,
                                                         .beta = 1});
}

/* int8: up to 8 rows go in one pass over the weight. Otherwise the codes' product is exact in
 * integers, and the outlier columns multiply the dequantized weight: all other columns of `kept`
 * are zeros. */
nbl_status nbl__cuda_linear_plain(nbl__cuda_linears *j, const nbl__cuda_linear_part *l, int64_t row,
                                  int64_t rows, float *to)
{
    const void *w, *x;
    if (l->by_codes) {
        NBL_TRY(nbl__cuda_quantize_rows(j->call, rows, j->in, nbl__cuda_row(&j->x, row), j->x.dtype,
                                        l->a->threshold, j->outlier, j->codes, j->scales, j->outliers,
                                        j->product));
        bool small = rows <= NBL_MAX_LORA_DECODE_ROWS;
        if (small)
            NBL_TRY(nbl__cuda_int8_small_batch(j->call, &(nbl__int8_small_batch){.rows = rows,
                                                                                 .in = j->in,
                                                                                 .out = l->out,
                                                                                 .codes = j->codes,
                                                                                 .outliers = j->outliers,
                                                                                 .outlier_dtype = j->product,
                                                                                 .dtype = j->dtype,
                                                                                 .outlier = j->outlier,
                                                                                 .w = l->a->w.data,
                                                                                 .w_scales = l->a->w.scales,
                                                                                 .sums = to,
                                                                                 .code_sums = j->code_sums}));
        else NBL_TRY(nbl__cuda_gemm_int8(j->call, rows, l->out, j->in, j->codes, l->a->w.data, j->code_sums));
        if (small) return add_adapter(j, l, rows, to);
        x = j->outliers;
    } else {
        NBL_TRY(nbl__cuda_linear_rows(j, &j->x, row, rows, j->product, NULL, j->x_product, &x));
    }
    NBL_TRY(nbl__cuda_linear_weight(j, l, &w));
    NBL_TRY(nbl__cuda_gemm(j->call, &(nbl__cublaslt_gemm){.dtype = j->product,
                                                          .c_dtype = NBL_DTYPE_F32,
                                                          .m = rows,
                                                          .n = l->out,
                                                          .k = j->in,
                                                          .a = x,
                                                          .b = w,
                                                          .b_transposed = true,
                                                          .c = to,
                                                          .alpha = 1}));
    return add_adapter(j, l, rows, to);
}

/* ---- forward ---- */

/* y = factor·(sums + codes) + bias of a chunk. Nothing to do if the sums are y already. */
static nbl_status finish(const nbl__cuda_linears *j, const nbl__cuda_linear_part *l, int64_t row,
                         int64_t rows, const float *sums)
{
    const nbl__linear *a = l->a;
    nbl__epilogue f = {.rows = rows,
                       .columns = l->out,
                       .sums = sums,
                       .factor = l->factor,
                       .bias = a->bias.data,
                       .bias_dtype = a->bias.dtype,
                       .y_dtype = a->y.dtype,
                       .y = nbl__cuda_row(&a->y, row)};
    if (l->by_codes) f.codes = j->code_sums, f.row_scales = j->scales, f.column_scales = a->w.scales;
    bool as_it_is = sums == f.y && !f.factor && !f.bias && !f.codes;
    return as_it_is ? NBL_OK : nbl__cuda_epilogue(j->call, &f);
}

/* True if only a bias follows the product. */
static bool is_plain(const nbl__cuda_linear_part *l)
{
    return l->rank == 0 && !l->factor;
}

/* The products of all layers as one launch of gemv_row_sm90. Layers with an adapter or DoRA get
 * their bias later. */
static nbl__gemv_one products_at_once(const nbl__cuda_linears *j)
{
    nbl__gemv_one one = {.dtype = j->dtype, .x = j->x.data, .count = j->count, .act = -1};
    for (int i = 0; i < j->count; i++) {
        const nbl__cuda_linear_part *l = &j->layers[i];
        one.parts[i] = (nbl__gemv_part){.weight = &l->a->w, .y = l->a->y.data};
        if (is_plain(l)) one.parts[i].bias = l->a->bias;
    }
    return one;
}

/* The gemv algorithms: product, then adapter, factor and bias in place. `multiplied`: y holds the
 * product, and the bias of plain layers. */
static nbl_status forward_small_batch(nbl__cuda_linears *j, const nbl__cuda_linear_part *l, bool multiplied)
{
    const nbl__linear *a = l->a;
    void *stream = nbl__call_cuda(j->call)->stream;
    bool has_bias = nbl__has_data(&a->bias), dense = is_for_dense_gemv(j, l);
    nbl_tensor none = {0};
    if (dense)
        NBL_TRY(nbl__cuda_gemv_dense(j->call->ctx, &a->w, j->x.data, is_plain(l) ? &a->bias : &none,
                                     a->y.data, stream));
    else if (!multiplied)
        NBL_TRY(nbl__cuda_gemv(j->call->ctx, &a->w, j->dtype, j->tokens, j->x.data, a->y.data, stream));
    if (is_plain(l) && (!has_bias || dense || multiplied)) return NBL_OK;
    nbl__lora_decode small = {.rows = j->tokens,
                              .in = j->in,
                              .out = l->out,
                              .rank = l->rank,
                              .dtype = j->dtype,
                              .x = j->x.data,
                              .lora_a = a->lora_a,
                              .lora_b = a->lora_b,
                              .scale = a->scale,
                              .t = j->t,
                              .factor = l->factor,
                              .bias = a->bias,
                              .y = a->y.data};
    return nbl__cuda_lora_decode(j->call, &small);
}

/* All chunks of one layer. If y is f32, the sums are computed in y itself. */
static nbl_status forward_layer(nbl__cuda_linears *j, const nbl__cuda_linear_part *l, bool multiplied)
{
    if (l->small) return forward_small_batch(j, l, multiplied);
    for (int64_t row = 0; row < j->tokens; row += j->rows) {
        int64_t rows = nbl__min_i64(j->rows, j->tokens - row);
        const void *x;
        if (l->rank > 0) {
            NBL_TRY(nbl__cuda_linear_dropped(j, l, row, rows, &x));
            NBL_TRY(nbl__cuda_linear_inner(j, l, rows, x));
        }
        float *sums = l->a->y.dtype == NBL_DTYPE_F32 ? nbl__cuda_row(&l->a->y, row) : j->sums;
        NBL_TRY(nbl__cuda_linear_plain(j, l, row, rows, sums));
        NBL_TRY(finish(j, l, row, rows, sums));
    }
    return NBL_OK;
}

/* Fewer tokens can need more: their adapters are f32. So the larger of both counts is returned. */
size_t nbl__cuda_general_scratch(const nbl__linear *members, int count, bool backward, bool small_only)
{
    nbl__cuda_linears j;
    nbl__linear small[NBL_MAX_CUDA_LINEARS];
    size_t max = 0;
    if (!small_only) {
        nbl__cuda_linear_open(&j, NULL, members, count, backward, NULL);
        max = j.used;
    }
    if (nbl__tensor_rows(&members->x) <= NBL_CUDA_SMALL_BATCH) return max;
    for (int i = 0; i < count; i++) small[i] = members[i];
    small->x.rank = 2;
    small->x.shape[0] = NBL_CUDA_SMALL_BATCH;
    small->x.shape[1] = members->w.shape[1];
    nbl__cuda_linear_open(&j, NULL, small, count, backward, NULL);
    return j.used > max ? j.used : max;
}

/* ---- the algorithms ---- */

/* NULL if a gemv algorithm takes the layers. GEMV needs one layer that it serves, GEMV_SM90 all of
 * them in one launch. */
static const char *gemv_can(nbl__cuda_linear_algo algo, const nbl__linear *members, int count)
{
    nbl__cuda_linears j;
    int small = 0;
    nbl__cuda_linear_open(&j, NULL, members, count, false, NULL);
    if (j.tokens > NBL_MAX_CUDA_GEMV_ROWS) return "more than 8 rows";
    for (int i = 0; i < count; i++) small += is_for_gemv(&j, &j.layers[i]);
    if (algo == NBL_CUDA_LINEAR_ALGO_GEMV)
        return small > 0 ? NULL : "no weight that multiplies as it is stored";
    if (j.tokens != 1) return "more than one row";
    nbl__gemv_one one = products_at_once(&j);
    return small == count && count <= NBL_MAX_GEMV_ONE && nbl__cuda_gemv_one_takes(&one)
               ? NULL
               : "not 4-bit weights of one kind, aligned";
}

const char *nbl__cuda_linear_can(const nbl__cuda *cuda, nbl__cuda_linear_algo algo,
                                 const nbl__linear *members, int count)
{
    switch (algo) {
    case NBL_CUDA_LINEAR_ALGO_GEMV_SM90:
        if (cuda->major != 9) return "needs compute capability 9.0";
        return gemv_can(algo, members, count);
    case NBL_CUDA_LINEAR_ALGO_GEMV: return gemv_can(algo, members, count);
    case NBL_CUDA_LINEAR_ALGO_FOLDED_SM90: return nbl__cuda_folded_can(cuda, members, count, false);
    case NBL_CUDA_LINEAR_ALGO_CUBLASLT: return nbl__cuda_cublaslt_can(members, count, false);
    default: return NULL;
    }
}

/* The last algorithm takes everything, so the loop ends. */
nbl__cuda_linear_algo nbl__cuda_linear_best(const nbl__cuda *cuda, const nbl__linear *members, int count)
{
    nbl__cuda_linear_algo algo = 0;
    while (nbl__cuda_linear_can(cuda, algo, members, count)) algo++;
    assert(algo < NBL_CUDA_LINEAR_ALGOS); /* the general one takes all */
    return algo;
}

/* A plan for many tokens may run with few, so the algorithms of training also count the general
 * algorithm with few tokens. */
size_t nbl__cuda_linear_scratch(const nbl__cuda *cuda, nbl__cuda_linear_algo algo, const nbl__linear *members,
                                int count)
{
    bool trains = algo == NBL_CUDA_LINEAR_ALGO_FOLDED_SM90 || algo == NBL_CUDA_LINEAR_ALGO_CUBLASLT;
    size_t general = nbl__cuda_general_scratch(members, count, false, trains);
    size_t large = trains ? nbl__cuda_large_scratch(cuda, members, count, false) : 0;
    return large > general ? large : general;
}

nbl_status nbl__cuda_linear_run(const nbl__call *call, nbl__cuda_linear_algo algo, const nbl__linear *members,
                                int count)
{
    nbl__cuda_linears j;
    if (algo == NBL_CUDA_LINEAR_ALGO_FOLDED_SM90 || algo == NBL_CUDA_LINEAR_ALGO_CUBLASLT)
        return nbl__cuda_large_run(call, members, count, algo == NBL_CUDA_LINEAR_ALGO_FOLDED_SM90);
    nbl__cuda_linear_open(&j, call, members, count, false, call->scratch);
    NBL_CHECK(call->ctx, j.used <= call->scratch_bytes, NBL_ERROR_INTERNAL,
              "%s: scratch of %zu bytes; %zu are needed", call->op, call->scratch_bytes, j.used);
    if (j.tokens == 0) return NBL_OK;
    bool at_once = algo == NBL_CUDA_LINEAR_ALGO_GEMV_SM90;
    for (int i = 0; i < count; i++)
        j.layers[i].small = at_once || (algo == NBL_CUDA_LINEAR_ALGO_GEMV && is_for_gemv(&j, &j.layers[i]));
    NBL_TRY(nbl__cuda_linear_prepare(&j, true));
    nbl__gemv_one one = products_at_once(&j);
    if (at_once) NBL_TRY(nbl__cuda_gemv_one(call->ctx, &one, nbl__call_cuda(call)->stream));
    for (int i = 0; i < count; i++) NBL_TRY(forward_layer(&j, &j.layers[i], at_once));
    return NBL_OK;
}
