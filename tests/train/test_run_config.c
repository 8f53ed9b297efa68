/* test_run_config.c - the configuration of a training run: what each key means, overrides, and that what is written reads
 * back. */
#include "train/run_config_support.h"

#include <math.h>

#include "base/alloc.h"
#include "run/run_foreign.h"
#include "run/run_keys.h"

static void what_is_not_given_is_axolotls_default_or_the_trainers(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    const nbl__run_config *c = read_good(&f, MIN, NULL);
    assert_true(c->full && !c->qlora && !c->load_in_4bit && !c->load_in_8bit && !c->fp4 && c->double_quant);
    assert_int_equal(c->compute, NBL_DTYPE_F32);
    assert_int_equal(c->sequence_len, 2048);
    assert_true(c->shuffle && !c->curriculum && !c->sample_packing && !c->eval_sample_packing);
    assert_int_equal(c->excess, NBL_EXCESS_DROP);
    assert_int_equal(c->micro_batch_size, 1);
    assert_int_equal(c->gradient_accumulation_steps, 1);
    assert_true(c->num_epochs == 1 && c->max_steps == 0 && c->val_set_size == 0);
    assert_true(c->weight_decay == 0 && c->beta1 == 0.9 && c->beta2 == 0.999 && c->epsilon == 1e-8);
    assert_true(c->max_grad_norm == 1 && !c->adam8bit && c->warmup_steps == 0 && c->warmup_ratio == 0);
    assert_int_equal(c->schedule, NBL_SCHEDULE_COSINE);
    assert_true(c->logging_steps == 1 && c->eval_steps == 0 && c->save_steps == 0 &&
                c->save_total_limit == 0);
    assert_true(c->loss_watchdog_threshold == 0 && c->early_stopping_patience == 0);
    assert_true(!c->load_best && !c->greater_is_better);
    assert_string_equal(c->metric, "eval_loss");
    assert_string_equal(c->output_dir, "./model-out");
    assert_true(c->seed == 42 && c->threads == 0 && c->memory == 0 && c->report);
    assert_string_equal(c->device, nbl_cuda_usable(f.ctx) ? "cuda" : "cpu");
    assert_null(c->chat_template);
    const nbl__dataset_config *d = c->datasets;
    assert_int_equal(c->dataset_count, 1);
    assert_true(d->type == NBL_DATA_TOKENS && d->file == NBL_FILE_BY_NAME && d->train_on_eos == NBL_EOS_TURN);
    assert_string_equal(d->field_messages, "messages");
    assert_string_equal(d->field_text, "text");
    assert_string_equal(d->property_role, "role");
    assert_string_equal(d->property_content, "content");
    assert_int_equal(d->roles_to_train.count, 1);
    assert_string_equal(d->roles_to_train.items[0], "assistant");
    assert_null(d->split);
    assert_int_equal(f.lines, 0);
    c = read_good(&f, MIN "adapter: lora\nlora_target_linear: true\n", NULL);
    assert_true(c->lora_r == 8 && c->lora_alpha == 8 && c->lora_dropout == 0 && !c->full);
    c = read_good(&f, MIN "adapter: lora\nlora_model_dir: a\n", NULL);
    assert_true(c->lora_r == 0 && c->lora_alpha == 0);
    end(&f);
}

