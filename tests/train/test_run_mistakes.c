/* test_run_mistakes.c - configurations of a training run that are refused: every kind of mistake and how it is named, wrong
 * overrides, hostile YAML. */
#include "train/run_config_support.h"

#include <math.h>

#include "run/run_keys.h"
#include "run/yaml.h"

/* ---- mistakes ---- */

typedef struct mistake {
    const char *drop, *line, *extra;
    const char *says[3];
} mistake;

#define LORA " adapter lora_r lora_alpha lora_dropout lora_target_linear "

static const mistake mistakes[] = {
    /* names */
    {.extra = "lora_rank: 8", .says = {"lora_rank", "lora_r?"}},
    {.extra = "learning_rte: 0.1", .says = {"learning_rte", "learning_rate?"}},
    {.extra = "gradient_acumulation_steps: 2", .says = {"gradient_accumulation_steps?"}},
    {.extra = "load_in_4bits: true", .says = {"load_in_4bit?"}},
    {.extra = "sample_paking: true", .says = {"sample_packing?"}},
    {.extra = "warm_up_steps: 3", .says = {"warm_up_steps", "warmup_steps?"}},
    {.extra = "lr: 3", .says = {"learning_rate?"}},
    {.extra = "epochs:", .says = {"num_epochs?"}},
    {.extra = "per_device_train_batch_size: 3", .says = {"micro_batch_size?"}},
    {.extra = "Adapter: lora", .says = {"adapter?"}},
    {.extra = "optimiezr: a", .says = {"optimizer?"}},
    {.extra = "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz: 1",
     .says = {"no such key of nibble"}},
    {.extra = "\"\": 1", .says = {"no such key"}},
    {.extra = "roles_to_train: [a]", .says = {"roles_to_train", "datasets"}},
    {.extra = "special_tokens: {pad: a}", .says = {"special_tokens.pad:", "pad_token?"}},
    {.line = "datasets: [{path: a, typ: alpaca}]", .says = {"datasets.0.typ", "type?"}},
    {.line = "datasets: [{path: a, lora_r: 2}]", .says = {"datasets.0.lora_r", "top level"}},
    {.line = "datasets: [{path: a, message_property_mappings: {from: a}}]",
     .says = {"message_property_mappings.from", "role?"}},
    /* twice */
    {.extra = "micro_batch_size: 2", .says = {"user.yml:21", "micro_batch_size", "line 11"}},
    {.line = "datasets: [{path: a, path: b}]", .says = {"path", "twice"}},
    /* contradictions */
    {.extra = "load_in_4bit: true\nload_in_8bit: true",
     .says = {"user.yml:22", "load_in_4bit", "load_in_8bit"}},
    {.drop = " adapter ", .extra = "adapter: qlora", .says = {"qlora", "load_in_4bit"}},
    {.drop = " adapter ", .extra = "adapter: qlora\nload_in_4bit: false", .says = {"qlora", "load_in_4bit"}},
    {.drop = " adapter ", .extra = "adapter: qlora\nload_in_8bit: true", .says = {"qlora", "load_in_8bit"}},
    {.drop = " bf16 fp16 ", .extra = "bf16: true\nfp16: true", .says = {"user.yml:20", "bf16", "fp16"}},
    {.drop = " bf16 fp16 ", .extra = "fp16: true\nbf16: true", .says = {"user.yml:20", "bf16", "fp16"}},
    {.drop = " warmup_steps ",
     .extra = "warmup_ratio: 0.1\nwarmup_steps: 3",
     .says = {"warmup_ratio", "warmup_steps"}},
    {.drop = LORA, .extra = "load_in_4bit: true", .says = {"load_in_4bit", "adapter"}},
    {.drop = LORA, .extra = "load_in_8bit: true", .says = {"load_in_8bit", "adapter"}},
    {.drop = LORA, .extra = "lora_model_dir: a", .says = {"lora_model_dir", "adapter"}},
    {.extra = "eval_steps: 3\nevals_per_epoch: 2", .says = {"eval_steps", "evals_per_epoch"}},
    {.extra = "save_steps: 3\nsaves_per_epoch: 2", .says = {"save_steps", "saves_per_epoch"}},
    {.extra = "early_stopping_patience: 2", .says = {"early_stopping_patience", "val_set_size"}},
    {.extra = "lora_target_modules: .*proj", .says = {"lora_target_modules", "lora_target_linear"}},
    {.line = "lora_target_linear: false", .extra = "", .says = {"lora_target_linear", "lora_target_modules"}},
    {.extra = "chat_template: chatml\nchat_template_jinja: \"{{ x }}\"",
     .says = {"chat_template and", "_jinja"}},
    {.extra = "chat_template: jinja", .says = {"chat_template", "chat_template_jinja"}},
    {.extra = "chat_template_jinja: nowhere.jinja", .says = {"nowhere.jinja"}},
    /* missing */
    {.drop = " base_model ", .says = {"user.yml", "base_model"}},
    {.drop = " datasets ", .says = {"datasets"}},
    {.drop = " learning_rate ", .says = {"learning_rate"}},
    {.line = "base_model: null", .says = {"base_model"}, .extra = ""},
    {.line = "datasets: []", .says = {"datasets"}, .extra = ""},
    {.line = "datasets: [{type: alpaca}]", .says = {"datasets.0.path", "needed"}},
    /* values */
    {.line = "micro_batch_size: two", .says = {"micro_batch_size", "\"two\"", "whole number"}},
    {.line = "learning_rate: fast", .says = {"learning_rate", "\"fast\"", "a number, above 0"}},
    {.line = "learning_rate: 0", .says = {"learning_rate"}},
    {.line = "learning_rate: .inf", .says = {"learning_rate"}},
    {.line = "learning_rate: .nan", .says = {"learning_rate"}},
    {.line = "learning_rate: nan", .says = {"learning_rate"}},
    {.line = "learning_rate: 1e999", .says = {"learning_rate"}},
    {.line = "learning_rate: 0x1p-3", .says = {"learning_rate"}},
    {.line = "learning_rate: 1e", .says = {"learning_rate"}},
    {.line = "learning_rate: true", .says = {"learning_rate"}},
    {.line = "sequence_len: 1.5", .says = {"sequence_len", "\"1.5\""}},
    {.line = "sequence_len: 0", .says = {"sequence_len", "2 to 16777216"}},
    {.line = "seed: 010", .says = {"seed"}},
    {.line = "seed: 9223372036854775808", .says = {"seed"}},
    {.line = "seed: -1", .says = {"seed"}},
    {.line = "seed: 1__0", .says = {"seed"}},
    {.line = "lora_r: -4", .says = {"lora_r", "\"-4\"", "1 to 65536"}},
    {.line = "lora_r: 0", .says = {"lora_r"}},
    {.line = "lora_dropout: 1", .says = {"lora_dropout", "below 1"}},
    {.line = "max_grad_norm: [1]", .says = {"max_grad_norm", "a list"}},
    {.line = "bf16: maybe", .says = {"bf16", "\"maybe\"", "true, false or auto"}},
    {.line = "fp16: auto", .says = {"fp16", "true or false"}},
    {.line = "lr_scheduler: cosin", .says = {"lr_scheduler", "\"cosin\"", "linear, cosine, constant"}},
    {.line = "optimizer: adamw_9bit", .says = {"optimizer", "adamw_9bit", "adamw_bnb_8bit"}},
    {.line = "adam_beta2: 1.5", .says = {"adam_beta2", "1.5"}},
    {.line = "max_steps: 12abc", .says = {"max_steps", "12abc"}},
    {.line = "lora_alpha:\n  a: 1", .says = {"lora_alpha", "a map"}},
    {.line = "adapter: loha", .says = {"adapter", "lora, qlora"}},
    {.line = "output_dir: 12", .says = {"output_dir", "a text"}},
    {.line = "output_dir: no", .says = {"output_dir", "a text"}},
    {.line = "base_model: [a]", .says = {"base_model", "a list"}},
    {.line = "datasets: rows.jsonl", .says = {"datasets", "a list of maps"}},
    {.line = "datasets: [rows.jsonl]", .says = {"datasets", "a list of maps"}},
    {.line = "datasets: [{path: a, type: wrong_type}]", .says = {"datasets.0.type", "wrong_type", "alpaca"}},
    {.line = "datasets: [{path: a}, {path: b, roles_to_train: {a: 1}}]",
     .says = {"datasets.1.roles_to_train"}},
    {.line = "datasets: [{path: a, roles_to_train: [a, [b]]}]", .says = {"datasets.0.roles_to_train"}},
    {.extra = "special_tokens: <pad>", .says = {"special_tokens", "a map"}},
    {.extra = "group_by_length: true", .says = {"user.yml:21", "group_by_length", "order"}},
    /* axolotl's, with the reason */
    {.extra = "rl: dpo", .says = {"user.yml:21: rl: preference", "not in this version"}},
    {.extra = "relora: true", .says = {"relora", "ReLoRA"}},
    {.extra = "unfrozen_parameters: [a]", .says = {"unfrozen_parameters", "lora_modules_to_save"}},
    {.extra = "processor_type: AutoProcessor", .says = {"processor_type", "only text"}},
    {.extra = "plugins: [axolotl.integrations.kd.KDPlugin]",
     .says = {"plugins: axolotl.integrations.kd.KDPlugin: distillation"}},
    {.extra = "plugins: [my.Plugin]", .says = {"plugins: my.Plugin: a plugin is code", "take it out"}},
    {.extra = "chat_template: falcon_h1", .says = {"user.yml:21: chat_template: falcon_h1", "not built in"}},
    {.extra = "chat_template: tokenizer_default_fallback_x", .says = {"fallback_x", "llama3"}},
    {.extra = "lr_quadratic_warmup: true\ncosine_min_lr_ratio: 0.1",
     .says = {"cosine_min_lr_ratio", "lr_quadratic_warmup", "contradict"}},
    {.extra = "cosine_min_lr_ratio: 1.5", .says = {"cosine_min_lr_ratio", "0 to 1"}},
    {.extra = "min_sample_len: 65", .says = {"min_sample_len", "sequence_len", "contradict"}},
    {.line = "datasets: [{path: a, data_files: [b, c], split: \"train[:3]\"}]",
     .extra = "",
     .says = {"datasets.0.split", "data_files"}},
    {.line = "warmup_steps: 0.1", .says = {"warmup_steps", "warmup_ratio"}},
    {.extra = "base_model_config: other", .says = {"base_model_config", "one folder"}},
    {.extra = "save_safetensors: false", .says = {"save_safetensors"}},
    {.extra = "special_tokens: {additional_special_tokens: [a]}",
     .says = {"special_tokens.additional_special_tokens", "vocabulary"}},
    {.line = "datasets: [{path: a, type: sharegpt}]",
     .says = {"datasets.0.type: sharegpt", "field_messages: conversations"}},
    {.line = "datasets: [{path: a, type: {format: b}}]", .says = {"datasets.0.type", "input_output"}},
    {.line = "datasets: [{path: a, roles: {user: [boss]}}]", .says = {"datasets.0.roles"}},
    {.line = "datasets: [{path: a, message_field_role: a, message_property_mappings: {role: b}}]",
     .says = {"message_property_mappings", "message_field_role"}},
    {.extra = "batch_size: 12\ngradient_accumulation_steps: 5",
     .says = {"batch_size", "gradient_accumulation_steps"}},
    {.extra = "batch_size: 7", .says = {"batch_size", "micro_batch_size"}},
    {.extra = "save_strategy: steps", .says = {"save_strategy", "save_steps", "saves_per_epoch"}},
    {.extra = "save_strategy: no\nsave_steps: 3", .says = {"save_strategy", "save_steps", "never"}},
    {.extra = "eval_strategy: epoch\neval_steps: 3", .says = {"eval_strategy", "eval_steps"}},
    /* upper ends */
    {.line = "lora_dropout: 0.999999999", .says = {"lora_dropout", "0.999999999", "0.9999999"}},
    {.line = "adam_beta2: 0.999999999", .says = {"adam_beta2", "at most 0.9999999"}},
    {.line = "lora_alpha: 1e10", .says = {"lora_alpha", "at most 1e9"}},
    {.line = "max_grad_norm: 1e31", .says = {"max_grad_norm", "0 to 1e30"}},
    {.line = "max_steps: 2000000000000", .says = {"max_steps", "1 to 1099511627776"}},
    {.extra = "chat_template: llama9", .says = {"chat_template", "llama9", "chatml"}},
    {.extra = "val_set_size: 1.5", .says = {"val_set_size"}},
    {.extra = "val_set_size: -1", .says = {"val_set_size"}},
    {.extra = "device: tpu", .says = {"device", "tpu", "cuda"}},
    {.extra = "memory: 4X", .says = {"memory", "4X"}},
    {.extra = "memory: 1.2.3G", .says = {"memory"}},
    {.extra = "memory: 0", .says = {"memory"}},
    {.extra = "threads: 1025", .says = {"threads", "1024"}},
    {.extra = "gradient_checkpointing: sometimes", .says = {"gradient_checkpointing", "sometimes"}},
};

