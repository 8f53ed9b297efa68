/* problems.c - see problems.h. The list and its texts are in the arena of the reader. */
#include "base/problems.h"

bool nbl__is_of_the_file(nbl_status status)
{
    return status == NBL_ERROR_FORMAT || status == NBL_ERROR_NOT_FOUND || status == NBL_ERROR_UNSUPPORTED ||
           status == NBL_ERROR_SHAPE || status == NBL_ERROR_DTYPE;
}

/* The list doubles; outgrown lists stay in the arena until it is freed. */
static nbl_status append(nbl__problems *p, const char *text)
{
    if (p->count == p->capacity) {
        int64_t capacity = p->capacity ? p->capacity * 2 : 16;
        const char **list = nbl__arena_alloc(p->arena, (size_t)capacity * sizeof *list);
        if (list == NULL) return NBL_ERROR_MEMORY;
        if (p->count) memcpy(list, p->list, (size_t)p->count * sizeof *list);
        p->list = list;
        p->capacity = capacity;
    }
    p->list[p->count++] = text;
    return NBL_OK;
}

nbl_status nbl__problem_add(nbl__problems *p, const char *text)
{
    if (nbl__problems_are_full(p)) {
        static const char more[] = "and more, which are not listed";
        return p->count == NBL_MAX_PROBLEMS ? append(p, more) : NBL_OK;
    }
    const char *copy = nbl__arena_strdup(p->arena, text);
    return copy ? append(p, copy) : NBL_ERROR_MEMORY;
}

nbl_status nbl__problem_collect(nbl__problems *p, nbl_status status)
{
    if (p == NULL || !nbl__is_of_the_file(status)) return status;
    const char *message = nbl_error_message(p->arena->ctx), *hint = nbl_error_hint(p->arena->ctx);
    if (*hint == '\0') return nbl__problem_add(p, message);
    const char *both = nbl__arena_printf(p->arena, "%s; %s", message, hint);
    return both ? nbl__problem_add(p, both) : NBL_ERROR_MEMORY;
}
