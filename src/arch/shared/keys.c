/* keys.c - reads config.json key by key. See arch.h.
 *
 * A key is accepted if a reader asked for it, if its value says nothing (null, false, "", [],
 * {}), if it ends in "_token_id", or if it is in `passed_over` because it does not affect the
 * computation. Any other key is an error: a config that is understood in part would give wrong
 * results without a message. */
#include "arch/arch.h"

#include <math.h>
#include <stdio.h>

#include "format/hf/text_part.h"
#include "ops/linear/mlp.h"

/* Keys about generation, training, files, or the library that wrote the config. */
static const char *const passed_over[] = {
    "architectures",
    "model_type",
    "transformers_version",
    "_name_or_path",
    "_model_name_or_path",
    "dtype",
    "torch_dtype",
    "use_cache",
    "initializer_range",
    "attention_dropout",
    "hidden_dropout",
    "quantization_config",
    "auto_map",
    "task_specific_params",
    "id2label",
    "label2id",
    "num_labels",
    "return_dict",
    "output_hidden_states",
    "output_attentions",
    "chunk_size_feed_forward",
    "max_length",
    "min_length",
    "do_sample",
    "num_beams",
    "num_beam_groups",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "diversity_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "num_return_sequences",
    "problem_type",
    "finetuning_task",
    "tokenizer_class",
    "prefix",
    "_attn_implementation",
    "attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "is_llama_config",
    "rope_interleaved",
    "transformers.js_config",
    "unsloth_fixed",
    "unsloth_version",
    "cache_implementation",
    "early_stopping",
    "max_window_layers", /* where no reader asks for it */
};

/* True for a value that switches its key off. */
static bool is_unset(const nbl__json *v)
{
    if (v->type == NBL_JSON_NULL || v->type == NBL_JSON_FALSE) return true;
    if (v->type == NBL_JSON_STRING) return v->string[0] == '\0';
    return (v->type == NBL_JSON_ARRAY || v->type == NBL_JSON_OBJECT) && v->count == 0;
}

const nbl__json *nbl__key(nbl__config_keys *k, const char *name)
{
    const nbl__json *value = nbl__json_get(k->config, name);
    if (value) k->used[value - k->config->items] = true;
    return nbl__json_is(value, NBL_JSON_NULL) ? NULL : value;
}

nbl_status nbl__key_size_or(nbl__config_keys *k, const char *name, int64_t missing, int64_t *value)
{
    const nbl__json *it = nbl__key(k, name);
    *value = missing;
    if (it == NULL) return NBL_OK;
    NBL_CHECK(k->ctx, nbl__json_natural(it, value) && *value >= 1 && *value <= INT32_MAX, NBL_ERROR_FORMAT,
              "%s: %s is not a whole number from 1 to 2147483647", k->where, name);
    return NBL_OK;
}

nbl_status nbl__key_size_off(nbl__config_keys *k, const char *name, int64_t missing, int64_t *value)
{
    return nbl__key_size_or(k, name, nbl__json_get(k->config, name) ? 0 : missing, value);
}

nbl_status nbl__key_size(nbl__config_keys *k, const char *name, int64_t *value)
{
    NBL_TRY(nbl__key_size_or(k, name, 0, value));
    NBL_CHECK(k->ctx, *value > 0, NBL_ERROR_FORMAT, "%s: no %s", k->where, name);
    return NBL_OK;
}

nbl_status nbl__key_float_or(nbl__config_keys *k, const char *name, double missing, float *value)
{
    const nbl__json *it = nbl__key(k, name);
    double number = missing;
    NBL_CHECK(k->ctx, it == NULL || (nbl__json_number(it, &number) && isfinite(number)), NBL_ERROR_FORMAT,
              "%s: %s is not a number", k->where, name);
    *value = (float)number;
    return NBL_OK;
}

nbl_status nbl__key_cap_or(nbl__config_keys *k, const char *name, double missing, float *value)
{
    return nbl__key_float_or(k, name, nbl__json_get(k->config, name) ? 0 : missing, value);
}

nbl_status nbl__key_flag_or(nbl__config_keys *k, const char *name, bool missing, bool *value)
{
    const nbl__json *it = nbl__key(k, name);
    *value = it ? it->type == NBL_JSON_TRUE : missing;
    NBL_CHECK(k->ctx, it == NULL || it->type == NBL_JSON_TRUE || it->type == NBL_JSON_FALSE, NBL_ERROR_FORMAT,
              "%s: %s is not true or false", k->where, name);
    return NBL_OK;
}

