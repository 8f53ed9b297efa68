/* run_config.h - a training run as its YAML file describes it, with axolotl's key names.
 *
 * Reading is strict: an unknown key is refused with the nearest known one if one is near, a known key of axolotl's that
 * asks for what nibble does not do is refused with the reason, a key given twice, two keys that contradict each
 * other (both are named) and a value of the wrong type (with file and line) are refused.
 * What stands here is resolved: defaults filled in, `auto` decided, overrides applied. Text lives in the
 * arena that the configuration was read into. */
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
    NBL_DATA_COMPLETION, /* text, cut into pieces of sequence_len */
    NBL_DATA_SEGMENTS,   /* input_output: segments of text, each trained or not */
    NBL_DATA_TOKENS      /* pretokenized: input_ids and labels */
} nbl__data_type;

typedef enum nbl__data_file {
    NBL_FILE_BY_NAME, /* .jsonl .json .csv .txt */
    NBL_FILE_JSON,    /* lines of JSON, or one list: told by the first character */
    NBL_FILE_CSV,
    NBL_FILE_TEXT
} nbl__data_file;

typedef enum nbl__train_on_eos { NBL_EOS_TURN, NBL_EOS_ALL, NBL_EOS_LAST, NBL_EOS_NONE } nbl__train_on_eos;

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
    nbl__name_list data_files; /* while it is read: files below `path`, which become entries of their own */
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
    NBL_STRATEGY_GIVEN, /* by the steps or times per epoch that are given, else with every epoch */
    NBL_STRATEGY_NO,
    NBL_STRATEGY_STEPS,
    NBL_STRATEGY_EPOCH,
    NBL_STRATEGY_BEST /* with every best evaluation; of checkpoints only */
} nbl__strategy;

typedef struct nbl__run_config {
    const char *file; /* the YAML file; opens messages */

    /* the model */
    const char *base_model;
    bool load_in_4bit,
        load_in_8bit;  /* quantise on arrival; a base that is quantised already stays as it is */
    bool fp4;          /* bnb_4bit_quant_type: fp4 instead of nf4 */
    bool double_quant; /* bnb_4bit_use_double_quant; default true, as axolotl's */
    int compute;       /* nbl_dtype: bf16: true -> bf16, fp16: true -> f16, else f32 */
    bool tf32;         /* products of f32 may be rounded to tf32, where the device knows it */

    /* what is trained */
    bool full;  /* no adapter: every weight; nothing of the rest is set then */
    bool qlora; /* adapter: qlora; the base is in 4 bits, here or on disk already */
    bool dora, rslora;
    int64_t lora_r;    /* 8; 0: not given, as lora_model_dir has it */
    double lora_alpha; /* 8; 0: not given, as lora_model_dir has it */
    double lora_dropout;
    bool target_linear;            /* lora_target_linear, or lora_target_modules: all-linear */
    const char *target_regex;      /* lora_target_modules as one text; or NULL */
    nbl__name_list target_modules; /* as a list */
    nbl__name_list modules_to_save;
    const char *lora_model_dir; /* start from this adapter; or NULL */

    /* data */
    const nbl__dataset_config *datasets;
    int64_t dataset_count;
    bool train_on_inputs;
    const char
        *chat_template; /* NULL or "tokenizer_default": the model's; a name (named_templates.h); or a text */
    nbl__name_list eot_tokens; /* what ends a turn; none: EOS and what ends generation */
    int64_t sequence_len;      /* 2048 */
    bool sample_packing, eval_sample_packing, pad_to_sequence_len;
    bool shuffle;    /* shuffle_merged_datasets; default true */
    bool curriculum; /* curriculum_sampling: every epoch in the file's order */
    nbl__excess excess;
    int64_t min_sample_len; /* 0: any length */
    bool deduplicate;       /* dataset_exact_deduplication */
    double val_set_size;    /* below 1 a share, else a count */
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
    int64_t logging_steps;                    /* 1 */
    int64_t eval_steps, save_steps;           /* 0: at the end of every epoch (save), with the epoch (eval) */
    int64_t evals_per_epoch, saves_per_epoch; /* 0: not given */
    nbl__strategy eval_strategy, save_strategy;
    int64_t save_total_limit;        /* 0: all are kept */
    int64_t early_stopping_patience; /* 0: none; evaluations without improvement */
    bool load_best;                  /* the result is the best evaluated step's */
    const char *metric;              /* "eval_loss", or "loss", which is the same */
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

/* Only a folder can be merged with what was trained on it. */
static inline bool nbl__run_mergeable(const nbl__run_config *config)
{
    return !config->full && !nbl__ends_with(config->base_model, ".gguf");
}

/* Whether chat_template has a template's text, and no name. */
static inline bool nbl__is_template(const char *text)
{
    return strstr(text, "{{") || strstr(text, "{%");
}

/* "key=value" as of --set; the value is YAML. */
nbl_status nbl__run_config_read(nbl__arena *arena, const char *path, const char *const *overrides,
                                int64_t override_count, nbl__run_config *config);
/* The resolved configuration as YAML: reading it gives the same configuration again. */
nbl_status nbl__run_config_write(nbl__text *out, const nbl__run_config *config);

#endif
