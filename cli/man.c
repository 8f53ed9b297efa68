/* man.c - `nibble man`: writes the manual page nibble(1), made from the tables of commands. Hidden
 * commands (no group) are left out. */
#include <string.h>

#include "commands/commands.h"
#include "help.h"
#include "output.h"

/* Writes text as roff, escaped: no line is a request, and hyphens and quotes stay ASCII, so that
 * examples can be copied. */
static void put_text(FILE *to, const char *text)
{
    static const char *const escapes[] = {"\\\\e", "-\\-", "'\\(aq", "\"\\(dq", "^\\(ha", "~\\(ti", "`\\(ga"};
    bool line_begins = true;
    for (; *text; text++) {
        const char *replacement = NULL;
        for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++)
            if (escapes[i][0] == *text) replacement = escapes[i] + 1;
        if (text[0] == '\n' && text[1] == '\n') {
            fputs("\n.PP\n", to);
            text++;
        } else if (replacement) {
            fputs(replacement, to);
        } else {
            fprintf(to, "%s%c", line_begins && *text == '.' ? "\\&" : "", *text);
        }
        line_begins = *text == '\n';
    }
}

static void put_paragraph(FILE *to, const char *text)
{
    fputs(".PP\n", to);
    put_text(to, text);
    fputc('\n', to);
}

/* Writes a term in bold and its explanation, indented. */
static void put_item(FILE *to, const char *term, const char *text)
{
    fputs(".TP\n\\fB", to);
    put_text(to, term);
    fputs("\\fR\n", to);
    put_text(to, text);
    fputc('\n', to);
}

/* Writes a list of options, each with its help, choices and default. */
static void put_options(FILE *to, const cli_option *options)
{
    for (const cli_option *o = options; o && o->name; o++) {
        fputs(".TP\n", to);
        if (o->letter) fprintf(to, "\\fB\\-%c\\fR, ", o->letter);
        fputs("\\fB", to);
        put_text(to, cli_format("--%s", o->name));
        fputs("\\fR", to);
        if (o->kind != CLI_FLAG) fprintf(to, " \\fI%s\\fR", o->argument);
        fputc('\n', to);
        put_text(to, cli_option_text(o));
        fputc('\n', to);
    }
}

/* Writes "nibble quantize IN OUT --format FORMAT [--block N]". Words to type are bold, placeholders
 * italic. An option and its value stay on one line. */
static void put_synopsis(FILE *to, const cli_command *command)
{
    fprintf(to, ".nh\n\\fBnibble %s\\fR", command->name);
    for (const cli_argument *a = command->arguments; a && a->name; a++)
        fprintf(to, a->optional ? " [\\fI%s\\fR]" : " \\fI%s\\fR", a->name);
    for (const cli_option *o = command->options; o && o->name; o++) {
        fprintf(to, " %s\\fB", o->required ? "" : "[");
        put_text(to, cli_format("--%s", o->name));
        fputs("\\fR", to);
        if (o->kind != CLI_FLAG) fprintf(to, "\\~\\fI%s\\fR", o->argument);
        if (!o->required) fputc(']', to);
    }
    fputs("\n.hy\n", to);
}

/* Writes the section of a command: synopsis, description, arguments, options, examples. */
static void put_command(FILE *to, const cli_command *command)
{
    fputs(".SS ", to);
    put_text(to, command->name);
    fputc('\n', to);
    put_synopsis(to, command);
    put_paragraph(to, command->description);
    for (const cli_argument *a = command->arguments; a && a->name; a++) put_item(to, a->name, a->help);
    put_options(to, command->options);
    for (const cli_example *e = command->examples; e && e->what; e++) {
        put_paragraph(to, cli_format("Example: %s", e->what));
        fputs(".RS\n.EX\n", to);
        put_text(to, cli_format("nibble %s", e->line));
        fputs("\n.EE\n.RE\n", to);
    }
}

/* Writes the whole page. The fixed texts are here; all others come from the tables. */
static void put_page(FILE *to)
{
    fprintf(to, ".\\\" Made by: nibble man\n.TH NIBBLE 1 \"\" \"nibble %s\" \"User Commands\"\n",
            nbl_version());
    fputs(".SH NAME\nnibble \\- ", to);
    put_text(to, CLI_ABOUT);
    fputs("\n.SH SYNOPSIS\n\\fBnibble\\fR \\fICOMMAND\\fR [\\fIarguments\\fR] [\\fIoptions\\fR]\n.SH "
          "DESCRIPTION\n",
          to);
    put_text(
        to,
        "nibble fine-tunes language models whose frozen weights stay in 4 or 8 bits. It also runs, measures, "
        "quantizes, merges and exports them. It runs on the processor or on the first CUDA device, and needs "
        "no "
        "Python.\n\n"
        "A model is a folder in Hugging Face layout (config.json and one or more .safetensors files) or a "
        ".gguf "
        "file. Nothing is downloaded. If a name of the Hugging Face hub is given, the error says how to get "
        "the "
        "model. A folder that is written appears complete or not at all. No model is overwritten.\n\n"
        "A training run is a YAML file with axolotl's keys. docs/CONFIG.md of the sources lists them. "
        "'nibble "
        "train RUN.yml --check' lists the keys of a file that are refused or have no effect.");
    fputs("\n.SH COMMANDS\n", to);
    for (int i = 0; cli_commands[i]; i++)
        if (cli_commands[i]->group) put_command(to, cli_commands[i]);
    fputs(".SH COMMON OPTIONS\n", to);
    put_text(to, "They can stand before or after the name of the command. '--name value' and "
                 "'--name=value' mean the same. '--' ends options. If an option is given twice, "
                 "the last one counts.");
    fputc('\n', to);
    put_options(to, cli_common_options);
    fputs(".SH ERRORS\n", to);
    put_text(
        to,
        "An error is one line on standard error, 'nibble: COMMAND: what, where, why', and at most one more "
        "line with a hint. If several keys of a run are refused, an indented line for each reason follows "
        "the first. With --json it is also a document on standard output: "
        "{\"error\": {\"code\": \"NBL_ERROR_...\", \"message\": \"...\"}}.");
    fputs("\n.SH EXIT STATUS\n", to);
    for (const cli_topic *t = cli_exit_statuses; t->name; t++) put_item(to, t->name, t->text);
    fputs(".SH ENVIRONMENT\n", to);
    for (const cli_topic *t = cli_environment; t->name; t++) put_item(to, t->name, t->text);
}

static int run(cli_call *call)
{
    cli_text_result(call, "page", put_page);
    return CLI_DONE;
}

const cli_command cli_man = {
    .name = "man",
    .group = NULL, /* for packagers: `nibble man > nibble.1` */
    .summary = "the manual page",
    .description = "Prints the manual page nibble(1) in roff.",
    .examples =
        (const cli_example[]){
            {"read it", "man | man -l -"},
            {NULL, NULL},
        },
    .run = run,
};
