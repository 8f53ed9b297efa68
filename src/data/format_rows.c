/* format_rows.c - the formats without a template. Parts of their example texts, trained ones in
 * brackets:
 *
 *     alpaca         BOS prompt | [output EOS]         train_on_inputs: all trained
 *     completion     [BOS text EOS]
 *     input_output   segment | [segment] | ...         as each segment's "label" says; no BOS, no EOS
 *     pretokenized   ids and labels as they are
 *
 * nbl__example_row calls the format of a dataset. */
#include "data/example.h"

/* Reads a text of the row. text->text is NULL if it is missing and not needed, and after an
 * error. */
static nbl_status take_text(const nbl__row_encoder *s, const nbl__json *row, const char *key, bool needed,
                            nbl_string *text)
{
    const nbl__json *value = nbl__json_get(row, key);
    *text = (nbl_string){NULL, 0};
    if (value == NULL || value->type == NBL_JSON_NULL) {
        NBL_CHECK(s->ctx, !needed, NBL_ERROR_FORMAT, "the field \"%s\" is %s", key,
                  value ? "null" : "missing");
        return NBL_OK;
    }
    NBL_CHECK(s->ctx, value->type == NBL_JSON_STRING, NBL_ERROR_FORMAT, "the field \"%s\" is not a text",
              key);
    *text = (nbl_string){value->string, (size_t)value->count};
    return NBL_OK;
}

/* Allocates zeroed parts. */
static nbl_status make_parts(nbl__arena *arena, int64_t count, nbl__example_text *example_text)
{
    example_text->parts = nbl__arena_alloc(arena, (size_t)count * sizeof *example_text->parts);
    example_text->part_count = count;
    return example_text->parts ? NBL_OK : NBL_ERROR_MEMORY;
}

/* ---- alpaca ---- */

static char *append(char *at, nbl_string text)
{
    if (text.size) memcpy(at, text.text, text.size);
    return at + text.size;
}

static nbl_string literal(const char *text)
{
    return (nbl_string){text, strlen(text)};
}

/* The prompt is Stanford Alpaca's, with or without an input. */
static nbl_status example_alpaca(const nbl__row_encoder *s, nbl__arena *arena, const nbl__json *row,
                                 nbl__example_text *example_text)
{
    nbl_string instruction, input, output;
    NBL_TRY(take_text(s, row, "instruction", true, &instruction));
    NBL_TRY(take_text(s, row, "input", false, &input));
    NBL_TRY(take_text(s, row, "output", true, &output));
    nbl_string opening = literal(
        input.size ? "Below is an instruction that describes a task, paired with an input that "
                     "provides further context. Write a response that appropriately completes the "
                     "request.\n\n### Instruction:\n"
                   : "Below is an instruction that describes a task. Write a response that "
                     "appropriately completes the request.\n\n### Instruction:\n");
    nbl_string between = literal(input.size ? "\n\n### Input:\n" : ""),
               closing = literal("\n\n### Response:\n");
    size_t size = opening.size + instruction.size + between.size + input.size + closing.size;
    char *prompt = nbl__arena_alloc(arena, size + 1), *at = prompt;
    if (prompt == NULL) return NBL_ERROR_MEMORY;
    at = append(append(append(append(append(at, opening), instruction), between), input), closing);
    NBL_TRY(make_parts(arena, 2, example_text));
    example_text->parts[0] = (nbl__part){.text = prompt,
                                         .size = size,
                                         .opens = true,
                                         .mask = s->config->train_on_inputs ? NBL_LOSS_MASK_ALL
                                                                            : NBL_LOSS_MASK_NONE};
    example_text->parts[1] = (nbl__part){
        .text = output.text, .size = output.size, .closes = true, .mask = NBL_LOSS_MASK_ALL};
    return NBL_OK;
}

/* ---- completion ---- */

static nbl_status example_completion(const nbl__row_encoder *s, const nbl__dataset_config *dataset,
                                     nbl__arena *arena, const nbl__json *row, nbl__example_text *example_text)
{
    nbl_string text;
    NBL_TRY(take_text(s, row, dataset->field_text ? dataset->field_text : "text", true, &text));
    NBL_TRY(make_parts(arena, 1, example_text));
    example_text->parts[0] = (nbl__part){
        .text = text.text, .size = text.size, .opens = true, .closes = true, .mask = NBL_LOSS_MASK_ALL};
    return NBL_OK;
}

/* ---- input_output ---- */

