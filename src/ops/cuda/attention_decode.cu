/* attention_decode.cu - one query per sequence against its cache.
 *
 * Limit: the memory that holds the cache. Each sequence is cut into splits of a fixed number of keys, counted from its
 * start, so that one long sequence is work for the whole device:
 *
 *     a block   sequence, key head, split: the query heads that share the key head, which read its keys once
 *     a warp    16 keys of the split (32 with short heads); all loads of K and V go out before the first product
 *     join      the splits of one head, in their order, and its sink
 *
 * Where q and the cache have the same 16-bit dtype, the tensor cores multiply (decode_mma), 8 query heads at a time, with
 * operands straight from memory: which columns go together in a product is free as long as both sides agree. Otherwise
 * (decode_split) a key takes 8, 16 or 32 lanes, 16 bytes each, and sums are made by fma and shuffles, 4 heads at a time.
 *
 * The launch does not depend on the lengths, which only the device knows (they grow while a captured graph is replayed):
 * it has blocks for the whole cache, and those that see nothing leave at once. Partial results are f32. */
#include "ops/cuda/attention_tiles.cuh"

extern "C" {
extern const nbl__impl nbl__attention_decode_cuda;
}

using namespace nbl_cuda;

namespace
{

enum { THREADS = 128, WARPS = THREADS / 32, JOIN_THREADS = 256, WIDEST = 512 }; /* a head, in elements */

struct problem {
    const void *q, *k, *v, *sinks;
    const int32_t *lengths;
    void *out;
    nbl_dtype dtype, sinks_dtype;
    int heads, key_heads, group, size, cached, window, splits, split, blocks_per_group;
    bool wide;
    float factor, cap;   /* as in attention.cuh */
    float *sums;         /* [B, splits, Hq, D] */
    float *tops, *total; /* [B, splits, Hq] */
    nbl__cuda_fault *fault;
};

__device__ inline float read(const void *from, nbl_dtype dtype, int64_t at)
{
    if (dtype == NBL_DTYPE_F32) return static_cast<const float *>(from)[at];
    if (dtype == NBL_DTYPE_F16) return to_f32(static_cast<const __half *>(from)[at]);
    return to_f32(static_cast<const __nv_bfloat16 *>(from)[at]);
}

/* The keys [first, end) that the query of sequence b sees; none where its length is out of range. */
__device__ inline int2 span_of(const problem &p, int b)
{
    int length = p.lengths[b];
    if (length < 1 || length > p.cached) return make_int2(0, 0);
    return make_int2(p.window > 0 && length > p.window ? length - p.window : 0, length);
}

/* 16 bytes of a row, from column `at`; zeros past its end. */
template <typename T> __device__ inline pack<T> load(const T *row, int at, int size, bool wide)
{
    pack<T> x;
    if (wide) {
        *reinterpret_cast<uint4 *>(&x) = at < size ? __ldg(reinterpret_cast<const uint4 *>(row + at))
                                                   : make_uint4(0, 0, 0, 0);
    } else {
#pragma unroll
        for (int e = 0; e < pack<T>::COUNT; e++) x.at[e] = at + e < size ? row[at + e] : from_f32<T>(0);
    }
    return x;
}

/* LANES to a key, of which each takes VECTORS x 16 bytes; HEADS query heads. */
template <typename T, int LANES, int VECTORS, int HEADS> struct shape {
    static constexpr int COUNT = pack<T>::COUNT;
    static constexpr int KEYS = 32 / LANES;            /* of a warp, side by side */
    static constexpr int STEPS = VECTORS == 2 ? 4 : 8; /* of which it takes so many before it reduces */
    static constexpr int ROUNDS = KEYS * STEPS < 16 ? 16 / (KEYS * STEPS) : 1;
    static constexpr int OF_WARP = KEYS * STEPS * ROUNDS; /* 16 keys, or 32 */
    static constexpr int SPLIT = WARPS * OF_WARP;
    static constexpr int PADDED = LANES * VECTORS * COUNT;
};

/* The warps of a block, in their order, become the partial results of its split. */
template <int HEADS, int WIDE>
__device__ inline void finish_split(const problem &p, int b, int split, int head, int heads,
                                    const float (&tops)[WARPS][HEADS], const float (&totals)[WARPS][HEADS],
                                    const float (&sums)[WARPS][HEADS][WIDE])
{
    int64_t part = (static_cast<int64_t>(b) * p.splits + split) * p.heads + head;
    for (int h = 0; h < heads; h++) {
        float top = tops[0][h], total = 0, factor[WARPS];
#pragma unroll
        for (int w = 1; w < WARPS; w++) top = fmaxf(top, tops[w][h]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            factor[w] = power_of_2(tops[w][h] - (top == -INFINITY ? 0 : top));
            total = fmaf(factor[w], totals[w][h], total);
        }
        for (int d = threadIdx.x; d < p.size; d += THREADS) {
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum = fmaf(factor[w], sums[w][h][d], sum);
            p.sums[(part + h) * p.size + d] = sum;
        }
        if (threadIdx.x == 0) p.tops[part + h] = top, p.total[part + h] = total;
    }
}

template <typename T, int LANES, int VECTORS, int HEADS>
__global__ void __launch_bounds__(THREADS) decode_split(const __grid_constant__ problem p)
{
    typedef shape<T, LANES, VECTORS, HEADS> z;
    __shared__ float shared_sums[WARPS][HEADS][z::PADDED], shared_top[WARPS][HEADS],
        shared_total[WARPS][HEADS];
    int split = blockIdx.y, b = blockIdx.z, key_head = blockIdx.x / p.blocks_per_group;
    int head = key_head * p.group + blockIdx.x % p.blocks_per_group * HEADS;
    int heads = min(HEADS, (key_head + 1) * p.group - head);
    int2 seen = span_of(p, b);
    if (split == 0 && blockIdx.x == 0 && threadIdx.x == 0 && seen.y == 0)
        report_fault(p.fault, NBL_CUDA_FAULT_LENGTH, b, p.lengths[b]);
    int start = split * z::SPLIT;
    if (start >= seen.y || start + z::SPLIT <= seen.x) return;

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, mine = lane % LANES, own_key = lane / LANES;
    int64_t step = static_cast<int64_t>(p.key_heads) * p.size;
    int64_t base = (static_cast<int64_t>(b) * p.cached * p.key_heads + key_head) * p.size;
    const T *k = static_cast<const T *>(p.k) + base, *v = static_cast<const T *>(p.v) + base;
    float q[HEADS][VECTORS][z::COUNT], sums[HEADS][VECTORS][z::COUNT] = {}, top[HEADS], total[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        top[h] = -INFINITY, total[h] = 0;
#pragma unroll
        for (int n = 0; n < VECTORS; n++)
#pragma unroll
            for (int e = 0; e < z::COUNT; e++) {
                int d = (n * LANES + mine) * z::COUNT + e;
                int64_t at = (static_cast<int64_t>(b) * p.heads + head + h) * p.size + d;
                q[h][n][e] = h < heads && d < p.size ? read(p.q, p.dtype, at) * p.factor : 0;
            }
    }

    for (int round = 0; round < z::ROUNDS; round++) {
        int first = start + warp * z::OF_WARP + round * z::KEYS * z::STEPS + own_key;
        pack<T> keys[z::STEPS][VECTORS], values[z::STEPS][VECTORS];
#pragma unroll
        for (int u = 0; u < z::STEPS; u++) {
            int j = first + u * z::KEYS, size = j >= seen.x && j < seen.y ? p.size : 0;
#pragma unroll
            for (int n = 0; n < VECTORS; n++) {
                int at = (n * LANES + mine) * z::COUNT;
                keys[u][n] = load(k + j * step, at, size, p.wide);
                values[u][n] = load(v + j * step, at, size, p.wide);
            }
        }
        float s[HEADS][z::STEPS];
#pragma unroll
        for (int u = 0; u < z::STEPS; u++) {
            int j = first + u * z::KEYS;
            float row[VECTORS][z::COUNT];
#pragma unroll
            for (int n = 0; n < VECTORS; n++)
#pragma unroll
                for (int e = 0; e < z::COUNT; e++) row[n][e] = to_f32(keys[u][n].at[e]);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float sum = 0;
#pragma unroll
                for (int n = 0; n < VECTORS; n++)
#pragma unroll
                    for (int e = 0; e < z::COUNT; e++) sum = fmaf(q[h][n][e], row[n][e], sum);
#pragma unroll
                for (int i = LANES / 2; i > 0; i /= 2) sum += __shfl_xor_sync(WARP, sum, i);
                if (p.cap != 0) sum = p.cap * tanhf(sum);
                s[h][u] = j >= seen.x && j < seen.y ? sum : -INFINITY;
            }
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float largest = top[h];
#pragma unroll
            for (int u = 0; u < z::STEPS; u++) largest = fmaxf(largest, s[h][u]);
#pragma unroll
            for (int i = LANES; i < 32; i *= 2) largest = fmaxf(largest, __shfl_xor_sync(WARP, largest, i));
            float from = largest == -INFINITY ? 0 : largest, before = exp2f(top[h] - from);
            total[h] *= before;
#pragma unroll
            for (int n = 0; n < VECTORS; n++)
#pragma unroll
                for (int e = 0; e < z::COUNT; e++) sums[h][n][e] *= before;
#pragma unroll
            for (int u = 0; u < z::STEPS; u++) {
                s[h][u] = exp2f(s[h][u] - from);
                total[h] += s[h][u];
            }
            top[h] = largest;
        }
#pragma unroll
        for (int u = 0; u < z::STEPS; u++)
#pragma unroll
            for (int n = 0; n < VECTORS; n++)
#pragma unroll
                for (int e = 0; e < z::COUNT; e++) {
                    float value = to_f32(values[u][n].at[e]);
#pragma unroll
                    for (int h = 0; h < HEADS; h++) sums[h][n][e] = fmaf(s[h][u], value, sums[h][n][e]);
                }
    }

