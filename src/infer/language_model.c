/* language_model.c - opening a model: files, weights, adapter. See language_model.h. */
#include "infer/language_model.h"

#include <unistd.h>

/* ---- weights ---- */

struct nbl__held *nbl__model_find(const nbl_model *m, const char *name)
{
    for (int64_t i = 0; i < m->weight_count; i++)
        if (strcmp(m->weights[i].name, name) == 0) return &m->weights[i];
    return NULL;
}

/* The linear layers of the blocks: what transformers quantises of these architectures. */
static bool is_linear(const char *name)
{
    return strncmp(name, "model.layers.", 13) == 0 && nbl__ends_with(name, "_proj.weight");
}

static nbl_quantize_options load_options(nbl_format format)
{
    return (nbl_quantize_options){.format = format, .block = format == NBL_FORMAT_MXFP4 ? 32 : 64};
}

/* The parts of a weight, cut from memory; or what they take, from none. */
static nbl_status cut_parts(nbl_model *m, const struct nbl__held *held, nbl_format format, nbl__cut *cut,
                            nbl_quantized_parts *parts)
{
    nbl_quantize_options how = load_options(format);
    nbl_quantized_sizes sizes;
    const nbl_weight *w = &held->weight;
    NBL_CHECK(m->ctx, w->format == NBL_FORMAT_DENSE, NBL_ERROR_ARGUMENT, "%s: tensor \"%s\" is %s already",
              m->path, held->name, nbl_format_name(w->format));
    NBL_TRY(nbl_quantize_sizes(m->ctx, &how, w->rank, w->shape, &sizes));
    *parts = (nbl_quantized_parts){0};
    parts->data = nbl__cut_bytes(cut, sizes.data);
    parts->scales = nbl__cut_bytes(cut, sizes.scales);
    parts->scale_codes = nbl__cut_bytes(cut, sizes.scale_codes);
    return NBL_OK;
}

/* All of them lie in one piece of memory: the layers of a small model are small, and apart they would lie in small
 * pages. */
static nbl_status quantize_linears(nbl_model *m, nbl_format format)
{
    nbl_quantize_options how = load_options(format);
    nbl__cut cut = {NULL, 0};
    nbl_quantized_parts parts;
    for (struct nbl__held *held = m->weights; held < m->weights + m->weight_count; held++)
        if (is_linear(held->name)) NBL_TRY(cut_parts(m, held, format, &cut, &parts));
    m->quantized = nbl__alloc(m->ctx, cut.used);
    if (m->quantized == NULL) return NBL_ERROR_MEMORY;
    m->quantized_bytes = cut.used;
    cut = (nbl__cut){m->quantized, 0};
    for (struct nbl__held *held = m->weights; held < m->weights + m->weight_count; held++) {
        if (!is_linear(held->name)) continue;
        nbl_weight w = held->weight;
        NBL_TRY(cut_parts(m, held, format, &cut, &parts));
        NBL_TRY(nbl_quantize(m->ctx, &how, w.dtype, w.rank, w.shape, w.data, &parts, &held->weight));
        if (m->checkpoint) nbl__checkpoint_drop_file(m->checkpoint, w.data);
        nbl__free(m->ctx, held->memory, held->bytes);
        held->memory = NULL;
    }
    return NBL_OK;
}

static nbl_status hold_checkpoint(nbl_model *m)
{
    m->weight_count = m->checkpoint->tensor_count;
    m->weights = nbl__arena_alloc(&m->arena, (size_t)m->weight_count * sizeof *m->weights);
    if (m->weights == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < m->weight_count; i++) {
        const nbl_tensor_info *info = &m->checkpoint->tensors[i];
        m->weights[i] = (struct nbl__held){.name = info->name, .weight = info->weight};
    }
    return NBL_OK;
}

