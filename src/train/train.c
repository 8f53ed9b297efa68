/* train.c - the training loop of a run, from its first step to its result. See trainer.h.
 *
 * Order within a step: train, log, watch the loss, evaluate, save, look for an end. A record is
 * written before the checkpoint of the same step, so a checkpoint's history includes its own step.
 *
 * Three ways to end:
 *   complete     max_steps reached: the result is published, samples and report are written
 *   stopped      early stopping or the loss watchdog (loop.why is set): as complete
 *   interrupted  the caller's callback asked to stop: a checkpoint is saved, no result is
 *                published, nbl_run_train returns NBL_ERROR_CANCELLED */
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "run/run.h"
#include "train/trainer.h"

typedef struct loop {
    nbl__trainer t;
    const nbl_train_options *options;
    nbl_train_summary *summary;
    double begun, step_begun, logged_at; /* seconds of now() */
    int64_t first_step;                  /* steps done before this process; 0 in a new run */
    /* eval_every, save_every: in steps; INT64_MAX: never */
    int64_t tokens_since_log, eval_every, save_every;
    int64_t saved_step; /* step of the last checkpoint; -1: none */
    bool new_best;      /* the evaluation of this step is the best so far */
    bool stop;          /* end after this step */
    const char *why;    /* reason of an early stop; NULL with stop: interrupted */
} loop;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- events for the caller ---- */

/* An event of `kind` with everything that does not depend on its kind. seconds_left extrapolates
 * the mean duration of this process's steps. */
static nbl_train_event event_of(const loop *l, nbl_train_event_kind kind)
{
    double elapsed = now() - l->begun;
    int64_t done = l->t.state.step - l->first_step, left = l->t.max_steps - l->t.state.step;
    return (nbl_train_event){.kind = kind,
                             .step = l->t.state.step,
                             .steps = l->t.max_steps,
                             .epoch = nbl__run_epoch(&l->t.state),
                             .memory_bytes = l->t.memory_bytes,
                             .seconds = elapsed,
                             .seconds_left = done > 0 ? elapsed / (double)done * (double)left : 0};
}

/* Calls the caller's callback. A result other than 0 ends the run after this step, with a
 * checkpoint. */
static void send_event(loop *l, const nbl_train_event *event)
{
    if (l->options->event && l->options->event(l->options->user, event)) l->stop = true;
}

static void send_text(loop *l, nbl_train_event_kind kind, const char *text)
{
    nbl_train_event event = event_of(l, kind);
    event.text = text;
    send_event(l, &event);
}

/* ---- records ---- */

/* Sends the event of a step and, every logging_steps steps and after the last step, adds a record.
 * A record's loss is the mean over the steps since the last record; its learning rate and gradient
 * norm are the last step's. */
static nbl_status log_step(loop *l, const nbl__step_result *r)
{
    nbl__run_state *state = &l->t.state;
    state->loss_sum += r->loss;
    state->loss_steps++;
    l->tokens_since_log += r->tokens;
    double at = now();
    nbl_train_event event = event_of(l, NBL_TRAIN_STEP);
    event.loss = r->loss;
    event.grad_norm = r->grad_norm;
    event.learning_rate = r->learning_rate;
    event.trained_tokens = r->trained;
    event.tokens_per_second = (double)r->tokens / fmax(at - l->step_begun, 1e-9);
    send_event(l, &event);
    if (state->step % l->t.config->logging_steps != 0 && state->step != l->t.max_steps) return NBL_OK;
    nbl__record record = {.step = state->step,
                          .epoch = event.epoch,
                          .loss = state->loss_sum / (double)state->loss_steps,
                          .grad_norm = r->grad_norm,
                          .learning_rate = r->learning_rate,
                          .tokens_per_second = (double)l->tokens_since_log / fmax(at - l->logged_at, 1e-9),
                          .trained_tokens = r->trained,
                          .memory_bytes = l->t.memory_bytes,
                          .expert_load = r->expert_load};
    NBL_TRY(nbl__records_add(&l->t.records, &record));
    state->loss_sum = 0;
    state->loss_steps = l->tokens_since_log = 0;
    l->logged_at = now();
    return NBL_OK;
}

/* ---- evaluation, early stopping ---- */

/* Evaluates, records the loss and notes whether the step is the best so far. logged_at moves
 * forward by the duration of the evaluation, so tokens_per_second measures training alone. */
