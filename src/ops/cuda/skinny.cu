/* skinny.cu - see skinny.h. Tensor cores by mma.m16n8k16, f32 sums.
 *
 * project: a block has 64 rows (16 where there are few) and all columns; its warps take columns in turn, 32 at a time,
 * straight from memory into fragments, 16 bytes per thread: which column stands for which k of the instruction does
 * not matter as long as both operands agree. The warps' sums are added up at the end, in their order.
 *
 * sweep: a block has a share of the rows and of the columns, 1024 by 1024 or so, which come through shared memory. A warp's
 * columns stay the same, so that its part of a and its sums of the outer product stay in registers; the
 * projection of 16 rows is added up over the warps at once. What blocks have in common is added up by a second kernel: a few
 * per cent of what was read. */
#include "ops/cuda/kernel.cuh"

extern "C" {
#include "ops/cuda/skinny.h"
}

using namespace nbl_cuda;

namespace
{

constexpr int THREADS = 256, WARPS = THREADS / 32;

__device__ inline void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Eight values that are aligned to 16 bytes, or only to one of them. */
__device__ inline uint4 eight(const __nv_bfloat16 *from, bool aligned)
{
    if (aligned) return *reinterpret_cast<const uint4 *>(from);
    const unsigned short *halves = reinterpret_cast<const unsigned short *>(from);
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) words[i] = halves[2 * i] | static_cast<uint32_t>(halves[2 * i + 1]) << 16;
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* ---- project ---- */

template <int M> struct rows_part {
    uint4 upper[M], lower[M]; /* of rows g and g + 8 of each 16 */
};

template <bool ALIGNED, int M>
__device__ inline void load_rows(const nbl__project &p, int64_t row, int64_t column, rows_part<M> &part)
{
    const __nv_bfloat16 *x = static_cast<const __nv_bfloat16 *>(p.x);
    const uint4 none = make_uint4(0, 0, 0, 0);
    bool inside = column < p.columns;
#pragma unroll
    for (int m = 0; m < M; m++) {
        int64_t r = row + 16 * m;
        part.upper[m] = inside && r < p.rows ? eight(x + r * p.columns + column, ALIGNED) : none;
        part.lower[m] = inside && r + 8 < p.rows ? eight(x + (r + 8) * p.columns + column, ALIGNED) : none;
    }
}

template <bool ALIGNED, int M, int N>
__global__ void __launch_bounds__(THREADS, 1) project_kernel(const __grid_constant__ nbl__project p)
{
    __shared__ float shared[WARPS][16][8 * N + 2];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    int64_t first = static_cast<int64_t>(blockIdx.x) * 16 * M;
    const __nv_bfloat16 *a = static_cast<const __nv_bfloat16 *>(p.a);
    float sums[M][N][4] = {};
    rows_part<M> now, next;
    int64_t column = warp * 32 + q * 8;
    load_rows<ALIGNED>(p, first + g, column, now);
    for (; column - q * 8 < p.columns; column += 32 * WARPS) {
        load_rows<ALIGNED>(p, first + g, column + 32 * WARPS, next);
        uint4 b[N];
#pragma unroll
        for (int n = 0; n < N; n++)
            b[n] = column < p.columns
                       ? __ldg(reinterpret_cast<const uint4 *>(a + (8 * n + g) * p.columns + column))
                       : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                multiply(sums[m][n], now.upper[m].x, now.lower[m].x, now.upper[m].y, now.lower[m].y, b[n].x,
                         b[n].y);
                multiply(sums[m][n], now.upper[m].z, now.lower[m].z, now.upper[m].w, now.lower[m].w, b[n].z,
                         b[n].w);
            }
        now = next;
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        __syncthreads();
#pragma unroll
        for (int n = 0; n < N; n++) {
            shared[warp][g][8 * n + 2 * q] = sums[m][n][0];
            shared[warp][g][8 * n + 2 * q + 1] = sums[m][n][1];
            shared[warp][g + 8][8 * n + 2 * q] = sums[m][n][2];
            shared[warp][g + 8][8 * n + 2 * q + 1] = sums[m][n][3];
        }
        __syncthreads();
        for (int i = threadIdx.x; i < 16 * 8 * N; i += THREADS) {
            int r = i / (8 * N), c = i % (8 * N);
            int64_t row = first + 16 * m + r;
            if (row >= p.rows) continue;
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += shared[w][r][c];
            sum = p.ones >> c & 1 ? 1 : sum * p.scales[c / 8];
            static_cast<__nv_bfloat16 *>(p.to)[row * p.to_ld + c] = __float2bfloat16_rn(sum);
        }
    }
}

