/* norm.cuh - the rows of rmsnorm and layernorm, forward and backward. Internal to ops/cuda.
 *
 *     c = h - mean (CENTER: layernorm) or h,  s = 1 / √(mean(c²) + eps),  n = c·s,  g = dy·(w + offset)
 *     y  = n·(w + offset) + b
 *     dx = s·g - c·s³·mean(g·c) - s·mean(g) + dresidual,   dw = Σ dy·n,   db = Σ dy     over the rows
 *
 * A row lies in the registers of the threads that share it: up to PACKS times 16 bytes each. Short rows share a block,
 * and a warp. So each byte is read once and written once, and results may lie on inputs. Rows that are
 * too long or not aligned are read again from the cache, an element at a time.
 *
 * dw and db: each of up to SLOTS·(rows per block) sets of threads sums the rows it meets in registers; the sums of the sets,
 * in scratch, are added by a second kernel in a fixed order. Bound by memory; 4 to 8 % more bytes for dw. */
#ifndef NBL_CUDA_NORM_CUH
#define NBL_CUDA_NORM_CUH

#include "ops/cuda/load.cuh"

namespace nbl_cuda
{

enum { NORM_PACKS = 2, NORM_THREADS = 1024, NORM_BACKWARD_THREADS = 512, NORM_SHORT_THREADS = 128, NORM_SLOW_THREADS = 256, NORM_SLOTS = 512 };

struct norm_call {
    const void *x, *residual; /* residual, bias, dresidual, …: NULL when absent */
    void *sum, *y;
    const void *dy, *dresidual;
    void *dx;
    float *partial_w, *partial_b; /* [slots, columns] */
    const void *w, *bias;
    int w_dtype, bias_dtype;
    int64_t rows, columns;
    int per_row; /* threads of a row; at most 32: a power of two */
    float eps, offset;
    bool round_first;
};

/* Sums over the threads of a row. */
template <int N> __device__ inline void row_sums(float (&values)[N], int per_row)
{
    if (per_row > 32) {
        block_sums(values);
        return;
    }
#pragma unroll
    for (int n = 0; n < N; n++)
        for (int i = per_row / 2; i > 0; i /= 2) values[n] += __shfl_xor_sync(WARP, values[n], i);
}

/* What a set of threads works on: `lane` of `per_row`, and the row with which it begins. */
struct norm_place {
    int lane;
    int64_t slot, slots;
};
__device__ inline norm_place place_of(const norm_call &a)
{
    int sets = blockDim.x / a.per_row;
    return {static_cast<int>(threadIdx.x) % a.per_row,
            static_cast<int64_t>(blockIdx.x) * sets + threadIdx.x / a.per_row,
            static_cast<int64_t>(gridDim.x) * sets};
}

template <typename T> __device__ inline pack<T> pack_at(const void *from, int64_t i)
{
    return *reinterpret_cast<const pack<T> *>(static_cast<const T *>(from) + i);
}

/* h of a row into registers; forward stores it, too, when there is a residual. Behind the row: 0. */
template <typename T>
__device__ inline void load_sum(const norm_call &a, int64_t row, int lane, bool store, pack<T> (&h)[NORM_PACKS])
{
    constexpr int N = pack<T>::COUNT;
#pragma unroll
    for (int k = 0; k < NORM_PACKS; k++) {
        int64_t column = static_cast<int64_t>(lane + k * a.per_row) * N;
        h[k] = pack<T>{};
        if (row < a.rows && column < a.columns) h[k] = pack_at<T>(a.x, row * a.columns + column);
    }
    if (a.residual == nullptr) return;
    pack<T> other[NORM_PACKS];
#pragma unroll
    for (int k = 0; k < NORM_PACKS; k++) {
        int64_t column = static_cast<int64_t>(lane + k * a.per_row) * N;
        other[k] = pack<T>{};
        if (row < a.rows && column < a.columns) other[k] = pack_at<T>(a.residual, row * a.columns + column);
    }
#pragma unroll
    for (int k = 0; k < NORM_PACKS; k++) {
        int64_t column = static_cast<int64_t>(lane + k * a.per_row) * N;
#pragma unroll
        for (int j = 0; j < N; j++) h[k].at[j] = from_f32<T>(to_f32(h[k].at[j]) + to_f32(other[k].at[j]));
        if (store && row < a.rows && column < a.columns)
            *reinterpret_cast<pack<T> *>(static_cast<T *>(a.sum) + row * a.columns + column) = h[k];
    }
}

/* Mean of the row: 0 without CENTER. */
template <typename T, bool CENTER>
__device__ inline float mean_of(const norm_call &a, const pack<T> (&h)[NORM_PACKS])
{
    float sum[1] = {0};
#pragma unroll
    for (int k = 0; k < NORM_PACKS && CENTER; k++)
#pragma unroll
        for (int j = 0; j < pack<T>::COUNT; j++) sum[0] += to_f32(h[k].at[j]);
    if (CENTER) row_sums(sum, a.per_row);
    return sum[0] / static_cast<float>(a.columns);
}

template <typename T, bool CENTER> __global__ void __launch_bounds__(NORM_THREADS) norm_rows(norm_call a)
{
    constexpr int N = pack<T>::COUNT;
    norm_place at = place_of(a);
    int64_t row = at.slot;
    pack<T> h[NORM_PACKS];
    load_sum<T>(a, row, at.lane, true, h);
    float mean = mean_of<T, CENTER>(a, h), squares[1] = {0};
#pragma unroll
    for (int k = 0; k < NORM_PACKS; k++) {
        bool inside = static_cast<int64_t>(at.lane + k * a.per_row) * N < a.columns;
#pragma unroll
        for (int j = 0; j < N; j++) {
            float c = to_f32(h[k].at[j]) - mean;
            if (inside) squares[0] = fmaf(c, c, squares[0]);
        }
    }
    row_sums(squares, a.per_row);
    float scale = 1 / sqrtf(squares[0] / static_cast<float>(a.columns) + a.eps);
    if (row >= a.rows) return;
#pragma unroll
    for (int k = 0; k < NORM_PACKS; k++) {
        int64_t column = static_cast<int64_t>(at.lane + k * a.per_row) * N;
        if (column >= a.columns) break;
        float w[N], b[N], y[N];
        load_any<N>(a.w, a.w_dtype, column, w);
        if (CENTER && a.bias) load_any<N>(a.bias, a.bias_dtype, column, b);
#pragma unroll
        for (int j = 0; j < N; j++) {
            y[j] = (to_f32(h[k].at[j]) - mean) * scale;
            if (!CENTER && a.round_first) y[j] = to_f32(from_f32<T>(y[j]));
            y[j] *= w[j] + a.offset;
            if (CENTER && a.bias) y[j] += b[j];
        }
        store_run<T, N>(static_cast<T *>(a.y) + row * a.columns + column, y);
    }
}

/* SUMS: dw or db is wanted; the grid then is smaller than the number of rows. */
template <typename T, bool CENTER, bool SUMS>
__global__ void __launch_bounds__(NORM_BACKWARD_THREADS) norm_rows_backward(norm_call a)
{
    constexpr int N = pack<T>::COUNT;
    norm_place at = place_of(a);
    float dw[NORM_PACKS][N] = {}, db[NORM_PACKS][CENTER ? N : 1] = {};
    int64_t rounds = (a.rows + at.slots - 1) / at.slots; /* all sets go round alike: they wait for each other */
    for (int64_t round = 0; round < rounds; round++) {
        int64_t row = at.slot + round * at.slots, first = row * a.columns;
        pack<T> h[NORM_PACKS], dy[NORM_PACKS];
        load_sum<T>(a, row, at.lane, false, h);
#pragma unroll
        for (int k = 0; k < NORM_PACKS; k++) {
            int64_t column = static_cast<int64_t>(at.lane + k * a.per_row) * N;
            dy[k] = pack<T>{};
            if (row < a.rows && column < a.columns) dy[k] = pack_at<T>(a.dy, first + column);
        }
        float mean = mean_of<T, CENTER>(a, h), sums[CENTER ? 3 : 2] = {};
#pragma unroll
        for (int k = 0; k < NORM_PACKS; k++) {
            int64_t column = static_cast<int64_t>(at.lane + k * a.per_row) * N;
            float w[N];
            if (column >= a.columns) break;
            load_any<N>(a.w, a.w_dtype, column, w);
#pragma unroll
            for (int j = 0; j < N; j++) {
                float c = to_f32(h[k].at[j]) - mean, g = to_f32(dy[k].at[j]) * (w[j] + a.offset);
                sums[0] = fmaf(c, c, sums[0]);
                sums[1] = fmaf(g, c, sums[1]);
                if (CENTER) sums[CENTER ? 2 : 0] += g;
            }
        }
        row_sums(sums, a.per_row);
        float n = static_cast<float>(a.columns), s = 1 / sqrtf(sums[0] / n + a.eps);
        float pull = s * (s * (s * (sums[1] / n))), shift = CENTER ? s * (sums[CENTER ? 2 : 0] / n) : 0;
        if (row >= a.rows) continue;
#pragma unroll
        for (int k = 0; k < NORM_PACKS; k++) {
            int64_t column = static_cast<int64_t>(at.lane + k * a.per_row) * N;
            float w[N], dx[N];
            if (column >= a.columns) break;
#pragma unroll
            for (int j = 0; j < N; j++) {
                if (!SUMS) break;
                float d = to_f32(dy[k].at[j]);
                dw[k][j] = fmaf(d, (to_f32(h[k].at[j]) - mean) * s, dw[k][j]);
                if (CENTER) db[k][CENTER ? j : 0] += d;
            }
            if (a.dx == nullptr) continue;
            load_any<N>(a.w, a.w_dtype, column, w);
#pragma unroll
            for (int j = 0; j < N; j++) {
                float c = to_f32(h[k].at[j]) - mean, g = to_f32(dy[k].at[j]) * (w[j] + a.offset);
                dx[j] = fmaf(-c, pull, s * g) - shift;
            }
            if (a.dresidual) {
                pack<T> further = pack_at<T>(a.dresidual, first + column);
#pragma unroll
                for (int j = 0; j < N; j++) dx[j] += to_f32(further.at[j]);
            }
            store_run<T, N>(static_cast<T *>(a.dx) + first + column, dx);
        }
    }
    if constexpr (SUMS) {
#pragma unroll
        for (int k = 0; k < NORM_PACKS; k++) {
            int64_t column = static_cast<int64_t>(at.lane + k * a.per_row) * N;
            if (column >= a.columns) break;
            if (a.partial_w) store_run<float, N>(a.partial_w + at.slot * a.columns + column, dw[k]);
            if constexpr (CENTER)
                if (a.partial_b) store_run<float, N>(a.partial_b + at.slot * a.columns + column, db[k]);
        }
    }
}

/* ---- any row: a block each, element by element ---- */

template <typename T> __device__ inline float sum_at(const norm_call &a, int64_t i)
{
    float h = to_f32(static_cast<const T *>(a.x)[i]);
    if (a.residual == nullptr) return h;
    return to_f32(from_f32<T>(h + to_f32(static_cast<const T *>(a.residual)[i])));
}

__device__ inline float weight_at(const void *w, int dtype, int64_t k)
{
    float value[1];
    load_any<1>(w, dtype, k, value);
    return value[0];
}

template <typename T, bool CENTER> __device__ inline float slow_mean(const norm_call &a, const T *h)
{
    float sum[1] = {0};
    for (int64_t k = threadIdx.x; k < a.columns && CENTER; k += blockDim.x) sum[0] += to_f32(h[k]);
    if (CENTER) block_sums(sum);
    return sum[0] / static_cast<float>(a.columns);
}

template <typename T, bool CENTER> __global__ void norm_rows_slow(norm_call a)
{
    int64_t first = blockIdx.x * a.columns;
    const T *h = static_cast<const T *>(a.residual ? a.sum : a.x) + first;
    for (int64_t k = threadIdx.x; k < a.columns && a.residual; k += blockDim.x)
        static_cast<T *>(a.sum)[first + k] = from_f32<T>(sum_at<T>(a, first + k));
    float mean = slow_mean<T, CENTER>(a, h), squares[1] = {0};
    for (int64_t k = threadIdx.x; k < a.columns; k += blockDim.x) {
        float c = to_f32(h[k]) - mean;
        squares[0] = fmaf(c, c, squares[0]);
    }
    block_sums(squares);
    float scale = 1 / sqrtf(squares[0] / static_cast<float>(a.columns) + a.eps);
    for (int64_t k = threadIdx.x; k < a.columns; k += blockDim.x) {
        float n = (to_f32(h[k]) - mean) * scale;
        if (!CENTER && a.round_first) n = to_f32(from_f32<T>(n));
        n *= weight_at(a.w, a.w_dtype, k) + a.offset;
        if (CENTER && a.bias) n += weight_at(a.bias, a.bias_dtype, k);
        static_cast<T *>(a.y)[first + k] = from_f32<T>(n);
    }
}

/* layernorm has no residual: its rows can be read as they lie. The sums of a slot are kept in their place in scratch; a
 * thread always meets the same columns. */
template <typename T, bool CENTER> __global__ void norm_rows_backward_slow(norm_call a)
{
    const T *dy = static_cast<const T *>(a.dy), *further = static_cast<const T *>(a.dresidual);
    float *dw = a.partial_w ? a.partial_w + blockIdx.x * a.columns : nullptr;
    float *db = a.partial_b ? a.partial_b + blockIdx.x * a.columns : nullptr;
    for (int64_t k = threadIdx.x; k < a.columns; k += blockDim.x) {
        if (dw) dw[k] = 0;
        if (db) db[k] = 0;
    }
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int64_t first = row * a.columns;
        float mean = slow_mean<T, CENTER>(a, static_cast<const T *>(a.x) + first), sums[3] = {};
        for (int64_t k = threadIdx.x; k < a.columns; k += blockDim.x) {
            float c = sum_at<T>(a, first + k) - mean;
            float g = to_f32(dy[first + k]) * (weight_at(a.w, a.w_dtype, k) + a.offset);
            sums[0] = fmaf(c, c, sums[0]);
            sums[1] = fmaf(g, c, sums[1]);
            if (CENTER) sums[2] += g;
        }
        block_sums(sums);
        float n = static_cast<float>(a.columns), s = 1 / sqrtf(sums[0] / n + a.eps);
        float pull = s * (s * (s * (sums[1] / n))), shift = s * (sums[2] / n);
        for (int64_t k = threadIdx.x; k < a.columns; k += blockDim.x) {
            float c = sum_at<T>(a, first + k) - mean, d = to_f32(dy[first + k]);
            if (dw) dw[k] = fmaf(d, c * s, dw[k]);
            if (db) db[k] += d;
            if (a.dx == nullptr) continue;
            float dx = fmaf(-c, pull, s * (d * (weight_at(a.w, a.w_dtype, k) + a.offset))) - shift;
            if (further) dx += to_f32(further[first + k]);
            static_cast<T *>(a.dx)[first + k] = from_f32<T>(dx);
        }
    }
}

