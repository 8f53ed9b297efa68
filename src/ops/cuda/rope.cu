/* rope.cu - rope_table, rope and rope_backward. See rope.h.
 *
 * rope_table  a thread makes one cosine and one sine, in f64 from the exact product: a step has few of them.
 * rope        a thread turns 16 bytes of both halves of a head, in two tokens at a time. Cosines and sines come
 *             from the table, which the cache holds, or are made as above once per token, in shared memory.
 *             Bound by memory: x once, y once, and 8·rotary/2 bytes per token for the table. y may lie on
 *             x. */
#include <type_traits>

#include "ops/cuda/load.cuh"

extern "C" {
#include "ops/rope.h"
}

using namespace nbl_cuda;

namespace
{

enum { MOST_FREQUENCIES = 512, THREADS = 256, EACH = 2 };

/* By value in the parameters of a kernel. */
struct frequencies {
    int half;
    float scaling, at[MOST_FREQUENCIES];
};

frequencies frequencies_of(const nbl__rope *rope, int64_t half)
{
    frequencies f = {};
    f.half = static_cast<int>(half);
    nbl__rope_frequencies(rope, 2 * half, f.at, &f.scaling);
    return f;
}

__device__ inline void turn_of(const frequencies &f, int position, int i, float *cosine, float *sine)
{
    double s, c, angle = static_cast<double>(position) * static_cast<double>(f.at[i]);
    sincos(angle, &s, &c);
    *cosine = static_cast<float>(c * static_cast<double>(f.scaling));
    *sine = static_cast<float>(s * static_cast<double>(f.scaling));
}

__global__ void __launch_bounds__(THREADS)
    table_kernel(const __grid_constant__ frequencies f, const int32_t *positions, int64_t count,
                 float *cosines, float *sines)
{
    int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    float c, s;
    if (at >= count) return;
    turn_of(f, positions[at / f.half], static_cast<int>(at % f.half), &c, &s);
    if (cosines) cosines[at] = c;
    if (sines) sines[at] = s;
}

nbl_status run_table(const nbl__call *call, const void *arguments)
{
    const nbl__rope_table *a = static_cast<const nbl__rope_table *>(arguments);
    int64_t half = a->rope.rotary_dim / 2, count = nbl__tensor_elements(&a->positions) * half;
    if (count == 0) return NBL_OK;
    table_kernel<<<static_cast<unsigned>(ceil_div(count, THREADS)), THREADS, 0, stream_of(call)>>>(
        frequencies_of(&a->rope, half), static_cast<const int32_t *>(a->positions.data), count,
        static_cast<float *>(a->cos.data), static_cast<float *>(a->sin.data));
    return launched(call);
}

const char *can_table(const void *arguments)
{
    const nbl__rope_table *a = static_cast<const nbl__rope_table *>(arguments);
    return a->rope.rotary_dim / 2 > MOST_FREQUENCIES ? "rotary_dim is above 1024" : nullptr;
}

/* ---- rope ---- */

struct turn {
    const void *from;
    void *to;
    const float *cosines, *sines; /* [tokens, half]; NULL: from positions */
    const int32_t *positions;
    int heads, columns, half;
    int64_t tokens;
    float sign; /* -1: back */
};

/* N elements of both halves of a head, or of what does not turn: a thread's share of a token. They stay as they were
 * loaded, 16 bytes or one element, until they are turned. */
template <typename T, int N> struct piece {
    using raw = std::conditional_t<N == 1, T, uint4>;
    raw left, right;
    __device__ void load(const turn &a, int64_t token, int head, int i, bool turns)
    {
        const T *x = static_cast<const T *>(a.from) + (token * a.heads + head) * a.columns + i;
        left = *reinterpret_cast<const raw *>(x + (turns ? 0 : a.half));
        if (turns) right = *reinterpret_cast<const raw *>(x + a.half);
    }
    __device__ void store(const turn &a, int64_t token, int head, int i, bool turns) const
    {
        T *y = static_cast<T *>(a.to) + (token * a.heads + head) * a.columns + i;
        *reinterpret_cast<raw *>(y + (turns ? 0 : a.half)) = left;
        if (turns) *reinterpret_cast<raw *>(y + a.half) = right;
    }
    static __device__ void open(const raw &from, float (&to)[N])
    {
        if constexpr (N == 1) to[0] = to_f32(from);
        else unpack<T>(from, to);
    }
    static __device__ raw close(const float (&from)[N])
    {
        if constexpr (N == 1) return from_f32<T>(from[0]);
        else return packed_up<T>(from);
    }
    __device__ void rotate(const float (&c)[N], const float (&s)[N], float sign)
    {
        float x[N], y[N];
        open(left, x);
        open(right, y);
#pragma unroll
        for (int j = 0; j < N; j++) {
            float sine = s[j] * sign, turned = x[j] * c[j] - y[j] * sine;
            y[j] = y[j] * c[j] + x[j] * sine;
            x[j] = turned;
        }
        left = close(x);
        right = close(y);
    }
};

/* Threads of a block: pieces of a token times tokens. Each has EACH tokens, all of which it loads before it stores the
 * first. */
template <typename T, int N> __global__ void __launch_bounds__(THREADS) turn_by_table(turn a)
{
    int lanes = a.half / N, work = lanes + (a.columns - 2 * a.half) / N;
    int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y) * EACH;
    for (int item = threadIdx.x; item < a.heads * work; item += blockDim.x) {
        int head = item / work, i = item % work * N;
        bool turns = i < a.half;
        piece<T, N> pieces[EACH];
        float c[EACH][N], s[EACH][N];
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            int64_t token = first + k;
            if (token >= a.tokens) break;
            pieces[k].load(a, token, head, i, turns);
            if (!turns) continue;
            load_run<float, N>(a.cosines + token * a.half + i, c[k]);
            load_run<float, N>(a.sines + token * a.half + i, s[k]);
        }
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            if (first + k >= a.tokens) break;
            if (turns) pieces[k].rotate(c[k], s[k], a.sign);
            pieces[k].store(a, first + k, head, i, turns);
        }
    }
}

