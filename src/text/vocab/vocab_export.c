/* vocab_export.c - writes a tokenizer into a GGUF file; see vocab_export.h.
 *
 *     tokenizer.json           GGUF (tokenizer.ggml.…)
 *     model.vocab              tokens, token_type
 *     model.merges             merges ("gpt2"), or scores ("llama")
 *     added_tokens             token_type: control or user-defined
 *     pre_tokenizer            pre: the name of its patterns ("llama": always "default")
 *     post_processor           add_bos_token, add_eos_token
 *     tokenizer_config.json    bos_token_id, eos_token_id, …, chat_template
 *
 * Scores ("llama" only): llama.cpp merges the pair whose token has the highest score.
 * tokenizer.json merges the pair with the lowest rank. So the score of a token is minus the rank of
 * the first merge that makes it. The order of merges is the same, because all merges that make one
 * token are neighbours in the list.
 *
 * Types: control and user-defined tokens are searched as whole texts. Ids without a token have the
 * type unused and the name [PADn], as llama.cpp's converter names them. */
#include "text/vocab/vocab_export.h"

#include <stdio.h>

#include "base/file/file.h"
#include "text/files/tokenizer_files.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/pre_tokenizer.h"

enum { LARGEST_FILE = 512 << 20, MAX_PATTERNS = 8, DEEPEST = 16 };
/* Values of tokenizer.ggml.token_type. */
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };
#define KEY(name) "tokenizer.ggml." name
#define LOW_LINE "\xe2\x96\x81" /* U+2581, SentencePiece's space */

typedef struct token {
    const char *text; /* NULL: the id has no token yet */
    size_t size;
    int32_t type;
    float score; /* written for "llama" only */
} token;

typedef struct exporter {
    nbl_context *ctx;
    nbl__arena *arena;
    const nbl__text_source *source;
    const char *where;                        /* tokenizer.json */
    const nbl__json *root, *model, *settings; /* tokenizer.json, its model, tokenizer_config.json (or NULL) */
    const nbl__json *map;    /* special_tokens_map.json; NULL: none, or added_tokens_decoder replaces it */
    const nbl__json *config; /* config.json, or NULL */
    token *tokens;           /* by id */
    int64_t size;            /* tokens of the model: rows of its embedding */
    nbl__gguf_writer *w;
    bool is_spm;                        /* SentencePiece BPE: the model is "llama", not "gpt2" */
    const char *patterns[MAX_PATTERNS]; /* the pre-tokenizer's patterns, in order */
    int pattern_count;
    bool byte_level; /* the pre-tokenizer has a ByteLevel step */
} exporter;

static bool is_text(const nbl__json *value, const char *text)
{
    return nbl__json_is(value, NBL_JSON_STRING) && strcmp(value->string, text) == 0;
}

static bool is_true(const nbl__json *value)
{
    return nbl__json_is(value, NBL_JSON_TRUE);
}

static nbl_status unsupported(const exporter *e, const char *what, const char *name)
{
    return nbl__fail(e->ctx, NBL_ERROR_UNSUPPORTED, "%s: %s \"%.80s\" has no form in GGUF", e->where, what,
                     name);
}

/* Reads a JSON file from the adapter's folder, or from the model's if the adapter's has none. Sets
 * *root to NULL if neither has it. */
static nbl_status read_json(exporter *e, const char *name, const char **path, const nbl__json **root)
{
    const char *folders[] = {e->source->adapter, e->source->folder};
    char *text, *kept;
    size_t size;
    *root = NULL;
    for (int i = folders[0] ? 0 : 1; i < 2; i++) {
        if ((*path = nbl__arena_printf(e->arena, "%s/%s", folders[i], name)) == NULL) return NBL_ERROR_MEMORY;
        if (nbl__exists(*path)) break;
    }
    if (!nbl__exists(*path)) return NBL_OK;
    NBL_TRY(nbl__file_read(e->ctx, *path, LARGEST_FILE, &text, &size));
    if ((kept = nbl__arena_alloc(e->arena, size + 1)) != NULL) memcpy(kept, text, size);
    nbl__free(e->ctx, text, size + 1);
    return kept ? nbl__json_parse(e->arena, *path, kept, size, NBL_JSON_SERDE, root) : NBL_ERROR_MEMORY;
}

