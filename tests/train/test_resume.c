/* test_resume.c - runs that find something in their folder: checkpoints that somebody made up, links, models, other
 * runs; and runs whose memory runs out. */
#define _GNU_SOURCE /* memmem */
#include "tiny_run.h"

#include <math.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "run/fingerprint.h"
#include "train/output_dir.h"
#include "report/records.h"
#include "train/resume_state.h"

/* ---- memory ---- */

/* Each allocation fails once: nothing leaks, and what was saved before serves to go on. */
static void no_failed_allocation(const fixture *f, const char *keys, const char *file, int64_t sparse)
{
    train_ok(f, "whole", keys);
    int64_t failures = 0;
    for (int64_t n = 1;; n += 1 + n / sparse) {
        nbl__counter counter = {.fail_at = n};
        nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1,
                                       .allocator = nbl__counting_allocator(&counter)};
        nbl_context *ctx = NULL;
        nbl_run *run = NULL;
        const char *file_of_run = write_run(f, "failing", keys);
        nbl_status status = nbl_context_create(&options, &ctx);
        if (status == NBL_OK) status = nbl_run_open(ctx, file_of_run, NULL, 0, &run);
        if (status == NBL_OK) status = nbl_run_train(run, NULL, NULL);
        nbl_run_close(run);
        nbl_context_destroy(ctx);
        if (counter.live != 0) fail_msg("allocation %d: %d leak", (int)n, (int)counter.live);
        if (status == NBL_OK) break;
        failures++;
        if (status != NBL_ERROR_MEMORY) fail_msg("allocation %d: %s", (int)n, nbl_status_name(status));
        assert_ok(f->ctx, train_in(f, f->ctx, "failing", keys,
                                   &(nbl_train_options){NBL_OPTIONS(nbl_train_options), .resume = 1}));
        assert_same_file(output(f, "whole", file), output(f, "failing", file));
        remove_tree(in_folder(f->tiny.folder, "failing"));
    }
    assert_true(failures > 30);
}

static void after_any_failed_allocation_an_adapter_can_go_on(void **state)
{
    char keys[512];
    snprintf(keys, sizeof keys, "%s\nval_set_size: 2\nsave_steps: 3\nmax_steps: 4", lora);
    no_failed_allocation(*state, keys, "adapter_model.safetensors", 40);
}

static void after_any_failed_allocation_a_whole_model_can_go_on(void **state)
{
    no_failed_allocation(*state, "sample_packing: true\nsequence_len: 32\nsave_steps: 2\nmax_steps: 3",
                         "model.safetensors", 16);
}

/* ---- checkpoints that somebody made up ---- */

/* Writes nibble_state.json of checkpoint-3 with the right checksum at its end, if there is one to be replaced. */
static void forge_state(const fixture *f, const char *bytes, size_t size)
{
    static const char last[] = ",\n  \"checksum\": ";
    nbl__text text = {.ctx = f->ctx};
    const char *seal = NULL;
    for (const char *at = bytes; (at = memmem(at, size - (size_t)(at - bytes), last, sizeof last - 1)); at++)
        seal = at;
    nbl__text_add(&text, bytes, seal ? (size_t)(seal - bytes) : size);
    if (seal) nbl__state_seal(&text);
    write_file(f->tiny.folder, "out/checkpoint-3/nibble_state.json", text.text, text.size);
    nbl__text_free(&text);
}

/* The checksum of a file of one piece. */
static uint64_t checksum(const void *bytes, size_t size)
{
    uint64_t hash = nbl__hash(0, bytes, size);
    assert_true(size > 0 && size <= NBL_FINGERPRINT_PIECE);
    return nbl__hash(0, &hash, sizeof hash);
}

