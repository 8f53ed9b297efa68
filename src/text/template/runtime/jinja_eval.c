/* jinja_eval.c - evaluates expressions: one recursive function over the nodes.
 *
 * nbl__tpl_eval counts the depth and the work, then calls the function of the node's kind. Operands
 * are evaluated from left to right. `and`, `or`, conditional expressions and chained comparisons
 * stop as soon as the result is known; the rest is not evaluated, as in Python.
 *
 * The position for messages (tpl_at) is set on entry of a node, and again after its operands,
 * because these have moved it.
 *
 * While folding (vm->folding) a name or a call makes the evaluation fail, so that the expression is
 * not constant. There is no frame then. */
#include "text/template/runtime/jinja_runtime.h"

/* Reads a slot. An empty slot is jinja2's undefined variable. */
static nbl_status eval_name(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *result)
{
    assert(!vm->folding); /* there is no frame */
    *result = tpl_hop(frame, node->hops)->slots[node->slot];
    if (result->type != TPL_MISSING) return NBL_OK;
    return nbl__tpl_undefined(vm, NULL, NULL, node->value, result);
}

/* Evaluates a list or tuple, from left to right. */
static nbl_status eval_items(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_type type,
                             tpl_value *result)
{
    tpl_value *items;
    NBL_TRY(nbl__tpl_list(vm, type, node->list.count, result, &items));
    for (int64_t i = 0; i < node->list.count; i++)
        NBL_TRY(nbl__tpl_eval(vm, frame, node->list.items[i], &items[i]));
    return NBL_OK;
}

/* Evaluates a dictionary: each key before its value. Of equal keys the last value counts. */
static nbl_status eval_dict(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *result)
{
    tpl_dict *dict;
    NBL_TRY(nbl__tpl_dict(vm, &dict));
    assert(node->list.count % 2 == 0);
    for (int64_t i = 0; i < node->list.count; i += 2) {
        tpl_value key, value;
        NBL_TRY(nbl__tpl_eval(vm, frame, node->list.items[i], &key));
        NBL_TRY(nbl__tpl_eval(vm, frame, node->list.items[i + 1], &value));
        NBL_TRY(nbl__tpl_dict_set(vm, dict, key, value));
    }
    *result = (tpl_value){.type = TPL_DICT, .dict = dict};
    return NBL_OK;
}

/* `a if b else c`. Without else the result is an undefined value; such an expression is not
 * folded. */
static nbl_status eval_cond(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *result)
{
    tpl_value test;
    bool truth;
    NBL_TRY(nbl__tpl_eval(vm, frame, node->b, &test));
    NBL_TRY(nbl__tpl_truth(vm, test, &truth));
    if (truth) return nbl__tpl_eval(vm, frame, node->a, result);
    if (node->c) return nbl__tpl_eval(vm, frame, node->c, result);
    if (vm->folding) return nbl__tpl_raise(vm, "not a constant");
    static const char hint[] = "the inline if-expression evaluated to false and no else section was defined.";
    return nbl__tpl_undefined(vm, hint, NULL, tpl_none(), result);
}

/* Adds a keyword argument. The same name twice is an error: f(a=1, **{'a': 2}). */
static nbl_status add_keyword(tpl_vm *vm, tpl_args *args, int64_t *room, tpl_value name, tpl_value value)
{
    for (int64_t i = 0; i < args->keyword_count; i++) {
        const tpl_string *a = args->keywords[i].name.string, *b = name.string;
        if (a->size != b->size) continue;
        NBL_TRY(tpl_read(vm, a->size));
        if (memcmp(a->bytes, b->bytes, a->size) == 0)
            return nbl__tpl_raise(vm, "TypeError: got multiple values for keyword argument %s",
                                  nbl__tpl_shown(vm, name));
    }
    if (args->keyword_count == *room) {
        tpl_keyword *grown;
        *room = *room ? *room * 2 : 4;
        NBL_TRY(TPL_NEW(vm, grown, *room));
        if (args->keyword_count) memcpy(grown, args->keywords, (size_t)args->keyword_count * sizeof *grown);
        args->keywords = grown;
    }
    args->keywords[args->keyword_count++] = (tpl_keyword){name, value};
    return nbl__tpl_work(vm, (uint64_t)args->keyword_count);
}

