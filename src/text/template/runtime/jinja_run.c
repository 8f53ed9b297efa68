/* jinja_run.c - runs the statements of a template and collects the output.
 *
 * Output goes to vm->out. At the top level this is the rendered text. A statement that needs the
 * text of its body (a set block, filter block, macro, recursive loop) replaces vm->out by a text of
 * its own while the body runs:
 *
 *     outer = vm->out;  vm->out = &text;  run the body;  vm->out = outer;
 *
 * If the body fails, vm->out is left as it is: the whole rendering ends then.
 *
 * break and continue set vm->flow. Each body stops while it is set, and the loop resets it. A
 * statement that collects text drops the text if its body was left in this way. */
#include <stdio.h>

#include "text/template/runtime/jinja_runtime.h"

/* ---- frames and scopes ---- */

/* A frame lives in the arena until the rendering ends, since a macro may keep it. */
nbl_status nbl__tpl_new_frame(tpl_vm *vm, const tpl_body *body, tpl_frame *parent, tpl_frame **frame)
{
    NBL_TRY(TPL_NEW(vm, *frame, 1));
    (*frame)->parent = parent;
    return TPL_NEW(vm, (*frame)->slots, body->slots); /* zeroed: all slots are MISSING */
}

/* Looks a name up in the variables: first those that the template has set at its top level, then
 * those of the caller and the globals. MISSING: there is none. */
static tpl_value resolve(const tpl_vm *vm, tpl_value name)
{
    tpl_entry *entry = nbl__tpl_dict_get(vm->variables, name.string->bytes, name.string->size);
    if (entry == NULL) entry = nbl__tpl_dict_get(vm->context, name.string->bytes, name.string->size);
    return entry ? entry->value : tpl_missing();
}

/* Fills the slots of a scope: see tpl_load_action. PARAMETER slots are left alone. */
nbl_status nbl__tpl_enter_scope(tpl_vm *vm, tpl_frame *frame, const tpl_scope *scope)
{
    NBL_TRY(nbl__tpl_work(vm, (uint64_t)scope->count));
    for (int i = 0; i < scope->count; i++) {
        const tpl_load *load = &scope->loads[i];
        if (load->action == LOAD_RESOLVE) frame->slots[load->slot] = resolve(vm, load->name);
        else if (load->action == LOAD_ALIAS)
            frame->slots[load->slot] = tpl_hop(frame, load->hops)->slots[load->from];
        else if (load->action == LOAD_UNDEFINED) frame->slots[load->slot] = tpl_missing();
    }
    return NBL_OK;
}

/* Empties the slots of a scope, so that its variables are not visible afterwards. */
void nbl__tpl_leave_scope(tpl_frame *frame, const tpl_scope *scope)
{
    for (int i = 0; i < scope->count; i++) frame->slots[scope->loads[i].slot] = tpl_missing();
}

/* ---- assignment ---- */

/* Assigns the items of a value to the names of a tuple: {% set a, b = x %}. All items are read
 * before the first is assigned. */
static nbl_status unpack(tpl_vm *vm, tpl_frame *frame, const tpl_node *target, tpl_value value)
{
    tpl_iterator *iterator;
    tpl_value *items;
    int64_t count = target->list.count;
    bool more;
    NBL_TRY(TPL_NEW(vm, items, count + 1));
    if (!nbl__tpl_is_iterable(value))
        return nbl__tpl_raise(vm, "TypeError: cannot unpack non-iterable %s object",
                              nbl__tpl_type_name(value));
    NBL_TRY(nbl__tpl_iterate(vm, value, &iterator));
    for (int64_t i = 0; i <= count; i++) {
        NBL_TRY(nbl__tpl_next(vm, iterator, &items[i], &more));
        if (!more && i < count)
            return nbl__tpl_raise(
                vm, "ValueError: not enough values to unpack (expected %" PRId64 ", got %" PRId64 ")", count,
                i);
    }
    if (more)
        return nbl__tpl_raise(vm, "ValueError: too many values to unpack (expected %" PRId64 ")", count);
    for (int64_t i = 0; i < count; i++) NBL_TRY(nbl__tpl_assign(vm, frame, target->list.items[i], items[i]));
    return NBL_OK;
}

