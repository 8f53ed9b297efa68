/* gemv.cu - see gemv_cuda.h.
 *
 * At 3.5 TB/s of 4-bit codes, a multiprocessor of an H200 must process 27 elements per cycle. That leaves at most four
 * instructions per element. One shared memory lookup per element is too slow. Therefore, for f16 and bf16:
 *
 *   ring     codes and scales are copied to shared memory ahead of use (gemv_ring.cuh)
 *   table    a byte of codes looks up both its values at once. The table has 256 pairs, each 32 times: a lane reads its own
 *            copy in its own bank. 32 KB, no bank conflicts, one instruction per address
 *   product  mma.m16n8k16: 16 rows of W times up to 8 rows of x. One row of x costs as much as 8. W and x may permute k in
 *            the same way: a lane takes 16 consecutive codes (8 bytes), four lanes take a granule of 64 columns of one
 *            row, which lies in one block
 *   scale    f32, on the sum over a granule: one fma per 16 elements
 *
 *     a block: for its tiles of 16 rows of W        the 8 warps divide the columns
 *         each warp: for its steps of 256 columns (int8: 128)
 *             sums[16, 8] += scale · (table[codes] · xᵀ)
 *         y = Σ sums of the warps, in their order
 *
 * Reads W once. Limit: memory bandwidth. f32 uses fma instead of the tensor cores: two to five instructions per element
 * and row of x. Shapes without granules use a kernel with a warp per few rows. */
#include "ops/gemv/cuda/gemv_f32.cuh"
#include "ops/gemv/cuda/gemv_ring.cuh"

using namespace nbl_cuda;

