/* language_model.c - opens a model: files, then weights, then the adapter. See language_model.h.
 *
 *     checkpoint  entry.weight points into the mapped files         --load: quantized into m->quantized
 *     .gguf       dequantized into entry.memory, compute dtype      --load: then quantized, memory freed
 *     adapter     modules_to_save replace entries; LoRA tensors stay in the adapter's mapped file
 *
 * Loading processes one weight at a time, so it needs the memory of the result and of one source
 * weight. */
#include "model/language_model.h"

#include <float.h>
#include <unistd.h>

#include "base/hash.h"
#include "device/device.h"
#include "format/hf/text_part.h"
#include "quant/non_finite.h"
#include "quant/quant.h"
#include "quant/weight.h"

/* ---- weights ---- */

/* PEFT's name of the head. A head that is tied to the embedding is a module of this name too. */
static const char head_name[] = NBL_WEIGHT_OF(NBL_MODULE_HEAD);

/* True if the tensor belongs to a module in modules_to_save. An adapter from a file must also
 * contain the tensor; a new adapter has no files yet. An adapter's embedding with additional rows
 * is not in modules_to_save: it replaces the base's embedding and is as frozen. */
static bool is_saved(const nbl__peft *p, const char *name)
{
    char module[512];
    const char *dot = strrchr(name, '.');
    if (dot == NULL || (size_t)(dot - name) >= sizeof module) return false;
    memcpy(module, name, (size_t)(dot - name));
    module[dot - name] = '\0';
    return nbl__peft_saves(p->rules, module) &&
           (nbl__peft_is_new(p) || nbl__peft_replacement_find(p, name) != NULL);
}

nbl_status nbl__model_make_entries(nbl_model *m, int64_t count)
{
    m->weights = nbl__arena_alloc(&m->arena, (size_t)(count + 1) * sizeof *m->weights);
    for (m->by_name_size = 16; m->by_name_size < 2 * (count + 1);) m->by_name_size *= 2;
    m->by_name = nbl__arena_alloc(&m->arena, (size_t)m->by_name_size * sizeof *m->by_name);
    return m->weights && m->by_name ? NBL_OK : NBL_ERROR_MEMORY;
}

/* The slot of the table that has this name, or the free one where it belongs. */
static int32_t *slot_of(const nbl_model *m, const char *name)
{
    uint64_t mask = (uint64_t)m->by_name_size - 1, at = nbl__hash(0, name, strlen(name)) & mask;
    while (m->by_name[at] && strcmp(m->weights[m->by_name[at] - 1].name, name) != 0) at = (at + 1) & mask;
    return &m->by_name[at];
}

struct nbl__weight_entry *nbl__model_add(nbl_model *m, const char *name)
{
    struct nbl__weight_entry *entry = &m->weights[m->weight_count++];
    *entry = (struct nbl__weight_entry){.name = name, .stack = -1};
    int32_t *slot = m->by_name ? slot_of(m, name) : NULL;
    if (slot && *slot == 0) *slot = (int32_t)m->weight_count; /* of equal names the first is found */
    return entry;
}

struct nbl__weight_entry *nbl__model_find(const nbl_model *m, const char *name)
{
    if (m->by_name) {
        int32_t at = *slot_of(m, name);
        return at ? &m->weights[at - 1] : NULL;
    }
    for (int64_t i = 0; i < m->weight_count; i++)
        if (strcmp(m->weights[i].name, name) == 0) return &m->weights[i];
    return NULL;
}

struct nbl__weight_entry *nbl__model_find_role(const nbl_model *m, nbl__weight_role role)
{
    for (int64_t i = 0; i < m->weight_count; i++)
        if (m->weights[i].role == role) return &m->weights[i];
    return NULL;
}

bool nbl__model_trains(const nbl_model *m, const char *name)
{
    if (m->train_all) return true;
    for (int64_t i = 0; i < m->trained_count; i++)
        if (strcmp(m->trained[i], name) == 0) return true;
    return m->peft && is_saved(m->peft, name);
}

