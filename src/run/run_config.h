/* run_config.h - a training run as its YAML file describes it, with axolotl's key names.
 *
 * Reading is strict. Errors are: an unknown key (the message names the nearest known one), a key of
 * axolotl that asks for something nibble does not do (with the reason), a key given twice, two keys
 * that contradict each other (both are named), and a value of the wrong type (with file and line).
 *
 * nbl__run_config is resolved: overrides are applied, defaults filled in, `auto` decided. Its texts
 * belong to the arena that it was read into. Comments give the default of a key and the meaning of
 * special values; docs/CONFIG.md describes every key. */
#ifndef NBL_RUN_CONFIG_H
#define NBL_RUN_CONFIG_H

#include "base/arena.h"
#include "base/json/json.h"

typedef struct nbl__name_list {
    const char *const *items;
    int64_t count;
} nbl__name_list;

typedef enum nbl__data_type {
    NBL_DATA_CHAT,       /* chat_template: messages through the model's template */
    NBL_DATA_ALPACA,     /* instruction, input, output */
    NBL_DATA_COMPLETION, /* text, cut into examples of sequence_len tokens */
    NBL_DATA_SEGMENTS,   /* input_output: segments of text, each trained or not */
    NBL_DATA_TOKENS      /* pretokenized: input_ids and labels */
} nbl__data_type;

typedef enum nbl__data_file {
    NBL_FILE_BY_NAME, /* by the name's end: .jsonl .ndjson .json .csv .txt */
    NBL_FILE_JSON,    /* a list if the first character is '[', else lines of JSON */
    NBL_FILE_CSV,
    NBL_FILE_TEXT
} nbl__data_file;

typedef enum nbl__train_on_eos { NBL_EOS_TURN, NBL_EOS_ALL, NBL_EOS_LAST, NBL_EOS_NONE } nbl__train_on_eos;

/* An entry of `datasets`. */
typedef struct nbl__dataset_config {
    const char *path;
    nbl__data_type type;
    nbl__data_file file;
    const char *field_messages;                   /* "messages" */
    const char *field_text;                       /* "text": of completion */
    const char *property_role, *property_content; /* names inside a message: "role", "content" */
    nbl__name_list roles_to_train;                /* {"assistant"} */
    nbl__train_on_eos train_on_eos;
    int train_on_eot; /* 0: as train_on_eos; else 1 + nbl__train_on_eos */
    bool drop_system_message;
    nbl__name_list data_files; /* used while reading: files below `path`; each becomes an entry */
    const char *split;         /* NULL, "train", "train[:100]", "train[10%:]" … */
} nbl__dataset_config;

typedef enum nbl__excess { NBL_EXCESS_DROP, NBL_EXCESS_TRUNCATE, NBL_EXCESS_RAISE } nbl__excess;
typedef enum nbl__schedule_kind {
    NBL_SCHEDULE_LINEAR,
    NBL_SCHEDULE_COSINE,
    NBL_SCHEDULE_CONSTANT,
    NBL_SCHEDULE_CONSTANT_WITH_WARMUP
} nbl__schedule_kind;

typedef enum nbl__strategy {
    NBL_STRATEGY_GIVEN, /* not given: by *_steps or *_per_epoch if set, else once per epoch */
    NBL_STRATEGY_NO,
    NBL_STRATEGY_STEPS,
    NBL_STRATEGY_EPOCH,
    NBL_STRATEGY_BEST /* save_strategy only: at every best evaluation */
} nbl__strategy;

