/* jinja_loop.c - for loops and their `loop` variable.
 *
 *     {% for a in b if c %}     b ──iterator──▶ condition c ──iterator──▶ loop ──▶ body
 *                                               (frame of its own)
 *
 * The condition of a loop is an iterator around the iterable. It has a frame of its own, because it
 * can be ahead of the body: loop.last and loop.nextitem read the next item early.
 *
 * The items around the current one are kept in the tpl_loop: before, current, after. `after` is
 * read only when the body asks for it. Then the next pass takes it from there.
 *
 * A recursive loop is a function: {{ loop(item.children) }} runs the same body over other items,
 * one level deeper, and returns its output as text. */
#include <stdio.h>

#include "text/template/runtime/jinja_runtime.h"

typedef struct condition { /* state of the iterator */
    const tpl_node *node;
    tpl_frame *frame, *own;
    tpl_iterator *items;
} condition;

/* ---- the condition ---- */

/* Returns the value of a target: the value of its name, or a tuple of the values of its names. */
static nbl_status target_value(tpl_vm *vm, tpl_frame *frame, const tpl_node *target, tpl_value *result)
{
    if (target->kind == NODE_NAME) return *result = frame->slots[target->slot], NBL_OK;
    tpl_value *items;
    NBL_TRY(nbl__tpl_list(vm, TPL_TUPLE, target->list.count, result, &items));
    for (int64_t i = 0; i < target->list.count; i++)
        NBL_TRY(target_value(vm, frame, target->list.items[i], &items[i]));
    return NBL_OK;
}

/* Returns the next item that meets the condition. The frame is made at the first call: in jinja2
 * the condition is a generator, whose code starts then. */
static nbl_status next_temporary(tpl_vm *vm, tpl_iterator *iterator, tpl_value *item, bool *more)
{
    condition *lazy = iterator->state;
    const tpl_node *node = lazy->node;
    if (lazy->own == NULL) {
        NBL_TRY(nbl__tpl_new_frame(vm, node->test_function, lazy->frame, &lazy->own));
        NBL_TRY(nbl__tpl_enter_scope(vm, lazy->own, &node->test));
        NBL_TRY(nbl__tpl_iterate(vm, iterator->source, &lazy->items));
    }
    for (bool passes;;) {
        tpl_value value, test;
        NBL_TRY(nbl__tpl_next(vm, lazy->items, &value, more));
        if (!*more) return NBL_OK;
        NBL_TRY(nbl__tpl_assign(vm, lazy->own, node->test_target, value));
        NBL_TRY(nbl__tpl_eval(vm, lazy->own, node->c, &test));
        NBL_TRY(nbl__tpl_truth(vm, test, &passes));
        if (passes) return target_value(vm, lazy->own, node->test_target, item);
    }
}

/* Puts the condition's iterator in front of *iterable. */
static nbl_status filtered(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *iterable)
{
    tpl_iterator *iterator;
    NBL_TRY(TPL_NEW(vm, iterator, 1));
    condition *state;
    NBL_TRY(TPL_NEW(vm, state, 1));
    *state = (condition){.node = node, .frame = frame};
    iterator->state = state;
    iterator->next = next_temporary;
    iterator->type = "generator";
    iterator->source = *iterable;
    *iterable = (tpl_value){.type = TPL_ITERATOR, .iterator = iterator};
    return NBL_OK;
}

/* ---- the loop ---- */

/* Reads the next item early. MISSING means "not read yet" and "no more items": at the end of the
 * iterator a second call asks it again, which has no effect. */
static nbl_status peek(tpl_vm *vm, tpl_loop *loop)
{
    bool more;
    if (loop->after.type != TPL_MISSING) return NBL_OK;
    NBL_TRY(nbl__tpl_next(vm, loop->iterator, &loop->after, &more));
    if (!more) loop->after = tpl_missing();
    return NBL_OK;
}

/* Moves to the next item. */
static nbl_status advance(tpl_vm *vm, tpl_loop *loop, bool *more)
{
    tpl_value item = loop->after;
    *more = true;
    if (item.type == TPL_MISSING) NBL_TRY(nbl__tpl_next(vm, loop->iterator, &item, more));
    if (!*more) return NBL_OK;
    loop->after = tpl_missing();
    loop->index0++;
    loop->before = loop->current;
    loop->current = item;
    return NBL_OK;
}

