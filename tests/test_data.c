/* test_data.c - the data of a run: rows of files, formats and their masks, packing, epochs, and memory that runs out.
 *
 * The model of these tests has one token per byte (ids 0 ... 255), and <s> 256, </s> 257, <|im_start|> 258,
 * <|im_end|> 259. An example is written as text with what is trained in [ ]; the special tokens as ^ $ < >. */
#include "support.h"

#include "base/alloc.h"
#include "train/data_parts.h"
#include "train/data_split.h"

#define TURNS                                                                                                \
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\\\n' + m['content'] + '<|im_end|>' + "        \
    "'\\\\n' "                                                                                               \
    "}}{% endfor %}"
#define MARKED                                                                                               \
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\\\n' }}{% if m['role'] == 'assistant' "       \
    "%}{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m['content'] + "     \
    "'<|im_end|>' }}{% endif %}{% endfor %}"
#define TRIMMED                                                                                              \
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + ':' + m['content'] | trim | upper + "            \
    "'<|im_end|>' }}{% endfor %}"

static char folder[64]; /* of the model and the data */

static void put(const char *name, const char *text)
{
    write_file(folder, name, text, strlen(text));
}

static void put_tokenizer(void)
{
    char text[16384];
    size_t n = (size_t)sprintf(text, "{\"version\": \"1.0\", \"added_tokens\": [");
    const char *special[] = {"<s>", "</s>", "<|im_start|>", "<|im_end|>"};
    for (int i = 0; i < 4; i++)
        n += (size_t)sprintf(text + n,
                             "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
                             "\"rstrip\": false, \"normalized\": false, \"special\": true}",
                             i ? ", " : "", 256 + i, special[i]);
    n += (size_t)sprintf(
        text + n,
        "], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
        "\"trim_offsets\": true, \"use_regex\": false}, \"post_processor\": {\"type\": "
        "\"TemplateProcessing\", "
        "\"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", "
        "\"type_id\": 0}}], \"pair\": [], \"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [256], "
        "\"tokens\": [\"<s>\"]}}}, \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
        "\"trim_offsets\": true, \"use_regex\": true}, \"truncation\": {\"direction\": \"Right\", "
        "\"max_length\": 5, \"strategy\": \"LongestFirst\", \"stride\": 0}, \"model\": {\"type\": \"BPE\", "
        "\"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, "
        "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"merges\": [], "
        "\"vocab\": {");
    for (int b = 0, other = 0; b < 256; b++) {
        bool shown = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        n += (size_t)sprintf(text + n, "%s\"\\u%04x\": %d", b ? ", " : "", shown ? b : 256 + other++, b);
    }
    sprintf(text + n, "}}}");
    put("tokenizer.json", text);
}

static void use_template(const char *template)
{
    char text[2048];
    snprintf(text, sizeof text,
             "{\"bos_token\": \"<s>\", \"eos_token\": \"<|im_end|>\", \"chat_template\": \"%s\"}", template);
    put("tokenizer_config.json", text);
}

static int set_up(void **state)
{
    (void)state;
    make_temp(folder);
    put_tokenizer();
    use_template(TURNS);
    put("config.json", "{\"vocab_size\": 260}");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_tree(folder);
    return 0;
}

/* ---- a run ---- */

typedef struct fixture {
    nbl_context *ctx;
    nbl__dataset_config dataset;
    nbl__run_config config;
    char path[256];
    nbl__data *data;
} fixture;

static void prepare(fixture *f, nbl_context *ctx, const char *name, nbl__data_type type)
{
    *f = (fixture){.ctx = ctx};
    snprintf(f->path, sizeof f->path, "%s/%s", folder, name);
    f->dataset = (nbl__dataset_config){.path = f->path,
                                       .type = type,
                                       .field_messages = "messages",
                                       .field_text = "text",
                                       .property_role = "role",
                                       .property_content = "content"};
    f->config = (nbl__run_config){.file = "run.yml",
                                  .base_model = folder,
                                  .datasets = &f->dataset,
                                  .dataset_count = 1,
                                  .sequence_len = 512,
                                  .micro_batch_size = 2,
                                  .shuffle = true,
                                  .seed = 42};
}

