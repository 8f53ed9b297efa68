/* conversation_render.c - writes turns as the JSON messages that templates expect, and renders
 * them.
 *
 * Messages are changed as axolotl changes them. Members that are null are left out at every
 * depth. The `arguments` of a tool call and the `parameters` of a tool, if they are JSON in a
 * string, become what that JSON says. */
#include <stdio.h>

#include "base/json/json_write.h"
#include "data/conversation.h"

static const nbl__json_style without_nulls = {.item = {", ", 2}, .key = {": ", 2}, .no_nulls = true};

int nbl__placeholder(char text[NBL_PLACEHOLDER], int64_t turn)
{
    return snprintf(text, NBL_PLACEHOLDER, "zqmessage%" PRId64 "qz", turn);
}

/* ---- JSON inside strings ---- */

static bool is_key(const nbl__json *member, const char *name)
{
    return strcmp(member->key, name) == 0;
}

/* Writes the JSON that the string `value` holds, after checking that it is JSON. `name`: the
 * function, for errors. */
static nbl_status put_parsed(const nbl__conversation *k, nbl__json_writer *w, const nbl__json *value,
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
    /* the original text: numbers keep their spelling */
    return w->add(w->to, value->string, (size_t)value->count);
}

/* Begins a member, unless it is a null that is left out. */
static nbl_status put_key(nbl__json_writer *w, const nbl__json *member, bool *put)
{
    *put = member->type != NBL_JSON_NULL || !w->style->no_nulls;
    return *put ? nbl__json_key(w, member->key, member->key_size) : NBL_OK;
}

/* Writes {..., `member`: V}, where V is JSON of an object in a string, which is replaced with that
 * JSON. */
static nbl_status put_function(const nbl__conversation *k, nbl__json_writer *w, const nbl__json *function,
                               const char *member)
{
    const nbl__json *value = nbl__json_get(function, member);
    bool put;
    NBL_TRY(nbl__json_open(w, '{'));
    for (int64_t i = 0; i < function->count; i++) {
        const nbl__json *one = &function->items[i];
        NBL_TRY(put_key(w, one, &put));
        if (one == value) NBL_TRY(put_parsed(k, w, value, nbl__json_get(function, "name"), member));
        else if (put) NBL_TRY(nbl__json_write(w, one));
    }
    return nbl__json_close(w, '}');
}

/* Writes a list of {"function": {..., `member`: V}}, where V is an object or JSON of one in a
 * string. The string is replaced with its JSON; everything else stays. */
static nbl_status put_functions(const nbl__conversation *k, nbl__json_writer *w, const nbl__json *list,
                                const char *member)
{
    bool put;
    NBL_TRY(nbl__json_open(w, '['));
    for (int64_t i = 0; i < list->count; i++) {
        const nbl__json *item = &list->items[i], *function = nbl__json_get(item, "function");
        NBL_TRY(nbl__json_item(w));
        if (!nbl__json_is(nbl__json_get(function, member), NBL_JSON_STRING)) {
            NBL_TRY(nbl__json_write(w, item));
            continue;
        }
        NBL_TRY(nbl__json_open(w, '{'));
        for (int64_t m = 0; m < item->count; m++) {
            const nbl__json *one = &item->items[m];
            NBL_TRY(put_key(w, one, &put));
            if (one == function) NBL_TRY(put_function(k, w, function, member));
            else if (put) NBL_TRY(nbl__json_write(w, one));
        }
        NBL_TRY(nbl__json_close(w, '}'));
    }
    return nbl__json_close(w, ']');
}

nbl_status nbl__conversation_tools(nbl__conversation *k, const nbl__json *tools, bool from_row)
{
    nbl__text json = {.ctx = k->encoder->ctx};
    nbl__json_writer w = nbl__json_to_text(&json, from_row ? &without_nulls : &nbl__json_style_line);
    nbl_status status = put_functions(k, &w, tools, "parameters");
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

static nbl_status put_text(nbl__json_writer *w, const char *key, const char *text, size_t size)
{
    NBL_TRY(nbl__json_key(w, key, strlen(key)));
    return nbl__json_string(w, text, size);
}

/* Writes turn i as a message, as `view` has it. A message with a replaced content has no other
 * members. */
static nbl_status put_message(const nbl__conversation *k, nbl__json_writer *w, int64_t i, nbl__view view)
{
    const nbl__turn *now = &k->turns[i];
    char text[NBL_PLACEHOLDER];
    NBL_TRY(nbl__json_open(w, '{'));
    NBL_TRY(put_text(w, "role", now->role, strlen(now->role)));
    if (view.hide == i || view.hide == NBL_HIDE_ALL) {
        const char *dummy = view.hide == i ? view.dummy : (nbl__placeholder(text, i), text);
        NBL_TRY(put_text(w, "content", dummy, strlen(dummy)));
        return nbl__json_close(w, '}');
    }
    if (now->content.text) NBL_TRY(put_text(w, "content", now->content.text, now->content.size));
    for (int64_t m = 0; now->message && m < now->message->count; m++) {
        const nbl__json *member = &now->message->items[m];
        bool calls = is_key(member, "tool_calls");
        if (is_taken(k, member) || member->type == NBL_JSON_NULL) continue;
        if (calls && view.without_calls == i) continue;
        NBL_TRY(nbl__json_key(w, member->key, member->key_size));
        if (calls && member->type == NBL_JSON_ARRAY) NBL_TRY(put_functions(k, w, member, "arguments"));
        else NBL_TRY(nbl__json_write(w, member));
    }
    return nbl__json_close(w, '}');
}

/* ---- rendering ---- */

/* Writes the turns of the view as a list of messages. */
static nbl_status put_conversation(const nbl__conversation *k, nbl__json_writer *w, nbl__view view)
{
    NBL_TRY(nbl__json_open(w, '['));
    for (int64_t i = 0; i < view.count; i++) {
        NBL_TRY(nbl__json_item(w));
        NBL_TRY(put_message(k, w, i, view));
    }
    return nbl__json_close(w, ']');
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
    nbl__json_writer w = nbl__json_to_text(&json, &without_nulls);
    nbl_status status = put_conversation(k, &w, view);
    for (int i = 0; i < 4; i++) {
        if (texts[i] == NULL) continue;
        values[count].ctx = k->encoder->ctx;
        nbl__text_json(&values[count], texts[i]);
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
