/* run_config_support.h - for tests of a run's configuration: reads texts as a user's file, keeps what is logged. */
#ifndef RUN_CONFIG_SUPPORT_H
#define RUN_CONFIG_SUPPORT_H

#include "support.h"

#include "run/run.h"

/* The least that a run needs. */
#define MIN "base_model: b\ndatasets: [{path: d.jsonl}]\nlearning_rate: 1\n"
#define SET(...) ((const char *const[]){__VA_ARGS__, NULL})

/* A configuration, one key a line. */
static const char *const base_lines[] = {
    "base_model: \"models/base\"",
    "datasets: [{\"path\": \"rows.jsonl\", \"type\": \"pretokenized\"}]",
    "output_dir: \"out\"",
    "seed: 1",
    "adapter: \"lora\"",
    "lora_r: 4",
    "lora_alpha: 8",
    "lora_dropout: 0.0",
    "lora_target_linear: true",
    "sequence_len: 64",
    "micro_batch_size: 2",
    "max_steps: 1",
    "learning_rate: 0.005",
    "lr_scheduler: \"constant\"",
    "warmup_steps: 0",
    "optimizer: \"adamw_torch\"",
    "adam_beta2: 0.999",
    "max_grad_norm: 1.0",
    "bf16: false",
    "fp16: false",
};
enum { BASE_LINES = sizeof base_lines / sizeof *base_lines };

typedef struct fixture {
    char folder[64];
    nbl_context *ctx;
    nbl_run *run;
    char log[4096];
    int lines;
} fixture;

static void keep_log(void *user, nbl_log_level level, const char *line)
{
    fixture *f = user;
    (void)level;
    assert_true(strlen(f->log) + strlen(line) + 2 < sizeof f->log);
    strcat(strcat(f->log, line), "\n");
    f->lines++;
}

static void begin(fixture *f)
{
    *f = (fixture){0};
    make_temp(f->folder);
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1, .log = keep_log,
                                   .log_user = f};
    assert_int_equal(nbl_context_create(&options, &f->ctx), NBL_OK);
}

static void end(fixture *f)
{
    nbl_run_close(f->run);
    nbl_context_destroy(f->ctx);
    remove_tree(f->folder);
}

/* Reads a text as user.yml; `set` ends with NULL, or is NULL. */
static nbl_status read_with(fixture *f, const char *text, size_t size, const char *const *set)
{
    int64_t count = 0;
    while (set && set[count]) count++;
    write_file(f->folder, "user.yml", text, size);
    nbl_run_close(f->run);
    f->run = NULL;
    return nbl_run_open(f->ctx, in_folder(f->folder, "user.yml"), set, count, &f->run);
}

static const nbl__run_config *read_good(fixture *f, const char *text, const char *const *set)
{
    nbl_status status = read_with(f, text, strlen(text), set);
    if (status != NBL_OK) fail_msg("%s\n%s", nbl_error_message(f->ctx), text);
    return &f->run->config;
}

static void must_say(const fixture *f, const char *word)
{
    if (strstr(nbl_error_message(f->ctx), word) == NULL)
        fail_msg("\"%s\" is not in: %s", word, nbl_error_message(f->ctx));
}

static bool has_key(const char *line, const char *key)
{
    size_t size = strcspn(line, ":");
    return strlen(key) >= size && strncmp(line, key, size) == 0 && (key[size] == 0 || key[size] == ':');
}

/* The base configuration without the keys in `drop` (words), with `line` in place of its key's line, and with
 * `extra` behind it. Returns the number of the replaced line. */
static int edited(char *text, const char *drop, const char *line, const char *extra)
{
    int at = 0, number = 0;
    *text = 0;
    for (int i = 0; i < BASE_LINES; i++) {
        char key[64];
        snprintf(key, sizeof key, " %.*s ", (int)strcspn(base_lines[i], ":"), base_lines[i]);
        if (drop && strstr(drop, key)) continue;
        number++;
        bool replaced = line && has_key(base_lines[i], line);
        if (replaced) at = number;
        strcat(strcat(text, replaced ? line : base_lines[i]), "\n");
    }
    if (extra) strcat(strcat(text, extra), "\n");
    return at;
}

#endif
