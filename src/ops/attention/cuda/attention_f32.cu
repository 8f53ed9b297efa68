/* attention_f32.cu - attention of f32 with fma, heads of up to 128: the walks of attention_mma.cu.
 *
 * A block of 16 x 16 threads keeps 64 rows and walks over tiles of 64 rows of the other side, all
 * in shared memory. Thread (y, x) of the scores has rows 4y … 4y + 3 and columns x, x + 16, x + 32,
 * x + 48. Of the sums it has the same rows and four neighbouring columns of each 64. Scores go
 * through shared memory from one layout to the other. A warp writes and reads the same 8 rows, so
 * __syncwarp is enough.
 *
 *     for each tile:   __syncthreads     everybody has read the old tile
 *                      load both tiles   float4, not overlapped with products
 *                      __syncthreads
 *                      scores, softmax, scores → shared, sums += scores · tile
 *
 * Shared memory: 3 tiles (backward: 4) of 64 x (WIDE + 4) floats, then 64 x 68 scores. That is
 * 68 KiB for heads of up to 64 and 116 KiB for 128 in forward, 85 and 149 KiB in backward.
 * Limit: the fma units. Where one block fits on a multiprocessor, they also wait for tiles. */
#include "ops/attention/cuda/attention.cuh"

using namespace nbl_cuda;

namespace
{

/* ROWS: of every tile, on both sides. SCORES: floats from row to row of the scores; 4 more than 64,
 * so no two lanes store to one bank. */
constexpr int THREADS = 256, ROWS = 64,
              SCORES = ROWS + 4;

/* Rows of tiles are 4 floats longer than WIDE: float4 loads of neighbouring rows use different
 * banks. */
template <int WIDE> struct tile_shape {
    static constexpr int STRIDE = WIDE + 4, FLOATS = ROWS * STRIDE, SUMS = WIDE / 16;
};

/* Loads 64 rows from element `at`, `step` apart, of which `valid` exist. Other rows become
 * zeros. */
template <int WIDE>
__device__ inline void load_rows(float *to, const void *tensor, int64_t at, int64_t step, int valid,
                                 const attention_problem &p)
{
    constexpr int CHUNKS = WIDE / 4;
    const float *from = static_cast<const float *>(tensor) + at;
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        int row = i / CHUNKS, d = i % CHUNKS * 4;
        float4 x = make_float4(0, 0, 0, 0);
        if (row < valid && d < p.size) {
            const float *source = from + row * step + d;
            if (p.wide) {
                x = *reinterpret_cast<const float4 *>(source);
            } else {
                x.x = source[0];
                if (d + 1 < p.size) x.y = source[1];
                if (d + 2 < p.size) x.z = source[2];
                if (d + 3 < p.size) x.w = source[3];
            }
        }
        *reinterpret_cast<float4 *>(to + row * tile_shape<WIDE>::STRIDE + d) = x;
    }
}

/* s = A · Bᵀ over WIDE columns: 64 fma per 8 float4 of shared memory. */
template <int WIDE> __device__ inline void multiply_rows(float (&s)[4][4], const float *a, const float *b)
{
    constexpr int STRIDE = tile_shape<WIDE>::STRIDE;
    int y = threadIdx.x / 16, x = threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) s[i][c] = 0;
#pragma unroll 4
    for (int d = 0; d < WIDE; d += 4) {
        float4 left[4], right[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            left[i] = *reinterpret_cast<const float4 *>(a + (y * 4 + i) * STRIDE + d);
            right[i] = *reinterpret_cast<const float4 *>(b + (x + i * 16) * STRIDE + d);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                s[i][c] = fmaf(left[i].x, right[c].x, s[i][c]);
                s[i][c] = fmaf(left[i].y, right[c].y, s[i][c]);
                s[i][c] = fmaf(left[i].z, right[c].z, s[i][c]);
                s[i][c] = fmaf(left[i].w, right[c].w, s[i][c]);
            }
    }
}

/* Writes the scores by rows. The first __syncwarp: the warp has read the scores of the last
 * call. */