/* Writes a file of checkpoint-3, and its size and checksum into nibble_state.json. */
static void forge(const fixture *f, const char *name, const void *bytes, size_t size)
{
    char inner[128], *entry, *rest, key[128];
    size_t state_size;
    if (strcmp(name, "nibble_state.json") == 0) {
        forge_state(f, bytes, size);
        return;
    }
    snprintf(inner, sizeof inner, "out/checkpoint-3/%s", name);
    write_file(f->tiny.folder, inner, bytes, size);
    char *text = (char *)read_file(output(f, "out", "checkpoint-3/nibble_state.json"), &state_size);
    text[state_size] = '\0';
    snprintf(key, sizeof key, "\"%s\": [", name);
    assert_non_null(entry = strstr(text, key));
    assert_non_null(rest = strchr(entry, ']'));
    char *made = malloc(state_size + 64);
    int length = snprintf(made, state_size + 64, "%.*s%s%zu, \"%016" PRIx64 "\"%s", (int)(entry - text), text,
                          key, size, checksum(bytes, size), rest);
    forge_state(f, made, (size_t)length);
    free(made);
    free(text);
}

/* A new text for the first `from` of a file. */
static void forge_text(const fixture *f, const char *name, const char *from, const char *to)
{
    char inner[128], *at;
    size_t size;
    snprintf(inner, sizeof inner, "checkpoint-3/%s", name);
    char *text = (char *)read_file(output(f, "out", inner), &size);
    if ((at = memmem(text, size, from, strlen(from))) == NULL) fail_msg("%s has no %s", name, from);
    char *made = malloc(size + strlen(to) + 1);
    size_t before = (size_t)(at - text), cut = strlen(from);
    memcpy(made, text, before);
    memcpy(made + before, to, strlen(to));
    memcpy(made + before + strlen(to), at + cut, size - before - cut);
    forge(f, name, made, size + strlen(to) - cut);
    free(made);
    free(text);
}

static nbl_status go_on_with(const fixture *f, const char *with, const char *more)
{
    char keys[1024];
    snprintf(keys, sizeof keys, "%s\nresume_from_checkpoint: %s/out/checkpoint-3\n%s", with, f->tiny.folder,
             more);
    return train_in(f, f->ctx, "out", keys, NULL);
}

static nbl_status go_on(const fixture *f, const char *more)
{
    return go_on_with(f, lora, more);
}

static void stop_with(const fixture *f, const char *with)
{
    int64_t step = 3;
    nbl_train_options options = {NBL_OPTIONS(nbl_train_options), .event = stop_at, .user = &step};
    char keys[512];
    snprintf(keys, sizeof keys, "%s\nsave_steps: 100", with);
    assert_int_equal(train_in(f, f->ctx, "out", keys, &options), NBL_ERROR_CANCELLED);
}

static void stop_at_three(const fixture *f)
{
    stop_with(f, lora);
}

