/* modelfile.c - writes Ollama's Modelfile: the path of the GGUF file, the chat template, the stop
 * strings.
 *
 * Ollama's templates are written in Go's text/template, the model's in Jinja. In this order:
 * * A template that can be split into fixed texts (chat_frames.c) is written in Go, with tools and
 * the default system prompt.
 * * Otherwise a plain template of its family, recognised by the special token that it writes
 * (families[]).
 * * Otherwise no TEMPLATE: Ollama looks for a known one like that in the GGUF file.
 *
 * The last two cases, and a template whose tools cannot be written, log a warning.
 *
 * Example, the result for a model of the ChatML family:
 *
 *     FROM ./model.gguf
 *     TEMPLATE """{{ range .Messages }}{{ if eq .Role "user" }}<|im_start|>user
 *     {{ .Content }}<|im_end|>
 *     {{ else if eq .Role "assistant" }}…{{ end }}{{ end }}<|im_start|>assistant
 *     """
 *     PARAMETER stop "<|im_start|>"
 *     PARAMETER stop "<|im_end|>" */
#include "convert/chat_frames.h"

#include <stdlib.h>

#include "convert/export_gguf.h"
#include "text/template/chat_template.h"

enum { MAX_STOPS = 4 };

static const struct family {
    const char *mark; /* a text in the model's template that identifies the family */
    const char *text; /* Ollama's template */
    const char *stops[MAX_STOPS];
} families[] = {
    {"<|im_start|>",
     "{{- range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end "
     "}}<|im_start|>assistant\n",
     {"<|im_start|>", "<|im_end|>"}},
    {"<|start_header_id|>",
     "{{- range .Messages }}<|start_header_id|>{{ .Role }}<|end_header_id|>\n\n{{ .Content }}<|eot_id|>{{ "
     "end }}"
     "<|start_header_id|>assistant<|end_header_id|>\n\n",
     {"<|start_header_id|>", "<|eot_id|>"}},
    {"<start_of_turn>",
     "{{- range .Messages }}<start_of_turn>{{ if eq .Role \"assistant\" }}model{{ else }}user{{ end }}\n"
     "{{ .Content }}<end_of_turn>\n{{ end }}<start_of_turn>model\n",
     {"<start_of_turn>", "<end_of_turn>"}},
};

/* Appends a text in quotes, with newlines replaced by spaces. */
static void add_quoted(nbl__text *out, const char *text)
{
    nbl__text_add(out, "\"", 1);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') nbl__text_add(out, "\\", 1);
        nbl__text_add(out, *text == '\n' ? " " : text, 1);
    }
    nbl__text_add(out, "\"", 1);
}

/* True if the text contains the part. */
static bool holds(nbl_string text, const char *part)
{
    size_t size = strlen(part);
    for (size_t i = 0; text.text && i + size <= text.size; i++)
        if (memcmp(text.text + i, part, size) == 0) return true;
    return false;
}

/* The family of a chat template: the first whose mark it contains. */
static const struct family *family_of(nbl_string chat_template)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (holds(chat_template, families[i].mark)) return &families[i];
    return NULL;
}

/* Puts the family's stop strings, and eos unless it is one of them. */
static void add_stops(const nbl__export *e, const struct family *family, nbl__text *out)
{
    bool told = false;
    for (int i = 0; family && i < MAX_STOPS && family->stops[i]; i++) {
        told = told || (e->vocab.eos && strcmp(family->stops[i], e->vocab.eos) == 0);
        nbl__text_printf(out, "PARAMETER stop ");
        add_quoted(out, family->stops[i]);
        nbl__text_add(out, "\n", 1);
    }
    if (told || e->vocab.eos == NULL) return;
    nbl__text_printf(out, "PARAMETER stop ");
    add_quoted(out, e->vocab.eos);
    nbl__text_add(out, "\n", 1);
}

/* ---- the template's frames in Go ---- */

/* Appends a fixed text for Go's template language. "{{" would begin an action, and three quotes end
 * the TEMPLATE. So a brace before another brace or at the end, and a quote before another quote or
 * at the end of the template, are written as actions: {{ "{" }}. */