static void every_mistake_is_refused_by_key_and_line(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    char text[4096], location[32];
    edited(text, NULL, NULL, NULL);
    read_good(&f, text, NULL);
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const mistake *m = &mistakes[i];
        int at = edited(text, m->drop, m->line, m->extra);
        if (read_with(&f, text, strlen(text), NULL) == NBL_OK) fail_msg("read without complaint:\n%s", text);
        assert_null(f.run);
        must_say(&f, "user.yml");
        for (int k = 0; k < 3 && m->says[k]; k++) must_say(&f, m->says[k]);
        if (m->line == NULL || m->extra != NULL) continue; /* a key that is missing has no line */
        snprintf(location, sizeof location, "user.yml:%d:", at);
        if (strncmp(m->line, "datasets: [{type", 16) != 0) must_say(&f, location);
    }
    assert_int_equal(nbl_run_open(f.ctx, "absent.yml", NULL, 0, &f.run), NBL_ERROR_NOT_FOUND);
    must_say(&f, "absent.yml");
    end(&f);
}

static int count_lines(const char *text)
{
    int lines = 1;
    for (; *text; text++) lines += *text == '\n';
    return lines;
}

static void all_refused_keys_are_told_at_once_by_reason(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    char text[8192];
    edited(text, NULL, "lora_r: many",
           "rl: dpo\nrl_beta: 0.1\nlearning_rte: 1\ntrl: {beta: 1}\n\"a\\nb\": 1");
    assert_int_equal(read_with(&f, text, strlen(text), SET("relora=true")), NBL_ERROR_ARGUMENT);
    must_say(&f, "user.yml: 7 keys are refused: lora_r, rl, rl_beta, learning_rte, trl, a?b, relora\n");
    must_say(&f, "user.yml:6: lora_r: \"many\" is not allowed");
    must_say(&f, "user.yml:21: rl, rl_beta (line 22), trl (line 24): preference");
    must_say(&f, "user.yml:23: learning_rte: no such key; did you mean learning_rate?");
    must_say(&f, "--set relora: ReLoRA");
    assert_int_equal(count_lines(nbl_error_message(f.ctx)), 6);
    /* More than a message holds: the names and what fits. */
    size_t at = (size_t)sprintf(text, "%s", MIN);
    for (int i = 0; i < 90; i++)
        at += (size_t)sprintf(text + at, "unknown_word_number_%d_with_a_long_name: 1\n", i);
    assert_int_equal(read_with(&f, text, at, NULL), NBL_ERROR_ARGUMENT);
    must_say(&f, "90 keys are refused");
    must_say(&f, "and 66 more");
    end(&f);
}

