/* gguf_config.c - makes from a GGUF model's metadata the config.json that transformers would have.
 *
 * Every key of the architecture ("llama.…") is used here, known to change nothing, or an error. An
 * unknown key may be a scale: a model that ignores it would run and be wrong.
 *
 *     sizes      nbl__gguf_read_sizes    into nbl__gguf_model
 *     the text   nbl__gguf_make_config   sizes, rotary scaling, Gemma's windows and caps, special tokens */
#include <math.h>
#include <stdio.h>

#include "format/gguf/gguf_model.h"

enum { SIZE_LIMIT = INT32_MAX, KEY_SIZE = 128 };

static const struct arch_row {
    const char *name, *model_type, *class_name;
} archs[] = {
    [NBL_GGUF_LLAMA] = {"llama", "llama", "LlamaForCausalLM"},
    [NBL_GGUF_QWEN2] = {"qwen2", "qwen2", "Qwen2ForCausalLM"},
    [NBL_GGUF_QWEN3] = {"qwen3", "qwen3", "Qwen3ForCausalLM"},
    [NBL_GGUF_GEMMA2] = {"gemma2", "gemma2", "Gemma2ForCausalLM"},
    [NBL_GGUF_GEMMA3] = {"gemma3", "gemma3_text", "Gemma3ForCausalLM"},
    [NBL_GGUF_PHI3] = {"phi3", "phi3", "Phi3ForCausalLM"},
};

bool nbl__gguf_arch_of(const char *model_type, nbl__gguf_arch *arch, const char **name)
{
    if (strcmp(model_type, "mistral") == 0) model_type = "llama";
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        if (strcmp(archs[i].model_type, model_type) != 0) continue;
        *arch = (nbl__gguf_arch)i;
        *name = archs[i].name;
        return true;
    }
    return false;
}

static bool is_gemma(const nbl__gguf_model *m)
{
    return m->arch == NBL_GGUF_GEMMA2 || m->arch == NBL_GGUF_GEMMA3;
}

/* ---- reading keys of the architecture ---- */

static const char *key_of(const nbl__gguf_model *m, const char *suffix, char key[KEY_SIZE])
{
    (void)snprintf(key, KEY_SIZE, "%s.%s", archs[m->arch].name, suffix);
    return key;
}

static const nbl__gguf_entry *find(const nbl__gguf_model *m, const char *suffix)
{
    char key[KEY_SIZE];
    return nbl__gguf_find(m->gguf, key_of(m, suffix, key));
}

static nbl_status bad_key(const nbl__gguf_model *m, const char *key, const char *what)
{
    return nbl__fail(m->ctx, NBL_ERROR_FORMAT, "%s: key \"%s\": %s", m->gguf->path, key, what);
}

static nbl_status unsupported_key(const nbl__gguf_model *m, const char *key, const char *what)
{
    return nbl__fail(m->ctx, NBL_ERROR_UNSUPPORTED, "%s: key \"%s\": %s", m->gguf->path, key, what);
}

/* Inspection mode: lists a problem and returns NBL_OK. Else returns the status. */
static nbl_status report_or_list(const nbl__gguf_model *m, nbl_status status)
{
    return nbl__problem_collect(m->gguf->problems, status);
}

/* Reads a size from 1 to 2^31 - 1, or an array with one equal size per layer. fallback: the value
 * without the key; 0: the key is required. On an error *size is 0. */
static nbl_status read_size(const nbl__gguf_model *m, const char *suffix, int64_t fallback, int64_t *size)
{
    char key[KEY_SIZE];
    const nbl__gguf_entry *entry = nbl__gguf_find(m->gguf, key_of(m, suffix, key));
    int64_t found = 0;
    *size = entry ? 0 : fallback;
    if (entry == NULL && fallback) return NBL_OK;
    if (entry == NULL) return bad_key(m, key, "it is missing");
    if (!nbl__gguf_integer(entry, 0, &found) || found < 1 || found > SIZE_LIMIT)
        return bad_key(m, key, "not a size from 1 to 2147483647");
    for (int64_t i = 1, other = 0; i < entry->count; i++)
        if (!nbl__gguf_integer(entry, i, &other) || other != found)
            return unsupported_key(m, key, "it is not the same for all layers");
    *size = found;
    return NBL_OK;
}

