/* peft.c - opens an adapter: reads the settings, sorts the tensors into modules, and checks each
 * module against the settings. See peft.h.
 *
 *     base_model.model.model.layers.0.mlp.up_proj.lora_A.weight
 *     └─── prefix ────┘└──────── path ──────────┘└── ending ──┘
 *
 * A tensor without a LoRA ending is a replacement: a whole weight of the base model.
 *
 * The steps of opening, each of which needs the one before it:
 *
 *     read_settings    adapter_config.json, then the compiled rules
 *     read_tensors     the file's head, sorted by name
 *     sort_tensors     each tensor to a module or a replacement; each module is checked when it is whole
 *     check_bases      base_layer weights have a module
 *
 * Memory: everything is in the arena of the nbl__peft. The values of tensors stay in the mapped
 * file. */
#include "format/peft/peft.h"

#include <stdio.h>
#include <stdlib.h>

#include "format/hf/module_names.h"
#include "format/hf/text_part.h"

enum { CONFIG_LIMIT = 16 << 20 };
static const char prefix[] = "base_model.model.";

/* ---- names of tensors ---- */

typedef enum part {
    PART_A,
    PART_B,
    PART_B_BIAS,
    PART_MAGNITUDE,
    PART_EMBEDDING_A,
    PART_EMBEDDING_B,
    PART_BASE,
    PART_WEIGHT
} part;

/* PEFT's names of the parts. The order of the search does not matter: no ending is the end of
 * another. */
static const char *const endings[] = {
    [PART_A] = ".lora_A.weight",
    [PART_B] = ".lora_B.weight",
    [PART_B_BIAS] = ".lora_B.bias",
    [PART_MAGNITUDE] = ".lora_magnitude_vector",
    [PART_EMBEDDING_A] = ".lora_embedding_A",
    [PART_EMBEDDING_B] = ".lora_embedding_B",
    [PART_BASE] = ".base_layer.weight", /* an adapted embedding or head, which PEFT saves along */
};

static nbl_status bad_tensor(const nbl__peft *p, const nbl__stored *t, const char *what)
{
    return nbl__fail(p->ctx, NBL_ERROR_FORMAT, "%s: tensor \"%s\" %s", t->file, t->name, what);
}

static nbl_status bad_module(const nbl__peft *p, const char *path, const char *what)
{
    return nbl__fail(p->ctx, NBL_ERROR_FORMAT, "%s: module \"%s\": %s", p->folder, path, what);
}

/* Inspection mode: lists a problem and returns NBL_OK. Else returns the status. */
static nbl_status report_or_list(const nbl__peft *p, nbl_status status)
{
    return nbl__problem_collect(p->problems, status);
}

