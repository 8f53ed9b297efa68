/* run_config.c - a run's YAML file into its configuration, in this order: the file is parsed, overrides are put
 * into its tree, every key is found in the table (run_keys.c) and its value read, and then the whole is resolved:
 * keys that contradict each other, keys that are missing, `auto`. So a mistake is named by its line, or as --set,
 * whoever made it. Defaults are read from the table by the same code as values from a file. */
#include "train/run_config.h"

#include <stdio.h>

#include "train/run_reader.h"

typedef nbl__run_reader reader;

/* ---- messages ---- */

/* What a value is, for a message; the text lives in `room`. */
static const char *describe(const nbl__yaml *value, char room[100])
{
    if (value->kind == NBL_YAML_LIST) return "a list";
    if (value->kind == NBL_YAML_MAP) return "a map of keys";
    snprintf(room, 100, "\"%.60s\"%s", value->text, strlen(value->text) > 60 ? "…" : "");
    return room;
}

static nbl_status wrong_value(reader *r, const nbl__yaml *value, const char *name, const nbl__run_key *key)
{
    char room[100];
    nbl__text allowed = {.ctx = r->ctx};
    nbl__run_key_allowed(key, &allowed);
    nbl_status status = allowed.status;
    if (status == NBL_OK)
        status = nbl__yaml_fail(r->ctx, value, NBL_ERROR_ARGUMENT, "%s: %s is not allowed; allowed: %s", name,
                                describe(value, room), allowed.text);
    nbl__text_free(&allowed);
    return status;
}

static nbl_status unknown_key(reader *r, const nbl__yaml *value, const char *name, const nbl__run_key *keys,
                              int count)
{
    const nbl__run_key *datasets = nbl__run_key_find(nbl__run_keys, NBL_RUN_KEYS, "datasets");
    const nbl__run_key *other = keys == nbl__run_keys ? datasets->inner : nbl__run_keys;
    int other_count = keys == nbl__run_keys ? datasets->inner_count : NBL_RUN_KEYS;
    if (nbl__run_key_find(other, other_count, value->key))
        return nbl__yaml_fail(r->ctx, value, NBL_ERROR_ARGUMENT, "%.200s: no such key here; it belongs %s",
                              name, keys == nbl__run_keys ? "into an entry of datasets" : "to the top level");
    return nbl__yaml_fail(r->ctx, value, NBL_ERROR_ARGUMENT, "%.200s: no such key; did you mean %s?", name,
                          nbl__run_key_nearest(keys, count, value->key));
}

/* ---- values ---- */

/* A text; words that YAML takes for something else are refused, since the writer may have meant that. */
static bool read_text(const nbl__yaml *value, const char **text)
{
    bool boolean;
    double number;
    if (value->kind != NBL_YAML_SCALAR || *value->text == 0) return false;
    if (value->plain &&
        (nbl__yaml_is_nothing(value) || nbl__yaml_boolean(value, &boolean) || nbl__yaml_real(value, &number)))
        return false;
    *text = value->text;
    return true;
}

/* As the command line has sizes: 4G and 4GB are powers of 1000, 4GiB of 1024. */
static bool read_bytes(const nbl__yaml *value, uint64_t *bytes)
{
    if (value->kind != NBL_YAML_SCALAR) return false;
    char digits[33];
    size_t length = strspn(value->text, "0123456789.");
    if (length == 0 || length >= sizeof digits) return false;
    memcpy(digits, value->text, length);
    digits[length] = 0;
    double number;
    nbl__yaml part = {.text = digits};
    int64_t whole;
    const char *unit = value->text + length;
    if (*unit == 0 && nbl__yaml_integer(&part, &whole)) return *bytes = (uint64_t)whole, whole > 0;
    if (!nbl__yaml_real(&part, &number)) return false;
    const char *letters = "kmgt", *letter = *unit ? strchr(letters, *unit | 0x20) : NULL;
    if (letter) {
        bool binary = unit[1] == 'i';
        for (int i = 0; i <= letter - letters; i++) number *= binary ? 1024 : 1000;
        unit += 1 + binary;
    }
    if (*unit == 'B' || *unit == 'b') unit++;
    if (*unit != 0 || !(number >= 1 && number < 0x1p62)) return false;
    *bytes = (uint64_t)number;
    return true;
}

