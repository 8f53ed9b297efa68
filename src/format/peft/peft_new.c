/* peft_new.c - makes a new adapter: chooses its modules by PEFT's rules, without tensors. See
 * peft.h.
 *
 * The settings are those of a training run, so messages name its options (lora_target_modules). The
 * order of the checks: unknown names first, then modules that cannot be adapted, then an empty
 * choice. */
#include <stdlib.h>

#include "format/hf/module_names.h"
#include "format/hf/text_part.h"
#include "format/peft/peft.h"

static int by_path(const void *a, const void *b)
{
    return strcmp(((const nbl__peft_module *)a)->path, ((const nbl__peft_module *)b)->path);
}

/* *parameter: target_parameters names the module's matrix. */
static nbl_status by_parameter(nbl__peft *p, const char *path, bool *parameter)
{
    nbl__arena *arena = &p->arena;
    const char *name = nbl__arena_printf(arena, "%s.weight", path);
    if (name == NULL) return NBL_ERROR_MEMORY;
    *parameter = nbl__peft_targets_parameter(p->rules, path) || nbl__peft_targets_parameter(p->rules, name);
    return NBL_OK;
}

/* What PEFT does not have for parameters. */
static nbl_status check_parameter(const nbl__peft *p, const char *path)
{
    const nbl__peft_settings *s = &p->settings;
    const char *option = s->dora          ? "peft_use_dora"
                         : s->dropout > 0 ? "lora_dropout"
                         : s->lora_bias   ? "lora_bias"
                                          : NULL;
    NBL_CHECK(p->ctx, option == NULL, NBL_ERROR_UNSUPPORTED,
              "%s: %s does not go with adapters of parameters, and \"%s\" is one", p->folder, option, path);
    return NBL_OK;
}

/* Adds a module if the settings choose it. Modules of modules_to_save get no LoRA. */
static nbl_status choose_module(nbl__peft *p, const nbl__peft_target *target)
{
    bool targeted = false;
    if (nbl__peft_saves(p->rules, target->path)) return NBL_OK;
    NBL_TRY(nbl__peft_targets(p->rules, target->path, target->kind, &targeted));
    if (!targeted) return NBL_OK;
    bool parameter = false;
    NBL_TRY(by_parameter(p, target->path, &parameter));
    NBL_CHECK(p->ctx, target->kind != NBL_PEFT_ROUTER || parameter, NBL_ERROR_UNSUPPORTED,
              "%s: \"%s\" is a router and no linear layer; lora_target_parameters can name its weight",
              p->folder, target->path);
    bool fits = target->kind == NBL_PEFT_LINEAR || target->kind == NBL_PEFT_HEAD ||
                target->kind == NBL_PEFT_ROUTER || target->kind == NBL_PEFT_EXPERTS;
    NBL_CHECK(p->ctx, fits, NBL_ERROR_UNSUPPORTED, "%s: \"%s\" is no linear layer; it cannot be adapted",
              p->folder, target->path);
    if (parameter) NBL_TRY(check_parameter(p, target->path));
    nbl__peft_module *m = &p->modules[p->module_count++];
    const char *path = nbl__arena_strdup(&p->arena, target->path);
    if (path == NULL) return NBL_ERROR_MEMORY;
    *m = (nbl__peft_module){
        .path = path, .stem = path, .in = target->in, .out = target->out, .experts = target->experts};
    return nbl__peft_rank(p->rules, m->path, &m->r, &m->alpha, &m->scale);
}

/* A name that matches no module is most likely a typing error: report it before the weights are
 * used. */
static nbl_status check_names(nbl__peft *p, const char *option, const nbl__peft_list *list,
                              const nbl__peft_target *targets, int64_t count)
{
    for (int64_t i = 0; i < list->count; i++) {
        bool met = false;
        size_t n = strlen(list->names[i]);
        for (int64_t k = 0; k < count && !met; k++) {
            char memory[1024];
            const char *path = nbl__text_spell(p->prefix, targets[k].path, memory, sizeof memory);
            if (path == NULL) path = targets[k].path;
            size_t length = strlen(path);
            met = nbl__ends_with(path, list->names[i]) && (length == n || path[length - n - 1] == '.');
        }
        NBL_CHECK(p->ctx, met, NBL_ERROR_NOT_FOUND, "%s: %s has \"%s\", which is no module of this model",
                  p->folder, option, list->names[i]);
    }
    return NBL_OK;
}