/* Assigns to a name, to the names of a tuple, or to an attribute of a namespace. The message about
 * underscores is that of transformers. */
nbl_status nbl__tpl_assign(tpl_vm *vm, tpl_frame *frame, const tpl_node *target, tpl_value value)
{
    if (target->kind == NODE_TUPLE) return unpack(vm, frame, target, value);
    tpl_value *slot = &tpl_hop(frame, target->hops)->slots[target->slot];
    assert(target->kind == NODE_NAME || target->kind == NODE_NSREF);
    if (target->kind == NODE_NAME) return *slot = value, NBL_OK;
    if (slot->type != TPL_NAMESPACE)
        return nbl__tpl_raise(vm, "cannot assign attribute on non-namespace object");
    const tpl_string *name = target->a->value.string;
    if (name->size && name->bytes[0] == '_')
        return nbl__tpl_raise(
            vm,
            "Chat templates cannot store underscore-prefixed attributes on a namespace, but got %s. "
            "Please rename the attribute.",
            nbl__tpl_shown(vm, target->a->value));
    return nbl__tpl_dict_set(vm, slot->dict, target->a->value, value);
}

/* Checks the namespaces of a target. jinja2 does that before it evaluates the value. */
static nbl_status check_namespaces(tpl_vm *vm, tpl_frame *frame, const tpl_node *target)
{
    for (int64_t i = 0; i < target->list.count; i++)
        NBL_TRY(check_namespaces(vm, frame, target->list.items[i]));
    if (target->kind != NODE_NSREF) return NBL_OK;
    if (tpl_hop(frame, target->hops)->slots[target->slot].type == TPL_NAMESPACE) return NBL_OK;
    return nbl__tpl_raise(vm, "cannot assign attribute on non-namespace object");
}

/* Makes a variable that is set at the top level visible in blocks. */
static nbl_status export_names(tpl_vm *vm, tpl_frame *frame, const tpl_node *target)
{
    if (vm->program->blocks.count == 0) return NBL_OK;
    for (int64_t i = 0; i < target->list.count; i++) NBL_TRY(export_names(vm, frame, target->list.items[i]));
    if (target->kind != NODE_NAME) return NBL_OK;
    return nbl__tpl_dict_set(vm, vm->variables, target->value,
                             tpl_hop(frame, target->hops)->slots[target->slot]);
}

/* {% set a = b %}. The namespaces of the target are checked before b is evaluated, as in jinja2. */
static nbl_status run_set(tpl_vm *vm, tpl_frame *frame, const tpl_node *node)
{
    tpl_value value;
    NBL_TRY(check_namespaces(vm, frame, node->a));
    NBL_TRY(nbl__tpl_eval(vm, frame, node->b, &value));
    tpl_at(vm, node);
    NBL_TRY(nbl__tpl_assign(vm, frame, node->a, value));
    return node->exported ? export_names(vm, frame, node->a) : NBL_OK;
}

/* {% set a %}…{% endset %}: assigns the text of the body, after its filters. Under autoescape the
 * text is safe HTML. */
static nbl_status run_set_block(tpl_vm *vm, tpl_frame *frame, const tpl_node *node)
{
    tpl_text text = {0}, *outer = vm->out;
    tpl_value value;
    NBL_TRY(nbl__tpl_enter_scope(vm, frame, &node->scope));
    vm->out = &text;
    NBL_TRY(nbl__tpl_run_body(vm, frame, &node->body));
    if (vm->flow == TPL_GO_ON) {
        if (node->b) NBL_TRY(nbl__tpl_eval(vm, frame, node->b, &value));
        else NBL_TRY(nbl__tpl_take(vm, &text, &value));
        if (vm->autoescape) NBL_TRY(nbl__tpl_soft_str(vm, value, &value));
        if (vm->autoescape) value.markup = true;
        tpl_at(vm, node);
        if (node->a->kind == NODE_NSREF) NBL_TRY(check_namespaces(vm, frame, node->a));
        NBL_TRY(nbl__tpl_assign(vm, frame, node->a, value));
        if (node->exported) NBL_TRY(export_names(vm, frame, node->a));
    }
    vm->out = outer;
    nbl__tpl_leave_scope(frame, &node->scope);
    return NBL_OK;
}

