/* linear_helpers.cu - see linear_helpers.h. Dtypes are arguments, not template parameters: all
 * threads take the same branch, which costs nothing beside the memory, and one kernel serves all
 * dtypes.
 *
 * Limit of all kernels: memory. Grids are at most 65536 blocks of 256 threads; threads go on in
 * strides of the grid. */
#include "ops/elementwise/act.cuh"
#include "ops/common/dependent_launch.cuh"

extern "C" {
#include "ops/linear/cuda/linear_helpers.h"
}

using namespace nbl_cuda;

namespace
{

constexpr int THREADS = 256;

/* Blocks for n elements. */
unsigned blocks_for(int64_t n)
{
    int64_t blocks = (n + THREADS - 1) / THREADS;
    return static_cast<unsigned>(blocks < 1 << 16 ? blocks : 1 << 16);
}

/* A value rounded to this dtype, as f32. */
__device__ inline float rounded(float value, nbl_dtype dtype)
{
    if (dtype == NBL_DTYPE_F16) return to_f32(from_f32<__half>(value));
    if (dtype == NBL_DTYPE_BF16) return to_f32(from_f32<__nv_bfloat16>(value));
    return value;
}

/* ---- moves ---- */

/* by_eight: the move is a plain conversion of f32 to 16 bits, 8 aligned elements at a time. */
struct move_list {
    nbl__cast_copy copies[NBL_MAX_CAST_COPIES];
    bool by_eight[NBL_MAX_CAST_COPIES];
};

/* Two rounded values in one word. */
template <typename T> __device__ inline uint32_t two_of(float low, float high)
{
    T both[2] = {from_f32<T>(low), from_f32<T>(high)};
    uint32_t word;
    memcpy(&word, both, 4);
    return word;
}

/* Element (r, c) of the target. `rest`: the second column of a split, what the rounding of the
 * first lost. */
__device__ inline float moved(const nbl__cast_copy &m, int64_t r, int64_t c)
{
    int64_t row = m.transposed ? c : r, column = m.transposed ? r : c;
    bool rest = m.split && column == 1;
    if (rest) column = 0;
    if (row >= m.rows || column >= m.columns) return 0;
    float value = rounded(load_one(m.from, m.from_dtype, row * m.from_ld + column), m.via);
    if (rest) value -= rounded(value, m.to_dtype);
    if (m.factor) value *= m.factor[column];
    return m.scale != 0 ? value * m.scale : value;
}

/* Eight elements of a plain conversion from f32. All loads are issued before the first rounding. */
__device__ inline uint4 eight_of(const nbl__cast_copy &m, uint32_t r, uint32_t c)
{
    const float *from = static_cast<const float *>(m.from) + r * m.from_ld + c;
    float values[8];
    uint32_t words[4];
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) values[k] = r < m.rows && c + k < m.columns ? from[k] : 0;
#pragma unroll
    for (int k = 0; k < 4; k++)
        words[k] = m.to_dtype == NBL_DTYPE_F16 ? two_of<__half>(values[2 * k], values[2 * k + 1])
                                               : two_of<__nv_bfloat16>(values[2 * k], values[2 * k + 1]);
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* All moves of a list in one launch: blockIdx.y is the move, threads take its elements, or groups
 * of eight. A dependent launch: the sources may be results of the previous kernel. */
__global__ void move_all(dependent, const __grid_constant__ move_list list)
{
    const nbl__cast_copy &m = list.copies[blockIdx.y];
    wait_for_previous_kernel();
    allow_dependent_launch();
    int64_t step = static_cast<int64_t>(gridDim.x) * THREADS,
            i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (!list.by_eight[blockIdx.y]) {
        for (int64_t n = m.to_rows * m.to_columns; i < n; i += step) {
            int64_t r = i / m.to_columns, c = i - r * m.to_columns;
            store_one(m.to, m.to_dtype, r * m.to_ld + c, moved(m, r, c));
        }
        return;
    }
    uint32_t eights = static_cast<uint32_t>(m.to_columns / 8);
    for (int64_t n = m.to_rows * eights; i < n; i += step) {
        uint32_t r = static_cast<uint32_t>(i) / eights, c = (static_cast<uint32_t>(i) - r * eights) * 8;
        uint16_t *to = static_cast<uint16_t *>(m.to) + static_cast<int64_t>(r) * m.to_ld + c;
        *reinterpret_cast<uint4 *>(to) = eight_of(m, r, c);
    }
}

/* ---- outputs ---- */

/* y = factor · (sums + codes · row_scales · column_scales / 127²) + bias, one rounding. An element
 * per thread. */
__global__ void finish_kernel(nbl__epilogue f)
{
    int64_t n = f.rows * f.columns, step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += step) {
        int64_t r = i / f.columns, c = i - r * f.columns;
        float value = f.sums ? f.sums[i] : 0;
        if (f.codes) {
            float scale = f.row_scales[r] * f.column_scales[c] * (1.0f / (127.0f * 127.0f));
            value = fmaf(static_cast<float>(f.codes[i]), scale, value);
        }
        if (f.factor) value *= f.factor[c];
        if (f.bias) value += load_one(f.bias, f.bias_dtype, c);
        store_one(f.y, f.y_dtype, i, value);
    }
}