/* The storage format in memory of the linear layers inside the transformer's layers, which are what
 * transformers quantizes of these architectures, and of experts. */
typedef struct load_options {
    bool converts; /* false: keep the stored format */
    nbl_quantize_options how;
} load_options;

static nbl_status check_load_options(nbl_model *m, const nbl_model_options *options, load_options *load)
{
    nbl_format format = options->load;
    NBL_CHECK(m->ctx, (unsigned)format <= NBL_FORMAT_MXFP4, NBL_ERROR_ARGUMENT,
              "model: load %d is no nbl_format", (int)format);
    bool four_bits = format == NBL_FORMAT_NF4 || format == NBL_FORMAT_FP4;
    *load = (load_options){
        .converts = format != NBL_FORMAT_DENSE,
        .how = {NBL_OPTIONS(nbl_quantize_options), .format = format,
                .block = format == NBL_FORMAT_MXFP4 ? 32 : 64,
                .nested = four_bits && options->load_nested ? NBL_NESTED_GRID : NBL_NESTED_NONE}};
    return NBL_OK;
}

/* plan_only: gives the entry the format and shape it would have, without data. A plan only tests
 * whether nested_scales is NULL, so it gets a pointer to one number. */
static void describe_entry(const nbl_model *m, struct nbl__weight_entry *entry,
                           const nbl_quantize_options *how)
{
    static const float stand_in;
    nbl_weight w = {
        .format = how->format, .dtype = entry->weight.dtype, .rank = entry->weight.rank, .block = how->block};
    memcpy(w.shape, entry->weight.shape, sizeof w.shape);
    if (how->nested) w.nested_scales = &stand_in;
    if (w.rank == 3 && nbl__experts_transposed(&m->decoder, &entry->weight))
        w.shape[1] = entry->weight.shape[2], w.shape[2] = entry->weight.shape[1];
    if (w.rank == 3) { /* graphs look at pointers of stacks; nothing reads them */
        w.data = w.scale_codes = (const uint8_t *)&stand_in;
        w.scales = w.nested_table = &stand_in;
        w.nested_block = how->nested ? NBL_NESTED_BLOCK : 0;
    }
    entry->weight = w;
}

/* True if --load quantizes this weight. Experts that are packed already stay as they are: GPT-OSS's in
 * MXFP4 go with linear layers in another format. */
static bool is_converted(const struct nbl__weight_entry *entry, const load_options *load)
{
    if (!load->converts) return false;
    return entry->role == NBL_WEIGHT_LINEAR ||
           (entry->role == NBL_WEIGHT_EXPERTS && entry->weight.format == NBL_FORMAT_DENSE);
}

/* Assigns addresses in `cut` to the parts of a quantized weight; with cut->memory NULL it only
 * counts bytes. Nested scales: the f32 scales are quantized themselves, so they are temporary.
 * *temporary: their bytes; 0 without nesting. NBL_ERROR_ARGUMENT if the weight is quantized
 * already. */
static nbl_status cut_parts(nbl_model *m, const struct nbl__weight_entry *entry, const load_options *load,
                            nbl__bump *bump, nbl_quantized_parts *parts, size_t *temporary)
{
    nbl_quantized_sizes sizes;
    const nbl_weight *w = &entry->weight;
    NBL_CHECK(m->ctx, w->format == NBL_FORMAT_DENSE, NBL_ERROR_ARGUMENT, "%s: tensor \"%s\" is %s already",
              m->path, entry->name, nbl_format_name(w->format));
    int64_t shape[NBL_MAX_RANK];
    memcpy(shape, w->shape, sizeof shape);
    if (w->rank == 3 && nbl__experts_transposed(&m->decoder, w))
        shape[1] = w->shape[2], shape[2] = w->shape[1];
    NBL_TRY(nbl_quantize_sizes(m->ctx, &load->how, w->rank, shape, &sizes));
    *parts = (nbl_quantized_parts){0};
    *temporary = load->how.nested ? sizes.scales : 0;
    parts->data = nbl__bump_alloc(bump, sizes.data);
    if (!load->how.nested) parts->scales = nbl__bump_alloc(bump, sizes.scales);
    parts->scale_codes = nbl__bump_alloc(bump, sizes.scale_codes);
    parts->nested_scales = nbl__bump_alloc(bump, sizes.nested_scales);
    return NBL_OK;
}