/* Runs the body for each item. `around` is the frame of the code around the loop. `frame` has the
 * loop's variables; in a recursive loop it is another frame. */
static nbl_status run_loop(tpl_vm *vm, tpl_frame *around, tpl_frame *frame, const tpl_node *node,
                           tpl_value iterable, int64_t depth0)
{
    tpl_loop *loop;
    bool ran = false;
    if (node->c) NBL_TRY(filtered(vm, around, node, &iterable));
    NBL_TRY(TPL_NEW(vm, loop, 1));
    *loop = (tpl_loop){
        .node = node, .frame = around, .iterable = iterable, .index0 = -1, .length = -1, .depth0 = depth0};
    tpl_at(vm, node);
    NBL_TRY(nbl__tpl_iterate(vm, iterable, &loop->iterator));
    for (bool more;;) {
        NBL_TRY(nbl__tpl_work(vm, 1));
        NBL_TRY(advance(vm, loop, &more));
        if (!more) break;
        tpl_at(vm, node);
        NBL_TRY(nbl__tpl_assign(vm, frame, node->a, loop->current));
        if (node->extended) frame->slots[node->slot] = (tpl_value){.type = TPL_LOOP, .loop = loop};
        NBL_TRY(nbl__tpl_enter_scope(vm, frame, &node->scope));
        NBL_TRY(nbl__tpl_run_body(vm, frame, &node->body));
        int flow = vm->flow;
        vm->flow = TPL_GO_ON;
        ran |= flow == TPL_GO_ON; /* as jinja2: only a body that ran to its end counts */
        if (flow == TPL_BREAK) break;
    }
    nbl__tpl_leave_scope(frame, &node->scope);
    if (ran || node->otherwise.count == 0) return NBL_OK;
    NBL_TRY(nbl__tpl_enter_scope(vm, frame, &node->other));
    NBL_TRY(nbl__tpl_run_body(vm, frame, &node->otherwise));
    nbl__tpl_leave_scope(frame, &node->other);
    return NBL_OK;
}

/* A recursive loop runs as a function, and its output is collected. */
static nbl_status run_recursive(tpl_vm *vm, tpl_frame *around, const tpl_node *node, tpl_value iterable,
                                int64_t depth0, tpl_value *result)
{
    tpl_text text = {0}, *outer = vm->out;
    tpl_frame *frame;
    NBL_TRY(nbl__tpl_new_frame(vm, node->function, around, &frame));
    vm->out = &text;
    NBL_TRY(run_loop(vm, around, frame, node, iterable, depth0));
    vm->out = outer;
    NBL_TRY(nbl__tpl_take(vm, &text, result));
    result->markup = vm->autoescape;
    return NBL_OK;
}

/* A loop that is not recursive runs in the frame around it and writes to the output directly. */
nbl_status nbl__tpl_run_for(tpl_vm *vm, tpl_frame *frame, const tpl_node *node)
{
    tpl_value iterable, text;
    NBL_TRY(nbl__tpl_eval(vm, frame, node->b, &iterable));
    if (!node->flag) return run_loop(vm, frame, frame, node, iterable, 0);
    NBL_TRY(run_recursive(vm, frame, node, iterable, 0, &text));
    return nbl__tpl_add_string(vm, vm->out, text.string);
}

/* loop(iterable) inside a recursive loop. */
nbl_status nbl__tpl_call_loop(tpl_vm *vm, tpl_loop *loop, const tpl_args *args, tpl_value *result)
{
    tpl_value iterable;
    NBL_TRY(nbl__tpl_bind(vm, "loop", args, "iterable", 1, &iterable));
    if (!loop->node->flag)
        return nbl__tpl_raise(
            vm, "TypeError: The loop must have the 'recursive' marker to be called recursively.");
    return run_recursive(vm, loop->frame, loop->node, iterable, loop->depth0 + 1, result);
}

/* ---- the variable ---- */

/* Finds the number of items. An iterator has no length: the rest is read into a list, and the loop
 * goes on over this list, as in jinja2. So loop.length costs the memory of the rest, once. */
