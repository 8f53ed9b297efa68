/* peft_check.c - checks an adapter against a model, in both directions. See peft.h.
 *
 *     file ─▶ model      every adapted or replaced module exists in the model, with the same shape
 *     settings ─▶ file   every module of the model that the settings choose has tensors in the file
 *
 * So no trained tensor is dropped, and no module that should be trained is silently left as it
 * is. */
#include <stdio.h>
#include <stdlib.h>

#include "format/hf/text_part.h"
#include "format/peft/peft.h"

/* The state of one check. targets[i] points into the caller's list, sorted for look-ups by path. */
typedef struct checker {
    const nbl__peft *peft;
    nbl_context *ctx;
    const nbl__peft_target **targets; /* by path */
    int64_t count;
} checker;

static int by_path(const void *a, const void *b)
{
    return strcmp((*(const nbl__peft_target *const *)a)->path, (*(const nbl__peft_target *const *)b)->path);
}

/* The module of the model with this path; NULL: none. */
static const nbl__peft_target *target_of(const checker *c, const char *path)
{
    nbl__peft_target wanted = {.path = path};
    const nbl__peft_target *pointer = &wanted, **found;
    found = bsearch(&pointer, c->targets, (size_t)c->count, sizeof *c->targets, by_path);
    return found ? *found : NULL;
}

static nbl_status bad_module(const checker *c, nbl_status code, const char *path, const char *what)
{
    return nbl__fail(c->ctx, code, "%s: module \"%s\": %s", c->peft->folder, path, what);
}

/* Inspection mode: lists a problem and returns NBL_OK. Else returns the status. */
static nbl_status report_or_list(const checker *c, nbl_status status)
{
    return nbl__problem_collect(c->peft->problems, status);
}

/* ---- file against model ---- */

/* Checks that the adapter of a module has its kind and its sizes. */
static nbl_status check_module(const checker *c, const nbl__peft_module *m, const nbl__peft_target *target)
{
    if (target->kind == NBL_PEFT_OTHER)
        return bad_module(c, NBL_ERROR_UNSUPPORTED, m->path, "it is neither a linear layer nor an embedding");
    if (m->is_embedding != (target->kind == NBL_PEFT_EMBEDDING))
        return bad_module(c, NBL_ERROR_FORMAT, m->path,
                          m->is_embedding ? "the adapter is one of an embedding, the module is none"
                                          : "the module is an embedding, the adapter is none of such");
    NBL_CHECK(c->ctx, m->experts == target->experts, NBL_ERROR_SHAPE,
              "%s: \"%s\" has %" PRId64 " experts, its adapter is for %" PRId64 " (of another model?)",
              c->peft->folder, m->path, target->experts, m->experts);
    NBL_CHECK(c->ctx, m->in == target->in && m->out == target->out, NBL_ERROR_SHAPE,
              "%s: module \"%s\" takes %" PRId64 " and gives %" PRId64 " values, its adapter %" PRId64
              " and %" PRId64 " (of another model?)",
              c->peft->folder, m->path, target->in, target->out, m->in, m->out);
    return NBL_OK;
}

/* Checks that a replacement belongs to a module of the model and has the shape of its weight. */
static nbl_status check_replacement(const checker *c, const nbl__peft_replacement *replacement)
{
    const nbl__stored *t = replacement->stored;
    char path[1024];
    size_t length = strlen(replacement->name);
    const char *dot = strrchr(replacement->name, '.');
    const nbl__peft_target *target = NULL;
    if (length < sizeof path) {
        memcpy(path, replacement->name, length + 1);
        path[dot - replacement->name] = '\0';
        target = target_of(c, path);
    }
    NBL_CHECK(c->ctx, target, NBL_ERROR_FORMAT, "%s: tensor \"%s\": the model has no such module", t->file,
              t->name);
    if (strcmp(dot, ".weight") != 0) return NBL_OK; /* a bias; the model knows its shape */
    bool vector = target->kind == NBL_PEFT_OTHER, transposed = target->kind == NBL_PEFT_EMBEDDING;
    int64_t rows = transposed ? target->in : target->out, columns = transposed ? target->out : target->in;
    bool fits = vector ? t->rank == 1 && t->shape[0] == target->out
                       : t->rank == 2 && t->shape[0] == rows && t->shape[1] == columns;
    NBL_CHECK(c->ctx, fits, NBL_ERROR_SHAPE,
              "%s: tensor \"%s\" has %" PRId64 " rows of %" PRId64 " values, the model's has %" PRId64
              " of %" PRId64,
              t->file, t->name, t->rank ? t->shape[0] : 1, t->rank > 1 ? t->shape[1] : 1, rows,
              vector ? 1 : columns);
    return NBL_OK;
}