/* Allocates all quantized weights as one block. One large block can use huge pages; many small ones
 * cannot. */
static nbl_status reserve_quantized(nbl_model *m, const load_options *load)
{
    nbl__bump bump = {NULL, 0};
    nbl_quantized_parts parts;
    size_t temporary;
    if (!load->converts || m->plan_only) return NBL_OK;
    for (int64_t i = 0; i < m->weight_count; i++)
        if (is_converted(&m->weights[i], load))
            NBL_TRY(cut_parts(m, &m->weights[i], load, &bump, &parts, &temporary));
    m->quantized = nbl__alloc(m->ctx, bump.used);
    m->quantized_bytes = bump.used;
    return m->quantized ? NBL_OK : NBL_ERROR_MEMORY;
}

/* Quantizing would silently turn NaN and infinities into finite numbers: an error that names the
 * first one. int8 is computed from f16 values, so there f32 values beyond f16's range count as
 * non-finite. */
static nbl_status refuse_non_finite(const nbl_model *m, const char *name, const nbl_weight *w, nbl_format to,
                                    int64_t count)
{
    bool f16 = to == NBL_FORMAT_INT8;
    int64_t n = 1;
    for (int i = 0; i < w->rank; i++) n *= w->shape[i];
    nbl__non_finite found = {0};
    nbl__non_finite_list(&found, w->dtype, w->data, n, 0, 1, f16 ? NBL_LARGEST_F16 : FLT_MAX);
    return nbl__hint(m->ctx,
                     nbl__fail(m->ctx, NBL_ERROR_DTYPE,
                               "%s: tensor \"%s\": %" PRId64
                               " values are not finite%s; the first has index %" PRId64,
                               m->path, name, count, f16 ? " in f16, through which int8 goes" : "",
                               (int64_t)atomic_load(&found.first) - 1),
                     "repair the weights, or accept them with nibble quantize --allow-non-finite");
}

/* The source of a stack's matrices. */
typedef struct stack_source {
    nbl_context *ctx;
    nbl_weight stack, flat; /* flat: a stack in one piece as one matrix */
    bool transposed;
    void *matrix; /* of a transposed stack: one matrix, its outputs first */
} stack_source;

static nbl_status read_piece(void *user, int64_t i, const void **values)
{
    const stack_source *s = user;
    if (s->stack.members) return *values = s->stack.members[i].data, NBL_OK;
    int64_t rows = s->stack.shape[1], at = i * rows;
    *values = (const uint8_t *)s->flat.data + (size_t)(at * s->stack.shape[2]) * nbl__size_of(s->stack.dtype);
    if (!s->transposed) return NBL_OK;
    *values = s->matrix;
    return nbl__dequantize_host(s->ctx, &s->flat, at, at + rows, s->stack.dtype, true, s->matrix);
}

/* Quantizes a stack of experts matrix by matrix, each as [out, in]. */
static nbl_status quantize_stack(nbl_model *m, struct nbl__weight_entry *entry, const load_options *load,
                                 const nbl_quantized_parts *parts, int64_t *non_finite)
{
    const nbl_weight *w = &entry->weight;
    bool transposed = nbl__experts_transposed(&m->decoder, w);
    stack_source source = {.ctx = m->ctx, .stack = *w, .flat = nbl__stack_flat(w), .transposed = transposed};
    int64_t shape[3] = {w->shape[0], w->shape[transposed ? 2 : 1], w->shape[transposed ? 1 : 2]};
    size_t bytes = (size_t)(shape[1] * shape[2]) * nbl__size_of(w->dtype);
    if (transposed && (source.matrix = nbl__alloc(m->ctx, bytes)) == NULL) return NBL_ERROR_MEMORY;
    nbl_status status = nbl__quantize_stack(m->ctx, &load->how, w->dtype, shape,
                                            w->members ? w->member_count : w->shape[0], read_piece, &source,
                                            parts, &entry->weight, non_finite);
    nbl__free(m->ctx, source.matrix, bytes);
    for (int64_t i = 0; m->checkpoint && i < source.stack.member_count; i++)
        nbl__checkpoint_drop_file(m->checkpoint, source.stack.members[i].data);
    if (*non_finite == 0) return status;
    return nbl__fail(m->ctx, NBL_ERROR_DTYPE, "%s: experts \"%s\": %" PRId64 " values are not finite",
                     m->path, entry->name, *non_finite);
}

