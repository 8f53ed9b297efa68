/* logits.c - logits of sequences; loss and gradients of one step; checks of sequences and labels.
 *
 *     nbl_model_logits      one sequence at a time; one session, planned for the longest
 *     nbl_model_gradients   all sequences packed in one pass (pack != 0), or one by one, adding
 *                           gradients up
 *
 * Both forms of nbl_model_gradients divide the loss by the number of trained tokens of all
 * sequences: so they give the same loss and gradients, up to rounding. */
#include <math.h>

#include "model/language_model.h"
#include "ops/loss/cross_entropy.h"
#include "device/device_memory.h"

/* The tokens of the longest sequence. */
static int64_t longest(const nbl_ids *sequences, int64_t count)
{
    int64_t max = 0;
    for (int64_t i = 0; i < count; i++) max = nbl__max_i64(max, sequences[i].count);
    return max;
}

/* Checks that every id is in the vocabulary, so that no kernel reads beyond a table. */
nbl_status nbl__check_sequences(nbl_model *m, const nbl_ids *sequences, int64_t count)
{
    NBL_CHECK(m->ctx, sequences && count >= 1, NBL_ERROR_FORMAT, "no sequences");
    for (int64_t i = 0; i < count; i++) {
        NBL_CHECK(m->ctx, sequences[i].count >= 1 && sequences[i].count <= INT32_MAX / 2, NBL_ERROR_FORMAT,
                  "sequence %" PRId64 " has %" PRId64 " tokens", i, sequences[i].count);
        for (int64_t t = 0; t < sequences[i].count; t++)
            NBL_CHECK(m->ctx, sequences[i].ids[t] >= 0 && sequences[i].ids[t] < m->decoder.vocabulary,
                      NBL_ERROR_FORMAT,
                      "sequence %" PRId64 ", token %" PRId64 ": the id %" PRId32
                      " is not in the vocabulary of %" PRId64,
                      i, t, sequences[i].ids[t], m->decoder.vocabulary);
    }
    return NBL_OK;
}

/* Checks that labels fit their sequences. A label is an id or NBL_LABEL_IGNORED (-100). */
nbl_status nbl__check_labels(nbl_model *m, const nbl_ids *sequences, const nbl_ids *labels, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        NBL_CHECK(m->ctx, labels[i].count == sequences[i].count, NBL_ERROR_SHAPE,
                  "sequence %" PRId64 " has %" PRId64 " tokens and %" PRId64 " labels", i, sequences[i].count,
                  labels[i].count);
        for (int64_t t = 0; t < labels[i].count; t++) {
            int32_t label = labels[i].ids[t];
            NBL_CHECK(m->ctx, label == NBL_LABEL_IGNORED || (label >= 0 && label < m->decoder.vocabulary),
                      NBL_ERROR_FORMAT,
                      "sequence %" PRId64 ", label %" PRId64 ": %" PRId32
                      " is neither -100 nor in the vocabulary of %" PRId64,
                      i, t, label, m->decoder.vocabulary);
        }
    }
    return NBL_OK;
}

int64_t nbl_model_vocabulary(const nbl_model *model)
{
    return model->decoder.vocabulary;
}

int64_t nbl_model_max_positions(const nbl_model *model)
{
    return model->decoder.positions;
}

nbl_status nbl_model_logits(nbl_model *m, const nbl_ids *sequences, int64_t count, float *const *logits)
{
    NBL_TRY(nbl__check_sequences(m, sequences, count));
    nbl__session s;
    NBL_TRY(nbl__session_open(
        m,
        &(nbl__session_options){.mode = NBL_MODE_LOGITS, .tokens = longest(sequences, count), .sequences = 1},
        &s));
    nbl_status status = NBL_OK;
    float cap = m->decoder.final_cap;
    for (int64_t i = 0; i < count && status == NBL_OK; i++) {
        status = nbl__session_load(&s, &sequences[i], 1, NULL);
        if (status == NBL_OK) status = nbl__plan_run(&s.plan);
        if (status != NBL_OK) break;
        int64_t n = sequences[i].count * m->decoder.vocabulary;
        nbl__to_f32(nbl__isa(m->ctx), m->dtype, nbl__plan_data(&s.plan, s.build.logits), logits[i], n);
        /* the cap is not part of the graph that makes logits: it is applied in f32 here */
        for (int64_t k = 0; cap > 0 && k < n; k++) logits[i][k] = cap * tanhf(logits[i][k] / cap);
    }
    nbl__session_close(&s);
    return status;
}

