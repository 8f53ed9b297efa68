/* main.c - nibble-ops, the operator library's own tool.
 *
 *     nibble-ops list
 *     nibble-ops run IN.safetensors OUT.safetensors [IN OUT]… [--threads N] [--impl NAME] [--json]
 *     nibble-ops check FILE.safetensors… [--threads N] [--impl NAME]
 *     nibble-ops test|perf|run|check|list --device cuda …
 *     nibble-ops test|grad|perf|support [--op REGEX] [--case TEXT] [--seed N] [--quick]     see case.h
 */
#include <stdio.h>
#include <stdlib.h>

#include "case.h"
#include "run.h"

#ifdef NIBBLE_CUDA_BUILT
#include "device/cuda/cuda_impls.h"
#endif

static const char usage[] =
    "Usage: nibble-ops run IN.safetensors OUT.safetensors [IN OUT]... [options]\n"
    "       nibble-ops check FILE.safetensors... [options]\n"
    "       nibble-ops test|grad|perf|support [options]\n"
    "       nibble-ops list\n\n"
    "run: one operator per pair, in order, in one process. IN carries the metadata `op` (its name)\n"
    "and `attrs` (a JSON object); see docs/OPERATORS.md. A pair that is refused ends the run with\n"
    "exit status 1; its OUT is not written. OUT may replace an earlier result, but no other file.\n\n"
    "  --threads N   threads to compute with (default: all cores)\n"
    "  --impl NAME   take this implementation, or fail\n"
    "  --device D    cpu (the default) or cuda: the first CUDA device; for run, check, test, perf\n"
    "                and list\n"
    "  --json        what ran, as one JSON document on standard output\n"
    "  --help        this text\n\n"
    "check: runs each file as run does and compares the outputs with its tensors expect.NAME,\n"
    "within the bounds of its metadata; exit status 1 when one is off.\n\n"
    "test, grad, perf, support: the table of operator cases. test compares every implementation with\n"
    "the reference, grad the references' gradients with finite differences, perf times the shapes of\n"
    "real models against what the machine can do, support lists what is accepted.\n\n"
    "  --op REGEX    only families whose whole name this matches\n"
    "  --case TEXT   this case instead of the table's; with --op\n"
    "  --seed N      of the random values (default 1)\n"
    "  --quick       fewer cases of each line\n"
    "  --small N     test: about N cases of each line, and none with more than 128 KiB of inputs\n\n"
    "NIBBLE_VERBOSE=dispatch tells which implementation runs and why others do not; NIBBLE_IMPL=NAME\n"
    "forces one wherever it exists; NIBBLE_ISA=avx2 lowers the instruction set.\n\n"
    "list: all operators and their implementations.\n";

/* Exit status 2, as for every command of nibble. */
static int wrong_usage(const char *what)
{
    fprintf(stderr, "nibble: ops: %s; see nibble-ops --help\n", what);
    return 2;
}

static const nbl__impl *const *impls_of(const nbl__op *op, bool cuda)
{
    static const nbl__impl *const none[] = {NULL};
#ifdef NIBBLE_CUDA_BUILT
    if (cuda) return nbl__cuda_impls(op);
#endif
    return cuda ? none : op->impls;
}

/* Prints an operator and its implementations; nothing for a direction that a family lacks. */
static void list_op(const nbl__op *op, bool cuda)
{
    if (op->name == NULL) return;
    printf("%s:", op->name);
    for (const nbl__impl *const *impl = impls_of(op, cuda); *impl; impl++) printf(" %s", (*impl)->name);
    printf("\n");
}

/* Lists all families, forward and backward. */
static int list(bool cuda)
{
    for (int i = 0; nbl__family_at(i); i++) {
        list_op(&nbl__family_at(i)->forward, cuda);
        list_op(&nbl__family_at(i)->backward, cuda);
    }
    return fflush(stdout) == 0 ? 0 : 1;
}

/* NIBBLE_VERBOSE=dispatch: which implementation was taken, and why those before it were not. */
static void show_line(void *user, nbl_log_level level, const char *line)
{
    (void)user, (void)level;
    fprintf(stderr, "nibble: %s\n", line);
}

/* Runs the pairs in order. The first failure ends the run. */
static int run_pairs(nbl_context *ctx, char **files, int count, const char *force, int json)
{
    if (json) printf("[");
    for (int i = 0; i + 1 < count; i += 2) {
        char op[64], impl[64];
        nbl_status status = run_pair(ctx, files[i], files[i + 1], force, op, impl);
        if (status != NBL_OK) {
            fprintf(stderr, "nibble: run: %s\n", nbl_error_message(ctx));
            return 1;
        }
        if (json) printf("%s{\"op\": \"%s\", \"impl\": \"%s\"}", i ? ", " : "", op, impl);
    }
    if (json) printf("]\n");
    return fflush(stdout) == 0 ? 0 : 1;
}

