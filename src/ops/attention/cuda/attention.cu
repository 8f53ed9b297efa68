/* attention.cu - attention for every dtype and head size with one warp per row, and the parts of
 * backward that all implementations share: delta and lse by head before it, the sinks' gradient
 * after.
 *
 *     forward, dQ   the row is a query of one head; its warp walks over the keys that it sees
 *     dK, dV        the row is a key of one key head; its warp walks over the queries that see it
 *
 * A lane has columns lane, lane + 32, … of the row, 256 columns at a time. Wider heads take several
 * walks, and each computes all scores again. Sums are f32, in the order of the walk.
 *
 * Limit: instructions, mainly the 5 shuffles per product. Every warp reads its keys and values
 * again, from the caches. The tensor core kernels (attention_mma.cu, attention_sm90.cu) come first
 * where they can run. */
#include "ops/attention/cuda/attention.cuh"

namespace nbl_cuda
{

/* The problem of a call. p.wide and p.paired need the alignment of every tensor that is present.
 * Row strides are multiples of 16 bytes: can_run of every kernel sees to it. */
attention_problem attention_problem_of(const nbl__call *call, const nbl__attention *a)
{
    attention_problem p = {};
    const void *const all[] = {a->q.data,    a->k.data,  a->v.data,  a->out.data,
                               a->dout.data, a->dq.data, a->dk.data, a->dv.data};
    double scale = nbl__attention_scale(a->scale, a->q.shape[2]);
    size_t element = nbl__size_of(a->dtype), row = static_cast<size_t>(a->q.shape[2]) * element;
    p.at = static_cast<const int32_t *>(a->cu_seqlens.data);
    p.sequences = static_cast<int>(a->cu_seqlens.shape[0] - 1);
    p.tokens = static_cast<int>(a->q.shape[0]);
    p.heads = static_cast<int>(a->q.shape[1]);
    p.key_heads = static_cast<int>(a->k.shape[1]);
    p.group = p.heads / p.key_heads;
    p.size = static_cast<int>(a->q.shape[2]);
    p.window = static_cast<int>(a->window < a->q.shape[0] ? a->window : a->q.shape[0]);
    p.chunk = static_cast<int>(a->chunk < a->q.shape[0] ? a->chunk : a->q.shape[0]);
    p.causal = a->causal;
    p.wide = row % 16 == 0;
    p.paired = row % 4 == 0;
    for (const void *tensor : all) {
        p.wide = p.wide && is_aligned(tensor, 16);
        p.paired = p.paired && is_aligned(tensor, 4);
    }
    p.factor = static_cast<float>(a->softcap != 0 ? scale / a->softcap : scale * 1.4426950408889634);
    p.cap = a->softcap * LOG2_E;
    p.scale = static_cast<float>(scale);
    p.sinks = a->sinks.data;
    p.sinks_dtype = a->sinks.dtype;
    p.fault = nbl__call_cuda(call)->fault;
    return p;
}

attention_data attention_data_of(const nbl__attention *a)
{
    attention_data d = {};
    d.q = a->q.data, d.k = a->k.data, d.v = a->v.data;
    d.out = a->out.data;
    d.lse = static_cast<float *>(a->lse.data);
    d.dout = a->dout.data;
    d.dq = a->dq.data, d.dk = a->dk.data, d.dv = a->dv.data;
    d.q_step = step_of(&a->q), d.k_step = step_of(&a->k), d.v_step = step_of(&a->v);
    d.dq_step = step_of(&a->dq), d.dk_step = step_of(&a->dk), d.dv_step = step_of(&a->dv);
    return d;
}

} // namespace nbl_cuda

using namespace nbl_cuda;

