/* norm.cuh - the rows of rmsnorm and layernorm, forward and backward. Internal to the CUDA kernels.
 *
 *     c = h - mean (CENTER: layernorm) or h,  s = 1 / √(mean(c²) + eps),  n = c·s,  g = dy·w
 *     y  = n·w + b                      with (w + offset)·scale and b·scale in place of w and b
 *     dx = s·g - c·s³·mean(g·c) - s·mean(g) + dresidual,   dw = scale·Σ dy·n,   db = scale·Σ dy     over the rows
 *
 *     a block (persistent; as many as the device runs at once): w + offset and b → shared memory, as f32
 *         each set of threads: for its rows        a set: a part of a warp, or up to a block, by the row's length
 *             load the next row                    up to NORM_PACKS times 16 bytes of each tensor per thread
 *             sums of this row over the set
 *             y, or dx and the sums for dw, db
 *
 * The row stays in registers: each byte is read once and written once, and results may overwrite inputs. The next row is
 * in flight while threads wait for each other. Rows that are too long or not aligned are read again from the cache, one
 * element at a time (norm_general.cuh). At 4 bytes per bf16 element, memory bandwidth leaves about 28 instructions per
 * element.
 *
 * dw and db: each set sums its rows in registers. The sums of the blocks go to scratch. A second kernel adds them in a
 * fixed order. Limit: memory bandwidth; dw moves 4 to 8 % more bytes. */
#ifndef NBL_NORM_CUH
#define NBL_NORM_CUH

#include "ops/common/dependent_launch.cuh"
#include "ops/norm/norm_general.cuh"

