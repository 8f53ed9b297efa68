/* export_gguf_keys.c - writes the metadata keys that llama.cpp reads for an architecture; see
 * export_gguf.h.
 *
 * llama.cpp hard-codes some properties per architecture (activation, scale, window pattern). They
 * are compared with the config; a difference is an error that names it. */
#include <math.h>
#include <stdio.h>

#include "convert/export_gguf.h"
#include "ops/linear/mlp.h"

enum { KEY_SIZE = 96 };

static const char *key_of(const nbl__export *e, const char *suffix, char key[KEY_SIZE])
{
    (void)snprintf(key, KEY_SIZE, "%s.%s", e->arch_name, suffix);
    return key;
}

static void put_size(nbl__export *e, const char *suffix, int64_t value)
{
    char key[KEY_SIZE];
    nbl__gguf_put_u32(&e->writer, key_of(e, suffix, key), (uint32_t)value);
}

static void put_number(nbl__export *e, const char *suffix, double value)
{
    char key[KEY_SIZE];
    nbl__gguf_put_f32(&e->writer, key_of(e, suffix, key), (float)value);
}

static void put_text(nbl__export *e, const char *suffix, const char *value)
{
    char key[KEY_SIZE];
    nbl__gguf_put_text(&e->writer, key_of(e, suffix, key), value, strlen(value));
}

static nbl_status refuse(const nbl__export *e, const char *what)
{
    return nbl__fail(e->ctx, NBL_ERROR_UNSUPPORTED, "%s: %s, which GGUF models of type %s cannot express",
                     e->folder, what, e->arch_name);
}

static bool is_gemma3(const nbl__export *e)
{
    return e->arch == NBL_GGUF_GEMMA3;
}

static bool is_gemma(const nbl__export *e)
{
    return e->arch == NBL_GGUF_GEMMA2 || is_gemma3(e);
}

/* ---- rotary ---- */

static double theta_of(const nbl__rope *rope)
{
    return (double)(rope->rope_theta > 0 ? rope->rope_theta : rope->theta);
}

/* Puts YaRN's keys. GGUF has none for a custom attention factor or for "truncate": false, so these
 * are errors. */
static nbl_status put_yarn(nbl__export *e, const nbl__rope *r)
{
    double trained = r->original_max_position_embeddings > 0 ? r->original_max_position_embeddings
                                                             : (double)e->decoder.positions;
    double factor = r->factor > 0 ? r->factor : (double)e->decoder.positions / trained;
    float usual = factor > 1 ? (float)(0.1 * log(factor) + 1) : 1, told = 0;
    float *frequencies = nbl__arena_alloc(&e->arena, (size_t)e->decoder.head_dim * sizeof(float));
    if (frequencies == NULL) return NBL_ERROR_MEMORY;
    nbl__rope_frequencies(r, e->decoder.head_dim, 0, frequencies, &told);
    if (fabsf(told - usual) > 1e-6f * usual) return refuse(e, "yarn with a factor of attention of its own");
    if (r->keep_fractions) return refuse(e, "yarn without \"truncate\"");
    put_text(e, "rope.scaling.type", "yarn");
    put_number(e, "rope.scaling.factor", factor);
    put_size(e, "rope.scaling.original_context_length", (int64_t)trained);
    if (r->beta_fast > 0) put_number(e, "rope.scaling.yarn_beta_fast", r->beta_fast);
    if (r->beta_slow > 0) put_number(e, "rope.scaling.yarn_beta_slow", r->beta_slow);
    return NBL_OK;
}

/* Puts longrope's keys. Its factors are tensors (nbl__export_divisors). llama.cpp chooses long or short
 * factors by the size of its context. */