/* ---- the sums of the slots ---- */

enum { FOLD_COLUMNS = 32, FOLD_LANES = 16 };

/* to[k] (+)= Σ over slots of partial[slot, k]; which of the two, by blockIdx.y. */
static __global__ void __launch_bounds__(FOLD_COLUMNS *FOLD_LANES)
    norm_fold(const float *partial_w, const float *partial_b, float *dw, float *db, int64_t slots, int64_t columns,
              bool accumulate)
{
    __shared__ float parts[FOLD_LANES][FOLD_COLUMNS];
    const float *partial = blockIdx.y ? partial_b : partial_w;
    float *to = blockIdx.y ? db : dw, sum = 0;
    int64_t k = static_cast<int64_t>(blockIdx.x) * FOLD_COLUMNS + threadIdx.x;
    if (to == nullptr) return;
    if (k < columns)
#pragma unroll 8
        for (int64_t s = threadIdx.y; s < slots; s += FOLD_LANES) sum += partial[s * columns + k];
    parts[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || k >= columns) return;
    for (int i = 1; i < FOLD_LANES; i++) sum += parts[i][threadIdx.x];
    to[k] = accumulate ? to[k] + sum : sum;
}

/* ---- on the host ---- */

/* How the rows are dealt out; per_row 0: element by element. */
struct norm_plan {
    int per_row, threads;
    int64_t sets; /* rows that a block works on at a time */
};

