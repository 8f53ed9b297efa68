/* format_chat.c - conversations: rendered with a chat template, and where in the text each message stands.
 *
 * A template with {% generation %} says itself what is trained. With any other, a message is found by rendering
 * the conversation again with a placeholder in its place: what differs is the message. One rendering with
 * placeholders for all messages at once is enough as long as the template only copies (or trims) contents,
 * which is checked against the text; else there is one rendering per message that matters. */
#include "train/draft.h"

#include <stdio.h>

#include "base/utf8.h"

typedef struct turn {
    const nbl__json *message;
    const char *role;         /* by its usual name */
    const nbl__json *content; /* a text, a list of parts, or NULL beside tool calls */
    bool plain;               /* nothing but a role and a text */
    bool wanted;              /* the place of this message matters */
    bool found;
    size_t begin, end;
} turn;

typedef struct talk {
    const nbl__scribe *scribe;
    const nbl__dataset_config *dataset;
    nbl__arena *arena;
    turn *turns;
    int64_t count;
    nbl_string tools; /* JSON; text NULL: none */
} talk;

enum { PLACEHOLDER = 32 };

static int placeholder(char text[PLACEHOLDER], int64_t turn_index)
{
    return snprintf(text, PLACEHOLDER, "zqmessage%" PRId64 "qz", turn_index);
}

/* ---- JSON out ---- */

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

/* The parser bounds the depth. */
static void put_value(nbl__text *t, const nbl__json *v)
{
    bool object = v->type == NBL_JSON_OBJECT;
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
        if (i) nbl__text_add(t, ", ", 2);
        if (object) {
            put_string(t, v->items[i].key, v->items[i].key_size);
            nbl__text_add(t, ": ", 2);
        }
        put_value(t, &v->items[i]);
    }
    nbl__text_add(t, object ? "}" : "]", 1);
}

static const char *role_key(const talk *k)
{
    return k->dataset->property_role ? k->dataset->property_role : "role";
}

static const char *content_key(const talk *k)
{
    return k->dataset->property_content ? k->dataset->property_content : "content";
}

static bool is_key(const nbl__json *member, const char *name)
{
    return strcmp(member->key, name) == 0;
}

/* A message as templates know it; with `hidden` a placeholder stands in its place. */
static void put_message(const talk *k, nbl__text *t, int64_t i, bool hidden)
{
    const turn *now = &k->turns[i];
    char text[PLACEHOLDER];
    nbl__text_printf(t, "{\"role\": ");
    put_string(t, now->role, (int64_t)strlen(now->role));
    if (hidden) {
        int size = placeholder(text, i);
        bool parts = nbl__json_is(now->content, NBL_JSON_ARRAY);
        nbl__text_printf(t, ", \"content\": %s", parts ? "[{\"type\": \"text\", \"text\": " : "");
        put_string(t, text, size);
        nbl__text_printf(t, "%s}", parts ? "}]" : "");
        return;
    }
    if (now->content) {
        nbl__text_printf(t, ", \"content\": ");
        put_value(t, now->content);
    }
    for (int64_t m = 0; m < now->message->count; m++) {
        const nbl__json *member = &now->message->items[m];
        if (is_key(member, role_key(k)) || is_key(member, "role")) continue;
        if (now->content && (is_key(member, content_key(k)) || is_key(member, "content"))) continue;
        nbl__text_add(t, ", ", 2);
        put_string(t, member->key, member->key_size);
        nbl__text_add(t, ": ", 2);
        put_value(t, member);
    }
    nbl__text_add(t, "}", 1);
}

/* ---- rendering ---- */

enum { HIDE_NONE = -1, HIDE_ALL = -2 };

/* The conversation as JSON; `hide`: the message that a placeholder stands for, or one of the above. */
static void put_talk(const talk *k, nbl__text *t, int64_t hide)
{
    nbl__text_add(t, "[", 1);
    for (int64_t i = 0; i < k->count; i++) {
        if (i) nbl__text_add(t, ", ", 2);
        put_message(k, t, i, hide == i || hide == HIDE_ALL);
    }
    nbl__text_add(t, "]", 1);
}

