/* row_encoder.c - chooses special tokens and the chat template. See row_encoder.h.
 *
 * Special tokens come from special_tokens, else from the model's files. A token that is not in
 * the vocabulary is an error: the embedding has no row for it. End tokens are collected from
 * EOS, from eos_token_id of generation_config.json, else of config.json, and from eot_tokens. */
#include "data/row_encoder.h"

#include "base/file/file.h"
#include "format/hf/config.h"
#include "text/template/named_templates.h"

enum { MAX_ENDS = 64, LARGEST_FILE = 64 << 20 };

/* ---- special tokens ---- */

/* The id of a special token by its name in the model's files ("eos_token"), or -1. */
static int32_t find_token(const nbl__row_encoder *s, const char *name)
{
    for (int i = 0; i < s->template->token_count; i++)
        if (strcmp(s->template->tokens[i].name, name) == 0)
            return nbl_tokenizer_find(s->tokenizer, s->template->tokens[i].text.text,
                                      s->template->tokens[i].text.size);
    return -1;
}

/* *id: the token `told` by the configuration, which must exist; told NULL: the model's token
 * `name`, or -1. */
static nbl_status take_token(const nbl__row_encoder *s, const char *name, const char *told, int32_t *id)
{
    *id = told ? nbl_tokenizer_find(s->tokenizer, told, strlen(told)) : find_token(s, name);
    NBL_CHECK(s->ctx, told == NULL || *id >= 0, NBL_ERROR_ARGUMENT,
              "%s: special_tokens: %s: \"%s\" is no token of %s", s->config->file, name, told,
              s->config->base_model);
    return NBL_OK;
}

/* Adds an end token unless it is known already, invalid, or beyond MAX_ENDS. */
static void add_end(nbl__row_encoder *s, int64_t id)
{
    for (int64_t i = 0; i < s->end_count; i++)
        if (s->ends[i] == id) return;
    if (id >= 0 && id < s->vocabulary && id <= INT32_MAX && s->end_count < MAX_ENDS)
        s->ends[s->end_count++] = (int32_t)id;
}

/* Adds eos_token_id, a number or a list, of the model's file `name`. *found: the file has it. */
static nbl_status add_ends(nbl__row_encoder *s, nbl__arena *arena, const char *name, bool *found)
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
    const nbl__json *value = nbl__config_find(root, "eos_token_id");
    if (nbl__json_natural(value, &id)) add_end(s, id);
    for (int64_t i = 0; nbl__json_is(value, NBL_JSON_ARRAY) && i < value->count; i++)
        if (nbl__json_natural(&value->items[i], &id)) add_end(s, id);
    *found = value && value->type != NBL_JSON_NULL;
    return NBL_OK;
}

/* Sets EOS, BOS and the end tokens. Without an EOS token the first end token serves as EOS. */
static nbl_status take_specials(nbl__row_encoder *s)
{
    nbl__arena arena = nbl__arena_make(s->ctx);
    bool found;
    NBL_TRY(take_token(s, "eos_token", s->config->eos_token, &s->eos));
    NBL_TRY(take_token(s, "bos_token", s->config->bos_token, &s->bos));
    s->own_bos = s->config->bos_token ? find_token(s, "bos_token") : -1;
    NBL_TRY(NBL_ALLOC(s->ctx, s->ends, MAX_ENDS));
    add_end(s, s->eos);
    nbl_status status = add_ends(s, &arena, "generation_config.json", &found);
    if (status == NBL_OK && !found) status = add_ends(s, &arena, "config.json", &found);
    nbl__arena_free(&arena);
    if (s->eos < 0 && s->end_count) s->eos = s->ends[0];
    return status;
}

/* ---- the template ---- */

