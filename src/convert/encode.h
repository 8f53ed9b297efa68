/* encode.h - quantizes one weight into an output file: declares its entries, then writes their
 * bytes. */
#ifndef NBL_ENCODE_H
#define NBL_ENCODE_H

#include "convert/convert.h"

/* The writer's numbers of a weight's entries. A format uses only those that it has. */
typedef struct nbl__encoded {
    nbl_format format; /* DENSE: the weight is copied, `data` is the copy's number */
    int64_t data, scales, map, nested_scales, nested_map, state;
} nbl__encoded;

/* Declares all entries of the weight in one group. NBL_ERROR_SHAPE: the shape does not fit the
 * format. */
nbl_status nbl__encoded_declare(nbl__conversion *v, int64_t group, const nbl_tensor_info *tensor,
                                const nbl_quantize_options *options, nbl__encoded *encoded);
/* Quantizes the weight with a team of threads and writes all entries. Non-finite values are an
 * error or, with allow_non_finite, a warning. */
nbl_status nbl__encoded_write(nbl__conversion *v, const nbl_tensor_info *tensor,
                              const nbl_quantize_options *options, const nbl__encoded *encoded);

#endif
