/* linear_fused.c - linear layers forward, and what both directions share. See linear_fused.h. */
#include "ops/linear/cpu/linear_fused.h"

#include <math.h>

#include "base/team.h"
#include "ops/linear/cpu/dora_norm_cpu.h"
#include "ops/gemm/cpu/int8/gemm_int8.h"

/* Addresses for a dry run. They must differ, because gemm packs operands with equal addresses
 * once, and sizes depend on that. Nothing is read through them. */
static void *stand_in(int index)
{
    return (void *)(uintptr_t)(64 * (index + 1));
}
enum { STAND_IN_SCRATCH = 65536 };

/* The dtype in which A and B multiply. With f16 it is f32: the range of f16 is too small for
 * adapters, and the CPU multiplies f16 in f32 anyway. With bf16 it is bf16, except for a small
 * batch: there reading W takes the time, so that f32 is free, and a rounding error is not averaged
 * over many tokens. */
enum { SMALL_BATCH_TOKENS = 16 };
static nbl_dtype adapter_dtype(nbl_dtype dtype, int64_t tokens)
{
    return dtype == NBL_DTYPE_BF16 && tokens > SMALL_BATCH_TOKENS ? NBL_DTYPE_BF16 : NBL_DTYPE_F32;
}

void nbl__linear_fused_open(nbl__linear_fused *j, const nbl_context *sizes_of, nbl_context *ctx,
                            nbl__gemm_algo algo, const nbl__linear *members, int count, bool backward,
                            uint8_t *scratch, size_t scratch_bytes)
{
    bool dry = ctx == NULL;
    *j = (nbl__linear_fused){
        .ctx = ctx, .sizes_of = sizes_of, .algo = algo, .dry = dry, .x = members->x, .dx = members->dx};
    j->bump.base = dry ? (uint8_t *)(uintptr_t)STAND_IN_SCRATCH : scratch;
    j->tokens = nbl__tensor_rows(&j->x);
    j->in = members->w.shape[1];
    j->count = count;
    j->room = scratch_bytes;
    if (dry) j->x.data = stand_in(0), j->dx.data = stand_in(1);
    bool int8 = false;
    for (int i = 0; i < count; i++) {
        const nbl__linear *a = &members[i];
        nbl__linear_part *l = &j->layers[i];
        *l = (nbl__linear_part){.a = a,
                                .out = a->w.shape[0],
                                .rank = nbl__linear_rank(a),
                                .adapter = adapter_dtype(a->dtype, j->tokens),
                                .seed = dry ? a->seed : nbl__seed_value(nbl__linear_seed(a)),
                                .y = a->y,
                                .dy = a->dy};
        if (dry) l->y.data = stand_in(2 + 2 * i), l->dy.data = stand_in(3 + 2 * i);
        NBL_BUMP_ALLOC(&j->bump, l->t, j->tokens * l->rank);
        if (nbl__has_data(&a->magnitude)) {
            NBL_BUMP_ALLOC(&j->bump, l->factor, l->out);
            NBL_BUMP_ALLOC(&j->bump, l->inverse, l->out);
        }
        int8 |= nbl__linear_by_codes(a) && (!backward || nbl__has_data(&a->magnitude));
    }
    if (!int8) return;
    NBL_BUMP_ALLOC(&j->bump, j->codes, j->tokens * j->in);
    NBL_BUMP_ALLOC(&j->bump, j->scales, j->tokens);
    NBL_BUMP_ALLOC(&j->bump, j->outlier, j->in);
    NBL_BUMP_ALLOC(&j->bump, j->outlier_columns, j->in);
    j->outlier_count = dry ? j->in : 0;
}

/* Claims `bytes` of scratch behind the bump allocator, for one product or norm at a time. */
static nbl_status take_tail(nbl__linear_fused *j, size_t bytes)
{
    if (j->dry) {
        j->tail = bytes > j->tail ? bytes : j->tail;
        return NBL_OK;
    }
    NBL_CHECK(j->ctx, j->bump.used + bytes <= j->room, NBL_ERROR_INTERNAL,
              "a product needs %zu bytes of scratch, %zu of %zu are taken", bytes, j->bump.used, j->room);
    return NBL_OK;
}

nbl_status nbl__linear_fused_multiply(nbl__linear_fused *j, const nbl__gemm_product *products, int count)
{
    if (count == 0) return NBL_OK;
    NBL_TRY(take_tail(j, nbl__gemm_scratch(j->sizes_of, j->algo, products, count)));
    return j->dry ? NBL_OK : nbl__gemm(j->ctx, j->algo, products, count, j->bump.base + j->bump.used);
}

/* ---- DoRA's factors ---- */

/* The arguments of dora_norm for a layer. */
static nbl__dora_norm norm_arguments(const nbl__linear *a, float *norm)
{
    return (nbl__dora_norm){.dtype = a->dtype,
                            .w = a->w,
                            .lora_a = a->lora_a,
                            .lora_b = a->lora_b,
                            .scale = a->scale,
                            .norm = {.data = norm}};
}

