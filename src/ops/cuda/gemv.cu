/* gemv.cu - see gemv.h.
 *
 * At 3.5 TB/s of 4-bit codes a multiprocessor of an H200 must take 30 elements per cycle: four instructions each, and
 * one lookup in shared memory per element would be too many. Hence, for f16 and bf16:
 *
 *   table    a byte of codes looks up both its values at once: 256 pairs, each 32 times, so that a lane finds its own
 *            copy in its own bank: 32 KB, no conflicts
 *   product  mma.m16n8k16: 16 rows of W times up to 8 rows of x, which cost the same as one. Which 16 columns go
 *            together is free as long as W and x agree: a lane takes 16 neighbouring codes (8 bytes), four lanes a
 *            granule of 64 columns of one row, which lies in one block
 *   scale    f32, on the sum over a granule: one fma per 16 elements
 *
 * The eight warps of a block share 16 or 32 rows of W and divide the columns; their sums are added in the order of the
 * warps. f32, and shapes without granules, use a warp per few rows and fma. */
#include "ops/cuda/decode.cuh"
#include "ops/cuda/gemv.h"

using namespace nbl_cuda;

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32, GRANULE = 64, MAX_M = NBL__CUDA_GEMV_ROWS };

template <typename T> __device__ void multiply(float *sums, const uint32_t *a, uint32_t b0, uint32_t b1);
template <> __device__ inline void multiply<__half>(float *sums, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void multiply<__nv_bfloat16>(float *sums, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* What a warp reads of W in one step: TILES x 16 rows, GRANULES x 64 columns. Lane 4g + t has rows g and g + 8 of each
 * tile, and of each granule the codes 16t ... 16t + 15. */
template <bool INT8, int TILES> struct step {
    /* 16 registers of codes in every case */
    enum { WORDS = INT8 ? 4 : 2, GRANULES = 4 / TILES / (INT8 ? 2 : 1), COLUMNS = GRANULES * GRANULE };
    enum { GRANULE_BYTES = INT8 ? GRANULE : GRANULE / 2, STEP_BYTES = GRANULES * GRANULE_BYTES };
    uint32_t codes[TILES][2][GRANULES][WORDS];
    float scales[2]; /* 4-bit: of granule t % GRANULES of tile t / GRANULES, rows g and g + 8 */

    /* `row0`: the lane's codes of row g of the first tile in column 0; `offsets`: from there to its other rows, and
     * `scale_at`: the first elements of the granules whose scales are its own, in column 0. */
    __device__ void load(const packed &p, const uint8_t *row0, const uint32_t (*offsets)[2],
                         const int64_t *scale_at, int64_t at, int t)
    {
        const uint8_t *from = row0 + at * STEP_BYTES;
        int64_t left = p.columns - at * COLUMNS;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int k = 0; k < GRANULES; k++) {
                    uint32_t *to = codes[tile][half][k];
                    const uint8_t *granule = from + offsets[tile][half] + k * GRANULE_BYTES;
                    bool inside = k * GRANULE < left;
                    if constexpr (INT8) {
                        uint4 v = inside ? stream_u128(granule) : make_uint4(0, 0, 0, 0);
                        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
                    } else {
                        uint2 v = inside ? stream_u64(granule) : make_uint2(0, 0);
                        to[0] = v.x, to[1] = v.y;
                    }
                }
            }
        }
        if constexpr (!INT8) {
            bool inside = t % GRANULES * GRANULE < left;
#pragma unroll
            for (int half = 0; half < 2; half++)
                scales[half] = inside ? scale_of<true>(p, (scale_at[half] + at * COLUMNS) >> p.block_shift)
                                      : 0;
        }
    }
};

/* Two neighbouring values of T: a byte of 4-bit codes through the table, or half a word of int8. */
template <typename T>
__device__ inline uint32_t look_up(const uint32_t *table, uint32_t word, int byte, int lane)
{
    uint32_t at = byte == 0 ? word << 7
                            : word >> (8 * byte - 7); /* the byte, times the 128 bytes of an entry */
    return *reinterpret_cast<const uint32_t *>(reinterpret_cast<const char *>(table) +
                                               (at & 0x7f80u | lane * 4u));
}

