/* torch_call.c - one call of an operator: see torch_call.h. */
#include "torch_call.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What a tensor without elements points at: nibble takes NULL for an absent tensor. */
static _Alignas(64) char nothing[64];

void call_begin(torch_call *c, const char *op, torch_value *stack)
{
    c->op = op;
    c->stack = stack;
    c->next = c->handle_count = c->output_count = 0;
    c->has_device = c->failed = false;
    c->device_type = c->device_index = 0;
    c->ctx = NULL;
    c->text[0] = 0;
}

void call_end(torch_call *c)
{
    for (int i = 0; i < c->handle_count; i++) aoti_torch_delete_tensor_object(c->handles[i]);
    if (!c->failed) {
        for (int i = 0; i < c->output_count; i++) memcpy(&c->stack[i], &c->outputs[i], sizeof c->stack[i]);
        return;
    }
    for (int i = 0; i < c->output_count; i++) aoti_torch_delete_tensor_object(c->outputs[i]);
    aoti_torch_check(false, c->op, __FILE__, __LINE__, c->text); /* throws: nothing follows */
}

void call_fail(torch_call *c, const char *format, ...)
{
    if (c->failed) return;
    c->failed = true;
    int used = snprintf(c->text, sizeof c->text, "nibble: %s: ", c->op);
    va_list list;
    va_start(list, format);
    vsnprintf(c->text + used, sizeof c->text - (size_t)used, format, list);
    va_end(list);
}

void call_status(torch_call *c, nbl_status status)
{
    if (c->failed || status == NBL_OK) return;
    c->failed = true;
    const char *message = nbl_error_message(c->ctx), *hint = nbl_error_hint(c->ctx);
    /* a message begins with the operator's name, or gets it */
    size_t length = strlen(c->op);
    bool named = strncmp(message, c->op, length) == 0 && message[length] == ':';
    snprintf(c->text, sizeof c->text, "nibble: %s%s%s%s%s%s", named ? "" : c->op, named ? "" : ": ", message,
             *hint ? " (" : "", hint, *hint ? ")" : "");
}

bool call_on_cuda(const torch_call *c)
{
    return c->device_type == aoti_torch_device_type_cuda();
}

/* ---- numbers ---- */

int64_t call_int(torch_call *c)
{
    int64_t value;
    memcpy(&value, &c->stack[c->next++], sizeof value);
    return value;
}

double call_float(torch_call *c)
{
    double value;
    memcpy(&value, &c->stack[c->next++], sizeof value);
    return value;
}

bool call_bool(torch_call *c)
{
    uint8_t byte;
    memcpy(&byte, &c->stack[c->next++], sizeof byte);
    return byte != 0;
}

/* ---- dtypes ---- */

/* torch's code of a dtype, for those that tensors of nibble have. */
static int32_t code_of(nbl_dtype dtype)
{
    switch (dtype) {
    case NBL_DTYPE_F32: return aoti_torch_dtype_float32();
    case NBL_DTYPE_F16: return aoti_torch_dtype_float16();
    case NBL_DTYPE_BF16: return aoti_torch_dtype_bfloat16();
    case NBL_DTYPE_F64: return aoti_torch_dtype_float64();
    case NBL_DTYPE_I64: return aoti_torch_dtype_int64();
    case NBL_DTYPE_I32: return aoti_torch_dtype_int32();
    case NBL_DTYPE_I16: return aoti_torch_dtype_int16();
    case NBL_DTYPE_I8: return aoti_torch_dtype_int8();
    case NBL_DTYPE_U8: return aoti_torch_dtype_uint8();
    case NBL_DTYPE_BOOL: return aoti_torch_dtype_bool();
    default: return -1;
    }
}

/* NBL_DTYPE_COUNT for a dtype that nibble has no word for. */
static nbl_dtype dtype_of(int32_t code)
{
    static const nbl_dtype known[] = {NBL_DTYPE_F32, NBL_DTYPE_BF16, NBL_DTYPE_U8,  NBL_DTYPE_F16,
                                      NBL_DTYPE_I64, NBL_DTYPE_I8,   NBL_DTYPE_I32, NBL_DTYPE_F64,
                                      NBL_DTYPE_I16, NBL_DTYPE_BOOL};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (code == code_of(known[i])) return known[i];
    return NBL_DTYPE_COUNT;
}

nbl_dtype call_dtype(torch_call *c)
{
    int32_t code;
    memcpy(&code, &c->stack[c->next++], sizeof code);
    nbl_dtype dtype = dtype_of(code);
    if (dtype == NBL_DTYPE_COUNT) call_fail(c, "dtype is neither float32, float16 nor bfloat16");
    return dtype;
}

/* ---- tensors ---- */

/* Notes that libtorch refused `what`, with its own words where it tells them. */
static void fail_torch(torch_call *c, const char *what)
{
    const char *why = torch_exception_get_what_without_backtrace
                          ? torch_exception_get_what_without_backtrace()
                          : "";
    call_fail(c, "%s%s%s", what, why && *why ? ": " : "", why ? why : "");
}

