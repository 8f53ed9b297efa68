/* encode.h - writing one quantised weight: its entries in the output, and their bytes. */
#ifndef NBL_ENCODE_H
#define NBL_ENCODE_H

#include "convert/convert.h"

/* Numbers of a weight's entries in the writer; those that its format does not have are not used. */
typedef struct nbl__encoded {
    nbl_format format; /* DENSE: not encoded, `data` is the copy's number */
    int64_t data, scales, map, nested_scales, nested_map, state;
} nbl__encoded;

nbl_status nbl__encoded_declare(nbl__conversion *v, int64_t group, const nbl_tensor_info *tensor,
                                const nbl_quantize_options *options, nbl__encoded *encoded);
nbl_status nbl__encoded_write(nbl__conversion *v, const nbl_tensor_info *tensor,
                              const nbl_quantize_options *options, const nbl__encoded *encoded);

#endif