static void a_state_that_cannot_be_is_refused(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *file, *from, *to, *message;
    } cases[] = {
        {"nibble_state.json", "\"step\": 3", "\"step\": -3", "step"},
        {"nibble_state.json", "\"step\": 3", "\"step\": 3.5", "step"},
        {"nibble_state.json", "\"step\": 3", "\"step\": 7", "7 steps are done"},
        {"nibble_state.json", "\"step\": 3", "\"step\": 9223372036854775807", "step"},
        {"nibble_state.json", "\"step\": 3", "\"step\": 99999999999999999999", "step"},
        {"nibble_state.json", "\"epoch\": ", "\"epoch\": 9223372036854775807, \"x\": ", "epoch"},
        {"nibble_state.json", "\"epoch\": ", "\"epoch\": 4, \"x\": ", "epoch"},
        {"nibble_state.json", "\"batch\": ", "\"batch\": 4000000000000, \"x\": ", "micro-batch"},
        {"nibble_state.json", "\"batch\": ", "\"batch\": -1, \"x\": ", "batch"},
        {"nibble_state.json", "\"batches\": ", "\"batches\": 400, \"x\": ", "micro-batches"},
        {"nibble_state.json", "\"loss_scale\": ", "\"loss_scale\": null, \"x\": ", "loss_scale"},
        {"nibble_state.json", "\"loss_scale\": ", "\"loss_scale\": 0, \"x\": ", "loss_scale"},
        {"nibble_state.json", "\"loss_scale\": ", "\"loss_scale\": -1, \"x\": ", "loss_scale"},
        {"nibble_state.json", "\"loss_scale\": ", "\"loss_scale\": 1e300, \"x\": ", "loss_scale"},
        {"nibble_state.json", "\"loss_sum\": ", "\"loss_sum\": null, \"x\": ", "loss_sum"},
        {"nibble_state.json",
         "\"loss_steps\": ", "\"loss_steps\": 9223372036854775807, \"x\": ", "loss_steps"},
        {"nibble_state.json",
         "\"good_steps\": ", "\"good_steps\": 9223372036854775807, \"x\": ", "good_steps"},
        {"nibble_state.json", "\"evals_without_gain\": ",
         "\"evals_without_gain\": 9223372036854775807, \"x\": ", "evals_without_gain"},
        {"nibble_state.json", "\"best_step\": ", "\"best_step\": 4, \"x\": ", "best_step"},
        {"nibble_state.json", "\"best_step\": ", "\"best_step\": -1, \"x\": ", "best_step"},
        {"nibble_state.json", "\"best_state\": \"", "\"best_state\": \"0", "best_state"},
        {"nibble_state.json",
         "\"high_losses\": ", "\"high_losses\": 9223372036854775807, \"x\": ", "high_losses"},
        {"nibble_state.json", "\"data\": \"", "\"data\": \"0", "data"},
        {"nibble_state.json", "\"files\": {", "\"files\": {\"..\": [0, \"0000000000000000\"], ", ".."},
        {"nibble_state.json", "\"files\": {", "\"files\": {\"/etc/passwd\": [0, \"0000000000000000\"], ",
         "/etc/passwd"},
        {"nibble_state.json", "\"version\": 3", "\"version\": 4", "version 4 instead of 3"},
        {"nibble_state.json", "\"version\": 3", "\"version\": 1", "an older nibble wrote it"},
        {"nibble_state.json", "\"version\": 3", "\"version\": -1", "version"},
        {"nibble_state.json", "\"keys\": {", "\"keys\": [], \"x\": {", "keys"},
        {"nibble_state.json", "\"keys\": {", "\"keys\": {\"seed\": 5}, \"x\": {", "seed"},
        {"nibble_state.json", "\"keys\": {", "\"keys\": {\"tail\": \"1\",", "tail was 1, is not given"},
        {"nibble_state.json", "\"history\": [", "\"history\": 3, \"x\": [", "history"},
        {"nibble_state.json", "\"history\": [", "\"history\": [3", "history: entry 0"},
        {"nibble_state.json", "\"history\": [", "\"history\": [\"a\\nseed: 3\"", "history: entry 0"},
        {"nibble_state.json", "\"base_model\": \"", "\"base_model\": \"0", "base_model"},
        {"trainer_state.json", "\"log_history\": [", "\"log_history\": 3, \"x\": [", "log_history"},
        {"trainer_state.json", "\"log_history\": [", "\"log_history\": [[], ", "record 0"},
        {"trainer_state.json", "\"loss\": ", "\"loss\": \"low\", \"x\": ", "record 0"},
        {"trainer_state.json", "\"memory_bytes\": ", "\"memory_bytes\": -1, \"x\": ", "record 0"},
        {"trainer_state.json", "\"memory_bytes\": ", "\"memory_bytes\": 1e300, \"x\": ", "record 0"},
        {"trainer_state.json", "\"epoch\": ", "", "trainer_state.json"},
        {"optimizer.safetensors", "[4,32]", "[32,4]", NULL}, /* as many: only the order of two numbers */
        {"optimizer.safetensors", "[4,32]", "[4,31]", "optimizer.safetensors"},
        {"optimizer.safetensors", "lora_A.weight.m\"", "lora_A.weight.n\"", "lora_A.weight.m"},
    };
    char keys[512];
    snprintf(keys, sizeof keys, "%s\nfp16: true", lora);
    stop_with(f, keys);
    char *copy = strdup(in_folder(f->tiny.folder, "kept")), command[512];
    snprintf(command, sizeof command, "cp -r %s %s", output(f, "out", "checkpoint-3"), copy);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        remove_tree(output(f, "out", "checkpoint-3"));
        snprintf(command, sizeof command, "cp -r %s %s", copy, output(f, "out", "checkpoint-3"));
        assert_int_equal(system(command), 0);
        forge_text(f, cases[i].file, cases[i].from, cases[i].to);
        nbl_status status = go_on(f, "fp16: true");
        if (cases[i].message == NULL) continue;
        if (status == NBL_OK) fail_msg("%s is taken: %s", cases[i].file, cases[i].to);
        if (strstr(nbl_error_message(f->ctx), cases[i].message) == NULL)
            fail_msg("%s: %s", cases[i].to, nbl_error_message(f->ctx));
    }
    free(copy);
}

