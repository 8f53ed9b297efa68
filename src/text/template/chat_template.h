/* chat_template.h - chat templates: the Jinja templates of a model, and the result of a rendering.
 *
 *     files of the model ──▶ sources + special tokens                    chat_model.c, chat_gguf.c
 *     text of a source   ──▶ program                                     syntax/
 *     program + messages ──▶ text + spans of the assistant's answers     chat_template.c, runtime/
 *
 * The behaviour is that of jinja2's ImmutableSandboxedEnvironment as transformers sets it up. */
#ifndef NBL_CHAT_TEMPLATE_H
#define NBL_CHAT_TEMPLATE_H

#include "text/template/syntax/jinja_ast.h"

/* One template. It is parsed when it is first rendered. */
typedef struct nbl__chat_source {
    const char *name; /* "default", "tool_use", …; a single template is "default" */
    const char *file; /* where it comes from; for error messages */
    nbl_string text;
    bool parsed;         /* `program` is valid */
    tpl_program program; /* has its own arena */
} nbl__chat_source;

struct nbl_chat_template {
    nbl_context *ctx;
    nbl__arena arena;  /* owns all texts and arrays below */
    const char *model; /* path of the model; NULL if the template came from a text */
    nbl__chat_source *sources;
    int count, room;
    struct nbl__chat_token {
        const char *name; /* the variable, such as "bos_token" */
        nbl_string text;
    } * tokens;
    int token_count, token_room;
};

/* The result of a rendering: either a text with spans, or an error. */
struct nbl_rendering {
    nbl_context *ctx;
    char *text; /* terminated; NULL if there is an error */
    size_t size;
    tpl_span *spans; /* the text of {% generation %} blocks */
    int64_t span_count;
    char *error; /* terminated; NULL: no error */
    size_t error_size;
};

/* Reads the sources and special tokens of t->model, a folder or a .gguf file. */
nbl_status nbl__chat_read_model(nbl_chat_template *t);
/* The same for a .gguf file. In chat_gguf.c. */
nbl_status nbl__chat_read_gguf(nbl_chat_template *t);
/* Adds a special token. A token of the same name gets the new text. Both texts are in t->arena. */
nbl_status nbl__chat_add_token(nbl_chat_template *t, const char *name, nbl_string text);
/* Reads a file as the source `name`. */
nbl_status nbl__chat_read_file(nbl_chat_template *t, const char *path, const char *name);
/* Adds a source. A source of the same name gets the new file and text. All texts are in
 * t->arena. */
nbl_status nbl__chat_add_source(nbl_chat_template *t, const char *name, const char *file, nbl_string text);

#endif