/* Every key of the table, with a value that is not its default. */
static const char everything[] =
    "base_model: \"a: b # c \\u00e9\\n\\u2028 \\\\ \\\" \\U0001F642\"\n"
    "load_in_4bit: yes\nload_in_8bit: Off\nbnb_4bit_quant_type: fp4\nbnb_4bit_use_double_quant: NO\n"
    "bf16: True\nfp16: false\ntf32: on\nadapter: qlora\nlora_r: 1_6\nlora_alpha: 3.5e1\nlora_dropout: .25\n"
    "lora_target_modules: [q_proj, 'yes', \"10\"]\nlora_target_linear: true\nlora_target_parameters: "
    "[mlp.experts.down_proj]\nlora_modules_to_save: "
    "[lm_head]\n"
    "peft_use_dora: true\npeft_use_rslora: true\nlora_model_dir: start here\n"
    "datasets:\n"
    "  - path: first.jsonl\n    type: chat_template\n    ds_type: json\n    field_messages: conversations\n"
    "    field: body\n    message_property_mappings: {role: from, content: value}\n"
    "    roles_to_train: [gpt, human]\n    drop_system_message: true\n    train_on_eos: last\n    "
    "train_on_eot: all\n    split: "
    "\"train[10%:]\"\n"
    "  - {path: second.csv, type: alpaca, ds_type: csv, train_on_eos: none, roles_to_train: []}\n"
    "  - {path: third, type: completion, ds_type: text, train_on_eos: all}\n"
    "  - {path: fourth, type: input_output}\n"
    "train_on_inputs: true\neot_tokens: [<end>, <over>]\nchat_template: jinja\nchat_template_jinja: \"{% if "
    "x %}\\n  {{ x }}{% endif "
    "%}\"\n"
    "sequence_len: 512\nexcess_length_strategy: truncate\nmin_sample_len: 3\n"
    "dataset_exact_deduplication: true\nsample_packing: true\neval_sample_packing: false\n"
    "pad_to_sequence_len: true\nshuffle_merged_datasets: false\ncurriculum_sampling: true\nval_set_size: "
    "0.1\n"
    "skip_bad_rows: true\n"
    "special_tokens:\n  pad_token: <pad>\n  eos_token: <eos>\n  bos_token: <bos>\n  unk_token: <unk>\n"
    "micro_batch_size: 3\ngradient_accumulation_steps: 4\nnum_epochs: 2.5\nmax_steps: 7\n"
    "optimizer: adamw_8bit\nlearning_rate: 2e-4\nlr_scheduler: cosine\nwarmup_ratio: 0.03\n"
    "cosine_min_lr_ratio: 0.1\ncosine_constant_lr_ratio: 0.9\nweight_decay: "
    "1e-2\n"
    "adam_beta1: 0.8\nadam_beta2: 0.95\nadam_epsilon: 1.5e-7\nmax_grad_norm: 0.3\n"
    "gradient_checkpointing: true\nlogging_steps: 5\neval_strategy: steps\neval_steps: 6\n"
    "save_strategy: steps\nsaves_per_epoch: 2\nsave_total_limit: 8\n"
    "early_stopping_patience: 9\nload_best_model_at_end: true\nmetric_for_best_model: loss\n"
    "greater_is_better: true\nloss_watchdog_threshold: 5.0\nloss_watchdog_patience: 11\n"
    "output_dir: ' out'\nseed: 9223372036854775807\nresume_from_checkpoint: out/checkpoint-3\n"
    "auto_resume_from_checkpoints: true\ndevice: cpu\nthreads: 12\nmemory: 1.5GiB\nreport: false\n";

