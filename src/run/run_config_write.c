/* run_config_write.c - writes a configuration as YAML, from the table of keys (run_keys.c).
 *
 * All keys that have a value are written, in the order of the table. So reading the result gives
 * the same configuration even if defaults have changed since. PyYAML reads it too: its numbers
 * need a decimal point before an exponent. */
#include "run/run_config.h"

#include "base/utf8.h"
#include "run/run_keys.h"

/* Appends a text in double quotes. Escapes every character that a YAML reader might fold, refuse
 * or treat as a line end. */
static void write_text(nbl__text *out, const char *text)
{
    const char *end = text + strlen(text);
    nbl__text_add(out, "\"", 1);
    while (text < end) {
        const unsigned char *s = (const unsigned char *)text;
        int n = nbl__utf8_length(text, end);
        uint32_t c = n == 2   ? (uint32_t)(s[0] & 0x1f) << 6 | (s[1] & 0x3f)
                     : n == 3 ? (uint32_t)(s[0] & 0x0f) << 12 | (uint32_t)(s[1] & 0x3f) << 6 | (s[2] & 0x3f)
                              : *s;
        if (n == 0) n = 1;
        if (c == '"' || c == '\\') nbl__text_printf(out, "\\%c", (char)c);
        else if (c == '\n') nbl__text_add(out, "\\n", 2);
        else if (n < 4 &&
                 (c < 0x20 || (c >= 0x7f && c <= 0xa0) || (c >= 0x2000 && c <= 0x206f) || c >= 0xf900))
            nbl__text_printf(out, "\\u%04x", (unsigned)c);
        else nbl__text_add(out, text, (size_t)n);
        text += n;
    }
    nbl__text_add(out, "\"", 1);
}

/* Appends a number with a decimal point: 1.0e-05, not 1e-05. */
static void write_real(nbl__text *out, double value)
{
    nbl__text digits = {.ctx = out->ctx};
    nbl__text_real(&digits, value);
    if (digits.status != NBL_OK) {
        out->status = digits.status;
    } else {
        size_t mantissa = strcspn(digits.text, "e");
        bool point = memchr(digits.text, '.', mantissa) != NULL;
        nbl__text_printf(out, "%.*s%s%s", (int)mantissa, digits.text, point ? "" : ".0",
                         digits.text + mantissa);
    }
    nbl__text_free(&digits);
}

/* Appends a list of texts on one line. */
static void write_names(nbl__text *out, const nbl__name_list *names)
{
    nbl__text_add(out, "[", 1);
    for (int64_t i = 0; i < names->count; i++) {
        if (i > 0) nbl__text_add(out, ", ", 2);
        write_text(out, names->items[i]);
    }
    nbl__text_add(out, "]", 1);
}

/* The name of the first choice with this value; NULL: none. */
static const char *choice_of(const nbl__run_key *key, int value)
{
    for (const nbl__run_choice *c = key->choices; c->name; c++)
        if (c->value == value) return c->name;
    return NULL;
}

/* "Not given" has no flag of its own: 0 bytes, a NULL text, an empty list, a number outside the
 * range, a value that no choice has. */
bool nbl__run_key_holds(const nbl__run_key *key, const void *origin)
{
    const void *field = (const char *)origin + key->offset;
    if (key->unwritten) return false;
    switch (key->type) {
    /* the field may be int64_t or uint64_t, so it is copied */
    case NBL_KEY_INTEGER: {
        int64_t value;
        memcpy(&value, field, sizeof value);
        return (double)value >= key->min && (double)value <= key->max;
    }
    case NBL_KEY_REAL: return *(const double *)field >= key->min && *(const double *)field <= key->max;
    case NBL_KEY_BYTES: return *(const uint64_t *)field > 0;
    case NBL_KEY_TEXT: return *(const char *const *)field != NULL;
    case NBL_KEY_CHOICE: return key->size == sizeof(bool) || choice_of(key, *(const int *)field);
    case NBL_KEY_TARGETS:
        return ((const nbl__name_list *)field)->count > 0 ||
               *(const char *const *)((const char *)origin + key->other) != NULL;
    case NBL_KEY_NAMES: return ((const nbl__name_list *)field)->count > 0 || key->fallback;
    case NBL_KEY_MAP:
        for (int i = 0; i < key->inner_count; i++)
            if (nbl__run_key_holds(&key->inner[i], origin)) return true;
        return false;
    default: return true;
    }
}

