/* checkpoint.h - an opened checkpoint: a folder or one .safetensors file.
 *
 *   stored tensor    one entry of a .safetensors file: "W", "W.absmax", "W.quant_map", ...
 *   logical weight   what a model computes with: W, made of one or several stored tensors
 *
 * checkpoint.c finds and maps the files, tensor_entries.c groups stored tensors into weights. All
 * data stays in the mapped files. Strict mode: the first problem is an error. Tolerant mode:
 * problems are listed. A checkpoint is read-only after opening. */
#ifndef NBL_CHECKPOINT_H
#define NBL_CHECKPOINT_H

#include "base/problems.h"
#include "format/hf/config.h"
#include "format/hf/safetensors.h"

struct nbl_checkpoint {
    nbl_context *ctx;
    nbl__arena arena;
    nbl_open_mode mode;
    const char *path;
    bool is_folder;
    nbl__config config; /* root is NULL when there is no config.json */

    nbl__file *files; /* mapped */
    int file_count;
    nbl__stored *stored; /* sorted by file, then by offset */
    int64_t stored_count;

    nbl_tensor_info *tensors; /* logical weights, in the order of their main stored tensor */
    int64_t tensor_count;
    /* [tensor_count]: names that the text model has for these weights (text_part.h); NULL: the weight
     * belongs to another part of the model */
    const char **text_names;
    nbl_checkpoint_summary summary;
    /* Modules whose matrix is dense in a checkpoint that has packed weights. */
    struct nbl__names {
        const char **list;
        int64_t count, capacity;
    } skipped;
    nbl__problems problems; /* tolerant mode only */
};

/* Handles the status of a call that may have failed; call it before another call records a message.
 * An error about the file's contents becomes a listed problem and NBL_OK (tolerant), or gets the
 * checkpoint's path into its message (strict). All other statuses are returned as they are. */
nbl_status nbl__checkpoint_problem(nbl_checkpoint *checkpoint, nbl_status status);
/* Appends a name, which is not copied. The list lives in the checkpoint's arena. */
nbl_status nbl__names_add(nbl_checkpoint *checkpoint, struct nbl__names *names, const char *name);

/* Drops mapped pages from memory; reading them again reads the file. Memory outside the
 * checkpoint's files is ignored. */
void nbl__checkpoint_drop(const nbl_checkpoint *checkpoint, const void *begin, uint64_t size);
/* Drops all pages of the file that contains this address. */
void nbl__checkpoint_drop_file(const nbl_checkpoint *checkpoint, const void *address);

/* Groups the stored tensors into logical weights and fills in the summary (tensor_entries.c). */
nbl_status nbl__checkpoint_group(nbl_checkpoint *checkpoint);

#endif
