/* op_mlp.c - nibble::mlp and its backward. Gate is part 0, up part 1, down part 2. */
#include "torch_call.h"

DEFINE_RUN(mlp)

/* The arguments that forward and backward share, behind x. */
static void read_mlp(torch_call *c, nbl_mlp *block)
{
    nbl_linear *parts[] = {&block->gate, &block->up, &block->down};
    static const char *const names[] = {"0", "1", "2"};
    bool adapted = false;
    block->gate.dtype = block->gate.x.dtype;
    for (int i = 0; i < 3; i++) {
        parts[i]->w = call_weight(c, names[i]);
        call_adapter(c, names[i], parts[i]);
        if (i > 0) call_own_scale(parts[i]);
        adapted |= parts[i]->lora_a.data != NULL;
    }
    int64_t act = call_int(c);
    if (act < 0 || act > NBL_ACTIVATION_GELU_TANH)
        call_fail(c, "act is %d, allowed are 0 to %d", (int)act, (int)NBL_ACTIVATION_GELU_TANH);
    block->act = (nbl_activation)act;
    call_options(c, &block->gate, adapted);
    block->keep = call_bool(c);
}

void op_mlp(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    nbl_mlp block = {0};
    (void)inputs, (void)outputs;
    call_begin(&c, "mlp", stack);
    block.gate.x = call_activation(&c, "x");
    read_mlp(&c, &block);
    block.down.y = call_like(&block.gate.x, block.down.w.shape[0], block.gate.dtype);
    call_output(&c, &block.down.y);
    nbl_tensor *kept[] = {&block.gate_out, &block.up_out};
    for (int i = 0; i < 2; i++) {
        *kept[i] = call_like(&block.gate.x, block.gate.w.shape[0], NBL_DTYPE_F32);
        call_output_if(&c, kept[i], block.keep);
    }
    run_mlp(&c, &block, false);
    call_end(&c);
}

void op_mlp_backward(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    nbl_mlp block = {0};
    (void)inputs, (void)outputs;
    call_begin(&c, "mlp_backward", stack);
    block.down.dy = call_activation(&c, "dy");
    block.gate.x = call_activation(&c, "x");
    nbl_tensor gate_out = call_activation(&c, "gate_out"), up_out = call_activation(&c, "up_out");
    read_mlp(&c, &block);
    int64_t wanted = call_int(&c);
    if (block.keep) {
        block.gate_out = gate_out;
        block.up_out = up_out;
    }
    block.gate.dx = call_like(&block.gate.x, block.gate.w.shape[1], block.gate.dtype);
    call_output_if(&c, &block.gate.dx, wanted & 1);
    nbl_linear *parts[] = {&block.gate, &block.up, &block.down};
    for (int i = 0; i < 3; i++) call_adapter_gradients(&c, parts[i], wanted >> (1 + 4 * i));
    run_mlp(&c, &block, true);
    call_end(&c);
}
