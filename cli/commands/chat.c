/* chat.c - `nibble chat`: a conversation with a model, in the terminal or through a pipe.
 *
 * One line of standard input is one turn (line.h). For each turn the whole conversation is rendered
 * with the chat template and computed again; there is no KV cache across turns. An interrupted
 * answer stays in the conversation up to the interrupt. A turn that fails is removed from the
 * conversation. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "commands/commands.h"
#include "line.h"
#include "model.h"
#include "output.h"
#include "process.h"

/* One conversation and all that it needs. `messages` grows by two with each turn: user,
 * assistant. */
typedef struct conversation {
    const cli_call *call;
    nbl_context *ctx;
    nbl_model *model;
    nbl_tokenizer *tokenizer;
    nbl_chat_template *chat_template;
    cli_ends ends;
    cli_writing writing;
    cli_harmony harmony; /* GPT-OSS: takes the answer out of what the model writes */
    size_t thought;      /* bytes of its thinking that were shown */
    cli_json *messages;
    cli_lines lines;
    char *answer; /* the text of the answer so far, terminated; NULL: no answer yet */
    size_t answer_size, answer_room;
    nbl_status code; /* the failure in on_token */
    int write_error;
} conversation;

/* ---- the answer ---- */

/* Appends text to the answer, and prints it unless the result is JSON. A failed write is remembered
 * in write_error and stops the answer at its next token. The signature is that of
 * cli_writing_finish. */
static void say(void *user, nbl_string text)
{
    conversation *t = user;
    if (t->answer_size + text.size >= t->answer_room) {
        size_t room = 2 * (t->answer_size + text.size) + 1024;
        char *larger = realloc(t->answer, room);
        if (larger == NULL) cli_no_memory();
        t->answer = larger;
        t->answer_room = room;
    }
    if (text.size) memcpy(t->answer + t->answer_size, text.text, text.size);
    t->answer_size += text.size;
    t->answer[t->answer_size] = '\0';
    if (!t->call->json && t->write_error == 0) t->write_error = cli_say(text);
}

/* Drops the text that a failed answer held back, so that it is not a part of the next answer. */
static void forget(void *user, nbl_string text)
{
    (void)user;
    (void)text;
}

/* Shows new thinking at a terminal: it is no part of the answer, and a pipe does not get it. */
static void show_thinking(conversation *t)
{
    const cli_growing *all = &t->harmony.thinking;
    if (!t->lines.terminal || t->call->quiet || t->call->json || all->size == t->thought) return;
    if (t->thought == 0) t->write_error = cli_say((nbl_string){"(thinking) ", 11});
    nbl_string piece = {all->text + t->thought, all->size - t->thought};
    t->thought = all->size;
    if (t->write_error == 0) t->write_error = cli_say(piece);
}

/* Called by the library for each generated token. Returns true to stop: at a stop string, after an
 * error, or after an interrupt. */
static bool on_token(void *user, int64_t sequence, int32_t id)
{
    conversation *t = user;
    nbl_string text;
    bool stopped = false;
    (void)sequence;
    t->code = cli_writing_push(&t->writing, id, &text, &stopped);
    show_thinking(t);
    if (t->code == NBL_OK && text.size && t->thought && t->answer_size == 0)
        t->write_error = t->write_error ? t->write_error : cli_say((nbl_string){"\n\n", 2});
    if (t->code == NBL_OK) say(t, text);
    return stopped || t->code != NBL_OK || t->write_error || cli_interrupted();
}

/* Renders the conversation as ids, up to the begin of the next answer. */
static nbl_status render(conversation *t, nbl_ids *ids)
{
    char *text = cli_json_line(t->messages);
    nbl_rendering *r = NULL;
    nbl_chat what = {.messages = {text, strlen(text)}, .generation_prompt = 1};
    nbl_status code = nbl_chat_template_render(t->chat_template, &what, &r);
    if (code == NBL_OK) {
        nbl_string rendered = nbl_rendering_text(r);
        code = nbl_tokenizer_encode(t->tokenizer, rendered.text, rendered.size, 0, ids);
    }
    nbl_rendering_free(r);
    free(text);
    return code;
}

/* Generates the answer to `prompt` and prints it while it is generated. The text is in t->answer
 * afterwards, without the stop string. A message on standard error says that an answer was cut. */
