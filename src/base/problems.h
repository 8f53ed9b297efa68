/* problems.h - what is wrong with a file, as a list: a reader that is asked to look goes on after a problem where one
 * that is asked to open would fail.
 *
 *     NBL_TRY(nbl__problem_take(problems, check_tensor(…)));     problems NULL: the first one is an error
 */
#ifndef NBL_PROBLEMS_H
#define NBL_PROBLEMS_H

#include "base/arena.h"

enum { NBL_MAX_PROBLEMS = 1000 }; /* more are not listed, and a last line says so */

typedef struct nbl__problems {
    nbl__arena *arena;
    const char **list;
    int64_t count, capacity;
} nbl__problems;

/* Whether the status is about the contents of a file, and not about the machine or the caller. */
bool nbl__is_of_the_file(nbl_status status);
/* Takes the status of a call: one that is of the file is listed with the message just recorded, and becomes NBL_OK. */
nbl_status nbl__problem_take(nbl__problems *problems, nbl_status status);
/* Lists a text of its own. */
nbl_status nbl__problem_add(nbl__problems *problems, const char *text);
static inline bool nbl__problems_are_full(const nbl__problems *problems)
{
    return problems && problems->count >= NBL_MAX_PROBLEMS;
}

#endif
