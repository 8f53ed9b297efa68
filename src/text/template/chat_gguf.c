/* chat_gguf.c - reads the chat templates and special tokens of a GGUF file.
 *
 *     tokenizer.chat_template         the template "default"
 *     tokenizer.chat_template.NAME    the template NAME
 *     tokenizer.ggml.…_token_id       ids of special tokens
 *     tokenizer.ggml.tokens           their texts
 *
 * All texts are copied into the template's arena, because the file is closed afterwards. */
#include "format/gguf/gguf.h"
#include "text/template/chat_template.h"

#define TEMPLATE "tokenizer.chat_template"

/* Copies a text into the template's arena. */
static nbl_status keep(nbl_chat_template *t, const char *text, size_t size, nbl_string *kept)
{
    char *copy = nbl__arena_alloc(&t->arena, size + 1);
    if (copy == NULL) return NBL_ERROR_MEMORY;
    if (size) memcpy(copy, text, size);
    copy[size] = '\0';
    *kept = (nbl_string){copy, size};
    return NBL_OK;
}

/* Adds the template of every key that begins with tokenizer.chat_template. */
static nbl_status add_templates(nbl_chat_template *t, const nbl__gguf *gguf)
{
    size_t prefix = strlen(TEMPLATE);
    for (int64_t i = 0; i < gguf->entry_count; i++) {
        const nbl__gguf_entry *entry = &gguf->entries[i];
        const char *text, *rest = entry->key + prefix;
        size_t size;
        nbl_string body;
        if (strncmp(entry->key, TEMPLATE, prefix) != 0 || (rest[0] != '\0' && rest[0] != '.')) continue;
        NBL_CHECK(t->ctx, entry->type == NBL_GGUF_STRING && nbl__gguf_string(entry, 0, &text, &size),
                  NBL_ERROR_FORMAT, "%s: %s is not a text", t->model, entry->key);
        const char *name = nbl__arena_strdup(&t->arena, rest[0] ? rest + 1 : "default");
        if (name == NULL) return NBL_ERROR_MEMORY;
        NBL_TRY(keep(t, text, size, &body));
        NBL_TRY(nbl__chat_add_source(t, name, t->model, body));
    }
    return NBL_OK;
}

/* Adds the special tokens. An id that no token has is ignored. */
static nbl_status add_tokens(nbl_chat_template *t, const nbl__gguf *gguf)
{
    static const struct {
        const char *key, *name;
    } names[] = {{"tokenizer.ggml.bos_token_id", "bos_token"},
                 {"tokenizer.ggml.eos_token_id", "eos_token"},
                 {"tokenizer.ggml.unknown_token_id", "unk_token"},
                 {"tokenizer.ggml.seperator_token_id", "sep_token"}, /* the format's own spelling */
                 {"tokenizer.ggml.padding_token_id", "pad_token"}};
    const nbl__gguf_entry *tokens = nbl__gguf_find(gguf, "tokenizer.ggml.tokens");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int64_t id;
        const char *text;
        size_t size;
        nbl_string kept;
        if (!nbl__gguf_integer(nbl__gguf_find(gguf, names[i].key), 0, &id) ||
            !nbl__gguf_string(tokens, id, &text, &size))
            continue;
        NBL_TRY(keep(t, text, size, &kept));
        NBL_TRY(nbl__chat_add_token(t, names[i].name, kept));
    }
    return NBL_OK;
}

nbl_status nbl__chat_read_gguf(nbl_chat_template *t)
{
    nbl__gguf *gguf;
    NBL_TRY(nbl__gguf_open(t->ctx, t->model, &gguf));
    nbl_status status = add_templates(t, gguf);
    if (status == NBL_OK) status = add_tokens(t, gguf);
    nbl__gguf_close(gguf);
    return status;
}
