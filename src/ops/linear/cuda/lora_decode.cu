/* lora_decode.cu - see lora_decode.h. Linear layers over up to 8 rows of x.
 *
 *     inner_kernel   t = s · x·Aᵀ: a block per rank reads its row of A once for all rows of x
 *     outer_kernel   y = factor · (y + t·Bᵀ) + bias: a thread per column of y reads its row of B
 *     codes_kernel   LLM.int8: a warp per row of W
 *
 * Each reads its matrix once. Limit: memory, and for small layers the latency of two launches. */
#include "ops/common/kernel.cuh"

extern "C" {
#include "ops/linear/cuda/lora_decode.h"
}

using namespace nbl_cuda;

namespace
{

constexpr int THREADS = 256;

/* t[m, r] = s · Σ_k x[m, k] · A[r, k] for r = blockIdx.x. A thread has columns 256 apart and one
 * sum per row of x; warps are added in their order. */
__global__ void __launch_bounds__(THREADS) inner_kernel(const __grid_constant__ nbl__lora_decode f)
{
    __shared__ float warps[THREADS / 32][NBL_MAX_LORA_DECODE_ROWS];
    float sums[NBL_MAX_LORA_DECODE_ROWS] = {};
    int64_t r = blockIdx.x;
    for (int64_t k = threadIdx.x; k < f.in; k += THREADS) {
        float a = load_one(f.lora_a.data, f.lora_a.dtype, r * f.in + k);
#pragma unroll
        for (int m = 0; m < NBL_MAX_LORA_DECODE_ROWS; m++)
            if (m < f.rows) sums[m] = fmaf(load_one(f.x, f.dtype, m * f.in + k), a, sums[m]);
    }
#pragma unroll
    for (int m = 0; m < NBL_MAX_LORA_DECODE_ROWS; m++) {
        float sum = warp_sum(sums[m]);
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32][m] = sum;
    }
    __syncthreads();
    if (threadIdx.x >= f.rows) return;
    float sum = 0;
    for (int w = 0; w < THREADS / 32; w++) sum += warps[w][threadIdx.x];
    f.t[threadIdx.x * f.rank + r] = sum * f.scale;
}

/* Adds the adapter to y in place. Neighbouring threads read neighbouring rows of B, `rank` elements
 * each. */
template <typename T>
__global__ void __launch_bounds__(THREADS) outer_kernel(const __grid_constant__ nbl__lora_decode f)
{
    int64_t n = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (n >= f.out) return;
    float sums[NBL_MAX_LORA_DECODE_ROWS] = {};
    for (int64_t r = 0; r < f.rank; r++) {
        float b = load_one(f.lora_b.data, f.lora_b.dtype, n * f.rank + r);
#pragma unroll
        for (int m = 0; m < NBL_MAX_LORA_DECODE_ROWS; m++)
            if (m < f.rows) sums[m] = fmaf(f.t[m * f.rank + r], b, sums[m]);
    }
    float factor = f.factor ? f.factor[n] : 1,
          bias = f.bias.data ? load_one(f.bias.data, f.bias.dtype, n) : 0;
#pragma unroll
    for (int m = 0; m < NBL_MAX_LORA_DECODE_ROWS; m++) {
        if (m >= f.rows) continue;
        T *y = static_cast<T *>(f.y) + m * f.out + n;
        *y = from_f32<T>((to_f32(*y) + sums[m]) * factor + bias);
    }
}

/* code_sums = codes · Wᵀ in integers, and sums = kept · dequantize(W)ᵀ over the outlier columns. A
 * warp per row of W. `words`: four codes per load and dp4a; most words have no outlier and end
 * there. */
__global__ void __launch_bounds__(THREADS) codes_kernel(const __grid_constant__ nbl__int8_small_batch f, bool words)
{
    constexpr float INVERSE_127 = 0x1.020408p-7f; /* as src/quant/int8.c */
    int64_t n = static_cast<int64_t>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (n >= f.out) return;
    float sums[NBL_MAX_LORA_DECODE_ROWS] = {}, scale = f.w_scales[n];
    int code_sums[NBL_MAX_LORA_DECODE_ROWS] = {};
    const int8_t *w = f.w + n * f.in;
    int width = words ? 4 : 1;
    for (int64_t k = lane * width; k < f.in; k += 32 * width) {
        if (words) {
            int four = *reinterpret_cast<const int *>(w + k);
#pragma unroll
            for (int m = 0; m < NBL_MAX_LORA_DECODE_ROWS; m++)
                if (m < f.rows)
                    code_sums[m] = __dp4a(four, *reinterpret_cast<const int *>(f.codes + m * f.in + k),
                                          code_sums[m]);
            if (*reinterpret_cast<const int *>(f.outlier + k) == 0) continue;
        } else {
#pragma unroll
            for (int m = 0; m < NBL_MAX_LORA_DECODE_ROWS; m++)
                if (m < f.rows) code_sums[m] += w[k] * f.codes[m * f.in + k];
        }
        for (int i = 0; i < width; i++) {
            if (!f.outlier[k + i]) continue;
            float value = static_cast<float>(w[k + i]) * scale * INVERSE_127;
            if (f.dtype == NBL_DTYPE_F16) value = to_f32(from_f32<__half>(value));
            else if (f.dtype == NBL_DTYPE_BF16) value = to_f32(from_f32<__nv_bfloat16>(value));
#pragma unroll
            for (int m = 0; m < NBL_MAX_LORA_DECODE_ROWS; m++)
                if (m < f.rows)
                    sums[m] = fmaf(load_one(f.outliers, f.outlier_dtype, m * f.in + k + i), value, sums[m]);
        }
    }
#pragma unroll
    for (int m = 0; m < NBL_MAX_LORA_DECODE_ROWS; m++) {
        if (m >= f.rows) continue;
        float sum = warp_sum(sums[m]);
        int codes = code_sums[m];
        for (int i = 16; i > 0; i /= 2) codes += __shfl_xor_sync(WARP, codes, i);
        if (lane == 0) f.sums[m * f.out + n] = sum, f.code_sums[m * f.out + n] = codes;
    }
}

} // namespace

extern "C" nbl_status nbl__cuda_int8_small_batch(const nbl__call *call, const nbl__int8_small_batch *f)
{
    if (f->rows == 0 || f->out == 0) return NBL_OK;
    bool words = f->in % 4 == 0 && is_aligned(f->w, 4) && is_aligned(f->codes, 4) &&
                 is_aligned(f->outlier, 4);
    unsigned blocks = static_cast<unsigned>((f->out + THREADS / 32 - 1) / (THREADS / 32));
    codes_kernel<<<blocks, THREADS, 0, stream_of(call)>>>(*f, words);
    return launched(call);
}

extern "C" nbl_status nbl__cuda_lora_decode(const nbl__call *call, const nbl__lora_decode *f)
{
    if (f->rows == 0 || f->out == 0) return NBL_OK;
    if (f->rank > 0) inner_kernel<<<static_cast<unsigned>(f->rank), THREADS, 0, stream_of(call)>>>(*f);
    unsigned blocks = static_cast<unsigned>((f->out + THREADS - 1) / THREADS);
    NBL_BY_DTYPE(f->dtype, T, (outer_kernel<T><<<blocks, THREADS, 0, stream_of(call)>>>(*f)));
    return launched(call);
}
