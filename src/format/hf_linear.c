/* hf_linear.c - the rule of hf_linear.h. First, generic version. */
#include "format/hf_linear.h"

static bool same(const char *a, size_t length, const char *b)
{
    return strlen(b) == length && memcmp(a, b, length) == 0;
}

nbl__linear_verdict nbl__hf_is_linear(const char *model_type, bool tied, const char *name, int rank,
                                      const int64_t *shape)
{
    static const char *const refused[] = {"gpt2", "openai-gpt", "imagegpt", "decision_transformer"};
    static const char *const never[] = {"lm_head", "embed_out", "embed_tokens", "wte", "wpe", "router", "gate",
                                        "embed_positions", "word_embeddings"};
    (void)tied;
    (void)shape;
    for (size_t i = 0; model_type && i < sizeof refused / sizeof *refused; i++)
        if (strcmp(model_type, refused[i]) == 0) return NBL_LINEAR_REFUSE;
    size_t length = strlen(name);
    if (rank != 2 || length < 8 || strcmp(name + length - 7, ".weight") != 0) return NBL_LINEAR_NO;
    if (strstr(name, ".experts.") || strstr(name, "norm.")) return NBL_LINEAR_NO;
    size_t end = length - 7, begin = end;
    while (begin > 0 && name[begin - 1] != '.') begin--;
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        if (same(name + begin, end - begin, never[i])) return NBL_LINEAR_NO;
    return NBL_LINEAR_YES;
}