/* Bytes here and there, under a checksum that is right: anything may come of it, but it comes. */
static void bytes_under_a_right_checksum_do_no_harm(void **state)
{
    fixture *f = *state;
    static const char *const names[] = {"nibble_state.json", "trainer_state.json", "optimizer.safetensors",
                                        "adapter_model.safetensors"};
    static const char letters[] = "0123456789-{}[],:\"eE.nulltrue\\ \n";
    enum { FILES = sizeof names / sizeof *names, TRIES = 40 };
    stop_at_three(f);
    uint8_t *whole[FILES];
    size_t sizes[FILES];
    int taken = 0;
    for (int i = 0; i < FILES; i++) {
        char inner[64];
        snprintf(inner, sizeof inner, "checkpoint-3/%s", names[i]);
        whole[i] = read_file(output(f, "out", inner), &sizes[i]);
    }
    for (uint32_t n = 0; n < FILES * TRIES; n++) {
        uint32_t counter[4] = {n, 0, 0, 0}, key[2] = {1, 2}, words[4];
        int which = (int)(n % FILES);
        size_t first = which < 2 ? sizes[which] : 600; /* the header */
        uint8_t *bytes = malloc(sizes[which]);
        for (int i = 0; i < FILES; i++) forge(f, names[i], whole[i], sizes[i]);
        memcpy(bytes, whole[which], sizes[which]);
        for (uint32_t k = 0; k < 1 + n % 3; k++) {
            counter[1] = k;
            nbl__philox(counter, key, words);
            bytes[words[0] % first] = which < 2 ? (uint8_t)letters[words[1] % (sizeof letters - 1)]
                                                : (uint8_t)words[1];
        }
        forge(f, names[which], bytes, sizes[which]);
        nbl_status status = go_on(f, "max_steps: 4\nreport: true");
        taken += status == NBL_OK;
        if (status != NBL_OK) assert_true(*nbl_error_message(f->ctx) != '\0');
        free(bytes);
    }
    for (int i = 0; i < FILES; i++) free(whole[i]);
    assert_true(taken < FILES * TRIES);
}

/* Codes and scales of all bits set: the scales are NaN, and so are the weights after a step. */
static void moments_that_are_no_numbers_end_the_run(void **state)
{
    fixture *f = *state;
    static const char *const ways[] = {"adapter: lora\nlora_r: 128\nlora_target_linear: true\n"
                                       "optimizer: adamw_8bit",
                                       "adapter: lora\nlora_r: 4\nlora_target_linear: true"};
    for (int i = 0; i < 2; i++) {
        size_t size;
        uint64_t header;
        remove_tree(in_folder(f->tiny.folder, "out"));
        stop_with(f, ways[i]);
        uint8_t *bytes = read_file(output(f, "out", "checkpoint-3/optimizer.safetensors"), &size);
        memcpy(&header, bytes, sizeof header);
        memset(bytes + 8 + header, 0xff, size - 8 - (size_t)header);
        forge(f, "optimizer.safetensors", bytes, size);
        free(bytes);
        assert_int_equal(go_on_with(f, ways[i], ""), NBL_ERROR_FORMAT);
        assert_non_null(strstr(nbl_error_message(f->ctx), "not finite"));
    }
}

