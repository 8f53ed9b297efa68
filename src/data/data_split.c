/* data_split.c - parses "train[A:B]". See data_split.h. A file has one split, "train". */
#include "data/data_split.h"

#include <math.h>
#include <stdlib.h>

/* Reads a bound and the character `stop` after it: N, -N, N% or -N%; without a number the bound
 * is `absent`. *bound is clamped to 0 .. count. Returns false for anything else. Numbers above
 * INT64_MAX / 200 are refused, so that sums cannot overflow. */
static bool read_bound(const char **at, char stop, int64_t count, int64_t absent, int64_t *bound)
{
    *bound = absent;
    if (**at == stop) return ++*at, true;
    char *end;
    if (**at != '-' && (**at < '0' || **at > '9')) return false;
    long long number = strtoll(*at, &end, 10);
    if (end == *at || number > INT64_MAX / 200 || number < -(INT64_MAX / 200)) return false;
    if (*end == '%') {
        if (number < -100 || number > 100) return false;
        number = llround((double)count * (double)number / 100);
        end++;
    }
    if (*end != stop) return false;
    *at = end + 1;
    if (number < 0) number = number + count < 0 ? 0 : number + count;
    *bound = number > count ? count : number;
    return true;
}

nbl_status nbl__data_split(nbl_context *ctx, const char *where, const char *split, int64_t count,
                           int64_t *first, int64_t *last)
{
    *first = 0;
    *last = count;
    if (split == NULL || strcmp(split, "train") == 0) return NBL_OK;
    NBL_CHECK(
        ctx, strncmp(split, "train", 5) == 0 && split[5] == '[', NBL_ERROR_ARGUMENT,
        "%s: split: \"%s\": a file has the one split train, which may be cut: train[:100], train[10%%:]",
        where, split);
    const char *at = split + 6;
    bool good = read_bound(&at, ':', count, 0, first) && read_bound(&at, ']', count, count, last) &&
                *at == '\0';
    NBL_CHECK(ctx, good, NBL_ERROR_ARGUMENT,
              "%s: split: \"%s\" is not of the form train[A:B], with rows or percent", where, split);
    NBL_CHECK(ctx, *first < *last, NBL_ERROR_ARGUMENT,
              "%s: split: \"%s\" selects none of the %" PRId64 " rows", where, split, count);
    return NBL_OK;
}