static void add_plain_to(nbl__text *out, nbl_string text, bool last)
{
    for (size_t i = 0; i < text.size; i++) {
        char c = text.text[i], next = i + 1 < text.size ? text.text[i + 1] : '\0';
        bool end = i + 1 == text.size;
        if (c == '{' && (end || next == '{')) nbl__text_printf(out, "{{ \"{\" }}");
        else if (c == '"' && (next == '"' || (end && last))) nbl__text_printf(out, "{{ `\"` }}");
        else nbl__text_add(out, &c, 1);
    }
}

static void add_plain(nbl__text *out, nbl_string text)
{
    add_plain_to(out, text, false);
}

/* Appends the list of tools: Go's range over $.Tools, with the fixed texts around and between the
 * items. */
static void add_tools(nbl__text *out, const nbl__chat_frames *t, nbl_string begin, nbl_string end)
{
    add_plain(out, begin);
    nbl__text_printf(out, "{{ range $i, $tool := $.Tools }}{{ if $i }}");
    add_plain(out, t->tools.between);
    nbl__text_printf(out, "{{ end }}{{ %s }}{{ end }}", t->whole_tools ? "$tool" : "$tool.Function");
    add_plain(out, end);
}

/* Appends the calls of an assistant's message, or its content if it has none. */
static void add_calls(nbl__text *out, const nbl__chat_frames *t)
{
    nbl__text_printf(out, "{{ if .ToolCalls }}");
    add_plain(out, t->calls.begin);
    nbl__text_printf(out, "{{ range $i, $call := .ToolCalls }}{{ if $i }}");
    add_plain(out, t->calls.between);
    nbl__text_printf(out, "{{ end }}");
    add_plain(out, t->call_name);
    nbl__text_printf(out, "{{ $call.Function.Name }}");
    add_plain(out, t->call_arguments);
    nbl__text_printf(out, "{{ $call.Function.Arguments }}{{ end }}");
    add_plain(out, t->calls.end);
    nbl__text_printf(out, "{{ else }}{{ .Content }}{{ end }}");
}

/* Appends the text before the first message for conversations without a system message. */
static void add_head(nbl__text *out, const nbl__chat_frames *t)
{
    if (t->default_system.text || (t->head.size == 0 && t->tools_alone.text == NULL)) return;
    nbl__text_printf(out, "{{ if ne (index .Messages 0).Role \"system\" }}");
    if (t->tools_alone.text) {
        nbl__text_printf(out, "{{ if .Tools }}");
        add_tools(out, t, t->tools_alone, t->tools_alone_end);
        nbl__text_printf(out, "{{ else }}");
    }
    add_plain(out, t->head);
    nbl__text_printf(out, "%s{{ end }}", t->tools_alone.text ? "{{ end }}" : "");
}

/* Appends the branch of one role: the texts before and behind the content. */
static void add_role(nbl__text *out, const char *role, bool first, const nbl__chat_frame *frame,
                     const nbl__chat_frames *t)
{
    nbl__text_printf(out, "{{ %sif eq .Role \"%s\" }}", first ? "" : "else ", role);
    add_plain(out, frame->before);
    if (frame == &t->assistant && t->calls.begin.text) add_calls(out, t);
    else nbl__text_printf(out, "{{ .Content }}");
    if (frame == &t->system && t->tools.begin.text) {
        nbl__text_printf(out, "{{ if $.Tools }}");
        add_tools(out, t, t->tools.begin, t->tools.end);
        nbl__text_printf(out, "{{ end }}");
    }
    add_plain(out, frame->behind);
}

/* Appends TEMPLATE: the head, a loop over the messages with a branch per role, and the generation
 * prompt. */
