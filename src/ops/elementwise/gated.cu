/* gated.cu - gated and gated_backward. See elementwise.h.
 *
 *     h = act(gate) · up
 *     dgate = dh · up · act'(gate),   dup = dh · act(gate)
 *
 * A thread takes EACH times 16 bytes of every tensor, and issues all loads first. The rest at the
 * end, and tensors that are not aligned, go element by element. If a tensor lies in wider rows, a
 * block takes a row. Bytes: three tensors in forward, five in backward. Limit: memory. */
#include "ops/elementwise/act.cuh"
#include "ops/common/load.cuh"

extern "C" {
#include "ops/elementwise/elementwise.h"
}

using namespace nbl_cuda;

namespace
{

enum { THREADS = 256, EACH = 2 };

/* The tensors of a call; n elements each. */
struct gates {
    const void *gate, *up, *dh;
    void *h, *dgate, *dup; /* dgate and dup may be NULL */
    int64_t n;
    int act; /* nbl__act */
};

/* COUNT runs of N elements, THREADS · N apart. All are loaded before the first is stored, so a
 * result may overwrite an input. */
template <typename T, int ACT, int N, int COUNT, bool BACKWARD>
__device__ void gate_runs(const gates &a, int64_t first)
{
    float gate[COUNT][N], up[COUNT][N], dh[COUNT][N], slope;
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        int64_t i = first + k * THREADS * N;
        load_run<T, N>(static_cast<const T *>(a.gate) + i, gate[k]);
        load_run<T, N>(static_cast<const T *>(a.up) + i, up[k]);
        if (BACKWARD) load_run<T, N>(static_cast<const T *>(a.dh) + i, dh[k]);
    }
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        int64_t i = first + k * THREADS * N;
#pragma unroll
        for (int j = 0; j < N; j++) {
            float value = activation<ACT, sizeof(T) == 2>(gate[k][j], &slope, a.act);
            if (BACKWARD) {
                gate[k][j] = dh[k][j] * up[k][j] * slope;
                up[k][j] = dh[k][j] * value;
            } else up[k][j] *= value;
        }
        if (!BACKWARD) store_run<T, N>(static_cast<T *>(a.h) + i, up[k]);
        if (BACKWARD && a.dgate) store_run<T, N>(static_cast<T *>(a.dgate) + i, gate[k]);
        if (BACKWARD && a.dup) store_run<T, N>(static_cast<T *>(a.dup) + i, up[k]);
    }
}

/* Dense tensors. A block has EACH · THREADS runs; the last block may have less. */
template <typename T, int ACT, int N, bool BACKWARD>
__global__ void __launch_bounds__(THREADS, 3) gate_kernel(gates a)
{
    int64_t first = (static_cast<int64_t>(blockIdx.x) * EACH * THREADS + threadIdx.x) * N;
    if (first + (EACH - 1) * THREADS * N + N <= a.n) {
        gate_runs<T, ACT, N, EACH, BACKWARD>(a, first);
        return;
    }
    for (int k = 0; k < EACH; k++) {
        int64_t i = first + k * THREADS * N, end = i + N < a.n ? i + N : a.n;
        for (; i < end; i++) gate_runs<T, ACT, 1, 1, BACKWARD>(a, i);
    }
}

/* Elements from one row to the next, for tensors in wider rows. */
struct gate_strides {
    int64_t columns, gate, up, dh, h, dgate, dup;
};

/* Tensors in wider rows: a block per row. */
template <typename T, int ACT, int N, bool BACKWARD>
__global__ void __launch_bounds__(THREADS) gate_rows_kernel(gates a, gate_strides s)
{
    int64_t row = blockIdx.x;
    a.gate = static_cast<const T *>(a.gate) + row * s.gate;
    a.up = static_cast<const T *>(a.up) + row * s.up;
    if (BACKWARD) {
        a.dh = static_cast<const T *>(a.dh) + row * s.dh;
        if (a.dgate) a.dgate = static_cast<T *>(a.dgate) + row * s.dgate;
        if (a.dup) a.dup = static_cast<T *>(a.dup) + row * s.dup;
    } else a.h = static_cast<T *>(a.h) + row * s.h;
    for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < s.columns; i += THREADS * N)
        gate_runs<T, ACT, N, 1, BACKWARD>(a, i);
}

