/* mode_test.c - every case, every implementation that the machine has, against the reference.
 *
 * For each instruction set up to the machine's own and each implementation that takes the case:
 *
 *     one thread            outputs, saved values and gradients within the bound of the reference's
 *     three, twice          the same bits, with outputs aligned to their element only
 *
 * and once per case: each gradient alone, as when the others are not wanted; and with ranks=yes the same
 * bits when T is split into other dimensions. Backward runs on what its own instruction set's forward
 * saved. Memory is guarded and poisoned (case_run.c). A case with `wider` also runs with dense tensors: the
 * same bits.
 *
 * With --device cuda the device's implementations run instead, each
 *
 *     aligned well          within the bound of the reference's
 *     to the element only   the same; slower paths may add up in another order
 *     from a capture        the same bits as the first
 *
 * and then gradients alone and ranks as above. An operator that the device
 * lacks is listed and is no failure. */
#include <math.h>
#include <stdio.h>

#include "case.h"

/* In the quick set a line contributes about this many cases, always the same ones. Inputs of --small. */
enum { QUICK_CASES_PER_LINE = 60, SMALL_BYTES = 128 << 10 };

/* The count of one family. */
typedef struct tally {
    const case_options *o;
    case_contexts *contexts;
    const nbl__family *family;
    int64_t cases, runs, failures, sample;
    double worst, worst_error; /* of the bound; of the reference */
    char worst_at[CASE_TEXT];
    char impls[CASE_TEXT]; /* those that ran, blanks around each */
    const char *missing;   /* on the device */
} tally;

/* One case, with the results of the reference. */
typedef struct testing {
    tally *all;
    const op_case *c;
    case_run reference;
} testing;

/* Prints a failure with the command that repeats it; only the first 20 of a family. */
static void fail(tally *all, const char *text, const char *impl, const nbl_context *ctx, const char *what)
{
    enum { SHOWN = 20 };
    if (all->failures++ >= SHOWN) return;
    fprintf(stderr, "FAILED %s: %s\n", all->family->name, text);
    if (impl && ctx && nbl__device_of(ctx)->separate_memory) fprintf(stderr, "  %s on the device: ", impl);
    else if (impl)
        fprintf(stderr, "  %s at %s, %d thread%s: ", impl, nbl_isa_name(ctx), nbl_threads(ctx),
                nbl_threads(ctx) == 1 ? "" : "s");
    else fprintf(stderr, "  ");
    fprintf(stderr, "%s\n  again: nibble-ops test --op %s --seed %" PRIu64 "%s --case \"%s\"\n", what,
            all->family->name, all->o->seed, all->o->cuda ? " --device cuda" : "", text);
}

/* Counts a run, and remembers the name of the implementation once. */
static void ran(tally *all, const char *name)
{
    char blanks[128];
    size_t n = strlen(all->impls);
    all->runs++;
    snprintf(blanks, sizeof blanks, " %s ", name);
    if (strstr(all->impls, blanks) || n + strlen(name) + 2 >= sizeof all->impls) return;
    snprintf(all->impls + (n ? n - 1 : 0), sizeof all->impls - n, "%s", blanks);
}

/* Does the slot belong to what this direction writes? Saved values that are not floats are private. */
static bool is_result(const nbl__slot *slot, const nbl_tensor *tensor, bool backward)
{
    if (tensor->rank == 0 || tensor->data == NULL) return false;
    if (backward) return slot->role == NBL_ROLE_GRADIENT;
    return slot->role == NBL_ROLE_OUTPUT || (slot->role == NBL_ROLE_SAVED && case_is_float(tensor->dtype));
}