/* Names of target_parameters, each of which must match a parameter. */
static nbl_status check_parameters(nbl__peft *p, const nbl__peft_target *targets, int64_t count)
{
    const nbl__peft_list *list = &p->settings.parameters;
    for (int64_t i = 0; i < list->count; i++) {
        bool met = false;
        size_t n = strlen(list->names[i]);
        for (int64_t k = 0; k < count && !met; k++) {
            const char *name = targets[k].path;
            if (targets[k].kind != NBL_PEFT_EXPERTS) name = nbl__arena_printf(&p->arena, "%s.weight", name);
            if (name == NULL) return NBL_ERROR_MEMORY;
            size_t length = strlen(name);
            met = targets[k].kind != NBL_PEFT_OTHER && nbl__ends_with(name, list->names[i]) &&
                  (length == n || name[length - n - 1] == '.');
        }
        NBL_CHECK(p->ctx, met, NBL_ERROR_NOT_FOUND,
                  "%s: lora_target_parameters has \"%s\", which is no matrix of this model", p->folder,
                  list->names[i]);
    }
    return NBL_OK;
}

/* The prefix of the new adapter's names: that of target_modules where they have one or are names of
 * a text model, else the usual one. */
static const char *choose_prefix(const nbl__peft_settings *settings, const char *usual)
{
    const nbl__peft_choice *target = &settings->target;
    const char *first = target->regex ? target->regex : target->list.count ? target->list.names[0] : NULL;
    if (first == NULL) return usual;
    const char *told = nbl__text_prefix(first);
    if (told) return told;
    return strncmp(first, NBL_MODULE_LAYERS, strlen(NBL_MODULE_LAYERS)) == 0 ? NULL : usual;
}

nbl_status nbl__peft_new(nbl_context *ctx, const char *where, const char *model_type,
                         const nbl__peft_settings *settings, const char *prefix,
                         const nbl__peft_target *targets, int64_t count, nbl__peft **out)
{
    nbl__peft *p = *out = NULL;
    nbl_status status = NBL_OK;
    NBL_TRY(NBL_ALLOC(ctx, p, 1));
    p->ctx = ctx;
    p->arena = nbl__arena_make(ctx);
    p->settings = *settings;
    p->folder = nbl__arena_strdup(&p->arena, where);
    p->modules = nbl__arena_alloc(&p->arena, (size_t)count * sizeof *p->modules);
    NBL_GO(p->folder && p->modules ? NBL_OK : NBL_ERROR_MEMORY);
    p->prefix = choose_prefix(settings, prefix);
    NBL_GO(nbl__peft_rewrite_experts(&p->arena, p->folder, model_type, targets, count, &p->settings));
    NBL_GO(nbl__peft_rules_make(ctx, where, &p->settings, &p->rules));
    nbl__peft_rules_spell(p->rules, p->prefix);
    NBL_GO(check_names(p, "lora_target_modules", &p->settings.target.list, targets, count));
    NBL_GO(check_names(p, "lora_modules_to_save", &settings->modules_to_save, targets, count));
    NBL_GO(check_parameters(p, targets, count));
    for (int64_t i = 0; i < count; i++) NBL_GO(choose_module(p, &targets[i]));
    if (p->module_count == 0) {
        status = nbl__fail(ctx, NBL_ERROR_NOT_FOUND, "%s: no module of this model is adapted", where);
        goto done;
    }
    qsort(p->modules, (size_t)p->module_count, sizeof *p->modules, by_path);
    NBL_GO(nbl__peft_stem_experts(p));
    NBL_GO(nbl__peft_swap_experts(p, model_type));
    *out = p;
    return NBL_OK;
done:
    nbl__peft_close(p);
    return status;
}
