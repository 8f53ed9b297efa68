/* peft_model.c - checks an adapter against the tensors of a decoder. Used for a model in memory, a
 * folder that is merged and a model that is exported. */
#include "format/peft/peft.h"

#include "format/hf/module_names.h"

static const char weight[] = ".weight";

static const nbl__peft_tensor *find(const nbl__peft_tensor *tensors, int64_t count, const char *name)
{
    for (int64_t i = 0; i < count; i++)
        if (strcmp(tensors[i].name, name) == 0) return &tensors[i];
    return NULL;
}

enum { MAX_LIST = 400 }; /* bytes of names in a message */

/* Adds the last part of `path` to a list, once. NULL if memory has run out. */
static const char *add_part(nbl__arena *arena, const char *list, const char *path)
{
    const char *part = nbl__peft_last_name(path), *at = strstr(list, part);
    size_t n = strlen(part);
    if (at && (at == list || at[-1] == ' ') && (at[n] == ',' || at[n] == '\0')) return list;
    return *list ? nbl__arena_printf(arena, "%s, %s", list, part) : part;
}

/* Compares the shapes of the adapter's matrices with the model's before anything else, so that an adapter of another
 * model gets this message and not one about some other detail. Modules are those of the adapter: architectures differ
 * in the names of theirs. The message has the shapes of the first misfit, and the names of all. */
static nbl_status check_shapes(const nbl__peft *peft, nbl__arena *arena, const nbl__peft_tensor *tensors,
                               int64_t count)
{
    const nbl__peft_module *first = NULL;
    const nbl__peft_tensor *wanted = NULL;
    const char *parts = "";
    int64_t misfits = 0;
    bool cut = false; /* the list of names is longer than MAX_LIST */
    for (int64_t i = 0; i < peft->module_count; i++) {
        const nbl__peft_module *it = &peft->modules[i];
        const char *name = nbl__arena_printf(arena, "%s.weight", it->path);
        if (name == NULL) return NBL_ERROR_MEMORY;
        const nbl__peft_tensor *tensor = find(tensors, count, name);
        if (it->is_embedding || tensor == NULL || tensor->kind == NBL_PEFT_EMBEDDING || tensor->rank != 2)
            continue;
        if (it->out == tensor->shape[0] && it->in == tensor->shape[1]) continue;
        if (misfits++ == 0) first = it, wanted = tensor;
        bool full = strlen(parts) >= MAX_LIST;
        cut |= full;
        if (!full) parts = add_part(arena, parts, it->path);
        if (parts == NULL) return NBL_ERROR_MEMORY;
    }
    NBL_CHECK(peft->ctx, misfits == 0, NBL_ERROR_SHAPE,
              "%s: the adapter of \"%s\" is for [%" PRId64 ", %" PRId64 "], the model has [%" PRId64
              ", %" PRId64 "]; %" PRId64 " module%s not fit: %s%s (of another model?)",
              peft->folder, first->path, first->out, first->in, wanted->shape[0], wanted->shape[1], misfits,
              misfits == 1 ? " does" : "s do", parts, cut ? ", …" : "");
    return NBL_OK;
}

nbl__peft_kind nbl__peft_kind_of(const char *name, int rank)
{
    if (rank != 2) return NBL_PEFT_OTHER;
    if (strcmp(name, NBL_WEIGHT_OF(NBL_MODULE_EMBEDDING)) == 0) return NBL_PEFT_EMBEDDING;
    if (nbl__ends_with(name, ".mlp.gate.weight") || nbl__ends_with(name, ".router.weight"))
        return NBL_PEFT_ROUTER;
    return strcmp(name, NBL_WEIGHT_OF(NBL_MODULE_HEAD)) == 0 ? NBL_PEFT_HEAD : NBL_PEFT_LINEAR;
}

nbl_status nbl__peft_list_targets(nbl__arena *arena, const nbl__peft_tensor *tensors, int64_t count,
                                  nbl__peft_target **list, int64_t *target_count)
{
    nbl__peft_target *targets = nbl__arena_alloc(arena, (size_t)count * sizeof *targets);
    if (targets == NULL) return NBL_ERROR_MEMORY;
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        const nbl__peft_tensor *t = &tensors[i];
        if (t->kind == NBL_PEFT_EXPERTS && t->rank == 3) {
            targets[found++] = (nbl__peft_target){t->name, t->kind, t->shape[1], t->shape[2], t->shape[0]};
            continue;
        }
        if (!nbl__ends_with(t->name, weight)) continue;
        char *path = nbl__arena_strdup(arena, t->name);
        if (path == NULL) return NBL_ERROR_MEMORY;
        path[strlen(path) - strlen(weight)] = '\0';
        bool matrix = t->rank == 2, embedding = t->kind == NBL_PEFT_EMBEDDING;
        int64_t rows = t->rank ? t->shape[0] : 1, columns = matrix ? t->shape[1] : 0;
        targets[found++] = (nbl__peft_target){path, t->kind, embedding ? columns : rows,
                                              embedding ? rows : columns, 0};
    }
    *list = targets;
    *target_count = found;
    return NBL_OK;
}

nbl_status nbl__peft_check_tensors(const nbl__peft *peft, const nbl__peft_tensor *tensors, int64_t count)
{
    nbl__arena arena = nbl__arena_make(peft->ctx);
    nbl__peft_target *targets;
    int64_t target_count;
    nbl_status status = NBL_OK;
    if (peft->problems == NULL)
        status = check_shapes(peft, &arena, tensors, count); /* inspection lists all misfits anyway */
    if (status == NBL_OK) status = nbl__peft_list_targets(&arena, tensors, count, &targets, &target_count);
    if (status == NBL_OK) status = nbl__peft_check(peft, targets, target_count);
    nbl__arena_free(&arena);
    return status;
}

bool nbl__peft_unties(const nbl__peft *peft)
{
    if (nbl__peft_is_new(peft) &&
        (nbl__peft_saves(peft->rules, NBL_MODULE_HEAD) || nbl__peft_saves(peft->rules, NBL_MODULE_EMBEDDING)))
        return true;
    return nbl__peft_find(peft, NBL_MODULE_HEAD) || nbl__peft_find(peft, NBL_MODULE_EMBEDDING) ||
           nbl__peft_replacement_find(peft, NBL_WEIGHT_OF(NBL_MODULE_HEAD)) ||
           nbl__peft_replacement_find(peft, NBL_WEIGHT_OF(NBL_MODULE_EMBEDDING));
}
