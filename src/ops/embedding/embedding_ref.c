/* embedding_ref.c - embedding and its backward by their definition: the oracle. Scalar, f64 sums. */
#include "ops/embedding/embedding.h"

#include "ops/ref.h"

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__embedding *a = arguments;
    const int32_t *ids = a->ids.data;
    int64_t columns = a->w.shape[1];
    double scale = nbl__ref_round(a->dtype, (double)a->scale);
    NBL_TRY(nbl__embedding_check_ids(call->ctx, call->op, &a->ids, a->w.shape[0]));
    for (int64_t t = 0; t < nbl__tensor_elements(&a->ids); t++)
        for (int64_t k = 0; k < columns; k++) {
            int64_t i = ids[t] * columns + k;
            uint32_t word;
            float value;
            nbl__dequantize(NBL_ISA_SCALAR, &a->w, i, i + 1, a->dtype, &word, false);
            nbl__to_f32(NBL_ISA_SCALAR, a->dtype, &word, &value, 1);
            nbl__ref_set(&a->y, t * columns + k, (double)value * scale);
        }
    return NBL_OK;
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__embedding *a = arguments;
    const int32_t *ids = a->ids.data;
    int64_t columns = a->w.shape[1];
    double scale = nbl__ref_round(a->dtype, (double)a->scale), *row = (double *)(void *)call->scratch;
    NBL_TRY(nbl__embedding_check_ids(call->ctx, call->op, &a->ids, a->w.shape[0]));
    for (int64_t v = 0; v < a->w.shape[0] && nbl__has_data(&a->dw); v++) {
        for (int64_t k = 0; k < columns; k++) row[k] = 0;
        for (int64_t t = 0; t < nbl__tensor_elements(&a->ids); t++)
            for (int64_t k = 0; ids[t] == v && v != a->padding && k < columns; k++)
                row[k] += nbl__ref_get(&a->dy, t * columns + k) * scale;
        for (int64_t k = 0; k < columns; k++) nbl__ref_put(&a->dw, v * columns + k, row[k], a->accumulate);
    }
    return NBL_OK;
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return (size_t)((const nbl__embedding *)arguments)->w.shape[1] * sizeof(double);
}

const nbl__impl nbl__embedding_ref = {"embedding_ref", NBL_ISA_SCALAR, NULL, NULL, run_forward};
const nbl__impl nbl__embedding_backward_ref = {"embedding_backward_ref", NBL_ISA_SCALAR, NULL,
                                               backward_scratch, run_backward};