static void every_key_reaches_its_field(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    const nbl__run_config *c = read_good(&f, everything, NULL);
    assert_string_equal(c->base_model, "a: b # c é\n\xe2\x80\xa8 \\ \" 🙂");
    assert_true(c->load_in_4bit && !c->load_in_8bit && c->fp4 && !c->double_quant && c->tf32);
    assert_int_equal(c->compute, NBL_DTYPE_BF16);
    assert_true(c->qlora && !c->full && c->lora_r == 16 && c->lora_alpha == 35 && c->lora_dropout == 0.25);
    assert_int_equal(c->target_modules.count, 3);
    assert_string_equal(c->target_modules.items[1], "yes");
    assert_string_equal(c->target_modules.items[2], "10");
    assert_true(c->target_linear && c->target_regex == NULL && c->dora && c->rslora);
    assert_string_equal(c->modules_to_save.items[0], "lm_head");
    assert_string_equal(c->lora_model_dir, "start here");
    assert_int_equal(c->dataset_count, 4);
    const nbl__dataset_config *d = c->datasets;
    assert_true(d->type == NBL_DATA_CHAT && d->file == NBL_FILE_JSON && d->train_on_eos == NBL_EOS_LAST);
    assert_string_equal(d->path, "first.jsonl");
    assert_string_equal(d->field_messages, "conversations");
    assert_string_equal(d->field_text, "body");
    assert_string_equal(d->property_role, "from");
    assert_string_equal(d->property_content, "value");
    assert_string_equal(d->roles_to_train.items[1], "human");
    assert_string_equal(d->split, "train[10%:]");
    assert_true(d[1].type == NBL_DATA_ALPACA && d[1].file == NBL_FILE_CSV &&
                d[1].train_on_eos == NBL_EOS_NONE);
    assert_int_equal(d[1].roles_to_train.count, 0);
    assert_true(d[2].type == NBL_DATA_COMPLETION && d[2].file == NBL_FILE_TEXT &&
                d[2].train_on_eos == NBL_EOS_ALL);
    assert_true(d[3].type == NBL_DATA_SEGMENTS && d[3].file == NBL_FILE_BY_NAME);
    assert_int_equal(d->train_on_eot, 1 + NBL_EOS_ALL);
    assert_int_equal(d[1].train_on_eot, 0);
    assert_true(c->train_on_inputs && c->eot_tokens.count == 2);
    assert_string_equal(c->eot_tokens.items[1], "<over>");
    assert_string_equal(c->chat_template, "{% if x %}\n  {{ x }}{% endif %}");
    assert_true(c->sequence_len == 512 && c->excess == NBL_EXCESS_TRUNCATE && c->sample_packing &&
                !c->eval_sample_packing && c->pad_to_sequence_len && !c->shuffle && c->curriculum &&
                c->val_set_size == 0.1 && c->skip_bad_rows && c->min_sample_len == 3 && c->deduplicate);
    assert_true(c->min_lr_ratio == 0.1 && c->constant_lr_ratio == 0.9 && d->drop_system_message);
    assert_string_equal(c->pad_token, "<pad>");
    assert_string_equal(c->eos_token, "<eos>");
    assert_string_equal(c->bos_token, "<bos>");
    assert_string_equal(c->unk_token, "<unk>");
    assert_true(c->micro_batch_size == 3 && c->gradient_accumulation_steps == 4 && c->num_epochs == 2.5 &&
                c->max_steps == 7 && c->adam8bit && c->learning_rate == 2e-4);
    assert_int_equal(c->schedule, NBL_SCHEDULE_COSINE);
    assert_true(c->warmup_steps == -1 && c->warmup_ratio == 0.03 && c->weight_decay == 0.01);
    assert_true(c->beta1 == 0.8 && c->beta2 == 0.95 && c->epsilon == 1.5e-7 && c->max_grad_norm == 0.3);
    assert_true(c->gradient_checkpointing && c->logging_steps == 5 && c->eval_steps == 6);
    assert_true(c->saves_per_epoch == 2 && c->save_steps == 0 && c->evals_per_epoch == 0);
    assert_true(c->save_total_limit == 8 && c->early_stopping_patience == 9);
    assert_true(c->load_best && c->greater_is_better);
    assert_string_equal(c->metric, "loss");
    assert_true(c->loss_watchdog_threshold == 5 && c->loss_watchdog_patience == 11);
    assert_string_equal(c->output_dir, " out");
    assert_true(c->seed == INT64_MAX && c->auto_resume && c->threads == 12 && !c->report);
    assert_string_equal(c->resume_from_checkpoint, "out/checkpoint-3");
    assert_string_equal(c->device, "cpu");
    assert_int_equal(c->memory, 3ull << 29);
    assert_int_equal(f.lines, 0);
    end(&f);
}

