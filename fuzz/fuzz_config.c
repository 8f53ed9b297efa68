/* fuzz_config.c - config.json: parsing, and edits of its text. After an edit the text must still
 * parse and say what the edit said. */
#include "format/hf/config.h"
#include "fuzz.h"

/* A key in escaped spelling is not found by an edit: then it may stand there twice, or stay. */
static void edit(nbl__arena *arena, const nbl__config *config, const nbl__config_edit *edits, int count)
{
    bool escaped = memchr(config->text, '\\', config->size) != NULL;
    nbl__text text = {.ctx = arena->ctx};
    nbl__config after;
    MUST(nbl__config_apply(arena->ctx, config, edits, count, &text) == NBL_OK);
    bool parsed = nbl__config_parse(arena, "edited", text.text, text.size, &after) == NBL_OK;
    MUST(parsed || escaped);
    for (int i = 0; i < count && parsed; i++) {
        const nbl__json *value = nbl__json_get(after.root, edits[i].key);
        MUST((value != NULL) == (edits[i].value != NULL) || escaped);
    }
    nbl__text_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const nbl__config_edit edits[] = {{"quantization_config", "{\"quant_method\": \"bitsandbytes\"}"},
                                             {"dtype", "\"float16\""},
                                             {"vocab_size", NULL}};
    static const nbl__config_edit removal[] = {{"quantization_config", NULL}};
    nbl__arena arena = nbl__arena_make(fuzz_context());
    nbl__config config;
    char *text = malloc(size + 1);
    memcpy(text, data, size);
    text[size] = '\0';
    if (nbl__config_parse(&arena, "fuzz", text, size, &config) == NBL_OK) {
        (void)nbl__config_method(&config);
        edit(&arena, &config, edits, 3);
        edit(&arena, &config, removal, 1);
    }
    nbl__arena_free(&arena);
    free(text);
    return 0;
}
