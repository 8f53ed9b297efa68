/* train_open.c - from a configuration to a trainer that stands before its next step. See trainer.h.
 *
 * Order of opening (open_trainer), so that a run that cannot work fails early and changes nothing:
 *
 *     check and lock output_dir    no other run writes there; inputs do not lie there
 *     choose_start                 which checkpoint, with which changed keys
 *     open_parts                   data and model; the longest part
 *     plan                         memory is computed, not yet allocated
 *     output_dir                   made; leftovers removed; an earlier run's output moved away
 *     samples before training      use the memory that training takes next
 *     begin_run                    memory, adapter, optimizer, state of the checkpoint */
#include <math.h>
#include <unistd.h>

#include "convert/convert.h"
#include "device/device_memory.h"
#include "train/adapter_init.h"
#include "run/fingerprint.h"
#include "train/output_dir.h"
#include "run/run.h"
#include "train/schedule.h"
#include "train/trainer.h"

void nbl__trainer_phase(nbl__trainer *t, int64_t part, int64_t parts, const char *what)
{
    nbl__progress_begin(t->ctx, 0); /* ends the progress of the phase before */
    if (t->options == NULL || t->options->event == NULL) return;
    nbl_train_event event = {.kind = NBL_TRAIN_PHASE,
                             .step = t->state.step,
                             .steps = t->max_steps,
                             .memory_bytes = t->memory_bytes,
                             .text = what,
                             .part = part,
                             .parts = parts};
    (void)t->options->event(t->options->user, &event);
}

/* ---- the model ---- */

/* *packed: the base model's weights are quantized on disk. Such weights are used as they are.
 * Fails if the configuration asks for full training or for another number of bits. */
static nbl_status check_packed(nbl__trainer *t, bool *packed)
{
    const nbl__run_config *c = t->config;
    nbl_format format = NBL_FORMAT_DENSE;
    for (int64_t i = 0; i < t->model->weight_count && format == NBL_FORMAT_DENSE; i++)
        format = t->model->weights[i].weight.format;
    *packed = format != NBL_FORMAT_DENSE;
    if (!*packed) return NBL_OK;
    NBL_CHECK(t->ctx, !c->full, NBL_ERROR_UNSUPPORTED,
              "%s: weights in %s cannot be trained as a whole; set adapter: lora", c->base_model,
              nbl_format_name(format));
    bool eight = format == NBL_FORMAT_INT8;
    NBL_CHECK(t->ctx, !(c->load_in_4bit && eight) && !(c->load_in_8bit && !eight), NBL_ERROR_ARGUMENT,
              "%s: %s is set, but the weights of %s are stored in %s", c->file,
              eight ? "load_in_4bit" : "load_in_8bit", c->base_model, nbl_format_name(format));
    return NBL_OK;
}

/* Opens base_model with the adapter in folder `adapter` (NULL: a new one, or none in full
 * training). The model is opened first to learn its formats. With load_in_4bit or load_in_8bit
 * it is opened again, to be quantized while it is read, unless its weights are quantized
 * already. */
static nbl_status open_model(nbl__trainer *t, const char *adapter, bool plan_only)
{
    const nbl__run_config *c = t->config;
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options),
                                 .dtype = nbl__dtype_choice((nbl_dtype)c->compute), .adapter = adapter,
                                 .plan_only = plan_only};
    bool packed;
    NBL_TRY(nbl_model_open(t->ctx, c->base_model, &options, &t->model));
    NBL_TRY(check_packed(t, &packed));
    t->stored = t->model->decoder.dtype;
    if (!packed && (c->load_in_4bit || c->load_in_8bit)) {
        nbl_model_close(t->model);
        t->model = NULL;
        options.load = c->load_in_8bit ? NBL_FORMAT_INT8 : c->fp4 ? NBL_FORMAT_FP4 : NBL_FORMAT_NF4;
        options.load_nested = c->load_in_4bit && c->double_quant;
        NBL_TRY(nbl_model_open(t->ctx, c->base_model, &options, &t->model));
    }
    t->model->train_all = c->full;
    if (c->full || adapter) return NBL_OK;
    return nbl__new_adapter(t->model, c);
}

/* True if the configuration's target modules are those of the adapter, in any order. */
static bool same_targets(const nbl__run_config *c, const nbl__peft_choice *has)
{
    if (c->target_regex) return has->regex && strcmp(c->target_regex, has->regex) == 0;
    if (c->target_modules.count != has->list.count) return false;
    for (int64_t i = 0; i < has->list.count; i++) {
        bool found = false;
        for (int64_t k = 0; k < has->list.count && !found; k++)
            found = strcmp(c->target_modules.items[i], has->list.names[k]) == 0;
        if (!found) return false;
    }
    return true;
}

