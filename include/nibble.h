/* nibble.h - the public interface of libnibble, in the order a newcomer needs
 * it: 1 status and errors, 2 the context, 3 dtypes and weights, 4 quantise and
 * dequantise in memory, 5 checkpoints on disk, 6 operators, 7 the machine,
 * 8 text and tokens, 9 chat templates, 10 models, 11 training runs, 12 merging
 * and exporting, 13 conversations and evaluation.
 *
 * Thirty seconds:
 *
 *     nbl_context *ctx;
 *     if (nbl_context_create(NULL, &ctx) != NBL_OK) return 1;
 *     nbl_quantize_options how = {.format = NBL_FORMAT_NF4, .block = 64};
 *     if (nbl_checkpoint_quantize(ctx, "Llama-3.2-1B", "Llama-3.2-1B-nf4",
 *                                 &how, NULL) != NBL_OK)
 *         fprintf(stderr, "%s\n", nbl_error_message(ctx));
 *     nbl_context_destroy(ctx);
 *
 * Rules that hold everywhere:
 *  - A fallible call returns a status and leaves a message in its context. The
 *    library never prints, exits or aborts.
 *  - There are no mutable globals (nbl_guard_mapped_files makes the one
 *    exception, for who calls it). One context serves one thread at a time;
 *    any number of contexts may be used at once.
 *  - Pointers handed in are borrowed for the call unless a comment says more.
 *    Pointers handed out belong to the object they came from. A context or an
 *    object must be a live one; any other NULL that is needed is an
 *    NBL_ERROR_ARGUMENT.
 *  - The dtype of a result follows from the arguments, never from history.
 *  - Results are bit-identical from run to run and for any number of threads.
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

#define NBL_VERSION_MAJOR 0
#define NBL_VERSION_MINOR 1
#define NBL_VERSION_PATCH 0
#define NBL_VERSION_STRING "0.1.0"

/* The version of the library that is loaded, "MAJOR.MINOR.PATCH". */
NBL_API const char *nbl_version(void);

/* ---- 1. Status and errors ------------------------------------------------
 *
 * Numbers are stable: a number is never reused for another meaning.
 */
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

/* "NBL_ERROR_FORMAT" and the like; "NBL_ERROR_INTERNAL" for unknown numbers. */
NBL_API const char *nbl_status_name(nbl_status status);
/* What the status means, in a few words. */
NBL_API const char *nbl_status_text(nbl_status status);

/* ---- 2. The context ------------------------------------------------------ */

/* Options. Every options struct begins with `struct_size`: its size as the
 * caller was compiled. Zero is the default of every other field. Later versions
 * add fields at the end, so a program and a library of different versions work
 * together. A struct_size of 0, and a newer field that is set but that this
 * library does not know, are an NBL_ERROR_ARGUMENT.
 *
 *     nbl_train_options how = {NBL_OPTIONS(nbl_train_options), .samples = 3};
 */
#define NBL_OPTIONS(type) .struct_size = sizeof(type)

/* The same as a statement, for C++ before C++20:
 *
 *     nbl_train_options how;
 *     NBL_OPTIONS_INIT(how);
 *     how.samples = 3;
 */
#define NBL_OPTIONS_INIT(options) nbl_options_init(&(options), sizeof(options))
/* Sets `size` bytes at `options` to zero, and the first field to `size`. For
 * bindings, which have no macros. */
NBL_API void nbl_options_init(void *options, size_t size);

typedef struct nbl_context nbl_context;

/* Memory comes from here. `alloc` returns memory aligned to `align` (a power
 * of two, at most 4096) or NULL; `free` gets the size that was asked for. Both
 * may be called from any thread of the library's team. */
typedef struct nbl_allocator {
    void *(*alloc)(void *user, size_t size, size_t align);
    void (*free)(void *user, void *memory, size_t size);
    void *user;
} nbl_allocator;

typedef enum nbl_log_level {
    NBL_LOG_WARNING, /* something the user should know; the work goes on */
    NBL_LOG_INFO,    /* what was decided */
    NBL_LOG_DEBUG
} nbl_log_level;

/* Receives one line without a newline. Called from the thread that called the
 * library. */
typedef void (*nbl_log_fn)(void *user, nbl_log_level level, const char *line);

typedef struct nbl_progress {
    uint64_t done;    /* bytes of input read so far */
    uint64_t total;   /* bytes of input in all */
    const char *what; /* what is being worked on, e.g. a tensor's name */
} nbl_progress;

/* Called every few megabytes from the thread that called the library. Returns
 * 0 to go on; anything else stops the work with NBL_ERROR_CANCELLED, and
 * nothing is left of it. */
typedef int (*nbl_progress_fn)(void *user, const nbl_progress *progress);

/* All fields may be zero. */
typedef struct nbl_context_options {
    size_t struct_size;
    int threads;             /* 0: all cores this process may use; <= 1024 */
    nbl_allocator allocator; /* zero: malloc */
    nbl_log_fn log;          /* NULL: silence */
    void *log_user;
    nbl_progress_fn progress;
    void *progress_user;
} nbl_context_options;

/* `options` may be NULL. On failure *ctx is NULL. */
NBL_API nbl_status nbl_context_create(const nbl_context_options *options,
                                      nbl_context **ctx);
NBL_API void nbl_context_destroy(nbl_context *ctx); /* NULL is allowed */
/* From now on so many threads, as in the options: 0 ... 1024. Before models are
 * opened or runs begun: plans are made for the number there is. */
NBL_API nbl_status nbl_context_set_threads(nbl_context *ctx, int threads);

/* Weights are read from mapped files. If another process truncates such a file,
 * reading it raises SIGBUS, which ends the process. After this call, once per
 * process and before files are opened, the call at work fails with an error
 * that names the file instead. It installs a handler of SIGBUS, which passes on
 * what is not about a file of the library. This is the one thing that the
 * library keeps per process. (A file whose size or modification time changes
 * is an error in any case.) */
NBL_API nbl_status nbl_guard_mapped_files(void);

/* The message of the last failure: UTF-8 of less than 4096 bytes that names the
 * file, the tensor, the dtypes and the shapes concerned. It is one line. Only a
 * list of refused configuration keys has a line for each of them. "" before any
 * failure. */
NBL_API const char *nbl_error_message(const nbl_context *ctx);
/* What to do about it, or "". */
NBL_API const char *nbl_error_hint(const nbl_context *ctx);

/* ---- 3. Dtypes and weights ----------------------------------------------- */

/* Element types as safetensors knows them: X(NAME, name, file name, bits). The
 * first three are the compute dtypes; the rest is stored and passed on. */
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
        NBL_DTYPE_COUNT
} nbl_dtype;

/* How a weight is stored. DENSE: one element per value, in a dtype. */
typedef enum nbl_format {
    NBL_FORMAT_DENSE,
    NBL_FORMAT_NF4,  /* bitsandbytes 4-bit NormalFloat, one scale per block */
    NBL_FORMAT_FP4,  /* bitsandbytes 4-bit float, one scale per block */
    NBL_FORMAT_INT8, /* bitsandbytes LLM.int8(), one scale per row */
    NBL_FORMAT_MXFP4 /* OCP microscaling: e2m1, one e8m0 scale per 32 */
} nbl_format;

NBL_API const char *nbl_dtype_name(nbl_dtype dtype);    /* "bf16" */
NBL_API const char *nbl_format_name(nbl_format format); /* "nf4"; "dense" */
/* The inverse; returns 0 and leaves the result alone for an unknown name. */
NBL_API int nbl_dtype_parse(const char *name, nbl_dtype *dtype);
NBL_API int nbl_format_parse(const char *name, nbl_format *format);

#define NBL_MAX_RANK 8

/* A weight in memory: what is stored, and how to read it. All pointers are
 * borrowed. Scales and tables are aligned to 4 bytes; `data` need not be.
 *
 *   n = product of shape, rows = n / last dimension
 *
 *   format  data                 scales              scale_codes
 *   dense   n elements of dtype  -                   -
 *   nf4 fp4 ceil(n/2) bytes,     f32 [ceil(n/block)] -
 *           first in high nibble
 *   ... nested: as above         -                   u8  [ceil(n/block)]
 *   int8    n signed bytes       f32 [rows]          -
 *   mxfp4   n/2 bytes, first     -                   u8  [n/32], e8m0
 *           in low nibble
 *
 * Blocks of nf4 and fp4 run over the flattened weight and may straddle rows.
 * A nested scale is table[code] * nested_scales[i / nested_block] + offset,
 * rounded to f32 after the product and after the sum. */