namespace
{

/* y[m, rows] = x[m, columns] · Wᵀ for f16 and bf16, m <= 8. Persistent: two blocks of 8 warps per
 * multiprocessor, block b has tiles b, b + gridDim.x, … of 16 rows of W. Warp w has the w-th eighth
 * of the columns of every tile.
 *
 *     fill the ring with DEPTH - 1 steps
 *     for each tile, for each step of the warp:
 *         __syncwarp          every lane has read the slot that is filled next
 *         start the copies of step s + DEPTH - 1; load x of step s to registers
 *         wait for the copies of step s, __syncwarp
 *         scales; for each granule of 64 columns: 4 mma, one fma per sum with the scale
 *     sums of the 8 warps → shared memory → __syncthreads → added in the order of the warps → y
 *
 * Lane 4g + t of a product has rows g and g + 8 of the tile, and row g of x. One __syncthreads per
 * tile is enough, because the sums alternate between two halves. WHOLE: see loader. INT8 needs no
 * table and no scale in the loop: the scale of a row is applied to the final sum. Shared memory:
 * gemv_ring.cuh. */
template <typename T, scale_kind KIND, bool WHOLE>
__global__ void __launch_bounds__(THREADS, 2)
    gemv_ring(const __grid_constant__ packed p, int rows, int m, const T *__restrict__ x, T *__restrict__ y)
{
    typedef layout<KIND> in;
    extern __shared__ __align__(256) uint8_t shared[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int columns = static_cast<int>(p.columns), all_steps = (columns + in::COLUMNS - 1) / in::COLUMNS;
    int first_step = warp * all_steps / WARPS, end_step = (warp + 1) * all_steps / WARPS;
    int tiles = (rows + TILE - 1) / TILE;
    loader<KIND, WHOLE> ahead(p, shared, rows, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                              first_step, end_step - first_step, warp, lane);
#pragma unroll
    for (int d = 0; d < DEPTH - 1; d++) ahead.load(p, lane);

    if constexpr (!in::INT8) {
        uint32_t both = pair_of<T>(p.table[threadIdx.x >> 4], table_entry(p, lane));
#pragma unroll
        for (int i = 0; i < 8; i++) /* lanes start at different banks */
            *reinterpret_cast<uint4 *>(shared + threadIdx.x * in::ROW +
                                       (i + lane) % 8 * 16) = make_uint4(both, both, both, both);
        if (KIND == SCALES_NESTED)
            reinterpret_cast<float *>(shared + in::TABLE)[threadIdx.x] = __ldg(p.nested_table + threadIdx.x);
        __syncthreads();
    }

    /* Lanes for rows of x past the last load row 0. Their sums are not stored. */
    uint4 values[in::GRANULES][2] = {}; /* x: 16 per granule */
    const T *my_x = x + static_cast<int64_t>(g < m ? g : 0) * columns + 16 * t;
    uint8_t *my_codes = shared + in::CODES + (warp * DEPTH * TILE + g) * in::ROW;
    uint8_t *my_scales = shared + in::SCALES + warp * DEPTH * 4 * in::ROW;
    float offset = KIND == SCALES_NESTED ? offset_of(p) : 0;
    int slot = 0;
    for (int tile = blockIdx.x, parity = 0; tile < tiles; tile += gridDim.x, parity ^= 1) {
        float sums[4] = {};
        uint32_t granule = granule_of(tile, g, columns) + t;
        for (int s = first_step; s < end_step; s++) {
            __syncwarp(); /* all lanes have read the slot that is filled next */
            ahead.load(p, lane);
            int column = s * in::COLUMNS;
            scale_maker<KIND, WHOLE> maker;
            maker.begin(p, granule + s * in::GRANULES, rows - tile * TILE, column + t * GRANULE < columns,
                        lane);
            const uint4 *from = reinterpret_cast<const uint4 *>(my_x + column);
            constexpr int STRIDE = GRANULE * sizeof(T) / 16;
            if (WHOLE || column + in::COLUMNS <= columns) {
                if (g < m) {
#pragma unroll
                    for (int k = 0; k < in::GRANULES; k++) {
                        values[k][0] = __ldg(from + k * STRIDE);
                        values[k][1] = __ldg(from + k * STRIDE + 1);
                    }
                }
            } else {
#pragma unroll
                for (int k = 0; k < in::GRANULES; k++) {
                    bool inside = column + k * GRANULE < columns;
                    values[k][0] = inside ? __ldg(from + k * STRIDE) : make_uint4(0, 0, 0, 0);
                    values[k][1] = inside ? __ldg(from + k * STRIDE + 1) : make_uint4(0, 0, 0, 0);
                }
            }
            cp_async_wait<DEPTH - 1>();
            __syncwarp();
            float4 scales[2]; /* rows g and g + 8, by granule */
            if constexpr (!in::INT8) {
                uint8_t *lines = my_scales + slot * 4 * in::ROW;
                maker.make(p, offset, shared, lines, granule + s * in::GRANULES, lane);
                scales[0] = *reinterpret_cast<float4 *>(lines + in::MADE + g * 16);
                scales[1] = *reinterpret_cast<float4 *>(lines + in::MADE + in::ROW + g * 16);
            }
            const uint8_t *codes_at = my_codes + slot * TILE * in::ROW;
            slot = slot + 1 == DEPTH ? 0 : slot + 1;
#pragma unroll
            for (int k = 0; k < in::GRANULES; k++) {
                uint32_t codes[2][4];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint8_t *row = codes_at + half * 8 * in::ROW;
                    if constexpr (in::INT8) {
                        uint4 v = *reinterpret_cast<const uint4 *>(row + (k ^ (g & 1)) * 64 + t * 16);
                        codes[half][0] = v.x, codes[half][1] = v.y, codes[half][2] = v.z,
                        codes[half][3] = v.w;
                    } else {
                        uint2 v = *reinterpret_cast<const uint2 *>(row + (k ^ (g & 3)) * 32 + t * 8);
                        codes[half][0] = v.x, codes[half][1] = v.y;
                    }
                }
                const uint32_t b[8] = {values[k][0].x, values[k][0].y, values[k][0].z, values[k][0].w,
                                       values[k][1].x, values[k][1].y, values[k][1].z, values[k][1].w};
                float product[4] = {};
#pragma unroll
                for (int j = 0; j < 4; j++) { /* four columns of each lane */
                    uint32_t a[4];
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        if constexpr (in::INT8) {
                            float four[4];
                            four_of_int8(codes[half][j], four);
                            a[half] = pair_of<T>(four[0], four[1]);
                            a[half + 2] = pair_of<T>(four[2], four[3]);
                        } else {
                            a[half] = look_up(shared, codes[half][j / 2], j % 2 * 2, lane * 4u);
                            a[half + 2] = look_up(shared, codes[half][j / 2], j % 2 * 2 + 1, lane * 4u);
                        }
                    }
                    multiply<T>(in::INT8 ? sums : product, a, b[2 * j], b[2 * j + 1]);
                }
                if constexpr (!in::INT8) {
                    float upper = k == 0   ? scales[0].x
                                  : k == 1 ? scales[0].y
                                  : k == 2 ? scales[0].z
                                           : scales[0].w;
                    float lower = k == 0   ? scales[1].x
                                  : k == 1 ? scales[1].y
                                  : k == 2 ? scales[1].z
                                           : scales[1].w;
                    sums[0] = fmaf(upper, product[0], sums[0]);
                    sums[1] = fmaf(upper, product[1], sums[1]);
                    sums[2] = fmaf(lower, product[2], sums[2]);
                    sums[3] = fmaf(lower, product[3], sums[3]);
                }
            }
        }
        /* Adds the sums of the warps, in their order. Late warps may still read the other half (parity). */
        float *all = reinterpret_cast<float *>(shared + in::ALL_SUMS) + parity * SUMS;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (2 * t + i % 2 < m) all[(warp * TILE + i / 2 * 8 + g) * MAX_M + 2 * t + i % 2] = sums[i];
        __syncthreads();
        int row = threadIdx.x % TILE, n = threadIdx.x / TILE;
        if (n < m && tile * TILE + row < rows) {
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum = __fadd_rn(sum, all[(w * TILE + row) * MAX_M + n]);
            if (in::INT8) sum = __fmul_rn(__fmul_rn(sum, __ldg(p.scales + tile * TILE + row)), INVERSE_127);
            y[static_cast<int64_t>(n) * rows + tile * TILE + row] = narrow<T>(sum);
        }
    }
}