static void add_template(nbl__text *out, const nbl__chat_frames *t)
{
    nbl__text_printf(out, "TEMPLATE \"\"\"");
    add_head(out, t);
    nbl__text_printf(out, "{{ range .Messages }}");
    add_role(out, "user", true, &t->user, t);
    add_role(out, "assistant", false, &t->assistant, t);
    if (t->system.before.text) add_role(out, "system", false, &t->system, t);
    if (t->tool.before.text) add_role(out, "tool", false, &t->tool, t);
    nbl__text_printf(out, "{{ end }}{{ end }}");
    add_plain_to(out, t->generation, true);
    nbl__text_printf(out, "\"\"\"\n");
    if (t->default_system.text == NULL) return;
    nbl__text_printf(out, "SYSTEM \"\"\"");
    nbl__text_add(out, t->default_system.text, t->default_system.size);
    nbl__text_printf(out, "\"\"\"\n");
}

/* Puts TEMPLATE and SYSTEM; see the head of this file. */
static nbl_status put_template(nbl__export *e, nbl_string chat_template, const char *bos, const char *eos,
                               bool strip_bos, nbl__text *out)
{
    nbl__chat_frames t = {0};
    const struct family *family = family_of(chat_template);
    if (chat_template.text == NULL) return NBL_OK;
    NBL_TRY(nbl__chat_frames_find(&e->arena, chat_template, bos, eos, strip_bos, &t));
    if (t.known) add_template(out, &t);
    else if (family) nbl__text_printf(out, "TEMPLATE \"\"\"%s\"\"\"\n", family->text);
    if (!t.known)
        nbl__log(e->ctx, NBL_LOG_WARNING,
                 "Modelfile: the chat template cannot be written in Ollama's language; %s",
                 family ? "a plain one of its family takes its place, without tools and default system prompt"
                        : "TEMPLATE is left out, and Ollama looks for a known one like the GGUF file's");
    else if (t.tools.begin.text == NULL && holds(chat_template, "tools"))
        nbl__log(e->ctx, NBL_LOG_WARNING,
                 "Modelfile: TEMPLATE is without the chat template's tools, which cannot be written in "
                 "Ollama's language");
    return NBL_OK;
}

/* Puts TEMPLATE and the stop string of an adapter that has a template of its own. */
static nbl_status put_adapter_template(nbl__export *e, nbl__text *out)
{
    nbl_chat_template *own;
    const char *bos = NULL, *eos = NULL;
    nbl_status status = NBL_OK;
    if (e->options->adapter == NULL) return NBL_OK;
    NBL_TRY(nbl_chat_template_open(e->ctx, e->options->adapter, NULL, &own));
    for (int i = 0; i < own->token_count; i++) {
        if (strcmp(own->tokens[i].name, "bos_token") == 0) bos = own->tokens[i].text.text;
        if (strcmp(own->tokens[i].name, "eos_token") == 0) eos = own->tokens[i].text.text;
    }
    for (int i = 0; i < own->count && status == NBL_OK; i++)
        if (strcmp(own->sources[i].name, "default") == 0)
            status = put_template(e, own->sources[i].text, bos, eos, true, out);
    if (status == NBL_OK && own->count && eos) {
        nbl__text_printf(out, "PARAMETER stop ");
        add_quoted(out, eos);
        nbl__text_add(out, "\n", 1);
    }
    nbl_chat_template_close(own);
    return status;
}

nbl_status nbl__export_modelfile(nbl__export *e, nbl__text *out)
{
    const char *slash = strrchr(e->out, '/'), *name = slash ? slash + 1 : e->out;
    if (e->options->type ==
        NBL_EXPORT_DEFAULT) { /* the file is a LoRA: the base model with the adapter on top */
        char *base = realpath(e->folder, NULL);
        nbl__text_printf(out, "FROM %s\nADAPTER ./%s\n", base ? base : e->folder, name);
        free(base);
        return put_adapter_template(e, out);
    }
    const nbl__exported_vocab *v = &e->vocab;
    nbl__text_printf(out, "FROM ./%s\n", name);
    NBL_TRY(put_template(e, v->chat_template, v->bos, v->eos, v->adds_bos, out));
    add_stops(e, family_of(v->chat_template), out);
    return NBL_OK;
}
