/* test_resume_changes.c - runs that are resumed with another configuration than the one they began with: what may
 * change, what may not, and what the run tells of it. */
#include "tiny_run.h"

#include "run/fingerprint.h"
#include "run/run_keys.h"

static const char usual[] = "adapter: lora\nlora_r: 4\nlora_alpha: 8\nlora_target_modules: [q_proj, v_proj]\n"
                            "lora_dropout: 0.1\nweight_decay: 0.0\nval_set_size: 2";

static void stop_at_three(const fixture *f, const char *keys)
{
    int64_t step = 3;
    nbl_train_options options = {NBL_OPTIONS(nbl_train_options), .event = stop_at, .user = &step};
    remove_tree(in_folder(f->tiny.folder, "out"));
    assert_int_equal(train_in(f, f->ctx, "out", keys, &options), NBL_ERROR_CANCELLED);
}

/* Goes on with these keys beside, or in place of, the usual ones. */
static nbl_status go_on(const fixture *f, const char *from, const char *to, bool allow)
{
    char keys[2048];
    const char *at = *from ? strstr(usual, from) : usual + strlen(usual);
    assert_non_null(at);
    snprintf(keys, sizeof keys, "%.*s%s%s%s", (int)(at - usual), usual, *from ? "" : "\n", to,
             at + strlen(from));
    return train_in(
        f, f->ctx, "out", keys,
        &(nbl_train_options){NBL_OPTIONS(nbl_train_options), .resume = 1, .allow_changes = allow});
}

static void assert_says(const fixture *f, const char *text)
{
    if (strstr(nbl_error_message(f->ctx), text) == NULL)
        fail_msg("%s\nlacks %s", nbl_error_message(f->ctx), text);
}

static void assert_hints(const fixture *f, const char *text)
{
    if (strstr(nbl_error_hint(f->ctx), text) == NULL) fail_msg("%s\nlacks %s", nbl_error_hint(f->ctx), text);
}

static bool holds(const fixture *f, const char *file, const char *text)
{
    size_t size;
    char *bytes = (char *)read_file(output(f, "out", file), &size);
    bytes[size] = '\0';
    bool found = strstr(bytes, text) != NULL;
    free(bytes);
    return found;
}

static void a_key_that_decides_about_bytes_is_refused_by_name(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *from, *to, *message;
        bool allowed;
    } cases[] = {
        {"lora_r: 4", "lora_r: 8", "lora_r was 4, is 8", false},
        {"lora_alpha: 8", "lora_alpha: 16", "lora_alpha was 8.0, is 16.0", false},
        {"lora_dropout: 0.1", "lora_dropout: 0.2", "lora_dropout was 0.1, is 0.2", false},
        {"", "peft_use_rslora: true", "peft_use_rslora was false, is true", false},
        {"", "peft_use_dora: true", "peft_use_dora was false, is true", false},
        {"[q_proj, v_proj]", "[q_proj]", "lora_target_modules was [\"q_proj\", \"v_proj\"], is [\"q_proj\"]",
         false},
        {"", "bnb_4bit_quant_type: fp4", "bnb_4bit_quant_type was nf4, is fp4", false},
        {"", "load_in_4bit: true", "load_in_4bit was false, is true", false},
        {"", "seed: 6", "seed was 5, is 6", false},
        {"", "optimizer: adamw_8bit", "optimizer was adamw_torch, is adamw_bnb_8bit", false},
        {"", "sequence_len: 1024", "sequence_len was 2048, is 1024", false},
        {"", "eot_tokens: [a]", "eot_tokens was not given, is [\"a\"]", false},
        {"", "special_tokens: {pad_token: a}", "special_tokens.pad_token was not given, is \"a\"", false},
        {"", "micro_batch_size: 1", "micro_batch_size was 2, is 1", false},
        {"", "gradient_accumulation_steps: 2", "gradient_accumulation_steps was 1, is 2", false},
        {"val_set_size: 2", "val_set_size: 3", "val_set_size was 2.0, is 3.0", false},
        {"", "learning_rate: 0.02", "learning_rate was 0.01, is 0.02", true},
        {"", "lr_scheduler: linear", "lr_scheduler was cosine, is linear", true},
        {"", "warmup_ratio: 0.5", "warmup_ratio was 0.0, is 0.5", true},
        {"", "bf16: true", "bf16 was false, is true", true},
        {"", "fp16: true", "fp16 was false, is true", true},
        {"weight_decay: 0.0", "weight_decay: 0.1", "weight_decay was 0.0, is 0.1", true},
    };
    stop_at_three(f, usual);
    char command[1024], kept[512];
    snprintf(kept, sizeof kept, "%s", in_folder(f->tiny.folder, "kept"));
    snprintf(command, sizeof command, "cp -r %s %s", in_folder(f->tiny.folder, "out"), kept);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (go_on(f, cases[i].from, cases[i].to, false) != NBL_ERROR_ARGUMENT)
            fail_msg("taken: %s", cases[i].to);
        assert_says(f, "checkpoint-3");
        assert_says(f, cases[i].message);
        assert_hints(f, cases[i].allowed ? "--allow-changes" : "begin anew");
        nbl_status status = go_on(f, cases[i].from, cases[i].to, true);
        if (!cases[i].allowed) {
            if (status != NBL_ERROR_ARGUMENT) fail_msg("taken: %s", cases[i].to);
            assert_says(f, cases[i].message);
            continue;
        }
        assert_ok(f->ctx, status);
        if (!holds(f, "run.yml", "# history") || !holds(f, "run.yml", cases[i].message))
            fail_msg("run.yml does not tell of %s", cases[i].to);
        remove_tree(in_folder(f->tiny.folder, "out"));
        snprintf(command, sizeof command, "cp -r %s %s", kept, in_folder(f->tiny.folder, "out"));
        assert_int_equal(system(command), 0);
    }
    assert_false(holds(f, "run.yml", "history"));
}

