/* dequantize.cu - see dequantize_cuda.h. Four kernels:
 *
 *   tiles        4-bit: a warp dequantizes 32 lanes x 4 steps x 16 bytes of output. It loads the
 *                codes of all steps first. Each lane computes one or two of the tile's scales. The
 *                other lanes get scales and the 16 table values by shuffle. 3.5 instructions per
 *                element, no shared memory, and every load and store is whole sectors
 *   rows         int8: the same with the scales of rows and no table
 *   transposed   squares of 64 x 64 through shared memory
 *   any          one element per thread: ragged rows, unaligned tensors
 *
 * Bytes: nf4 to bf16 moves 2.56 bytes per element, four fifths of them stores. Limit: memory.
 * Measured on an H200: many short blocks beat a persistent grid by a tenth. Streaming stores win a
 * little over plain ones. Results that go through shared memory and bulk copies lose. */
#include "ops/dequantize/dequantize_value.cuh"
#include "ops/dequantize/dequantize_cuda.h"

using namespace nbl_cuda;

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32, STEPS = 4, ROW_STEPS = 2, SQUARE = 64 };

/* The codes of 16 bytes of output: 4 or 8 elements. */
template <typename T, bool INT8> struct chunk {
    enum { COUNT = 16 / sizeof(T), BYTES = INT8 ? COUNT : COUNT / 2 };
    uint2 word; /* 2, 4 or 8 bytes */

    __device__ void load(const uint8_t *from)
    {
        word.y = 0;
        if (BYTES == 2) word.x = stream_u16(from);
        else if (BYTES == 4) word.x = stream_u32(from);
        else word = stream_u64(from);
    }
    /* Loads the first `bytes` only. For 4-bit formats. */
    __device__ void load_part(const uint8_t *from, int64_t bytes)
    {
        word = make_uint2(0, 0);
        for (int i = 0; i < BYTES && i < bytes; i++) word.x |= static_cast<uint32_t>(from[i]) << 8 * i;
    }
    /* The values before the scale. `mine` is entry lane % 16 of the table. All lanes of the warp
     * call it, because the table is read by shuffle. */
    __device__ void look_up(float mine, bool low_first, float *values) const
    {
        if (INT8) {
            four_of_int8(word.x, values);
            if (COUNT == 8) four_of_int8(word.y, values + 4);
            return;
        }
        uint32_t w = word.x;
        if (low_first) w = (w >> 4 & 0x0f0f0f0fu) | (w & 0x0f0f0f0fu) << 4;
#pragma unroll
        for (int k = 0; k < COUNT; k++)
            values[k] = __shfl_sync(ALL, mine, static_cast<int>(w >> (8 * (k / 2) + (k % 2 ? 0 : 4))), 16);
    }
};

/* Values times their scale, rounded to T, as 16 bytes. `finite` is uniform in a warp: with finite
 * scales no NaN can arise, and plain products give the bits of the CPU. */
template <typename T, bool INT8> __device__ inline uint4 finish(const float *values, float scale, bool finite)
{
    constexpr int COUNT = 16 / sizeof(T);
    uint4 out;
    if (!finite) { /* rare: the products with the NaN rules of x86 */
        T result[COUNT];
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            float product = mul_x86(values[k], scale);
            result[k] = narrow<T>(INT8 ? mul_x86(product, INVERSE_127) : product);
        }
        memcpy(&out, result, 16);
        return out;
    }
    float product[COUNT];
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        product[k] = __fmul_rn(values[k], scale);
        if (INT8) product[k] = __fmul_rn(product[k], INVERSE_127);
    }
    if constexpr (sizeof(T) == 4) {
        memcpy(&out, product, 16);
    } else {
        out.x = pair_of<T>(product[0], product[1]);
        out.y = pair_of<T>(product[2], product[3]);
        out.z = pair_of<T>(product[4], product[5]);
        out.w = pair_of<T>(product[6], product[7]);
    }
    return out;
}

/* Stores 16 bytes, or as many elements as lie before `limit`. Streaming: nobody reads them soon. */
template <typename T> __device__ inline void store(T *out, int64_t i, int64_t limit, uint4 result)
{
    constexpr int COUNT = 16 / sizeof(T);
    if (i + COUNT <= limit) {
        __stcs(reinterpret_cast<uint4 *>(out + i), result);
    } else if (i < limit) {
        T rest[COUNT];
        memcpy(rest, &result, 16);
        for (int k = 0; k < COUNT; k++)
            if (i + k < limit) out[i + k] = rest[k];
    }
}

