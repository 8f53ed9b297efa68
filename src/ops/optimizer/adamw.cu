/* adamw.cu - adamw for all tensors in one launch, or a few. See adamw.h.
 *
 * 32-bit moments: 28 bytes per element in f32. A thread loads two runs of four elements of p, g, m and v
 * before it stores the first. 8-bit moments: 16 bytes per element in f32. A warp takes a block of 256
 * elements. Its moments are f32 in registers only. The maps, and search trees of their mid-points, are in
 * shared memory. Limit of both: memory bandwidth.
 *
 * The operations and their order are those of the CPU's kernels with fused multiply-adds: the same bits. */
#include <float.h>

#include "ops/optimizer/tensor_spans.cuh"

extern "C" {
#include "ops/optimizer/adamw.h"
#include "quant/dynamic8_maps.h"
}

using namespace nbl_cuda;

namespace
{

/* SPAN_32, SPAN_8: elements per block. SMALL, MANY: tensors per launch. SMALL lists fit in 4 KB of
 * parameters. */
enum { THREADS = 256, SPAN_32 = 4096, SPAN_8 = 8192, SMALL = 56, MANY = 500 };

/* The same for all tensors of a call. rest = 1 - beta. */
struct constants {
    float grad_scale, beta1, rest1, beta2, rest2, eps, root_scale, step_size, shrink_before, shrink_after;
    const float *factor; /* of the gradients, too; or NULL */
};

/* A tensor; `first` is its first block in the launch. */
struct entry {
    void *p;
    const void *g;
    void *m, *v;
    float *m_absmax, *v_absmax;
    int64_t n;
    unsigned first;
    uint8_t p_dtype, g_dtype;
    bool aligned; /* runs of four */
};

using small = tensor_list<entry, SMALL, constants>;
using many = tensor_list<entry, MANY, constants>;

/* One element:
 *
 *     m = beta1·m + (1 - beta1)·g,   v = beta2·v + (1 - beta2)·g²
 *     p -= step_size · m / (√v · root_scale + eps) + p · shrink_before
 *     p -= p · shrink_after */
__device__ inline void step(const constants &c, float scale, float &p, float g, float &m, float &v)
{
    g *= scale;
    m = fmaf(c.beta1, m, c.rest1 * g);
    v = fmaf(c.beta2, v, c.rest2 * g * g);
    float root = fmaf(__fsqrt_rn(v), c.root_scale, c.eps);
    float moved = fmaf(c.step_size, __fdiv_rn(m, root), p * c.shrink_before);
    p -= moved;
    p = fmaf(-p, c.shrink_after, p);
}

/* Factor of the gradients. NaN: no parameter may change. */
__device__ inline float scale_of(const constants &c)
{
    return c.factor ? c.grad_scale * *c.factor : c.grad_scale;
}

/* Steps COUNT runs of N elements, `apart` from each other. All loads are issued before the first
 * store. */
template <int N, int COUNT>
__device__ void step_runs(const constants &c, float scale, const entry &e, int64_t first, int64_t apart)
{
    float p[COUNT][N], g[COUNT][N], m[COUNT][N], v[COUNT][N];
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        int64_t i = first + k * apart;
        load_any<N>(e.p, e.p_dtype, i, p[k]);
        load_any<N>(e.g, e.g_dtype, i, g[k]);
        load_run<float, N>(static_cast<const float *>(e.m) + i, m[k]);
        load_run<float, N>(static_cast<const float *>(e.v) + i, v[k]);
    }
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        int64_t i = first + k * apart;
#pragma unroll
        for (int j = 0; j < N; j++) step(c, scale, p[k][j], g[k][j], m[k][j], v[k][j]);
        store_any<N>(e.p, e.p_dtype, i, p[k]);
        store_run<float, N>(static_cast<float *>(e.m) + i, m[k]);
        store_run<float, N>(static_cast<float *>(e.v) + i, v[k]);
    }
}

/* f32 moments. A block has a span of SPAN_32 elements of one tensor: four elements per access, two
 * runs per thread in flight. Tensors that are not aligned go element by element. */
template <typename LIST> __global__ void __launch_bounds__(THREADS) step_32(const __grid_constant__ LIST list)
{
    constexpr int N = 4, APART = THREADS * N;
    const entry &e = list.at[entry_of(list, blockIdx.x)];
    float scale = scale_of(list.common);
    if (isnan(scale)) return;
    int64_t begin = static_cast<int64_t>(blockIdx.x - e.first) * SPAN_32;
    int64_t end = begin + SPAN_32 < e.n ? begin + SPAN_32 : e.n;
    if (!e.aligned) {
        for (int64_t i = begin + threadIdx.x; i < end; i += THREADS)
            step_runs<1, 1>(list.common, scale, e, i, 0);
        return;
    }
    int64_t i = begin + threadIdx.x * N;
    for (; i + APART + N <= end; i += 2 * APART) step_runs<N, 2>(list.common, scale, e, i, APART);
    for (; i + N <= end; i += APART) step_runs<N, 1>(list.common, scale, e, i, 0);
    for (; i < end; i++) step_runs<1, 1>(list.common, scale, e, i, 0); /* a last run that is not whole */
}