/* Compares the results of one direction with the reference's, by relative error. */
static void compare(testing *t, const char *impl, const nbl_context *ctx, const case_run *got, bool backward)
{
    for (const nbl__slot *slot = t->c->family->slots; slot->name; slot++) {
        if (case_is_weight(slot)) continue;
        const nbl_tensor *a = nbl__slot_tensor(slot, got->arguments),
                         *b = nbl__slot_tensor(slot, t->reference.arguments);
        if (!is_result(slot, a, backward)) continue;
        double error = case_error(a, b, t->c->zero), bound = case_bound(t->c, a->dtype);
        if (!(error <= bound)) {
            char what[256];
            snprintf(what, sizeof what, "%s: relative error %.3g, the bound is %.3g", slot->name, error,
                     bound);
            fail(t->all, t->c->text, impl, ctx, what);
        } else if (error / bound > t->all->worst) {
            t->all->worst = error / bound;
            t->all->worst_error = error;
            snprintf(t->all->worst_at, sizeof t->all->worst_at, "%s of %.64s, %.900s", slot->name, impl,
                     t->c->text);
        }
    }
}

/* Compares two runs bit by bit. */
static void same_bits(testing *t, const char *impl, const nbl_context *ctx, const case_run *a,
                      const case_run *b, bool backward, const char *when)
{
    for (const nbl__slot *slot = t->c->family->slots; slot->name; slot++) {
        if (case_is_weight(slot)) continue;
        const nbl_tensor *x = nbl__slot_tensor(slot, a->arguments), *y = nbl__slot_tensor(slot, b->arguments);
        char what[256];
        if (!is_result(slot, x, backward) || case_same_bits(x, y)) continue;
        snprintf(what, sizeof what, "%s: other bits %s", slot->name, when);
        fail(t->all, t->c->text, impl, ctx, what);
    }
}

/* Runs into `r`, which begins from `forward`; false when it failed. */
static bool pass(testing *t, nbl_context *ctx, const nbl__impl *impl, bool backward, bool skewed,
                 const case_run *forward, case_run *r)
{
    const char *only = r->only;
    bool captured = r->captured;
    case_begin(t->c, forward, r);
    r->only = only;
    r->captured = captured;
    nbl_status status = backward ? case_backward(ctx, t->c, impl, skewed, r)
                                 : case_forward(ctx, t->c, impl, skewed, r);
    if (status == NBL_OK) return true;
    if (status == NBL_ERROR_UNSUPPORTED && impl && nbl__device_of(ctx)->separate_memory)
        return false; /* others may take it */
    fail(t->all, t->c->text, impl ? impl->name : "dispatch", ctx, nbl_error_message(ctx));
    return false;
}

/* Checks that fewer tokens never need more scratch: plans allocate it once, for the most tokens. */
static void test_scratch(testing *t, const nbl_context *ctx, const nbl__impl *impl, const case_run *r)
{
    char why[CASE_TEXT];
    if (!case_scratch_grows(ctx, t->c, impl, r->arguments, why))
        fail(t->all, t->c->text, impl->name, ctx, why);
}

/* True unless --impl names another. */
static bool wanted(const tally *all, const nbl__impl *impl)
{
    return all->o->impl == NULL || strcmp(all->o->impl, impl->name) == 0;
}

/* All implementations of one direction on one instruction set. */
static void test_impls(testing *t, nbl_isa isa, const nbl__op *op, const case_run *forward)
{
    bool backward = op == &t->c->family->backward;
    nbl_context *one = t->all->contexts->one[isa], *many = t->all->contexts->many[isa];
    for (const nbl__impl *const *at = op->impls; *at; at++) {
        const nbl__impl *impl = *at;
        case_run a = {0}, b = {0}, again = {0};
        if (impl->needs > isa || !wanted(t->all, impl)) continue;
        if (impl == case_reference(op) && isa != NBL_ISA_SCALAR) continue; /* knows no instruction set */
        if (!case_takes(one, impl, forward ? forward : &t->reference)) continue;
        ran(t->all, impl->name);
        if (pass(t, one, impl, backward, false, forward, &a)) {
            compare(t, impl->name, one, &a, backward);
            test_scratch(t, one, impl, &a);
        }
        if (a.arguments && impl != case_reference(op) && pass(t, many, impl, backward, true, forward, &b)) {
            same_bits(t, impl->name, many, &a, &b, backward, "than with one thread");
            if (pass(t, many, impl, backward, false, forward, &again))
                same_bits(t, impl->name, many, &a, &again, backward, "when it runs again");
        }
        case_end(&a);
        case_end(&b);
        case_end(&again);
    }
}

