/* problems.h - a list of what is wrong with a file.
 *
 * A reader that opens a file stops at the first problem. A reader that inspects a file lists the
 * problem and goes on. Both use the same code:
 *
 *     NBL_TRY(nbl__problem_collect(problems, check_tensor(…)));
 *
 * With problems == NULL the failure is returned. Otherwise it is listed and NBL_OK is returned. */
#ifndef NBL_PROBLEMS_H
#define NBL_PROBLEMS_H

#include "base/arena.h"

enum { NBL_MAX_PROBLEMS = 1000 }; /* further problems are not listed; one last line says so */

typedef struct nbl__problems {
    nbl__arena *arena;
    const char **list;
    int64_t count, capacity;
} nbl__problems;

/* True if the status describes the contents of a file, not the machine or the caller. */
bool nbl__is_of_the_file(nbl_status status);
/* If `status` describes the file: lists the recorded message and hint, and returns NBL_OK. Else
 * returns it. */
nbl_status nbl__problem_collect(nbl__problems *problems, nbl_status status);
/* Lists a copy of `text`. */
nbl_status nbl__problem_add(nbl__problems *problems, const char *text);
static inline bool nbl__problems_are_full(const nbl__problems *problems)
{
    return problems && problems->count >= NBL_MAX_PROBLEMS;
}

#endif
