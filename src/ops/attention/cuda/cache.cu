/* cache.cu - kv_write and take_rows on the device: copies of rows, with at most one rounding.
 *
 *     kv_write    cache[rows[i]] = x[i]         take_rows    y[i] = x[rows[i]]
 *
 * A block copies up to 1024 elements of one row: blockIdx.x is i, blockIdx.y the span of the row.
 * Bytes: every row is read once and written once. Limit: memory. A thread moves 8 elements with
 * 16-byte accesses if both sides are aligned and the width is a multiple of 8, else single
 * elements.
 *
 * A row index out of range is reported as a fault, and its row is not copied. */
#include "ops/common/kernel.cuh"

extern "C" {
#include "ops/attention/cache.h"
}

using namespace nbl_cuda;

namespace
{

enum { THREADS = 128, RUN = 8 }; /* RUN: elements per thread */

/* Rounds once. A value that stays in its dtype keeps its bits, also the payload of a NaN. */
template <typename To, typename From> __device__ inline To convert(From x)
{
    if constexpr (std::is_same_v<To, From>) return x;
    else return from_f32<To>(to_f32(x));
}

/* Copies row i of `from` to row rows[i] of `to` (WRITE), or row rows[i] to row i. Both have `width`
 * elements per row. `wide`: every row is aligned to 16 bytes. */
template <typename To, typename From, bool WRITE>
__global__ void move_rows(To *to, const From *from, const int32_t *rows, int64_t limit, int64_t width,
                          bool wide, nbl__cuda_fault *fault)
{
    int64_t i = blockIdx.x, row = rows[i], at = (blockIdx.y * int64_t{THREADS} + threadIdx.x) * RUN;
    if (row < 0 || row >= limit) {
        if (blockIdx.y == 0 && threadIdx.x == 0) report_fault(fault, NBL_CUDA_FAULT_ROW, i, row);
        return;
    }
    if (at >= width) return;
    to += (WRITE ? row : i) * width + at;
    from += (WRITE ? i : row) * width + at;
    if (!wide) {
        for (int e = 0; e < RUN && at + e < width; e++) to[e] = convert<To>(from[e]);
        return;
    }
    struct alignas(16) in {
        From at[RUN];
    } x = *reinterpret_cast<const in *>(from);
    struct alignas(16) out {
        To at[RUN];
    } y;
#pragma unroll
    for (int e = 0; e < RUN; e++) y.at[e] = convert<To>(x.at[e]);
    *reinterpret_cast<out *>(to) = y;
}

/* cache[rows[i]] = x[i], where the rows of x are `stride` elements apart: one element per
 * thread. */
template <typename To, typename From>
__global__ void write_strided_rows(To *to, const From *from, const int32_t *rows, int64_t limit,
                                   int64_t width, int64_t stride, nbl__cuda_fault *fault)
{
    int64_t i = blockIdx.x, row = rows[i], at = blockIdx.y * int64_t{THREADS} + threadIdx.x;
    if (row < 0 || row >= limit) {
        if (blockIdx.y == 0 && threadIdx.x == 0) report_fault(fault, NBL_CUDA_FAULT_ROW, i, row);
        return;
    }
    if (at < width) to[row * width + at] = convert<To>(from[i * stride + at]);
}

template <typename To, typename From>
nbl_status launch_strided(const nbl__call *call, const nbl__kv_write *a, int64_t limit, int64_t width)
{
    if (width == 0) return NBL_OK;
    dim3 grid(static_cast<unsigned>(a->x.shape[0]), static_cast<unsigned>((width + THREADS - 1) / THREADS));
    write_strided_rows<To, From><<<grid, THREADS, 0, stream_of(call)>>>(
        static_cast<To *>(a->cache.data), static_cast<const From *>(a->x.data),
        static_cast<const int32_t *>(a->rows.data), limit, width, nbl__row_stride(&a->x), nbl__call_cuda(call)->fault);
    return launched(call);
}

template <typename To, typename From, bool WRITE>
nbl_status launch(const nbl__call *call, void *to, const void *from, const nbl_tensor *rows, int64_t limit,
                  int64_t width)
{
    int64_t count = rows->shape[0];
    if (count == 0 || width == 0) return NBL_OK;
    bool wide = width % RUN == 0 && is_aligned(to, 16) && is_aligned(from, 16);
    dim3 grid(static_cast<unsigned>(count),
              static_cast<unsigned>((width + THREADS * RUN - 1) / (THREADS * RUN)));
    move_rows<To, From, WRITE><<<grid, THREADS, 0, stream_of(call)>>>(
        static_cast<To *>(to), static_cast<const From *>(from), static_cast<const int32_t *>(rows->data),
        limit, width, wide, nbl__call_cuda(call)->fault);
    return launched(call);
}

nbl_status run_write(const nbl__call *call, const void *arguments)
{
    const nbl__kv_write *a = static_cast<const nbl__kv_write *>(arguments);
    int64_t width = a->x.shape[1] * a->x.shape[2], limit = a->cache.shape[0] * a->cache.shape[1];
    if (nbl__is_strided(&a->x))
        NBL_BY_DTYPE(
            a->cache.dtype, To,
            NBL_BY_DTYPE(a->x.dtype, From, return (launch_strided<To, From>(call, a, limit, width))));
    NBL_BY_DTYPE(a->cache.dtype, To,
                 NBL_BY_DTYPE(a->x.dtype, From,
                              return (launch<To, From, true>(call, a->cache.data, a->x.data, &a->rows, limit,
                                                             width))));
}

nbl_status run_take(const nbl__call *call, const void *arguments)
{
    const nbl__take_rows *a = static_cast<const nbl__take_rows *>(arguments);
    int64_t width = nbl__last(&a->x), limit = nbl__tensor_rows(&a->x);
    NBL_BY_DTYPE(a->x.dtype, T,
                 return (launch<T, T, false>(call, a->y.data, a->x.data, &a->rows, limit, width)));
}

} // namespace

extern "C" {
const nbl__impl nbl__kv_write_cuda = {"kv_write_cuda", NBL_ISA_SCALAR, NULL, NULL, run_write};
const nbl__impl nbl__take_rows_cuda = {"take_rows_cuda", NBL_ISA_SCALAR, NULL, NULL, run_take};
}