/* The adapter of lora_model_dir keeps its own settings. Warns once, with a list of all keys of the
 * configuration that differ and have no effect. */
static nbl_status warn_of_ignored(const nbl__trainer *t)
{
    const nbl__run_config *c = t->config;
    const nbl__peft_settings *has = &t->model->peft->settings;
    nbl__text line = {.ctx = t->ctx};
    if (c->lora_r > 0 && c->lora_r != has->r)
        nbl__text_printf(&line, ", lora_r %" PRId64 " (it has %" PRId64 ")", c->lora_r, has->r);
    if (c->lora_alpha > 0 && c->lora_alpha != has->alpha)
        nbl__text_printf(&line, ", lora_alpha %g (it has %g)", c->lora_alpha, has->alpha);
    if (c->lora_dropout > 0 && c->lora_dropout != has->dropout)
        nbl__text_printf(&line, ", lora_dropout %g (it has %g)", c->lora_dropout, has->dropout);
    if (c->dora && !has->dora) nbl__text_printf(&line, ", peft_use_dora");
    if (c->rslora && !has->rslora) nbl__text_printf(&line, ", peft_use_rslora");
    if ((c->target_regex || c->target_modules.count) && !same_targets(c, &has->target))
        nbl__text_printf(&line, ", lora_target_modules");
    if (c->target_linear && !has->all_linear) nbl__text_printf(&line, ", lora_target_linear");
    if (c->target_parameters.count && has->parameters.count == 0)
        nbl__text_printf(&line, ", lora_target_parameters");
    if (c->modules_to_save.count && has->modules_to_save.count == 0)
        nbl__text_printf(&line, ", lora_modules_to_save");
    if (line.status == NBL_OK && line.size)
        nbl__log(t->ctx, NBL_LOG_WARNING, "%s: the adapter of lora_model_dir goes on as it is; no effect: %s",
                 c->file, line.text + 2);
    nbl_status status = line.status;
    nbl__text_free(&line);
    return status;
}

/* ---- the plan ---- */

/* The request for the plan. memory: a limit in bytes, 0: none. available: 9/10 of the free
 * memory; a tenth stays for temporary allocations. To be called before weights are loaded, so
 * that `nibble plan` and `nibble train` see the same free memory. */
static nbl__plan_request request_of(nbl_context *ctx, const nbl__run_config *c, uint64_t memory)
{
    return (nbl__plan_request){.train = true,
                               .optimizer_bits = c->adam8bit ? 8 : 32,
                               .memory = memory,
                               .available = (nbl__memory_bytes_free(ctx) + nbl__memory_overhead_bytes(ctx)) /
                                            10 * 9,
                               .min = c->gradient_checkpointing ? NBL_RECOMPUTE_LAYERS : NBL_RECOMPUTE_NONE};
}

/* Opens data and model. *tokens, *sequences: size of the largest micro-batch. If *tokens is 0,
 * both are measured from the data. If the caller gives them, no data is read. */
static nbl_status open_parts(nbl__trainer *t, const char *adapter, bool plan_only, int64_t *tokens,
                             int64_t *sequences)
{
    const nbl__run_config *c = t->config;
    int64_t vocabulary = 0;
    if (*tokens == 0) {
        nbl__trainer_phase(t, 0, 0, "reading data");
        NBL_TRY(nbl__run_vocabulary(t->ctx, c, &vocabulary));
        NBL_TRY(nbl__data_open(t->ctx, c, vocabulary, &t->data));
        char dropped[NBL_DROPPED_TEXT];
        nbl__data_counts counts = nbl__data_count(t->data);
        if (counts.dropped)
            nbl__log(t->ctx, NBL_LOG_WARNING, "%s: %" PRId64 " rows were dropped: %s", c->file,
                     counts.dropped, nbl__data_dropped(&counts, dropped));
        nbl__data_largest(t->data, tokens, sequences);
    }
    nbl__trainer_phase(t, 0, 0, "opening the model");
    NBL_TRY(open_model(t, adapter ? adapter : c->lora_model_dir, plan_only));
    return adapter == NULL && c->lora_model_dir ? warn_of_ignored(t) : NBL_OK;
}

