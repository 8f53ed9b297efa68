/* gate.cu - sigmoid_gate and split_heads. See sigmoid_gate.h and split_heads.h.
 *
 * A block per row; neighbouring threads have neighbouring elements. Bytes: each input once, each output once. Limit:
 * memory. */
#include "ops/common/load.cuh"

extern "C" {
#include "ops/gate/sigmoid_gate.h"
#include "ops/gate/split_heads.h"
}

using namespace nbl_cuda;

namespace
{

enum { THREADS = 256 };

/* A tensor's rows; data NULL: it is not there. */
template <typename T> struct rows_of {
    T *data;
    int64_t step;
    __device__ T *at(int64_t row) const
    {
        return data + row * step;
    }
};
template <typename T> rows_of<T> rows(const nbl_tensor *t)
{
    return {static_cast<T *>(t->data), nbl__row_stride(t)};
}

__device__ inline float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    gate_kernel(rows_of<T> x, rows_of<T> gate, rows_of<T> y, int64_t columns, bool one)
{
    for (int64_t i = threadIdx.x; i < columns; i += THREADS) {
        float s = sigmoid(to_f32(gate.at(blockIdx.x)[one ? 0 : i]));
        y.at(blockIdx.x)[i] = from_f32<T>(to_f32(x.at(blockIdx.x)[i]) * s);
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    gate_backward_kernel(rows_of<T> x, rows_of<T> gate, rows_of<T> dy, rows_of<T> dx, rows_of<T> dgate,
                         int64_t columns, bool one)
{
    float sum[1] = {0};
    for (int64_t i = threadIdx.x; i < columns; i += THREADS) {
        float g = to_f32(gate.at(blockIdx.x)[one ? 0 : i]), s = sigmoid(g), d = to_f32(dy.at(blockIdx.x)[i]);
        float slope = d * to_f32(x.at(blockIdx.x)[i]) * s * sigmoid(-g);
        if (dx.data) dx.at(blockIdx.x)[i] = from_f32<T>(d * s);
        if (one) sum[0] += slope;
        else if (dgate.data) dgate.at(blockIdx.x)[i] = from_f32<T>(slope);
    }
    if (!one || dgate.data == nullptr) return;
    block_sums<float>(sum);
    if (threadIdx.x == 0) dgate.at(blockIdx.x)[0] = from_f32<T>(sum[0]);
}

nbl_status run_gate(const nbl__call *call, const void *arguments)
{
    const nbl__sigmoid_gate *a = static_cast<const nbl__sigmoid_gate *>(arguments);
    unsigned blocks = static_cast<unsigned>(a->x.shape[0]);
    if (blocks == 0 || a->x.shape[1] == 0) return NBL_OK;
    NBL_BY_DTYPE(a->dtype, T,
                 (gate_kernel<T><<<blocks, THREADS, 0, stream_of(call)>>>(rows<T>(&a->x), rows<T>(&a->gate),
                                                                          rows<T>(&a->y), a->x.shape[1],
                                                                          a->gate.shape[1] == 1)));
    return launched(call);
}

nbl_status run_gate_backward(const nbl__call *call, const void *arguments)
{
    const nbl__sigmoid_gate *a = static_cast<const nbl__sigmoid_gate *>(arguments);
    unsigned blocks = static_cast<unsigned>(a->x.shape[0]);
    if (blocks == 0 || a->x.shape[1] == 0) return NBL_OK;
    NBL_BY_DTYPE(a->dtype, T,
                 (gate_backward_kernel<T><<<blocks, THREADS, 0, stream_of(call)>>>(
                     rows<T>(&a->x), rows<T>(&a->gate), rows<T>(&a->dy), rows<T>(&a->dx), rows<T>(&a->dgate),
                     a->x.shape[1], a->gate.shape[1] == 1)));
    return launched(call);
}

/* ---- heads ---- */

struct heads_of {
    int64_t heads, width, widths[NBL_SPLIT_PARTS], front; /* of a head; front: the widths' sum */
};

/* Copies a row of x to its parts, or the parts to x. */
template <typename T, bool BACKWARD>
__global__ void __launch_bounds__(THREADS)
    split_kernel(heads_of h, rows_of<T> x, rows_of<T> front, rows_of<T> rest)
{
    for (int64_t i = threadIdx.x; i < h.heads * h.width; i += THREADS) {
        int64_t head = i / h.width, column = i % h.width, before = 0;
        T *part = rest.at(blockIdx.x) + head * (h.width - h.front) + column - h.front;
        for (int k = 0; k < NBL_SPLIT_PARTS && column < h.front; k++) {
            if (column >= before && column < before + h.widths[k])
                part = front.at(blockIdx.x) + h.heads * before + head * h.widths[k] + column - before;
            before += h.widths[k];
        }
        if (BACKWARD) x.at(blockIdx.x)[i] = *part;
        else *part = x.at(blockIdx.x)[i];
    }
}

template <bool BACKWARD>
nbl_status split(const nbl__call *call, const nbl__split_heads *a, const nbl_tensor *x,
                 const nbl_tensor *front, const nbl_tensor *rest)
{
    heads_of h = {a->heads, a->x.shape[1] / a->heads, {}, 0};
    unsigned blocks = static_cast<unsigned>(a->x.shape[0]);
    if (blocks == 0 || !nbl__has_data(x)) return NBL_OK;
    for (int i = 0; i < NBL_SPLIT_PARTS; i++) h.widths[i] = a->widths[i], h.front += a->widths[i];
    if (nbl__size_of(a->dtype) == 4)
        split_kernel<uint32_t, BACKWARD><<<blocks, THREADS, 0, stream_of(call)>>>(
            h, rows<uint32_t>(x), rows<uint32_t>(front), rows<uint32_t>(rest));
    else
        split_kernel<uint16_t, BACKWARD><<<blocks, THREADS, 0, stream_of(call)>>>(
            h, rows<uint16_t>(x), rows<uint16_t>(front), rows<uint16_t>(rest));
    return launched(call);
}

nbl_status run_split(const nbl__call *call, const void *arguments)
{
    const nbl__split_heads *a = static_cast<const nbl__split_heads *>(arguments);
    return split<false>(call, a, &a->x, &a->front, &a->rest);
}

nbl_status run_split_backward(const nbl__call *call, const void *arguments)
{
    const nbl__split_heads *a = static_cast<const nbl__split_heads *>(arguments);
    return split<true>(call, a, &a->dx, &a->dfront, &a->drest);
}

} // namespace

extern "C" {
const nbl__impl nbl__sigmoid_gate_cuda = {"sigmoid_gate_cuda", NBL_ISA_SCALAR, NULL, NULL, run_gate};
const nbl__impl nbl__sigmoid_gate_backward_cuda = {"sigmoid_gate_backward_cuda", NBL_ISA_SCALAR, NULL, NULL,
                                                   run_gate_backward};
const nbl__impl nbl__split_heads_cuda = {"split_heads_cuda", NBL_ISA_SCALAR, NULL, NULL, run_split};
const nbl__impl nbl__split_heads_backward_cuda = {"split_heads_backward_cuda", NBL_ISA_SCALAR, NULL, NULL,
                                                  run_split_backward};
}
