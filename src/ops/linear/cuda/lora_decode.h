/* lora_decode.h - linear layers over few rows of x, in the decode phase: the adapter in two
 * launches, from its stored dtype, and int8 with outlier columns. gemv_cuda.h has the base
 * products.
 *
 * All pointers are the device's. Sums are f32 in a fixed order. */
#ifndef NBL_CUDA_LORA_DECODE_H
#define NBL_CUDA_LORA_DECODE_H

#include "device/cuda/cuda.h"

enum { NBL_LORA_DECODE_ROWS = 8 };

/* y holds the base product on entry. */
typedef struct nbl__lora_decode {
    int64_t rows, in, out, rank; /* rank 0: no adapter */
    nbl_dtype dtype;             /* of x and y */
    const void *x;
    nbl_tensor lora_a, lora_b;
    float scale;
    float *t;            /* scratch, [rows, rank] */
    const float *factor; /* [out]; NULL: 1 */
    nbl_tensor bias;     /* may be absent */
    void *y;             /* [rows, out]: x·Wᵀ, and then factor∘(that + s·(x·Aᵀ)·Bᵀ) + bias */
} nbl__lora_decode;
nbl_status nbl__cuda_lora_decode(const nbl__call *call, const nbl__lora_decode *f);

/* LLM.int8 over few rows, in one pass over the weight: code_sums from the codes, sums from the
 * outlier columns. */
typedef struct nbl__int8_small_batch {
    int64_t rows, in, out;
    const int8_t *codes;         /* [rows, in], 0 in columns that stay */
    const void *kept;            /* [rows, in], 0 in all others */
    nbl_dtype kept_dtype, dtype; /* dtype: of dequantized weights */
    const uint8_t *outlier;      /* [in]: does the column stay? */
    const int8_t *w;             /* [out, in] */
    const float *w_scales;       /* [out] */
    float *sums;                 /* [rows, out] */
    int32_t *code_sums;          /* [rows, out] */
} nbl__int8_small_batch;
nbl_status nbl__cuda_int8_small_batch(const nbl__call *call, const nbl__int8_small_batch *f);

#endif
