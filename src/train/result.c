/* result.c - writes and reads the trained tensors as PEFT adapter or as a whole model. See
 * result.h.
 *
 * Adapter: A, B and magnitudes of every module, and the tensors of modules_to_save, all from the
 * masters. Whole model: the base model's files are converted (convert/convert.h). A tensor that
 * is trained comes from its master, any other is copied from the base. */
#include "train/result.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "convert/convert.h"
#include "device/device_memory.h"
#include "format/hf/text_part.h"
#include "train/output_dir.h"
#include "train/result_text.h"

static const char *const staging =
    "result.partial-final"; /* nbl__result_publish writes here, then moves every file to output_dir */

/* The master of that name, or NULL: it is not trained. */
static const nbl_tensor *find(const nbl__optimizer *o, const char *name)
{
    for (int64_t i = 0; i < o->count; i++)
        if (strcmp(o->tensors[i].name, name) == 0) return &o->tensors[i].adam.p;
    return NULL;
}

/* ---- an adapter ---- */

/* *tensor: `master` in host memory. On the CPU it is the master itself, else a copy in the
 * arena. */
static nbl_status on_host(nbl__arena *arena, const nbl_tensor *master, nbl_tensor *tensor)
{
    size_t bytes = (size_t)nbl__tensor_elements(master) * sizeof(float);
    void *lent;
    *tensor = *master;
    NBL_TRY(nbl__memory_map_host(arena->ctx, master->data, bytes, true, &lent));
    if (lent == master->data) return NBL_OK;
    tensor->data = nbl__arena_alloc(arena, bytes);
    if (tensor->data == NULL) return NBL_ERROR_MEMORY;
    memcpy(tensor->data, lent, bytes);
    return NBL_OK;
}

/* The trained tensor "path.part" in host memory. */
static nbl_status find_part(nbl__arena *arena, const nbl__optimizer *o, const char *path, const char *part,
                            nbl_tensor *tensor)
{
    const char *name = nbl__arena_printf(arena, "%s.%s", path, part);
    if (name == NULL) return NBL_ERROR_MEMORY;
    const nbl_tensor *found = find(o, name);
    NBL_CHECK(o->ctx, found, NBL_ERROR_INTERNAL, "\"%s\" is not trained", name);
    return on_host(arena, found, tensor);
}

/* A and B as the file has them (nbl__peft_swap_experts). */
static nbl_status swap_parts(nbl__arena *arena, const nbl__peft *peft, nbl__peft_new_module *module)
{
    nbl_tensor a = module->a;
    const char *a_name = nbl__arena_printf(arena, "%s.lora_A.weight", module->stem);
    const char *b_name = nbl__arena_printf(arena, "%s.lora_B.weight", module->stem);
    if (a_name == NULL || b_name == NULL) return NBL_ERROR_MEMORY;
    module->a = module->b;
    module->b = a;
    NBL_TRY(nbl__peft_file_tensor(arena, peft, &b_name, &module->a));
    return nbl__peft_file_tensor(arena, peft, &a_name, &module->b);
}

/* Describes the adapter for nbl__peft_put: A, B and magnitude by module, then every other
 * trained tensor as a replacement of a base tensor. */
