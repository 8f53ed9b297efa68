/* nibble.h - the public interface of libnibble: fine-tunes, quantizes, runs,
 * merges and exports language models in 4, 8 and 16 bits.
 *
 * The sections stand in reading order. Most programs need the first six.
 *
 *      1  Versions, errors, options          what every call has in common
 *      2  Contexts                           threads, memory, log, progress
 *      3  The machine and its devices        instruction sets, CUDA
 *      4  Dtypes, tensors, weights           what numbers are stored as
 *      5  Checkpoints                        folders of weights on disk
 *      6  Models                             logits, gradients, generation
 *      7  Plans                              memory and work, before computing
 *      8  Tokens                             text to ids and back
 *      9  Chats                              templates, where an answer ends
 *     10  Training runs                      configuration, data, training
 *     11  Merging and exporting              one folder, or one GGUF file
 *     12  Inspecting                         GGUF files and adapters
 *     13  Quantizing in memory               for authors of frameworks
 *     14  Operators                          for authors of frameworks
 *
 * Thirty seconds: make a 4-bit copy of a model's folder.
 *
 *     nbl_context *ctx;
 *     if (nbl_context_create(NULL, &ctx) != NBL_OK) return 1;
 *     nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options),
 *                                 .format = NBL_FORMAT_NF4};
 *     if (nbl_checkpoint_quantize(ctx, "Llama-3.2-1B", "Llama-3.2-1B-nf4",
 *                                 &how, NULL) != NBL_OK)
 *         fprintf(stderr, "%s\n", nbl_error_message(ctx));
 *     nbl_context_destroy(ctx);
 *
 * Rules that hold everywhere, unless a comment says otherwise:
 *
 * Errors. A fallible call returns an nbl_status and leaves a message in its
 * context. The library never prints, exits or aborts. A call that fails sets
 * the object that it would have made to NULL.
 *
 * Arguments. A context or an object must be a live one. Any other needed
 * pointer that is NULL is an NBL_ERROR_ARGUMENT. Functions that close or free
 * accept NULL. Texts are UTF-8 and end with a zero byte. An nbl_string need
 * not.
 *
 * Ownership. A pointer that is handed in is borrowed for the call. A pointer
 * that is handed out belongs to the object it came from, and lives as long.
 *
 * Lists. An index begins at 0. A getter returns NULL or false past the end.
 *
 * Threads. One context serves one thread at a time, and so does each object
 * that was made with it. Any number of contexts may be used at once. There are
 * no mutable globals, except what nbl_guard_mapped_files keeps.
 *
 * Numbers. The dtype of a result follows from the arguments, never from
 * history. Results are bit-identical from run to run and for any number of
 * threads.
 *
 * Growth. Structs get new fields at their end. A struct in the caller's memory
 * that may grow begins with `struct_size` (section 1): options, which the
 * caller fills in, and results, which the library fills in. A struct that the
 * library hands out by const pointer may grow, too: copy its fields, not its
 * bytes. All other structs are fixed for an soname: values such as nbl_string,
 * nbl_ids, nbl_tensor and nbl_weight, elements of arrays, and the arguments of
 * operators (section 14).
 *
 * Versions. Before 1.0 each minor version may change the interface and has an
 * soname of its own, libnibble.so.0.3. CHANGELOG.md lists the changes.
 */
#ifndef NIBBLE_H
#define NIBBLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(NBL_BUILD) && defined(__GNUC__)
#define NBL_API __attribute__((visibility("default")))
#else
#define NBL_API
#endif

/* ---- 1. Versions, errors, options -----------------------------------------
 *
 * What every call has in common. nbl_error_message and nbl_error_hint stand in
 * section 2, because a message belongs to a context.
 */

/* The version of this header. */
#define NBL_VERSION_MAJOR 0
#define NBL_VERSION_MINOR 3
#define NBL_VERSION_PATCH 0
#define NBL_VERSION_STRING "0.3.0"

/* The version of the library that is loaded: "MAJOR.MINOR.PATCH". A constant.
 * Any thread. */
NBL_API const char *nbl_version(void);

/* Status codes: X(number, NAME, text). A number never gets another meaning. */
#define NBL_STATUS_TABLE(X)                                                    \
    X(0, OK, "done")                                                           \
    X(1, ERROR_ARGUMENT, "an argument is out of its range")                    \
    X(2, ERROR_MEMORY, "an allocation failed")                                 \
    X(3, ERROR_IO, "the system could not read or write")                       \
    X(4, ERROR_FORMAT, "a file is not what it claims to be")                   \
    X(5, ERROR_DTYPE, "dtypes do not fit")                                     \
    X(6, ERROR_SHAPE, "shapes do not fit")                                     \
    X(7, ERROR_UNSUPPORTED, "valid, but this library does not do it")          \
    X(8, ERROR_EXISTS, "the target exists already")                            \
    X(9, ERROR_NOT_FOUND, "no such file, folder or tensor")                    \
    X(10, ERROR_NO_SPACE, "the disk is full")                                  \
    X(11, ERROR_CANCELLED, "the caller asked to stop")                         \
    X(12, ERROR_INTERNAL, "a defect of this library")

typedef enum nbl_status {
#define NBL_STATUS_ENUM(number, name, text) NBL_##name = number,
    NBL_STATUS_TABLE(NBL_STATUS_ENUM)
#undef NBL_STATUS_ENUM
} nbl_status;

/* "NBL_ERROR_FORMAT" and the like. "NBL_ERROR_INTERNAL" for an unknown number.
 * A constant. Any thread. */
NBL_API const char *nbl_status_name(nbl_status status);
/* What the status means, in a few words. A constant. Any thread. */
NBL_API const char *nbl_status_text(nbl_status status);

/* Names of enums. nbl_ENUM_name returns the word that files, options and JSON
 * use for a constant: a constant text, "unknown" for a number that is none.
 * nbl_ENUM_parse is the inverse. It returns false, and leaves *value alone, for
 * an unknown word or NULL. Both may be called from any thread. */

/* Options and results. A struct in the caller's memory that may grow begins
 * with `struct_size`: its size when the caller was compiled. Zero is the
 * default of every other field. Later versions add fields at the end. So a
 * program and a library of different patch versions work together:
 *
 *   - options: the library takes fields that it knows and the caller does not
 *     as zero. A field that the caller has set and the library does not know is
 *     an NBL_ERROR_ARGUMENT.
 *   - results: the library fills in the fields that both know. Fields that only
 *     the caller knows become zero. After a failure the fields mean nothing,
 *     unless the function says more.
 *
 * A struct_size of 0 is an NBL_ERROR_ARGUMENT.
 *
 *     nbl_train_options how = {NBL_OPTIONS(nbl_train_options), .samples = 3};
 *     nbl_train_summary summary = {NBL_RESULT(nbl_train_summary)};
 *     nbl_run_train(run, &how, &summary);
 */
#define NBL_OPTIONS(type) .struct_size = sizeof(type)
#define NBL_RESULT(type) .struct_size = sizeof(type)

/* The same as statements, for C++ before C++20:
 *
 *     nbl_train_options how;
 *     NBL_OPTIONS_INIT(how);
 *     how.samples = 3;
 */
#define NBL_OPTIONS_INIT(options) nbl_options_init(&(options), sizeof(options))
#define NBL_RESULT_INIT(result) nbl_options_init(&(result), sizeof(result))
/* Sets `size` bytes at `options` to zero, and struct_size to `size`. For
 * bindings, which have no macros. Any thread. */
NBL_API void nbl_options_init(void *options, size_t size);

/* A text of `size` bytes. UTF-8 as a rule. It may hold zero bytes, and need not
 * end with one. */
typedef struct nbl_string {
    const char *text;
    size_t size;
} nbl_string;

/* Ids of tokens, or labels of tokens. A list that a function fills in belongs
 * to the caller: return it with nbl_ids_free. */
typedef struct nbl_ids {
    int32_t *ids;  /* 0 ... 2^31 - 2; a label of -100 is not trained */
    int64_t count; /* >= 0 */
} nbl_ids;

/* ---- 2. Contexts -----------------------------------------------------------
 *
 * A context holds what would be global elsewhere: the allocator, the threads,
 * the device, the callbacks, and the message of the last failure. Every object
 * belongs to a context, and must be closed before it.
 */
typedef struct nbl_context nbl_context;

/* Where memory comes from. Both functions may be called from any thread that
 * works for the library. */
typedef struct nbl_allocator {
    /* `size` bytes aligned to `align`, a power of two up to 4096; or NULL */
    void *(*alloc)(void *user, size_t size, size_t align);
    /* `size` is the size that was asked for. Needed when `alloc` is set. */
    void (*free)(void *user, void *memory, size_t size);
    void *user; /* the first argument of both */
} nbl_allocator;

typedef enum nbl_log_level {
    NBL_LOG_WARNING, /* something the user should know; the work goes on */
    NBL_LOG_INFO,    /* what was decided */
    NBL_LOG_DEBUG    /* for authors of this library */
} nbl_log_level;

/* Receives one line without a newline, valid during the call. Called from the
 * thread that called the library. */
typedef void (*nbl_log_fn)(void *user, nbl_log_level level, const char *line);

typedef struct nbl_progress {
    uint64_t done;    /* bytes of input read so far */
    uint64_t total;   /* bytes of input in all */
    const char *what; /* what is being worked on, such as a tensor's name */
} nbl_progress;

/* Called every few megabytes, from the thread that called the library. Returns
 * true to stop: the call then ends with NBL_ERROR_CANCELLED and leaves
 * nothing. */
typedef bool (*nbl_progress_fn)(void *user, const nbl_progress *progress);

typedef struct nbl_context_options {
    size_t struct_size;
    int threads;              /* 1 ... 1024; 0: all cores of this process */
    nbl_allocator allocator;  /* zero: malloc and free */
    nbl_log_fn log;           /* NULL: no log */
    void *log_user;           /* first argument of `log` */
    nbl_progress_fn progress; /* NULL: no reports, no way to stop */
    void *progress_user;      /* first argument of `progress` */
} nbl_context_options;

/* Makes a context. `options` may be NULL: all defaults. Any thread. The
 * environment variable NIBBLE_ISA lowers the instruction set (section 3); a
 * name that does not exist is an NBL_ERROR_ARGUMENT. There is no message for a
 * context that was not made: see nbl_status_text. */
NBL_API nbl_status nbl_context_create(const nbl_context_options *options,
                                      nbl_context **ctx);
/* Ends the context's threads and frees it. Close all its objects first. */
NBL_API void nbl_context_destroy(nbl_context *ctx);

/* Sets the number of threads: 1 ... 1024, or 0 for all cores of this process.
 * Call it before models and runs are opened: plans count the memory of each
 * thread. */
NBL_API nbl_status nbl_context_set_threads(nbl_context *ctx, int threads);
/* How many threads the context computes with: 1 ... 1024. */
NBL_API int nbl_threads(const nbl_context *ctx);

/* The message of the last failure: less than 4096 bytes of UTF-8. It names the
 * file, the tensor, the dtypes and the shapes concerned. It is one line, except
 * for a list of refused configuration keys, which has a line for each. "" if
 * nothing has failed. Valid until the next failure. */
NBL_API const char *nbl_error_message(const nbl_context *ctx);
/* What the user can do about the last failure, or "". Valid until the next
 * failure. */
NBL_API const char *nbl_error_hint(const nbl_context *ctx);

/* Turns a crash into an error. Weights are read from mapped files. If another
 * process truncates such a file, reading it raises SIGBUS, which ends the
 * process. After this call the nibble function at work fails instead, with an
 * error that names the file. Call it once per process, before files are opened.
 * It installs a handler of SIGBUS, which passes on signals that are not about
 * files of the library. A file whose size or modification time changes is an
 * error in any case. */
NBL_API nbl_status nbl_guard_mapped_files(void);

/* ---- 3. The machine and its devices ----------------------------------------
 *
 * What a context computes with: the processor, or one CUDA device. Programs
 * that take the defaults need nothing of this section.
 */

/* The processor's cores that this process may use: >= 1. Any thread. */
NBL_API int nbl_cores(void);
/* Writes the processor's name as the system tells it, cut to `size` bytes with
 * the terminating zero: "AMD EPYC 7763", "Arm Neoverse-N1". False, and "", when
 * it is unknown. Any thread. */
NBL_API bool nbl_processor_name(char *name, size_t size);

