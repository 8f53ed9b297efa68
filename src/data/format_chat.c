/* format_chat.c - rows of the type chat_template: the messages of a row become turns, the chat
 * template renders them to one text, and masks say which of its tokens are trained.
 *
 *     row ──take_conversation──▶ turns ──nbl__conversation_render──▶ text ──▶ spans or probes
 *
 * A template with {% generation %} marks the trained spans itself. With any other template,
 * turns are found by probes (conversation_probe.c). Messages are read as axolotl reads them:
 * content that is a list of texts is joined, and the row's member "system" becomes a first
 * message. */
#include "base/utf8.h"
#include "data/conversation.h"

/* ---- the conversation ---- */

/* ShareGPT's names of roles as the usual ones. */
static const char *default_role(const char *role)
{
    if (strcmp(role, "human") == 0) return "user";
    if (strcmp(role, "gpt") == 0) return "assistant";
    return role;
}

/* True if turns of a role are trained: all with train_on_inputs, else roles_to_train, else the
 * assistant. */
static bool is_trained(const nbl__conversation *k, const char *role)
{
    const nbl__name_list *roles = &k->dataset->roles_to_train;
    if (k->encoder->config->train_on_inputs) return true;
    if (roles->count == 0) return strcmp(role, "assistant") == 0;
    for (int64_t i = 0; i < roles->count; i++)
        if (strcmp(default_role(roles->items[i]), role) == 0) return true;
    return false;
}

static bool has_value(const nbl__json *value)
{
    return value && value->type != NBL_JSON_NULL;
}

/* Joins content parts {"type": "text", "text": ...} to one text. The first pass checks and adds
 * up sizes, the second copies. i: index of the message, for errors. */
static nbl_status join_parts(nbl__conversation *k, const nbl__json *parts, int64_t i, nbl_string *text)
{
    nbl_context *ctx = k->encoder->ctx;
    size_t size = 0;
    for (int pass = 0;; pass++) {
        char *at = pass ? nbl__arena_alloc(k->arena, size + 1) : NULL;
        if (pass && at == NULL) return NBL_ERROR_MEMORY;
        if (pass) *text = (nbl_string){at, size};
        for (int64_t p = 0; p < parts->count; p++) {
            const nbl__json *part = &parts->items[p], *type = nbl__json_get(part, "type"),
                            *words = nbl__json_get(part, "text");
            bool typed = nbl__json_is(type, NBL_JSON_STRING);
            NBL_CHECK(ctx, !typed || strcmp(type->string, "text") == 0, NBL_ERROR_UNSUPPORTED,
                      "message %" PRId64 ": part %" PRId64 " is of the type \"%.40s\"; only text is trained",
                      i + 1, p + 1, typed ? type->string : "");
            NBL_CHECK(ctx, nbl__json_is(words, NBL_JSON_STRING), NBL_ERROR_FORMAT,
                      "message %" PRId64 ": part %" PRId64 " has no \"text\"", i + 1, p + 1);
            NBL_CHECK(ctx,
                      !has_value(nbl__json_get(part, "train")) && !has_value(nbl__json_get(part, "weight")),
                      NBL_ERROR_UNSUPPORTED,
                      "message %" PRId64 ": part %" PRId64
                      " has \"train\" or \"weight\": a message is trained whole, or not at all",
                      i + 1, p + 1);
            if (pass == 0) size += (size_t)words->count;
            else if (words->count)
                at = (char *)memcpy(at, words->string, (size_t)words->count) + words->count;
        }
        if (pass) return NBL_OK;
    }
}