bool nbl__template_has(const nbl__row_encoder *s, const char *token)
{
    size_t size = strlen(token);
    for (int i = 0; i < s->template->count; i++) {
        nbl_string text = s->template->sources[i].text;
        for (size_t at = 0; at + size <= text.size; at++)
            if (memcmp(text.text + at, token, size) == 0) return true;
    }
    return false;
}

/* Sets eots from eot_tokens, else from the end tokens. Each entry must be exactly one token. An
 * entry that the template does not contain is left out with a warning, as axolotl does. EOS is
 * contained also where the template uses the variable eos_token. If EOS is among eot_tokens,
 * train_on_eos and train_on_eot must agree. */
static nbl_status take_eots(nbl__row_encoder *s)
{
    const nbl__name_list *list = &s->config->eot_tokens;
    NBL_TRY(NBL_ALLOC(s->ctx, s->eots, MAX_ENDS));
    if (list->count == 0) {
        memcpy(s->eots, s->ends, (size_t)s->end_count * sizeof *s->eots);
        s->eot_count = s->end_count;
        return NBL_OK;
    }
    NBL_CHECK(s->ctx, list->count <= MAX_ENDS, NBL_ERROR_ARGUMENT,
              "%s: eot_tokens: %" PRId64 " tokens, at most %d are possible", s->config->file, list->count,
              MAX_ENDS);
    for (int64_t i = 0; i < list->count; i++) {
        const char *token = list->items[i];
        nbl_ids ids;
        NBL_TRY(nbl_tokenizer_encode(s->tokenizer, token, strlen(token), 0, &ids));
        int64_t count = ids.count;
        int32_t id = count == 1 ? ids.ids[0] : -1;
        nbl_ids_free(s->ctx, &ids);
        if (count != 1)
            return nbl__hint(s->ctx,
                             nbl__fail(s->ctx, NBL_ERROR_ARGUMENT,
                                       "%s: eot_tokens: \"%.64s\" is %" PRId64 " tokens of %s",
                                       s->config->file, token, count, s->config->base_model),
                             "it must be one token of the model's tokenizer");
        if (!nbl__template_has(s, token) && !(id == s->eos && nbl__template_has(s, "eos_token"))) {
            nbl__log(s->ctx, NBL_LOG_WARNING,
                     "%s: eot_tokens: the chat template does not have \"%.64s\"; it is left out",
                     s->config->file, token);
            continue;
        }
        for (int64_t d = 0; d < s->config->dataset_count && id == s->eos; d++) {
            const nbl__dataset_config *dataset = &s->config->datasets[d];
            NBL_CHECK(s->ctx, nbl__train_on_eot(dataset) == dataset->train_on_eos, NBL_ERROR_ARGUMENT,
                      "%s: eot_tokens has the EOS token \"%.64s\", but train_on_eos and train_on_eot of %s "
                      "differ",
                      s->config->file, token, dataset->path);
        }
        s->eots[s->eot_count++] = id;
        add_end(s, id);
    }
    return NBL_OK;
}

/* True if a template has a block {% generation %}, with any spaces and - or + signs. */
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

static void find_marks(nbl__row_encoder *s)
{
    for (int i = 0; i < s->template->count; i++) s->marks |= has_marks(s->template->sources[i].text);
}

nbl_status nbl__run_template(nbl_context *ctx, const nbl__run_config *config, nbl_string *text)
{
    const char *told = config->chat_template;
    *text = (nbl_string){NULL, 0};
    if (told == NULL || strcmp(told, "tokenizer_default") == 0) return NBL_OK;
    const char *fallback = nbl__template_fallback(told);
    if (fallback) {
        nbl_chat_template *own;
        NBL_TRY(nbl_chat_template_open(ctx, config->base_model, NULL, &own));
        int64_t count = nbl_chat_template_count(own);
        nbl_chat_template_close(own);
        if (count) return NBL_OK;
        told = fallback;
    }
    const char *named = nbl__named_template(told);
    NBL_CHECK(ctx, named || nbl__is_template(told), NBL_ERROR_UNSUPPORTED,
              "%s: chat_template: \"%s\" is not known; it is tokenizer_default, %s or a template",
              config->file, told, nbl__named_template_names());
    *text = (nbl_string){named ? named : told, strlen(named ? named : told)};
    return NBL_OK;
}

