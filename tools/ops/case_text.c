/* case_text.c - lines of the case table: their words, their alternatives, their cross product.
 *
 *   dtype=ALL act=silu|gelu x=4x8:f32,bf16     ─▶ 3 · 2 · 2 cases, each a line without alternatives
 *
 * A line is NAME=VALUE words separated by blanks. `|` separates alternatives of a value, `,` those
 * of a slot's dtype, and ALL stands for every dtype, storage format or word of an attribute. */
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>

#include "case.h"

typedef struct word {
    char name[32];
    char value[CASE_TEXT];
} word;

/* The next word of a text, or NULL at its end. */
static const char *next_word(const char *at, word *w, bool *good)
{
    at += strspn(at, " ");
    *good = true;
    if (*at == 0) return NULL;
    size_t name = strcspn(at, "= "), all = strcspn(at, " ");
    *good = at[name] == '=' && name > 0 && name < sizeof w->name && all - name - 1 < sizeof w->value;
    if (!*good) return NULL;
    snprintf(w->name, sizeof w->name, "%.*s", (int)name, at);
    snprintf(w->value, sizeof w->value, "%.*s", (int)(all - name - 1), at + name + 1);
    return at + all;
}

const char *case_word(const char *text, const char *name, char value[CASE_TEXT])
{
    word w;
    bool good;
    while ((text = next_word(text, &w, &good))) {
        if (strcmp(w.name, name) != 0) continue;
        memcpy(value, w.value, sizeof w.value);
        return value;
    }
    return NULL;
}

/* One factor of an expression: a number, or a capital letter that is a word of the case. */
static bool factor(const char *text, const char *from, size_t length, double *value)
{
    char piece[64], named[CASE_TEXT];
    if (length == 0 || length >= sizeof piece) return false;
    snprintf(piece, sizeof piece, "%.*s", (int)length, from);
    const char *it = length == 1 && *piece >= 'A' && *piece <= 'Z' ? case_word(text, piece, named) : piece;
    if (it == NULL) return false;
    char *end;
    *value = strtod(it, &end);
    return end != it && *end == 0;
}

/* Evaluates sums of products: "2*T+1". There are no brackets. */
bool case_number(const char *text, const char *expression, double *value)
{
    double product = 1, one;
    for (*value = 0;; product *= one) {
        size_t n = strcspn(expression, "*+");
        if (!factor(text, expression, n, &one)) return false;
        expression += n;
        if (*expression != '*') {
            *value += product * one;
            product = one = 1;
            if (*expression == 0) return true;
        }
        expression++;
    }
}

/* ---- alternatives ---- */

typedef struct alternatives {
    char text[64][192];
    int count;
} alternatives;

/* Adds before + it + after. False: too many alternatives, or too long a text. */
static bool add(alternatives *to, const char *before, const char *it, size_t length, const char *after)
{
    if (to->count == 64) return false;
    int n = snprintf(to->text[to->count], sizeof to->text[0], "%s%.*s%s", before, (int)length, it, after);
    return n < (int)sizeof to->text[0] && ++to->count;
}

/* Splits at a separator that is not inside brackets. */
static size_t piece_length(const char *text, char separator)
{
    size_t n = 0;
    for (int depth = 0; text[n] && (depth > 0 || text[n] != separator); n++)
        depth += text[n] == '[' ? 1 : text[n] == ']' ? -1 : 0;
    return n;
}

/* Adds each item of a list separated by commas. */
static bool add_list(alternatives *to, const char *before, const char *list, const char *after)
{
    for (;; list++) {
        size_t n = piece_length(list, ',');
        if (!add(to, before, list, n, after)) return false;
        list += n;
        if (*list == 0) return true;
    }
}

static const char floats[] = "f32,f16,bf16";

static bool add_words(alternatives *to, const char *const *words, const char *before, const char *after)
{
    for (; *words; words++)
        if (!add(to, before, *words, strlen(*words), after)) return false;
    return true;
}

