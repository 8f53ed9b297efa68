/* case_run.c - runs one implementation on a case in guarded memory, and compares results.
 *
 * Every run checks what no operator may do: write to its arguments, to an input, or outside of its
 * outputs and scratch. Outputs and scratch hold NaN bytes before the call, so an element that is
 * not written shows in the comparison. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "case.h"
#include "ops/families.h"

void case_begin(const op_case *c, const case_run *forward, case_run *r)
{
    *r = (case_run){.arguments = malloc(c->family->size)};
    if (r->arguments == NULL) exit(1);
    memcpy(r->arguments, forward ? forward->arguments : c->arguments, c->family->size);
}

void case_end(case_run *r)
{
    case_free(&r->memory);
    free(r->arguments);
    r->arguments = NULL;
}

/* True if the case adds to gradients. They then begin with random values. */
static bool adds_to_gradients(const op_case *c)
{
    const bool *field = case_accumulate(c->family, c->arguments);
    return field && *field;
}

/* Outputs hold NaN bytes before the call; gradients that are added to, random values. */
static void give_memory(const op_case *c, nbl__role role, bool skewed, case_run *r)
{
    for (const nbl__slot *slot = c->family->slots; slot->name; slot++) {
        nbl_tensor *tensor = nbl__slot_tensor(slot, r->arguments);
        if (slot->role != role) continue;
        tensor->data = NULL;
        if (tensor->rank == 0) continue;
        if (role == NBL_ROLE_GRADIENT && r->only && strcmp(r->only, slot->name) != 0) continue;
        size_t element = (size_t)nbl__dtype_bits(tensor->dtype) / 8;
        tensor->data = case_alloc(&r->memory, case_bytes(tensor), skewed ? element : 0);
        if (role == NBL_ROLE_GRADIENT && adds_to_gradients(c))
            case_fill(c->text, "", c->seed, slot->name, tensor);
        int64_t more = case_wider(c->text, slot->name);
        if (more > 0) case_spread(&r->memory, tensor, more, skewed ? element : 0);
    }
}

/* Results that lie in wider rows become dense, so that they compare with others. */
static nbl_status gather(nbl_context *ctx, const op_case *c, nbl__role role, case_run *r)
{
    for (const nbl__slot *slot = c->family->slots; slot->name; slot++) {
        if (slot->role != role || case_is_weight(slot)) continue;
        nbl_tensor *tensor = nbl__slot_tensor(slot, r->arguments);
        if (tensor->row_stride == 0 || tensor->data == NULL) continue;
        NBL_CHECK(ctx, case_gather(&r->memory, tensor), NBL_ERROR_INTERNAL,
                  "%s: something was written between the rows of %s", c->family->name, slot->name);
    }
    return NBL_OK;
}

/* The tensors as they are on the device: aligned well, or to their element. */
static nbl_status run_mirrored(nbl_context *ctx, const op_case *c, const nbl__op *op, const nbl__impl *impl,
                               bool skewed, case_run *r)
{
    device_how how = skewed ? DEVICE_SKEWED : r->captured ? DEVICE_CAPTURED : DEVICE_PLAIN;
    return device_run(ctx, c->family, op, impl, NULL, r->arguments, how, NULL);
}

/* The device's first implementation; only for the list operators, which have one. */
static const nbl__impl *first_impl(const nbl_context *ctx, const nbl__family *family, const nbl__op *op)
{
    return case_impls(ctx, family, op)[0];
}

/* Runs an implementation (NULL: the one that dispatch chooses) with guarded scratch, and makes the
 * checks. */
static nbl_status run_guarded(nbl_context *ctx, const op_case *c, const nbl__op *op, const nbl__impl *impl,
                              bool skewed, case_run *r)
{
    case_memory around = {0};
    if (nbl__device_of(ctx)->separate_memory) {
        if (!case_is_list(c->family)) return run_mirrored(ctx, c, op, impl, skewed, r);
        if (impl == NULL) impl = first_impl(ctx, c->family, op);
        NBL_CHECK(ctx, impl, NBL_ERROR_UNSUPPORTED, "%s: no implementation for %s", op->name,
                  nbl__device_of(ctx)->name);
    }
    if (impl == NULL) NBL_TRY(nbl__op_choose(ctx, op, r->arguments, NULL, &impl));
    size_t bytes = nbl__op_scratch(ctx, impl, r->arguments);
    void *scratch = case_alloc(&around, bytes, 0);
    void *before = malloc(c->family->size);
    if (before == NULL) exit(1);
    memcpy(before, r->arguments, c->family->size);
    nbl_status status = nbl__op_run(ctx, op, impl, r->arguments, scratch, bytes);
    bool kept = memcmp(before, r->arguments, c->family->size) == 0;
    bool inside = case_zones_intact(&around), outputs = case_zones_intact(&r->memory);
    free(before);
    case_free(&around);
    NBL_TRY(status);
    NBL_CHECK(ctx, kept, NBL_ERROR_INTERNAL, "%s wrote to its arguments", impl->name);
    NBL_CHECK(ctx, inside, NBL_ERROR_INTERNAL, "%s wrote outside its scratch", impl->name);
    NBL_CHECK(ctx, outputs, NBL_ERROR_INTERNAL, "%s wrote outside an output", impl->name);
    NBL_CHECK(ctx, case_zones_intact(&c->memory), NBL_ERROR_INTERNAL, "%s wrote beside an input", impl->name);
    /* Caches are written in place, by every implementation alike. */
    bool in_place = c->family == &nbl__attention_step_family;
    NBL_CHECK(ctx, in_place || case_checksum(&c->memory) == c->checksum, NBL_ERROR_INTERNAL,
              "%s wrote to an input", impl->name);
    return NBL_OK;
}

