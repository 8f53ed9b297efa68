/* train.c - `nibble train`: fine-tunes a model as the YAML file of a run describes it.
 *
 * Output on standard error: on a terminal one line that is redrawn; otherwise a line per step, with
 * a few seconds between lines. Evaluations and checkpoints have lines of their own. At the end: the
 * files that were written, and the commands to type next. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "live.h"
#include "output.h"
#include "run.h"
#include "process.h"

static const double redraw_seconds = 0.1, plain_seconds = 2;

/* State of the display between two events of the library. */
typedef struct watcher {
    const cli_call *call;
    const char *device;
    bool quiet, terminal, begun;
    double last;            /* cli_now of the last line for a step or a phase */
    nbl_train_event latest; /* the last step */
} watcher;

/* Draws or prints one step. On a terminal the last step is printed as a plain line, which stays.
 * The number of each part is its rank (live.h): a narrow line leaves high ranks out. */
static void show_step(watcher *w, const nbl_train_event *e)
{
    enum { ROOM = 2 * CLI_NUMBER_ROOM };
    char step[ROOM], epoch[ROOM], loss[ROOM], grad[ROOM], rate[ROOM], speed[ROOM], memory[ROOM],
        left[ROOM] = "";
    char number[CLI_NUMBER_ROOM];
    snprintf(step, ROOM, "step %lld/%lld", (long long)e->step, (long long)e->steps);
    snprintf(epoch, ROOM, "epoch %.2f", e->epoch);
    snprintf(loss, ROOM, "loss %.4f", e->loss);
    snprintf(grad, ROOM, "grad %.3g", e->grad_norm);
    snprintf(rate, ROOM, "lr %.3g", e->learning_rate);
    snprintf(speed, ROOM, "%.0f tokens/s", e->tokens_per_second);
    cli_put_bytes(number, sizeof number, (double)e->memory_bytes);
    snprintf(memory, ROOM, "memory %s", number);
    cli_put_duration(number, sizeof number, e->seconds_left);
    bool last = e->step == e->steps;
    if (!last) snprintf(left, ROOM, "%s left", number);
    const cli_part parts[] = {{step, 0}, {epoch, 4}, {loss, 1},   {grad, 5},
                              {rate, 6}, {speed, 3}, {memory, 7}, {left, 2}};
    int count = (int)(sizeof parts / sizeof *parts);
    if (w->terminal && !last) {
        cli_live_draw(parts, count);
        return;
    }
    cli_live_clear();
    for (int i = 0; i < count; i++)
        if (*parts[i].text) fprintf(stderr, "%s%s", i ? "  " : "", parts[i].text);
    fputc('\n', stderr);
}

/* Limits how often steps are shown. The first and the last step are always shown. */
static void on_step(watcher *w, const nbl_train_event *e)
{
    double at = cli_now();
    w->latest = *e;
    if (e->step < e->steps && e->step > 1 && at - w->last < (w->terminal ? redraw_seconds : plain_seconds))
        return;
    w->last = at;
    show_step(w, e);
}

/* Prints a line for an event. The live line continues below it. */
static void on_milestone(watcher *w, const nbl_train_event *e)
{
    cli_live_clear();
    if (e->kind == NBL_TRAIN_BEGIN && e->text)
        fprintf(stderr, "going on from %s, step %lld of %lld\n", cli_clean(e->text), (long long)e->step,
                (long long)e->steps);
    else if (e->kind == NBL_TRAIN_BEGIN)
        fprintf(stderr, "%lld steps on %s, %s planned\n", (long long)e->steps, w->device,
                cli_bytes((double)e->memory_bytes));
    else if (e->kind == NBL_TRAIN_EVALUATION)
        fprintf(stderr, "step %lld  evaluation loss %.4f%s%s\n", (long long)e->step, e->loss,
                e->text ? ", " : "", e->text ? e->text : "");
    else if (e->kind == NBL_TRAIN_SAVED)
        fprintf(stderr, "saved %s/checkpoint-%lld\n", cli_clean(e->text), (long long)e->step);
    if (w->terminal && w->latest.step && e->step < e->steps) show_step(w, &w->latest);
}

/* Shows the current phase in the live line, on a terminal. */
static void on_phase(watcher *w, const nbl_train_event *e)
{
    double at = cli_now();
    if (!w->terminal || (e->part > 0 && at - w->last < redraw_seconds)) return;
    w->last = at;
    char what[4 * CLI_NUMBER_ROOM], step[2 * CLI_NUMBER_ROOM] = "";
    snprintf(what, sizeof what, "%s", e->text);
    if (e->parts)
        snprintf(what, sizeof what, "%s %lld/%lld", e->text, (long long)e->part, (long long)e->parts);
    if (w->begun) snprintf(step, sizeof step, "step %lld/%lld", (long long)e->step, (long long)e->steps);
    cli_live_draw((const cli_part[]){{what, 0}, {step, 1}}, 2);
}