const char *nbl__peft_last_name(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* The modules whose weights PEFT saves with an adapter when their vocabulary was resized. The
 * choice is by name, as in PEFT. */
static bool is_embedding_name(const char *path)
{
    return strcmp(nbl__peft_last_name(path), "embed_tokens") == 0 ||
           strcmp(nbl__peft_last_name(path), "lm_head") == 0;
}

/* Splits a tensor's name: *which part it is, *path of its module (new memory in the arena).
 * PART_WEIGHT: *path is the whole name behind the prefix. */
static nbl_status split_name(nbl__peft *p, const nbl__stored *t, part *which, char **path)
{
    size_t lead = sizeof prefix - 1;
    if (strncmp(t->name, prefix, lead) != 0) return bad_tensor(p, t, "does not begin with base_model.model.");
    const char *stored = t->name + lead, *name = stored;
    if (p->prefix) {
        bool other = nbl__text_prefix(stored) == NULL &&
                     strncmp(stored, NBL_MODULE_LAYERS, strlen(NBL_MODULE_LAYERS)) == 0;
        if (other) return bad_tensor(p, t, "is named as in a text model, others as in a model with vision");
        name = nbl__text_name(&p->arena, stored);
    }
    if (name == NULL || (*path = nbl__arena_strdup(&p->arena, name)) == NULL) return NBL_ERROR_MEMORY;
    size_t length = strlen(*path);
    for (*which = PART_A; *which < PART_WEIGHT; ++*which) {
        size_t end = strlen(endings[*which]);
        if (length <= end || strcmp(*path + length - end, endings[*which]) != 0) continue;
        (*path)[length - end] = '\0';
        return NBL_OK;
    }
    return NBL_OK; /* PART_WEIGHT: the whole name */
}

/* ---- sorting tensors into modules ---- */

/* The module of this path, added if it is new. Tensors are sorted by name, so those of a module are
 * adjacent. */
static nbl__peft_module *module_of(nbl__peft *p, const char *path)
{
    if (p->module_count && strcmp(p->modules[p->module_count - 1].path, path) == 0)
        return &p->modules[p->module_count - 1];
    nbl__peft_module *module = &p->modules[p->module_count++];
    *module = (nbl__peft_module){.path = path, .stem = path};
    return module;
}

/* The two arrays have room for every tensor of the file, so adding cannot run out of room. */
static nbl_status add_replacement(nbl__peft *p, const nbl__stored *t, const char *name)
{
    p->replacements[p->replacement_count++] = (nbl__peft_replacement){name, t};
    return NBL_OK;
}

/* Adds a replacement: a weight of modules_to_save, or an embedding or head with new rows. */
static nbl_status add_weight(nbl__peft *p, const nbl__stored *t, char *name)
{
    char *dot = strrchr(name, '.');
    if (dot == NULL) return bad_tensor(p, t, "belongs to no module");
    *dot = '\0';
    bool saved = p->rules == NULL || nbl__peft_saves(p->rules, name),
         resized = is_embedding_name(name) && strcmp(dot + 1, "weight") == 0;
    *dot = '.';
    if (strstr(name, ".lora_") || strstr(name, "token_adapter"))
        return bad_tensor(p, t, "is of an unknown kind");
    if (!saved && !resized)
        return bad_tensor(p, t, "belongs to no module of target_modules or modules_to_save");
    return add_replacement(p, t, name);
}

/* Adds one tensor to its module or to the replacements. */
static nbl_status add_tensor(nbl__peft *p, const nbl__stored *t)
{
    part which = PART_WEIGHT;
    char *path = NULL;
    if (!nbl__is_compute(t->dtype))
        return nbl__fail(p->ctx, NBL_ERROR_DTYPE, "%s: tensor \"%s\" is %s; f32, f16 and bf16 are supported",
                         t->file, t->name, nbl_dtype_name(t->dtype));
    NBL_TRY(split_name(p, t, &which, &path));
    if (which == PART_WEIGHT) return add_weight(p, t, path);
    if (which == PART_BASE) {
        char *name = nbl__arena_printf(&p->arena, "%s.weight", path);
        return name ? add_replacement(p, t, name) : NBL_ERROR_MEMORY;
    }
    nbl__peft_module *m = module_of(p, path);
    switch (which) {
    case PART_B_BIAS: m->b_bias = t; break;
    case PART_MAGNITUDE: m->magnitude = t; break;
    case PART_A:
    case PART_EMBEDDING_A:
        if (m->a) return bad_tensor(p, t, "is beside another A of the same module");
        m->a = t;
        m->is_embedding = which == PART_EMBEDDING_A;
        break;
    default:
        if (m->b) return bad_tensor(p, t, "is beside another B of the same module");
        m->b = t;
        break;
    }
    return NBL_OK;
}

/* ---- checks of one module ---- */

/* Checks a shape. `second` is ignored for vectors. */
static nbl_status check_shape(const nbl__peft *p, const nbl__stored *t, int rank, int64_t first,
                              int64_t second)
{
    if (t->rank == rank && t->shape[0] == first && (rank == 1 || t->shape[1] == second)) return NBL_OK;
    char wanted[64], own[64];
    if (rank == 1) (void)snprintf(wanted, sizeof wanted, "[%" PRId64 "]", first);
    else (void)snprintf(wanted, sizeof wanted, "[%" PRId64 ", %" PRId64 "]", first, second);
    if (t->rank == 1) (void)snprintf(own, sizeof own, "[%" PRId64 "]", t->shape[0]);
    else if (t->rank == 2)
        (void)snprintf(own, sizeof own, "[%" PRId64 ", %" PRId64 "]", t->shape[0], t->shape[1]);
    else (void)snprintf(own, sizeof own, "of rank %d", t->rank);
    return nbl__fail(p->ctx, NBL_ERROR_SHAPE, "%s: tensor \"%s\" is %s, %s was expected", t->file, t->name,
                     own, wanted);
}

/* Adds a hint with the contents of target_modules, cut at 200 bytes. */
static nbl_status hint_targets(const nbl__peft *p, nbl_status status)
{
    char list[200] = "";
    size_t used = 0;
    if (p->settings.target.regex)
        return nbl__hint(p->ctx, status, "target_modules is %s", p->settings.target.regex);
    for (int64_t i = 0; i < p->settings.target.list.count && used < sizeof list - 1; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "",
                                 p->settings.target.list.names[i]);
    return nbl__hint(p->ctx, status, "target_modules is %s", list);
}

/* Sets rank, alpha and scale. Without rules (inspection of bad settings) only the rank, from A's
 * shape. */
static nbl_status take_rank(const nbl__peft *p, nbl__peft_module *m)
{
    if (p->rules) return nbl__peft_rank(p->rules, m->path, &m->r, &m->alpha, &m->scale);
    m->r = m->a->rank == 2 ? m->a->shape[0] : 0;
    return NBL_OK;
}

/* Checks that the settings choose the module. The other direction, a chosen module without tensors,
 * needs the model: peft_check.c. */
static nbl_status check_targeted(nbl__peft *p, const nbl__peft_module *m)
{
    bool targeted = p->rules == NULL;
    /* The model is unknown here, so "all-linear" takes every name but the usual one of a head. */
    nbl__peft_kind kind = m->is_embedding                                        ? NBL_PEFT_EMBEDDING
                          : m->stem != m->path                                   ? NBL_PEFT_EXPERTS
                          : strcmp(nbl__peft_last_name(m->path), "lm_head") == 0 ? NBL_PEFT_HEAD
                                                                                 : NBL_PEFT_LINEAR;
    if (p->rules) NBL_TRY(nbl__peft_targets(p->rules, m->path, kind, &targeted));
    if (targeted) return NBL_OK;
    return hint_targets(
        p, bad_module(p, m->path, "it has tensors, but target_modules and the other options do not name it"));
}

/* Checks that the module has exactly the tensors that the settings require. */
static nbl_status check_parts(nbl__peft *p, const nbl__peft_module *m)
{
    const nbl__peft_settings *s = &p->settings;
    if (m->a == NULL)
        NBL_TRY(report_or_list(
            p,
            bad_module(p, m->path, m->is_embedding ? "lora_embedding_A is missing" : "lora_A is missing")));
    if (m->b == NULL)
        NBL_TRY(report_or_list(
            p,
            bad_module(p, m->path, m->is_embedding ? "lora_embedding_B is missing" : "lora_B is missing")));
    if (m->a && m->b && m->is_embedding != nbl__ends_with(m->b->name, endings[PART_EMBEDDING_B]))
        NBL_TRY(report_or_list(
            p, bad_module(p, m->path, "one of its tensors is of an embedding, the other of a linear layer")));
    if (p->rules == NULL) return NBL_OK;
    if (s->dora != (m->magnitude != NULL))
        NBL_TRY(
            report_or_list(p, bad_module(p, m->path,
                                         s->dora ? "use_dora is true, but lora_magnitude_vector is missing"
                                                 : "it has a lora_magnitude_vector, but use_dora is false")));
    if ((s->lora_bias && !m->is_embedding) != (m->b_bias != NULL))
        NBL_TRY(report_or_list(p, bad_module(p, m->path,
                                             s->lora_bias ? "lora_bias is true, but lora_B.bias is missing"
                                                          : "it has a lora_B.bias, but lora_bias is false")));
    return NBL_OK;
}

/* Checks one module and sets its sizes, which come from the shapes of A and B. */
static nbl_status check_module(nbl__peft *p, nbl__peft_module *m)
{
    NBL_TRY(report_or_list(p, check_targeted(p, m)));
    NBL_TRY(check_parts(p, m));
    if (m->a == NULL || m->b == NULL) return NBL_OK; /* listed by check_parts */
    NBL_TRY(take_rank(p, m));
    m->in = m->a->rank == 2 ? m->a->shape[1] : 0;
    m->out = m->b->rank == 2 ? m->b->shape[0] : 0;
    int64_t rows = m->r; /* of A: the number of experts follows from it */
    if (m->stem != m->path && m->r > 0 && m->a->rank == 2 && m->a->shape[0] % m->r == 0)
        rows = m->a->shape[0];
    if (m->stem != m->path) m->experts = m->r > 0 ? rows / m->r : 0;
    NBL_TRY(report_or_list(p, check_shape(p, m->a, 2, rows, m->in)));
    NBL_TRY(report_or_list(p, check_shape(p, m->b, 2, m->out, rows)));
    if (m->magnitude) NBL_TRY(report_or_list(p, check_shape(p, m->magnitude, 1, m->out, 0)));
    if (m->b_bias) NBL_TRY(report_or_list(p, check_shape(p, m->b_bias, 1, m->out, 0)));
    return NBL_OK;
}

/* ---- opening ---- */

static int by_path(const void *a, const void *b)
{
    return strcmp(((const nbl__peft_module *)a)->path, ((const nbl__peft_module *)b)->path);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const nbl__peft_replacement *)a)->name, ((const nbl__peft_replacement *)b)->name);
}

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp(((const nbl__stored *)a)->name, ((const nbl__stored *)b)->name);
}