typedef struct nbl_weight {
    nbl_format format;
    nbl_dtype dtype; /* dense: of the elements; else: of the original weight */
    int rank;
    int64_t shape[NBL_MAX_RANK];
    const void *data;
    int64_t block; /* nf4, fp4: 32, 64, ... 4096; mxfp4: 32 */
    const float *scales;
    const uint8_t *scale_codes;
    const float *nested_scales; /* non-NULL: scales are double-quantised */
    const float *nested_table;  /* [256] */
    int64_t nested_block;       /* 256 in every known checkpoint */
    float nested_offset;
} nbl_weight;

/* ---- 4. In memory: convert, quantise, dequantise -------------------------- */

/* Converts n elements between f32, f16 and bf16: round to nearest even, NaN
 * stays NaN (quiet), infinities and subnormals are exact. `from` and `to` may
 * be the same memory only when the dtypes have the same size. */
NBL_API nbl_status nbl_convert(nbl_context *ctx, nbl_dtype from_dtype,
                               const void *from, nbl_dtype to_dtype, void *to,
                               int64_t n);

/* Decodes rows [row_begin, row_end) of a weight into f32, f16 or bf16, one
 * rounding, bit-exact with bitsandbytes and transformers. A row is the last
 * dimension; all others are flattened. `out` is [rows, columns] or, with
 * `transpose`, [columns, rows], dense, aligned to its element. */
NBL_API nbl_status nbl_dequantize(nbl_context *ctx, const nbl_weight *weight,
                                  int64_t row_begin, int64_t row_end,
                                  nbl_dtype dtype, int transpose, void *out);

typedef struct nbl_quantize_options {
    size_t struct_size;
    nbl_format format; /* nf4, fp4, int8 or mxfp4 */
    int64_t block;     /* nf4, fp4: 32 ... 4096, power of two; 0: 64 */
    int nested;        /* nf4, fp4: quantise the scales as well, each to the
                          nearest code as bitsandbytes does on a GPU; 2: through
                          the 16-bit grid that it takes on a CPU */
    /* The rest concerns checkpoints (section 5) only. */
    const char *skip;        /* regular expression (PCRE2): weights whose name
                                it matches stay as they are; NULL: none */
    nbl_dtype compute_dtype; /* written to config.json; default f32 is 0, so
                                say what you want */
    uint64_t shard_size;     /* bytes per output file; 0: 5 GB */
    int allow_non_finite; /* 0: a NaN or an infinity in a weight is an error that
                             names tensor, index and count; 1: a warning */
} nbl_quantize_options;

/* Bytes of each part of a quantised weight; a part that does not exist has 0.
 * The fields are those of nbl_weight. */
typedef struct nbl_quantized_sizes {
    size_t data, scales, scale_codes, nested_scales;
} nbl_quantized_sizes;

NBL_API nbl_status nbl_quantize_sizes(nbl_context *ctx,
                                      const nbl_quantize_options *options,
                                      int rank, const int64_t *shape,
                                      nbl_quantized_sizes *sizes);

/* Memory for the parts, each of the size that nbl_quantize_sizes told. With
 * `nested` both `scales` (as temporary) and `scale_codes` are needed. */
typedef struct nbl_quantized_parts {
    uint8_t *data;
    float *scales;
    uint8_t *scale_codes;
    float *nested_scales;
} nbl_quantized_parts;

/* Quantises a dense f32, f16 or bf16 weight. On success *weight describes the
 * result and points into `parts`. */
NBL_API nbl_status nbl_quantize(nbl_context *ctx,
                                const nbl_quantize_options *options,
                                nbl_dtype dtype, int rank, const int64_t *shape,
                                const void *values,
                                const nbl_quantized_parts *parts,
                                nbl_weight *weight);

/* 8-bit block-wise quantisation with bitsandbytes' dynamic map, as optimiser
 * moments and nested scales use it. `is_signed` selects the map; scales is
 * f32 [ceil(n/block)]; block >= 1. */
NBL_API const float *nbl_dynamic_map(int is_signed); /* [256], ascending */
NBL_API nbl_status nbl_dynamic8_quantize(nbl_context *ctx, int is_signed,
                                         int64_t block, const float *values,
                                         int64_t n, uint8_t *codes,
                                         float *scales);
NBL_API nbl_status nbl_dynamic8_dequantize(nbl_context *ctx, int is_signed,
                                           int64_t block, const uint8_t *codes,
                                           const float *scales, int64_t n,
                                           float *values);

/* ---- 5. Checkpoints -------------------------------------------------------
 *
 * A checkpoint is a folder in Hugging Face layout (config.json, one or more
 * .safetensors files, an index when there are several) or one .safetensors
 * file. Its tensors are listed by logical weight: a packed weight and its
 * scales, tables and state are one entry.
 */
typedef struct nbl_checkpoint nbl_checkpoint;

typedef struct nbl_tensor_info {
    const char *name;
    const char *file; /* file name within the folder */
    int rank;
    int64_t shape[NBL_MAX_RANK]; /* logical, also for packed weights */
    uint64_t bytes;              /* on disk, with all that belongs to it */
    nbl_weight weight;           /* as stored; valid until the close */
    int transposed; /* 1: the logical tensor has the last two dimensions of
                       weight.shape exchanged (experts in MXFP4) */
} nbl_tensor_info;

typedef enum nbl_open_mode {
    NBL_OPEN_STRICT,  /* the first thing that is wrong is an error */
    NBL_OPEN_TOLERANT /* what is wrong is listed as problems where possible */
} nbl_open_mode;

typedef struct nbl_checkpoint_summary {
    const char *architecture; /* NULL when config.json does not tell */
    int64_t tensors;          /* logical */
    int64_t parameters;       /* logical */
    uint64_t bytes;           /* of all tensors */
    const char *quantization; /* NULL, or "nf4", "int8", "mxfp4", "gptq", ... */
    int64_t block;            /* 0: none, or not the same everywhere */
    int nested;               /* scales are double-quantised */
    const char *compute_dtype; /* as config.json names it; NULL: not told */
    int64_t skipped;           /* matrices that were left alone */
    int64_t problems;
} nbl_checkpoint_summary;

NBL_API nbl_status nbl_checkpoint_open(nbl_context *ctx, const char *path,
                                       nbl_open_mode mode,
                                       nbl_checkpoint **checkpoint);
NBL_API void nbl_checkpoint_close(nbl_checkpoint *checkpoint);
NBL_API const nbl_checkpoint_summary *
nbl_checkpoint_get_summary(const nbl_checkpoint *checkpoint);
/* Index from 0; NULL past the end. Tensors come in the order of their files
 * and, within a file, of their data. */
NBL_API const nbl_tensor_info *
nbl_checkpoint_get_tensor(const nbl_checkpoint *checkpoint, int64_t index);
NBL_API const char *nbl_checkpoint_get_problem(const nbl_checkpoint *checkpoint,
                                               int64_t index);
/* Reads every value, packed weights dequantized: a tensor that holds NaN or
 * infinities is an error (NBL_OPEN_STRICT: the first such tensor) or a problem
 * (NBL_OPEN_TOLERANT) that names the tensor, how many, and the index of the
 * first. The file is only read. Reports progress; cancellable. */
NBL_API nbl_status nbl_checkpoint_check_values(nbl_checkpoint *checkpoint);
/* Names of modules whose matrices were not quantised. */
NBL_API const char *nbl_checkpoint_get_skipped(const nbl_checkpoint *checkpoint,
                                               int64_t index);

/* What a conversion did. */
typedef struct nbl_convert_report {
    int64_t tensors, converted; /* logical weights; those that were converted */
    uint64_t bytes_in, bytes_out; /* of the weight files */
    int files;                    /* weight files written */
    int64_t
        non_finite; /* NaN and infinities in the weights that were written */
} nbl_convert_report;

/* Writes folder `out`, which must not exist, from folder `in`. The target
 * appears complete or not at all. `report` may be NULL. */
NBL_API nbl_status nbl_checkpoint_quantize(nbl_context *ctx, const char *in,
                                           const char *out,
                                           const nbl_quantize_options *options,
                                           nbl_convert_report *report);

typedef struct nbl_dequantize_options {
    size_t struct_size;
    nbl_dtype dtype;     /* of the decoded weights: f32, f16 or bf16 */
    uint64_t shard_size; /* 0: 5 GB */
} nbl_dequantize_options;

/* Packed weights are decoded to `dtype`; all other tensors keep their bytes.
 * A warning names each tensor with NaN or infinities. */
NBL_API nbl_status nbl_checkpoint_dequantize(
    nbl_context *ctx, const char *in, const char *out,
    const nbl_dequantize_options *options, nbl_convert_report *report);

typedef struct nbl_tensor_diff {
    const char *name;
    int same_shape; /* 0: the figures below are not computed (NaN) */
    int equal;      /* bit for bit, after decoding to f32 */
    double max_abs, rel_norm, cosine; /* rel_norm: |a - b| / |b| */
} nbl_tensor_diff;

typedef struct nbl_diff nbl_diff;

