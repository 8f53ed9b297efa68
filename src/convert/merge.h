/* merge.h - merges an adapter into a checkpoint: the list of the result's tensors, and their
 * values.
 *
 *     V[o, :]  = W[o, :] + scale · Σ_k B[o, k] · A[k, :]
 *     W'[o, :] = V[o, :]                                   LoRA
 *     W'[o, :] = V[o, :] · magnitude[o] / |V[o, :]|        DoRA
 *     W'       = the adapter's weight                      modules_to_save
 *     b'       = b + scale · bias of B                     lora_bias
 *     W'_e     = W_e + scale · B_e · A_e                   experts: in the file's own layout, which may
 *                                                          be a tensor per expert, a stack
 *                                                          [expert, out, in], or one [expert, in, out]
 *
 * Numerics: W is dequantized to f32; sums, norm and product are f64; the result is rounded to f32,
 * and once more to the output's dtype by the caller. Without an adapter the values are the
 * checkpoint's. */
#ifndef NBL_MERGE_H
#define NBL_MERGE_H

#include "convert/convert.h"
#include "convert/expert_tensors.h"

/* One tensor of the result. */
typedef struct nbl__merged {
    const char *name; /* as the checkpoint stores it */
    const char *text; /* as the text model names it; NULL: it belongs to another part (text_part.h) */
    int rank;
    int64_t shape[NBL_MAX_RANK];
    int64_t rows, columns;        /* columns: the last dimension; rows: all others together */
    const nbl_tensor_info *base;  /* the checkpoint's tensor; never NULL. Progress counts its bytes */
    const nbl__stored *stored;    /* the adapter's whole weight, which replaces base's values; NULL: none */
    const nbl__peft_module *with; /* the adapter that is added; NULL: none */
    bool is_bias;                 /* the tensor is a bias, to which the bias of B is added */
    nbl__expert_tensor is;        /* of which experts */
} nbl__merged;

typedef struct nbl__merge_job {
    nbl_context *ctx;
    nbl__arena arena;
    const nbl_checkpoint *checkpoint;
    nbl__peft *peft; /* NULL: none */
    nbl__merged *tensors;
    int64_t count;
    bool untied; /* the checkpoint's head is tied, the result has a head of its own */

    /* Factors of the tensor of the last nbl__merge_load: f32, [rows, rank] and [rank, columns]; of a
     * stack, the right one of each expert. */
    float *left, *right;
    size_t left_bytes, right_bytes;
} nbl__merge_job;

/* Opens the adapter (a folder; NULL: none), checks it against the checkpoint and lists the result's
 * tensors. The checkpoint must outlive *merge. Call nbl__merge_close also after an error. */
nbl_status nbl__merge_open(nbl_checkpoint *checkpoint, const char *adapter, nbl__merge_job *merge);
void nbl__merge_close(nbl__merge_job *merge);
/* The tensor that the text model names so; NULL: none. */
const nbl__merged *nbl__merge_find(const nbl__merge_job *merge, const char *name);
/* True if the tensor has values to compute with; false: its bytes are copied. */
bool nbl__merged_is_numeric(const nbl__merged *tensor);
/* Loads the factors of a tensor. Afterwards any thread may call nbl__merge_rows for it. */
nbl_status nbl__merge_load(nbl__merge_job *merge, const nbl__merged *tensor);
/* Computes rows [begin, end) in f32. scratch: `columns` doubles, per thread; NULL if no matrix is
 * added. */
void nbl__merge_rows(const nbl__merge_job *merge, const nbl__merged *tensor, int64_t begin, int64_t end,
                     float *out, double *scratch);

/* ---- merge_folder.c ---- */

/* How to write a merged folder. */
typedef struct nbl__merge_folder {
    const char *base, *adapter, *out; /* folders */
    nbl_compute_dtype dtype;          /* default: of config.json, else bf16 */
    uint64_t shard_size;              /* 0: the default */
    bool allow_non_finite;
    nbl__folder_check check;      /* called before the folder appears; or NULL */
    void *user;                   /* argument of check */
    nbl_dtype *chosen;            /* result: the dtype, set before check is called; or NULL */
    const nbl__text_source *text; /* source of the text files; NULL: the base */
} nbl__merge_folder;
/* Merges base and adapter into the new folder `out`, which appears complete or not at all. */
nbl_status nbl__merge_write(nbl_context *ctx, const nbl__merge_folder *how, nbl_convert_report *report);

#endif
