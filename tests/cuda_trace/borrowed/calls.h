/* calls.h - every operator of nibble.h as a call in memory of the traced device, for the tests of borrowed streams.
 *
 * The memory is the caller's, as a framework's is: tensors are allocated once, scratch before each call. Kernels of the
 * stub do nothing, so what tensors hold does not matter. */
#ifndef NIBBLE_BORROWED_CALLS_H
#define NIBBLE_BORROWED_CALLS_H

#include <cuda_runtime_api.h>

#include "nibble.h"
#include "support.h"

enum { IN = 256, OUT = 256, RANK = 8, TOKENS = 64, VOCABULARY = 512, HEADS = 4, HEAD_DIM = 64 };

/* One call of an operator. `run` asks for the scratch where the operator has some, takes it from `scratch`, and runs. */
typedef struct operation {
    const char *name;
    nbl_status (*run)(nbl_context *ctx, uint8_t *scratch);
    bool waits; /* its comment says so */
} operation;
extern const operation operations[]; /* NULL name at the end */
enum { SCRATCH_BYTES = 256 << 20 };

/* Allocates all tensors on the traced device, and frees them. */
void calls_open(void);
void calls_close(void);
/* SCRATCH_BYTES of the device's memory, aligned as a framework aligns it. */
uint8_t *calls_scratch(void);

/* A layer over NF4 with double quantization: TOKENS rows of bf16, LoRA with dropout, seed on the device. */
nbl_linear *calls_layer(void);
/* The same weight, one row without adapter. */
nbl_linear *calls_row(void);
nbl_status calls_linear(nbl_context *ctx, const nbl_linear *call, bool backward, uint8_t *scratch);

#endif
