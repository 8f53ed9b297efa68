/* inspect_adapter.c - `nibble inspect` for an adapter saved by PEFT: its settings, its tensors, and
 * whether it fits a base model. The library reads all values, to count those that are not
 * finite. */
#include <inttypes.h>
#include <string.h>

#include "commands/inspect.h"
#include "process.h"

static const char *problem_at(const void *adapter, int64_t index)
{
    return nbl_adapter_get_problem(adapter, index);
}

/* Returns the index-th name of a list of the adapter (targets, modules_to_save). NULL: past the
 * end. */
typedef const char *name_fn(const nbl_adapter *adapter, int64_t index);

static const char *dtype_of(const nbl_adapter_tensor *tensor)
{
    return nbl_dtype_name(tensor->dtype);
}

static cli_totals count_formats(const nbl_adapter *adapter)
{
    cli_totals all = {.count = 0};
    const nbl_adapter_tensor *tensor;
    for (int64_t i = 0; (tensor = nbl_adapter_get_tensor(adapter, i)) != NULL; i++)
        cli_totals_add(&all, dtype_of(tensor), (uint64_t)tensor->parameters, tensor->bytes);
    cli_totals_sort(&all);
    return all;
}

/* ---- for scripts ---- */

/* Returns such a list as a JSON array of texts. */
static cli_json *names(const nbl_adapter *adapter, name_fn *name)
{
    cli_json *list = cli_json_array();
    const char *text;
    for (int64_t i = 0; (text = name(adapter, i)) != NULL; i++) cli_json_add(list, cli_json_text(text));
    return list;
}

static cli_json *describe_tensors(const nbl_adapter *adapter)
{
    cli_json *list = cli_json_array();
    const nbl_adapter_tensor *tensor;
    for (int64_t i = 0; (tensor = nbl_adapter_get_tensor(adapter, i)) != NULL; i++) {
        cli_json *entry = cli_json_object();
        cli_json_set(entry, "name", cli_json_text(tensor->name));
        cli_json_set(entry, "format", cli_json_text(dtype_of(tensor)));
        cli_json_set(entry, "shape", cli_shape_json(tensor->rank, tensor->shape));
        cli_json_set(entry, "bytes", cli_json_unsigned(tensor->bytes));
        cli_json_set(entry, "non_finite", cli_json_integer(tensor->non_finite));
        cli_json_set(entry, "file", cli_json_text("adapter_model.safetensors"));
        cli_json_add(list, entry);
    }
    return list;
}

/* Returns the settings of adapter_config.json; null for a setting that the file lacks. */
static void describe_settings(const nbl_adapter *adapter, const nbl_adapter_summary *s, cli_json *document)
{
    bool told = s->type != NULL;
    cli_json_set(document, "type", cli_json_text(s->type));
    cli_json_set(document, "base_model_name_or_path", cli_json_text(s->base_model));
    cli_json_set(document, "task_type", cli_json_text(s->task));
    cli_json_set(document, "r", told ? cli_json_integer(s->r) : cli_json_null());
    cli_json_set(document, "lora_alpha", told ? cli_json_number(s->alpha) : cli_json_null());
    cli_json_set(document, "lora_dropout", told ? cli_json_number(s->dropout) : cli_json_null());
    cli_json_set(document, "use_rslora", told ? cli_json_boolean(s->rslora) : cli_json_null());
    cli_json_set(document, "use_dora", told ? cli_json_boolean(s->dora) : cli_json_null());
    cli_json_set(document, "lora_bias", told ? cli_json_boolean(s->lora_bias) : cli_json_null());
    cli_json_set(document, "target_modules",
                 s->target ? cli_json_text(s->target) : names(adapter, nbl_adapter_get_target));
    cli_json_set(document, "target_parameters", names(adapter, nbl_adapter_get_parameter));
    cli_json_set(document, "modules_to_save", names(adapter, nbl_adapter_get_saved));
}

/* Prints the document for --json. "fits" is null without --base, or if the settings are missing. */
static void print_document(const nbl_adapter *adapter, const char *base, bool with_tensors)
{
    const nbl_adapter_summary *s = nbl_adapter_get_summary(adapter);
    cli_totals all = count_formats(adapter);
    cli_json *document = cli_json_object();
    cli_json_set(document, "kind", cli_json_text("adapter"));
    describe_settings(adapter, s, document);
    cli_json_set(document, "modules", cli_json_integer(s->modules));
    cli_json_set(document, "replaced_weights", cli_json_integer(s->replaced));
    cli_json_set(document, "parameters", cli_json_unsigned((uint64_t)s->parameters));
    cli_json_set(document, "bytes", cli_json_unsigned(s->bytes));
    cli_json_set(document, "dtype", cli_json_text(s->same_dtype ? nbl_dtype_name(s->dtype) : NULL));
    cli_json_set(document, "formats", cli_totals_json(&all));
    cli_json_set(document, "non_finite", cli_json_integer(s->non_finite));
    cli_json_set(document, "base", cli_json_text(base));
    cli_json_set(document, "fits",
                 base && s->type ? cli_json_boolean(s->base_problems == 0) : cli_json_null());
    cli_json_set(document, "problems", cli_problems_json(problem_at, adapter));
    if (with_tensors) cli_json_set(document, "tensors", describe_tensors(adapter));
    cli_json_print(document);
}

