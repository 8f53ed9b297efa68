/* sigmoid_gate_ref.c - sigmoid_gate and its backward by their definition: the oracle. Scalar, f64
 * sums, one rounding per result. */
#include "ops/gate/sigmoid_gate.h"

#include <math.h>

#include "ops/ref.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__sigmoid_gate *a = arguments;
    int64_t columns = a->x.shape[1], gates = a->gate.shape[1];
    (void)call;
    for (int64_t t = 0; t < a->x.shape[0]; t++)
        for (int64_t i = 0; i < columns; i++) {
            double s = sigmoid(nbl__ref_get(&a->gate, t * gates + (gates == 1 ? 0 : i)));
            nbl__ref_set(&a->y, t * columns + i, nbl__ref_get(&a->x, t * columns + i) * s);
        }
    return NBL_OK;
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__sigmoid_gate *a = arguments;
    int64_t columns = a->x.shape[1], gates = a->gate.shape[1];
    (void)call;
    for (int64_t t = 0; t < a->x.shape[0]; t++) {
        double sum = 0;
        for (int64_t i = 0; i < columns; i++) {
            int64_t at = t * columns + i, gate = t * gates + (gates == 1 ? 0 : i);
            double g = nbl__ref_get(&a->gate, gate), s = sigmoid(g), dy = nbl__ref_get(&a->dy, at);
            double dgate = dy * nbl__ref_get(&a->x, at) * s * sigmoid(-g);
            sum += dgate;
            nbl__ref_set(&a->dx, at, dy * s);
            if (gates != 1) nbl__ref_set(&a->dgate, gate, dgate);
        }
        if (gates == 1) nbl__ref_set(&a->dgate, t, sum);
    }
    return NBL_OK;
}

const nbl__impl nbl__sigmoid_gate_ref = {"sigmoid_gate_ref", NBL_ISA_SCALAR, NULL, NULL, run_forward};
const nbl__impl nbl__sigmoid_gate_backward_ref = {"sigmoid_gate_backward_ref", NBL_ISA_SCALAR, NULL, NULL,
                                                  run_backward};
