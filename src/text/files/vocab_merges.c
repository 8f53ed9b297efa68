/* vocab_merges.c - byte-level BPE from vocab.json and merges.txt.
 *
 *     vocab.json    {"!": 0, …}: copied into the result after it was parsed
 *     merges.txt    "Ġ t", one merge per line, by rank; a line that begins with #version is skipped
 *
 * The files have neither pre-tokenizer nor normalizer: these belong to the tokenizer class. */
#include "text/files/tokenizer_builder.h"

/* Patterns of classes that cut text by a pattern of their own. */
static const char qwen2_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char qwen3_5_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
    "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* Writes the parts of the class: "normalizer", "pre_tokenizer", "decoder". */
static nbl_status put_parts(nbl__tokenizer_builder *b)
{
    bool prefix = nbl__settings_flag(&b->settings, "add_prefix_space", false), nfc = true;
    const char *space = prefix ? "true" : "false";
    switch (b->class) {
    case NBL_TOKENIZER_QWEN2: nbl__builder_put_split(b, qwen2_pattern, prefix); break;
    case NBL_TOKENIZER_QWEN3_5: nbl__builder_put_split(b, qwen3_5_pattern, prefix); break;
    case NBL_TOKENIZER_COHERE:
        nbl__text_printf(b->out,
                         ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\","
                         "\"individual_digits\":true},{\"type\":\"ByteLevel\",\"add_prefix_space\":%s,"
                         "\"trim_offsets\":true,\"use_regex\":true}]}",
                         space);
        break;
    case NBL_TOKENIZER_GPT2:
    case NBL_TOKENIZER_CODEGEN:
    case NBL_TOKENIZER_GPT_NEOX:
        nfc = b->class == NBL_TOKENIZER_GPT_NEOX;
        nbl__text_printf(b->out,
                         ",\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":%s,"
                         "\"trim_offsets\":true,\"use_regex\":true}",
                         space);
        break;
    default: {
        const char *name = b->settings.class_name;
        return nbl__fail(
            b->ctx, NBL_ERROR_UNSUPPORTED,
            "%s: vocab.json and merges.txt do not say how text is cut, and tokenizer_class "
            "%s%.80s%s does not either; set tokenizer_class in tokenizer_config.json to "
            "GPT2Tokenizer, Qwen2Tokenizer, Qwen3_5Tokenizer, GPTNeoXTokenizer or CohereTokenizer, "
            "or save a tokenizer.json",
            b->where, name ? "\"" : "", name ? name : "(none)", name ? "\"" : "");
    }
    }
    nbl__text_printf(b->out, nfc ? ",\"normalizer\":{\"type\":\"NFC\"}" : ",\"normalizer\":null");
    nbl__text_printf(b->out, ",\"decoder\":" NBL_JSON_BYTE_DECODER);
    if (b->class == NBL_TOKENIZER_CODEGEN) b->post_processor = NBL_JSON_BYTE_POST;
    return NBL_OK;
}

/* Reads the texts and ids of vocab.json into b->vocab. */
static nbl_status read_vocab(nbl__tokenizer_builder *b, const char *text, size_t size)
{
    const nbl__json *root;
    NBL_TRY(nbl__json_parse(b->arena, b->where, text, size, NBL_JSON_SERDE, &root));
    NBL_TRY(nbl__builder_open(b, root->count));
    for (int64_t i = 0; i < root->count; i++) {
        const nbl__json *item = &root->items[i];
        int64_t id;
        NBL_CHECK(b->ctx, nbl__json_natural(item, &id) && id < INT32_MAX, NBL_ERROR_FORMAT,
                  "%s: the id of \"%.80s\" is none", b->where, item->key);
        nbl__vocab_add(&b->vocab, item->key, item->key_size, (int32_t)id);
    }
    b->size = root->count;
    return NBL_OK;
}

/* Writes "merges". Empty lines are skipped. */
static nbl_status put_merges(nbl__tokenizer_builder *b, const char *text, size_t size)
{
    const char *comma = "";
    int64_t number = 1;
    nbl__text_printf(b->out, ",\"merges\":[");
    for (size_t at = 0; at < size; number++) {
        const char *line = text + at, *end = memchr(line, '\n', size - at);
        size_t length = end ? (size_t)(end - line) : size - at;
        at += length + 1;
        if (length && line[length - 1] == '\r') length--;
        if (length == 0 || (length >= 8 && memcmp(line, "#version", 8) == 0)) continue;
        const char *space = memchr(line, ' ', length);
        size_t left = space ? (size_t)(space - line) : 0, right = space ? length - left - 1 : 0;
        NBL_CHECK(b->ctx, space && memchr(space + 1, ' ', right) == NULL, NBL_ERROR_FORMAT,
                  "%s: merges.txt: line %" PRId64 " is not two texts", b->where, number);
        nbl__text_printf(b->out, "%s[", comma);
        nbl__builder_put_string(b, (nbl__slice){line, left});
        nbl__text_add(b->out, ",", 1);
        nbl__builder_put_string(b, (nbl__slice){space + 1, right});
        nbl__text_add(b->out, "]", 1);
        comma = ",";
    }
    nbl__text_add(b->out, "]", 1);
    return NBL_OK;
}

nbl_status nbl__build_vocab_merges(nbl__tokenizer_builder *b, const char *text, size_t size,
                                   const char *merges, size_t merges_size)
{
    NBL_TRY(read_vocab(b, text, size));
    nbl__class_defaults(&b->settings, b->class);
    nbl__text_printf(b->out,
                     "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                     "\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":\"\",\"fuse_unk\":false,"
                     "\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":");
    nbl__text_add(b->out, text, size);
    NBL_TRY(put_merges(b, merges, merges_size));
    nbl__text_add(b->out, "}", 1);
    NBL_TRY(put_parts(b));
    return nbl__builder_finish(b);
}
