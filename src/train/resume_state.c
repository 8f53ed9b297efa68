/* resume_state.c - writes trainer_state.json and nibble_state.json, reads the latter. See
 * resume.h. */
#include <math.h>
#include <stdio.h>

#include "base/hash.h"
#include "train/best.h"
#include "train/resume_state.h"

static void print_flag(nbl__text *out, const char *key, const char *value)
{
    nbl__text_printf(out, ",\n  \"%s\": %s", key, value);
}

/* The members about the best checkpoint, as transformers' Trainer writes them. They are null if
 * the run does not keep the best or none is evaluated yet. */
static void print_best(nbl__text *out, const nbl__run_parts *p)
{
    const nbl__run_state *s = p->state;
    if (!nbl__best_is_kept(p->config) || s->best_step == 0) {
        nbl__text_printf(out, "  \"best_global_step\": null,\n  \"best_metric\": null,\n  "
                              "\"best_model_checkpoint\": null");
        return;
    }
    nbl__text_printf(out, "  \"best_global_step\": %" PRId64 ",\n  \"best_metric\": ", s->best_step);
    nbl__text_real(out, s->best_eval);
    nbl__arena arena = nbl__arena_make(out->ctx);
    const char *folder = nbl__checkpoint_folder(&arena, p->config->output_dir, s->best_step);
    if (folder == NULL) out->status = NBL_ERROR_MEMORY;
    nbl__text_printf(out, ",\n  \"best_model_checkpoint\": ");
    nbl__text_json(out, folder ? folder : "");
    nbl__arena_free(&arena);
}

/* Has exactly the keys of transformers' TrainerState. TrainerState refuses unknown keys. */
void nbl__trainer_state_print(nbl__text *out, const nbl__run_parts *p)
{
    const nbl__run_config *c = p->config;
    nbl__text_printf(out, "{\n");
    print_best(out, p);
    nbl__text_printf(out, ",\n  \"epoch\": ");
    nbl__text_real(out, nbl__run_epoch(p->state));
    nbl__text_printf(out, ",\n  \"eval_steps\": %" PRId64 ",\n  \"global_step\": %" PRId64, c->eval_steps,
                     p->state->step);
    print_flag(out, "is_hyper_param_search", "false");
    print_flag(out, "is_local_process_zero", "true");
    print_flag(out, "is_world_process_zero", "true");
    nbl__text_printf(out, ",\n  \"log_history\": [");
    for (int64_t i = 0; i < p->records->count; i++) {
        nbl__text_printf(out, "%s\n    ", i ? "," : "");
        nbl__record_print(out, &p->records->items[i]);
    }
    nbl__text_printf(out, "%s],\n  \"logging_steps\": %" PRId64 ",\n  \"max_steps\": %" PRId64,
                     p->records->count ? "\n  " : "", c->logging_steps, p->max_steps);
    nbl__text_printf(out,
                     ",\n  \"num_input_tokens_seen\": 0,\n  \"num_train_epochs\": %" PRId64
                     ",\n  \"save_steps\": %" PRId64 ",\n  \"stateful_callbacks\": {},\n  \"total_flos\": 0",
                     (int64_t)ceil(c->num_epochs), c->save_steps);
    nbl__text_printf(out,
                     ",\n  \"train_batch_size\": %" PRId64
                     ",\n  \"trial_name\": null,\n  \"trial_params\": null\n}\n",
                     c->micro_batch_size);
}

/* One row per field of nbl__run_state: its name in the file and how it is written.
 *
 *     INTEGER   0 .. 2^62 - 1
 *     COUNT     0 .. step; counts something that happens at most once per step
 *     REAL      a finite number; best_eval may be null, which stands for infinite
 *     BITS      a string of 16 hexadecimal digits: JSON numbers hold 53 bits only
 *
 * A value outside its range was not written by this code, and could overflow later sums. "step"
 * comes first, because COUNT is checked against it. */
enum kind { INTEGER, COUNT, REAL, BITS };
static const int64_t max_steps = (int64_t)1 << 62;
static const struct field {
    const char *name;
    enum kind kind;
    size_t offset;
} fields[] = {
    {"step", INTEGER, offsetof(nbl__run_state, step)},
    {"epoch", COUNT, offsetof(nbl__run_state, epoch)},
    {"batch", INTEGER, offsetof(nbl__run_state, batch)},
    {"batches", INTEGER, offsetof(nbl__run_state, batches)},
    {"loss_sum", REAL, offsetof(nbl__run_state, loss_sum)},
    {"loss_steps", COUNT, offsetof(nbl__run_state, loss_steps)},
    {"loss_scale", REAL, offsetof(nbl__run_state, loss_scale)},
    {"good_steps", COUNT, offsetof(nbl__run_state, good_steps)},
    {"best_eval", REAL, offsetof(nbl__run_state, best_eval)}, /* null stands for infinite */
    {"best_step", COUNT, offsetof(nbl__run_state, best_step)},
    {"best_state", BITS, offsetof(nbl__run_state, best_state)},
    {"evals_without_gain", COUNT, offsetof(nbl__run_state, evals_without_gain)},
    {"high_losses", COUNT, offsetof(nbl__run_state, high_losses)},
    {"data", BITS, offsetof(nbl__run_state, data)},
    {"base_model", BITS, offsetof(nbl__run_state, base)},
    {"lora_model_dir", BITS, offsetof(nbl__run_state, start)}, /* 0: none */
};
enum { FIELDS = sizeof fields / sizeof *fields };

