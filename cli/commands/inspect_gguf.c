/* inspect_gguf.c - `nibble inspect` for a GGUF file: the model, its tokenizer, and a summary of the
 * metadata. Headers only: the library maps the file and reads no tensor data. */
#include <inttypes.h>
#include <string.h>

#include "commands/inspect.h"
#include "process.h"

static const char *problem_at(const void *gguf, int64_t index)
{
    return nbl_gguf_get_problem(gguf, index);
}

static cli_totals count_formats(nbl_gguf *gguf)
{
    cli_totals all = {.count = 0};
    const nbl_gguf_tensor *tensor;
    for (int64_t i = 0; (tensor = nbl_gguf_get_tensor(gguf, i)) != NULL; i++)
        cli_totals_add(&all, tensor->format, (uint64_t)tensor->elements, tensor->bytes);
    cli_totals_sort(&all);
    return all;
}

/* ---- for scripts ---- */

/* 0 stands for "the file does not have it". */
static cli_json *size_or_null(int64_t size)
{
    return size ? cli_json_integer(size) : cli_json_null();
}

/* Returns the tokenizer's kind, size and special tokens; null: the file has none. */
static cli_json *describe_tokenizer(nbl_gguf *gguf, const nbl_gguf_summary *s)
{
    if (s->tokenizer == NULL) return cli_json_null();
    cli_json *entry = cli_json_object(), *specials = cli_json_object();
    const nbl_gguf_special *special;
    for (int64_t i = 0; (special = nbl_gguf_get_special(gguf, i)) != NULL; i++) {
        cli_json *one = cli_json_object();
        cli_json_set(one, "id", cli_json_integer(special->id));
        cli_json_set(one, "text", cli_json_text(special->text));
        cli_json_set(specials, special->name, one);
    }
    cli_json_set(entry, "model", cli_json_text(s->tokenizer));
    cli_json_set(entry, "pre", cli_json_text(s->pre));
    cli_json_set(entry, "tokens", cli_json_integer(s->vocabulary));
    cli_json_set(entry, "special", specials);
    cli_json_set(entry, "chat_templates", cli_json_integer(s->chat_templates));
    return entry;
}

/* Returns the metadata in the order of the file. Values are JSON texts of the library, parsed here
 * so that they become values of the document. */
static cli_json *describe_metadata(nbl_gguf *gguf)
{
    cli_json *list = cli_json_array();
    const nbl_gguf_entry *entry;
    for (int64_t i = 0; (entry = nbl_gguf_get_entry(gguf, i)) != NULL; i++) {
        cli_json *one = cli_json_object();
        cli_json_document value = cli_json_read((nbl_string){entry->value, strlen(entry->value)});
        cli_json_set(one, "key", cli_json_text(entry->key));
        cli_json_set(one, "type", cli_json_text(entry->type));
        cli_json_set(one, "count", cli_json_integer(entry->count));
        cli_json_set(one, "value", value.root ? cli_json_copy(value.root) : cli_json_null());
        cli_json_forget(&value);
        cli_json_set(one, "cut", cli_json_boolean(entry->cut));
        cli_json_add(list, one);
    }
    return list;
}

static cli_json *describe_tensors(nbl_gguf *gguf, const char *file)
{
    cli_json *list = cli_json_array();
    const nbl_gguf_tensor *tensor;
    for (int64_t i = 0; (tensor = nbl_gguf_get_tensor(gguf, i)) != NULL; i++) {
        cli_json *entry = cli_json_object();
        cli_json_set(entry, "name", cli_json_text(tensor->name));
        cli_json_set(entry, "format", cli_json_text(tensor->format));
        cli_json_set(entry, "shape", cli_shape_json(tensor->rank, tensor->shape));
        cli_json_set(entry, "bytes", cli_json_unsigned(tensor->bytes));
        cli_json_set(entry, "file", cli_json_text(file));
        cli_json_add(list, entry);
    }
    return list;
}

/* Prints the document for --json. The keys shared with other inputs have the same names. */
static void print_document(nbl_gguf *gguf, const char *path, bool with_tensors)
{
    const nbl_gguf_summary *s = nbl_gguf_get_summary(gguf);
    const char *slash = strrchr(path, '/');
    cli_totals all = count_formats(gguf);
    cli_json *document = cli_json_object();
    cli_json_set(document, "kind", cli_json_text("gguf"));
    cli_json_set(document, "type", cli_json_text(s->kind));
    cli_json_set(document, "architecture", cli_json_text(s->architecture));
    cli_json_set(document, "name", cli_json_text(s->name));
    cli_json_set(document, "version", cli_json_integer(s->version));
    cli_json_set(document, "parameters", cli_json_unsigned((uint64_t)s->parameters));
    cli_json_set(document, "bytes", cli_json_unsigned(s->bytes));
    cli_json_set(document, "file_bytes", cli_json_unsigned(s->file_bytes));
    cli_json_set(document, "formats", cli_totals_json(&all));
    cli_json_set(document, "layers", size_or_null(s->layers));
    cli_json_set(document, "hidden", size_or_null(s->hidden));
    cli_json_set(document, "heads", size_or_null(s->heads));
    cli_json_set(document, "kv_heads", size_or_null(s->kv_heads));
    cli_json_set(document, "context", size_or_null(s->context));
    cli_json_set(document, "tokenizer", describe_tokenizer(gguf, s));
    cli_json_set(document, "metadata", describe_metadata(gguf));
    cli_json_set(document, "problems", cli_problems_json(problem_at, gguf));
    if (with_tensors) cli_json_set(document, "tensors", describe_tensors(gguf, slash ? slash + 1 : path));
    cli_json_print(document);
}

