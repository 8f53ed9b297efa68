/* tokenize.c - `nibble tokenize`: turns text into ids, and ids into text.
 *
 * Input is one of --text, --file, --lines (JSON strings) and --decode (lists of ids). All input is
 * read before the tokenizer is opened. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "commands/commands.h"
#include "output.h"
#include "process.h"

/* ---- input ---- */

/* Reads the JSON strings of a JSONL file. Returns -1 after printing an error. Empty lines at the
 * end are ignored. */
static int64_t read_lines(const cli_call *call, const char *path, nbl_string **texts)
{
    nbl_string all;
    if (!cli_read_file(call, path, &all)) return -1;
    int64_t max = 1, count = 0, line = 0;
    for (size_t i = 0; i < all.size; i++) max += all.text[i] == '\n';
    *texts = cli_alloc((size_t)max * sizeof **texts);
    for (size_t at = 0; at < all.size;) {
        const char *end = memchr(all.text + at, '\n', all.size - at);
        size_t size = end ? (size_t)(end - all.text) - at : all.size - at;
        cli_json_document document = cli_json_read((nbl_string){all.text + at, size});
        nbl_string text;
        line++;
        bool good = cli_json_is_string(document.root, &text);
        if (good) {
            char *copy = cli_alloc(text.size + 1);
            memcpy(copy, text.text, text.size);
            (*texts)[count++] = (nbl_string){copy, text.size};
        } else {
            cli_error(call, NBL_ERROR_FORMAT, NULL, "%s: line %" PRId64 ": %s", path, line,
                      document.wrong ? document.wrong : "not a JSON string");
        }
        cli_json_forget(&document);
        if (!good) return -1;
        at += size + 1;
    }
    return count;
}

/* ---- output ---- */

static cli_json *list_of(const nbl_ids *ids)
{
    cli_json *list = cli_json_array();
    for (int64_t i = 0; i < ids->count; i++) cli_json_add(list, cli_json_integer(ids->ids[i]));
    return list;
}

/* Prints ids as JSON on one line, because there can be thousands. */
static void print_document(const char *key, cli_json *value)
{
    cli_json *document = cli_json_object();
    cli_json_set(document, key, value);
    cli_json_print_compact(document);
}

static void print_ids(const nbl_ids *ids)
{
    for (int64_t i = 0; i < ids->count; i++) fprintf(cli_out(), "%s%" PRId32, i ? " " : "", ids->ids[i]);
    fputc('\n', cli_out());
}

/* ---- the two directions ---- */

/* Prints the text of each list of ids, one per line. */
static nbl_status decode(const cli_call *call, nbl_tokenizer *tokenizer, nbl_context *ctx, const cli_ids *ids)
{
    cli_json *texts = cli_json_array();
    nbl_status code = NBL_OK;
    for (int64_t i = 0; i < ids->count && code == NBL_OK; i++) {
        char *text;
        size_t size;
        code = nbl_tokenizer_decode(tokenizer, ids->lists[i].ids, ids->lists[i].count,
                                    (int)cli_get(call, "no-special")->integer, &text, &size);
        if (code != NBL_OK) break;
        if (call->json) cli_json_add(texts, cli_json_string((nbl_string){text, size}));
        else {
            cli_put_text(cli_out(), (nbl_string){text, size});
            fputc('\n', cli_out());
        }
        nbl_text_free(ctx, text, size);
    }
    if (call->json && code == NBL_OK) print_document("texts", texts);
    else cli_json_free(texts);
    return code;
}

/* Prints the ids of each text. flat: the document of --json has one list, not a list of lists. */
static nbl_status encode(const cli_call *call, nbl_tokenizer *tokenizer, nbl_context *ctx,
                         const nbl_string *texts, int64_t count, bool flat)
{
    nbl_ids *lists = cli_alloc((size_t)(count + 1) * sizeof *lists);
    int special = !cli_get(call, "no-special")->integer;
    /* the ids must equal those of the tokenizers library */
    nbl_tokenizer_set_truncation_and_padding(tokenizer, 1);
    nbl_status code = nbl_tokenizer_encode_batch(tokenizer, count, texts, special, lists);
    if (code != NBL_OK) return code;
    if (call->json && flat) print_document("ids", list_of(&lists[0]));
    else if (call->json) {
        cli_json *all = cli_json_array();
        for (int64_t i = 0; i < count; i++) cli_json_add(all, list_of(&lists[i]));
        print_document("ids", all);
    } else {
        for (int64_t i = 0; i < count; i++) print_ids(&lists[i]);
    }
    for (int64_t i = 0; i < count; i++) nbl_ids_free(ctx, &lists[i]);
    return NBL_OK;
}

