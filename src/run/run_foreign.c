/* run_foreign.c - the tables of run_foreign.h. Names are those of axolotl's schemas and
 * integrations. A group holds the names that share a reason. So a file that asks for one thing with
 * ten keys gets one reason.
 *
 * Example: a file with `wandb_project: x` and `rl: dpo` gets a notice for the first ("metrics go to
 * files in `output_dir`") and an error for the second (PREFERENCES). `rl:` without a value, or `rl:
 * false`, is accepted: it asks for nothing.
 *
 * The order matters where names overlap: the first group that matches counts. So
 * "dataloader_drop_last" stands before "dataloader_*". */
#include "run/run_foreign.h"

/* Short names for the two most frequent kinds. */
#define NOTICE NBL_FOREIGN_NOTICE
#define REFUSED NBL_FOREIGN_REFUSED

/* Reasons that several scopes use. Equal texts are reported once. */
#define PREFERENCES                                                                                          \
    "preference and reinforcement training (DPO, KTO, ORPO, GRPO …) is not in this version; train on "     \
    "answers with `type: chat_template`"
#define REWARDS "reward and classification models are not in this version"
#define MULTIMODAL "only text is trained; images, audio and video are not in this version"
#define EXPERTS "experts are quantized by `load_in_4bit` and `load_in_8bit`; take the key out"
#define DENSE_EXPERTS "densemixer is not in this version: a token trains the experts that it goes to"
#define ONLY_ADAMW "AdamW is the only optimizer; see `optimizer`"
#define DISTILLATION "distillation is not in this version"
#define DIFFUSION "diffusion models are not in this version"
#define SPARSE "training of sparse and 1-bit weights is not in this version"
#define PARTS                                                                                                \
    "an adapter trains its own weights and `lora_modules_to_save`, a run without one every weight; take "    \
    "the "                                                                                                   \
    "key out"
#define PRETRAINING                                                                                          \
    "pretraining from streamed data or on new weights is not in this version; give files under `datasets` "  \
    "with `type: completion`"
#define PROMPTS                                                                                              \
    "prompts of one's own are not in this version; write the rows as `input_output` segments or as messages"

