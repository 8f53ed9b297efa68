/* bnb_state.h - bitsandbytes' 4-bit state: the JSON beside a packed weight, and how the parts of one
 * weight fit together.
 *
 *   W                                      packed nibbles, [(n+1)/2, 1] in any storage dtype
 *   W.absmax                               F32 scales, or U8 codes of them when nested
 *   W.quant_map                            F32 [16]
 *   W.nested_absmax, W.nested_quant_map    F32, F32 [256]: nested only
 *   W.quant_state.bitsandbytes__nf4 | fp4  U8: the JSON
 */
#ifndef NBL_BNB_STATE_H
#define NBL_BNB_STATE_H

#include "base/json/json.h"
#include "format/hf/safetensors.h"

/* What the JSON says. */
typedef struct nbl__bnb_json {
    nbl_format format;
    nbl_dtype dtype; /* of the original weight */
    int64_t block;
    int rank;
    int64_t shape[NBL_MAX_RANK];
    int64_t elements;
    bool nested;
    int64_t nested_block;
    float nested_offset;
} nbl__bnb_json;

/* `name` is the weight's, for messages. */
nbl_status nbl__bnb_json_parse(nbl__arena *arena, const char *name, const void *text, size_t size,
                               nbl__bnb_json *state);
/* The very bytes that bitsandbytes writes. */
void nbl__bnb_json_print(nbl__text *text, const nbl__bnb_json *state);

/* The stored tensors of one weight; those that do not exist are NULL. */
typedef struct nbl__bnb_parts {
    const nbl__stored *packed, *absmax, *quant_map, *nested_absmax, *nested_quant_map, *state;
} nbl__bnb_parts;

/* Checks that all parts are there and fit, and describes the weight. Scales that are not aligned are
 * copied to the arena. */
nbl_status nbl__bnb_describe(nbl__arena *arena, const char *name, const nbl__bnb_parts *parts,
                             nbl_weight *weight);

#endif