static nbl_status describe(nbl__arena *arena, const nbl__peft *peft, const nbl__optimizer *o,
                           const nbl__run_config *config, nbl__peft_description *d)
{
    nbl__peft_new_module *modules = nbl__arena_alloc(arena, (size_t)peft->module_count * sizeof *modules);
    nbl__peft_new_tensor *others = nbl__arena_alloc(arena, (size_t)o->count * sizeof *others);
    if (modules == NULL || others == NULL) return NBL_ERROR_MEMORY;
    *d = (nbl__peft_description){.settings = peft->settings,
                                 .prefix = peft->prefix,
                                 .modules = modules,
                                 .module_count = peft->module_count,
                                 .replacements = others};
    d->settings.base_model = config->base_model;
    if (d->settings.task_type == NULL) d->settings.task_type = "CAUSAL_LM";
    for (int64_t i = 0; i < peft->module_count; i++) {
        modules[i].path = peft->modules[i].path;
        modules[i].stem = peft->modules[i].stem;
        modules[i].is_experts = peft->modules[i].experts > 0;
        NBL_TRY(find_part(arena, o, modules[i].stem, "lora_A.weight", &modules[i].a));
        NBL_TRY(find_part(arena, o, modules[i].stem, "lora_B.weight", &modules[i].b));
        if (peft->modules[i].swapped) NBL_TRY(swap_parts(arena, peft, &modules[i]));
        if (peft->settings.dora)
            NBL_TRY(find_part(arena, o, modules[i].path, "lora_magnitude_vector", &modules[i].magnitude));
    }
    for (int64_t i = 0; i < o->count; i++) {
        if (strstr(o->tensors[i].name, ".lora_")) continue;
        nbl__peft_new_tensor *other = &others[d->replacement_count++];
        other->name = o->tensors[i].name;
        NBL_TRY(on_host(arena, &o->tensors[i].adam.p, &other->tensor));
    }
    return NBL_OK;
}

static nbl_status write_adapter(const nbl__peft *peft, const nbl__optimizer *o, const nbl__run_config *config,
                                const char *target, nbl__add_files_fn add_files, void *user)
{
    nbl__arena arena = nbl__arena_make(o->ctx);
    nbl__output *output = NULL;
    nbl__peft_description d;
    nbl__text_source text;
    nbl_status status;
    NBL_GO(describe(&arena, peft, o, config, &d));
    NBL_GO(nbl__result_text(o->ctx, config, &text));
    NBL_GO(nbl__output_begin(o->ctx, target, 0, &output));
    NBL_GO(nbl__peft_put(output, &d));
    NBL_GO(nbl__text_files_put(output, &text));
    if (add_files) NBL_GO(add_files(user, output));
    nbl__output *finished = output;
    output = NULL;
    status = nbl__output_commit(finished);
done:
    nbl__output_abort(output);
    nbl__arena_free(&arena);
    return status;
}

/* ---- a whole model ---- */

/* Converts a master to `dtype` and writes it as tensor `number`, PIECE elements at a time. */
static nbl_status write_master(nbl__conversion *v, const nbl_tensor *master, nbl_dtype dtype, int64_t number)
{
    enum { PIECE = 1 << 20 };
    int64_t elements = nbl__tensor_elements(master);
    uint8_t *buffer = nbl__alloc(v->ctx, PIECE * sizeof(float));
    if (buffer == NULL) return NBL_ERROR_MEMORY;
    nbl_status status = NBL_OK;
    for (int64_t at = 0; at < elements && status == NBL_OK; at += PIECE) {
        int64_t n = nbl__min_i64(PIECE, elements - at);
        void *from;
        if ((status = nbl__progress_poll(v->ctx, "saving")) != NBL_OK) break;
        status = nbl__memory_map_host(v->ctx, (float *)master->data + at, (size_t)n * sizeof(float), true,
                                      &from);
        if (status == NBL_OK) status = nbl_convert(v->ctx, NBL_DTYPE_F32, from, dtype, buffer, n);
        if (status == NBL_OK)
            status = nbl__safetensors_writer_write(v->writer, number, buffer, (size_t)n * nbl__size_of(dtype),
                                                   (uint64_t)at * nbl__size_of(dtype));
    }
    nbl__free(v->ctx, buffer, PIECE * sizeof(float));
    return status;
}

/* The master of the checkpoint's tensor i, or NULL. */
static const nbl_tensor *find_text(const nbl__optimizer *o, const nbl_checkpoint *c, int64_t i)
{
    return c->text_names[i] ? find(o, c->text_names[i]) : NULL;
}

/* Declares all tensors in the order of the base, then writes them in that order, then
 * config.json with its changes and the remaining files. */