/* Reads a finite number; without the key *value is the fallback. */
static nbl_status read_number(const nbl__gguf_model *m, const char *suffix, double fallback, double *value)
{
    char key[KEY_SIZE];
    const nbl__gguf_entry *entry = nbl__gguf_find(m->gguf, key_of(m, suffix, key));
    *value = fallback;
    if (entry == NULL) return NBL_OK;
    if (entry->type == NBL_GGUF_ARRAY || !nbl__gguf_number(entry, 0, value) || !isfinite(*value))
        return bad_key(m, key, "not a finite number");
    return NBL_OK;
}

static bool text_is(const nbl__gguf_entry *entry, const char *wanted)
{
    const char *text;
    size_t length;
    return nbl__gguf_string(entry, 0, &text, &length) && length == strlen(wanted) &&
           memcmp(text, wanted, length) == 0;
}

/* ---- which keys are understood ---- */

enum key_use {
    USED = 1,     /* read below */
    ZERO = 2,     /* accepted only as 0 or false */
    ONE = 4,      /* accepted only as 1 or true */
    HARMLESS = 8, /* does not change the computation */
    /* read below; an error for all architectures but those that a row names */
    GEMMA = 16,
    PHI3 = 32
};

static const struct key_row {
    const char *suffix;
    int use;
} keys[] = {
    {"context_length", USED},
    {"embedding_length", USED},
    {"block_count", USED},
    {"feed_forward_length", USED},
    {"vocab_size", USED},
    {"attention.head_count", USED},
    {"attention.head_count_kv", USED},
    {"attention.key_length", USED},
    {"attention.value_length", USED},
    {"attention.layer_norm_rms_epsilon", USED},
    {"attention.causal", ONE},
    {"attention.sliding_window", GEMMA | PHI3},
    {"attention.sliding_window_pattern", GEMMA},
    {"attn_logit_softcapping", GEMMA},
    {"final_logit_softcapping", GEMMA},
    {"rope.freq_base_swa", GEMMA},
    {"rope.dimension_count", USED},
    {"rope.freq_base", USED},
    {"rope.scale_linear", USED},
    {"rope.scaling.type", USED},
    {"rope.scaling.factor", USED},
    {"rope.scaling.original_context_length", USED},
    {"rope.scaling.yarn_beta_fast", USED},
    {"rope.scaling.yarn_beta_slow", USED},
    {"rope.scaling.yarn_ext_factor", ONE},
    {"rope.scaling.yarn_attn_factor", ONE},
    {"rope.scaling.attn_factor", PHI3 | ONE},
    {"rope.scaling.finetuned", HARMLESS},
    {"tensor_data_layout", HARMLESS},
    {"expert_count", ZERO},
    {"expert_used_count", ZERO},
    {"use_parallel_residual", ZERO},
};

/* Checks one key of the architecture against the table. */
static nbl_status check_key(const nbl__gguf_model *m, const nbl__gguf_entry *entry, const char *suffix)
{
    double value = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (strcmp(keys[i].suffix, suffix) != 0) continue;
        int use = keys[i].use;
        if (use == (PHI3 | ONE)) use = m->arch == NBL_GGUF_PHI3 ? USED : ONE;
        int wanted = is_gemma(m) ? GEMMA : m->arch == NBL_GGUF_PHI3 ? PHI3 : 0;
        if (use & (GEMMA | PHI3) && !(use & wanted)) break;
        if (use != ZERO && use != ONE) return NBL_OK;
        if (entry->type != NBL_GGUF_ARRAY && nbl__gguf_number(entry, 0, &value) && value == (use == ONE))
            return NBL_OK;
        return unsupported_key(m, entry->key,
                               use == ONE ? "only 1 or true is supported" : "only 0 is supported");
    }
    return unsupported_key(m, entry->key, "it is not known here, and may change what the model computes");
}

/* Checks all keys of the architecture, and that the file is not one of several parts. */
static nbl_status check_keys(const nbl__gguf_model *m)
{
    size_t length = strlen(archs[m->arch].name);
    for (int64_t i = 0; i < m->gguf->entry_count; i++) {
        const nbl__gguf_entry *entry = &m->gguf->entries[i];
        if (strncmp(entry->key, archs[m->arch].name, length) == 0 && entry->key[length] == '.')
            NBL_TRY(report_or_list(m, check_key(m, entry, entry->key + length + 1)));
    }
    const nbl__gguf_entry *split = nbl__gguf_find(m->gguf, "split.count");
    int64_t parts = 1;
    if (split && (!nbl__gguf_integer(split, 0, &parts) || parts > 1)) {
        nbl_status status = unsupported_key(m, split->key, "the model is split over several files");
        return nbl__hint(m->ctx, status, "join them with llama.cpp's llama-gguf-split --merge");
    }
    return NBL_OK;
}