/* The instruction set of the context's kernels: "scalar", "avx2", "avx512",
 * "avx512bf16" or "amx". It is the best one that the processor has. NIBBLE_ISA
 * lowers it. A constant. */
NBL_API const char *nbl_isa_name(const nbl_context *ctx);

/* An instruction set of this processor architecture. */
typedef struct nbl_isa_level {
    size_t struct_size;
    const char *name;    /* "avx2"; a constant */
    const char *enables; /* what it is used for; a constant */
    bool found;          /* this processor has it */
    bool used;           /* this context uses it */
} nbl_isa_level;
/* The levels in order; the first is "scalar". On x86-64 kernels exist for every
 * level, and each level includes those before it. On aarch64 levels are
 * independent, and kernels use only the first. False past the end, and for a
 * NULL or a struct_size of 0. */
NBL_API bool nbl_isa_level_get(const nbl_context *ctx, int64_t index,
                               nbl_isa_level *level);

/* A library that this one is linked with, as loaded. */
typedef struct nbl_library {
    size_t struct_size;
    const char *name;    /* "PCRE2"; a constant */
    const char *enables; /* what it is used for; a constant */
    char version[64];    /* as the library tells it: "10.42 2022-12-11" */
} nbl_library;
/* Any thread. False past the end, and for a NULL or a struct_size of 0. */
NBL_API bool nbl_library_get(int64_t index, nbl_library *library);

/* What models and operators run on. */
typedef enum nbl_device_kind {
    NBL_DEVICE_CPU, /* "cpu" */
    NBL_DEVICE_CUDA /* "cuda" */
} nbl_device_kind;
NBL_API const char *nbl_device_kind_name(nbl_device_kind kind);
NBL_API bool nbl_device_kind_parse(const char *name, nbl_device_kind *kind);

/* CUDA. The CUDA runtime is part of a library that was built with it. It looks
 * for NVIDIA's driver when one of the next functions is first called. So the
 * same library loads on a machine without a driver. */

/* True if the library was built with the CUDA backend. Any thread. */
NBL_API bool nbl_cuda_built(void);

typedef struct nbl_cuda_device {
    size_t struct_size;
    char name[256];        /* "NVIDIA H200" */
    int major, minor;      /* compute capability: 9, 0 */
    uint64_t memory_bytes; /* of the whole device, not what is free */
} nbl_cuda_device;

/* The number of devices. Without any, *count is 0 and the status is
 * NBL_ERROR_UNSUPPORTED: the message says whether the backend, the driver or
 * the device is missing. Makes no CUDA context and takes no device memory. */
NBL_API nbl_status nbl_cuda_device_count(nbl_context *ctx, int *count);
/* Describes device `index`: 0 ... count - 1. Makes no CUDA context and takes no
 * device memory. */
NBL_API nbl_status nbl_cuda_device_get(nbl_context *ctx, int index,
                                       nbl_cuda_device *device);
/* True if nbl_context_use_cuda(ctx, 0) has what it needs: a driver, a device of
 * compute capability 8.0 or later, and cuBLASLt. If false, the message says
 * what is missing. `device: auto` in a run asks this, too. */
NBL_API bool nbl_cuda_usable(nbl_context *ctx);

/* Makes the context compute on device `index`, on a stream of its own. Models
 * that are opened afterwards keep their weights there. Operators (section 14)
 * then take pointers into device memory. Call it once, before the context's
 * first model. It lasts as long as the context. NBL_ERROR_UNSUPPORTED if there
 * is no such device, or if it is below compute capability 8.0. */
NBL_API nbl_status nbl_context_use_cuda(nbl_context *ctx, int index);

/* For authors of frameworks: the same on a stream of the caller's. The context
 * only borrows the stream. It never destroys it, and waits on it only in calls
 * whose comment says so. Such a context is for operators (section 14) and
 * nbl_dequantize. Models and runs are refused.
 *
 * It takes no device memory of its own: the workspace of libraries is a part of
 * the scratch that operators ask for.
 *
 *   stream   a cudaStream_t of device `index`; NULL: the legacy default stream
 *   share    another context that this function has put on the same device, or
 *            NULL. Both then use one cuBLASLt handle, which lives as long as the
 *            last of them, and each may work on a thread of its own. When the
 *            last one closes, all its work must be done, and no captured graph
 *            that holds such work may run later.
 */
NBL_API nbl_status nbl_context_use_cuda_stream(nbl_context *ctx, int index,
                                               void *stream,
                                               nbl_context *share);
/* Replaces the stream. It stores a pointer and does nothing else: call it before
 * each operator. An NBL_ERROR_ARGUMENT if the context was not made with
 * nbl_context_use_cuda_stream. */
NBL_API nbl_status nbl_context_set_stream(nbl_context *ctx, void *stream);

/* ---- 4. Dtypes, tensors, weights -------------------------------------------
 *
 * What numbers are stored as. A tensor is dense: one element per value. A
 * weight is dense or packed: codes of 4 or 8 bits with scales.
 */

/* Element types, as safetensors knows them: X(NAME, name, name in files, bits
 * of an element). The first three are the compute dtypes: the library computes
 * in them. The others are read, listed and copied. */
#define NBL_DTYPE_TABLE(X)                                                     \
    X(F32, "f32", "F32", 32)                                                   \
    X(F16, "f16", "F16", 16)                                                   \
    X(BF16, "bf16", "BF16", 16)                                                \
    X(F64, "f64", "F64", 64)                                                   \
    X(F8_E4M3, "f8_e4m3", "F8_E4M3", 8)                                        \
    X(F8_E5M2, "f8_e5m2", "F8_E5M2", 8)                                        \
    X(F8_E8M0, "f8_e8m0", "F8_E8M0", 8)                                        \
    X(F6_E2M3, "f6_e2m3", "F6_E2M3", 6)                                        \
    X(F6_E3M2, "f6_e3m2", "F6_E3M2", 6)                                        \
    X(F4, "f4", "F4", 4)                                                       \
    X(I64, "i64", "I64", 64)                                                   \
    X(I32, "i32", "I32", 32)                                                   \
    X(I16, "i16", "I16", 16)                                                   \
    X(I8, "i8", "I8", 8)                                                       \
    X(U64, "u64", "U64", 64)                                                   \
    X(U32, "u32", "U32", 32)                                                   \
    X(U16, "u16", "U16", 16)                                                   \
    X(U8, "u8", "U8", 8)                                                       \
    X(BOOL, "bool", "BOOL", 8)                                                 \
    X(C64, "c64", "C64", 64)                                                   \
    X(F8_E4M3FNUZ, "f8_e4m3fnuz", "F8_E4M3FNUZ", 8)                            \
    X(F8_E5M2FNUZ, "f8_e5m2fnuz", "F8_E5M2FNUZ", 8)

typedef enum nbl_dtype {
#define NBL_DTYPE_ENUM(NAME, name, file, bits) NBL_DTYPE_##NAME,
    NBL_DTYPE_TABLE(NBL_DTYPE_ENUM)
#undef NBL_DTYPE_ENUM
        NBL_DTYPE_COUNT /* not a dtype */
} nbl_dtype;
NBL_API const char *nbl_dtype_name(nbl_dtype dtype);
NBL_API bool nbl_dtype_parse(const char *name, nbl_dtype *dtype);

/* A compute dtype in options, where zero is a default. Each option says what
 * its default is. The numbers differ from those of nbl_dtype, so that a mix-up
 * is an NBL_ERROR_ARGUMENT. */
typedef enum nbl_compute_dtype {
    NBL_COMPUTE_DEFAULT,   /* "default" */
    NBL_COMPUTE_F32 = 100, /* "f32" */
    NBL_COMPUTE_F16,       /* "f16" */
    NBL_COMPUTE_BF16       /* "bf16" */
} nbl_compute_dtype;
NBL_API const char *nbl_compute_dtype_name(nbl_compute_dtype dtype);
NBL_API bool nbl_compute_dtype_parse(const char *name,
                                     nbl_compute_dtype *dtype);

/* How a weight is stored. */
typedef enum nbl_format {
    NBL_FORMAT_DENSE, /* "dense": one element per value, in a dtype */
    NBL_FORMAT_NF4,   /* "nf4": bitsandbytes' 4-bit NormalFloat in blocks */
    NBL_FORMAT_FP4,   /* "fp4": bitsandbytes' 4-bit float in blocks */
    NBL_FORMAT_INT8,  /* "int8": bitsandbytes' LLM.int8(), a scale per row */
    NBL_FORMAT_MXFP4  /* "mxfp4": OCP e2m1, an e8m0 scale per 32 values */
} nbl_format;
NBL_API const char *nbl_format_name(nbl_format format);
NBL_API bool nbl_format_parse(const char *name, nbl_format *format);

/* Double quantization: whether the scales of nf4 and fp4 are quantized to 8
 * bits themselves. With blocks of 64 it saves 0.37 bits per weight. */
typedef enum nbl_nested {
    NBL_NESTED_NONE,    /* scales are f32 */
    NBL_NESTED_NEAREST, /* the nearest code, as bitsandbytes on a GPU */
    NBL_NESTED_GRID     /* by a grid of 16 bits, as bitsandbytes on a CPU */
} nbl_nested;

#define NBL_MAX_RANK 8 /* dimensions of a tensor or weight */

/* A tensor in memory, row-major: the last dimension is contiguous. The memory
 * is borrowed, and belongs to the device that the context computes on. */
typedef struct nbl_tensor {
    nbl_dtype dtype;
    int rank;                    /* 1 ... NBL_MAX_RANK */
    int64_t shape[NBL_MAX_RANK]; /* the slowest dimension first */
    void *data; /* aligned to its element; NULL: the tensor is absent */
    /* Elements from one entry of the first dimension to the next; 0: dense. For
     * activations of rank 2 [tokens, n] and 3 [tokens, heads, head_dim] that lie
     * in wider rows. The other dimensions are always dense. Operators that do
     * not take a stride refuse it. The rows' other elements are not touched. */
    int64_t row_stride;
} nbl_tensor;

/* A tensor of rank 1. */
static inline nbl_tensor nbl_vector(nbl_dtype dtype, int64_t n, void *data)
{
    nbl_tensor t = {dtype, 1, {n}, data, 0};
    return t;
}
/* A tensor of rank 2. */
static inline nbl_tensor nbl_matrix(nbl_dtype dtype, int64_t rows,
                                    int64_t columns, void *data)
{
    nbl_tensor t = {dtype, 2, {rows, columns}, data, 0};
    return t;
}

/* A weight in memory: what is stored, and how to read it. All pointers are
 * borrowed. Scales and tables are aligned to 4 bytes. Codes need no alignment,
 * dense values that of their element where a function says so. The lengths
 * follow from the shape. They are checked as far as `given` tells them:
 *
 *   n = product of shape, rows = n / last dimension
 *
 *   format    data                 scales              scale_codes
 *   dense     n elements of dtype  -                   -
 *   nf4, fp4  ceil(n/2) bytes,     f32 [ceil(n/block)] -
 *             first in high nibble
 *   nested    as nf4, fp4          -                   u8 [ceil(n/block)]
 *   int8      n signed bytes       f32 [rows]          -
 *   mxfp4     n/2 bytes, first     -                   u8 [n/32], e8m0
 *             in low nibble
 *
 * Blocks of nf4 and fp4 run over the flattened weight and may straddle rows.
 * A nested scale is table[code] * nested_scales[i / nested_block] + offset. It
 * is rounded to f32 after the product and after the sum.
 *
 * A stack [matrices, rows, columns], the experts of a layer, is in one piece or
 * has `members`. Members are matrices [rows / m, columns], member_count = m *
 * matrices, all of the stack's format, dtype and block. Member m * i + j holds
 * rows j * rows / m and on of matrix i. The stack's own pointers are NULL then. */
typedef struct nbl_weight_parts {
    /* What the caller's memory holds. 0: not known, and not checked. */
    uint64_t data_bytes; /* at least what the shape needs */
    int64_t scales, scale_codes,
        nested_scales;    /* elements: exactly those of the
                                                   shape */
    int64_t nested_table; /* 256 */
    /* Dtypes of the parts. Anything but f32, which is 0, is an NBL_ERROR_DTYPE:
     * frameworks that cast whole models also cast scales. */
    nbl_dtype scales_dtype, nested_scales_dtype, nested_table_dtype;
} nbl_weight_parts;

