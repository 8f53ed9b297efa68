/* run_config.c - reads a run's YAML file into its configuration:
 *
 *     1. parse the file to a tree (yaml.c)
 *     2. set the overrides in the tree
 *     3. read the defaults, then every key of the tree, by the table (run_keys.c) or run_foreign.c
 *     4. report all refused keys in one error (run_remarks.c)
 *     5. resolve: contradictions, missing keys, `auto` (run_resolve.c)
 *
 * Overrides are in the tree before keys are read. So an error names the line or --set, whichever
 * the value came from. Defaults are YAML texts in the table, read by the same code.
 *
 * A wrong key does not stop the reading: it is a remark, and all remarks are one error in step 4. A
 * contradiction in step 5 is an error of its own, because later checks may depend on it.
 *
 * Each table of keys has a struct that its offsets count from (`origin`): nbl__run_parse for the
 * top level, nbl__dataset_config for an entry of datasets. */
#include "run/run_config.h"

#include <stdio.h>

#include "text/template/named_templates.h"
#include "run/run_foreign.h"
#include "run/run_reader.h"

typedef nbl__run_reader reader;

enum { PAIR = 150 }; /* bytes of a key with its value, in a message */

/* ---- messages ---- */

/* Describes a value for a message. The text may be in `room`. */
static const char *describe(const nbl__yaml *value, char room[100])
{
    if (value->kind == NBL_YAML_LIST) return "a list";
    if (value->kind == NBL_YAML_MAP) return "a map of keys";
    snprintf(room, 100, "\"%.60s\"%s", value->text, strlen(value->text) > 60 ? "…" : "");
    return room;
}

/* A key with its value for a message: "optimizer: adamw_hf". */
static const char *describe_pair(const char *name, const nbl__yaml *value, char room[PAIR])
{
    snprintf(room, PAIR, "%.50s: %.90s", name, value->text);
    return room;
}

/* Records that a value is not allowed. Reported when all keys are read. */
static nbl_status wrong_value(reader *r, const nbl__yaml *value, const char *name, const nbl__run_key *key)
{
    char room[100];
    nbl__text allowed = {.ctx = r->ctx};
    nbl__run_key_allowed(key, &allowed);
    nbl_status status = allowed.status;
    if (status == NBL_OK)
        status = nbl__run_remark_add(r, &r->refusals, value, name, "%s is not allowed; allowed: %s",
                                     describe(value, room), allowed.text);
    nbl__text_free(&allowed);
    return status;
}

/* Checks that the value of chat_template is a known name or a template. */
static nbl_status check_template(reader *r, const nbl__yaml *value, const char *name)
{
    static const char *const others[] = {"tokenizer_default", "jinja"};
    const char *text = value->text, *fallback = nbl__template_fallback(text);
    const char *wanted = fallback ? fallback : text;
    char room[PAIR];
    for (int i = 0; i < 2; i++)
        if (strcmp(text, others[i]) == 0) return NBL_OK;
    if (nbl__named_template(wanted) || (!fallback && nbl__is_template(text))) return NBL_OK;
    const nbl__foreign_group *group = nbl__foreign_find(NBL_FOREIGN_TEMPLATES, wanted);
    if (group)
        return nbl__run_remark_add(r, &r->refusals, value, describe_pair(name, value, room), "%s",
                                   group->why);
    return nbl__run_remark_add(
        r, &r->refusals, value, name,
        "%s is not allowed; allowed: tokenizer_default, jinja, %s, or a template's text",
        describe(value, room), nbl__named_template_names());
}

/* The row of the key `datasets`, which has the table of its entries. */
static const nbl__run_key *datasets_key(void)
{
    return nbl__run_key_find(nbl__run_keys, NBL_RUN_KEYS, "datasets");
}

/* Records a wrong datasets[].type; for a type of axolotl with the reason and what to use
 * instead. */
static nbl_status wrong_type(reader *r, const nbl__yaml *value, const char *name, const nbl__run_key *key)
{
    const nbl__foreign_group *group = NULL;
    char room[PAIR];
    if (value->kind == NBL_YAML_SCALAR) group = nbl__foreign_find(NBL_FOREIGN_TYPES, value->text);
    else if (value->kind == NBL_YAML_MAP) group = nbl__foreign_find(NBL_FOREIGN_TYPES, "user_defined");
    if (group == NULL) return wrong_value(r, value, name, key);
    return nbl__run_remark_add(r, &r->refusals, value,
                               value->kind == NBL_YAML_MAP ? name : describe_pair(name, value, room), "%s",
                               group->why);
}