/* ---- for people ---- */

/* Returns such a list as "a, b, c"; NULL if it is empty. */
static const char *list_of(const nbl_adapter *adapter, name_fn *name)
{
    const char *text, *list = NULL;
    for (int64_t i = 0; (text = name(adapter, i)) != NULL; i++)
        list = list ? cli_format("%s, %s", list, cli_clean(text)) : cli_clean(text);
    return list;
}

/* Returns the target modules as a text. A long list is shortened to the last components of the
 * paths. */
static const char *targets_of(const nbl_adapter *adapter)
{
    enum { MAX = 16, ENDS = 64 };
    const char *ends[ENDS], *text, *list = NULL;
    int64_t counts[ENDS] = {0}, all = 0;
    int known = 0;
    for (; (text = nbl_adapter_get_target(adapter, all)) != NULL && known < ENDS; all++) {
        const char *dot = strrchr(text, '.'), *end = dot ? dot + 1 : text;
        int at = 0;
        while (at < known && strcmp(ends[at], end) != 0) at++;
        if (at == known) ends[known++] = end;
        counts[at]++;
    }
    if (all <= MAX || known == ENDS) return list_of(adapter, nbl_adapter_get_target);
    for (int i = 0; i < known; i++)
        list = cli_format("%s%s%s (%" PRId64 ")", list ? list : "", list ? ", " : "", cli_clean(ends[i]),
                          counts[i]);
    return list;
}

/* Prints the settings of adapter_config.json. Without it only "type: not stated" is printed. */
static void print_settings(const nbl_adapter *adapter, const nbl_adapter_summary *s)
{
    if (s->type == NULL) {
        cli_fact("type", "not stated");
        return;
    }
    const char *saved = list_of(adapter, nbl_adapter_get_saved), *target = targets_of(adapter);
    const char *parameters = list_of(adapter, nbl_adapter_get_parameter);
    cli_fact("type", cli_format("%s%s%s", cli_clean(s->type), s->dora ? ", DoRA" : "",
                                s->lora_bias ? ", with biases" : ""));
    cli_fact("base", s->base_model ? cli_clean(s->base_model) : "not stated");
    cli_fact("rank", cli_format("r %" PRId64 ", alpha %g%s, dropout %g", s->r, s->alpha,
                                s->rslora ? ", rsLoRA (alpha / sqrt r)" : "", s->dropout));
    cli_fact("targets", s->target ? cli_clean(s->target) : target ? target : "none");
    if (parameters) cli_fact("adapts also", parameters);
    if (saved) cli_fact("saved whole", saved);
}

static void print_summary(const nbl_adapter *adapter, const char *path, const char *base)
{
    const nbl_adapter_summary *s = nbl_adapter_get_summary(adapter);
    cli_totals all = count_formats(adapter);
    cli_heading(path);
    print_settings(adapter, s);
    cli_fact("parameters",
             cli_format("%s (%s)", cli_short((double)s->parameters), cli_grouped((uint64_t)s->parameters)));
    cli_fact("size",
             cli_format("%s, %s %s of %s %s%s", cli_bytes((double)s->bytes),
                        cli_grouped((uint64_t)s->tensors), s->tensors == 1 ? "tensor" : "tensors",
                        cli_grouped((uint64_t)s->modules), s->modules == 1 ? "module" : "modules",
                        s->replaced ? cli_format(" and %s whole weights", cli_grouped((uint64_t)s->replaced))
                                    : ""));
    if (base)
        cli_fact("fits", s->type == NULL         ? "unknown: the settings are missing"
                         : s->base_problems == 0 ? cli_format("%s", cli_clean(base))
                                                 : cli_format("not %s: see the problems", cli_clean(base)));
    cli_totals_print(&all);
    cli_problems_print(problem_at, adapter);
}

/* A cli_tensor_fn over the tensors of an adapter. An adapter is one file, so `file` stays NULL. */
static bool tensor_row(void *adapter, int64_t index, cli_tensor_row *row)
{
    const nbl_adapter_tensor *tensor = nbl_adapter_get_tensor(adapter, index);
    if (tensor == NULL) return false;
    *row = (cli_tensor_row){.name = tensor->name,
                            .format = dtype_of(tensor),
                            .shape = cli_shape_text(tensor->rank, tensor->shape),
                            .bytes = tensor->bytes};
    return true;
}

int cli_inspect_adapter(const cli_call *call, nbl_context *ctx, const char *folder, const char *base)
{
    nbl_adapter *adapter;
    nbl_status code = nbl_adapter_open(ctx, folder, base, &adapter);
    bool with_tensors = cli_get(call, "tensors")->given;
    if (code != NBL_OK) return cli_failure(call, ctx, code);
    if (call->json) {
        print_document(adapter, base, with_tensors);
    } else {
        print_summary(adapter, folder, base);
        if (with_tensors) cli_tensors_print(tensor_row, adapter);
    }
    nbl_adapter_close(adapter);
    return CLI_DONE;
}
