/* lora_decode.h - linear layers over few rows of x, as in generation, beside gemv_cuda.h: the
 * adapter in two launches, read as it is stored, and int8 with outlier columns. Pointers are to
 * device memory; sums are f32 in a fixed order. */
#ifndef NBL_LORA_DECODE_H
#define NBL_LORA_DECODE_H

#include "device/cuda/cuda.h"

enum { NBL_MAX_LORA_DECODE_ROWS = 8 };

typedef struct nbl__lora_decode {
    int64_t rows, in, out, rank; /* rank 0: no adapter */
    nbl_dtype dtype;             /* of x and y */
    const void *x;
    nbl_tensor lora_a, lora_b;
    float scale;
    float *t;            /* scratch, [rows, rank] */
    const float *factor; /* [out]; NULL: 1 */
    nbl_tensor bias;     /* may be absent */
    void *y;             /* [rows, out]: in x·Wᵀ, out factor∘(x·Wᵀ + s·(x·Aᵀ)·Bᵀ) + bias */
} nbl__lora_decode;
nbl_status nbl__cuda_lora_decode(const nbl__call *call, const nbl__lora_decode *f);

/* LLM.int8 over few rows, in one pass over the weight: the products of the codes, and of the
 * outlier columns. */
typedef struct nbl__int8_small_batch {
    int64_t rows, in, out;
    const int8_t *codes;            /* [rows, in], 0 in outlier columns */
    const void *outliers;           /* [rows, in]: x in outlier columns, else 0 */
    nbl_dtype outlier_dtype, dtype; /* dtype: weights are dequantized to it */
    const uint8_t *outlier;         /* [in]: 1 for outlier columns */
    const int8_t *w;                /* [out, in] */
    const float *w_scales;          /* [out] */
    float *sums;                    /* [rows, out] */
    int32_t *code_sums;             /* [rows, out] */
} nbl__int8_small_batch;
nbl_status nbl__cuda_int8_small_batch(const nbl__call *call, const nbl__int8_small_batch *f);

#endif
