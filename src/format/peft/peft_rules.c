/* peft_rules.c - decides which modules the settings of an adapter choose, as PEFT does, option by
 * option.
 *
 * target_modules, exclude_modules   a list: each the whole path or its last components
 *                                     a text: a regular expression for the whole path
 * layers_to_transform               compared with the number behind a name of layers_pattern
 * rank_pattern, alpha_pattern       the first expression that matches the path or its last
 * components modules_to_save                   these modules and all within them are never adapted
 *
 * The order in which PEFT asks, and nbl__peft_targets too:
 *
 *     target_parameters                             yes, by the name of the module's matrix
 *     excluded (exclude_modules, modules_to_save)   no
 *     "all-linear"                                  yes for linear layers but the head
 *     regular expression                            yes if it matches the whole path
 *     whole path in the list                        yes, whatever its layer
 *     end of the path in the list                   yes if its layer is one of layers_to_transform
 *
 * Expressions are Python's and are compiled by PCRE2. A match is limited to STEP_LIMIT steps, so a
 * hostile expression costs milliseconds. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "format/hf/text_part.h"
#include "format/peft/peft.h"

enum { STEP_LIMIT = 200000, EXPRESSION_LIMIT = 65536 };

typedef struct expression {
    const char *option; /* for messages */
    pcre2_code *code;
} expression;

/* The compiled settings. All lists are parallel to those of the settings. */
struct nbl__peft_rules {
    nbl_context *ctx;
    nbl__arena arena;
    const char *where;
    const nbl__peft_settings *settings;
    const char *prefix; /* nbl__peft_rules_spell */
    pcre2_general_context *memory;
    pcre2_compile_context *compile;
    expression target, exclude;               /* code NULL: a list, or nothing */
    expression *rank, *alpha, *saved, *layer; /* one per entry of the settings' lists */
    int64_t layer_expressions;
    nbl__peft_list targeted, excluded, parameters; /* the settings' lists, sorted */
};

/* ---- compiling ---- */

/* Compiles before + text + after, anchored at the beginning of the path. */
static nbl_status compile(nbl__peft_rules *r, const char *option, const char *before, const char *text,
                          const char *after, uint32_t flags, expression *out)
{
    int error = 0;
    PCRE2_SIZE offset = 0;
    size_t length = strlen(text), lead = strlen(before);
    out->option = option;
    NBL_CHECK(r->ctx, length <= EXPRESSION_LIMIT, NBL_ERROR_FORMAT,
              "%s: \"%s\" has an expression of %zu bytes", r->where, option, length);
    char *whole = nbl__arena_printf(&r->arena, "%s%s%s", before, text, after);
    if (whole == NULL) return NBL_ERROR_MEMORY;
    out->code = pcre2_compile((PCRE2_SPTR)whole, PCRE2_ZERO_TERMINATED,
                              PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C | flags,
                              &error, &offset, r->compile);
    if (out->code) return NBL_OK;
    if (error == PCRE2_ERROR_HEAP_FAILED) return NBL_ERROR_MEMORY; /* nbl__alloc said so */
    PCRE2_UCHAR message[128];
    pcre2_get_error_message(error, message, sizeof message);
    return nbl__fail(r->ctx, NBL_ERROR_FORMAT,
                     "%s: \"%s\": \"%.200s\" is not a regular expression: %s (at byte %zu)", r->where, option,
                     text, (const char *)message, (size_t)offset > lead ? (size_t)offset - lead : 0);
}

static nbl_status make_list(nbl__peft_rules *r, int64_t count, expression **list)
{
    *list = nbl__arena_alloc(&r->arena, (size_t)count * sizeof **list);
    return *list ? NBL_OK : NBL_ERROR_MEMORY;
}

/* Compiles the keys of rank_pattern or alpha_pattern as PEFT writes them: (.*\.)?(KEY)$. */
static nbl_status compile_patterns(nbl__peft_rules *r, const char *option, const nbl__peft_pattern *patterns,
                                   int64_t count, expression **list)
{
    NBL_TRY(make_list(r, count, list));
    for (int64_t i = 0; i < count; i++)
        NBL_TRY(compile(r, option, "(.*\\.)?(", patterns[i].key, ")$", 0, &(*list)[i]));
    return NBL_OK;
}

