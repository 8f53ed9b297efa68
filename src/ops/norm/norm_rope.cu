/* norm_rope.cu - norm_rope and norm_rope_backward. See norm_rope.h.
 *
 *     each group of threads (half a head / 16 bytes of them, in one warp): EACH heads of a token
 *         load the heads                       a thread has 16 bytes of both halves of a head
 *         sum of squares over the group        shuffles within the warp
 *         normalize, rotate, store             rotation needs only the thread's own pairs
 *
 * All heads are loaded before the first is summed. Cosines, sines and weights are loaded once for all of them. Heads of
 * other shapes and unaligned tensors use a warp per head, one element at a time. Bytes: x and y once; backward x, dy and dx
 * once. Limit: memory bandwidth. */
#include "ops/common/load.cuh"

extern "C" {
#include "ops/families.h"
#include "ops/norm/norm_rope.h"
#include "ops/norm/rmsnorm.h"
}

using namespace nbl_cuda;

namespace
{

/* EACH, EACH_BACKWARD: heads per group of threads, all loaded at once. */
enum { THREADS = 256, EACH = 4, EACH_BACKWARD = 2 };

/* The argument of both kernels: tokens x count heads of `columns` elements, of which 2 · half
 * rotate. */
struct heads {
    const void *x, *dy; /* dy: backward */
    void *to;
    const float *cosines, *sines; /* [tokens, half] */
    const void *w;
    nbl_dtype w_dtype;
    int64_t tokens;
    int count, columns, half;
    float eps, offset;
    bool round_first;
};

/* Elements i … i + N - 1 of both halves of a head. */
template <int N> struct halves {
    float left[N], right[N];
};

/* Converts the loaded 16 bytes of both halves to f32. */
template <typename T, int N>
__device__ inline void open_halves(const uint4 &left, const uint4 &right, halves<N> &to)
{
    unpack<T>(left, to.left);
    unpack<T>(right, to.right);
}

/* Rotates pairs by the angle, or with sign -1 back. */
template <int N>
__device__ inline void rotate(halves<N> &h, const float (&c)[N], const float (&s)[N], float sign)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        float sine = s[j] * sign, rotated = h.left[j] * c[j] - h.right[j] * sine;
        h.right[j] = h.right[j] * c[j] + h.left[j] * sine;
        h.left[j] = rotated;
    }
}

/* Σ a·b over the head. */
template <int N> __device__ inline float dot(const halves<N> &a, const halves<N> &b, int lanes)
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < N; j++) {
        sum = fmaf(a.left[j], b.left[j], sum);
        sum = fmaf(a.right[j], b.right[j], sum);
    }
    for (int i = lanes / 2; i > 0; i /= 2) sum += __shfl_xor_sync(WARP, sum, i);
    return sum;
}

/* h = h · scale · w, with a rounding to T before w if the model does that. w includes the
 * offset. */
template <typename T, int N>
__device__ inline void normalize(const heads &a, halves<N> &h, const halves<N> &w, float scale)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        h.left[j] *= scale;
        h.right[j] *= scale;
        if (a.round_first) {
            h.left[j] = to_f32(from_f32<T>(h.left[j]));
            h.right[j] = to_f32(from_f32<T>(h.right[j]));
        }
        h.left[j] *= w.left[j];
        h.right[j] *= w.right[j];
    }
}

/* Forward: y = rotate(norm(x)). Backward, with g = rotate⁻¹(dy)·w and s = 1 / rms(x):
 *
 *     dx = s·g - x·s³·mean(g·x)
 *
 * `lanes` threads (a power of two up to 32) have a group of COUNT heads of one token. Needs rotary
 * = head dimension, and all tensors aligned to 16 bytes. There is no gradient of w here: the
 * operator is used with frozen weights. */