static nbl_status write_answer(conversation *t, const nbl_ids *prompt)
{
    int64_t left = nbl_model_max_positions(t->model) - prompt->count;
    nbl_generate_options how = cli_sampling(t->call, &t->ends);
    bool short_of_room = how.max_tokens > left;
    if (short_of_room) how.max_tokens = left;
    how.seed += (uint64_t)cli_json_count(t->messages); /* another random sequence for each turn */
    how.token = on_token;
    how.user = t;
    t->answer_size = t->thought = 0;
    t->code = NBL_OK;
    cli_harmony_begin(&t->harmony, prompt);
    t->writing.harmony = t->harmony.on ? &t->harmony : NULL;
    say(t, (nbl_string){"", 0}); /* sets `answer` even if the answer is empty */
    nbl_generated result = {.ids = {malloc((size_t)how.max_tokens * sizeof(int32_t)), 0}};
    if (result.ids.ids == NULL) cli_no_memory();
    cli_answer_begin();
    nbl_status code = nbl_model_generate(t->model, prompt, 1, &how, &result);
    if (code == NBL_OK) code = t->code;
    bool stopped = result.stopped;
    if (code == NBL_OK) code = cli_writing_finish(&t->writing, say, t, &stopped);
    else (void)cli_writing_finish(&t->writing, forget, NULL, &stopped);
    cli_answer_end();
    free(result.ids.ids);
    if (code != NBL_OK) return code;
    if (!t->call->json) t->write_error = t->write_error ? t->write_error : cli_say((nbl_string){"\n", 1});
    if (!stopped && !t->call->quiet)
        fprintf(stderr, "nibble: chat: the answer was cut %s\n",
                short_of_room ? "where the model's positions end; /reset begins a new conversation"
                              : "after --max-tokens");
    return NBL_OK;
}

/* Adds the answer to the conversation. Thinking has a key of its own, as the template of GPT-OSS expects
 * it; the template leaves it out of later prompts. */
static void add_answer(conversation *t)
{
    cli_json *message = cli_json_object();
    cli_json_set(message, "role", cli_json_text("assistant"));
    cli_json_set(message, "content", cli_json_string((nbl_string){t->answer, t->answer_size}));
    if (t->harmony.on && t->harmony.thinking.size)
        cli_json_set(message, "thinking",
                     cli_json_string((nbl_string){t->harmony.thinking.text, t->harmony.thinking.size}));
    cli_json_add(t->messages, message);
}

/* Runs a turn of the user. Returns CLI_DONE, or the exit status after printing an error. A turn
 * that failed is not a part of the conversation. */
static int take_turn(conversation *t, const char *line, size_t size)
{
    nbl_ids ids = {0};
    int64_t before = cli_json_count(t->messages);
    int status = CLI_DONE;
    cli_add_message(t->messages, "user", line, size);
    nbl_status code = render(t, &ids);
    int64_t positions = nbl_model_max_positions(t->model);
    if (code == NBL_OK && ids.count >= positions) {
        status = cli_error(t->call, NBL_ERROR_UNSUPPORTED,
                           before > 1 ? "/reset begins a new conversation; this turn was left out"
                                      : "say less at once; this turn was left out",
                           "the conversation has %" PRId64 " tokens, the model has %" PRId64 " positions",
                           ids.count, positions);
    } else {
        if (code == NBL_OK) code = write_answer(t, &ids);
        if (code == NBL_OK) add_answer(t);
        else status = cli_failure(t->call, t->ctx, code);
    }
    if (status != CLI_DONE) cli_json_cut(t->messages, before);
    nbl_ids_free(t->ctx, &ids);
    return status;
}

/* ---- lines ---- */

/* Begins a new conversation: no messages but --system. */
static void restart(conversation *t)
{
    const char *system = cli_get(t->call, "system")->text;
    cli_json_cut(t->messages, 0);
    if (system) cli_add_message(t->messages, "system", system, strlen(system));
}

static void show_commands(void)
{
    fputs("/reset  begin a new conversation\n"
          "/quit   leave, as Ctrl-D does\n"
          "/help   this list\n"
          "Ctrl-C  stop the answer; at the prompt: drop what was typed, or leave\n"
          "Up      earlier turns; Ctrl-R searches them\n",
          stderr);
}

/* A line that begins with '/' and is one word is meant as a command, so a typing error does not
 * become a turn. */
static int unknown_command(const conversation *t, const char *line)
{
    return cli_error(t->call, NBL_ERROR_ARGUMENT, "/help lists them", "there is no command '%s'", line);
}

/* Reads and answers lines until the end of input. Returns the exit status. */
static int converse(conversation *t)
{
    const char *line;
    size_t size;
    int status = CLI_DONE;
    bool terminal = t->lines.terminal;
    if (terminal && !t->call->quiet) fputs("/help lists the commands, Ctrl-D leaves\n", stderr);
    for (;;) {
        cli_line_result got = cli_lines_next(&t->lines, &line, &size);
        if (got == CLI_LINE_INTERRUPTED) return cli_failure(t->call, t->ctx, NBL_ERROR_CANCELLED);
        if (got == CLI_LINE_FAILED) return CLI_FAILED;
        if (got == CLI_LINE_END || strcmp(line, "/quit") == 0) break;
        if (strcmp(line, "/reset") == 0) restart(t);
        else if (strcmp(line, "/help") == 0) show_commands();
        else if (size > 0) {
            bool command = line[0] == '/' && line[1 + strcspn(line + 1, " /\n")] == '\0';
            int turn = command ? unknown_command(t, line) : take_turn(t, line, size);
            if (t->write_error) return cli_say_failed(t->call, t->write_error);
            /* At a terminal the user has seen the error, and the exit status stays 0. Otherwise the
             * exit status is that of the last failed turn. With --json the first failed turn ends
             * the conversation. */
            if (turn != CLI_DONE && (!terminal || t->call->json)) status = turn;
            if (turn != CLI_DONE && t->call->json) break;
        }
    }
    return status;
}