namespace nbl_cuda
{

/* Sums over the threads of a row, in a fixed order. `parity` alternates from call to call: threads may write the sums
 * of this call while others still read those of the last one. */
struct norm_sums {
    enum { MAX = 3, WARPS = NORM_THREADS / 32 };
    float parts[2][MAX][WARPS];
    __device__ void clear()
    {
        float *all = &parts[0][0][0];
        for (int i = threadIdx.x; i < 2 * MAX * WARPS; i += blockDim.x) all[i] = 0;
    }
};

template <int N> __device__ inline void row_sums(norm_sums &sums, float (&values)[N], int per_row, int &parity)
{
    if (per_row <= 32) {
#pragma unroll
        for (int n = 0; n < N; n++)
            for (int i = per_row / 2; i > 0; i /= 2) values[n] += __shfl_xor_sync(WARP, values[n], i);
        return;
    }
    parity ^= 1;
#pragma unroll
    for (int n = 0; n < N; n++) {
        values[n] = warp_sum(values[n]);
        if (threadIdx.x % 32 == 0) sums.parts[parity][n][threadIdx.x / 32] = values[n];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; n++) {
        values[n] = 0;
#pragma unroll
        for (int i = 0; i < norm_sums::WARPS; i += 4) { /* sums behind the last warp are zeros */
            if (i * 32 >= per_row) break;
            float4 four = *reinterpret_cast<const float4 *>(&sums.parts[parity][n][i]);
            values[n] += (four.x + four.y) + (four.z + four.w);
        }
    }
}

/* A thread's part of a row, and its rows. */
struct norm_layout {
    int lane;            /* index among the `per_row` threads of the row */
    int packs;           /* 16-byte packs of this thread; pack k begins at element (lane + k·per_row)·N */
    int64_t slot, slots; /* first row, and the distance to the next one */
};
template <typename T> __device__ inline norm_layout layout_of(const norm_call &a)
{
    int sets = blockDim.x / a.per_row, lane = static_cast<int>(threadIdx.x) % a.per_row, packs = 0;
    for (int k = 0; k < NORM_PACKS; k++) packs += (lane + k * a.per_row) * pack<T>::COUNT < a.columns;
    return {lane, packs, static_cast<int64_t>(blockIdx.x) * sets + threadIdx.x / a.per_row,
            static_cast<int64_t>(gridDim.x) * sets};
}

/* Writes (w + offset)·scale and b·scale as f32 to shared memory: first the first four elements of each pack, then the others.
 * Consecutive threads read consecutive 16 bytes. */
template <typename T, int N = pack<T>::COUNT>
__device__ inline void keep_weights(const norm_call &a, float4 *kept)
{
    int packs = static_cast<int>(a.columns) / N;
    for (int p = threadIdx.x; p < packs; p += blockDim.x) {
        float w[N], b[N];
        if (a.w) load_any<N>(a.w, a.w_dtype, p * N, w);
        else
#pragma unroll
            for (int j = 0; j < N; j++) w[j] = 1;
        if (a.bias) load_any<N>(a.bias, a.bias_dtype, p * N, b);
#pragma unroll
        for (int j = 0; j < N; j += 4) {
            int at = j / 4 * packs + p;
            kept[at] = make_float4((w[j] + a.offset) * a.scale, (w[j + 1] + a.offset) * a.scale,
                                   (w[j + 2] + a.offset) * a.scale, (w[j + 3] + a.offset) * a.scale);
            if (a.bias)
                kept[N / 4 * packs + at] =
                    make_float4(b[j] * a.scale, b[j + 1] * a.scale, b[j + 2] * a.scale, b[j + 3] * a.scale);
        }
    }
    __syncthreads();
}

/* Loads the elements of pack p. `kept`: the part of w, or of b. */
template <typename T, int N = pack<T>::COUNT>
__device__ inline void weights_of(const norm_call &a, const float4 *kept, int p, float (&w)[N])
{
#pragma unroll
    for (int j = 0; j < N; j += 4) {
        float4 four = kept[j / 4 * (static_cast<int>(a.columns) / N) + p];
        w[j] = four.x, w[j + 1] = four.y, w[j + 2] = four.z, w[j + 3] = four.w;
    }
}

/* A thread's part of a row, as loaded. */
struct norm_row {
    uint4 x[NORM_PACKS], residual[NORM_PACKS], dy[NORM_PACKS], dresidual[NORM_PACKS];
};

/* Index of a thread's first pack of a row. */
template <typename T>
__device__ inline int64_t first_of(const norm_call &a, const norm_layout &at, int64_t row)
{
    return row * a.columns + at.lane * pack<T>::COUNT;
}

/* Loads a row. Packs behind the row, and rows behind the last one, are zeros. */
template <typename T>
__device__ inline void load_part(const norm_call &a, const void *from, int64_t first, int packs,
                                 uint4 (&to)[NORM_PACKS])
{
    if (from == nullptr) return;
    const uint4 *row = reinterpret_cast<const uint4 *>(static_cast<const T *>(from) + first);
#pragma unroll
    for (int k = 0; k < NORM_PACKS; k++) {
        to[k] = make_uint4(0, 0, 0, 0);
        if (k < packs) to[k] = row[k * a.per_row];
    }
}

template <typename T, bool RESIDUAL, bool BACKWARD>
__device__ inline void load_row(const norm_call &a, const norm_layout &at, int64_t row, norm_row &to)
{
    int64_t first = first_of<T>(a, at, row);
    int packs = row < a.rows ? at.packs : 0;
    load_part<T>(a, a.x, first, packs, to.x);
    if (RESIDUAL) load_part<T>(a, a.residual, first, packs, to.residual);
    if (BACKWARD) {
        load_part<T>(a, a.dy, first, packs, to.dy);
        load_part<T>(a, a.dresidual, first, packs, to.dresidual);
    }
}

/* Makes the compiler unpack these again after this point. Keeping the unpacked values across the sums would take twice the
 * registers. */
__device__ inline void forget_unpacked(uint4 (&packs)[NORM_PACKS])
{
#pragma unroll
    for (int k = 0; k < NORM_PACKS; k++)
        asm volatile("" : "+r"(packs[k].x), "+r"(packs[k].y), "+r"(packs[k].z), "+r"(packs[k].w));
}

/* Replaces x by h = x + residual. */
template <typename T> __device__ inline void add_residual(norm_row &row)
{
#pragma unroll
    for (int k = 0; k < NORM_PACKS; k++) {
        float x[pack<T>::COUNT], residual[pack<T>::COUNT];
        unpack<T>(row.x[k], x);
        unpack<T>(row.residual[k], residual);
#pragma unroll
        for (int j = 0; j < pack<T>::COUNT; j++) x[j] += residual[j];
        row.x[k] = packed_up<T>(x);
    }
}

/* Mean of the row: 0 without CENTER. */
template <typename T, bool CENTER>
__device__ inline float mean_of(const norm_call &a, const uint4 (&packs)[NORM_PACKS], norm_sums &shared,
                                int &parity)
{
    float sum[1] = {0};
#pragma unroll
    for (int k = 0; k < NORM_PACKS && CENTER; k++) {
        float h[pack<T>::COUNT];
        unpack<T>(packs[k], h);
#pragma unroll
        for (int j = 0; j < pack<T>::COUNT; j++) sum[0] += h[j];
    }
    if (CENTER) row_sums(shared, sum, a.per_row, parity);
    return sum[0] / static_cast<float>(a.columns);
}

/* Forward: y, and the sum x + residual. Template parameters choose the operator: CENTER is
 * layernorm; RESIDUAL adds before the norm. A dependent launch (dependent_launch.cuh): before the
 * wait it prefetches w into L2.
 *
 * Bytes per element: x and y, with RESIDUAL also residual and sum. */
template <typename T, bool CENTER, bool RESIDUAL>
__global__ void __launch_bounds__(NORM_THREADS) norm_rows(dependent, norm_call a)
{
    constexpr int N = pack<T>::COUNT;
    extern __shared__ float4 kept[];
    __shared__ alignas(16) norm_sums shared;
    norm_layout at = layout_of<T>(a);
    norm_row next, it;
    int parity = 0;
    allow_dependent_launch();
    for (int64_t k = threadIdx.x * 32; k < a.columns && blockIdx.x == 0 && a.w; k += blockDim.x * 32)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char *>(a.w) +
                                                      k * (a.w_dtype == NBL_DTYPE_F32 ? 4 : 2)));
    shared.clear();
    wait_for_previous_kernel();
    load_row<T, RESIDUAL, false>(a, at, at.slot, next);
    keep_weights<T>(a, kept);
    /* All sets have the same number of iterations: sets of a block wait for each other. */
    for (int64_t row = at.slot, left = (a.rows + at.slots - 1) / at.slots; left > 0;
         left--, row += at.slots) {
        it = next;
        if (left > 1) load_row<T, RESIDUAL, false>(a, at, row + at.slots, next);
        if (RESIDUAL) add_residual<T>(it);
        float mean = mean_of<T, CENTER>(a, it.x, shared, parity), squares[1] = {0};
#pragma unroll
        for (int k = 0; k < NORM_PACKS; k++) {
            float h[N];
            unpack<T>(it.x[k], h);
            if (CENTER && k >= at.packs) break;
#pragma unroll
            for (int j = 0; j < N; j++) {
                float c = CENTER ? h[j] - mean : h[j];
                squares[0] = fmaf(c, c, squares[0]);
            }
        }
        row_sums(shared, squares, a.per_row, parity);
        float scale = 1 / sqrtf(squares[0] / static_cast<float>(a.columns) + a.eps);
        forget_unpacked(it.x);
        if (row >= a.rows) continue;
        uint4 *sum = reinterpret_cast<uint4 *>(static_cast<T *>(a.sum) + first_of<T>(a, at, row));
        uint4 *to = reinterpret_cast<uint4 *>(static_cast<T *>(a.y) + first_of<T>(a, at, row));
#pragma unroll
        for (int k = 0; k < NORM_PACKS; k++) {
            if (k >= at.packs) break;
            float w[N], y[N];
            int p = at.lane + k * a.per_row;
            if (RESIDUAL) sum[k * a.per_row] = it.x[k];
            unpack<T>(it.x[k], y);
#pragma unroll
            for (int j = 0; j < N; j++) y[j] = (CENTER ? y[j] - mean : y[j]) * scale;
            if (!CENTER && a.round_first) unpack<T>(packed_up<T>(y), y);
            weights_of<T>(a, kept, p, w);
#pragma unroll
            for (int j = 0; j < N; j++) y[j] *= w[j];
            if (CENTER && a.bias) {
                weights_of<T>(a, kept + a.columns / 4, p, w);
#pragma unroll
                for (int j = 0; j < N; j++) y[j] += w[j];
            }
            to[k * a.per_row] = packed_up<T>(y);
        }
    }
}

