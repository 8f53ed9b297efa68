/* test_report.c - report.html: the page is well-formed and its facts are JSON whatever they are; samples before
 * and after a run. tests/report_page_test.js runs the script of the page. */
#include "tiny_model.h"

#include <ctype.h>
#include <math.h>

#include "base/alloc.h"
#include "report/report.h"
#include "run/run.h"
#include "train/trainer.h"

/* ---- a checker of HTML as this page writes it: quoted attributes, every element closed ---- */

static bool is_void(const char *name)
{
    return strcmp(name, "meta") == 0 || strcmp(name, "link") == 0 || strcmp(name, "!DOCTYPE") == 0;
}

/* Behind the tag's end; *closed: it ended in "/>". */
static const char *skip_attributes(const char *at, bool *closed)
{
    for (; *at && *at != '>'; at++) {
        if (*at == '<') fail_msg("a '<' inside a tag: %.60s", at);
        if (*at != '"') continue;
        at = strchr(at + 1, '"');
        if (at == NULL) fail_msg("a quote stays open");
    }
    if (*at == '\0') fail_msg("a tag stays open");
    *closed = at[-1] == '/';
    return at + 1;
}

static const char *skip_text(const char *at)
{
    for (; *at && *at != '<'; at++) {
        if ((unsigned char)*at < 0x20 && *at != '\n' && *at != '\t')
            fail_msg("a control character: %.40s", at);
        if (*at != '&') continue;
        size_t n = strspn(at + 1, "abcdefghijklmnopqrstuvwxyz#0123456789");
        if (n == 0 || at[1 + n] != ';') fail_msg("a bare ampersand: %.40s", at);
    }
    return at;
}

static void assert_well_formed(const char *page)
{
    char open[64][24];
    int depth = 0;
    for (const char *at = skip_text(page); *at; at = skip_text(at)) {
        bool ends = at[1] == '/', closed;
        char name[24] = "";
        size_t n = strcspn(at + 1 + ends, " />\n");
        assert_true(n > 0 && n < sizeof name);
        memcpy(name, at + 1 + ends, n);
        at = skip_attributes(at + 1, &closed);
        if (ends) {
            if (depth == 0 || strcmp(open[depth - 1], name) != 0)
                fail_msg("</%s> closes <%s>", name, depth ? open[depth - 1] : "nothing");
            depth--;
        } else if (!closed && !is_void(name)) {
            assert_true(depth < 64);
            strcpy(open[depth++], name);
        }
        if (!ends && (strcmp(name, "script") == 0 || strcmp(name, "style") == 0)) { /* no markup in there */
            const char *end = strchr(at, '<');
            while (end && strncmp(end, "</", 2) != 0) end = strchr(end + 1, '<');
            assert_non_null(end);
            at = end;
        }
    }
    if (depth) fail_msg("<%s> stays open", open[depth - 1]);
}

/* ---- a report to begin with ---- */

static const nbl__dataset_config dataset = {.path = "rows.jsonl"};

static nbl__run_config usual_config(void)
{
    return (nbl__run_config){.file = "run.yml",
                             .base_model = "models/tiny",
                             .output_dir = "out",
                             .qlora = true,
                             .lora_r = 8,
                             .lora_alpha = 16,
                             .target_linear = true,
                             .datasets = &dataset,
                             .dataset_count = 1,
                             .sequence_len = 64,
                             .micro_batch_size = 1,
                             .gradient_accumulation_steps = 1,
                             .num_epochs = 1,
                             .max_steps = 77,
                             .learning_rate = 1e-4,
                             .logging_steps = 1,
                             .report = true};
}

static nbl__report usual_report(const nbl__run_config *config, const nbl__records *records)
{
    return (nbl__report){.config = config,
                         .records = records,
                         .arenas = {1000000, 2000, 3000, 4000, 5000, 0},
                         .memory_bytes = 1014000,
                         .weights = "nf4",
                         .compute = "bf16",
                         .parameters = 2000000,
                         .trained_parameters = 1234,
                         .data = {10, 500, 300, 1, 2},
                         .step = 77,
                         .steps = 77,
                         .epoch = 1,
                         .seconds = 65,
                         .isa = "avx2",
                         .threads = 2};
}

static nbl__record record_of(int64_t step, double loss)
{
    return (nbl__record){.step = step,
                         .epoch = 0.5,
                         .loss = loss,
                         .grad_norm = 2 * loss,
                         .learning_rate = 1e-4,
                         .tokens_per_second = 1000,
                         .trained_tokens = 10,
                         .memory_bytes = 1};
}

