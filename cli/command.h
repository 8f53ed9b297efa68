/* command.h - what a command of the tool is: one table.
 *
 * A command's row says its name, arguments, options, defaults, help and examples. Everything a user
 * sees comes from it: parsing (parse.c), --help (help.c), completions (completion.c) and the man
 * page (man.c). To add a command, write one file with its row and its function, and name the row in
 * commands.c.
 *
 * The tool uses the public header of the library only. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "nibble.h"

/* What a value must look like. A wrong one is refused before anything is opened. */
typedef enum cli_kind {
    CLI_FLAG,    /* takes no value */
    CLI_TEXT,    /* anything */
    CLI_PATH,    /* a file or a folder; not empty */
    CLI_CHOICE,  /* one of `choices` */
    CLI_COMMAND, /* the name of a command */
    CLI_INTEGER, /* digits, minimum ... maximum */
    CLI_NUMBER,  /* finite, minimum ... maximum */
    CLI_SIZE     /* bytes: 4096, 500K, 1.5G, 5GB (powers of 1000), 64MiB (powers of 1024) */
} cli_kind;

typedef struct cli_argument {
    const char *name; /* "IN"; NULL ends the list */
    const char *help;
    cli_kind kind;
    const char *choices; /* "bash|zsh|fish" */
    bool optional;       /* only the last may be */
} cli_argument;

typedef struct cli_option {
    const char *name;     /* "format", without dashes; NULL ends the list */
    const char *argument; /* "FORMAT" in help texts; NULL for a flag */
    const char *help;     /* a phrase without a full stop; the default is added to it */
    cli_kind kind;
    const char *choices;     /* "nf4|fp4" */
    const char *fallback;    /* the value when it is not given, as one would type it; NULL: none */
    double minimum, maximum; /* of integers and numbers */
    bool required;
    bool repeated; /* may be given several times: cli_value.all */
    char letter;   /* 'h' for -h; 0: none */
} cli_option;

typedef struct cli_example {
    const char *what; /* NULL ends the list */
    const char *line; /* without "nibble " */
} cli_example;

typedef struct cli_call cli_call;

typedef struct cli_command {
    const char *name;
    const char *group;       /* heading in the overview; NULL: hidden */
    const char *summary;     /* a phrase */
    const char *description; /* paragraphs, an empty line between them */
    const cli_argument *arguments;
    const cli_option *options; /* its own; the common ones come on top */
    const cli_example *examples;
    int (*run)(cli_call *call); /* returns the exit status */
    bool computes;              /* with a model: cli_context has it run on what --device says */
} cli_command;

/* All commands in the order of the overview, ending with NULL, and the options of all of them. */
extern const cli_command *const cli_commands[];
extern const cli_option cli_common_options[];
/* NULL when there is none of that name. */
const cli_command *cli_find_command(const char *name);

/* ---- one call of the tool, parsed ---- */

typedef struct cli_value {
    bool given;       /* typed by the user, not the default */
    const char *text; /* as typed, or the default; NULL: neither */
    int64_t integer;  /* of CLI_INTEGER; of a flag: 1 when given */
    double number;    /* of CLI_NUMBER */
    uint64_t size;    /* of CLI_SIZE */
    const char **all; /* of a repeated option: every text, in order */
    int count;        /* of those */
} cli_value;

struct cli_call {
    const cli_command *command; /* NULL: none was named */
    const char **arguments;     /* positional ones, in order */
    int argument_count;
    cli_value *common;               /* one per row of cli_common_options */
    cli_value *values;               /* one per row of command->options */
    bool json, quiet, help, version; /* common options, unfolded */
    int threads;                     /* 0: all cores */
};

enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_INTERRUPTED = 130 };

/* Fills `call` from the command line. Returns CLI_DONE, or CLI_USAGE after an error line. */
int cli_parse(int count, char **words, cli_call *call);
/* The value of an option of this command, named as in its table. Never NULL. */
const cli_value *cli_get(const cli_call *call, const char *option);

/* Checks `text` against the kind of an option or argument and fills *value. Returns NULL, or what a
 * right value would be ("an integer from 1 to 1024"). */
const char *cli_value_read(const cli_option *rule, const char *text, cli_value *value);

/* Number of '|'-separated choices, and the i-th one (kept until the tool ends). */
int cli_choice_count(const char *choices);
const char *cli_choice(const char *choices, int index);
/* "a, b or c". */
const char *cli_choice_list(const char *choices);

/* The candidate that a mistyped word was most likely meant to be, or NULL. Fed one by one. */
typedef struct cli_nearest {
    const char *word, *best;
    int distance;
} cli_nearest;
void cli_nearest_try(cli_nearest *nearest, const char *candidate);

#endif