/* Compares two checkpoints weight by weight, by logical value. */
NBL_API nbl_status nbl_checkpoint_diff(nbl_context *ctx, const char *a,
                                       const char *b, nbl_diff **diff);
NBL_API void nbl_diff_free(nbl_diff *diff);
/* Index from 0; NULL past the end; all three in order of name. */
NBL_API const nbl_tensor_diff *nbl_diff_get_tensor(const nbl_diff *diff,
                                                   int64_t index);
NBL_API const char *nbl_diff_get_missing_in_a(const nbl_diff *diff,
                                              int64_t index);
NBL_API const char *nbl_diff_get_missing_in_b(const nbl_diff *diff,
                                              int64_t index);
/* 1 when nothing is missing and every tensor is equal. */
NBL_API int nbl_diff_equal(const nbl_diff *diff);
/* 1 when nothing is missing, shapes agree and every rel_norm <= tolerance. */
NBL_API int nbl_diff_within(const nbl_diff *diff, double tolerance);

/* ---- 6. Operators ----------------------------------------------------------
 *
 * For authors of frameworks: the pieces of a training step with packed
 * weights. A call is a struct: fill in its inputs and attributes, give the
 * outputs dtype, shape and memory, ask for the scratch it needs, run it.
 *
 *     nbl_linear call = {.dtype = NBL_DTYPE_BF16, .x = x, .w = w, .y = y};
 *     size_t bytes;
 *     nbl_linear_scratch(ctx, &call, 0, &bytes);
 *     void *scratch = aligned_alloc(64, bytes);   (bytes is a multiple of 64)
 *     nbl_linear_forward(ctx, &call, scratch, bytes);
 *
 * - Everything is checked before anything runs: dtypes, shapes, what must be
 *   there. A mismatch is an error that names operator, tensor, dtypes and
 *   shapes; there is no silent cast.
 * - `dtype` is the compute dtype: that of x, y, bias, dy and dx. Packed weights
 *   are decoded straight into it, one rounding, never more than a panel at a
 *   time. Sums are f32. Gradients of parameters are f32.
 * - An optional tensor without data is absent. A gradient without data is not
 *   wanted and not computed. Tensors are row-major and dense (but see
 *   nbl_tensor.row_stride: x, y, dy and dx of a linear layer of rank 2 may lie
 *   in wider rows); activations have any rank >= 1, the last dimension is the
 *   feature; no tokens are fine.
 * - Nothing allocates. Scratch is aligned to 64 bytes and may hold anything;
 *   nothing is kept in it. The number of threads is the context's; it changes
 *   the time, not the bits.
 */
typedef struct nbl_tensor {
    nbl_dtype dtype;
    int rank;
    int64_t shape[NBL_MAX_RANK];
    void *data; /* aligned to its element */
    /* Elements from one entry of the first dimension to the next; 0: dense. For
     * activations of rank 2 [tokens, n] and 3 [tokens, heads, head_dim] that lie
     * in wider rows. The other dimensions are always dense. Operators that do
     * not take a stride refuse it; the rows' other elements are not touched. */
    int64_t row_stride;
} nbl_tensor;

/* Shorthands for rank 1 and 2. */
static inline nbl_tensor nbl_vector(nbl_dtype dtype, int64_t n, void *data)
{
    nbl_tensor t = {dtype, 1, {n}, data, 0};
    return t;
}
static inline nbl_tensor nbl_matrix(nbl_dtype dtype, int64_t rows,
                                    int64_t columns, void *data)
{
    nbl_tensor t = {dtype, 2, {rows, columns}, data, 0};
    return t;
}

/* A frozen linear layer with a trained adapter:
 *
 *     y = x W' + scale (drop(x) A') B'                         LoRA
 *     y = (the same) * magnitude / |W + scale B A| by rows     DoRA
 *     y = ... + bias
 *
 * x [.., in], w [out, in] in any format, A [r, in], B [out, r], magnitude
 * [out]; A, B and magnitude in f32, f16 or bf16; bias in f32 or the dtype. One
 * to eight tokens read the packed weight as it lies (GEMV). A weight in int8
 * multiplies as LLM.int8: columns of x with a value of `threshold` or more stay
 * as they are, the others are quantised to 8 bits by rows; backward uses the
 * decoded weight. DoRA's norm is a constant in backward, as in PEFT. */
typedef struct nbl_linear {
    nbl_dtype dtype;
    nbl_tensor x;
    nbl_weight w;
    nbl_tensor bias, lora_a, lora_b, magnitude; /* optional; A with B */
    nbl_tensor norm; /* f32 [out], optional: |W + scale B A| by rows, when it
                        is known; else it is computed in every call */
    float scale;     /* alpha / r, or alpha / sqrt(r) */
    float dropout;   /* 0 <= p < 1, of the adapter's input */
    uint64_t seed;   /* with the place in x it decides the mask: backward makes
                        the same one again */
    int64_t first_row; /* rows of the mask before that of x's first, >= 0: calls
                          for parts of a batch draw what one for all draws */
    float threshold;   /* int8: usually 6; <= 0: no column is an outlier */
    bool dequantized;  /* int8: multiply with the decoded weight instead, as
                          bitsandbytes trains on a CPU; on a device every packed
                          weight is decoded before it multiplies, however few
                          the rows */
    nbl_tensor y;
    nbl_tensor dy; /* backward's input; the rest are its outputs */
    nbl_tensor dx, dbias, dlora_a, dlora_b, dmagnitude;
    nbl_tensor dw;   /* f32 [out, in]; only with train_w */
    bool train_w;    /* the weight is trained, too: backward makes dw, the
                        gradient of the values that the weight decodes to */
    bool accumulate; /* add to the gradients of parameters */
} nbl_linear;

/* Bytes of scratch for the forward (backward: 0) or backward (1) call. */
NBL_API nbl_status nbl_linear_scratch(nbl_context *ctx, const nbl_linear *call,
                                      int backward, size_t *bytes);
NBL_API nbl_status nbl_linear_forward(nbl_context *ctx, const nbl_linear *call,
                                      void *scratch, size_t bytes);
NBL_API nbl_status nbl_linear_backward(nbl_context *ctx, const nbl_linear *call,
                                       void *scratch, size_t bytes);

/* Root mean square norm, with the residual sum before it:
 *
 *     h = x + residual, rounded to the dtype: residual_out; or h = x
 *     y = h / sqrt(mean(h^2) + eps) * (w + offset)
 *
 * Reduces in f32; y has x's dtype whatever w has (f32, f16 or bf16). Backward:
 * dx is the gradient of x and of residual alike; dresidual, the gradient of
 * residual_out, is added to it when given. */
typedef enum nbl_norm_round {
    NBL_ROUND_BEFORE_WEIGHT, /* Llama: h * rstd is rounded, then * weight */
    NBL_ROUND_AFTER_WEIGHT   /* Gemma: one rounding */
} nbl_norm_round;

typedef struct nbl_rmsnorm {
    nbl_dtype dtype;
    float eps;
    float offset; /* 0; 1 for Gemma */
    int round;    /* nbl_norm_round */
    nbl_tensor x, w;
    nbl_tensor residual;        /* optional */
    nbl_tensor y, residual_out; /* residual_out only with a residual */
    nbl_tensor dy, dresidual;   /* backward's inputs; dresidual is optional */
    nbl_tensor dx, dw;
    bool accumulate; /* add to dw */
} nbl_rmsnorm;

NBL_API nbl_status nbl_rmsnorm_scratch(nbl_context *ctx,
                                       const nbl_rmsnorm *call, int backward,
                                       size_t *bytes);
NBL_API nbl_status nbl_rmsnorm_forward(nbl_context *ctx,
                                       const nbl_rmsnorm *call, void *scratch,
                                       size_t bytes);
NBL_API nbl_status nbl_rmsnorm_backward(nbl_context *ctx,
                                        const nbl_rmsnorm *call, void *scratch,
                                        size_t bytes);

/* One step of AdamW over any number of tensors, in place and in one pass.
 * bits 32: moments in f32, as torch.optim.AdamW. bits 8: moments in 8-bit
 * codes with an f32 scale per 256 elements, as bitsandbytes' AdamW8bit. p and
 * g may be f32, f16 or bf16 each. */
typedef struct nbl_adamw_tensor {
    nbl_tensor p, g;
    nbl_tensor m, v;               /* f32, or u8; the shape of p; start at 0 */
    nbl_tensor m_absmax, v_absmax; /* 8 bits: f32 [ceil(n / 256)]; start at 0 */
} nbl_adamw_tensor;

typedef struct nbl_adamw {
    const nbl_adamw_tensor *tensors;
    int64_t count;
    double lr, beta1, beta2, eps, weight_decay;
    double grad_scale; /* multiplies g: clipping, unscaling; 1: none */
    int64_t step;      /* from 1 */
    int bits;          /* 32 or 8 */
    /* One more factor of g, in the memory where the context computes, read
     * when the step runs; NULL: none. When it is NaN nothing changes. */
    const float *grad_factor;
} nbl_adamw;

