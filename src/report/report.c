/* report.c - the facts of a run as JSON, and the page that shows them. See report.h.
 *
 * All texts and numbers of the page are in this JSON; report_page.html decides how they look. The
 * keys written here are those that its script reads.
 *
 *   page before {{run}} | { version, method, course, series, samples, memory, ... } | page after
 *
 * put_... functions write one section each. They return nothing: the first failure stays in the
 * status of the text under construction, and later writes do nothing. */
#include "report/report.h"

#include <math.h>
#include <stdlib.h>

#include "base/file/output.h"
#include "base/json/json_write.h"
#include "base/visible.h"
#include "run/run_changes.h"

/* report_page.html as a C string literal; the build makes the .inc. */
static const char page[] =
#include "report/report_page.inc"
    ;

/* The JSON under construction. Failures stay in the text's status, so writers return nothing. */
typedef nbl__json_writer writer;

/* ---- values ---- */

/* Appends bytes of JSON to the page. '<' stands in strings only; written out it ends no <script>. */
static nbl_status add(void *to, const char *bytes, size_t size)
{
    nbl__text *out = to;
    for (const char *at = bytes, *end = bytes + size; at < end;) {
        const char *found = memchr(at, '<', (size_t)(end - at)), *stop = found ? found : end;
        nbl__text_add(out, at, (size_t)(stop - at));
        if (found) nbl__text_printf(out, "\\u003c");
        at = found ? found + 1 : end;
    }
    return out->status;
}

/* Writes the key of the next member. */
static void key(writer *w, const char *name)
{
    (void)nbl__json_key(w, name, strlen(name));
}

/* Opens a member that is a list. close_list ends it. */
static void open_list(writer *w, const char *name)
{
    key(w, name);
    (void)nbl__json_open(w, '[');
}

static void close_list(writer *w)
{
    (void)nbl__json_close(w, ']');
}

/* Writes a text from outside (a file, a name, the model) with hidden characters written out. NULL
 * becomes null. */
static void put_text(writer *w, const char *text)
{
    nbl__text shown = {.ctx = ((nbl__text *)w->to)->ctx};
    char one[NBL_MAX_VISIBLE];
    if (text == NULL) {
        (void)nbl__json_word(w, "null");
        return;
    }
    for (const char *at = text, *end = text + strlen(text); at < end;) {
        at += nbl__visible(at, end, true, one);
        nbl__text_add(&shown, one, strlen(one));
    }
    if (shown.status == NBL_OK) (void)nbl__json_string(w, shown.text ? shown.text : "", shown.size);
    else ((nbl__text *)w->to)->status = shown.status;
    nbl__text_free(&shown);
}

/* Members of one kind of value: key and value. */
static void text(writer *w, const char *name, const char *value)
{
    key(w, name);
    put_text(w, value);
}

static void count(writer *w, const char *name, int64_t value)
{
    key(w, name);
    (void)nbl__json_integer(w, value);
}

/* A number that is not finite becomes null. */
static void number(writer *w, const char *name, double value)
{
    key(w, name);
    (void)nbl__json_real(w, value);
}

static void truth(writer *w, const char *name, bool value)
{
    key(w, name);
    (void)nbl__json_word(w, value ? "true" : "false");
}

/* A row of a table: [name, value]. */
static void open_row(writer *w, const char *name)
{
    (void)nbl__json_item(w);
    (void)nbl__json_open(w, '[');
    (void)nbl__json_item(w);
    (void)nbl__json_string(w, name, strlen(name));
    (void)nbl__json_item(w);
}

static void row_count(writer *w, const char *name, int64_t value)
{
    open_row(w, name);
    (void)nbl__json_integer(w, value);
    close_list(w);
}

