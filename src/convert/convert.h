/* convert.h - what quantize, dequantize and diff share: spans of a logical tensor, companion files,
 * and the one way in which a folder is written.
 *
 * A tensor is worked on in spans of NBL_SPAN_BYTES, each by one worker, from mapped pages to a
 * private buffer to its place in the output file. So memory stays small whatever the tensor's size,
 * and a buffer stays in the worker's cache between decoding and writing: spans of 256 KiB wrote a
 * tmpfs 1.5 times as fast as spans of 4 MiB. */
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

/* Elements of the logical tensor. */
int64_t nbl__elements(const nbl_tensor_info *tensor);
/* A span must begin and end at a multiple of this (or end with the tensor). */
int64_t nbl__span_unit(const nbl_tensor_info *tensor);
/* How many elements of `bytes` each a span has: a multiple of `unit`. */
int64_t nbl__span_size(int64_t unit, int64_t bytes);
/* Can its values be decoded to a compute dtype? */
bool nbl__is_decodable(const nbl_tensor_info *tensor);
/* Decodes elements [begin, end) of the logical (flattened) tensor. */
void nbl__span_dequantize(nbl_isa isa, const nbl_tensor_info *tensor, int64_t begin, int64_t end,
                          nbl_dtype dtype, void *out);
/* Brings in, and gives back, the mapped pages that a span reads. */
void nbl__span_fetch(const nbl_tensor_info *tensor, int64_t begin, int64_t end);
void nbl__span_release(const nbl_checkpoint *checkpoint, const nbl_tensor_info *tensor, int64_t begin,
                       int64_t end);
/* Gives back all pages of a tensor that is done with, its scales' too. */
void nbl__tensor_release(const nbl_checkpoint *checkpoint, const nbl_tensor_info *tensor);

/* A buffer for each worker of a team, for the duration of one nbl__run_spans. */
typedef struct nbl__buffers {
    uint8_t *memory;
    size_t bytes; /* of one */
} nbl__buffers;
static inline void *nbl__buffer_of(const nbl__buffers *buffers, int worker)
{
    return buffers->memory + (size_t)worker * buffers->bytes;
}
nbl_status nbl__run_spans(nbl_context *ctx, int64_t items, size_t bytes, nbl__team_fn fn, void *job,
                          nbl__buffers *buffers, const char *what);

/* ---- writing a folder ---- */

typedef struct nbl__conversion {
    nbl_context *ctx;
    nbl_checkpoint *checkpoint;
    nbl__writer *writer;
    nbl__output *output;
    nbl_convert_report report;
    const nbl__text_source *text; /* where text files come from; NULL: copied like all others */
    unsigned rights;              /* of files of weights: what all sources give */
    bool allow_non_finite;        /* NaN and infinities are a warning, not an error */
} nbl__conversion;

/* ---- NaN and infinities of one tensor (quant/non_finite.h) ---- */

/* After the tensor's last value: refuses it or, where that is allowed, warns. `what`: "are not finite". */
nbl_status nbl__non_finite_settle(nbl__conversion *conversion, const char *name, nbl__non_finite *found,
                                  const char *what);

/* Refuses what must not be copied from a model's folder, before the work: links that lead out of it, devices, pipes. */
nbl_status nbl__companions_check(nbl_context *ctx, const char *folder);
/* Opens the source, which must be a folder with a config.json, strictly. */
nbl_status nbl__conversion_open(nbl_context *ctx, const char *in, nbl__conversion *conversion);
/* After all tensors were declared: fixes the layout and begins the output. */
nbl_status nbl__conversion_begin(nbl__conversion *conversion, const char *out, uint64_t shard_size);
/* Edits that make config.json name this dtype, at most two; `text` holds their value. Returns how many. */
int nbl__conversion_dtype(const nbl__conversion *conversion, nbl_dtype dtype, char text[32],
                          nbl__config_edit edits[2]);
/* After all tensors were written: companion files, config.json with edits; then everything is read back. */
nbl_status nbl__conversion_finish(nbl__conversion *conversion, const nbl__config_edit *edits, int count);
/* Looks at the finished folder before anybody else can; a failure removes it. */
typedef nbl_status (*nbl__folder_check)(void *user, const char *folder);
/* Finishes; `check` (or NULL); then the folder appears. */
nbl_status nbl__conversion_commit(nbl__conversion *conversion, const nbl__config_edit *edits, int count,
                                  nbl__folder_check check, void *user);
/* Frees everything; an output that was not committed is removed. */
void nbl__conversion_close(nbl__conversion *conversion);
/* Declares a tensor that keeps its bytes, and copies it. */
nbl_status nbl__declare_copy(nbl__conversion *conversion, int64_t group, const nbl_tensor_info *tensor,
                             int64_t *number);
nbl_status nbl__write_copy(nbl__conversion *conversion, const nbl_tensor_info *tensor, int64_t number);

#endif