static inline norm_plan plan_of(const norm_call &a, nbl_dtype dtype, int64_t most_threads)
{
    int64_t count = dtype == NBL_DTYPE_F32 ? 4 : 8, packs = a.columns / count;
    const void *all[] = {a.x, a.residual, a.sum, a.y, a.dy, a.dresidual, a.dx, a.w, a.bias};
    bool good = a.columns % count == 0 && packs <= NORM_PACKS * most_threads;
    for (const void *p : all) good = good && is_aligned(p, 16);
    if (!good) return {0, NORM_SLOW_THREADS, 1};
    int64_t per_row = 8;
    while (per_row < 32 && per_row * NORM_PACKS < packs) per_row *= 2;
    if (per_row * NORM_PACKS < packs) per_row = ceil_div(ceil_div(packs, NORM_PACKS), 32) * 32;
    int64_t threads = per_row > 32 ? per_row : int64_t{NORM_SHORT_THREADS};
    return {static_cast<int>(per_row), static_cast<int>(threads), threads / per_row};
}

/* An upper bound that does not depend on pointers, which change between planning and running. */
static inline int64_t most_slots(int64_t rows)
{
    constexpr int64_t SETS = NORM_SHORT_THREADS / 8;
    int64_t most = NORM_SLOTS * SETS, all = ceil_div(rows, SETS) * SETS;
    return all < most ? all : most;
}

