/* tokenizer_json_steps.c - reads the parts "normalizer", "pre_tokenizer" and "decoder" of
 * tokenizer.json.
 *
 *     "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}
 *         ─▶ normalizers = [{.kind = NFC}, {.kind = LOWERCASE}]
 *
 * Each part is one step or a sequence of steps. Nested sequences are flattened into one array per
 * part, which the tokenizer's arena owns. The array is allocated for the upper bound of
 * nbl__count_steps.
 *
 * Options and their defaults are those of upstream's serde structs: an option that upstream
 * requires is required here, and one that it ignores is checked and dropped. */
#include "text/tokenizer/tokenizer.h"

/* Fails for a step that is of a later version, or of no version. */
static nbl_status unknown_type(nbl__tokenizer_reader *r, const char *part, const char *type)
{
    return nbl__fail(r->ctx, NBL_ERROR_UNSUPPORTED, "%s: %s: the type \"%s\" is not known", r->where, part,
                     type);
}

static bool is(const char *type, const char *name)
{
    return strcmp(type, name) == 0;
}

/* Sets *max to an upper bound for the steps of a part. The limit of 2000 bounds the work per text,
 * because each text passes through all steps. */
static nbl_status count_steps(nbl__tokenizer_reader *r, const char *part, const nbl__json *value,
                              const char *list, size_t *max)
{
    *max = (size_t)nbl__count_steps(value, list, 0);
    NBL_CHECK(r->ctx, *max <= 2000, NBL_ERROR_UNSUPPORTED, "%s: %s: too many steps", r->where, part);
    return NBL_OK;
}

/* ---- normalizer ---- */

static void add_normalizer(nbl__tokenizer_reader *r, nbl__normalizer step)
{
    r->tokenizer->normalizers[r->tokenizer->normalizer_count++] = step;
}

/* BertNormalizer becomes up to five steps, in upstream's order. strip_accents defaults to
 * lowercase. */
static nbl_status read_bert(nbl__tokenizer_reader *r, const char *part, const nbl__json *value)
{
    bool clean, chinese, lower, accents;
    NBL_TRY(nbl__get_bool(r, part, value, "clean_text", NBL_PRESENCE_REQUIRED, &clean));
    NBL_TRY(nbl__get_bool(r, part, value, "handle_chinese_chars", NBL_PRESENCE_REQUIRED, &chinese));
    NBL_TRY(nbl__get_bool(r, part, value, "lowercase", NBL_PRESENCE_REQUIRED, &lower));
    accents = lower;
    NBL_TRY(nbl__get_bool(r, part, value, "strip_accents", NBL_PRESENCE_OPTIONAL, &accents));
    if (clean) add_normalizer(r, (nbl__normalizer){.kind = NBL_NORMALIZE_CLEAN});
    if (chinese) add_normalizer(r, (nbl__normalizer){.kind = NBL_NORMALIZE_CHINESE});
    if (accents) add_normalizer(r, (nbl__normalizer){.kind = NBL_NORMALIZE_NFD});
    if (accents) add_normalizer(r, (nbl__normalizer){.kind = NBL_NORMALIZE_STRIP_NONSPACING});
    if (lower) add_normalizer(r, (nbl__normalizer){.kind = NBL_NORMALIZE_LOWERCASE});
    return NBL_OK;
}

/* Reads one step of the normalizer. BertNormalizer is several. */
static nbl_status read_normalizer_step(nbl__tokenizer_reader *r, const nbl__json *value)
{
    static const char part[] = "normalizer";
    static const struct {
        const char *name;
        nbl__normalizer_kind kind;
    } plain[] = {/* steps without options */
                 {"NFC", NBL_NORMALIZE_NFC},
                 {"NFD", NBL_NORMALIZE_NFD},
                 {"NFKC", NBL_NORMALIZE_NFKC},
                 {"NFKD", NBL_NORMALIZE_NFKD},
                 {"Lowercase", NBL_NORMALIZE_LOWERCASE},
                 {"StripAccents", NBL_NORMALIZE_STRIP_ACCENTS},
                 {"Nmt", NBL_NORMALIZE_NMT},
                 {"ByteLevel", NBL_NORMALIZE_BYTE_LEVEL}};
    const char *type;
    nbl__normalizer step = {.content = {"", 0}};
    nbl__slice map;
    NBL_TRY(nbl__get_type(r, part, value, &type));
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (is(type, plain[i].name)) return step.kind = plain[i].kind, add_normalizer(r, step), NBL_OK;
    if (is(type, "BertNormalizer")) return read_bert(r, part, value);
    if (is(type, "Strip")) {
        step.kind = NBL_NORMALIZE_STRIP;
        NBL_TRY(nbl__get_bool(r, part, value, "strip_left", NBL_PRESENCE_REQUIRED, &step.left));
        NBL_TRY(nbl__get_bool(r, part, value, "strip_right", NBL_PRESENCE_REQUIRED, &step.right));
    } else if (is(type, "Replace")) {
        step.kind = NBL_NORMALIZE_REPLACE;
        NBL_TRY(nbl__get_pattern(r, part, value, &step.regex));
        NBL_TRY(nbl__get_text(r, part, value, "content", NBL_PRESENCE_REQUIRED, &step.content));
    } else if (is(type, "Prepend")) {
        step.kind = NBL_NORMALIZE_PREPEND;
        NBL_TRY(nbl__get_text(r, part, value, "prepend", NBL_PRESENCE_REQUIRED, &step.content));
    } else if (is(type, "Precompiled")) {
        step.kind = NBL_NORMALIZE_PRECOMPILED;
        NBL_TRY(nbl__get_text(r, part, value, "precompiled_charsmap", NBL_PRESENCE_REQUIRED, &map));
        const char *where = nbl__arena_printf(r->arena, "%s: %s", r->where, part);
        if (where == NULL) return NBL_ERROR_MEMORY;
        NBL_TRY(nbl__precompiled_read(r->arena, where, map.text, map.size, &step));
    } else {
        return unknown_type(r, part, type);
    }
    add_normalizer(r, step);
    return NBL_OK;
}