/* Adds the sums of the block's sets in their order and stores them in the block's scratch. */
template <int N>
__device__ inline void store_sums(const norm_call &a, int lane, const float (&sums)[NORM_PACKS][N],
                                  float *partial)
{
    __shared__ float parts[NORM_SHORT_THREADS * NORM_PACKS * N];
    int sets = blockDim.x / a.per_row, set = threadIdx.x / a.per_row, width = a.per_row * NORM_PACKS * N;
    partial += blockIdx.x * a.columns;
    if (sets > 1) {
#pragma unroll
        for (int k = 0; k < NORM_PACKS; k++)
            store_run<float, N>(&parts[set * width + (lane + k * a.per_row) * N], sums[k]);
        __syncthreads();
        for (int i = threadIdx.x; i < a.columns; i += blockDim.x) {
            float sum = parts[i];
            for (int j = 1; j < sets; j++) sum += parts[j * width + i];
            partial[i] = sum;
        }
        __syncthreads();
        return;
    }
#pragma unroll
    for (int k = 0; k < NORM_PACKS; k++) {
        int64_t column = static_cast<int64_t>(lane + k * a.per_row) * N;
        if (column < a.columns) store_run<float, N>(partial + column, sums[k]);
    }
}

/* Backward: dx, and with SUMS the block's part of dw and db. Rows as in forward; one reduction of 2
 * or 3 sums per row, after the mean. Bytes per element: x, dy, dx, with a residual also dresidual
 * (and residual to recompute h). */
