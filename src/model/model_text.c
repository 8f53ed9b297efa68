/* model_text.c - tokenizer and text files of a model with an adapter. See model_text.h. */
#include "model/model_text.h"

#include "base/file/file.h"
#include "text/template/chat_template.h"

/* *has: the folder has this file. */
static nbl_status has_file(nbl__arena *arena, const char *folder, const char *name, bool *has)
{
    const char *path = nbl__arena_printf(arena, "%s/%s", folder, name);
    *has = path && nbl__exists(path);
    return path ? NBL_OK : NBL_ERROR_MEMORY;
}

/* Opens the adapter's tokenizer. *tokenizer is NULL if the adapter has none, or if it has more
 * tokens than the model has rows (`vocabulary`). The second case logs a warning. */
static nbl_status open_own(nbl__arena *arena, const char *base, const char *adapter, int64_t vocabulary,
                           nbl_tokenizer **tokenizer)
{
    nbl_context *ctx = arena->ctx;
    nbl_tokenizer *own, *other = NULL;
    bool has;
    *tokenizer = NULL;
    NBL_TRY(has_file(arena, adapter, "tokenizer.json", &has));
    if (!has) return NBL_OK;
    NBL_TRY(nbl_tokenizer_open(ctx, adapter, &own));
    int64_t size = nbl_tokenizer_size(own);
    /* Some models have fewer rows than their own tokenizer has tokens. An adapter may carry a copy
     * of that tokenizer, so the limit is the larger of the two. */
    if (size > vocabulary && nbl_tokenizer_open(ctx, base, &other) == NBL_OK)
        vocabulary = nbl__max_i64(vocabulary, nbl_tokenizer_size(other));
    nbl_tokenizer_close(other);
    if (size <= vocabulary) return *tokenizer = own, NBL_OK;
    nbl_tokenizer_close(own);
    nbl__log(ctx, NBL_LOG_WARNING,
             "%s/tokenizer.json has %" PRId64 " tokens, the model has %" PRId64
             " rows: the tokenizer of %s is used",
             adapter, size, vocabulary, base);
    return NBL_OK;
}

nbl_status nbl_model_tokenizer(nbl_model *m, nbl_tokenizer **tokenizer)
{
    NBL_CHECK(m->ctx, tokenizer, NBL_ERROR_ARGUMENT, "nbl_model_tokenizer: a NULL argument");
    *tokenizer = NULL;
    if (m->peft && m->peft->folder)
        NBL_TRY(open_own(&m->arena, m->path, m->peft->folder, nbl_model_vocabulary(m), tokenizer));
    return *tokenizer ? NBL_OK : nbl_tokenizer_open(m->ctx, m->path, tokenizer);
}

/* ---- what a merged or exported model gets ---- */

static const struct nbl__chat_token *find_token(const nbl_chat_template *t, const char *name)
{
    for (int i = 0; i < t->token_count; i++)
        if (strcmp(t->tokens[i].name, name) == 0) return &t->tokens[i];
    return NULL;
}

/* Copies a string to the arena and terminates it. */
static nbl_status keep(nbl__arena *arena, nbl_string from, nbl_string *to)
{
    char *copy = nbl__arena_alloc(arena, from.size + 1);
    if (copy == NULL) return NBL_ERROR_MEMORY;
    if (from.size) memcpy(copy, from.text, from.size);
    copy[from.size] = '\0';
    *to = (nbl_string){copy, from.size};
    return NBL_OK;
}

/* Collects the special tokens whose text differs between adapter and base, with their ids. A text
 * with a NUL byte is skipped. */
static nbl_status take_tokens(nbl__arena *arena, const nbl_chat_template *of_base,
                              const nbl_chat_template *own, const nbl_tokenizer *tokenizer,
                              nbl__text_changes *changes)
{
    static const char *const names[NBL_MAX_SPECIAL_TOKENS] = {"bos_token", "eos_token", "pad_token",
                                                              "unk_token"};
    for (int i = 0; i < NBL_MAX_SPECIAL_TOKENS; i++) {
        const struct nbl__chat_token *before = find_token(of_base, names[i]),
                                     *now = find_token(own, names[i]);
        nbl_string text;
        if (now == NULL || memchr(now->text.text, 0, now->text.size)) continue;
        if (before && before->text.size == now->text.size &&
            memcmp(before->text.text, now->text.text, now->text.size) == 0)
            continue;
        NBL_TRY(keep(arena, now->text, &text));
        changes->tokens[changes->token_count++] = (struct nbl__special_token){
            names[i], text.text, nbl_tokenizer_find(tokenizer, text.text, text.size)};
    }
    return NBL_OK;
}

/* Takes the adapter's tokenizer with its special tokens, or, without a usable tokenizer, its
 * default chat template. */
static nbl_status take_adapter(nbl__arena *arena, const char *base, const char *adapter, int64_t vocabulary,
                               nbl__text_source *source)
{
    nbl_context *ctx = arena->ctx;
    nbl_chat_template *of_base = NULL, *own = NULL;
    nbl_tokenizer *tokenizer = NULL;
    nbl_status status = nbl_chat_template_open(ctx, base, NULL, &of_base);
    if (status == NBL_OK) status = nbl_chat_template_open(ctx, adapter, NULL, &own);
    if (status == NBL_OK) status = open_own(arena, base, adapter, vocabulary, &tokenizer);
    if (status == NBL_OK && tokenizer) {
        source->adapter = adapter;
        status = take_tokens(arena, of_base, own, tokenizer, &source->changes);
    }
    for (int i = 0; status == NBL_OK && tokenizer == NULL && i < own->count; i++)
        if (strcmp(own->sources[i].name, "default") == 0)
            status = keep(arena, own->sources[i].text, &source->changes.chat_template);
    if (status == NBL_OK && (tokenizer || own->count))
        nbl__log(ctx, NBL_LOG_INFO, "%s%s%s the adapter's: %s", tokenizer ? "tokenizer" : "",
                 tokenizer && own->count ? " and " : "",
                 own->count ? tokenizer ? "chat template are" : "the chat template is" : " is", adapter);
    nbl_tokenizer_close(tokenizer);
    nbl_chat_template_close(own);
    nbl_chat_template_close(of_base);
    return status;
}

nbl_status nbl__adapter_text(nbl__arena *arena, const char *base, const char *adapter, int64_t vocabulary,
                             nbl__text_source *source)
{
    nbl__config config;
    *source = (nbl__text_source){.folder = base};
    if (adapter == NULL || !nbl__is_folder(adapter) || !nbl__is_folder(base)) return NBL_OK;
    if (vocabulary == 0) {
        const char *path = nbl__arena_printf(arena, "%s/config.json", base);
        if (path == NULL) return NBL_ERROR_MEMORY;
        if (!nbl__exists(path)) return NBL_OK; /* opening the base model reports this */
        NBL_TRY(nbl__config_read(arena, path, &config));
        const nbl__json *size = nbl__config_find(config.root, "vocab_size");
        if (!nbl__json_natural(size, &vocabulary)) vocabulary = 0;
    }
    return take_adapter(arena, base, adapter, vocabulary, source);
}
