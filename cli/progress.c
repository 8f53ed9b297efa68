/* progress.c - shows progress on standard error.
 *
 * On a terminal: one line, redrawn up to ten times a second, cut to the terminal's width, and
 * removed at the end. Otherwise: a plain line every five seconds, so that the log of a long run
 * shows activity, and that of a short run has no such lines. */
#include <stdio.h>

#include "live.h"
#include "output.h"
#include "process.h"

static const double redraw_seconds = 0.1, plain_seconds = 5;

void cli_progress_start(cli_progress *progress, const cli_call *call)
{
    *progress = (cli_progress){
        .command = call->command->name,
        .quiet = call->quiet,
        .bar = !call->quiet && cli_live_possible(),
        .began = cli_now(),
    };
    progress->last_drawn = progress->last_rated = progress->began;
}

/* Updates the rate: an exponential average with a time constant of about three seconds. */
static void measure_rate(cli_progress *progress, uint64_t done, double now)
{
    double seconds = now - progress->last_rated;
    if (seconds < 0.05) return;
    double bytes = done > progress->last_done ? (double)(done - progress->last_done) : 0;
    double weight = progress->rate > 0 ? seconds / (seconds + 3) : 1;
    progress->rate += weight * (bytes / seconds - progress->rate);
    progress->last_rated = now;
    progress->last_done = done;
}

/* Writes an amount with one decimal and its unit. Allocates nothing, because it runs ten times a
 * second. */
static const char *brief(char *text, size_t size, double bytes, const char *counted)
{
    static const char *const bytes_units[] = {"B", "KB", "MB", "GB", "TB"}, *const count_units[] = {
                                                                                "", "K", "M", "G", "T"};
    const char *const *units = counted ? count_units : bytes_units;
    int unit = 0;
    while (unit < 4 && bytes >= 999.5) {
        bytes /= 1000;
        unit++;
    }
    snprintf(text, size, "%.*f %s%s%s", unit && bytes < 99.95 ? 1 : 0, bytes, units[unit],
             counted && unit ? " " : "", counted ? counted : "");
    return text;
}

/* Writes "0:05 left". Returns "" while there is no rate, and above 100 hours. */
static const char *remaining(char *text, size_t size, double bytes, double rate)
{
    if (!(rate > 0) || bytes / rate > 359999) return "";
    long seconds = (long)(bytes / rate + 0.5);
    if (seconds < 3600) snprintf(text, size, "%ld:%02ld left", seconds / 60, seconds % 60);
    else snprintf(text, size, "%ld:%02ld:%02ld left", seconds / 3600, seconds / 60 % 60, seconds % 60);
    return text;
}

/* Writes ", 700 MB/s, 0:05 left", or nothing while there is no rate. */
static const char *estimate(char *text, size_t size, const cli_progress *progress, const nbl_progress *at)
{
    char rate[40], left[40];
    text[0] = '\0';
    if (!(progress->rate > 0)) return text;
    const char *rest = remaining(left, sizeof left, (double)(at->total - at->done), progress->rate);
    snprintf(text, size, ", %s/s%s%s", brief(rate, sizeof rate, progress->rate, progress->unit),
             *rest ? ", " : "", rest);
    return text;
}

/* Draws the bar: percentage, cells, amounts, outlook, name. On a narrow terminal the cells and
 * amounts go first, then the outlook. */
static void draw_bar(cli_progress *progress, const nbl_progress *at, double part)
{
    enum { CELLS = 24 };
    char done[40], total[40], ahead[100], figures[240], bar[CELLS + 1], name[512];
    int width = cli_live_width() - 1;
    for (int i = 0; i < CELLS; i++) bar[i] = i < (int)(part * CELLS) ? '#' : '.';
    bar[CELLS] = '\0';

    int wide = snprintf(figures, sizeof figures, "%3d%% [%s] %s of %s%s", (int)(part * 100), bar,
                        brief(done, sizeof done, (double)at->done, progress->unit),
                        brief(total, sizeof total, (double)at->total, progress->unit),
                        estimate(ahead, sizeof ahead, progress, at));
    if (wide > width)
        wide = snprintf(figures, sizeof figures, "%3d%%%s", (int)(part * 100),
                        estimate(ahead, sizeof ahead, progress, at));
    if (wide > width) wide = snprintf(figures, sizeof figures, "%3d%%", (int)(part * 100));

    name[0] = '\0';
    int room = width - wide - 2;
    if (at->what && room >= 12) cli_cut(name, sizeof name, cli_clean(at->what), room);
    cli_live_draw((const cli_part[]){{figures, 0}, {name, 0}}, 2);
    progress->drawn = 1;
}

/* The first bar is drawn at once; later ones wait. A `done` above `total` is shown as 100 %. */
void cli_progress_show(cli_progress *progress, const nbl_progress *at)
{
    if (progress->quiet || progress->hidden || at->total == 0) return;
    double now = cli_now();
    measure_rate(progress, at->done, now);
    double wait = progress->bar ? redraw_seconds : plain_seconds;
    if (now - progress->last_drawn < wait && !(progress->bar && !progress->drawn)) return;
    progress->last_drawn = now;

    nbl_progress sane = *at;
    if (sane.done > sane.total) sane.done = sane.total;
    double part = (double)sane.done / (double)sane.total;
    if (progress->bar) {
        draw_bar(progress, &sane, part);
        return;
    }
    char done[40], total[40], ahead[100];
    fprintf(stderr, "nibble: %s: %d%%, %s of %s%s\n", progress->command, (int)(part * 100),
            brief(done, sizeof done, (double)sane.done, progress->unit),
            brief(total, sizeof total, (double)sane.total, progress->unit),
            estimate(ahead, sizeof ahead, progress, &sane));
}

void cli_progress_clear(cli_progress *progress)
{
    cli_live_clear();
    progress->drawn = 0;
}