/* ---- blocks of text ---- */

/* Writes what {{ … }} prints: str(value), escaped under autoescape. */
static nbl_status write_value(tpl_vm *vm, tpl_value value)
{
    if (!vm->autoescape) return nbl__tpl_add_str(vm, vm->out, value);
    NBL_TRY(nbl__tpl_escape(vm, value, &value));
    return nbl__tpl_add_string(vm, vm->out, value.string);
}

/* {{ a }} and the text between tags, in one node: texts as they are, values by write_value. */
static nbl_status run_output(tpl_vm *vm, tpl_frame *frame, const tpl_node *node)
{
    for (int64_t i = 0; i < node->list.count; i++) {
        const tpl_node *item = node->list.items[i];
        tpl_value value;
        if (item->kind == NODE_DATA) {
            NBL_TRY(nbl__tpl_add_string(vm, vm->out, item->value.string));
        } else {
            NBL_TRY(nbl__tpl_eval(vm, frame, item, &value));
            tpl_at(vm, item);
            NBL_TRY(write_value(vm, value));
        }
    }
    return NBL_OK;
}

/* Writes the result of a call or filter block. It is not converted, so it must be a string. */
static nbl_status write_text(tpl_vm *vm, tpl_value value)
{
    if (value.type == TPL_STRING) return nbl__tpl_add_string(vm, vm->out, value.string);
    return nbl__tpl_raise(vm, "TypeError: sequence item 0: expected str instance, %s found",
                          nbl__tpl_type_name(value));
}

/* {% filter f %}…{% endfilter %}: collects the body, and writes what the filters make of it. */
static nbl_status run_filter_block(tpl_vm *vm, tpl_frame *frame, const tpl_node *node)
{
    tpl_text text = {0}, *outer = vm->out;
    tpl_value value = tpl_none();
    NBL_TRY(nbl__tpl_enter_scope(vm, frame, &node->scope));
    vm->out = &text;
    NBL_TRY(nbl__tpl_run_body(vm, frame, &node->body));
    bool done = vm->flow == TPL_GO_ON;
    if (done) NBL_TRY(nbl__tpl_eval(vm, frame, node->a, &value));
    vm->out = outer;
    nbl__tpl_leave_scope(frame, &node->scope);
    return done ? write_text(vm, value) : NBL_OK;
}

/* Makes a macro. It keeps the frame, because its body may use variables around the definition. */
static nbl_status new_macro(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *result)
{
    tpl_macro *macro;
    NBL_TRY(TPL_NEW(vm, macro, 1));
    *macro = (tpl_macro){node, frame};
    *result = (tpl_value){.type = TPL_MACRO, .macro = macro};
    return NBL_OK;
}

/* {% macro %}: the statement stores a macro in its variable. */
static nbl_status run_macro(tpl_vm *vm, tpl_frame *frame, const tpl_node *node)
{
    tpl_value macro;
    NBL_TRY(new_macro(vm, frame, node, &macro));
    tpl_hop(frame, node->hops)->slots[node->slot] = macro;
    if (!node->exported || vm->program->blocks.count == 0) return NBL_OK;
    return nbl__tpl_dict_set(vm, vm->variables, node->value, macro);
}

