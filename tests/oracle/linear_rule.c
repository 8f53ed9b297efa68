/* linear_rule.c - the rule of format/hf/hf_linear.h as a filter, for test_linear_rule.py.
 *
 * Reads lines `model_type tied name d0xd1…` (model_type - means none, tied is 0 or 1) and answers each
 * with yes, no or refuse. `layers N name` asks whether the tensor is in a layer behind the last of N: it
 * answers extra or no. */
#include <stdio.h>
#include <stdlib.h>

#include "format/hf/hf_linear.h"

int main(void)
{
    static const char *const words[] = {"yes", "no", "refuse"};
    char line[4096];
    while (fgets(line, sizeof line, stdin)) {
        char *type = strtok(line, " \n"), *tied = strtok(NULL, " \n"), *name = strtok(NULL, " \n");
        char *sizes = strtok(NULL, " \n");
        if (name == NULL) return fprintf(stderr, "linear_rule: not a question\n"), 1;
        if (strcmp(type, "layers") == 0 && sizes == NULL) {
            puts(nbl__hf_is_extra_layer(strtoll(tied, NULL, 10), name) ? "extra" : "no");
            continue;
        }
        int rank = sizes != NULL; /* sizes are joined by x */
        for (char *at = sizes; at && *at; at++) rank += *at == 'x';
        const char *model_type = strcmp(type, "-") == 0 ? NULL : type;
        puts(words[nbl__hf_is_linear(model_type, strcmp(tied, "1") == 0, name, rank)]);
    }
    return ferror(stdin) || fflush(stdout);
}