/* ---- sums over tokens ---- */

/* A block of sum_parts: SUM_ROWS rows of SUM_COLUMNS columns, by SUM_LINES threads per column. */
constexpr int SUM_COLUMNS = 32, SUM_LINES = THREADS / SUM_COLUMNS, SUM_ROWS = 256;

/* parts[blockIdx.y, c] = Σ dy[r, c], or Σ dy · plain, over SUM_ROWS rows. A thread adds every
 * eighth row in f32, then one thread per column adds the eight sums in f64. A warp reads 32
 * neighbouring columns. */
__global__ void sum_parts(int64_t rows, int64_t columns, const void *dy, nbl_dtype dtype, const float *plain,
                          double *parts)
{
    __shared__ double lines[SUM_LINES][SUM_COLUMNS];
    int x = threadIdx.x % SUM_COLUMNS, line = threadIdx.x / SUM_COLUMNS;
    int64_t c = static_cast<int64_t>(blockIdx.x) * SUM_COLUMNS + x,
            first = static_cast<int64_t>(blockIdx.y) * SUM_ROWS;
    float sum = 0;
    if (c < columns)
        for (int64_t r = first + line; r < first + SUM_ROWS && r < rows; r += SUM_LINES) {
            float value = load_one(dy, dtype, r * columns + c);
            sum = plain ? fmaf(value, plain[r * columns + c], sum) : sum + value;
        }
    lines[line][x] = sum;
    __syncthreads();
    if (line != 0 || c >= columns) return;
    double all = 0;
    for (int i = 0; i < SUM_LINES; i++) all += lines[i][x];
    parts[blockIdx.y * columns + c] = all;
}

/* sums[c] (+)= Σ parts[., c], in the order of the parts. A thread per column. */
__global__ void sum_up(int64_t count, int64_t columns, const double *parts, bool first, double *sums)
{
    int64_t c = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (c >= columns) return;
    double all = first ? 0 : sums[c];
    for (int64_t i = 0; i < count; i++) all += parts[i * columns + c];
    sums[c] = all;
}

/* to[c] (+)= sums[c] · factor[c], rounded to f32 once. */
__global__ void put_kernel(int64_t columns, const double *sums, const float *factor, bool accumulate,
                           float *to)
{
    int64_t c = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (c >= columns) return;
    double value = factor ? sums[c] * static_cast<double>(factor[c]) : sums[c];
    to[c] = static_cast<float>(accumulate ? static_cast<double>(to[c]) + value : value);
}

/* DoRA: factor = magnitude / norm and inverse = 1 / norm. `norm` may be `inverse`: it is read
 * first. */
__global__ void factor_kernel(int64_t n, const void *magnitude, nbl_dtype dtype, const float *norm,
                              float *factor, float *inverse)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    float length = norm[i];
    factor[i] = load_one(magnitude, dtype, i) / length;
    inverse[i] = 1 / length;
}

/* ---- LLM.int8 ---- */

/* outlier[c] = 1 if a value of column c is not below the limit, NaN included. A thread per column;
 * blockIdx.y takes rows gridDim.y (at most 64) apart. `outlier` starts as zeros. */
__global__ void mark_outliers(int64_t rows, int64_t columns, const void *x, nbl_dtype dtype, float limit,
                              uint8_t *outlier)
{
    int64_t c = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (c >= columns) return;
    bool found = false;
    for (int64_t r = blockIdx.y; r < rows; r += gridDim.y)
        found |= !(fabsf(load_one(x, dtype, r * columns + c)) < limit);
    if (found) outlier[c] = 1; /* all writers write 1 */
}

