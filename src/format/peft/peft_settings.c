/* peft_settings.c - reads adapter_config.json, and prints it as PEFT 0.21 does.
 *
 * The table `rows` has every key of PEFT's LoraConfig with its rule: how it is read, and what is
 * printed. So reading and printing cannot disagree about the keys, and the output has all keys in
 * PEFT's order.
 *
 * A key that is not in the table is of another version of PEFT. It is accepted if its value is
 * null, false or empty, as the default of a new option is; otherwise it is an error that names it.
 *
 *     "use_dora": true           READ: read_dora sets settings->dora
 *     "layer_replication": null  DEFAULT: nothing but null, false or empty is supported
 *     "bias": "none"             NONE: only this text
 *     "auto_mapping": …          ANY: says nothing about the result
 *     "new_option": {}           not in the table: empty, so it has no effect
 *
 * Texts and lists point into the parsed JSON, which is in the caller's arena. */
#include <math.h>
#include <stdio.h>

#include "format/peft/peft.h"

typedef struct reader {
    nbl__arena *arena;
    const char *where;
    nbl__peft_settings *settings;
} reader;

typedef nbl_status read_fn(reader *r, const nbl__json *value);

static nbl_status wrong(reader *r, const nbl__json *value, const char *what)
{
    return nbl__fail(r->arena->ctx, NBL_ERROR_FORMAT, "%s: \"%s\" %s", r->where, value->key, what);
}

static bool is_null(const nbl__json *value)
{
    return value->type == NBL_JSON_NULL;
}

/* ---- values ---- */

/* A text or null (NULL). */
static nbl_status read_text(reader *r, const nbl__json *value, const char **text)
{
    if (is_null(value)) return *text = NULL, NBL_OK;
    if (value->type != NBL_JSON_STRING) return wrong(r, value, "is not text");
    *text = value->string;
    return NBL_OK;
}

static nbl_status read_bool(reader *r, const nbl__json *value, bool *result)
{
    if (value->type != NBL_JSON_TRUE && value->type != NBL_JSON_FALSE)
        return wrong(r, value, "is not true or false");
    *result = value->type == NBL_JSON_TRUE;
    return NBL_OK;
}

/* A list of names or null (an empty list). An empty name would match every path. */
static nbl_status read_list(reader *r, const nbl__json *value, nbl__peft_list *list)
{
    *list = (nbl__peft_list){0};
    if (is_null(value)) return NBL_OK;
    if (value->type != NBL_JSON_ARRAY) return wrong(r, value, "is not a list of names");
    const char **names = nbl__arena_alloc(r->arena, (size_t)value->count * sizeof *names);
    if (names == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < value->count; i++) {
        if (value->items[i].type != NBL_JSON_STRING || value->items[i].string[0] == '\0')
            return wrong(r, value, "is not a list of names");
        names[i] = value->items[i].string;
    }
    *list = (nbl__peft_list){names, value->count};
    return NBL_OK;
}

/* An object of numbers by pattern. The order of the keys is kept: the first match counts. */
static nbl_status read_patterns(reader *r, const nbl__json *value, const nbl__peft_pattern **patterns,
                                int64_t *count)
{
    if (is_null(value)) return NBL_OK;
    if (value->type != NBL_JSON_OBJECT) return wrong(r, value, "is not an object of numbers");
    nbl__peft_pattern *list = nbl__arena_alloc(r->arena, (size_t)value->count * sizeof *list);
    if (list == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < value->count; i++) {
        list[i].key = value->items[i].key;
        if (!nbl__json_number(&value->items[i], &list[i].value) || !isfinite(list[i].value))
            return wrong(r, value, "is not an object of numbers");
    }
    *patterns = list;
    *count = value->count;
    return NBL_OK;
}

/* ---- keys that are read: one function per row of the table ---- */

static nbl_status read_r(reader *r, const nbl__json *value)
{
    if (!nbl__json_natural(value, &r->settings->r) || r->settings->r < 1 || r->settings->r > INT32_MAX)
        return wrong(r, value, "is not a rank from 1 up");
    return NBL_OK;
}

