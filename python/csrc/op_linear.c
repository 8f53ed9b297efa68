/* op_linear.c - nibble::linear and its backward. */
#include "torch_call.h"

DEFINE_RUN(linear)

/* The layer's arguments that forward and backward share, from x on, without `saved`. */
static void read_layer(torch_call *c, nbl_linear *layer)
{
    layer->dtype = layer->x.dtype;
    layer->w = call_weight(c, "");
    call_adapter(c, "", layer);
    call_options(c, layer);
}

void op_linear(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    nbl_linear layer = {0};
    (void)inputs, (void)outputs;
    call_begin(&c, "linear", stack);
    layer.x = call_activation(&c, "x");
    read_layer(&c, &layer);
    layer.y = call_like(&layer.x, layer.w.shape[0], layer.dtype);
    call_output(&c, &layer.y);
    call_no_output(&c, NBL_DTYPE_U8);
    run_linear(&c, &layer, false);
    call_end(&c);
}

void op_linear_backward(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    nbl_linear layer = {0};
    (void)inputs, (void)outputs;
    call_begin(&c, "linear_backward", stack);
    layer.dy = call_activation(&c, "dy");
    layer.x = call_activation(&c, "x");
    call_tensor(&c, "saved");
    read_layer(&c, &layer);
    int64_t wanted = call_int(&c);
    layer.dx = call_like(&layer.x, layer.w.shape[1], layer.dtype);
    call_gradient(&c, &layer.dx, wanted & 1, layer.dtype);
    call_adapter_gradients(&c, &layer, wanted >> 1);
    run_linear(&c, &layer, true);
    call_end(&c);
}
