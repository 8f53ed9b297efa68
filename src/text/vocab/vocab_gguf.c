/* vocab_gguf.c - makes a tokenizer from the vocabulary of a GGUF file.
 *
 * The tokenizer has the same parts as one from tokenizer.json. tokenizer.ggml.model selects the
 * kind:
 *
 *     "gpt2"    byte-level BPE: tokens, merges, and the name of a pre-tokenizer
 *     "llama"   SentencePiece BPE: tokens and scores
 *
 * The file has only the name of the pre-tokenizer. Its patterns are in the table pre_types below;
 * they are llama.cpp's. Tokens of the types control, user-defined and unknown become added
 * tokens. */
#include "format/gguf/gguf.h"
#include "text/chars.h"
#include "text/tokenizer/tokenizer.h"
#include "text/vocab/vocab_export.h"

/* The patterns of pre-tokenizers, as llama.cpp's llama_vocab has them. WORDS_AND is that of Llama 3
 * and Qwen 2, which differ in how many digits make a piece:
 *
 *     contractions | a word with one character before it | digits | punctuation | line ends | spaces */
#define KEY(name) "tokenizer.ggml." name

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define GPT2 NBL_GPT2_PATTERN
#define WORDS_AND(digits)                                                                                    \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                                    \
                 "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define MARKED_WORDS                                                                                         \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"                                             \
                 "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CASED_WORDS(endings, digits)                                                                         \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" endings      \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" endings     \
    "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define DEEPSEEK3_WORDS                                                                                      \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"      \
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* DeepSeek LLM's list of letters with case, for use within [ ]. */
#define CASED_LETTERS                                                                                        \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}"          \
    "\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}"   \
    "\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}"          \
    "\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"        \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}"        \
    "\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{"     \
    "1f7d}"                                                                                                  \
    "\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}"                  \
    "\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}"        \
    "\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}"           \
    "\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}"         \
    "\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}"          \
    "\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}"        \
    "\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}"        \
    "\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-"        \
    "\\x{10cf2}\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"
#define HAN_AND_HANGUL "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"

enum { MAX_PATTERNS = 6 };

/* A pre-tokenizer. Files know it by several names; export writes the first. The patterns are
 * applied one after the other, each as a Split step that isolates its matches. */
typedef struct pre_type {
    const char *names;           /* separated by spaces, with a space at the begin and at the end */
    bool ignore_merges, add_bos; /* add_bos: default if the file does not say */
    const char *patterns[MAX_PATTERNS + 1];
} pre_type;