/* Replaces a dense weight by its quantized form in m->quantized, and frees the dense source. */
static nbl_status quantize_entry(nbl_model *m, struct nbl__weight_entry *entry, const load_options *load)
{
    nbl_quantized_parts parts;
    nbl__bump bump = {m->quantized, m->quantized_used};
    size_t temporary;
    nbl_weight w = entry->weight;
    if (m->plan_only) return describe_entry(m, entry, &load->how), NBL_OK;
    NBL_TRY(cut_parts(m, entry, load, &bump, &parts, &temporary));
    assert(bump.used <= m->quantized_bytes); /* reserve_quantized has counted the same parts */
    m->quantized_used = bump.used;
    void *scales = nbl__alloc(m->ctx, temporary);
    if (scales == NULL) return NBL_ERROR_MEMORY;
    if (load->how.nested) parts.scales = scales;
    int64_t non_finite;
    bool stack = entry->role == NBL_WEIGHT_EXPERTS;
    nbl_status status = stack ? quantize_stack(m, entry, load, &parts, &non_finite)
                              : nbl__quantize(m->ctx, &load->how, w.dtype, w.rank, w.shape, w.data, &parts,
                                              &entry->weight, &non_finite);
    if (non_finite > 0 && !stack)
        status = refuse_non_finite(m, entry->name, &w, load->how.format, non_finite);
    nbl__free(m->ctx, scales, temporary);
    /* Free the source at once: loading needs the memory of the result and of one source weight. */
    nbl__free(m->ctx, entry->memory, entry->bytes);
    entry->memory = NULL;
    if (m->checkpoint && w.data) nbl__checkpoint_drop_file(m->checkpoint, w.data);
    return status;
}

static nbl_status convert_arrived(nbl_model *m, struct nbl__weight_entry *entry, const load_options *load)
{
    return is_converted(entry, load) ? quantize_entry(m, entry, load) : NBL_OK;
}

/* Makes one entry per weight of the text model. Only --load touches the data. */
static nbl_status hold_checkpoint(nbl_model *m, const load_options *load)
{
    NBL_TRY(nbl__model_hold_checkpoint(m));
    NBL_TRY(nbl__model_find_roles(m));
    if (m->misfits) return nbl__model_check(m); /* the weights are not all there */
    NBL_TRY(reserve_quantized(m, load));
    for (int64_t i = 0; i < m->weight_count; i++) {
        NBL_TRY(nbl__progress_poll(m->ctx, m->weights[i].name));
        NBL_TRY(convert_arrived(m, &m->weights[i], load));
    }
    return NBL_OK;
}

/* Makes one entry per weight of a .gguf file, dequantized: matrices to the compute dtype, vectors
 * to f32. */