NBL_API nbl_status nbl_adamw_step(nbl_context *ctx, const nbl_adamw *call);

/* The norm of all gradients together; with max_norm > 0 they are clipped to
 * it in place, as torch.nn.utils.clip_grad_norm_ does. *non_finite (or NULL)
 * gets the place of the first gradient with a NaN or an infinity, or -1; then
 * nothing is clipped. */
NBL_API nbl_status nbl_grad_norm(nbl_context *ctx, const nbl_tensor *gradients,
                                 int64_t count, double max_norm, float *norm,
                                 int64_t *non_finite);

/* ---- 7. The machine ------------------------------------------------------- */

/* The instruction set the kernels use: "scalar", "avx2", "avx512",
 * "avx512bf16" or "amx"; the best the CPU has, or less when the environment
 * variable NIBBLE_ISA says so. */
NBL_API const char *nbl_isa_name(const nbl_context *ctx);
NBL_API int nbl_threads(const nbl_context *ctx);

/* ---- 8. Text and tokens ----------------------------------------------------
 *
 * A tokenizer turns text into the ids a model reads, and ids back into text,
 * as the tokenizers library does with the same tokenizer.json, id for id.
 *
 *     nbl_tokenizer *tok;
 *     nbl_ids ids;
 *     nbl_tokenizer_open(ctx, "Llama-3.2-1B", &tok);
 *     nbl_tokenizer_encode(tok, "Hello", 5, 1, &ids);
 *     ...
 *     nbl_ids_free(ctx, &ids);
 *     nbl_tokenizer_close(tok);
 *
 * A tokenizer belongs to the context it was opened with and is used by one
 * thread at a time, like the context.
 */
typedef struct nbl_tokenizer nbl_tokenizer;

/* A text of `size` bytes, UTF-8; it may hold zero bytes. */
typedef struct nbl_string {
    const char *text;
    size_t size;
} nbl_string;

/* Ids of tokens. Owned by the caller; nbl_ids_free returns the memory. */
typedef struct nbl_ids {
    int32_t *ids; /* each in 0 ... 2^31 - 2 */
    int64_t count;
} nbl_ids;

/* `path`: a folder with a tokenizer.json, such a file itself, or a .gguf file
 * with a vocabulary. Everything in the file that would change ids is either
 * done or refused with its name. On failure *tokenizer is NULL. */
NBL_API nbl_status nbl_tokenizer_open(nbl_context *ctx, const char *path,
                                      nbl_tokenizer **tokenizer);
/* The same from the text of a tokenizer.json; `name` opens error messages. */
NBL_API nbl_status nbl_tokenizer_parse(nbl_context *ctx, const char *name,
                                       const char *text, size_t size,
                                       nbl_tokenizer **tokenizer);
NBL_API void nbl_tokenizer_close(nbl_tokenizer *tokenizer); /* NULL: nothing */

/* The ids of one text. `special`: with the tokens that the model's template
 * puts around a text (<s> and the like); special tokens that the text itself
 * spells are found in any case. Nothing is cut and nothing is padded (see
 * nbl_tokenizer_set_limits). Text that is not UTF-8 is an NBL_ERROR_FORMAT. */
NBL_API nbl_status nbl_tokenizer_encode(nbl_tokenizer *tokenizer,
                                        const char *text, size_t size,
                                        int special, nbl_ids *ids);
/* Many texts at once, on all threads of the context; lists[i] is of texts[i].
 * On failure no list holds memory. */
NBL_API nbl_status nbl_tokenizer_encode_batch(nbl_tokenizer *tokenizer,
                                              int64_t count,
                                              const nbl_string *texts,
                                              int special, nbl_ids *lists);
/* Whether encoding applies the `truncation` and `padding` of tokenizer.json.
 * Off after opening: transformers switches both off for a model's input. On:
 * as the tokenizers library does with the file. */
NBL_API void nbl_tokenizer_set_limits(nbl_tokenizer *tokenizer, int on);
NBL_API void nbl_ids_free(nbl_context *ctx, nbl_ids *ids);

/* The text of ids, `size` bytes of UTF-8 and a terminating zero; free it with
 * nbl_text_free. Ids that no token has are passed over. `skip_special` leaves
 * special tokens out. Bytes that are no character become U+FFFD. */
NBL_API nbl_status nbl_tokenizer_decode(nbl_tokenizer *tokenizer,
                                        const int32_t *ids, int64_t count,
                                        int skip_special, char **text,
                                        size_t *size);
NBL_API void nbl_text_free(nbl_context *ctx, char *text, size_t size);

/* The id of a token by its text, -1: none; the text of a token by its id,
 * {NULL, 0}: none, valid until the close; how many tokens there are. */
NBL_API int32_t nbl_tokenizer_find(const nbl_tokenizer *tokenizer,
                                   const char *text, size_t size);
NBL_API nbl_string nbl_tokenizer_token(const nbl_tokenizer *tokenizer,
                                       int32_t id);
NBL_API int64_t nbl_tokenizer_size(const nbl_tokenizer *tokenizer);

/* Text while ids come one by one, as from a model that writes. Each call hands
 * out what is complete: never a part of a character. *text is valid until the
 * next call with this stream; its size is 0 when more ids are needed. */
typedef struct nbl_text_stream nbl_text_stream;
NBL_API nbl_status nbl_text_stream_open(nbl_tokenizer *tokenizer,
                                        int skip_special,
                                        nbl_text_stream **stream);
NBL_API nbl_status nbl_text_stream_push(nbl_text_stream *stream, int32_t id,
                                        nbl_string *text);
/* What was held back; the stream then begins anew. */
NBL_API nbl_status nbl_text_stream_finish(nbl_text_stream *stream,
                                          nbl_string *text);
/* NULL is allowed; before the tokenizer's close. */
NBL_API void nbl_text_stream_close(nbl_text_stream *stream);

/* ---- 9. Chat templates ------------------------------------------------------
 *
 * A chat template turns messages into the one text a model was trained on. It
 * is a program in the language of jinja2; this library runs it in a sandbox of
 * its own and gives the text that transformers gives, character for character
 * (docs/TEMPLATES.md says what is supported and where the limits are).
 *
 *     nbl_chat_template *t;
 *     nbl_rendering *r;
 *     nbl_chat chat = {.messages = {json, size}, .generation_prompt = 1};
 *     nbl_chat_template_open(ctx, "Llama-3.2-1B", NULL, &t);
 *     nbl_chat_template_render(t, &chat, &r);
 *     nbl_string text = nbl_rendering_text(r);
 *     ...
 *     nbl_rendering_free(r);
 *     nbl_chat_template_close(t);
 *
 * A template is hostile: its steps, memory, nesting and output are bounded,
 * and it reaches nothing but the values it is handed and the clock. Templates
 * and renderings belong to their context and are used by one thread at a time.
 */
typedef struct nbl_chat_template nbl_chat_template;
typedef struct nbl_rendering nbl_rendering;

/* The templates and special tokens of a model's folder: chat_template.jinja,
 * else chat_template of tokenizer_config.json (a text, or a list of named
 * ones), else chat_template.json; or those in a .gguf file. `file`: a template
 * that is used instead, or the name of a built-in one ("llama3"; see
 * docs/TEMPLATES.md) if there is no such file, or NULL. A model without any
 * template is no error before one is needed. */
NBL_API nbl_status nbl_chat_template_open(nbl_context *ctx, const char *model,
                                          const char *file,
                                          nbl_chat_template **t);
/* The same of a model with an adapter. Special tokens that the adapter's folder
 * names go over the model's; when it has templates they take the place of the
 * model's, and the log (NBL_LOG_INFO) names the file. `adapter` may be NULL. */
NBL_API nbl_status nbl_chat_template_open_adapted(nbl_context *ctx,
                                                  const char *model,
                                                  const char *adapter,
                                                  const char *file,
                                                  nbl_chat_template **t);
/* One template from its text, without a model: no special tokens. `name`
 * opens error messages. */
NBL_API nbl_status nbl_chat_template_parse(nbl_context *ctx, const char *name,
                                           nbl_string text,
                                           nbl_chat_template **t);
NBL_API void nbl_chat_template_close(nbl_chat_template *t); /* NULL: nothing */

/* A variable of the template. `value` is JSON if it parses, else the text
 * itself. Of two with one name the last counts; they go over special tokens. */
typedef struct nbl_chat_variable {
    const char *name;
    nbl_string value;
} nbl_chat_variable;