    /* The keys side by side of a warp, then the warps. */
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
#pragma unroll
        for (int i = LANES; i < 32; i *= 2) {
            total[h] += __shfl_xor_sync(WARP, total[h], i);
#pragma unroll
            for (int n = 0; n < VECTORS; n++)
#pragma unroll
                for (int e = 0; e < z::COUNT; e++) sums[h][n][e] += __shfl_xor_sync(WARP, sums[h][n][e], i);
        }
        if (lane < LANES) {
#pragma unroll
            for (int n = 0; n < VECTORS; n++)
#pragma unroll
                for (int e = 0; e < z::COUNT; e++)
                    shared_sums[warp][h][(n * LANES + mine) * z::COUNT + e] = sums[h][n][e];
        }
        if (lane == 0) shared_top[warp][h] = top[h], shared_total[warp][h] = total[h];
    }
    __syncthreads();
    finish_split<HEADS, z::PADDED>(p, b, split, head, heads, shared_top, shared_total, shared_sums);
}

/* ---- on tensor cores ---- */

template <typename T>
__device__ void multiply(float *sums, uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1);
template <>
__device__ inline void multiply<__half>(float *sums, uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%8,%5,%8}, {%6,%7}, "
        "{%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a2), "r"(b0), "r"(b1), "r"(0));
}
template <>
__device__ inline void multiply<__nv_bfloat16>(float *sums, uint32_t a0, uint32_t a2, uint32_t b0,
                                               uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%8,%5,%8}, {%6,%7}, "
        "{%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a2), "r"(b0), "r"(b1), "r"(0));
}