/* Compiles layers_pattern; the group idx is the layer's number. */
static nbl_status compile_layers(nbl__peft_rules *r)
{
    const nbl__peft_list *names = &r->settings->layers_pattern;
    if (!r->settings->in_layers) return NBL_OK;
    r->layer_expressions = names->count ? names->count : 1;
    NBL_TRY(make_list(r, r->layer_expressions, &r->layer));
    if (names->count == 0)
        return compile(r, "layers_to_transform", "", ".*?\\.[^.]*\\.(?P<idx>\\d+)\\.", "", 0, &r->layer[0]);
    for (int64_t i = 0; i < names->count; i++)
        NBL_TRY(compile(r, "layers_pattern", "(?:^|.*?\\.)", names->names[i], "\\.(?P<idx>\\d+)\\.", 0,
                        &r->layer[i]));
    return NBL_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Copies a list in sorted order, so that a look-up is a binary search: a list may name every
 * module. */
static nbl_status sort_list(nbl__peft_rules *r, const nbl__peft_list *list, nbl__peft_list *sorted)
{
    const char **names = nbl__arena_alloc(&r->arena, (size_t)list->count * sizeof *names);
    if (names == NULL) return NBL_ERROR_MEMORY;
    if (list->count) memcpy(names, list->names, (size_t)list->count * sizeof *names);
    qsort(names, (size_t)list->count, sizeof *names, by_text);
    *sorted = (nbl__peft_list){names, list->count};
    return NBL_OK;
}

/* Compiles every option of the settings. Python's `$` and `.` know one line end, "\n". */
static nbl_status compile_all(nbl__peft_rules *r)
{
    const nbl__peft_settings *s = r->settings;
    r->memory = pcre2_general_context_create(nbl__alloc_sized, nbl__free_sized, r->ctx);
    if (r->memory == NULL) return NBL_ERROR_MEMORY;
    r->compile = pcre2_compile_context_create(r->memory);
    if (r->compile == NULL) return NBL_ERROR_MEMORY;
    pcre2_set_newline(r->compile, PCRE2_NEWLINE_LF);
    NBL_TRY(sort_list(r, &s->target.list, &r->targeted));
    NBL_TRY(sort_list(r, &s->exclude.list, &r->excluded));
    NBL_TRY(sort_list(r, &s->parameters, &r->parameters));
    if (s->target.regex)
        NBL_TRY(compile(r, "target_modules", "", s->target.regex, "", PCRE2_ENDANCHORED, &r->target));
    if (s->exclude.regex)
        NBL_TRY(compile(r, "exclude_modules", "", s->exclude.regex, "", PCRE2_ENDANCHORED, &r->exclude));
    NBL_TRY(compile_patterns(r, "rank_pattern", s->rank_pattern, s->rank_pattern_count, &r->rank));
    NBL_TRY(compile_patterns(r, "alpha_pattern", s->alpha_pattern, s->alpha_pattern_count, &r->alpha));
    NBL_TRY(make_list(r, s->modules_to_save.count, &r->saved));
    for (int64_t i = 0; i < s->modules_to_save.count; i++)
        NBL_TRY(compile(r, "modules_to_save", "(^|.*\\.)", s->modules_to_save.names[i], "($|\\..*)", 0,
                        &r->saved[i]));
    return compile_layers(r);
}

nbl_status nbl__peft_rules_make(nbl_context *ctx, const char *where, const nbl__peft_settings *settings,
                                nbl__peft_rules **rules)
{
    nbl__peft_rules *r = *rules = NULL;
    NBL_TRY(NBL_ALLOC(ctx, r, 1));
    r->ctx = ctx;
    r->arena = nbl__arena_make(ctx);
    r->settings = settings;
    r->where = nbl__arena_strdup(&r->arena, where);
    nbl_status status = r->where ? compile_all(r) : NBL_ERROR_MEMORY;
    if (status == NBL_OK) *rules = r;
    else nbl__peft_rules_free(r);
    return status;
}

static void free_list(expression *list, int64_t count)
{
    for (int64_t i = 0; list && i < count; i++) pcre2_code_free(list[i].code);
}

void nbl__peft_rules_free(nbl__peft_rules *rules)
{
    if (rules == NULL) return;
    const nbl__peft_settings *s = rules->settings;
    nbl_context *ctx = rules->ctx;
    free_list(&rules->target, 1);
    free_list(&rules->exclude, 1);
    free_list(rules->rank, s->rank_pattern_count);
    free_list(rules->alpha, s->alpha_pattern_count);
    free_list(rules->saved, s->modules_to_save.count);
    free_list(rules->layer, rules->layer_expressions);
    pcre2_compile_context_free(rules->compile);
    pcre2_general_context_free(rules->memory);
    nbl__arena_free(&rules->arena);
    nbl__free(ctx, rules, sizeof *rules);
}

/* ---- matching ---- */

enum { PATH_SIZE = 1024 };

void nbl__peft_rules_spell(nbl__peft_rules *rules, const char *prefix)
{
    rules->prefix = prefix;
}

/* The path as the settings name it. A path beyond PATH_SIZE stays as it is: no model has one. */
static const char *spell(const nbl__peft_rules *r, const char *path, char memory[PATH_SIZE])
{
    const char *spelled = nbl__text_spell(r->prefix, path, memory, PATH_SIZE);
    return spelled ? spelled : path;
}

/* Matches a path. *index (may be NULL): the number in the group idx; unchanged if there is none. */
static nbl_status match(const nbl__peft_rules *r, const expression *e, const char *path, bool *matches,
                        int64_t *index)
{
    nbl_status status = NBL_OK;
    *matches = false;
    pcre2_match_context *limits = pcre2_match_context_create(r->memory);
    pcre2_match_data *data = limits ? pcre2_match_data_create_from_pattern(e->code, r->memory) : NULL;
    if (data == NULL) {
        pcre2_match_context_free(limits);
        return NBL_ERROR_MEMORY;
    }
    pcre2_set_match_limit(limits, STEP_LIMIT);
    int found = pcre2_match(e->code, (PCRE2_SPTR)path, PCRE2_ZERO_TERMINATED, 0, 0, data, limits);
    PCRE2_UCHAR digits[24];
    PCRE2_SIZE length = sizeof digits;
    if (found >= 0) *matches = true;
    else if (found == PCRE2_ERROR_NOMEMORY) status = nbl__fail(r->ctx, NBL_ERROR_MEMORY, "out of memory");
    else if (found != PCRE2_ERROR_NOMATCH)
        status = nbl__fail(r->ctx, NBL_ERROR_FORMAT,
                           "%s: \"%s\": matching the module \"%.200s\" failed (PCRE2 error %d; too complex?)",
                           r->where, e->option, path, found);
    if (*matches && index && pcre2_substring_copy_byname(data, (PCRE2_SPTR) "idx", digits, &length) == 0)
        *index = strtoll((const char *)digits, NULL, 10);
    pcre2_match_data_free(data);
    pcre2_match_context_free(limits);
    return status;
}

/* True if the name is in the list. */
static bool is_one_of(const nbl__peft_list *sorted, const char *name)
{
    return bsearch(&name, sorted->names, (size_t)sorted->count, sizeof name, by_text) != NULL;
}

/* True if the last components of the path are a name of the list. */
static bool ends_in_one_of(const nbl__peft_list *sorted, const char *path)
{
    for (const char *dot = strchr(path, '.'); dot && sorted->count; dot = strchr(dot + 1, '.'))
        if (is_one_of(sorted, dot + 1)) return true;
    return false;
}

/* *excluded: by exclude_modules, or as a part of modules_to_save. */
static nbl_status is_excluded(const nbl__peft_rules *r, const char *path, bool *excluded)
{
    const nbl__peft_settings *s = r->settings;
    *excluded = is_one_of(&r->excluded, path) || ends_in_one_of(&r->excluded, path);
    if (r->exclude.code) NBL_TRY(match(r, &r->exclude, path, excluded, NULL));
    for (int64_t i = 0; !*excluded && i < s->modules_to_save.count; i++)
        NBL_TRY(match(r, &r->saved[i], path, excluded, NULL));
    return NBL_OK;
}

/* *inside: the path's layer is one of layers_to_transform. */
static nbl_status is_in_layers(const nbl__peft_rules *r, const char *path, bool *inside)
{
    int64_t index = -1;
    bool found = false;
    *inside = false;
    for (int64_t i = 0; i < r->layer_expressions && !found; i++)
        NBL_TRY(match(r, &r->layer[i], path, &found, &index));
    for (int64_t i = 0; i < r->settings->layer_count; i++)
        *inside = *inside || r->settings->layers[i] == index;
    return NBL_OK;
}

bool nbl__peft_targets_parameter(const nbl__peft_rules *r, const char *name)
{
    char memory[PATH_SIZE];
    name = spell(r, name, memory);
    return is_one_of(&r->parameters, name) || ends_in_one_of(&r->parameters, name);
}

/* The name of a module's matrix if target_parameters has it; else NULL. */
static const char *parameter_of(const nbl__peft_rules *r, const char *path, char name[PATH_SIZE])
{
    if (r->parameters.count == 0) return NULL;
    if (nbl__peft_targets_parameter(r, path)) return path; /* a stack of experts */
    int length = snprintf(name, PATH_SIZE, "%s.weight", path);
    return length < PATH_SIZE && nbl__peft_targets_parameter(r, name) ? name : NULL;
}

nbl_status nbl__peft_targets(const nbl__peft_rules *r, const char *path, nbl__peft_kind kind, bool *targeted)
{
    const nbl__peft_settings *s = r->settings;
    char name[PATH_SIZE], memory[PATH_SIZE];
    bool excluded = false;
    /* target_parameters knows no exclusion. Nothing else chooses experts. */
    *targeted = kind != NBL_PEFT_OTHER && kind != NBL_PEFT_EMBEDDING && parameter_of(r, path, name) != NULL;
    if (*targeted || kind == NBL_PEFT_EXPERTS) return NBL_OK;
    path = spell(r, path, memory);
    NBL_TRY(is_excluded(r, path, &excluded));
    if (excluded) return NBL_OK;
    if (s->all_linear) return *targeted = kind == NBL_PEFT_LINEAR, NBL_OK;
    if (r->target.code) return match(r, &r->target, path, targeted, NULL);
    *targeted = is_one_of(&r->targeted, path); /* a full path is chosen whatever its layer */
    if (*targeted || !ends_in_one_of(&r->targeted, path)) return NBL_OK;
    *targeted = true;
    return s->in_layers ? is_in_layers(r, path, targeted) : NBL_OK;
}

/* *value: of the first pattern that matches; else of a pattern that equals the path; else
 * unchanged. */
static nbl_status find_pattern(const nbl__peft_rules *r, const nbl__peft_pattern *patterns,
                               const expression *expressions, int64_t count, const char *path, double *value)
{
    for (int64_t i = 0; i < count; i++) {
        bool matches = false;
        NBL_TRY(match(r, &expressions[i], path, &matches, NULL));
        if (matches) return *value = patterns[i].value, NBL_OK;
    }
    for (int64_t i = 0; i < count; i++)
        if (strcmp(patterns[i].key, path) == 0) *value = patterns[i].value;
    return NBL_OK;
}

nbl_status nbl__peft_rank(const nbl__peft_rules *rules, const char *path, int64_t *r, double *alpha,
                          double *scale)
{
    const nbl__peft_settings *s = rules->settings;
    char name[PATH_SIZE], memory[PATH_SIZE];
    const char *parameter = parameter_of(rules, path, name);
    double rank = (double)s->r;
    path = spell(rules, parameter ? parameter : path, memory);
    *alpha = s->alpha;
    NBL_TRY(find_pattern(rules, s->rank_pattern, rules->rank, s->rank_pattern_count, path, &rank));
    NBL_TRY(find_pattern(rules, s->alpha_pattern, rules->alpha, s->alpha_pattern_count, path, alpha));
    *r = (int64_t)rank;
    *scale = *alpha / (s->rslora ? sqrt(rank) : rank);
    return NBL_OK;
}

bool nbl__peft_saves(const nbl__peft_rules *rules, const char *path)
{
    const nbl__peft_list *list = &rules->settings->modules_to_save;
    char memory[PATH_SIZE];
    path = spell(rules, path, memory);
    for (size_t end = strlen(path); end > 0;) { /* the module, then what it is part of */
        for (int64_t i = 0; i < list->count; i++) {
            size_t n = strlen(list->names[i]);
            if (n <= end && memcmp(path + end - n, list->names[i], n) == 0) return true;
        }
        while (end > 0 && path[--end] != '.') {}
    }
    return false;
}
