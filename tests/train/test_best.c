/* test_best.c - load_best_model_at_end, early stopping, and the checkpoints that are kept for them. */
#include "tiny_run.h"

#include <math.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "train/best.h"

/* With this learning rate the evaluation loss falls, then rises: the best step is neither the last nor one of
 * save_steps. */
static const char overshoots[] = "adapter: lora\nlora_r: 4\nlora_target_linear: true\nlora_dropout: 0.1\n";
#define COURSE                                                                                               \
    "learning_rate: 0.05\nlr_scheduler: constant\nval_set_size: 2\neval_steps: 1\nsequence_len: 64\n"
static const char course[] = COURSE "save_steps: 3\n", seldom[] = COURSE "save_steps: 0\n";
static const char best[] = "load_best_model_at_end: true\n", steps[] = "max_steps: 8\n";

/* What a run said, and how it ended. */
typedef struct told {
    char log[8192];
    nbl_train_summary summary;
    int64_t stop; /* after this step; 0: never */
} told;

static void add_line(void *user, nbl_log_level level, const char *line)
{
    told *t = user;
    size_t size = strlen(t->log);
    if (level == NBL_LOG_WARNING) snprintf(t->log + size, sizeof t->log - size, "%s\n", line);
}

static bool stop_run(void *user, const nbl_train_event *event)
{
    const told *t = user;
    return event->kind == NBL_TRAIN_STEP && event->step == t->stop;
}

static nbl_status train(const fixture *f, const char *name, told *t, bool resume, const char *keys)
{
    nbl_context_options how = {NBL_OPTIONS(nbl_context_options), .threads = 1, .log = add_line,
                               .log_user = t};
    nbl_train_options options = {NBL_OPTIONS(nbl_train_options), .resume = resume, .event = stop_run,
                                 .user = t};
    nbl_context *ctx;
    nbl_run *run = NULL;
    t->log[0] = '\0';
    t->summary = (nbl_train_summary){NBL_RESULT(nbl_train_summary)};
    assert_int_equal(nbl_context_create(&how, &ctx), NBL_OK);
    nbl_status status = nbl_run_open(ctx, write_run(f, name, keys), NULL, 0, &run);
    if (status == NBL_OK) status = nbl_run_train(run, &options, &t->summary);
    if (status != NBL_OK) add_line(t, NBL_LOG_WARNING, nbl_error_message(ctx));
    nbl_run_close(run);
    nbl_context_destroy(ctx);
    return status;
}

/* Keys in pieces, in one text that is good until the next call. */
#define KEYS(...) keys_of((const char *const[]){__VA_ARGS__, NULL})
static const char *keys_of(const char *const *parts)
{
    static char text[2048];
    text[0] = '\0';
    for (; *parts; parts++) strcat(text, *parts);
    return text;
}

static told done(const fixture *f, const char *name, bool resume, const char *keys)
{
    told t = {0};
    nbl_status status = train(f, name, &t, resume, keys);
    if (status != NBL_OK) fail_msg("%s: %s", nbl_status_name(status), t.log);
    return t;
}

static told stopped(const fixture *f, const char *name, bool resume, int64_t step, const char *keys)
{
    told t = {.stop = step};
    nbl_status status = train(f, name, &t, resume, keys);
    if (status != NBL_ERROR_CANCELLED) fail_msg("%s: %s", nbl_status_name(status), t.log);
    return t;
}

static bool is_there(const fixture *f, const char *name, const char *file)
{
    return access(output(f, name, file), F_OK) == 0;
}

static bool has_step(const fixture *f, const char *name, int64_t step)
{
    char file[64];
    snprintf(file, sizeof file, "checkpoint-%d/nibble_state.json", (int)step);
    return is_there(f, name, file);
}

static bool says(const fixture *f, const char *name, const char *file, const char *what)
{
    size_t size;
    char *text = (char *)read_file(output(f, name, file), &size);
    text[size] = '\0';
    bool found = strstr(text, what) != NULL;
    free(text);
    return found;
}

