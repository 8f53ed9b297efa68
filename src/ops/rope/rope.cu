/* rope.cu - rope_table, rope and rope_backward. See rope.h.
 *
 *     rope_table   a thread computes one cosine and one sine in f64: tokens · rotary / 2 threads
 *     rope         a block rotates all heads of one token. It puts the token's cosines and sines
 *                  into shared memory, from the table or computed. Then a thread rotates 16 bytes
 *                  of both halves of a head
 *
 * Bytes of rope: x once, y once, and 4 · rotary per token for the table. Limit: memory. y may be x.
 * Backward is the same with negative sines. */
#include "ops/common/load.cuh"

extern "C" {
#include "ops/rope/rope.h"
}

using namespace nbl_cuda;

namespace
{

/* MAX_FREQUENCIES: the parameters of a kernel hold them. MAX_HALF: 32 KiB of shared memory. */
enum { MAX_FREQUENCIES = 512, MAX_HALF = 4096, THREADS = 256 };

/* The frequencies of `half` pairs; passed by value in the parameters of a kernel. */
struct frequencies {
    int half;
    float scaling;
    float query_beta, query_length, query_shift; /* nbl__rope_query_scale(); beta 0: none */
    /* Sequences longer than `border` have the frequencies from at[half] on (longrope), or those of a
     * theta that grows by factor · length / border - (factor - 1) to a power (dynamic: power > 0). */
    int border; /* INT_MAX: none are longer */
    double theta, factor, power;
    float at[MAX_FREQUENCIES];
};

double query_length_of(const nbl__rope *rope)
{
    if (rope->query_length != 0) return rope->query_length;
    return rope->original_max_position_embeddings != 0 ? rope->original_max_position_embeddings
                                                       : static_cast<double>(rope->max_position_embeddings);
}

frequencies frequencies_of(const nbl__rope *rope, int64_t half)
{
    frequencies f = {};
    f.half = static_cast<int>(half);
    f.query_beta = static_cast<float>(rope->query_beta);
    f.query_length = static_cast<float>(query_length_of(rope));
    f.query_shift = static_cast<float>(rope->query_shift);
    f.border = INT_MAX;
    nbl__rope_frequencies(rope, 2 * half, 0, f.at, &f.scaling);
    if (rope->kind == NBL_ROPE_LONGROPE) {
        /* query_length_of is the original length */
        nbl__rope base = *rope;
        base.query_length = 0;
        f.border = static_cast<int>(fmin(query_length_of(&base), INT_MAX));
        nbl__rope_frequencies(rope, 2 * half, INT_MAX, f.at + half, &f.scaling);
    }
    if (rope->kind == NBL_ROPE_DYNAMIC) {
        f.border = static_cast<int>(rope->max_position_embeddings < INT_MAX ? rope->max_position_embeddings
                                                                            : INT_MAX);
        f.theta = rope->rope_theta != 0 ? rope->rope_theta : rope->theta;
        f.factor = rope->factor;
        f.power = static_cast<double>(half) / static_cast<double>(half - 1);
    }
    return f;
}

/* Frequency i of a token whose sequence has this length. The roundings are those of
 * nbl__rope_frequencies(). */
__device__ inline float frequency_of(const frequencies &f, int i, int length)
{
    if (length <= f.border) return f.at[i];
    if (!(f.power > 0)) return f.at[f.half + i];
    double grown = f.factor * (static_cast<double>(length) / f.border) - (f.factor - 1);
    float theta = static_cast<float>(f.theta * pow(grown, f.power));
    float exponent = static_cast<float>(2 * i) / static_cast<float>(2 * f.half);
    return 1 / static_cast<float>(pow(static_cast<double>(theta), static_cast<double>(exponent)));
}

/* cos and sin of position · frequency, times the scaling. The f64 product is exact up to position
 * 2^29. */
__device__ inline void rotate_of(const frequencies &f, int position, int i, int length, float *cosine,
                                 float *sine)
{
    double s, c, angle = static_cast<double>(position) * static_cast<double>(frequency_of(f, i, length));
    double scaling = f.scaling;
    if (f.query_beta != 0) {
        double steps = floor((static_cast<double>(position) + static_cast<double>(f.query_shift)) /
                             static_cast<double>(f.query_length));
        scaling *= 1 + static_cast<double>(f.query_beta) * log1p(steps);
    }
    sincos(angle, &s, &c);
    *cosine = static_cast<float>(c * scaling);
    *sine = static_cast<float>(s * scaling);
}

/* The length of the sequence of token t: 1 + the position of its last token. Without cu_seqlens each
 * token is the last. The binary search ends within the arrays whatever cu_seqlens holds. */
__device__ inline int length_of(const int32_t *positions, int tokens, const int32_t *at, int sequences, int t)
{
    int last = t;
    if (at) {
        int low = 0, high = sequences; /* at[low] <= t < at[high] */
        while (high - low > 1) {
            int middle = low + (high - low) / 2;
            if (at[middle] <= t) low = middle;
            else high = middle;
        }
        last = min(max(at[high] - 1, t), tokens - 1);
    }
    return positions[last] + 1;
}

/* cosines[t, i] and sines[t, i] of all tokens, [tokens, half]: one pair per thread. Limit: sincos
 * in f64. Sequences: [0, sequences] of cu_seqlens, or NULL. */
__global__ void __launch_bounds__(THREADS)
    table_kernel(const __grid_constant__ frequencies f, const int32_t *positions, int64_t count,
                 const int32_t *cu_seqlens, int sequences, float *cosines, float *sines)
{
    int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    float c, s;
    if (at >= count) return;
    int t = static_cast<int>(at / f.half), tokens = static_cast<int>(count / f.half);
    int length = f.border == INT_MAX ? 0 : length_of(positions, tokens, cu_seqlens, sequences, t);
    rotate_of(f, positions[t], static_cast<int>(at % f.half), length, &c, &s);
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
        static_cast<const int32_t *>(a->cu_seqlens.data),
        nbl__has_data(&a->cu_seqlens) ? static_cast<int>(a->cu_seqlens.shape[0] - 1) : 0,
        static_cast<float *>(a->cos.data), static_cast<float *>(a->sin.data));
    return launched(call);
}

