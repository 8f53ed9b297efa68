/* attention_backward_sm90.cu - the backward of attention_sm90.cu: two walks. The first computes dQ
 * (attention_backward_dq.cuh), the second dK and dV (attention_backward_dkv.cuh). The second
 * computes S and dP again: 7 products instead of 5. In return every sum stays in the registers of
 * one warpgroup. No block waits for another, and no order of additions depends on timing. Compiled
 * for sm_90a.
 *
 * Cost: 14·D FLOP per (query, key) pair that is seen. Limit: the tensor cores. */
#include "ops/attention/cuda/attention_backward_dkv.cuh"
#include "ops/attention/cuda/attention_backward_dq.cuh"

using namespace nbl_cuda;

namespace
{

/* One call of the operator: its arguments, and the choice of the kernels. */
struct pass {
    const attention_problem &p;
    const attention_data &data;
    const attention_maps &maps;
    const nbl__call *call;

    template <typename Shape, typename Kernel> void launch(Kernel kernel, int heads, int blocks_each) const
    {
        attention_items items = items_of(call, p, Shape::ROWS, heads);
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::BYTES);
        kernel<<<static_cast<unsigned>(nbl__call_cuda(call)->multiprocessors * blocks_each), Shape::THREADS,
                 Shape::BYTES, stream_of(call)>>>(p, data, maps, items);
    }

    template <typename T, int WIDE, bool CAP> void keys() const
    {
        int64_t items = static_cast<int64_t>(p.tokens) / 128 * p.key_heads;
        bool many = items > 2 * nbl__call_cuda(call)->multiprocessors;
        if constexpr (!CAP) /* two blocks per multiprocessor leave too few registers for a cap */
            if (!many)
                return launch<keys_shape<WIDE, 1>>(backward_keys_sm90<T, WIDE, 1, CAP>, p.key_heads, 2);
        launch<keys_shape<WIDE, 2>>(backward_keys_sm90<T, WIDE, 2, CAP>, p.key_heads, 1);
    }
    template <typename T, int WIDE, bool CAP, bool SUMS> void queries() const
    {
        launch<queries_shape<WIDE>>(backward_queries_sm90<T, WIDE, CAP, SUMS>, p.heads, 1);
    }
    template <typename T, int WIDE> void run() const
    {
        /* The order matters: the walk for dQ writes the lse2 and delta that the other one reads. */
        if (p.cap != 0 && (data.dq || data.sums)) queries<T, WIDE, true, true>();
        else if (data.sums) queries<T, WIDE, false, true>();
        else if (data.dq) queries<T, WIDE, false, false>();
        if (data.dk || data.dv) p.cap != 0 ? keys<T, WIDE, true>() : keys<T, WIDE, false>();
    }
};

/* ---- the operator ---- */

const char *can_run(const nbl_context *ctx, const void *arguments)
{
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    return a->q.shape[2] > 128 ? "heads of more than 128" : nbl__attention_backward_mma.can(ctx, arguments);
}

nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__attention *a = static_cast<const nbl__attention *>(arguments);
    attention_problem p = attention_problem_of(call, a);
    attention_data data = attention_data_of(a);
    attention_maps maps;
    if (nbl__call_cuda(call)->major != 9 || !attention_maps_of(call, a, p, &maps))
        return nbl__attention_backward_mma.run(call, arguments);
    attention_rows rows = attention_rows_of(call, a, &data);
    /* Else the walk for dQ writes them. */
    if (!data.dq && !data.sums) attention_rows_make(call, a, p, &data);
    pass pass = {p, data, maps, call};
    if (a->dtype == NBL_DTYPE_F16) p.size <= 64 ? pass.run<__half, 64>() : pass.run<__half, 128>();
    else p.size <= 64 ? pass.run<__nv_bfloat16, 64>() : pass.run<__nv_bfloat16, 128>();
    attention_sinks_add(call, a, p, rows);
    return launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__attention_backward_sm90 = {"attention_backward_sm90", NBL_ISA_SCALAR, can_run,
                                                attention_backward_scratch, run_backward};
}