/* A lane's loads for a tile of STEPS x 32 x 16 bytes of output. */
template <typename T> struct tile_of {
    enum { STEP = 32 * chunk<T, false>::COUNT, HALF = STEP * STEPS / 2, TILE = 2 * HALF };
    chunk<T, false> codes[STEPS];
    raw_scale scales[2]; /* of the lane-th quantization block of each half */

    __device__ void load(const packed &p, int64_t begin, int64_t base, int64_t count, int lane)
    {
        typedef chunk<T, false> piece;
#pragma unroll
        for (int u = 0; u < STEPS; u++) {
            int64_t i = base + u * STEP + lane * piece::COUNT;
            codes[u].word = make_uint2(0, 0);
            if (i + piece::COUNT <= count) codes[u].load(p.codes + ((begin + i) >> 1));
            else if (i < count) codes[u].load_part(p.codes + ((begin + i) >> 1), (count - i + 1) / 2);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int64_t first = base + h * HALF, left = count - first;
            if (left <= 0) break;
            int offset = static_cast<int>((begin + first) & ((1 << p.block_shift) - 1));
            int last = (offset + static_cast<int>(left < HALF ? left : HALF) - 1) >> p.block_shift;
            scales[h] = fetch_scale<true>(p,
                                          ((begin + first) >> p.block_shift) + (lane < last ? lane : last));
        }
    }
};

/* 4-bit: elements [begin, begin + count) to out[0 ...], a tile per warp. begin is a multiple of 32,
 * and out is aligned to 16 bytes. The launch uses a warp per tile, which is fastest. In a smaller
 * grid a warp goes on to further tiles, and loads their codes before it stores. */
template <typename T>
__global__ void __launch_bounds__(THREADS, 6) dequantize_tiles(const __grid_constant__ packed p, int64_t begin,
                                                           int64_t count, int64_t tiles, T *__restrict__ out)
{
    typedef tile_of<T> part;
    constexpr int COUNT = chunk<T, false>::COUNT;
    int lane = threadIdx.x % 32;
    int64_t stride = static_cast<int64_t>(gridDim.x) * WARPS;
    int64_t tile = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    float mine = table_entry(p, lane);
    part next = {};
    if (tile < tiles) next.load(p, begin, tile * part::TILE, count, lane);
    for (; tile < tiles; tile += stride) {
        part now = next;
        int64_t base = tile * part::TILE;
        float scales[2] = {scale_from(p, now.scales[0]), scale_from(p, now.scales[1])};
        if (tile + stride < tiles) next.load(p, begin, base + stride * part::TILE, count, lane);
        bool finite = __all_sync(ALL, is_finite(scales[0]) && is_finite(scales[1]));
#pragma unroll
        for (int u = 0; u < STEPS; u++) {
            int h = u / (STEPS / 2), in_half = u % (STEPS / 2) * part::STEP + lane * COUNT;
            int offset = static_cast<int>((begin + base + h * part::HALF) & ((1 << p.block_shift) - 1));
            float scale = __shfl_sync(ALL, scales[h], (offset + in_half) >> p.block_shift), values[COUNT];
            now.codes[u].look_up(mine, p.low_first, values);
            store(out, base + u * part::STEP + lane * COUNT, count, finish<T, false>(values, scale, finite));
        }
    }
}

/* int8: rows of a multiple of 8 columns to out[0 ...]. A warp has one of the `row_tiles` tiles of a
 * row, so one scale. Two steps of loads first, then two stores of 16 bytes per lane. */
template <typename T>
__global__ void __launch_bounds__(THREADS, 8)
    dequantize_rows(const __grid_constant__ packed p, int64_t begin, int64_t row_tiles, int64_t tiles,
                T *__restrict__ out)
{
    typedef chunk<T, true> piece;
    constexpr int STEP = 32 * piece::COUNT;
    int lane = threadIdx.x % 32;
    int64_t tile = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (tile >= tiles) return;
    int64_t row = tile / row_tiles, limit = (row + 1) * p.columns;
    int64_t base = row * p.columns + (tile - row * row_tiles) * (STEP * ROW_STEPS) + lane * piece::COUNT;
    piece codes[ROW_STEPS];
#pragma unroll
    for (int u = 0; u < ROW_STEPS; u++) {
        codes[u].word = make_uint2(0, 0);
        if (base + u * STEP < limit) codes[u].load(p.codes + begin + base + u * STEP);
    }
    float scale = __ldg(p.scales + begin / p.columns + row);
    bool finite = is_finite(scale);
#pragma unroll
    for (int u = 0; u < ROW_STEPS; u++) {
        float values[piece::COUNT];
        codes[u].look_up(0, false, values);
        store(out, base + u * STEP, limit, finish<T, true>(values, scale, finite));
    }
}

