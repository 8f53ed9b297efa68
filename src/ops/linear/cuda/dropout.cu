/* dropout.cu - see dropout_cuda.h.
 *
 * `drop_any` and `drop_eights` compute a mask where they apply it (ops/common/philox.cuh): some 60 instructions for four
 * elements, about as long as memory takes to move them. `masks` writes masks as bits; `lora_dx_kernel` reads them. */
#include <type_traits>

#include "ops/common/kernel.cuh"
#include "ops/common/mma.cuh"
#include "ops/common/philox.cuh"

extern "C" {
#include "ops/linear/cuda/dropout_cuda.h"
}

using namespace nbl_cuda;

namespace
{

constexpr int THREADS = 256;

/* to (+)= mask∘from / (1 - dropout) for any dtype and alignment, an element per thread and step.
 * `first`: the index of element 0 in the mask. */
__global__ void drop_any(nbl__seed masked_by, float dropout, uint32_t threshold, int64_t first, int64_t n, const void *from,
                         nbl_dtype from_dtype, void *to, nbl_dtype to_dtype, bool add)
{
    uint64_t seed = value_of(masked_by);
    float factor = 1 / (1 - dropout);
    int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += step) {
        uint32_t kept = keeps_four(seed, threshold, (first + i) >> 2) >> ((first + i) & 3);
        float value = kept & 1 ? load_one(from, from_dtype, i) * factor : 0;
        store_one(to, to_dtype, i, add ? load_one(to, to_dtype, i) + value : value);
    }
}

/* The same for bf16, eight elements (16 bytes) per thread and step, without add. */
__global__ void drop_eights(nbl__seed masked_by, float dropout, uint32_t threshold, int64_t first, int64_t n, const uint4 *from,
                            uint4 *to)
{
    uint64_t seed = value_of(masked_by);
    float factor = 1 / (1 - dropout);
    int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += step) {
        uint4 values = from[i];
        int64_t quad = (first >> 2) + 2 * i;
        uint32_t kept = keeps_four(seed, threshold, quad) | keeps_four(seed, threshold, quad + 1) << 4;
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

/* ---- masks as bits ---- */

struct masks_job {
    nbl__mask_part parts[NBL_MAX_MASKS];
    uint32_t thresholds[NBL_MAX_MASKS];
    int64_t rows, columns, words, first_row; /* words: of a row */
};

/* A thread makes a word: eight blocks of Philox, four at a time. grid.y: the mask. SMALL: the masks have fewer than 2^32
 * blocks, which saves a multiplication in ten. */
template <bool SMALL> __global__ void __launch_bounds__(THREADS) masks_kernel(const __grid_constant__ masks_job j)
{
    const nbl__mask_part &part = j.parts[blockIdx.y];
    uint64_t seed = value_of(part.seed);
    uint32_t threshold = j.thresholds[blockIdx.y];
    using index = typename std::conditional<SMALL, uint32_t, int64_t>::type;
    index count = static_cast<index>(j.rows * j.words), words = static_cast<index>(j.words);
    for (index at = blockIdx.x * THREADS + threadIdx.x; at < count; at += gridDim.x * THREADS) {
        index row = at / words, w = at % words;
        int64_t quad = ((j.first_row + row) * j.columns + 32 * static_cast<int64_t>(w)) >> 2;
        uint32_t word = 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int64_t quads[4];
            uint32_t kept[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                quads[i] = quad + 4 * half + i;
                if (SMALL) quads[i] = static_cast<uint32_t>(quads[i]);
            }
            keeps_four<4>(seed, threshold, quads, kept);
#pragma unroll
            for (int i = 0; i < 4; i++) word |= kept[i] << (16 * half + 4 * i);
        }
        part.bits[at] = word; /* bits beyond the last column are never read */
    }
}

/* ---- dx of the adapters ---- */

/* A block of lora_dx_kernel: COLUMNS columns of BLOCKS_OF_ROWS x ROWS rows. A_LD: padded, so ldmatrix has
 * no bank conflicts. */
constexpr int COLUMNS = 128, ROWS = 128, BLOCKS_OF_ROWS = 4, A_LD = COLUMNS + 8;

/* sum += factor·mask∘product for 16 rows and 16 columns of one part. A lane has rows g and g + 8,
 * columns 2q and 2q + 1 of each 8. `words` are the bits of 32 columns in these rows. */
__device__ inline void add_masked(const nbl__lora_dx_part &part, const uint32_t (&words)[2], int64_t column, int q,
                                  const float (&product)[2][4], float (&sum)[2][4])
{
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t kept = words[i / 2] >> (column % 32 + 8 * n + 2 * q + i % 2) & 1;
            sum[n][i] += kept ? product[n][i] * part.factor : 0;
        }
}

/* to = Σ_i factor_i·mask_i∘(u_i·a_i), bf16: the input's gradient through several adapters.
 *
 *     a tile [rank_padded, 128] of a → shared memory, once per block
 *     for each 128 rows: a warp has 16 of them; u → registers
 *         for each 16 columns, for each 16 of k: mma; at the end of a part: mask, add to the sum
 *         sum → to, 4 bytes per store
 *
 * Bytes: `to` once, u once per 128 columns, from L2. Limit: memory bandwidth of `to`. Shared memory:
 * 64 x 136 bf16. */
