/* cross_entropy.cu - cross_entropy and cross_entropy_backward. See cross_entropy.h.
 *
 *     for each chunk of tokens                                    chunk: LOGIT_BYTES of f32 logits
 *         logits = x·Wᵀ                                           f32: bf16 would lose digits of the probabilities
 *         each row: sums, loss; gradient d in place of logits     cross_entropy_rows.cuh, cross_entropy_whole.cuh
 *         dx = d·W,   dw += dᵀ·x
 *
 * bf16 on compute capability 9.0, without soft cap and smoothing, writes no f32 logits: the GEMM computes exponentials and
 * their sums (cross_entropy_tiles.cuh).
 *
 * A dense W of the compute dtype is used directly. Any other W is dequantized into scratch. If the whole of it takes at
 * most WEIGHT_BYTES, that happens once per call. Otherwise each chunk dequantizes it again, a range of rows at a time: the
 * logits of the ranges are stored side by side, and dx is summed over ranges in f32. (A head of 128256 x 4096 in bf16 is
 * 1 GB. Dequantizing it for every chunk costs a tenth of a chunk's products.)
 *
 * f16 cannot hold the gradients of a mean over thousands of tokens, nor those of a scaled loss. Then d omits that factor.
 * dx is multiplied with it in f32 before rounding. dw is computed by an f32 GEMM.
 *
 * Only the device knows which tokens are trained. So all tokens are multiplied. The rows of untrained tokens are not read,
 * and their d is 0. The loss is summed over tokens in a fixed order in f64. Limit: the GEMMs. Beside them, each chunk of
 * logits is written once and read once (without clusters twice). */
#include "ops/loss/cross_entropy_plan.cuh"
#include "ops/loss/cross_entropy_tiles.cuh"
#include "ops/loss/cross_entropy_whole.cuh"

extern "C" {
#include "ops/dequantize/dequantize_cuda.h"
#include "ops/elementwise/elementwise.h"
}

using namespace nbl_cuda;

namespace
{

enum { THREADS = 1024, SCALE_THREADS = 256 };

/* ---- labels, the loss, and dx ---- */

/* Computes the factor of a token's loss (mean: 1 / trained tokens). Reports the first invalid label. One block. */
__global__ void __launch_bounds__(THREADS)
    share_kernel(const int32_t *labels, int64_t tokens, int64_t vocabulary, bool mean,
                 const float *denominator, double *share, nbl__cuda_fault *fault)
{
    __shared__ unsigned long long first_bad;
    unsigned long long bad = ~0ull;
    double count[1] = {0};
    if (threadIdx.x == 0) first_bad = bad;
    __syncthreads();
    for (int64_t t = threadIdx.x; t < tokens; t += THREADS) {
        int label = labels[t];
        if (label == NBL_LABEL_IGNORED) continue;
        if (label >= 0 && label < vocabulary) count[0] += 1;
        else if (bad == ~0ull) bad = static_cast<unsigned long long>(t);
    }
    if (bad != ~0ull) atomicMin(&first_bad, bad);
    block_sums(count);
    __syncthreads();
    if (threadIdx.x != 0) return;
    float divisor = denominator ? *denominator : 0;
    *share = !mean ? 1 : divisor > 0 ? 1 / static_cast<double>(divisor) : count[0] > 0 ? 1 / count[0] : 0;
    if (first_bad != ~0ull)
        report_fault(fault, NBL_CUDA_FAULT_LABEL, static_cast<int64_t>(first_bad), labels[first_bad]);
}

/* loss = share · Σ losses, in f64 and in a fixed order. One block. */
__global__ void __launch_bounds__(THREADS)
    mean_kernel(const double *losses, int64_t tokens, const double *share, float *loss)
{
    double sum[1] = {0};
    for (int64_t t = threadIdx.x; t < tokens; t += THREADS) sum[0] += losses[t];
    block_sums(sum);
    if (threadIdx.x == 0) *loss = static_cast<float>(sum[0] * *share);
}

/* to = from · factor of the token, rounded once; 0 for untrained tokens. `to` may be `from`. */
struct finish {
    const float *from;
    void *to;
    int64_t columns, first; /* first: token of row 0 */
    const int32_t *labels;
    const float *dloss;  /* NULL: 1 */
    const double *share; /* NULL: 1 */
    bool dloss_each;
    const float *factors; /* per row; NULL: dloss · share */
};

/* A block per row of dx, N elements per thread and step. Limit: memory, 4 bytes read and 2 or 4
 * written per element. */
template <typename T, int N> __global__ void __launch_bounds__(SCALE_THREADS) finish_kernel(finish a)
{
    int64_t token = a.first + blockIdx.x, row = blockIdx.x * a.columns;
    bool trained = a.labels[token] >= 0;
    double upstream = a.dloss ? static_cast<double>(a.dloss[a.dloss_each ? token : 0]) : 1;
    float factor = a.factors ? a.factors[blockIdx.x]
                             : static_cast<float>(upstream * (a.share ? *a.share : 1));
    for (int64_t k = threadIdx.x * N; k < a.columns; k += SCALE_THREADS * N) {
        float values[N];
        load_run<float, N>(a.from + row + k, values);
#pragma unroll
        for (int j = 0; j < N; j++) values[j] = trained ? values[j] * factor : 0; /* not -0 */
        store_run<T, N>(static_cast<T *>(a.to) + row + k, values);
    }
}

void launch_finish(const nbl__call *call, nbl_dtype dtype, const finish &f, int64_t rows)
{
    unsigned blocks = static_cast<unsigned>(rows);
    bool runs = f.columns % 8 == 0 && is_aligned(f.from, 16) && is_aligned(f.to, 16);
    if (runs) NBL_BY_DTYPE(dtype, T, (finish_kernel<T, 8><<<blocks, SCALE_THREADS, 0, stream_of(call)>>>(f)));
    else NBL_BY_DTYPE(dtype, T, (finish_kernel<T, 1><<<blocks, SCALE_THREADS, 0, stream_of(call)>>>(f)));
}

/* ---- scratch ---- */

size_t forward_scratch(const nbl_context *ctx, const void *arguments)
{
    pass p;
    return layout(ctx, static_cast<const nbl__cross_entropy *>(arguments), false, nullptr, &p);
}

size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    const nbl__cross_entropy *a = static_cast<const nbl__cross_entropy *>(arguments);
    pass p;
    return a->grad_in_forward ? 0 : layout(ctx, a, true, nullptr, &p);
}

