/* fuzz_index.c - model.safetensors.index.json. No file name may lead out of the folder. */
#include "format/hf/shard_index.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nbl_context *ctx = fuzz_context();
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__index index;
    if (nbl__index_parse(&arena, "fuzz", (const char *)data, size, &index) == NBL_OK) {
        MUST(index.count > 0);
        for (int i = 0; i < index.count; i++) {
            MUST(index.files[i][0] && !strchr(index.files[i], '/') && strcmp(index.files[i], "..") != 0);
            MUST(i == 0 || strcmp(index.files[i - 1], index.files[i]) < 0);
        }
    }
    nbl__arena_free(&arena);
    return 0;
}
