/* fuzz_tokenizer_files.c - a folder without tokenizer.json: a byte that chooses the tokenizer's file, the settings and a zero
 * byte, the file. What is made of it must be a tokenizer.json that is read, or is refused with a message; what is read
 * encodes a text. vocab.json ends at a zero byte; merges.txt follows.
 *
 *     bits 0-1   tokenizer.model, tekken.json, tiktoken.model, vocab.json
 *     bits 2-3   the settings are tokenizer_config.json, special_tokens_map.json, added_tokens.json, all of these
 *     bits 4-6   model_type in config.json */
#include "fuzz.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "text/files/tokenizer_files.h"

static char root[] = "/tmp/nibble-fuzz-XXXXXX";
static const char *const files[] = {
    "tokenizer.model", "tekken.json",           "tiktoken.model",          "vocab.json",       "merges.txt",
    "config.json",     "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"};
enum { FILES = sizeof files / sizeof *files, SETTINGS = 6 };

static const char *path_of(int file)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", root, files[file]);
    return path;
}

static void put(int at, const void *data, size_t size)
{
    FILE *file = fopen(path_of(at), "wb");
    MUST(file && fwrite(data, 1, size, file) == size);
    MUST(fclose(file) == 0);
}

static void clear(void)
{
    for (int i = 0; i < FILES; i++) (void)remove(path_of(i));
}

static void remove_folder(void)
{
    clear();
    (void)remove(root);
}

static void read_back(nbl_context *ctx)
{
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__text json = {.ctx = ctx};
    nbl_tokenizer *tokenizer = NULL;
    const char *path;
    MUST(nbl__tokenizer_find(&arena, root, &path) == NBL_OK && path);
    if (nbl__tokenizer_text(ctx, path, &json) != NBL_OK) {
        MUST(*nbl_error_message(ctx));
    } else {
        const nbl__json *value;
        MUST(nbl__json_parse(&arena, path, json.text, json.size, NBL_JSON_SERDE, &value) == NBL_OK);
        if (nbl_tokenizer_open(ctx, root, &tokenizer) == NBL_OK) {
            nbl_ids ids;
            if (nbl_tokenizer_encode(tokenizer, "a b\xc3\xa4 12", 8, 1, &ids) == NBL_OK)
                nbl_ids_free(ctx, &ids);
        }
        nbl_tokenizer_close(tokenizer);
    }
    nbl__text_free(&json);
    nbl__arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const types[] = {"llama", "mistral", "gemma2", "t5",
                                        "qwen2", "cohere2", "olmo",   "gpt2"};
    static bool made;
    char config[64];
    if (size == 0) return 0;
    if (!made) {
        MUST(mkdtemp(root));
        (void)atexit(remove_folder);
        made = true;
    }
    clear();
    unsigned kind = data[0];
    const uint8_t *text = data + 1, *zero = memchr(text, 0, size - 1);
    size_t length = zero ? (size_t)(zero - text) : size - 1;
    for (unsigned i = 0; i < 3 && length; i++)
        if ((kind >> 2 & 3) == i || (kind >> 2 & 3) == 3) put(SETTINGS + (int)i, text, length);
    put(5, config, (size_t)snprintf(config, sizeof config, "{\"model_type\":\"%s\"}", types[kind >> 4 & 7]));
    const uint8_t *file = text + length + (zero != NULL);
    size_t rest = size - 1 - length - (zero != NULL);
    const uint8_t *end = (kind & 3) == 3 ? memchr(file, 0, rest) : NULL;
    size_t first = end ? (size_t)(end - file) : rest;
    put((int)(kind & 3), file, first);
    if (end) put(4, end + 1, rest - first - 1);
    read_back(fuzz_context());
    return 0;
}