static nbl_status hold_gguf(nbl_model *m, const load_options *load)
{
    const nbl__file *file = &m->gguf->gguf->file;
    NBL_TRY(nbl__model_make_entries(m, m->gguf->weight_count));
    for (int64_t i = 0; i < m->gguf->weight_count; i++) {
        const nbl__gguf_weight *from = &m->gguf->weights[i];
        bool vector = nbl__gguf_weight_rank(from) == 1;
        nbl__model_add(m, from->name)->weight = (nbl_weight){
            .format = NBL_FORMAT_DENSE,
            .dtype = vector ? NBL_DTYPE_F32 : m->dtype,
            .rank = vector ? 1 : 2,
            .shape = {vector ? from->columns : from->rows, vector ? 0 : from->columns}};
    }
    NBL_TRY(nbl__model_find_roles(m));
    NBL_TRY(reserve_quantized(m, load));
    for (int64_t i = 0; i < m->weight_count; i++) {
        const nbl__gguf_weight *from = &m->gguf->weights[i];
        struct nbl__weight_entry *entry = &m->weights[i];
        NBL_TRY(nbl__progress_poll(m->ctx, from->name));
        entry->bytes = (size_t)(from->rows * from->columns) * nbl__size_of(entry->weight.dtype);
        entry->memory = m->plan_only ? NULL : nbl__alloc(m->ctx, entry->bytes);
        if (entry->memory == NULL && !m->plan_only) return NBL_ERROR_MEMORY;
        if (entry->memory)
            NBL_TRY(nbl__gguf_weight_rows(m->ctx, from, 0, from->rows, entry->weight.dtype, entry->memory));
        if (file->data) nbl__file_drop(file, file->data, file->size); /* its blocks are not needed again */
        entry->weight.data = entry->memory;
        NBL_TRY(convert_arrived(m, entry, load));
    }
    return NBL_OK;
}

/* Replaces base weights by the whole tensors that the adapter's file contains (modules_to_save). */
static nbl_status apply_replacements(nbl_model *m)
{
    for (int64_t i = 0; i < m->peft->replacement_count; i++) {
        const nbl__peft_replacement *r = &m->peft->replacements[i];
        struct nbl__weight_entry *entry = nbl__model_find(m, r->name);
        NBL_CHECK(m->ctx, entry, NBL_ERROR_UNSUPPORTED,
                  "%s: modules_to_save has \"%s\", which the model does not store", m->peft->folder, r->name);
        entry->weight = (nbl_weight){.format = NBL_FORMAT_DENSE,
                                     .dtype = r->stored->dtype,
                                     .rank = r->stored->rank,
                                     .data = r->stored->data};
        memcpy(entry->weight.shape, r->stored->shape, sizeof entry->weight.shape);
    }
    return NBL_OK;
}

/* ---- adapter ---- */

/* Unties the head from the embedding if the adapter changes only one of them. Both then share the
 * stored data, but have entries of their own. */
static nbl_status give_own_head(nbl_model *m)
{
    const struct nbl__weight_entry *embedding = nbl__model_find_role(m, NBL_WEIGHT_EMBEDDING);
    struct nbl__weight_entry *head = nbl__model_find(m, head_name);
    if (!m->decoder.tied || embedding == NULL || !nbl__peft_unties(m->peft)) return NBL_OK;
    if (head == NULL) head = nbl__model_add(m, head_name); /* there is room for one more */
    *head = (struct nbl__weight_entry){
        .name = head_name, .weight = embedding->weight, .stack = -1, .role = NBL_WEIGHT_HEAD};
    m->decoder.tied = false;
    return NBL_OK;
}

/* What an adapter may do to a weight follows from its role. A head that is stored although it is
 * tied has none: no builder asks for it. */
static nbl__peft_kind peft_kind(const nbl_model *m, const struct nbl__weight_entry *entry)
{
    switch (entry->role) {
    case NBL_WEIGHT_LINEAR: return NBL_PEFT_LINEAR;
    case NBL_WEIGHT_EMBEDDING: return NBL_PEFT_EMBEDDING;
    case NBL_WEIGHT_HEAD: return NBL_PEFT_HEAD;
    case NBL_WEIGHT_ROUTER: return NBL_PEFT_ROUTER;
    case NBL_WEIGHT_EXPERTS: return NBL_PEFT_EXPERTS;
    default: return m->decoder.tied && strcmp(entry->name, head_name) == 0 ? NBL_PEFT_HEAD : NBL_PEFT_OTHER;
    }
}

/* Lists the tensors that an adapter is checked against. A tied head is a module too, though no file
 * stores it: it gets the embedding's shape. */
