/* test_train.c - runs of training on tiny models, from the configuration to the files they leave. */
#include "tiny_run.h"

#include <math.h>

#include "device/device.h"
#include "train/schedule.h"
#include "train/trainer.h"

/* The loss of the last line of metrics.jsonl, and of the first. */
static double loss_of(const fixture *f, const char *name, bool last)
{
    size_t size;
    char *text = (char *)read_file(output(f, name, "metrics.jsonl"), &size);
    text[size] = '\0';
    char *found = NULL, *at = text;
    while ((at = strstr(at, "\"loss\": "))) {
        found = at;
        at += 8;
        if (!last) break;
    }
    assert_non_null(found);
    double loss = strtod(found + 8, NULL);
    free(text);
    return loss;
}

/* ---- schedules ---- */

static double factor(nbl__schedule_kind kind, int64_t step, int64_t warmup, int64_t total)
{
    nbl__run_config config = {.schedule = kind};
    return nbl__schedule_factor(&config, step, warmup, total);
}

/* The values are those of axolotl's get_cosine_schedule_with_*. */
static void cosines_end_above_zero_and_warm_up_by_squares(void **state)
{
    (void)state;
    nbl__run_config c = {.schedule = NBL_SCHEDULE_COSINE, .min_lr_ratio = 0.1};
    assert_true(nbl__schedule_factor(&c, 1, 4, 10) == 0.25);
    assert_true(fabs(nbl__schedule_factor(&c, 7, 4, 10) - 0.55) < 1e-15);
    assert_true(fabs(nbl__schedule_factor(&c, 10, 4, 10) - 0.1) < 1e-15);
    c.constant_lr_ratio = 0.8;
    assert_true(fabs(nbl__schedule_factor(&c, 6, 4, 10) - 0.55) < 1e-15);
    for (int step = 8; step < 11; step++)
        assert_true(fabs(nbl__schedule_factor(&c, step, 4, 10) - 0.1) < 1e-15);
    c = (nbl__run_config){.schedule = NBL_SCHEDULE_COSINE, .quadratic_warmup = true};
    assert_true(nbl__schedule_factor(&c, 1, 4, 10) == 0.0625);
    assert_true(nbl__schedule_factor(&c, 4, 4, 10) == 1);
    c.schedule = NBL_SCHEDULE_LINEAR;
    assert_true(nbl__schedule_factor(&c, 1, 4, 10) == 0.25);
}

static void schedules_are_those_of_transformers(void **state)
{
    (void)state;
    assert_true(factor(NBL_SCHEDULE_CONSTANT, 0, 5, 10) == 1);
    assert_true(factor(NBL_SCHEDULE_CONSTANT_WITH_WARMUP, 1, 4, 10) == 0.25);
    assert_true(factor(NBL_SCHEDULE_CONSTANT_WITH_WARMUP, 9, 4, 10) == 1);
    assert_true(factor(NBL_SCHEDULE_LINEAR, 0, 0, 10) == 1);
    assert_true(factor(NBL_SCHEDULE_LINEAR, 7, 4, 10) == 0.5);
    assert_true(factor(NBL_SCHEDULE_LINEAR, 12, 4, 10) == 0);
    assert_true(fabs(factor(NBL_SCHEDULE_COSINE, 7, 4, 10) - 0.5) < 1e-15);
    assert_true(factor(NBL_SCHEDULE_COSINE, 3, 12, 6) == 0.25);
    nbl__run_config config = {.warmup_steps = -1, .warmup_ratio = 0.25};
    assert_int_equal(nbl__schedule_warmup(&config, 9), 3);
    config.warmup_steps = 2;
    assert_int_equal(nbl__schedule_warmup(&config, 9), 2);
}

/* ---- runs ---- */

