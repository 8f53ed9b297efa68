/* run_keys.c - the table of run_keys.h, and the search for names in it. Names and meanings are
 * axolotl's, except the rows marked "ours" in docs/CONFIG.md. Defaults are axolotl's where it has
 * its own, else those of transformers' Trainer.
 *
 * To add a key: a field in nbl__run_config, a row here, NBL_RUN_KEYS.
 *
 * A row, read aloud: the key lora_r is an integer, stored in config.lora_r of nbl__run_parse, from
 * 1 to 65536, without a default, and may not change when a run is resumed.
 *
 *     {"lora_r", NBL_KEY_INTEGER, AT(config.lora_r), .min = 1, .max = 65536, .range = "1 to 65536",
 *      .help = "…"}
 *
 * The order of the rows is the order in which a configuration is written (run_config_write.c) and
 * recorded in checkpoints (run_changes.c). */
#include "run/run_keys.h"

#include <stdio.h>

/* The offset and size of a field: AT of the top level, IN of an entry of datasets. ROWS: the table
 * of a map. */
#define AT(field) .offset = offsetof(nbl__run_parse, field), .size = sizeof(((nbl__run_parse *)0)->field)
#define IN(field)                                                                                            \
    .offset = offsetof(nbl__dataset_config, field), .size = sizeof(((nbl__dataset_config *)0)->field)
#define ROWS(table) .inner = table, .inner_count = sizeof table / sizeof *table

/* Closed bounds for open ranges. BELOW_1 stays below 1 in f32, which kernels use; 0.999999999
 * would not. */
#define ABOVE_0 0x1p-1074
#define BELOW_1 .min = 0, .max = 0.9999999, .range = "0 or more, below 1: at most 0.9999999"
#define MANY 0x1p40
#define POSITIVE .min = 1, .max = MANY, .range = "1 to 1099511627776"
/* Batch sizes are multiplied with other sizes: this bound prevents overflow. */
#define BATCHES .min = 1, .max = 1 << 20, .range = "1 to 1048576"
#define NATURAL .min = 0, .max = MANY, .range = "0 to 1099511627776"

/* Rules for resumed runs. A row without one may never change (NBL_RESUME_NEVER). */
#define IGNORE .resume = NBL_RESUME_IGNORE
#define ALLOW .resume = NBL_RESUME_ALLOW
#define RECORD .resume = NBL_RESUME_RECORD

/* The choices of a key: the text in the file, and the value of the field. The first name of a value
 * is the one that is written. */
static const nbl__run_choice quant_types[] = {{"nf4", 0}, {"fp4", 1}, {NULL, 0}};
static const nbl__run_choice adapters[] = {
    {"lora", NBL_ADAPTER_LORA}, {"qlora", NBL_ADAPTER_QLORA}, {NULL, 0}};
static const nbl__run_choice data_types[] = {
    {"chat_template", NBL_DATA_CHAT},    {"alpaca", NBL_DATA_ALPACA},
    {"completion", NBL_DATA_COMPLETION}, {"input_output", NBL_DATA_SEGMENTS},
    {"pretokenized", NBL_DATA_TOKENS},   {NULL, 0}};
static const nbl__run_choice data_files[] = {
    {"json", NBL_FILE_JSON}, {"csv", NBL_FILE_CSV}, {"text", NBL_FILE_TEXT}, {NULL, 0}};
static const nbl__run_choice ends_trained[] = {
    {"turn", NBL_EOS_TURN}, {"all", NBL_EOS_ALL}, {"last", NBL_EOS_LAST}, {"none", NBL_EOS_NONE}, {NULL, 0}};
/* Values of train_on_eot: 0 means as train_on_eos, so each is 1 + nbl__train_on_eos. */
static const nbl__run_choice turn_ends_trained[] = {{"turn", 1 + NBL_EOS_TURN},
                                                    {"all", 1 + NBL_EOS_ALL},
                                                    {"last", 1 + NBL_EOS_LAST},
                                                    {"none", 1 + NBL_EOS_NONE},
                                                    {NULL, 0}};
