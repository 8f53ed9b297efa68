/* result_file.h - writes results to one .safetensors file: logits, gradients, outputs of an
 * operator.
 *
 * A result has "nibble": "result" in its __metadata__. A target path is refused with
 * NBL_ERROR_EXISTS if it is
 *   - an existing file, unless the caller wants to replace it and it has this mark
 *   - a link, FIFO, socket, device or folder
 *   - a file that the context has mapped: an input of the same command
 *   - in a folder of a model or adapter, under a name that a reader of models would open */
#ifndef NBL_RESULT_FILE_H
#define NBL_RESULT_FILE_H

#include "format/hf/safetensors.h"

/* Checks whether a result may be written to `path`. replace: an earlier result may be replaced.
 * Call it before the computation, so that a bad path costs no time. Writing checks again. */
nbl_status nbl__result_file_check(nbl_context *ctx, const char *path, bool replace);
/* Writes the tensors. The file appears complete or not at all. The whole file is built in memory
 * first. */
nbl_status nbl__result_file_write(nbl__arena *arena, const char *path, bool replace,
                                  const nbl__stored *tensors, int64_t count);

#endif
