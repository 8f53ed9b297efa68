/* mode_support.c - which dtypes and storage formats each operator accepts, found by asking `infer`.
 *
 * For each family the richest case of the table is taken. Its tensors form axes: all weights share
 * one, tensors that differ in a prefix or a number (gate.lora_a, lora_a1) share one. Every
 * combination of compute dtype, storage formats and dtypes is asked:
 *
 *     linear, compute f32     x: f32 f16 bf16     w: 9 formats     bias: …     = 3 · 9 · 3 … questions
 *
 * Where the set of accepted ones is a product - each tensor decides for itself, given the compute
 * dtype - a row per axis says everything; where it is not, a line says how many are accepted.
 * docs/NUMERICS.md carries the output; a test keeps it so. */
#include <stdio.h>
#include <stdlib.h>

#include "case.h"

enum { AXES = 12, CHOICES = 9, SLOTS = 96, COMPUTE = 3 };
static const nbl_dtype floats[COMPUTE] = {NBL_DTYPE_F32, NBL_DTYPE_F16, NBL_DTYPE_BF16};
enum { INTEGERS = 3 };
static const nbl_dtype integers[INTEGERS] = {NBL_DTYPE_I32, NBL_DTYPE_I64, NBL_DTYPE_U8};

typedef enum axis_kind { AXIS_FLOAT, AXIS_INTEGER, AXIS_WEIGHT } axis_kind;
/* A group of tensors that change together, and the number of their choices. */
typedef struct axis {
    axis_kind kind;
    char stem[32];
    const nbl__slot *slots[SLOTS];
    int slot_count, choices;
} axis;

/* The questions about one family, and what was accepted. */
typedef struct asking {
    const nbl__family *family;
    nbl_context *ctx;
    op_case c;
    axis axes[AXES];
    int axis_count;
    int compute_count;                     /* 1 when the family has no compute dtype */
    nbl_weight weights[SLOTS][CHOICES];    /* by index in the family's slots */
    bool accepted[COMPUTE][AXES][CHOICES]; /* in some combination */
    int64_t asked[COMPUTE], accepts[COMPUTE];
    uint64_t results[COMPUTE][SLOTS]; /* dtypes, a bit each */
    bool produced[SLOTS];
} asking;

/* "gate.lora_a" and "lora_a1" without the part that names the layer. */
static void stem_of(const char *name, char stem[32])
{
    const char *dot = strrchr(name, '.');
    snprintf(stem, 32, "%s", dot ? dot + 1 : name);
    for (size_t n = strlen(stem); n > 1 && stem[n - 1] >= '0' && stem[n - 1] <= '9'; n--) stem[n - 1] = 0;
}

/* Adds a slot to the axis that it belongs to; makes the axis if it is the first. False: too many
 * axes. */
static bool join_axis(asking *a, const nbl__slot *slot, axis_kind kind, int choices)
{
    char stem[32];
    stem_of(slot->name, stem);
    if (slot->role == NBL_ROLE_COTANGENT) snprintf(stem, sizeof stem, "d");
    int i = 0;
    while (i < a->axis_count &&
           (a->axes[i].kind != kind || (kind != AXIS_WEIGHT && strcmp(a->axes[i].stem, stem) != 0)))
        i++;
    if (i == AXES) return false;
    axis *it = &a->axes[i];
    if (i == a->axis_count) {
        a->axis_count++;
        it->kind = kind;
        it->choices = choices;
        memcpy(it->stem, stem, sizeof stem);
    }
    it->slots[it->slot_count++] = slot;
    return true;
}

/* Makes the axes from the tensors of the case. Each weight is made in all formats beforehand. */
static bool make_axes(asking *a)
{
    char why[CASE_TEXT];
    for (const nbl__slot *slot = a->family->slots; slot->name; slot++) {
        bool input = slot->role == NBL_ROLE_INPUT || slot->role == NBL_ROLE_OPTIONAL ||
                     slot->role == NBL_ROLE_COTANGENT;
        if (case_is_weight(slot)) {
            nbl_weight *w = case_slot_weight(slot, a->c.arguments);
            for (int i = 0; w->rank == 2 && case_stores[i]; i++)
                if (case_weight(a->ctx, &a->c.memory, case_stores[i], w->shape[0], w->shape[1], 1, slot->name,
                                &a->weights[slot - a->family->slots][i], why) != CASE_READY)
                    return false;
            if (w->rank == 2 && !join_axis(a, slot, AXIS_WEIGHT, CHOICES)) return false;
        } else if (input && nbl__has_data(nbl__slot_tensor(slot, a->c.arguments))) {
            bool is_float = case_is_float(nbl__slot_tensor(slot, a->c.arguments)->dtype);
            if (!join_axis(a, slot, is_float ? AXIS_FLOAT : AXIS_INTEGER, is_float ? COMPUTE : INTEGERS))
                return false;
        }
    }
    return true;
}

