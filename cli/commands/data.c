/* data.c - `nibble data`: shows the examples of a training run as the model sees them.
 *
 * Reads the whole data as training does, to count it, but opens no weights. Previews are printed
 * one at a time. */
#include <inttypes.h>
#include <string.h>

#include "commands/commands.h"
#include "output.h"
#include "run.h"
#include "process.h"

/* ---- for scripts ---- */

/* Returns a list of integers as a JSON array. */
static cli_json *numbers(const int32_t *list, int64_t count)
{
    cli_json *array = cli_json_array();
    for (int64_t i = 0; i < count; i++) cli_json_add(array, cli_json_integer(list[i]));
    return array;
}

/* Returns an example: its parts as texts, and its ids and labels. A label of -100 is not
 * trained. */
static cli_json *describe(int64_t index, const nbl_preview *preview)
{
    cli_json *example = cli_json_object(), *parts = cli_json_array();
    cli_json_set(example, "example", cli_json_integer(index));
    cli_json_set(example, "tokens", cli_json_integer(preview->count));
    cli_json_set(example, "trained_tokens", cli_json_integer(preview->trained_tokens));
    for (int64_t i = 0; i < preview->part_count; i++) {
        cli_json *part = cli_json_object();
        cli_json_set(part, "text", cli_json_string(preview->parts[i].text));
        cli_json_set(part, "trained", cli_json_boolean(preview->parts[i].trained));
        cli_json_add(parts, part);
    }
    cli_json_set(example, "parts", parts);
    cli_json_set(example, "input_ids", numbers(preview->ids, preview->count));
    cli_json_set(example, "labels", numbers(preview->labels, preview->count));
    return example;
}

static cli_json *count_of(const nbl_data_summary *s)
{
    cli_json *document = cli_json_object();
    cli_json_set(document, "examples", cli_json_integer(s->examples));
    cli_json_set(document, "tokens", cli_json_integer(s->tokens));
    cli_json_set(document, "trained_tokens", cli_json_integer(s->trained_tokens));
    cli_json_set(document, "truncated", cli_json_integer(s->truncated));
    cli_json_set(document, "dropped", cli_json_integer(s->dropped));
    cli_json_set(document, "dropped_too_long", cli_json_integer(s->too_long));
    cli_json_set(document, "dropped_bad", cli_json_integer(s->bad));
    cli_json_set(document, "dropped_untrained", cli_json_integer(s->untrained));
    cli_json_set(document, "dropped_too_short", cli_json_integer(s->too_short));
    cli_json_set(document, "dropped_duplicates", cli_json_integer(s->duplicates));
    cli_json_set(document, "validation", cli_json_integer(s->validation));
    return document;
}

/* ---- for people ---- */

/* Prints an example. On a terminal the text that is not trained is dimmed. Otherwise each part has
 * a line, which begins with "+" if the part is trained. */
static void print_preview(int64_t index, const nbl_preview *preview)
{
    bool styled = *cli_styled(CLI_DIM) != '\0';
    fprintf(cli_out(), "\n%sexample %" PRId64 "%s: %" PRId64 " tokens, %" PRId64 " trained\n",
            cli_styled(CLI_BOLD), index + 1, cli_styled(CLI_PLAIN), preview->count, preview->trained_tokens);
    for (int64_t i = 0; i < preview->part_count; i++) {
        const nbl_preview_part *part = &preview->parts[i];
        if (styled) fputs(cli_styled(part->trained ? CLI_PLAIN : CLI_DIM), cli_out());
        else fputs(part->trained ? "  + " : "  - ", cli_out());
        cli_put_shown(cli_out(), part->text, styled);
        fputs(styled ? cli_styled(CLI_PLAIN) : "\n", cli_out());
    }
    if (styled) fputc('\n', cli_out());
}