__global__ void __launch_bounds__(THREADS) lora_dx_kernel(const __grid_constant__ nbl__lora_dx e)
{
    __shared__ __align__(16) __nv_bfloat16 tile[NBL_MAX_LORA_DX_RANK][A_LD];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    int64_t first = static_cast<int64_t>(blockIdx.x) * COLUMNS;
    const __nv_bfloat16 *u = static_cast<const __nv_bfloat16 *>(e.u),
                        *a = static_cast<const __nv_bfloat16 *>(e.a);
    bool aligned = reinterpret_cast<uintptr_t>(e.to) % 4 == 0;
    for (int i = threadIdx.x; i < e.rank_padded * (COLUMNS / 8); i += THREADS) {
        int r = i / (COLUMNS / 8), c = i % (COLUMNS / 8) * 8;
        *reinterpret_cast<uint4 *>(&tile[r][c]) = first + c < e.columns ? *reinterpret_cast<const uint4 *>(
                                                                              a + r * e.columns + first + c)
                                                                        : make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    for (int block = 0; block < BLOCKS_OF_ROWS; block++) {
        int64_t row = (static_cast<int64_t>(blockIdx.y) * BLOCKS_OF_ROWS + block) * ROWS + warp * 16 + g;
        if (row - g >= e.rows) break;
        uint32_t rows[NBL_MAX_LORA_DX_RANK / 16][4] = {}; /* u of the warp's 16 rows */
#pragma unroll
        for (int k = 0; k < NBL_MAX_LORA_DX_RANK / 16; k++) {
            if (16 * k >= e.rank_padded) break;
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
            for (int k = 0; k < NBL_MAX_LORA_DX_RANK / 16; k++) {
                if (16 * k >= e.rank_padded) break;
                uint32_t b[4];
                uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(
                    &tile[16 * k + lane % 8 + (lane & 8 ? 8 : 0)][c + (lane & 16 ? 8 : 0)]));
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                             : "r"(from));
                mma_m16n8k16_bf16(product[0], rows[k], b[0], b[1]);
                mma_m16n8k16_bf16(product[1], rows[k], b[2], b[3]);
                if (16 * (k + 1) < e.parts[part].first + e.parts[part].rank_padded) continue;
                uint32_t words[2] = {~0u, ~0u};
                const uint32_t *bits = e.parts[part].bits;
                for (int i = 0; bits && i < 2; i++)
                    if (row + 8 * i < e.rows) words[i] = bits[(row + 8 * i) * e.bits_ld + (first + c) / 32];
                add_masked(e.parts[part], words, first + c, q, product, sum);
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
    uint32_t threshold = dropout_threshold(dropout);
    bool eights = from_dtype == NBL_DTYPE_BF16 && to_dtype == NBL_DTYPE_BF16 && n % 8 == 0 &&
                  first % 4 == 0 && is_aligned(from, 16) && is_aligned(to, 16);
    if (eights)
        drop_eights<<<blocks_for(n / 8), THREADS, 0, stream_of(call)>>>(
            seed, dropout, threshold, first, n / 8, static_cast<const uint4 *>(from), static_cast<uint4 *>(to));
    else
        drop_any<<<blocks_for(n), THREADS, 0, stream_of(call)>>>(seed, dropout, threshold, first, n, from, from_dtype,
                                                                 to, to_dtype, false);
    return launched(call);
}

extern "C" nbl_status nbl__cuda_drop_add(const nbl__call *call, nbl__seed seed, float dropout, int64_t row,
                                         int64_t rows, int64_t columns, const float *from, float *to,
                                         bool add)
{
    int64_t n = rows * columns;
    if (n == 0) return NBL_OK;
    drop_any<<<blocks_for(n), THREADS, 0, stream_of(call)>>>(seed, dropout, dropout_threshold(dropout), row * columns, n, from,
                                                             NBL_DTYPE_F32, to, NBL_DTYPE_F32, add);
    return launched(call);
}

extern "C" nbl_status nbl__cuda_masks(const nbl__call *call, const nbl__mask_part *parts, int count, int64_t rows,
                                      int64_t columns, int64_t first_row)
{
    masks_job j = {{}, {}, rows, columns, nbl__mask_words(columns), first_row};
    if (rows == 0 || count == 0) return NBL_OK;
    for (int i = 0; i < count; i++) j.parts[i] = parts[i], j.thresholds[i] = dropout_threshold(parts[i].dropout);
    dim3 grid(blocks_for(rows * j.words), static_cast<unsigned>(count));
    /* 32 bits hold the blocks of Philox, and the words with one step of the grid beyond them. */
    bool small = (first_row + rows) * columns / 4 + 16 < INT64_C(1) << 32 && rows * j.words < INT64_C(1) << 31;
    if (small) masks_kernel<true><<<grid, THREADS, 0, stream_of(call)>>>(j);
    else masks_kernel<false><<<grid, THREADS, 0, stream_of(call)>>>(j);
    return launched(call);
}

extern "C" nbl_status nbl__cuda_lora_dx(const nbl__call *call, const nbl__lora_dx *e)
{
    constexpr int64_t TALL = ROWS * BLOCKS_OF_ROWS;
    if (e->rows == 0 || e->columns == 0) return NBL_OK;
    dim3 grid(static_cast<unsigned>((e->columns + COLUMNS - 1) / COLUMNS),
              static_cast<unsigned>((e->rows + TALL - 1) / TALL));
    lora_dx_kernel<<<grid, THREADS, 0, stream_of(call)>>>(*e);
    return launched(call);
}
