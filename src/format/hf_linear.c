/* hf_linear.c - the rule of hf_linear.h: one table, read from the top, the first row that fits decides.
 *
 * A row fits when the model's type is among `types` (NULL: any) and `pattern` fits the name of the module, which
 * is the tensor's without ".weight":
 *
 *     "lm_head"      the name ends in these components
 *     "^head"        the name is exactly this
 *     "*_embed"      the name ends in these characters
 *     "qformer.*"    these components are somewhere in the name; "*" alone: any name
 *     "experts.#.*"  # is a number
 *
 * What no row takes and is a matrix called ".weight" is a linear layer. The generic rows come from what 200
 * architectures share; prefer them to rows with types, because the same text model appears under many types of
 * multimodal models and in types that nobody has seen yet. Convolutions need no row: they have rank 3 and more. */
#include "format/hf_linear.h"

typedef struct rule {
    const char *types; /* separated by spaces */
    const char *pattern;
    nbl__linear_verdict verdict;
    enum { ALWAYS, WHEN_TIED } when;
} rule;

/* GPT-2 and its like: Conv1D keeps [in, out], and transformers transposes before it quantises. */
static const char transposed[] = "gpt2 openai-gpt imagegpt decision_transformer clvp";

static const rule rules[] = {
    /* ---- what one type has differently ---- */

    /* Subclasses of Linear are not replaced; Falcon's are all of such a class. */
    {"falcon", "*", NBL_LINEAR_NO, ALWAYS},
    {"deepseek_v4", "wo_a", NBL_LINEAR_NO, ALWAYS},
    /* One tensor of the file, several layers of the model, or the other way round. */
    {"hrm_text", "attn.gqkv_proj", NBL_LINEAR_REFUSE, ALWAYS},
    {"hrm_text", "mlp.gate_up_proj", NBL_LINEAR_REFUSE, ALWAYS},
    {"molmo2", "self_attn.att_proj", NBL_LINEAR_REFUSE, ALWAYS},
    {"molmo2", "mlp.ff_proj", NBL_LINEAR_REFUSE, ALWAYS},
    {"minimax_m3_vl", "shared_experts.gate_proj", NBL_LINEAR_REFUSE, ALWAYS},
    {"minimax_m3_vl", "shared_experts.up_proj", NBL_LINEAR_REFUSE, ALWAYS},
    {"kimi_k25", "wqkv", NBL_LINEAR_REFUSE, ALWAYS},
    {"nemotron_h_omni qianfan_ocr", "attn.qkv", NBL_LINEAR_REFUSE, ALWAYS},
    {"unlimited_ocr", "self_attn.qkv_proj", NBL_LINEAR_REFUSE, ALWAYS},
    {"step3p7", "attn.in_proj_weight", NBL_LINEAR_REFUSE, ALWAYS},
    /* Kept in full precision by the model. */
    {"blip-2", "qformer.*", NBL_LINEAR_NO, ALWAYS},
    {"deepseek_v4", "compressor.*", NBL_LINEAR_NO, ALWAYS},
    {"t5 mt5 umt5 udop pop2piano", "wo", NBL_LINEAR_NO, ALWAYS},
    /* Tied to one another, which counts as tied to the embedding. */
    {"diffusion_gemma", "decoder.layers.*", NBL_LINEAR_NO, WHEN_TIED},
    /* Routers that are ordinary linear layers, against the generic rows below. */
    {"afmoe", "router.gate", NBL_LINEAR_YES, ALWAYS},
    {"dbrx jetmoe", "router.layer", NBL_LINEAR_YES, ALWAYS},
    {"glm5_next hy_v4", "indexer.weights_proj", NBL_LINEAR_YES, ALWAYS},
    /* The module of the last parameter is never replaced; nearly always that is the head. */
    {"gemma4_assistant gemma4_unified_assistant", "post_projection", NBL_LINEAR_NO, ALWAYS},
    {"nemotron_h_omni", "mlp1.3", NBL_LINEAR_NO, ALWAYS},
    /* Heads that the model does not declare as such, and heads under an unusual name. */
    {"nemotron_h_omni", "lm_head", NBL_LINEAR_YES, ALWAYS},
    {"blip", "predictions.decoder", NBL_LINEAR_YES, ALWAYS},
    {"whisper", "^proj_out", NBL_LINEAR_NO, ALWAYS},
    {"xlm flaubert", "pred_layer.proj", NBL_LINEAR_NO, ALWAYS},
    /* Embeddings under an unusual name, and linear layers called embeddings. */
    {"ctrl", "transformer.w", NBL_LINEAR_NO, ALWAYS},
    {"deepseek_ocr2", "query_768", NBL_LINEAR_NO, ALWAYS},
    {"deepseek_ocr2", "query_1024", NBL_LINEAR_NO, ALWAYS},
    {"phi4_multimodal", "bias_values", NBL_LINEAR_NO, ALWAYS},
    {"prophetnet xlm-prophetnet", "relative_pos_embeddings", NBL_LINEAR_YES, ALWAYS},

    /* ---- output heads ---- */
    {NULL, "lm_head", NBL_LINEAR_NO, ALWAYS},
    {NULL, "lm_heads.#", NBL_LINEAR_NO, ALWAYS},
    {NULL, "lm_head.decoder", NBL_LINEAR_NO, ALWAYS},
    {NULL, "lm_head.out_proj", NBL_LINEAR_NO, ALWAYS},
    {NULL, "predictions.decoder", NBL_LINEAR_NO, ALWAYS},
    {NULL, "generator_lm_head", NBL_LINEAR_NO, ALWAYS},
    {NULL, "lm_loss", NBL_LINEAR_NO, ALWAYS},
    {NULL, "embed_out", NBL_LINEAR_NO, ALWAYS},
    {NULL, "output_projection", NBL_LINEAR_NO, ALWAYS},
    {NULL, "^output", NBL_LINEAR_NO, ALWAYS},
    {NULL, "^decoder", NBL_LINEAR_NO, ALWAYS},
    {NULL, "^head", NBL_LINEAR_NO, ALWAYS},
    {NULL, "^score", NBL_LINEAR_NO, ALWAYS},

    /* ---- embeddings ---- */
    {NULL, "patch_embedding", NBL_LINEAR_YES, ALWAYS}, /* a linear layer where it is a matrix */
    {NULL, "embed_tokens", NBL_LINEAR_NO, ALWAYS},
    {NULL, "embed_tokens.#", NBL_LINEAR_NO, ALWAYS},
    {NULL, "embed_tokens_per_layer", NBL_LINEAR_NO, ALWAYS},
    {NULL, "embed_positions", NBL_LINEAR_NO, ALWAYS},
    {NULL, "embed_global", NBL_LINEAR_NO, ALWAYS},
    {NULL, "embed_in", NBL_LINEAR_NO, ALWAYS},
    {NULL, "wte", NBL_LINEAR_NO, ALWAYS},
    {NULL, "wpe", NBL_LINEAR_NO, ALWAYS},
    {NULL, "shared", NBL_LINEAR_NO, ALWAYS},
    {NULL, "segment_emb", NBL_LINEAR_NO, ALWAYS},
    {NULL, "row_embedder", NBL_LINEAR_NO, ALWAYS},
    {NULL, "column_embedder", NBL_LINEAR_NO, ALWAYS},
    {NULL, "audio_bos_eos_token", NBL_LINEAR_NO, ALWAYS},
    {NULL, "*embedding", NBL_LINEAR_NO, ALWAYS},
    {NULL, "*embeddings", NBL_LINEAR_NO, ALWAYS},
    {NULL, "*_embed", NBL_LINEAR_NO, ALWAYS},
    {NULL, "*_table", NBL_LINEAR_NO, ALWAYS},
    {NULL, "*_attention_bias", NBL_LINEAR_NO, ALWAYS},
    {NULL, "ngram_embedding.*", NBL_LINEAR_NO, ALWAYS},

    /* ---- experts, fused to one tensor while loading, and their routers ---- */
    {NULL, "experts.#.*", NBL_LINEAR_NO, ALWAYS},
    {NULL, "router", NBL_LINEAR_NO, ALWAYS},
    {NULL, "router.layer", NBL_LINEAR_NO, ALWAYS},
    {NULL, "gate", NBL_LINEAR_NO, ALWAYS},

    /* ---- the rest ---- */
    {NULL, "*norm", NBL_LINEAR_NO, ALWAYS},
    {NULL, "indexer.weights_proj", NBL_LINEAR_NO, ALWAYS}, /* kept in full precision */
    {NULL, "head.attention.out_proj", NBL_LINEAR_NO, ALWAYS}, /* of torch's MultiheadAttention */
    {NULL, "multihead_attn.out_proj", NBL_LINEAR_NO, ALWAYS},
    {NULL, "shared_transf.*", NBL_LINEAR_NO, WHEN_TIED}, /* Zamba's repeated block is tied to itself */
    {NULL, "shared_transformer.*", NBL_LINEAR_NO, WHEN_TIED},
    {NULL, "mtp.*", NBL_LINEAR_NO, ALWAYS}, /* multi-token prediction: transformers does not load it */
    {NULL, "mtp_layers.*", NBL_LINEAR_NO, ALWAYS},
};

