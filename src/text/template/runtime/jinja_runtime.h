/* jinja_runtime.h - runs a template: frames, calls, attributes, operators, and the tables of
 * filters, tests and methods.
 *
 * The program is a tree of nodes (jinja_ast.h), which is interpreted directly. Each call of a
 * function (the template, a macro, a block, …) has a frame with one slot per variable. A function
 * that is defined inside another reaches the outer variables through the chain of parent frames.
 *
 *     {% set x = 1 %}                        template's frame   slots: x, f
 *     {% macro f(a) %}{{ a + x }}{% endmacro %}    ▲ parent
 *     {{ f(2) }}                             macro's frame      slots: a
 *                                            x is slot 0, 1 hop up
 *
 * Where things are:
 *
 *     jinja_run.c        statements          jinja_value.c      memory, values, dictionaries
 *     jinja_loop.c       for loops           jinja_text.c       str, repr, escapes
 *     jinja_eval.c       expressions         jinja_number.c     numbers from and to text
 *     jinja_call.c       calls, macros       jinja_compare.c    equality, order, membership
 *     jinja_attribute.c  obj.a, obj[a]       jinja_iterate.c    iteration
 *     jinja_operators.c  arithmetic, slices  jinja_json.c       JSON
 *     library/           filters, tests, methods of str, list, dict, … */
#ifndef NBL_JINJA_RUNTIME_H
#define NBL_JINJA_RUNTIME_H

#include "base/json/json_write.h"
#include "text/template/syntax/jinja_ast.h"

typedef enum tpl_flow { TPL_GO_ON, TPL_BREAK, TPL_CONTINUE } tpl_flow;

/* The variables of one call of a function (tpl_body). */
typedef struct tpl_frame {
    tpl_value *slots;
    struct tpl_frame *parent; /* frame of the enclosing function; NULL: none */
} tpl_frame;

/* A macro as a value. It keeps the frame of its definition, as a closure does. */
struct tpl_macro {
    const tpl_node *node; /* MACRO or CALL_BLOCK */
    tpl_frame *frame;     /* the frame in which it was defined */
};

/* The variable `loop`; see jinja_loop.c. */
struct tpl_loop {
    const tpl_node *node;
    tpl_frame *frame; /* frame of the code around the loop */
    tpl_value iterable;
    tpl_iterator *iterator;
    int64_t index0, length;           /* length -1: not computed yet */
    int64_t depth0;                   /* depth of a recursive loop, from 0 */
    tpl_value before, current, after; /* previtem, the item, nextitem; MISSING: none */
    tpl_value changed;                /* the last arguments of loop.changed() */
};

/* ---- running ---- */

/* Evaluates an expression. `frame` is NULL while a constant is folded. */
nbl_status nbl__tpl_eval(tpl_vm *vm, tpl_frame *frame, const tpl_node *node, tpl_value *result);
/* Runs statements until the end, or until vm->flow is set by break or continue. */
nbl_status nbl__tpl_run_body(tpl_vm *vm, tpl_frame *frame, const tpl_nodes *body);
/* Fill and empty the slots of a scope. A loop fills them for each pass, and empties them at its end. */
nbl_status nbl__tpl_enter_scope(tpl_vm *vm, tpl_frame *frame, const tpl_scope *scope);
void nbl__tpl_leave_scope(tpl_frame *frame, const tpl_scope *scope);
/* Makes a frame whose slots are all MISSING. */
nbl_status nbl__tpl_new_frame(tpl_vm *vm, const tpl_body *body, tpl_frame *parent, tpl_frame **frame);
/* Assigns to a target: a name, a tuple of targets, or an attribute of a namespace. */
nbl_status nbl__tpl_assign(tpl_vm *vm, tpl_frame *frame, const tpl_node *target, tpl_value value);
nbl_status nbl__tpl_run_for(tpl_vm *vm, tpl_frame *frame, const tpl_node *node);
/* Calls a recursive loop with another iterable. *result is its output. */
nbl_status nbl__tpl_call_loop(tpl_vm *vm, tpl_loop *loop, const tpl_args *args, tpl_value *result);
nbl_status nbl__tpl_call_macro(tpl_vm *vm, const tpl_macro *macro, const tpl_args *args, tpl_value *result);
nbl_status nbl__tpl_run_block(tpl_vm *vm, const tpl_node *block);
/* Runs a program over the variables of vm->context. */
nbl_status nbl__tpl_run(tpl_vm *vm, const tpl_program *program);
/* Returns the frame `hops` levels up the chain of parents. */
static inline tpl_frame *tpl_hop(tpl_frame *frame, int hops)
{
    while (hops-- > 0) frame = frame->parent;
    assert(frame); /* hops and slots come from the parser's scopes */
    return frame;
}
/* Sets the line and column for messages. */
static inline void tpl_at(tpl_vm *vm, const tpl_node *node)
{
    vm->line = node->line;
    vm->column = node->column;
}

