/* test_data_formats.c - from rows to examples: formats, chats and their masks, and what is wrong with them. */
#include "tiny_data.h"

static void alpaca_trains_the_response_and_its_end(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("p.jsonl", "{\"instruction\": \"Do.\", \"output\": \"Done.\"}\n"
                   "{\"instruction\": \"Do.\", \"input\": \"it\", \"output\": \"Yes<|im_end|>\"}\n");
    prepare(&f, ctx, "p.jsonl", NBL_DATA_ALPACA);
    open_data(&f);
    expect(
        &f, 0,
        "^Below is an instruction that describes a task. Write a response that appropriately completes the "
        "request.\n\n### Instruction:\nDo.\n\n### Response:\n[Done.>]");
    expect(
        &f, 1,
        "^Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.\n\n### Instruction:\nDo.\n\n### "
        "Input:\nit\n\n### Response:\n[Yes>]");
    close_data(&f);
    f.config.train_on_inputs = true;
    open_data(&f);
    assert_int_equal(shown(&f, 0)[0], '[');
    assert_int_equal(nbl__data_count(f.data).trained_tokens, nbl__data_count(f.data).tokens - 2);
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void special_tokens_of_the_run_replace_the_models(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("t.txt", "x\n");
    prepare(&f, ctx, "t.txt", NBL_DATA_COMPLETION);
    f.config.eos_token = "</s>";
    f.config.bos_token = "<|im_start|>";
    open_data(&f);
    expect(&f, 0, "[<x$]");
    close_data(&f);
    f.config.eos_token = "<absent>";
    refuse(&f, "\"<absent>\" is no token");
    nbl_context_destroy(ctx);
}

static void completion_is_cut_into_pieces(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("t.txt", "abcdefgh\nxyz\n1234567\n");
    prepare(&f, ctx, "t.txt", NBL_DATA_COMPLETION);
    f.config.sequence_len = 4;
    open_data(&f);
    nbl__data_counts counts = nbl__data_count(f.data);
    assert_int_equal(counts.examples, 6); /* ^abc defg h>, ^xyz (and > alone), ^123 4567 (and > alone) */
    assert_int_equal(counts.dropped, 2);
    assert_int_equal(counts.tokens, 22);
    assert_int_equal(counts.trained_tokens, 16);
    expect(&f, 1, "[defg]");
    expect(&f, 2, "[h>]");
    expect(&f, 3, "[^xyz]");
    expect(&f, 0, "[^abc]");
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void segments_are_trained_where_their_label_says(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("s.jsonl",
        "{\"segments\": [{\"label\": false, \"text\": \"q<s>\"}, {\"label\": true, \"text\": \"a</s>\"}, "
        "{\"label\": false, \"text\": \"!\"}]}\n");
    prepare(&f, ctx, "s.jsonl", NBL_DATA_SEGMENTS);
    open_data(&f);
    expect(&f, 0, "q^[a$]!");
    close_data(&f);
    put("s.jsonl", "{\"segments\": [{\"label\": 1, \"text\": \"q\"}]}\n");
    refuse(&f, "line 1: segment 1: \"label\" is neither true nor false");
    nbl_context_destroy(ctx);
}

static void ids_are_checked_against_the_vocabulary(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    static const struct {
        const char *row, *says;
    } bad[] = {
        {"{\"input_ids\": [1, 2, 3], \"labels\": [1, 2]}", "\"input_ids\" has 3 entries"},
        {"{\"input_ids\": [1, 260], \"labels\": [1, 2]}", "entry 2 is 260"},
        {"{\"input_ids\": [1, -1], \"labels\": [1, 2]}", "entry 2 is -1"},
        {"{\"input_ids\": [1, 1], \"labels\": [1, -1]}", "\"labels\": entry 2 is -1"},
        {"{\"input_ids\": [], \"labels\": []}", "\"input_ids\" is empty"},
        {"{\"input_ids\": [\"a\"], \"labels\": [1]}", "entry 1 is not an integer"},
        {"{\"input_ids\": [1, 2]}", "\"labels\" is missing"},
        {"{\"input_ids\": [1, 2], \"labels\": [1, 2], \"attention_mask\": [1, 0]}", "without padding"}};
    prepare(&f, ctx, "i.jsonl", NBL_DATA_TOKENS);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"input_ids\": [1, 2], \"labels\": [1, 2]}\n%s\n", bad[i].row);
        put("i.jsonl", text);
        refuse(&f, "i.jsonl: line 2: ");
        assert_non_null(strstr(nbl_error_message(ctx), bad[i].says));
    }
    put("i.jsonl",
        "{\"input_ids\": [97, 98, 99], \"labels\": [97, -100, 99]}\n"
        "{\"input_ids\": [97, 98], \"labels\": [5, 6]}\n{\"input_ids\": [97, 98], \"labels\": [97, -100]}\n");
    open_data(&f);
    nbl__data_counts counts = nbl__data_count(f.data);
    assert_int_equal(counts.examples, 2);
    assert_int_equal(counts.trained_tokens, 2);
    assert_int_equal(counts.dropped, 1); /* only its first label is set, and nothing predicts that */
    expect(&f, 0, "[a]b[c]");
    nbl__example e;
    assert_ok(ctx, nbl__data_example(f.data, 1, &e));
    assert_int_equal(e.labels[1], 6);
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void turns_and_their_ends_are_trained_by_train_on_eos(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    static const char *const want[] = {
        [NBL_EOS_TURN] =
            "<system\nuser>\n<user\nhi>\n<assistant\n[assistant>]\n<user\nhi>\n<assistant\n[h\xc3\xa9>]\n",
        [NBL_EOS_ALL] = "<system\nuser[>]\n<user\nhi[>]\n<assistant\n[assistant>]\n<user\nhi[>]\n<"
                        "assistant\n[h\xc3\xa9>]\n",
        [NBL_EOS_LAST] =
            "<system\nuser>\n<user\nhi>\n<assistant\n[assistant]>\n<user\nhi>\n<assistant\n[h\xc3\xa9>]\n",
        [NBL_EOS_NONE] =
            "<system\nuser>\n<user\nhi>\n<assistant\n[assistant]>\n<user\nhi>\n<assistant\n[h\xc3\xa9]>\n"};
    put("k.jsonl", talk);
    prepare(&f, ctx, "k.jsonl", NBL_DATA_CHAT);
    for (int eos = NBL_EOS_TURN; eos <= NBL_EOS_NONE; eos++) {
        f.dataset.train_on_eos = (nbl__train_on_eos)eos;
        open_data(&f);
        expect(&f, 0, want[eos]);
        close_data(&f);
    }
    const char *const roles[] = {"human", "system"};
    f.dataset.roles_to_train = (nbl__name_list){roles, 2};
    f.dataset.train_on_eos = NBL_EOS_TURN;
    open_data(&f);
    expect(&f, 0,
           "<system\n[user>]\n<user\n[hi>]\n<assistant\nassistant>\n<user\n[hi>]\n<assistant\nh\xc3\xa9>\n");
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void generation_marks_say_what_is_trained(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    use_template(MARKED);
    put("k.jsonl", talk);
    prepare(&f, ctx, "k.jsonl", NBL_DATA_CHAT);
    open_data(&f);
    expect(&f, 0, "<system\nuser><user\nhi><assistant\n[assistant>]<user\nhi><assistant\n[h\xc3\xa9>]");
    close_data(&f);
    f.dataset.train_on_eos = NBL_EOS_NONE; /* which marks cannot say: by turns */
    open_data(&f);
    expect(&f, 0, "<system\nuser><user\nhi><assistant\n[assistant]><user\nhi><assistant\n[h\xc3\xa9]>");
    close_data(&f);
    use_template(TURNS);
    nbl_context_destroy(ctx);
}

static void spaces_that_a_marked_token_takes_are_its_own(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put_tokenizer_with(true);
    use_template(
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + ':' }}{% generation %}{{ m['content'] + "
        "'<|im_end|>\\n\\n' }}{% endgeneration %}{{ '<|im_start|>=<|im_end|> \\n' }}{% endfor %}");
    put("k.jsonl", talk);
    prepare(&f, ctx, "k.jsonl", NBL_DATA_CHAT);
    open_data(&f);
    expect(
        &f, 0,
        "<system:[user>]<=><user:[hi>]<=><assistant:[assistant>]<=><user:[hi>]<=><assistant:[h\xc3\xa9>]<=>");
    close_data(&f);
    use_template(
        "{% for m in messages %}{{ m['role'] + ':' }}{% generation %}{{ m['content'] + '<|im_end|>' }}"
        "{% endgeneration %}{{ ' \\n' }}{% endfor %}");
    open_data(&f);
    expect(&f, 0, "system:[user>]user:[hi>]assistant:[assistant>]user:[hi>]assistant:[h\xc3\xa9>]");
    close_data(&f);
    put_tokenizer();
    use_template(TURNS);
    nbl_context_destroy(ctx);
}

static void messages_that_a_template_rewrites_are_found(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    use_template(TRIMMED);
    put("k.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \" q \"}, {\"role\": \"assistant\", \"content\": "
        "\" yes \"}]}\n");
    prepare(&f, ctx, "k.jsonl", NBL_DATA_CHAT);
    open_data(&f);
    expect(&f, 0, "<user:Q><assistant:[YES>]");
    close_data(&f);
    use_template(TURNS);
    nbl_context_destroy(ctx);
}

static void sharegpt_names_and_the_built_in_template_work(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("g.jsonl", "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"gpt\", "
                   "\"value\": \"a\"}]}\n");
    prepare(&f, ctx, "g.jsonl", NBL_DATA_CHAT);
    refuse(&f, "line 1: the field \"messages\" is missing");
    assert_non_null(strstr(nbl_error_hint(ctx), "field_messages"));
    f.dataset.field_messages = "conversations";
    f.dataset.property_role = "from";
    f.dataset.property_content = "value";
    f.config.chat_template = "chatml";
    open_data(&f);
    expect(&f, 0, "<user\nq>\n<assistant\n[a>]\n");
    close_data(&f);
    f.config
        .chat_template = "{% for m in messages %}{{ m.role }}={{ m.content }};{{ eos_token }}{% endfor %}";
    f.config.eos_token = "</s>";
    open_data(&f);
    expect(&f, 0, "user=q;$assistant=[a];[$]");
    close_data(&f);
    f.config.chat_template = "llama9";
    refuse(&f, "\"llama9\" is not known");
    f.config.chat_template = "{{ raise_exception('no, thanks') }}";
    refuse(&f, "no, thanks");
    nbl_context_destroy(ctx);
}

static void templates_by_name_and_chats_without_their_system(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("k.jsonl",
        "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": "
        "\" q \"}, {\"role\": \"assistant\", \"content\": \"a\"}]}\n");
    prepare(&f, ctx, "k.jsonl", NBL_DATA_CHAT);
    f.dataset.drop_system_message = true;
    f.config.chat_template = "chatml";
    open_data(&f);
    expect(&f, 0, "<user\n q >\n<assistant\n[a>]\n");
    close_data(&f);
    f.config.chat_template = "llama3";
    open_data(&f);
    expect(&f, 0,
           "^<|start_header_id|>user<|end_header_id|>\n\nq<|eot_id|><|start_header_id|>assistant<|end_header_"
           "id|>\n\n"
           "[a]<|eot_id|>");
    close_data(&f);
    f.config.chat_template = "gemma"; /* has no system role */
    open_data(&f);
    close_data(&f);
    f.dataset.drop_system_message = false;
    refuse(&f, "no system role");
    put("k.jsonl", "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}]}\n");
    f.dataset.drop_system_message = true;
    refuse(&f, "nothing but a system message");
    nbl_context_destroy(ctx);
}

#define CALLS                                                                                                \
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + ':' }}{% if m.content is defined %}{{ "          \
    "m.content }}{% else %}-{% endif %}{% for c in m.tool_calls or [] %}{{ c.function.name }}("              \
    "{{ c.function.arguments | tojson }}){% endfor %}{{ '<|im_end|>' }}{% endfor %}"