/* ---- gradients ---- */

/* Labels that count. The first token of a sequence has no predecessor, so its label never does. */
static int64_t trained_tokens(const nbl_ids *labels, int64_t count)
{
    int64_t trained = 0;
    for (int64_t i = 0; i < count; i++)
        for (int64_t t = 1; t < labels[i].count; t++) trained += labels[i].ids[t] != NBL_LABEL_IGNORED;
    return trained;
}

/* Calls fn for the gradient of every trained parameter. The tensor is valid during the call
 * only. */
static nbl_status visit_gradients(nbl__session *s, nbl_gradient_fn fn, void *user)
{
    for (nbl__value v = 1; v <= s->graph.value_count; v++) {
        const nbl__value_info *info = nbl__info(&s->graph, v);
        if (!info->trained || info->gradient == 0) continue;
        nbl_tensor gradient = nbl__info(&s->graph, info->gradient)->tensor;
        size_t bytes = (size_t)nbl__tensor_elements(&gradient) * nbl__size_of(gradient.dtype);
        NBL_TRY(nbl__memory_map_host(s->graph.ctx, nbl__plan_address(&s->plan, info->gradient), bytes, true,
                                     &gradient.data));
        /* under the name, and in the layout, that the adapter's file has */
        nbl__arena arena = nbl__arena_make(s->graph.ctx);
        const char *name = info->name;
        nbl_status status = nbl__peft_file_tensor(&arena, s->model->peft, &name, &gradient);
        if (status == NBL_OK) status = fn(user, name, &gradient);
        nbl__arena_free(&arena);
        NBL_TRY(status);
    }
    return NBL_OK;
}

nbl_status nbl_model_gradients(nbl_model *m, const nbl_ids *sequences, const nbl_ids *labels, int64_t count,
                               bool pack, bool dropout, nbl_gradient_fn fn, void *user, double *loss,
                               int64_t *trained)
{
    NBL_CHECK(m->ctx, fn && loss && trained, NBL_ERROR_ARGUMENT, "gradients: fn, loss or trained is NULL");
    NBL_TRY(nbl__check_sequences(m, sequences, count));
    NBL_CHECK(m->ctx, m->peft || m->train_all || m->trained_count > 0, NBL_ERROR_ARGUMENT,
              "gradients need an adapter");
    NBL_TRY(nbl__check_labels(m, sequences, labels, count));
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; i++) tokens += sequences[i].count;
    *trained = trained_tokens(labels, count);
    *loss = 0;
    nbl__session s;
    NBL_TRY(nbl__session_open(m,
                              &(nbl__session_options){.mode = NBL_MODE_TRAIN,
                                                      .tokens = pack ? tokens : longest(sequences, count),
                                                      .sequences = pack ? count : 1,
                                                      .train = true,
                                                      .drops = dropout != 0},
                              &s));
    *(float *)nbl__plan_data(&s.plan, s.build.dloss) = 1; /* the gradient of the loss by itself */
    /* the denominator is that of all sequences, also when they run one by one */
    *(float *)nbl__plan_data(&s.plan, s.build.denominator) = (float)nbl__max_i64(*trained, 1);
    nbl_status status = NBL_OK;
    for (int64_t i = 0; i < (pack ? 1 : count) && status == NBL_OK; i++) {
        status = nbl__session_load(&s, &sequences[i], pack ? count : 1, &labels[i]);
        if (status == NBL_OK) status = nbl__plan_run(&s.plan);
        *loss += (double)*(float *)nbl__plan_data(&s.plan, s.build.loss);
    }
    if (status == NBL_OK) status = visit_gradients(&s, fn, user);
    nbl__session_close(&s);
    return status;
}
