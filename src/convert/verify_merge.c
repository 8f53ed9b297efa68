/* verify_merge.c - nbl_merge, and the check of a merged folder: its logits must be those of the
 * base with the adapter applied at run time, up to rounding to the merged dtype. The two take
 * different code paths, since the adapter runs through the LoRA operators on packed weights. Both
 * compute in f32, so they differ by the rounding of weights only.
 *
 * The tolerance. Rounding changes each weight by at most u times its value (u = 2^-9 for bf16,
 * 2^-12 for f16, 2^-25 for f32). Errors are independent, so the output of a linear layer changes by
 * about u / 2 times its norm, in a random direction. The residual stream of L layers is made from 7
 * L such outputs, plus embedding and head. Independent errors add up by squares:
 *
 *     |logits' - logits| / |logits|  ≈  u / 2 · sqrt(7 L + 2)
 *
 * if later layers passed errors on unchanged. They amplify errors where attention scores are large
 * or outputs cancel: small random models showed up to three times as much. SLACK = 8 leaves room
 * for that. A lost or doubled adapter, a wrong scale or a transposed matrix changes the logits by
 * the size of the update, which is above the tolerance. FLOOR covers different orders of summation
 * in f32.
 *
 * Experts. Where two experts of a token are nearly tied, rounded weights may choose the other one, and that
 * token's logits are others. So the middle one of the tokens' deviations is compared: an adapter that is
 * lost or wrong moves all of them. */
#include <math.h>
#include <stdlib.h>

#include "convert/merge.h"
#include "model/language_model.h"
#include "model/model_text.h"

enum { SLACK = 8, SEQUENCES = 3, MAX_TOKENS = 24 };
static const double FLOOR = 5e-5;

/* The state of one check. The logits of each sequence are kept until both models were run: only one
 * model is in memory at a time. */
typedef struct verification {
    nbl_context *ctx;
    const char *base, *adapter;
    nbl_dtype dtype;
    nbl_merge_report *report;
    int64_t vocabulary;
    bool routed; /* the model has experts */
    float *logits[2][SEQUENCES]; /* live, merged */
    nbl_ids sequences[SEQUENCES];
    int32_t ids[SEQUENCES][MAX_TOKENS];
} verification;

/* Fills the sequences with pseudo-random ids from the whole vocabulary; the same ones in every
 * run. */
static void make_sequences(verification *v, int64_t positions)
{
    static const int64_t lengths[SEQUENCES] = {1, 9, MAX_TOKENS};
    uint32_t state = 1;
    for (int s = 0; s < SEQUENCES; s++) {
        v->sequences[s] = (nbl_ids){v->ids[s], nbl__min_i64(lengths[s], positions)};
        for (int i = 0; i < MAX_TOKENS; i++) {
            state = state * 1664525u + 1013904223u;
            v->ids[s][i] = (int32_t)((uint64_t)state * (uint64_t)v->vocabulary >> 32);
        }
    }
}

/* Computes the logits of all sequences in f32 with dequantized weights. */
static nbl_status compute(verification *v, const char *path, const char *adapter, float **logits)
{
    nbl_model *model;
    NBL_TRY(nbl_model_open(
        v->ctx, path,
        &(nbl_model_options){NBL_OPTIONS(nbl_model_options), .dtype = NBL_COMPUTE_F32, .adapter = adapter},
        &model));
    model->dequantized = true;
    if (v->vocabulary == 0) {
        v->vocabulary = model->decoder.vocabulary;
        v->routed = model->decoder.experts > 0;
        make_sequences(v, model->decoder.positions);
    }
    nbl_status status = NBL_OK;
    for (int s = 0; s < SEQUENCES && status == NBL_OK; s++)
        status = NBL_ALLOC(v->ctx, logits[s], v->sequences[s].count * v->vocabulary);
    if (status == NBL_OK) status = nbl_model_logits(model, v->sequences, SEQUENCES, logits);
    nbl_model_close(model);
    return status;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* |live - merged| / |live| of n logits. */
static double deviation(const float *live, const float *merged, int64_t n)
{
    double off = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
        double difference = (double)merged[i] - (double)live[i];
        off += difference * difference;
        all += (double)live[i] * (double)live[i];
    }
    return all > 0 ? sqrt(off / all) : sqrt(off);
}

/* The middle one of the tokens' deviations. */
static double middle_deviation(const verification *v)
{
    double each[SEQUENCES * MAX_TOKENS];
    size_t n = 0;
    for (int s = 0; s < SEQUENCES; s++)
        for (int64_t t = 0; t < v->sequences[s].count; t++)
            each[n++] = deviation(v->logits[0][s] + t * v->vocabulary, v->logits[1][s] + t * v->vocabulary,
                                  v->vocabulary);
    qsort(each, n, sizeof *each, compare_doubles);
    return n ? each[n / 2] : 0;
}

