/* argmax.cu - argmax and the first non-finite value of each row.
 *
 * A block per row; each thread has EACH loads of 16 bytes in flight. Among equal maxima the first
 * index wins. NaN is never the maximum. A row without a value above -inf has argmax 0.
 *
 *     thread → warp (shuffles) → block (shared memory, first warp)
 *
 * A dependent launch. Reads x once, from L2 if it was just written. Limit: the latency of one
 * block, for the one row of generation. */
#include "ops/common/dependent_launch.cuh"
#include "ops/common/load.cuh"

extern "C" {
#include "ops/loss/argmax.h"
}

using namespace nbl_cuda;

namespace
{

constexpr int THREADS = 1024, EACH = 8;

/* The maximum of some values, its index (INT32_MAX: none), and the first non-finite index. */
struct found {
    float highest;
    int best, non_finite; /* non_finite: INT32_MAX if all values are finite */
};

/* Combines two sets of values. The result does not depend on the order of calls. */
__device__ inline found join(const found &a, const found &b)
{
    bool other = b.highest > a.highest || (b.highest == a.highest && b.best < a.best);
    return {other ? b.highest : a.highest, other ? b.best : a.best, min(a.non_finite, b.non_finite)};
}
/* Adds value x at index `at`. Only NaN and infinities are not 0 after a product with 0. */
__device__ inline void look_at(found &it, float x, int at)
{
    if (!(x * 0.0f == 0.0f)) it.non_finite = min(it.non_finite, at);
    if (x > it.highest) it.highest = x, it.best = at;
}
__device__ inline found join_warp(found it)
{
    for (int i = 16; i > 0; i /= 2)
        it = join(it, {__shfl_xor_sync(WARP, it.highest, i), __shfl_xor_sync(WARP, it.best, i),
                       __shfl_xor_sync(WARP, it.non_finite, i)});
    return it;
}

/* best[row] and non_finite[row] (-1: none). `wide`: rows are aligned to 16 bytes. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    argmax_kernel(dependent, const void *x, int columns, bool wide, int32_t *best, int32_t *non_finite)
{
    constexpr int N = pack<T>::COUNT;
    __shared__ found warps[THREADS / 32];
    allow_dependent_launch();
    wait_for_previous_kernel();
    const T *row = static_cast<const T *>(x) + static_cast<int64_t>(blockIdx.x) * columns;
    found it = {-INFINITY, INT32_MAX, INT32_MAX};
    int packs = wide ? columns / N : 0;
    for (int first = threadIdx.x; first < packs; first += THREADS * EACH) {
        uint4 all[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (first + i * THREADS < packs)
                all[i] = read_written(reinterpret_cast<const uint4 *>(row) + first + i * THREADS);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (first + i * THREADS >= packs) break;
            float values[N];
            unpack<T>(all[i], values);
#pragma unroll
            for (int e = 0; e < N; e++) look_at(it, values[e], (first + i * THREADS) * N + e);
        }
    }
    for (int i = packs * N + threadIdx.x; i < columns; i += THREADS) look_at(it, to_f32(row[i]), i);
    it = join_warp(it);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = it;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    it = join_warp(warps[threadIdx.x]);
    if (threadIdx.x != 0) return;
    best[blockIdx.x] = it.best == INT32_MAX ? 0 : it.best;
    non_finite[blockIdx.x] = it.non_finite == INT32_MAX ? -1 : it.non_finite;
}

nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__argmax *a = static_cast<const nbl__argmax *>(arguments);
    int64_t columns = nbl__last(&a->x), rows = nbl__tensor_rows(&a->x);
    bool wide = is_aligned(a->x.data, 16) &&
                (rows == 1 || columns * static_cast<int64_t>(nbl__size_of(a->x.dtype)) % 16 == 0);
    if (rows == 0) return NBL_OK;
    NBL_BY_DTYPE(a->x.dtype, T,
                 launch_dependent(argmax_kernel<T>, dim3(static_cast<unsigned>(rows)), THREADS, 0, 1,
                              stream_of(call), a->x.data, static_cast<int>(columns), wide,
                              static_cast<int32_t *>(a->best.data), static_cast<int32_t *>(a->non_finite.data)));
    return launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__argmax_cuda = {"argmax_cuda", NBL_ISA_SCALAR, NULL, NULL, run};
}
