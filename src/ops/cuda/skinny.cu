/* skinny.cu - see skinny.h. Tensor cores by mma.m16n8k16, f32 sums.
 *
 * project: a block has 64 rows (16 where there are few) and all columns; its warps take columns in turn, 32 at a time, 16 bytes
 * per thread and row: which column stands for which k of the instruction does not matter as long as both operands agree. The
 * warps' sums are added up at the end, in their order.
 *
 * sweep: a block has a share of the rows and of the columns, 1024 by 1024 or so. A warp's columns stay the same, so that its
 * part of a and its sums of the outer product stay in registers; projections are added up over the warps, 64 rows at a
 * time. What blocks have in common is added up by a second kernel: a few per cent of what was read. */
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

__device__ inline uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
/* 16 bytes, or zeros where there is nothing to read. */
__device__ inline void copy16(uint32_t to, const void *from, bool inside)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0));
}
/* ---- project ---- */

/* What a thread asked for and has not got yet, in its own part of shared memory: nobody waits for anybody else. */
template <int M> struct queue {
    static constexpr int COLUMNS = 32 * WARPS, STAGES = M == 4 ? 5 : M == 2 ? 8 : 12;
    uint4 pieces[STAGES][2 * M][THREADS];
};

template <int M>
__device__ inline void ask(const nbl__project &p, bool aligned, uint4 (&to)[2 * M][THREADS], int64_t row,
                           int64_t column)
{
    const __nv_bfloat16 *x = static_cast<const __nv_bfloat16 *>(p.x);
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
        bool inside = row + 8 * i < p.rows && column < p.columns;
        const __nv_bfloat16 *from = inside ? x + (row + 8 * i) * p.columns + column : x;
        if (aligned) copy16(shared_address(&to[i][threadIdx.x]), from, inside);
        else to[i][threadIdx.x] = inside ? eight(from, false) : make_uint4(0, 0, 0, 0);
    }
}

template <int M, int N, bool COPY>
__global__ void __launch_bounds__(THREADS, 1)
    project_kernel(const __grid_constant__ nbl__project p, bool aligned)
{
    constexpr int COLUMNS = queue<M>::COLUMNS, STAGES = queue<M>::STAGES;
    extern __shared__ __align__(16) unsigned char bytes[];
    __shared__ float shared[WARPS][16][8 * N + 2];
    queue<M> &asked = *reinterpret_cast<queue<M> *>(bytes);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    int64_t first = static_cast<int64_t>(blockIdx.x) * 16 * M, start = warp * 32 + q * 8;
    const __nv_bfloat16 *a = static_cast<const __nv_bfloat16 *>(p.a);
    int steps = static_cast<int>((p.columns + COLUMNS - 1) / COLUMNS);
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < steps)
            ask<M>(p, aligned, asked.pieces[i], first + g, start + static_cast<int64_t>(i) * COLUMNS);
        asm volatile("cp.async.commit_group;");
    }
    float sums[M][N][4] = {};
    for (int i = 0; i < steps; i++) {
        int64_t column = start + static_cast<int64_t>(i) * COLUMNS;
        uint4 b[N];
#pragma unroll
        for (int n = 0; n < N; n++)
            b[n] = column < p.columns
                       ? __ldg(reinterpret_cast<const uint4 *>(a + (8 * n + g) * p.columns + column))
                       : make_uint4(0, 0, 0, 0);
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        uint4 x[2 * M];
#pragma unroll
        for (int m = 0; m < 2 * M; m++) x[m] = asked.pieces[i % STAGES][m][threadIdx.x];
        int ahead = i + STAGES - 1;
        if (ahead < steps)
            ask<M>(p, aligned, asked.pieces[ahead % STAGES], first + g,
                   start + static_cast<int64_t>(ahead) * COLUMNS);
        asm volatile("cp.async.commit_group;");
        if (COPY && column < p.columns) {
            __nv_bfloat16 *to = static_cast<__nv_bfloat16 *>(p.copy) + (first + g) * p.copy_ld + column;
#pragma unroll
            for (int m = 0; m < 2 * M; m++)
                if (first + g + 8 * m < p.rows) *reinterpret_cast<uint4 *>(to + 8 * m * p.copy_ld) = x[m];
        }
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                uint4 upper = x[2 * m], lower = x[2 * m + 1];
                multiply(sums[m][n], upper.x, lower.x, upper.y, lower.y, b[n].x, b[n].y);
                multiply(sums[m][n], upper.z, lower.z, upper.w, lower.w, b[n].z, b[n].w);
            }
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