/* ---- 8 bits ---- */

__device__ const float maps[2][256] = {{NBL_DYNAMIC_MAP_SIGNED}, {NBL_DYNAMIC_MAP_UNSIGNED}};

/* A map in shared memory, and its mid-points as a search tree: node k has the children 2k and 2k + 1, the
 * root is 1. The nodes of a level are contiguous: bank conflicts are rare. */
struct coder {
    float map[256], tree[256], middles[256]; /* middles: in order; the last is NaN, equal to nothing */
};

/* Fills a coder from a map in device memory. THREADS is 256: a thread per entry. The caller
 * synchronises after it. */
__device__ inline void fill_coder(coder &c, const float *map)
{
    unsigned k = threadIdx.x; /* of 256 */
    float middle = k < 255 ? (map[k] + map[k + 1]) * 0.5f : __int_as_float(0x7fc00000);
    c.map[k] = map[k];
    c.middles[k] = middle;
    __syncthreads(); /* middles are complete */
    if (k == 0) return;
    unsigned level = 31 - __clz(k), width = 256u >> level;
    c.tree[k] = c.middles[(k - (1u << level)) * width + width / 2 - 1];
}

/* Code of the nearest entry. An exact tie goes to the even code. */
__device__ inline unsigned code_of(const coder &c, float y)
{
    unsigned node = 1;
#pragma unroll
    for (int level = 0; level < 8; level++) node = 2 * node + (y > c.tree[node]);
    unsigned code = node - 256;
    return y == c.middles[code] ? code + (code & 1) : code;
}

/* Quantizes a block of moments: codes of values / absmax. Returns absmax, the block's scale, in
 * each lane. If absmax is below FLT_MIN, all codes and the scale are 0. */
template <int COUNT>
__device__ float encode(const coder &c, bool is_signed, const float (&values)[COUNT],
                        unsigned (&codes)[COUNT])
{
    float absmax = 0;
#pragma unroll
    for (int k = 0; k < COUNT; k++)
        if (fabsf(values[k]) < INFINITY) absmax = fmaxf(absmax, fabsf(values[k]));
    absmax = warp_max(absmax);
    bool none = absmax < FLT_MIN;
    float reciprocal = __fdiv_rn(1.0f, absmax);
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        codes[k] = none ? 0 : code_of(c, values[k] * reciprocal);
        if (is_signed && codes[k] == 127 && __float_as_int(values[k]) < 0) codes[k] = 126; /* 127 is +0 */
    }
    return none ? 0 : absmax;
}

/* Steps a quantization block of 256 elements by a warp: 8 elements per lane, in runs of N. WHOLE:
 * the block has all 256.
 *
 *     codes, p, g → registers; m, v = map[code] · scale; step; p → memory
 *     for m, then v: absmax over the warp; new codes → memory */
template <int N, bool WHOLE>
__device__ void step_block(const constants &c, float scale, const entry &e, const coder *coders,
                           int64_t block)
{
    constexpr int COUNT = NBL_ADAMW_BLOCK / 32, RUNS = COUNT / N;
    int64_t first = block * NBL_ADAMW_BLOCK + threadIdx.x % 32 * N;
    uint8_t *m_codes = static_cast<uint8_t *>(e.m) + first, *v_codes = static_cast<uint8_t *>(e.v) + first;
    using bytes = pieces<uint8_t, N>::piece;
    float p[RUNS][N], g[RUNS][N], m[COUNT], v[COUNT], m_scale = e.m_absmax[block],
                                                      v_scale = e.v_absmax[block];
    bytes coded_m[RUNS], coded_v[RUNS];
    unsigned codes[COUNT];
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        int at = r * 32 * N;
        if (!WHOLE && first + at >= e.n) { /* N is 1 */
            coded_m[r] = coded_v[r] = bytes{};
            p[r][0] = g[r][0] = 0;
            continue;
        }
        coded_m[r] = *reinterpret_cast<const bytes *>(m_codes + at);
        coded_v[r] = *reinterpret_cast<const bytes *>(v_codes + at);
        load_any<N>(e.g, e.g_dtype, first + at, g[r]);
        load_any<N>(e.p, e.p_dtype, first + at, p[r]);
    }
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        int at = r * 32 * N;
        bool inside = WHOLE || first + at < e.n;