/* Reads message i into a turn. Content may be missing only if there are tool calls. */
static nbl_status take_turn(nbl__conversation *k, const nbl__json *message, int64_t i, nbl__turn *now)
{
    nbl_context *ctx = k->encoder->ctx;
    const char *role_key = k->dataset->property_role ? k->dataset->property_role : "role",
               *content_key = k->dataset->property_content ? k->dataset->property_content : "content";
    NBL_CHECK(ctx, message->type == NBL_JSON_OBJECT, NBL_ERROR_FORMAT, "message %" PRId64 " is not an object",
              i + 1);
    const nbl__json *role = nbl__json_get(message, role_key), *content = nbl__json_get(message, content_key),
                    *calls = nbl__json_get(message, "tool_calls");
    NBL_CHECK(ctx, nbl__json_is(role, NBL_JSON_STRING), NBL_ERROR_FORMAT, "message %" PRId64 ": \"%s\" is %s",
              i + 1, role_key, role ? "not a text" : "missing");
    now->message = message;
    now->role = default_role(role->string);
    now->calls = nbl__json_is(calls, NBL_JSON_ARRAY) && calls->count > 0;
    if (!has_value(content)) {
        NBL_CHECK(ctx, has_value(calls), NBL_ERROR_FORMAT, "message %" PRId64 ": \"%s\" is %s", i + 1,
                  content_key, content ? "null" : "missing");
        return NBL_OK;
    }
    if (content->type == NBL_JSON_ARRAY) NBL_TRY(join_parts(k, content, i, &now->content));
    else {
        NBL_CHECK(ctx, content->type == NBL_JSON_STRING, NBL_ERROR_FORMAT,
                  "message %" PRId64 ": \"%s\" is not a text", i + 1, content_key);
        now->content = (nbl_string){content->string, (size_t)content->count};
    }
    now->plain = true;
    for (int64_t m = 0; m < message->count; m++) {
        const nbl__json *member = &message->items[m];
        now->plain &= member == role || member == content || !has_value(member);
    }
    return NBL_OK;
}

/* Reads the row's member "tools": a list, or JSON text of a list. */
static nbl_status take_tools(nbl__conversation *k, const nbl__json *row)
{
    nbl_context *ctx = k->encoder->ctx;
    const nbl__json *tools = nbl__json_get(row, "tools");
    bool text = nbl__json_is(tools, NBL_JSON_STRING);
    if (!has_value(tools) || (text && tools->count == 0)) return NBL_OK;
    if (text)
        NBL_TRY(nbl__json_parse(k->arena, "\"tools\"", tools->string, (size_t)tools->count, NBL_JSON_PYTHON,
                                &tools));
    NBL_CHECK(ctx, tools->type == NBL_JSON_ARRAY, NBL_ERROR_FORMAT, "\"tools\" is not a list");
    return tools->count ? nbl__conversation_tools(k, tools, !text) : NBL_OK;
}

/* Reads the row's messages into turns, and decides which are trained and which get a probe. */
static nbl_status take_conversation(nbl__conversation *k, const nbl__json *row)
{
    nbl_context *ctx = k->encoder->ctx;
    const char *field = k->dataset->field_messages ? k->dataset->field_messages : "messages";
    const nbl__json *messages = nbl__json_get(row, field), *system = nbl__json_get(row, "system");
    if (!nbl__json_is(messages, NBL_JSON_ARRAY)) {
        nbl__fail(ctx, NBL_ERROR_FORMAT, "the field \"%s\" is %s", field,
                  messages ? "not a list" : "missing");
        if (messages || !nbl__json_is(nbl__json_get(row, "conversations"), NBL_JSON_ARRAY))
            return NBL_ERROR_FORMAT;
        return nbl__hint(ctx, NBL_ERROR_FORMAT, "the row has \"conversations\": field_messages can name it");
    }
    NBL_CHECK(ctx, messages->count > 0, NBL_ERROR_FORMAT, "the field \"%s\" is empty", field);
    k->turns = nbl__arena_alloc(k->arena, (size_t)(messages->count + 1) * sizeof *k->turns);
    if (k->turns == NULL) return NBL_ERROR_MEMORY;
    memset(k->turns, 0, (size_t)(messages->count + 1) * sizeof *k->turns);
    for (int64_t i = 0; i < messages->count; i++) {
        NBL_TRY(take_turn(k, &messages->items[i], i, &k->turns[k->count]));
        if (i == 0 && nbl__json_is(system, NBL_JSON_STRING) && strcmp(k->turns[0].role, "system") != 0) {
            k->turns[1] = k->turns[0];
            k->turns[0] = (nbl__turn){
                .role = "system", .content = {system->string, (size_t)system->count}, .plain = true};
            k->count++;
        }
        k->count++;
    }
    if (k->dataset->drop_system_message && strcmp(k->turns[0].role, "system") == 0) {
        NBL_CHECK(ctx, --k->count > 0, NBL_ERROR_FORMAT, "the field \"%s\" has nothing but a system message",
                  field);
        memmove(k->turns, k->turns + 1, (size_t)k->count * sizeof *k->turns);
    }
    for (int64_t i = 0; i < k->count; i++) {
        k->turns[i].trained = is_trained(k, k->turns[i].role);
        k->turns[i].wanted = k->turns[i].trained || k->dataset->train_on_eos == NBL_EOS_ALL ||
                             nbl__train_on_eot(k->dataset) == NBL_EOS_ALL;
    }
    return take_tools(k, row);
}