static nbl_status read_alpha(reader *r, const nbl__json *value)
{
    if (!nbl__json_number(value, &r->settings->alpha) || !isfinite(r->settings->alpha))
        return wrong(r, value, "is not a finite number");
    return NBL_OK;
}

/* The probability of LoRA's dropout, in training. */
static nbl_status read_dropout(reader *r, const nbl__json *value)
{
    double p = 0;
    if (!nbl__json_number(value, &p) || !(p >= 0 && p <= 1))
        return wrong(r, value, "is not a number from 0 to 1");
    r->settings->dropout = p;
    return NBL_OK;
}

static nbl_status read_base_model(reader *r, const nbl__json *value)
{
    return read_text(r, value, &r->settings->base_model);
}

static nbl_status read_revision(reader *r, const nbl__json *value)
{
    return read_text(r, value, &r->settings->revision);
}

/* The task decides how the model is built. A text model for generation has CAUSAL_LM, or null. */
static nbl_status read_task(reader *r, const nbl__json *value)
{
    NBL_TRY(read_text(r, value, &r->settings->task_type));
    const char *task = r->settings->task_type;
    NBL_CHECK(r->arena->ctx, task == NULL || strcmp(task, "CAUSAL_LM") == 0, NBL_ERROR_UNSUPPORTED,
              "%s: \"task_type\" \"%s\" is not supported (CAUSAL_LM is)", r->where, task);
    return NBL_OK;
}

static nbl_status read_rslora(reader *r, const nbl__json *value)
{
    return read_bool(r, value, &r->settings->rslora);
}

static nbl_status read_dora(reader *r, const nbl__json *value)
{
    return read_bool(r, value, &r->settings->dora);
}

static nbl_status read_lora_bias(reader *r, const nbl__json *value)
{
    return read_bool(r, value, &r->settings->lora_bias);
}

/* A text is a regular expression, anything else a list of names. */
static nbl_status read_choice(reader *r, const nbl__json *value, nbl__peft_choice *choice)
{
    if (value->type != NBL_JSON_STRING) return read_list(r, value, &choice->list);
    choice->regex = value->string;
    return NBL_OK;
}

/* Compares without case, as PEFT does. */
static bool is_all_linear(const char *text)
{
    static const char wanted[] = "all-linear";
    for (size_t i = 0; i < sizeof wanted; i++) {
        char c = text[i] >= 'A' && text[i] <= 'Z' ? (char)(text[i] + 32) : text[i];
        if (c != wanted[i]) return false;
    }
    return true;
}

static nbl_status read_target(reader *r, const nbl__json *value)
{
    NBL_TRY(read_choice(r, value, &r->settings->target));
    const char *regex = r->settings->target.regex;
    if (regex && is_all_linear(regex)) {
        r->settings->all_linear = true;
        r->settings->target.regex = NULL;
    }
    return NBL_OK;
}

static nbl_status read_exclude(reader *r, const nbl__json *value)
{
    NBL_TRY(read_choice(r, value, &r->settings->exclude));
    const char *regex = r->settings->exclude.regex;
    if (regex && *regex == '\0') r->settings->exclude.regex = NULL; /* as null, in PEFT */
    return NBL_OK;
}

/* One layer or a list of layers. An empty list counts as null: all layers. */
static nbl_status read_layers(reader *r, const nbl__json *value)
{
    const nbl__json *items = value->type == NBL_JSON_ARRAY ? value->items : value;
    int64_t count = value->type == NBL_JSON_ARRAY ? value->count : 1;
    if (is_null(value) || count == 0) return NBL_OK;
    int64_t *layers = nbl__arena_alloc(r->arena, (size_t)count * sizeof *layers);
    if (layers == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < count; i++)
        if (!nbl__json_natural(&items[i], &layers[i])) return wrong(r, value, "is not a list of layers");
    r->settings->in_layers = true;
    r->settings->layers = layers;
    r->settings->layer_count = count;
    return NBL_OK;
}