/* The step of the lowest or highest eval_loss of metrics.jsonl. */
static int64_t extreme_step(const fixture *f, const char *name, bool highest)
{
    size_t size;
    char *text = (char *)read_file(output(f, name, "metrics.jsonl"), &size), *at = text;
    double extreme = highest ? -INFINITY : INFINITY;
    int64_t step = 0;
    text[size] = '\0';
    for (char *line; (line = strsep(&at, "\n"));) {
        const char *loss = strstr(line, "\"eval_loss\": ");
        double value = loss ? strtod(loss + strlen("\"eval_loss\": "), NULL) : NAN;
        if (!(highest ? value > extreme : value < extreme)) continue;
        extreme = value;
        step = strtoll(strstr(line, "\"step\": ") + strlen("\"step\": "), NULL, 10);
    }
    free(text);
    return step;
}

/* The result of NAME is that of a run that ends after `step`. */
static void assert_result_of(const fixture *f, const char *name, int64_t step, const char *way,
                             const char *file)
{
    char shorter[64];
    snprintf(shorter, sizeof shorter, "max_steps: %d\n", (int)step);
    done(f, "shorter", false, KEYS(way, course, shorter));
    assert_same_file(output(f, "shorter", file), output(f, name, file));
    remove_tree(in_folder(f->tiny.folder, "shorter"));
}

/* ---- which step ---- */

static void a_step_is_the_best_as_in_transformers(void **state)
{
    (void)state;
    static const double losses[] = {3, 2, 2, NAN, 2.5, 1.5, INFINITY, -INFINITY, 4, 1};
    static const struct {
        bool greater;
        int64_t best[10], without[10];
    } expected[] = {{false, {1, 2, 2, 2, 2, 6, 6, 6, 6, 10}, {0, 0, 1, 2, 3, 0, 1, 2, 3, 0}},
                    {true, {1, 1, 1, 1, 1, 1, 1, 1, 9, 9}, {0, 1, 2, 3, 4, 5, 6, 7, 0, 1}}};
    for (int k = 0; k < 2; k++) {
        nbl__run_state s = {.best_eval = INFINITY};
        for (int i = 0; i < 10; i++) {
            s.step++;
            bool better = nbl__best_count(&s, expected[k].greater, losses[i]);
            assert_int_equal(s.best_step, expected[k].best[i]);
            assert_int_equal(s.evals_without_gain, expected[k].without[i]);
            assert_int_equal(better, s.best_step == s.step);
        }
    }
}

/* ---- the result ---- */

static const char adapter_file[] = "adapter_model.safetensors", model_file[] = "model.safetensors";

static void the_result_is_the_best_steps_and_names_it(void **state)
{
    fixture *f = *state;
    told t = done(f, "out", false, KEYS(overshoots, course, best, steps));
    int64_t step = extreme_step(f, "out", false);
    char line[64];
    assert_true(step > 1 && step < 8 && step % 3 != 0);
    assert_true(t.summary.step == 8 && t.summary.result_step == step);
    assert_true(t.summary.best_eval_loss > 0 && t.summary.best_eval_loss < t.summary.eval_loss);
    assert_string_equal(t.log, "");
    assert_result_of(f, "out", step, overshoots, adapter_file);
    snprintf(line, sizeof line, "# result: step %d of 8, eval_loss ", (int)step);
    assert_true(says(f, "out", "run.yml", line));
    snprintf(line, sizeof line, "\"result_step\": %d,", (int)step);
    assert_true(says(f, "out", "report.html", line));
    snprintf(line, sizeof line, "\"best_global_step\": %d,", (int)step);
    assert_true(says(f, "out", "checkpoint-8/trainer_state.json", line));
    assert_true(says(f, "out", "metrics.jsonl", "\"best\": true"));
    told last = done(f, "last", false, KEYS(overshoots, course, steps));
    assert_true(last.summary.result_step == 8 && last.summary.best_eval_loss == 0);
    assert_false(says(f, "last", "metrics.jsonl", "\"best\""));
    assert_true(says(f, "last", "checkpoint-8/trainer_state.json", "\"best_global_step\": null"));
    assert_false(says(f, "last", "run.yml", "# result"));
    assert_false(has_step(f, "last", step));
    assert_same_file(output(f, "last", "checkpoint-8/adapter_model.safetensors"),
                     output(f, "out", "checkpoint-8/adapter_model.safetensors"));
}