static nbl_status write_model_into(nbl__conversion *v, const nbl__optimizer *o, nbl_dtype dtype,
                                   const char *target, nbl__add_files_fn add_files, void *user)
{
    const nbl_checkpoint *c = v->checkpoint;
    for (int64_t i = 0, number; i < c->tensor_count; i++) {
        const nbl_tensor_info *t = &c->tensors[i];
        if (find_text(o, c, i) == NULL) NBL_TRY(nbl__declare_copy(v, i, t, &number));
        else
            NBL_TRY(
                nbl__safetensors_writer_declare(v->writer, i, t->name, dtype, t->rank, t->shape, &number));
    }
    NBL_TRY(nbl__conversion_begin(v, target, 0));
    for (int64_t i = 0; i < c->tensor_count; i++) {
        const nbl_tensor *master = find_text(o, c, i);
        NBL_TRY(nbl__safetensors_writer_begin_group(v->writer, v->output, i));
        if (master == NULL) NBL_TRY(nbl__write_copy(v, &c->tensors[i], i));
        else NBL_TRY(write_master(v, master, dtype, i));
    }
    char name[32];
    nbl__config_edit edits[2 + NBL_MAX_SPECIAL_TOKENS];
    int count = nbl__conversion_dtype(v, dtype, name, edits),
        more_count = nbl__text_config_edits(&v->output->arena, &v->text->changes, c->config.root,
                                            nbl__json_get(c->config.root, "eos_token_id"), false,
                                            edits + count);
    if (more_count < 0) return NBL_ERROR_MEMORY;
    NBL_TRY(nbl__conversion_finish(v, edits, count + more_count));
    if (add_files) NBL_TRY(add_files(user, v->output));
    nbl__output *output = v->output;
    v->output = NULL;
    return nbl__output_commit(output);
}

static nbl_status write_model(const nbl__optimizer *o, const nbl__run_config *config, nbl_dtype dtype,
                              const char *target, nbl__add_files_fn add_files, void *user)
{
    nbl__conversion v;
    nbl__text_source text;
    nbl_status status = nbl__conversion_open(o->ctx, config->base_model, &v);
    v.allow_non_finite =
        true; /* a non-finite tensor of the base must not keep a finished run from being saved */
    if (status == NBL_OK) status = nbl__result_text(o->ctx, config, &text);
    v.text = &text;
    if (status == NBL_OK) status = write_model_into(&v, o, dtype, target, add_files, user);
    nbl__conversion_close(&v);
    return status;
}

nbl_status nbl__result_write(nbl__session *s, const nbl__optimizer *o, const nbl__run_config *config,
                             nbl_dtype dtype, const char *target, nbl__add_files_fn add_files, void *user)
{
    return s->model->peft ? write_adapter(s->model->peft, o, config, target, add_files, user)
                          : write_model(o, config, dtype, target, add_files, user);
}

/* The tensor of the model or adapter with this name, or NULL. An adapter's names have a prefix, and
 * may be those of a vision-language model. */
static const nbl_tensor_info *stored_as(const nbl_checkpoint *c, const char *prefix, const char *name)
{
    size_t n = strlen(prefix);
    for (int64_t i = 0; i < c->tensor_count; i++) {
        const char *stored = c->text_names[i], *lead;
        char spelled[512];
        if (stored == NULL || strncmp(stored, prefix, n) != 0) continue;
        lead = n ? nbl__text_prefix(stored + n) : NULL;
        const char *wanted = nbl__text_spell(lead, name, spelled, sizeof spelled);
        if (wanted && strcmp(stored + n, wanted) == 0) return &c->tensors[i];
    }
    return NULL;
}

/* Copies each master from the checkpoint and gives its mapped pages back. peft: of an adapter's file;
 * else NULL. */