/* Sorts all tensors into modules and replacements, checks the modules, finds duplicates. */
static nbl_status sort_tensors(nbl__peft *p)
{
    int64_t count = p->tensor_count;
    p->modules = nbl__arena_alloc(&p->arena, (size_t)count * sizeof *p->modules);
    p->replacements = nbl__arena_alloc(&p->arena, (size_t)count * sizeof *p->replacements);
    if (p->modules == NULL || p->replacements == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < count; i++) NBL_TRY(report_or_list(p, add_tensor(p, &p->tensors[i])));
    if (p->module_count == 0)
        NBL_TRY(report_or_list(p, nbl__fail(p->ctx, NBL_ERROR_FORMAT,
                                            "%s: adapter_model.safetensors adapts no module", p->folder)));
    for (int64_t i = 0; i < p->module_count; i++) {
        NBL_TRY(nbl__peft_name_experts(p, &p->modules[i]));
        NBL_TRY(check_module(p, &p->modules[i]));
    }
    qsort(p->modules, (size_t)p->module_count, sizeof *p->modules, by_path);
    for (int64_t i = 1; i < p->module_count; i++)
        if (strcmp(p->modules[i - 1].path, p->modules[i].path) == 0)
            NBL_TRY(report_or_list(p, bad_module(p, p->modules[i].path, "it is there twice")));
    NBL_TRY(report_or_list(p, nbl__peft_join_experts(p)));
    qsort(p->replacements, (size_t)p->replacement_count, sizeof *p->replacements, by_name);
    for (int64_t i = 1; i < p->replacement_count; i++)
        if (strcmp(p->replacements[i - 1].name, p->replacements[i].name) == 0)
            NBL_TRY(report_or_list(
                p, bad_tensor(p, p->replacements[i].stored, "is there twice, with and without base_layer")));
    return NBL_OK;
}