nbl_status nbl_run_make_plan(nbl_run *r, const char *model, int64_t tokens, int64_t batch, uint64_t memory,
                             nbl_model_plan **plan)
{
    NBL_CHECK(r->ctx, plan != NULL, NBL_ERROR_ARGUMENT, "plan: plan is NULL");
    *plan = NULL;
    NBL_CHECK(r->ctx, tokens >= 0 && batch >= 0 && tokens <= INT32_MAX / 2 / nbl__max_i64(batch, 1),
              NBL_ERROR_ARGUMENT, "plan: %" PRId64 " tokens in %" PRId64 " sequences", tokens, batch);
    nbl__run_config config = r->config;
    if (model) config.base_model = model;
    nbl__trainer t = {.ctx = r->ctx, .arena = nbl__arena_make(r->ctx), .config = &config, .lock = -1};
    nbl__plan_request request = request_of(r->ctx, &config, memory ? memory : config.memory);
    request.sequences = nbl__max_i64(batch, 1);
    request.tokens = tokens * request.sequences;
    nbl_status status = open_parts(&t, NULL, true, &request.tokens, &request.sequences);
    if (status == NBL_OK) status = nbl__model_plan(t.model, &request, plan);
    nbl__trainer_close(&t);
    return status;
}

/* ---- memory of a step outside the plan ---- */

/* Prepares the counts of experts' tokens: a row per layer that has experts. */
static nbl_status open_expert_load(nbl__trainer *t)
{
    const nbl__value *offsets = t->session.build.expert_offsets;
    int64_t layers = offsets ? t->model->decoder.layers : 0, rows = 0;
    for (int64_t i = 0; i < layers; i++) rows += offsets[i] != 0;
    NBL_TRY(nbl__expert_load_make(&t->arena, rows, t->model->decoder.experts, &t->expert_load));
    for (int64_t i = 0, row = 0; i < layers; i++)
        if (offsets[i]) t->expert_load.layers[row++] = i;
    return NBL_OK;
}

/* Allocates a step batch for the largest case. A step batch never spans two epochs, so it never
 * holds more micro-batches than there are examples. losses follow clipping in the same host memory,
 * and loads follow losses. */
static nbl_status open_step_batch(nbl__trainer *t, nbl__step_batch *w)
{
    int64_t accumulation = nbl__min_i64(t->config->gradient_accumulation_steps,
                                        nbl__data_count(t->data).examples);
    w->room = t->session.build.tokens * accumulation;
    w->max_sequences = t->session.build.sequences * accumulation;
    w->ids = nbl__arena_alloc(&t->arena, (size_t)w->room * sizeof *w->ids);
    w->labels = nbl__arena_alloc(&t->arena, (size_t)w->room * sizeof *w->labels);
    w->sequences = nbl__arena_alloc(&t->arena, (size_t)w->max_sequences * sizeof *w->sequences);
    w->targets = nbl__arena_alloc(&t->arena, (size_t)w->max_sequences * sizeof *w->targets);
    w->starts = nbl__arena_alloc(&t->arena, (size_t)(accumulation + 1) * sizeof *w->starts);
    int64_t loads = t->expert_load.rows * (t->expert_load.experts + 1);
    w->result_bytes = sizeof *w->clipping +
                      (size_t)accumulation * (sizeof *w->losses + (size_t)loads * sizeof *w->loads);
    w->clipping = nbl__memory_alloc_host(t->ctx, w->result_bytes);
    w->losses = (float *)(void *)(w->clipping + 1);
    w->loads = (int32_t *)(void *)(w->losses + accumulation);
    return w->ids && w->labels && w->sequences && w->targets && w->starts && w->clipping ? NBL_OK
                                                                                         : NBL_ERROR_MEMORY;
}

/* Computes the length of the run in steps: max_steps, or num_epochs times the steps of the first
 * epoch. With packing other epochs may have slightly more or fewer steps. Also makes the
 * validation epoch. */
static nbl_status count_steps(nbl__trainer *t)
{
    const nbl__run_config *c = t->config;
    nbl__epoch first;
    NBL_TRY(nbl__epoch_make(t->data, 0, false, &first));
    t->steps_per_epoch = nbl__ceil_div(first.batch_count, c->gradient_accumulation_steps);
    nbl__epoch_free(t->ctx, &first);
    NBL_TRY(nbl__epoch_make(t->data, 0, true, &t->validation));
    NBL_CHECK(t->ctx, t->steps_per_epoch > 0, NBL_ERROR_FORMAT, "%s: no example is left to train on",
              c->file);
    t->max_steps = c->max_steps > 0 ? c->max_steps
                                    : (int64_t)ceil(c->num_epochs * (double)t->steps_per_epoch);
    t->warmup = nbl__schedule_warmup(c, t->max_steps);
    return NBL_OK;
}

/* ---- new run or resumed run ---- */

/* *folder: the checkpoint to resume from; NULL: the run begins anew. A checkpoint that
 * resume_from_checkpoint names must be whole; with --resume or auto_resume the newest whole one
 * is used. */