/* Receives all events of a run. Returns true to stop the run after an interrupt. A phase leaves an
 * interrupt for the next step, because the library ignores the answer to a phase. */
static bool on_event(void *user, const nbl_train_event *e)
{
    watcher *w = user;
    if (e->kind == NBL_TRAIN_BEGIN) {
        cli_progress_hide(); /* a save has no progress bar of its own */
        w->begun = true;
    }
    if (w->quiet) return e->kind != NBL_TRAIN_PHASE && cli_interrupt_taken();
    switch (e->kind) {
    case NBL_TRAIN_STEP: on_step(w, e); break;
    case NBL_TRAIN_PHASE: on_phase(w, e); return false;
    default: on_milestone(w, e);
    }
    return cli_interrupt_taken();
}

/* The command line's --threads wins over the file's `threads`. */
static nbl_status open_run(nbl_context *ctx, const cli_call *call, nbl_run **r)
{
    nbl_status code = cli_run_open(call, ctx, call->arguments[0], cli_get(call, "set"), r);
    if (code == NBL_OK) code = cli_use_device_of(ctx, *r);
    if (code != NBL_OK || call->threads > 0) return code;
    return nbl_context_set_threads(ctx, nbl_run_get_info(*r)->threads);
}

/* Prints what the run made and the commands to type next. A loss of 0 stands for "not
 * evaluated". */
static void print_summary(const cli_call *call, const nbl_run_info *info, const nbl_train_summary *s)
{
    if (call->json) {
        cli_json *document = cli_json_object();
        cli_json_set(document, "output_dir", cli_json_text(info->output_dir));
        cli_json_set(document, "step", cli_json_unsigned((uint64_t)s->step));
        cli_json_set(document, "steps", cli_json_unsigned((uint64_t)s->steps));
        cli_json_set(document, "loss", cli_json_number(s->loss));
        cli_json_set(document, "eval_loss",
                     s->eval_loss > 0 ? cli_json_number(s->eval_loss) : cli_json_null());
        cli_json_set(document, "result_step", cli_json_unsigned((uint64_t)s->result_step));
        cli_json_set(document, "best_eval_loss",
                     s->best_eval_loss > 0 ? cli_json_number(s->best_eval_loss) : cli_json_null());
        cli_json_set(document, "seconds", cli_json_number(s->seconds));
        cli_json_set(document, "report",
                     cli_json_text(info->report ? cli_format("%s/report.html", info->output_dir) : NULL));
        cli_json_set(document, "memory_bytes", cli_json_unsigned(s->memory_bytes));
        cli_json_print(document);
        return;
    }
    if (call->quiet) return;
    const char *base = cli_shell_word(info->base_model), *out = cli_shell_word(info->output_dir);
    fprintf(cli_out(), "%s: %lld steps in %s, loss %.4f\n", cli_clean(info->output_dir), (long long)s->step,
            cli_duration(s->seconds), s->loss);
    if (s->eval_loss > 0) fprintf(cli_out(), "evaluation loss %.4f\n", s->eval_loss);
    if (s->best_eval_loss > 0)
        fprintf(cli_out(), "the result is step %lld's, the best: evaluation loss %.4f\n",
                (long long)s->result_step, s->best_eval_loss);
    if (info->report) fprintf(cli_out(), "report: %s/report.html\n", cli_clean(info->output_dir));
    if (info->adapter) fprintf(cli_out(), "next: nibble chat %s --adapter %s\n", base, out);
    if (info->mergeable) fprintf(cli_out(), "  or: nibble merge %s %s MERGED --verify\n", base, out);
    if (!info->adapter) fprintf(cli_out(), "next: nibble chat %s\n", out);
}

/* Returns the command that continues the run, with the options that changed it. */
static const char *resume_hint(const cli_call *call)
{
    const cli_value *sets = cli_get(call, "set"), *samples = cli_get(call, "samples");
    const cli_value *device = cli_get(call, "device");
    const char *line = cli_format("nibble train %s", cli_shell_word(call->arguments[0]));
    for (int i = 0; i < sets->count; i++)
        line = cli_format("%s --set %s", line, cli_shell_word(sets->all[i]));
    if (device->given) line = cli_format("%s --device %s", line, device->text);
    if (samples->given) line = cli_format("%s --samples %lld", line, (long long)samples->integer);
    return cli_format("%s --resume goes on", line);
}