static void only_near_spellings_are_suggested(void **state)
{
    (void)state;
    static const char *const far[] = {"rm: 1",        "xy: 1",       "gpu: h100",
                                      "secrets: [a]", "provider: x", "timeout: 3"};
    fixture f;
    begin(&f);
    char text[4096];
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
        edited(text, NULL, NULL, far[i]);
        assert_int_not_equal(read_with(&f, text, strlen(text), NULL), NBL_OK);
        must_say(&f, "no such key of nibble or axolotl");
    }
    end(&f);
}

/* A suggestion is at most a quarter of the word away, whatever the word: random words get none, and random slips of a
 * known name get that name, or another one as near. */
static void suggestions_keep_their_distance(void **state)
{
    (void)state;
    uint64_t random = 7;
    int suggested = 0;
    for (int round = 0; round < 20000; round++) {
        char word[24];
        int length = 3 + round % 14;
        for (int i = 0; i < length; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            word[i] = "abcdefghijklmnopqrstuvwxyz_0123456789"[(random >> 33) % 37];
        }
        word[length] = 0;
        const char *near = nbl__run_key_nearest(nbl__run_keys, NBL_RUN_KEYS, word);
        if (near == NULL) continue;
        suggested++;
        int longer = abs((int)strlen(near) - length);
        if (longer > (length + 2) / 4) fail_msg("%s was suggested for %s", near, word);
    }
    assert_true(suggested < 10);
    for (int i = 0; i < NBL_RUN_KEYS; i++) {
        char slip[64];
        const char *name = nbl__run_keys[i].name;
        size_t length = strlen(name), at = (size_t)i % (length - 1);
        sprintf(slip, "%.*s%s", (int)at, name, name + at + 1); /* a letter less */
        if (nbl__run_key_find(nbl__run_keys, NBL_RUN_KEYS, slip) == NULL && length > 4)
            assert_non_null(nbl__run_key_nearest(nbl__run_keys, NBL_RUN_KEYS, slip));
    }
}

