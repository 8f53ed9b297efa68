/* run_resolve.c - checks the keys of a run against each other and completes the configuration.
 *
 * Reports missing keys and keys that contradict each other, decides `auto` for this machine, and
 * sets what follows for keys that were not given. Every given value is within its own range
 * already. */
#include <math.h>
#include <stdio.h>

#include "base/file/file.h"
#include "base/utf8.h"
#include "format/hf/config.h"
#include "run/run_reader.h"

typedef nbl__run_reader reader;

/* The node of a top-level key in the file or in --set; NULL: not given. */
static const nbl__yaml *given(const reader *r, const char *name)
{
    return r->given[nbl__run_key_find(nbl__run_keys, NBL_RUN_KEYS, name) - nbl__run_keys];
}

/* Fails: two keys contradict each other. The message has the line of the later one; --set counts
 * as last. */
static nbl_status contradiction(reader *r, const char *first, const char *second, const char *why)
{
    const nbl__yaml *a = given(r, first), *b = given(r, second);
    const nbl__yaml *later = b == NULL || (a && a->line > b->line && b->line > 0) || (a && a->line == 0) ? a
                                                                                                         : b;
    return nbl__yaml_fail(r->ctx, later, NBL_ERROR_ARGUMENT, "%s and %s contradict each other: %s", first,
                          second, why);
}

/* Fails: a key that has no default is missing. */
static nbl_status needed(reader *r, const char *name)
{
    return nbl__fail(r->ctx, NBL_ERROR_ARGUMENT, "%s: %s is needed, and is not given", r->root->where, name);
}

/* *quantized: config.json of the base model names a quantization. A missing or malformed
 * config.json is no error here: opening the model reports it. */
static nbl_status base_is_quantized(reader *r, bool *quantized)
{
    nbl__config config;
    const char *path = nbl__arena_printf(r->arena, "%s/config.json", r->parse.config.base_model);
    if (path == NULL) return NBL_ERROR_MEMORY;
    *quantized = false;
    if (!nbl__exists(path)) return NBL_OK;
    nbl_status status = nbl__config_read(r->arena, path, &config);
    if (status == NBL_OK) *quantized = nbl__config_method(&config) != NULL;
    return status == NBL_ERROR_MEMORY ? status : NBL_OK;
}

/* Decides device: auto: cuda if the context uses it or a usable device is there, else cpu. */
static void resolve_device(reader *r)
{
    nbl__run_config *c = &r->parse.config;
    if (c->device && strcmp(c->device, "auto") != 0) return;
    c->device = nbl__context_device(r->ctx) || nbl_cuda_usable(r->ctx) ? "cuda" : "cpu";
}

/* Decides the dtype of computation. bf16: auto is true on cuda and on CPUs with AVX512-BF16.
 * Checks the number of bits of the weights. */
static nbl_status resolve_precision(reader *r)
{
    nbl__run_parse *d = &r->parse;
    nbl__run_config *c = &d->config;
    if (d->bf16 == 1 && d->fp16) return contradiction(r, "bf16", "fp16", "one dtype computes");
    resolve_device(r);
    if (d->bf16 == 2)
        d->bf16 = !d->fp16 && (nbl__isa(r->ctx) >= NBL_ISA_AVX512BF16 || strcmp(c->device, "cuda") == 0);
    c->compute = d->bf16 ? NBL_DTYPE_BF16 : d->fp16 ? NBL_DTYPE_F16 : NBL_DTYPE_F32;
    c->tf32 = d->tf32 == 1;
    if (c->load_in_4bit && c->load_in_8bit)
        return contradiction(r, "load_in_4bit", "load_in_8bit", "weights are stored in one format");
    for (int bits = 4; bits <= 8; bits += 4) {
        const char *name = bits == 4 ? "load_in_4bit" : "load_in_8bit";
        if ((bits == 4 ? c->load_in_4bit : c->load_in_8bit) && d->adapter == NBL_ADAPTER_NONE)
            return nbl__yaml_fail(r->ctx, given(r, name), NBL_ERROR_ARGUMENT,
                                  "%s needs adapter (lora or qlora): quantized weights are not trained "
                                  "themselves",
                                  name);
    }
    return NBL_OK;
}

/* Decides between full training and an adapter. In full training keys of adapters are reset,
 * with a warning. With lora_model_dir rank, alpha and targets come from that adapter. */
