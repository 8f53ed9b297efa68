/* fake_torch.c - see fake_torch.h. */
#include "fake_torch.h"

#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- failures ---- */

static _Thread_local int64_t failing = -1;
static _Thread_local bool has_failed;
static atomic_int threads = 1;

void fake_fail_at(int64_t n)
{
    failing = n;
    has_failed = false;
}

bool fake_has_failed(void)
{
    return has_failed;
}

void fake_set_threads(int count)
{
    atomic_store(&threads, count);
}

/* True if this call of the shim is to fail. */
static bool fails(void)
{
    if (failing < 0 || failing-- > 0) return false;
    return has_failed = true;
}

/* ---- tensors ---- */

typedef struct storage {
    atomic_int users;
    char *bytes; /* behind them ends the allocation */
    bool on_cuda;
} storage;

static void *(*cuda_alloc)(size_t bytes);
static void (*cuda_release)(void *memory);

void fake_use_cuda(void *(*alloc)(size_t bytes), void (*release)(void *memory))
{
    cuda_alloc = alloc;
    cuda_release = release;
}

struct AtenTensorOpaque {
    storage *memory;
    int64_t offset, count, sizes[FAKE_MAX_RANK], strides[FAKE_MAX_RANK];
    int rank;
    int32_t dtype, device_type, device_index;
};

static atomic_llong live;
static const size_t sizes_of_dtypes[] = {4, 2, 2, 8, 8, 4, 2, 1, 1, 1};

static void *need(void *memory)
{
    if (memory == NULL) abort();
    return memory;
}

static torch_tensor new_tensor(int32_t dtype, int rank, const int64_t *shape, int32_t device)
{
    torch_tensor t = need(calloc(1, sizeof *t));
    t->dtype = dtype;
    t->rank = rank;
    t->count = 1;
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; i--) {
        t->sizes[i] = shape[i];
        t->strides[i] = stride;
        stride *= shape[i] > 0 ? shape[i] : 1;
        t->count *= shape[i];
    }
    t->memory = need(calloc(1, sizeof *t->memory));
    atomic_init(&t->memory->users, 1);
    t->memory->on_cuda = device == FAKE_CUDA && cuda_alloc;
    size_t bytes = (size_t)t->count * sizes_of_dtypes[dtype];
    if (t->count > 0) t->memory->bytes = need(t->memory->on_cuda ? cuda_alloc(bytes) : malloc(bytes));
    t->device_type = device;
    atomic_fetch_add(&live, 1);
    return t;
}

torch_tensor fake_tensor(int32_t dtype, int rank, const int64_t *shape)
{
    torch_tensor t = new_tensor(dtype, rank, shape, FAKE_CPU);
    if (t->count > 0) memset(t->memory->bytes, 0, (size_t)t->count * sizes_of_dtypes[dtype]);
    return t;
}

torch_tensor fake_values(int rank, const int64_t *shape, int seed)
{
    torch_tensor t = new_tensor(FAKE_F32, rank, shape, FAKE_CPU);
    for (int64_t i = 0; i < t->count; i++)
        ((float *)t->memory->bytes)[i] = (float)((i * 37 + seed * 11) % 101 - 50) / 50;
    return t;
}

torch_tensor fake_cuda_tensor(int32_t dtype, int rank, const int64_t *shape)
{
    return new_tensor(dtype, rank, shape, FAKE_CUDA);
}

static torch_tensor share(torch_tensor of)
{
    torch_tensor t = need(malloc(sizeof *t));
    *t = *of;
    atomic_fetch_add(&t->memory->users, 1);
    atomic_fetch_add(&live, 1);
    return t;
}

torch_tensor fake_view(torch_tensor of, int rank, const int64_t *shape, const int64_t *strides,
                       int64_t offset)
{
    torch_tensor t = share(of);
    t->rank = rank;
    t->count = 1;
    t->offset = offset;
    for (int i = 0; i < rank; i++) {
        t->sizes[i] = shape[i];
        t->strides[i] = strides[i];
        t->count *= shape[i];
    }
    return t;
}

void fake_free(torch_tensor t)
{
    if (atomic_fetch_sub(&t->memory->users, 1) == 1) {
        if (t->memory->on_cuda) {
            if (t->memory->bytes) cuda_release(t->memory->bytes);
        } else free(t->memory->bytes);
        free(t->memory);
    }
    free(t);
    atomic_fetch_sub(&live, 1);
}

void *fake_data(torch_tensor t)
{
    return t->count > 0 ? t->memory->bytes + t->offset * (int64_t)sizes_of_dtypes[t->dtype] : NULL;
}

int64_t fake_count(torch_tensor t)
{
    return t->count;
}

void fake_set_device(torch_tensor t, int32_t type, int32_t index)
{
    t->device_type = type;
    t->device_index = index;
}

void fake_set_dtype(torch_tensor t, int32_t dtype)
{
    t->dtype = dtype;
}