/* One name or a list of names. */
static nbl_status read_layers_pattern(reader *r, const nbl__json *value)
{
    if (value->type != NBL_JSON_STRING) return read_list(r, value, &r->settings->layers_pattern);
    if (value->string[0] == '\0') return NBL_OK;
    const char **one = nbl__arena_alloc(r->arena, sizeof *one);
    if (one == NULL) return NBL_ERROR_MEMORY;
    *one = value->string;
    r->settings->layers_pattern = (nbl__peft_list){one, 1};
    return NBL_OK;
}

static nbl_status read_rank_pattern(reader *r, const nbl__json *value)
{
    nbl__peft_settings *s = r->settings;
    NBL_TRY(read_patterns(r, value, &s->rank_pattern, &s->rank_pattern_count));
    for (int64_t i = 0; i < s->rank_pattern_count; i++) {
        double rank = s->rank_pattern[i].value;
        if (!(rank >= 1 && rank <= INT32_MAX && rank == floor(rank)))
            return wrong(r, value, "has a rank that is none");
    }
    return NBL_OK;
}

static nbl_status read_alpha_pattern(reader *r, const nbl__json *value)
{
    return read_patterns(r, value, &r->settings->alpha_pattern, &r->settings->alpha_pattern_count);
}

static nbl_status read_parameters(reader *r, const nbl__json *value)
{
    return read_list(r, value, &r->settings->parameters);
}

static nbl_status read_modules_to_save(reader *r, const nbl__json *value)
{
    return read_list(r, value, &r->settings->modules_to_save);
}

/* The initialisation of a trained adapter does not matter, unless it changed the base weights
 * (PiSSA, OLoRA, LoftQ and others). */
static nbl_status read_init(reader *r, const nbl__json *value)
{
    static const char *const harmless[] = {"gaussian", "eva", "orthogonal"};
    if (value->type == NBL_JSON_TRUE || value->type == NBL_JSON_FALSE) return NBL_OK;
    if (value->type != NBL_JSON_STRING) return wrong(r, value, "is not text, true or false");
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (strcmp(value->string, harmless[i]) == 0) return NBL_OK;
    return nbl__fail(r->arena->ctx, NBL_ERROR_UNSUPPORTED,
                     "%s: \"%s\" is \"%s\": such an adapter belongs to changed base weights", r->where,
                     value->key, value->string);
}

/* ---- the table, sorted as PEFT writes it ---- */

typedef enum rule {
    READ,    /* read by `read` */
    DEFAULT, /* only null, false or empty is supported: PEFT's default */
    NONE,    /* only the text "none" is supported */
    ANY      /* ignored: does not change what the adapter computes */
} rule;

typedef void print_fn(nbl__text *out, const nbl__peft_settings *settings);

static print_fn print_alpha_pattern, print_base, print_exclude, print_layers_pattern, print_layers,
    print_alpha, print_lora_bias, print_dropout, print_save, print_r, print_rank_pattern, print_revision,
    print_target, print_parameters, print_task, print_dora, print_rslora;

