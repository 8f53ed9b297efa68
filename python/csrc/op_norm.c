/* op_norm.c - nibble::rmsnorm, nibble::norm_rope, their backward, and nibble::dora_norm. */
#include "torch_call.h"

DEFINE_RUN(rmsnorm)
DEFINE_RUN(norm_rope)

static nbl_norm_round call_round(torch_call *c)
{
    int64_t round = call_int(c);
    if (round != NBL_ROUND_BEFORE_WEIGHT && round != NBL_ROUND_AFTER_WEIGHT)
        call_fail(c, "round is %d, allowed are 0 and 1", (int)round);
    return (nbl_norm_round)round;
}

/* ---- rmsnorm ---- */

void op_rmsnorm(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    nbl_rmsnorm norm = {0};
    (void)inputs, (void)outputs;
    call_begin(&c, "rmsnorm", stack);
    norm.x = call_activation(&c, "x");
    norm.dtype = norm.x.dtype;
    norm.w = call_tensor(&c, "weight");
    norm.residual = call_optional(&c, "residual");
    norm.eps = (float)call_float(&c);
    norm.offset = (float)call_float(&c);
    norm.round = call_round(&c);
    norm.y = call_shape_of(&norm.x, norm.dtype);
    call_output(&c, &norm.y);
    norm.residual_out = call_shape_of(&norm.residual, norm.dtype);
    call_output_if(&c, &norm.residual_out, norm.residual.data != NULL);
    run_rmsnorm(&c, &norm, false);
    call_end(&c);
}

void op_rmsnorm_backward(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    nbl_rmsnorm norm = {0};
    (void)inputs, (void)outputs;
    call_begin(&c, "rmsnorm_backward", stack);
    norm.dy = call_activation(&c, "dy");
    norm.dresidual = call_optional(&c, "dresidual");
    norm.x = call_activation(&c, "x");
    norm.dtype = norm.x.dtype;
    norm.w = call_tensor(&c, "weight");
    norm.eps = (float)call_float(&c);
    norm.offset = (float)call_float(&c);
    norm.round = call_round(&c);
    int64_t wanted = call_int(&c);
    norm.dx = call_shape_of(&norm.x, norm.dtype);
    norm.dw = call_shape_of(&norm.w, NBL_DTYPE_F32);
    call_output_if(&c, &norm.dx, wanted & 1);
    call_output_if(&c, &norm.dw, wanted >> 1 & 1);
    run_rmsnorm(&c, &norm, true);
    call_end(&c);
}

/* ---- norm_rope ---- */

/* The arguments that forward and backward share. */
static void read_norm_rope(torch_call *c, nbl_norm_rope *rope)
{
    rope->x = call_rows(c, "x", 2);
    rope->dtype = rope->x.dtype;
    rope->w = call_tensor(c, "weight");
    rope->cos = call_activation(c, "cos");
    rope->sin = call_activation(c, "sin");
    rope->eps = (float)call_float(c);
    rope->offset = (float)call_float(c);
    rope->round = call_round(c);
}

void op_norm_rope(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    nbl_norm_rope rope = {0};
    (void)inputs, (void)outputs;
    call_begin(&c, "norm_rope", stack);
    read_norm_rope(&c, &rope);
    rope.y = call_shape_of(&rope.x, rope.dtype);
    call_output(&c, &rope.y);
    call_flatten(2, (nbl_tensor *[]){&rope.x, &rope.y, NULL});
    run_norm_rope(&c, &rope, false);
    call_end(&c);
}

void op_norm_rope_backward(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    nbl_norm_rope rope = {0};
    (void)inputs, (void)outputs;
    call_begin(&c, "norm_rope_backward", stack);
    rope.dy = call_rows(&c, "dy", 2);
    read_norm_rope(&c, &rope);
    rope.dx = call_shape_of(&rope.x, rope.dtype);
    call_output(&c, &rope.dx);
    call_flatten(2, (nbl_tensor *[]){&rope.x, &rope.dy, &rope.dx, NULL});
    run_norm_rope(&c, &rope, true);
    call_end(&c);
}

/* ---- dora_norm ---- */

void op_dora_norm(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    nbl_dora_norm norm = {0};
    size_t bytes = 0;
    (void)inputs, (void)outputs;
    call_begin(&c, "dora_norm", stack);
    norm.w = call_weight(&c, "");
    norm.lora_a = call_tensor(&c, "lora_a");
    norm.lora_b = call_tensor(&c, "lora_b");
    norm.scale = (float)call_float(&c);
    norm.dtype = call_dtype(&c);
    norm.norm = nbl_vector(NBL_DTYPE_F32, norm.w.shape[0], NULL);
    call_output(&c, &norm.norm);
    norm.w_norm2_out = nbl_vector(NBL_DTYPE_F32, norm.w.shape[0], NULL); /* its memory is optional */
    nbl_context *ctx = call_context(&c);
    if (ctx) call_status(&c, nbl_dora_norm_scratch(ctx, &norm, false, &bytes));
    void *scratch = call_scratch(&c, bytes);
    if (!c.failed) call_status(&c, nbl_dora_norm_forward(ctx, &norm, scratch, bytes));
    call_end(&c);
}
