/* test_templates.c - chat templates: the language in small programs, errors and their places, limits, memory
 * that runs out at every allocation, and where a model's template comes from. The comparison with jinja2
 * itself is tests/oracle/test_templates.py. */
#include "base/alloc.h"
#include "base/base.h"
#include "support.h"

static nbl_string text_of(const char *text)
{
    return (nbl_string){text, strlen(text)};
}

/* The rendering of a template over a few variables, or the message it fails with. */
static char *render_with(nbl_context *ctx, const char *source, const char *messages, nbl_status *status)
{
    static const nbl_chat_variable variables[] = {{"n", {"7", 1}},
                                                  {"l", {"[3, 1, 2]", 9}},
                                                  {"s", {"Hi there", 8}},
                                                  {"d", {"{\"a\": 1, \"b\": null}", 19}}};
    nbl_chat chat = {
        .messages = text_of(messages), .variables = variables, .variable_count = 4, .generation_prompt = 1};
    nbl_chat_template *t;
    nbl_rendering *r;
    char *result;
    *status = nbl_chat_template_parse(ctx, "t", text_of(source), &t);
    if (*status != NBL_OK) return strdup(nbl_error_message(ctx));
    *status = nbl_chat_template_render(t, &chat, &r);
    if (*status == NBL_OK) {
        nbl_string text = nbl_rendering_text(r);
        result = malloc(text.size + 1);
        memcpy(result, text.text, text.size + 1);
        nbl_rendering_free(r);
    } else {
        result = strdup(nbl_error_message(ctx));
    }
    nbl_chat_template_close(t);
    return result;
}

static void expect(nbl_context *ctx, const char *source, const char *wanted)
{
    nbl_status status;
    char *text = render_with(ctx, source, "[{\"role\": \"user\", \"content\": \"x\\u00e9\"}]", &status);
    if (status != NBL_OK) fail_msg("%s: %s", source, text);
    assert_string_equal(text, wanted);
    free(text);
}

static void expect_failure(nbl_context *ctx, const char *source, nbl_status code, const char *part)
{
    nbl_status status;
    char *text = render_with(ctx, source, "[]", &status);
    if (status != code || strstr(text, part) == NULL)
        fail_msg("%s: %s: %s", source, nbl_status_name(status), text);
    free(text);
}

static void the_language_is_jinja2s(void **state)
{
    nbl_context *ctx = new_context();
    (void)state;
    expect(ctx, "{% for m in messages %}<{{ m.role }}>{{ m['content'] }}\n{% endfor %}", "<user>x\xc3\xa9\n");
    expect(ctx, "  {% if n > 5 %}\n  a\n  {%- endif %}\nb\n", "  ab");
    /* quotients that are wrong in the last place when they are rounded to long double first */
    expect(ctx,
           "{{ 5981537119566093213 / 34091082525 }} {{ -2165946455953808812 / 176589814421804131 }} {{ 0 / "
           "-5 }} "
           "{{ 127071712187142 / 1995466308440841919 }} {{ 9223372036854775807 / 1 }}",
           "175457529.55130288 -12.265409888138896 -0.0 6.368020930728193e-05 9.223372036854776e+18");
    /* a zero before the width fills texts, too, and aligns numbers alone */
    expect(ctx, "{{ '{:05}|{:<05}|{:x<05}|{:<05}'.format('a', 'b', 'c', 7) }}", "a0000|b0000|cxxxx|70000");
    /* a batch of no items: an empty row, then all that is left */
    expect(ctx, "{{ [1, 2]|batch(0)|list }}{{ []|batch(0)|list }}{{ [1]|batch(-1)|list }}",
           "[[], [1, 2]][][[1]]");
    expect(ctx, "{{ range(0, 9223372036854775807, 92233720368548)|length }}", "100000");
    expect_failure(ctx, "{{ range(0, 9223372036854775807, 92233720368547)|length }}", NBL_ERROR_FORMAT,
                   "Range too big");
    expect(ctx, "{{ 2 ** 3 ** 2 }} {{ -7 // 2 }} {{ 7 / 2 }} {{ 1 < 2 < 3 }} {{ 'a' ~ 1 ~ none }}",
           "64 -4 3.5 True a1None");
    expect(ctx, "{{ [1, 'it\\'s', 2.0, (1,), {}] }} {{ d }}",
           "[1, \"it's\", 2.0, (1,), {}] {'a': 1, 'b': None}");
    expect(ctx, "{{ 0.1 + 0.2 }} {{ 1e16 }} {{ 5e-324 }} {{ 1e22 }}",
           "0.30000000000000004 1e+16 5e-324 1e+22");
    expect(ctx, "{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}", "1");
    expect(ctx,
           "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
           "6");
    expect(ctx, "{% macro m(a, b='q') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(b=2, a=3) }}",
           "[1q][32]");
    expect(ctx, "{% for i in l if i > 1 %}{{ loop.index }}{{ i }}{{ loop.last }}{% else %}no{% endfor %}",
           "13False22True");
    expect(ctx, "{{ l|sort|join(',') }} {{ s|upper }} {{ 'a,b'.split(',') }} {{ nope|default('-') }}",
           "1,2,3 HI THERE ['a', 'b'] -");
    expect(ctx, "{{ 'aXb'.partition('X'|safe) }} {{ 'ab'.rpartition('X'|safe) }}",
           "('a', Markup('X'), 'b') ('', '', 'ab')"); /* what is found is the separator itself */
    expect(ctx, "{{ {'k': [1, \"\\u00e9\\n\"]}|tojson }}", "{\"k\": [1, \"\xc3\xa9\\n\"]}");
    expect(ctx, "{{ add_generation_prompt }}{{ tools is none }}{{ bos_token is defined }}", "TrueTrueFalse");
    nbl_context_destroy(ctx);
}

