/* run_changes.c - collects the keys that a checkpoint records, and compares them at a resume. See
 * run_changes.h.
 *
 *     "keys": {"lora_r": "8", "learning_rate": "0.0002", "datasets": "1", "datasets.0.type": "alpaca"}
 *
 * Values are compared as texts, in the form in which a configuration is written. So 1e-4 and 0.0001
 * in the file are the same value. Names of nested keys are joined with dots. */
#include "run/run_changes.h"

#include <stdio.h>

#include "base/hash.h"

/* Limits of a message: MAX_KEYS names, about MAX_SHOWN bytes of values. A value of more than
 * MAX_VALUE bytes is recorded as its size and checksum. */
enum { MAX_KEYS = 24, MAX_SHOWN = 2400, MAX_VALUE = 160 };

/* ---- collecting ---- */

/* Appends a value. A name or text of NULL means that the caller ran out of memory while it made
 * them. */
nbl_status nbl__run_values_add(nbl__arena *arena, nbl__run_values *values, nbl__run_value value)
{
    if (values->count == values->room) {
        int64_t room = 2 * values->room + 64;
        nbl__run_value *more = nbl__arena_alloc(arena, (size_t)room * sizeof *more);
        if (more == NULL) return NBL_ERROR_MEMORY;
        if (values->count) memcpy(more, values->items, (size_t)values->count * sizeof *more);
        values->items = more;
        values->room = room;
    }
    if (value.name == NULL || value.text == NULL) return NBL_ERROR_MEMORY;
    values->items[values->count++] = value;
    return NBL_OK;
}

/* Adds the value of one key as text. */
static nbl_status add_key(nbl__arena *arena, nbl__run_values *values, const char *prefix,
                          const nbl__run_key *key, const void *origin)
{
    nbl__text text = {.ctx = arena->ctx};
    nbl__run_key_print(&text, key, origin);
    nbl_status status = text.status;
    if (status == NBL_OK) {
        const char *kept = text.size > MAX_VALUE
                               ? nbl__arena_printf(arena, "a text of %zu bytes, checksum %016" PRIx64,
                                                   text.size, nbl__hash(0, text.text, text.size))
                               : nbl__arena_printf(arena, "%s", text.text);
        nbl__run_value value = {nbl__arena_printf(arena, "%s%s", prefix, key->name), kept, key->resume};
        status = nbl__run_values_add(arena, values, value);
    }
    nbl__text_free(&text);
    return status;
}

/* Adds all recorded keys of a table whose values are in `origin`; recursive for maps and
 * datasets. The key datasets itself is recorded as the number of entries. */
static nbl_status collect(nbl__arena *arena, nbl__run_values *values, const char *prefix,
                          const nbl__run_key *keys, int count, const void *origin,
                          const nbl__run_config *config)
{
    for (const nbl__run_key *key = keys; key < keys + count; key++) {
        if (key->resume == NBL_RESUME_IGNORE || !nbl__run_key_counts(key, config) ||
            !nbl__run_key_holds(key, origin))
            continue;
        char inner[80];
        if (key->type == NBL_KEY_MAP) {
            snprintf(inner, sizeof inner, "%s%s.", prefix, key->name);
            NBL_TRY(collect(arena, values, inner, key->inner, key->inner_count, origin, config));
        } else if (key->type == NBL_KEY_DATASETS) {
            nbl__run_value files = {key->name, nbl__arena_printf(arena, "%" PRId64, config->dataset_count),
                                    key->resume};
            NBL_TRY(nbl__run_values_add(arena, values, files));
            for (int64_t i = 0; i < config->dataset_count; i++) {
                snprintf(inner, sizeof inner, "%s%s.%" PRId64 ".", prefix, key->name, i);
                NBL_TRY(collect(arena, values, inner, key->inner, key->inner_count, &config->datasets[i],
                                config));
            }
        } else NBL_TRY(add_key(arena, values, prefix, key, origin));
    }
    return NBL_OK;
}

/* The values are those of the resolved configuration, so a default that has changed between two
 * versions is found too. */
nbl_status nbl__run_values_collect(nbl__arena *arena, const nbl__run_config *config, nbl__run_values *values)
{
    nbl__run_parse parse = nbl__run_parse_of(config);
    *values = (nbl__run_values){0};
    return collect(arena, values, "", nbl__run_keys, NBL_RUN_KEYS, &parse, config);
}

/* The text of a value, or NULL. Starts at `index`: both lists come from the same table, so the
 * name is usually there. */
static const char *find_near(const nbl__run_values *values, const char *name, int64_t index)
{
    for (int64_t i = 0; i < values->count; i++) {
        const nbl__run_value *value = &values->items[(index + i) % values->count];
        if (strcmp(value->name, name) == 0) return value->text;
    }
    return NULL;
}

