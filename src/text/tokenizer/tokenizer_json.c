/* tokenizer_json.c - reads tokenizer.json: the top level, and the functions that read members.
 *
 * The parts of the file are read in these files:
 *
 *     model                                                   tokenizer_json_model.c
 *     normalizer, pre_tokenizer, decoder                      tokenizer_json_steps.c
 *     added_tokens, truncation, padding, post_processor       tokenizer_json_ends.c
 *
 * A member is read as upstream reads it. A value that nibble does not support is an error that
 * names the key and the value. Only keys that upstream ignores are ignored. */
#include "text/chars.h"
#include "text/tokenizer/tokenizer.h"

enum { DEEPEST = 16 }; /* levels of nested sequences */

/* ---- members ---- */

/* Fails with "is missing" or "is not", according to `value`. */
static nbl_status bad_member(nbl__tokenizer_reader *r, const char *part, const char *key,
                             const nbl__json *value, const char *wanted)
{
    if (value == NULL)
        return nbl__fail(r->ctx, NBL_ERROR_FORMAT, "%s: %s: \"%s\" is missing (%s)", r->where, part, key,
                         wanted);
    return nbl__fail(r->ctx, NBL_ERROR_FORMAT, "%s: %s: \"%s\" is not %s", r->where, part, key, wanted);
}

/* True if the member is missing, or null, and `need` allows that. */
static bool is_absent(const nbl__json *value, nbl__presence need)
{
    if (value == NULL) return need != NBL_PRESENCE_REQUIRED;
    return need == NBL_PRESENCE_OPTIONAL && value->type == NBL_JSON_NULL;
}

nbl_status nbl__get_bool(nbl__tokenizer_reader *r, const char *part, const nbl__json *object, const char *key,
                         nbl__presence need, bool *result)
{
    const nbl__json *value = nbl__json_get(object, key);
    if (is_absent(value, need)) return NBL_OK;
    if (!nbl__json_is(value, NBL_JSON_TRUE) && !nbl__json_is(value, NBL_JSON_FALSE))
        return bad_member(r, part, key, value, "true or false");
    *result = value->type == NBL_JSON_TRUE;
    return NBL_OK;
}

nbl_status nbl__get_text(nbl__tokenizer_reader *r, const char *part, const nbl__json *object, const char *key,
                         nbl__presence need, nbl__slice *result)
{
    const nbl__json *value = nbl__json_get(object, key);
    if (is_absent(value, need)) return NBL_OK;
    if (!nbl__json_is(value, NBL_JSON_STRING)) return bad_member(r, part, key, value, "a text");
    *result = (nbl__slice){value->string, (size_t)value->count};
    return NBL_OK;
}

nbl_status nbl__get_natural(nbl__tokenizer_reader *r, const char *part, const nbl__json *object,
                            const char *key, nbl__presence need, uint64_t *result)
{
    const nbl__json *value = nbl__json_get(object, key);
    int64_t number;
    if (is_absent(value, need)) return NBL_OK;
    if (!nbl__json_natural(value, &number)) return bad_member(r, part, key, value, "a natural number");
    *result = (uint64_t)number;
    return NBL_OK;
}

nbl_status nbl__get_char(nbl__tokenizer_reader *r, const char *part, const nbl__json *object, const char *key,
                         nbl__presence need, uint32_t *result)
{
    const nbl__json *value = nbl__json_get(object, key);
    if (is_absent(value, need)) return NBL_OK;
    if (!nbl__json_is(value, NBL_JSON_STRING) || value->count == 0 ||
        nbl__char_get(value->string, result) != value->count)
        return bad_member(r, part, key, value, "one character");
    return NBL_OK;
}

nbl_status nbl__get_type(nbl__tokenizer_reader *r, const char *part, const nbl__json *object,
                         const char **type)
{
    NBL_CHECK(r->ctx, nbl__json_is(object, NBL_JSON_OBJECT), NBL_ERROR_FORMAT, "%s: %s is not an object",
              r->where, part);
    *type = nbl__json_text(object, "type");
    return *type ? NBL_OK : bad_member(r, part, "type", nbl__json_get(object, "type"), "a text");
}