/* ---- products ---- */

/* Converts n elements to another float dtype. */
nbl_status cast(const nbl__call *call, nbl_dtype from, const void *x, nbl_dtype to, void *y, int64_t n)
{
    nbl__cast c = {};
    c.to = to;
    c.x.dtype = from;
    c.y.dtype = to;
    c.x.rank = c.y.rank = 1;
    c.x.shape[0] = c.y.shape[0] = n;
    c.x.data = const_cast<void *>(x);
    c.y.data = y;
    return nbl__cast_cuda.run(call, &c);
}

/* Dequantizes rows [begin, begin + count) of W to the compute dtype. */
nbl_status dequantize(const nbl__call *call, const pass *p, int64_t begin, int64_t count)
{
    const nbl_weight *w = &p->a->w;
    if (w->format != NBL_FORMAT_DENSE)
        return nbl__cuda_dequantize(call->ctx, w, begin, begin + count, p->a->dtype, 0, p->dequantized,
                                    nbl__call_cuda(call)->stream);
    const uint8_t *from = static_cast<const uint8_t *>(w->data) +
                          static_cast<size_t>(begin * p->hidden) * nbl__size_of(w->dtype);
    return cast(call, w->dtype, from, p->a->dtype, p->dequantized, count * p->hidden);
}

/* Calls product(w, begin, count) for each range of W's rows. */
template <typename F> nbl_status for_ranges(const nbl__call *call, const pass *p, F product)
{
    if (p->range == 0) return product(p->a->w.data, int64_t{0}, p->vocabulary);
    if (p->range == p->vocabulary)
        return product(p->dequantized, int64_t{0}, p->vocabulary); /* dequantized at the start of the call */
    for (int64_t begin = 0; begin < p->vocabulary; begin += p->range) {
        int64_t count = min_i64(p->range, p->vocabulary - begin);
        NBL_TRY(dequantize(call, p, begin, count));
        NBL_TRY(product(p->dequantized, begin, count));
    }
    return NBL_OK;
}