#pragma unroll
        for (int j = 0; j < N; j++) {
            float old = p[r][j], &mm = m[r * N + j], &vv = v[r * N + j];
            mm = coders[0].map[coded_m[r].at[j]] * m_scale;
            vv = coders[1].map[coded_v[r].at[j]] * v_scale;
            step(c, scale, p[r][j], g[r][j], mm, vv);
            if (!inside || !(fabsf(g[r][j]) < INFINITY)) { /* p stays, its moments become 0 */
                p[r][j] = old;
                mm = vv = 0;
            }
        }
        if (inside) store_any<N>(e.p, e.p_dtype, first + at, p[r]);
    }
#pragma unroll
    for (int which = 0; which < 2; which++) {
        float scale = encode(coders[which], which == 0, which ? v : m, codes);
        if (threadIdx.x % 32 == 0) (which ? e.v_absmax : e.m_absmax)[block] = scale;
#pragma unroll
        for (int r = 0; r < RUNS; r++) {
            bytes coded;
#pragma unroll
            for (int j = 0; j < N; j++) coded.at[j] = static_cast<uint8_t>(codes[r * N + j]);
            if (WHOLE || first + r * 32 * N < e.n)
                *reinterpret_cast<bytes *>((which ? v_codes : m_codes) + r * 32 * N) = coded;
        }
    }
}

/* 8-bit moments. A block has a span of SPAN_8 elements, a warp every eighth quantization block of
 * it. Coders take 6 KiB of shared memory. */
template <typename LIST>
__global__ void __launch_bounds__(THREADS, 3) step_8(const __grid_constant__ LIST list)
{
    __shared__ coder coders[2];
    float scale = scale_of(list.common);
    if (isnan(scale)) return;
    fill_coder(coders[0], maps[0]);
    fill_coder(coders[1], maps[1]);
    __syncthreads();
    constexpr int BLOCKS = SPAN_8 / NBL_ADAMW_BLOCK;
    const entry &e = list.at[entry_of(list, blockIdx.x)];
    int64_t begin = static_cast<int64_t>(blockIdx.x - e.first) * BLOCKS;
    for (int64_t block = begin + threadIdx.x / 32; block < begin + BLOCKS; block += THREADS / 32) {
        if (block * NBL_ADAMW_BLOCK >= e.n) return;
        bool whole = e.aligned && (block + 1) * NBL_ADAMW_BLOCK <= e.n;
        if (whole) step_block<4, true>(list.common, scale, e, coders, block);
        else step_block<1, false>(list.common, scale, e, coders, block);
    }
}

/* ---- host ---- */

constants constants_of(const nbl__adamw *a)
{
    nbl__adamw_factors f = nbl__adamw_factors_of(a);
    return {static_cast<float>(a->grad_scale),
            static_cast<float>(a->beta1),
            static_cast<float>(1 - a->beta1),
            static_cast<float>(a->beta2),
            static_cast<float>(1 - a->beta2),
            static_cast<float>(a->eps),
            static_cast<float>(f.root_scale),
            static_cast<float>(f.step_size),
            static_cast<float>(f.shrink_before),
            static_cast<float>(f.shrink_after),
            a->grad_factor};
}

bool four_aligned(const nbl_tensor *t)
{
    return is_aligned(t->data, 4 * nbl__size_of(t->dtype));
}

entry entry_at(const nbl__adamw *a, int64_t i)
{
    const nbl__adamw_tensor *t = &a->tensors[i];
    return {t->p.data,
            t->g.data,
            t->m.data,
            t->v.data,
            static_cast<float *>(t->m_absmax.data),
            static_cast<float *>(t->v_absmax.data),
            nbl__tensor_elements(&t->p),
            0,
            static_cast<uint8_t>(t->p.dtype),
            static_cast<uint8_t>(t->g.dtype),
            four_aligned(&t->p) && four_aligned(&t->g) && four_aligned(&t->m) && four_aligned(&t->v)};
}

template <typename LIST> void step_all(const nbl__call *call, const nbl__adamw *a)
{
    cudaStream_t stream = stream_of(call);
    for_lists<LIST>(
        a->count, a->bits == 8 ? SPAN_8 : SPAN_32, constants_of(a),
        [=](int64_t i) { return entry_at(a, i); },
        [=](const LIST &list, unsigned spans) {
            if (a->bits == 8) step_8<<<spans, THREADS, 0, stream>>>(list);
            else step_32<<<spans, THREADS, 0, stream>>>(list);
        });
}

nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__adamw *a = static_cast<const nbl__adamw *>(arguments);
    if (a->count <= SMALL) step_all<small>(call, a);
    else step_all<many>(call, a);
    return launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__adamw_cuda = {
    .name = "adamw_cuda", .needs = NBL_ISA_SCALAR, .can = nullptr, .scratch = nullptr, .run = run};
}
