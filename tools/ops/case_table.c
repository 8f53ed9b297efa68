/* case_table.c - the one table of operator cases; case.h explains its lines. A family that the library does
 * not have yet has lines all the same: they are text. */
#include "case.h"

const case_line case_table[] = {
#define CASE(family, text, note) {#family, text, note, CASE_PLAIN},
#define PERF(family, text, note) {#family, text, note, CASE_PERF},
#include "cases/linear.inc"
#include "cases/linear_group.inc"
#include "cases/mlp.inc"
#include "cases/dora_norm.inc"
#include "cases/rmsnorm.inc"
#include "cases/layernorm.inc"
#include "cases/rope.inc"
#include "cases/norm_rope.inc"
#include "cases/rope_table.inc"
#include "cases/embedding.inc"
#include "cases/add.inc"
#include "cases/cast.inc"
#include "cases/argmax.inc"
#include "cases/scale.inc"
#include "cases/gated.inc"
#include "cases/check_finite.inc"
#include "cases/attention.inc"
#include "cases/attention_decode.inc"
#include "cases/attention_step.inc"
#include "cases/cross_entropy.inc"
#include "cases/adamw.inc"
#include "cases/grad_norm.inc"
#undef CASE
#undef PERF
    {0},
};
