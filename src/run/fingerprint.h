/* fingerprint.h - checksums of whole files: which model and which adapter a run began with.
 *
 * A file's checksum is the hash of the hashes of its 4 MiB pieces, in order. The context's threads hash pieces; any
 * number of threads gives the same checksum. A piece's pages are given back once it is hashed. */
#ifndef NBL_FINGERPRINT_H
#define NBL_FINGERPRINT_H

#include "base/base.h"

enum { NBL_FINGERPRINT_PIECE = 4 << 20 };

nbl_status nbl__fingerprint_file(nbl_context *ctx, const char *path, uint64_t *size, uint64_t *hash);
/* Every byte of a model's weight files and of its config.json; `path` is a folder or a .gguf file. */
nbl_status nbl__fingerprint_model(nbl_context *ctx, const char *path, uint64_t *hash);
/* adapter_config.json and adapter_model.safetensors. */
nbl_status nbl__fingerprint_adapter(nbl_context *ctx, const char *folder, uint64_t *hash);

#endif