static nbl_status load_masters(nbl__optimizer *o, nbl_checkpoint *c, const char *prefix,
                               const nbl__peft *peft)
{
    for (int64_t i = 0; i < o->count; i++) {
        const nbl_tensor *master = &o->tensors[i].adam.p;
        const char *name = o->tensors[i].name;
        NBL_TRY(nbl__progress_poll(o->ctx, name));
        const nbl__peft_module *m = peft ? nbl__peft_find_parameter(peft, name) : NULL;
        bool swapped = m && m->swapped, is_a = nbl__ends_with(name, ".lora_A.weight");
        if (swapped) name = nbl__arena_printf(&c->arena, "%s.lora_%c.weight", m->stem, is_a ? 'B' : 'A');
        if (name == NULL) return NBL_ERROR_MEMORY;
        const nbl_tensor_info *t = stored_as(c, prefix, name);
        const nbl_weight *w = t ? &t->weight : NULL;
        NBL_CHECK(o->ctx,
                  w && w->format == NBL_FORMAT_DENSE && w->dtype == NBL_DTYPE_F32 &&
                      t->bytes == (uint64_t)nbl__tensor_elements(master) * sizeof(float),
                  NBL_ERROR_FORMAT, "%s: no f32 tensor \"%s%s\" of this model", c->path, prefix,
                  o->tensors[i].name);
        const void *values = w->data;
        if (swapped) {
            float *read = nbl__arena_alloc(&c->arena, t->bytes),
                  *other = nbl__arena_alloc(&c->arena, t->bytes);
            if (read == NULL || other == NULL) return NBL_ERROR_MEMORY;
            memcpy(read, w->data, t->bytes);
            nbl__peft_swap_matrix(read, !is_a, m->experts, m->r, master->shape[is_a ? 1 : 0], other);
            values = other;
        }
        NBL_TRY(nbl__memory_write(o->ctx, master->data, values, t->bytes));
        nbl__checkpoint_drop(c, w->data, t->bytes);
    }
    return NBL_OK;
}

nbl_status nbl__result_load(nbl__optimizer *o, const char *folder, const nbl__peft *peft)
{
    bool adapter = peft != NULL;
    nbl__arena arena = nbl__arena_make(o->ctx);
    nbl_checkpoint *c = NULL;
    const char *path = nbl__arena_printf(&arena, "%s%s", folder, adapter ? "/adapter_model.safetensors" : "");
    nbl_status status = path ? nbl_checkpoint_open(o->ctx, path, NBL_OPEN_STRICT, &c) : NBL_ERROR_MEMORY;
    if (status == NBL_OK) status = load_masters(o, c, adapter ? "base_model.model." : "", peft);
    nbl_checkpoint_close(c);
    nbl__arena_free(&arena);
    return status;
}

/* ---- publishing ---- */

/* Moves all files of a folder, then removes it. Weights move last: a folder with weights is
 * complete. */
static nbl_status move_all(nbl__arena *arena, const char *from, const char *to)
{
    nbl_context *ctx = arena->ctx;
    for (int weights = 0; weights < 2; weights++) {
        DIR *list = opendir(from);
        if (list == NULL) return nbl__fail_errno(ctx, errno, "%s", from);
        nbl_status status = NBL_OK;
        for (struct dirent *entry; status == NBL_OK && (entry = readdir(list));) {
            const char *name = entry->d_name;
            if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
            if (nbl__ends_with(name, ".safetensors") == weights)
                status = nbl__move_into(arena, from, to, name);
        }
        closedir(list);
        NBL_TRY(status);
    }
    return rmdir(from) == 0 ? NBL_OK : nbl__fail_errno(ctx, errno, "%s: cannot be removed", from);
}

nbl_status nbl__result_publish(nbl__session *s, const nbl__optimizer *o, const nbl__run_config *config,
                               nbl_dtype dtype)
{
    nbl__arena arena = nbl__arena_make(o->ctx);
    const char *folder = nbl__arena_printf(&arena, "%s/%s", config->output_dir, staging);
    nbl_status status = folder ? nbl__remove_folder(o->ctx, folder) : NBL_ERROR_MEMORY;
    if (status == NBL_OK) status = nbl__result_write(s, o, config, dtype, folder, NULL, NULL);
    if (status == NBL_OK) status = move_all(&arena, folder, config->output_dir);
    nbl__arena_free(&arena);
    return status;
}