static nbl_status evaluate(loop *l)
{
    nbl__trainer *t = &l->t;
    nbl__record record = {.step = t->state.step, .epoch = nbl__run_epoch(&t->state), .evaluation = true};
    double before = now();
    NBL_TRY(nbl__trainer_evaluate(t, &record.loss));
    l->new_best = nbl__best_count(&t->state, t->config->greater_is_better, record.loss);
    record.best = l->new_best && nbl__best_is_kept(t->config);
    NBL_TRY(nbl__records_add(&t->records, &record));
    nbl_train_event event = event_of(l, NBL_TRAIN_EVALUATION);
    event.loss = record.loss;
    if (record.best) event.text = "the best so far";
    send_event(l, &event);
    l->logged_at += now() - before;
    return NBL_OK;
}

/* Counts consecutive steps whose loss is above loss_watchdog_threshold. */
static void watch_loss(loop *l, double loss)
{
    const nbl__run_config *c = l->t.config;
    if (c->loss_watchdog_threshold > 0)
        l->t.state.high_losses = loss > c->loss_watchdog_threshold ? l->t.state.high_losses + 1 : 0;
}

/* Sets stop and why if early stopping or the loss watchdog ends the run here. Both counters are
 * in the saved state. So a run that was stopped early and is resumed stops again at once. */
static void check_end(loop *l)
{
    const nbl__run_config *c = l->t.config;
    const nbl__run_state *s = &l->t.state;
    if (c->loss_watchdog_threshold > 0 && s->high_losses >= nbl__max_i64(1, c->loss_watchdog_patience))
        l->why = "the loss stays above loss_watchdog_threshold";
    else if (c->early_stopping_patience > 0 && s->evals_without_gain >= c->early_stopping_patience)
        l->why = c->greater_is_better ? "the evaluation loss no longer rises (early_stopping_patience)"
                                      : "the evaluation loss no longer falls (early_stopping_patience)";
    if (l->why) l->stop = true;
}

/* ---- checkpoints ---- */

/* Saves a checkpoint of this step, unless it is saved already. */
static nbl_status save(loop *l)
{
    nbl__trainer *t = &l->t;
    nbl__run_parts parts = nbl__trainer_parts(t);
    double before = now();
    char what[48];
    if (l->saved_step == t->state.step) return NBL_OK;
    snprintf(what, sizeof what, "saving checkpoint-%" PRId64, t->state.step);
    nbl__trainer_phase(t, 0, 0, what);
    /* a small checkpoint never polls while written */
    NBL_TRY(nbl__progress_poll(t->ctx, "saving"));
    NBL_TRY(nbl__checkpoint_save(&parts));
    l->saved_step = t->state.step;
    l->logged_at += now() - before;
    send_text(l, NBL_TRAIN_SAVED, t->config->output_dir);
    return NBL_OK;
}

/* The interval of evaluations or checkpoints, in steps: `steps` if given, else `per_epoch` times
 * per epoch, else once per epoch. INT64_MAX: never by interval. */
static int64_t interval(const loop *l, nbl__strategy strategy, int64_t steps, int64_t per_epoch)
{
    if (strategy == NBL_STRATEGY_NO || strategy == NBL_STRATEGY_BEST) return INT64_MAX;
    if (steps > 0) return steps;
    return per_epoch > 0 ? nbl__ceil_div(l->t.steps_per_epoch, per_epoch) : l->t.steps_per_epoch;
}

/* True if the step after `step` follows without an evaluation or a checkpoint between. The
 * caller, the watchdog and a new best can still intervene. */
static bool goes_on(const loop *l, int64_t step)
{
    const nbl__trainer *t = &l->t;
    return step < t->max_steps && step % l->save_every != 0 &&
           (t->validation.batch_count == 0 || step % l->eval_every != 0);
}