static void all_changes_are_told_at_once(void **state)
{
    fixture *f = *state;
    stop_at_three(f, usual);
    assert_int_equal(go_on(f, "", "seed: 6\nlearning_rate: 0.02\npeft_use_dora: true\nmax_steps: 9", true),
                     NBL_ERROR_ARGUMENT);
    assert_says(f, "peft_use_dora, seed, learning_rate\n");
    assert_says(f, "seed was 5, is 6");
    assert_says(f, "peft_use_dora was false, is true");
    assert_says(f, "learning_rate was 0.01, is 0.02");
    assert_hints(f, "set peft_use_dora, seed back");
    assert_true(holds(f, "run.yml", "seed: 5"));
}

static void keys_that_decide_about_nothing_may_change(void **state)
{
    fixture *f = *state;
    stop_at_three(f, usual);
    assert_ok(f->ctx, go_on(f, "",
                            "save_steps: 3\nlogging_steps: 2\nsave_total_limit: 1\n"
                            "report: false\ngradient_checkpointing: true\nthreads: 1\nmemory: 1G\n"
                            "loss_watchdog_threshold: 50\neval_steps: 2\npad_to_sequence_len: true",
                            false));
    assert_false(holds(f, "run.yml", "history"));
}

/* They decide how later steps are made, or how many: run.yml alone would not give the same bytes. */
static void length_and_machine_may_change_and_the_history_tells(void **state)
{
    fixture *f = *state;
    int64_t step = 4;
    char keys[1024];
    snprintf(keys, sizeof keys, "%s\nmax_steps: 8", usual);
    setenv("NIBBLE_ISA", "scalar", 1);
    nbl_context *scalar = new_context();
    unsetenv("NIBBLE_ISA");
    stop_at_three(f, usual);
    assert_int_equal(train_in(f, scalar, "out", keys,
                              &(nbl_train_options){NBL_OPTIONS(nbl_train_options), .resume = 1,
                                                   .event = stop_at, .user = &step}),
                     NBL_ERROR_CANCELLED);
    assert_true(holds(f, "run.yml", "step 3: max_steps was 6, is 8"));
    assert_true(strcmp(nbl_isa_name(f->ctx), "scalar") == 0 || holds(f, "run.yml", "computed_on was "));
    assert_ok(f->ctx, go_on(f, "", "max_steps: 8\nnum_epochs: 9", false));
    assert_true(holds(f, "run.yml", "step 3: max_steps was 6, is 8"));
    assert_true(holds(f, "run.yml", "step 4: num_epochs was 1.0, is 9.0"));
    assert_true(strcmp(nbl_isa_name(f->ctx), "scalar") == 0 ||
                holds(f, "run.yml", "computed_on was scalar, is "));
    nbl_context_destroy(scalar);
}

