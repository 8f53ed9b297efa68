/* fuzz_run_config.c - a run's YAML file and one override: the input up to its first line that begins with "%%set ",
 * and the rest of that line. What was read must, written, read back to the same text. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fuzz.h"
#include "run/run_config.h"

static const char *scratch_file(void)
{
    static char path[64];
    if (*path == 0) {
        const char *folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        snprintf(path, sizeof path, "%s/nibble-fuzz-run-%ld.yml", folder, (long)getpid());
    }
    return path;
}

static void put(const void *data, size_t size)
{
    FILE *file = fopen(scratch_file(), "wb");
    MUST(file != NULL && fwrite(data, 1, size, file) == size && fclose(file) == 0);
}

static bool same(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char mark[] = "\n%%set ";
    nbl_context *ctx = fuzz_context();
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__run_config first, second;
    nbl__text text = {.ctx = ctx}, again = {.ctx = ctx};
    char override[256] = "";
    const char *overrides[] = {override};
    const uint8_t *at = memmem(data, size, mark, sizeof mark - 1);
    size_t rest = at ? size - (size_t)(at - data) - (sizeof mark - 1) : 0;
    if (at) {
        size_t length = rest < sizeof override - 1 ? rest : sizeof override - 1;
        memcpy(override, at + sizeof mark - 1, length);
        override[length] = 0;
        override[strcspn(override, "\n")] = 0;
    }
    put(data, at ? (size_t)(at - data) + 1 : size);
    if (nbl__run_config_read(&arena, scratch_file(), overrides, at != NULL, &first) == NBL_OK) {
        MUST(nbl__run_config_write(&text, &first) == NBL_OK);
        put(text.text, text.size);
        MUST(nbl__run_config_read(&arena, scratch_file(), NULL, 0, &second) == NBL_OK);
        MUST(nbl__run_config_write(&again, &second) == NBL_OK);
        MUST(text.size == again.size && memcmp(text.text, again.text, text.size) == 0);
        MUST(same(first.base_model, second.base_model) && same(first.output_dir, second.output_dir));
        MUST(same(first.chat_template, second.chat_template) && same(first.pad_token, second.pad_token));
        MUST(first.learning_rate == second.learning_rate && first.seed == second.seed);
        MUST(first.full == second.full && first.compute == second.compute);
        MUST(first.warmup_steps == second.warmup_steps && first.dataset_count == second.dataset_count);
    }
    unlink(scratch_file());
    nbl__text_free(&text);
    nbl__text_free(&again);
    nbl__arena_free(&arena);
    return 0;
}
