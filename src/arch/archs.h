/* archs.h - the list of architectures.
 *
 * arch.h and keys.c expand from it. A new architecture needs one line here and one definition of
 * nbl__NAME (arch.h). tests/docs_test.sh compares the documents' lists with it. */
#ifndef NBL_ARCHS_H
#define NBL_ARCHS_H

#define NBL_ARCHS(X)                                                                                         \
    X(llama)                                                                                                 \
    X(mistral)                                                                                               \
    X(qwen2)                                                                                                 \
    X(qwen3)                                                                                                 \
    X(gemma2)                                                                                                \
    X(gemma3)                                                                                                \
    X(phi3)                                                                                                  \
    X(smollm3)                                                                                               \
    X(ministral)                                                                                             \
    X(ministral3)                                                                                            \
    X(llama4)                                                                                                \
    X(olmo2)                                                                                                 \
    X(olmo3)                                                                                                 \
    X(cohere2)                                                                                               \
    X(granite)                                                                                               \
    X(qwen3_5)                                                                                               \
    X(qwen3_5_moe)                                                                                           \
    X(qwen3_next)                                                                                            \
    X(mixtral)                                                                                               \
    X(qwen2_moe)                                                                                             \
    X(qwen3_moe)                                                                                             \
    X(gpt_oss)

#endif
