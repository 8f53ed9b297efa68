/* hf_linear.c - the rule of hf_linear.h: two tables of patterns over module names.
 *
 * Order of decisions for a matrix:
 *   1. exceptions[]: the first pattern that matches decides
 *   2. never[]: a match is no linear layer
 *   3. any other tensor called ".weight" is a linear layer
 *
 * A pattern is matched with the module's name, which is the tensor's name without ".weight":
 *
 *     "lm_head"      the name ends in these components
 *     "^head"        the name is exactly this
 *     "*_embed"      the name ends in these characters; "*": any name
 *     "qformer.*"    these components are somewhere in the name
 *     "experts.#.*"  # is a number
 *
 * Prefer a generic pattern to an exception by type: the same text model appears under the types of
 * many multimodal models, and in types that are yet to come. Convolutions need no pattern: their
 * rank is 3 or more. */
#include "format/hf/hf_linear.h"

/* Models with Conv1D (GPT-2 and relatives) store [in, out]. transformers transposes before it
 * quantizes. */
static const char transposed[] = "gpt2 openai-gpt imagegpt decision_transformer clvp";

static const struct exception {
    const char *types; /* values of model_type, separated by spaces; NULL: any */
    const char *pattern;
    nbl__linear_verdict verdict;
    enum { ALWAYS, WHEN_TIED } when;
} exceptions[] = {
    /* Subclasses of torch.nn.Linear are not replaced, and Falcon has nothing else. */
    {"falcon", "*", NBL_LINEAR_NO, ALWAYS},
    {"deepseek_v4", "wo_a", NBL_LINEAR_NO, ALWAYS},

    /* One tensor of the file is several layers of the model, or the other way round. */
    {"hrm_text", "attn.gqkv_proj", NBL_LINEAR_REFUSE, ALWAYS},
    {"hrm_text", "mlp.gate_up_proj", NBL_LINEAR_REFUSE, ALWAYS},
    {"kimi_k25", "wqkv", NBL_LINEAR_REFUSE, ALWAYS},
    {"minimax_m3_vl", "shared_experts.gate_proj", NBL_LINEAR_REFUSE, ALWAYS},
    {"minimax_m3_vl", "shared_experts.up_proj", NBL_LINEAR_REFUSE, ALWAYS},
    {"molmo2", "self_attn.att_proj", NBL_LINEAR_REFUSE, ALWAYS},
    {"molmo2", "mlp.ff_proj", NBL_LINEAR_REFUSE, ALWAYS},
    {"nemo_speechlm", "attn.w_qkv", NBL_LINEAR_REFUSE, ALWAYS},
    {"nemotron_h_omni qianfan_ocr", "attn.qkv", NBL_LINEAR_REFUSE, ALWAYS},
    {"step3p7", "attn.in_proj_weight", NBL_LINEAR_REFUSE, ALWAYS},
    {"unlimited_ocr", "self_attn.qkv_proj", NBL_LINEAR_REFUSE, ALWAYS},

    /* The model wants them in full precision. */
    {"blip-2", "qformer.*", NBL_LINEAR_NO, ALWAYS},
    {"deepseek_v4", "compressor.*", NBL_LINEAR_NO, ALWAYS},
    {"t5 mt5 umt5 udop pop2piano", "wo", NBL_LINEAR_NO, ALWAYS},

    /* Blocks tied to one another: with tie_word_embeddings set, all that is tied is left alone. */
    {"diffusion_gemma", "decoder.layers.*", NBL_LINEAR_NO, WHEN_TIED},
    {NULL, "shared_transf.*", NBL_LINEAR_NO, WHEN_TIED}, /* Zamba */
    {NULL, "shared_transformer.*", NBL_LINEAR_NO, WHEN_TIED},

    /* The module of the model's last parameter is never replaced. Nearly always that is the
     * head. */
    {"gemma4_assistant gemma4_unified_assistant", "post_projection", NBL_LINEAR_NO, ALWAYS},
    {"nemotron_h_omni", "mlp1.3", NBL_LINEAR_NO, ALWAYS},

    /* Heads and embeddings under a name that is a linear layer's elsewhere. */
    {"ctrl", "transformer.w", NBL_LINEAR_NO, ALWAYS},
    {"deepseek_ocr2", "query_768", NBL_LINEAR_NO, ALWAYS},
    {"deepseek_ocr2", "query_1024", NBL_LINEAR_NO, ALWAYS},
    {"phi4_multimodal", "bias_values", NBL_LINEAR_NO, ALWAYS},
    {"whisper", "^proj_out", NBL_LINEAR_NO, ALWAYS},
    {"xlm flaubert", "pred_layer.proj", NBL_LINEAR_NO, ALWAYS},

    /* Linear layers that the patterns below would take: routers, undeclared heads, projections of
     * patches. */
    {"afmoe", "router.gate", NBL_LINEAR_YES, ALWAYS},
    {"dbrx jetmoe", "router.layer", NBL_LINEAR_YES, ALWAYS},
    {"glm5_next hy_v4", "indexer.weights_proj", NBL_LINEAR_YES, ALWAYS},
    {"blip", "predictions.decoder", NBL_LINEAR_YES, ALWAYS},
    {"nemotron_h_omni", "lm_head", NBL_LINEAR_YES, ALWAYS},
    {"prophetnet xlm-prophetnet", "relative_pos_embeddings", NBL_LINEAR_YES, ALWAYS},
    {NULL, "patch_embedding", NBL_LINEAR_YES, ALWAYS},
};