namespace
{

/* COLUMNS: of a lane in one walk; PART: of a warp. AT_ONCE: keys per step of forward, for more
 * loads in flight. */
enum { THREADS = 128, WARPS = THREADS / 32, COLUMNS = 8, PART = 32 * COLUMNS, AT_ONCE = 4 };

/* ---- before and after backward ---- */

/* delta[h, t] = Σ_d out · dout and lse2[h, t] = lse[t, h] · log2(e), from [T, Hq, ..] to [Hq, T]. A
 * warp per row, 4 elements per lane and load (8 or 16 bytes with p.wide). Reads out and dout once;
 * limit: memory. */
template <typename T>
__global__ void make_rows(attention_problem p, const T *out, const T *dout, const float *lse, float *lse2,
                          float *delta)
{
    if (blockIdx.x == 0) check_sequences(p);
    int64_t row = blockIdx.x * int64_t{WARPS} + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= static_cast<int64_t>(p.tokens) * p.heads) return;
    float sum = 0;
    out += row * p.size;
    dout += row * p.size;
    for (int64_t d = lane * 4; d < p.size; d += 128) {
        struct alignas(4 * sizeof(T)) run {
            T at[4];
        } x, y;
        if (p.wide) {
            x = *reinterpret_cast<const run *>(out + d);
            y = *reinterpret_cast<const run *>(dout + d);
        } else {
            for (int e = 0; e < 4; e++) {
                x.at[e] = d + e < p.size ? out[d + e] : from_f32<T>(0);
                y.at[e] = d + e < p.size ? dout[d + e] : from_f32<T>(0);
            }
        }
        for (int e = 0; e < 4; e++) sum = fmaf(to_f32(x.at[e]), to_f32(y.at[e]), sum);
    }
    sum = warp_sum(sum);
    if (lane != 0) return;
    int64_t at = row % p.heads * p.tokens + row / p.heads;
    delta[at] = sum;
    lse2[at] = lse[row] * LOG2_E;
}

/* dsinks[h] (+)= -Σ_t exp(sink - lse) · Σ P · dP. A block per head. Each thread sums tokens 1024
 * apart; the warps are added in their order, so the result does not depend on timing. */
__global__ void add_sinks(attention_problem p, const float *lse2, const float *sums, float *dsinks,
                          bool accumulate)
{
    __shared__ float part[32];
    int head = blockIdx.x;
    float sink = sink_of(p, head), sum = 0;
    for (int64_t t = threadIdx.x; t < p.tokens; t += blockDim.x) {
        int64_t at = static_cast<int64_t>(head) * p.tokens + t;
        sum = fmaf(exp2f(sink - lse2[at]), sums[at], sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (unsigned w = 1; w < blockDim.x / 32; w++) sum += part[w];
    dsinks[head] = accumulate ? dsinks[head] - sum : -sum;
}

/* ---- a row, spread over a warp ---- */

/* A row in the registers of a warp: COLUMNS values per lane. Columns from PART on are read from
 * memory at each use. */
template <typename T> struct lanes {
    const T *row;
    float at[COLUMNS]; /* the first 256 columns */
    __device__ lanes(const T *from, int size) : row(from)
    {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) at[c] = lane + 32 * c < size ? to_f32(from[lane + 32 * c]) : 0;
    }
    /* This lane's part of the product with another row; warp_sum of the parts is the product. */
    __device__ float part(const T *other, int size) const
    {
        int lane = threadIdx.x % 32;
        float sum = 0;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            if (lane + 32 * c < size) sum = fmaf(at[c], to_f32(other[lane + 32 * c]), sum);
        for (int d = PART + lane; d < size; d += 32) sum = fmaf(to_f32(row[d]), to_f32(other[d]), sum);
        return sum;
    }
};

/* sums += factor · row, and row = sums · factor: columns from … from + 255 of a row of `size`. */
template <typename T>
__device__ inline void add_row(float *sums, float factor, const T *row, int from, int size)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
        if (from + lane + 32 * c < size) sums[c] = fmaf(factor, to_f32(row[from + lane + 32 * c]), sums[c]);
}