static nbl_status resolve_adapter(reader *r)
{
    nbl__run_parse *d = &r->parse;
    nbl__run_config *c = &d->config;
    c->full = d->adapter == NBL_ADAPTER_NONE;
    c->qlora = d->adapter == NBL_ADAPTER_QLORA;
    if (c->qlora && c->load_in_8bit)
        return contradiction(r, "adapter", "load_in_8bit",
                             "adapter: qlora is load_in_4bit; adapter: lora does 8 bits");
    bool quantized = c->load_in_4bit;
    if (c->qlora && !quantized) NBL_TRY(base_is_quantized(r, &quantized));
    if (c->qlora && !quantized)
        return nbl__yaml_fail(r->ctx, given(r, "adapter"), NBL_ERROR_ARGUMENT,
                              "adapter: qlora needs load_in_4bit: true");
    if (c->target_regex && strcmp(c->target_regex, "all-linear") == 0)
        c->target_linear = true, c->target_regex = NULL;
    if (c->full) {
        if (c->lora_model_dir)
            return nbl__yaml_fail(r->ctx, given(r, "lora_model_dir"), NBL_ERROR_ARGUMENT,
                                  "lora_model_dir needs adapter (lora or qlora)");
        for (int i = 0; i < NBL_RUN_KEYS; i++) {
            const char *name = nbl__run_keys[i].name;
            if (r->given[i] && (strncmp(name, "lora_", 5) == 0 || strncmp(name, "peft_", 5) == 0))
                nbl__log(r->ctx, NBL_LOG_WARNING,
                         "%s: %s has no effect without adapter: every weight is trained", r->given[i]->where,
                         name);
        }
        c->dora = c->rslora = c->target_linear = false;
        c->lora_r = 0;
        c->lora_alpha = c->lora_dropout = 0;
        c->target_regex = NULL;
        c->target_modules = c->target_parameters = c->modules_to_save = (nbl__name_list){0};
        return NBL_OK;
    }
    if (c->lora_model_dir) return NBL_OK;
    if (!given(r, "lora_r")) c->lora_r = 8;
    if (!given(r, "lora_alpha")) c->lora_alpha = 8;
    if (c->target_regex && c->target_linear)
        return contradiction(r, "lora_target_modules", "lora_target_linear",
                             "a regular expression names all layers that are meant");
    if (!c->target_linear && c->target_regex == NULL && c->target_modules.count == 0 &&
        c->target_parameters.count == 0)
        return nbl__yaml_fail(r->ctx, given(r, "adapter"), NBL_ERROR_ARGUMENT,
                              "adapter needs lora_target_linear: true, or lora_target_modules");
    return NBL_OK;
}

/* *text: chat_template_jinja itself if it is a template, else the text of the file that it
 * names. */
static nbl_status load_template(reader *r, const nbl__yaml *at, const char **text)
{
    if (nbl__is_template(*text)) return NBL_OK;
    char *bytes;
    size_t size;
    if (!nbl__exists(*text))
        return nbl__yaml_fail(r->ctx, at, NBL_ERROR_NOT_FOUND,
                              "chat_template_jinja: \"%.400s\" is neither a template nor a file", *text);
    NBL_TRY(nbl__file_read(r->ctx, *text, NBL_YAML_MAX_BYTES, &bytes, &size));
    bool good = memchr(bytes, 0, size) == NULL && nbl__is_template(bytes);
    for (const char *s = bytes, *end = bytes + size; good && s < end;) {
        int n = nbl__utf8_length(s, end);
        good = n > 0;
        s += n;
    }
    nbl_status status = NBL_OK;
    if (!good)
        status = nbl__yaml_fail(r->ctx, at, NBL_ERROR_FORMAT,
                                "chat_template_jinja: %.400s is no template in UTF-8", *text);
    else if ((*text = nbl__arena_strdup(r->arena, bytes)) == NULL) status = NBL_ERROR_MEMORY;
    nbl__free(r->ctx, bytes, size + 1);
    return status;
}

/* chat_template_jinja and chat_template: jinja belong together. The template itself becomes
 * chat_template. */
static nbl_status resolve_template(reader *r)
{
    nbl__run_config *c = &r->parse.config;
    const nbl__yaml *kind = given(r, "chat_template"), *own = given(r, "chat_template_jinja");
    bool jinja = kind && strcmp(c->chat_template, "jinja") == 0;
    if (own) {
        if (kind && !jinja)
            return contradiction(r, "chat_template", "chat_template_jinja",
                                 "a template of one's own goes with chat_template: jinja");
        NBL_TRY(load_template(r, own, &r->parse.template_text));
        c->chat_template = r->parse.template_text;
        return NBL_OK;
    }
    if (jinja)
        return nbl__yaml_fail(r->ctx, kind, NBL_ERROR_ARGUMENT,
                              "chat_template: jinja needs chat_template_jinja");
    return NBL_OK;
}

