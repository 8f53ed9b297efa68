/* session.c - builds, plans and binds a graph of a model, fills its parameters and writes its
 * inputs. See language_model.h.
 *
 * The decoder's builder (arch/) asks the session for weights, adapters and what is trained through
 * the three callbacks of nbl__model_source: weight_of, adapter_of, is_trained. Every weight it asks
 * for is marked `used` and gets its role. So tensors that the architecture does not know are
 * found. */
#include "model/language_model.h"
#include "device/device_memory.h"
#include "ops/families.h"

static const nbl_weight *weight_of(void *user, const char *name, nbl__weight_role role)
{
    const nbl__session *s = user;
    struct nbl__weight_entry *entry = nbl__model_find(s->model, name);
    if (entry == NULL) return NULL;
    entry->used = true;
    entry->role = role;
    return s->build.train && entry->dequantized ? &entry->as_used : &entry->weight;
}

/* The LoRA adapter of a module; false: none. A new adapter has no magnitudes yet, so its settings
 * say whether it is DoRA. */
static bool adapter_of(void *user, const char *module, nbl__adapter *adapter)
{
    const nbl__session *s = user;
    const nbl_model *m = s->model;
    const nbl__peft_module *found = m->peft ? nbl__peft_find(m->peft, module) : NULL;
    if (found == NULL) return false;
    *adapter = (nbl__adapter){.rank = found->r,
                              .scale = (float)found->scale,
                              .dropout = s->drops ? (float)m->peft->settings.dropout : 0,
                              .dora = nbl__peft_is_new(m->peft) ? m->peft->settings.dora
                                                                : found->magnitude != NULL};
    return true;
}

/* True if the graph shall read this weight from an f32 parameter. Sessions that neither train nor
 * share with a training session read trained weights as stored. */
static bool is_trained(void *user, const char *name)
{
    const nbl__session *s = user;
    return s->masters && nbl__model_trains(s->model, name);
}

/* One error that lists all tensors that are missing, have another shape or are unknown. `problems`
 * has the first two kinds; unknown are those that no graph has asked for. Allowed without use:
 * rotary_emb.inv_freq, a buffer in older files, and lm_head.weight of a model with a tied head. */
static nbl_status refuse_misfits(const nbl_model *m, nbl__text *problems)
{
    if (m->misfits) nbl__text_printf(problems, "%s", m->misfits);
    for (int64_t i = 0; i < m->weight_count; i++) {
        const struct nbl__weight_entry *entry = &m->weights[i];
        if (entry->used || nbl__ends_with(entry->name, "rotary_emb.inv_freq")) continue;
        if (m->decoder.tied && strcmp(entry->name, NBL_WEIGHT_OF(NBL_MODULE_HEAD)) == 0) continue;
        nbl__text_printf(problems, "; \"%s\" does not belong there", entry->name);
    }
    if (problems->status != NBL_OK) return problems->status;
    NBL_CHECK(m->ctx, problems->size == 0, NBL_ERROR_FORMAT, "%s: not the tensors of this %s model: %s",
              m->path, m->decoder.arch->model_type, problems->text + 2);
    return NBL_OK;
}

/* ---- parameters ---- */

/* The adapter's stored tensor for a parameter such as "model.layers.0.mlp.up_proj.lora_A.weight";
 * NULL: the parameter is not the adapter's. */
static const nbl__stored *adapter_tensor(const nbl_model *m, const char *name)
{
    for (int64_t i = 0; m->peft && i < m->peft->module_count; i++) {
        const nbl__peft_module *it = &m->peft->modules[i];
        size_t n = strlen(it->stem);
        if (strncmp(it->stem, name, n) != 0 || name[n] != '.') continue;
        if (strcmp(name + n + 1, "lora_A.weight") == 0) return it->a;
        if (strcmp(name + n + 1, "lora_B.weight") == 0) return it->b;
        if (strcmp(name + n + 1, "lora_magnitude_vector") == 0) return it->magnitude;
    }
    return NULL;
}

