/* expert_load.h - how many tokens each expert of a mixture of experts got.
 *
 * A row is one layer that has experts. Each micro-batch adds offsets[e + 1] - offsets[e] tokens to
 * expert e (ops/moe/expert_order.h).
 *
 *     peak of a row = tokens of its busiest expert / mean over its experts     1: all equal
 *
 * Two sums are kept: those of the current step, which records have, and those of all steps of this
 * process, which the report shows. */
#ifndef NBL_EXPERT_LOAD_H
#define NBL_EXPERT_LOAD_H

#include "base/arena.h"

typedef struct nbl__expert_load {
    int64_t rows, experts; /* rows 0: the model has no experts */
    int64_t *layers;       /* [rows] index of the layer in the model */
    uint64_t *step, *run;  /* [rows, experts] tokens: of the current step, of all steps */
} nbl__expert_load;

/* Makes room for this many layers. The caller fills load->layers. All memory comes from the arena. */
nbl_status nbl__expert_load_make(nbl__arena *arena, int64_t rows, int64_t experts, nbl__expert_load *load);
/* Begins a step: its sums become 0. */
void nbl__expert_load_begin(nbl__expert_load *load);
/* Adds a micro-batch to both sums. offsets: [rows, experts + 1]. */
void nbl__expert_load_add(nbl__expert_load *load, const int32_t *offsets);
/* The peak of one row of `step` or `run`; 0 if it has no tokens. */
double nbl__expert_load_row_peak(const nbl__expert_load *load, const uint64_t *sums, int64_t row);
/* The highest peak of all rows; 0 without rows or tokens. */
double nbl__expert_load_peak(const nbl__expert_load *load, const uint64_t *sums);

#endif