/* logits = x·Wᵀ for `rows` tokens, f32, range after range side by side. */
nbl_status make_logits(const nbl__call *call, const pass *p, const void *x, int64_t rows)
{
    return for_ranges(call, p, [=](const void *w, int64_t begin, int64_t count) {
        nbl__cublaslt_gemm g = {};
        g.dtype = p->a->dtype;
        g.c_dtype = NBL_DTYPE_F32;
        g.m = rows;
        g.n = count;
        g.k = p->hidden;
        g.a = x;
        g.b = w;
        g.b_transposed = true;
        g.c = p->logits + begin;
        g.ldc = p->stride;
        g.alpha = 1;
        return nbl__cuda_gemm(call, &g);
    });
}

/* The GEMM that computes exponentials of the logits of a chunk. */
nbl__gemm_sm90 exponentials_of(const pass *p, int64_t first, int64_t rows)
{
    const nbl__cross_entropy *a = p->a;
    nbl__gemm_sm90 h = {};
    h.dtype = h.c_dtype = NBL_DTYPE_BF16;
    h.m = rows;
    h.n = p->vocabulary;
    h.count = 1;
    h.terms[0].a = static_cast<const __nv_bfloat16 *>(a->x.data) + first * p->hidden;
    h.terms[0].b = p->range > 0 ? static_cast<const void *>(p->dequantized) : a->w.data;
    h.terms[0].k = p->hidden;
    h.b_transposed = true;
    h.c = p->gradient ? p->logits : nullptr;
    h.ldc = p->stride;
    h.exponentials = {p->powers + first, static_cast<const int32_t *>(a->labels.data) + first,
                      p->label_logits, p->spans};
    return h;
}

/* The gradient of the logits, in the layout that the products read. */
struct gradient {
    uint8_t *data;
    int64_t stride;
};
gradient gradient_of(const pass *p)
{
    if (p->narrow && p->want_dw) return {reinterpret_cast<uint8_t *>(p->d16), p->stride};
    bool dense = p->tiles || p->a->dtype == NBL_DTYPE_F32;
    return {reinterpret_cast<uint8_t *>(p->logits), dense ? p->stride : 2 * p->stride};
}

/* dx = d·W for a chunk: summed over ranges in f32 if there are several, then multiplied by the
 * factor and rounded (finish_kernel). */
nbl_status make_dx(const nbl__call *call, const pass *p, int64_t first, int64_t rows)
{
    const nbl__cross_entropy *a = p->a;
    bool grad_in_forward = p->sums, apart = needs_dx32(p, grad_in_forward);
    size_t size = nbl__size_of(p->dx->dtype);
    uint8_t *to = static_cast<uint8_t *>(p->dx->data) + static_cast<size_t>(first * p->hidden) * size;
    gradient d = gradient_of(p);
    NBL_TRY(for_ranges(call, p, [=](const void *w, int64_t begin, int64_t count) {
        nbl__cublaslt_gemm g = {};
        g.dtype = a->dtype;
        g.c_dtype = apart ? NBL_DTYPE_F32 : p->dx->dtype;
        g.m = rows;
        g.n = p->hidden;
        g.k = count;
        g.a = d.data + static_cast<size_t>(begin) * nbl__size_of(a->dtype);
        g.lda = d.stride;
        g.b = w;
        g.c = apart ? static_cast<void *>(p->dx32) : to;
        g.alpha = 1;
        g.beta = begin > 0 ? 1 : 0;
        return nbl__cuda_gemm(call, &g);
    }));
    if (!apart && !p->narrow && !p->tiles) return NBL_OK;
    finish f = {};
    f.from = apart ? p->dx32 : reinterpret_cast<const float *>(to);
    f.to = to;
    f.columns = p->hidden;
    f.first = first;
    f.labels = static_cast<const int32_t *>(a->labels.data);
    if (p->narrow) {
        f.share = p->share;
        f.dloss = grad_in_forward ? nullptr : static_cast<const float *>(a->dloss.data);
        f.dloss_each = a->reduction == NBL_REDUCTION_NONE;
    }
    if (p->tiles) f.factors = p->factors;
    launch_finish(call, p->dx->dtype, f, rows);
    return launched(call);
}