/* When printing, the value comes from `print`; if that is NULL, from `fixed`. */
static const struct key_row {
    const char *key;
    rule rule;
    read_fn *read;
    print_fn *print;
    const char *fixed;
} rows[] = {
    {"alora_invocation_tokens", DEFAULT, NULL, NULL, "null"},
    {"alpha_pattern", READ, read_alpha_pattern, print_alpha_pattern, NULL},
    {"arrow_config", DEFAULT, NULL, NULL, "null"},
    {"auto_mapping", ANY, NULL, NULL, "null"},
    {"base_model_name_or_path", READ, read_base_model, print_base, NULL},
    {"bias", NONE, NULL, NULL, "\"none\""},
    {"corda_config", DEFAULT, NULL, NULL, "null"},
    {"ensure_weight_tying", DEFAULT, NULL, NULL, "false"},
    {"eva_config", ANY, NULL, NULL, "null"}, /* initialisation only */
    {"exclude_modules", READ, read_exclude, print_exclude, NULL},
    {"fan_in_fan_out", DEFAULT, NULL, NULL, "false"},
    {"inference_mode", ANY, NULL, NULL, "true"},
    {"init_lora_weights", READ, read_init, NULL, "true"},
    {"kasa_config", DEFAULT, NULL, NULL, "null"},
    {"layer_replication", DEFAULT, NULL, NULL, "null"},
    {"layers_pattern", READ, read_layers_pattern, print_layers_pattern, NULL},
    {"layers_to_transform", READ, read_layers, print_layers, NULL},
    {"loftq_config", DEFAULT, NULL, NULL, "{}"},
    {"lora_alpha", READ, read_alpha, print_alpha, NULL},
    {"lora_bias", READ, read_lora_bias, print_lora_bias, NULL},
    {"lora_dropout", READ, read_dropout, print_dropout, NULL},
    {"lora_ga_config", DEFAULT, NULL, NULL, "null"},
    {"megatron_config", DEFAULT, NULL, NULL, "null"},
    {"megatron_core", ANY, NULL, NULL, "\"megatron.core\""},
    {"modules_to_save", READ, read_modules_to_save, print_save, NULL},
    {"monteclora_config", DEFAULT, NULL, NULL, "null"},
    {"peft_type", ANY, NULL, NULL, "\"LORA\""}, /* checked by check_type */
    {"peft_version", ANY, NULL, NULL, "\"0.21.2\""},
    {"qalora_group_size", ANY, NULL, NULL, "16"}, /* used only with use_qalora */
    {"r", READ, read_r, print_r, NULL},
    {"rank_pattern", READ, read_rank_pattern, print_rank_pattern, NULL},
    {"revision", READ, read_revision, print_revision, NULL},
    {"target_modules", READ, read_target, print_target, NULL},
    {"target_parameters", READ, read_parameters, print_parameters, NULL},
    {"task_type", READ, read_task, print_task, NULL},
    {"trainable_token_indices", DEFAULT, NULL, NULL, "null"},
    {"use_bdlora", DEFAULT, NULL, NULL, "null"},
    {"use_dora", READ, read_dora, print_dora, NULL},
    {"use_qalora", DEFAULT, NULL, NULL, "false"},
    {"use_rslora", READ, read_rslora, print_rslora, NULL},
    {"velora_config", DEFAULT, NULL, NULL, "null"},
};
enum { ROWS = sizeof rows / sizeof *rows };

/* ---- reading ---- */

/* True for null, false and empty lists and objects. */
static bool is_unset(const nbl__json *value)
{
    bool holds = value->type == NBL_JSON_ARRAY || value->type == NBL_JSON_OBJECT;
    return is_null(value) || value->type == NBL_JSON_FALSE || (holds && value->count == 0);
}

/* Fails for an option that changes the result and is not supported. Shows its value. */
static nbl_status refuse(reader *r, const nbl__json *value)
{
    char shown[64] = "set";
    if (value->type == NBL_JSON_TRUE) (void)strcpy(shown, "true");
    if (value->type == NBL_JSON_STRING) (void)snprintf(shown, sizeof shown, "\"%.48s\"", value->string);
    return nbl__fail(r->arena->ctx, NBL_ERROR_UNSUPPORTED,
                     "%s: the option \"%s\" is %s, which is not supported", r->where, value->key, shown);
}

/* Reads one key of the file by the rule of its row. */
static nbl_status read_key(reader *r, const nbl__json *value)
{
    const struct key_row *row = NULL;
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].key, value->key) == 0) row = &rows[i];
    if (row && row->rule == READ) return row->read(r, value);
    if (row && row->rule == NONE && nbl__json_is(value, NBL_JSON_STRING) &&
        strcmp(value->string, "none") == 0)
        return NBL_OK;
    if (row && row->rule == ANY) return NBL_OK;
    if (row == NULL && strcmp(value->key, "runtime_config") == 0) return NBL_OK; /* PEFT drops it as well */
    return is_unset(value) && !(row && row->rule == NONE) ? NBL_OK : refuse(r, value);
}