static void open_data(fixture *f)
{
    assert_ok(f->ctx, nbl__data_open(f->ctx, &f->config, 260, &f->data));
}

static void refuse(fixture *f, const char *says)
{
    assert_int_not_equal(nbl__data_open(f->ctx, &f->config, 260, &f->data), NBL_OK);
    assert_null(f->data);
    if (strstr(nbl_error_message(f->ctx), says) == NULL)
        fail_msg("expected '%s', was told: %s", says, nbl_error_message(f->ctx));
}

static void close_data(fixture *f)
{
    nbl__data_close(f->data);
    f->data = NULL;
}

static const char *shown(fixture *f, int64_t index)
{
    static char text[4096];
    char *at = text;
    bool inside = false;
    nbl__example e;
    assert_ok(f->ctx, nbl__data_example(f->data, index, &e));
    for (int64_t i = 0; i < e.count; i++) {
        bool trained = e.labels[i] != -100;
        assert_true(!trained || e.labels[i] == e.ids[i]);
        if (trained != inside) *at++ = trained ? '[' : ']';
        inside = trained;
        *at++ = e.ids[i] < 256 ? (char)e.ids[i] : "^$<>"[e.ids[i] - 256];
    }
    if (inside) *at++ = ']';
    *at = '\0';
    return text;
}

static void expect(fixture *f, int64_t index, const char *want)
{
    assert_string_equal(shown(f, index), want);
}

/* ---- rows ---- */