static const nbl__run_choice excesses[] = {
    {"drop", NBL_EXCESS_DROP}, {"truncate", NBL_EXCESS_TRUNCATE}, {"raise", NBL_EXCESS_RAISE}, {NULL, 0}};
static const nbl__run_choice optimizers[] = {
    {"adamw_torch", 0}, {"adamw_torch_fused", 0}, {"adamw_bnb_8bit", 1}, {"adamw_8bit", 1}, {NULL, 0}};
static const nbl__run_choice schedules[] = {{"linear", NBL_SCHEDULE_LINEAR},
                                            {"cosine", NBL_SCHEDULE_COSINE},
                                            {"constant", NBL_SCHEDULE_CONSTANT},
                                            {"constant_with_warmup", NBL_SCHEDULE_CONSTANT_WITH_WARMUP},
                                            {NULL, 0}};
/* Optimizers that differ from nibble's only in how they compute: paged, fused and so on. */
static const nbl__run_alias optimizer_names[] = {{"adamw_hf", "adamw_torch"},
                                                 {"adamw", "adamw_torch"},
                                                 {"adamw_apex_fused", "adamw_torch"},
                                                 {"adamw_torch_xla", "adamw_torch"},
                                                 {"adamw_torch_npu_fused", "adamw_torch"},
                                                 {"optimi_adamw", "adamw_torch"},
                                                 {"flash_adamw", "adamw_torch"},
                                                 {"paged_adamw", "adamw_torch"},
                                                 {"paged_adamw_32bit", "adamw_torch"},
                                                 {"paged_adamw_8bit", "adamw_8bit"},
                                                 {"adamw_torch_8bit", "adamw_8bit"},
                                                 {"ao_adamw_8bit", "adamw_8bit"},
                                                 {NULL, NULL}};
static const nbl__run_alias bf16_names[] = {{"full", "true"}, {NULL, NULL}};
static const nbl__run_alias recompute_names[] = {
    {"offload", "true"}, {"offload_disk", "true"}, {"unsloth", "true"}, {NULL, NULL}};
static const nbl__run_choice strategies[] = {
    {"no", NBL_STRATEGY_NO}, {"steps", NBL_STRATEGY_STEPS}, {"epoch", NBL_STRATEGY_EPOCH}, {NULL, 0}};
static const nbl__run_choice save_strategies[] = {{"no", NBL_STRATEGY_NO},
                                                  {"steps", NBL_STRATEGY_STEPS},
                                                  {"epoch", NBL_STRATEGY_EPOCH},
                                                  {"best", NBL_STRATEGY_BEST},
                                                  {NULL, 0}};
static const nbl__run_choice metrics[] = {{"eval_loss", 0}, {"loss", 0}, {NULL, 0}};
static const nbl__run_choice devices[] = {{"cpu", 0}, {"cuda", 0}, {"auto", 0}, {NULL, 0}};

/* The keys of an entry of datasets. */
static const nbl__run_key mapping_keys[] = {
    {"role", NBL_KEY_TEXT, IN(property_role), .fallback = "role", .help = "what a message calls its role"},
    {"content", NBL_KEY_TEXT, IN(property_content), .fallback = "content",
     .help = "what a message calls its text"},
};