/* Checks combinations of options, as PEFT does. */
static nbl_status check(reader *r, nbl__problems *problems)
{
    const nbl__peft_settings *s = r->settings;
    nbl_context *ctx = r->arena->ctx;
    bool listed = s->target.list.count > 0;
    const struct {
        bool wrong;
        const char *what;
    } rules[] = {
        {!s->all_linear && s->target.regex == NULL && !listed && s->parameters.count == 0,
         "\"target_modules\" names nothing"},
        {!listed && s->in_layers, "\"layers_to_transform\" goes with a list of target_modules only"},
        {s->layers_pattern.count && !s->in_layers, "\"layers_pattern\" goes with layers_to_transform only"},
        {s->dora && s->lora_bias, "\"lora_bias\" does not go with use_dora"},
        {s->parameters.count && s->dora, "\"use_dora\" does not go with target_parameters"},
        {s->parameters.count && s->lora_bias, "\"lora_bias\" does not go with target_parameters"},
        {s->parameters.count && s->dropout > 0, "\"lora_dropout\" does not go with target_parameters"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (!rules[i].wrong) continue;
        nbl_status status = nbl__fail(ctx, NBL_ERROR_FORMAT, "%s: %s", r->where, rules[i].what);
        NBL_TRY(nbl__problem_collect(problems, status));
    }
    return NBL_OK;
}

/* LoRA is the only method that is known here. Others have the same file name and other keys. */
static nbl_status check_type(reader *r)
{
    const char *type = r->settings->type;
    NBL_CHECK(r->arena->ctx, type, NBL_ERROR_FORMAT, "%s: no \"peft_type\"", r->where);
    NBL_CHECK(r->arena->ctx, strcmp(type, "LORA") == 0, NBL_ERROR_UNSUPPORTED,
              "%s: the \"peft_type\" \"%.64s\" is not supported (LORA is)", r->where, type);
    return NBL_OK;
}

nbl_status nbl__peft_settings_inspect(nbl__arena *arena, const char *where, const char *text, size_t size,
                                      nbl__problems *problems, nbl__peft_settings *settings)
{
    const nbl__json *root;
    *settings = (nbl__peft_settings){.r = 8, .alpha = 8}; /* PEFT's defaults */
    NBL_TRY(nbl__json_parse(arena, where, text, size, NBL_JSON_PYTHON, &root));
    reader r = {arena, where, settings};
    settings->type = nbl__json_text(root, "peft_type");
    NBL_TRY(nbl__problem_collect(problems, check_type(&r)));
    for (int64_t i = 0; i < root->count; i++)
        NBL_TRY(nbl__problem_collect(problems, read_key(&r, &root->items[i])));
    return check(&r, problems);
}

nbl_status nbl__peft_settings_read(nbl__arena *arena, const char *where, const char *text, size_t size,
                                   nbl__peft_settings *settings)
{
    return nbl__peft_settings_inspect(arena, where, text, size, NULL, settings);
}

/* ---- printing ---- */

/* A text, or null. */
static void print_text(nbl__text *out, const char *text)
{
    if (text) nbl__text_json_ascii(out, text);
    else nbl__text_printf(out, "null");
}

static void print_bool(nbl__text *out, bool value)
{
    nbl__text_printf(out, value ? "true" : "false");
}

/* Prints whole numbers without a fraction, as alpha usually is. */
static void print_number(nbl__text *out, double value)
{
    if (value == floor(value) && fabs(value) < 1e15) nbl__text_printf(out, "%" PRId64, (int64_t)value);
    else nbl__text_real(out, value);
}

/* Python's json.dumps with indent=2: an item per line. An empty list is null, as the settings do not
 * tell the two apart. */
static void print_list(nbl__text *out, const nbl__peft_list *list)
{
    if (list->count == 0) {
        nbl__text_printf(out, "null");
        return;
    }
    for (int64_t i = 0; i < list->count; i++) {
        nbl__text_printf(out, "%s\n    ", i ? "," : "[");
        nbl__text_json_ascii(out, list->names[i]);
    }
    nbl__text_printf(out, "\n  ]");
}

static void print_choice(nbl__text *out, const nbl__peft_choice *choice)
{
    if (choice->regex) nbl__text_json_ascii(out, choice->regex);
    else print_list(out, &choice->list);
}

static void print_patterns(nbl__text *out, const nbl__peft_pattern *patterns, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        nbl__text_printf(out, "%s\n    ", i ? "," : "{");
        nbl__text_json_ascii(out, patterns[i].key);
        nbl__text_printf(out, ": ");
        print_number(out, patterns[i].value);
    }
    nbl__text_printf(out, count ? "\n  }" : "{}");
}