template <int M, int N, bool COPY> void launch_project_as(const nbl__project &p, cudaStream_t stream)
{
    unsigned blocks = static_cast<unsigned>((p.rows + 16 * M - 1) / (16 * M));
    cudaFuncSetAttribute(project_kernel<M, N, COPY>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         sizeof(queue<M>));
    project_kernel<M, N, COPY><<<blocks, THREADS, sizeof(queue<M>), stream>>>(p, is_aligned(p.x, 16));
}

template <int M, int N> void launch_project_of(const nbl__project &p, cudaStream_t stream)
{
    if (p.copy) launch_project_as<M, N, true>(p, stream);
    else launch_project_as<M, N, false>(p, stream);
}

template <int M> void launch_project(const nbl__project &p, cudaStream_t stream)
{
    if (p.wide == 16) launch_project_of<M, 2>(p, stream);
    else if (p.wide == 32) launch_project_of<M, 4>(p, stream);
    else if (p.wide == 48) launch_project_of<M, 6>(p, stream);
    else if constexpr (M <= 2) launch_project_of<M, 8>(p, stream);
}

/* ---- sweep ---- */

constexpr int DEVICE = 132; /* blocks that fill a device */

struct sweep_job {
    int64_t rows, columns, share, v_ld, copy_ld; /* share: rows of a block */
    const __nv_bfloat16 *z, *a, *v;
    __nv_bfloat16 *copy;
    float *projected, *outer; /* parts: [column blocks, rows, wide] and [shares, columns, wide] */
    bool aligned;
};

/* Sizes for N times 8 results: the more of them, the fewer columns, so that a warp's sums are 64 registers. A warp fetches what
 * it multiplies itself, so that warps wait for each other only where their projections are added up. */
template <int N> struct sizes {
    static constexpr int OF_WARP = 256 / N, COLUMNS = OF_WARP * WARPS, STAGES = N == 2 ? 4 : 6, GROUP = 4;
    static constexpr int V_LD = 8 * N + 8; /* eight rows of v fall into different banks */
    struct stage {
        __nv_bfloat16 z[16][OF_WARP]; /* 16-byte pieces are exchanged by the row's last three bits */
        __nv_bfloat16 v[16][V_LD];
    };
    struct memory {
        stage stages[WARPS][STAGES];
        float projected[WARPS][16 * GROUP][8 * N];
    };
};

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

/* 16 rows of a warp's columns, and of v. */
template <int N>
__device__ inline void fetch(const sweep_job &j, typename sizes<N>::stage &s, int64_t row, int64_t end,
                             int64_t column)
{
    constexpr int PIECES = sizes<N>::OF_WARP / 8;
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 16 * PIECES / 32; i++) {
        int r = (i * 32 + lane) / PIECES, c = lane % PIECES;
        bool inside = row + r < end && column + 8 * c < j.columns;
        const __nv_bfloat16 *from = inside ? j.z + (row + r) * j.columns + column + 8 * c : j.z;
        __nv_bfloat16 *to = &s.z[r][8 * (c ^ (r & 7))];
        if (j.aligned) copy16(shared_address(to), from, inside);
        else *reinterpret_cast<uint4 *>(to) = inside ? eight(from, false) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < 16 * N / 32; i++) {
        int r = (i * 32 + lane) / N, c = lane % N;
        bool inside = row + r < end;
        copy16(shared_address(&s.v[r][8 * c]), inside ? j.v + (row + r) * j.v_ld + 8 * c : j.v, inside);
    }
}