static void checkpoints_of_before_a_change_are_moved(void **state)
{
    fixture *f = *state;
    char keys[1024];
    train_ok(f, "out", usual); /* leaves checkpoint-2, -4 and -6 */
    snprintf(keys, sizeof keys, "%s\nresume_from_checkpoint: %s/out/checkpoint-2", usual, f->tiny.folder);
    train_ok(f, "out", keys); /* the same again: its checkpoints are those */
    assert_false(nbl__exists(output(f, "out", "earlier-1")));
    snprintf(keys, sizeof keys, "%s\nmax_steps: 3\nresume_from_checkpoint: %s/out/checkpoint-2", usual,
             f->tiny.folder);
    train_ok(f, "out", keys);
    static const char *const moved[] = {"checkpoint-4", "checkpoint-6"}, *const kept[] = {"checkpoint-2",
                                                                                          "checkpoint-3"};
    for (int i = 0; i < 2; i++) {
        char earlier[64];
        snprintf(earlier, sizeof earlier, "earlier-1/%s", moved[i]);
        assert_true(nbl__exists(output(f, "out", earlier)));
        assert_false(nbl__exists(output(f, "out", moved[i])));
        assert_true(nbl__exists(output(f, "out", kept[i])));
    }
}

static void a_checkpoint_of_another_folder_overwrites_no_run(void **state)
{
    fixture *f = *state;
    char keys[1024];
    stop_at_three(f, usual);
    train_ok(f, "other", "adapter: lora\nlora_r: 2\nlora_target_linear: true");
    size_t size, size_now;
    uint8_t *bytes = read_file(output(f, "other", "adapter_model.safetensors"), &size);
    snprintf(keys, sizeof keys, "%s\nresume_from_checkpoint: %s/out/checkpoint-3", usual, f->tiny.folder);
    train_ok(f, "other", keys);
    uint8_t *now = read_file(output(f, "other", "earlier-1/adapter_model.safetensors"), &size_now);
    assert_true(size == size_now && memcmp(bytes, now, size) == 0);
    assert_true(nbl__exists(output(f, "other", "earlier-1/checkpoint-6")));
    assert_true(nbl__exists(output(f, "other", "earlier-1/metrics.jsonl")));
    free(bytes);
    free(now);
}

static void a_change_that_was_allowed_stays_in_the_history(void **state)
{
    fixture *f = *state;
    int64_t step = 5;
    nbl_train_options options = {NBL_OPTIONS(nbl_train_options), .resume = 1, .allow_changes = 1,
                                 .event = stop_at, .user = &step};
    char keys[1024];
    stop_at_three(f, usual);
    snprintf(keys, sizeof keys, "%s\nlearning_rate: 0.02", usual);
    assert_int_equal(train_in(f, f->ctx, "out", keys, &options), NBL_ERROR_CANCELLED);
    assert_int_equal(go_on(f, "", "", false), NBL_ERROR_ARGUMENT); /* back again is a change, too */
    assert_says(f, "learning_rate was 0.02, is 0.01");
    assert_ok(f->ctx, go_on(f, "", "learning_rate: 0.02", false));
    static const char *const files[] = {"run.yml", "report.html", "checkpoint-6/nibble_state.json"};
    for (int i = 0; i < 3; i++)
        if (!holds(f, files[i], "step 3: learning_rate was 0.01, is 0.02")) fail_msg("%s", files[i]);
    assert_true(holds(f, "run.yml", "\nlearning_rate: 0.02\n"));
    /* What is written is still a run's file. */
    nbl_run *run;
    char *path = strdup(output(f, "out", "run.yml"));
    assert_ok(f->ctx, nbl_run_open(f->ctx, path, NULL, 0, &run));
    nbl_run_close(run);
    free(path);
}

static void changes_are_allowed_only_where_a_run_goes_on(void **state)
{
    fixture *f = *state;
    assert_int_equal(train_in(f, f->ctx, "out", usual,
                              &(nbl_train_options){NBL_OPTIONS(nbl_train_options), .allow_changes = 1}),
                     NBL_ERROR_ARGUMENT);
    assert_says(f, "--allow-changes needs --resume");
}

/* A checkpoint of another dtype has another scale of gradients, or none. */
static void the_loss_scale_belongs_to_f16(void **state)
{
    fixture *f = *state;
    char keys[1024];
    snprintf(keys, sizeof keys, "%s\nfp16: true", usual);
    stop_at_three(f, keys);
    assert_true(holds(f, "checkpoint-3/nibble_state.json", "\"loss_scale\": 65536"));
    assert_ok(f->ctx, go_on(f, "", "", true));
    assert_true(holds(f, "checkpoint-6/nibble_state.json", "\"loss_scale\": 1.0"));
}