static void the_best_of_every_method_is_kept_and_survives_a_stop(void **state)
{
    fixture *f = *state;
    static const char *const ways[] = {
        "adapter: lora\nlora_r: 2\nlora_target_linear: true\nlora_modules_to_save: [lm_head, embed_tokens]\n",
        "adapter: qlora\nload_in_4bit: true\nlora_r: 4\nlora_target_linear: true\npeft_use_dora: true\n"
        "bf16: true\n",
        "adapter: lora\nlora_r: 128\nlora_target_linear: true\noptimizer: adamw_8bit\n",
        "weight_decay: 0.1\n", /* the whole model */
        "bf16: true\noptimizer: adamw_8bit\nseed: 7\n"};
    int grad_in_forward = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const char *file = strstr(ways[i], "adapter") ? adapter_file : model_file;
        told t = done(f, "whole", false, KEYS(ways[i], course, best, steps));
        int64_t step = extreme_step(f, "whole", false);
        assert_int_equal(t.summary.result_step, step);
        grad_in_forward += step < 8;
        assert_result_of(f, "whole", step, ways[i], file);
        stopped(f, "stopped", false, step < 8 ? step : 5, KEYS(ways[i], course, best, steps));
        told r = done(f, "stopped", true, KEYS(ways[i], course, best, steps));
        assert_int_equal(r.summary.result_step, step);
        assert_same_file(output(f, "whole", file), output(f, "stopped", file));
        remove_tree(in_folder(f->tiny.folder, "whole"));
        remove_tree(in_folder(f->tiny.folder, "stopped"));
    }
    assert_true(grad_in_forward >= 3);
}

static void a_run_that_stops_anywhere_has_the_same_result(void **state)
{
    fixture *f = *state;
    static const char small[] = "save_total_limit: 1\nearly_stopping_patience: 3\n";
    told whole = done(f, "whole", false, KEYS(overshoots, course, small, steps));
    int64_t end = whole.summary.step;
    assert_int_equal(end, extreme_step(f, "whole", false) + 3);
    assert_non_null(strstr(whole.log, "no longer falls"));
    for (int64_t step = 1; step < end; step++) {
        char name[32];
        snprintf(name, sizeof name, "stopped-%d", (int)step);
        stopped(f, name, false, step, KEYS(overshoots, course, small, steps));
        told t = done(f, name, true, KEYS(overshoots, course, small, steps));
        assert_int_equal(t.summary.step, end);
        assert_int_equal(t.summary.result_step, whole.summary.result_step);
        assert_same_adapter(f, "whole", name);
    }
}

static void the_highest_value_may_be_the_best(void **state)
{
    fixture *f = *state;
    told t = done(
        f, "out", false,
        KEYS(overshoots, course, best, steps, "greater_is_better: true\nmetric_for_best_model: loss\n"));
    assert_int_equal(t.summary.result_step, extreme_step(f, "out", true));
    assert_non_null(strstr(t.log, "the highest loss is taken as the best"));
    assert_result_of(f, "out", t.summary.result_step, overshoots, adapter_file);
    told other = {0};
    assert_int_equal(train(f, "out", &other, true, KEYS(overshoots, course, best, "max_steps: 9\n")),
                     NBL_ERROR_ARGUMENT);
    assert_non_null(strstr(other.log, "greater_is_better was true, is false"));
}

/* ---- early stopping ---- */

static void a_run_that_ran_out_of_patience_is_over(void **state)
{
    fixture *f = *state;
    static const char two[] = "early_stopping_patience: 2\n", four[] = "early_stopping_patience: 4\n";
    told t = done(f, "out", false, KEYS(overshoots, course, two, steps, "logging_steps: 8\n"));
    assert_true(t.summary.loss > 0); /* no record of it was due */
    int64_t step = extreme_step(f, "out", false);
    assert_true(t.summary.step == step + 2 && t.summary.result_step == step);
    assert_result_of(f, "out", step, overshoots, adapter_file);
    told again = done(f, "out", true, KEYS(overshoots, course, two, steps));
    assert_true(again.summary.step == step + 2 && again.summary.result_step == step);
    assert_non_null(strstr(again.log, "no longer falls"));
    assert_true(again.summary.eval_loss == t.summary.eval_loss);
    told more = done(f, "out", true, KEYS(overshoots, course, four, steps));
    assert_true(more.summary.step == 8 && more.summary.result_step == step);
    told refused = done(f, "other", false,
                        KEYS(overshoots, course, two, steps, "load_best_model_at_end: false\n"));
    assert_non_null(strstr(refused.log, "load_best_model_at_end: false has no effect"));
    assert_int_equal(refused.summary.result_step, step);
}