template <typename T, bool CENTER, bool RESIDUAL, bool SUMS>
__global__ void __launch_bounds__(NORM_THREADS) norm_rows_backward(norm_call a)
{
    constexpr int N = pack<T>::COUNT;
    extern __shared__ float4 kept[];
    __shared__ alignas(16) norm_sums shared;
    norm_layout at = layout_of<T>(a);
    float dw[NORM_PACKS][N] = {}, db[NORM_PACKS][N] = {};
    norm_row next, it;
    int parity = 0;
    load_row<T, RESIDUAL, true>(a, at, at.slot, next);
    shared.clear();
    keep_weights<T>(a, kept);
    for (int64_t row = at.slot, left = (a.rows + at.slots - 1) / at.slots; left > 0;
         left--, row += at.slots) {
        it = next;
        if (left > 1) load_row<T, RESIDUAL, true>(a, at, row + at.slots, next);
        if (RESIDUAL) add_residual<T>(it);
        float mean = mean_of<T, CENTER>(a, it.x, shared, parity), sums[CENTER ? 3 : 2] = {};
#pragma unroll
        for (int k = 0; k < NORM_PACKS; k++) {
            float w[N], h[N], dy[N];
            if (k >= at.packs) break;
            weights_of<T>(a, kept, at.lane + k * a.per_row, w);
            unpack<T>(it.x[k], h);
            unpack<T>(it.dy[k], dy);
#pragma unroll
            for (int j = 0; j < N; j++) {
                float c = CENTER ? h[j] - mean : h[j], g = dy[j] * w[j];
                sums[0] = fmaf(c, c, sums[0]);
                sums[1] = fmaf(g, c, sums[1]);
                if (CENTER) sums[CENTER ? 2 : 0] += g;
            }
        }
        row_sums(shared, sums, a.per_row, parity);
        float n = static_cast<float>(a.columns), s = 1 / sqrtf(sums[0] / n + a.eps);
        float pull = s * (s * (s * (sums[1] / n))), shift = CENTER ? s * (sums[CENTER ? 2 : 0] / n) : 0;
        forget_unpacked(it.x);
        forget_unpacked(it.dy);
        if (row >= a.rows) continue;
        uint4 *to = reinterpret_cast<uint4 *>(static_cast<T *>(a.dx) + first_of<T>(a, at, row));
#pragma unroll
        for (int k = 0; k < NORM_PACKS; k++) {
            float w[N], h[N], dy[N];
            if (k >= at.packs) break;
            unpack<T>(it.x[k], h);
            unpack<T>(it.dy[k], dy);
#pragma unroll
            for (int j = 0; j < N; j++) {
                if (CENTER) h[j] -= mean;
                if (SUMS) dw[k][j] = fmaf(dy[j], h[j] * s, dw[k][j]);
                if (SUMS && CENTER) db[k][j] += dy[j];
            }
            if (a.dx == nullptr) continue;
            weights_of<T>(a, kept, at.lane + k * a.per_row, w);
#pragma unroll
            for (int j = 0; j < N; j++) {
                h[j] = fmaf(-h[j], pull, s * (dy[j] * w[j]));
                if (CENTER) h[j] -= shift;
            }
            if (a.dresidual) {
                unpack<T>(it.dresidual[k], w);
#pragma unroll
                for (int j = 0; j < N; j++) h[j] += w[j];
            }
            to[k * a.per_row] = packed_up<T>(h);
        }
    }
    if constexpr (SUMS)
        if (a.partial_w) store_sums<N>(a, at.lane, dw, a.partial_w);
    if constexpr (SUMS && CENTER)
        if (a.partial_b) store_sums<N>(a, at.lane, db, a.partial_b);
}