/* Any format, shape and alignment: one element per thread and step. Limit: instructions. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    dequantize_any(const __grid_constant__ packed p, int64_t begin, int64_t count, T *__restrict__ out)
{
    int64_t stride = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < count; i += stride)
        out[i] = narrow<T>(value_at(p, begin + i));
}

/* out[c, r] = W[row_begin + r, c]. A block has a square of 64 rows and 64 columns of W.
 *
 *     in two passes: 32 rows; 8 threads per row, 8 codes each → square in shared memory
 *     __syncthreads
 *     columns of the square → rows of out, 16 bytes per thread
 *
 * Rows of the square are padded by 4 bytes against bank conflicts. `by_words`: eight codes of a row
 * are one aligned load. `by_vectors`: 16 bytes of a row of out are one aligned store. */
template <typename T, bool INT8>
__global__ void __launch_bounds__(THREADS)
    dequantize_transposed(const __grid_constant__ packed p, int64_t row_begin, int64_t rows,
                      int64_t column_squares, bool by_words, bool by_vectors, T *__restrict__ out)
{
    constexpr int PAD = 4 / sizeof(T), COUNT = 16 / sizeof(T), CHUNKS = SQUARE / COUNT;
    __shared__ T square[SQUARE][SQUARE + PAD];
    int64_t row_square = blockIdx.x / column_squares;
    int64_t r0 = row_square * SQUARE, c0 = (blockIdx.x - row_square * column_squares) * SQUARE;
    float mine = INT8 ? 0 : table_entry(p, static_cast<int>(threadIdx.x));

    for (int pass = 0; pass < 2; pass++) {
        int r = pass * 32 + threadIdx.x / 8, c = threadIdx.x % 8 * 8;
        int64_t row = row_begin + r0 + r, first = row * p.columns + c0 + c;
        bool inside = r0 + r < rows && c0 + c < p.columns;
        if (by_words) {                /* columns are a multiple of 8: a word is whole or absent */
            chunk<__half, INT8> codes; /* 8 codes, for any T */
            codes.word = make_uint2(0, 0);
            float values[8], scale = 0;
            if (inside) {
                codes.load(p.codes + (INT8 ? first : first >> 1));
                scale = INT8 ? __ldg(p.scales + row) : scale_of<true>(p, first >> p.block_shift);
            }
            codes.look_up(mine, p.low_first, values);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                float product = mul_x86(values[k], scale);
                square[r][c + k] = narrow<T>(INT8 ? mul_x86(product, INVERSE_127) : product);
            }
        } else if (inside) {
            for (int k = 0; k < 8 && c0 + c + k < p.columns; k++)
                square[r][c + k] = narrow<T>(value_at(p, first + k));
        }
    }
    __syncthreads();

    for (int c = threadIdx.x / CHUNKS; c < SQUARE; c += THREADS / CHUNKS) {
        int r = threadIdx.x % CHUNKS * COUNT;
        if (c0 + c >= p.columns || r0 + r >= rows) continue;
        T *to = out + (c0 + c) * rows + r0 + r;
        T column[COUNT];
        int inside = rows - (r0 + r) < COUNT ? static_cast<int>(rows - (r0 + r)) : COUNT;
#pragma unroll
        for (int k = 0; k < COUNT; k++) column[k] = k < inside ? square[r + k][c] : square[r][c];
        if (by_vectors && inside == COUNT) {
            uint4 bits;
            memcpy(&bits, column, 16);
            *reinterpret_cast<uint4 *>(to) = bits;
        } else {
#pragma unroll
            for (int k = 0; k < COUNT; k++)
                if (k < inside) to[k] = column[k];
        }
    }
}

