/* chat_frames.c - splits a chat template into fixed texts. See chat_frames.h.
 *
 * Step 1 renders conversations whose contents are words that no template contains ("zquserqz"). The
 * text between the words is the template's. Example for ChatML, with one message and with the
 * generation prompt:
 *
 *     <|im_start|>user\nzquserqz<|im_end|>\n
 *     └── user.before ─┘        └ user.behind
 *     <|im_start|>user\nzquserqz<|im_end|>\n<|im_start|>assistant\n
 *                                           └──── generation ─────┘
 *
 * Step 2 puts other conversations together from these pieces, and compares them with what the
 * template renders. If they differ, the template is not known: it may number the turns, or join the
 * system prompt to the first message.
 *
 * So a template is only written in Ollama's language if both render the same for all conversations
 * that are tried. No Jinja is translated. */
#include "convert/chat_frames.h"

#include "base/json/json.h"

static const char system_word[] = "zqsystemqz", user_word[] = "zquserqz", answer_word[] = "zqanswerqz",
                  result_word[] = "zqresultqz", name_word[] = "zqnameqz";

#define MESSAGE(role, word) "{\"role\": \"" role "\", \"content\": \"" word "\"}"
#define SYSTEM MESSAGE("system", "zqsystemqz")
#define USER MESSAGE("user", "zquserqz")
#define ANSWER MESSAGE("assistant", "zqanswerqz")
#define RESULT                                                                                               \
    "{\"role\": \"tool\", \"name\": \"zqnameqz\", \"tool_call_id\": \"123456789\", \"content\": "            \
    "\"zqresultqz\"}"
#define CALL(n)                                                                                              \
    "{\"type\": \"function\", \"id\": \"12345678" n                                                          \
    "\", \"function\": {\"name\": \"zqnameqz\", \"arguments\": {\"zqkey\": \"zqvalue\"}}}"
#define CALLS(list) "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" list "]}"
#define TOOL(n)                                                                                              \
    "{\"type\": \"function\", \"function\": {\"name\": \"zqtool" n "\", \"description\": \"zqtext\", "       \
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"zqarg\": {\"type\": \"string\"}}}}}"

/* The template under test, and what it is rendered with. */
typedef struct probe {
    nbl__arena *arena;
    nbl_context *ctx;
    nbl_chat_template *template;
    nbl_chat_variable variables[2];
    int variable_count;
    nbl_status status; /* the first NBL_ERROR_MEMORY or NBL_ERROR_CANCELLED; then nothing more is rendered */
} probe;

/* ---- texts ---- */

static nbl_string text_of(const char *text, size_t size)
{
    return (nbl_string){text, size};
}

static bool begins(nbl_string text, nbl_string with)
{
    return text.text && with.text && text.size >= with.size && memcmp(text.text, with.text, with.size) == 0;
}

static bool ends(nbl_string text, nbl_string with)
{
    return text.text && with.text && text.size >= with.size &&
           memcmp(text.text + text.size - with.size, with.text, with.size) == 0;
}

static nbl_string after(nbl_string text, size_t size)
{
    return text_of(text.text + size, text.size - size);
}

static nbl_string without_end(nbl_string text, size_t size)
{
    return text_of(text.text, text.size - size);
}

/* Cuts the text at the first occurrence of the word. Returns the text behind it; *before is the
 * text before it. Both have text NULL if the word does not occur. A text of NULL is passed on, so
 * several cuts may follow each other before the result is checked. */
static nbl_string cut(nbl_string text, const char *word, size_t size, nbl_string *before)
{
    for (size_t at = 0; text.text && at + size <= text.size; at++) {
        if (memcmp(text.text + at, word, size) != 0) continue;
        *before = text_of(text.text, at);
        return after(text, at + size);
    }
    *before = text_of(NULL, 0);
    return text_of(NULL, 0);
}

#define CUT(text, word, before) cut(text, word, sizeof(word) - 1, before)

static bool same(nbl_string a, nbl_string b)
{
    return a.text && b.text && a.size == b.size && begins(a, b);
}

/* Concatenates texts in the arena. */
static nbl_string joined(probe *p, const nbl_string *parts, int count)
{
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].size;
    char *to = nbl__arena_alloc(p->arena, size + 1), *at = to;
    if (to == NULL) return p->status = NBL_ERROR_MEMORY, text_of(NULL, 0);
    for (int i = 0; i < count; i++)
        if (parts[i].size) at = (char *)memcpy(at, parts[i].text, parts[i].size) + parts[i].size;
    return text_of(to, size);
}

/* ---- rendering ---- */

