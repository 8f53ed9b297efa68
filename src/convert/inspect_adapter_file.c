/* inspect_adapter_file.c - inspects a PEFT adapter: its settings, its tensors, and a list of
 * problems.
 *
 *     nbl__peft_inspect   settings and tensors, problems of the format
 *     scan                NaN and infinities of every tensor
 *     check_base          the adapter against a model, if one is given
 *
 * Nothing that can be read is left out because of a problem. Reads all values once.
 *
 * Memory: the handle owns the reader (peft) and the list of tensors; all names point into them. */
#include "convert/convert.h"
#include "convert/expert_tensors.h"
#include "format/gguf/gguf_model.h"
#include "format/hf/module_names.h"
#include "format/peft/peft.h"

struct nbl_adapter {
    nbl_context *ctx;
    nbl__peft *peft;
    nbl__arena arena;
    nbl_adapter_summary summary;
    nbl_adapter_tensor *tensors;
};

/* ---- the tensors ---- */

/* Counts NaN and infinities of a tensor; any are a problem. */
static nbl_status scan(nbl_adapter *a, const nbl__stored *stored, int64_t *count)
{
    nbl__non_finite found;
    atomic_init(&found.count, 0);
    atomic_init(&found.first, 0);
    NBL_TRY(nbl__progress_poll(a->ctx, stored->name));
    nbl__non_finite_scan(&found, nbl__isa(a->ctx), stored->dtype, stored->data, stored->elements, 0);
    nbl__progress_add(a->ctx, stored->bytes);
    *count = atomic_load(&found.count);
    if (*count == 0) return NBL_OK;
    return nbl__problem_collect(
        &a->peft->found,
        nbl__fail(a->ctx, NBL_ERROR_FORMAT,
                  "%s: tensor \"%s\": %" PRId64 " values are not finite; the first has index %" PRId64,
                  stored->file, stored->name, *count, (int64_t)atomic_load(&found.first) - 1));
}

/* Makes the list of tensors and scans their values. s->dtype: the common dtype, if there is one. */
static nbl_status take_tensors(nbl_adapter *a)
{
    const nbl__peft *p = a->peft;
    nbl_adapter_summary *s = &a->summary;
    a->tensors = nbl__arena_alloc(&a->arena, (size_t)p->tensor_count * sizeof *a->tensors);
    if (a->tensors == NULL) return NBL_ERROR_MEMORY;
    s->tensors = p->tensor_count;
    bool mixed = false;
    nbl__progress_begin(a->ctx, p->file.size);
    for (int64_t i = 0; i < p->tensor_count; i++) {
        const nbl__stored *stored = &p->tensors[i];
        nbl_adapter_tensor *t = &a->tensors[i];
        *t = (nbl_adapter_tensor){.name = stored->name,
                                  .dtype = stored->dtype,
                                  .rank = stored->rank,
                                  .parameters = stored->elements,
                                  .bytes = stored->bytes};
        memcpy(t->shape, stored->shape, sizeof t->shape);
        if (nbl__is_compute(stored->dtype)) NBL_TRY(scan(a, stored, &t->non_finite));
        s->parameters += stored->elements;
        s->bytes += stored->bytes;
        s->non_finite += t->non_finite;
        mixed |= stored->dtype != p->tensors[0].dtype;
    }
    s->same_dtype = p->tensor_count > 0 && !mixed;
    if (s->same_dtype) s->dtype = p->tensors[0].dtype;
    return NBL_OK;
}

/* ---- the base ---- */

/* The tensors of the base model. Their kinds come from names: inspection takes any checkpoint. */
typedef struct base {
    nbl__peft_tensor *tensors;
    int64_t count;
    bool tied;
} base;

static void add_tensor(base *b, const char *name, int rank, const int64_t *shape)
{
    b->tensors[b->count++] = (nbl__peft_tensor){name, rank, shape, nbl__peft_kind_of(name, rank)};
}

/* The names and shapes of the tensors of a folder's text model, experts as stacks. There is room for one more: add_head. */
static nbl_status read_checkpoint(nbl__arena *arena, const nbl_checkpoint *c, base *b)
{
    b->tensors = nbl__arena_alloc(arena, (size_t)(c->tensor_count + 1) * sizeof *b->tensors);
    if (b->tensors == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < c->tensor_count; i++) {
        nbl__expert_tensor is;
        if (c->text_names[i] == NULL) continue;
        NBL_TRY(nbl__expert_tensor_read(arena, c, &c->tensors[i], c->text_names[i], &is));
        NBL_TRY(nbl__expert_tensor_list(arena, &is, &c->tensors[i], b->tensors, &b->count));
    }
    b->tied = c->config.tied != NBL_TIED_NO;
    return NBL_OK;
}

/* The same for a GGUF model, under Hugging Face names. */
static nbl_status read_gguf(nbl__arena *arena, const nbl__gguf_model *m, base *b)
{
    b->tensors = nbl__arena_alloc(arena, (size_t)(m->weight_count + 1) * sizeof *b->tensors);
    if (b->tensors == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < m->weight_count; i++)
        add_tensor(b, m->weights[i].name, nbl__gguf_weight_rank(&m->weights[i]), m->weights[i].tensor->shape);
    b->tied = m->is_tied;
    return NBL_OK;
}