static nbl_status choose_checkpoint(nbl__arena *arena, const nbl__run_config *c, bool resume,
                                    const char **folder)
{
    *folder = c->resume_from_checkpoint;
    if (*folder) return nbl__checkpoint_verify(arena->ctx, *folder);
    return resume || c->auto_resume ? nbl__checkpoint_latest(arena, c->output_dir, folder) : NBL_OK;
}

/* Computes the fingerprints of base model and start adapter. A checkpoint records them. */
static nbl_status fingerprint(nbl__trainer *t)
{
    const nbl__run_config *c = t->config;
    nbl__progress_begin(t->ctx, 0);
    NBL_TRY(nbl__fingerprint_model(t->ctx, c->base_model, &t->state.base));
    return c->lora_model_dir ? nbl__fingerprint_adapter(t->ctx, c->lora_model_dir, &t->state.start) : NBL_OK;
}

/* Collects the keys that checkpoints record. The machine is recorded as one more key,
 * "computed_on", because other kernels round differently. */
static nbl_status collect_values(nbl__trainer *t)
{
    nbl__run_value machine = {.name = "computed_on", .rule = NBL_RESUME_RECORD};
    NBL_TRY(nbl__run_values_collect(&t->arena, t->config, &t->values));
    NBL_TRY(nbl__device_of(t->ctx)->machine(t->ctx, &t->arena, &machine.text));
    return nbl__run_values_add(&t->arena, &t->values, machine);
}

/* Chooses the checkpoint and compares its keys with this run's. Done before data and model are
 * read, so a changed key is reported at once. */
static nbl_status choose_start(nbl__trainer *t, const nbl_train_options *options)
{
    const nbl__run_config *c = t->config;
    NBL_CHECK(t->ctx,
              !options->allow_changes || options->resume || c->auto_resume || c->resume_from_checkpoint,
              NBL_ERROR_ARGUMENT, "--allow-changes needs --resume: a run that begins anew changes nothing");
    NBL_TRY(choose_checkpoint(&t->arena, c, options->resume, &t->resumed));
    NBL_TRY(collect_values(t));
    if (t->resumed == NULL) return NBL_OK;
    nbl__trainer_phase(t, 0, 0, "checking the checkpoint");
    NBL_TRY(fingerprint(t));
    return nbl__checkpoint_check(&t->arena, t->resumed, &t->state, &t->values, options->allow_changes,
                                 &t->history, &t->changed);
}

nbl__run_parts nbl__trainer_parts(nbl__trainer *t)
{
    return (nbl__run_parts){.config = t->config,
                            .session = &t->session,
                            .optimizer = &t->optimizer,
                            .records = &t->records,
                            .state = &t->state,
                            .max_steps = t->max_steps,
                            .values = &t->values,
                            .history = &t->history,
                            .stale_checkpoints = &t->stale_checkpoints};
}

/* Allocates the plan's memory and brings parameters, optimizer, records and state to where the run
 * begins or resumes. */
static nbl_status begin_run(nbl__trainer *t)
{
    const nbl__run_config *c = t->config;
    nbl__trainer_phase(t, 0, 0, "preparing the first step");
    NBL_TRY(count_steps(t));
    /* Sampling has uploaded the weights as generation uses them. Training may keep them dequantized
     * instead. Without this call both forms would be on the device. */
    if (t->samples.count) nbl__upload_free(t->model);
    NBL_TRY(nbl__session_bind(&t->session));
    if (t->model->peft && nbl__peft_is_new(t->model->peft)) NBL_TRY(nbl__init_adapter(&t->session, c->seed));
    NBL_TRY(nbl__optimizer_open(&t->session, c->adam8bit, &t->optimizer));
    t->step_batch = t->step_batches;
    NBL_TRY(open_expert_load(t));
    for (int i = 0; i < 2; i++) NBL_TRY(open_step_batch(t, &t->step_batches[i]));
    t->records = (nbl__records){.ctx = t->ctx, .folder = c->output_dir};
    t->state = (nbl__run_state){.loss_scale = (nbl_dtype)c->compute == NBL_DTYPE_F16 ? 0x1p16 : 1,
                                .best_eval = INFINITY,
                                .data = nbl__data_identity(t->data),
                                .base = t->state.base,
                                .start = t->state.start};
    if (t->resumed) {
        nbl__run_parts parts = nbl__trainer_parts(t);
        NBL_TRY(nbl__checkpoint_load(&parts, t->resumed));
        NBL_TRY(nbl__best_resume(t->ctx, c, t->resumed, &t->state));
    }
    NBL_TRY(nbl__plan_prepare(&t->session.plan)); /* the parameters have just been set */
    NBL_TRY(nbl__epoch_make(t->data, t->state.epoch, false, &t->epoch));
    NBL_CHECK(t->ctx, !t->resumed || t->state.batches == t->epoch.batch_count, NBL_ERROR_FORMAT,
              "%s: its epoch has %" PRId64 " micro-batches, this run's %" PRId64
              " (micro_batch_size, sample_packing and sequence_len must be as they were)",
              t->resumed, t->state.batches, t->epoch.batch_count);
    t->state.batches = t->epoch.batch_count;
    if (t->state.step > t->max_steps)
        return nbl__hint(t->ctx,
                         nbl__fail(t->ctx, NBL_ERROR_ARGUMENT,
                                   "%s: %" PRId64 " steps are done already; this run has only %" PRId64,
                                   t->resumed, t->state.step, t->max_steps),
                         "raise max_steps or num_epochs, or begin anew without --resume");
    nbl__trainer_describe(t);
    return NBL_OK;
}

