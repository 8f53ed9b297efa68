/* fuzz_checkpoint.c - where a run stands and what it has logged, of a checkpoint that somebody made up: one object
 * stands for nibble_state.json and trainer_state.json. What is taken can be printed, read again and shown. */
#include "fuzz.h"
#include "report/events.h"
#include "report/report.h"
#include "train/resume_state.h"

static void show_records(nbl_context *ctx, nbl__records *records)
{
    nbl__run_config config = {.file = "f", .base_model = "b", .output_dir = "o"};
    nbl__samples samples = {.arena = nbl__arena_make(ctx)};
    nbl__report report = {
        .config = &config, .records = records, .samples = &samples, .isa = "", .weights = ""};
    nbl__text page = {.ctx = ctx}, lines = {.ctx = ctx};
    nbl__report_print(&page, &report);
    for (int64_t i = 0; i < records->count; i++) {
        nbl__record_print(&lines, &records->items[i]);
        nbl__events_add(&lines, &records->items[i]);
    }
    MUST(page.status == NBL_OK && lines.status == NBL_OK && strstr(page.text, "</html>") != NULL);
    nbl__text_free(&lines);
    nbl__text_free(&page);
    nbl__samples_close(&samples);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nbl_context *ctx = fuzz_context();
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__records records = {.ctx = ctx};
    const nbl__json *root;
    nbl__run_state state, again;
    if (nbl__json_parse(&arena, "fuzz", (const char *)data, size, NBL_JSON_STRICT, &root) == NBL_OK) {
        if (nbl__run_state_read(ctx, "fuzz", root, &state) == NBL_OK) {
            nbl__text text = {.ctx = ctx};
            nbl__text_printf(&text, "{");
            nbl__run_state_print(&text, &state);
            nbl__text_printf(&text, "}");
            const nbl__json *printed;
            MUST(nbl__json_parse(&arena, "printed", text.text, text.size, NBL_JSON_STRICT, &printed) ==
                 NBL_OK);
            MUST(nbl__run_state_read(ctx, "printed", printed, &again) == NBL_OK);
            MUST(memcmp(&state, &again, sizeof state) == 0);
            nbl__text_free(&text);
        }
        if (nbl__records_restore(&records, "fuzz", nbl__json_get(root, "log_history")) == NBL_OK)
            show_records(ctx, &records);
    }
    nbl__records_close(&records);
    nbl__arena_free(&arena);
    return 0;
}