/* The options, and the words that are none. */
typedef struct command {
    case_options o;
    char **words;
    int count;
} command;

/* -1: go on; else the exit status. */
static int read_words(int argc, char **argv, command *c)
{
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(word, "--help") == 0) return fputs(usage, stdout) < 0;
        if (strcmp(word, "--json") == 0) c->o.json = true;
        else if (strcmp(word, "--quick") == 0) c->o.quick = true;
        else if (word[0] != '-') c->words[c->count++] = argv[i];
        else if (value == NULL) return wrong_usage("an unknown option, or one without its value");
        else if (strcmp(word, "--threads") == 0) c->o.threads = atoi(argv[++i]);
        else if (strcmp(word, "--impl") == 0) c->o.impl = argv[++i];
        else if (strcmp(word, "--op") == 0) c->o.op = argv[++i];
        else if (strcmp(word, "--case") == 0) c->o.text = argv[++i];
        else if (strcmp(word, "--small") == 0) c->o.small = strtoll(argv[++i], NULL, 10);
        else if (strcmp(word, "--seed") == 0) c->o.seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(word, "--device") == 0 && strcmp(value, "cpu") == 0) c->o.cuda = false, i++;
        else if (strcmp(word, "--device") == 0 && strcmp(value, "cuda") == 0) c->o.cuda = true, i++;
        else return wrong_usage("an unknown option, or one without its value");
    }
    return -1;
}

/* The commands run and check, which take files. */
static int run_files(const command *c)
{
    const char *verbose = getenv("NIBBLE_VERBOSE");
    nbl_log_fn log = verbose && strcmp(verbose, "dispatch") == 0 ? show_line : NULL;
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = c->o.threads, .log = log};
    nbl_context *ctx = NULL;
    char why[512];
    bool check = strcmp(c->words[0], "check") == 0;
    if (c->count < 2 || (!check && c->count % 2 == 0))
        return wrong_usage("run and pairs of files, or check and files, were expected");
    if (c->o.cuda && (ctx = device_context(c->o.threads, log, why)) == NULL) {
        fprintf(stderr, "nibble: %s: %s\n", c->words[0], why);
        return 1;
    }
    if (ctx == NULL && nbl_context_create(&options, &ctx) != NBL_OK)
        return wrong_usage("a bad number of threads");
    int exit_status = check ? check_files(ctx, c->words + 1, c->count - 1, c->o.impl)
                            : run_pairs(ctx, c->words + 1, c->count - 1, c->o.impl, c->o.json);
    nbl_context_destroy(ctx);
    return exit_status;
}

/* Does --op name a family? A test of nothing would pass. */
static bool selects_families(const case_options *o)
{
    for (int i = 0; case_family_at(i); i++)
        if (case_selected(o, case_family_at(i)->name)) return true;
    return false;
}

/* Dispatches on the first word. */
static int run_command(const command *c)
{
    static const struct {
        const char *name;
        int (*mode)(const case_options *o);
    } modes[] = {{"test", mode_test}, {"grad", mode_grad}, {"perf", mode_perf}, {"support", mode_support}};
    if (c->count > 0 && (strcmp(c->words[0], "run") == 0 || strcmp(c->words[0], "check") == 0))
        return run_files(c);
    if (c->count == 1 && strcmp(c->words[0], "list") == 0) return list(c->o.cuda);
    bool host = c->count == 1 && (strcmp(c->words[0], "grad") == 0 || strcmp(c->words[0], "support") == 0);
    if (c->o.cuda && host) return wrong_usage("grad and support have no device");
    if (!selects_families(&c->o))
        return wrong_usage("--op matches no operator family; `nibble-ops list` names them");
    for (size_t i = 0; c->count == 1 && i < sizeof modes / sizeof *modes; i++)
        if (strcmp(c->words[0], modes[i].name) == 0) return modes[i].mode(&c->o);
    return wrong_usage("a command was expected: run, check, list, test, grad, perf or support");
}

int main(int argc, char **argv)
{
    command c = {.o = {.seed = 1}, .words = calloc((size_t)argc + 1, sizeof *c.words)};
    if (c.words == NULL) return 1;
    int exit_status = read_words(argc, argv, &c);
    if (exit_status < 0) exit_status = run_command(&c);
    free(c.words);
    return exit_status;
}