/* What is rendered. JSON is read as Python reads it. */
typedef struct nbl_chat {
    nbl_string messages; /* a list of objects */
    nbl_string tools;    /* a list of objects; text NULL: none */
    const char *messages_name, *tools_name; /* for error messages; or NULL */
    const nbl_chat_variable *variables;
    int64_t variable_count;
    int generation_prompt; /* add_generation_prompt is true */
} nbl_chat;

/* Fails when the template does not parse, when it raises (its own message is
 * in the error) and when a limit is reached. On failure *rendering is NULL. */
NBL_API nbl_status nbl_chat_template_render(nbl_chat_template *t,
                                            const nbl_chat *chat,
                                            nbl_rendering **rendering);
/* The same from one object {"messages", "tools", "generation_prompt", "set":
 * {variables}, "template": its own}, all optional. Fails only when `line` is
 * not such an object or memory runs out; what goes wrong later is the
 * rendering's nbl_rendering_error. `where` opens error messages. */
NBL_API nbl_status nbl_chat_template_render_line(nbl_chat_template *t,
                                                 const char *where,
                                                 nbl_string line,
                                                 nbl_rendering **rendering);
/* The text, with a terminating zero after it; valid until the free. */
NBL_API nbl_string nbl_rendering_text(const nbl_rendering *rendering);
/* What {% generation %} covers, as [*start, *end) in characters, in the order
 * the blocks ended. Index from 0; returns 0 past the end. */
NBL_API int nbl_rendering_span(const nbl_rendering *rendering, int64_t index,
                               int64_t *start, int64_t *end);
/* Why there is no text, in full and as it is, or {NULL, 0}. */
NBL_API nbl_string nbl_rendering_error(const nbl_rendering *rendering);
NBL_API void nbl_rendering_free(nbl_rendering *rendering); /* NULL: nothing */

/* ---- 10. Models -------------------------------------------------------------
 *
 * A Hugging Face folder (16-bit, bitsandbytes 4- or 8-bit) or a .gguf file of
 * an architecture that is known: llama, mistral, qwen2, qwen3, gemma2,
 * gemma3_text. Weights stay as they are stored and are mapped, not copied. A
 * config with a key that is not understood is refused with the key's name, as
 * are tensors that are missing, left over or of another shape.
 */
typedef struct nbl_model nbl_model;

typedef struct nbl_model_options {
    size_t struct_size;
    const char *dtype; /* of the computation: "f32", "f16", "bf16"; NULL: the
                            checkpoint's own */
    const char *load;  /* convert the linear layers on arrival: "nf4", "fp4",
                            "int8", "mxfp4"; NULL: as they are */
    int load_nested;   /* nf4, fp4: the scales are quantised as well */
    const char
        *adapter;  /* a folder as PEFT saves it, applied live; NULL: none */
    int plan_only; /* 1: for nbl_model_make_plan alone. Nothing is converted
                      or decoded; what would compute is refused */
} nbl_model_options;

/* `options` may be NULL. The model belongs to the context and is used by one
 * thread at a time. */
NBL_API nbl_status nbl_model_open(nbl_context *ctx, const char *path,
                                  const nbl_model_options *options,
                                  nbl_model **model);
NBL_API void nbl_model_close(nbl_model *model); /* NULL: nothing */
NBL_API int64_t nbl_model_vocabulary(const nbl_model *model);

/* The tokenizer of a model with its adapter: the one in the adapter's folder,
 * else the model's own. An adapter's tokenizer.json with more tokens than the
 * model and its own tokenizer have is not used; the log (NBL_LOG_WARNING) says
 * so. */
NBL_API nbl_status nbl_model_tokenizer(nbl_model *model,
                                       nbl_tokenizer **tokenizer);

/* logits[i] gets the logits of every position of sequences[i]: f32 [tokens,
 * vocabulary]. */
NBL_API nbl_status nbl_model_logits(nbl_model *model, const nbl_ids *sequences,
                                    int64_t count, float *const *logits);

/* Receives the gradient of a trained tensor: f32, valid during the call. The
 * name is the one in PEFT's file without "base_model.model.". A status other
 * than NBL_OK ends the work and is returned. */
typedef nbl_status (*nbl_gradient_fn)(void *user, const char *name,
                                      const nbl_tensor *gradient);

/* One forward and backward pass over sequences with labels (one per token,
 * -100: not trained; the label of a token is what is predicted before it): the
 * mean loss over all trained tokens and the gradients of the adapter and of
 * the modules_to_save that it brings. `pack`: all sequences in one pass; else
 * one after the other, with the same result. `dropout`: 0: none; 1: the
 * adapter's lora_dropout, with the masks of seed 0, which are others when
 * sequences are packed. */
NBL_API nbl_status nbl_model_gradients(nbl_model *model,
                                       const nbl_ids *sequences,
                                       const nbl_ids *labels, int64_t count,
                                       int pack, int dropout,
                                       nbl_gradient_fn fn, void *user,
                                       double *loss, int64_t *trained);

/* The same into .safetensors files: tensors logits.0, logits.1, ...; and the
 * gradients under the names of PEFT's file. The file appears whole or not.
 * An existing file is an error (NBL_ERROR_EXISTS), found before the work. With
 * `force` an earlier result of these functions is replaced: its __metadata__
 * says "nibble": "result". Links, devices, FIFOs, folders, other files and
 * files that the context has open are never replaced. */
NBL_API nbl_status nbl_model_write_logits(nbl_model *model,
                                          const nbl_ids *sequences,
                                          int64_t count, const char *path,
                                          int force);
NBL_API nbl_status nbl_model_write_gradients(
    nbl_model *model, const nbl_ids *sequences, const nbl_ids *labels,
    int64_t count, int pack, int dropout, const char *path, int force,
    double *loss, int64_t *trained);

/* The check that both begin with: NBL_OK if a result may be written to `path`.
 * For a program that wants to know before it loads a model. */
NBL_API nbl_status nbl_result_check(nbl_context *ctx, const char *path,
                                    int force);

/* How text is written. All zero but max_tokens: the likeliest token each time. */
typedef struct nbl_generate_options {
    size_t struct_size;
    int64_t max_tokens;       /* per sequence, 1 ... 2^24 */
    float temperature;        /* 0: the likeliest token */
    int64_t top_k;            /* 0: all */
    float top_p, min_p;       /* 0: no limit */
    float repetition_penalty; /* 0 or 1: none */
    uint64_t seed;
    const int32_t *ends; /* tokens that end a sequence; not part of it */
    int64_t end_count;
    /* Called with every new token, from the calling thread; a value other than
     * 0 ends that sequence. Or NULL. */
    int (*token)(void *user, int64_t sequence, int32_t id);
    void *user;
} nbl_generate_options;

typedef struct nbl_generated {
    nbl_ids ids; /* the caller's memory: room for max_tokens; new tokens only */
    int stopped; /* 1: by an end token or by `token`; 0: max_tokens reached */
} nbl_generated;

/* Continues prompts of any lengths, all in one batch. What a sequence gets
 * does not depend on its neighbours, but for the seed's use of its place. */
NBL_API nbl_status nbl_model_generate(nbl_model *model, const nbl_ids *prompts,
                                      int64_t count,
                                      const nbl_generate_options *options,
                                      nbl_generated *results);
/* The tokens that end a sequence by generation_config.json (of the adapter's
 * folder, else of the model's) or config.json, of a .gguf file its eos, eot and
 * eom; at most `room` into ends. Returns how many
 * there are. */
NBL_API int64_t nbl_model_ends(const nbl_model *model, int32_t *ends,
                               int64_t room);
/* The eos_token that tokenizer_config.json of the adapter's folder names, by
 * the model's tokenizer; -1: none. */
NBL_API int32_t nbl_model_adapter_end(const nbl_model *model,
                                      const nbl_tokenizer *tokenizer);

/* What computing with a model takes, before anything is computed: a training
 * step when the model has an adapter, else generation (prompt and cache). The
 * memory that is planned is the memory that is used: a step allocates nothing.
 */
enum {
    NBL_PLAN_MAX_OPS = 96,
    NBL_PLAN_MAX_CASTS = 8192,
    NBL_PLAN_MAX_VALUES = 16
};

typedef struct nbl_plan_arenas { /* bytes */
    uint64_t weights;            /* as they are kept; mapped files included */
    uint64_t adapters;  /* norms, biases, adapters and their gradients */
    uint64_t optimizer; /* moments of AdamW */
    uint64_t saved;     /* lives from the forward to the backward pass */
    uint64_t scratch;   /* everything else of a step */
    uint64_t kv;        /* keys and values */
    uint64_t device;    /* of a CUDA device: its context, libraries, kernels and
                           their workspace; 0: the CPU */
} nbl_plan_arenas;

typedef struct nbl_planned_op {
    const char *op, *impl;
    const char *pass; /* "prepare": when adapters have changed; "forward",
                         "again": recomputed, "backward"; "decode": of a token
                         after the prompt */
    int64_t count;
    double flops, bytes; /* of all of them */
} nbl_planned_op;

