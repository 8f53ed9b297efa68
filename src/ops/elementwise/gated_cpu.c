/* gated_cpu.c - gated and its backward with AVX2 and AVX-512. The kernels are in gated.inc.
 *
 * Cost: 20 to 60 instructions per vector. Limit: on one core arithmetic and memory are about
 * equal, on more memory. */
#include "ops/elementwise/elementwise.h"

#if defined(__x86_64__)

#include "ops/common/rows.h"
#include "ops/common/vmath.h"

#define KERNELS "ops/elementwise/gated.inc"
#include "ops/common/x86_widths.inc"

void nbl__gated_span(nbl_isa isa, nbl__act act, nbl_dtype dtype, const void *gate, const void *up, void *h,
                     int64_t n)
{
    (isa >= NBL_ISA_AVX512 ? gated_avx512 : gated_avx2)(act, dtype, gate, up, h, n);
}

void nbl__gated_backward_span(nbl_isa isa, nbl__act act, nbl_dtype dtype, const void *gate, const void *up,
                              const void *dh, void *dgate, void *dup, int64_t n)
{
    (isa >= NBL_ISA_AVX512 ? gated_backward_avx512 : gated_backward_avx2)(act, dtype, gate, up, dh, dgate,
                                                                          dup, n);
}

typedef struct gated_job {
    const nbl__gated *a;
    nbl_isa isa;
} gated_job;

/* The address of element i; NULL for an absent tensor (an output that is not wanted). */
static void *at(const nbl_tensor *t, int64_t i)
{
    return t->data ? (uint8_t *)t->data + (size_t)i * nbl__size_of(t->dtype) : NULL;
}

static void *row_at(const nbl_tensor *t, int64_t row)
{
    return at(t, row * nbl__row_stride(t));
}

static void forward_span(const void *job, int64_t begin, int64_t end, int64_t item)
{
    const gated_job *j = job;
    const nbl__gated *a = j->a;
    (void)item;
    nbl__gated_span(j->isa, (nbl__act)a->act, a->dtype, at(&a->gate, begin), at(&a->up, begin),
                    at(&a->h, begin), end - begin);
}

static void backward_span(const void *job, int64_t begin, int64_t end, int64_t item)
{
    const gated_job *j = job;
    const nbl__gated *a = j->a;
    (void)item;
    nbl__gated_backward_span(j->isa, (nbl__act)a->act, a->dtype, at(&a->gate, begin), at(&a->up, begin),
                             at(&a->dh, begin), at(&a->dgate, begin), at(&a->dup, begin), end - begin);
}

/* The same for rows of which some lie in wider rows. */
static void forward_rows(const void *job, int64_t begin, int64_t end, int64_t item)
{
    const gated_job *j = job;
    const nbl__gated *a = j->a;
    (void)item;
    for (int64_t r = begin; r < end; r++)
        nbl__gated_span(j->isa, (nbl__act)a->act, a->dtype, row_at(&a->gate, r), row_at(&a->up, r),
                        row_at(&a->h, r), a->gate.shape[1]);
}

static void backward_rows(const void *job, int64_t begin, int64_t end, int64_t item)
{
    const gated_job *j = job;
    const nbl__gated *a = j->a;
    (void)item;
    for (int64_t r = begin; r < end; r++)
        nbl__gated_backward_span(j->isa, (nbl__act)a->act, a->dtype, row_at(&a->gate, r), row_at(&a->up, r),
                                 row_at(&a->dh, r), row_at(&a->dgate, r), row_at(&a->dup, r),
                                 a->gate.shape[1]);
}

/* Runs rows on the thread team, with spans of about NBL_SPAN elements. */
static nbl_status run_rows(const nbl__call *call, const gated_job *j, nbl__rows_fn fn)
{
    return nbl__rows_run(call->ctx, j->a->gate.shape[0], nbl__rows_per_span(j->a->gate.shape[1]), fn, j);
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    gated_job j = {arguments, nbl__isa(call->ctx)};
    if (nbl__is_strided(&j.a->gate) || nbl__is_strided(&j.a->up) || nbl__is_strided(&j.a->h))
        return run_rows(call, &j, forward_rows);
    return nbl__rows_run(call->ctx, nbl__tensor_elements(&j.a->gate), NBL_SPAN, forward_span, &j);
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    gated_job j = {arguments, nbl__isa(call->ctx)};
    if (nbl__is_strided(&j.a->gate) || nbl__is_strided(&j.a->up) || nbl__is_strided(&j.a->dh) ||
        nbl__is_strided(&j.a->dgate) || nbl__is_strided(&j.a->dup))
        return run_rows(call, &j, backward_rows);
    return nbl__rows_run(call->ctx, nbl__tensor_elements(&j.a->gate), NBL_SPAN, backward_span, &j);
}

const nbl__impl nbl__gated_cpu = {"gated_cpu", NBL_ISA_AVX2, NULL, NULL, run_forward};
const nbl__impl nbl__gated_backward_cpu = {"gated_backward_cpu", NBL_ISA_AVX2, NULL, NULL, run_backward};

#endif