static void write_rows(nbl__text *out, const nbl__run_key *keys, int count, const void *origin,
                       const char *first, const char *indent, const nbl__run_config *config);

void nbl__run_key_print(nbl__text *out, const nbl__run_key *key, const void *origin)
{
    const void *field = (const char *)origin + key->offset;
    const char *text = NULL;
    switch (key->type) {
    case NBL_KEY_BOOLEAN: nbl__text_printf(out, "%s", *(const bool *)field ? "true" : "false"); break;
    case NBL_KEY_AUTO: nbl__text_printf(out, "%s", *(const int *)field ? "true" : "false"); break;
    case NBL_KEY_INTEGER: nbl__text_printf(out, "%" PRId64, *(const int64_t *)field); break;
    case NBL_KEY_BYTES: nbl__text_printf(out, "%" PRIu64, *(const uint64_t *)field); break;
    case NBL_KEY_REAL: write_real(out, *(const double *)field); break;
    case NBL_KEY_CHOICE:
        nbl__text_printf(
            out, "%s",
            choice_of(key, key->size == sizeof(bool) ? *(const bool *)field : *(const int *)field));
        break;
    case NBL_KEY_TARGETS: text = *(const char *const *)((const char *)origin + key->other); break;
    case NBL_KEY_TEXT: text = *(const char *const *)field; break;
    default: break;
    }
    if (text) write_text(out, text);
    else if (key->type == NBL_KEY_NAMES || key->type == NBL_KEY_TARGETS) write_names(out, field);
}

/* Appends what follows "key:": a value on the same line, or nested keys on indented lines. */
static void write_value(nbl__text *out, const nbl__run_key *key, const void *origin, const char *indent,
                        const nbl__run_config *config)
{
    if (key->type == NBL_KEY_MAP) {
        const char *deeper = *indent ? "      " : "  ";
        nbl__text_add(out, "\n", 1);
        write_rows(out, key->inner, key->inner_count, origin, deeper, deeper, config);
    } else if (key->type == NBL_KEY_DATASETS) {
        nbl__text_add(out, "\n", 1);
        for (int64_t i = 0; i < config->dataset_count; i++)
            write_rows(out, key->inner, key->inner_count, &config->datasets[i], "  - ", "    ", config);
    } else {
        nbl__text_add(out, " ", 1);
        nbl__run_key_print(out, key, origin);
        nbl__text_add(out, "\n", 1);
    }
}

/* True if the name begins so. */
static bool begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

/* In full training the keys of adapters have been reset (run_resolve.c), and are not written. */
bool nbl__run_key_counts(const nbl__run_key *key, const nbl__run_config *config)
{
    return !config->full || !(begins(key->name, "lora_") || begins(key->name, "peft_"));
}

/* Appends all keys of a table. first: text before the first line ("  - " of a list); indent:
 * before the others. */
static void write_rows(nbl__text *out, const nbl__run_key *keys, int count, const void *origin,
                       const char *first, const char *indent, const nbl__run_config *config)
{
    for (const nbl__run_key *key = keys; key < keys + count; key++) {
        if (!nbl__run_key_counts(key, config)) continue;
        if (!nbl__run_key_holds(key, origin)) continue;
        nbl__text_printf(out, "%s%s:", first, key->name);
        write_value(out, key, origin, indent, config);
        first = indent;
    }
}

/* run_resolve.c turns `adapter`, bf16, fp16 and the template's text into other fields; this turns
 * them back. */
nbl__run_parse nbl__run_parse_of(const nbl__run_config *config)
{
    nbl__run_parse parse = {
        .config = *config,
        .adapter = config->full    ? NBL_ADAPTER_NONE
                   : config->qlora ? NBL_ADAPTER_QLORA
                                   : NBL_ADAPTER_LORA,
        .bf16 = config->compute == NBL_DTYPE_BF16,
        .fp16 = config->compute == NBL_DTYPE_F16,
        .tf32 = config->tf32,
    };
    const char *chat = config->chat_template;
    if (chat && nbl__is_template(chat)) { /* a template itself, not a name */
        parse.template_text = chat;
        parse.config.chat_template = "jinja";
    }
    return parse;
}

nbl_status nbl__run_config_write(nbl__text *out, const nbl__run_config *config)
{
    nbl__run_parse parse = nbl__run_parse_of(config);
    write_rows(out, nbl__run_keys, NBL_RUN_KEYS, &parse, "", "", config);
    return out->status;
}
