/* tiny_run.h - training runs on tiny models, for tests. */
#ifndef NBL_TEST_TINY_RUN_H
#define NBL_TEST_TINY_RUN_H

#include "tiny_model.h"

#include "run/run.h"

enum { STEPS = 6 };
_Static_assert(STEPS == 6, "max_steps of write_run");

typedef struct fixture {
    nbl_context *ctx;
    tiny_model tiny;
} fixture;

/* Rows of uneven length: the first tokens of some are not trained. */
static inline void write_rows(const char *folder)
{
    char text[8192];
    int at = 0;
    for (int row = 0; row < 7; row++) {
        char ids[512] = "", labels[512] = "";
        for (int i = 0; i < 6 + 3 * row; i++) {
            int id = (17 * row + 5 * i) % TINY_VOCAB;
            snprintf(ids + strlen(ids), sizeof ids - strlen(ids), "%s%d", i ? ", " : "", id);
            snprintf(labels + strlen(labels), sizeof labels - strlen(labels), "%s%d", i ? ", " : "",
                     i < row ? -100 : id);
        }
        at += snprintf(text + at, sizeof text - (size_t)at, "{\"input_ids\": [%s], \"labels\": [%s]}\n", ids,
                       labels);
    }
    write_file(folder, "rows.jsonl", text, (size_t)at);
}

static inline int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->ctx = new_context();
    tiny_write(f->ctx, 0, false, &f->tiny);
    write_rows(f->tiny.folder);
    *state = f;
    return 0;
}

static inline int teardown(void **state)
{
    fixture *f = *state;
    nbl_context_destroy(f->ctx);
    remove_tree(f->tiny.folder);
    free(f);
    return 0;
}

/* A run's file folder/NAME.yml, with the keys that all tests share unless `keys` have them. Its output is
 * folder/NAME. */
static inline const char *write_run(const fixture *f, const char *name, const char *keys)
{
    static const struct {
        const char *key, *value;
    } shared[] = {{"learning_rate", "0.01"},
                  {"micro_batch_size", "2"},
                  {"max_steps", "6"},
                  {"save_steps", "2"},
                  {"seed", "5"},
                  {"base_model", NULL},
                  {"output_dir", NULL}};
    char text[4096], own[512];
    int size = snprintf(text, sizeof text, "datasets: [{path: %s/rows.jsonl, type: pretokenized}]\n%s\n",
                        f->tiny.folder, keys);
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        const char *value = shared[i].value;
        snprintf(own, sizeof own, "%s:", shared[i].key);
        if (strstr(keys, own)) continue;
        if (strcmp(shared[i].key, "base_model") == 0) value = f->tiny.model;
        if (value == NULL) snprintf(own, sizeof own, "%s/%s", f->tiny.folder, name), value = own;
        size += snprintf(text + size, sizeof text - (size_t)size, "%s: %s\n", shared[i].key, value);
    }
    write_file(f->tiny.folder, "run.yml", text, (size_t)size);
    return in_folder(f->tiny.folder, "run.yml");
}

static inline nbl_run *open_run(const fixture *f, nbl_context *ctx, const char *name, const char *keys)
{
    nbl_run *run;
    assert_ok(ctx, nbl_run_open(ctx, write_run(f, name, keys), NULL, 0, &run));
    return run;
}

static const char lora[] = "adapter: lora\nlora_r: 4\nlora_target_linear: true\nlora_dropout: 0.1\n"
                           "gradient_accumulation_steps: 2\nlr_scheduler: cosine\nwarmup_steps: 2";

static inline nbl_status train_in(const fixture *f, nbl_context *ctx, const char *name, const char *keys,
                                  const nbl_train_options *options)
{
    nbl_run *run = open_run(f, ctx, name, keys);
    nbl_status status = nbl_run_train(run, options, NULL);
    nbl_run_close(run);
    return status;
}

static inline void train_ok(const fixture *f, const char *name, const char *keys)
{
    assert_ok(f->ctx, train_in(f, f->ctx, name, keys, NULL));
}

static inline const char *output(const fixture *f, const char *name, const char *file)
{
    char inner[256];
    snprintf(inner, sizeof inner, "%s/%s", name, file);
    return in_folder(f->tiny.folder, inner);
}

static inline void assert_same_adapter(const fixture *f, const char *a, const char *b)
{
    assert_same_file(output(f, a, "adapter_model.safetensors"), output(f, b, "adapter_model.safetensors"));
}

static inline bool stop_at(void *user, const nbl_train_event *event)
{
    return event->kind == NBL_TRAIN_STEP && event->step == *(int64_t *)user;
}

#endif