size_t nbl__dora_weight_norm_scratch(const nbl_context *ctx, const nbl__linear *a)
{
    nbl__dora_norm arguments = norm_arguments(a, NULL);
    return nbl__dora_norm_scratch(ctx, &arguments);
}

nbl_status nbl__dora_weight_norm(nbl_context *ctx, const nbl__linear *a, float *norm, uint8_t *scratch)
{
    nbl__dora_norm arguments = norm_arguments(a, norm);
    return nbl__dora_norm_into(ctx, &arguments, scratch);
}

nbl_status nbl__linear_fused_factors(nbl__linear_fused *j)
{
    for (nbl__linear_part *l = j->layers; l < j->layers + j->count; l++) {
        if (l->factor == NULL) continue;
        /* `inverse` holds the norm until the division at the end. */
        if (!nbl__has_data(&l->a->norm))
            NBL_TRY(take_tail(j, nbl__dora_weight_norm_scratch(j->sizes_of, l->a)));
        if (j->dry) continue;
        if (nbl__has_data(&l->a->norm))
            memcpy(l->inverse, l->a->norm.data, (size_t)l->out * sizeof *l->inverse);
        else NBL_TRY(nbl__dora_weight_norm(j->ctx, l->a, l->inverse, j->bump.base + j->bump.used));
        nbl__to_f32(j->algo.isa, l->a->magnitude.dtype, l->a->magnitude.data, l->factor, l->out);
        for (int64_t n = 0; n < l->out; n++) {
            l->factor[n] /= l->inverse[n];
            l->inverse[n] = 1 / l->inverse[n];
        }
    }
    return NBL_OK;
}

/* ---- x in 8 bits ---- */

enum { QUANT_ROWS = 4, QUANT_COLUMNS = 256 };

/* Outlier columns among QUANT_COLUMNS of x. An item sees all rows of its columns, so that no two
 * workers write the same flag. */
static nbl_status outliers_of(void *argument, int64_t item, int worker)
{
    const nbl__linear_fused *j = argument;
    float threshold = j->layers[0].a->threshold;
    int64_t first = item * QUANT_COLUMNS, count = nbl__min_i64(QUANT_COLUMNS, j->in - first);
    (void)worker;
    nbl__int8_outliers(j->algo.isa, j->x.dtype,
                       (const uint8_t *)j->x.data + (size_t)first * nbl__size_of(j->x.dtype),
                       nbl__matrix_stride(&j->x), j->tokens, count, threshold > 0 ? threshold : INFINITY,
                       j->outlier + first);
    return NBL_OK;
}

/* Codes and scales of QUANT_ROWS rows of x. */
static nbl_status codes_of(void *argument, int64_t item, int worker)
{
    const nbl__linear_fused *j = argument;
    (void)worker;
    nbl__int8_rows(j->algo.isa, j->x.dtype, j->x.data, nbl__matrix_stride(&j->x), item * QUANT_ROWS,
                   nbl__min_i64(j->tokens, (item + 1) * QUANT_ROWS), j->in, j->layers[0].a->threshold,
                   j->outlier, j->codes, j->scales);
    return NBL_OK;
}

nbl_status nbl__linear_fused_quantize(nbl__linear_fused *j)
{
    if (j->codes == NULL || j->dry) return NBL_OK;
    NBL_TRY(nbl__team_run(j->ctx, nbl__ceil_div(j->in, QUANT_COLUMNS), outliers_of, j, NULL));
    NBL_TRY(nbl__team_run(j->ctx, nbl__ceil_div(j->tokens, QUANT_ROWS), codes_of, j, NULL));
    j->outlier_count = 0;
    for (int64_t k = 0; k < j->in; k++)
        if (j->outlier[k]) j->outlier_columns[j->outlier_count++] = (int32_t)k;
    return NBL_OK;
}

/* ---- operands ---- */

nbl__gemm_matrix nbl__linear_fused_dropped(const nbl__linear_fused *j, const nbl__linear_part *l)
{
    nbl__gemm_matrix x = nbl__rows_of(&j->x, 0);
    x.dropout = l->a->dropout;
    x.seed = l->seed;
    x.drop_first = l->a->first_row * j->in;
    x.drop_columns = j->in;
    return x;
}

nbl__gemm_product nbl__linear_fused_inner(const nbl__linear_fused *j, const nbl__linear_part *l,
                                          nbl__gemm_term *term)
{
    const nbl_tensor *a = &l->a->lora_a;
    *term = (nbl__gemm_term){.a = nbl__linear_fused_dropped(j, l),
                             .b = nbl__transposed(nbl__dense(a->dtype, a->data, j->in)),
                             .k = j->in,
                             .alpha = l->a->scale,
                             .compute = l->adapter};
    return (nbl__gemm_product){.m = j->tokens,
                               .n = l->rank,
                               .terms = term,
                               .term_count = 1,
                               .dtype = NBL_DTYPE_F32,
                               .c = l->t,
                               .stride = l->rank};
}

