/* dropout.cu - see dropout_cuda.h. Masks are never stored: every kernel computes the bits it needs.
 *
 * Philox gives four elements per call in some 60 instructions. That is about as long as reading the
 * elements takes, so kernels that move data hide most of it.
 *
 *     element i is kept if u[i] >= dropout
 *     u[i] = word i % 4 of Philox4x32-10(seed, i / 4), its upper 24 bits as a number in [0, 1) */
#include "ops/common/kernel.cuh"

extern "C" {
#include "ops/linear/cuda/dropout_cuda.h"
}

using namespace nbl_cuda;

namespace
{

constexpr int THREADS = 256;

/* The seed of a mask. The added part is read from device memory, so replays of a captured graph get
 * new masks. */
__device__ inline uint64_t value_of(nbl__seed seed)
{
    return seed.constant + (seed.added ? *seed.added : 0);
}

/* Bit i: element 4·quad + i is kept. */
__device__ inline uint32_t keeps_four(uint64_t seed, float dropout, int64_t quad)
{
    uint32_t c[4] = {static_cast<uint32_t>(quad), static_cast<uint32_t>(quad >> 32), 0, 0};
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32), kept = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t n0 = __umulhi(0xCD9E8D57u, c[2]) ^ c[1] ^ k0, n2 = __umulhi(0xD2511F53u, c[0]) ^ c[3] ^ k1;
        c[1] = 0xCD9E8D57u * c[2];
        c[3] = 0xD2511F53u * c[0];
        c[0] = n0;
        c[2] = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) kept |= (static_cast<float>(c[i] >> 8) * 0x1p-24f >= dropout ? 1u : 0u) << i;
    return kept;
}

/* to (+)= mask∘from / (1 - dropout) for any dtype and alignment, an element per thread and step.
 * `first`: the index of element 0 in the mask. */
__global__ void drop_any(nbl__seed masked_by, float dropout, int64_t first, int64_t n, const void *from,
                         nbl_dtype from_dtype, void *to, nbl_dtype to_dtype, bool add)
{
    uint64_t seed = value_of(masked_by);
    float factor = 1 / (1 - dropout);
    int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += step) {
        uint32_t kept = keeps_four(seed, dropout, (first + i) >> 2) >> ((first + i) & 3);
        float value = kept & 1 ? load_one(from, from_dtype, i) * factor : 0;
        store_one(to, to_dtype, i, add ? load_one(to, to_dtype, i) + value : value);
    }
}

/* The same for bf16, eight elements (16 bytes) per thread and step, without add. */
__global__ void drop_eights(nbl__seed masked_by, float dropout, int64_t first, int64_t n, const uint4 *from,
                            uint4 *to)
{
    uint64_t seed = value_of(masked_by);
    float factor = 1 / (1 - dropout);
    int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += step) {
        uint4 values = from[i];
        int64_t quad = (first >> 2) + 2 * i;
        uint32_t kept = keeps_four(seed, dropout, quad) | keeps_four(seed, dropout, quad + 1) << 4;
        uint32_t *words = reinterpret_cast<uint32_t *>(&values);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            float low = __uint_as_float(words[w] << 16) * factor;
            float high = __uint_as_float(words[w] & 0xffff0000u) * factor;
            __nv_bfloat162 both = __floats2bfloat162_rn(kept >> 2 * w & 1 ? low : 0,
                                                        kept >> (2 * w + 1) & 1 ? high : 0);
            memcpy(&words[w], &both, 4);
        }
        to[i] = values;
    }
}

/* ---- expand ---- */

/* A block of expand: COLUMNS columns of BLOCKS_OF_ROWS x ROWS rows. A_LD: padded, so ldmatrix has
 * no bank conflicts. */
constexpr int COLUMNS = 128, ROWS = 128, BLOCKS_OF_ROWS = 4, A_LD = COLUMNS + 8;