template <typename T>
__device__ inline void store_row(T *row, const float *sums, float factor, int from, int size)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
        if (from + lane + 32 * c < size) row[from + lane + 32 * c] = from_f32<T>(sums[c] * factor);
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

/* The row of this warp: a tile of one row, and its head. False: no row. */
__device__ inline bool find_row(const attention_problem &p, int heads, attention_tile *tile, int *head)
{
    int64_t item = blockIdx.x * int64_t{WARPS} + threadIdx.x / 32;
    *head = static_cast<int>(item % heads);
    return item / heads < static_cast<int64_t>(p.tokens) + p.sequences &&
           find_tile<1>(p, static_cast<int>(item / heads), tile);
}

/* ---- forward ---- */

/* out and lse of one query and head per warp: online softmax over AT_ONCE keys per step. Warps do
 * not cooperate. The keys of the last step that do not exist have no weight. */
template <typename T>
__global__ void __launch_bounds__(THREADS) forward_rows(attention_problem p, attention_data data)
{
    attention_tile tile;
    int head;
    if (blockIdx.x == 0) check_sequences(p);
    if (!find_row(p, p.heads, &tile, &head)) return;
    int i = tile.start, first = first_key(p, i), end = end_key(p, i, tile.n);
    int64_t token = tile.first + i, row = token * p.heads + head, column = head / p.group * int64_t{p.size};
    const T *k = static_cast<const T *>(data.k) + tile.first * data.k_step + column;
    const T *v = static_cast<const T *>(data.v) + tile.first * data.v_step + column;
    lanes<T> q(static_cast<const T *>(data.q) + token * data.q_step + head * int64_t{p.size}, p.size);
    float sink = sink_of(p, head);
    /* Heads of up to 256 take one walk. */
    for (int from = 0; from < p.size; from += PART) {
        float sums[COLUMNS] = {}, top = sink, total = p.sinks ? 1 : 0;
        for (int j = first; j < end; j += AT_ONCE) {
            float s[AT_ONCE], largest = top, slope;
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++)
                s[u] = j + u < end ? q.part(k + (j + u) * data.k_step, p.size) : 0;
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                s[u] = logit(p, warp_sum(s[u]), &slope);
                if (j + u < end) largest = fmaxf(largest, s[u]);
            }
            float base = largest == -INFINITY ? 0 : largest, before = exp2f(top - base);
            total *= before;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) sums[c] *= before;
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                if (j + u >= end) continue;
                float weight = exp2f(s[u] - base);
                total += weight;
                add_row(sums, weight, v + (j + u) * data.v_step, from, p.size);
            }
            top = largest;
        }
        store_row(static_cast<T *>(data.out) + row * p.size, sums, 1 / total, from, p.size);
        if (from == 0 && data.lse && threadIdx.x % 32 == 0) data.lse[row] = fmaf(top, LN_2, logf(total));
    }
}

/* ---- backward ---- */

/* dQ of one query and head per warp, and Σ P · dP for the gradient of the sinks. */
template <typename T>
__global__ void __launch_bounds__(THREADS) backward_queries(attention_problem p, attention_data data)
{
    attention_tile tile;
    int head;
    if (!find_row(p, p.heads, &tile, &head)) return;
    int i = tile.start, first = first_key(p, i), end = end_key(p, i, tile.n);
    int64_t token = tile.first + i, row = token * p.heads + head, column = head / p.group * int64_t{p.size};
    const T *k = static_cast<const T *>(data.k) + tile.first * data.k_step + column;
    const T *v = static_cast<const T *>(data.v) + tile.first * data.v_step + column;
    lanes<T> q(static_cast<const T *>(data.q) + token * data.q_step + head * int64_t{p.size}, p.size);
    lanes<T> dout(static_cast<const T *>(data.dout) + row * p.size, p.size);
    int64_t at = static_cast<int64_t>(head) * p.tokens + tile.first + i;
    float lse = data.lse2[at], delta = data.delta[at];
    for (int from = 0; from < p.size; from += PART) {
        float sums[COLUMNS] = {}, total = 0;
        for (int j = first; j < end; j++) {
            const T *key = k + j * data.k_step;
            float s = q.part(key, p.size), d = warp_sum(dout.part(v + j * data.v_step, p.size)), slope;
            float weight = exp2f(logit(p, warp_sum(s), &slope) - lse);
            add_row(sums, weight * (d - delta) * slope, key, from, p.size);
            total = fmaf(weight, d, total);
        }
        if (data.dq)
            store_row(static_cast<T *>(data.dq) + token * data.dq_step + head * int64_t{p.size}, sums, p.scale,
                      from, p.size);
        if (data.sums && from == 0 && threadIdx.x % 32 == 0) data.sums[at] = total;
    }
}

