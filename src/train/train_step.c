/* train_step.c - one optimizer step, and evaluation. See trainer.h.
 *
 * Loss. loss = Σ over all trained tokens of the step batch / number of trained tokens. So the loss does
 * not depend on how the step batch is cut into micro-batches. Each micro-batch divides by the step batch's
 * number; the losses of the micro-batches are then summed. Gradients add up in f32, in the order of
 * the micro-batches.
 *
 * Loss scale (f16 only). The gradient of the loss is multiplied with loss_scale, a power of two,
 * and AdamW divides it out again. If a gradient overflows, the scale is halved and the step batch runs
 * again. After STEPS_TO_GROW good steps the scale is doubled.
 *
 * Overlap (devices only). A step is enqueued without waiting for the host: norm and clipping factor
 * stay on the device. While the host waits for the losses of step n, the device already runs the
 * first micro-batch of step n + 1:
 *
 *     host    enqueue n | enqueue 1st of n+1 | wait for n, read losses | enqueue the rest of n+1
 *     device  ........ n: batches, norm, AdamW ....... | n+1: 1st batch | ...
 *
 * The first micro-batch overwrites gradients and activations, which no checkpoint contains. So
 * the run can still be saved and ended after step n. */
#include <math.h>
#include <stdio.h>

#include "base/hash.h"
#include "ops/loss/cross_entropy.h"
#include "device/device_memory.h"
#include "train/schedule.h"
#include "train/trainer.h"

enum { STEPS_TO_GROW = 2000 }; /* as torch.amp.GradScaler's growth_interval */

/* ---- the step batch ---- */

/* Appends example `index` to the step batch. *at: tokens so far; *sequence: sequences so far. Label
 * 0 of an example never counts: the label of position i is predicted from position i - 1. */
static nbl_status add_example(nbl__trainer *t, nbl__step_batch *w, int64_t index, int64_t *at,
                              int64_t *sequence)
{
    nbl__example example;
    NBL_TRY(nbl__data_example(t->data, index, &example));
    NBL_CHECK(t->ctx, *at + example.count <= w->room && *sequence < w->max_sequences, NBL_ERROR_INTERNAL,
              "example %" PRId64 " with %" PRId64 " tokens was not planned for", index, example.count);
    memcpy(w->ids + *at, example.ids, (size_t)example.count * sizeof *w->ids);
    memcpy(w->labels + *at, example.labels, (size_t)example.count * sizeof *w->labels);
    w->sequences[*sequence] = (nbl_ids){w->ids + *at, example.count};
    w->targets[*sequence] = (nbl_ids){w->labels + *at, example.count};
    for (int64_t i = 1; i < example.count; i++) w->trained += example.labels[i] != NBL_LABEL_IGNORED;
    w->tokens += example.count;
    *at += example.count;
    ++*sequence;
    return NBL_OK;
}

/* Fills the step batch with micro-batches of an epoch: at most `max`, starting with index `batch`. */
static nbl_status fill_step_batch(nbl__trainer *t, nbl__step_batch *w, const nbl__epoch *epoch, int64_t batch,
                                  int64_t max)
{
    int64_t at = 0, sequence = 0;
    w->tokens = w->trained = w->enqueued = 0;
    w->batch = batch;
    w->batches = nbl__min_i64(max, epoch->batch_count - batch);
    for (int64_t b = 0; b < w->batches; b++) {
        w->starts[b] = sequence;
        for (int64_t i = epoch->starts[batch + b]; i < epoch->starts[batch + b + 1]; i++)
            NBL_TRY(add_example(t, w, epoch->order[i], &at, &sequence));
    }
    assert(at == w->tokens && w->trained <= w->tokens && sequence <= w->max_sequences);
    w->starts[w->batches] = sequence;
    return NBL_OK;
}

/* ---- running ---- */

/* Writes the seed of each layer's dropouts for a micro-batch. The graph adds a constant per mask
 * (arch/parts.h). The seed depends on the layer, not on the index of the planned step. So every
 * device and every plan, with recomputed layers or without, draws the same dropout. */
