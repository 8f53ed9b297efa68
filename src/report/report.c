/* report.c - the sections of the report, and the page that they are filled into. See report.h.
 *
 * The page is report_page.html, compiled in. Each {{name}} in it is replaced by the section of
 * that name (nbl__report_print). A section appends HTML; all texts from outside go through
 * nbl__html_text. */
#include "report/report.h"

#include <math.h>
#include <stdlib.h>

#include "base/file/output.h"
#include "report/report_text.h"
#include "run/run_changes.h"

static const char page[] =
#include "report/report_page.inc"
    ;

/* A section of the page: {{name}} is replaced with what print appends. */
typedef struct section {
    const char *name;
    void (*print)(nbl__text *out, const nbl__report *r);
} section;

static void add(nbl__text *out, const char *html)
{
    nbl__text_add(out, html, strlen(html));
}

/* ---- numbers from the records ---- */

/* The first or last record of training or of evaluation; NULL: none. */
static const nbl__record *find_record(const nbl__report *r, bool evaluation, bool last)
{
    const nbl__records *all = r->records;
    const nbl__record *found = NULL;
    for (int64_t i = 0; i < all->count && (last || found == NULL); i++)
        if (all->items[i].evaluation == evaluation) found = &all->items[i];
    return found;
}

/* The evaluation with the best finite loss; NULL: none. */
static const nbl__record *best_evaluation(const nbl__report *r)
{
    const nbl__record *best = NULL;
    for (int64_t i = 0; i < r->records->count; i++) {
        const nbl__record *it = &r->records->items[i];
        if (!it->evaluation || !isfinite(it->loss)) continue;
        if (best == NULL || (r->config->greater_is_better ? it->loss > best->loss : it->loss < best->loss))
            best = it;
    }
    return best;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The median tokens per second of the last 1024 training records; NAN: none. The median, because
 * the first steps are slower. */
static double median_throughput(const nbl__report *r)
{
    double values[1024];
    int n = 0;
    for (int64_t i = r->records->count - 1; i >= 0 && n < 1024; i--)
        if (!r->records->items[i].evaluation) values[n++] = r->records->items[i].tokens_per_second;
    if (n == 0) return NAN;
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[n / 2];
}

/* ---- the head ---- */

static const char *base_name(const char *path)
{
    const char *name = path;
    for (const char *at = path; *at; at++)
        if (*at == '/' && at[1] != '\0' && at[1] != '/') name = at + 1;
    return name;
}

static void print_method(nbl__text *out, const nbl__report *r)
{
    const nbl__run_config *c = r->config;
    if (c->full) return add(out, "full fine-tuning");
    add(out, c->dora ? "DoRA" : c->qlora || c->load_in_4bit ? "QLoRA" : "LoRA");
    if (c->lora_r > 0) nbl__text_printf(out, ", rank %" PRId64, c->lora_r);
}

static void print_title(nbl__text *out, const nbl__report *r)
{
    nbl__html_text(out, base_name(r->config->base_model));
    add(out, ": ");
    print_method(out, r);
}

static void print_state(nbl__text *out, const nbl__report *r)
{
    bool good = !r->interrupted && r->stopped == NULL;
    nbl__text_printf(out, "<span class=\"state %s\">", good ? "good" : "warn");
    if (good) add(out, "Finished");
    else nbl__text_printf(out, "%s after step %" PRId64, r->interrupted ? "Interrupted" : "Stopped", r->step);
    if (r->stopped) {
        add(out, ": ");
        nbl__html_text(out, r->stopped);
    }
    add(out, "</span> · model ");
    nbl__html_text(out, r->config->base_model);
    if (r->config->load_best && !r->interrupted) {
        nbl__text_printf(out, " · result of step %" PRId64, r->result_step);
        if (isfinite(r->best_eval)) add(out, ", the best, in ");
        else add(out, " in ");
    } else add(out, " · result in ");
    nbl__html_text(out, r->config->output_dir);
}

/* ---- tiles ---- */

static void open_tile(nbl__text *out, const char *name)
{
    nbl__text_printf(out, "<div class=\"tile\"><span>%s</span><b>", name);
}

static void close_tile(nbl__text *out)
{
    add(out, "</small></div>\n");
}

static void print_losses(nbl__text *out, const nbl__report *r)
{
    const nbl__record *first = find_record(r, false, false), *last = find_record(r, false, true),
                      *eval = find_record(r, true, true);
    open_tile(out, "final loss");
    nbl__html_number(out, last ? last->loss : NAN, 4);
    add(out, "</b><small>");
    if (last && last != first) {
        add(out, "from ");
        nbl__html_number(out, first->loss, 4);
    }
    close_tile(out);
    open_tile(out, "evaluation loss");
    nbl__html_number(out, eval ? eval->loss : NAN, 4);
    add(out, "</b><small>");
    const nbl__record *best = best_evaluation(r);
    if (best) {
        add(out, r->config->greater_is_better ? "highest " : "lowest ");
        nbl__html_number(out, best->loss, 4);
        nbl__text_printf(out, " at step %" PRId64, best->step);
    } else add(out, eval ? "none is finite" : "not evaluated");
    close_tile(out);
}

static void print_tiles(nbl__text *out, const nbl__report *r)
{
    print_losses(out, r);
    open_tile(out, "steps");
    nbl__html_count(out, r->step);
    nbl__text_printf(out, "</b><small>of ");
    nbl__html_count(out, r->steps);
    add(out, ", ");
    nbl__html_fixed(out, r->epoch, 2);
    add(out, " epochs");
    close_tile(out);
    open_tile(out, "tokens per second");
    nbl__html_number(out, median_throughput(r), 4);
    add(out, "</b><small>median");
    close_tile(out);
    open_tile(out, "duration");
    nbl__html_duration(out, r->seconds);
    add(out, "</b><small>");
    if (r->first_step > 0) nbl__text_printf(out, "since step %" PRId64, r->first_step);
    close_tile(out);
    open_tile(out, "planned memory");
    nbl__html_bytes(out, r->memory_bytes);
    add(out, "</b><small>");
    if (r->config->memory) {
        add(out, "of ");
        nbl__html_bytes(out, r->config->memory);
    }
    close_tile(out);
}

/* ---- samples ---- */

static void print_part(nbl__text *out, const char *style, const char *name, const char *text)
{
    nbl__text_printf(out, "<div class=\"%s\"><h3>%s</h3><pre>", style, name);
    nbl__html_text(out, text && *text ? text : text ? "(nothing)" : "(not made)");
    add(out, "</pre></div>\n");
}

static void print_samples(nbl__text *out, const nbl__report *r)
{
    const nbl__samples *s = r->samples;
    for (int64_t i = 0; s && i < s->count; i++) {
        const nbl__sample *it = &s->items[i];
        add(out, "<div class=\"card\">\n");
        print_part(out, "prompt", "Prompt", it->text);
        add(out, "<div class=\"pair\">\n");
        print_part(out, "before", "Before", it->before);
        print_part(out, "after", "After", it->after);
        print_part(out, "wanted", "In the data", it->wanted);
        add(out, "</div>\n</div>\n");
    }
    const char *missing = s ? s->missing : NULL;
    if (missing == NULL && s && s->count && s->items[0].after == NULL)
        missing = "the run was interrupted; the end of it writes what comes after";
    if (missing || s == NULL || s->count == 0) {
        add(out, "<p class=\"note\">");
        nbl__html_text(out, s && s->count ? "" : "No samples: ");
        nbl__html_text(out, missing ? missing : "none were asked for");
        add(out, ".</p>\n");
    } else
        nbl__text_printf(
            out, "<p class=\"note\">Prompts from the %s, continued greedily, at most %d tokens.</p>\n",
            r->held_back ? "examples held back" : "first examples", (int)NBL_SAMPLE_TOKENS);
}

/* ---- tables ---- */

static void open_row(nbl__text *out, const char *name)
{
    nbl__text_printf(out, "<tr><td>%s</td><td>", name);
}

static void row_count(nbl__text *out, const char *name, int64_t value)
{
    open_row(out, name);
    nbl__html_count(out, value);
    add(out, "</td></tr>\n");
}

static void row_text(nbl__text *out, const char *name, const char *value)
{
    open_row(out, name);
    nbl__html_text(out, value);
    add(out, "</td></tr>\n");
}

static void print_memory(nbl__text *out, const nbl__report *r)
{
    const struct {
        const char *name;
        uint64_t bytes;
    } parts[] = {
        {"weights, as they are kept", r->arenas.weights},
        {r->config->full ? "masters and gradients" : "adapters, norms, gradients", r->arenas.adapters},
        {"optimiser (moments)", r->arenas.optimizer},
        {"saved from forward to backward", r->arenas.saved},
        {r->arenas.device ? "scratch, inputs, the device's context" : "scratch and inputs",
         r->arenas.scratch + r->arenas.device},
    };
    enum { PARTS = sizeof parts / sizeof *parts };
    uint64_t total = 0;
    for (int i = 0; i < PARTS; i++) total += parts[i].bytes / 1024;
    add(out, "<div class=\"card\">\n<div class=\"bar\">");
    for (int i = 0; i < PARTS; i++) {
        int share = total ? (int)(10000 * (double)(parts[i].bytes / 1024) / (double)total) : 0;
        if (share) nbl__text_printf(out, "<i class=\"c%d\" style=\"flex:%d 1 0\"></i>", i, share);
    }
    add(out, "</div>\n<table>\n");
    for (int i = 0; i < PARTS; i++) {
        nbl__text_printf(out, "<tr><td><span class=\"swatch c%d\"></span>%s</td><td>", i, parts[i].name);
        nbl__html_bytes(out, parts[i].bytes);
        add(out, "</td></tr>\n");
    }
    open_row(out, "<b>in all</b>");
    nbl__html_bytes(out, r->memory_bytes);
    add(out, "</td></tr>\n");
    open_row(out, "recomputed in the backward pass");
    if (r->recompute == NBL_RECOMPUTE_NONE) add(out, "nothing");
    else
        nbl__text_printf(out, "%s%" PRId64 " of %" PRId64 " layers",
                         r->recompute < NBL_RECOMPUTE_LAYERS ? "norms, rotations and the like of " : "",
                         r->recomputed_layers, r->layers);
    add(out, "</td></tr>\n</table>\n</div>\n");
}

static void print_data(nbl__text *out, const nbl__report *r)
{
    add(out, "<div class=\"card\"><table>\n");
    row_count(out, "examples", r->data.examples);
    row_count(out, "of them held back", r->held_back);
    row_count(out, "tokens", r->data.tokens);
    row_count(out, "trained tokens", r->data.trained_tokens);
    row_count(out, "truncated", r->data.truncated);
    row_count(out, "dropped: too long", r->data.too_long);
    if (r->config->min_sample_len) row_count(out, "dropped: too short", r->data.too_short);
    row_count(out, "dropped: bad", r->data.bad);
    row_count(out, "dropped: nothing trained", r->data.untrained);
    if (r->config->deduplicate) row_count(out, "dropped: seen before", r->data.duplicates);
    for (int64_t i = 0; i < r->config->dataset_count; i++)
        row_text(out, i ? "" : "from", r->config->datasets[i].path);
    add(out, "</table></div>\n");
}

static void print_machine(nbl__text *out, const nbl__report *r)
{
    add(out, "<div class=\"card\"><table>\n");
    open_row(out, "method");
    print_method(out, r);
    add(out, "</td></tr>\n");
    row_count(out, "trained parameters", r->trained_parameters);
    row_count(out, "of the model's", r->parameters);
    row_text(out, "weights kept in", r->weights);
    row_text(out, "computed in", r->compute);
    row_text(out, "optimiser", r->config->adam8bit ? "AdamW, 8-bit moments" : "AdamW");
    row_text(out, "instruction set", r->isa);
    row_count(out, "threads", r->threads);
    row_text(out, "nibble", nbl_version());
    add(out, "</table></div>\n");
}

/* ---- commands, configuration, the end ---- */

/* Appends a shell command. "{base}", "{out}" and "{run}" are replaced with the quoted paths of
 * base model, output_dir and configuration file. */
static void print_command(nbl__text *out, const nbl__report *r, const char *command)
{
    const struct {
        const char *mark, *path;
    } paths[] = {
        {"{base}", r->config->base_model}, {"{out}", r->config->output_dir}, {"{run}", r->config->file}};
    while (*command) {
        size_t plain = strcspn(command, "{");
        nbl__text_add(out, command, plain);
        command += plain;
        for (int i = 0; i < 3 && *command; i++) {
            size_t n = strlen(paths[i].mark);
            if (strncmp(command, paths[i].mark, n) != 0) continue;
            nbl__html_word(out, paths[i].path);
            command += n;
            break;
        }
    }
    add(out, "\n");
}

static void print_next(nbl__text *out, const nbl__report *r)
{
    add(out, "<div class=\"card\"><pre>");
    if (r->interrupted) print_command(out, r, "nibble train {run} --resume");
    else if (r->config->full) {
        print_command(out, r, "nibble chat {out}");
        print_command(out, r, "nibble export {out} MODEL.gguf --type q8_0");
    } else {
        print_command(out, r, "nibble chat {base} --adapter {out}");
        if (nbl__run_mergeable(r->config)) {
            print_command(out, r, "nibble merge {base} {out} MERGED --verify");
            print_command(out, r, "nibble export MERGED MODEL.gguf --type q8_0");
        }
    }
    print_command(out, r, "tensorboard --logdir {out}/runs");
    add(out, "</pre></div>\n");
}

static void print_configuration(nbl__text *out, const nbl__report *r)
{
    nbl__text yaml = {.ctx = out->ctx};
    nbl_status status = nbl__run_config_write(&yaml, r->config);
    if (r->history) nbl__run_history_write(&yaml, r->history);
    if (status == NBL_OK) status = yaml.status;
    if (status != NBL_OK && out->status == NBL_OK) out->status = status;
    add(out, "<div class=\"card\"><details open><summary>run.yml, as resolved</summary><pre>");
    nbl__html_text(out, yaml.text);
    add(out, "</pre></details></div>\n");
    nbl__text_free(&yaml);
}

/* Version and configuration file. */
static void print_footer(nbl__text *out, const nbl__report *r)
{
    nbl__text_printf(out, "nibble %s · ", nbl_version());
    nbl__html_text(out, r->config->file);
    add(out, " · every step is in metrics.jsonl");
}

/* ---- the page ---- */

/* Copies the page and prints a section at each {{name}}. An unknown name leaves nothing. */
void nbl__report_print(nbl__text *out, const nbl__report *r)
{
    static const section sections[] = {
        {"title", print_title},     {"state", print_state},
        {"tiles", print_tiles},     {"charts", nbl__report_charts},
        {"samples", print_samples}, {"next", print_next},
        {"memory", print_memory},   {"data", print_data},
        {"machine", print_machine}, {"configuration", print_configuration},
        {"footer", print_footer},   {"points", nbl__report_points},
    };
    const char *at = page;
    for (const char *mark; (mark = strstr(at, "{{")); at = strstr(mark, "}}") + 2) {
        nbl__text_add(out, at, (size_t)(mark - at));
        for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
            size_t n = strlen(sections[i].name);
            if (strncmp(mark + 2, sections[i].name, n) == 0 && mark[2 + n] == '}') sections[i].print(out, r);
        }
    }
    add(out, at);
}

nbl_status nbl__report_write(nbl_context *ctx, const nbl__report *r)
{
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__text out = {.ctx = ctx};
    const char *path = nbl__arena_printf(&arena, "%s/report.html", r->config->output_dir);
    nbl__report_print(&out, r);
    nbl_status status = path ? out.status : NBL_ERROR_MEMORY;
    if (status == NBL_OK) status = nbl__file_put(ctx, path, out.text, out.size);
    nbl__text_free(&out);
    nbl__arena_free(&arena);
    return status;
}