/* Reports the largest deviation of a sequence; NBL_ERROR_DTYPE if it exceeds the tolerance or
 * logits are not finite. */
static nbl_status compare(verification *v, int64_t layers)
{
    static const double units[] = {
        [NBL_DTYPE_F32] = 0x1p-25, [NBL_DTYPE_F16] = 0x1p-12, [NBL_DTYPE_BF16] = 0x1p-9};
    nbl_merge_report *r = v->report;
    bool finite = true;
    for (int s = 0; s < SEQUENCES; s++) {
        const float *live = v->logits[0][s], *merged = v->logits[1][s];
        int64_t n = v->sequences[s].count * v->vocabulary;
        for (int64_t i = 0; i < n; i++) {
            finite = finite && isfinite(live[i]) && isfinite(merged[i]);
            r->max_logit_deviation = fmax(r->max_logit_deviation, fabs((double)merged[i] - (double)live[i]));
        }
        r->relative_deviation = fmax(r->relative_deviation, deviation(live, merged, n));
    }
    if (v->routed) r->relative_deviation = middle_deviation(v);
    r->allowed_deviation = SLACK * units[v->dtype] / 2 * sqrt(7.0 * (double)layers + 2) + FLOOR;
    NBL_CHECK(v->ctx, finite, NBL_ERROR_DTYPE,
              "the merged model in %s: its logits, or those of the base with the adapter, are not finite; "
              "nothing was "
              "written",
              nbl_dtype_name(v->dtype));
    NBL_CHECK(
        v->ctx, r->relative_deviation <= r->allowed_deviation, NBL_ERROR_DTYPE,
        "the merged model's logits deviate by %.2g of their size from those of the base with the adapter; %s "
        "explains %.2g at most; nothing was written",
        r->relative_deviation, nbl_dtype_name(v->dtype), r->allowed_deviation);
    r->verified = true;
    return NBL_OK;
}

/* The number of layers, for the tolerance. */
static nbl_status layers_of(nbl_context *ctx, const char *folder, int64_t *layers)
{
    nbl_checkpoint *c;
    NBL_TRY(nbl_checkpoint_open(ctx, folder, NBL_OPEN_STRICT, &c));
    *layers = c->config.layers;
    nbl_checkpoint_close(c);
    return NBL_OK;
}

/* An nbl__folder_check: verifies the merged folder before it appears. */
static nbl_status verify(void *user, const char *folder)
{
    verification *v = user;
    int64_t layers = 0;
    nbl_status status = layers_of(v->ctx, folder, &layers);
    if (status == NBL_OK) status = compute(v, v->base, v->adapter, v->logits[0]);
    if (status == NBL_OK) status = compute(v, folder, NULL, v->logits[1]);
    if (status == NBL_OK) status = compare(v, layers);
    for (int k = 0; k < 2 * SEQUENCES; k++) {
        int s = k % SEQUENCES;
        nbl__free(v->ctx, v->logits[k / SEQUENCES][s],
                  (size_t)(v->sequences[s].count * v->vocabulary) * sizeof(float));
    }
    return status;
}

/* Merges, with the check as the last step before the folder appears. */
nbl_status nbl_merge(nbl_context *ctx, const char *base, const char *adapter, const char *out,
                     const nbl_merge_options *given, nbl_merge_report *report)
{
    NBL_CHECK(ctx, base && adapter && out, NBL_ERROR_ARGUMENT, "merge: base, adapter or out is NULL");
    nbl_merge_options options;
    NBL_TRY(NBL_OPTIONS_READ(ctx, nbl_merge_options, given, &options));
    nbl_merge_report own = {0};
    nbl_convert_report written = {0};
    NBL_TRY(NBL_RESULT_BEGIN(ctx, nbl_merge_report, report));
    verification v = {.ctx = ctx, .base = base, .adapter = adapter, .report = &own};
    nbl__merge_folder how = {.base = base,
                             .adapter = adapter,
                             .out = out,
                             .dtype = options.dtype,
                             .shard_size = options.shard_size,
                             .allow_non_finite = options.allow_non_finite,
                             .check = options.verify ? verify : NULL,
                             .user = &v,
                             .chosen = &v.dtype};
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__text_source text;
    nbl_status status = nbl__adapter_text(&arena, base, adapter, 0, &text);
    if (text.adapter || text.changes.chat_template.text) how.text = &text;
    if (status == NBL_OK) status = nbl__merge_write(ctx, &how, &written);
    nbl__arena_free(&arena);
    own.tensors = written.tensors;
    own.changed = written.converted;
    own.bytes_in = written.bytes_in;
    own.bytes_out = written.bytes_out;
    own.files = written.files;
    own.non_finite = written.non_finite;
    own.dtype = v.dtype;
    NBL_RESULT_PUT(nbl_merge_report, report, &own);
    return status;
}
