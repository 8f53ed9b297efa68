/* doctor.c - `nibble doctor`: the machine as nibble sees it. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "output.h"
#include "session.h"

/* The processor's name as the system tells it; NULL when it does not. */
static const char *processor(void)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (file == NULL) return NULL;
    char line[512];
    const char *name = NULL;
    while (name == NULL && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || value == NULL) continue;
        value += strspn(value, ": \t");
        size_t length = strcspn(value, "\n");
        while (length && isspace((unsigned char)value[length - 1])) length--;
        if (length) name = cli_clean(cli_format("%.*s", (int)length, value));
    }
    fclose(file);
    return name;
}

static uint64_t memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

static void fact(const char *name, const char *text)
{
    fprintf(cli_out(), "%s%-8s%s %s\n", cli_styled(CLI_BOLD), name, cli_styled(CLI_PLAIN), text);
}

static int run(cli_call *call)
{
    int status;
    nbl_context *ctx = cli_context(call, &status);
    if (ctx == NULL) return status;
    const char *cpu = processor(), *forced = getenv("NIBBLE_ISA");
    if (call->json) {
        json_t *document = cli_json_object();
        cli_json_set(document, "version", cli_json_text(nbl_version()));
        cli_json_set(document, "cpu", cli_json_text(cpu));
        cli_json_set(document, "isa", cli_json_text(nbl_isa_name(ctx)));
        cli_json_set(document, "threads", cli_json_unsigned((uint64_t)nbl_threads(ctx)));
        cli_json_set(document, "memory_bytes", cli_json_unsigned(memory_bytes()));
        cli_json_set(document, "cuda", json_null());
        cli_json_print(document);
    } else {
        fact("nibble", nbl_version());
        fact("cpu", cpu ? cpu : "unknown");
        fact("isa", cli_format("%s%s", nbl_isa_name(ctx), forced && *forced ? " (NIBBLE_ISA is set)" : ""));
        fact("threads", cli_format("%d", nbl_threads(ctx)));
        fact("memory", cli_bytes((double)memory_bytes()));
        fact("cuda", "none: this build has no CUDA backend");
    }
    cli_context_end(ctx);
    return status;
}

const cli_command cli_doctor = {
    .name = "doctor",
    .group = "Look",
    .summary = "the machine as nibble sees it",
    .description =
        "Tells the processor, the instruction set that the kernels use, the threads, the memory, and the "
        "devices that were found.",
    .examples =
        (const cli_example[]){
            {"what a bug report should contain", "doctor"},
            {NULL, NULL},
        },
    .run = run,
};
