/* gemm_masked.cu - see gemm_masked.h. Tensor cores by mma.m16n8k16, f32 sums.
 *
 * The parts are cut into groups of 16 columns of u. A launch takes up to GROUPS (4) of them. More groups need more
 * launches, and each reads x again:
 *
 *     a block: 128 columns of x and a share of its rows; its warps are 2 (columns) x 4 (rows)
 *         for steps of 64 rows          u[64, 16 · groups] → shared memory, two buffers, cp.async
 *             each warp: 16 rows by 64 columns of x, 16 bytes per thread and row, loaded one step ahead
 *                 for groups            sums[16, 64] += uᵀ · (mask∘x)
 *         the sums of the 4 warps of rows are added in shared memory, in the order of the warps
 *     partial sums [shares, 16 · groups, columns] → a second kernel adds the shares in order
 *
 * A thread has rows 4q … 4q + 3 of 16 and columns 8g … 8g + 7 of 64 (lane = 4g + q). They stand for k = 2q, 2q + 1, 2q + 8,
 * 2q + 9 and for column g of eight products of 8 columns. Two rows are packed into the words of a product's right operand,
 * and masked there: the bits of two rows and one column are the signs of two bytes after one shift. */
#include "ops/common/kernel.cuh"
#include "ops/common/mma.cuh"

extern "C" {
#include "ops/gemm/cuda/gemm_masked.h"
#include "ops/gemm/cuda/gemm_tall_skinny.h"
}

using namespace nbl_cuda;

namespace
{

constexpr int GROUPS = 4, ACROSS = 2, DOWN = 4, THREADS = 32 * ACROSS * DOWN, SPAN = 64, STEP = 16 * DOWN;
constexpr int COLUMNS = SPAN * ACROSS;

struct group {
    const uint8_t *bits;
    float *to;
    float factor;
    int32_t first, rank; /* of u; rank: rows of `to`, 16 at most */
    bool accumulate;
};
struct masked_job {
    const __nv_bfloat16 *x, *u;
    float *sums; /* [shares, 16 · groups, columns] */
    int64_t rows, columns, u_ld, bits_ld,
        share; /* bits_ld: in bytes; share: rows of a block, a multiple of STEP */
    int32_t shares, count;
    group groups[GROUPS];
};

/* Shared memory: two buffers of u, then the block's sums. */
template <int COUNT> struct shared_memory {
    static constexpr int LD = 16 * COUNT + 8; /* elements: rows of ldmatrix hit different banks */
    union {
        __nv_bfloat16 u[2][STEP][LD];
        float sums[16 * COUNT][COLUMNS + 4]; /* columns in another order: position_of */
    };
};

/* What a thread needs of 16 rows: its piece of x and of each mask. */
template <int COUNT> struct piece {
    uint4 x[4];
    uint32_t bits[COUNT][4]; /* a byte each: packing them would wait for the loads */
};
template <int COUNT, bool ALIGNED>
__device__ inline void load_piece(const masked_job &p, int64_t row, int64_t column, int64_t end,
                                  piece<COUNT> &to)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bool inside = row + i < end && column < p.columns;
        to.x[i] = inside ? load_eight(p.x + (row + i) * p.columns + column, ALIGNED) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int n = 0; n < COUNT; n++)
            to.bits[n][i] = inside && p.groups[n].bits ? p.groups[n].bits[(row + i) * p.bits_ld + column / 8]
                                                       : 0xff;
    }
}

/* Copies 64 rows of u; rows beyond the end become zero. */
template <int COUNT>
__device__ inline void load_u(const masked_job &p, int64_t row, int64_t end,
                              __nv_bfloat16 (*to)[shared_memory<COUNT>::LD])
{
    for (int i = threadIdx.x; i < STEP * 2 * COUNT; i += THREADS) {
        int r = i / (2 * COUNT), n = i % (2 * COUNT) / 2, half = i % 2 * 8;
        uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(&to[r][16 * n + half]));
        bool inside = row + r < end;
        const __nv_bfloat16 *from = p.u + (inside ? row + r : 0) * p.u_ld + p.groups[n].first + half;
        int bytes = inside ? 16 : 0; /* the rest of the 16 bytes becomes zero */
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
                     : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* uᵀ of 16 rows and 16 columns: row j of the first two matrices is row 4·(j / 2) + j % 2 of u, of the last two the second
 * one below. */
__device__ inline void load_transposed(uint32_t (&a)[4], const __nv_bfloat16 *u, int ld, int lane)
{
    int j = lane % 8, below = lane / 16, right = lane / 8 % 2 * 8;
    uint32_t from = static_cast<uint32_t>(
        __cvta_generic_to_shared(u + (4 * (j / 2) + j % 2 + 2 * below) * ld + right));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(from)
                 : "memory");
}