/* ---- tokens ---- */

/* Reads the tokenizer as a tokenizer.json: the adapter's, or the model's if the adapter has none. Sets
 * e->root to NULL if neither has one. */
static nbl_status read_tokenizer(exporter *e)
{
    const char *folders[] = {e->source->adapter, e->source->folder}, *path = NULL;
    for (int i = 0; i < 2 && path == NULL; i++)
        if (folders[i]) NBL_TRY(nbl__tokenizer_find(e->arena, folders[i], &path));
    if (path == NULL) {
        e->where = nbl__arena_printf(e->arena, "%s/tokenizer.json", e->source->folder);
        return e->where ? NBL_OK : NBL_ERROR_MEMORY;
    }
    e->where = path;
    nbl__text json = {.ctx = e->ctx};
    nbl_status status = nbl__tokenizer_text(e->ctx, path, &json);
    if (status == NBL_OK)
        status = nbl__json_parse(e->arena, path, json.text, json.size, NBL_JSON_SERDE, &e->root);
    nbl__text_free(&json);
    return status;
}

/* Sets the token of an id. The score of an earlier token of that id stays. */
static nbl_status set_token(exporter *e, const nbl__json *id, const char *text, size_t size, int32_t type)
{
    int64_t at;
    NBL_CHECK(e->ctx, nbl__json_natural(id, &at), NBL_ERROR_FORMAT, "%s: the id of token \"%.80s\" is none",
              e->where, text);
    NBL_CHECK(e->ctx, at < e->size, NBL_ERROR_UNSUPPORTED,
              "%s: token \"%.80s\" has the id %" PRId64 ", the model has %" PRId64 " tokens only", e->where,
              text, at, e->size);
    float score = e->tokens[at].text ? e->tokens[at].score : -1e9f; /* no merge makes it */
    e->tokens[at] = (token){text, size, type, score};
    return NBL_OK;
}

/* True for byte tokens such as "<0xE3>". */
static bool is_byte(const char *text, size_t size)
{
    static const char digits[] = "0123456789ABCDEFabcdef";
    return size == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>' && strchr(digits, text[3]) &&
           strchr(digits, text[4]);
}

/* Sets the tokens of the model's vocabulary. In SentencePiece the byte tokens have a type of their
 * own. */
static nbl_status read_vocabulary(exporter *e)
{
    const nbl__json *vocab = nbl__json_get(e->model, "vocab");
    NBL_CHECK(e->ctx, nbl__json_is(vocab, NBL_JSON_OBJECT), NBL_ERROR_FORMAT,
              "%s: the model has no \"vocab\"", e->where);
    for (int64_t i = 0; i < vocab->count; i++) {
        const nbl__json *it = &vocab->items[i];
        bool byte = e->is_spm && is_byte(it->key, it->key_size);
        bool unknown = is_text(nbl__json_get(e->model, "unk_token"), it->key);
        NBL_TRY(set_token(e, it, it->key, it->key_size, byte ? BYTE : unknown ? UNKNOWN : NORMAL));
    }
    return NBL_OK;
}

/* True for control tokens that some models do not mark as special. The list is that of llama.cpp's
 * converter. */
static bool looks_special(const char *text, size_t size)
{
    static const char *const known[] = {"<pad>", "<mask>", "<2mass>", "[@BOS@]"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(text, known[i]) == 0) return true;
    bool framed = size >= 4 && memcmp(text, "<|", 2) == 0 && memcmp(text + size - 2, "|>", 2) == 0;
    return framed || (strncmp(text, "<unused", 7) == 0 && text[size - 1] == '>');
}

/* Replaces U+2581 by a space in the text of a user-defined token. llama.cpp searches these tokens
 * before it turns spaces into U+2581. */