static void keep_handle(torch_call *c, torch_tensor tensor)
{
    if (c->handle_count < CALL_MAX_HANDLES) c->handles[c->handle_count++] = tensor;
    else {
        aoti_torch_delete_tensor_object(tensor);
        call_fail(c, "too many tensors");
    }
}

/* A new contiguous tensor on the call's device; NULL after a failure. */
static torch_tensor new_tensor(torch_call *c, int rank, const int64_t *shape, nbl_dtype dtype)
{
    int64_t strides[NBL_MAX_RANK], stride = 1;
    torch_tensor tensor = NULL;
    if (c->failed) return NULL;
    for (int i = rank - 1; i >= 0; i--) {
        strides[i] = stride;
        if (__builtin_mul_overflow(stride, shape[i] > 0 ? shape[i] : 1, &stride)) {
            call_fail(c, "a result has strides above %lld", (long long)INT64_MAX);
            return NULL;
        }
    }
    if (aoti_torch_empty_strided(rank, shape, strides, code_of(dtype), c->device_type, c->device_index,
                                 &tensor)) {
        char what[96];
        snprintf(what, sizeof what, "%s out of memory. torch could not allocate %lld elements of %s",
                 call_on_cuda(c) ? "CUDA" : "CPU", (long long)stride, nbl_dtype_name(dtype));
        fail_torch(c, what);
        return NULL;
    }
    return tensor;
}

static void *data_of(torch_call *c, torch_tensor tensor)
{
    void *data = NULL;
    if (aoti_torch_get_data_ptr(tensor, &data)) fail_torch(c, "torch hides the memory of a tensor");
    return data ? data : nothing;
}

/* The device of the call is that of its first tensor. */
static void check_device(torch_call *c, const char *name, const char *part, torch_tensor tensor)
{
    int32_t type = 0, index = 0, cpu = aoti_torch_device_type_cpu(), cuda = aoti_torch_device_type_cuda();
    if (aoti_torch_get_device_type(tensor, &type) || aoti_torch_get_device_index(tensor, &index)) {
        fail_torch(c, "torch hides the device of a tensor");
        return;
    }
    if (type != cuda) index = 0;
    if (type != cpu && type != cuda)
        call_fail(c, "%s%s is neither on a CPU nor on a CUDA device", name, part);
    if (!c->has_device) {
        c->has_device = true;
        c->device_type = type;
        c->device_index = index;
    } else if (type != c->device_type || index != c->device_index)
        call_fail(c, "%s%s is on %s:%d, other tensors are on %s:%d. Move them to one device", name, part,
                  type == cuda ? "cuda" : "cpu", (int)index, c->device_type == cuda ? "cuda" : "cpu",
                  (int)c->device_index);
}

/* Elements from row to row, if the last `inner` dimensions are dense and the others are rows at one distance;
 * else 0. */
static int64_t row_stride(int inner, int rank, const int64_t *sizes, const int64_t *strides)
{
    int64_t stride = -1, expected = 1;
    for (int i = rank - 1; i >= 0; i--) {
        bool is_row = i < rank - inner;
        if (sizes[i] == 1) continue;
        if (is_row && stride < 0) {
            if (strides[i] < expected) return 0; /* rows overlap */
            stride = expected = strides[i];
        }
        if (strides[i] != expected) return 0;
        expected *= sizes[i];
    }
    return stride > 0 ? stride : 0;
}

static bool is_contiguous(int rank, const int64_t *sizes, const int64_t *strides)
{
    int64_t expected = 1;
    for (int i = rank - 1; i >= 0; i--) {
        if (sizes[i] != 1 && strides[i] != expected) return false;
        expected *= sizes[i];
    }
    return true;
}

/* A contiguous copy of `from`, which the call frees. */
static torch_tensor copy_of(torch_call *c, torch_tensor from, int rank, const int64_t *shape, nbl_dtype dtype)
{
    torch_tensor to = new_tensor(c, rank, shape, dtype);
    if (to == NULL) return NULL;
    keep_handle(c, to);
    if (!c->failed && aoti_torch_copy_(to, from, 0)) fail_torch(c, "torch could not copy a tensor");
    return c->failed ? NULL : to;
}

/* How a tensor is read. */
typedef enum tensor_kind {
    PARAMETER,  /* absent without elements */
    ACTIVATION, /* there, even without elements */
    OPTIONAL    /* absent if the shape is [0] */
} tensor_kind;

