/* jinja_call.c - calls: binds arguments to parameters, runs macros, and has the global functions.
 *
 * Built-in functions, filters, tests and methods have the parameters in a text: nbl__tpl_bind fills
 * an array from it.
 *
 *     nbl__tpl_bind(vm, "replace", args, "old new count", 2, v)     replace('a', new='b')
 *         v[0] = 'a', v[1] = 'b', v[2] = MISSING
 *
 * Macros have slots: bind_macro() fills the parameters, bind_rest() the variables caller, kwargs
 * and varargs, and fill_defaults() what is still missing. The order is that of jinja2's
 * Macro.__call__, since it decides which error comes first.
 *
 * The global functions are those of jinja2 (range, dict, cycler, joiner, namespace, lipsum) and of
 * transformers (raise_exception, strftime_now). */
#include <stdio.h>
#include <time.h>

#include "text/template/runtime/jinja_runtime.h"

/* ---- arguments ---- */

/* Returns the length of the i-th word of a list separated by blanks, or 0 past the end. */
static size_t word_at(const char *words, int index, const char **word)
{
    for (;; index--) {
        size_t size = strcspn(words, " ");
        *word = words;
        if (index == 0 || size == 0) return size;
        words += size + (words[size] == ' ');
    }
}

/* Positional arguments first, then keywords by name. The messages are shorter than Python's, but of
 * the same type. */
nbl_status nbl__tpl_bind(tpl_vm *vm, const char *function, const tpl_args *args, const char *names,
                         int required, tpl_value *values)
{
    bool by_name = *names != '/';
    const char *word;
    int count = 0;
    if (!by_name) names++;
    while (word_at(names, count, &word)) values[count++] = tpl_missing();
    if (args->count > count)
        return nbl__tpl_raise(vm, "TypeError: %s() takes at most %d arguments (%" PRId64 " given)", function,
                              count, args->count);
    for (int64_t i = 0; i < args->count; i++) values[i] = args->items[i];
    for (int64_t k = 0; k < args->keyword_count; k++) {
        const tpl_string *name = args->keywords[k].name.string;
        int at = 0;
        size_t size;
        while ((size = word_at(names, at, &word)) &&
               (size != name->size || memcmp(word, name->bytes, size) != 0))
            at++;
        if (!by_name || size == 0)
            return nbl__tpl_raise(vm, "TypeError: %s() got an unexpected keyword argument %s", function,
                                  nbl__tpl_shown(vm, args->keywords[k].name));
        if (values[at].type != TPL_MISSING)
            return nbl__tpl_raise(vm, "TypeError: %s() got multiple values for argument %s", function,
                                  nbl__tpl_shown(vm, args->keywords[k].name));
        values[at] = args->keywords[k].value;
    }
    for (int i = 0; i < required; i++)
        if (values[i].type == TPL_MISSING)
            return nbl__tpl_raise(vm, "TypeError: %s() missing %d required positional argument(s)", function,
                                  required - i);
    return NBL_OK;
}

nbl_status nbl__tpl_want_int(tpl_vm *vm, tpl_value v, int64_t *integer)
{
    if (v.type == TPL_MISSING) return NBL_OK;
    if (v.type == TPL_UNDEFINED) return nbl__tpl_raise_undefined(vm, v);
    if (v.type == TPL_BIG) return nbl__tpl_refuse(vm, "an integer beyond 64 bits as an argument");
    if (!tpl_is_integer(v))
        return nbl__tpl_raise(vm, "TypeError: '%s' object cannot be interpreted as an integer",
                              nbl__tpl_type_name(v));
    *integer = v.integer;
    return NBL_OK;
}

nbl_status nbl__tpl_want_string(tpl_vm *vm, tpl_value v, const tpl_string **string)
{
    if (v.type == TPL_MISSING) return NBL_OK;
    if (v.type != TPL_STRING)
        return nbl__tpl_raise(vm, "TypeError: expected str instance, %s found", nbl__tpl_type_name(v));
    *string = v.string;
    return NBL_OK;
}