/* Sets the compute dtype in the arguments, which is an attribute of the family. */
static void set_compute(const nbl__family *family, void *arguments, nbl_dtype dtype)
{
    for (const nbl__attr *attr = family->attrs; attr->name; attr++)
        if (attr->type == NBL_ATTR_DTYPE) *(nbl_dtype *)((char *)arguments + attr->offset) = dtype;
}

static bool has_compute(const nbl__family *family)
{
    for (const nbl__attr *attr = family->attrs; attr->name; attr++)
        if (attr->type == NBL_ATTR_DTYPE) return true;
    return false;
}

/* Gives the tensors of an axis one of its choices. */
static void choose(const asking *a, const axis *it, int choice, void *arguments)
{
    for (int i = 0; i < it->slot_count; i++) {
        const nbl__slot *slot = it->slots[i];
        if (it->kind == AXIS_WEIGHT)
            *case_slot_weight(slot, arguments) = a->weights[slot - a->family->slots][choice];
        else
            nbl__slot_tensor(slot, arguments)->dtype = it->kind == AXIS_FLOAT ? floats[choice]
                                                                              : integers[choice];
    }
}

/* Records the dtypes of the results that infer has set. */
static void keep_results(asking *a, int compute, void *arguments)
{
    for (int i = 0; a->family->slots[i].name; i++) {
        const nbl__slot *slot = &a->family->slots[i];
        bool result = slot->role == NBL_ROLE_OUTPUT || slot->role == NBL_ROLE_GRADIENT;
        if (!result || nbl__slot_tensor(slot, arguments)->rank == 0) continue;
        a->produced[i] = true;
        a->results[compute][i] |= (uint64_t)1 << nbl__slot_tensor(slot, arguments)->dtype;
    }
}

/* All combinations for one compute dtype. */
static void ask(asking *a, int compute, void *arguments)
{
    int coordinates[AXES] = {0};
    for (;;) {
        memcpy(arguments, a->c.arguments, a->family->size);
        if (has_compute(a->family)) set_compute(a->family, arguments, floats[compute]);
        for (int i = 0; i < a->axis_count; i++) choose(a, &a->axes[i], coordinates[i], arguments);
        bool good = a->family->forward.infer(a->ctx, arguments) == NBL_OK &&
                    (!a->c.backward || a->family->backward.infer(a->ctx, arguments) == NBL_OK);
        a->asked[compute]++;
        a->accepts[compute] += good;
        for (int i = 0; good && i < a->axis_count; i++) a->accepted[compute][i][coordinates[i]] = true;
        if (good) keep_results(a, compute, arguments);
        /* count the coordinates up, the last axis fastest */
        int i = a->axis_count - 1;
        while (i >= 0 && ++coordinates[i] == a->axes[i].choices) coordinates[i--] = 0;
        if (i < 0) return;
    }
}

/* ---- output ---- */

static const char *choice_name(const axis *it, int choice)
{
    if (it->kind == AXIS_WEIGHT) return case_stores[choice];
    return nbl_dtype_name(it->kind == AXIS_FLOAT ? floats[choice] : integers[choice]);
}

/* A row of the table: the tensors of an axis, and a column of choices per compute dtype. */
static void print_axis(const asking *a, int index)
{
    const axis *it = &a->axes[index];
    printf("|");
    for (int i = 0; i < it->slot_count; i++) printf("%s `%s`", i ? "," : "", it->slots[i]->name);
    for (int compute = 0; compute < a->compute_count; compute++) {
        printf(" |");
        int count = 0;
        for (int i = 0; i < it->choices; i++) count += a->accepted[compute][index][i];
        if (count == CHOICES) printf(" all formats");
        else
            for (int i = 0; i < it->choices; i++)
                if (a->accepted[compute][index][i]) printf(" %s", choice_name(it, i));
    }
    printf(" |\n");
}