__device__ inline void store_scores(float *to, const float (&s)[4][4])
{
    int y = threadIdx.x / 16, x = threadIdx.x % 16;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) to[(y * 4 + i) * SCORES + x + c * 16] = s[i][c];
    __syncwarp();
}

/* sums += scores · B. A thread reads its 4 rows of scores, and its columns of all 64 rows of B. */
template <int WIDE>
__device__ inline void multiply_scores(float (&sums)[4][WIDE / 16], const float *scores, const float *b)
{
    constexpr int STRIDE = tile_shape<WIDE>::STRIDE;
    int y = threadIdx.x / 16, x = threadIdx.x % 16;
#pragma unroll 2
    for (int k = 0; k < ROWS; k += 4) {
        float4 weight[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            weight[i] = *reinterpret_cast<const float4 *>(scores + (y * 4 + i) * SCORES + k);
#pragma unroll
        for (int u = 0; u < 4; u++)
#pragma unroll
            for (int c = 0; c < WIDE / 64; c++) {
                float4 value = *reinterpret_cast<const float4 *>(b + (k + u) * STRIDE + c * 64 + x * 4);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float w = u == 0   ? weight[i].x
                              : u == 1 ? weight[i].y
                              : u == 2 ? weight[i].z
                                       : weight[i].w;
                    sums[i][c * 4 + 0] = fmaf(w, value.x, sums[i][c * 4 + 0]);
                    sums[i][c * 4 + 1] = fmaf(w, value.y, sums[i][c * 4 + 1]);
                    sums[i][c * 4 + 2] = fmaf(w, value.z, sums[i][c * 4 + 2]);
                    sums[i][c * 4 + 3] = fmaf(w, value.w, sums[i][c * 4 + 3]);
                }
            }
    }
}

/* Stores rows · factor, as far as they exist. */
template <int WIDE>
__device__ inline void store_sums(void *tensor, int64_t at, int64_t step, int valid,
                                  const float (&sums)[4][WIDE / 16], const float (&factor)[4],
                                  const attention_problem &p)
{
    int y = threadIdx.x / 16, x = threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (y * 4 + i >= valid) continue;
        float *row = static_cast<float *>(tensor) + at + (y * 4 + i) * step;
#pragma unroll
        for (int e = 0; e < WIDE / 16; e++) {
            int d = e / 4 * 64 + x * 4 + e % 4;
            if (d < p.size) row[d] = sums[i][e] * factor[i];
        }
    }
}

/* Over the 16 threads that share rows: half a warp. */
__device__ inline float row_sum(float x)
{
    for (int i = 8; i > 0; i /= 2) x += __shfl_xor_sync(WARP, x, i);
    return x;
}
__device__ inline float row_max(float x)
{
    for (int i = 8; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(WARP, x, i));
    return x;
}

/* The logit of a product q·k, in units of log 2. `slope`: 1 - tanh² with a cap, else 1. */
__device__ inline float logit(const attention_problem &p, float product, float *slope)
{
    float x = product * p.factor;
    *slope = 1;
    if (p.cap == 0) return x;
    float t = tanhf(x);
    *slope = fmaf(-t, t, 1.0f);
    return p.cap * t;
}

/* True if query i of a sequence of n sees key j. */
__device__ inline bool is_seen(const attention_problem &p, int i, int j, int n)
{
    return i < n && j >= first_key(p, i) && j < min(end_key(p, i, n), n);
}

/* ---- forward ---- */

/* out = softmax(scale · Q·Kᵀ) · V, and lse. A block: 64 queries of one head, and a walk over the
 * keys that they see. Every row of scores belongs to 16 threads, which agree on its maximum by
 * shuffles. */