static nbl_status list_tensors(nbl_model *m, nbl__peft_tensor **list, int64_t *count)
{
    nbl__peft_tensor *tensors = nbl__arena_alloc(&m->arena, (size_t)(m->weight_count + 1) * sizeof *tensors);
    if (tensors == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < m->weight_count; i++) {
        const nbl_weight *w = &m->weights[i].weight;
        tensors[i] = (nbl__peft_tensor){m->weights[i].name, w->rank, w->shape, peft_kind(m, &m->weights[i])};
        if (tensors[i].kind != NBL_PEFT_EXPERTS || !nbl__experts_transposed(&m->decoder, w)) continue;
        int64_t *shape = nbl__arena_alloc(&m->arena, 3 * sizeof *shape);
        if (shape == NULL) return NBL_ERROR_MEMORY;
        shape[0] = w->shape[0], shape[1] = w->shape[2], shape[2] = w->shape[1];
        tensors[i].shape = shape;
    }
    *list = tensors;
    *count = m->weight_count;
    const struct nbl__weight_entry *embedding = nbl__model_find_role(m, NBL_WEIGHT_EMBEDDING);
    if (m->decoder.tied && embedding && nbl__model_find(m, head_name) == NULL)
        tensors[(*count)++] = (nbl__peft_tensor){head_name, 2, embedding->weight.shape, NBL_PEFT_HEAD};
    return NBL_OK;
}

nbl_status nbl__model_new_adapter(nbl_model *m, const char *where, const nbl__peft_settings *settings)
{
    nbl__peft_tensor *tensors;
    nbl__peft_target *targets;
    int64_t count, target_count;
    NBL_TRY(list_tensors(m, &tensors, &count));
    NBL_TRY(nbl__peft_list_targets(&m->arena, tensors, count, &targets, &target_count));
    const nbl__text_part *part = nbl__text_part_of(m->config);
    NBL_TRY(nbl__peft_new(m->ctx, where, m->decoder.arch->model_type, settings, part ? part->prefix : NULL,
                          targets, target_count, &m->peft));
    return give_own_head(m);
}

/* Checks an opened adapter against the model and applies its replacements. */
static nbl_status check_adapter(nbl_model *m)
{
    nbl__peft_tensor *tensors;
    int64_t count;
    NBL_TRY(give_own_head(m));
    NBL_TRY(list_tensors(m, &tensors, &count));
    NBL_TRY(nbl__peft_swap_experts(m->peft, m->decoder.arch->model_type));
    NBL_TRY(nbl__peft_check_tensors(m->peft, tensors, count));
    NBL_CHECK(m->ctx, !m->peft->settings.lora_bias, NBL_ERROR_UNSUPPORTED, "%s: lora_bias is not supported",
              m->peft->folder);
    for (int64_t i = 0; i < m->peft->module_count; i++)
        NBL_CHECK(m->ctx, !m->peft->modules[i].is_embedding, NBL_ERROR_UNSUPPORTED,
                  "%s: an adapter of the embedding \"%s\" (embed_tokens) is not supported", m->peft->folder,
                  m->peft->modules[i].path);
    return apply_replacements(m);
}

/* ---- opening ---- */

/* Reads generation_config.json of a folder, if it exists; a malformed one is an error. Called for
 * the model, then for the adapter: the adapter's file replaces the model's if it names
 * eos_token_id. */
static nbl_status read_generation(nbl_model *m, const char *folder)
{
    nbl__config generation;
    const char *path = nbl__arena_printf(&m->arena, "%s/generation_config.json", folder);
    if (path == NULL) return NBL_ERROR_MEMORY;
    if (access(path, F_OK) != 0) return NBL_OK;
    NBL_TRY(nbl__config_read(&m->arena, path, &generation));
    const nbl__json *ends = nbl__json_get(generation.root, "eos_token_id");
    if (m->generation == NULL || (ends && ends->type != NBL_JSON_NULL)) m->generation = generation.root;
    return NBL_OK;
}

/* Reads eos_token from tokenizer_config.json of an adapter's folder. Other trainers save no
 * generation_config.json there. */