nbl_status nbl__tpl_want_truth(tpl_vm *vm, tpl_value v, bool *truth)
{
    return v.type == TPL_MISSING ? NBL_OK : nbl__tpl_truth(vm, v, truth);
}

/* ---- macros ---- */

/* Finds an argument by name that no parameter has taken yet. NULL: none. */
static tpl_keyword *find_keyword(const tpl_args *args, const bool *used, const tpl_string *name)
{
    for (int64_t i = 0; i < args->keyword_count; i++) {
        const tpl_string *own = args->keywords[i].name.string;
        if (!used[i] && own->size == name->size && memcmp(own->bytes, name->bytes, own->size) == 0)
            return &args->keywords[i];
    }
    return NULL;
}

/* The name of a macro for messages. A call block and a generation block have none. */
static const char *macro_name(tpl_vm *vm, const tpl_macro *macro)
{
    return macro->node->kind == NODE_MACRO ? nbl__tpl_shown(vm, macro->node->value) : "None";
}

/* Sets the special arguments of a macro: caller, and kwargs and varargs with the arguments left
 * over. */
static nbl_status bind_rest(tpl_vm *vm, const tpl_macro *macro, const tpl_args *args, bool *used,
                            bool found_caller, tpl_frame *frame)
{
    static const tpl_string caller_name = {"caller", 6, 6};
    const tpl_body *body = macro->node->function;
    int64_t count = macro->node->list.count;
    if (body->special[SPECIAL_CALLER] >= 0 && !found_caller) {
        tpl_value *slot = &frame->slots[body->special[SPECIAL_CALLER]];
        tpl_keyword *caller = find_keyword(args, used, &caller_name);
        if (caller) used[caller - args->keywords] = true;
        if (caller && caller->value.type != TPL_NONE) *slot = caller->value;
        else NBL_TRY(nbl__tpl_undefined(vm, "No caller defined", NULL, tpl_none(), slot));
    }
    if (body->special[SPECIAL_KWARGS] >= 0) {
        tpl_dict *rest;
        NBL_TRY(nbl__tpl_dict(vm, &rest));
        for (int64_t i = 0; i < args->keyword_count; i++)
            if (!used[i])
                NBL_TRY(nbl__tpl_dict_set(vm, rest, args->keywords[i].name, args->keywords[i].value));
        frame->slots[body->special[SPECIAL_KWARGS]] = (tpl_value){.type = TPL_DICT, .dict = rest};
    } else {
        for (int64_t i = 0; i < args->keyword_count; i++)
            if (!used[i])
                return nbl__tpl_raise(vm, "TypeError: macro %s takes no keyword argument %s",
                                      macro_name(vm, macro), nbl__tpl_shown(vm, args->keywords[i].name));
    }
    if (body->special[SPECIAL_VARARGS] >= 0) {
        tpl_value *items;
        int64_t more = nbl__max_i64(0, args->count - count);
        NBL_TRY(nbl__tpl_list(vm, TPL_TUPLE, more, &frame->slots[body->special[SPECIAL_VARARGS]], &items));
        for (int64_t i = 0; i < more; i++) items[i] = args->items[count + i];
    } else if (args->count > count) {
        return nbl__tpl_raise(vm, "TypeError: macro %s takes not more than %" PRId64 " argument(s)",
                              macro_name(vm, macro), count);
    }
    return NBL_OK;
}

/* Sets the parameters from the positional arguments, then from keywords of the same name. used[k]
 * is set for each keyword k that a parameter took. A parameter without an argument stays MISSING.
 *
 * found_caller tells bind_rest() that a parameter has the name `caller`. As in jinja2, only the
 * parameters that are not given by position are searched; or all, if every one is. */
