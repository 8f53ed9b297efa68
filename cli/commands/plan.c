/* plan.c - `nibble plan`: shows the memory and work that a model or a run needs, without running
 * it. */
#include <inttypes.h>
#include <string.h>

#include "commands/commands.h"
#include "model.h"
#include "output.h"
#include "run.h"
#include "session.h"

static cli_json *arenas_json(const nbl_plan_arenas *a)
{
    cli_json *arenas = cli_json_object();
    cli_json_set(arenas, "weights", cli_json_unsigned(a->weights));
    cli_json_set(arenas, "adapters", cli_json_unsigned(a->adapters));
    cli_json_set(arenas, "optimizer", cli_json_unsigned(a->optimizer));
    cli_json_set(arenas, "saved", cli_json_unsigned(a->saved));
    cli_json_set(arenas, "scratch", cli_json_unsigned(a->scratch));
    cli_json_set(arenas, "kv", cli_json_unsigned(a->kv));
    cli_json_set(arenas, "device", cli_json_unsigned(a->device));
    return arenas;
}

static cli_json *ops_json(const nbl_model_plan *p)
{
    cli_json *ops = cli_json_array();
    for (int64_t i = 0; i < p->op_count; i++) {
        cli_json *it = cli_json_object();
        cli_json_set(it, "op", cli_json_text(p->ops[i].op));
        cli_json_set(it, "impl", cli_json_text(p->ops[i].impl));
        cli_json_set(it, "pass", cli_json_text(p->ops[i].pass));
        cli_json_set(it, "count", cli_json_integer(p->ops[i].count));
        cli_json_set(it, "flops", cli_json_number(p->ops[i].flops));
        cli_json_set(it, "bytes", cli_json_number(p->ops[i].bytes));
        cli_json_add(ops, it);
    }
    return ops;
}

static cli_json *casts_json(const nbl_model_plan *p)
{
    cli_json *casts = cli_json_array();
    for (int64_t i = 0; i < p->cast_count; i++) {
        cli_json *it = cli_json_object();
        cli_json_set(it, "at", cli_json_text(p->casts[i].at));
        cli_json_set(it, "from", cli_json_text(nbl_dtype_name(p->casts[i].from)));
        cli_json_set(it, "to", cli_json_text(nbl_dtype_name(p->casts[i].to)));
        cli_json_set(it, "why", cli_json_text(p->casts[i].why));
        cli_json_add(casts, it);
    }
    return casts;
}

static cli_json *values_json(const nbl_model_plan *p)
{
    cli_json *values = cli_json_array();
    for (int64_t i = 0; i < p->value_count; i++) {
        const nbl_planned_value *v = &p->values[i];
        cli_json *it = cli_json_object(), *shape = cli_json_array();
        for (int k = 0; k < v->rank; k++) cli_json_add(shape, cli_json_integer(v->shape[k]));
        cli_json_set(it, "name", cli_json_text(v->name));
        cli_json_set(it, "count", cli_json_integer(v->count));
        cli_json_set(it, "arena", cli_json_text(v->arena));
        cli_json_set(it, "dtype", v->rank ? cli_json_text(nbl_dtype_name(v->dtype)) : cli_json_null());
        cli_json_set(it, "shape", shape);
        cli_json_set(it, "bytes", cli_json_unsigned(v->bytes));
        cli_json_add(values, it);
    }
    return values;
}

static void print_json(const nbl_model_plan *p)
{
    cli_json *document = cli_json_object(), *again = cli_json_object();
    cli_json_set(again, "mode", cli_json_text(p->recompute));
    cli_json_set(again, "layers", cli_json_integer(p->recomputed_layers));
    cli_json_set(again, "flops", cli_json_number(p->recompute_flops));
    cli_json_set(document, "arenas", arenas_json(&p->arenas));
    cli_json_set(document, "total_bytes", cli_json_unsigned(p->total_bytes));
    cli_json_set(document, "largest", values_json(p));
    cli_json_set(document, "casts", casts_json(p));
    cli_json_set(document, "ops", ops_json(p));
    cli_json_set(document, "recompute", again);
    cli_json_set(document, "decoded_weights", cli_json_integer(p->dequantized_weights));
    cli_json_set(document, "decoded_bytes", cli_json_unsigned(p->dequantized_bytes));
    cli_json_set(document, "host_bytes", cli_json_unsigned(p->host_bytes));
    cli_json_set(document, "longest_sequence", cli_json_integer(p->longest_sequence));
    cli_json_set(document, "smallest_memory", cli_json_unsigned(p->smallest_memory));
    cli_json_print(document);
}

