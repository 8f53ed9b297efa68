/* convert.h - shared by quantize, dequantize, merge, export and diff: spans of a logical tensor,
 * and the steps in which a converted folder is written.
 *
 *     open ─▶ declare tensors ─▶ begin ─▶ write each tensor ─▶ commit        close frees everything
 *
 * A span is a range of a tensor's elements, about NBL_SPAN_BYTES large. One worker processes one
 * span: from mapped pages to a private buffer to its offset in the output file. So memory does not
 * depend on the tensor's size, and the buffer stays in the worker's cache between dequantizing and
 * writing: spans of 256 KiB wrote a tmpfs 1.5 times as fast as spans of 4 MiB. */
#ifndef NBL_CONVERT_H
#define NBL_CONVERT_H

#include "base/file/output.h"
#include "base/team.h"
#include "format/hf/text_files.h"
#include "format/hf/checkpoint.h"
#include "quant/non_finite.h"
#include "quant/quant.h"

enum { NBL_SPAN_BYTES = 256 << 10 };

/* ---- spans ---- */

/* Number of elements of the logical tensor. */
int64_t nbl__elements(const nbl_tensor_info *tensor);
/* A span must begin at a multiple of this, and end at one or at the tensor's end. 1 unless the
 * tensor is stored transposed. */
int64_t nbl__span_unit(const nbl_tensor_info *tensor);
/* Elements per span, for elements of `bytes` bytes in memory: a multiple of `unit`, at least one
 * unit. */
int64_t nbl__span_size(int64_t unit, int64_t bytes);
/* True if the values can be converted to a compute dtype: the tensor is packed, f32, f16 or
 * bf16. */
bool nbl__is_decodable(const nbl_tensor_info *tensor);
/* Converts elements [begin, end) of the flattened logical tensor to `dtype`. */
void nbl__span_dequantize(nbl_isa isa, const nbl_tensor_info *tensor, int64_t begin, int64_t end,
                          nbl_dtype dtype, void *out);
/* Reads in, or drops, the mapped pages of a span. */
void nbl__span_fetch(const nbl_tensor_info *tensor, int64_t begin, int64_t end);
void nbl__span_release(const nbl_checkpoint *checkpoint, const nbl_tensor_info *tensor, int64_t begin,
                       int64_t end);
/* Drops all pages of a tensor, including its scales. */
void nbl__tensor_release(const nbl_checkpoint *checkpoint, const nbl_tensor_info *tensor);

/* One buffer per worker of a team, valid during one nbl__run_spans. */
typedef struct nbl__buffers {
    uint8_t *memory;
    size_t bytes; /* per worker, a multiple of 64 */
} nbl__buffers;
static inline void *nbl__buffer_of(const nbl__buffers *buffers, int worker)
{
    return buffers->memory + (size_t)worker * buffers->bytes;
}
/* Calls fn(job, item, worker) for every item in [0, items) in a team of threads, with a buffer of
 * `bytes` per worker in *buffers. `what` names the work for progress. A failure caused by an input
 * file that changed meanwhile is reported as such. */
nbl_status nbl__run_spans(nbl_context *ctx, int64_t items, size_t bytes, nbl__team_fn fn, void *job,
                          nbl__buffers *buffers, const char *what);

/* ---- writing a folder ---- */

/* The state of one conversion of a folder. */
typedef struct nbl__conversion {
    nbl_context *ctx;
    nbl_checkpoint *checkpoint;
    nbl__safetensors_writer *writer;
    nbl__output *output;
    nbl_convert_report report;
    const nbl__text_source *text; /* source of the text files; NULL: copy them like other companion files */
    unsigned rights;              /* permission bits of weight files: those that all source files share */
    bool allow_non_finite;        /* NaN and infinities are a warning, not an error */
} nbl__conversion;

/* ---- NaN and infinities of one tensor (quant/non_finite.h) ---- */

/* Call it after the tensor's last value. If non-finite values were found: NBL_ERROR_DTYPE, or a
 * warning with allow_non_finite. `what` is the message's predicate: "are not finite". */
nbl_status nbl__non_finite_report(nbl__conversion *conversion, const char *name, nbl__non_finite *found,
                                  const char *what);

/* Checks the files that would be copied from a model's folder, before the work. A link that leads
 * out of the folder, a device or a pipe is an error. */
nbl_status nbl__companions_check(nbl_context *ctx, const char *folder);
/* Opens the source in strict mode. It must be a folder with a config.json. */
nbl_status nbl__conversion_open(nbl_context *ctx, const char *in, nbl__conversion *conversion);
/* Call it after the last declaration: fixes the layout and begins the output. shard_size 0: 5
 * GB. */
nbl_status nbl__conversion_begin(nbl__conversion *conversion, const char *out, uint64_t shard_size);
/* Makes the edits with which config.json names this dtype. `text` holds their value. Returns 1 or
 * 2. */
int nbl__conversion_dtype(const nbl__conversion *conversion, nbl_dtype dtype, char text[32],
                          nbl__config_edit edits[2]);
/* Call it after the last write: copies companion files, writes config.json with the edits, then
 * opens the result to verify it. */
nbl_status nbl__conversion_finish(nbl__conversion *conversion, const nbl__config_edit *edits, int count);
/* Checks the finished folder under its temporary name. On an error the folder is removed. */
typedef nbl_status (*nbl__folder_check)(void *user, const char *folder);
/* Finishes, calls `check` (may be NULL), and renames the folder to its final name. */
nbl_status nbl__conversion_commit(nbl__conversion *conversion, const nbl__config_edit *edits, int count,
                                  nbl__folder_check check, void *user);
/* Frees everything; an output that was not committed is removed. */
void nbl__conversion_close(nbl__conversion *conversion);
/* Declares, and copies, a dense tensor whose bytes do not change. */
nbl_status nbl__declare_copy(nbl__conversion *conversion, int64_t group, const nbl_tensor_info *tensor,
                             int64_t *number);
nbl_status nbl__write_copy(nbl__conversion *conversion, const nbl_tensor_info *tensor, int64_t number);

#endif