/* The facts in a page, which must be JSON that ends no <script>. Free with nbl__arena_free. */
static const nbl__json *facts_of(nbl__arena *arena, const char *page)
{
    static const char begin[] = "<script type=\"application/json\" id=\"run\">";
    const char *text = strstr(page, begin), *end = text ? strchr(text + strlen(begin), '<') : NULL;
    const nbl__json *facts;
    assert_true(end && strncmp(end, "</script>\n<script>", 18) == 0);
    text += strlen(begin);
    assert_ok(arena->ctx,
              nbl__json_parse(arena, "facts", text, (size_t)(end - text), NBL_JSON_STRICT, &facts));
    return facts;
}

/* The page; free it with nbl__text_free. */
static nbl__text print_page(nbl_context *ctx, const nbl__report *report)
{
    nbl__text page = {.ctx = ctx};
    nbl__report_print(&page, report);
    assert_ok(ctx, page.status);
    assert_well_formed(page.text);
    assert_null(strstr(page.text, "{{"));
    nbl__arena arena = nbl__arena_make(ctx);
    (void)facts_of(&arena, page.text);
    nbl__arena_free(&arena);
    return page;
}

static nbl__text print_history(nbl_context *ctx, nbl__record *items, int64_t count)
{
    nbl__run_config config = usual_config();
    nbl__records records = {.ctx = ctx, .items = items, .count = count};
    nbl__report report = usual_report(&config, &records);
    return print_page(ctx, &report);
}

static int count_of(const char *text, const char *word)
{
    int count = 0;
    for (; (text = strstr(text, word)); text += strlen(word)) count++;
    return count;
}

/* ---- the page ---- */

static void a_page_tells_what_the_run_was(void **state)
{
    nbl_context *ctx = *state;
    nbl__record items[60];
    for (int i = 0; i < 60; i++) items[i] = record_of(i + 1, 3.5 - 0.05 * i);
    items[29].evaluation = items[59].evaluation = true;
    nbl__text page = print_history(ctx, items, 60);
    static const char *const words[] = {
        "\"base_model\": \"models/tiny\"",
        "\"method\": \"QLoRA, rank 8\"",
        "max_steps: 77",
        "\"memory_bytes\": 1014000,",
        "\"seconds\": 65.0,",
        "\"final_loss\": 0.",
        "\"extreme_step\": 60,",
        "\"eval_loss\": [[30,2.05,2.05],[60,0.55,",
        "avx2",
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(page.text, words[i]) == NULL) fail_msg("no %s", words[i]);
    nbl__arena arena = nbl__arena_make(ctx);
    const nbl__json *facts = facts_of(&arena, page.text), *series = nbl__json_get(facts, "series");
    assert_int_equal(nbl__json_get(series, "loss")->count, 58);
    assert_int_equal(nbl__json_get(series, "eval_loss")->count, 2);
    nbl__arena_free(&arena);
    nbl__text_free(&page);
}

static void any_history_gives_a_well_formed_page(void **state)
{
    nbl_context *ctx = *state;
    nbl__record items[50];
    static const double losses[] = {0, 1, -1, 1e-310, 1e-12, 3.25, 1e9, 1e308, -1e308};
    nbl__text page = print_history(ctx, NULL, 0);
    static const char nothing[] = "\"series\": {\n\"loss\": [],\n\"eval_loss\": [],\n\"grad_norm\": [],\n";
    assert_non_null(strstr(page.text, nothing));
    nbl__text_free(&page);
    for (size_t k = 0; k < sizeof losses / sizeof *losses; k++)
        for (int count = 1; count <= 50; count += 49) {
            for (int i = 0; i < count; i++) items[i] = record_of(i + 1, losses[k]);
            page = print_history(ctx, items, count);
            nbl__text_free(&page);
            items[count / 2].loss = -losses[k] / 3; /* and one that is not like the others */
            page = print_history(ctx, items, count);
            nbl__text_free(&page);
        }
}

static void values_that_are_not_finite_are_left_out(void **state)
{
    nbl_context *ctx = *state;
    nbl__record items[3] = {record_of(1, 2), record_of(2, NAN), record_of(3, 1)};
    items[2].grad_norm = INFINITY;
    nbl__text page = print_history(ctx, items, 3);
    assert_non_null(strstr(page.text, "\"loss\": [[1,2,2],[3,1,1]]"));
    assert_non_null(strstr(page.text, "\"grad_norm\": [[1,4,4]]"));
    nbl__text_free(&page);
}