const char *can_table(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    const nbl__rope_table *a = static_cast<const nbl__rope_table *>(arguments);
    int64_t lists = a->rope.kind == NBL_ROPE_LONGROPE ? 2 : 1;
    if (nbl__tensor_elements(&a->positions) > INT32_MAX) return "more than 2^31 tokens";
    return a->rope.rotary_dim / 2 * lists > MAX_FREQUENCIES ? "rotary_dim is too large" : nullptr;
}

/* ---- rope ---- */

/* One rotation: heads x columns per token, of which the first 2 · half columns rotate. */
struct rope_args {
    const void *from;
    void *to;
    const float *cosines, *sines; /* [tokens, half]; NULL: computed from positions */
    const int32_t *positions;
    int heads, columns, half;
    float sign;       /* of the sines: 1 in forward, -1 in backward */
    bool interleaved; /* pairs are neighbours */
};

/* The same for tokens in wider rows. Strides are elements from one token to the next. */
struct rope_rows_args : rope_args {
    int64_t from_stride, to_stride;
};

/* Fills cosines and sines of this block's token in shared memory. Ends with __syncthreads. */
__device__ inline void fill_angles(const rope_args &a, const frequencies *f, float *cosines, float *sines)
{
    int64_t token = blockIdx.x;
    for (int i = threadIdx.x; i < a.half; i += blockDim.x) {
        if (f) rotate_of(*f, a.positions[token], i, 0, &cosines[i], &sines[i]);
        else {
            cosines[i] = a.cosines[token * a.half + i];
            sines[i] = a.sines[token * a.half + i];
        }
        sines[i] *= a.sign;
    }
    __syncthreads();
}

/* Rotates the heads of a token. Items of N elements (16 bytes, or 1 element) go round robin to the
 * threads: `lanes` items per head rotate both halves, `extra` items copy the columns past them. A
 * thread loads both halves before it stores, so y may be x. */