static nbl_status render(const talk *k, int64_t hide, nbl_rendering **rendering)
{
    const nbl__run_config *config = k->scribe->config;
    const char *names[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    const char *texts[] = {config->bos_token, config->eos_token, config->pad_token, config->unk_token};
    nbl_chat_variable variables[4];
    nbl__text json = {.ctx = k->scribe->ctx}, values[4] = {{0}};
    int count = 0;
    *rendering = NULL;
    put_talk(k, &json, hide);
    nbl_status status = json.status;
    for (int i = 0; i < 4; i++) {
        if (texts[i] == NULL) continue;
        values[count].ctx = k->scribe->ctx;
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
    if (status == NBL_OK) status = nbl_chat_template_render(k->scribe->template, &chat, rendering);
    nbl__text_free(&json);
    for (int i = 0; i < count; i++) nbl__text_free(&values[i]);
    return status;
}

/* ---- finding messages ---- */

static bool same(const char *at, const char *end, const char *text, size_t size)
{
    return (size_t)(end - at) >= size && memcmp(at, text, size) == 0;
}

static const char *find(const char *at, const char *end, const char *text, size_t size)
{
    for (; (size_t)(end - at) >= size; at++) {
        at = memchr(at, text[0], (size_t)(end - at));
        if (at == NULL || (size_t)(end - at) < size) return NULL;
        if (memcmp(at, text, size) == 0) return at;
    }
    return NULL;
}

static nbl_string trimmed(nbl_string s)
{
    while (s.size && strchr(" \t\n\r\f\v", s.text[0]) && s.text[0]) s.text++, s.size--;
    while (s.size && strchr(" \t\n\r\f\v", s.text[s.size - 1]) && s.text[s.size - 1]) s.size--;
    return s;
}

/* Whether `text` is `frame` with the contents in place of the placeholders; then every turn has its place. */
static bool place_all(talk *k, nbl_string text, nbl_string frame)
{
    const char *at = text.text, *end = at + text.size, *f = frame.text, *f_end = f + frame.size;
    for (int64_t i = 0; i < k->count; i++) {
        turn *now = &k->turns[i];
        char mark[PLACEHOLDER];
        size_t size = (size_t)placeholder(mark, i);
        if (!now->plain) return false;
        const char *place = find(f, f_end, mark, size);
        if (place == NULL || !same(at, end, f, (size_t)(place - f))) return false;
        at += place - f;
        f = place + size;
        nbl_string content = {now->content->string, (size_t)now->content->count};
        /* What follows in the frame tells whether the content was copied or trimmed. */
        if (i + 1 < k->count) size = (size_t)placeholder(mark, i + 1);
        const char *next = i + 1 < k->count ? find(f, f_end, mark, size) : f_end;
        if (next == NULL) return false;
        for (int pass = 0;; pass++) {
            if (pass == 2) return false;
            if (pass == 1) content = trimmed(content);
            if (same(at, end, content.text, content.size) &&
                same(at + content.size, end, f, (size_t)(next - f)))
                break;
        }
        now->begin = (size_t)(at - text.text);
        now->end = now->begin + content.size;
        now->found = true;
        at += content.size;
    }
    return (size_t)(end - at) == (size_t)(f_end - f) && same(at, end, f, (size_t)(f_end - f));
}

/* The place of one message: where the rendering with the placeholder differs. The placeholder itself bounds what
 * may be the same, unless the template changed it, too. */
static void place_one(turn *now, int64_t i, nbl_string text, nbl_string other)
{
    char mark[PLACEHOLDER];
    size_t size = (size_t)placeholder(mark, i), before = 0, behind = 0;
    const char *place = find(other.text, other.text + other.size, mark, size);
    size_t most_before = place ? (size_t)(place - other.text) : other.size;
    size_t most_behind = place ? other.size - most_before - size : other.size;
    while (before < most_before && before < text.size && text.text[before] == other.text[before]) before++;
    if (!place && before == text.size && before == other.size) return; /* the template does not show it */
    while (behind < most_behind && behind < text.size - before && behind < other.size - before &&
           text.text[text.size - behind - 1] == other.text[other.size - behind - 1])
        behind++;
    now->begin = before;
    now->end = text.size - behind;
    now->found = true;
}

static nbl_status place_turns(talk *k, nbl_string text)
{
    nbl_rendering *other;
    bool plain = true;
    for (int64_t i = 0; i < k->count; i++) plain &= k->turns[i].plain;
    if (plain) {
        NBL_TRY(render(k, HIDE_ALL, &other));
        bool placed = place_all(k, text, nbl_rendering_text(other));
        nbl_rendering_free(other);
        if (placed) return NBL_OK;
    }
    for (int64_t i = 0; i < k->count; i++) {
        k->turns[i].found = false;
        if (!k->turns[i].wanted) continue;
        NBL_TRY(render(k, i, &other));
        place_one(&k->turns[i], i, text, nbl_rendering_text(other));
        nbl_rendering_free(other);
    }
    return NBL_OK;
}

/* ---- the conversation ---- */

static const char *usual_role(const char *role)
{
    if (strcmp(role, "human") == 0) return "user";
    if (strcmp(role, "gpt") == 0) return "assistant";
    return role;
}

static bool is_trained(const talk *k, const char *role)
{
    const nbl__name_list *roles = &k->dataset->roles_to_train;
    if (roles->count == 0) return strcmp(role, "assistant") == 0;
    for (int64_t i = 0; i < roles->count; i++)
        if (strcmp(usual_role(roles->items[i]), role) == 0) return true;
    return false;
}

static bool has_value(const nbl__json *value)
{
    return value && value->type != NBL_JSON_NULL;
}

static nbl_status take_turn(talk *k, const nbl__json *message, int64_t i)
{
    nbl_context *ctx = k->scribe->ctx;
    turn *now = &k->turns[i];
    NBL_CHECK(ctx, message->type == NBL_JSON_OBJECT, NBL_ERROR_FORMAT, "message %" PRId64 " is not an object",
              i + 1);
    const nbl__json *role = nbl__json_get(message, role_key(k));
    NBL_CHECK(ctx, nbl__json_is(role, NBL_JSON_STRING), NBL_ERROR_FORMAT, "message %" PRId64 ": \"%s\" is %s",
              i + 1, role_key(k), role ? "not a text" : "missing");
    now->message = message;
    now->role = usual_role(role->string);
    now->content = nbl__json_get(message, content_key(k));
    if (!has_value(now->content)) {
        NBL_CHECK(ctx, has_value(nbl__json_get(message, "tool_calls")), NBL_ERROR_FORMAT,
                  "message %" PRId64 ": \"%s\" is %s", i + 1, content_key(k),
                  now->content ? "null" : "missing");
        now->content = NULL;
        return NBL_OK;
    }
    NBL_CHECK(ctx, now->content->type == NBL_JSON_STRING || now->content->type == NBL_JSON_ARRAY,
              NBL_ERROR_FORMAT, "message %" PRId64 ": \"%s\" is not a text", i + 1, content_key(k));
    now->plain = now->content->type == NBL_JSON_STRING;
    for (int64_t m = 0; m < message->count; m++) {
        const nbl__json *member = &message->items[m];
        now->plain &= member == role || member == now->content || !has_value(member);
    }
    return NBL_OK;
}

/* "tools": a list, or the text of one. */
static nbl_status take_tools(talk *k, const nbl__json *row)
{
    const nbl__json *tools = nbl__json_get(row, "tools");
    if (!has_value(tools)) return NBL_OK;
    if (tools->type == NBL_JSON_STRING) {
        if (tools->count) k->tools = (nbl_string){tools->string, (size_t)tools->count};
        return NBL_OK;
    }
    NBL_CHECK(k->scribe->ctx, tools->type == NBL_JSON_ARRAY, NBL_ERROR_FORMAT, "\"tools\" is not a list");
    if (tools->count == 0) return NBL_OK;
    nbl__text json = {.ctx = k->scribe->ctx};
    put_value(&json, tools);
    char *copy = json.status == NBL_OK ? nbl__arena_alloc(k->arena, json.size + 1) : NULL;
    if (copy) memcpy(copy, json.text, json.size);
    k->tools = (nbl_string){copy, json.size};
    nbl__text_free(&json);
    return copy ? NBL_OK : NBL_ERROR_MEMORY;
}

static nbl_status take_talk(talk *k, const nbl__json *row)
{
    nbl_context *ctx = k->scribe->ctx;
    const char *field = k->dataset->field_messages ? k->dataset->field_messages : "messages";
    const nbl__json *messages = nbl__json_get(row, field);
    if (!nbl__json_is(messages, NBL_JSON_ARRAY)) {
        nbl__fail(ctx, NBL_ERROR_FORMAT, "the field \"%s\" is %s", field,
                  messages ? "not a list" : "missing");
        if (messages || !nbl__json_is(nbl__json_get(row, "conversations"), NBL_JSON_ARRAY))
            return NBL_ERROR_FORMAT;
        return nbl__hint(ctx, NBL_ERROR_FORMAT, "the row has \"conversations\": field_messages can name it");
    }
    NBL_CHECK(ctx, messages->count > 0, NBL_ERROR_FORMAT, "the field \"%s\" is empty", field);
    k->count = messages->count;
    k->turns = nbl__arena_alloc(k->arena, (size_t)k->count * sizeof *k->turns);
    if (k->turns == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < k->count; i++) {
        NBL_TRY(take_turn(k, &messages->items[i], i));
        nbl__train_on_eos eos = k->dataset->train_on_eos;
        k->turns[i].wanted = is_trained(k, k->turns[i].role) || eos == NBL_EOS_ALL ||
                             (eos == NBL_EOS_LAST && i == k->count - 1);
    }
    return take_tools(k, row);
}

/* ---- stretches ---- */

/* Spans in characters, in the order their blocks ended, become bytes. */
static nbl_status take_marks(const talk *k, const nbl_rendering *rendering, nbl_string text, nbl__part *part)
{
    int64_t count = 0, start, end;
    while (nbl_rendering_span(rendering, count, &start, &end)) count++;
    nbl__stretch *list = nbl__arena_alloc(k->arena, (size_t)count * sizeof *list);
    if (list == NULL) return NBL_ERROR_MEMORY;
    size_t at = 0;
    int64_t character = 0;
    for (int64_t i = 0; i < count; i++) {
        nbl_rendering_span(rendering, i, &start, &end);
        if (start < character) at = 0, character = 0; /* nested blocks end in another order */
        for (; character < start && at < text.size; character++)
            at += (size_t)nbl__utf8_length(text.text + at, text.text + text.size);
        list[i] = (nbl__stretch){at, at, true};
        for (; character < end && at < text.size; character++)
            at += (size_t)nbl__utf8_length(text.text + at, text.text + text.size);
        list[i].end = at;
    }
    part->stretches = list;
    part->stretch_count = count;
    return NBL_OK;
}

static nbl_status take_places(const talk *k, nbl__part *part)
{
    nbl__stretch *list = nbl__arena_alloc(k->arena, (size_t)k->count * sizeof *list);
    if (list == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < k->count; i++)
        if (k->turns[i].found)
            list[part->stretch_count++] = (nbl__stretch){k->turns[i].begin, k->turns[i].end,
                                                         is_trained(k, k->turns[i].role)};
    part->stretches = list;
    return NBL_OK;
}

/* Marks tell about the assistant and its turns' ends: they cannot say what other roles or another train_on_eos
 * ask for. */
static bool uses_marks(const talk *k)
{
    const nbl__name_list *roles = &k->dataset->roles_to_train;
    bool usual = roles->count == 0 ||
                 (roles->count == 1 && strcmp(usual_role(roles->items[0]), "assistant") == 0);
    return k->scribe->marks && usual && k->dataset->train_on_eos == NBL_EOS_TURN;
}

nbl_status nbl__draft_chat(const nbl__scribe *scribe, const nbl__dataset_config *dataset, nbl__arena *arena,
                           const nbl__json *row, nbl__draft *draft)
{
    talk k = {.scribe = scribe, .dataset = dataset, .arena = arena};
    nbl_rendering *rendering;
    NBL_TRY(take_talk(&k, row));
    NBL_TRY(render(&k, HIDE_NONE, &rendering));
    nbl_string text = nbl_rendering_text(rendering);
    nbl__part *part = draft->parts = nbl__arena_alloc(arena, sizeof *part);
    char *copy = nbl__arena_alloc(arena, text.size + 1);
    nbl_status status = part && copy ? NBL_OK : NBL_ERROR_MEMORY;
    if (status == NBL_OK) {
        if (text.size) memcpy(copy, text.text, text.size);
        bool marks = uses_marks(&k);
        draft->part_count = 1;
        *part = (nbl__part){.text = copy, .size = text.size, .mask = marks ? NBL_MASK_MARKS : NBL_MASK_TURNS};
        if (marks) status = take_marks(&k, rendering, text, part);
        else status = place_turns(&k, text);
        if (status == NBL_OK && !marks) status = take_places(&k, part);
    }
    nbl_rendering_free(rendering);
    return status;
}
