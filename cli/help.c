/* help.c - --help, `nibble help`, and the texts that are made from the tables of commands. */
#include "help.h"

#include <string.h>

#include "commands/commands.h"
#include "output.h"

const cli_topic cli_exit_statuses[] = {
    {"0", "done"},
    {"1", "a failure, or the answer no: weights differ by more than the tolerance (diff), "
          "the perplexity is higher (eval --fail-above), logits differ (merge --verify)"},
    {"2", "wrong usage"},
    {"130", "interrupted; train has saved a checkpoint if it had begun and was "
            "interrupted once; other commands have written nothing"},
    {NULL, NULL},
};

const cli_topic cli_environment[] = {
    {"NIBBLE_ISA", "the highest instruction set to use: scalar, avx2, avx512, avx512bf16 or amx "
                   "(default: the best one of the machine); quantized bits are the same with each, sums "
                   "in f32 differ by their rounding"},
    {"NIBBLE_VERBOSE", "dispatch: log which implementation of each operator runs, and why others do not; "
                       "profile: log where the time of a step goes on a CUDA device"},
    {"NIBBLE_IMPL", "the implementation to use for each operator that has it, e.g. ref; "
                    "for tests"},
    {"NIBBLE_CUDA_DEBUG", "1: wait for each operator on a CUDA device, so that an error names the operator "
                          "that caused it"},
    {"HF_HUB_CACHE, HF_HOME",
     "the folder of the cache of the Hugging Face hub; nothing is loaded from it, but an "
     "error about a missing model names a copy in it"},
    {"EDITRC", "the file with the keys of line editing in chat (default: ~/.editrc; see editrc(5))"},
    {"NO_COLOR", "when set to anything, no colours"},
    {"TERM", "when unset or dumb, no colours, no progress bar and no line editing"},
    {NULL, NULL},
};

/* ---- texts from the tables ---- */

const char *cli_option_usage(const cli_option *option)
{
    const char *letter = option->letter ? cli_format("-%c, ", option->letter) : "";
    if (option->kind == CLI_FLAG) return cli_format("%s--%s", letter, option->name);
    return cli_format("%s--%s %s", letter, option->name, option->argument);
}

const char *cli_option_text(const cli_option *option)
{
    const char *choices = option->choices ? cli_format(": %s", cli_choice_list(option->choices)) : "";
    const char *rest = option->required   ? " (required)"
                       : option->fallback ? cli_format(" (default: %s)", option->fallback)
                                          : "";
    return cli_format("%s%s%s", option->help, choices, rest);
}

const char *cli_synopsis(const cli_command *command)
{
    char *line = cli_format("nibble %s", command->name);
    for (const cli_argument *a = command->arguments; a && a->name; a++)
        line = cli_format(a->optional ? "%s [%s]" : "%s %s", line, a->name);
    for (const cli_option *o = command->options; o && o->name; o++) {
        cli_option bare = *o;
        bare.letter = 0;
        line = cli_format(o->required ? "%s %s" : "%s [%s]", line, cli_option_usage(&bare));
    }
    return line;
}

/* ---- for people ---- */

static void heading(const char *text)
{
    fprintf(cli_out(), "\n%s%s:%s\n", cli_styled(CLI_BOLD), text, cli_styled(CLI_PLAIN));
}

/* Writes "  left      text". The text is wrapped in its own column. */
static void row(const char *left, const char *text, int width)
{
    fprintf(cli_out(), "  %-*s  ", width, left);
    cli_wrap(cli_out(), text, width + 4, width + 4);
}

static void show_options(const char *title, const cli_option *options)
{
    if (options == NULL || options->name == NULL) return;
    int width = 0;
    for (const cli_option *o = options; o->name; o++) {
        int columns = cli_columns(cli_option_usage(o));
        if (columns > width) width = columns;
    }
    heading(title);
    for (const cli_option *o = options; o->name; o++) row(cli_option_usage(o), cli_option_text(o), width);
}

static void show_examples(const cli_example *examples)
{
    if (examples == NULL || examples->what == NULL) return;
    heading("Examples");
    for (const cli_example *e = examples; e->what; e++)
        fprintf(cli_out(), "%s  %s# %s%s\n  nibble %s\n", e == examples ? "" : "\n", cli_styled(CLI_DIM),
                e->what, cli_styled(CLI_PLAIN), e->line);
}

static void show_usage(const char *line)
{
    fprintf(cli_out(), "%sUsage:%s ", cli_styled(CLI_BOLD), cli_styled(CLI_PLAIN));
    cli_wrap(cli_out(), line, 11, 7);
}