static void set_seeds(nbl__trainer *t, int64_t epoch, int64_t batch)
{
    if (t->session.seeds == 0) return;
    uint64_t *seeds = nbl__plan_data(&t->session.plan, t->session.seeds);
    for (int64_t layer = 0; layer < t->model->decoder.layers; layer++) {
        uint64_t key[] = {t->config->seed, (uint64_t)epoch, (uint64_t)batch, (uint64_t)layer};
        seeds[layer] = nbl__hash(0, key, sizeof key);
    }
}

/* Writes the number that cross entropy divides its sum by. */
static void set_denominator(nbl__trainer *t, int64_t trained)
{
    float *denominator = nbl__plan_data(&t->session.plan, t->session.build.denominator);
    *denominator = (float)nbl__max_i64(trained, 1);
}

/* Writes micro-batch b's ids and labels to the inputs of the session. */
static nbl_status load_batch(nbl__trainer *t, const nbl__step_batch *w, int64_t b)
{
    int64_t first = w->starts[b];
    assert(b >= 0 && b < w->batches && w->starts[b + 1] > first);
    return nbl__session_load(&t->session, w->sequences + first, w->starts[b + 1] - first, w->targets + first);
}

/* Writes all inputs of a training run over micro-batch b. No argument of a step changes unless the
 * shapes do, so a device replays its captured graph. */
static nbl_status write_inputs(nbl__trainer *t, const nbl__step_batch *w, int64_t b)
{
    set_seeds(t, w->epoch, w->batch + b);
    set_denominator(t, w->trained);
    NBL_TRY(load_batch(t, w, b));
    *(float *)nbl__plan_data(&t->session.plan, t->session.build.dloss) = (float)t->state.loss_scale;
    return NBL_OK;
}

/* Enqueues the copy of a micro-batch's experts' offsets to the host. */
static nbl_status read_loads(nbl__trainer *t, const nbl__step_batch *w, int64_t b)
{
    const nbl__expert_load *load = &t->expert_load;
    int64_t size = load->experts + 1;
    for (int64_t row = 0; row < load->rows; row++)
        NBL_TRY(nbl__memory_read_async(
            t->ctx, &w->loads[(b * load->rows + row) * size],
            nbl__plan_address(&t->session.plan, t->session.build.expert_offsets[load->layers[row]]),
            (size_t)size * sizeof *w->loads));
    return NBL_OK;
}

/* Enqueues forward and backward of the step batch's next micro-batch, and the copy of its loss to
 * the host. Clears the gradients before the step batch's first micro-batch. */
static nbl_status enqueue_batch(nbl__trainer *t, nbl__step_batch *w)
{
    nbl__plan *plan = &t->session.plan;
    assert(w->enqueued < w->batches);
    if (w->enqueued == 0) NBL_TRY(nbl__plan_clear_gradients(plan));
    NBL_TRY(write_inputs(t, w, w->enqueued));
    NBL_TRY(nbl__plan_enqueue(plan));
    NBL_TRY(nbl__memory_read_async(t->ctx, &w->losses[w->enqueued],
                                   nbl__plan_address(plan, t->session.build.loss), sizeof *w->losses));
    NBL_TRY(read_loads(t, w, w->enqueued));
    w->enqueued++;
    return NBL_OK;
}

/* Runs micro-batch b again and fails with the name of the first node whose output is non-finite.
 * The rerun normally sees the parameters of the first run: AdamW changes nothing when a gradient
 * is non-finite. If all gradients were finite, the parameters have changed since. */
static nbl_status fail_non_finite(nbl__trainer *t, const nbl__step_batch *w, int64_t b)
{
    const nbl__node *node;
    NBL_TRY(write_inputs(t, w, b));
    NBL_TRY(nbl__plan_find_non_finite(&t->session.plan, &node));
    nbl_status status = nbl__fail(t->ctx, NBL_ERROR_FORMAT,
                                  "step %" PRId64 ": the loss is not finite; first in %s", t->state.step + 1,
                                  node ? nbl__show_node(node).text : "the loss itself");
    return nbl__hint(t->ctx, status,
                     "a weight of that layer may be infinite or NaN, or the learning rate too high");
}