static bool read_choice(const nbl__run_key *key, const nbl__yaml *value, int *chosen)
{
    for (const nbl__run_choice *c = key->choices; value->kind == NBL_YAML_SCALAR && c->name; c++)
        if (strcmp(c->name, value->text) == 0) return *chosen = c->value, true;
    return false;
}

/* A list of texts; one text is a list of one. */
static nbl_status read_names(reader *r, const nbl__yaml *value, const char *name, const nbl__run_key *key,
                             nbl__name_list *names)
{
    const nbl__yaml *item = value->kind == NBL_YAML_LIST ? value->first : value;
    int64_t count = value->kind == NBL_YAML_LIST ? value->count : 1;
    const char **items = nbl__arena_alloc(r->arena, (size_t)count * sizeof *items);
    if (items == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < count; i++, item = item->next)
        if (!read_text(item, &items[i])) return wrong_value(r, item, name, key);
    *names = (nbl__name_list){items, count};
    return NBL_OK;
}

static nbl_status read_table(reader *r, const nbl__yaml *map, const char *prefix, const nbl__run_key *keys,
                             int count, void *origin);

static nbl_status read_defaults(reader *r, const nbl__run_key *keys, int count, void *origin);

static nbl_status read_datasets(reader *r, const nbl__yaml *list, const nbl__run_key *key)
{
    if (list->kind != NBL_YAML_LIST) return wrong_value(r, list, key->name, key);
    nbl__dataset_config *sets = nbl__arena_alloc(r->arena, (size_t)list->count * sizeof *sets);
    if (sets == NULL) return NBL_ERROR_MEMORY;
    int64_t i = 0;
    for (const nbl__yaml *item = list->first; item; item = item->next, i++) {
        char prefix[40];
        snprintf(prefix, sizeof prefix, "datasets.%" PRId64 ".", i);
        if (item->kind != NBL_YAML_MAP) return wrong_value(r, item, key->name, key);
        NBL_TRY(read_defaults(r, key->inner, key->inner_count, &sets[i]));
        NBL_TRY(read_table(r, item, prefix, key->inner, key->inner_count, &sets[i]));
        if (sets[i].path == NULL)
            return nbl__yaml_fail(r->ctx, item, NBL_ERROR_ARGUMENT, "%spath is needed", prefix);
    }
    r->draft.config.datasets = sets;
    r->draft.config.dataset_count = list->count;
    return NBL_OK;
}

static nbl_status read_notice(reader *r, const nbl__yaml *value, const char *name, const nbl__run_key *key)
{
    bool boolean;
    if (key->type == NBL_KEY_NEVER && !(nbl__yaml_boolean(value, &boolean) && !boolean))
        return wrong_value(r, value, name, key);
    char line[32] = "";
    if (value->line) snprintf(line, sizeof line, ":%" PRId64, value->line);
    nbl__log(r->ctx, NBL_LOG_INFO, "%s%s: %.80s has no effect: %s", value->where, line, name, key->help);
    return NBL_OK;
}

static nbl_status read_value(reader *r, const nbl__yaml *value, const char *name, const nbl__run_key *key,
                             void *origin)
{
    void *field = (char *)origin + key->offset;
    int64_t integer;
    double real;
    int chosen = 2;
    bool boolean, good = true;
    switch (key->type) {
    case NBL_KEY_BOOLEAN: good = nbl__yaml_boolean(value, (bool *)field); break;
    case NBL_KEY_AUTO:
        if (nbl__yaml_boolean(value, &boolean)) chosen = boolean;
        else good = value->kind == NBL_YAML_SCALAR && strcmp(value->text, "auto") == 0;
        *(int *)field = chosen;
        break;
    case NBL_KEY_INTEGER:
        good = nbl__yaml_integer(value, &integer) && (double)integer >= key->least &&
               (double)integer <= key->most;
        if (good) memcpy(field, &integer, sizeof integer);
        break;
    case NBL_KEY_REAL:
        good = nbl__yaml_real(value, &real) && real >= key->least && real <= key->most;
        if (good) *(double *)field = real + 0.0; /* no negative zero */
        break;
    case NBL_KEY_BYTES: good = read_bytes(value, (uint64_t *)field); break;
    case NBL_KEY_TEXT:
        good = read_text(value, (const char **)field) && (!key->choices || read_choice(key, value, &chosen));
        break;
    case NBL_KEY_CHOICE:
        good = read_choice(key, value, &chosen);
        if (good && key->size == sizeof(bool)) *(bool *)field = chosen != 0;
        else if (good) *(int *)field = chosen;
        break;
    case NBL_KEY_TARGETS:
        if (value->kind == NBL_YAML_SCALAR) {
            good = read_text(value, (const char **)((char *)origin + key->other));
            break;
        }
        __attribute__((fallthrough));
    case NBL_KEY_NAMES:
        if (value->kind == NBL_YAML_MAP) good = false;
        else return read_names(r, value, name, key, field);
        break;
    case NBL_KEY_MAP: {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "%s.", name);
        if (value->kind == NBL_YAML_MAP)
            return read_table(r, value, prefix, key->inner, key->inner_count, origin);
        good = false;
        break;
    }
    case NBL_KEY_DATASETS: return read_datasets(r, value, key);
    case NBL_KEY_NOTICE:
    case NBL_KEY_NEVER: return read_notice(r, value, name, key);
    }
    return good ? NBL_OK : wrong_value(r, value, name, key);
}