/* Reads a text, writes the result, reads that and writes it again: both the same. Returns the text; free it. */
static char *round_trip(fixture *f, const char *text)
{
    nbl__text first = {.ctx = f->ctx}, second = {.ctx = f->ctx};
    assert_ok(f->ctx, nbl__run_config_write(&first, read_good(f, text, NULL)));
    f->lines = 0;
    assert_ok(f->ctx, nbl__run_config_write(&second, read_good(f, first.text, NULL)));
    assert_string_equal(first.text, second.text);
    assert_int_equal(f->lines, 0);
    char *copy = strdup(first.text);
    nbl__text_free(&first);
    nbl__text_free(&second);
    return copy;
}

static void what_is_written_reads_back_to_the_same(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    char *text = round_trip(&f, everything);
    const nbl__run_config *c = &f.run->config;
    assert_string_equal(c->base_model, "a: b # c é\n\xe2\x80\xa8 \\ \" 🙂");
    assert_string_equal(c->output_dir, " out");
    assert_string_equal(c->chat_template, "{% if x %}\n  {{ x }}{% endif %}");
    assert_true(c->learning_rate == 2e-4 && c->seed == INT64_MAX && c->warmup_steps == -1 && c->qlora);
    assert_true(c->datasets[3].type == NBL_DATA_SEGMENTS && c->datasets[1].roles_to_train.count == 0);
    assert_string_equal(c->datasets[0].property_role, "from");
    assert_string_equal(c->unk_token, "<unk>");
    assert_non_null(strstr(text, "\nlearning_rate: 0.0002\n"));
    assert_non_null(strstr(text, "\nadam_epsilon: 1.5e-07\n"));
    for (int i = 0; i < NBL_RUN_KEYS; i++) {
        char line[80];
        if (nbl__run_keys[i].unwritten) continue;
        snprintf(line, sizeof line, "\n%s:", nbl__run_keys[i].name);
        if (i > 0 && strstr(text, line) == NULL && strcmp(nbl__run_keys[i].name, "warmup_steps") != 0)
            fail_msg("%s is not written", nbl__run_keys[i].name);
    }
    free(text);
    static const char *const others[] = {
        MIN,
        MIN "lora_r: 4\nlora_target_linear: true\n",
        MIN "adapter: lora\nlora_target_modules: '.*\\.(q|k)_proj'\nload_in_8bit: true\nfp16: true\n",
        MIN "adapter: lora\nlora_target_modules: all-linear\nwarmup_steps: 3\nsave_steps: 4\n",
        MIN
        "chat_template: chatml\nspecial_tokens: {pad_token: \"\\x7f\\x85\\uFEFF\\t\"}\nadam_epsilon: 1e-5\n",
        MIN "chat_template: tokenizer_default\n",
        MIN "bf16: auto\ntf32: auto\nval_set_size: 20\nevals_per_epoch: 2\nmemory: 123456789012345\n",
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) free(round_trip(&f, others[i]));
    text = round_trip(&f, others[4]);
    assert_string_equal(f.run->config.pad_token, "\x7f\xc2\x85\xef\xbb\xbf\t");
    assert_non_null(strstr(text, "adam_epsilon: 1.0e-05\n")); /* PyYAML takes 1e-05 for a text */
    free(text);
    end(&f);
}

