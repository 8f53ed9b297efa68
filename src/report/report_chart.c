/* report_chart.c - the curves of the report, as SVG. See report.h.
 *
 *     ys  |  plot: one SVG of FULL x FULL units, stretched to the space it gets
 *         |  xs
 *
 * Labels are HTML next to the SVG, so they keep their size when the curve is stretched. A dot is
 * a line of length 0 with a round end, which stays round when it is stretched. */
#include <math.h>

#include "report/report.h"
#include "report/report_text.h"

enum { FULL = 10000, MAX_POINTS = 1000, MIN_TO_SMOOTH = 40 };

/* One kind of curve: the key in the page's data, which records it uses and how it is drawn.
 * noisy: a smoothed curve is added when there are MIN_TO_SMOOTH points. */
typedef struct series {
    const char *key;
    bool evaluation, noisy, from_zero; /* from_zero: the axis begins there */
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

static const series all_series[] = {
    {"loss", false, true, false, loss},
    {"eval_loss", true, false, false, loss},
    {"grad_norm", false, true, true, grad_norm},
    {"learning_rate", false, false, true, learning_rate},
    {"tokens_per_second", false, true, true, throughput},
};
enum { SERIES = sizeof all_series / sizeof *all_series };

typedef struct point {
    int64_t step;
    double value, smooth;
} point;

typedef struct curve {
    const series *of;
    point points[MAX_POINTS];
    int count;
} curve;

typedef struct axis {
    double low, high, step; /* of the ticks */
    int decimals;
    bool exponent;
} axis;

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
    *c = (curve){.of = s};
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

/* ---- axes ---- */

/* A step of 1, 2 or 5 times a power of ten, so that the range has about 5 of them. */
static double nice_step(double range)
{
    double power = pow(10, floor(log10(range / 5))), part = range / 5 / power;
    return power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
}

/* The axis for the values of up to two curves; its ends are multiples of the step between ticks. */
static axis make_axis(const curve *const *curves, int count, bool from_zero)
{
    const double max = 1e300; /* differences of values stay finite */
    double low = INFINITY, high = -INFINITY;
    for (int k = 0; k < count; k++)
        for (int i = 0; i < curves[k]->count; i++) {
            double value = fmin(fmax(curves[k]->points[i].value, -max), max);
            low = fmin(low, value);
            high = fmax(high, value);
        }
    if (!(low <= high)) low = 0, high = 1;
    if (from_zero) low = fmin(low, 0), high = fmax(high, 0);
    /* A curve that is nearly constant gets a range as large as its value, and lies in its
     * middle. */
    double size = fmax(fabs(low), fabs(high));
    if (size < 1e-300) low = from_zero ? 0 : -1, high = 1;
    else if (high - low < 1e-9 * size) low -= size / 2, high += size / 2;
    axis a = {.step = nice_step(high - low)};
    a.low = a.step * floor(low / a.step + 1e-9);
    a.high = a.step * ceil(high / a.step - 1e-9);
    double largest = fmax(fabs(a.low), fabs(a.high));
    a.exponent = largest < 1e-2 || largest >= 1e5;
    a.decimals = (int)fmax(0, fmin(12, -floor(log10(a.step) + 1e-9)));
    return a;
}

/* value in [low, high] as a coordinate 0 .. FULL, clamped. */
static int position(double value, double low, double high)
{
    double at = (value - low) / (high - low);
    return (int)lround(fmin(1, fmax(0, at)) * FULL);
}

static int tick_count(const axis *a)
{
    return (int)fmin(12, lround((a->high - a->low) / a->step));
}

/* ---- drawing ---- */

/* Appends the labels of the vertical axis. */
static void draw_labels(nbl__text *out, const axis *y)
{
    nbl__text_printf(out, "<div class=\"ys\">");
    for (int i = 0; i <= tick_count(y); i++) {
        double value = y->low + i * y->step;
        if (fabs(value) < 1e-9 * y->step) value = 0;
        int top = FULL - position(value, y->low, y->high);
        nbl__text_printf(out, "<span style=\"top:%d.%02d%%\">", top / 100, top % 100);
        if (y->exponent) nbl__html_number(out, value, 3);
        else nbl__html_fixed(out, value, y->decimals);
        nbl__text_printf(out, "</span>");
    }
    nbl__text_printf(out, "</div>\n");
}

/* Appends the labels of the horizontal axis: 0, round steps, and the last step. */
static void draw_steps(nbl__text *out, int64_t last)
{
    int64_t step = (int64_t)fmax(1, nice_step((double)last));
    nbl__text_printf(out, "<div class=\"xs\"><span style=\"left:0\">0</span>");
    for (int64_t at = step; at + step / 2 < last; at += step) {
        int left = position((double)at, 0, (double)last);
        nbl__text_printf(out, "<span style=\"left:%d.%02d%%\">", left / 100, left % 100);
        nbl__html_count(out, at);
        nbl__text_printf(out, "</span>");
    }
    nbl__text_printf(out, "<span style=\"left:100%%\">");
    nbl__html_count(out, last);
    nbl__text_printf(out, "</span></div>\n");
}

/* Appends a horizontal line per tick. */
static void draw_grid(nbl__text *out, const axis *y)
{
    nbl__text_printf(out, "<path class=\"grid\" d=\"");
    for (int i = 0; i <= tick_count(y); i++)
        nbl__text_printf(out, "M0 %dH%d", FULL - position(y->low + i * y->step, y->low, y->high), FULL);
    nbl__text_printf(out, "\"/>");
}

typedef enum drawing { DRAW_VALUES, DRAW_SMOOTH, DRAW_DOTS } drawing;

/* Appends a curve as one SVG path: lines (values or smoothed) or dots. */
static void draw_curve(nbl__text *out, const curve *c, const axis *y, int64_t last, drawing how,
                       const char *style)
{
    if (c->count == 0) return;
    nbl__text_printf(out, "<path class=\"%s\" d=\"", style);
    for (int i = 0; i < c->count; i++) {
        const point *p = &c->points[i];
        int left = position((double)p->step, 0, (double)last);
        int top = FULL - position(how == DRAW_SMOOTH ? p->smooth : p->value, y->low, y->high);
        bool moves = i == 0 || how == DRAW_DOTS;
        nbl__text_printf(out, "%s%d %d%s", moves ? "M" : "L", left, top, how == DRAW_DOTS ? "h0" : "");
    }
    nbl__text_printf(out, "\"/>");
}

/* Appends one figure. dots: a second curve, drawn with dots; or NULL. */
static void draw(nbl__text *out, const char *title, const curve *c, const curve *dots, int64_t last)
{
    const curve *both[] = {c, dots};
    bool has_dots = dots && dots->count, smooth = c->of->noisy && c->count >= MIN_TO_SMOOTH;
    axis y = make_axis(both, dots ? 2 : 1, c->of->from_zero);
    nbl__text_printf(out, "<figure class=\"chart\" data-series=\"%s%s\" data-last=\"%" PRId64 "\">\n",
                     c->of->key, has_dots ? " eval_loss" : "", last);
    nbl__text_printf(out, "<figcaption>%s", title);
    if (smooth)
        nbl__text_printf(out, "<span class=\"key raw\">steps</span><span class=\"key\">smoothed</span>");
    else if (has_dots) nbl__text_printf(out, "<span class=\"key\">training</span>");
    if (has_dots) nbl__text_printf(out, "<span class=\"key dots\">evaluation</span>");
    nbl__text_printf(out, "<span class=\"read\"></span></figcaption>\n");
    if (c->count == 0 && !has_dots) {
        nbl__text_printf(out, "<p class=\"note\">Nothing was recorded.</p>\n</figure>\n");
        return;
    }
    nbl__text_printf(out, "<div class=\"frame\">");
    draw_labels(out, &y);
    nbl__text_printf(
        out,
        "<div class=\"plot\"><svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" role=\"img\" "
        "aria-label=\"%s over steps\">",
        FULL, FULL, title);
    draw_grid(out, &y);
    draw_curve(out, c, &y, last, c->count == 1 ? DRAW_DOTS : DRAW_VALUES,
               c->count == 1 ? "one"
               : smooth      ? "raw"
                             : "line");
    if (smooth) draw_curve(out, c, &y, last, DRAW_SMOOTH, "line");
    if (has_dots) {
        draw_curve(out, dots, &y, last, DRAW_VALUES, "trend");
        draw_curve(out, dots, &y, last, DRAW_DOTS, "dots");
    }
    nbl__text_printf(out, "</svg><div class=\"cursor\"></div></div>\n");
    draw_steps(out, last);
    nbl__text_printf(out, "</div>\n</figure>\n");
}

/* ---- the figures ---- */

/* All curves, in the order of all_series; free with free_all. NULL: out->status is
 * NBL_ERROR_MEMORY. */
static curve *collect_all(nbl__text *out, const nbl__records *records)
{
    curve *curves = nbl__alloc_array(out->ctx, SERIES, sizeof *curves);
    if (curves == NULL) out->status = NBL_ERROR_MEMORY;
    for (int i = 0; curves && i < SERIES; i++) collect(&curves[i], records, &all_series[i]);
    return curves;
}

static void free_all(nbl__text *out, curve *curves)
{
    nbl__free(out->ctx, curves, SERIES * sizeof *curves);
}

void nbl__report_charts(nbl__text *out, const nbl__report *r)
{
    curve *c = collect_all(out, r->records);
    if (c == NULL) return;
    int64_t last = 1;
    for (int64_t i = 0; i < r->records->count; i++) last = nbl__max_i64(last, r->records->items[i].step);
    draw(out, "Loss", &c[0], &c[1], last);
    draw(out, "Norm of the gradient", &c[2], NULL, last);
    draw(out, "Learning rate", &c[3], NULL, last);
    draw(out, "Tokens per second", &c[4], NULL, last);
    free_all(out, c);
}

void nbl__report_points(nbl__text *out, const nbl__report *r)
{
    curve *c = collect_all(out, r->records);
    if (c == NULL) return;
    for (int k = 0; k < SERIES; k++) {
        nbl__text_printf(out, "%s\"%s\": [", k ? ",\n" : "{", c[k].of->key);
        for (int i = 0; i < c[k].count; i++) {
            nbl__text_printf(out, "%s[%" PRId64 ",", i ? "," : "", c[k].points[i].step);
            nbl__html_number(out, c[k].points[i].value, 6);
            nbl__text_printf(out, "]");
        }
        nbl__text_printf(out, "]");
    }
    nbl__text_printf(out, "}");
    free_all(out, c);
}