int64_t fake_live(void)
{
    return atomic_load(&live);
}

/* ---- the shim ---- */

torch_error aoti_torch_get_data_ptr(torch_tensor t, void **data)
{
    *data = fake_data(t);
    return fails();
}

torch_error aoti_torch_get_dim(torch_tensor t, int64_t *rank)
{
    *rank = t->rank;
    return fails();
}

torch_error aoti_torch_get_numel(torch_tensor t, int64_t *count)
{
    *count = t->count;
    return fails();
}

torch_error aoti_torch_get_sizes(torch_tensor t, int64_t **sizes)
{
    *sizes = t->sizes;
    return fails();
}

torch_error aoti_torch_get_strides(torch_tensor t, int64_t **strides)
{
    *strides = t->strides;
    return fails();
}

torch_error aoti_torch_get_dtype(torch_tensor t, int32_t *dtype)
{
    *dtype = t->dtype;
    return fails();
}

torch_error aoti_torch_get_device_type(torch_tensor t, int32_t *type)
{
    *type = t->device_type;
    return fails();
}

torch_error aoti_torch_get_device_index(torch_tensor t, int32_t *index)
{
    *index = t->device_index;
    return fails();
}

torch_error aoti_torch_delete_tensor_object(torch_tensor t)
{
    fake_free(t);
    return 0;
}

torch_error aoti_torch_empty_strided(int64_t rank, const int64_t *sizes, const int64_t *strides,
                                     int32_t dtype, int32_t device_type, int32_t device_index,
                                     torch_tensor *tensor)
{
    if (fails()) return 1;
    *tensor = new_tensor(dtype, (int)rank, sizes, device_type);
    for (int64_t i = 0; i < rank; i++)
        if (sizes[i] > 1 && (*tensor)->strides[i] != strides[i]) abort(); /* outputs are contiguous */
    fake_set_device(*tensor, device_type, device_index);
    /* whoever reads what was never written shall see it */
    if ((*tensor)->count > 0 && !(*tensor)->memory->on_cuda)
        memset((*tensor)->memory->bytes, 0xFF, (size_t)(*tensor)->count * sizes_of_dtypes[dtype]);
    return 0;
}

torch_error aoti_torch_copy_(torch_tensor to, torch_tensor from, int32_t non_blocking)
{
    (void)non_blocking;
    if (fails()) return 1;
    size_t size = sizes_of_dtypes[to->dtype];
    if (to->dtype != from->dtype || to->count != from->count) abort();
    for (int64_t i = 0; i < to->count; i++) {
        int64_t rest = i, at = from->offset;
        for (int d = from->rank - 1; d >= 0; d--) {
            at += rest % from->sizes[d] * from->strides[d];
            rest /= from->sizes[d];
        }
        memcpy((char *)fake_data(to) + (size_t)i * size, from->memory->bytes + (size_t)at * size, size);
    }
    return 0;
}

#define CODE(name, code)                                                                                     \
    int32_t aoti_torch_##name(void)                                                                          \
    {                                                                                                        \
        return code;                                                                                         \
    }
CODE(dtype_float64, FAKE_F64)
CODE(dtype_float32, FAKE_F32)
CODE(dtype_float16, FAKE_F16)
CODE(dtype_bfloat16, FAKE_BF16)
CODE(dtype_int64, FAKE_I64)
CODE(dtype_int32, FAKE_I32)
CODE(dtype_int16, FAKE_I16)
CODE(dtype_int8, FAKE_I8)
CODE(dtype_uint8, FAKE_U8)
CODE(dtype_bool, FAKE_BOOL)
CODE(device_type_cpu, FAKE_CPU)
CODE(device_type_cuda, FAKE_CUDA)

torch_error torch_get_num_threads(uint32_t *count)
{
    *count = (uint32_t)atomic_load(&threads);
    return 0;
}

/* ---- registration ---- */

typedef struct operator_row {
    const char *schema;
    torch_kernel kernel; /* of the CPU */
    bool on_cuda;
} operator_row;
enum { MAX_OPERATORS = 64 };
static operator_row operators[MAX_OPERATORS];
static int operator_count;

struct TorchLibraryOpaque {
    int key; /* 0: definitions, 1: CPU, 2: CUDA */
};
static struct TorchLibraryOpaque libraries[3] = {{0}, {1}, {2}};

/* Is `name` the name in the schema? */
static bool names(const char *schema, const char *name)
{
    size_t length = strlen(name);
    return strncmp(schema, name, length) == 0 && schema[length] == '(';
}

static operator_row *find(const char *name)
{
    for (int i = 0; i < operator_count; i++)
        if (names(operators[i].schema, name)) return &operators[i];
    fprintf(stderr, "no operator %s\n", name);
    abort();
}

torch_error aoti_torch_library_init_def(const char *space, const char *file, uint32_t line,
                                        torch_library *library)
{
    (void)file, (void)line;
    if (strcmp(space, "nibble") != 0) abort();
    *library = &libraries[0];
    return 0;
}