/* ---- sizes ---- */

static nbl_status find_arch(nbl__gguf_model *m)
{
    const nbl__gguf_entry *entry = nbl__gguf_find(m->gguf, "general.architecture");
    const char *text = "";
    size_t length = 0;
    if (!nbl__gguf_string(entry, 0, &text, &length))
        return bad_key(m, "general.architecture", "it is missing, or not text");
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        if (!text_is(entry, archs[i].name)) continue;
        m->arch = (nbl__gguf_arch)i;
        return NBL_OK;
    }
    return nbl__fail(
        m->ctx, NBL_ERROR_UNSUPPORTED,
        "%s: the architecture \"%.*s\" is not supported (llama, qwen2, qwen3, gemma2, gemma3 and phi3 are)",
        m->gguf->path, (int)(length < 64 ? length : 64), text);
}

/* head_dim: key_length, else (Llama) rope.dimension_count, else hidden / heads. Value heads of
 * another width are not supported; rotary embedding of a part of a head is Phi-3's alone. */
static nbl_status read_head_dim(nbl__gguf_model *m)
{
    int64_t value_length = 0;
    int64_t plain = m->hidden % m->heads == 0 ? m->hidden / m->heads : 0;
    if (m->arch == NBL_GGUF_LLAMA && find(m, "rope.dimension_count"))
        NBL_TRY(read_size(m, "rope.dimension_count", 0, &plain));
    NBL_TRY(read_size(m, "attention.key_length", plain, &m->head_dim));
    NBL_TRY(read_size(m, "attention.value_length", m->head_dim, &value_length));
    NBL_TRY(read_size(m, "rope.dimension_count", m->head_dim, &m->rotary));
    char key[KEY_SIZE];
    if (value_length != m->head_dim)
        return unsupported_key(m, key_of(m, "attention.value_length", key), "it differs from the key's");
    bool part = m->arch == NBL_GGUF_PHI3 && m->rotary < m->head_dim && m->rotary % 2 == 0;
    if (m->rotary != m->head_dim && !part)
        return unsupported_key(m, key_of(m, "rope.dimension_count", key), "a part of a head is not rotated");
    if (m->head_dim % 2) return bad_key(m, key_of(m, "attention.key_length", key), "a head of odd width");
    return NBL_OK;
}

/* The vocabulary is the number of rows of the embedding; the key vocab_size must agree. */
static nbl_status read_vocabulary(nbl__gguf_model *m)
{
    char key[KEY_SIZE];
    const nbl__gguf_tensor *table = nbl__gguf_tensor_find(m->gguf, "token_embd.weight");
    if (table == NULL || table->rank != 2 || table->shape[0] < 1)
        return nbl__fail(m->ctx, NBL_ERROR_FORMAT, "%s: tensor \"token_embd.weight\": %s", m->gguf->path,
                         table ? "it is not a matrix" : "it is missing");
    m->vocabulary = table->shape[0];
    int64_t told = 0;
    NBL_TRY(read_size(m, "vocab_size", m->vocabulary, &told));
    if (told != m->vocabulary)
        return bad_key(m, key_of(m, "vocab_size", key), "it is not the number of rows of token_embd.weight");
    return NBL_OK;
}

nbl_status nbl__gguf_read_sizes(nbl__gguf_model *m)
{
    char key[KEY_SIZE];
    NBL_TRY(find_arch(m));
    NBL_TRY(check_keys(m));
    NBL_TRY(report_or_list(m, read_size(m, "block_count", 0, &m->layers)));
    if (m->layers > m->gguf->tensor_count)
        return bad_key(m, key_of(m, "block_count", key), "more layers than the file has tensors");
    NBL_TRY(report_or_list(m, read_size(m, "embedding_length", 0, &m->hidden)));
    NBL_TRY(report_or_list(m, read_size(m, "feed_forward_length", 0, &m->intermediate)));
    NBL_TRY(report_or_list(m, read_size(m, "attention.head_count", 0, &m->heads)));
    NBL_TRY(report_or_list(m, read_size(m, "attention.head_count_kv", m->heads, &m->kv_heads)));
    if (m->hidden && m->heads && m->kv_heads) { /* 0 only in inspection mode, after a problem */
        if (m->heads % m->kv_heads)
            NBL_TRY(report_or_list(
                m, bad_key(m, key_of(m, "attention.head_count_kv", key), "it does not divide head_count")));
        NBL_TRY(report_or_list(m, read_head_dim(m)));
    }
    return report_or_list(m, read_vocabulary(m));
}