int nbl__linear_fused_terms(const nbl__linear_fused *j, const nbl__linear_part *l, int64_t row,
                            nbl__gemm_term terms[3])
{
    const nbl__linear *a = l->a;
    int count = 0;
    nbl__gemm_matrix x = nbl__rows_of(&j->x, row);
    nbl__gemm_matrix w = {.weight = &a->w, .stride = j->in, .transposed = true};
    /* LLM.int8: codes times codes, and the outlier columns in floating point. */
    if (nbl__linear_by_codes(a)) {
        nbl__gemm_matrix codes = {.dtype = NBL_DTYPE_I8,
                                  .data = j->codes + row * j->in,
                                  .stride = j->in,
                                  .scales = j->scales + row};
        terms[count++] = (nbl__gemm_term){.a = codes, .b = w, .k = j->in, .alpha = 1, .compute = a->dtype};
        x.k_index = w.k_index = j->outlier_columns;
    }
    if (x.k_index == NULL || j->outlier_count > 0)
        terms[count++] = (nbl__gemm_term){
            .a = x, .b = w, .k = x.k_index ? j->outlier_count : j->in, .alpha = 1, .compute = a->dtype};
    if (l->rank == 0) return count;
    terms[count++] = (nbl__gemm_term){
        .a = nbl__dense(NBL_DTYPE_F32, l->t + row * l->rank, l->rank),
        .b = nbl__transposed(nbl__dense(a->lora_b.dtype, a->lora_b.data, l->rank)),
        .k = l->rank,
        .alpha = 1,
        .compute = l->adapter};
    return count;
}

/* ---- forward ---- */

static nbl_status forward(nbl__linear_fused *j)
{
    nbl__gemm_term inner[NBL_MAX_LINEAR_FUSED], terms[3 * NBL_MAX_LINEAR_FUSED];
    nbl__gemm_product products[2 * NBL_MAX_LINEAR_FUSED];
    int count = 0;
    if (j->tokens == 0) return NBL_OK;
    NBL_TRY(nbl__linear_fused_factors(j));
    NBL_TRY(nbl__linear_fused_quantize(j));
    /* Stage 0: t of every layer with an adapter. */
    for (int i = 0; i < j->count; i++)
        if (j->layers[i].rank > 0) {
            products[count] = nbl__linear_fused_inner(j, &j->layers[i], &inner[count]);
            count++;
        }
    /* Stage 1: the outputs. */
    for (int i = 0; i < j->count; i++) {
        const nbl__linear_part *l = &j->layers[i];
        products[count++] = (nbl__gemm_product){.m = j->tokens,
                                                .n = l->out,
                                                .terms = &terms[3 * i],
                                                .term_count = nbl__linear_fused_terms(j, l, 0, &terms[3 * i]),
                                                .factor = l->factor,
                                                .bias = nbl__has_data(&l->a->bias) ? &l->a->bias : NULL,
                                                .dtype = l->y.dtype,
                                                .c = l->y.data,
                                                .stride = nbl__matrix_stride(&l->y),
                                                .stage = 1};
    }
    return nbl__linear_fused_multiply(j, products, count);
}

/* Bytes of scratch by a dry run. */
static size_t measure(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__linear *members, int count,
                      bool backward, nbl_status (*run)(nbl__linear_fused *j))
{
    nbl__linear_fused j;
    nbl__linear_fused_open(&j, ctx, NULL, algo, members, count, backward, NULL, 0);
    run(&j);
    return j.bump.used + j.tail;
}

size_t nbl__linear_fused_measure(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__linear *members,
                                 int count, bool backward, nbl_status (*run)(nbl__linear_fused *j))
{
    nbl__linear small[NBL_MAX_LINEAR_FUSED];
    size_t bytes = measure(ctx, algo, members, count, backward, run);
    if (nbl__tensor_rows(&members->x) <= SMALL_BATCH_TOKENS) return bytes;
    memcpy(small, members, (size_t)count * sizeof *small);
    small->x.rank = 2;
    small->x.shape[1] = members->w.shape[1];
    small->x.shape[0] = SMALL_BATCH_TOKENS;
    size_t min = measure(ctx, algo, small, count, backward, run);
    return min > bytes ? min : bytes;
}

size_t nbl__linear_fused_scratch(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__linear *members,
                                 int count)
{
    return nbl__linear_fused_measure(ctx, algo, members, count, false, forward);
}

nbl_status nbl__linear_fused_run(nbl_context *ctx, nbl__gemm_algo algo, const nbl__linear *members, int count,
                                 uint8_t *scratch, size_t scratch_bytes)
{
    nbl__linear_fused j;
    nbl__linear_fused_open(&j, ctx, ctx, algo, members, count, false, scratch, scratch_bytes);
    return forward(&j);
}