const char *nbl__run_value_find(const nbl__run_values *values, const char *name)
{
    return find_near(values, name, 0);
}

/* ---- JSON ---- */

void nbl__run_values_print(nbl__text *out, const nbl__run_values *values)
{
    nbl__text_printf(out, "{");
    for (int64_t i = 0; i < values->count; i++) {
        nbl__text_printf(out, "%s\n    ", i ? "," : "");
        nbl__text_json(out, values->items[i].name);
        nbl__text_printf(out, ": ");
        nbl__text_json(out, values->items[i].text);
    }
    nbl__text_printf(out, "\n  }");
}

nbl_status nbl__run_values_read(nbl__arena *arena, const char *where, const nbl__json *object,
                                nbl__run_values *values)
{
    *values = (nbl__run_values){0};
    NBL_CHECK(arena->ctx, nbl__json_is(object, NBL_JSON_OBJECT) && object->count < 1 << 17, NBL_ERROR_FORMAT,
              "%s: no right value for \"keys\"", where);
    for (int64_t i = 0; i < object->count; i++) {
        const nbl__json *it = &object->items[i];
        NBL_CHECK(arena->ctx, nbl__json_is(it, NBL_JSON_STRING), NBL_ERROR_FORMAT,
                  "%s: keys: no text for \"%.100s\"", where, it->key);
        const nbl__run_key *key = nbl__run_key_find(nbl__run_keys, NBL_RUN_KEYS, it->key);
        nbl__run_value value = {it->key, it->string, key ? key->resume : NBL_RESUME_NEVER};
        NBL_TRY(nbl__run_values_add(arena, values, value));
    }
    return NBL_OK;
}

/* ---- comparing ---- */

/* The differences of two lists of values, by rule. */
typedef struct changes {
    nbl__text names[2];   /* keys of the rule ALLOW; keys of the rule NEVER */
    nbl__text lines;      /* "KEY was A, is B" of both */
    int64_t count, fixed; /* keys of both; of the rule NEVER */
    nbl__text told;       /* lines of the rule TELL */
} changes;

/* Adds a difference. was, is: NULL for a key that is not given. */
static void add_change(changes *c, const nbl__run_value *of, const char *was, const char *is)
{
    bool fixed = of->rule == NBL_RESUME_NEVER, told = of->rule == NBL_RESUME_RECORD;
    nbl__text *lines = told ? &c->told : &c->lines, *names = &c->names[fixed];
    if (!told) {
        c->fixed += fixed;
        if (c->count++ >= MAX_KEYS) return;
        nbl__text_printf(names, "%s%.80s", names->size ? ", " : "", of->name);
    }
    if (lines->size > MAX_SHOWN) return;
    nbl__text_printf(lines, "%s%.80s was %.*s, is %.*s", lines->size ? "\n" : "", of->name, MAX_VALUE,
                     was ? was : "not given", MAX_VALUE, is ? is : "not given");
}

/* True for keys of dataset entries when the number of entries differs: then only that number is
 * reported, not every key of every entry. */
static bool skipped(const char *name, bool other_count)
{
    return other_count && strncmp(name, "datasets.", strlen("datasets.")) == 0;
}

/* Finds changed and new keys, then keys that are gone. */
static void find_changes(changes *c, const nbl__run_values *was, const nbl__run_values *is)
{
    const char *files_before = nbl__run_value_find(was, "datasets"),
               *files_now = nbl__run_value_find(is, "datasets");
    bool other_count = files_before && files_now && strcmp(files_before, files_now) != 0;
    for (int64_t i = 0; i < is->count; i++) {
        const nbl__run_value *now = &is->items[i];
        const char *before = find_near(was, now->name, i);
        if (skipped(now->name, other_count)) continue;
        if (before == NULL || strcmp(before, now->text) != 0) add_change(c, now, before, now->text);
    }
    for (int64_t i = 0; i < was->count; i++) {
        const nbl__run_value *before = &was->items[i];
        if (skipped(before->name, other_count) || find_near(is, before->name, i)) continue;
        add_change(c, before, before->text, NULL);
    }
}