/* ---- the checkpoints that are kept ---- */

static int checkpoints(const fixture *f, const char *name)
{
    int count = 0;
    for (int64_t step = 1; step <= 12; step++) count += has_step(f, name, step);
    return count;
}

static void the_best_checkpoint_is_not_the_one_to_go(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *course, *keys;
        int count; /* checkpoints in the end: the best, and */
        int64_t newest;
    } cases[] = {{course, "save_total_limit: 1\n", 2, 8},
                 {course, "save_total_limit: 2\n", 2, 8},
                 {course, "save_total_limit: 3\n", 3, 8},
                 {seldom, "save_strategy: no\n", 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        told t = done(f, "out", false, KEYS(overshoots, cases[i].course, best, steps, cases[i].keys));
        assert_true(has_step(f, "out", t.summary.result_step));
        assert_int_equal(checkpoints(f, "out"), cases[i].count);
        assert_int_equal(has_step(f, "out", 8), cases[i].newest == 8);
        remove_tree(in_folder(f->tiny.folder, "out"));
    }
}

static void a_checkpoint_with_every_best_evaluation_and_no_other(void **state)
{
    fixture *f = *state;
    static const char saves[] = "save_strategy: best\n";
    told t = done(f, "out", false, KEYS(overshoots, seldom, saves, steps));
    int64_t step = extreme_step(f, "out", false);
    assert_true(has_step(f, "out", 1) && has_step(f, "out", step) && !has_step(f, "out", 8));
    assert_int_equal(t.summary.result_step, 8); /* the last one, as long as nobody asks for the best */
    stopped(f, "both", false, step + 1, KEYS(overshoots, seldom, saves, best, steps));
    assert_true(has_step(f, "both", step + 1));
    told both = done(f, "both", true, KEYS(overshoots, seldom, saves, best, steps));
    assert_int_equal(both.summary.result_step, step);
    assert_result_of(f, "both", step, overshoots, adapter_file);
}

static void a_best_checkpoint_that_is_lost_is_told_and_forgotten(void **state)
{
    fixture *f = *state;
    done(f, "whole", false, KEYS(overshoots, course, best, steps));
    int64_t step = extreme_step(f, "whole", false);
    for (int way = 0; way < 3; way++) {
        char inner[64];
        snprintf(inner, sizeof inner, "out/checkpoint-%d", (int)step);
        stopped(f, "out", false, step + 2, KEYS(overshoots, course, best, steps));
        if (way == 0) remove_tree(in_folder(f->tiny.folder, inner));
        else {
            strcat(inner, way == 1 ? "/adapter_model.safetensors" : "/nibble_state.json");
            write_file(f->tiny.folder, inner, "lost", 4);
        }
        told t = done(f, "out", true, KEYS(overshoots, course, best, steps));
        assert_non_null(strstr(t.log, "was the best so far, but its checkpoint cannot be used"));
        assert_true(t.summary.result_step > step + 2);
        assert_result_of(f, "out", t.summary.result_step, overshoots, adapter_file);
        remove_tree(in_folder(f->tiny.folder, "out"));
    }
}

static bool damage_best(void *user, const nbl_train_event *event)
{
    const fixture *f = user;
    if (event->kind == NBL_TRAIN_STEP && event->step == 8)
        for (int step = 1; step < 8; step++) {
            char inner[64];
            snprintf(inner, sizeof inner, "out/checkpoint-%d/adapter_model.safetensors", step);
            if (access(in_folder(f->tiny.folder, inner), F_OK) == 0)
                write_file(f->tiny.folder, inner, "lost", 4);
        }
    return 0;
}

