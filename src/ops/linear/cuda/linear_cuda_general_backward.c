/* linear_cuda_general_backward.c - layers backward by the general algorithm. See linear_cuda.h.
 *
 *     for each chunk of tokens, for each layer:
 *         dy' = factor∘dy, in the dtypes of the products
 *         dW += dy'ᵀ·x;   dB += dy'ᵀ·t,  u = s·dy'·B,  dA += uᵀ·drop(x)
 *         dbias, dmagnitude: sums over tokens in f64
 *         dx (+)= dy'·W + drop(u·A)                                       f32
 *     dx of the chunk → its dtype, rounded once
 *
 * Chunks are the outer loop, so dx of all layers is added in f32. With several layers and several
 * chunks, each weight is dequantized again for every chunk. */
#include "ops/linear/cuda/linear_cuda.h"

#include <cuda_runtime_api.h>

#include "ops/gemm/cuda/cublaslt.h"
#include "ops/linear/cuda/dropout_cuda.h"
#include "ops/linear/cuda/linear_helpers.h"

/* True if the gradient has memory. */
static bool wanted(const nbl_tensor *gradient)
{
    return gradient->rank > 0 && nbl__has_data(gradient);
}

/* One layer and chunk. */
typedef struct part {
    const nbl__cuda_linear_part *l;
    int64_t row, rows;
    const void *dy, *dy_adapter; /* factor∘dy in the dtype of base products, and of adapters */
} part;

/* c (+)= aᵀ·b over the tokens of the chunk, in f32. The first chunk adds only if the caller
 * accumulates. */
static nbl_status over_tokens(const nbl__cuda_linears *j, const part *p, const void *a, int64_t m,
                              int64_t lda, const void *b, int64_t n, int64_t ldb, float *c)
{
    return nbl__cuda_gemm(j->call, &(nbl__cublaslt_gemm){.dtype = j->adapter,
                                                         .c_dtype = NBL_DTYPE_F32,
                                                         .m = m,
                                                         .n = n,
                                                         .k = p->rows,
                                                         .a = a,
                                                         .lda = lda,
                                                         .a_transposed = true,
                                                         .b = b,
                                                         .ldb = ldb,
                                                         .c = c,
                                                         .alpha = 1,
                                                         .beta = p->row > 0 || p->l->a->accumulate ? 1 : 0});
}

/* t, dB, u and dA of the chunk, each only if something needs it. t is also needed for dmagnitude. u
 * stays for dx. */
static nbl_status adapter_gradients(nbl__cuda_linears *j, const part *p)
{
    const nbl__cuda_linear_part *l = p->l;
    const nbl__linear *a = l->a;
    bool inner = wanted(&a->dlora_b) || wanted(&a->dmagnitude);
    const void *x;
    if (inner || wanted(&a->dlora_a)) NBL_TRY(nbl__cuda_linear_dropped(j, l, p->row, p->rows, &x));
    if (inner) NBL_TRY(nbl__cuda_linear_inner(j, l, p->rows, x));
    if (wanted(&a->dlora_b))
        NBL_TRY(
            over_tokens(j, p, p->dy_adapter, l->out, l->out, j->t, l->rank, l->rank_padded, a->dlora_b.data));
    if (!wanted(&a->dlora_a) && !wanted(&j->dx)) return NBL_OK;
    NBL_TRY(nbl__cuda_gemm(j->call, &(nbl__cublaslt_gemm){.dtype = j->adapter,
                                                          .c_dtype = j->adapter,
                                                          .m = p->rows,
                                                          .n = l->rank_padded,
                                                          .k = l->out,
                                                          .a = p->dy_adapter,
                                                          .b = l->lora_b,
                                                          .c = j->u,
                                                          .alpha = a->scale}));
    if (!wanted(&a->dlora_a)) return NBL_OK;
    return over_tokens(j, p, j->u, l->rank, l->rank_padded, x, j->in, j->in, a->dlora_a.data);
}

/* The layer's part of dx: written if it is the first layer, else added. A masked part needs its own
 * piece first. */
