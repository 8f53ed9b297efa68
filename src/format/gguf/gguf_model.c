/* gguf_model.c - the tensors of a GGUF model under their Hugging Face names; see gguf_model.h.
 *
 * Two tables, model_rows and layer_rows, map names in both directions and say which architectures
 * have a tensor, its shape, and whether it is optional. Opening a file walks the tables; then every
 * tensor of the file must have been used.
 *
 *     row      {"attn_q.weight", "self_attn.q_proj.weight", ALL, QUERY, HIDDEN, MUST}
 *     reading  blk.3.attn_q.weight  ─▶  model.layers.3.self_attn.q_proj.weight, [QUERY, HIDDEN]
 *     export   model.layers.3.self_attn.q_proj.weight  ─▶  blk.3.attn_q.weight
 *
 * One GGUF name may have several rows, for sets of architectures that do not overlap: ffn_norm is
 * the norm before the MLP in all of them, but Hugging Face calls it post_attention_layernorm in
 * Llama and pre_feedforward_layernorm in Gemma. */
#include "format/gguf/gguf_model.h"

#include <stdio.h>
#include <stdlib.h>

#include "format/hf/module_names.h"

/* ---- which tensors a model has ---- */

enum {
    LLAMA = 1 << NBL_GGUF_LLAMA,
    QWEN2 = 1 << NBL_GGUF_QWEN2,
    QWEN3 = 1 << NBL_GGUF_QWEN3,
    GEMMA2 = 1 << NBL_GGUF_GEMMA2,
    GEMMA3 = 1 << NBL_GGUF_GEMMA3,
    PHI3 = 1 << NBL_GGUF_PHI3,
    GEMMAS = GEMMA2 | GEMMA3,
    SPLIT = LLAMA | QWEN2 | QWEN3 | GEMMAS, /* q, k, v, gate and up have a matrix each */
    FUSED = PHI3,                           /* q, k, v are the rows of one matrix; gate and up too */
    ALL = SPLIT | FUSED
};

/* Sizes of a tensor by name. NONE as `columns`: a vector. QUERY and KEY: heads · head_dim of q and
 * of k, v. QKV: of all three. GATE_UP: 2 · INNER. */
typedef enum extent { NONE, HIDDEN, INNER, GATE_UP, VOCABULARY, QUERY, KEY, QKV, HEAD } extent;

typedef struct row {
    const char *gguf, *hf; /* names; of a layer: without "blk.N." and "model.layers.N." */
    int archs;             /* set of architectures that have it */
    extent rows, columns;
    enum { MUST, MAY } presence;
} row;

static const row model_rows[] = {
    {"token_embd.weight", NBL_WEIGHT_OF(NBL_MODULE_EMBEDDING), ALL, VOCABULARY, HIDDEN, MUST},
    {"output_norm.weight", NBL_WEIGHT_OF(NBL_MODULE_NORM), ALL, HIDDEN, NONE, MUST},
    {"output.weight", NBL_WEIGHT_OF(NBL_MODULE_HEAD), ALL, VOCABULARY, HIDDEN, MAY},
};