/* ---- settings against file ---- */

/* Checks one module of the model: its adapter's shape, and that the file has what the settings
 * choose. */
static nbl_status check_target(const checker *c, const nbl__peft_target *target)
{
    const nbl__peft *p = c->peft;
    bool targeted = false;
    char name[1024];
    NBL_TRY(nbl__peft_targets(p->rules, target->path, target->kind, &targeted));
    const nbl__peft_module *module = nbl__peft_find(p, target->path);
    if (module && module->a && module->b) NBL_TRY(report_or_list(c, check_module(c, module, target)));
    if (targeted && module == NULL)
        return bad_module(c, NBL_ERROR_FORMAT, target->path,
                          target->kind == NBL_PEFT_EXPERTS || target->kind == NBL_PEFT_ROUTER
                              ? "target_parameters names it, but the file has no tensors of it"
                              : "target_modules names it, but the file has no tensors of it");
    (void)snprintf(name, sizeof name, "%s.weight", target->path);
    if (nbl__peft_saves(p->rules, target->path) && nbl__peft_replacement_find(p, name) == NULL)
        return bad_module(c, NBL_ERROR_FORMAT, target->path,
                          "modules_to_save names it, but the file has no weight of it");
    return NBL_OK;
}

/* Checks that each name of an option matches some module. at_a_point: the name must be whole
 * components (target_modules), and a warning is enough: PEFT accepts a name that matches nothing if
 * another one matches. Else any end of the path of a module or of one that contains it
 * (modules_to_save). */
static nbl_status check_names(const checker *c, const char *option, const nbl__peft_list *list,
                              bool at_a_point)
{
    for (int64_t k = 0; k < list->count; k++) {
        bool found = false;
        size_t n = strlen(list->names[k]);
        for (int64_t i = 0; i < c->count && !found; i++) {
            char memory[1024];
            const char *path = nbl__text_spell(c->peft->prefix, c->targets[i]->path, memory, sizeof memory);
            if (path == NULL) path = c->targets[i]->path;
            for (size_t end = strlen(path);
                 end > 0 && !found;) { /* a module or, for modules_to_save, a part of it */
                found = n <= end && memcmp(path + end - n, list->names[k], n) == 0 &&
                        (!at_a_point || n == end || path[end - n - 1] == '.');
                if (at_a_point) break;
                while (end > 0 && path[--end] != '.') {}
            }
        }
        if (!found && at_a_point)
            nbl__log(c->ctx, NBL_LOG_WARNING, "%s: %s names \"%s\", which is no module of the model",
                     c->peft->folder, option, list->names[k]);
        else if (!found)
            NBL_TRY(report_or_list(c, nbl__fail(c->ctx, NBL_ERROR_FORMAT,
                                                "%s: %s names \"%s\", which is no module of the model",
                                                c->peft->folder, option, list->names[k])));
    }
    return NBL_OK;
}

/* The order of the checks decides which error comes first: names of the settings, modules of the
 * file, modules of the model, replacements. */
static nbl_status check_all(const checker *c, const nbl__peft_target *targets)
{
    const nbl__peft *p = c->peft;
    NBL_TRY(check_names(c, "target_modules", &p->settings.target.list, true));
    NBL_TRY(check_names(c, "modules_to_save", &p->settings.modules_to_save, false));
    for (int64_t i = 0; i < p->module_count; i++)
        if (target_of(c, p->modules[i].path) == NULL)
            NBL_TRY(report_or_list(
                c, bad_module(c, NBL_ERROR_FORMAT, p->modules[i].path, "the model has none of this name")));
    for (int64_t i = 0; i < c->count; i++) NBL_TRY(report_or_list(c, check_target(c, &targets[i])));
    for (int64_t i = 0; i < p->replacement_count; i++)
        NBL_TRY(report_or_list(c, check_replacement(c, &p->replacements[i])));
    return NBL_OK;
}

nbl_status nbl__peft_check(const nbl__peft *peft, const nbl__peft_target *targets, int64_t count)
{
    checker c = {.peft = peft, .ctx = peft->ctx, .count = count};
    NBL_TRY(NBL_ALLOC(peft->ctx, c.targets, count));
    for (int64_t i = 0; i < count; i++) c.targets[i] = &targets[i];
    qsort(c.targets, (size_t)count, sizeof *c.targets, by_path);
    nbl_status status = check_all(&c, targets);
    nbl__free(peft->ctx, c.targets, (size_t)count * sizeof *c.targets);
    return status;
}