static void bf16_auto_is_decided_by_the_machine(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    bool has = nbl__isa(f.ctx) >= NBL_ISA_AVX512BF16, device = nbl_cuda_usable(f.ctx);
    assert_int_equal(read_good(&f, MIN "bf16: auto\ndevice: cpu\n", NULL)->compute,
                     has ? NBL_DTYPE_BF16 : NBL_DTYPE_F32);
    assert_int_equal(read_good(&f, MIN "bf16: auto\n", NULL)->compute,
                     has || device ? NBL_DTYPE_BF16 : NBL_DTYPE_F32);
    assert_int_equal(read_good(&f, MIN "bf16: auto\nfp16: true\n", NULL)->compute, NBL_DTYPE_F16);
    assert_int_equal(read_good(&f, MIN "bf16: auto\ndevice: cuda\n", NULL)->compute, NBL_DTYPE_BF16);
    const nbl__run_config *c = read_good(&f, MIN "bf16: true\ndevice: auto\n", NULL);
    assert_string_equal(c->device, device ? "cuda" : "cpu");
    assert_int_equal(c->compute, NBL_DTYPE_BF16);
    end(&f);
}

static void a_template_of_ones_own_may_be_a_file(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    char text[2048];
    write_file(f.folder, "own.jinja", "{{ messages }}\n", 15);
    snprintf(text, sizeof text, MIN "chat_template_jinja: %s\n", in_folder(f.folder, "own.jinja"));
    assert_string_equal(read_good(&f, text, NULL)->chat_template, "{{ messages }}\n");
    assert_string_equal(read_good(&f, MIN "chat_template: '{{ 1 }}'\n", NULL)->chat_template, "{{ 1 }}");
    write_file(f.folder, "own.jinja", "\xff", 1);
    assert_int_equal(read_with(&f, text, strlen(text), NULL), NBL_ERROR_FORMAT);
    must_say(&f, "own.jinja");
    end(&f);
}

static void qlora_takes_a_base_that_is_quantized_already(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    static const char config[] =
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
        "\"quantization_config\": {\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true}}";
    char text[2048];
    write_file(f.folder, "config.json", config, sizeof config - 1);
    snprintf(
        text, sizeof text,
        "base_model: %s\ndatasets: [{path: d}]\nlearning_rate: 1\nadapter: qlora\nlora_target_linear: true\n",
        f.folder);
    assert_true(read_good(&f, text, NULL)->qlora && !f.run->config.load_in_4bit);
    free(round_trip(&f, text));
    write_file(f.folder, "config.json", "{}", 2);
    assert_int_not_equal(read_with(&f, text, strlen(text), NULL), NBL_OK);
    must_say(&f, "load_in_4bit");
    end(&f);
}

/* ---- keys of other engines ---- */

static void keys_of_other_engines_are_noticed_once_and_empty_ones_never(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    read_good(&f,
              MIN
              "model_type: AutoModelForCausalLM\ntokenizer_type: AutoTokenizer\ntrust_remote_code: false\n"
              "strict: false\ndataset_prepared_path: last_run_prepared\nwandb_project: p\nwandb_entity:\n"
              "wandb_watch: ~\nwandb_anything: {a: [1]}\nflash_attention: true\n"
              "attn_implementation: flash_attention_2\ngradient_checkpointing_kwargs:\n"
              "  use_reentrant: false\ndeepspeed:\nfsdp:\nfsdp_config: {x: 1}\ngroup_by_length: false\n"
              "debug:\nlora_model_dir:\nfp16:\nearly_stopping_patience:\nresume_from_checkpoint: ''\n",
              NULL);
    assert_int_equal(f.lines, 1);
    for (const char *const *name =
             (const char *const[]){"model_type", "tokenizer_type", "trust_remote_code", "strict",
                                   "dataset_prepared_path", "wandb_project", "wandb_anything",
                                   "flash_attention", "attn_implementation", "gradient_checkpointing_kwargs",
                                   "fsdp_config", NULL};
         *name; name++)
        if (strstr(f.log, *name) == NULL) fail_msg("no notice of %s in\n%s", *name, f.log);
    assert_non_null(
        strstr(f.log, "user.yml: no effect here: model_type (config.json says this); tokenizer_type"));
    assert_non_null(strstr(f.log, "wandb_project, wandb_anything (metrics go to files"));
    assert_null(strstr(f.log, "wandb_entity"));
    assert_null(strstr(f.log, "group_by_length")); /* false is what is done anyway */
    end(&f);
}