/* The kernel for T. *rows_of_x: rows of x per launch; *blocks: blocks per multiprocessor. */
template <typename T, scale_kind KIND>
auto kernel_for(int m, [[maybe_unused]] bool whole, int *rows_of_x, int *blocks)
{
    *blocks = 2;
    if constexpr (sizeof(T) == 4) {
        *rows_of_x = m > 2 ? 4 : m;
        *blocks = m > 2 ? 1 : 2;
        return m > 2 ? gemv_ring_f32<KIND, 4> : m == 2 ? gemv_ring_f32<KIND, 2> : gemv_ring_f32<KIND, 1>;
    } else {
        *rows_of_x = MAX_M;
        return whole ? gemv_ring<T, KIND, true> : gemv_ring<T, KIND, false>;
    }
}

template <typename T, scale_kind KIND>
void launch_ring(const packed &p, int64_t rows, int m, const T *x, T *y, cudaStream_t stream)
{
    int device = 0, processors = 1, rows_of_x, blocks;
    bool whole = rows % TILE == 0 && p.columns % layout<KIND>::COLUMNS == 0 &&
                 (KIND == SCALES_ROWS || p.block_shift == 6) &&
                 (KIND != SCALES_FLAT || aligned(p.scales, 16));
    auto kernel = kernel_for<T, KIND>(m, whole, &rows_of_x, &blocks);
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, layout<KIND>::BYTES);
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
    dim3 grid(static_cast<unsigned>(nbl__min_i64(nbl__ceil_div(rows, TILE), blocks * processors)),
              static_cast<unsigned>(nbl__ceil_div(m, rows_of_x)));
    kernel<<<grid, THREADS, layout<KIND>::BYTES, stream>>>(p, static_cast<int>(rows), m, x, y);
}

/* ---- shapes without granules, and f32 ---- */

/* Loads eight values of x as f32. */
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

/* y for any shape: a warp multiplies ROWS rows of W with M >= m rows of x. Lanes divide the
 * columns, and shuffles add their sums. `by_words`: eight codes and eight values of x per load,
 * table values by shuffle. Otherwise a lane dequantizes one element at a time. Values are those of
 * the dequantized weight in f32. Limit: instructions. */
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
            /* int8: the scale of the row. */
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
    /* The ring needs whole granules, 16-byte copies, and indices of granules that fit in 32
     * bits. */
    bool granules = by_words && p.columns % GRANULE == 0 && p.columns <= 1 << 26 &&
                    rows * p.columns <= int64_t(1) << 37 && aligned(p.codes, 16) &&
                    (INT8 || 1 << p.block_shift >= GRANULE) &&
                    (p.kind != SCALES_NESTED || aligned(p.scale_codes, 4));
    if (!granules) launch_plain<T, INT8, 8, 2>(p, rows, m, by_words, x, y, stream);
    else if constexpr (INT8) launch_ring<T, SCALES_ROWS>(p, rows, m, x, y, stream);
    else if (p.kind == SCALES_NESTED) launch_ring<T, SCALES_NESTED>(p, rows, m, x, y, stream);
    else launch_ring<T, SCALES_FLAT>(p, rows, m, x, y, stream);
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
    nbl__gemv_one one = {
        .dtype = dtype, .x = x, .count = 1, .act = -1, .norm = NULL, .parts = {{weight, {}, y}}};
    if (m == 1 && nbl__cuda_gemv_one_takes(&one)) return nbl__cuda_gemv_one(ctx, &one, stream);
    packed p = packed_of(weight);
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    if (n == 0 || p.columns == 0) { /* empty sums: +0 in every dtype */
        cudaMemsetAsync(y, 0, static_cast<size_t>(m * rows) * nbl__size_of(dtype), on);
        return launched(ctx, call);
    }
    int count = static_cast<int>(m);
    if (dtype == NBL_DTYPE_F32) launch_as<float>(p, rows, count, x, y, on);
    else if (dtype == NBL_DTYPE_F16) launch_as<__half>(p, rows, count, x, y, on);
    else launch_as<__nv_bfloat16>(p, rows, count, x, y, on);
    return launched(ctx, call);
}