/* GGUF's blocks are decoded on arrival, to the dtype of the computation. */
static nbl_status hold_gguf(nbl_model *m)
{
    m->weight_count = m->gguf->weight_count;
    m->weights = nbl__arena_alloc(&m->arena, (size_t)m->weight_count * sizeof *m->weights);
    if (m->weights == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < m->weight_count; i++) {
        const nbl__gguf_weight *from = &m->gguf->weights[i];
        struct nbl__held *held = &m->weights[i];
        bool vector = nbl__gguf_weight_rank(from) == 1;
        nbl_dtype dtype = vector ? NBL_DTYPE_F32 : m->dtype;
        held->name = from->name;
        held->bytes = (size_t)(from->rows * from->columns) * nbl__size_of(dtype);
        held->memory = nbl__alloc(m->ctx, held->bytes);
        if (held->memory == NULL) return NBL_ERROR_MEMORY;
        NBL_TRY(nbl__gguf_weight_rows(m->ctx, from, 0, from->rows, dtype, held->memory));
        held->weight = (nbl_weight){
            .format = NBL_FORMAT_DENSE, .dtype = dtype, .rank = vector ? 1 : 2, .data = held->memory};
        held->weight.shape[0] = vector ? from->columns : from->rows;
        held->weight.shape[1] = vector ? 0 : from->columns;
    }
    return NBL_OK;
}

/* modules_to_save: weights that the adapter brings with it. */
static nbl_status apply_replacements(nbl_model *m)
{
    for (int64_t i = 0; i < m->peft->replacement_count; i++) {
        const nbl__peft_replacement *r = &m->peft->replacements[i];
        struct nbl__held *held = nbl__model_find(m, r->name);
        NBL_CHECK(m->ctx, held, NBL_ERROR_UNSUPPORTED,
                  "%s: modules_to_save has \"%s\", which the model does not store", m->peft->folder, r->name);
        held->weight = (nbl_weight){.format = NBL_FORMAT_DENSE,
                                    .dtype = r->stored->dtype,
                                    .rank = r->stored->rank,
                                    .data = r->stored->data};
        memcpy(held->weight.shape, r->stored->shape, sizeof held->weight.shape);
    }
    return NBL_OK;
}

/* ---- adapter ---- */

/* An adapter of another model shows in its first layer: say so before anything else that does not fit. */
static nbl_status check_first_layer(nbl_model *m)
{
    static const char *const parts[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                        "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                        "mlp.down_proj"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *path = nbl__arena_printf(&m->arena, "model.layers.0.%s", parts[i]);
        const char *name = nbl__arena_printf(&m->arena, "%s.weight", path ? path : "");
        if (path == NULL || name == NULL) return NBL_ERROR_MEMORY;
        const nbl__peft_module *it = nbl__peft_find(m->peft, path);
        const struct nbl__held *held = nbl__model_find(m, name);
        if (it == NULL || held == NULL || held->weight.rank != 2) continue;
        NBL_CHECK(m->ctx, it->out == held->weight.shape[0] && it->in == held->weight.shape[1],
                  NBL_ERROR_SHAPE,
                  "%s: the adapter of \"%s\" is for [%" PRId64 ", %" PRId64 "], the model has [%" PRId64
                  ", %" PRId64 "] (of another model?)",
                  m->peft->folder, path, it->out, it->in, held->weight.shape[0], held->weight.shape[1]);
    }
    return NBL_OK;
}