static const row layer_rows[] = {
    {"attn_norm.weight", "input_layernorm.weight", ALL, HIDDEN, NONE, MUST},
    {"attn_q.weight", "self_attn.q_proj.weight", SPLIT, QUERY, HIDDEN, MUST},
    {"attn_k.weight", "self_attn.k_proj.weight", SPLIT, KEY, HIDDEN, MUST},
    {"attn_v.weight", "self_attn.v_proj.weight", SPLIT, KEY, HIDDEN, MUST},
    {"attn_qkv.weight", "self_attn.qkv_proj.weight", FUSED, QKV, HIDDEN, MUST},
    {"attn_output.weight", "self_attn.o_proj.weight", ALL, HIDDEN, QUERY, MUST},
    {"attn_q.bias", "self_attn.q_proj.bias", QWEN2, QUERY, NONE, MUST},
    {"attn_k.bias", "self_attn.k_proj.bias", QWEN2, KEY, NONE, MUST},
    {"attn_v.bias", "self_attn.v_proj.bias", QWEN2, KEY, NONE, MUST},
    {"attn_q.bias", "self_attn.q_proj.bias", LLAMA | QWEN3, QUERY, NONE, MAY},
    {"attn_k.bias", "self_attn.k_proj.bias", LLAMA | QWEN3, KEY, NONE, MAY},
    {"attn_v.bias", "self_attn.v_proj.bias", LLAMA | QWEN3, KEY, NONE, MAY},
    {"attn_output.bias", "self_attn.o_proj.bias", LLAMA | QWEN3, HIDDEN, NONE, MAY},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", QWEN3 | GEMMA3, HEAD, NONE, MUST},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", QWEN3 | GEMMA3, HEAD, NONE, MUST},
    {"ffn_norm.weight", "post_attention_layernorm.weight", LLAMA | QWEN2 | QWEN3 | PHI3, HIDDEN, NONE, MUST},
    {"post_attention_norm.weight", "post_attention_layernorm.weight", GEMMAS, HIDDEN, NONE, MUST},
    {"ffn_norm.weight", "pre_feedforward_layernorm.weight", GEMMAS, HIDDEN, NONE, MUST},
    {"post_ffw_norm.weight", "post_feedforward_layernorm.weight", GEMMAS, HIDDEN, NONE, MUST},
    {"ffn_gate.weight", "mlp.gate_proj.weight", SPLIT, INNER, HIDDEN, MUST},
    {"ffn_up.weight", "mlp.up_proj.weight", SPLIT, INNER, HIDDEN, MUST},
    {"ffn_up.weight", "mlp.gate_up_proj.weight", FUSED, GATE_UP, HIDDEN, MUST},
    {"ffn_down.weight", "mlp.down_proj.weight", ALL, HIDDEN, INNER, MUST},
    {"ffn_gate.bias", "mlp.gate_proj.bias", LLAMA, INNER, NONE, MAY},
    {"ffn_up.bias", "mlp.up_proj.bias", LLAMA, INNER, NONE, MAY},
    {"ffn_down.bias", "mlp.down_proj.bias", LLAMA, HIDDEN, NONE, MAY},
};

enum {
    LAYER_ROWS = sizeof layer_rows / sizeof *layer_rows,
    MODEL_ROWS = sizeof model_rows / sizeof *model_rows
};

/* Fails with the name of a tensor. */
static nbl_status bad_tensor(const nbl__gguf_model *m, nbl_status code, const char *name, const char *what)
{
    return nbl__fail(m->ctx, code, "%s: tensor \"%s\": %s", m->gguf->path, name, what);
}

/* Inspection mode: lists a problem and returns NBL_OK. Else returns the status. */
static nbl_status report_or_list(const nbl__gguf_model *m, nbl_status status)
{
    return nbl__problem_collect(m->gguf->problems, status);
}

/* The size that an extent stands for in this model; 1 for NONE. */
static int64_t size_of(const nbl__gguf_model *m, extent e)
{
    switch (e) { /* every factor is below 2^31, so no product overflows */
    case HIDDEN: return m->hidden;
    case INNER: return m->intermediate;
    case GATE_UP: return 2 * m->intermediate;
    case VOCABULARY: return m->vocabulary;
    case QUERY: return m->heads * m->head_dim;
    case KEY: return m->kv_heads * m->head_dim;
    case QKV: {
        int64_t all = m->heads + 2 * m->kv_heads; /* up to 3 · 2^31 */
        return all > INT64_MAX / m->head_dim ? INT64_MAX : all * m->head_dim;
    }
    case HEAD: return m->head_dim;
    default: return 1;
    }
}

/* ---- biases ---- */

/* *all: every layer has these biases. Some but not all is an error, since config.json has one
 * switch for all layers. */