/* ---- for people ---- */

static void print_tokenizer(nbl_gguf *gguf, const nbl_gguf_summary *s)
{
    if (s->tokenizer == NULL) return;
    const char *pre = s->pre ? cli_format(" (%s)", cli_clean(s->pre)) : "", *list = "";
    const nbl_gguf_special *special;
    for (int64_t i = 0; (special = nbl_gguf_get_special(gguf, i)) != NULL; i++)
        list = cli_format("%s, %s %s", list, special->name,
                          special->text ? cli_clean(special->text) : cli_format("%" PRId64, special->id));
    cli_fact("tokenizer", cli_format("%s%s, %s tokens%s", cli_clean(s->tokenizer), pre,
                                     cli_grouped((uint64_t)s->vocabulary), list));
    cli_fact("chat template", s->chat_templates == 0   ? "none"
                              : s->chat_templates == 1 ? "one"
                                                       : cli_format("%" PRId64, s->chat_templates));
}

static void print_metadata(nbl_gguf *gguf)
{
    enum { WIDEST = 60 };
    const nbl_gguf_entry *entry;
    fprintf(cli_out(), "\n  %smetadata%s\n", cli_styled(CLI_BOLD), cli_styled(CLI_PLAIN));
    for (int64_t i = 0; (entry = nbl_gguf_get_entry(gguf, i)) != NULL; i++) {
        const char *value = cli_clean(entry->value), *more = "";
        int bytes = (int)strlen(value);
        bool cut = entry->cut;
        if (bytes > WIDEST) {
            for (bytes = WIDEST; bytes > 0 && ((unsigned char)value[bytes] & 0xc0) == 0x80;) bytes--;
            cut = true;
        }
        if (strncmp(entry->type, "array", 5) == 0)
            more = cli_format(" (%s %s)", cli_grouped((uint64_t)entry->count),
                              entry->type + sizeof "array of");
        fprintf(cli_out(), "  %s = %.*s%s%s\n", cli_clean(entry->key), bytes, value, cut ? " ..." : "", more);
    }
}

static void print_summary(nbl_gguf *gguf, const char *path)
{
    const nbl_gguf_summary *s = nbl_gguf_get_summary(gguf);
    cli_totals all = count_formats(gguf);
    cli_heading(path);
    cli_fact("file", cli_format("GGUF version %d, %s", s->version, cli_bytes((double)s->file_bytes)));
    if (strcmp(s->kind, "model") != 0) cli_fact("type", cli_clean(s->kind));
    cli_fact("architecture", s->architecture ? cli_clean(s->architecture) : "not stated");
    if (s->name) cli_fact("name", cli_clean(s->name));
    cli_fact("parameters",
             cli_format("%s (%s)", cli_short((double)s->parameters), cli_grouped((uint64_t)s->parameters)));
    cli_fact("size", cli_format("%s, %s %s", cli_bytes((double)s->bytes), cli_grouped((uint64_t)s->tensors),
                                s->tensors == 1 ? "tensor" : "tensors"));
    if (s->layers)
        cli_fact("model", cli_format("%" PRId64 " layers, hidden size %" PRId64 ", %" PRId64
                                     " heads, %" PRId64 " positions",
                                     s->layers, s->hidden, s->heads, s->context));
    print_tokenizer(gguf, s);
    cli_totals_print(&all);
    if (s->entries) print_metadata(gguf);
    cli_problems_print(problem_at, gguf);
}

static bool tensor_row(void *gguf, int64_t index, cli_tensor_row *row)
{
    const nbl_gguf_tensor *tensor = nbl_gguf_get_tensor(gguf, index);
    if (tensor == NULL) return false;
    *row = (cli_tensor_row){.name = tensor->name,
                            .format = tensor->format,
                            .shape = cli_shape_text(tensor->rank, tensor->shape),
                            .bytes = tensor->bytes};
    return true;
}

int cli_inspect_gguf(const cli_call *call, nbl_context *ctx, const char *path)
{
    nbl_gguf *gguf;
    nbl_status code = nbl_gguf_open(ctx, path, &gguf);
    bool with_tensors = cli_get(call, "tensors")->given;
    if (code != NBL_OK) return cli_failure(call, ctx, code);
    if (call->json) {
        print_document(gguf, path, with_tensors);
    } else {
        print_summary(gguf, path);
        if (with_tensors) cli_tensors_print(tensor_row, gguf);
    }
    nbl_gguf_close(gguf);
    return CLI_DONE;
}