nbl_status nbl__read_normalizer(nbl__tokenizer_reader *r, const nbl__json *value)
{
    if (value == NULL || value->type == NBL_JSON_NULL) return NBL_OK;
    size_t max;
    NBL_TRY(count_steps(r, "normalizer", value, "normalizers", &max));
    r->tokenizer->normalizers = nbl__arena_alloc(r->arena, max * sizeof(nbl__normalizer));
    if (r->tokenizer->normalizers == NULL) return NBL_ERROR_MEMORY;
    return nbl__each_step(r, "normalizer", value, "normalizers", read_normalizer_step, 0);
}

/* ---- pre_tokenizer ---- */

/* Reads how a Split treats its matches. The order of the names is that of nbl__behavior. */
static nbl_status read_behavior(nbl__tokenizer_reader *r, const nbl__json *value, nbl__presence need,
                                nbl__behavior *behavior)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                        "Contiguous"};
    nbl__slice text = {NULL, 0};
    NBL_TRY(nbl__get_text(r, "pre_tokenizer", value, "behavior", need, &text));
    if (text.text == NULL) return NBL_OK;
    for (int i = 0; i < 5; i++)
        if (is(text.text, names[i])) return *behavior = (nbl__behavior)i, NBL_OK;
    return nbl__fail(r->ctx, NBL_ERROR_FORMAT, "%s: pre_tokenizer: the behavior \"%s\" is not known",
                     r->where, text.text);
}

/* Reads Metaspace, which is both a pre-tokenizer and a decoder. */
static nbl_status read_metaspace(nbl__tokenizer_reader *r, const char *part, const nbl__json *value,
                                 nbl__pre_tokenizer *step)
{
    nbl__slice scheme = {"always", 6};
    bool prefix = true;
    step->kind = NBL_PRE_METASPACE;
    step->split = true;
    NBL_TRY(nbl__get_char(r, part, value, "replacement", NBL_PRESENCE_REQUIRED, &step->character));
    NBL_TRY(nbl__get_text(r, part, value, "prepend_scheme", NBL_PRESENCE_DEFAULT, &scheme));
    NBL_TRY(nbl__get_bool(r, part, value, "add_prefix_space", NBL_PRESENCE_OPTIONAL, &prefix));
    NBL_TRY(nbl__get_bool(r, part, value, "split", NBL_PRESENCE_OPTIONAL, &step->split));
    if (is(scheme.text, "always")) step->prepend = NBL_PREPEND_ALWAYS;
    else if (is(scheme.text, "first")) step->prepend = NBL_PREPEND_FIRST;
    else if (is(scheme.text, "never")) step->prepend = NBL_PREPEND_NEVER;
    else
        return nbl__fail(r->ctx, NBL_ERROR_FORMAT, "%s: %s: the prepend_scheme \"%s\" is not known", r->where,
                         part, scheme.text);
    NBL_CHECK(r->ctx, prefix || step->prepend == NBL_PREPEND_NEVER, NBL_ERROR_FORMAT,
              "%s: %s: add_prefix_space false contradicts prepend_scheme \"%s\"", r->where, part,
              scheme.text);
    return NBL_OK;
}