typedef struct nbl_planned_cast {
    const char *at;
    nbl_dtype from, to;
    const char *why;
} nbl_planned_cast;

typedef struct nbl_planned_value {
    char name[128];    /* of the first; of scratch: the operator's */
    int64_t count;     /* so many are alike: of one arena, dtype and shape */
    const char *arena; /* as in nbl_plan_arenas */
    nbl_dtype dtype;
    int rank; /* 0: scratch, which has neither dtype nor shape */
    int64_t shape[NBL_MAX_RANK];
    uint64_t bytes; /* of one */
} nbl_planned_value;

typedef struct nbl_model_plan {
    nbl_plan_arenas arenas;
    uint64_t total_bytes; /* their sum */
    nbl_planned_op ops[NBL_PLAN_MAX_OPS];
    int64_t op_count;
    nbl_planned_cast casts[NBL_PLAN_MAX_CASTS]; /* every one there is */
    int64_t cast_count;
    nbl_planned_value values[NBL_PLAN_MAX_VALUES]; /* the largest, but for
                                                       weights */
    int64_t value_count;
    const char *recompute;     /* "none"; "cheap": norms, rotations and the like
                                  are made twice; "layers": whole layers */
    int64_t recomputed_layers; /* of `layers` */
    int64_t layers;
    double recompute_flops;   /* what is computed again */
    int64_t longest_sequence; /* that keeps within the memory asked about, with
                                  recomputation where it must be; without a
                                  limit: the model's own */
    uint64_t smallest_memory; /* the least for the sequence asked about, with
                                  all the recomputation there is */
    int64_t
        dequantized_weights;    /* on a device, training within a budget: packed
                                  weights that are decoded once, and not in
                                  every step; */
    uint64_t dequantized_bytes; /* their part of arenas.weights */
    uint64_t host_bytes;        /* of the host's memory, beside the total, when
                                  all is on a device: layers' inputs that wait
                                  there, an embedding that stays there */
} nbl_model_plan;

/* For `batch` sequences of `tokens`. memory: bytes of everything, weights
 * included, that the plan must keep within; as little as possible is recomputed
 * for it. 0: no limit. Too little memory is NBL_ERROR_MEMORY, and the message
 * names the least. Names belong to the model. From any thread, one call at a
 * time per context. */
NBL_API nbl_status nbl_model_make_plan(nbl_model *model, int64_t tokens,
                                       int64_t batch, uint64_t memory,
                                       nbl_model_plan *plan);

/* ---- 11. Training runs -----------------------------------------------------
 *
 * A run is a YAML file with axolotl's key names; docs/CONFIG.md lists them all.
 * Reading is strict: an unknown key, a key given twice, two keys that
 * contradict each other and a value of the wrong type are refused with file
 * and line. Keys that only steer other engines are accepted; each gets one
 * line of log (NBL_LOG_INFO), empty ones none.
 */
typedef struct nbl_run nbl_run;

/* Reads and checks a configuration; nothing else is opened. `overrides`:
 * `count` texts "key=value" that replace what the file says, in order; a value
 * is YAML ("null" or nothing: as if the key were not given), a key may be a
 * path such as "datasets.0.path". May be NULL when count is 0. Relative paths
 * in the file are relative to the working directory. The run belongs to the
 * caller and borrows the context; on failure *run is NULL. */
NBL_API nbl_status nbl_run_open(nbl_context *ctx, const char *path,
                                const char *const *overrides, int64_t count,
                                nbl_run **run);
NBL_API void nbl_run_close(nbl_run *run); /* NULL is allowed */

/* What a run is about; the texts live as long as the run. */
typedef struct nbl_run_info {
    const char *base_model, *output_dir;
    int adapter; /* 0: the whole model is trained */
    int report;  /* 0: no report.html is written */
    int threads; /* that it asks for; 0: it does not. The caller's choice: see
                    nbl_context_set_threads */
    const char *device; /* "cpu" or "cuda", never "auto": chosen when the run
                           was opened. The caller follows it, or does not:
                           see nbl_context_use_cuda */
    int mergeable; /* an adapter whose base is a folder, not a .gguf file */
} nbl_run_info;
NBL_API nbl_run_info nbl_run_get_info(const nbl_run *run);

/* What a run trains on; docs/DATA.md says how rows become tokens. An example
 * is a sequence of at most sequence_len tokens. */
typedef struct nbl_data_summary {
    int64_t examples;       /* those held back for validation included */
    int64_t tokens;         /* of all examples */
    int64_t trained_tokens; /* that enter the loss: labels that are set, except
                               that of an example's first token */
    int64_t truncated;      /* examples that were cut to sequence_len */
    int64_t dropped;        /* rows too long, bad rows with skip_bad_rows, and
                               examples too short, seen before, or in which
                               nothing is trained */
    int64_t validation;     /* examples held back by val_set_size */
    int64_t too_long, bad, untrained, too_short, duplicates; /* of `dropped` */
} nbl_data_summary;

/* Reads every row of the data once, on all threads; nothing of the model but
 * its tokenizer and config.json is opened. A second call only reports. A row
 * that is not what the run says is an error with file and line. */
NBL_API nbl_status nbl_run_data(nbl_run *run, nbl_data_summary *summary);

/* Text of consecutive tokens that are all trained, or all not. */
typedef struct nbl_preview_part {
    nbl_string text; /* decoded, special tokens included */
    int64_t tokens;
    int trained;
} nbl_preview_part;

/* An example. Memory belongs to the run: valid until the next preview or the
 * close. */
typedef struct nbl_preview {
    const int32_t *ids, *labels; /* [count]; a label stands at its own token,
                                    -100: not trained */
    int64_t count, trained_tokens;
    const nbl_preview_part *parts;
    int64_t part_count;
} nbl_preview;

/* `example` from 0, in the order of the files; opens the data if nbl_run_data
 * has not. Without a tokenizer (rows of tokens only) texts are the ids. */
NBL_API nbl_status nbl_run_preview(nbl_run *run, int64_t example,
                                   nbl_preview *preview);

/* What the run's training step takes. `model`: instead of its base_model, or
 * NULL. `tokens`: of each of `batch` sequences in a step; 0: the largest that
 * the data hold. `memory`: instead of the run's; 0: that. Where the run has
 * none either, the plan recomputes to keep within nine tenths of what the
 * machine has available, as training would. Names in the plan live as long as
 * the run. */
NBL_API nbl_status nbl_run_make_plan(nbl_run *run, const char *model,
                                     int64_t tokens, int64_t batch,
                                     uint64_t memory, nbl_model_plan *plan);

typedef enum nbl_train_event_kind {
    NBL_TRAIN_BEGIN,      /* everything is planned; text: the checkpoint that
                             the run goes on from, or NULL */
    NBL_TRAIN_STEP,       /* after every step */
    NBL_TRAIN_EVALUATION, /* loss is that of the examples held back; text: it is
                             the best so far, in a run that keeps the best; or
                             NULL */
    NBL_TRAIN_SAVED,      /* checkpoint-STEP is complete; text: output_dir */
    NBL_TRAIN_PHASE       /* what the run does beside steps from here on; text:
                             "reading data", "evaluating", "writing samples",
                             ...; comes before NBL_TRAIN_BEGIN, too */
} nbl_train_event_kind;

typedef struct nbl_train_event {
    nbl_train_event_kind kind;
    int64_t step, steps; /* done, in all */
    double epoch;
    double loss, grad_norm, learning_rate, tokens_per_second; /* of the step */
    int64_t trained_tokens;
    uint64_t memory_bytes; /* as planned */
    double seconds, seconds_left;
    const char *text;    /* valid during the call; or NULL */
    int64_t part, parts; /* of a phase: batches done, in all; 0: not counted */
} nbl_train_event;

typedef struct nbl_train_options {
    size_t struct_size;
    int resume; /* go on from the newest whole checkpoint of output_dir, if any */
    /* Called from the calling thread; a value other than 0 ends the run after
     * the step, saved: nbl_run_train then returns NBL_ERROR_CANCELLED. What it
     * returns to NBL_TRAIN_PHASE is ignored. */
    int (*event)(void *user, const nbl_train_event *event);
    void *user;
    /* Prompts of the data that the model continues before the first step and
     * after the last, for the report: at most 8. 0: three, but none for models
     * with more than 10^9 parameters, where they take minutes; below 0: none. */
    int samples;
    /* A resumed run may have another learning rate, schedule, dtype or device
     * than its checkpoint: the change is told in run.yml. Without it, and for
     * all other keys that decide about bytes, a change is refused. */
    int allow_changes;
} nbl_train_options;