/* Reads the activation by its name in transformers. */
static nbl_status read_act(nbl__config_keys *k, const char *key, nbl__decoder *d)
{
    static const struct {
        const char *name;
        nbl__act act;
    } acts[] = {{"silu", NBL_ACT_SILU},
                {"swish", NBL_ACT_SILU},
                {"gelu", NBL_ACT_GELU},
                {"gelu_python", NBL_ACT_GELU},
                {"gelu_pytorch_tanh", NBL_ACT_GELU_TANH},
                {"gelu_python_tanh", NBL_ACT_GELU_TANH},
                {"gelu_tanh", NBL_ACT_GELU_TANH},
                /* the same formula under other names */
                {"gelu_new", NBL_ACT_GELU_TANH},
                {"gelu_fast", NBL_ACT_GELU_TANH},
                {"gelu_accurate", NBL_ACT_GELU_TANH},
                {"quick_gelu", NBL_ACT_QUICK_GELU},
                {"relu", NBL_ACT_RELU},
                {"relu2", NBL_ACT_RELU2},
                {"sigmoid", NBL_ACT_SIGMOID},
                {"tanh", NBL_ACT_TANH}};
    const nbl__json *it = nbl__key(k, key);
    if (it == NULL) return NBL_OK; /* absent: keep the default that the architecture has set */
    for (size_t i = 0; i < sizeof acts / sizeof *acts && it->type == NBL_JSON_STRING; i++)
        if (strcmp(acts[i].name, it->string) == 0) return d->act = acts[i].act, NBL_OK;
    return nbl__fail(k->ctx, NBL_ERROR_UNSUPPORTED, "%s: %s is \"%s\", which is not known", k->where, key,
                     it->type == NBL_JSON_STRING ? it->string : "no text");
}

/* A number of the rope in f64: products with it are cut to whole numbers. */
static nbl_status read_double(nbl__config_keys *k, const char *name, double *value)
{
    const nbl__json *it = nbl__key(k, name);
    NBL_CHECK(k->ctx, it == NULL || (nbl__json_number(it, value) && isfinite(*value)), NBL_ERROR_FORMAT,
              "%s: %s is not a number", k->where, name);
    return NBL_OK;
}

/* Checks the RoPE parameters, and that the architecture has such a rope in transformers. */
nbl_status nbl__keys_check_rope(nbl__config_keys *k, const nbl__decoder *d, const nbl__rope *rope)
{
    bool whole = rope->partial_rotary_factor == 0 || rope->partial_rotary_factor == 1;
    bool parts = d->partial_rotary || rope->kind == NBL_ROPE_PROPORTIONAL;
    int64_t dim = nbl__rope_dim(rope, d->head_dim);
    NBL_CHECK(k->ctx, whole || (parts && dim >= 2 && dim % 2 == 0), NBL_ERROR_UNSUPPORTED,
              "%s: partial_rotary_factor %g is not supported", k->where, rope->partial_rotary_factor);
    NBL_CHECK(k->ctx, rope->query_beta == 0 || d->query_rope.theta > 0, NBL_ERROR_UNSUPPORTED,
              "%s: llama_4_scaling_beta is not supported for model_type %s", k->where, d->arch->model_type);
    nbl_status status = nbl__rope_check(k->ctx, k->where, rope);
    if (status == NBL_OK) status = nbl__rope_check_dim(k->ctx, k->where, rope, dim);
    return status == NBL_ERROR_ARGUMENT || status == NBL_ERROR_SHAPE ? NBL_ERROR_FORMAT : status;
}

/* rope_parameters with an object per layer type. A type without one has the default rope. */
static nbl_status read_ropes_by_type(nbl__config_keys *k, nbl__decoder *d, const nbl__json *parameters)
{
    const nbl__json *full = nbl__json_get(parameters, "full_attention");
    const nbl__json *sliding = nbl__json_get(parameters, "sliding_attention");
    NBL_CHECK(k->ctx, parameters->count == (full != NULL) + (sliding != NULL), NBL_ERROR_FORMAT,
              "%s: rope_parameters has other layer types than full_attention and sliding_attention",
              k->where);
    NBL_TRY(nbl__rope_read_scaling(k->ctx, full, &d->rope));
    NBL_TRY(nbl__rope_read_scaling(k->ctx, sliding, &d->local_rope));
    NBL_TRY(nbl__keys_check_rope(k, d, &d->local_rope));
    return nbl__keys_check_rope(k, d, &d->rope);
}

