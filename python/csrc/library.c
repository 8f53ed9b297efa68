/* library.c - registers the operators with torch when the library is loaded.
 *
 * Only tensors, numbers and booleans are arguments. Optional arguments, lists and strings differ between
 * versions of the shim. An absent tensor is one without elements. */
#include "torch_call.h"

#define WEIGHT(p)                                                                                            \
    "Tensor data" p ", Tensor scales" p ", Tensor codes" p ", Tensor nested" p ", Tensor table" p            \
    ", Tensor offset" p ", int format" p ", int block" p ", int nested_block" p ", int rows" p               \
    ", int columns" p
#define ADAPTER(p)                                                                                           \
    "Tensor bias" p ", Tensor lora_a" p ", Tensor lora_b" p ", Tensor magnitude" p ", Tensor norm" p         \
    ", float scale" p
#define OPTIONS "float dropout, Tensor seed, float threshold"
#define LAYER WEIGHT("") ", " ADAPTER("") ", " OPTIONS
#define THREE                                                                                                \
    WEIGHT("0") ", " ADAPTER("0") ", " WEIGHT("1") ", " ADAPTER("1") ", " WEIGHT("2") ", " ADAPTER("2")
#define MLP THREE ", int act, " OPTIONS ", bool keep"
#define NORM "float eps, float offset, int round"
#define LOSS "float softcap, float smoothing, int reduction, bool grad_in_forward"
#define ADAPTER_GRADIENTS(p)                                                                                 \
    "Tensor dbias" p ", Tensor dlora_a" p ", Tensor dlora_b" p ", Tensor dmagnitude" p
#define GRADIENTS_OF_THREE                                                                                   \
    "(Tensor dx, " ADAPTER_GRADIENTS("0") ", " ADAPTER_GRADIENTS("1") ", " ADAPTER_GRADIENTS("2") ")"

static const char *const schemas[] = {
    "dequantize(" WEIGHT("") ", ScalarType dtype, bool transpose) -> Tensor",
    "quantize(Tensor values, int format, int block, int nested) -> (Tensor data, Tensor scales, Tensor "
    "codes, "
    "Tensor nested, Tensor table, Tensor offset)",
    "linear(Tensor x, " LAYER ") -> (Tensor y, Tensor saved)",
    "linear_backward(Tensor dy, Tensor x, Tensor saved, " LAYER
    ", int wanted) -> (Tensor dx, " ADAPTER_GRADIENTS("") ")",
    "linear_group(Tensor x, " THREE ", " OPTIONS ") -> (Tensor y0, Tensor y1, Tensor y2, Tensor saved)",
    "linear_group_backward(Tensor dy0, Tensor dy1, Tensor dy2, Tensor x, Tensor saved, " THREE ", " OPTIONS
    ", int wanted) -> " GRADIENTS_OF_THREE,
    "mlp(Tensor x, " MLP ") -> (Tensor y, Tensor gate_out, Tensor up_out)",
    "mlp_backward(Tensor dy, Tensor x, Tensor gate_out, Tensor up_out, " MLP
    ", int wanted) -> " GRADIENTS_OF_THREE,
    "dora_norm(" WEIGHT("") ", Tensor lora_a, Tensor lora_b, float scale, ScalarType dtype) -> Tensor",
    "rmsnorm(Tensor x, Tensor weight, Tensor residual, " NORM ") -> (Tensor y, Tensor h)",
    "rmsnorm_backward(Tensor dy, Tensor dresidual, Tensor x, Tensor weight, " NORM
    ", int wanted) -> (Tensor dx, Tensor dweight)",
    "norm_rope(Tensor x, Tensor weight, Tensor cos, Tensor sin, " NORM ") -> Tensor",
    "norm_rope_backward(Tensor dy, Tensor x, Tensor weight, Tensor cos, Tensor sin, " NORM ") -> Tensor",
    "cross_entropy(Tensor x, " WEIGHT(
        "") ", Tensor labels, Tensor denominator, " LOSS
            ") -> (Tensor loss, Tensor logprobs, Tensor lse, Tensor dx_in_forward)",
    "cross_entropy_backward(Tensor dloss, Tensor x, " WEIGHT(
        "") ", Tensor labels, Tensor denominator, Tensor lse, "
            "Tensor dx_in_forward, " LOSS ", int wanted) -> (Tensor dx, Tensor dweight)",
};

typedef struct kernel_row {
    const char *name;
    torch_kernel kernel;
} kernel_row;
#define KERNEL_ROW(name) {#name, op_##name},
static const kernel_row kernels[] = {TORCH_OPERATORS(KERNEL_ROW)};
static const kernel_row host_kernels[] = {TORCH_HOST_OPERATORS(KERNEL_ROW)};
#undef KERNEL_ROW

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static bool implement(torch_library library, const kernel_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (aoti_torch_library_impl(library, rows[i].name, rows[i].kernel)) return false;
    return true;
}

/* A second copy of this file in the process finds the namespace taken. It leaves everything to the first.
 * The libraries live as long as the process. */
__attribute__((constructor)) static void register_operators(void)
{
    torch_library def, cpu, cuda;
    if (aoti_torch_library_init_def("nibble", __FILE__, __LINE__, &def)) return;
    for (size_t i = 0; i < COUNT(schemas); i++)
        if (aoti_torch_library_def(def, schemas[i])) return;
    if (aoti_torch_library_init_impl("nibble", "CPU", __FILE__, __LINE__, &cpu) ||
        !implement(cpu, kernels, COUNT(kernels)) || !implement(cpu, host_kernels, COUNT(host_kernels)))
        return;
    if (aoti_torch_library_init_impl("nibble", "CUDA", __FILE__, __LINE__, &cuda)) return;
    implement(cuda, kernels, COUNT(kernels));
}