/* Renders a conversation. text NULL: the template raises an error for it. */
static nbl_string render(probe *p, const char *messages, const char *tools, bool generation)
{
    nbl_rendering *rendering;
    nbl_chat chat = {.messages = text_of(messages, strlen(messages)),
                     .tools = text_of(tools, tools ? strlen(tools) : 0),
                     .variables = p->variables,
                     .variable_count = p->variable_count,
                     .generation_prompt = generation};
    if (p->status != NBL_OK) return text_of(NULL, 0);
    nbl_status status = nbl_chat_template_render(p->template, &chat, &rendering);
    if (status == NBL_ERROR_MEMORY || status == NBL_ERROR_CANCELLED) p->status = status;
    if (status != NBL_OK) return text_of(NULL, 0);
    nbl_string text = nbl_rendering_text(rendering), kept = joined(p, &text, 1);
    nbl_rendering_free(rendering);
    return kept;
}

/* Renders the tools with another template, `source`: gives the exact JSON text that tojson
 * writes. */
static nbl_string render_tools(probe *p, const char *source, const char *tools)
{
    nbl_chat_template *template, *own = p->template;
    if (p->status != NBL_OK) return text_of(NULL, 0);
    p->status = nbl_chat_template_parse(p->ctx, "json", text_of(source, strlen(source)), &template);
    if (p->status != NBL_OK) return text_of(NULL, 0);
    p->template = template;
    nbl_string text = render(p, "[]", tools, false);
    p->template = own;
    nbl_chat_template_close(template);
    return text;
}

/* ---- frames ---- */

/* Finds the frames of user and assistant, the head and the generation prompt. False: the template
 * is not known.
 *
 *     one    = head user.before USER user.behind                begun = one generation
 *     two    = ... user.behind assistant.before ANSWER assistant.behind
 *     three  = ... assistant.behind user.before USER user.behind */
static bool find_frames(probe *p, nbl__chat_frames *t)
{
    nbl_string first, middle, again, behind, rest;
    nbl_string one = render(p, "[" USER "]", NULL, false), begun = render(p, "[" USER "]", NULL, true),
               two = render(p, "[" USER ", " ANSWER "]", NULL, false),
               three = render(p, "[" USER ", " ANSWER ", " USER "]", NULL, false);
    t->user.behind = CUT(one, user_word, &first);
    if (!t->user.behind.text || !begins(begun, one)) return false;
    t->generation = after(begun, one.size);
    rest = CUT(two, user_word, &behind);
    t->assistant.behind = CUT(rest, answer_word, &middle);
    if (!t->assistant.behind.text || !same(behind, first) || !begins(middle, t->user.behind)) return false;
    t->assistant.before = after(middle, t->user.behind.size);
    rest = CUT(three, user_word, &behind);
    rest = CUT(rest, answer_word, &behind);
    rest = CUT(rest, user_word, &again);
    if (!rest.text || !begins(again, t->assistant.behind)) return false;
    t->user.before = after(again, t->assistant.behind.size);
    if (!ends(first, t->user.before)) return false;
    t->head = without_end(first, t->user.before.size);
    return true;
}

/* Finds the frame of system messages, and the default system prompt, which is a system message in
 * `head`. */
static bool find_system(probe *p, nbl__chat_frames *t)
{
    nbl_string before, middle, text = render(p, "[" SYSTEM ", " USER "]", NULL, false);
    nbl_string rest = CUT(text, system_word, &before);
    rest = CUT(rest, user_word, &middle);
    if (text.text == NULL) return true; /* an error: the template has no system messages */
    if (!rest.text || !ends(middle, t->user.before)) return false;
    t->system = (nbl__chat_frame){before, without_end(middle, t->user.before.size)};
    if (t->head.size < before.size + t->system.behind.size || !begins(t->head, before) ||
        !ends(t->head, t->system.behind))
        return true;
    t->default_system = without_end(after(t->head, before.size), t->system.behind.size);
    nbl_string quoted, rest_of = CUT(t->default_system, "\"\"\"", &quoted);
    /* An empty prompt, or one with three quotes, which SYSTEM cannot contain, stays in the head. */
    if (t->default_system.size == 0 || rest_of.text) t->default_system = text_of(NULL, 0);
    return true;
}