/* Reads ByteLevel. With use_regex it first cuts by GPT-2's pattern. */
static nbl_status read_byte_level(nbl__tokenizer_reader *r, const char *part, const nbl__json *value,
                                  nbl__pre_tokenizer *step)
{
    bool trim, use_regex = true;
    step->kind = NBL_PRE_BYTE_LEVEL;
    NBL_TRY(nbl__get_bool(r, part, value, "add_prefix_space", NBL_PRESENCE_REQUIRED, &step->prefix_space));
    NBL_TRY(nbl__get_bool(r, part, value, "trim_offsets", NBL_PRESENCE_REQUIRED, &trim));
    NBL_TRY(nbl__get_bool(r, part, value, "use_regex", NBL_PRESENCE_DEFAULT, &use_regex));
    if (!use_regex) return NBL_OK;
    NBL_TRY(nbl__regex_compile(r->ctx, "pre_tokenizer", NBL_GPT2_PATTERN, strlen(NBL_GPT2_PATTERN),
                               &step->regex));
    return nbl__tokenizer_keep(r->tokenizer, step->regex);
}

static void add_pre_tokenizer(nbl__tokenizer_reader *r, nbl__pre_tokenizer step)
{
    r->tokenizer->pre_tokenizers[r->tokenizer->pre_tokenizer_count++] = step;
}

/* Reads one step of the pre-tokenizer. Four of upstream's types are one kind here, which differs in
 * the property of characters that it looks for. */
static nbl_status read_pre_tokenizer_step(nbl__tokenizer_reader *r, const nbl__json *value)
{
    static const char part[] = "pre_tokenizer";
    const char *type;
    bool single;
    uint64_t length = 5;
    nbl__pre_tokenizer step = {.kind = NBL_PRE_CHARACTERS};
    NBL_TRY(nbl__get_type(r, part, value, &type));
    if (is(type, "ByteLevel")) {
        NBL_TRY(read_byte_level(r, part, value, &step));
    } else if (is(type, "Metaspace")) {
        NBL_TRY(read_metaspace(r, part, value, &step));
    } else if (is(type, "Split")) {
        step.kind = NBL_PRE_SPLIT;
        NBL_TRY(read_behavior(r, value, NBL_PRESENCE_REQUIRED, &step.behavior));
        NBL_TRY(nbl__get_bool(r, part, value, "invert", NBL_PRESENCE_REQUIRED, &step.invert));
        NBL_TRY(nbl__get_pattern(r, part, value, &step.regex));
    } else if (is(type, "Digits")) {
        step.property = NBL_CHARS_NUMERIC;
        NBL_TRY(nbl__get_bool(r, part, value, "individual_digits", NBL_PRESENCE_REQUIRED, &single));
        step.behavior = single ? NBL_BEHAVIOR_ISOLATED : NBL_BEHAVIOR_CONTIGUOUS;
    } else if (is(type, "Punctuation")) {
        step.property = NBL_CHARS_PUNCTUATION;
        step.behavior = NBL_BEHAVIOR_ISOLATED;
        NBL_TRY(read_behavior(r, value, NBL_PRESENCE_DEFAULT, &step.behavior));
    } else if (is(type, "Whitespace")) {
        step.kind = NBL_PRE_WORDS;
    } else if (is(type, "WhitespaceSplit")) {
        step.property = NBL_CHARS_SPACE;
    } else if (is(type, "BertPreTokenizer")) {
        step.property = NBL_CHARS_SPACE; /* two steps: remove white space, isolate punctuation */
        add_pre_tokenizer(r, step);
        step.property = NBL_CHARS_PUNCTUATION;
        step.behavior = NBL_BEHAVIOR_ISOLATED;
    } else if (is(type, "CharDelimiterSplit")) {
        step.property = NBL_CHARS_ONE;
        NBL_TRY(nbl__get_char(r, part, value, "delimiter", NBL_PRESENCE_REQUIRED, &step.character));
    } else if (is(type, "FixedLength")) {
        step.kind = NBL_PRE_FIXED_LENGTH;
        NBL_TRY(nbl__get_natural(r, part, value, "length", NBL_PRESENCE_DEFAULT, &length));
        NBL_CHECK(r->ctx, length > 0, NBL_ERROR_FORMAT, "%s: %s: \"length\" is 0", r->where, part);
        step.length = (int64_t)length;
    } else if (is(type, "UnicodeScripts")) {
        return nbl__fail(r->ctx, NBL_ERROR_UNSUPPORTED, "%s: %s: \"UnicodeScripts\" is not supported",
                         r->where, part);
    } else {
        return unknown_type(r, part, type);
    }
    add_pre_tokenizer(r, step);
    return NBL_OK;
}