static void keys_that_only_tune_other_engines_are_one_notice(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    read_good(&f,
              MIN "liger_rope: true\nlora_mlp_kernel: true\nuse_kernels: true\nxformers_attention: true\n"
                  "torch_compile: true\nddp_timeout: 3\nremove_unused_columns: false\ncomet_mode: a\n"
                  "trust_remote_code: true\ndataloader_num_workers: 4\nhub_model_id: a/b\n"
                  "plugins:\n  - axolotl.integrations.liger.LigerPlugin\n"
                  "  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\n",
              NULL);
    assert_int_equal(f.lines, 1);
    static const char *const names[] = {"liger_rope",  "lora_mlp_kernel", "use_kernels", "xformers_attention",
                                        "ddp_timeout", "comet_mode",      "plugins",     "trust_remote_code"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) assert_non_null(strstr(f.log, names[i]));
    end(&f);
}

static void what_is_off_is_accepted_quietly(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    read_good(
        &f,
        "base_model: b\ndatasets:\n  - {path: d, roles: {user: [user], assistant: assistant}, shards: }\n"
        "learning_rate: 1\nrl:\nrelora: false\nunfrozen_parameters: []\nadapter: null\ngptq: false\n"
        "lora_fan_in_fan_out: false\nmodel_config: {}\nmin_sample_len: 0\nsave_safetensors: true\n"
        "peft_init_lora_weights: true\nbase_model_config: b\ngroup_by_length: no\nplugins:\n",
        NULL);
    assert_int_equal(f.lines, 0);
    read_good(&f, MIN "rl: dpo\nrelora: true\n", SET("rl=", "relora=null"));
    assert_int_equal(f.lines, 0);
    end(&f);
}

static void values_of_axolotls_become_ours_and_are_told(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    const nbl__run_config *c = read_good(
        &f, MIN "optimizer: paged_adamw_8bit\ngradient_checkpointing: offload\nbf16: full\n", NULL);
    assert_true(c->adam8bit && c->gradient_checkpointing && c->compute == NBL_DTYPE_BF16);
    assert_int_equal(f.lines, 1);
    assert_non_null(strstr(f.log, "optimizer: paged_adamw_8bit: taken as adamw_8bit"));
    assert_false(read_good(&f, MIN "optimizer: paged_adamw_32bit\n", NULL)->adam8bit);
    assert_true(read_good(&f, MIN "optimizer: adamw_torch_8bit\n", NULL)->adam8bit);
    c = read_good(&f, MIN "batch_size: 12\nmicro_batch_size: 4\n", NULL);
    assert_int_equal(c->gradient_accumulation_steps, 3);
    c = read_good(&f, MIN "save_strategy: no\neval_strategy: epoch\n", NULL);
    assert_true(c->save_strategy == NBL_STRATEGY_NO && c->eval_strategy == NBL_STRATEGY_EPOCH);
    c = read_good(&f,
                  "base_model: b\nlearning_rate: 1\ndatasets: [{path: d, type: chat_template, "
                  "message_field_role: from, message_field_content: value}]\n",
                  NULL);
    assert_string_equal(c->datasets->property_role, "from");
    assert_string_equal(c->datasets->property_content, "value");
    c = read_good(
        &f,
        "base_model: b\nlearning_rate: 1\ndatasets: [{path: d, type: completion, data_files: [e, /f]}, "
        "{path: json, data_files: g}, {path: h}]\nchat_template: llama3\nlr_quadratic_warmup: true\n",
        NULL);
    assert_int_equal(c->dataset_count, 4);
    static const char *const paths[] = {"d/e", "/f", "g", "h"};
    for (int i = 0; i < 4; i++) assert_string_equal(c->datasets[i].path, paths[i]);
    assert_true(c->datasets[1].type == NBL_DATA_COMPLETION && c->quadratic_warmup);
    assert_string_equal(c->chat_template, "llama3");
    free(round_trip(&f, MIN "chat_template: qwen3\nlr_quadratic_warmup: true\n"));
    free(round_trip(&f, MIN "chat_template: tokenizer_default_fallback_llama3\n"));
    free(round_trip(&f, MIN "batch_size: 12\nmicro_batch_size: 4\nsave_strategy: no\nbf16: false\n"));
    end(&f);
}