static nbl_status read_defaults(reader *r, const nbl__run_key *keys, int count, void *origin)
{
    for (const nbl__run_key *key = keys; key < keys + count; key++) {
        if (key->type == NBL_KEY_MAP) NBL_TRY(read_defaults(r, key->inner, key->inner_count, origin));
        if (key->fallback == NULL) continue;
        nbl__yaml *value;
        NBL_TRY(nbl__yaml_parse(r->arena, "default", false, key->fallback, strlen(key->fallback), &value));
        NBL_TRY(read_value(r, value, key->name, key, origin));
    }
    return NBL_OK;
}

static nbl_status read_table(reader *r, const nbl__yaml *map, const char *prefix, const nbl__run_key *keys,
                             int count, void *origin)
{
    bool top = keys == nbl__run_keys;
    for (const nbl__yaml *item = map->first; item; item = item->next) {
        char name[256];
        snprintf(name, sizeof name, "%s%.100s", prefix, item->key);
        const nbl__run_key *key = nbl__run_key_find(keys, count, item->key);
        if (key == NULL) return unknown_key(r, item, name, keys, count);
        if (nbl__yaml_is_nothing(item)) continue;
        if (top) r->given[key - keys] = item;
        NBL_TRY(read_value(r, item, name, key, origin));
    }
    return NBL_OK;
}

/* ---- the file ---- */

/* "key=value", the value YAML. */
static nbl_status apply_override(reader *r, const char *text)
{
    const char *equals = strchr(text, '=');
    NBL_CHECK(r->ctx, equals != NULL && equals != text && equals - text < 200, NBL_ERROR_ARGUMENT,
              "--set %.80s: not key=value", text);
    char *key = nbl__arena_printf(r->arena, "%.*s", (int)(equals - text), text);
    char *where = key ? nbl__arena_printf(r->arena, "--set %s:", key) : NULL;
    if (where == NULL) return NBL_ERROR_MEMORY;
    nbl__yaml *value;
    NBL_TRY(nbl__yaml_parse(r->arena, where, false, equals + 1, strlen(equals + 1), &value));
    value->where = "--set";
    return nbl__yaml_put(r->arena, r->root, key, value);
}

nbl_status nbl__run_config_read(nbl__arena *arena, const char *path, const char *const *overrides,
                                int64_t override_count, nbl__run_config *config)
{
    reader *r = nbl__arena_alloc(arena, sizeof *r);
    if (r == NULL) return NBL_ERROR_MEMORY;
    *r = (reader){.arena = arena, .ctx = arena->ctx};
    NBL_TRY(nbl__yaml_read(arena, path, &r->root));
    if (nbl__yaml_is_nothing(r->root)) r->root->kind = NBL_YAML_MAP; /* all of it may come from --set */
    if (r->root->kind != NBL_YAML_MAP)
        return nbl__yaml_fail(arena->ctx, r->root, NBL_ERROR_FORMAT, "not a map of keys and values");
    for (int64_t i = 0; i < override_count; i++) NBL_TRY(apply_override(r, overrides[i]));
    NBL_TRY(read_defaults(r, nbl__run_keys, NBL_RUN_KEYS, &r->draft));
    NBL_TRY(read_table(r, r->root, "", nbl__run_keys, NBL_RUN_KEYS, &r->draft));
    NBL_TRY(nbl__run_resolve(r));
    r->draft.config.file = r->root->where;
    *config = r->draft.config;
    return NBL_OK;
}