/* dK and dV of one key and key head per warp: over all query heads of the group, and for each over
 * the queries that see the key. Each sum stays in one warp, in a fixed order. */
template <typename T>
__global__ void __launch_bounds__(THREADS) backward_keys(attention_problem p, attention_data data)
{
    attention_tile tile;
    int head;
    if (!find_row(p, p.key_heads, &tile, &head)) return;
    int j = tile.start, first = first_query(p, j), end = end_query(p, j, tile.n);
    int64_t token = tile.first + j, column = head * int64_t{p.size};
    lanes<T> k(static_cast<const T *>(data.k) + token * data.k_step + column, p.size);
    lanes<T> v(static_cast<const T *>(data.v) + token * data.v_step + column, p.size);
    for (int from = 0; from < p.size; from += PART) {
        float dk[COLUMNS] = {}, dv[COLUMNS] = {};
        for (int h = head * p.group; h < (head + 1) * p.group; h++) {
            const T *q = static_cast<const T *>(data.q) + tile.first * data.q_step + h * int64_t{p.size};
            const T *dout = static_cast<const T *>(data.dout) + tile.first * out_step(p) + h * int64_t{p.size};
            const float *lse = data.lse2 + static_cast<int64_t>(h) * p.tokens + tile.first;
            const float *delta = data.delta + static_cast<int64_t>(h) * p.tokens + tile.first;
            for (int i = first; i < end; i++) {
                const T *query = q + i * data.q_step, *change = dout + i * out_step(p);
                float s = k.part(query, p.size), d = v.part(change, p.size), slope;
                float weight = exp2f(logit(p, warp_sum(s), &slope) - lse[i]);
                add_row(dv, weight, change, from, p.size);
                add_row(dk, weight * (warp_sum(d) - delta[i]) * slope, query, from, p.size);
            }
        }
        if (data.dk)
            store_row(static_cast<T *>(data.dk) + token * data.dk_step + column, dk, p.scale, from, p.size);
        if (data.dv)
            store_row(static_cast<T *>(data.dv) + token * data.dv_step + column, dv, 1, from, p.size);
    }
}

/* ---- the two operators ---- */

unsigned blocks_for(int64_t warps)
{
    return static_cast<unsigned>(warps > 0 ? (warps + WARPS - 1) / WARPS : 1);
}

/* Refuses more rows than a grid holds, or than 32-bit positions can count. */
template <bool BACKWARD> const char *can_run(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    const char *why = nbl__wide_strides_only(&nbl__attention_family, BACKWARD, arguments);
    if (why) return why;
    int64_t rows = a->q.shape[0] + a->cu_seqlens.shape[0];
    if (rows > INT32_MAX / 2 || a->q.shape[1] * a->q.shape[2] > INT32_MAX ||
        rows * a->q.shape[1] > (int64_t{1} << 32))
        return "too many rows";
    return NULL;
}