/* Evaluates the arguments of a call, filter or test: positional ones, keywords, then *a and **b. */
static nbl_status eval_args(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_args *args)
{
    tpl_items items = {0};
    tpl_value value;
    int64_t room = 0;
    *args = (tpl_args){0};
    for (int64_t i = 0; i < node->args.count; i++) {
        NBL_TRY(nbl__tpl_eval(vm, frame, node->args.items[i], &value));
        NBL_TRY(nbl__tpl_push(vm, &items, value));
    }
    for (int64_t i = 0; i < node->keywords.count; i++) {
        NBL_TRY(nbl__tpl_eval(vm, frame, node->keywords.items[i]->a, &value));
        NBL_TRY(add_keyword(vm, args, &room, node->keywords.items[i]->value, value));
    }
    if (node->dyn_args) {
        NBL_TRY(nbl__tpl_eval(vm, frame, node->dyn_args, &value));
        NBL_TRY(nbl__tpl_collect(vm, value, &items));
    }
    if (node->dyn_kwargs) {
        NBL_TRY(nbl__tpl_eval(vm, frame, node->dyn_kwargs, &value));
        if (value.type == TPL_UNDEFINED) return nbl__tpl_raise_undefined(vm, value);
        if (value.type != TPL_DICT)
            return nbl__tpl_raise(vm, "TypeError: argument after ** must be a mapping, not %s",
                                  nbl__tpl_type_name(value));
        for (int64_t i = 0; i < value.dict->count; i++) {
            if (value.dict->entries[i].key.type != TPL_STRING)
                return nbl__tpl_raise(vm, "TypeError: keywords must be strings");
            NBL_TRY(add_keyword(vm, args, &room, value.dict->entries[i].key, value.dict->entries[i].value));
        }
    }
    args->items = items.items;
    args->count = items.count;
    return NBL_OK;
}

/* The function is evaluated before its arguments, as in Python. */
static nbl_status eval_call(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *result)
{
    tpl_value callee;
    tpl_args args;
    NBL_TRY(nbl__tpl_eval(vm, frame, node->a, &callee));
    NBL_TRY(eval_args(vm, frame, node, &args));
    tpl_at(vm, node);
    return nbl__tpl_call(vm, callee, &args, result);
}

/* A filter without an input gets the text of the block that it belongs to. */
static nbl_status eval_filter(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *result)
{
    tpl_value input;
    tpl_args args;
    if (node->a) {
        NBL_TRY(nbl__tpl_eval(vm, frame, node->a, &input));
    } else {
        NBL_TRY(nbl__tpl_take(vm, vm->out, &input));
        input.markup = vm->autoescape;
    }
    NBL_TRY(eval_args(vm, frame, node, &args));
    tpl_at(vm, node);
    const tpl_filter *filter = node->callee;
    if (filter == NULL)
        return nbl__tpl_raise(vm, "No filter named %s found.", nbl__tpl_shown(vm, node->value));
    return filter->run(vm, input, &args, result);
}

/* A test is a filter with a bool as its result. An unknown one fails only here, when it is
 * reached. */
static nbl_status eval_test(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *result)
{
    tpl_value input;
    tpl_args args;
    NBL_TRY(nbl__tpl_eval(vm, frame, node->a, &input));
    NBL_TRY(eval_args(vm, frame, node, &args));
    tpl_at(vm, node);
    const tpl_filter *test = node->callee;
    if (test == NULL) return nbl__tpl_raise(vm, "No test named %s found.", nbl__tpl_shown(vm, node->value));
    return test->run(vm, input, &args, result);
}

/* `a[b]`, or a slice `a[b:c:d]`. A slice of a value that has none is undefined while jinja2 folds,
 * and an error at run time; see jinja_constant.c. */
static nbl_status eval_getitem(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *result)
{
    tpl_value object, key, parts[3] = {tpl_none(), tpl_none(), tpl_none()};
    NBL_TRY(nbl__tpl_eval(vm, frame, node->a, &object));
    if (node->b->kind != NODE_SLICE) {
        NBL_TRY(nbl__tpl_eval(vm, frame, node->b, &key));
        tpl_at(vm, node);
        return nbl__tpl_getitem(vm, object, key, result);
    }
    const tpl_node *nodes[3] = {node->b->a, node->b->b, node->b->c};
    for (int i = 0; i < 3; i++)
        if (nodes[i]) NBL_TRY(nbl__tpl_eval(vm, frame, nodes[i], &parts[i]));
    tpl_at(vm, node);
    nbl_status status = nbl__tpl_slice(vm, object, parts, result);
    bool none = status == NBL_ERROR_FORMAT && vm->folding && object.type != TPL_UNDEFINED &&
                !(tpl_is_integer(parts[2]) &&
                  parts[2].integer == 0); /* a step of 0 is a ValueError, not a TypeError */
    if (!none) return status;
    vm->status = NBL_OK;
    return nbl__tpl_undefined(vm, "a slice of what has none", NULL, tpl_none(), result);
}

/* Joins texts (the operator ~). Under autoescape, if one part is safe HTML, the others are escaped.
 * jinja2 does not do that while it folds, nor where autoescape is not known at compile time. */