__device__ inline uint4 read_16(const void *from, bool real)
{
    return real ? __ldg(static_cast<const uint4 *>(from)) : make_uint4(0, 0, 0, 0);
}
__device__ inline uint32_t word(const uint4 &x, int i)
{
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

/* Lane 4g + t. S = Q·Kᵀ: it has 8 columns of each 32 of query head g and of key g of each 8. O = P·V: it has the keys 2t and
 * 2t + 1 of each 8, of which it takes the columns 8g … 8g + 7 of each 64: column j of those is column g of product j. */
template <typename T, int WIDE>
__global__ void __launch_bounds__(THREADS) decode_mma(const __grid_constant__ problem p)
{
    constexpr int HEADS = 8, ROUNDS = WIDE <= 64 ? 2 : 1, KEYS = 16 * ROUNDS, SPLIT = WARPS * KEYS;
    __shared__ float sums[WARPS][HEADS][WIDE], tops[WARPS][HEADS], totals[WARPS][HEADS];
    int split = blockIdx.y, b = blockIdx.z, key_head = blockIdx.x / p.blocks_per_group;
    int head = key_head * p.group + blockIdx.x % p.blocks_per_group * HEADS;
    int heads = min(HEADS, (key_head + 1) * p.group - head);
    int2 seen = span_of(p, b);
    if (split == 0 && blockIdx.x == 0 && threadIdx.x == 0 && seen.y == 0)
        report_fault(p.fault, NBL_CUDA_FAULT_LENGTH, b, p.lengths[b]);
    int start = split * SPLIT;
    if (start >= seen.y || start + SPLIT <= seen.x) return;

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4,
        first = start + warp * KEYS;
    int64_t step = static_cast<int64_t>(p.key_heads) * p.size;
    int64_t base = (static_cast<int64_t>(b) * p.cached * p.key_heads + key_head) * p.size;
    const T *k = static_cast<const T *>(p.k) + base, *v = static_cast<const T *>(p.v) + base;
    const T *q = static_cast<const T *>(p.q) + (static_cast<int64_t>(b) * p.heads + head) * p.size;
    auto is_seen = [&](int key) { return key >= seen.x && key < seen.y; };

    uint4 keys[2 * ROUNDS][WIDE / 32], values[ROUNDS][WIDE / 64][4];
#pragma unroll
    for (int n = 0; n < 2 * ROUNDS; n++)
#pragma unroll
        for (int i = 0; i < WIDE / 32; i++) {
            int key = first + n * 8 + g, d = i * 32 + t * 8;
            keys[n][i] = read_16(k + key * step + d, is_seen(key) && d < p.size);
        }
    auto read_values = [&] {
#pragma unroll
        for (int r = 0; r < ROUNDS; r++)
#pragma unroll
            for (int c = 0; c < WIDE / 64; c++)
#pragma unroll
                for (int u = 0; u < 4; u++) {
                    int key = first + r * 16 + u / 2 * 8 + t * 2 + u % 2, d = c * 64 + g * 8;
                    values[r][c][u] = read_16(v + key * step + d, is_seen(key) && d < p.size);
                }
    };
    if constexpr (WIDE <= 128) read_values(); /* wider ones have no registers for both */
    float s[2 * ROUNDS][4] = {}, top = -INFINITY, total = 0;
#pragma unroll
    for (int i = 0; i < WIDE / 32; i++) {
        uint4 x = read_16(q + g * p.size + i * 32 + t * 8, g < heads && i * 32 + t * 8 < p.size);
#pragma unroll
        for (int n = 0; n < 2 * ROUNDS; n++) {
            multiply<T>(s[n], x.x, x.y, keys[n][i].x, keys[n][i].y);
            multiply<T>(s[n], x.z, x.w, keys[n][i].z, keys[n][i].w);
        }
    }
    if constexpr (WIDE > 128) read_values();
#pragma unroll
    for (int n = 0; n < 2 * ROUNDS; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float x = s[n][e] * p.factor;
            if (p.cap != 0) x = p.cap * fast_tanh(x);
            s[n][e] = is_seen(first + n * 8 + t * 2 + e) ? x : -INFINITY;
            top = fmaxf(top, s[n][e]);
        }
    top = fmaxf(top, __shfl_xor_sync(WARP, top, 1));
    top = fmaxf(top, __shfl_xor_sync(WARP, top, 2));
    float from = top == -INFINITY ? 0 : top;
#pragma unroll
    for (int n = 0; n < 2 * ROUNDS; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) total += s[n][e] = power_of_2(s[n][e] - from);
    total += __shfl_xor_sync(WARP, total, 1);
    total += __shfl_xor_sync(WARP, total, 2);

#pragma unroll
    for (int c = 0; c < WIDE / 64; c++) {
        float out[8][4] = {};
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            uint32_t a0 = pair_of<T>(s[2 * r][0], s[2 * r][1]),
                     a2 = pair_of<T>(s[2 * r + 1][0], s[2 * r + 1][1]);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                uint32_t pick = j % 2 ? 0x7632 : 0x5410;
                const uint4(&x)[4] = values[r][c];
                multiply<T>(out[j], a0, a2, __byte_perm(word(x[0], j / 2), word(x[1], j / 2), pick),
                            __byte_perm(word(x[2], j / 2), word(x[3], j / 2), pick));
            }
        }
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int j = 0; j < 8; j++) sums[warp][g][c * 64 + (t * 2 + e) * 8 + j] = out[j][e];
    }
    if (t == 0) tops[warp][g] = top, totals[warp][g] = total;
    __syncthreads();
    finish_split<HEADS, WIDE>(p, b, split, head, heads, tops, totals, sums);
}

