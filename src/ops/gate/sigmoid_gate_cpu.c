/* sigmoid_gate_cpu.c - sigmoid_gate and its backward with AVX2 and AVX-512, row by row. The kernels
 * are in sigmoid_gate.inc.
 *
 * Bytes per element in 16 bits: forward 6, backward 10. Limit: memory. */
#include "ops/gate/sigmoid_gate.h"

#if defined(__x86_64__)

#include "ops/common/rows.h"
#include "ops/common/vmath.h"

typedef struct gate_job {
    const nbl__sigmoid_gate *a;
    bool backward;
    bool one; /* one gate for a whole row */
    int64_t columns;
} gate_job;

/* The address of a row; NULL for a gradient that is not wanted. */
static uint8_t *row_at(const nbl_tensor *t, int64_t row)
{
    return t->data ? (uint8_t *)t->data + (size_t)(row * nbl__row_stride(t)) * nbl__size_of(t->dtype) : NULL;
}

static float one_value(nbl_dtype dtype, const void *at)
{
    float value;
    nbl__to_f32(NBL_ISA_SCALAR, dtype, at, &value, 1);
    return value;
}

#define KERNELS "ops/gate/sigmoid_gate.inc"
#include "ops/common/x86_widths.inc"

static nbl_status run(const nbl__call *call, const nbl__sigmoid_gate *a, bool backward, nbl__rows_fn rows)
{
    gate_job j = {a, backward, a->gate.shape[1] == 1, a->x.shape[1]};
    return nbl__rows_run(call->ctx, a->x.shape[0], nbl__rows_per_span(j.columns), rows, &j);
}

/* Defines a row of dispatch for one operator and instruction set. */
#define IMPL(op, level, LEVEL, backward)                                                                     \
    static nbl_status run_##op##_##level(const nbl__call *call, const void *arguments)                       \
    {                                                                                                        \
        return run(call, arguments, backward, gate_rows_##level);                                            \
    }                                                                                                        \
    const nbl__impl nbl__##op##_##level = {#op "_" #level, NBL_ISA_##LEVEL, NULL, NULL, run_##op##_##level};
IMPL(sigmoid_gate, avx2, AVX2, false)
IMPL(sigmoid_gate, avx512, AVX512, false)
IMPL(sigmoid_gate_backward, avx2, AVX2, true)
IMPL(sigmoid_gate_backward, avx512, AVX512, true)
#undef IMPL

#endif