static const nbl__foreign_group top[] = {
    /* keys that change no result here */
    {NOTICE, "model_type cls_model_config is_*_derived_model type_of_model", "config.json says this"},
    {NOTICE, "tokenizer_type tokenizer_use_fast tokenizer_legacy tokenizer_save_jinja_files",
     "the tokenizer's files say this"},
    {NOTICE, "trust_remote_code", "no code of a model is ever run"},
    {NOTICE, "strict", "reading is always strict"},
    {NOTICE,
     "dataset_prepared_path skip_prepare_dataset is_preprocess preprocess_iterable dataset_processes "
     "dataset_num_proc dataset_keep_in_memory num_dataset_shards_to_save remove_unused_columns "
     "pretrain_multipack_* streaming streaming_multipack_buffer_size total_num_tokens "
     "total_supervised_tokens",
     "rows are read from the files with every run"},
    {NOTICE,
     "wandb_* use_wandb mlflow_* use_mlflow hf_mlflow_log_artifacts comet_* use_comet trackio_* use_trackio "
     "swanlab_* use_swanlab otel_* use_otel_metrics use_tensorboard include_tokens_per_second include_tkps "
     "profiler_steps profiler_steps_start",
     "metrics go to files in `output_dir`"},
    {NOTICE,
     "do_causal_lm_eval eval_causal_lm_metrics do_bench_eval bench_dataset bench_split eval_table_size "
     "eval_max_new_tokens generate_samples num_generation_samples generation_* gradio_*",
     "`nibble eval` measures, `train --samples` shows texts"},
    {NOTICE,
     "flash_attention flash_attn_cross_entropy flash_attn_fuse_mlp flash_attn_rms_norm flash_attn_d512 "
     "flash_optimum xformers_attention sdp_attention sdpa_varlen flex_attention flex_attn_compile_kwargs "
     "sage_attention eager_attention attn_implementation gemma4_hybrid_attn_impl large_head_attention",
     "there is one attention"},
    {NOTICE,
     "liger_* *_kernel *_kernels cut_cross_entropy chunked_cross_entropy chunked_cross_entropy_num_chunks "
     "tiled_mlp tiled_mlp_* torch_compile torch_compile_* deepcompile experts_implementation use_scattermoe "
     "use_sonicmoe dsv4_* fp32_norms fp32_norm_classes",
     "kernels are nibble's own"},
    {NBL_FOREIGN_PLUGINS, "plugins", "kernels are nibble's own"},
    {NOTICE,
     "gradient_checkpointing_kwargs selective_checkpointing activation_offloading layer_offloading "
     "low_cpu_mem_usage device_map max_memory gpu_memory_limit auto_find_batch_size lora_on_cpu "
     "experimental_skip_move_to_device gc_steps gc_collect_steps torch_empty_cache_steps "
     "embeddings_skip_upcast peft_autocast_adapter_dtype",
     "memory is planned; see `gradient_checkpointing` and `memory`"},
    {NOTICE,
     "deepspeed fsdp* ddp ddp_* local_rank world_size accelerator_config dp_shard_size dp_replicate_size "
     "context_parallel_size sequence_parallel_degree tensor_parallel_size expert_parallel_* heads_k_stride "
     "ring_attn_func use_ray ray_* resources_per_worker qlora_sharded_model_loading",
     "one process, one device"},
    {REFUSED, "dataloader_drop_last", "every batch is trained, also an incomplete last one"},
    {NOTICE,
     "dataloader_* sample_packing_group_size sample_packing_bin_size sample_packing_mp_start_method "
     "sample_packing_eff_est sample_packing_seq_len_multiplier multipack_real_batches batch_flattening "
     "pad_to_multiple_of",
     "batches are made without settings"},
    {NBL_FOREIGN_REFUSED, "group_by_length", "the order is the seed's or the files'; take the key out"},
    {NOTICE, "eval_batch_size", "evaluations use `micro_batch_size`"},
    {NOTICE, "save_only_model save_first_step dynamic_checkpoint",
     "checkpoints are whole, at `save_steps` and on Ctrl-C"},
    {NBL_FOREIGN_ALWAYS, "save_safetensors", "files are written as .safetensors only"},
    {NOTICE,
     "hub_model_id hub_strategy hub_revision hf_use_auth_token push_dataset_to_hub revision_of_model "
     "base_model_ignore_patterns",
     "nothing is loaded from a hub or sent to one"},
    {NOTICE, "merge_lora merge_method", "`nibble merge` does this"},
    {NOTICE, "resize_token_embeddings_to_32x mean_resizing_embeddings shrink_embeddings torchdistx_path",
     "the vocabulary keeps its size"},
    {NOTICE, "debug axolotl_config_path capabilities env_capabilities",
     "`nibble data` shows what is trained"},

    /* keys that would change the result */
    {REFUSED,
     "rl rl_beta trl vllm ebft dpo_* orpo_alpha simpo_gamma cpo_alpha rpo_alpha kto_* "
     "precompute_ref_log_probs max_prompt_len",
     PREFERENCES},
    {REFUSED, "reward_model process_reward_model center_rewards_coefficient num_labels", REWARDS},
    {REFUSED,
     "processor_type processor_kwargs image_size image_resize_algorithm role_boundaries freeze_mm_modules",
     MULTIMODAL},
    {REFUSED, "quantize_moe_experts llama4_linearized_experts", EXPERTS},
    {REFUSED, "diffusion diffusion_*", DIFFUSION},
    {REFUSED, "kd_*", DISTILLATION},
    {REFUSED, "relora relora_* jagged_restart_*",
     "ReLoRA and restarts of the schedule are not in this version; train one adapter, or go on from one with "
     "`lora_model_dir`"},
    {REFUSED, "lisa_*", "LISA is not in this version; use `adapter: lora`"},
    {REFUSED, "unfrozen_parameters spectrum_*", PARTS},
    {REFUSED, "lora_fan_in_fan_out",
     "no supported model stores its linear layers transposed; take the key out"},
    {REFUSED, "lora_rank_pattern lora_alpha_pattern",
     "every layer has the same `lora_r` and `lora_alpha`; take the key out"},
    {REFUSED, "peft_layers_to_transform peft_layers_pattern peft_layer_replication",
     "layers are chosen by name; give a regular expression to `lora_target_modules`"},
    {NBL_FOREIGN_ALWAYS, "peft_init_lora_weights",
     "adapters begin as PEFT's default; other beginnings (LoftQ, PiSSA …) are not in this version"},
    {REFUSED, "peft loftq_config",
     "adapters begin as PEFT's default; other beginnings (LoftQ, PiSSA …) are not in this version"},
    {REFUSED, "peft_trainable_token_indices peft_ensure_weight_tying fix_untrained_tokens",
     "single tokens cannot be trained alone; use `lora_modules_to_save: [embed_tokens, lm_head]`"},
    {REFUSED, "loraplus_* embedding_lr embedding_lr_scale lr_groups", "all weights have one `learning_rate`"},
    {NOTICE, "eta_min", "axolotl does not read it; see `cosine_min_lr_ratio`"},
    {REFUSED, "lr_scheduler_kwargs lr_div_factor",
     "a schedule has no settings but the warm-up and `cosine_min_lr_ratio`; see `lr_scheduler`"},
    {REFUSED, "optim_args optim_target_modules adam_epsilon2 adam_beta3 dion_* qgalore_*", ONLY_ADAMW},
    {REFUSED, "neftune_noise_alpha noisy_embedding_alpha use_eaft eaft_*",
     "the loss and its inputs have no variants in this version; take the key out"},
    {REFUSED, "qat quantization fp8 fp8_* nvfp4_*",
     "training for other number formats (QAT, FP8) is not in this version; `nibble quantize` quantizes what "
     "was trained"},
    {REFUSED, "llmcompressor use_onebitllms", SPARSE},
    {REFUSED, "gptq gptq_*", "GPTQ weights are not read; take the 16-bit model and set `load_in_4bit: true`"},
    {REFUSED, "model_quantization_config model_quantization_config_kwargs bnb_config_kwargs",
     "the base is quantized by `load_in_4bit`, `bnb_4bit_quant_type` and `bnb_4bit_use_double_quant`"},
    {REFUSED,
     "model_config overrides_of_model_config overrides_of_model_kwargs rope_scaling scaling_softmax "
     "scaling_softmax_factor scaling_softmax_bias s2_attention",
     "the model is as its config.json says; change it there"},
    {REFUSED, "use_pose pose_*", "PoSE is not in this version; set `sequence_len`"},
    {NBL_FOREIGN_BASE, "base_model_config tokenizer_config",
     "model, configuration and tokenizer are read from `base_model`; put the files into one folder"},
    {REFUSED, "tokenizer_use_mistral_common",
     "the tokenizer is the first of tokenizer.json and tekken.json; take the key out"},
    {REFUSED, "trainer_cls", "no code of others is run"},
    {REFUSED, "tokens added_tokens_overrides",
     "no token is added to a vocabulary; `special_tokens` chooses among those that it has"},
    {REFUSED, "default_system_message chat_template_kwargs",
     "a template has no settings; write them into `chat_template_jinja`"},
    {REFUSED, "pretraining_dataset pretraining_sample_concatenation reinit_weights", PRETRAINING},
    {REFUSED, "test_datasets", "evaluations use `val_set_size`; put the rows into `datasets`"},
    {REFUSED, "shuffle_before_merging_datasets dataset_shard_num dataset_shard_idx",
     "rows are mixed once; see `shuffle_merged_datasets`"},
    {REFUSED, "eval_sequence_len", "evaluations use `sequence_len`"},
    {REFUSED, "max_packed_sequence_len", "use `sample_packing: true` with `sequence_len`"},
    {REFUSED, "sample_packing_sequentially",
     "packs are filled by best fit; take the key out, or set `sample_packing: false`"},
    {REFUSED, "float16 half", "use `fp16: true`"},
    {REFUSED, "bfloat16", "use `bf16: true`"},
    {NOTICE, "torch_dtype", "`bf16` and `fp16` say this"},
    {REFUSED, "full_finetune", "without `adapter` every weight is trained; take the key out"},
    {REFUSED, "float32", "without `bf16` and `fp16` f32 computes; take the key out"},
    {REFUSED, "evaluation_strategy", "use `eval_strategy`"},
};