static nbl_status put_longrope(nbl__export *e, const nbl__rope *r)
{
    float frequencies[1024], attention = 1;
    int64_t dim = nbl__rope_dim(r, e->decoder.head_dim);
    if (e->arch != NBL_GGUF_PHI3 || dim > 2048) return refuse(e, "rope_type \"longrope\"");
    nbl__rope_frequencies(r, dim, 0, frequencies, &attention);
    put_size(e, "rope.scaling.original_context_length", (int64_t)r->original_max_position_embeddings);
    put_number(e, "rope.scaling.attn_factor", (double)attention);
    return NBL_OK;
}

static nbl_status put_rope(nbl__export *e)
{
    const nbl__decoder *d = &e->decoder;
    const nbl__rope *r = &d->rope, *local = &d->local_rope;
    bool own = local->theta > 0; /* sliding layers have a rotary base of their own */
    put_number(e, "rope.freq_base", theta_of(r));
    if (own || is_gemma3(e)) put_number(e, "rope.freq_base_swa", theta_of(own ? local : r));
    if (own && local->kind != NBL_ROPE_DEFAULT) return refuse(e, "rotary scaling of sliding layers");
    if (own && !is_gemma(e)) return refuse(e, "a rotary base of sliding layers");
    if (is_gemma3(e) && !own && r->kind != NBL_ROPE_DEFAULT) return refuse(e, "rotary scaling of all layers");
    switch (r->kind) {
    case NBL_ROPE_LINEAR:
        put_text(e, "rope.scaling.type", "linear");
        put_number(e, "rope.scaling.factor", r->factor);
        return NBL_OK;
    case NBL_ROPE_YARN: return put_yarn(e, r);
    case NBL_ROPE_LLAMA3: return e->arch == NBL_GGUF_LLAMA ? NBL_OK : refuse(e, "rope_type \"llama3\"");
    case NBL_ROPE_LONGROPE: return put_longrope(e, r);
    case NBL_ROPE_DEFAULT: return NBL_OK;
    default: return refuse(e, "this rope_type");
    }
}

const char *nbl__export_divisors(const nbl__export *e, int i, float *divisors)
{
    const nbl__decoder *d = &e->decoder;
    int64_t dim = nbl__rope_dim(&d->rope, d->head_dim);
    float scaled[1024], unused;
    nbl__rope plain = d->rope;
    if (dim > 2048) return NULL;
    if (d->rope.kind == NBL_ROPE_LONGROPE && i < 2) {
        const nbl__json *list = i == 0 ? d->rope.long_factor : d->rope.short_factor;
        for (int64_t k = 0; k < dim / 2; k++) {
            double number = 1;
            nbl__json_number(&list->items[k], &number);
            divisors[k] = (float)number;
        }
        return i == 0 ? "rope_factors_long.weight" : "rope_factors_short.weight";
    }
    if (d->rope.kind != NBL_ROPE_LLAMA3 || i > 0) return NULL;
    plain.kind = NBL_ROPE_DEFAULT;
    nbl__rope_frequencies(&plain, dim, 0, divisors, &unused);
    nbl__rope_frequencies(&d->rope, dim, 0, scaled, &unused);
    for (int64_t k = 0; k < dim / 2; k++) divisors[k] /= scaled[k];
    return "rope_freqs.weight";
}

/* ---- Gemma ---- */

/* llama.cpp scales scores by 1 / sqrt(head_dim); in the largest model of each Gemma generation,
 * which it recognises by the number of layers, by 1 / sqrt(hidden / heads). */
void nbl__export_query(nbl__export *e)
{
    const nbl__decoder *d = &e->decoder;
    e->query_factor = 1;
    if (!is_gemma(e) || d->attention_scale <= 0) return;
    bool largest = d->layers == (is_gemma3(e) ? 62 : 46);
    double factor = (double)d->attention_scale * sqrt((double)(largest ? d->hidden / d->heads : d->head_dim));
    if (fabs(factor - 1) > 1e-6) e->query_factor = factor;
}

