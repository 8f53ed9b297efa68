/* mode_grad.c - the references' gradients against central differences of their forward pass, in
 * f64.
 *
 *     L(inputs) = Σ cotangent · output        dL/dv ≈ (L(v + h) − L(v − h)) / 2h
 *
 * A case is inferred as f32; then all its float tensors become f64, which only references can read,
 * so that nothing rounds and the comparison is sharp: 1e-6 of the gradient's norm, and usually
 * 1e-9. A weight stays dense f32; its step is what f32 made of it. Of a large gradient some random
 * elements are taken. Cases of another compute dtype would repeat the same formulas and are left
 * out, as is int8, whose forward pass rounds x and so has no derivative. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "case.h"
#include "ops/ref.h"

enum { ELEMENTS = 12, QUICK_CASES_PER_LINE = 6 };
static const double bound = 1e-6;

/* The grading of one family. */
typedef struct grading {
    const case_options *o;
    nbl_context *ctx;
    const nbl__family *family;
    int64_t cases, elements, failures;
    double worst;
    int64_t line_count, line_seen;
} grading;

/* Prints a failure with the command that repeats it. */
static void fail(grading *g, const char *text, const char *what)
{
    g->failures++;
    fprintf(stderr,
            "FAILED %s: %s\n  %s\n  again: nibble-ops grad --op %s --seed %" PRIu64 " --case \"%s\"\n",
            g->family->name, text, what, g->family->name, g->o->seed, text);
}

/* ---- the case in f64 ---- */

/* True if the case has a gradient that differences can measure. */
static bool is_differentiable(const op_case *c)
{
    char value[CASE_TEXT];
    if (!c->backward || c->dtype != NBL_DTYPE_F32) return false;
    if (case_word(c->text, "grad", value) && strcmp(value, "no") == 0) return false;
    for (const nbl__slot *slot = c->family->slots; slot->name; slot++) {
        if (case_is_weight(slot)) {
            if (case_slot_weight(slot, c->arguments)->format == NBL_FORMAT_INT8) return false;
            continue;
        }
        const nbl_tensor *tensor = nbl__slot_tensor(slot, c->arguments);
        if (nbl__has_data(tensor) && nbl__is_compute(tensor->dtype) && tensor->dtype != NBL_DTYPE_F32)
            return false;
    }
    return true;
}

/* Inputs are copied, outputs get memory. Rows that are wider in the case are so here. */
static void widen(const op_case *c, case_run *r)
{
    for (const nbl__slot *slot = c->family->slots; slot->name; slot++) {
        nbl_tensor *tensor = nbl__slot_tensor(slot, r->arguments);
        if (case_is_weight(slot) || tensor->rank == 0) continue;
        const float *values = tensor->data;
        bool made = slot->role == NBL_ROLE_OUTPUT || slot->role == NBL_ROLE_SAVED ||
                    slot->role == NBL_ROLE_GRADIENT;
        if (!made && values == NULL) continue;
        bool wide = nbl__is_compute(tensor->dtype);
        if (wide) tensor->dtype = NBL_DTYPE_F64;
        if (!wide && !made) continue;
        nbl_tensor narrow = *tensor;
        tensor->row_stride = 0;
        tensor->data = case_alloc(&r->memory, case_bytes(tensor), 0);
        for (int64_t i = 0, n = nbl__tensor_elements(tensor); !made && i < n; i++) {
            float value;
            memcpy(&value, values + nbl__ref_index(&narrow, i), sizeof value);
            ((double *)tensor->data)[i] = (double)value;
        }
        int64_t more = case_wider(c->text, slot->name);
        if (more > 0) case_spread(&r->memory, tensor, more, 0);
    }
}

/* Runs the reference with scratch of its own. */
static nbl_status run_reference(nbl_context *ctx, const nbl__op *op, const void *arguments)
{
    case_memory memory = {0};
    const nbl__impl *impl = case_reference(op);
    size_t bytes = nbl__op_scratch(ctx, impl, arguments);
    nbl_status status = nbl__op_run(ctx, op, impl, arguments, case_alloc(&memory, bytes, 0), bytes);
    case_free(&memory);
    return status;
}