static nbl_status with_spaces(exporter *e, const char **text, size_t *size)
{
    char *copy = nbl__arena_alloc(e->arena, *size + 1), *to = copy;
    if (copy == NULL) return NBL_ERROR_MEMORY;
    for (size_t i = 0; i < *size;) {
        bool space = *size - i >= 3 && memcmp(*text + i, LOW_LINE, 3) == 0;
        *to++ = space ? ' ' : (*text)[i];
        i += space ? 3 : 1;
    }
    *text = copy;
    *size = (size_t)(to - copy);
    return NBL_OK;
}

/* Sets the types of added tokens. An id that the vocabulary has too keeps its score, and the type
 * unknown. */
static nbl_status read_added(exporter *e)
{
    const nbl__json *added = nbl__json_get(e->root, "added_tokens");
    for (int64_t i = 0; nbl__json_is(added, NBL_JSON_ARRAY) && i < added->count; i++) {
        const nbl__json *it = &added->items[i], *content = nbl__json_get(it, "content");
        int64_t id;
        if (!nbl__json_is(content, NBL_JSON_STRING)) continue;
        const char *text = content->string;
        size_t size = (size_t)content->count;
        bool control = is_true(nbl__json_get(it, "special")) || looks_special(text, size);
        bool unknown = nbl__json_natural(nbl__json_get(it, "id"), &id) && id < e->size &&
                       e->tokens[id].type == UNKNOWN;
        if (!control && e->is_spm) NBL_TRY(with_spaces(e, &text, &size));
        NBL_TRY(set_token(e, nbl__json_get(it, "id"), text, size,
                          unknown   ? UNKNOWN
                          : control ? CONTROL
                                    : USER_DEFINED));
    }
    return NBL_OK;
}

/* Gives each id without a token a name and the type unused. */
static nbl_status pad_tokens(exporter *e)
{
    for (int64_t i = 0; i < e->size; i++) {
        if (e->tokens[i].text) continue;
        const char *name = nbl__arena_printf(e->arena, "[PAD%" PRId64 "]", i);
        if (name == NULL) return NBL_ERROR_MEMORY;
        e->tokens[i] = (token){name, strlen(name), UNUSED, -1e9f};
    }
    return NBL_OK;
}

/* ---- merges ---- */

/* Splits a merge into its two texts. A merge is "a b" or ["a", "b"]. */
static bool merge_parts(const nbl__json *merge, nbl_string parts[2])
{
    if (nbl__json_is(merge, NBL_JSON_STRING)) {
        const char *space = merge->count > 1 ? memchr(merge->string + 1, ' ', (size_t)merge->count - 1)
                                             : NULL;
        if (space == NULL) return false;
        parts[0] = (nbl_string){merge->string, (size_t)(space - merge->string)};
        parts[1] = (nbl_string){space + 1, (size_t)merge->count - parts[0].size - 1};
        return true;
    }
    if (!nbl__json_is(merge, NBL_JSON_ARRAY) || merge->count != 2) return false;
    for (int i = 0; i < 2; i++) {
        if (!nbl__json_is(&merge->items[i], NBL_JSON_STRING)) return false;
        parts[i] = (nbl_string){merge->items[i].string, (size_t)merge->items[i].count};
    }
    return true;
}

/* Appends a text of a merge. A space would end the text, so it is written as U+0120, its byte-level
 * character. llama.cpp's converter does the same. */
static void add_part(nbl__text *line, nbl_string part)
{
    for (size_t i = 0; i < part.size; i++) {
        bool space = part.text[i] == ' ';
        nbl__text_add(line, space ? "\xc4\xa0" : part.text + i, space ? 2 : 1);
    }
}

/* Writes one merge as "left right". */
static nbl_status put_merge(exporter *e, nbl__text *line, const nbl_string parts[2])
{
    line->size = 0;
    add_part(line, parts[0]);
    nbl__text_add(line, " ", 1);
    add_part(line, parts[1]);
    NBL_TRY(line->status);
    nbl__gguf_add_text(e->w, line->text, line->size);
    return NBL_OK;
}

