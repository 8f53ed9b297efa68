/* skinny.cu - see skinny.h. Tensor cores by mma.m16n8k16, f32 sums.
 *
 * project: a block has 64 rows (16 where there are few) and all columns; its warps take columns in turn, 32 at a time,
 * straight from memory into fragments, 16 bytes per thread: which column stands for which k of the instruction does
 * not matter as long as both operands agree. The warps' sums are added up at the end, in their order.
 *
 * outer: a block has 256 columns and a share of the rows, which come through shared memory (both operands are read
 * across their rows there: ldmatrix.trans). The shares' sums lie in scratch and a second kernel adds them up. */
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

template <int M>
__device__ inline void copy_rows(const nbl__project &p, int64_t row, int64_t column, const rows_part<M> &part)
{
    __nv_bfloat16 *to = static_cast<__nv_bfloat16 *>(p.copy);
    if (column >= p.columns) return;
#pragma unroll
    for (int m = 0; m < M; m++) {
        int64_t r = row + 16 * m;
        if (r < p.rows) *reinterpret_cast<uint4 *>(to + r * p.copy_ld + column) = part.upper[m];
        if (r + 8 < p.rows) *reinterpret_cast<uint4 *>(to + (r + 8) * p.copy_ld + column) = part.lower[m];
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
        if (p.copy) copy_rows(p, first + g, column, now);
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

/* ---- outer ---- */

constexpr int COLUMNS = 256, ROWS = 32, STAGES = 4, SHARES = 264;

struct outer_job {
    int64_t rows, columns, v_ld, share; /* share: rows of a block, a multiple of ROWS */
    const __nv_bfloat16 *z, *v;
    float *parts; /* [shares, columns, wide] */
    bool aligned;
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
__device__ inline void turn4(uint32_t (&r)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from));
}

template <int N> struct stage {
    static constexpr int V_LD = 8 * N + 8; /* so that eight rows fall into different banks */
    __nv_bfloat16 z[ROWS][COLUMNS]; /* 16-byte pieces of a row are exchanged by the row's last three bits */
    __nv_bfloat16 v[ROWS][V_LD];
};

template <int N>
__device__ inline void fetch(const outer_job &j, stage<N> &s, int64_t row, int64_t end, int64_t column)
{
#pragma unroll
    for (int i = 0; i < ROWS * COLUMNS / 8 / THREADS; i++) {
        int piece = i * THREADS + threadIdx.x, r = piece / (COLUMNS / 8), c = piece % (COLUMNS / 8);
        bool inside = row + r < end && column + 8 * c < j.columns;
        const __nv_bfloat16 *from = inside ? j.z + (row + r) * j.columns + column + 8 * c : j.z;
        __nv_bfloat16 *to = &s.z[r][8 * (c ^ (r & 7))];
        if (j.aligned) copy16(shared_address(to), from, inside);
        else *reinterpret_cast<uint4 *>(to) = inside ? eight(from, false) : make_uint4(0, 0, 0, 0);
    }
    if (threadIdx.x < ROWS * N) {
        int r = threadIdx.x / N, c = threadIdx.x % N;
        bool inside = row + r < end;
        copy16(shared_address(&s.v[r][8 * c]), inside ? j.v + (row + r) * j.v_ld + 8 * c : j.v, inside);
    }
}

template <int N> __global__ void __launch_bounds__(THREADS) outer_kernel(const __grid_constant__ outer_job j)
{
    extern __shared__ __align__(16) unsigned char memory[];
    stage<N> *stages = reinterpret_cast<stage<N> *>(memory);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t column = static_cast<int64_t>(blockIdx.x) * COLUMNS, first = blockIdx.y * j.share;
    int64_t end = first + j.share < j.rows ? first + j.share : j.rows;
    int steps = static_cast<int>((end - first + ROWS - 1) / ROWS);
    float sums[2][N][4] = {};
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < steps) fetch<N>(j, stages[i], first + i * ROWS, end, column);
        asm volatile("cp.async.commit_group;");
    }
    int matrix = lane / 8, line = lane % 8;
    for (int i = 0; i < steps; i++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        __syncthreads();
        int ahead = i + STAGES - 1;
        if (ahead < steps) fetch<N>(j, stages[ahead % STAGES], first + ahead * ROWS, end, column);
        asm volatile("cp.async.commit_group;");
        const stage<N> &s = stages[i % STAGES];
#pragma unroll
        for (int k = 0; k < ROWS; k += 16) {
            uint32_t a[2][4], b[4];
#pragma unroll
            for (int m = 0; m < 2; m++) { /* z, turned: columns are the rows of the product */
                int r = k + line + (matrix & 2 ? 8 : 0), c = warp * 4 + 2 * m + (matrix & 1);
                turn4(a[m], shared_address(&s.z[r][8 * (c ^ (r & 7))]));
            }
#pragma unroll
            for (int n = 0; n < N; n += 2) {
                turn4(b, shared_address(&s.v[k + line + (matrix & 1 ? 8 : 0)][8 * (n + (matrix >> 1))]));
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    multiply(sums[m][n], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
                    multiply(sums[m][n + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
                }
            }
        }
    }
    int g = lane / 4, q = lane % 4;
    float *parts = j.parts + blockIdx.y * j.columns * (8 * N);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int64_t c = column + warp * 32 + 16 * m + 8 * half + g;
            if (c >= j.columns) continue;
#pragma unroll
            for (int n = 0; n < N; n++)
                *reinterpret_cast<float2 *>(parts + c * (8 * N) + 8 * n + 2 * q) = make_float2(
                    sums[m][n][2 * half], sums[m][n][2 * half + 1]);
        }
}

