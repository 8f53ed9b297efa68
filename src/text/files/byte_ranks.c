/* byte_ranks.c - vocabularies of bytes with ranks: tekken.json and tiktoken's lines.
 *
 *     tekken.json        {"config": {"pattern", "default_vocab_size", "default_num_special_tokens"},
 *                         "vocab": [{"token_bytes": base64}, …], "special_tokens": [{"rank", "token_str"}, …]}
 *     tokenizer.model    "IQ== 0" and so on, one token per line
 *
 * A token is a list of bytes; its rank is its priority. The model merges the two neighbours whose
 * union has the lowest rank. tokenizer.json has merges instead: every way to make a token of two
 * others, by rank. `ignore_merges` gives a piece that is a token without merging.
 *
 * tekken.json: special tokens have the first ids. Ids of special tokens without an entry are named
 * <SPECIAL_n>. tiktoken: special tokens come after the ranks; the file does not have them, so they are
 * those of added_tokens_decoder, and ids between them are named <|reserved_token_n|>. */
#include "text/base64.h"
#include "text/chars.h"
#include "text/files/tokenizer_builder.h"
#include "text/tokenizer/normalizer.h"

/* Special tokens of the first tekken.json files, which do not list theirs. */
static const char *const first_specials[] = {"<unk>",
                                             "<s>",
                                             "</s>",
                                             "[INST]",
                                             "[/INST]",
                                             "[AVAILABLE_TOOLS]",
                                             "[/AVAILABLE_TOOLS]",
                                             "[TOOL_RESULTS]",
                                             "[/TOOL_RESULTS]",
                                             "[TOOL_CALLS]",
                                             "[IMG]",
                                             "<pad>",
                                             "[IMG_BREAK]",
                                             "[IMG_END]",
                                             "[PREFIX]",
                                             "[MIDDLE]",
                                             "[SUFFIX]",
                                             "[SYSTEM_PROMPT]",
                                             "[/SYSTEM_PROMPT]",
                                             "[TOOL_CONTENT]"};
enum { FIRST_SPECIALS = sizeof first_specials / sizeof *first_specials };

/* The pattern of tiktoken files, which have none: Llama 3's. */
static const char tiktoken_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* Adds a token of base64 text to a vocabulary, its bytes as characters. */
static nbl_status add_token(nbl__tokenizer_builder *b, nbl__vocab *vocab, nbl__slice base64, int64_t line,
                            int64_t id)
{
    unsigned char bytes[NBL_LONGEST_TOKEN];
    bool short_enough = base64.size / 4 * 3 <= sizeof bytes;
    int64_t count = short_enough ? nbl__base64_read(base64.text, base64.size, bytes) : -1;
    NBL_CHECK(b->ctx, count > 0, NBL_ERROR_FORMAT, "%s: token %" PRId64 " is not base64 of 1 to %zu bytes",
              b->where, line, sizeof bytes);
    char *text = nbl__arena_alloc(b->arena, (size_t)count * 2);
    if (text == NULL) return NBL_ERROR_MEMORY;
    size_t size = 0;
    for (int64_t i = 0; i < count; i++) size += (size_t)nbl__char_put(text + size, nbl__byte_char(bytes[i]));
    nbl__vocab_add(vocab, text, size, (int32_t)id);
    return NBL_OK;
}

/* Writes the model of b->vocab, with the merges of `ranks`. */
static nbl_status put_model(nbl__tokenizer_builder *b, const nbl__vocab *ranks, const char *pattern)
{
    nbl__text_printf(b->out,
                     "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                     "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
                     "\"byte_fallback\":false,\"ignore_merges\":true,\"vocab\":");
    nbl__builder_put_vocab(b);
    NBL_TRY(nbl__builder_put_merges(b, ranks, NBL_MERGES_BY_RANK, NULL));
    nbl__text_printf(b->out, "},\"normalizer\":null,\"decoder\":" NBL_JSON_BYTE_DECODER);
    nbl__builder_put_split(b, pattern, false);
    b->post_processor = NBL_JSON_BYTE_POST;
    return NBL_OK;
}

/* ---- tekken.json ---- */