/* Replaces an entry with data_files by one entry per file. A path "json", "csv" or "text" is a
 * loader of Hugging Face datasets, not a folder. */
static nbl_status resolve_files(reader *r)
{
    nbl__run_config *c = &r->parse.config;
    int64_t count = 0;
    for (int64_t i = 0; i < c->dataset_count; i++) count += nbl__max_i64(1, c->datasets[i].data_files.count);
    nbl__dataset_config *sets = nbl__arena_alloc(r->arena, (size_t)count * sizeof *sets), *to = sets;
    if (sets == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < c->dataset_count; i++) {
        const nbl__dataset_config *set = &c->datasets[i];
        const nbl__name_list *files = &set->data_files;
        bool loader = strcmp(set->path, "json") == 0 || strcmp(set->path, "csv") == 0 ||
                      strcmp(set->path, "text") == 0;
        if (files->count > 1 && set->split && strchr(set->split, '['))
            return nbl__yaml_fail(r->ctx, given(r, "datasets"), NBL_ERROR_ARGUMENT,
                                  "datasets.%" PRId64
                                  ".split: a part of several data_files is not in this version; "
                                  "give each file as an entry with its own split",
                                  i);
        for (int64_t f = 0; f < nbl__max_i64(1, files->count); f++, to++) {
            *to = *set;
            to->data_files = (nbl__name_list){0};
            if (files->count == 0) continue;
            bool whole = loader || files->items[f][0] == '/';
            to->path = whole ? files->items[f]
                             : nbl__arena_printf(r->arena, "%s/%s", set->path, files->items[f]);
            if (to->path == NULL) return NBL_ERROR_MEMORY;
        }
    }
    c->datasets = sets;
    c->dataset_count = count;
    return NBL_OK;
}

/* batch_size as in axolotl: sequences per optimizer step = micro_batch_size ·
 * gradient_accumulation_steps. */
static nbl_status resolve_batch(reader *r)
{
    nbl__run_config *c = &r->parse.config;
    int64_t all = r->parse.batch_size, passes = c->gradient_accumulation_steps;
    if (all == 0) return NBL_OK;
    if (given(r, "gradient_accumulation_steps") && all != c->micro_batch_size * passes)
        return contradiction(r, "batch_size", "gradient_accumulation_steps",
                             "batch_size is micro_batch_size times gradient_accumulation_steps; give one");
    if (all % c->micro_batch_size != 0)
        return contradiction(r, "batch_size", "micro_batch_size", "a step is a whole number of passes");
    c->gradient_accumulation_steps = all / c->micro_batch_size;
    return NBL_OK;
}

/* Checks eval_strategy or save_strategy (`name`) against *_steps (value `every`) and *_per_epoch
 * (value `times`). */
static nbl_status resolve_strategy(reader *r, nbl__strategy strategy, const char *name, const char *steps,
                                   int64_t every, const char *per_epoch, int64_t times)
{
    if (strategy == NBL_STRATEGY_GIVEN) return NBL_OK;
    if (strategy == NBL_STRATEGY_STEPS) {
        if (every > 0 || times > 0) return NBL_OK;
        return nbl__yaml_fail(r->ctx, given(r, name), NBL_ERROR_ARGUMENT, "%s: steps needs %s or %s", name,
                              steps, per_epoch);
    }
    if (every == 0 && times == 0) return NBL_OK;
    return contradiction(r, name, every > 0 ? steps : per_epoch,
                         strategy == NBL_STRATEGY_NO     ? "no means never"
                         : strategy == NBL_STRATEGY_BEST ? "best means with every best evaluation"
                                                         : "epoch means once per epoch");
}

/* Early stopping, load_best_model_at_end and save_strategy: best need evaluations. Early
 * stopping implies load_best_model_at_end, as in axolotl. */