static int run(cli_call *call)
{
    const char *text = cli_get(call, "text")->text, *file = cli_get(call, "file")->text;
    const char *lines = cli_get(call, "lines")->text, *decoded = cli_get(call, "decode")->text;
    int given = (text != NULL) + (file != NULL) + (lines != NULL) + (decoded != NULL), status;
    if (given != 1)
        return cli_usage(call, NULL, "%s",
                         given ? "only one of --text, --file, --lines and --decode can be given"
                               : "one of --text, --file, --lines and --decode is needed");
    nbl_string *texts = cli_alloc(sizeof *texts);
    int64_t count = 1;
    cli_ids ids = {NULL, 0};
    if (text) *texts = (nbl_string){text, strlen(text)};
    else if (file && !cli_read_file(call, file, texts)) return CLI_FAILED;
    else if (lines && (count = read_lines(call, lines, &texts)) < 0) return CLI_FAILED;
    else if (decoded && !cli_read_ids(call, decoded, 0, UINT32_MAX, &ids)) return CLI_FAILED;

    nbl_context *ctx = cli_context(call, &status);
    if (ctx == NULL) return status;
    nbl_tokenizer *tokenizer = NULL;
    nbl_status code = nbl_tokenizer_open(ctx, call->arguments[0], &tokenizer);
    if (code == NBL_OK && decoded) code = decode(call, tokenizer, ctx, &ids);
    else if (code == NBL_OK) code = encode(call, tokenizer, ctx, texts, count, lines == NULL);
    status = code == NBL_OK ? CLI_DONE : cli_failure(call, ctx, code);
    nbl_tokenizer_close(tokenizer);
    cli_context_end(ctx);
    return status;
}

const cli_command cli_tokenize = {
    .name = "tokenize",
    .group = "Text",
    .summary = "turn text into token ids, and back",
    .description = "Prints the ids of texts, one line per text. With --decode, prints the texts of "
                   "ids. Ids are those of the tokenizers library for the same tokenizer.json. The "
                   "special tokens that the model puts around a text are added, unless --no-special "
                   "is given. Special tokens that the text spells are found in any case. Truncation "
                   "and padding of tokenizer.json apply here, and in no other command.\n\n"
                   "Decoding keeps special tokens, unless --no-special is given. It does not clean "
                   "up spaces.",
    .arguments =
        (const cli_argument[]){
            {"MODEL", "a folder with a tokenizer, a tokenizer's file, or a .gguf file", CLI_PATH, NULL, false},
            {.name = NULL},
        },
    .options =
        (const cli_option[]){
            {.name = "text", .argument = "S", .kind = CLI_TEXT, .help = "the text itself"},
            {.name = "file",
             .argument = "F",
             .kind = CLI_PATH,
             .help = "a file that is one text (-: standard input)"},
            {.name = "lines",
             .argument = "F",
             .kind = CLI_PATH,
             .help = "a JSONL file; each line is a JSON string, a text of its own"},
            {.name = "decode",
             .argument = "IDSFILE",
             .kind = CLI_PATH,
             .help = "a JSON file, a list of lists of ids; prints their texts"},
            {.name = "no-special", .help = "add no special tokens; with --decode: leave them out"},
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"the ids of a sentence", "tokenize Llama-3.2-1B --text 'Hello world'"},
            {"a data set, line by line, for a script",
             "tokenize Llama-3.2-1B --lines texts.jsonl --no-special --json"},
            {"ids back to text", "tokenize Llama-3.2-1B --decode ids.json"},
            {NULL, NULL},
        },
    .run = run,
};
