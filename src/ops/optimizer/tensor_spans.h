/* tensor_spans.h - cuts a list of tensors into spans of equal length for the
 * thread team, so that many small tensors and a few large ones keep all threads
 * equally busy. Spans depend on the tensors alone. */
#ifndef NBL_TENSOR_SPANS_H
#define NBL_TENSOR_SPANS_H

#include "ops/ops.h"

enum { NBL_TENSOR_SPAN = 16384 }; /* elements; a multiple of every block of codes */

typedef struct nbl__tensor_span {
    int64_t tensor, begin, n; /* elements [begin, begin + n) */
} nbl__tensor_span;

/* first[i] receives the index of the first span of tensor i, and first[count] the
 * number of spans, which is also returned. `first` may be NULL. The structs in the
 * list are `bytes` apart, and begin with an nbl_tensor. */
static inline int64_t nbl__tensor_spans(const nbl_tensor *tensors, size_t bytes, int64_t count,
                                        int64_t *first)
{
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++) {
        const nbl_tensor *t = (const nbl_tensor *)(const void *)((const char *)tensors + (size_t)i * bytes);
        if (first) first[i] = total;
        total += nbl__ceil_div(nbl__tensor_elements(t), NBL_TENSOR_SPAN);
    }
    if (first) first[count] = total;
    return total;
}

/* The tensor that holds span `item`: the last whose first span is not behind it,
 * and therefore never an empty tensor. Binary search. */
static inline int64_t nbl__tensor_span_tensor(const int64_t *first, int64_t count, int64_t item)
{
    int64_t low = 0, high = count; /* first[low] <= item < first[high] */
    assert(count > 0 && first[0] <= item && item < first[count]);
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (first[middle] <= item) low = middle;
        else high = middle;
    }
    return low;
}

/* Span `item`. */
static inline nbl__tensor_span nbl__tensor_span_at(const int64_t *first, int64_t count, int64_t item,
                                                   const nbl_tensor *tensors, size_t bytes)
{
    int64_t k = nbl__tensor_span_tensor(first, count, item), begin = (item - first[k]) * NBL_TENSOR_SPAN;
    const nbl_tensor *t = (const nbl_tensor *)(const void *)((const char *)tensors + (size_t)k * bytes);
    return (nbl__tensor_span){k, begin, nbl__min_i64(NBL_TENSOR_SPAN, nbl__tensor_elements(t) - begin)};
}

#endif