/* The texts of the special tokens, by rank. *count is their number with those that have no name. */
static nbl_status read_specials(nbl__tokenizer_builder *b, const nbl__json *root, const char ***texts,
                                int64_t *count)
{
    const nbl__json *list = nbl__json_get(root, "special_tokens"),
                    *filled = nbl__json_get(nbl__json_get(root, "config"), "default_num_special_tokens");
    bool listed = list && list->type != NBL_JSON_NULL;
    NBL_CHECK(b->ctx, !listed || list->type == NBL_JSON_ARRAY, NBL_ERROR_FORMAT,
              "%s: \"special_tokens\" is not a list", b->where);
    int64_t named = listed ? list->count : FIRST_SPECIALS;
    *count = named;
    NBL_CHECK(b->ctx,
              filled == NULL || filled->type == NBL_JSON_NULL ||
                  (nbl__json_natural(filled, count) && *count >= named && *count <= 1 << 16),
              NBL_ERROR_FORMAT,
              "%s: \"default_num_special_tokens\" is not a number from %" PRId64 " to 65536", b->where,
              named);
    if ((*texts = nbl__arena_alloc(b->arena, (size_t)*count * sizeof **texts)) == NULL)
        return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < named; i++) {
        int64_t rank = i;
        const char *text = listed ? nbl__json_text(&list->items[i], "token_str") : first_specials[i];
        NBL_CHECK(b->ctx,
                  text && (!listed || nbl__json_natural(nbl__json_get(&list->items[i], "rank"), &rank)) &&
                      rank < named && (*texts)[rank] == NULL,
                  NBL_ERROR_FORMAT,
                  "%s: special_tokens: entry %" PRId64
                  " needs a \"token_str\", and a \"rank\" of its own below %" PRId64,
                  b->where, i, named);
        (*texts)[rank] = text;
    }
    for (int64_t i = named; i < *count; i++)
        if (((*texts)[i] = nbl__arena_printf(b->arena, "<SPECIAL_%" PRId64 ">", i)) == NULL)
            return NBL_ERROR_MEMORY;
    return NBL_OK;
}

/* Reads the ranks into `ranks`, by rank, and into b->vocab, by id. */
static nbl_status read_vocab(nbl__tokenizer_builder *b, const nbl__json *list, int64_t count, int64_t first,
                             nbl__vocab *ranks)
{
    for (int64_t i = 0; i < count; i++) {
        const nbl__json *value = nbl__json_get(&list->items[i], "token_bytes");
        NBL_CHECK(b->ctx, nbl__json_is(value, NBL_JSON_STRING), NBL_ERROR_FORMAT,
                  "%s: vocab: entry %" PRId64 " has no \"token_bytes\"", b->where, i);
        NBL_TRY(add_token(b, ranks, (nbl__slice){value->string, (size_t)value->count}, i, i));
        const nbl__token *token = &ranks->tokens[ranks->count - 1];
        nbl__vocab_add(&b->vocab, token->text, token->size, (int32_t)(first + i));
    }
    return NBL_OK;
}

/* Builds from the parsed file. `ranks` is empty. */
static nbl_status build_tekken(nbl__tokenizer_builder *b, const nbl__json *root, nbl__vocab *ranks)
{
    const nbl__json *config = nbl__json_get(root, "config"), *list = nbl__json_get(root, "vocab"),
                    *limit = nbl__json_get(config, "default_vocab_size");
    const char *pattern = nbl__json_text(config, "pattern"), **specials = NULL;
    int64_t special_count, size;
    NBL_CHECK(b->ctx, pattern && nbl__json_is(list, NBL_JSON_ARRAY), NBL_ERROR_FORMAT,
              "%s: \"vocab\" is not a list, or config has no \"pattern\"", b->where);
    NBL_TRY(read_specials(b, root, &specials, &special_count));
    int64_t count = list->count;
    if (limit && limit->type != NBL_JSON_NULL) {
        NBL_CHECK(b->ctx, nbl__json_natural(limit, &size) && size >= special_count, NBL_ERROR_FORMAT,
                  "%s: \"default_vocab_size\" is not a number from %" PRId64, b->where, special_count);
        if (count > size - special_count) count = size - special_count;
    }
    NBL_TRY(nbl__builder_open(b, count + special_count));
    NBL_TRY(nbl__vocab_open(b->ctx, ranks, (size_t)count));
    NBL_TRY(read_vocab(b, list, count, special_count, ranks));
    for (int64_t i = 0; i < special_count; i++)
        nbl__vocab_add(&b->vocab, specials[i], strlen(specials[i]), (int32_t)i);
    NBL_TRY(put_model(b, ranks, pattern));
    NBL_TRY(nbl__builder_reserve(b, special_count));
    for (int64_t i = 0; i < special_count; i++) {
        nbl__added_entry entry = nbl__special_entry((nbl__slice){specials[i], strlen(specials[i])});
        nbl__builder_add(b, &entry);
    }
    return nbl__builder_finish(b);
}