/* Fails if the template ignores tool calls: the text is the same without them. Such a text would
 * train answers to calls that it does not show. */
static nbl_status check_calls(const nbl__conversation *k, nbl_string text)
{
    for (int64_t i = 0; i < k->count; i++) {
        nbl_rendering *without;
        if (!k->turns[i].calls) continue;
        nbl__view view = {.count = k->count, .hide = NBL_HIDE_NONE, .without_calls = i};
        nbl_status status = nbl__conversation_render(k, view, &without);
        if (status == NBL_ERROR_MEMORY || status == NBL_ERROR_CANCELLED) return status;
        if (status != NBL_OK) continue; /* the template does not accept the message without them */
        nbl_string other = nbl_rendering_text(without);
        bool equal = other.size == text.size && memcmp(other.text, text.text, text.size) == 0;
        nbl_rendering_free(without);
        if (equal)
            return nbl__hint(
                k->encoder->ctx,
                nbl__fail(k->encoder->ctx, NBL_ERROR_UNSUPPORTED,
                          "the chat template does not render the tool calls of a message with the "
                          "role \"%.40s\"",
                          k->turns[i].role),
                "chat_template: jinja with chat_template_jinja takes one that does; "
                "skip_bad_rows: true drops such rows");
    }
    return NBL_OK;
}

/* The thinking of a message, under one of the names that templates know; NULL: none. */
static const nbl__json *thinking_of(const nbl__turn *turn)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (int i = 0; i < 3; i++) {
        const nbl__json *value = nbl__json_get(turn->message, names[i]);
        if (nbl__json_is(value, NBL_JSON_STRING) && value->count) return value;
    }
    return NULL;
}

/* True if `part` occurs in the text. */
static bool has_text(nbl_string text, const char *part, size_t size)
{
    const char *at = text.text, *end = at + text.size;
    for (; (size_t)(end - at) >= size && (at = memchr(at, part[0], (size_t)(end - at))) != NULL; at++)
        if ((size_t)(end - at) >= size && memcmp(at, part, size) == 0) return true;
    return false;
}

/* Fails if a trained turn's thinking is not in the text of GPT-OSS's template, which renders that of the
 * last turn alone. The turn would train the model to answer without thinking. */
