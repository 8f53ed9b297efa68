/* readers.c - the readers of GGUF models and PEFT adapters as a command, for tests/oracle/test_readers.py.
 *
 *   readers gguf FILE DTYPE OUT       OUT becomes a folder with config.json and model.safetensors
 *   readers peft FOLDER MODULES OUT   checks the adapter against the modules (a file of lines `path kind out in`;
 *                                     kind 0 linear, 1 head, 2 embedding, 3 other), prints a line for each module and replacement, and
 *                                     writes the adapter again to the folder OUT
 *
 * A failure prints its message and ends with status 1. */
#include <stdio.h>
#include <stdlib.h>

#include "format/gguf/gguf_model.h"
#include "format/peft/peft.h"

static nbl_status write_model(nbl__gguf_model *model, nbl__safetensors_writer *writer, nbl__output *output,
                              nbl_dtype dtype)
{
    uint64_t bytes;
    NBL_TRY(nbl__output_put(output, "config.json", model->config.text, model->config.size));
    NBL_TRY(nbl__safetensors_writer_begin_group(writer, output, 0));
    for (int64_t i = 0; i < model->weight_count; i++) {
        const nbl__gguf_weight *w = &model->weights[i];
        size_t row = (size_t)w->columns * nbl__size_of(dtype);
        void *values = malloc(row * 3);
        for (int64_t at = 0; at < w->rows; at += 3) { /* a few rows at a time: pieces must fit together */
            int64_t end = nbl__min_i64(at + 3, w->rows);
            NBL_TRY(nbl__gguf_weight_rows(model->ctx, w, at, end, dtype, values));
            NBL_TRY(nbl__safetensors_writer_write(writer, i, values, (size_t)(end - at) * row,
                                                  (uint64_t)at * row));
        }
        free(values);
    }
    return nbl__safetensors_writer_finish(writer, output, &bytes);
}

static nbl_status convert(nbl_context *ctx, const char *path, const char *dtype_name, const char *target)
{
    nbl__gguf_model *model;
    nbl__safetensors_writer *writer;
    nbl__output *output;
    nbl_dtype dtype;
    uint64_t bytes;
    int files;
    NBL_CHECK(ctx, nbl_dtype_parse(dtype_name, &dtype), NBL_ERROR_ARGUMENT, "no dtype: %s", dtype_name);
    NBL_TRY(nbl__gguf_model_open(ctx, path, &model));
    NBL_TRY(nbl__safetensors_writer_create(ctx, &writer));
    for (int64_t i = 0, number; i < model->weight_count; i++) {
        const nbl__gguf_weight *w = &model->weights[i];
        int64_t matrix[] = {w->rows, w->columns};
        int rank = nbl__gguf_weight_rank(w);
        NBL_TRY(nbl__safetensors_writer_declare(writer, 0, w->name, dtype, rank,
                                                rank == 1 ? &w->columns : matrix, &number));
    }
    NBL_TRY(nbl__safetensors_writer_layout(writer, UINT64_MAX, &bytes, &files));
    NBL_TRY(nbl__output_begin(ctx, target, bytes, &output));
    NBL_TRY(write_model(model, writer, output, dtype));
    nbl__safetensors_writer_free(writer);
    nbl__gguf_model_close(model);
    return nbl__output_commit(output);
}

/* ---- adapters ---- */

enum { MAX = 4096 };

/* The numbers of kinds in a file of modules. */
static const nbl__peft_kind kinds[] = {NBL_PEFT_LINEAR, NBL_PEFT_HEAD, NBL_PEFT_EMBEDDING, NBL_PEFT_OTHER};

static nbl_status check(nbl_context *ctx, const nbl__peft *peft, const char *list)
{
    static nbl__peft_target targets[MAX];
    static char paths[MAX][256];
    int64_t count = 0;
    FILE *file = fopen(list, "r");
    NBL_CHECK(ctx, file, NBL_ERROR_NOT_FOUND, "%s", list);
    for (int kind; count < MAX && fscanf(file, "%255s %d %" SCNd64 " %" SCNd64, paths[count], &kind,
                                         &targets[count].out, &targets[count].in) == 4;
         count++) {
        targets[count].path = paths[count];
        NBL_CHECK(ctx, kind >= 0 && kind < (int)(sizeof kinds / sizeof *kinds), NBL_ERROR_FORMAT,
                  "%s: kind %d", list, kind);
        targets[count].kind = kinds[kind];
    }
    fclose(file);
    return nbl__peft_check(peft, targets, count);
}

static nbl_tensor tensor_of(const nbl__stored *stored)
{
    nbl_tensor t = {0};
    if (stored == NULL) return t;
    t = (nbl_tensor){.dtype = stored->dtype, .rank = stored->rank, .data = (void *)(uintptr_t)stored->data};
    memcpy(t.shape, stored->shape, sizeof t.shape);
    return t;
}

static nbl_status copy(nbl_context *ctx, const char *folder, const char *list, const char *target)
{
    nbl__peft *peft;
    NBL_TRY(nbl__peft_open(ctx, folder, &peft));
    NBL_TRY(check(ctx, peft, list));
    nbl__peft_new_module *modules = calloc((size_t)peft->module_count, sizeof *modules);
    nbl__peft_new_tensor *tensors = calloc((size_t)peft->replacement_count + 1, sizeof *tensors);
    for (int64_t i = 0; i < peft->module_count; i++) {
        const nbl__peft_module *m = &peft->modules[i];
        printf("%s %" PRId64 " %.17g %.17g %d\n", m->path, m->r, m->alpha, m->scale, m->is_embedding);
        modules[i] = (nbl__peft_new_module){.path = m->path,
                                            .is_embedding = m->is_embedding,
                                            .a = tensor_of(m->a),
                                            .b = tensor_of(m->b),
                                            .b_bias = tensor_of(m->b_bias),
                                            .magnitude = tensor_of(m->magnitude)};
    }
    for (int64_t i = 0; i < peft->replacement_count; i++) {
        printf("replacement %s\n", peft->replacements[i].name);
        const char *stored_name = peft->replacements[i].stored->name + strlen("base_model.model.");
        tensors[i] = (nbl__peft_new_tensor){stored_name, tensor_of(peft->replacements[i].stored)};
    }
    nbl__peft_description description = {.settings = peft->settings,
                                         .modules = modules,
                                         .module_count = peft->module_count,
                                         .replacements = tensors,
                                         .replacement_count = peft->replacement_count};
    NBL_TRY(nbl__peft_write(ctx, target, &description));
    free(modules);
    free(tensors);
    nbl__peft_close(peft);
    return NBL_OK;
}

int main(int count, char **words)
{
    nbl_context *ctx;
    if (count != 5 || nbl_context_create(NULL, &ctx) != NBL_OK) return 2;
    bool gguf = strcmp(words[1], "gguf") == 0;
    nbl_status status = gguf ? convert(ctx, words[2], words[3], words[4])
                             : copy(ctx, words[2], words[3], words[4]);
    if (status != NBL_OK) fprintf(stderr, "%s\n", nbl_error_message(ctx));
    nbl_context_destroy(ctx);
    return status != NBL_OK;
}
