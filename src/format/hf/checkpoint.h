/* checkpoint.h - a folder or file of weights, opened: stored tensors and the logical weights that
 * they make up. checkpoint.c finds and maps the files, tensor_entries.c groups the tensors. */
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

    nbl__file *files;
    int file_count;
    nbl__stored *stored; /* in order of file and place */
    int64_t stored_count;

    nbl_tensor_info *tensors; /* logical, in the order of their main part */
    int64_t tensor_count;
    nbl_checkpoint_summary summary;
    struct nbl__names {
        const char **list;
        int64_t count, capacity;
    } skipped;
    nbl__problems problems;
};

/* What is wrong with the checkpoint becomes an error (strict) or a problem (tolerant); what is wrong
 * with the machine stays an error. Call it with the status of a failed call, after its message. */
nbl_status nbl__checkpoint_problem(nbl_checkpoint *checkpoint, nbl_status status);
nbl_status nbl__names_add(nbl_checkpoint *checkpoint, struct nbl__names *names, const char *name);

/* Gives mapped pages back; memory that is not of the checkpoint's files is left alone. */
void nbl__checkpoint_drop(const nbl_checkpoint *checkpoint, const void *begin, uint64_t size);
/* The same for all pages of the file that this place is in. */
void nbl__checkpoint_drop_file(const nbl_checkpoint *checkpoint, const void *address);

/* Groups the stored tensors into logical weights and fills in the summary (tensor_entries.c). */
nbl_status nbl__checkpoint_group(nbl_checkpoint *checkpoint);

#endif