/* Replaces the model's template with that of the configuration, if it names one. */
static nbl_status choose_template(nbl__row_encoder *s)
{
    nbl_chat_template *t = s->template;
    nbl_string told;
    NBL_TRY(nbl__run_template(s->ctx, s->config, &told));
    if (told.text) {
        char *copy = nbl__arena_strdup(&t->arena, told.text);
        if (copy == NULL) return NBL_ERROR_MEMORY;
        t->count = 0;
        NBL_TRY(nbl__chat_add_source(t, "default",
                                     nbl__is_template(s->config->chat_template) ? "chat_template"
                                                                                : s->config->chat_template,
                                     (nbl_string){copy, told.size}));
    }
    if (t->count == 0)
        return nbl__hint(s->ctx,
                         nbl__fail(s->ctx, NBL_ERROR_NOT_FOUND,
                                   "%s: no chat template, which data of the type chat_template needs",
                                   s->config->base_model),
                         "chat_template: chatml uses one that is built in");
    find_marks(s);
    return NBL_OK;
}

/* ---- open and close ---- */

nbl_status nbl__row_encoder_open(nbl_context *ctx, const nbl__run_config *config, int64_t vocabulary,
                                 nbl__row_encoder *s)
{
    bool text = false, chat = false, closed = false;
    *s = (nbl__row_encoder){
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
    if (!chat) return NBL_OK;
    NBL_TRY(choose_template(s));
    return take_eots(s);
}

nbl_status nbl__row_encoder_borrow(nbl_model *model, const nbl__run_config *config, nbl_tokenizer *tokenizer,
                                   nbl_chat_template *template, nbl__row_encoder *s)
{
    *s = (nbl__row_encoder){.ctx = tokenizer->ctx,
                            .config = config,
                            .tokenizer = tokenizer,
                            .template = template,
                            .vocabulary = nbl_model_vocabulary(model),
                            .bos = -1,
                            .own_bos = -1};
    NBL_CHECK(s->ctx, template->count, NBL_ERROR_NOT_FOUND, "%s: no chat template", config->base_model);
    int32_t found[MAX_ENDS];
    int64_t count = nbl__min_i64(nbl_model_eos_ids(model, found, MAX_ENDS), MAX_ENDS);
    NBL_TRY(NBL_ALLOC(s->ctx, s->ends, MAX_ENDS));
    NBL_TRY(NBL_ALLOC(s->ctx, s->eots, MAX_ENDS));
    s->eos = find_token(s, "eos_token");
    add_end(s, s->eos);
    add_end(s, nbl_model_adapter_eos_id(model, tokenizer));
    for (int64_t i = 0; i < count; i++) add_end(s, found[i]);
    if (s->eos < 0 && s->end_count) s->eos = s->ends[0];
    memcpy(s->eots, s->ends, (size_t)s->end_count * sizeof *s->eots);
    s->eot_count = s->end_count;
    find_marks(s);
    return NBL_OK;
}

void nbl__row_encoder_return(nbl__row_encoder *s)
{
    s->tokenizer = NULL;
    s->template = NULL;
    nbl__row_encoder_close(s);
}

void nbl__row_encoder_close(nbl__row_encoder *s)
{
    if (s->ctx == NULL) return;
    nbl_tokenizer_close(s->tokenizer);
    nbl_chat_template_close(s->template);
    if (s->ends) nbl__free(s->ctx, s->ends, MAX_ENDS * sizeof *s->ends);
    if (s->eots) nbl__free(s->ctx, s->eots, MAX_ENDS * sizeof *s->eots);
    *s = (nbl__row_encoder){0};
}