typedef struct nbl_weight {
    nbl_format format;
    nbl_dtype dtype; /* dense: of the elements; else: of the original weight */
    int rank;        /* 1 ... NBL_MAX_RANK */
    int64_t shape[NBL_MAX_RANK];
    const void *data;
    int64_t block; /* nf4, fp4: a power of two, 32 ... 4096; mxfp4: 32 */
    const float *scales;
    const uint8_t *scale_codes;
    const float *nested_scales; /* non-NULL: scales are double-quantized */
    const float *nested_table;  /* [256] */
    int64_t nested_block;       /* >= 1; 256 in every known checkpoint */
    float nested_offset;
    /* f32 [1], read in the memory where the context computes, when it computes;
     * instead of nested_offset. NULL: nested_offset. */
    const float *nested_offset_at;
    nbl_weight_parts given; /* all 0: trust the pointers */
    /* A stack of matrices that lie apart, for operators that take stacks; see
     * above. NULL: the weight is in one piece. */
    const struct nbl_weight *members;
    int64_t member_count;
} nbl_weight;

/* ---- 5. Checkpoints ---------------------------------------------------------
 *
 * Folders of weights on disk: read them, check them, quantize and dequantize
 * them, compare two of them.
 *
 * A checkpoint is a folder in Hugging Face layout (config.json, one or more
 * .safetensors files, an index when there are several) or one .safetensors
 * file. Its tensors are listed by logical weight: a packed weight, its scales,
 * its tables and its state are one entry.
 */
typedef struct nbl_checkpoint nbl_checkpoint;

typedef enum nbl_open_mode {
    NBL_OPEN_STRICT,  /* the first problem is an error */
    NBL_OPEN_TOLERANT /* problems are listed, where reading can go on */
} nbl_open_mode;

/* Opens a folder or file. Files are mapped, not read. */
NBL_API nbl_status nbl_checkpoint_open(nbl_context *ctx, const char *path,
                                       nbl_open_mode mode,
                                       nbl_checkpoint **checkpoint);
NBL_API void nbl_checkpoint_close(nbl_checkpoint *checkpoint);

typedef struct nbl_checkpoint_summary {
    const char *architecture;  /* of config.json, or NULL */
    int64_t tensors;           /* logical weights */
    int64_t parameters;        /* values of all logical weights */
    uint64_t bytes;            /* of all tensors on disk */
    const char *quantization;  /* "nf4", "int8", "mxfp4", "gptq", ... as files
                                  tell it, known or not; NULL: none */
    int64_t block;             /* values per scale; 0: none, or several sizes */
    bool nested;               /* scales are double-quantized */
    const char *compute_dtype; /* as config.json spells it, or NULL */
    int64_t skipped;           /* modules whose matrices were not quantized */
    int64_t problems;          /* always 0 with NBL_OPEN_STRICT */
} nbl_checkpoint_summary;
NBL_API const nbl_checkpoint_summary *
nbl_checkpoint_get_summary(const nbl_checkpoint *checkpoint);

typedef struct nbl_tensor_info {
    const char *name;
    const char *file; /* its name within the folder */
    int rank;
    int64_t shape[NBL_MAX_RANK]; /* logical, also of packed weights */
    uint64_t bytes;              /* on disk, with scales, tables and state */
    nbl_weight weight;           /* as stored */
    bool transposed; /* weight.shape has the last two dimensions of `shape`
                        exchanged (experts in MXFP4) */
} nbl_tensor_info;
/* In the order of files and, within a file, of data. */
NBL_API const nbl_tensor_info *
nbl_checkpoint_get_tensor(const nbl_checkpoint *checkpoint, int64_t index);
/* A problem, as an error message would say it. */
NBL_API const char *nbl_checkpoint_get_problem(const nbl_checkpoint *checkpoint,
                                               int64_t index);
/* The name of a module whose matrix was not quantized. */
NBL_API const char *nbl_checkpoint_get_skipped(const nbl_checkpoint *checkpoint,
                                               int64_t index);
/* Reads every value, packed weights dequantized, and looks for NaN and
 * infinities. NBL_OPEN_STRICT: the first tensor with one is an error.
 * NBL_OPEN_TOLERANT: each such tensor becomes a problem. Both name the tensor,
 * the number of such values, and the index of the first. Reports progress. */
NBL_API nbl_status nbl_checkpoint_check_values(nbl_checkpoint *checkpoint);

typedef struct nbl_quantize_options {
    size_t struct_size;
    nbl_format format; /* nf4, fp4, int8 or mxfp4; dense is an error */
    int64_t block;     /* nf4, fp4: values per scale, a power of two, 32 ...
                          4096; 0: 64; not used by the other formats */
    nbl_nested nested; /* nf4, fp4; an error with the other formats */
    /* Only for checkpoints; nbl_quantize (section 13) does not read them. */
    const char *skip; /* a regular expression (PCRE2): weights with a match in
                         their name stay as they are; NULL: none; an error with
                         mxfp4 */
    nbl_compute_dtype compute_dtype; /* nf4, fp4: what config.json tells readers
                                        to compute in; default: f32 */
    uint64_t shard_size;   /* bytes per file of weights; 0: 5 * 10^9 */
    bool allow_non_finite; /* NaN and infinities in a weight are a warning; else
                              they are an error */
} nbl_quantize_options;

/* What a conversion has written. */
typedef struct nbl_convert_report {
    size_t struct_size;
    int64_t tensors;    /* logical weights */
    int64_t converted;  /* of them, those that changed their format */
    uint64_t bytes_in;  /* of the weight files that were read */
    uint64_t bytes_out; /* of the weight files that were written */
    int files;          /* weight files that were written */
    int64_t non_finite; /* NaN and infinities in weights that were written */
} nbl_convert_report;

/* Writes folder `out` from folder `in`, with the matrices quantized that
 * transformers would quantize. `out` must not exist. It appears complete or
 * not at all. `in` is only read. `options` is needed: format has no default.
 * `report` may be NULL. Reports progress. */
NBL_API nbl_status nbl_checkpoint_quantize(nbl_context *ctx, const char *in,
                                           const char *out,
                                           const nbl_quantize_options *options,
                                           nbl_convert_report *report);

typedef struct nbl_dequantize_options {
    size_t struct_size;
    nbl_compute_dtype dtype; /* of the dequantized weights; default: f32 */
    uint64_t shard_size;     /* bytes per file of weights; 0: 5 * 10^9 */
} nbl_dequantize_options;

/* The way back, by the same rules: packed weights become dense, bit for bit as
 * bitsandbytes and transformers dequantize them. All other tensors keep their
 * bytes. A warning in the log names each tensor with NaN or infinities.
 * `options` is needed. */
NBL_API nbl_status nbl_checkpoint_dequantize(
    nbl_context *ctx, const char *in, const char *out,
    const nbl_dequantize_options *options, nbl_convert_report *report);

/* The comparison of two checkpoints, weight by weight, by logical value. */
typedef struct nbl_diff nbl_diff;

typedef struct nbl_tensor_diff {
    const char *name;
    bool same_shape; /* false: the numbers below are NaN */
    bool equal;      /* bit for bit, after dequantizing to f32 */
    double max_abs;  /* max |a - b| */
    double rel_norm; /* |a - b| / |b| */
    double cosine;   /* of the angle between a and b */
} nbl_tensor_diff;

NBL_API nbl_status nbl_checkpoint_diff(nbl_context *ctx, const char *a,
                                       const char *b, nbl_diff **diff);
NBL_API void nbl_diff_free(nbl_diff *diff);
/* Weights of both checkpoints, by name. */
NBL_API const nbl_tensor_diff *nbl_diff_get_tensor(const nbl_diff *diff,
                                                   int64_t index);
/* Names of weights that only b has, sorted. */
NBL_API const char *nbl_diff_get_missing_in_a(const nbl_diff *diff,
                                              int64_t index);
/* Names of weights that only a has, sorted. */
NBL_API const char *nbl_diff_get_missing_in_b(const nbl_diff *diff,
                                              int64_t index);
/* True if nothing is missing and every weight is equal. */
NBL_API bool nbl_diff_equal(const nbl_diff *diff);
/* True if nothing is missing, shapes agree and every rel_norm <= tolerance. */
NBL_API bool nbl_diff_within(const nbl_diff *diff, double tolerance);

/* ---- 6. Models --------------------------------------------------------------
 *
 * A model that computes: logits, gradients, generated tokens, and how well it
 * predicts a text.
 *
 * A model is a Hugging Face folder (16-bit, or packed as in section 4) or a
 * .gguf file of a known architecture (docs/ARCH-HOWTO.md lists them). A
 * configuration key that is not understood is an error with the key's name. So
 * are tensors that are missing, left over or of another shape.
 *
 *     nbl_model *model;
 *     nbl_tokenizer *tokenizer;
 *     nbl_ids prompt;
 *     int32_t room[64];
 *     nbl_generated answer = {.ids = {room, 0}};
 *     nbl_generate_options how = {NBL_OPTIONS(nbl_generate_options),
 *                                 .max_tokens = 64};
 *     nbl_model_open(ctx, "Llama-3.2-1B-nf4", NULL, &model);
 *     nbl_model_tokenizer(model, &tokenizer);
 *     nbl_tokenizer_encode(tokenizer, "The sea", 7, true, &prompt);
 *     nbl_model_generate(model, &prompt, 1, &how, &answer);
 */
typedef struct nbl_model nbl_model;

typedef struct nbl_model_options {
    size_t struct_size;
    nbl_compute_dtype dtype; /* of the computation; default: the checkpoint's */
    nbl_format load;     /* the storage of linear layers in memory: weights are
                            quantized on arrival; dense: as they are stored */
    bool load_nested;    /* with `load` nf4 or fp4: NBL_NESTED_GRID */
    const char *adapter; /* a folder as PEFT saves it, applied without merging;
                            NULL: none */
    bool plan_only;      /* for nbl_model_make_plan alone: weights are not
                            converted, and what would compute is an
                            NBL_ERROR_ARGUMENT */
} nbl_model_options;

/* Opens a model. `options` may be NULL. Weights stay in their storage format.
 * They are mapped, not copied, unless `load` converts them. On a CUDA device
 * they are uploaded when the model first computes. */
NBL_API nbl_status nbl_model_open(nbl_context *ctx, const char *path,
                                  const nbl_model_options *options,
                                  nbl_model **model);
NBL_API void nbl_model_close(nbl_model *model);
/* Tokens that the model has logits for. */
NBL_API int64_t nbl_model_vocabulary(const nbl_model *model);
/* Tokens of the longest sequence that the model was made for. */
NBL_API int64_t nbl_model_max_positions(const nbl_model *model);

/* Computes the logits of every position. logits[i] is the caller's memory for
 * sequences[i]: f32 [tokens, vocabulary]. count >= 1. A sequence has at least
 * one id, and ids are below nbl_model_vocabulary. */
NBL_API nbl_status nbl_model_logits(nbl_model *model, const nbl_ids *sequences,
                                    int64_t count, float *const *logits);

/* Receives the gradient of one trained tensor: f32, in host memory, valid
 * during the call. The name is the one in PEFT's file without
 * "base_model.model.". A status other than NBL_OK ends the work and is
 * returned. */
typedef nbl_status (*nbl_gradient_fn)(void *user, const char *name,
                                      const nbl_tensor *gradient);

/* One forward and backward pass. Computes the mean loss over all trained
 * tokens, in nats, and the gradients of the adapter and of the modules_to_save
 * in it. A model without an adapter is an NBL_ERROR_ARGUMENT. labels[i] has one
 * label per token of sequences[i]. A label is what the model should predict
 * before that token. Label -100 is not trained, and neither is a first one.
 *
 *   pack      true: all sequences in one pass; false: one pass for each. The
 *             results agree within rounding.
 *   dropout   false: none; true: the adapter's lora_dropout, with masks of seed
 *             0. Masks depend on `pack`.
 *   fn, user  receives each gradient
 *   loss      result; needed
 *   trained   result: trained tokens; needed
 */
NBL_API nbl_status nbl_model_gradients(nbl_model *model,
                                       const nbl_ids *sequences,
                                       const nbl_ids *labels, int64_t count,
                                       bool pack, bool dropout,
                                       nbl_gradient_fn fn, void *user,
                                       double *loss, int64_t *trained);

