/* plan.c - `nibble plan`: shows the memory and work that a model or a run needs, without running
 * it.
 *
 * The library plans; this file prints the plan as JSON or as tables. Three kinds of plan: a
 * training step of a run (--train), of an adapter (--adapter), or generation. */
#include <inttypes.h>
#include <string.h>

#include "commands/commands.h"
#include "model.h"
#include "output.h"
#include "run.h"
#include "process.h"

enum { MAX_VALUES = 16 }; /* of the values, only the largest are shown */

/* Bytes by purpose. docs/ARCHITECTURE.md (Graph and plans) has the table of what each holds. */
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

/* Operators with equal implementation and pass are one entry with a count. */
static cli_json *ops_json(const nbl_model_plan *p)
{
    cli_json *ops = cli_json_array();
    const nbl_planned_op *op;
    for (int64_t i = 0; (op = nbl_model_plan_get_op(p, i)); i++) {
        cli_json *it = cli_json_object();
        cli_json_set(it, "op", cli_json_text(op->op));
        cli_json_set(it, "impl", cli_json_text(op->impl));
        cli_json_set(it, "pass", cli_json_text(nbl_plan_pass_name(op->pass)));
        cli_json_set(it, "count", cli_json_integer(op->count));
        cli_json_set(it, "flops", cli_json_number(op->flops));
        cli_json_set(it, "bytes", cli_json_number(op->bytes));
        cli_json_add(ops, it);
    }
    return ops;
}

/* Casts that the plan makes, each with its reason. */
static cli_json *casts_json(const nbl_model_plan *p)
{
    cli_json *casts = cli_json_array();
    const nbl_planned_cast *cast;
    for (int64_t i = 0; (cast = nbl_model_plan_get_cast(p, i)); i++) {
        cli_json *it = cli_json_object();
        cli_json_set(it, "at", cli_json_text(cast->at));
        cli_json_set(it, "from", cli_json_text(nbl_dtype_name(cast->from)));
        cli_json_set(it, "to", cli_json_text(nbl_dtype_name(cast->to)));
        cli_json_set(it, "why", cli_json_text(cast->why));
        cli_json_add(casts, it);
    }
    return casts;
}

/* The largest values. A value without a shape is memory of an operator, not a tensor. */
static cli_json *values_json(const nbl_model_plan *p)
{
    cli_json *values = cli_json_array();
    const nbl_planned_value *v;
    for (int64_t i = 0; i < MAX_VALUES && (v = nbl_model_plan_get_value(p, i)); i++) {
        cli_json *it = cli_json_object(), *shape = cli_json_array();
        for (int k = 0; k < v->rank; k++) cli_json_add(shape, cli_json_integer(v->shape[k]));
        cli_json_set(it, "name", cli_json_text(v->name));
        cli_json_set(it, "count", cli_json_integer(v->count));
        cli_json_set(it, "arena", cli_json_text(nbl_plan_arena_name(v->arena)));
        cli_json_set(it, "dtype", v->rank ? cli_json_text(nbl_dtype_name(v->dtype)) : cli_json_null());
        cli_json_set(it, "shape", shape);
        cli_json_set(it, "bytes", cli_json_unsigned(v->bytes));
        cli_json_add(values, it);
    }
    return values;
}

static void print_json(const nbl_model_plan *p)
{
    const nbl_model_plan_summary *s = nbl_model_plan_get_summary(p);
    cli_json *document = cli_json_object(), *again = cli_json_object();
    cli_json_set(again, "mode", cli_json_text(nbl_plan_recompute_name(s->recompute)));
    cli_json_set(again, "layers", cli_json_integer(s->recomputed_layers));
    cli_json_set(again, "flops", cli_json_number(s->recompute_flops));
    cli_json_set(document, "arenas", arenas_json(&s->arenas));
    cli_json_set(document, "total_bytes", cli_json_unsigned(s->total_bytes));
    cli_json_set(document, "largest", values_json(p));
    cli_json_set(document, "casts", casts_json(p));
    cli_json_set(document, "ops", ops_json(p));
    cli_json_set(document, "recompute", again);
    cli_json_set(document, "decoded_weights", cli_json_integer(s->dequantized_weights));
    cli_json_set(document, "decoded_bytes", cli_json_unsigned(s->dequantized_bytes));
    cli_json_set(document, "host_bytes", cli_json_unsigned(s->host_bytes));
    cli_json_set(document, "longest_sequence", cli_json_integer(s->longest_sequence));
    cli_json_set(document, "smallest_memory", cli_json_unsigned(s->smallest_memory));
    cli_json_print(document);
}

static void print_line(const char *name, uint64_t bytes)
{
    fprintf(cli_out(), "  %-11s %9s\n", name, cli_bytes((double)bytes));
}

/* Prints the arenas in powers of 1000 and the total. */
static void print_arenas(const nbl_model_plan_summary *s)
{
    print_line("weights", s->arenas.weights);
    print_line("adapters", s->arenas.adapters);
    print_line("optimizer", s->arenas.optimizer);
    print_line("saved", s->arenas.saved);
    print_line("scratch", s->arenas.scratch);
    print_line("kv", s->arenas.kv);
    if (s->arenas.device) print_line("device", s->arenas.device);
    print_line("total", s->total_bytes);
    if (s->host_bytes) print_line("on the host", s->host_bytes);
}