/* Keys of an entry of datasets. */
static const nbl__foreign_group dataset[] = {
    {NOTICE, "trust_remote_code", "no code of a dataset is ever run"},
    {NOTICE, "revision preprocess_shards", "nothing is loaded from a hub or sent to one"},
    {NOTICE, "name", "a dataset is the file at `path`"},
    {REFUSED, "shards shards_idx skip", "a part of a file is given as `split: train[:10%]`"},
    {REFUSED,
     "field_chosen field_rejected field_prompt field_completion field_label chosen_format "
     "rejected_format prompt_format completion_format",
     PREFERENCES},
    {REFUSED, "step_separator max_completion_length train_on_last_step_only", REWARDS},
    {REFUSED, "logprobs_field temperature", DISTILLATION},
    {REFUSED, "text_column", "use `type: completion` with `field`"},
    {REFUSED, "conversation field_human field_model",
     "use `type: chat_template`; `message_property_mappings` gives the names in a message"},
    {REFUSED,
     "system_prompt system_format field_system field_instruction field_input field_output format "
     "no_input_format input_format input_transform",
     PROMPTS},
    {NBL_FOREIGN_ROLES, "roles",
     "roles keep their names, and human and gpt are user and assistant; rename others in the file"},
    {REFUSED, "field_tools", "tools of a row stand under `tools`; rename the field in the file"},
    {REFUSED, "field_thinking template_thinking_key split_thinking",
     "a message is its role and its content; write the thinking into the content"},
    {REFUSED, "message_field_training message_field_training_detail",
     "what is trained is chosen by role (`roles_to_train`) or as `input_output` segments"},
};