struct outer_parts {
    nbl__outer_part parts[4];
};

/* Adds the shares up and hands the results to their gradients: 32 columns by up to 64 results per block. */
__global__ void __launch_bounds__(THREADS)
    gather_kernel(const float *parts, int64_t columns, int wide, int shares,
                  const __grid_constant__ outer_parts to, int count)
{
    __shared__ float tile[NBL_SKINNY_MOST][33];
    int64_t first = static_cast<int64_t>(blockIdx.x) * 32;
    for (int i = threadIdx.x; i < 32 * wide; i += THREADS) {
        int c = i / wide, r = i % wide;
        float sum = 0;
        if (first + c < columns)
            for (int s = 0; s < shares; s++) sum += parts[(s * columns + first + c) * wide + r];
        tile[r][c] = sum;
    }
    __syncthreads();
    for (int p = 0; p < count; p++) {
        const nbl__outer_part &part = to.parts[p];
        if (part.to == NULL) continue;
        for (int i = threadIdx.x; i < 32 * part.count; i += THREADS) {
            int r = part.turned ? i / 32 : i % part.count, c = part.turned ? i % 32 : i / part.count;
            if (first + c >= columns) continue;
            float *at = part.to + (part.turned ? r * columns + first + c : (first + c) * part.count + r);
            *at = part.accumulate ? *at + tile[part.first + r][c] : tile[part.first + r][c];
        }
    }
}

template <int N> nbl_status launch_outer(const nbl__call *call, const outer_job &j, int shares)
{
    constexpr int BYTES = sizeof(stage<N>) * STAGES;
    cudaFuncSetAttribute(outer_kernel<N>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    dim3 grid(static_cast<unsigned>((j.columns + COLUMNS - 1) / COLUMNS), static_cast<unsigned>(shares));
    outer_kernel<N><<<grid, THREADS, BYTES, stream_of(call)>>>(j);
    return launched(call);
}

/* Rows of each share: enough shares to fill the device. */
int64_t share_of(int64_t rows, int64_t columns)
{
    int64_t across = (columns + COLUMNS - 1) / COLUMNS, shares = (SHARES + across - 1) / across;
    int64_t share = (rows + shares - 1) / shares;
    share = (share + ROWS - 1) / ROWS * ROWS;
    return share < 4 * ROWS ? 4 * ROWS : share;
}
int shares_of(int64_t rows, int64_t columns)
{
    int64_t share = share_of(rows, columns);
    return static_cast<int>((rows + share - 1) / share);
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

extern "C" size_t nbl__cuda_outer_scratch(int64_t rows, int64_t columns, int wide)
{
    return static_cast<size_t>(shares_of(rows, columns)) * static_cast<size_t>(columns) *
           static_cast<size_t>(wide) * 4;
}

extern "C" nbl_status nbl__cuda_outer(const nbl__call *call, const nbl__outer *o, void *scratch)
{
    if (o->rows == 0 || o->wide == 0 || o->columns == 0) return NBL_OK;
    outer_job j = {o->rows,
                   o->columns,
                   o->v_ld,
                   share_of(o->rows, o->columns),
                   static_cast<const __nv_bfloat16 *>(o->z),
                   static_cast<const __nv_bfloat16 *>(o->v),
                   static_cast<float *>(scratch),
                   is_aligned(o->z, 16)};
    int shares = shares_of(o->rows, o->columns);
    if (o->wide == 16) NBL_TRY(launch_outer<2>(call, j, shares));
    else if (o->wide == 32) NBL_TRY(launch_outer<4>(call, j, shares));
    else if (o->wide == 48) NBL_TRY(launch_outer<6>(call, j, shares));
    else NBL_TRY(launch_outer<8>(call, j, shares));
    outer_parts parts = {};
    for (int i = 0; i < o->part_count; i++) parts.parts[i] = o->parts[i];
    unsigned blocks = static_cast<unsigned>((o->columns + 31) / 32);
    gather_kernel<<<blocks, THREADS, 0, stream_of(call)>>>(static_cast<const float *>(scratch), o->columns,
                                                           o->wide, shares, parts, o->part_count);
    return launched(call);
}
