/* conversation_render.c - writes turns as the JSON messages that templates expect, and renders
 * them.
 *
 * Messages are changed as axolotl changes them. Members that are null are left out at every
 * depth. The `arguments` of a tool call and the `parameters` of a tool, if they are JSON in a
 * string, become what that JSON says. */
#include <stdio.h>

#include "data/conversation.h"

int nbl__placeholder(char text[NBL_PLACEHOLDER], int64_t turn)
{
    return snprintf(text, NBL_PLACEHOLDER, "zqmessage%" PRId64 "qz", turn);
}

/* ---- JSON out ---- */

/* Appends a JSON string. */
static void put_string(nbl__text *t, const char *string, int64_t size)
{
    nbl__text_add(t, "\"", 1);
    for (int64_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)string[i];
        if (c < 0x20) nbl__text_printf(t, "\\u%04x", c);
        else if (c == '"' || c == '\\') nbl__text_printf(t, "\\%c", c);
        else nbl__text_add(t, &string[i], 1);
    }
    nbl__text_add(t, "\"", 1);
}

static void put_key(nbl__text *t, const nbl__json *member, bool first)
{
    if (!first) nbl__text_add(t, ", ", 2);
    put_string(t, member->key, member->key_size);
    nbl__text_add(t, ": ", 2);
}

/* Recursive: the JSON parser has limited the depth. */
void nbl__json_print(nbl__text *t, const nbl__json *v, bool nulls)
{
    bool object = v->type == NBL_JSON_OBJECT, first = true;
    switch (v->type) {
    case NBL_JSON_NULL: nbl__text_add(t, "null", 4); return;
    case NBL_JSON_FALSE: nbl__text_add(t, "false", 5); return;
    case NBL_JSON_TRUE: nbl__text_add(t, "true", 4); return;
    case NBL_JSON_INTEGER: nbl__text_printf(t, "%" PRId64, v->integer); return;
    case NBL_JSON_REAL: nbl__text_real(t, v->real); return;
    case NBL_JSON_STRING: put_string(t, v->string, v->count); return;
    case NBL_JSON_ARRAY:
    case NBL_JSON_OBJECT: break;
    }
    nbl__text_add(t, object ? "{" : "[", 1);
    for (int64_t i = 0; i < v->count; i++) {
        if (object && v->items[i].type == NBL_JSON_NULL && !nulls) continue;
        if (object) put_key(t, &v->items[i], first);
        else if (!first) nbl__text_add(t, ", ", 2);
        nbl__json_print(t, &v->items[i], nulls);
        first = false;
    }
    nbl__text_add(t, object ? "}" : "]", 1);
}

/* ---- JSON inside strings ---- */

static bool is_key(const nbl__json *member, const char *name)
{
    return strcmp(member->key, name) == 0;
}

/* Appends the JSON that the string `value` holds, after checking that it is JSON. `name`: the
 * function, for errors. */
static nbl_status put_parsed(const nbl__conversation *k, nbl__text *t, const nbl__json *value,
                             const nbl__json *name, const char *what)
{
    nbl_context *ctx = k->encoder->ctx;
    const nbl__json *parsed;
    nbl_status status = nbl__json_parse(k->arena, what, value->string, (size_t)value->count, NBL_JSON_PYTHON,
                                        &parsed);
    if (status == NBL_ERROR_MEMORY) return status;
    if (status != NBL_OK)
        return nbl__fail(ctx, NBL_ERROR_FORMAT, "the %s of the function \"%.64s\" are no JSON: %.80s", what,
                         nbl__json_is(name, NBL_JSON_STRING) ? name->string : "?", value->string);
    nbl__text_add(t, value->string,
                  (size_t)value->count); /* the original text: numbers keep their spelling */
    return t->status;
}

/* Appends a list of {"function": {..., `member`: V}}, where V is an object or JSON of one in a
 * string. The string is replaced with its JSON; everything else stays. */
static nbl_status put_functions(const nbl__conversation *k, nbl__text *t, const nbl__json *list,
                                const char *member, bool nulls)
{
    nbl__text_add(t, "[", 1);
    for (int64_t i = 0; i < list->count; i++) {
        const nbl__json *item = &list->items[i], *function = nbl__json_get(item, "function"),
                        *value = nbl__json_get(function, member);
        if (i) nbl__text_add(t, ", ", 2);
        if (!nbl__json_is(item, NBL_JSON_OBJECT) || !nbl__json_is(value, NBL_JSON_STRING)) {
            nbl__json_print(t, item, nulls);
            continue;
        }
        bool first = true;
        nbl__text_add(t, "{", 1);
        for (int64_t m = 0; m < item->count; m++) {
            const nbl__json *one = &item->items[m];
            if (one->type == NBL_JSON_NULL && !nulls) continue;
            put_key(t, one, first);
            first = false;
            if (one != function) {
                nbl__json_print(t, one, nulls);
                continue;
            }
            bool first_inside = true;
            nbl__text_add(t, "{", 1);
            for (int64_t f = 0; f < function->count; f++) {
                const nbl__json *inside = &function->items[f];
                if (inside->type == NBL_JSON_NULL && !nulls) continue;
                put_key(t, inside, first_inside);
                first_inside = false;
                if (inside != value) nbl__json_print(t, inside, nulls);
                else NBL_TRY(put_parsed(k, t, value, nbl__json_get(function, "name"), member));
            }
            nbl__text_add(t, "}", 1);
        }
        nbl__text_add(t, "}", 1);
    }
    nbl__text_add(t, "]", 1);
    return t->status;
}