/* ---- the splits of a sequence ---- */

/* A block per head of a sequence: warp w takes the splits w, w + 8, …, a lane every 32nd column. */
__global__ void __launch_bounds__(JOIN_THREADS) join_splits(const __grid_constant__ problem p)
{
    constexpr int JOINERS = JOIN_THREADS / 32, COLUMNS = WIDEST / 32;
    __shared__ float shared[JOINERS][WIDEST], tops[JOINERS], totals[JOINERS];
    int head = blockIdx.x, b = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int2 seen = span_of(p, b);
    if (seen.y == 0) return;
    int first = seen.x / p.split, end = (seen.y + p.split - 1) / p.split;
    int64_t part = static_cast<int64_t>(b) * p.splits * p.heads + head;
    float sink = p.sinks ? read(p.sinks, p.sinks_dtype, head) * LOG2_E : -INFINITY, top = sink, total = 0;
    for (int s = first + threadIdx.x; s < end; s += JOIN_THREADS)
        top = fmaxf(top, p.tops[part + static_cast<int64_t>(s) * p.heads]);
    top = warp_max(top);
    if (lane == 0) tops[warp] = top;
    __syncthreads();
    for (int w = 0; w < JOINERS; w++) top = fmaxf(top, tops[w]);
    if (top == -INFINITY) top = 0;

    float sums[COLUMNS] = {};
#pragma unroll 2
    for (int s = first + warp; s < end; s += JOINERS) {
        int64_t at = part + static_cast<int64_t>(s) * p.heads;
        float factor = exp2f(p.tops[at] - top);
        total = fmaf(factor, p.total[at], total);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            if (c * 32 + lane < p.size) sums[c] = fmaf(factor, p.sums[at * p.size + c * 32 + lane], sums[c]);
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) shared[warp][c * 32 + lane] = sums[c];
    if (lane == 0) totals[warp] = total;
    __syncthreads();
    total = p.sinks ? exp2f(sink - top) : 0;
    for (int w = 0; w < JOINERS; w++) total += totals[w];
    for (int d = threadIdx.x; d < p.size; d += JOIN_THREADS) {
        float sum = 0;
        for (int w = 0; w < JOINERS; w++) sum += shared[w][d];
        int64_t at = (static_cast<int64_t>(b) * p.heads + head) * p.size + d;
        if (p.dtype == NBL_DTYPE_F32) static_cast<float *>(p.out)[at] = sum / total;
        else if (p.dtype == NBL_DTYPE_F16) static_cast<__half *>(p.out)[at] = __float2half_rn(sum / total);
        else static_cast<__nv_bfloat16 *>(p.out)[at] = __float2bfloat16_rn(sum / total);
    }
}