/* Prints the counts. Lines for zero truncated or dropped rows are left out. */
static void print_counts(const nbl_data_summary *s)
{
    double share = s->tokens ? 100.0 * (double)s->trained_tokens / (double)s->tokens : 0;
    fprintf(cli_out(), "%s examples, %s tokens, %s trained (%.1f %%)\n", cli_grouped((uint64_t)s->examples),
            cli_grouped((uint64_t)s->tokens), cli_grouped((uint64_t)s->trained_tokens), share);
    if (s->validation)
        fprintf(cli_out(), "%s of the examples are held back for validation\n",
                cli_grouped((uint64_t)s->validation));
    if (s->truncated)
        fprintf(cli_out(), "%s examples were cut to sequence_len\n", cli_grouped((uint64_t)s->truncated));
    if (s->dropped)
        fprintf(cli_out(),
                "%s rows were dropped: %s too long, %s too short, %s bad, %s with nothing trained, "
                "%s seen before\n",
                cli_grouped((uint64_t)s->dropped), cli_grouped((uint64_t)s->too_long),
                cli_grouped((uint64_t)s->too_short), cli_grouped((uint64_t)s->bad),
                cli_grouped((uint64_t)s->untrained), cli_grouped((uint64_t)s->duplicates));
}

/* ---- the command ---- */

/* Prints the counts and the first --preview examples. In JSON the previews come last, in the same
 * document, which is printed only if all of them could be read. */
static nbl_status show(const cli_call *call, nbl_run *run)
{
    nbl_data_summary summary = {NBL_RESULT(nbl_data_summary)};
    nbl_preview preview = {NBL_RESULT(nbl_preview)};
    nbl_status code = nbl_run_data(run, &summary);
    if (code != NBL_OK) return code;
    cli_json *document = count_of(&summary), *list = cli_json_array();
    int64_t max = cli_get(call, "preview")->integer;
    if (!call->json) print_counts(&summary);
    for (int64_t i = 0; i < max && i < summary.examples && code == NBL_OK; i++) {
        code = nbl_run_preview(run, i, &preview);
        if (code == NBL_OK && call->json) cli_json_add(list, describe(i, &preview));
        else if (code == NBL_OK) print_preview(i, &preview);
    }
    cli_json_set(document, "preview", list);
    if (call->json && code == NBL_OK) cli_json_print_compact(document);
    else cli_json_free(document);
    return code;
}

static int run(cli_call *call)
{
    int status;
    nbl_context *ctx = cli_context(call, &status);
    if (ctx == NULL) return status;
    nbl_run *opened = NULL;
    cli_work_begin("");
    nbl_status code = cli_run_open(call, ctx, call->arguments[0], cli_get(call, "set"), &opened);
    if (code == NBL_OK) code = show(call, opened);
    cli_work_end(code);
    status = code == NBL_OK ? CLI_DONE : cli_failure(call, ctx, code);
    nbl_run_close(opened);
    cli_context_end(ctx);
    return status;
}

const cli_command cli_data = {
    .name = "data",
    .group = "Train",
    .summary = "show the data of a training run as the model sees them",
    .description = "Reads the data of a run as training does: parses each row, makes tokens of it "
                   "and counts them. Then shows a few examples. Text that is not trained is dimmed "
                   "on a terminal; elsewhere it has a \"-\" before it. A row that cannot be used "
                   "ends the command with its file and line, unless the run has skip_bad_rows.\n\n"
                   "Nothing is trained and no weight is read.",
    .arguments = CLI_RUN_ARGUMENT,
    .options =
        (const cli_option[]){
            CLI_SET_OPTION,
            {.name = "preview",
             .argument = "N",
             .kind = CLI_INTEGER,
             .minimum = 0,
             .maximum = 1000,
             .fallback = "3",
             .help = "examples to show"},
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"check the data of a run", "data run.yml"},
            {"how many examples a longer limit keeps", "data run.yml --set sequence_len=4096 --preview 0"},
            {NULL, NULL},
        },
    .run = run,
};