static void print_line(const char *name, uint64_t bytes)
{
    fprintf(cli_out(), "  %-11s %9s\n", name, cli_bytes((double)bytes));
}

static void print_arenas(const nbl_model_plan *p)
{
    print_line("weights", p->arenas.weights);
    print_line("adapters", p->arenas.adapters);
    print_line("optimizer", p->arenas.optimizer);
    print_line("saved", p->arenas.saved);
    print_line("scratch", p->arenas.scratch);
    print_line("kv", p->arenas.kv);
    if (p->arenas.device) print_line("device", p->arenas.device);
    print_line("total", p->total_bytes);
    if (p->host_bytes) print_line("on the host", p->host_bytes);
}

static void print_values(const nbl_model_plan *p)
{
    fprintf(cli_out(), "\n  %9s %6s %-9s %-5s %-20s %s\n", "largest", "count", "arena", "dtype", "shape",
            "name");
    for (int64_t i = 0; i < p->value_count; i++) {
        const nbl_planned_value *v = &p->values[i];
        char shape[256] = "", *end = shape;
        for (int k = 0; k < v->rank; k++)
            end += snprintf(end, (size_t)(shape + sizeof shape - end), "%s%" PRId64, k ? " " : "",
                            v->shape[k]);
        fprintf(cli_out(), "  %9s %6" PRId64 " %-9s %-5s %-20s %s\n", cli_bytes((double)v->bytes), v->count,
                v->arena, v->rank ? nbl_dtype_name(v->dtype) : "-", v->rank ? shape : "-", v->name);
    }
}

static void print_ops(const nbl_model_plan *p)
{
    fprintf(cli_out(), "\n  %-24s %-28s %-8s %6s %12s %10s\n", "operator", "implementation", "pass", "count",
            "GFLOP", "GB");
    for (int64_t i = 0; i < p->op_count; i++)
        fprintf(cli_out(), "  %-24s %-28s %-8s %6" PRId64 " %12.3f %10.3f\n", p->ops[i].op, p->ops[i].impl,
                p->ops[i].pass, p->ops[i].count, p->ops[i].flops * 1e-9, p->ops[i].bytes * 1e-9);
}

static void print_text(const nbl_model_plan *p)
{
    print_arenas(p);
    print_values(p);
    print_ops(p);
    fprintf(cli_out(), "\n  casts: %" PRId64 "\n", p->cast_count);
    for (int64_t i = 0; i < p->cast_count; i++)
        fprintf(cli_out(), "  %s: %s to %s: %s\n", p->casts[i].at, nbl_dtype_name(p->casts[i].from),
                nbl_dtype_name(p->casts[i].to), p->casts[i].why);
    if (strcmp(p->recompute, "none") == 0) fprintf(cli_out(), "  recomputed: none\n");
    else
        fprintf(cli_out(), "  recomputed: %s of %" PRId64 " of %" PRId64 " layers, %.3f GFLOP\n",
                strcmp(p->recompute, "cheap") == 0 ? "what is cheap" : "all", p->recomputed_layers, p->layers,
                p->recompute_flops * 1e-9);
    if (p->dequantized_weights)
        fprintf(cli_out(), "  decoded once: %" PRId64 " weights, %s\n", p->dequantized_weights,
                cli_bytes((double)p->dequantized_bytes));
    fprintf(cli_out(), "  longest sequence: %" PRId64 " tokens\n", p->longest_sequence);
    fprintf(cli_out(), "  smallest memory: %s (%" PRIu64 " bytes)\n", cli_bytes((double)p->smallest_memory),
            p->smallest_memory);
}

