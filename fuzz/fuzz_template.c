/* fuzz_template.c - chat templates. The input is a template, a zero byte, and the line of a batch (JSON) for
 * it; without a zero byte a line of its own is used. A rendering has a text or an error, and its spans lie
 * in order. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char usual[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"h\\u00e9\"}, {\"role\": "
                                "\"assistant\", \"content\": null, "
                                "\"reasoning\": \"r\"}], \"set\": {\"n\": 3, \"f\": -0.5, \"l\": [3, 1, "
                                "\"a\"], \"d\": {\"a\": [1], \"b\": {}}, "
                                "\"s\": \"A b,c\"}, \"generation_prompt\": true}";
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t first = zero ? (size_t)(zero - data) : size;
    nbl_string source = {(const char *)data, first}, line = {usual, sizeof usual - 1};
    if (zero) line = (nbl_string){(const char *)zero + 1, size - first - 1};
    nbl_chat_template *t;
    nbl_rendering *r;
    int64_t start, end;
    if (size == 0 || nbl_chat_template_parse(fuzz_context(), "fuzz", source, &t) != NBL_OK) return 0;
    if (nbl_chat_template_render_line(t, "line", line, &r) == NBL_OK) {
        MUST((nbl_rendering_text(r).text == NULL) != (nbl_rendering_error(r).text == NULL));
        for (int64_t i = 0; nbl_rendering_span(r, i, &start, &end); i++) MUST(start >= 0 && start <= end);
        nbl_rendering_free(r);
    }
    nbl_chat_template_close(t);
    return 0;
}
