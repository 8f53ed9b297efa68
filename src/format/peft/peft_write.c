/* peft_write.c - writes adapter_config.json and adapter_model.safetensors as PEFT 0.21 does. See
 * peft.h.
 *
 *     declare each tensor ─▶ layout ─▶ open the folder ─▶ config ─▶ tensors ─▶ commit
 *
 * All tensors are one group of one file. They are written one by one from the caller's memory. The
 * layout comes first, because a safetensors file begins with the offsets of all tensors. */
#include <stdio.h>
#include <stdlib.h>

#include "format/hf/text_part.h"
#include "format/peft/peft.h"

/* One write. tensors[n] is the tensor that the writer knows as number n. */
typedef struct plan {
    nbl_context *ctx;
    nbl__arena arena;
    nbl__safetensors_writer *writer;
    const nbl__peft_description *description;
    const nbl_tensor **tensors; /* [count] by the writer's number */
    int64_t count;
} plan;

/* A path or name as it is written; NULL if memory has run out or it is too long. */
static const char *spell(plan *p, const char *name)
{
    char memory[1024];
    const char *spelled = nbl__text_spell(p->description->prefix, name, memory, sizeof memory);
    return spelled ? nbl__arena_strdup(&p->arena, spelled) : NULL;
}

/* Declares one tensor under PEFT's name. Numbers are given out in order, so p->tensors has no
 * gaps. */
static nbl_status declare(plan *p, const char *path, const char *ending, const nbl_tensor *tensor)
{
    int64_t number = 0;
    const char *spelled = spell(p, path);
    char *name = spelled ? nbl__arena_printf(&p->arena, "base_model.model.%s%s", spelled, ending) : NULL;
    if (name == NULL) return NBL_ERROR_MEMORY;
    NBL_CHECK(p->ctx, tensor->data, NBL_ERROR_ARGUMENT, "tensor \"%s\" has no data", name);
    NBL_TRY(nbl__safetensors_writer_declare(p->writer, 0, name, tensor->dtype, tensor->rank, tensor->shape,
                                            &number));
    p->tensors[number] = tensor;
    p->count = number + 1;
    return NBL_OK;
}

/* Declares A, B and the optional parts of each module, then the replacements. */
static nbl_status declare_all(plan *p)
{
    const nbl__peft_description *d = p->description;
    size_t max = (size_t)(4 * d->module_count + d->replacement_count);
    p->tensors = nbl__arena_alloc(&p->arena, max * sizeof *p->tensors);
    if (p->tensors == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < d->module_count; i++) {
        const nbl__peft_new_module *m = &d->modules[i];
        const char *stem = m->stem ? m->stem : m->path;
        NBL_TRY(declare(p, stem, m->is_embedding ? ".lora_embedding_A" : ".lora_A.weight", &m->a));
        NBL_TRY(declare(p, stem, m->is_embedding ? ".lora_embedding_B" : ".lora_B.weight", &m->b));
        if (m->b_bias.data) NBL_TRY(declare(p, stem, ".lora_B.bias", &m->b_bias));
        if (m->magnitude.data) NBL_TRY(declare(p, stem, ".lora_magnitude_vector", &m->magnitude));
    }
    for (int64_t i = 0; i < d->replacement_count; i++)
        NBL_TRY(declare(p, d->replacements[i].name, "", &d->replacements[i].tensor));
    return NBL_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Writes adapter_config.json. "all-linear" depends on the model, so, as in PEFT, it is replaced by
 * the list of adapted modules; experts among them stand in target_parameters. */
static nbl_status put_config(plan *p, nbl__output *output)
{
    const nbl__peft_description *d = p->description;
    nbl__peft_settings settings = d->settings;
    nbl__text text = {.ctx = p->ctx};
    if (settings.all_linear) {
        const char **paths = nbl__arena_alloc(&p->arena, (size_t)d->module_count * sizeof *paths);
        if (paths == NULL) return NBL_ERROR_MEMORY;
        int64_t count = 0;
        for (int64_t i = 0; i < d->module_count; i++) {
            if (d->modules[i].is_experts) continue;
            if ((paths[count++] = spell(p, d->modules[i].path)) == NULL) return NBL_ERROR_MEMORY;
        }
        qsort(paths, (size_t)count, sizeof *paths, by_text);
        settings.target.list = (nbl__peft_list){paths, count};
        settings.all_linear = false;
    }
    nbl__peft_settings_print(&text, &settings);
    nbl_status status = text.status;
    if (status == NBL_OK) status = nbl__output_put(output, "adapter_config.json", text.text, text.size);
    nbl__text_free(&text);
    return status;
}

static nbl_status put_tensors(plan *p, nbl__output *output)
{
    uint64_t written = 0;
    NBL_TRY(nbl__safetensors_writer_begin_group(p->writer, output, 0));
    for (int64_t i = 0; i < p->count; i++)
        NBL_TRY(nbl__safetensors_writer_write_all(p->writer, i, p->tensors[i]->data));
    return nbl__safetensors_writer_finish(p->writer, output, &written);
}

/* All that can fail without a file: declares the tensors and computes the size of the output. */
static nbl_status prepare(plan *p, uint64_t *bytes)
{
    int files = 0;
    NBL_CHECK(p->ctx, p->description->module_count > 0, NBL_ERROR_ARGUMENT, "an adapter without modules");
    NBL_TRY(nbl__safetensors_writer_create(p->ctx, &p->writer));
    nbl__safetensors_writer_name(p->writer, "adapter_model");
    NBL_TRY(declare_all(p));
    return nbl__safetensors_writer_layout(p->writer, UINT64_MAX, bytes, &files);
}

static void finish(plan *p)
{
    nbl__safetensors_writer_free(p->writer);
    nbl__arena_free(&p->arena);
}

nbl_status nbl__peft_put(nbl__output *output, const nbl__peft_description *description)
{
    plan p = {.ctx = output->ctx, .arena = nbl__arena_make(output->ctx), .description = description};
    uint64_t bytes = 0;
    nbl_status status = prepare(&p, &bytes);
    if (status == NBL_OK) status = put_config(&p, output);
    if (status == NBL_OK) status = put_tensors(&p, output);
    finish(&p);
    return status;
}

nbl_status nbl__peft_write(nbl_context *ctx, const char *folder, const nbl__peft_description *description)
{
    plan p = {.ctx = ctx, .arena = nbl__arena_make(ctx), .description = description};
    nbl__output *output = NULL;
    uint64_t bytes = 0;
    nbl_status status = prepare(&p, &bytes);
    if (status == NBL_OK) status = nbl__output_begin(ctx, folder, bytes, &output);
    if (status == NBL_OK) status = put_config(&p, output);
    if (status == NBL_OK) status = put_tensors(&p, output);
    finish(&p);
    if (status == NBL_OK) return nbl__output_commit(output);
    nbl__output_abort(output);
    return status;
}