template <bool ALIGNED, int M> void launch_project(const nbl__project &p, cudaStream_t stream)
{
    unsigned blocks = static_cast<unsigned>((p.rows + 16 * M - 1) / (16 * M));
    if (p.wide == 16) project_kernel<ALIGNED, M, 2><<<blocks, THREADS, 0, stream>>>(p);
    else if (p.wide == 32) project_kernel<ALIGNED, M, 4><<<blocks, THREADS, 0, stream>>>(p);
    else if (p.wide == 48) project_kernel<ALIGNED, M, 6><<<blocks, THREADS, 0, stream>>>(p);
    else if constexpr (M <= 2) project_kernel<ALIGNED, M, 8><<<blocks, THREADS, 0, stream>>>(p);
}

/* ---- sweep ---- */

constexpr int STAGE_VALUES = 16384, DEVICE = 132; /* of z in a stage; blocks that fill a device */

struct sweep_job {
    int64_t rows, columns, share, v_ld; /* share: rows of a block */
    const __nv_bfloat16 *z, *a, *v;
    float *projected,
        *outer; /* parts: [column blocks, rows, wide] and [shares, columns, wide]; NULL: not wanted */
    bool aligned;
};

/* Sizes for N times 8 results: the more of them, the fewer columns, so that a warp's sums are 64 registers. */
template <int N> struct sizes {
    static constexpr int OF_WARP = 256 / N, COLUMNS = OF_WARP * WARPS, ROWS = STAGE_VALUES / COLUMNS;
    static constexpr int STAGES = N == 8 ? 3 : 4,
                         V_LD = 8 * N + 8; /* eight rows of v fall into different banks */
    struct stage {
        __nv_bfloat16 z[ROWS]
                       [COLUMNS]; /* 16-byte pieces of a row are exchanged by the row's last three bits */
        __nv_bfloat16 v[ROWS][V_LD];
    };
    struct memory {
        stage stages[STAGES];
        float warps[2][WARPS][16][8 * N];
    };
};

__device__ inline uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
/* 16 bytes, or zeros where there is nothing to read. */
__device__ inline void copy16(uint32_t to, const void *from, bool inside)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0));
}
__device__ inline void load4(uint32_t (&r)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from));
}
__device__ inline void turn4(uint32_t (&r)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from));
}

template <int N>
__device__ inline void fetch(const sweep_job &j, typename sizes<N>::stage &s, int64_t row, int64_t end,
                             int64_t column)
{
    constexpr int PIECES = sizes<N>::COLUMNS / 8;
#pragma unroll
    for (int i = 0; i < STAGE_VALUES / 8 / THREADS; i++) {
        int piece = i * THREADS + threadIdx.x, r = piece / PIECES, c = piece % PIECES;
        bool inside = row + r < end && column + 8 * c < j.columns;
        const __nv_bfloat16 *from = inside ? j.z + (row + r) * j.columns + column + 8 * c : j.z;
        __nv_bfloat16 *to = &s.z[r][8 * (c ^ (r & 7))];
        if (j.aligned) copy16(shared_address(to), from, inside);
        else *reinterpret_cast<uint4 *>(to) = inside ? eight(from, false) : make_uint4(0, 0, 0, 0);
    }
    if (j.outer == NULL) return;
    for (int i = threadIdx.x; i < sizes<N>::ROWS * N; i += THREADS) {
        int r = i / N, c = i % N;
        bool inside = row + r < end;
        copy16(shared_address(&s.v[r][8 * c]), inside ? j.v + (row + r) * j.v_ld + 8 * c : j.v, inside);
    }
}