static nbl_status loop_length(tpl_vm *vm, tpl_loop *loop)
{
    tpl_items rest = {0};
    tpl_value list, items = {.type = TPL_ITERATOR, .iterator = loop->iterator};
    if (loop->length >= 0 || nbl__tpl_length(loop->iterable, &loop->length)) return NBL_OK;
    NBL_TRY(nbl__tpl_collect(vm, items, &rest));
    NBL_TRY(nbl__tpl_finish(vm, &rest, TPL_LIST, &list));
    NBL_TRY(nbl__tpl_iterate(vm, list, &loop->iterator));
    loop->length = rest.count + loop->index0 + 1 + (loop->after.type != TPL_MISSING);
    return NBL_OK;
}

/* loop.cycle('odd', 'even') returns the argument number index0 modulo their count. */
static nbl_status call_cycle(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    if (args->keyword_count)
        return nbl__tpl_raise(vm, "TypeError: cycle() got an unexpected keyword argument");
    if (args->count == 0) return nbl__tpl_raise(vm, "TypeError: no items for cycling given");
    assert(self.loop->index0 >= 0); /* the variable `loop` is set after the first item is taken */
    *result = args->items[self.loop->index0 % args->count];
    return NBL_OK;
}

/* loop.changed(x) is true if x differs from the x of the last call, and at the first call. */
static nbl_status call_changed(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    tpl_value *items, now;
    bool equal = false;
    if (args->keyword_count)
        return nbl__tpl_raise(vm, "TypeError: changed() got an unexpected keyword argument");
    NBL_TRY(nbl__tpl_list(vm, TPL_TUPLE, args->count, &now, &items));
    if (args->count) memcpy(items, args->items, (size_t)args->count * sizeof *items);
    if (self.loop->changed.type != TPL_MISSING) NBL_TRY(nbl__tpl_equal(vm, self.loop->changed, now, &equal));
    if (!equal) self.loop->changed = now;
    *result = tpl_bool(!equal);
    return NBL_OK;
}

/* The attributes of `loop`. revindex counts from the end; last and nextitem read one item early. */
nbl_status nbl__tpl_loop_attribute(tpl_vm *vm, tpl_loop *loop, const tpl_string *name, tpl_value *result,
                                   bool *found)
{
    tpl_value self = {.type = TPL_LOOP, .loop = loop};
    *found = true;
    if (tpl_same(name, "index")) return *result = tpl_int(loop->index0 + 1), NBL_OK;
    if (tpl_same(name, "index0")) return *result = tpl_int(loop->index0), NBL_OK;
    if (tpl_same(name, "first")) return *result = tpl_bool(loop->index0 == 0), NBL_OK;
    if (tpl_same(name, "depth")) return *result = tpl_int(loop->depth0 + 1), NBL_OK;
    if (tpl_same(name, "depth0")) return *result = tpl_int(loop->depth0), NBL_OK;
    if (tpl_same(name, "last")) {
        NBL_TRY(peek(vm, loop));
        return *result = tpl_bool(loop->after.type == TPL_MISSING), NBL_OK;
    }
    if (tpl_same(name, "nextitem")) {
        NBL_TRY(peek(vm, loop));
        if (loop->after.type != TPL_MISSING) return *result = loop->after, NBL_OK;
        return nbl__tpl_undefined(vm, "there is no next item", NULL, tpl_none(), result);
    }
    if (tpl_same(name, "previtem")) {
        if (loop->index0 > 0) return *result = loop->before, NBL_OK;
        return nbl__tpl_undefined(vm, "there is no previous item", NULL, tpl_none(), result);
    }
    if (tpl_same(name, "length") || tpl_same(name, "revindex") || tpl_same(name, "revindex0")) {
        NBL_TRY(loop_length(vm, loop));
        bool length = tpl_same(name, "length");
        int64_t index = loop->index0 + tpl_same(name, "revindex0");
        return *result = tpl_int(length ? loop->length : loop->length - index), NBL_OK;
    }
    if (tpl_same(name, "cycle"))
        return nbl__tpl_function(vm, "cycle", call_cycle, "LoopContext", self, result);
    if (tpl_same(name, "changed"))
        return nbl__tpl_function(vm, "changed", call_changed, "LoopContext", self, result);
    *found = false;
    return NBL_OK;
}

/* <LoopContext 2/5>: index and length. */
nbl_status nbl__tpl_add_loop_repr(tpl_vm *vm, tpl_text *text, tpl_loop *loop)
{
    char line[80];
    NBL_TRY(loop_length(vm, loop));
    snprintf(line, sizeof line, "<LoopContext %" PRId64 "/%" PRId64 ">", loop->index0 + 1, loop->length);
    return tpl_add_c(vm, text, line);
}