template <int WIDE>
__global__ void __launch_bounds__(THREADS)
    forward_f32(const __grid_constant__ attention_problem p, const __grid_constant__ attention_data data)
{
    typedef tile_shape<WIDE> z;
    /* Q | K | V | scores */
    extern __shared__ __align__(16) float shared[];
    float *q = shared, *k = q + z::FLOATS, *v = k + z::FLOATS, *scores = v + z::FLOATS;
    attention_tile tile;
    if (blockIdx.x == 0) check_sequences(p);
    int head = blockIdx.x % p.heads, slot = (gridDim.x - 1 - blockIdx.x) / p.heads; /* long walks first */
    if (!find_tile<ROWS>(p, slot, &tile)) return;

    int y = threadIdx.x / 16, x = threadIdx.x % 16, valid = tile.n - tile.start;
    int64_t token = tile.first + tile.start, q_column = head * int64_t{p.size},
            k_column = head / p.group * int64_t{p.size}, k_step = data.k_step, v_step = data.v_step;
    int64_t k_at = tile.first * k_step + k_column, v_at = tile.first * v_step + k_column;
    int first = first_key(p, tile.start) / ROWS * ROWS;
    int end = end_key(p, min(tile.start + ROWS, tile.n) - 1, tile.n);
    load_rows<WIDE>(q, data.q, token * data.q_step + q_column, data.q_step, valid, p);

    /* top: the largest logit so far. total: Σ 2^(logit - top), this thread's columns only. */
    float out[4][z::SUMS] = {}, top[4], total[4], sink = sink_of(p, head);
    for (int i = 0; i < 4; i++) top[i] = sink, total[i] = p.sinks && x == 0 ? 1 : 0;
    for (int j = first; j < end; j += ROWS) {
        float s[4][4];
        __syncthreads();
        load_rows<WIDE>(k, data.k, k_at + j * k_step, k_step, tile.n - j, p);
        load_rows<WIDE>(v, data.v, v_at + j * v_step, v_step, tile.n - j, p);
        __syncthreads();
        multiply_rows<WIDE>(s, q, k);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float max = top[i], slope;
#pragma unroll
            for (int c = 0; c < 4; c++) {
                bool seen = is_seen(p, tile.start + y * 4 + i, j + x + c * 16, tile.n);
                s[i][c] = seen ? logit(p, s[i][c], &slope) : -INFINITY;
                max = fmaxf(max, s[i][c]);
            }
            max = row_max(max);
            float base = max == -INFINITY ? 0 : max, before = exp2f(top[i] - base);
            top[i] = max;
            total[i] *= before;
#pragma unroll
            for (int c = 0; c < 4; c++) total[i] += s[i][c] = exp2f(s[i][c] - base);
#pragma unroll
            for (int e = 0; e < z::SUMS; e++) out[i][e] *= before;
        }
        store_scores(scores, s);
        multiply_scores<WIDE>(out, scores, v);
    }
    float inverse[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float sum = row_sum(total[i]);
        inverse[i] = 1 / sum;
        if (data.lse && x == 0 && y * 4 + i < valid)
            data.lse[static_cast<int64_t>(tile.first + tile.start + y * 4 + i) * p.heads + head] = fmaf(
                top[i], LN_2, logf(sum));
    }
    store_sums<WIDE>(data.out, token * out_step(p) + q_column, out_step(p), valid, out, inverse, p);
}

/* ---- backward ---- */

/* dK and dV. A block: 64 keys of one key head, and a walk over the queries that see them, for all
 * query heads of the group. Scores are transposed: rows are keys. */
