/* bpe.c - the tokenizer: byte-level BPE with one token per digit.
 *
 * Words are cut as the pattern in tokenizer.json cuts them (here only for ASCII, which is all that
 * the chats have), and counted once each. Then, until the vocabulary is full, the most frequent
 * pair of neighbouring tokens becomes a token; of equally frequent pairs the one with the smaller
 * ids. Cost: merges x distinct words, which is milliseconds.
 *
 *     tokens 0 … 255       the bytes
 *     256 … 508            merges, in the order in which they were found
 *     509, 510, 511        <|endoftext|>, <|im_start|>, <|im_end|> */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "tiny.h"

enum { MAX_WORDS = 1 << 12, WORD_BYTES = 48, TABLE = 1 << 14 };

/* A distinct word: how often it occurs, and its tokens so far. */
typedef struct word {
    char text[WORD_BYTES];
    int64_t count;
    int size;
    int16_t tokens[WORD_BYTES];
} word;

typedef struct trainer {
    word *words;
    int *table; /* hash of a text to a word's number + 1 */
    int word_count;
    char (*tokens)[WORD_BYTES]; /* a token's bytes */
    int token_count;
    int16_t (*merges)[2];
    int merge_count;
} trainer;

static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
enum { SPECIAL = 3 };

/* ---- words ---- */

/* Counts a word; the table finds its number by open addressing. */
static void count_word(trainer *t, const char *text, size_t size)
{
    char key[WORD_BYTES] = "";
    if (size >= WORD_BYTES) fail("too long a word");
    memcpy(key, text, size);
    uint64_t at = hash_text(key) % TABLE;
    while (t->table[at] && strcmp(t->words[t->table[at] - 1].text, key) != 0) at = (at + 1) % TABLE;
    if (t->table[at] == 0) {
        if (t->word_count == MAX_WORDS) fail("too many words");
        word *w = &t->words[t->word_count++];
        memcpy(w->text, key, WORD_BYTES);
        w->size = (int)size;
        for (size_t i = 0; i < size; i++) w->tokens[i] = (unsigned char)key[i];
        t->table[at] = t->word_count;
    }
    t->words[t->table[at] - 1].count++;
}

/* [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N} | other runs; close enough to the pattern for counting. */
static void count_words(trainer *t, const char *text)
{
    while (*text) {
        size_t size = 1;
        if (!isdigit((unsigned char)*text)) {
            size_t letters = isalpha((unsigned char)*text) ? 0 : 1;
            if (isalpha((unsigned char)text[letters])) {
                for (size = letters; isalpha((unsigned char)text[size]);) size++;
            }
        }
        count_word(t, text, size);
        text += size;
    }
}

/* ---- merges ---- */

/* The most frequent pair. Rows and columns are visited in order and only a higher count replaces
 * the best, so the smaller ids win a tie. False: no pair occurs twice. */
static bool best_pair(const trainer *t, int16_t pair[2])
{
    static int64_t counts[VOCABULARY][VOCABULARY];
    memset(counts, 0, sizeof counts);
    int64_t best = 1;
    for (int i = 0; i < t->word_count; i++)
        for (int k = 0; k + 1 < t->words[i].size; k++)
            counts[t->words[i].tokens[k]][t->words[i].tokens[k + 1]] += t->words[i].count;
    for (int a = 0; a < t->token_count; a++)
        for (int b = 0; b < t->token_count; b++)
            if (counts[a][b] > best) best = counts[a][b], pair[0] = (int16_t)a, pair[1] = (int16_t)b;
    return best > 1;
}

/* Replaces a pair by its token in all words, from left to right. */
static void apply(trainer *t, const int16_t pair[2], int16_t token)
{
    for (int i = 0; i < t->word_count; i++) {
        word *w = &t->words[i];
        int out = 0;
        for (int k = 0; k < w->size; k++) {
            bool merged = k + 1 < w->size && w->tokens[k] == pair[0] && w->tokens[k + 1] == pair[1];
            w->tokens[out++] = merged ? token : w->tokens[k];
            k += merged;
        }
        w->size = out;
    }
}

/* Fills the vocabulary, one merge at a time. */
static void train(trainer *t)
{
    for (int i = 0; i < 256; i++) t->tokens[i][0] = (char)i;
    t->token_count = 256;
    while (t->token_count < VOCABULARY - SPECIAL) {
        int16_t *pair = t->merges[t->merge_count];
        if (!best_pair(t, pair)) fail("too little text for %d tokens", VOCABULARY);
        char *made = t->tokens[t->token_count];
        size_t first = strlen(t->tokens[pair[0]]), second = strlen(t->tokens[pair[1]]);
        if (first + second >= WORD_BYTES) fail("too long a token");
        memcpy(made, t->tokens[pair[0]], first);
        memcpy(made + first, t->tokens[pair[1]], second + 1);
        apply(t, pair, (int16_t)t->token_count++);
        t->merge_count++;
    }
}

