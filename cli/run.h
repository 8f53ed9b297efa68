/* run.h - shared rows of the commands that take a training run: the argument RUN.yml and --set. The
 * functions that open a run are in process.h (cli_run_open, cli_use_device_of). */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "command.h"

#define CLI_RUN_ARGUMENT                                                                                     \
    (const cli_argument[])                                                                                   \
    {                                                                                                        \
        {"RUN.yml", "the run: a YAML file with axolotl's key names", CLI_PATH, NULL, false}, {.name = NULL}, \
    }
#define CLI_SET_OPTION                                                                                       \
    {                                                                                                        \
        .name = "set", .argument = "KEY=VALUE", .kind = CLI_TEXT, .repeated = true,                          \
        .help = "override a key of RUN.yml; VALUE is YAML, and null means not given"                         \
    }

#endif