/* Reads the RoPE parameters. Their keys depend on the version of transformers that wrote them:
 *
 *     rope_parameters            one object, or {"full_attention": …, "sliding_attention": …}
 *     rope_theta, rope_scaling   of all layers; with a theta of sliding layers, of full layers
 *     rope_local_base_freq       theta of sliding layers, beside one of the others
 *
 * Where d->local_rope has a default theta, sliding layers have a rope of their own in any case. */
static nbl_status read_rope(nbl__config_keys *k, nbl__decoder *d)
{
    /* Keys outside of rope_parameters are defaults for those inside. */
    const nbl__json *parameters = nbl__key(k, "rope_parameters"), *scaling = nbl__key(k, "rope_scaling");
    bool by_type = nbl__json_get(parameters, "full_attention") ||
                   nbl__json_get(parameters, "sliding_attention");
    float theta = d->rope.theta > 0 ? d->rope.theta : 10000, local = d->local_rope.theta;
    bool two_ropes = local > 0;
    NBL_TRY(nbl__key_float_or(k, "rope_theta", (double)theta, &d->rope.theta));
    NBL_TRY(nbl__key_float_or(k, "rope_local_base_freq", (double)local, &local));
    NBL_TRY(read_double(k, "partial_rotary_factor", &d->rope.partial_rotary_factor));
    d->rope.max_position_embeddings = d->positions;
    d->local_rope = (nbl__rope){.theta = local, .max_position_embeddings = d->positions};
    if (by_type) {
        if (!(local > 0)) d->local_rope = d->rope;
        NBL_CHECK(k->ctx, scaling == NULL || scaling->count == 0, NBL_ERROR_UNSUPPORTED,
                  "%s: rope_scaling beside rope_parameters", k->where);
        return read_ropes_by_type(k, d, parameters);
    }
    bool scaled = scaling && scaling->type == NBL_JSON_OBJECT && scaling->count > 0;
    NBL_CHECK(k->ctx, !two_ropes || parameters == NULL || parameters->count == 0, NBL_ERROR_UNSUPPORTED,
              "%s: rope_parameters without full_attention and sliding_attention", k->where);
    NBL_TRY(nbl__rope_read_scaling(k->ctx, scaled || parameters == NULL ? scaling : parameters, &d->rope));
    return nbl__keys_check_rope(k, d, &d->rope);
}

/* Reads pad_token_id: torch's Embedding never trains the row padding_idx. Negative ids count
 * from the end. Without the key the architecture's default stays. */
static void read_padding(nbl__config_keys *k, nbl__decoder *d)
{
    double id = NAN;
    if (nbl__json_get(k->config, "pad_token_id") == NULL) return;
    const nbl__json *value = nbl__key(k, "pad_token_id");
    if (value) nbl__json_number(value, &id);
    if (id < 0) id += (double)d->vocabulary;
    d->padding = id >= 0 && id < (double)d->vocabulary ? (int64_t)id : -1;
}

/* A size that the architecture may have a default for, in *value; 0: it is required. */
static nbl_status size_or_default(nbl__config_keys *k, const char *name, int64_t *value)
{
    return *value ? nbl__key_size_or(k, name, *value, value) : nbl__key_size(k, name, value);
}

