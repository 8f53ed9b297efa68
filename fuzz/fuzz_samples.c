/* fuzz_samples.c - samples.json of a run that goes on, and the page that shows what was in there. */
#include "fuzz.h"
#include "report/report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nbl_context *ctx = fuzz_context();
    nbl__samples samples = {.arena = nbl__arena_make(ctx), .count = 2};
    samples.items[0] = (nbl__sample){.example = 0, .text = "ab", .wanted = "c"};
    samples.items[1] = (nbl__sample){.example = 7, .text = "<p>", .wanted = ""};
    if (nbl__samples_parse(&samples, "fuzz", (const char *)data, size) == NBL_OK) {
        nbl__run_config config = {.file = "f", .base_model = "b", .output_dir = "o"};
        nbl__records records = {.ctx = ctx};
        nbl__report report = {
            .config = &config, .records = &records, .samples = &samples, .isa = "", .weights = ""};
        nbl__text page = {.ctx = ctx};
        nbl__report_print(&page, &report);
        MUST(page.status == NBL_OK && strstr(page.text, "</html>") != NULL);
        nbl__text_free(&page);
    }
    nbl__samples_close(&samples);
    return 0;
}