static const nbl__run_key dataset_keys[] = {
    {"path", NBL_KEY_TEXT, IN(path), IGNORE, .help = "the file; needed"},
    {"type", NBL_KEY_CHOICE, IN(type), .choices = data_types, .fallback = "pretokenized",
     .help = "what a row is"},
    {"ds_type", NBL_KEY_CHOICE, IN(file), .choices = data_files,
     .help = "the file's format; else by its name"},
    {"field", NBL_KEY_TEXT, IN(field_text), .fallback = "text",
     .help = "of `completion`: where a row has its text"},
    {"field_messages", NBL_KEY_TEXT, IN(field_messages), .fallback = "messages",
     .help = "where a row has its conversation"},
    {"message_property_mappings", NBL_KEY_MAP, ROWS(mapping_keys),
     .help = "the names in a message: `role`, `content`"},
    {"message_field_role", NBL_KEY_TEXT, IN(property_role), .unwritten = true,
     .help = "the same as `message_property_mappings.role`"},
    {"message_field_content", NBL_KEY_TEXT, IN(property_content), .unwritten = true,
     .help = "the same as `message_property_mappings.content`"},
    {"roles_to_train", NBL_KEY_NAMES, IN(roles_to_train), .fallback = "[assistant]",
     .help = "whose words are trained"},
    {"train_on_eos", NBL_KEY_CHOICE, IN(train_on_eos), .choices = ends_trained, .fallback = "turn",
     .help = "which ends of turns are trained"},
    {"train_on_eot", NBL_KEY_CHOICE, IN(train_on_eot), .choices = turn_ends_trained,
     .help = "the same for `eot_tokens`; as `train_on_eos`"},
    {"drop_system_message", NBL_KEY_BOOLEAN, IN(drop_system_message), .fallback = "false",
     .help = "of `chat_template`: leave out a first message of the system"},
    {"data_files", NBL_KEY_NAMES, IN(data_files), .unwritten = true,
     .help = "files in the folder `path`, each an entry of its own"},
    {"split", NBL_KEY_TEXT, IN(split), .help = "a part of the file, e.g. `train[:10%]`"},
};

/* The keys of special_tokens. */
static const nbl__run_key token_keys[] = {
    {"pad_token", NBL_KEY_TEXT, AT(config.pad_token), .help = "padding"},
    {"eos_token", NBL_KEY_TEXT, AT(config.eos_token), .help = "the end of a text"},
    {"bos_token", NBL_KEY_TEXT, AT(config.bos_token), .help = "the beginning of a text"},
    {"unk_token", NBL_KEY_TEXT, AT(config.unk_token), .help = "what is in no vocabulary"},
};

