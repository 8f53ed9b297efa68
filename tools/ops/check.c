/* check.c - an operator against values that another library computed.
 *
 * A golden file is what `run` reads, plus the results as tensors `expect.NAME` and the metadata
 * `bounds`, a JSON object NAME -> {measure: limit}. All measures of a result must hold:
 *
 *     rel     ‖ours - theirs‖ / ‖theirs‖, at most
 *     abs     largest |ours - theirs|, at most
 *     cos     cosine of the angle between them, at least
 *     share   part of the elements that differ at all, at most
 *
 * Dtype and shape must be the same, and NaN and infinities stand where theirs stand. The makers of
 * the files (tests/oracle/make_ops_golden.py) give the reason of each limit.
 *
 * One line per file is printed: what is wrong, or the measure that came closest to its limit. */
#include <math.h>
#include <stdio.h>

#include "run.h"

/* How two tensors differ. */
typedef struct difference {
    double rel, abs, cos, share;
    bool odd; /* a NaN or an infinity of one is not in the other */
} difference;

/* Reads element i as f64, which is exact for all dtypes here. False: the dtype cannot be
 * compared. */
static bool value_at(const nbl__stored *s, int64_t i, double *value)
{
    int32_t word;
    float single;
    switch (s->dtype) {
    case NBL_DTYPE_U8: return *value = s->data[i], true;
    case NBL_DTYPE_I8: return *value = (int8_t)s->data[i], true;
    case NBL_DTYPE_I32: return memcpy(&word, s->data + 4 * i, 4), *value = word, true;
    default:
        if (!nbl__is_compute(s->dtype)) return false;
        nbl__to_f32(NBL_ISA_SCALAR, s->dtype, s->data + (size_t)i * nbl__size_of(s->dtype), &single, 1);
        return *value = (double)single, true;
    }
}

/* Measures the difference. Pairs that are not finite are compared by kind, and left out of the
 * measures. */
static bool compare(const nbl__stored *ours, const nbl__stored *theirs, difference *d)
{
    double apart = 0, inner = 0, our_norm = 0, their_norm = 0;
    int64_t differ = 0;
    *d = (difference){0};
    for (int64_t i = 0; i < theirs->elements; i++) {
        double x, y;
        if (!value_at(ours, i, &x) || !value_at(theirs, i, &y)) return false;
        if (!isfinite(x) || !isfinite(y)) {
            d->odd |= !(isnan(x) && isnan(y)) && x != y;
            continue;
        }
        differ += x != y;
        d->abs = fmax(d->abs, fabs(x - y));
        apart += (x - y) * (x - y);
        inner += x * y;
        our_norm += x * x;
        their_norm += y * y;
    }
    d->rel = apart == 0 ? 0 : sqrt(apart / fmax(their_norm, 1e-60));
    d->cos = apart == 0 ? 1 : inner / sqrt(fmax(our_norm * their_norm, 1e-120));
    d->share = (double)differ / (double)(theirs->elements > 0 ? theirs->elements : 1);
    return true;
}

/* The output of the last run with this name; NULL: none. */
static const nbl__stored *output_called(const run *r, const char *name)
{
    for (int i = 0; i < r->output_count; i++)
        if (strcmp(r->outputs[i].name, name) == 0) return &r->outputs[i];
    return NULL;
}

/* The text of a file's line: faults, or the result that came closest to its limit. */
typedef struct verdict {
    nbl__text faults;
    int compared;
    double closest; /* measured / limit */
    char what[160];
} verdict;

/* Adds a fault to the line. */
static void fault(verdict *v, const char *name, const char *what)
{
    nbl__text_printf(&v->faults, "%s%s %s", v->faults.size ? "; " : "", name, what);
}

/* Checks one measure against its limit and remembers the closest one. For cos, which is near 1, the
 * distance from 1 is what is compared. */