template <typename T, int N>
__device__ void rotate_heads(const rope_args &a, int64_t from_at, int64_t to_at, const float *cosines,
                             const float *sines)
{
    int lanes = a.half / N, extra = (a.columns - 2 * a.half) / N, work = lanes + extra;
    const T *from = static_cast<const T *>(a.from) + from_at;
    T *to = static_cast<T *>(a.to) + to_at;
    for (int item = threadIdx.x; item < a.heads * work; item += blockDim.x) {
        int head = item / work, i = item % work;
        const T *x = from + static_cast<int64_t>(head) * a.columns;
        T *y = to + static_cast<int64_t>(head) * a.columns;
        float left[N], right[N], c[N], s[N];
        if (i >= lanes) { /* past the columns that rotate */
            load_run<T, N>(x + a.half + i * N, left);
            store_run<T, N>(y + a.half + i * N, left);
            continue;
        }
        load_run<T, N>(x + i * N, left);
        load_run<T, N>(x + a.half + i * N, right);
        load_run<float, N>(cosines + i * N, c);
        load_run<float, N>(sines + i * N, s);
#pragma unroll
        for (int j = 0; j < N; j++) {
            float rotated = left[j] * c[j] - right[j] * s[j];
            right[j] = right[j] * c[j] + left[j] * s[j];
            left[j] = rotated;
        }
        store_run<T, N>(y + i * N, left);
        store_run<T, N>(y + a.half + i * N, right);
    }
}

/* The same for pairs of neighbours. An item is a pair that rotates, or an element past those. */
template <typename T>
__device__ void rotate_pairs(const rope_args &a, int64_t from_at, int64_t to_at, const float *cosines,
                             const float *sines)
{
    int work = a.columns - a.half;
    const T *from = static_cast<const T *>(a.from) + from_at;
    T *to = static_cast<T *>(a.to) + to_at;
    for (int item = threadIdx.x; item < a.heads * work; item += blockDim.x) {
        int i = item % work;
        int64_t head = static_cast<int64_t>(item / work) * a.columns;
        if (i >= a.half) {
            to[head + a.half + i] = from[head + a.half + i];
            continue;
        }
        float left = to_f32(from[head + 2 * i]), right = to_f32(from[head + 2 * i + 1]);
        to[head + 2 * i] = from_f32<T>(left * cosines[i] - right * sines[i]);
        to[head + 2 * i + 1] = from_f32<T>(right * cosines[i] + left * sines[i]);
    }
}

template <typename T, int N>
__device__ void rotate_at(const rope_args &a, int64_t from_at, int64_t to_at, const float *cosines,
                          const float *sines)
{
    if (a.interleaved) rotate_pairs<T>(a, from_at, to_at, cosines, sines);
    else rotate_heads<T, N>(a, from_at, to_at, cosines, sines);
}

template <typename T, int N>
__device__ void rotate_token(const rope_args &a, const float *cosines, const float *sines)
{
    int64_t first = static_cast<int64_t>(blockIdx.x) * a.heads * a.columns;
    rotate_at<T, N>(a, first, first, cosines, sines);
}

template <typename T, int N>
__device__ void rotate_row(const rope_rows_args &a, const float *cosines, const float *sines)
{
    int64_t token = blockIdx.x;
    rotate_at<T, N>(a, token * a.from_stride, token * a.to_stride, cosines, sines);
}

/* The four kernels: angles from the table or from positions, dense tokens or wider rows. A block
 * per token, up to 256 threads. Shared memory: half cosines, then half sines. */
template <typename T, int N> __global__ void __launch_bounds__(THREADS) rotate_by_table(rope_args a)
{
    extern __shared__ __align__(16) float cos_sin[];
    fill_angles(a, nullptr, cos_sin, cos_sin + a.half);
    rotate_token<T, N>(a, cos_sin, cos_sin + a.half);
}

template <typename T, int N>
__global__ void __launch_bounds__(THREADS)
    rotate_by_position(rope_args a, const __grid_constant__ frequencies f)
{
    extern __shared__ __align__(16) float cos_sin[];
    fill_angles(a, &f, cos_sin, cos_sin + a.half);
    rotate_token<T, N>(a, cos_sin, cos_sin + a.half);
}

template <typename T, int N> __global__ void __launch_bounds__(THREADS) rotate_rows_by_table(rope_rows_args a)
{
    extern __shared__ __align__(16) float cos_sin[];
    fill_angles(a, nullptr, cos_sin, cos_sin + a.half);
    rotate_row<T, N>(a, cos_sin, cos_sin + a.half);
}