/* Opens a zeroed trainer in the order of the file head. The folder may not exist before it is
 * made; then it is locked only afterwards. */
static nbl_status open_trainer(nbl__trainer *t, const nbl_train_options *options)
{
    const nbl__run_config *c = t->config;
    nbl__plan_request request = request_of(t->ctx, c, c->memory);
    NBL_TRY(nbl__output_dir_check(t->ctx, c));
    NBL_TRY(c->full && nbl__is_folder(c->base_model) ? nbl__companions_check(t->ctx, c->base_model)
                                                     : nbl__text_files_check(t->ctx, c->base_model));
    NBL_TRY(nbl__output_dir_lock(t->ctx, c->output_dir, &t->lock));
    NBL_TRY(choose_start(t, options));
    NBL_TRY(open_parts(t, c->full ? NULL : t->resumed, false, &request.tokens, &request.sequences));
    if (t->resumed == NULL) NBL_TRY(fingerprint(t));
    nbl__trainer_phase(t, 0, 0, "planning");
    NBL_TRY(nbl__plan_training(t->model, &request, &t->session, &t->memory_bytes));
    NBL_TRY(nbl__output_dir_make(t->ctx, c->output_dir));
    if (t->lock < 0) NBL_TRY(nbl__output_dir_lock(t->ctx, c->output_dir, &t->lock));
    NBL_TRY(nbl__remove_leftovers(t->ctx, c->output_dir));
    NBL_TRY(nbl__move_earlier_output(t->ctx, c, t->resumed, t->changed));
    NBL_TRY(nbl__trainer_sample_before(t, options->samples));
    return begin_run(t);
}

nbl_status nbl__trainer_open(nbl_context *ctx, const nbl__run_config *config,
                             const nbl_train_options *options, nbl__trainer *t)
{
    *t = (nbl__trainer){
        .ctx = ctx, .arena = nbl__arena_make(ctx), .config = config, .options = options, .lock = -1};
    nbl_status status = open_trainer(t, options);
    if (status != NBL_OK) nbl__trainer_close(t);
    return status;
}

/* Frees optimizer, session and model. The session is closed before the host memory of the
 * step batches is freed: closing waits until the device no longer writes there. */
static void release(nbl__trainer *t)
{
    nbl__optimizer_close(&t->optimizer);
    if (t->session.model) nbl__session_close(&t->session);
    for (int i = 0; i < 2; i++) {
        nbl__memory_free_host(t->ctx, t->step_batches[i].clipping, t->step_batches[i].result_bytes);
        t->step_batches[i].clipping = NULL;
    }
    nbl_model_close(t->model);
    t->model = NULL;
}

nbl_status nbl__trainer_reopen(nbl__trainer *t)
{
    const nbl__run_config *c = t->config;
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options),
                                 .dtype = nbl__dtype_choice((nbl_dtype)c->compute)};
    release(t);
    return c->full ? nbl_model_open(t->ctx, c->output_dir, &options, &t->model)
                   : open_model(t, c->output_dir, false);
}

void nbl__trainer_close(nbl__trainer *t)
{
    if (t->ctx == NULL) return;
    nbl__epoch_free(t->ctx, &t->epoch);
    nbl__epoch_free(t->ctx, &t->next_epoch);
    nbl__epoch_free(t->ctx, &t->validation);
    nbl__records_close(&t->records);
    nbl__samples_close(&t->samples);
    release(t);
    nbl__data_close(t->data);
    nbl__arena_free(&t->arena);
    if (t->lock >= 0) close(t->lock);
    *t = (nbl__trainer){.lock = -1};
}
