/* file.h - reading files: large ones (weights) are mapped, small ones are read whole.
 *
 * A mapping is read-only. Pages that were used once are given back with nbl__file_drop, so that
 * streaming through a checkpoint needs little resident memory.
 *
 * Another process may truncate or overwrite a file while it is mapped; the mapping changes with
 * it. The context therefore remembers size and modification time of each mapped file, and
 * nbl__files_check compares them: after every run of a plan, and before a conversion's result
 * appears. Reading a page that no longer exists raises SIGBUS; see file_guard.h.
 *
 * A mapping belongs to one context; unmap it before the context is destroyed. */
#ifndef NBL_FILE_H
#define NBL_FILE_H

#include "base/base.h"

typedef struct nbl__mapping nbl__mapping;
typedef struct nbl__file {
    const uint8_t *data;
    uint64_t size;
    nbl__mapping *mapping; /* the context's record of the file; NULL: the file is empty */
} nbl__file;

/* Maps a regular file, or a link to one. An empty file gives size 0 and data NULL. A missing
 * file is NBL_ERROR_NOT_FOUND, with a hint if the path looks like a name on the Hugging Face
 * hub. */
nbl_status nbl__file_map(nbl_context *ctx, const char *path, nbl__file *file);
void nbl__file_unmap(nbl__file *file);
/* Reads the pages of a range ahead. Only a hint. */
void nbl__file_need(const void *begin, uint64_t size);
/* Drops the resident pages of a range; they are read again on the next access. Ignored if
 * `begin` is not in this mapping. */
void nbl__file_drop(const nbl__file *file, const void *begin, uint64_t size);

/* Fails with NBL_ERROR_IO and the file's path if a mapped file has changed: its size, its
 * modification time, or a page that could not be read. Cost: one fstat per file. Files whose
 * descriptor number was above 400 are checked for unreadable pages only, because the rest of the
 * process needs its descriptors. */
nbl_status nbl__files_check(nbl_context *ctx);
/* True if the context has mapped the file with this device and inode. */
bool nbl__files_have(nbl_context *ctx, uint64_t device, uint64_t inode);

/* Reads a whole file of at most `limit` bytes into new memory, with a terminating zero byte. The
 * caller frees it with nbl__free(ctx, *text, *size + 1). A larger file is NBL_ERROR_FORMAT. */
nbl_status nbl__file_read(nbl_context *ctx, const char *path, uint64_t limit, char **text, size_t *size);

/* Checks that a file of a model's folder may be copied into a result. It must be a regular file.
 * After links are resolved, it must be in the folder, or in the hub's cache for that folder
 * (`snapshots/REVISION/NAME` links to `../../blobs/HASH`). Any other link is an error that names
 * it: it could publish a file that the folder's author does not have, such as /etc/shadow.
 * Weights are not checked. */
nbl_status nbl__file_inside(nbl_context *ctx, const char *folder, const char *path);

/* Permission bits for a file that is derived from this one: its read and write bits, and 0600.
 * 0666 if there is no file. */
unsigned nbl__path_rights(const char *path);
/* The same for a mapped file, as of its opening. */
unsigned nbl__file_rights(const nbl__file *file);

bool nbl__is_folder(const char *path);
bool nbl__exists(const char *path); /* true for a dangling link, too */

#endif
