/* adapter_support.h - an adapter for the small Llama of tests/data/folders, with numbers that are all different. */
#ifndef NBL_ADAPTER_SUPPORT_H
#define NBL_ADAPTER_SUPPORT_H

#include "support.h"

#include "format/peft/peft.h"
#include "quant/weight.h"

#define LLAMA TEST_DATA_DIR "/folders/llama"
#define LAYER "model.layers.0."

enum { ADAPTER_RANK = 3, HIDDEN = 45, INNER = 67, QUERY = 42, TOKENS = 37 };

enum { WITH_DORA = 1, WITH_HEAD = 2, WITH_HEAD_LORA = 4, HUGE = 8, FOREIGN = 16 };

typedef struct small_adapter {
    float q_a[ADAPTER_RANK * HIDDEN], q_b[QUERY * ADAPTER_RANK], q_m[QUERY];
    float down_a[ADAPTER_RANK * INNER], down_b[HIDDEN * ADAPTER_RANK], down_m[HIDDEN];
    float head_a[ADAPTER_RANK * HIDDEN], head_b[TOKENS * ADAPTER_RANK], head[TOKENS * HIDDEN];
    double scale;
} small_adapter;

static inline void fill(float *to, int count, uint32_t *state, float size)
{
    for (int i = 0; i < count; i++) {
        *state = *state * 1664525u + 1013904223u;
        to[i] = size * ((float)(*state >> 8) / (1 << 24) - 0.5f);
    }
}

#define FILL(field, size) fill(a->field, (int)(sizeof a->field / sizeof *a->field), &state, size)

/* Writes it into folder/name. */
static inline nbl_status write_adapter(nbl_context *ctx, const char *folder, int with, small_adapter *a)
{
    static const char *const targets[] = {"q_proj", "down_proj", "lm_head"}, *const saved[] = {"lm_head"};
    uint32_t state = 7;
    FILL(q_a, 1), FILL(q_b, 0.3f), FILL(q_m, 0.2f), FILL(down_a, 1), FILL(down_b, 0.3f), FILL(down_m, 0.2f);
    FILL(head_a, 1), FILL(head_b, 0.3f), FILL(head, 1);
    bool dora = with & WITH_DORA;
    double alpha = with & HUGE ? 1e9 : 6;
    a->scale = alpha / ADAPTER_RANK;
    for (int i = 0; i < QUERY; i++) a->q_m[i] += 0.3f;
    for (int i = 0; i < HIDDEN; i++) a->down_m[i] += 0.3f;
    nbl__peft_new_module modules[3] = {
        {.path = LAYER "self_attn.q_proj",
         .a = nbl_matrix(NBL_DTYPE_F32, ADAPTER_RANK, with & FOREIGN ? HIDDEN - 1 : HIDDEN, a->q_a),
         .b = nbl_matrix(NBL_DTYPE_F32, QUERY, ADAPTER_RANK, a->q_b)},
        {.path = LAYER "mlp.down_proj",
         .a = nbl_matrix(NBL_DTYPE_F32, ADAPTER_RANK, INNER, a->down_a),
         .b = nbl_matrix(NBL_DTYPE_F32, HIDDEN, ADAPTER_RANK, a->down_b)},
        {.path = "lm_head",
         .a = nbl_matrix(NBL_DTYPE_F32, ADAPTER_RANK, HIDDEN, a->head_a),
         .b = nbl_matrix(NBL_DTYPE_F32, TOKENS, ADAPTER_RANK, a->head_b)}};
    if (dora) {
        modules[0].magnitude = nbl_vector(NBL_DTYPE_F32, QUERY, a->q_m);
        modules[1].magnitude = nbl_vector(NBL_DTYPE_F32, HIDDEN, a->down_m);
    }
    bool head_lora = with & WITH_HEAD_LORA, head = with & WITH_HEAD;
    nbl__peft_new_tensor replacement = {"lm_head.weight", nbl_matrix(NBL_DTYPE_F32, TOKENS, HIDDEN, a->head)};
    nbl__peft_description description = {
        .settings = {.r = ADAPTER_RANK,
                     .alpha = alpha,
                     .dora = dora,
                     .task_type = "CAUSAL_LM",
                     .target = {.list = {targets, head_lora ? 3 : 2}},
                     .modules_to_save = {saved, head}},
        .modules = modules,
        .module_count = head_lora ? 3 : 2,
        .replacements = &replacement,
        .replacement_count = head,
    };
    return nbl__peft_write(ctx, folder, &description);
}

/* folder/name as f32; free it. */
static inline float *read_weight(nbl_context *ctx, const char *folder, const char *name, int64_t shape[2])
{
    nbl_checkpoint *c;
    float *values = NULL;
    assert_ok(ctx, nbl_checkpoint_open(ctx, folder, NBL_OPEN_STRICT, &c));
    for (int64_t i = 0;; i++) {
        const nbl_tensor_info *t = nbl_checkpoint_get_tensor(c, i);
        if (t == NULL) break;
        if (strcmp(t->name, name) != 0) continue;
        shape[0] = t->rank > 1 ? t->shape[0] : 1;
        shape[1] = t->shape[t->rank - 1];
        values = malloc((size_t)(shape[0] * shape[1]) * sizeof *values);
        assert_ok(ctx, nbl__dequantize_host(ctx, &t->weight, 0, shape[0], NBL_DTYPE_F32, 0, values));
    }
    nbl_checkpoint_close(c);
    if (values == NULL) fail_msg("%s has no %s", folder, name);
    return values;
}

static inline void copy_file(const char *from, const char *folder, const char *name)
{
    size_t size;
    uint8_t *data = read_file(from, &size);
    write_file(folder, name, data, size);
    free(data);
}

#endif