/* ---- host ---- */

/* Distribution of rows over threads. per_row 0: element by element. */
struct norm_plan {
    int per_row, threads;
    int64_t sets; /* rows per block at a time */
    size_t shared;
};

/* Chooses the threads of a row: enough that each has at most NORM_PACKS packs. Rows of up to 64
 * packs share blocks of 128 threads; longer ones have a block each. */
static inline norm_plan plan_of(const norm_call &a, nbl_dtype dtype)
{
    int64_t count = dtype == NBL_DTYPE_F32 ? 4 : 8, packs = a.columns / count;
    const void *all[] = {a.x, a.residual, a.sum, a.y, a.dy, a.dresidual, a.dx, a.w, a.bias};
    bool good = a.columns % count == 0 && packs <= NORM_PACKS * NORM_THREADS;
    for (const void *p : all) good = good && is_aligned(p, 16);
    if (!good) return {0, NORM_SLOW_THREADS, 1, 0};
    int64_t per_row = 8;
    while (per_row < 32 && per_row * NORM_PACKS < packs) per_row *= 2;
    if (per_row * NORM_PACKS < packs) per_row = ceil_div(ceil_div(packs, NORM_PACKS), 32) * 32;
    int64_t threads = per_row > 32 ? per_row : int64_t{NORM_SHORT_THREADS};
    size_t kept = static_cast<size_t>(a.columns) * sizeof(float) * (a.bias ? 2 : 1);
    return {static_cast<int>(per_row), static_cast<int>(threads), threads / per_row, kept};
}

/* Max bytes of the blocks' sums for this number of rows, for any alignment of the pointers. */
static inline size_t sums_bytes(int64_t rows, int64_t columns)
{
    int64_t blocks = rows < NORM_MAX_BLOCKS ? rows : int64_t{NORM_MAX_BLOCKS};
    return static_cast<size_t>(blocks * columns) * sizeof(float);
}

/* Number of blocks: as many as run at once, at most as many as there are rows for. */
template <typename KERNEL>
static inline unsigned blocks_for(const nbl__call *call, KERNEL kernel, const norm_plan &plan, int64_t rows)
{
    int per_processor = 1, shared = static_cast<int>(plan.shared);
    if (shared > 16 << 10) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, kernel, plan.threads, plan.shared);
    if (per_processor < 1) per_processor = 1; /* the launch reports the error */
    int64_t max = static_cast<int64_t>(per_processor) * nbl__call_cuda(call)->multiprocessors,
            needed = ceil_div(rows, plan.sets);
    if (max > NORM_MAX_BLOCKS) max = NORM_MAX_BLOCKS;
    return static_cast<unsigned>(needed < max ? needed : max);
}

