/* ends.c - the ids of the tokens that end generation.
 *
 *     Hugging Face  eos_token_id of generation_config.json, else of config.json: a number or a list
 *     .gguf         eos_token_id of the adapter's generation_config.json, else the metadata keys for
 *                   the end of a text (eos), of a turn (eot) and of a message (eom) */
#include "model/language_model.h"

/* Reads a number or a list of numbers. Returns how many ids there are; writes at most `room` of
 * them. Entries that are not ids are skipped. */
static int64_t read_ends(const nbl__json *value, int32_t *ends, int64_t room)
{
    int64_t count = 0, id;
    if (nbl__json_is(value, NBL_JSON_ARRAY)) {
        for (int64_t i = 0; i < value->count; i++) {
            if (!nbl__json_natural(&value->items[i], &id) || id > INT32_MAX) continue;
            if (count < room) ends[count] = (int32_t)id;
            count++;
        }
    } else if (nbl__json_natural(value, &id) && id <= INT32_MAX) {
        if (room > 0) ends[0] = (int32_t)id;
        count = 1;
    }
    return count;
}

/* As read_ends, from GGUF's three keys, each id once. */
static int64_t read_gguf_ends(const nbl__gguf *gguf, int32_t *ends, int64_t room)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    int32_t found[3];
    int64_t count = 0, id;
    for (int i = 0; i < 3; i++) {
        if (!nbl__gguf_integer(nbl__gguf_find(gguf, keys[i]), 0, &id) || id < 0 || id > INT32_MAX) continue;
        bool known = false;
        for (int64_t k = 0; k < count; k++) known |= found[k] == (int32_t)id;
        if (!known) found[count++] = (int32_t)id;
    }
    for (int64_t i = 0; i < count && i < room; i++) ends[i] = found[i];
    return count;
}

int64_t nbl_model_eos_ids(const nbl_model *m, int32_t *ends, int64_t room)
{
    /* With a .gguf file m->generation can only be the adapter's. */
    const nbl__json *value = nbl__json_get(m->generation, "eos_token_id");
    if (m->gguf && value == NULL) return read_gguf_ends(m->gguf->gguf, ends, room);
    if (value == NULL || value->type == NBL_JSON_NULL) value = nbl__config_find(m->config, "eos_token_id");
    return value ? read_ends(value, ends, room) : 0;
}

int32_t nbl_model_adapter_eos_id(const nbl_model *m, const nbl_tokenizer *tokenizer)
{
    return m->adapter_end ? nbl_tokenizer_find(tokenizer, m->adapter_end, strlen(m->adapter_end)) : -1;
}
