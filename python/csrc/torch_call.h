/* torch_call.h - one call of an operator: its arguments as nibble's structs, its outputs, its errors.
 *
 *     torch_call c;
 *     call_begin(&c, "dequantize", stack);
 *     nbl_weight w = call_weight(&c, "");        arguments, in the order of the schema
 *     nbl_tensor y = {...};
 *     call_output(&c, &y);
 *     call_status(&c, nbl_dequantize(call_context(&c), ...));
 *     call_end(&c);
 *
 * A failure is noted, and the first one stays. Later functions do nothing then, except that arguments are
 * still read, because the call owns their handles. call_end frees everything. Then it throws, or it hands
 * over the outputs.
 *
 * The first tensor that is read fixes the device. All others with elements must be there. */
#ifndef NIBBLE_TORCH_CALL_H
#define NIBBLE_TORCH_CALL_H

#include <nibble.h>

#include "shim.h"

enum {
    CALL_MAX_OUTPUTS = 16,
    /* Handles of a call: a tensor may need a contiguous copy beside itself; scratch. */
    CALL_MAX_HANDLES = 112,
    CALL_TEXT = 5120 /* nibble's message and hint fit */
};

typedef struct torch_call {
    const char *op;
    torch_value *stack;
    int next; /* the argument that is read next */
    torch_tensor handles[CALL_MAX_HANDLES];
    int handle_count;
    torch_tensor outputs[CALL_MAX_OUTPUTS];
    int output_count;
    bool has_device;
    int32_t device_type, device_index;
    nbl_context *ctx;
    bool failed;
    char text[CALL_TEXT]; /* of the failure */
} torch_call;

/* ---- torch_call.c ---- */
void call_begin(torch_call *c, const char *op, torch_value *stack);
/* Frees the handles, then throws or hands over the outputs. */
void call_end(torch_call *c);
/* Notes a failure. */
__attribute__((format(printf, 2, 3))) void call_fail(torch_call *c, const char *format, ...);
/* Notes a failure of the context's last call. */
void call_status(torch_call *c, nbl_status status);
/* True on a CUDA device. */
bool call_on_cuda(const torch_call *c);

int64_t call_int(torch_call *c);
double call_float(torch_call *c);
bool call_bool(torch_call *c);
nbl_dtype call_dtype(torch_call *c);

/* A tensor argument, contiguous: a tensor with other strides is copied. Without elements it is absent. */
nbl_tensor call_tensor(torch_call *c, const char *name);
/* The same for activations: it is there even without elements, and rows may be apart. */
nbl_tensor call_activation(torch_call *c, const char *name);

/* Adds an output of the dtype and shape of *tensor, and sets its data. */
void call_output(torch_call *c, nbl_tensor *tensor);
/* Adds an output without elements. */
void call_no_output(torch_call *c, nbl_dtype dtype);
/* A tensor of the shape of `like`, except that the last dimension is n. */
nbl_tensor call_like(const nbl_tensor *like, int64_t n, nbl_dtype dtype);
/* Adds the gradient that *gradient describes if it is wanted and its tensor exists, else one without elements. */
void call_gradient(torch_call *c, nbl_tensor *gradient, bool wanted, nbl_dtype dtype);
/* Memory for the call, aligned to 64 bytes. NULL if there is none: the failure is noted. */
void *call_scratch(torch_call *c, size_t bytes);

/* ---- torch_context.c ---- */
/* The context of this thread and of the call's device. NULL after a failure. */
nbl_context *call_context(torch_call *c);

/* ---- torch_weight.c: groups of arguments ---- */
/* data, scales, codes, nested, table, offset, format, block, nested_block, rows, columns. `part` follows the
 * names in messages. */
nbl_weight call_weight(torch_call *c, const char *part);
/* bias, lora_a, lora_b, magnitude, norm, scale */
void call_adapter(torch_call *c, const char *part, nbl_linear *layer);
/* dropout, seed, threshold. A negative threshold: int8 is dequantized. */
void call_options(torch_call *c, nbl_linear *layer);
/* The gradients of bias, lora_a, lora_b and magnitude: bits 0 to 3 of `wanted`. */
void call_adapter_gradients(torch_call *c, nbl_linear *layer, int64_t wanted);

/* Defines run_NAME: asks for the scratch of a call, and runs it. */
#define DEFINE_RUN(NAME)                                                                                     \
    static void run_##NAME(torch_call *c, const nbl_##NAME *call, bool backward)                             \
    {                                                                                                        \
        size_t bytes = 0;                                                                                    \
        nbl_context *ctx = call_context(c);                                                                  \
        if (ctx == NULL) return;                                                                             \
        call_status(c, nbl_##NAME##_scratch(ctx, call, backward, &bytes));                                   \
        void *scratch = call_scratch(c, bytes);                                                              \
        if (c->failed) return;                                                                               \
        call_status(c, backward ? nbl_##NAME##_backward(ctx, call, scratch, bytes)                           \
                                : nbl_##NAME##_forward(ctx, call, scratch, bytes));                          \
    }

/* ---- the operators: op_*.c ---- */
#define TORCH_OPERATORS(X)                                                                                   \
    X(dequantize)                                                                                            \
    X(quantize)                                                                                              \
    X(linear)                                                                                                \
    X(linear_backward)

#define TORCH_KERNEL(name) void op_##name(torch_value *stack, uint64_t inputs, uint64_t outputs);
TORCH_OPERATORS(TORCH_KERNEL)
#undef TORCH_KERNEL

#endif