static nbl_status plan_run(const cli_call *call, nbl_context *ctx, nbl_run **run, nbl_model_plan *plan)
{
    nbl_status code = cli_run_open(call, ctx, cli_get(call, "train")->text, cli_get(call, "set"), run);
    if (code == NBL_OK) code = cli_use_device_of(ctx, *run);
    if (code != NBL_OK) return code;
    const cli_value *tokens = cli_get(call, "tokens");
    return nbl_run_make_plan(*run, call->arguments[0], tokens->given ? tokens->integer : 0,
                             cli_get(call, "batch")->integer, cli_get(call, "memory")->size, plan);
}

/* Checks for options that have no meaning here, or that contradict the run. */
static int check_options(const cli_call *call)
{
    static const char *const models[] = {"adapter", "dtype", "load"};
    if (!cli_get(call, "train")->given)
        return cli_get(call, "set")->count > 0
                   ? cli_usage(call, NULL, "--set needs --train: it overrides keys of a run")
                   : CLI_DONE;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (cli_get(call, models[i])->given)
            return cli_usage(call, "--set overrides its keys: lora_model_dir, bf16, load_in_4bit, ...",
                             "--%s does not go with --train: the run says it", models[i]);
    return CLI_DONE;
}

static int run(cli_call *call)
{
    int status = check_options(call);
    if (status != CLI_DONE) return status;
    nbl_context *ctx = cli_context(call, &status);
    if (ctx == NULL) return status;
    nbl_model *model = NULL;
    nbl_model_plan *plan = cli_alloc(sizeof *plan);
    nbl_run *r = NULL;
    bool of_run = cli_get(call, "train")->given;
    nbl_status code = of_run ? plan_run(call, ctx, &r, plan) : cli_use_device(call, ctx);
    if (code == NBL_OK && !of_run) code = cli_model_open(call, ctx, true, &model);
    if (code == NBL_OK && !of_run)
        code = nbl_model_make_plan(model, cli_get(call, "tokens")->integer, cli_get(call, "batch")->integer,
                                   cli_get(call, "memory")->size, plan);
    status = code == NBL_OK ? CLI_DONE : cli_failure(call, ctx, code);
    if (code == NBL_OK && call->json) print_json(plan);
    else if (code == NBL_OK) print_text(plan);
    nbl_run_close(r);
    nbl_model_close(model);
    cli_context_end(ctx);
    return status;
}

const cli_command cli_plan = {
    .name = "plan",
    .group = "Models",
    .summary = "what computing with a model takes, without running it",
    .description =
        "Memory per arena, the largest values, every operator with its implementation and cost, every "
        "cast and why; what is computed again to keep a memory budget, the longest sequence for it and "
        "the smallest budget for the sequence asked about. --json has every size in bytes.\n\n"
        "With --train it is the training step of that run on MODEL, with the run's adapter, dtype and "
        "storage "
        "format; with --adapter a training step of that adapter; else generation. Fails when the budget is "
        "too "
        "small, naming the smallest.",
    .arguments = CLI_MODEL_ARGUMENT,
    .options =
        (const cli_option[]){
            {.name = "train",
             .argument = "RUN.yml",
             .kind = CLI_PATH,
             .help = "plan the training step of this run on MODEL; tokens are those of its data unless told"},
            CLI_SET_OPTION,
            {.name = "tokens",
             .argument = "N",
             .kind = CLI_INTEGER,
             .fallback = "512",
             .minimum = 1,
             .maximum = 1 << 24,
             .help = "tokens per sequence"},
            {.name = "batch",
             .argument = "B",
             .kind = CLI_INTEGER,
             .fallback = "1",
             .minimum = 1,
             .maximum = 4096,
             .help = "sequences"},
            {.name = "memory",
             .argument = "SIZE",
             .kind = CLI_SIZE,
             .help = "what everything must keep within, weights included"},
            CLI_ADAPTER_OPTION("plan a training step of this adapter", false),
            CLI_COMPUTE_OPTIONS,
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"what will this run take?", "plan Llama-3.2-1B --train run.yml"},
            {"and with a longer limit?", "plan Llama-3.2-1B --train run.yml --set sequence_len=8192"},
            {"does it fit?", "plan Llama-3.2-1B --tokens 2048 --memory 4G"},
            {NULL, NULL},
        },
    .run = run,
};
