/* ggml.h - the block formats of GGUF files: sizes, exact dequantization, encoding.
 *
 * A row is cut into blocks of 1 to 256 values that carry their own scales. A block never spans
 * two rows, so a tensor can be dequantized from any block on. Values are computed in f32 in the
 * order of upstream's reference (Python's gguf.quants, ggml-quants.c), each product and sum
 * rounded; the result is rounded once to the target dtype. All instruction sets give the same
 * bits. */
#ifndef NBL_GGML_H
#define NBL_GGML_H

#include "tensor/dtype.h"

/* X(NAME, number in files, name, values per block, bytes per block) */
#define NBL_GGML_TABLE(X)                                                                                    \
    X(F32, 0, "f32", 1, 4)                                                                                   \
    X(F16, 1, "f16", 1, 2)                                                                                   \
    X(Q4_0, 2, "q4_0", 32, 18)                                                                               \
    X(Q4_1, 3, "q4_1", 32, 20)                                                                               \
    X(Q5_0, 6, "q5_0", 32, 22)                                                                               \
    X(Q5_1, 7, "q5_1", 32, 24)                                                                               \
    X(Q8_0, 8, "q8_0", 32, 34)                                                                               \
    X(Q8_1, 9, "q8_1", 32, 40)                                                                               \
    X(Q2_K, 10, "q2_k", 256, 84)                                                                             \
    X(Q3_K, 11, "q3_k", 256, 110)                                                                            \
    X(Q4_K, 12, "q4_k", 256, 144)                                                                            \
    X(Q5_K, 13, "q5_k", 256, 176)                                                                            \
    X(Q6_K, 14, "q6_k", 256, 210)                                                                            \
    X(Q8_K, 15, "q8_k", 256, 292)                                                                            \
    X(IQ2_XXS, 16, "iq2_xxs", 256, 66)                                                                       \
    X(IQ2_XS, 17, "iq2_xs", 256, 74)                                                                         \
    X(IQ3_XXS, 18, "iq3_xxs", 256, 98)                                                                       \
    X(IQ1_S, 19, "iq1_s", 256, 50)                                                                           \
    X(IQ4_NL, 20, "iq4_nl", 32, 18)                                                                          \
    X(IQ3_S, 21, "iq3_s", 256, 110)                                                                          \
    X(IQ2_S, 22, "iq2_s", 256, 82)                                                                           \
    X(IQ4_XS, 23, "iq4_xs", 256, 136)                                                                        \
    X(I8, 24, "i8", 1, 1)                                                                                    \
    X(I16, 25, "i16", 1, 2)                                                                                  \
    X(I32, 26, "i32", 1, 4)                                                                                  \
    X(I64, 27, "i64", 1, 8)                                                                                  \
    X(F64, 28, "f64", 1, 8)                                                                                  \
    X(IQ1_M, 29, "iq1_m", 256, 56)                                                                           \
    X(BF16, 30, "bf16", 1, 2)                                                                                \
    X(TQ1_0, 34, "tq1_0", 256, 54)                                                                           \
    X(TQ2_0, 35, "tq2_0", 256, 66)                                                                           \
    X(MXFP4, 39, "mxfp4", 32, 17)                                                                            \
    X(NVFP4, 40, "nvfp4", 64, 36)                                                                            \
    X(Q1_0, 41, "q1_0", 128, 18)

typedef enum nbl__ggml_type {
#define NBL_GGML_ENUM(NAME, number, name, values, bytes) NBL_GGML_##NAME = (number),
    NBL_GGML_TABLE(NBL_GGML_ENUM)
#undef NBL_GGML_ENUM
} nbl__ggml_type;

typedef struct nbl__ggml_layout {
    const char *name;  /* "q4_k" */
    int values, bytes; /* of a block */
} nbl__ggml_layout;

/* False for a number that is no current type; numbers of types that upstream removed are
 * invalid, too. */
bool nbl__ggml_layout_of(uint32_t type, nbl__ggml_layout *layout);

/* True for the types that nbl__ggml_dequantize takes: f32, f16, bf16, q8_0, q4_0 … q5_1, q2_k
 * … q6_k. */
bool nbl__ggml_is_decodable(nbl__ggml_type type);

/* Dequantizes n values, a multiple of the block size; `data` is the first block. Neither `data` nor
 * `out` needs alignment. `dtype` is f32, f16 or bf16. nbl__ggml_is_decodable must be true. */
void nbl__ggml_dequantize(nbl_isa isa, nbl__ggml_type type, const uint8_t *data, int64_t n, nbl_dtype dtype,
                          void *out);

/* Encodes n finite f32 values, a multiple of the block size, to f32, f16, bf16, q8_0 or q4_0.
 * `out` needs no alignment. */
void nbl__ggml_encode(nbl_isa isa, nbl__ggml_type type, const float *values, int64_t n, uint8_t *out);

#endif