static void a_run_lowers_the_loss_and_leaves_its_files(void **state)
{
    fixture *f = *state;
    train_ok(f, "out", lora);
    assert_true(loss_of(f, "out", true) < loss_of(f, "out", false));
    static const char *const files[] = {"adapter_config.json", "run.yml", "checkpoint-2/trainer_state.json",
                                        "checkpoint-4/optimizer.safetensors",
                                        "checkpoint-6/nibble_state.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_int_equal(access(output(f, "out", files[i]), F_OK), 0);
    nbl_model *model;
    assert_ok(f->ctx, nbl_model_open(f->ctx, f->tiny.model,
                                     &(nbl_model_options){NBL_OPTIONS(nbl_model_options),
                                                          .adapter = in_folder(f->tiny.folder, "out")},
                                     &model));
    nbl_model_close(model);
}

static void the_same_run_gives_the_same_bytes_on_any_threads(void **state)
{
    fixture *f = *state;
    train_ok(f, "two", lora);
    nbl_context *one = new_context_with(1);
    assert_ok(one, train_in(f, one, "one", lora, NULL));
    nbl_context_destroy(one);
    assert_same_adapter(f, "one", "two");
}

/* Adapters are compared through the loss: weights that differ by rounding give one that differs by less. */
static void the_loss_does_not_depend_on_how_a_window_is_cut(void **state)
{
    fixture *f = *state;
    static const char *const ways[] = {"adapter: lora\nlora_r: 4\nlora_target_linear: "
                                       "true\ncurriculum_sampling: true\nshuffle_merged_datasets: false\n"
                                       "gradient_accumulation_steps: 1",
                                       "adapter: lora\nlora_r: 4\nlora_target_linear: "
                                       "true\ncurriculum_sampling: true\nshuffle_merged_datasets: false\n"
                                       "gradient_accumulation_steps: 1\ngradient_checkpointing: true"};
    train_ok(f, "whole", ways[0]);
    train_ok(f, "again", ways[1]);
    assert_same_adapter(f, "whole", "again"); /* recomputed values have the same bits */
    nbl_run *run = open_run(f, f->ctx, "cut", ways[0]);
    run->config.micro_batch_size = 1;
    run->config.gradient_accumulation_steps = 2;
    assert_ok(f->ctx, nbl_run_train(run, NULL, NULL));
    nbl_run_close(run);
    assert_true(fabs(loss_of(f, "cut", false) - loss_of(f, "whole", false)) < 1e-6);
    assert_true(fabs(loss_of(f, "cut", true) - loss_of(f, "whole", true)) < 1e-5);
}

static void a_run_that_was_stopped_ends_with_the_same_bytes(void **state)
{
    fixture *f = *state;
    train_ok(f, "whole", lora);
    for (int64_t step = 1; step < STEPS; step++) {
        char name[32];
        snprintf(name, sizeof name, "stopped-%d", (int)step);
        nbl_train_options options = {NBL_OPTIONS(nbl_train_options), .event = stop_at, .user = &step};
        assert_int_equal(train_in(f, f->ctx, name, lora, &options), NBL_ERROR_CANCELLED);
        assert_non_null(strstr(nbl_error_hint(f->ctx), "--resume"));
        assert_int_not_equal(access(output(f, name, "adapter_model.safetensors"), F_OK), 0);
        assert_ok(f->ctx, train_in(f, f->ctx, name, lora,
                                   &(nbl_train_options){NBL_OPTIONS(nbl_train_options), .resume = 1}));
        assert_same_adapter(f, "whole", name);
    }
}

static void a_damaged_checkpoint_is_passed_over(void **state)
{
    fixture *f = *state;
    train_ok(f, "whole", lora);
    train_ok(f, "torn", lora);
    static const char *const files[] = {"optimizer.safetensors", "adapter_model.safetensors",
                                        "nibble_state.json", "trainer_state.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char inner[128];
        snprintf(inner, sizeof inner, "checkpoint-6/%s", files[i]);
        const char *path = output(f, "torn", inner);
        size_t size;
        uint8_t *bytes = read_file(path, &size);
        bytes[size / 2] ^= 1; /* one bit */
        write_file(f->tiny.folder, "torn/damaged", bytes, size);
        assert_int_equal(rename(output(f, "torn", "damaged"), path), 0);
        free(bytes);
        assert_int_equal(nbl__checkpoint_verify(f->ctx, output(f, "torn", "checkpoint-6")) == NBL_OK, 0);
        assert_ok(f->ctx, train_in(f, f->ctx, "torn", lora,
                                   &(nbl_train_options){NBL_OPTIONS(nbl_train_options), .resume = 1}));
        assert_same_adapter(f, "whole", "torn");
    }
}

static void a_run_that_begins_anew_loses_nothing(void **state)
{
    fixture *f = *state;
    train_ok(f, "out", lora);
    size_t size;
    uint8_t *first = read_file(output(f, "out", "adapter_model.safetensors"), &size);
    train_ok(f, "out", "adapter: lora\nlora_r: 2\nlora_target_linear: true");
    assert_file_equals(output(f, "out", "earlier-1/adapter_model.safetensors"), first, size);
    assert_int_equal(access(output(f, "out", "earlier-1/checkpoint-6"), F_OK), 0);
    free(first);
}

/* ---- what fails ---- */

/* Each operation that writes fails once; what was saved before it serves to go on. */
static void after_any_failed_write_a_run_can_go_on(void **state)
{
    fixture *f = *state;
    train_ok(f, "whole", lora);
    int64_t failures = 0;
    for (int64_t n = 1;; n += 1 + n / 16) { /* all of the first, then fewer and fewer */
        char name[32];
        snprintf(name, sizeof name, "failing-%d", (int)n);
        nbl_run *run = open_run(f, f->ctx, name, lora);
        nbl__inject_write(f->ctx, n);
        nbl_status status = nbl_run_train(run, NULL, NULL);
        nbl__inject_write(f->ctx, 0);
        nbl_run_close(run);
        if (status == NBL_OK) break;
        failures++;
        assert_int_equal(status, NBL_ERROR_IO);
        assert_ok(f->ctx, train_in(f, f->ctx, name, lora,
                                   &(nbl_train_options){NBL_OPTIONS(nbl_train_options), .resume = 1}));
        assert_same_adapter(f, "whole", name);
        remove_tree(in_folder(f->tiny.folder, name));
    }
    assert_true(failures > 40);
}

static void a_weight_that_is_infinite_is_named(void **state)
{
    fixture *f = *state;
    size_t size;
    char *bytes = (char *)read_file(in_folder(f->tiny.model, "model.safetensors"), &size);
    uint64_t header;
    memcpy(&header, bytes, sizeof header);
    char *entry = NULL;
    for (size_t i = 8; i < 8 + header && entry == NULL; i++)
        if (strncmp(bytes + i, "model.layers.1.mlp.up_proj.weight", 33) == 0) entry = bytes + i;
    assert_non_null(entry);
    uint64_t offset = strtoull(strstr(entry, "data_offsets\":[") + 15, NULL, 10);
    float infinite = INFINITY;
    memcpy(bytes + 8 + header + offset, &infinite, sizeof infinite);
    write_file(f->tiny.model, "model.safetensors", bytes, size);
    free(bytes);
    assert_int_equal(train_in(f, f->ctx, "out", lora, NULL), NBL_ERROR_FORMAT);
    assert_non_null(strstr(nbl_error_message(f->ctx), "layers.1"));
    assert_int_not_equal(access(output(f, "out", "adapter_model.safetensors"), F_OK), 0);
}

static void other_data_are_not_gone_on_with(void **state)
{
    fixture *f = *state;
    int64_t step = 3;
    nbl_train_options options = {NBL_OPTIONS(nbl_train_options), .event = stop_at, .user = &step};
    assert_int_equal(train_in(f, f->ctx, "out", lora, &options), NBL_ERROR_CANCELLED);
    static const char row[] = "{\"input_ids\": [1, 2, 3, 4], \"labels\": [1, 2, 3, 4]}\n";
    write_file(f->tiny.folder, "rows.jsonl", row, sizeof row - 1);
    assert_int_equal(
        train_in(f, f->ctx, "out", lora, &(nbl_train_options){NBL_OPTIONS(nbl_train_options), .resume = 1}),
        NBL_ERROR_FORMAT);
    assert_non_null(strstr(nbl_error_message(f->ctx), "other data"));
}

/* ---- whatever is trained, in whatever is stored ---- */

/* Models of one dtype after another in one process: no state of one reaches the next. */
static void runs_of_several_dtypes_in_one_process_do_not_touch_each_other(void **state)
{
    fixture *f = *state;
    static const char *const dtypes[] = {"bf16: true", "fp16: true", "bf16: true", "bf16: false",
                                         "fp16: true"};
    enum { RUNS = sizeof dtypes / sizeof *dtypes };
    for (int i = 0; i < RUNS; i++) {
        char keys[512], together[32], alone[32];
        snprintf(keys, sizeof keys, "%s\n%s", lora, dtypes[i]);
        snprintf(together, sizeof together, "together-%d", i);
        snprintf(alone, sizeof alone, "alone-%d", i);
        train_ok(f, together, keys);
        nbl_context *ctx = new_context();
        assert_ok(ctx, train_in(f, ctx, alone, keys, NULL));
        nbl_context_destroy(ctx);
        assert_same_adapter(f, together, alone);
        assert_true(loss_of(f, alone, true) < loss_of(f, alone, false));
    }
}

static void every_storage_and_method_trains_and_resumes(void **state)
{
    fixture *f = *state;
    static const char *const ways[] = {
        "adapter: qlora\nload_in_4bit: true\nlora_r: 4\nlora_target_linear: true",
        "adapter: qlora\nload_in_4bit: true\nbnb_4bit_quant_type: fp4\nbnb_4bit_use_double_quant: "
        "false\nlora_r: 4\n"
        "lora_target_linear: true\npeft_use_dora: true\nbf16: true",
        "adapter: lora\nload_in_8bit: true\nlora_r: 4\nlora_target_modules: [q_proj, "
        "down_proj]\npeft_use_rslora: true\nfp16: true",
        "adapter: lora\nlora_r: 2\nlora_target_linear: true\nlora_modules_to_save: [lm_head, embed_tokens]",
        "optimizer: adamw_8bit\nadapter: lora\nlora_r: 128\nlora_target_linear: true\nsample_packing: "
        "true\nsequence_len: 64",
        "weight_decay: 0.1", /* the whole model */
        "bf16: true\noptimizer: adamw_8bit"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char whole[32], stopped[32];
        int64_t step = 3;
        bool full = strstr(ways[i], "adapter") == NULL;
        nbl_train_options options = {NBL_OPTIONS(nbl_train_options), .event = stop_at, .user = &step};
        snprintf(whole, sizeof whole, "whole-%d", (int)i);
        snprintf(stopped, sizeof stopped, "stopped-%d", (int)i);
        train_ok(f, whole, ways[i]);
        assert_true(loss_of(f, whole, true) < loss_of(f, whole, false));
        assert_int_equal(train_in(f, f->ctx, stopped, ways[i], &options), NBL_ERROR_CANCELLED);
        assert_ok(f->ctx, train_in(f, f->ctx, stopped, ways[i],
                                   &(nbl_train_options){NBL_OPTIONS(nbl_train_options), .resume = 1}));
        const char *file = full ? "model.safetensors" : "adapter_model.safetensors";
        assert_same_file(output(f, whole, file), output(f, stopped, file));
    }
}

/* ---- what changes at every step ---- */

/* Rows of one length. In row i all but i tokens are trained. */
static void write_even_rows(const fixture *f)
{
    char text[4096];
    int size = 0;
    for (int row = 0; row < 8; row++) {
        char ids[256] = "", labels[256] = "";
        for (int i = 0; i < 12; i++) {
            const char *comma = i ? ", " : "";
            int id = (17 * row + 5 * i) % TINY_VOCAB;
            snprintf(ids + strlen(ids), sizeof ids - strlen(ids), "%s%d", comma, id);
            snprintf(labels + strlen(labels), sizeof labels - strlen(labels), "%s%d", comma,
                     i <= row ? -100 : id);
        }
        size += snprintf(text + size, sizeof text - (size_t)size, "{\"input_ids\": [%s], \"labels\": [%s]}\n",
                         ids, labels);
    }
    write_file(f->tiny.folder, "rows.jsonl", text, (size_t)size);
}

/* A device replays the captured graph of a run whose key it knows. */
static void a_step_with_other_seeds_is_the_same_graph(void **state)
{
    fixture *f = *state;
    enum { RUNS = 5 };
    write_even_rows(f);
    char keys[512];
    snprintf(keys, sizeof keys, "%s\nval_set_size: 2", lora);
    nbl_run *run = open_run(f, f->ctx, "out", keys);
    nbl_train_options options = {NBL_OPTIONS(nbl_train_options)};
    nbl__trainer t;
    assert_ok(f->ctx, nbl__trainer_open(f->ctx, &run->config, &options, &t));
    const nbl__plan *plan = &t.session.plan;
    uint64_t key[RUNS], seed[RUNS];
    float denominator[RUNS];
    bool other_denominators = false;
    for (int i = 0; i < RUNS; i++) {
        nbl__step_result result;
        double loss;
        assert_ok(f->ctx, nbl__trainer_step(&t, false, &result));
        key[i] = nbl__plan_key(plan, plan->step_count, false);
        seed[i] = *(uint64_t *)nbl__plan_data(plan, t.session.seeds);
        denominator[i] = *(float *)nbl__plan_data(plan, t.session.build.denominator);
        assert_true(key[i] == key[0] && denominator[i] == (float)result.trained);
        for (int k = 0; k < i; k++) assert_true(seed[k] != seed[i]);
        other_denominators |= denominator[i] != denominator[0];
        if (i % 2 == 0) assert_ok(f->ctx, nbl__trainer_evaluate(&t, &loss));
    }
    assert_true(other_denominators);
    bool captured = false;
    for (int i = 0; i < NBL_PLAN_CAPTURED_GRAPHS; i++)
        captured |= plan->captured_graphs[i].key == key[0] && plan->captured_graphs[i].graph;
    assert_true(captured == nbl__device_of(f->ctx)->captures);
    nbl__trainer_close(&t);
    nbl_run_close(run);
}

/* ---- gradients of an adapter that was trained with dropout ---- */

static double gradients_loss(const fixture *f, const char *name, int dropout)
{
    static const int32_t tokens[] = {3, 1, 4, 1, 5, 9, 2, 6};
    const nbl_ids ids = {.ids = (int32_t *)(uintptr_t)tokens, .count = 8};
    nbl_model *model;
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .adapter = in_folder(f->tiny.folder, "out")};
    double loss;
    int64_t trained;
    assert_ok(f->ctx, nbl_model_open(f->ctx, f->tiny.model, &options, &model));
    assert_ok(f->ctx, nbl_model_write_gradients(model, &ids, &ids, 1, 0, dropout, output(f, "out", name), 0,
                                                &loss, &trained));
    nbl_model_close(model);
    return loss;
}

