/* peak_rss.c - runs a command and tells how much memory it had resident at most.
 *
 *     peak_rss COMMAND [ARGUMENT...]
 *
 * Prints one line, "STATUS BYTES": the command's exit status (128 + number for a signal) and its
 * maximum resident set as the kernel counts it, mapped file pages included. What the command writes
 * to standard output goes to standard error. Ends with the command's status.
 *
 * The kernel starts a process's maximum with that of the memory it had before exec, which is this
 * program's: so it stays small, allocates nothing and shares its memory with the child until then
 * (posix_spawn), instead of forking. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static volatile pid_t child;

/* Who stops this program means the command. */
static void forward(int signal_number)
{
    if (child > 0) kill(child, signal_number);
}

int main(int count, char **words)
{
    if (count < 2) {
        fputs("usage: peak_rss COMMAND [ARGUMENT...]\n", stderr);
        return 2;
    }
    struct sigaction action = {.sa_handler = forward, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);

    posix_spawn_file_actions_t files;
    pid_t pid;
    int error = posix_spawn_file_actions_init(&files);
    if (error == 0) error = posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    if (error == 0) error = posix_spawnp(&pid, words[1], &files, NULL, words + 1, environ);
    if (error) {
        fprintf(stderr, "peak_rss: %s: %s\n", words[1], strerror(error));
        return 127;
    }
    child = pid;
    int status;
    struct rusage usage;
    while (wait4(pid, &status, 0, &usage) < 0)
        if (errno != EINTR) {
            fprintf(stderr, "peak_rss: %s\n", strerror(errno));
            return 127;
        }
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    printf("%d %lld\n", code, (long long)usage.ru_maxrss * 1024); /* Linux counts in KiB */
    return code;
}