typedef struct nbl_train_summary {
    int64_t step, steps;
    double loss, eval_loss; /* the last ones; 0: none */
    int64_t result_step;    /* the step that the result is of: the last one, or
                               with load_best_model_at_end the best evaluated */
    double best_eval_loss; /* of that step; 0: it is not chosen by evaluation */
    double seconds;
    uint64_t memory_bytes;
} nbl_train_summary;

/* Trains, and leaves in output_dir: the adapter (or the model), checkpoint-N,
 * metrics.jsonl, run.yml, report.html and, with samples, samples.json.
 * `options` and `summary` may be NULL. What an earlier run left in output_dir
 * and is not resumed is moved to a folder earlier-N in there. */
NBL_API nbl_status nbl_run_train(nbl_run *run, const nbl_train_options *options,
                                 nbl_train_summary *summary);

/* ---- 12. Merging and exporting ----------------------------------------------
 *
 * What was trained leaves as one model: a folder that transformers loads, or a
 * GGUF file that llama.cpp loads. Both are written beside their target and
 * renamed: they appear complete or not at all.
 */
typedef struct nbl_merge_options {
    size_t struct_size;
    const char *dtype;    /* of all weights: "f32", "f16" or "bf16"; NULL: the
                            one that config.json names, else bf16 */
    int verify;           /* compute logits of the result and of the base with
                            the live adapter before the folder appears */
    uint64_t shard_size;  /* bytes per output file; 0: 5 GB */
    int allow_non_finite; /* as for nbl_checkpoint_quantize */
} nbl_merge_options;

typedef struct nbl_merge_report {
    nbl_convert_report convert; /* `converted`: weights that the adapter
                                   changed or brought */
    nbl_dtype dtype;            /* of the weights */
    int verified;               /* 1: the logits agree as far as dtype allows */
    double max_logit_deviation; /* largest |difference| of any logit */
    double relative_deviation;  /* |difference| / |logits|, of the worst
                                   sequence */
    double allowed_deviation;   /* what dtype explains of it */
} nbl_merge_report;

/* Writes folder `out`, which must not exist, from folder `base` (16-bit, or
 * quantised in any format that is known) and `adapter` (a folder as PEFT saves
 * it): every weight is decoded to f32, summed once and rounded once. The head
 * of a model that ties it becomes its own matrix when the adapter changes it.
 * Files beside the weights are carried over. `options` and `report` may be
 * NULL. A verification that fails is an NBL_ERROR_DTYPE and leaves nothing. */
NBL_API nbl_status nbl_merge(nbl_context *ctx, const char *base,
                             const char *adapter, const char *out,
                             const nbl_merge_options *options,
                             nbl_merge_report *report);

typedef struct nbl_export_options {
    size_t struct_size;
    const char *type;    /* of the matrices: "f32", "f16", "bf16", "q8_0" or
                            "q4_0"; vectors are f32. NULL: see adapter */
    const char *adapter; /* a folder as PEFT saves it, or NULL. With a type: it
                            is merged on the way. Without: the file is a GGUF
                            LoRA for the exported model */
    int ollama;          /* write a Modelfile into the same folder */
} nbl_export_options;

typedef struct nbl_export_report {
    int64_t tensors, parameters;
    int64_t fallen_back; /* matrices that had to be f16: their rows are no
                            multiple of 32 */
    uint64_t bytes;      /* of the file */
} nbl_export_report;

/* Writes the GGUF file `out`, which must not exist (with `ollama` neither may
 * a Modelfile), from folder `model` of a known architecture in any storage.
 * What GGUF or llama.cpp cannot express is refused by name. `report` may be
 * NULL. */
NBL_API nbl_status nbl_export(nbl_context *ctx, const char *model,
                              const char *out,
                              const nbl_export_options *options,
                              nbl_export_report *report);

/* ---- 13. Conversations and evaluation --------------------------------------
 *
 * What a program around a model needs beside it: where its text ends, how much
 * it can read, how well it predicts, and what the machine and the library have.
 */

/* How many chat templates were found; 0: rendering will fail. */
NBL_API int64_t nbl_chat_template_count(const nbl_chat_template *t);

/* The longest sequence the model was made for, in tokens. */
NBL_API int64_t nbl_model_positions(const nbl_model *model);

/* Finds stop strings in a text that comes in pieces, as from a model that
 * writes; one matcher per sequence. A string may lie across any number of
 * pieces. What could be the beginning of one is held back until it is clear.
 *
 *     nbl_stop_matcher_push(m, piece, &shown, &stopped);
 *     fwrite(shown.text, 1, shown.size, stdout);
 *     if (stopped) ...end the sequence...
 *
 * The first string to be complete counts; of several that end at the same byte
 * the longest. It belongs to the context and is used by one thread at a time.
 */
typedef struct nbl_stop_matcher nbl_stop_matcher;

/* `strings`: 0 ... 65536 of them, none empty, all UTF-8; they are copied. On
 * failure *matcher is NULL. */
NBL_API nbl_status nbl_stop_matcher_open(nbl_context *ctx,
                                         const nbl_string *strings,
                                         int64_t count,
                                         nbl_stop_matcher **matcher);
/* Takes the next piece. *shown: text that is part of no stop string, valid
 * until the next call with this matcher, never the stop string or what comes
 * after it. *stopped: 1 once one was found; pieces after that are ignored. */
NBL_API nbl_status nbl_stop_matcher_push(nbl_stop_matcher *matcher,
                                         nbl_string text, nbl_string *shown,
                                         int *stopped);
/* What was held back and turned out to be text; the matcher then begins anew.
 * Valid until the next call. */
NBL_API nbl_string nbl_stop_matcher_finish(nbl_stop_matcher *matcher);
NBL_API void nbl_stop_matcher_close(nbl_stop_matcher *matcher); /* or NULL */

/* Rows of conversations as training makes tokens of them (docs/DATA.md, type
 * chat_template), for whoever judges answers: ids, and which of them an
 * assistant's turn would be trained on with roles_to_train: [assistant].
 *
 *     nbl_chat_encoder_open(model, tokenizer, chat_template, &e);
 *     nbl_chat_encoder_row(e, "chats.jsonl:1", line, &ids, &labels);
 *     ...nbl_model_evaluate(model, &ids, 1, &options, &found)...
 *     nbl_ids_free(ctx, &ids), nbl_ids_free(ctx, &labels);
 *     nbl_chat_encoder_close(e);
 */
typedef struct nbl_chat_encoder nbl_chat_encoder;

/* The three are borrowed until the close. A model without a chat template is
 * an NBL_ERROR_NOT_FOUND. On failure *encoder is NULL. */
NBL_API nbl_status nbl_chat_encoder_open(nbl_model *model,
                                         nbl_tokenizer *tokenizer,
                                         nbl_chat_template *chat_template,
                                         nbl_chat_encoder **encoder);
/* `row`: a JSON object with "messages", and "tools" or not. labels->ids[i] is
 * ids->ids[i], or -100 where nothing is trained; both lists are the caller's.
 * `where` opens error messages. On failure neither list holds memory. */
NBL_API nbl_status nbl_chat_encoder_row(nbl_chat_encoder *encoder,
                                        const char *where, nbl_string row,
                                        nbl_ids *ids, nbl_ids *labels);
NBL_API void nbl_chat_encoder_close(nbl_chat_encoder *encoder); /* or NULL */

/* What a model's predictions of sequences come to. The mean loss is loss_sum /
 * tokens, in nats; the perplexity its exponential; the accuracy hits / tokens.
 */
typedef struct nbl_evaluation {
    double loss_sum; /* of the negative logarithms of the probabilities */
    int64_t tokens;  /* counted: all but the first of each sequence, or those
                        with a label */
    int64_t hits;    /* where the likeliest token is the next one; of equally
                        likely ones the first counts */
} nbl_evaluation;

typedef struct nbl_evaluate_options {
    size_t struct_size;
    /* Called after every pass with the tokens done and in all, from the calling
     * thread; anything but 0 stops with NBL_ERROR_CANCELLED. Or NULL. */
    int (*progress)(void *user, int64_t done, int64_t total);
    void *user;
    /* One list per sequence and as long: a token counts where the label at its
     * own index is not -100 (a first one never does); the label is what should
     * have been predicted. NULL: every token but the first counts. */
    const nbl_ids *labels;
} nbl_evaluate_options;

/* Judges the predictions of the tokens of sequences. Short sequences share
 * a pass; logits exist for a few rows at a time. `options` may be NULL. A loss
 * that is not finite is an error. */
NBL_API nbl_status nbl_model_evaluate(nbl_model *model,
                                      const nbl_ids *sequences, int64_t count,
                                      const nbl_evaluate_options *options,
                                      nbl_evaluation *result);

/* The instruction sets of this architecture, from the first, "scalar", which
 * every machine has. On x86-64 kernels exist for all of them, and each includes
 * those before it. On aarch64 they are independent, and no kernel uses any but
 * the first. */
