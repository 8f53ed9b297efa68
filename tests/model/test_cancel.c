/* Work that the progress callback stops: every long call asks, and ends with NBL_ERROR_CANCELLED. What the interrupt test
 * shows of commands is shown here of calls, without a clock. */
#include "support.h"

#define MODEL TEST_DATA_DIR "/../../models/nibble-tiny"

typedef struct caller {
    const char *at; /* asks to stop where the work is called so; NULL: never */
    int asked;
} caller;

static bool on_progress(void *user, const nbl_progress *now)
{
    caller *c = user;
    if (c->at == NULL || now->what == NULL || strcmp(now->what, c->at) != 0) return 0;
    c->asked++;
    return 1;
}

static nbl_context *context_with_caller(caller *c)
{
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 2, .progress = on_progress,
                                   .progress_user = c};
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
    return ctx;
}

static void assert_stopped(caller *c, nbl_status status)
{
    assert_int_equal(status, NBL_ERROR_CANCELLED);
    assert_int_equal(c->asked, 1); /* and was not asked again */
    *c = (caller){0};
}

static void a_model_stops_between_two_operators(void **state)
{
    (void)state;
    caller c = {0};
    nbl_context *ctx = context_with_caller(&c);
    nbl_model *model;
    int32_t ids[] = {1, 2, 3, 4}, made[8];
    nbl_ids sequence = {ids, 4};
    float *logits = malloc(4 * 512 * sizeof *logits);
    nbl_evaluation sum = {NBL_RESULT(nbl_evaluation)};
    nbl_generated result = {.ids = {made, 0}};
    assert_ok(ctx, nbl_model_open(ctx, MODEL, NULL, &model));
    c.at = "computing";
    assert_stopped(&c, nbl_model_logits(model, &sequence, 1, &logits));
    c.at = "computing";
    assert_stopped(
        &c, nbl_model_generate(model, &sequence, 1,
                               &(nbl_generate_options){NBL_OPTIONS(nbl_generate_options), .max_tokens = 8},
                               &result));
    c.at = "computing";
    assert_stopped(&c, nbl_model_evaluate(model, &sequence, 1, NULL, &sum));
    c.at = "model.norm.weight"; /* filled in */
    assert_stopped(&c, nbl_model_logits(model, &sequence, 1, &logits));
    assert_ok(ctx, nbl_model_logits(model, &sequence, 1, &logits)); /* nothing of it is left */
    nbl_model_close(model);
    free(logits);
    nbl_context_destroy(ctx);
}

static void loading_stops_between_two_weights(void **state)
{
    (void)state;
    caller c = {.at = "model.layers.2.mlp.up_proj.weight"};
    nbl_context *ctx = context_with_caller(&c);
    nbl_model *model;
    assert_stopped(
        &c,
        nbl_model_open(ctx, MODEL,
                       &(nbl_model_options){NBL_OPTIONS(nbl_model_options), .load = NBL_FORMAT_NF4}, &model));
    assert_null(model);
    nbl_context_destroy(ctx);
}

/* One row of data may be one text of a gigabyte; in a batch of many, too. */
static void a_long_text_stops_while_it_is_cut_and_encoded(void **state)
{
    (void)state;
    enum { SIZE = 3 << 20 };
    caller c = {0};
    nbl_context *ctx = context_with_caller(&c);
    nbl_tokenizer *tokenizer;
    char *text = malloc(SIZE);
    nbl_ids lists[3];
    assert_ok(ctx, nbl_tokenizer_open(ctx, MODEL, &tokenizer));
    for (int spaces = 0; spaces < 2; spaces++) {
        for (int i = 0; i < SIZE; i++) text[i] = spaces && i % 4 == 0 ? ' ' : (char)('a' + i % 7);
        nbl_string texts[3] = {{"one", 3}, {text, SIZE}, {"two", 3}};
        c.at = "tokenizing";
        assert_stopped(&c, nbl_tokenizer_encode(tokenizer, text, SIZE, 0, &lists[0]));
        c.at = "tokenizing";
        assert_stopped(&c, nbl_tokenizer_encode_batch(tokenizer, 3, texts, 0, lists));
    }
    nbl_tokenizer_close(tokenizer);
    nbl_context_destroy(ctx);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_stops_between_two_operators),
        cmocka_unit_test(loading_stops_between_two_weights),
        cmocka_unit_test(a_long_text_stops_while_it_is_cut_and_encoded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
