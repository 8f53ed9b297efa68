/* jinja_constant.c - folds constant expressions, as jinja2's optimizer does.
 *
 * Folding is not for speed. jinja2 folds before it checks and runs the rest, and templates can see
 * it:
 *
 *     true or x|nosuch       no error: the folded expression no longer contains the unknown filter
 *     {{ none[1:] }}         prints nothing: a folded slice that cannot be taken is undefined
 *     {{ none[1:]|length }}  fails: it is not folded, and a slice of none at run time is an error
 *
 * An expression is constant if its evaluation reaches no name and no call. So `1 if true else x` is
 * constant. A folded value must have a Python literal (has_safe_repr), or be a whole printed
 * expression. */
#include "text/template/syntax/jinja_ast.h"
#include "text/template/runtime/jinja_runtime.h"

/* jinja2 refuses to fold filters that take the context or the environment's random state
 * (by_context), a filter block (a is NULL), and unknown filters and tests. */
bool nbl__tpl_may_fold(const tpl_node *node)
{
    static const char *const by_context[] = {"map", "select", "reject", "selectattr", "rejectattr", "random"};
    switch ((tpl_kind)node->kind) {
    case NODE_NAME:
    case NODE_NSREF:
    case NODE_CALL: return false;
    case NODE_TEST: return node->callee != NULL;
    case NODE_FILTER:
        for (int i = 0; i < 6; i++)
            if (tpl_same(node->value.string, by_context[i])) return false;
        return node->callee != NULL && node->a != NULL;
    default: return true;
    }
}

/* True if a value can be written as a literal in the Python code that jinja2 generates. */
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

/* Evaluates an expression without a frame. *known is false if it is not constant or fails. The
 * message of a failure is dropped: the expression is then left to fail at run time. Only a lack of
 * memory is passed on. */
static nbl_status value_of(tpl_vm *vm, const tpl_node *node, bool *known, tpl_value *value)
{
    int depth = vm->depth;
    vm->folding = true;
    nbl_status status = nbl__tpl_eval(vm, NULL, node, value);
    vm->folding = false;
    vm->depth = depth;
    *known = status == NBL_OK;
    if (status == NBL_ERROR_MEMORY) return status;
    vm->status = NBL_OK;
    return NBL_OK;
}

nbl_status nbl__tpl_fold(tpl_vm *vm, tpl_node *node, bool printed)
{
    tpl_value value;
    bool known;
    if (node->kind == NODE_CONST || node->kind == NODE_DATA) return NBL_OK;
    NBL_TRY(value_of(vm, node, &known, &value));
    if (!known || !(printed || has_safe_repr(value))) return NBL_OK;
    node->kind = NODE_CONST;
    node->value = value;
    return NBL_OK;
}

/* Fails for a constant dictionary with a key that cannot be hashed. jinja2 fails at compile time
 * too. */
static nbl_status check_keys(tpl_vm *vm, const tpl_node *node)
{
    tpl_value key, value;
    uint64_t hash;
    bool known;
    for (int64_t i = 0; i < node->list.count; i += 2) {
        NBL_TRY(value_of(vm, node->list.items[i], &known, &key));
        if (known) NBL_TRY(value_of(vm, node->list.items[i + 1], &known, &value));
        if (!known) return NBL_OK;
        tpl_at(vm, node->list.items[i]);
        NBL_TRY(nbl__tpl_hash(vm, key, &hash));
    }
    return NBL_OK;
}

/* Folds the items of a list of nodes, in order. */
static nbl_status optimize_all(tpl_vm *vm, const tpl_nodes *nodes)
{
    for (int64_t i = 0; i < nodes->count; i++) NBL_TRY(nbl__tpl_optimize(vm, nodes->items[i]));
    return NBL_OK;
}

/* Folds the parts first, then the node. The parts are those fields that an expression can have. */
nbl_status nbl__tpl_optimize(tpl_vm *vm, tpl_node *node)
{
    if (node == NULL || node->kind == NODE_CONST) return NBL_OK;
    NBL_TRY(nbl__tpl_enter(vm));
    NBL_TRY(nbl__tpl_optimize(vm, node->a));
    NBL_TRY(nbl__tpl_optimize(vm, node->b));
    NBL_TRY(nbl__tpl_optimize(vm, node->c));
    NBL_TRY(optimize_all(vm, &node->list));
    NBL_TRY(optimize_all(vm, &node->args));
    NBL_TRY(optimize_all(vm, &node->keywords));
    NBL_TRY(nbl__tpl_optimize(vm, node->dyn_args));
    NBL_TRY(nbl__tpl_optimize(vm, node->dyn_kwargs));
    vm->depth--;
    if (node->kind == NODE_DICT) NBL_TRY(check_keys(vm, node));
    /* these three are parts of a node, without a value of their own */
    bool is_part = node->kind == NODE_SLICE || node->kind == NODE_OPERAND || node->kind == NODE_KEYWORD;
    return is_part ? NBL_OK : nbl__tpl_fold(vm, node, false);
}
