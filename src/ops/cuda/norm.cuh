/* norm.cuh - the rows of rmsnorm and layernorm, forward and backward. Internal to ops/cuda.
 *
 *     c = h - mean (CENTER: layernorm) or h,  s = 1 / √(mean(c²) + eps),  n = c·s,  g = dy·(w + offset)
 *     y  = n·(w + offset) + b
 *     dx = s·g - c·s³·mean(g·c) - s·mean(g) + dresidual,   dw = Σ dy·n,   db = Σ dy     over the rows
 *
 * A set of threads shares a row, up to PACKS times 16 bytes of each tensor in each thread. Short rows share
 * a block, and a warp. There are as many blocks as the device runs at once; each goes from row to row, and
 * the rows ahead are on their way into a ring in shared memory while it sums the one at hand. A thread
 * copies what it will read itself: nobody waits for the ring. So each byte is read once and written once,
 * results may lie on inputs, and memory is busy while threads wait for each other's sums. Rows that are too
 * long or not aligned are read again from the cache, an element at a time (norm_slow.cuh).
 *
 *     ring    [stages][x, residual, dy, dresidual: those that are given][PACKS][threads] of 16 bytes
 *
 * dw and db: each set sums the rows it meets in registers; the sums of the blocks, in scratch, are added by
 * a second kernel in a fixed order. Bound by memory; 4 to 8 % more bytes for dw. */
#ifndef NBL_CUDA_NORM_CUH
#define NBL_CUDA_NORM_CUH

#include "ops/cuda/norm_slow.cuh"

namespace nbl_cuda
{

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

/* ---- the ring ---- */

__device__ inline uint4 *ring_at(const norm_call &a, int stage, int part)
{
    extern __shared__ uint4 norm_ring[];
    return norm_ring + ((stage * a.parts + part) * NORM_PACKS) * blockDim.x + threadIdx.x;
}

/* Behind the row and behind the last row there are zeros. */
template <typename T>
__device__ inline void copy_part(const norm_call &a, const void *from, int64_t row, int lane, int stage,
                                 int &part)
{
    if (from == nullptr) return;
    uint4 *to = ring_at(a, stage, part++);
#pragma unroll
    for (int k = 0; k < NORM_PACKS; k++) {
        int64_t column = static_cast<int64_t>(lane + k * a.per_row) * pack<T>::COUNT;
        bool inside = row < a.rows && column < a.columns;
        const T *address = static_cast<const T *>(from) + (inside ? row * a.columns + column : 0);
        unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(to + k * blockDim.x));
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(address),
                     "r"(inside ? 16 : 0)
                     : "memory");
    }
}

