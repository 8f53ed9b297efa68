/* tokenizer_files.c - finds a tokenizer's file and makes the text of its tokenizer.json; see
 * tokenizer_files.h. */
#include "text/files/tokenizer_files.h"

#include "base/file/file.h"
#include "text/chars.h"
#include "text/files/tokenizer_builder.h"

enum { LARGEST_FILE = 256 << 20 };

/* In the order in which they count. */
static const char *const names[] = {"tokenizer.json", "tekken.json", "tokenizer.model", "tiktoken.model",
                                    "vocab.json"};

nbl_status nbl__tokenizer_find(nbl__arena *arena, const char *folder, const char **path)
{
    *path = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *file = nbl__arena_printf(arena, "%s/%s", folder, names[i]);
        if (file == NULL) return NBL_ERROR_MEMORY;
        if (!nbl__exists(file)) continue;
        *path = file;
        return NBL_OK;
    }
    return NBL_OK;
}

typedef enum form { TOKENIZER_JSON, TEKKEN, MODEL, VOCAB_MERGES } form;

static form form_of(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (strstr(name, "tekken") && nbl__ends_with(name, ".json")) return TEKKEN;
    if (nbl__ends_with(name, ".model")) return MODEL;
    return strcmp(name, "vocab.json") == 0 ? VOCAB_MERGES : TOKENIZER_JSON;
}

/* Reads merges.txt of the folder and builds. */
static nbl_status build_pair(nbl__tokenizer_builder *b, const char *folder, const char *text, size_t size)
{
    char *merges;
    size_t merges_size;
    const char *path = nbl__arena_printf(b->arena, "%s/merges.txt", folder);
    if (path == NULL) return NBL_ERROR_MEMORY;
    NBL_CHECK(b->ctx, nbl__exists(path), NBL_ERROR_NOT_FOUND, "%s: no merges.txt beside it", b->where);
    NBL_TRY(nbl__file_read(b->ctx, path, LARGEST_FILE, &merges, &merges_size));
    nbl_status status = nbl__utf8_check(merges, merges_size) == merges_size
                            ? nbl__build_vocab_merges(b, text, size, merges, merges_size)
                            : nbl__fail(b->ctx, NBL_ERROR_FORMAT, "%s: not valid UTF-8", path);
    nbl__free(b->ctx, merges, merges_size + 1);
    return status;
}

/* Converts a file of another form. */
static nbl_status build(nbl__tokenizer_builder *b, form kind, const char *text, size_t size)
{
    const char *slash = strrchr(b->where, '/');
    const char *folder = slash ? nbl__arena_printf(b->arena, "%.*s", (int)(slash - b->where), b->where) : ".";
    if (folder == NULL) return NBL_ERROR_MEMORY;
    NBL_TRY(nbl__tokenizer_settings_read(b->arena, *folder ? folder : "/", &b->settings));
    b->class = kind == VOCAB_MERGES ? b->settings.pair_class : b->settings.class;
    if (kind == VOCAB_MERGES) return build_pair(b, folder, text, size);
    if (kind == TEKKEN || nbl__looks_like_tiktoken(text, size)) {
        nbl__class_defaults(&b->settings, b->class);
        return kind == TEKKEN ? nbl__build_tekken(b, text, size) : nbl__build_tiktoken(b, text, size);
    }
    return nbl__build_sentencepiece(b, text, size);
}

nbl_status nbl__tokenizer_text(nbl_context *ctx, const char *path, nbl__text *json)
{
    char *text;
    size_t size;
    form kind = form_of(path);
    NBL_TRY(nbl__file_read(ctx, path, LARGEST_FILE, &text, &size));
    if (kind == TOKENIZER_JSON && json->text == NULL) {
        *json = (nbl__text){.ctx = ctx, .text = text, .size = size, .capacity = size + 1};
        return NBL_OK;
    }
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__tokenizer_builder builder = {.ctx = ctx, .arena = &arena, .where = path, .out = json};
    builder.vocab.ctx = builder.added.ctx = ctx;
    nbl_status status = NBL_OK;
    if (kind == TOKENIZER_JSON) nbl__text_add(json, text, size);
    else status = build(&builder, kind, text, size);
    if (status == NBL_OK) status = json->status;
    nbl__builder_close(&builder);
    nbl__arena_free(&arena);
    nbl__free(ctx, text, size + 1);
    return status;
}