static void hold_limit(verdict *v, const char *name, const nbl__json *bound, const difference *d)
{
    static const char *const measures[] = {"rel", "abs", "cos", "share"};
    const double measured[] = {d->rel, d->abs, d->cos, d->share};
    double limit;
    for (int m = 0; m < 4; m++) {
        if (strcmp(bound->key, measures[m]) != 0) continue;
        if (!nbl__json_number(bound, &limit)) break;
        bool min = m == 2;
        double part = min ? (1 - measured[m]) / fmax(1 - limit, 1e-300) : measured[m] / fmax(limit, 1e-300);
        char text[96];
        snprintf(text, sizeof text, "%s %.2g %s %.2g", measures[m], measured[m], min ? "under" : "over",
                 limit);
        if (min ? measured[m] < limit : measured[m] > limit) fault(v, name, text);
        if (part < v->closest) return;
        v->closest = part;
        snprintf(v->what, sizeof v->what, "%s %s %.2g of %.2g", name, measures[m], measured[m], limit);
        return;
    }
    fault(v, name, "has a bound that is not understood");
}

/* Compares one tensor expect.NAME with the output NAME. */
static void compare_output(const run *r, const nbl__json *bounds, const nbl__stored *theirs, verdict *v)
{
    const char *name = theirs->name + strlen(RUN_EXPECT);
    const nbl__stored *ours = output_called(r, name);
    const nbl__json *bound = nbl__json_get(bounds, name);
    difference d;
    v->compared++;
    if (ours == NULL) fault(v, name, "is not produced");
    else if (ours->dtype != theirs->dtype) fault(v, name, "has another dtype");
    else if (ours->rank != theirs->rank ||
             memcmp(ours->shape, theirs->shape, (size_t)theirs->rank * sizeof *theirs->shape) != 0)
        fault(v, name, "has another shape");
    else if (!nbl__json_is(bound, NBL_JSON_OBJECT) || bound->count == 0) fault(v, name, "has no bound");
    else if (!compare(ours, theirs, &d)) fault(v, name, "has a dtype that cannot be compared");
    else if (d.odd) fault(v, name, "has NaN or infinity where it should not, or not where it should");
    else
        for (int64_t i = 0; i < bound->count; i++) hold_limit(v, name, &bound->items[i], &d);
}

/* Runs the operator of a file, then compares every tensor expect.NAME. */
static nbl_status check_file(run *r, const char *path, const nbl__file *file, verdict *v)
{
    NBL_TRY(run_input(r, path, file));
    const char *text = nbl__json_text(r->metadata, "bounds");
    const nbl__json *bounds;
    NBL_CHECK(r->ctx, text, NBL_ERROR_FORMAT, "%s: no metadata \"bounds\"", path);
    NBL_TRY(nbl__json_parse(&r->arena, "bounds", text, strlen(text), NBL_JSON_STRICT, &bounds));
    for (int64_t i = 0; i < r->stored_count; i++)
        if (strncmp(r->stored[i].name, RUN_EXPECT, strlen(RUN_EXPECT)) == 0)
            compare_output(r, bounds, &r->stored[i], v);
    NBL_CHECK(r->ctx, v->compared > 0, NBL_ERROR_FORMAT, "%s: nothing is expected of it", path);
    return v->faults.status;
}

/* Checks one file and prints its line. Every file has an arena of its own. */
static bool check_one(nbl_context *ctx, const char *path, const char *force)
{
    run r = {.ctx = ctx, .arena = nbl__arena_make(ctx), .force = force};
    verdict v = {.faults = {.ctx = ctx}};
    nbl__file file;
    nbl_status status = nbl__file_map(ctx, path, &file);
    if (status == NBL_OK) status = check_file(&r, path, &file, &v);
    bool good = status == NBL_OK && v.faults.size == 0;
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    if (status != NBL_OK) printf("FAIL %s: %s\n", name, nbl_error_message(ctx));
    else if (!good) printf("FAIL %s: %s: %s\n", name, r.impl, v.faults.text);
    else printf("ok   %s: %s, %d results, closest: %s\n", name, r.impl, v.compared, v.what);
    nbl__text_free(&v.faults);
    nbl__file_unmap(&file);
    nbl__arena_free(&r.arena);
    return good;
}

int check_files(nbl_context *ctx, char **files, int count, const char *force)
{
    int good = 0;
    for (int i = 0; i < count; i++) good += check_one(ctx, files[i], force);
    printf("%d passed, %d failed\n", good, count - good);
    return fflush(stdout) == 0 && good == count ? 0 : 1;
}
