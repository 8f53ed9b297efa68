/* tokenizer_builder.c - writes the text of a tokenizer.json; see tokenizer_builder.h. */
#include "text/files/tokenizer_builder.h"

#include <stdlib.h>

#include "text/chars.h"

nbl_status nbl__builder_open(nbl__tokenizer_builder *b, int64_t count)
{
    NBL_CHECK(b->ctx, count < INT32_MAX / 2, NBL_ERROR_UNSUPPORTED, "%s: too many tokens", b->where);
    return nbl__vocab_open(b->ctx, &b->vocab, (size_t)count);
}

void nbl__builder_close(nbl__tokenizer_builder *b)
{
    nbl__vocab_close(&b->vocab);
    nbl__vocab_close(&b->added);
}

/* ---- writing ---- */

void nbl__builder_put_string(nbl__tokenizer_builder *b, nbl__slice text)
{
    nbl__json_style style = {0};
    nbl__json_writer w = nbl__json_to_text(b->out, &style);
    (void)nbl__json_string(&w, text.text, text.size); /* out->status has a failure */
}

void nbl__builder_put_vocab(nbl__tokenizer_builder *b)
{
    const char *comma = "";
    nbl__text_printf(b->out, "{");
    for (size_t i = 0; i < b->vocab.count; i++) {
        const nbl__token *token = &b->vocab.tokens[i];
        if (nbl__vocab_index(&b->vocab, token->text, token->size) != (int64_t)i) continue; /* replaced */
        nbl__text_printf(b->out, "%s", comma);
        nbl__builder_put_string(b, (nbl__slice){token->text, token->size});
        nbl__text_printf(b->out, ":%d", token->id);
        comma = ",";
        b->size++;
    }
    nbl__text_printf(b->out, "}");
}

void nbl__builder_put_split(nbl__tokenizer_builder *b, const char *pattern, bool prefix_space)
{
    nbl__text_printf(b->out,
                     ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
                     "\"pattern\":{\"Regex\":");
    nbl__text_json(b->out, pattern);
    nbl__text_printf(b->out,
                     "},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
                     "\"add_prefix_space\":%s,\"trim_offsets\":true,\"use_regex\":false}]}",
                     prefix_space ? "true" : "false");
}

/* ---- merges ---- */

/* A way to make a token: its first `at` bytes and the rest. */
typedef struct split {
    int32_t left, right;
    uint32_t at;
} split;

static int token_by_id(const void *a, const void *b)
{
    int32_t x = (*(const nbl__token *const *)a)->id, y = (*(const nbl__token *const *)b)->id;
    return (x > y) - (x < y);
}

/* Finds the splits of a token, in the order asked for. Returns how many there are. */
static int find_splits(const nbl__vocab *vocab, const nbl__token *token, nbl__merge_order order,
                       const bool *gone, split *splits)
{
    int count = 0;
    if (token->size == 0) return 0;
    for (uint32_t at = 0; (at += (uint32_t)nbl__char_length(token->text + at)) < token->size;) {
        split now = {.at = at};
        if ((now.left = nbl__vocab_find(vocab, token->text, at)) < 0) continue;
        if ((now.right = nbl__vocab_find(vocab, token->text + at, token->size - at)) < 0) continue;
        if (gone && (gone[now.left] || gone[now.right])) continue;
        int k = count++;
        for (; order == NBL_MERGES_BY_RANK && k > 0; k--) {
            const split *before = &splits[k - 1];
            if (before->left < now.left || (before->left == now.left && before->right <= now.right)) break;
            splits[k] = *before;
        }
        splits[k] = now;
    }
    return count;
}

nbl_status nbl__builder_put_merges(nbl__tokenizer_builder *b, const nbl__vocab *vocab, nbl__merge_order order,
                                   const bool *gone)
{
    enum { MAX_MERGES = 1 << 23 }; /* twenty times those of the largest vocabularies */
    const nbl__token **tokens;
    split splits[NBL_LONGEST_TOKEN];
    int64_t merges = 0;
    const char *comma = "";
    size_t count = 0;
    NBL_TRY(NBL_ALLOC(b->ctx, tokens, vocab->count));
    for (size_t i = 0; i < vocab->count; i++) {
        const nbl__token *token = &vocab->tokens[i];
        if (nbl__vocab_index(vocab, token->text, token->size) == (int64_t)i) tokens[count++] = token;
    }
    if (count) qsort(tokens, count, sizeof *tokens, token_by_id);
    nbl__text_printf(b->out, ",\"merges\":[");
    nbl_status status = NBL_OK;
    for (size_t i = 0; i < count && status == NBL_OK; i++) {
        const nbl__token *token = tokens[i];
        if (token->size > NBL_LONGEST_TOKEN)
            status = nbl__fail(b->ctx, NBL_ERROR_UNSUPPORTED, "%s: token %d has more than %d bytes", b->where,
                               token->id, NBL_LONGEST_TOKEN);
        int found = status != NBL_OK || (gone && gone[token->id])
                        ? 0
                        : find_splits(vocab, token, order, gone, splits);
        merges += found;
        if (merges > MAX_MERGES || b->out->size > (size_t)1 << 30)
            status = nbl__fail(b->ctx, NBL_ERROR_UNSUPPORTED,
                               "%s: token %d: more than %d merges follow from this vocabulary", b->where,
                               token->id, MAX_MERGES);
        for (int k = 0; k < found && status == NBL_OK; k++) {
            nbl__text_printf(b->out, "%s[", comma);
            nbl__builder_put_string(b, (nbl__slice){token->text, splits[k].at});
            nbl__text_add(b->out, ",", 1);
            nbl__builder_put_string(b, (nbl__slice){token->text + splits[k].at, token->size - splits[k].at});
            nbl__text_add(b->out, "]", 1);
            comma = ",";
        }
    }
    nbl__text_add(b->out, "]", 1);
    nbl__free(b->ctx, tokens, vocab->count * sizeof *tokens);
    return status;
}