/* ---- the operator ---- */

/* 16-byte vectors that a key takes, and the keys of a split. */
int vectors_of(const nbl__attention_decode *a)
{
    int64_t count = 16 / static_cast<int64_t>(nbl__size_of(a->k.dtype));
    return static_cast<int>((a->q.shape[2] + count - 1) / count);
}
int split_of(const nbl__attention_decode *a)
{
    return vectors_of(a) <= 8 ? shape<float, 8, 1, 1>::SPLIT : shape<float, 16, 1, 1>::SPLIT;
}
static_assert(shape<float, 16, 1, 1>::SPLIT == shape<float, 32, 1, 1>::SPLIT &&
              shape<float, 16, 1, 1>::SPLIT == shape<float, 32, 2, 1>::SPLIT);

const char *can_run(const void *arguments)
{
    const nbl__attention_decode *a = static_cast<const nbl__attention_decode *>(arguments);
    if (vectors_of(a) > 64) return "heads of more than 1024 bytes";
    if (a->k.shape[1] / 64 > 65535 || a->q.shape[0] > 65535)
        return "a cache of more than 4M keys or 65535 sequences";
    return NULL;
}

size_t lay_out(const nbl__attention_decode *a, uint8_t *base, problem *p)
{
    nbl__cut cut = {base, 0};
    int64_t split = split_of(a), splits = (a->k.shape[1] + split - 1) / split;
    size_t parts = static_cast<size_t>(a->q.shape[0] * splits * a->q.shape[1]);
    p->split = static_cast<int>(split);
    p->splits = static_cast<int>(splits);
    p->sums = static_cast<float *>(
        nbl__cut_bytes(&cut, parts * static_cast<size_t>(a->q.shape[2]) * sizeof(float)));
    p->tops = static_cast<float *>(nbl__cut_bytes(&cut, parts * sizeof(float)));
    p->total = static_cast<float *>(nbl__cut_bytes(&cut, parts * sizeof(float)));
    return cut.used;
}

