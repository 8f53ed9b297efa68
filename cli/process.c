/* process.c - the running process: standard streams, signals, and the library's context.
 *
 * An interrupt is SIGINT (Ctrl-C), SIGTERM or SIGHUP. Its effect depends on the phase; the exit
 * status is 130 in each case:
 *
 *     phase                    first interrupt                     second         third
 *     a line is edited         stored for cli_prompt_signal
 *     an answer of a chat      Ctrl-C: ends the answer             ends the tool
 *     the library works        it cleans up and returns                           ends the tool
 *     a run trains             ends after this step, with a save   no save        ends the tool
 *     any other                ends the tool
 *
 * The handler only sets flags. The progress callback passes them to the library. While a run trains
 * its progress is hidden, so the handler itself acknowledges the first interrupt. */
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "live.h"
#include "output.h"

static volatile sig_atomic_t interrupted, working, answering; /* interrupted: a count, up to 2 */
static volatile sig_atomic_t presses; /* interrupts since the work or the answer began */
static volatile sig_atomic_t prompting, prompt_signal;
static bool stopping; /* cli_interrupt_taken has reported an interrupt */
static const char *work_effect = "";
static cli_progress progress;

/* What the handler writes before it ends the tool. The texts are made in advance, because a signal
 * handler must not allocate. */
static const char *last_error, *last_document;
static size_t last_error_size;
static volatile sig_atomic_t last_document_size;

/* The signal handler; the table above in code. It calls only async-signal-safe functions: write and
 * _exit. Texts and sizes were prepared by cli_process_start. */
static void on_signal(int signal_number)
{
    static const char acknowledged[] =
        "stopping after this step; press Ctrl-C again to stop without saving\n";
    bool again = interrupted;
    ssize_t ignored;
    if (prompting) {
        prompt_signal = signal_number;
        return;
    }
    interrupted = again ? 2 : 1;
    presses = presses < 3 ? presses + 1 : 3;
    if (working && presses > 2) _exit(CLI_INTERRUPTED);
    if (working && presses == 1 && progress.hidden && !progress.quiet) {
        const char *clearing = cli_live_clearing();
        ignored = write(STDERR_FILENO, clearing, strlen(clearing));
        ignored = write(STDERR_FILENO, acknowledged, sizeof acknowledged - 1);
    }
    if (working || (answering && signal_number == SIGINT && !again)) return;
    ignored = write(STDERR_FILENO, last_error, last_error_size);
    if (last_document_size) ignored = write(STDOUT_FILENO, last_document, (size_t)last_document_size);
    (void)ignored;
    _exit(CLI_INTERRUPTED);
}

/* Opens /dev/null for standard descriptors that the caller has closed. Otherwise a file that the
 * library opens would become standard output. */
static void fill_standard_streams(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
        /* Standard output is opened for reading only: writing fails, and the lost result is an
         * error. */
        int opened = open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR);
        if (opened != fd) _exit(CLI_FAILED);
    }
}

void cli_process_start(const cli_call *call)
{
    fill_standard_streams();
    last_error = cli_format("nibble: %s: interrupted\n", call->command ? call->command->name : "");
    last_error_size = strlen(last_error);
    last_document = "{\"error\": {\"code\": \"NBL_ERROR_CANCELLED\", \"message\": \"interrupted\"}}\n";
    last_document_size = call->json ? (sig_atomic_t)strlen(last_document) : 0;

    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction before;
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* keep nohup's SIG_IGN */
        sigaction(SIGHUP, &action, NULL);

    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL); /* a closed pipe becomes an error of write */
    sigaction(SIGXFSZ, &action, NULL); /* a file size limit too */
    (void)nbl_guard_mapped_files();    /* a file that is truncated while mapped becomes an error */
}

void cli_process_end(void)
{
    last_document_size = 0;
}

double cli_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void cli_work_begin(const char *effect)
{
    work_effect = effect;
    working = 1;
}

void cli_work_end(nbl_status code)
{
    working = code == NBL_OK && *work_effect;
    cli_progress_clear(&progress);
}

bool cli_interrupt_taken(void)
{
    int taken = interrupted;
    interrupted = taken > 1; /* a second interrupt stays: it stops the save */
    stopping = stopping || taken;
    return taken;
}

void cli_answer_begin(void)
{
    interrupted = 0;
    presses = 0;
    answering = 1;
}

void cli_answer_end(void)
{
    answering = 0;
    interrupted = 0;
    presses = 0;
}

void cli_prompt_begin(void)
{
    prompt_signal = 0;
    prompting = 1;
}

void cli_prompt_end(void)
{
    prompting = 0;
}

int cli_prompt_signal(void)
{
    int number = prompt_signal;
    prompt_signal = 0;
    return number;
}

bool cli_interrupted(void)
{
    return interrupted;
}

/* ---- the context ---- */

/* The library's progress callback. Returns true to cancel. While a run trains (hidden), only a
 * second interrupt cancels the library's work; the first one is taken between two steps. */