/* The grid has a warp per slot of find_tile<1> and head. */
nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    attention_problem p = attention_problem_of(call, a);
    attention_data data = attention_data_of(a);
    unsigned blocks = blocks_for((static_cast<int64_t>(p.tokens) + p.sequences) * p.heads);
    NBL_BY_DTYPE(a->dtype, T, (forward_rows<T><<<blocks, THREADS, 0, stream_of(call)>>>(p, data)));
    return launched(call);
}

nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    attention_problem p = attention_problem_of(call, a);
    attention_data data = attention_data_of(a);
    attention_rows rows = attention_rows_make(call, a, p, &data);
    int64_t slots = static_cast<int64_t>(p.tokens) + p.sequences;
    if (data.dq || data.sums)
        NBL_BY_DTYPE(
            a->dtype, T,
            (backward_queries<T><<<blocks_for(slots * p.heads), THREADS, 0, stream_of(call)>>>(p, data)));
    if (data.dk || data.dv)
        NBL_BY_DTYPE(
            a->dtype, T,
            (backward_keys<T><<<blocks_for(slots * p.key_heads), THREADS, 0, stream_of(call)>>>(p, data)));
    attention_sinks_add(call, a, p, rows);
    return launched(call);
}

} // namespace

namespace nbl_cuda
{

/* Scratch: lse2 | delta | sums, f32 [Hq, T] each. With base NULL it only returns the size. */
static size_t cut_rows(const nbl__attention *a, uint8_t *base, attention_rows *rows)
{
    nbl__bump bump = {base, 0};
    size_t bytes = static_cast<size_t>(a->q.shape[0] * a->q.shape[1]) * sizeof(float);
    rows->lse2 = static_cast<float *>(nbl__bump_alloc(&bump, bytes));
    rows->delta = static_cast<float *>(nbl__bump_alloc(&bump, bytes));
    rows->sums = static_cast<float *>(
        nbl__bump_alloc(&bump, bytes)); /* always counted: dsinks may be given only at the run */
    if (!nbl__has_data(&a->dsinks)) rows->sums = NULL;
    return bump.used;
}

size_t attention_backward_scratch(const nbl_context *ctx, const void *arguments)
{
    attention_rows rows;
    (void)ctx;
    return cut_rows(static_cast<const nbl__attention *>(arguments), NULL, &rows);
}

attention_rows attention_rows_of(const nbl__call *call, const nbl__attention *a, attention_data *data)
{
    attention_rows rows;
    cut_rows(a, call->scratch, &rows);
    data->lse2 = rows.lse2, data->delta = rows.delta, data->sums = rows.sums;
    return rows;
}

attention_rows attention_rows_make(const nbl__call *call, const nbl__attention *a, const attention_problem &p,
                                   attention_data *data)
{
    attention_rows rows = attention_rows_of(call, a, data);
    unsigned blocks = blocks_for(static_cast<int64_t>(p.tokens) * p.heads);
    NBL_BY_DTYPE(a->dtype, T,
                 (make_rows<T><<<blocks, THREADS, 0, stream_of(call)>>>(
                     p, static_cast<const T *>(a->out.data), static_cast<const T *>(a->dout.data),
                     static_cast<const float *>(a->lse.data), rows.lse2, rows.delta)));
    return rows;
}

void attention_sinks_add(const nbl__call *call, const nbl__attention *a, const attention_problem &p,
                         const attention_rows &rows)
{
    if (rows.sums == NULL) return;
    add_sinks<<<static_cast<unsigned>(p.heads), 1024, 0, stream_of(call)>>>(
        p, rows.lse2, rows.sums, static_cast<float *>(a->dsinks.data), a->accumulate);
}

} // namespace nbl_cuda

extern "C" {
const nbl__impl nbl__attention_cuda = {"attention_cuda", NBL_ISA_SCALAR, can_run<false>, NULL, run_forward};
const nbl__impl nbl__attention_backward_cuda = {"attention_backward_cuda", NBL_ISA_SCALAR, can_run<true>,
                                                attention_backward_scratch, run_backward};
}
