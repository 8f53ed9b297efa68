/* expert_names.c - reads names of tensors of experts. See expert_names.h. */
#include "format/hf/expert_names.h"

#include <stdlib.h>

/* A projection in a file, and the stack that it is a part of. `after`: the number of the expert follows
 * the projection's name. */
static const struct projection {
    const char *file, *stack;
    nbl__expert_part part;
    bool after;
} projections[] = {
    {"gate_proj.weight", "gate_up_proj", NBL_EXPERT_GATE, false},
    {"up_proj.weight", "gate_up_proj", NBL_EXPERT_UP, false},
    {"down_proj.weight", "down_proj", NBL_EXPERT_WHOLE, false},
    {"w1.weight", "gate_up_proj", NBL_EXPERT_GATE, false},
    {"w3.weight", "gate_up_proj", NBL_EXPERT_UP, false},
    {"w2.weight", "down_proj", NBL_EXPERT_WHOLE, false},
    {"gate_up_projs.weight", "gate_up_proj", NBL_EXPERT_WHOLE, true},
    {"gate_up_projs.bias", "gate_up_proj_bias", NBL_EXPERT_WHOLE, true},
    {"down_projs.weight", "down_proj", NBL_EXPERT_WHOLE, true},
    {"down_projs.bias", "down_proj_bias", NBL_EXPERT_WHOLE, true},
};
enum { PROJECTIONS = sizeof projections / sizeof *projections };

/* Names of parts of layers that differ from transformers 5's. */
static const char *const replaced[][2] = {{".block_sparse_moe.", ".mlp."}, {".router.linear.", ".router."}};

/* *stem: of "….experts.", as a length. NULL: no name of a single expert. */
static const struct projection *find(const char *stored, int *stem, int64_t *expert)
{
    static const char word[] = ".experts.";
    const char *at = strstr(stored, word);
    if (at == NULL) return NULL;
    const char *rest = at + strlen(word), *digits = rest;
    *stem = (int)(rest - stored);
    bool after = *digits < '0' || *digits > '9';
    if (after && (digits = strchr(rest, '.'))) digits++;
    if (digits == NULL) return NULL;
    size_t count = strspn(digits, "0123456789");
    /* A number has one spelling, and fits: 9 digits are more experts than there are tensors. */
    if (count == 0 || count > 9 || (*digits == '0' && count > 1) || digits[count] != '.') return NULL;
    *expert = strtoll(digits, NULL, 10);
    const char *end = digits + count + 1;
    for (int i = 0; i < PROJECTIONS; i++) {
        const struct projection *p = &projections[i];
        if (p->after != after) continue;
        if (!after && strcmp(end, p->file) == 0) return p;
        const char *dot = strchr(p->file, '.');
        size_t n = (size_t)(dot - p->file);
        if (after && n == (size_t)(digits - 1 - rest) && memcmp(rest, p->file, n) == 0 &&
            strcmp(end, dot + 1) == 0)
            return p;
    }
    return NULL;
}

/* The name with the parts of `replaced` replaced; NULL if memory has run out. */
static const char *renamed(nbl__arena *arena, const char *name)
{
    for (size_t i = 0; name && i < sizeof replaced / sizeof *replaced; i++) {
        const char *at = strstr(name, replaced[i][0]);
        if (at == NULL) continue;
        name = nbl__arena_printf(arena, "%.*s%s%s", (int)(at - name), name, replaced[i][1],
                                 at + strlen(replaced[i][0]));
    }
    return name;
}

nbl_status nbl__expert_name_read(nbl__arena *arena, const char *stored, nbl__expert_name *out)
{
    int stem = 0;
    int64_t expert = -1;
    const struct projection *p = find(stored, &stem, &expert);
    *out = (nbl__expert_name){
        .name = stored, .expert = p ? expert : -1, .part = p ? p->part : NBL_EXPERT_WHOLE};
    if (p) out->name = nbl__arena_printf(arena, "%.*s%s", stem, stored, p->stack);
    if (out->name) out->name = renamed(arena, out->name);
    return out->name ? NBL_OK : NBL_ERROR_MEMORY;
}

const char *nbl__expert_name_of(nbl__arena *arena, const char *stored, int64_t expert, nbl__expert_part part)
{
    int stem = 0;
    int64_t number;
    const struct projection *p = find(stored, &stem, &number);
    assert(p != NULL);
    /* gate and up of one spelling are neighbours in the table */
    if (p->part == NBL_EXPERT_GATE && part == NBL_EXPERT_UP) p++;
    else if (p->part == NBL_EXPERT_UP && part == NBL_EXPERT_GATE) p--;
    const char *dot = strchr(p->file, '.');
    if (p->after)
        return nbl__arena_printf(arena, "%.*s%.*s.%" PRId64 "%s", stem, stored, (int)(dot - p->file), p->file,
                                 expert, dot);
    return nbl__arena_printf(arena, "%.*s%" PRId64 ".%s", stem, stored, expert, p->file);
}