double nbl__export_factor(const nbl__export *e, const nbl__gguf_mapping *mapping)
{
    /* If q is normalized, scaling q's projection has no effect, so the norm's weight is scaled. */
    const char *name = is_gemma3(e) ? ".attn_q_norm.weight" : ".attn_q.weight";
    return nbl__ends_with(mapping->name, name) ? e->query_factor : 1;
}

/* Puts the window's size, and the pattern of sliding layers if it is not llama.cpp's default. */
static void put_windows(nbl__export *e)
{
    const nbl__decoder *d = &e->decoder;
    int64_t period = is_gemma3(e) ? 6 : 2;
    bool usual = true;
    for (int64_t i = 0; i < d->layers; i++) usual = usual && d->sliding[i] == ((i + 1) % period != 0);
    put_size(e, "attention.sliding_window", d->window);
    if (usual) return;
    char key[KEY_SIZE];
    nbl__gguf_put_array(&e->writer, key_of(e, "attention.sliding_window_pattern", key), NBL_GGUF_BOOL,
                        (uint64_t)d->layers);
    for (int64_t i = 0; i < d->layers; i++) nbl__gguf_add(&e->writer, d->sliding[i] ? "\1" : "\0", 1);
}

static nbl_status put_gemma(nbl__export *e)
{
    const nbl__decoder *d = &e->decoder;
    put_windows(e);
    if (!is_gemma3(e)) {
        if (d->attention_cap <= 0) return refuse(e, "no attn_logit_softcapping");
        put_number(e, "attn_logit_softcapping", (double)d->attention_cap);
        if (d->final_cap <= 0) return refuse(e, "no final_logit_softcapping");
        if (!d->tied || e->merge.untied) return refuse(e, "a head that is not the embedding");
    }
    if (d->final_cap > 0) put_number(e, "final_logit_softcapping", (double)d->final_cap);
    return NBL_OK;
}

/* ---- all of them ---- */

static void warn_of_windows(const nbl__export *e)
{
    for (int64_t i = 0; i < e->decoder.layers; i++) {
        if (!e->decoder.sliding[i]) continue;
        nbl__log(e->ctx, NBL_LOG_WARNING,
                 "%s: a sliding_window of %" PRId64
                 ", which llama.cpp does not apply to models of type %s: in longer texts it sees all "
                 "tokens",
                 e->folder, e->decoder.window, e->arch_name);
        return;
    }
}

static nbl_status put_sizes(nbl__export *e)
{
    const nbl__decoder *d = &e->decoder;
    put_size(e, "block_count", d->layers);
    put_size(e, "context_length", d->positions);
    put_size(e, "embedding_length", d->hidden);
    put_size(e, "feed_forward_length", d->inner);
    put_size(e, "attention.head_count", d->heads);
    put_size(e, "attention.head_count_kv", d->kv_heads);
    put_size(e, "attention.key_length", d->head_dim);
    put_size(e, "attention.value_length", d->head_dim);
    put_number(e, "attention.layer_norm_rms_epsilon", (double)d->norm_eps);
    put_size(e, "vocab_size", d->vocabulary); /* readers need it in files without a vocabulary */
    if (e->arch == NBL_GGUF_LLAMA || e->arch == NBL_GGUF_PHI3)
        put_size(e, "rope.dimension_count", nbl__rope_dim(&d->rope, d->head_dim));
    if (d->act != (is_gemma(e) ? NBL_ACT_GELU_TANH : NBL_ACT_SILU)) return refuse(e, "another activation");
    return NBL_OK;
}

nbl_status nbl__export_keys(nbl__export *e)
{
    NBL_TRY(put_sizes(e));
    NBL_TRY(put_rope(e));
    if (is_gemma(e)) return put_gemma(e);
    /* llama.cpp wants the key, with 0 for none, and does not apply it. */
    if (e->arch == NBL_GGUF_PHI3) put_size(e, "attention.sliding_window", e->decoder.window);
    warn_of_windows(e);
    return NBL_OK;
}