/* Writes the model's weight of this name to `to`, dense, in the dtype of the graph's value. */
static nbl_status fill_from_model(const nbl_model *m, const nbl__value_info *info, void *to)
{
    const struct nbl__weight_entry *entry = nbl__model_find(m, info->name);
    NBL_CHECK(m->ctx, entry, NBL_ERROR_INTERNAL, "no values for \"%s\"", info->name);
    const nbl_weight *w = &entry->weight;
    if (w->format != NBL_FORMAT_DENSE)
        return nbl__dequantize_host(m->ctx, w, 0, w->shape[0], info->tensor.dtype, 0, to);
    int64_t n = nbl__tensor_elements(&info->tensor);
    NBL_TRY(nbl_convert(m->ctx, w->dtype, w->data, info->tensor.dtype, to, n));
    if (m->checkpoint && info->trained)
        nbl__checkpoint_drop_file(m->checkpoint, w->data); /* from now on the f32 copy is used */
    return NBL_OK;
}

/* Fills one parameter from the adapter's file or the model's weight. On a device the values are
 * converted in host memory and copied. */
static nbl_status fill_parameter(nbl__session *s, nbl__value v)
{
    nbl_context *ctx = s->graph.ctx;
    const nbl__value_info *info = nbl__info(&s->graph, v);
    const nbl__stored *stored = adapter_tensor(s->model, info->name);
    int64_t n = nbl__tensor_elements(&info->tensor);
    size_t bytes = (size_t)n * nbl__size_of(info->tensor.dtype);
    void *memory = nbl__plan_address(&s->plan, v), *to;
    NBL_TRY(nbl__memory_map_host(ctx, memory, bytes, false, &to));
    if (stored) NBL_TRY(nbl_convert(ctx, stored->dtype, stored->data, info->tensor.dtype, to, n));
    else NBL_TRY(fill_from_model(s->model, info, to));
    return nbl__memory_unmap_host(ctx, memory, bytes, to);
}

/* Fills all parameters but the LoRA tensors of a new adapter, which the trainer initialises. */
static nbl_status fill_parameters(nbl__session *s)
{
    const nbl__peft *peft = s->model->peft;
    for (nbl__value v = 1; v <= s->graph.value_count; v++) {
        const nbl__value_info *info = nbl__info(&s->graph, v);
        if (info->kind != NBL_KIND_PARAMETER) continue;
        bool adapters = info->role == NBL_WEIGHT_LORA_A || info->role == NBL_WEIGHT_LORA_B ||
                        info->role == NBL_WEIGHT_MAGNITUDE;
        if (peft && nbl__peft_is_new(peft) && adapters) continue;
        NBL_TRY(nbl__progress_poll(s->graph.ctx, info->name));
        NBL_TRY(fill_parameter(s, v));
    }
    return NBL_OK;
}

/* ---- sessions ---- */

/* nbl__build.pins: how many values per layer can be offloaded to the host while the layer computes,
 * so that the transfer costs no time. 1: the layer's input; 2: and its middle; 3: and attention's
 * output.
 *
 * A device tells how many operations it does while one byte crosses the bus. Per token a layer does
 * 2 · hidden · (2 q + 2 kv + 3 inner) operations; input and middle are `hidden`
 * elements each, the output of attention has q elements. */
static int pins_of(const nbl_model *m, bool offload)
{
    const nbl__decoder *d = &m->decoder;
    if (!offload) return 1;
    int64_t q = d->heads * d->head_dim, kv = d->kv_heads * d->head_dim,
            size = (int64_t)nbl__size_of(m->dtype);
    int64_t meanwhile = nbl__device_of(m->ctx)->operations_per_host_byte * size;
    int64_t flops = 2 * d->hidden * (2 * q + 2 * kv + 3 * d->inner); /* of a token in a layer, forward */
    if (flops < meanwhile * 2 * d->hidden) return 1;
    return flops < meanwhile * (2 * d->hidden + q) ? 2 : 3;
}