static const char never[] =
    /* output heads */
    "lm_head lm_heads.# lm_head.decoder lm_head.out_proj generator_lm_head lm_loss predictions.decoder "
    "embed_out output_projection output_layer ^output ^decoder ^head ^score "
    /* embeddings */
    "embed_tokens embed_tokens.# embed_tokens_per_layer embed_positions embed_global embed_in wte wpe shared "
    "row_embedder column_embedder audio_bos_eos_token ngram_embedding.* "
    "*embedding *embeddings *_embed *_emb *_table *_attention_bias "
    /* experts, which are fused to one tensor while loading, and their routers */
    "experts.#.* router router.layer gate "
    /* kept in full precision */
    "indexer.weights_proj "
    /* parts of torch.nn.MultiheadAttention */
    "head.attention.out_proj multihead_attn.out_proj "
    /* multi-token prediction, which transformers does not load */
    "mtp.* mtp_layers.* "
    /* norms with more than one axis */
    "*norm";

/* ---- matching ---- */

static bool is_number(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] < '0' || text[i] > '9') return false;
    return n > 0;
}

/* True if `word` is in `list`, whose words are separated by spaces. */
static bool is_listed(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        if (length == n && memcmp(at, word, n) == 0) return true;
        at += length;
    }
    return false;
}

/* Length of the component at `text`, which ends at `end`. */
static size_t component(const char *text, const char *end)
{
    const char *dot = memchr(text, '.', (size_t)(end - text));
    return (size_t)((dot ? dot : end) - text);
}

/* True if the components at `text` begin with the pattern's; with `whole`: are the pattern's. */
static bool fits_here(const char *pattern, const char *pattern_end, const char *text, const char *end,
                      bool whole)
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

/* True if the module name [module, end) matches a pattern of `length` bytes; see the head of this
 * file. */
static bool fits(const char *pattern, size_t length, const char *module, const char *end)
{
    const char *pattern_end = pattern + length;
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

nbl__linear_verdict nbl__hf_is_linear(const char *model_type, bool tied, const char *name, int rank)
{
    if (model_type && is_listed(transposed, model_type)) return NBL_LINEAR_REFUSE;
    if (rank != 2) return NBL_LINEAR_NO;
    const char *end = name + strlen(name);
    bool is_weight = end - name > 7 && memcmp(end - 7, ".weight", 7) == 0;
    if (is_weight) end -= 7;
    for (size_t i = 0; i < sizeof exceptions / sizeof *exceptions; i++) {
        const struct exception *e = &exceptions[i];
        if (e->when == WHEN_TIED && !tied) continue;
        if (e->types && (model_type == NULL || !is_listed(e->types, model_type))) continue;
        if (!fits(e->pattern, strlen(e->pattern), name, end)) continue;
        return e->verdict == NBL_LINEAR_YES && !is_weight ? NBL_LINEAR_NO : e->verdict;
    }
    for (const char *at = never; *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        if (fits(at, length, name, end)) return NBL_LINEAR_NO;
        at += length;
    }
    return is_weight ? NBL_LINEAR_YES : NBL_LINEAR_NO;
}

const char *nbl__hf_refusal(const char *model_type)
{
    return model_type && is_listed(transposed, model_type)
               ? "keep their matrices transposed; quantising them is not supported"
               : "store several layers in one tensor, or one in several; quantising them is not supported";
}

bool nbl__hf_is_extra_layer(int64_t layers, const char *name)
{
    static const char *const stacks[] = {"model.layers.", "model.language_model.layers.",
                                         "language_model.model.layers."};
    for (size_t i = 0; layers > 0 && i < sizeof stacks / sizeof *stacks; i++) {
        size_t n = strlen(stacks[i]);
        if (strncmp(name, stacks[i], n) != 0) continue;
        size_t digits = strcspn(name + n, ".");
        if (!is_number(name + n, digits)) return false;
        int64_t layer = 0;
        for (size_t d = 0; d < digits && layer < layers; d++) layer = layer * 10 + (name[n + d] - '0');
        return layer >= layers;
    }
    return false;
}