static void long_runs_are_drawn_with_a_bounded_number_of_points_that_keep_the_extremes(void **state)
{
    nbl_context *ctx = *state;
    enum { COUNT = 20000 };
    nbl__record *items = calloc(COUNT, sizeof *items);
    for (int i = 0; i < COUNT; i++) items[i] = record_of(i + 1, 2);
    items[12345].loss = 9;
    items[54].loss = 0.5;
    nbl__text page = print_history(ctx, items, COUNT);
    const char *loss = strstr(page.text, "\"loss\": ["), *next = loss ? strstr(loss, "\"eval_loss\"") : NULL;
    assert_true(loss && next);
    int points = 0;
    for (const char *at = loss; at < next; at++) points += *at == '[';
    assert_in_range(points, 400, 1001);
    assert_non_null(strstr(loss, "[12346,9,"));
    assert_non_null(strstr(loss, "[55,0.5,"));
    assert_true(page.size < 200000);
    nbl__text_free(&page);
    free(items);
}

static void names_and_texts_are_escaped(void **state)
{
    nbl_context *ctx = *state;
    static const char evil[] = "</pre></title><script>alert('1')</script>\" onload=\"x & {{tiles}} "
                               "\x01\xff$(rm)\x1b\xc2\x9b\xe2\x80\xae";
    nbl__run_config config = usual_config();
    nbl__dataset_config source = {.path = evil};
    nbl__record one = record_of(1, 1);
    nbl__records records = {.ctx = ctx, .items = &one, .count = 1};
    nbl__samples samples = {.count = 1, .missing = evil};
    samples.items[0] = (nbl__sample){.text = evil, .wanted = evil, .before = evil, .after = evil};
    config.file = config.base_model = config.output_dir = evil;
    config.datasets = &source;
    nbl__report report = usual_report(&config, &records);
    report.samples = &samples;
    report.stopped = report.isa = evil;
    nbl__text page = {.ctx = ctx};
    nbl__report_print(&page, &report);
    assert_ok(ctx, page.status);
    assert_well_formed(page.text);
    nbl__arena arena = nbl__arena_make(ctx);
    assert_non_null(
        strstr(nbl__json_text(facts_of(&arena, page.text), "stopped"), "<script>alert('1')</script>"));
    nbl__arena_free(&arena);
    assert_null(strstr(page.text, "<script>alert"));
    assert_null(strstr(page.text, "\xe2\x80\xae"));
    assert_null(strstr(page.text, "\xc2\x9b"));
    assert_non_null(strstr(page.text, "\\\\x01\\\\xff$(rm)\\\\x1b\\\\u009b\\\\u202e"));
    assert_int_equal(count_of(page.text, "</title>"), 1);
    nbl__text_free(&page);
}

static void very_long_texts_stay_whole(void **state)
{
    nbl_context *ctx = *state;
    enum { LONG = 300000 };
    char *text = malloc(LONG + 1);
    memset(text, '<', LONG);
    text[LONG] = '\0';
    nbl__run_config config = usual_config();
    config.base_model = text;
    nbl__records records = {.ctx = ctx};
    nbl__samples samples = {.count = 1};
    samples.items[0] = (nbl__sample){.text = text, .wanted = "", .before = text};
    nbl__report report = usual_report(&config, &records);
    report.samples = &samples;
    report.interrupted = true;
    nbl__text page = print_page(ctx, &report);
    assert_true(page.size > 6 * 4 * (size_t)LONG / 2);
    assert_non_null(strstr(page.text, "\"interrupted\": true"));
    nbl__text_free(&page);
    free(text);
}

/* ---- runs: a tiny model with letters for tokens ---- */

static tiny_model tiny;