template <typename T, bool INT8, int TILES>
__global__ void __launch_bounds__(THREADS, 3) gemv_tensor(const __grid_constant__ packed p, int64_t rows,
                                                          int m, const T *__restrict__ x, T *__restrict__ y)
{
    typedef step<INT8, TILES> part;
    constexpr int ROWS = TILES * 16, SUMS = WARPS * ROWS * MAX_M;
    constexpr int SHARED = INT8 || SUMS > 256 * 32 ? SUMS : 256 * 32;
    __shared__ __align__(128) uint32_t shared[SHARED];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int64_t first_row = static_cast<int64_t>(blockIdx.x) * ROWS;
    int64_t steps = (p.columns + part::COLUMNS - 1) / part::COLUMNS;
    int64_t at = warp * steps / WARPS, end = (warp + 1) * steps / WARPS;

    uint32_t offsets[TILES][2];
    int64_t scale_at[2] = {0, 0},
            last = rows - 1 - first_row; /* rows past the end: the last, and nothing is stored */
    int64_t row_bytes = p.columns >> (INT8 ? 0 : 1);
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
        int64_t row = i * 8 + g < last ? i * 8 + g : last;
        offsets[i / 2][i % 2] = static_cast<uint32_t>(row * row_bytes);
        if (i / 2 == t / part::GRANULES)
            scale_at[i % 2] = (first_row + row) * p.columns + t % part::GRANULES * GRANULE;
    }
    const uint8_t *row0 = p.codes + first_row * row_bytes + t * (part::GRANULE_BYTES / 4);

    part now, next;
    if (at < end) next.load(p, row0, offsets, scale_at, at, t);
    if constexpr (!INT8) {
        uint32_t both = pair_of<T>(p.table[threadIdx.x >> 4], table_entry(p, lane));
#pragma unroll
        for (int i = 0; i < 8; i++) /* lanes begin at different banks */
            reinterpret_cast<uint4 *>(shared)[threadIdx.x * 8 + (i + lane) % 8] = make_uint4(both, both, both,
                                                                                             both);
        __syncthreads();
    }

    float sums[TILES][4] = {};
    const T *my_x = x + g * p.columns + 16 * t;
    for (; at < end; at++) {
        now = next;
        int64_t column = at * part::COLUMNS;
        if (at + 1 < end) next.load(p, row0, offsets, scale_at, at + 1, t);
#pragma unroll
        for (int k = 0; k < part::GRANULES; k++) {
            uint32_t values[8] = {}; /* 16 of x */
            if (g < m && column + k * GRANULE < p.columns) {
                const uint4 *from = reinterpret_cast<const uint4 *>(my_x + column + k * GRANULE);
                uint4 a = __ldg(from), b = __ldg(from + 1);
                values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
                values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
            }
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                float product[4] = {};
#pragma unroll
                for (int j = 0; j < 4; j++) { /* four columns of each lane */
                    uint32_t a[4];
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const uint32_t *codes = now.codes[tile][half][k];
                        if constexpr (INT8) {
                            float four[4];
                            four_of_int8(codes[j], four);
                            a[half] = pair_of<T>(four[0], four[1]);
                            a[half + 2] = pair_of<T>(four[2], four[3]);
                        } else {
                            a[half] = look_up<T>(shared, codes[j / 2], j % 2 * 2, lane);
                            a[half + 2] = look_up<T>(shared, codes[j / 2], j % 2 * 2 + 1, lane);
                        }
                    }
                    multiply<T>(INT8 ? sums[tile] : product, a, values[2 * j], values[2 * j + 1]);
                }
                if constexpr (!INT8) {
                    int owner = lane - t + tile * part::GRANULES + k;
                    float upper = __shfl_sync(ALL, now.scales[0], owner);
                    float lower = __shfl_sync(ALL, now.scales[1], owner);
                    sums[tile][0] = fmaf(upper, product[0], sums[tile][0]);
                    sums[tile][1] = fmaf(upper, product[1], sums[tile][1]);
                    sums[tile][2] = fmaf(lower, product[2], sums[tile][2]);
                    sums[tile][3] = fmaf(lower, product[3], sums[tile][3]);
                }
            }
        }
    }

    __syncthreads(); /* the table is no longer needed */
    float *all = reinterpret_cast<float *>(shared);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            all[(warp * ROWS + tile * 16 + i / 2 * 8 + g) * MAX_M + 2 * t + i % 2] = sums[tile][i];
    __syncthreads();
    int r = threadIdx.x % ROWS, n = threadIdx.x / ROWS;
    if (n >= m || first_row + r >= rows) return;
    float sum = 0;
    for (int w = 0; w < WARPS; w++) sum = __fadd_rn(sum, all[(w * ROWS + r) * MAX_M + n]);
    if (INT8) sum = __fmul_rn(__fmul_rn(sum, __ldg(p.scales + first_row + r)), INVERSE_127);
    y[n * rows + first_row + r] = narrow<T>(sum);
}