/* c[16, 8] += a · b by a warp. */
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* sum += mask∘product / (1 - dropout) for 16 rows and 16 columns of one part. A lane has rows g and
 * g + 8, columns 2q and 2q + 1 of each 8. Four columns of a row are one call of Philox, and two
 * lanes share them: the even lane computes the bits of row g, the odd lane those of row g + 8, and
 * they exchange them. */
__device__ inline void add_masked(const nbl__expand &e, const nbl__expand_part &part, uint64_t seed,
                                  int64_t row, int64_t column, int lane, const float (&product)[2][4],
                                  float (&sum)[2][4])
{
    int q = lane % 4, odd = q & 1;
    float factor = 1 / (1 - part.dropout);
#pragma unroll
    for (int n = 0; n < 2; n++) {
        int64_t at = (e.first_row + row + (odd ? 8 : 0)) * e.columns + column + 8 * n + 4 * (q / 2);
        uint32_t mine = keeps_four(seed, part.dropout, at >> 2), other = __shfl_xor_sync(WARP, mine, 1);
        uint32_t upper = (odd ? other : mine) >> 2 * odd, lower = (odd ? mine : other) >> 2 * odd;
        sum[n][0] += upper & 1 ? product[n][0] * factor : 0;
        sum[n][1] += upper & 2 ? product[n][1] * factor : 0;
        sum[n][2] += lower & 1 ? product[n][2] * factor : 0;
        sum[n][3] += lower & 2 ? product[n][3] * factor : 0;
    }
}

/* to = Σ_i mask_i∘(u_i·a_i) / (1 - dropout_i), bf16: the input's gradient through several adapters.
 *
 *     a tile [wide, 128] of a → shared memory, once per block
 *     for each 128 rows: a warp has 16 of them; u → registers
 *         for each 16 columns, for each 16 of k: mma; at the end of a part: mask, add to the sum
 *         sum → to, 4 bytes per store
 *
 * Bytes: `to` once, u once per 128 columns, from L2. Limit: Philox, one call per 4 elements and
 * part. Shared memory: 64 x 136 bf16. */
__global__ void __launch_bounds__(THREADS) expand_kernel(const __grid_constant__ nbl__expand e)
{
    __shared__ __align__(16) __nv_bfloat16 tile[NBL_MAX_EXPAND][A_LD];
    __shared__ uint64_t seeds[NBL_MAX_EXPAND_PARTS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    int64_t first = static_cast<int64_t>(blockIdx.x) * COLUMNS;
    const __nv_bfloat16 *u = static_cast<const __nv_bfloat16 *>(e.u),
                        *a = static_cast<const __nv_bfloat16 *>(e.a);
    bool aligned = reinterpret_cast<uintptr_t>(e.to) % 4 == 0;
    if (threadIdx.x < e.part_count) seeds[threadIdx.x] = value_of(e.parts[threadIdx.x].seed);
    for (int i = threadIdx.x; i < e.wide * (COLUMNS / 8); i += THREADS) {
        int r = i / (COLUMNS / 8), c = i % (COLUMNS / 8) * 8;
        *reinterpret_cast<uint4 *>(&tile[r][c]) = first + c < e.columns ? *reinterpret_cast<const uint4 *>(
                                                                              a + r * e.columns + first + c)
                                                                        : make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    for (int block = 0; block < BLOCKS_OF_ROWS; block++) {
        int64_t row = (static_cast<int64_t>(blockIdx.y) * BLOCKS_OF_ROWS + block) * ROWS + warp * 16 + g;
        if (row - g >= e.rows) break;
        uint32_t rows[NBL_MAX_EXPAND / 16][4] = {}; /* u of the warp's 16 rows */
#pragma unroll
        for (int k = 0; k < NBL_MAX_EXPAND / 16; k++) {
            if (16 * k >= e.wide) break;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int64_t r = row + (i & 1 ? 8 : 0);
                if (r < e.rows)
                    rows[k][i] = *reinterpret_cast<const uint32_t *>(u + r * e.u_ld + 16 * k +
                                                                     (i & 2 ? 8 : 0) + 2 * q);
            }
        }
        for (int c = 0; c < COLUMNS; c += 16) {
            if (first + c >= e.columns) break;
            float sum[2][4] = {}, product[2][4] = {};
            int part = 0;
#pragma unroll
            for (int k = 0; k < NBL_MAX_EXPAND / 16; k++) {
                if (16 * k >= e.wide) break;
                uint32_t b[4];
                uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(
                    &tile[16 * k + lane % 8 + (lane & 8 ? 8 : 0)][c + (lane & 16 ? 8 : 0)]));
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                             : "r"(from));
                multiply(product[0], rows[k], b[0], b[1]);
                multiply(product[1], rows[k], b[2], b[3]);
                if (16 * (k + 1) < e.parts[part].first + e.parts[part].wide) continue;
                add_masked(e, e.parts[part], seeds[part], row, first + c, lane, product, sum);
#pragma unroll
                for (int i = 0; i < 8; i++) product[i / 4][i % 4] = 0;
                part++;
            }
            __nv_bfloat16 *to = static_cast<__nv_bfloat16 *>(e.to) + first + c + 2 * q;
#pragma unroll
            for (int n = 0; n < 2; n++) {
                if (first + c + 8 * n >= e.columns) break;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int64_t r = row + 8 * half;
                    if (r >= e.rows) continue;
                    __nv_bfloat16 *target = to + r * e.columns + 8 * n;
                    __nv_bfloat162 two = __floats2bfloat162_rn(sum[n][2 * half], sum[n][2 * half + 1]);
                    if (aligned) *reinterpret_cast<__nv_bfloat162 *>(target) = two;
                    else target[0] = two.x, target[1] = two.y;
                }
            }
        }
    }
}

