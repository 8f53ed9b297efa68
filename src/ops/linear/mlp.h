/* mlp.h - the gated feed-forward block, y = down(act(gate(x)) · up(x)), forward
 * and backward.
 *
 * gate and up are [inner, in], down is [out, inner]. Each is a linear layer
 * (linear.h) with its own bias, adapter and DoRA.
 *
 * Memory: tokens are processed in chunks of NBL_MLP_CHUNK, so that at most
 * [NBL_MLP_CHUNK, inner] values exist between the layers. These are f32 for every
 * compute dtype (f64 in the reference). In f16, act(gate)·up may therefore exceed
 * 65504 without overflow. Gradients of parameters add up over the chunks.
 *
 * `keep`: backward needs the outputs of gate and up. Without keep it recomputes
 * them. With keep forward saves them in gate_out and up_out: 8·inner bytes per
 * token, for two of backward's five large products. The saved values are the same f32, so
 * that the results are the same bits.
 *
 * gate holds the shared arguments: x, dx, dtype, dropout, seed, seeds, seed_index, first_row,
 * threshold, train_w, accumulate. Its scale applies to parts whose own is 0. y and
 * dy are down's. Part p (gate 0, up 1, down 2) has the dropout mask of the seed
 * nbl__dropout_seed(seed, p), counted over all tokens as in linear. int8 finds its
 * outlier columns chunk by chunk. */
#ifndef NBL_MLP_H
#define NBL_MLP_H

#include "ops/elementwise/act.h"
#include "ops/linear/linear.h"

enum { NBL_MLP_CHUNK = 512, NBL_MLP_GATE = 0, NBL_MLP_UP, NBL_MLP_DOWN, NBL_MLP_PARTS };

/* The struct of arguments is public: nibble.h documents its fields. */
typedef nbl_mlp nbl__mlp;
_Static_assert((int)NBL_ACTIVATION_SILU == NBL_ACT_SILU && (int)NBL_ACTIVATION_GELU == NBL_ACT_GELU &&
                   (int)NBL_ACTIVATION_GELU_TANH == NBL_ACT_GELU_TANH,
               "act.h and nibble.h number the activations alike");

extern const nbl__impl nbl__mlp_ref, nbl__mlp_backward_ref;

/* The number of chunks, at least 1: without tokens backward still writes the
 * gradients of parameters. */
int64_t nbl__mlp_chunks(const nbl__mlp *a);
/* The three layers over one chunk, with the shared arguments filled in. Chunks
 * after the first accumulate. The caller supplies the tensors between the layers:
 * y and dy of gate and up, x and dx of down. */
void nbl__mlp_chunk(const nbl__mlp *a, int64_t chunk, nbl__linear parts[NBL_MLP_PARTS]);

#endif