static nbl_status find_biases(nbl__gguf_model *m, const char *const *names, int count, bool *all)
{
    char name[64];
    int64_t found = 0;
    const char *missing = NULL;
    for (int64_t layer = 0; layer < m->layers; layer++)
        for (int i = 0; i < count; i++) {
            (void)snprintf(name, sizeof name, "blk.%" PRId64 ".%s", layer, names[i]);
            bool there = nbl__gguf_tensor_find(m->gguf, name) != NULL;
            found += there;
            if (!there && missing == NULL && (missing = nbl__arena_strdup(&m->arena, name)) == NULL)
                return NBL_ERROR_MEMORY;
        }
    *all = found > 0;
    if (found && missing)
        return bad_tensor(m, NBL_ERROR_UNSUPPORTED, missing,
                          "it is missing while other biases of its kind are there");
    return NBL_OK;
}

/* Sets is_tied, attention_bias and mlp_bias from the tensors that exist. */
static nbl_status find_switches(nbl__gguf_model *m)
{
    static const char *const attention[] = {"attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_output.bias"};
    static const char *const mlp[] = {"ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"};
    m->is_tied = nbl__gguf_tensor_find(m->gguf, "output.weight") == NULL;
    if (m->arch == NBL_GGUF_LLAMA || m->arch == NBL_GGUF_QWEN3)
        NBL_TRY(report_or_list(m, find_biases(m, attention, 4, &m->attention_bias)));
    return m->arch == NBL_GGUF_LLAMA ? report_or_list(m, find_biases(m, mlp, 3, &m->mlp_bias)) : NBL_OK;
}

/* ---- the map ---- */

/* Checks presence, shape and type of one tensor and adds it to the weights. */
static nbl_status add(nbl__gguf_model *m, const row *r, const char *gguf_name, const char *hf_prefix)
{
    const nbl__gguf_tensor *tensor = nbl__gguf_tensor_find(m->gguf, gguf_name);
    if (tensor == NULL)
        return r->presence == MAY ? NBL_OK : bad_tensor(m, NBL_ERROR_FORMAT, gguf_name, "it is missing");
    int64_t rows = size_of(m, r->rows), columns = size_of(m, r->columns);
    bool vector = r->columns == NONE;
    bool fits = vector ? tensor->rank == 1 && tensor->shape[0] == rows
                       : tensor->rank == 2 && tensor->shape[0] == rows && tensor->shape[1] == columns;
    nbl__ggml_layout layout = {"", 1, 1};
    (void)nbl__ggml_layout_of(tensor->type, &layout);
    NBL_CHECK(m->ctx, fits, NBL_ERROR_FORMAT,
              "%s: tensor \"%s\": its shape is %s[%" PRId64 ", %" PRId64 "], [%" PRId64 ", %" PRId64
              "] was expected",
              m->gguf->path, gguf_name, tensor->rank > 2 ? "…, " : "",
              tensor->rank > 1 ? tensor->shape[tensor->rank - 2] : 1,
              tensor->rank > 0 ? tensor->shape[tensor->rank - 1] : 1, vector ? 1 : rows,
              vector ? rows : columns);
    if (!nbl__ggml_is_decodable(tensor->type))
        return nbl__fail(m->ctx, NBL_ERROR_UNSUPPORTED, "%s: tensor \"%s\": the type %s is not supported",
                         m->gguf->path, gguf_name, layout.name);
    nbl__gguf_weight *weight = &m->weights[m->weight_count++];
    /* Record what llama.cpp's converter did, for nbl__gguf_weight_rows to undo. */
    *weight = (nbl__gguf_weight){
        .tensor = tensor, .rows = vector ? 1 : rows, .columns = vector ? rows : columns};
    if (m->arch == NBL_GGUF_LLAMA && strncmp(r->gguf, "attn_q.", 7) == 0) weight->heads = m->heads;
    if (m->arch == NBL_GGUF_LLAMA && strncmp(r->gguf, "attn_k.", 7) == 0) weight->heads = m->kv_heads;
    weight->minus_one = (1 << m->arch & GEMMAS) && nbl__ends_with(r->gguf, "norm.weight");
    weight->name = nbl__arena_printf(&m->arena, "%s%s", hf_prefix, r->hf);
    return weight->name ? NBL_OK : NBL_ERROR_MEMORY;
}