/* Checks that every base_layer weight belongs to a module that has an adapter. */
static nbl_status check_bases(const nbl__peft *p)
{
    for (int64_t i = 0; i < p->replacement_count; i++) {
        const nbl__stored *t = p->replacements[i].stored;
        if (!nbl__ends_with(t->name, endings[PART_BASE])) continue;
        char *path = nbl__arena_strdup((nbl__arena *)&p->arena, p->replacements[i].name);
        if (path == NULL) return NBL_ERROR_MEMORY;
        *strrchr(path, '.') = '\0';
        if (nbl__peft_find(p, path) == NULL)
            NBL_TRY(report_or_list(p, bad_tensor(p, t, "is of a module without an adapter")));
    }
    return NBL_OK;
}

/* Reads adapter_config.json. In inspection mode its problems are listed, and rules are made if it
 * could be read. */
static nbl_status read_settings(nbl__peft *p)
{
    char *text, *path = nbl__arena_printf(&p->arena, "%s/adapter_config.json", p->folder);
    size_t size = 0;
    if (path == NULL) return NBL_ERROR_MEMORY;
    NBL_TRY(nbl__file_read(p->ctx, path, CONFIG_LIMIT, &text, &size));
    nbl_status status = nbl__peft_settings_inspect(&p->arena, path, text, size, p->problems, &p->settings);
    nbl__free(p->ctx, text, size + 1);
    NBL_TRY(status);
    return nbl__peft_rules_make(p->ctx, path, &p->settings, &p->rules);
}