static void what_has_no_effect_is_said(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    read_good(&f, MIN "lora_r: 4\npeft_use_dora: true\n", NULL);
    assert_int_equal(f.lines, 2);
    assert_non_null(strstr(f.log, "lora_r has no effect without adapter"));
    assert_true(f.run->config.lora_r == 0 && !f.run->config.dora);
    read_good(&f, MIN "eval_steps: 4\n", NULL);
    assert_non_null(strstr(f.log, "eval_steps has no effect: val_set_size is 0"));
    end(&f);
}

/* ---- overrides ---- */

static void overrides_replace_what_the_file_says(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    char text[4096];
    edited(text, NULL, NULL, "special_tokens:\nwarmup_ratio:");
    const nbl__run_config *c = read_good(
        &f, text,
        SET("max_steps=2", "max_steps=3", "learning_rate=2e-4", "lora_alpha=", "warmup_steps=null",
            "warmup_ratio=0.5", "output_dir=a=b", "datasets.0.path=other.jsonl",
            "datasets.1={path: new, type: alpaca}", "special_tokens.pad_token=<p>",
            "lora_modules_to_save=[lm_head]", "datasets.0.message_property_mappings.role=from"));
    assert_true(c->max_steps == 3 && c->learning_rate == 2e-4 && c->lora_alpha == 8);
    assert_true(c->warmup_steps == -1 && c->warmup_ratio == 0.5);
    assert_string_equal(c->output_dir, "a=b");
    assert_int_equal(c->dataset_count, 2);
    assert_string_equal(c->datasets[0].path, "other.jsonl");
    assert_string_equal(c->datasets[0].property_role, "from");
    assert_int_equal(c->datasets[1].type, NBL_DATA_ALPACA);
    assert_string_equal(c->pad_token, "<p>");
    assert_string_equal(c->modules_to_save.items[0], "lm_head");
    c = read_good(&f, "", SET("base_model=b", "datasets.0.path=d", "learning_rate=1"));
    assert_string_equal(c->datasets[0].path, "d");
    end(&f);
}

/* ---- the rest ---- */

static void memory_that_runs_out_is_told_and_none_is_lost(void **state)
{
    (void)state;
    char temp[64];
    make_temp(temp);
    write_file(temp, "user.yml", everything, strlen(everything));
    write_file(temp, "bad.yml", "base_model: b\ndatasets: [{path: d}]\nlearning_rate: x\n", 53);
    for (int64_t n = 2;; n++) { /* the first is the context itself */
        nbl__counter counter = {.fail_at = n};
        nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1,
                                       .allocator = nbl__counting_allocator(&counter)};
        nbl_context *ctx;
        nbl_run *run;
        assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
        nbl_status refused = nbl_run_open(ctx, in_folder(temp, "bad.yml"), NULL, 0, &run);
        assert_int_equal(refused, counter.calls < n ? NBL_ERROR_ARGUMENT : NBL_ERROR_MEMORY);
        nbl_status status = nbl_run_open(ctx, in_folder(temp, "user.yml"),
                                         SET("special_tokens.pad_token=<p>", "datasets.4.path=e"), 2, &run);
        nbl__text text = {.ctx = ctx};
        if (status == NBL_OK) status = nbl__run_config_write(&text, &run->config);
        nbl__text_free(&text);
        nbl_run_close(run);
        bool done = counter.calls < n;
        if (done || refused == NBL_ERROR_MEMORY) assert_ok(ctx, status);
        else assert_int_equal(status, NBL_ERROR_MEMORY);
        nbl_context_destroy(ctx);
        assert_int_equal(counter.live, 0);
        if (!done) continue;
        assert_true(n > 10);
        break;
    }
    remove_tree(temp);
}