static nbl_status check_thinking(const nbl__conversation *k, nbl_string text)
{
    for (int64_t i = 0; i < k->count; i++) {
        const nbl__json *thinking = k->turns[i].trained ? thinking_of(&k->turns[i]) : NULL;
        if (thinking == NULL || has_text(text, thinking->string, (size_t)thinking->count)) continue;
        if (!nbl__template_has(k->encoder, "<|channel|>analysis<|message|>")) return NBL_OK;
        return nbl__hint(k->encoder->ctx,
                         nbl__fail(k->encoder->ctx, NBL_ERROR_UNSUPPORTED,
                                   "message %" PRId64
                                   ": the chat template leaves out its thinking, as it does "
                                   "with all turns but the last",
                                   i + 1),
                         "make a row of each answer that ends with it, or leave thinking out of the rows; "
                         "skip_bad_rows: true drops such rows");
    }
    return NBL_OK;
}

/* ---- marks ---- */

/* Converts the rendering's spans from characters to bytes. Spans come in the order in which
 * their blocks ended; they are normally ascending, so one pass over the text suffices. */
static nbl_status take_marks(const nbl__conversation *k, const nbl_rendering *rendering, nbl_string text,
                             nbl__part *part)
{
    int64_t count = 0, start, end;
    while (nbl_rendering_span(rendering, count, &start, &end)) count++;
    nbl__text_span *list = nbl__arena_alloc(k->arena, (size_t)count * sizeof *list);
    if (list == NULL) return NBL_ERROR_MEMORY;
    size_t at = 0;
    int64_t character = 0;
    for (int64_t i = 0; i < count; i++) {
        nbl_rendering_span(rendering, i, &start, &end);
        if (start < character) at = 0, character = 0; /* a nested block ended first: start over */
        for (; character < start && at < text.size; character++)
            at += (size_t)nbl__utf8_length(text.text + at, text.text + text.size);
        list[i] = (nbl__text_span){at, at};
        for (; character < end && at < text.size; character++)
            at += (size_t)nbl__utf8_length(text.text + at, text.text + text.size);
        list[i].end = at;
    }
    part->spans = list;
    part->span_count = count;
    return NBL_OK;
}

/* True if the template's {% generation %} blocks decide what is trained. They mark the
 * assistant's turns with their ends. So they are used only if the configuration asks for exactly
 * that. */
static bool uses_marks(const nbl__conversation *k)
{
    const nbl__name_list *roles = &k->dataset->roles_to_train;
    bool usual = roles->count == 0 ||
                 (roles->count == 1 && strcmp(default_role(roles->items[0]), "assistant") == 0);
    return k->encoder->marks && usual && !k->encoder->config->train_on_inputs &&
           k->dataset->train_on_eos == NBL_EOS_TURN && nbl__train_on_eot(k->dataset) == NBL_EOS_TURN;
}

nbl_status nbl__example_chat(const nbl__row_encoder *encoder, const nbl__dataset_config *dataset,
                             nbl__arena *arena, const nbl__json *row, nbl__example_text *example_text)
{
    nbl__conversation k = {.encoder = encoder, .dataset = dataset, .arena = arena};
    nbl_rendering *rendering;
    NBL_TRY(take_conversation(&k, row));
    nbl__view view = {.count = k.count, .hide = NBL_HIDE_NONE, .without_calls = -1};
    NBL_TRY(nbl__conversation_render(&k, view, &rendering));
    nbl_string text = nbl_rendering_text(rendering);
    nbl__part *part = example_text->parts = nbl__arena_alloc(arena, (size_t)(k.count + 1) * sizeof *part);
    char *copy = nbl__arena_alloc(arena, text.size + 1);
    nbl_status status = part && copy ? check_calls(&k, text) : NBL_ERROR_MEMORY;
    if (status == NBL_OK) status = check_thinking(&k, text);
    if (status == NBL_OK) {
        if (text.size) memcpy(copy, text.text, text.size);
        bool marks = uses_marks(&k);
        example_text->part_count = 1;
        *part = (nbl__part){
            .text = copy, .size = text.size, .mask = marks ? NBL_LOSS_MASK_MARKS : NBL_LOSS_MASK_TURNS};
        status = marks ? take_marks(&k, rendering, text, part) : nbl__conversation_probe(&k, example_text);
    }
    nbl_rendering_free(rendering);
    return status;
}