template <typename T> __device__ inline void copy_row(const norm_call &a, int64_t row, int lane, int stage)
{
    int part = 0;
    copy_part<T>(a, a.x, row, lane, stage, part);
    copy_part<T>(a, a.residual, row, lane, stage, part);
    copy_part<T>(a, a.dy, row, lane, stage, part);
    copy_part<T>(a, a.dresidual, row, lane, stage, part);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until all but the rows ahead have arrived. */
__device__ inline void wait_for_row(const norm_call &a)
{
    if (a.stages == 3) asm volatile("cp.async.wait_group 2;" ::: "memory");
    else if (a.stages == 2) asm volatile("cp.async.wait_group 1;" ::: "memory");
    else asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* Goes from row to row: body(row, stage). All sets go round alike: those of a block wait for each other, also for rows that
 * are past the last. */
template <typename T, typename F>
__device__ inline void for_rows(const norm_call &a, const norm_place &at, F body)
{
    int stage = 0;
    for (int ahead = 0; ahead + 1 < a.stages; ahead++)
        copy_row<T>(a, at.slot + ahead * at.slots, at.lane, ahead);
    int64_t row = at.slot;
    for (int64_t left = (a.rows + at.slots - 1) / at.slots; left > 0; left--, row += at.slots) {
        int last = stage == 0 ? a.stages - 1 : stage - 1;
        copy_row<T>(a, row + (a.stages - 1) * at.slots, at.lane, last);
        wait_for_row(a);
        body(row, stage);
        stage = stage + 1 == a.stages ? 0 : stage + 1;
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

__device__ inline void read_part(const norm_call &a, int stage, int part, uint4 (&to)[NORM_PACKS])
{
#pragma unroll
    for (int k = 0; k < NORM_PACKS; k++) to[k] = ring_at(a, stage, part)[k * blockDim.x];
}

/* ---- rows ---- */

/* From here on these are unpacked anew: what was unpacked before the sums would take twice the registers. */
__device__ inline void forget_unpacked(uint4 (&packs)[NORM_PACKS])
{
#pragma unroll
    for (int k = 0; k < NORM_PACKS; k++)
        asm volatile("" : "+r"(packs[k].x), "+r"(packs[k].y), "+r"(packs[k].z), "+r"(packs[k].w));
}

/* h of the row at hand. */
template <typename T> __device__ inline void read_sum(const norm_call &a, int stage, uint4 (&h)[NORM_PACKS])
{
    uint4 further[NORM_PACKS];
    read_part(a, stage, 0, h);
    if (a.residual == nullptr) return;
    read_part(a, stage, 1, further);
#pragma unroll
    for (int k = 0; k < NORM_PACKS; k++) {
        float x[pack<T>::COUNT], residual[pack<T>::COUNT];
        unpack<T>(h[k], x);
        unpack<T>(further[k], residual);
#pragma unroll
        for (int j = 0; j < pack<T>::COUNT; j++) x[j] += residual[j];
        h[k] = packed_up<T>(x);
    }
}

/* Mean of the row: 0 without CENTER. */
template <typename T, bool CENTER>
__device__ inline float mean_of(const norm_call &a, const uint4 (&packs)[NORM_PACKS])
{
    float sum[1] = {0};
#pragma unroll
    for (int k = 0; k < NORM_PACKS && CENTER; k++) {
        float h[pack<T>::COUNT];
        unpack<T>(packs[k], h);
#pragma unroll
        for (int j = 0; j < pack<T>::COUNT; j++) sum[0] += h[j];
    }
    if (CENTER) row_sums(sum, a.per_row);
    return sum[0] / static_cast<float>(a.columns);
}

template <typename T, bool CENTER> __global__ void __launch_bounds__(NORM_THREADS) norm_rows(norm_call a)
{
    constexpr int N = pack<T>::COUNT;
    norm_place at = place_of(a);
    for_rows<T>(a, at, [&](int64_t row, int stage) {
        uint4 packs[NORM_PACKS];
        read_sum<T>(a, stage, packs);
        float mean = mean_of<T, CENTER>(a, packs), squares[1] = {0};
#pragma unroll
        for (int k = 0; k < NORM_PACKS; k++) {
            bool inside = static_cast<int64_t>(at.lane + k * a.per_row) * N < a.columns;
            float h[N];
            unpack<T>(packs[k], h);
#pragma unroll
            for (int j = 0; j < N; j++) {
                float c = h[j] - mean;
                if (!CENTER || inside) squares[0] = fmaf(c, c, squares[0]);
            }
        }
        row_sums(squares, a.per_row);
        float scale = 1 / sqrtf(squares[0] / static_cast<float>(a.columns) + a.eps);
        forget_unpacked(packs);
        if (row >= a.rows) return;
#pragma unroll
        for (int k = 0; k < NORM_PACKS; k++) {
            int64_t column = static_cast<int64_t>(at.lane + k * a.per_row) * N, i = row * a.columns + column;
            if (column >= a.columns) break;
            float w[N], b[N], y[N];
            load_any<N>(a.w, a.w_dtype, column, w);
            if (CENTER && a.bias) load_any<N>(a.bias, a.bias_dtype, column, b);
            if (a.residual) *reinterpret_cast<uint4 *>(static_cast<T *>(a.sum) + i) = packs[k];
            unpack<T>(packs[k], y);
#pragma unroll
            for (int j = 0; j < N; j++) {
                y[j] = (y[j] - mean) * scale;
                if (!CENTER && a.round_first) y[j] = to_f32(from_f32<T>(y[j]));
                y[j] *= w[j] + a.offset;
                if (CENTER && a.bias) y[j] += b[j];
            }
            *reinterpret_cast<uint4 *>(static_cast<T *>(a.y) + i) = packed_up<T>(y);
        }
    });
}

/* Adds the sums of the block's sets in their order, and puts them in the block's place. */
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

/* SUMS: dw or db is wanted. */
template <typename T, bool CENTER, bool SUMS>
__global__ void __launch_bounds__(NORM_THREADS) norm_rows_backward(norm_call a)
{
    constexpr int N = pack<T>::COUNT;
    norm_place at = place_of(a);
    float dw[NORM_PACKS][N] = {}, db[NORM_PACKS][N] = {};
    int dy_part = a.residual ? 2 : 1;
    for_rows<T>(a, at, [&](int64_t row, int stage) {
        uint4 packs[NORM_PACKS], dy_packs[NORM_PACKS];
        read_sum<T>(a, stage, packs);
        read_part(a, stage, dy_part, dy_packs);
        float mean = mean_of<T, CENTER>(a, packs), sums[CENTER ? 3 : 2] = {};
#pragma unroll
        for (int k = 0; k < NORM_PACKS; k++) {
            int64_t column = static_cast<int64_t>(at.lane + k * a.per_row) * N;
            float w[N], h[N], dy[N];
            if (column >= a.columns) break;
            load_any<N>(a.w, a.w_dtype, column, w);
            unpack<T>(packs[k], h);
            unpack<T>(dy_packs[k], dy);
#pragma unroll
            for (int j = 0; j < N; j++) {
                float c = h[j] - mean, g = dy[j] * (w[j] + a.offset);
                sums[0] = fmaf(c, c, sums[0]);
                sums[1] = fmaf(g, c, sums[1]);
                if (CENTER) sums[CENTER ? 2 : 0] += g;
            }
        }
        row_sums(sums, a.per_row);
        float n = static_cast<float>(a.columns), s = 1 / sqrtf(sums[0] / n + a.eps);
        float pull = s * (s * (s * (sums[1] / n))), shift = CENTER ? s * (sums[CENTER ? 2 : 0] / n) : 0;
        forget_unpacked(packs);
        forget_unpacked(dy_packs);
        if (row >= a.rows) return;
#pragma unroll
        for (int k = 0; k < NORM_PACKS; k++) {
            int64_t column = static_cast<int64_t>(at.lane + k * a.per_row) * N;
            float w[N], h[N], dy[N], further[N];
            if (column >= a.columns) break;
            unpack<T>(packs[k], h);
            unpack<T>(dy_packs[k], dy);
#pragma unroll
            for (int j = 0; j < N; j++) {
                if (!SUMS) break;
                dw[k][j] = fmaf(dy[j], (h[j] - mean) * s, dw[k][j]);
                if (CENTER) db[k][j] += dy[j];
            }
            if (a.dx == nullptr) continue;
            load_any<N>(a.w, a.w_dtype, column, w);
            if (a.dresidual) unpack<T>(ring_at(a, stage, dy_part + 1)[k * blockDim.x], further);
#pragma unroll
            for (int j = 0; j < N; j++) {
                float dx = fmaf(-(h[j] - mean), pull, s * (dy[j] * (w[j] + a.offset))) - shift;
                h[j] = a.dresidual ? dx + further[j] : dx;
            }
            *reinterpret_cast<uint4 *>(static_cast<T *>(a.dx) + row * a.columns + column) = packed_up<T>(h);
        }
    });
    if constexpr (SUMS)
        if (a.partial_w) store_sums<N>(a, at.lane, dw, a.partial_w);
    if constexpr (SUMS && CENTER)
        if (a.partial_b) store_sums<N>(a, at.lane, db, a.partial_b);
}

/* ---- on the host ---- */

/* How the rows are dealt out; per_row 0: element by element. */
struct norm_plan {
    int per_row, threads;
    int64_t sets; /* rows that a block works on at a time */
    size_t shared;
};

/* Chooses also the ring's shape. */
static inline norm_plan plan_of(const nbl__call *call, nbl_dtype dtype, norm_call &a)
{
    constexpr int KEPT = 16 << 10; /* for the kernels' own sums */
    int64_t count = dtype == NBL_DTYPE_F32 ? 4 : 8, packs = a.columns / count;
    const void *all[] = {a.x, a.residual, a.sum, a.y, a.dy, a.dresidual, a.dx, a.w, a.bias};
    bool good = a.columns % count == 0 && packs <= NORM_PACKS * NORM_THREADS;
    for (const void *p : all) good = good && is_aligned(p, 16);
    a.per_row = 0;
    if (!good) return {0, NORM_SLOW_THREADS, 1, 0};
    int64_t per_row = 8;
    while (per_row < 32 && per_row * NORM_PACKS < packs) per_row *= 2;
    if (per_row * NORM_PACKS < packs) per_row = ceil_div(ceil_div(packs, NORM_PACKS), 32) * 32;
    int64_t threads = per_row > 32 ? per_row : int64_t{NORM_SHORT_THREADS};
    int most = 48 << 10;
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, call->cuda->index);
    a.per_row = static_cast<int>(per_row);
    a.parts = 1 + (a.residual != nullptr) + (a.dy != nullptr) + (a.dresidual != nullptr);
    int64_t stage = a.parts * NORM_PACKS * threads * 16;
    a.stages = static_cast<int>((most - KEPT) / stage);
    a.stages = a.stages < 1 ? 1 : a.stages > NORM_STAGES ? int{NORM_STAGES} : a.stages;
    return {a.per_row, static_cast<int>(threads), threads / per_row, static_cast<size_t>(a.stages * stage)};
}

/* Bytes of the blocks' sums, as many as there can be for so many rows, whatever the pointers will be. */
static inline size_t sums_bytes(int64_t rows, int64_t columns)
{
    int64_t blocks = rows < NORM_MOST_BLOCKS ? rows : int64_t{NORM_MOST_BLOCKS};
    return static_cast<size_t>(blocks * columns) * sizeof(float);
}

/* As many blocks as run at once, or as there are rows for. */
template <typename KERNEL>
static inline unsigned blocks_for(const nbl__call *call, KERNEL kernel, const norm_plan &plan, int64_t rows)
{
    int per_processor = 1;
    if (plan.shared > 48 << 10)
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(plan.shared));
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, kernel, plan.threads, plan.shared);
    int64_t most = static_cast<int64_t>(per_processor) * call->cuda->multiprocessors,
            needed = ceil_div(rows, plan.sets);
    if (most > NORM_MOST_BLOCKS) most = NORM_MOST_BLOCKS;
    return static_cast<unsigned>(needed < most ? needed : most);
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

template <bool CENTER>
static inline nbl_status norm_forward(const nbl__call *call, nbl_dtype dtype, norm_call a)
{
    norm_plan plan = plan_of(call, dtype, a);
    if (a.rows == 0 || a.columns == 0) return NBL_OK;
    if (plan.per_row == 0) NBL_BY_DTYPE(dtype, T, launch_norm(call, norm_rows_slow<T, CENTER>, plan, a));
    else NBL_BY_DTYPE(dtype, T, launch_norm(call, norm_rows<T, CENTER>, plan, a));
    return launched(call);
}

/* dw and db: NULL when they are not wanted. */
template <bool CENTER>
static inline nbl_status norm_backward(const nbl__call *call, nbl_dtype dtype, norm_call a, float *dw,
                                       float *db, bool accumulate)
{
    norm_plan plan = plan_of(call, dtype, a);
    bool sums = dw || db;
    unsigned blocks = 0;
    if (a.columns == 0 || (!sums && a.dx == nullptr)) return NBL_OK;
    nbl__cut cut = {call->scratch, 0};
    size_t bytes = sums_bytes(a.rows, a.columns);
    if (dw) a.partial_w = static_cast<float *>(nbl__cut_bytes(&cut, bytes));
    if (db) a.partial_b = static_cast<float *>(nbl__cut_bytes(&cut, bytes));
    if (plan.per_row == 0)
        NBL_BY_DTYPE(dtype, T, blocks = launch_norm(call, norm_rows_backward_slow<T, CENTER>, plan, a));
    else if (sums)
        NBL_BY_DTYPE(dtype, T, blocks = launch_norm(call, (norm_rows_backward<T, CENTER, true>), plan, a));
    else NBL_BY_DTYPE(dtype, T, blocks = launch_norm(call, (norm_rows_backward<T, CENTER, false>), plan, a));
    dim3 fold(static_cast<unsigned>(ceil_div(a.columns, FOLD_COLUMNS)), db ? 2 : 1);
    if (sums)
        norm_fold<<<fold, dim3(FOLD_COLUMNS, FOLD_LANES), 0, stream_of(call)>>>(
            a.partial_w, a.partial_b, dw, db, blocks, a.columns, accumulate);
    return launched(call);
}

} // namespace nbl_cuda
#endif
