/* process.h - the running process of a call: the library's context, progress, and signals.
 *
 * "Interrupt" means SIGINT (Ctrl-C), SIGTERM or SIGHUP. process.c explains what an interrupt does
 * in each phase of a call. */
#ifndef CLI_PROCESS_H
#define CLI_PROCESS_H

#include "command.h"

/* Prepares the process: standard streams, ignored signals, interruption. */
void cli_process_start(const cli_call *call);
/* Call it before standard output is written. After it an interrupt prints nothing to standard
 * output. */
void cli_process_end(void);

/* Makes the library's context for this call. Returns NULL after printing an error; *status is then
 * the exit status. */
nbl_context *cli_context(const cli_call *call, int *status);
/* Selects the device of --device. "auto" is the first CUDA device if it can be used. */
nbl_status cli_use_device(const cli_call *call, nbl_context *ctx);
/* Opens a run with the changes of --set and --device. `sets` is NULL if the command has no --set.
 * The context is not on the run's device yet: call cli_use_device_of. */
nbl_status cli_run_open(const cli_call *call, nbl_context *ctx, const char *path, const cli_value *sets,
                        nbl_run **run);
/* Selects the device of a run. */
nbl_status cli_use_device_of(nbl_context *ctx, const nbl_run *run);
/* Ends progress and releases the context. */
void cli_context_end(nbl_context *ctx);

/* Begins work that must be cleaned up: an interrupt now asks the library to stop and clean up.
 * Outside of work an interrupt ends the tool at once. `effect` is a part of the error line:
 * "nothing was written". */
void cli_work_begin(const char *effect);
/* Ends the work. If it succeeded, its result is reported even if an interrupt came. */
void cli_work_end(nbl_status code);

/* Returns nonzero if there was an interrupt, and forgets it: only another interrupt stops later
 * work. */
bool cli_interrupt_taken(void);

/* Begin and end an answer of a conversation. Between them the first Ctrl-C only sets the flag that
 * cli_interrupted returns. A second one, and any other signal, ends the tool. */
void cli_answer_begin(void);
void cli_answer_end(void);
bool cli_interrupted(void);

/* Begin and end the editing of a line. Between them a signal is only stored for
 * cli_prompt_signal. */
void cli_prompt_begin(void);
void cli_prompt_end(void);
int cli_prompt_signal(void); /* the signal's number; 0: no signal since the last call */

/* Prints the library's failure and returns the exit status. */
int cli_failure(const cli_call *call, const nbl_context *ctx, nbl_status code);

/* Shows progress in another unit than bytes ("tokens"). Returns true to stop, as a progress
 * callback does. */
bool cli_progress_count(const char *unit, uint64_t done, uint64_t total);
/* Turns the progress bar off: the command now shows progress itself and checks for interrupts. A
 * save that the library has begun is completed; a second interrupt stops it. */
void cli_progress_hide(void);

/* Returns the seconds of a monotonic clock. */
double cli_now(void);

/* ---- progress.c ---- */

typedef struct cli_progress {
    const char *command;
    const char *unit;                     /* the unit, such as "tokens"; NULL: bytes */
    int quiet, bar;                       /* bar: standard error is a terminal */
    int drawn;                            /* a bar is on the screen */
    int hidden;                           /* cli_progress_hide was called */
    double began, last_drawn, last_rated; /* cli_now */
    uint64_t last_done;
    double rate; /* bytes per second, smoothed */
} cli_progress;

void cli_progress_start(cli_progress *progress, const cli_call *call);
void cli_progress_show(cli_progress *progress, const nbl_progress *at);
void cli_progress_clear(cli_progress *progress); /* removes the bar from the screen */

#endif
