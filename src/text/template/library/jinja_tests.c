/* jinja_tests.c - the tests behind `is`, and the look-up of filters and tests by name. A test has
 * the signature of a filter and stores a bool.
 *
 * The tables are searched from their start. A template's filters and tests are looked up when it is
 * parsed (tpl_node.callee); only map, select and similar filters search at run time. */
#include "text/template/runtime/jinja_runtime.h"

/* Python's TypeError for an argument that the test does not have. */
static nbl_status no_arguments(tpl_vm *vm, const tpl_args *args)
{
    if (args->count == 0 && args->keyword_count == 0) return NBL_OK;
    return nbl__tpl_raise(vm, "TypeError: this test takes no arguments");
}

/* Binds the argument of a test with one parameter, `other`. */
static nbl_status one_argument(tpl_vm *vm, const char *name, const tpl_args *args, tpl_value *argument)
{
    return nbl__tpl_bind(vm, name, args, "other", 1, argument);
}

/* ---- kinds of values ---- */

/* Has len() and [ ]: texts and dictionaries too, but no views. */
static bool is_sequence(tpl_value v)
{
    int64_t length;
    return nbl__tpl_length(v, &length) && v.type != TPL_VIEW;
}

/* Python's Mapping: the dictionary is the only one here. */
static bool is_mapping(tpl_value v)
{
    return v.type == TPL_DICT;
}

/* A test that depends on the type of the value only. */
#define KIND_TEST(name, condition)                                                                           \
    static nbl_status name(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)                 \
    {                                                                                                        \
        NBL_TRY(no_arguments(vm, args));                                                                     \
        return *result = tpl_bool(condition), NBL_OK;                                                        \
    }

KIND_TEST(test_defined, v.type != TPL_UNDEFINED)
KIND_TEST(test_undefined, v.type == TPL_UNDEFINED)
KIND_TEST(test_none, v.type == TPL_NONE)
KIND_TEST(test_boolean, v.type == TPL_BOOL)
KIND_TEST(test_false, v.type == TPL_BOOL && !v.integer)
KIND_TEST(test_true, v.type == TPL_BOOL && v.integer)
KIND_TEST(test_integer, v.type == TPL_INT || v.type == TPL_BIG)
KIND_TEST(test_float, v.type == TPL_FLOAT)
KIND_TEST(test_string, v.type == TPL_STRING)
KIND_TEST(test_mapping, is_mapping(v))
KIND_TEST(test_number, tpl_is_number(v) || v.type == TPL_BIG)
KIND_TEST(test_sequence, is_sequence(v))
KIND_TEST(test_iterable, nbl__tpl_is_iterable(v))
KIND_TEST(test_callable, nbl__tpl_is_callable(v))
KIND_TEST(test_escaped, v.type == TPL_STRING && v.markup)

/* ---- numbers ---- */

/* True if v % divisor == rest, with the operator's own errors for texts and other types. */
static nbl_status rest_is(tpl_vm *vm, tpl_value v, tpl_value divisor, int64_t rest, tpl_value *result)
{
    tpl_value left;
    bool equal;
    NBL_TRY(nbl__tpl_binary(vm, OP_MOD, v, divisor, &left));
    NBL_TRY(nbl__tpl_equal(vm, left, tpl_int(rest), &equal));
    return *result = tpl_bool(equal), NBL_OK;
}

/* x is odd, x is even, x is divisibleby(n). */
static nbl_status test_odd(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    NBL_TRY(no_arguments(vm, args));
    return rest_is(vm, v, tpl_int(2), 1, result);
}

static nbl_status test_even(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    NBL_TRY(no_arguments(vm, args));
    return rest_is(vm, v, tpl_int(2), 0, result);
}

static nbl_status test_divisibleby(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value number;
    NBL_TRY(nbl__tpl_bind(vm, "test_divisibleby", args, "num", 1, &number));
    return rest_is(vm, v, number, 0, result);
}

/* ---- comparisons ---- */