/* ---- the text ---- */

static void put_key(nbl__text *out, const char *key)
{
    nbl__text_printf(out, "%s\n  \"%s\": ", out->size > 1 ? "," : "", key);
}

static void put_integer(nbl__text *out, const char *key, int64_t value)
{
    put_key(out, key);
    nbl__text_printf(out, "%" PRId64, value);
}

static void put_text(nbl__text *out, const char *key, const char *value)
{
    put_key(out, key);
    nbl__text_json(out, value);
}

static void put_bool(nbl__text *out, const char *key, bool value)
{
    put_key(out, key);
    nbl__text_printf(out, "%s", value ? "true" : "false");
}

static void put_number(nbl__text *out, const char *key, double value)
{
    put_key(out, key);
    nbl__text_real(out, value);
}

/* Puts a special token's id, if the metadata has it. */
static nbl_status put_token(nbl__gguf_model *m, nbl__text *out, const char *key, const char *gguf_key)
{
    const nbl__gguf_entry *entry = nbl__gguf_find(m->gguf, gguf_key);
    int64_t id = 0;
    if (entry == NULL) return NBL_OK;
    if (!nbl__gguf_integer(entry, 0, &id) || id < 0 || id >= m->vocabulary)
        return bad_key(m, gguf_key, "not a token of the vocabulary");
    put_integer(out, key, id);
    return NBL_OK;
}

/* ---- rotary scaling ---- */

/* The divisor of one frequency in Llama 3's rotary scaling. With t = rotations over the trained
 * length:
 *     t > 4: 1          t < 1: factor          between: interpolated, 1 / ((1 - s) / factor + s), s = (t - 1) / 3
 * 1 and 4 are low_freq_factor and high_freq_factor of all published configs. */
static double llama3_factor(double frequency, double factor, double trained)
{
    enum { LOW = 1, HIGH = 4 };
    double turns = trained * frequency / (2 * 3.14159265358979323846);
    if (turns > HIGH) return 1;
    if (turns < LOW) return factor;
    double smooth = (turns - LOW) / (HIGH - LOW);
    return 1 / ((1 - smooth) / factor + smooth);
}

/* True if the stored divisors are those of this factor and trained length, to 1e-4 (they were
 * computed in f32). */
static bool fits_llama3(const nbl__gguf_model *m, const nbl__gguf_tensor *tensor, double theta, double factor,
                        double trained)
{
    for (int64_t i = 0; i < m->head_dim / 2; i++) {
        float value;
        memcpy(&value, tensor->data + i * 4, 4);
        double frequency = pow(theta, -2.0 * (double)i / (double)m->head_dim);
        double wanted = llama3_factor(frequency, factor, trained);
        if (!(fabs(value - wanted) <= 1e-4 * wanted)) return false;
    }
    return true;
}

/* Puts rope_scaling of type llama3. llama.cpp stores only the result, the divisor of each
 * frequency. The largest divisor is the factor; the trained length is found by trying powers of
 * two. Divisors that fit none are an error. */
static nbl_status find_llama3(nbl__gguf_model *m, const nbl__gguf_tensor *tensor, double theta,
                              nbl__text *out)
{
    int64_t half = m->head_dim / 2;
    if (tensor->type != NBL_GGML_F32 || tensor->rank != 1 || tensor->elements != half || tensor->data == NULL)
        return nbl__fail(m->ctx, NBL_ERROR_FORMAT,
                         "%s: tensor \"%s\": it is not a vector of %" PRId64 " values in f32", m->gguf->path,
                         tensor->name, half);
    double largest = 1;
    for (int64_t i = 0; i < half; i++) {
        float value;
        memcpy(&value, tensor->data + i * 4, 4);
        if (value > largest) largest = value;
    }
    for (int shift = 7; shift <= 24; shift++) { /* 8192 first, as all known models have it; then 2^8 … 2^24 */
        int64_t trained = shift == 7 ? 8192 : (int64_t)1 << shift;
        if (!fits_llama3(m, tensor, theta, largest, (double)trained)) continue;
        if (largest == 1) return NBL_OK; /* all are 1: no scaling */
        put_key(out, "rope_scaling");
        nbl__text_printf(out,
                         "{\"rope_type\": \"llama3\", \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                         "\"original_max_position_embeddings\": %" PRId64 ", \"factor\": ",
                         trained);
        nbl__text_real(out, largest);
        nbl__text_add(out, "}", 1);
        return NBL_OK;
    }
    return nbl__fail(m->ctx, NBL_ERROR_UNSUPPORTED,
                     "%s: tensor \"%s\": its divisors are not those of Llama 3's rotary scaling",
                     m->gguf->path, tensor->name);
}