/* ---- tokenizer.json ---- */

/* Byte-level tokens are written with a printable character per byte: itself, or one from U+0100 on. */
static unsigned printable(unsigned byte)
{
    unsigned shifted = 0;
    for (unsigned b = 0; b < 256; b++) {
        bool plain = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte) return plain ? b : 0x100 + shifted;
        shifted += !plain;
    }
    return 0;
}

/* Prints a token as a JSON text. */
static void print_token(FILE *file, const trainer *t, int token)
{
    const unsigned char *bytes = (const unsigned char *)t->tokens[token];
    size_t size = token < 256 ? 1 : strlen(t->tokens[token]); /* the byte 0 is a token, too */
    fputc('"', file);
    for (size_t i = 0; i < size; i++) {
        unsigned c = printable(bytes[i]);
        if (c == '"' || c == '\\') fputc('\\', file);
        if (c < 0x80) fputc((int)c, file);
        else fprintf(file, "%c%c", (int)(0xc0 | c >> 6), (int)(0x80 | (c & 0x3f)));
    }
    fputc('"', file);
}

/* Writes tokenizer.json: vocabulary and merges, and the pre-tokenizer with the same cuts. */
static void write_tokenizer_json(const char *folder, const trainer *t)
{
    FILE *file = create(folder, "tokenizer.json");
    fputs(
        "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [\n",
        file);
    for (int i = 0; i < SPECIAL; i++)
        fprintf(file,
                "    {\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
                "\"rstrip\": false, "
                "\"normalized\": false, \"special\": true}%s\n",
                VOCABULARY - SPECIAL + i, special[i], i + 1 < SPECIAL ? "," : "");
    fputs(
        "  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n"
        "    {\"type\": \"Split\", \"pattern\": {\"Regex\": "
        "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "
        "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}, "
        "\"behavior\": \"Isolated\", \"invert\": false},\n"
        "    {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": false, \"use_regex\": "
        "false}\n  ]},\n  \"post_processor\": null,\n"
        "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": false, "
        "\"use_regex\": false},\n"
        "  \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
        "\"continuing_subword_prefix\": "
        "null, \"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, "
        "\"ignore_merges\": "
        "false,\n  \"vocab\": {",
        file);
    for (int i = 0; i < t->token_count; i++) {
        fputs(i ? ", " : "", file);
        print_token(file, t, i);
        fprintf(file, ": %d", i);
    }
    fputs("},\n  \"merges\": [", file);
    for (int i = 0; i < t->merge_count; i++) {
        fputs(i ? ", [" : "[", file);
        print_token(file, t, t->merges[i][0]);
        fputs(", ", file);
        print_token(file, t, t->merges[i][1]);
        fputc(']', file);
    }
    fputs("]}\n}\n", file);
    finish(file, "tokenizer.json");
}

/* Writes the chat template (ChatML) and the special tokens. */
static void write_texts(const char *folder)
{
    FILE *file = create(folder, "chat_template.jinja");
    fputs("{%- for message in messages %}\n"
          "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}\n"
          "{%- endfor %}\n"
          "{%- if add_generation_prompt %}\n"
          "{{- '<|im_start|>assistant\\n' }}\n"
          "{%- endif %}\n",
          file);
    finish(file, "chat_template.jinja");
    file = create(folder, "tokenizer_config.json");
    fprintf(
        file,
        "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"bos_token\": null,\n  \"eos_token\": "
        "\"%s\",\n  \"pad_token\": \"%s\",\n  \"unk_token\": null,\n  \"clean_up_tokenization_spaces\": "
        "false,\n"
        "  \"model_max_length\": 512\n}\n",
        special[2], special[0]);
    finish(file, "tokenizer_config.json");
}

/* The words of roles are counted too, because the template writes them in every chat. */
void write_tokenizer(const char *folder, const chat *chats, int count)
{
    trainer t = {.words = allocate(MAX_WORDS * sizeof *t.words),
                 .table = allocate(TABLE * sizeof *t.table),
                 .tokens = allocate(VOCABULARY * sizeof *t.tokens),
                 .merges = allocate(VOCABULARY * sizeof *t.merges)};
    for (int i = 0; i < count; i++) {
        count_words(&t, "user\n");
        count_words(&t, chats[i].question);
        count_words(&t, "assistant\n");
        count_words(&t, chats[i].answer);
    }
    train(&t);
    write_tokenizer_json(folder, &t);
    write_texts(folder);
    free(t.words);
    free(t.table);
    free(t.tokens);
    free(t.merges);
}
