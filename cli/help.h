/* help.h - texts made from the tables, used by --help, the man page and the completions. */
#ifndef CLI_HELP_H
#define CLI_HELP_H

#include "command.h"

#define CLI_ABOUT "fine-tunes language models whose frozen weights stay in 4 or 8 bits"

/* Prints the help of a command, or the overview when it is NULL. */
int cli_help_show(const cli_call *call, const cli_command *command);

/* "nibble quantize IN OUT --format FORMAT [--block N] ..." */
const char *cli_synopsis(const cli_command *command);
/* "-q, --quiet" or "--format FORMAT". */
const char *cli_option_usage(const cli_option *option);
/* The help of an option with its choices, its default, or that it is required. */
const char *cli_option_text(const cli_option *option);

typedef struct cli_topic {
    const char *name, *text;
} cli_topic;
/* Exit statuses and environment variables, for the overview and the man page; end with NULL. */
extern const cli_topic cli_exit_statuses[], cli_environment[];

#endif