/* The loss of the step batch: the sum of its micro-batches' losses. */
static nbl_status add_losses(nbl__trainer *t, const nbl__step_batch *w, double *loss)
{
    *loss = 0;
    for (int64_t b = 0; b < w->batches; b++) {
        if (!isfinite(w->losses[b])) return fail_non_finite(t, w, b);
        *loss += (double)w->losses[b];
    }
    return NBL_OK;
}

/* Adds the tokens of a finished step to the counts of its experts. */
static void count_loads(nbl__trainer *t, const nbl__step_batch *w)
{
    nbl__expert_load *load = &t->expert_load;
    nbl__expert_load_begin(load);
    for (int64_t b = 0; b < w->batches; b++)
        nbl__expert_load_add(load, w->loads + b * load->rows * (load->experts + 1));
}

/* Fills `w` with the step batch that starts at micro-batch `batch` of `epoch`. If that epoch is
 * exhausted, makes the next one (next_epoch) and starts there: a step batch never spans two epochs. */
static nbl_status open_step_batch(nbl__trainer *t, nbl__step_batch *w, int64_t epoch, int64_t batch)
{
    const nbl__epoch *from = &t->epoch;
    w->epoch = epoch;
    assert(batch >= 0 && batch <= t->epoch.batch_count);
    if (batch == t->epoch.batch_count) {
        nbl__epoch_free(t->ctx, &t->next_epoch);
        NBL_TRY(nbl__epoch_make(t->data, ++w->epoch, false, &t->next_epoch));
        from = &t->next_epoch;
        batch = 0;
    }
    return fill_step_batch(t, w, from, batch, t->config->gradient_accumulation_steps);
}

/* Sets t->step_batch to the step batch of this step: the one whose first micro-batch is enqueued, or a new
 * one. When the step batch belongs to the next epoch, that epoch becomes the current one. */
static nbl_status next_step_batch(nbl__trainer *t)
{
    if (t->next_enqueued) t->step_batch = &t->step_batches[t->step_batch == t->step_batches];
    else NBL_TRY(open_step_batch(t, t->step_batch, t->state.epoch, t->state.batch));
    t->next_enqueued = false;
    if (t->step_batch->epoch == t->state.epoch) return NBL_OK;
    assert(t->step_batch->epoch == t->state.epoch + 1 && t->next_epoch.batch_count > 0);
    nbl__epoch_free(t->ctx, &t->epoch);
    t->epoch = t->next_epoch;
    t->next_epoch = (nbl__epoch){0};
    t->state.epoch = t->step_batch->epoch;
    t->state.batch = 0;
    t->state.batches = t->epoch.batch_count;
    return NBL_OK;
}

/* Starts the first micro-batch of the next step. Errors are ignored here. The same calls run
 * again, and report, when that step starts. */
static void enqueue_next_step(nbl__trainer *t)
{
    const nbl__step_batch *w = t->step_batch;
    nbl__step_batch *next = &t->step_batches[w == t->step_batches];
    t->next_enqueued = open_step_batch(t, next, w->epoch, w->batch + w->batches) == NBL_OK &&
                       enqueue_batch(t, next) == NBL_OK;
}

/* Enqueues everything that remains of this step: micro-batches, norm, AdamW, and what depends on
 * parameters. On the CPU this runs the step. */
static nbl_status enqueue_step(nbl__trainer *t, nbl__step_result *result)
{
    nbl__step_batch *w = t->step_batch;
    double scale = t->state.loss_scale;
    while (w->enqueued < w->batches) {
        NBL_TRY(nbl__progress_poll(t->ctx, "training"));
        NBL_TRY(enqueue_batch(t, w));
    }
    assert(w->enqueued == w->batches); /* all gradients of the step batch are summed */
    NBL_TRY(nbl__optimizer_norm(&t->optimizer, t->config->max_grad_norm * scale, w->clipping));
    NBL_TRY(
        nbl__optimizer_step(&t->optimizer, t->config, result->learning_rate, 1 / scale, t->state.step + 1));
    NBL_TRY(nbl__plan_prepare(&t->session.plan));
    return nbl__memory_event_record(t->ctx, &w->done);
}