/* What dispatch chooses, once more with each gradient alone. */
static void test_single_gradients(testing *t, const case_run *forward)
{
    nbl_context *ctx = t->all->contexts->device;
    int count = 0;
    if (ctx == NULL) ctx = t->all->contexts->one[t->all->contexts->best];
    for (const nbl__slot *slot = t->c->family->slots; slot->name; slot++)
        count += slot->role == NBL_ROLE_GRADIENT && nbl__slot_tensor(slot, t->reference.arguments)->rank > 0;
    for (const nbl__slot *slot = t->c->family->slots; count > 1 && slot->name; slot++) {
        case_run r = {.only = slot->name};
        if (slot->role != NBL_ROLE_GRADIENT || nbl__slot_tensor(slot, t->reference.arguments)->rank == 0)
            continue;
        if (pass(t, ctx, NULL, true, false, forward, &r)) compare(t, "dispatch, one gradient", ctx, &r, true);
        case_end(&r);
    }
}

/* Runs the case with T split into other dimensions (case_split). The bits must be the same. */
static void test_splits(testing *t, const case_run *forward, const case_run *gradients)
{
    nbl_context *ctx = t->all->contexts->device;
    char value[CASE_TEXT], why[CASE_TEXT];
    if (ctx == NULL) ctx = t->all->contexts->many[t->all->contexts->best];
    if (!case_word(t->c->text, "ranks", value)) return;
    for (int split = SPLIT_ONE; split < SPLIT_COUNT; split++) {
        op_case other;
        case_run r = {0};
        case_status status = case_build(ctx, t->c->family, t->c->text, t->c->seed, (case_split)split, &other,
                                        why);
        testing inner = {t->all, &other, t->reference};
        if (status == CASE_BAD) fail(t->all, t->c->text, NULL, ctx, why);
        if (status == CASE_READY && pass(&inner, ctx, NULL, false, false, NULL, &r)) {
            same_bits(&inner, "dispatch", ctx, forward, &r, false, "in another rank");
            if (gradients->arguments && t->c->backward &&
                case_backward(ctx, &other, NULL, false, &r) == NBL_OK)
                same_bits(&inner, "dispatch", ctx, gradients, &r, true, "in another rank");
        }
        case_end(&r);
        case_destroy(&other);
    }
}

/* On the host rows that lie in wider rows give the bits of dense ones. */
static void test_dense(testing *t, const case_run *forward, const case_run *gradients)
{
    nbl_context *ctx = t->all->contexts->many[t->all->contexts->best];
    char value[CASE_TEXT], why[CASE_TEXT], text[CASE_TEXT];
    if (!case_word(t->c->text, "wider", value)) return;
    const char *word = strstr(t->c->text, " wider=");
    if (word == NULL) return;
    snprintf(text, sizeof text, "%.*s%s", (int)(word - t->c->text), t->c->text,
             word + 1 + strcspn(word + 1, " "));
    op_case dense;
    case_run r = {0};
    case_status status = case_build(ctx, t->c->family, text, t->c->seed, SPLIT_NONE, &dense, why);
    testing inner = {t->all, &dense, t->reference};
    if (status != CASE_READY) fail(t->all, t->c->text, NULL, ctx, why);
    else if (pass(&inner, ctx, NULL, false, false, NULL, &r)) {
        same_bits(t, "dispatch", ctx, forward, &r, false, "than with dense tensors");
        if (gradients->arguments && t->c->backward && case_backward(ctx, &dense, NULL, false, &r) == NBL_OK)
            same_bits(t, "dispatch", ctx, gradients, &r, true, "than with dense tensors");
    }
    case_end(&r);
    case_destroy(&dense);
}