/* ---- values ---- */

/* Binary and unary operators, with Python's rules. `minus`: -v, otherwise +v. */
nbl_status nbl__tpl_binary(tpl_vm *vm, tpl_operator op, tpl_value a, tpl_value b, tpl_value *result);
nbl_status nbl__tpl_unary(tpl_vm *vm, bool minus, tpl_value v, tpl_value *result);
nbl_status nbl__tpl_compared(tpl_vm *vm, tpl_operator op, tpl_value a, tpl_value b, bool *result);
/* a[start:stop:step]. A part that is left out is NONE. */
nbl_status nbl__tpl_slice(tpl_vm *vm, tpl_value a, const tpl_value parts[3], tpl_value *result);
/* The characters [first, last) of a string. */
nbl_status nbl__tpl_substring(tpl_vm *vm, const tpl_string *s, int64_t first, int64_t last,
                              tpl_value *result);
/* obj.name and obj[key], under the rules of the sandbox. */
nbl_status nbl__tpl_getattr(tpl_vm *vm, tpl_value obj, tpl_value name, tpl_value *result);
nbl_status nbl__tpl_getitem(tpl_vm *vm, tpl_value obj, tpl_value key, tpl_value *result);
/* Python's getattr. *found: the attribute exists. *safe: the sandbox allows it. */
nbl_status nbl__tpl_python_attribute(tpl_vm *vm, tpl_value obj, const tpl_string *name, tpl_value *result,
                                     bool *found, bool *safe);
bool nbl__tpl_is_callable(tpl_value v);
nbl_status nbl__tpl_call(tpl_vm *vm, tpl_value callee, const tpl_args *args, tpl_value *result);
nbl_status nbl__tpl_add_macro_repr(tpl_vm *vm, tpl_text *text, const tpl_macro *macro);
nbl_status nbl__tpl_add_loop_repr(tpl_vm *vm, tpl_text *text, tpl_loop *loop);
nbl_status nbl__tpl_loop_attribute(tpl_vm *vm, tpl_loop *loop, const tpl_string *name, tpl_value *result,
                                   bool *found);
nbl_status nbl__tpl_globals(tpl_vm *vm, tpl_dict *context); /* range, namespace, … */

/* ---- arguments ---- */

/* Binds arguments to parameters. `names` has the parameters, separated by blanks; with a '/' in
 * front all are positional only. values[i] is MISSING for a parameter that was not given. The first
 * `required` parameters must be given. */
nbl_status nbl__tpl_bind(tpl_vm *vm, const char *function, const tpl_args *args, const char *names,
                         int required, tpl_value *values);
/* Reads an argument that must be an integer or a bool. A MISSING argument leaves *integer
 * unchanged. */
nbl_status nbl__tpl_want_int(tpl_vm *vm, tpl_value v, int64_t *integer);
nbl_status nbl__tpl_want_string(tpl_vm *vm, tpl_value v, const tpl_string **string);
nbl_status nbl__tpl_want_truth(tpl_vm *vm, tpl_value v, bool *truth); /* MISSING: unchanged */

/* ---- tables ---- */

/* A filter or a test. Tables end with a row whose name is NULL. */
typedef struct tpl_filter {
    const char *name;
    nbl_status (*run)(tpl_vm *vm, tpl_value input, const tpl_args *args, tpl_value *result);
} tpl_filter;