/* The same into a .safetensors file: tensors logits.0, logits.1, ... The file
 * appears complete or not at all. An existing file is an NBL_ERROR_EXISTS,
 * found before the work. With `force` an earlier result of these functions is
 * replaced: a file whose __metadata__ says "nibble": "result". Other files,
 * links, devices, FIFOs, folders, and files that the context has open are never
 * replaced. */
NBL_API nbl_status nbl_model_write_logits(nbl_model *model,
                                          const nbl_ids *sequences,
                                          int64_t count, const char *path,
                                          bool force);
/* The same for gradients, under the names of PEFT's file. */
NBL_API nbl_status nbl_model_write_gradients(
    nbl_model *model, const nbl_ids *sequences, const nbl_ids *labels,
    int64_t count, bool pack, bool dropout, const char *path, bool force,
    double *loss, int64_t *trained);
/* NBL_OK if the two functions above may write to `path`. For a program that
 * wants to know before it loads a model. */
NBL_API nbl_status nbl_result_check(nbl_context *ctx, const char *path,
                                    bool force);

/* How tokens are chosen. Limits apply in Hugging Face's order: repetition
 * penalty, temperature, top_k, top_p, min_p. */
typedef struct nbl_generate_options {
    size_t struct_size;
    int64_t max_tokens; /* per sequence, 1 ... 2^24; has no default */
    float temperature;  /* divides logits; <= 0: the likeliest token */
    int64_t top_k;      /* only the k likeliest tokens; 0: all */
    float top_p; /* only the likeliest tokens, until their probabilities sum up
                    to this; outside (0, 1): all */
    float min_p; /* only tokens with this part of the highest probability; <= 0:
                    all */
    float repetition_penalty; /* of tokens already in the sequence;
                                 <= 0 or 1: none */
    uint64_t seed;            /* of the draws; not used at temperature 0 */
    const int32_t *ends; /* [end_count]: tokens that end a sequence and are no
                            part of it; NULL: none */
    int64_t end_count;
    /* Called with every new token, from the calling thread. `sequence` is its
     * index. Returns true to end that sequence. Or NULL. */
    bool (*token)(void *user, int64_t sequence, int32_t id);
    void *user; /* first argument of `token` */
} nbl_generate_options;

/* A sequence that was generated. An element of the caller's array. */
typedef struct nbl_generated {
    nbl_ids ids;  /* new tokens. The caller sets ids.ids, with room for
                     max_tokens, and keeps that memory. */
    bool stopped; /* by an end token or by `token`; false: by max_tokens */
} nbl_generated;

/* Continues `count` prompts, >= 1, of any lengths >= 1, in one batch. A
 * sequence's tokens do not depend on the other sequences. Only random draws
 * depend on its index. `options` is needed: max_tokens has no default.
 * results[i] belongs to prompts[i]. */
NBL_API nbl_status nbl_model_generate(nbl_model *model, const nbl_ids *prompts,
                                      int64_t count,
                                      const nbl_generate_options *options,
                                      nbl_generated *results);

typedef struct nbl_evaluate_options {
    size_t struct_size;
    /* Called after every pass, from the calling thread, with the number of
     * tokens done and in all. Returns true to stop with NBL_ERROR_CANCELLED. Or
     * NULL. */
    bool (*progress)(void *user, int64_t done, int64_t total);
    void *user; /* first argument of `progress` */
    /* One list per sequence, and as long. A token counts if the label at its
     * own index is not -100; the label is what should have been predicted. A
     * first token never counts. NULL: every token but the first counts. */
    const nbl_ids *labels;
} nbl_evaluate_options;

/* How well a model predicts. The mean loss is loss_sum / tokens, the perplexity
 * exp(loss_sum / tokens), the accuracy hits / tokens. */
typedef struct nbl_evaluation {
    size_t struct_size;
    double loss_sum; /* -log(probability) of what should come, in nats */
    int64_t tokens;  /* scored tokens */
    int64_t hits;    /* tokens that the model holds likeliest; of equally likely
                        ones the one with the lowest id */
} nbl_evaluation;

/* Evaluates the predictions of the tokens of `count` sequences, >= 1. Short
 * sequences share a pass. Logits exist for a few rows at a time. `options` may
 * be NULL. A loss that is not finite is an error. */
NBL_API nbl_status nbl_model_evaluate(nbl_model *model,
                                      const nbl_ids *sequences, int64_t count,
                                      const nbl_evaluate_options *options,
                                      nbl_evaluation *result);

/* ---- 7. Plans ---------------------------------------------------------------
 *
 * What computing takes, before anything is computed: memory, operators, casts.
 * The memory that is planned is the memory that is used, because a step
 * allocates nothing.
 *
 * A plan is a training step if the model has an adapter, else generation: a
 * prompt, and the cache for its tokens. nbl_run_make_plan (section 10) plans
 * the step of a run.
 *
 *     nbl_model_plan *plan;
 *     const nbl_planned_op *op;
 *     nbl_model_make_plan(model, 2048, 1, 0, &plan);
 *     for (int64_t i = 0; (op = nbl_model_plan_get_op(plan, i)); i++)
 *         printf("%s %s %g\n", op->op, op->impl, op->flops);
 *     nbl_model_plan_free(plan);
 */
typedef struct nbl_model_plan nbl_model_plan;

/* Plans `batch` sequences of `tokens` tokens each; both >= 1. `memory`: bytes
 * that everything must keep within, weights included; 0: no limit. As little
 * as possible is recomputed for it. Too little memory is an NBL_ERROR_MEMORY,
 * and the message names the smallest amount that would do. The plan belongs to
 * the caller. It does not need the model any more, but the context. */
NBL_API nbl_status nbl_model_make_plan(nbl_model *model, int64_t tokens,
                                       int64_t batch, uint64_t memory,
                                       nbl_model_plan **plan);
NBL_API void nbl_model_plan_free(nbl_model_plan *plan);

/* A purpose of memory. */
typedef enum nbl_plan_arena {
    NBL_PLAN_ARENA_WEIGHTS,   /* "weights": as kept; mapped files included */
    NBL_PLAN_ARENA_ADAPTERS,  /* "adapters": norms, biases, adapters, and the
                                 gradients of what is trained */
    NBL_PLAN_ARENA_OPTIMIZER, /* "optimizer": moments of AdamW */
    NBL_PLAN_ARENA_SAVED,     /* "saved": lives from forward to backward */
    NBL_PLAN_ARENA_SCRATCH,   /* "scratch": everything else of a step */
    NBL_PLAN_ARENA_KV,        /* "kv": keys and values of generation */
    NBL_PLAN_ARENA_DEVICE     /* "device": context, libraries, kernels and
                                 workspace of a CUDA device */
} nbl_plan_arena;
NBL_API const char *nbl_plan_arena_name(nbl_plan_arena arena);
NBL_API bool nbl_plan_arena_parse(const char *name, nbl_plan_arena *arena);

/* When an operator runs. */
typedef enum nbl_plan_pass {
    NBL_PLAN_PASS_PREPARE,   /* "prepare": when adapters have changed */
    NBL_PLAN_PASS_FORWARD,   /* "forward" */
    NBL_PLAN_PASS_RECOMPUTE, /* "again": forward once more, for backward */
    NBL_PLAN_PASS_BACKWARD,  /* "backward" */
    NBL_PLAN_PASS_DECODE     /* "decode": one token after the prompt */
} nbl_plan_pass;
NBL_API const char *nbl_plan_pass_name(nbl_plan_pass pass);
NBL_API bool nbl_plan_pass_parse(const char *name, nbl_plan_pass *pass);

/* How much a training step computes twice to save memory. */
typedef enum nbl_plan_recompute {
    NBL_PLAN_RECOMPUTE_NONE,  /* "none" */
    NBL_PLAN_RECOMPUTE_CHEAP, /* "cheap": norms, rotations, activations */
    NBL_PLAN_RECOMPUTE_LAYERS /* "layers": whole layers */
} nbl_plan_recompute;
NBL_API const char *nbl_plan_recompute_name(nbl_plan_recompute recompute);
NBL_API bool nbl_plan_recompute_parse(const char *name,
                                      nbl_plan_recompute *recompute);

/* Bytes by purpose. */
typedef struct nbl_plan_arenas {
    uint64_t weights, adapters, optimizer, saved, scratch, kv;
    uint64_t device; /* 0 on the CPU */
} nbl_plan_arenas;

typedef struct nbl_model_plan_summary {
    nbl_plan_arenas arenas;
    uint64_t total_bytes;                      /* their sum */
    int64_t op_count, cast_count, value_count; /* lengths of the lists below */
    nbl_plan_recompute recompute;
    int64_t recomputed_layers; /* of `layers` */
    int64_t layers;            /* of the model */
    double recompute_flops;    /* of what is computed again */
    int64_t longest_sequence;  /* tokens per sequence that keep within `memory`;
                                  without a limit nbl_model_max_positions */
    uint64_t smallest_memory;  /* bytes for what was asked, with all the
                                  recomputation there is */
    /* Only on a CUDA device, and else 0: */
    int64_t dequantized_weights; /* packed weights that training within a budget
                                    dequantizes once, not in every step */
    uint64_t dequantized_bytes;  /* their part of arenas.weights */
    uint64_t host_bytes; /* of host memory, not in the total: layers' inputs, an
                            embedding that stays there */
} nbl_model_plan_summary;
NBL_API const nbl_model_plan_summary *
nbl_model_plan_get_summary(const nbl_model_plan *plan);

/* Operators of a step that share name, implementation and pass. */
typedef struct nbl_planned_op {
    const char *op;   /* "linear"; see docs/OPERATORS.md */
    const char *impl; /* the implementation that was chosen */
    nbl_plan_pass pass;
    int64_t count;
    double flops; /* of all of them */
    double bytes; /* read and written, of all of them */
} nbl_planned_op;
NBL_API const nbl_planned_op *nbl_model_plan_get_op(const nbl_model_plan *plan,
                                                    int64_t index);

/* A conversion between dtypes. Dequantizing is not one. */
typedef struct nbl_planned_cast {
    const char *at; /* the name of the tensor */
    nbl_dtype from, to;
    const char *why; /* a sentence */
} nbl_planned_cast;
/* All casts there are. */
NBL_API const nbl_planned_cast *
nbl_model_plan_get_cast(const nbl_model_plan *plan, int64_t index);

/* Values of a step, or scratch of its operators, that share arena, dtype, shape
 * and size. */
typedef struct nbl_planned_value {
    const char *name; /* of the first; of scratch: the operator's */
    int64_t count;
    nbl_plan_arena arena;
    nbl_dtype dtype; /* not of scratch */
    int rank;        /* 0: scratch, which has neither dtype nor shape */
    int64_t shape[NBL_MAX_RANK];
    uint64_t bytes; /* of one */
} nbl_planned_value;
/* The largest first. All but weights. */
NBL_API const nbl_planned_value *
nbl_model_plan_get_value(const nbl_model_plan *plan, int64_t index);

/* ---- 8. Tokens --------------------------------------------------------------
 *
 * A tokenizer turns text into the ids that a model reads, and ids into text. It
 * gives the ids that the tokenizers library gives for the same tokenizer.json.
 *
 *     nbl_tokenizer *tok;
 *     nbl_ids ids;
 *     nbl_tokenizer_open(ctx, "Llama-3.2-1B", &tok);
 *     nbl_tokenizer_encode(tok, "Hello", 5, true, &ids);
 *     ...
 *     nbl_ids_free(ctx, &ids);
 *     nbl_tokenizer_close(tok);
 */
typedef struct nbl_tokenizer nbl_tokenizer;

/* `path`: a folder with a tokenizer.json, such a file, or a .gguf file with a
 * vocabulary. A folder may have tekken.json, tokenizer.model, or vocab.json with
 * merges.txt instead, read as transformers does (docs/FORMATS.md). What would change ids is done, or is an error with its name. */
NBL_API nbl_status nbl_tokenizer_open(nbl_context *ctx, const char *path,
                                      nbl_tokenizer **tokenizer);
/* The same from the text of a tokenizer.json, `size` bytes. `name` begins error
 * messages. */
NBL_API nbl_status nbl_tokenizer_parse(nbl_context *ctx, const char *name,
                                       const char *text, size_t size,
                                       nbl_tokenizer **tokenizer);