/* Each direction on each instruction set; the best one's own choice also in other forms. */
static void test_case(testing *t)
{
    const nbl__family *family = t->c->family;
    case_contexts *contexts = t->all->contexts;
    for (int isa = 0; isa <= (int)contexts->best; isa++) {
        case_run forward = {0}, gradients = {0};
        test_impls(t, (nbl_isa)isa, &family->forward, NULL);
        bool good = pass(t, contexts->one[isa], NULL, false, false, NULL, &forward);
        if (good && t->c->backward &&
            nbl__infer(contexts->one[isa], family, true, forward.arguments) == NBL_OK) {
            test_impls(t, (nbl_isa)isa, &family->backward, &forward);
            good = pass(t, contexts->one[isa], NULL, true, true, &forward, &gradients);
        }
        if (good && isa == (int)contexts->best) {
            if (t->c->backward) test_single_gradients(t, &forward);
            test_splits(t, &forward, &gradients);
            test_dense(t, &forward, &gradients);
        }
        case_end(&gradients);
        case_end(&forward);
    }
}

/* ---- on a device ---- */

/* All implementations of one direction on the device. */
static void test_device_impls(testing *t, const nbl__op *op, const case_run *forward)
{
    bool backward = op == &t->c->family->backward;
    nbl_context *ctx = t->all->contexts->device;
    for (const nbl__impl *const *at = case_impls(ctx, t->c->family, op); *at; at++) {
        const nbl__impl *impl = *at;
        case_run a = {0}, b = {0}, again = {.captured = true};
        if (!wanted(t->all, impl)) continue;
        if (pass(t, ctx, impl, backward, true, forward, &b)) compare(t, impl->name, ctx, &b, backward);
        if (pass(t, ctx, impl, backward, false, forward, &a)) {
            ran(t->all, impl->name);
            compare(t, impl->name, ctx, &a, backward);
            test_scratch(t, ctx, impl, &a);
            if (pass(t, ctx, impl, backward, false, forward, &again))
                same_bits(t, impl->name, ctx, &a, &again, backward, "when it runs again");
        }
        case_end(&a);
        case_end(&b);
        case_end(&again);
    }
}

/* Both directions on the device; the same extra forms as on the CPU. */
static void test_device_case(testing *t)
{
    const nbl__family *family = t->c->family;
    nbl_context *ctx = t->all->contexts->device;
    case_run forward = {0}, gradients = {0};
    test_device_impls(t, &family->forward, NULL);
    bool good = pass(t, ctx, NULL, false, false, NULL, &forward);
    bool backward = t->c->backward && case_impls(ctx, family, &family->backward)[0];
    if (t->c->backward && !backward) t->all->missing = family->backward.name;
    if (good && backward && nbl__infer(ctx, family, true, forward.arguments) == NBL_OK) {
        test_device_impls(t, &family->backward, &forward);
        good = pass(t, ctx, NULL, true, false, &forward, &gradients);
        if (good) test_single_gradients(t, &forward);
    }
    if (good) test_splits(t, &forward, &gradients);
    case_end(&gradients);
    case_end(&forward);
}

/* True if the case belongs to the sample of --quick or --small. The choice depends on the text alone, so it is
 * the same in every run. */
static bool in_sample(const tally *all, const char *text)
{
    uint32_t hash = 2166136261u;
    for (const char *c = text; *c; c++) hash = (hash ^ (uint32_t)*c) * 16777619u;
    return all->sample <= 1 || hash % all->sample == 0;
}

