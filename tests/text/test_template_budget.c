/* test_template_budget.c - what a template may cost: every filter, test, method and operator counts what it reads, a
 * rendering asks the caller whether to go on, and recursion ends before the stack of the thread does.
 *
 * The operations come from the tables of the language, so a new one is tested by itself. Each runs in a loop over long
 * values with a thousandth of the budget left: some milliseconds. An operation that does not count what it reads takes
 * hundreds of times as long. */
#include <pthread.h>
#include <time.h>

#include "support.h"
#include "text/template/runtime/jinja_runtime.h"

enum { LONG = 1 << 20, LEFT_STEPS = TPL_MAX_STEPS / 1000, LEFT_MEMORY = 6 << 20 };
static const double max_seconds = 0.5; /* of the processor */

typedef struct inputs {
    tpl_vm vm; /* that holds them */
    tpl_value values[11];
} inputs;

static inputs in;

static tpl_value long_text(tpl_vm *vm, const char *piece, char last)
{
    size_t size = strlen(piece), at = 0;
    tpl_value text;
    char *bytes = nbl__tpl_alloc(vm, LONG);
    for (; at + size < LONG; at += size) memcpy(bytes + at, piece, size);
    bytes[at++] = last;
    assert_int_equal(nbl__tpl_string(vm, bytes, at, &text), NBL_OK);
    return text;
}

/* Long texts that are equal but not the same, a list and a dictionary of them, and short values. */
static void make_inputs(nbl_context *ctx)
{
    tpl_vm *vm = &in.vm;
    tpl_value *v = in.values, *items;
    *vm = (tpl_vm){.ctx = ctx, .arena = nbl__arena_make(ctx)};
    v[0] = long_text(vm, "a", 'b');
    v[1] = long_text(vm, "a", 'b');
    v[2] = long_text(vm, "A ", 'B');
    v[3] = long_text(vm, "\xc3\xa9", 'b');
    v[4] = long_text(vm, " \t", ' ');
    assert_int_equal(nbl__tpl_list(vm, TPL_LIST, 5, &v[5], &items), NBL_OK);
    for (int i = 0; i < 5; i++) items[i] = v[i];
    v[6] = (tpl_value){.type = TPL_DICT};
    assert_int_equal(nbl__tpl_dict(vm, &v[6].dict), NBL_OK);
    for (int i = 0; i < 5; i++) assert_int_equal(nbl__tpl_dict_set(vm, v[6].dict, v[i], v[i]), NBL_OK);
    assert_int_equal(nbl__tpl_cstring(vm, "a", &v[7]), NBL_OK);
    assert_int_equal(nbl__tpl_cstring(vm, "upper", &v[8]), NBL_OK);
    v[9] = tpl_int(3);
    assert_int_equal(nbl__tpl_list(vm, TPL_TUPLE, 4, &v[10], &items), NBL_OK);
    for (int i = 0; i < 4; i++) items[i] = v[i];
}

typedef struct operation {
    const char *kind, *name;
    nbl_status (*run)(tpl_vm *vm, tpl_value input, const tpl_args *args, tpl_value *result);
    int op; /* of an operator */
} operation;

static nbl_status run_once(tpl_vm *vm, const operation *o, tpl_value input, const tpl_args *args)
{
    tpl_value result = tpl_none();
    tpl_items all = {0};
    tpl_value parts[3] = {tpl_int(1), tpl_none(), tpl_int(o->op)};
    bool truth;
    vm->depth = 0;
    NBL_TRY(nbl__tpl_work(vm, 1)); /* the node */
    if (o->run) NBL_TRY(o->run(vm, input, args, &result));
    else if (strcmp(o->kind, "slice") == 0) return nbl__tpl_slice(vm, input, parts, &result);
    else if (args->count == 0) return nbl__tpl_unary(vm, true, input, &result);
    else if (strcmp(o->kind, "item") == 0) return nbl__tpl_getitem(vm, input, args->items[0], &result);
    else if (strcmp(o->kind, "compare") == 0)
        return nbl__tpl_compared(vm, (tpl_operator)o->op, args->items[0], input, &truth);
    else return nbl__tpl_binary(vm, (tpl_operator)o->op, input, args->items[0], &result);
    return result.type == TPL_ITERATOR ? nbl__tpl_collect(vm, result, &all) : NBL_OK;
}

