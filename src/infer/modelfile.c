/* modelfile.c - what Ollama needs beside a GGUF file: where it is, how a conversation is written, where an answer ends.
 * Ollama's templates are programs in another language than the model's own. The families below are known by the marks
 * that their templates write; for any other the template in the GGUF file is left to speak for itself. */
#include <stdlib.h>

#include "infer/export.h"

enum { MOST_STOPS = 4 };

static const struct family {
    const char *mark; /* in the model's own template */
    const char *text;
    const char *stops[MOST_STOPS];
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

/* A text in quotes, on one line. */
static void add_quoted(nbl__text *out, const char *text)
{
    nbl__text_add(out, "\"", 1);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') nbl__text_add(out, "\\", 1);
        nbl__text_add(out, *text == '\n' ? " " : text, 1);
    }
    nbl__text_add(out, "\"", 1);
}

static bool holds(nbl_string text, const char *part)
{
    size_t size = strlen(part);
    for (size_t i = 0; text.text && i + size <= text.size; i++)
        if (memcmp(text.text + i, part, size) == 0) return true;
    return false;
}

static const struct family *family_of(const nbl__export *e)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (holds(e->vocab.chat_template, families[i].mark)) return &families[i];
    return NULL;
}

static void add_stops(const nbl__export *e, const struct family *family, nbl__text *out)
{
    bool told = false;
    for (int i = 0; family && i < MOST_STOPS && family->stops[i]; i++) {
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

void nbl__export_modelfile(const nbl__export *e, nbl__text *out)
{
    const char *slash = strrchr(e->out, '/'), *name = slash ? slash + 1 : e->out;
    if (e->options->type == NULL) { /* the base as it is; the file is what is put on top */
        char *base = realpath(e->folder, NULL);
        nbl__text_printf(out, "FROM %s\nADAPTER ./%s\n", base ? base : e->folder, name);
        free(base);
        return;
    }
    const struct family *family = family_of(e);
    nbl__text_printf(out, "FROM ./%s\n", name);
    if (family) nbl__text_printf(out, "TEMPLATE \"\"\"%s\"\"\"\n", family->text);
    add_stops(e, family, out);
}