/* Eight values of x to f32. */
template <typename T> __device__ inline void eight_of(const T *from, float *values)
{
    T raw[8];
    uint4 bits[sizeof(T) / 2];
#pragma unroll
    for (unsigned i = 0; i < sizeof(T) / 2; i++) bits[i] = __ldg(reinterpret_cast<const uint4 *>(from) + i);
    memcpy(raw, bits, sizeof raw);
#pragma unroll
    for (int k = 0; k < 8; k++) values[k] = widen(raw[k]);
}

/* A warp makes ROWS rows of W times M >= m rows of x. `by_words`: eight codes and eight values of x can be loaded at
 * once. */
template <typename T, bool INT8, int M, int ROWS>
__global__ void __launch_bounds__(THREADS)
    gemv_plain(const __grid_constant__ packed p, int64_t rows, int m, bool by_words, const T *__restrict__ x,
               T *__restrict__ y)
{
    int lane = threadIdx.x % 32;
    int64_t first_row = (static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32) * ROWS;
    if (first_row >= rows) return;
    float sums[ROWS][M] = {}, mine = INT8 ? 0 : table_entry(p, lane);
    if (by_words) {
        for (int64_t base = 0; base < p.columns; base += 256) {
            int64_t column = base + lane * 8;
            bool inside = column < p.columns;
            float w[ROWS][8];
            uint2 words[ROWS];
            float scales[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                int64_t row = first_row + r < rows ? first_row + r : rows - 1, at = row * p.columns + column;
                words[r] = make_uint2(0, 0);
                scales[r] = 0;
                if (inside && INT8) words[r] = stream_u64(p.codes + at);
                if (inside && !INT8) {
                    words[r].x = stream_u32(p.codes + (at >> 1));
                    scales[r] = scale_of<true>(p, at >> p.block_shift);
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (INT8) {
                    four_of_int8(words[r].x, w[r]);
                    four_of_int8(words[r].y, w[r] + 4);
                } else {
#pragma unroll
                    for (int k = 0; k < 8; k++) {
                        int code = static_cast<int>(words[r].x >> (8 * (k / 2) + (k % 2 ? 0 : 4)));
                        w[r][k] = __fmul_rn(__shfl_sync(ALL, mine, code, 16), scales[r]);
                    }
                }
            }
#pragma unroll
            for (int n = 0; n < M; n++) {
                if (n >= m || !inside) continue;
                float values[8];
                eight_of(x + n * p.columns + column, values);
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int k = 0; k < 8; k++) sums[r][n] = fmaf(w[r][k], values[k], sums[r][n]);
            }
        }
    } else {
        for (int64_t column = lane; column < p.columns; column += 32) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                int64_t at = (first_row + r < rows ? first_row + r : rows - 1) * p.columns + column;
                float w = INT8 ? static_cast<float>(static_cast<int8_t>(p.codes[at])) : value_at(p, at);
#pragma unroll
                for (int n = 0; n < M; n++)
                    if (n < m) sums[r][n] = fmaf(w, widen(x[n * p.columns + column]), sums[r][n]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int n = 0; n < M; n++) {
            float sum = sums[r][n];
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2)
                sum = __fadd_rn(sum, __shfl_xor_sync(ALL, sum, distance));
            if (lane != 0 || n >= m || first_row + r >= rows) continue;
            if (INT8) sum = __fmul_rn(__fmul_rn(sum, __ldg(p.scales + first_row + r)), INVERSE_127);
            y[n * rows + first_row + r] = narrow<T>(sum);
        }
    }
}

template <typename T, bool INT8, int M, int ROWS>
void launch_plain(const packed &p, int64_t rows, int m, bool by_words, const T *x, T *y, cudaStream_t stream)
{
    unsigned blocks = static_cast<unsigned>(nbl__ceil_div(rows, WARPS * ROWS));
    gemv_plain<T, INT8, M, ROWS><<<blocks, THREADS, 0, stream>>>(p, rows, m, by_words, x, y);
}