nbl_status nbl__get_pattern(nbl__tokenizer_reader *r, const char *part, const nbl__json *object,
                            nbl__regex **regex)
{
    const nbl__json *pattern = nbl__json_get(object, "pattern");
    const nbl__json *text = nbl__json_get(pattern, "String"), *expression = nbl__json_get(pattern, "Regex");
    const nbl__json *value = text ? text : expression;
    if (!nbl__json_is(value, NBL_JSON_STRING) || pattern->count != 1)
        return bad_member(r, part, "pattern", pattern, "{\"String\": ...} or {\"Regex\": ...}");
    const char *where = nbl__arena_printf(r->arena, "%s: %s", r->where, part);
    if (where == NULL) return NBL_ERROR_MEMORY;
    nbl__regex *made = NULL;
    if (text) NBL_TRY(nbl__regex_literal(r->ctx, where, value->string, (size_t)value->count, &made));
    else NBL_TRY(nbl__regex_compile(r->ctx, where, value->string, (size_t)value->count, &made));
    NBL_TRY(nbl__tokenizer_keep(r->tokenizer, made));
    *regex = made;
    return NBL_OK;
}

bool nbl__json_id(const nbl__json *value, int32_t *id)
{
    int64_t number;
    if (!nbl__json_natural(value, &number) || number >= INT32_MAX) return false;
    *id = (int32_t)number;
    return true;
}

/* ---- sequences ---- */

/* True for {"type": "Sequence", …}. */
static bool is_sequence(const nbl__json *value)
{
    const char *type = nbl__json_text(value, "type");
    return type && strcmp(type, "Sequence") == 0;
}

int64_t nbl__count_steps(const nbl__json *value, const char *list, int depth)
{
    if (!is_sequence(value)) return 5; /* BertNormalizer becomes up to 5 steps, all others fewer */
    const nbl__json *items = nbl__json_get(value, list);
    int64_t count = 0;
    if (depth < DEEPEST && nbl__json_is(items, NBL_JSON_ARRAY))
        for (int64_t i = 0; i < items->count; i++)
            count += nbl__count_steps(&items->items[i], list, depth + 1);
    return count;
}

nbl_status nbl__each_step(nbl__tokenizer_reader *r, const char *part, const nbl__json *value,
                          const char *list, nbl__step_fn step, int depth)
{
    if (!is_sequence(value)) return step(r, value);
    NBL_CHECK(r->ctx, depth < DEEPEST, NBL_ERROR_UNSUPPORTED, "%s: %s: sequences nested more than %d deep",
              r->where, part, DEEPEST);
    const nbl__json *items = nbl__json_get(value, list);
    if (!nbl__json_is(items, NBL_JSON_ARRAY)) return bad_member(r, part, list, items, "a list");
    for (int64_t i = 0; i < items->count; i++)
        NBL_TRY(nbl__each_step(r, part, &items->items[i], list, step, depth + 1));
    return NBL_OK;
}

/* ---- the file ---- */

nbl_status nbl__tokenizer_read_json(nbl_tokenizer *t, const char *where, const char *text, size_t size)
{
    const nbl__json *root;
    nbl__arena *arena = &t->arena;
    nbl__tokenizer_reader reader = {t, t->ctx, arena, where};
    NBL_TRY(nbl__json_parse(arena, where, text, size, NBL_JSON_SERDE, &root));
    const nbl__json *version = nbl__json_get(root, "version");
    NBL_CHECK(t->ctx, version == NULL || nbl__json_is(version, NBL_JSON_STRING), NBL_ERROR_FORMAT,
              "%s: \"version\" is not a text", where);
    NBL_CHECK(t->ctx, version == NULL || strcmp(version->string, "1.0") == 0, NBL_ERROR_UNSUPPORTED,
              "%s: version \"%s\" is not known (only 1.0)", where, version->string);
    /* Added tokens come after the model, whose size sets their ids, and after the normalizer, which
     * rewrites their texts. */
    NBL_TRY(nbl__read_model(&reader, nbl__json_get(root, "model")));
    NBL_TRY(nbl__read_normalizer(&reader, nbl__json_get(root, "normalizer")));
    NBL_TRY(nbl__read_pre_tokenizer(&reader, nbl__json_get(root, "pre_tokenizer")));
    NBL_TRY(nbl__read_detokenizer(&reader, nbl__json_get(root, "decoder")));
    NBL_TRY(nbl__read_added_tokens(&reader, nbl__json_get(root, "added_tokens")));
    NBL_TRY(nbl__read_post_processor(&reader, nbl__json_get(root, "post_processor")));
    NBL_TRY(nbl__read_truncation(&reader, nbl__json_get(root, "truncation")));
    return nbl__read_padding(&reader, nbl__json_get(root, "padding"));
}