static void a_run_that_is_shorter_than_its_checkpoint_is_refused(void **state)
{
    fixture *f = *state;
    char keys[512];
    train_ok(f, "out", lora);
    snprintf(keys, sizeof keys, "%s\nmax_steps: 5", lora);
    assert_int_equal(
        train_in(f, f->ctx, "out", keys, &(nbl_train_options){NBL_OPTIONS(nbl_train_options), .resume = 1}),
        NBL_ERROR_ARGUMENT);
    assert_non_null(strstr(nbl_error_message(f->ctx), "6 steps are done already; this run has only 5"));
    assert_ok(f->ctx, train_in(f, f->ctx, "out", lora,
                               &(nbl_train_options){NBL_OPTIONS(nbl_train_options),
                                                    .resume = 1})); /* nothing to do */
}

static void the_checkpoint_just_saved_is_never_the_one_to_go(void **state)
{
    fixture *f = *state;
    char keys[1024];
    train_ok(f, "out", lora);
    snprintf(keys, sizeof keys,
             "%s\nresume_from_checkpoint: %s/out/checkpoint-2\nsave_total_limit: 1\nsave_steps: 4", lora,
             f->tiny.folder);
    int64_t step = 4;
    assert_int_equal(
        train_in(f, f->ctx, "out", keys,
                 &(nbl_train_options){NBL_OPTIONS(nbl_train_options), .event = stop_at, .user = &step}),
        NBL_ERROR_CANCELLED);
    assert_int_equal(access(output(f, "out", "checkpoint-4/nibble_state.json"), F_OK), 0);
    assert_int_equal(access(output(f, "out", "checkpoint-6/nibble_state.json"), F_OK), 0);
    assert_int_not_equal(access(output(f, "out", "checkpoint-2"), F_OK), 0);
}

static void a_record_that_is_not_finite_is_null_and_comes_back(void **state)
{
    fixture *f = *state;
    nbl__arena arena = nbl__arena_make(f->ctx);
    const nbl__json *root;
    nbl__text text = {.ctx = f->ctx};
    nbl__record record = {.evaluation = true, .step = 2, .loss = INFINITY};
    nbl__record of_experts = {.step = 3, .loss = 1, .expert_load = 2.5};
    nbl__text_printf(&text, "{\"history\": [");
    nbl__record_print(&text, &record);
    nbl__text_printf(&text, ",");
    nbl__record_print(&text, &of_experts);
    nbl__text_printf(&text, "]}");
    assert_non_null(strstr(text.text, "\"eval_loss\": null"));
    assert_ok(f->ctx, nbl__json_parse(&arena, "history", text.text, text.size, NBL_JSON_STRICT, &root));
    nbl__records records = {.ctx = f->ctx};
    assert_ok(f->ctx, nbl__records_restore(&records, "history", nbl__json_get(root, "history")));
    assert_true(isnan(records.items[0].loss));
    assert_true(records.items[0].expert_load == 0 && records.items[1].expert_load == 2.5);
    nbl__records_close(&records);
    nbl__text_free(&text);
    nbl__arena_free(&arena);
}

/* ---- the folder ---- */

static void touch(const fixture *f, const char *name)
{
    write_file(f->tiny.folder, name, "mine", 4);
}

static bool is_there(const fixture *f, const char *name)
{
    return access(in_folder(f->tiny.folder, name), F_OK) == 0;
}

/* Runs with these keys, which may name another output_dir; must fail and say so. */
static void refused(const fixture *f, const char *keys, nbl_status status, const char *message)
{
    nbl_status got = train_in(f, f->ctx, "out", keys, NULL);
    if (got != status || strstr(nbl_error_message(f->ctx), message) == NULL)
        fail_msg("%s: %s", nbl_status_name(got), got ? nbl_error_message(f->ctx) : "");
}

static void a_model_is_never_trained_into_its_own_folder(void **state)
{
    fixture *f = *state;
    char keys[1024];
    static const char *const ways[] = {"", "/", "/../model/."};
    for (int full = 0; full < 2; full++)
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            snprintf(keys, sizeof keys, "%s\noutput_dir: %s%s", full ? "weight_decay: 0" : lora,
                     f->tiny.model, ways[i]);
            refused(f, keys, NBL_ERROR_ARGUMENT, "would take the place of base_model");
            assert_int_equal(access(in_folder(f->tiny.model, "model.safetensors"), F_OK), 0);
        }
    train_ok(f, "out", "weight_decay: 0");
    snprintf(keys, sizeof keys, "%s\nbase_model: %s/out/checkpoint-4", lora, f->tiny.folder);
    refused(f, keys, NBL_ERROR_ARGUMENT, "would take the place of base_model");
    assert_true(is_there(f, "out/checkpoint-4"));
}

