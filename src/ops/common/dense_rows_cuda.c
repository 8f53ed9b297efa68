/* dense_rows_cuda.c - rows of CUDA's dispatch for tensors with a row stride, of operators whose kernels
 * want dense tensors.
 *
 *   1. every strided input is copied into scratch       cudaMemcpy2DAsync, also part of captured graphs
 *   2. the operator's first row that takes the dense arguments runs
 *   3. every strided result is copied from scratch to its rows
 *
 * Cost: each strided tensor is read and written once more. Such a row declines dense arguments. The
 * other rows of its operator decline strided ones (nbl__dense_only), those of attention only row
 * strides that are not multiples of 16 bytes (nbl__wide_strides_only). */
#include "device/cuda/cuda.h"
#include "device/cuda/cuda_impls.h"

#include <cuda_runtime_api.h>

#include "ops/families.h"
#include "ops/attention/attention.h"
#include "ops/linear/linear_group.h"
#include "ops/norm/norm_rope.h"

/* What a row of this file runs. */
typedef struct task {
    const nbl__family *family;
    bool backward;
} task;

/* The operator: the family's forward or backward. */
static const nbl__op *op_of(const task *t)
{
    return t->backward ? &t->family->backward : &t->family->forward;
}

/* True if the operator writes the slot. All other tensors are inputs. */
static bool is_written(const task *t, const nbl__slot *slot)
{
    if (t->backward) return slot->role == NBL_ROLE_GRADIENT;
    return slot->role == NBL_ROLE_OUTPUT || slot->role == NBL_ROLE_SAVED;
}

/* Points every strided tensor that the operator uses to a dense copy in scratch, whose address is
 * unknown while it is measured (base NULL). Returns the bytes. */
static size_t cut_copies(const task *t, void *arguments, uint8_t *base)
{
    nbl__bump bump = {base, 0};
    for (const nbl__slot *slot = t->family->slots; slot->name; slot++) {
        if (!nbl__slot_is_strided(slot, t->backward, arguments)) continue;
        nbl_tensor *tensor = nbl__slot_tensor(slot, arguments);
        assert(nbl__row_stride(tensor) >= nbl__row_elements(tensor));
        size_t bytes = (size_t)nbl__tensor_elements(tensor) * nbl__size_of(tensor->dtype);
        void *copy = nbl__bump_alloc(&bump, bytes);
        tensor->row_stride = 0;
        if (base && nbl__has_data(tensor)) tensor->data = copy;
    }
    return bump.used;
}

/* The operator's first row that takes dense arguments; NULL: none. */
static const nbl__impl *inner_of(const nbl_context *ctx, const task *t, const void *dense)
{
    const nbl__impl *const *at = nbl__cuda_impls(op_of(t));
    for (; at && *at; at++)
        if ((*at)->can == NULL || (*at)->can(ctx, dense) == NULL) return *at;
    return NULL;
}

/* Copies rows between two strides, on the stream of the call. */
static nbl_status copy_rows(const nbl__call *call, const nbl_tensor *to, const nbl_tensor *from)
{
    size_t size = nbl__size_of(to->dtype), width = (size_t)nbl__row_elements(to) * size;
    cudaError_t error = cudaMemcpy2DAsync(to->data, (size_t)nbl__row_stride(to) * size, from->data,
                                          (size_t)nbl__row_stride(from) * size, width, (size_t)to->shape[0],
                                          cudaMemcpyDeviceToDevice, nbl__call_cuda(call)->stream);
    if (error == cudaSuccess) return NBL_OK;
    cudaGetLastError();
    return nbl__fail(call->ctx, NBL_ERROR_INTERNAL, "%s: copying rows: %s", call->op,
                     cudaGetErrorString(error));
}

/* Copies between the strided tensors and their dense copies: the inputs, or the results. */
static nbl_status copy_all(const nbl__call *call, const task *t, const void *strided, const void *dense,
                           bool results)
{
    for (const nbl__slot *slot = t->family->slots; slot->name; slot++) {
        if (!nbl__slot_is_strided(slot, t->backward, strided) || is_written(t, slot) != results) continue;
        const nbl_tensor *rows = (const void *)((const char *)strided + slot->offset);
        const nbl_tensor *copy = (const void *)((const char *)dense + slot->offset);
        if (!nbl__has_data(rows) || nbl__tensor_elements(rows) == 0) continue;
        NBL_TRY(results ? copy_rows(call, rows, copy) : copy_rows(call, copy, rows));
    }
    return NBL_OK;
}

/* Why the row declines; NULL: it takes the arguments. */
static const char *can_run(const task *t, const void *arguments)
{
    return nbl__dense_only(t->family, t->backward, arguments) ? NULL : "all tensors are dense";
}

/* `dense` is a copy of the arguments. */
static size_t scratch_of(const nbl_context *ctx, const task *t, void *dense)
{
    size_t copies = cut_copies(t, dense, NULL);
    const nbl__impl *inner = inner_of(ctx, t, dense);
    return copies + (inner && inner->scratch ? inner->scratch(ctx, dense) : 0);
}

/* copies: bytes of the dense copies; the inner row gets the scratch behind them. Its `kept` is
 * NULL: rows of this file leave nothing for backward. */
static nbl_status run(const nbl__call *call, const task *t, const void *arguments, void *dense)
{
    nbl__call rest = *call;
    size_t copies = cut_copies(t, dense, call->scratch);
    const nbl__impl *inner = inner_of(call->ctx, t, dense);
    NBL_CHECK(call->ctx, inner, NBL_ERROR_UNSUPPORTED, "%s: no implementation for CUDA takes these arguments",
              call->op);
    NBL_TRY(copy_all(call, t, arguments, dense, false));
    rest.scratch += copies;
    rest.scratch_bytes -= copies;
    rest.saved = NULL;
    NBL_TRY(inner->run(&rest, dense));
    return copy_all(call, t, arguments, dense, true);
}

/* Defines the row nbl__OP_rows of a family's forward or backward. */
#define ROWS(name, type, op, is_backward)                                                                    \
    static const task op##_task = {&nbl__##name##_family, is_backward};                                      \
    static const char *op##_can(const nbl_context *ctx, const void *arguments)                               \
    {                                                                                                        \
        (void)ctx;                                                                                           \
        return can_run(&op##_task, arguments);                                                               \
    }                                                                                                        \
    static size_t op##_scratch(const nbl_context *ctx, const void *arguments)                                \
    {                                                                                                        \
        type dense = *(const type *)arguments;                                                               \
        return scratch_of(ctx, &op##_task, &dense);                                                          \
    }                                                                                                        \
    static nbl_status op##_run(const nbl__call *call, const void *arguments)                                 \
    {                                                                                                        \
        type dense = *(const type *)arguments;                                                               \
        return run(call, &op##_task, arguments, &dense);                                                     \
    }                                                                                                        \
    const nbl__impl nbl__##op##_rows = {#op "_rows", NBL_ISA_SCALAR, op##_can, op##_scratch, op##_run};

ROWS(linear, nbl__linear, linear, false)
ROWS(linear, nbl__linear, linear_backward, true)
ROWS(linear_group, nbl__linear_group, linear_group, false)
ROWS(linear_group, nbl__linear_group, linear_group_backward, true)
ROWS(norm_rope, nbl__norm_rope, norm_rope, false)
ROWS(norm_rope, nbl__norm_rope, norm_rope_backward, true)
ROWS(attention, nbl__attention, attention, false)
ROWS(attention, nbl__attention, attention_backward, true)