/* Records an unknown key, with a hint: it belongs to another level, or the nearest name. */
static nbl_status unknown_key(reader *r, const nbl__yaml *value, const char *name, const nbl__run_key *keys,
                              int count)
{
    const nbl__run_key *datasets = datasets_key();
    const nbl__run_key *other = keys == nbl__run_keys ? datasets->inner : nbl__run_keys;
    int other_count = keys == nbl__run_keys ? datasets->inner_count : NBL_RUN_KEYS;
    if (nbl__run_key_find(other, other_count, value->key))
        return nbl__run_remark_add(r, &r->refusals, value, name, "no such key here; it belongs %s",
                                   keys == nbl__run_keys ? "into an entry of datasets" : "to the top level");
    const char *near = nbl__run_key_nearest(keys, count, value->key);
    if (near) return nbl__run_remark_add(r, &r->refusals, value, name, "no such key; did you mean %s?", near);
    return nbl__run_remark_add(r, &r->refusals, value, name,
                               "no such key of nibble or axolotl; docs/CONFIG.md has them all");
}

/* ---- values ---- */

/* Reads a text. False for unquoted words that YAML reads as a number, boolean or null: the user
 * may mean that. */
static bool read_text(const nbl__yaml *value, const char **text)
{
    bool boolean;
    double number;
    if (value->kind != NBL_YAML_SCALAR || *value->text == 0) return false;
    if (value->plain &&
        (nbl__yaml_is_null(value) || nbl__yaml_boolean(value, &boolean) || nbl__yaml_real(value, &number)))
        return false;
    *text = value->text;
    return true;
}

/* Reads a size in bytes, as on the command line: 4G and 4GB are powers of 1000, 4GiB of 1024. */
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

/* *chosen: the value of the choice that the text names. */
static bool read_choice(const nbl__run_key *key, const nbl__yaml *value, int *chosen)
{
    for (const nbl__run_choice *c = key->choices; value->kind == NBL_YAML_SCALAR && c->name; c++)
        if (strcmp(c->name, value->text) == 0) return *chosen = c->value, true;
    return false;
}

/* Reads a list of texts. A single text is a list of one. */
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

/* Reads the list of datasets: defaults, then the keys of each entry. */
static nbl_status read_datasets(reader *r, const nbl__yaml *list, const nbl__run_key *key)
{
    if (list->kind != NBL_YAML_LIST) return wrong_value(r, list, key->name, key);
    nbl__dataset_config *sets = nbl__arena_alloc(r->arena, (size_t)list->count * sizeof *sets);
    if (sets == NULL) return NBL_ERROR_MEMORY;
    int64_t i = 0;
    for (const nbl__yaml *item = list->first; item; item = item->next, i++) {
        char prefix[40];
        snprintf(prefix, sizeof prefix, "datasets.%" PRId64 ".", i);
        if (item->kind != NBL_YAML_MAP) {
            NBL_TRY(wrong_value(r, item, key->name, key));
            continue;
        }
        NBL_TRY(read_defaults(r, key->inner, key->inner_count, &sets[i]));
        NBL_TRY(read_table(r, item, prefix, key->inner, key->inner_count, &sets[i]));
        if (sets[i].path == NULL) {
            strcat(prefix, "path");
            NBL_TRY(nbl__run_remark_add(r, &r->refusals, item, prefix, "it is needed, and is not given"));
        }
        if (nbl__yaml_get(item, "message_property_mappings") &&
            (nbl__yaml_get(item, "message_field_role") || nbl__yaml_get(item, "message_field_content")))
            NBL_TRY(
                nbl__run_remark_add(r, &r->refusals, item, "message_property_mappings",
                                    "it contradicts message_field_role and message_field_content; give one"));
    }
    r->parse.config.datasets = sets;
    r->parse.config.dataset_count = list->count;
    return NBL_OK;
}

/* ---- keys of axolotl that nibble does not have ---- */

/* True for what Python treats as false: false, 0, [], {}. */
static bool is_off(const nbl__yaml *value)
{
    bool boolean;
    double number;
    if (value->kind != NBL_YAML_SCALAR) return value->count == 0;
    if (nbl__yaml_boolean(value, &boolean)) return !boolean;
    return nbl__yaml_real(value, &number) && number == 0;
}

