/* fingerprint.h - checksums of whole files: they identify the model and the adapter that a run
 * began with.
 *
 * The checksum of a file is the hash of the hashes of its 4 MiB pieces, in order. The context's
 * threads hash pieces; the checksum does not depend on their number. The pages of a piece are
 * given back once it is hashed. */
#ifndef NBL_FINGERPRINT_H
#define NBL_FINGERPRINT_H

#include "base/base.h"

enum { NBL_FINGERPRINT_PIECE = 4 << 20 };

/* *size in bytes and *hash of one file. */
nbl_status nbl__fingerprint_file(nbl_context *ctx, const char *path, uint64_t *size, uint64_t *hash);
/* *hash over the weight files and config.json of a model. `path`: a folder or a .gguf file. */
nbl_status nbl__fingerprint_model(nbl_context *ctx, const char *path, uint64_t *hash);
/* *hash over adapter_config.json and adapter_model.safetensors. */
nbl_status nbl__fingerprint_adapter(nbl_context *ctx, const char *folder, uint64_t *hash);

#endif