static nbl_status bind_macro(tpl_vm *vm, const tpl_macro *macro, const tpl_args *args, tpl_frame *frame)
{
    const tpl_node *node = macro->node;
    const tpl_body *body = node->function;
    bool *used, found_caller = false;
    int64_t count = node->list.count, given = nbl__min_i64(args->count, count);
    NBL_TRY(TPL_NEW(vm, used, args->keyword_count));
    for (int64_t i = 0; i < count; i++) {
        tpl_value *slot = &frame->slots[body->parameters[i]];
        *slot = tpl_missing();
        if (i < given) {
            *slot = args->items[i];
            continue;
        }
        const tpl_string *name = node->list.items[i]->value.string;
        NBL_TRY(nbl__tpl_work(vm, (uint64_t)args->keyword_count * (1 + name->size / 16)));
        tpl_keyword *keyword = find_keyword(args, used, name);
        if (keyword) {
            *slot = keyword->value;
            used[keyword - args->keywords] = true;
        }
        found_caller |= tpl_same(name, "caller");
    }
    if (given == count) found_caller = body->explicit_caller;
    return bind_rest(vm, macro, args, used, found_caller, frame);
}

/* Evaluates the defaults of the parameters that were not given, in order. A default sees the
 * parameters before it: {% macro f(a, b=a) %}. A parameter without a default becomes undefined, not
 * an error. */
static nbl_status fill_defaults(tpl_vm *vm, const tpl_macro *macro, tpl_frame *frame)
{
    const tpl_node *node = macro->node;
    int64_t first = node->list.count - node->defaults.count;
    for (int64_t i = 0; i < node->list.count; i++) {
        tpl_value *slot = &frame->slots[node->function->parameters[i]];
        if (slot->type != TPL_MISSING) continue;
        const tpl_node *parameter = node->list.items[i];
        if (i >= first) {
            tpl_value value;
            NBL_TRY(nbl__tpl_eval(vm, frame, node->defaults.items[i - first], &value));
            *slot = value;
        } else {
            char hint[160];
            tpl_value text;
            int size = parameter->value.string->size > 80 ? 80 : (int)parameter->value.string->size;
            snprintf(hint, sizeof hint, "parameter '%.*s' was not provided", size,
                     parameter->value.string->bytes);
            NBL_TRY(nbl__tpl_string_copy(vm, hint, strlen(hint) + 1, &text));
            NBL_TRY(nbl__tpl_undefined(vm, text.string->bytes, NULL, parameter->value, slot));
        }
    }
    return NBL_OK;
}

/* Runs a macro in a new frame, whose parent is the frame of its definition. The output is collected
 * and returned as text; under autoescape it is safe HTML. */
nbl_status nbl__tpl_call_macro(tpl_vm *vm, const tpl_macro *macro, const tpl_args *args, tpl_value *result)
{
    tpl_text text = {0}, *outer = vm->out;
    tpl_frame *frame;
    NBL_TRY(nbl__tpl_enter(vm));
    NBL_TRY(nbl__tpl_new_frame(vm, macro->node->function, macro->frame, &frame));
    NBL_TRY(bind_macro(vm, macro, args, frame));
    NBL_TRY(nbl__tpl_enter_scope(vm, frame, &macro->node->scope));
    NBL_TRY(fill_defaults(vm, macro, frame));
    vm->out = &text;
    NBL_TRY(nbl__tpl_run_body(vm, frame, &macro->node->body));
    vm->out = outer;
    vm->depth--;
    NBL_TRY(nbl__tpl_take(vm, &text, result));
    result->markup = vm->autoescape;
    return NBL_OK;
}

/* <Macro 'name'>, or <Macro anonymous> for a call block. */
nbl_status nbl__tpl_add_macro_repr(tpl_vm *vm, tpl_text *text, const tpl_macro *macro)
{
    NBL_TRY(tpl_add_c(vm, text, "<Macro "));
    NBL_TRY(macro->node->kind == NODE_MACRO ? nbl__tpl_add_repr(vm, text, macro->node->value)
                                            : tpl_add_c(vm, text, "anonymous"));
    return tpl_add_c(vm, text, ">");
}

