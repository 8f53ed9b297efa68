/* command.h - the tables that describe commands, and a parsed call of the tool.
 *
 * The row of a command (cli_command) has its name, arguments, options, defaults, help and examples.
 * Parsing (parse.c), --help (help.c), completions (completion.c) and the man page (man.c) are all
 * made from it. To add a command, write a file in commands/ with the row and its function, and add
 * the row to commands.c.
 *
 * The course of a call: main.c ─▶ cli_parse ─▶ cli_process_start ─▶ command->run ─▶ cli_finish.
 * The tool uses only the public header of the library. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "nibble.h"

/* The kind of a value. Values are checked while the command line is parsed, before any file is
 * opened. */
typedef enum cli_kind {
    CLI_FLAG,    /* takes no value */
    CLI_TEXT,    /* any text */
    CLI_PATH,    /* a file or a folder; not empty */
    CLI_CHOICE,  /* one of `choices` */
    CLI_COMMAND, /* the name of a command */
    CLI_INTEGER, /* an integer, minimum ... maximum */
    CLI_NUMBER,  /* finite, minimum ... maximum */
    CLI_SIZE     /* bytes: 4096, 500K, 1.5G, 5GB (powers of 1000), 64MiB (powers of 1024) */
} cli_kind;

/* A positional argument. */
typedef struct cli_argument {
    const char *name; /* "IN"; NULL ends the list */
    const char *help;
    cli_kind kind;
    const char *choices; /* "bash|zsh|fish" */
    bool optional;       /* only the last argument may be optional */
} cli_argument;

typedef struct cli_option {
    const char *name;     /* "format", without dashes; NULL ends the list */
    const char *argument; /* "FORMAT" in help texts; NULL for a flag */
    const char *help;     /* a phrase without a full stop; help.c adds the default */
    cli_kind kind;
    const char *choices;     /* "nf4|fp4" */
    const char *fallback;    /* the default, as a user would type it; NULL: none */
    double minimum, maximum; /* CLI_INTEGER, CLI_NUMBER */
    bool required;
    bool repeated; /* may be given several times; all texts are in cli_value.all */
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
    const cli_option *options; /* without cli_common_options */
    const cli_example *examples;
    int (*run)(cli_call *call); /* returns the exit status */
    bool computes;              /* runs a model: cli_context selects the device of --device */
} cli_command;

/* All commands in the order of the overview, ended by NULL, and the options that all commands
 * have. */
extern const cli_command *const cli_commands[];
extern const cli_option cli_common_options[];
/* Returns the command of this name, or NULL. */
const cli_command *cli_find_command(const char *name);

/* ---- one call of the tool, parsed ---- */

/* The value of an option. */
typedef struct cli_value {
    bool given;       /* true: typed by the user; false: the default or nothing */
    const char *text; /* as typed, or the default; NULL: neither */
    int64_t integer;  /* CLI_INTEGER; CLI_FLAG: 1 if given */
    double number;    /* CLI_NUMBER */
    uint64_t size;    /* CLI_SIZE: bytes */
    const char **all; /* repeated options: all texts, in order */
    int count;        /* number of texts in `all` */
} cli_value;

struct cli_call {
    const cli_command *command; /* NULL: the command line names none */
    const char **arguments;     /* positional arguments, in order */
    int argument_count;
    cli_value *common;               /* one per row of cli_common_options */
    cli_value *values;               /* one per row of command->options */
    bool json, quiet, help, version; /* values of common options */
    int threads;                     /* --threads; 0: all cores */
};

/* Exit statuses. */
enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_INTERRUPTED = 130 };

/* Fills `call` from the command line. Returns CLI_DONE, or CLI_USAGE after an error line. */
int cli_parse(int count, char **words, cli_call *call);
/* Returns the value of an option of this command, by its name in the table. Never NULL. */
const cli_value *cli_get(const cli_call *call, const char *option);

/* Checks `text` against the kind of an option or argument and fills *value. Returns NULL, or the
 * description of a valid value ("an integer from 1 to 1024"). */
const char *cli_value_read(const cli_option *rule, const char *text, cli_value *value);

/* Return the number of choices in a list such as "nf4|fp4", and the i-th choice, which is valid
 * until the tool ends. */
int cli_choice_count(const char *choices);
const char *cli_choice(const char *choices, int index);
/* Returns the choices as "a, b or c". */
const char *cli_choice_list(const char *choices);

/* Finds the candidate that a mistyped word is most similar to. Set `word`, call cli_nearest_try for
 * each candidate, and read `best`; NULL: none is similar enough. */
typedef struct cli_nearest {
    const char *word, *best;
    int distance;
} cli_nearest;
void cli_nearest_try(cli_nearest *nearest, const char *candidate);

#endif