nbl_status case_forward(nbl_context *ctx, const op_case *c, const nbl__impl *impl, bool skewed, case_run *r)
{
    NBL_TRY(nbl__infer(ctx, c->family, false, r->arguments));
    give_memory(c, NBL_ROLE_OUTPUT, skewed, r);
    give_memory(c, NBL_ROLE_SAVED, skewed, r);
    NBL_TRY(run_guarded(ctx, c, &c->family->forward, impl, skewed, r));
    return gather(ctx, c, NBL_ROLE_OUTPUT, r);
}

nbl_status case_backward(nbl_context *ctx, const op_case *c, const nbl__impl *impl, bool skewed, case_run *r)
{
    NBL_TRY(nbl__infer(ctx, c->family, true, r->arguments));
    give_memory(c, NBL_ROLE_GRADIENT, skewed, r);
    NBL_TRY(run_guarded(ctx, c, &c->family->backward, impl, skewed, r));
    return gather(ctx, c, NBL_ROLE_GRADIENT, r);
}

bool case_takes(const nbl_context *ctx, const nbl__impl *impl, const case_run *r)
{
    return impl->needs <= nbl__isa(ctx) && (impl->can == NULL || impl->can(ctx, r->arguments) == NULL);
}

const nbl__impl *case_reference(const nbl__op *op)
{
    const nbl__impl *const *last = op->impls;
    while (last[1]) last++;
    return *last;
}

/* ---- comparison ---- */

/* The bounds of docs/NUMERICS.md for one dtype: relative, in the 2-norm. */
static double bound_of(nbl_dtype dtype)
{
    return dtype == NBL_DTYPE_F16 ? 1e-3 : dtype == NBL_DTYPE_BF16 ? 8e-3 : 1e-5;
}

double case_bound(const op_case *c, nbl_dtype dtype)
{
    return c->factor * fmax(bound_of(c->dtype), bound_of(dtype));
}

/* Element i as f64; dtypes of computation and f64. */
static double value_at(const nbl_tensor *t, int64_t i)
{
    float value;
    if (t->dtype == NBL_DTYPE_F64) return ((const double *)t->data)[i];
    nbl__to_f32(NBL_ISA_SCALAR, t->dtype, (const uint8_t *)t->data + (size_t)i * nbl__size_of(t->dtype),
                &value, 1);
    return (double)value;
}

bool case_same_bits(const nbl_tensor *a, const nbl_tensor *b)
{
    return a->dtype == b->dtype && case_bytes(a) == case_bytes(b) &&
           (case_bytes(a) == 0 || memcmp(a->data, b->data, case_bytes(a)) == 0);
}

/* The relative error ‖got - want‖ / ‖want‖. NaN and infinities must agree element by element.
 * `zero` is a floor for the norm, for results that are zero up to rounding. */
double case_error(const nbl_tensor *got, const nbl_tensor *want, double zero)
{
    if (got->dtype != want->dtype || nbl__tensor_elements(got) != nbl__tensor_elements(want))
        return (double)INFINITY;
    if (!case_is_float(got->dtype)) return case_same_bits(got, want) ? 0 : (double)INFINITY;
    double difference = 0, norm = 0;
    for (int64_t i = 0, n = nbl__tensor_elements(got); i < n; i++) {
        double a = value_at(got, i), b = value_at(want, i);
        if (!isfinite(a) || !isfinite(b)) {
            if (isnan(a) && isnan(b)) continue;
            if (a == b) continue; /* the same infinity */
            return (double)INFINITY;
        }
        difference += (a - b) * (a - b);
        norm += b * b;
    }
    if (difference == 0) return 0;
    norm = fmax(norm, zero * zero * (double)nbl__tensor_elements(want));
    return norm > 0 ? sqrt(difference / norm) : (double)INFINITY;
}

/* ---- contexts ---- */

/* Opens a context of one instruction set, by the variable that users have. */
static bool open_one(nbl_isa isa, int threads, nbl_context **ctx)
{
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = threads};
    setenv("NIBBLE_ISA", nbl__isa_name(isa), 1);
    return nbl_context_create(&options, ctx) == NBL_OK;
}

bool case_contexts_open(const case_options *o, case_contexts *all)
{
    const char *lowered = getenv("NIBBLE_ISA");
    *all = (case_contexts){0};
    bool good = nbl__isa_choose(lowered, nbl__isa_detect(), &all->best);
    for (int isa = 0; good && isa <= (int)all->best; isa++)
        good = open_one((nbl_isa)isa, 1, &all->one[isa]) &&
               open_one((nbl_isa)isa, o->threads ? o->threads : 3, &all->many[isa]);
    if (good && o->cuda) {
        char why[512];
        all->device = device_context(o->threads, NULL, why);
        if (all->device == NULL) fprintf(stderr, "nibble: ops: %s\n", why);
        return all->device != NULL;
    }
    if (!good) fprintf(stderr, "nibble: ops: no context: a bad number of threads, or a bad NIBBLE_ISA\n");
    return good;
}

void case_contexts_close(case_contexts *all)
{
    nbl_context_destroy(all->device);
    for (int isa = 0; isa < NBL_ISA_COUNT; isa++) {
        nbl_context_destroy(all->one[isa]);
        nbl_context_destroy(all->many[isa]);
    }
}