/* The tokenizer of a model: that of its adapter's folder, else its own. An
 * adapter's tokenizer.json is not used if it has more tokens than both the
 * model and the model's tokenizer; the log (NBL_LOG_WARNING) says so. It is the
 * caller's, to be closed. */
NBL_API nbl_status nbl_model_tokenizer(nbl_model *model,
                                       nbl_tokenizer **tokenizer);
NBL_API void nbl_tokenizer_close(nbl_tokenizer *tokenizer);

/* The ids of one text of `size` bytes. Nothing is cut and nothing is padded:
 * see nbl_tokenizer_set_truncation_and_padding. Special tokens that the text
 * itself spells are found in any case. Text that is not UTF-8 is an NBL_ERROR_FORMAT.
 *
 *   special   true: with the tokens that the model puts around a text, such as
 *             <s>
 *   ids       result: the caller's, to be freed with nbl_ids_free
 */
NBL_API nbl_status nbl_tokenizer_encode(nbl_tokenizer *tokenizer,
                                        const char *text, size_t size,
                                        bool special, nbl_ids *ids);
/* The same for `count` texts, on all threads of the context. lists[i] is for
 * texts[i]. After a failure no list holds memory. */
NBL_API nbl_status nbl_tokenizer_encode_batch(nbl_tokenizer *tokenizer,
                                              int64_t count,
                                              const nbl_string *texts,
                                              bool special, nbl_ids *lists);
/* Frees the memory of a list and makes it empty. `ids` may be NULL. */
NBL_API void nbl_ids_free(nbl_context *ctx, nbl_ids *ids);
/* Whether encoding applies `truncation` and `padding` of tokenizer.json, as the
 * tokenizers library does. Off after opening: transformers switches both off
 * for the input of models. */
NBL_API void nbl_tokenizer_set_truncation_and_padding(nbl_tokenizer *tokenizer,
                                                      bool on);

/* The text of `count` ids. Ids without a token are left out. Bytes that are no
 * character become U+FFFD.
 *
 *   skip_special   true: special tokens are left out
 *   text           result: `size` bytes of UTF-8 and a zero byte; the caller's,
 *                  to be freed with nbl_text_free
 *   size           result
 */
NBL_API nbl_status nbl_tokenizer_decode(nbl_tokenizer *tokenizer,
                                        const int32_t *ids, int64_t count,
                                        bool skip_special, char **text,
                                        size_t *size);
/* `size` as nbl_tokenizer_decode returned it. `text` may be NULL. */
NBL_API void nbl_text_free(nbl_context *ctx, char *text, size_t size);

/* The id of the token with this text; -1: there is none. */
NBL_API int32_t nbl_tokenizer_find(const nbl_tokenizer *tokenizer,
                                   const char *text, size_t size);
/* The text of a token; {NULL, 0}: there is no such token. */
NBL_API nbl_string nbl_tokenizer_token(const nbl_tokenizer *tokenizer,
                                       int32_t id);
/* How many tokens there are. */
NBL_API int64_t nbl_tokenizer_size(const nbl_tokenizer *tokenizer);

/* Text while ids come one by one, as from nbl_generate_options.token. Each call
 * hands out what is complete, never a part of a character. */
typedef struct nbl_text_stream nbl_text_stream;
/* The tokenizer is borrowed until the close. `skip_special` as in
 * nbl_tokenizer_decode. */
NBL_API nbl_status nbl_text_stream_open(nbl_tokenizer *tokenizer,
                                        bool skip_special,
                                        nbl_text_stream **stream);
/* Adds an id. *text is what is new, valid until the next call with this stream.
 * Its size is 0 when more ids are needed. */
NBL_API nbl_status nbl_text_stream_push(nbl_text_stream *stream, int32_t id,
                                        nbl_string *text);
/* *text is what was held back. The stream is then empty, as after opening. */
NBL_API nbl_status nbl_text_stream_finish(nbl_text_stream *stream,
                                          nbl_string *text);
NBL_API void nbl_text_stream_close(nbl_text_stream *stream);

/* ---- 9. Chats ---------------------------------------------------------------
 *
 * From messages to the text that a model was trained on, and from generated
 * tokens to an answer: templates, and where an answer ends.
 *
 * A chat template is a program in the language of jinja2. The library runs it
 * in a sandbox of its own and gives the text that transformers gives.
 * docs/TEMPLATES.md says what is supported. A template is hostile: its steps,
 * memory, nesting and output are bounded, and it reaches nothing but the values
 * it is handed and the clock.
 *
 *     nbl_chat_template *t;
 *     nbl_rendering *r;
 *     nbl_chat chat = {.messages = {json, size}, .generation_prompt = true};
 *     nbl_chat_template_open(ctx, "Llama-3.2-1B", NULL, &t);
 *     nbl_chat_template_render(t, &chat, &r);
 *     nbl_string text = nbl_rendering_text(r);
 *     ...
 *     nbl_rendering_free(r);
 *     nbl_chat_template_close(t);
 */
typedef struct nbl_chat_template nbl_chat_template;
typedef struct nbl_rendering nbl_rendering;

/* Opens the templates and special tokens of a model. They are in
 * chat_template.jinja, else in tokenizer_config.json (one template, or a list
 * with names), else in chat_template.json, or in a .gguf file. `file`: a
 * template that is used instead, or the name of a built-in one if there is no
 * such file ("llama3"; docs/TEMPLATES.md lists them); or NULL. A model without
 * templates opens: rendering then fails. */
NBL_API nbl_status nbl_chat_template_open(nbl_context *ctx, const char *model,
                                          const char *file,
                                          nbl_chat_template **t);
/* The same for a model with an adapter. Special tokens of the adapter's folder
 * replace the model's. So do its templates, if it has any; the log
 * (NBL_LOG_INFO) then names the file. `adapter` may be NULL. */
NBL_API nbl_status nbl_chat_template_open_adapted(nbl_context *ctx,
                                                  const char *model,
                                                  const char *adapter,
                                                  const char *file,
                                                  nbl_chat_template **t);
/* One template from its text, without a model and without special tokens.
 * `name` begins error messages. */
NBL_API nbl_status nbl_chat_template_parse(nbl_context *ctx, const char *name,
                                           nbl_string text,
                                           nbl_chat_template **t);
/* How many templates there are; 0: rendering will fail. */
NBL_API int64_t nbl_chat_template_count(const nbl_chat_template *t);
NBL_API void nbl_chat_template_close(nbl_chat_template *t);

/* A variable of a template. */
typedef struct nbl_chat_variable {
    const char *name;
    nbl_string value; /* JSON if it parses, else the text itself */
} nbl_chat_variable;

/* What is rendered. JSON is read as Python reads it. All fields but `messages`
 * may be zero. */
typedef struct nbl_chat {
    nbl_string messages;       /* JSON: a list of objects */
    nbl_string tools;          /* JSON: a list of objects; text NULL: none */
    const char *messages_name; /* begins errors about `messages`; or NULL */
    const char *tools_name;    /* begins errors about `tools`; or NULL */
    const nbl_chat_variable *variables; /* [variable_count]; they replace
                                           special tokens, and the last of two
                                           with one name counts */
    int64_t variable_count;
    bool generation_prompt; /* add_generation_prompt: the text ends where the
                               assistant's answer begins */
} nbl_chat;

/* Renders a chat. Fails if the template does not parse, if it raises (the
 * message holds its own), and if it reaches a bound. The rendering is the
 * caller's. */
NBL_API nbl_status nbl_chat_template_render(nbl_chat_template *t,
                                            const nbl_chat *chat,
                                            nbl_rendering **rendering);
/* The same from one JSON object. All its keys are optional: "messages",
 * "tools", "generation_prompt", "set" (an object of variables), "template" (a
 * template of its own). The call fails if `line` is not such an object, or if
 * memory runs out. Later failures are told by nbl_rendering_error. `where`
 * begins error messages. */
NBL_API nbl_status nbl_chat_template_render_line(nbl_chat_template *t,
                                                 const char *where,
                                                 nbl_string line,
                                                 nbl_rendering **rendering);
/* The text, with a zero byte after it. */
NBL_API nbl_string nbl_rendering_text(const nbl_rendering *rendering);
/* A part of the text that {% generation %} covers: [*start, *end) in
 * characters. In the order in which the blocks ended. */
NBL_API bool nbl_rendering_span(const nbl_rendering *rendering, int64_t index,
                                int64_t *start, int64_t *end);
/* Why there is no text; {NULL, 0}: there is one. */
NBL_API nbl_string nbl_rendering_error(const nbl_rendering *rendering);
NBL_API void nbl_rendering_free(nbl_rendering *rendering);

/* The tokens that end a sequence: eos_token_id of generation_config.json (that
 * of the adapter's folder, else the model's), else of config.json; of a .gguf
 * file eos, eot and eom. Writes at most `room` of them to `ids` and returns
 * how many there are. */
NBL_API int64_t nbl_model_eos_ids(const nbl_model *model, int32_t *ids,
                                  int64_t room);
/* The eos_token of tokenizer_config.json in the adapter's folder, as an id of
 * `tokenizer`; -1: there is none. */
NBL_API int32_t nbl_model_adapter_eos_id(const nbl_model *model,
                                         const nbl_tokenizer *tokenizer);

/* Finds stop strings in a text that comes in pieces. One matcher serves one
 * sequence. A stop string may lie across any number of pieces: what could be
 * the beginning of one is held back. The first string to be complete counts; of
 * several that end at the same byte, the longest.
 *
 *     nbl_stop_matcher_push(m, piece, &shown, &stopped);
 *     fwrite(shown.text, 1, shown.size, stdout);
 *     if (stopped) ...end the sequence...
 */
typedef struct nbl_stop_matcher nbl_stop_matcher;

/* `strings`: 0 ... 65536 of them, none empty, all UTF-8. They are copied. */
NBL_API nbl_status nbl_stop_matcher_open(nbl_context *ctx,
                                         const nbl_string *strings,
                                         int64_t count,
                                         nbl_stop_matcher **matcher);
/* Takes the next piece.
 *
 *   shown     result: text that is part of no stop string, and not behind one;
 *             valid until the next call with this matcher
 *   stopped   result: a stop string was found; later pieces are ignored
 */
NBL_API nbl_status nbl_stop_matcher_push(nbl_stop_matcher *matcher,
                                         nbl_string text, nbl_string *shown,
                                         bool *stopped);
/* What was held back and is text. Valid until the next call. The matcher is
 * then as after opening. */
NBL_API nbl_string nbl_stop_matcher_finish(nbl_stop_matcher *matcher);
NBL_API void nbl_stop_matcher_close(nbl_stop_matcher *matcher);

/* Turns chats into tokens as training does (docs/DATA.md, type chat_template),
 * for programs that judge answers: ids, and which of them are an assistant's
 * (roles_to_train: [assistant]).
 *
 *     nbl_chat_encoder_open(model, tokenizer, chat_template, &e);
 *     nbl_chat_encoder_row(e, "chats.jsonl:1", line, &ids, &labels);
 *     options.labels = &labels;
 *     nbl_model_evaluate(model, &ids, 1, &options, &found);
 *     nbl_ids_free(ctx, &ids), nbl_ids_free(ctx, &labels);
 *     nbl_chat_encoder_close(e);
 */
typedef struct nbl_chat_encoder nbl_chat_encoder;

/* Borrows the three until the close. A `chat_template` whose
 * nbl_chat_template_count is 0 is an NBL_ERROR_NOT_FOUND. */
NBL_API nbl_status nbl_chat_encoder_open(nbl_model *model,
                                         nbl_tokenizer *tokenizer,
                                         nbl_chat_template *chat_template,
                                         nbl_chat_encoder **encoder);
/* Encodes one row. After a failure neither list holds memory.
 *
 *   where    begins error messages: "chats.jsonl:1"
 *   row      a JSON object with "messages", and "tools" or not
 *   ids      result: the caller's
 *   labels   result: the caller's. labels->ids[i] is ids->ids[i], or -100 where
 *            nothing is trained.
 */
NBL_API nbl_status nbl_chat_encoder_row(nbl_chat_encoder *encoder,
                                        const char *where, nbl_string row,
                                        nbl_ids *ids, nbl_ids *labels);
NBL_API void nbl_chat_encoder_close(nbl_chat_encoder *encoder);

