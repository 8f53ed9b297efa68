/* doctor.c - `nibble doctor`: reports the processor, the libraries and the CUDA devices that nibble
 * finds. It computes nothing. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands/commands.h"
#include "line.h"
#include "output.h"
#include "process.h"

/* Returns the name of the processor, or NULL if the system does not have it. */
static const char *processor(void)
{
    char name[256];
    return nbl_processor_name(name, sizeof name) ? cli_clean(cli_format("%s", name)) : NULL;
}

/* Returns the machine's memory in bytes; 0: unknown. */
static uint64_t memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

/* ---- linked libraries: those of libnibble and those of the tool ---- */

/* Fills *it with the index-th library: libnibble's, then libedit. Returns false past the end. */
static bool library(int64_t index, nbl_library *it)
{
    static const nbl_library none = {NBL_RESULT(nbl_library)};
    const char *libedit = cli_editor_version(); /* NULL: the tool was built without it */
    *it = none;
    if (nbl_library_get(index, it)) return true;
    int64_t count = 0;
    while (nbl_library_get(count, it)) count++;
    if (libedit == NULL || index != count) return false;
    it->name = "libedit";
    it->enables = "line editing and history in chat";
    snprintf(it->version, sizeof it->version, "%s", libedit);
    return true;
}

/* ---- CUDA: the driver is reported even by a build without CUDA ---- */

/* Returns the version of NVIDIA's driver, or NULL if no driver is loaded. */
static const char *nvidia_driver(void)
{
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    if (file == NULL) return NULL;
    char line[256];
    bool read = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    if (!read) return NULL;
    line[strcspn(line, "\n")] = '\0';
    /* "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04 ...": the first word of
     * digits and dots. */
    for (const char *word = line; *word; word += strspn(word, " ")) {
        size_t length = strcspn(word, " "), digits = strspn(word, "0123456789.");
        if (length > 0 && digits == length) return cli_clean(cli_format("%.*s", (int)length, word));
        word += length;
    }
    return cli_clean(cli_format("%s", line));
}

/* Returns the devices as an array, or null if there are none. *why is the library's reason, or
 * NULL. */
static cli_json *cuda_devices(nbl_context *ctx, const char **why)
{
    int count = 0;
    *why = NULL;
    if (!nbl_cuda_built()) return cli_json_null();
    if (nbl_cuda_device_count(ctx, &count) != NBL_OK) {
        *why = cli_format("%s", nbl_error_message(ctx));
        return cli_json_null();
    }
    cli_json *devices = cli_json_array();
    for (int i = 0; i < count; i++) {
        nbl_cuda_device device = {NBL_RESULT(nbl_cuda_device)};
        if (nbl_cuda_device_get(ctx, i, &device) != NBL_OK) {
            *why = cli_format("%s", nbl_error_message(ctx));
            continue;
        }
        cli_json *it = cli_json_object();
        cli_json_set(it, "name", cli_json_text(device.name));
        cli_json_set(it, "compute_capability",
                     cli_json_text(cli_format("%d.%d", device.major, device.minor)));
        cli_json_set(it, "memory_bytes", cli_json_unsigned(device.memory_bytes));
        cli_json_add(devices, it);
    }
    return devices;
}

/* ---- what is printed ---- */

/* Prints the document for --json. "isa" is in use, "isa_found" the best that the processor has.
 * NIBBLE_ISA can make the two differ. */
static void print_json(nbl_context *ctx, const char *cpu)
{
    cli_json *document = cli_json_object(), *levels = cli_json_array(), *libraries = cli_json_array();
    nbl_isa_level level = {NBL_RESULT(nbl_isa_level)};
    nbl_library lib;
    const char *found = "";
    for (int64_t i = 0; nbl_isa_level_get(ctx, i, &level); i++) {
        cli_json *it = cli_json_object();
        cli_json_set(it, "name", cli_json_text(level.name));
        cli_json_set(it, "found", cli_json_boolean(level.found));
        cli_json_set(it, "used", cli_json_boolean(level.used));
        cli_json_set(it, "enables", cli_json_text(level.enables));
        cli_json_add(levels, it);
        if (level.found) found = level.name;
    }
    for (int64_t i = 0; library(i, &lib); i++) {
        cli_json *it = cli_json_object();
        cli_json_set(it, "name", cli_json_text(lib.name));
        cli_json_set(it, "version", cli_json_text(lib.version));
        cli_json_set(it, "enables", cli_json_text(lib.enables));
        cli_json_add(libraries, it);
    }
    cli_json_set(document, "version", cli_json_text(nbl_version()));
    cli_json_set(document, "cpu", cli_json_text(cpu));
    cli_json_set(document, "cores", cli_json_unsigned((uint64_t)nbl_cores()));
    cli_json_set(document, "threads", cli_json_unsigned((uint64_t)nbl_threads(ctx)));
    cli_json_set(document, "memory_bytes", cli_json_unsigned(memory_bytes()));
    cli_json_set(document, "isa", cli_json_text(nbl_isa_name(ctx)));
    cli_json_set(document, "isa_found", cli_json_text(found));
    cli_json_set(document, "isa_levels", levels);
    cli_json_set(document, "libraries", libraries);
    const char *why;
    cli_json_set(document, "cuda", cuda_devices(ctx, &why));
    cli_json_set(document, "cuda_built", cli_json_boolean(nbl_cuda_built()));
    cli_json_set(document, "cuda_error", cli_json_text(why));
    cli_json_set(document, "cuda_driver", cli_json_text(nvidia_driver()));
    cli_json_print(document);
}