/* A block makes the cosines and sines of its token once. */
template <typename T, int N>
__global__ void __launch_bounds__(THREADS) turn_by_position(turn a, const __grid_constant__ frequencies f)
{
    extern __shared__ __align__(16) float turns_of[];
    float *cosines = turns_of, *sines = turns_of + a.half;
    int lanes = a.half / N, work = lanes + (a.columns - 2 * a.half) / N;
    for (int i = threadIdx.x; i < a.half; i += blockDim.x)
        turn_of(f, a.positions[blockIdx.x], i, &cosines[i], &sines[i]);
    __syncthreads();
    for (int item = threadIdx.x; item < a.heads * work; item += blockDim.x) {
        int head = item / work, i = item % work * N;
        bool turns = i < a.half;
        piece<T, N> it;
        float c[N], s[N];
        it.load(a, blockIdx.x, head, i, turns);
        if (turns) {
            load_run<float, N>(cosines + i, c);
            load_run<float, N>(sines + i, s);
            it.rotate(c, s, a.sign);
        }
        it.store(a, blockIdx.x, head, i, turns);
    }
}

template <typename T, int N> void launch(const nbl__call *call, const turn &a, const nbl__rope *rope)
{
    int64_t work = static_cast<int64_t>(a.heads) * (a.columns - a.half) / N;
    unsigned threads = static_cast<unsigned>(work >= THREADS ? int64_t{THREADS} : ceil_div(work, 32) * 32);
    if (a.cosines) {
        dim3 block(threads, THREADS / threads);
        unsigned blocks = static_cast<unsigned>(ceil_div(a.tokens, static_cast<int64_t>(block.y) * EACH));
        turn_by_table<T, N><<<blocks, block, 0, stream_of(call)>>>(a);
        return;
    }
    size_t shared = 2 * static_cast<size_t>(a.half) * sizeof(float);
    turn_by_position<T, N><<<static_cast<unsigned>(a.tokens), threads, shared, stream_of(call)>>>(
        a, frequencies_of(rope, a.half));
}

nbl_status rotate(const nbl__call *call, const nbl__rope_apply *a, const nbl_tensor *from,
                  const nbl_tensor *to, float sign)
{
    int64_t columns = nbl__last(&a->x), half = nbl__rope_dim(&a->rope, columns) / 2;
    int64_t heads = a->x.shape[a->x.rank - 2], count = a->dtype == NBL_DTYPE_F32 ? 4 : 8;
    turn t = {from->data,
              to->data,
              static_cast<const float *>(a->cos.data),
              static_cast<const float *>(a->sin.data),
              static_cast<const int32_t *>(a->positions.data),
              static_cast<int>(heads),
              static_cast<int>(columns),
              static_cast<int>(half),
              heads > 0 ? nbl__tensor_rows(&a->x) / heads : 0,
              sign};
    if (!nbl__given(to) || t.tokens == 0) return NBL_OK;
    bool fast = half % count == 0 && columns % count == 0 && is_aligned(from->data, 16) &&
                is_aligned(to->data, 16) && is_aligned(t.cosines, 16) && is_aligned(t.sines, 16);
    if (fast) NBL_BY_DTYPE(a->dtype, T, (launch<T, pack<T>::COUNT>(call, t, &a->rope)));
    else NBL_BY_DTYPE(a->dtype, T, (launch<T, 1>(call, t, &a->rope)));
    return launched(call);
}

const char *can_rotate(const void *arguments)
{
    const nbl__rope_apply *a = static_cast<const nbl__rope_apply *>(arguments);
    int64_t half = nbl__rope_dim(&a->rope, nbl__last(&a->x)) / 2;
    if (a->x.shape[a->x.rank - 2] * nbl__last(&a->x) > INT32_MAX)
        return "a token has more than 2^31 elements";
    return half > MOST_FREQUENCIES && !nbl__given(&a->cos) ? "rotary_dim is too large" : nullptr;
}

nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__rope_apply *a = static_cast<const nbl__rope_apply *>(arguments);
    return rotate(call, a, &a->x, &a->y, 1);
}

nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__rope_apply *a = static_cast<const nbl__rope_apply *>(arguments);
    return rotate(call, a, &a->dy, &a->dx, -1);
}

} // namespace

extern "C" {
const nbl__impl nbl__rope_table_cuda = {.name = "rope_table_cuda",
                                        .needs = NBL_ISA_SCALAR,
                                        .can = can_table,
                                        .scratch = nullptr,
                                        .run = run_table};
const nbl__impl nbl__rope_cuda = {
    .name = "rope_cuda", .needs = NBL_ISA_SCALAR, .can = can_rotate, .scratch = nullptr, .run = run_forward};
const nbl__impl nbl__rope_backward_cuda = {.name = "rope_backward_cuda",
                                           .needs = NBL_ISA_SCALAR,
                                           .can = can_rotate,
                                           .scratch = nullptr,
                                           .run = run_backward};
}