/* True if every role maps to itself: {user: [user]}. */
static bool is_identity(const nbl__yaml *roles)
{
    if (roles->kind != NBL_YAML_MAP) return false;
    for (const nbl__yaml *role = roles->first; role; role = role->next) {
        const nbl__yaml *name = role->kind == NBL_YAML_LIST ? role->first : role;
        if (role->kind == NBL_YAML_MAP || (role->kind == NBL_YAML_LIST && role->count != 1)) return false;
        if (name->kind != NBL_YAML_SCALAR || strcmp(name->text, role->key) != 0) return false;
    }
    return true;
}

/* Reads `plugins`: each entry that changes the result is refused with its reason; without one a
 * notice. */
static nbl_status read_plugins(reader *r, const nbl__yaml *value, const char *name,
                               const nbl__foreign_group *group)
{
    const nbl__yaml *item = value->kind == NBL_YAML_LIST ? value->first : value;
    bool any = false;
    for (; item; item = value->kind == NBL_YAML_LIST ? item->next : NULL) {
        char room[PAIR];
        const char *why = nbl__foreign_plugin(item->kind == NBL_YAML_SCALAR ? item->text : "");
        if (why == NULL) continue;
        bool scalar = item->kind == NBL_YAML_SCALAR;
        NBL_TRY(nbl__run_remark_add(r, &r->refusals, item, scalar ? describe_pair(name, item, room) : name,
                                    "%s", why));
        any = true;
    }
    return any ? NBL_OK : nbl__run_remark_add(r, &r->notices, value, name, "%s", group->why);
}

/* Reads a key of axolotl that nibble does not have, as its group says: a notice, nothing, or a
 * refusal. */
static nbl_status read_foreign(reader *r, const nbl__yaml *value, const char *name,
                               const nbl__foreign_group *group)
{
    bool boolean, fine = false;
    const nbl__yaml *base;
    switch (group->kind) {
    case NBL_FOREIGN_NOTICE: return nbl__run_remark_add(r, &r->notices, value, name, "%s", group->why);
    case NBL_FOREIGN_PLUGINS: return read_plugins(r, value, name, group);
    case NBL_FOREIGN_REFUSED: fine = is_off(value); break;
    case NBL_FOREIGN_ALWAYS: fine = nbl__yaml_boolean(value, &boolean) && boolean; break;
    case NBL_FOREIGN_ROLES: fine = is_identity(value); break;
    case NBL_FOREIGN_BASE:
        base = nbl__yaml_get(r->root, "base_model");
        fine = value->kind == NBL_YAML_SCALAR && base && base->kind == NBL_YAML_SCALAR &&
               strcmp(value->text, base->text) == 0;
        break;
    }
    return fine ? NBL_OK : nbl__run_remark_add(r, &r->refusals, value, name, "%s", group->why);
}

/* The group of a name in the scope that the table `keys` stands for; NULL: unknown. */
static const nbl__foreign_group *find_foreign(const nbl__run_key *keys, const char *prefix, const char *name)
{
    if (keys == nbl__run_keys) return nbl__foreign_find(NBL_FOREIGN_TOP, name);
    if (keys == datasets_key()->inner) return nbl__foreign_find(NBL_FOREIGN_DATASET, name);
    return strcmp(prefix, "special_tokens.") == 0 ? nbl__foreign_find(NBL_FOREIGN_TOKENS, name) : NULL;
}

/* ---- the table ---- */

/* Replaces *value with nibble's name for it, if it is an alias. */
static nbl_status unalias(reader *r, const nbl__yaml **value, const char *name, const nbl__run_key *key)
{
    char room[PAIR];
    const nbl__yaml *from = *value;
    for (const nbl__run_alias *a = key->aliases; a && a->name && from->kind == NBL_YAML_SCALAR; a++) {
        if (strcmp(a->name, from->text) != 0) continue;
        nbl__yaml *copy = nbl__arena_alloc(r->arena, sizeof *copy);
        if (copy == NULL) return NBL_ERROR_MEMORY;
        *copy = *from;
        copy->text = a->as;
        *value = copy;
        return nbl__run_remark_add(r, &r->aliases, from, describe_pair(name, from, room), "taken as %s",
                                   a->as);
    }
    return NBL_OK;
}

