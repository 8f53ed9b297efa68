/* report_series.c - the curves of the report: at most about MAX_POINTS points of each series. See
 * report.h.
 *
 * Cost: two passes over the records per series, and one curve (24 KB) of scratch. Nothing is
 * allocated per point. */
#include <math.h>

#include "base/json/json_write.h"
#include "base/number.h"
#include "report/report.h"

enum { MAX_POINTS = 1000 };

/* One kind of curve: its key, and the records and values that it has. */
typedef struct series {
    const char *key;
    bool evaluation;
    double (*value)(const nbl__record *);
} series;

static double loss(const nbl__record *r)
{
    return r->loss;
}
static double learning_rate(const nbl__record *r)
{
    return r->learning_rate;
}
static double grad_norm(const nbl__record *r)
{
    return r->grad_norm;
}
static double throughput(const nbl__record *r)
{
    return r->tokens_per_second;
}

/* NaN, which is no point, for a record without it. */
static double expert_load(const nbl__record *r)
{
    return r->expert_load > 0 ? r->expert_load : (double)NAN;
}

static const series all_series[] = {
    {"loss", false, loss},
    {"eval_loss", true, loss},
    {"grad_norm", false, grad_norm},
    {"learning_rate", false, learning_rate},
    {"tokens_per_second", false, throughput},
    {"expert_load", false, expert_load},
};
enum { SERIES = sizeof all_series / sizeof *all_series };

typedef struct point {
    int64_t step;
    double value, smooth;
} point;

typedef struct curve {
    point points[MAX_POINTS];
    int count;
} curve;

/* ---- points ---- */
/* ---- points ---- */

/* True if a record belongs to a series: evaluation or training, with a finite value. */
static bool counts(const series *s, const nbl__record *r)
{
    return r->evaluation == s->evaluation && isfinite(s->value(r)) && r->step >= 0;
}

static int64_t count_records(const nbl__records *records, const series *s)
{
    int64_t n = 0;
    for (int64_t i = 0; i < records->count; i++) n += counts(s, &records->items[i]);
    return n;
}

/* Adds the lowest and the highest point of a group, in the order of steps. */
static void add_group(curve *c, point low, point high)
{
    point first = low.step <= high.step ? low : high, second = low.step <= high.step ? high : low;
    c->points[c->count++] = first;
    if (second.step != first.step) c->points[c->count++] = second;
}

/* Fills a curve. With up to MAX_POINTS records each is a point. With more, records are grouped,
 * and the lowest and the highest of each group are points. smooth: an exponential mean with a
 * time constant of 1/25 of the run, over all records. */
static void collect(curve *c, const nbl__records *records, const series *s)
{
    int64_t n = count_records(records, s), group = n <= MAX_POINTS ? 1 : nbl__ceil_div(n, MAX_POINTS / 2);
    double keep = 1 - 1 / fmax(1, (double)n / 25), sum = 0, weight = 0;
    point low = {0}, high = {0};
    int64_t inside = 0, seen = 0;
    c->count = 0;
    for (int64_t i = 0; i < records->count; i++) {
        const nbl__record *r = &records->items[i];
        if (!counts(s, r)) continue;
        double value = s->value(r);
        sum = keep * sum + value;
        weight = keep * weight + 1;
        point it = {r->step, value, sum / weight};
        if (inside == 0 || value < low.value) low = it;
        if (inside == 0 || value > high.value) high = it;
        inside++;
        seen++;
        if (inside < group && seen < n) continue;
        add_group(c, low, high);
        inside = 0;
    }
}

/* ---- writing ---- */

/* Six digits are more than a screen shows. A mean of huge values may overflow. */
static void put_value(nbl__json_writer *w, double value)
{
    char digits[32];
    nbl__print_general(digits, sizeof digits, 6, fmin(fmax(value, -1e308), 1e308));
    (void)w->add(w->to, ",", 1);
    (void)nbl__json_word(w, digits);
}

/* "last_step": of all records. "series": {"loss": [[step, value, smoothed value], ...], ...}, a
 * series per line. */
void nbl__report_series(nbl__json_writer *w, const nbl__report *r)
{
    nbl__text *out = w->to;
    curve *c = nbl__alloc(out->ctx, sizeof *c);
    if (c == NULL) {
        out->status = NBL_ERROR_MEMORY;
        return;
    }
    int64_t last = 0;
    for (int64_t i = 0; i < r->records->count; i++) last = nbl__max_i64(last, r->records->items[i].step);
    (void)nbl__json_key(w, "last_step", 9);
    (void)nbl__json_integer(w, last);
    (void)nbl__json_key(w, "series", 6);
    (void)nbl__json_open(w, '{');
    for (int k = 0; k < SERIES; k++) {
        collect(c, r->records, &all_series[k]);
        (void)nbl__json_key(w, all_series[k].key, strlen(all_series[k].key));
        nbl__text_add(out, "[", 1); /* not an array of the writer: its items stay on one line */
        for (int i = 0; i < c->count; i++) {
            nbl__text_printf(out, "%s[%" PRId64, i ? "," : "", c->points[i].step);
            put_value(w, c->points[i].value);
            put_value(w, c->points[i].smooth);
            nbl__text_add(out, "]", 1);
        }
        nbl__text_add(out, "]", 1);
    }
    (void)nbl__json_close(w, '}');
    nbl__free(out->ctx, c, sizeof *c);
}