/* L of the arguments as they are; NAN if forward fails. */
static double functional(grading *g, const void *arguments)
{
    double sum = 0;
    if (run_reference(g->ctx, &g->family->forward, arguments) != NBL_OK) return (double)NAN;
    for (const nbl__slot *slot = g->family->slots; slot->name; slot++) {
        if (slot->role != NBL_ROLE_COTANGENT) continue;
        const nbl_tensor *cotangent = nbl__slot_tensor(slot, (void *)(uintptr_t)arguments),
                         *output = nbl__slot_tensor(nbl__slot_find(g->family, slot->of),
                                                    (void *)(uintptr_t)arguments);
        for (int64_t i = 0; nbl__has_data(cotangent) && i < nbl__tensor_elements(cotangent); i++)
            sum += nbl__ref_get(cotangent, i) * nbl__ref_get(output, i);
    }
    return sum;
}

/* ---- differences ---- */

/* The step is relative to the value. The difference is divided by the steps that were really made,
 * which rounding changes. */
static double difference_f64(grading *g, const void *arguments, double *at)
{
    double kept = *at, step = 1e-5 * fmax(1, fabs(kept));
    *at = kept + step;
    double above = functional(g, arguments), high = *at;
    *at = kept - step;
    double below = functional(g, arguments), low = *at;
    *at = kept;
    return (above - below) / (high - low);
}

/* `data` need not be aligned. */
static double difference_f32(grading *g, const void *arguments, uint8_t *data)
{
    float kept, high, low;
    memcpy(&kept, data, sizeof kept);
    high = kept + 0x1p-12f;
    low = kept - 0x1p-12f;
    memcpy(data, &high, sizeof high);
    double above = functional(g, arguments);
    memcpy(data, &low, sizeof low);
    double below = functional(g, arguments);
    memcpy(data, &kept, sizeof kept);
    return (above - below) / ((double)high - (double)low);
}

/* Compares one gradient with differences, element by element, and then by norm. */
static void check_gradient(grading *g, const op_case *c, const nbl__slot *slot, void *arguments)
{
    const nbl_tensor *gradient = nbl__slot_tensor(slot, arguments);
    const nbl__slot *of = nbl__slot_find(g->family, slot->of);
    int64_t n = nbl__tensor_elements(gradient);
    double off = 0, norm = 0;
    if (case_is_weight(of)) {
        const nbl_weight *w = case_slot_weight(of, arguments);
        if (w->format != NBL_FORMAT_DENSE || w->dtype != NBL_DTYPE_F32) return; /* no small steps in it */
    }
    for (int64_t k = 0; k < nbl__min_i64(n, ELEMENTS); k++) {
        int64_t i = n <= ELEMENTS ? k : (int64_t)(case_uniform(c->seed, slot->name, k) * (double)n);
        double computed = nbl__ref_get(gradient, i), measured;
        if (case_is_weight(of))
            measured = difference_f32(g, arguments,
                                      (uint8_t *)(uintptr_t)case_slot_weight(of, arguments)->data + 4 * i);
        else {
            const nbl_tensor *input = nbl__slot_tensor(of, arguments);
            measured = difference_f64(g, arguments, (double *)input->data + nbl__ref_index(input, i));
        }
        off += (measured - computed) * (measured - computed);
        norm += computed * computed;
        g->elements++;
    }
    double min = fmax(1e-6, c->zero * sqrt((double)nbl__min_i64(n, ELEMENTS)));
    double error = off == 0 ? 0 : sqrt(off) / fmax(sqrt(norm), min);
    if (!(error <= g->worst)) g->worst = error;
    if (error <= bound) return;
    char what[256];
    snprintf(what, sizeof what, "%s is off the finite differences by %.3g of its norm", slot->name, error);
    fail(g, c->text, what);
}