/* LLM.int8 of row blockIdx.x: scales = the largest magnitude below the limit, codes = RN(x · 127 /
 * scale) outside of outlier columns, kept = x inside of them. The block reads its row twice: for
 * the maximum, and for the codes. */
__global__ void quantize(int64_t columns, const void *x, nbl_dtype dtype, float limit, const uint8_t *outlier,
                         int8_t *codes, float *scales, void *outliers, nbl_dtype outlier_dtype)
{
    __shared__ float max[THREADS / 32];
    int64_t first = static_cast<int64_t>(blockIdx.x) * columns;
    float largest = 0;
    for (int64_t c = threadIdx.x; c < columns; c += THREADS) {
        float magnitude = fabsf(load_one(x, dtype, first + c));
        if (magnitude < limit && magnitude > largest) largest = magnitude;
    }
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0) max[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) largest = fmaxf(largest, max[i]);
    if (threadIdx.x == 0) scales[blockIdx.x] = largest;
    float factor = 127 / largest;
    for (int64_t c = threadIdx.x; c < columns; c += THREADS) {
        float value = load_one(x, dtype, first + c);
        bool stays = outlier[c];
        int code = 0;
        if (!stays && largest > 0) {
            float scaled = value * factor, whole = rintf(scaled);
            /* The f32 product may be wrong near a tie, and 127 / largest may overflow: f64. */
            if (!(fabsf(scaled - whole) < 0.4999f) || largest <= 0x1p-100f)
                whole = static_cast<float>(
                    rint(static_cast<double>(value) * 127 / static_cast<double>(largest)));
            code = static_cast<int>(whole);
        }
        codes[first + c] = static_cast<int8_t>(code);
        store_one(outliers, outlier_dtype, first + c, stays ? value : 0);
    }
}

/* ---- the gate of mlp ---- */

/* In place, an element per thread and step. Without d: g = act(g)·u. With d: g, u, d = d·u·act'(g),
 * d·act(g), act(g)·u. */
template <int ACT>
__global__ void gate_kernel(int64_t n, const float *saved_g, const float *saved_u, float *g, float *u, float *d,
                            int act)
{
    int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += step) {
        float slope, x = saved_g ? saved_g[i] : g[i], y = saved_u ? saved_u[i] : u[i],
                     value = activation<ACT, false>(x, &slope, act);
        if (d == NULL) {
            g[i] = value * y;
            continue;
        }
        float dh = d[i];
        g[i] = dh * y * slope;
        u[i] = dh * value;
        d[i] = value * y;
    }
}

/* A threshold <= 0 means that only NaN and infinities are outliers. */
float limit_of(float threshold)
{
    return threshold > 0 ? threshold : INFINITY;
}

} // namespace

extern "C" nbl_status nbl__cuda_cast_copy(const nbl__call *call, const nbl__cast_copy *copies, int count)
{
    move_list list = {};
    int64_t max = 0;
    int used = 0;
    for (int i = 0; i < count; i++) {
        const nbl__cast_copy *m = &copies[i];
        int64_t n = m->to_rows * m->to_columns;
        if (n == 0) continue;
        bool by_eight = m->from_dtype == NBL_DTYPE_F32 && m->via != NBL_DTYPE_F16 &&
                        m->via != NBL_DTYPE_BF16 && m->factor == NULL && m->scale == 0 && !m->split &&
                        !m->transposed && m->to_dtype != NBL_DTYPE_F32 && m->to_columns % 8 == 0 &&
                        m->to_ld % 8 == 0 && is_aligned(m->to, 16) && n < INT32_MAX;
        list.by_eight[used] = by_eight;
        list.copies[used++] = *m;
        if (by_eight) n /= 8;
        max = n > max ? n : max;
    }
    if (used == 0) return NBL_OK;
    launch_dependent(move_all, dim3(blocks_for(max), static_cast<unsigned>(used)), THREADS, 0, 1,
                 stream_of(call), list);
    return launched(call);
}

extern "C" nbl_status nbl__cuda_epilogue(const nbl__call *call, const nbl__epilogue *f)
{
    if (f->rows * f->columns == 0) return NBL_OK;
    finish_kernel<<<blocks_for(f->rows * f->columns), THREADS, 0, stream_of(call)>>>(*f);
    return launched(call);
}

extern "C" int64_t nbl__cuda_sums_parts(int64_t rows, int64_t columns)
{
    return (rows + SUM_ROWS - 1) / SUM_ROWS * columns;
}