/* Sets the score of the token that a merge makes: the highest -rank of all its merges. */
static nbl_status score_merge(exporter *e, nbl__text *line, const nbl_string parts[2], int64_t rank)
{
    int64_t id;
    line->size = 0;
    nbl__text_add(line, parts[0].text, parts[0].size);
    nbl__text_add(line, parts[1].text, parts[1].size);
    NBL_TRY(line->status);
    const nbl__json *made = nbl__json_get(nbl__json_get(e->model, "vocab"), line->text);
    NBL_CHECK(e->ctx, nbl__json_natural(made, &id) && id < e->size, NBL_ERROR_FORMAT,
              "%s: merge %" PRId64 " makes a token that is not in the vocabulary", e->where, rank);
    if (e->tokens[id].score < (float)-rank) e->tokens[id].score = (float)-rank;
    return NBL_OK;
}

/* Writes or scores all merges in order. `line` is scratch for one merge. */
static nbl_status each_merge(exporter *e, const nbl__json *merges)
{
    nbl__text line = {.ctx = e->ctx};
    nbl_status status = NBL_OK;
    for (int64_t i = 0; i < merges->count && status == NBL_OK; i++) {
        nbl_string parts[2];
        if (!merge_parts(&merges->items[i], parts))
            status = nbl__fail(e->ctx, NBL_ERROR_FORMAT, "%s: merge %" PRId64 " is not two texts", e->where,
                               i);
        else status = e->is_spm ? score_merge(e, &line, parts, i) : put_merge(e, &line, parts);
    }
    nbl__text_free(&line);
    return status;
}

static nbl_status read_merges(exporter *e)
{
    const nbl__json *merges = nbl__json_get(e->model, "merges");
    NBL_CHECK(e->ctx, nbl__json_is(merges, NBL_JSON_ARRAY), NBL_ERROR_FORMAT,
              "%s: the model has no \"merges\"", e->where);
    if (!e->is_spm) nbl__gguf_put_array(e->w, KEY("merges"), NBL_GGUF_STRING, (uint64_t)merges->count);
    return each_merge(e, merges);
}

/* ---- pre-tokenizer and normalizer ---- */

/* Appends a pattern of the pre-tokenizer. GGUF has names only for short lists. */
static nbl_status add_pattern(exporter *e, const char *pattern)
{
    NBL_CHECK(e->ctx, e->pattern_count < MAX_PATTERNS, NBL_ERROR_UNSUPPORTED,
              "%s: the pre-tokenizer has more steps than any that GGUF has a name for", e->where);
    e->patterns[e->pattern_count++] = pattern;
    return NBL_OK;
}

/* Collects the patterns of a pre-tokenizer step, as regular expressions. A Split that removes what
 * does not match equals one that isolates its matches, if every character matches. */
static nbl_status read_step(exporter *e, const nbl__json *step, int depth)
{
    const char *type = nbl__json_text(step, "type");
    if (step == NULL || step->type == NBL_JSON_NULL) return NBL_OK;
    NBL_CHECK(e->ctx, type && depth < DEEPEST, NBL_ERROR_FORMAT, "%s: a pre-tokenizer without a type",
              e->where);
    if (strcmp(type, "Sequence") == 0) {
        const nbl__json *steps = nbl__json_get(step, "pretokenizers");
        for (int64_t i = 0; nbl__json_is(steps, NBL_JSON_ARRAY) && i < steps->count; i++)
            NBL_TRY(read_step(e, &steps->items[i], depth + 1));
        return NBL_OK;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        e->byte_level = true;
        if (is_true(nbl__json_get(step, "add_prefix_space")))
            return unsupported(e, "the pre-tokenizer's option", "add_prefix_space");
        const nbl__json *regex = nbl__json_get(step, "use_regex");
        return regex == NULL || is_true(regex) ? add_pattern(e, NBL_GPT2_PATTERN) : NBL_OK;
    }
    if (strcmp(type, "Digits") == 0)
        return add_pattern(e, is_true(nbl__json_get(step, "individual_digits")) ? "\\p{N}" : "\\p{N}+");
    const nbl__json *pattern = nbl__json_get(nbl__json_get(step, "pattern"), "Regex");
    const nbl__json *behavior = nbl__json_get(step, "behavior");
    bool inverted = is_true(nbl__json_get(step, "invert"));
    bool splits = strcmp(type, "Split") == 0 && nbl__json_is(pattern, NBL_JSON_STRING) &&
                  (inverted ? is_text(behavior, "Removed") : is_text(behavior, "Isolated"));
    if (splits) return add_pattern(e, pattern->string);
    return e->is_spm ? NBL_OK : unsupported(e, "the pre-tokenizer", type);
}

