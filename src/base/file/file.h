/* file.h - reading: mapped files for weights, small files whole.
 *
 * A mapped file is read-only. Pages that were used once are given back with nbl__file_drop, so that
 * streaming through a checkpoint keeps the resident set small.
 *
 * Another process may truncate or overwrite a file while it is mapped, and the mapping changes with it. A context
 * therefore knows its mapped files as they were when they were opened, and nbl__files_check compares: after every run
 * of a plan, and before a conversion's result appears. Reading a page that is gone raises SIGBUS; see file_guard.h. */
#ifndef NBL_FILE_H
#define NBL_FILE_H

#include "base/base.h"

typedef struct nbl__mapping nbl__mapping;
typedef struct nbl__file {
    const uint8_t *data;
    uint64_t size;
    nbl__mapping *mapping; /* what the context knows of it; NULL: empty */
} nbl__file;

/* `path` must name a regular file (or a link to one). */
nbl_status nbl__file_map(nbl_context *ctx, const char *path, nbl__file *file);
void nbl__file_unmap(nbl__file *file);
/* Fetches the pages of a range of a mapped file; only a hint. */
void nbl__file_need(const void *begin, uint64_t size);
/* Gives the pages of a range back. Memory that is not of this file is left alone. */
void nbl__file_drop(const nbl__file *file, const void *begin, uint64_t size);

/* Fails by name if a file that the context has mapped changed since: its size, its modification time, or a page that
 * could not be read. One fstat per file. Files beyond the first few hundred are guarded against SIGBUS only: their
 * descriptors would be missed elsewhere. */
nbl_status nbl__files_check(nbl_context *ctx);
/* Is this file (by device and inode) one that the context has mapped? */
bool nbl__files_have(nbl_context *ctx, uint64_t device, uint64_t inode);

/* Reads a whole file of at most `limit` bytes into fresh memory with a terminating zero byte. Free
 * with nbl__free(ctx, *text, *size + 1). */
nbl_status nbl__file_read(nbl_context *ctx, const char *path, uint64_t limit, char **text, size_t *size);

/* May the bytes of this file of a model's folder go into a result? It must be a regular file that lies, once links are
 * followed, in the folder, or where the hub's cache keeps the files of that folder: `snapshots/REVISION/NAME` links to
 * `../../blobs/HASH`. A link that leads anywhere else is refused by name: it would publish what the folder's author
 * never had, /etc/shadow for one. Weights are not asked for this. */
nbl_status nbl__file_inside(nbl_context *ctx, const char *folder, const char *path);

/* What a file that is made of this one may allow: the same reading and writing, and the owner's. 0666 without a file. */
unsigned nbl__path_rights(const char *path);
unsigned nbl__file_rights(const nbl__file *file); /* of a mapped file, as it was when it was opened */

bool nbl__is_folder(const char *path);
bool nbl__exists(const char *path); /* also a dangling link */

#endif