static const nbl__attr *attr_find(const nbl__family *family, const char *name)
{
    for (const nbl__attr *attr = family->attrs; attr->name; attr++)
        if (strcmp(attr->name, name) == 0) return attr;
    return NULL;
}

/* One alternative of a slot: its dtype field may be a list. */
static bool add_slot(alternatives *to, const nbl__slot *slot, const char *text)
{
    char before[192], list[192], after[192] = "";
    size_t shape = piece_length(text, ':');
    if (text[shape] == 0) return add(to, "", text, shape, "");
    size_t dtypes = piece_length(text + shape + 1, ':');
    snprintf(before, sizeof before, "%.*s:", (int)shape, text);
    snprintf(list, sizeof list, "%.*s", (int)dtypes, text + shape + 1);
    snprintf(after, sizeof after, "%s", text + shape + 1 + dtypes);
    if (strcmp(list, "ALL") != 0) return add_list(to, before, list, after);
    if (case_is_weight(slot)) return add_words(to, case_stores, before, after);
    return add_list(to, before, floats, after);
}

/* All alternatives of a word. The work is that of one word; the cross product is made by
 * choose(). */
static bool alternatives_of(const nbl__family *family, const word *w, alternatives *all)
{
    const nbl__slot *slot = nbl__slot_find(family, w->name);
    const nbl__attr *attr = attr_find(family, w->name);
    all->count = 0;
    if (attr && strcmp(w->value, "ALL") == 0) {
        static const char *const flags[] = {"false", "true", NULL};
        if (attr->type == NBL_ATTR_DTYPE) return add_list(all, "", floats, "");
        return add_words(all, attr->type == NBL_ATTR_WORD ? attr->words : flags, "", "");
    }
    for (const char *at = w->value;; at++) {
        char one[192];
        size_t n = piece_length(at, '|');
        if (n >= sizeof one) return false;
        snprintf(one, sizeof one, "%.*s", (int)n, at);
        if (!(slot ? add_slot(all, slot, one) : add(all, "", one, n, ""))) return false;
        at += n;
        if (*at == 0) return true;
    }
}

/* ---- the cross product ---- */

typedef struct expansion {
    const nbl__family *family;
    case_each each;
    void *user;
    char *why;
    char text[CASE_TEXT];
} expansion;

/* Chooses for the words from `at` on; `length` of the text is chosen already. */
static bool choose(expansion *e, const char *at, size_t length, bool *going)
{
    word w;
    bool good;
    const char *rest = next_word(at, &w, &good);
    if (rest == NULL) {
        if (good) *going = e->each(e->user, e->text);
        else snprintf(e->why, CASE_TEXT, "not NAME=VALUE: %s", at);
        return good;
    }
    alternatives *all = malloc(sizeof *all);
    good = all && alternatives_of(e->family, &w, all);
    if (!good) snprintf(e->why, CASE_TEXT, "cannot read %.32s=%.200s", w.name, w.value);
    for (int i = 0; good && *going && i < all->count; i++) {
        int n = snprintf(e->text + length, sizeof e->text - length, "%s%s=%s", length ? " " : "", w.name,
                         all->text[i]);
        good = length + (size_t)n < sizeof e->text && choose(e, rest, length + (size_t)n, going);
    }
    free(all);
    return good;
}

bool case_expand(const nbl__family *family, const char *line, case_each each, void *user, char why[CASE_TEXT])
{
    expansion e = {.family = family, .each = each, .user = user, .why = why};
    bool going = true;
    snprintf(why, CASE_TEXT, "too long");
    return choose(&e, line, 0, &going);
}

/* --op is a regular expression for the whole name of a family. */
bool case_selected(const case_options *o, const char *family)
{
    char whole[CASE_TEXT];
    regex_t pattern;
    if (o->op == NULL) return true;
    snprintf(whole, sizeof whole, "^(%.900s)$", o->op);
    if (regcomp(&pattern, whole, REG_EXTENDED | REG_NOSUB) != 0) return false;
    bool matches = regexec(&pattern, family, 0, NULL, 0) == 0;
    regfree(&pattern);
    return matches;
}
