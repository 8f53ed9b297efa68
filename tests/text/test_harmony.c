/* test_harmony.c - messages of OpenAI's harmony format: what is the answer, what is thinking, and what ends it. */
#include "support.h"

#include "commands/harmony.h"

_Noreturn void cli_no_memory(void);

/* The command's, which prints and exits. */
_Noreturn void cli_no_memory(void)
{
    abort();
}

/* Words are tokens; a space joins them. */
#define SPECIAL(id, text)                                                                                    \
    "{\"id\": " #id ", \"content\": \"" text "\", "                                                          \
    "\"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": "     \
    "true}"
/* clang-format off */
static const char tokenizer_json[] =
    "{\"version\": \"1.0\", \"added_tokens\": ["
    SPECIAL(0, "<|start|>") ","
    SPECIAL(1, "<|end|>") ","
    SPECIAL(2, "<|message|>") ","
    SPECIAL(3, "<|channel|>") ","
    SPECIAL(4, "<|constrain|>") ","
    SPECIAL(5, "<|return|>") ","
    SPECIAL(6, "<|call|>")
    "], \"pre_tokenizer\": {\"type\": \"WhitespaceSplit\"}, "
    "\"model\": {\"type\": \"WordLevel\", \"unk_token\": \"?\", \"vocab\": {"
    "\"<|start|>\": 0, \"<|end|>\": 1, \"<|message|>\": 2, \"<|channel|>\": 3, \"<|constrain|>\": 4, \"<|return|>\": 5, "
    "\"<|call|>\": 6, \"?\": 7, \"assistant\": 8, \"analysis\": 9, \"commentary\": 10, \"final\": 11, "
    "\"to=functions.f\": 12, \"json\": 13, \"one\": 14, \"two\": 15, \"three\": 16, \"user\": 17}}}";
/* clang-format on */

static nbl_context *ctx;
static nbl_tokenizer *tokenizer;

static int set_up(void **state)
{
    (void)state;
    ctx = new_context();
    assert_ok(ctx, nbl_tokenizer_parse(ctx, "t.json", tokenizer_json, strlen(tokenizer_json), &tokenizer));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    nbl_tokenizer_close(tokenizer);
    nbl_context_destroy(ctx);
    return 0;
}

/* Feeds what a model writes after a prompt; compares answer and thinking, whose words are joined without spaces. */
static void expect(const char *prompt, const char *written, bool on, const char *answer, const char *thinking)
{
    cli_harmony h;
    cli_growing said = {0};
    nbl_ids before, ids;
    cli_harmony_open(&h, tokenizer);
    assert_true(h.known);
    assert_ok(ctx, nbl_tokenizer_encode(tokenizer, prompt, strlen(prompt), 0, &before));
    assert_ok(ctx, nbl_tokenizer_encode(tokenizer, written, strlen(written), 0, &ids));
    cli_harmony_begin(&h, &before);
    cli_growing_add(&said, (nbl_string){"", 0});
    assert_int_equal(h.on, on);
    for (int64_t i = 0; i < ids.count; i++) {
        nbl_string text = nbl_tokenizer_token(tokenizer, ids.ids[i]);
        cli_harmony_part part = cli_harmony_token(&h, ids.ids[i]);
        if (ids.ids[i] <= 6) continue; /* special tokens have no text */
        if (part == CLI_HARMONY_HEADER) cli_harmony_header(&h, text);
        else cli_growing_add(part == CLI_HARMONY_ANSWER ? &said : &h.thinking, text);
    }
    assert_string_equal(said.text, answer);
    assert_string_equal(h.thinking.text, thinking);
    free(said.text);
    cli_harmony_close(&h);
    nbl_ids_free(ctx, &before);
    nbl_ids_free(ctx, &ids);
}

#define PROMPT "<|start|> user <|message|> two <|end|> <|start|> assistant"

static void the_answer_is_the_channel_final(void **state)
{
    (void)state;
    expect(PROMPT,
           "<|channel|> analysis <|message|> one two <|end|> <|start|> assistant <|channel|> final "
           "<|message|> three",
           true, "three", "onetwo");
    expect(PROMPT, "<|channel|> final <|message|> three two", true, "threetwo", "");
    expect(PROMPT, "<|channel|> analysis <|message|> one", true, "", "one"); /* cut while it thinks */
    expect(PROMPT, "<|channel|> analysis", true, "", "");
    expect(PROMPT " <|channel|> final <|message|>", "three", true, "three",
           ""); /* a prompt that begins the answer */
    expect(PROMPT " <|channel|>", "analysis <|message|> one", true, "", "one");
    expect(PROMPT, "<|message|> three", true, "three", ""); /* no channel */
    expect(PROMPT, "<|channel|> analysis <|message|> one <|channel|> final <|message|> three", true, "three",
           "one");
}

static void what_is_for_a_tool_is_no_answer(void **state)
{
    (void)state;
    expect(PROMPT, "<|channel|> commentary <|message|> one <|end|>", true, "one", "");
    expect(PROMPT, "<|channel|> commentary to=functions.f <|constrain|> json <|message|> two", true, "",
           "two");
    expect(PROMPT, "to=functions.f <|channel|> commentary <|constrain|> json <|message|> two", true, "",
           "two");
}

static void other_prompts_are_left_alone(void **state)
{
    (void)state;
    expect("one two", "<|channel|> analysis three", false, "analysisthree", "");
    expect("<|start|> user <|message|> one <|end|>", "three", false, "three", "");
}

static void ends_are_those_of_the_format(void **state)
{
    (void)state;
    int32_t ids[CLI_HARMONY_ENDS];
    assert_int_equal(cli_harmony_ends(tokenizer, ids), 2);
    assert_int_equal(ids[0], 5);
    assert_int_equal(ids[1], 6);
    static const char plain[] =
        "{\"version\": \"1.0\", \"model\": {\"type\": \"WordLevel\", \"unk_token\": \"?\", \"vocab\": "
        "{\"?\": 0, \"<|return|>\": 1, \"<|call|>\": 2}}}";
    nbl_tokenizer *other;
    assert_ok(ctx, nbl_tokenizer_parse(ctx, "t.json", plain, strlen(plain), &other));
    assert_int_equal(cli_harmony_ends(other, ids), 0);
    nbl_tokenizer_close(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_answer_is_the_channel_final), cmocka_unit_test(what_is_for_a_tool_is_no_answer),
        cmocka_unit_test(other_prompts_are_left_alone), cmocka_unit_test(ends_are_those_of_the_format)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