static nbl_status dx_part(nbl__cuda_linears *j, const part *p, bool first, float *sums)
{
    const nbl__cuda_linear_part *l = p->l;
    const void *w;
    NBL_TRY(nbl__cuda_linear_weight(j, l, &w));
    NBL_TRY(nbl__cuda_gemm(j->call, &(nbl__cublaslt_gemm){.dtype = j->product,
                                                          .c_dtype = NBL_DTYPE_F32,
                                                          .m = p->rows,
                                                          .n = j->in,
                                                          .k = l->out,
                                                          .a = p->dy,
                                                          .b = w,
                                                          .c = sums,
                                                          .alpha = 1,
                                                          .beta = first ? 0 : 1}));
    if (l->rank == 0) return NBL_OK;
    bool drops = l->a->dropout > 0;
    NBL_TRY(nbl__cuda_gemm(j->call, &(nbl__cublaslt_gemm){.dtype = j->adapter,
                                                          .c_dtype = NBL_DTYPE_F32,
                                                          .m = p->rows,
                                                          .n = j->in,
                                                          .k = l->rank_padded,
                                                          .a = j->u,
                                                          .b = l->lora_a,
                                                          .c = drops ? j->dx_part : sums,
                                                          .alpha = 1,
                                                          .beta = drops ? 0 : 1}));
    if (!drops) return NBL_OK;
    return nbl__cuda_drop_add(j->call, nbl__linear_seed(l->a), l->a->dropout, l->a->first_row + p->row,
                              p->rows, j->in, j->dx_part, sums, true);
}

/* Adds the chunk to Σ dy (bias) and Σ dy·(output before factor and bias) (magnitude). The outputs
 * are computed again. */
static nbl_status sums_over_tokens(nbl__cuda_linears *j, const part *p)
{
    const nbl__cuda_linear_part *l = p->l;
    const nbl__linear *a = l->a;
    const void *dy = nbl__cuda_row(&a->dy, p->row);
    bool first = p->row == 0;
    if (wanted(&a->dbias))
        NBL_TRY(
            nbl__cuda_sums(j->call, p->rows, l->out, dy, a->dy.dtype, NULL, first, j->parts, l->bias_sums));
    if (!wanted(&a->dmagnitude)) return NBL_OK;
    NBL_TRY(nbl__cuda_linear_plain(j, l, p->row, p->rows, j->sums));
    if (l->by_codes)
        NBL_TRY(nbl__cuda_epilogue(j->call, &(nbl__epilogue){.rows = p->rows,
                                                             .columns = l->out,
                                                             .sums = j->sums,
                                                             .codes = j->code_sums,
                                                             .row_scales = j->scales,
                                                             .column_scales = a->w.scales,
                                                             .y_dtype = NBL_DTYPE_F32,
                                                             .y = j->sums}));
    return nbl__cuda_sums(j->call, p->rows, l->out, dy, a->dy.dtype, j->sums, first, j->parts,
                          l->magnitude_sums);
}

/* All gradients of one layer and chunk. dx NULL: not wanted. */
static nbl_status layer_chunk(nbl__cuda_linears *j, part *p, bool first, float *dx)
{
    const nbl__cuda_linear_part *l = p->l;
    const nbl__linear *a = l->a;
    NBL_TRY(nbl__cuda_linear_rows(j, &a->dy, p->row, p->rows, j->product, l->factor, j->dy_product, &p->dy));
    p->dy_adapter = p->dy;
    bool trains_w = wanted(&a->dw);
    if (j->adapter != j->product && (l->rank > 0 || trains_w))
        NBL_TRY(nbl__cuda_linear_rows(j, &a->dy, p->row, p->rows, j->adapter, l->factor, j->dy_adapter,
                                      &p->dy_adapter));
    if (trains_w) {
        const void *x;
        NBL_TRY(nbl__cuda_linear_rows(j, &j->x, p->row, p->rows, j->adapter, NULL, j->x_adapter, &x));
        NBL_TRY(over_tokens(j, p, p->dy_adapter, l->out, l->out, x, j->in, j->in, a->dw.data));
    }
    if (l->rank > 0) NBL_TRY(adapter_gradients(j, p));
    NBL_TRY(sums_over_tokens(j, p));
    return dx ? dx_part(j, p, first, dx) : NBL_OK;
}

