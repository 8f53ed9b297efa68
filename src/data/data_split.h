/* data_split.h - which rows of a file a dataset's `split` selects. */
#ifndef NBL_DATA_SPLIT_H
#define NBL_DATA_SPLIT_H

#include "base/base.h"

/* "train", or "train[A:B]" with A and B rows or percent of `count`, negative ones from the end, either may be
 * missing: rows [*first, *last). NULL: all. Percent are rounded to the nearest row, as Hugging Face datasets do. */
nbl_status nbl__data_split(nbl_context *ctx, const char *where, const char *split, int64_t count,
                           int64_t *first, int64_t *last);

#endif
