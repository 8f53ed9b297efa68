/* help.h - texts made from the tables of commands, for --help, the man page and the completions.
 * Texts are valid until the tool ends.
 *
 * help.c prints the overview, the help of a command, and both as JSON. man.c and completion.c are
 * commands of their own that use these texts. */
#ifndef CLI_HELP_H
#define CLI_HELP_H

#include "command.h"

#define CLI_ABOUT "fine-tunes language models whose frozen weights stay in 4 or 8 bits"

/* Prints the help of a command; NULL: the overview. Returns the exit status. */
int cli_help_show(const cli_call *call, const cli_command *command);

/* Returns the usage line: "nibble quantize IN OUT --format FORMAT [--block N] ..." */
const char *cli_synopsis(const cli_command *command);
/* Returns "-q, --quiet" or "--format FORMAT". */
const char *cli_option_usage(const cli_option *option);
/* Returns the help of an option, with its choices and its default, or with a note that it is
 * required. */
const char *cli_option_text(const cli_option *option);

typedef struct cli_topic {
    const char *name, *text;
} cli_topic;
/* Exit statuses and environment variables, for the overview and the man page. A NULL name ends a
 * list. */
extern const cli_topic cli_exit_statuses[], cli_environment[];

#endif