typedef struct nbl__run_config {
    const char *file; /* path of the YAML file; messages begin with it */

    /* the model */
    const char *base_model;
    bool load_in_4bit,
        load_in_8bit;  /* quantize while reading; a base that is quantized already is used as it is */
    bool fp4;          /* bnb_4bit_quant_type: fp4 instead of nf4 */
    bool double_quant; /* bnb_4bit_use_double_quant; default true, as axolotl's */
    int compute;       /* nbl_dtype: bf16: true -> bf16, fp16: true -> f16, else f32 */
    bool tf32;         /* f32 matrix products may use tf32, if the device has it */

    /* what is trained */
    bool full;  /* no adapter: every weight is trained; the keys of adapters are unset */
    bool qlora; /* adapter: qlora; the base has 4 bits, by load_in_4bit or on disk */
    bool dora, rslora;
    int64_t lora_r;    /* 8; 0: as in lora_model_dir */
    double lora_alpha; /* 8; 0: as in lora_model_dir */
    double lora_dropout;
    bool target_linear;            /* lora_target_linear, or lora_target_modules: all-linear */
    const char *target_regex;      /* lora_target_modules as one regular expression; or NULL */
    nbl__name_list target_modules; /* as a list */
    nbl__name_list target_parameters;
    nbl__name_list modules_to_save;
    const char *lora_model_dir; /* start from this adapter; or NULL */

    /* data */
    const nbl__dataset_config *datasets;
    int64_t dataset_count;
    bool train_on_inputs;
    const char *
        /* NULL, "tokenizer_default": the model's; a name (named_templates.h); or the template */
        chat_template;
    nbl__name_list eot_tokens; /* tokens that end a turn; none: EOS and eos_token_id */
    int64_t sequence_len;      /* 2048 */
    bool sample_packing, eval_sample_packing, pad_to_sequence_len;
    bool shuffle;    /* shuffle_merged_datasets; default true */
    bool curriculum; /* curriculum_sampling: every epoch in the order of the files */
    nbl__excess excess;
    int64_t min_sample_len; /* 0: any length */
    bool deduplicate;       /* dataset_exact_deduplication */
    double val_set_size;    /* below 1: share of the examples; else their number */
    bool skip_bad_rows;
    const char *pad_token, *eos_token, *bos_token, *unk_token; /* special_tokens; or NULL */

    /* the loop */
    int64_t micro_batch_size, gradient_accumulation_steps; /* 1, 1 */
    double num_epochs;                                     /* 1 */
    int64_t max_steps;                                     /* 0: by epochs */
    bool adam8bit;
    double learning_rate, weight_decay, beta1, beta2, epsilon; /* -, 0, 0.9, 0.999, 1e-8 */
    double max_grad_norm;                                      /* 1; 0: no clipping */
    nbl__schedule_kind schedule;                               /* cosine, as axolotl's */
    int64_t warmup_steps;                                      /* -1: by warmup_ratio */
    double warmup_ratio;
    bool quadratic_warmup;                  /* lr_quadratic_warmup; of the cosine */
    double min_lr_ratio, constant_lr_ratio; /* cosine_*; 0: none */
    bool gradient_checkpointing;
    int64_t logging_steps; /* 1 */
    /* 0: at the end of every epoch, unless *_per_epoch is set */
    int64_t eval_steps, save_steps;
    int64_t evals_per_epoch, saves_per_epoch; /* 0: not given */
    nbl__strategy eval_strategy, save_strategy;
    int64_t save_total_limit;        /* 0: all are kept */
    int64_t early_stopping_patience; /* evaluations without improvement; 0: no early stopping */
    /* load_best_model_at_end: the result is the best evaluated step's */
    bool load_best;
    const char *metric; /* "eval_loss" or "loss": both mean the evaluation loss */
    bool greater_is_better;
    double loss_watchdog_threshold; /* 0: none */
    int64_t loss_watchdog_patience;
    const char *output_dir;
    uint64_t seed;                      /* 42 */
    const char *resume_from_checkpoint; /* a folder; or NULL */
    bool auto_resume;
    const char *device; /* "cpu" or "cuda": what `device: auto` found */
    int64_t threads;    /* 0: the context's */
    uint64_t memory;    /* bytes; 0: no limit */
    bool report;        /* true */
} nbl__run_config;

/* True if the result is an adapter that can be merged: its base is a folder, not a .gguf file. */
static inline bool nbl__run_mergeable(const nbl__run_config *config)
{
    return !config->full && !nbl__ends_with(config->base_model, ".gguf");
}

/* True if the value of chat_template is a template itself, not a name. */
static inline bool nbl__is_template(const char *text)
{
    return strstr(text, "{{") || strstr(text, "{%");
}

/* Reads and resolves the file `path`. overrides: texts "key=value" as of --set; the value is YAML.
 * Several wrong keys are reported in one message. */
nbl_status nbl__run_config_read(nbl__arena *arena, const char *path, const char *const *overrides,
                                int64_t override_count, nbl__run_config *config);
/* Appends the configuration as YAML. Reading that gives the same configuration again. */
nbl_status nbl__run_config_write(nbl__text *out, const nbl__run_config *config);

#endif