/* --check: checks the configuration only. Neither the model nor the data need exist. */
static int check(const cli_call *call, nbl_context *ctx)
{
    nbl_run *r = NULL;
    int status = CLI_DONE;
    nbl_status code = cli_run_open(call, ctx, call->arguments[0], cli_get(call, "set"), &r);
    if (code != NBL_OK) status = cli_failure(call, ctx, code);
    else if (call->json) {
        cli_json *document = cli_json_object();
        cli_json_set(document, "file", cli_json_text(call->arguments[0]));
        cli_json_set(document, "base_model", cli_json_text(nbl_run_get_info(r)->base_model));
        cli_json_set(document, "output_dir", cli_json_text(nbl_run_get_info(r)->output_dir));
        cli_json_print(document);
    } else if (!call->quiet) fprintf(cli_out(), "%s: every key can be used\n", cli_clean(call->arguments[0]));
    nbl_run_close(r);
    cli_context_end(ctx);
    return status;
}

static int run(cli_call *call)
{
    int status;
    nbl_context *ctx = cli_context(call, &status);
    if (ctx == NULL) return status;
    if (cli_get(call, "check")->given) return check(call, ctx);
    watcher w = {.call = call, .quiet = call->quiet, .terminal = !call->quiet && cli_live_possible()};
    nbl_run *r = NULL;
    nbl_train_summary summary = {NBL_RESULT(nbl_train_summary)};
    const cli_value *samples = cli_get(call, "samples");
    nbl_train_options options = {NBL_OPTIONS(nbl_train_options), .resume = cli_get(call, "resume")->given,
                                 .event = on_event, .user = &w};
    options.allow_changes = cli_get(call, "allow-changes")->given;
    if (samples->given) options.samples = samples->integer > 0 ? (int)samples->integer : -1;
    cli_work_begin("");
    nbl_status code = open_run(ctx, call, &r);
    if (code == NBL_OK) w.device = nbl_device_kind_name(nbl_run_get_info(r)->device);
    if (code == NBL_OK) code = nbl_run_train(r, &options, &summary);
    cli_work_end(code);
    if (code == NBL_OK) print_summary(call, nbl_run_get_info(r), &summary);
    else if (code == NBL_ERROR_CANCELLED && w.begun)
        status = cli_library_error(call, ctx, code, resume_hint(call));
    else status = cli_failure(call, ctx, code);
    nbl_run_close(r);
    cli_context_end(ctx);
    return status;
}

const cli_command cli_train = {
    .name = "train",
    .group = "Train",
    .summary = "fine-tune a model",
    .description = "Trains what RUN.yml describes: an adapter (LoRA, DoRA) on a model in "
                   "4, 8 or 16 bits, or a whole small model. All memory is planned before "
                   "the first step.\n\n"
                   "output_dir gets the adapter as PEFT loads it, or the model, with the "
                   "tokenizer and the chat template that it was trained with. It also "
                   "gets checkpoint-N folders, metrics.jsonl, events for TensorBoard, "
                   "report.html, and run.yml, the configuration as resolved. With "
                   "early_stopping_patience or load_best_model_at_end the result is that "
                   "of the best evaluated step.\n\n"
                   "The first Ctrl-C finishes the step, saves a checkpoint and shows how "
                   "to resume. A second one skips the checkpoint. A third one exits at "
                   "once. A run that was stopped or killed resumes with --resume and ends "
                   "with the same bytes.",
    .arguments = CLI_RUN_ARGUMENT,
    .options =
        (const cli_option[]){
            CLI_SET_OPTION,
            {.name = "samples",
             .argument = "N",
             .kind = CLI_INTEGER,
             .maximum = 8,
             .help = "prompts of the data that the model continues before and after "
                     "training, for report.html (default: 3, or 0 above a billion "
                     "parameters)"},
            {.name = "check",
             .help = "only read the configuration: list every key that is refused or has "
                     "no effect; neither the model nor the data is opened"},
            {.name = "resume",
             .help = "resume from the newest whole checkpoint, if there is one; keys that "
                     "decide about bytes must be as they were"},
            {.name = "allow-changes",
             .help = "with --resume: accept another learning rate, schedule, AdamW constant, "
                     "dtype or device; run.yml lists the changes"},
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"a run", "train run.yml"},
            {"can this file of axolotl's be used?", "train run.yml --check"},
            {"the same, shorter", "train run.yml --set max_steps=10 --set output_dir=try"},
            {"after an interruption", "train run.yml --resume"},
            {"the same with another learning rate",
             "train run.yml --resume --allow-changes --set learning_rate=1e-5"},
            {NULL, NULL},
        },
    .run = run,
};