static nbl_tensor read_tensor(torch_call *c, const char *name, const char *part, tensor_kind kind, int inner)
{
    nbl_tensor t = {0};
    torch_tensor tensor;
    int64_t count = 0, rank = 0, *sizes = NULL, *strides = NULL;
    int32_t code = -1;
    memcpy(&tensor, &c->stack[c->next++], sizeof tensor);
    keep_handle(c, tensor);
    if (c->failed) return t;
    if (aoti_torch_get_numel(tensor, &count) || aoti_torch_get_dim(tensor, &rank) ||
        aoti_torch_get_sizes(tensor, &sizes) || aoti_torch_get_strides(tensor, &strides) ||
        aoti_torch_get_dtype(tensor, &code)) {
        fail_torch(c, "torch hides the shape of a tensor");
        return t;
    }
    if (count == 0 && (kind == PARAMETER || (kind == OPTIONAL && rank == 1))) return t;
    check_device(c, name, part, tensor);
    t.dtype = dtype_of(code);
    if (t.dtype == NBL_DTYPE_COUNT)
        call_fail(c, "%s%s has a dtype that nibble does not compute with", name, part);
    if (rank < 0 || rank > NBL_MAX_RANK)
        call_fail(c, "%s%s has %d dimensions, allowed are 1 to %d", name, part, (int)rank, NBL_MAX_RANK);
    if (c->failed) return t;
    t.rank = rank > 0 ? (int)rank : 1; /* a number is a vector of one element */
    t.shape[0] = 1;
    if (rank > 0) memcpy(t.shape, sizes, (size_t)rank * sizeof *sizes);
    if (count > 0 && !is_contiguous((int)rank, sizes, strides)) {
        if (inner > 0) t.row_stride = row_stride(inner, (int)rank, sizes, strides);
        if (t.row_stride == 0) tensor = copy_of(c, tensor, t.rank, t.shape, t.dtype);
    }
    if (tensor) t.data = data_of(c, tensor);
    return t;
}

nbl_tensor call_part(torch_call *c, const char *name, const char *part)
{
    return read_tensor(c, name, part, PARAMETER, 0);
}

nbl_tensor call_tensor(torch_call *c, const char *name)
{
    return read_tensor(c, name, "", PARAMETER, 0);
}

nbl_tensor call_activation(torch_call *c, const char *name)
{
    return read_tensor(c, name, "", ACTIVATION, 0);
}

nbl_tensor call_optional(torch_call *c, const char *name)
{
    return read_tensor(c, name, "", OPTIONAL, 0);
}

nbl_tensor call_rows(torch_call *c, const char *name, int inner)
{
    return read_tensor(c, name, "", ACTIVATION, inner);
}

void call_flatten(int inner, nbl_tensor *const *tensors)
{
    bool any = false;
    for (int i = 0; tensors[i]; i++) any |= tensors[i]->row_stride > 0;
    for (int i = 0; any && tensors[i]; i++) {
        nbl_tensor *t = tensors[i], flat = *t;
        if (t->rank < inner + 1) continue;
        flat.rank = inner + 1;
        flat.shape[0] = 1;
        for (int d = 0; d < t->rank - inner; d++) flat.shape[0] *= t->shape[d];
        for (int d = 0; d < inner; d++) flat.shape[1 + d] = t->shape[t->rank - inner + d];
        *t = flat;
    }
}

/* ---- outputs and scratch ---- */

int64_t call_elements(const nbl_tensor *tensor)
{
    int64_t n = tensor->rank > 0 ? 1 : 0;
    for (int i = 0; i < tensor->rank; i++) n *= tensor->shape[i];
    return n;
}

nbl_tensor call_shape_of(const nbl_tensor *like, nbl_dtype dtype)
{
    nbl_tensor t = *like;
    t.dtype = dtype;
    t.data = NULL;
    t.row_stride = 0;
    return t;
}

nbl_tensor call_like(const nbl_tensor *like, int64_t n, nbl_dtype dtype)
{
    nbl_tensor t = call_shape_of(like, dtype);
    if (t.rank > 0) t.shape[t.rank - 1] = n;
    return t;
}

/* Adds an output of `rank` dimensions of *tensor. */
static void add_output(torch_call *c, nbl_tensor *tensor, int rank)
{
    torch_tensor made = new_tensor(c, rank, tensor->shape, tensor->dtype);
    if (made == NULL) return;
    c->outputs[c->output_count++] = made;
    tensor->data = data_of(c, made);
}

void call_output(torch_call *c, nbl_tensor *tensor)
{
    add_output(c, tensor, tensor->rank);
}

void call_output_if(torch_call *c, nbl_tensor *tensor, bool wanted)
{
    if (wanted) call_output(c, tensor);
    else {
        nbl_tensor none = nbl_vector(tensor->dtype, 0, NULL);
        call_output(c, &none);
        *tensor = (nbl_tensor){0};
    }
}

void call_output_number(torch_call *c, nbl_tensor *tensor)
{
    *tensor = nbl_vector(tensor->dtype, 1, NULL);
    add_output(c, tensor, 0);
}

void *call_scratch(torch_call *c, size_t bytes)
{
    if (c->failed) return NULL;
    if (bytes == 0) return nothing;
    int64_t size = (int64_t)bytes + 64;
    torch_tensor scratch = new_tensor(c, 1, &size, NBL_DTYPE_U8);
    if (scratch == NULL) return NULL;
    keep_handle(c, scratch);
    uintptr_t address = (uintptr_t)data_of(c, scratch);
    return (void *)((address + 63) & ~(uintptr_t)63);
}