static nbl_status refuse_gradient(const nbl__trainer *t, const char *name)
{
    nbl_status status = nbl__fail(t->ctx, NBL_ERROR_FORMAT,
                                  "step %" PRId64 ": the gradient of \"%s\" is not finite", t->state.step + 1,
                                  name);
    return nbl__hint(t->ctx, status, "lower learning_rate, or go on from an earlier checkpoint%s",
                     t->model->dtype == NBL_DTYPE_F16 ? "; bf16 has a wider range than fp16" : "");
}

/* Runs the step and reads its results. A step with a non-finite gradient has changed no
 * parameter. In f16 it is repeated with half the loss scale, down to NBL_MIN_LOSS_SCALE. */
static nbl_status run_step(nbl__trainer *t, bool ahead, nbl__step_result *result)
{
    nbl__step_batch *w = t->step_batch;
    for (;;) {
        NBL_TRY(enqueue_step(t, result));
        if (ahead) enqueue_next_step(t);
        NBL_TRY(nbl__memory_wait(t->ctx, w->done, "the step"));
        NBL_TRY(add_losses(t, w, &result->loss));
        if (w->clipping->non_finite < 0) break;
        if (t->model->dtype != NBL_DTYPE_F16 || t->state.loss_scale <= NBL_MIN_LOSS_SCALE)
            return refuse_gradient(t, t->optimizer.tensors[w->clipping->non_finite].name);
        assert(!t->next_enqueued); /* a step that may run again has begun no other */
        t->state.loss_scale *= 0.5;
        t->state.good_steps = 0;
        w->enqueued = 0;
    }
    result->grad_norm = (double)(float)((double)w->clipping->norm / t->state.loss_scale);
    return NBL_OK;
}

/* Doubles the loss scale of f16 after STEPS_TO_GROW steps without overflow. */
static void grow_scale(nbl__trainer *t)
{
    if (t->model->dtype != NBL_DTYPE_F16 || ++t->state.good_steps < STEPS_TO_GROW) return;
    t->state.good_steps = 0;
    if (t->state.loss_scale < NBL_MAX_LOSS_SCALE) t->state.loss_scale *= 2;
}

nbl_status nbl__trainer_step(nbl__trainer *t, bool ahead, nbl__step_result *result)
{
    /* Without an asynchronous device nothing overlaps. In f16 this step may have to be repeated, which needs its
     * gradients. */
    ahead = ahead && nbl__device_of(t->ctx)->asynchronous && t->model->dtype != NBL_DTYPE_F16;
    NBL_TRY(next_step_batch(t));
    result->learning_rate = t->config->learning_rate *
                            nbl__schedule_factor(t->config, t->state.step, t->warmup, t->max_steps);
    NBL_TRY(run_step(t, ahead, result));
    grow_scale(t);
    count_loads(t, t->step_batch);
    result->expert_load = nbl__expert_load_peak(&t->expert_load, t->expert_load.step);
    result->tokens = t->step_batch->tokens;
    result->trained = t->step_batch->trained;
    t->state.step++;
    t->state.batch += t->step_batch->batches;
    assert(t->state.batch <= t->epoch.batch_count);
    return NBL_OK;
}

nbl_status nbl__trainer_evaluate(nbl__trainer *t, double *loss)
{
    double sum = 0;
    int64_t trained = 0;
    /* Else the first micro-batch of the next step would be computed on these inputs. */
    assert(!t->next_enqueued);
    set_denominator(t, 1); /* the loss of a batch is then its sum; it is divided once, at the end */
    for (int64_t b = 0; b < t->validation.batch_count; b++) {
        nbl__trainer_phase(t, b, t->validation.batch_count, "evaluating");
        NBL_TRY(nbl__progress_poll(t->ctx, "evaluating"));
        NBL_TRY(fill_step_batch(t, t->step_batch, &t->validation, b, 1));
        NBL_TRY(load_batch(t, t->step_batch, 0));
        NBL_TRY(nbl__plan_run_forward(&t->session.plan));
        sum += (double)*(float *)nbl__plan_data(&t->session.plan, t->session.build.loss);
        trained += t->step_batch->trained;
    }
    *loss = trained ? sum / (double)trained : 0;
    return NBL_OK;
}
