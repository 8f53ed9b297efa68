/* case_scratch.c - scratch is planned once, for the most tokens that a run may have: with fewer it must not be more.
 *
 * The scratch of an implementation is asked for as if the case had fewer tokens: T, the first dimension of whatever
 * has it, is all that changes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"

enum { EACH = 300 }; /* so few are tried one by one */

/* T of the case; 0: it has none, or another number is the same, so that shapes do not tell them apart. */
static int64_t tokens_of(const char *text)
{
    char value[CASE_TEXT];
    double tokens, other;
    const char *word = case_word(text, "T", value);
    if (word == NULL || !case_number(text, word, &tokens)) return 0;
    for (char name[2] = "A"; name[0] <= 'Z'; name[0]++)
        if (name[0] != 'T' && (word = case_word(text, name, value)) && case_number(text, word, &other) &&
            other == tokens)
            return 0;
    return (int64_t)tokens;
}

static void set_tokens(const nbl__family *family, void *arguments, int64_t from, int64_t to)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        nbl_tensor *tensor = (nbl_tensor *)(void *)((char *)arguments + slot->offset);
        if (!case_is_weight(slot) && tensor->rank > 0 && tensor->shape[0] == from) tensor->shape[0] = to;
    }
}

bool case_scratch_grows(const nbl_context *ctx, const op_case *c, const nbl__impl *impl,
                        const void *arguments, char why[CASE_TEXT])
{
    int64_t tokens = tokens_of(c->text);
    size_t max = nbl__op_scratch(ctx, impl, arguments);
    void *fewer = malloc(c->family->size);
    if (fewer == NULL) exit(1);
    bool good = true;
    for (int64_t t = tokens - 1; t > 0 && good; t = t <= EACH ? t - 1 : t / 2) {
        memcpy(fewer, arguments, c->family->size);
        set_tokens(c->family, fewer, tokens, t);
        if (impl->can && impl->can(ctx, fewer)) continue; /* another one is chosen then */
        size_t bytes = nbl__op_scratch(ctx, impl, fewer);
        good = bytes <= max;
        if (!good)
            snprintf(why, CASE_TEXT, "%zu bytes of scratch for %lld tokens, and only %zu for %lld", bytes,
                     (long long)t, max, (long long)tokens);
    }
    free(fewer);
    return good;
}
