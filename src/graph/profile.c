/* profile.c - profile of a run on a device, operator by operator. See plan.h.
 *
 * A timer event is recorded after each step. When all are done, the times are summed by kernel
 * and node (without the layer's number) and logged, slowest first: milliseconds, share, calls,
 * microseconds per call. An event costs about a microsecond, so short kernels look slower than
 * they are. */
#include <stdio.h>

#include "graph/plan.h"
#include "device/device.h"

/* One line of the profile. */
typedef struct line {
    char what[96];
    int calls;
    double milliseconds;
} line;

/* What follows the layer's number in a name: "mlp.up_proj" of "model.layers.3.mlp.up_proj". */
static const char *without_layer(const char *name)
{
    for (const char *dot = name; (dot = strchr(dot, '.')) != NULL; dot++) {
        size_t digits = strspn(dot + 1, "0123456789");
        if (digits && dot[1 + digits] == '.') return dot + digits + 2;
    }
    return name;
}

/* The key of a line: "KERNEL NODE" or "KERNEL (again) NODE", without the number of the layer, so that
 * the layers add up in one line. */
static void describe(const nbl__planned_step *step, char what[96])
{
    snprintf(what, 96, "%s%s %s", step->impl->name, step->rerun ? " (again)" : "",
             without_layer(step->node->name));
}

static line *find(line *lines, int *count, const char *what)
{
    for (int i = 0; i < *count; i++)
        if (strcmp(lines[i].what, what) == 0) return &lines[i];
    line *it = &lines[(*count)++];
    *it = (line){0};
    memcpy(it->what, what, sizeof it->what);
    return it;
}

/* Sums the elapsed times by key and logs them; selection sort, as there are few lines. */
static nbl_status log_times(nbl__plan *plan, const nbl__device *device, int count, line *lines)
{
    int used = 0;
    double total = 0;
    for (int i = 0; i < count; i++) {
        char what[96];
        double milliseconds;
        NBL_TRY(device->timer_elapsed(plan->ctx, i, i + 1, &milliseconds));
        describe(&plan->steps[i], what);
        line *it = find(lines, &used, what);
        it->calls++;
        it->milliseconds += milliseconds;
        total += milliseconds;
    }
    nbl__log(plan->ctx, NBL_LOG_DEBUG, "profile: %d steps, %.3f ms", count, total);
    for (int shown = 0; shown < used; shown++) {
        /* Selection sort: the slowest of the remaining lines is logged next. */
        int best = shown;
        for (int i = shown; i < used; i++)
            if (lines[i].milliseconds > lines[best].milliseconds) best = i;
        line it = lines[best];
        lines[best] = lines[shown];
        nbl__log(plan->ctx, NBL_LOG_DEBUG, "profile: %9.3f ms %5.1f %% %5d x %9.1f us  %s", it.milliseconds,
                 100 * it.milliseconds / total, it.calls, 1e3 * it.milliseconds / it.calls, it.what);
    }
    return NBL_OK;
}

nbl_status nbl__plan_profile(nbl__plan *plan, int count)
{
    const nbl__device *device = nbl__device_of(plan->ctx);
    line *lines;
    /* At most one line per step. */
    NBL_TRY(NBL_ALLOC(plan->ctx, lines, count + 1));
    nbl_status status = device->timers_open(plan->ctx, count + 1);
    if (status == NBL_OK) status = device->timer_record(plan->ctx, 0);
    for (int i = 0; i < count && status == NBL_OK; i++) {
        status = nbl__plan_run_step(plan, &plan->steps[i]);
        if (status == NBL_OK) status = device->timer_record(plan->ctx, i + 1);
    }
    if (status == NBL_OK) status = device->wait(plan->ctx, "the profile");
    if (status == NBL_OK) status = log_times(plan, device, count, lines);
    device->timers_close(plan->ctx);
    nbl__free(plan->ctx, lines, (size_t)(count + 1) * sizeof *lines);
    return status;
}