nbl_status nbl__conversation_tools(nbl__conversation *k, const nbl__json *tools, bool from_row)
{
    nbl__text json = {.ctx = k->encoder->ctx};
    nbl_status status = put_functions(k, &json, tools, "parameters", !from_row);
    char *copy = status == NBL_OK ? nbl__arena_alloc(k->arena, json.size + 1) : NULL;
    if (copy) memcpy(copy, json.text, json.size);
    k->tools = (nbl_string){copy, json.size};
    nbl__text_free(&json);
    return status != NBL_OK ? status : copy ? NBL_OK : NBL_ERROR_MEMORY;
}

/* ---- messages ---- */

/* True for the members that hold role and content: put_message writes them by their usual names. */
static bool is_taken(const nbl__conversation *k, const nbl__json *member)
{
    return is_key(member, k->dataset->property_role ? k->dataset->property_role : "role") ||
           is_key(member, k->dataset->property_content ? k->dataset->property_content : "content") ||
           is_key(member, "role") || is_key(member, "content");
}

/* Appends turn i as a message, as `view` has it. A message with a replaced content has no other
 * members. */
static nbl_status put_message(const nbl__conversation *k, nbl__text *t, int64_t i, nbl__view view)
{
    const nbl__turn *now = &k->turns[i];
    char text[NBL_PLACEHOLDER];
    nbl__text_printf(t, "{\"role\": ");
    put_string(t, now->role, (int64_t)strlen(now->role));
    if (view.hide == i || view.hide == NBL_HIDE_ALL) {
        const char *dummy = view.hide == i ? view.dummy : (nbl__placeholder(text, i), text);
        nbl__text_printf(t, ", \"content\": ");
        put_string(t, dummy, (int64_t)strlen(dummy));
        nbl__text_add(t, "}", 1);
        return t->status;
    }
    if (now->content.text) {
        nbl__text_printf(t, ", \"content\": ");
        put_string(t, now->content.text, (int64_t)now->content.size);
    }
    for (int64_t m = 0; now->message && m < now->message->count; m++) {
        const nbl__json *member = &now->message->items[m];
        bool calls = is_key(member, "tool_calls");
        if (is_taken(k, member) || member->type == NBL_JSON_NULL) continue;
        if (calls && view.without_calls == i) continue;
        put_key(t, member, false);
        if (calls && member->type == NBL_JSON_ARRAY) NBL_TRY(put_functions(k, t, member, "arguments", false));
        else nbl__json_print(t, member, false);
    }
    nbl__text_add(t, "}", 1);
    return t->status;
}

/* ---- rendering ---- */

/* Appends the turns of the view as a list of messages. */
static nbl_status put_conversation(const nbl__conversation *k, nbl__text *t, nbl__view view)
{
    nbl__text_add(t, "[", 1);
    for (int64_t i = 0; i < view.count; i++) {
        if (i) nbl__text_add(t, ", ", 2);
        NBL_TRY(put_message(k, t, i, view));
    }
    nbl__text_add(t, "]", 1);
    return t->status;
}

nbl_status nbl__conversation_render(const nbl__conversation *k, nbl__view view, nbl_rendering **rendering)
{
    const nbl__run_config *config = k->encoder->config;
    const char *names[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    const char *texts[] = {config->bos_token, config->eos_token, config->pad_token, config->unk_token};
    nbl_chat_variable variables[4];
    nbl__text json = {.ctx = k->encoder->ctx}, values[4] = {{0}};
    int count = 0;
    *rendering = NULL;
    nbl_status status = put_conversation(k, &json, view);
    for (int i = 0; i < 4; i++) {
        if (texts[i] == NULL) continue;
        values[count].ctx = k->encoder->ctx;
        put_string(&values[count], texts[i], (int64_t)strlen(texts[i]));
        if (status == NBL_OK) status = values[count].status;
        variables[count] = (nbl_chat_variable){names[i], {values[count].text, values[count].size}};
        count++;
    }
    nbl_chat chat = {.messages = {json.text, json.size},
                     .tools = k->tools,
                     .messages_name = "the conversation",
                     .variables = variables,
                     .variable_count = count};
    if (status == NBL_OK) status = nbl_chat_template_render(k->encoder->template, &chat, rendering);
    nbl__text_free(&json);
    for (int i = 0; i < count; i++) nbl__text_free(&values[i]);
    return status;
}