nbl_status nbl__keys_common(nbl__config_keys *k, nbl__decoder *d, const char *act_key, bool tied_by_default)
{
    NBL_TRY(size_or_default(k, "vocab_size", &d->vocabulary));
    NBL_TRY(size_or_default(k, "hidden_size", &d->hidden));
    NBL_TRY(size_or_default(k, "intermediate_size", &d->inner));
    NBL_TRY(size_or_default(k, "num_hidden_layers", &d->layers));
    NBL_TRY(size_or_default(k, "num_attention_heads", &d->heads));
    bool null_heads = nbl__json_is(nbl__json_get(k->config, "num_key_value_heads"), NBL_JSON_NULL);
    NBL_TRY(nbl__key_size_or(k, "num_key_value_heads", d->kv_heads && !null_heads ? d->kv_heads : d->heads,
                             &d->kv_heads));
    NBL_TRY(nbl__key_size_or(k, "head_dim", d->head_dim ? d->head_dim : d->hidden / d->heads, &d->head_dim));
    NBL_TRY(
        nbl__key_size_or(k, "max_position_embeddings", d->positions ? d->positions : 2048, &d->positions));
    NBL_TRY(nbl__key_float_or(k, "rms_norm_eps", d->norm_eps > 0 ? (double)d->norm_eps : 1e-6, &d->norm_eps));
    NBL_CHECK(k->ctx, d->norm_eps >= 0, NBL_ERROR_FORMAT, "%s: rms_norm_eps is negative", k->where);
    NBL_TRY(nbl__key_flag_or(k, "tie_word_embeddings", tied_by_default, &d->tied));
    NBL_CHECK(k->ctx, d->layers <= NBL_MAX_LAYERS, NBL_ERROR_UNSUPPORTED,
              "%s: num_hidden_layers is %" PRId64 ", more than %d", k->where, d->layers, NBL_MAX_LAYERS);
    /* The attention and RoPE operators rely on these. */
    NBL_CHECK(k->ctx, d->heads % d->kv_heads == 0, NBL_ERROR_FORMAT,
              "%s: num_attention_heads %" PRId64 " is no multiple of num_key_value_heads %" PRId64, k->where,
              d->heads, d->kv_heads);
    NBL_CHECK(k->ctx, d->head_dim % 2 == 0, NBL_ERROR_UNSUPPORTED, "%s: head_dim %" PRId64 " is odd",
              k->where, d->head_dim);
    NBL_TRY(read_act(k, act_key, d));
    read_padding(k, d);
    return read_rope(k, d);
}

nbl_status nbl__keys_layer_types(nbl__config_keys *k, nbl__decoder *d,
                                 bool (*by_default)(const nbl__decoder *d, int64_t layer))
{
    const nbl__json *types = nbl__key(k, "layer_types");
    NBL_CHECK(k->ctx, types == NULL || (types->type == NBL_JSON_ARRAY && types->count == d->layers),
              NBL_ERROR_FORMAT, "%s: layer_types is not a list of %" PRId64 " names", k->where, d->layers);
    for (int64_t i = 0; i < d->layers; i++) {
        if (types == NULL) {
            d->sliding[i] = d->window > 0 && by_default && by_default(d, i);
            continue;
        }
        const char *type = types->items[i].type == NBL_JSON_STRING ? types->items[i].string : "";
        /* Only these two layer types are supported. */
        d->sliding[i] = strcmp(type, "sliding_attention") == 0;
        NBL_CHECK(k->ctx, d->sliding[i] || strcmp(type, "full_attention") == 0, NBL_ERROR_UNSUPPORTED,
                  "%s: layer_types has \"%s\", not full_attention or sliding_attention", k->where, type);
        NBL_CHECK(k->ctx, !d->sliding[i] || d->window > 0, NBL_ERROR_FORMAT,
                  "%s: layer_types has sliding_attention, but there is no sliding_window", k->where);
    }
    return NBL_OK;
}

nbl_status nbl__keys_no_rope(nbl__config_keys *k, nbl__decoder *d)
{
    int64_t interval, flag;
    const nbl__json *list = nbl__key(k, "no_rope_layers");
    if (nbl__json_is(list, NBL_JSON_ARRAY) && list->count == 0) list = NULL;
    NBL_TRY(nbl__key_size_or(k, "no_rope_layer_interval", 4, &interval));
    NBL_CHECK(k->ctx, list == NULL || (list->type == NBL_JSON_ARRAY && list->count >= d->layers),
              NBL_ERROR_FORMAT, "%s: no_rope_layers is not a list of %" PRId64 " numbers", k->where,
              d->layers);
    for (int64_t i = 0; i < d->layers; i++) {
        flag = (i + 1) % interval != 0;
        NBL_CHECK(k->ctx, list == NULL || (nbl__json_natural(&list->items[i], &flag) && flag <= 1),
                  NBL_ERROR_FORMAT, "%s: no_rope_layers has a value that is not 0 or 1", k->where);
        d->no_rope[i] = flag == 0;
    }
    return NBL_OK;
}

nbl_status nbl__keys_sliding_window(nbl__config_keys *k, nbl__decoder *d)
{
    bool chosen;
    int64_t first = 28;
    const nbl__json *layers = nbl__key(k, "max_window_layers");
    NBL_CHECK(k->ctx, layers == NULL || nbl__json_natural(layers, &first), NBL_ERROR_FORMAT,
              "%s: max_window_layers is not a whole number", k->where);
    NBL_TRY(nbl__key_size_off(k, "sliding_window", 4096, &d->window));
    NBL_TRY(nbl__key_flag_or(k, "use_sliding_window", false, &chosen));
    if (!chosen) d->window = 0;
    NBL_TRY(nbl__keys_layer_types(k, d, NULL));
    if (nbl__key(k, "layer_types")) return NBL_OK;
    for (int64_t i = 0; i < d->layers; i++) d->sliding[i] = d->window > 0 && i >= first;
    return NBL_OK;
}