static void print_values(const nbl_model_plan *p)
{
    fprintf(cli_out(), "\n  %9s %6s %-9s %-5s %-20s %s\n", "largest", "count", "arena", "dtype", "shape",
            "name");
    const nbl_planned_value *v;
    for (int64_t i = 0; i < MAX_VALUES && (v = nbl_model_plan_get_value(p, i)); i++) {
        char shape[256] = "", *end = shape;
        for (int k = 0; k < v->rank; k++)
            end += snprintf(end, (size_t)(shape + sizeof shape - end), "%s%" PRId64, k ? " " : "",
                            v->shape[k]);
        fprintf(cli_out(), "  %9s %6" PRId64 " %-9s %-5s %-20s %s\n", cli_bytes((double)v->bytes), v->count,
                nbl_plan_arena_name(v->arena), v->rank ? nbl_dtype_name(v->dtype) : "-",
                v->rank ? shape : "-", v->name);
    }
}

static void print_ops(const nbl_model_plan *p)
{
    fprintf(cli_out(), "\n  %-24s %-28s %-8s %6s %12s %10s\n", "operator", "implementation", "pass", "count",
            "GFLOP", "GB");
    const nbl_planned_op *op;
    for (int64_t i = 0; (op = nbl_model_plan_get_op(p, i)); i++)
        fprintf(cli_out(), "  %-24s %-28s %-8s %6" PRId64 " %12.3f %10.3f\n", op->op, op->impl,
                nbl_plan_pass_name(op->pass), op->count, op->flops * 1e-9, op->bytes * 1e-9);
}

static void print_text(const nbl_model_plan *p)
{
    const nbl_model_plan_summary *s = nbl_model_plan_get_summary(p);
    const nbl_planned_cast *cast;
    print_arenas(s);
    print_values(p);
    print_ops(p);
    fprintf(cli_out(), "\n  casts: %" PRId64 "\n", s->cast_count);
    for (int64_t i = 0; (cast = nbl_model_plan_get_cast(p, i)); i++)
        fprintf(cli_out(), "  %s: %s to %s: %s\n", cast->at, nbl_dtype_name(cast->from),
                nbl_dtype_name(cast->to), cast->why);
    if (s->recompute == NBL_PLAN_RECOMPUTE_NONE) fprintf(cli_out(), "  recomputed: none\n");
    else
        fprintf(cli_out(), "  recomputed: %s of %" PRId64 " of %" PRId64 " layers, %.3f GFLOP\n",
                s->recompute == NBL_PLAN_RECOMPUTE_CHEAP ? "cheap operators" : "all", s->recomputed_layers,
                s->layers, s->recompute_flops * 1e-9);
    if (s->dequantized_weights)
        fprintf(cli_out(), "  dequantized once: %" PRId64 " weights, %s\n", s->dequantized_weights,
                cli_bytes((double)s->dequantized_bytes));
    fprintf(cli_out(), "  longest sequence: %" PRId64 " tokens\n", s->longest_sequence);
    fprintf(cli_out(), "  smallest memory: %s (%" PRIu64 " bytes)\n", cli_bytes((double)s->smallest_memory),
            s->smallest_memory);
}

/* Plans a training step of --train's run on MODEL. The device is the run's, not --device's default.
 * *run is to be closed also after an error. */
static nbl_status plan_run(const cli_call *call, nbl_context *ctx, nbl_run **run, nbl_model_plan **plan)
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
    nbl_model_plan *plan = NULL;
    nbl_run *r = NULL;
    bool of_run = cli_get(call, "train")->given;
    nbl_status code = of_run ? plan_run(call, ctx, &r, &plan) : cli_use_device(call, ctx);
    if (code == NBL_OK && !of_run) code = cli_model_open(call, ctx, true, &model);
    if (code == NBL_OK && !of_run)
        code = nbl_model_make_plan(model, cli_get(call, "tokens")->integer, cli_get(call, "batch")->integer,
                                   cli_get(call, "memory")->size, &plan);
    status = code == NBL_OK ? CLI_DONE : cli_failure(call, ctx, code);
    if (code == NBL_OK && call->json) print_json(plan);
    else if (code == NBL_OK) print_text(plan);
    nbl_model_plan_free(plan);
    nbl_run_close(r);
    nbl_model_close(model);
    cli_context_end(ctx);
    return status;
}

const cli_command cli_plan = {
    .name = "plan",
    .group = "Models",
    .summary = "show memory and work of a model or a run, without computing",
    .description = "Shows what computing with MODEL takes: memory by purpose, the largest values, "
                   "each operator with its implementation and cost, and each cast with its reason. "
                   "Shows what is recomputed to keep within --memory, the longest sequence that "
                   "fits, and the smallest memory for --tokens. --json has every size in bytes.\n\n"
                   "With --train this is a training step of that run on MODEL, with the adapter, "
                   "dtype and storage format of the run. With --adapter it is a training step of "
                   "that adapter. Otherwise it is generation. The command fails if --memory is too "
                   "small, and names the smallest amount.",
    .arguments = CLI_MODEL_ARGUMENT,
    .options =
        (const cli_option[]){
            {.name = "train",
             .argument = "RUN.yml",
             .kind = CLI_PATH,
             .help = "plan the training step of this run on MODEL; without --tokens, for "
                     "the largest sequences of its data"},
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
             .help = "the most that everything may take, weights included (default: no "
                     "limit)"},
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
