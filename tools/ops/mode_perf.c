/* mode_perf.c - times the cases marked PERF, forward and backward, per implementation, against the
 * roofline.
 *
 * The time is the median of repeated calls (at least 5, about 0.3 s). A call's least time is the
 * larger of arithmetic / peak and bytes / copy bandwidth, where bytes counts every input, packed
 * weight and output once; the figure is least time / time. Weights that fit the caches can beat the
 * copy: then it is above 1.
 *
 * On a device (device_time.c) there are two times: after the caches were emptied, which counts, and
 * in a row of calls; the figure is the bandwidth's share of a copy's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "case.h"
#include "roofline.h"

/* One run of the mode. */
typedef struct timing {
    const case_options *o;
    nbl_context *ctx;
    const nbl__family *family;
    roofline peak;
    int64_t failures;
    bool first;
} timing;

/* The bytes of a packed weight that a call reads. */
static double weight_bytes(const nbl_weight *w)
{
    double n = 1;
    for (int i = 0; i < w->rank; i++) n *= (double)w->shape[i];
    double block = w->block > 0 ? (double)w->block : 1,
           rows = w->rank ? n / (double)w->shape[w->rank - 1] : 0;
    switch (w->format) {
    case NBL_FORMAT_DENSE: return n * nbl__dtype_bits(w->dtype) / 8;
    case NBL_FORMAT_INT8: return n + rows * 4;
    case NBL_FORMAT_MXFP4: return n / 2 + n / 32;
    default: return n / 2 + (w->nested_scales ? n / block : 4 * n / block);
    }
}

/* What a direction reads and writes. */
static double bytes_of(const nbl__family *family, void *arguments, bool backward)
{
    const nbl__slot *ids = nbl__slot_find(family, "ids");
    double sum = 0;
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        if (case_is_weight(slot)) {
            const nbl_weight *w = case_slot_weight(slot, arguments);
            double rows = ids ? (double)nbl__tensor_elements(nbl__slot_tensor(ids, arguments)) : 0;
            sum += weight_bytes(w) *
                   (ids ? rows / (double)w->shape[0] : 1); /* a table's rows that are used */
            continue;
        }
        const nbl_tensor *tensor = nbl__slot_tensor(slot, arguments);
        bool skip = backward ? slot->role == NBL_ROLE_OUTPUT
                             : slot->role == NBL_ROLE_GRADIENT || slot->role == NBL_ROLE_COTANGENT;
        if (!skip && nbl__has_data(tensor)) sum += (double)case_bytes(tensor);
    }
    return sum;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Median seconds of a call; NaN when it fails. */
static double median_time(timing *t, const nbl__op *op, const nbl__impl *impl, const void *arguments)
{
    enum { MIN = 5, MAX = 201 };
    double times[MAX], spent = 0, budget = t->o->quick ? 0.02 : 0.3;
    int n = 0;
    case_memory memory = {0};
    size_t bytes = nbl__op_scratch(t->ctx, impl, arguments);
    void *scratch = case_alloc(&memory, bytes, 0);
    nbl_status status = nbl__op_run(t->ctx, op, impl, arguments, scratch, bytes); /* warms up */
    while (status == NBL_OK && n < MAX && (n < MIN || spent < budget)) {
        double began = roofline_seconds();
        status = nbl__op_run(t->ctx, op, impl, arguments, scratch, bytes);
        spent += times[n++] = roofline_seconds() - began;
    }
    case_free(&memory);
    if (status != NBL_OK) return (double)NAN;
    qsort(times, (size_t)n, sizeof *times, by_size);
    return times[n / 2];
}

/* Prints one line of the CPU. The arithmetic comes from the case's text (the word "flop" or
 * "flopb"). */