/* Runs a call block: evaluates the call with one more keyword argument, the caller. */
static nbl_status run_call_block(tpl_vm *vm, tpl_frame *frame, const tpl_node *node)
{
    tpl_value caller, result;
    /* The extra argument is made of two nodes on the stack. They live until the call returns, which
     * is enough: values do not point to nodes of arguments. */
    tpl_node constant = {.kind = NODE_CONST, .line = node->line, .column = node->column};
    tpl_node keyword = {.kind = NODE_KEYWORD, .line = node->line, .column = node->column, .a = &constant};
    NBL_TRY(new_macro(vm, frame, node, &caller));
    NBL_TRY(nbl__tpl_cstring(vm, "caller", &keyword.value));
    constant.value = caller;
    tpl_node call = *node->a;
    tpl_node **keywords;
    NBL_TRY(TPL_NEW(vm, keywords, call.keywords.count + 1));
    if (call.keywords.count)
        memcpy(keywords, call.keywords.items, (size_t)call.keywords.count * sizeof *keywords);
    keywords[call.keywords.count] = &keyword;
    call.keywords = (tpl_nodes){keywords, call.keywords.count + 1, call.keywords.count + 1};
    NBL_TRY(nbl__tpl_eval(vm, frame, &call, &result));
    tpl_at(vm, node);
    return write_text(vm, result);
}

/* Records a span. A generation block inside another one records its span first. */
static nbl_status add_span(tpl_vm *vm, int64_t start, int64_t end)
{
    if (vm->span_count == vm->span_room) {
        int64_t room = vm->span_room ? vm->span_room * 2 : 16;
        tpl_span *spans;
        NBL_TRY(TPL_NEW(vm, spans, room));
        if (vm->span_count) memcpy(spans, vm->spans, (size_t)vm->span_count * sizeof *spans);
        vm->spans = spans;
        vm->span_room = room;
    }
    vm->spans[vm->span_count++] = (tpl_span){start, end};
    return NBL_OK;
}

/* Runs a generation block and records its span. As in transformers, the span starts at the end of
 * the rendered text; the texts of blocks that are still collected do not count. */
static nbl_status run_generation(tpl_vm *vm, tpl_frame *frame, const tpl_node *node)
{
    tpl_macro caller = {node, frame};
    tpl_args none = {0};
    tpl_value text;
    NBL_TRY(nbl__tpl_call_macro(vm, &caller, &none, &text));
    int64_t start = (int64_t)vm->text.length;
    NBL_TRY(add_span(vm, start, start + (int64_t)text.string->length));
    return write_text(vm, text);
}

/* Runs a block in a frame without a parent. `self` is the only variable that it gets; all others
 * are resolved by name. */
nbl_status nbl__tpl_run_block(tpl_vm *vm, const tpl_node *block)
{
    tpl_frame *frame;
    tpl_object *self;
    NBL_TRY(nbl__tpl_new_frame(vm, block->function, NULL, &frame));
    NBL_TRY(TPL_NEW(vm, self, 1));
    self->kind = TPL_SELF;
    frame->slots[block->slot] = (tpl_value){.type = TPL_OBJECT, .object = self};
    NBL_TRY(nbl__tpl_enter_scope(vm, frame, &block->scope));
    return nbl__tpl_run_body(vm, frame, &block->body);
}

/* ---- blocks and programs ---- */

/* Runs the first branch whose condition is true: the node itself, then its elifs in order. */
static nbl_status run_if(tpl_vm *vm, tpl_frame *frame, const tpl_node *node)
{
    const tpl_node *branch = node;
    for (int64_t i = 0;; branch = node->list.items[i++]) {
        tpl_value test;
        bool truth;
        NBL_TRY(nbl__tpl_eval(vm, frame, branch->a, &test));
        NBL_TRY(nbl__tpl_truth(vm, test, &truth));
        if (truth) return nbl__tpl_run_body(vm, frame, &branch->body);
        if (i == node->list.count) return nbl__tpl_run_body(vm, frame, &node->otherwise);
    }
}

/* {% with %}: the values are evaluated in order and assigned at once. Their names were resolved
 * outside the scope (jinja_scope.c). */