template <typename T, bool BACKWARD> __global__ void __launch_bounds__(THREADS) head_kernel(heads a)
{
    constexpr int N = pack<T>::COUNT, COUNT = BACKWARD ? int{EACH_BACKWARD} : int{EACH};
    int lanes = a.half / N, groups = (a.count + COUNT - 1) / COUNT;
    int64_t thread = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, group = thread / lanes;
    int64_t token = group / groups;
    int i = static_cast<int>(thread % lanes) * N, first = static_cast<int>(group % groups) * COUNT;
    bool inside = token < a.tokens; /* the other threads take part in the shuffles */
    uint4 x[COUNT][2] = {}, dy[COUNT][2] = {};
    float c[N] = {}, s[N] = {};
    halves<N> w = {};
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        if (!inside || first + k >= a.count) continue;
        int64_t at = (token * a.count + first + k) * a.columns + i;
        const T *from = static_cast<const T *>(a.x) + at, *gradient = static_cast<const T *>(a.dy) + at;
        x[k][0] = *reinterpret_cast<const uint4 *>(from);
        x[k][1] = *reinterpret_cast<const uint4 *>(from + a.half);
        if (!BACKWARD) continue;
        dy[k][0] = *reinterpret_cast<const uint4 *>(gradient);
        dy[k][1] = *reinterpret_cast<const uint4 *>(gradient + a.half);
    }
    if (inside) {
        load_run<float, N>(a.cosines + token * a.half + i, c);
        load_run<float, N>(a.sines + token * a.half + i, s);
        load_any<N>(a.w, a.w_dtype, i, w.left);
        load_any<N>(a.w, a.w_dtype, a.half + i, w.right);
    }
#pragma unroll
    for (int j = 0; j < N; j++) w.left[j] += a.offset, w.right[j] += a.offset;
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        halves<N> h, g;
        open_halves<T, N>(x[k][0], x[k][1], h);
        float n = static_cast<float>(a.columns), scale = 1 / sqrtf(dot(h, h, lanes) / n + a.eps);
        if (BACKWARD) {
            open_halves<T, N>(dy[k][0], dy[k][1], g);
            rotate(g, c, s, -1);
#pragma unroll
            for (int j = 0; j < N; j++) g.left[j] *= w.left[j], g.right[j] *= w.right[j];
            float pull = scale * (scale * (scale * (dot(g, h, lanes) / n)));
#pragma unroll
            for (int j = 0; j < N; j++) {
                h.left[j] = fmaf(-h.left[j], pull, scale * g.left[j]);
                h.right[j] = fmaf(-h.right[j], pull, scale * g.right[j]);
            }
        } else {
            normalize<T>(a, h, w, scale);
            rotate(h, c, s, 1);
        }
        if (!inside || first + k >= a.count) continue;
        T *to = static_cast<T *>(a.to) + (token * a.count + first + k) * a.columns + i;
        *reinterpret_cast<uint4 *>(to) = packed_up<T>(h.left);
        *reinterpret_cast<uint4 *>(to + a.half) = packed_up<T>(h.right);
    }
}

/* ---- any shape: a warp per head ---- */

/* The value that is rotated: element k of the norm's result. BACKWARD: element k of dy. */
template <typename T, bool BACKWARD>
__device__ inline float before_rotation(const heads &a, int64_t row, int k, float scale)
{
    if (BACKWARD) return to_f32(static_cast<const T *>(a.dy)[row * a.columns + k]);
    float n = to_f32(static_cast<const T *>(a.x)[row * a.columns + k]) * scale;
    if (a.round_first) n = to_f32(from_f32<T>(n));
    return n * (load_one(a.w, a.w_dtype, k) + a.offset);
}

/* Element k after the rotation; BACKWARD: element k of dy, rotated back, times w. Columns past 2 ·
 * half stay. */
template <typename T, bool BACKWARD>
__device__ inline float rotated(const heads &a, int64_t row, int k, float scale)
{
    float value = before_rotation<T, BACKWARD>(a, row, k, scale), weight = 1;
    if (BACKWARD) weight = load_one(a.w, a.w_dtype, k) + a.offset;
    if (k >= 2 * a.half) return value * weight;
    bool left = k < a.half;
    int i = left ? k : k - a.half;
    int64_t index = row / a.count * a.half + i;
    float other = before_rotation<T, BACKWARD>(a, row, left ? k + a.half : i, scale), c = a.cosines[index],
          s = BACKWARD ? -a.sines[index] : a.sines[index];
    return (left ? value * c - other * s : value * c + other * s) * weight;
}

/* The same formulas, a warp per head, lanes at every 32nd column. Reads elements again instead of
 * keeping them. */