static void gradients_have_dropout_only_when_asked(void **state)
{
    fixture *f = *state;
    char command[1024];
    train_ok(f, "out", lora); /* lora_dropout: 0.1 */
    double plain = gradients_loss(f, "plain", 0), dropped = gradients_loss(f, "dropped", 1);
    assert_true(plain != dropped);
    assert_true(dropped == gradients_loss(f, "again", 1));
    assert_same_file(output(f, "out", "dropped"), output(f, "out", "again"));
    snprintf(command, sizeof command, "sed -i 's/\"lora_dropout\": *[^,]*/\"lora_dropout\": 0.0/' %s",
             output(f, "out", "adapter_config.json"));
    assert_int_equal(system(command), 0);
    assert_true(plain == gradients_loss(f, "none", 0));
    assert_same_file(output(f, "out", "plain"), output(f, "out", "none"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules_are_those_of_transformers),
        cmocka_unit_test(cosines_end_above_zero_and_warm_up_by_squares),
        TEST(a_run_lowers_the_loss_and_leaves_its_files),
        TEST(the_same_run_gives_the_same_bytes_on_any_threads),
        TEST(the_loss_does_not_depend_on_how_a_window_is_cut),
        TEST(a_run_that_was_stopped_ends_with_the_same_bytes),
        TEST(a_damaged_checkpoint_is_passed_over),
        TEST(a_run_that_begins_anew_loses_nothing),
        TEST(after_any_failed_write_a_run_can_go_on),
        TEST(a_weight_that_is_infinite_is_named),
        TEST(a_step_with_other_seeds_is_the_same_graph),
        TEST(gradients_have_dropout_only_when_asked),
        TEST(other_data_are_not_gone_on_with),
        TEST(runs_of_several_dtypes_in_one_process_do_not_touch_each_other),
        TEST(every_storage_and_method_trains_and_resumes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