static void write_tokenizer(void)
{
    char text[4096];
    int n = snprintf(
        text, sizeof text,
        "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 90, \"content\": \"</s>\", "
        "\"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
        "\"special\": true}], \"normalizer\": null, \"pre_tokenizer\": null, "
        "\"post_processor\": null, \"decoder\": {\"type\": \"Fuse\"}, \"truncation\": null, \"padding\": "
        "null, "
        "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
        "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
        "\"byte_fallback\": false, \"merges\": [], \"vocab\": {");
    for (int i = 0; i < 90; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s\"\\u%04x\": %d", i ? ", " : "", ' ' + i, i);
    snprintf(text + n, sizeof text - (size_t)n, "}}}");
    write_file(tiny.model, "tokenizer.json", text, strlen(text));
    static const char config[] = "{\"eos_token\": \"</s>\"}";
    write_file(tiny.model, "tokenizer_config.json", config, strlen(config));
    static const char rows[] =
        "{\"segments\": [{\"label\": false, \"text\": \"ab<\"}, {\"label\": true, \"text\": \"cd\"}]}\n"
        "{\"segments\": [{\"label\": false, \"text\": \"xy\"}, {\"label\": true, \"text\": \"abcd\"}]}\n"
        "{\"segments\": [{\"label\": false, \"text\": \"q\"}, {\"label\": true, \"text\": \"rs\"}]}\n";
    write_file(tiny.folder, "rows.jsonl", rows, strlen(rows));
    static const char tokens[] = "{\"input_ids\": [1, 2, 3], \"labels\": [1, 2, 3]}\n";
    write_file(tiny.folder, "tokens.jsonl", tokens, strlen(tokens));
}

static nbl_status train(nbl_context *ctx, const char *name, const char *type, const char *keys,
                        const nbl_train_options *options)
{
    char text[2048], file[64];
    nbl_run *run;
    int size = snprintf(
        text, sizeof text,
        "base_model: %s\ndatasets: [{path: %s/%s, type: %s}]\noutput_dir: %s/%s\n"
        "learning_rate: 0.05\nmax_steps: 8\nsave_steps: 2\nadapter: lora\nlora_target_linear: "
        "true\n%s\n",
        tiny.model, tiny.folder, *type == 'p' ? "tokens.jsonl" : "rows.jsonl", type, tiny.folder, name, keys);
    snprintf(file, sizeof file, "%s.yml", name);
    write_file(tiny.folder, file, text, (size_t)size);
    NBL_TRY(nbl_run_open(ctx, in_folder(tiny.folder, file), NULL, 0, &run));
    nbl_status status = nbl_run_train(run, options, NULL);
    nbl_run_close(run);
    return status;
}

static const char *output(const char *name, const char *file)
{
    char inner[128];
    snprintf(inner, sizeof inner, "%s/%s", name, file);
    return in_folder(tiny.folder, inner);
}

static char *text_of(const char *path)
{
    size_t size;
    char *text = (char *)read_file(path, &size);
    text[size] = '\0';
    return text;
}

static bool stop_at_three(void *user, const nbl_train_event *event)
{
    (void)user;
    return event->kind == NBL_TRAIN_STEP && event->step == 3;
}

static const char dropout[] = "lora_dropout: 0.2";

static void samples_change_no_bit_of_the_run(void **state)
{
    nbl_context *ctx = *state;
    assert_ok(ctx, train(ctx, "with", "input_output", dropout, NULL));
    nbl_train_options none = {NBL_OPTIONS(nbl_train_options), .samples = -1};
    assert_ok(ctx, train(ctx, "without", "input_output", dropout, &none));
    assert_ok(ctx, train(ctx, "silent", "input_output", "lora_dropout: 0.2\nreport: false", NULL));
    const char *weights = "adapter_model.safetensors";
    assert_same_file(output("with", weights), output("without", weights));
    assert_same_file(output("with", weights), output("silent", weights));
    assert_int_equal(access(output("without", "samples.json"), F_OK), -1);
    assert_int_equal(access(output("silent", "report.html"), F_OK), -1);
    char *page = text_of(output("with", "report.html")), *samples = text_of(output("with", "samples.json"));
    assert_well_formed(page);
    assert_non_null(strstr(page, "\"prompt\": \"ab\\u003c\""));
    assert_int_equal(count_of(samples, "\"before\": \""), 3);
    assert_int_equal(count_of(samples, "\"after\": \""), 3);
    free(page);
    free(samples);
}

