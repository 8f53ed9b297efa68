/* session.h - a call of the tool at work: the library's context, progress, signals. */
#ifndef CLI_SESSION_H
#define CLI_SESSION_H

#include "command.h"

/* Prepares the process: standard streams, ignored signals, interruption. */
void cli_session_start(const cli_call *call);
/* From here on standard output is being written: an interrupt adds nothing to it. */
void cli_session_end(void);

/* The library's context for this call, or NULL after an error line; *status is the exit status. */
nbl_context *cli_context(const cli_call *call, int *status);
/* Has the context run on what --device says; auto is the first CUDA device if it can be used. */
nbl_status cli_use_device(const cli_call *call, nbl_context *ctx);
/* Opens a run with what --set (NULL: the command has none) and --device say of it; the context is not on its device yet. */
nbl_status cli_run_open(const cli_call *call, nbl_context *ctx, const char *path, const cli_value *sets,
                        nbl_run **run);
/* Has the context run on the device that a run was given. */
nbl_status cli_use_device_of(nbl_context *ctx, const nbl_run *run);
/* Ends progress and releases the context. */
void cli_context_end(nbl_context *ctx);

/* From here on an interrupt asks the library to stop and clean up; without it, it ends the tool at
 * once. `effect` goes with the error line: "nothing was written". */
void cli_work_begin(const char *effect);
/* Work that is done and has an effect is told of in any case: an interrupt then comes too late. */
void cli_work_end(nbl_status code);

/* Was there an interrupt? It is taken then: only another one stops what follows. */
int cli_interrupt_taken(void);

/* Around an answer of a conversation: an interrupt from the terminal (Ctrl-C) only raises the flag that
 * cli_interrupted tells, a second one ends the tool, as does any other signal. */
void cli_answer_begin(void);
void cli_answer_end(void);
bool cli_interrupted(void);

/* Around a line that is edited: a signal is kept until it is asked for, and ends nothing. */
void cli_prompt_begin(void);
void cli_prompt_end(void);
int cli_prompt_signal(void); /* its number; 0: none came since it was asked for last */

/* Prints why the library failed and returns the exit status. */
int cli_failure(const cli_call *call, const nbl_context *ctx, nbl_status code);

/* Progress in other units than bytes ("tokens"). Returns what a progress callback does: 1 to stop. */
int cli_progress_count(const char *unit, uint64_t done, uint64_t total);
/* From here on the command tells itself how far it is, and asks for interrupts: the library goes on with what it
 * has begun to save, unless there is a second one. */
void cli_progress_hide(void);

/* Seconds on a clock that never jumps. */
double cli_now(void);

/* ---- progress.c ---- */

typedef struct cli_progress {
    const char *command;
    const char *unit; /* what is counted; NULL: bytes */
    int quiet, bar;   /* bar: standard error is a terminal */
    int drawn;        /* a bar is on the screen */
    int hidden;
    double began, last_drawn, last_rated;
    uint64_t last_done;
    double rate; /* bytes per second, smoothed */
} cli_progress;

void cli_progress_start(cli_progress *progress, const cli_call *call);
void cli_progress_show(cli_progress *progress, const nbl_progress *at);
void cli_progress_clear(cli_progress *progress); /* takes the bar off the screen */

#endif