static void a_wrong_override_is_named_as_one(void **state)
{
    (void)state;
    static const struct {
        const char *set, *says[2];
    } wrong[] = {
        {"lora_rank=3", {"--set lora_rank", "lora_r?"}},
        {"micro_batch_size=two", {"--set micro_batch_size", "\"two\""}},
        {"datasets.0.type=wrong_type", {"--set datasets.0.type", "wrong_type"}},
        {"datasets.2.path=a", {"--set datasets.2.path", "list of 1"}},
        {"datasets.x.path=a", {"--set datasets.x.path", "list of 1"}},
        {"datasets.0.path.a=a", {"--set datasets.0.path.a", "no keys"}},
        {"datasets=[{path: a, typ: b}]", {"--set datasets", "datasets.0.typ"}},
        {"seed", {"--set seed", "key=value"}},
        {"=3", {"--set =3", "key=value"}},
        {"a..b=3", {"--set a..b", "not a key"}},
        {".=3", {"--set .", "not a key"}},
        {"a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r=3", {"--set a.b.c", "not a key"}},
        {"seed=[1", {"--set seed: not YAML", ""}},
        {"seed=*a", {"--set seed: aliases", ""}},
        {"load_in_8bit=true", {"load_in_4bit", "load_in_8bit"}},
        {"learning_rate=null", {"learning_rate", "needed"}},
        {"adapter=qlora", {"--set adapter", "load_in_4bit"}},
    };
    fixture f;
    begin(&f);
    char text[4096];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bool four = strncmp(wrong[i].set, "load", 4) == 0;
        edited(text, NULL, NULL, four ? "load_in_4bit: true" : NULL);
        if (read_with(&f, text, strlen(text), SET(wrong[i].set)) == NBL_OK)
            fail_msg("%s passed", wrong[i].set);
        for (int k = 0; k < 2; k++) must_say(&f, wrong[i].says[k]);
    }
    assert_int_equal(nbl_run_open(f.ctx, NULL, NULL, 0, &f.run), NBL_ERROR_ARGUMENT);
    assert_int_equal(nbl_run_open(f.ctx, "a", NULL, 1, &f.run), NBL_ERROR_ARGUMENT);
    assert_int_equal(nbl_run_open(f.ctx, "a", (const char *const[]){NULL}, 1, &f.run), NBL_ERROR_ARGUMENT);
    end(&f);
}