static nbl_status check_adapter(nbl_model *m)
{
    NBL_TRY(check_first_layer(m));
    nbl__peft_place *places = nbl__arena_alloc(&m->arena, (size_t)m->weight_count * sizeof *places);
    if (places == NULL) return NBL_ERROR_MEMORY;
    int64_t count = 0;
    for (int64_t i = 0; i < m->weight_count; i++) {
        const struct nbl__held *held = &m->weights[i];
        if (!nbl__ends_with(held->name, ".weight")) continue;
        char *path = nbl__arena_strdup(&m->arena, held->name);
        if (path == NULL) return NBL_ERROR_MEMORY;
        path[strlen(path) - strlen(".weight")] = '\0';
        bool matrix = held->weight.rank == 2, embedding = strcmp(path, "model.embed_tokens") == 0;
        nbl__peft_kind kind = !matrix                        ? NBL_PEFT_OTHER
                              : embedding                    ? NBL_PEFT_EMBEDDING
                              : strcmp(path, "lm_head") == 0 ? NBL_PEFT_HEAD
                                                             : NBL_PEFT_LINEAR;
        int64_t rows = held->weight.shape[0], columns = matrix ? held->weight.shape[1] : 0;
        places[count++] = (nbl__peft_place){path, kind, embedding ? columns : rows,
                                            embedding ? rows : columns};
    }
    NBL_TRY(nbl__peft_check(m->peft, places, count));
    NBL_CHECK(m->ctx, !m->peft->settings.lora_bias, NBL_ERROR_UNSUPPORTED, "%s: lora_bias is not supported",
              m->peft->folder);
    for (int64_t i = 0; i < m->peft->module_count; i++)
        NBL_CHECK(m->ctx, !m->peft->modules[i].is_embedding, NBL_ERROR_UNSUPPORTED,
                  "%s: an adapter of the embedding \"%s\" (embed_tokens) is not supported", m->peft->folder,
                  m->peft->modules[i].path);
    return apply_replacements(m);
}

/* ---- opening ---- */

/* generation_config.json is read when it is there; what is wrong with it is an error. */
static nbl_status read_generation(nbl_model *m, const char *folder)
{
    nbl__config generation;
    const char *path = nbl__arena_printf(&m->arena, "%s/generation_config.json", folder);
    if (path == NULL) return NBL_ERROR_MEMORY;
    if (access(path, F_OK) != 0) return NBL_OK;
    NBL_TRY(nbl__config_read(&m->arena, path, &generation));
    m->generation = generation.root;
    return NBL_OK;
}

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
    m->dtype = m->decoder.dtype;
    if (options->dtype) {
        NBL_CHECK(m->ctx, nbl_dtype_parse(options->dtype, &m->dtype) && nbl__is_compute(m->dtype),
                  NBL_ERROR_DTYPE, "the compute dtype is \"%s\", not f32, f16 or bf16", options->dtype);
    }
    NBL_TRY(m->gguf ? hold_gguf(m) : hold_checkpoint(m));
    nbl_format format;
    NBL_CHECK(m->ctx, options->load == NULL || nbl_format_parse(options->load, &format), NBL_ERROR_ARGUMENT,
              "there is no storage format \"%s\"", options->load);
    if (options->load) NBL_TRY(quantize_linears(m, format));
    if (options->adapter == NULL) return NBL_OK;
    NBL_TRY(nbl__peft_open(m->ctx, options->adapter, &m->peft));
    return check_adapter(m);
}

nbl_status nbl_model_open(nbl_context *ctx, const char *path, const nbl_model_options *options,
                          nbl_model **result)
{
    static const nbl_model_options none;
    NBL_CHECK(ctx, path && result, NBL_ERROR_ARGUMENT, "model: NULL argument");
    *result = NULL;
    nbl_model *m;
    NBL_TRY(NBL_ALLOC(ctx, m, 1));
    m->ctx = ctx;
    m->arena = nbl__arena_make(ctx);
    m->path = nbl__arena_strdup(&m->arena, path);
    nbl_status status = m->path ? open_model(m, options ? options : &none) : NBL_ERROR_MEMORY;
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
    for (int64_t i = 0; m->weights && i < m->weight_count; i++)
        if (m->weights[i].memory) nbl__free(m->ctx, m->weights[i].memory, m->weights[i].bytes);
    nbl__free(m->ctx, m->quantized, m->quantized_bytes);
    nbl__peft_close(m->peft);
    nbl__gguf_model_close(m->gguf);
    if (m->checkpoint) nbl_checkpoint_close(m->checkpoint);
    nbl__arena_free(&m->arena);
    nbl__free(m->ctx, m, sizeof *m);
}