/* Fails with all keys that may not change, and with a hint at what would help. */
static nbl_status refuse(nbl_context *ctx, const char *folder, const changes *c)
{
    nbl__text text = {.ctx = ctx};
    nbl__text_printf(&text, "%.1000s: %s changed since it was saved:", folder,
                     c->count == 1 ? "a key has" : "keys have");
    if (c->count == 1) nbl__text_printf(&text, " %s", c->lines.text);
    else {
        nbl__text_printf(&text, " %s%s%s", c->fixed ? c->names[1].text : "",
                         c->fixed && c->names[0].size ? ", " : "", c->names[0].size ? c->names[0].text : "");
        if (c->count > MAX_KEYS) nbl__text_printf(&text, " and %" PRId64 " more", c->count - MAX_KEYS);
        nbl__text_printf(&text, "\n%s", c->lines.text);
    }
    nbl_status status = text.status;
    if (status == NBL_OK) status = nbl__fail_lines(ctx, NBL_ERROR_ARGUMENT, text.text);
    nbl__text_free(&text);
    if (status == NBL_ERROR_MEMORY) return status;
    if (c->fixed == 0)
        return nbl__hint(ctx, status, "set %s back, or go on with the new value%s: --resume --allow-changes",
                         c->count == 1 ? "it" : "them", c->count == 1 ? "" : "s");
    const char *them = c->fixed == 1 ? "it" : "them";
    if (c->names[0].size)
        return nbl__hint(ctx, status,
                         "set %.400s back, or begin anew without --resume; --resume --allow-changes would "
                         "take %.400s",
                         c->names[1].text ? c->names[1].text : them, c->names[0].text);
    return nbl__hint(ctx, status, "set %s back, or begin anew without --resume", them);
}

nbl_status nbl__run_values_compare(nbl__arena *arena, const char *folder, const nbl__run_values *was,
                                   const nbl__run_values *is, bool allow, const char **change)
{
    nbl_context *ctx = arena->ctx;
    changes c = {.names = {{.ctx = ctx}, {.ctx = ctx}}, .lines = {.ctx = ctx}, .told = {.ctx = ctx}};
    *change = NULL;
    find_changes(&c, was, is);
    nbl_status status = c.lines.status ? c.lines.status : c.told.status;
    for (int i = 0; i < 2; i++)
        if (status == NBL_OK) status = c.names[i].status;
    if (status == NBL_OK && c.count && (c.fixed || !allow)) status = refuse(ctx, folder, &c);
    else if (status == NBL_OK && (c.count || c.told.size)) {
        char *line = nbl__arena_printf(arena, "%s%s%s", c.count ? c.lines.text : "",
                                       c.count && c.told.size ? "\n" : "", c.told.size ? c.told.text : "");
        for (char *at = line; at && *at; at++)
            if (*at == '\n') *at = ';';
        status = line ? NBL_OK : NBL_ERROR_MEMORY;
        *change = line;
    }
    nbl__text_free(&c.lines);
    nbl__text_free(&c.told);
    for (int i = 0; i < 2; i++) nbl__text_free(&c.names[i]);
    return status;
}

/* ---- history ---- */

/* The list is copied at each addition: a run has few of them, and readers may keep the old list. */
nbl_status nbl__run_history_add(nbl__arena *arena, nbl__name_list *history, const char *line)
{
    const char **items = nbl__arena_alloc(arena, (size_t)(history->count + 1) * sizeof *items);
    if (items == NULL || line == NULL) return NBL_ERROR_MEMORY;
    if (history->count) memcpy(items, history->items, (size_t)history->count * sizeof *items);
    items[history->count] = line;
    *history = (nbl__name_list){items, history->count + 1};
    return NBL_OK;
}

/* True for one line of printable ASCII. The history is written as comments of run.yml; a line
 * end would end the comment. */
static bool is_line(const nbl__json *value)
{
    if (!nbl__json_is(value, NBL_JSON_STRING)) return false;
    for (const char *c = value->string; *c; c++)
        if (*c < 0x20 || *c > 0x7e) return false;
    return true;
}

nbl_status nbl__run_history_read(nbl__arena *arena, const char *where, const nbl__json *list,
                                 nbl__name_list *history)
{
    *history = (nbl__name_list){0};
    NBL_CHECK(arena->ctx, nbl__json_is(list, NBL_JSON_ARRAY), NBL_ERROR_FORMAT, "%s: no \"history\"", where);
    const char **items = nbl__arena_alloc(arena, (size_t)list->count * sizeof *items);
    if (items == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < list->count; i++) {
        NBL_CHECK(arena->ctx, is_line(&list->items[i]), NBL_ERROR_FORMAT,
                  "%s: history: entry %" PRId64 " is not a line of ASCII", where, i);
        if ((items[i] = nbl__arena_strdup(arena, list->items[i].string)) == NULL) return NBL_ERROR_MEMORY;
    }
    *history = (nbl__name_list){items, list->count};
    return NBL_OK;
}

void nbl__run_history_write(nbl__text *out, const nbl__name_list *history)
{
    if (history->count == 0) return;
    nbl__text_printf(out, "# history: what changed when the run went on, by the steps done before\n");
    for (int64_t i = 0; i < history->count; i++) nbl__text_printf(out, "# - %s\n", history->items[i]);
}
