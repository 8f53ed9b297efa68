/* fuzz_run.c - whole training runs with hostile files, through the public interface.
 *
 * An input edits a valid run (run_folder.h), so that a mutation stays close to what is accepted and reaches the code
 * behind the parsers. Its first byte chooses what is done: bit 0 resumes from the checkpoint, bit 1 starts from the
 * adapter, bit 2 merges and generates with the result, bit 3 writes samples. Then follow edits of 5 bytes and a text:
 *
 *     file, position (2 bytes, little-endian), bytes removed, bytes added, the added bytes
 *
 * File 255 is a configuration override "key=value" instead. Every file is edited at most once. A run must end with a
 * status and a message; what it reports as done must open again. Steps, memory and work are bounded. */
#include "run_folder.h"

enum { MAX_EDITS = 12, OVERRIDE = 255, MAX_STEPS = 5 };
static const double max_flops = 1e8;

static bool stop_soon(void *user, const nbl_train_event *event)
{
    (void)user;
    return event->kind == NBL_TRAIN_STEP && event->step >= MAX_STEPS;
}

/* An error has a name and says what is wrong; a defect of the library is a finding. */
static void must_explain(nbl_context *ctx, nbl_status status)
{
    MUST(status == NBL_OK || nbl_error_message(ctx)[0] != '\0');
    MUST(status != NBL_ERROR_INTERNAL);
}

static bool is_small(nbl_run *run)
{
    nbl_model_plan *plan;
    const nbl_planned_op *op;
    double flops = 0;
    if (nbl_run_make_plan(run, NULL, 0, 0, 8 << 20, &plan) != NBL_OK) return false;
    for (int64_t i = 0; (op = nbl_model_plan_get_op(plan, i)); i++) flops += op->flops;
    nbl_model_plan_free(plan);
    return flops < max_flops;
}

static void use_result(nbl_context *ctx)
{
    nbl_model_options how = {NBL_OPTIONS(nbl_model_options), .adapter = run_path("out")};
    nbl_generate_options generate = {NBL_OPTIONS(nbl_generate_options), .max_tokens = 2};
    int32_t prompt[2] = {258, 'a'}, room[2];
    nbl_ids ids = {prompt, 2};
    nbl_generated result = {.ids = {room, 0}};
    nbl_model *model;
    nbl_status status = nbl_model_open(ctx, run_path("model"), &how, &model);
    must_explain(ctx, status);
    if (status == NBL_OK) must_explain(ctx, nbl_model_generate(model, &ids, 1, &generate, &result));
    nbl_model_close(model);
    status = nbl_merge(ctx, run_path("model"), run_path("out"), run_path("merged"), NULL, NULL);
    must_explain(ctx, status);
    if (status != NBL_OK) return;
    MUST(nbl_model_open(ctx, run_path("merged"), NULL, &model) == NBL_OK);
    nbl_model_close(model);
}

static void train(nbl_context *ctx, const char *const *overrides, int64_t count, int choice)
{
    nbl_run *run;
    nbl_train_options how = {NBL_OPTIONS(nbl_train_options), .event = stop_soon,
                             .samples = choice & 8 ? 1 : -1, .resume = choice & 1};
    nbl_data_summary summary = {NBL_RESULT(nbl_data_summary)};
    nbl_preview preview = {NBL_RESULT(nbl_preview)};
    nbl_status status = nbl_run_open(ctx, run_path("run.yml"), overrides, count, &run);
    must_explain(ctx, status);
    if (status == NBL_OK) status = nbl_run_data(run, &summary), must_explain(ctx, status);
    if (status == NBL_OK && summary.examples > 0) must_explain(ctx, nbl_run_preview(run, 0, &preview));
    if (status == NBL_OK && is_small(run)) {
        status = nbl_run_train(run, &how, NULL);
        must_explain(ctx, status);
        if (status == NBL_OK && choice & 4) use_result(ctx);
    }
    nbl_run_close(run);
}

/* Trains the valid run once; a target whose valid run fails would test nothing. */
static void make_valid_run(nbl_context *ctx)
{
    char output[256];
    nbl_run *run;
    nbl_train_options how = {NBL_OPTIONS(nbl_train_options), .samples = -1};
    run_make_root();
    run_keep_inputs(ctx);
    run_restore();
    snprintf(output, sizeof output, "output_dir=%s", run_path("out"));
    const char *overrides[] = {output};
    run_remove(run_path("out"));
    MUST(nbl_run_open(ctx, run_path("run.yml"), overrides, 1, &run) == NBL_OK);
    MUST(nbl_run_train(run, &how, NULL) == NBL_OK);
    nbl_run_close(run);
    run_keep_folder("out", "out");
    run_keep_folder("out/checkpoint-2", "out/checkpoint-2");
    run_keep_folder("out/checkpoint-2", "start");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool made;
    nbl_context *ctx = fuzz_context();
    const char *overrides[MAX_EDITS + 3];
    char texts[MAX_EDITS][256], output[256], start[256];
    bool edited[RUN_MAX_FILES] = {0};
    int64_t count = 0;
    if (!made) make_valid_run(ctx), made = true;
    if (size == 0) return 0;
    int choice = data[0];
    run_restore();
    for (size_t at = 1, n = 0; n < MAX_EDITS && at + 5 <= size; n++) {
        const uint8_t *edit = data + at;
        size_t added = edit[4];
        at += 5;
        if (added > size - at) added = size - at;
        int file = edit[0] % run_folder.count;
        if (edit[0] == OVERRIDE) {
            memcpy(texts[n], data + at, added);
            texts[n][added] = '\0';
            overrides[count++] = texts[n];
        } else if (!edited[file]) {
            edited[file] = true;
            run_edit(&run_folder.files[file], (size_t)edit[1] | (size_t)edit[2] << 8, edit[3], data + at,
                     added);
        }
        at += added;
    }
    /* The last word: nothing is written outside the folder. */
    snprintf(start, sizeof start, "lora_model_dir=%s", run_path("start"));
    if (choice & 2) overrides[count++] = start;
    snprintf(output, sizeof output, "output_dir=%s", run_path("out"));
    overrides[count++] = output;
    train(ctx, overrides, count, choice);
    return 0;
}
