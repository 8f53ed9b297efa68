/* output.h - writing a folder that appears complete or not at all.
 *
 *     begin  makes  TARGET.partial-XXXXXX  beside the target, which must not exist
 *     …      files are written in there
 *     commit every file is on disk (fsync); the folder is renamed to TARGET, never over anything
 *     abort  the partial folder is removed
 *
 * A kill between any two system calls leaves no TARGET; at worst the partial folder stays behind
 * under a name that says what it is, and the next output of the same target removes it (partial.h). */
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
    unsigned rights; /* of the files made from now on, less what the umask takes; at first 0666 */
} nbl__output;

/* `bytes_needed` is checked against the free space first. */
nbl_status nbl__output_begin(nbl_context *ctx, const char *target, uint64_t bytes_needed,
                             nbl__output **output);
nbl_status nbl__output_commit(nbl__output *output); /* frees; aborts on failure */
void nbl__output_abort(nbl__output *output);        /* frees; NULL is allowed */

/* A file of the folder; close with nbl__output_close, which makes it durable. */
nbl_status nbl__output_open(nbl__output *output, const char *name, int *fd);
nbl_status nbl__output_write(nbl__output *output, int fd, const char *name, const void *data, size_t size,
                             uint64_t offset); /* any thread */
nbl_status nbl__output_close(nbl__output *output, int fd, const char *name);
/* A whole small file. */
nbl_status nbl__output_put(nbl__output *output, const char *name, const void *data, size_t size);
/* Takes from the output's folder the rights that `source` does not give. */
void nbl__output_narrow(nbl__output *output, const char *source);
/* A byte-for-byte copy of another file, with no more rights than that has. */
nbl_status nbl__output_copy(nbl__output *output, const char *name, const char *source);
/* At most one. */
nbl_status nbl__output_subfolder(nbl__output *output, const char *name);

/* One file that appears complete or not at all: written beside its place. `replace`: it is renamed over what has its
 * name by then; else the name must be free, both now and then. */
typedef struct nbl__new_file {
    nbl__output output; /* for its context and arena; names the file's folder in messages */
    const char *path, *name;
    char *beside;
    bool replace; /* may be changed before the commit */
    int fd;
} nbl__new_file;
nbl_status nbl__new_file_open(nbl_context *ctx, const char *path, bool replace, uint64_t bytes_needed,
                              nbl__new_file *file);
/* Takes from the file what is not in `rights`. */
void nbl__new_file_narrow(nbl__new_file *file, unsigned rights);
nbl_status nbl__new_file_write(nbl__new_file *file, const void *data, size_t size,
                               uint64_t offset); /* any thread */
nbl_status nbl__new_file_commit(nbl__new_file *file);
/* Removes what was not committed, and frees; a file that was never opened (all zero) is allowed. */
void nbl__new_file_close(nbl__new_file *file);

/* Writes one file whole: beside its place, made durable, then renamed over what was there. */
nbl_status nbl__file_put(nbl_context *ctx, const char *path, const void *data, size_t size);
/* The same with these rights at most, never over anything. */
nbl_status nbl__file_put_new(nbl_context *ctx, const char *path, unsigned rights, const void *data,
                             size_t size);

#endif