/* ---- 10. Training runs ------------------------------------------------------
 *
 * Fine-tuning, from a YAML file with axolotl's key names. docs/CONFIG.md lists
 * the keys. Reading is strict: an unknown key, a key that is given twice, keys
 * that contradict each other, and a value of a wrong type are errors with file
 * and line. Keys that only steer other engines are accepted. Each of them gets
 * a line in the log (NBL_LOG_INFO), unless it is empty.
 *
 *     nbl_run *run;
 *     nbl_run_open(ctx, "run.yml", NULL, 0, &run);
 *     if (nbl_run_get_info(run)->device == NBL_DEVICE_CUDA)
 *         nbl_context_use_cuda(ctx, 0);
 *     nbl_run_train(run, NULL, NULL);
 *     nbl_run_close(run);
 */
typedef struct nbl_run nbl_run;

/* Reads and checks a configuration. Neither the model nor the data is opened.
 * Relative paths in the file are relative to the working directory.
 *
 *   overrides   [count] texts "key=value" that replace what the file says, in
 *               order; NULL if count is 0. A value is YAML. "null" or nothing:
 *               as if the key were not given. A key may be a path such as
 *               "datasets.0.path".
 */
NBL_API nbl_status nbl_run_open(nbl_context *ctx, const char *path,
                                const char *const *overrides, int64_t count,
                                nbl_run **run);
NBL_API void nbl_run_close(nbl_run *run);

typedef struct nbl_run_info {
    const char *base_model, *output_dir;
    bool adapter;   /* an adapter is trained; false: the whole model */
    bool report;    /* report.html is written */
    bool mergeable; /* an adapter whose base is a folder, not a .gguf file */
    int threads; /* that the file asks for; 0: it does not. The caller follows
                    it with nbl_context_set_threads, or does not. */
    nbl_device_kind device; /* what the run is for, `device: auto` resolved. The
                               caller follows it with nbl_context_use_cuda, or
                               does not. */
} nbl_run_info;
NBL_API const nbl_run_info *nbl_run_get_info(const nbl_run *run);

/* What a run trains on; docs/DATA.md says how rows become tokens. An example is
 * a sequence of at most sequence_len tokens. */
typedef struct nbl_data_summary {
    size_t struct_size;
    int64_t examples;       /* those for validation included */
    int64_t tokens;         /* of all examples */
    int64_t trained_tokens; /* that enter the loss: tokens with a label, except
                               the first token of each example */
    int64_t truncated;      /* examples that were cut to sequence_len */
    int64_t validation;     /* examples held back by val_set_size */
    int64_t dropped;        /* rows that are no example: the sum of the next */
    int64_t too_long, bad, untrained, too_short, duplicates;
} nbl_data_summary;

/* Reads every row of the data once, on all threads. Opens nothing of the model
 * but its tokenizer, its templates and config.json. A later call returns the
 * same numbers without reading. A row that does not fit its type is an error
 * with file and line, unless skip_bad_rows is set. */
NBL_API nbl_status nbl_run_data(nbl_run *run, nbl_data_summary *summary);

/* Text of consecutive tokens that are all trained, or all not. */
typedef struct nbl_preview_part {
    nbl_string text; /* special tokens included */
    int64_t tokens;
    bool trained;
} nbl_preview_part;

/* An example as the model sees it. Its memory belongs to the run, and is valid
 * until the next preview. */
typedef struct nbl_preview {
    size_t struct_size;
    const int32_t *ids;    /* [count] */
    const int32_t *labels; /* [count]; at their own token; -100: not trained */
    int64_t count;
    int64_t trained_tokens;
    const nbl_preview_part *parts; /* [part_count] */
    int64_t part_count;
} nbl_preview;

/* Shows example `index`, in the order of the files. Opens the data first if
 * nbl_run_data has not. Texts are numbers if the model has no tokenizer, which
 * rows of ids allow. */
NBL_API nbl_status nbl_run_preview(nbl_run *run, int64_t index,
                                   nbl_preview *preview);

/* Plans the training step of a run (section 7). The plan is the caller's, and
 * does not need the run any more, but the context.
 *
 *   model    instead of base_model; or NULL
 *   tokens   of each sequence; 0: of the largest that the data hold
 *   batch    sequences of a step, >= 0; 0 is 1. With tokens 0: those of the
 *            data.
 *   memory   bytes, instead of the run's `memory`; 0: the run's. If neither is
 *            set, the plan recomputes to keep within nine tenths of what the
 *            machine has available, as training would.
 */
NBL_API nbl_status nbl_run_make_plan(nbl_run *run, const char *model,
                                     int64_t tokens, int64_t batch,
                                     uint64_t memory, nbl_model_plan **plan);

typedef enum nbl_train_event_kind {
    NBL_TRAIN_BEGIN,      /* everything is planned; text: the checkpoint that is
                             resumed, or NULL */
    NBL_TRAIN_STEP,       /* after every step; text: NULL */
    NBL_TRAIN_EVALUATION, /* loss: of the examples for validation; text: says
                             that it is the best so far, if the run keeps the
                             best; else NULL */
    NBL_TRAIN_SAVED,      /* checkpoint-STEP is complete; text: output_dir */
    NBL_TRAIN_PHASE       /* the run does something other than steps; text:
                             what, such as "reading data". Comes before
                             NBL_TRAIN_BEGIN, too. */
} nbl_train_event_kind;

typedef struct nbl_train_event {
    nbl_train_event_kind kind;
    int64_t step, steps; /* done, in all */
    double epoch;        /* passes over the data, done */
    double loss, grad_norm, learning_rate, tokens_per_second; /* of the step */
    int64_t trained_tokens;
    uint64_t memory_bytes;        /* as planned */
    double seconds, seconds_left; /* since the begin; to the end, estimated */
    const char *text;             /* see kinds; valid during the call */
    int64_t part, parts; /* batches of a phase: done, in all; 0: not counted */
} nbl_train_event;

typedef struct nbl_train_options {
    size_t struct_size;
    bool resume; /* goes on from the newest whole checkpoint in output_dir, if
                    there is one */
    /* Called from the calling thread. Returns true to end the run after this
     * step, with a checkpoint: nbl_run_train then returns NBL_ERROR_CANCELLED.
     * What it returns for NBL_TRAIN_PHASE is ignored. Or NULL. */
    bool (*event)(void *user, const nbl_train_event *event);
    void *user;  /* first argument of `event` */
    int samples; /* prompts of the data that the model continues before and
                    after training, for the report: 1 ... 8; 0: three, or none
                    above 10^9 parameters; below 0: none */
    bool allow_changes; /* a resumed run may have another learning rate,
                           schedule, dtype or device than its checkpoint;
                           run.yml tells of the change. All other keys that
                           decide about bytes must be as they were. */
} nbl_train_options;

/* Filled in also when a run was stopped by its callback. */
typedef struct nbl_train_summary {
    size_t struct_size;
    int64_t step, steps;   /* done, in all */
    double loss;           /* the last one; 0: none */
    double eval_loss;      /* the last one; 0: none */
    int64_t result_step;   /* the step that the result is of: the last one, or
                              the best one with load_best_model_at_end */
    double best_eval_loss; /* of that best step; 0: not chosen by evaluation */
    double seconds;
    uint64_t memory_bytes; /* as planned */
} nbl_train_summary;

/* Trains. output_dir then holds the adapter (or the model), checkpoint-N
 * folders, metrics.jsonl, events for TensorBoard, run.yml, and as the run wants
 * them report.html and samples.json. What an earlier run left there, and is not
 * resumed, is moved to a folder earlier-N in it. `options` and `summary` may be
 * NULL. */
NBL_API nbl_status nbl_run_train(nbl_run *run, const nbl_train_options *options,
                                 nbl_train_summary *summary);

/* ---- 11. Merging and exporting ----------------------------------------------
 *
 * One model out of a base and its adapter: a folder that transformers loads, or
 * a GGUF file that llama.cpp loads. Both appear complete or not at all.
 */
typedef struct nbl_merge_options {
    size_t struct_size;
    nbl_compute_dtype dtype; /* of all weights; default: the one that
                                config.json names, else bf16 */
    bool verify;             /* compares logits of the result with those of the
                                base with its adapter, before `out` appears */
    uint64_t shard_size;     /* bytes per file of weights; 0: 5 * 10^9 */
    bool allow_non_finite;   /* as in nbl_quantize_options */
} nbl_merge_options;

typedef struct nbl_merge_report {
    size_t struct_size;
    int64_t tensors;    /* weights of the result */
    int64_t changed;    /* of them, those that the adapter changed or brought */
    uint64_t bytes_in;  /* of the weight files of `base` */
    uint64_t bytes_out; /* of the weight files that were written */
    int files;          /* weight files that were written */
    int64_t non_finite; /* NaN and infinities that were written */
    nbl_dtype dtype;    /* of the weights */
    /* Only with `verify`: */
    bool verified;              /* the logits agree as far as dtype allows */
    double max_logit_deviation; /* largest |difference| of a logit */
    double relative_deviation;  /* |difference| / |logits| of the sequence where
                                   it is largest */
    double allowed_deviation;   /* the limit for relative_deviation */
} nbl_merge_report;

/* Writes folder `out` from folder `base`, 16-bit or packed, and `adapter`, a
 * folder as PEFT saves it. `out` must not exist. Each weight is dequantized to
 * f32, summed once and rounded once. An output head that is tied to the
 * embedding becomes a matrix of its own if the adapter changes it. Files beside
 * the weights are copied. A verification that fails is an NBL_ERROR_DTYPE and
 * leaves nothing. `options` and `report` may be NULL. Reports progress. */
NBL_API nbl_status nbl_merge(nbl_context *ctx, const char *base,
                             const char *adapter, const char *out,
                             const nbl_merge_options *options,
                             nbl_merge_report *report);

/* The type of the matrices in a GGUF file. Vectors are f32. */
typedef enum nbl_export_type {
    NBL_EXPORT_DEFAULT, /* "default": of an adapter, a GGUF LoRA */
    NBL_EXPORT_F32,     /* "f32" */
    NBL_EXPORT_F16,     /* "f16" */
    NBL_EXPORT_BF16,    /* "bf16" */
    NBL_EXPORT_Q8_0,    /* "q8_0": 8 bits, a scale per 32 values */
    NBL_EXPORT_Q4_0     /* "q4_0": 4 bits, a scale per 32 values */
} nbl_export_type;
NBL_API const char *nbl_export_type_name(nbl_export_type type);
NBL_API bool nbl_export_type_parse(const char *name, nbl_export_type *type);

typedef struct nbl_export_options {
    size_t struct_size;
    nbl_export_type type; /* default: only with an adapter */
    const char *adapter;  /* a folder as PEFT saves it; or NULL. With a type: it
                             is merged into the weights. Without: the file is a
                             LoRA for the exported model. */
    bool ollama;          /* writes a Modelfile into the same folder */
} nbl_export_options;

typedef struct nbl_export_report {
    size_t struct_size;
    int64_t tensors, parameters;
    int64_t fallen_back; /* matrices that had to be f16: their rows are no
                            multiple of 32 values */
    uint64_t bytes;      /* of the file */
} nbl_export_report;

/* Writes the GGUF file `out` from folder `model`, a known architecture in any
 * storage. `out` must not exist, and with `ollama` no Modelfile beside it. What
 * GGUF or llama.cpp cannot express is an error with its name. `options` is
 * needed: a type or an adapter. `report` may be NULL. Reports progress. */
NBL_API nbl_status nbl_export(nbl_context *ctx, const char *model,
                              const char *out,
                              const nbl_export_options *options,
                              nbl_export_report *report);

/* ---- 12. Inspecting ---------------------------------------------------------
 *
 * What is in a GGUF file or an adapter, and what is wrong with it: every
 * problem, not only the first (at most 1,000). Texts are UTF-8. They may hold
 * control characters where the file has them. Checkpoints are inspected with
 * section 5 and NBL_OPEN_TOLERANT.
 */
typedef struct nbl_gguf nbl_gguf;

/* Opens a GGUF file. Only its head is read. Fails if the file cannot be read,
 * if it is not GGUF of version 2 or 3, or if memory runs out. All else is
 * listed as problems. */
NBL_API nbl_status nbl_gguf_open(nbl_context *ctx, const char *path,
                                 nbl_gguf **gguf);
NBL_API void nbl_gguf_close(nbl_gguf *gguf);