/* True if a step puts SentencePiece's space in front of a text: the normalizer Prepend, or
 * Metaspace. */
static bool adds_prefix(const nbl__json *step, int depth)
{
    const char *type = nbl__json_text(step, "type");
    if (type == NULL || depth >= DEEPEST) return false;
    if (strcmp(type, "Prepend") == 0) return true;
    if (strcmp(type, "Metaspace") == 0) {
        const nbl__json *scheme = nbl__json_get(step, "prepend_scheme");
        if (scheme) return !is_text(scheme, "never");
        return !nbl__json_is(nbl__json_get(step, "add_prefix_space"), NBL_JSON_FALSE);
    }
    bool found = false;
    const nbl__json *lists[] = {nbl__json_get(step, "normalizers"), nbl__json_get(step, "pretokenizers")};
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; nbl__json_is(lists[k], NBL_JSON_ARRAY) && i < lists[k]->count; i++)
            found |= adds_prefix(&lists[k]->items[i], depth + 1);
    return found;
}

/* ---- special tokens ---- */

/* Returns the text that special_tokens_map.json or tokenizer_config.json has for a role such as
 * "bos_token", or NULL. The
 * value is a text, or an object with the text under "content". */
static const char *role_text(const exporter *e, const char *role)
{
    const nbl__json *value = nbl__json_get(e->map, role);
    if (value == NULL) value = nbl__json_get(e->settings, role);
    if (nbl__json_is(value, NBL_JSON_OBJECT)) value = nbl__json_get(value, "content");
    return nbl__json_is(value, NBL_JSON_STRING) ? value->string : NULL;
}

/* The id of a text among all tokens; -1: none. Linear, for a few roles. */
static int64_t find_token(const exporter *e, const char *text)
{
    for (int64_t i = 0; text && i < e->size; i++)
        if (e->tokens[i].type != UNUSED && strcmp(e->tokens[i].text, text) == 0) return i;
    return -1;
}

/* Returns the id of a role, or -1. tokenizer_config.json comes first, then config.json, whose value
 * is a number or a list; of a list the first counts. */
static int64_t role_id(const exporter *e, const char *role)
{
    char key[32];
    int64_t id = find_token(e, role_text(e, role));
    if (id >= 0) return id;
    (void)snprintf(key, sizeof key, "%s_id", role);
    const nbl__json *value = nbl__config_find(e->config, key);
    if (nbl__json_is(value, NBL_JSON_ARRAY) && value->count) value = &value->items[0];
    return nbl__json_natural(value, &id) && id < e->size ? id : -1;
}

/* Returns 1 if the post-processor's template for one text begins (or ends) with a special token, 0
 * if not, and -1 if there is no template. */
static int frames(const nbl__json *step, bool begins, int depth)
{
    const char *type = nbl__json_text(step, "type");
    if (type == NULL || depth >= DEEPEST) return -1;
    const nbl__json *list = nbl__json_get(step, "processors"), *single = nbl__json_get(step, "single");
    int found = -1;
    for (int64_t i = 0; nbl__json_is(list, NBL_JSON_ARRAY) && i < list->count; i++) {
        int here = frames(&list->items[i], begins, depth + 1);
        if (here >= 0) found = here;
    }
    if (strcmp(type, "TemplateProcessing") == 0 && nbl__json_is(single, NBL_JSON_ARRAY) && single->count)
        found = nbl__json_get(&single->items[begins ? 0 : single->count - 1], "SpecialToken") != NULL;
    return found;
}

/* Writes add_bos_token or add_eos_token. The post-processor decides; without a template
 * tokenizer_config.json does. */
