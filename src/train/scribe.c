/* scribe.c - see scribe.h. Special tokens are those of the model's files unless special_tokens names others; a token
 * that is not in the vocabulary is refused, because the embedding has no row for it. */
#include "train/scribe.h"

#include "base/file.h"

enum { MOST_ENDS = 64, LARGEST_FILE = 64 << 20 };

static const char chatml[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* ---- special tokens ---- */

static int32_t find_token(const nbl__scribe *s, const char *name)
{
    for (int i = 0; i < s->template->token_count; i++)
        if (strcmp(s->template->tokens[i].name, name) == 0)
            return nbl_tokenizer_find(s->tokenizer, s->template->tokens[i].text.text,
                                      s->template->tokens[i].text.size);
    return -1;
}

static nbl_status take_token(const nbl__scribe *s, const char *name, const char *told, int32_t *id)
{
    *id = told ? nbl_tokenizer_find(s->tokenizer, told, strlen(told)) : find_token(s, name);
    NBL_CHECK(s->ctx, told == NULL || *id >= 0, NBL_ERROR_ARGUMENT,
              "%s: special_tokens: %s: \"%s\" is no token of %s", s->config->file, name, told,
              s->config->base_model);
    return NBL_OK;
}

static void add_end(nbl__scribe *s, int64_t id)
{
    for (int64_t i = 0; i < s->end_count; i++)
        if (s->ends[i] == id) return;
    if (id >= 0 && id < s->vocabulary && id <= INT32_MAX && s->end_count < MOST_ENDS)
        s->ends[s->end_count++] = (int32_t)id;
}

/* eos_token_id of one of the model's files: a number or a list. *found: it was there. */
static nbl_status add_ends(nbl__scribe *s, nbl__arena *arena, const char *name, bool *found)
{
    char *text, *path = nbl__arena_printf(arena, "%s/%s", s->config->base_model, name);
    const nbl__json *root;
    size_t size;
    int64_t id;
    *found = false;
    if (path == NULL) return NBL_ERROR_MEMORY;
    if (!nbl__exists(path)) return NBL_OK;
    NBL_TRY(nbl__file_read(s->ctx, path, LARGEST_FILE, &text, &size));
    nbl_status status = nbl__json_parse(arena, path, text, size, NBL_JSON_PYTHON, &root);
    nbl__free(s->ctx, text, size + 1);
    NBL_TRY(status);
    const nbl__json *value = nbl__json_get(root, "eos_token_id");
    if (nbl__json_natural(value, &id)) add_end(s, id);
    for (int64_t i = 0; nbl__json_is(value, NBL_JSON_ARRAY) && i < value->count; i++)
        if (nbl__json_natural(&value->items[i], &id)) add_end(s, id);
    *found = value && value->type != NBL_JSON_NULL;
    return NBL_OK;
}

static nbl_status take_specials(nbl__scribe *s)
{
    nbl__arena arena = nbl__arena_make(s->ctx);
    bool found;
    NBL_TRY(take_token(s, "eos_token", s->config->eos_token, &s->eos));
    NBL_TRY(take_token(s, "bos_token", s->config->bos_token, &s->bos));
    s->own_bos = s->config->bos_token ? find_token(s, "bos_token") : -1;
    NBL_TRY(NBL_ALLOC(s->ctx, s->ends, MOST_ENDS));
    add_end(s, s->eos);
    nbl_status status = add_ends(s, &arena, "generation_config.json", &found);
    if (status == NBL_OK && !found) status = add_ends(s, &arena, "config.json", &found);
    nbl__arena_free(&arena);
    if (s->eos < 0 && s->end_count) s->eos = s->ends[0];
    return status;
}

/* ---- the template ---- */

/* Whether a text has a block {% generation %}. */
static bool has_marks(nbl_string text)
{
    static const char word[] = "generation";
    for (size_t at = 0; at + 2 < text.size; at++) {
        if (text.text[at] != '{' || text.text[at + 1] != '%') continue;
        size_t i = at + 2;
        if (text.text[i] == '-' || text.text[i] == '+') i++;
        while (i < text.size && strchr(" \t\r\n", text.text[i]) && text.text[i]) i++;
        if (text.size - i <= sizeof word || memcmp(text.text + i, word, sizeof word - 1) != 0) continue;
        if (strchr(" \t\r\n-+%", text.text[i + sizeof word - 1])) return true;
    }
    return false;
}

nbl_status nbl__run_template(nbl_context *ctx, const nbl__run_config *config, nbl_string *text)
{
    const char *told = config->chat_template;
    *text = (nbl_string){NULL, 0};
    if (told == NULL || strcmp(told, "tokenizer_default") == 0) return NBL_OK;
    bool built_in = strcmp(told, "chatml") == 0;
    NBL_CHECK(ctx, built_in || strchr(told, '{'), NBL_ERROR_UNSUPPORTED,
              "%s: chat_template: \"%s\" is not known; it is tokenizer_default, chatml or a template",
              config->file, told);
    *text = (nbl_string){built_in ? chatml : told, strlen(built_in ? chatml : told)};
    return NBL_OK;
}

static nbl_status choose_template(nbl__scribe *s)
{
    nbl_chat_template *t = s->template;
    nbl_string told;
    NBL_TRY(nbl__run_template(s->ctx, s->config, &told));
    if (told.text) {
        char *copy = nbl__arena_strdup(&t->arena, told.text);
        if (copy == NULL) return NBL_ERROR_MEMORY;
        t->count = 0;
        NBL_TRY(nbl__chat_add_source(
            t, "default", strchr(s->config->chat_template, '{') ? "chat_template" : s->config->chat_template,
            (nbl_string){copy, told.size}));
    }
    if (t->count == 0)
        return nbl__hint(s->ctx,
                         nbl__fail(s->ctx, NBL_ERROR_NOT_FOUND,
                                   "%s: no chat template, which data of the type chat_template needs",
                                   s->config->base_model),
                         "chat_template: chatml uses one that is built in");
    for (int i = 0; i < t->count; i++) s->marks |= has_marks(t->sources[i].text);
    return NBL_OK;
}

/* ---- open and close ---- */

nbl_status nbl__scribe_open(nbl_context *ctx, const nbl__run_config *config, int64_t vocabulary,
                            nbl__scribe *s)
{
    bool text = false, chat = false, closed = false;
    *s = (nbl__scribe){
        .ctx = ctx, .config = config, .vocabulary = vocabulary, .eos = -1, .bos = -1, .own_bos = -1};
    for (int64_t i = 0; i < config->dataset_count; i++) {
        nbl__data_type type = config->datasets[i].type;
        text |= type != NBL_DATA_TOKENS;
        chat |= type == NBL_DATA_CHAT;
        closed |= type == NBL_DATA_ALPACA || type == NBL_DATA_COMPLETION;
    }
    if (!text) return NBL_OK;
    NBL_TRY(nbl_tokenizer_open(ctx, config->base_model, &s->tokenizer));
    NBL_TRY(nbl_chat_template_open(ctx, config->base_model, NULL, &s->template));
    NBL_TRY(take_specials(s));
    if (closed && s->eos < 0)
        return nbl__hint(ctx,
                         nbl__fail(ctx, NBL_ERROR_NOT_FOUND, "%s: the model names no end-of-sequence token",
                                   config->base_model),
                         "special_tokens: {eos_token: ...} names one");
    return chat ? choose_template(s) : NBL_OK;
}

void nbl__scribe_close(nbl__scribe *s)
{
    if (s->ctx == NULL) return;
    nbl_tokenizer_close(s->tokenizer);
    nbl_chat_template_close(s->template);
    if (s->ends) nbl__free(s->ctx, s->ends, MOST_ENDS * sizeof *s->ends);
    *s = (nbl__scribe){0};
}