const nbl__run_key nbl__run_keys[] = {
    /* the model */
    {"base_model", NBL_KEY_TEXT, AT(config.base_model), IGNORE, .help = "the model's folder; needed"},
    {"load_in_4bit", NBL_KEY_BOOLEAN, AT(config.load_in_4bit), .fallback = "false",
     .help = "keep the frozen weights in 4 bits; needs `adapter`"},
    {"load_in_8bit", NBL_KEY_BOOLEAN, AT(config.load_in_8bit), .fallback = "false",
     .help = "keep the frozen weights in 8 bits; needs `adapter`"},
    {"bnb_4bit_quant_type", NBL_KEY_CHOICE, AT(config.fp4), .choices = quant_types, .fallback = "nf4",
     .help = "the format of `load_in_4bit`"},
    {"bnb_4bit_use_double_quant", NBL_KEY_BOOLEAN, AT(config.double_quant), .fallback = "true",
     .help = "quantize the scales of `load_in_4bit`, too"},
    {"bf16", NBL_KEY_AUTO, AT(bf16), ALLOW, .aliases = bf16_names, .fallback = "false",
     .help =
         "compute in bf16; auto: if the processor has instructions for it and `fp16` is not set, or on cuda"},
    {"fp16", NBL_KEY_BOOLEAN, AT(fp16), ALLOW, .fallback = "false",
     .help = "compute in f16; neither: in f32"},
    {"tf32", NBL_KEY_AUTO, AT(tf32), ALLOW, .fallback = "false",
     .help = "accepted, without effect: f32 on cuda is never computed in tf32; auto: false"},
    /* what is trained */
    {"adapter", NBL_KEY_CHOICE, AT(adapter), .choices = adapters,
     .help = "what is trained; empty: every weight"},
    {"lora_r", NBL_KEY_INTEGER, AT(config.lora_r), .min = 1, .max = 65536, .range = "1 to 65536",
     .help = "the rank; 8, or as `lora_model_dir` has it"},
    {"lora_alpha", NBL_KEY_REAL, AT(config.lora_alpha), .min = ABOVE_0, .max = 1e9,
     .range = "above 0, at most 1e9",
     .help = "the scale is alpha / r, with rslora alpha / sqrt(r); 8, or as `lora_model_dir` has it"},
    {"lora_dropout", NBL_KEY_REAL, AT(config.lora_dropout), BELOW_1, .fallback = "0.0",
     .help = "the share of inputs that is dropped"},
    {"lora_target_modules", NBL_KEY_TARGETS, AT(config.target_modules),
     .other = offsetof(nbl__run_parse, config.target_regex),
     .help = "names of layers, or one regular expression over their full names, or all-linear"},
    {"lora_target_linear", NBL_KEY_BOOLEAN, AT(config.target_linear), .fallback = "false",
     .help = "every linear layer but the output head"},
    {"lora_target_parameters", NBL_KEY_NAMES, AT(config.target_parameters),
     .help = "names of parameters: stacks of experts (mlp.experts.gate_up_proj), routers (mlp.gate.weight)"},
    {"lora_modules_to_save", NBL_KEY_NAMES, AT(config.modules_to_save), .help = "layers trained in full"},
    {"peft_use_dora", NBL_KEY_BOOLEAN, AT(config.dora), .fallback = "false", .help = "DoRA: with magnitudes"},
    {"peft_use_rslora", NBL_KEY_BOOLEAN, AT(config.rslora), .fallback = "false",
     .help = "rank-stabilised scale"},
    {"lora_model_dir", NBL_KEY_TEXT, AT(config.lora_model_dir), IGNORE, .help = "start from this adapter"},
    /* data */
    {"datasets", NBL_KEY_DATASETS, AT(config.datasets), ROWS(dataset_keys), .help = "the files; needed"},
    {"train_on_inputs", NBL_KEY_BOOLEAN, AT(config.train_on_inputs), .fallback = "false",
     .help = "train prompts, too"},
    {"chat_template", NBL_KEY_TEXT, AT(config.chat_template),
     .help = "tokenizer_default (the model's), tokenizer_default_fallback_NAME (the model's, else NAME), the "
             "NAME "
             "of a built-in one, jinja (see `chat_template_jinja`), or a template's text"},
    {"chat_template_jinja", NBL_KEY_TEXT, AT(template_text), .help = "a template's text, or its file"},
    {"eot_tokens", NBL_KEY_NAMES, AT(config.eot_tokens),
     .help = "tokens that end a turn; else EOS and what ends generation"},
    {"sequence_len", NBL_KEY_INTEGER, AT(config.sequence_len), .min = 2, .max = 1 << 24,
     .range = "2 to 16777216", .fallback = "2048", .help = "max tokens of an example or a pack"},
    {"excess_length_strategy", NBL_KEY_CHOICE, AT(config.excess), .choices = excesses, .fallback = "drop",
     .help = "what happens to longer examples"},
    {"min_sample_len", NBL_KEY_INTEGER, AT(config.min_sample_len), NATURAL, .fallback = "0",
     .help = "drop examples of fewer tokens"},
    {"dataset_exact_deduplication", NBL_KEY_BOOLEAN, AT(config.deduplicate), .fallback = "false",
     .help = "drop examples whose tokens and labels are those of an earlier one"},
    {"sample_packing", NBL_KEY_BOOLEAN, AT(config.sample_packing), .fallback = "false",
     .help = "several examples in one sequence"},
    {"eval_sample_packing", NBL_KEY_BOOLEAN, AT(config.eval_sample_packing), IGNORE,
     .help = "the same in evaluations; as `sample_packing`"},
    {"pad_to_sequence_len", NBL_KEY_BOOLEAN, AT(config.pad_to_sequence_len), IGNORE, .fallback = "false",
     .help = "plan for full sequences; nothing is padded, so no result changes"},
    {"shuffle_merged_datasets", NBL_KEY_BOOLEAN, AT(config.shuffle), .fallback = "true",
     .help = "mix the examples of all files"},
    {"curriculum_sampling", NBL_KEY_BOOLEAN, AT(config.curriculum), .fallback = "false",
     .help = "every epoch in the files' order"},
    {"val_set_size", NBL_KEY_REAL, AT(config.val_set_size), NATURAL, .fallback = "0.0",
     .help = "examples held back for evaluation: a share below 1, or a count"},
    {"skip_bad_rows", NBL_KEY_BOOLEAN, AT(config.skip_bad_rows), .fallback = "false",
     .help = "ours: drop rows that cannot be read, and count them"},
    {"special_tokens", NBL_KEY_MAP, ROWS(token_keys),
     .help = "other tokens than the tokenizer's: `pad_token`, `eos_token`, `bos_token`, `unk_token`"},
    /* the loop */
    {"micro_batch_size", NBL_KEY_INTEGER, AT(config.micro_batch_size), BATCHES, .fallback = "1",
     .help = "sequences in one pass"},
    {"gradient_accumulation_steps", NBL_KEY_INTEGER, AT(config.gradient_accumulation_steps), BATCHES,
     .fallback = "1", .help = "passes in one step"},
    {"batch_size", NBL_KEY_INTEGER, AT(batch_size), BATCHES, .unwritten = true,
     .help = "sequences in one step: `micro_batch_size` times `gradient_accumulation_steps`, in place of the "
             "latter"},
    {"num_epochs", NBL_KEY_REAL, AT(config.num_epochs), RECORD, .min = ABOVE_0, .max = 1e9,
     .range = "above 0, at most 1e9", .fallback = "1.0", .help = "how often everything is trained"},
    {"max_steps", NBL_KEY_INTEGER, AT(config.max_steps), RECORD, POSITIVE,
     .help = "stop after this many steps, whatever `num_epochs` says"},
    {"optimizer", NBL_KEY_CHOICE, AT(config.adam8bit), .choices = optimizers, .aliases = optimizer_names,
     .fallback = "adamw_torch", .help = "AdamW with moments in f32 or in 8 bits"},
    {"learning_rate", NBL_KEY_REAL, AT(config.learning_rate), ALLOW, .min = ABOVE_0, .max = 1e9,
     .range = "above 0, at most 1e9", .help = "the largest learning rate of the schedule; needed"},
    {"lr_scheduler", NBL_KEY_CHOICE, AT(config.schedule), ALLOW, .choices = schedules, .fallback = "cosine",
     .help = "how the learning rate goes on"},
    {"warmup_steps", NBL_KEY_INTEGER, AT(config.warmup_steps), ALLOW, .min = 0, .max = MANY,
     .range = "0 to 1099511627776; a share is `warmup_ratio`", .fallback = "0",
     .help = "steps in which the learning rate rises from 0"},
    {"warmup_ratio", NBL_KEY_REAL, AT(config.warmup_ratio), ALLOW, .min = 0, .max = 1, .range = "0 to 1",
     .fallback = "0.0", .help = "the same as a share of all steps"},
    {"lr_quadratic_warmup", NBL_KEY_BOOLEAN, AT(config.quadratic_warmup), ALLOW, .fallback = "false",
     .help = "of `cosine`: the square of the share in the warm-up"},
    {"cosine_min_lr_ratio", NBL_KEY_REAL, AT(config.min_lr_ratio), ALLOW, .min = 0, .max = 1,
     .range = "0 to 1", .fallback = "0.0",
     .help = "of `cosine`: where it ends, as a share of `learning_rate`"},
    {"cosine_constant_lr_ratio", NBL_KEY_REAL, AT(config.constant_lr_ratio), ALLOW, .min = 0, .max = 1,
     .range = "0 to 1", .fallback = "0.0",
     .help = "of `cosine` with `cosine_min_lr_ratio`: it ends at this share of all steps and stays there; 0: "
             "at the "
             "last step"},
    {"weight_decay", NBL_KEY_REAL, AT(config.weight_decay), ALLOW, .min = 0, .max = 1e9, .range = "0 to 1e9",
     .fallback = "0.0", .help = "of AdamW"},
    {"adam_beta1", NBL_KEY_REAL, AT(config.beta1), ALLOW, BELOW_1, .fallback = "0.9", .help = "of AdamW"},
    {"adam_beta2", NBL_KEY_REAL, AT(config.beta2), ALLOW, BELOW_1, .fallback = "0.999", .help = "of AdamW"},
    {"adam_epsilon", NBL_KEY_REAL, AT(config.epsilon), ALLOW, .min = ABOVE_0, .max = 1,
     .range = "above 0, at most 1", .fallback = "1e-8", .help = "of AdamW"},
    {"max_grad_norm", NBL_KEY_REAL, AT(config.max_grad_norm), ALLOW, .min = 0, .max = 1e30,
     .range = "0 to 1e30", .fallback = "1.0", .help = "longer gradients are scaled to this; 0: never"},
    {"gradient_checkpointing", NBL_KEY_BOOLEAN, AT(config.gradient_checkpointing), IGNORE,
     .aliases = recompute_names, .fallback = "false",
     .help = "recompute activations in the backward pass instead of keeping them"},
    {"logging_steps", NBL_KEY_INTEGER, AT(config.logging_steps), IGNORE, POSITIVE, .fallback = "1",
     .help = "a line of metrics every so many steps"},
    {"eval_strategy", NBL_KEY_CHOICE, AT(config.eval_strategy), IGNORE, .choices = strategies,
     .help = "when to evaluate; not given: as `eval_steps` or `evals_per_epoch` say"},
    {"eval_steps", NBL_KEY_INTEGER, AT(config.eval_steps), IGNORE, NATURAL, .fallback = "0",
     .help = "evaluate every so many steps; 0: after every epoch"},
    {"evals_per_epoch", NBL_KEY_INTEGER, AT(config.evals_per_epoch), IGNORE, NATURAL, .fallback = "0",
     .help = "the same by epochs; 0: not given"},
    {"save_strategy", NBL_KEY_CHOICE, AT(config.save_strategy), IGNORE, .choices = save_strategies,
     .help = "when to save a checkpoint; not given: as `save_steps` or `saves_per_epoch` say; best: with "
             "every best evaluation; no: on Ctrl-C only"},
    {"save_steps", NBL_KEY_INTEGER, AT(config.save_steps), IGNORE, NATURAL, .fallback = "0",
     .help = "a checkpoint every so many steps; 0: after every epoch"},
    {"saves_per_epoch", NBL_KEY_INTEGER, AT(config.saves_per_epoch), IGNORE, NATURAL, .fallback = "0",
     .help = "the same by epochs; 0: not given"},
    {"save_total_limit", NBL_KEY_INTEGER, AT(config.save_total_limit), IGNORE, NATURAL, .fallback = "0",
     .help = "checkpoints that are kept; 0: all; the newest and the best stay in any case"},
    {"early_stopping_patience", NBL_KEY_INTEGER, AT(config.early_stopping_patience), IGNORE, NATURAL,
     .fallback = "0", .help = "stop after so many evaluations without a better one; 0: never"},
    {"load_best_model_at_end", NBL_KEY_BOOLEAN, AT(config.load_best), IGNORE, .fallback = "false",
     .help = "the result is the best evaluated step's, not the last one's; with `early_stopping_patience` "
             "always true"},
    {"metric_for_best_model", NBL_KEY_TEXT, AT(config.metric), IGNORE, .choices = metrics,
     .fallback = "eval_loss", .help = "the metric of the best evaluation; loss is eval_loss, too"},
    {"greater_is_better", NBL_KEY_BOOLEAN, AT(config.greater_is_better), .fallback = "false",
     .help = "the highest value of `metric_for_best_model` is the best, not the lowest"},
    {"loss_watchdog_threshold", NBL_KEY_REAL, AT(config.loss_watchdog_threshold), IGNORE, .min = 0,
     .max = 1e9, .range = "0 to 1e9", .fallback = "0.0",
     .help = "stop when the loss stays above this; 0: never"},
    {"loss_watchdog_patience", NBL_KEY_INTEGER, AT(config.loss_watchdog_patience), IGNORE, POSITIVE,
     .fallback = "3", .help = "for so many steps"},
    {"output_dir", NBL_KEY_TEXT, AT(config.output_dir), IGNORE, .fallback = "./model-out",
     .help = "where everything goes"},
    {"seed", NBL_KEY_INTEGER, AT(config.seed), .min = 0, .max = 0x1p63, .range = "0 to 9223372036854775807",
     .fallback = "42", .help = "everything random comes from it"},
    {"resume_from_checkpoint", NBL_KEY_TEXT, AT(config.resume_from_checkpoint), IGNORE,
     .help = "go on from this folder"},
    {"auto_resume_from_checkpoints", NBL_KEY_BOOLEAN, AT(config.auto_resume), IGNORE, .fallback = "false",
     .help = "go on from the newest checkpoint in `output_dir`, if there is one"},
    {"device", NBL_KEY_TEXT, AT(config.device), ALLOW, .choices = devices,
     .help = "ours: where it runs; auto, or not given: on the first CUDA device if it can be used"},
    {"threads", NBL_KEY_INTEGER, AT(config.threads), IGNORE, .min = 0, .max = 1024, .range = "0 to 1024",
     .fallback = "0", .help = "ours: 0: all cores, or as the command line says; no result depends on it"},
    {"memory", NBL_KEY_BYTES, AT(config.memory), IGNORE, .range = "bytes, or 4G, 512MiB; above 0, below 2^62",
     .help = "ours: recompute to keep within it, refuse to start when that is not enough; on a CUDA device, "
             "use the rest to recompute less and to keep weights dequantized; without it, recompute "
             "where a run would not fit what the machine has available"},
    {"report", NBL_KEY_BOOLEAN, AT(config.report), IGNORE, .fallback = "true",
     .help = "ours: write report.html"},
};