nbl_status nbl__build_tekken(nbl__tokenizer_builder *b, const char *text, size_t size)
{
    const nbl__json *root;
    nbl__vocab ranks = {.ctx = b->ctx};
    NBL_TRY(nbl__json_parse(b->arena, b->where, text, size, NBL_JSON_LOADS, &root));
    nbl_status status = build_tekken(b, root, &ranks);
    nbl__vocab_close(&ranks);
    return status;
}

/* ---- tiktoken's lines ---- */

/* A line "base64 rank"; a carriage return may end it. Returns false for any other line. */
static bool read_line(const char *line, size_t size, nbl__slice *base64, int64_t *rank)
{
    if (size && line[size - 1] == '\r') size--;
    const char *space = memchr(line, ' ', size);
    if (space == NULL || space == line) return false;
    *base64 = (nbl__slice){line, (size_t)(space - line)};
    size_t digits = size - base64->size - 1;
    *rank = 0;
    for (size_t i = 0; i < digits; i++) {
        char c = space[1 + i];
        if (c < '0' || c > '9' || *rank > INT32_MAX / 20) return false;
        *rank = *rank * 10 + (c - '0');
    }
    return digits > 0;
}

bool nbl__looks_like_tiktoken(const char *text, size_t size)
{
    nbl__slice base64;
    int64_t rank;
    unsigned char bytes[NBL_LONGEST_TOKEN];
    const char *end = memchr(text, '\n', size);
    size_t line = end ? (size_t)(end - text) : size;
    return read_line(text, line, &base64, &rank) && base64.size <= sizeof bytes &&
           nbl__base64_read(base64.text, base64.size, bytes) > 0;
}

/* Reads all lines but empty ones. */
static nbl_status read_lines(nbl__tokenizer_builder *b, const char *text, size_t size)
{
    int64_t number = 0;
    for (size_t at = 0; at < size; number++) {
        const char *end = memchr(text + at, '\n', size - at);
        size_t length = end ? (size_t)(end - text) - at : size - at;
        nbl__slice base64;
        int64_t rank;
        if (length && !(length == 1 && text[at] == '\r')) {
            NBL_CHECK(b->ctx, read_line(text + at, length, &base64, &rank), NBL_ERROR_FORMAT,
                      "%s: line %" PRId64 " is not a base64 text and a rank", b->where, number + 1);
            NBL_TRY(add_token(b, &b->vocab, base64, number, rank));
        }
        at += length + 1;
    }
    return NBL_OK;
}

/* Adds the special tokens: those of added_tokens_decoder from the end of the ranks on, with names for
 * the ids between them; then the extra ones. */
static nbl_status add_specials(nbl__tokenizer_builder *b)
{
    const nbl__entry_list *decoder = &b->settings.decoder, *extra = &b->settings.extra;
    int64_t last = decoder->count ? decoder->items[decoder->count - 1].id : 0, next = 0;
    int64_t fill = last >= b->size ? last + 1 - b->size : 0;
    NBL_CHECK(b->ctx, fill <= 1 << 16, NBL_ERROR_UNSUPPORTED,
              "%s: added_tokens_decoder has the id %" PRId64 ", and the file %" PRId64 " tokens only",
              b->where, last, b->size);
    NBL_TRY(nbl__builder_reserve(b, fill));
    for (int64_t id = b->size; id < b->size + fill; id++) {
        while (next < decoder->count && decoder->items[next].id < id) next++;
        nbl__slice text = next < decoder->count && decoder->items[next].id == id ? decoder->items[next].text
                                                                                 : (nbl__slice){NULL, 0};
        if (text.text == NULL) {
            const char *name = nbl__arena_printf(b->arena, "<|reserved_token_%" PRId64 "|>", id);
            if (name == NULL) return NBL_ERROR_MEMORY;
            text = (nbl__slice){name, strlen(name)};
        }
        nbl__added_entry entry = nbl__special_entry(text);
        nbl__builder_add(b, &entry);
    }
    for (int64_t i = 0; b->settings.has_extra && i < extra->count; i++) {
        nbl__added_entry entry = nbl__special_entry(extra->items[i].text);
        nbl__builder_add(b, &entry);
    }
    return NBL_OK;
}

nbl_status nbl__build_tiktoken(nbl__tokenizer_builder *b, const char *text, size_t size)
{
    int64_t lines = 1;
    for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
    NBL_TRY(nbl__builder_open(b, lines));
    NBL_TRY(read_lines(b, text, size));
    NBL_TRY(put_model(b, &b->vocab, tiktoken_pattern));
    NBL_TRY(add_specials(b));
    return nbl__builder_finish(b);
}
