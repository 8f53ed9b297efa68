/* commands.c - the table of commands, and the options that all commands have. */
#include "commands/commands.h"

#include <stddef.h>
#include <string.h>

const cli_command *const cli_commands[] = {
    &cli_inspect,    /* inspect.c */
    &cli_diff,       /* diff.c */
    &cli_doctor,     /* doctor.c */
    &cli_quantize,   /* convert.c */
    &cli_dequantize, /* convert.c */
    &cli_merge,      /* merge.c */
    &cli_export,     /* export.c */
    &cli_tokenize,   /* tokenize.c */
    &cli_template,   /* template.c */
    &cli_plan,       /* plan.c */
    &cli_logits,     /* logits_grads.c */
    &cli_grads,      /* logits_grads.c */
    &cli_generate,   /* generate.c */
    &cli_chat,       /* chat.c */
    &cli_eval,       /* eval.c */
    &cli_data,       /* data.c */
    &cli_train,      /* train.c */
    &cli_completion, /* ../completion.c */
    &cli_help,       /* ../help.c */
    &cli_man,        /* ../man.c */
    NULL,
};

const cli_option cli_common_options[] = {
    {.name = "threads",
     .argument = "N",
     .kind = CLI_INTEGER,
     .minimum = 1,
     .maximum = 1024,
     .help = "threads to compute with (default: all cores); results do not depend on it"},
    {.name = "device",
     .argument = "DEVICE",
     .kind = CLI_CHOICE,
     .choices = "cpu|cuda|auto",
     .fallback = "auto",
     .help = "where to compute; auto is the first CUDA device if it can be used, or else the CPU"},
    {.name = "quiet", .letter = 'q', .help = "no progress, no warnings and no closing summary"},
    {.name = "json", .help = "exactly one JSON document on standard output, errors included"},
    {.name = "help", .letter = 'h', .help = "show this help"},
    {.name = "version", .letter = 'V', .help = "show the version"},
    {.name = NULL},
};

const cli_command *cli_find_command(const char *name)
{
    for (int i = 0; cli_commands[i]; i++)
        if (strcmp(cli_commands[i]->name, name) == 0) return cli_commands[i];
    return NULL;
}