static int by_tensor(const void *a, const void *b)
{
    const nbl__gguf_weight *x = a, *y = b;
    return strcmp(x->tensor->name, y->tensor->name);
}

static int by_name(const void *a, const void *b)
{
    const nbl__gguf_weight *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Checks that every tensor of the file was mapped. The exceptions are Llama's rope_freqs.weight and
 * Phi-3's rope_factors_long.weight and rope_factors_short.weight, whose contents become rope_scaling
 * in the config. */
static nbl_status check_all_used(nbl__gguf_model *m)
{
    qsort(m->weights, (size_t)m->weight_count, sizeof *m->weights, by_tensor);
    for (int64_t i = 0; i < m->gguf->tensor_count; i++) {
        nbl__gguf_weight wanted = {.tensor = &m->gguf->tensors[i]};
        if (bsearch(&wanted, m->weights, (size_t)m->weight_count, sizeof wanted, by_tensor)) continue;
        if (m->arch == NBL_GGUF_LLAMA && strcmp(wanted.tensor->name, "rope_freqs.weight") == 0) continue;
        if (m->arch == NBL_GGUF_PHI3 && (strcmp(wanted.tensor->name, "rope_factors_long.weight") == 0 ||
                                         strcmp(wanted.tensor->name, "rope_factors_short.weight") == 0))
            continue;
        NBL_TRY(report_or_list(m, bad_tensor(m, NBL_ERROR_UNSUPPORTED, wanted.tensor->name,
                                             "it is not one that this architecture has")));
    }
    return NBL_OK;
}

/* Maps the model's and all layers' tensors, and sorts the weights by Hugging Face name. */
static nbl_status map_tensors(nbl__gguf_model *m)
{
    char gguf_name[64], prefix[64];
    m->weights = nbl__arena_alloc(&m->arena, (size_t)m->gguf->tensor_count * sizeof *m->weights);
    if (m->weights == NULL) return NBL_ERROR_MEMORY;
    for (int i = 0; i < MODEL_ROWS; i++)
        NBL_TRY(report_or_list(m, add(m, &model_rows[i], model_rows[i].gguf, "")));
    for (int64_t layer = 0; layer < m->layers && !nbl__problems_are_full(m->gguf->problems); layer++) {
        (void)snprintf(prefix, sizeof prefix, NBL_MODULE_LAYERS "%" PRId64 ".", layer);
        for (int i = 0; i < LAYER_ROWS; i++) {
            if ((layer_rows[i].archs & 1 << m->arch) == 0) continue;
            (void)snprintf(gguf_name, sizeof gguf_name, "blk.%" PRId64 ".%s", layer, layer_rows[i].gguf);
            NBL_TRY(report_or_list(m, add(m, &layer_rows[i], gguf_name, prefix)));
        }
    }
    NBL_TRY(check_all_used(m));
    qsort(m->weights, (size_t)m->weight_count, sizeof *m->weights, by_name);
    return NBL_OK;
}

/* ---- opening ---- */

nbl_status nbl__gguf_model_of(nbl_context *ctx, nbl__gguf *gguf, nbl__gguf_model **out)
{
    nbl__gguf_model *m = *out = NULL;
    nbl_status status = NBL_ALLOC(ctx, m, 1);
    if (status != NBL_OK) {
        nbl__gguf_close(gguf);
        return status;
    }
    m->ctx = ctx;
    m->arena = nbl__arena_make(ctx);
    m->gguf = gguf;
    NBL_GO(nbl__gguf_read_sizes(m));
    NBL_GO(find_switches(m));
    NBL_GO(map_tensors(m));
    NBL_GO(nbl__gguf_make_config(m));
    *out = m;
    return NBL_OK;
done:
    nbl__gguf_model_close(m);
    return status;
}

/* Runs the same steps as opening, on a file of the inspection mode, and throws the result away.
 * Without all sizes no shape can be checked, so it stops there. */
nbl_status nbl__gguf_model_check(nbl__gguf *gguf)
{
    nbl__gguf_model m = {.ctx = gguf->ctx, .arena = nbl__arena_make(gguf->ctx), .gguf = gguf};
    nbl_status status;
    NBL_GO(report_or_list(&m, nbl__gguf_read_sizes(&m)));
    if (!(m.layers && m.hidden && m.intermediate && m.heads && m.kv_heads && m.head_dim && m.vocabulary))
        goto done; /* the missing size is listed already */
    NBL_GO(find_switches(&m));
    NBL_GO(map_tensors(&m));
    NBL_GO(report_or_list(&m, nbl__gguf_make_config(&m)));
done:
    nbl__arena_free(&m.arena);
    return status;
}

nbl_status nbl__gguf_model_open(nbl_context *ctx, const char *path, nbl__gguf_model **out)
{
    nbl__gguf *gguf;
    *out = NULL;
    NBL_TRY(nbl__gguf_open(ctx, path, &gguf));
    return nbl__gguf_model_of(ctx, gguf, out);
}

void nbl__gguf_model_close(nbl__gguf_model *model)
{
    if (model == NULL) return;
    nbl_context *ctx = model->ctx;
    nbl__gguf_close(model->gguf);
    nbl__arena_free(&model->arena);
    nbl__free(ctx, model, sizeof *model);
}

/* The weights are sorted by Hugging Face name. */
const nbl__gguf_weight *nbl__gguf_weight_find(const nbl__gguf_model *model, const char *name)
{
    nbl__gguf_weight wanted = {.name = name};
    return bsearch(&wanted, model->weights, (size_t)model->weight_count, sizeof wanted, by_name);
}

/* ---- dequantizing ---- */

/* The stored index of value or row `index` of n, in rotary pairs: within a head of width d,
 *     i < d/2  is stored at  2 i                  i >= d/2  is stored at  2 (i - d/2) + 1 */
static int64_t stored_index(int64_t index, int64_t n, int64_t heads)
{
    int64_t width = n / heads, half = width / 2, within = index % width;
    return index - within + 2 * (within % half) + within / half;
}

/* Dequantizes a vector, undoing pairs and the offset of 1. */
static void dequantize_vector(nbl_isa isa, const nbl__gguf_weight *w, nbl_dtype dtype, void *out)
{
    enum { MAX = 256 };
    float values[MAX];
    nbl__ggml_layout layout = {"", 1, 1};
    (void)nbl__ggml_layout_of(w->tensor->type, &layout);
    if (!w->minus_one && w->heads == 0) {
        /* nothing to undo: one call */
        nbl__ggml_dequantize(isa, w->tensor->type, w->tensor->data, w->columns, dtype, out);
        return;
    }
    for (int64_t at = 0; at < w->columns; at += MAX) {
        int64_t count = nbl__min_i64(MAX, w->columns - at);
        /* A bias in rotary pairs: dequantize one block per value. Slow, but biases are small. */
        for (int64_t i = 0; w->heads && i < count; i++) {
            int64_t mapping = stored_index(at + i, w->columns, w->heads), block = mapping / layout.values;
            float dequantized[MAX];
            nbl__ggml_dequantize(isa, w->tensor->type, w->tensor->data + block * layout.bytes, layout.values,
                                 NBL_DTYPE_F32, dequantized);
            values[i] = dequantized[mapping % layout.values];
        }
        if (w->heads == 0)
            nbl__ggml_dequantize(isa, w->tensor->type, w->tensor->data + at / layout.values * layout.bytes,
                                 count, NBL_DTYPE_F32, values);
        for (int64_t i = 0; w->minus_one && i < count; i++) values[i] -= 1.0f;
        nbl__from_f32(isa, values, dtype, (uint8_t *)out + (size_t)at * nbl__size_of(dtype), count);
    }
}

nbl_status nbl__gguf_weight_rows(nbl_context *ctx, const nbl__gguf_weight *w, int64_t begin, int64_t end,
                                 nbl_dtype dtype, void *out)
{
    NBL_CHECK(ctx, begin >= 0 && begin <= end && end <= w->rows, NBL_ERROR_ARGUMENT,
              "tensor \"%s\": rows %" PRId64 " to %" PRId64 " of %" PRId64, w->name, begin, end, w->rows);
    NBL_CHECK(ctx, nbl__is_compute(dtype), NBL_ERROR_DTYPE, "tensor \"%s\": %s is not f32, f16 or bf16",
              w->name, nbl_dtype_name(dtype));
    nbl_isa isa = nbl__isa(ctx);
    if (begin == end) return NBL_OK;
    if (w->tensor->rank == 1) {
        dequantize_vector(isa, w, dtype, out);
        return NBL_OK;
    }
    uint64_t row_bytes = w->tensor->bytes / (uint64_t)w->rows;
    size_t out_bytes = (size_t)w->columns * nbl__size_of(dtype);
    /* Rows in the file's order: one call. In rotary pairs: one call per row. */
    if (w->heads == 0) {
        nbl__ggml_dequantize(isa, w->tensor->type, w->tensor->data + (uint64_t)begin * row_bytes,
                             (end - begin) * w->columns, dtype, out);
        return NBL_OK;
    }
    for (int64_t i = begin; i < end; i++)
        nbl__ggml_dequantize(isa, w->tensor->type,
                             w->tensor->data + (uint64_t)stored_index(i, w->rows, w->heads) * row_bytes,
                             w->columns, dtype, (uint8_t *)out + (size_t)(i - begin) * out_bytes);
    return NBL_OK;
}

/* ---- export ---- */

/* Fills the mapping if this row of the table is the tensor. layer: the digits of the layer's
 * index. */
static bool map_row(nbl__gguf_arch arch, const row *r, const char *layer, size_t layer_size, const char *name,
                    nbl__gguf_mapping *mapping)
{
    if ((r->archs & 1 << arch) == 0 || strcmp(r->hf, name) != 0) return false;
    *mapping = (nbl__gguf_mapping){.plus_one = (1 << arch & GEMMAS) &&
                                               nbl__ends_with(r->gguf, "norm.weight")};
    if (arch == NBL_GGUF_LLAMA && strncmp(r->gguf, "attn_q.", 7) == 0) mapping->rows = NBL_GGUF_ROTARY_Q;
    if (arch == NBL_GGUF_LLAMA && strncmp(r->gguf, "attn_k.", 7) == 0) mapping->rows = NBL_GGUF_ROTARY_K;
    (void)snprintf(mapping->name, sizeof mapping->name, "%s%.*s%s%s", layer_size ? "blk." : "",
                   (int)layer_size, layer, layer_size ? "." : "", r->gguf);
    return true;
}

/* Finds the row of a Hugging Face name. The index of the layer is between "model.layers." and the
 * next dot. */
bool nbl__gguf_mapping_of(nbl__gguf_arch arch, const char *hf_name, nbl__gguf_mapping *mapping)
{
    static const char lead[] = NBL_MODULE_LAYERS;
    for (int i = 0; i < MODEL_ROWS; i++)
        if (map_row(arch, &model_rows[i], "", 0, hf_name, mapping)) return true;
    if (strncmp(hf_name, lead, sizeof lead - 1) != 0) return false;
    const char *layer = hf_name + sizeof lead - 1;
    size_t digits = strspn(layer, "0123456789");
    if (digits == 0 || digits > 6 || layer[digits] != '.') return false;
    for (int i = 0; i < LAYER_ROWS; i++)
        if (map_row(arch, &layer_rows[i], layer, digits, layer + digits + 1, mapping)) return true;
    return false;
}