static void a_best_checkpoint_that_is_damaged_meanwhile_is_no_result(void **state)
{
    fixture *f = *state;
    nbl_train_options options = {NBL_OPTIONS(nbl_train_options), .event = damage_best, .user = f};
    assert_int_equal(train_in(f, f->ctx, "out", KEYS(overshoots, course, best, steps), &options),
                     NBL_ERROR_FORMAT);
    assert_non_null(strstr(nbl_error_message(f->ctx), "damaged"));
    assert_false(is_there(f, "out", adapter_file));
    told t = done(f, "out", true, KEYS(overshoots, course, best, steps));
    assert_non_null(strstr(t.log, "cannot be used"));
    assert_true(is_there(f, "out", adapter_file));
}

static void a_run_that_goes_on_elsewhere_takes_the_best_along(void **state)
{
    fixture *f = *state;
    char from[512];
    told whole = done(f, "out", false, KEYS(overshoots, course, best, steps));
    int64_t step = whole.summary.result_step;
    for (int64_t at = step; at <= 6; at += 6 - step) { /* the best one itself; one after it */
        snprintf(from, sizeof from, "resume_from_checkpoint: %s/out/checkpoint-%d\n", f->tiny.folder,
                 (int)at);
        told t = done(f, "there", false, KEYS(overshoots, course, best, steps, from));
        assert_int_equal(t.summary.result_step, step);
        assert_same_adapter(f, "out", "there");
        assert_true(has_step(f, "there", step));
        remove_tree(in_folder(f->tiny.folder, "there"));
    }
}

static void the_best_may_be_asked_for_in_the_middle(void **state)
{
    fixture *f = *state;
    stopped(f, "out", false, 6, KEYS(overshoots, course, steps)); /* saved at 3 and 6 only */
    told t = done(f, "out", true, KEYS(overshoots, course, best, steps));
    assert_non_null(strstr(t.log, "the step was not saved"));
    assert_true(t.summary.result_step > 6);
    static const char often[] = COURSE "save_steps: 1\n";
    stopped(f, "saved", false, 6, KEYS(overshoots, often, steps));
    told s = done(f, "saved", true, KEYS(overshoots, often, best, steps));
    assert_string_equal(s.log, "");
    assert_int_equal(s.summary.result_step, extreme_step(f, "saved", false));
    assert_result_of(f, "saved", s.summary.result_step, overshoots, adapter_file);
}

/* ---- what cannot be ---- */

static void a_best_step_needs_evaluations(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *keys, *says;
    } cases[] = {{"load_best_model_at_end: true\n", "load_best_model_at_end needs val_set_size"},
                 {"save_strategy: best\nsave_steps: 0\n", "save_strategy: best needs val_set_size"},
                 {"val_set_size: 2\neval_strategy: no\nload_best_model_at_end: true\n", "eval_strategy"},
                 {"val_set_size: 2\nmetric_for_best_model: eval_accuracy\n", "eval_loss, loss"},
                 {"val_set_size: 2\nsave_strategy: best\nsave_steps: 2\n", "save_steps"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        told t = {0};
        if (train(f, "out", &t, false, KEYS(overshoots, cases[i].keys)) != NBL_ERROR_ARGUMENT ||
            strstr(t.log, cases[i].says) == NULL)
            fail_msg("%s: %s", cases[i].keys, t.log);
    }
    told t = done(f, "out", false, KEYS(overshoots, "sequence_len: 64\nmetric_for_best_model: loss\n"));
    assert_non_null(strstr(t.log, "metric_for_best_model has no effect"));
}

static void an_old_checkpoint_that_stays_is_told_and_the_run_goes_on(void **state)
{
    fixture *f = *state;
    static const char one[] = "save_steps: 2\nsave_total_limit: 1\n";
    char command[512];
    stopped(f, "out", false, 2, KEYS(overshoots, one, "max_steps: 6\n"));
    /* deeper than anything that a run writes: not removed */
    snprintf(command, sizeof command, "mkdir -p %s/mine/deeper/and && touch %s/mine/deeper/and/file",
             output(f, "out", "checkpoint-2"), output(f, "out", "checkpoint-2"));
    assert_int_equal(system(command), 0);
    told t = done(f, "out", true, KEYS(overshoots, one, "max_steps: 6\n"));
    const char *first = strstr(t.log, "checkpoint-2 is beyond save_total_limit, but cannot be removed");
    assert_non_null(first);
    assert_null(strstr(first + 1, "checkpoint-2 is beyond"));
    assert_non_null(strstr(t.log, "1 old checkpoint beyond save_total_limit could not be removed"));
    assert_true(is_there(f, "out", "checkpoint-2.partial-old/mine/deeper/and/file"));
    assert_true(has_step(f, "out", 6) && !has_step(f, "out", 4) && is_there(f, "out", adapter_file));
    told again = done(f, "out", true, KEYS(overshoots, one, "max_steps: 7\n"));
    assert_non_null(strstr(again.log, "checkpoint-2.partial-old was left by a run that ended"));
    assert_true(has_step(f, "out", 7));
}