/* Opens the template first: it is the quickest to fail, and opening the weights can take a
 * while. */
static nbl_status open_all(conversation *t)
{
    const cli_call *call = t->call;
    nbl_status code = cli_chat_template_open(call, t->ctx, cli_get(call, "template")->text,
                                             &t->chat_template);
    if (code == NBL_OK) code = cli_model_open(call, t->ctx, false, &t->model);
    if (code == NBL_OK) code = nbl_model_tokenizer(t->model, &t->tokenizer);
    if (code == NBL_OK) code = cli_ends_read(call, t->ctx, t->model, t->tokenizer, &t->ends);
    if (code == NBL_OK) code = cli_writing_open(t->ctx, t->tokenizer, &t->ends, &t->writing);
    if (code == NBL_OK) cli_harmony_open(&t->harmony, t->tokenizer);
    return code;
}

static int no_template(const cli_call *call)
{
    return cli_error(
        call, NBL_ERROR_NOT_FOUND, "--template F.jinja gives one; 'nibble generate --prompt' needs none",
        "%s: no chat template: neither chat_template.jinja nor chat_template in tokenizer_config.json",
        call->arguments[0]);
}

static int run(cli_call *call)
{
    conversation t = {.call = call};
    int status = cli_stops_check(call);
    if (status == CLI_DONE) status = cli_lines_open(call, cli_get(call, "history")->text, &t.lines);
    if (status != CLI_DONE) return status;
    t.ctx = cli_context(call, &status);
    if (t.ctx == NULL) {
        cli_lines_close(&t.lines);
        return status;
    }
    t.messages = cli_json_array();
    restart(&t);
    nbl_status code = open_all(&t);
    if (code != NBL_OK) status = cli_failure(call, t.ctx, code);
    else status = nbl_chat_template_count(t.chat_template) ? converse(&t) : no_template(call);
    if (call->json && status == CLI_DONE) {
        cli_json *document = cli_json_object();
        cli_json_set(document, "messages", t.messages);
        cli_json_print(document);
    } else {
        cli_json_free(t.messages);
    }
    free(t.answer);
    cli_lines_close(&t.lines);
    cli_writing_close(&t.writing);
    cli_harmony_close(&t.harmony);
    nbl_model_close(t.model);
    nbl_tokenizer_close(t.tokenizer);
    nbl_chat_template_close(t.chat_template);
    cli_context_end(t.ctx);
    return status;
}

const cli_command cli_chat = {
    .name = "chat",
    .computes = true,
    .group = "Models",
    .summary = "talk with a model",
    .description = "Reads lines and prints the model's answers while they are generated. Each line "
                   "is a turn of the user. Turns go through the chat template of the adapter or of "
                   "the model. If standard input is not a terminal, only answers are printed.\n\n"
                   "/reset begins a new conversation. /quit and Ctrl-D leave. Ctrl-C stops an "
                   "answer; if the answer has no word yet, it stops once the model has read the "
                   "conversation. At the prompt Ctrl-C drops the typed text, and leaves if there is "
                   "none.\n\n"
                   "At a terminal a line is edited with the keys of emacs (or of vi: see editrc(5)). "
                   "Up and Ctrl-R find earlier turns. Control characters that the model writes are "
                   "shown as text. A pasted text of several lines is one turn if the terminal marks "
                   "what it pastes (bracketed paste). Otherwise each of its lines is a turn.\n\n"
                   "GPT-OSS thinks in a channel of its own. A terminal shows that as (thinking); "
                   "the answer is the channel final. With --json a message has the thinking under "
                   "the key thinking.\n\n"
                   "The model reads the whole conversation with every turn. A turn that makes the "
                   "conversation longer than the model's positions is refused, and the conversation "
                   "goes on without it. With --json the result is the conversation, as messages.",
    .arguments = CLI_MODEL_ARGUMENT,
    .options =
        (const cli_option[]){
            CLI_CHAT_OPTIONS,
            {.name = "history",
             .argument = "FILE",
             .kind = CLI_PATH,
             .help = "keep the turns that are typed at a terminal for later "
                     "conversations; each is added to FILE as a JSON string"},
            CLI_SAMPLING_OPTIONS("1024"),
            CLI_MODEL_OPTIONS,
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"talk to an adapter", "chat SmolLM2-135M-Instruct --adapter my-lora --temperature 0.7"},
            {"from a script", "chat SmolLM2-135M-Instruct --quiet < questions.txt"},
            {NULL, NULL},
        },
    .run = run,
};