template <int WIDE>
__global__ void __launch_bounds__(THREADS) backward_keys_f32(const __grid_constant__ attention_problem p,
                                                             const __grid_constant__ attention_data data)
{
    typedef tile_shape<WIDE> z;
    /* K | V | Q | dO | scores */
    extern __shared__ __align__(16) float shared[];
    float *k = shared, *v = k + z::FLOATS, *q = v + z::FLOATS, *dout = q + z::FLOATS,
          *scores = dout + z::FLOATS;
    attention_tile tile;
    int head = blockIdx.x % p.key_heads;
    if (!find_tile<ROWS>(p, blockIdx.x / p.key_heads, &tile)) return;

    int y = threadIdx.x / 16, x = threadIdx.x % 16, valid = tile.n - tile.start;
    int64_t token = tile.first + tile.start, k_column = head * int64_t{p.size};
    int first = first_query(p, tile.start) / ROWS * ROWS;
    int end = end_query(p, min(tile.start + ROWS, tile.n) - 1, tile.n);
    load_rows<WIDE>(k, data.k, token * data.k_step + k_column, data.k_step, valid, p);
    load_rows<WIDE>(v, data.v, token * data.v_step + k_column, data.v_step, valid, p);

    float dk[4][z::SUMS] = {}, dv[4][z::SUMS] = {};
    for (int h = head * p.group; h < (head + 1) * p.group; h++) {
        const float *lse = data.lse2 + static_cast<int64_t>(h) * p.tokens + tile.first;
        const float *delta = data.delta + static_cast<int64_t>(h) * p.tokens + tile.first;
        for (int i0 = first; i0 < end; i0 += ROWS) {
            float s[4][4], d[4][4];
            int64_t query = tile.first + i0, q_column = h * int64_t{p.size};
            __syncthreads();
            load_rows<WIDE>(q, data.q, query * data.q_step + q_column, data.q_step, tile.n - i0, p);
            load_rows<WIDE>(dout, data.dout, query * out_step(p) + q_column, out_step(p), tile.n - i0, p);
            __syncthreads();
            multiply_rows<WIDE>(s, k, q);
            multiply_rows<WIDE>(d, v, dout);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                /* Rows past the end have no lse: `known` keeps the load inside. */
                int query = i0 + x + c * 16, known = min(query, tile.n - 1);
                float l = lse[known], less = delta[known], slope;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    bool seen = is_seen(p, query, tile.start + y * 4 + i, tile.n);
                    s[i][c] = seen ? exp2f(logit(p, s[i][c], &slope) - l) : 0;
                    d[i][c] = seen ? s[i][c] * (d[i][c] - less) * slope : 0;
                }
            }
            /* One array of scores serves both products, one after the other. */
            store_scores(scores, s);
            multiply_scores<WIDE>(dv, scores, dout);
            store_scores(scores, d);
            multiply_scores<WIDE>(dk, scores, q);
        }
    }
    const float one[4] = {1, 1, 1, 1}, scale[4] = {p.scale, p.scale, p.scale, p.scale};
    if (data.dk) store_sums<WIDE>(data.dk, token * data.dk_step + k_column, data.dk_step, valid, dk, scale, p);
    if (data.dv) store_sums<WIDE>(data.dv, token * data.dv_step + k_column, data.dv_step, valid, dv, one, p);
}

/* dQ, and Σ P · dP of every query for the gradient of the sinks. A block: 64 queries of one head,
 * and a walk over the keys that they see. */
template <int WIDE>
__global__ void __launch_bounds__(THREADS) backward_queries_f32(const __grid_constant__ attention_problem p,
                                                                const __grid_constant__ attention_data data)
{
    typedef tile_shape<WIDE> z;
    /* Q | dO | K | V | scores */
    extern __shared__ __align__(16) float shared[];
    float *q = shared, *dout = q + z::FLOATS, *k = dout + z::FLOATS, *v = k + z::FLOATS,
          *scores = v + z::FLOATS;
    attention_tile tile;
    int head = blockIdx.x % p.heads, slot = (gridDim.x - 1 - blockIdx.x) / p.heads;
    if (!find_tile<ROWS>(p, slot, &tile)) return;

    int y = threadIdx.x / 16, x = threadIdx.x % 16, valid = tile.n - tile.start;
    int64_t token = tile.first + tile.start, q_column = head * int64_t{p.size},
            k_column = head / p.group * int64_t{p.size}, k_step = data.k_step, v_step = data.v_step;
    int64_t k_at = tile.first * k_step + k_column, v_at = tile.first * v_step + k_column;
    int64_t row_at = static_cast<int64_t>(head) * p.tokens + tile.first + tile.start;
    int first = first_key(p, tile.start) / ROWS * ROWS;
    int end = end_key(p, min(tile.start + ROWS, tile.n) - 1, tile.n);
    load_rows<WIDE>(q, data.q, token * data.q_step + q_column, data.q_step, valid, p);
    load_rows<WIDE>(dout, data.dout, token * out_step(p) + q_column, out_step(p), valid, p);

    float dq[4][z::SUMS] = {}, lse[4], delta[4], sums[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        lse[i] = data.lse2[row_at + min(y * 4 + i, valid - 1)];
        delta[i] = data.delta[row_at + min(y * 4 + i, valid - 1)];
    }
    for (int j = first; j < end; j += ROWS) {
        float s[4][4], d[4][4];
        __syncthreads();
        load_rows<WIDE>(k, data.k, k_at + j * k_step, k_step, tile.n - j, p);
        load_rows<WIDE>(v, data.v, v_at + j * v_step, v_step, tile.n - j, p);
        __syncthreads();
        multiply_rows<WIDE>(s, q, k);
        multiply_rows<WIDE>(d, dout, v);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                bool seen = is_seen(p, tile.start + y * 4 + i, j + x + c * 16, tile.n);
                float slope, weight = seen ? exp2f(logit(p, s[i][c], &slope) - lse[i]) : 0;
                if (seen) sums[i] = fmaf(weight, d[i][c], sums[i]);
                d[i][c] = seen ? weight * (d[i][c] - delta[i]) * slope : 0;
            }
        store_scores(scores, d);
        multiply_scores<WIDE>(dq, scores, k);
    }
    const float scale[4] = {p.scale, p.scale, p.scale, p.scale};
    if (data.dq) store_sums<WIDE>(data.dq, token * data.dq_step + q_column, data.dq_step, valid, dq, scale, p);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float sum = row_sum(sums[i]);
        if (data.sums && x == 0 && y * 4 + i < valid) data.sums[row_at + y * 4 + i] = sum;
    }
}