/* ---- calls ---- */

/* What Python's callable() says, and an undefined value: calling it fails with the name that is
 * undefined. */
bool nbl__tpl_is_callable(tpl_value v)
{
    return v.type == TPL_FUNCTION || v.type == TPL_MACRO || v.type == TPL_LOOP || v.type == TPL_UNDEFINED ||
           (v.type == TPL_OBJECT && (v.object->kind == TPL_JOINER || v.object->kind == TPL_BLOCK));
}

/* A joiner returns "" at its first call and its separator later. self.name() prints the block
 * again. */
static nbl_status call_object(tpl_vm *vm, tpl_object *object, const tpl_args *args, tpl_value *result)
{
    tpl_text text = {0}, *outer = vm->out;
    NBL_TRY(nbl__tpl_bind(vm, "call", args, "", 0, NULL));
    if (object->kind == TPL_JOINER) {
        bool first = object->at == 0;
        object->at = 1;
        return first ? nbl__tpl_cstring(vm, "", result) : (*result = object->value, NBL_OK);
    }
    vm->out = &text;
    NBL_TRY(nbl__tpl_run_block(vm, vm->program->blocks.items[object->at]));
    vm->out = outer;
    return nbl__tpl_take(vm, &text, result);
}

/* Calls a function, a macro, a recursive loop, a joiner or a block. */
nbl_status nbl__tpl_call(tpl_vm *vm, tpl_value callee, const tpl_args *args, tpl_value *result)
{
    switch ((tpl_type)callee.type) {
    case TPL_UNDEFINED: return nbl__tpl_raise_undefined(vm, callee);
    case TPL_FUNCTION: return callee.function->call(vm, callee.function->self, args, result);
    case TPL_MACRO: return nbl__tpl_call_macro(vm, callee.macro, args, result);
    case TPL_LOOP: return nbl__tpl_call_loop(vm, callee.loop, args, result);
    case TPL_OBJECT:
        if (nbl__tpl_is_callable(callee)) return call_object(vm, callee.object, args, result);
        break;
    default: break;
    }
    return nbl__tpl_raise(vm, "TypeError: '%s' object is not callable", nbl__tpl_type_name(callee));
}

/* ---- global functions ---- */

/* range(stop), range(start, stop) or range(start, stop, step). The limit of 100000 items is
 * jinja2's MAX_RANGE. */
static nbl_status call_range(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    enum { MAX = 100000 };
    tpl_value v[3];
    int64_t n[3] = {0, 0, 1};
    tpl_range *range;
    (void)self;
    NBL_TRY(nbl__tpl_bind(vm, "range", args, "/start stop step", 1, v));
    for (int i = 0; i < 3; i++) NBL_TRY(nbl__tpl_want_int(vm, v[i], &n[i]));
    if (v[1].type == TPL_MISSING) n[1] = n[0], n[0] = 0;
    if (n[2] == 0) return nbl__tpl_raise(vm, "ValueError: range() arg 3 must not be zero");
    /* 128 bits, because the difference of two 64-bit integers can overflow */
    __int128 distance = n[2] > 0 ? (__int128)n[1] - n[0] : (__int128)n[0] - n[1];
    __int128 step = n[2] > 0 ? (__int128)n[2] : -(__int128)n[2];
    __int128 count = distance > 0 ? (distance - 1) / step + 1 : 0;
    if (count > MAX)
        return nbl__tpl_raise(
            vm, "OverflowError: Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", MAX);
    NBL_TRY(TPL_NEW(vm, range, 1));
    *range = (tpl_range){n[0], n[1], n[2], (int64_t)count};
    *result = (tpl_value){.type = TPL_RANGE, .range = range};
    return NBL_OK;
}