nbl_status nbl__read_pre_tokenizer(nbl__tokenizer_reader *r, const nbl__json *value)
{
    if (value == NULL || value->type == NBL_JSON_NULL) return NBL_OK;
    size_t max;
    NBL_TRY(count_steps(r, "pre_tokenizer", value, "pretokenizers", &max));
    r->tokenizer->pre_tokenizers = nbl__arena_alloc(r->arena, max * sizeof(nbl__pre_tokenizer));
    if (r->tokenizer->pre_tokenizers == NULL) return NBL_ERROR_MEMORY;
    return nbl__each_step(r, "pre_tokenizer", value, "pretokenizers", read_pre_tokenizer_step, 0);
}

/* ---- decoder ---- */

/* Reads one step of the decoder: token texts to text. */
static nbl_status read_detokenizer_step(nbl__tokenizer_reader *r, const nbl__json *value)
{
    static const char part[] = "decoder";
    const char *type;
    nbl__detokenizer_step step = {.content = {"", 0}, .prefix = {"", 0}, .delimiter = {"", 0}};
    nbl__pre_tokenizer metaspace = {0};
    uint64_t start, stop;
    bool ignored;
    NBL_TRY(nbl__get_type(r, part, value, &type));
    if (is(type, "ByteLevel")) {
        step.kind = NBL_DETOKENIZE_BYTE_LEVEL;
        NBL_TRY(nbl__get_bool(r, part, value, "add_prefix_space", NBL_PRESENCE_REQUIRED, &ignored));
        NBL_TRY(nbl__get_bool(r, part, value, "trim_offsets", NBL_PRESENCE_REQUIRED, &ignored));
    } else if (is(type, "ByteFallback")) {
        step.kind = NBL_DETOKENIZE_BYTE_FALLBACK;
    } else if (is(type, "Fuse")) {
        step.kind = NBL_DETOKENIZE_FUSE;
    } else if (is(type, "Metaspace")) {
        step.kind = NBL_DETOKENIZE_METASPACE;
        NBL_TRY(read_metaspace(r, part, value, &metaspace));
        step.character = metaspace.character;
        step.never_prepended = metaspace.prepend == NBL_PREPEND_NEVER;
    } else if (is(type, "Replace")) {
        step.kind = NBL_DETOKENIZE_REPLACE;
        NBL_TRY(nbl__get_pattern(r, part, value, &step.regex));
        NBL_TRY(nbl__get_text(r, part, value, "content", NBL_PRESENCE_REQUIRED, &step.content));
    } else if (is(type, "Strip")) {
        step.kind = NBL_DETOKENIZE_STRIP;
        NBL_TRY(nbl__get_char(r, part, value, "content", NBL_PRESENCE_REQUIRED, &step.character));
        NBL_TRY(nbl__get_natural(r, part, value, "start", NBL_PRESENCE_REQUIRED, &start));
        NBL_TRY(nbl__get_natural(r, part, value, "stop", NBL_PRESENCE_REQUIRED, &stop));
        step.start = (int64_t)start;
        step.stop = (int64_t)stop;
    } else if (is(type, "WordPiece")) {
        step.kind = NBL_DETOKENIZE_WORDPIECE;
        NBL_TRY(nbl__get_text(r, part, value, "prefix", NBL_PRESENCE_REQUIRED, &step.prefix));
        NBL_TRY(nbl__get_bool(r, part, value, "cleanup", NBL_PRESENCE_REQUIRED, &step.cleanup));
    } else if (is(type, "CTC")) {
        step.kind = NBL_DETOKENIZE_CTC;
        NBL_TRY(nbl__get_text(r, part, value, "pad_token", NBL_PRESENCE_REQUIRED, &step.prefix));
        NBL_TRY(
            nbl__get_text(r, part, value, "word_delimiter_token", NBL_PRESENCE_REQUIRED, &step.delimiter));
        NBL_TRY(nbl__get_bool(r, part, value, "cleanup", NBL_PRESENCE_REQUIRED, &step.cleanup));
    } else if (is(type, "BPEDecoder")) {
        step.kind = NBL_DETOKENIZE_BPE;
        NBL_TRY(nbl__get_text(r, part, value, "suffix", NBL_PRESENCE_REQUIRED, &step.prefix));
    } else {
        return unknown_type(r, part, type);
    }
    r->tokenizer->detokenizers[r->tokenizer->detokenizer_count++] = step;
    return NBL_OK;
}

nbl_status nbl__read_detokenizer(nbl__tokenizer_reader *r, const nbl__json *value)
{
    if (value == NULL || value->type == NBL_JSON_NULL) return NBL_OK;
    size_t max;
    NBL_TRY(count_steps(r, "decoder", value, "decoders", &max));
    r->tokenizer->detokenizers = nbl__arena_alloc(r->arena, max * sizeof(nbl__detokenizer_step));
    if (r->tokenizer->detokenizers == NULL) return NBL_ERROR_MEMORY;
    r->tokenizer->has_detokenizer = true;
    return nbl__each_step(r, "decoder", value, "decoders", read_detokenizer_step, 0);
}