static bool on_progress(void *user, const nbl_progress *at)
{
    const cli_progress *shown = user;
    if (answering) return false; /* chat checks cli_interrupted between two tokens */
    if (shown->hidden) cli_live_resize();
    else if (!interrupted) cli_progress_show(user, at);
    return shown->hidden && !stopping ? interrupted > 1 : interrupted > 0;
}

bool cli_progress_count(const char *unit, uint64_t done, uint64_t total)
{
    progress.unit = unit;
    return on_progress(&progress, &(nbl_progress){.done = done, .total = total});
}

void cli_progress_hide(void)
{
    cli_progress_clear(&progress);
    progress.hidden = 1;
}

/* The library's log callback. Debug lines are shown if NIBBLE_VERBOSE asks for their kind, even
 * with --quiet; other lines are shown without --quiet. */
static void on_log(void *user, nbl_log_level level, const char *line)
{
    cli_progress *shown = user;
    const char *verbose = getenv("NIBBLE_VERBOSE");
    bool profile = strncmp(line, "profile: ", 9) == 0; /* debug lines are either profile or dispatch */
    if (level == NBL_LOG_DEBUG && verbose && strcmp(verbose, profile ? "profile" : "dispatch") == 0) {
        cli_progress_clear(shown);
        fprintf(stderr, "nibble: %s: %s\n", shown->command, cli_clean(line));
        return;
    }
    if (shown->quiet || level == NBL_LOG_DEBUG) return;
    cli_progress_clear(shown);
    fprintf(stderr, "nibble: %s: %s%s\n", shown->command, level == NBL_LOG_WARNING ? "warning: " : "",
            cli_clean(line));
}

nbl_status cli_use_device(const cli_call *call, nbl_context *ctx)
{
    const char *device = cli_get(call, "device")->text;
    int count;
    if (strcmp(device, "cpu") == 0) return NBL_OK;
    if (strcmp(device, "cuda") == 0 || nbl_cuda_usable(ctx)) return nbl_context_use_cuda(ctx, 0);
    if (nbl_cuda_device_count(ctx, &count) != NBL_OK || progress.quiet) return NBL_OK;
    nbl_cuda_usable(ctx); /* sets the message: why the device is not usable */
    fprintf(stderr, "nibble: %s: warning: the CPU computes: %s\n", progress.command,
            cli_clean(nbl_error_message(ctx)));
    return NBL_OK;
}

nbl_status cli_run_open(const cli_call *call, nbl_context *ctx, const char *path, const cli_value *sets,
                        nbl_run **run)
{
    const cli_value *device = cli_get(call, "device");
    int64_t count = sets ? sets->count : 0;
    const char **overrides = cli_alloc(((size_t)count + 1) * sizeof *overrides);
    for (int64_t i = 0; i < count; i++) overrides[i] = sets->all[i];
    if (device->given) overrides[count++] = cli_format("device=%s", device->text);
    return nbl_run_open(ctx, path, overrides, count, run);
}

nbl_status cli_use_device_of(nbl_context *ctx, const nbl_run *run)
{
    return nbl_run_get_info(run)->device == NBL_DEVICE_CUDA ? nbl_context_use_cuda(ctx, 0) : NBL_OK;
}

nbl_context *cli_context(const cli_call *call, int *status)
{
    cli_progress_start(&progress, call);
    nbl_context_options options = {
        NBL_OPTIONS(nbl_context_options), .threads = call->threads,   .log = on_log, .log_user = &progress,
        .progress = on_progress,          .progress_user = &progress,
    };
    nbl_context *ctx;
    nbl_status code = nbl_context_create(&options, &ctx);
    *status = CLI_DONE;
    /* commands that do not compute need no device */
    if (code == NBL_OK && call->command->computes) {
        nbl_status device = cli_use_device(call, ctx);
        if (device == NBL_OK) return ctx;
        *status = cli_failure(call, ctx, device);
        cli_context_end(ctx);
        return NULL;
    }
    if (code == NBL_OK) return ctx;
    const char *isa = getenv("NIBBLE_ISA");
    if (code == NBL_ERROR_ARGUMENT && isa && *isa)
        *status = cli_error(call, code, "use scalar, avx2, avx512, avx512bf16 or amx, or leave it out",
                            "NIBBLE_ISA: there is no instruction set '%s'", isa);
    else *status = cli_error(call, code, NULL, "the library does not start: %s", nbl_status_text(code));
    return NULL;
}

void cli_context_end(nbl_context *ctx)
{
    cli_progress_clear(&progress);
    nbl_context_destroy(ctx);
}

int cli_failure(const cli_call *call, const nbl_context *ctx, nbl_status code)
{
    cli_progress_clear(&progress);
    if (code == NBL_ERROR_CANCELLED)
        return cli_error(call, code, NULL, "interrupted%s%s", *work_effect ? "; " : "", work_effect);
    return cli_library_error(call, ctx, code, nbl_error_hint(ctx));
}