/* Puts rope_scaling of type yarn; 32 and 1 are the defaults of beta_fast and beta_slow. */
static nbl_status put_yarn(const nbl__gguf_model *m, double factor, nbl__text *out)
{
    int64_t trained = 0;
    double fast = 0, slow = 0;
    NBL_TRY(read_size(m, "rope.scaling.original_context_length", 0, &trained));
    NBL_TRY(read_number(m, "rope.scaling.yarn_beta_fast", 32, &fast));
    NBL_TRY(read_number(m, "rope.scaling.yarn_beta_slow", 1, &slow));
    put_key(out, "rope_scaling");
    nbl__text_printf(
        out,
        "{\"rope_type\": \"yarn\", \"original_max_position_embeddings\": %" PRId64 ", \"factor\": ", trained);
    nbl__text_real(out, factor);
    nbl__text_printf(out, ", \"beta_fast\": ");
    nbl__text_real(out, fast);
    nbl__text_printf(out, ", \"beta_slow\": ");
    nbl__text_real(out, slow);
    nbl__text_add(out, "}", 1);
    return NBL_OK;
}

/* Puts rope_theta and rope_scaling: none, linear, yarn or llama3. */
static nbl_status put_rope(nbl__gguf_model *m, nbl__text *out)
{
    char key[KEY_SIZE];
    double theta = 0, factor = 1, older = 1;
    NBL_TRY(read_number(m, "rope.freq_base", 10000, &theta));
    if (theta <= 1) return bad_key(m, key_of(m, "rope.freq_base", key), "not above 1");
    put_number(out, "rope_theta", theta);
    NBL_TRY(read_number(m, "rope.scale_linear", 1, &older)); /* the key of older files */
    NBL_TRY(read_number(m, "rope.scaling.factor", older, &factor));
    const nbl__gguf_entry *type = find(m, "rope.scaling.type");
    const nbl__gguf_tensor *divisors = nbl__gguf_tensor_find(m->gguf, "rope_freqs.weight");
    bool is_yarn = text_is(type, "yarn"), is_linear = text_is(type, "linear") || (!type && factor != 1);
    if (type && !is_yarn && !is_linear && !text_is(type, "none"))
        return unsupported_key(m, type->key, "only none, linear and yarn are supported");
    if (is_yarn || is_linear) {
        if (factor < 1) return bad_key(m, key_of(m, "rope.scaling.factor", key), "below 1");
        if (divisors)
            return nbl__fail(m->ctx, NBL_ERROR_UNSUPPORTED,
                             "%s: tensor \"rope_freqs.weight\" together with rope.scaling", m->gguf->path);
    }
    if (is_yarn) return put_yarn(m, factor, out);
    if (is_linear && factor != 1) {
        put_key(out, "rope_scaling");
        nbl__text_printf(out, "{\"rope_type\": \"linear\", \"factor\": ");
        nbl__text_real(out, factor);
        nbl__text_add(out, "}", 1);
    }
    return divisors ? find_llama3(m, divisors, theta, out) : NBL_OK;
}

/* ---- Gemma ---- */

/* Puts layer_types. sliding_window_pattern is an array of one bool per layer (sliding), or a period
 * n: every n-th layer has full attention. Defaults: n = 2 for Gemma 2, 6 for Gemma 3. */
