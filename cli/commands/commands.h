/* commands.h - the rows of all commands. commands.c names the file that defines each. All other
 * files reach a command through its row. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "command.h"

extern const cli_command cli_inspect, cli_diff, cli_doctor;
extern const cli_command cli_quantize, cli_dequantize, cli_merge, cli_export;
extern const cli_command cli_tokenize, cli_template;
extern const cli_command cli_plan, cli_logits, cli_grads, cli_generate, cli_chat, cli_eval;
extern const cli_command cli_data, cli_train;
extern const cli_command cli_completion, cli_help, cli_man;

#endif