template <typename T, int N>
__global__ void __launch_bounds__(THREADS)
    rotate_rows_by_position(rope_rows_args a, const __grid_constant__ frequencies f)
{
    extern __shared__ __align__(16) float cos_sin[];
    fill_angles(a, &f, cos_sin, cos_sin + a.half);
    rotate_row<T, N>(a, cos_sin, cos_sin + a.half);
}

/* strided: the rows of `from` or `to` are wider than a token. */
template <typename T, int N>
void launch(const nbl__call *call, const rope_rows_args &rows, bool strided, const nbl__rope *rope,
            unsigned tokens)
{
    const rope_args &a = rows;
    int64_t work = static_cast<int64_t>(a.heads) * (a.columns - a.half) / N;
    int64_t threads = work >= THREADS ? int64_t{THREADS} : ceil_div(work, 32) * 32;
    size_t shared = 2 * static_cast<size_t>(a.half) * sizeof(float);
    if (strided && a.cosines)
        rotate_rows_by_table<T, N><<<tokens, static_cast<unsigned>(threads), shared, stream_of(call)>>>(rows);
    else if (strided)
        rotate_rows_by_position<T, N><<<tokens, static_cast<unsigned>(threads), shared, stream_of(call)>>>(
            rows, frequencies_of(rope, a.half));
    else if (a.cosines)
        rotate_by_table<T, N><<<tokens, static_cast<unsigned>(threads), shared, stream_of(call)>>>(a);
    else
        rotate_by_position<T, N><<<tokens, static_cast<unsigned>(threads), shared, stream_of(call)>>>(
            a, frequencies_of(rope, a.half));
}

/* Forward and backward of the operator. `fast`: all runs of 16 bytes are whole and aligned. */
nbl_status rotate(const nbl__call *call, const nbl__rope_apply *a, const nbl_tensor *from,
                  const nbl_tensor *to, float sign)
{
    int64_t columns = nbl__last(&a->x), half = nbl__rope_dim(&a->rope, columns) / 2;
    int64_t heads = a->x.shape[a->x.rank - 2], count = a->dtype == NBL_DTYPE_F32 ? 4 : 8;
    rope_rows_args t = {};
    static_cast<rope_args &>(t) = {from->data,
                                   to->data,
                                   static_cast<const float *>(a->cos.data),
                                   static_cast<const float *>(a->sin.data),
                                   static_cast<const int32_t *>(a->positions.data),
                                   static_cast<int>(heads),
                                   static_cast<int>(columns),
                                   static_cast<int>(half),
                                   sign,
                                   a->rope.interleaved};
    t.from_stride = nbl__token_stride(from);
    t.to_stride = nbl__token_stride(to);
    bool strided = nbl__is_strided(from) || nbl__is_strided(to);
    if (!nbl__has_data(to) || heads == 0) return NBL_OK;
    unsigned tokens = static_cast<unsigned>(nbl__tensor_rows(&a->x) / heads);
    if (tokens == 0) return NBL_OK;
    bool fast = half % count == 0 && columns % count == 0 && t.from_stride % count == 0 &&
                t.to_stride % count == 0 && is_aligned(from->data, 16) && is_aligned(to->data, 16);
    if (fast) NBL_BY_DTYPE(a->dtype, T, (launch<T, pack<T>::COUNT>(call, t, strided, &a->rope, tokens)));
    else NBL_BY_DTYPE(a->dtype, T, (launch<T, 1>(call, t, strided, &a->rope, tokens)));
    return launched(call);
}

/* The limits of `frequencies` and of shared memory, and 32-bit indices within a token. */
const char *can_rotate(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    const nbl__rope_apply *a = static_cast<const nbl__rope_apply *>(arguments);
    int64_t half = nbl__rope_dim(&a->rope, nbl__last(&a->x)) / 2;
    if (a->x.shape[a->x.rank - 2] * nbl__last(&a->x) > INT32_MAX)
        return "a token has more than 2^31 elements";
    return half > (nbl__has_data(&a->cos) ? MAX_HALF : MAX_FREQUENCIES) ? "rotary_dim is too large" : nullptr;
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