/* Chooses runs of 16 bytes, or single elements if a pointer or a stride does not allow them. */
template <typename T, int ACT, bool BACKWARD>
void launch_rows(const nbl__call *call, const gates &a, const gate_strides &s)
{
    const void *all[] = {a.gate, a.up, a.dh, a.h, a.dgate, a.dup};
    const int64_t steps[] = {s.columns, s.gate, s.up, s.dh, s.h, s.dgate, s.dup};
    constexpr int N = pack<T>::COUNT;
    bool good = true;
    for (const void *p : all) good = good && is_aligned(p, 16);
    for (int64_t step : steps) good = good && step % N == 0;
    unsigned blocks = static_cast<unsigned>(a.n / s.columns);
    if (good) gate_rows_kernel<T, ACT, N, BACKWARD><<<blocks, THREADS, 0, stream_of(call)>>>(a, s);
    else gate_rows_kernel<T, ACT, 1, BACKWARD><<<blocks, THREADS, 0, stream_of(call)>>>(a, s);
}

/* The strides of the tensors that a direction uses. False: all are dense, and rows do not matter. */
template <bool BACKWARD> bool find_strides(const nbl__gated *a, gate_strides *s)
{
    const nbl_tensor *all[] = {&a->gate,
                               &a->up,
                               BACKWARD ? &a->dh : &a->gate,
                               BACKWARD ? &a->gate : &a->h,
                               BACKWARD ? &a->dgate : &a->gate,
                               BACKWARD ? &a->dup : &a->gate};
    int64_t *steps[] = {&s->gate, &s->up, &s->dh, &s->h, &s->dgate, &s->dup};
    bool any = false;
    for (int i = 0; i < 6; i++) {
        any = any || nbl__is_strided(all[i]);
        *steps[i] = nbl__row_stride(all[i]);
    }
    s->columns = nbl__row_elements(&a->gate);
    return any;
}

/* The same for dense tensors. */
template <typename T, int ACT, bool BACKWARD> void launch(const nbl__call *call, const gates &a)
{
    const void *all[] = {a.gate, a.up, a.dh, a.h, a.dgate, a.dup};
    constexpr int N = pack<T>::COUNT;
    bool good = true;
    for (const void *p : all) good = good && is_aligned(p, 16);
    unsigned blocks = static_cast<unsigned>(ceil_div(a.n, EACH * THREADS * (good ? N : 1)));
    if (good) gate_kernel<T, ACT, N, BACKWARD><<<blocks, THREADS, 0, stream_of(call)>>>(a);
    else gate_kernel<T, ACT, 1, BACKWARD><<<blocks, THREADS, 0, stream_of(call)>>>(a);
}

/* The operator in one direction. Tensors that the direction does not use stay NULL. */
template <bool BACKWARD> nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__gated *a = static_cast<const nbl__gated *>(arguments);
    gates g = {a->gate.data, a->up.data, BACKWARD ? a->dh.data : nullptr, BACKWARD ? nullptr : a->h.data,
               nullptr,      nullptr,    nbl__tensor_elements(&a->gate), a->act};
    if (BACKWARD) {
        g.dgate = a->dgate.data;
        g.dup = a->dup.data;
    }
    if (g.n == 0 || (BACKWARD && !g.dgate && !g.dup)) return NBL_OK;
    gate_strides s = {};
    if (find_strides<BACKWARD>(a, &s)) {
        if (a->act == NBL_ACT_SILU)
            NBL_BY_DTYPE(a->dtype, T, (launch_rows<T, NBL_ACT_SILU, BACKWARD>(call, g, s)));
        else if (a->act == NBL_ACT_GELU)
            NBL_BY_DTYPE(a->dtype, T, (launch_rows<T, NBL_ACT_GELU, BACKWARD>(call, g, s)));
        else if (a->act == NBL_ACT_GELU_TANH)
            NBL_BY_DTYPE(a->dtype, T, (launch_rows<T, NBL_ACT_GELU_TANH, BACKWARD>(call, g, s)));
        else NBL_BY_DTYPE(a->dtype, T, (launch_rows<T, ACT_RARE, BACKWARD>(call, g, s)));
        return launched(call);
    }
    if (a->act == NBL_ACT_SILU) NBL_BY_DTYPE(a->dtype, T, (launch<T, NBL_ACT_SILU, BACKWARD>(call, g)));
    else if (a->act == NBL_ACT_GELU) NBL_BY_DTYPE(a->dtype, T, (launch<T, NBL_ACT_GELU, BACKWARD>(call, g)));
    else if (a->act == NBL_ACT_GELU_TANH)
        NBL_BY_DTYPE(a->dtype, T, (launch<T, NBL_ACT_GELU_TANH, BACKWARD>(call, g)));
    else NBL_BY_DTYPE(a->dtype, T, (launch<T, ACT_RARE, BACKWARD>(call, g)));
    return launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__gated_cuda = {
    .name = "gated_cuda", .needs = NBL_ISA_SCALAR, .can = nullptr, .scratch = nullptr, .run = run<false>};
const nbl__impl nbl__gated_backward_cuda = {.name = "gated_backward_cuda",
                                            .needs = NBL_ISA_SCALAR,
                                            .can = nullptr,
                                            .scratch = nullptr,
                                            .run = run<true>};
}
