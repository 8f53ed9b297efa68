/* fake_torch.h - a libtorch for tests of python/csrc: the functions of shim.h over tensors that are counted.
 *
 * Tensors have exactly the memory of their elements, so that AddressSanitizer sees a read behind them. Any call
 * of the shim can be made to fail. An error is thrown with longjmp: what stands behind the throw does not run,
 * as with an exception.
 *
 * A test calls an operator by its name. The schema that the library registered says which arguments it has:
 *
 *     fake_arguments a = {0};
 *     fake_set_tensor(&a, "x", x);
 *     fake_set_int(&a, "rows", 64);
 *     fake_results r;
 *     assert_true(fake_call("linear", &a, &r));       false: r.error is the message
 *     fake_free_results(&r);
 *
 * Arguments that are not set are 0, false, or a tensor without elements. */
#ifndef NBL_TEST_FAKE_TORCH_H
#define NBL_TEST_FAKE_TORCH_H

#include "shim.h"

#include <stddef.h>

enum { FAKE_F32, FAKE_F16, FAKE_BF16, FAKE_F64, FAKE_I64, FAKE_I32, FAKE_I16, FAKE_I8, FAKE_U8, FAKE_BOOL };
enum { FAKE_CPU, FAKE_CUDA };
enum { FAKE_MAX_ARGUMENTS = 64, FAKE_MAX_RESULTS = 16, FAKE_MAX_RANK = 9 };

/* ---- tensors ---- */
torch_tensor fake_tensor(int32_t dtype, int rank, const int64_t *shape);
/* f32 values in a pattern that begins with `seed`. */
torch_tensor fake_values(int rank, const int64_t *shape, int seed);
/* A view of the same memory with other sizes and strides. */
torch_tensor fake_view(torch_tensor of, int rank, const int64_t *shape, const int64_t *strides,
                       int64_t offset);
/* Without contents, on device 0 of FAKE_CUDA: in memory of fake_use_cuda. */
torch_tensor fake_cuda_tensor(int32_t dtype, int rank, const int64_t *shape);
void fake_free(torch_tensor tensor);
void *fake_data(torch_tensor tensor);
int64_t fake_count(torch_tensor tensor);
/* Lies about where a tensor is, or what it holds. */
void fake_set_device(torch_tensor tensor, int32_t type, int32_t index);
void fake_set_dtype(torch_tensor tensor, int32_t dtype);
/* Handles that nobody has deleted. */
int64_t fake_live(void);

/* ---- calls ---- */
typedef struct fake_argument {
    const char *name;
    torch_tensor tensor; /* borrowed: the call gets a handle of its own */
    int64_t integer;
    double number;
} fake_argument;
typedef struct fake_arguments {
    fake_argument list[FAKE_MAX_ARGUMENTS];
    int count;
} fake_arguments;
void fake_set_tensor(fake_arguments *a, const char *name, torch_tensor tensor);
void fake_set_int(fake_arguments *a, const char *name, int64_t value); /* also bool and ScalarType */
void fake_set_float(fake_arguments *a, const char *name, double value);

typedef struct fake_results {
    torch_tensor tensors[FAKE_MAX_RESULTS]; /* the caller's */
    int count;
    char error[8192];
} fake_results;
/* False: the operator threw. A name in `a` that the schema lacks ends the process. */
_Bool fake_call(const char *op, const fake_arguments *a, fake_results *r);
void fake_free_results(fake_results *r);

/* ---- what can be turned ---- */
/* Where tensors on FAKE_CUDA have their memory; else it is the host's. */
void fake_use_cuda(void *(*alloc)(size_t bytes), void (*release)(void *memory));
/* Call number n of the shim from now on, in this thread, fails; 0 is the next. < 0: none. */
void fake_fail_at(int64_t n);
/* Whether that call has come. */
_Bool fake_has_failed(void);
void fake_set_threads(int threads);

#endif
