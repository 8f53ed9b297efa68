/* plan_list.h - nbl_model_plan, the public report of a plan: a summary, and lists of operators, values
 * and casts. Used by plan_model.c, which fills in the summary.
 *
 * A report owns its memory, names included. It outlives the model and the plan that it is about. */
#ifndef NBL_PLAN_LIST_H
#define NBL_PLAN_LIST_H

#include "model/language_model.h"

typedef struct nbl__planned_ops {
    nbl_planned_op *items;
    int64_t count, room;
} nbl__planned_ops;

typedef struct nbl__planned_values {
    nbl_planned_value *items; /* sorted by descending size */
    int64_t count, room;
} nbl__planned_values;

typedef struct nbl__planned_casts {
    nbl_planned_cast *items;
    int64_t count, room;
} nbl__planned_casts;

struct nbl_model_plan {
    nbl_context *ctx;
    nbl__arena names;
    nbl_model_plan_summary summary;
    nbl__planned_ops ops;
    nbl__planned_values values;
    nbl__planned_casts casts;
};

/* Adds the plan's steps, grouped by operator, implementation and pass, with their counts, flops and
 * bytes. decode: all steps are those of NBL_PLAN_PASS_DECODE, and prepare steps are left out. */
nbl_status nbl__list_steps(nbl_model_plan *report, const nbl__plan *plan, bool decode);
/* Adds all values but weights, and all scratch areas, largest first. Equal ones share a row. */
nbl_status nbl__list_values(nbl_model_plan *report, const nbl__plan *plan);
/* Adds every conversion between dtypes with its reason. Dequantizing a storage format is not
 * listed. */
nbl_status nbl__list_casts(nbl_model_plan *report, const nbl_model *m, const nbl__plan *plan);

#endif
