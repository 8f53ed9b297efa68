/* peft_model.c - checks an adapter against the tensors of a decoder. Used for a model in memory, a
 * folder that is merged and a model that is exported. */
#include "format/peft/peft.h"

static const char weight[] = ".weight";

static const nbl__peft_tensor *find(const nbl__peft_tensor *tensors, int64_t count, const char *name)
{
    for (int64_t i = 0; i < count; i++)
        if (strcmp(tensors[i].name, name) == 0) return &tensors[i];
    return NULL;
}

/* Compares the shapes of the linear layers before everything else, so that an adapter of another
 * model gets this message and not one about some other detail. Modules are those of the adapter:
 * architectures differ in the names of theirs. */
static nbl_status check_shapes(const nbl__peft *peft, nbl__arena *arena, const nbl__peft_tensor *tensors,
                               int64_t count)
{
    for (int64_t i = 0; i < peft->module_count; i++) {
        const nbl__peft_module *it = &peft->modules[i];
        const char *name = nbl__arena_printf(arena, "%s.weight", it->path);
        if (name == NULL) return NBL_ERROR_MEMORY;
        const nbl__peft_tensor *tensor = find(tensors, count, name);
        if (it->is_embedding || tensor == NULL || tensor->kind == NBL_PEFT_EMBEDDING || tensor->rank != 2)
            continue;
        NBL_CHECK(peft->ctx, it->out == tensor->shape[0] && it->in == tensor->shape[1], NBL_ERROR_SHAPE,
                  "%s: the adapter of \"%s\" is for [%" PRId64 ", %" PRId64 "], the model has [%" PRId64
                  ", %" PRId64 "] (of another model?)",
                  peft->folder, it->path, it->out, it->in, tensor->shape[0], tensor->shape[1]);
    }
    return NBL_OK;
}

nbl__peft_kind nbl__peft_kind_of(const char *name, int rank)
{
    if (rank != 2) return NBL_PEFT_OTHER;
    if (strcmp(name, "model.embed_tokens.weight") == 0) return NBL_PEFT_EMBEDDING;
    return strcmp(name, "lm_head.weight") == 0 ? NBL_PEFT_HEAD : NBL_PEFT_LINEAR;
}

nbl_status nbl__peft_list_targets(nbl__arena *arena, const nbl__peft_tensor *tensors, int64_t count,
                                  nbl__peft_target **list, int64_t *target_count)
{
    nbl__peft_target *targets = nbl__arena_alloc(arena, (size_t)count * sizeof *targets);
    if (targets == NULL) return NBL_ERROR_MEMORY;
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        const nbl__peft_tensor *t = &tensors[i];
        if (!nbl__ends_with(t->name, weight)) continue;
        char *path = nbl__arena_strdup(arena, t->name);
        if (path == NULL) return NBL_ERROR_MEMORY;
        path[strlen(path) - strlen(weight)] = '\0';
        bool matrix = t->rank == 2, embedding = t->kind == NBL_PEFT_EMBEDDING;
        int64_t rows = t->rank ? t->shape[0] : 1, columns = matrix ? t->shape[1] : 0;
        targets[found++] = (nbl__peft_target){path, t->kind, embedding ? columns : rows,
                                              embedding ? rows : columns};
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
        (nbl__peft_saves(peft->rules, "lm_head") || nbl__peft_saves(peft->rules, "model.embed_tokens")))
        return true;
    return nbl__peft_find(peft, "lm_head") || nbl__peft_find(peft, "model.embed_tokens") ||
           nbl__peft_replacement_find(peft, "lm_head.weight") ||
           nbl__peft_replacement_find(peft, "model.embed_tokens.weight");
}