typedef struct nbl_isa_level {
    const char *name;    /* "avx2"; NIBBLE_ISA takes those that kernels use */
    const char *enables; /* what it is used for, a phrase */
    int found;           /* 1: this machine has it, */
    int used; /* 1: and this context uses it (NIBBLE_ISA may say less) */
} nbl_isa_level;
/* Index from 0; returns 0 past the end. Strings are constants. */
NBL_API int nbl_isa_level_get(const nbl_context *ctx, int64_t index,
                              nbl_isa_level *level);
/* Cores that this process may use. */
NBL_API int nbl_cores(void);
/* The processor's name as the system tells it, cut to fit: "AMD EPYC 7763",
 * "Arm Neoverse-N1". 0: unknown; `name` is then "". */
NBL_API int nbl_processor_name(char *name, size_t size);

/* The libraries this one works with, as found at run time. */
typedef struct nbl_library {
    const char *name;    /* "PCRE2"; a constant */
    const char *enables; /* what it is used for, a phrase; a constant */
    char version[64];    /* its own word for it: "10.42 2022-12-11" */
} nbl_library;
/* Index from 0; returns 0 past the end. */
NBL_API int nbl_library_get(int64_t index, nbl_library *library);

/* ---- 14. Looking at GGUF files and adapters ---------------------------------
 *
 * What is in them, and what is wrong: every problem, not the first alone (at
 * most 1,000 are listed). Texts are UTF-8 and live until the close; they may
 * hold control characters where the file has them.
 */
typedef struct nbl_gguf nbl_gguf;

typedef struct nbl_gguf_summary {
    const char *kind;         /* general.type: "model" (also where it is not
                                 told), "adapter", "mmproj", "vocab", ... */
    const char *architecture; /* general.architecture, or NULL */
    const char *name;         /* general.name, or NULL */
    int version;              /* of the format */
    int64_t tensors, entries; /* entries: keys of the metadata */
    int64_t parameters;
    uint64_t bytes, file_bytes; /* of all tensors; of the file */
    /* Of the model; 0: not told. */
    int64_t layers, hidden, heads, kv_heads, context;
    const char *tokenizer; /* tokenizer.ggml.model: "gpt2", "llama"; or NULL */
    const char *pre;       /* tokenizer.ggml.pre, or NULL */
    int64_t vocabulary;    /* tokens in it */
    int64_t chat_templates;
    int64_t problems;
} nbl_gguf_summary;

typedef struct nbl_gguf_tensor {
    const char *name;
    const char *format; /* "q4_k"; "type 99" where it is unknown */
    int rank;
    int64_t shape[4]; /* the slowest dimension first, as everywhere here */
    int64_t elements;
    uint64_t bytes; /* 0 where the format is unknown */
} nbl_gguf_tensor;

typedef struct nbl_gguf_entry {
    const char *key;
    const char *type;  /* "u32", "f32", "string", "array of string" */
    int64_t count;     /* of an array; else 1 */
    const char *value; /* JSON. Texts are cut to 200 bytes, arrays to their
                          first 8 values; arrays of arrays are empty */
    int cut;           /* 1: there is more */
} nbl_gguf_entry;

/* A token that the metadata name: tokenizer.ggml.NAME_token_id. */
typedef struct nbl_gguf_special {
    const char *name; /* "bos" */
    int64_t id;
    const char *text; /* NULL: no token has the id */
} nbl_gguf_special;

/* Fails only when the file cannot be read, is no GGUF file of version 2 or 3,
 * or memory runs out; else problems are listed. Only the head is read. On
 * failure *gguf is NULL. */
NBL_API nbl_status nbl_gguf_open(nbl_context *ctx, const char *path,
                                 nbl_gguf **gguf);
NBL_API void nbl_gguf_close(nbl_gguf *gguf); /* NULL is allowed */
NBL_API const nbl_gguf_summary *nbl_gguf_get_summary(const nbl_gguf *gguf);
/* Index from 0, in the order of the file; NULL past the end. What they return
 * is valid until the next call of the same function. */
NBL_API const nbl_gguf_tensor *nbl_gguf_get_tensor(nbl_gguf *gguf,
                                                   int64_t index);
NBL_API const nbl_gguf_entry *nbl_gguf_get_entry(nbl_gguf *gguf, int64_t index);
NBL_API const nbl_gguf_special *nbl_gguf_get_special(nbl_gguf *gguf,
                                                     int64_t index);
NBL_API const char *nbl_gguf_get_problem(const nbl_gguf *gguf, int64_t index);

typedef struct nbl_adapter nbl_adapter;

typedef struct nbl_adapter_summary {
    const char *type;       /* peft_type: "LORA"; NULL: adapter_config.json is
                         missing or does not tell */
    const char *base_model; /* base_model_name_or_path, or NULL */
    const char *task;       /* task_type, or NULL */
    int64_t r;              /* with `alpha`: of modules without a pattern */
    double alpha, dropout;
    int rslora, dora, lora_bias;
    const char *target; /* "all-linear", a regular expression, or NULL: the
                           list of nbl_adapter_get_target */
    int64_t modules;    /* that are adapted */
    int64_t replaced;   /* weights that are stored whole */
    int64_t tensors, parameters;
    uint64_t bytes;
    const char *dtype;  /* of all tensors; NULL: they differ */
    int64_t non_finite; /* values that are NaN or infinite */
    int64_t problems;
    int64_t base_problems; /* those found with the base, the last ones */
} nbl_adapter_summary;

typedef struct nbl_adapter_tensor {
    const char *name;
    nbl_dtype dtype;
    int rank;
    int64_t shape[NBL_MAX_RANK];
    int64_t parameters;
    uint64_t bytes;
    int64_t non_finite;
} nbl_adapter_tensor;

/* `path`: a folder as PEFT saves it. `base`: a model's folder or .gguf file
 * that the adapter is compared with, or NULL. Fails only when a file cannot be
 * read, the base does not open, or memory runs out; else problems are listed.
 * All values are read. On failure *adapter is NULL. */
NBL_API nbl_status nbl_adapter_open(nbl_context *ctx, const char *path,
                                    const char *base, nbl_adapter **adapter);
NBL_API void nbl_adapter_close(nbl_adapter *adapter); /* NULL is allowed */
NBL_API const nbl_adapter_summary *
nbl_adapter_get_summary(const nbl_adapter *adapter);
/* Index from 0; NULL past the end. Tensors come by name. */
NBL_API const nbl_adapter_tensor *
nbl_adapter_get_tensor(const nbl_adapter *adapter, int64_t index);
NBL_API const char *nbl_adapter_get_target(const nbl_adapter *adapter,
                                           int64_t index);
NBL_API const char *nbl_adapter_get_saved(const nbl_adapter *adapter,
                                          int64_t index); /* modules_to_save */
NBL_API const char *nbl_adapter_get_problem(const nbl_adapter *adapter,
                                            int64_t index);

/* ---- CUDA devices ---------------------------------------------------------
 *
 * Whether the CUDA backend was built in, and what it finds when it is asked.
 * The runtime is part of this library and looks for the driver in the first of
 * these calls, not before: a machine without one loads the library as well. */

/* 1: this library was built with the CUDA backend; 0: without. */
NBL_API int nbl_cuda_built(void);

typedef struct nbl_cuda_device {
    char name[256];        /* "NVIDIA H200" */
    int major, minor;      /* compute capability: 9, 0 */
    uint64_t memory_bytes; /* of the whole device, not what is free */
} nbl_cuda_device;

/* How many devices there are, and one of them, index from 0. Without any (not
 * built in, no driver, no device) *count is 0, the status
 * NBL_ERROR_UNSUPPORTED, and the message says why. Neither makes a CUDA context
 * or allocates memory of a device. Any thread, each with its own context. */
NBL_API nbl_status nbl_cuda_device_count(nbl_context *ctx, int *count);
NBL_API nbl_status nbl_cuda_device_get(nbl_context *ctx, int index,
                                       nbl_cuda_device *device);

/* 1: nbl_context_use_cuda(ctx, 0) has all it needs (a driver, a device of
 * compute capability 8.0 or later, cuBLASLt); 0: the message says what is
 * missing. What "auto" asks, here and in a run's configuration. */
NBL_API int nbl_cuda_usable(nbl_context *ctx);

/* Models that this context opens from now on keep their weights on that
 * device and run there, on a stream of the context's own; operators (section
 * 6) take the device's memory for tensors, weights and scratch. Once per context,
 * before its first model; it lasts until the context is destroyed.
 * NBL_ERROR_UNSUPPORTED where there is no such device, or one below compute
 * capability 8.0. */
NBL_API nbl_status nbl_context_use_cuda(nbl_context *ctx, int index);

#ifdef __cplusplus
}
#endif
#endif
