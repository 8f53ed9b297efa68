/* main.c - nibble-ops, the operator library's own tool.
 *
 *     nibble-ops list
 *     nibble-ops run IN.safetensors OUT.safetensors [IN OUT]… [--threads N] [--impl NAME] [--json]
 *     nibble-ops check FILE.safetensors… [--threads N] [--impl NAME]
 */
#include <stdio.h>
#include <stdlib.h>

#include "run.h"

static const char usage[] =
    "Usage: nibble-ops run IN.safetensors OUT.safetensors [IN OUT]... [options]\n"
    "       nibble-ops check FILE.safetensors... [options]\n"
    "       nibble-ops list\n\n"
    "run: one operator per pair, in order, in one process. IN carries the metadata `op` (its name)\n"
    "and `attrs` (a JSON object); see docs/OPERATORS.md. A pair that is refused ends the run with\n"
    "exit status 1; its OUT is not written.\n\n"
    "  --threads N   threads to compute with (default: all cores)\n"
    "  --impl NAME   take this implementation, or fail\n"
    "  --device cpu  the only one so far\n"
    "  --json        what ran, as one JSON document on standard output\n"
    "  --help        this text\n\n"
    "check: runs each file as run does and compares the outputs with its tensors expect.NAME,\n"
    "within the bounds of its metadata; exit status 1 when one is off.\n"
    "list: all operators and their implementations.\n";

static int wrong_usage(const char *what)
{
    fprintf(stderr, "nibble: ops: %s; see nibble-ops --help\n", what);
    return 2;
}

static void list_op(const nbl__op *op)
{
    if (op->name == NULL) return;
    printf("%s:", op->name);
    for (const nbl__impl *const *impl = op->impls; *impl; impl++) printf(" %s", (*impl)->name);
    printf("\n");
}

static int list(void)
{
    for (int i = 0; nbl__family_at(i); i++) {
        list_op(&nbl__family_at(i)->forward);
        list_op(&nbl__family_at(i)->backward);
    }
    return fflush(stdout) == 0 ? 0 : 1;
}

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

int main(int argc, char **argv)
{
    nbl_context_options options = {0};
    const char *force = NULL;
    int json = 0, count = 0;
    char **words = calloc((size_t)argc + 1, sizeof *words);
    if (words == NULL) return 1;
    int exit_status = -1;
    for (int i = 1; i < argc && exit_status < 0; i++) {
        if (strcmp(argv[i], "--help") == 0) exit_status = fputs(usage, stdout) < 0;
        else if (strcmp(argv[i], "--json") == 0) json = 1;
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) options.threads = atoi(argv[++i]);
        else if (strcmp(argv[i], "--impl") == 0 && i + 1 < argc) force = argv[++i];
        else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc && strcmp(argv[i + 1], "cpu") == 0) i++;
        else if (argv[i][0] == '-') exit_status = wrong_usage("an unknown option, or one without its value");
        else words[count++] = argv[i];
    }
    if (exit_status < 0 && count == 1 && strcmp(words[0], "list") == 0) exit_status = list();
    bool check = count > 1 && strcmp(words[0], "check") == 0;
    if (exit_status < 0 && !check && (count < 3 || count % 2 == 0 || strcmp(words[0], "run") != 0))
        exit_status = wrong_usage("run and pairs of files, or check and files, were expected");
    nbl_context *ctx = NULL;
    if (exit_status < 0 && nbl_context_create(&options, &ctx) != NBL_OK)
        exit_status = wrong_usage("a bad number of threads");
    if (exit_status < 0 && check) exit_status = check_files(ctx, words + 1, count - 1, force);
    if (exit_status < 0) exit_status = run_pairs(ctx, words + 1, count - 1, force, json);
    nbl_context_destroy(ctx);
    free(words);
    return exit_status;
}
