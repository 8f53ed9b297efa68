/* mlp.h - the gated feed-forward block, y = down(act(gate(x)) · up(x)), forward and backward.
 *
 * gate and up are [inner, in], down is [out, inner]; each is a linear with its own bias, adapter and DoRA.
 * Tokens go through in chunks of NBL_MLP_CHUNK: between the layers there are never more than
 * [NBL_MLP_CHUNK, inner] values, and they are f32 (f64 in the reference) whatever the compute dtype, so that
 * act(gate)·up above 65504 does no harm in f16. Backward computes gate and up again, unless `keep` has forward
 * save them, as the same f32: a fifth of the products for 8·inner bytes per token, and not a bit of difference.
 * Gradients of parameters add up over the chunks.
 *
 * The shared arguments are those of gate: x, dx, dtype, dropout, seed, first_row, threshold, train_w, accumulate, and scale
 * for parts whose own is 0; y and dy are down's. The mask of part p (gate 0, up 1, down 2) is that of the seed
 * nbl__dropout_seed(seed, p), as it is of linear_group and linear over all tokens; int8 finds its outlier columns chunk by
 * chunk. */
#ifndef NBL_MLP_H
#define NBL_MLP_H

#include "ops/elementwise/act.h"
#include "ops/linear/linear.h"

enum { NBL_MLP_CHUNK = 512, NBL_MLP_GATE = 0, NBL_MLP_UP, NBL_MLP_DOWN, NBL_MLP_PARTS };

typedef struct nbl__mlp {
    int act; /* nbl__act; gelu is the one with erf */
    nbl__linear gate, up, down;
    bool keep;                   /* forward saves, and backward reads, */
    nbl_tensor gate_out, up_out; /* f32, like x with inner columns */
} nbl__mlp;

extern const nbl__impl nbl__mlp_cpu, nbl__mlp_backward_cpu;
extern const nbl__impl nbl__mlp_ref, nbl__mlp_backward_ref;

/* At least 1: without tokens the gradients of parameters are still written. */
int64_t nbl__mlp_chunks(const nbl__mlp *a);
/* The parts as layers over one chunk, without what lies between them: y and dy of gate and up, x and dx of
 * down. Chunks after the first accumulate. */
void nbl__mlp_chunk(const nbl__mlp *a, int64_t chunk, nbl__linear parts[NBL_MLP_PARTS]);

#endif
