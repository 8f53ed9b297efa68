/* tensor_spans.cuh - one launch for a list of tensors, passed by value in the kernel's parameters. Internal to
 * the CUDA kernels.
 *
 * The tensors are divided into spans of equal length, one per block. A block finds its tensor by bisection.
 * Parameters have at most 32 KB: more tensors take more launches. */
#ifndef NBL_TENSOR_SPANS_CUH
#define NBL_TENSOR_SPANS_CUH

#include "ops/common/load.cuh"

namespace nbl_cuda
{

/* ENTRY has `n`, the number of elements, and `first`, its first span in this launch. */
template <typename ENTRY, int MAX, typename COMMON> struct tensor_list {
    enum { CAPACITY = MAX };
    COMMON common;
    int count;
    ENTRY at[MAX];
};

/* The entry of a span: the last one that begins at or before it. */
template <typename LIST> __device__ inline int entry_of(const LIST &list, unsigned span)
{
    int low = 0, high = list.count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (list.at[middle].first <= span) low = middle;
        else high = middle;
    }
    return low;
}

/* Calls launch(list, spans) for as many lists as `count` tensors need. make(i) returns the entry of tensor i. */
template <typename LIST, typename COMMON, typename MAKE, typename LAUNCH>
static inline void for_lists(int64_t count, int64_t span, COMMON common, MAKE make, LAUNCH launch)
{
    LIST list;
    list.common = common;
    for (int64_t i = 0; i < count;) {
        unsigned spans = 0;
        for (list.count = 0; i < count && list.count < LIST::CAPACITY; i++) {
            auto entry = make(i);
            entry.first = spans;
            if (entry.n == 0) continue;
            spans += static_cast<unsigned>(ceil_div(entry.n, span));
            list.at[list.count++] = entry;
        }
        if (spans > 0) launch(list, spans);
    }
}

} // namespace nbl_cuda
#endif
