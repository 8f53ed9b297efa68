/* main.c - the command `nibble`: parses the command line, runs the command, writes its output.
 * command.h explains the tables of commands.
 *
 * Output appears last: cli_finish writes it after the command has succeeded or failed. So the exit
 * status can still become CLI_FAILED when standard output cannot be written. */
#include "help.h"
#include "output.h"
#include "process.h"

#include <string.h>

static int show_version(const cli_call *call)
{
    if (call->json) {
        cli_json *document = cli_json_object();
        cli_json_set(document, "version", cli_json_text(nbl_version()));
        cli_json_print(document);
    } else {
        fprintf(cli_out(), "nibble %s\n", nbl_version());
    }
    return CLI_DONE;
}

/* --version and --help win over the command. */
static int run(cli_call *call)
{
    if (call->version) return show_version(call);
    if (call->help) return cli_help_show(call, call->command);
    return call->command->run(call);
}

int main(int count, char **words)
{
    cli_call call;
    int status = cli_parse(count, words, &call);
    cli_process_start(&call);
    if (status == CLI_DONE) status = run(&call);
    cli_process_end();
    status = cli_finish(&call, status);
    cli_json_end();
    cli_free_all();
    return status;
}
