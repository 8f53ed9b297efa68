/* case_table.c - the one table of operator cases; case.h explains its lines. A family that the library does
 * not have yet has lines all the same: they are text. */
#include "case.h"

const case_line case_table[] = {
#define CASE(family, text, remark) {#family, text, remark, CASE_PLAIN},
#define PERF(family, text, remark) {#family, text, remark, CASE_PERF},
#include "ops/linear/linear.cases"
#include "ops/linear/linear_group.cases"
#include "ops/linear/mlp.cases"
#include "ops/linear/norm_linear_group.cases"
#include "ops/linear/norm_mlp.cases"
#include "ops/linear/dora_norm.cases"
#include "ops/norm/rmsnorm.cases"
#include "ops/norm/layernorm.cases"
#include "ops/rope/rope.cases"
#include "ops/norm/norm_rope.cases"
#include "ops/rope/rope_table.cases"
#include "ops/embedding/embedding.cases"
#include "ops/elementwise/add.cases"
#include "ops/elementwise/cast.cases"
#include "ops/loss/argmax.cases"
#include "ops/elementwise/scale.cases"
#include "ops/elementwise/gated.cases"
#include "ops/elementwise/check_finite.cases"
#include "ops/gate/sigmoid_gate.cases"
#include "ops/gate/gated_norm.cases"
#include "ops/gate/split_heads.cases"
#include "ops/recurrent/short_conv.cases"
#include "ops/recurrent/short_conv_step.cases"
#include "ops/recurrent/gated_delta.cases"
#include "ops/recurrent/gated_delta_step.cases"
#include "ops/attention/attention.cases"
#include "ops/attention/attention_decode.cases"
#include "ops/attention/attention_step.cases"
#include "ops/loss/cross_entropy.cases"
#include "ops/moe/router.cases"
#include "ops/moe/router_load.cases"
#include "ops/moe/router_loss.cases"
#include "ops/moe/expert_order.cases"
#include "ops/moe/expert_mlp.cases"
#include "ops/optimizer/adamw.cases"
#include "ops/optimizer/grad_norm.cases"
#undef CASE
#undef PERF
    {0},
};