static void files_that_no_run_left_stay_where_they_are(void **state)
{
    fixture *f = *state;
    mkdir(in_folder(f->tiny.folder, "out"), 0777);
    touch(f, "out/notes.partial-draft");
    touch(f, "out/model.safetensors");
    refused(f, lora, NBL_ERROR_EXISTS, "no run of nibble left them there");
    assert_true(is_there(f, "out/model.safetensors") && !is_there(f, "out/earlier-1"));
    unlink(output(f, "out", "model.safetensors"));
    touch(f, "out/config.json");
    refused(f, "weight_decay: 0", NBL_ERROR_EXISTS, "no run of nibble left them there");
    train_ok(f, "out", lora); /* an adapter has no config.json */
    assert_file_equals(output(f, "out", "config.json"), "mine", 4);
    assert_file_equals(output(f, "out", "notes.partial-draft"), "mine", 4);
}

/* Files without a run.yml are somebody's own, as the run.yml is that a run is made from. */
static void files_of_the_names_that_a_run_writes_are_moved(void **state)
{
    fixture *f = *state;
    char keys[1024], path[512];
    mkdir(in_folder(f->tiny.folder, "out"), 0777);
    touch(f, "out/tokenizer.json");
    touch(f, "out/metrics.jsonl");
    train_ok(f, "out", lora);
    assert_file_equals(output(f, "out", "earlier-1/tokenizer.json"), "mine", 4);
    assert_file_equals(output(f, "out", "earlier-1/metrics.jsonl"), "mine", 4);
    mkdir(in_folder(f->tiny.folder, "own"), 0777);
    snprintf(path, sizeof path, "%s", output(f, "own", "run.yml"));
    assert_int_equal(rename(write_run(f, "own", lora), path), 0);
    nbl_run *run;
    size_t size, size_now;
    uint8_t *bytes = read_file(path, &size);
    assert_ok(f->ctx, nbl_run_open(f->ctx, path, NULL, 0, &run));
    assert_ok(f->ctx, nbl_run_train(run, NULL, NULL));
    nbl_run_close(run);
    uint8_t *now = read_file(output(f, "own", "earlier-1/run.yml"), &size_now);
    assert_true(size == size_now && memcmp(bytes, now, size) == 0);
    free(bytes);
    free(now);
    /* Data would be overwritten, or move away from under their name. */
    snprintf(path, sizeof path, "%s", in_folder(f->tiny.folder, "rows.jsonl"));
    mkdir(in_folder(f->tiny.folder, "data"), 0777);
    assert_int_equal(rename(path, output(f, "data", "metrics.jsonl")), 0);
    snprintf(keys, sizeof keys,
             "datasets: [{path: %s/data/metrics.jsonl, type: pretokenized}]\nbase_model: %s\n"
             "learning_rate: 0.01\nmax_steps: 2\noutput_dir: %s/data\n%s",
             f->tiny.folder, f->tiny.model, f->tiny.folder, lora);
    write_file(f->tiny.folder, "data.yml", keys, strlen(keys));
    assert_ok(f->ctx, nbl_run_open(f->ctx, in_folder(f->tiny.folder, "data.yml"), NULL, 0, &run));
    assert_int_equal(nbl_run_train(run, NULL, NULL), NBL_ERROR_ARGUMENT);
    assert_non_null(strstr(nbl_error_message(f->ctx), "would take the place of datasets"));
    nbl_run_close(run);
}