/* Steps until max_steps or stop. Then saves the last step, as save_strategy has it. */
static nbl_status run_steps(loop *l)
{
    nbl__trainer *t = &l->t;
    const nbl__run_config *c = t->config;
    check_end(l); /* a resumed run may have been stopped early */
    while (t->state.step < t->max_steps && !l->stop) {
        nbl__step_result result = {0};
        l->step_begun = now();
        l->new_best = false;
        NBL_TRY(nbl__trainer_step(t, goes_on(l, t->state.step + 1), &result));
        NBL_TRY(log_step(l, &result));
        watch_loss(l, result.loss);
        bool last = t->state.step == t->max_steps && c->eval_strategy != NBL_STRATEGY_NO;
        if (t->validation.batch_count && (t->state.step % l->eval_every == 0 || last)) NBL_TRY(evaluate(l));
        if (t->state.step % l->save_every == 0 || (l->new_best && nbl__best_is_kept(c))) NBL_TRY(save(l));
        check_end(l);
    }
    /* The strategies "no" and "best" save no last step, except when the run was interrupted. */
    bool interrupted = t->state.step < t->max_steps && l->why == NULL,
         seldom = c->save_strategy == NBL_STRATEGY_NO || c->save_strategy == NBL_STRATEGY_BEST;
    return seldom && !interrupted ? NBL_OK : save(l);
}

/* ---- the run ---- */

/* The step whose parameters become the result: the best with load_best_model_at_end, else the
 * last. */
static int64_t result_step(const nbl__trainer *t)
{
    return t->config->load_best && t->state.best_step > 0 ? t->state.best_step : t->state.step;
}

/* Writes output_dir/run.yml: the configuration, and the history of changes as comments. `ended`:
 * also a comment that names the step of the result, if the best step was chosen. */
static nbl_status write_config(const nbl__trainer *t, bool ended)
{
    nbl__arena arena = nbl__arena_make(t->ctx);
    nbl__text text = {.ctx = t->ctx};
    const char *path = nbl__arena_printf(&arena, "%s/run.yml", t->config->output_dir);
    nbl_status status = path ? nbl__run_config_write(&text, t->config) : NBL_ERROR_MEMORY;
    nbl__run_history_write(&text, &t->history);
    if (ended && t->config->load_best && t->state.best_step > 0)
        nbl__text_printf(&text, "# result: step %" PRId64 " of %" PRId64 ", eval_loss %.6g, the best\n",
                         t->state.best_step, t->state.step, t->state.best_eval);
    if (status == NBL_OK) status = text.status;
    if (status == NBL_OK) status = nbl__file_put(t->ctx, path, text.text, text.size);
    nbl__text_free(&text);
    nbl__arena_free(&arena);
    return status;
}

/* Writes report.html, the last file of a run. */
static nbl_status write_report(loop *l, bool interrupted)
{
    nbl__trainer *t = &l->t;
    if (!t->config->report) return NBL_OK;
    nbl__trainer_phase(t, 0, 0, "writing report");
    t->report.step = t->state.step;
    t->report.steps = t->max_steps;
    t->report.first_step = l->first_step;
    t->report.epoch = nbl__run_epoch(&t->state);
    t->report.seconds = l->summary->seconds;
    t->report.interrupted = interrupted;
    t->report.stopped = l->why;
    t->report.result_step = interrupted ? t->state.step : result_step(t);
    t->report.best_eval = t->state.best_eval;
    return nbl__report_write(t->ctx, &t->report);
}

/* Replaces the message of an interrupted save. That message speaks of one file; the caller needs to
 * know which step is lost and that earlier checkpoints are whole. Other errors pass unchanged. */
static nbl_status explain_unsaved(const loop *l, nbl_status status)
{
    const nbl__trainer *t = &l->t;
    if (status != NBL_ERROR_CANCELLED) return status;
    return nbl__hint(t->ctx,
                     nbl__fail(t->ctx, status,
                               "interrupted after step %" PRId64
                               ", not saved; earlier checkpoints in %s are whole",
                               t->state.step, t->config->output_dir),
                     "nibble train %s --resume goes on", t->config->file);
}

/* The last loss of training or of evaluation; 0: none. In training it is the mean over the steps
 * since the last record, if there are any; else the last record's. */
static double last_loss(const nbl__trainer *t, bool evaluation)
{
    double loss = 0;
    for (int64_t i = 0; i < t->records.count; i++)
        if (t->records.items[i].evaluation == evaluation) loss = t->records.items[i].loss;
    return evaluation || t->state.loss_steps == 0 ? loss : t->state.loss_sum / (double)t->state.loss_steps;
}

/* Writes the result into output_dir. If it is the best step's, the masters are overwritten with
 * that step's parameters: no step may follow. */
