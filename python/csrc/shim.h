/* shim.h - the part of libtorch's stable C shim that the operators use, declared by hand.
 *
 * All functions exist in libtorch 2.9.0 and later, except the weak ones. They return 0 on success. They
 * never throw, except torch_check. So no header of torch is needed to build, and one library serves every
 * later version.
 *
 * A tensor handle is owned: whoever gets one deletes it. A kernel owns its inputs, and gives its outputs
 * away.
 *
 * A kernel finds its inputs in stack[0 .. inputs), one value for each argument of the schema. It leaves its
 * outputs in stack[0 .. outputs).
 *
 *     Tensor       the handle           float        the bits of an f64
 *     int          an i64               ScalarType   an i32, in the low half
 *     bool         the lowest byte */
#ifndef NIBBLE_TORCH_SHIM_H
#define NIBBLE_TORCH_SHIM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct AtenTensorOpaque *torch_tensor;
typedef struct TorchLibraryOpaque *torch_library;
typedef int32_t torch_error;
typedef uint64_t torch_value;
typedef void (*torch_kernel)(torch_value *stack, uint64_t inputs, uint64_t outputs);

/* ---- registration ---- */
torch_error aoti_torch_library_init_def(const char *name_space, const char *file, uint32_t line,
                                        torch_library *library);
torch_error aoti_torch_library_init_impl(const char *name_space, const char *key, const char *file,
                                         uint32_t line, torch_library *library);
torch_error aoti_torch_library_def(torch_library library, const char *schema);
torch_error aoti_torch_library_impl(torch_library library, const char *op, torch_kernel kernel);

/* ---- tensors; pointers are borrowed ---- */
torch_error aoti_torch_get_data_ptr(torch_tensor tensor, void **data);
torch_error aoti_torch_get_dim(torch_tensor tensor, int64_t *rank);
torch_error aoti_torch_get_numel(torch_tensor tensor, int64_t *count);
torch_error aoti_torch_get_sizes(torch_tensor tensor, int64_t **sizes);
torch_error aoti_torch_get_strides(torch_tensor tensor, int64_t **strides);
torch_error aoti_torch_get_dtype(torch_tensor tensor, int32_t *dtype);
torch_error aoti_torch_get_device_type(torch_tensor tensor, int32_t *type);
torch_error aoti_torch_get_device_index(torch_tensor tensor, int32_t *index);
torch_error aoti_torch_delete_tensor_object(torch_tensor tensor);
torch_error aoti_torch_empty_strided(int64_t rank, const int64_t *sizes, const int64_t *strides,
                                     int32_t dtype, int32_t device_type, int32_t device_index,
                                     torch_tensor *tensor);
torch_error aoti_torch_copy_(torch_tensor to, torch_tensor from, int32_t non_blocking);

/* ---- codes of dtypes and devices ---- */
int32_t aoti_torch_dtype_float64(void);
int32_t aoti_torch_dtype_float32(void);
int32_t aoti_torch_dtype_float16(void);
int32_t aoti_torch_dtype_bfloat16(void);
int32_t aoti_torch_dtype_int64(void);
int32_t aoti_torch_dtype_int32(void);
int32_t aoti_torch_dtype_int16(void);
int32_t aoti_torch_dtype_int8(void);
int32_t aoti_torch_dtype_uint8(void);
int32_t aoti_torch_dtype_bool(void);
int32_t aoti_torch_device_type_cpu(void);
int32_t aoti_torch_device_type_cuda(void);

/* Throws a C++ exception unless `condition`: RuntimeError in Python, with `text`. */
void aoti_torch_check(bool condition, const char *function, const char *file, uint32_t line,
                      const char *text);

/* ---- weak: NULL in versions that lack them ---- */
/* 2.10 and later */
__attribute__((weak)) torch_error torch_get_num_threads(uint32_t *threads);
/* 2.9: at::get_num_threads() */
__attribute__((weak)) int _ZN2at15get_num_threadsEv(void);
/* 2.13 and later: the message of this thread's last failure */
__attribute__((weak)) const char *torch_exception_get_what_without_backtrace(void);

#endif