static nbl_status eval_concat(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *result)
{
    tpl_value value, *items;
    tpl_text text = {0};
    bool markup = false, escapes = vm->autoescape && !vm->folding && !node->flag;
    NBL_TRY(TPL_NEW(vm, items, node->list.count));
    for (int64_t i = 0; i < node->list.count; i++) {
        NBL_TRY(nbl__tpl_eval(vm, frame, node->list.items[i], &items[i]));
        markup |= escapes && items[i].type == TPL_STRING && items[i].markup;
    }
    tpl_at(vm, node);
    for (int64_t i = 0; i < node->list.count; i++) {
        if (markup) NBL_TRY(nbl__tpl_escape(vm, items[i], &value));
        else value = items[i];
        NBL_TRY(nbl__tpl_add_str(vm, &text, value));
    }
    NBL_TRY(nbl__tpl_take(vm, &text, result));
    result->markup = markup;
    return NBL_OK;
}

/* `a < b < c` is a < b and b < c; b is evaluated once. */
static nbl_status eval_compare(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *result)
{
    tpl_value left, right;
    bool truth = true;
    NBL_TRY(nbl__tpl_eval(vm, frame, node->a, &left));
    for (int64_t i = 0; i < node->list.count && truth; i++) {
        const tpl_node *operand = node->list.items[i];
        NBL_TRY(nbl__tpl_eval(vm, frame, operand->a, &right));
        tpl_at(vm, operand);
        NBL_TRY(nbl__tpl_compared(vm, operand->op, left, right, &truth));
        left = right;
    }
    *result = tpl_bool(truth);
    return NBL_OK;
}

/* a + b and the other arithmetic operators. The position is set again: the operands have moved
 * it. */
static nbl_status eval_binary(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *result)
{
    tpl_value a, b;
    NBL_TRY(nbl__tpl_eval(vm, frame, node->a, &a));
    NBL_TRY(nbl__tpl_eval(vm, frame, node->b, &b));
    tpl_at(vm, node);
    return nbl__tpl_binary(vm, node->op, a, b, result);
}

/* `not` gives a bool. `and` and `or` give one of their operands: '' or 'x' is 'x'. */
static nbl_status eval_logic(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *result)
{
    bool truth;
    NBL_TRY(nbl__tpl_eval(vm, frame, node->a, result));
    NBL_TRY(nbl__tpl_truth(vm, *result, &truth));
    if (node->kind == NODE_NOT) return *result = tpl_bool(!truth), NBL_OK;
    return truth == (node->kind == NODE_AND) ? nbl__tpl_eval(vm, frame, node->b, result) : NBL_OK;
}

/* a.b. An undefined `a` is an error, an undefined a.b a value. */
static nbl_status eval_getattr(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *result)
{
    tpl_value object;
    NBL_TRY(nbl__tpl_eval(vm, frame, node->a, &object));
    tpl_at(vm, node);
    return nbl__tpl_getattr(vm, object, node->value, result);
}

/* -a and +a. */
static nbl_status eval_sign(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *result)
{
    tpl_value value;
    NBL_TRY(nbl__tpl_eval(vm, frame, node->a, &value));
    tpl_at(vm, node);
    return nbl__tpl_unary(vm, node->kind == NODE_NEG, value, result);
}

/* One function per kind. Kinds of statements do not come here: the parser keeps them apart. */
static nbl_status eval_node(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *result)
{
    switch ((tpl_kind)node->kind) {
    case NODE_NAME: return eval_name(vm, frame, node, result);
    case NODE_TUPLE: return eval_items(vm, frame, node, TPL_TUPLE, result);
    case NODE_LIST: return eval_items(vm, frame, node, TPL_LIST, result);
    case NODE_DICT: return eval_dict(vm, frame, node, result);
    case NODE_COND: return eval_cond(vm, frame, node, result);
    case NODE_FILTER: return eval_filter(vm, frame, node, result);
    case NODE_TEST: return eval_test(vm, frame, node, result);
    case NODE_CALL: return eval_call(vm, frame, node, result);
    case NODE_GETITEM: return eval_getitem(vm, frame, node, result);
    case NODE_GETATTR: return eval_getattr(vm, frame, node, result);
    case NODE_CONCAT: return eval_concat(vm, frame, node, result);
    case NODE_COMPARE: return eval_compare(vm, frame, node, result);
    case NODE_BINARY: return eval_binary(vm, frame, node, result);
    case NODE_AND:
    case NODE_OR:
    case NODE_NOT: return eval_logic(vm, frame, node, result);
    case NODE_NEG:
    case NODE_POS: return eval_sign(vm, frame, node, result);
    default: return nbl__tpl_raise(vm, "not an expression");
    }
}

/* A CONST has its value already. It is returned without counting work. */
nbl_status nbl__tpl_eval(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *result)
{
    if (node->kind == NODE_CONST) return *result = node->value, NBL_OK;
    if (vm->folding && !nbl__tpl_may_fold(node)) return nbl__tpl_raise(vm, "not a constant");
    tpl_at(vm, node);
    NBL_TRY(nbl__tpl_enter(vm));
    NBL_TRY(eval_node(vm, frame, node, result));
    vm->depth--;
    return NBL_OK;
}