const tpl_filter *nbl__tpl_find_filter(const tpl_string *name);
const tpl_filter *nbl__tpl_find_test(const tpl_string *name);
extern const tpl_filter nbl__tpl_list_filters[];
extern const tpl_filter nbl__tpl_lazy_filters[];
extern const tpl_filter nbl__tpl_text_filters[];
extern const tpl_filter nbl__tpl_value_filters[];
extern const tpl_filter nbl__tpl_tests[];
nbl_status nbl__tpl_apply_filter(tpl_vm *vm, const tpl_string *name, tpl_value input, const tpl_args *args,
                                 tpl_value *result);
nbl_status nbl__tpl_apply_test(tpl_vm *vm, const tpl_string *name, tpl_value input, const tpl_args *args,
                               bool *result);

typedef struct tpl_method {
    const char *name;
    tpl_call_fn call;
} tpl_method;

extern const tpl_method nbl__tpl_string_methods[]; /* jinja_string_methods.c */
extern const tpl_method nbl__tpl_split_methods[];  /* jinja_string_split.c */
extern const tpl_method nbl__tpl_string_tests[];   /* jinja_string_case.c */
extern const tpl_method nbl__tpl_list_methods[];   /* this one and those below: jinja_methods.c */
extern const tpl_method nbl__tpl_dict_methods[];
extern const tpl_method nbl__tpl_int_methods[];
extern const tpl_method nbl__tpl_float_methods[];
extern const tpl_method nbl__tpl_range_methods[];

/* ---- text ---- */

/* Returns the byte offset of `part` in `all`, at or after `from`, or -1. Linear time. */
int64_t nbl__tpl_find(const char *all, size_t size, const char *part, size_t part_size, size_t from);
int64_t nbl__tpl_find_last(const char *all, size_t size, const char *part, size_t part_size);
typedef enum tpl_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE, CASE_SWAP, CASE_FOLD } tpl_case;
nbl_status nbl__tpl_change_case(tpl_vm *vm, tpl_case to, tpl_value v, tpl_value *result);
nbl_status nbl__tpl_strip(tpl_vm *vm, tpl_value v, tpl_value chars, bool left, bool right, tpl_value *result);
nbl_status nbl__tpl_replace(tpl_vm *vm, const tpl_string *s, const tpl_string *from, const tpl_string *to,
                            int64_t count, tpl_value *result);
nbl_status nbl__tpl_split_lines(tpl_vm *vm, const tpl_string *s, bool keep_ends, tpl_items *lines);
nbl_status nbl__tpl_center(tpl_vm *vm, const tpl_string *s, int64_t width, uint32_t fill, int side,
                           tpl_value *result); /* side: -1 text at the left, 0 centred, 1 right */
nbl_status nbl__tpl_percent(tpl_vm *vm, tpl_value format, tpl_value values, tpl_value *result);
nbl_status nbl__tpl_format(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result);
nbl_status nbl__tpl_format_map(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result);
nbl_status nbl__tpl_join(tpl_vm *vm, tpl_value separator, tpl_value items, tpl_value *result); /* str.join */
/* int(text, base) and float(text). *good is false if the text is not a number. */
nbl_status nbl__tpl_parse_int(tpl_vm *vm, const tpl_string *s, int64_t base, tpl_value *result, bool *good);
nbl_status nbl__tpl_parse_float(tpl_vm *vm, const tpl_string *s, double *result, bool *good);
/* int(real). A result beyond 64 bits becomes a TPL_BIG. NaN and infinities are errors. */
nbl_status nbl__tpl_to_int(tpl_vm *vm, double real, tpl_value *result);
/* round(v, digits) of a float. */
double nbl__tpl_round(double v, int64_t digits);
/* "%.Nf" and "%.Ne" of any length, for `%` and str.format. */
nbl_status nbl__tpl_add_fixed(tpl_vm *vm, tpl_text *text, double v, int64_t precision, char kind,
                              bool alternate);

/* json.dumps. `sort`: the members of objects by their keys. */
nbl_status nbl__tpl_to_json(tpl_vm *vm, tpl_text *text, tpl_value v, const nbl__json_style *style, bool sort);
/* json.loads: with big integers and NaN; of repeated keys the last counts. Messages begin with
 * `where`. */
nbl_status nbl__tpl_from_json(tpl_vm *vm, const char *where, const char *text, size_t size,
                              tpl_value *result);

/* sorted(): sorts `items` by `keys`. Stable. */
nbl_status nbl__tpl_sort(tpl_vm *vm, tpl_value *items, tpl_value *keys, int64_t count, bool reverse);

#endif
