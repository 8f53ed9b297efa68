/* hazards_cell.c - see hazards.h. */
#include "ops/hazards.h"

const nbl__family *family_named(const char *name)
{
    for (int i = 0; case_family_at(i); i++)
        if (strcmp(case_family_at(i)->name, name) == 0) return case_family_at(i);
    fail_msg("no family is called %s", name);
    return NULL;
}

nbl_tensor *result_of(const op_case *c, const case_run *r, const char *slot)
{
    return nbl__slot_tensor(nbl__slot_find(c->family, slot), r->arguments);
}

static bool is_result(const nbl__slot *slot, const nbl_tensor *tensor)
{
    return (slot->role == NBL_ROLE_OUTPUT || slot->role == NBL_ROLE_GRADIENT) && tensor->rank > 0 &&
           tensor->data;
}

const char *different_bits(const op_case *c, const case_run *a, const case_run *b)
{
    for (const nbl__slot *slot = c->family->slots; slot->name; slot++) {
        if (nbl__slot_is_weight(slot)) continue;
        const nbl_tensor *x = nbl__slot_tensor(slot, a->arguments), *y = nbl__slot_tensor(slot, b->arguments);
        if (is_result(slot, x) && !case_same_bits(x, y)) return slot->name;
    }
    return NULL;
}

void build_case(nbl_context *ctx, const char *family, const char *text, case_split split, op_case *c)
{
    char why[CASE_TEXT] = "no such case";
    if (case_build(ctx, family_named(family), text, 1, split, c, why) != CASE_READY)
        fail_msg("%s: %s: %s", family, text, why);
}

static void run_with(nbl_context *ctx, const op_case *c, bool reference, bool skewed, case_run *r)
{
    const nbl__family *family = c->family;
    case_begin(c, NULL, r);
    nbl_status status = case_forward(ctx, c, reference ? case_reference(&family->forward) : NULL, skewed, r);
    if (status == NBL_OK && c->backward)
        status = case_backward(ctx, c, reference ? case_reference(&family->backward) : NULL, skewed, r);
    if (status != NBL_OK) fail_msg("%s: %s: %s", family->name, c->text, nbl_error_message(ctx));
}

void run_case(nbl_context *ctx, const op_case *c, bool skewed, case_run *r)
{
    run_with(ctx, c, false, skewed, r);
}

/* The dtype of a result follows from the arguments: activations and their gradients have the compute dtype,
 * gradients of parameters f32. */
static void assert_result_dtypes(const op_case *c, const case_run *r)
{
    static const char *const activations[] = {"y", "dx", "h", "out", "dq", "dk", "dv", "dgate", "dup", NULL};
    static const char *const parameters[] = {"dlora_a", "dlora_b", "dmagnitude", "db", "dw", "dsinks", NULL};
    for (const nbl__slot *slot = c->family->slots; slot->name; slot++) {
        if (nbl__slot_is_weight(slot)) continue;
        const nbl_tensor *tensor = nbl__slot_tensor(slot, r->arguments);
        if (!is_result(slot, tensor)) continue;
        for (const char *const *name = activations; *name; name++)
            if (strcmp(*name, slot->name) == 0) assert_int_equal(tensor->dtype, c->dtype);
        for (const char *const *name = parameters; *name; name++)
            if (strcmp(*name, slot->name) == 0) assert_int_equal(tensor->dtype, NBL_DTYPE_F32);
    }
}

static void assert_within_bounds(const op_case *c, const case_run *got, const case_run *want)
{
    for (const nbl__slot *slot = c->family->slots; slot->name; slot++) {
        if (nbl__slot_is_weight(slot)) continue;
        const nbl_tensor *a = nbl__slot_tensor(slot, got->arguments),
                         *b = nbl__slot_tensor(slot, want->arguments);
        if (!is_result(slot, a)) continue;
        double error = case_error(a, b, c->zero), bound = case_bound(c, a->dtype);
        if (!(error <= bound))
            fail_msg("%s: %s: %s is off by %g, the bound is %g", c->family->name, c->text, slot->name, error,
                     bound);
    }
}

void assert_same(const op_case *c, const case_run *a, const case_run *b, const char *when)
{
    const char *slot = different_bits(c, a, b);
    if (slot) fail_msg("%s: %s: %s has other bits %s", c->family->name, c->text, slot, when);
}

static void match_case(hazards *h, const op_case *c)
{
    nbl_context *one = h->contexts.one[h->contexts.best], *many = h->contexts.many[h->contexts.best];
    case_run reference, a, b;
    run_with(one, c, true, false, &reference);
    run_case(one, c, false, &a);
    run_case(many, c, true, &b);
    assert_within_bounds(c, &a, &reference);
    assert_result_dtypes(c, &a);
    assert_same(c, &a, &b, "with more threads");
    char value[CASE_TEXT], why[CASE_TEXT];
    for (int split = SPLIT_ONE; case_word(c->text, "ranks", value) && split < SPLIT_COUNT; split++) {
        op_case other;
        case_run r;
        case_status status = case_build(many, c->family, c->text, c->seed, (case_split)split, &other, why);
        if (status == CASE_BAD) fail_msg("%s: %s: %s", c->family->name, c->text, why);
        if (status == CASE_READY) {
            run_case(many, &other, false, &r);
            assert_same(c, &a, &r, "in another rank");
            case_end(&r);
            h->matched++;
        }
        case_destroy(&other);
    }
    case_end(&reference);
    case_end(&a);
    case_end(&b);
    h->matched++;
}

typedef struct cell_line {
    hazards *h;
    const nbl__family *family;
    const char *const *words;
} cell_line;

static bool match_text(void *user, const char *text)
{
    cell_line *line = user;
    op_case c;
    char why[CASE_TEXT];
    case_status status = case_build(line->h->contexts.one[line->h->contexts.best], line->family, text, 1,
                                    SPLIT_NONE, &c, why);
    if (status == CASE_BAD) fail_msg("%s: %s: %s", line->family->name, text, why);
    if (status == CASE_READY) match_case(line->h, &c);
    case_destroy(&c);
    return true;
}

static bool refuse_text(void *user, const char *text)
{
    cell_line *line = user;
    nbl_context *ctx = line->h->contexts.one[line->h->contexts.best];
    op_case c;
    char why[CASE_TEXT];
    case_status status = case_build_inputs(ctx, line->family, text, 1, SPLIT_NONE, &c, why);
    if (status != CASE_READY) fail_msg("%s: %s: %s", line->family->name, text, why);
    bool refused = line->family->forward.infer(ctx, c.arguments) != NBL_OK ||
                   (line->family->backward.name && line->family->backward.infer(ctx, c.arguments) != NBL_OK);
    if (!refused) fail_msg("%s: %s was accepted", line->family->name, text);
    for (const char *const *word = line->words; *word; word++)
        if (!strstr(nbl_error_message(ctx), *word)) fail_msg("no %s in: %s", *word, nbl_error_message(ctx));
    case_destroy(&c);
    line->h->refused++;
    return true;
}

void assert_matches(hazards *h, const char *family, const char *text)
{
    cell_line line = {h, family_named(family), NULL};
    char why[CASE_TEXT];
    if (!case_expand(line.family, text, match_text, &line, why)) fail_msg("%s: %s: %s", family, text, why);
}

void assert_refused(hazards *h, const char *family, const char *text, const char *const *words)
{
    cell_line line = {h, family_named(family), words};
    char why[CASE_TEXT];
    if (!case_expand(line.family, text, refuse_text, &line, why)) fail_msg("%s: %s: %s", family, text, why);
}