template <typename T, bool INT8>
void launch(const packed &p, int64_t rows, int m, const void *x_bytes, void *y_bytes, cudaStream_t stream)
{
    const T *x = static_cast<const T *>(x_bytes);
    T *y = static_cast<T *>(y_bytes);
    bool by_words = shifts_only(p) && p.columns % 8 == 0 && aligned(x, 16) && aligned(p.codes, INT8 ? 8 : 4);
    if constexpr (sizeof(T) == 4) {
        if (m == 1) launch_plain<T, INT8, 1, 4>(p, rows, m, by_words, x, y, stream);
        else if (m == 2) launch_plain<T, INT8, 2, 4>(p, rows, m, by_words, x, y, stream);
        else if (m <= 4) launch_plain<T, INT8, 4, 2>(p, rows, m, by_words, x, y, stream);
        else launch_plain<T, INT8, 8, 2>(p, rows, m, by_words, x, y, stream);
    } else {
        bool granules = by_words && p.columns % GRANULE == 0 && p.columns <= 1 << 26 &&
                        aligned(p.codes, 16) && (INT8 || 1 << p.block_shift >= GRANULE);
        if (!granules) {
            launch_plain<T, INT8, 8, 2>(p, rows, m, by_words, x, y, stream);
        } else if (m <= 2) {
            gemv_tensor<T, INT8, 1>
                <<<static_cast<unsigned>(nbl__ceil_div(rows, 16)), THREADS, 0, stream>>>(p, rows, m, x, y);
        } else { /* more of x: read it for twice as many rows of W */
            gemv_tensor<T, INT8, 2>
                <<<static_cast<unsigned>(nbl__ceil_div(rows, 32)), THREADS, 0, stream>>>(p, rows, m, x, y);
        }
    }
}

template <typename T>
void launch_as(const packed &p, int64_t rows, int m, const void *x, void *y, cudaStream_t stream)
{
    if (p.kind == SCALES_ROWS) launch<T, true>(p, rows, m, x, y, stream);
    else launch<T, false>(p, rows, m, x, y, stream);
}

} // namespace

extern "C" nbl_status nbl__cuda_gemv(nbl_context *ctx, const nbl_weight *weight, nbl_dtype dtype, int64_t m,
                                     const void *x, void *y, void *stream)
{
    static const char call[] = "nbl__cuda_gemv";
    int64_t n = 0, rows = 0;
    NBL_TRY(nbl__check_weight(ctx, call, weight, &n, &rows));
    NBL_CHECK(ctx,
              weight->format == NBL_FORMAT_NF4 || weight->format == NBL_FORMAT_FP4 ||
                  weight->format == NBL_FORMAT_INT8,
              NBL_ERROR_UNSUPPORTED, "%s: a weight in %s; nf4, fp4 and int8 can be multiplied", call,
              nbl_format_name(weight->format));
    NBL_CHECK(ctx, nbl__is_compute(dtype), NBL_ERROR_DTYPE, "%s: x in %s; it must be f32, f16 or bf16", call,
              nbl__any_dtype_name(dtype));
    NBL_CHECK(ctx, m >= 1 && m <= MAX_M, NBL_ERROR_ARGUMENT, "%s: %" PRId64 " rows of x; 1 to %d are allowed",
              call, m, static_cast<int>(MAX_M));
    NBL_CHECK(ctx, rows <= INT32_MAX, NBL_ERROR_UNSUPPORTED, "%s: shape %s has too many rows", call,
              nbl__show_shape(weight->rank, weight->shape).text);
    if (rows == 0) return NBL_OK;
    NBL_CHECK(ctx, (n == 0 || x != NULL) && y != NULL, NBL_ERROR_ARGUMENT, "%s: x or y is NULL", call);
    NBL_CHECK(ctx, aligned(x, nbl__size_of(dtype)) && aligned(y, nbl__size_of(dtype)), NBL_ERROR_ARGUMENT,
              "%s: x or y is not aligned to its elements", call);
    packed p = packed_of(weight);
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    if (n == 0 || p.columns == 0) { /* sums of nothing: +0 in every dtype */
        cudaMemsetAsync(y, 0, static_cast<size_t>(m * rows) * nbl__size_of(dtype), on);
        return launched(ctx, call);
    }
    int count = static_cast<int>(m);
    if (dtype == NBL_DTYPE_F32) launch_as<float>(p, rows, count, x, y, on);
    else if (dtype == NBL_DTYPE_F16) launch_as<__half>(p, rows, count, x, y, on);
    else launch_as<__nv_bfloat16>(p, rows, count, x, y, on);
    return launched(ctx, call);
}
