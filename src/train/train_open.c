/* train_open.c - from a configuration to a trainer that stands before its next step. See trainer.h. */
#include <errno.h>
#include <math.h>
#include <sys/stat.h>

#include "train/adapter_init.h"
#include "train/schedule.h"
#include "train/trainer.h"

/* ---- the model ---- */

/* What is packed already stays as it is, whatever the configuration would have chosen. */
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

static nbl_status open_model(nbl__trainer *t, const char *adapter)
{
    const nbl__run_config *c = t->config;
    nbl_model_options options = {.dtype = nbl_dtype_name((nbl_dtype)c->compute), .adapter = adapter};
    bool packed;
    NBL_TRY(nbl_model_open(t->ctx, c->base_model, &options, &t->model));
    NBL_TRY(check_packed(t, &packed));
    t->stored = t->model->decoder.dtype;
    if (!packed && (c->load_in_4bit || c->load_in_8bit)) {
        nbl_model_close(t->model);
        t->model = NULL;
        options.load = c->load_in_8bit ? "int8" : c->fp4 ? "fp4" : "nf4";
        options.load_nested = c->load_in_4bit && c->double_quant;
        NBL_TRY(nbl_model_open(t->ctx, c->base_model, &options, &t->model));
    }
    t->model->train_all = c->full;
    if (c->full || adapter) return NBL_OK;
    return nbl__new_adapter(t->model, c);
}

/* The model's, without opening its weights: mistakes in the data show before anything large is read. */
static nbl_status read_vocabulary(nbl_context *ctx, const char *model, int64_t *vocabulary)
{
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__gguf_model *gguf = NULL;
    nbl__config config = {0};
    nbl__decoder decoder;
    nbl_status status = NBL_OK;
    const char *path = nbl__arena_printf(&arena, "%s/config.json", model);
    if (path == NULL) status = NBL_ERROR_MEMORY;
    else if (nbl__ends_with(model, ".gguf")) status = nbl__gguf_model_open(ctx, model, &gguf);
    else status = nbl__config_read(&arena, path, &config);
    if (status == NBL_OK)
        status = nbl__decoder_read(ctx, model, gguf ? gguf->config.root : config.root, &decoder);
    if (status == NBL_OK) *vocabulary = decoder.vocabulary;
    nbl__gguf_model_close(gguf);
    nbl__arena_free(&arena);
    return status;
}

/* ---- the plan ---- */

static nbl_status plan_session(nbl__trainer *t, int64_t tokens, int64_t sequences)
{
    const nbl__run_config *c = t->config;
    nbl__session_options options = {
        .mode = NBL_MODE_TRAIN, .tokens = tokens, .sequences = sequences, .train = true};
    options.plan.least = c->gradient_checkpointing ? NBL_RECOMPUTE_LAYERS : NBL_RECOMPUTE_NONE;
    NBL_TRY(nbl__session_plan(t->model, &options, &t->session));
    uint64_t fixed = nbl__model_bytes(t->model) + nbl__optimizer_bytes(&t->session, c->adam8bit);
    t->memory_bytes = fixed + nbl__plan_total(&t->session.plan);
    if (c->memory == 0 || t->memory_bytes <= c->memory) return NBL_OK;
    nbl__session_close(&t->session);
    NBL_CHECK(t->ctx, fixed < c->memory, NBL_ERROR_MEMORY,
              "%s: weights and moments alone need %" PRIu64 " bytes; memory is %" PRIu64, c->file, fixed,
              c->memory);
    options.plan.budget = (size_t)(c->memory - fixed);
    NBL_TRY(nbl__session_plan(t->model, &options, &t->session));
    t->memory_bytes = fixed + nbl__plan_total(&t->session.plan);
    return NBL_OK;
}

