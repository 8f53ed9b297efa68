/* output.h - writes a folder (nbl__output) or a file (nbl__new_file) that appears complete or
 * not at all.
 *
 *     begin    creates TARGET.partial-XXXXXX beside the target, which must not exist
 *     …        files are written into it
 *     commit   every file is on disk (fsync); the folder is renamed to TARGET, never over anything
 *     abort    removes the partial folder
 *
 * A process killed between any two system calls leaves no TARGET. At worst the partial folder
 * remains; the next output to the same target removes it (partial.h).
 *
 * Only nbl__output_write and nbl__new_file_write may be called by several threads. */
#ifndef NBL_OUTPUT_H
#define NBL_OUTPUT_H

#include "base/arena.h"

typedef struct nbl__output {
    nbl_context *ctx;
    nbl__arena arena;
    char *target; /* without trailing slashes */
    char *partial;
    char *subfolder; /* NULL: none */
    int folder;      /* descriptor of the partial folder */
    /* permission bits of files created from now on, before the umask; initially 0666 */
    unsigned rights;
} nbl__output;

/* Creates the partial folder. Fails with NBL_ERROR_EXISTS if the target exists, and with
 * NBL_ERROR_NO_SPACE if the disk has less than `bytes_needed` bytes free. */
nbl_status nbl__output_begin(nbl_context *ctx, const char *target, uint64_t bytes_needed,
                             nbl__output **output);
nbl_status nbl__output_commit(nbl__output *output); /* frees `output`; aborts on failure */
void nbl__output_abort(nbl__output *output);        /* frees `output`; NULL is allowed */

/* Creates a file in the folder. Close it with nbl__output_close, which syncs it to disk. */
nbl_status nbl__output_open(nbl__output *output, const char *name, int *fd);
nbl_status nbl__output_write(nbl__output *output, int fd, const char *name, const void *data, size_t size,
                             uint64_t offset); /* any thread */
nbl_status nbl__output_close(nbl__output *output, int fd, const char *name);
/* Creates a file with this content. */
nbl_status nbl__output_put(nbl__output *output, const char *name, const void *data, size_t size);
/* Removes the permission bits from the output's folder that the folder `source` does not have. */
void nbl__output_narrow(nbl__output *output, const char *source);
/* Copies a file; the copy's permission bits are those of nbl__path_rights. */
nbl_status nbl__output_copy(nbl__output *output, const char *name, const char *source);
/* Creates a folder in the output; at most one per output. */
nbl_status nbl__output_subfolder(nbl__output *output, const char *name);

/* One file that appears complete or not at all: it is written under a temporary name beside
 * `path` and renamed. `replace`: an existing file of that name is replaced; otherwise the name
 * must be free at open and at commit. */
typedef struct nbl__new_file {
    nbl__output output; /* context, arena, and the file's folder for messages */
    const char *path, *name;
    /* the temporary's path; NULL once renamed */
    char *beside;
    bool replace; /* may be changed before the commit */
    int fd;
} nbl__new_file;
/* Creates the temporary. Call nbl__new_file_close in any case, also after a failure. */
nbl_status nbl__new_file_open(nbl_context *ctx, const char *path, bool replace, uint64_t bytes_needed,
                              nbl__new_file *file);
/* Removes permission bits that are not in `rights`. */
void nbl__new_file_narrow(nbl__new_file *file, unsigned rights);
nbl_status nbl__new_file_write(nbl__new_file *file, const void *data, size_t size,
                               uint64_t offset); /* any thread */
nbl_status nbl__new_file_commit(nbl__new_file *file);
/* Removes the temporary unless it was committed, and frees. An all-zero struct is allowed. */
void nbl__new_file_close(nbl__new_file *file);

/* Writes a file whole: temporary, fsync, rename over an existing file. */
nbl_status nbl__file_put(nbl_context *ctx, const char *path, const void *data, size_t size);
/* The same with at most these permission bits. Fails with NBL_ERROR_EXISTS if the file exists. */
nbl_status nbl__file_put_new(nbl_context *ctx, const char *path, unsigned rights, const void *data,
                             size_t size);

#endif