/* Finds out by the names of the tensors of which class the adapter is: text model or model with
 * vision. */
static void find_prefix(nbl__peft *p)
{
    for (int64_t i = 0; i < p->tensor_count && p->prefix == NULL; i++)
        if (strncmp(p->tensors[i].name, prefix, sizeof prefix - 1) == 0)
            p->prefix = nbl__text_prefix(p->tensors[i].name + sizeof prefix - 1);
    if (p->rules) nbl__peft_rules_spell(p->rules, p->prefix);
}

/* Reads the head of the safetensors file. adapter_model.bin is a pickle: reading one would run its
 * code. */
static nbl_status read_tensors(nbl__peft *p)
{
    char *path = nbl__arena_printf(&p->arena, "%s/adapter_model.safetensors", p->folder);
    char *pickle = nbl__arena_printf(&p->arena, "%s/adapter_model.bin", p->folder);
    if (path == NULL || pickle == NULL) return NBL_ERROR_MEMORY;
    nbl_status status = nbl__file_map(p->ctx, path, &p->file);
    if (status == NBL_ERROR_NOT_FOUND && nbl__exists(pickle))
        return nbl__hint(p->ctx, status,
                         "adapter_model.bin is a pickle, which is not read; save it as safetensors");
    NBL_TRY(status);
    NBL_TRY(
        nbl__safetensors_parse(&p->arena, path, p->file.data, p->file.size, &p->tensors, &p->tensor_count));
    qsort(p->tensors, (size_t)p->tensor_count, sizeof *p->tensors,
          by_tensor_name); /* puts the tensors of a module together */
    find_prefix(p);
    NBL_TRY(sort_tensors(p));
    return check_bases(p);
}

/* Opens a folder. `look`: inspection mode, in which a problem is listed and reading goes on. */
static nbl_status open_folder(nbl_context *ctx, const char *folder, bool look, nbl__peft **out)
{
    nbl__peft *p = *out = NULL;
    nbl_status status = NBL_OK;
    NBL_TRY(NBL_ALLOC(ctx, p, 1));
    p->ctx = ctx;
    p->arena = nbl__arena_make(ctx);
    p->folder = nbl__arena_strdup(&p->arena, folder);
    NBL_GO(p->folder ? NBL_OK : NBL_ERROR_MEMORY);
    if (look) {
        p->found.arena = &p->arena;
        p->problems = &p->found;
    }
    NBL_GO(report_or_list(p, read_settings(p)));
    NBL_GO(report_or_list(p, read_tensors(p)));
    *out = p;
    return NBL_OK;
done:
    nbl__peft_close(p);
    return status;
}

nbl_status nbl__peft_open(nbl_context *ctx, const char *folder, nbl__peft **out)
{
    return open_folder(ctx, folder, false, out);
}

nbl_status nbl__peft_inspect(nbl_context *ctx, const char *folder, nbl__peft **out)
{
    return open_folder(ctx, folder, true, out);
}

void nbl__peft_close(nbl__peft *peft)
{
    if (peft == NULL) return;
    nbl_context *ctx = peft->ctx;
    nbl__peft_rules_free(peft->rules);
    if (peft->file.data) nbl__file_unmap(&peft->file);
    nbl__arena_free(&peft->arena);
    nbl__free(ctx, peft, sizeof *peft);
}

const nbl__peft_module *nbl__peft_find(const nbl__peft *peft, const char *path)
{
    if (peft->module_count == 0) return NULL; /* bsearch must not get a NULL list */
    nbl__peft_module wanted = {.path = path};
    return bsearch(&wanted, peft->modules, (size_t)peft->module_count, sizeof wanted, by_path);
}

const nbl__peft_replacement *nbl__peft_replacement_find(const nbl__peft *peft, const char *name)
{
    nbl__peft_replacement wanted = {.name = name};
    if (peft->replacement_count == 0) return NULL; /* a new adapter has no list */
    return bsearch(&wanted, peft->replacements, (size_t)peft->replacement_count, sizeof wanted, by_name);
}
