/* fuzz_data.c - files of rows and what formats make of them. The first byte of the input says the form of the file and
 * the type of the data, the rest is the file. Rows lie in the file one behind the other; what is trained lies in the
 * text. */
#include "fuzz.h"
#include "data/example.h"
#include "data/read_rows.h"

enum { MAX_ROWS = 64 };

static nbl_chat_template *open_template(void)
{
    static nbl_chat_template *made;
    static const char text[] =
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% else %}{{ m.content | trim }}{% endif %}{% endfor %}{{ tools }}";
    if (made == NULL)
        MUST(nbl_chat_template_parse(fuzz_context(), "fuzz", (nbl_string){text, sizeof text - 1}, &made) ==
             NBL_OK);
    return made;
}

static void example_text(nbl__arena *arena, const nbl__json *row, nbl__data_type type, bool marks)
{
    nbl__run_config config = {.file = "fuzz"};
    nbl__dataset_config dataset = {.type = type, .field_text = "text"};
    nbl__row_encoder encoder = {.ctx = fuzz_context(),
                                .config = &config,
                                .template = open_template(),
                                .marks = marks,
                                .vocabulary = 100};
    nbl__example_text made;
    if (nbl__example_row(&encoder, &dataset, arena, row, &made) != NBL_OK) return;
    for (int64_t i = 0; i < made.id_count; i++)
        MUST(made.ids[i] >= 0 && made.ids[i] < 100 && made.labels[i] >= -100 && made.labels[i] < 100);
    for (int64_t i = 0; i < made.part_count; i++) {
        const nbl__part *part = &made.parts[i];
        MUST(part->text != NULL || part->size == 0);
        for (int64_t k = 0; k < part->span_count; k++)
            MUST(part->spans[k].begin <= part->spans[k].end && part->spans[k].end <= part->size);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"f.jsonl", "f.json", "f.csv", "f.txt"};
    if (size < 2) return 0;
    nbl_context *ctx = fuzz_context();
    nbl__rows rows = {.ctx = ctx,
                      .arena = nbl__arena_make(ctx),
                      .path = names[data[0] % 4],
                      .text_key = "text",
                      .file = {.data = data + 1, .size = size - 1}};
    nbl__row row;
    bool found = nbl__rows_begin(&rows, NBL_FILE_BY_NAME) == NBL_OK;
    uint64_t end = 0;
    for (int i = 0; found && i < MAX_ROWS; i++) {
        nbl__arena arena = nbl__arena_make(ctx);
        const nbl__json *object;
        if (nbl__rows_next(&rows, &row, &found) != NBL_OK || !found) break;
        MUST(row.offset >= end && row.size > 0 && row.size <= size - 1 - row.offset && row.line > 0);
        end = row.offset + row.size;
        if (nbl__rows_parse(&rows, &arena, &row, &object) == NBL_OK)
            example_text(&arena, object, (nbl__data_type)(data[0] / 4 % 5), data[0] & 0x80);
        nbl__arena_free(&arena);
    }
    nbl__arena_free(&rows.arena);
    return 0;
}