static nbl_status resolve_best(reader *r)
{
    nbl__run_config *c = &r->parse.config;
    bool stops = c->early_stopping_patience > 0, saves = c->save_strategy == NBL_STRATEGY_BEST;
    const char *key = stops          ? "early_stopping_patience"
                      : c->load_best ? "load_best_model_at_end"
                      : saves        ? "save_strategy"
                                     : NULL;
    if (key == NULL) {
        const char *idle = c->greater_is_better                  ? "greater_is_better"
                           : strcmp(c->metric, "eval_loss") != 0 ? "metric_for_best_model"
                                                                 : NULL;
        if (idle)
            nbl__log(r->ctx, NBL_LOG_WARNING,
                     "%s: %s has no effect without load_best_model_at_end or early_stopping_patience",
                     r->root->where, idle);
        return NBL_OK;
    }
    if (c->eval_strategy == NBL_STRATEGY_NO)
        return contradiction(r, "eval_strategy", key, "without evaluations no step is the best");
    if (c->val_set_size == 0)
        return nbl__yaml_fail(
            r->ctx, given(r, key), NBL_ERROR_ARGUMENT,
            "%s%s needs val_set_size: without evaluations no step is the best; set it, or take the key out",
            key, strcmp(key, "save_strategy") == 0 ? ": best" : "");
    if (stops && !c->load_best && given(r, "load_best_model_at_end"))
        nbl__log(
            r->ctx, NBL_LOG_WARNING,
            "%s: load_best_model_at_end: false has no effect beside early_stopping_patience, as in axolotl; "
            "the last step's model is in its checkpoint",
            r->root->where);
    if (stops) c->load_best = true;
    return NBL_OK;
}

/* Checks the keys that only the cosine schedule uses. */
static nbl_status resolve_schedule(reader *r)
{
    static const char *const names[] = {"lr_quadratic_warmup", "cosine_min_lr_ratio",
                                        "cosine_constant_lr_ratio"};
    const nbl__run_config *c = &r->parse.config;
    const bool set[] = {c->quadratic_warmup, c->min_lr_ratio > 0, c->constant_lr_ratio > 0};
    if (set[0] && set[1])
        return contradiction(r, names[0], names[1], "axolotl reads one of them, too: give one");
    for (int i = 0; i < 3; i++) {
        bool idle = c->schedule != NBL_SCHEDULE_COSINE || (i == 2 && !set[1]);
        if (set[i] && idle)
            nbl__log(r->ctx, NBL_LOG_WARNING, "%s: %s has no effect without %s", r->root->where, names[i],
                     i == 2 && c->schedule == NBL_SCHEDULE_COSINE ? names[1] : "lr_scheduler: cosine");
    }
    return NBL_OK;
}

/* Checks the keys of the training loop. */
static nbl_status resolve_loop(reader *r)
{
    nbl__run_config *c = &r->parse.config;
    NBL_TRY(resolve_batch(r));
    NBL_TRY(resolve_schedule(r));
    NBL_TRY(resolve_strategy(r, c->eval_strategy, "eval_strategy", "eval_steps", c->eval_steps,
                             "evals_per_epoch", c->evals_per_epoch));
    NBL_TRY(resolve_strategy(r, c->save_strategy, "save_strategy", "save_steps", c->save_steps,
                             "saves_per_epoch", c->saves_per_epoch));
    if (c->min_sample_len > c->sequence_len)
        return contradiction(r, "min_sample_len", "sequence_len", "no example is that long");
    NBL_TRY(resolve_best(r));
    if (!given(r, "eval_sample_packing")) c->eval_sample_packing = c->sample_packing;
    if (c->val_set_size >= 1 && c->val_set_size != floor(c->val_set_size))
        return nbl__yaml_fail(r->ctx, given(r, "val_set_size"), NBL_ERROR_ARGUMENT,
                              "val_set_size: a share is below 1, a count is a whole number");
    if (c->warmup_steps > 0 && c->warmup_ratio > 0)
        return contradiction(r, "warmup_ratio", "warmup_steps", "give one");
    if (c->warmup_ratio > 0) c->warmup_steps = -1;
    if (c->eval_steps > 0 && c->evals_per_epoch > 0)
        return contradiction(r, "eval_steps", "evals_per_epoch", "give one");
    if (c->save_steps > 0 && c->saves_per_epoch > 0)
        return contradiction(r, "save_steps", "saves_per_epoch", "give one");
    if (c->val_set_size > 0) return NBL_OK;
    if (c->eval_steps > 0 || c->evals_per_epoch > 0)
        nbl__log(r->ctx, NBL_LOG_WARNING, "%s: %s has no effect: val_set_size is 0", r->root->where,
                 c->eval_steps > 0 ? "eval_steps" : "evals_per_epoch");
    return NBL_OK;
}

nbl_status nbl__run_resolve(nbl__run_reader *r)
{
    const nbl__run_config *c = &r->parse.config;
    if (c->base_model == NULL) return needed(r, "base_model");
    if (c->dataset_count == 0) return needed(r, "datasets");
    if (!given(r, "learning_rate")) return needed(r, "learning_rate");
    NBL_TRY(resolve_precision(r));
    NBL_TRY(resolve_adapter(r));
    NBL_TRY(resolve_template(r));
    NBL_TRY(resolve_files(r));
    return resolve_loop(r);
}