template <typename T, bool BACKWARD> __global__ void __launch_bounds__(THREADS) slow_kernel(heads a)
{
    int64_t row = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) / 32;
    if (row >= a.tokens * a.count) return;
    const T *x = static_cast<const T *>(a.x) + row * a.columns;
    T *to = static_cast<T *>(a.to) + row * a.columns;
    float n = static_cast<float>(a.columns), squares = 0, sum = 0;
    for (int k = threadIdx.x % 32; k < a.columns; k += 32)
        squares = fmaf(to_f32(x[k]), to_f32(x[k]), squares);
    float scale = 1 / sqrtf(warp_sum(squares) / n + a.eps);
    for (int k = threadIdx.x % 32; BACKWARD && k < a.columns; k += 32)
        sum = fmaf(rotated<T, BACKWARD>(a, row, k, scale), to_f32(x[k]), sum);
    float pull = BACKWARD ? scale * (scale * (scale * (warp_sum(sum) / n))) : 0;
    for (int k = threadIdx.x % 32; k < a.columns; k += 32) {
        float value = rotated<T, BACKWARD>(a, row, k, scale);
        to[k] = from_f32<T>(BACKWARD ? fmaf(-to_f32(x[k]), pull, scale * value) : value);
    }
}

/* ---- host ---- */

template <bool BACKWARD> nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__norm_rope *a = static_cast<const nbl__norm_rope *>(arguments);
    const nbl_tensor *to = BACKWARD ? &a->dx : &a->y;
    int64_t count = a->x.shape[a->x.rank - 2], rows = nbl__tensor_rows(&a->x),
            size = a->dtype == NBL_DTYPE_F32 ? 4 : 8;
    heads h = {};
    h.x = a->x.data;
    h.dy = BACKWARD ? a->dy.data : nullptr;
    h.to = to->data;
    h.cosines = static_cast<const float *>(a->cos.data);
    h.sines = static_cast<const float *>(a->sin.data);
    h.w = a->w.data;
    h.w_dtype = a->w.dtype;
    h.tokens = count > 0 ? rows / count : 0;
    h.count = static_cast<int>(count);
    h.columns = static_cast<int>(nbl__last(&a->x));
    h.half = static_cast<int>(a->cos.shape[1]);
    h.eps = a->eps;
    h.offset = a->offset;
    h.round_first = a->round == NBL_ROUND_BEFORE_WEIGHT;
    if (!nbl__has_data(to) || h.tokens == 0) return NBL_OK;
    int64_t lanes = h.half / size, each = BACKWARD ? EACH_BACKWARD : EACH;
    const void *all[] = {h.x, h.dy, h.to, h.cosines, h.sines, h.w};
    bool fast = 2 * h.half == h.columns && h.half % size == 0 && lanes <= 32 && (lanes & (lanes - 1)) == 0;
    for (const void *p : all) fast = fast && is_aligned(p, 16);
    int64_t threads = fast ? h.tokens * ceil_div(count, each) * lanes : rows * 32;
    unsigned blocks = static_cast<unsigned>(ceil_div(threads, THREADS));
    if (fast)
        NBL_BY_DTYPE(a->dtype, T, (head_kernel<T, BACKWARD><<<blocks, THREADS, 0, stream_of(call)>>>(h)));
    else NBL_BY_DTYPE(a->dtype, T, (slow_kernel<T, BACKWARD><<<blocks, THREADS, 0, stream_of(call)>>>(h)));
    return launched(call);
}

template <bool BACKWARD> const char *can(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    const nbl__norm_rope *a = static_cast<const nbl__norm_rope *>(arguments);
    const char *why = nbl__dense_only(&nbl__norm_rope_family, BACKWARD, arguments);
    if (why) return why;
    return a->x.shape[a->x.rank - 2] * nbl__last(&a->x) > INT32_MAX ? "a token has more than 2^31 elements"
                                                                    : nullptr;
}

} // namespace

extern "C" {
const nbl__impl nbl__norm_rope_cuda = {.name = "norm_rope_cuda",
                                       .needs = NBL_ISA_SCALAR,
                                       .can = can<false>,
                                       .scratch = nullptr,
                                       .run = run<false>};
const nbl__impl nbl__norm_rope_backward_cuda = {.name = "norm_rope_backward_cuda",
                                                .needs = NBL_ISA_SCALAR,
                                                .can = can<true>,
                                                .scratch = nullptr,
                                                .run = run<true>};
}