static const nbl__foreign_group tokens[] = {
    {REFUSED, "additional_special_tokens",
     "no token is added to a vocabulary; `special_tokens` chooses among those that it has"},
};

/* Values of datasets[].type. */
static const nbl__foreign_group types[] = {
    {REFUSED, "sharegpt* chat_template.sharegpt",
     "use `type: chat_template` with `field_messages: conversations` and "
     "`message_property_mappings: {role: from, content: value}`"},
    {REFUSED,
     "chat_template.* chatml.* llama3.* zephyr.* user_defined.* passthrough.* orpo.* *.argilla *.ultra "
     "*.intel "
     "*.icr *.prompt_pairs ebft_* rwd.*",
     PREFERENCES},
    {REFUSED, "bradley_terry.* stepwise_supervised", REWARDS},
    {REFUSED, "pretrain", "use `type: completion`"},
    {REFUSED,
     "alpaca:* alpaca_* *:chat explainchoice:* concisechoice:* summarizetldr:* gpteacher* jeopardy "
     "oasst reflection creative_acr.* context_qa.* metharme orcamini llama2_chat user_defined",
     PROMPTS},
};

/* Values of chat_template. */
static const nbl__foreign_group templates[] = {
    {REFUSED,
     "aya cohere command_a command_a_rag command_a_tool_use deepseek_v3 exaone4 falcon_h1 gemma3n gemma4 "
     "gemma4_unified jamba llama3_2_vision llama4 llava metharme mistral_v7_tekken nemotron_h phi_4 pixtral "
     "qwen2_vl qwen3_5",
     "this template of axolotl's is not built in; use tokenizer_default, the model's own, or give one with "
     "`chat_template: jinja`"},
};

/* ---- names ---- */

/* The table of each scope. */
static const struct {
    const nbl__foreign_group *groups;
    int count;
} scopes[NBL_FOREIGN_SCOPES] = {
    [NBL_FOREIGN_TOP] = {top, sizeof top / sizeof *top},
    [NBL_FOREIGN_DATASET] = {dataset, sizeof dataset / sizeof *dataset},
    [NBL_FOREIGN_TOKENS] = {tokens, sizeof tokens / sizeof *tokens},
    [NBL_FOREIGN_TYPES] = {types, sizeof types / sizeof *types},
    [NBL_FOREIGN_TEMPLATES] = {templates, sizeof templates / sizeof *templates},
};

const nbl__foreign_group *nbl__foreign_groups(nbl__foreign_scope scope, int *count)
{
    *count = scopes[scope].count;
    return scopes[scope].groups;
}

/* True if a word of a group matches the name. A word has at most one star: head*tail. */
static bool word_matches(const char *word, size_t size, const char *name, size_t length)
{
    const char *star = memchr(word, '*', size);
    if (star == NULL) return size == length && memcmp(word, name, size) == 0;
    size_t head = (size_t)(star - word), tail = size - head - 1;
    return length >= head + tail && memcmp(word, name, head) == 0 &&
           memcmp(star + 1, name + length - tail, tail) == 0;
}

bool nbl__foreign_matches(const char *names, const char *name)
{
    size_t length = strlen(name);
    for (const char *word = names; *word;) {
        size_t size = strcspn(word, " ");
        if (word_matches(word, size, name, length)) return true;
        word += size + (word[size] == ' ');
    }
    return false;
}

const nbl__foreign_group *nbl__foreign_find(nbl__foreign_scope scope, const char *name)
{
    for (int i = 0; i < scopes[scope].count; i++)
        if (nbl__foreign_matches(scopes[scope].groups[i].names, name)) return &scopes[scope].groups[i];
    return NULL;
}

/* Plugins are named by module and class: "axolotl.integrations.kd.KDPlugin". */
const char *nbl__foreign_plugin(const char *name)
{
    static const char prefix[] = "axolotl.integrations.";
    static const struct {
        const char *names, *why;
    } plugins[] = {
        {"liger.* cut_cross_entropy.* kernels.* swanlab.* expert_parallel.* lm_eval.*", NULL},
        {"diffusion.*", DIFFUSION},
        {"llm_compressor.*", SPARSE},
        {"kd.*", DISTILLATION},
        {"spectrum.*", PARTS},
        {"grokfast.*", ONLY_ADAMW},
        {"densemixer.*", DENSE_EXPERTS},
        {"nemo_gym.*", PREFERENCES},
    };
    bool own = strncmp(name, prefix, sizeof prefix - 1) == 0;
    for (size_t i = 0; own && i < sizeof plugins / sizeof *plugins; i++)
        if (nbl__foreign_matches(plugins[i].names, name + sizeof prefix - 1)) return plugins[i].why;
    return "a plugin is code of another engine and is not run; take it out";
}