static nbl_status run_with(tpl_vm *vm, tpl_frame *frame, const tpl_node *node)
{
    NBL_TRY(nbl__tpl_enter_scope(vm, frame, &node->scope));
    for (int64_t i = 0; i < node->list.count; i++) {
        tpl_value value;
        NBL_TRY(nbl__tpl_eval(vm, frame, node->defaults.items[i], &value));
        NBL_TRY(nbl__tpl_assign(vm, frame, node->list.items[i], value));
    }
    NBL_TRY(nbl__tpl_run_body(vm, frame, &node->body));
    nbl__tpl_leave_scope(frame, &node->scope);
    return NBL_OK;
}

/* Sets whether output is escaped while the body runs. */
static nbl_status run_autoescape(tpl_vm *vm, tpl_frame *frame, const tpl_node *node)
{
    bool outer = vm->autoescape;
    tpl_value value;
    NBL_TRY(nbl__tpl_enter_scope(vm, frame, &node->scope));
    NBL_TRY(nbl__tpl_eval(vm, frame, node->a, &value));
    NBL_TRY(nbl__tpl_truth(vm, value, &vm->autoescape));
    NBL_TRY(nbl__tpl_run_body(vm, frame, &node->body));
    vm->autoescape = outer;
    nbl__tpl_leave_scope(frame, &node->scope);
    return NBL_OK;
}

/* One function per kind of statement. Expressions do not come here. */
static nbl_status run_node(tpl_vm *vm, tpl_frame *frame, const tpl_node *node)
{
    switch ((tpl_kind)node->kind) {
    case NODE_OUTPUT: return run_output(vm, frame, node);
    case NODE_IF: return run_if(vm, frame, node);
    case NODE_FOR: return nbl__tpl_run_for(vm, frame, node);
    case NODE_MACRO: return run_macro(vm, frame, node);
    case NODE_CALL_BLOCK: return run_call_block(vm, frame, node);
    case NODE_GENERATION: return run_generation(vm, frame, node);
    case NODE_FILTER_BLOCK: return run_filter_block(vm, frame, node);
    case NODE_SET: return run_set(vm, frame, node);
    case NODE_SET_BLOCK: return run_set_block(vm, frame, node);
    case NODE_WITH: return run_with(vm, frame, node);
    case NODE_AUTOESCAPE: return run_autoescape(vm, frame, node);
    case NODE_BLOCK:
        if (node->flag) return nbl__tpl_refuse(vm, "a scoped block");
        return nbl__tpl_run_block(vm, node);
    case NODE_BREAK: vm->flow = TPL_BREAK; return NBL_OK;
    case NODE_CONTINUE: vm->flow = TPL_CONTINUE; return NBL_OK;
    default: return nbl__tpl_raise(vm, "not a statement");
    }
}

/* Runs statements in order. Position, depth and work are counted per statement. */
nbl_status nbl__tpl_run_body(tpl_vm *vm, tpl_frame *frame, const tpl_nodes *body)
{
    for (int64_t i = 0; i < body->count && vm->flow == TPL_GO_ON; i++) {
        tpl_at(vm, body->items[i]);
        NBL_TRY(nbl__tpl_enter(vm));
        NBL_TRY(run_node(vm, frame, body->items[i]));
        vm->depth--;
    }
    return NBL_OK;
}

/* Runs a program from its root frame. The text is in vm->text, the spans in vm->spans. */
nbl_status nbl__tpl_run(tpl_vm *vm, const tpl_program *program)
{
    tpl_frame *frame;
    vm->program = program;
    vm->out = &vm->text;
    NBL_TRY(nbl__tpl_dict(vm, &vm->variables));
    NBL_TRY(nbl__tpl_new_frame(vm, &program->root, NULL, &frame));
    if (program->self_slot >= 0) {
        tpl_object *self;
        NBL_TRY(TPL_NEW(vm, self, 1));
        self->kind = TPL_SELF;
        frame->slots[program->self_slot] = (tpl_value){.type = TPL_OBJECT, .object = self};
    }
    NBL_TRY(nbl__tpl_enter_scope(vm, frame, &program->scope));
    return nbl__tpl_run_body(vm, frame, &program->body);
}
