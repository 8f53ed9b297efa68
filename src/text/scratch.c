/* scratch.c - see scratch.h. */
#include "text/scratch.h"

nbl_status nbl__scratch_grow(nbl_context *ctx, void **memory, size_t *room, size_t used, size_t needed,
                             size_t size)
{
    assert(used <= *room);
    if (needed <= *room) return NBL_OK;
    /* 1.5 times what is needed, unless that overflows. nbl__alloc_array checks larger * size. */
    size_t larger = needed > SIZE_MAX / 2 ? needed : needed + needed / 2 + 64;
    void *fresh = nbl__alloc_array(ctx, larger, size);
    if (fresh == NULL) return NBL_ERROR_MEMORY;
    if (used) memcpy(fresh, *memory, used * size);
    nbl__free(ctx, *memory, *room * size);
    *memory = fresh;
    *room = larger;
    return NBL_OK;
}