/* Reads one value by its row's type into its field. A value that is not allowed is recorded; the
 * field then has no meaning. */
static nbl_status read_value(reader *r, const nbl__yaml *value, const char *name, const nbl__run_key *key,
                             void *origin)
{
    void *field = (char *)origin + key->offset;
    int64_t integer;
    double real;
    int chosen = 2;
    bool boolean, good = true;
    NBL_TRY(unalias(r, &value, name, key));
    switch (key->type) {
    case NBL_KEY_BOOLEAN: good = nbl__yaml_boolean(value, (bool *)field); break;
    case NBL_KEY_AUTO:
        if (nbl__yaml_boolean(value, &boolean)) chosen = boolean;
        else good = value->kind == NBL_YAML_SCALAR && strcmp(value->text, "auto") == 0;
        *(int *)field = chosen;
        break;
    case NBL_KEY_INTEGER:
        good = nbl__yaml_integer(value, &integer) && (double)integer >= key->min &&
               (double)integer <= key->max;
        if (good) memcpy(field, &integer, sizeof integer);
        break;
    case NBL_KEY_REAL:
        good = nbl__yaml_real(value, &real) && real >= key->min && real <= key->max;
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
    }
    if (good) return strcmp(name, "chat_template") == 0 ? check_template(r, value, name) : NBL_OK;
    bool of_rows = strcmp(key->name, "type") == 0; /* of a dataset */
    return of_rows ? wrong_type(r, value, name, key) : wrong_value(r, value, name, key);
}

/* Reads the defaults of a table into its struct. A row without one leaves zeros. */
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

/* Reads all keys of a map by a table. `prefix` is put before their names in messages:
 * "datasets.0.". A null value counts as not given, so the default stays. */
static nbl_status read_table(reader *r, const nbl__yaml *map, const char *prefix, const nbl__run_key *keys,
                             int count, void *origin)
{
    bool top = keys == nbl__run_keys;
    for (const nbl__yaml *item = map->first; item; item = item->next) {
        char name[256];
        snprintf(name, sizeof name, "%s%.100s", prefix, item->key);
        const nbl__run_key *key = nbl__run_key_find(keys, count, item->key);
        if (key == NULL) {
            const nbl__foreign_group *group = find_foreign(keys, prefix, item->key);
            if (group == NULL) NBL_TRY(unknown_key(r, item, name, keys, count));
            else if (!nbl__yaml_is_null(item)) NBL_TRY(read_foreign(r, item, name, group));
            continue;
        }
        if (nbl__yaml_is_null(item)) continue;
        if (top) r->given[key - keys] = item;
        NBL_TRY(read_value(r, item, name, key, origin));
    }
    return NBL_OK;
}

/* ---- the file ---- */

/* Sets one override in the tree. text: "key=value"; the value is YAML. */
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

/* The reader is in the arena, because the configuration points into its tree. */
nbl_status nbl__run_config_read(nbl__arena *arena, const char *path, const char *const *overrides,
                                int64_t override_count, nbl__run_config *config)
{
    reader *r = nbl__arena_alloc(arena, sizeof *r);
    if (r == NULL) return NBL_ERROR_MEMORY;
    *r = (reader){.arena = arena, .ctx = arena->ctx};
    NBL_TRY(nbl__yaml_read(arena, path, &r->root));
    /* every key may come from --set */
    if (nbl__yaml_is_null(r->root)) r->root->kind = NBL_YAML_MAP;
    if (r->root->kind != NBL_YAML_MAP)
        return nbl__yaml_fail(arena->ctx, r->root, NBL_ERROR_FORMAT, "not a map of keys and values");
    for (int64_t i = 0; i < override_count; i++) NBL_TRY(apply_override(r, overrides[i]));
    NBL_TRY(read_defaults(r, nbl__run_keys, NBL_RUN_KEYS, &r->parse));
    NBL_TRY(read_table(r, r->root, "", nbl__run_keys, NBL_RUN_KEYS, &r->parse));
    NBL_TRY(nbl__run_refuse(r));
    NBL_TRY(nbl__run_resolve(r));
    NBL_TRY(nbl__run_notify(r));
    r->parse.config.file = r->root->where;
    *config = r->parse.config;
    return NBL_OK;
}