static const pre_type pre_types[] = {
    {" default ", false, false, {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {" gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert mpt olmo jais "
     "trillion granite-docling exaone4 ",
     false,
     false,
     {GPT2}},
    {" llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 ",
     true,
     true,
     {WORDS_AND("\\p{N}{1,3}")}},
    {" dbrx smaug-bpe glm4 chatglm-bpe ", false, false, {WORDS_AND("\\p{N}{1,3}")}},
    {" qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan megrez solar-open grok-2 ",
     false,
     false,
     {WORDS_AND("\\p{N}")}},
    {" qwen35 ", false, false, {MARKED_WORDS}},
    {" minicpm5 ", true, false, {"\\p{N}{1,3}", WORDS_AND("\\p{N}+")}},
    {" smollm starcoder refact command-r codeshell exaone minerva-7b mellum2 ",
     false,
     false,
     {"\\p{N}", GPT2}},
    {" falcon ", false, false, {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {" deepseek-llm ",
     false,
     false,
     {"[\\r\\n]", "\\s?[" CASED_LETTERS "]+",
      "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+", "\\s+$",
      HAN_AND_HANGUL, "\\p{N}+"}},
    {" deepseek-coder ", false, false, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", HAN_AND_HANGUL, "\\p{N}"}},
    {" deepseek-v3 hunyuan-dense joyai-llm ",
     false,
     false,
     {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+", DEEPSEEK3_WORDS}},
    {" gpt-4o llama4 kanana2 minimax-m2 ", false, false, {CASED_WORDS(CONTRACTIONS "?", "\\p{N}{1,3}")}},
    {" tekken ", true, true, {CASED_WORDS("", "\\p{N}")}},
    {" seed-coder ",
     false,
     false,
     {CONTRACTIONS
      "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {" bailingmoe bailingmoe2 llada-moe ",
     false,
     false,
     {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| "
      "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
};

/* What the functions below read from. */
typedef struct source {
    nbl_tokenizer *tokenizer;
    nbl_context *ctx;
    nbl__arena *arena;
    const nbl__gguf *gguf;
    const char *path;
} source;

/* Values of tokenizer.ggml.token_type. */
enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_USER_DEFINED = 4 };

/* Fails for a key that is missing or has another type. */
static nbl_status missing(const source *s, const char *key, const char *wanted)
{
    return nbl__fail(s->ctx, NBL_ERROR_FORMAT, "%s: %s is missing or not %s", s->path, key, wanted);
}

/* Copies text `i` of an entry into the arena, terminated by a zero byte. */
static nbl_status copy_text(const source *s, const nbl__gguf_entry *entry, const char *key, int64_t i,
                            nbl__slice *text)
{
    const char *bytes;
    size_t size;
    if (!nbl__gguf_string(entry, i, &bytes, &size)) return missing(s, key, "a list of texts");
    NBL_CHECK(s->ctx, size < 1 << 20 && nbl__utf8_check(bytes, size) == size, NBL_ERROR_FORMAT,
              "%s: %s: entry %" PRId64 " is not UTF-8, or too long", s->path, key, i);
    char *copy = nbl__arena_alloc(s->arena, size + 1);
    if (copy == NULL) return NBL_ERROR_MEMORY;
    if (size) memcpy(copy, bytes, size);
    *text = (nbl__slice){copy, size};
    return NBL_OK;
}

/* ---- the vocabulary ---- */

/* Reads the texts of all tokens. The id of a token is its index in the list. */
static nbl_status read_tokens(const source *s)
{
    nbl__vocab_model *m = &s->tokenizer->model;
    const nbl__gguf_entry *tokens = nbl__gguf_find(s->gguf, KEY("tokens"));
    if (tokens == NULL || tokens->element != NBL_GGUF_STRING || tokens->count < 1)
        return missing(s, KEY("tokens"), "a list of texts");
    NBL_CHECK(s->ctx, tokens->count < INT32_MAX / 2, NBL_ERROR_UNSUPPORTED, "%s: too many tokens", s->path);
    NBL_TRY(nbl__vocab_open(s->ctx, &m->vocab, (size_t)tokens->count));
    for (int64_t i = 0; i < tokens->count; i++) {
        nbl__slice text;
        NBL_TRY(copy_text(s, tokens, KEY("tokens"), i, &text));
        nbl__vocab_add(&m->vocab, text.text, text.size, (int32_t)i);
    }
    m->size = tokens->count;
    return NBL_OK;
}

/* Reads the scores of SentencePiece: a higher score merges first. NaN would have no order. */
static nbl_status read_scores(const source *s)
{
    nbl__vocab_model *m = &s->tokenizer->model;
    const nbl__gguf_entry *scores = nbl__gguf_find(s->gguf, KEY("scores"));
    if (scores == NULL || scores->count != m->size) return missing(s, KEY("scores"), "one number per token");
    NBL_TRY(NBL_ALLOC(s->ctx, m->scores, m->size));
    m->score_count = (size_t)m->size;
    for (int64_t i = 0; i < m->size; i++)
        if (!nbl__gguf_number(scores, i, &m->scores[i]) || m->scores[i] != m->scores[i])
            return missing(s, KEY("scores"), "one number per token");
    return NBL_OK;
}

/* Reads the merges. Each is one text, "left right". The first byte of `left` may be a space. */
static nbl_status read_merges(const source *s)
{
    nbl__vocab_model *m = &s->tokenizer->model;
    const nbl__gguf_entry *merges = nbl__gguf_find(s->gguf, KEY("merges"));
    if (merges == NULL || merges->element != NBL_GGUF_STRING)
        return missing(s, KEY("merges"), "a list of texts");
    NBL_CHECK(s->ctx, merges->count < INT32_MAX / 2, NBL_ERROR_UNSUPPORTED, "%s: too many merges", s->path);
    NBL_TRY(nbl__bpe_open(m, (size_t)merges->count));
    for (int64_t i = 0; i < merges->count; i++) {
        nbl__slice text;
        NBL_TRY(copy_text(s, merges, KEY("merges"), i, &text));
        char *space = text.size > 1 ? memchr(text.text + 1, ' ', text.size - 1) : NULL;
        NBL_CHECK(s->ctx, space, NBL_ERROR_FORMAT, "%s: %s: merge %" PRId64 " is not two texts", s->path,
                  KEY("merges"), i);
        size_t left = (size_t)(space - text.text), right = text.size - left - 1;
        int32_t a = nbl__vocab_find(&m->vocab, text.text, left),
                b = nbl__vocab_find(&m->vocab, space + 1, right);
        memmove(space, space + 1, right); /* join the two texts in place */
        int32_t whole = nbl__vocab_find(&m->vocab, text.text, left + right);
        NBL_CHECK(s->ctx, a >= 0 && b >= 0 && whole >= 0, NBL_ERROR_FORMAT,
                  "%s: %s: merge %" PRId64 " needs a token that is not in the vocabulary", s->path,
                  KEY("merges"), i);
        nbl__bpe_add(m, a, b, (uint32_t)i, whole);
    }
    return NBL_OK;
}

/* Makes added tokens of the tokens whose type is unknown, control or user-defined. */
static nbl_status read_added(const source *s)
{
    /* token_type may be missing: then there are no added tokens. */
    nbl_tokenizer *t = s->tokenizer;
    const nbl__gguf_entry *types = nbl__gguf_find(s->gguf, KEY("token_type"));
    int64_t type, count = 0;
    NBL_CHECK(s->ctx, types == NULL || types->count == t->model.size, NBL_ERROR_FORMAT,
              "%s: %s has not one number per token", s->path, KEY("token_type"));
    for (int64_t i = 0; types && i < types->count; i++)
        count += nbl__gguf_integer(types, i, &type) && type >= TOKEN_UNKNOWN && type <= TOKEN_USER_DEFINED;
    NBL_TRY(nbl__added_open(s->ctx, &t->added, (size_t)count));
    int32_t next = (int32_t)t->model.size;
    for (int64_t i = 0; types && i < types->count; i++) {
        if (!nbl__gguf_integer(types, i, &type) || type < TOKEN_UNKNOWN || type > TOKEN_USER_DEFINED)
            continue;
        const nbl__token *token = &t->model.vocab.tokens[i];
        nbl__added_token added = {.content = {token->text, token->size},
                                  .special = type != TOKEN_USER_DEFINED};
        if (token->size) nbl__added_add(&t->added, &t->model, &added, &next);
    }
    return nbl__added_finish(&t->added, s->path);
}

/* ---- frame, pre-tokenizer and detokenizer ---- */

/* Makes the frames: BOS and EOS around a text. The flags of the file decide; `add_bos` is the
 * default for BOS, false for EOS. */
static nbl_status read_frame(const source *s, bool add_bos)
{
    nbl_tokenizer *t = s->tokenizer;
    int64_t flag, id, n = 0;
    bool add_eos = false;
    if (nbl__gguf_integer(nbl__gguf_find(s->gguf, KEY("add_bos_token")), 0, &flag)) add_bos = flag != 0;
    if (nbl__gguf_integer(nbl__gguf_find(s->gguf, KEY("add_eos_token")), 0, &flag)) add_eos = flag != 0;
    if (nbl__gguf_integer(nbl__gguf_find(s->gguf, KEY("bos_token_id")), 0, &id) && id >= 0 &&
        id < t->model.size)
        t->bos = (int32_t)id;
    if (nbl__gguf_integer(nbl__gguf_find(s->gguf, KEY("eos_token_id")), 0, &id) && id >= 0 &&
        id < t->model.size)
        t->eos = (int32_t)id;
    NBL_CHECK(s->ctx, (!add_bos || t->bos >= 0) && (!add_eos || t->eos >= 0), NBL_ERROR_FORMAT,
              "%s: a token is to be added to texts, but %s does not name it", s->path,
              add_bos && t->bos < 0 ? KEY("bos_token_id") : KEY("eos_token_id"));
    int32_t *items = nbl__arena_alloc(s->arena, 4 * sizeof *items);
    if (items == NULL) return NBL_ERROR_MEMORY;
    items[3] = -1;
    if (add_bos) items[n++] = t->bos;
    items[n++] = -1;
    if (add_eos) items[n++] = t->eos;
    t->framed = (nbl__frame){items, n};
    t->plain = (nbl__frame){items + 3, 1};
    return NBL_OK;
}

/* Compiles a pattern, which the tokenizer owns from then on. */
static nbl_status add_regex(const source *s, const char *pattern, nbl__regex **regex)
{
    NBL_TRY(nbl__regex_compile(s->ctx, s->path, pattern, strlen(pattern), regex));
    return nbl__tokenizer_keep(s->tokenizer, *regex);
}

/* Returns the row with this name, or NULL. */
static const pre_type *find_pre_type(const char *name, size_t size)
{
    for (size_t i = 0; i < sizeof pre_types / sizeof *pre_types; i++)
        for (const char *at = pre_types[i].names; (at = strchr(at, ' ')) != NULL && at[1]; at++)
            if (strncmp(at + 1, name, size) == 0 && at[1 + size] == ' ') return &pre_types[i];
    return NULL;
}

/* The name of the row that has exactly these patterns. For export: the name is all that a file
 * stores. Llama 3's patterns are llama-bpe with or without ignore_merges: where merges make every
 * token, both give the same ids. */
bool nbl__gguf_pre_name(const char *const *patterns, int count, char name[NBL_PRE_NAME])
{
    for (size_t i = 0; i < sizeof pre_types / sizeof *pre_types; i++) {
        const pre_type *pre = &pre_types[i];
        int same = 0;
        while (same < count && pre->patterns[same] && strcmp(pre->patterns[same], patterns[same]) == 0)
            same++;
        if (same != count || pre->patterns[same]) continue;
        size_t length = strcspn(pre->names + 1, " ");
        assert(length < NBL_PRE_NAME);
        memcpy(name, pre->names + 1, length);
        name[length] = '\0';
        return true;
    }
    return false;
}

/* Makes the parts of byte-level BPE. A file without a pre-tokenizer's name has "default". */
static nbl_status read_bpe(const source *s)
{
    nbl_tokenizer *t = s->tokenizer;
    const char *name = "default";
    size_t size = 7;
    nbl__gguf_string(nbl__gguf_find(s->gguf, KEY("pre")), 0, &name, &size);
    const pre_type *pre = size && memchr(name, ' ', size) == NULL && memchr(name, 0, size) == NULL
                              ? find_pre_type(name, size)
                              : NULL;
    NBL_CHECK(s->ctx, pre, NBL_ERROR_UNSUPPORTED, "%s: the pre-tokenizer \"%.*s\" is not known", s->path,
              (int)(size > 64 ? 64 : size), name);
    t->model.kind = NBL_VOCAB_MODEL_BPE;
    t->model.ignore_merges = pre->ignore_merges;
    NBL_TRY(read_merges(s));
    t->pre_tokenizers = nbl__arena_alloc(s->arena, (MAX_PATTERNS + 1) * sizeof *t->pre_tokenizers);
    t->detokenizers = nbl__arena_alloc(s->arena, sizeof *t->detokenizers);
    if (t->pre_tokenizers == NULL || t->detokenizers == NULL) return NBL_ERROR_MEMORY;
    for (int i = 0; pre->patterns[i]; i++) {
        nbl__pre_tokenizer *step = &t->pre_tokenizers[t->pre_tokenizer_count];
        *step = (nbl__pre_tokenizer){.kind = NBL_PRE_SPLIT, .behavior = NBL_BEHAVIOR_ISOLATED};
        NBL_TRY(add_regex(s, pre->patterns[i], &step->regex));
        t->pre_tokenizer_count++;
    }
    t->pre_tokenizers[t->pre_tokenizer_count++] = (nbl__pre_tokenizer){.kind = NBL_PRE_BYTE_LEVEL};
    t->detokenizers[t->detokenizer_count++] = (nbl__detokenizer_step){.kind = NBL_DETOKENIZE_BYTE_LEVEL};
    return read_frame(s, pre->add_bos);
}

/* Makes the parts of SentencePiece BPE. Spaces become U+2581. If add_space_prefix is set, which is
 * the default, one more is put in front of each span between added tokens. */
static nbl_status read_spm(const source *s)
{
    static const nbl__slice block = {"\xe2\x96\x81", 3}, space = {" ", 1};
    nbl_tokenizer *t = s->tokenizer;
    int64_t prefix = 1, unknown;
    t->model.kind = NBL_VOCAB_MODEL_SCORED;
    NBL_TRY(read_scores(s));
    nbl__gguf_integer(nbl__gguf_find(s->gguf, KEY("add_space_prefix")), 0, &prefix);
    if (nbl__gguf_integer(nbl__gguf_find(s->gguf, KEY("unknown_token_id")), 0, &unknown) && unknown >= 0 &&
        unknown < t->model.size)
        t->model.unknown = (int32_t)unknown;
    nbl__regex *regex, *back;
    NBL_TRY(add_regex(s, " ", &regex));
    NBL_TRY(add_regex(s, "\xe2\x96\x81", &back));
    t->normalizers = nbl__arena_alloc(s->arena, 2 * sizeof *t->normalizers);
    t->detokenizers = nbl__arena_alloc(s->arena, 4 * sizeof *t->detokenizers);
    if (t->normalizers == NULL || t->detokenizers == NULL) return NBL_ERROR_MEMORY;
    if (prefix)
        t->normalizers[t->normalizer_count++] = (nbl__normalizer){.kind = NBL_NORMALIZE_PREPEND,
                                                                  .content = block};
    t->normalizers[t->normalizer_count++] = (nbl__normalizer){
        .kind = NBL_NORMALIZE_REPLACE, .regex = regex, .content = block};
    t->detokenizers[t->detokenizer_count++] = (nbl__detokenizer_step){
        .kind = NBL_DETOKENIZE_REPLACE, .regex = back, .content = space};
    t->detokenizers[t->detokenizer_count++] = (nbl__detokenizer_step){.kind = NBL_DETOKENIZE_BYTE_FALLBACK};
    t->detokenizers[t->detokenizer_count++] = (nbl__detokenizer_step){.kind = NBL_DETOKENIZE_FUSE};
    if (prefix)
        t->detokenizers[t->detokenizer_count++] = (nbl__detokenizer_step){
            .kind = NBL_DETOKENIZE_STRIP, .character = ' ', .start = 1};
    return read_frame(s, true);
}

/* Reads the parts in the order in which they depend on each other: tokens, then merges or scores,
 * then the added tokens, whose ids are those of the model. */
static nbl_status read_parts(const source *s)
{
    nbl_tokenizer *t = s->tokenizer;
    const char *name;
    size_t size;
    t->model.prefix = t->model.suffix = (nbl__slice){"", 0};
    t->model.unknown = 0;
    t->model.unknown_text = "";
    t->has_detokenizer = true;
    if (!nbl__gguf_string(nbl__gguf_find(s->gguf, KEY("model")), 0, &name, &size))
        return missing(s, KEY("model"), "a text");
    NBL_TRY(read_tokens(s));
    if (size == 4 && memcmp(name, "gpt2", 4) == 0) NBL_TRY(read_bpe(s));
    else if (size == 5 && memcmp(name, "llama", 5) == 0) NBL_TRY(read_spm(s));
    else
        return nbl__fail(s->ctx, NBL_ERROR_UNSUPPORTED,
                         "%s: the tokenizer model \"%.*s\" is not supported (gpt2 and llama are)", s->path,
                         (int)(size > 64 ? 64 : size), name);
    nbl__vocab_model_finish(&t->model);
    return read_added(s);
}

nbl_status nbl__tokenizer_read_gguf(nbl_tokenizer *t, const char *path)
{
    nbl__gguf *gguf;
    NBL_TRY(nbl__gguf_open(t->ctx, path, &gguf));
    source s = {t, t->ctx, &t->arena, gguf, path};
    nbl_status status = read_parts(&s);
    nbl__gguf_close(gguf);
    return status;
}