/* What was fetched, into the copy, by whoever fetched it. */
template <int N>
__device__ inline void hand_on(const sweep_job &j, const typename sizes<N>::stage &s, int64_t row,
                               int64_t end, int64_t column)
{
    constexpr int PIECES = sizes<N>::OF_WARP / 8;
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 16 * PIECES / 32; i++) {
        int r = (i * 32 + lane) / PIECES, c = lane % PIECES;
        if (row + r >= end || column + 8 * c >= j.columns) continue;
        *reinterpret_cast<uint4 *>(j.copy + (row + r) * j.copy_ld + column +
                                   8 * c) = *reinterpret_cast<const uint4 *>(&s.z[r][8 * (c ^ (r & 7))]);
    }
}

template <int N, bool COPY>
__global__ void __launch_bounds__(THREADS, 1) sweep_kernel(const __grid_constant__ sweep_job j)
{
    typedef sizes<N> size;
    constexpr int STEPS = size::OF_WARP / 16, STAGES = size::STAGES, GROUP = size::GROUP;
    extern __shared__ __align__(16) unsigned char bytes[];
    typename size::memory &memory = *reinterpret_cast<typename size::memory *>(bytes);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    int matrix = lane / 8, line = lane % 8;
    int64_t column = static_cast<int64_t>(blockIdx.x) * size::COLUMNS + warp * size::OF_WARP;
    int64_t first = blockIdx.y * j.share, end = first + j.share < j.rows ? first + j.share : j.rows;
    int steps = static_cast<int>((end - first + 15) / 16);
    typename size::stage *stages = memory.stages[warp];
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < steps) fetch<N>(j, stages[i], first + i * 16, end, column);
        asm volatile("cp.async.commit_group;");
    }
    uint32_t a[STEPS][N][2]; /* the warp's columns of a never change */
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int64_t c = column + 16 * k + 8 * half + 2 * q;
                a[k][n][half] = c < j.columns
                                    ? *reinterpret_cast<const uint32_t *>(j.a + (8 * n + g) * j.columns + c)
                                    : 0;
            }
    float outer[STEPS][N][4] = {};
    for (int i = 0; i < steps; i++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncwarp();
        int ahead = i + STAGES - 1;
        if (ahead < steps) fetch<N>(j, stages[ahead % STAGES], first + ahead * 16, end, column);
        asm volatile("cp.async.commit_group;");
        const typename size::stage &s = stages[i % STAGES];
        if (COPY) hand_on<N>(j, s, first + i * 16, end, column);
        uint32_t v[N][2];
        float projected[2][N][4] = {};
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t two[4];
            turn4(two, shared_address(&s.v[line + (matrix & 1 ? 8 : 0)][8 * (n + (matrix >> 1))]));
            v[n][0] = two[0], v[n][1] = two[1], v[n + 1][0] = two[2], v[n + 1][1] = two[3];
        }
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            uint32_t turned[4], straight[4];
            int r = line + (matrix & 2 ? 8 : 0), t = line + (matrix & 1 ? 8 : 0);
            /* turned, columns of z are the rows of the product */
            turn4(turned, shared_address(&s.z[r][8 * ((2 * k + (matrix & 1)) ^ (r & 7))]));
            load4(straight, shared_address(&s.z[t][8 * ((2 * k + (matrix >> 1)) ^ (t & 7))]));
#pragma unroll
            for (int n = 0; n < N; n++) {
                multiply(outer[k][n], turned[0], turned[1], turned[2], turned[3], v[n][0], v[n][1]);
                multiply(projected[k % 2][n], straight[0], straight[1], straight[2], straight[3], a[k][n][0],
                         a[k][n][1]);
            }
        }
        int base = i % GROUP * 16;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *reinterpret_cast<float2 *>(&memory.projected[warp][base + g + 8 * half][8 * n + 2 * q]) =
                    make_float2(projected[0][n][2 * half] + projected[1][n][2 * half],
                                projected[0][n][2 * half + 1] + projected[1][n][2 * half + 1]);
        if (i % GROUP != GROUP - 1 && i != steps - 1) continue;
        __syncthreads(); /* the warps' projections, added up in their order */
        int64_t row = first + (i - i % GROUP) * 16;
        for (int at = threadIdx.x; at < (base + 16) * 8 * N; at += THREADS) {
            int r = at / (8 * N), c = at % (8 * N);
            if (row + r >= end) continue;
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += memory.projected[w][r][c];
            j.projected[(blockIdx.x * j.rows + row + r) * (8 * N) + c] = sum;
        }
        __syncthreads();
    }
    float *parts = j.outer + blockIdx.y * j.columns * (8 * N);
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int64_t c = column + 16 * k + 8 * half + g;
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
#pragma unroll 8
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
int64_t share_of(int64_t rows, int64_t columns, int wide)
{
    int64_t across = (columns + columns_of(wide) - 1) / columns_of(wide);
    int64_t shares = across < DEVICE ? DEVICE / across : 1, share = (rows + shares - 1) / shares;
    return (share + 63) / 64 * 64;
}

