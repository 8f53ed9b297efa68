/* fuzz_state.c - the JSON of a 4-bit state. What was read, printed and read again must be the same. */
#include "format/hf/bnb_state.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nbl_context *ctx = fuzz_context();
    nbl__bnb_json state, again;
    nbl__arena arena = nbl__arena_make(ctx);
    if (nbl__bnb_json_parse(&arena, "fuzz", data, size, &state) != NBL_OK) return nbl__arena_free(&arena), 0;
    nbl__text text = {.ctx = ctx};
    nbl__bnb_json_print(&text, &state);
    MUST(nbl__bnb_json_parse(&arena, "printed", text.text, text.size, &again) == NBL_OK);
    MUST(state.format == again.format && state.dtype == again.dtype && state.block == again.block);
    MUST(state.rank == again.rank && state.elements == again.elements && state.nested == again.nested);
    MUST(memcmp(state.shape, again.shape, sizeof state.shape) == 0 &&
         state.nested_block == again.nested_block);
    MUST(memcmp(&state.nested_offset, &again.nested_offset, sizeof(float)) == 0);
    nbl__text_free(&text);
    nbl__arena_free(&arena);
    return 0;
}
