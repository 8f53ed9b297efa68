/* report.h - report.html: a run on one page that loads nothing.
 *
 *   report_page.html   the page: style, sections and the script that shows values; {{name}} is filled in
 *   report.c           the sections
 *   report_chart.c     the curves, as SVG
 *   report_text.h      text and numbers as HTML
 *
 * Everything that comes from files or names is escaped. Curves have at most a thousand points, however long the run
 * was: of each group of steps the lowest and the highest, so that what sticks out stays. */
#ifndef NBL_REPORT_H
#define NBL_REPORT_H

#include "report/records.h"
#include "report/samples.h"

typedef struct nbl__report {
    const nbl__run_config *config;
    const nbl__records *records;
    const nbl__samples *samples;
    const nbl__name_list *history; /* changes of keys in the middle of the run; or NULL */

    /* the plan */
    nbl_plan_arenas arenas;
    uint64_t memory_bytes;
    nbl__recompute recompute;
    int64_t recomputed_layers, layers;
    const char *weights; /* how they are kept: "nf4", "bf16" */
    const char *compute; /* dtype */
    int64_t parameters, trained_parameters;

    nbl__data_counts data;
    int64_t held_back; /* examples for evaluation */

    /* how it went */
    int64_t step, steps;
    int64_t first_step; /* where this part of the run began */
    double epoch, seconds;
    bool interrupted;
    const char *stopped; /* why it ended early; or NULL */
    int64_t result_step; /* the step that the result is of */
    double best_eval;    /* of the best evaluated step; infinite: none */

    const char *isa;
    int threads;
} nbl__report;

/* The page; out->status says whether it is whole. */
void nbl__report_print(nbl__text *out, const nbl__report *report);
/* Writes output_dir/report.html, whole. */
nbl_status nbl__report_write(nbl_context *ctx, const nbl__report *report);

/* ---- report_chart.c ---- */

/* The figures: loss, learning rate, norm of the gradient, throughput. */
void nbl__report_charts(nbl__text *out, const nbl__report *report);
/* Their points as one JSON object: {"loss": [[step, value], ...], ...}. */
void nbl__report_points(nbl__text *out, const nbl__report *report);

#endif
