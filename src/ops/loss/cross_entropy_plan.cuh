/* cross_entropy_plan.cuh - divides a call of cross_entropy into chunks of tokens and ranges of the vocabulary, and lays out
 * its scratch. Internal to the CUDA kernels; see cross_entropy.cu. Fewer tokens never need more scratch. */
#ifndef NBL_CROSS_ENTROPY_PLAN_CUH
#define NBL_CROSS_ENTROPY_PLAN_CUH

#include "ops/common/load.cuh"

extern "C" {
#include "ops/loss/cross_entropy.h"
#include "ops/gemm/cuda/gemm_sm90.h"
}

namespace nbl_cuda
{

enum { ROW_STEP = 128, TILE_ROWS = 2048 };
constexpr int64_t LOGIT_BYTES = int64_t{512} << 20, WEIGHT_BYTES = int64_t{256} << 20;

struct pass {
    const nbl__cross_entropy *a;
    int64_t tokens, hidden, vocabulary, stride;
    int64_t rows;        /* max tokens of a chunk */
    int64_t range;       /* rows of W dequantized at a time; 0: W is used directly */
    bool sums, gradient; /* forward: sums; backward: gradient; both: gradient in forward */
    bool want_dx, want_dw;
    bool narrow;          /* f16 */
    bool tiles;           /* the GEMM computes exponentials: cross_entropy_tiles.cuh */
    const nbl_tensor *dx; /* the result */
    /* scratch */
    double *share, *losses;
    float *logits; /* [rows, stride]; tiles: exponentials, which are bf16 */
    int64_t logit_bytes;
    uint8_t *dequantized;
    __half *d16;       /* [rows, stride]: f16 with dw, where the logits are replaced by f32 gradients */
    float *dx32, *x32; /* [rows, hidden] */
    /* tiles */
    float *powers;                 /* [tokens] */
    float *label_logits, *factors; /* [rows] */
    float *spans;                  /* [rows, span_count, 2] */
    int64_t span_count;
};

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* True if dx needs f32 scratch: it is summed over ranges, or multiplied after the product. */
static inline bool needs_dx32(const pass *p, bool grad_in_forward)
{
    return !grad_in_forward && p->a->dtype != NBL_DTYPE_F32 &&
           (p->narrow || p->tiles || (p->range > 0 && p->range < p->vocabulary));
}

/* True if the GEMM may compute exponentials. The alignment of its matrices is checked when it runs. */
static inline bool takes_tiles(const nbl_context *ctx, const pass *p, bool backward)
{
    const nbl__cross_entropy *a = p->a;
    const nbl__cuda *cuda = nbl__cuda_of(ctx);
    return cuda && cuda->major == 9 && a->dtype == NBL_DTYPE_BF16 && a->softcap == 0 && a->smoothing == 0 &&
           !(backward && a->train_w) && (p->range == 0 || p->range == p->vocabulary) && p->vocabulary > 0 &&
           p->hidden > 0 && p->vocabulary % 8 == 0 && p->hidden % 8 == 0;
}

/* Rows per chunk: at most `max`, about the same for all chunks. */
static inline int64_t even_rows(int64_t tokens, int64_t max)
{
    int64_t chunks = ceil_div(tokens, max);
    return chunks == 0 ? 0 : min_i64(tokens, ceil_div(ceil_div(tokens, chunks), ROW_STEP) * ROW_STEP);
}

/* Rows that fit into `bytes`: a multiple of ROW_STEP, at least ROW_STEP. */
static inline int64_t rows_in(int64_t bytes, int64_t row_bytes)
{
    int64_t rows = row_bytes > 0 ? bytes / row_bytes / ROW_STEP * ROW_STEP : 0;
    return rows < ROW_STEP ? int64_t{ROW_STEP} : rows;
}

/* The same for exponentials, doubled while it fits: their GEMMs run best with whole waves of tiles. On an H200 the heads of
 * 1B and 8B models take 3 % longer with 1024 rows than with 2048, which read W half as often. 4096 rows gain nothing
 * more. */
static inline int64_t tile_rows_in(int64_t bytes, int64_t row_bytes)
{
    int64_t rows = ROW_STEP;
    while (rows < TILE_ROWS && 2 * rows * row_bytes <= bytes) rows *= 2;
    return rows;
}

/* Fills everything that does not depend on memory. */
static inline void describe_pass(const nbl_context *ctx, const nbl__cross_entropy *a, bool backward, pass *p)
{
    *p = pass{};
    p->a = a;
    p->tokens = nbl__tensor_rows(&a->x);
    p->vocabulary = a->w.shape[0];
    p->hidden = a->w.shape[1];
    p->stride = ceil_div(p->vocabulary, 8) * 8;
    int64_t row_bytes = p->hidden * static_cast<int64_t>(nbl__size_of(a->dtype));
    bool direct = a->w.format == NBL_FORMAT_DENSE && a->w.dtype == a->dtype;
    if (!direct && row_bytes > 0) p->range = min_i64(rows_in(WEIGHT_BYTES, row_bytes), p->vocabulary);
    p->sums = !backward;
    p->gradient = backward || a->grad_in_forward;
    p->want_dx = backward ? nbl__has_data(&a->dx) : a->grad_in_forward;
    p->want_dw = backward && nbl__cross_entropy_wants_dw(a);
    p->narrow = a->dtype == NBL_DTYPE_F16;
    p->dx = backward ? &a->dx : &a->dx_in_forward;
    p->tiles = takes_tiles(ctx, p, backward);
    p->span_count = ceil_div(p->vocabulary, NBL_GEMM_SM90_SPAN);
}

/* Bytes of scratch. Sets the pointers of *p if `base` is not NULL. */
static inline size_t layout(const nbl_context *ctx, const nbl__cross_entropy *a, bool backward, uint8_t *base,
                            pass *p)
{
    describe_pass(ctx, a, backward, p);
    bool wide = backward && a->train_w && p->narrow;
    int64_t max = p->tiles ? tile_rows_in(LOGIT_BYTES, 2 * p->stride) : rows_in(LOGIT_BYTES, 4 * p->stride);
    int64_t rows = min_i64(p->tokens, max), plain = min_i64(p->tokens, ROW_STEP) * p->stride * 4;
    p->rows = even_rows(p->tokens, max);
    p->logit_bytes = rows * p->stride * (!p->tiles ? 4 : p->gradient ? 2 : 0);
    if (p->logit_bytes < plain) p->logit_bytes = plain; /* for without_tiles */
    nbl__bump bump = {base, 0};
    auto take = [&](int64_t bytes) { return nbl__bump_alloc(&bump, static_cast<size_t>(bytes)); };
    p->share = static_cast<double *>(take(sizeof(double)));
    p->losses = static_cast<double *>(take(backward ? 0 : p->tokens * 8));
    p->logits = static_cast<float *>(take(p->logit_bytes));
    p->dequantized = static_cast<uint8_t *>(
        take(p->range * p->hidden * static_cast<int64_t>(nbl__size_of(a->dtype))));
    p->d16 = static_cast<__half *>(take(wide ? rows * p->stride * 2 : 0));
    p->x32 = static_cast<float *>(take(wide ? rows * p->hidden * 4 : 0));
    p->dx32 = static_cast<float *>(take(needs_dx32(p, !backward) && p->gradient ? rows * p->hidden * 4 : 0));
    p->powers = static_cast<float *>(take(p->tiles ? p->tokens * 4 : 0));
    p->label_logits = static_cast<float *>(take(p->tiles ? rows * 4 : 0));
    p->factors = static_cast<float *>(take(p->tiles ? rows * 4 : 0));
    p->spans = static_cast<float *>(take(p->tiles ? rows * p->span_count * 8 : 0));
    return bump.used;
}

/* Switches to the general way in the same scratch, for matrices whose alignment the tiles refuse. */
static inline void without_tiles(pass *p)
{
    p->tiles = false;
    p->rows = even_rows(p->tokens, rows_in(p->logit_bytes, 4 * p->stride));
}

} // namespace nbl_cuda
#endif
