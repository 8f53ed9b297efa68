/* run_remarks.c - collects errors and notices about keys. All refused keys are one error, with
 * their lines; all keys without effect are one line of the log. A reason that several keys share
 * appears once.
 *
 * Example of the error for two keys of one group and an unknown one:
 *
 *     run.yml: 3 keys are refused: rl, dpo_beta, learning_rat
 *     run.yml:3: rl, dpo_beta (line 9): preference and reinforcement training … is not in this version; …
 *     run.yml:5: learning_rat: no such key; did you mean learning_rate? */
#include <stdarg.h>
#include <stdio.h>

#include "run/run_reader.h"

/* Limits of a message, in keys and bytes: a file may have thousands of wrong keys. */
enum { MAX_KEYS = 24, MAX_BYTES = 3600, MAX_NAME = 120, MAX_TEXT = 480 };

/* A copy of at most `max` bytes with control characters replaced, so that no name from a file
 * can forge a line of the message. */
static const char *one_line(nbl__arena *arena, const char *text, size_t max)
{
    char *copy = nbl__arena_printf(arena, "%.*s", (int)max, text);
    for (char *c = copy; c && *c; c++)
        if ((unsigned char)*c < 0x20) *c = '?';
    return copy;
}

nbl_status nbl__run_remark_add(nbl__run_reader *r, nbl__run_remarks *remarks, const nbl__yaml *at,
                               const char *name, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    nbl__run_remark *made = nbl__arena_alloc(r->arena, sizeof *made);
    const char *copied = made ? one_line(r->arena, name, MAX_NAME) : NULL;
    const char *kept = copied ? one_line(r->arena, text, MAX_TEXT) : NULL;
    if (kept == NULL) return NBL_ERROR_MEMORY;
    *made = (nbl__run_remark){.at = at, .name = copied, .text = kept};
    if (remarks->last) remarks->last->next = made;
    else remarks->first = made;
    remarks->last = made;
    remarks->count++;
    return NBL_OK;
}

/* Appends the names of `of` and of all later remarks with the same text, and marks them as told.
 * lines: with their lines, except that of the first, which begins the message. */
static void put_names(nbl__text *out, nbl__run_remark *of, bool lines)
{
    int told = 0;
    for (nbl__run_remark *m = of; m; m = m->next) {
        if (m->told || strcmp(m->text, of->text) != 0) continue;
        m->told = true;
        if (++told > MAX_KEYS) continue;
        nbl__text_printf(out, "%s%s", m == of ? "" : ", ", m->name);
        if (lines && m != of && m->at->line > 0) nbl__text_printf(out, " (line %" PRId64 ")", m->at->line);
    }
    if (told > MAX_KEYS) nbl__text_printf(out, " and %d more", told - MAX_KEYS);
}

nbl_status nbl__run_refuse(nbl__run_reader *r)
{
    nbl__run_remarks *all = &r->refusals;
    if (all->count == 0) return NBL_OK;
    if (all->count == 1)
        return nbl__yaml_fail(r->ctx, all->first->at, NBL_ERROR_ARGUMENT, "%s: %s", all->first->name,
                              all->first->text);
    nbl__text lines = {.ctx = r->ctx};
    const char *file = one_line(r->arena, r->root->where, MAX_TEXT);
    if (file == NULL) return NBL_ERROR_MEMORY;
    nbl__text_printf(&lines, "%s: %" PRId64 " keys are refused:", file, all->count);
    int64_t i = 0;
    for (const nbl__run_remark *m = all->first; m && i < MAX_KEYS; m = m->next, i++)
        nbl__text_printf(&lines, "%s %s", i ? "," : "", m->name);
    if (all->count > MAX_KEYS) nbl__text_printf(&lines, " and %" PRId64 " more", all->count - MAX_KEYS);
    i = 0;
    for (nbl__run_remark *m = all->first; m; m = m->next) {
        if (m->told || i++ >= MAX_KEYS || lines.size > MAX_BYTES - MAX_TEXT) continue;
        if (m->at->line > 0) nbl__text_printf(&lines, "\n%s:%" PRId64 ": ", file, m->at->line);
        else nbl__text_printf(&lines, "\n%s ", m->at->where); /* from --set */
        put_names(&lines, m, true);
        nbl__text_printf(&lines, ": %s", m->text);
    }
    nbl_status status = lines.status;
    if (status == NBL_OK) status = nbl__fail_lines(r->ctx, NBL_ERROR_ARGUMENT, lines.text);
    nbl__text_free(&lines);
    return status;
}

nbl_status nbl__run_notify(nbl__run_reader *r)
{
    nbl__text line = {.ctx = r->ctx};
    for (nbl__run_remark *m = r->notices.first; m; m = m->next) {
        if (m->told) continue;
        nbl__text_printf(&line, "%s", line.size ? "; " : "");
        put_names(&line, m, false);
        nbl__text_printf(&line, " (%s)", m->text);
    }
    if (line.size && line.status == NBL_OK)
        nbl__log(r->ctx, NBL_LOG_INFO, "%s: no effect here: %s", r->root->where, line.text);
    nbl_status status = line.status;
    nbl__text_free(&line);
    line = (nbl__text){.ctx = r->ctx};
    for (nbl__run_remark *m = r->aliases.first; m && status == NBL_OK; m = m->next)
        nbl__text_printf(&line, "%s%s: %s", line.size ? "; " : "", m->name, m->text);
    if (line.size && line.status == NBL_OK)
        nbl__log(r->ctx, NBL_LOG_INFO, "%s: %s", r->root->where, line.text);
    if (status == NBL_OK) status = line.status;
    nbl__text_free(&line);
    return status;
}
