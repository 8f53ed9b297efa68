/* result_file.h - results that are one .safetensors file: logits, gradients, the outputs of an operator.
 *
 * A result carries "nibble": "result" in its __metadata__. Only a file with this mark is ever replaced, and only if the
 * caller asks for it. Links, FIFOs, devices and folders are refused, and so is every file that the context has mapped:
 * those are the inputs. A name that a reader of models looks for is refused in the folder of a model or adapter. */
#ifndef NBL_RESULT_FILE_H
#define NBL_RESULT_FILE_H

#include "format/hf/safetensors.h"

/* May a result be written to `path`? `replace`: an earlier result may be replaced. Call it before the work; writing
 * checks again. */
nbl_status nbl__result_file_check(nbl_context *ctx, const char *path, bool replace);
nbl_status nbl__result_file_write(nbl__arena *arena, const char *path, bool replace,
                                  const nbl__stored *tensors, int64_t count);

#endif
