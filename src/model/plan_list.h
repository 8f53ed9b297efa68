/* plan_list.h - fills the lists of a plan's report: operators, values, casts. Used by
 * plan_model.c. */
#ifndef NBL_PLAN_LIST_H
#define NBL_PLAN_LIST_H

#include "model/language_model.h"

/* Adds the plan's steps, grouped by operator, implementation and pass, with their counts, flops and
 * bytes. pass: the pass name of every step; NULL: "prepare", "forward", "backward" or "again"
 * (recomputed). */
void nbl__list_steps(nbl_model_plan *report, const nbl__plan *plan, const char *pass);
/* Adds the NBL_PLAN_MAX_VALUES largest values and scratch areas, largest first. Equal ones share a
 * row. */
void nbl__list_values(nbl_model_plan *report, const nbl__plan *plan);
/* Adds every conversion between dtypes with its reason. Dequantizing a storage format is not
 * listed. */
void nbl__list_casts(nbl_model_plan *report, nbl_model *m, const nbl__plan *plan);

#endif