size_t scratch_of(const nbl_context *ctx, const void *arguments)
{
    problem p;
    (void)ctx;
    return lay_out(static_cast<const nbl__attention_decode *>(arguments), NULL, &p);
}

template <typename T, int LANES, int VECTORS, int HEADS>
void launch_split(problem p, int64_t sequences, cudaStream_t stream)
{
    p.blocks_per_group = (p.group + HEADS - 1) / HEADS;
    dim3 grid(static_cast<unsigned>(p.key_heads * p.blocks_per_group), static_cast<unsigned>(p.splits),
              static_cast<unsigned>(sequences));
    decode_split<T, LANES, VECTORS, HEADS><<<grid, THREADS, 0, stream>>>(p);
}

template <typename T, int HEADS>
void launch(const problem &p, int vectors, int64_t sequences, cudaStream_t stream)
{
    if (vectors <= 8) launch_split<T, 8, 1, HEADS>(p, sequences, stream);
    else if (vectors <= 16) launch_split<T, 16, 1, HEADS>(p, sequences, stream);
    else if (vectors <= 32) launch_split<T, 32, 1, HEADS>(p, sequences, stream);
    else launch_split<T, 32, 2, HEADS>(p, sequences, stream);
}

template <typename T> void launch_mma(problem p, int64_t sequences, cudaStream_t stream)
{
    p.blocks_per_group = (p.group + 7) / 8;
    dim3 grid(static_cast<unsigned>(p.key_heads * p.blocks_per_group), static_cast<unsigned>(p.splits),
              static_cast<unsigned>(sequences));
    if (p.size <= 64) decode_mma<T, 64><<<grid, THREADS, 0, stream>>>(p);
    else if (p.size <= 128) decode_mma<T, 128><<<grid, THREADS, 0, stream>>>(p);
    else decode_mma<T, 256><<<grid, THREADS, 0, stream>>>(p);
}

nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__attention_decode *a = static_cast<const nbl__attention_decode *>(arguments);
    double scale = nbl__attention_scale(a->scale, a->q.shape[2]);
    problem p = {};
    lay_out(a, call->scratch, &p);
    if (a->q.shape[0] == 0 || p.splits == 0) return NBL_OK;
    p.q = a->q.data, p.k = a->k.data, p.v = a->v.data, p.sinks = a->sinks.data, p.out = a->out.data;
    p.lengths = static_cast<const int32_t *>(a->lengths.data);
    p.dtype = a->dtype;
    p.sinks_dtype = a->sinks.dtype;
    p.heads = static_cast<int>(a->q.shape[1]);
    p.key_heads = static_cast<int>(a->k.shape[2]);
    p.group = p.heads / p.key_heads;
    p.size = static_cast<int>(a->q.shape[2]);
    p.cached = static_cast<int>(a->k.shape[1]);
    p.window = static_cast<int>(a->window < a->k.shape[1] ? a->window : a->k.shape[1]);
    p.wide = static_cast<size_t>(p.size) * nbl__size_of(a->k.dtype) % 16 == 0 && is_aligned(p.k, 16) &&
             is_aligned(p.v, 16);
    p.factor = static_cast<float>(a->softcap != 0 ? scale / a->softcap : scale * 1.4426950408889634);
    p.cap = a->softcap * LOG2_E;
    p.fault = call->cuda->fault;
    bool mma = a->dtype == a->k.dtype && a->dtype != NBL_DTYPE_F32 && p.size <= 256 && p.wide &&
               is_aligned(p.q, 16);
    if (mma && a->dtype == NBL_DTYPE_F16) launch_mma<__half>(p, a->q.shape[0], stream_of(call));
    else if (mma) launch_mma<__nv_bfloat16>(p, a->q.shape[0], stream_of(call));
    else if (p.group == 1)
        NBL_BY_DTYPE(a->k.dtype, T, (launch<T, 1>(p, vectors_of(a), a->q.shape[0], stream_of(call))));
    else NBL_BY_DTYPE(a->k.dtype, T, (launch<T, 4>(p, vectors_of(a), a->q.shape[0], stream_of(call))));
    dim3 grid(static_cast<unsigned>(p.heads), static_cast<unsigned>(a->q.shape[0]));
    join_splits<<<grid, JOIN_THREADS, 0, stream_of(call)>>>(p);
    return launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__attention_decode_cuda = {"attention_decode_cuda", NBL_ISA_SCALAR, can_run, scratch_of,
                                              run};
}