/* Refuses a device that has no kernel for experts with the model's name. */
static nbl_status check_device(const nbl_model *m, const nbl__device *device)
{
    bool runs = m->decoder.experts == 0 || device->impls(&nbl__expert_mlp_family.forward)[0] != NULL;
    if (runs) return NBL_OK;
    nbl_status status = nbl__fail(m->ctx, NBL_ERROR_UNSUPPORTED,
                                  "%s: a mixture of experts does not run on %s", m->path, device->name);
    return nbl__hint(m->ctx, status, "--device cpu runs it");
}

/* Builds the graph, checks the tensors, adds the backward pass, plans. */
static nbl_status plan_session(nbl__session *s, const nbl__session_options *o)
{
    nbl_model *m = s->model;
    const nbl__device *device = nbl__device_of(m->ctx);
    NBL_CHECK(m->ctx, o->tokens < INT32_MAX && o->sequences < INT32_MAX, NBL_ERROR_ARGUMENT,
              "%s: %" PRId64 " tokens in one pass are too many", m->path, o->tokens);
    NBL_TRY(check_device(m, device));
    nbl__model_source source = {s, weight_of, adapter_of, is_trained};
    s->drops = o->drops;
    s->masters = o->train || (o->shared && o->shared->masters);
    s->build = (nbl__build){.g = &s->graph,
                            .d = &m->decoder,
                            .source = &source,
                            .mode = o->mode,
                            .dtype = m->dtype,
                            .kv_dtype = o->kv_dtype,
                            .train = o->train,
                            .dequantized = m->dequantized,
                            .split_mlp = o->split_mlp || (device->splits_mlp && o->mode != NBL_MODE_DECODE),
                            .argmax = o->argmax,
                            .fuses_rope_attention = device->fuses_rope_attention,
                            .fuses_norm_rope = device->fuses_norm_rope,
                            .pins = pins_of(m, o->plan.offload),
                            .tokens = o->tokens,
                            .sequences = o->sequences,
                            .cache_size = o->cache_size};
    nbl_status status = nbl__decoder_build(&s->build);
    s->build.source = NULL;
    if (status == NBL_OK) status = refuse_misfits(m, &s->build.problems);
    nbl__text_free(&s->build.problems);
    NBL_TRY(status);
    if (o->train) {
        s->seeds = nbl__graph_seed_dropout(&s->graph, m->decoder.layers);
        NBL_TRY(nbl__graph_differentiate(&s->graph, s->build.loss, s->build.dloss));
    }
    return nbl__plan_make(&s->graph, &o->plan, &s->plan);
}

/* Builds the cheapest graph, the body for one token, and throws it away: building asks for every
 * weight and checks its shape. The caller frees *problems. */
static nbl_status ask_for_weights(nbl_model *m, nbl__text *problems)
{
    nbl__session s = {.model = m};
    nbl__model_source source = {&s, weight_of, adapter_of, is_trained};
    nbl__graph_open(m->ctx, &s.graph);
    nbl__build b = {.g = &s.graph,
                    .d = &m->decoder,
                    .source = &source,
                    .mode = NBL_MODE_HIDDEN,
                    .dtype = m->dtype,
                    .kv_dtype = m->dtype,
                    .pins = 1,
                    .tokens = 1,
                    .sequences = 1};
    nbl_status status = nbl__decoder_build(&b);
    *problems = b.problems;
    nbl__graph_close(&s.graph);
    return status;
}

nbl_status nbl__model_find_roles(nbl_model *m)
{
    nbl__text problems;
    nbl_status status = ask_for_weights(m, &problems);
    nbl__text_free(&problems);
    return status;
}

nbl_status nbl__model_check(nbl_model *m)
{
    nbl__text problems;
    nbl_status status = ask_for_weights(m, &problems);
    if (status == NBL_OK) status = refuse_misfits(m, &problems);
    nbl__text_free(&problems);
    return status;
}

/* Sets the inputs of training that have a default: the loss is divided by the number of trained
 * tokens of the run, and the layers' seeds are 0. */
static void default_inputs(nbl__session *s)
{
    if (s->build.denominator) *(float *)nbl__plan_data(&s->plan, s->build.denominator) = 0;
    if (s->seeds)
        memset(nbl__plan_data(&s->plan, s->seeds), 0, (size_t)s->model->decoder.layers * sizeof(int64_t));
}