static nbl_status put_layer_types(const nbl__gguf_model *m, nbl__text *out)
{
    const nbl__gguf_entry *entry = find(m, "attention.sliding_window_pattern");
    int64_t period = m->arch == NBL_GGUF_GEMMA2 ? 2 : 6;
    bool listed = entry && entry->type == NBL_GGUF_ARRAY;
    if (listed && entry->count != m->layers) return bad_key(m, entry->key, "not a value for each layer");
    if (entry && !listed) NBL_TRY(read_size(m, "attention.sliding_window_pattern", 0, &period));
    put_key(out, "layer_types");
    nbl__text_add(out, "[", 1);
    for (int64_t i = 0; i < m->layers; i++) {
        int64_t slides = (i + 1) % period != 0;
        if (listed && !nbl__gguf_integer(entry, i, &slides))
            return bad_key(m, entry->key, "not a list of bools");
        nbl__text_printf(out, "%s\"%s_attention\"", i ? ", " : "", slides ? "sliding" : "full");
    }
    nbl__text_add(out, "]", 1);
    return NBL_OK;
}

/* Puts Gemma's window, layer types, caps, scale of attention scores and local rotary base. */
static nbl_status put_gemma(const nbl__gguf_model *m, nbl__text *out)
{
    bool second = m->arch == NBL_GGUF_GEMMA2;
    int64_t window = 0;
    double cap = 0, local = 0;
    NBL_TRY(read_size(m, "attention.sliding_window", second ? 4096 : 0, &window));
    put_integer(out, "sliding_window", window);
    NBL_TRY(put_layer_types(m, out));
    /* GGUF has no key for it. It is head_dim, but hidden / heads in the largest model of each
     * generation, which its number of layers identifies. */
    bool largest = m->layers == (second ? 46 : 62) && m->hidden % m->heads == 0;
    put_integer(out, "query_pre_attn_scalar", largest ? m->hidden / m->heads : m->head_dim);
    NBL_TRY(read_number(m, "attn_logit_softcapping", second ? 50 : 0, &cap));
    if (cap > 0) put_number(out, "attn_logit_softcapping", cap);
    NBL_TRY(read_number(m, "final_logit_softcapping", second ? 30 : 0, &cap));
    if (cap > 0) put_number(out, "final_logit_softcapping", cap);
    NBL_TRY(read_number(m, "rope.freq_base_swa", 10000, &local));
    if (!second) put_number(out, "rope_local_base_freq", local);
    put_text(out, "hidden_activation", "gelu_pytorch_tanh");
    return NBL_OK;
}

/* Puts a list of longrope's factors, one per pair, from a tensor of the file. */
static nbl_status put_factors(const nbl__gguf_model *m, const char *name, const char *key, nbl__text *out)
{
    const nbl__gguf_tensor *t = nbl__gguf_tensor_find(m->gguf, name);
    if (t == NULL || t->type != NBL_GGML_F32 || t->rank != 1 || t->elements != m->rotary / 2 ||
        t->data == NULL)
        return nbl__fail(m->ctx, NBL_ERROR_FORMAT,
                         "%s: tensor \"%s\": it is not a vector of %" PRId64 " values in f32", m->gguf->path,
                         name, m->rotary / 2);
    nbl__text_printf(out, ", \"%s\": ", key);
    for (int64_t i = 0; i < t->elements; i++) {
        float value;
        memcpy(&value, t->data + i * 4, 4);
        if (!isfinite(value))
            return nbl__fail(m->ctx, NBL_ERROR_FORMAT, "%s: tensor \"%s\" has a value that is not finite",
                             m->gguf->path, name);
        nbl__text_add(out, i ? ", " : "[", i ? 2 : 1);
        nbl__text_real(out, (double)value);
    }
    nbl__text_add(out, "]", 1);
    return NBL_OK;
}

/* Puts Phi-3's partial rotary factor and longrope, whose factors are tensors of the file. */
static nbl_status put_phi3_rope(const nbl__gguf_model *m, nbl__text *out)
{
    int64_t original = 0;
    double attention = 1, part = (double)m->rotary / (double)m->head_dim;
    /* The product with head_dim is cut to a whole number. */
    if ((int64_t)((double)m->head_dim * part) != m->rotary) part = nextafter(part, 1);
    put_number(out, "partial_rotary_factor", part);
    NBL_TRY(read_size(m, "rope.scaling.original_context_length", 4096, &original));
    put_integer(out, "original_max_position_embeddings", original);
    NBL_TRY(read_number(m, "rope.scaling.attn_factor", 1, &attention));
    if (nbl__gguf_tensor_find(m->gguf, "rope_factors_long.weight") == NULL &&
        nbl__gguf_tensor_find(m->gguf, "rope_factors_short.weight") == NULL) {
        char key[KEY_SIZE];
        if (attention > 1 || attention < 1)
            return bad_key(m, key_of(m, "rope.scaling.attn_factor", key),
                           "not 1, and there are no rope_factors tensors");
        return NBL_OK;
    }
    put_key(out, "rope_scaling");
    nbl__text_printf(out, "{\"type\": \"longrope\", \"attention_factor\": ");
    nbl__text_real(out, attention);
    NBL_TRY(put_factors(m, "rope_factors_short.weight", "short_factor", out));
    NBL_TRY(put_factors(m, "rope_factors_long.weight", "long_factor", out));
    nbl__text_add(out, "}", 1);
    return NBL_OK;
}