/* Fails at the first key that is not accepted; see the file's head. */
static nbl_status refuse_leftovers(const nbl__config_keys *k)
{
    for (int64_t i = 0; i < k->config->count; i++) {
        const nbl__json *it = &k->config->items[i];
        bool known = k->used[i] || is_unset(it) || nbl__ends_with(it->key, "_token_id");
        for (size_t p = 0; !known && p < sizeof passed_over / sizeof *passed_over; p++)
            known = strcmp(passed_over[p], it->key) == 0;
        NBL_CHECK(k->ctx, known, NBL_ERROR_UNSUPPORTED, "%s: the key %s is not understood for model_type %s",
                  k->where, it->key, k->model_type);
    }
    return NBL_OK;
}

/* dtype or torch_dtype; f32 if absent or unknown. */
static void read_dtype(const nbl__json *config, nbl__decoder *d)
{
    const nbl__json *text = nbl__text_config(config);
    const char *name = nbl__json_text(config, "dtype");
    if (name == NULL) name = nbl__json_text(config, "torch_dtype");
    if (name == NULL) name = nbl__json_text(text, "dtype");
    if (name == NULL) name = nbl__json_text(text, "torch_dtype");
    if (name == NULL || !nbl__dtype_from_torch_name(name, &d->dtype)) d->dtype = NBL_DTYPE_F32;
}

/* Refuses a model_type, with the known ones in the hint. */
static nbl_status unknown_type(nbl_context *ctx, const char *where, const char *type,
                               const nbl__arch *const *archs, size_t count)
{
    char known[200] = "";
    for (size_t i = 0, used = 0; i < count && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "",
                                 archs[i]->model_type);
    nbl_status status = nbl__fail(ctx, NBL_ERROR_UNSUPPORTED, "%s: model_type \"%s\" is not known", where,
                                  type);
    return nbl__hint(ctx, status, "nibble runs %s", known);
}

/* Reads the config of a text model. type: its model_type. */
static nbl_status read_text_config(nbl_context *ctx, const char *where, const char *type,
                                   const nbl__json *config, nbl__decoder *d)
{
#define ARCH_ADDRESS(name) &nbl__##name,
    static const nbl__arch *const archs[] = {NBL_ARCHS(ARCH_ADDRESS)};
#undef ARCH_ADDRESS
    NBL_CHECK(ctx, type, NBL_ERROR_FORMAT, "%s: no model_type", where);
    for (size_t i = 0; i < sizeof archs / sizeof *archs && d->arch == NULL; i++)
        if (strcmp(archs[i]->model_type, type) == 0) d->arch = archs[i];
    if (d->arch == NULL) return unknown_type(ctx, where, type, archs, sizeof archs / sizeof *archs);
    /* `used` marks every key that the reader asks for; the rest is checked afterwards. */
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__config_keys keys = {ctx, where, type, config, nbl__arena_alloc(&arena, (size_t)config->count + 1)};
    nbl_status status = keys.used ? d->arch->read(&keys, d) : NBL_ERROR_MEMORY;
    if (status == NBL_OK) status = refuse_leftovers(&keys);
    nbl__arena_free(&arena);
    return status;
}

nbl_status nbl__decoder_read(nbl_context *ctx, const char *where, const nbl__json *config, nbl__decoder *d)
{
    const nbl__text_part *part = nbl__text_part_of(config);
    const nbl__json *text = nbl__text_config(config), *tied = nbl__json_get(config, "tie_word_embeddings");
    const char *type = nbl__json_text(text, "model_type");
    memset(d, 0, sizeof *d);
    d->embedding_scale = d->residual_scale = d->logit_scale = 1;
    d->padding = -1;
    if (type == NULL && part) type = part->text_type;
    NBL_TRY(read_text_config(ctx, where, type, text, d));
    /* The outer model owns the head, so its key decides. */
    if (text != config) d->tied = tied ? nbl__json_is(tied, NBL_JSON_TRUE) : part->tied;
    read_dtype(config, d);
    return NBL_OK;
}