/* ---- faults ---- */

/* The run fails at its n-th write or allocation, for every n; the one that goes on has the result of a whole one. */
static void goes_on_after_any_fault(const fixture *f, bool writes, const char *file, const char *keys)
{
    int64_t failures = 0;
    char text[1024];
    snprintf(text, sizeof text, "%s", keys);
    told whole = done(f, "whole", false, text);
    assert_true(whole.summary.result_step < whole.summary.step);
    for (int64_t n = 1;; n += 1 + n / (writes ? 5 : 8)) {
        nbl__counter counter = {.fail_at = writes ? 0 : n};
        nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1,
                                       .allocator = nbl__counting_allocator(&counter)};
        nbl_context *ctx = NULL;
        nbl_run *run = NULL;
        const char *path = write_run(f, "failing", text);
        nbl_status status = nbl_context_create(&options, &ctx);
        if (status == NBL_OK) status = nbl_run_open(ctx, path, NULL, 0, &run);
        if (status == NBL_OK && writes) nbl__inject_write(ctx, n);
        if (status == NBL_OK) status = nbl_run_train(run, NULL, NULL);
        nbl_run_close(run);
        nbl_context_destroy(ctx);
        if (counter.live != 0) fail_msg("%d: %d leak", (int)n, (int)counter.live);
        if (status == NBL_OK) break;
        failures++;
        assert_int_equal(status, writes ? NBL_ERROR_IO : NBL_ERROR_MEMORY);
        told t = done(f, "failing", true, text);
        if (t.summary.result_step != whole.summary.result_step)
            fail_msg("%d: step %d: %s", (int)n, (int)t.summary.result_step, t.log);
        assert_same_file(output(f, "whole", file), output(f, "failing", file));
        remove_tree(in_folder(f->tiny.folder, "failing"));
    }
    assert_true(failures > 15);
}

static const char one_kept[] = "save_total_limit: 1\nearly_stopping_patience: 2\nreport: false\n";

static void after_any_failed_write_the_result_is_the_best(void **state)
{
    goes_on_after_any_fault(*state, true, adapter_file, KEYS(overshoots, course, one_kept, steps));
}

static void after_any_failed_allocation_the_result_is_the_best(void **state)
{
    goes_on_after_any_fault(*state, false, adapter_file, KEYS(overshoots, course, one_kept, steps));
}

static void after_any_fault_the_result_is_the_best_whole_model(void **state)
{
    for (int writes = 0; writes < 2; writes++)
        goes_on_after_any_fault(*state, writes != 0, model_file,
                                KEYS("weight_decay: 0.1\n", course, one_kept, steps));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_the_best_as_in_transformers),
        TEST(the_result_is_the_best_steps_and_names_it),
        TEST(the_best_of_every_method_is_kept_and_survives_a_stop),
        TEST(a_run_that_stops_anywhere_has_the_same_result),
        TEST(the_highest_value_may_be_the_best),
        TEST(a_run_that_ran_out_of_patience_is_over),
        TEST(the_best_checkpoint_is_not_the_one_to_go),
        TEST(a_checkpoint_with_every_best_evaluation_and_no_other),
        TEST(a_best_checkpoint_that_is_lost_is_told_and_forgotten),
        TEST(a_best_checkpoint_that_is_damaged_meanwhile_is_no_result),
        TEST(a_run_that_goes_on_elsewhere_takes_the_best_along),
        TEST(the_best_may_be_asked_for_in_the_middle),
        TEST(a_best_step_needs_evaluations),
        TEST(an_old_checkpoint_that_stays_is_told_and_the_run_goes_on),
        TEST(after_any_failed_write_the_result_is_the_best),
        TEST(after_any_failed_allocation_the_result_is_the_best),
        TEST(after_any_fault_the_result_is_the_best_whole_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
