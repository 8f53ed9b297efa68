/* bnb_state.h - the tensors that bitsandbytes stores for one 4-bit weight W, and the JSON among
 * them.
 *
 * n is the number of elements of W, b = ceil(n / blocksize) the number of blocks, usually of 64.
 *
 *   W                                      two codes per byte: (n+1)/2 bytes, in any storage dtype
 *   W.absmax                               [b]: F32 scales; U8 codes of the scales if nested
 *   W.quant_map                            F32 [16]: the value of each code
 *   W.nested_absmax, W.nested_quant_map    F32 [ceil(b / nested_blocksize)], F32 [256]: nested only
 *   W.quant_state.bitsandbytes__nf4        U8: the JSON text; or ..._fp4
 *
 * Nested ("double quantization"): scale = nested_quant_map[code] · nested_absmax[group] +
 * nested_offset. */
#ifndef NBL_BNB_STATE_H
#define NBL_BNB_STATE_H

#include "base/json/json.h"
#include "format/hf/safetensors.h"

/* The contents of the JSON. */
typedef struct nbl__bnb_json {
    nbl_format format; /* NF4 or FP4 */
    nbl_dtype dtype;   /* of the original weight */
    int64_t block;     /* elements per scale: 32, 64, ... 4096 */
    int rank;
    int64_t shape[NBL_MAX_RANK];
    int64_t elements;
    bool nested;
    int64_t nested_block;
    float nested_offset;
} nbl__bnb_json;

/* Parses the JSON. `name` is the weight's name, for messages. NBL_ERROR_FORMAT names what is
 * wrong. */
nbl_status nbl__bnb_json_parse(nbl__arena *arena, const char *name, const void *text, size_t size,
                               nbl__bnb_json *state);
/* Appends the JSON, byte for byte as bitsandbytes writes it. */
void nbl__bnb_json_print(nbl__text *text, const nbl__bnb_json *state);

/* The stored tensors of one weight; NULL: the file has none. `state` must exist. */
typedef struct nbl__bnb_parts {
    const nbl__stored *packed, *absmax, *quant_map, *nested_absmax, *nested_quant_map, *state;
} nbl__bnb_parts;

/* Checks that all parts exist and fit each other, and fills in *weight. Its pointers point into the
 * mapped file; f32 arrays that are not aligned there are copied to the arena. */
nbl_status nbl__bnb_describe(nbl__arena *arena, const char *name, const nbl__bnb_parts *parts,
                             nbl_weight *weight);

#endif