static void rows_come_from_lines_with_marks_blanks_and_no_last_newline(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("a.jsonl",
        "\xef\xbb\xbf{\"text\": \"one\"}\r\n\n  \t\r\n{\"text\": \"tw\\u00f6\", \"more\": [1, {}]}\n"
        "{\"text\": \"three\"}");
    prepare(&f, ctx, "a.jsonl", NBL_DATA_COMPLETION);
    open_data(&f);
    assert_int_equal(nbl__data_count(f.data).examples, 3);
    expect(&f, 0, "[^one>]");
    expect(&f, 1, "[^tw\xc3\xb6>]");
    expect(&f, 2, "[^three>]");
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void a_json_list_is_rows(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("a.json", "\n[\n {\"text\": \"a]}\\\"[\"},\n {\"text\": \"b\",\n  \"x\": [[{\"y\": \"]\"}]]} ]\n");
    prepare(&f, ctx, "a.json", NBL_DATA_COMPLETION);
    open_data(&f);
    assert_int_equal(nbl__data_count(f.data).examples, 2);
    expect(&f, 0, "[^a]}\"[>]");
    expect(&f, 1, "[^b>]");
    close_data(&f);
    put("a.json", "{\"text\": \"lines\"}\n{\"text\": \"here\"}\n"); /* told by the first character */
    open_data(&f);
    expect(&f, 1, "[^here>]");
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void csv_has_quotes_commas_and_line_ends_in_fields(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("a.csv", "id,\"text\",z\r\n1,plain,\r\n\r\n2,\"a, \"\"b\"\"\nc\r\nd\",x\n3,it's \"so\",\"\"");
    prepare(&f, ctx, "a.csv", NBL_DATA_COMPLETION);
    open_data(&f);
    assert_int_equal(nbl__data_count(f.data).examples, 3);
    expect(&f, 0, "[^plain>]");
    expect(&f, 1, "[^a, \"b\"\nc\r\nd>]");
    expect(&f, 2, "[^it's \"so\">]");
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void every_line_of_a_text_file_is_a_row(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("a.txt", "first {line}\r\n\n second\n");
    prepare(&f, ctx, "a.txt", NBL_DATA_COMPLETION);
    open_data(&f);
    expect(&f, 0, "[^first {line}>]");
    expect(&f, 1, "[^ second>]");
    assert_int_equal(nbl__data_count(f.data).examples, 2);
    close_data(&f);
    f.dataset.type = NBL_DATA_ALPACA;
    refuse(&f, "completion");
    nbl_context_destroy(ctx);
}

static void what_is_wrong_with_a_file_is_said_with_its_line(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    static const struct {
        const char *name, *text, *says;
    } cases[] = {
        {"b.jsonl", "", "b.jsonl: the file is empty"},
        {"b.jsonl", "\n \n", "b.jsonl: no row"},
        {"b.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"a\"\n", "b.jsonl: line 3, column 13"},
        {"b.jsonl", "{\"text\": \"a\"}\n[1, 2]\n", "b.jsonl: line 2: JSON, but not an object"},
        {"b.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n",
         "b.jsonl: line 2, column 11: not valid JSON: not UTF-8"},
        {"b.jsonl", "{\"text\": \"a\"}\n{\"tex\": \"a\"}\n",
         "b.jsonl: line 2: the field \"text\" is missing"},
        {"b.jsonl", "{\"text\": 3}\n", "b.jsonl: line 1: the field \"text\" is not a text"},
        {"b.jsonl", "{\"a\": 1, \"a\": 2}\n",
         "b.jsonl: line 1, column 17: not valid JSON: a key is there twice"},
        {"b.json", "[\n{\"text\": \"a\"},\n{\"text\": 1}\n]", "b.json: line 3: the field"},
        {"b.json", "[\n{\"text\": \"a\"},\n{\"text\": \n1x}]", "b.json: line 4, column 2: not valid JSON"},
        {"b.json", "[\n{\"text\": \"a\"}\n{\"text\": \"b\"}]", "b.json: line 3, column 1"},
        {"b.json", "[\n{\"text\": \"a\"},\n", "b.json: line 3: "},
        {"b.json", "[{\"text\": \"a\"}]\nx", "b.json: line 2: something follows"},
        {"b.json", "[{\"text\": \"a\"},,{\"text\": \"a\"}]", "b.json: line 1: a row was expected"},
        {"b.csv", "text,b\n1\n", "b.csv: line 2: 1 fields, the header has 2"},
        {"b.csv", "text,b\na,\"x\ny", "b.csv: line 2: a quoted field without end"},
        {"b.csv", "text,text\n", "b.csv: line 1: the column \"text\" is there twice"},
        {"b.csv", "text\n\"a\nb\"\n\xfe\n", "b.csv: line 4, byte 1: not UTF-8"},
        {"b.txt", "ok\n\xc3(\n", "b.txt: line 2, byte 1: not UTF-8"},
        {"b.parquet", "PAR1", "b.parquet: the form of the data is not known"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        put(cases[i].name, cases[i].text);
        prepare(&f, ctx, cases[i].name, NBL_DATA_COMPLETION);
        refuse(&f, cases[i].says);
    }
    fixture f;
    prepare(&f, ctx, "absent.jsonl", NBL_DATA_COMPLETION);
    refuse(&f, "absent.jsonl");
    nbl_context_destroy(ctx);
}

static void bad_rows_are_dropped_and_counted_when_the_run_says_so(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("c.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
                   "\"content\": \"a\"}]}\n"
                   "{\"messages\": []}\n{}\nnonsense\n{\"messages\": \"hello\"}\n"
                   "{\"messages\": [{\"role\": \"user\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n"
                   "{\"messages\": [{\"content\": \"x\"}]}\n{\"messages\": [7]}\n"
                   "{\"messages\": [{\"role\": \"assistant\", \"content\": \"last\"}]}\n");
    prepare(&f, ctx, "c.jsonl", NBL_DATA_CHAT);
    refuse(&f, "c.jsonl: line 2: the field \"messages\" is empty");
    f.config.skip_bad_rows = true;
    open_data(&f);
    assert_int_equal(nbl__data_count(f.data).examples, 2);
    assert_int_equal(nbl__data_count(f.data).dropped, 7);
    expect(&f, 1, "<assistant\n[last>]\n");
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void a_split_selects_rows_or_percent(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    static const struct {
        const char *split;
        int64_t first, last;
    } good[] = {{NULL, 0, 15},          {"train", 0, 15},        {"train[:4]", 0, 4},
                {"train[4:]", 4, 15},   {"train[-3:]", 12, 15},  {"train[10%:50%]", 2, 8},
                {"train[:200]", 0, 15}, {"train[-20%:]", 12, 15}};
    static const char *const bad[] = {"test",       "train[",       "train[1]",  "train[a:]",
                                      "train[5:2]", "train[:101%]", "train[:3]x"};
    int64_t first, last;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(ctx, nbl__data_split(ctx, "f", good[i].split, 15, &first, &last));
        assert_int_equal(first, good[i].first);
        assert_int_equal(last, good[i].last);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(nbl__data_split(ctx, "f", bad[i], 15, &first, &last), NBL_ERROR_ARGUMENT);
    fixture f;
    put("s.txt", "a\nb\nc\nd\n");
    prepare(&f, ctx, "s.txt", NBL_DATA_COMPLETION);
    f.dataset.split = "train[25%:-1]";
    open_data(&f);
    assert_int_equal(nbl__data_count(f.data).examples, 2);
    expect(&f, 0, "[^b>]");
    close_data(&f);
    nbl_context_destroy(ctx);
}

/* ---- formats ---- */

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

static const char talk[] = "{\"messages\": [{\"role\": \"system\", \"content\": \"user\"}, {\"role\": "
                           "\"user\", \"content\": \"hi\"}, "
                           "{\"role\": \"assistant\", \"content\": \"assistant\"}, {\"role\": \"user\", "
                           "\"content\": \"hi\"}, {\"role\": "
                           "\"assistant\", \"content\": \"h\\u00e9\"}]}\n";

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

static void long_rows_are_dropped_cut_or_refused(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("l.jsonl", "{\"segments\": [{\"label\": true, \"text\": \"123456\"}]}\n{\"segments\": [{\"label\": "
                   "true, \"text\": "
                   "\"1234\"}]}\n{\"segments\": [{\"label\": false, \"text\": \"1234\"}, {\"label\": true, "
                   "\"text\": \"5\"}]}\n");
    prepare(&f, ctx, "l.jsonl", NBL_DATA_SEGMENTS);
    f.config.sequence_len = 4;
    open_data(&f);
    nbl__data_counts counts = nbl__data_count(f.data);
    assert_int_equal(counts.examples, 1);
    assert_int_equal(counts.dropped, 2);
    close_data(&f);
    f.config.excess = NBL_EXCESS_TRUNCATE;
    open_data(&f);
    counts = nbl__data_count(f.data);
    assert_int_equal(counts.examples, 2);
    assert_int_equal(counts.truncated, 1);
    assert_int_equal(counts.dropped, 1); /* what was trained of it was cut off */
    expect(&f, 0, "[1234]");
    close_data(&f);
    f.config.excess = NBL_EXCESS_RAISE;
    refuse(&f, "l.jsonl: line 1: 6 tokens, sequence_len is 4");
    nbl_context_destroy(ctx);
}

/* ---- epochs ---- */

enum { ROWS = 200 };

/* Rows of uneven length, told apart by their first byte. */
static void prepare_many(fixture *f, nbl_context *ctx)
{
    FILE *file = fopen(in_folder(folder, "m.jsonl"), "w");
    uint32_t random = 1;
    assert_non_null(file);
    for (int i = 0; i < ROWS; i++) {
        random = random * 1664525 + 1013904223;
        int length = 2 + (int)(random >> 16) % 40;
        fprintf(file, "{\"input_ids\": [%d", i);
        for (int k = 1; k < length; k++) fprintf(file, ", 7");
        fprintf(file, "], \"labels\": [7");
        for (int k = 1; k < length; k++) fprintf(file, ", 7");
        fprintf(file, "]}\n");
    }
    fclose(file);
    prepare(f, ctx, "m.jsonl", NBL_DATA_TOKENS);
    f->config.sequence_len = 64;
}

static int64_t size_of(const nbl__epoch *e)
{
    return e->starts[e->batch_count];
}

static void assert_each_once(const nbl__epoch *e, bool seen[ROWS])
{
    for (int64_t i = 0; i < size_of(e); i++) {
        assert_false(seen[e->order[i]]);
        seen[e->order[i]] = true;
    }
}

static void every_epoch_is_another_order_of_all_rows(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    nbl__epoch a, b, again;
    bool seen[ROWS] = {false}, also[ROWS] = {false};
    prepare_many(&f, ctx);
    open_data(&f);
    assert_ok(ctx, nbl__epoch_make(f.data, 3, false, &a));
    assert_ok(ctx, nbl__epoch_make(f.data, 0, false, &b));
    assert_ok(ctx, nbl__epoch_make(f.data, 3, false, &again));
    assert_int_equal(size_of(&a), ROWS);
    assert_int_equal(a.batch_count, ROWS / 2);
    assert_each_once(&a, seen);
    assert_each_once(&b, also);
    assert_memory_equal(a.order, again.order, ROWS * sizeof *a.order);
    assert_memory_not_equal(a.order, b.order, ROWS * sizeof *a.order);
    nbl__epoch_free(ctx, &a);
    nbl__epoch_free(ctx, &b);
    nbl__epoch_free(ctx, &again);
    close_data(&f);
    f.config.shuffle = false; /* the sampler shuffles all the same */
    open_data(&f);
    assert_ok(ctx, nbl__epoch_make(f.data, 0, false, &a));
    int64_t moved = 0;
    for (int64_t i = 0; i < ROWS; i++) moved += a.order[i] != i;
    assert_true(moved > ROWS / 2);
    nbl__epoch_free(ctx, &a);
    f.config.curriculum = true;
    f.config.micro_batch_size = 3;
    assert_ok(ctx, nbl__epoch_make(f.data, 5, false, &a));
    for (int64_t i = 0; i < ROWS; i++) assert_int_equal(a.order[i], i);
    assert_int_equal(a.batch_count, 67);
    assert_int_equal(a.starts[66], 198); /* the last one is short */
    nbl__epoch_free(ctx, &a);
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void rows_held_back_are_never_trained(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    static const struct {
        double size;
        int64_t held;
    } cases[] = {{0.1, 20}, {0.001, 1}, {0.333, 67}, {7, 7}, {199, 199}};
    fixture f;
    nbl__epoch train, held;
    prepare_many(&f, ctx);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        f.config.val_set_size = cases[i].size;
        open_data(&f);
        int64_t first = -1;
        for (int64_t number = 0; number < 3; number++) {
            bool seen[ROWS] = {false};
            assert_ok(ctx, nbl__epoch_make(f.data, number, false, &train));
            assert_ok(ctx, nbl__epoch_make(f.data, number, true, &held));
            assert_int_equal(size_of(&held), cases[i].held);
            assert_int_equal(size_of(&train), ROWS - cases[i].held);
            assert_each_once(&train, seen);
            assert_each_once(&held, seen);
            assert_true(first < 0 || first == held.order[0]);
            first = held.order[0];
            nbl__epoch_free(ctx, &train);
            nbl__epoch_free(ctx, &held);
        }
        close_data(&f);
    }
    f.config.val_set_size = 200;
    refuse(&f, "val_set_size");
    nbl_context_destroy(ctx);
}

static void check_bins(fixture *f, const nbl__epoch *e, int64_t count)
{
    bool seen[ROWS] = {false};
    int64_t most_tokens, most_sequences, total = 0;
    assert_int_equal(size_of(e), count);
    assert_each_once(e, seen);
    nbl__data_largest(f->data, &most_tokens, &most_sequences);
    for (int64_t b = 0; b < e->batch_count; b++) {
        int64_t tokens = 0;
        for (int64_t i = e->starts[b]; i < e->starts[b + 1]; i++)
            tokens += f->data->places[e->order[i]].tokens;
        assert_true(tokens <= f->config.micro_batch_size * f->config.sequence_len);
        assert_true(tokens <= e->most_tokens && e->starts[b + 1] - e->starts[b] <= e->most_sequences);
        total += tokens;
    }
    assert_true(e->most_tokens <= most_tokens && e->most_sequences <= most_sequences);
    int64_t ideal = nbl__ceil_div(total, f->config.micro_batch_size * f->config.sequence_len);
    assert_true(e->batch_count <= ideal + ideal / 20 + 1); /* hardly any room is lost */
}

static void packing_fills_bins_and_loses_no_row(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    nbl__epoch a, b;
    prepare_many(&f, ctx);
    f.config.sample_packing = true;
    for (int64_t micro = 1; micro <= 3; micro++) {
        f.config.micro_batch_size = micro;
        open_data(&f);
        assert_ok(ctx, nbl__epoch_make(f.data, 0, false, &a));
        assert_ok(ctx, nbl__epoch_make(f.data, 1, false, &b));
        check_bins(&f, &a, ROWS);
        check_bins(&f, &b, ROWS);
        assert_memory_not_equal(a.order, b.order, ROWS * sizeof *a.order);
        nbl__epoch_free(ctx, &a);
        nbl__epoch_free(ctx, &b);
        close_data(&f);
    }
    f.config.curriculum = true;
    f.config.micro_batch_size = 1;
    open_data(&f);
    assert_ok(ctx, nbl__epoch_make(f.data, 4, false, &a));
    assert_int_equal(a.order[0], 0);
    for (int64_t i = 1; i < a.batch_count; i++)
        assert_true(a.order[a.starts[i - 1]] < a.order[a.starts[i]]); /* by their first examples */
    nbl__epoch_free(ctx, &a);
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void best_fit_takes_the_tightest_bin(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    const int32_t sizes[] = {70, 50, 30, 45, 5, 100, 1};
    const int64_t want[] = {0, 1, 0, 1, 1, 2, 3};
    int64_t bin[7], count;
    assert_ok(ctx, nbl__pack_best_fit(ctx, sizes, 7, 100, bin, &count));
    assert_int_equal(count, 4);
    assert_memory_equal(bin, want, sizeof want);
    /* Against plain search, with a capacity that needs three levels of bit sets. */
    enum { ITEMS = 3000, CAPACITY = 300000 };
    int32_t *many = calloc(ITEMS, sizeof *many);
    int64_t *bins = calloc(ITEMS, sizeof *bins), *room = calloc(ITEMS, sizeof *room), used = 0;
    uint32_t random = 9;
    for (int i = 0; i < ITEMS; i++) {
        random = random * 1664525 + 1013904223;
        many[i] = 1 + (int32_t)(random % (i % 3 ? 20000 : CAPACITY));
    }
    assert_ok(ctx, nbl__pack_best_fit(ctx, many, ITEMS, CAPACITY, bins, &count));
    for (int i = 0; i < ITEMS; i++) {
        int64_t best = -1;
        for (int64_t k = 0; k < used; k++)
            if (room[k] >= many[i] && (best < 0 || room[k] < room[best])) best = k;
        if (best < 0) room[best = used++] = CAPACITY;
        if (bins[i] < used) assert_int_equal(room[bins[i]], room[best]); /* equal rooms are as good */
        best = bins[i];
        room[best] -= many[i];
        assert_true(room[best] >= 0);
    }
    assert_int_equal(used, count);
    free(many);
    free(bins);
    free(room);
    nbl_context_destroy(ctx);
}

static void the_largest_batch_without_packing_is_of_the_longest_rows(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    int64_t tokens, sequences;
    put("q.txt", "12345\n1\n1234567\n123\n");
    prepare(&f, ctx, "q.txt", NBL_DATA_COMPLETION);
    open_data(&f);
    nbl__data_largest(f.data, &tokens, &sequences);
    assert_int_equal(tokens, 7 + 9);
    assert_int_equal(sequences, 2);
    close_data(&f);
    f.config.sample_packing = true;
    f.config.sequence_len = 10;
    open_data(&f);
    nbl__data_largest(f.data, &tokens, &sequences);
    assert_int_equal(tokens, 20);
    assert_int_equal(sequences, 3); /* 3 + 5 + 7 fit, and 9 more do not */
    close_data(&f);
    nbl_context_destroy(ctx);
}

/* ---- the same again ---- */

static void examples_made_again_are_those_that_were_counted(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("t.txt", "abcdefgh\nxyz\nabcdefgh\n");
    prepare(&f, ctx, "t.txt", NBL_DATA_COMPLETION);
    f.config.sequence_len = 4;
    open_data(&f);
    for (int64_t i = 0; i < nbl__data_count(f.data).examples; i++) {
        char kept[64];
        strcpy(kept, shown(&f, i));
        f.data->places[i].kept = NULL; /* as if there had been no room to keep it */
        expect(&f, i, kept);
    }
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void threads_change_nothing_and_other_labels_are_other_data(void **state)
{
    (void)state;
    uint64_t identity[3];
    for (int i = 0; i < 3; i++) {
        nbl_context *ctx = new_context_with(i == 0 ? 1 : 3);
        fixture f;
        put("k.jsonl", talk);
        prepare(&f, ctx, "k.jsonl", NBL_DATA_CHAT);
        if (i == 2) f.dataset.train_on_eos = NBL_EOS_NONE;
        open_data(&f);
        identity[i] = nbl__data_identity(f.data);
        close_data(&f);
        nbl_context_destroy(ctx);
    }
    assert_true(identity[0] == identity[1]);
    assert_true(identity[0] != identity[2]);
}

static nbl_status use_everything(nbl_context *ctx, fixture *f)
{
    nbl__epoch epoch;
    nbl__example example;
    NBL_TRY(nbl__data_open(ctx, &f->config, 260, &f->data));
    nbl_status status = nbl__epoch_make(f->data, 0, false, &epoch);
    if (status == NBL_OK) nbl__epoch_free(ctx, &epoch);
    f->data->places[0].kept = NULL;
    if (status == NBL_OK) status = nbl__data_example(f->data, 0, &example);
    nbl__data_close(f->data);
    return status;
}

static void memory_that_runs_out_is_an_error_and_nothing_leaks(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text;
        nbl__data_type type;
    } cases[] = {{"k.jsonl", talk, NBL_DATA_CHAT},
                 {"p.csv", "instruction,output\nq,a\nr,b\n", NBL_DATA_ALPACA},
                 {"t.txt", "abc\ndef\n", NBL_DATA_COMPLETION}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nbl_status status = NBL_ERROR_MEMORY;
        put(cases[i].name, cases[i].text);
        for (int64_t fail = 1; status != NBL_OK; fail++) {
            nbl__counter counter = {0};
            nbl_context_options options = {.threads = 1, .allocator = nbl__counting_allocator(&counter)};
            nbl_context *ctx;
            fixture f;
            assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
            int64_t live = counter.live;
            prepare(&f, ctx, cases[i].name, cases[i].type);
            f.config.sample_packing = i == 1;
            f.config.val_set_size = i == 2 ? 0.5 : 0;
            counter.fail_at = counter.calls + fail;
            status = use_everything(ctx, &f);
            assert_true(status == NBL_OK || status == NBL_ERROR_MEMORY);
            assert_int_equal(counter.live, live);
            nbl_context_destroy(ctx);
            assert_true(fail < 100000);
        }
    }
}

/* ---- the public interface ---- */

static void a_preview_shows_what_is_trained(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_run *run;
    nbl_data_summary summary;
    nbl_preview preview;
    char text[1024];
    put("k.jsonl", talk);
    snprintf(text, sizeof text,
             "base_model: %s\ndatasets:\n  - {path: %s/k.jsonl, type: chat_template}\nadapter: lora\n"
             "lora_target_linear: true\nlearning_rate: 1e-4\noutput_dir: %s/out\n",
             folder, folder, folder);
    put("run.yml", text);
    assert_ok(ctx, nbl_run_open(ctx, in_folder(folder, "run.yml"), NULL, 0, &run));
    assert_ok(ctx, nbl_run_data(run, &summary));
    assert_int_equal(summary.examples, 1);
    assert_int_equal(summary.trained_tokens, 9 + 1 + 3 + 1);
    assert_ok(ctx, nbl_run_preview(run, 0, &preview));
    assert_int_equal(preview.trained_tokens, summary.trained_tokens);
    assert_int_equal(preview.count, summary.tokens);
    assert_int_equal(preview.part_count, 5);
    assert_true(preview.parts[1].trained && !preview.parts[2].trained);
    assert_string_equal(preview.parts[1].text.text, "assistant<|im_end|>");
    assert_string_equal(preview.parts[3].text.text, "h\xc3\xa9<|im_end|>");
    assert_int_equal(nbl_run_preview(run, 1, &preview), NBL_ERROR_ARGUMENT);
    nbl_run_close(run);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_from_lines_with_marks_blanks_and_no_last_newline),
        cmocka_unit_test(a_json_list_is_rows),
        cmocka_unit_test(csv_has_quotes_commas_and_line_ends_in_fields),
        cmocka_unit_test(every_line_of_a_text_file_is_a_row),
        cmocka_unit_test(what_is_wrong_with_a_file_is_said_with_its_line),
        cmocka_unit_test(bad_rows_are_dropped_and_counted_when_the_run_says_so),
        cmocka_unit_test(a_split_selects_rows_or_percent),
        cmocka_unit_test(alpaca_trains_the_response_and_its_end),
        cmocka_unit_test(special_tokens_of_the_run_replace_the_models),
        cmocka_unit_test(completion_is_cut_into_pieces),
        cmocka_unit_test(segments_are_trained_where_their_label_says),
        cmocka_unit_test(ids_are_checked_against_the_vocabulary),
        cmocka_unit_test(turns_and_their_ends_are_trained_by_train_on_eos),
        cmocka_unit_test(generation_marks_say_what_is_trained),
        cmocka_unit_test(messages_that_a_template_rewrites_are_found),
        cmocka_unit_test(sharegpt_names_and_the_built_in_template_work),
        cmocka_unit_test(long_rows_are_dropped_cut_or_refused),
        cmocka_unit_test(every_epoch_is_another_order_of_all_rows),
        cmocka_unit_test(rows_held_back_are_never_trained),
        cmocka_unit_test(packing_fills_bins_and_loses_no_row),
        cmocka_unit_test(best_fit_takes_the_tightest_bin),
        cmocka_unit_test(the_largest_batch_without_packing_is_of_the_longest_rows),
        cmocka_unit_test(examples_made_again_are_those_that_were_counted),
        cmocka_unit_test(threads_change_nothing_and_other_labels_are_other_data),
        cmocka_unit_test(memory_that_runs_out_is_an_error_and_nothing_leaks),
        cmocka_unit_test(a_preview_shows_what_is_trained),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
