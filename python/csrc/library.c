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

static const char *const schemas[] = {
    "dequantize(" WEIGHT("") ", ScalarType dtype, bool transpose) -> Tensor",
    "quantize(Tensor values, int format, int block, int nested) -> (Tensor data, Tensor scales, Tensor "
    "codes, "
    "Tensor nested, Tensor table, Tensor offset)",
    "linear(Tensor x, " LAYER ") -> (Tensor y, Tensor saved)",
    "linear_backward(Tensor dy, Tensor x, Tensor saved, " LAYER ", int wanted) -> (Tensor dx, Tensor dbias, "
    "Tensor dlora_a, Tensor dlora_b, Tensor dmagnitude)",
};

static const struct {
    const char *name;
    torch_kernel kernel;
} kernels[] = {
#define KERNEL_ROW(name) {#name, op_##name},
    TORCH_OPERATORS(KERNEL_ROW)
#undef KERNEL_ROW
};

/* A second copy of this file in the process finds the namespace taken. It leaves everything to the first. */
__attribute__((constructor)) static void register_operators(void)
{
    static const char *const keys[] = {"CPU", "CUDA"};
    torch_library library;
    if (aoti_torch_library_init_def("nibble", __FILE__, __LINE__, &library)) return;
    for (size_t i = 0; i < sizeof schemas / sizeof schemas[0]; i++)
        if (aoti_torch_library_def(library, schemas[i])) return;
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        if (aoti_torch_library_init_impl("nibble", keys[k], __FILE__, __LINE__, &library)) return;
        for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
            if (aoti_torch_library_impl(library, kernels[i].name, kernels[i].kernel)) return;
    }
}