/* A test that is a comparison: x is gt 3 is x > 3. */
#define COMPARE_TEST(name, op)                                                                               \
    static nbl_status name(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)                 \
    {                                                                                                        \
        tpl_value other;                                                                                     \
        bool truth;                                                                                          \
        NBL_TRY(nbl__tpl_bind(vm, #name, args, "/other", 1, &other));                                        \
        NBL_TRY(nbl__tpl_compared(vm, op, v, other, &truth));                                                \
        return *result = tpl_bool(truth), NBL_OK;                                                            \
    }

COMPARE_TEST(test_eq, OP_EQ)
COMPARE_TEST(test_ne, OP_NE)
COMPARE_TEST(test_gt, OP_GT)
COMPARE_TEST(test_ge, OP_GE)
COMPARE_TEST(test_lt, OP_LT)
COMPARE_TEST(test_le, OP_LE)

/* x is in container. */
static nbl_status test_in(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value container;
    bool truth;
    NBL_TRY(nbl__tpl_bind(vm, "test_in", args, "seq", 1, &container));
    NBL_TRY(nbl__tpl_contains(vm, container, v, &truth));
    return *result = tpl_bool(truth), NBL_OK;
}

/* `is sameas`: Python's `is`. */
static nbl_status test_sameas(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value other;
    NBL_TRY(one_argument(vm, "test_sameas", args, &other));
    if (v.type == TPL_STRING) NBL_TRY(tpl_read(vm, v.string->size));
    return *result = tpl_bool(nbl__tpl_identical(v, other)), NBL_OK;
}

/* ---- text ---- */

/* x is lower: str(x).islower(). The method's table is searched by name. */
static nbl_status ask_method(tpl_vm *vm, tpl_value v, const char *method, const tpl_args *args,
                             tpl_value *result)
{
    tpl_value text;
    NBL_TRY(no_arguments(vm, args));
    NBL_TRY(nbl__tpl_str(vm, v, &text));
    for (const tpl_method *m = nbl__tpl_string_tests; m->name; m++)
        if (strcmp(m->name, method) == 0) return m->call(vm, text, args, result);
    return NBL_OK;
}

/* x is lower, x is upper. */
static nbl_status test_lower(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    return ask_method(vm, v, "islower", args, result);
}

static nbl_status test_upper(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    return ask_method(vm, v, "isupper", args, result);
}

/* x is filter: jinja2 looks the value up in a dictionary, so a list is an error and not false. */
static nbl_status check_hashable(tpl_vm *vm, tpl_value v)
{
    uint64_t hash;
    return nbl__tpl_hash(vm, v, &hash);
}

/* x is filter, x is test: true if there is a filter or test of this name. */
static nbl_status test_filter(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    NBL_TRY(no_arguments(vm, args));
    NBL_TRY(check_hashable(vm, v));
    return *result = tpl_bool(v.type == TPL_STRING && nbl__tpl_find_filter(v.string)), NBL_OK;
}

static nbl_status test_test(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    NBL_TRY(no_arguments(vm, args));
    NBL_TRY(check_hashable(vm, v));
    return *result = tpl_bool(v.type == TPL_STRING && nbl__tpl_find_test(v.string)), NBL_OK;
}

const tpl_filter nbl__tpl_tests[] = {
    {"defined", test_defined},
    {"undefined", test_undefined},
    {"none", test_none},
    {"string", test_string},
    {"mapping", test_mapping},
    {"iterable", test_iterable},
    {"sequence", test_sequence},
    {"number", test_number},
    {"integer", test_integer},
    {"float", test_float},
    {"boolean", test_boolean},
    {"true", test_true},
    {"false", test_false},
    {"callable", test_callable},
    {"escaped", test_escaped},
    {"odd", test_odd},
    {"even", test_even},
    {"divisibleby", test_divisibleby},
    {"==", test_eq},
    {"eq", test_eq},
    {"equalto", test_eq},
    {"!=", test_ne},
    {"ne", test_ne},
    {">", test_gt},
    {"gt", test_gt},
    {"greaterthan", test_gt},
    {">=", test_ge},
    {"ge", test_ge},
    {"<", test_lt},
    {"lt", test_lt},
    {"lessthan", test_lt},
    {"<=", test_le},
    {"le", test_le},
    {"in", test_in},
    {"sameas", test_sameas},
    {"lower", test_lower},
    {"upper", test_upper},
    {"filter", test_filter},
    {"test", test_test},
    {NULL, NULL},
};

/* ---- look-up ---- */

/* Searches one table. Linear: a table has at most 40 rows. */
static const tpl_filter *find(const tpl_filter *table, const tpl_string *name)
{
    for (; table->name; table++)
        if (tpl_same(name, table->name)) return table;
    return NULL;
}

/* An unknown name is NULL. jinja_scope.c reports it, or the evaluation where a template may test for
 * it. */
const tpl_filter *nbl__tpl_find_test(const tpl_string *name)
{
    return find(nbl__tpl_tests, name);
}

/* The order of the four tables does not matter: no name is in two of them. */
const tpl_filter *nbl__tpl_find_filter(const tpl_string *name)
{
    const tpl_filter *found = find(nbl__tpl_value_filters, name);
    if (found == NULL) found = find(nbl__tpl_text_filters, name);
    if (found == NULL) found = find(nbl__tpl_list_filters, name);
    return found ? found : find(nbl__tpl_lazy_filters, name);
}

/* The filter of map('name'): the name is known only now. */
nbl_status nbl__tpl_apply_filter(tpl_vm *vm, const tpl_string *name, tpl_value input, const tpl_args *args,
                                 tpl_value *result)
{
    const tpl_filter *filter = nbl__tpl_find_filter(name);
    if (filter == NULL)
        return nbl__tpl_raise(vm, "No filter named %s.", nbl__tpl_shown(vm, tpl_of_string(name)));
    return filter->run(vm, input, args, result);
}

/* The test of select('name'). */
nbl_status nbl__tpl_apply_test(tpl_vm *vm, const tpl_string *name, tpl_value input, const tpl_args *args,
                               bool *result)
{
    tpl_value truth;
    const tpl_filter *test = nbl__tpl_find_test(name);
    if (test == NULL) return nbl__tpl_raise(vm, "No test named %s.", nbl__tpl_shown(vm, tpl_of_string(name)));
    NBL_TRY(test->run(vm, input, args, &truth));
    return nbl__tpl_truth(vm, truth, result);
}
