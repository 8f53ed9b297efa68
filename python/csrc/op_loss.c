/* op_loss.c - nibble::cross_entropy and its backward: the output head and the loss. */
#include "torch_call.h"

DEFINE_RUN(cross_entropy)

static nbl_reduction call_reduction(torch_call *c)
{
    int64_t reduction = call_int(c);
    if (reduction != NBL_REDUCTION_MEAN && reduction != NBL_REDUCTION_NONE)
        call_fail(c, "reduction is %d, allowed are 0 (mean) and 1 (none)", (int)reduction);
    return (nbl_reduction)reduction;
}

/* softcap, smoothing, reduction, grad_in_forward */
static void read_options(torch_call *c, nbl_cross_entropy *loss)
{
    loss->softcap = (float)call_float(c);
    loss->smoothing = (float)call_float(c);
    loss->reduction = call_reduction(c);
    loss->grad_in_forward = call_bool(c);
}

void op_cross_entropy(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    nbl_cross_entropy loss = {0};
    (void)inputs, (void)outputs;
    call_begin(&c, "cross_entropy", stack);
    loss.x = call_activation(&c, "x");
    loss.dtype = loss.x.dtype;
    loss.w = call_weight(&c, "");
    loss.labels = call_activation(&c, "labels");
    loss.denominator = call_tensor(&c, "denominator");
    read_options(&c, &loss);
    loss.loss = loss.logprobs = call_shape_of(&loss.labels, NBL_DTYPE_F32);
    if (loss.reduction == NBL_REDUCTION_MEAN) call_output_number(&c, &loss.loss);
    else call_output(&c, &loss.loss);
    call_output(&c, &loss.logprobs);
    loss.lse = nbl_matrix(NBL_DTYPE_F32, 2, call_elements(&loss.labels), NULL);
    call_output(&c, &loss.lse);
    loss.dx_in_forward = call_shape_of(&loss.x, NBL_DTYPE_F32);
    call_output_if(&c, &loss.dx_in_forward, loss.grad_in_forward);
    run_cross_entropy(&c, &loss, false);
    call_end(&c);
}

void op_cross_entropy_backward(torch_value *stack, uint64_t inputs, uint64_t outputs)
{
    torch_call c;
    nbl_cross_entropy loss = {0};
    (void)inputs, (void)outputs;
    call_begin(&c, "cross_entropy_backward", stack);
    loss.dloss = call_activation(&c, "dloss");
    loss.x = call_activation(&c, "x");
    loss.dtype = loss.x.dtype;
    loss.w = call_weight(&c, "");
    loss.labels = call_activation(&c, "labels");
    loss.denominator = call_tensor(&c, "denominator");
    loss.lse = call_activation(&c, "lse");
    loss.dx_in_forward = call_optional(&c, "dx_in_forward");
    read_options(&c, &loss);
    int64_t wanted = call_int(&c);
    loss.train_w = (wanted & 2) != 0;
    loss.dx = call_shape_of(&loss.x, loss.dtype);
    call_output_if(&c, &loss.dx, wanted & 1);
    loss.dw = nbl_matrix(NBL_DTYPE_F32, loss.w.shape[0], loss.w.shape[1], NULL);
    call_output_if(&c, &loss.dw, loss.train_w);
    run_cross_entropy(&c, &loss, true);
    call_end(&c);
}