typedef struct nbl_gguf_summary {
    const char *kind;         /* general.type: "model" (also if it is not
                                 there), "adapter", "mmproj", "vocab", ... */
    const char *architecture; /* general.architecture, or NULL */
    const char *name;         /* general.name, or NULL */
    int version;              /* of the format: 2 or 3 */
    int64_t tensors;
    int64_t entries; /* keys of the metadata */
    int64_t parameters;
    uint64_t bytes;      /* of all tensors */
    uint64_t file_bytes; /* of the file */
    /* Of the model; 0: the file does not say. */
    int64_t layers, hidden, heads, kv_heads, context;
    const char *tokenizer; /* tokenizer.ggml.model: "gpt2", "llama"; or NULL */
    const char *pre;       /* tokenizer.ggml.pre, or NULL */
    int64_t vocabulary;    /* tokens in the file */
    int64_t chat_templates;
    int64_t problems;
} nbl_gguf_summary;
NBL_API const nbl_gguf_summary *nbl_gguf_get_summary(const nbl_gguf *gguf);

typedef struct nbl_gguf_tensor {
    const char *name;
    const char *format; /* "q4_k"; "type 99" if it is unknown */
    int rank;           /* 1 ... 4 */
    int64_t shape[4];   /* the slowest dimension first, unlike in the file */
    int64_t elements;
    uint64_t bytes; /* 0: the format is unknown */
} nbl_gguf_tensor;
/* In the order of the file. What this function and each of the next two return
 * is valid until the next call of the same function. */
NBL_API const nbl_gguf_tensor *nbl_gguf_get_tensor(nbl_gguf *gguf,
                                                   int64_t index);

/* An entry of the metadata. */
typedef struct nbl_gguf_entry {
    const char *key;
    const char *type;  /* "u32", "f32", "string", "array of string", ... */
    int64_t count;     /* of an array; else 1 */
    const char *value; /* JSON. Texts are cut to 200 bytes, arrays to 8 values.
                          Arrays in arrays are empty. */
    bool cut;          /* there is more */
} nbl_gguf_entry;
NBL_API const nbl_gguf_entry *nbl_gguf_get_entry(nbl_gguf *gguf, int64_t index);

/* A token that the metadata name: tokenizer.ggml.NAME_token_id. */
typedef struct nbl_gguf_special {
    const char *name; /* "bos" */
    int64_t id;
    const char *text; /* NULL: no token has the id */
} nbl_gguf_special;
NBL_API const nbl_gguf_special *nbl_gguf_get_special(nbl_gguf *gguf,
                                                     int64_t index);
/* A problem, as an error message would say it. */
NBL_API const char *nbl_gguf_get_problem(const nbl_gguf *gguf, int64_t index);

typedef struct nbl_adapter nbl_adapter;

/* Opens an adapter, and reads all its values. Fails if a file cannot be read,
 * if the base does not open, or if memory runs out. All else is listed as
 * problems.
 *
 *   path   a folder as PEFT saves it
 *   base   a model's folder or .gguf file to compare the adapter with; or NULL
 */
NBL_API nbl_status nbl_adapter_open(nbl_context *ctx, const char *path,
                                    const char *base, nbl_adapter **adapter);
NBL_API void nbl_adapter_close(nbl_adapter *adapter);

typedef struct nbl_adapter_summary {
    const char *type;       /* peft_type: "LORA"; NULL: adapter_config.json is
                               missing or does not say */
    const char *base_model; /* base_model_name_or_path, or NULL */
    const char *task;       /* task_type, or NULL */
    int64_t r;              /* rank of modules without a pattern of their own */
    double alpha;           /* the same; the scale is alpha / r, or alpha /
                               sqrt(r) with rslora */
    double dropout;         /* of the adapter's input in training */
    bool rslora, dora, lora_bias;
    const char *target; /* "all-linear" or a regular expression; NULL: the list
                           of nbl_adapter_get_target */
    int64_t modules;    /* that are adapted */
    int64_t replaced;   /* weights that are stored whole */
    int64_t tensors, parameters;
    uint64_t bytes;
    bool same_dtype;       /* all tensors have `dtype`, and there are some */
    nbl_dtype dtype;       /* only with same_dtype */
    int64_t non_finite;    /* values that are NaN or infinite */
    int64_t problems;      /* all of them */
    int64_t base_problems; /* of them, those with the base: the last ones */
} nbl_adapter_summary;
NBL_API const nbl_adapter_summary *
nbl_adapter_get_summary(const nbl_adapter *adapter);

typedef struct nbl_adapter_tensor {
    const char *name;
    nbl_dtype dtype;
    int rank;
    int64_t shape[NBL_MAX_RANK];
    int64_t parameters;
    uint64_t bytes;
    int64_t non_finite;
} nbl_adapter_tensor;
/* By name. */
NBL_API const nbl_adapter_tensor *
nbl_adapter_get_tensor(const nbl_adapter *adapter, int64_t index);
/* A name of target_modules. */
NBL_API const char *nbl_adapter_get_target(const nbl_adapter *adapter,
                                           int64_t index);
/* A name of target_parameters. */
NBL_API const char *nbl_adapter_get_parameter(const nbl_adapter *adapter,
                                              int64_t index);
/* A name of modules_to_save. */
NBL_API const char *nbl_adapter_get_saved(const nbl_adapter *adapter,
                                          int64_t index);
/* A problem, as an error message would say it. */
NBL_API const char *nbl_adapter_get_problem(const nbl_adapter *adapter,
                                            int64_t index);

/* ---- 13. Quantizing in memory -----------------------------------------------
 *
 * For authors of frameworks: one weight at a time, in the caller's memory. It is
 * host memory, on every context, except for nbl_dequantize. Sizes are asked for first. All functions use the threads of
 * the context.
 *
 *     nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options),
 *                                 .format = NBL_FORMAT_NF4};
 *     nbl_quantized_sizes sizes;
 *     int64_t shape[2] = {out, in};
 *     nbl_quantize_sizes(ctx, &how, 2, shape, &sizes);
 *     nbl_quantized_parts parts = {.data = malloc(sizes.data),
 *                                  .scales = malloc(sizes.scales)};
 *     nbl_weight w;
 *     nbl_quantize(ctx, &how, NBL_DTYPE_F32, 2, shape, values, &parts, &w);
 */

/* Bytes of each part of a packed weight; 0: the part does not exist. The fields
 * are those of nbl_weight. */
typedef struct nbl_quantized_sizes {
    size_t data, scales, scale_codes, nested_scales;
} nbl_quantized_sizes;

/* `options` is needed; see section 5. rank: 1 ... NBL_MAX_RANK. mxfp4: the last
 * dimension is a multiple of 32. */
NBL_API nbl_status nbl_quantize_sizes(nbl_context *ctx,
                                      const nbl_quantize_options *options,
                                      int rank, const int64_t *shape,
                                      nbl_quantized_sizes *sizes);

/* Memory for the parts, each of the size that nbl_quantize_sizes returned.
 * `scales` and `nested_scales` are aligned to 4 bytes. With nested scales both
 * `scales`, as scratch, and `scale_codes` are needed. */
typedef struct nbl_quantized_parts {
    uint8_t *data;
    float *scales;
    uint8_t *scale_codes;
    float *nested_scales;
} nbl_quantized_parts;

/* Quantizes the dense f32, f16 or bf16 weight `values`. On success *weight
 * describes the result and points into `parts`. */
NBL_API nbl_status nbl_quantize(nbl_context *ctx,
                                const nbl_quantize_options *options,
                                nbl_dtype dtype, int rank, const int64_t *shape,
                                const void *values,
                                const nbl_quantized_parts *parts,
                                nbl_weight *weight);

/* Dequantizes rows [row_begin, row_end) of a weight to f32, f16 or bf16. Rounds
 * once; bit-exact with bitsandbytes and transformers. A row is the last
 * dimension; all others are flattened. On a CUDA context the weight's parts and
 * `out` are device memory, and the work is enqueued. Dense weights are only
 * copied there: the same dtype, not transposed.
 *
 *   transpose   false: out is [rows, columns]; true: [columns, rows]
 *   out         result: dense, aligned to its element
 */
NBL_API nbl_status nbl_dequantize(nbl_context *ctx, const nbl_weight *weight,
                                  int64_t row_begin, int64_t row_end,
                                  nbl_dtype dtype, bool transpose, void *out);

/* Converts n elements between f32, f16 and bf16; n >= 0. Rounds to nearest,
 * ties to even. A NaN stays a NaN and becomes quiet. Infinities and subnormals
 * are exact. `from` and `to` may be the same memory if both dtypes have the
 * same size. */
NBL_API nbl_status nbl_convert(nbl_context *ctx, nbl_dtype from_dtype,
                               const void *from, nbl_dtype to_dtype, void *to,
                               int64_t n);

/* bitsandbytes' dynamic map of 8 bits: 256 values, ascending, a constant.
 * Moments of optimizers and nested scales use it. is_signed selects one of two
 * maps. Any thread. */
NBL_API const float *nbl_dynamic_map(bool is_signed);
/* Quantizes n values, n >= 0, in blocks of `block` >= 1 with that map. codes:
 * [n]; scales: f32 [ceil(n / block)]. */
NBL_API nbl_status nbl_dynamic8_quantize(nbl_context *ctx, bool is_signed,
                                         int64_t block, const float *values,
                                         int64_t n, uint8_t *codes,
                                         float *scales);
/* The way back. */
NBL_API nbl_status nbl_dynamic8_dequantize(nbl_context *ctx, bool is_signed,
                                           int64_t block, const uint8_t *codes,
                                           const float *scales, int64_t n,
                                           float *values);

/* ---- 14. Operators ----------------------------------------------------------
 *
 * For authors of frameworks: the pieces of a training step with packed weights.
 * A call is a struct. Fill in inputs and attributes, give the outputs dtype,
 * shape and memory, ask for the scratch, and run it.
 *
 *     nbl_linear call = {.dtype = NBL_DTYPE_BF16, .x = x, .w = w, .y = y};
 *     size_t bytes;
 *     nbl_linear_scratch(ctx, &call, false, &bytes);
 *     void *scratch = aligned_alloc(64, bytes);   (bytes is a multiple of 64)
 *     nbl_linear_forward(ctx, &call, scratch, bytes);
 *
 * Checks. Dtypes, shapes and needed tensors are checked before anything runs. A
 * mismatch is an error that names operator, tensor, dtypes and shapes. There is
 * no silent cast.
 *
 * Dtypes. `dtype` is the compute dtype: that of x, y, bias, dy and dx. Sums are
 * f32, and so are gradients of parameters. Packed weights are dequantized to
 * `dtype` with one rounding; on the CPU never more than a panel at a time.
 *
 * Tensors. An optional tensor without data is absent. A gradient without data
 * is not wanted and not computed. A tensor whose shape has no elements needs no
 * data. Activations have any rank >= 1; the last dimension is the feature. There
 * may be no tokens.
 *
 * Memory. Scratch is aligned to 64 bytes and may hold anything before and
 * after. Operators allocate nothing, except adamw and grad_norm, which allocate
 * a small scratch of their own on the CPU.
 *
 * Devices. On a CUDA context (section 3) tensors, parts of weights and scratch
 * are device memory. Calls enqueue work on the context's stream, and can be
 * captured in a CUDA graph.
 */

/* The functions of each operator NAME with a struct of arguments nbl_NAME. With
 * `backward` they mean nbl_NAME_backward.
 *
 * nbl_NAME_infer checks dtypes, shapes and attributes, and fills in dtype, rank
 * and shape of all outputs in *call. It reads no data and no data pointer, so it
 * serves tensors that do not exist yet. Here a tensor is absent if its rank is 0.
 * Outputs that the arguments do not produce get rank 0.
 *
 * nbl_NAME_scratch sets *bytes to the scratch that the call needs, a multiple of
 * 64. It needs the call as it will run, data pointers included.
 *
 * nbl_NAME_forward and nbl_NAME_backward run the call. */
#define NBL_OPERATOR(NAME)                                                     \
    NBL_API nbl_status nbl_##NAME##_infer(nbl_context *ctx, nbl_##NAME *call,  \
                                          bool backward);                      \
    NBL_API nbl_status nbl_##NAME##_scratch(nbl_context *ctx,                  \
                                            const nbl_##NAME *call,            \
                                            bool backward, size_t *bytes);     \
    NBL_API nbl_status nbl_##NAME##_forward(nbl_context *ctx,                  \
                                            const nbl_##NAME *call,            \
                                            void *scratch, size_t bytes);      \
    NBL_API nbl_status nbl_##NAME##_backward(                                  \
        nbl_context *ctx, const nbl_##NAME *call, void *scratch, size_t bytes)