static void removing_never_follows_a_link(void **state)
{
    fixture *f = *state;
    char keys[512];
    mkdir(in_folder(f->tiny.folder, "elsewhere"), 0777);
    touch(f, "elsewhere/precious");
    train_ok(f, "out", lora);
    static const char *const names[] = {"checkpoint-1", "checkpoint-4", "checkpoint-9.partial-old",
                                        "checkpoint-6/link"};
    remove_tree(output(f, "out", "checkpoint-4"));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(symlink(in_folder(f->tiny.folder, "elsewhere"), output(f, "out", names[i])), 0);
    snprintf(keys, sizeof keys, "%s\nsave_total_limit: 1\nmax_steps: 8", lora);
    assert_ok(f->ctx, train_in(f, f->ctx, "out", keys,
                               &(nbl_train_options){NBL_OPTIONS(nbl_train_options), .resume = 1}));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct stat info;
        assert_int_not_equal(lstat(output(f, "out", names[i]), &info), 0);
    }
    assert_true(is_there(f, "elsewhere/precious") && is_there(f, "out/checkpoint-8"));
}

static bool start_another(void *user, const nbl_train_event *event)
{
    if (event->kind == NBL_TRAIN_STEP && event->step == 2) {
        nbl_context *ctx = new_context();
        assert_int_equal(train_in(user, ctx, "out", lora, NULL), NBL_ERROR_EXISTS);
        assert_non_null(strstr(nbl_error_message(ctx), "another run is writing there"));
        nbl_context_destroy(ctx);
    }
    return 0;
}

static void two_runs_do_not_share_a_folder(void **state)
{
    fixture *f = *state;
    nbl_train_options options = {NBL_OPTIONS(nbl_train_options), .event = start_another, .user = f};
    assert_ok(f->ctx, train_in(f, f->ctx, "out", lora, &options));
    train_ok(f, "out", lora); /* free again */
    train_ok(f, "new", lora);
    assert_int_equal(entries_in(in_folder(f->tiny.folder, "new")),
                     5 + 3 + 1); /* adapter (2), metrics, run.yml, runs; checkpoints; the report */
}

static void an_output_folder_may_have_any_name_but_must_be_one(void **state)
{
    fixture *f = *state;
    train_ok(f, "a b/späte Läufe/", lora);
    assert_true(is_there(f, "a b/späte Läufe/adapter_model.safetensors"));
    touch(f, "file");
    char keys[512];
    snprintf(keys, sizeof keys, "%s\noutput_dir: %s/file", lora, f->tiny.folder);
    refused(f, keys, NBL_ERROR_EXISTS, "is not a folder");
    snprintf(keys, sizeof keys, "%s\noutput_dir: %s/file/inner", lora, f->tiny.folder);
    refused(f, keys, NBL_ERROR_EXISTS, "file: cannot be made");
    assert_file_equals(in_folder(f->tiny.folder, "file"), "mine", 4);
}

/* ---- ends of ranges ---- */

static void a_window_ends_with_its_epoch_however_long_it_may_be(void **state)
{
    fixture *f = *state;
    train_ok(f, "whole",
             "adapter: lora\nlora_r: 4\nlora_target_linear: true\ngradient_accumulation_steps: 4");
    train_ok(f, "most",
             "adapter: lora\nlora_r: 4\nlora_target_linear: true\ngradient_accumulation_steps: 1048576");
    assert_same_adapter(f, "whole", "most"); /* seven rows are four micro-batches */
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(after_any_failed_allocation_an_adapter_can_go_on),
        TEST(after_any_failed_allocation_a_whole_model_can_go_on),
        TEST(a_state_that_cannot_be_is_refused),
        TEST(bytes_under_a_right_checksum_do_no_harm),
        TEST(moments_that_are_no_numbers_end_the_run),
        TEST(a_run_that_is_shorter_than_its_checkpoint_is_refused),
        TEST(the_checkpoint_just_saved_is_never_the_one_to_go),
        TEST(a_record_that_is_not_finite_is_null_and_comes_back),
        TEST(a_model_is_never_trained_into_its_own_folder),
        TEST(files_that_no_run_left_stay_where_they_are),
        TEST(files_of_the_names_that_a_run_writes_are_moved),
        TEST(removing_never_follows_a_link),
        TEST(two_runs_do_not_share_a_folder),
        TEST(an_output_folder_may_have_any_name_but_must_be_one),
        TEST(a_window_ends_with_its_epoch_however_long_it_may_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