/* dw (+)= dᵀ·x for a chunk, in f32. f16: d and x are f32. */
nbl_status make_dw(const nbl__call *call, const pass *p, const void *x, int64_t first, int64_t rows)
{
    nbl__cublaslt_gemm g = {};
    g.dtype = p->narrow ? NBL_DTYPE_F32 : p->a->dtype;
    g.c_dtype = NBL_DTYPE_F32;
    g.m = p->vocabulary;
    g.n = p->hidden;
    g.k = rows;
    g.a = p->logits;
    g.lda = g.dtype == NBL_DTYPE_F32 ? p->stride : 2 * p->stride;
    g.a_transposed = true;
    g.b = x;
    if (p->narrow) {
        NBL_TRY(cast(call, p->a->dtype, x, NBL_DTYPE_F32, p->x32, rows * p->hidden));
        g.b = p->x32;
    }
    g.c = p->a->dw.data;
    g.alpha = 1;
    g.beta = p->a->accumulate || first > 0 ? 1 : 0;
    return nbl__cuda_gemm(call, &g);
}

/* ---- the calls ---- */

/* Sums and gradient of a chunk: one read in a cluster if the row fits (cross_entropy_whole.cuh),
 * else two (cross_entropy_rows.cuh). */
template <typename T, bool CAP>
void launch_rows(const nbl__call *call, const pass *p, const logit_rows &l, unsigned rows)
{
    cudaStream_t stream = stream_of(call);
    bool whole = p->sums && can_be_whole(call, p->vocabulary);
    if (whole && !p->gradient) launch_whole<float, false, CAP>(call, l, rows);
    else if (whole) launch_whole<T, true, CAP>(call, l, rows);
    else if (!p->gradient) logit_kernel<float, true, false, CAP><<<rows, LOGIT_THREADS, 0, stream>>>(l);
    else if (p->sums) logit_kernel<T, true, true, CAP><<<rows, LOGIT_THREADS, 0, stream>>>(l);
    else logit_kernel<T, false, true, CAP><<<rows, LOGIT_THREADS, 0, stream>>>(l);
}

logit_rows rows_of(const pass *p)
{
    const nbl__cross_entropy *a = p->a;
    logit_rows l = {};
    l.logits = p->logits;
    l.stride = p->stride;
    l.vocabulary = p->vocabulary;
    l.tokens = p->tokens;
    l.labels = static_cast<const int32_t *>(a->labels.data);
    l.share = p->share;
    l.softcap = a->softcap;
    l.smoothing = a->smoothing;
    l.logprobs = static_cast<float *>(a->logprobs.data);
    l.lse = static_cast<float *>(a->lse.data);
    l.loss = a->reduction == NBL_REDUCTION_NONE ? static_cast<float *>(a->loss.data) : nullptr;
    l.losses = p->losses;
    l.dloss = p->sums ? nullptr : static_cast<const float *>(a->dloss.data);
    l.dloss_each = a->reduction == NBL_REDUCTION_NONE;
    gradient d = gradient_of(p);
    l.d = d.data;
    l.d_stride = d.stride;
    l.unscaled = p->narrow;
    l.wide = p->narrow && p->want_dw;
    return l;
}

/* Computes the losses of a chunk from its logits, and the gradient of the logits if it is needed. */
nbl_status make_rows(const nbl__call *call, const pass *p, const logit_rows &l, const void *x, int64_t rows)
{
    unsigned blocks = static_cast<unsigned>(rows);
    if (p->tiles) {
        nbl__gemm_sm90 product = exponentials_of(p, l.first, rows);
        NBL_TRY(nbl__gemm_sm90_run(call, &product));
        tile_rows r = {l,
                       p->gradient ? reinterpret_cast<__nv_bfloat16 *>(p->logits) : nullptr,
                       p->spans,
                       static_cast<int>(p->span_count),
                       p->label_logits,
                       p->factors};
        launch_dependent(p->sums ? settle_kernel<true> : settle_kernel<false>, dim3(blocks), SETTLE_THREADS, 0, 1,
                     stream_of(call), r);
        return launched(call);
    }
    NBL_TRY(make_logits(call, p, x, rows));
    if (p->a->softcap > 0) NBL_BY_DTYPE(p->a->dtype, T, (launch_rows<T, true>(call, p, l, blocks)));
    else NBL_BY_DTYPE(p->a->dtype, T, (launch_rows<T, false>(call, p, l, blocks)));
    return launched(call);
}

