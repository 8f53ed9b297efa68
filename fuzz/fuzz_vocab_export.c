/* fuzz_vocab_export.c - a tokenizer.json as the entries of a GGUF file: whatever it says, it is written or refused with a
 * message, and what is written has a text and a type for every token. */
#include "fuzz.h"
#include "text/vocab/vocab_export.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { TOKENS = 300 };
    nbl_context *ctx = fuzz_context();
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__gguf_writer writer;
    nbl__exported_vocab exported;
    nbl__gguf_writer_open(ctx, &writer);
    nbl_string text = {size ? (const char *)data : "", size};
    if (nbl__vocab_export_text(&arena, "tokenizer.json", text, TOKENS, &writer, &exported) == NBL_OK)
        MUST(writer.entries.status == NBL_OK && writer.entries.size > TOKENS * (8 + 4));
    else MUST(*nbl_error_message(ctx));
    nbl__gguf_writer_close(&writer);
    nbl__arena_free(&arena);
    return 0;
}