static const void *field_address(const nbl__run_state *state, const struct field *f)
{
    return (const char *)state + f->offset;
}

void nbl__run_state_print(nbl__text *out, const nbl__run_state *state)
{
    for (int i = 0; i < FIELDS; i++) {
        const void *at = field_address(state, &fields[i]);
        nbl__text_printf(out, "%s  \"%s\": ", i ? ",\n" : "", fields[i].name);
        if (fields[i].kind == INTEGER || fields[i].kind == COUNT)
            nbl__text_printf(out, "%" PRId64, *(const int64_t *)at);
        else if (fields[i].kind == BITS) nbl__text_printf(out, "\"%016" PRIx64 "\"", *(const uint64_t *)at);
        else if (isfinite(*(const double *)at)) nbl__text_real(out, *(const double *)at);
        else nbl__text_printf(out, "null");
    }
}

nbl_status nbl__run_state_read(nbl_context *ctx, const char *where, const nbl__json *root,
                               nbl__run_state *state)
{
    for (int i = 0; i < FIELDS; i++) {
        const nbl__json *value = nbl__json_get(root, fields[i].name);
        void *at = (void *)(uintptr_t)field_address(state, &fields[i]);
        bool good;
        if (fields[i].kind == INTEGER) good = nbl__json_natural(value, at) && *(int64_t *)at < max_steps;
        else if (fields[i].kind == COUNT)
            good = nbl__json_natural(value, at) && *(int64_t *)at <= state->step;
        else if (fields[i].kind == REAL && at == &state->best_eval && nbl__json_is(value, NBL_JSON_NULL))
            good = (*(double *)at = INFINITY, true);
        else if (fields[i].kind == REAL) good = nbl__json_number(value, at);
        else good = nbl__json_is(value, NBL_JSON_STRING) && nbl__hash_parse(value->string, at);
        NBL_CHECK(ctx, good, NBL_ERROR_FORMAT, "%s: no right value for \"%s\"", where, fields[i].name);
    }
    NBL_CHECK(ctx, state->batch <= state->batches, NBL_ERROR_FORMAT,
              "%s: micro-batch %" PRId64 " of %" PRId64, where, state->batch, state->batches);
    NBL_CHECK(ctx, state->loss_scale >= NBL_MIN_LOSS_SCALE && state->loss_scale <= NBL_MAX_LOSS_SCALE,
              NBL_ERROR_FORMAT, "%s: loss_scale %g is not between %g and %g", where, state->loss_scale,
              NBL_MIN_LOSS_SCALE, NBL_MAX_LOSS_SCALE);
    return NBL_OK;
}

enum { SEAL = sizeof ",\n  \"checksum\": \"0123456789abcdef\"\n}\n" };

/* The end of nibble_state.json, with the checksum of text[0..size). Its length is always SEAL -
 * 1. */
static void print_seal(char seal[SEAL], const char *text, size_t size)
{
    snprintf(seal, SEAL, ",\n  \"checksum\": \"%016" PRIx64 "\"\n}\n", nbl__hash(0, text, size));
}

void nbl__state_seal(nbl__text *out)
{
    char seal[SEAL];
    if (out->status != NBL_OK) return;
    print_seal(seal, out->text, out->size);
    nbl__text_add(out, seal, strlen(seal));
}

nbl_status nbl__state_check_seal(nbl_context *ctx, const char *where, const char *text, size_t size)
{
    char seal[SEAL];
    size_t length = SEAL - 1, before = size > length ? size - length : 0;
    print_seal(seal, text, before);
    if (size > length && memcmp(text + before, seal, length) == 0) return NBL_OK;
    return nbl__hint(ctx,
                     nbl__fail(ctx, NBL_ERROR_FORMAT,
                               "%s: damaged or edited: it does not have the checksum that was written",
                               where),
                     "go on from an earlier checkpoint (resume_from_checkpoint), or begin anew");
}

bool nbl__hash_parse(const char *text, uint64_t *hash)
{
    *hash = 0;
    for (int i = 0; i < 16; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return false;
        *hash = *hash << 4 | (uint64_t)digit;
    }
    return text[16] == '\0';
}