static bool put_frame(exporter *e, const char *key, const char *setting, bool begins, bool exists)
{
    int added = frames(nbl__json_get(e->root, "post_processor"), begins, 0);
    if (added < 0) added = is_true(nbl__json_get(e->settings, setting));
    nbl__gguf_put_bool(e->w, key, added && exists);
    return added && exists;
}

/* Writes the ids of the roles, and whether BOS and EOS are added to a text. */
static void put_specials(exporter *e, nbl__exported_vocab *exported)
{
    static const struct {
        const char *role, *key;
    } roles[] = {{"bos_token", KEY("bos_token_id")},
                 {"eos_token", KEY("eos_token_id")},
                 {"unk_token", KEY("unknown_token_id")},
                 {"pad_token", KEY("padding_token_id")}};
    int64_t ids[4];
    for (int i = 0; i < 4; i++) {
        ids[i] = role_id(e, roles[i].role);
        if (i == 2 && ids[i] < 0) ids[i] = find_token(e, nbl__json_text(e->model, "unk_token"));
        if (ids[i] >= 0) nbl__gguf_put_u32(e->w, roles[i].key, (uint32_t)ids[i]);
    }
    exported->bos = ids[0] >= 0 ? e->tokens[ids[0]].text : NULL;
    exported->eos = ids[1] >= 0 ? e->tokens[ids[1]].text : NULL;
    exported->adds_bos = put_frame(e, KEY("add_bos_token"), "add_bos_token", true, ids[0] >= 0);
    put_frame(e, KEY("add_eos_token"), "add_eos_token", false, ids[1] >= 0);
}

/* ---- writing ---- */

/* Writes tokens, scores and types: three arrays of one entry per id. */
static void put_tokens(exporter *e)
{
    nbl__gguf_put_array(e->w, KEY("tokens"), NBL_GGUF_STRING, (uint64_t)e->size);
    for (int64_t i = 0; i < e->size; i++) nbl__gguf_add_text(e->w, e->tokens[i].text, e->tokens[i].size);
    if (e->is_spm) {
        nbl__gguf_put_array(e->w, KEY("scores"), NBL_GGUF_F32, (uint64_t)e->size);
        for (int64_t i = 0; i < e->size; i++) nbl__gguf_add(e->w, &e->tokens[i].score, sizeof(float));
    }
    nbl__gguf_put_array(e->w, KEY("token_type"), NBL_GGUF_I32, (uint64_t)e->size);
    for (int64_t i = 0; i < e->size; i++) nbl__gguf_add(e->w, &e->tokens[i].type, sizeof(int32_t));
}

/* Decides between "llama" and "gpt2", and writes the model and the pre-tokenizer. */
static nbl_status put_kind(exporter *e)
{
    char name[NBL_PRE_NAME] = "default";
    e->is_spm = is_true(nbl__json_get(e->model, "byte_fallback"));
    NBL_TRY(read_step(e, nbl__json_get(e->root, "pre_tokenizer"), 0));
    if (e->byte_level) e->is_spm = false;
    NBL_CHECK(e->ctx, e->is_spm || e->byte_level, NBL_ERROR_UNSUPPORTED,
              "%s: BPE that is neither byte-level nor falls back to bytes has no form in GGUF", e->where);
    if (!e->is_spm && !nbl__gguf_pre_name(e->patterns, e->pattern_count, name))
        return unsupported(e, "a pre-tokenizer that splits by",
                           e->pattern_count ? e->patterns[0] : "nothing but bytes");
    const char *model = e->is_spm ? "llama" : "gpt2";
    nbl__gguf_put_text(e->w, KEY("model"), model, strlen(model));
    nbl__gguf_put_text(e->w, KEY("pre"), name, strlen(name));
    return NBL_OK;
}

/* Writes the chat template: the one in source->changes, else the adapter's, else the model's. Only
 * the template named "default" is written. */