static void show_command(const cli_command *command)
{
    show_usage(cli_format("%s [common options]", cli_synopsis(command)));
    fputc('\n', cli_out());
    cli_wrap(cli_out(), command->description, 0, 0);
    if (command->arguments && command->arguments->name) {
        int width = 0;
        for (const cli_argument *a = command->arguments; a->name; a++)
            if (cli_columns(a->name) > width) width = cli_columns(a->name);
        heading("Arguments");
        for (const cli_argument *a = command->arguments; a->name; a++) row(a->name, a->help, width);
    }
    show_options("Options", command->options);
    show_options("Common options", cli_common_options);
    show_examples(command->examples);
}

static void show_overview(void)
{
    fprintf(cli_out(), "nibble %s - %s\n\n", nbl_version(), CLI_ABOUT);
    show_usage("nibble COMMAND [arguments] [options]");
    const char *group = "";
    for (int i = 0; cli_commands[i]; i++) {
        const cli_command *command = cli_commands[i];
        if (command->group == NULL) continue;
        if (strcmp(group, command->group) != 0) heading(command->group);
        group = command->group;
        row(command->name, command->summary, 10);
    }
    show_options("Common options, before or after the command", cli_common_options);
    heading("Exit status");
    for (const cli_topic *t = cli_exit_statuses; t->name; t++) row(t->name, t->text, 3);
    fputs("\n'nibble help COMMAND' shows the help of a command.\n", cli_out());
}

/* ---- for scripts ---- */

static cli_json *describe_options(const cli_option *options)
{
    cli_json *list = cli_json_array();
    for (const cli_option *o = options; o && o->name; o++) {
        cli_json *entry = cli_json_object(), *choices = cli_json_array();
        cli_json_set(entry, "name", cli_json_text(cli_format("--%s", o->name)));
        cli_json_set(entry, "argument", cli_json_text(o->argument));
        cli_json_set(entry, "help", cli_json_text(o->help));
        cli_json_set(entry, "default", cli_json_text(o->fallback));
        cli_json_set(entry, "required", cli_json_boolean(o->required));
        for (int i = 0; o->choices && i < cli_choice_count(o->choices); i++)
            cli_json_add(choices, cli_json_text(cli_choice(o->choices, i)));
        cli_json_set(entry, "choices", choices);
        cli_json_add(list, entry);
    }
    return list;
}

static cli_json *describe(const cli_command *command)
{
    cli_json *entry = cli_json_object(), *arguments = cli_json_array();
    cli_json_set(entry, "name", cli_json_text(command->name));
    cli_json_set(entry, "summary", cli_json_text(command->summary));
    cli_json_set(entry, "usage", cli_json_text(cli_synopsis(command)));
    for (const cli_argument *a = command->arguments; a && a->name; a++) {
        cli_json *argument = cli_json_object();
        cli_json_set(argument, "name", cli_json_text(a->name));
        cli_json_set(argument, "help", cli_json_text(a->help));
        cli_json_set(argument, "required", cli_json_boolean(!a->optional));
        cli_json_add(arguments, argument);
    }
    cli_json_set(entry, "arguments", arguments);
    cli_json_set(entry, "options", describe_options(command->options));
    return entry;
}

int cli_help_show(const cli_call *call, const cli_command *command)
{
    if (call->json) {
        cli_json *document = cli_json_object(), *commands = cli_json_array();
        cli_json_set(document, "version", cli_json_text(nbl_version()));
        for (int i = 0; cli_commands[i]; i++)
            if (command ? cli_commands[i] == command : cli_commands[i]->group != NULL)
                cli_json_add(commands, describe(cli_commands[i]));
        cli_json_set(document, "commands", commands);
        cli_json_set(document, "common_options", describe_options(cli_common_options));
        cli_json_print(document);
    } else if (command) {
        show_command(command);
    } else {
        show_overview();
    }
    return CLI_DONE;
}

static int run(cli_call *call)
{
    return cli_help_show(call, call->argument_count ? cli_find_command(call->arguments[0]) : NULL);
}

const cli_command cli_help = {
    .name = "help",
    .group = "More",
    .summary = "show what a command does, and its options",
    .description = "Shows the help of a command, or lists the commands. 'nibble COMMAND --help' does "
                   "the same.",
    .arguments =
        (const cli_argument[]){
            {"COMMAND", "a command; without it, all commands are listed", CLI_COMMAND, NULL, true},
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"all about quantize", "help quantize"},
            {NULL, NULL},
        },
    .run = run,
};