/* ---- YAML ---- */

static void hostile_yaml_is_refused_with_its_location(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"base_model: [unclosed\nlearning_rate: 1\n", "user.yml:2: not YAML"},
        {"a: &x 1\nb: *x\n", "user.yml:2: aliases"},
        {"a: !!python/object:os.system x\n", "user.yml:1: tags"},
        {"a: 1\n---\nb: 2\n", "user.yml:2: a second document"},
        {"a: 1\n? [b, c]\n: 2\n", "user.yml:2: a key must be a word"},
        {"a: [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]\n", "user.yml:1: nested too deeply"},
        {"a: 1\nb: \"x\\0y\"\n", "user.yml:2: a text holds a zero byte"},
        {"a: 1\n\nb: \xff\xfe\n", "user.yml:3: not YAML"},
        {"a: 1\nb: \x01\n", "user.yml:2: not YAML"},
        {"[a, b]\n", "not a map"},
        {"text\n", "not a map"},
        {"a: 1\n b: 2\n", "user.yml:2: not YAML"},
    };
    fixture f;
    begin(&f);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (read_with(&f, wrong[i].text, strlen(wrong[i].text), NULL) == NBL_OK)
            fail_msg("%s", wrong[i].text);
        must_say(&f, wrong[i].says);
    }
    assert_int_not_equal(read_with(&f, "a: 1\n\0b: 2\n", 11, NULL), NBL_OK);
    must_say(&f, "user.yml:2: not YAML");
    assert_int_not_equal(read_with(&f, "", 0, NULL), NBL_OK);
    must_say(&f, "base_model");

    size_t size = NBL_YAML_MAX_BYTES + 1;
    char *text = malloc(size);
    memset(text, '\n', size);
    assert_int_not_equal(read_with(&f, text, size, NULL), NBL_OK);
    must_say(&f, "bytes");
    for (size_t i = 0; i < size; i++) text[i] = "[,a"[i == 0 ? 0 : i % 2 + 1]; /* [a,a,a */
    assert_int_not_equal(read_with(&f, text, size - 1, NULL), NBL_OK);
    must_say(&f, "more values");
    memset(text, '[', size);
    assert_int_not_equal(read_with(&f, text, size - 1, NULL), NBL_OK);
    must_say(&f, "nested too deeply");
    free(text);
    end(&f);
}