static void flip_last_byte(const char *folder, const char *name)
{
    size_t size;
    uint8_t *bytes = read_file(in_folder(folder, name), &size);
    bytes[size - 1] ^= 1;
    write_file(folder, name, bytes, size);
    free(bytes);
}

static void another_base_model_is_refused_wherever_it_lies(void **state)
{
    fixture *f = *state;
    char command[1024], keys[1024];
    stop_at_three(f, usual);
    snprintf(command, sizeof command, "cp -r %s %s/moved", f->tiny.model, f->tiny.folder);
    assert_int_equal(system(command), 0);
    snprintf(keys, sizeof keys, "base_model: %s/moved\nmax_steps: 4", f->tiny.folder);
    assert_ok(f->ctx, go_on(f, "", keys, false)); /* the same bytes */
    flip_last_byte(in_folder(f->tiny.folder, "moved"), "model.safetensors");
    assert_int_equal(go_on(f, "", keys, true), NBL_ERROR_ARGUMENT);
    assert_says(f, "base_model was files with checksum ");
    flip_last_byte(in_folder(f->tiny.folder, "moved"), "model.safetensors");
    write_file(f->tiny.folder, "moved/config.json.new", "x", 1);
    assert_ok(f->ctx, go_on(f, "", keys, false)); /* what is no part of the model does not count */
    snprintf(command, sizeof command,
             "sed -i 's/\"rms_norm_eps\": *[^,]*/\"rms_norm_eps\": 0.5/' %s/moved/config.json",
             f->tiny.folder);
    assert_int_equal(system(command), 0);
    assert_int_equal(go_on(f, "", keys, false), NBL_ERROR_ARGUMENT);
    assert_says(f, "base_model was files with checksum ");
}

static void another_start_adapter_is_refused(void **state)
{
    fixture *f = *state;
    char keys[1024], same[1100];
    train_ok(f, "first", usual);
    snprintf(keys, sizeof keys, "adapter: lora\nlora_model_dir: %s/first", f->tiny.folder);
    stop_at_three(f, keys);
    nbl_train_options resume = {NBL_OPTIONS(nbl_train_options), .resume = 1, .allow_changes = 1};
    snprintf(same, sizeof same, "%s\nmax_steps: 4", keys);
    assert_ok(f->ctx, train_in(f, f->ctx, "out", same, &resume));
    flip_last_byte(in_folder(f->tiny.folder, "first"), "adapter_model.safetensors");
    assert_int_equal(train_in(f, f->ctx, "out", keys, &resume), NBL_ERROR_ARGUMENT);
    assert_says(f, "lora_model_dir was files with checksum ");
    assert_int_equal(go_on(f, "", "", true), NBL_ERROR_ARGUMENT);
    assert_says(f, "lora_model_dir was files with checksum ");
    assert_says(f, "is not given");
}

static void edit_state(const fixture *f, const char *from, const char *to)
{
    char command[1024];
    assert_true(holds(f, "checkpoint-3/nibble_state.json", from));
    snprintf(command, sizeof command, "sed -i 's/%s/%s/' %s", from, to,
             output(f, "out", "checkpoint-3/nibble_state.json"));
    assert_int_equal(system(command), 0);
    assert_true(holds(f, "checkpoint-3/nibble_state.json", to));
}

static void an_edited_state_is_noticed(void **state)
{
    fixture *f = *state;
    static const char *const edits[][2] = {{"\"step\": 3", "\"step\": 2"},
                                           {"\"epoch\": 0", "\"epoch\": 1"},
                                           {"\"batch\": 3", "\"batch\": 2"},
                                           {"\"lora_r\": \"4\"", "\"lora_r\": \"8\""}};
    char keys[1024];
    snprintf(keys, sizeof keys, "resume_from_checkpoint: %s/out/checkpoint-3", f->tiny.folder);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        stop_at_three(f, usual);
        edit_state(f, edits[i][0], edits[i][1]);
        assert_int_equal(go_on(f, "", keys, false), NBL_ERROR_FORMAT);
        assert_says(f, "damaged or edited");
    }
}

/* What an older nibble wrote says too little to go on from it; it must not be passed over either. */
static void a_state_of_the_first_version_is_refused(void **state)
{
    fixture *f = *state;
    stop_at_three(f, usual);
    edit_state(f, "\"version\": 3", "\"version\": 1");
    assert_int_equal(go_on(f, "", "", false), NBL_ERROR_UNSUPPORTED);
    assert_says(f, "an older nibble wrote it");
    assert_hints(f, "begin anew without --resume");
}