template <int N>
__global__ void __launch_bounds__(THREADS, 1) sweep_kernel(const __grid_constant__ sweep_job j)
{
    typedef sizes<N> size;
    constexpr int STEPS = size::OF_WARP / 16, STAGES = size::STAGES;
    extern __shared__ __align__(16) unsigned char bytes[];
    typename size::memory &memory = *reinterpret_cast<typename size::memory *>(bytes);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    int matrix = lane / 8, line = lane % 8;
    int64_t column = static_cast<int64_t>(blockIdx.x) * size::COLUMNS, first = blockIdx.y * j.share;
    int64_t end = first + j.share < j.rows ? first + j.share : j.rows;
    int steps = static_cast<int>((end - first + size::ROWS - 1) / size::ROWS);
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < steps) fetch<N>(j, memory.stages[i], first + i * size::ROWS, end, column);
        asm volatile("cp.async.commit_group;");
    }
    uint32_t a[STEPS][N][2]; /* the warp's columns of a never change */
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int64_t c = column + warp * size::OF_WARP + 16 * k + 8 * half + 2 * q;
                a[k][n][half] = j.projected && c < j.columns
                                    ? *reinterpret_cast<const uint32_t *>(j.a + (8 * n + g) * j.columns + c)
                                    : 0;
            }
    float outer[STEPS][N][4] = {};
    int turn = 0;
    for (int i = 0; i < steps; i++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        __syncthreads();
        int ahead = i + STAGES - 1;
        if (ahead < steps)
            fetch<N>(j, memory.stages[ahead % STAGES], first + ahead * size::ROWS, end, column);
        asm volatile("cp.async.commit_group;");
        const typename size::stage &s = memory.stages[i % STAGES];
        int64_t row = first + i * size::ROWS;
#pragma unroll 1
        for (int base = 0; base < size::ROWS; base += 16) {
            uint32_t z[4], v[N][2];
            float projected[N][4] = {};
            if (j.outer) {
#pragma unroll
                for (int n = 0; n < N; n += 2) {
                    uint32_t two[4];
                    turn4(two,
                          shared_address(&s.v[base + line + (matrix & 1 ? 8 : 0)][8 * (n + (matrix >> 1))]));
                    v[n][0] = two[0], v[n][1] = two[1], v[n + 1][0] = two[2], v[n + 1][1] = two[3];
                }
#pragma unroll
                for (int k = 0; k < STEPS; k++) { /* z, turned: columns are the rows of this product */
                    int r = base + line + (matrix & 2 ? 8 : 0), c = warp * (2 * STEPS) + 2 * k + (matrix & 1);
                    turn4(z, shared_address(&s.z[r][8 * (c ^ (r & 7))]));
#pragma unroll
                    for (int n = 0; n < N; n++)
                        multiply(outer[k][n], z[0], z[1], z[2], z[3], v[n][0], v[n][1]);
                }
            }
            if (j.projected == NULL) continue;
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                int r = base + line + (matrix & 1 ? 8 : 0), c = warp * (2 * STEPS) + 2 * k + (matrix >> 1);
                load4(z, shared_address(&s.z[r][8 * (c ^ (r & 7))]));
#pragma unroll
                for (int n = 0; n < N; n++)
                    multiply(projected[n], z[0], z[1], z[2], z[3], a[k][n][0], a[k][n][1]);
            }
            float(&mine)[16][8 * N] = memory.warps[turn][warp];
#pragma unroll
            for (int n = 0; n < N; n++) {
                *reinterpret_cast<float2 *>(&mine[g][8 * n + 2 * q]) = make_float2(projected[n][0],
                                                                                   projected[n][1]);
                *reinterpret_cast<float2 *>(&mine[g + 8][8 * n + 2 * q]) = make_float2(projected[n][2],
                                                                                       projected[n][3]);
            }
            __syncthreads();
            for (int at = threadIdx.x; at < 16 * 8 * N; at += THREADS) {
                int r = at / (8 * N), c = at % (8 * N);
                if (row + base + r >= end) continue;
                float sum = 0;
#pragma unroll
                for (int w = 0; w < WARPS; w++) sum += memory.warps[turn][w][r][c];
                j.projected[(blockIdx.x * j.rows + row + base + r) * (8 * N) + c] = sum;
            }
            turn ^= 1;
        }
    }
    if (j.outer == NULL) return;
    float *parts = j.outer + blockIdx.y * j.columns * (8 * N);
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int64_t c = column + warp * size::OF_WARP + 16 * k + 8 * half + g;
            if (c >= j.columns) continue;