static void train_on_inputs_trains_every_role_and_segment(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("k.jsonl", talk);
    prepare(&f, ctx, "k.jsonl", NBL_DATA_CHAT);
    f.config.train_on_inputs = true;
    open_data(&f);
    expect(&f, 0,
           "<system\n[user>]\n<user\n[hi>]\n<assistant\n[assistant>]\n<user\n[hi>]\n<assistant\n["
           "h\xc3\xa9>]\n");
    close_data(&f);
    put("s.jsonl",
        "{\"segments\": [{\"label\": false, \"text\": \"q\"}, {\"label\": true, \"text\": \"a\"}]}\n");
    prepare(&f, ctx, "s.jsonl", NBL_DATA_SEGMENTS);
    f.config.train_on_inputs = true;
    open_data(&f);
    expect(&f, 0, "[qa]");
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void an_empty_answer_trains_nothing(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("e.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"\"}, {\"role\": \"user\", "
                   "\"content\": \"q\"}, "
                   "{\"role\": \"assistant\", \"content\": \"a\"}]}\n");
    prepare(&f, ctx, "e.jsonl", NBL_DATA_CHAT);
    open_data(&f);
    expect(&f, 0, "<assistant\n>\n<user\nq>\n<assistant\n[a>]\n");
    close_data(&f);
    f.dataset.train_on_eos = NBL_EOS_ALL;
    open_data(&f);
    expect(&f, 0, "<assistant\n>\n<user\nq[>]\n<assistant\n[a>]\n");
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void the_last_end_is_that_of_the_last_trained_turn(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("e.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}, {\"role\": \"user\", "
                   "\"content\": \"q\"}]}\n");
    prepare(&f, ctx, "e.jsonl", NBL_DATA_CHAT);
    f.dataset.train_on_eos = NBL_EOS_LAST;
    open_data(&f);
    expect(&f, 0, "<assistant\n[a>]\n<user\nq>\n");
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void contents_that_look_like_the_dummy_are_trained_whole(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("e.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"(x)]]\"}]}\n");
    prepare(&f, ctx, "e.jsonl", NBL_DATA_CHAT);
    open_data(&f);
    expect(&f, 0, "<assistant\n[(x)]]>]\n");
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void tool_calls_are_read_as_axolotl_reads_them(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    use_template(CALLS);
    put("c.jsonl",
        "{\"system\": \"S\", \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", "
        "\"text\": "
        "\"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}, {\"role\": \"assistant\", \"content\": null, "
        "\"tool_calls\": [{\"id\": null, \"function\": {\"name\": \"f\", \"arguments\": "
        "\"{\\\"x\\\": 1}\"}}]}, {\"role\": \"tool\", \"content\": \"1\"}, {\"role\": \"assistant\", "
        "\"content\": \"ok\"}]}\n");
    prepare(&f, ctx, "c.jsonl", NBL_DATA_CHAT);
    open_data(&f);
    expect(&f, 0, "<system:S><user:ab><assistant:[-f({\"x\": 1})>]<tool:1><assistant:[ok>]");
    close_data(&f);
    use_template(TURNS); /* which shows no calls; and this message has a content to show */
    put("c.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"c\", \"tool_calls\": "
                   "[{\"function\": {\"name\": \"f\", \"arguments\": {}}}]}]}\n");
    refuse(&f, "line 1: the chat template does not render the tool calls");
    put("c.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"c\", \"tool_calls\": "
                   "[{\"function\": {\"name\": \"f\", \"arguments\": \"{x\"}}]}]}\n");
    refuse(&f, "line 1: the arguments of the function \"f\" are no JSON");
    put("c.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}\n");
    refuse(&f, "message 1: part 1 is of the type \"image\"");
    nbl_context_destroy(ctx);
}

/* GPT-OSS's template renders the thinking of the last turn alone. */
static void thinking_that_the_template_leaves_out_is_refused(void **state)
{
    (void)state;
    static const char thinks[] = "{\"role\": \"assistant\", \"thinking\": \"hm\", \"content\": \"a\"}",
                      other[] = "{\"role\": \"assistant\", \"content\": \"b\"}",
                      user[] = "{\"role\": \"user\", \"content\": \"q\"}";
    char rows[512];
    nbl_context *ctx = new_context();
    fixture f;
    use_template("{% for m in messages %}{{ '<|im_start|>' + m.role + ':' }}"
                 "{% if m.role == 'assistant' and loop.last and m.thinking %}"
                 "{{ '<|channel|>analysis<|message|>' + m.thinking + '<|channel|>final:' }}{% endif %}"
                 "{{ m.content + '<|im_end|>' }}{% endfor %}");
    (void)snprintf(rows, sizeof rows, "{\"messages\": [%s, %s]}\n{\"messages\": [%s, %s, %s, %s]}\n", user,
                   thinks, user, other, user, thinks);
    put("t.jsonl", rows);
    prepare(&f, ctx, "t.jsonl", NBL_DATA_CHAT);
    open_data(&f);
    expect(&f, 0, "<user:q><assistant:[<|channel|>analysis<|message|>hm<|channel|>final:a>]");
    expect(&f, 1,
           "<user:q><assistant:[b>]<user:q><assistant:[<|channel|>analysis<|message|>hm<|channel|>final:a>]");
    close_data(&f);
    (void)snprintf(rows, sizeof rows, "{\"messages\": [%s, %s, %s, %s]}\n", user, thinks, user, other);
    put("t.jsonl", rows);
    refuse(&f, "line 1: message 2: the chat template leaves out its thinking");
    nbl_context_destroy(ctx);
}

static void count_ends(void *user, nbl_log_level level, const char *line)
{
    *(int *)user += level == NBL_LOG_WARNING && strstr(line, "no end of a turn is trained");
}

static void eot_tokens_end_turns_beside_eos(void **state)
{
    (void)state;
    int warnings = 0;
    nbl_context *ctx;
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .log = count_ends,
                                   .log_user = &warnings};
    assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
    fixture f;
    static const char *const tokens[] = {"</s>"}, *const two[] = {"ab"},
                             *const eos[] = {"<|im_end|>", "</s>"};
    use_template("{% for m in messages %}{{ m.role + ':' + m.content + '</s>' + eos_token }}{% endfor %}");
    put("k.jsonl", talk);
    prepare(&f, ctx, "k.jsonl", NBL_DATA_CHAT);
    f.config.eot_tokens = (nbl__name_list){tokens, 1};
    f.dataset.train_on_eos = NBL_EOS_NONE;
    f.dataset.train_on_eot = 1 + NBL_EOS_TURN;
    open_data(&f);
    expect(&f, 0, "system:user$>user:hi$>assistant:[assistant$]>user:hi$>assistant:[h\xc3\xa9$]>");
    close_data(&f);
    assert_int_equal(warnings, 0);
    f.config.eot_tokens = (nbl__name_list){eos, 1}; /* which stands more than three tokens behind */
    f.dataset.train_on_eos = NBL_EOS_TURN;
    f.config.chat_template = "{% for m in messages %}{{ m.content + '-----' + eos_token }}{% endfor %}";
    open_data(&f);
    assert_int_equal(warnings, 1);
    close_data(&f);
    f.config.chat_template = NULL;
    f.dataset.train_on_eos = NBL_EOS_NONE;
    f.config.eot_tokens = (nbl__name_list){eos, 2};
    refuse(&f, "train_on_eos and train_on_eot");
    f.config.eot_tokens = (nbl__name_list){two, 1};
    refuse(&f, "eot_tokens: \"ab\" is 2 tokens");
    use_template(TURNS);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alpaca_trains_the_response_and_its_end),
        cmocka_unit_test(special_tokens_of_the_run_replace_the_models),
        cmocka_unit_test(completion_is_cut_into_pieces),
        cmocka_unit_test(segments_are_trained_where_their_label_says),
        cmocka_unit_test(ids_are_checked_against_the_vocabulary),
        cmocka_unit_test(turns_and_their_ends_are_trained_by_train_on_eos),
        cmocka_unit_test(generation_marks_say_what_is_trained),
        cmocka_unit_test(spaces_that_a_marked_token_takes_are_its_own),
        cmocka_unit_test(messages_that_a_template_rewrites_are_found),
        cmocka_unit_test(sharegpt_names_and_the_built_in_template_work),
        cmocka_unit_test(templates_by_name_and_chats_without_their_system),
        cmocka_unit_test(train_on_inputs_trains_every_role_and_segment),
        cmocka_unit_test(an_empty_answer_trains_nothing),
        cmocka_unit_test(the_last_end_is_that_of_the_last_trained_turn),
        cmocka_unit_test(contents_that_look_like_the_dummy_are_trained_whole),
        cmocka_unit_test(thinking_that_the_template_leaves_out_is_refused),
        cmocka_unit_test(tool_calls_are_read_as_axolotl_reads_them),
        cmocka_unit_test(eot_tokens_end_turns_beside_eos),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