/* ---- the two operators ---- */

template <bool BACKWARD> const char *can_run(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    const char *why = nbl__wide_strides_only(&nbl__attention_family, BACKWARD, arguments);
    if (why) return why;
    if (a->dtype != NBL_DTYPE_F32) return "not f32";
    if (a->q.shape[2] > 128) return "heads of more than 128";
    int64_t slots = a->q.shape[0] / ROWS + a->cu_seqlens.shape[0];
    if (a->q.shape[0] > INT32_MAX / 2 || slots * a->q.shape[1] > INT32_MAX) return "too many rows";
    return NULL;
}

/* `tiles`: how many the kernel keeps in shared memory. One block per slot of find_tile and head. */
template <typename Kernel>
void launch(Kernel kernel, int heads, int tiles, int wide, const attention_problem &p,
            const attention_data &data, cudaStream_t stream)
{
    int64_t blocks = (static_cast<int64_t>(p.tokens) / ROWS + p.sequences) * heads;
    int bytes = (tiles * ROWS * (wide + 4) + ROWS * SCORES) * static_cast<int>(sizeof(float));
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    kernel<<<static_cast<unsigned>(blocks > 0 ? blocks : heads), THREADS, static_cast<size_t>(bytes),
             stream>>>(p, data);
}

nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    attention_problem p = attention_problem_of(call, a);
    attention_data data = attention_data_of(a);
    if (p.size <= 64) launch(forward_f32<64>, p.heads, 3, 64, p, data, stream_of(call));
    else launch(forward_f32<128>, p.heads, 3, 128, p, data, stream_of(call));
    return launched(call);
}

template <int WIDE>
void launch_backward(const attention_problem &p, const attention_data &data, cudaStream_t stream)
{
    if (data.dk || data.dv) launch(backward_keys_f32<WIDE>, p.key_heads, 4, WIDE, p, data, stream);
    if (data.dq || data.sums) launch(backward_queries_f32<WIDE>, p.heads, 4, WIDE, p, data, stream);
}

nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    attention_problem p = attention_problem_of(call, a);
    attention_data data = attention_data_of(a);
    attention_rows rows = attention_rows_make(call, a, p, &data);
    (p.size <= 64 ? launch_backward<64> : launch_backward<128>)(p, data, stream_of(call));
    attention_sinks_add(call, a, p, rows);
    return launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__attention_f32 = {"attention_f32", NBL_ISA_SCALAR, can_run<false>, NULL, run_forward};
const nbl__impl nbl__attention_backward_f32 = {"attention_backward_f32", NBL_ISA_SCALAR, can_run<true>,
                                               attention_backward_scratch, run_backward};
}