static void print_alpha_pattern(nbl__text *out, const nbl__peft_settings *s)
{
    print_patterns(out, s->alpha_pattern, s->alpha_pattern_count);
}

static void print_rank_pattern(nbl__text *out, const nbl__peft_settings *s)
{
    print_patterns(out, s->rank_pattern, s->rank_pattern_count);
}

static void print_base(nbl__text *out, const nbl__peft_settings *s)
{
    print_text(out, s->base_model);
}

static void print_exclude(nbl__text *out, const nbl__peft_settings *s)
{
    print_choice(out, &s->exclude);
}

static void print_layers_pattern(nbl__text *out, const nbl__peft_settings *s)
{
    print_list(out, &s->layers_pattern);
}

static void print_layers(nbl__text *out, const nbl__peft_settings *s)
{
    for (int64_t i = 0; s->in_layers && i < s->layer_count; i++)
        nbl__text_printf(out, "%s\n    %" PRId64, i ? "," : "[", s->layers[i]);
    nbl__text_printf(out, s->in_layers && s->layer_count ? "\n  ]" : "null");
}

static void print_alpha(nbl__text *out, const nbl__peft_settings *s)
{
    print_number(out, s->alpha);
}

static void print_lora_bias(nbl__text *out, const nbl__peft_settings *s)
{
    print_bool(out, s->lora_bias);
}

static void print_dropout(nbl__text *out, const nbl__peft_settings *s)
{
    nbl__text_real(out, s->dropout);
}

static void print_save(nbl__text *out, const nbl__peft_settings *s)
{
    print_list(out, &s->modules_to_save);
}

static void print_r(nbl__text *out, const nbl__peft_settings *s)
{
    nbl__text_printf(out, "%" PRId64, s->r);
}

static void print_revision(nbl__text *out, const nbl__peft_settings *s)
{
    print_text(out, s->revision);
}

static void print_target(nbl__text *out, const nbl__peft_settings *s)
{
    if (s->all_linear) nbl__text_printf(out, "\"all-linear\"");
    /* null alone would mean the default of the model's type */
    else if (s->target.regex == NULL && s->target.list.count == 0) nbl__text_printf(out, "[]");
    else print_choice(out, &s->target);
}

static void print_parameters(nbl__text *out, const nbl__peft_settings *s)
{
    print_list(out, &s->parameters);
}

static void print_task(nbl__text *out, const nbl__peft_settings *s)
{
    print_text(out, s->task_type);
}

static void print_dora(nbl__text *out, const nbl__peft_settings *s)
{
    print_bool(out, s->dora);
}

static void print_rslora(nbl__text *out, const nbl__peft_settings *s)
{
    print_bool(out, s->rslora);
}

void nbl__peft_settings_print(nbl__text *out, const nbl__peft_settings *settings)
{
    for (int i = 0; i < ROWS; i++) {
        nbl__text_printf(out, "%s\n  \"%s\": ", i ? "," : "{", rows[i].key);
        if (rows[i].print) rows[i].print(out, settings);
        else nbl__text_printf(out, "%s", rows[i].fixed);
    }
    nbl__text_printf(out, "\n}");
}