/* Adds a tied head, which no file stores but which is a module that can be adapted. */
static void add_head(base *b)
{
    const nbl__peft_tensor *embedding = NULL;
    for (int64_t i = 0; i < b->count; i++) {
        if (strcmp(b->tensors[i].name, NBL_WEIGHT_OF(NBL_MODULE_HEAD)) == 0) return;
        if (strcmp(b->tensors[i].name, NBL_WEIGHT_OF(NBL_MODULE_EMBEDDING)) == 0) embedding = &b->tensors[i];
    }
    if (embedding && b->tied)
        add_tensor(b, NBL_WEIGHT_OF(NBL_MODULE_HEAD), embedding->rank, embedding->shape);
}

/* Checks the adapter against a model, a folder or a .gguf file. The model's problems are counted
 * apart. A model that cannot be opened is an error, not a problem of the adapter. */
static nbl_status check_base(nbl_adapter *a, const char *path)
{
    nbl_checkpoint *checkpoint = NULL;
    nbl__gguf_model *gguf = NULL;
    base b = {0};
    nbl_status status;
    if (nbl__ends_with(path, ".gguf")) {
        NBL_GO(nbl__gguf_model_open(a->ctx, path, &gguf));
        NBL_GO(read_gguf(&a->arena, gguf, &b));
    } else {
        NBL_GO(nbl_checkpoint_open(a->ctx, path, NBL_OPEN_STRICT, &checkpoint));
        NBL_GO(read_checkpoint(&a->arena, checkpoint, &b));
    }
    add_head(&b);
    if (checkpoint) NBL_GO(nbl__peft_swap_experts(a->peft, checkpoint->config.model_type));
    int64_t before = a->peft->found.count;
    if (a->peft->rules) NBL_GO(nbl__peft_check_tensors(a->peft, b.tensors, b.count));
    a->summary.base_problems = a->peft->found.count - before;
done:
    nbl_checkpoint_close(checkpoint);
    nbl__gguf_model_close(gguf);
    return status;
}

/* ---- open, close, access ---- */

/* Takes the settings. The lists of names are handed out by nbl_adapter_get_target and get_saved. */
static void summarize(nbl_adapter *a)
{
    const nbl__peft *p = a->peft;
    const nbl__peft_settings *s = &p->settings;
    a->summary = (nbl_adapter_summary){.type = s->type,
                                       .base_model = s->base_model,
                                       .task = s->task_type,
                                       .r = s->r,
                                       .alpha = s->alpha,
                                       .dropout = s->dropout,
                                       .rslora = s->rslora,
                                       .dora = s->dora,
                                       .lora_bias = s->lora_bias,
                                       .target = s->all_linear ? "all-linear" : s->target.regex,
                                       .modules = p->module_count,
                                       .replaced = p->replacement_count};
}

nbl_status nbl_adapter_open(nbl_context *ctx, const char *path, const char *base_path, nbl_adapter **adapter)
{
    nbl_adapter *a;
    nbl_status status;
    NBL_CHECK(ctx, path && adapter, NBL_ERROR_ARGUMENT, "nbl_adapter_open: a NULL argument");
    *adapter = NULL;
    NBL_CHECK(ctx, nbl__is_folder(path), NBL_ERROR_NOT_FOUND, "%s: not an adapter's folder", path);
    NBL_TRY(NBL_ALLOC(ctx, a, 1));
    a->ctx = ctx;
    a->arena = nbl__arena_make(ctx);
    NBL_GO(nbl__peft_inspect(ctx, path, &a->peft));
    summarize(a);
    NBL_GO(take_tensors(a));
    if (base_path) NBL_GO(check_base(a, base_path));
    a->summary.problems = a->peft->found.count;
    *adapter = a;
    return NBL_OK;
done:
    nbl_adapter_close(a);
    return status;
}

void nbl_adapter_close(nbl_adapter *a)
{
    if (a == NULL) return;
    nbl_context *ctx = a->ctx;
    nbl__peft_close(a->peft);
    nbl__arena_free(&a->arena);
    nbl__free(ctx, a, sizeof *a);
}

const nbl_adapter_summary *nbl_adapter_get_summary(const nbl_adapter *a)
{
    return &a->summary;
}

const nbl_adapter_tensor *nbl_adapter_get_tensor(const nbl_adapter *a, int64_t index)
{
    return index >= 0 && index < a->summary.tensors ? &a->tensors[index] : NULL;
}

static const char *name_at(const nbl__peft_list *list, int64_t index)
{
    return index >= 0 && index < list->count ? list->names[index] : NULL;
}

const char *nbl_adapter_get_target(const nbl_adapter *a, int64_t index)
{
    return name_at(&a->peft->settings.target.list, index);
}

const char *nbl_adapter_get_parameter(const nbl_adapter *a, int64_t index)
{
    return name_at(&a->peft->settings.parameters, index);
}

const char *nbl_adapter_get_saved(const nbl_adapter *a, int64_t index)
{
    return name_at(&a->peft->settings.modules_to_save, index);
}

const char *nbl_adapter_get_problem(const nbl_adapter *a, int64_t index)
{
    return index >= 0 && index < a->peft->found.count ? a->peft->found.list[index] : NULL;
}