static void exhaust(nbl_context *ctx, const operation *o, int input, int first, int second)
{
    tpl_vm *vm = calloc(1, sizeof *vm);
    *vm = (tpl_vm){.ctx = ctx, .arena = nbl__arena_make(ctx)};
    tpl_value items[2] = {first >= 0 ? in.values[first] : tpl_none(),
                          second >= 0 ? in.values[second] : tpl_none()};
    vm->steps = vm->polled = TPL_MAX_STEPS - LEFT_STEPS;
    vm->memory = TPL_MAX_MEMORY - LEFT_MEMORY;
    clock_t begin = clock();
    for (nbl_status status = NBL_OK; status == NBL_OK;) {
        tpl_args args = {.items = items, .count = (first >= 0) + (second >= 0)};
        status = run_once(vm, o, in.values[input], &args);
        if ((double)(clock() - begin) / CLOCKS_PER_SEC > max_seconds)
            fail_msg("%s %s of value %d with %d, %d does not count what it reads: %llu steps", o->kind,
                     o->name, input, first, second,
                     (unsigned long long)(vm->steps - (TPL_MAX_STEPS - LEFT_STEPS)));
    }
    nbl__arena_free(&vm->arena);
    free(vm);
}

static void exhaust_all(nbl_context *ctx, const operation *o)
{
    static const int arguments[][2] = {{-1, -1}, {1, -1}, {7, -1}, {8, -1}, {9, -1}, {10, -1}, {1, 7}};
    static const int chosen[] = {0, 2, 3, 4, 5, 6};
    for (size_t k = 0; k < sizeof chosen / sizeof *chosen; k++)
        for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++) {
            int input = chosen[k];
            bool text = input < 5, method = strcmp(o->kind, "method of str") == 0;
            if (method && !text) continue;
            if (strcmp(o->kind, "method of list") == 0 && input != 5) continue;
            if (strcmp(o->kind, "method of dict") == 0 && input != 6) continue;
            exhaust(ctx, o, input, arguments[i][0], arguments[i][1]);
        }
}

static void filters(nbl_context *ctx, const char *kind, const tpl_filter *table)
{
    for (; table->name; table++) exhaust_all(ctx, &(operation){kind, table->name, table->run, 0});
}

static void methods(nbl_context *ctx, const char *kind, const tpl_method *table)
{
    for (; table->name; table++) exhaust_all(ctx, &(operation){kind, table->name, table->call, 0});
}

static void every_filter_counts_what_it_reads(void **state)
{
    nbl_context *ctx = *state;
    filters(ctx, "filter", nbl__tpl_value_filters);
    filters(ctx, "filter", nbl__tpl_text_filters);
    filters(ctx, "filter", nbl__tpl_list_filters);
    filters(ctx, "filter", nbl__tpl_lazy_filters);
}

static void every_test_counts_what_it_reads(void **state)
{
    filters(*state, "test", nbl__tpl_tests);
}

static void every_method_counts_what_it_reads(void **state)
{
    nbl_context *ctx = *state;
    methods(ctx, "method of str", nbl__tpl_string_methods);
    methods(ctx, "method of str", nbl__tpl_split_methods);
    methods(ctx, "method of str", nbl__tpl_string_tests);
    methods(ctx, "method of list", nbl__tpl_list_methods);
    methods(ctx, "method of dict", nbl__tpl_dict_methods);
}

static void every_operator_counts_what_it_reads(void **state)
{
    nbl_context *ctx = *state;
    for (int op = OP_ADD; op <= OP_POW; op++) exhaust_all(ctx, &(operation){"binary", "", NULL, op});
    static const int compared[] = {OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE, OP_IN, OP_NOT_IN};
    for (size_t i = 0; i < sizeof compared / sizeof *compared; i++)
        exhaust_all(ctx, &(operation){"compare", "", NULL, compared[i]});
    exhaust_all(ctx, &(operation){"item", "", NULL, 0});
    for (int step = 1; step < 3; step++) exhaust_all(ctx, &(operation){"slice", "", NULL, step});
}

/* ---- whole templates ---- */