static void row_text(writer *w, const char *name, const char *value)
{
    open_row(w, name);
    put_text(w, value);
    close_list(w);
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

/* ---- the sections ---- */

static void put_method(writer *w, const nbl__run_config *c)
{
    nbl__text method = {.ctx = ((nbl__text *)w->to)->ctx};
    nbl__text_printf(&method, "%s",
                     c->full                       ? "full fine-tuning"
                     : c->dora                     ? "DoRA"
                     : c->qlora || c->load_in_4bit ? "QLoRA"
                                                   : "LoRA");
    if (!c->full && c->lora_r > 0) nbl__text_printf(&method, ", rank %" PRId64, c->lora_r);
    put_text(w, method.text ? method.text : "");
    nbl__text_free(&method);
}

/* The course of the run: steps, losses, speed, memory. "first_loss" is left out of a run with fewer
 * than two training records, "extreme_loss" of one without a finite evaluation. */
static void put_course(writer *w, const nbl__report *r)
{
    const nbl__record *first = find_record(r, false, false), *last = find_record(r, false, true),
                      *eval = find_record(r, true, true), *best = best_evaluation(r);
    truth(w, "interrupted", r->interrupted);
    text(w, "stopped", r->stopped);
    count(w, "step", r->step);
    count(w, "steps", r->steps);
    count(w, "first_step", r->first_step);
    number(w, "epoch", r->epoch);
    number(w, "seconds", r->seconds);
    truth(w, "load_best", r->config->load_best);
    count(w, "result_step", r->result_step);
    number(w, "best_eval", r->best_eval);
    truth(w, "greater_is_better", r->config->greater_is_better);
    if (last && last != first) number(w, "first_loss", first->loss);
    number(w, "final_loss", last ? last->loss : NAN);
    truth(w, "evaluated", eval != NULL);
    number(w, "eval_loss", eval ? eval->loss : NAN);
    if (best) number(w, "extreme_loss", best->loss), count(w, "extreme_step", best->step);
    number(w, "tokens_per_second", median_throughput(r));
    count(w, "memory_bytes", (int64_t)r->memory_bytes);
    count(w, "memory_budget", (int64_t)r->config->memory);
}

/* Prompts with the continuations of the model, and why there are none or not all of them. */
static void put_samples(writer *w, const nbl__report *r)
{
    const nbl__samples *s = r->samples;
    open_list(w, "samples");
    for (int64_t i = 0; s && i < s->count; i++) {
        const nbl__sample *it = &s->items[i];
        (void)nbl__json_item(w);
        (void)nbl__json_open(w, '{');
        text(w, "prompt", it->text);
        text(w, "before", it->before);
        text(w, "after", it->after);
        text(w, "wanted", it->wanted);
        (void)nbl__json_close(w, '}');
    }
    close_list(w);
    text(w, "samples_missing", s ? s->missing : NULL);
    count(w, "sample_tokens", NBL_SAMPLE_TOKENS);
    count(w, "held_back", r->held_back);
}

/* The plan's arenas in bytes, and how much of the layers is recomputed. "part": some operators of a
 * layer; "whole": whole layers. */
static void put_memory(writer *w, const nbl__report *r)
{
    open_list(w, "memory");
    row_count(w, "weights, as they are kept", (int64_t)r->arenas.weights);
    row_count(w, r->config->full ? "masters and gradients" : "adapters, norms, gradients",
              (int64_t)r->arenas.adapters);
    row_count(w, "optimiser (moments)", (int64_t)r->arenas.optimizer);
    row_count(w, "saved from forward to backward", (int64_t)r->arenas.saved);
    row_count(w, r->arenas.device ? "scratch, inputs, the device's context" : "scratch and inputs",
              (int64_t)(r->arenas.scratch + r->arenas.device));
    close_list(w);
    text(w, "recompute",
         r->recompute == NBL_RECOMPUTE_NONE    ? "none"
         : r->recompute < NBL_RECOMPUTE_LAYERS ? "part"
                                               : "whole");
    count(w, "recomputed_layers", r->recomputed_layers);
    count(w, "layers", r->layers);
}

/* The tokens that each expert got in the steps of this process: {"top_k", "steps", "layers": [[layer,
 * peak, [tokens of expert 0, 1, ...]], ...]}. null for a model without experts. */
static void put_experts(writer *w, const nbl__report *r)
{
    const nbl__expert_load *load = r->expert_load;
    key(w, "experts");
    if (load == NULL || load->rows == 0) {
        (void)nbl__json_word(w, "null");
        return;
    }
    (void)nbl__json_open(w, '{');
    count(w, "top_k", r->top_k);
    count(w, "steps", r->step - r->first_step);
    open_list(w, "layers");
    for (int64_t row = 0; row < load->rows; row++) {
        (void)nbl__json_item(w);
        nbl__text_printf(w->to, "[%" PRId64 ",%.4f,[", load->layers[row],
                         nbl__expert_load_row_peak(load, load->run, row));
        for (int64_t e = 0; e < load->experts; e++)
            nbl__text_printf(w->to, "%s%" PRIu64, e ? "," : "", load->run[row * load->experts + e]);
        nbl__text_add(w->to, "]]", 2);
    }
    close_list(w);
    (void)nbl__json_close(w, '}');
}

/* Counts of the data. Rows that depend on a key of the run are shown if the key is set. */
static void put_data(writer *w, const nbl__report *r)
{
    open_list(w, "data");
    row_count(w, "examples", r->data.examples);
    row_count(w, "of them held back", r->held_back);
    row_count(w, "tokens", r->data.tokens);
    row_count(w, "trained tokens", r->data.trained_tokens);
    row_count(w, "truncated", r->data.truncated);
    row_count(w, "dropped: too long", r->data.too_long);
    if (r->config->min_sample_len) row_count(w, "dropped: too short", r->data.too_short);
    row_count(w, "dropped: bad", r->data.bad);
    row_count(w, "dropped: nothing trained", r->data.untrained);
    if (r->config->deduplicate) row_count(w, "dropped: seen before", r->data.duplicates);
    for (int64_t i = 0; i < r->config->dataset_count; i++)
        row_text(w, i ? "" : "from", r->config->datasets[i].path);
    close_list(w);
}

/* What was trained, in which formats, on which instruction set. */
static void put_machine(writer *w, const nbl__report *r)
{
    open_list(w, "machine");
    open_row(w, "method");
    put_method(w, r->config);
    close_list(w);
    row_count(w, "trained parameters", r->trained_parameters);
    row_count(w, "of the model's", r->parameters);
    row_text(w, "weights kept in", r->weights);
    row_text(w, "computed in", r->compute);
    row_text(w, "optimiser", r->config->adam8bit ? "AdamW, 8-bit moments" : "AdamW");
    row_text(w, "instruction set", r->isa);
    row_count(w, "threads", r->threads);
    row_text(w, "nibble", nbl_version());
    close_list(w);
}

/* The configuration as YAML, as run.yml has it, with the changes at resumes. */
static void put_configuration(writer *w, const nbl__report *r)
{
    nbl__text *out = w->to, yaml = {.ctx = out->ctx};
    nbl_status status = nbl__run_config_write(&yaml, r->config);
    if (r->history) nbl__run_history_write(&yaml, r->history);
    if (status == NBL_OK) status = yaml.status;
    if (status != NBL_OK && out->status == NBL_OK) out->status = status;
    text(w, "configuration", yaml.text ? yaml.text : "");
    nbl__text_free(&yaml);
}

/* ---- the page ---- */

/* The whole JSON object. The order of the members has no meaning for the page. */
static void put_facts(writer *w, const nbl__report *r)
{
    (void)nbl__json_open(w, '{');
    text(w, "version", nbl_version());
    text(w, "base_model", r->config->base_model);
    text(w, "output_dir", r->config->output_dir);
    text(w, "file", r->config->file);
    key(w, "method");
    put_method(w, r->config);
    truth(w, "full", r->config->full);
    truth(w, "mergeable", nbl__run_mergeable(r->config));
    put_course(w, r);
    nbl__report_series(w, r);
    put_samples(w, r);
    put_memory(w, r);
    put_experts(w, r);
    put_data(w, r);
    put_machine(w, r);
    put_configuration(w, r);
    (void)nbl__json_close(w, '}');
}

void nbl__report_print(nbl__text *out, const nbl__report *r)
{
    static const nbl__json_style style = {.indent = "", .item = {",", 1}, .key = {": ", 2}};
    /* the page is compiled in and contains the mark once */
    static const char mark[] = "{{run}}";
    const char *at = strstr(page, mark);
    writer w = {.add = add, .to = out, .style = &style};
    nbl__text_add(out, page, (size_t)(at - page));
    put_facts(&w, r);
    nbl__text_add(out, at + strlen(mark), strlen(at + strlen(mark)));
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