/* dict(mapping or pairs, **more) */
static nbl_status make_dict(tpl_vm *vm, const tpl_args *args, tpl_dict **result)
{
    tpl_iterator *pairs;
    NBL_TRY(nbl__tpl_dict(vm, result));
    if (args->count > 1)
        return nbl__tpl_raise(vm, "TypeError: dict expected at most 1 argument, got %" PRId64, args->count);
    if (args->count == 1 && args->items[0].type == TPL_UNDEFINED) {
        /* Python looks up `keys` of an undefined value, which is an error */
        return nbl__tpl_raise_undefined(vm, args->items[0]);
    } else if (args->count == 1 && args->items[0].type == TPL_DICT) {
        NBL_TRY(nbl__tpl_dict_merge(vm, *result, args->items[0].dict));
    } else if (args->count == 1) {
        NBL_TRY(nbl__tpl_iterate(vm, args->items[0], &pairs));
        for (bool more;;) {
            tpl_value pair;
            tpl_items items = {0};
            NBL_TRY(nbl__tpl_next(vm, pairs, &pair, &more));
            if (!more) break;
            if (!nbl__tpl_is_iterable(pair))
                return nbl__tpl_raise(
                    vm, "TypeError: cannot convert dictionary update sequence element to a sequence");
            NBL_TRY(nbl__tpl_collect(vm, pair, &items));
            if (items.count != 2)
                return nbl__tpl_raise(vm,
                                      "ValueError: dictionary update sequence element has length %" PRId64
                                      "; 2 is required",
                                      items.count);
            NBL_TRY(nbl__tpl_dict_set(vm, *result, items.items[0], items.items[1]));
        }
    }
    for (int64_t i = 0; i < args->keyword_count; i++)
        NBL_TRY(nbl__tpl_dict_set(vm, *result, args->keywords[i].name, args->keywords[i].value));
    return NBL_OK;
}

/* dict(a=1) or dict([['a', 1]]). */
static nbl_status call_dict(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    (void)self;
    *result = (tpl_value){.type = TPL_DICT};
    return make_dict(vm, args, &result->dict);
}

/* namespace(a=1): an object whose attributes a template may set, also from inside a loop. */
static nbl_status call_namespace(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    (void)self;
    *result = (tpl_value){.type = TPL_NAMESPACE};
    NBL_TRY(make_dict(vm, args, &result->dict));
    for (int64_t i = 0; i < result->dict->count; i++) {
        tpl_value key = result->dict->entries[i].key;
        if (key.type == TPL_STRING && key.string->size && key.string->bytes[0] == '_')
            return nbl__tpl_raise(
                vm,
                "Chat templates cannot store underscore-prefixed attributes on a namespace, but got "
                "%s. Please rename the attribute.",
                nbl__tpl_shown(vm, key));
    }
    return NBL_OK;
}

/* raise_exception(message) of transformers: the rendering fails with this message, unchanged. */
static nbl_status call_raise(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    tpl_value message;
    (void)self, (void)result;
    NBL_TRY(nbl__tpl_bind(vm, "raise_exception", args, "message", 1, &message));
    NBL_TRY(nbl__tpl_str(vm, message, &message));
    vm->own = message.string;
    return nbl__tpl_raise(vm, "%.*s", (int)nbl__min_i64((int64_t)message.string->size, 700),
                          message.string->bytes);
}

