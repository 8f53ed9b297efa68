/* fuzz_peft.c - adapter_config.json: reading it, matching modules by it, and printing it. What was read must,
 * printed, read back to the same text, and mean the same modules. */
#include "format/peft/peft.h"
#include "fuzz.h"

static const char *const paths[] = {
    "model.embed_tokens",
    "model.layers.0.self_attn.q_proj",
    "model.layers.1.mlp.experts.3.up_proj",
    "model.layers.12.input_layernorm",
    "model.norm",
    "lm_head",
};
enum { PATHS = sizeof paths / sizeof *paths };

typedef struct answer {
    bool targeted, saved;
    int64_t r;
    double alpha, scale;
} answer;

/* False when an expression was no expression, or too complex. */
static bool ask(const nbl__peft_settings *settings, answer *answers)
{
    nbl__peft_rules *rules;
    if (nbl__peft_rules_make(fuzz_context(), "fuzz", settings, &rules) != NBL_OK) return false;
    bool good = true;
    for (int i = 0; i < PATHS && good; i++) {
        answer *a = &answers[i];
        *a = (answer){0};
        good = nbl__peft_targets(rules, paths[i], (nbl__peft_kind)(i % 4), &a->targeted) == NBL_OK &&
               nbl__peft_rank(rules, paths[i], &a->r, &a->alpha, &a->scale) == NBL_OK;
        a->saved = nbl__peft_saves(rules, paths[i]);
        if (good) MUST(a->r >= 1);
    }
    nbl__peft_rules_free(rules);
    return good;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nbl_context *ctx = fuzz_context();
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__peft_settings first, second;
    answer before[PATHS], after[PATHS];
    nbl__text text = {.ctx = ctx}, again = {.ctx = ctx};
    nbl__problems problems = {.arena = &arena};
    bool read = nbl__peft_settings_read(&arena, "fuzz", (const char *)data, size, &first) == NBL_OK,
         looked = nbl__peft_settings_inspect(&arena, "fuzz", (const char *)data, size, &problems, &second) ==
                  NBL_OK;
    MUST(read == (looked && problems.count == 0));
    if (read) {
        nbl__peft_settings_print(&text, &first);
        MUST(text.status == NBL_OK);
        MUST(nbl__peft_settings_read(&arena, "printed", text.text, text.size, &second) == NBL_OK);
        nbl__peft_settings_print(&again, &second);
        MUST(text.size == again.size && memcmp(text.text, again.text, text.size) == 0);
        if (ask(&first, before)) {
            MUST(ask(&second, after));
            for (int i = 0; i < PATHS; i++)
                MUST(before[i].targeted == after[i].targeted && before[i].saved == after[i].saved &&
                     before[i].r == after[i].r && before[i].alpha == after[i].alpha);
        }
    }
    nbl__text_free(&text);
    nbl__text_free(&again);
    nbl__arena_free(&arena);
    return 0;
}
