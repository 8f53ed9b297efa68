/* hazards.h - a cell of the hazard matrix: one operator on one combination of formats, dtypes and shapes.
 *
 * It matches its reference - within the bounds, in the same bits for any number of threads, any rank of its
 * tensors and any earlier call - or it is refused by a message that names operator, tensor and both dtypes. */
#ifndef NBL_TEST_HAZARDS_H
#define NBL_TEST_HAZARDS_H

#include "case.h"
#include "support.h"

typedef struct hazards {
    case_contexts contexts; /* the same for all cells: each is a later call to the next */
    int64_t matched, refused;
} hazards;

/* Every case of a line must match its reference. */
void assert_matches(hazards *h, const char *family, const char *line);
/* Every case of a line must be refused, and the message have all these words; NULL at the end. */
void assert_refused(hazards *h, const char *family, const char *line, const char *const *words);

const nbl__family *family_named(const char *name);
/* Forward and backward by dispatch; the run owns the results. The case must be READY. */
void run_case(nbl_context *ctx, const op_case *c, bool skewed, case_run *r);
void build_case(nbl_context *ctx, const char *family, const char *text, case_split split, op_case *c);
/* All outputs and gradients; NULL, or the first slot that differs. */
const char *different_bits(const op_case *c, const case_run *a, const case_run *b);
void assert_same(const op_case *c, const case_run *a, const case_run *b, const char *when);
nbl_tensor *result_of(const op_case *c, const case_run *r, const char *slot);

#endif