/* Further operators of the same namespace: other files of python/csrc have some. */
torch_error aoti_torch_library_init_fragment(const char *space, const char *file, uint32_t line,
                                             torch_library *library);
torch_error aoti_torch_library_init_fragment(const char *space, const char *file, uint32_t line,
                                             torch_library *library)
{
    return aoti_torch_library_init_def(space, file, line, library);
}

torch_error aoti_torch_library_init_impl(const char *space, const char *key, const char *file, uint32_t line,
                                         torch_library *library)
{
    (void)file, (void)line;
    if (strcmp(space, "nibble") != 0) abort();
    *library = &libraries[strcmp(key, "CUDA") == 0 ? 2 : 1];
    return 0;
}

torch_error aoti_torch_library_def(torch_library library, const char *schema)
{
    if (library->key != 0 || operator_count == MAX_OPERATORS) abort();
    operators[operator_count++].schema = schema;
    return 0;
}

torch_error aoti_torch_library_impl(torch_library library, const char *name, torch_kernel kernel)
{
    operator_row *row = find(name);
    if (library->key == 1) row->kernel = kernel;
    else row->on_cuda = true;
    return 0;
}

/* ---- calls ---- */

static _Thread_local jmp_buf thrown;
static _Thread_local char *thrown_text; /* of a fake_results */

void aoti_torch_check(bool condition, const char *function, const char *file, uint32_t line, const char *text)
{
    (void)function, (void)file, (void)line;
    if (condition) return;
    snprintf(thrown_text, sizeof((fake_results *)NULL)->error, "%s", text);
    longjmp(thrown, 1);
}

static fake_argument *add(fake_arguments *a, const char *name)
{
    for (int i = 0; i < a->count; i++)
        if (strcmp(a->list[i].name, name) == 0) return &a->list[i];
    if (a->count == FAKE_MAX_ARGUMENTS) abort();
    a->list[a->count] = (fake_argument){.name = name};
    return &a->list[a->count++];
}

void fake_set_tensor(fake_arguments *a, const char *name, torch_tensor tensor)
{
    add(a, name)->tensor = tensor;
}

void fake_set_int(fake_arguments *a, const char *name, int64_t value)
{
    add(a, name)->integer = value;
}

void fake_set_float(fake_arguments *a, const char *name, double value)
{
    add(a, name)->number = value;
}

/* The next "Type name" of a schema; false at its end. A tensor that is written to is a "Tensor(a!)". */
static bool next_argument(const char **at, char type[32], char name[64])
{
    int used = 0;
    while (**at == ' ' || **at == ',' || **at == '(') ++*at;
    if (**at == ')') return false;
    if (sscanf(*at, "%31[A-Za-z]%n", type, &used) != 1) abort();
    *at += used;
    if (strncmp(*at, "(a!)", 4) == 0) *at += 4;
    if (sscanf(*at, " %63[a-z_0-9]%n", name, &used) != 1) abort();
    *at += used;
    return true;
}

bool fake_call(const char *op, const fake_arguments *a, fake_results *r)
{
    const operator_row *row = find(op);
    torch_value stack[128] = {0};
    uint64_t inputs = 0, outputs = 0;
    int used = 0;
    char type[32], name[64];
    const char *at = strchr(row->schema, '(');
    while (next_argument(&at, type, name)) {
        fake_argument given = {0};
        for (int i = 0; i < a->count; i++)
            if (strcmp(a->list[i].name, name) == 0) given = a->list[i], used++;
        torch_value *value = &stack[inputs++];
        if (strcmp(type, "Tensor") == 0) {
            torch_tensor t = given.tensor ? share(given.tensor) : fake_tensor(FAKE_F32, 1, (int64_t[]){0});
            memcpy(value, &t, sizeof t);
        } else if (strcmp(type, "float") == 0) memcpy(value, &given.number, sizeof given.number);
        else
            memcpy(value, &given.integer,
                   sizeof given.integer); /* little endian: bool and i32 are its low bytes */
    }
    if (used != a->count) {
        fprintf(stderr, "%s lacks one of the arguments that the test sets\n", row->schema);
        abort();
    }
    const char *results = strstr(row->schema, "-> ") + 3;
    for (const char *c = results; (c = strstr(c, "Tensor")) != NULL; c++) outputs++;
    r->count = 0;
    r->error[0] = 0;
    thrown_text = r->error;
    if (setjmp(thrown)) return false;
    row->kernel(stack, inputs, outputs);
    r->count = (int)outputs;
    for (uint64_t i = 0; i < outputs; i++) memcpy(&r->tensors[i], &stack[i], sizeof r->tensors[i]);
    return true;
}

void fake_free_results(fake_results *r)
{
    for (int i = 0; i < r->count; i++) fake_free(r->tensors[i]);
    r->count = 0;
}