/* Step 2 for the frames: longer conversations, with and without a system message. */
static bool check_frames(probe *p, const nbl__chat_frames *t)
{
    nbl_string user = text_of(user_word, sizeof user_word - 1),
               answer = text_of(answer_word, sizeof answer_word - 1),
               system = text_of(system_word, sizeof system_word - 1);
    nbl_string parts[] = {t->head,
                          t->user.before,
                          user,
                          t->user.behind,
                          t->assistant.before,
                          answer,
                          t->assistant.behind,
                          t->user.before,
                          user,
                          t->user.behind,
                          t->assistant.before,
                          answer,
                          t->assistant.behind,
                          t->user.before,
                          user,
                          t->user.behind,
                          t->generation};
    int count = sizeof parts / sizeof *parts;
    if (!same(joined(p, parts, count),
              render(p, "[" USER ", " ANSWER ", " USER ", " ANSWER ", " USER "]", NULL, true)))
        return false;
    if (t->system.before.text == NULL) return true;
    nbl_string first[] = {t->system.before, system, t->system.behind};
    parts[0] = joined(p, first, 3);
    return same(joined(p, parts, count),
                render(p, "[" SYSTEM ", " USER ", " ANSWER ", " USER ", " ANSWER ", " USER "]", NULL, true));
}

/* ---- tools ---- */

/* Splits `text`, which a system message has behind its content, at the JSON of two tools. source,
 * second_source: templates that write the first and the second tool. */
static bool cut_tools(probe *p, const char *source, const char *second_source, nbl_string text,
                      nbl__chat_list *list)
{
    static const char tools[] = "[" TOOL("one") ", " TOOL("two") "]";
    nbl_string first = render_tools(p, source, tools), second = render_tools(p, second_source, tools);
    if (!first.text || !second.text) return false;
    nbl_string rest = cut(text, first.text, first.size, &list->begin);
    rest = cut(rest, second.text, second.size, &list->between);
    list->end = rest;
    return rest.text != NULL;
}

/* Finds the list of tools; leaves it empty if the template writes tools in any other way. */
static void find_tools(probe *p, nbl__chat_frames *t)
{
    static const char tools[] = "[" TOOL("one") ", " TOOL("two") "]", one_tool[] = "[" TOOL("one") "]";
    nbl_string before, middle, rest = render(p, "[" SYSTEM ", " USER "]", tools, false);
    nbl__chat_list list, alone;
    rest = CUT(rest, system_word, &before);
    rest = CUT(rest, user_word, &middle);
    if (!rest.text || !same(before, t->system.before) || !same(rest, t->user.behind) ||
        !ends(middle, t->user.before))
        return;
    middle = without_end(middle, t->user.before.size);
    if (!ends(middle, t->system.behind)) return;
    middle = without_end(middle, t->system.behind.size);
    const char *sources[][2] = {{"{{ tools[0] | tojson }}", "{{ tools[1] | tojson }}"},
                                {"{{ tools[0].function | tojson }}", "{{ tools[1].function | tojson }}"}};
    int kind = 0;
    while (kind < 2 && !cut_tools(p, sources[kind][0], sources[kind][1], middle, &list)) kind++;
    if (kind == 2) return;
    /* Check with one tool, which must give the same without `between`. */
    nbl_string item = render_tools(p, sources[kind][0], tools),
               parts[] = {t->system.before, text_of(system_word, sizeof system_word - 1),
                          list.begin,       item,
                          list.end,         t->system.behind,
                          t->user.before,   text_of(user_word, sizeof user_word - 1),
                          t->user.behind};
    if (!same(joined(p, parts, sizeof parts / sizeof *parts),
              render(p, "[" SYSTEM ", " USER "]", one_tool, false)))
        return;
    if (t->default_system.text == NULL) { /* find the system message that tools cause if there is none */
        rest = render(p, "[" USER "]", tools, false);
        rest = CUT(rest, user_word, &middle);
        if (!rest.text || !ends(middle, t->user.before) ||
            !cut_tools(p, sources[kind][0], sources[kind][1], without_end(middle, t->user.before.size),
                       &alone) ||
            !same(alone.between, list.between))
            return;
        t->tools_alone = alone.begin;
        t->tools_alone_end = alone.end;
    }
    t->tools = list;
    t->whole_tools = kind == 0;
}

/* Finds the list of calls and the frame of tool results; leaves them empty if calls are written in
 * any other way. */