static nbl_status render(nbl_context *ctx, const char *source, char *text, size_t size)
{
    nbl_chat_template *t;
    nbl_rendering *r;
    nbl_chat chat = {.messages = {"[]", 2}};
    assert_int_equal(nbl_chat_template_parse(ctx, "t", (nbl_string){source, strlen(source)}, &t), NBL_OK);
    nbl_status status = nbl_chat_template_render(t, &chat, &r);
    if (status == NBL_OK) {
        snprintf(text, size, "%s", nbl_rendering_text(r).text);
        nbl_rendering_free(r);
    }
    nbl_chat_template_close(t);
    return status;
}

static bool stop(void *user, const nbl_progress *at)
{
    (void)at;
    return ++*(int *)user > 3;
}

static void a_rendering_asks_whether_to_go_on(void **state)
{
    nbl_context *ctx;
    int asked = 0;
    char text[8];
    (void)state;
    assert_int_equal(nbl_context_create(&(nbl_context_options){NBL_OPTIONS(nbl_context_options),
                                                               .progress = stop, .progress_user = &asked},
                                        &ctx),
                     NBL_OK);
    assert_int_equal(render(ctx,
                            "{% for i in range(9999) %}{% for k in range(9999) %}{% endfor %}{% endfor %}",
                            text, sizeof text),
                     NBL_ERROR_CANCELLED);
    assert_int_equal(asked, 4);
    nbl_context_destroy(ctx);
}

static void the_smallest_integer_is_an_integer(void **state)
{
    char text[200];
    assert_int_equal(
        render(*state,
               "{{ -9223372036854775808 }} {{ -9223372036854775808 + 1 }} {{ +(-9223372036854775808) }} "
               "{{ -(-9223372036854775808) }} {{ -9223372036854775809 }} {{ (-9223372036854775809)|abs }} "
               "{{ (-9223372036854775808)|abs }}",
               text, sizeof text),
        NBL_OK);
    assert_string_equal(text,
                        "-9223372036854775808 -9223372036854775807 -9223372036854775808 9223372036854775808 "
                        "-9223372036854775809 9223372036854775809 9223372036854775808");
}

static void *recurse(void *ctx)
{
    static char text[64], deep[4096];
    static const char *const sources[] = {
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(100000) }}",
        "{% macro m(n) %}{% for i in [n] %}{% filter upper %}{{ [m(i + 1)]|map('upper')|list }}{% endfilter "
        "%}"
        "{% endfor %}{% endmacro %}{{ m(0) }}",
        "{% set l = [[1]] %}{% for x in l recursive %}{{ loop(l) }}{% endfor %}"};
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        assert_int_not_equal(render(ctx, sources[i], text, sizeof text), NBL_OK);
    for (int depth = 50; depth <= 199; depth += 149) { /* read or refused; never a crash */
        memcpy(deep, "{{ ", 4);
        for (int i = 0; i < depth; i++) strcat(deep, "(-");
        strcat(deep, "1");
        for (int i = 0; i < depth; i++) strcat(deep, ")");
        strcat(deep, " }}");
        render(ctx, deep, text, sizeof text);
    }
    return NULL;
}

static void recursion_ends_before_the_stack_does(void **state)
{
    static const size_t sizes[] = {8 << 20, 1 << 20, 512 << 10, 256 << 10, 192 << 10};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        pthread_attr_t attributes;
        pthread_t thread;
        pthread_attr_init(&attributes);
        assert_int_equal(pthread_attr_setstacksize(&attributes, sizes[i]), 0);
        assert_int_equal(pthread_create(&thread, &attributes, recurse, *state), 0);
        pthread_join(thread, NULL);
        pthread_attr_destroy(&attributes);
    }
}

static int open_context(void **state)
{
    if (nbl_context_create(NULL, (nbl_context **)state) != NBL_OK) return 1;
    make_inputs(*state);
    return 0;
}

static int close_context(void **state)
{
    nbl__arena_free(&in.vm.arena);
    nbl_context_destroy(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_filter_counts_what_it_reads),
        cmocka_unit_test(every_test_counts_what_it_reads),
        cmocka_unit_test(every_method_counts_what_it_reads),
        cmocka_unit_test(every_operator_counts_what_it_reads),
        cmocka_unit_test(a_rendering_asks_whether_to_go_on),
        cmocka_unit_test(the_smallest_integer_is_an_integer),
        cmocka_unit_test(recursion_ends_before_the_stack_does),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