/* As jinja2 folds them: what a constant decides is not looked at, and a slice is taken as an item is. */
static void constants_are_folded(void **state)
{
    nbl_context *ctx = new_context();
    (void)state;
    expect(ctx, "{{ true or x|nosuch }} {{ (1 if true else nope) or x|nosuch }} {{ 1 > 2 > (x|nosuch) }}",
           "True 1 False");
    expect(ctx, "{{ ((5[1:] and nope) or 7) or x|nosuch }} {{ none[1:] }} {{ none[1:]|length }}", "7  0");
    expect(ctx, "{% autoescape true %}{{ '<' ~ ('>'|safe) }}{{ s ~ ('>'|safe) }}{% endautoescape %}",
           "&lt;&gt;Hi there>");
    expect(ctx, "{% autoescape n %}{{ '<' ~ ('>'|safe) }}{% endautoescape %}{{ [[1]]|map('first')|list }}",
           "&lt;&gt;[1]");
    expect(ctx, "{% autoescape true %}{% endautoescape %}{{ ['<', '>'|safe]|join }}", "<>");
    expect_failure(ctx, "{{ (true and nope) and x|nosuch }}", NBL_ERROR_FORMAT, "No filter named 'nosuch'.");
    expect_failure(ctx, "{% autoescape n %}{{ ('a'|upper) or x|nosuch }}{% endautoescape %}",
                   NBL_ERROR_FORMAT, "No filter named 'nosuch'.");
    expect_failure(ctx, "{{ ((1 if false) or 2) or x|nosuch }}", NBL_ERROR_FORMAT,
                   "No filter named 'nosuch'.");
    expect_failure(ctx, "{{ 2 > 1 > (x|nosuch) }}", NBL_ERROR_FORMAT, "No filter named 'nosuch'.");
    expect_failure(ctx, "{% set y = none[1:] %}", NBL_ERROR_FORMAT, "not subscriptable");
    expect_failure(ctx, "{{ [none[1:]]|map('length')|list }}", NBL_ERROR_FORMAT, "not subscriptable");
    expect_failure(ctx, "{{ none[1:] or nope }}", NBL_ERROR_FORMAT, "not subscriptable");
    expect_failure(ctx, "{{ n or (true or {[]: 1}) }}", NBL_ERROR_FORMAT, "unhashable type: 'list'");
    nbl_context_destroy(ctx);
}

