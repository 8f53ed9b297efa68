/* chat_template.h - the template of a model, and what is rendered with it. */
#ifndef NBL_CHAT_TEMPLATE_H
#define NBL_CHAT_TEMPLATE_H

#include "text/template/syntax/jinja_ast.h"

/* One template: parsed when it is first needed. */
typedef struct nbl__chat_source {
    const char *name; /* "default", "tool_use", …; of a single one "default" */
    const char *file; /* for error messages */
    nbl_string text;
    bool parsed;
    tpl_program program;
} nbl__chat_source;

struct nbl_chat_template {
    nbl_context *ctx;
    nbl__arena arena;
    const char *model; /* for error messages; NULL: none */
    nbl__chat_source *sources;
    int count, room;
    struct nbl__chat_token {
        const char *name; /* "bos_token" */
        nbl_string text;
    } * tokens;
    int token_count, token_room;
};

struct nbl_rendering {
    nbl_context *ctx;
    char *text; /* terminated */
    size_t size;
    tpl_span *spans;
    int64_t span_count;
    char *error; /* NULL: none */
    size_t error_size;
};

/* Reads the files of a model's folder, or its .gguf file, into the template: sources and tokens. */
nbl_status nbl__chat_read_model(nbl_chat_template *t);
nbl_status nbl__chat_read_gguf(nbl_chat_template *t);
/* A special token, or another text for one; both texts are the arena's. */
nbl_status nbl__chat_add_token(nbl_chat_template *t, const char *name, nbl_string text);
nbl_status nbl__chat_read_file(nbl_chat_template *t, const char *path, const char *name);
nbl_status nbl__chat_add_source(nbl_chat_template *t, const char *name, const char *file, nbl_string text);

#endif
