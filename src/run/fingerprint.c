/* fingerprint.c - hashes files in parallel pieces. See fingerprint.h.
 *
 *     file      hash(0, hashes of all pieces)
 *     folder    h = 0; for each file: h = hash(h, {size, hash of the file}) */
#include "run/fingerprint.h"

#include "base/arena.h"
#include "base/file/file.h"
#include "base/hash.h"
#include "base/team.h"
#include "format/hf/checkpoint.h"

typedef struct pieces {
    const nbl__file *file;
    uint64_t *hashes;
} pieces;

/* Work item: hashes one piece and gives its pages back. */
static nbl_status hash_piece(void *argument, int64_t item, int worker)
{
    const pieces *p = argument;
    (void)worker;
    uint64_t at = (uint64_t)item * NBL_FINGERPRINT_PIECE, left = p->file->size - at;
    size_t n = left < NBL_FINGERPRINT_PIECE ? (size_t)left : (size_t)NBL_FINGERPRINT_PIECE;
    p->hashes[item] = nbl__hash(0, p->file->data + at, n);
    nbl__file_drop(p->file, p->file->data + at, n);
    return NBL_OK;
}

/* The hash of a mapped file. */
static nbl_status hash_mapped(nbl_context *ctx, const nbl__file *file, uint64_t *hash)
{
    int64_t count = (int64_t)nbl__ceil_div((int64_t)file->size, NBL_FINGERPRINT_PIECE);
    size_t bytes = (size_t)(count + 1) * sizeof(uint64_t);
    pieces p = {file, nbl__alloc(ctx, bytes)};
    if (p.hashes == NULL) return NBL_ERROR_MEMORY;
    nbl_status status = nbl__team_run(ctx, count, hash_piece, &p, "checking files");
    *hash = nbl__hash(0, p.hashes, (size_t)count * sizeof *p.hashes);
    nbl__free(ctx, p.hashes, bytes);
    return status;
}

nbl_status nbl__fingerprint_file(nbl_context *ctx, const char *path, uint64_t *size, uint64_t *hash)
{
    nbl__file file;
    NBL_TRY(nbl__file_map(ctx, path, &file));
    *size = file.size;
    nbl_status status = hash_mapped(ctx, &file, hash);
    nbl__file_unmap(&file);
    return status;
}

/* Adds a file of a folder to *hash. A missing file counts as {0, 0}. */
static nbl_status add_file(nbl_context *ctx, const char *folder, const char *name, uint64_t *hash)
{
    nbl__arena arena = nbl__arena_make(ctx);
    uint64_t part[2] = {0, 0};
    const char *path = nbl__arena_printf(&arena, "%s/%s", folder, name);
    nbl_status status = path ? NBL_OK : NBL_ERROR_MEMORY;
    if (path && nbl__exists(path)) status = nbl__fingerprint_file(ctx, path, &part[0], &part[1]);
    *hash = nbl__hash(*hash, part, sizeof part);
    nbl__arena_free(&arena);
    return status;
}

nbl_status nbl__fingerprint_model(nbl_context *ctx, const char *path, uint64_t *hash)
{
    uint64_t size;
    *hash = 0;
    if (nbl__ends_with(path, ".gguf")) return nbl__fingerprint_file(ctx, path, &size, hash);
    nbl_checkpoint *c;
    NBL_TRY(nbl_checkpoint_open(ctx, path, NBL_OPEN_STRICT, &c));
    nbl_status status = c->is_folder ? add_file(ctx, path, "config.json", hash) : NBL_OK;
    for (int i = 0; i < c->file_count && status == NBL_OK; i++) {
        uint64_t part[2] = {c->files[i].size, 0};
        status = hash_mapped(ctx, &c->files[i], &part[1]);
        *hash = nbl__hash(*hash, part, sizeof part);
    }
    nbl_checkpoint_close(c);
    return status;
}

nbl_status nbl__fingerprint_adapter(nbl_context *ctx, const char *folder, uint64_t *hash)
{
    *hash = 0;
    NBL_TRY(add_file(ctx, folder, "adapter_config.json", hash));
    return add_file(ctx, folder, "adapter_model.safetensors", hash);
}