/* ---- matching ---- */

static bool is_number(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] < '0' || text[i] > '9') return false;
    return n > 0;
}

/* Is `word` one of the words of `list`? */
static bool is_listed(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; *at;) {
        size_t length = strcspn(at, " ");
        if (length == n && memcmp(at, word, n) == 0) return true;
        at += length + (at[length] == ' ');
    }
    return false;
}

/* Length of the component at `text`, which ends at `end`. */
static size_t component(const char *text, const char *end)
{
    const char *dot = memchr(text, '.', (size_t)(end - text));
    return (size_t)((dot ? dot : end) - text);
}

/* Do the components at `text` begin with those of the pattern, and, if `whole`, end with them too? */
static bool fits_here(const char *pattern, const char *pattern_end, const char *text, const char *end, bool whole)
{
    for (;;) {
        size_t want = component(pattern, pattern_end), have = component(text, end);
        bool number = want == 1 && *pattern == '#';
        if (number ? !is_number(text, have) : want != have || memcmp(pattern, text, want) != 0) return false;
        pattern += want;
        text += have;
        if (pattern == pattern_end) return !whole || text == end;
        if (text == end) return false;
        pattern++, text++; /* the dots */
    }
}

static bool fits(const char *pattern, const char *module, const char *end)
{
    const char *pattern_end = pattern + strlen(pattern);
    if (*pattern == '*') {
        size_t n = (size_t)(pattern_end - pattern) - 1;
        return (size_t)(end - module) >= n && memcmp(end - n, pattern + 1, n) == 0;
    }
    if (*pattern == '^') return fits_here(pattern + 1, pattern_end, module, end, true);
    bool anywhere = pattern_end[-1] == '*';
    if (anywhere) pattern_end -= 2;
    for (const char *at = module;; at++) {
        if (fits_here(pattern, pattern_end, at, end, !anywhere)) return true;
        at += component(at, end);
        if (at == end) return false;
    }
}