__device__ inline uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* sums[16, 64] of each group += uᵀ·(mask∘x) over 16 rows. */
template <int COUNT>
__device__ inline void add_step(const masked_job &p, const piece<COUNT> &now, const __nv_bfloat16 *u, int ld,
                                int lane, float (&sums)[COUNT][8][4])
{
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
        uint32_t a[4], upper = now.bits[n][0] | now.bits[n][1] << 8,
                       lower = now.bits[n][2] | now.bits[n][3] << 8;
        load_transposed(a, u + 16 * n, ld, lane);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint32_t both = j % 2 ? 0x7632 : 0x5410; /* of two rows: the high or the low half */
            uint32_t b0 = __byte_perm(word_of(now.x[0], j / 2), word_of(now.x[1], j / 2), both),
                     b1 = __byte_perm(word_of(now.x[2], j / 2), word_of(now.x[3], j / 2), both);
            b0 &= halves_mask(upper << (7 - j));
            b1 &= halves_mask(lower << (7 - j));
            mma_m16n8k16_bf16(sums[n][j], a, b0, b1);
        }
    }
}

/* Where column c of 64 stands in shared memory: the four threads of a row write to neighbouring banks. */
__device__ inline int position_of(int c)
{
    return c % 16 * 4 + c / 16;
}

template <int COUNT, bool ALIGNED>
__global__ void __launch_bounds__(THREADS, COUNT == 1 ? 2 : 1)
    masked_kernel(const __grid_constant__ masked_job p)
{
    __shared__ __align__(16) shared_memory<COUNT> shared;
    constexpr int LD = shared_memory<COUNT>::LD;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    int across = warp % ACROSS, down = warp / ACROSS;
    int64_t first = static_cast<int64_t>(blockIdx.x) * COLUMNS, column = first + across * SPAN + 8 * g;
    int64_t begin = blockIdx.y * p.share, end = begin + p.share < p.rows ? begin + p.share : p.rows;
    float sums[COUNT][8][4] = {};
    piece<COUNT> now, next;
    load_u<COUNT>(p, begin, end, shared.u[0]);
    load_piece<COUNT, ALIGNED>(p, begin + 16 * down + 4 * q, column, end, now);
    int buffer = 0;
    for (int64_t row = begin; row < end; row += STEP, buffer ^= 1) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads(); /* this step's u is there; the other buffer has been read */
        load_u<COUNT>(p, row + STEP, end, shared.u[buffer ^ 1]);
        load_piece<COUNT, ALIGNED>(p, row + STEP + 16 * down + 4 * q, column, end, next);
        add_step<COUNT>(p, now, &shared.u[buffer][16 * down][0], LD, lane, sums);
        now = next;
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    /* A thread has rows g and g + 8 of each group. Products j = 0 … 7 have columns 16q + j and 16q + 8 + j of 64. */
    for (int turn = 0; turn < DOWN; turn++) {
        if (turn == down)
#pragma unroll
            for (int n = 0; n < COUNT; n++)
#pragma unroll
                for (int j = 0; j < 8; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float *to = &shared.sums[16 * n + g + i / 2 * 8]
                                                [across * SPAN + position_of(16 * q + i % 2 * 8 + j)];
                        *to = turn == 0 ? sums[n][j][i] : *to + sums[n][j][i];
                    }
        __syncthreads();
    }
    float *to = p.sums + static_cast<int64_t>(blockIdx.y) * 16 * COUNT * p.columns;
    for (int i = threadIdx.x; i < 16 * COUNT * (COLUMNS / 4); i += THREADS) {
        int r = i / (COLUMNS / 4), c = i % (COLUMNS / 4) * 4;
        const float *from = &shared.sums[r][c / SPAN * SPAN];
        if (first + c < p.columns)
            *reinterpret_cast<float4 *>(to + r * p.columns + first + c) = make_float4(
                from[position_of(c % SPAN)], from[position_of(c % SPAN + 1)], from[position_of(c % SPAN + 2)],
                from[position_of(c % SPAN + 3)]);
    }
}

