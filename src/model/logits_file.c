/* logits_file.c - writes logits and gradients to .safetensors files.
 *
 * All results are f32 tensors that are held in memory until the file is written. Names:
 *     logits.0, logits.1, ...      [tokens, vocabulary], one per sequence
 *     base_model.model.NAME        the gradient of parameter NAME, as PEFT names it */
#include "quant/non_finite.h"
#include "format/hf/result_file.h"
#include "model/language_model.h"

/* A growing list; names and data live in the arena. */
typedef struct tensor_list {
    nbl_context *ctx;
    nbl__arena arena;
    nbl__stored *items;
    int64_t count, room;
} tensor_list;

/* Appends an f32 tensor. *data: its memory, for the caller to fill. */
static nbl_status add(tensor_list *list, const char *name, int rank, const int64_t *shape, void **data)
{
    if (list->count == list->room) {
        int64_t room = list->room ? 2 * list->room : 64;
        nbl__stored *larger = nbl__arena_alloc(&list->arena, (size_t)room * sizeof *larger);
        if (larger == NULL) return NBL_ERROR_MEMORY;
        if (list->count) memcpy(larger, list->items, (size_t)list->count * sizeof *larger);
        list->items = larger;
        list->room = room;
    }
    nbl__stored *it = &list->items[list->count];
    *it = (nbl__stored){
        .name = nbl__arena_strdup(&list->arena, name), .dtype = NBL_DTYPE_F32, .rank = rank, .elements = 1};
    for (int i = 0; i < rank; i++) it->shape[i] = shape[i], it->elements *= shape[i];
    it->bytes = (uint64_t)it->elements * 4;
    *data = nbl__arena_alloc(&list->arena, it->bytes + 1);
    it->data = *data;
    if (it->name == NULL || *data == NULL) return NBL_ERROR_MEMORY;
    list->count++;
    return NBL_OK;
}

/* Non-finite results are written like others. A warning names the first tensor that has them. */
static void warn_of_non_finite(const tensor_list *list)
{
    for (int64_t i = 0; i < list->count; i++) {
        nbl__non_finite found = {0};
        const nbl__stored *it = &list->items[i];
        nbl__non_finite_scan(&found, nbl__isa(list->ctx), NBL_DTYPE_F32, it->data, it->elements, 0);
        if (atomic_load(&found.count) == 0) continue;
        nbl__log(list->ctx, NBL_LOG_WARNING,
                 "%s: %" PRId64 " values are not finite; the first has index %" PRId64, it->name,
                 (int64_t)atomic_load(&found.count), (int64_t)atomic_load(&found.first) - 1);
        return;
    }
}

nbl_status nbl_result_check(nbl_context *ctx, const char *path, bool force)
{
    NBL_CHECK(ctx, path, NBL_ERROR_ARGUMENT, "result: no path");
    return nbl__result_file_check(ctx, path, force != 0);
}

nbl_status nbl_model_write_logits(nbl_model *m, const nbl_ids *sequences, int64_t count, const char *path,
                                  bool force)
{
    NBL_CHECK(m->ctx, sequences && path && count >= 1, NBL_ERROR_FORMAT, "logits: no sequences or no path");
    NBL_TRY(nbl__result_file_check(m->ctx, path, force != 0));
    tensor_list list = {.ctx = m->ctx, .arena = nbl__arena_make(m->ctx)};
    float **logits = nbl__arena_alloc(&list.arena, (size_t)count * sizeof *logits);
    nbl_status status = logits ? NBL_OK : NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < count && status == NBL_OK; i++) {
        const char *name = nbl__arena_printf(&list.arena, "logits.%" PRId64, i);
        void *data = NULL;
        status = name ? add(&list, name, 2, (int64_t[]){sequences[i].count, m->decoder.vocabulary}, &data)
                      : NBL_ERROR_MEMORY;
        logits[i] = data;
    }
    if (status == NBL_OK) status = nbl_model_logits(m, sequences, count, logits);
    if (status == NBL_OK) warn_of_non_finite(&list);
    if (status == NBL_OK)
        status = nbl__result_file_write(&list.arena, path, force != 0, list.items, list.count);
    nbl__arena_free(&list.arena);
    return status;
}

/* An nbl_gradient_fn: copies one gradient into the list. */
static nbl_status keep(void *user, const char *name, const nbl_tensor *gradient)
{
    tensor_list *list = user;
    const char *full = nbl__arena_printf(&list->arena, "base_model.model.%s", name);
    void *data;
    if (full == NULL) return NBL_ERROR_MEMORY;
    NBL_TRY(add(list, full, gradient->rank, gradient->shape, &data));
    memcpy(data, gradient->data, list->items[list->count - 1].bytes);
    return NBL_OK;
}

nbl_status nbl_model_write_gradients(nbl_model *m, const nbl_ids *sequences, const nbl_ids *labels,
                                     int64_t count, bool pack, bool dropout, const char *path, bool force,
                                     double *loss, int64_t *trained)
{
    NBL_CHECK(m->ctx, path, NBL_ERROR_ARGUMENT, "gradients: no path");
    NBL_TRY(nbl__result_file_check(m->ctx, path, force != 0));
    tensor_list list = {.ctx = m->ctx, .arena = nbl__arena_make(m->ctx)};
    nbl_status status = nbl_model_gradients(m, sequences, labels, count, pack, dropout, keep, &list, loss,
                                            trained);
    if (status == NBL_OK) warn_of_non_finite(&list);
    if (status == NBL_OK)
        status = nbl__result_file_write(&list.arena, path, force != 0, list.items, list.count);
    nbl__arena_free(&list.arena);
    return status;
}
