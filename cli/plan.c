/* plan.c - `nibble plan`: what computing with a model takes, without running it. */
#include <inttypes.h>

#include "commands.h"
#include "model.h"
#include "output.h"
#include "session.h"

static void print_json(const nbl_model_plan *p)
{
    json_t *document = cli_json_object(), *arenas = cli_json_object(), *ops = cli_json_array(),
           *casts = cli_json_array();
    cli_json_set(arenas, "weights", cli_json_unsigned(p->arenas.weights));
    cli_json_set(arenas, "adapters", cli_json_unsigned(p->arenas.adapters));
    cli_json_set(arenas, "optimizer", cli_json_unsigned(p->arenas.optimizer));
    cli_json_set(arenas, "saved", cli_json_unsigned(p->arenas.saved));
    cli_json_set(arenas, "scratch", cli_json_unsigned(p->arenas.scratch));
    cli_json_set(arenas, "kv", cli_json_unsigned(p->arenas.kv));
    for (int64_t i = 0; i < p->op_count; i++) {
        json_t *it = cli_json_object();
        cli_json_set(it, "op", cli_json_text(p->ops[i].op));
        cli_json_set(it, "impl", cli_json_text(p->ops[i].impl));
        cli_json_set(it, "count", json_integer(p->ops[i].count));
        cli_json_set(it, "flops", cli_json_number(p->ops[i].flops));
        cli_json_set(it, "bytes", cli_json_number(p->ops[i].bytes));
        cli_json_add(ops, it);
    }
    for (int64_t i = 0; i < p->cast_count; i++) {
        json_t *it = cli_json_object();
        cli_json_set(it, "at", cli_json_text(p->casts[i].at));
        cli_json_set(it, "from", cli_json_text(nbl_dtype_name(p->casts[i].from)));
        cli_json_set(it, "to", cli_json_text(nbl_dtype_name(p->casts[i].to)));
        cli_json_set(it, "why", cli_json_text(p->casts[i].why));
        cli_json_add(casts, it);
    }
    cli_json_set(document, "arenas", arenas);
    cli_json_set(document, "total_bytes", cli_json_unsigned(p->total_bytes));
    cli_json_set(document, "casts", casts);
    cli_json_set(document, "ops", ops);
    cli_json_set(document, "longest_sequence", json_integer(p->longest_sequence));
    cli_json_print(document);
}

static void print_line(const char *name, uint64_t bytes)
{
    fprintf(cli_out(), "  %-10s %14" PRIu64 " bytes\n", name, bytes);
}

static void print_text(const nbl_model_plan *p)
{
    print_line("weights", p->arenas.weights);
    print_line("adapters", p->arenas.adapters);
    print_line("optimizer", p->arenas.optimizer);
    print_line("saved", p->arenas.saved);
    print_line("scratch", p->arenas.scratch);
    print_line("kv", p->arenas.kv);
    print_line("total", p->total_bytes);
    fprintf(cli_out(), "\n  %-26s %-28s %6s %10s %10s\n", "operator", "implementation", "count", "GFLOP",
            "GB");
    for (int64_t i = 0; i < p->op_count; i++)
        fprintf(cli_out(), "  %-26s %-28s %6" PRId64 " %10.3f %10.3f\n", p->ops[i].op, p->ops[i].impl,
                p->ops[i].count, p->ops[i].flops * 1e-9, p->ops[i].bytes * 1e-9);
    fprintf(cli_out(), "\n  %" PRId64 " casts\n", p->cast_count);
    for (int64_t i = 0; i < p->cast_count; i++)
        fprintf(cli_out(), "  %s: %s to %s: %s\n", p->casts[i].at, nbl_dtype_name(p->casts[i].from),
                nbl_dtype_name(p->casts[i].to), p->casts[i].why);
    fprintf(cli_out(), "  longest sequence: %" PRId64 " tokens\n", p->longest_sequence);
}

static int run(cli_call *call)
{
    int status;
    nbl_context *ctx = cli_context(call, &status);
    if (ctx == NULL) return status;
    nbl_model *model = NULL;
    nbl_model_plan *plan = cli_alloc(sizeof *plan);
    nbl_status code = cli_model_open(call, ctx, &model);
    if (code == NBL_OK)
        code = nbl_model_make_plan(model, cli_get(call, "tokens")->integer, cli_get(call, "batch")->integer,
                                   cli_get(call, "memory")->size, plan);
    status = code == NBL_OK ? CLI_DONE : cli_failure(call, ctx, code);
    if (code == NBL_OK && call->json) print_json(plan);
    else if (code == NBL_OK) print_text(plan);
    nbl_model_close(model);
    cli_context_end(ctx);
    return status;
}

const cli_command cli_plan = {
    .name = "plan",
    .group = "Models",
    .summary = "what computing with a model takes, without running it",
    .description = "Bytes per arena, every operator with its implementation, every cast and why, and the "
                   "longest sequence for a "
                   "memory budget. A training step when an adapter is given, else generation.",
    .arguments = CLI_MODEL_ARGUMENT,
    .options =
        (const cli_option[]){
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
             .help = "what the longest sequence must keep within"},
            CLI_ADAPTER_OPTION("plan a training step of this adapter", false),
            CLI_COMPUTE_OPTIONS,
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"does it fit?", "plan Llama-3.2-1B --tokens 2048 --memory 4G"},
            {NULL, NULL},
        },
    .run = run,
};