static nbl_status put_template(exporter *e, nbl__exported_vocab *exported)
{
    nbl_chat_template *t;
    bool adapted = false;
    if (e->source->changes.chat_template.text) {
        exported->chat_template = e->source->changes.chat_template;
        nbl__gguf_put_text(e->w, "tokenizer.chat_template", exported->chat_template.text,
                           exported->chat_template.size);
        return NBL_OK;
    }
    if (e->source->adapter) NBL_TRY(nbl__has_template(e->ctx, e->source->adapter, &adapted));
    NBL_TRY(nbl_chat_template_open(e->ctx, adapted ? e->source->adapter : e->source->folder, NULL, &t));
    nbl_status status = NBL_OK;
    for (int i = 0; i < t->count && status == NBL_OK; i++) {
        if (strcmp(t->sources[i].name, "default") != 0) continue;
        nbl_string text = t->sources[i].text;
        char *copy = nbl__arena_alloc(e->arena, text.size + 1);
        if (copy == NULL) {
            status = NBL_ERROR_MEMORY;
            continue;
        }
        if (text.size) memcpy(copy, text.text, text.size);
        exported->chat_template = (nbl_string){copy, text.size};
        nbl__gguf_put_text(e->w, "tokenizer.chat_template", text.text, text.size);
    }
    nbl_chat_template_close(t);
    return status;
}

/* The order is that of the dependencies: the kind decides how the vocabulary is read, added tokens
 * replace entries of the vocabulary, and the roles are looked up in the finished list. */
static nbl_status export_tokens(exporter *e, nbl__exported_vocab *exported)
{
    const char *type = nbl__json_text(e->model, "type");
    if (type && strcmp(type, "BPE") != 0) return unsupported(e, "the tokenizer model", type);
    e->tokens = nbl__arena_alloc(e->arena, (size_t)e->size * sizeof *e->tokens);
    if (e->tokens == NULL) return NBL_ERROR_MEMORY;
    NBL_TRY(put_kind(e));
    NBL_TRY(read_vocabulary(e));
    NBL_TRY(read_merges(e));
    NBL_TRY(read_added(e));
    NBL_TRY(pad_tokens(e));
    put_tokens(e);
    put_specials(e, exported);
    if (e->is_spm) {
        bool prefix = adds_prefix(nbl__json_get(e->root, "normalizer"), 0) ||
                      adds_prefix(nbl__json_get(e->root, "pre_tokenizer"), 0);
        nbl__gguf_put_bool(e->w, KEY("add_space_prefix"), prefix);
    }
    return NBL_OK;
}

nbl_status nbl__vocab_export_text(nbl__arena *arena, const char *where, nbl_string text, int64_t size,
                                  nbl__gguf_writer *w, nbl__exported_vocab *exported)
{
    exporter e = {.ctx = arena->ctx, .arena = arena, .where = where, .size = size, .w = w};
    *exported = (nbl__exported_vocab){0};
    NBL_TRY(nbl__json_parse(arena, where, text.text, text.size, NBL_JSON_SERDE, &e.root));
    e.model = nbl__json_get(e.root, "model");
    return export_tokens(&e, exported);
}

nbl_status nbl__vocab_export(nbl__arena *arena, const nbl__text_source *source, const nbl__json *config,
                             int64_t size, nbl__gguf_writer *w, nbl__exported_vocab *exported)
{
    exporter e = {
        .ctx = arena->ctx, .arena = arena, .source = source, .config = config, .size = size, .w = w};
    *exported = (nbl__exported_vocab){0};
    const char *unused;
    NBL_TRY(read_tokenizer(&e));
    NBL_TRY(read_json(&e, "tokenizer_config.json", &unused, &e.settings));
    if (nbl__json_get(e.settings, "added_tokens_decoder") == NULL)
        NBL_TRY(read_json(&e, "special_tokens_map.json", &unused, &e.map));
    if (e.root == NULL) {
        nbl__log(e.ctx, NBL_LOG_WARNING, "%s: no such file; the GGUF file has no vocabulary", e.where);
        nbl__gguf_put_text(w, KEY("model"), "no_vocab", 8);
        return NBL_OK;
    }
    e.model = nbl__json_get(e.root, "model");
    NBL_TRY(export_tokens(&e, exported));
    return put_template(&e, exported);
}