/* The rows of the results. */
static void print_results(const asking *a)
{
    for (int i = 0; a->family->slots[i].name; i++) {
        if (!a->produced[i]) continue;
        printf("| → `%s`", a->family->slots[i].name);
        for (int compute = 0; compute < a->compute_count; compute++) {
            printf(" |");
            for (int dtype = 0; dtype < NBL_DTYPE_COUNT; dtype++)
                if (a->results[compute][i] >> dtype & 1) printf(" %s", nbl_dtype_name((nbl_dtype)dtype));
        }
        printf(" |\n");
    }
}

/* True if the accepted combinations are all combinations of what each axis accepts. */
static bool is_product(const asking *a, int compute)
{
    int64_t product = 1;
    for (int i = 0; i < a->axis_count; i++) {
        int64_t count = 0;
        for (int k = 0; k < a->axes[i].choices; k++) count += a->accepted[compute][i][k];
        product *= count;
    }
    return product == a->accepts[compute];
}

static void print_support(const asking *a)
{
    int64_t asked = 0, accepts = 0;
    bool product = true;
    printf("\n**%s**\n\n| tensor |", a->family->name);
    for (int i = 0; i < a->compute_count; i++)
        printf(a->compute_count > 1 ? " compute %s |" : " dtype |", nbl_dtype_name(floats[i]));
    printf("\n|---|");
    for (int i = 0; i < a->compute_count; i++) printf("---|");
    printf("\n");
    for (int i = 0; i < a->axis_count; i++) print_axis(a, i);
    print_results(a);
    for (int i = 0; i < a->compute_count; i++) {
        asked += a->asked[i];
        accepts += a->accepts[i];
        product &= is_product(a, i);
    }
    printf("\n%" PRId64 " of %" PRId64 " combinations are accepted: %s\n", accepts, asked,
           product ? "every one that the table allows." : "not every one that the table allows.");
}

/* Stops the expansion of a line at its first case. */
static bool keep_first(void *user, const char *text)
{
    snprintf(user, CASE_TEXT, "%s", text);
    return false;
}

/* The case with the most tensors: the first of its line. */
static bool richest_case(const nbl__family *family, char text[CASE_TEXT])
{
    int max = -1;
    for (const case_line *line = case_table; line->family; line++) {
        char first[CASE_TEXT] = "", value[CASE_TEXT], why[CASE_TEXT];
        int count = 0;
        if (strcmp(line->family, family->name) != 0 || line->kind != CASE_PLAIN) continue;
        case_expand(family, line->text, keep_first, first, why);
        for (const nbl__slot *slot = family->slots; slot->name; slot++)
            count += case_word(first, slot->name, value) && strcmp(value, "none") != 0;
        if (count <= max) continue;
        max = count;
        memcpy(text, first, CASE_TEXT);
    }
    return max >= 0;
}

static bool support_family(const nbl__family *family, nbl_context *ctx)
{
    char text[CASE_TEXT], why[CASE_TEXT] = "more tensors than there is room for";
    if (!richest_case(family, text)) return true;
    asking *a = calloc(1, sizeof *a);
    void *arguments = malloc(family->size);
    if (a == NULL || arguments == NULL) exit(1);
    a->family = family;
    a->ctx = ctx;
    a->compute_count = has_compute(family) ? COMPUTE : 1;
    int slots = 0;
    while (family->slots[slots].name) slots++;
    bool good = slots <= SLOTS && case_build(ctx, family, text, 1, SPLIT_NONE, &a->c, why) == CASE_READY &&
                make_axes(a);
    for (int i = 0; good && i < a->compute_count; i++) ask(a, i, arguments);
    if (good) print_support(a);
    else fprintf(stderr, "FAILED %s: %s\n  %s\n", family->name, text, why);
    case_destroy(&a->c);
    free(arguments);
    free(a);
    return good;
}

int mode_support(const case_options *o)
{
    nbl_context *ctx;
    bool good = nbl_context_create(NULL, &ctx) == NBL_OK;
    for (int i = 0; good && case_family_at(i); i++)
        if (case_selected(o, case_family_at(i)->name)) good = support_family(case_family_at(i), ctx);
    nbl_context_destroy(ctx);
    return good && fflush(stdout) == 0 ? 0 : 1;
}
