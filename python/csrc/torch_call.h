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
/* The same. Messages call it `name` with `part` behind it. */
nbl_tensor call_part(torch_call *c, const char *name, const char *part);
/* The same for activations: a batch without tokens has no elements, and is there. */
nbl_tensor call_activation(torch_call *c, const char *name);
/* An activation that is absent if its shape is [0]. */
nbl_tensor call_optional(torch_call *c, const char *name);
/* An activation whose rows may be apart: row_stride is set for any rank. The last `inner` dimensions are dense. */
nbl_tensor call_rows(torch_call *c, const char *name, int inner);
/* If one of the tensors has a row stride, gives all of them the rank inner + 1, for which operators take one.
 * `tensors` ends with NULL. */
void call_flatten(int inner, nbl_tensor *const *tensors);

/* A tensor without data of the shape of `like`, and one whose last dimension is n. */
nbl_tensor call_shape_of(const nbl_tensor *like, nbl_dtype dtype);
nbl_tensor call_like(const nbl_tensor *like, int64_t n, nbl_dtype dtype);
/* Elements of a shape. */
int64_t call_elements(const nbl_tensor *tensor);

/* Adds an output of the dtype and shape of *tensor, and sets its data. */
void call_output(torch_call *c, nbl_tensor *tensor);
/* The same if it is wanted, else an output of the shape [0], and *tensor is absent. */
void call_output_if(torch_call *c, nbl_tensor *tensor, bool wanted);
/* An output of one element, which has rank 0 in torch and rank 1 in nibble. */
void call_output_number(torch_call *c, nbl_tensor *tensor);
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
/* dropout, seed, threshold. A negative threshold: int8 is dequantized. `adapted`: there is an adapter, and so
 * dropout needs a seed. */
void call_options(torch_call *c, nbl_linear *layer, bool adapted);
/* For members of a group but the first: a scale of 0 is 0, and not that of the first. */
void call_own_scale(nbl_linear *member);
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
    X(linear)                                                                                                \
    X(linear_backward)                                                                                       \
    X(linear_group)                                                                                          \
    X(linear_group_backward)                                                                                 \
    X(mlp)                                                                                                   \
    X(mlp_backward)                                                                                          \
    X(dora_norm)                                                                                             \
    X(rmsnorm)                                                                                               \
    X(rmsnorm_backward)                                                                                      \
    X(norm_rope)                                                                                             \
    X(norm_rope_backward)                                                                                    \
    X(cross_entropy)                                                                                         \
    X(cross_entropy_backward)
/* Those for host memory alone. */
#define TORCH_HOST_OPERATORS(X) X(quantize)

#define TORCH_KERNEL(name) void op_##name(torch_value *stack, uint64_t inputs, uint64_t outputs);
TORCH_OPERATORS(TORCH_KERNEL)
TORCH_HOST_OPERATORS(TORCH_KERNEL)
#undef TORCH_KERNEL

#endif