/* Returns the number of blocks. */
template <typename KERNEL>
static inline unsigned launch_norm(const nbl__call *call, KERNEL kernel, const norm_plan &plan,
                                   const norm_call &a)
{
    unsigned blocks = blocks_for(call, kernel, plan, a.rows);
    if (blocks > 0) kernel<<<blocks, plan.threads, plan.shared, stream_of(call)>>>(a);
    return blocks;
}

template <bool CENTER, bool RESIDUAL>
static inline void launch_forward(const nbl__call *call, nbl_dtype dtype, const norm_plan &plan,
                                  const norm_call &a)
{
    NBL_BY_DTYPE(dtype, T,
                 launch_dependent(norm_rows<T, CENTER, RESIDUAL>,
                              dim3(blocks_for(call, norm_rows<T, CENTER, RESIDUAL>, plan, a.rows)),
                              static_cast<unsigned>(plan.threads), plan.shared, 1, stream_of(call), a));
}

template <bool CENTER>
static inline nbl_status norm_forward(const nbl__call *call, nbl_dtype dtype, norm_call a)
{
    norm_plan plan = plan_of(a, dtype);
    if (a.rows == 0 || a.columns == 0) return NBL_OK;
    a.per_row = plan.per_row;
    if (plan.per_row == 0) NBL_BY_DTYPE(dtype, T, launch_norm(call, norm_rows_slow<T, CENTER>, plan, a));
    else if (a.residual) launch_forward<CENTER, !CENTER>(call, dtype, plan, a); /* layernorm has no residual */
    else launch_forward<CENTER, false>(call, dtype, plan, a);
    return launched(call);
}

template <bool CENTER, bool RESIDUAL>
static inline unsigned launch_backward(const nbl__call *call, nbl_dtype dtype, const norm_plan &plan,
                                       const norm_call &a)
{
    bool sums = a.partial_w || a.partial_b;
    if (sums)
        NBL_BY_DTYPE(dtype, T,
                     return launch_norm(call, (norm_rows_backward<T, CENTER, RESIDUAL, true>), plan, a));
    NBL_BY_DTYPE(dtype, T,
                 return launch_norm(call, (norm_rows_backward<T, CENTER, RESIDUAL, false>), plan, a));
}

/* dw and db may be NULL. Two launches if one of them is wanted: the rows, then norm_fold. */
template <bool CENTER>
static inline nbl_status norm_backward(const nbl__call *call, nbl_dtype dtype, norm_call a, float *dw,
                                       float *db, bool accumulate)
{
    norm_plan plan = plan_of(a, dtype);
    bool sums = dw || db;
    unsigned blocks = 0;
    if (a.columns == 0 || (!sums && a.dx == nullptr)) return NBL_OK;
    nbl__bump bump = {call->scratch, 0};
    size_t bytes = sums_bytes(a.rows, a.columns);
    if (dw) a.partial_w = static_cast<float *>(nbl__bump_alloc(&bump, bytes));
    if (db) a.partial_b = static_cast<float *>(nbl__bump_alloc(&bump, bytes));
    a.per_row = plan.per_row;
    if (plan.per_row == 0)
        NBL_BY_DTYPE(dtype, T, blocks = launch_norm(call, norm_rows_backward_slow<T, CENTER>, plan, a));
    else if (a.residual) blocks = launch_backward<CENTER, !CENTER>(call, dtype, plan, a);
    else blocks = launch_backward<CENTER, false>(call, dtype, plan, a);
    dim3 fold(static_cast<unsigned>(ceil_div(a.columns, FOLD_COLUMNS)), db ? 2 : 1);
    if (sums)
        norm_fold<<<fold, dim3(FOLD_COLUMNS, FOLD_LANES), 0, stream_of(call)>>>(
            a.partial_w, a.partial_b, dw, db, blocks, a.columns, a.scale, accumulate);
    return launched(call);
}

} // namespace nbl_cuda
#endif