/* ---- fingerprints ---- */

static void a_fingerprint_depends_on_every_byte_and_on_no_thread(void **state)
{
    fixture *f = *state;
    enum { SIZE = 2 * NBL_FINGERPRINT_PIECE + 5 };
    uint8_t *bytes = malloc(SIZE);
    uint64_t size, first, hash;
    for (size_t i = 0; i < SIZE; i++) bytes[i] = (uint8_t)(i * 7 >> 3);
    write_file(f->tiny.folder, "large", bytes, SIZE);
    char path[512];
    snprintf(path, sizeof path, "%s", in_folder(f->tiny.folder, "large"));
    assert_ok(f->ctx, nbl__fingerprint_file(f->ctx, path, &size, &first));
    assert_int_equal(size, SIZE);
    for (int threads = 1; threads < 4; threads++) {
        assert_ok(f->ctx, nbl_context_set_threads(f->ctx, threads));
        assert_ok(f->ctx, nbl__fingerprint_file(f->ctx, path, &size, &hash));
        assert_true(hash == first);
    }
    static const size_t offsets[] = {0, NBL_FINGERPRINT_PIECE - 1, NBL_FINGERPRINT_PIECE, SIZE - 1};
    for (int i = 0; i < 4; i++) {
        bytes[offsets[i]] ^= 0x80;
        write_file(f->tiny.folder, "large", bytes, SIZE);
        assert_ok(f->ctx, nbl__fingerprint_file(f->ctx, path, &size, &hash));
        assert_true(hash != first);
        bytes[offsets[i]] ^= 0x80;
    }
    free(bytes);
}

/* ---- the documentation ---- */

/* The paragraph of docs/TRAINING.md that begins with a mark names these keys, in this order, and no others. */
static void check_list(const char *doc, const char *mark, nbl__resume_rule rule)
{
    const char *at = strstr(doc, mark);
    if (at == NULL) fail_msg("docs/TRAINING.md has no \"%s\"", mark);
    const char *end = strstr(at, "\n\n");
    assert_non_null(end);
    at += strlen(mark);
    for (int i = 0; i < NBL_RUN_KEYS; i++) {
        if (nbl__run_keys[i].resume != rule || nbl__run_keys[i].unwritten) continue;
        const char *open = strchr(at, '`'), *close = open ? strchr(open + 1, '`') : NULL;
        size_t size = strlen(nbl__run_keys[i].name);
        if (close == NULL || close > end || (size_t)(close - open - 1) != size ||
            strncmp(open + 1, nbl__run_keys[i].name, size) != 0)
            fail_msg("docs/TRAINING.md, \"%s\": `%s` is missing, or not in the table's order", mark,
                     nbl__run_keys[i].name);
        at = close + 1;
    }
    const char *more = strchr(at, '`');
    if (more && more < end) fail_msg("docs/TRAINING.md, \"%s\": too much: %.40s", mark, more);
}

static void the_documentation_lists_what_may_change(void **state)
{
    (void)state;
    size_t size;
    char *doc = (char *)read_file(TEST_DATA_DIR "/../../docs/TRAINING.md", &size);
    doc[size] = '\0';
    check_list(doc, "**May change freely:**", NBL_RESUME_IGNORE);
    check_list(doc, "**May change, and the history says so:**", NBL_RESUME_RECORD);
    check_list(doc, "**May change with `--allow-changes`:**", NBL_RESUME_ALLOW);
    check_list(doc, "**Never:**", NBL_RESUME_NEVER);
    free(doc);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_key_that_decides_about_bytes_is_refused_by_name),
        TEST(all_changes_are_told_at_once),
        TEST(keys_that_decide_about_nothing_may_change),
        TEST(length_and_machine_may_change_and_the_history_tells),
        TEST(checkpoints_of_before_a_change_are_moved),
        TEST(a_checkpoint_of_another_folder_overwrites_no_run),
        TEST(a_change_that_was_allowed_stays_in_the_history),
        TEST(changes_are_allowed_only_where_a_run_goes_on),
        TEST(the_loss_scale_belongs_to_f16),
        TEST(another_base_model_is_refused_wherever_it_lies),
        TEST(another_start_adapter_is_refused),
        TEST(an_edited_state_is_noticed),
        TEST(a_state_of_the_first_version_is_refused),
        TEST(a_fingerprint_depends_on_every_byte_and_on_no_thread),
        TEST(the_documentation_lists_what_may_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