static void errors_name_their_location(void **state)
{
    nbl_context *ctx = new_context();
    (void)state;
    expect_failure(ctx, "a\nb {{ 1 + }}", NBL_ERROR_FORMAT, "t:2:10: ");
    expect_failure(ctx, "\n\n{% nosuch %}", NBL_ERROR_FORMAT, "t:3:4: Encountered unknown tag 'nosuch'");
    expect_failure(ctx, "{{ x|nofilter }}", NBL_ERROR_FORMAT, "No filter named 'nofilter'.");
    expect_failure(ctx, "{{ raise_exception('Own words: ' ~ n) }}", NBL_ERROR_FORMAT, "Own words: 7");
    expect_failure(ctx, "{{ nope.x }}", NBL_ERROR_FORMAT, "'nope' is undefined");
    expect_failure(ctx, "{{ l.append(1) }}", NBL_ERROR_FORMAT, "unsafe");
    expect_failure(ctx, "{% include 'x' %}", NBL_ERROR_UNSUPPORTED, "include");
    expect_failure(ctx, "{{ 2 ** 64 }}", NBL_ERROR_UNSUPPORTED, "64 bits");
    expect_failure(ctx, "\xff", NBL_ERROR_FORMAT, "UTF-8");
    nbl_context_destroy(ctx);
}