/* Grades one case: forward and backward in f64, then every gradient. */
static void grade_case(grading *g, const op_case *c)
{
    case_run r;
    case_begin(c, NULL, &r);
    nbl_status status = nbl__infer(g->ctx, g->family, false, r.arguments);
    if (status == NBL_OK) status = nbl__infer(g->ctx, g->family, true, r.arguments);
    widen(c, &r);
    if (status == NBL_OK) status = run_reference(g->ctx, &g->family->forward, r.arguments);
    if (status == NBL_OK) status = run_reference(g->ctx, &g->family->backward, r.arguments);
    if (status != NBL_OK) fail(g, c->text, nbl_error_message(g->ctx));
    for (const nbl__slot *slot = g->family->slots; status == NBL_OK && slot->name; slot++)
        if (slot->role == NBL_ROLE_GRADIENT && nbl__slot_tensor(slot, r.arguments)->rank > 0)
            check_gradient(g, c, slot, r.arguments);
    g->cases++;
    case_end(&r);
}

/* ---- the table ---- */

/* Building costs little; what is not differentiable is left out before the sample is taken. */
static bool visit(grading *g, const char *text, bool only_count)
{
    op_case c;
    char why[CASE_TEXT];
    case_status status = case_build(g->ctx, g->family, text, g->o->seed, SPLIT_NONE, &c, why);
    if (status == CASE_BAD && only_count) fail(g, text, why);
    if (status == CASE_READY && is_differentiable(&c)) {
        if (only_count) g->line_count++;
        else {
            int64_t max = g->o->quick ? QUICK_CASES_PER_LINE : 4 * QUICK_CASES_PER_LINE;
            int64_t stride = nbl__max_i64(g->line_count / max, 1);
            if (g->line_seen++ % stride == 0) grade_case(g, &c);
        }
    }
    case_destroy(&c);
    return true;
}

static bool count_text(void *user, const char *text)
{
    return visit(user, text, true);
}

static bool grade_text(void *user, const char *text)
{
    return visit(user, text, false);
}

/* A line is expanded twice: once to count its cases, once to take every n-th. */
static void grade_line(grading *g, const char *line)
{
    char why[CASE_TEXT];
    g->line_count = g->line_seen = 0;
    if (!case_expand(g->family, line, count_text, g, why) ||
        !case_expand(g->family, line, grade_text, g, why))
        fail(g, line, why);
}

int mode_grad(const case_options *o)
{
    case_contexts contexts;
    int64_t failures = 0;
    bool first = true;
    if (!case_contexts_open(o, &contexts)) return 1;
    if (o->json) printf("[");
    for (int i = 0; case_family_at(i); i++) {
        grading g = {.o = o, .ctx = contexts.one[NBL_ISA_SCALAR], .family = case_family_at(i)};
        if (!case_selected(o, g.family->name) || g.family->backward.name == NULL) continue;
        if (o->text) grade_line(&g, o->text);
        for (const case_line *line = case_table; !o->text && line->family; line++)
            if (line->kind == CASE_PLAIN && strcmp(line->family, g.family->name) == 0)
                grade_line(&g, line->text);
        if (o->json)
            printf("%s{\"family\": \"%s\", \"cases\": %" PRId64 ", \"elements\": %" PRId64
                   ", \"worst_error\": %.3g, \"failures\": %" PRId64 "}",
                   first ? "" : ",\n ", g.family->name, g.cases, g.elements, g.worst, g.failures);
        else
            printf("%-16s %5" PRId64 " cases, %6" PRId64 " elements, worst error %.2g\n", g.family->name,
                   g.cases, g.elements, g.worst);
        first = false;
        failures += g.failures;
    }
    if (o->json) printf("]\n");
    case_contexts_close(&contexts);
    return failures == 0 && fflush(stdout) == 0 ? 0 : 1;
}
