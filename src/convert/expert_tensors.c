/* expert_tensors.c - tensors of experts in a checkpoint's files. See expert_tensors.h. */
#include "convert/expert_tensors.h"

/* True if the file has the stack as [expert, in, out]: MXFP4's logical shape, and dense stacks of some
 * models. */
static bool is_transposed(const nbl_checkpoint *c, const nbl_tensor_info *info)
{
    static const char *const types[] = {"gpt_oss", "llama4", "llama4_text"};
    bool listed = false;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        listed |= c->config.model_type && strcmp(c->config.model_type, types[i]) == 0;
    return info->transposed || (listed && info->weight.format == NBL_FORMAT_DENSE);
}

nbl_status nbl__expert_tensor_read(nbl__arena *arena, const nbl_checkpoint *c, const nbl_tensor_info *info,
                                   const char *text, nbl__expert_tensor *out)
{
    nbl__expert_name read;
    NBL_TRY(nbl__expert_name_read(arena, text, &read));
    *out = (nbl__expert_tensor){.name = read.name, .expert = read.expert, .part = read.part};
    bool single = read.expert >= 0 && info->rank == 2;
    bool whole = read.expert < 0 && info->rank == 3 && strstr(read.name, ".experts.") != NULL;
    if (single || whole) out->stack = read.name;
    out->transposed = whole && is_transposed(c, info);
    return NBL_OK;
}

/* The stack of this name in a list, added if it is new. Tensors of a layer are close to each other, so the
 * search goes backwards. */
static nbl__peft_tensor *stack_of(nbl__arena *arena, nbl__peft_tensor *list, int64_t *count, const char *name)
{
    for (int64_t i = *count; i-- > 0;)
        if (list[i].kind == NBL_PEFT_EXPERTS && strcmp(list[i].name, name) == 0) return &list[i];
    int64_t *shape = nbl__arena_alloc(arena, 3 * sizeof *shape);
    if (shape == NULL) return NULL;
    list[*count] = (nbl__peft_tensor){name, 3, shape, NBL_PEFT_EXPERTS};
    return &list[(*count)++];
}

nbl_status nbl__expert_tensor_list(nbl__arena *arena, const nbl__expert_tensor *t,
                                   const nbl_tensor_info *info, nbl__peft_tensor *list, int64_t *count)
{
    if (t->stack == NULL) {
        list[(*count)++] = (nbl__peft_tensor){t->name, info->rank, info->shape,
                                              nbl__peft_kind_of(t->name, info->rank)};
        return NBL_OK;
    }
    nbl__peft_tensor *stack = stack_of(arena, list, count, t->stack);
    if (stack == NULL) return NBL_ERROR_MEMORY;
    int64_t *shape = (int64_t *)stack->shape;
    bool single = t->expert >= 0;
    int out = single ? 0 : t->transposed ? 2 : 1, in = single || t->transposed ? 1 : 2;
    shape[0] = single ? nbl__max_i64(shape[0], t->expert + 1) : info->shape[0];
    shape[1] = info->shape[out] * (t->part == NBL_EXPERT_WHOLE ? 1 : 2);
    shape[2] = info->shape[in];
    return NBL_OK;
}