/* ---- added tokens ---- */

nbl_status nbl__builder_reserve(nbl__tokenizer_builder *b, int64_t count)
{
    const nbl__tokenizer_settings *s = &b->settings;
    count += NBL_ROLES + s->decoder.count + s->named.count + s->extra.count + b->extra.count;
    b->entries = nbl__arena_alloc(b->arena, (size_t)count * sizeof *b->entries);
    return b->entries ? nbl__vocab_open(b->ctx, &b->added, (size_t)count) : NBL_ERROR_MEMORY;
}

void nbl__builder_add(nbl__tokenizer_builder *b, const nbl__added_entry *entry)
{
    nbl__slice text = entry->text;
    if (text.size == 0) return;
    int64_t index = nbl__vocab_index(&b->added, text.text, text.size);
    int64_t id = index >= 0 ? b->entries[index].id : nbl__vocab_find(&b->vocab, text.text, text.size);
    if (index < 0) {
        index = (int64_t)b->added.count;
        if (id < 0) id = b->max_added >= b->size ? b->max_added + 1 : b->size;
        if (id > b->max_added) b->max_added = id;
        nbl__vocab_add(&b->added, text.text, text.size, (int32_t)index);
    }
    bool special = entry->special || b->entries[index].special; /* once special, it stays so */
    b->entries[index] = *entry;
    b->entries[index].special = special;
    b->entries[index].id = id;
}

/* True if a role, of every model or of this one, has this text. */
static bool is_role(const nbl__tokenizer_settings *s, nbl__slice text)
{
    bool found = false;
    for (int i = 0; i < NBL_ROLES; i++) found |= nbl__same_text(s->roles[i].text, text);
    for (int64_t i = 0; i < s->named.count; i++) found |= nbl__same_text(s->named.items[i].text, text);
    return found;
}

/* Adds tokens of roles or of a list, except those that are there already. `known`: as many entries
 * were there before the first of these lists. */
static void add_missing(nbl__tokenizer_builder *b, const nbl__added_entry *items, int64_t count,
                        int64_t known)
{
    for (int64_t i = 0; i < count; i++) {
        nbl__added_entry entry = items[i];
        int64_t index = nbl__vocab_index(&b->added, entry.text.text ? entry.text.text : "", entry.text.size);
        if (index >= 0 && index < known) continue;
        entry.special |= is_role(&b->settings, entry.text);
        nbl__builder_add(b, &entry);
    }
}

/* The special tokens once more, without their flags (Qwen 2), or with them (Cohere). */
static void add_again(nbl__tokenizer_builder *b, const nbl__added_entry *items, int64_t count, bool plain)
{
    for (int64_t i = 0; i < count; i++) {
        nbl__added_entry entry = plain ? nbl__special_entry(items[i].text) : items[i];
        entry.special = true;
        nbl__builder_add(b, &entry);
    }
}

/* Adds the tokens of the settings in transformers' order. */
static void add_settings(nbl__tokenizer_builder *b)
{
    const nbl__tokenizer_settings *s = &b->settings;
    const nbl__entry_list *extra = s->has_extra || b->extra.count == 0 ? &s->extra : &b->extra;
    for (int64_t i = 0; i < s->decoder.count; i++) {
        nbl__added_entry entry = s->decoder.items[i];
        entry.special |= is_role(s, entry.text);
        nbl__builder_add(b, &entry);
    }
    int64_t known = (int64_t)b->added.count;
    add_missing(b, s->roles, NBL_ROLES, known);
    add_missing(b, s->named.items, s->named.count, known);
    add_missing(b, extra->items, extra->count, known);
    if (b->class != NBL_TOKENIZER_QWEN2 && b->class != NBL_TOKENIZER_COHERE) return;
    bool plain = b->class == NBL_TOKENIZER_QWEN2;
    add_again(b, s->roles, NBL_ROLES, plain);
    add_again(b, s->named.items, s->named.count, plain);
    add_again(b, extra->items, extra->count, plain);
}

static int entry_by_id(const void *a, const void *b)
{
    int64_t x = ((const nbl__added_entry *)a)->id, y = ((const nbl__added_entry *)b)->id;
    return (x > y) - (x < y);
}

static const char *truth(bool value)
{
    return value ? "true" : "false";
}