static nbl__yaml scalar(const char *text, bool plain)
{
    return (nbl__yaml){.text = text, .plain = plain};
}

/* The first and the last number of a text. */
static void numbers_in(const char *text, double *first, double *last)
{
    *first = *last = NAN;
    for (const char *at = text; *at;) {
        char *end;
        if (*at < '0' || *at > '9') {
            at++;
            continue;
        }
        *last = strtod(at, &end);
        if (isnan(*first)) *first = *last;
        at = end;
    }
}

static void the_message_of_every_number_tells_both_limits(void **state)
{
    (void)state;
    int numbers = 0;
    for (const nbl__run_key *key = nbl__run_keys; key < nbl__run_keys + NBL_RUN_KEYS; key++) {
        double first, last;
        if (key->type != NBL_KEY_INTEGER && key->type != NBL_KEY_REAL) continue;
        numbers_in(key->range, &first, &last);
        if (fabs(first - key->min) > 1e-300 || last != key->max) fail_msg("%s: %s", key->name, key->range);
        numbers++;
    }
    assert_true(numbers > 25);
    assert_non_null(
        strstr(nbl__run_key_find(nbl__run_keys, NBL_RUN_KEYS, "memory")->range, "above 0, below 2^62"));
}

static void words_and_numbers_are_yaml_1_1(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;  /* NAN: no number */
        int64_t whole; /* INT64_MIN: none */
    } numbers[] = {
        {"1", 1, 1},
        {"-12", -12, -12},
        {"+3", 3, 3},
        {"1_000", 1000, 1000},
        {"2048.0", 2048, 2048},
        {"1e3", 1000, 1000},
        {"2e-4", 2e-4, INT64_MIN},
        {"3.0e-4", 3e-4, INT64_MIN},
        {".5", .5, INT64_MIN},
        {"5.", 5, 5},
        {"0", 0, 0},
        {"0.1", 0.1, INT64_MIN},
        {"9007199254740993", 9007199254740992, 9007199254740993},
        {"1e300", 1e300, INT64_MIN},
        {"9223372036854775808", 9223372036854775808.0, INT64_MIN},
        {"", NAN, INT64_MIN},
        {".", NAN, INT64_MIN},
        {"-", NAN, INT64_MIN},
        {"1e", NAN, INT64_MIN},
        {"1e+", NAN, INT64_MIN},
        {"_1", NAN, INT64_MIN},
        {"1_", NAN, INT64_MIN},
        {"0_1", NAN, INT64_MIN},
        {"01", NAN, INT64_MIN},
        {"1 ", NAN, INT64_MIN},
        {"1:30", NAN, INT64_MIN},
        {"0x10", NAN, INT64_MIN},
        {"inf", NAN, INT64_MIN},
        {".inf", NAN, INT64_MIN},
        {"nan", NAN, INT64_MIN},
        {"1e400", NAN, INT64_MIN},
        {"1111111111111111111111111111111111111111111111111111111111111", NAN, INT64_MIN},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        nbl__yaml value = scalar(numbers[i].text, true);
        double real = NAN;
        int64_t whole = INT64_MIN;
        if (!nbl__yaml_real(&value, &real)) real = NAN;
        if (!nbl__yaml_integer(&value, &whole)) whole = INT64_MIN;
        if (isnan(real) != isnan(numbers[i].value) || (!isnan(real) && real != numbers[i].value))
            fail_msg("%s is %g", numbers[i].text, real);
        if (whole != numbers[i].whole) fail_msg("%s is %lld", numbers[i].text, (long long)whole);
    }
    static const char *const words[] = {"yes", "Yes", "YES", "on",  "On",  "ON",  "true",  "True",  "TRUE",
                                        "no",  "No",  "NO",  "off", "Off", "OFF", "false", "False", "FALSE"};
    for (int i = 0; i < 18; i++) {
        bool boolean = i >= 9;
        nbl__yaml value = scalar(words[i], true);
        assert_true(nbl__yaml_boolean(&value, &boolean) && boolean == (i < 9));
    }
    for (int i = 0; i < 5; i++) {
        bool boolean;
        nbl__yaml value = scalar((const char *const[]){"y", "n", "1", "tRue", ""}[i], true);
        assert_false(nbl__yaml_boolean(&value, &boolean));
    }
    nbl__yaml plain = scalar("null", true), quoted = scalar("null", false), none = scalar("~", true);
    assert_true(nbl__yaml_is_null(&plain) && nbl__yaml_is_null(&none) && !nbl__yaml_is_null(&quoted));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mistake_is_refused_by_key_and_line),
        cmocka_unit_test(all_refused_keys_are_told_at_once_by_reason),
        cmocka_unit_test(only_near_spellings_are_suggested),
        cmocka_unit_test(suggestions_keep_their_distance),
        cmocka_unit_test(a_wrong_override_is_named_as_one),
        cmocka_unit_test(hostile_yaml_is_refused_with_its_location),
        cmocka_unit_test(the_message_of_every_number_tells_both_limits),
        cmocka_unit_test(words_and_numbers_are_yaml_1_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
