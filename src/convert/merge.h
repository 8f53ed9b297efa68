/* merge.h - a checkpoint with an adapter taken in: what each tensor of the result is made of, and its values.
 *
 *     W'[o, :] = W[o, :] + scale · Σ_k B[o, k] · A[k, :]                    LoRA
 *     W'[o, :] = that · magnitude[o] / |that|                              DoRA
 *     W'       = the adapter's own                                         modules_to_save
 *
 * W is decoded to f32 straight from its storage; the sum, the norm and the product are f64; the result is rounded to
 * f32, and by whoever writes it once to its dtype. Without an adapter the values are the checkpoint's own. */
#ifndef NBL_MERGE_H
#define NBL_MERGE_H

#include "convert/convert.h"
#include "format/peft/peft.h"

typedef struct nbl__merged {
    const char *name;
    int rank;
    int64_t shape[NBL_MAX_RANK];
    int64_t rows, columns; /* a row is the last dimension */
    const nbl_tensor_info
        *base;                 /* where values come from, and what its bytes are counted by; NULL: `stored` */
    const nbl__stored *stored; /* counts instead of base: a weight that the adapter brings */
    const nbl__peft_module *with; /* the adapter that is added; NULL: none */
    bool is_bias;                 /* what is added is the bias of B */
} nbl__merged;

typedef struct nbl__merge {
    nbl_context *ctx;
    nbl__arena arena;
    const nbl_checkpoint *checkpoint;
    nbl__peft *peft; /* NULL: none */
    nbl__merged *tensors;
    int64_t count;
    bool untied; /* the result has a head of its own, the checkpoint had none */

    /* The tensor at work, between nbl__merge_load and the next: f32, [rows, rank] and [rank, columns]. */
    float *left, *right;
    size_t left_bytes, right_bytes;
} nbl__merge;

/* Checks the adapter (NULL: none) against the checkpoint, which must live as long. */
nbl_status nbl__merge_open(nbl_checkpoint *checkpoint, const char *adapter, nbl__merge *merge);
void nbl__merge_close(nbl__merge *merge);
const nbl__merged *nbl__merge_find(const nbl__merge *merge, const char *name); /* NULL: none */
/* Whether it has values to compute with, rather than bytes to keep. */
bool nbl__merged_is_numeric(const nbl__merged *tensor);
/* Brings in the factors of a tensor; then rows of it may be made, from any thread. */
nbl_status nbl__merge_load(nbl__merge *merge, const nbl__merged *tensor);
/* Rows [begin, end) in f32. `scratch` has a double for each column. */
void nbl__merge_rows(const nbl__merge *merge, const nbl__merged *tensor, int64_t begin, int64_t end,
                     float *out, double *scratch);

/* The folder `out` of base and adapter; `dtype` NULL: what config.json says, else bf16. *chosen is told before `check`
 * is called. */
typedef struct nbl__merge_folder {
    const char *base, *adapter, *out, *dtype;
    uint64_t shard_size;
    bool allow_non_finite;
    nbl__folder_check check; /* or NULL */
    void *user;
    nbl_dtype *chosen;            /* or NULL */
    const nbl__text_source *text; /* or NULL: as the base has them */
} nbl__merge_folder;
nbl_status nbl__merge_write(nbl_context *ctx, const nbl__merge_folder *how, nbl_convert_report *report);

#endif