/* strftime_now(format) of transformers: the local time now. The result is not reproducible. */
static nbl_status call_strftime(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    enum { MAX = 4096 };
    tpl_value format;
    tpl_text pattern = {0};
    struct timespec now;
    struct tm local;
    char *out, fraction[8];
    (void)self;
    NBL_TRY(nbl__tpl_bind(vm, "strftime_now", args, "format", 1, &format));
    if (format.type != TPL_STRING)
        return nbl__tpl_raise(vm, "TypeError: strftime() argument 1 must be str, not %s",
                              nbl__tpl_type_name(format));
    if (format.string->size > MAX / 8 || memchr(format.string->bytes, 0, format.string->size))
        return nbl__tpl_refuse(vm, "a format of the time that is this long, or holds a zero character");
    clock_gettime(CLOCK_REALTIME, &now);
    if (localtime_r(&now.tv_sec, &local) == NULL)
        return nbl__tpl_refuse(vm, "the system does not tell the time");
    snprintf(fraction, sizeof fraction, "%06d", (int)(now.tv_nsec / 1000 % 1000000));
    const char *s = format.string->bytes, *end = s + format.string->size;
    for (; s < end; s++) { /* Python's own: %f; no zone is known for %z and %Z */
        if (*s != '%' || s + 1 == end) {
            NBL_TRY(nbl__tpl_add(vm, &pattern, s, 1));
        } else {
            s++;
            if (*s == 'f') NBL_TRY(tpl_add_c(vm, &pattern, fraction));
            else if (*s != 'z' && *s != 'Z') NBL_TRY(nbl__tpl_add(vm, &pattern, s - 1, 2));
        }
    }
    NBL_TRY(nbl__tpl_add(vm, &pattern, "x",
                         2)); /* a result is never empty then: strftime returns 0 for failure and for empty */
    NBL_TRY(TPL_NEW(vm, out, MAX));
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t size = strftime(out, MAX, pattern.bytes, &local);
#pragma GCC diagnostic pop
    if (size == 0) return nbl__tpl_refuse(vm, "a format of the time whose text is too long");
    return nbl__tpl_string(vm, out, size - 1, result);
}

/* cycler('a', 'b'): next() returns its items in turn. */
static nbl_status call_cycler(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    tpl_object *cycler;
    tpl_value *items;
    (void)self;
    if (args->count == 0) return nbl__tpl_raise(vm, "RuntimeError: at least one item has to be provided");
    if (args->keyword_count)
        return nbl__tpl_raise(vm, "TypeError: cycler() got an unexpected keyword argument");
    NBL_TRY(TPL_NEW(vm, cycler, 1));
    cycler->kind = TPL_CYCLER;
    NBL_TRY(nbl__tpl_list(vm, TPL_TUPLE, args->count, &cycler->value, &items));
    memcpy(items, args->items, (size_t)args->count * sizeof *items);
    *result = (tpl_value){.type = TPL_OBJECT, .object = cycler};
    return NBL_OK;
}

/* joiner(', '): returns '' once, and then the separator; for lists whose items are printed by
 * conditions. */
static nbl_status call_joiner(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    tpl_object *joiner;
    (void)self;
    NBL_TRY(TPL_NEW(vm, joiner, 1));
    joiner->kind = TPL_JOINER;
    NBL_TRY(nbl__tpl_bind(vm, "joiner", args, "sep", 0, &joiner->value));
    if (joiner->value.type == TPL_MISSING) NBL_TRY(nbl__tpl_cstring(vm, ", ", &joiner->value));
    *result = (tpl_value){.type = TPL_OBJECT, .object = joiner};
    return NBL_OK;
}

/* Known, so that a template that mentions it can be parsed; calling it is an error. */
static nbl_status call_lipsum(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    (void)self, (void)args, (void)result;
    return nbl__tpl_refuse(vm, "lipsum(): random text has no place in a chat template");
}

/* Adds the global functions to the variables. A variable of the caller with the same name replaces
 * one. */
nbl_status nbl__tpl_globals(tpl_vm *vm, tpl_dict *context)
{
    static const struct {
        const char *name;
        tpl_call_fn call;
    } functions[] = {{"range", call_range},           {"dict", call_dict},
                     {"lipsum", call_lipsum},         {"cycler", call_cycler},
                     {"joiner", call_joiner},         {"namespace", call_namespace},
                     {"raise_exception", call_raise}, {"strftime_now", call_strftime}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        tpl_value name, function;
        NBL_TRY(nbl__tpl_cstring(vm, functions[i].name, &name));
        NBL_TRY(nbl__tpl_function(vm, functions[i].name, functions[i].call, NULL, tpl_none(), &function));
        NBL_TRY(nbl__tpl_dict_set(vm, context, name, function));
    }
    return NBL_OK;
}