extern "C" nbl_status nbl__cuda_sums(const nbl__call *call, int64_t rows, int64_t columns, const void *dy,
                                     nbl_dtype dtype, const float *plain, bool first, double *parts,
                                     double *sums)
{
    if (columns == 0) return NBL_OK;
    int64_t count = (rows + SUM_ROWS - 1) / SUM_ROWS;
    dim3 grid(static_cast<unsigned>((columns + SUM_COLUMNS - 1) / SUM_COLUMNS), static_cast<unsigned>(count));
    if (count > 0) sum_parts<<<grid, THREADS, 0, stream_of(call)>>>(rows, columns, dy, dtype, plain, parts);
    unsigned blocks = static_cast<unsigned>((columns + THREADS - 1) / THREADS);
    sum_up<<<blocks, THREADS, 0, stream_of(call)>>>(count, columns, parts, first, sums);
    return launched(call);
}

extern "C" nbl_status nbl__cuda_store_sums(const nbl__call *call, int64_t columns, const double *sums,
                                           const float *factor, bool accumulate, float *to)
{
    if (columns == 0) return NBL_OK;
    unsigned blocks = static_cast<unsigned>((columns + THREADS - 1) / THREADS);
    put_kernel<<<blocks, THREADS, 0, stream_of(call)>>>(columns, sums, factor, accumulate, to);
    return launched(call);
}

extern "C" nbl_status nbl__cuda_factors(const nbl__call *call, int64_t n, const nbl_tensor *magnitude,
                                        const float *norm, float *factor, float *inverse)
{
    if (n == 0) return NBL_OK;
    unsigned blocks = static_cast<unsigned>((n + THREADS - 1) / THREADS);
    factor_kernel<<<blocks, THREADS, 0, stream_of(call)>>>(n, magnitude->data, magnitude->dtype, norm, factor,
                                                           inverse);
    return launched(call);
}

extern "C" nbl_status nbl__cuda_outliers(const nbl__call *call, int64_t rows, int64_t columns, const void *x,
                                         nbl_dtype dtype, float threshold, uint8_t *outlier)
{
    if (columns == 0) return NBL_OK;
    cudaMemsetAsync(outlier, 0, static_cast<size_t>(columns), stream_of(call));
    dim3 grid(static_cast<unsigned>((columns + THREADS - 1) / THREADS),
              static_cast<unsigned>(rows < 64 ? rows : 64));
    if (rows > 0)
        mark_outliers<<<grid, THREADS, 0, stream_of(call)>>>(rows, columns, x, dtype, limit_of(threshold),
                                                             outlier);
    return launched(call);
}

extern "C" nbl_status nbl__cuda_quantize_rows(const nbl__call *call, int64_t rows, int64_t columns,
                                              const void *x, nbl_dtype dtype, float threshold,
                                              const uint8_t *outlier, int8_t *codes, float *scales,
                                              void *outliers, nbl_dtype outlier_dtype)
{
    if (rows == 0) return NBL_OK;
    quantize<<<static_cast<unsigned>(rows), THREADS, 0, stream_of(call)>>>(
        columns, x, dtype, limit_of(threshold), outlier, codes, scales, outliers, outlier_dtype);
    return launched(call);
}

extern "C" nbl_status nbl__cuda_gate(const nbl__call *call, int act, int64_t n, const float *saved_g,
                                     const float *saved_u, float *g, float *u, float *d)
{
    if (n == 0) return NBL_OK;
    unsigned blocks = blocks_for(n);
    cudaStream_t stream = stream_of(call);
    if (act == NBL_ACT_SILU)
        gate_kernel<NBL_ACT_SILU><<<blocks, THREADS, 0, stream>>>(n, saved_g, saved_u, g, u, d, act);
    else if (act == NBL_ACT_GELU)
        gate_kernel<NBL_ACT_GELU><<<blocks, THREADS, 0, stream>>>(n, saved_g, saved_u, g, u, d, act);
    else if (act == NBL_ACT_GELU_TANH)
        gate_kernel<NBL_ACT_GELU_TANH><<<blocks, THREADS, 0, stream>>>(n, saved_g, saved_u, g, u, d, act);
    else gate_kernel<ACT_RARE><<<blocks, THREADS, 0, stream>>>(n, saved_g, saved_u, g, u, d, act);
    return launched(call);
}
