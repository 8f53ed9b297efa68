/* sigmoid_gate.h - y = x·σ(gate): an output that a gate scales between 0 and 1.
 *
 *   x, y     [tokens, columns]
 *   gate     [tokens, columns], or [tokens, 1]: one gate for a whole row
 *
 * Backward, with s = σ(gate):
 *
 *   dx       dy·s
 *   dgate    dy·x·s·(1 - s), summed over the row if gate is [tokens, 1]
 *
 * Arithmetic is f32, with one rounding of each result. */
#ifndef NBL_SIGMOID_GATE_H
#define NBL_SIGMOID_GATE_H

#include "ops/ops.h"

typedef struct nbl__sigmoid_gate {
    nbl_dtype dtype;
    nbl_tensor x, gate, y;
    nbl_tensor dy, dx, dgate;
} nbl__sigmoid_gate;

#endif
