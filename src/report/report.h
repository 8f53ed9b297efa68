/* report.h - report.html: a run on one page that loads nothing from elsewhere.
 *
 *   report_page.html   the page: style, and the script that shows the facts of a run
 *   report.c           the facts, as JSON; they replace {{run}} in the page
 *   report_series.c    the points of the curves
 *
 * No HTML is made in C. The script makes elements and sets their texts, so nothing from files or
 * names can become markup. A curve has at most about a thousand points, however long the run was:
 * of each group of records the lowest and the highest are drawn, so outliers stay visible. */
#ifndef NBL_REPORT_H
#define NBL_REPORT_H

#include "base/json/json_write.h"
#include "report/expert_load.h"
#include "report/records.h"
#include "report/samples.h"

typedef struct nbl__report {
    const nbl__run_config *config;
    const nbl__records *records;
    const nbl__samples *samples;
    const nbl__name_list *history; /* changes of keys at resumes, one line each; or NULL */

    /* the plan */
    nbl_plan_arenas arenas;
    uint64_t memory_bytes;
    nbl__recompute recompute;
    int64_t recomputed_layers, layers;
    const char *weights; /* format or dtype of the weights: "nf4", "bf16" */
    const char *compute; /* dtype of activations */
    int64_t parameters, trained_parameters;

    const nbl__expert_load *expert_load; /* NULL: not counted */
    int64_t top_k;                       /* experts that a token goes to; 0: there are none */

    nbl__data_counts data;
    int64_t held_back; /* validation examples */

    /* the course of the run */
    int64_t step, steps; /* done; planned */
    int64_t first_step;  /* steps done before this process */
    double epoch, seconds;
    bool interrupted;
    const char *stopped; /* the reason of an early stop; or NULL */
    int64_t result_step; /* the step whose parameters are the result */
    double best_eval;    /* loss of the best evaluated step; infinite: none */

    const char *isa;
    int threads;
} nbl__report;

/* Appends the page. After an error out->status is set and the text is incomplete. */
void nbl__report_print(nbl__text *out, const nbl__report *report);
/* Writes output_dir/report.html. It appears whole or not at all. */
nbl_status nbl__report_write(nbl_context *ctx, const nbl__report *report);

/* ---- report_series.c ---- */

/* Writes the members "last_step" and "series", the points of all curves. w->to is a text. */
void nbl__report_series(nbl__json_writer *w, const nbl__report *report);

#endif