/* A linear layer with an optional adapter. LoRA, DoRA:
 *
 *     y = x W' + scale (drop(x) A') B' + bias
 *     y = (x W' + scale (drop(x) A') B') * magnitude / |W + scale B A| + bias
 *
 * with norms by rows. x [.., in], w [out, in] in any format, A [r, in],
 * B [out, r], magnitude [out], y [.., out]. A, B and magnitude are f32, f16 or
 * bf16. bias is f32 or `dtype`.
 *
 * int8 multiplies as LLM.int8(): columns of x with a value of `threshold` or
 * more stay as they are, the others are quantized to 8 bits by rows. Backward
 * uses the dequantized weight. DoRA's norm is a constant in backward, as in
 * PEFT. On the CPU up to eight tokens read the packed weight directly. */
typedef struct nbl_linear {
    nbl_dtype dtype; /* f32, f16 or bf16 */
    nbl_tensor x;
    nbl_weight w;
    nbl_tensor bias;           /* optional */
    nbl_tensor lora_a, lora_b; /* optional; both or neither */
    nbl_tensor magnitude;      /* optional; only with A and B: DoRA */
    /* Optional, and only with magnitude: f32 [out], |W + scale B A| by rows, if
     * it is known (nbl_dora_norm). Else each call computes it. */
    nbl_tensor norm;
    float scale;   /* finite: alpha / r, or alpha / sqrt(r) */
    float dropout; /* 0 <= p < 1, of the adapter's input */
    uint64_t seed; /* of the dropout mask. Backward needs that of forward. */
    /* Optional: i64 [n]. seeds[seed_index] is added to `seed` when the call runs.
     * So a device can replay a captured call with other masks. */
    nbl_tensor seeds;
    int64_t seed_index; /* 0 <= seed_index < n */
    int64_t first_row;  /* >= 0: rows of the mask before the first row of x.
                          Calls for parts of a batch then draw what one call for
                          the whole batch draws. */
    float threshold;    /* int8: 6 as a rule; <= 0: no column stays */
    bool dequantized;   /* int8: multiply with the dequantized weight, as
                          bitsandbytes trains on a CPU. On a device: any packed
                          weight is dequantized before the product, for few
                          tokens, too. */
    nbl_tensor y;       /* forward's output */
    nbl_tensor dy;      /* backward's input */
    nbl_tensor dx, dbias, dlora_a, dlora_b, dmagnitude; /* its outputs */
    nbl_tensor dw;   /* only with train_w: f32 [out, in], the gradient of the
                        values that the weight dequantizes to */
    bool train_w;    /* backward computes dw */
    bool accumulate; /* backward adds to the gradients of parameters; else it
                        overwrites them */
    /* Memory for what forward leaves for backward: nbl_linear_saved bytes or
     * more, aligned to 64 bytes, with the same address in both calls. It spares
     * backward work on a device. NULL: backward computes it again. */
    void *saved;
    size_t saved_bytes;
} nbl_linear;
NBL_OPERATOR(linear);

/* Bytes of nbl_linear.saved that forward of this call can use; 0: none. Needs the
 * call as it will run. */
NBL_API nbl_status nbl_linear_saved(nbl_context *ctx, const nbl_linear *call,
                                    size_t *bytes);

#define NBL_MAX_GROUP 4 /* linear layers of a group */

/* Up to four linear layers with the same input: q, k and v; gate and up. Backward
 * computes one dx, the sum over the members, rounded once. A group costs less
 * than its members alone.
 *
 * members[0] holds what the members share: x, dx, dtype, dropout, seed, seeds,
 * seed_index, first_row, threshold, dequantized, train_w, accumulate, saved,
 * saved_bytes. All else is each member's own; a scale of 0 is that of members[0].
 * Members follow each other without a gap. An absent member is all zero. Each
 * member draws dropout masks of its own. */
typedef struct nbl_linear_group {
    int count; /* set by the library */
    nbl_linear members[NBL_MAX_GROUP];
} nbl_linear_group;
NBL_OPERATOR(linear_group);

/* As nbl_linear_saved. */
NBL_API nbl_status nbl_linear_group_saved(nbl_context *ctx,
                                          const nbl_linear_group *call,
                                          size_t *bytes);

/* The function between gate and down. */
typedef enum nbl_activation {
    NBL_ACTIVATION_SILU,     /* x * sigmoid(x) */
    NBL_ACTIVATION_GELU,     /* the exact one, with erf */
    NBL_ACTIVATION_GELU_TANH /* its approximation */
} nbl_activation;

/* A gated feed-forward block, y = down(act(gate(x)) * up(x)). Values between the
 * layers are f32 and exist for 512 tokens at a time.
 *
 * gate holds what the layers share, as members[0] of a group does. y and dy are
 * down's. `saved` is not used. With `keep` forward stores the outputs of gate and
 * up, 8 bytes for each token and inner feature, and backward does not compute them
 * again; the results are the same bits. */
typedef struct nbl_mlp {
    nbl_activation act;
    nbl_linear gate, up, down; /* [inner, in], [inner, in], [out, inner] */
    bool keep;
    nbl_tensor gate_out, up_out; /* only with keep: f32 [.., inner], written by
                                    forward, read by backward */
} nbl_mlp;
NBL_OPERATOR(mlp);

/* The norm of DoRA, |W + scale B A| by rows. It changes only when the adapter
 * does: compute it once per optimizer step. There is no backward. */
typedef struct nbl_dora_norm {
    nbl_dtype dtype; /* the compute dtype of the layer */
    nbl_weight w;
    nbl_tensor lora_a, lora_b;
    float scale;
    nbl_tensor w_norm2; /* optional: f32 [out], |W|^2 by rows, from an earlier
                               call */
    nbl_tensor norm;    /* output: f32 [out] */
    nbl_tensor w_norm2_out; /* output, only without w_norm2; its memory is
                               optional */
} nbl_dora_norm;
NBL_OPERATOR(dora_norm);

/* Where rmsnorm rounds to the dtype of x. */
typedef enum nbl_norm_round {
    NBL_ROUND_BEFORE_WEIGHT, /* Llama: x / rms is rounded, then times weight */
    NBL_ROUND_AFTER_WEIGHT   /* Gemma: rounded once, at the end */
} nbl_norm_round;

/* Root mean square norm, with the sum of a residual before it:
 *
 *     h = x + residual, rounded to the dtype: residual_out; or h = x
 *     y = h / sqrt(mean(h^2) + eps) * (w + offset) * scale
 *
 * Reduces in f32. y has the dtype of x, whatever w has (f32, f16 or bf16). dx
 * is the gradient of x and of residual alike. dresidual, the gradient of
 * residual_out, is added to it. */
typedef struct nbl_rmsnorm {
    nbl_dtype dtype; /* f32, f16 or bf16 */
    float eps;
    float offset; /* 0; 1 for Gemma */
    float scale;  /* of y; 0: 1 */
    nbl_norm_round round;
    nbl_tensor x, w;         /* w is optional: without it, the factor is scale alone */
    nbl_tensor residual;     /* optional */
    nbl_tensor y;            /* forward's output */
    nbl_tensor residual_out; /* forward's output; only with a residual */
    nbl_tensor dy;           /* backward's input */
    nbl_tensor dresidual;    /* backward's input; optional */
    nbl_tensor dx, dw;       /* backward's outputs */
    bool accumulate;         /* backward adds to dw; else it overwrites it */
} nbl_rmsnorm;
NBL_OPERATOR(rmsnorm);

/* rmsnorm of each head, and its rotary position embedding in the layout of
 * Hugging Face's models: dimension i of the first half of the rotated dimensions
 * rotates with dimension i of the second half. The norm's result is not rounded
 * before the rotation. w is frozen: backward computes dx alone. */
typedef struct nbl_norm_rope {
    nbl_dtype dtype;
    nbl_tensor x;        /* [.., heads, dim] */
    nbl_tensor w;        /* [dim]: f32, f16 or bf16 */
    nbl_tensor cos, sin; /* f32 [tokens, rotated / 2] */
    float eps, offset;
    nbl_norm_round round;
    nbl_tensor y;  /* forward's output */
    nbl_tensor dy; /* backward's input */
    nbl_tensor dx; /* its output */
} nbl_norm_rope;
NBL_OPERATOR(norm_rope);

/* What the losses of tokens become. */
typedef enum nbl_reduction {
    NBL_REDUCTION_MEAN, /* their sum, divided by the number of trained tokens */
    NBL_REDUCTION_NONE  /* a loss per token */
} nbl_reduction;

/* The output head and the loss. Logits x W' exist in tiles only. The loss is that
 * of torch.nn.functional.cross_entropy, but 0 where no token is trained. A label
 * of -100 is not trained; its loss, logprob and dx are 0. Any other label outside
 * the vocabulary is an NBL_ERROR_ARGUMENT, on a device at the next wait. */
typedef struct nbl_cross_entropy {
    nbl_dtype dtype;
    nbl_tensor x;      /* [.., hidden] */
    nbl_weight w;      /* [vocabulary, hidden] in any format */
    nbl_tensor labels; /* i32, one per token */
    float softcap;   /* > 0: logits become cap * tanh(logits / cap); 0: none */
    float smoothing; /* of labels: 0 <= s <= 1 */
    nbl_reduction reduction;
    bool train_w; /* backward computes dw */
    nbl_tensor
        denominator;     /* mean, optional: f32 [1], the divisor, read when the
                                 call runs; 0: the number of trained tokens */
    nbl_tensor loss;     /* output: f32 [1], or like labels */
    nbl_tensor logprobs; /* output: f32, like labels */
    nbl_tensor lse;    /* f32 [2, tokens]: forward's output, backward's input */
    nbl_tensor dloss;  /* backward's input: f32, like loss */
    nbl_tensor dx, dw; /* backward's outputs; dw f32, only with train_w */
    bool accumulate;   /* backward adds to dw; else it overwrites it */
    bool grad_in_forward; /* forward also computes dx for dloss = 1: backward
                                 then only multiplies. Needs mean, no train_w */
    nbl_tensor
        dx_in_forward; /* only with grad_in_forward: f32, like x; forward's
                                 output, backward's input */
} nbl_cross_entropy;
NBL_OPERATOR(cross_entropy);

/* A parameter, its gradient and its moments. */
typedef struct nbl_adamw_tensor {
    nbl_tensor p, g; /* f32, f16 or bf16 each; of one shape */
    nbl_tensor m, v; /* that shape: f32, or u8 with bits 8; 0 at first */
    nbl_tensor m_absmax, v_absmax; /* bits 8: f32 [ceil(n / 256)]; 0 at first */
} nbl_adamw_tensor;

/* A step of AdamW over any number of tensors, in place. */
typedef struct nbl_adamw {
    const nbl_adamw_tensor *tensors;            /* [count] */
    int64_t count;                              /* >= 0 */
    double lr, beta1, beta2, eps, weight_decay; /* >= 0; betas < 1 */
    double grad_scale; /* multiplies g, for clipping or unscaling; 1: none; 0 is
                          0, not a default */
    int64_t step;      /* 1 at first */
    int bits; /* of moments: 32, as torch.optim.AdamW; or 8, as bitsandbytes'
                 AdamW8bit, with a scale per 256 elements */
    /* One more factor of g, read when the step runs, in the memory where the
     * context computes. If it is NaN nothing changes. NULL: none. */
    const float *grad_factor;
} nbl_adamw;

NBL_API nbl_status nbl_adamw_step(nbl_context *ctx, const nbl_adamw *call);

/* The norm of `count` gradients together. On a device it waits for the result.
 *
 *   max_norm     > 0: the gradients are clipped to it in place, as
 *                torch.nn.utils.clip_grad_norm_ does; else they are only read
 *   norm         result, in host memory
 *   non_finite   result, in host memory, or NULL: the index of the first
 *                gradient with NaN or infinities, or -1. If there is one,
 *                nothing is clipped.
 */
NBL_API nbl_status nbl_grad_norm(nbl_context *ctx, const nbl_tensor *gradients,
                                 int64_t count, double max_norm, float *norm,
                                 int64_t *non_finite);

#ifdef __cplusplus
}
#endif
#endif
