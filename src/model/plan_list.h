/* plan_list.h - what a plan's report lists (plan_list.c), for plan_model.c. */
#ifndef NBL_PLAN_LIST_H
#define NBL_PLAN_LIST_H

#include "model/language_model.h"

/* Operators with their implementations, and what is recomputed; `pass`: the name of all steps, NULL: by their kind. */
void nbl__list_steps(nbl_model_plan *report, const nbl__plan *plan, const char *pass);
/* The largest values and pieces of scratch, largest first. */
void nbl__list_values(nbl_model_plan *report, const nbl__plan *plan);
/* Every change of dtype that is no storage format's decoding, and why it is made. */
void nbl__list_casts(nbl_model_plan *report, nbl_model *m, const nbl__plan *plan);

#endif
