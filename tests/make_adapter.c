/* make_adapter.c - writes a random adapter for a checkpoint, in PEFT's layout, for tests and demonstrations.
 *
 *     make_adapter MODEL OUT [--rank N] [--dora]
 *
 * All linear layers of the blocks get one, in f32, with both factors random, so that every gradient is. The same
 * arguments give the same bytes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "format/peft/peft.h"

static _Noreturn void fail(const char *what, const char *why)
{
    fprintf(stderr, "make_adapter: %s: %s\n", what, why);
    exit(1);
}

static nbl_tensor random_tensor(uint32_t stream, int rank, int64_t first, int64_t second, float middle)
{
    nbl_tensor t = {.dtype = NBL_DTYPE_F32, .rank = rank, .shape = {first, second}};
    int64_t n = first * (rank > 1 ? second : 1);
    float *values = malloc((size_t)n * sizeof *values);
    if (values == NULL) fail("memory", strerror(errno));
    for (int64_t i = 0; i < n; i++) {
        uint32_t counter[4] = {(uint32_t)i, (uint32_t)(i >> 32), stream, 0}, key[2] = {5, 3}, words[4];
        nbl__philox(counter, key, words);
        values[i] = middle + 0.02f * (nbl__uniform(words[0]) + nbl__uniform(words[1]) - 1);
    }
    t.data = values;
    return t;
}

static nbl__peft_new_module adapter_of(const nbl_tensor_info *info, uint32_t stream, int64_t rank, bool dora)
{
    char *path = strndup(info->name, strlen(info->name) - strlen(".weight"));
    if (path == NULL) fail("memory", strerror(errno));
    nbl__peft_new_module module = {.path = path,
                                   .a = random_tensor(3 * stream, 2, rank, info->weight.shape[1], 0),
                                   .b = random_tensor(3 * stream + 1, 2, info->weight.shape[0], rank, 0)};
    if (dora) module.magnitude = random_tensor(3 * stream + 2, 1, info->weight.shape[0], 0, 1);
    return module;
}

int main(int count, char **words)
{
    int64_t rank = 8, modules = 0;
    bool dora = false;
    if (count < 3) fail("usage", "make_adapter MODEL OUT [--rank N] [--dora]");
    for (int i = 3; i < count; i++) {
        if (strcmp(words[i], "--dora") == 0) dora = true;
        else if (strcmp(words[i], "--rank") == 0 && i + 1 < count) rank = atoi(words[++i]);
        else fail(words[i], "no such option");
    }
    if (rank < 1 || rank > 4096) fail("--rank", "not from 1 to 4096");
    nbl_context *ctx;
    nbl_checkpoint *checkpoint;
    if (nbl_context_create(NULL, &ctx) != NBL_OK) fail("context", "out of memory");
    if (nbl_checkpoint_open(ctx, words[1], NBL_OPEN_STRICT, &checkpoint) != NBL_OK)
        fail(words[1], nbl_error_message(ctx));
    int64_t tensors = nbl_checkpoint_get_summary(checkpoint)->tensors;
    nbl__peft_new_module *list = calloc((size_t)tensors + 1, sizeof *list);
    if (list == NULL) fail("memory", strerror(errno));
    for (int64_t i = 0; i < tensors; i++) {
        const nbl_tensor_info *info = nbl_checkpoint_get_tensor(checkpoint, i);
        if (strstr(info->name, "_proj.weight")) {
            list[modules] = adapter_of(info, (uint32_t)modules, rank, dora);
            modules++;
        }
    }
    nbl__peft_description description = {
        .settings = {.task_type = "CAUSAL_LM", .r = rank, .alpha = 16, .dora = dora, .all_linear = true},
        .modules = list,
        .module_count = modules};
    if (nbl__peft_write(ctx, words[2], &description) != NBL_OK) fail(words[2], nbl_error_message(ctx));
    for (int64_t i = 0; i < modules; i++) {
        free((char *)(uintptr_t)list[i].path);
        free(list[i].a.data);
        free(list[i].b.data);
        free(list[i].magnitude.data);
    }
    free(list);
    nbl_checkpoint_close(checkpoint);
    nbl_context_destroy(ctx);
    return 0;
}