static void after_is_what_the_adapter_writes(void **state)
{
    nbl_context *ctx = *state;
    nbl_model *m;
    int32_t prompt[] = {'a' - ' ', 'b' - ' ', '<' - ' '}, ids[NBL_SAMPLE_TOKENS], end = 90;
    for (int dora = 0; dora < 2; dora++) { /* a new DoRA has no magnitudes before the first step */
        const char *name = dora ? "dora" : "lora", *keys = dora ? "peft_use_dora: true" : "";
        assert_ok(ctx, train(ctx, name, "input_output", keys, NULL));
        char *samples = text_of(output(name, "samples.json"));
        for (int after = 0; after < 2; after++) {
            char text[NBL_SAMPLE_TOKENS + 64] = "", expected[NBL_SAMPLE_TOKENS * 6 + 64];
            nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .dtype = NBL_COMPUTE_F32,
                                         .adapter = after ? output(name, "") : NULL};
            nbl_generate_options how = {NBL_OPTIONS(nbl_generate_options), .max_tokens = NBL_SAMPLE_TOKENS,
                                        .ends = &end, .end_count = 1};
            nbl_ids list = {prompt, 3};
            nbl_generated made = {.ids = {.ids = ids}};
            assert_ok(ctx, nbl_model_open(ctx, tiny.model, &options, &m));
            assert_ok(ctx, nbl_model_generate(m, &list, 1, &how, &made));
            nbl_model_close(m);
            int n = 0;
            for (int64_t i = 0; i < made.ids.count; i++) /* ids without a token have no text */
                if (ids[i] < 90) text[n++] = (char)(' ' + ids[i]);
            nbl__text quoted = {.ctx = ctx};
            nbl__text_json(&quoted, text);
            snprintf(expected, sizeof expected, "\"%s\": %s", after ? "after" : "before", quoted.text);
            if (strstr(samples, expected) == NULL) fail_msg("%s: no %s in %s", name, expected, samples);
            nbl__text_free(&quoted);
        }
        free(samples);
    }
}

static void a_run_that_goes_on_keeps_what_was_written_before(void **state)
{
    nbl_context *ctx = *state;
    nbl_train_options stop = {NBL_OPTIONS(nbl_train_options), .event = stop_at_three};
    nbl_train_options resume = {NBL_OPTIONS(nbl_train_options), .resume = 1};
    assert_ok(ctx, train(ctx, "whole", "input_output", dropout, NULL));
    assert_int_equal(train(ctx, "parts", "input_output", dropout, &stop), NBL_ERROR_CANCELLED);
    char *page = text_of(output("parts", "report.html"));
    assert_non_null(strstr(page, "\"interrupted\": true,"));
    assert_non_null(strstr(page, "\"step\": 3,"));
    assert_well_formed(page);
    free(page);
    assert_ok(ctx, train(ctx, "parts", "input_output", dropout, &resume));
    assert_same_file(output("whole", "samples.json"), output("parts", "samples.json"));
    assert_int_equal(entries_in(output("whole", "")), entries_in(output("parts", "")) - 1); /* checkpoint-3 */
}

static void a_damaged_file_of_samples_is_no_obstacle(void **state)
{
    nbl_context *ctx = *state;
    static const char *const texts[] = {
        "",
        "{",
        "[]",
        "{\"samples\": 3}",
        "{\"samples\": [1, {\"example\": -1}, {\"example\": 0, \"prompt\": 7}]}",
        "{\"samples\": [{\"example\": 0, \"prompt\": \"ab<\", \"before\": 4}]}"};
    nbl_train_options stop = {NBL_OPTIONS(nbl_train_options), .event = stop_at_three};
    nbl_train_options resume = {NBL_OPTIONS(nbl_train_options), .resume = 1};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(train(ctx, "torn", "input_output", "", &stop), NBL_ERROR_CANCELLED);
        write_file(tiny.folder, "torn/samples.json", texts[i], strlen(texts[i]));
        assert_ok(ctx, train(ctx, "torn", "input_output", "", &resume));
        char *page = text_of(output("torn", "report.html"));
        assert_non_null(strstr(page, "is not known"));
        assert_non_null(strstr(page, "\"before\": null"));
        free(page);
    }
}

static void tokens_and_small_budgets_have_no_samples_and_say_why(void **state)
{
    nbl_context *ctx = *state;
    assert_ok(ctx, train(ctx, "tokens", "pretokenized", "", NULL));
    char *page = text_of(output("tokens", "report.html"));
    assert_non_null(strstr(page, "\"samples_missing\": \"the data has no prompts"));
    free(page);
    assert_int_equal(access(output("tokens", "samples.json"), F_OK), -1);
    /* Those of another run that left nothing else do not stay. */
    write_file(tiny.folder, "tokens/samples.json", "{}", 2);
    assert_ok(ctx, train(ctx, "tokens", "pretokenized", "", NULL));
    assert_int_equal(access(output("tokens", "samples.json"), F_OK), -1);
    nbl__samples samples = {.arena = nbl__arena_make(ctx), .count = 1};
    nbl_model *m;
    samples.items[0].prompt.count = 400;
    assert_ok(ctx, nbl_model_open(ctx, tiny.model, NULL, &m));
    assert_ok(ctx, nbl__samples_limit(&samples, m, 1 << 30));
    assert_int_equal(samples.count, 1);
    samples.items[0].prompt.count = 20000;
    assert_ok(ctx, nbl__samples_limit(&samples, m, 1 << 10));
    assert_int_equal(samples.count, 0);
    assert_non_null(strstr(samples.missing, "more than the 1024"));
    nbl_model_close(m);
    nbl__arena_free(&samples.arena);
}

