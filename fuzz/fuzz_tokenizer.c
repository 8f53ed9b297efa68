/* fuzz_tokenizer.c - a tokenizer.json, a zero byte, a text: reading, encoding and decoding. What is encoded must be
 * ids the vocabulary knows, and what is decoded, whole or one by one, valid UTF-8. */
#include "fuzz.h"
#include "text/chars.h"

static void dequantize(nbl_tokenizer *tokenizer, const nbl_ids *ids)
{
    char *text;
    size_t size;
    nbl_text_stream *stream;
    nbl_string piece;
    if (nbl_tokenizer_decode(tokenizer, ids->ids, ids->count, 0, &text, &size) == NBL_OK) {
        MUST(nbl__utf8_check(text, size) == size);
        nbl_text_free(fuzz_context(), text, size);
    }
    MUST(nbl_text_stream_open(tokenizer, 1, &stream) == NBL_OK);
    for (int64_t i = 0; i < ids->count && i < 200; i++)
        if (nbl_text_stream_push(stream, ids->ids[i], &piece) == NBL_OK)
            MUST(nbl__utf8_check(piece.text, piece.size) == piece.size);
    nbl_text_stream_close(stream);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nbl_context *ctx = fuzz_context();
    nbl_tokenizer *tokenizer;
    nbl_ids ids;
    const char *json = (const char *)data;
    size_t length = size ? strnlen(json, size) : 0;
    if (nbl_tokenizer_parse(ctx, "tokenizer.json", size ? json : "", length, &tokenizer) != NBL_OK) {
        MUST(tokenizer == NULL && *nbl_error_message(ctx));
        return 0;
    }
    const char *text = length < size ? json + length + 1 : "";
    size_t rest = length < size ? size - length - 1 : 0;
    nbl_tokenizer_set_truncation_and_padding(tokenizer, 1);
    for (int special = 0; special < 2; special++) {
        if (nbl_tokenizer_encode(tokenizer, text, rest, special, &ids) != NBL_OK) continue;
        dequantize(tokenizer, &ids);
        nbl_ids_free(ctx, &ids);
    }
    nbl_tokenizer_close(tokenizer);
    return 0;
}