#pragma unroll
            for (int n = 0; n < N; n++)
                *reinterpret_cast<float2 *>(parts + c * (8 * N) + 8 * n + 2 * q) = make_float2(
                    outer[k][n][2 * half], outer[k][n][2 * half + 1]);
        }
}

/* Adds up the parts: first those of the outer product, 32 columns per block, then of the projection, 32 rows. */
struct gather_job {
    const float *projected, *outer;
    int64_t rows, columns, to_ld, outer_blocks;
    int wide, rank, shares, column_blocks;
    float scale;
    __nv_bfloat16 *to;
    float *gradient;
    bool turned, accumulate;
};

__global__ void __launch_bounds__(THREADS) gather_kernel(const __grid_constant__ gather_job j)
{
    __shared__ float tile[32][NBL_SKINNY_MOST + 1];
    bool is_outer = blockIdx.x < j.outer_blocks;
    const float *parts = is_outer ? j.outer : j.projected;
    int64_t lines = is_outer ? j.columns : j.rows;
    int64_t first = (is_outer ? blockIdx.x : blockIdx.x - j.outer_blocks) * 32;
    int count = is_outer ? j.shares : j.column_blocks;
    for (int i = threadIdx.x; i < 32 * j.wide; i += THREADS) {
        int l = i / j.wide, r = i % j.wide;
        if (first + l >= lines) continue;
        float sum = 0;
        for (int s = 0; s < count; s++) sum += parts[(s * lines + first + l) * j.wide + r];
        if (is_outer) tile[l][r] = sum;
        else j.to[(first + l) * j.to_ld + r] = __float2bfloat16_rn(sum * j.scale);
    }
    if (!is_outer) return;
    __syncthreads();
    for (int i = threadIdx.x; i < 32 * j.rank; i += THREADS) {
        int r = j.turned ? i / 32 : i % j.rank, l = j.turned ? i % 32 : i / j.rank;
        if (first + l >= lines) continue;
        float *at = j.gradient + (j.turned ? r * lines + first + l : (first + l) * j.rank + r);
        *at = j.accumulate ? *at + tile[l][r] : tile[l][r];
    }
}

int64_t columns_of(int wide)
{
    return 256 / (wide / 8) * WARPS;
}
/* Rows of each share: enough shares to fill the device, in multiples of any stage's rows. */
int64_t shares_wanted(int64_t columns, int wide)
{
    int64_t across = (columns + columns_of(wide) - 1) / columns_of(wide);
    return across < DEVICE ? DEVICE / across : 1;
}

int64_t share_of(int64_t rows, int64_t columns, int wide)
{
    int64_t shares = shares_wanted(columns, wide), share = (rows + shares - 1) / shares;
    return (share + 63) / 64 * 64;
}

template <int N> nbl_status launch_sweep(const nbl__call *call, const sweep_job &j, dim3 grid)
{
    constexpr int BYTES = sizeof(typename sizes<N>::memory);
    cudaFuncSetAttribute(sweep_kernel<N>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    sweep_kernel<N><<<grid, THREADS, BYTES, stream_of(call)>>>(j);
    return launched(call);
}

} // namespace

extern "C" nbl_status nbl__cuda_project(const nbl__call *call, const nbl__project *p)
{
    constexpr int64_t FEW = 132 * 64; /* rows: beyond, blocks of 64 fill the device */
    if (p->rows == 0 || p->wide == 0) return NBL_OK;
    if (!is_aligned(p->x, 16)) launch_project<false, 1>(*p, stream_of(call));
    else if (p->rows > FEW / 2 && p->wide <= 48) launch_project<true, 4>(*p, stream_of(call));
    else if (p->rows > FEW / 4) launch_project<true, 2>(*p, stream_of(call));
    else launch_project<true, 1>(*p, stream_of(call));
    return launched(call);
}