nbl_status nbl__trainer_plan(nbl_context *ctx, const nbl__run_config *config, const char *adapter,
                             int64_t tokens, int64_t sequences, nbl__trainer *t)
{
    *t = (nbl__trainer){.ctx = ctx, .arena = nbl__arena_make(ctx), .config = config};
    nbl_status status = NBL_OK;
    int64_t vocabulary = 0;
    NBL_CHECK(ctx, config->device == NULL || strcmp(config->device, "cuda") != 0, NBL_ERROR_UNSUPPORTED,
              "%s: device: cuda is not there in this build", config->file);
    if (tokens == 0) {
        NBL_GO(read_vocabulary(ctx, config->base_model, &vocabulary));
        NBL_GO(nbl__data_open(ctx, config, vocabulary, &t->data));
        nbl__data_largest(t->data, &tokens, &sequences);
    }
    NBL_GO(open_model(t, adapter ? adapter : config->lora_model_dir));
    NBL_GO(plan_session(t, tokens, sequences));
    return NBL_OK;
done:
    nbl__trainer_close(t);
    return status;
}

/* ---- what a step needs beside the plan ---- */

static nbl_status open_window(nbl__trainer *t)
{
    nbl__window *w = &t->window;
    int64_t accumulation = t->config->gradient_accumulation_steps;
    w->room = t->session.build.tokens * accumulation;
    w->most_sequences = t->session.build.sequences * accumulation;
    w->ids = nbl__arena_alloc(&t->arena, (size_t)w->room * sizeof *w->ids);
    w->labels = nbl__arena_alloc(&t->arena, (size_t)w->room * sizeof *w->labels);
    w->sequences = nbl__arena_alloc(&t->arena, (size_t)w->most_sequences * sizeof *w->sequences);
    w->targets = nbl__arena_alloc(&t->arena, (size_t)w->most_sequences * sizeof *w->targets);
    w->starts = nbl__arena_alloc(&t->arena, (size_t)(accumulation + 1) * sizeof *w->starts);
    return w->ids && w->labels && w->sequences && w->targets && w->starts ? NBL_OK : NBL_ERROR_MEMORY;
}

static nbl_status find_sites(nbl__trainer *t)
{
    const nbl__plan *plan = &t->session.plan;
    t->sites = nbl__arena_alloc(&t->arena, (size_t)plan->step_count * sizeof *t->sites);
    if (t->sites == NULL) return NBL_ERROR_MEMORY;
    for (int i = 0; i < plan->step_count; i++) {
        float *rate = nbl__step_attr(&plan->steps[i], "dropout");
        if (rate == NULL || *rate == 0) continue;
        uint64_t number = (uint64_t)(plan->steps[i].node - t->session.graph.nodes);
        t->sites[t->site_count++] = (nbl__dropout_site){rate, *rate, nbl__step_attr(&plan->steps[i], "seed"),
                                                        number};
    }
    return NBL_OK;
}

/* How long the run is: told, or by epochs of as many steps as the first one has. */
static nbl_status count_steps(nbl__trainer *t)
{
    const nbl__run_config *c = t->config;
    nbl__epoch first;
    NBL_TRY(nbl__epoch_make(t->data, 0, false, &first));
    NBL_TRY(nbl__epoch_make(t->data, 0, true, &t->validation));
    t->steps_per_epoch = nbl__ceil_div(first.batch_count, c->gradient_accumulation_steps);
    nbl__epoch_free(t->ctx, &first);
    NBL_CHECK(t->ctx, t->steps_per_epoch > 0, NBL_ERROR_FORMAT, "%s: no example is left to train on",
              c->file);
    t->max_steps = c->max_steps > 0 ? c->max_steps
                                    : (int64_t)ceil(c->num_epochs * (double)t->steps_per_epoch);
    t->warmup = nbl__schedule_warmup(c, t->max_steps);
    return NBL_OK;
}

/* ---- the output folder ---- */

static nbl_status make_folder(nbl_context *ctx, nbl__arena *arena, const char *path)
{
    char *partial = nbl__arena_strdup(arena, path);
    if (partial == NULL) return NBL_ERROR_MEMORY;
    for (char *at = partial + 1;; at++) {
        if (*at != '/' && *at != '\0') continue;
        char kept = *at;
        *at = '\0';
        if (mkdir(partial, 0777) != 0 && errno != EEXIST)
            return nbl__fail_errno(ctx, errno, "output_dir: %s: cannot be made", partial);
        if ((*at = kept) == '\0') return NBL_OK;
    }
}

/* The checkpoint to go on from, or NULL: the run begins anew. */
static nbl_status choose_checkpoint(nbl__arena *arena, const nbl__run_config *c, bool resume,
                                    const char **folder)
{
    *folder = c->resume_from_checkpoint;
    if (*folder) return nbl__checkpoint_verify(arena->ctx, *folder);
    return resume || c->auto_resume ? nbl__checkpoint_latest(arena, c->output_dir, folder) : NBL_OK;
}