/* Writes "added_tokens", by id. */
static void put_added(nbl__tokenizer_builder *b)
{
    if (b->added.count) qsort(b->entries, b->added.count, sizeof *b->entries, entry_by_id);
    nbl__text_printf(b->out, ",\"added_tokens\":[");
    for (size_t i = 0; i < b->added.count; i++) {
        const nbl__added_entry *e = &b->entries[i];
        nbl__text_printf(b->out, "%s{\"id\":%" PRId64 ",\"content\":", i ? "," : "", e->id);
        nbl__builder_put_string(b, e->text);
        nbl__text_printf(b->out,
                         ",\"single_word\":%s,\"lstrip\":%s,\"rstrip\":%s,\"normalized\":%s,\"special\":%s}",
                         truth(e->single_word), truth(e->lstrip), truth(e->rstrip), truth(e->normalized),
                         truth(e->special));
    }
    nbl__text_add(b->out, "]", 1);
}

/* ---- the post-processor ---- */

/* Writes an item of a template: a special token, or the sequence named by `name`. */
static void put_item(nbl__tokenizer_builder *b, bool *first, const nbl__added_entry *token, const char *name,
                     int type)
{
    nbl__text_printf(b->out, "%s{\"%s\":{\"id\":", *first ? "" : ",", token ? "SpecialToken" : "Sequence");
    nbl__builder_put_string(b, token ? token->text : (nbl__slice){name, 1});
    nbl__text_printf(b->out, ",\"type_id\":%d}}", type);
    *first = false;
}

/* Writes one text of a template with its frame. */
static void put_sequence(nbl__tokenizer_builder *b, bool *first, const nbl__added_entry *bos,
                         const nbl__added_entry *eos, const char *name, int type)
{
    if (bos) put_item(b, first, bos, NULL, type);
    put_item(b, first, NULL, name, type);
    if (eos) put_item(b, first, eos, NULL, type);
}

/* Writes a template that puts `bos` and `eos` (NULL: nothing) around each text. T5's has the type 0
 * for both texts of a pair. */
static void put_template(nbl__tokenizer_builder *b, const nbl__added_entry *bos, const nbl__added_entry *eos,
                         int second)
{
    bool first = true;
    nbl__text_printf(b->out, "{\"type\":\"TemplateProcessing\",\"single\":[");
    put_sequence(b, &first, bos, eos, "A", 0);
    nbl__text_printf(b->out, "],\"pair\":[");
    first = true;
    put_sequence(b, &first, bos, eos, "A", 0);
    put_sequence(b, &first, bos, eos, "B", second);
    nbl__text_printf(b->out, "],\"special_tokens\":{");
    const nbl__added_entry *tokens[] = {bos, eos};
    bool same = bos && eos && bos->id == eos->id;
    for (int i = 0; i < (same ? 1 : 2); i++) {
        if (tokens[i] == NULL) continue;
        nbl__text_printf(b->out, "%s", i && bos ? "," : "");
        nbl__builder_put_string(b, tokens[i]->text);
        nbl__text_printf(b->out, ":{\"id\":");
        nbl__builder_put_string(b, tokens[i]->text);
        nbl__text_printf(b->out, ",\"ids\":[%" PRId64 "],\"tokens\":[", tokens[i]->id);
        nbl__builder_put_string(b, tokens[i]->text);
        nbl__text_printf(b->out, "]}");
    }
    nbl__text_printf(b->out, "}}");
}

/* The added token of a role; NULL: the model has no such role. */
static const nbl__added_entry *role_token(const nbl__tokenizer_builder *b, nbl__token_role role)
{
    nbl__slice text = b->settings.roles[role].text;
    int64_t index = text.size ? nbl__vocab_index(&b->added, text.text, text.size) : -1;
    return index >= 0 ? &b->entries[index] : NULL;
}

/* Writes "post_processor". That of the form counts unless a setting says whether BOS or EOS is put
 * around a text. */
static void put_post_processor(nbl__tokenizer_builder *b)
{
    const nbl__json *config = b->settings.config;
    bool said = nbl__json_get(config, "add_bos_token") || nbl__json_get(config, "add_eos_token");
    nbl__text_printf(b->out, ",\"post_processor\":");
    if (b->class == NBL_TOKENIZER_T5) {
        put_template(b, NULL, role_token(b, NBL_ROLE_EOS), 0);
    } else if (b->post_processor && !said) {
        nbl__text_printf(b->out, "%s", b->post_processor);
    } else {
        bool bos = nbl__settings_flag(&b->settings, "add_bos_token", false),
             eos = nbl__settings_flag(&b->settings, "add_eos_token", false);
        put_template(b, bos ? role_token(b, NBL_ROLE_BOS) : NULL, eos ? role_token(b, NBL_ROLE_EOS) : NULL,
                     1);
    }
}

nbl_status nbl__builder_finish(nbl__tokenizer_builder *b)
{
    if (b->entries == NULL) NBL_TRY(nbl__builder_reserve(b, 0));
    add_settings(b);
    put_post_processor(b); /* before put_added, which sorts the entries */
    put_added(b);
    nbl__text_add(b->out, "}", 1);
    return b->out->status;
}