static void show(timing *t, const op_case *c, const nbl__impl *impl, double seconds, double flop,
                 double bytes)
{
    double peak = c->dtype == NBL_DTYPE_BF16 ? t->peak.bf16_flops : t->peak.f32_flops;
    double min = fmax(flop / peak, bytes / t->peak.copy_bytes);
    if (t->o->json)
        printf("%s{\"op\": \"%s\", \"impl\": \"%s\", \"case\": \"%s\", \"seconds\": %.4g, \"gflops\": %.4g, "
               "\"gbs\": %.4g, \"of_roofline\": %.3g}",
               t->first ? "" : ",\n ", c->family->name, impl->name, c->text, seconds, flop / seconds / 1e9,
               bytes / seconds / 1e9, min / seconds);
    else
        printf("%-26s %10.1f us %8.1f GFLOP/s %7.1f GB/s %5.2f of the roofline  %s\n", impl->name,
               seconds * 1e6, flop / seconds / 1e9, bytes / seconds / 1e9, min / seconds, c->text);
    t->first = false;
    fflush(stdout);
}

/* The same for a device. */
static void show_device(timing *t, const op_case *c, const nbl__impl *impl, const device_times *times,
                        double flop, double bytes)
{
    if (t->o->json)
        printf("%s{\"op\": \"%s\", \"impl\": \"%s\", \"case\": \"%s\", \"seconds\": %.4g, \"warm_seconds\": "
               "%.4g, "
               "\"gflops\": %.4g, \"gbs\": %.4g, \"of_copy\": %.3g}",
               t->first ? "" : ",\n ", c->family->name, impl->name, c->text, times->cold, times->warm,
               flop / times->cold / 1e9, bytes / times->cold / 1e9, bytes / times->cold / t->peak.copy_bytes);
    else
        printf("%-26s %9.1f us (%9.1f in a row) %8.2f TFLOP/s %6.3f TB/s %5.2f of a copy  %s\n", impl->name,
               times->cold * 1e6, times->warm * 1e6, flop / times->cold / 1e12, bytes / times->cold / 1e12,
               bytes / times->cold / t->peak.copy_bytes, c->text);
    t->first = false;
    fflush(stdout);
}

/* The reference is scalar on purpose and takes minutes at these sizes: only when asked for by name. */
static bool wanted(const timing *t, const nbl__op *op, const nbl__impl *impl)
{
    if (t->o->impl) return strcmp(t->o->impl, impl->name) == 0;
    return t->o->cuda || impl != case_reference(op);
}

/* Times one implementation on the device. False: it declines the case, or fails. */
static bool time_device(timing *t, const op_case *c, const nbl__op *op, const nbl__impl *impl,
                        const case_run *r, double flop)
{
    device_times times;
    case_list list;
    nbl_status status = case_unwrap(t->family, r->arguments, &list)
                            ? device_time(t->ctx, list.family, &list.family->forward,
                                          nbl__device_of(t->ctx)->impls(&list.family->forward)[0],
                                          list.arguments, t->o->quick, &times)
                            : device_time(t->ctx, t->family, op, impl, r->arguments, t->o->quick, &times);
    if (status != NBL_OK) return false;
    show_device(t, c, impl, &times, flop, bytes_of(t->family, r->arguments, op == &t->family->backward));
    return true;
}

/* Times all implementations of one direction. */
static void time_direction(timing *t, const op_case *c, const nbl__op *op, case_run *r, const char *word)
{
    char value[CASE_TEXT];
    double flop = 0;
    if (case_word(c->text, word, value) && !case_number(c->text, value, &flop)) t->failures++;
    for (const nbl__impl *const *at = case_impls(t->ctx, t->family, op); *at; at++) {
        if (!wanted(t, op, *at) || !case_takes(t->ctx, *at, r)) continue;
        if (t->o->cuda && time_device(t, c, op, *at, r, flop)) continue;
        double seconds = t->o->cuda ? (double)NAN : median_time(t, op, *at, r->arguments);
        if (isnan(seconds)) {
            fprintf(stderr, "FAILED %s: %s\n", (*at)->name, nbl_error_message(t->ctx));
            t->failures++;
        } else show(t, c, *at, seconds, flop, bytes_of(t->family, r->arguments, op == &t->family->backward));
    }
}

/* True if an implementation is to be timed, so that a case is only built if it is needed. */
static bool has_fast(timing *t, const nbl__op *op)
{
    for (const nbl__impl *const *at = case_impls(t->ctx, t->family, op); at && *at; at++)
        if (wanted(t, op, *at)) return true;
    return false;
}