template <int N, bool COPY> void launch_sweep_as(const sweep_job &j, dim3 grid, cudaStream_t stream)
{
    constexpr int BYTES = sizeof(typename sizes<N>::memory);
    cudaFuncSetAttribute(sweep_kernel<N, COPY>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    sweep_kernel<N, COPY><<<grid, THREADS, BYTES, stream>>>(j);
}

template <int N> void launch_sweep(const sweep_job &j, dim3 grid, cudaStream_t stream)
{
    if (j.copy) launch_sweep_as<N, true>(j, grid, stream);
    else launch_sweep_as<N, false>(j, grid, stream);
}

} // namespace

extern "C" nbl_status nbl__cuda_project(const nbl__call *call, const nbl__project *p)
{
    constexpr int64_t FEW = 132 * 64; /* rows: beyond, blocks of 64 fill the device */
    if (p->rows == 0 || p->wide == 0) return NBL_OK;
    if (p->rows > FEW / 2 && p->wide <= 48) launch_project<4>(*p, stream_of(call));
    else if (p->rows > FEW / 4) launch_project<2>(*p, stream_of(call));
    else launch_project<1>(*p, stream_of(call));
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
    sweep_sizes s = sizes_of(rows, columns, wide);
    return s.outer + s.projected;
}

extern "C" nbl_status nbl__cuda_sweep(const nbl__call *call, const nbl__sweep *s, void *scratch)
{
    if (s->rows == 0 || s->columns == 0) return NBL_OK;
    sweep_sizes size = sizes_of(s->rows, s->columns, s->wide);
    sweep_job j = {};
    j.rows = s->rows, j.columns = s->columns, j.share = size.share, j.v_ld = s->v_ld, j.copy_ld = s->copy_ld;
    j.z = static_cast<const __nv_bfloat16 *>(s->z);
    j.a = static_cast<const __nv_bfloat16 *>(s->a);
    j.v = static_cast<const __nv_bfloat16 *>(s->v);
    j.copy = static_cast<__nv_bfloat16 *>(s->copy);
    j.outer = static_cast<float *>(scratch);
    j.projected = j.outer + size.outer / 4;
    j.aligned = is_aligned(s->z, 16);
    dim3 grid(static_cast<unsigned>(size.column_blocks), static_cast<unsigned>(size.shares));
    if (s->wide == 16) launch_sweep<2>(j, grid, stream_of(call));
    else launch_sweep<4>(j, grid, stream_of(call));
    gather_job g = {};
    g.projected = j.projected, g.outer = j.outer;
    g.rows = s->rows, g.columns = s->columns, g.to_ld = s->to_ld;
    g.wide = s->wide, g.rank = s->rank;
    g.shares = static_cast<int>(size.shares), g.column_blocks = static_cast<int>(size.column_blocks);
    g.scale = s->scale;
    g.to = static_cast<__nv_bfloat16 *>(s->to), g.gradient = s->gradient;
    g.turned = s->turned, g.accumulate = s->accumulate;
    g.outer_blocks = (s->columns + 31) / 32;
    int64_t blocks = g.outer_blocks + (s->rows + 31) / 32;
    gather_kernel<<<static_cast<unsigned>(blocks), THREADS, 0, stream_of(call)>>>(g);
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