static nbl_status begin_run(nbl__trainer *t)
{
    const nbl__run_config *c = t->config;
    NBL_TRY(count_steps(t));
    NBL_TRY(nbl__session_bind(&t->session));
    if (t->model->peft && nbl__peft_is_new(t->model->peft)) NBL_TRY(nbl__init_adapter(&t->session, c->seed));
    NBL_TRY(nbl__optimizer_open(&t->session, c->adam8bit, &t->optimizer));
    NBL_TRY(open_window(t));
    NBL_TRY(find_sites(t));
    t->records = (nbl__records){.ctx = t->ctx, .folder = c->output_dir};
    t->state = (nbl__run_state){.loss_scale = (nbl_dtype)c->compute == NBL_DTYPE_F16 ? 0x1p16 : 1,
                                .best_eval = INFINITY,
                                .data = nbl__data_identity(t->data)};
    if (t->resumed) {
        nbl__run_parts parts = {c, &t->session, &t->optimizer, &t->records, &t->state, t->max_steps};
        NBL_TRY(nbl__checkpoint_load(&parts, t->resumed));
    }
    NBL_TRY(nbl__plan_prepare(&t->session.plan)); /* of the adapter as it is now */
    NBL_TRY(nbl__epoch_make(t->data, t->state.epoch, false, &t->epoch));
    NBL_CHECK(t->ctx, !t->resumed || t->state.batches == t->epoch.batch_count, NBL_ERROR_FORMAT,
              "%s: its epoch has %" PRId64 " micro-batches, this run's %" PRId64
              " (micro_batch_size, sample_packing and sequence_len must be as they were)",
              t->resumed, t->state.batches, t->epoch.batch_count);
    t->state.batches = t->epoch.batch_count;
    nbl__trainer_describe(t);
    return NBL_OK;
}

nbl_status nbl__trainer_open(nbl_context *ctx, const nbl__run_config *config, bool resume, int samples,
                             nbl__trainer *t)
{
    nbl__arena arena = nbl__arena_make(ctx);
    const char *folder = NULL;
    *t = (nbl__trainer){0};
    nbl_status status = choose_checkpoint(&arena, config, resume, &folder);
    if (status == NBL_OK) status = nbl__trainer_plan(ctx, config, config->full ? NULL : folder, 0, 0, t);
    if (status == NBL_OK) {
        t->resumed = folder ? nbl__arena_strdup(&t->arena, folder) : NULL;
        status = folder && t->resumed == NULL ? NBL_ERROR_MEMORY
                                              : make_folder(ctx, &arena, config->output_dir);
        if (status == NBL_OK) status = nbl__remove_leftovers(ctx, config->output_dir);
        if (status == NBL_OK && folder == NULL) status = nbl__set_aside(ctx, config->output_dir);
        if (status == NBL_OK) status = nbl__trainer_sample_before(t, samples);
        if (status == NBL_OK) status = begin_run(t);
        if (status != NBL_OK) nbl__trainer_close(t);
    }
    nbl__arena_free(&arena);
    return status;
}

static void release(nbl__trainer *t)
{
    nbl__optimizer_close(&t->optimizer);
    if (t->session.model) nbl__session_close(&t->session);
    nbl_model_close(t->model);
    t->model = NULL;
}

nbl_status nbl__trainer_reopen(nbl__trainer *t)
{
    const nbl__run_config *c = t->config;
    nbl_model_options options = {.dtype = nbl_dtype_name((nbl_dtype)c->compute)};
    release(t);
    return c->full ? nbl_model_open(t->ctx, c->output_dir, &options, &t->model)
                   : open_model(t, c->output_dir);
}

void nbl__trainer_close(nbl__trainer *t)
{
    if (t->ctx == NULL) return;
    nbl__epoch_free(t->ctx, &t->epoch);
    nbl__epoch_free(t->ctx, &t->validation);
    nbl__records_close(&t->records);
    nbl__samples_close(&t->samples);
    release(t);
    nbl__data_close(t->data);
    nbl__arena_free(&t->arena);
    *t = (nbl__trainer){0};
}