/* ---- names ---- */

const nbl__run_key *nbl__run_key_find(const nbl__run_key *keys, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(keys[i].name, name) == 0) return &keys[i];
    return NULL;
}

/* Names that other programs use, too far from nibble's for a count of edits. */
static const char *const synonyms[][2] = {
    {"lora_rank", "lora_r"},
    {"rank", "lora_r"},
    {"r", "lora_r"},
    {"alpha", "lora_alpha"},
    {"dropout", "lora_dropout"},
    {"target_modules", "lora_target_modules"},
    {"lora_targets", "lora_target_modules"},
    {"target_parameters", "lora_target_parameters"},
    {"modules_to_save", "lora_modules_to_save"},
    {"use_dora", "peft_use_dora"},
    {"use_rslora", "peft_use_rslora"},
    {"model", "base_model"},
    {"model_name", "base_model"},
    {"model_name_or_path", "base_model"},
    {"base_model_name_or_path", "base_model"},
    {"peft_type", "adapter"},
    {"quantization", "load_in_4bit"},
    {"lr", "learning_rate"},
    {"lr_scheduler_type", "lr_scheduler"},
    {"scheduler", "lr_scheduler"},
    {"optim", "optimizer"},
    {"epochs", "num_epochs"},
    {"num_train_epochs", "num_epochs"},
    {"steps", "max_steps"},
    {"per_device_train_batch_size", "micro_batch_size"},
    {"max_seq_length", "sequence_len"},
    {"max_seq_len", "sequence_len"},
    {"max_length", "sequence_len"},
    {"context_length", "sequence_len"},
    {"packing", "sample_packing"},
    {"dataset", "datasets"},
    {"data", "datasets"},
    {"train_file", "datasets"},
    {"shuffle", "shuffle_merged_datasets"},
    {"validation_split", "val_set_size"},
    {"random_seed", "seed"},
    {"clip_grad_norm", "max_grad_norm"},
    {"gradient_clipping", "max_grad_norm"},
    {"resume", "auto_resume_from_checkpoints"},
    {"field_text", "field"},
    {"text_field", "field"},
    {"file", "path"},
    {"conversation", "field_messages"},
    {"pad", "pad_token"},
    {"eos", "eos_token"},
    {"bos", "bos_token"},
    {"unk", "unk_token"},
    {"adam_eps", "adam_epsilon"},
    {"from", "role"},
    {"value", "content"},
};