/* Tests one case: the reference first, then everything else against it. */
static bool test_text(void *user, const char *text)
{
    tally *all = user;
    nbl_context *ctx = all->contexts->one[NBL_ISA_SCALAR];
    const nbl__family *family = all->family;
    op_case c;
    char why[CASE_TEXT] = "";
    if (!in_sample(all, text)) return true;
    case_status status = case_build(ctx, family, text, all->o->seed, SPLIT_NONE, &c, why);
    if (status == CASE_BAD) fail(all, text, NULL, ctx, why);
    if (status == CASE_READY && !(all->o->small && case_size(&c.memory) > SMALL_BYTES)) {
        testing t = {all, &c, {0}};
        all->cases++;
        bool good = pass(&t, ctx, case_reference(&family->forward), false, false, NULL, &t.reference);
        if (good && c.backward &&
            case_backward(ctx, &c, case_reference(&family->backward), false, &t.reference) != NBL_OK) {
            fail(all, text, case_reference(&family->backward)->name, ctx, nbl_error_message(ctx));
            good = false;
        }
        if (good && all->contexts->device) test_device_case(&t);
        else if (good) test_case(&t);
        case_end(&t.reference);
    }
    case_destroy(&c);
    return true;
}

static bool count_text(void *user, const char *text)
{
    (void)text;
    ++*(int64_t *)user;
    return true;
}

/* Tests all cases of a line of the table. */
static void test_line(tally *all, const char *line)
{
    char why[CASE_TEXT];
    int64_t count = 0;
    bool good = case_expand(all->family, line, count_text, &count, why);
    int64_t wished = all->o->small ? all->o->small : QUICK_CASES_PER_LINE;
    all->sample = all->o->quick || all->o->small ? count / wished : 1;
    if (!good || !case_expand(all->family, line, test_text, all, why)) fail(all, line, NULL, NULL, why);
}

/* Whether the device has the family's operators at all. */
static bool on_device(const case_contexts *contexts, const nbl__family *family)
{
    return contexts->device == NULL || case_impls(contexts->device, family, &family->forward)[0];
}

/* Prints the line of a family. */
static void report(const tally *all, bool first)
{
    const case_options *o = all->o;
    if (o->json)
        printf("%s{\"family\": \"%s\", \"cases\": %" PRId64 ", \"runs\": %" PRId64
               ", \"worst_error\": %.3g, \"worst_of_bound\": %.3g, \"failures\": %" PRId64 "}",
               first ? "" : ",\n ", all->family->name, all->cases, all->runs, all->worst_error, all->worst,
               all->failures);
    else
        printf("%-16s %5" PRId64 " cases, %6" PRId64 " runs of%sworst error %.2g, %.2f of its bound%s%s\n",
               all->family->name, all->cases, all->runs, *all->impls ? all->impls : " none ",
               all->worst_error, all->worst, all->worst > 0.5 ? ": " : "",
               all->worst > 0.5 ? all->worst_at : "");
    if (all->missing && !o->json) printf("%-16s not on cuda: %s\n", all->family->name, all->missing);
    fflush(stdout);
}

int mode_test(const case_options *o)
{
    case_contexts contexts;
    int64_t cases = 0, runs = 0, failures = 0;
    bool first = true;
    enum { SKIPPED = 77 };
    if (!case_contexts_open(o, &contexts)) {
        case_contexts_close(&contexts);
        return o->cuda ? SKIPPED : 1;
    }
    if (o->json) printf("[");
    for (int i = 0; case_family_at(i); i++) {
        tally all = {.o = o, .contexts = &contexts, .family = case_family_at(i)};
        if (!case_selected(o, all.family->name)) continue;
        if (!on_device(&contexts, all.family)) {
            if (!o->json) printf("%-16s not on cuda\n", all.family->name);
            continue;
        }
        if (o->text) test_line(&all, o->text);
        for (const case_line *line = case_table; !o->text && line->family; line++)
            if (line->kind == CASE_PLAIN && strcmp(line->family, all.family->name) == 0)
                test_line(&all, line->text);
        report(&all, first);
        first = false;
        cases += all.cases;
        runs += all.runs;
        failures += all.failures;
    }
    if (o->json) printf("]\n");
    else
        printf("%" PRId64 " cases, %" PRId64 " runs at up to %s, %" PRId64 " failures\n", cases, runs,
               o->cuda ? "cuda" : nbl__isa_name(contexts.best), failures);
    case_contexts_close(&contexts);
    return failures == 0 && fflush(stdout) == 0 ? 0 : 1;
}