/* ---- verdicts ---- */

nbl__linear_verdict nbl__hf_is_linear(const char *model_type, bool tied, const char *name, int rank,
                                      const int64_t *shape)
{
    (void)shape; /* names suffice so far; a stray vocabulary-sized matrix is known by its name, too */
    if (model_type && is_listed(transposed, model_type)) return NBL_LINEAR_REFUSE;
    if (rank != 2) return NBL_LINEAR_NO;
    const char *end = name + strlen(name);
    bool is_weight = end - name > 7 && memcmp(end - 7, ".weight", 7) == 0;
    if (is_weight) end -= 7;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const rule *r = &rules[i];
        if (r->when == WHEN_TIED && !tied) continue;
        if (r->types && (model_type == NULL || !is_listed(r->types, model_type))) continue;
        if (!fits(r->pattern, name, end)) continue;
        if (r->verdict != NBL_LINEAR_YES) return r->verdict;
        break;
    }
    return is_weight ? NBL_LINEAR_YES : NBL_LINEAR_NO;
}

const char *nbl__hf_refusal(const char *model_type)
{
    return model_type && is_listed(transposed, model_type)
               ? "keep their matrices transposed; quantising them is not supported"
               : "store several layers in one tensor, or one layer in several, which transformers takes apart "
                 "while loading; quantising them is not supported";
}

bool nbl__hf_is_extra_layer(int64_t layers, const char *name)
{
    static const char *const stacks[] = {"model.layers.", "model.language_model.layers.", "language_model.model.layers."};
    for (size_t i = 0; layers > 0 && i < sizeof stacks / sizeof *stacks; i++) {
        size_t n = strlen(stacks[i]);
        if (strncmp(name, stacks[i], n) != 0) continue;
        size_t digits = strcspn(name + n, ".");
        if (!is_number(name + n, digits) || digits > 9) return false;
        int64_t layer = 0;
        for (size_t d = 0; d < digits; d++) layer = layer * 10 + (name[n + d] - '0');
        return layer >= layers;
    }
    return false;
}
