/* export.c - `nibble export`: the command's table, and its call of the library. With --adapter and
 * without --type the output is a GGUF LoRA, and report fields count its tensors. */
#include "commands/commands.h"
#include "output.h"
#include "process.h"

/* Prints the result for --json. "type" is null for a GGUF LoRA. */
static void print_document(const cli_call *call, const nbl_export_report *report, double seconds)
{
    cli_json *document = cli_json_object();
    cli_json_set(document, "out", cli_json_text(call->arguments[1]));
    cli_json_set(document, "type", cli_json_text(cli_get(call, "type")->text));
    cli_json_set(document, "tensors", cli_json_unsigned((uint64_t)report->tensors));
    cli_json_set(document, "parameters", cli_json_unsigned((uint64_t)report->parameters));
    cli_json_set(document, "fallen_back", cli_json_unsigned((uint64_t)report->fallen_back));
    cli_json_set(document, "bytes", cli_json_unsigned(report->bytes));
    cli_json_set(document, "seconds", cli_json_number(seconds));
    cli_json_print(document);
}

/* Prints the result for people, with the command that runs the file. */
static void print_summary(const cli_call *call, const nbl_export_report *report, double seconds)
{
    FILE *to = cli_out();
    const char *out = call->arguments[1], *type = cli_get(call, "type")->text;
    fprintf(to, "%s%s%s: %s, %s tensors, %s parameters, %s in %s\n", cli_styled(CLI_BOLD), cli_clean(out),
            cli_styled(CLI_PLAIN), type ? type : "LoRA", cli_grouped((uint64_t)report->tensors),
            cli_short((double)report->parameters), cli_bytes((double)report->bytes), cli_duration(seconds));
    if (report->fallen_back)
        fprintf(to, "%s matrices are f16: their rows are no whole blocks\n",
                cli_grouped((uint64_t)report->fallen_back));
    const char *word = cli_shell_word(out);
    if (type) fprintf(to, "next: llama-cli -m %s\n", word);
    else fprintf(to, "next: llama-cli -m BASE.gguf --lora %s\n", word);
}

static int run_export(cli_call *call)
{
    int status;
    nbl_export_type type = NBL_EXPORT_DEFAULT;
    nbl_export_type_parse(cli_get(call, "type")->text, &type);
    nbl_export_options how = {NBL_OPTIONS(nbl_export_options), .type = type,
                              .adapter = cli_get(call, "adapter")->text,
                              .ollama = cli_get(call, "ollama")->given};
    /* NBL_EXPORT_DEFAULT is "no --type": only an adapter can be exported then */
    if (type == NBL_EXPORT_DEFAULT && how.adapter == NULL)
        return cli_usage(call, NULL,
                         "--type is missing: f32, f16, bf16, q8_0 or q4_0 (or --adapter for a GGUF LoRA)");
    nbl_context *ctx = cli_context(call, &status);
    if (ctx == NULL) return status;
    nbl_export_report report = {NBL_RESULT(nbl_export_report)};
    double began = cli_now();
    cli_work_begin("nothing was written");
    nbl_status code = nbl_export(ctx, call->arguments[0], call->arguments[1], &how, &report);
    cli_work_end(code);
    if (code != NBL_OK) status = cli_failure(call, ctx, code);
    else if (call->json) print_document(call, &report, cli_now() - began);
    else if (!call->quiet) print_summary(call, &report, cli_now() - began);
    cli_context_end(ctx);
    return status;
}

const cli_command cli_export = {
    .name = "export",
    .group = "Convert",
    .summary = "write a GGUF file that llama.cpp and Ollama run",
    .description = "Writes the GGUF file OUT from folder MODEL: weights, metadata, "
                   "tokenizer and chat template. MODEL is llama, mistral, qwen2, qwen3, "
                   "gemma2, gemma3_text or phi3, 16-bit or quantized. Matrices have "
                   "the type that --type names. Vectors are f32.\n\n"
                   "With --adapter the adapter is merged into the weights. Its tokenizer "
                   "and chat template replace those of MODEL, if it has its own. With "
                   "--adapter and without --type, OUT is a GGUF LoRA.\n\n"
                   "MODEL is not changed. OUT must not exist. It appears complete or not "
                   "at all.",
    .arguments =
        (const cli_argument[]){
            {"MODEL", "the model to read, a folder in Hugging Face layout", CLI_PATH, NULL, false},
            {"OUT", "the .gguf file to write", CLI_PATH, NULL, false},
            {.name = NULL},
        },
    .options =
        (const cli_option[]){
            {.name = "type",
             .argument = "TYPE",
             .kind = CLI_CHOICE,
             .choices = "f32|f16|bf16|q8_0|q4_0",
             .help = "how to store matrices"},
            {.name = "adapter",
             .argument = "DIR",
             .kind = CLI_PATH,
             .help = "an adapter as PEFT saves it: merged, or without --type written as a GGUF LoRA"},
            {.name = "ollama", .help = "write a Modelfile beside OUT"},
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"8 bits for llama.cpp", "export merged model.gguf --type q8_0"},
            {"merged on the way, for Ollama",
             "export Llama-3.2-1B-nf4 model.gguf --adapter out --type q4_0 --ollama"},
            {"the adapter alone", "export Llama-3.2-1B adapter.gguf --adapter out"},
            {NULL, NULL},
        },
    .run = run_export,
};
