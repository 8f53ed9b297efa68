/* families.h - the list of operator families.
 *
 * The table in ops.c, the tests and the tools expand from this one list. A new
 * family needs one line here and one definition of nbl__NAME_family (ops.h). The
 * order is the order of nbl__family_at(). */
#ifndef NBL_FAMILIES_H
#define NBL_FAMILIES_H

#include "ops/ops.h"

#define NBL_FAMILIES(X)                                                                                      \
    X(linear)                                                                                                \
    X(rmsnorm)                                                                                               \
    X(layernorm)                                                                                             \
    X(rope_table)                                                                                            \
    X(rope)                                                                                                  \
    X(norm_rope)                                                                                             \
    X(embedding)                                                                                             \
    X(add)                                                                                                   \
    X(cast)                                                                                                  \
    X(scale)                                                                                                 \
    X(gated)                                                                                                 \
    X(check_finite)                                                                                          \
    X(cross_entropy)                                                                                         \
    X(adamw)                                                                                                 \
    X(grad_norm)                                                                                             \
    X(linear_group)                                                                                          \
    X(mlp)                                                                                                   \
    X(norm_linear_group)                                                                                     \
    X(norm_mlp)                                                                                              \
    X(dora_norm)                                                                                             \
    X(attention)                                                                                             \
    X(attention_decode)                                                                                      \
    X(attention_step)                                                                                        \
    X(argmax)                                                                                                \
    X(kv_write)                                                                                              \
    X(take_rows)                                                                                             \
    X(router)                                                                                                \
    X(router_load)                                                                                           \
    X(router_loss)                                                                                           \
    X(expert_order)                                                                                          \
    X(expert_mlp)                                                                                            \
    X(sigmoid_gate)                                                                                          \
    X(gated_norm)                                                                                            \
    X(split_heads)                                                                                           \
    X(short_conv)                                                                                            \
    X(short_conv_step)                                                                                       \
    X(gated_delta)                                                                                           \
    X(gated_delta_step)

#define FAMILY_DECLARATION(name) extern const nbl__family nbl__##name##_family;
NBL_FAMILIES(FAMILY_DECLARATION)
#undef FAMILY_DECLARATION

#endif