template <typename T, bool INT8>
void launch(const packed &p, int64_t row_begin, int64_t rows, bool transpose, T *out, cudaStream_t stream)
{
    constexpr int COUNT = 16 / sizeof(T);
    int64_t begin = row_begin * p.columns, count = rows * p.columns;
    if (transpose) {
        bool by_words = shifts_only(p) && p.columns % 8 == 0 && aligned(p.codes, INT8 ? 8 : 4);
        bool by_vectors = rows % COUNT == 0 && aligned(out, 16);
        int64_t column_squares = nbl__ceil_div(p.columns, SQUARE), squares = nbl__ceil_div(rows, SQUARE);
        dequantize_transposed<T, INT8><<<static_cast<unsigned>(column_squares * squares), THREADS, 0, stream>>>(
            p, row_begin, rows, column_squares, by_words, by_vectors, out);
    } else if (shifts_only(p) && aligned(out, 16) && aligned(p.codes, 8) &&
               (INT8 ? p.columns % 8 == 0 : begin % 32 == 0)) {
        int64_t row_tiles = nbl__ceil_div(p.columns, 32 * COUNT * ROW_STEPS);
        int64_t tiles = INT8 ? rows * row_tiles : nbl__ceil_div(count, tile_of<T>::TILE);
        unsigned blocks = static_cast<unsigned>(nbl__min_i64(nbl__ceil_div(tiles, WARPS), INT32_MAX));
        if constexpr (INT8) dequantize_rows<T><<<blocks, THREADS, 0, stream>>>(p, begin, row_tiles, tiles, out);
        else dequantize_tiles<T><<<blocks, THREADS, 0, stream>>>(p, begin, count, tiles, out);
    } else {
        int64_t blocks = nbl__min_i64(nbl__ceil_div(count, THREADS), 1 << 16);
        dequantize_any<T><<<static_cast<unsigned>(blocks), THREADS, 0, stream>>>(p, begin, count, out);
    }
}

template <typename T>
void launch_as(const packed &p, int64_t row_begin, int64_t rows, bool transpose, void *out,
               cudaStream_t stream)
{
    if (p.kind == SCALES_ROWS) launch<T, true>(p, row_begin, rows, transpose, static_cast<T *>(out), stream);
    else launch<T, false>(p, row_begin, rows, transpose, static_cast<T *>(out), stream);
}

} // namespace

extern "C" nbl_status nbl__cuda_dequantize(nbl_context *ctx, const nbl_weight *weight, int64_t row_begin,
                                           int64_t row_end, nbl_dtype dtype, int transpose, void *out,
                                           void *stream)
{
    static const char call[] = "nbl__cuda_dequantize";
    int64_t n = 0, rows = 0;
    NBL_TRY(nbl__check_weight(ctx, call, weight, &n, &rows));
    NBL_CHECK(ctx, weight->format != NBL_FORMAT_DENSE, NBL_ERROR_UNSUPPORTED,
              "%s: a dense weight of shape %s; only packed weights are dequantized", call,
              nbl__show_shape(weight->rank, weight->shape).text);
    NBL_CHECK(ctx, nbl__is_compute(dtype), NBL_ERROR_DTYPE,
              "%s: %s to %s; only f32, f16 and bf16 are allowed", call, nbl_format_name(weight->format),
              nbl__any_dtype_name(dtype));
    NBL_CHECK(ctx, row_begin >= 0 && row_begin <= row_end && row_end <= rows, NBL_ERROR_ARGUMENT,
              "%s: rows %" PRId64 " to %" PRId64 " of %" PRId64, call, row_begin, row_end, rows);
    int64_t count = row_end - row_begin;
    if (n == 0 || count == 0) return NBL_OK;
    NBL_CHECK(ctx, out != NULL && aligned(out, nbl__size_of(dtype)), NBL_ERROR_ARGUMENT,
              "%s: out is NULL or not aligned to its elements", call);
    /* A grid has at most 2^31 blocks. The smallest work of one block is a row (int8), or a square. */
    int64_t columns = weight->shape[weight->rank - 1];
    NBL_CHECK(ctx, nbl__ceil_div(columns, SQUARE) <= INT32_MAX / nbl__ceil_div(count, WARPS),
              NBL_ERROR_UNSUPPORTED, "%s: shape %s is too large for one launch", call,
              nbl__show_shape(weight->rank, weight->shape).text);
    packed p = packed_of(weight);
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    if (dtype == NBL_DTYPE_F32) launch_as<float>(p, row_begin, count, transpose != 0, out, on);
    else if (dtype == NBL_DTYPE_F16) launch_as<__half>(p, row_begin, count, transpose != 0, out, on);
    else launch_as<__nv_bfloat16>(p, row_begin, count, transpose != 0, out, on);
    return launched(ctx, call);
}