static void find_calls(probe *p, nbl__chat_frames *t)
{
    static const char tools[] = "[" TOOL("one") "]", arguments[] = "{\"zqkey\": \"zqvalue\"}";
    nbl_string head, first, middle, second, end, again, behind,
        rest = render(p, "[" USER ", " CALLS(CALL("1") ", " CALL("2")) ", " RESULT ", " ANSWER "]", tools,
                      false);
    nbl_string single = render(p, "[" USER ", " CALLS(CALL("1")) ", " RESULT ", " ANSWER "]", tools, false);
    rest = CUT(rest, user_word, &head);
    rest = CUT(rest, name_word, &first);
    rest = CUT(rest, arguments, &middle);
    rest = CUT(rest, name_word, &second);
    rest = CUT(rest, arguments, &again);
    rest = CUT(rest, result_word, &end);
    rest = CUT(rest, answer_word, &behind);
    if (!rest.text || !same(again, middle) || !same(rest, t->assistant.behind)) return;
    nbl_string opening[] = {t->user.behind, t->assistant.before};
    nbl_string expected = joined(p, opening, 2);
    if (!begins(first, expected) || !ends(behind, t->assistant.before)) return;
    first = after(first, expected.size);
    t->tool.behind = without_end(behind, t->assistant.before.size);
    /* `end` is: end of the call, end of the list, assistant.behind, tool.before. assistant.behind
     * is known and cuts it in two. The first half need not be cut further. */
    nbl_string list_end, after_turn = text_of(NULL, 0);
    for (size_t at = 0; at + t->assistant.behind.size <= end.size && !after_turn.text; at++) {
        if (!begins(after(end, at), t->assistant.behind)) continue;
        list_end = text_of(end.text, at);
        after_turn = after(end, at + t->assistant.behind.size);
    }
    if (!after_turn.text || t->assistant.behind.size == 0) return;
    nbl_string alone[] = {head,
                          text_of(user_word, sizeof user_word - 1),
                          t->user.behind,
                          t->assistant.before,
                          first,
                          text_of(name_word, sizeof name_word - 1),
                          middle,
                          text_of(arguments, sizeof arguments - 1),
                          list_end,
                          t->assistant.behind,
                          after_turn,
                          text_of(result_word, sizeof result_word - 1),
                          t->tool.behind,
                          t->assistant.before,
                          text_of(answer_word, sizeof answer_word - 1),
                          t->assistant.behind};
    if (!same(joined(p, alone, sizeof alone / sizeof *alone), single)) return;
    /* `second`, the text between two calls, is: end of a call, between, call_name. `first`, the
     * text before the first call, is: begin, call_name. So call_name is their longest common
     * suffix. */
    size_t shared = 0;
    while (shared < first.size && shared < second.size &&
           first.text[first.size - 1 - shared] == second.text[second.size - 1 - shared])
        shared++;
    t->tool.before = after_turn;
    t->calls = (nbl__chat_list){
        .begin = without_end(first, shared), .between = without_end(second, shared), .end = list_end};
    t->call_name = after(first, first.size - shared);
    t->call_arguments = middle;
}

/* ---- all of it ---- */

/* Removes bos from the beginning of a text. */
static void strip(nbl_string *text, const char *bos)
{
    nbl_string token = text_of(bos, strlen(bos));
    if (begins(*text, token)) *text = after(*text, token.size);
}

/* Finds everything; without tools, calls are not looked for. */
static void find_all(probe *p, const char *bos, nbl__chat_frames *t)
{
    t->known = find_frames(p, t) && find_system(p, t) && check_frames(p, t);
    if (!t->known) {
        *t = (nbl__chat_frames){0};
        return;
    }
    if (t->system.before.text) find_tools(p, t);
    if (t->tools.begin.text) find_calls(p, t);
    if (bos == NULL) return;
    strip(&t->head, bos);
    strip(&t->system.before, bos);
    strip(&t->tools_alone, bos);
}

nbl_status nbl__chat_frames_find(nbl__arena *arena, nbl_string chat_template, const char *bos,
                                 const char *eos, bool strip_bos, nbl__chat_frames *turns)
{
    static const char *const names[] = {"bos_token", "eos_token"};
    const char *tokens[] = {bos, eos};
    probe p = {.arena = arena, .ctx = arena->ctx};
    nbl__text values[2] = {{.ctx = arena->ctx}, {.ctx = arena->ctx}};
    nbl_string before, date = CUT(chat_template, "strftime_now", &before);
    *turns = (nbl__chat_frames){0};
    if (date.text) return NBL_OK; /* the template writes the date, so its texts are not fixed */
    nbl_status status = nbl_chat_template_parse(arena->ctx, "the chat template", chat_template, &p.template);
    for (int i = 0; i < 2 && status == NBL_OK; i++) {
        if (tokens[i] == NULL) continue;
        nbl__text_json(&values[i], tokens[i]);
        status = values[i].status;
        p.variables[p.variable_count++] = (nbl_chat_variable){names[i],
                                                              text_of(values[i].text, values[i].size)};
    }
    if (status == NBL_OK) find_all(&p, strip_bos ? bos : NULL, turns);
    for (int i = 0; i < 2; i++) nbl__text_free(&values[i]);
    nbl_chat_template_close(p.template);
    if (status != NBL_OK && status != NBL_ERROR_MEMORY && status != NBL_ERROR_CANCELLED) return NBL_OK;
    return status != NBL_OK ? status : p.status;
}
