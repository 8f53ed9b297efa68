/* hf_linear.c - the rule of hf_linear.h: tables of patterns over module names. The tables are data,
 * hf_linear_rules.inc.
 *
 * Order of decisions for a matrix:
 *   1. exceptions[]: the first pattern that matches decides
 *   2. never[]: a match is no linear layer
 *   3. any other tensor called ".weight" is a linear layer
 *
 * A pattern is matched with the module's name, which is the tensor's name without ".weight":
 *
 *     "lm_head"      the name ends in these components
 *     "^head"        the name is exactly this
 *     "*_embed"      the name ends in these characters; "*": any name
 *     "qformer.*"    these components are somewhere in the name
 *     "experts.#.*"  # is a number
 */
#include "format/hf/hf_linear.h"

#include "format/hf/module_names.h"

static const char transposed[] =
#define TRANSPOSED(types) types " "
#include "format/hf/hf_linear_rules.inc"
    ;

static const char renamed[] =
#define RENAMED(types) types " "
#include "format/hf/hf_linear_rules.inc"
    ;

static const struct exception {
    const char *types; /* values of model_type, separated by spaces; NULL: any */
    const char *pattern;
    nbl__linear_verdict verdict;
    enum { ALWAYS, WHEN_TIED } when; /* WHEN_TIED: with tie_word_embeddings only */
} exceptions[] = {
#define EXCEPTION(types, pattern, verdict, when) {types, pattern, NBL_LINEAR_##verdict, when},
#include "format/hf/hf_linear_rules.inc"
};

static const char never[] =
#define NEVER(patterns) patterns " "
#include "format/hf/hf_linear_rules.inc"
    ;

/* ---- matching ---- */

static bool is_number(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] < '0' || text[i] > '9') return false;
    return n > 0;
}

/* True if `word` is in `list`, whose words are separated by spaces. */
static bool is_listed(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        if (length == n && memcmp(at, word, n) == 0) return true;
        at += length;
    }
    return false;
}

/* Length of the component at `text`, which ends at `end`. */
static size_t component(const char *text, const char *end)
{
    const char *dot = memchr(text, '.', (size_t)(end - text));
    return (size_t)((dot ? dot : end) - text);
}

/* True if the components at `text` begin with the pattern's; with `whole`: are the pattern's. */
static bool fits_here(const char *pattern, const char *pattern_end, const char *text, const char *end,
                      bool whole)
{
    for (;;) {
        size_t want = component(pattern, pattern_end), have = component(text, end);
        bool number = want == 1 && *pattern == '#';
        if (number ? !is_number(text, have) : want != have || memcmp(pattern, text, want) != 0) return false;
        pattern += want;
        text += have;
        if (pattern == pattern_end) return !whole || text == end;
        if (text == end) return false;
        pattern++, text++; /* the dots */
    }
}

/* True if the module name [module, end) matches a pattern of `length` bytes; see the head of this
 * file. */
static bool fits(const char *pattern, size_t length, const char *module, const char *end)
{
    const char *pattern_end = pattern + length;
    if (*pattern == '*') {
        size_t n = (size_t)(pattern_end - pattern) - 1;
        return (size_t)(end - module) >= n && memcmp(end - n, pattern + 1, n) == 0;
    }
    if (*pattern == '^') return fits_here(pattern + 1, pattern_end, module, end, true);
    bool anywhere = pattern_end[-1] == '*';
    if (anywhere) pattern_end -= 2;
    for (const char *at = module;; at++) {
        if (fits_here(pattern, pattern_end, at, end, !anywhere)) return true;
        at += component(at, end);
        if (at == end) return false;
    }
}

/* ---- verdicts ---- */

nbl__linear_verdict nbl__hf_is_linear(const char *model_type, bool tied, const char *name, int rank)
{
    if (model_type && is_listed(transposed, model_type)) return NBL_LINEAR_REFUSE;
    if (rank != 2) return NBL_LINEAR_NO;
    const char *end = name + strlen(name);
    bool is_weight = end - name > 7 && memcmp(end - 7, ".weight", 7) == 0;
    if (is_weight) end -= 7;
    for (size_t i = 0; i < sizeof exceptions / sizeof *exceptions; i++) {
        const struct exception *e = &exceptions[i];
        if (e->when == WHEN_TIED && !tied) continue;
        if (e->types && (model_type == NULL || !is_listed(e->types, model_type))) continue;
        if (!fits(e->pattern, strlen(e->pattern), name, end)) continue;
        return e->verdict == NBL_LINEAR_YES && !is_weight ? NBL_LINEAR_NO : e->verdict;
    }
    for (const char *at = never; *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        if (fits(at, length, name, end)) return NBL_LINEAR_NO;
        at += length;
    }
    return is_weight ? NBL_LINEAR_YES : NBL_LINEAR_NO;
}

const char *nbl__hf_refusal(const char *model_type)
{
    return model_type && is_listed(transposed, model_type)
               ? "keep their matrices transposed; quantizing them is not supported"
               : "store several layers in one tensor, or one in several; quantizing them is not supported";
}

bool nbl__hf_renames(const char *model_type)
{
    return model_type && is_listed(renamed, model_type);
}

bool nbl__hf_is_extra_layer(int64_t layers, const char *name)
{
    static const char *const stacks[] = {NBL_MODULE_LAYERS, "model.language_model.layers.",
                                         "language_model.model.layers."};
    for (size_t i = 0; layers > 0 && i < sizeof stacks / sizeof *stacks; i++) {
        size_t n = strlen(stacks[i]);
        if (strncmp(name, stacks[i], n) != 0) continue;
        size_t digits = strcspn(name + n, ".");
        if (!is_number(name + n, digits)) return false;
        int64_t layer = 0;
        for (size_t d = 0; d < digits && layer < layers; d++) layer = layer * 10 + (name[n + d] - '0');
        return layer >= layers;
    }
    return false;
}
