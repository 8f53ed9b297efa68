/* train_report.c - samples before and after training, and the report's description of a run. See
 * trainer.h and samples.h. */
#include <errno.h>
#include <unistd.h>

#include "device/device_memory.h"
#include "train/trainer.h"

/* Samples by default: three for models up to cheap_parameters, none for larger ones. */
enum { USUAL_SAMPLES = 3 };
static const int64_t cheap_parameters = 1000000000;

/* Parameters of the base model, trained or not. */
static int64_t count_parameters(const nbl_model *m)
{
    int64_t count = 0;
    for (int64_t i = 0; i < m->weight_count; i++) {
        const nbl_weight *w = &m->weights[i].weight;
        int64_t elements = 1;
        for (int k = 0; k < w->rank; k++) elements *= w->shape[k];
        count += elements;
    }
    return count;
}

/* ---- samples ---- */

static const char *samples_path(nbl__arena *arena, const nbl__run_config *config)
{
    return nbl__arena_printf(arena, "%s/samples.json", config->output_dir);
}

/* Samples of the model before training. A new adapter is detached for that: its tensors have no
 * memory yet, and B = 0 would change nothing. */
static nbl_status write_before(nbl__trainer *t)
{
    nbl__peft *peft = t->model->peft;
    nbl__trainer_phase(t, 0, 0, "writing samples");
    if (peft && nbl__peft_is_new(peft)) t->model->peft = NULL;
    nbl_status status = nbl__samples_write(&t->samples, t->model, false);
    t->model->peft = peft;
    return status;
}

nbl_status nbl__trainer_sample_before(nbl__trainer *t, int samples)
{
    nbl__samples *s = &t->samples;
    bool cheap = count_parameters(t->model) <= cheap_parameters;
    const char *path = samples_path(&t->arena, t->config);
    if (path == NULL) return NBL_ERROR_MEMORY;
    /* A run that begins anew removes samples.json: it belongs to an earlier run. */
    if (t->resumed == NULL && unlink(path) != 0 && errno != ENOENT)
        return nbl__fail_errno(t->ctx, errno, "%s: cannot be removed", path);
    if (!t->config->report) return NBL_OK;
    int64_t max = samples > 0 ? samples : samples == 0 && cheap ? USUAL_SAMPLES : 0;
    NBL_TRY(nbl__samples_choose(t->ctx, t->data, max, s));
    if (max == 0)
        s->missing = samples == 0 ? "more than a billion parameters; --samples 3 makes them nevertheless"
                                  : "none were asked for";
    NBL_TRY(nbl__samples_limit(s, t->model, t->memory_bytes));
    if (s->count == 0) return NBL_OK;
    if (t->resumed) return nbl__samples_recall(s, path);
    NBL_TRY(write_before(t));
    return nbl__samples_put(s, path);
}

nbl_status nbl__trainer_sample_after(nbl__trainer *t)
{
    nbl__samples *s = &t->samples;
    const char *path = samples_path(&t->arena, t->config);
    if (path == NULL) return NBL_ERROR_MEMORY;
    if (s->count == 0) return NBL_OK;
    nbl__trainer_phase(t, 0, 0, "writing samples");
    nbl_status status = nbl__trainer_reopen(t);
    if (status == NBL_OK) status = nbl__samples_write(s, t->model, true);
    if (status == NBL_ERROR_MEMORY) return status;
    if (status != NBL_OK)
        nbl__samples_fail(s, nbl_error_message(t->ctx)); /* the result is complete: no error */
    return nbl__samples_put(s, path);
}

/* ---- the report ---- */

/* The storage of the weights for the report: the format of the first quantized weight, else the
 * dtype. */
static const char *storage_of(const nbl_model *m, nbl_dtype stored)
{
    for (int64_t i = 0; i < m->weight_count; i++)
        if (m->weights[i].weight.format != NBL_FORMAT_DENSE)
            return nbl_format_name(m->weights[i].weight.format);
    return nbl_dtype_name(stored);
}

void nbl__trainer_describe(nbl__trainer *t)
{
    const nbl__plan *plan = &t->session.plan;
    t->report = (nbl__report){
        .config = t->config,
        .records = &t->records,
        .samples = &t->samples,
        .history = &t->history,
        .arenas = {.weights = nbl__model_bytes(t->model, true),
                   .adapters = plan->bytes[NBL_MEMORY_PARAMETERS] + plan->bytes[NBL_MEMORY_GRADIENTS],
                   .optimizer = t->optimizer.moment_bytes,
                   .saved = plan->saved_bytes,
                   .scratch = plan->bytes[NBL_MEMORY_RUN] - plan->saved_bytes +
                              plan->bytes[NBL_MEMORY_INPUTS],
                   .kv = plan->bytes[NBL_MEMORY_STATES],
                   .device = nbl__memory_overhead_bytes(t->ctx)},
        .memory_bytes = t->memory_bytes,
        .recompute = plan->recompute,
        .recomputed_layers = plan->recomputed_layers,
        .layers = t->model->decoder.layers,
        .expert_load = &t->expert_load,
        .top_k = t->model->decoder.top_k,
        .weights = storage_of(t->model, t->stored),
        .compute = nbl_dtype_name(t->model->dtype),
        .parameters = count_parameters(t->model),
        .data = nbl__data_count(t->data),
        .held_back = nbl__data_held_count(t->data),
        .isa = nbl_isa_name(t->ctx),
        .threads = nbl_threads(t->ctx),
    };
    for (int64_t i = 0; i < t->optimizer.count; i++)
        t->report.trained_parameters += nbl__tensor_elements(&t->optimizer.tensors[i].adam.p);
}