struct sweep_sizes {
    int64_t share, shares, column_blocks;
    size_t outer, projected; /* bytes */
};

static sweep_sizes sizes_of(int64_t rows, int64_t columns, int wide)
{
    sweep_sizes s;
    s.share = share_of(rows, columns, wide);
    s.shares = (rows + s.share - 1) / s.share;
    s.column_blocks = (columns + columns_of(wide) - 1) / columns_of(wide);
    s.outer = static_cast<size_t>(s.shares * columns * wide) * 4;
    s.projected = static_cast<size_t>(s.column_blocks * rows * wide) * 4;
    return s;
}

extern "C" size_t nbl__cuda_sweep_scratch(int64_t rows, int64_t columns, int wide)
{
    int64_t pieces = (rows + 63) / 64, most = shares_wanted(columns, wide); /* fewer rows may have more shares */
    return static_cast<size_t>((pieces < most ? pieces : most) * columns * wide) * 4 +
           sizes_of(rows, columns, wide).projected;
}

extern "C" nbl_status nbl__cuda_sweep(const nbl__call *call, const nbl__sweep *s, void *scratch)
{
    if (s->rows == 0 || s->columns == 0) return NBL_OK;
    sweep_sizes size = sizes_of(s->rows, s->columns, s->wide);
    sweep_job j = {};
    j.rows = s->rows, j.columns = s->columns, j.share = size.share, j.v_ld = s->v_ld;
    j.z = static_cast<const __nv_bfloat16 *>(s->z);
    j.a = static_cast<const __nv_bfloat16 *>(s->a);
    j.v = static_cast<const __nv_bfloat16 *>(s->v);
    j.outer = s->gradient ? static_cast<float *>(scratch) : NULL;
    j.projected = s->to ? static_cast<float *>(scratch) + size.outer / 4 : NULL;
    j.aligned = is_aligned(s->z, 16);
    dim3 grid(static_cast<unsigned>(size.column_blocks), static_cast<unsigned>(size.shares));
    if (s->wide == 16) NBL_TRY(launch_sweep<2>(call, j, grid));
    else if (s->wide == 32) NBL_TRY(launch_sweep<4>(call, j, grid));
    else NBL_TRY(launch_sweep<8>(call, j, grid));
    gather_job g = {};
    g.projected = j.projected, g.outer = j.outer;
    g.rows = s->rows, g.columns = s->columns, g.to_ld = s->to_ld;
    g.wide = s->wide, g.rank = s->rank;
    g.shares = static_cast<int>(size.shares), g.column_blocks = static_cast<int>(size.column_blocks);
    g.scale = s->scale;
    g.to = static_cast<__nv_bfloat16 *>(s->to), g.gradient = s->gradient;
    g.turned = s->turned, g.accumulate = s->accumulate;
    g.outer_blocks = s->gradient ? (s->columns + 31) / 32 : 0;
    int64_t blocks = g.outer_blocks + (s->to ? (s->rows + 31) / 32 : 0);
    if (blocks > 0) gather_kernel<<<static_cast<unsigned>(blocks), THREADS, 0, stream_of(call)>>>(g);
    return launched(call);
}

/* ---- scattering ---- */

namespace
{
struct scatter_job {
    nbl__scatter_part parts[4];
};

__global__ void scatter_kernel(const float *from, int64_t columns, const __grid_constant__ scatter_job j)
{
    const nbl__scatter_part &p = j.parts[blockIdx.y];
    int64_t n = p.count * columns, step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += step) {
        float value = from[p.first * columns + i];
        p.to[i] = p.accumulate ? p.to[i] + value : value;
    }
}
} // namespace

extern "C" nbl_status nbl__cuda_scatter(const nbl__call *call, const float *from, int64_t columns,
                                        const nbl__scatter_part *parts, int count)
{
    scatter_job j = {};
    for (int i = 0; i < count; i++) j.parts[i] = parts[i];
    if (count == 0 || columns == 0) return NBL_OK;
    scatter_kernel<<<dim3(128, static_cast<unsigned>(count)), THREADS, 0, stream_of(call)>>>(from, columns,
                                                                                             j);
    return launched(call);
}