static int lesser(int a, int b)
{
    return a < b ? a : b;
}

static char small(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

/* The Damerau-Levenshtein distance between a known name and a word: insertions, deletions,
 * changes and swaps of letters. Ignores case; the word counts up to 63 bytes. */
static int edit_distance(const char *name, const char *word)
{
    enum { MAX = 64 };
    int rows[3][MAX], n = (int)strlen(name), m = lesser((int)strlen(word), MAX - 1);
    for (int j = 0; j <= m; j++) rows[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *before = rows[(i + 1) % 3], *last = rows[(i + 2) % 3], *row = rows[i % 3];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            row[j] = lesser(lesser(last[j], row[j - 1]) + 1,
                            last[j - 1] + (name[i - 1] != small(word[j - 1])));
            if (i > 1 && j > 1 && name[i - 1] == small(word[j - 2]) && name[i - 2] == small(word[j - 1]))
                row[j] = lesser(row[j], before[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

/* A synonym counts only if its key is in this table: "r" means lora_r at the top level, and nothing
 * in an entry of datasets. */
const char *nbl__run_key_nearest(const nbl__run_key *keys, int count, const char *name)
{
    for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; i++)
        if (strcmp(synonyms[i][0], name) == 0 && nbl__run_key_find(keys, count, synonyms[i][1]))
            return synonyms[i][1];
    const char *nearest = NULL;
    size_t length = strlen(name);
    /* the smallest distance that is too far */
    int min = length < 64 ? ((int)length + 2) / 4 + 1 : 0;
    for (int i = 0; i < count; i++) {
        int distance = edit_distance(keys[i].name, name);
        if (distance < min) nearest = keys[i].name, min = distance;
    }
    return nearest;
}

/* ---- what is allowed ---- */

void nbl__run_key_allowed(const nbl__run_key *key, nbl__text *out)
{
    switch (key->type) {
    case NBL_KEY_BOOLEAN: nbl__text_printf(out, "true or false"); break;
    case NBL_KEY_AUTO: nbl__text_printf(out, "true, false or auto"); break;
    case NBL_KEY_INTEGER: nbl__text_printf(out, "a whole number, %s", key->range); break;
    case NBL_KEY_REAL: nbl__text_printf(out, "a number, %s", key->range); break;
    case NBL_KEY_BYTES: nbl__text_printf(out, "%s", key->range); break;
    case NBL_KEY_NAMES: nbl__text_printf(out, "a list of texts"); break;
    case NBL_KEY_TARGETS: nbl__text_printf(out, "a list of texts, or a text"); break;
    case NBL_KEY_MAP: nbl__text_printf(out, "a map of keys"); break;
    case NBL_KEY_DATASETS: nbl__text_printf(out, "a list of maps"); break;
    case NBL_KEY_TEXT:
    case NBL_KEY_CHOICE:
        if (key->choices == NULL) nbl__text_printf(out, "a text");
        for (const nbl__run_choice *c = key->choices; c && c->name; c++)
            nbl__text_printf(out, "%s%s", c == key->choices ? "" : ", ", c->name);
        break;
    }
}
