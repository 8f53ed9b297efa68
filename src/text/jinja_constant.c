/* jinja_constant.c - constant expressions, where it shows that jinja2 folds them before it runs, or even looks at, anything
 * else:
 *
 *     true or x|nosuch       a filter that there is not is no error
 *     {{ none[1:] }}         prints nothing: what is folded takes a slice as it takes an item, and one that cannot be
 *     {{ none[1:]|length }}  taken is undefined; what runs fails
 *
 * A folded value must be one that can stand in compiled code, or be printed as a whole. */
#include "text/jinja_ast.h"
#include "text/jinja_runtime.h"

static bool all_constant(const tpl_nodes *nodes)
{
    for (int64_t i = 0; i < nodes->count; i++)
        if (!nbl__tpl_is_constant(nodes->items[i])) return false;
    return true;
}

bool nbl__tpl_is_constant(const tpl_node *node)
{
    static const char *const by_context[] = {"map", "select", "reject", "selectattr", "rejectattr", "random"};
    if (node == NULL) return true;
    switch ((tpl_kind)node->kind) {
    case NODE_CONST: return true;
    case NODE_FILTER:
        for (int i = 0; i < 6; i++)
            if (tpl_same(node->value.string, by_context[i])) return false;
        if (node->callee == NULL || node->a == NULL) return false;
        break;
    case NODE_TEST:
        if (node->callee == NULL) return false;
        break;
    case NODE_COND:
        if (node->c == NULL) return false;
        break;
    case NODE_NAME:
    case NODE_NSREF:
    case NODE_CALL: return false;
    default: break;
    }
    return nbl__tpl_is_constant(node->a) && nbl__tpl_is_constant(node->b) && nbl__tpl_is_constant(node->c) &&
           all_constant(&node->list) && all_constant(&node->args) && all_constant(&node->keywords) &&
           nbl__tpl_is_constant(node->dyn_args) && nbl__tpl_is_constant(node->dyn_kwargs);
}

/* Whether a folded value can stand in compiled code. */
static bool has_safe_repr(tpl_value v)
{
    if (tpl_is_sequence(v)) {
        for (int64_t i = 0; i < v.list->count; i++)
            if (!has_safe_repr(v.list->items[i])) return false;
        return true;
    }
    if (v.type == TPL_DICT) {
        for (int64_t i = 0; i < v.dict->count; i++)
            if (!has_safe_repr(v.dict->entries[i].key) || !has_safe_repr(v.dict->entries[i].value))
                return false;
        return true;
    }
    return v.type == TPL_NONE || tpl_is_number(v) || v.type == TPL_BIG || v.type == TPL_STRING ||
           v.type == TPL_RANGE;
}

/* The value of a constant expression; not known: it has none, or is none. */
static nbl_status value_of(tpl_vm *vm, const tpl_node *node, bool folding, bool *known, tpl_value *value)
{
    int depth = vm->depth;
    *known = false;
    if (!nbl__tpl_is_constant(node)) return NBL_OK;
    vm->folding = folding;
    nbl_status status = nbl__tpl_eval(vm, NULL, node, value);
    vm->folding = false;
    vm->depth = depth;
    if (status == NBL_ERROR_MEMORY) return status;
    vm->status = NBL_OK;
    *known = status == NBL_OK;
    return NBL_OK;
}

nbl_status nbl__tpl_is_decided(tpl_vm *vm, const tpl_node *node, bool *decided)
{
    const tpl_node *left = node->a;
    tpl_value value;
    bool truth, known;
    *decided = false;
    while ((left->kind == NODE_AND || left->kind == NODE_OR) && !nbl__tpl_is_constant(left)) {
        NBL_TRY(nbl__tpl_is_decided(vm, left, &known));
        if (!known) return NBL_OK;
        left = left->a; /* which is all of its value */
    }
    NBL_TRY(value_of(vm, left, true, &known, &value));
    if (!known || !has_safe_repr(value)) return NBL_OK;
    NBL_TRY(nbl__tpl_truth(vm, value, &truth));
    *decided = truth == (node->kind == NODE_OR);
    return NBL_OK;
}

nbl_status nbl__tpl_constant_fails(tpl_vm *vm, const tpl_node *node, bool *fails)
{
    tpl_value value;
    bool known;
    NBL_TRY(value_of(vm, node, false, &known, &value));
    *fails = !known && nbl__tpl_is_constant(node);
    return NBL_OK;
}

nbl_status nbl__tpl_fold(tpl_vm *vm, tpl_node *node, bool printed)
{
    tpl_value value;
    bool known;
    if (node->kind == NODE_CONST || node->kind == NODE_DATA) return NBL_OK;
    NBL_TRY(value_of(vm, node, true, &known, &value));
    if (!known || !(printed || has_safe_repr(value))) return NBL_OK;
    node->kind = NODE_CONST;
    node->value = value;
    return NBL_OK;
}