/* Adds the shares in order, four columns per thread. */
__global__ void __launch_bounds__(THREADS) add_shares(const __grid_constant__ masked_job p)
{
    const group &g = p.groups[blockIdx.z];
    int64_t column = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * 4, r = blockIdx.y;
    if (r >= g.rank || column >= p.columns) return;
    const float *from = p.sums + (16 * blockIdx.z + r) * p.columns + column;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int s = 0; s < p.shares; s++) {
        float4 one = *reinterpret_cast<const float4 *>(from +
                                                       static_cast<int64_t>(s) * 16 * p.count * p.columns);
        sum.x += one.x, sum.y += one.y, sum.z += one.z, sum.w += one.w;
    }
    float *to = g.to + r * p.columns + column, all[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = all[i] * g.factor + (g.accumulate ? to[i] : 0);
}

int64_t whole(int64_t size, int64_t part)
{
    return (size + part - 1) / part;
}

/* Shares of the rows: as many as keep the device busy. */
int64_t max_shares(const nbl__cuda *cuda, int64_t columns, int count)
{
    int64_t blocks = whole(columns, COLUMNS), room = cuda->multiprocessors * (count == 1 ? 2 : 1);
    return room > blocks ? room / blocks : 1;
}

template <bool ALIGNED> void launch_masked(const masked_job &j, dim3 grid, cudaStream_t stream)
{
    if (j.count == 1) masked_kernel<1, ALIGNED><<<grid, THREADS, 0, stream>>>(j);
    else if (j.count == 2) masked_kernel<2, ALIGNED><<<grid, THREADS, 0, stream>>>(j);
    else if (j.count == 3) masked_kernel<3, ALIGNED><<<grid, THREADS, 0, stream>>>(j);
    else masked_kernel<4, ALIGNED><<<grid, THREADS, 0, stream>>>(j);
}

void launch(const nbl__call *call, masked_job *j, int64_t rows)
{
    cudaStream_t stream = stream_of(call);
    int64_t max = max_shares(nbl__call_cuda(call), j->columns, j->count);
    j->share = whole(whole(rows, max), STEP) * STEP;
    j->shares = static_cast<int32_t>(whole(rows, j->share));
    dim3 grid(static_cast<unsigned>(whole(j->columns, COLUMNS)), static_cast<unsigned>(j->shares));
    if (is_aligned(j->x, 16)) launch_masked<true>(*j, grid, stream);
    else launch_masked<false>(*j, grid, stream);
    add_shares<<<dim3(static_cast<unsigned>(whole(j->columns, 4 * THREADS)), 16,
                      static_cast<unsigned>(j->count)),
                 THREADS, 0, stream>>>(*j);
}

} // namespace

extern "C" size_t nbl__gemm_masked_scratch(const nbl__cuda *cuda, int64_t columns)
{
    size_t max = 0;
    for (int count = 1; count <= GROUPS; count++) {
        size_t bytes = static_cast<size_t>(max_shares(cuda, columns, count) * 16 * count * columns) * 4;
        if (bytes > max) max = bytes;
    }
    return max;
}

extern "C" nbl_status nbl__gemm_masked_run(const nbl__call *call, const nbl__gemm_masked *m, void *scratch)
{
    masked_job j = {};
    if (m->rows == 0 || m->columns == 0) return NBL_OK;
    j.x = static_cast<const __nv_bfloat16 *>(m->x), j.u = static_cast<const __nv_bfloat16 *>(m->u);
    j.sums = static_cast<float *>(scratch);
    j.rows = m->rows, j.columns = m->columns, j.u_ld = m->u_ld, j.bits_ld = m->bits_ld * 4;
    for (int i = 0; i < m->count; i++) {
        const nbl__gemm_masked_part *part = &m->parts[i];
        for (int64_t first = 0; first < part->rank; first += 16) {
            if (j.count == GROUPS) launch(call, &j, m->rows), j.count = 0;
            int64_t rank = part->rank - first;
            j.groups[j.count++] = {reinterpret_cast<const uint8_t *>(part->bits),
                                   part->to + first * m->columns,
                                   part->factor,
                                   static_cast<int32_t>(part->first + first),
                                   static_cast<int32_t>(rank < 16 ? rank : 16),
                                   part->accumulate};
        }
    }
    if (j.count > 0) launch(call, &j, m->rows);
    return launched(call);
}