/* Powers of all tokens, once per call; see near_kernel. */
void make_powers(const nbl__call *call, const pass *p, const int32_t *labels)
{
    unsigned blocks = static_cast<unsigned>(ceil_div(p->tokens, NEAR_THREADS / 32));
    near_kernel<<<blocks, NEAR_THREADS, 0, stream_of(call)>>>(
        static_cast<const __nv_bfloat16 *>(p->a->x.data),
        static_cast<const __nv_bfloat16 *>(p->range > 0 ? static_cast<const void *>(p->dequantized)
                                                        : p->a->w.data),
        p->hidden, p->vocabulary, labels, p->tokens, p->powers);
}

/* Forward (with dx, if it is wanted there) or backward: the loop over chunks of the file's head. */
nbl_status run(const nbl__call *call, const nbl__cross_entropy *a, bool backward)
{
    pass p;
    cudaStream_t stream = stream_of(call);
    layout(call->ctx, a, backward, call->scratch, &p);
    if (p.tiles && p.tokens > 0) {
        nbl__gemm_sm90 product = exponentials_of(&p, 0, p.rows);
        if (nbl__gemm_sm90_can(nbl__call_cuda(call), &product)) without_tiles(&p);
    }
    logit_rows l = rows_of(&p);
    if (backward && !p.want_dx && !p.want_dw) return NBL_OK;
    share_kernel<<<1, THREADS, 0, stream>>>(
        l.labels, p.tokens, p.vocabulary, a->reduction == NBL_REDUCTION_MEAN,
        static_cast<const float *>(a->denominator.data), p.share, nbl__call_cuda(call)->fault);
    if (p.tokens > 0 && p.range > 0 && p.range == p.vocabulary) NBL_TRY(dequantize(call, &p, 0, p.vocabulary));
    if (p.tiles && p.tokens > 0) make_powers(call, &p, l.labels);
    for (int64_t first = 0; first < p.tokens; first += p.rows) {
        int64_t rows = min_i64(p.rows, p.tokens - first);
        const void *x = static_cast<const uint8_t *>(a->x.data) +
                        static_cast<size_t>(first * p.hidden) * nbl__size_of(a->dtype);
        l.first = first;
        NBL_TRY(make_rows(call, &p, l, x, rows));
        if (p.want_dx) NBL_TRY(make_dx(call, &p, first, rows));
        if (p.want_dw) NBL_TRY(make_dw(call, &p, x, first, rows));
    }
    if (p.want_dw && p.tokens == 0 && !a->accumulate)
        cudaMemsetAsync(a->dw.data, 0, static_cast<size_t>(p.vocabulary * p.hidden) * sizeof(float), stream);
    if (!backward && a->reduction == NBL_REDUCTION_MEAN)
        mean_kernel<<<1, THREADS, 0, stream>>>(p.losses, p.tokens, p.share,
                                               static_cast<float *>(a->loss.data));
    return launched(call);
}

const char *can(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    const nbl__cross_entropy *a = static_cast<const nbl__cross_entropy *>(arguments);
    return a->w.shape[0] > 1 << 30 ? "more than 2^30 words" : nullptr;
}

nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    return run(call, static_cast<const nbl__cross_entropy *>(arguments), false);
}

nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__cross_entropy *a = static_cast<const nbl__cross_entropy *>(arguments);
    if (!a->grad_in_forward) return run(call, a, true);
    int64_t tokens = nbl__tensor_rows(&a->x);
    if (!nbl__has_data(&a->dx) || tokens == 0) return NBL_OK;
    finish f = {};
    f.from = static_cast<const float *>(a->dx_in_forward.data);
    f.to = a->dx.data;
    f.columns = a->w.shape[1];
    f.labels = static_cast<const int32_t *>(a->labels.data);
    f.dloss = static_cast<const float *>(a->dloss.data);
    launch_finish(call, a->dtype, f, tokens);
    return launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__cross_entropy_cuda = {.name = "cross_entropy_cuda",
                                           .needs = NBL_ISA_SCALAR,
                                           .can = can,
                                           .scratch = forward_scratch,
                                           .run = run_forward};
const nbl__impl nbl__cross_entropy_backward_cuda = {.name = "cross_entropy_backward_cuda",
                                                    .needs = NBL_ISA_SCALAR,
                                                    .can = can,
                                                    .scratch = backward_scratch,
                                                    .run = run_backward};
}