/* Prints one aligned line "name  text". */
static void fact(const char *name, const char *text)
{
    fprintf(cli_out(), "%s%-8s%s %s\n", cli_styled(CLI_BOLD), name, cli_styled(CLI_PLAIN), text);
}

static void print_cuda(nbl_context *ctx)
{
    const char *driver = nvidia_driver();
    int count = 0;
    if (!nbl_cuda_built()) {
        fact("cuda",
             cli_format("not built in%s%s; everything runs on the processor",
                        driver ? ", though there is an NVIDIA driver " : "; no NVIDIA driver was found",
                        driver ? driver : ""));
    } else if (nbl_cuda_device_count(ctx, &count) != NBL_OK) {
        fact("cuda", cli_format("built in; %s", nbl_error_message(ctx)));
    } else {
        fact("cuda", cli_format("built in; driver %s", driver ? driver : "unknown"));
        for (int i = 0; i < count; i++) {
            nbl_cuda_device device = {NBL_RESULT(nbl_cuda_device)};
            if (nbl_cuda_device_get(ctx, i, &device) != NBL_OK)
                fprintf(cli_out(), "  %-12d %s\n", i, nbl_error_message(ctx));
            else
                fprintf(cli_out(), "  %-12d %-28s compute capability %d.%d, %s\n", i, device.name,
                        device.major, device.minor, cli_bytes((double)device.memory_bytes));
        }
    }
}

/* Prints the facts for people, the CUDA devices last. */
static void print_text(nbl_context *ctx, const char *cpu)
{
    const char *forced = getenv("NIBBLE_ISA");
    nbl_isa_level level = {NBL_RESULT(nbl_isa_level)};
    nbl_library lib;
    fact("nibble", nbl_version());
    fact("cpu", cpu ? cpu : "unknown");
    fact("cores", cli_format("%d", nbl_cores()));
    fact("threads", cli_format("%d", nbl_threads(ctx)));
    fact("memory", cli_bytes((double)memory_bytes()));
    fact("isa", cli_format("%s%s", nbl_isa_name(ctx), forced && *forced ? " (NIBBLE_ISA is set)" : ""));
    for (int64_t i = 0; nbl_isa_level_get(ctx, i, &level); i++)
        fprintf(cli_out(), "  %-12s %-10s %s\n", level.name,
                level.used    ? "used"
                : level.found ? "found"
                              : "not found",
                level.enables);
    fprintf(cli_out(), "%slibraries%s\n", cli_styled(CLI_BOLD), cli_styled(CLI_PLAIN));
    for (int64_t i = 0; library(i, &lib); i++)
        fprintf(cli_out(), "  %-12s %-28s %s\n", lib.name, lib.version, lib.enables);
    print_cuda(ctx);
}

static int run(cli_call *call)
{
    int status;
    nbl_context *ctx = cli_context(call, &status);
    if (ctx == NULL) return status;
    const char *cpu = processor();
    if (call->json) print_json(ctx, cpu);
    else print_text(ctx, cpu);
    cli_context_end(ctx);
    return status;
}

const cli_command cli_doctor = {
    .name = "doctor",
    .group = "Look",
    .summary = "show the processor, the libraries and the CUDA devices",
    .description = "Shows the processor, its cores and the memory. Shows the instruction "
                   "sets that were found and those that the kernels use. Shows the "
                   "versions of the linked libraries, whether CUDA is built in, and "
                   "whether a driver is there. Says what each of them enables.",
    .examples =
        (const cli_example[]){
            {"what a bug report should contain", "doctor"},
            {NULL, NULL},
        },
    .run = run,
};
