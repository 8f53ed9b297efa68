/* adapter_init.c - creates and initialises a new LoRA or DoRA adapter. See adapter_init.h. */
#include "train/adapter_init.h"

#include <math.h>
#include <stdio.h>

#include "base/hash.h"
#include "base/philox.h"
#include "device/device_memory.h"

nbl_status nbl__new_adapter(nbl_model *model, const nbl__run_config *c)
{
    nbl__peft_settings settings = {.base_model = c->base_model,
                                   .task_type = "CAUSAL_LM",
                                   .r = c->lora_r,
                                   .alpha = c->lora_alpha,
                                   .dropout = c->lora_dropout,
                                   .rslora = c->rslora,
                                   .dora = c->dora,
                                   .all_linear = c->target_linear,
                                   .parameters = {c->target_parameters.items, c->target_parameters.count},
                                   .modules_to_save = {c->modules_to_save.items, c->modules_to_save.count}};
    if (!c->target_linear) {
        settings.target.regex = c->target_regex;
        settings.target.list = (nbl__peft_list){c->target_modules.items, c->target_modules.count};
    }
    return nbl__model_new_adapter(model, c->file, &settings);
}

/* Fills to[0..n) with uniform numbers in [-bound, bound). Philox block i gives elements 4i .. 4i
 * + 3, so a value depends on its index and the key alone. */
static void fill_uniform(float *to, int64_t n, double bound, uint64_t key)
{
    const uint32_t keys[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    for (int64_t at = 0; at < n; at += 4) {
        uint32_t counter[4] = {(uint32_t)(at / 4), (uint32_t)((uint64_t)(at / 4) >> 32), 0, 0}, words[4];
        nbl__philox(counter, keys, words);
        for (int64_t i = 0; i < 4 && at + i < n; i++)
            to[at + i] = (float)(bound * (2 * (double)nbl__uniform(words[i]) - 1));
    }
}

/* norms[i] = ‖row i of the base weight‖, summed in f64, one dequantized row at a time. The
 * module's name is module[0..length). */
static nbl_status fill_norms(nbl_model *model, const char *module, size_t length, float *norms)
{
    char name[256];
    snprintf(name, sizeof name, "%.*s.weight", (int)length, module);
    const struct nbl__weight_entry *held = nbl__model_find(model, name);
    NBL_CHECK(model->ctx, held && held->weight.rank == 2, NBL_ERROR_INTERNAL, "no weight \"%s\"", name);
    int64_t columns = held->weight.shape[1];
    float *row = nbl__alloc(model->ctx, (size_t)columns * sizeof *row);
    if (row == NULL) return NBL_ERROR_MEMORY;
    nbl_status status = NBL_OK;
    for (int64_t i = 0; i < held->weight.shape[0] && status == NBL_OK; i++) {
        double sum = 0;
        if (i % 256 == 0 && (status = nbl__progress_poll(model->ctx, name)) != NBL_OK) break;
        status = nbl__dequantize_host(model->ctx, &held->weight, i, i + 1, NBL_DTYPE_F32, 0, row);
        for (int64_t k = 0; k < columns; k++) sum += (double)row[k] * (double)row[k];
        norms[i] = (float)sqrt(sum);
    }
    nbl__free(model->ctx, row, (size_t)columns * sizeof *row);
    return status;
}

nbl_status nbl__init_adapter(nbl__session *s, uint64_t seed)
{
    static const char magnitude_end[] = ".lora_magnitude_vector";
    for (nbl__value v = 1; v <= s->graph.value_count; v++) {
        const nbl__value_info *info = &s->graph.values[v];
        if (info->kind != NBL_KIND_PARAMETER || !info->trained) continue;
        bool is_a = info->role == NBL_WEIGHT_LORA_A, is_magnitude = info->role == NBL_WEIGHT_MAGNITUDE;
        if (!is_a && !is_magnitude) continue;
        int64_t n = nbl__tensor_elements(&info->tensor);
        void *memory = nbl__plan_address(&s->plan, v), *to;
        NBL_TRY(nbl__memory_map_host(s->graph.ctx, memory, (size_t)n * sizeof(float), false, &to));
        if (is_a)
            fill_uniform(to, n, 1 / sqrt((double)info->tensor.shape[1]),
                         nbl__hash(seed, info->name, strlen(info->name)));
        else NBL_TRY(fill_norms(s->model, info->name, strlen(info->name) - strlen(magnitude_end), to));
        NBL_TRY(nbl__memory_unmap_host(s->graph.ctx, memory, (size_t)n * sizeof(float), to));
    }
    return NBL_OK;
}