static nbl_status write_result(loop *l)
{
    nbl__trainer *t = &l->t;
    if (t->config->load_best && t->state.best_step == 0)
        nbl__log(t->ctx, NBL_LOG_WARNING,
                 "no step was evaluated, so none is the best: the result is step %" PRId64 ", the last one",
                 t->state.step);
    if (result_step(t) != t->state.step) NBL_TRY(nbl__best_load(&t->optimizer, t->model->peft, t->config, &t->state));
    NBL_TRY(nbl__result_publish(&t->session, &t->optimizer, t->config, t->stored));
    return write_config(t, true);
}

/* Repeats at the end how many old checkpoints could not be removed: the first warning may be far
 * up. */
static void warn_of_stale_checkpoints(const nbl__trainer *t)
{
    const nbl__stale_checkpoints *u = &t->stale_checkpoints;
    if (u->count)
        nbl__log(t->ctx, NBL_LOG_WARNING,
                 "%s: %" PRId64 " old checkpoint%s beyond save_total_limit could not be removed, the last of "
                 "them checkpoint-%" PRId64 "; remove %s by hand",
                 t->config->output_dir, u->count, u->count == 1 ? "" : "s", u->last,
                 u->count == 1 ? "it" : "them");
}

/* Runs an open trainer to its end and fills the summary. */
static nbl_status run(loop *l)
{
    nbl__trainer *t = &l->t;
    l->eval_every = interval(l, t->config->eval_strategy, t->config->eval_steps, t->config->evals_per_epoch);
    l->save_every = interval(l, t->config->save_strategy, t->config->save_steps, t->config->saves_per_epoch);
    l->first_step = t->state.step;
    l->saved_step = t->resumed ? t->state.step : -1;
    l->begun = l->logged_at = now();
    NBL_TRY(write_config(t, false));
    NBL_TRY(nbl__records_begin(&t->records));
    if (t->config->greater_is_better && nbl__best_is_kept(t->config))
        nbl__log(t->ctx, NBL_LOG_WARNING, "greater_is_better: true: the highest %s is taken as the best",
                 t->config->metric);
    send_text(l, NBL_TRAIN_BEGIN, t->resumed);
    nbl_status status = run_steps(l);
    warn_of_stale_checkpoints(t);
    NBL_TRY(explain_unsaved(l, status));
    *l->summary = (nbl_train_summary){
        .step = t->state.step,
        .steps = t->max_steps,
        .loss = last_loss(t, false),
        .eval_loss = last_loss(t, true),
        .result_step = result_step(t),
        .best_eval_loss = t->config->load_best && t->state.best_step > 0 ? t->state.best_eval : 0,
        .seconds = now() - l->begun,
        .memory_bytes = t->memory_bytes};
    if (t->state.step < t->max_steps && l->why == NULL) {
        NBL_TRY(write_report(l, true));
        return nbl__hint(t->ctx,
                         nbl__fail(t->ctx, NBL_ERROR_CANCELLED,
                                   "interrupted after step %" PRId64 "; saved in %s/checkpoint-%" PRId64,
                                   t->state.step, t->config->output_dir, t->state.step),
                         "nibble train %s --resume goes on", t->config->file);
    }
    if (l->why)
        nbl__log(t->ctx, NBL_LOG_WARNING, "stopped after step %" PRId64 ": %s", t->state.step, l->why);
    nbl__trainer_phase(t, 0, 0, t->config->full ? "saving the model" : "saving the adapter");
    NBL_TRY(explain_unsaved(l, write_result(l)));
    NBL_TRY(nbl__trainer_sample_after(t));
    return write_report(l, false);
}

nbl_status nbl_run_train(nbl_run *r, const nbl_train_options *given, nbl_train_summary *summary)
{
    nbl_train_options options;
    nbl_train_summary done = {0};
    loop l = {.options = &options, .summary = &done};
    NBL_TRY(NBL_RESULT_BEGIN(r->ctx, nbl_train_summary, summary));
    NBL_TRY(NBL_OPTIONS_READ(r->ctx, nbl_train_options, given, &options));
    NBL_TRY(nbl__trainer_open(r->ctx, &r->config, l.options, &l.t));
    nbl_status status = run(&l);
    NBL_RESULT_PUT(nbl_train_summary, summary, &done);
    nbl__trainer_close(&l.t);
    return status;
}