/* Puts Phi-3's window and rope. The file has window 0 for none. */
static nbl_status put_phi3(const nbl__gguf_model *m, nbl__text *out)
{
    const nbl__gguf_entry *entry = find(m, "attention.sliding_window");
    int64_t window = 0;
    if (entry && (!nbl__gguf_integer(entry, 0, &window) || window < 0 || window > SIZE_LIMIT))
        return bad_key(m, entry->key, "not a size from 0 to 2147483647");
    if (window > 0) put_integer(out, "sliding_window", window);
    put_text(out, "hidden_act", "silu");
    return put_phi3_rope(m, out);
}

/* Writes the whole text of config.json. */
static nbl_status write_config(nbl__gguf_model *m, nbl__text *out)
{
    int64_t context = 0;
    double epsilon = 0;
    char key[KEY_SIZE];
    NBL_TRY(report_or_list(m, read_size(m, "context_length", 0, &context)));
    NBL_TRY(report_or_list(m, read_number(m, "attention.layer_norm_rms_epsilon", 0, &epsilon)));
    if (epsilon <= 0)
        NBL_TRY(report_or_list(m, bad_key(m, key_of(m, "attention.layer_norm_rms_epsilon", key),
                                          "it is missing, or not above 0")));
    nbl__text_add(out, "{", 1);
    put_key(out, "architectures");
    nbl__text_printf(out, "[\"%s\"]", archs[m->arch].class_name);
    put_text(out, "model_type", archs[m->arch].model_type);
    put_integer(out, "vocab_size", m->vocabulary);
    put_integer(out, "hidden_size", m->hidden);
    put_integer(out, "intermediate_size", m->intermediate);
    put_integer(out, "num_hidden_layers", m->layers);
    put_integer(out, "num_attention_heads", m->heads);
    put_integer(out, "num_key_value_heads", m->kv_heads);
    put_integer(out, "head_dim", m->head_dim);
    put_integer(out, "max_position_embeddings", context);
    put_number(out, "rms_norm_eps", epsilon);
    put_bool(out, "tie_word_embeddings", m->is_tied);
    if (m->arch != NBL_GGUF_QWEN2 && m->arch != NBL_GGUF_PHI3)
        put_bool(out, "attention_bias", m->attention_bias);
    if (m->arch == NBL_GGUF_LLAMA) put_bool(out, "mlp_bias", m->mlp_bias);
    NBL_TRY(report_or_list(m, put_rope(m, out)));
    if (is_gemma(m)) NBL_TRY(report_or_list(m, put_gemma(m, out)));
    else if (m->arch == NBL_GGUF_PHI3) NBL_TRY(report_or_list(m, put_phi3(m, out)));
    else put_text(out, "hidden_act", "silu");
    NBL_TRY(report_or_list(m, put_token(m, out, "bos_token_id", "tokenizer.ggml.bos_token_id")));
    NBL_TRY(report_or_list(m, put_token(m, out, "eos_token_id", "tokenizer.ggml.eos_token_id")));
    NBL_TRY(report_or_list(m, put_token(m, out, "pad_token_id", "tokenizer.ggml.padding_token_id")));
    nbl__text_add(out, "\n}\n", 3);
    return out->status;
}

nbl_status nbl__gguf_make_config(nbl__gguf_model *m)
{
    nbl__text text = {.ctx = m->ctx};
    nbl_status status = write_config(m, &text);
    char *kept = status == NBL_OK ? nbl__arena_strdup(&m->arena, text.text) : NULL;
    if (status == NBL_OK)
        status = kept ? nbl__config_parse(&m->arena, m->gguf->path, kept, text.size, &m->config)
                      : NBL_ERROR_MEMORY;
    nbl__text_free(&text);
    return status;
}
