/* text_part.c - the types of models whose files have more than a text model. See text_part.h.
 *
 * A type is one row. Whatever a row does not say is the same for all types: prefixes of names, and
 * the parts that are passed over. */
#include "format/hf/text_part.h"

#include <stdio.h>

#include "format/hf/module_names.h"

static const char IN_MODEL[] = "model.language_model.", IN_TEXT[] = "model.text_model.",
                  BESIDE[] = "language_model.model.";

/* tied and prefix follow the class of the configuration in transformers, and the class that
 * AutoModelForCausalLM chooses. */
static const nbl__text_part parts[] = {
    {"aya_vision", "cohere2", true, IN_MODEL},
    {"gemma3", "gemma3_text", true, IN_MODEL},
    {"idefics3", "llama", false, IN_TEXT},
    {"internvl", "qwen2", true, IN_MODEL},
    {"llama4", "llama4_text", false, NULL},
    {"llava", "llama", false, IN_MODEL},
    {"llava_next", "llama", false, IN_MODEL},
    {"mistral3", "mistral", true, IN_MODEL},
    {"qwen3_5", "qwen3_5_text", false, NULL},
    {"qwen3_5_moe", "qwen3_5_moe_text", false, NULL},
    {"smolvlm", "llama", false, IN_TEXT},
    /* text models with layers of multi-token prediction */
    {"qwen3_next", NULL, false, NULL},
    {"qwen3_5_text", NULL, false, NULL},
    {"qwen3_5_moe_text", NULL, false, NULL},
};

/* Beginnings of a text model's names, and what a text model's own folder has instead. */
static const struct {
    const char *stored, *own, *prefix; /* prefix: of the class that names its modules so */
} leads[] = {
    {IN_MODEL, "model.", IN_MODEL},
    {IN_TEXT, "model.", IN_TEXT},
    {BESIDE, "model.", BESIDE},
    {"language_model." NBL_MODULE_HEAD, NBL_MODULE_HEAD, BESIDE},
};

const char *const nbl__text_part_others[] = {
    "model.vision_tower", "model.vision_model",  "model.visual", "model.multi_modal_projector",
    "model.connector",    "model.image_newline", "mtp",          NULL};

static bool begins_with(const char *text, const char *lead)
{
    return strncmp(text, lead, strlen(lead)) == 0;
}

const nbl__text_part *nbl__text_part_of(const nbl__json *config)
{
    const char *type = nbl__json_text(config, "model_type");
    bool inside = nbl__json_is(nbl__json_get(config, "text_config"), NBL_JSON_OBJECT);
    for (size_t i = 0; type && i < sizeof parts / sizeof *parts; i++)
        if (strcmp(parts[i].model_type, type) == 0 && inside == (parts[i].text_type != NULL))
            return &parts[i];
    return NULL;
}

const nbl__json *nbl__text_config(const nbl__json *config)
{
    const nbl__text_part *part = nbl__text_part_of(config);
    return part && part->text_type ? nbl__json_get(config, "text_config") : config;
}

/* The parts may lie inside "model." or beside it. */
bool nbl__text_part_is_other(const char *stored)
{
    if (begins_with(stored, "model.")) stored += strlen("model.");
    for (const char *const *other = nbl__text_part_others; *other; other++) {
        const char *name = begins_with(*other, "model.") ? *other + strlen("model.") : *other;
        size_t n = strlen(name);
        if (begins_with(stored, name) && (stored[n] == '.' || stored[n] == '\0')) return true;
    }
    return false;
}

const char *nbl__text_name(nbl__arena *arena, const char *stored)
{
    for (size_t i = 0; i < sizeof leads / sizeof *leads; i++)
        if (begins_with(stored, leads[i].stored))
            return nbl__arena_printf(arena, "%s%s", leads[i].own, stored + strlen(leads[i].stored));
    return stored;
}

const char *nbl__text_prefix(const char *stored)
{
    for (size_t i = 0; i < sizeof leads / sizeof *leads; i++)
        if (begins_with(stored, leads[i].stored)) return leads[i].prefix;
    return NULL;
}

const char *nbl__text_spell(const char *prefix, const char *name, char *memory, size_t size)
{
    const char *lead = prefix, *rest = name;
    if (prefix == NULL) return name;
    if (begins_with(name, "model.")) rest = name + strlen("model.");
    else if (strcmp(prefix, BESIDE) == 0 && begins_with(name, NBL_MODULE_HEAD)) lead = "language_model.";
    else return name;
    int length = snprintf(memory, size, "%s%s", lead, rest);
    return length >= 0 && (size_t)length < size ? memory : NULL;
}