static nbl_status example_segments(const nbl__row_encoder *s, nbl__arena *arena, const nbl__json *row,
                                   nbl__example_text *example_text)
{
    const nbl__json *segments = nbl__json_get(row, "segments");
    bool all = s->config->train_on_inputs;
    NBL_CHECK(s->ctx, nbl__json_is(segments, NBL_JSON_ARRAY), NBL_ERROR_FORMAT,
              "the field \"segments\" is %s", segments ? "not a list" : "missing");
    NBL_CHECK(s->ctx, segments->count > 0, NBL_ERROR_FORMAT, "the field \"segments\" is empty");
    NBL_TRY(make_parts(arena, segments->count, example_text));
    for (int64_t i = 0; i < segments->count; i++) {
        const nbl__json *segment = &segments->items[i], *text = nbl__json_get(segment, "text"),
                        *label = nbl__json_get(segment, "label");
        NBL_CHECK(s->ctx, segment->type == NBL_JSON_OBJECT, NBL_ERROR_FORMAT,
                  "segment %" PRId64 " is not an object", i + 1);
        NBL_CHECK(s->ctx, nbl__json_is(text, NBL_JSON_STRING), NBL_ERROR_FORMAT,
                  "segment %" PRId64 ": \"text\" is %s", i + 1, text ? "not a text" : "missing");
        NBL_CHECK(s->ctx, nbl__json_is(label, NBL_JSON_TRUE) || nbl__json_is(label, NBL_JSON_FALSE),
                  NBL_ERROR_FORMAT, "segment %" PRId64 ": \"label\" is %s", i + 1,
                  label ? "neither true nor false" : "missing");
        example_text->parts[i] = (nbl__part){
            .text = text->string,
            .size = (size_t)text->count,
            .mask = all || label->type == NBL_JSON_TRUE ? NBL_LOSS_MASK_ALL : NBL_LOSS_MASK_NONE};
    }
    return NBL_OK;
}

/* ---- pretokenized ---- */

/* Reads a list of ids, each below the vocabulary. labels: -100 is allowed too. */
static nbl_status take_ids(const nbl__row_encoder *s, nbl__arena *arena, const nbl__json *row,
                           const char *key, bool labels, int32_t **ids, int64_t *count)
{
    const nbl__json *list = nbl__json_get(row, key);
    NBL_CHECK(s->ctx, nbl__json_is(list, NBL_JSON_ARRAY), NBL_ERROR_FORMAT, "the field \"%s\" is %s", key,
              list ? "not a list" : "missing");
    NBL_CHECK(s->ctx, list->count > 0, NBL_ERROR_FORMAT, "the field \"%s\" is empty", key);
    *count = list->count;
    *ids = nbl__arena_alloc(arena, (size_t)list->count * sizeof **ids);
    if (*ids == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < list->count; i++) {
        const nbl__json *item = &list->items[i];
        NBL_CHECK(s->ctx, item->type == NBL_JSON_INTEGER, NBL_ERROR_FORMAT,
                  "\"%s\": entry %" PRId64 " is not an integer", key, i + 1);
        NBL_CHECK(s->ctx,
                  (item->integer >= 0 && item->integer < s->vocabulary) || (labels && item->integer == -100),
                  NBL_ERROR_FORMAT,
                  "\"%s\": entry %" PRId64 " is %" PRId64 ", the vocabulary has %" PRId64 " tokens", key,
                  i + 1, item->integer, s->vocabulary);
        (*ids)[i] = (int32_t)item->integer;
    }
    return NBL_OK;
}

nbl_status nbl__example_tokens(const nbl__row_encoder *s, nbl__arena *arena, const nbl__json *row,
                               nbl__example_text *example_text)
{
    const nbl__json *mask = nbl__json_get(row, "attention_mask");
    int64_t count, label_count;
    int32_t *ids, *labels;
    NBL_TRY(take_ids(s, arena, row, "input_ids", false, &ids, &count));
    NBL_TRY(take_ids(s, arena, row, "labels", true, &labels, &label_count));
    NBL_CHECK(s->ctx, count == label_count, NBL_ERROR_FORMAT,
              "\"input_ids\" has %" PRId64 " entries, \"labels\" has %" PRId64, count, label_count);
    if (mask && mask->type != NBL_JSON_NULL) {
        NBL_CHECK(s->ctx, mask->type == NBL_JSON_ARRAY && mask->count == count, NBL_ERROR_FORMAT,
                  "\"attention_mask\" is not a list as long as \"input_ids\"");
        for (int64_t i = 0; i < count; i++)
            NBL_CHECK(s->ctx, nbl__json_is(&mask->items[i], NBL_JSON_INTEGER) && mask->items[i].integer == 1,
                      NBL_ERROR_FORMAT,
                      "\"attention_mask\": entry %" PRId64 " is not 1: rows are read without padding", i + 1);
    }
    example_text->ids = ids;
    example_text->labels = labels;
    example_text->id_count = count;
    return NBL_OK;
}

nbl_status nbl__example_row(const nbl__row_encoder *s, const nbl__dataset_config *dataset, nbl__arena *arena,
                            const nbl__json *row, nbl__example_text *example_text)
{
    *example_text = (nbl__example_text){0};
    switch (dataset->type) {
    case NBL_DATA_CHAT: return nbl__example_chat(s, dataset, arena, row, example_text);
    case NBL_DATA_ALPACA: return example_alpaca(s, arena, row, example_text);
    case NBL_DATA_COMPLETION: return example_completion(s, dataset, arena, row, example_text);
    case NBL_DATA_SEGMENTS: return example_segments(s, arena, row, example_text);
    case NBL_DATA_TOKENS: return nbl__example_tokens(s, arena, row, example_text);
    }
    return nbl__fail(s->ctx, NBL_ERROR_INTERNAL, "an unknown type of data");
}
