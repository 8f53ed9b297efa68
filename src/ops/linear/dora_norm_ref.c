/* dora_norm_ref.c - dora_norm: the oracle. Each row of W + s·B·A is formed, value by value, in
 * f64. w_norm2 is not read. */
#include <math.h>

#include "ops/linear/dora_norm.h"
#include "ops/ref.h"

static nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__dora_norm *a = arguments;
    int64_t out = a->w.shape[0], in = a->w.shape[1], rank = a->lora_a.shape[0];
    (void)call;
    for (int64_t n = 0; n < out; n++) {
        double squares = 0, own = 0;
        for (int64_t k = 0; k < in; k++) {
            /* one element of W, rounded to the compute dtype */
            uint32_t word;
            float w;
            double delta = 0;
            nbl__dequantize(NBL_ISA_SCALAR, &a->w, n * in + k, n * in + k + 1, a->dtype, &word, false);
            nbl__to_f32(NBL_ISA_SCALAR, a->dtype, &word, &w, 1);
            for (int64_t r = 0; r < rank; r++)
                delta += nbl__ref_get(&a->lora_b, n * rank + r) * nbl__ref_get(&a->lora_a, r * in + k);
            double sum = (double)w + (double)a->scale * delta;
            squares += sum * sum;
            own += (double)w * (double)w;
        }
        nbl__ref_set(&a->norm, n, sqrt(squares));
        if (a->w_norm2_out.rank > 0 && nbl__has_data(&a->w_norm2_out)) nbl__ref_set(&a->w_norm2_out, n, own);
    }
    return NBL_OK;
}

const nbl__impl nbl__dora_norm_ref = {"dora_norm_ref", NBL_ISA_SCALAR, NULL, NULL, run};