static nbl_status read_adapter_end(nbl_model *m, const char *folder)
{
    nbl__config settings;
    const char *path = nbl__arena_printf(&m->arena, "%s/tokenizer_config.json", folder);
    if (path == NULL) return NBL_ERROR_MEMORY;
    if (access(path, F_OK) != 0) return NBL_OK;
    NBL_TRY(nbl__config_read(&m->arena, path, &settings));
    const nbl__json *end = nbl__json_get(settings.root, "eos_token");
    if (nbl__json_is(end, NBL_JSON_OBJECT)) end = nbl__json_get(end, "content");
    if (nbl__json_is(end, NBL_JSON_STRING)) m->adapter_end = end->string;
    return NBL_OK;
}

/* Opens a .gguf file, or a checkpoint with its config.json. */
static nbl_status open_files(nbl_model *m, const char *path)
{
    if (nbl__ends_with(path, ".gguf")) {
        NBL_TRY(nbl__gguf_model_open(m->ctx, path, &m->gguf));
        m->config = m->gguf->config.root;
        return NBL_OK;
    }
    NBL_TRY(nbl_checkpoint_open(m->ctx, path, NBL_OPEN_STRICT, &m->checkpoint));
    m->config = m->checkpoint->config.root;
    NBL_CHECK(m->ctx, m->config, NBL_ERROR_NOT_FOUND, "%s: no config.json", path);
    return m->checkpoint->is_folder ? read_generation(m, path) : NBL_OK;
}

static nbl_status open_model(nbl_model *m, const nbl_model_options *options)
{
    NBL_TRY(open_files(m, m->path));
    NBL_TRY(nbl__decoder_read(m->ctx, m->path, m->config, &m->decoder));
    NBL_CHECK(m->ctx, nbl__compute_dtype_valid(options->dtype), NBL_ERROR_ARGUMENT,
              "model: dtype %d is no nbl_compute_dtype", (int)options->dtype);
    m->dtype = nbl__dtype_chosen(options->dtype, m->decoder.dtype);
    /* Weights, converted if asked for. */
    m->plan_only = options->plan_only;
    load_options load;
    NBL_TRY(check_load_options(m, options, &load));
    NBL_TRY(m->gguf ? hold_gguf(m, &load) : hold_checkpoint(m, &load));
    /* The adapter, whose end tokens replace the model's. */
    if (options->adapter) {
        NBL_TRY(nbl__peft_open(m->ctx, options->adapter, &m->peft));
        NBL_TRY(read_generation(m, options->adapter)); /* the ends that it was trained with */
        NBL_TRY(read_adapter_end(m, options->adapter));
        NBL_TRY(check_adapter(m));
    }
    return nbl__model_check(m);
}

nbl_status nbl_model_open(nbl_context *ctx, const char *path, const nbl_model_options *given,
                          nbl_model **result)
{
    NBL_CHECK(ctx, path && result, NBL_ERROR_ARGUMENT, "model: NULL argument");
    *result = NULL;
    NBL_TRY(nbl__check_models(ctx));
    nbl_model_options options;
    NBL_TRY(NBL_OPTIONS_READ(ctx, nbl_model_options, given, &options));
    nbl_model *m;
    NBL_TRY(NBL_ALLOC(ctx, m, 1));
    m->ctx = ctx;
    m->arena = nbl__arena_make(ctx);
    m->path = nbl__arena_strdup(&m->arena, path);
    nbl_status status = m->path ? open_model(m, &options) : NBL_ERROR_MEMORY;
    if (status != NBL_OK) {
        nbl_model_close(m);
        return status;
    }
    *result = m;
    return NBL_OK;
}

void nbl_model_close(nbl_model *m)
{
    if (m == NULL) return;
    nbl__upload_free(m);
    for (int64_t i = 0; m->weights && i < m->weight_count; i++)
        if (m->weights[i].memory) nbl__free(m->ctx, m->weights[i].memory, m->weights[i].bytes);
    nbl__free(m->ctx, m->quantized, m->quantized_bytes);
    nbl__peft_close(m->peft);
    nbl__gguf_model_close(m->gguf);
    if (m->checkpoint) nbl_checkpoint_close(m->checkpoint);
    nbl__arena_free(&m->arena);
    nbl__free(m->ctx, m, sizeof *m);
}
