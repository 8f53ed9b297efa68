/* partial.h - the temporary that an output is written to: TARGET.partial-XXXXXX beside the
 * target, a file or a folder.
 *
 * The temporary is locked with flock as long as its descriptor is open. The system releases a
 * killed process's locks. So a temporary that can be locked has no writer, and the next output
 * to the same target removes it. On a file system without locks nothing is ever removed. */
#ifndef NBL_PARTIAL_H
#define NBL_PARTIAL_H

#include "base/arena.h"

/* Creates and locks a new temporary under an unused name; permissions follow the umask. *name is
 * in the arena; the caller closes *fd. */
nbl_status nbl__partial_make(nbl__arena *arena, const char *target, bool folder, char **name, int *fd);
/* Removes the temporaries of `target` that no process is writing. One that cannot be removed
 * stays, which is harmless. Fails only with NBL_ERROR_MEMORY. */
nbl_status nbl__partial_clean(nbl_context *ctx, const char *target);
/* Removes the files in a folder and in its direct subfolders, and these subfolders. The folder
 * stays. */
void nbl__partial_empty(int folder);

#endif