static void a_bomb_ends_in_an_error(void **state)
{
    nbl_context *ctx = new_context();
    (void)state;
    expect_failure(ctx, "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", NBL_ERROR_UNSUPPORTED,
                   "nested too deep");
    expect_failure(ctx, "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                   NBL_ERROR_UNSUPPORTED, "too long");
    expect_failure(ctx, "{{ 'x' * 10 ** 12 }}", NBL_ERROR_UNSUPPORTED, "too long");
    expect_failure(
        ctx,
        "{% set ns = namespace(s=[0]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        NBL_ERROR_UNSUPPORTED, "too ");
    expect_failure(ctx, "{{ range(10 ** 12) }}", NBL_ERROR_FORMAT, "Range too big");
    nbl_context_destroy(ctx);
}

static void spans_are_counted_in_characters(void **state)
{
    nbl_context *ctx = new_context();
    nbl_chat_template *t;
    nbl_rendering *r;
    int64_t start, end;
    nbl_chat chat = {.messages = text_of("[]")};
    (void)state;
    assert_ok(ctx,
              nbl_chat_template_parse(
                  ctx, "t", text_of("\xc3\xa9{% generation %}a\xf0\x9f\x98\x80{% endgeneration %}b"), &t));
    assert_ok(ctx, nbl_chat_template_render(t, &chat, &r));
    assert_int_equal(nbl_rendering_span(r, 0, &start, &end), 1);
    assert_int_equal(start, 1);
    assert_int_equal(end, 3);
    assert_int_equal(nbl_rendering_span(r, 1, &start, &end), 0);
    nbl_rendering_free(r);
    nbl_chat_template_close(t);
    nbl_context_destroy(ctx);
}

static void a_line_of_a_batch_fails_alone(void **state)
{
    nbl_context *ctx = new_context();
    nbl_chat_template *t;
    nbl_rendering *r;
    (void)state;
    assert_ok(ctx, nbl_chat_template_parse(ctx, "t", text_of("{{ messages|length }}{{ v }}"), &t));
    assert_ok(ctx, nbl_chat_template_render_line(
                       t, "f: line 1", text_of("{\"messages\": [{}], \"set\": {\"v\": [NaN, 1e400]}}"), &r));
    assert_string_equal(nbl_rendering_text(r).text, "1[nan, inf]");
    nbl_rendering_free(r);
    assert_ok(ctx, nbl_chat_template_render_line(
                       t, "f: line 2", text_of("{\"template\": \"{{ raise_exception('a\\\\nb') }}\"}"), &r));
    assert_non_null(strstr(nbl_rendering_error(r).text, "a\nb"));
    nbl_rendering_free(r);
    assert_ok(ctx, nbl_chat_template_render_line(t, "f: line 3", text_of("{\"messages\": [1]}"), &r));
    assert_non_null(nbl_rendering_error(r).text);
    nbl_rendering_free(r);
    assert_int_equal(nbl_chat_template_render_line(t, "f: line 4", text_of("{\"messages\": "), &r),
                     NBL_ERROR_FORMAT);
    assert_non_null(strstr(nbl_error_message(ctx), "line 4"));
    assert_int_equal(nbl_chat_template_render_line(t, "f: line 5", text_of("[]"), &r), NBL_ERROR_FORMAT);
    nbl_chat_template_close(t);
    nbl_context_destroy(ctx);
}

static char *render_model(nbl_context *ctx, const char *folder, const char *file, const char *tools)
{
    nbl_chat_template *t;
    nbl_rendering *r;
    nbl_chat chat = {.messages = text_of("[]")};
    if (tools) chat.tools = text_of(tools);
    assert_ok(ctx, nbl_chat_template_open(ctx, folder, file, &t));
    char *text;
    if (nbl_chat_template_render(t, &chat, &r) == NBL_OK) {
        text = strdup(nbl_rendering_text(r).text);
        nbl_rendering_free(r);
    } else {
        text = strdup(nbl_error_message(ctx));
    }
    nbl_chat_template_close(t);
    return text;
}

static void the_models_template_is_found(void **state)
{
    char folder[64];
    nbl_context *ctx = new_context();
    (void)state;
    make_temp(folder);
    char *text = render_model(ctx, folder, NULL, NULL);
    assert_non_null(strstr(text, "no chat template"));
    free(text);
    static const char json[] = "{\"chat_template\": \"J{{ bos_token is defined }}\"}";
    write_file(folder, "chat_template.json", json, strlen(json));
    text = render_model(ctx, folder, NULL, NULL);
    assert_string_equal(text, "JFalse");
    free(text);
    static const char config[] =
        "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\", \"pad_token\": null, "
        "\"chat_template\": "
        "[{\"name\": \"default\", \"template\": \"D{{ bos_token }}\"}, "
        "{\"name\": \"tool_use\", \"template\": \"T{{ eos_token }}{{ pad_token is defined }}\"}]}";
    write_file(folder, "tokenizer_config.json", config, strlen(config));
    text = render_model(ctx, folder, NULL, NULL);
    assert_string_equal(text, "D<s>");
    free(text);
    text = render_model(ctx, folder, NULL, "[{}]");
    assert_string_equal(text, "T</s>False");
    free(text);
    write_file(folder, "chat_template.jinja", "F{{ bos_token }}\n\n", 18);
    text = render_model(ctx, folder, NULL, "[{}]");
    assert_string_equal(text, "F<s>\n");
    free(text);
    write_file(folder, "other", "O", 1);
    text = render_model(ctx, folder, in_folder(folder, "other"), NULL);
    assert_string_equal(text, "O");
    free(text);
    remove_tree(folder);
    nbl_context_destroy(ctx);
}

/* The n-th allocation fails, for every n: an error, no leak, no crash. */
static void memory_may_run_out_anywhere(void **state)
{
    static const char source[] =
        "{% macro m(a, b=2) %}{{ caller(a) }}{% endmacro %}{% set ns = namespace(x={}) %}"
        "{% for k, v in d.items() if k %}{% call(q) m(k) %}{{ q|upper ~ loop.index }}{% endcall %}"
        "{% set ns.x = dict(ns.x, **{k: v}) %}{% endfor %}{{ ns.x|tojson(indent=2) }}"
        "{{ l|sort|map('string')|join('-') }}{{ '%5.2f' % 1.5 }}{{ '{:>4}'.format(n) }}"
        "{% set z | trim %} {{ s.split() }} {% endset %}{{ z }}{% generation %}g{% endgeneration %}";
    (void)state;
    nbl__counter counter = {0};
    for (int64_t at = 1;; at++) {
        counter.fail_at = at;
        atomic_store(&counter.calls, 0);
        nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1,
                                       .allocator = nbl__counting_allocator(&counter)};
        nbl_context *ctx;
        nbl_status status = nbl_context_create(&options, &ctx);
        if (status == NBL_OK) {
            char *text = render_with(ctx, source, "[{\"role\": \"user\", \"thinking\": \"t\"}]", &status);
            nbl_context_destroy(ctx);
            if (status == NBL_OK) assert_non_null(strstr(text, "1-2-3 1.50   7['Hi', 'there']g"));
            free(text);
        }
        assert_int_equal(atomic_load(&counter.live), 0);
        if (status == NBL_OK) break;
        assert_int_equal(status, NBL_ERROR_MEMORY);
        assert_true(at < 10000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_language_is_jinja2s),         cmocka_unit_test(constants_are_folded),
        cmocka_unit_test(errors_name_their_location),      cmocka_unit_test(a_bomb_ends_in_an_error),
        cmocka_unit_test(spans_are_counted_in_characters), cmocka_unit_test(a_line_of_a_batch_fails_alone),
        cmocka_unit_test(the_models_template_is_found),    cmocka_unit_test(memory_may_run_out_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
