/* test_chat_encoder.c - rows of conversations as training labels them, and what is counted of them. */
#include "support.h"

#include "base/alloc.h"
#include "base/base.h"

#define TINY TEST_DATA_DIR "/../../models/nibble-tiny"

typedef struct opened {
    nbl_context *ctx;
    nbl__counter counter;
    nbl_model *model;
    nbl_tokenizer *tokenizer;
    nbl_chat_template *chat_template;
} opened;

static void open_all(opened *o)
{
    *o = (opened){0};
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1,
                                   .allocator = nbl__counting_allocator(&o->counter)};
    assert_int_equal(nbl_context_create(&options, &o->ctx), NBL_OK);
    assert_ok(o->ctx, nbl_model_open(o->ctx, TINY, NULL, &o->model));
    assert_ok(o->ctx, nbl_model_tokenizer(o->model, &o->tokenizer));
    assert_ok(o->ctx, nbl_chat_template_open(o->ctx, TINY, NULL, &o->chat_template));
}

static void close_all(opened *o)
{
    nbl_model_close(o->model);
    nbl_tokenizer_close(o->tokenizer);
    nbl_chat_template_close(o->chat_template);
    nbl_context_destroy(o->ctx);
    assert_int_equal(o->counter.live, 0);
}

static const char row[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Count from 3 to 5.\"}, "
    "{\"role\": \"assistant\", \"content\": \"3 4 5\"}, {\"role\": \"user\", \"content\": \"Hi\"}]}";

static nbl_status encode(opened *o, const char *text, nbl_ids *ids, nbl_ids *labels)
{
    nbl_chat_encoder *encoder;
    NBL_TRY(nbl_chat_encoder_open(o->model, o->tokenizer, o->chat_template, &encoder));
    nbl_status status = nbl_chat_encoder_row(encoder, "f.jsonl:7", (nbl_string){text, strlen(text)}, ids,
                                             labels);
    nbl_chat_encoder_close(encoder);
    return status;
}

static void an_answer_and_its_end_are_labelled_and_alone_counted(void **state)
{
    (void)state;
    opened o;
    nbl_ids ids, labels;
    char *text;
    size_t size;
    open_all(&o);
    assert_ok(o.ctx, encode(&o, row, &ids, &labels));
    assert_int_equal(ids.count, labels.count);
    int32_t trained[64];
    int64_t count = 0;
    for (int64_t i = 0; i < ids.count; i++) {
        assert_true(labels.ids[i] == -100 || labels.ids[i] == ids.ids[i]);
        if (labels.ids[i] != -100) trained[count++] = labels.ids[i];
    }
    assert_ok(o.ctx, nbl_tokenizer_decode(o.tokenizer, trained, count, 0, &text, &size));
    assert_string_equal(text, "3 4 5<|im_end|>");
    nbl_text_free(o.ctx, text, size);

    nbl_evaluation all = {NBL_RESULT(nbl_evaluation)}, answers = all, again = all;
    nbl_evaluate_options options = {NBL_OPTIONS(nbl_evaluate_options), .labels = &labels};
    nbl_evaluate_options whole = {NBL_OPTIONS(nbl_evaluate_options), .labels = &ids};
    assert_ok(o.ctx, nbl_model_evaluate(o.model, &ids, 1, NULL, &all));
    assert_ok(o.ctx, nbl_model_evaluate(o.model, &ids, 1, &options, &answers));
    assert_ok(o.ctx, nbl_model_evaluate(o.model, &ids, 1, &whole, &again));
    assert_int_equal(all.tokens, ids.count - 1);
    assert_int_equal(answers.tokens, count);
    assert_true(answers.loss_sum < all.loss_sum && answers.hits <= all.hits);
    assert_memory_equal(&all, &again, sizeof all);
    labels.ids[2] = 1 << 20;
    assert_int_equal(nbl_model_evaluate(o.model, &ids, 1, &options, &answers), NBL_ERROR_FORMAT);
    labels.ids[2] = -100;
    nbl_ids fewer = {labels.ids, labels.count - 1};
    options.labels = &fewer;
    assert_int_equal(nbl_model_evaluate(o.model, &ids, 1, &options, &answers), NBL_ERROR_SHAPE);
    nbl_ids_free(o.ctx, &ids);
    nbl_ids_free(o.ctx, &labels);
    close_all(&o);
}

static void a_bad_row_is_told_with_its_line(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"{\"messages\": [{\"role\": \"user\"}]}", "f.jsonl:7: message 1: \"content\" is missing"},
        {"{\"messages\": []}", "f.jsonl:7: the field \"messages\" is empty"},
        {"[1]", "f.jsonl:7: "},
        {"{\"messages\": ", "f.jsonl:7: "}};
    opened o;
    nbl_ids ids, labels;
    open_all(&o);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(encode(&o, rows[i][0], &ids, &labels), NBL_ERROR_FORMAT);
        if (strncmp(nbl_error_message(o.ctx), rows[i][1], strlen(rows[i][1])) != 0)
            fail_msg("%s", nbl_error_message(o.ctx));
        assert_true(ids.ids == NULL && labels.ids == NULL);
    }
    close_all(&o);
}

static void memory_that_runs_out_is_told_and_none_is_lost(void **state)
{
    (void)state;
    opened o;
    nbl_ids ids, labels;
    open_all(&o);
    assert_ok(o.ctx,
              encode(&o, row, &ids, &labels)); /* the template is parsed, the tokenizer has its caches */
    nbl_ids_free(o.ctx, &ids);
    nbl_ids_free(o.ctx, &labels);
    int64_t failed = 0;
    for (int64_t n = 1;; n++) {
        int64_t live = o.counter.live;
        o.counter.fail_at = o.counter.calls + n;
        nbl_status status = encode(&o, row, &ids, &labels);
        bool reached = o.counter.calls >= o.counter.fail_at;
        o.counter.fail_at = 0;
        assert_true(status == NBL_ERROR_MEMORY || status == NBL_OK); /* a cache can be done without */
        failed += status != NBL_OK;
        if (status == NBL_OK) {
            nbl_ids_free(o.ctx, &ids);
            nbl_ids_free(o.ctx, &labels);
        }
        assert_int_equal(o.counter.live, live);
        if (!reached) break;
    }
    assert_true(failed > 10);
    close_all(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_and_its_end_are_labelled_and_alone_counted),
        cmocka_unit_test(a_bad_row_is_told_with_its_line),
        cmocka_unit_test(memory_that_runs_out_is_told_and_none_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
