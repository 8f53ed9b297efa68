/* ask_chats.c - how many chats of a file a model answers as the file does.
 *
 *     ask_chats MODEL CHATS.jsonl [--adapter DIR] [--load FORMAT] [--double] [--show N]
 *
 * Asks the first message of every row and compares the answer (the likeliest tokens) with the
 * second, character for character. Prints `K of N`; --show prints the first N wrong answers as
 * well. The questions run in batches of 64. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file/file.h"
#include "base/json/json.h"

enum { BATCH = 64, ANSWER_TOKENS = 48, MAX_ENDS = 8, LARGEST_FILE = 64 << 20 };

/* One run. A batch is filled row by row, asked, and emptied. */
typedef struct job {
    nbl_context *ctx;
    nbl_model *model;
    nbl_tokenizer *tokenizer;
    nbl_chat_template *template;
    nbl__arena arena;
    const nbl__json *messages[BATCH]; /* each: question, answer */
    nbl_ids prompts[BATCH];
    nbl_generated answers[BATCH];
    int64_t count, asked, right, to_show;
} job;

/* The text of a message; NULL: none. */
static const char *content(const nbl__json *messages, int64_t index)
{
    return index < messages->count ? nbl__json_text(&messages->items[index], "content") : NULL;
}

/* Adds one row to the batch: renders the question with the model's template and encodes it. */
static nbl_status add_row(job *j, const char *file, int64_t line, const char *text, size_t size)
{
    const nbl__json *root;
    nbl_rendering *rendering = NULL;
    NBL_TRY(nbl__json_parse_row(&j->arena, file, line, text, size, NBL_JSON_STRICT, &root));
    const nbl__json *messages = nbl__json_get(root, "messages");
    NBL_CHECK(j->ctx, nbl__json_is(messages, NBL_JSON_ARRAY) && content(messages, 0) && content(messages, 1),
              NBL_ERROR_FORMAT, "%s:%" PRId64 ": not a chat of a question and an answer", file, line);
    nbl__text chat = {.ctx = j->ctx};
    nbl__text_printf(&chat, "[{\"role\": \"user\", \"content\": ");
    nbl__text_json(&chat, content(messages, 0));
    nbl__text_printf(&chat, "}]");
    nbl_status status = chat.status;
    if (status == NBL_OK)
        status = nbl_chat_template_render(
            j->template, &(nbl_chat){.messages = {chat.text, chat.size}, .generation_prompt = 1}, &rendering);
    if (status == NBL_OK) {
        nbl_string prompt = nbl_rendering_text(rendering);
        status = nbl_tokenizer_encode(j->tokenizer, prompt.text, prompt.size, 0, &j->prompts[j->count]);
    }
    if (status == NBL_OK) j->messages[j->count++] = messages;
    nbl_rendering_free(rendering);
    nbl__text_free(&chat);
    return status;
}

/* Compares one answer. An answer that was cut off at ANSWER_TOKENS is wrong. */
static nbl_status judge(job *j, int64_t i)
{
    char *text;
    size_t size;
    NBL_TRY(
        nbl_tokenizer_decode(j->tokenizer, j->answers[i].ids.ids, j->answers[i].ids.count, 1, &text, &size));
    const char *expected = content(j->messages[i], 1);
    bool right = j->answers[i].stopped && strlen(expected) == size && memcmp(expected, text, size) == 0;
    j->asked++;
    j->right += right;
    if (!right && j->to_show > 0) {
        j->to_show--;
        printf("%s -> %.*s, not %s\n", content(j->messages[i], 0), (int)size, text, expected);
    }
    nbl_text_free(j->ctx, text, size);
    return NBL_OK;
}

/* Asks the batch and judges the answers. The batch is empty afterwards, also on an error. */
static nbl_status ask_batch(job *j)
{
    int32_t ends[MAX_ENDS];
    nbl_generate_options how = {NBL_OPTIONS(nbl_generate_options), .max_tokens = ANSWER_TOKENS, .ends = ends};
    how.end_count = nbl__min_i64(nbl_model_eos_ids(j->model, ends, MAX_ENDS), MAX_ENDS);
    nbl_status status = j->count ? nbl_model_generate(j->model, j->prompts, j->count, &how, j->answers)
                                 : NBL_OK;
    for (int64_t i = 0; i < j->count; i++) {
        if (status == NBL_OK) status = judge(j, i);
        nbl_ids_free(j->ctx, &j->prompts[i]);
    }
    j->count = 0;
    nbl__arena_free(&j->arena);
    return status;
}

/* Reads the file line by line; empty lines are skipped. */
static nbl_status ask_file(job *j, const char *file)
{
    char *text;
    size_t size;
    NBL_TRY(nbl__file_read(j->ctx, file, LARGEST_FILE, &text, &size));
    nbl_status status = NBL_OK;
    int64_t line = 1;
    for (const char *at = text; at < text + size && status == NBL_OK; line++) {
        const char *end = memchr(at, '\n', (size_t)(text + size - at));
        if (end == NULL) end = text + size;
        if (end > at) status = add_row(j, file, line, at, (size_t)(end - at));
        if (status == NBL_OK && j->count == BATCH) status = ask_batch(j);
        at = end + 1;
    }
    nbl_status asked = ask_batch(j);
    nbl__free(j->ctx, text, size + 1);
    return status == NBL_OK ? asked : status;
}

/* Any word that is no option is MODEL, then CHATS.jsonl. */
int main(int count, char **words)
{
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options)};
    static int32_t ids[BATCH][ANSWER_TOKENS];
    job j = {.to_show = 0};
    const char *model = NULL, *file = NULL;
    bool known = true;
    for (int i = 1; i < count; i++) {
        if (strcmp(words[i], "--double") == 0) options.load_nested = true;
        else if (i + 1 < count && strcmp(words[i], "--adapter") == 0) options.adapter = words[++i];
        else if (i + 1 < count && strcmp(words[i], "--load") == 0)
            known &= nbl_format_parse(words[++i], &options.load);
        else if (i + 1 < count && strcmp(words[i], "--show") == 0) j.to_show = atoll(words[++i]);
        else if (model == NULL) model = words[i];
        else file = words[i];
    }
    if (file == NULL || !known) {
        fputs("usage: ask_chats MODEL CHATS.jsonl [--adapter DIR] [--load FORMAT] [--double] [--show N]\n",
              stderr);
        return 2;
    }
    nbl_status status = nbl_context_create(NULL, &j.ctx);
    if (status != NBL_OK) return 1;
    j.arena = nbl__arena_make(j.ctx);
    for (int i = 0; i < BATCH; i++) j.answers[i].ids.ids = ids[i];
    status = nbl_model_open(j.ctx, model, &options, &j.model);
    if (status == NBL_OK) status = nbl_tokenizer_open(j.ctx, model, &j.tokenizer);
    if (status == NBL_OK) status = nbl_chat_template_open(j.ctx, model, NULL, &j.template);
    if (status == NBL_OK) status = ask_file(&j, file);
    if (status == NBL_OK) printf("%" PRId64 " of %" PRId64 "\n", j.right, j.asked);
    else fprintf(stderr, "ask_chats: %s\n", nbl_error_message(j.ctx));
    nbl__arena_free(&j.arena);
    nbl_chat_template_close(j.template);
    nbl_tokenizer_close(j.tokenizer);
    nbl_model_close(j.model);
    nbl_context_destroy(j.ctx);
    return status == NBL_OK ? 0 : 1;
}