template <bool CENTER> static inline nbl_status norm_forward(const nbl__call *call, nbl_dtype dtype, norm_call a)
{
    norm_plan plan = plan_of(a, dtype, NORM_THREADS);
    if (a.rows == 0 || a.columns == 0) return NBL_OK;
    a.per_row = plan.per_row;
    unsigned blocks = static_cast<unsigned>(ceil_div(a.rows, plan.sets));
    if (plan.per_row == 0)
        NBL_BY_DTYPE(dtype, T, (norm_rows_slow<T, CENTER><<<blocks, plan.threads, 0, stream_of(call)>>>(a)));
    else NBL_BY_DTYPE(dtype, T, (norm_rows<T, CENTER><<<blocks, plan.threads, 0, stream_of(call)>>>(a)));
    return launched(call);
}

/* dw and db: NULL when they are not wanted. */
template <bool CENTER>
static inline nbl_status norm_backward(const nbl__call *call, nbl_dtype dtype, norm_call a, float *dw, float *db,
                                       bool accumulate)
{
    norm_plan plan = plan_of(a, dtype, NORM_BACKWARD_THREADS);
    cudaStream_t stream = stream_of(call);
    bool sums = dw || db;
    if (a.columns == 0 || (!sums && (a.dx == nullptr || a.rows == 0))) return NBL_OK;
    nbl__cut cut = {call->scratch, 0};
    size_t bytes = static_cast<size_t>(most_slots(a.rows) * a.columns) * sizeof(float);
    if (dw) a.partial_w = static_cast<float *>(nbl__cut_bytes(&cut, bytes));
    if (db) a.partial_b = static_cast<float *>(nbl__cut_bytes(&cut, bytes));
    a.per_row = plan.per_row;
    int64_t blocks = ceil_div(a.rows, plan.sets);
    if (sums && blocks > NORM_SLOTS) blocks = NORM_SLOTS;
    unsigned grid = static_cast<unsigned>(blocks);
    if (grid > 0) {
        if (plan.per_row == 0)
            NBL_BY_DTYPE(dtype, T, (norm_rows_backward_slow<T, CENTER><<<grid, plan.threads, 0, stream>>>(a)));
        else if (sums)
            NBL_BY_DTYPE(dtype, T, (norm_rows_backward<T, CENTER, true><<<grid, plan.threads, 0, stream>>>(a)));
        else NBL_BY_DTYPE(dtype, T, (norm_rows_backward<T, CENTER, false><<<grid, plan.threads, 0, stream>>>(a)));
    }
    if (sums)
        norm_fold<<<dim3(static_cast<unsigned>(ceil_div(a.columns, FOLD_COLUMNS)), db ? 2 : 1),
                    dim3(FOLD_COLUMNS, FOLD_LANES), 0, stream>>>(a.partial_w, a.partial_b, dw, db,
                                                                 blocks * plan.sets, a.columns, accumulate);
    return launched(call);
}

} // namespace nbl_cuda
#endif
