/* elementwise.cu - add, cast, scale and check_finite. See elementwise.h.
 *
 *     map_kernel      y = f(a, b) for add, cast and scale. A block has 2048 elements
 *     search_kernel   the first non-finite value and their number, per block
 *     join_kernel     the same over all blocks
 *
 * A thread moves 8 elements with 16-byte accesses if the tensors are aligned. Otherwise it moves
 * one element at a time, and neighbouring threads have neighbouring elements. Bytes: each input
 * once, each output once. Limit: memory. */
#include "ops/common/kernel.cuh"

extern "C" {
#include "ops/elementwise/elementwise.h"
}

using namespace nbl_cuda;

namespace
{

enum { THREADS = 256, EACH = 8, SPAN = THREADS * EACH };

/* EACH elements: one access of 16 bytes for 16-bit dtypes, two for f32. */
template <typename T> struct alignas(16) eight {
    T at[EACH];
};

/* The functions f. They compute in f32; map_kernel rounds the result once. */
struct sum_of {
    __device__ float operator()(float a, float b) const
    {
        return a + b;
    }
};
struct first_of {
    __device__ float operator()(float a, float) const
    {
        return a;
    }
};
struct product_with {
    float factor;
    __device__ float operator()(float a, float) const
    {
        return a * factor;
    }
};

/* y = f(a, b) over n elements; b may be NULL. No __restrict__: y may be an input. The last block,
 * and all blocks of tensors that are not aligned, go element by element. */
template <typename X, typename Y, typename F>
__global__ void __launch_bounds__(THREADS)
    map_kernel(const X *a, const X *b, Y *y, int64_t n, bool aligned, F f)
{
    int64_t begin = (int64_t)blockIdx.x * SPAN;
    if (aligned && begin + SPAN <= n) {
        int64_t i = begin + (int64_t)threadIdx.x * EACH;
        eight<X> p = *reinterpret_cast<const eight<X> *>(a + i), q = p;
        eight<Y> r;
        if (b) q = *reinterpret_cast<const eight<X> *>(b + i);
#pragma unroll
        for (int k = 0; k < EACH; k++) r.at[k] = from_f32<Y>(f(to_f32(p.at[k]), to_f32(q.at[k])));
        *reinterpret_cast<eight<Y> *>(y + i) = r;
        return;
    }
    for (int k = 0; k < EACH; k++) {
        int64_t i = begin + k * THREADS + threadIdx.x;
        if (i < n) y[i] = from_f32<Y>(f(to_f32(a[i]), b ? to_f32(b[i]) : 0.0f));
    }
}

/* Launches map_kernel: one block per SPAN elements. */
template <typename X, typename Y, typename F>
nbl_status map(const nbl__call *call, const nbl_tensor *a, const nbl_tensor *b, const nbl_tensor *y, F f)
{
    int64_t n = nbl__tensor_elements(a), blocks = (n + SPAN - 1) / SPAN;
    bool aligned = is_aligned(a->data, 16) && is_aligned(y->data, 16) && (!b || is_aligned(b->data, 16));
    if (n == 0) return NBL_OK;
    map_kernel<X, Y><<<(unsigned)blocks, THREADS, 0, stream_of(call)>>>(
        static_cast<const X *>(a->data), b ? static_cast<const X *>(b->data) : nullptr,
        static_cast<Y *>(y->data), n, aligned, f);
    return launched(call);
}

nbl_status run_add(const nbl__call *call, const void *arguments)
{
    const nbl__add *a = static_cast<const nbl__add *>(arguments);
    NBL_BY_DTYPE(a->dtype, T, return (map<T, T>(call, &a->a, &a->b, &a->y, sum_of())));
}

nbl_status scale(const nbl__call *call, float factor, const nbl_tensor *x, const nbl_tensor *y)
{
    NBL_BY_DTYPE(x->dtype, T, return (map<T, T>(call, x, nullptr, y, product_with{factor})));
}

nbl_status cast(const nbl__call *call, const nbl_tensor *x, const nbl_tensor *y)
{
    NBL_BY_DTYPE(x->dtype, X,
                 NBL_BY_DTYPE(y->dtype, Y, return (map<X, Y>(call, x, nullptr, y, first_of()))));
}

nbl_status run_scale(const nbl__call *call, const void *arguments)
{
    const nbl__scale *a = static_cast<const nbl__scale *>(arguments);
    return scale(call, a->factor, &a->x, &a->y);
}

nbl_status run_cast(const nbl__call *call, const void *arguments)
{
    const nbl__cast *a = static_cast<const nbl__cast *>(arguments);
    return cast(call, &a->x, &a->y);
}

/* Backward of all three is a map of dy to dx. */
nbl_status run_add_backward(const nbl__call *call, const void *arguments)
{
    const nbl__add *a = static_cast<const nbl__add *>(arguments);
    return nbl__has_data(&a->dx) ? cast(call, &a->dy, &a->dx) : NBL_OK;
}

nbl_status run_scale_backward(const nbl__call *call, const void *arguments)
{
    const nbl__scale *a = static_cast<const nbl__scale *>(arguments);
    return nbl__has_data(&a->dx) ? scale(call, a->factor, &a->dy, &a->dx) : NBL_OK;
}

nbl_status run_cast_backward(const nbl__call *call, const void *arguments)
{
    const nbl__cast *a = static_cast<const nbl__cast *>(arguments);
    return nbl__has_data(&a->dx) ? cast(call, &a->dy, &a->dx) : NBL_OK;
}

/* ---- check_finite ---- */

/* MAX_PARTS: blocks, each with one part in scratch. LOADS: of EACH elements in flight per
 * thread. */
enum { MAX_PARTS = 1024, LOADS = 4, SEARCHED = LOADS * SPAN };

struct part {
    long long first, count; /* first: index of the first non-finite value; n: none */
};

/* The parts of two sets of elements together. */
__device__ inline part join(part a, part b)
{
    return {a.first < b.first ? a.first : b.first, a.count + b.count};
}

/* Joins the parts of all threads. Only thread 0 gets the result. */
__device__ inline part join_block(part mine)
{
    __shared__ part of_warp[THREADS / 32];
    for (int i = 16; i > 0; i /= 2)
        mine = join(mine, {__shfl_xor_sync(WARP, mine.first, i), __shfl_xor_sync(WARP, mine.count, i)});
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
    __syncthreads();
    for (int i = 1; threadIdx.x == 0 && i < THREADS / 32; i++) mine = join(mine, of_warp[i]);
    return mine;
}

/* True for NaN and infinities: any other value times zero is zero. */
__device__ inline bool is_odd(float x)
{
    return !(x * 0.0f == 0.0f);
}

/* parts[block] of the spans that the block has: SEARCHED elements at a time, gridDim.x spans apart.
 * The fast path only asks whether any value is non-finite, with one product per element; indices
 * are computed after a hit. */
template <typename T>
__global__ void __launch_bounds__(THREADS) search_kernel(const T *x, int64_t n, bool aligned, part *parts)
{
    part mine = {n, 0};
    for (int64_t begin = (int64_t)blockIdx.x * SEARCHED; begin < n; begin += (int64_t)gridDim.x * SEARCHED) {
        if (aligned && begin + SEARCHED <= n) {
            int64_t at = begin + (int64_t)threadIdx.x * EACH;
            eight<T> p[LOADS];
            bool any = false;
#pragma unroll
            for (int i = 0; i < LOADS; i++) p[i] = *reinterpret_cast<const eight<T> *>(x + at + i * SPAN);
#pragma unroll
            for (int i = 0; i < LOADS * EACH; i++) any |= is_odd(to_f32(p[i / EACH].at[i % EACH]));
            if (!any) continue;
#pragma unroll
            for (int i = 0; i < LOADS * EACH; i++)
                if (is_odd(to_f32(p[i / EACH].at[i % EACH])))
                    mine = join(mine, {at + i / EACH * SPAN + i % EACH, 1});
            continue;
        }
        for (int k = 0; k < LOADS * EACH; k++) {
            int64_t at = begin + k * THREADS + threadIdx.x;
            if (at < n && is_odd(to_f32(x[at]))) mine = join(mine, {at, 1});
        }
    }
    mine = join_block(mine);
    if (threadIdx.x == 0) parts[blockIdx.x] = mine;
}

/* first = index of the first non-finite value (-1: none), found = their number. One block. */
__global__ void __launch_bounds__(THREADS)
    join_kernel(const part *parts, int count, int64_t n, int64_t *first, int64_t *found)
{
    part mine = {n, 0};
    for (int i = threadIdx.x; i < count; i += THREADS) mine = join(mine, parts[i]);
    mine = join_block(mine);
    if (threadIdx.x != 0) return;
    *first = mine.count > 0 ? mine.first : -1;
    *found = mine.count;
}

int parts_of(const nbl__finite *a)
{
    int64_t blocks = (nbl__tensor_elements(&a->x) + SEARCHED - 1) / SEARCHED;
    return blocks < MAX_PARTS ? (int)blocks : MAX_PARTS;
}

size_t finite_scratch(const nbl_context *, const void *arguments)
{
    return (size_t)parts_of(static_cast<const nbl__finite *>(arguments)) * sizeof(part);
}

nbl_status run_finite(const nbl__call *call, const void *arguments)
{
    const nbl__finite *a = static_cast<const nbl__finite *>(arguments);
    part *parts = reinterpret_cast<part *>(call->scratch);
    int64_t n = nbl__tensor_elements(&a->x);
    int count = parts_of(a);
    if (count > 0)
        NBL_BY_DTYPE(a->x.dtype, T,
                     (search_kernel<T><<<count, THREADS, 0, stream_of(call)>>>(
                         static_cast<const T *>(a->x.data), n, is_aligned(a->x.data, 16), parts)));
    join_kernel<<<1, THREADS, 0, stream_of(call)>>>(parts, count, n, static_cast<int64_t *>(a->first.data),
                                                    static_cast<int64_t *>(a->count.data));
    return launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__add_cuda = {"add_cuda", NBL_ISA_SCALAR, nullptr, nullptr, run_add};
const nbl__impl nbl__scale_cuda = {"scale_cuda", NBL_ISA_SCALAR, nullptr, nullptr, run_scale};
const nbl__impl nbl__cast_cuda = {"cast_cuda", NBL_ISA_SCALAR, nullptr, nullptr, run_cast};
const nbl__impl nbl__add_backward_cuda = {"add_backward_cuda", NBL_ISA_SCALAR, nullptr, nullptr,
                                          run_add_backward};
const nbl__impl nbl__scale_backward_cuda = {"scale_backward_cuda", NBL_ISA_SCALAR, nullptr, nullptr,
                                            run_scale_backward};
const nbl__impl nbl__cast_backward_cuda = {"cast_backward_cuda", NBL_ISA_SCALAR, nullptr, nullptr,
                                           run_cast_backward};
const nbl__impl nbl__check_finite_cuda = {"check_finite_cuda", NBL_ISA_SCALAR, nullptr, finite_scratch,
                                          run_finite};
}