/* One chunk of all layers. dx is summed in f32: in dx itself if it is f32, else in scratch. */
static nbl_status chunk(nbl__cuda_linears *j, int64_t row)
{
    int64_t rows = nbl__min_i64(j->rows, j->tokens - row);
    float *dx = !wanted(&j->dx) ? NULL : j->dx_sums ? j->dx_sums : nbl__cuda_row(&j->dx, row);
    for (int i = 0; i < j->count; i++)
        NBL_TRY(layer_chunk(j, &(part){.l = &j->layers[i], .row = row, .rows = rows}, i == 0, dx));
    if (dx == NULL || j->dx_sums == NULL) return NBL_OK;
    nbl__epilogue f = {
        .rows = rows, .columns = j->in, .sums = dx, .y_dtype = j->dx.dtype, .y = nbl__cuda_row(&j->dx, row)};
    return nbl__cuda_epilogue(j->call, &f);
}

/* Without tokens the gradients of parameters are zeros. */
static nbl_status clear(const nbl__cuda_linears *j, const nbl__linear *a)
{
    const nbl_tensor *gradients[] = {&a->dlora_a, &a->dlora_b, &a->dbias, &a->dmagnitude, &a->dw};
    for (size_t i = 0; i < sizeof gradients / sizeof *gradients; i++)
        if (wanted(gradients[i]) && !a->accumulate)
            NBL_TRY(j->call->device->fill(j->call->ctx, gradients[i]->data, 0,
                                          (size_t)nbl__tensor_elements(gradients[i]) * sizeof(float)));
    return NBL_OK;
}

/* Writes the sums over all tokens to dbias and dmagnitude = Σ / norm. */
static nbl_status put_sums(const nbl__cuda_linears *j, const nbl__cuda_linear_part *l)
{
    const nbl__linear *a = l->a;
    if (wanted(&a->dbias))
        NBL_TRY(nbl__cuda_store_sums(j->call, l->out, l->bias_sums, NULL, a->accumulate, a->dbias.data));
    if (!wanted(&a->dmagnitude)) return NBL_OK;
    return nbl__cuda_store_sums(j->call, l->out, l->magnitude_sums, l->inverse, a->accumulate,
                                a->dmagnitude.data);
}

const char *nbl__cuda_linear_backward_can(const nbl__cuda *cuda, nbl__cuda_linear_algo algo,
                                          const nbl__linear *members, int count)
{
    switch (algo) {
    case NBL_CUDA_LINEAR_ALGO_FOLDED_SM90: return nbl__cuda_folded_can(cuda, members, count, true);
    case NBL_CUDA_LINEAR_ALGO_CUBLASLT: return nbl__cuda_cublaslt_can(members, count, true);
    case NBL_CUDA_LINEAR_ALGO_GENERAL: return NULL;
    default: return "forward only";
    }
}

/* As nbl__cuda_linear_scratch: the algorithms of training may run with few tokens. */
size_t nbl__cuda_linear_backward_scratch(const nbl__cuda *cuda, nbl__cuda_linear_algo algo,
                                         const nbl__linear *members, int count)
{
    bool trains = algo != NBL_CUDA_LINEAR_ALGO_GENERAL;
    size_t general = nbl__cuda_general_scratch(members, count, true, trains);
    size_t large = trains ? nbl__cuda_large_scratch(cuda, members, count, true) : 0;
    return large > general ? large : general;
}

nbl_status nbl__cuda_linear_backward_run(const nbl__call *call, nbl__cuda_linear_algo algo,
                                         const nbl__linear *members, int count)
{
    nbl__cuda_linears j;
    if (algo != NBL_CUDA_LINEAR_ALGO_GENERAL)
        return nbl__cuda_large_backward_run(call, members, count, algo == NBL_CUDA_LINEAR_ALGO_FOLDED_SM90);
    nbl__cuda_linear_open(&j, call, members, count, true, call->scratch);
    NBL_CHECK(call->ctx, j.used <= call->scratch_bytes, NBL_ERROR_INTERNAL,
              "%s: scratch of %zu bytes; %zu are needed", call->op, call->scratch_bytes, j.used);
    if (j.tokens == 0) {
        for (int i = 0; i < count; i++) NBL_TRY(clear(&j, &members[i]));
        return NBL_OK;
    }
    bool outputs = false;
    for (int i = 0; i < count; i++) outputs |= wanted(&members[i].dmagnitude);
    NBL_TRY(nbl__cuda_linear_prepare(&j, outputs));
    for (int64_t row = 0; row < j.tokens; row += j.rows) NBL_TRY(chunk(&j, row));
    for (int i = 0; i < count; i++) NBL_TRY(put_sums(&j, &j.layers[i]));
    return NBL_OK;
}
