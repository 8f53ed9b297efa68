/* gated_delta_backward.cu - the backward of the gated delta rule on the device, in chunks.
 * gated_delta_tile.h has the formulas.
 *
 *     a block per sequence and key head, whose value heads share dq and dk; blocks take several in turn
 *         for each chunk:            the state before it, kept in scratch
 *         from the last chunk on:    its squares, two triangular solves, the gradients, dS
 *
 * All matrices lie in a block's part of scratch, which the caches hold. Products are plain: a thread per
 * element of the result, f32. The gates and dG are f64. Limit: the latency of those products; tensor
 * cores are not used. Scratch: 1 KiB per token and value head for the states, and some rows and squares
 * per block. */
#include "ops/common/load.cuh"

extern "C" {
#include "ops/recurrent/gated_delta_tile.h"
}

using namespace nbl_cuda;

namespace
{

enum { THREADS = 256, CHUNK = NBL_DELTA_CHUNK, MAX_BLOCKS = 264 };

struct back_job {
    const void *q, *k, *v, *a, *b, *d_o, *a_log, *dt_bias;
    void *dq, *dk, *dv, *da, *db;
    nbl_dtype a_log_dtype, dt_bias_dtype;
    const int32_t *starts;
    int64_t q_stride, k_stride, v_stride, a_stride, b_stride, do_stride;
    int64_t dq_stride, dk_stride, dv_stride, da_stride, db_stride, tokens, items;
    int keys, values, group, size_k, size_v;
    float *states; /* [tokens / CHUNK, values, size_k, size_v] */
    float *work;   /* [blocks, work_floats] */
    int64_t work_floats;
    double *sums; /* [2, sequences, values]: da_log, ddt_bias */
    int64_t sequences;
};

/* A block's matrices: rows [CHUNK, size], squares [CHUNK, CHUNK], states [size_k, size_v]. */
struct matrices {
    float *q, *k, *dq, *dk, *rows;  /* of keys */
    float *v, *x, *u, *du, *d_o;    /* of values */
    float *kk, *qk, *a, *p, *m, *n; /* squares */
    float *zero, *ds;               /* a state of zeros; [group] states */
};

/* What all threads share of a chunk. */
struct chunk_gates {
    double g[CHUNK], dg[CHUNK], decays[CHUNK];
    float beta[CHUNK], from_start[CHUNK], to_end[CHUNK], r_q[CHUNK], r_k[CHUNK], dbeta[CHUNK];
    float decay;
};

__host__ __device__ inline int64_t cut(const back_job &j, float *base, matrices *m)
{
    int64_t keys = int64_t{CHUNK} * j.size_k, values = int64_t{CHUNK} * j.size_v, at = 0;
    int64_t state = int64_t{j.size_k} * j.size_v;
    auto take = [&](int64_t n) {
        float *piece = base + at;
        at += (n + 15) / 16 * 16;
        return piece;
    };
    m->q = take(keys), m->k = take(keys), m->dq = take(keys), m->dk = take(keys), m->rows = take(keys);
    m->v = take(values), m->x = take(values), m->u = take(values), m->du = take(values),
    m->d_o = take(values);
    m->kk = take(CHUNK * CHUNK), m->qk = take(CHUNK * CHUNK), m->a = take(CHUNK * CHUNK);
    m->p = take(CHUNK * CHUNK), m->m = take(CHUNK * CHUNK), m->n = take(CHUNK * CHUNK);
    m->zero = take(state), m->ds = take(state * j.group);
    return at;
}

/* A matrix in any orientation. */
struct view {
    const float *at;
    int row, step;
};

/* C [rows, columns] = factor·A·B, or added to it. All threads take part. */
__device__ inline void product(int rows, int columns, int k, view a, view b, float *c, float factor, bool add)
{
    for (int i = threadIdx.x; i < rows * columns; i += THREADS) {
        int r = i / columns, d = i % columns;
        float sum = 0;
        for (int s = 0; s < k; s++)
            sum = fmaf(a.at[r * a.row + s * a.step], b.at[s * b.row + d * b.step], sum);
        c[i] = add ? fmaf(sum, factor, c[i]) : sum * factor;
    }
    __syncthreads();
}

/* The same for squares, whose rows are CHUNK apart. */
__device__ inline void square(int n, int k, view a, view b, float *c)
{
    for (int i = threadIdx.x; i < n * n; i += THREADS) {
        int r = i / n, d = i % n;
        float sum = 0;
        for (int s = 0; s < k; s++)
            sum = fmaf(a.at[r * a.row + s * a.step], b.at[s * b.row + d * b.step], sum);
        c[r * CHUNK + d] = sum;
    }
    __syncthreads();
}

/* Σ over a row by a warp. */
__device__ inline float row_dot(const float *x, const float *y, int n)
{
    float sum = 0;
    for (int i = threadIdx.x % 32; i < n; i += 32) sum = fmaf(x[i], y[i], sum);
    return warp_sum(sum);
}

/* Rows of a head; zero_rows: nothing is read. */
template <typename T>
__device__ inline void read_rows(const void *from, int64_t stride, int64_t first, int n, int head, int size,
                                 float *to)
{
    for (int i = threadIdx.x; i < n * size; i += THREADS)
        to[i] = to_f32(static_cast<const T *>(from)[(first + i / size) * stride + head * size + i % size]);
    __syncthreads();
}

/* Rows become of length 1, times a factor. */
__device__ inline void normalize(float *rows, int n, int size, float factor, float *scales)
{
    for (int i = threadIdx.x / 32; i < n; i += THREADS / 32) {
        float *row = rows + i * size;
        float r = 1 / sqrtf(row_dot(row, row, size) + static_cast<float>(NBL_GATED_DELTA_EPS));
        for (int d = threadIdx.x % 32; d < size; d += 32) row[d] *= r * factor;
        if (threadIdx.x % 32 == 0) scales[i] = r;
    }
    __syncthreads();
}

template <typename T>
__device__ inline void read_keys(const back_job &j, const matrices &m, chunk_gates &c, int64_t first, int n,
                                 int key)
{
    read_rows<T>(j.q, j.q_stride, first, n, key, j.size_k, m.q);
    read_rows<T>(j.k, j.k_stride, first, n, key, j.size_k, m.k);
    normalize(m.q, n, j.size_k, 1 / sqrtf(static_cast<float>(j.size_k)), c.r_q);
    normalize(m.k, n, j.size_k, 1, c.r_k);
    square(n, j.size_k, {m.k, j.size_k, 1}, {m.k, 1, j.size_k}, m.kk);
    square(n, j.size_k, {m.q, j.size_k, 1}, {m.k, 1, j.size_k}, m.qk);
}

/* log(1 + e^x). 1 + e may be rounded. */
__device__ inline double softplus(double x)
{
    double e = exp(-fabs(x)), y = 1 + e;
    return (y == 1 ? e : log(y) * (e / (y - 1))) + fmax(x, 0.0);
}

__device__ inline double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

template <typename T> __device__ inline double gate_at(const void *t, int64_t stride, int64_t row, int head)
{
    return static_cast<double>(to_f32(static_cast<const T *>(t)[row * stride + head]));
}

__device__ inline float decay_between(const chunk_gates &c, int i, int j)
{
    return expf(static_cast<float>(c.g[i] - c.g[j]));
}

/* Gates, v, A and P of a value head. */
template <typename T>
__device__ inline void read_values(const back_job &j, const matrices &m, chunk_gates &c, int64_t first, int n,
                                   int head)
{
    int i = threadIdx.x;
    if (i < n) {
        double pre = gate_at<T>(j.a, j.a_stride, first + i, head) +
                     static_cast<double>(load_one(j.dt_bias, j.dt_bias_dtype, head));
        double rate = exp(static_cast<double>(load_one(j.a_log, j.a_log_dtype, head)));
        c.decays[i] = -rate * softplus(pre);
        if (c.decays[i] < NBL_DELTA_MIN_DECAY) c.decays[i] = NBL_DELTA_MIN_DECAY;
        c.beta[i] = static_cast<float>(sigmoid(gate_at<T>(j.b, j.b_stride, first + i, head)));
        c.dg[i] = 0;
    }
    __syncthreads();
    if (i == 0)
        for (int t = 0; t < n; t++) c.g[t] = c.decays[t] + (t > 0 ? c.g[t - 1] : 0);
    __syncthreads();
    if (i < n) {
        c.from_start[i] = static_cast<float>(exp(c.g[i]));
        c.to_end[i] = static_cast<float>(exp(c.g[n - 1] - c.g[i]));
    }
    if (i == 0) c.decay = static_cast<float>(exp(c.g[n - 1]));
    read_rows<T>(j.v, j.v_stride, first, n, head, j.size_v, m.v);
    for (int s = threadIdx.x; s < n * n; s += THREADS) {
        int row = s / n, d = s % n, at = row * CHUNK + d;
        float decay = d <= row ? decay_between(c, row, d) : 0;
        m.a[at] = d < row ? c.beta[row] * (m.kk[at] * decay) : 0;
        m.p[at] = d <= row ? m.qk[at] * decay : 0;
    }
    __syncthreads();
}

/* X and U. */
__device__ inline void solve(const back_job &j, const matrices &m, chunk_gates &c, int n, const float *state)
{
    int size = j.size_v;
    product(n, size, j.size_k, {m.k, j.size_k, 1}, {state, size, 1}, m.x, 1, false);
    for (int i = threadIdx.x; i < n * size; i += THREADS) {
        m.x[i] = m.v[i] - c.from_start[i / size] * m.x[i];
        m.u[i] = c.beta[i / size] * m.x[i];
    }
    __syncthreads();
    for (int d = threadIdx.x; d < size; d += THREADS) /* a thread's own column */
        for (int i = 1; i < n; i++) {
            float sum = m.u[i * size + d];
            for (int s = 0; s < i; s++) sum = fmaf(-m.a[i * CHUNK + s], m.u[s * size + d], sum);
            m.u[i * size + d] = sum;
        }
    __syncthreads();
}

/* to = e^(G_C)·from + Σ left_i (scale_i·right_i)ᵀ·sign */
__device__ inline void add_outer(const back_job &j, int n, const float *left, const float *right,
                                 const float *scale, const float *also, float factor, float decay,
                                 const float *from, float *to)
{
    int size = j.size_v;
    for (int s = threadIdx.x; s < j.size_k * size; s += THREADS) {
        int row = s / size, d = s % size;
        float sum = 0;
        for (int i = 0; i < n; i++)
            sum = fmaf(left[i * j.size_k + row], right[i * size + d] * scale[i] * (also ? also[i] : 1.0f),
                       sum);
        to[s] = fmaf(sum, factor, decay * from[s]);
    }
    __syncthreads();
}

/* dU, then dR in its place. */
__device__ inline void solve_back(const back_job &j, const matrices &m, chunk_gates &c, int n,
                                  const float *ds)
{
    int size = j.size_v;
    product(n, size, j.size_k, {m.k, j.size_k, 1}, {ds, size, 1}, m.du, 1, false);
    for (int i = threadIdx.x; i < n * size; i += THREADS) m.du[i] *= c.to_end[i / size];
    __syncthreads();
    product(n, size, n, {m.p, 1, CHUNK}, {m.d_o, size, 1}, m.du, 1, true);
    for (int d = threadIdx.x; d < size; d += THREADS)
        for (int i = n - 2; i >= 0; i--) {
            float sum = m.du[i * size + d];
            for (int s = i + 1; s < n; s++) sum = fmaf(-m.a[s * CHUNK + i], m.du[s * size + d], sum);
            m.du[i * size + d] = sum;
        }
    __syncthreads();
}

/* βM and N; what they add to dβ and dG. The square of A becomes W. */
__device__ inline void squares(const back_job &j, const matrices &m, chunk_gates &c, int n)
{
    int size = j.size_v, i = threadIdx.x;
    square(n, size, {m.d_o, size, 1}, {m.u, 1, size}, m.n);
    square(n, size, {m.du, size, 1}, {m.u, 1, size}, m.m);
    if (i < n) { /* a thread's own row */
        float with_keys = 0;
        for (int s = 0; s < n; s++) {
            int at = i * CHUNK + s;
            float decay = s <= i ? decay_between(c, i, s) : 0, m_is = s < i ? -m.m[at] * decay : 0;
            m.n[at] = s <= i ? m.n[at] * decay : 0;
            with_keys += s < i ? m_is * m.kk[at] : 0;
            m.m[at] = c.beta[i] * m_is;
            m.a[at] = s < i ? m.n[at] * m.qk[at] + m.m[at] * m.kk[at] : 0;
        }
        c.dbeta[i] += with_keys;
    }
    __syncthreads();
    if (i < n)
        for (int s = 0; s < n; s++)
            c.dg[i] += static_cast<double>(m.a[i * CHUNK + s]) - static_cast<double>(m.a[s * CHUNK + i]);
    __syncthreads();
}

/* The parts of dQ, dK and dG that the states have. */
__device__ inline void through_states(const back_job &j, const matrices &m, chunk_gates &c, int n,
                                      const float *state, const float *ds)
{
    int size = j.size_k, lane = threadIdx.x % 32;
    double sums[1] = {0};
    product(n, size, j.size_v, {m.d_o, j.size_v, 1}, {state, 1, j.size_v}, m.rows, 1, false);
    for (int i = threadIdx.x / 32; i < n; i += THREADS / 32) {
        float dot = c.from_start[i] * row_dot(m.q + i * size, m.rows + i * size, size);
        for (int d = lane; d < size; d += 32) m.dq[i * size + d] += c.from_start[i] * m.rows[i * size + d];
        if (lane == 0) c.dg[i] += static_cast<double>(dot);
    }
    __syncthreads();
    product(n, size, j.size_v, {m.du, j.size_v, 1}, {state, 1, j.size_v}, m.rows, 1, false);
    for (int i = threadIdx.x / 32; i < n; i += THREADS / 32) {
        float gate = c.beta[i] * c.from_start[i],
              dot = gate * row_dot(m.k + i * size, m.rows + i * size, size);
        for (int d = lane; d < size; d += 32) m.dk[i * size + d] -= gate * m.rows[i * size + d];
        if (lane == 0) c.dg[i] -= static_cast<double>(dot);
    }
    __syncthreads();
    product(n, size, j.size_v, {m.u, j.size_v, 1}, {ds, 1, j.size_v}, m.rows, 1, false);
    for (int i = threadIdx.x / 32; i < n; i += THREADS / 32) {
        float omega = c.to_end[i] * row_dot(m.k + i * size, m.rows + i * size, size);
        for (int d = lane; d < size; d += 32) m.dk[i * size + d] += c.to_end[i] * m.rows[i * size + d];
        if (lane == 0) c.dg[i] -= static_cast<double>(omega), c.decays[i] = static_cast<double>(omega);
    }
    for (int s = threadIdx.x; s < size * j.size_v; s += THREADS)
        sums[0] += static_cast<double>(state[s]) * static_cast<double>(ds[s]);
    block_sums(sums);
    __syncthreads();
    if (threadIdx.x == 0) {
        double all = static_cast<double>(c.decay) * sums[0];
        for (int i = 0; i < n; i++) all += c.decays[i]; /* here: ω */
        c.dg[n - 1] += all;
    }
    __syncthreads();
}

/* da, db, and the sums of the parameters' gradients. */
template <typename T>
__device__ inline void write_gates(const back_job &j, chunk_gates &c, int64_t sequence, int64_t first, int n,
                                   int head)
{
    int i = threadIdx.x;
    if (i == 0)
        for (int t = n - 2; t >= 0; t--) c.dg[t] += c.dg[t + 1];
    __syncthreads();
    if (i < n) {
        double pre = gate_at<T>(j.a, j.a_stride, first + i, head) +
                     static_cast<double>(load_one(j.dt_bias, j.dt_bias_dtype, head));
        double rate = exp(static_cast<double>(load_one(j.a_log, j.a_log_dtype, head)));
        double b = gate_at<T>(j.b, j.b_stride, first + i, head), da = -c.dg[i] * rate * sigmoid(pre);
        double db = static_cast<double>(c.dbeta[i]) * sigmoid(b) * sigmoid(-b);
        int64_t row = first + i;
        if (j.da) static_cast<T *>(j.da)[row * j.da_stride + head] = from_f32<T>(static_cast<float>(da));
        if (j.db) static_cast<T *>(j.db)[row * j.db_stride + head] = from_f32<T>(static_cast<float>(db));
        c.decays[i] = c.dg[i] * -rate * softplus(pre);
        c.dg[i] = da;
    }
    __syncthreads();
    if (i == 0) {
        double *sums = j.sums + sequence * j.values + head;
        for (int t = 0; t < n; t++) sums[0] += c.decays[t], sums[j.sequences * j.values] += c.dg[t];
    }
    __syncthreads();
}

/* One value head of a chunk. */
template <typename T>
__device__ inline void backward_head(const back_job &j, const matrices &m, chunk_gates &c, int64_t sequence,
                                     int64_t first, int n, int head, const float *state, float *ds)
{
    int size = j.size_v, lane = threadIdx.x % 32;
    read_values<T>(j, m, c, first, n, head);
    read_rows<T>(j.d_o, j.do_stride, first, n, head, size, m.d_o);
    solve(j, m, c, n, state);
    solve_back(j, m, c, n, ds);
    for (int i = threadIdx.x / 32; i < n; i += THREADS / 32) {
        float dot = row_dot(m.du + i * size, m.x + i * size, size);
        if (lane == 0) c.dbeta[i] = dot;
        for (int d = lane; d < size && j.dv; d += 32)
            static_cast<T *>(j.dv)[(first + i) * j.dv_stride + head * size + d] = from_f32<T>(
                c.beta[i] * m.du[i * size + d]);
    }
    __syncthreads();
    squares(j, m, c, n);
    through_states(j, m, c, n, state, ds);
    product(n, j.size_k, n, {m.n, CHUNK, 1}, {m.k, j.size_k, 1}, m.dq, 1, true);
    product(n, j.size_k, n, {m.n, 1, CHUNK}, {m.q, j.size_k, 1}, m.dk, 1, true);
    product(n, j.size_k, n, {m.m, CHUNK, 1}, {m.k, j.size_k, 1}, m.dk, 1, true);
    product(n, j.size_k, n, {m.m, 1, CHUNK}, {m.k, j.size_k, 1}, m.dk, 1, true);
    add_outer(j, n, m.q, m.d_o, c.from_start, nullptr, 1, c.decay, ds, ds);
    add_outer(j, n, m.k, m.du, c.from_start, c.beta, -1, 1, ds, ds);
    write_gates<T>(j, c, sequence, first, n, head);
}

/* d becomes r·(d - x̂·(x̂·d)), and is written. `factor`: of the rows in x and d. */
template <typename T>
__device__ inline void write_keys(void *to, int64_t stride, int64_t first, int n, int key, int size,
                                  const float *x, const float *d, const float *scales, float factor)
{
    for (int i = threadIdx.x / 32; i < n && to; i += THREADS / 32) {
        const float *hat = x + i * size, *row = d + i * size;
        float dot = row_dot(hat, row, size); /* the factors cancel */
        for (int s = threadIdx.x % 32; s < size; s += 32)
            static_cast<T *>(to)[(first + i) * stride + key * size + s] = from_f32<T>(
                scales[i] * (row[s] * factor - hat[s] / factor * dot));
    }
}

template <typename T> __global__ void __launch_bounds__(THREADS) backward_kernel(back_job j)
{
    __shared__ chunk_gates c;
    matrices m;
    cut(j, j.work + blockIdx.x * j.work_floats, &m);
    int64_t state = int64_t{j.size_k} * j.size_v;
    for (int64_t s = threadIdx.x; s < state; s += THREADS) m.zero[s] = 0;
    for (int64_t item = blockIdx.x; item < j.items; item += gridDim.x) {
        int64_t sequence = item / j.keys, begin = j.starts[sequence], end = j.starts[sequence + 1];
        int key = static_cast<int>(item % j.keys), head = key * j.group;
        if (begin < 0) begin = 0;
        if (end > j.tokens) end = j.tokens;
        for (int h = threadIdx.x; h < j.group; h += THREADS)
            j.sums[sequence * j.values + head + h] = j.sums[(j.sequences + sequence) * j.values + head + h] =
                0;
        for (int64_t s = threadIdx.x; s < state * j.group; s += THREADS) m.ds[s] = 0;
        __syncthreads();
        /* The state before chunk i of this sequence, i > 0. No other sequence has these slots. */
        float *kept = j.states + (begin / CHUNK * j.values + head) * state;
        int64_t chunks = end > begin ? (end - begin + CHUNK - 1) / CHUNK : 0, step = j.values * state;
        for (int64_t i = 0; i + 1 < chunks; i++) {
            read_keys<T>(j, m, c, begin + i * CHUNK, CHUNK, key);
            for (int h = 0; h < j.group; h++) {
                const float *from = i > 0 ? kept + (i - 1) * step + h * state : m.zero;
                read_values<T>(j, m, c, begin + i * CHUNK, CHUNK, head + h);
                solve(j, m, c, CHUNK, from);
                add_outer(j, CHUNK, m.k, m.u, c.to_end, nullptr, 1, c.decay, from,
                          kept + i * step + h * state);
            }
        }
        for (int64_t i = chunks; i-- > 0;) {
            int64_t first = begin + i * CHUNK;
            int n = static_cast<int>(end - first < CHUNK ? end - first : CHUNK);
            read_keys<T>(j, m, c, first, n, key);
            for (int s = threadIdx.x; s < n * j.size_k; s += THREADS) m.dq[s] = m.dk[s] = 0;
            __syncthreads();
            for (int h = 0; h < j.group; h++)
                backward_head<T>(j, m, c, sequence, first, n, head + h,
                                 i > 0 ? kept + (i - 1) * step + h * state : m.zero, m.ds + h * state);
            float root = sqrtf(static_cast<float>(j.size_k));
            write_keys<T>(j.dq, j.dq_stride, first, n, key, j.size_k, m.q, m.dq, c.r_q, 1 / root);
            write_keys<T>(j.dk, j.dk_stride, first, n, key, j.size_k, m.k, m.dk, c.r_k, 1);
            __syncthreads();
        }
    }
}

/* A parameter's gradient (+)= the sums of the sequences, in order. */
__global__ void add_sequences(const double *sums, int64_t sequences, int values, float *to, bool accumulate)
{
    int h = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (h >= values) return;
    double sum = accumulate ? static_cast<double>(to[h]) : 0;
    for (int64_t s = 0; s < sequences; s++) sum += sums[s * values + h];
    to[h] = static_cast<float>(sum);
}

back_job job_of(const nbl__gated_delta *a)
{
    back_job j = {};
    j.q = a->q.data, j.k = a->k.data, j.v = a->v.data, j.a = a->a.data, j.b = a->b.data, j.d_o = a->d_o.data;
    j.dq = a->dq.data, j.dk = a->dk.data, j.dv = a->dv.data, j.da = a->da.data, j.db = a->db.data;
    j.a_log = a->a_log.data, j.dt_bias = a->dt_bias.data;
    j.a_log_dtype = a->a_log.dtype, j.dt_bias_dtype = a->dt_bias.dtype;
    j.starts = static_cast<const int32_t *>(a->cu_seqlens.data);
    j.q_stride = nbl__row_stride(&a->q), j.k_stride = nbl__row_stride(&a->k),
    j.v_stride = nbl__row_stride(&a->v);
    j.a_stride = nbl__row_stride(&a->a), j.b_stride = nbl__row_stride(&a->b);
    j.do_stride = nbl__row_stride(&a->d_o);
    j.dq_stride = nbl__row_stride(&a->dq), j.dk_stride = nbl__row_stride(&a->dk);
    j.dv_stride = nbl__row_stride(&a->dv), j.da_stride = nbl__row_stride(&a->da);
    j.db_stride = nbl__row_stride(&a->db);
    j.tokens = a->q.shape[0], j.sequences = a->cu_seqlens.shape[0] - 1;
    j.keys = static_cast<int>(a->q.shape[1]), j.values = static_cast<int>(a->v.shape[1]);
    j.group = j.values / j.keys;
    j.size_k = static_cast<int>(a->q.shape[2]), j.size_v = static_cast<int>(a->v.shape[2]);
    j.items = j.sequences * j.keys;
    return j;
}

/* Cuts the scratch; base NULL measures it. */
size_t lay_out(back_job *j, uint8_t *base)
{
    nbl__bump bump = {base, 0};
    matrices m;
    int64_t state = int64_t{j->size_k} * j->size_v;
    j->work_floats = cut(*j, nullptr, &m);
    auto take = [&](int64_t n, size_t size) { return nbl__bump_alloc(&bump, static_cast<size_t>(n) * size); };
    j->states = static_cast<float *>(take((j->tokens / CHUNK + 1) * j->values * state, sizeof(float)));
    j->work = static_cast<float *>(take(nbl__min_i64(j->items, MAX_BLOCKS) * j->work_floats, sizeof(float)));
    j->sums = static_cast<double *>(take(2 * j->sequences * j->values, sizeof(double)));
    return bump.used;
}

size_t backward_scratch(const nbl_context *, const void *arguments)
{
    back_job j = job_of(static_cast<const nbl__gated_delta *>(arguments));
    return lay_out(&j, nullptr);
}

nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__gated_delta *a = static_cast<const nbl__gated_delta *>(arguments);
    back_job j = job_of(a);
    lay_out(&j, call->scratch);
    unsigned blocks = static_cast<unsigned>(nbl__min_i64(j.items, MAX_BLOCKS)),
             parts = (j.values + 127) / 128;
    if (blocks > 0)
        NBL_BY_DTYPE(a->dtype, T, (backward_kernel<T><<<blocks, THREADS, 0, stream_of(call)>>>(j)));
    const nbl_tensor *const to[2] = {&a->da_log, &a->ddt_bias};
    for (int i = 0; i < 2; i++)
        if (nbl__has_data(to[i]))
            add_sequences<<<parts, 128, 0, stream_of(call)>>>(
                j.sums + i * j.sequences * j.values, j.sequences, j.values, static_cast<float *>(to[i]->data),
                a->accumulate);
    return launched(call);
}

/* Offsets inside a block's memory are 32 bits. */
const char *can_run(const nbl_context *, const void *arguments)
{
    const nbl__gated_delta *a = static_cast<const nbl__gated_delta *>(arguments);
    return a->q.shape[2] > 1024 || a->v.shape[2] > 1024 ? "a head is wider than 1024" : nullptr;
}

} // namespace

extern "C" {
const nbl__impl nbl__gated_delta_backward_cuda = {.name = "gated_delta_backward_cuda",
                                                  .needs = NBL_ISA_SCALAR,
                                                  .can = can_run,
                                                  .scratch = backward_scratch,
                                                  .run = run_backward};
}