static void memory_that_runs_out_is_told_and_nothing_leaks(void **state)
{
    (void)state;
    for (int64_t n = 1, done = 0; !done; n += n < 40 ? 1 : 37) {
        nbl__counter counter = {.fail_at = n};
        nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1,
                                       .allocator = nbl__counting_allocator(&counter)};
        nbl_context *ctx;
        nbl_status status = nbl_context_create(&options, &ctx);
        if (status == NBL_OK) {
            status = train(ctx, "faulty", "input_output", "", NULL);
            nbl_context_destroy(ctx);
        }
        done = status == NBL_OK;
        if (!done) assert_int_equal(status, NBL_ERROR_MEMORY);
        assert_int_equal(counter.live, 0);
    }
}

static void the_number_of_threads_can_change(void **state)
{
    (void)state;
    nbl_context *ctx = new_context_with(1);
    assert_ok(ctx, nbl_context_set_threads(ctx, 3));
    assert_int_equal(nbl_threads(ctx), 3);
    assert_int_equal(nbl_context_set_threads(ctx, -1), NBL_ERROR_ARGUMENT);
    assert_int_equal(nbl_context_set_threads(ctx, 1025), NBL_ERROR_ARGUMENT);
    assert_ok(ctx, nbl_context_set_threads(ctx, 0));
    assert_true(nbl_threads(ctx) >= 1);
    nbl_context_destroy(ctx);
}

static int setup(void **state)
{
    nbl_context *ctx = new_context();
    tiny_write(ctx, 0, false, &tiny);
    write_tokenizer();
    *state = ctx;
    return 0;
}

static int teardown(void **state)
{
    nbl_context_destroy(*state);
    remove_tree(tiny.folder);
    return 0;
}

static void the_load_of_experts_is_shown(void **state)
{
    nbl_context *ctx = *state;
    int64_t layers[] = {1, 3};
    uint64_t run[] = {12, 4, 8, 0, 24, 0};
    nbl__expert_load load = {.rows = 2, .experts = 3, .layers = layers, .run = run};
    nbl__record item = record_of(1, 2);
    item.expert_load = 3;
    nbl__run_config config = usual_config();
    nbl__records records = {.ctx = ctx, .items = &item, .count = 1};
    nbl__report report = usual_report(&config, &records);
    report.expert_load = &load;
    nbl__text page = print_page(ctx, &report);
    assert_non_null(strstr(page.text, "[1,1.5000,[12,4,8]]"));
    assert_non_null(strstr(page.text, "[3,3.0000,[0,24,0]]"));
    assert_non_null(strstr(page.text, "\"expert_load\": [[1,3,3]]"));
    nbl__text_free(&page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_tells_what_the_run_was),
        cmocka_unit_test(any_history_gives_a_well_formed_page),
        cmocka_unit_test(values_that_are_not_finite_are_left_out),
        cmocka_unit_test(long_runs_are_drawn_with_a_bounded_number_of_points_that_keep_the_extremes),
        cmocka_unit_test(names_and_texts_are_escaped),
        cmocka_unit_test(the_load_of_experts_is_shown),
        cmocka_unit_test(very_long_texts_stay_whole),
        cmocka_unit_test(samples_change_no_bit_of_the_run),
        cmocka_unit_test(after_is_what_the_adapter_writes),
        cmocka_unit_test(a_run_that_goes_on_keeps_what_was_written_before),
        cmocka_unit_test(a_damaged_file_of_samples_is_no_obstacle),
        cmocka_unit_test(tokens_and_small_budgets_have_no_samples_and_say_why),
        cmocka_unit_test(memory_that_runs_out_is_told_and_nothing_leaks),
        cmocka_unit_test(the_number_of_threads_can_change),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
