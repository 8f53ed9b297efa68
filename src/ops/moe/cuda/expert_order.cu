/* expert_order.cu - pairs of token and expert, sorted by expert. See expert_order.h.
 *
 *     count_kernel    a block per expert: how many pairs it has, into offsets[expert + 1]
 *     add_kernel      one warp: offsets become sums
 *     sort_kernel     a block per expert: its pairs, in their order
 *
 * Each block reads all pairs, from L2: for 128 experts and 64k pairs that is 2 × 32 MB. An expert that
 * does not exist is reported and counts as the nearest one, so that the result is an order whatever the data. */
#include "ops/common/kernel.cuh"

extern "C" {
#include "ops/moe/expert_order.h"
}

using namespace nbl_cuda;

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32 };

__device__ inline int expert_at(const int32_t *experts, int64_t pair, int count)
{
    return min(max(experts[pair], 0), count - 1);
}

__global__ void __launch_bounds__(THREADS)
    count_kernel(const int32_t *experts, int64_t pairs, int count, int32_t *offsets, nbl__cuda_fault *fault)
{
    __shared__ int of_warp[WARPS];
    int found = 0;
    for (int64_t i = threadIdx.x; i < pairs; i += THREADS) {
        if (blockIdx.x == 0 && (experts[i] < 0 || experts[i] >= count))
            report_fault(fault, NBL_CUDA_FAULT_EXPERT, i, experts[i]);
        found += expert_at(experts, i, count) == static_cast<int>(blockIdx.x);
    }
    for (int i = 16; i > 0; i /= 2) found += __shfl_xor_sync(WARP, found, i);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = found;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < WARPS; i++) found += of_warp[i];
    offsets[blockIdx.x + 1] = found;
    if (blockIdx.x == 0) offsets[0] = 0;
}

__global__ void add_kernel(int count, int32_t *offsets)
{
    int lane = threadIdx.x, before = 0;
    for (int first = 0; first < count; first += 32) {
        int it = first + lane < count ? offsets[first + lane + 1] : 0;
        for (int i = 1; i < 32; i *= 2) {
            int lower = __shfl_up_sync(WARP, it, i);
            if (lane >= i) it += lower;
        }
        if (first + lane < count) offsets[first + lane + 1] = before + it;
        before += __shfl_sync(WARP, it, 31);
    }
}

/* Rounds of one pair per thread: a pair's row is behind those of the rounds, warps and lanes before it. */
__global__ void __launch_bounds__(THREADS) sort_kernel(const int32_t *experts, int64_t pairs, int count,
                                                       const int32_t *offsets, int32_t *sorted, int32_t *rows)
{
    __shared__ int of_warp[2][WARPS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = offsets[blockIdx.x], turn = 0;
    for (int64_t first = 0; first < pairs; first += THREADS, turn ^= 1) {
        int64_t pair = first + threadIdx.x;
        bool own = pair < pairs && expert_at(experts, pair, count) == static_cast<int>(blockIdx.x);
        unsigned lanes = __ballot_sync(WARP, own);
        if (lane == 0) of_warp[turn][warp] = __popc(lanes);
        __syncthreads();
        int before = 0, all = 0;
        for (int i = 0; i < WARPS; i++) {
            before += i < warp ? of_warp[turn][i] : 0;
            all += of_warp[turn][i];
        }
        if (own) {
            int at = row + before + __popc(lanes & ((1u << lane) - 1));
            sorted[at] = static_cast<int32_t>(pair);
            rows[pair] = at;
        }
        row += all;
    }
}

nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__expert_order *a = static_cast<const nbl__expert_order *>(arguments);
    const int32_t *experts = static_cast<const int32_t *>(a->experts.data);
    int32_t *offsets = static_cast<int32_t *>(a->offsets.data);
    int64_t pairs = nbl__tensor_elements(&a->experts);
    int count = static_cast<int>(a->count);
    unsigned blocks = static_cast<unsigned>(count);
    count_kernel<<<blocks, THREADS, 0, stream_of(call)>>>(experts, pairs, count, offsets,
                                                          nbl__call_cuda(call)->fault);
    add_kernel<<<1, 32, 0, stream_of(call)>>>(count, offsets);
    if (pairs > 0)
        sort_kernel<<<blocks, THREADS, 0, stream_of(call)>>>(experts, pairs, count, offsets,
                                                             static_cast<int32_t *>(a->pairs.data),
                                                             static_cast<int32_t *>(a->rows.data));
    return launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__expert_order_cuda = {"expert_order_cuda", NBL_ISA_SCALAR, NULL, NULL, run};
}