unsigned blocks_for(int64_t n)
{
    int64_t blocks = (n + THREADS - 1) / THREADS;
    return static_cast<unsigned>(blocks < 1 << 16 ? blocks : 1 << 16);
}

} // namespace

extern "C" nbl_status nbl__cuda_drop(const nbl__call *call, nbl__seed seed, float dropout, int64_t row,
                                     int64_t rows, int64_t columns, const void *from, nbl_dtype from_dtype,
                                     void *to, nbl_dtype to_dtype)
{
    int64_t n = rows * columns, first = row * columns;
    if (n == 0) return NBL_OK;
    bool eights = from_dtype == NBL_DTYPE_BF16 && to_dtype == NBL_DTYPE_BF16 && n % 8 == 0 &&
                  first % 4 == 0 && is_aligned(from, 16) && is_aligned(to, 16);
    if (eights)
        drop_eights<<<blocks_for(n / 8), THREADS, 0, stream_of(call)>>>(
            seed, dropout, first, n / 8, static_cast<const uint4 *>(from), static_cast<uint4 *>(to));
    else
        drop_any<<<blocks_for(n), THREADS, 0, stream_of(call)>>>(seed, dropout, first, n, from, from_dtype,
                                                                 to, to_dtype, false);
    return launched(call);
}

extern "C" nbl_status nbl__cuda_drop_add(const nbl__call *call, nbl__seed seed, float dropout, int64_t row,
                                         int64_t rows, int64_t columns, const float *from, float *to,
                                         bool add)
{
    int64_t n = rows * columns;
    if (n == 0) return NBL_OK;
    drop_any<<<blocks_for(n), THREADS, 0, stream_of(call)>>>(seed, dropout, row * columns, n, from,
                                                             NBL_DTYPE_F32, to, NBL_DTYPE_F32, add);
    return launched(call);
}

extern "C" nbl_status nbl__cuda_expand(const nbl__call *call, const nbl__expand *e)
{
    constexpr int64_t TALL = ROWS * BLOCKS_OF_ROWS;
    if (e->rows == 0 || e->columns == 0) return NBL_OK;
    dim3 grid(static_cast<unsigned>((e->columns + COLUMNS - 1) / COLUMNS),
              static_cast<unsigned>((e->rows + TALL - 1) / TALL));
    expand_kernel<<<grid, THREADS, 0, stream_of(call)>>>(*e);
    return launched(call);
}