/* Builds a case, runs it once for the saved values of backward, and times both directions. */
static bool time_text(void *user, const char *text)
{
    timing *t = user;
    op_case c;
    case_run r = {0};
    char why[CASE_TEXT];
    if (!has_fast(t, &t->family->forward)) return true;
    case_status status = case_build(t->ctx, t->family, text, t->o->seed, SPLIT_NONE, &c, why);
    if (status == CASE_BAD) {
        fprintf(stderr, "FAILED %s: %s\n  %s\n", t->family->name, text, why);
        t->failures++;
    }
    if (status == CASE_READY) {
        case_begin(&c, NULL, &r);
        nbl_status good = case_forward(t->ctx, &c, NULL, false, &r);
        if (good == NBL_OK) time_direction(t, &c, &t->family->forward, &r, "flop");
        if (good == NBL_OK && c.backward && has_fast(t, &t->family->backward)) {
            good = case_backward(t->ctx, &c, NULL, false, &r);
            if (good == NBL_OK) time_direction(t, &c, &t->family->backward, &r, "flopb");
        }
        if (good != NBL_OK) {
            fprintf(stderr, "FAILED %s: %s\n", text, nbl_error_message(t->ctx));
            t->failures++;
        }
        case_end(&r);
    }
    case_destroy(&c);
    return true;
}

/* What it runs on, and how fast that can be. */
static bool name_machine(timing *t, char name[128])
{
    nbl_cuda_device device = {NBL_RESULT(nbl_cuda_device)};
    if (!t->o->cuda) {
        t->peak = roofline_measure(t->ctx);
        if (!nbl_processor_name(name, 128)) strcpy(name, "unknown machine");
        return true;
    }
    if (nbl_cuda_device_get(t->ctx, 0, &device) != NBL_OK ||
        device_copy_speed(t->ctx, &t->peak.copy_bytes) != NBL_OK)
        return false;
    snprintf(name, 128, "%.127s", device.name);
    return true;
}

int mode_perf(const case_options *o)
{
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = o->threads};
    timing t = {.o = o, .first = true};
    char machine[128], why[CASE_TEXT];
    if (o->cuda) {
        t.ctx = device_context(o->threads, NULL, why);
        if (t.ctx == NULL) fprintf(stderr, "nibble: perf: %s\n", why);
    }
    if (o->cuda ? t.ctx == NULL : nbl_context_create(&options, &t.ctx) != NBL_OK) return 1;
    if (!name_machine(&t, machine)) {
        fprintf(stderr, "nibble: perf: %s\n", nbl_error_message(t.ctx));
        nbl_context_destroy(t.ctx);
        return 1;
    }
    if (o->json) printf("[");
    else if (o->cuda)
        printf("# %s, nibble %s, seed %" PRIu64 "; medians; a copy: %.2f TB/s\n", machine, nbl_version(),
               o->seed, t.peak.copy_bytes / 1e12);
    else
        printf("# %s, %s, %d threads, nibble %s, seed %" PRIu64 "; medians of at least 5 calls\n"
               "# roofline: f32 %.0f GFLOP/s, bf16 %.0f GFLOP/s, copy %.1f GB/s\n",
               machine, nbl_isa_name(t.ctx), nbl_threads(t.ctx), nbl_version(), o->seed,
               t.peak.f32_flops / 1e9, t.peak.bf16_flops / 1e9, t.peak.copy_bytes / 1e9);
    for (int i = 0; (t.family = case_family_at(i)); i++) {
        if (!case_selected(o, t.family->name)) continue;
        if (o->text && !case_expand(t.family, o->text, time_text, &t, why)) t.failures++;
        for (const case_line *line = case_table; !o->text && line->family; line++)
            if (line->kind == CASE_PERF && strcmp(line->family, t.family->name) == 0 &&
                !case_expand(t.family, line->text, time_text, &t, why)) {
                fprintf(stderr, "FAILED %s: %s\n", line->text, why);
                t.failures++;
            }
    }
    if (o->json) printf("]\n");
    nbl_context_destroy(t.ctx);
    return t.failures == 0 && fflush(stdout) == 0 ? 0 : 1;
}