/* Uploads weights, allocates, fills and prepares the parameters. With `shared` the parameters are
 * the other session's, which has filled and prepared them. */
static nbl_status bind_session(nbl__session *s, const nbl__session *shared)
{
    NBL_CHECK(s->graph.ctx, !s->model->plan_only, NBL_ERROR_ARGUMENT, "%s was opened for planning alone",
              s->model->path);
    NBL_TRY(nbl__upload_weights(s->model, &s->graph));
    NBL_TRY(nbl__plan_bind(&s->plan, shared ? &shared->plan : NULL));
    default_inputs(s);
    if (shared) return NBL_OK;
    NBL_TRY(fill_parameters(s));
    /* The plan has a copy of the adapter now. Drop the file's pages, which would be a second
     * one. */
    if (s->model->peft)
        nbl__file_drop(&s->model->peft->file, s->model->peft->file.data, s->model->peft->file.size);
    return nbl__plan_prepare(&s->plan);
}

nbl_status nbl__session_plan(nbl_model *model, const nbl__session_options *options, nbl__session *session)
{
    memset(session, 0, sizeof *session);
    session->model = model;
    nbl__graph_open(model->ctx, &session->graph);
    nbl_status status = plan_session(session, options);
    if (status != NBL_OK) nbl__session_close(session);
    return status;
}

nbl_status nbl__session_bind(nbl__session *session)
{
    return bind_session(session, NULL);
}

nbl_status nbl__session_join(nbl__session *session, const nbl__session *host)
{
    NBL_TRY(nbl__upload_weights(session->model, &session->graph));
    return nbl__plan_join(&session->plan, &host->plan);
}

nbl_status nbl__session_open(nbl_model *model, const nbl__session_options *options, nbl__session *session)
{
    NBL_TRY(nbl__session_plan(model, options, session));
    nbl_status status = bind_session(session, options->shared);
    if (status != NBL_OK) nbl__session_close(session);
    return status;
}

void nbl__session_close(nbl__session *session)
{
    if (session->plan.ctx) nbl__plan_free(&session->plan);
    nbl__graph_close(&session->graph);
    session->model = NULL;
}

int32_t *nbl__session_input(nbl__session *s, nbl__value value, int64_t n)
{
    nbl_tensor *t = &nbl__info(&s->graph, value)->tensor;
    assert(value > 0 && nbl__info(&s->graph, value)->kind == NBL_KIND_INPUT && n >= 0);
    s->resized |= t->shape[0] != n;
    t->shape[0] = n;
    return nbl__plan_data(&s->plan, value);
}

nbl_status nbl__session_load(nbl__session *s, const nbl_ids *sequences, int64_t count, const nbl_ids *labels)
{
    nbl__build *b = &s->build;
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; i++) tokens += sequences[i].count;
    NBL_CHECK(s->graph.ctx, tokens <= b->tokens && count <= b->sequences, NBL_ERROR_INTERNAL,
              "%" PRId64 " tokens of %" PRId64 " sequences in a plan for %" PRId64 " and %" PRId64, tokens,
              count, b->tokens, b->sequences);
    int32_t *ids = nbl__session_input(s, b->ids, tokens),
            *positions = nbl__session_input(s, b->positions, tokens);
    int32_t *starts = nbl__session_input(s, b->cu_seqlens, count + 1),
            *targets = labels ? nbl__session_input(s, b->labels, tokens) : NULL;
    int64_t at = 0;
    starts[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        const nbl_ids *it = &sequences[i];
        for (int64_t t = 0; t < it->count; t++, at++) {
            ids[at] = it->ids[t];
            positions[at] = (int32_t)t;
            if (targets) targets[at] = t + 1 < it->count ? labels[i].ids[t + 1] : -100; /* the next token */
        }
        starts[i + 1] = (int32_t)at;
    }
    assert(at == tokens);
    return nbl__session_resize(s);
}

nbl_status nbl__session_resize(nbl__session *s)
{
    if (!s->resized) return NBL_OK;
    s->resized = false;
    return nbl__plan_resize(&s->plan);
}