/* One line of the table in docs/CONFIG.md. */
static void doc_line(nbl__text *out, const nbl__run_key *key)
{
    nbl__text_printf(out, "| `%s` | ", key->name);
    nbl__run_key_allowed(key, out);
    nbl__text_printf(out, " | %s | %s |\n", key->fallback ? key->fallback : "", key->help);
}

static void key_lines(nbl__text *out, const nbl__run_key *keys, int count)
{
    for (int i = 0; i < count; i++) {
        doc_line(out, &keys[i]);
        if (keys[i].inner) key_lines(out, keys[i].inner, keys[i].inner_count);
    }
}

/* Rows of names and their reason; * is written as it is. */
static void foreign_lines(nbl__text *out, nbl__foreign_scope scope)
{
    int count;
    const nbl__foreign_group *groups = nbl__foreign_groups(scope, &count);
    for (int i = 0; i < count; i++) {
        nbl__text_printf(out, "| `");
        for (const char *c = groups[i].names; *c; c++)
            if (*c == ' ') nbl__text_printf(out, "`, `");
            else nbl__text_add(out, c, 1);
        nbl__text_printf(out, "` | %s |\n", groups[i].why);
    }
}

/* Every line of `of` that begins like a row of a table is a line of `in`, too. */
static void check_rows(const char *of, const char *in, const char *message)
{
    for (const char *line = of; *line; line = strchr(line, '\n') + 1) {
        char row[4096];
        size_t size = (size_t)(strchr(line, '\n') + 1 - line);
        if (strncmp(line, "| `", 3) != 0) continue;
        assert_true(size < sizeof row);
        memcpy(row, line, size);
        row[size] = 0;
        if (strstr(in, row) == NULL) fail_msg("docs/CONFIG.md %s: %s", message, row);
    }
}

static void the_documentation_has_every_key_as_it_is_and_no_other(void **state)
{
    (void)state;
    size_t size;
    nbl_context *ctx = new_context();
    char *doc = (char *)read_file(TEST_DATA_DIR "/../../docs/CONFIG.md", &size);
    doc[size] = 0;
    nbl__text rows = {.ctx = ctx};
    key_lines(&rows, nbl__run_keys, NBL_RUN_KEYS);
    for (int i = 0; i < NBL_FOREIGN_SCOPES; i++) foreign_lines(&rows, (nbl__foreign_scope)i);
    assert_int_equal(rows.status, NBL_OK);
    check_rows(rows.text, doc, "lacks");
    check_rows(doc, rows.text, "has a row of no key");
    nbl__text_free(&rows);
    free(doc);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_given_is_axolotls_default_or_the_trainers),
        cmocka_unit_test(every_key_reaches_its_field),
        cmocka_unit_test(what_is_written_reads_back_to_the_same),
        cmocka_unit_test(bf16_auto_is_decided_by_the_machine),
        cmocka_unit_test(a_template_of_ones_own_may_be_a_file),
        cmocka_unit_test(qlora_takes_a_base_that_is_quantized_already),
        cmocka_unit_test(keys_of_other_engines_are_noticed_once_and_empty_ones_never),
        cmocka_unit_test(keys_that_only_tune_other_engines_are_one_notice),
        cmocka_unit_test(what_is_off_is_accepted_quietly),
        cmocka_unit_test(values_of_axolotls_become_ours_and_are_told),
        cmocka_unit_test(what_has_no_effect_is_said),
        cmocka_unit_test(overrides_replace_what_the_file_says),
        cmocka_unit_test(memory_that_runs_out_is_told_and_none_is_lost),
        cmocka_unit_test(the_documentation_has_every_key_as_it_is_and_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
