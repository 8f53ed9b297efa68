/* elementwise_cpu.c - add, scale and cast with AVX2 and AVX-512. The kernels are in
 * elementwise.inc.
 *
 * Bytes per element in 16 bits: add 6, scale and cast between 16-bit dtypes 4. Limit: memory. */
#include "ops/elementwise/elementwise.h"

#if defined(__x86_64__)

#include "ops/common/rows.h"
#include "ops/common/vmath.h"

/* The arguments of a span: y = a + b, a·factor, or a in dtype `to`. b and factor: NULL and 0 if
 * unused. */
typedef struct span_job {
    nbl_dtype dtype, to;
    float factor;
    const uint8_t *a, *b;
    uint8_t *y;
} span_job;

#define KERNELS "ops/elementwise/elementwise.inc"
#include "ops/common/x86_widths.inc"

/* Runs n elements on the thread team, NBL_SPAN at a time, with the kernel of the instruction
 * set. */
static nbl_status run_spans(const nbl__call *call, int64_t n, nbl__rows_fn narrow, nbl__rows_fn wide,
                            const span_job *j)
{
    return nbl__rows_run(call->ctx, n, NBL_SPAN, nbl__isa(call->ctx) >= NBL_ISA_AVX512 ? wide : narrow, j);
}

static nbl_status run_add(const nbl__call *call, const void *arguments)
{
    const nbl__add *a = arguments;
    span_job j = {.dtype = a->dtype, .a = a->a.data, .b = a->b.data, .y = a->y.data};
    return run_spans(call, nbl__tensor_elements(&a->a), add_avx2, add_avx512, &j);
}

static nbl_status scale(const nbl__call *call, float factor, const nbl_tensor *x, const nbl_tensor *y)
{
    span_job j = {.dtype = x->dtype, .factor = factor, .a = x->data, .y = y->data};
    return run_spans(call, nbl__tensor_elements(x), scale_avx2, scale_avx512, &j);
}

static nbl_status cast(const nbl__call *call, const nbl_tensor *x, const nbl_tensor *y)
{
    span_job j = {.dtype = x->dtype, .to = y->dtype, .a = x->data, .y = y->data};
    return run_spans(call, nbl__tensor_elements(x), cast_avx2, cast_avx512, &j);
}

static nbl_status run_scale(const nbl__call *call, const void *arguments)
{
    const nbl__scale *a = arguments;
    return scale(call, a->factor, &a->x, &a->y);
}

static nbl_status run_cast(const nbl__call *call, const void *arguments)
{
    const nbl__cast *a = arguments;
    return cast(call, &a->x, &a->y);
}

static nbl_status run_add_backward(const nbl__call *call, const void *arguments)
{
    const nbl__add *a = arguments;
    return nbl__has_data(&a->dx) ? cast(call, &a->dy, &a->dx) : NBL_OK;
}

static nbl_status run_scale_backward(const nbl__call *call, const void *arguments)
{
    const nbl__scale *a = arguments;
    return nbl__has_data(&a->dx) ? scale(call, a->factor, &a->dy, &a->dx) : NBL_OK;
}

static nbl_status run_cast_backward(const nbl__call *call, const void *arguments)
{
    const nbl__cast *a = arguments;
    return nbl__has_data(&a->dx) ? cast(call, &a->dy, &a->dx) : NBL_OK;
}

const nbl__impl nbl__add_cpu = {"add_cpu", NBL_ISA_AVX2, NULL, NULL, run_add};
const nbl__impl nbl__scale_cpu = {"scale_cpu", NBL_ISA_AVX2, NULL, NULL, run_scale};
const nbl__impl nbl__cast_cpu = {"cast_cpu", NBL_ISA_AVX2, NULL, NULL, run_cast};
const nbl__impl nbl__add_backward_cpu = {"add_backward_cpu", NBL_ISA_AVX2, NULL, NULL, run_add_backward};
const nbl__impl nbl__scale_backward_cpu = {"scale_backward_cpu", NBL_ISA_AVX2, NULL, NULL,
                                           run_scale_backward};
const nbl__impl nbl__cast_backward_cpu = {"cast_backward_cpu", NBL_ISA_AVX2, NULL, NULL, run_cast_backward};

#endif
